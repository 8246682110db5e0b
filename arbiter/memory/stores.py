"""`MemoryStore`: one behaviour over every LangGraph `BaseStore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore

Namespace = tuple[str, ...]
Value = dict[str, Any]
LockProvider = Callable[[str], AbstractAsyncContextManager[Any]]
"""A lock by name that several processes share."""


def ns_label(value: object) -> str:
    """`value` as one label of a name space: `%` and `.` percent-encoded, empty as `%00`."""
    raise NotImplementedError


def namespace(agent_id: str, kind: str, scope: str) -> Namespace:
    """("arbiter", agent, kind, scope): where records of one kind are. `scope` is an entity's id, a room's for goals and
    cursors, "all" for relationships."""
    return ("arbiter", ns_label(agent_id), kind, ns_label(scope))


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store holds under `key`. `score` is the similarity to a query, -1 to 1; None without one."""

    key: str
    value: Value
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a query found, best first. `semantic`: by embeddings; else by words that both have (`score` 0 to 1)."""

    entries: Sequence[Entry]
    semantic: bool


class MemoryStore:
    """Reads and writes records in any `BaseStore`: sync or async, with an index or without.

    Only the key "claim" of a value is ever embedded. Can be called from any thread and any event loop. Errors of the
    store pass through; an embedder that fails does not: the record is stored without a vector, with
    `needs_embedding: true`, and `reindex` tries again.
    """

    def __init__(self, store: BaseStore, *, lock_provider: LockProvider | None = None) -> None:
        self.store = store
        self.lock_provider = lock_provider

    async def aget(self, ns: Namespace, key: str) -> Value | None:
        raise NotImplementedError

    async def aput(
        self, ns: Namespace, key: str, value: Mapping[str, Any], *, ttl: float | None = None
    ) -> None:
        """Write a record. `ttl` in seconds, where the store can; readers must look at their own time stamps too."""
        raise NotImplementedError

    async def adelete(self, ns: Namespace, key: str) -> None:
        raise NotImplementedError

    async def alist(
        self, ns: Namespace, *, filter: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> list[Entry]:
        """All records of exactly that name space (not of longer ones), newest write first as far as the store knows;
        with `limit` at most so many."""
        raise NotImplementedError

    async def asearch(self, ns: Namespace, query: str, *, limit: int = 8) -> Found:
        """Records whose "claim" is like `query`, best first. By embeddings where the store has them and they work,
        else by shared words; never a record without a score."""
        raise NotImplementedError

    async def aupdate(
        self, ns: Namespace, key: str, change: Callable[[Value | None], Value | None]
    ) -> Value | None:
        """Read, change and write one record under its lock. `change` gets None where there is none, and returns None to
        delete it, or the very same object to leave it as it is. Returns what is there afterwards."""
        raise NotImplementedError

    async def areindex(self, ns: Namespace) -> int:
        """Try once more to embed what could not be embedded; how many were."""
        raise NotImplementedError

    def lock(self, *parts: str) -> AbstractAsyncContextManager[None]:
        """A lock of this very store by name, shared by all `MemoryStore`s on it in this process, and by other processes
        with `lock_provider`. Not reentrant."""
        raise NotImplementedError
