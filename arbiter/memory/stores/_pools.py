"""A pool of PostgreSQL connections that opens new ones in a forked child."""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from arbiter._threads.forks import new_lock, renew_in_child


class Pool(ConnectionPool[Connection[Any]]):
    """Two processes that share a connection read each other's answers. psycopg closes none of another process."""

    def __init__(self, conninfo: str, **options: Any) -> None:
        super().__init__(conninfo, **options)
        self._begun_with = conninfo, options
        self._forked = False
        self._guard = new_lock()
        renew_in_child(self)

    def renew(self) -> None:
        """Begin anew at the next use: many children use no store."""
        self._forked = not self.closed

    def getconn(self, timeout: float | None = None) -> Connection[Any]:
        with self._guard:
            if self._forked:
                conninfo, options = self._begun_with
                super().__init__(conninfo, **options)
                self._forked = False
        return super().getconn(timeout)
