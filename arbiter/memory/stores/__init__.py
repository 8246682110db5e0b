"""Stores: one behaviour over every LangGraph `BaseStore`, whatever it can do itself.

    MemoryStore ─▶ access (threads and event loops) ─▶ BaseStore
        ├─▶ names (labels), values (what may be written), locks, words (likeness without embeddings)
        └─▶ embedders (an embedder that fails loses nothing)

`open_store` opens one; `vectors` compares vectors where a store cannot; `advisory` locks between processes.
"""

from arbiter.memory.stores.memory_store import (
    Entry,
    Found,
    LockProvider,
    MemoryStore,
    Namespace,
    Value,
    namespace,
    ns_label,
)

__all__ = ["Entry", "Found", "LockProvider", "MemoryStore", "Namespace", "Value", "namespace", "ns_label"]
