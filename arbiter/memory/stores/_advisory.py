"""`postgres_locks`: named locks in a PostgreSQL database, shared by several processes."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from hashlib import sha256
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from arbiter._threads.deadlines import start
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.errors import ConfigurationError
from arbiter.memory.stores._locks import SharedLocks

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
