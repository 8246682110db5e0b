"""`RelationshipsProvider`: the user's relationships."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arbiter.memory._entities import Entities, participants
from arbiter.memory._records import Relationship
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext
from arbiter.memory.reflection._relationships import Relationships


class RelationshipsProvider(Provider):
    """The user's relationships: name, counted interactions and tags; at most 30, the most interactions first.

    Sightings in a private room, and sensitive tags, are shown in that room only. Relationships towards the
    user are shown only in the rooms where they were seen.
    """

    name = "relationships"
    description = "People whom the user has to do with: name, interactions, tags"
    position = 20
    most = 30

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        store = ctx.needed_store()
        known = Relationships(store, agent_id=ctx.agent_id, clock=ctx.clock)
        found = await known.of(ctx.entity_id)
        own = [told for each in found if (told := _told(each, ctx)) is not None]
        own.sort(key=lambda each: (-each.interactions, each.source, each.target))
        shown = own[: self.most]
        others = [each.target if each.source == ctx.entity_id else each.source for each in shown]
        names = await _names(ctx, others) if shown else {}
        lines = [self._line(each, ctx.entity_id, names) for each in shown]
        text = "\n".join(lines)
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"relationships": [_data(each) for each in shown]},
        )

    def _line(self, found: Relationship, entity_id: str, names: dict[str, str]) -> str:
        other = found.target if found.source == entity_id else found.source
        name = one_line(names.get(other, other), 100)
        direction = "" if found.source == entity_id else " (to the user)"
        return f"{name}{direction}, {found.interactions}, {one_line(' '.join(found.tags), 200)}".rstrip(", ")


def _told(found: Relationship, ctx: ProviderContext) -> Relationship | None:
    """The part of a relationship that the user may see in this room; None if there is none."""
    if ctx.entity_id not in (found.source, found.target):
        return None
    return found.told_in(ctx.room_id, only_there=found.target == ctx.entity_id)


def _data(found: Relationship) -> dict[str, Any]:
    """The relationship without its times, which include those of private rooms."""
    whole = found.to_value()
    return {name: whole[name] for name in ("source", "target", "tags", "metadata")}


async def _names(ctx: ProviderContext, ids: Sequence[str]) -> dict[str, str]:
    registered = await Entities(ctx.needed_store(), agent_id=ctx.agent_id).get(ids)
    known = participants(
        ctx.messages,
        agent_id=ctx.agent_id,
        character=ctx.character,
        entity_id=ctx.entity_id,
        registered=(*ctx.entities, *registered.values()),
    )
    return {entity.id: entity.names[0] for entity in known if entity.names}
