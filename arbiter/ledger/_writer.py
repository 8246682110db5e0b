"""The writer: one thread that turns waiting events into chained entries, one transaction at a time.

    node's thread:   Writer.add(event)                                     a deque, nothing else
    writer's thread: wake (0.25 s | 512 events) ─▶ Store.write(batch)       one transaction, until it succeeds

An event is written at least once: a batch whose answer was lost is written again, and its keys make that
harmless. While the database cannot be written, events wait; beyond the bounds of the queue first contents are
dropped, then events, and each thread concerned gets a `gap` entry once writing works again.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from arbiter._databases import problem_of
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.errors import describe
from arbiter.ledger._database import LedgerError, LedgerUnavailable
from arbiter.ledger._entries import ITEMS, Event, Origin, Waiting, origin_of
from arbiter.ledger._store import ConflictError, Store

_log = logging.getLogger("arbiter")

BATCH = 512
"""Events that wake the writer, and that it writes at once at most."""
MOST_BYTES = 64 * 1024 * 1024
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
WARN_AFTER = 30.0
AT_EXIT = 30.0
_LET_GO = 0.0002
POLL = 0.05
"""Seconds after which the writer looks again at events that are open, while somebody waits for them."""
LOOK_AGAIN = 0.125
"""Seconds after which it looks at them again at the earliest, otherwise: a small batch costs as much as a large one."""


@dataclass(slots=True)
class Gap:
    """Node runs and other events of one thread that were not recorded, and contents that were left out."""

    origin: Origin
    since: int
    until: int
    reason: str
    items: int = 0
    others: int = 0
    contents: int = 0


_CLOSED = "the ledger is closed"


class Writer:
    """The queue of one ledger and the thread that empties it."""

    def __init__(self, open_store: Callable[[], Store], *, flush_every: float, most: int) -> None:
        self._open_store = open_store
        self._every = flush_every
        self.most = most
        self.store: Store | None = None
        self.on_commit: list[Callable[[Store, Sequence[Event]], None]] = []
        """Called on the writer's thread after each transaction: anchors, receivers."""
        self.on_wake: Callable[[Store], None] | None = None
        """Called on the writer's thread whenever it has written what waited. Must not raise."""
        self._guard = new_lock()
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._gaps: dict[str, Gap] = {}
        self._writes_gaps = False
        self._wake = threading.Condition(threading.Lock())
        self._added = self._written = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._hurry = False
        self._open = 0
        """The number of events that wait because they were open when the writer looked at them."""
        self._look_at = 0.0
        """When the first of them has waited for long enough, by `time.monotonic`."""
        self.described: set[str] = set()
        """The digests of the rules and graphs that the ledger has from this writer."""
        self.dropped = 0
        self._has_warned = False
        self.last_commit: float | None = None
        self.last_error: str | None = None
        self._problem: str | None = None
        """The last error, until something is written again."""
        _open_writers.add(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what waits here is the parent's, and so is its connection."""
        if self.store is not None:
            self.store.engine.dispose(close=False)
            self.store = None
        _busy.discard(self)
        self._begin()

    @property
    def queued(self) -> int:
        return self._added - self._written

    def commit(self, event: Waiting, timeout: float) -> None:
        """Queue an event and wait until it is committed. Raises `LedgerError` if `timeout` seconds are not
        enough; then the event is withdrawn.
        """
        done = threading.Event()
        event.committed = done.set
        if self._closed or not self.add(event):
            raise LedgerError(_CLOSED if self._closed else "the ledger's queue is full")
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
        if not done.wait(timeout):
            event.withdraw()
            raise LedgerError(f"no commit within {timeout:g} s ({self.last_error or 'the writer is busy'})")

    def add(self, event: Waiting) -> bool:
        """Queue an event. Never waits for the database, and never raises. False if the queue is full, or closed."""
        with self._guard:
            if self._closed:
                if self.last_error != _CLOSED:
                    self.last_error = _CLOSED
                    _log.warning(
                        "%s: calls, node runs and scores that end from now on are not recorded", _CLOSED
                    )
                self.dropped += 1
                event.withdraw()
                return False
            if len(self._queue) >= self.most:
                if not event.is_saved:
                    self._note_gap(event, whole=True)
                return False
            if self._bytes + event.size > MOST_BYTES:
                self._note_gap(event, whole=False)
                event.contents = None
                event.size = 0
            self._bytes += event.size
            event.queued = time.monotonic()
            self._queue.append(event)
            self._added += 1
            _busy.add(self)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=_serve, args=(weakref.ref(self), self._wake), name="arbiter-ledger", daemon=True
                )
                self._thread.start()
            waiting = len(self._queue)
        if waiting % BATCH == 0:
            with self._wake:
                self._wake.notify()
            if waiting > 2 * BATCH:
                # A run that computes without a pause keeps the interpreter to itself: the writer would not get on.
                time.sleep(_LET_GO)
        return True

    def _note_gap(self, event: Waiting, *, whole: bool) -> None:
        origin, at = event.where()
        gap = self._gaps.get(origin.place)
        if gap is None:
            gap = self._gaps[origin.place] = Gap(origin, at, at, self._problem or "the queue was full")
        gap.since, gap.until = min(gap.since, at), max(gap.until, at)
        if not whole:
            gap.contents += 1
            return
        event.withdraw()
        if event.kind in ITEMS:
            gap.items += 1
        else:
            gap.others += 1
        self.dropped += 1

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything that was queued so far is committed. False if the time was up first."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            wanted = self._added
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            while self._written < wanted or self._gaps or self._writes_gaps:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._thread is None or not self._thread.is_alive():
                    return self._written >= wanted
                self._wake.wait(0.1 if left is None else min(left, 0.1))
        return True

    def close(self, timeout: float | None = AT_EXIT) -> bool:
        """Flush and end the thread. Returns False, with one warning, if events were left: the exit does not wait for
        them again.
        """
        done = self.flush(timeout)
        # An event is queued before this, and the thread writes it, or it is refused.
        with self._guard:
            self._closed = True
        with self._wake:
            self._wake.notify_all()
        _open_writers.discard(self)
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

    def work(self) -> None:
        """Write one batch, if there is one, on the writer's thread."""
        if batch := self._batch():
            self._write(batch)
        with self._wake:
            self._writes_gaps = False
            self._written += sum(event.kind != "gap" for event in batch)
            if not self._queue and not self._gaps:
                self._hurry = False
            self._wake.notify_all()
        if self.on_wake is not None and self.store is not None:
            self.on_wake(self.store)
        with self._guard:
            if not self._queue and not self._gaps:
                _busy.discard(self)

    def pause(self) -> float | None:
        """The seconds until the next batch, unless the writer is woken. None if it is closed, and all is written."""
        if self._closed and not self._queue and not self._gaps:
            return None
        is_awaited = self._hurry or self._closed
        if len(self._queue) - self._open >= (1 if is_awaited else BATCH):
            return 0
        if not self._open:
            return 0 if is_awaited else self._every
        return POLL if is_awaited else min(max(self._look_at - time.monotonic(), LOOK_AGAIN), self._every)

    def _batch(self) -> list[Waiting]:
        with self._guard:
            batch, waiting, now = list[Waiting](), list[Waiting](), time.monotonic()
            open_places = set[str]()
            while self._queue and len(batch) < BATCH:
                event = self._queue.popleft()
                is_open = event.queued + event.patience > now and event.is_open()
                # A thread's entries stay in the order of its node runs, unless somebody waits for the commit.
                if is_open or (
                    open_places and event.committed is None and event.where()[0].place in open_places
                ):
                    waiting.append(event)
                    # Another process may be waiting for these entries before it writes its own.
                    if not event.is_saved:
                        open_places.add(event.where()[0].place)
                else:
                    batch.append(event)
            self._queue.extendleft(reversed(waiting))
            self._open = len(waiting)
            self._look_at = min((event.queued + event.patience for event in waiting), default=0.0)
            self._bytes -= sum(event.size for event in batch)
            if self._gaps and not self._queue:
                batch += [_gap_entry(gap) for gap in self._gaps.values()]
                self._warn_of_gaps()
                self._gaps, self._has_warned, self._writes_gaps = {}, False, True
        return batch

    def _write(self, batch: list[Waiting]) -> None:
        """Write the batch, for as long as it takes; runs go on meanwhile."""
        pause, failing_since = SHORTEST_PAUSE, None
        events: list[Event] = []
        while True:
            try:
                if self.store is None:
                    self.store = self._open_store()
                if not events:
                    events = [event for waiting in batch for event in waiting.events()]
                self.store.write([event for event in events if not event.is_withdrawn])
            except Exception as error:
                cause = error.__cause__ if isinstance(error, LedgerUnavailable) else None
                self.last_error = problem_of(cause or error)
                self._problem = self.last_error
                if _is_of_an_event(error):
                    self._write_apart(batch)
                    return
                failing_since = failing_since or time.monotonic()
                self._warn_of_failure(time.monotonic() - failing_since)
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self.described.update(text.digest for event in events for _, text in event.describes)
            self.last_commit, self._problem = time.time(), None
            self._has_warned &= bool(self._gaps)
            for event in batch:
                if event.committed is not None:
                    event.committed()
            for listener in self.on_commit:
                try:
                    listener(self.store, events)
                except BaseException as error:  # also SystemExit: it would end this thread
                    _log.warning("the ledger failed after a commit, which stands: %s", describe(error))
            return

    def _write_apart(self, batch: list[Waiting]) -> None:
        """Write a batch of which an event cannot be stored: in halves, down to that event, which becomes a gap."""
        if len(batch) > 1:
            half = len(batch) // 2
            self._write(batch[:half])
            self._write(batch[half:])
            return
        (event,) = batch
        _log.error("the ledger cannot store an event (%s): %s", event.kind, self.last_error)
        if event.kind != "gap":
            with self._guard:
                self._has_warned = True
                self._note_gap(event, whole=True)

    # An outage is worth one warning: when it has lasted for a while, or when something is lost for good.

    def _warn_of_failure(self, seconds: float) -> None:
        if self._has_warned or (seconds < WARN_AFTER and not self._gaps):
            return
        self._has_warned = True
        _log.warning(
            "the ledger could not be written for %d s: %s. Runs go on, and %d events wait. What its queue "
            "(queue=%d, and %d MiB of contents) cannot hold is dropped, and `gap` entries will say so.",
            max(seconds, 1),
            self.last_error,
            self.queued,
            self.most,
            MOST_BYTES // 2**20,
        )

    def _warn_of_gaps(self) -> None:
        if not self._has_warned:
            _log.warning(
                "the ledger could not keep up: it dropped %d events and the contents of %d, and says so in "
                "`gap` entries. Its queue holds %d events and %d MiB of contents: give it a longer one (queue=), or "
                "keep less of large states (states=).",
                sum(gap.items + gap.others for gap in self._gaps.values()),
                sum(gap.contents for gap in self._gaps.values()),
                self.most,
                MOST_BYTES // 2**20,
            )


def _is_of_an_event(error: Exception) -> bool:
    """True if the error comes from an event and not from the database: it would come again."""
    if isinstance(error, ConflictError):
        return True
    if isinstance(error, LedgerError | OSError):
        return False
    name = type(error).__name__  # of SQLAlchemy's errors, which are not imported here
    return isinstance(error, ValueError | TypeError | ArithmeticError | LookupError) or name == "DataError"


def _gap_entry(gap: Gap) -> Event:
    return Event(
        kind="gap",
        at=gap.until,
        origin=origin_of(gap.origin.thread_id, gap.origin.run, str(uuid4())),
        fields={
            "n": gap.items,
            "others": gap.others,
            "without_contents": gap.contents,
            "since": gap.since,
            "until": gap.until,
        },
        contents={"reason": gap.reason},
    )


def _serve(found: weakref.ref[Writer], wake: threading.Condition) -> None:
    """Work for a writer. While it waits, the thread does not keep it, and ends with a ledger that is dropped."""
    store: Store | None = None
    while (writer := found()) is not None:
        with wake:
            pause, store = writer.pause(), writer.store
            del writer
            if pause is None:
                return
            wake.wait(pause)
        if (writer := found()) is not None:
            writer.work()
            del writer
    if store is not None:
        store.engine.dispose()


_busy: set[Writer] = set()
"""The writers with something to write. They are kept until it is written, also if the ledger is dropped."""
_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
_late_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
"""Those that could not write everything when the main thread had ended: the exit waits for them only once."""


def _flush_at_exit() -> None:
    for writer in list(_open_writers):
        if not writer.flush(AT_EXIT):
            _late_writers.add(writer)


def _close_at_exit() -> None:
    for writer in list(_open_writers):
        writer.close(0 if writer in _late_writers else AT_EXIT)


# `threading` calls its functions when the main thread has ended, before the pools of threads are closed; a child
# process of `multiprocessing` calls no others. The user's other threads may still run graphs, so the writer is
# closed by `atexit`, which waits for them.
getattr(threading, "_register_atexit", atexit.register)(_flush_at_exit)
atexit.register(_close_at_exit)
