"""Providers of single records: `TimeProvider`, `GoalsProvider`, `ReflectionProvider`, `TrustProvider`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from arbiter.memory._records import Goal, Thought, readable
from arbiter.memory.goals import Goals
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext
from arbiter.memory.stores import namespace
from arbiter.memory.trust import Trust


class TimeProvider(Provider):
    """The date and time in UTC, to the minute, by the cycle's clock. Needs no store."""

    name = "time"
    description = "Now"
    position = 0

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        now = ctx.clock().astimezone(UTC)
        text = now.strftime("%A, %Y-%m-%d %H:%M UTC")
        return ProviderResult(text=text, values={self.name: text}, data={"now": now.isoformat()})


_ORDER: Mapping[str, int] = {"IN_PROGRESS": 0, "DONE": 1, "FAILED": 2}


class GoalsProvider(Provider):
    """The goals of the room with their steps; those in progress first."""

    name = "goals"
    description = "Goals of this conversation"
    position = 30
    most = 20

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        found = await Goals(ctx.needed_store(), ctx.agent_id).all(ctx.room_id)
        found.sort(key=lambda goal: (_ORDER.get(goal.status, len(_ORDER)), goal.name, goal.id))
        shown = found[: self.most]
        text = "\n".join(line for goal in shown for line in lines_of(goal))
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"goals": [goal.to_value() for goal in shown]},
        )


def lines_of(goal: Goal) -> list[str]:
    """A goal as `- [ ] Plan the trip (IN_PROGRESS)`, and a line for each step."""
    steps = [f"  {_box(each.completed)} {one_line(each.description, 200)}" for each in goal.objectives]
    return [f"{_box(goal.status == 'DONE')} {one_line(goal.name, 200)} ({goal.status})", *steps]


def _box(done: bool) -> str:
    return "- [x]" if done else "- [ ]"


class ReflectionProvider(Provider):
    """The agent's last thoughts about this room, newest first; never thoughts about another room."""

    name = "reflection"
    description = "Earlier thoughts about this conversation"
    position = 40
    most = 3

    async def get(self, ctx: ProviderContext) -> ProviderResult:
        # Read a few more: stores sort by the time of writing, and a corrected thought was written later.
        place = namespace(ctx.agent_id, "thoughts", ctx.room_id)
        entries = await ctx.needed_store().alist(place, limit=self.most * 4)
        found = readable(Thought, (entry.value for entry in entries))
        shown = sorted(found, key=lambda thought: thought.at, reverse=True)[: self.most]
        text = "\n".join(f"[{thought.at.date().isoformat()}] {one_line(thought.text)}" for thought in shown)
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"thoughts": [thought.to_value() for thought in shown]},
        )


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
        return ProviderResult(
            text=text,
            values={self.name: text},
            data={"overall": profile.overall, "confidence": profile.confidence},
        )
