"""Rows: the values of one evaluator, scorer or dimension, by case. The gate decides about rows.

A case's value is the mean over its repeats. Repeats are evidence about reliability, not more cases, so a
row of ten cases with ten repeats each has n 10. If cases belong to clusters (the turns of one
conversation), the unit is the cluster, whose value is the mean over its cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from statistics import fmean

from arbiter.harness.scores import SHARE, Scale
from arbiter.statistics import Interval, PairedTest, paired, wilson
from arbiter.verdicts import Outcome

_DECIMALS = 4
_WHOLE = 2.0**40
"""From here on, a float has no fourth decimal."""
_PARTS = 64
"""The most votes, or node runs times votes, whose mean is read as the fraction that it was."""


def mean_of(values: Sequence[float]) -> float:
    """The mean of values, also if their sum is beyond a float."""
    try:
        return fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


@lru_cache(maxsize=65_536)
def exact(value: float) -> Fraction:
    """A value as the fraction that it probably was, after it was rounded to four decimals.

    6.3333 is 19/3, the mean of three votes. A baseline keeps four decimals, so without this an unchanged
    case would differ from its baseline by 0.00003, and changes of a third would not cancel.
    """
    if abs(value) >= _WHOLE:
        return Fraction(value)
    rounded = Fraction(round(value * 10**_DECIMALS), 10**_DECIMALS)
    simple = rounded.limit_denominator(_PARTS)
    return simple if abs(simple - rounded) <= Fraction(1, 2 * 10**_DECIMALS) else rounded


@dataclass(frozen=True, kw_only=True)
class Row:
    """The values of one evaluator, scorer or dimension.

    `cases` has one value for each repeat of a case, in their order; None for a repeat without a score.
    `missing` has the outcomes of those repeats: of all that are None in `cases`, and of cases that `cases`
    leaves out. A case that is in neither counts as lost. `clusters` maps a case to its cluster, if it has
    one.

    `is_share` marks a row of passes and failures: its interval is Wilson's. `is_sampled` marks a row whose
    cases are messages of a window, so that another run has others. `threshold` is the lowest mean that
    passes, if the evaluator has one. `version` is that of the evaluator: rows of different versions are not
    comparable.
    """

    name: str
    cases: Mapping[str, tuple[float | None, ...]]
    scale: Scale = SHARE
    version: str = ""
    missing: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict[str, tuple[Outcome, ...]])
    clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    is_share: bool = False
    is_sampled: bool = False
    threshold: float | None = None

    @cached_property
    def values(self) -> Mapping[str, float]:
        """The value of each case that was scored: the mean over its repeats."""
        return {
            case: mean_of(values)
            for case, repeats in self.cases.items()
            if (values := [value for value in repeats if value is not None])
        }

    @cached_property
    def units(self) -> Mapping[str, float]:
        """The value of each cluster, and of each case without a cluster."""
        if not self.clusters:
            return self.values
        members: dict[str, list[float]] = {}
        for case, value in self.values.items():
            members.setdefault(self.clusters.get(case, case), []).append(value)
        return {unit: mean_of(values) for unit, values in members.items()}

    @property
    def n(self) -> int:
        """The number of scored cases, or clusters."""
        return len(self.units)

    @cached_property
    def mean(self) -> float | None:
        """The mean over the cases, or clusters; None if nothing was scored."""
        return self._spread.mean if self.n > 1 else next(iter(self.units.values()), None)

    @cached_property
    def sd(self) -> float | None:
        """The standard deviation (with n - 1) over the cases, or clusters; None if fewer than two were
        scored."""
        return self._spread.sd if self.n > 1 else None

    @cached_property
    def _spread(self) -> PairedTest:
        return paired(self.units.values())

    @cached_property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean: Wilson's for a share, else that of t, cut to the scale.

        None if nothing was scored, and for fewer than two values that are no share.
        """
        if self.is_share and self.units:
            return wilson(math.fsum(self.units.values()), self.n)
        if self.n < 2:
            return None
        low, high = self._spread.interval
        return Interval(max(low, self.scale[0]), min(high, self.scale[1]))

    def is_lost(self, case: str) -> bool:
        """Whether a case has no score although there was something to judge, or nothing is known of it."""
        outcomes = self.missing.get(case, ())
        return case not in self.values and not (outcomes and set(outcomes) == {"not_applicable"})

    @cached_property
    def outcomes(self) -> Mapping[Outcome, int]:
        """How many repeats of cases had each outcome. Only "scored" ones have a part in the numbers."""
        scored = sum(value is not None for repeats in self.cases.values() for value in repeats)
        found = Counter[Outcome]({"scored": scored} if scored else {})
        for outcomes in self.missing.values():
            found.update(outcomes)
        return found
