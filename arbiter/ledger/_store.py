"""The store: batches of events become chained entries in the database of one ledger.

    events ─▶ encode, redact ─▶ commit to salted contents ─▶ chain ─▶ rows of each table ─▶ insert, in one transaction

Keys make it harmless to write a batch twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from arbiter._databases import newer, path_of, storable, storable_data, writing
from arbiter.ledger._chain import SALT_BYTES, canonical, commitment, first_hash, new_name, next_hash
from arbiter.ledger._contents import BYTES, CHARS, before_redaction, bounded_texts, dumped
from arbiter.ledger._database import CHANNEL, SCHEMA, DatabaseFile, LedgerError, last_entry, marks
from arbiter.ledger._entries import (
    COLUMNS,
    ITEMS,
    VERDICT,
    Counts,
    Event,
    Origin,
    body_of,
    columns_of,
    names_in,
    place_of,
    scored_of,
)
from arbiter.ledger._fitting import fitted
from arbiter.ledger._recovering import lacking

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from arbiter.ledger._keeping import Keeping

AT_ONCE = 256
"""Rows that one statement inserts at most."""
_FEW = 16
"""Fewer rows than these are inserted by one statement, whatever their number."""


_TRUTHS: Mapping[bool | None, Any] = {True: True, False: False, None: None}
# Python's sqlite3 looks for an adapter of each value that is a bool, None or bytes, which takes longer than to insert
# the row. So rows have numbers and bytearrays, and columns that are NULL in a whole batch are left out.
_NUMBERS: Mapping[bool | None, Any] = {True: 1, False: 0, None: None}


_NAMED = {"reasons", "notes", "errors", "evaluations", "evaluation_errors", "gating", "tallies"}
"""The parts of contents that are mappings by the names of rules."""


class ConflictError(LedgerError):
    """Two unlike entries have one key: an error in the code that wrote one of them."""


@dataclass(slots=True)
class Thread:
    """The head of a thread in the database, while entries are added to it."""

    id: int
    ref: str
    seq: int
    hash: bytes
    thread_id: str | None
    subject: str | None = None
    graph: str | None = None
    first_at: int = 0
    last_at: int = 0
    items: int = 0
    denied: int = 0
    asked: int = 0
    outcome: str | None = None
    is_erased: bool = False
    subjects: set[str] = field(default_factory=set[str])
    """Those that it had before its present one."""


@dataclass(slots=True)
class _Rows:
    """The rows of a batch, as tuples in the order of the columns."""

    salts: Iterator[bytes]
    entries: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    contents: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    scores: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    counts: Counts = field(default_factory=Counts)

    @staticmethod
    def of(entries: int) -> _Rows:
        """The rows of so many entries, none of which is added yet."""
        # All salts at once: each call of the system lets the run's threads go first.
        drawn = os.urandom(SALT_BYTES * entries)
        return _Rows(drawn[at : at + SALT_BYTES] for at in range(0, len(drawn), SALT_BYTES))


class Statements:
    """The statements of the writer, in the words of the database's driver.

    A statement writes many rows: a driver lets other threads run during each statement, and a run that computes
    then keeps the writer waiting for milliseconds.
    """

    def __init__(self, dialect: str) -> None:
        self.mark = "%s" if dialect == "postgresql" else "?"
        self.entry = ("entries", ("id", "thread", "seq", "key", "kind", *COLUMNS, "body", "hash"), "")
        self.content = ("contents", ("entry", "salt", "body"), "")
        self.score = ("scores", ("entry", "evaluator", "score", "passed", "read", "at"), "")
        self.count = (
            "rollups",
            ("hour", "kind", "name", "value", "n", "total", "least", "most"),
            " ON CONFLICT (hour, kind, name, value) DO UPDATE SET n = rollups.n + excluded.n, "
            "total = rollups.total + excluded.total, "
            "least = CASE WHEN rollups.least IS NULL OR excluded.least < rollups.least "
            "THEN excluded.least ELSE rollups.least END, "
            "most = CASE WHEN rollups.most IS NULL OR excluded.most > rollups.most "
            "THEN excluded.most ELSE rollups.most END",
        )
        self.thread = (
            "threads",
            (
                "id", "ref", "thread_id", "subject", "graph", "first_at", "last_at", "items", "denied", "asked",
                "outcome", "head_seq", "head_hash",
            ),
            " ON CONFLICT (id) DO UPDATE SET subject = COALESCE(excluded.subject, threads.subject), "
            "graph = COALESCE(excluded.graph, threads.graph), last_at = excluded.last_at, "
            "items = threads.items + excluded.items, denied = threads.denied + excluded.denied, "
            "asked = threads.asked + excluded.asked, outcome = COALESCE(excluded.outcome, threads.outcome), "
            "head_seq = excluded.head_seq, head_hash = excluded.head_hash",
        )  # fmt: skip
        self.subject = ("subjects", ("thread", "subject"), " ON CONFLICT (thread, subject) DO NOTHING")
        self.described = {
            name: (table, ("digest", "body"), " ON CONFLICT (digest) DO NOTHING")
            for name, table in (("rules", "constitutions"), ("graph", "graphs"))
        }
        self.anchor = (
            "anchors", ("id", "upto", "at", "threads", "root", "previous", "key_id", "signature"), ""
        )  # fmt: skip
        self.anchor_head = ("anchor_heads", ("anchor", "thread", "seq", "hash"), "")

    def insert(
        self, connection: Connection, into: tuple[str, Sequence[str], str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert rows with few statements, each of a number of rows that comes again: SQLite keeps statements that
        it has read, and reading a new one takes longer than running it. Columns that are NULL in all rows are left
        out.
        """
        if not rows:
            return
        table, names, conflict = into
        columns = [
            (name, values)
            for name, values in zip(names, zip(*rows, strict=True), strict=True)
            if values[0] is not None or values.count(None) < len(values)
        ]
        filled = tuple([name for name, _ in columns])
        values = rows if len(filled) == len(names) else [*zip(*[each for _, each in columns], strict=True)]
        at = 0
        while left := len(values) - at:
            size = left if left < _FEW else min(1 << (left.bit_length() - 1), AT_ONCE)
            statement = _insert_of(table, filled, conflict, self.mark, size)
            connection.exec_driver_sql(statement, tuple(chain.from_iterable(values[at : at + size])))
            at += size


@lru_cache(256)
def _insert_of(table: str, names: Sequence[str], conflict: str, mark: str, rows: int) -> str:
    """The text of an insert. SQLite takes 32,766 values in a statement, PostgreSQL 65,535."""
    row = f"({','.join([mark] * len(names))})"
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {','.join([row] * rows)}{conflict}"


class Store:
    """Writes batches of events to the database of one ledger."""

    def __init__(self, engine: Engine, keeping: Keeping) -> None:
        self.engine = engine
        self.keeping = keeping
        self.statements = Statements(engine.dialect.name)
        self.uuid, self.lock = self._identity()
        self.file = DatabaseFile.of(engine)
        self._truths = _TRUTHS if engine.dialect.name == "postgresql" else _NUMBERS
        """The truth values as the driver takes them."""
        self.recovered = 0
        """The number of entries that were recovered."""

    def _identity(self) -> tuple[str, int]:
        own, known = "SELECT uuid, schema FROM ledgers", int(SCHEMA.newest)
        at = time.time_ns() // 1_000_000
        uuid: Any = new_name(at)
        schema: Any = known
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql(own).first()
        if found is None:
            with writing(self.engine, 0x61726269746C6467) as connection:
                found = connection.exec_driver_sql(own).first()
                if found is None:
                    mark = self.statements.mark
                    connection.exec_driver_sql(
                        f"INSERT INTO ledgers (id, uuid, schema, created_at) VALUES (1, {mark}, {mark}, {mark})",
                        (uuid, known, at * 1_000),
                    )
        if found is not None:
            uuid, schema = found
        if not isinstance(schema, int) or schema > known:
            url = str(self.engine.url)
            self.engine.dispose()
            raise newer(path_of(url) or url, schema, SCHEMA)
        return str(uuid), int.from_bytes(sha256(str(uuid).encode()).digest()[:7])

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """A transaction that writes. Raises `LedgerError` if the file of the ledger is gone."""
        self.file.ensure_in_place()  # an open connection would go on writing to what was removed
        with writing(self.engine, self.lock) as connection:
            yield connection

    def write(self, events: Sequence[Event]) -> int:
        """Write events in one transaction. Returns the number of new entries; known ones are left as they are."""
        if not events:
            return 0
        from sqlalchemy.exc import IntegrityError

        _escape_names(events)
        keyed = dict[str, Event]()
        for event in events:
            known = keyed.setdefault(event.key, event)
            if known is not event and known.fields != event.fields:
                raise ConflictError(f"two different entries have the key {event.key}, in one batch.")
        contents = dict(zip(keyed, self._encoded([*keyed.values()]), strict=True))
        try:
            return self._write(keyed, contents)
        except IntegrityError:
            # An entry of the batch is stored: its answer was lost, or another process has written it.
            return self._write(keyed, contents, again=True)

    def _write(
        self, keyed: dict[str, Event], contents: Mapping[str, bytes | None], *, again: bool = False
    ) -> int:
        with self.writing() as connection:
            if again:
                known = set[str]()
                for key, body in self._where(connection, "key, body FROM entries", "key", keyed):
                    _ensure_same(keyed[key], body)
                    known.add(key)
                keyed = {key: event for key, event in keyed.items() if key not in known}
            keyed = lacking(connection, self.statements.mark, keyed)
            ids = self._judged(connection, keyed)
            keyed = {
                key: event
                for key, event in keyed.items()
                # What is judged after it was erased or pruned: its name and its texts must not come back.
                if event.kind != "judged" or event.fields["of"] in ids or event.fields["of"] in keyed
            }
            if not keyed:
                return 0
            threads = self._threads(connection, keyed.values())
            last = last_entry(connection)
            rows = _Rows.of(len(keyed))
            for key, event in keyed.items():
                last += 1
                thread = threads[event.origin.place]
                if event.at > thread.last_at:
                    thread.last_at = event.at
                ids[key] = last
                of = ids[event.fields["of"]] if event.kind == "judged" else last
                self._add(rows, last, of, key, event, contents[key], thread)
            self._insert(connection, rows, threads.values(), last)
            for name, text in {
                part for event in keyed.values() if event.describes for part in event.describes
            }:
                self.statements.insert(
                    connection, self.statements.described[name], [(text.digest, text.body)]
                )
        self.recovered += sum(event.kind == "recovered" for event in keyed.values())
        return len(keyed)

    def append(self, connection: Connection, said: Sequence[tuple[Thread, Event]]) -> None:
        """Add one entry to each of these threads, in the transaction of `connection`."""
        if not said:
            return
        last = last_entry(connection)
        rows = _Rows.of(len(said))
        contents = self._encoded([event for _, event in said])
        for (thread, event), data in zip(said, contents, strict=True):
            last += 1
            self._add(rows, last, last, event.key, event, data, thread)
        self._insert(connection, rows, [thread for thread, _ in said], last)

    def _judged(self, connection: Connection, events: Mapping[str, Event]) -> dict[str, int]:
        """The ids of the stored items that these events judge, by their keys, but for those that were erased."""
        rows = self._where(
            connection,
            "e.key, e.id, t.erased_at IS NOT NULL AND EXISTS (SELECT 1 FROM entries x WHERE x.thread = e.thread "
            "AND x.seq > e.seq AND x.kind = 'erasure') FROM entries e JOIN threads t ON t.id = e.thread",
            "e.key",
            [event.fields["of"] for event in events.values() if event.kind == "judged"],
        )
        return {key: id for key, id, is_erased in rows if not is_erased}

    def _where(
        self, connection: Connection, what: str, column: str, values: Collection[str]
    ) -> Iterable[Any]:
        if not values:
            return ()
        is_wanted = f"{column} IN ({marks(self.statements.mark, values)})"
        return connection.exec_driver_sql(f"SELECT {what} WHERE {is_wanted}", tuple(values))

    def _threads(self, connection: Connection, events: Collection[Event]) -> dict[str, Thread]:
        """The threads of these events by their place, with their heads; new ones get an id."""
        first: dict[Origin, Event] = {}
        for event in events:
            first.setdefault(event.origin, event)
        named = {origin.thread_id for origin in first if origin.thread_id is not None}
        # A thread without an id has the uuid of its run as its ref.
        unnamed = {origin.run for origin in first if origin.thread_id is None}
        heads = "id, ref, head_seq, head_hash, first_at, last_at, thread_id, subject FROM threads"
        rows = [
            *self._where(connection, heads, "thread_id", named),
            *self._where(connection, heads, "ref", unnamed),
        ]
        found: dict[str, Thread] = {}
        for id, ref, seq, hash, first_at, last_at, thread_id, subject in rows:
            thread = Thread(id, ref, seq, bytes(hash), thread_id, subject, first_at=first_at, last_at=last_at)
            found[place_of(thread_id, ref)] = thread
        newest = 0
        for origin, event in first.items():
            if (at := found.get(origin.place)) is None:
                newest = newest or connection.exec_driver_sql("SELECT MAX(id) FROM threads").scalar() or 0
                newest += 1
                ref = origin.run if origin.thread_id is None else str(uuid4())
                at = Thread(newest, ref, 0, first_hash(self.uuid, ref), origin.thread_id, first_at=event.at)
                at.last_at = event.at
                found[origin.place] = at
            if origin.subject and origin.subject != at.subject:
                if at.subject:
                    at.subjects.add(at.subject)
                at.subject = origin.subject
            at.graph = origin.graph or at.graph
        return found

    def _add(
        self, rows: _Rows, id: int, of: int, key: str, event: Event, data: bytes | None, thread: Thread
    ) -> None:
        """Add the rows of an entry with the contents `data`. `of` is the entry that its scores are about."""
        content = None
        if data is not None:
            salt = next(rows.salts)
            content = commitment(salt, data)
            rows.contents.append((id, bytearray(salt), data.decode()))
        thread.seq += 1
        body = body_of(event, key=key, ledger=self.uuid, ref=thread.ref, seq=thread.seq, content=content)
        text = canonical(body)
        thread.hash = next_hash(thread.hash, text)
        columns = columns_of(body)
        rows.entries.append(
            (id, thread.id, thread.seq, key, event.kind, *columns, text.decode(), bytearray(thread.hash))
        )
        scored = scored_of(event.evals)
        rows.counts.add(body, columns, scored)
        truths = self._truths
        for name, score, passed, read in scored:
            rows.scores.append((of, name, score, truths[passed], truths[read], event.at))
        if event.kind in ITEMS:
            thread.items += 1
            thread.denied += columns[VERDICT] == "deny"
            thread.asked += columns[VERDICT] == "ask"
        elif event.kind == "execution":
            thread.outcome = str(body.get("outcome"))

    def _encoded(self, events: Sequence[Event]) -> list[bytes | None]:
        """The contents of events redacted, bounded, and encoded."""
        encoded = [None if event.contents is None else dumped(event.contents) for event in events]
        # One look at all of them is cheaper than a look at each, and usually there is nothing to redact.
        there = [data for data in encoded if data is not None]
        if max(map(len, there), default=0) <= CHARS:
            lines = b"\n".join(there).decode()
            if all(
                keeping.redactor.is_clean(lines)
                for keeping in {each.keeping or self.keeping for each in events}
            ):
                return encoded
        return [
            None if data is None or event.contents is None else self._redacted(event, event.contents, data)
            for event, data in zip(events, encoded, strict=True)
        ]

    def _redacted(self, event: Event, contents: dict[str, Any], data: bytes) -> bytes:
        keeping = event.keeping or self.keeping
        if len(data) <= CHARS and keeping.redactor.is_clean(data.decode()):
            return data  # no text in it is long enough to be cut
        redacted = keeping.redactor.redact(before_redaction(contents) if keeping.is_bounded else contents)
        if event.kind == "execution" and names_in(redacted) != names_in(contents):
            redacted = {**redacted, "renamed": True}  # so that a verification does not compare these names
        if not keeping.is_bounded:
            return dumped(redacted)
        bounded = bounded_texts(redacted)
        data = dumped(bounded)
        return data if len(data) <= BYTES else dumped(fitted(bounded, BYTES))

    def _insert(self, connection: Connection, rows: _Rows, threads: Collection[Thread], last: int) -> None:
        sql = self.statements
        heads = [
            (
                t.id, t.ref, t.thread_id, t.subject, t.graph, t.first_at, t.last_at, t.items, t.denied, t.asked,
                t.outcome, t.seq, t.hash,
            )
            for t in threads
        ]  # fmt: skip
        subjects = [(t.id, subject) for t in threads for subject in t.subjects]
        totals = sorted(rows.counts.totals().items())
        counts = [(*count, t.n, t.total, t.least, t.most) for count, t in totals]
        for into, of_table in (
            (sql.thread, heads),
            (sql.subject, subjects),
            (sql.entry, rows.entries),
            (sql.content, rows.contents),
            (sql.score, rows.scores),
            (sql.count, counts),
        ):
            sql.insert(connection, into, of_table)
        connection.exec_driver_sql(f"UPDATE ledgers SET last_entry = {sql.mark}", (last,))
        if self.engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"NOTIFY {CHANNEL}")  # delivered with the commit


def _escape_names(events: Sequence[Event]) -> None:
    """Escape what a database cannot store in the names that these events have of rules, nodes and graphs."""
    try:
        told = orjson.dumps([(event.fields, event.evals) for event in events])
    except TypeError:  # a lone surrogate
        told = None
    if told is None or b"\\u0000" in told:
        for event in events:
            event.fields, event.evals = storable_data(event.fields), storable_data(event.evals)
            contents = event.contents or {}
            for part in contents.keys() & _NAMED:
                contents[part] = {storable(name): value for name, value in contents[part].items()}


def _ensure_same(event: Event, body: str) -> None:
    """Raise `ConflictError` if the stored body with the event's key is of another event."""
    known = orjson.loads(body)
    for name, value in event.fields.items():
        if known.get(name) != orjson.loads(orjson.dumps(value)):
            raise ConflictError(
                f"two different entries have the key {known['key']}: {name} is {known.get(name)!r} and {value!r}."
            )
