"""Drivers of a session on this machine: threads for sync targets, an event loop for async ones."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from statistics import median
from time import perf_counter
from typing import Any, cast

from arbiter._threads.deadlines import EventLoop, as_failure, is_from_outside, start
from arbiter.harness.running import GRACE, Call, LateError, Run, Session, Steps
from arbiter.harness.scores import Score
from arbiter.harness.targets import Answered

_QUICK = 0.0002
"""Seconds. Cases whose calls take less run on one thread: switching between threads would cost more than it
saves."""
_SAMPLE = 20
_SLOW = _SAMPLE * _QUICK
"""Seconds. A case whose calls take longer ends that at once: the others would wait for it."""
_LOOK = 1.0
"""The most seconds between two looks of the supervisor: Windows keeps Ctrl-C waiting until the next one."""
_SOON = 0.001
"""The least."""
_END = 1.0
"""Seconds that cancelled coroutines have after the last case."""
_USUAL = (Answered, bool, int, float, str, type(None), Score, dict, list, tuple)
"""What targets and scorers return. To look whether something else can be awaited is slow."""
_STUBBORN: list[asyncio.Task[Any]] = []
"""Tasks that went on after that. They are kept, because their coroutines cannot be closed where they are."""


def _late(call: Call) -> LateError:
    return LateError(f"no answer within {call.seconds or 0:g} s")


class _EndedError(Exception):
    """Carries a `SystemExit` or `KeyboardInterrupt` of a coroutine, which would end the event loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _contained(awaitable: Any) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        if is_from_outside(error):
            raise
        raise _EndedError(error) from None


def _of_case(error: BaseException) -> BaseException:
    """The error in the form that the steps of a case take: a `GeneratorExit` would close them."""
    return as_failure(error) if isinstance(error, GeneratorExit) else error


# Threads ------------------------------------------------------------------------------------------


class _Worker:
    """A worker thread, and the seconds that the calls of its case have taken."""

    took: float = 0.0


class _Workers:
    """Worker threads, and the supervisor that takes late calls away from them.

    `_calls` has the running calls by a key of their own, each with its end, its worker and the steps of its case.
    Popping a call gives the right to go on with its case: the worker pops it when the call returns, the supervisor
    when the call is late. (`dict.pop` is atomic.)
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.most = session.workers = min(session.limits.concurrency, session.total)
        self._calls: dict[object, tuple[float, _Worker, Call, Steps]] = {}
        self._lock = threading.RLock()
        self._alive: set[_Worker] = set()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._loop = EventLoop()
        self._took: deque[float] = deque(maxlen=_SAMPLE)
        self._cases = 0
        self._quick = False

    def run(self) -> None:
        """Run all cases, and wait for them. Raises what is no failure of a case, such as a full disk."""
        places = iter(range(self.most))
        given_up = float("inf")
        try:
            while True:
                try:
                    for _ in places:
                        self._hire()
                    self._wait(given_up)
                    break
                except KeyboardInterrupt:
                    if self.session.stopped == "interrupted":
                        raise
                    self.session.stop("interrupted")
                    given_up = perf_counter() + GRACE
        finally:
            self._loop.end()
        if self._error is not None:
            raise self._error

    def _wait(self, given_up: float) -> None:
        while not self._ended.wait(self._quiet(given_up)):
            self._take_late_calls()
            if perf_counter() > given_up:
                return

    def _quiet(self, given_up: float) -> float:
        """The seconds in which no call can become late, also none that begins meanwhile. A look takes the GIL from
        the workers, so there is none that finds nothing."""
        now, limits = perf_counter(), self.session.limits
        ends = [given_up, *(end for end, *_ in list(self._calls.values()))]
        least = [limits.case_timeout, limits.score_timeout, self.session.time_left]
        return max(min(_LOOK, min(ends) - now, *(each for each in least if each is not None)), _SOON)

    def _hire(self, steps: Steps | None = None, late: LateError | None = None) -> None:
        worker = _Worker()
        with self._lock:
            self._alive.add(worker)
        work = threading.Thread(
            target=self._work, args=(worker, steps, late), name="arbiter-eval", daemon=True
        )
        work.start()

    def _work(self, me: _Worker, steps: Steps | None, late: LateError | None) -> None:
        try:
            if steps is not None:
                # Cases of which one is late are not quick.
                me.took = float("inf")
                if not self._go_on(me, steps, late) or self._may_leave(me):
                    return
            run: Run = self.session.target.for_worker()
            while (steps := self.session.next(run)) is not None:
                me.took = 0.0
                if not self._go_on(me, steps, None) or self._may_leave(me):
                    return
        except BaseException as error:  # no failure of a case: those are kept by it
            self._error = error
            self.session.stop("interrupted")
        finally:
            with self._lock:
                self._alive.discard(me)
                if not self._alive:
                    self._ended.set()

    def _go_on(self, me: _Worker, steps: Steps, error: BaseException | None) -> bool:
        """Run a case to its end. False if the supervisor took it away."""
        answer: Any = None
        while True:
            try:
                call = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return True
            answer, error = None, None
            begun, key = perf_counter(), object()
            end = begun + (float("inf") if call.seconds is None else call.seconds)
            self._calls[key] = end, me, call, steps
            is_awaited = False
            try:
                answer = call.run()
                is_awaited = not isinstance(answer, _USUAL) and inspect.isawaitable(answer)
            except BaseException as raised:  # the case keeps it
                error = _of_case(raised)
            if self._calls.pop(key, None) is None:
                if inspect.iscoroutine(late := cast(Any, answer)):
                    late.close()
                return False
            if is_awaited:
                try:
                    answer = self._awaited(answer, call)  # it can be cancelled, so it needs no supervisor
                except BaseException as raised:
                    error = _of_case(raised)
            me.took += perf_counter() - begun

    def _awaited(self, awaitable: Any, call: Call) -> Any:
        future = self._loop.submit(_contained(awaitable))
        try:
            return future.result(None if call.seconds is None else min(call.seconds, threading.TIMEOUT_MAX))
        except _EndedError as ended:
            raise ended.error from None
        except FutureTimeout:
            if future.done():
                raise
            future.cancel()
            raise _late(call) from None

    def _take_late_calls(self) -> None:
        now = perf_counter()
        for key, (end, worker, call, steps) in list(self._calls.items()):
            # All at once: a worker of quick cases ends if another one is alive, one whose call was taken away ends
            # when the call returns, and the run ends with the last one.
            with self._lock:
                if now > end and self._calls.pop(key, None) is not None:
                    self._alive.discard(worker)
                    self.session.leave_behind()  # if that stops it, the workers hired now finish these cases
                    self._hire(steps, _late(call))

    def _may_leave(self, me: _Worker) -> bool:
        """Note the time of a case. True if this worker ends, because cases are quick and another worker goes on."""
        self._took.append(me.took)
        self._cases += 1
        if self._cases % _SAMPLE == 0 or me.took > _SLOW:
            quick, before = me.took <= _SLOW and median(self._took) < _QUICK, self._quick
            self._quick = quick
            if before and not quick:
                for _ in range(self.most - len(self._alive)):
                    self._hire()
        if not self._quick:
            return False
        with self._lock:
            if len(self._alive) == 1:
                return False
            self._alive.discard(me)
            return True


def drive_on_threads(session: Session) -> None:
    """Run a session whose target is sync, and wait for it."""
    _Workers(session).run()


# Event loop ---------------------------------------------------------------------------------------


async def drive(session: Session) -> None:
    """Run a session on the running event loop. A sync target runs on threads beside it."""
    if not session.target.is_async:
        await asyncio.wrap_future(start(lambda: drive_on_threads(session)))
        return
    session.workers = min(session.limits.concurrency, session.total)
    workers = [asyncio.ensure_future(_work(session)) for _ in range(session.workers)]
    try:
        await _all(workers, session)
    finally:
        for worker in workers:
            worker.cancel()


def drive_to_the_end(session: Session) -> None:
    """As `asyncio.run(drive(session))`, except that nothing can hold up the end: neither a coroutine that goes on
    after it was cancelled, nor a thread of the loop whose call does not return.
    """
    runner = asyncio.Runner()
    try:
        runner.run(drive(session))
    finally:
        _close(runner.get_loop())


def _close(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    try:
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_END))
        loop.run_until_complete(asyncio.wait([loop.create_task(loop.shutdown_asyncgens())], timeout=_END))
    finally:
        _STUBBORN.extend(task for task in left if not task.done())
        loop.set_exception_handler(lambda loop, context: None)  # at exit, it would report each of them
        asyncio.set_event_loop(None)
        loop.close()  # waits for no thread, unlike Runner.close()


async def _all(workers: Sequence[asyncio.Future[None]], session: Session) -> None:
    done = asyncio.gather(*workers)
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        if session.stopped == "interrupted" or done.done():
            raise
        session.stop("interrupted")
        await asyncio.wait(workers, timeout=GRACE)
        done.cancel()
        # Else the loop reports an exception that nobody has retrieved.
        await asyncio.gather(done, return_exceptions=True)
        raise


async def _work(session: Session) -> None:
    run: Run = session.target.for_worker()
    while (steps := session.next(run)) is not None:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                call = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                break
            answer, error = None, None
            try:
                answer = await _called(session, call)
            except BaseException as raised:
                if is_from_outside(raised):
                    steps.close()
                    raise
                error = _of_case(raised)
        if session.stopped == "stuck":
            return


async def _called(session: Session, call: Call) -> Any:
    """The answer of a call. A sync function runs on a thread, so that it cannot hold up other cases."""
    if call.is_async:
        answer: Any = call.run()
    else:
        future = asyncio.wrap_future(start(call.run))
        if not await _in_time(future, call, 0.0):
            session.leave_behind()
            raise _late(call)
        answer = future.result()
    if not inspect.isawaitable(answer):
        return answer
    task = asyncio.ensure_future(_contained(answer))
    if not await _in_time(task, call, call.grace):
        raise _late(call)
    try:
        return task.result()
    except _EndedError as ended:
        raise ended.error from None


async def _in_time(future: asyncio.Future[Any], call: Call, grace: float) -> bool:
    """Wait for it. When its time is up it is cancelled, and gets `grace` seconds to clean up."""
    try:
        done, _ = await asyncio.wait({future}, timeout=call.seconds)
        if not done:
            future.cancel()
            if grace:
                await asyncio.wait({future}, timeout=grace)
        return bool(done)
    except asyncio.CancelledError:
        future.cancel()
        raise
