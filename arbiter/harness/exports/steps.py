"""Steps: one row for each node run. All other forms are made of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arbiter.harness.canonical import text_of
from arbiter.harness.exports.evidence import Evidence, Rewarding, Run
from arbiter.harness.scores import Score

_NAMED_NUMBERS = [{"name": "string", "value": "double"}]
COLUMNS: Mapping[str, Any] = {
    "run_id": "string",
    "case_id": "string",
    "repeat": "int64",
    "superstep": "int64",
    "branch": "int64",
    "node": "string",
    "instruction": "string",
    "input": "string",
    "output": "string",
    "reward": "double",
    "rewards": _NAMED_NUMBERS,
    "passed": "bool",
    "done": "bool",
    "row_versions": [{"name": "string", "version": "string"}],
    "judge_model": "string",
    "tokens": "int64",
    "policy_violations": ["string"],
    "used_for_control": "bool",
    "item_id": "string",
}
"""The columns of the file: a type, `[type]` for a list, a mapping for a struct. `input` and `output` are JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node run. Scores of the whole run belong to the node runs of its last superstep."""

    run: Run
    superstep: int
    branch: int
    data: Mapping[str, Any]
    scores: tuple[Score, ...]
    rewards: Mapping[str, float]
    """By row, 0.0 to 1.0."""
    passed: bool | None
    done: bool

    @property
    def reward(self) -> float | None:
        """The mean of the rewards; None without any."""
        return fmean(self.rewards.values()) if self.rewards else None


def steps_of(run: Run, rewarding: Rewarding) -> list[Step]:
    """The node runs of a run, superstep by superstep."""
    by_item: dict[str | None, list[Score]] = {}
    for score in run.result.scores:
        by_item.setdefault(score.item_id, []).append(score)
    found: list[Step] = []
    for superstep, branches in enumerate(run.nodes):
        done = superstep == len(run.nodes) - 1
        for branch, data in enumerate(branches):
            scores = list(by_item.get(data["item_id"], ())) if "item_id" in data else []
            if done:
                scores += by_item.get(None, ())
            found.append(
                Step(
                    run=run,
                    superstep=superstep,
                    branch=branch,
                    data=data,
                    scores=tuple(scores),
                    rewards=rewarding.values(scores),
                    passed=rewarding.passed(scores),
                    done=done,
                )
            )
    return found


def row_of(evidence: Evidence, step: Step) -> dict[str, Any]:
    """A node run as a row of `COLUMNS`."""
    result, data = step.run.result, step.data
    models = sorted({score.model for score in step.scores if score.model})
    return {
        "run_id": evidence.run_id,
        "case_id": result.case_id,
        "repeat": result.repeat,
        "superstep": step.superstep,
        "branch": step.branch,
        "node": data.get("node"),
        "instruction": data.get("instruction"),
        "input": plain_json(data.get("input")),
        "output": plain_json(data.get("output")),
        "reward": step.reward,
        "rewards": [{"name": name, "value": value} for name, value in step.rewards.items()],
        "passed": step.passed,
        "done": step.done,
        "row_versions": [{"name": name, "version": evidence.version_of(name)} for name in step.rewards],
        "judge_model": ", ".join(models) or None,
        "tokens": data.get("tokens"),
        "policy_violations": list(data.get("violations", ())),
        "used_for_control": any(score.used_for_control for score in step.scores),
        "item_id": data.get("item_id"),
    }


def plain_json(value: Any) -> str | None:
    """A value as JSON, None as None."""
    return None if value is None else text_of([value])[1:-1]
