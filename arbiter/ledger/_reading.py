"""Reads threads and single entries, each page with a bounded number of rows: the questions of the viewer.

`Queries` answers what users ask of many items; a `Reader` shows one thread or one entry with all that belongs to
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from arbiter._databases import ensure_current
from arbiter.errors import ConfigurationError
from arbiter.ledger._database import SCHEMA, marks
from arbiter.ledger._entries import ITEMS, time_of
from arbiter.ledger._stored import StoredItem, record_of

if TYPE_CHECKING:
    from arbiter.ledger._queries import Queries

PATH = 1_000
"""The newest entries of a thread from which its path is made."""
_SCORES = 20_000
"""The newest scores of an evaluator, or runs of a node, among which the lowest are searched."""
_WHY = 64 * 1024
"""The largest contents, in characters, that a list of entries reads for the reason of a denial."""
_THREAD = (
    "id", "ref", "thread_id", "subject", "graph", "first_at", "last_at", "items", "denied", "asked", "outcome",
    "head_seq", "erased_at", "pruned_at",
)  # fmt: skip
_HIDDEN = "('judged', 'started')"
"""Kinds of entries that are shown with their item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry in a list. `contents` is there for those that were denied, asked or failed, if it is small."""

    id: int
    seq: int
    kind: str
    body: Mapping[str, Any]
    contents: Mapping[str, Any]
    scores: Sequence[tuple[str, float, bool | None]]

    @property
    def at(self) -> datetime:
        return time_of(self.body["at"])


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeEntry:
    """One node run with everything that the ledger has of it."""

    item: StoredItem
    body: Mapping[str, Any]
    contents: Mapping[str, Any] | None
    """The contents as they are stored; None if none were kept, and after an erasure."""
    attempts: Sequence[tuple[int, int, str]]
    """Number of the entry, attempt and status of each attempt of this task, this one included."""
    answers: Sequence[tuple[int, Mapping[str, Any], Mapping[str, Any]]]
    """Number, body and contents of the answers of humans to this task's questions."""
    hash: str
    previous: str | None
    """The hash of the entry before it; None for the first of the thread."""
    anchor: tuple[int, datetime, str | None] | None
    """Number, time and key of the first anchor that covers the entry; None if none does."""
    older: int | None
    newer: int | None


class Reader:
    """Reads one ledger's threads and entries."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._mark = queries.mark

    def ensure_current(self, where: str) -> None:
        """Raise `LedgerUnavailable` if the ledger was upgraded since it was opened."""
        ensure_current(self._queries.engine, SCHEMA, where)

    def thread(self, name: str) -> dict[str, Any]:
        """The row of a thread by its ref or its thread id. Raises `ConfigurationError` if there is none."""
        id = self._queries.find_thread(name)
        row = next(
            self._queries.rows(f"SELECT {', '.join(_THREAD)} FROM threads WHERE id = {self._mark}", [id])
        )
        found: dict[str, Any] = dict(zip(_THREAD, row, strict=True))
        for each in ("first_at", "last_at", "erased_at", "pruned_at"):
            found[each] = None if found[each] is None else time_of(found[each])
        return found

    def entries(
        self, thread: int, *, before: int | None = None, after: int | None = None, limit: int = 200
    ) -> tuple[list[Entry], bool]:
        """Entries of a thread, oldest first, and whether there are more on that side.

        They are the newest before number `before`, or the oldest after number `after`; by default the newest
        of all. The newest attempt of each task is shown.
        """
        where, values, order = "", list[Any](), "DESC"
        if after is not None:
            where, values, order = f" AND e.seq > {self._mark}", [after], "ASC"
        elif before is not None:
            where, values = f" AND e.seq < {self._mark}", [before]
        # By the id, which SQLite has in the index of the tasks: a task may have many attempts.
        rows = list(
            self._queries.rows(
                "SELECT e.id, e.seq, e.kind, e.body, CASE WHEN (e.verdict <> 'allow' OR "
                f"(e.status IS NOT NULL AND e.status <> 'completed')) AND LENGTH(c.body) <= {_WHY} THEN c.body END "
                "FROM entries e LEFT JOIN contents c ON c.entry = e.id "
                f"WHERE e.thread = {self._mark}{where} AND e.kind NOT IN {_HIDDEN} "
                "AND NOT (e.kind IN ('item', 'recovered') AND e.task IS NOT NULL AND EXISTS ("
                "SELECT 1 FROM entries n WHERE n.thread = e.thread AND n.task = e.task AND n.id > e.id "
                "AND n.kind IN ('item', 'recovered'))) "
                f"ORDER BY e.seq {order} LIMIT {limit + 1}",
                [thread, *values],
            )
        )
        more, rows = len(rows) > limit, rows[:limit]
        scores = self._scores([row[0] for row in rows])
        found = [
            Entry(
                id=id,
                seq=seq,
                kind=kind,
                body=orjson.loads(body),
                contents=orjson.loads(contents or "{}"),
                scores=scores.get(id, ()),
            )
            for id, seq, kind, body, contents in rows
        ]
        return (found if order == "ASC" else found[::-1]), more

    def _scores(self, ids: Sequence[int]) -> dict[int, list[tuple[str, float, bool | None]]]:
        found: dict[int, list[tuple[str, float, bool | None]]] = {}
        statement = (
            "SELECT entry, evaluator, score, passed FROM scores "
            f"WHERE entry IN ({marks(self._mark, ids)}) ORDER BY entry, evaluator"
        )
        for entry, evaluator, score, passed in self._queries.rows(statement, list(ids)):
            found.setdefault(entry, []).append((evaluator, score, None if passed is None else bool(passed)))
        return found

    def path(self, thread: int) -> list[Mapping[str, Any]]:
        """The bodies of the newest node runs and executions of a thread, oldest first."""
        rows = self._queries.rows(
            f"SELECT body FROM entries WHERE thread = {self._mark} AND kind IN ('item', 'recovered', 'execution') "
            f"ORDER BY seq DESC LIMIT {PATH}",
            [thread],
        )
        return [orjson.loads(body) for (body,) in rows][::-1]

    def whole(self, thread: Mapping[str, Any], seq: int) -> WholeEntry:
        """A node run of a thread. Raises `ConfigurationError` if the entry is not there, or is of another kind."""
        id = thread["id"]
        row = next(
            self._queries.rows(
                "SELECT e.id, e.kind, e.body, e.hash, c.body FROM entries e LEFT JOIN contents c ON c.entry = e.id "
                f"WHERE e.thread = {self._mark} AND e.seq = {self._mark}",
                [id, seq],
            ),
            None,
        )
        if row is None or row[1] not in ITEMS:
            raise ConfigurationError(f"entry {seq} of this thread is not a node run, or was pruned.")
        entry, _, text, hash, contents = row
        body: dict[str, Any] = orjson.loads(text)
        parsed = None if contents is None else orjson.loads(contents)
        others = self._of_task(id, body.get("task"))
        judged = [
            (of, said) for _, kind, of, said in others if kind == "judged" and of.get("of") == body["key"]
        ]
        record = record_of(body, parsed, judged)
        item = StoredItem(
            record, thread_id=thread["thread_id"], ref=thread["ref"], run=body.get("run", ""), seq=seq
        )
        return WholeEntry(
            item=item,
            body=body,
            contents=parsed,
            attempts=[
                (number, of.get("attempt", 1), of.get("status", ""))
                for number, kind, of, _ in others
                if kind in ITEMS
            ],
            answers=[(number, of, said or {}) for number, kind, of, said in others if kind == "answer"],
            hash=bytes(hash).hex(),
            previous=self._hash(id, seq - 1),
            anchor=self._anchor(entry),
            older=self._neighbour(id, seq, newer=False),
            newer=self._neighbour(id, seq, newer=True),
        )

    def _of_task(self, thread: int, task: str | None) -> list[tuple[int, str, Any, Any]]:
        rows = self._queries.rows(
            "SELECT e.seq, e.kind, e.body, CASE WHEN e.kind IN ('judged', 'answer') THEN c.body END "
            f"FROM entries e LEFT JOIN contents c ON c.entry = e.id WHERE e.thread = {self._mark} "
            f"AND e.task = {self._mark} ORDER BY +e.seq LIMIT 500",  # the plus: by the task, not along the thread
            [thread, task],
        )
        return [
            (seq, kind, orjson.loads(body), None if said is None else orjson.loads(said))
            for seq, kind, body, said in rows
        ]

    def _hash(self, thread: int, seq: int) -> str | None:
        statement = f"SELECT hash FROM entries WHERE thread = {self._mark} AND seq = {self._mark}"
        return next((bytes(row[0]).hex() for row in self._queries.rows(statement, [thread, seq])), None)

    def _anchor(self, entry: int) -> tuple[int, datetime, str | None] | None:
        statement = f"SELECT id, at, key_id FROM anchors WHERE upto >= {self._mark} ORDER BY id LIMIT 1"
        row = next(self._queries.rows(statement, [entry]), None)
        return None if row is None else (row[0], time_of(row[1]), row[2])

    def find_task(self, thread: int, task: str) -> int | None:
        """The number of the entry of a task's newest attempt; None if the thread has none."""
        statement = (
            f"SELECT MAX(+seq) FROM entries WHERE thread = {self._mark} AND task = {self._mark} "
            "AND kind IN ('item', 'recovered')"
        )
        found: int | None = next(row[0] for row in self._queries.rows(statement, [thread, task]))
        return found

    def _neighbour(self, thread: int, seq: int, *, newer: bool) -> int | None:
        comparison, order = (">", "ASC") if newer else ("<", "DESC")
        statement = (
            f"SELECT seq FROM entries WHERE thread = {self._mark} AND seq {comparison} {self._mark} "
            f"AND kind IN ('item', 'recovered') ORDER BY seq {order} LIMIT 1"
        )
        return next((row[0] for row in self._queries.rows(statement, [thread, seq])), None)

    def text(self, kind: str, digest: str | None) -> Any:
        """The description of a graph, or a constitution, as data; None if the ledger has not got it."""
        table = {"graph": "graphs", "constitution": "constitutions"}[kind]
        statement = f"SELECT body FROM {table} WHERE digest = {self._mark}"
        return next((orjson.loads(row[0]) for row in self._queries.rows(statement, [digest or ""])), None)

    def newest_scores(
        self, evaluator: str, *, node: str, since: int | None = None
    ) -> list[tuple[int, float, bool | None, int]]:
        """Time, score, pass and entry of the scores of an evaluator in a node's newest runs."""
        mark = self._mark
        # The scores themselves do not name the node.
        runs = f"SELECT id FROM entries WHERE node = {mark} ORDER BY at DESC LIMIT {_SCORES}"
        where, values = self._of_evaluator(evaluator, since)
        scores = f"scores s ON s.entry = e.id AND {where}"
        if mark == "%s":  # PostgreSQL would read the scores of all nodes; SQLite knows no LATERAL
            scores = f"LATERAL (SELECT * FROM scores s WHERE s.entry = e.id AND {where} LIMIT 1) s ON TRUE"
        rows = self._queries.rows(
            f"SELECT s.at, s.score, s.passed, s.entry FROM ({runs}) e JOIN {scores}", [node, *values]
        )
        return [
            (int(at), float(score), None if passed is None else bool(passed), int(entry))
            for at, score, passed, entry in rows
        ]

    def lowest_scores(
        self, evaluator: str, *, since: int | None = None, limit: int
    ) -> list[tuple[float, int]]:
        """The lowest among the newest scores of an evaluator, with their entries."""
        where, values = self._of_evaluator(evaluator, since)
        newest = f"SELECT s.score, s.entry FROM scores s WHERE {where} ORDER BY s.at DESC LIMIT {_SCORES}"
        rows = self._queries.rows(
            f"SELECT score, entry FROM ({newest}) n ORDER BY score, entry LIMIT {limit}", values
        )
        return [(float(score), int(entry)) for score, entry in rows]

    def _of_evaluator(self, evaluator: str, since: int | None) -> tuple[str, list[Any]]:
        """The condition for the scores of an evaluator since a time, with its values."""
        mark = self._mark
        if since is None:
            return f"s.evaluator = {mark}", [evaluator]
        return f"s.evaluator = {mark} AND s.at >= {mark}", [evaluator, since]

    def places(self, entries: Sequence[int]) -> dict[int, dict[str, Any]]:
        """By id, the number of these entries and the names of their threads."""
        rows = self._queries.rows(
            "SELECT e.id, e.seq, t.ref, t.thread_id, t.erased_at FROM entries e JOIN threads t ON t.id = e.thread "
            f"WHERE e.id IN ({marks(self._mark, entries)})",
            list(entries),
        )
        names = ("seq", "ref", "thread_id", "erased_at")
        return {int(id): dict(zip(names, place, strict=True)) for id, *place in rows}
