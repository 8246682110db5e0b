"""LangGraph's SQLite store with locks between processes, and with deleted records erased from the files at
once. Imported only if it is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite import SqliteStore

from arbiter._databases import file_identity
from arbiter.memory.stores._shared_locks import FileLocks

_BUSY = 1.0


class ForgettingStore(SqliteStore):
    """A SQLite store that empties the write-ahead log after each deletion, because the log still holds the
    deleted record.

    If another process is reading, the log is emptied with the next deletion, or when the store is closed.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        index: Any = None,
        lock_provider: FileLocks | None = None,
    ) -> None:
        super().__init__(connection, index=index)
        self.path = path
        self._file = file_identity(path)
        self.lock_provider = lock_provider

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = [*ops]
        # SQLite goes on writing to a file that was removed, for nothing.
        if file_identity(self.path) != self._file:
            raise FileNotFoundError(
                f"{self.path!r} was removed, or is another file now; put it back, or open a new store"
            )
        results = super().batch(given)
        if any(isinstance(op, PutOp) and op.value is None for op in given):
            self._empty_log()
        return results

    def _empty_log(self) -> None:
        if self.path == ":memory:":
            return
        # The store's own connection may be inside another thread's transaction, and has a longer timeout.
        with suppress(sqlite3.Error), closing(sqlite3.connect(self.path, timeout=_BUSY)) as beside:
            beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
