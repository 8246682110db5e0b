"""`Memory`: queries and edits an agent's memory from a program: facts, goals, forget, export."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, get_args
from uuid import NAMESPACE_OID, uuid5

from langgraph.store.base import BaseStore
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from arbiter._threads.deadlines import LOOP
from arbiter.errors import ConfigurationError, ParameterError, nearest
from arbiter.evaluators._outputs import checked_number
from arbiter.memory._characters import Character
from arbiter.memory._editing import Editing, FactChanges
from arbiter.memory._entities import Entities, Entity
from arbiter.memory._importing import Import
from arbiter.memory._notes import KEYS, Traces
from arbiter.memory._options import has_members, of_kind
from arbiter.memory._quiet import Processed
from arbiter.memory._records import (
    KINDS,
    Claim,
    ClaimType,
    Fact,
    FactState,
    Goal,
    GoalStatus,
    Objective,
    Relationship,
    Sensitivity,
    Thought,
    checked_time,
    readable,
    time_in,
    utc_now,
)
from arbiter.memory._tombstones import Forgettings
from arbiter.memory._turns import AT_WORK
from arbiter.memory.facts import FactRules, FactStore, Forgotten
from arbiter.memory.facts._extraction import label
from arbiter.memory.facts._profiles import checked_schemas
from arbiter.memory.goals import Goals
from arbiter.memory.reflection._evaluator import Thoughts
from arbiter.memory.reflection._relationships import Relationships
from arbiter.memory.stores import MemoryStore, Value, namespace
from arbiter.memory.stores._access import StoreLoopError
from arbiter.memory.stores._portable import joined
from arbiter.memory.trust import Trust, TrustProfile
from arbiter.models import ChatModel, visible

T = TypeVar("T")
S = TypeVar("S", bound=BaseModel)
P = ParamSpec("P")
_OF_ENTITY = (*KINDS.values(), "profiles", "own_names", "trust", KEYS)


class ProcessingCycle(Protocol):
    """The part of an `EvaluationCycle` that works through threads."""

    messages_key: str

    async def process(
        self,
        thread_id: str,
        *,
        user_id: str | None = None,
        messages: Sequence[Any] | None = None,
        ended_at: str | datetime | None = None,
    ) -> Processed: ...

    async def read_waiting(self, speaker: str) -> None: ...


def waiting(
    twin: Callable[Concatenate[Memory, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Memory, P], T]:
    """The sync form of an async method of `Memory`, under its name without the "a"."""

    @wraps(twin)
    def method(memory: Memory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return memory.wait(twin(memory, *args, **kwargs))

    method.__name__ = twin.__name__.removeprefix("a")
    method.__qualname__ = f"Memory.{method.__name__}"
    return method


class Memory:
    """Everything that one agent remembers.

    Each method has an async twin: `facts` and `afacts`. The sync methods work on any thread; in a running
    event loop they block it. They raise `StoreLoopError` on the two loops that would wait for themselves:
    Arbiter's own, which runs evaluators written as `async def`, and the loop that an async store belongs to.
    """

    def __init__(
        self,
        store: BaseStore | MemoryStore,
        *,
        agent_id: str = "agent",
        clock: Callable[[], datetime] = utc_now,
        rules: Any = None,
        character: Character | None = None,
        entities: Sequence[Entity] = (),
        model: ChatModel | None = None,
        cycle: ProcessingCycle | None = None,
    ) -> None:
        self.store = store if isinstance(store, MemoryStore) else MemoryStore(store)
        self.agent_id = agent_id
        self.clock = clock
        self.rules = rules
        self.cycle = cycle
        self.editing = Editing(
            store=self.store,
            agent_id=agent_id,
            clock=clock,
            rules=FactRules() if rules is None else rules,
            character=Character(agent_id) if character is None else character,
            entities=entities,
            model=model,
        )

    # Working through a thread

    async def aprocess(
        self,
        thread_id: str,
        *,
        user_id: str | None = None,
        messages: Sequence[Any] | None = None,
        graph: Any = None,
        ended_at: datetime | None = None,
    ) -> Processed:
        """Work through what is unread of a thread now: what this process holds of it, or these `messages`, or
        those of the thread in the checkpointer of a compiled `graph`.

        The messages given count as said at `ended_at`, by default now, or at the time of the last checkpoint of the
        graph. A scheduler calls it for threads of other processes. Doing it again changes nothing. Raises
        `ConfigurationError` if there is nothing of that thread, or without an `EvaluationCycle`.
        """
        ended = _end_of(ended_at, messages, graph)
        if graph is not None and messages is None:
            state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
            messages, ended = self._messages_of(thread_id, state), ended or getattr(state, "created_at", None)
        processing = self._processing.process(thread_id, user_id=user_id, messages=messages, ended_at=ended)
        return await _on_loop(processing)

    def process(
        self,
        thread_id: str,
        *,
        user_id: str | None = None,
        messages: Sequence[Any] | None = None,
        graph: Any = None,
        ended_at: datetime | None = None,
    ) -> Processed:
        ended = _end_of(ended_at, messages, graph)
        if graph is not None and messages is None:
            state = graph.get_state({"configurable": {"thread_id": thread_id}})
            messages, ended = self._messages_of(thread_id, state), ended or getattr(state, "created_at", None)
        return self.wait(
            self._processing.process(thread_id, user_id=user_id, messages=messages, ended_at=ended)
        )

    @property
    def _processing(self) -> ProcessingCycle:
        if self.cycle is None:
            raise ConfigurationError(
                "this Memory has no evaluators that could read a thread. Use the one of an EvaluationCycle: "
                "cycle.memory.process(...)."
            )
        return self.cycle

    def _messages_of(self, thread_id: str, state: Any) -> Sequence[Any]:
        key = self._processing.messages_key
        values: Any = state.values
        found: Any = values.get(key) if hasattr(values, "get") else None
        if not found:
            raise ConfigurationError(f"the graph has no {key!r} in the thread {thread_id!r:.80}.")
        return [*found]

    # Queries

    async def afacts(
        self, entity_id: str, state: FactState | None = "active", *, as_of: datetime | None = None
    ) -> list[Fact]:
        """Facts and statuses about an entity, newest first, without those whose time is over by the clock;
        `state=None` returns those of every state.

        With `as_of`, `state` is the state at that time: the default returns what held then.
        """
        _check_one_of("facts", "state", state, FactState)
        return await self.fact_store.facts(entity_id, state=state, as_of=as_of)

    facts = waiting(afacts)

    async def asearch(
        self,
        query: str,
        entity_id: str,
        *,
        limit: int = 10,
        room_id: str | None = None,
        as_of: datetime | None = None,
    ) -> list[Fact]:
        """Active and disputed facts about an entity that fit a query, best first, by words, and by meaning if
        the store has embeddings.

        With `room_id` only the facts that a prompt in that room may use; with `as_of` those that held then.
        """

        def wanted(fact: Fact) -> bool:
            return room_id is None or fact.is_told_in(room_id)

        of_kind("query", query, str, owner="search")
        checked_number("search", "limit", limit, low=1, whole=True)
        return await self.fact_store.search([entity_id], query, limit=limit, as_of=as_of, wanted=wanted)

    search = waiting(asearch)

    async def aprofile(self, entity_id: str, schema: type[S]) -> S:
        """The profile of an entity, as an object of that pydantic model; fields that are not known have their
        defaults.

        `FactEvaluator(schemas=[schema])` fills it.
        """
        [model] = checked_schemas("profile", [schema])
        return await self.fact_store.profiles(entity_id).read(cast("type[S]", model))

    profile = waiting(aprofile)

    async def arelationships(self, entity_id: str | None = None) -> list[Relationship]:
        """Relationships from and to an entity, or all of them, the most interactions first."""
        return await Relationships(self.store, agent_id=self.agent_id).of(entity_id)

    relationships = waiting(arelationships)

    async def agoals(self, room_id: str, status: GoalStatus | None = None) -> list[Goal]:
        """The goals of a room, sorted by id."""
        _check_one_of("goals", "status", status, GoalStatus)
        return await Goals(self.store, self.agent_id).all(room_id, status)

    goals = waiting(agoals)

    async def athoughts(self, room_id: str) -> list[Thought]:
        """The agent's thoughts about a room, newest first."""
        return await Thoughts(self.store, self.agent_id, room_id).all()

    thoughts = waiting(athoughts)

    async def atrust(self, entity_id: str) -> TrustProfile:
        """The trust profile of an entity; neutral without evidence."""
        return await Trust(self.store, self.agent_id, self.clock).profile(entity_id)

    trust = waiting(atrust)

    # Changes

    async def aremember(
        self,
        entity_id: str,
        claim: str,
        *,
        type: ClaimType = "fact",
        slot: str | None = None,
        value: str | None = None,
        valid_from: datetime | None = None,
        sensitivity: Sensitivity | None = None,
        source: str | None = None,
        room_id: str = "program",
    ) -> Fact:
        """Store a claim that an entity made about itself, as if it had been said in `room_id`. Returns its
        record.

        The claim passes the same rules as a learned one: it confirms, supersedes or contradicts known facts.
        `source` is the id of its message or document; the same source counts once. Raises `ParameterError` if
        the claim may not be stored: it holds a secret, say.
        """
        of_kind("source", source, str, none=True, owner="remember")
        stated = Claim(
            claim=claim, type=type, slot=slot, value=value, valid_from=valid_from, sensitivity=sensitivity
        )
        return await self.editing.remember(entity_id, stated, source=source, room_id=room_id)

    remember = waiting(aremember)

    async def aedit(self, entity_id: str, id: str, **changes: Unpack[FactChanges]) -> Fact:
        """Change fields of a fact about an entity. Returns the record.

        A changed claim gets a new record with the evidence of the old one, which counts as corrected. Other
        fields change in place. Raises `ParameterError` if there is no such record, or if it may not become so.
        """
        return await self.editing.edit(entity_id, id, changes)

    edit = waiting(aedit)

    async def acreate_goal(
        self,
        room_id: str,
        name: str,
        objectives: Iterable[Objective | str] = (),
        *,
        entity_id: str,
        id: str | None = None,
    ) -> Goal:
        """Give a room a goal for an entity. Returns the goal, or the existing one with that id, unchanged.

        The default `id` is made of room and name, so a node that runs again creates the goal once. Raises
        `ParameterError`.
        """
        given: Any = objectives
        steps: list[Any] = [*given] if has_members(given) else [given]
        goal = Goal(
            id=id or str(uuid5(NAMESPACE_OID, joined((room_id, name)))),
            room_id=room_id,
            entity_id=entity_id,
            name=name,
            objectives=tuple(Objective(description=o) if isinstance(o, str) else o for o in steps),
        )
        return await Goals(self.store, self.agent_id).create(goal)

    create_goal = waiting(acreate_goal)

    async def aregister_entity(self, entity_id: str, *names: str) -> Entity:
        """Register the names of an entity for all rooms. Registering it again replaces its names."""
        for called in (entity_id, *names):
            of_kind("names", called, str, owner="register_entity")
        entity = Entity(id=entity_id, names=names, is_agent=entity_id == self.agent_id)
        await Entities(self.store, self.agent_id).register(entity)
        return entity

    register_entity = waiting(aregister_entity)

    async def aforget(self, entity_id: str, query: str | None = None, *, id: str | None = None) -> Forgotten:
        """Delete the facts about an entity for good, or for `FactRules.undo_within`.

        With `query` the facts whose claim, value or subject contains it in any case are deleted, and those
        with a word in their slot that begins with it; with `id` that one fact, with neither all. Their
        vectors, the facts derived from them, the thoughts that rest on them, and their mentions in tags and
        metadata of relationships are deleted too. Deleting all facts also deletes every relationship from and
        to the entity, and the thoughts about conversations that it took part in. Unless all is deleted,
        threads of the entity that wait in this process are read first, for at most `handler_timeout_s` of the
        cycle: they might teach it again.

        Returns how many facts were deleted; the number has an `id` for `undo`. The messages that said a
        deleted fact teach it no more; a later message can. Goals and registered names stay, because the
        program set them; trust stays too, because it serves safety and holds only numbers and ids.
        """
        if self.cycle is not None and (query or id):
            await _on_loop(self.cycle.read_waiting(entity_id))
        return await self.fact_store.forget(entity_id, query, id=id)

    forget = waiting(aforget)

    async def aundo(self, entity_id: str, *, id: str | None = None) -> int:
        """Restore what the last `forget` of an entity that found something has taken, in a conversation or by a
        program, or the one with that `id`. Returns how many facts are back.

        Works for the time that `FactRules(undo_within=...)` sets; then the count is 0. Facts that were learned
        again meanwhile stay as they are. A fact about something with one value at a time, like a home or a job, is
        back as a superseded one if another value was said meanwhile.
        Raises `ConfigurationError` without that option, because forgotten records are then erased at once.
        """
        return await self.fact_store.undo(entity_id, id)

    undo = waiting(aundo)

    async def aimport_(self, records: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> int:
        """Import what `export` has returned, one export or a list of them, or claims from elsewhere: mappings with
        `entity_id`, `claim` and any other field of a `Fact`.

        Records keep their ids, times and links. A record that is there already stays as it is, so that importing
        again changes nothing; one whose messages were forgotten since is left out. Returns how many records are
        new. Raises `ParameterError` with all mistakes, each with its index and field, and imports nothing then.
        """
        work = Import(self.store, agent_id=self.agent_id, rules=self.editing.rules, clock=self.clock)
        return await work.run(records)

    import_ = waiting(aimport_)

    # Output

    async def aexport(self, entity_id: str) -> dict[str, Any]:
        """All records about an entity as JSON.

        These are its facts, statuses and opinions of every state, its profiles, trust and tombstones,
        relationships in both directions, its goals, the thoughts about conversations that it took part in, and
        other thoughts about these rooms that name it, and its registration.
        """
        kinds = {kind: await self._values(kind, entity_id) for kind in _OF_ENTITY}
        kinds["tombstones"] = await Forgettings(self.store, self.agent_id, entity_id).exported()
        known = await Entities(self.store, self.agent_id).get([entity_id])
        registered = list(known.values())
        names = (entity_id, *(name for entity in registered for name in entity.names))
        _, rooms = await Traces(self.store, self.agent_id, entity_id).read()
        thoughts = readable(
            Thought, [value for room in rooms for value in await self._values("thoughts", room)]
        )
        return {
            "entity_id": entity_id,
            "agent_id": self.agent_id,
            "exported_at": self.clock().astimezone(UTC).isoformat(),
            **kinds,
            "relationships": [each.to_value() for each in await self.arelationships(entity_id)],
            "goals": [goal.to_value() for goal in await Goals(self.store, self.agent_id).of(entity_id)],
            "thoughts": [
                thought.to_value()
                for thought in sorted(thoughts, key=lambda thought: thought.at)
                if entity_id in thought.entity_ids or _mentions(thought.text, names)
            ],
            "entities": [entity.to_value() for entity in registered],
        }

    export = waiting(aexport)

    async def atable(self, entity_id: str) -> Table:
        """A table of the active and disputed facts about an entity: claim, type, confidence, mentions,
        last mention, source messages. Disputed claims are marked as conflicting."""
        known = [fact for fact in await self.afacts(entity_id, None) if fact.state in ("active", "disputed")]
        zone = self.clock().tzinfo
        table = Table(title=Text(f"known about {label(entity_id)}"))
        for heading in ("claim", "type", "confidence", "mentions", "last heard", "sources"):
            table.add_column(heading, justify="right" if heading in ("confidence", "mentions") else "left")
        for fact in known:
            claim = visible(fact.claim) + (" (conflicting)" if fact.state == "disputed" else "")
            sources = ", ".join(map(label, fact.source_message_ids))
            cells = (
                claim,
                fact.type,
                f"{fact.confidence:.2f}",
                str(fact.mention_count),
                time_in(fact.last_seen_at, zone).date().isoformat(),
                sources,
            )
            # As `Text`: rich would read brackets in a claim as markup.
            table.add_row(*(Text(cell) for cell in cells))
        return table

    table = waiting(atable)

    # Internals

    @property
    def fact_store(self) -> FactStore:
        """The facts of the agent, as evaluators use them."""
        return FactStore(self.store, agent_id=self.agent_id, clock=self.clock, rules=self.rules)

    async def _values(self, kind: str, scope: str) -> list[Value]:
        return [entry.value for entry in await self.store.alist(namespace(self.agent_id, kind, scope))]

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a method's async twin."""
        if LOOP.is_here or self.store.is_home:
            coroutine.close()
            raise StoreLoopError(
                "a sync method of Memory was called on the event loop that it has to wait for. "
                "Await its twin, such as afacts."
            )
        context = Context()
        context.run(AT_WORK.set, AT_WORK.get())
        return LOOP.submit(coroutine, context).result()


async def _on_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of work on Arbiter's own event loop, from any loop."""
    return await (work if LOOP.is_here else asyncio.wrap_future(LOOP.submit(work)))


def _end_of(ended_at: datetime | None, messages: Any, graph: Any) -> str | datetime | None:
    """The time at which given messages were said. What the process holds has a time of its own."""
    if ended_at is not None and messages is None and graph is None:
        problem = "it is the time of messages= or graph=, of which none is given. Leave it out."
        raise ParameterError("process", "ended_at", problem)
    return checked_time("process", "ended_at", ended_at)


def _check_one_of(method: str, name: str, value: str | None, kind: Any) -> None:
    if value is not None and value not in (allowed := get_args(kind)):
        problem = f"expected one of {', '.join(map(repr, allowed))}, or None for all, got {value!r:.80}."
        raise ParameterError(method, name, f"{problem}{nearest(value, allowed)}")


def _mentions(text: str, names: Sequence[str]) -> bool:
    """True if a text contains one of the names as whole words, in any case."""
    found = "|".join(re.escape(name) for name in names if name.strip() and len(name) <= len(text))
    return bool(found) and re.search(rf"(?<!\w)(?:{found})(?!\w)", text, re.IGNORECASE) is not None
