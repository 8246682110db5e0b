"""`Memory`: what a program asks of what is remembered, and orders: facts, goals, forget, export."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, uuid5

from langgraph.store.base import BaseStore
from rich.table import Table
from rich.text import Text

from arbiter.calls import LOOP
from arbiter.memory.cycle import utc_now
from arbiter.memory.entities import Entities, Entity
from arbiter.memory.facts import FactStore
from arbiter.memory.goals import Goals
from arbiter.memory.records import (
    Fact,
    FactState,
    Goal,
    GoalStatus,
    Objective,
    Relationship,
    Thought,
    readable,
)
from arbiter.memory.reflection.relationships import Relationships
from arbiter.memory.stores import MemoryStore, Value, namespace
from arbiter.memory.stores.access import StoreLoopError
from arbiter.memory.stores.names import joined
from arbiter.memory.trust import Trust
from arbiter.memory.trust.evidence import TrustProfile
from arbiter.models import visible

T = TypeVar("T")
_OF_ENTITY = ("facts", "status", "opinions", "trust", "tombstones")


class Memory:
    """All that one agent remembers, as a program asks for it.

    Each method has a twin that is awaited: `facts` and `afacts`. The sync ones can be called from any thread, also
    from within a running event loop, which they hold up meanwhile; only Arbiter's own loop, on which evaluators
    written as `async def` run, and the loop that an async store belongs to cannot wait for themselves:
    `StoreLoopError` there.
    """

    def __init__(
        self,
        store: BaseStore | MemoryStore,
        *,
        agent_id: str = "agent",
        clock: Callable[[], datetime] = utc_now,
        rules: Any = None,
    ) -> None:
        self.store = store if isinstance(store, MemoryStore) else MemoryStore(store)
        self.agent_id = agent_id
        self.clock = clock
        self.rules = rules

    # Asking

    async def afacts(self, entity_id: str, state: FactState | None = "active") -> list[Fact]:
        """Facts and statuses about an entity, newest first; `state=None` for those of any state."""
        return await self._facts.facts(entity_id, state=state)

    def facts(self, entity_id: str, state: FactState | None = "active") -> list[Fact]:
        return self._wait(self.afacts(entity_id, state))

    async def arelationships(self, entity_id: str | None = None) -> list[Relationship]:
        """Relationships from and to an entity, or all; the most interactions first."""
        found = Relationships(self.store, agent_id=self.agent_id, clock=self.clock)
        return await found.of(entity_id)

    def relationships(self, entity_id: str | None = None) -> list[Relationship]:
        return self._wait(self.arelationships(entity_id))

    async def agoals(self, room_id: str, status: GoalStatus | None = None) -> list[Goal]:
        """The goals of a room, by their ids."""
        return await Goals(self.store, self.agent_id).all(room_id, status)

    def goals(self, room_id: str, status: GoalStatus | None = None) -> list[Goal]:
        return self._wait(self.agoals(room_id, status))

    async def athoughts(self, room_id: str) -> list[Thought]:
        """What the agent made of a room, newest first."""
        entries = await self.store.alist(namespace(self.agent_id, "thoughts", room_id))
        found = readable(Thought, (entry.value for entry in entries))
        return sorted(found, key=lambda thought: thought.at, reverse=True)

    def thoughts(self, room_id: str) -> list[Thought]:
        return self._wait(self.athoughts(room_id))

    async def atrust(self, entity_id: str) -> TrustProfile:
        """How far an entity can be trusted, neutral without evidence."""
        return await Trust(self.store, self.agent_id, self.clock).profile(entity_id)

    def trust(self, entity_id: str) -> TrustProfile:
        return self._wait(self.atrust(entity_id))

    # Ordering

    async def acreate_goal(
        self,
        room_id: str,
        name: str,
        objectives: Iterable[Objective | str] = (),
        *,
        entity_id: str,
        id: str | None = None,
    ) -> Goal:
        """Give a room a goal, for an entity. Without `id` it has one made of room and name, so that a node which runs
        again creates it once. One that is there stays as it is, and is returned. Raises `ParameterError`."""
        goal = Goal(
            id=id or str(uuid5(NAMESPACE_OID, joined((room_id, name)))),
            room_id=room_id,
            entity_id=entity_id,
            name=name,
            objectives=tuple(Objective(description=o) if isinstance(o, str) else o for o in objectives),
        )
        return await Goals(self.store, self.agent_id).create(goal)

    def create_goal(
        self,
        room_id: str,
        name: str,
        objectives: Iterable[Objective | str] = (),
        *,
        entity_id: str,
        id: str | None = None,
    ) -> Goal:
        return self._wait(self.acreate_goal(room_id, name, objectives, entity_id=entity_id, id=id))

    async def aregister_entity(self, entity_id: str, *names: str) -> Entity:
        """Make an entity known by these names in all rooms. Once more replaces its names."""
        entity = Entity(id=entity_id, names=names, is_agent=entity_id == self.agent_id)
        await Entities(self.store, agent_id=self.agent_id).register(entity)
        return entity

    def register_entity(self, entity_id: str, *names: str) -> Entity:
        return self._wait(self.aregister_entity(entity_id, *names))

    async def aforget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> int:
        """Delete for good what is known about an entity: the facts whose claim has `query` in it (any case), the one
        with that `id`, or all; with their vectors, what was derived from them, and their mentions in thoughts, tags and
        metadata of relationships. All means also all relationships from and to it, and the thoughts about conversations
        that it took part in.

        It cannot be learned again. What a program has said stays: goals, and registered names; so does trust, which is
        about safety and has numbers and ids only. Returns how many facts were deleted. See `FactStore.forget`.
        """
        return await self._facts.forget(entity_id, query, id=id)

    def forget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> int:
        return self._wait(self.aforget(entity_id, query, id=id))

    # Showing

    async def aexport(self, entity_id: str) -> dict[str, Any]:
        """All records about an entity as JSON: facts, statuses and opinions of any state, trust and tombstones,
        relationships in both directions, its goals, thoughts in any room that it took part in or that name it, and
        how it was registered."""
        kinds = {kind: await self._values(kind, entity_id) for kind in _OF_ENTITY}
        registered = [
            e for e in await Entities(self.store, agent_id=self.agent_id).all() if e.id == entity_id
        ]
        names = (entity_id, *(name for entity in registered for name in entity.names))
        goals = readable(Goal, await self._everywhere("goals"))
        thoughts = readable(Thought, await self._everywhere("thoughts"))
        return {
            "entity_id": entity_id,
            "agent_id": self.agent_id,
            "exported_at": self.clock().astimezone(UTC).isoformat(),
            **kinds,
            "relationships": [each.to_value() for each in await self.arelationships(entity_id)],
            "goals": [goal.to_value() for goal in goals if goal.entity_id == entity_id],
            "thoughts": [
                thought.to_value()
                for thought in sorted(thoughts, key=lambda thought: thought.at)
                if entity_id in thought.entity_ids or _mentions(thought.text, names)
            ],
            "entities": [entity.to_value() for entity in registered],
        }

    def export(self, entity_id: str) -> dict[str, Any]:
        return self._wait(self.aexport(entity_id))

    async def atable(self, entity_id: str) -> Table:
        """What is known about an entity, to be printed: claim, type, confidence, how often and when it was heard, and
        from which messages. Conflicting claims are there too, and say so."""
        known = [fact for fact in await self.afacts(entity_id, None) if fact.state in ("active", "disputed")]
        table = Table(title=Text(f"known about {visible(entity_id)}"))
        for heading in ("claim", "type", "confidence", "mentions", "last heard", "sources"):
            table.add_column(heading, justify="right" if heading in ("confidence", "mentions") else "left")
        for fact in known:
            claim = visible(fact.claim) + (" (conflicting)" if fact.state == "disputed" else "")
            sources = visible(", ".join(fact.source_message_ids))
            cells = (
                claim,
                fact.type,
                f"{fact.confidence:.2f}",
                str(fact.mention_count),
                fact.last_seen_at.date().isoformat(),
                sources,
            )
            # As `Text`: rich would take what stands in brackets for markup.
            table.add_row(*(Text(cell) for cell in cells))
        return table

    def table(self, entity_id: str) -> Table:
        return self._wait(self.atable(entity_id))

    # Inside

    @property
    def _facts(self) -> FactStore:
        return FactStore(self.store, agent_id=self.agent_id, clock=self.clock, rules=self.rules)

    async def _values(self, kind: str, scope: str) -> list[Value]:
        return [entry.value for entry in await self.store.alist(namespace(self.agent_id, kind, scope))]

    async def _everywhere(self, kind: str) -> list[Value]:
        """The records of a kind in all rooms."""
        places = await self.store.aspaces(self.agent_id, kind)
        return [entry.value for place in places for entry in await self.store.alist(place)]

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if LOOP.is_here or self._is_home():
            coroutine.close()
            raise StoreLoopError(
                "a sync method of Memory was called on the event loop that it has to wait for. "
                "Await its twin, such as afacts."
            )
        return LOOP.submit(coroutine).result()

    def _is_home(self) -> bool:
        """Whether the caller runs on the loop that an async store belongs to."""
        try:
            return getattr(self.store.store, "_loop", None) is asyncio.get_running_loop()
        except RuntimeError:
            return False


def _mentions(text: str, names: Sequence[str]) -> bool:
    """Whether one of the names stands in a text as a whole word, in any case."""
    found = "|".join(re.escape(name) for name in names if name.strip())
    return bool(found) and re.search(rf"(?<!\w)(?:{found})(?!\w)", text, re.IGNORECASE) is not None
