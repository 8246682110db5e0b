"""Traces: where an entity has left what a request to forget must find, so that it reads no other entity.

Facts told about somebody else are stored with that person, and thoughts with their room. Each entity has one
small record for each such fact and each such room.
"""

from __future__ import annotations

from arbiter.memory.stores import MemoryStore, namespace

_FACT = "fact:"
_ROOM = "room:"


class Traces:
    """The traces of one entity in an agent's memory."""

    def __init__(self, store: MemoryStore, *, agent_id: str, entity_id: str) -> None:
        self.store = store
        self._namespace = namespace(agent_id, "traces", entity_id)

    async def has_told(self, fact_id: str, *, kind: str, scope: str) -> None:
        """The entity has told a fact that is stored with another one."""
        await self.store.aput(
            self._namespace, _FACT + fact_id, {"fact": fact_id, "kind": kind, "scope": scope}
        )

    async def was_in(self, room_id: str) -> None:
        """The entity took part in something that is stored with a room."""
        key = _ROOM + room_id
        if await self.store.aget(self._namespace, key) is None:
            await self.store.aput(self._namespace, key, {"room": room_id})

    async def read(self) -> tuple[list[tuple[str, str, str]], list[str]]:
        """The facts told about others, as (id, kind, scope), and the rooms; the newest first."""
        told: list[tuple[str, str, str]] = []
        rooms: list[str] = []
        for entry in await self.store.alist(self._namespace):
            value = entry.value
            if "fact" in value:
                told.append((str(value["fact"]), str(value.get("kind")), str(value.get("scope"))))
            elif "room" in value:
                rooms.append(str(value["room"]))
        return told, rooms

    async def drop(self, fact_id: str) -> None:
        await self.store.adelete(self._namespace, _FACT + fact_id)
