"""Named locks that are held across `await`: of this process, from any thread and any event loop, and those that
several processes share, in a file of one machine or in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.errors import ConfigurationError

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

_LOOK_AGAIN = 1.0
_FIRST_WAIT = 0.002
_LONGEST_WAIT = 0.05


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
                if waiter.granted:  # just before the cancellation: without a handover it would stay held
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


# Of several processes -----------------------------------------------------------------------------


class SharedLocks(ABC):
    """A lock provider: named locks that several processes share.

    Waiters of one process are served in order; processes compete by trying every few milliseconds.
    """

    def __init__(self) -> None:
        # What excludes other processes lets the holder's own process in again, so its tasks need a lock of their own.
        self._locks = Locks()

    @asynccontextmanager
    async def __call__(self, name: str) -> AsyncGenerator[None]:
        async with self._locks.hold(name):
            wait = _FIRST_WAIT
            while not await self._try(name):
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, _LONGEST_WAIT)
            try:
                yield
            finally:
                had_it = await self._release(name)
            if not had_it:
                raise ConnectionError(
                    "a lock was lost while it was held: another process may have written meanwhile."
                )

    @abstractmethod
    async def _try(self, name: str) -> bool:
        """Take the lock if no other process has it. A cancelled attempt leaves no lock."""

    @abstractmethod
    async def _release(self, name: str) -> bool:
        """Give the lock back. Returns False if it had been lost."""


# In a file ----------------------------------------------------------------------------------------

# The operating system ends the locks of a process with the process, also after SIGKILL.
if sys.platform == "win32":
    import msvcrt

    def _locked(file: int, place: int) -> bool:
        os.lseek(file, place % 2**31, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int, place: int) -> None:
        os.lseek(file, place % 2**31, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _locked(file: int, place: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(file: int, place: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


class FileLocks(SharedLocks):
    """A lock provider with one byte of a file for each name. The file stays empty and is never deleted.

    The locks belong to the process, and closing any of its handles of the file ends all of them. So a process
    has one `FileLocks` for each file: see `file_locks`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.users = 0
        self._file: int | None = None
        self._guard = new_lock()

    async def _try(self, name: str) -> bool:
        with self._guard:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            return _locked(self._file, _place(name))

    async def _release(self, name: str) -> bool:
        with self._guard:
            if self._file is None:  # the store was closed, and the lock with it
                return False
            _unlock(self._file, _place(name))
            return True

    def close(self) -> None:
        """Close the file if no other user in this process is left. A later lock opens it again."""
        with _GUARD:
            self.users -= 1
            if self.users:
                return
            _OPEN.pop(self.path, None)
        with self._guard:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


_OPEN: dict[str, FileLocks] = {}
_GUARD = new_lock()


def file_locks(path: str) -> FileLocks:
    """The locks of this process for the SQLite file `path`, in a file beside it. Each user must close them."""
    beside = f"{os.path.realpath(path)}-lock"
    with _GUARD:
        found = _OPEN.setdefault(beside, FileLocks(beside))
        found.users += 1
        return found


def _place(name: str) -> int:
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:7], "big")


# In a PostgreSQL database -------------------------------------------------------------------------


def ensure_open(connection: Connection[Any]) -> None:
    """Raise `psycopg.OperationalError` if the server has ended the connection. Asks it only if it has said
    something, so this takes no time."""
    with selectors.DefaultSelector() as said:
        said.register(connection.fileno(), selectors.EVENT_READ)
        if said.select(0):
            connection.execute("")


def is_open(connection: Connection[Any]) -> bool:
    from psycopg import OperationalError

    try:
        ensure_open(connection)
    except OperationalError:
        return False
    return True


class PostgresLocks(SharedLocks):
    """A `LockProvider` with advisory locks, all on one connection, which opens with the first lock.

    Waiters of one process are served in order; processes compete by asking every few milliseconds. Locks end
    with their connection, also when the process dies. If the connection is lost while a lock is held,
    releasing it raises `ConnectionError`: another process may have worked at the same time.
    """

    def __init__(self, where: str | ConnectionPool[Any]) -> None:
        super().__init__()
        self._where = where
        self._connection: Connection[Any] | None = None
        self._guard = new_lock()
        renew_in_child(self)

    def renew(self) -> None:
        """Drop the connection after a fork: it belongs to the parent process."""
        self._connection = None

    def close(self) -> None:
        """Give the connection back; a later lock opens a new one."""
        with self._guard:
            self._give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _try(self, name: str) -> bool:
        key = _key(name)
        attempt = start(lambda: self._ask("SELECT pg_try_advisory_lock(%s)", key))
        try:
            return bool(await asyncio.wrap_future(attempt))
        except asyncio.CancelledError:
            attempt.add_done_callback(lambda done: self._undo(done, key))
            raise

    async def _release(self, name: str) -> bool:
        key = _key(name)
        giving_back = start(lambda: self._ask("SELECT pg_advisory_unlock(%s)", key))
        return bool(await asyncio.shield(asyncio.wrap_future(giving_back)))

    def _undo(self, attempt: Future[Any], key: int) -> None:
        """Release the lock if a cancelled attempt has got it."""
        if attempt.exception() is None and attempt.result():
            start(lambda: self._ask("SELECT pg_advisory_unlock(%s)", key))

    def _ask(self, statement: str, key: int) -> bool:
        from psycopg.rows import tuple_row

        with self._guard:
            if self._connection is not None and not is_open(self._connection):
                self._give_up()
            if self._connection is None:
                self._connection = self._connected()
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                return bool(cursor.execute(statement.encode(), (key,)).fetchall()[0][0])

    def _connected(self) -> Connection[Any]:
        from psycopg import Connection

        if isinstance(self._where, str):
            return Connection[Any].connect(self._where, autocommit=True)
        connection: Connection[Any] = self._where.getconn()
        connection.autocommit = True
        return connection

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if isinstance(self._where, str):
            connection.close()
            return
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock_all()")
            connection.autocommit = False
        self._where.putconn(connection)


def postgres_locks(where: str | ConnectionPool[Any]) -> PostgresLocks:
    """A `lock_provider` for `MemoryStore`, with which several processes can write to one store.

    `where` is a "postgresql://" URL, or a pool; of a pool it keeps one connection until it is closed. Do not
    use a pooler that shares a connection between statements: the locks belong to the session. Raises
    `ConfigurationError` without psycopg.
    """
    if find_spec("psycopg") is None:
        raise ConfigurationError("postgres_locks needs psycopg: pip install 'arbiteros[postgres]'")
    return PostgresLocks(where)


def _key(name: str) -> int:
    return int.from_bytes(sha256(f"arbiter {name}".encode()).digest()[:8], "big", signed=True)
