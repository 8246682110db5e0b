"""`Ledger`: the one object through which users record, search, prove and erase."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from arbiter._databases import open_database, shown
from arbiter._threads.deadlines import is_from_outside, start
from arbiter._threads.forks import new_lock
from arbiter._values.states import is_whole
from arbiter.errors import (
    ArbiterWarning,
    ConfigurationError,
    UnknownInstructionError,
    callers,
    describe,
    nearest,
)
from arbiter.evaluators._outputs import checked_number
from arbiter.history import HistoryItem, Status
from arbiter.instructions import find_instruction
from arbiter.ledger._ahead import Ahead, Mode
from arbiter.ledger._anchors import (
    AnchorFile,
    AnchorSink,
    Head,
    Key,
    anchor_hash,
    is_anchor,
    key_from,
    line_of,
    merkle_root,
    read_anchors,
    signed_part,
    sink_for,
)
from arbiter.ledger._contents import States, before_redaction, bounded_texts, capture
from arbiter.ledger._database import (
    ABOUT,
    SCHEMA,
    LedgerError,
    ensure_whole,
    last_entry,
    marks,
    report_outages,
)
from arbiter.ledger._entries import Event, storable
from arbiter.ledger._erasing import CHECKPOINTS, Erasure, erase, has_checkpoints, prune
from arbiter.ledger._exporting import LedgerRecords
from arbiter.ledger._keeping import Options, shortest
from arbiter.ledger._outbox import ReceiverState, receiver_states
from arbiter.ledger._queries import (
    PAGE,
    Filter,
    Named,
    Order,
    Page,
    Queries,
    When,
    expect,
    expect_text,
    span,
    time_from,
)
from arbiter.ledger._reading import Reader
from arbiter.ledger._receivers import ScoreReceiver
from arbiter.ledger._recording import Recording
from arbiter.ledger._recovering import checkpointed
from arbiter.ledger._sending import Export
from arbiter.ledger._store import Store
from arbiter.ledger._stored import StoredHistory, StoredItem, history_of
from arbiter.ledger._verifying import Verification, Verifier
from arbiter.ledger._watching import watched
from arbiter.ledger._writer import AT_EXIT, Writer
from arbiter.ledger.replaying import ReplayReport
from arbiter.redaction import ContentRedactor, Redactor

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from arbiter._constitution.loading import Source

T = TypeVar("T")
ANCHOR_EVERY = 1_000
_AGAIN_AT_ONCE = 1_000
"""Anchors that a callable failed to take, and is given again with the next one, at most."""
SETTLE = 30.0
"""Seconds that a removal waits for what is queued and judged."""
_HOUR, _DAY = 3_600.0, 86_400.0
_log = logging.getLogger("arbiter")
_LOGGERS = ("arbiter", "arbiter.experiments", "arbiter.harness", "arbiter.memory", "arbiter.personas")
"""All loggers of Arbiter: the filter of a logger does not see the records of those below it."""
_VERDICTS = ("allow", "deny", "ask")


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a ledger's queue. Times are aware."""

    queued: int
    dropped: int
    last_commit: datetime | None
    last_error: str | None


class Ledger:
    """Records what governed graphs do in a SQLite file or a PostgreSQL database.

    `url` is a path, `sqlite:///...` or `postgresql://...`. `states` is what is kept of inputs and outputs:
    `bounded` (at most 256 KiB of a node run, 16 KiB of a text, the first 20 and last 80 elements of a list), `full`,
    `digest` (of each whole field, so each node waits until all of it is read) or `none`.
    With `ahead="acts"` an entry is committed before the body of each node
    whose instruction acts, and with "always" before each body; the node is denied by the policy `ledger` if
    that is impossible within 5 seconds. `anchors` is a file or a callable outside of the database that gets a
    line about every thousand entries; `key` signs these lines (32 bytes or more, or an Ed25519 key in PEM).
    `subject_key` is the key of `configurable` that says whom the data is about. Secrets are redacted before
    anything is stored: by the names of fields, by their form, and by `redactor`, if there is one. The writer
    wakes every `flush_every` seconds or at 512 items; `queue` is the number of items that may wait. With
    `keep_days`, the writer prunes once a day what is older.
    With `create=False`, a ledger that is not there is an error, and no file is made.

    Raises `LedgerUnavailable` if it cannot be opened, and `ConfigurationError` for a wrong option.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        states: States = "bounded",
        ahead: Mode = "never",
        anchors: str | os.PathLike[str] | AnchorSink | None = None,
        key: bytes | str | None = None,
        subject_key: str | None = "user_id",
        flush_every: float = 0.25,
        queue: int = 10_000,
        keep_days: float | None = None,
        redactor: Redactor | None = None,
        create: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _one_of("states", states, get_args(States))
        _one_of("ahead", ahead, get_args(Mode))
        checked_number("Ledger", "queue", queue, low=1, whole=True)
        checked_number("Ledger", "flush_every", flush_every, low=0.001, high=_HOUR)
        if keep_days is not None:
            checked_number("Ledger", "keep_days", keep_days, above=0)
        expect(
            "subject_key",
            subject_key,
            "the name of a key, or None",
            subject_key is None or _is_text(subject_key),
        )
        expect(
            "redactor", redactor, "an object with redact()", redactor is None or hasattr(redactor, "redact")
        )
        expect("clock", clock, "a callable", callable(clock))
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_redact_logged)
        self._where = url
        self._create = create
        self._key: Key | None = key_from(key)
        self._sink = sink_for(anchors)
        self._untaken = set[int]()
        """The numbers of the anchors that a callable failed to take."""
        self._clock = clock
        self._options = Options(states, redactor, keep_days)
        self._subject_key = subject_key
        self._lock = new_lock()
        self._writer = Writer(self._open_store, flush_every=float(flush_every), most=queue)
        self._writer.store = self._open_store()
        self._writer.on_commit += (self._anchor_when_due, self._wake_exports)
        self._recordings: weakref.WeakSet[Recording] = weakref.WeakSet()
        self.listener = self._recording()
        self._pruned_at = -math.inf
        self._prune_again = 0.0
        self._writer.on_wake = self._prune_when_due
        self.checker = None if ahead == "never" else Ahead(ahead, self._commit_start)
        """The checker that commits entries ahead; None with `ahead="never"`."""
        self._since_anchor = 0
        self._exports: list[Export] = []
        self._forgotten: set[tuple[str | None, str | None]] = set()
        """The threads and subjects that were erased through this object: the database does not know them any more."""

    def _open_store(self) -> Store:
        engine = open_database(self._where, SCHEMA, create=self._create)
        if self._create:  # a command that only reads shows what is left
            ensure_whole(engine, self._where)
        report_outages(engine, self._where)
        return Store(engine, self._options.keeping())

    def recording(self) -> Recording:
        """A listener for one more `ArbiterOS`, whose constitution may say what is recorded.

        Raises `LedgerUnavailable` for a ledger that can be read, but not written.
        """
        self._store.file.ensure_writable()
        return self._recording()

    def _recording(self) -> Recording:
        made = Recording(self._writer, self._options, subject_key=self._subject_key)
        self._recordings.add(made)
        return made

    def _commit_start(self, item: HistoryItem, at: float, timeout: float) -> None:
        self._writer.commit(self.listener.started(item, at), timeout)

    @property
    def uuid(self) -> str:
        """The ledger's own name, which every entry and anchor carries."""
        return self._store.uuid

    @property
    def where(self) -> str:
        """The path or URL of the ledger, without a password."""
        return shown(self._where)

    @property
    def _store(self) -> Store:
        if self._writer.store is None:  # in a forked child
            self._writer.store = self._open_store()
        return self._writer.store

    @property
    def _queries(self) -> Queries:
        store = self._store
        return Queries(store.engine, store.uuid, store.file)

    @property
    def reader(self) -> Reader:
        """Reads single threads and entries. For Arbiter's own modules: it is no promise."""
        return Reader(self._queries)

    # Writing

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything that ended so far is committed, its evaluations included.

        False if `timeout` seconds were not enough.
        """
        expect("timeout", timeout, "seconds, or None", timeout is None or isinstance(timeout, Real))
        until = None if timeout is None else time.monotonic() + min(timeout, threading.TIMEOUT_MAX / 2)
        judged = True
        for recording in list(self._recordings):
            judged &= recording.judging.wait(None if until is None else max(until - time.monotonic(), 0.0))
        left = None if until is None else max(until - time.monotonic(), 0.05)
        return self._writer.flush(left) and judged

    async def aflush(self, timeout: float | None = None) -> bool:
        """As `flush`, without blocking the event loop."""
        import asyncio

        return await asyncio.wrap_future(start(lambda: self.flush(timeout)))

    def close(self) -> None:
        """Commit what waits, send what receivers take within 5 seconds, write an anchor, and close the database.

        A database that is away is waited for at most 30 seconds; a warning says what could not be written.
        """
        until = time.monotonic() + AT_EXIT
        try:
            if self.flush(AT_EXIT) and (self._since_anchor or self._untaken):
                self.anchor()
        except Exception as error:  # of the database, which may be gone or full
            _log.warning("the ledger was closed without its last anchor: %s", describe(error))
        for export in self._exports:
            export.stop()
        self._writer.close(max(until - time.monotonic(), 1.0))

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

        `since` and `until` are datetimes or ISO texts, in UTC if they have no zone, or times ago such as "30m",
        "24h" or "7d"; a date is its midnight. `below` and `above` are bounds of the score of `evaluator`. With
        `attempts`, all attempts of a task are shown, else the newest. Reading a page raises `ConfigurationError`
        for an unknown thread or run, and warns of another name that does not occur, and of a run beside other
        filters that the newest 20,000 entries lack. `subject` finds all node runs of each thread that ran for it,
        also those that the thread ran for others: an entry does not name its subject, so that it can be erased.
        """
        if (below is not None or above is not None) and evaluator is None:
            raise ConfigurationError("below and above are bounds of a score: name the evaluator as well.")
        for name, value, known in (
            ("order", order, get_args(Order)),
            ("status", status, get_args(Status)),
            ("verdict", verdict, _VERDICTS),
        ):
            if value is not None:
                _one_of(name, value, known)
        for name, bound in (("below", below), ("above", above)):
            if bound is not None:
                checked_number("Ledger.items", name, bound)
        begin, end = span(since, until, self._clock())
        wanted = Filter(
            thread_id=thread_id,
            run=run,
            node=node,
            instruction=None if instruction is None else _qualified(instruction),
            status=status,
            verdict=verdict,
            policy=policy,
            evaluator=evaluator,
            below=below,
            above=above,
            subject=subject,
            since=begin,
            until=end,
            order=order,
            attempts=attempts,
        )
        queries = self._queries
        return Items(partial(queries.page, wanted), partial(queries.why_none, wanted))

    def history(self, thread_id: str, *, run: str | int | None = None) -> StoredHistory:
        """The history of a thread, or of one run of it.

        An erased thread is named by its ref. `run` is a uuid, or a number: 1 is the first run of the thread,
        -1 the newest. Raises `ConfigurationError` for an unknown thread or run.
        """
        return history_of(self._queries.thread(thread_id, run=run))

    def follow(self, thread_id: str, *, every: float = 0.5) -> Iterator[StoredHistory]:
        """The history of a thread, then what is added to it, as it is committed. Does not end.

        The database is asked every `every` seconds. Evaluations that end after their node run was committed
        are in no later part. Raises `ConfigurationError` for an unknown thread.
        """
        checked_number("Ledger.follow", "every", every, low=0)
        rows = self._queries.thread(thread_id)
        after = 0
        while True:
            if rows:
                yield history_of(rows)
                after = rows[-1].seq
            time.sleep(every)
            rows = self._queries.thread(thread_id, after=after)

    def threads(self, *, subject: str | None = None, since: When = None, until: When = None) -> Threads:
        """The threads, the one that ran last first; pages are read as they are needed.

        A thread that goes on between two pages moves to the front, and is on none of the next ones.
        """
        if subject is not None:
            expect_text("subject", subject)
        begin, end = span(since, until, self._clock())
        queries = self._queries
        return Threads(
            partial(queries.threads, subject=subject, since=begin, until=end),
            str if subject is None else partial(queries.unknown_subject, subject),
        )

    def executions(
        self, *, thread_id: str | None = None, since: When = None, until: When = None
    ) -> Executions:
        """The calls of graphs that have ended, newest first; pages are read as they are needed.

        Each has its uuid and that of its run, its thread, begin, end and outcome: completed, denied, failed,
        paused, cancelled or closed. `rules` is the digest of the constitution.
        """
        begin, end = span(since, until, self._clock())
        wanted = Filter(thread_id=thread_id, since=begin, until=end)
        return Executions(partial(self._queries.executions, wanted))

    def waiting(self) -> Threads:
        """The threads whose last execution paused for a human, the one that ran last first.

        Their questions are in the checkpointer of their graph. Threads are looked for among the newest 10,000
        node runs that paused.
        """
        return Threads(partial(self._queries.threads, waits=True))

    def watch(self) -> Generator[bool]:
        """Yields about once a second or more often: True if something may have been committed since the last
        time, by any process. Does not end.
        """
        return watched(self._store.engine)

    def grown(self, after: int, *, limit: int = 1_000) -> Sequence[tuple[int, str]]:
        """The first entries after the one with the id `after`, in the order of their commits: id and ref of the
        thread of each.
        """
        return self._queries.grown(after, limit)

    @property
    def last_entry(self) -> int:
        """The id of the newest entry; 0 if there is none."""
        return self._queries.last_entry()

    def shown(self, value: Any) -> Any:
        """`value` as this ledger would keep it if it kept all states: as JSON with marks, bounded and redacted."""
        captured = before_redaction(capture(value))
        for recording in list(self._recordings):
            # As an input: the names in `value` are those of fields, and of no rules.
            captured = recording.keeping.redactor.redact(captured, ("input",))
        return bounded_texts(captured)

    def records(self, *, thread_id: str | None = None, since: When = None) -> LedgerRecords:
        """The entries as they are stored, thread by thread: of one thread, or of the threads that were active
        since a time. A thread is always whole."""
        return LedgerRecords(
            self._queries, self.uuid, thread_id=thread_id, since=time_from("since", since, self._clock())
        )

    def names(self, kind: Named) -> Sequence[str]:
        """The names of a kind that occur in this ledger."""
        return self._queries.names(kind)

    def counts(
        self, by: str, *, every: Literal["hour", "day"] | None = None, since: When = None
    ) -> Sequence[Mapping[str, Any]]:
        """Counts of attempts of node runs by `items`, `node`, `instruction`, `status`, `verdict` or `policy`, of
        judgements by `evaluator`, or of executions by `outcome`. A node run that asked a human, and went on after
        the answer, has two attempts."""
        return self._queries.counts(by, every=every, since=time_from("since", since, self._clock()))

    def scores(
        self, evaluator: str, *, every: Literal["hour", "day"] | None = "hour", since: When = None
    ) -> Sequence[Mapping[str, Any]]:
        """Number, mean, least and most of an evaluator's scores over time, and the share that passed.

        `unscored` counts the evaluations without a score by their outcome, such as "timeout". Warns of an
        evaluator that does not occur.
        """
        queries = self._queries
        found = queries.scores(evaluator, every=every, since=time_from("since", since, self._clock()))
        if not found:
            _warn(queries.unknown("evaluator", evaluator))
        return found

    def erase(
        self,
        *,
        thread_id: str | None = None,
        subject: str | None = None,
        reason: str,
        checkpointer: Any = None,
    ) -> Erasure:
        """Delete the contents of a thread, or of all threads of a subject, with their names, for good.

        A thread that ran for several subjects is one of each of them, and is erased as a whole. The chain stays
        whole: an entry says when and how much was erased. Nodes, verdicts, scores and times remain.
        With `checkpointer`, its checkpoints of these threads are deleted too; `elsewhere` of the result names
        other copies. If it cannot delete some of them, a `LedgerError` at the end names these threads.
        A thread that was erased before, or never had an id, is named by its ref.
        Warns if there is no such thread or subject, unless this object has erased it before or the checkpointer
        has the thread. Raises `ConfigurationError` unless exactly one of the two is given, and `LedgerError` if what
        ended before the call cannot be written within a minute.
        """
        if (thread_id is None) == (subject is None):
            raise ConfigurationError("erase: give either thread_id or subject.")
        if subject is not None:
            expect_text("subject", subject)
        thread_id = None if thread_id is None else str(thread_id)
        if not _is_text(reason):
            raise ConfigurationError("erase: give a reason; it is kept with the entry that says so.")
        if checkpointer is not None and not hasattr(checkpointer, "delete_thread"):
            raise ConfigurationError(
                f"erase: expected a checkpointer of LangGraph, got {checkpointer!r:.80}."
            )
        self.flush(SETTLE)
        # Evaluations may take longer, and are not written if their item is erased.
        if not self._writer.flush(SETTLE):
            raise LedgerError(
                f"nothing was erased: {self._writer.queued} events still wait to be written, and would come back. "
                f"The last error: {self._writer.last_error or 'none'}. Erase again when ledger.flush() is True."
            )
        is_known = has_checkpoints(checkpointer, thread_id)
        condition = self._erased(thread_id, subject, is_known=is_known)
        kept: list[str] = []
        done: set[str] = set()
        if checkpointer is not None:
            # First: a process that is killed in between, and is called again, still finds their names.
            names = self._queries.thread_ids(*condition)
            done = {*names}
            # The ledger may have forgotten a name, or stored it with escapes.
            if thread_id is not None and done <= {storable(thread_id)}:
                names = [thread_id]
            kept += _kept_by(checkpointer, names)
        erased = erase(self._store, *condition, reason, self._now())
        if erased.threads:
            self._forgotten |= {(thread_id, subject), *((name, None) for name in erased.thread_ids)}
        self._since_anchor += erased.threads
        if checkpointer is not None:
            kept += _kept_by(checkpointer, [name for name in erased.thread_ids if name not in done])
        elif erased.threads:
            erased = replace(erased, elsewhere=(CHECKPOINTS, *erased.elsewhere))
        if kept:
            raise LedgerError(
                f"erase: the ledger has erased what it had, but the checkpointer still has {', '.join(kept)}. Delete "
                "these threads with its delete_thread: the ledger does not know their names any more."
            )
        return erased

    def _erased(
        self, thread_id: str | None, subject: str | None, *, is_known: bool
    ) -> tuple[str, tuple[str, ...]]:
        """The condition for the threads that are to be erased, and its values. Warns if there never were any."""
        is_done = is_known or (thread_id, subject) in self._forgotten
        if subject is not None:
            if not is_done and (why := self._queries.unknown_subject(subject)):
                _warn(f"{why} Nothing was erased.")
            return ABOUT, (storable(subject),) * 2
        name = str(thread_id)
        try:
            return "ref = ?", (self._queries.names_of(name)[0],)
        except ConfigurationError as error:
            _warn("" if is_done else f"{error} Nothing was erased.")
            return "thread_id = ?", (storable(name),)

    def prune(self, keep_days: float | None = None) -> Erasure:
        """Remove the contents of entries that are older than `keep_days`, and whole threads whose last entry
        is; by default as many days as the ledger keeps.

        A thread that is removed leaves its place in the chain and in the counts. Threads that wait for a human
        are kept. Raises `ConfigurationError` if no number of days is known.
        """
        days = self.keep_days if keep_days is None else keep_days
        if days is None:
            raise ConfigurationError("prune: this ledger keeps everything. Give keep_days.")
        checked_number("Ledger.prune", "keep_days", days, above=0)
        self.flush(SETTLE)
        return self._prune(self._store, days)

    @property
    def keep_days(self) -> float | None:
        """The days after which contents are removed, None if they are kept for ever: the least that the ledger
        and the constitutions in force say.
        """
        return shortest(recording.keeping.keep_days for recording in list(self._recordings))

    def _prune_when_due(self, store: Store) -> None:
        if self.keep_days is None or time.monotonic() < self._prune_again:
            return
        try:
            now = self._clock()
            if not self._pruned_at <= now < self._pruned_at + _DAY:  # the clock may have been set back
                self._prune(store, self.keep_days)
                self._pruned_at = now
        except BaseException as error:  # also SystemExit of the clock: it would end the thread that writes
            self._prune_again = time.monotonic() + _HOUR
            _log.warning("the ledger could not be pruned (%s); it is tried again in an hour", describe(error))

    def _prune(self, store: Store, keep_days: float) -> Erasure:
        pruned = prune(store, keep_days, self._now())
        self._since_anchor += pruned.threads + bool(pruned.contents)
        return pruned

    def _now(self) -> int:
        return round(self._clock() * 1_000_000)

    def recover(self, graph: Any, *, thread_id: str | None = None) -> int:
        """Add the node runs that the checkpointer of a governed graph knows and the ledger lacks, and return
        their number.

        They were lost with a process that was killed. The entries are `recovered`: they have no contents, and
        only those scores that a rule had read. A thread that goes on is recovered without this call. Raises
        `ConfigurationError` for a graph that is not governed or has no checkpointer, and `LedgerError` if its
        checkpoints cannot be read.
        """
        before, is_written = self._store.recovered, True
        for items in checkpointed(graph, thread_id):
            self.listener.restored(items)
            # A full queue takes no more of what a checkpoint has.
            if 2 * self._writer.queued >= self._writer.most and not (is_written := self._writer.flush(60)):
                break
        if not is_written or not self.flush(60):
            raise LedgerError(f"the recovered entries could not be written: {self._writer.last_error}")
        return self._store.recovered - before

    # Receivers of scores

    def export_to(
        self, receiver: ScoreReceiver, *, follow: bool = True, every: float = 1.0, patience: float = 60.0
    ) -> Export:
        """Send the scores of this ledger to another system, each at least once, under an id that stays the same.

        Only evaluations of node runs with a span are sent. The ledger keeps how far each receiver has got, so
        an outage or a crash loses nothing. With `follow`, a thread sends them as they are committed, looks every
        `every` seconds for those of other processes, and tries again for ever. Without, the call returns when all
        are sent; it raises `ReceiverBusy` if nothing gets through for `patience` seconds. Raises
        `ReceiverError` if the receiver will not take anything, and `ConfigurationError` for a receiver without
        a name, one whose batches would be empty, or one that this ledger follows already.
        """
        checked_number("Ledger.export_to", "every", every, above=0)
        given: Any = receiver
        if not isinstance(given, ScoreReceiver) or not given.name:
            raise ConfigurationError(
                f"export_to: expected a ScoreReceiver with a name, got {receiver!r:.80}."
            )
        if not is_whole(receiver.most, least=1):
            raise ConfigurationError(
                f"export_to: the receiver {receiver.name!r} takes batches of most={receiver.most!r:.80}; expected a "
                "whole number from 1."
            )
        export = Export(
            self._store,
            receiver,
            every=float(every),
            patience=None if follow else float(patience),
            clock=self._clock,
        )
        with self._lock:
            running = [each for each in self._exports if each.is_running]
            if any(each.receiver.name == receiver.name for each in running):
                raise ConfigurationError(
                    f"export_to: the scores are being sent to {receiver.name!r} already."
                )
            if follow:
                export.start()
                self._exports = [*running, export]
                return export
        self.flush(SETTLE)
        export.run()
        export.finish()
        return export

    def _wake_exports(self, store: Store, events: Sequence[Event]) -> None:
        for export in self._exports:
            export.wake()

    def receivers(self) -> Sequence[ReceiverState]:
        """How far each receiver of scores has got, what it refused, and why."""
        return receiver_states(self._store)

    # Replay

    def replay(
        self,
        source: Source,
        *,
        threads: Collection[str] | None = None,
        since: When = None,
        until: When = None,
        models: Mapping[str, Any] | None = None,
        allow: Iterable[str] = (),
        progress: Callable[[int], None] | None = None,
    ) -> ReplayReport:
        """The decisions that the constitution at `source` would have made differently about recorded node runs.

        No node and no tool is called. `threads` are the ids of the threads that count, or the refs of those without
        one, and `since` and `until` as in `items`. `models` and `allow` are as in `ArbiterOS.from_constitution`.
        Recorded results of an evaluator that is declared in the same way are taken; any other rule whose model is
        not given is unknown.
        `progress` is called after each thread with the number of node runs so far. Warns of `models` and prefixes
        in `allow` that no rule uses. Raises `PackError` for a constitution with mistakes, and `ConfigurationError`
        if there are no such node runs.
        """
        from arbiter.ledger.replaying._replay import replay

        is_list = isinstance(threads, Collection) and not isinstance(threads, str) and len(threads) > 0
        expect("threads", threads, "a list of thread ids", threads is None or is_list)
        self.flush(30)
        begin, end = span(since, until, self._clock())
        return replay(
            self.records(since=since),
            source,
            threads=threads,
            since=begin,
            until=end,
            models=models,
            allow=allow,
            progress=progress,
        )

    # Proof

    def verify(
        self,
        thread_id: str | None = None,
        anchors: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        keys: Sequence[bytes | str] = (),
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Verification:
        """Compare everything that is stored with the chain; true if it fits.

        `progress` is called now and then with the number of entries that were read so far.

        `anchors` are those that were kept elsewhere: a file, or lines. `keys` are the keys or public keys
        that may have signed them; by default the ledger's own. Raises `ConfigurationError` for an unknown
        thread, for a line that is not an anchor, and for anchors of another ledger.
        """
        given = (keys,) if isinstance(keys, str | bytes) else keys
        expect("keys", given, "a list of keys", isinstance(cast(Any, given), Iterable))
        known = [Key.of(key) for key in given]
        if not known and self._key is not None:
            known = [self._key]
        found = read_anchors(anchors) if isinstance(anchors, str | os.PathLike) else (anchors or ())
        expect("anchors", found, "a file, or a list of anchors", isinstance(cast(Any, found), Iterable))
        lines = list(found)  # it may be a generator
        if anchors is not None and not lines:
            _log.warning(
                "verify: there is no anchor in those given; a cut of the newest entries stays unnoticed."
            )
        for line in lines:
            if not is_anchor(line):
                raise ConfigurationError(f"anchors: expected lines of a ledger, got {line!r:.80}.")
        others = {str(line["ledger"]) for line in lines} - {self.uuid}
        if others:
            raise ConfigurationError(
                f"these anchors are of ledger {', '.join(sorted(others))}; this is ledger {self.uuid}."
            )
        self.flush(5)
        self._store.file.ensure_in_place()
        if thread_id is not None:
            thread_id, _ = self._queries.names_of(thread_id)
        return Verifier(
            self._store.engine, thread_id=thread_id, anchors=lines, keys=known, progress=progress
        ).run()

    def anchor(self) -> Mapping[str, Any] | None:
        """Write an anchor about all threads that have grown since the last one.

        A file of anchors also gets those that were written without it. Returns the newest anchor that was
        written anywhere; None if there was nothing to write.
        """
        return self._anchor(self._store)

    def _anchor_when_due(self, store: Store, events: Sequence[Event]) -> None:
        self._since_anchor += len(events)
        if self._since_anchor >= ANCHOR_EVERY:
            self._anchor(store)

    def _anchor(self, store: Store) -> Mapping[str, Any] | None:
        with self._lock, store.writing() as connection:
            lines = [*self._missed(store, connection), *self._new_anchor(store, connection)]
            self._since_anchor = 0
        self._keep_elsewhere(lines)
        return lines[-1] if lines else None

    def _missed(self, store: Store, connection: Connection) -> Iterator[Mapping[str, Any]]:
        """The anchors that the file of anchors lacks, or that the callable failed to take."""
        mark = store.statements.mark
        if isinstance(self._sink, AnchorFile):
            which, numbers = f"> {mark}", [self._sink.newest(store.uuid)]
        else:
            # Not those of other processes: their callables took them, and where they keep them may refuse them twice.
            numbers = sorted(self._untaken)[:_AGAIN_AT_ONCE]
            which = f"IN ({marks(mark, numbers)})"
        statement = f"SELECT {_ANCHOR} FROM anchors WHERE id {which} ORDER BY id"
        for row in connection.exec_driver_sql(statement, tuple(numbers)).all():
            yield line_of(store.uuid, *row)

    def _new_anchor(self, store: Store, connection: Connection) -> Iterator[Mapping[str, Any]]:
        """Store an anchor about the threads that have grown, if there are any."""
        mark, run = store.statements.mark, connection.exec_driver_sql
        last = run(f"SELECT {_ANCHOR} FROM anchors ORDER BY id DESC LIMIT 1").first()
        number = 1 if last is None else last[0] + 1
        since = 0 if last is None else last[1]
        rows = run(
            "SELECT id, ref, head_seq, head_hash FROM threads WHERE id IN "
            f"(SELECT DISTINCT thread FROM entries WHERE id > {mark})",
            (since,),
        ).all()
        if not rows:
            return
        upto = last_entry(connection)
        at = self._now()
        root = merkle_root([Head(ref, seq, bytes(hash)) for _, ref, seq, hash in rows])
        previous = "" if last is None else anchor_hash(line_of(store.uuid, *last))
        line = line_of(store.uuid, number, upto, at, len(rows), root, previous, None, None)
        if self._key is not None:
            line["key"], line["signature"] = self._key.id, self._key.sign(signed_part(line))
        sql = store.statements
        made = (number, upto, at, len(rows), root, previous, line.get("key"), line.get("signature"))
        sql.insert(connection, sql.anchor, [made])
        sql.insert(connection, sql.anchor_head, [(number, id, seq, hash) for id, _, seq, hash in rows])
        yield line

    def _keep_elsewhere(self, anchors: Sequence[Mapping[str, Any]]) -> None:
        if self._sink is None:
            return
        for place, anchor in enumerate(anchors):
            try:
                self._sink(anchor)
            except BaseException as error:  # also SystemExit: it would end the thread that writes
                self._untaken.update(left["n"] for left in anchors[place:])
                if is_from_outside(error):
                    raise
                raise LedgerError(f"anchor {anchor['n']} could not be kept elsewhere: {error}") from error
            self._untaken.discard(anchor["n"])

    def __repr__(self) -> str:
        return f"<Ledger {shown(self._where)!r}>"


_ANCHOR = "id, upto, at, threads, root, previous, key_id, signature"


_logged = ContentRedactor()
_tracebacks = logging.Formatter()


def _redact_logged(record: logging.LogRecord) -> bool:
    """Redact what Arbiter logs, such as the exception of an evaluator: what a ledger does not keep is no text for
    a log either.
    """
    if record.exc_info:
        traceback = _tracebacks.formatException(record.exc_info)
        if (redacted := _logged.redact(traceback)) != traceback:
            # Handlers print this text. The exception itself would bring the secret back.
            record.exc_text, record.exc_info = redacted, None
    try:
        message = record.getMessage()
    except Exception:  # the handlers say what is wrong with it
        return True
    if (redacted := _logged.redact(message)) != message:
        record.msg, record.args = redacted, ()
    return True


def _kept_by(checkpointer: Any, names: Iterable[str]) -> Iterator[str]:
    """Delete the checkpoints of these threads. Yields each thread that is still there, with the reason."""
    for name in names:
        try:
            checkpointer.delete_thread(name)
        except Exception as error:  # the others must not stay for it
            yield f"{name!r} ({describe(error)})"


def _one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigurationError(
            f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}.{nearest(str(value), known)}"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _warn(sentence: str) -> None:
    """Warn the caller of the ledger's method; of nothing if the sentence is empty."""
    if sentence:
        warnings.warn(sentence, ArbiterWarning, stacklevel=callers())


class _Pages(Generic[T]):
    """The answers to a question. Iterating reads page after page.

    `read` reads a page with `limit` answers after the cursor `after`. If nothing fits, `why_none` raises or returns
    the reason, such as a name that does not occur; "" for none.
    """

    def __init__(self, read: Callable[..., Page[T]], why_none: Callable[[], str] = str) -> None:
        self._read = read
        self._why_none = why_none

    def page(self, limit: int = PAGE, after: str | None = None, *, seconds: float = 0) -> Page[T]:
        """One page of at most `limit` answers, after the cursor of another page.

        It looks at a bounded number of entries, so it may hold fewer answers than there are, and still name a
        next page. With `seconds`, it goes on until it is full or the time is over.
        """
        expect("seconds", seconds, "a number", isinstance(seconds, Real))
        page, until = self._read(limit=limit, after=after), time.monotonic() + seconds
        while page.next is not None and len(page) < limit and time.monotonic() < until:
            more = self._read(limit=limit - len(page), after=page.next)
            page = Page([*page, *more], more.next)
        if after is None and page.next is None and not page:
            _warn(self._why_none())
        return page

    def __iter__(self) -> Iterator[T]:
        page = self._read(limit=200, after=None)
        any_found = bool(page)
        yield from page
        while page.next is not None:
            page = self._read(limit=200, after=page.next)
            any_found |= bool(page)
            yield from page
        if not any_found:
            _warn(self._why_none())


class Items(_Pages[StoredItem]):
    """The items of a question. Iterating reads page after page."""


class Executions(_Pages[Mapping[str, Any]]):
    """The executions of a question. Iterating reads page after page."""


class Threads(_Pages[Mapping[str, Any]]):
    """The threads of a question, each with its totals, its lowest score and its outcome."""


def _qualified(instruction: str) -> str:
    """The full name of an instruction; one of a core that is not imported stays as it is."""
    try:
        return find_instruction(instruction).qualified
    except UnknownInstructionError:
        return instruction
