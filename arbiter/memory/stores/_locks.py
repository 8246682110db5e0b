"""Named locks that are held across `await`, from any thread and any event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from arbiter._threads.forks import new_lock, renew_in_child

_LOOK_AGAIN = 1.0


class _Waiter:
    __slots__ = ("future", "granted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.granted = False


class Lock:
    """A lock for tasks of different event loops, first come, first served. Not reentrant.

    A waiter whose loop does not run is skipped, and gets its turn when the loop runs again.
    """

    __slots__ = ("_guard", "_held", "_waiters", "users")

    def __init__(self) -> None:
        self._guard = new_lock()
        self._held = False
        self._waiters: deque[_Waiter] = deque()
        self.users = 0

    async def acquire(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            waiter = _Waiter(asyncio.get_running_loop())
            self._waiters.append(waiter)
        try:
            while not self._has(waiter):
                await asyncio.wait((waiter.future,), timeout=_LOOK_AGAIN)
        except BaseException:
            with self._guard:
                if (
                    waiter.granted
                ):  # granted just before the cancellation: without a handover it would stay held
                    self._hand_on()
                else:
                    self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        with self._guard:
            self._hand_on()

    def _has(self, waiter: _Waiter) -> bool:
        with self._guard:
            if not waiter.granted and not self._held:  # the waiter was skipped while its loop stood still
                self._waiters.remove(waiter)
                self._held = waiter.granted = True
            return waiter.granted

    def _hand_on(self) -> None:
        for waiter in tuple(self._waiters):
            if waiter.loop.is_running():
                try:
                    waiter.loop.call_soon_threadsafe(_wake, waiter.future)
                except RuntimeError:  # the loop was closed meanwhile
                    continue
                self._waiters.remove(waiter)
                waiter.granted = True
                return
        self._held = False


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Locks:
    """Locks by name. A lock without holders and waiters takes no memory."""

    __slots__ = ("__weakref__", "_guard", "_locks")

    def __init__(self) -> None:
        self._guard = new_lock()
        self._locks: dict[str, Lock] = {}
        renew_in_child(self)

    def renew(self) -> None:
        """Drop all locks after a fork: their holders and waiters run in the parent process."""
        self._locks = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[None]:
        with self._guard:
            lock = self._locks.setdefault(name, Lock())
            lock.users += 1
        try:
            await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock.users -= 1
                if not lock.users and self._locks.get(name) is lock:  # a fork may have replaced it
                    del self._locks[name]
