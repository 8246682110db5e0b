"""Simulated runs of a suite, for the error rates of the gate.

A case has a true quality, an agent answers it a little better or worse in each run, and a judge gives whole
scores from 0 to 9 with noise of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from arbiter.harness import Baseline, GateSettings, RegressionGate, Row, Verdict
from tests.harness.measurements import CAPTURED, TEN, run

JUDGE, CASE, AGENT = 0.9, 1.5, 0.7
"""Standard deviations."""
GATE = RegressionGate(GateSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Suites of `cases` cases whose scores have that `mean`; `agent` is the noise of an agent that answers anew."""

    cases: int
    votes: int = 1
    agent: float = 0.0
    mean: float = 6.0
    case: float = CASE

    def qualities(self, rng: random.Random) -> list[float]:
        return [rng.gauss(self.mean, self.case) for _ in range(self.cases)]

    def row(self, rng: random.Random, qualities: list[float], *, drop: float = 0.0, repeats: int = 1) -> Row:
        """The row that a run measures for an agent that got worse by `drop`."""
        scores: dict[str, tuple[float | None, ...]] = {}
        for place, quality in enumerate(qualities):
            answers = [quality - drop + rng.gauss(0, self.agent) for _ in range(repeats)]
            scores[f"case-{place}"] = tuple(
                fmean(min(9, max(0, round(answer + rng.gauss(0, JUDGE)))) for _ in range(self.votes))
                for answer in answers
            )
        return Row(name="tone", cases=scores, scale=TEN)


def verdicts(before: Mapping[str, Row], after: Mapping[str, Row]) -> dict[str, Verdict]:
    """The verdicts of the gate about rows, by name."""
    named = [{name: _named(row, name) for name, row in rows.items()} for rows in (before, after)]
    baseline = Baseline.of(run(*named[0].values()), captured_at=CAPTURED)
    found = GATE.compare(run(*named[1].values()), baseline)
    return {name: row.verdict for name, row in found.rows.items()}


def fails(before: Row, after: Row) -> bool:
    return verdicts({"tone": before}, {"tone": after})["tone"] == "regressed"


def share_that_fails(world: World, drop: float, *, trials: int, seed: int) -> float:
    """The share of runs that fail, each with a suite, a baseline and a run of its own."""
    rng = random.Random(f"{seed}:{world}:{drop}")
    failed = 0
    for _ in range(trials):
        qualities = world.qualities(rng)
        failed += fails(world.row(rng, qualities), world.row(rng, qualities, drop=drop))
    return failed / trials


def _named(row: Row, name: str) -> Row:
    return Row(name=name, cases=row.cases, scale=row.scale)
