"""A pool of PostgreSQL connections that opens new ones in a forked child."""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from arbiter._threads.forks import renew_in_child


class Pool(ConnectionPool[Connection[Any]]):
    """Two processes that share a connection read each other's answers. psycopg ends no connection of another
    process, unless the pool is closed.
    """

    def __init__(self, conninfo: str, **options: Any) -> None:
        super().__init__(conninfo, open=False, **options)
        self._begun_with = conninfo, options
        self._forked = False
        renew_in_child(self)

    def renew(self) -> None:
        """Leave all connections to the parent. Many children use no store: new ones are opened at the next use."""
        if not self.closed:
            conninfo, options = self._begun_with
            super().__init__(conninfo, open=False, **options)
            self._forked = True

    def getconn(self, timeout: float | None = None) -> Connection[Any]:
        if self._forked:
            self.open()
            self._forked = False
        return super().getconn(timeout)
