"""`GoalsProvider`: the goals of this room."""

from __future__ import annotations

from collections.abc import Mapping

from arbiter.memory._records import Goal
from arbiter.memory.goals import Goals
from arbiter.memory.providers._composing import ProviderResult, one_line
from arbiter.memory.providers._provider import Provider, ProviderContext

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
