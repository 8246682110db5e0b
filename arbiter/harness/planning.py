"""Planning: how many cases, and votes, it takes to find a drop, from the noise of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance
from typing import Literal

from arbiter.errors import ConfigurationError, ParameterError
from arbiter.harness.comparisons import RowComparison, scale_text, two
from arbiter.harness.results import CaseResult
from arbiter.harness.rows import Row
from arbiter.harness.scores import NINE, Scale, Score
from arbiter.statistics import VarianceSplit, cases_needed, detectable, variance_split
from arbiter.statistics._numbers import count, floats, number

Votes = Mapping[str, Sequence[Sequence[float]]]
"""The votes of each repeat of a case: `votes[case][repeat]` lists them."""
Source = Literal["the baseline", "repeats", "votes"]

_SHARES = (0.02, 0.03, 0.06, 0.1)
"""Drops to plan for, as shares of the scale. From 0 to 9 they are 0.2, 0.3, 0.6 and 1.0."""
_OF_NINE = (0.2, 0.3, 0.6, 1.0)
MOST_VOTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of cases that it takes to find a drop in 9 of 10 runs.

    `sd` is the standard deviation of a case's change between two runs in which nothing changed, found from
    `source`: the differences from the baseline, the repeats of a case, or votes. `n` is the number of cases
    of the run, and `finds` the drop that they find: infinity if no drop of so few cases is significant. `cases`
    has the number of cases for each drop; `by_votes` has it for one to five votes, if votes were given.
    """

    name: str
    scale: Scale
    sd: float
    n: int
    source: Source
    finds: float
    cases: Mapping[float, int]
    by_votes: Mapping[int, Mapping[float, int]] = field(default_factory=dict[int, Mapping[float, int]])

    def more(self, drop: float) -> int:
        """How many cases the run lacks to find that drop, one of `cases`; 0 if it has enough."""
        return max(0, self.cases[drop] - self.n)

    def __str__(self) -> str:
        return self.text()

    def text(self, wanted: float | None = None) -> str:
        """The plan as a terminal shows it; with how many cases the run lacks for the drop `wanted`, one of `cases`."""
        found = f"With {self.n} cases a drop of {two(self.finds)} is found in 9 of 10 runs."
        if self.finds == math.inf:
            found = f"With {self.n} cases no drop is significant."
        elif self.sd == 0:  # as of a target without a model
            found = f"No case changed, so a drop is significant from {min(self.cases.values())} cases on."
        head = (
            f"{self.name}: sd of a case's change {two(self.sd)} ({self.n} cases, from {self.source}). {found}"
        )
        lines = [("drop to find", *map(two, self.cases)), ("cases", *map(str, self.cases.values()))]
        lines += [
            (f"cases, {votes} vote{'s' if votes > 1 else ''}", *map(str, cases.values()))
            for votes, cases in self.by_votes.items()
        ]
        wide = max(len(line[0]) for line in lines)
        rows = [f" {first:<{wide}}" + "".join(f"  {cell:>6}" for cell in rest) for first, *rest in lines]
        if wanted is not None:
            rows[1] += f"        {two(wanted)} takes {self.more(wanted) or 'no'} more."
        return "\n".join([head, *rows])


def plan(
    row: Row,
    *,
    comparison: RowComparison | None = None,
    votes: Votes | None = None,
    drops: Sequence[float] | None = None,
    repeats: int = 1,
    alpha: float = 0.05,
) -> Plan:
    """Plan the cases of a row for runs of `repeats` repeats.

    The noise comes from `comparison` (an unchanged run against its baseline) if it is given, else from the
    repeats of the row, else from `votes`, of which the next run has as many. Noise from votes leaves out
    that an agent can answer differently when it is asked again. Raises `ConfigurationError` if none of them
    shows noise: a run with one repeat and no baseline; and without `drops` for a row whose scale has no
    end.
    """
    repeats = count("plan", "repeats", repeats, least=1)
    alpha = number("plan", "alpha", alpha, above=0, below=1)
    split = _split(votes) if votes else None
    sd, source = _noise(row, comparison, votes, split, repeats)
    chosen = floats("plan", "drops", drops) if drops else usual_drops(row)
    least = math.ceil(-math.log2(alpha))  # with fewer changed cases the exact test cannot be significant

    def cases(noise: float) -> dict[float, int]:
        return {drop: max(least, cases_needed(drop, noise, alpha=alpha)) for drop in chosen}

    n = comparison.n if comparison is not None and source == "the baseline" else row.n
    if n < 2:
        raise ConfigurationError(f"{row.name} has {n} scored cases; a plan needs two.")
    by_votes: dict[int, Mapping[float, int]] = {}
    if split is not None:
        for asked in range(1, MOST_VOTES + 1):
            by_votes[asked] = cases(split.change(votes=asked, repeats=repeats))
    return Plan(
        name=row.name,
        scale=row.scale,
        sd=sd,
        n=n,
        source=source,
        finds=detectable(n, sd, alpha=alpha) if n >= least else math.inf,
        cases=cases(sd),
        by_votes=by_votes,
    )


def votes_of(results: Iterable[CaseResult], name: str) -> Votes:
    """The votes of a judge about the row of that name, on the scale of its scores; empty if there are none.

    Cases that lack a vote or a repeat are left out, because the noise is split by equal numbers of them.
    """
    found: dict[str, list[list[float]]] = {}
    for result in results:
        given = [_on_scale(score) for score in result.scores if score.name == name and score.votes]
        if len({len(votes) for votes in given}) == 1:  # else a vote about one of several node runs failed
            found.setdefault(result.case_id, []).append([fmean(each) for each in zip(*given, strict=True)])
    most = max((len(votes) for repeats in found.values() for votes in repeats), default=0)
    times = max(map(len, found.values()), default=0)
    if most < 2:
        return {}
    return {
        case: repeats
        for case, repeats in found.items()
        if len(repeats) == times and all(len(votes) == most for votes in repeats)
    }


def _on_scale(score: Score) -> list[float]:
    """The votes of a score. A judge of a rubric votes from 0 to 10, and the score is a tenth of their mean."""
    mean = fmean(score.votes)
    return [vote * (score.value or 0.0) / mean if mean else 0.0 for vote in score.votes]


def _noise(
    row: Row,
    comparison: RowComparison | None,
    votes: Votes | None,
    split: VarianceSplit | None,
    repeats: int,
) -> tuple[float, Source]:
    if comparison is not None and comparison.sd is not None:
        return comparison.sd, "the baseline"
    scored = [[value for value in values if value is not None] for values in row.cases.values()]
    repeated = [values for values in scored if len(values) > 1]
    if len(repeated) > 1:
        return math.hypot(*map(stdev, repeated)) * math.sqrt(2 / len(repeated) / repeats), "repeats"
    if votes and split is not None:
        asked = len(next(iter(votes.values()))[0])  # as often as in this run
        return split.change(votes=asked, repeats=repeats), "votes"
    raise ConfigurationError(
        f"the noise of {row.name} is not known: the run has one repeat and no baseline. "
        "Measure two repeats (--repeats 2) or two votes of its judge (--votes 2), or give a run that was compared "
        "with a baseline."
    )


def _split(votes: Votes) -> VarianceSplit:
    """The noise of judge and agent; that of the agent is 0 if each case was answered once."""
    if all(len(repeats) > 1 for repeats in votes.values()):
        return variance_split([list(map(list, repeats)) for repeats in votes.values()])
    spreads = [variance(values) for repeats in votes.values() for values in repeats if len(values) > 1]
    if len(spreads) < 2:
        raise ParameterError("plan", "votes", "expected two votes or more of at least two cases.")
    return VarianceSplit(judge=fmean(spreads), agent=0.0, case=0.0)


def usual_drops(row: Row) -> tuple[float, ...]:
    """The drops that a plan is about if none are named. Raises `ConfigurationError` for a scale without an end."""
    width = row.scale[1] - row.scale[0]
    if not math.isfinite(width):
        raise ConfigurationError(
            f"{row.name} has a scale without an end, {scale_text(row.scale)}, so no drop is the usual one. "
            f"Name the drop to find: --row {row.name} --drop 10, or drops=[10] in Python."
        )
    return _OF_NINE if row.scale == NINE else tuple(round(share * width, 12) for share in _SHARES)
