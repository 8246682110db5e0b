"""`Related`: the relationships of one entity, found without reading those of others.

The records of all relationships stand in one namespace. Beside them each entity has a namespace with the keys of
its own, as source or as target.
"""

from __future__ import annotations

from collections.abc import Callable

from arbiter.memory.stores import Entry, MemoryStore, Namespace, Value, namespace


class Related:
    """The stored relationships of one agent, by entity."""

    def __init__(self, store: MemoryStore, *, agent_id: str) -> None:
        self.store = store
        self.agent_id = agent_id

    async def of(self, entity_id: str) -> list[Entry]:
        """The records of the relationships from and to an entity."""
        keys = [entry.key for entry in await self.store.alist(self._keys(entity_id))]
        found = await self.store.aget_many(self.all, keys)
        return [Entry(key, value) for key, value in found.items()]

    async def update(
        self, key: str, source: str, target: str, change: Callable[[Value | None], Value | None]
    ) -> None:
        """Change the record of a relationship as `MemoryStore.aupdate` does, and keep its keys right."""
        ends = [(self._keys(end), key) for end in (source, target)]
        if await self.store.aget(self.all, key) is None:
            # First, because a key without a record is harmless, and a record without a key would not be found.
            await self.store.aput_many((ns, key, {}) for ns, key in ends)
        if await self.store.aupdate(self.all, key, change) is None:
            await self.store.aput_many((ns, key, None) for ns, key in ends)

    @property
    def all(self) -> Namespace:
        """The namespace of the records."""
        return namespace(self.agent_id, "relationships", "all")

    def _keys(self, entity_id: str) -> Namespace:
        return namespace(self.agent_id, "related", entity_id)
