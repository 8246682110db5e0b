"""Comparing two arms on one metric: over pairs of environments, and as in the paper.

    environments of both arms ─▶ mean over the agents of each ─▶ differences T - C ─▶ sign flip (primary), paired t
    all scores of both arms   ─▶ Welch, Cohen's d                                      (as in the paper)

Agents of one conversation heard the same things, so their scores are not independent: the environments are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import Any

from arbiter.experiments.table1 import ALPHA, LABELS, plain
from arbiter.statistics import MAX_FLIPS, PairedTest, WelchTest, cohen_d, holm, paired, sign_flip, welch

Environments = Sequence[Sequence[float]]
"""The scores of an arm by environment: those of its agents, or one of the environment itself; empty without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A metric of a treatment (T) and a control (C). Differences are T - C.

    `treatment` and `control` are all scores. `differences` has one value for each pair of environments that both
    have a score, and `dropped` counts the others. `p` is the primary test's: the exact two-sided sign flip over
    the pairs (with more than 1,000 pairs that differ, the paired t test), and `adjusted` is it after Holm's
    correction over the metrics. `welch` and `d` are those of all scores. `untested` is the reason why there is no
    test; everything about tests is then None.
    """

    metric: str
    arms: tuple[str, str]
    treatment: tuple[float, ...]
    control: tuple[float, ...]
    differences: tuple[float, ...]
    dropped: int = 0
    paired: PairedTest | None = None
    p: float | None = None
    adjusted: float | None = None
    welch: WelchTest | None = None
    d: float | None = None
    untested: str = ""

    @property
    def label(self) -> str:
        """The name of the metric in the paper's table."""
        return LABELS[self.metric]

    @property
    def difference(self) -> float | None:
        """Mean of T - mean of C, over all scores; None if an arm has none."""
        return fmean(self.treatment) - fmean(self.control) if self.treatment and self.control else None

    @property
    def starred(self) -> bool:
        """True for an unrounded p <= 0.05 of Welch's test, as the paper stars it."""
        return self.welch is not None and self.welch.p <= ALPHA

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-able data; an infinite t or d becomes a text."""
        test, pairs = self.welch, self.paired
        return {
            "metric": self.metric,
            "arms": list(self.arms),
            "n": [len(self.treatment), len(self.control)],
            "mean": [_mean(self.treatment), _mean(self.control)],
            "sd": [_sd(self.treatment), _sd(self.control)],
            "difference": self.difference,
            "pairs": len(self.differences),
            "dropped_pairs": self.dropped,
            "untested": self.untested,
            "paired": pairs
            and {
                "difference": pairs.mean,
                "interval": list(pairs.interval),
                "t": plain(pairs.t),
                "p_t": pairs.p,
                "p": self.p,
                "adjusted": self.adjusted,
            },
            "as_in_the_paper": test
            and {
                "t": plain(test.t),
                "df": test.df,
                "p": test.p,
                "interval": list(test.interval),
                "d": plain(self.d),
                "star": self.starred,
            },
        }


def compared(
    arms: tuple[str, str],
    treatment: Mapping[str, Environments],
    control: Mapping[str, Environments],
    *,
    untested: str = "",
) -> tuple[MetricComparison, ...]:
    """The comparisons of two arms, by metric. With `untested`, a reason, there are no tests."""
    found = [
        _compared(metric, arms, scores, control[metric], untested) for metric, scores in treatment.items()
    ]
    tested = [each.p for each in found if each.p is not None]
    adjusted = iter(holm(tested))
    return tuple(each if each.p is None else replace(each, adjusted=next(adjusted)) for each in found)


def _compared(
    metric: str, arms: tuple[str, str], first: Environments, second: Environments, untested: str
) -> MetricComparison:
    pairs = [(_exact(one), _exact(other)) for one, other in zip(first, second, strict=True) if one and other]
    differences = [one - other for one, other in pairs]
    row = MetricComparison(
        metric=metric,
        arms=arms,
        treatment=tuple(score for scores in first for score in scores),
        control=tuple(score for scores in second for score in scores),
        differences=tuple(map(float, differences)),
        dropped=len(first) - len(pairs),
        untested=untested,
    )
    if untested:
        return row
    if min(len(row.treatment), len(row.control)) < 2:
        return replace(row, untested="not testable: an arm has fewer than 2 scores")
    row = replace(row, welch=welch(row.treatment, row.control), d=cohen_d(row.treatment, row.control))
    if len(differences) < 2:
        return row
    test = paired(differences)
    moved = sum(map(bool, differences))
    p = test.p if moved > MAX_FLIPS else sign_flip(differences, alternative="two-sided").p
    return replace(row, paired=test, p=p)


def _exact(scores: Iterable[float]) -> Fraction:
    """The mean of scores as a fraction, so that thirds cancel."""
    found = [Fraction(str(score)) for score in scores]
    return sum(found, Fraction()) / len(found)


def _mean(scores: Sequence[float]) -> float | None:
    return fmean(scores) if scores else None


def _sd(scores: Sequence[float]) -> float | None:
    return paired(scores).sd if len(scores) > 1 else None
