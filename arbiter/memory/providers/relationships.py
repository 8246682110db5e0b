"""`RelationshipsProvider`: who has to do with whom."""

from __future__ import annotations

from arbiter.memory.entities import Entities, participants
from arbiter.memory.providers.composing import ProviderResult, one_line
from arbiter.memory.providers.provider import Provider, ProviderContext
from arbiter.memory.records import Relationship
from arbiter.memory.reflection.relationships import Relationships


class RelationshipsProvider(Provider):
    """Says with whom the user has to do: name, how many interactions were counted, tags, at most 30, the most
    interactions first. What others are to the user is told only in a room where it was seen."""

    name = "relationships"
    description = "People whom the user has to do with: name, interactions, tags"
    position = 20
    most = 30

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        store = ctx.needed_store()
        known = Relationships(store, agent_id=ctx.agent_id, clock=ctx.clock)
        found = await known.of(ctx.entity_id)
        shown = [each for each in found if _may_be_shown(each, ctx)][: self.most]
        names = await _names(ctx) if shown else {}
        lines = [self._line(each, ctx.entity_id, names) for each in shown]
        text = "\n".join(lines)
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"relationships": [each.to_value() for each in shown]},
        )

    def _line(self, found: Relationship, entity_id: str, names: dict[str, str]) -> str:
        other = found.target if found.source == entity_id else found.source
        name = one_line(names.get(other, other), 100)
        direction = "" if found.source == entity_id else " (to the user)"
        return f"{name}{direction}, {found.interactions}, {one_line(' '.join(found.tags), 200)}".rstrip(", ")


def _may_be_shown(found: Relationship, ctx: ProviderContext) -> bool:
    """What others are to the user was seen somewhere, and is told there only."""
    if found.target == ctx.entity_id:
        return ctx.room_id in found.room_ids
    return found.source == ctx.entity_id


async def _names(ctx: ProviderContext) -> dict[str, str]:
    registered = await Entities(ctx.needed_store(), agent_id=ctx.agent_id).all()
    known = participants(
        ctx.messages,
        agent_id=ctx.agent_id,
        character=ctx.character,
        entity_id=ctx.entity_id,
        registered=(*ctx.entities, *registered),
    )
    return {entity.id: entity.names[0] for entity in known if entity.names}
