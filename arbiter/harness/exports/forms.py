"""The forms that trainers read, each with its columns and its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from arbiter.errors import ConfigurationError
from arbiter.harness.canonical import text_of
from arbiter.harness.cases import Case
from arbiter.harness.exports.evidence import Evidence, Rewarding, Run
from arbiter.harness.exports.messages import completion_of, prompt_of
from arbiter.harness.exports.steps import COLUMNS, Step, row_of, steps_of
from arbiter.verdicts import is_numeric

Part = Literal["train", "test"]
MESSAGES = "messages"
"""The type of a column of messages."""
_CLOSE = 1e-9
_MARGIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of an export.

    `rows` are the scores that are rewards; none means all. `include_control` counts also those that steered the
    run. `margin` (above 0, at most 1) is the least difference of a pair as a share of the scale; None is 0.2.
    `split` (between 0 and 1) is the share of cases, or of clusters of cases, that go into train.*; the others go into
    test.*. `corrections` makes pairs of the drafts that correction gates sent back. `per_node` makes a row of
    each node run that was judged. `suite` and `allow` are for "trl-grpo": the suite's file, by default the one
    in suites/ with the name of the run's suite, and the prefixes under which it may name functions.
    """

    rows: Sequence[str] = ()
    include_control: bool = False
    margin: float | None = None
    split: float | None = None
    corrections: bool = False
    per_node: bool = False
    suite: Path | None = None
    allow: Sequence[str] = ()

    @property
    def rewarding(self) -> Rewarding:
        return Rewarding(rows=self.rows, include_control=self.include_control)

    def check(self, name: str) -> None:
        """Raise `ConfigurationError` for a value out of range, or an option that the form of that name has not."""
        form = FORMS[name]
        if not hasattr(self.rows, "__iter__"):
            raise ConfigurationError(
                f"rows is {self.rows!r:.80}; expected names of scores, such as ['kind']."
            )
        if self.margin is not None and not (is_numeric(self.margin) and 0 < self.margin <= 1):
            raise ConfigurationError(f"margin is {self.margin!r}; expected a number above 0 and at most 1.")
        if self.split is not None and not (is_numeric(self.split) and 0 < self.split < 1):
            raise ConfigurationError(f"split is {self.split!r}; expected a number between 0 and 1.")
        if self.corrections and self.margin is not None:
            raise ConfigurationError("margin is for pairs of repeats; pairs of corrections have none.")
        given = {
            "margin": self.margin is not None,
            "corrections": self.corrections,
            "per_node": self.per_node,
        }
        for option, is_given in given.items():
            if is_given and option not in form.options:
                others = ", ".join(each for each in FORMS if option in FORMS[each].options)
                raise ConfigurationError(f"{option} has no effect on {name!r}; it is for {others}.")
        if (self.suite is not None or self.allow) and not form.has_reward:
            raise ConfigurationError(f"suite and allow have no effect on {name!r}; they are for trl-grpo.")


def part_of(case: Case, split: float | None) -> Part:
    """The part that a case belongs to, with all others of its cluster. It depends on nothing but their name."""
    if split is None:
        return "train"
    name = case.id if case.cluster is None else f"cluster {case.cluster}"
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return "train" if place < split else "test"


Rows = Iterator[tuple[Case, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class File:
    """One file of a form: its name, "" for the only one, its columns, and its rows with their cases."""

    name: str
    columns: Mapping[str, Any]
    rows: Callable[[Evidence, ExportOptions], Rows]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of export. `lines` forms are always JSON lines. `options` are those `ExportOptions` of some
    forms that this one has."""

    files: Sequence[File]
    options: frozenset[str] = frozenset()
    lines: bool = False
    has_reward: bool = False


def _steps(evidence: Evidence, options: ExportOptions) -> Rows:
    evidence.need_nodes()
    for run in evidence.runs:
        for step in steps_of(run, options.rewarding):
            yield run.case, row_of(evidence, step)


# Cases --------------------------------------------------------------------------------------------


def _truth(case: Case) -> str | None:
    return None if case.expected is None else text_of(case.expected)


def _prompts(evidence: Evidence, options: ExportOptions) -> Rows:
    for case in evidence.cases:
        yield case, {"prompt": prompt_of(case.input), "ground_truth": _truth(case), "case_id": case.id}


def _labelled(evidence: Evidence, options: ExportOptions) -> Rows:
    for case in evidence.cases:
        yield case, {"prompt": prompt_of(case.input), "label": _truth(case)}


def _verl(evidence: Evidence, options: ExportOptions) -> Rows:
    by_case: dict[str, list[Run]] = {}
    for run in evidence.runs:
        by_case.setdefault(run.case.id, []).append(run)
    evidence.need_nodes()
    for index, case in enumerate(evidence.cases):
        rewards = [
            {
                "repeat": run.result.repeat,
                "superstep": step.superstep,
                "node": step.data.get("node"),
                "reward": step.reward,
            }
            for run in by_case.get(case.id, ())
            for step in steps_of(run, options.rewarding)
            if step.reward is not None
        ]
        row = {
            "data_source": evidence.suite,
            "prompt": prompt_of(case.input),
            "ability": case.tags[0] if case.tags else "agent",
            "reward_model": {"style": "rule", "ground_truth": _truth(case)},
            "extra_info": {
                "index": index,
                "split": part_of(case, options.split),
                "node_rewards": rewards,
            },
        }
        yield case, row


# Preferences --------------------------------------------------------------------------------------


def _pairs(evidence: Evidence, options: ExportOptions) -> Rows:
    return _corrected(evidence) if options.corrections else _differing(evidence, options)


def _preferences(evidence: Evidence, options: ExportOptions) -> Rows:
    for case, row in _pairs(evidence, options):
        yield case, {name: value for name, value in row.items() if name != "margin"}


def _pair(given: Any, better: Any, worse: Any, margin: float | None) -> dict[str, Any]:
    chosen, rejected = completion_of(better), completion_of(worse)
    return {"prompt": prompt_of(given), "chosen": chosen, "rejected": rejected, "margin": margin}


def _differing(evidence: Evidence, options: ExportOptions) -> Rows:
    """Pairs of repeats of one case, compared on the rows that both have."""
    by_case: dict[str, list[tuple[Run, Mapping[str, float]]]] = {}
    for run in evidence.runs:
        if run.result.status == "completed" and (rewards := options.rewarding.values(run.result.scores)):
            by_case.setdefault(run.case.id, []).append((run, rewards))
    count, least = 0, _MARGIN if options.margin is None else options.margin
    for case in evidence.cases:
        for (one, ours), (other, theirs) in combinations(by_case.get(case.id, ()), 2):
            common = ours.keys() & theirs.keys()
            if not common or one.result.output == other.result.output:
                continue
            difference = fmean(ours[row] - theirs[row] for row in common)
            if abs(difference) < least - _CLOSE:
                continue
            better, worse = (one, other) if difference > 0 else (other, one)
            count += 1
            margin = round(abs(difference), 6)
            yield case, _pair(case.input, better.result.output, worse.result.output, margin)
    if not count:
        twice = sum(len(runs) > 1 for runs in by_case.values())
        raise ConfigurationError(
            f"the run {evidence.run_id} has no two repeats of one case whose rewards differ by {least:g}: "
            f"{twice} of {len(evidence.cases)} cases have two scored repeats. Run it with --repeats 4, lower --margin, "
            "or take the drafts of correction gates with --corrections."
        )


def _corrected(evidence: Evidence) -> Rows:
    """Pairs of a node's first draft and the output that a correction gate accepted instead."""
    evidence.need_nodes()
    count = 0
    for run in evidence.runs:
        for data in (each for branches in run.nodes for each in branches):
            if "original" not in data or "output" not in data:
                continue
            count += 1
            yield run.case, _pair(data.get("input"), data["output"], data["original"], None)
    if not count:
        raise ConfigurationError(
            f"the run {evidence.run_id} has no draft that a correction gate sent back before it accepted another."
        )


# Node runs ----------------------------------------------------------------------------------------


def _judged(evidence: Evidence, options: ExportOptions) -> Rows:
    evidence.need_nodes()
    count = 0
    for run in evidence.runs:
        for step in steps_of(run, options.rewarding):
            if step.passed is None or "output" not in step.data:
                continue
            count += 1
            row = {
                "prompt": prompt_of(step.data.get("input")),
                "completion": completion_of(step.data["output"]),
                "label": step.passed,
            }
            yield run.case, row
    if not count:
        raise ConfigurationError(
            f"the run {evidence.run_id} has no node run that passed or failed. Add an evaluator or scorer that "
            "passes or fails, or an `expect` to its cases."
        )


def _stepwise(evidence: Evidence, options: ExportOptions) -> Rows:
    evidence.need_nodes()
    chains = [chain for run in evidence.runs for chain in _chains(run, options)]
    if not any(step.reward is not None for chain in chains for step in chain):
        raise ConfigurationError(
            f"the run {evidence.run_id} has no scored node run, so no step has a reward."
        )
    for chain in chains:
        if all(step.reward is None for step in chain):
            continue
        run = chain[0].run
        given = chain[0].data.get("input") if options.per_node else run.case.input
        row = {
            "prompt": prompt_of(given),
            "completions": [completion_of(step.data.get("output"))[-1]["content"] for step in chain],
            "labels": [step.passed for step in chain],
            "step_rewards": [step.reward for step in chain],
        }
        yield run.case, row


def _chains(run: Run, options: ExportOptions) -> list[list[Step]]:
    steps = steps_of(run, options.rewarding)
    if options.per_node:
        return [[step] for step in steps]
    for branches in run.nodes:
        if len(branches) > 1:
            names = ", ".join(str(each.get("node")) for each in branches)
            raise ConfigurationError(
                f"{run.where} ran {names} in one superstep, which have no order, so its steps are not a chain. "
                "Use --per-node for a row of each node run that was judged."
            )
    return [steps]


_GROUPED = {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES}
_PAIRED = {**_GROUPED, "margin": "double"}
_PAIRING = frozenset({"margin", "corrections"})
_VERL = {
    "data_source": "string",
    "prompt": MESSAGES,
    "ability": "string",
    "reward_model": {"style": "string", "ground_truth": "string"},
    "extra_info": {
        "index": "int64",
        "split": "string",
        "node_rewards": [{"repeat": "int64", "superstep": "int64", "node": "string", "reward": "double"}],
    },
}
_STEPWISE = {
    "prompt": MESSAGES,
    "completions": ["string"],
    "labels": ["bool"],
    "step_rewards": ["double"],
}

FORMS: Mapping[str, Form] = {
    "steps": Form(files=[File("", COLUMNS, _steps)]),
    "trl-grpo": Form(
        files=[File("", {"prompt": MESSAGES, "ground_truth": "string", "case_id": "string"}, _prompts)],
        has_reward=True,
    ),
    "trl-dpo": Form(files=[File("", _PAIRED, _pairs)], options=_PAIRING),
    "trl-reward": Form(files=[File("", _PAIRED, _pairs)], options=_PAIRING),
    "trl-kto": Form(files=[File("", {"prompt": MESSAGES, "completion": MESSAGES, "label": "bool"}, _judged)]),
    "stepwise": Form(files=[File("", _STEPWISE, _stepwise)], options=frozenset({"per_node"})),
    "verl": Form(files=[File("", _VERL, _verl)]),
    "openrlhf": Form(
        files=[
            File("prompts", {"prompt": MESSAGES, "label": "string"}, _labelled),
            File("preferences", _GROUPED, _preferences, optional=True),
        ],
        options=_PAIRING,
        lines=True,
    ),
}
"""The forms by name."""
