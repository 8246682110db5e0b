"""The findings of the gate: about each row, and about a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from arbiter.errors import ArbiterError
from arbiter.harness.scores import SHARE, Scale
from arbiter.models import visible
from arbiter.statistics import Interval, half_up

Verdict = Literal[
    "regressed", "improved", "underpowered", "steady", "incomparable", "incomplete", "new", "unpaired"
]
"""What the gate found about a row. "unpaired" stands for "steady" where other elements were judged."""
Method = Literal["sign flip", "paired t", "Welch", "means"]
"""The test that decided about a row; "means" is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """The findings of the gate about one row.

    `n` is the number of pairs, `mean` and `before` are the means of the whole row now and in the baseline,
    `delta` the mean difference of the pairs, `sd` the standard deviation of the differences, `interval` the
    95 % interval of `delta`. `p` is that of a drop; `adjusted` is `p` after Holm's correction if the row is
    `counted`, else `p`. `detectable` is the drop that as many pairs find in 9 of 10 runs. They are None if
    they cannot be known.

    `lost`, `new`, `gone` and `changed` are cases without a pair: those without a score now, those not in the
    baseline, those not in the run, and those with another input. `pairs` has (then, now) by case or cluster.
    `below` says that the mean is under the `threshold` of the row. `reason` is the verdict in words.
    """

    name: str
    verdict: Verdict
    gated: bool = True
    scale: Scale = SHARE
    n: int = 0
    mean: float | None = None
    before: float | None = None
    delta: float | None = None
    sd: float | None = None
    p: float | None = None
    adjusted: float | None = None
    counted: bool = False
    method: Method | None = None
    interval: Interval | None = None
    detectable: float | None = None
    lost: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    pairs: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    threshold: float | None = None
    below: bool = False
    reason: str = ""

    @property
    def worst(self) -> tuple[str, ...]:
        """The cases, or clusters, that dropped; the largest drop first."""
        drops = {unit: now - then for unit, (then, now) in self.pairs.items() if now < then}
        return tuple(sorted(drops, key=drops.__getitem__))

    @property
    def broken(self) -> tuple[str, ...]:
        """The cases, or clusters, that always passed and now always fail."""
        pairs = self.pairs.items() if self.scale == SHARE else ()
        return tuple(unit for unit, both in pairs if both == (1.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The findings of the gate about a run: `rows` by name, in the order of the run.

    `must_pass` has the cases marked `must_pass` that failed, with the reason. `unfinished` is the reason
    why the run cannot be decided as a whole. `notes` are remarks that decide nothing. `missing_baseline`
    says that there is no baseline although `ci` asks for one.
    """

    suite: str
    rows: Mapping[str, RowComparison]
    must_pass: Mapping[str, str]
    unfinished: str = ""
    notes: tuple[str, ...] = ()
    strict: bool = False
    missing_baseline: bool = False

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the run fails: a sentence for each regressed row, missed threshold and failed `must_pass`
        case."""
        gated = [row for row in self.rows.values() if row.gated]
        return (
            *(row.reason for row in gated if row.verdict == "regressed"),
            *(
                f"{row.name} has the mean {two(row.mean)}, below its threshold {two(row.threshold)}"
                for row in gated
                if row.below
            ),
            *(f"case {case} must pass: {reason}" for case, reason in self.must_pass.items()),
        )

    @property
    def undecided(self) -> tuple[str, ...]:
        """Why the run cannot be decided, a sentence each."""
        kinds = ("incomparable", "incomplete", *(("underpowered",) if self.strict else ()))
        rows = tuple(row.reason for row in self.rows.values() if row.gated and row.verdict in kinds)
        nothing = () if self.rows else ("nothing was judged",)
        return (*((self.unfinished,) if self.unfinished else ()), *nothing, *rows)

    @property
    def exit_code(self) -> int:
        """1 if the run fails, 2 without the baseline that `ci` asks for, 5 if it cannot be decided, else
        0."""
        if self.failures:
            return 1
        if self.missing_baseline:
            return 2
        return 5 if self.undecided else 0

    def check(self) -> None:
        """Raise `RegressionError` unless the run passes."""
        if self.exit_code:
            raise RegressionError(self)


class RegressionError(ArbiterError, AssertionError):
    """A run regressed, or could not be decided. `comparison` has the numbers, `exit_code` is 1, 2 or 5.

    `regressed` are the names of the rows that fell.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.exit_code = comparison.exit_code
        self.regressed = tuple(
            name for name, row in comparison.rows.items() if row.gated and row.verdict == "regressed"
        )
        missing = ("there is no baseline. Measure one: arbiter eval baseline SUITE",)
        reasons = comparison.failures or (missing if comparison.missing_baseline else comparison.undecided)
        what = (
            ("regressed" if self.regressed else "failed") if self.exit_code == 1 else "could not be decided"
        )
        super().__init__(visible(f"{comparison.suite} {what}: {sentence(reasons)}"))


def sentence(parts: Sequence[str]) -> str:
    """The parts as one sentence. A part may end in a stop of its own, as the answer of a target may."""
    text = "; ".join(parts).rstrip(".")
    return text if text.endswith("?") else f"{text}."


def scale_text(scale: Scale) -> str:
    return f"{scale[0]:g}–{scale[1]:g}"


def two(value: float | None) -> str:
    return "none" if value is None else decimals(value)


def decimals(value: float, digits: int = 2, sign: str = "") -> str:
    """A number as tables print it, with that many decimals; beyond the digits that a float has, as a power of ten."""
    form = f"{sign}.{digits}f" if abs(value) < 1e15 else f"{sign}.3g"
    return format(half_up(value, digits), form)
