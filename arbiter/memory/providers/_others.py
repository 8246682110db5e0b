"""Public facts about people other than the user: those who take part or are mentioned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from arbiter.memory._conversation import speaker_of, window
from arbiter.memory._entities import Entities, Entity, named_in, participants
from arbiter.memory._records import Fact, readable
from arbiter.memory.providers._provider import ProviderContext
from arbiter.memory.stores import namespace
from arbiter.memory.stores._words import overlap, words_of

PEOPLE = 4
"""Other people with facts in one call."""
LOOKED_AT = 32
"""The last messages from which the participants are read."""
READ = 16
"""Records of each kind, the newest, that are read for each person."""


async def told_of_others(
    ctx: ProviderContext, kinds: Sequence[str], now: datetime, limit: int
) -> list[tuple[str, Fact]]:
    """At most `limit` facts with the names of their subjects: first those most like the last messages,
    then the newest."""
    people = (await _others(ctx))[:PEOPLE] if limit else []
    found = await asyncio.gather(*(_visible(person, ctx, kinds, now) for person in people))
    wanted = words_of(ctx.query)

    def likeness(pair: tuple[str, Fact]) -> tuple[float, datetime]:
        return overlap(words_of(pair[1].claim), wanted), pair[1].last_seen_at

    return sorted((pair for part in found for pair in part), key=likeness, reverse=True)[:limit]


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


async def _visible(
    person: Entity, ctx: ProviderContext, kinds: Sequence[str], now: datetime
) -> list[tuple[str, Fact]]:
    store = ctx.needed_store()
    places = [namespace(ctx.agent_id, kind, person.id) for kind in kinds]
    pages = await asyncio.gather(
        *(store.alist(place, filter={"visibility": "agent"}, limit=READ) for place in places)
    )
    facts = readable(Fact, (entry.value for page in pages for entry in page))
    name = person.names[0] if person.names else person.id
    return [(name, fact) for fact in facts if fact.state in ("active", "disputed") and not fact.expired(now)]
