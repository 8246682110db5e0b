"""Calls of contract methods: with deadlines, on the right thread, and one at a time if that was promised."""

from __future__ import annotations

import asyncio
import dis
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.errors import describe

T = TypeVar("T")
_QUICK = 0.001
_SLOW = 0.005
_PROBES = 3
_STRIKES = 2
_FORGIVEN = 100


class InlineTiming:
    """Decides where a contract's sync method runs in an async run, by the time that it took so far.

    An unknown or slow sync method belongs on a worker thread, but a thread costs more than most methods. So a
    method runs on a thread until it was quick three times in a row. It goes back to the thread when it is
    slow once, and when it is slow again soon after, until it was quick a hundred times in a row. Slow calls
    that are further apart do not count: on a busy machine even the fastest method is now and then delayed by
    other threads, for the 5 ms that Python lets a thread run.
    """

    __slots__ = ("_fixed", "_quick", "_settled", "_strikes", "inline")

    def __init__(self, blocking: bool | None) -> None:
        self.inline = blocking is False
        """True if the method is called in place."""
        self._settled = self._fixed = blocking is not None
        """True if a quick call changes nothing."""
        self._quick = 0
        self._strikes = 0

    def timed(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call `method` and record its time."""
        begun = perf_counter()
        try:
            return method(*args)
        finally:
            seconds = perf_counter() - begun
            if seconds > _SLOW or not self._settled:
                self._took(seconds)

    def _took(self, seconds: float) -> None:
        if self._fixed:
            return
        if self._quick < _PROBES:
            self._quick = self._quick + 1 if seconds < _QUICK else 0
        elif seconds <= _SLOW:
            self._quick += 1
        else:
            self._strikes += 1
            self._quick = 0
        self._settled = self._quick >= _FORGIVEN
        if self._settled:
            self._strikes = 0
        self.inline = self._quick >= _PROBES and self._strikes < _STRIKES


def start(call: Callable[[], Any], *, context: Context | None = None, name: str = "arbiter") -> Future[Any]:
    """Run `call` on an idle daemon thread, which is a new one if there is none.

    Not a pool of a fixed size: a call that hangs must keep neither the next call nor the interpreter's exit waiting.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # from here on, a waiter that stops waiting cannot cancel it
    begun = SimpleQueue[None]()
    THREADS.take()((future, copy_context() if context is None else context, call, name, begun))
    # Of several calls the first begins first.
    begun.get()
    return future


_Job = tuple[Future[Any], Context, Callable[[], Any], str, SimpleQueue[None]]


class Threads:
    """Threads that are reused, because starting one costs more than most calls."""

    def __init__(self) -> None:
        # No lock: Ctrl-C, a signal's handler or a `__del__` may start a call at any point of another `take`.
        self._idle: list[SimpleQueue[_Job]] = []
        renew_in_child(self)

    def renew(self) -> None:
        """Forget the threads, which exist only in the parent process."""
        self._idle = []

    def take(self) -> Callable[[_Job], None]:
        """The way to give a job to an idle thread, which is a new one if there is none."""
        try:
            return self._idle.pop().put
        except IndexError:
            jobs = SimpleQueue[_Job]()
        threading.Thread(target=self._serve, args=(jobs,), name="arbiter", daemon=True).start()
        return jobs.put

    def _serve(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            try:
                _work(jobs.get(timeout=_KEEP))
            except Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:
                    # A job is on its way.
                    continue
                return
            # A call may have left one, and have closed it.
            asyncio.set_event_loop(None)
            if len(self._idle) >= _MOST_IDLE:
                return
            self._idle.append(jobs)


_KEEP = 10.0
"""Seconds that a thread waits for its next call."""
_MOST_IDLE = 32
THREADS = Threads()


def _work(job: _Job) -> None:
    future, context, call, name, begun = job
    del job
    begun.put(None)
    threading.current_thread().name = name
    try:
        result = context.run(call)
    except BaseException as exc:  # every error is reported to the waiter
        del call, context  # free the called objects even if the waiter ends before this thread
        future.set_exception(_told(exc))
    else:
        del call, context
        future.set_result(result)
    del future  # this frame is in the error's traceback, as those of the waiters: see `within`


def _told(error: BaseException) -> BaseException:
    """The error in a form that asyncio passes on: it refuses a `StopIteration`, and a `GeneratorExit` would close
    the coroutine that waits.
    """
    if not isinstance(error, StopIteration | GeneratorExit):
        return error
    told = RuntimeError(f"it raised {type(error).__name__}")
    told.__cause__ = error
    return told


class Turns:
    """The clock of a call that is one of many: it stands still while the call waits for its turn."""

    def __init__(self, outer: Turns | None = None) -> None:
        self._outer = outer
        self._begun = self._since = monotonic()
        self._waited = 0.0
        self._waiting = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note that the call, or a part of it, waits for its turn."""
        with self._lock:
            self._since = self._since if self._waiting else monotonic()
            self._waiting += 1
        if self._outer is not None:
            self._outer.begin()

    def end(self) -> None:
        """Note that it has its turn."""
        with self._lock:
            self._waiting -= 1
            self._waited += 0.0 if self._waiting else monotonic() - self._since
        if self._outer is not None:
            self._outer.end()

    def left(self, seconds: float) -> float:
        """The part of its seconds that the call has left; 0 or less if it is late."""
        with self._lock:
            now = monotonic()
            waited = self._waited + (now - self._since if self._waiting else 0.0)
        return seconds + waited - (now - self._begun)


_turns: ContextVar[Turns | None] = ContextVar("arbiter_turns", default=None)
LOOK = 0.02
"""The least seconds between two looks at a clock, which may stand still."""


@contextmanager
def in_turn() -> Generator[Turns]:
    """The clock of the call that begins inside."""
    turns = Turns(_turns.get())
    token = _turns.set(turns)
    try:
        yield turns
    finally:
        _turns.reset(token)


@contextmanager
def waiting() -> Generator[None]:
    """Inside, the caller waits for its turn."""
    turns = _turns.get()
    if turns is None:
        yield
        return
    turns.begin()
    try:
        yield
    finally:
        turns.end()


def within(seconds: float | None, future: Future[Any], turns: Turns | None = None) -> Any:
    """The result of `future`. Raises `TimeoutError` if it takes longer than `seconds`, by the clock `turns` if one is
    given."""
    try:
        while True:
            try:
                return future.result(
                    seconds if turns is None or seconds is None else max(turns.left(seconds), LOOK)
                )
            except FutureTimeout:
                if future.done():
                    raise
                if turns is None or seconds is None or turns.left(seconds) <= 0:
                    raise TimeoutError(f"no answer within {seconds:g} s") from None
    finally:
        # It holds the error, whose traceback has this frame: a cycle would keep the graph's run alive.
        del future


async def awaited_in_turn(deadline: float | None, awaitable: Awaitable[T]) -> T:
    """As `awaited`, without the time in which it waits for its turn."""
    if deadline is None:
        return await awaitable
    with in_turn() as turns:
        task = asyncio.ensure_future(awaitable)
    try:
        while (left := turns.left(deadline)) > 0:
            done, _ = await asyncio.wait({task}, timeout=max(left, LOOK))
            if done:
                return task.result()
    except BaseException:
        task.cancel()
        raise
    task.cancel()
    raise TimeoutError(f"no answer within {deadline:g} s")


async def awaited(deadline: float | None, awaitable: Awaitable[T]) -> T:
    """The result of `awaitable`. Raises `TimeoutError` if it takes longer than `deadline` seconds."""
    if deadline is None:
        try:
            return await awaitable
        finally:
            del awaitable  # as in `within`
    # Not `wait_for`: it waits until the awaitable accepts its cancellation, and accepts a late answer.
    task = asyncio.ensure_future(awaitable)
    loop = asyncio.get_running_loop()
    late: asyncio.Future[None] = loop.create_future()
    # In an empty context: a loop keeps a cancelled timer until its time, and would keep the graph's run alive.
    timer = loop.call_later(deadline, _pass, late, context=Context())
    waiting: set[asyncio.Future[Any]] = {task, late}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {deadline:g} s")
    except BaseException:
        task.cancel()
        raise
    finally:
        timer.cancel()
        del task, waiting, awaitable  # as in `within`


def _pass(late: asyncio.Future[None]) -> None:
    if not late.done():
        late.set_result(None)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread; None outside of one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class EventLoop:
    """An event loop on a daemon thread. Async evaluators run on it, in sync and async runs alike."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: weakref.finalize[..., Any] | None = None
        renew_in_child(self)

    def submit(self, coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> Future[T]:
        """Run a coroutine on the loop, in that context, by default an empty one.

        So it neither sees nor keeps alive the caller's context, such as a graph's run.
        """
        with self._lock:
            if self._loop is None:
                # A loop keeps the context in which it is made.
                self._loop = Context().run(asyncio.new_event_loop)
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="arbiter-loop", daemon=True
                )
                self._thread.start()
                # Not that of the `ArbiterOS`: evaluations that wait outlive it, and start the loop.
                self._end = weakref.finalize(self, _end, self._loop)
                self._end.atexit = False
            return (context or Context()).run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)

    @property
    def is_here(self) -> bool:
        """True if the caller runs on this loop. It must not wait for other coroutines of the loop then."""
        return threading.current_thread() is self._thread

    def leave_if_stuck(self) -> None:
        """Replace the loop for later calls if a late coroutine blocks it."""
        loop = self._loop
        if loop is None or self.is_here:
            return
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        if turned.wait(_STUCK):
            return
        if self._loop is loop:
            self.end()

    def end(self) -> None:
        """Let the thread end when it has nothing left to do. A later `submit` starts another one."""
        with self._lock:
            end, self._end, self._loop, self._thread = self._end, None, None, None
        if end is not None:
            end()

    def renew(self) -> None:
        """Forget the thread, which exists only in the parent process."""
        if self._end is not None:
            self._end.detach()
        self._loop = self._thread = self._end = None


_STUCK = 0.2
"""The number of seconds after which a loop that has not responded counts as blocked."""


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not _ran(loop):
            pass
    finally:
        loop.close()


def _ran(loop: asyncio.AbstractEventLoop) -> bool:
    """True if the loop was stopped; False if a coroutine raised what asyncio ends a loop for. That is the result of
    this coroutine alone, and the others go on."""
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt):
        return False
    return True


def _end(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(_stop_when_idle, loop)


def _stop_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    if asyncio.all_tasks(loop):
        loop.call_later(1, _stop_when_idle, loop)
    else:
        loop.stop()


LOOP = EventLoop()
"""The event loop of memory: connections that its stores and cycles keep open belong to one loop."""


async def as_coroutine(awaitable: Any) -> Any:
    return await awaitable


def is_from_outside(error: BaseException) -> bool:
    """True if the call was ended from outside: by cancelling the task, closing the coroutine, Ctrl-C, or the
    handler of a signal, which may have called `sys.exit`.

    False if the called code itself raised the error, and for every `Exception`.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # without an event loop there is no task to cancel
            return False
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return not _is_raised(error)
    if threading.current_thread() is not threading.main_thread():  # no signal is handled there
        return False
    return _is_of_a_signal(error) or (isinstance(error, KeyboardInterrupt) and not _is_raised(error))


def _is_raised(error: BaseException) -> bool:
    """True if a `raise` in the called code raised the error."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE


def _is_of_a_signal(error: BaseException) -> bool:
    """True if the handler of a signal raised the error: Python has given it the frame that it interrupts."""
    return any(_has_its_caller(frame) for frame, _ in walk_tb(error.__traceback__))


def _has_its_caller(frame: FrameType) -> bool:
    caller = frame.f_back
    for one in frame.f_locals.values():
        parts: Any = one
        if one is caller or (type(one) is tuple and any(part is caller for part in parts)):
            return caller is not None
    return False


_RAISE = dis.opmap["RAISE_VARARGS"]


def as_failure(error: BaseException) -> Exception:
    """The error of a contract as an `Exception`, for a contract that must not end the run."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"it raised {describe(error)}".removesuffix(": "))
    failure.__cause__ = error
    return failure
