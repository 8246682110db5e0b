"""Verification: everything that is stored is derived again from the bodies, and compared.

It reads one snapshot. It finds edited bodies, columns, contents and counts, entries that are missing, inserted
or moved, heads that were set back, and threads that an anchor knows and the database does not. It cannot tell
who wrote a false entry in the first place, find a cut after the last anchor that was kept elsewhere, or prove
that everything was recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from arbiter.ledger._anchors import Head, Key, anchor_hash, merkle_root, signed_part
from arbiter.ledger._chain import canonical, commitment, first_hash, next_hash
from arbiter.ledger._entries import COLUMNS, HOUR, Count, columns_of, counts_of, scores_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_PAGE = 2_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not fit. `seq` is the number of the entry in its thread, from 1."""

    kind: str
    thread: str | None
    seq: int | None
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class Verification:
    """The result of `Ledger.verify`. True if everything fits."""

    threads: int = 0
    entries: int = 0
    anchored: int = 0
    """Entries up to the newest anchor that fits."""
    erased: int = 0
    gaps: int = 0
    """Entries that say that something could not be recorded."""
    not_recorded: int = 0
    """The number of events that these gaps name."""
    since: datetime | None = None
    until: datetime | None = None
    signed_by: str | None = None
    intact_entries: int = 0
    """Entries of threads without a finding, and those before the first finding of a thread."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def after_anchor(self) -> int:
        """Entries that are only chained: cutting them could not be noticed."""
        return self.entries - self.anchored

    def __bool__(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class _Thread:
    id: int
    ref: str
    name: str
    head_seq: int
    head_hash: bytes
    is_pruned: bool
    items: int
    denied: int
    asked: int
    hashes: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The hashes at the places that an anchor names."""
    first_wrong: int | None = None
    last_seq: int = 0
    last_hash: bytes = b""
    counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    scores: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By the key of an entry, the scores that its body and later judgements of it name."""
    stored_scores: dict[str, Any] = field(default_factory=dict[str, Any])
    seqs: dict[str, int] = field(default_factory=dict[str, int])
    without_contents: list[int] = field(default_factory=list[int])
    removed_upto: int = 0
    """The newest entry whose contents an erasure or a pruning in the chain has removed."""


class Verifier:
    """Reads one ledger, in one snapshot, and collects what does not fit."""

    def __init__(
        self,
        engine: Engine,
        *,
        thread_id: str | None = None,
        anchors: Sequence[Mapping[str, Any]] = (),
        keys: Sequence[Key] = (),
    ) -> None:
        self.engine = engine
        self.thread_id = thread_id
        self.elsewhere = anchors
        self.keys = {key.id: key for key in keys}
        self.found = Verification()
        self.threads: dict[int, _Thread] = {}
        self.counts: dict[Count, list[Any]] = {}
        self.pruned_hours = -1

    def run(self) -> Verification:
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                self._run(connection)
        self._count_intact()
        return self.found

    def _run(self, connection: Connection) -> None:
        self.uuid = str(connection.exec_driver_sql("SELECT uuid FROM ledgers").scalar())
        self._read_threads(connection)
        anchors = self._read_anchors(connection)
        for thread in self.threads.values():
            for anchor in anchors:
                if (head := anchor["heads"].get(thread.ref)) is not None:
                    thread.hashes[head[0]] = b""
        self._read_entries(connection)
        for thread in self.threads.values():
            self._check_head(thread)
        self._check_anchors(anchors)
        if self.thread_id is None:
            self._check_counts(connection)

    def _add(self, kind: str, thread: _Thread | None, seq: int | None, message: str) -> None:
        if thread is not None:
            where = f"thread {thread.name} ({thread.ref[:8]})"
            message = f"{where}, entry {seq}: {message}" if seq is not None else f"{where}: {message}"
            wrong = 1 if seq is None else seq
            if thread.first_wrong is None or wrong < thread.first_wrong:
                thread.first_wrong = wrong
        self.found.findings.append(Finding(kind, thread.ref if thread else None, seq, message))

    # Threads and entries

    def _read_threads(self, connection: Connection) -> None:
        rows = connection.exec_driver_sql(
            "SELECT id, ref, thread_id, head_seq, head_hash, pruned_at, items, denied, asked FROM threads"
        )
        for id, ref, name, seq, hash, pruned, items, denied, asked in rows:
            if self.thread_id is not None and self.thread_id not in (name, ref):
                continue
            self.threads[id] = _Thread(
                id,
                ref,
                name or ref,
                seq,
                bytes(hash or b""),
                pruned is not None,
                items,
                denied,
                asked,
            )
        self.found.threads = len(self.threads)

    def _read_entries(self, connection: Connection) -> None:
        current: _Thread | None = None
        for row in self._rows(connection):
            thread_id, seq = row[1], row[2]
            body, hash, salt, content, scores = row[-5:]
            thread = self.threads.get(thread_id)
            if thread is None:
                if self.thread_id is None:
                    self._add(
                        "unknown thread", None, seq, f"entry {row[0]} belongs to no thread of this ledger."
                    )
                continue
            self.found.entries += 1
            if thread is not current:
                if current is not None:
                    self._check_scores(current)
                current = thread
                thread.last_hash = first_hash(self.uuid, thread.ref)
            self._check_entry(thread, row, seq, body, hash, salt, content, scores)
        if current is not None:
            self._check_scores(current)

    def _rows(self, connection: Connection) -> Iterator[Any]:
        names = ", ".join(f"e.{name}" for name in COLUMNS)
        order = "SELECT e.id, e.thread, e.seq, e.key, e.kind, " + names
        scores = self._scores(connection)
        where = ""
        if self.thread_id is not None:
            ids = ", ".join(map(str, self.threads)) or "0"
            where = f" WHERE e.thread IN ({ids})"
        result = connection.execution_options(stream_results=True, yield_per=_PAGE).exec_driver_sql(
            f"{order}, e.body, e.hash, c.salt, c.body FROM entries e LEFT JOIN contents c ON c.entry = e.id"
            f"{where} ORDER BY e.thread, e.seq"
        )
        for row in result:
            yield (*row, scores.get(row[0], {}))

    def _scores(self, connection: Connection) -> dict[int, dict[str, tuple[Any, ...]]]:
        found: dict[int, dict[str, tuple[Any, ...]]] = defaultdict(dict)
        rows = connection.exec_driver_sql("SELECT entry, evaluator, score, passed, read, at FROM scores")
        for entry, evaluator, score, passed, read, at in rows:
            found[entry][evaluator] = (score, None if passed is None else bool(passed), bool(read), at)
        return found

    def _check_entry(
        self,
        thread: _Thread,
        row: Any,
        seq: Any,
        body: Any,
        hash: Any,
        salt: Any,
        content: Any,
        scores: Mapping[str, tuple[Any, ...]],
    ) -> None:
        if seq != thread.last_seq + 1:
            missing = (
                f"entries {thread.last_seq + 1} to {seq - 1} are missing"
                if seq > thread.last_seq
                else (f"it stands after entry {thread.last_seq}")
            )
            self._add("missing", thread, seq, f"{missing}.")
        expected = next_hash(thread.last_hash, str(body).encode())
        stored = bytes(hash) if hash is not None and not isinstance(hash, str) else b""
        thread.last_seq = seq
        # The next entry is compared with what is stored here, so that one edit is one finding.
        thread.last_hash = stored
        if seq in thread.hashes:
            thread.hashes[seq] = stored
        try:
            parsed: Any = orjson.loads(body)
            is_canonical = canonical(parsed) == str(body).encode()
        except (ValueError, TypeError):
            parsed, is_canonical = None, False
        if expected != stored or not is_canonical or not isinstance(parsed, dict):
            before = f", or entry {seq - 1} was" if seq > 1 else ""
            self._add("body", thread, seq, f"its body does not fit its hash. It was edited{before}.")
            return
        read: dict[str, Any] = {**parsed}
        self._check_columns(thread, row, read)
        self._check_contents(thread, read, seq, salt, content)
        key = str(read.get("of") or read.get("key"))
        named = {s.evaluator: (s.score, s.passed, s.read, read.get("at")) for s in scores_of(read)}
        if named or scores:
            thread.scores.setdefault(key, {}).update(named)
            thread.seqs.setdefault(key, seq)
            if scores:
                thread.stored_scores[str(read.get("key"))] = dict(scores)
        self._add_counts(thread, read)

    def _check_columns(self, thread: _Thread, row: Any, body: Mapping[str, Any]) -> None:
        _, _, seq, key, kind, *columns = row[: 5 + len(COLUMNS)]
        own = {"thread": thread.ref, "ledger": self.uuid, "seq": seq, "key": key, "kind": kind}
        wrong = [name for name, value in own.items() if body.get(name) != value]
        expected = columns_of(body)
        wrong += [name for name, value in zip(COLUMNS, columns, strict=True) if expected[name] != value]
        if wrong:
            self._add("column", thread, seq, f"{', '.join(wrong)}: the columns are unlike the body.")

    def _check_contents(
        self, thread: _Thread, body: Mapping[str, Any], seq: int, salt: Any, content: Any
    ) -> None:
        committed = body.get("content")
        if content is None:
            if committed is not None:
                thread.without_contents.append(seq)
        elif committed is None or commitment(bytes(salt), str(content).encode()) != committed:
            self._add("contents", thread, seq, "its contents are not those that it was written with.")

    def _check_scores(self, thread: _Thread) -> None:
        for key, expected in thread.scores.items():
            if thread.stored_scores.get(key, {}) != expected:
                self._add("scores", thread, thread.seqs[key], "its scores are unlike its body.")
        thread.scores, thread.stored_scores, thread.seqs = {}, {}, {}

    def _add_counts(self, thread: _Thread, body: Mapping[str, Any]) -> None:
        if body["kind"] in ("item", "recovered"):
            verdict = columns_of(body)["verdict"]
            thread.counted[0] += 1
            thread.counted[1] += verdict == "deny"
            thread.counted[2] += verdict == "ask"
        if body["kind"] in ("erasure", "pruned"):
            thread.removed_upto = max(thread.removed_upto, int(body.get("upto", 0)))
        if body["kind"] == "gap":
            self.found.gaps += 1
            self.found.not_recorded += int(body.get("n", 0))
        at = datetime.fromtimestamp(body["at"] / 1_000_000, UTC)
        self.found.since = at if self.found.since is None else min(self.found.since, at)
        self.found.until = at if self.found.until is None else max(self.found.until, at)
        for count, amount in counts_of(body):
            known = self.counts.setdefault(count, [0, 0.0])
            known[0] += 1
            known[1] += amount or 0.0

    def _check_head(self, thread: _Thread) -> None:
        for seq in thread.without_contents:
            if seq <= thread.removed_upto:
                self.found.erased += 1
            else:
                self._add("contents", thread, seq, "its contents are gone without an erasure.")
        if thread.is_pruned and not thread.last_seq:
            return
        expected = thread.last_hash or first_hash(self.uuid, thread.ref)
        if (thread.head_seq, thread.head_hash) != (thread.last_seq, expected):
            self._add(
                "head",
                thread,
                None,
                f"its head is entry {thread.head_seq}, its newest entry is {thread.last_seq}.",
            )
        counted = [thread.items, thread.denied, thread.asked]
        if thread.first_wrong is None and thread.counted != counted and not thread.is_pruned:
            self._add(
                "counts", thread, None, "its counts of items, denials and questions are unlike its entries."
            )

    # Anchors

    def _read_anchors(self, connection: Connection) -> list[dict[str, Any]]:
        refs = {id: thread.ref for id, thread in self.threads.items()}
        if self.thread_id is not None:
            refs = {row[0]: row[1] for row in connection.exec_driver_sql("SELECT id, ref FROM threads")}
        heads: dict[int, dict[str, tuple[int, bytes]]] = defaultdict(dict)
        rows = connection.exec_driver_sql("SELECT anchor, thread, seq, hash FROM anchor_heads")
        for anchor, thread, seq, hash in rows:
            heads[anchor][refs.get(thread, f"#{thread}")] = (seq, bytes(hash))
        rows = connection.exec_driver_sql(
            "SELECT id, upto, at, threads, root, previous, key_id, signature FROM anchors ORDER BY id"
        )
        return [
            {
                "line": line_of(self.uuid, *row),
                "heads": heads.get(row[0], {}),
            }
            for row in rows
        ]

    def _check_anchors(self, anchors: Sequence[dict[str, Any]]) -> None:
        previous = ""
        newest = 0
        broken = False
        elsewhere = {line["n"]: line for line in self.elsewhere}
        for number, anchor in enumerate(anchors, 1):
            line = anchor["line"]
            name = f"anchor {line['n']}"
            if line["n"] != number or line["previous"] != previous:
                self._add("anchor", None, None, f"{name} does not follow the one before it.")
                broken = True
            previous = anchor_hash(line)
            heads = [Head(ref, seq, hash) for ref, (seq, hash) in anchor["heads"].items()]
            if merkle_root(heads) != line["root"] or len(heads) != line["threads"]:
                self._add("anchor", None, None, f"{name} does not fit the heads that are stored with it.")
                broken = True
            broken |= not self._is_signed_well(line, name)
            broken |= not self._reaches(anchor, name)
            if not broken:
                newest = line["upto"]
                self.found.signed_by = line.get("key") or self.found.signed_by
        known = {anchor["line"]["n"]: anchor for anchor in anchors}
        for n, line in sorted(elsewhere.items()):
            name = f"anchor {n} of elsewhere"
            if line["ledger"] != self.uuid:
                self._add("anchor", None, None, f"{name} is of ledger {line['ledger']}.")
            elif n not in known:
                self._add(
                    "anchor", None, None, f"{name} is not in this database: its newest part was removed."
                )
            elif anchor_hash(known[n]["line"]) != anchor_hash(line):
                self._add("anchor", None, None, f"{name} is unlike the one in this database.")
            else:
                self._is_signed_well(line, name)
        self.found.anchored = min(newest, self.found.entries)

    def _is_signed_well(self, line: Mapping[str, Any], name: str) -> bool:
        if not self.keys:
            return True
        key = self.keys.get(str(line.get("key")))
        if key is None:
            by = (
                f"signed by {line['key']}, which is none of the known keys"
                if line.get("key")
                else "not signed"
            )
            self._add("signature", None, None, f"{name} is {by}.")
            return False
        if not key.verifies(signed_part(line), str(line.get("signature"))):
            self._add("signature", None, None, f"{name} has a wrong signature.")
            return False
        return True

    def _reaches(self, anchor: Mapping[str, Any], name: str) -> bool:
        fine = True
        by_ref = {thread.ref: thread for thread in self.threads.values()}
        for ref, (seq, hash) in anchor["heads"].items():
            thread = by_ref.get(ref)
            if thread is None:
                if self.thread_id is None:
                    self._add("thread", None, None, f"{name} knows thread {ref[:8]}, which is gone.")
                    fine = False
            elif thread.is_pruned:
                continue
            elif thread.last_seq < seq:
                self._add(
                    "cut",
                    thread,
                    None,
                    f"{name} knows {seq} entries, there are {thread.last_seq}. The newest were removed.",
                )
                fine = False
            elif thread.hashes.get(seq) != hash:
                self._add("anchor", thread, seq, f"it is not the entry that {name} knows.")
                fine = False
        return fine

    # Counts

    def _check_counts(self, connection: Connection) -> None:
        pruned = connection.exec_driver_sql(
            "SELECT MAX(last_at) FROM threads WHERE pruned_at IS NOT NULL"
        ).scalar()
        least = -1 if pruned is None else int(pruned) // HOUR
        stored: dict[Count, tuple[int, float]] = {
            (row[0], row[1], row[2], row[3]): (row[4], row[5])
            for row in connection.exec_driver_sql("SELECT hour, kind, name, value, n, total FROM rollups")
        }
        wrong = {
            count
            for count in stored.keys() | self.counts.keys()
            if count[0] > least and not _alike(stored.get(count), self.counts.get(count))
        }
        if wrong and not any(thread.first_wrong is not None for thread in self.threads.values()):
            kinds = ", ".join(sorted({count[1] for count in wrong}))
            self._add("rollups", None, None, f"{len(wrong)} hourly counts ({kinds}) are unlike the entries.")

    def _count_intact(self) -> None:
        for thread in self.threads.values():
            whole = thread.last_seq if thread.first_wrong is None else thread.first_wrong - 1
            self.found.intact_entries += max(whole, 0)


def _alike(stored: tuple[int, float] | None, counted: Sequence[Any] | None) -> bool:
    if stored is None or counted is None:
        return False
    return stored[0] == int(counted[0]) and abs(stored[1] - float(counted[1])) <= 1e-6 * max(
        1.0, abs(stored[1])
    )


def line_of(
    ledger: str,
    n: int,
    upto: int,
    at: int,
    threads: int,
    root: str,
    previous: str,
    key_id: str | None,
    signature: str | None,
) -> dict[str, Any]:
    """The line of a stored anchor."""
    line: dict[str, Any] = {
        "v": 1,
        "ledger": ledger,
        "n": n,
        "at": at,
        "upto": upto,
        "threads": threads,
        "root": root,
        "previous": previous,
    }
    return line if key_id is None else {**line, "key": key_id, "signature": signature}
