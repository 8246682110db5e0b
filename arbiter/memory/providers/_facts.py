"""`FactsProvider`: known facts about the user, and public ones about others, as far as this room may see
them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from arbiter.evaluators._outputs import checked_number
from arbiter.instructions import Instruction
from arbiter.memory._conversation import speaker_of, window
from arbiter.memory._entities import Entities, Entity, named_in, participants
from arbiter.memory._records import BELIEVED, Fact, checked_time, readable, time_in
from arbiter.memory._tombstones import Forgettings
from arbiter.memory.facts import FactStore
from arbiter.memory.facts._rules import weight
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext, ProvidingCycle
from arbiter.memory.stores import MemoryStore, Namespace, namespace

PEOPLE = 4
"""Other people with facts in one call."""
LOOKED_AT = 32
"""The last messages from which the participants are read."""
ASK_BACK = (
    "The user may have asked to have everything about them forgotten. Nothing is forgotten yet; ask them: "
    '"Shall I forget everything I know about you?"'
)
CONFLICTING = "(unverified, conflicting)"
_OWNER = "FactsProvider"


class FactsProvider(Provider):
    """Known facts about the user of the turn, statuses included: at most `similar` that fit the last messages,
    and the latest for the rest of `similar` + `recent` lines.

    All facts of the user compete, by their words, and by their meaning if the store has embeddings; see
    `MemoryStore.asearch`. The chosen ones are ranked by confidence, halved every `half_life_days` since the last
    mention; conflicting ones follow, newest first and marked as such. With `as_of`, the facts that held at that
    time are shown.

    At most `others` facts about others follow, under their names: facts visible to all
    (`FactRules(visibility="agent")`), about at most four people who are named in the last messages or take
    part in the conversation.
    """

    name = "facts"
    description = "Known about the user, with confidence and the date when it was last heard"
    position = 10

    def __init__(
        self,
        name: str = "",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        *,
        similar: int = 12,
        recent: int = 2,
        others: int = 6,
        half_life_days: float = 30.0,
        as_of: datetime | None = None,
        cycle: ProvidingCycle | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, cycle=cycle, **options)
        self.similar = int(checked_number(_OWNER, "similar", similar, low=0, whole=True))
        self.recent = int(checked_number(_OWNER, "recent", recent, low=0, whole=True))
        self.others = int(checked_number(_OWNER, "others", others, low=0, whole=True))
        self.half_life_days = checked_number(_OWNER, "half_life_days", half_life_days, above=0)
        self.as_of = checked_time(_OWNER, "as_of", as_of)

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        store, now = ctx.needed_store(), ctx.clock()
        facts = FactStore(store, agent_id=ctx.agent_id, clock=lambda: now)
        places = [namespace(ctx.agent_id, kind, ctx.entity_id) for kind in BELIEVED]
        forgettings = Forgettings(store, ctx.agent_id, ctx.entity_id)
        pending, (near, latest), others = await asyncio.gather(
            forgettings.pending(now), self._chosen(facts, ctx), told_of_others(facts, ctx, self.others)
        )
        chosen = {fact.id: fact for fact in near}
        for fact in latest:
            if len(chosen) < self.similar + self.recent:
                chosen.setdefault(fact.id, fact)
        if self.as_of is None:
            chosen |= await _opponents(store, places, ctx, now, chosen)
            finer = await self._finer(store, places, chosen, ctx, now)
            chosen = {fact.id: fact for fact in _finest(chosen, finer)}
            chosen = {fact.id: _as_seen(fact, chosen) for fact in _unreplaced(chosen)}
        at = now if self.as_of is None else time_in(self.as_of, now.tzinfo)
        shown = self._ranked(chosen.values(), at)
        # Asked once: what the user says then is the answer.
        lines = [ASK_BACK] if pending is not None and not pending.turns else []
        lines += [line_of(fact, at) for fact in shown]
        text = "\n".join([*lines, *(line_of(fact, now, about=name) for name, fact in others)])
        return self._result(
            text,
            facts=[fact.to_value() for fact in shown],
            others=[fact.to_value() for _, fact in others],
        )

    async def _chosen(self, facts: FactStore, ctx: ProviderContext) -> tuple[list[Fact], list[Fact]]:
        wanted = partial(may_be_shown, ctx=ctx)
        about, most = [ctx.entity_id], self.similar + self.recent
        near = await facts.search(about, ctx.query, limit=self.similar, as_of=self.as_of, wanted=wanted)
        return near, await facts.latest(about, limit=most, as_of=self.as_of, wanted=wanted)

    async def _finer(
        self,
        store: MemoryStore,
        places: Sequence[Namespace],
        chosen: Mapping[str, Fact],
        ctx: ProviderContext,
        now: datetime,
    ) -> list[Fact]:
        """The facts that refine the chosen ones, and those that refine these."""
        found: dict[str, Fact] = {}
        wanted = list(chosen)
        while wanted:
            entries = await store.alinked(places, "refines", wanted)
            facts = readable(Fact, (entry.value for entry in entries))
            finer = {fact.id: fact for fact in facts if _fits(fact, ctx, now) and fact.id not in found}
            found |= finer
            wanted = list(finer)
        return list(found.values())

    def _ranked(self, facts: Iterable[Fact], now: datetime) -> list[Fact]:
        worth = partial(weight, now=now, half_life_days=self.half_life_days)
        newest = sorted(facts, key=lambda fact: fact.last_seen_at, reverse=True)
        active = sorted((f for f in newest if f.state == "active"), key=worth, reverse=True)
        return [*active, *(fact for fact in newest if fact.state == "disputed")]


def line_of(fact: Fact, now: datetime, *, about: str = "") -> str:
    """A fact as one line: `[conf=0.93, 2026-01-31] User lives in Seattle`.

    Dates to come are in it: `[conf=0.60, 2026-01-31, from 2027-01-01]`, or `until` and the last day. `about` is
    the name of a subject other than the user: `[conf=0.93, 2026-01-31] (about Bob) Lives in Seattle`.
    """

    def day(when: datetime) -> str:
        return time_in(when, now.tzinfo).date().isoformat()

    label = f"(about {one_line(about, 100)}) " if about else ""
    dates = [day(fact.last_seen_at)]
    if fact.valid_from is not None and fact.valid_from > now:
        dates.append(f"from {day(fact.valid_from)}")
    if fact.valid_to is not None and fact.valid_to > now:
        dates.append(f"until {day(fact.valid_to - timedelta(microseconds=1))}")
    line = f"[conf={fact.confidence:.2f}, {', '.join(dates)}] {label}{one_line(fact.claim)}"
    return line if fact.state == "active" else f"{line} {CONFLICTING}"


def may_be_shown(fact: Fact, ctx: ProviderContext) -> bool:
    """True if the user of the turn may see the fact in this room.

    A fact visible to a room is shown in the rooms where it was said. A fact visible to an entity is shown to
    its speakers and to its subject; a subject sees a third party's claim only in the rooms where it was said.
    """
    if fact.visibility == "agent":
        return True
    if fact.visibility == "room":
        return ctx.room_id in fact.room_ids
    if ctx.entity_id in (fact.speaker, *fact.speakers):
        return True
    return ctx.entity_id == fact.subject and (
        fact.provenance != "third_party" or ctx.room_id in fact.room_ids
    )


def _fits(fact: Fact, ctx: ProviderContext, now: datetime) -> bool:
    return fact.state in ("active", "disputed") and not fact.expired(now) and may_be_shown(fact, ctx)


def _finest(chosen: Mapping[str, Fact], known: Iterable[Fact]) -> list[Fact]:
    """The chosen facts, each in its most refined form: "lives in Ballard" for "lives in Seattle"."""
    refining = {
        fact.refines: fact for fact in (*known, *chosen.values()) if fact.refines and fact.state == "active"
    }
    found: dict[str, Fact] = {}
    for fact in chosen.values():
        passed = {fact.id}
        while fact.id in refining and refining[fact.id].id not in passed:
            fact = refining[fact.id]
            passed.add(fact.id)
        found[fact.id] = fact
    return list(found.values())


def _unreplaced(chosen: Mapping[str, Fact]) -> list[Fact]:
    """The facts without those that another one replaces in this room only: one that was said in confidence."""
    by = {
        fact.supersedes: fact
        for fact in chosen.values()
        if fact.visibility == "room" and fact.state == "active"
    }
    return [
        fact
        for fact in chosen.values()
        if fact.id not in by or fact.visibility == "room" or fact.superseded_by == by[fact.id].id
    ]


def _as_seen(fact: Fact, chosen: Mapping[str, Fact]) -> Fact:
    """A user's own statement is in conflict only with statements that the user may see."""
    is_own = fact.state == "disputed" and fact.subject in fact.speakers
    return replace(fact, state="active") if is_own and chosen.keys().isdisjoint(fact.contradicts) else fact


async def _opponents(
    store: MemoryStore,
    places: Sequence[Namespace],
    ctx: ProviderContext,
    now: datetime,
    chosen: Mapping[str, Fact],
) -> dict[str, Fact]:
    """The other sides of the conflicts in `chosen`: one side alone would look like the truth."""
    missing = {
        id: None
        for fact in chosen.values()
        if fact.state == "disputed"
        for id in fact.contradicts
        if id not in chosen
    }
    found = [await store.aget_many(place, missing) for place in places]
    facts = readable(Fact, (value for values in found for value in values.values()))
    return {fact.id: fact for fact in facts if _fits(fact, ctx, now)}


# Other people ------------------------------------------------------------------------------------


async def told_of_others(facts: FactStore, ctx: ProviderContext, limit: int) -> list[tuple[str, Fact]]:
    """At most `limit` facts with the names of their subjects: first those that fit the last messages, then
    the latest."""
    people = (await _others(ctx))[:PEOPLE] if limit else []
    names = {person.id: person.names[0] if person.names else person.id for person in people}
    near = await facts.search(names, ctx.query, limit=limit, wanted=_is_public)
    latest = await facts.latest(names, limit=limit, wanted=_is_public)
    found = {fact.id: fact for fact in (*near, *latest)}
    return [(names.get(fact.subject, fact.subject), fact) for fact in found.values()][:limit]


def _is_public(fact: Fact) -> bool:
    return fact.visibility == "agent"


async def _others(ctx: ProviderContext) -> list[Entity]:
    """People named in the last messages, then those who take part, the latest speaker first."""
    last = window(ctx.messages, LOOKED_AT)
    speakers = [speaker_of(part, agent_id=ctx.agent_id, entity_id=ctx.entity_id) for part in last]
    registered = await Entities(ctx.needed_store(), ctx.agent_id).meant(speakers, [ctx.query])
    known = participants(
        last,
        agent_id=ctx.agent_id,
        character=ctx.character,
        entity_id=ctx.entity_id,
        registered=(*ctx.entities, *registered.values()),
    )
    by_id = {entity.id: entity for entity in known if entity.id not in (ctx.agent_id, ctx.entity_id)}
    order = dict.fromkeys([*named_in(ctx.query, known), *reversed(speakers)])
    return [by_id[id] for id in order if id in by_id]
