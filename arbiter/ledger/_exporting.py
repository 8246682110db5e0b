"""The records of a ledger, thread by thread: read from its database or from a file, and written to files.

    Ledger ─▶ LedgerRecords ─┐                          ┌▶ JSON lines ─▶ read_records ─▶ FileRecords
                             ├▶ Records (RecordedThread)┤
    JSON lines ─▶ FileRecords┘                          └▶ CSV, for spreadsheets

JSON lines are complete: bodies and contents as they are stored, and the constitutions and graphs that bodies
name. So a file can take the place of a ledger. Each line is an object with a `row`:

    {"row": "ledger", "v": 1, "uuid": ...}
    {"row": "constitution" | "graph", "digest": ..., "body": "the text"}
    {"row": "thread", "ref": ..., "thread_id": ..., "subject": ..., "graph": "name"}
    {"row": "entry", "ref": the thread's, "body": {...}, "contents": {...} | null}

A line names only what lines before it have introduced.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from arbiter._values import files
from arbiter.errors import ConfigurationError, nearest
from arbiter.history import HistoryItem
from arbiter.ledger._chain import canonical
from arbiter.ledger._database import marks
from arbiter.ledger._entries import ITEMS, storable, time_of
from arbiter.ledger._queries import SEVERAL, Queries
from arbiter.ledger._stored import Row, node_runs_of

_log = logging.getLogger("arbiter")
VERSION = 1
_THREADS = 500
_ENTRIES = 1_000
_NAMES = "id, ref, thread_id, subject, graph"
_TABLES = {"constitution": "constitutions", "graph": "graphs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedThread:
    """A thread with all of its entries, oldest first. An erased thread has no id."""

    ref: str
    thread_id: str | None
    subject: str | None
    graph: str | None
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Text:
    """A constitution or the description of a graph, by its digest."""

    kind: str
    digest: str
    body: str


class Records(Protocol):
    """The source of records: a ledger's database, or a file that was exported from one."""

    uuid: str
    """The ledger's own name."""

    def threads(self, named: Collection[str] | None = None) -> Iterator[RecordedThread]:
        """The threads, in the order in which they began; with `named`, those with these ids or refs.

        Raises `ConfigurationError` for a name that no thread has.
        """
        ...

    def texts(self, digests: Collection[str]) -> Sequence[Text]:
        """The constitutions and graphs with these digests, as far as they are there."""
        ...


class LedgerRecords:
    """The records of a ledger: all, one thread, or the threads that were active since a time, whole."""

    def __init__(
        self, queries: Queries, uuid: str, *, thread_id: str | None = None, since: int | None = None
    ) -> None:
        self.uuid = uuid
        self._queries = queries
        self._thread = None if thread_id is None else queries.find_thread(thread_id)
        self.thread_id = None if thread_id is None else queries.names_of(thread_id)[1]
        """The id of the one thread; None if it was erased, and for all threads."""
        self.since = since
        self.upto = queries.last_entry()
        """The newest entry that `threads` reads."""

    def threads(self, named: Collection[str] | None = None) -> Iterator[RecordedThread]:
        mark, last = self._queries.mark, 0
        ids = None if self._thread is None else [self._thread]
        if named is not None:
            ids = sorted({self._queries.find_thread(name) for name in named})
        while True:
            query, values = f"id > {mark}", [last]
            if ids is not None:
                query, values = f"id IN ({marks(mark, ids[:_THREADS])})", ids[:_THREADS]
                ids = ids[_THREADS:]
            if self.since is not None:
                query, values = f"{query} AND last_at >= {mark}", [*values, self.since]
            found = list(
                self._queries.rows(
                    f"SELECT {_NAMES} FROM threads WHERE {query} ORDER BY id LIMIT {_THREADS}",
                    values,
                )
            )
            for row in found:
                entries = self._entries(f"e.thread = {mark}", [row[0]], "e.seq")
                if (thread := _thread(row, (entry[2:] for entry in entries))).rows:
                    yield thread
            if not ids and (ids is not None or len(found) < _THREADS):
                return
            last = found[-1][0] if found else last

    def _entries(
        self, where: str, values: Sequence[Any], order: str, upto: int | None = None
    ) -> Iterator[Any]:
        mark = self._queries.mark
        return self._queries.rows(
            "SELECT e.id, e.thread, e.body, c.body, e.seq FROM entries e LEFT JOIN contents c ON c.entry = e.id "
            f"WHERE {where} AND e.id <= {mark} ORDER BY {order}",
            [*values, self.upto if upto is None else upto],
        )

    def newer(self, after: int) -> tuple[int, list[RecordedThread]]:
        """The entries that were committed after that one, at most some, and the id of the last of them."""
        mark = self._queries.mark
        # Read before the entries: one that is committed meanwhile is left for the next time.
        newest = self._queries.last_entry()
        upto = max(after, min(newest, after + _ENTRIES))
        rows = list(self._entries(f"e.id > {mark}", [after], "e.id", upto))
        if not rows:
            return upto, []
        by_thread: dict[int, list[tuple[str, str | None, int]]] = {}
        for _, thread, *texts, seq in rows:
            if self._thread in (None, thread):
                by_thread.setdefault(thread, []).append((*texts, seq))
        threads = self._queries.rows(
            f"SELECT {_NAMES} FROM threads WHERE id IN ({marks(mark, by_thread)})", list(by_thread)
        )
        return rows[-1][0], [_thread(row, by_thread[row[0]]) for row in threads]

    def texts(self, digests: Collection[str]) -> Sequence[Text]:
        if not digests:
            return ()
        wanted = f"digest IN ({marks(self._queries.mark, digests)})"
        return [
            Text(kind, *row)
            for kind, table in _TABLES.items()
            for row in self._queries.rows(
                f"SELECT digest, body FROM {table} WHERE {wanted} ORDER BY id", [*digests]
            )
        ]


def _thread(row: Sequence[Any], entries: Iterable[Sequence[Any]]) -> RecordedThread:
    _, ref, thread_id, subject, graph = row
    rows = [Row(body, contents, thread_id or ref, seq) for body, contents, seq in entries]
    return RecordedThread(ref=ref, thread_id=thread_id, subject=subject, graph=graph, rows=rows)


# JSON lines


class JsonLines:
    """Makes the lines of threads. The rows that a line refers to stand before it, once."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: set[str] = set()

    def all(self) -> Iterator[str]:
        yield _line({"row": "ledger", "v": VERSION, "uuid": self._records.uuid})
        for thread in self._records.threads():
            yield from self.of(thread)

    def of(self, thread: RecordedThread) -> Iterator[str]:
        bodies = [row.parsed()[0] for row in thread.rows]
        named = dict.fromkeys(
            body[name] for body in bodies for name in ("rules", "graph") if isinstance(body.get(name), str)
        )
        for text in self._records.texts([digest for digest in named if digest not in self._known]):
            self._known.add(text.digest)
            yield _line({"row": text.kind, "digest": text.digest, "body": text.body})
        if thread.ref not in self._known:
            self._known.add(thread.ref)
            names = {"thread_id": thread.thread_id, "subject": thread.subject, "graph": thread.graph}
            yield _line({"row": "thread", "ref": thread.ref, **names})
        ref = json.dumps(thread.ref)
        for body, contents, *_ in thread.rows:
            # The texts as they are stored, so that a reader gets what was recorded.
            yield f'{{"row":"entry","ref":{ref},"body":{body},"contents":{contents or "null"}}}\n'


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _checked(body: Any) -> Mapping[str, Any]:
    """The body of an entry. Raises `ValueError` if it has been changed beyond that."""
    if not isinstance(body, dict) or not {"kind", "seq", "key", "at"} <= body.keys():
        raise ValueError("a body belongs to no entry")
    return body  # pyright: ignore[reportUnknownVariableType]


def followed(records: LedgerRecords, *, every: float = 0.5) -> Iterator[str]:
    """The lines of everything that is recorded, then of what is added, as it is committed. Does not end."""
    lines = JsonLines(records)
    yield from lines.all()
    after = records.upto
    while True:
        last, threads = records.newer(after)
        for thread in threads:
            yield from lines.of(thread)
        if last == after:
            time.sleep(every)
        after = last


@dataclass(slots=True)
class FileRecords:
    """The records in a file of JSON lines."""

    uuid: str = ""
    _threads: dict[str, RecordedThread] = field(default_factory=dict[str, RecordedThread])
    _texts: dict[str, Text] = field(default_factory=dict[str, Text])

    def threads(self, named: Collection[str] | None = None) -> Iterator[RecordedThread]:
        wanted = self._threads if named is None else self._found(named)
        return (thread for ref, thread in self._threads.items() if ref in wanted)

    def _found(self, named: Collection[str]) -> set[str]:
        """The refs of the threads with these ids or refs; eight digits of a ref are enough."""
        refs = {of.thread_id: ref for ref, of in self._threads.items()}
        found = set[str]()
        for name in map(str, named):
            ref = refs.get(storable(name))
            if ref is None and len(name) >= 8:
                begun = [each for each in self._threads if each.startswith(name)]
                if len(begun) > 1:
                    raise ConfigurationError(SEVERAL.format(name, len(begun), "file"))
                ref = next(iter(begun), None)
            if ref is None:
                raise ConfigurationError(
                    f"this file has no thread {name!r}.{nearest(name, [*filter(None, refs)])}"
                )
            found.add(ref)
        return found

    def texts(self, digests: Collection[str]) -> Sequence[Text]:
        return [self._texts[digest] for digest in digests if digest in self._texts]

    def add(self, row: Mapping[str, Any]) -> str:
        """Add a line. Returns what is missing before it, or "".

        Raises `LookupError`, `TypeError` or `ValueError` for a line that has not this form.
        """
        match row["row"]:
            case "ledger":
                if row["v"] != VERSION:
                    raise ValueError(f"its version is {row['v']!r}, this version of Arbiter reads {VERSION}")
                self.uuid = str(row["uuid"])
            case "constitution" | "graph":
                text = str(row["body"])
                if not isinstance(orjson.loads(text), dict):
                    raise ValueError(f"the body of its {row['row']} is no mapping")
                self._texts[row["digest"]] = Text(row["row"], row["digest"], text)
            case "thread":
                names = {name: row[name] for name in ("ref", "thread_id", "subject", "graph")}
                self._threads.setdefault(row["ref"], RecordedThread(**names, rows=[]))
            case "entry":
                if row["ref"] not in self._threads:
                    raise ValueError(f"the line of its thread {row['ref']!r} is missing before it")
                thread = self._threads[row["ref"]]
                rows: Any = thread.rows
                body, contents = _checked(row["body"]), row["contents"]
                said = None if contents is None else orjson.dumps(contents).decode()
                missing = self._missing(thread, body)
                rows.append(Row(canonical(body).decode(), said, thread.thread_id or thread.ref, body["seq"]))
                return missing
            case other:
                raise ValueError(f"its row is {other!r}")
        return ""

    def _missing(self, thread: RecordedThread, body: Mapping[str, Any]) -> str:
        last, seq = thread.rows[-1].seq if thread.rows else 0, body["seq"]
        of = f"of thread {thread.thread_id or thread.ref!r}"
        if seq <= last:
            return f"entry {seq} {of} comes after entry {last}: lines were moved or repeated"
        # What was pruned is gone, and an entry says so.
        if seq > last + 1 and (last or body["kind"] != "pruned"):
            entries = f"entry {seq - 1}" if seq == last + 2 else f"entries {last + 1} to {seq - 1}"
            return f"{entries} {of} should come before it"
        for name, kind in (("rules", "constitution"), ("graph", "graph")):
            digest = body.get(name) if body["kind"] in ITEMS else None
            if digest is not None and digest not in self._texts:
                return f"the {kind} {str(digest)[:12]} of entry {seq} {of} should come before it"
        return ""


def read_records(path: str | os.PathLike[str]) -> FileRecords:
    """The records in a file that `arbiter export --to jsonl` wrote.

    Logs the first line before which others are missing. Raises `ConfigurationError` with the number of a line that
    is wrong, and for a file without a ledger.
    """
    records = FileRecords()
    missing: list[str] = []
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    if found := records.add(orjson.loads(line)):
                        missing.append(f"{os.fspath(path)}:{number}: {found}")
                    if not records.uuid:
                        raise ValueError("the first line names no ledger")
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise ConfigurationError(
                        f"{os.fspath(path)}:{number}: this is not a line of 'arbiter export --to jsonl': {error}."
                    ) from None
    except OSError as error:
        raise ConfigurationError(f"{os.fspath(path)!r} cannot be read: {error.strerror}.") from None
    if not records.uuid:
        raise ConfigurationError(
            f"{os.fspath(path)!r} is empty; expected a file of 'arbiter export --to jsonl'."
        )
    if missing:
        more = f" ({len(missing) - 1} more such lines)" if missing[1:] else ""
        _log.warning(
            "%s.%s The file is not as it was exported; decisions may differ or be unknown for that.",
            missing[0],
            more,
        )
    return records


# CSV

COLUMNS = (
    "at", "thread", "ref", "run", "step", "namespace", "node", "instruction", "attempt", "status", "seconds",
    "verdict", "policy", "reason", "redirected_to", "error", "input", "output",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def csv_lines(records: Records, evaluators: Sequence[str], *, since: int | None = None) -> Iterator[str]:
    """A table of the attempts of node runs, one row each, with a column for the score of each evaluator.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    yield _csv([*COLUMNS, *(f"score {name}" for name in evaluators)])
    for thread in records.threads():
        for body, record in node_runs_of(thread.rows):
            if since is None or body["at"] >= since:
                yield _csv(_cells(thread, body, HistoryItem(record), evaluators))


def _cells(
    thread: RecordedThread, body: Mapping[str, Any], item: HistoryItem, evaluators: Sequence[str]
) -> list[Any]:
    verdict = item.check_policy_results.get(item.decision.policy or "")
    found = item.to_dict()
    results, outcomes = found["evaluation_results"], found["evaluation_outcomes"]
    return [
        time_of(body["at"]).isoformat(),
        thread.thread_id,
        thread.ref,
        body.get("run"),
        item.step,
        item.namespace,
        item.node,
        found["instruction"],
        item.attempt,
        item.status,
        item.duration,
        item.decision.kind,
        item.decision.policy,
        None if verdict is None else verdict.reason,
        item.redirected_to,
        item.error,
        json.dumps(found["input_state"], ensure_ascii=False),
        json.dumps(found["output_state"], ensure_ascii=False),
        *(results[name]["score"] if outcomes.get(name) == "scored" else None for name in evaluators),
    ]


def _csv(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(map(_safe, cells))
    return line.getvalue()


def _safe(cell: Any) -> Any:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return "'" + cell
    return cell


# Files


def write_whole(path: str | os.PathLike[str], lines: Iterable[str]) -> int:
    """Write a file that gets its name when it is complete. Returns the number of lines.

    Only the user of this process may read it. If the path is a link, the file behind it is replaced.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        what = (
            "a directory; name a file in it" if target.is_dir() else "no file, and would be replaced by one"
        )
        raise ConfigurationError(f"{os.fspath(path)!r} cannot be written: it is {what}.")
    with files.writing(path):
        return files.write_whole(target, lines, is_private=True)
