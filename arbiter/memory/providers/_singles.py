"""The providers of everything but facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from pydantic import BaseModel

from arbiter.memory._entities import Entities, participants
from arbiter.memory._records import Goal, Relationship, time_in
from arbiter.memory.facts import FactStore
from arbiter.memory.facts._profiles import checked_schemas, lines_of
from arbiter.memory.goals import Goals
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext
from arbiter.memory.reflection._evaluator import Thoughts
from arbiter.memory.reflection._relationships import Relationships
from arbiter.memory.trust import Trust


class TimeProvider(Provider):
    """The date and time in UTC, to the minute, by the cycle's clock. Needs no store."""

    name = "time"
    description = "Now"
    position = 0

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        now = ctx.clock().astimezone(UTC)
        text = now.strftime("%A, %Y-%m-%d %H:%M UTC")
        return self._result(text, now=now.isoformat())


_ORDER: Mapping[str, int] = {"IN_PROGRESS": 0, "DONE": 1, "FAILED": 2}


class GoalsProvider(Provider):
    """At most 20 goals of the room with their steps; those in progress first, then the last ones that ended."""

    name = "goals"
    description = "Goals of this conversation"
    position = 30
    most = 20

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        goals = Goals(ctx.needed_store(), ctx.agent_id)
        found = await goals.all(ctx.room_id, "IN_PROGRESS")
        if len(found) < self.most:
            last = await goals.all(ctx.room_id, limit=self.most)
            found += [goal for goal in last if goal.status != "IN_PROGRESS"]
        found.sort(key=lambda goal: (_ORDER.get(goal.status, len(_ORDER)), goal.name, goal.id))
        shown = found[: self.most]
        text = "\n".join(line for goal in shown for line in goal_lines(goal))
        return self._result(text, goals=[goal.to_value() for goal in shown])


def goal_lines(goal: Goal) -> list[str]:
    """A goal as `- [ ] Plan the trip (IN_PROGRESS)`, and a line for each step."""
    steps = [f"  {_box(each.completed)} {one_line(each.description, 200)}" for each in goal.objectives]
    return [f"{_box(goal.status == 'DONE')} {one_line(goal.name, 200)} ({goal.status})", *steps]


def _box(done: bool) -> str:
    return "- [x]" if done else "- [ ]"


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
        found = await Relationships(store, agent_id=ctx.agent_id).of(ctx.entity_id)
        own = [told for each in found if (told := _told(each, ctx)) is not None]
        own.sort(key=lambda each: (-each.interactions, each.source, each.target))
        shown = own[: self.most]
        others = [each.target if each.source == ctx.entity_id else each.source for each in shown]
        names = await _names(ctx, others) if shown else {}
        text = "\n".join(self._line(each, ctx.entity_id, names) for each in shown)
        return self._result(text, relationships=[_data(each) for each in shown])

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
    registered = await Entities(ctx.needed_store(), ctx.agent_id).get(ids)
    known = participants(
        ctx.messages,
        agent_id=ctx.agent_id,
        character=ctx.character,
        entity_id=ctx.entity_id,
        registered=(*ctx.entities, *registered.values()),
    )
    return {entity.id: entity.names[0] for entity in known if entity.names}


class ReflectionProvider(Provider):
    """The agent's last thoughts about this room, newest first; never thoughts about another room."""

    name = "reflection"
    description = "Earlier thoughts about this conversation"
    position = 40
    most = 3

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        thoughts = Thoughts(ctx.needed_store(), ctx.agent_id, ctx.room_id)
        shown = await thoughts.all(limit=self.most)
        zone = ctx.clock().tzinfo
        days = [time_in(thought.at, zone).date().isoformat() for thought in shown]
        text = "\n".join(f"[{day}] {one_line(each.text)}" for day, each in zip(days, shown, strict=True))
        return self._result(text, thoughts=[thought.to_value() for thought in shown])


class TrustProvider(Provider):
    """The trust in the user of the turn, 0 to 100, and its confidence, 0 to 1 (0 with fewer than three pieces
    of evidence).

    The section is empty without evidence. Other people's trust is never shown.
    """

    name = "trust"
    description = "Trust in the user"
    position = 50

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        profile = await Trust(ctx.needed_store(), ctx.agent_id, ctx.clock).profile(ctx.entity_id)
        if not profile.evidence:
            return ProviderResult()
        text = f"{profile.overall} of 100, confidence {profile.confidence:.2f}"
        return self._result(text, overall=profile.overall, confidence=profile.confidence)


class ProfileProvider(Provider):
    """The fields of the user's profiles, as far as this room may see them; `FactEvaluator(schemas=...)` fills
    them."""

    name = "profile"
    description = "Profile of the user"
    position = 5

    def __init__(self, *schemas: type[BaseModel], name: str = "", **options: Any) -> None:
        super().__init__(name, **options)
        self.schemas = checked_schemas(f"provider {self.name!r}", schemas)

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        facts = FactStore(ctx.needed_store(), agent_id=ctx.agent_id, clock=ctx.clock, rules=ctx.fact_rules)
        profiles = facts.profiles(ctx.entity_id)
        found = [await profiles.read(schema, room_id=ctx.room_id) for schema in self.schemas]
        lines = [
            f"{one_line(name, 100)}: {one_line(value)}"
            for profile in found
            for name, value in lines_of(profile)
        ]
        text = "\n".join(lines)
        data = {
            type(profile).__name__: profile.model_dump(mode="json", exclude_unset=True) for profile in found
        }
        return self._result(text, **data)
