"""Results of experiments: scores by arm, metric and environment, exposure, and the comparisons of arms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

from arbiter._values.files import ensure_ending, write_whole, writing
from arbiter._values.kinds import is_mapping
from arbiter.errors import ConfigurationError
from arbiter.experiments.arms import Exposure
from arbiter.experiments.comparing import MetricComparison, compared
from arbiter.experiments.plans import ExperimentPlan
from arbiter.experiments.scenarios import is_of_agents
from arbiter.harness.calibration import Calibration
from arbiter.harness.journal import reading
from arbiter.harness.reports.report import Report, load_report
from arbiter.harness.results import CaseResult
from arbiter.harness.usage import Spent

ENDINGS = (".json", ".md", ".txt", ".svg")
"""Those of the files that `ExperimentResult.write` writes."""
CONVERSATION = "conversation"
METADATA = "experiment"
"""The key in the metadata of each case under which the experiment describes itself."""
Scores = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """The findings of an experiment.

    `environments` has the scores by arm and metric: one list for each environment, with those of its agents or
    that of the environment itself, empty if there is none. `dropped` counts the scores that are missing, `failed`
    the environments whose conversation did not end; `reasons` has the first reason for each of these, by arm and
    metric, and by `CONVERSATION`. `exposure` says how much of its treatment each arm got,
    `treats` which kinds of corrections it should have got. `models` names the models: agents, judge, corrector.
    `uncalibrated` has the metrics whose judge is not calibrated with labels of people, each with the reason, and
    `calibrations` the calibrations of the others.
    `plan_hash` is that of a plan to which the run was held, else None. `stopped` is the reason why the run ended
    early, else None; `reached` names the limit of a budget.
    """

    run_id: str
    plan: ExperimentPlan
    plan_hash: str | None
    environments: Scores
    dropped: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, int]
    reasons: Mapping[str, Mapping[str, str]]
    exposure: Mapping[str, Exposure]
    treats: Mapping[str, Sequence[str]]
    models: Mapping[str, str]
    uncalibrated: Mapping[str, str]
    calibrations: Mapping[str, Calibration]
    warnings: Sequence[str]
    stopped: str | None
    reached: str
    usage: Mapping[str, Spent]
    unknown_calls: int

    @property
    def scores(self) -> Mapping[str, Mapping[str, list[float]]]:
        """All scores by arm and metric, environment after environment."""
        return {
            arm: {
                metric: [score for scores in found for score in scores] for metric, found in metrics.items()
            }
            for arm, metrics in self.environments.items()
        }

    def not_exercised(self, arm: str) -> str:
        """The reason why the treatment of an arm did not take effect; "" if it did, or if there is none."""
        found = self.exposure[arm]
        for kind, count, why in (
            ("gate", found.checks, "its gate judged no draft"),
            ("interventions", found.nudges, "none of its interventions fired"),
            ("repetition", found.repetitions, "no agent repeated itself enough to get phrases to avoid"),
        ):
            if kind in self.treats[arm] and not count:
                return why
        return ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The reasons why the numbers are no result: "treatment_not_exercised", "synthetic", "incomplete" if the run
        ended early, "not_scored" if an arm has no score of a metric."""
        found = {
            "treatment_not_exercised": any(self.not_exercised(arm) for arm in self.exposure),
            "synthetic": self.plan.mode == "template",
            "incomplete": self.stopped is not None,
            "not_scored": self.plan.mode != "template"
            and not all(scores for metrics in self.scores.values() for scores in metrics.values()),
        }
        return tuple(name for name, holds in found.items() if holds)

    @cached_property
    def comparisons(self) -> tuple[MetricComparison, ...]:
        """The metrics of each pair of arms, in the order of the arms."""
        found: list[MetricComparison] = []
        for first, second in combinations(self.environments, 2):
            both = self.environments[first], self.environments[second]
            found += compared((first, second), *both, untested=self._untested(first, second))
        return tuple(found)

    def _untested(self, *arms: str) -> str:
        if self.plan.mode == "template":
            return "synthetic: the texts are templates, and nothing was judged"
        if self.stopped is not None:
            return f"incomplete: {self.stopped}{f' ({self.reached})' if self.reached else ''}"
        for arm in arms:
            if why := self.not_exercised(arm):
                return f"treatment_not_exercised: arm {arm!r}: {why}"
        return ""

    def table(self) -> str:
        """The result for a terminal."""
        text: str = import_module(f"{__package__}.table").text_of(self)
        return text

    def picture(self) -> str:
        """A forest plot of the effects, as SVG."""
        partly = "partly " * bool(self.calibrations)
        note = f"judge {partly}uncalibrated" if self.uncalibrated else ""
        text: str = import_module(f"{__package__}.picture").forest(self.comparisons, note=note)
        return text

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-able data."""
        return {
            "run_id": self.run_id,
            "plan": self.plan.to_dict(),
            "plan_hash": self.plan_hash,
            "models": dict(self.models),
            "uncalibrated": dict(self.uncalibrated),
            "calibrations": {metric: found.to_dict() for metric, found in self.calibrations.items()},
            "warnings": list(self.warnings),
            "marks": list(self.marks),
            "exposure": {arm: found.to_dict() for arm, found in self.exposure.items()},
            "environments": {
                arm: {metric: [list(scores) for scores in found] for metric, found in metrics.items()}
                for arm, metrics in self.environments.items()
            },
            "dropped": {arm: dict(found) for arm, found in self.dropped.items()},
            "failed": dict(self.failed),
            "reasons": {arm: dict(found) for arm, found in self.reasons.items()},
            "comparisons": [each.to_dict() for each in self.comparisons],
            "usage": {purse: spent.to_dict() for purse, spent in self.usage.items()},
            "unknown_calls": self.unknown_calls,
        }

    def write(self, path: str | Path) -> Path:
        """Write the result: numbers as .json, the table as .md or .txt, a forest plot of the effects as .svg."""
        file = Path(path)
        ensure_ending(file, ENDINGS)
        match file.suffix:
            case ".json":
                text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            case ".txt":
                text = self.table() + "\n"
            case ".md":
                text = f"```text\n{self.table()}\n```\n"
            case _:
                text = self.picture()
        with writing(path):
            write_whole(file, text)
        return file

    @classmethod
    def of(cls, report: Report) -> ExperimentResult:
        """The result of a report of the harness whose cases are environments of an experiment."""
        about: Any = report.cases[0].metadata.get(METADATA) if report.cases else None
        if not is_mapping(about) or not is_mapping(about.get("plan")):
            raise ConfigurationError(f"the run {report.run_id} does not belong to an experiment.")
        plan = ExperimentPlan.from_dict(about["plan"])
        by_case = {result.case_id: result for result in report.results}
        arms = {
            arm: [by_case.get(case.id) for case in report.cases if case.input["arm"] == arm]
            for arm in plan.arms
        }
        environments = {
            arm: {metric: [_scores_of(result, metric) for result in results] for metric in plan.metrics}
            for arm, results in arms.items()
        }
        expected = {metric: plan.agents if is_of_agents(metric) else plan.pairs for metric in plan.metrics}
        return cls(
            run_id=report.run_id,
            plan=plan,
            plan_hash=about["plan_hash"],
            environments=environments,
            dropped={
                arm: {metric: expected[metric] - sum(map(len, found)) for metric, found in metrics.items()}
                for arm, metrics in environments.items()
            },
            failed={
                arm: sum(result is not None and result.status != "completed" for result in results)
                for arm, results in arms.items()
            },
            reasons={arm: _reasons_of(results, plan.metrics) for arm, results in arms.items()},
            exposure={arm: sum(map(_exposure_of, results), Exposure()) for arm, results in arms.items()},
            treats=about["treats"],
            models=about["models"],
            uncalibrated=report.uncalibrated,
            calibrations=report.calibrations,
            warnings=about["warnings"],
            stopped=report.stopped,
            reached=report.reached,
            usage=report.usage,
            unknown_calls=report.unknown_calls,
        )


def load_result(folder: Path) -> ExperimentResult:
    """The result of a run from its folder. Raises `ConfigurationError` if it does not belong to an experiment."""
    with reading(folder):
        return ExperimentResult.of(load_report(folder))


def _scores_of(result: CaseResult | None, metric: str) -> list[float]:
    """The scores of an environment, in the order of its agents."""
    if result is None:
        return []
    return [
        score.value
        for score in result.scores
        if score.outcome == "scored"
        and score.value is not None
        and (score.name == metric or score.name.startswith(f"{metric}."))
    ]


def _reasons_of(results: Sequence[CaseResult | None], metrics: Sequence[str]) -> dict[str, str]:
    """The first reason why a conversation did not end, and why a score of each metric is missing."""
    found: dict[str, str] = {}
    for result in filter(None, results):
        if result.status != "completed":
            found.setdefault(CONVERSATION, result.error or result.status)
        for score in result.scores:
            metric = score.name.partition(".")[0]
            if score.outcome != "scored" and metric in metrics:
                found.setdefault(metric, score.reason or score.outcome)
    return found


def _exposure_of(result: CaseResult | None) -> Exposure:
    if result is None or result.status != "completed":
        return Exposure()
    return Exposure.from_dict(result.output["exposure"])
