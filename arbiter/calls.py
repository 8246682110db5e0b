"""How contract methods are called: with deadlines, on which thread, and never twice at the same time
where that was promised."""

from __future__ import annotations

import asyncio
import dis
import os
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextvars import Context, copy_context
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol, TypeVar

from arbiter.errors import describe

T = TypeVar("T")
_QUICK = 0.001
_SLOW = 0.005
_PROBES = 3
_STRIKES = 2
_FORGIVEN = 100


# A process that forks takes along locks as they are, and no threads but one: what another thread held or was about to
# do is held and awaited for ever in the child.


class _Renewable(Protocol):
    def renew(self) -> None: ...


_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock that is free in the child of a process that forks."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def renew_in_child(thing: _Renewable) -> None:
    """Call `thing.renew()` in the child of a process that forks."""
    _renewed.add(thing)


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()
    for thing in list(_renewed):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Pace:
    """How long a contract's method takes, as seen so far.

    In an async run an unknown or slow sync method belongs on a worker thread, but a thread costs more than
    most methods. So a method runs on a thread until it was quick three times in a row, and goes back there,
    the second time for good, as soon as it is not. A second time long after the first is not the second: on a
    busy machine the fastest method is now and then held up by others, for the 5 ms that Python lets a thread
    run if nothing else.
    """

    __slots__ = ("_fixed", "_quick", "_settled", "_strikes", "inline")

    def __init__(self, blocking: bool | None) -> None:
        self.inline = blocking is False
        """Whether to call it in place."""
        self._settled = self._fixed = blocking is not None
        """Whether a quick call says nothing new."""
        self._quick = 0
        self._strikes = 0

    def timed(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call `method`, and remember how long it took."""
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
            self._strikes = self._strikes + 1 if self._quick < _FORGIVEN else 1
            self._quick = 0
        self._settled = self._quick >= _FORGIVEN
        self.inline = self._quick >= _PROBES and self._strikes < _STRIKES


def start(call: Callable[[], Any], *, context: Context | None = None, name: str = "arbiter") -> Future[Any]:
    """Run `call` on a daemon thread of its own.

    Not a pool: a call that hangs must keep neither the next call nor the interpreter's exit waiting.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # from here on a waiter that gives up cannot cancel it
    inside = copy_context() if context is None else context

    def run() -> None:
        nonlocal call, inside
        try:
            result = inside.run(call)
        except BaseException as exc:  # reported to the waiter, whatever it is
            del call, inside  # the waiter may be done before this thread is; what it ran is to be freed then
            future.set_exception(_told(exc))
        else:
            del call, inside
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _told(error: BaseException) -> BaseException:
    """An event loop never hears of a `StopIteration`: asyncio refuses to hand it on."""
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError("it raised StopIteration")
    told.__cause__ = error
    return told


class Runner:
    """A daemon thread that is kept for the next call, because starting one costs more than most calls.

    One call at a time. A call that hangs keeps its thread, and the next one gets another.
    """

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] | None = None

    def run(self, call: Callable[[], Any], seconds: float | None) -> Any:
        """What `call` returns; `TimeoutError` when it takes longer than `seconds`."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name="arbiter-call", daemon=True).start()
        self._jobs.put((future, call))
        try:
            return within(seconds, future)
        finally:
            if not future.done():
                self._dismiss()

    def _dismiss(self) -> None:
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None

    def __del__(self) -> None:
        self._dismiss()


def _serve(jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (job := jobs.get()) is not None:
        future, call = job
        del job
        try:
            result = call()
        except BaseException as exc:  # reported to the waiter, whatever it is
            del call
            future.set_exception(exc)
        else:
            del call
            future.set_result(result)
            del result
        del future


def within(seconds: float | None, future: Future[Any]) -> Any:
    """The result of `future`; `TimeoutError` when it takes longer than `seconds`."""
    try:
        return future.result(seconds)
    except FutureTimeout:
        if future.done():
            raise
        raise TimeoutError(f"no answer within {seconds:g} s") from None


async def awaited(deadline: float | None, awaitable: Awaitable[T]) -> T:
    """What `awaitable` gives; `TimeoutError` when it takes longer than `deadline` seconds."""
    if deadline is None:
        return await awaitable
    # Not `wait_for`: that waits until what is awaited agrees to be cancelled, and takes a late answer.
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=deadline)
    except BaseException:
        task.cancel()
        raise
    if done:
        return task.result()
    task.cancel()
    raise TimeoutError(f"no answer within {deadline:g} s")


class EventLoop:
    """An event loop on a daemon thread, for async evaluators, whichever kind of run they judge."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        renew_in_child(self)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it there, in a context of its own: nothing of the caller's (a graph's run, say) goes with it or is kept
        alive by it."""
        with self._lock:
            if self._loop is None:
                self._loop = Context().run(asyncio.new_event_loop)  # it keeps the context that it is made in
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="arbiter-loop", daemon=True
                )
                self._thread.start()
            return Context().run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on it: then it must not wait for what runs on it."""
        return threading.current_thread() is self._thread

    def leave_if_stuck(self) -> None:
        """After a coroutine was late: if it blocks the loop, what is submitted from now on runs on a new one."""
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
        """Let the thread end when it has nothing left to do. What is submitted after that gets another one."""
        with self._lock:
            loop, self._loop, self._thread = self._loop, None, None
        if loop is not None:
            loop.call_soon_threadsafe(_stop_when_idle, loop)

    def renew(self) -> None:
        """The thread has stayed in the parent process."""
        self._loop = self._thread = None


_STUCK = 0.2
"""Seconds in which an event loop that is not blocked has come round."""


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    if asyncio.all_tasks(loop):
        loop.call_later(1, _stop_when_idle, loop)
    else:
        loop.stop()


LOOP = EventLoop()
"""That of memory: what its stores and cycles keep open belongs to one event loop."""


async def as_coroutine(awaitable: Any) -> Any:
    return await awaitable


def is_from_outside(error: BaseException) -> bool:
    """Whether somebody ends the call from outside, by cancelling the task, closing the coroutine or Ctrl-C, and it is
    not the called code itself that has raised it."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop: nothing here can be cancelled
            return False
        return task is not None and task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread() and not _is_raised(error)
    return isinstance(error, GeneratorExit) and not _is_raised(error)


def _is_raised(error: BaseException) -> bool:
    """Whether a `raise` of the called code has raised it."""
    handler: Any = signal.getsignal(signal.SIGINT)
    handler = getattr(handler, "func", handler)
    of_handler = getattr(getattr(handler, "__func__", handler), "__code__", None)
    traceback = error.__traceback__
    raised = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is of_handler:
            return False
        raised = code.co_code[traceback.tb_lasti] == _RAISE
        traceback = traceback.tb_next
    return raised


_RAISE = dis.opmap["RAISE_VARARGS"]


def as_failure(error: BaseException) -> Exception:
    """What a contract has raised, as an `Exception`, for a contract that must not end the run."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"it raised {describe(error)}".removesuffix(": "))
    failure.__cause__ = error
    return failure
