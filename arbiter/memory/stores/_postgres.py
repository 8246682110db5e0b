"""LangGraph's PostgreSQL store with locks between processes. Imported only if it is installed."""

from __future__ import annotations

from typing import Any

from langgraph.store.postgres import PostgresStore

from arbiter.memory.stores._locks import SharedLocks


class LockedStore(PostgresStore):
    """A PostgreSQL store that brings the locks of its database."""

    def __init__(self, connection: Any, *, index: Any = None, lock_provider: SharedLocks) -> None:
        super().__init__(connection, index=index)
        self.lock_provider = lock_provider
