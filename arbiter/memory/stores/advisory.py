"""`postgres_locks`: locks by name that several processes share, in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from arbiter.calls import start
from arbiter.errors import ConfigurationError
from arbiter.memory.stores.locks import Locks

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

_FIRST_WAIT = 0.002
_LONGEST_WAIT = 0.05


class PostgresLocks:
    """A `LockProvider` by advisory locks, all of them on one connection, which is made when the first is wanted.

    Within the process whoever comes first is served first; between processes, each asks again every few milliseconds.
    Locks end with their connection, also when the process dies. If the connection is lost while one is held,
    `ConnectionError` is raised where it is given back: what was done under it may have met another's work.
    """

    def __init__(self, where: str | ConnectionPool[Any]) -> None:
        self._where = where
        self._connection: Connection[Any] | None = None
        self._guard = threading.Lock()
        self._locks = Locks()

    def __call__(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._hold(name)

    def close(self) -> None:
        """Give the connection back; a later lock makes a new one."""
        with self._guard:
            self._give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncGenerator[None]:
        key = _key(name)
        # The database lets one connection have the same lock twice, so between our own tasks it is no lock.
        async with self._locks.hold(name):
            await self._acquire(key)
            try:
                yield
            finally:
                giving_back = start(lambda: self._ask("SELECT pg_advisory_unlock(%s)", key))
                had_it = await asyncio.shield(asyncio.wrap_future(giving_back))
            if not had_it:
                raise ConnectionError("the connection to PostgreSQL that held a lock was lost meanwhile.")

    async def _acquire(self, key: int) -> None:
        wait = _FIRST_WAIT
        while True:
            attempt = start(lambda: self._ask("SELECT pg_try_advisory_lock(%s)", key))
            try:
                if await asyncio.wrap_future(attempt):
                    return
            except asyncio.CancelledError:
                attempt.add_done_callback(lambda done: self._undo(done, key))
                raise
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)

    def _undo(self, attempt: Future[Any], key: int) -> None:
        """An attempt that nobody waits for any more may have got the lock."""
        if attempt.exception() is None and attempt.result():
            start(lambda: self._ask("SELECT pg_advisory_unlock(%s)", key))

    def _ask(self, statement: str, key: int) -> bool:
        from psycopg.rows import tuple_row

        with self._guard:
            if self._connection is not None and self._connection.closed:
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
    """A `lock_provider` for `MemoryStore`, with which several processes can write to one store. `where` is a
    "postgresql://" URL, or a pool of which it keeps one connection until it is closed. Not through a pooler that shares
    a connection between statements: the locks belong to the session. `ConfigurationError` without psycopg."""
    if find_spec("psycopg") is None:
        raise ConfigurationError("postgres_locks needs psycopg: pip install 'arbiteros[postgres]'")
    return PostgresLocks(where)


def _key(name: str) -> int:
    return int.from_bytes(sha256(f"arbiter {name}".encode()).digest()[:8], "big", signed=True)
