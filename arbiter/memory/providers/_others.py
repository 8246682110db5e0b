"""Public facts about people other than the user: those who take part or are mentioned."""

from __future__ import annotations

from arbiter.memory._conversation import speaker_of, window
from arbiter.memory._entities import Entities, Entity, named_in, participants
from arbiter.memory._records import Fact
from arbiter.memory.facts import FactStore
from arbiter.memory.providers._provider import ProviderContext

PEOPLE = 4
"""Other people with facts in one call."""
LOOKED_AT = 32
"""The last messages from which the participants are read."""


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
    entities = Entities(ctx.needed_store(), agent_id=ctx.agent_id)
    speakers = [speaker_of(part, agent_id=ctx.agent_id, entity_id=ctx.entity_id) for part in last]
    registered = {each.id: each for each in await entities.named([ctx.query])}
    registered |= await entities.get(dict.fromkeys(speakers))
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
