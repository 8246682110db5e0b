"""The background: evaluations that are queued until a worker or a reader takes them."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from time import monotonic, perf_counter
from typing import Any

from arbiter._lifecycle.evaluations import Evaluations, EvaluatorQueue, log
from arbiter._threads.exits import drain_held
from arbiter._threads.forks import renew_in_child
from arbiter._values.once import Once

_LOOK = 0.1
"""The seconds between two looks at the queue. A look slows an event loop down that is busy: whenever the loop polls, it
lets go of Python's lock, which wakes the worker, and has taken it again before the worker runs. The ledger keeps a
node run back for 0.25 s until it is judged.
"""
_LOOKS = 50
MANY = 10_000
"""The number of node runs that wait for an evaluator when it is reported to fall behind."""
_behind = Once()
"""The evaluators of which that was reported, and the `Background`s whose quick evaluators fell behind together."""


_IDLE = _LOOK * _LOOKS


class Background:
    """Runs the evaluations that no code reads. There is one per `ArbiterOS`.

    Its worker checks for them now and then. Other code goes first, since Python runs one thread at a time,
    and no node run pays for waking the worker.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Start with an empty queue. After a fork the parent process, which has the worker, runs the queued
        evaluations.
        """
        self._queue: deque[Evaluations] = deque()
        self._lock = threading.Lock()
        self._none_open = threading.Condition(self._lock)
        self._open = 0
        """The number of evaluations that other threads than the worker run."""
        self._wake = threading.Event()
        self._worker: threading.Thread | None = None

    def enqueue(self, evaluations: Evaluations) -> None:
        """Queue an item's evaluations, unless all are done."""
        if evaluations.view is None:
            return
        self._queue.append(evaluations)
        if self._worker is None:  # checked after queueing: a worker that ends checks the queue once more
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._worker is None:
                _drain_at_exit(self)
                worker = threading.Thread(target=self._work, name="arbiter-evaluations", daemon=True)
                try:
                    worker.start()
                except RuntimeError:  # the next call tries again, and a reader of a result runs it
                    return
                self._worker = worker

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all queued evaluations are done. Returns False if `timeout` (seconds) was too short."""
        with self._none_open:
            self._wake.set()
            return self._none_open.wait_for(lambda: not self._queue and self._open == 0, timeout)

    @property
    def pending(self) -> int:
        """The number of evaluations that are not done."""
        queued = list(self._queue)
        return self._open + sum(not each.done(queue) for each in queued for queue in each.queues)

    def _work(self) -> None:
        idle = 0
        while idle < _LOOKS:
            self._wake.wait(_LOOK)  # not time.sleep, which users' tests replace
            self._wake.clear()
            idle += 1
            while self._queue:
                idle = 0
                try:
                    self._process(self._queue[0])
                except Exception:  # for example, no thread could be started; a reader of a result runs it
                    log.exception("evaluations could not be begun in the background")
                finally:
                    self._queue.popleft()
            if idle == 0:
                with self._none_open:
                    self._none_open.notify_all()
            if idle == _LOOKS:
                with self._lock:
                    self._worker = None
                    if self._queue:
                        idle, self._worker = 0, threading.current_thread()

    def _process(self, evaluations: Evaluations) -> None:
        if (begun := evaluations.begun) is not None:
            first = evaluations.members[0]
            with self._lock:
                self._opened(first)
            begun[0].add_done_callback(lambda _: self._closed(first))
        slowest: tuple[float, EvaluatorQueue] | None = None
        for at, queue in enumerate(evaluations.queues):
            if evaluations.found[at] is not None or queue in evaluations.members:
                continue
            if queue.timing.inline:
                begun_at = perf_counter()
                queue.run(evaluations, at)
                seconds = perf_counter() - begun_at
                if slowest is None or seconds > slowest[0]:
                    slowest = seconds, queue
            else:
                self._hand_over(queue, evaluations)
        # The worker runs quick evaluators itself, one node run after another, and the slowest holds up the others.
        if slowest is not None and len(self._queue) >= MANY and _behind.is_new(weakref.ref(self)):
            _tell_behind(slowest[1], "fewer targets, leave out its `blocking = False` if it has that")

    def _hand_over(self, queue: EvaluatorQueue, evaluations: Evaluations) -> None:
        with self._lock:
            self._opened(queue)
            queue.backlog.put(evaluations)
            if queue.workers >= min(queue.open, queue.places.size):
                return
            queue.workers += 1
        try:
            threading.Thread(
                target=self._run_queue, args=(queue,), name=f"arbiter-{queue.name}", daemon=True
            ).start()
        except RuntimeError:
            with self._lock:
                queue.workers -= 1
                if queue.workers:
                    return
                with suppress(Empty):  # a reader of the result runs it, and the next call tries again
                    queue.backlog.get_nowait()
            self._closed(queue)
            raise

    def _run_queue(self, queue: EvaluatorQueue) -> None:
        backlog = queue.backlog
        while True:
            try:
                evaluations = backlog.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if backlog.empty():
                        queue.workers -= 1
                        return
                continue
            try:
                evaluations.resolve(queue)
            finally:
                del evaluations
                self._closed(queue)

    def _opened(self, queue: EvaluatorQueue) -> None:
        self._open += 1
        queue.open += 1
        if queue.open == MANY and _behind.is_new(weakref.ref(queue)):
            _tell_behind(queue, "a higher `concurrency` or fewer targets")

    def _closed(self, queue: EvaluatorQueue) -> None:
        with self._none_open:
            self._open -= 1
            queue.open -= 1
            if self._open == 0 and not self._queue:
                self._none_open.notify_all()


def _tell_behind(queue: EvaluatorQueue, remedy: str) -> None:
    log.warning(
        "evaluator %s falls behind: %d node runs wait for it, and their states stay in memory. Give it %s, or wait "
        "for it now and then with arbiter_os.drain() or adrain()",
        queue.name,
        MANY,
        remedy,
    )


# Evaluations must end before Python closes its thread pools, which call sync models, and so before `atexit`
# functions run. A second call by `atexit` waits for evaluations of graphs that were still running in the
# user's threads.
_at_exit: Callable[[Callable[[], None]], Any] = getattr(threading, "_register_atexit", atexit.register)


_pending: weakref.WeakSet[Background] = weakref.WeakSet()


_EXIT_SECONDS = 30.0
"""The number of seconds for which the end of the process waits for all evaluations together."""


_reported: weakref.WeakKeyDictionary[Background, int] = weakref.WeakKeyDictionary()
"""The number of evaluations that were reported as not done in time."""


def _drain_at_exit(background: Background) -> None:
    if background not in _pending:
        if not _pending:
            atexit.register(_drain_all)
            with suppress(RuntimeError):  # the main thread has ended
                _at_exit(_drain_all)
        _pending.add(background)


def _drain_all() -> None:
    end = monotonic() + _EXIT_SECONDS
    waiting = list(_pending)
    try:
        left = [
            each for each in waiting if not each.drain(0 if each in _reported else max(end - monotonic(), 0))
        ]
    except KeyboardInterrupt:
        left = waiting
    count = 0
    for each in left:
        pending = each.pending
        count += max(pending - _reported.get(each, 0), 0)
        _reported[each] = pending
    if count:
        are = "1 evaluation was" if count == 1 else f"{count} evaluations were"
        log.warning(
            "%s not done when the process ended, and the end waits no longer than %g s; "
            "call arbiter_os.drain() before it to wait for all of them",
            are,
            _EXIT_SECONDS,
        )
    # The evaluations that were waited for may have left something for later.
    drain_held()
