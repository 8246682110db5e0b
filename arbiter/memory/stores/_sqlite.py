"""LangGraph's store in SQLite, from whose files what is deleted is gone at once. Imported where it is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from langgraph.store.base import Op, PutOp, Result
from langgraph.store.sqlite import SqliteStore

_BUSY = 1.0


class ForgettingStore(SqliteStore):
    """The file keeps a write-ahead log, in which a deleted record stands until the log begins anew. It is emptied after
    each deletion, unless another process is reading: then with the next one, or when the store is closed."""

    def __init__(self, connection: sqlite3.Connection, path: str, *, index: Any = None) -> None:
        super().__init__(connection, index=index)
        self.path = path

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = [*ops]
        results = super().batch(given)
        if any(isinstance(op, PutOp) and op.value is None for op in given):
            self._empty_log()
        return results

    def _empty_log(self) -> None:
        if self.path == ":memory:":
            return
        # The store's own connection may be in the middle of another thread's transaction, and waits for longer.
        with suppress(sqlite3.Error), closing(sqlite3.connect(self.path, timeout=_BUSY)) as beside:
            beside.execute("PRAGMA wal_checkpoint(TRUNCATE)")
