"""`Goals`, the goals of rooms, and `GoalEvaluator`, which updates their progress from the conversation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter.errors import ParameterError
from arbiter.memory._characters import checked_instructions
from arbiter.memory._context import EvalContext
from arbiter.memory._conversation import window
from arbiter.memory._evaluators import (
    CognitiveEvaluator,
    CognitiveOptions,
    EvaluationExample,
    ExampleMessage,
    HandlerOutcome,
)
from arbiter.memory._options import of_kind, text
from arbiter.memory._records import Goal, GoalStatus, Objective, readable
from arbiter.memory.facts._extraction import meant
from arbiter.memory.facts._privacy import MOST_TEXT, UNFIT, has_secret, may_keep
from arbiter.memory.goals._updates import Allowed, GoalAnswer, GoalsAnswer, Reason, asking, moved, progress
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace
from arbiter.memory.stores._portable import joined
from arbiter.models import ChatModel, model_of

MAX_GOALS = 50
"""Goals of a room that a model sees, the first by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Goals after the updates, and the reasons of refusals. `touched` goals were named in an update or changed, and
    were in progress before."""

    changed: Sequence[Goal]
    touched: Sequence[Goal]
    refused: Sequence[Reason]


class Goals:
    """The goals of one agent, by room."""

    def __init__(self, store: MemoryStore, agent_id: str) -> None:
        self.store = store
        self.agent_id = agent_id

    async def create(self, goal: Goal) -> Goal:
        """Store a goal and return the stored one: an existing goal with that id in that room stays unchanged.

        A node that runs again therefore loses no progress. Raises `ParameterError` for a goal that could not
        be updated.
        """
        _check(goal)
        await self.belongs(goal)
        stored = await self.store.aupdate(
            self._namespace(goal.room_id), goal.id, lambda found: goal.to_value() if found is None else found
        )
        return Goal.read(stored) or goal

    async def belongs(self, goal: Goal) -> None:
        """Note where the goals of an entity are, so that they are found without a look at all rooms."""
        place = {"room_id": goal.room_id, "id": goal.id}
        key = joined((goal.room_id, goal.id))
        await self.store.aupdate(self._owned(goal.entity_id), key, lambda known: known or place)

    async def of(self, entity_id: str) -> list[Goal]:
        """The goals for an entity, of all rooms, sorted by room and id."""
        places = [entry.value for entry in await self.store.alist(self._owned(entity_id))]
        found = [await self.get(place["room_id"], place["id"]) for place in places]
        own = [goal for goal in found if goal is not None and goal.entity_id == entity_id]
        return sorted(own, key=lambda goal: (goal.room_id, goal.id))

    async def get(self, room_id: str, goal_id: str) -> Goal | None:
        return Goal.read(await self.store.aget(self._namespace(room_id), goal_id))

    async def all(
        self, room_id: str, status: GoalStatus | None = None, *, limit: int | None = None
    ) -> list[Goal]:
        """The goals of a room, sorted by id: those of one status, or all; at most `limit`, the last written."""
        wanted = None if status is None else {"status": status}
        found = await self.store.alist(self._namespace(room_id), filter=wanted, limit=limit)
        return sorted(readable(Goal, (entry.value for entry in found)), key=lambda goal: goal.id)

    async def update(self, room_id: str, goal_id: str, change: Callable[[Goal], Goal]) -> Goal | None:
        """Change a goal atomically. Returns the goal afterwards; None if there is none. Its id and room
        cannot change."""

        def changed(value: Value | None) -> Value | None:
            goal = Goal.read(value)
            if goal is None:
                return value
            after = replace(change(goal), id=goal.id, room_id=goal.room_id)
            # Keep fields that a newer process may have written.
            return value if after == goal else {**(value or {}), **after.to_value()}

        return Goal.read(await self.store.aupdate(self._namespace(room_id), goal_id, changed))

    async def apply(
        self,
        room_id: str,
        updates: Sequence[GoalAnswer],
        *,
        allow_new_objectives: bool | Allowed = False,
        allow_reopen: bool = False,
    ) -> Applied:
        """Apply what is said to the stored goals as `moved` does, each goal atomically."""
        known = {goal.id for goal in await self.all(room_id, "IN_PROGRESS")}
        said: dict[str, list[GoalAnswer]] = defaultdict(list)
        for update in updates:
            said[meant(update.id, known) or update.id.strip()].append(update)
        known |= (await self.store.aget_many(self._namespace(room_id), said)).keys()
        changed: list[Goal] = []
        touched: list[Goal] = []
        refused: list[Reason] = ["unknown_goal" for id in said.keys() - known for _ in said[id]]

        def apply(goal: Goal) -> Goal:
            after, reasons = moved(
                goal, said[goal.id], allow_new_objectives=allow_new_objectives, allow_reopen=allow_reopen
            )
            refused.extend(reasons)
            if after != goal:
                changed.append(after)
            if goal.status == "IN_PROGRESS" and (said[goal.id] or after != goal):
                touched.append(after)
            return after

        for goal_id in sorted(known):
            await self.update(room_id, goal_id, apply)
        return Applied(changed=changed, touched=touched, refused=refused)

    def _namespace(self, room_id: str) -> Namespace:
        return namespace(self.agent_id, "goals", room_id)

    def _owned(self, entity_id: str) -> Namespace:
        return namespace(self.agent_id, "goals_of", entity_id)


def _check(goal: Goal) -> None:
    owner = f"goal {goal.id!r:.80}"
    for name in ("id", "room_id", "name"):
        text(name, getattr(goal, name), owner)
    if goal.id != goal.id.strip():
        raise ParameterError(owner, "id", "expected a text without blanks around it.")
    if goal.status not in ("IN_PROGRESS", "DONE", "FAILED"):
        raise ParameterError(
            owner, "status", f"expected IN_PROGRESS, DONE or FAILED, got {goal.status!r:.80}."
        )
    for objective in goal.objectives:
        of_kind("objectives", objective, Objective, owner=owner)
        of_kind("objectives", objective.description, str, owner=owner)
    if sum(map(len, words := words_of(goal))) > MOST_TEXT:
        problem = f"expected a name and objectives of at most {MOST_TEXT:,} characters together."
        raise ParameterError(owner, "name", problem)
    if any(map(has_secret, words)):
        raise ParameterError(owner, "name", f"it, or an objective, holds {UNFIT}.")
    names = [objective.id or objective.description.strip() for objective in goal.objectives]
    if not all(names) or len({*names}) < len(names):
        raise ParameterError(
            owner, "objectives", "expected a description, or an id, of its own for each, to tell them apart."
        )


def words_of(goal: Goal) -> list[str]:
    return [goal.name, *(objective.description for objective in goal.objectives)]


class GoalEvaluator(CognitiveEvaluator):
    """Finds reached objectives in the conversation, and updates the goals of the room.

    It makes one model call for each turn with new messages, as long as a goal of the room is in progress.
    After an unusable answer it waits; see `Cursors.fail`. The score is the `progress` of the goals that the
    answer names, or of all goals in progress if it names none or is unusable. `model` replaces the cycle's.
    Prompts never include messages off the record; they include known facts about the user, so register this
    evaluator after those that find facts. `instructions` are added to the prompt.
    """

    description = "Updates the goals of the conversation, where the newest messages show progress or failure."
    similes = ("UPDATE_GOALS", "EDIT_GOAL", "UPDATE_GOAL_STATUS", "UPDATE_OBJECTIVES")
    needs_store = True
    needs_model = True
    examples = (
        EvaluationExample(
            "The goal is to book a trip; the objectives are to choose a city and to book a flight.",
            (
                ExampleMessage("{{user1}}", "Lisbon it is. I have just booked the flight."),
                ExampleMessage("{{user2}}", "Great, then all that is left is to pack."),
            ),
            "Both objectives are completed, so the goal is DONE.",
        ),
    )

    def __init__(
        self,
        name: str = "UPDATE_GOAL",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        allow_new_objectives: bool = False,
        allow_reopen: bool = False,
        model: ChatModel | str | None = None,
        instructions: str | None = None,
        **options: Unpack[CognitiveOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, **options)
        self.model = None if model is None else model_of(model)
        self.instructions = checked_instructions(name, instructions)
        self.allow_new_objectives = allow_new_objectives
        self.allow_reopen = allow_reopen

    async def validate(self, ctx: EvalContext) -> bool:
        goals = Goals(ctx.needed_store(), ctx.agent_id)
        if not await goals.all(ctx.room_id, "IN_PROGRESS"):
            return False
        cursors = ctx.cursors(self.name)
        return bool(await cursors.unprocessed(ctx.messages, limit=1)) and not await cursors.waits()

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        goals = Goals(ctx.needed_store(), ctx.agent_id)
        looked_at = (await goals.all(ctx.room_id, "IN_PROGRESS"))[:MAX_GOALS]
        messages = window(ctx.messages, ctx.conversation_length)
        if not looked_at or not messages:
            return HandlerOutcome(progress(looked_at), data={"goals": len(looked_at)})
        cursors = ctx.cursors(self.name)
        shown = await ctx.shown(messages)
        if not shown:
            await cursors.advance(messages)
            return HandlerOutcome(progress(looked_at), data={"goals": len(looked_at), "llm_calls": 0})
        async with cursors.stopped_as_failed(messages):
            answer = await ctx.ask(
                GoalsAnswer,
                await asking(ctx, looked_at, shown, instructions=self.instructions),
                model=self.model,
                item_field="goals",
            )
        data: dict[str, Any] = {
            "status": answer.status,
            "goals": len(looked_at),
            "llm_calls": answer.calls,
            "dropped_invalid": answer.dropped_items,
        }
        if answer.value is None or (answer.dropped_items and not answer.value.goals):
            skipped = await cursors.fail(messages, raised=answer.raised)
            problem = answer.error or "no part of it tells of a goal"
            data |= {"status": "failed", "window_skipped": skipped, "problem": problem}
            return HandlerOutcome(progress(looked_at), False, "no usable answer", data)
        applied = await goals.apply(
            ctx.room_id,
            answer.value.goals,
            allow_new_objectives=partial(may_keep, rules=ctx.fact_rules)
            if self.allow_new_objectives
            else False,
            allow_reopen=self.allow_reopen,
        )
        await cursors.advance(messages)
        data["changed"] = [goal.id for goal in applied.changed]
        data["refused"] = dict(Counter(applied.refused))
        return HandlerOutcome(progress(applied.touched or looked_at), data=data)
