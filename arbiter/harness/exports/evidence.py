"""The evidence of a run: its cases, results and node runs, and the scores that may be rewards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.cases import Case
from arbiter.harness.gate import covers
from arbiter.harness.identity import of_row
from arbiter.harness.journal import Written, node_runs_in
from arbiter.harness.measures import Measure
from arbiter.harness.results import CaseResult
from arbiter.harness.scores import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarding:
    """The scores that are rewards.

    `rows` are their names; none means all. Scores that steered the run count only with `include_control`.
    """

    rows: Sequence[str] = ()
    include_control: bool = False

    def values(self, scores: Iterable[Score]) -> dict[str, float]:
        """The rewards by row, 0.0 to 1.0: the mean of each row's scores, on the share of its scale."""
        found: dict[str, list[float]] = {}
        for score in scores:
            low, high = score.scale
            is_bounded = math.isfinite(low) and math.isfinite(high)
            if score.value is not None and is_bounded and self._takes(score):
                found.setdefault(score.name, []).append((score.value - low) / (high - low))
        return {name: fmean(values) for name, values in found.items()}

    def passed(self, scores: Iterable[Score]) -> bool | None:
        """True if all assertions among the rewards hold; None if there are none."""
        held = [score.passed for score in scores if score.passed is not None and self._takes(score)]
        return all(held) if held else None

    def _takes(self, score: Score) -> bool:
        if score.outcome != "scored" or (score.used_for_control and not self.include_control):
            return False
        return not self.rows or any(covers(row, score.name) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One case × repeat: its case, its result, and its node runs by superstep.

    A function has one node run, which is the whole run.
    """

    case: Case
    result: CaseResult
    nodes: Sequence[Sequence[Mapping[str, Any]]]

    @property
    def where(self) -> str:
        return f"case {self.case.id!r} (repeat {self.result.repeat + 1})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The cases and results of a run. `runs` stand in the order of the suite, then by repeat."""

    run_id: str
    suite: str
    cases: Sequence[Case]
    runs: Sequence[Run]
    measures: Sequence[Measure]
    without_nodes: Sequence[Run]
    """Runs of a graph whose node runs were not recorded, because answers were replayed."""

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """The evidence in the folder of a run. Raises `ConfigurationError` if the run has no results."""
        written = Written.read(folder)
        cases = {case.id: case for case in (Case(**each) for each in written.head["cases"])}
        measures = [Measure.of(each) for each in written.head["measures"]]
        nodes = node_runs_in(folder)
        runs = [
            Run(
                case=(case := cases[result.case_id]),
                result=result,
                nodes=nodes.get((result.case_id, result.repeat)) or _whole(case, result),
            )
            for result in written.results()
        ]
        if not runs:
            raise ConfigurationError(f"the run {folder.name} has no results, so there is nothing to export.")
        return cls(
            run_id=str(written.head["run_id"]),
            suite=str(written.head["suite"]),
            cases=[*cases.values()],
            runs=runs,
            measures=measures,
            without_nodes=[
                run for run in runs if run.result.trajectory and (run.case.id, run.result.repeat) not in nodes
            ],
        )

    def check_rows(self, rows: Sequence[str]) -> None:
        """Raise `ConfigurationError` for a row that the run has not."""
        known = sorted({score.name for run in self.runs for score in run.result.scores})
        parents = {name.rpartition(".")[0] for name in known} - {""}
        for row in rows:
            if row not in known and row not in parents:
                raise ConfigurationError(
                    f"the run {self.run_id} has no row {row!r}. Rows: {', '.join(known) or 'none'}."
                    f"{nearest(row, known)}"
                )

    def need_nodes(self) -> None:
        """Raise `ConfigurationError` if node runs of a graph are missing."""
        if self.without_nodes:
            raise ConfigurationError(
                f"the run {self.run_id} has no node runs for {len(self.without_nodes)} of {len(self.runs)} answers, "
                f"such as {self.without_nodes[0].where}: a replay of recordings runs no nodes. Export a live run."
            )

    def version_of(self, row: str) -> str:
        """The version of the evaluator or scorer of a row; "" for an assertion."""
        return of_row({measure.name: measure.version for measure in self.measures}, row) or ""


def _whole(case: Case, result: CaseResult) -> list[list[Mapping[str, Any]]]:
    """A run without nodes as one node run."""
    whole: dict[str, Any] = {"node": None, "status": result.status, "input": case.input}
    if result.output is not None:
        whole["output"] = result.output
    return [[whole]]
