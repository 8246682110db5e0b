"""Facts that a program or a tool stores or changes, under the same rules as those of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, cast, get_args
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from arbiter.errors import ParameterError, nearest
from arbiter.memory._characters import Character
from arbiter.memory._context import EvalContext
from arbiter.memory._entities import Entity
from arbiter.memory._options import text
from arbiter.memory._records import (
    BELIEVED,
    KINDS,
    Claim,
    ClaimType,
    Fact,
    Ingested,
    Sensitivity,
    Visibility,
    mistakes_in,
    readable,
    short_id,
    time_of,
)
from arbiter.memory.answers import CallBudget
from arbiter.memory.facts import FactRules
from arbiter.memory.facts._changes import CLOSED, corrected, following, retracted, unlinked
from arbiter.memory.facts._fact_store import facts_of
from arbiter.memory.facts._intake import LONGEST, wrong_text
from arbiter.memory.facts._normal import FactIds, normal_form
from arbiter.memory.facts._privacy import category, has_secret
from arbiter.memory.facts._rules import expiry
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace
from arbiter.models import ChatModel

_LITERALS: Mapping[str, Any] = {"type": ClaimType, "sensitivity": Sensitivity, "visibility": Visibility}
_CALLS = 4


class FactChanges(TypedDict, total=False):
    """The fields of a fact that a program may change."""

    claim: str
    type: ClaimType
    slot: str | None
    value: str | None
    valid_from: datetime | None
    valid_to: datetime | None
    expires_at: datetime | None
    sensitivity: Sensitivity
    visibility: Visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a statement was made: the room, its messages so far, and the run's config."""

    room_id: str
    messages: Sequence[BaseMessage]
    is_private: bool = False
    config: RunnableConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """Stores and changes the facts about entities on behalf of a program."""

    store: MemoryStore
    agent_id: str
    clock: Callable[[], datetime]
    rules: FactRules
    character: Character
    entities: Sequence[Entity]
    model: ChatModel | None

    async def state(
        self, entity_id: str, claim: Claim, place: Place, *, by: str
    ) -> tuple[Ingested, Fact | None]:
        """Store a claim that an entity made there. Returns the outcome, and the record of the claim if it has one.

        `by` is the name under which the record's origin lists the writer.
        """
        ctx = self._context(entity_id, place, by)
        ingested = await facts_of(ctx).ingest([claim], ctx, evaluator=by)
        if not ingested.fact_ids:
            return ingested, None
        found = await self._find(entity_id, ingested.fact_ids[-1])
        return ingested, None if found is None else found[1]

    async def remember(self, entity_id: str, claim: Claim, *, source: str | None, room_id: str) -> Fact:
        """As `state`, for a statement outside of any conversation. Raises `ParameterError` if it is not stored."""
        text("entity_id", entity_id, "remember")
        text("claim", claim.claim, "remember")
        _check_literals("remember", {"type": claim.type, "sensitivity": claim.sensitivity or "personal"})
        try:
            since = None if claim.valid_from is None else time_of(claim.valid_from)
        except (TypeError, ValueError):
            problem = f"expected a datetime, got {claim.valid_from!r:.80}."
            raise ParameterError("remember", "valid_from", problem) from None
        if (wrong := wrong_text(claim)) is not None:
            raise ParameterError(
                "remember", wrong, f"expected a text, not longer than {LONGEST:,} characters."
            )
        said = HumanMessage(claim.claim, id=short_id(source or str(uuid4())))
        claim = replace(claim, valid_from=since, source_message_ids=(str(said.id),))
        ingested, fact = await self.state(
            entity_id, claim, Place(room_id=room_id, messages=[said]), by="remember"
        )
        if fact is None:
            raise ParameterError("remember", "claim", f"it is not stored: {self.refusal(claim, ingested)}.")
        return fact

    def refusal(self, claim: Claim, ingested: Ingested) -> str:
        """The reason why a claim was not stored, without its words."""
        if ingested.dropped_invalid:
            return f"it is blank, or longer than {LONGEST:,} characters"
        if has_secret(claim.claim, subject=claim.subject, slot=claim.slot, value=claim.value):
            return "it holds a secret"
        if ingested.dropped_private:
            return "it is sensitive (FactRules(allow_sensitive=True) keeps such claims), off the record or forgotten"
        if claim.type == "opinion" and not self.rules.store_opinions:
            return "opinions are kept only with FactRules(store_opinions=True)"
        return "the agent's own bio says it"

    async def edit(self, entity_id: str, id: str, changes: Mapping[str, Any]) -> Fact:
        """Change a record. Raises `ParameterError` if there is none, or if it may not become so.

        A changed claim gets a record of its own, which corrects the old one and keeps its evidence.
        """
        known = tuple(FactChanges.__annotations__)
        for name in changes:
            if name not in known:
                problem = f"it cannot be changed. Fields: {', '.join(known)}.{nearest(name, known)}"
                raise ParameterError("edit", name[:80], problem)
        if not changes:
            raise ParameterError("edit", "changes", f"expected at least one of {', '.join(known)}.")
        _check_literals("edit", changes)
        found = await self._find(entity_id, id)
        if found is None:
            raise ParameterError("edit", "id", f"there is no record {id!r:.80} about {entity_id!r:.80}.")
        kind, fact = found
        changed = self._changed(fact, changes)
        if normal_form(changed.claim) == normal_form(fact.claim):
            return await self._rewritten(entity_id, kind, fact, changed, changes)
        return await self._replaced(entity_id, kind, fact, changed)

    def _changed(self, fact: Fact, changes: Mapping[str, Any]) -> Fact:
        given = {**fact.to_value(), **changes}
        for name, problem in mistakes_in(Fact, given):
            raise ParameterError("edit", name, f"{problem}.")
        changed = Fact.from_value(given)
        if (wrong := wrong_text(changed)) is not None:
            raise ParameterError("edit", wrong, f"expected a text of at most {LONGEST:,} characters.")
        if has_secret(changed.claim, subject=changed.subject, slot=changed.slot, value=changed.value):
            raise ParameterError("edit", "claim", "it holds a secret, which is never stored.")
        sensitive = changed.sensitivity == "sensitive" or category(changed.claim, changed.slot, changed.value)
        if sensitive and fact.sensitivity != "sensitive":
            if not self.rules.allow_sensitive:
                problem = "it is sensitive. FactRules(allow_sensitive=True) keeps such claims."
                raise ParameterError("edit", "claim", problem)
            changed = replace(changed, sensitivity="sensitive", visibility="room")
        end = expiry(changed, self.rules)
        if "expires_at" not in changes and end != expiry(fact, self.rules):
            changed = replace(changed, expires_at=end)
        return replace(changed, claim=changed.claim.strip())

    async def _rewritten(
        self, entity_id: str, kind: str, fact: Fact, changed: Fact, changes: Mapping[str, Any]
    ) -> Fact:
        """The record with other fields under the same id, in the namespace of its type."""
        target = KINDS[changed.type]

        def change(value: Value | None) -> Value | None:
            now = Fact.read(value)
            # Mentions that were counted meanwhile stay.
            return (changed if now is None else self._changed(now, changes)).to_value()

        value = await self.store.aupdate(self._space(target, entity_id), fact.id, change)
        if target != kind:
            await self.store.aupdate(self._space(kind, entity_id), fact.id, lambda value: None)
        return Fact.read(value) or changed

    async def _replaced(self, entity_id: str, kind: str, fact: Fact, changed: Fact) -> Fact:
        now = self.clock()
        target = self._space(KINDS[changed.type], entity_id)
        id, before = await self._successor(entity_id, fact, changed.claim)
        made = replace(
            changed,
            id=id,
            state=fact.state if fact.state in CLOSED else "active",
            last_seen_at=max(now, fact.last_seen_at),
            contradicts=(),
            supersedes=fact.id,
        )
        if self.rules.chaining:
            await self._retract_derived(entity_id, fact.id, now)
        # First the new record: a crash in between leaves both, and the same edit completes it.
        if before is None:
            await self.store.aput(target, id, made.to_value())
        past = partial(corrected, by=id, at=now)
        await self._alter(
            self._space(kind, entity_id), fact.id, lambda old: past(replace(old, state="active"))
        )
        for rival in fact.contradicts:
            if (other := await self._find(entity_id, rival)) is not None:
                space = self._space(other[0], entity_id)
                await self._alter(space, rival, lambda old: unlinked(old, [fact.id]))
        return before or made

    async def _retract_derived(self, entity_id: str, premise: str, at: datetime) -> None:
        """Retract what was inferred from a corrected fact, and what follows from that."""
        spaces = [self._space(kind, entity_id) for kind in BELIEVED]
        known = [entry.value for space in spaces for entry in await self.store.alist(space)]
        for fact in following(readable(Fact, known), premise):
            await self._alter(self._space(KINDS[fact.type], entity_id), fact.id, partial(retracted, at=at))

    async def _successor(self, entity_id: str, fact: Fact, claim: str) -> tuple[str, Fact | None]:
        """The id of the record with which this claim replaces the fact, and the record if it is there already."""
        generation = 0
        ids = await FactIds(self.store, self.agent_id, entity_id).ready()
        while True:
            id = ids.of(fact.subject, claim, generation)
            there = await self._find(entity_id, id)
            if there is None or there[1].supersedes == fact.id:
                return id, None if there is None else there[1]
            if there[1].state not in CLOSED:
                problem = f"the record {id!r} says this already. Forget {fact.id!r} instead."
                raise ParameterError("edit", "claim", problem)
            generation += 1

    async def _alter(self, ns: Namespace, id: str, change: Callable[[Fact], Fact]) -> None:
        await self.store.aupdate(ns, id, partial(Fact.altered, change=change))

    async def _find(self, entity_id: str, id: str) -> tuple[str, Fact] | None:
        for kind in KINDS.values():
            if (fact := Fact.read(await self.store.aget(self._space(kind, entity_id), id))) is not None:
                return kind, fact
        return None

    def _space(self, kind: str, entity_id: str) -> Namespace:
        return namespace(self.agent_id, kind, entity_id)

    def _context(self, entity_id: str, place: Place, by: str) -> EvalContext:
        humans = [message for message in place.messages if isinstance(message, HumanMessage)]
        nothing = cast(Any, None)
        known = {entity.id for entity in self.entities}
        added = [Entity(id=id) for id in (entity_id, self.agent_id) if id not in known]
        return EvalContext(
            history=nothing,
            item=nothing,
            node=by,
            state={},
            messages=place.messages,
            message=humans[-1] if humans else None,
            room_id=place.room_id,
            entity_id=entity_id,
            agent_id=self.agent_id,
            entities=(*self.entities, *added),
            is_private=place.is_private,
            store=self.store,
            model=self.model,
            character=self.character,
            conversation_length=max(len(place.messages), 1),
            config=place.config or {},
            clock=self.clock,
            run_key=f"{by}:{uuid4()}",
            ended_at=self.clock(),
            budget=CallBudget(_CALLS),
            fact_rules=self.rules,
        )


def _check_literals(owner: str, given: Mapping[str, Any]) -> None:
    for name, kind in _LITERALS.items():
        if name in given and given[name] not in get_args(kind):
            allowed = ", ".join(map(repr, get_args(kind)))
            raise ParameterError(owner, name, f"expected one of {allowed}, got {given[name]!r:.80}.")
