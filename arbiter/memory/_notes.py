"""Notes beside the records: what leads to records that are stored elsewhere, so that a turn or a request to forget
reads no other entity; what has happened to facts; and the keys that ids are made with."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic
from zlib import crc32

from arbiter.memory._records import R, Record, Records, readable, utc_now
from arbiter.memory.stores import Entry, MemoryStore, Namespace, Value, namespace

KEPT = 1_000
"""Traces of each entity, the latest."""
EVERY = 32
"""One in so many new traces looks for old ones, because some stores read all to find them."""
_FACT = "fact:"
_ROOM = "room:"


class Traces(Records):
    """Where an entity has left what a request to forget must find.

    Facts told about somebody else are stored with that person, and thoughts with their room. Each entity has one
    small record for each such fact and each such room, the latest 1,000 of them: what an older one leads to is
    deleted with it, so that nothing is left that a request to forget would not find. The facts and thoughts to
    which the agent's own traces lead are those of users, and stay.
    """

    kind = "traces"

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
        for entry in await self.store.alist(self.space):
            value = entry.value
            if "fact" in value:
                told.append((str(value["fact"]), str(value.get("kind")), str(value.get("scope"))))
            elif "room" in value:
                rooms.append(str(value["room"]))
        return told, rooms

    async def _leave(self, key: str, value: Value) -> None:
        await self.store.aput(self.space, key, {**value, "at": utc_now().isoformat()})
        if crc32(key.encode("utf-8", "surrogatepass")) % EVERY:
            return
        for entry in await self.store.aoldest(self.space, keep=KEPT, at=lambda value: str(value.get("at"))):
            if entry.key != key:  # of a store that notes whole seconds, the order is not certain
                # The agent takes part in the rooms of all users, and their own traces lead there, too.
                if self.scope != self.agent_id:
                    await self._end(entry.value)
                await self.store.adelete(self.space, entry.key)

    async def _end(self, value: Value) -> None:
        """Delete the thoughts about a room, or a fact that this entity alone has told."""
        if "room" in value:
            ns = namespace(self.agent_id, "thoughts", str(value["room"]))
            await self.store.aput_many([(ns, each.key, None) for each in await self.store.alist(ns)])
        elif "fact" in value:
            ns = namespace(self.agent_id, str(value.get("kind")), str(value.get("scope")))

            def change(fact: Value | None) -> Value | None:
                return None if fact is None or fact.get("speakers") == [self.scope] else fact

            await self.store.aupdate(ns, str(value["fact"]), change)

    async def drop(self, fact_id: str) -> None:
        await self.store.adelete(self.space, _FACT + fact_id)


class Related(Records):
    """The stored relationships of one agent, by entity, found without reading those of others.

    The records of all relationships stand in one namespace. Beside them each entity has a namespace with the keys
    of its own, as source or as target.
    """

    kind = "relationships"

    async def entries(self, entity_id: str) -> list[Entry]:
        """The records of the relationships from and to an entity."""
        keys = [entry.key for entry in await self.store.alist(self._keys(entity_id))]
        found = await self.store.aget_many(self.space, keys)
        return [Entry(key, value) for key, value in found.items()]

    async def update(
        self, key: str, source: str, target: str, change: Callable[[Value | None], Value | None]
    ) -> None:
        """Change the record of a relationship as `MemoryStore.aupdate` does, and keep its keys right."""
        ends = [(self._keys(end), key) for end in (source, target)]
        if await self.store.aget(self.space, key) is None:
            # First, because a key without a record is harmless, and a record without a key would not be found.
            await self.store.aput_many((ns, key, {}) for ns, key in ends)
        if await self.store.aupdate(self.space, key, change) is None:
            await self.store.aput_many((ns, key, None) for ns, key in ends)

    def _keys(self, entity_id: str) -> Namespace:
        return namespace(self.agent_id, "related", entity_id)


# What has happened to facts -----------------------------------------------------------------------

MOST_EVENTS = 64
"""Events kept for each room, the newest: without a trust evaluator nothing would remove them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEvent(Record):
    """The effect of a claim on a known fact, for evaluators that run later in the turn. `speaker` is the id of
    the entity that made the claim, `at` the end of the turn."""

    kind: str
    """`confirmed` (an independent mention), `contradicted` (by another speaker), `corrected`, `superseded`,
    `refined` or `ended`."""
    speaker: str
    fact_id: str
    other_id: str | None = None
    confirms: tuple[str, ...] = ()
    """Other speakers that had said before what is confirmed; none if a speaker repeats an own statement."""
    at: datetime | None = None


class Listed(Records, Generic[R]):
    """A short list of records of the class `member`, kept in one record: by that `key`, under the name `field`."""

    key: ClassVar[str]
    field: ClassVar[str]
    member: type[R]

    async def all(self) -> list[R]:
        """The members, oldest first."""
        return self._members(await self.store.aget(self.space, self.key))

    async def change(self, change: Callable[[list[R]], list[R] | None]) -> None:
        """Replace the members by others; None deletes the record."""

        def changed(value: Value | None) -> Value | None:
            known = self._members(value)
            after = change(known)
            if after == known:
                return value
            return None if after is None else {self.field: [member.to_value() for member in after]}

        await self.store.aupdate(self.space, self.key, changed)

    def _members(self, value: Value | None) -> list[R]:
        found: Any = (value or {}).get(self.field)
        return readable(self.member, found or ())


class Events(Listed[FactEvent]):
    """The events of one room until the trust evaluator has counted them. Adding one again changes nothing."""

    kind, key, field = "cursors", "facts:events", "events"
    member = FactEvent

    async def add(self, event: FactEvent) -> None:
        await self.change(lambda known: known if event in known else [*known, event][-MOST_EVENTS:])

    async def remove(self, events: Collection[FactEvent]) -> None:
        if events:
            await self.change(lambda known: [event for event in known if event not in events])


# Keys ---------------------------------------------------------------------------------------------

KEYS = "keys"
"""The kind of the records with random keys, with which ids are made of texts: without the key, no guess of a text
can be checked against an id."""


async def key_in(store: MemoryStore, ns: Namespace, name: str) -> bytes:
    """The key of that name, which is made if there is none."""

    def kept(value: Value | None) -> Value:
        return {"id": name, "key": secrets.token_hex(16)} if value is None or not read_key(value) else value

    return read_key(await store.aget(ns, name)) or read_key(await store.aupdate(ns, name, kept))


async def key_of_messages(store: MemoryStore, agent_id: str) -> bytes:
    """The key of what an agent knows of messages without an id: the ids made for them, and names of speakers."""
    return await key_in(store, namespace(agent_id, "message_keys", "all"), "messages")


def read_key(value: Value | None) -> bytes:
    try:
        return bytes.fromhex((value or {})["key"])
    except (KeyError, TypeError, ValueError):
        return b""
