"""The writer: one thread that turns waiting events into chained entries, one transaction at a time.

    node's thread:   Writer.add(event)                                     a deque, nothing else
    writer's thread: wake (0.25 s | 64 events) ─▶ encode, redact ─▶ commit to salted contents ─▶ chain ─▶ insert

An event is written at least once: a batch whose answer was lost is written again, and its keys make that
harmless. While the database cannot be written, events wait; beyond the bounds of the queue first contents are
dropped, then events, and each thread concerned gets a `gap` entry once writing works again.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.ledger._chain import SALT_BYTES, canonical, commitment, first_hash, next_hash
from arbiter.ledger._contents import BYTES, CHARS, before_redaction, bounded_texts, dumped
from arbiter.ledger._database import LedgerError, writing
from arbiter.ledger._entries import COLUMNS, Count, Event, body_of, columns_of, counts_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from arbiter.redaction import ContentRedactor

_log = logging.getLogger("arbiter")

BATCH = 64
MOST_AT_ONCE = 512
MOST_BYTES = 64 * 1024 * 1024
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
WARN_AFTER = 30.0
AT_EXIT = 30.0
_LET_GO = 0.0002
PATIENCE = 0.25
"""Seconds that an item may wait in the queue for its evaluations, so that it needs no second entry."""


class ConflictError(LedgerError):
    """Two unlike entries have one key: an error in the code that wrote one of them."""


@dataclass(slots=True)
class Gap:
    """Events of one thread that were not recorded."""

    event: Event
    count: int = 0
    since: int = 0
    until: int = 0
    contents: int = 0


@dataclass(slots=True)
class _Thread:
    """The head of a thread in the database, while a batch is written."""

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


@dataclass(slots=True)
class _Rows:
    """The rows of a batch, as tuples in the order of the columns."""

    entries: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    contents: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    salts: list[bytes] = field(default_factory=list[bytes])
    scores: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    counts: dict[Count, list[Any]] = field(default_factory=dict[Count, list[Any]])

    def salt(self) -> bytes:
        # Many at once: each call of the system lets the run's threads go first.
        if not self.salts:
            drawn = os.urandom(SALT_BYTES * BATCH)
            self.salts = [drawn[at : at + SALT_BYTES] for at in range(0, len(drawn), SALT_BYTES)]
        return self.salts.pop()


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
        self.anchor = (
            "anchors", ("id", "upto", "at", "threads", "root", "previous", "key_id", "signature"), ""
        )  # fmt: skip
        self.anchor_head = ("anchor_heads", ("anchor", "thread", "seq", "hash"), "")

    def insert(
        self, connection: Connection, into: tuple[str, Sequence[str], str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert rows with as few statements as the drivers' limits allow."""
        table, names, conflict = into
        size = _MOST_VALUES // len(names)
        row = f"({', '.join([self.mark] * len(names))})"
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            values = ", ".join([row] * len(part))
            connection.exec_driver_sql(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES {values}{conflict}",
                tuple(chain.from_iterable(part)),
            )


_MOST_VALUES = 30_000
"""SQLite takes 32,766 values in a statement, PostgreSQL 65,535."""


class Store:
    """Writes batches of events to the database of one ledger."""

    def __init__(self, engine: Engine, redactor: ContentRedactor, *, bounded: bool = True) -> None:
        self.engine = engine
        self.bounded = bounded
        self.statements = Statements(engine.dialect.name)
        self.redactor = redactor
        self.uuid, self.lock = self._identity()

    def _identity(self) -> tuple[str, int]:
        with writing(self.engine, 0x61726269746C6467) as connection:
            found = connection.exec_driver_sql("SELECT uuid FROM ledgers").scalar()
            if found is None:
                found = str(uuid4())
                mark = self.statements.mark
                connection.exec_driver_sql(
                    f"INSERT INTO ledgers (id, uuid, schema, created_at) VALUES (1, {mark}, 1, {mark})",
                    (found, time.time_ns() // 1000),
                )
        return str(found), int(str(found).replace("-", "")[:15], 16)

    def write(
        self, events: Sequence[Event], *, on_head: Callable[[str, int, bytes], None] | None = None
    ) -> int:
        """Write events in one transaction. Returns the number of new entries; known ones are left as they are."""
        for event in events:
            if event.complete is not None:
                event.complete(event)
                event.complete = None
        keyed = {event.key: event for event in events}
        with writing(self.engine, self.lock) as connection:
            known = self._known(connection, list(keyed))
            fresh = [event for key, event in keyed.items() if key not in known]
            for key, body in known.items():
                _ensure_same(keyed[key], body)
            if not fresh:
                return 0
            threads = self._threads(connection, fresh)
            judged = [str(event.fields["of"]) for event in fresh if event.kind == "judged"]
            ids = self._ids(connection, judged)
            last: int = connection.exec_driver_sql("SELECT last_entry FROM ledgers").scalar() or 0
            rows = _Rows()
            for event in fresh:
                last += 1
                ids[event.key] = last
                of = ids.get(str(event.fields.get("of")), last)
                self._add(rows, last, of, event, threads[event.place])
            self._insert(connection, rows, threads.values(), last)
        return len(fresh)

    def erase(self, column: str, value: str, reason: str, at: int) -> tuple[int, int]:
        """Remove the contents and names of the threads whose `column` has that value.

        Returns the number of threads and of contents. An `erasure` entry says so in each thread's chain.
        """
        mark = self.statements.mark
        with writing(self.engine, self.lock) as connection:
            run = connection.exec_driver_sql
            rows = run(
                f"SELECT id, ref, head_seq, head_hash, thread_id FROM threads WHERE {column} = {mark}",
                (value,),
            ).all()
            last: int = run("SELECT last_entry FROM ledgers").scalar() or 0
            written, removed = _Rows(), 0
            threads: list[_Thread] = []
            for id, ref, seq, hash, name in rows:
                of_thread = f"(SELECT id FROM entries WHERE thread = {mark})"
                gone = run(f"DELETE FROM contents WHERE entry IN {of_thread}", (id,)).rowcount
                removed += gone
                thread = _Thread(id, ref, seq, bytes(hash), name, last_at=at)
                event = Event(
                    kind="erasure",
                    at=at,
                    thread_id=name,
                    run=ref,
                    execution=str(uuid4()),
                    fields={"entries": gone, "upto": seq},
                    contents={"reason": reason},
                )
                last += 1
                self._add(written, last, last, event, thread)
                threads.append(thread)
            if rows:
                self._insert(connection, written, threads, last)
                ids = [(at, thread.id) for thread in threads]
                run(
                    f"UPDATE threads SET thread_id = NULL, subject = NULL, erased_at = {mark} WHERE id = {mark}",
                    ids,
                )
        if self.engine.dialect.name == "sqlite":
            with self.engine.connect() as connection:  # the log still has what was deleted
                connection.exec_driver_sql("ROLLBACK")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.exec_driver_sql("BEGIN")
        return len(rows), removed

    def _known(self, connection: Connection, keys: list[str]) -> dict[str, str]:
        marks = ", ".join([self.statements.mark] * len(keys))
        rows = connection.exec_driver_sql(
            f"SELECT key, body FROM entries WHERE key IN ({marks})",
            tuple(keys),
        )
        return {row[0]: row[1] for row in rows}

    def _ids(self, connection: Connection, keys: list[str]) -> dict[str, int]:
        if not keys:
            return {}
        marks = ", ".join([self.statements.mark] * len(keys))
        rows = connection.exec_driver_sql(f"SELECT key, id FROM entries WHERE key IN ({marks})", tuple(keys))
        return {row[0]: row[1] for row in rows}

    def _threads(self, connection: Connection, events: Sequence[Event]) -> dict[str, _Thread]:
        """The threads of these events by their place, with their heads; new ones get an id."""
        # A thread without an id is found by its ref, which then is the uuid of its run.
        found: dict[str, _Thread] = {}
        for column, prefix, names in (
            ("thread_id", "thread ", {event.thread_id for event in events if event.thread_id is not None}),
            ("ref", "run ", {event.run for event in events if event.thread_id is None}),
        ):
            if not names:
                continue
            marks = ", ".join([self.statements.mark] * len(names))
            rows = connection.exec_driver_sql(
                f"SELECT id, ref, head_seq, head_hash, first_at, last_at, thread_id FROM threads "
                f"WHERE {column} IN ({marks}) AND erased_at IS NULL",
                tuple(names),
            )
            for row in rows:
                name: str = row[6] if column == "thread_id" else row[1]
                found[prefix + name] = _Thread(
                    row[0], row[1], row[2], bytes(row[3]), row[6], first_at=row[4], last_at=row[5]
                )
        newest = 0
        for event in events:
            if (at := found.get(event.place)) is None:
                newest = newest or connection.exec_driver_sql("SELECT MAX(id) FROM threads").scalar() or 0
                newest += 1
                ref = event.run if event.thread_id is None else str(uuid4())
                at = _Thread(newest, ref, 0, first_hash(self.uuid, ref), event.thread_id, first_at=event.at)
                found[event.place] = at
            at.subject = event.subject or at.subject
            at.graph = event.graph or at.graph
            at.last_at = max(at.last_at, event.at)
        return found

    def _add(self, rows: _Rows, id: int, of: int, event: Event, thread: _Thread) -> None:
        """Add the rows of an entry. `of` is the entry that its scores are about."""
        content = salt = data = None
        if event.contents is not None:
            data = self._encoded(event.contents)
            salt = rows.salt()
            content = commitment(salt, data)
        thread.seq += 1
        body = body_of(event, ledger=self.uuid, ref=thread.ref, seq=thread.seq, content=content)
        text = canonical(body)
        thread.hash = next_hash(thread.hash, text)
        columns = columns_of(body)
        rows.entries.append(
            (
                id, thread.id, thread.seq, body["key"], event.kind, *(columns[name] for name in COLUMNS),
                text.decode(), thread.hash,
            )
        )  # fmt: skip
        if salt is not None and data is not None:
            rows.contents.append((id, salt, data.decode()))
        for score in event.scores:
            rows.scores.append((of, score.evaluator, float(score.score), score.passed, score.read, event.at))
        for count, amount in counts_of(body):
            known = rows.counts.setdefault(count, [0, 0.0, None, None])
            known[0] += 1
            if amount is not None:
                known[1] += amount
                known[2] = amount if known[2] is None else min(known[2], amount)
                known[3] = amount if known[3] is None else max(known[3], amount)
        if event.kind in ("item", "recovered"):
            thread.items += 1
            thread.denied += columns["verdict"] == "deny"
            thread.asked += columns["verdict"] == "ask"
        elif event.kind == "execution":
            thread.outcome = str(body.get("outcome"))

    def _encoded(self, contents: dict[str, Any]) -> bytes:
        data = dumped(contents)
        if len(data) <= CHARS and self.redactor.is_clean(data.decode()):
            return data  # the usual case: no text in it is long enough to be cut
        redacted = self.redactor.redact(before_redaction(contents) if self.bounded else contents)
        if not self.bounded:
            return dumped(redacted)
        data = dumped(bounded_texts(redacted))
        return data if len(data) <= BYTES else dumped(_without_largest(redacted))

    def _insert(self, connection: Connection, rows: _Rows, threads: Iterable[_Thread], last: int) -> None:
        sql = self.statements
        heads = [
            (
                t.id, t.ref, t.thread_id, t.subject, t.graph, t.first_at, t.last_at, t.items, t.denied, t.asked,
                t.outcome, t.seq, t.hash,
            )
            for t in threads
        ]  # fmt: skip
        counts = [(*count, *amounts) for count, amounts in sorted(rows.counts.items())]
        for into, of_table in (
            (sql.thread, heads),
            (sql.entry, rows.entries),
            (sql.content, rows.contents),
            (sql.score, rows.scores),
            (sql.count, counts),
        ):
            sql.insert(connection, into, of_table)
        connection.exec_driver_sql(f"UPDATE ledgers SET last_entry = {sql.mark}", (last,))


def _without_largest(contents: Any) -> Any:
    """Contents of at most 256 KiB: their largest parts are left out, named with their size."""
    parts = {key: dumped(bounded_texts(part)) for key, part in contents.items()}
    left = sum(map(len, parts.values()))
    for key in sorted(parts, key=lambda key: -len(parts[key])):
        if left <= BYTES - 1024:
            break
        left -= len(parts[key])
        contents = {**contents, key: {"$cut": {"bytes": len(parts[key])}}}
    return bounded_texts(contents)


def _ensure_same(event: Event, body: str) -> None:
    """Raise `ConflictError` if the stored body with the event's key is of another event."""
    import orjson

    known = orjson.loads(body)
    for name, value in event.fields.items():
        if known.get(name) != orjson.loads(orjson.dumps(value)):
            raise ConflictError(
                f"two unlike entries have the key {known['key']}: {name} is {known.get(name)!r} and {value!r}."
            )


class Writer:
    """The queue of one ledger and the thread that empties it."""

    def __init__(self, open_store: Callable[[], Store], *, flush_every: float, most: int) -> None:
        self._open_store = open_store
        self._every = flush_every
        self._most = most
        self.store: Store | None = None
        self.on_commit: list[Callable[[Store, Sequence[Event]], None]] = []
        """Called on the writer's thread after each transaction: anchors, receivers."""
        self._guard = new_lock()
        self._begin()
        renew_in_child(self)
        _open_writers.add(self)

    def _begin(self) -> None:
        self._queue: deque[Event] = deque()
        self._bytes = 0
        self._gaps: dict[str, Gap] = {}
        self._wake = threading.Condition(threading.Lock())
        self._added = self._written = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._hurry = False
        self.dropped = 0
        self.last_commit: float | None = None
        self.last_error: str | None = None

    def renew(self) -> None:
        """Begin anew in a forked child: what waits here is the parent's, and so is its connection."""
        if self.store is not None:
            self.store.engine.dispose(close=False)
            self.store = None
        self._begin()

    @property
    def queued(self) -> int:
        return self._added - self._written

    def add(self, event: Event) -> None:
        """Queue an event. Never waits for the database, and never raises."""
        with self._guard:
            if len(self._queue) >= self._most:
                self._note_gap(event, whole=True)
                return
            if self._bytes + event.size > MOST_BYTES:
                self._note_gap(event, whole=False)
                event.contents = None
                event.size = 0
            self._bytes += event.size
            event.queued = time.monotonic()
            self._queue.append(event)
            self._added += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="arbiter-ledger", daemon=True)
                self._thread.start()
            waiting = len(self._queue)
        if waiting % BATCH == 0:
            with self._wake:
                self._wake.notify()
            if waiting > 2 * BATCH:
                # A run that computes without a pause keeps the interpreter to itself: the writer would not get on.
                time.sleep(_LET_GO)

    def _note_gap(self, event: Event, *, whole: bool) -> None:
        gap = self._gaps.get(event.place)
        if gap is None:
            gap = self._gaps[event.place] = Gap(event, since=event.at)
        gap.until = event.at
        if whole:
            if event.complete is not None:
                event.complete(event)
            gap.count += 1
            self.dropped += 1
        else:
            gap.contents += 1

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything that was queued so far is committed. False if the time was up first."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            wanted = self._added
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            while self._written < wanted or self._gaps:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._thread is None or not self._thread.is_alive():
                    return self._written >= wanted
                self._wake.wait(0.1 if left is None else min(left, 0.1))
        return True

    def close(self, timeout: float | None = AT_EXIT) -> bool:
        """Flush and end the thread. Returns False, with one warning, if events were left."""
        done = self.flush(timeout)
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        thread = self._thread
        if thread is not None and done:
            thread.join(5)
        if not done:
            _log.warning(
                "the ledger was closed with %d events that could not be written: %s",
                self.queued,
                self.last_error or "the time was up",
            )
        if self.store is not None and done:
            self.store.engine.dispose()
        return done

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._queue and self._closed:
                    return
                if len(self._queue) < BATCH and not self._hurry and not self._closed:
                    self._wake.wait(self._every)
            self._write_waiting()
            with self._wake:
                if not self._queue:
                    self._hurry = False
                self._wake.notify_all()
                if self._queue:  # they wait for their evaluations
                    self._wake.wait(PATIENCE / 5)

    def _write_waiting(self) -> None:
        while batch := self._batch():
            self._write(batch)
            with self._wake:
                self._written += sum(event.kind != "gap" for event in batch)
                self._wake.notify_all()

    def _batch(self) -> list[Event]:
        with self._guard:
            batch, waiting, patience = list[Event](), list[Event](), time.monotonic() - PATIENCE
            while self._queue and len(batch) < MOST_AT_ONCE:
                event = self._queue.popleft()
                if event.is_open is not None and event.queued > patience and event.is_open():
                    waiting.append(event)  # one entry instead of two
                else:
                    batch.append(event)
            self._queue.extendleft(reversed(waiting))
            self._bytes -= sum(event.size for event in batch)
            if self._gaps and not self._queue:
                batch += [_gap_entry(gap, self.last_error) for gap in self._gaps.values()]
                self._gaps = {}
        return batch

    def _write(self, batch: list[Event]) -> None:
        """Write the batch, for as long as it takes; runs go on meanwhile."""
        pause, failing_since, warned = SHORTEST_PAUSE, None, False
        while True:
            try:
                if self.store is None:
                    self.store = self._open_store()
                self.store.write(batch)
            except Exception as error:
                self.last_error = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
                if isinstance(error, ConflictError):
                    _log.error("the ledger refused a batch: %s", error)
                    return
                failing_since = failing_since or time.monotonic()
                if not warned and time.monotonic() - failing_since > WARN_AFTER:
                    warned = True
                    _log.warning(
                        "the ledger cannot be written for %d s: %s. Runs go on; %d events wait, at most %d.",
                        WARN_AFTER,
                        self.last_error,
                        self.queued,
                        self._most,
                    )
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self.last_commit = time.time()
            for listener in self.on_commit:
                try:
                    listener(self.store, batch)
                except Exception:
                    _log.warning("a listener of the ledger failed", exc_info=True)
            return


def _gap_entry(gap: Gap, reason: str | None) -> Event:
    event = gap.event
    return Event(
        kind="gap",
        at=gap.until,
        thread_id=event.thread_id,
        run=event.run,
        execution=str(uuid4()),
        fields={"n": gap.count, "without_contents": gap.contents, "since": gap.since, "until": gap.until},
        contents={"reason": reason or "the queue was full"},
    )


_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _at_exit() -> None:
    for writer in list(_open_writers):
        writer.close(AT_EXIT)


# Before the pools of threads are closed at exit, as `threading` calls its own functions then.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
