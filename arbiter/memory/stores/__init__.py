"""Stores: one behaviour over every LangGraph `BaseStore`, whatever its own abilities.

    MemoryStore ─▶ access (threads and event loops) ─▶ BaseStore
        ├─▶ portable (labels and values that every store can hold), shared_locks
        ├─▶ searching ─▶ ranking (BM25) ─▶ word_tables (the index, in SQLite or PostgreSQL) ─▶ words (terms)
        └─▶ vectors (a failing embedder loses no record)

`open_store` opens one; `LocalIndex` compares vectors if a store cannot; `postgres_locks` locks between
processes.
"""

from arbiter.memory.stores._memory_store import Entry, Found, Link, LockProvider, MemoryStore, Value
from arbiter.memory.stores._portable import Namespace, namespace, ns_label

__all__ = [
    "Entry",
    "Found",
    "Link",
    "LockProvider",
    "MemoryStore",
    "Namespace",
    "Value",
    "namespace",
    "ns_label",
]
