"""`Ledger`: keeps what governed graphs did, for good."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock
from arbiter.errors import ConfigurationError, nearest
from arbiter.evaluators._outputs import checked_number
from arbiter.history import HistoryItem
from arbiter.ledger._anchors import (
    AnchorSink,
    Head,
    Key,
    anchor_hash,
    key_from,
    merkle_root,
    read_anchors,
    signed_part,
    sink_for,
)
from arbiter.ledger._contents import States
from arbiter.ledger._database import LedgerError, Schema, open_database, shown, writing
from arbiter.ledger._entries import Event
from arbiter.ledger._queries import PAGE, Filter, Order, Page, Queries, When, time_from
from arbiter.ledger._recording import Recording
from arbiter.ledger._stored import StoredHistory, history_of
from arbiter.ledger._verifying import Verification, Verifier, line_of
from arbiter.ledger._writer import Store, Writer
from arbiter.redaction import ContentRedactor, Redactor

if TYPE_CHECKING:
    from sqlalchemy import Engine

SCHEMA = Schema("arbiter_ledger", Path(__file__).parent / "migrations", "0001")
ANCHOR_EVERY = 1_000
_STATES = ("none", "digest", "bounded", "full")


@dataclass(frozen=True, slots=True)
class Erasure:
    """What `Ledger.erase` removed: the number of threads, and of entries whose contents are gone."""

    threads: int
    contents: int


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a ledger's queue. Times are aware."""

    queued: int
    dropped: int
    last_commit: datetime | None
    last_error: str | None


class Ledger:
    """What governed graphs did, in a SQLite file or a PostgreSQL database, chained and searchable.

    `where` is a path, `sqlite:///...` or `postgresql://...`. `states` is what is kept of inputs and outputs:
    `bounded` (at most 256 KiB of a node run, 16 KiB of a text, the first 20 and last 80 elements of a list), `full`,
    `digest` or `none`. `anchors` is a file or a callable outside of the database that gets a line about every
    thousand entries; `key` signs these lines (32 bytes or more, or an Ed25519 key in PEM). `subject_key` is
    the key of `configurable` that says whom the data is about. Secrets are redacted before anything is
    stored: by the names of fields, by their form, and by `redactor`, if there is one. The writer wakes every
    `flush_every` seconds or at 64 items; `queue` is the number of items that may wait.

    Raises `LedgerUnavailable` if it cannot be opened, and `ConfigurationError` for a wrong option.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        states: States = "bounded",
        anchors: str | os.PathLike[str] | AnchorSink | None = None,
        key: bytes | str | None = None,
        subject_key: str | None = "user_id",
        flush_every: float = 0.25,
        queue: int = 10_000,
        redactor: Redactor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if states not in _STATES:
            known = ", ".join(map(repr, _STATES))
            raise ConfigurationError(
                f"states is {states!r}; expected one of {known}.{nearest(str(states), _STATES)}"
            )
        checked_number("Ledger", "queue", queue, low=1, whole=True)
        checked_number("Ledger", "flush_every", flush_every, low=0.001)
        self._where = where
        self._key: Key | None = key_from(key)
        self._sink = sink_for(anchors)
        self._clock = clock
        self._redactor = ContentRedactor(also=() if redactor is None else (redactor,))
        self._bounded = states != "full"
        self._lock = new_lock()
        self._engine: Engine | None = None
        self._writer = Writer(self._open_store, flush_every=float(flush_every), most=queue)
        self._writer.store = self._open_store()
        self._writer.on_commit.append(self._anchor_when_due)
        self.listener = Recording(self._writer, states=states, subject_key=subject_key)
        self._since_anchor = 0

    def _open_store(self) -> Store:
        return Store(open_database(self._where, SCHEMA), self._redactor, bounded=self._bounded)

    @property
    def uuid(self) -> str:
        """The ledger's own name, which every entry and anchor carries."""
        return self._store.uuid

    @property
    def _store(self) -> Store:
        if self._writer.store is None:  # in a forked child
            self._writer.store = self._open_store()
        return self._writer.store

    @property
    def _queries(self) -> Queries:
        store = self._store
        return Queries(store.engine, store.uuid)

    # Writing

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything that ended so far is committed, its evaluations included.

        False if `timeout` seconds were not enough.
        """
        until = None if timeout is None else time.monotonic() + timeout
        judged = self.listener.wait(timeout)
        left = None if until is None else max(until - time.monotonic(), 0.05)
        return self._writer.flush(left) and judged

    async def aflush(self, timeout: float | None = None) -> bool:
        """As `flush`, without blocking the event loop."""
        import asyncio

        return await asyncio.wrap_future(start(lambda: self.flush(timeout)))

    def close(self) -> None:
        """Commit what waits, write an anchor, and close the database."""
        if self.flush(30) and self._since_anchor:
            self.anchor()
        self._writer.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def health(self) -> Health:
        """How much waits, how much was dropped, and the last commit and error of the writer."""
        writer = self._writer
        at = writer.last_commit
        return Health(
            writer.queued,
            writer.dropped,
            None if at is None else datetime.fromtimestamp(at, UTC),
            writer.last_error,
        )

    # Questions

    def items(
        self,
        *,
        thread_id: str | None = None,
        run: str | None = None,
        node: str | None = None,
        instruction: str | None = None,
        status: str | None = None,
        verdict: str | None = None,
        policy: str | None = None,
        evaluator: str | None = None,
        below: float | None = None,
        above: float | None = None,
        subject: str | None = None,
        since: When = None,
        until: When = None,
        order: Order = "newest",
        attempts: bool = False,
    ) -> Items:
        """The node runs that fit, newest first; pages are read as they are needed.

        `since` and `until` are aware datetimes, ISO texts, or times ago such as "30m", "24h" or "7d". `below`
        and `above` are bounds of the score of `evaluator`. With `attempts`, all attempts of a task are shown,
        else the newest.
        """
        if (below is not None or above is not None) and evaluator is None:
            raise ConfigurationError("below and above are bounds of a score: name the evaluator as well.")
        if order not in ("newest", "oldest"):
            raise ConfigurationError(f"order is {order!r}; expected 'newest' or 'oldest'.")
        now = datetime.fromtimestamp(self._clock(), UTC)
        wanted = Filter(
            thread_id=thread_id,
            run=run,
            node=node,
            instruction=instruction,
            status=status,
            verdict=verdict,
            policy=policy,
            evaluator=evaluator,
            below=below,
            above=above,
            subject=subject,
            since=time_from("since", since, now),
            until=time_from("until", until, now),
            order=order,
            attempts=attempts,
        )
        return Items(self._queries, wanted)

    def history(self, thread_id: str, *, run: str | None = None) -> StoredHistory:
        """The history of a thread, or of one run of it. Raises `ConfigurationError` for an unknown thread."""
        return history_of(self._queries.thread(thread_id, run=run))

    def threads(
        self, *, subject: str | None = None, since: When = None, until: When = None
    ) -> Iterator[Mapping[str, Any]]:
        """The threads, the one that ran last first."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return self._queries.threads(
            subject=subject, since=time_from("since", since, now), until=time_from("until", until, now)
        )

    def counts(
        self, by: str, *, every: Literal["hour", "day"] | None = None, since: When = None
    ) -> Sequence[Mapping[str, Any]]:
        """Counts of node runs by `items`, `node`, `instruction`, `status`, `verdict` or `policy`, of
        judgements by `evaluator`, or of executions by `outcome`."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return self._queries.counts(by, every=every, since=time_from("since", since, now))

    def scores(
        self, evaluator: str, *, every: Literal["hour", "day"] | None = "hour", since: When = None
    ) -> Sequence[Mapping[str, Any]]:
        """Number, mean, least and most of an evaluator's scores over time, and the share that passed."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return self._queries.scores(evaluator, every=every, since=time_from("since", since, now))

    def erase(self, *, thread_id: str | None = None, subject: str | None = None, reason: str) -> Erasure:
        """Delete the contents of a thread, or of all threads of a subject, with their names, for good.

        The chain stays whole: an entry says when and how much was erased. Nodes, verdicts, scores and
        times remain. Copies elsewhere are not touched: the checkpointer's thread, backups, and scores that
        were sent on. Raises `ConfigurationError` unless exactly one of the two is given.
        """
        if (thread_id is None) == (subject is None):
            raise ConfigurationError("erase: give either thread_id or subject.")
        if not reason.strip():
            raise ConfigurationError("erase: give a reason; it is kept with the entry that says so.")
        self.flush(30)
        column, value = ("thread_id", thread_id) if subject is None else ("subject", subject)
        at = round(self._clock() * 1_000_000)
        threads, contents = self._store.erase(column, str(value), reason, at)
        return Erasure(threads, contents)

    # Proof

    def verify(
        self,
        thread_id: str | None = None,
        *,
        anchors: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        keys: Sequence[bytes | str] = (),
    ) -> Verification:
        """Compare everything that is stored with the chain; true if it fits.

        `anchors` are those that were kept elsewhere: a file, or lines. `keys` are the keys or public keys
        that may have signed them; by default the ledger's own.
        """
        known = [Key(key.encode() if isinstance(key, str) else key) for key in keys]
        if not known and self._key is not None:
            known = [self._key]
        lines = read_anchors(anchors) if isinstance(anchors, str | os.PathLike) else (anchors or ())
        self.flush(5)
        return Verifier(self._store.engine, thread_id=thread_id, anchors=lines, keys=known).run()

    def anchor(self) -> Mapping[str, Any] | None:
        """Write an anchor about all threads that have grown since the last one; None if none has."""
        return self._anchor(self._store)

    def _anchor_when_due(self, store: Store, events: Sequence[Event]) -> None:
        self._since_anchor += len(events)
        if self._since_anchor >= ANCHOR_EVERY:
            self._anchor(store)

    def _anchor(self, store: Store) -> Mapping[str, Any] | None:
        mark = store.statements.mark
        with self._lock, writing(store.engine, store.lock) as connection:
            run = connection.exec_driver_sql
            last = run(
                "SELECT id, upto, at, threads, root, previous, key_id, signature FROM anchors ORDER BY id DESC LIMIT 1"
            ).first()
            number = 1 if last is None else last[0] + 1
            since = 0 if last is None else last[1]
            rows = run(
                "SELECT id, ref, head_seq, head_hash FROM threads WHERE id IN "
                f"(SELECT DISTINCT thread FROM entries WHERE id > {mark})",
                (since,),
            ).all()
            self._since_anchor = 0
            if not rows:
                return None
            upto = run("SELECT last_entry FROM ledgers").scalar() or 0
            at = round(self._clock() * 1_000_000)
            root = merkle_root([Head(ref, seq, bytes(hash)) for _, ref, seq, hash in rows])
            previous = "" if last is None else anchor_hash(line_of(store.uuid, *last))
            line = line_of(store.uuid, number, upto, at, len(rows), root, previous, None, None)
            if self._key is not None:
                line["key"], line["signature"] = self._key.id, self._key.sign(signed_part(line))
            insert, sql = store.statements.insert, store.statements
            made = (number, upto, at, len(rows), root, previous, line.get("key"), line.get("signature"))
            insert(connection, sql.anchor, [made])
            insert(connection, sql.anchor_head, [(number, id, seq, hash) for id, _, seq, hash in rows])
        if self._sink is not None:
            try:
                self._sink(line)
            except Exception as error:
                raise LedgerError(f"anchor {number} could not be kept elsewhere: {error}") from error
        return line

    def __repr__(self) -> str:
        return f"<Ledger {shown(self._where)!r}>"


class Items:
    """The items of a question, newest first. Iterating reads page after page."""

    def __init__(self, queries: Queries, wanted: Filter) -> None:
        self._queries = queries
        self._wanted = wanted

    def page(self, limit: int = PAGE, after: str | None = None) -> Page[HistoryItem]:
        """One page of at most `limit` items, after the cursor of another page."""
        return self._queries.page(self._wanted, limit=limit, after=after)

    def __iter__(self) -> Iterator[HistoryItem]:
        after: str | None = None
        while True:
            page = self.page(limit=200, after=after)
            yield from page
            if page.next is None:
                return
            after = page.next
