"""Progress of goals: decides which updates of a model are applied. Pure functions, without a store or a
model.

Only the status of a goal and the completion of its objectives can change; its owner, room and texts cannot.
Repeated updates count once, in any order, and a second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from arbiter.memory._records import Goal, GoalStatus, Objective

MAX_OBJECTIVES = 50
"""A model cannot add objectives to a goal that has this many."""
MAX_DESCRIPTION = 300
"""Longest description, in characters, of an objective that a model adds."""

Reason = Literal[
    "unknown_goal",
    "final",
    "unknown_status",
    "contradictory_status",
    "open_objectives",
    "all_completed",
    "unknown_objective",
    "reopening",
]
"""Why an update was refused: no goal has that id; the goal is DONE or FAILED; there is no such status; DONE and
FAILED at once; DONE while objectives are open; FAILED although all are completed; no objective has that id or
description; a completed objective would be open again."""


Allowed = Callable[[str], bool]
"""Returns True if a model may add an objective with that description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveUpdate:
    """An update of an objective: the one with that `id`, else the one with exactly that description."""

    completed: bool
    id: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalUpdate:
    """An update of a goal. `status` is any text; objectives that are not named stay unchanged."""

    id: str
    status: str | None = None
    objectives: Sequence[ObjectiveUpdate] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused part of an update. `goal_id` is None if no goal has the update's id."""

    goal_id: str | None
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Goals after the updates. `touched` were named in an update or changed, and were in progress before."""

    changed: tuple[Goal, ...] = ()
    touched: tuple[Goal, ...] = ()
    trace: tuple[Refusal, ...] = ()


def apply_updates(
    goals: Sequence[Goal],
    updates: Sequence[GoalUpdate],
    *,
    allow_new_objectives: bool | Allowed = False,
    allow_reopen: bool = False,
) -> Applied:
    """Apply the permitted part of `updates`, and list the rest as refusals.

    A goal is DONE when all of its objectives are completed, whatever the updates say; DONE with open
    objectives is refused. A goal without objectives is DONE if an update says so. FAILED is accepted unless
    all objectives are completed. DONE and FAILED goals never change. An objective is completed if any update
    says so; with `allow_reopen` it is open again if all updates that name it say so. With
    `allow_new_objectives`, unknown objectives are added; if it is a function, those that it accepts.
    """
    known = {goal.id for goal in goals}
    trace = [
        Refusal(goal_id=None, reason="unknown_goal") for update in updates if update.id.strip() not in known
    ]
    changed: list[Goal] = []
    touched: list[Goal] = []
    for goal in goals:
        said = [update for update in updates if update.id.strip() == goal.id]
        if goal.status != "IN_PROGRESS":
            trace += [Refusal(goal_id=goal.id, reason="final")] if said else []
            continue
        moved, reasons = _moved(goal, said, allow_new_objectives, allow_reopen)
        trace += [Refusal(goal_id=goal.id, reason=reason) for reason in reasons]
        if moved != goal:
            changed.append(moved)
        if said or moved != goal:
            touched.append(moved)
    return Applied(changed=tuple(changed), touched=tuple(touched), trace=tuple(trace))


def progress(goals: Iterable[Goal]) -> float:
    """Completed objectives of these goals divided by all of them, 0.0 to 1.0.

    A goal without objectives counts as one objective, completed if the goal is DONE. No goals give 1.0:
    nothing is left to do.
    """
    completed = total = 0
    for goal in goals:
        done = [objective.completed for objective in goal.objectives] or [goal.status == "DONE"]
        completed += sum(done)
        total += len(done)
    return completed / total if total else 1.0


def _moved(
    goal: Goal, said: Sequence[GoalUpdate], allow_new: bool | Allowed, allow_reopen: bool
) -> tuple[Goal, list[Reason]]:
    named = [objective for update in said for objective in update.objectives]
    objectives, reasons = _objectives(goal.objectives, named, allow_new, allow_reopen)
    status, refused = _status(goal, objectives, [u.status for u in said if u.status is not None])
    if objectives == goal.objectives and status == goal.status:
        return goal, reasons + refused
    return replace(goal, status=status, objectives=objectives), reasons + refused


def _objectives(
    objectives: tuple[Objective, ...],
    named: Sequence[ObjectiveUpdate],
    allow_new: bool | Allowed,
    allow_reopen: bool,
) -> tuple[tuple[Objective, ...], list[Reason]]:
    reasons: list[Reason] = []
    said: dict[int, bool] = {}
    new: dict[str, bool] = {}
    for update in named:
        places = _places(objectives, update)
        for place in places:
            said[place] = said.get(place, False) or update.completed
        if places:
            continue
        description = update.description.strip()
        if 0 < len(description) <= MAX_DESCRIPTION and (
            allow_new if isinstance(allow_new, bool) else allow_new(description)
        ):
            new[description] = new.get(description, False) or update.completed
        else:
            reasons.append("unknown_objective")
    moved: list[Objective] = []
    for place, objective in enumerate(objectives):
        completed = said.get(place, objective.completed)
        if objective.completed and not completed and not allow_reopen:
            reasons.append("reopening")
            completed = True
        moved.append(
            objective if completed == objective.completed else replace(objective, completed=completed)
        )
    for description, completed in new.items():
        if len(moved) < MAX_OBJECTIVES:
            moved.append(Objective(description=description, completed=completed))
        else:
            reasons.append("unknown_objective")
    return tuple(moved), reasons


def _places(objectives: Sequence[Objective], update: ObjectiveUpdate) -> list[int]:
    """The positions of the objective; several if its text is not unique."""
    id = (update.id or "").strip()
    found = [n for n, objective in enumerate(objectives) if id and objective.id == id]
    if found:
        return found
    description = update.description.strip()
    return [n for n, o in enumerate(objectives) if description and o.description.strip() == description]


_STATUSES: dict[str, GoalStatus] = {"IN_PROGRESS": "IN_PROGRESS", "DONE": "DONE", "FAILED": "FAILED"}


def _status(
    goal: Goal, objectives: Sequence[Objective], said: Sequence[str]
) -> tuple[GoalStatus, list[Reason]]:
    reasons: list[Reason] = []
    wanted: set[GoalStatus] = set()
    for text in said:
        status = _STATUSES.get("_".join(text.upper().replace("-", " ").replace("_", " ").split()))
        if status is None:
            reasons.append("unknown_status")
        else:
            wanted.add(status)
    wanted.discard("IN_PROGRESS")  # the goal is in progress anyway
    if objectives and all(objective.completed for objective in objectives):
        if "FAILED" in wanted:
            reasons.append("all_completed")
        return "DONE", reasons
    if len(wanted) > 1:
        return goal.status, [*reasons, "contradictory_status"]
    if "DONE" in wanted and objectives:
        return goal.status, [*reasons, "open_objectives"]
    return (wanted.pop() if wanted else goal.status), reasons
