"""Locks by name that are held across `await`, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_LOOK_AGAIN = 1.0


class _Waiter:
    __slots__ = ("future", "granted", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.granted = False


class Lock:
    """A lock for tasks of different event loops. First come, first served; a waiter whose loop does not run is passed
    over, and takes its turn when it runs again. Not reentrant."""

    __slots__ = ("_guard", "_held", "_waiters", "users")

    def __init__(self) -> None:
        self._guard = threading.Lock()
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
                if waiter.granted:  # in the same moment: it is handed on, or nobody would ever have it
                    self._hand_on()
                else:
                    self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        with self._guard:
            self._hand_on()

    def _has(self, waiter: _Waiter) -> bool:
        with self._guard:
            if not waiter.granted and not self._held:  # it was passed over
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
    """Locks by name. One that nobody holds or waits for takes no room."""

    __slots__ = ("_guard", "_locks")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

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
                if not lock.users:
                    del self._locks[name]
