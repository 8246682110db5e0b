"""Traces: where an entity has left what a request to forget must find, so that it reads no other entity.

Facts told about somebody else are stored with that person, and thoughts with their room. Each entity has one
small record for each such fact and each such room, the latest 1,000 of them: what an older one leads to is deleted
with it, so that nothing is left that a request to forget would not find.
"""

from __future__ import annotations

from zlib import crc32

from arbiter.memory._records import utc_now
from arbiter.memory.stores import MemoryStore, Value, namespace

KEPT = 1_000
"""Traces of each entity, the latest."""
EVERY = 32
"""One in so many new traces looks for old ones, because some stores read all to find them."""
_FACT = "fact:"
_ROOM = "room:"


class Traces:
    """The traces of one entity in an agent's memory."""

    def __init__(self, store: MemoryStore, *, agent_id: str, entity_id: str) -> None:
        self.store = store
        self.agent_id = agent_id
        self.entity_id = entity_id
        self._namespace = namespace(agent_id, "traces", entity_id)

    async def has_told(self, fact_id: str, *, kind: str, scope: str) -> None:
        """The entity has told a fact that is stored with another one."""
        await self._leave(_FACT + fact_id, {"fact": fact_id, "kind": kind, "scope": scope})

    async def was_in(self, room_id: str) -> None:
        """The entity took part in something that is stored with a room."""
        await self._leave(_ROOM + room_id, {"room": room_id})

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

    async def _leave(self, key: str, value: Value) -> None:
        await self.store.aput(self._namespace, key, {**value, "at": utc_now().isoformat()})
        if crc32(key.encode("utf-8", "surrogatepass")) % EVERY:
            return
        for entry in await self.store.aoldest(
            self._namespace, keep=KEPT, at=lambda value: str(value.get("at"))
        ):
            if entry.key != key:  # of a store that notes whole seconds, the order is not certain
                await self._end(entry.value)
                await self.store.adelete(self._namespace, entry.key)

    async def _end(self, value: Value) -> None:
        """Delete the thoughts about a room, or a fact that this entity alone has told."""
        if "room" in value:
            ns = namespace(self.agent_id, "thoughts", str(value["room"]))
            await self.store.aput_many([(ns, each.key, None) for each in await self.store.alist(ns)])
        elif "fact" in value:
            ns = namespace(self.agent_id, str(value.get("kind")), str(value.get("scope")))

            def change(fact: Value | None) -> Value | None:
                return None if fact is None or fact.get("speakers") == [self.entity_id] else fact

            await self.store.aupdate(ns, str(value["fact"]), change)

    async def drop(self, fact_id: str) -> None:
        await self.store.adelete(self._namespace, _FACT + fact_id)
