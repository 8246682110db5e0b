"""The regression gate: whether a run got worse than its baseline, row by row, with an honest test.

    Δ = mean of the differences d = now - then, by case;  sd of d (with n - 1);  interval Δ ± t·sd/√n
    p = the exact sign-flip test of a drop (with more than 1,000 changed cases, the paired t test)
    adjusted = Holm's correction over the gated rows of which enough cases changed to be significant at all

| found | verdict | exit |
|---|---|---|
| another version, scale, judge or mode than the baseline's | `incomparable` | 5 |
| more than `max_missing` of the baseline's cases lost their score | `incomplete` | 5 |
| more than 10 % of the baseline's cases are new, gone or changed | `incomparable` | 5 |
| fewer than two pairs | `incomplete` | 5 |
| no baseline | `new` | 0 |
| a row of the baseline that the run has not | `incomparable` | 5 |
| (adjusted p <= `alpha` and a drop of at least `min_drop`), or a drop above `max_drop` | `regressed` | 1 |
| the same for a rise | `improved` | 0 |
| the drop that a run of this size finds is above `detect` | `underpowered` | 0, `strict`: 5 |
| none of these | `steady` | 0 |

A row of a window, in which less than 90 % of the elements are those of the baseline, is `unpaired` instead of
incomparable: Welch's test of both groups decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from arbiter._values.parameters import Param, problems_of
from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.baselines import MAX_LOST, Baseline
from arbiter.harness.comparisons import Comparison, Method, RowComparison, scale_text, two
from arbiter.harness.identity import Measurement
from arbiter.harness.pairing import Pairs, pair
from arbiter.harness.results import COMPLETED
from arbiter.harness.rows import Row, exact
from arbiter.harness.scores import NINE
from arbiter.statistics import (
    MAX_FLIPS,
    Alternative,
    detectable,
    holm,
    p_text,
    paired,
    sign_flip,
    t_quantile,
    welch,
)

NEVER_GATED = frozenset({"ideas_quantity"})
_SLACK = 1e-9
"""8.3 - 7.3 is more than 1 in floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The settings of the gate: which drops count, and which rows. Limits that are None depend on the scale:

    | scale | `min_drop` | `max_drop` | `detect` |
    |---|---|---|---|
    | 0 to 9 | 0.2 | 1.0 | 0.6 |
    | 0 to 1, shares | 0.02 | none | 0.06 |
    | another | 2 % of it | none | 6 % of it |
    | the row `completed` | 0.02 | 0.10 | 0.06 |
    """

    baseline: Annotated[
        str | Path | None, Param("the file with which a run is compared, or for agents a folder of files")
    ] = None
    alpha: Annotated[float, Param("the share of unchanged runs that may fail", gt=0, le=0.5)] = 0.05
    min_drop: Annotated[float | None, Param("smaller drops never count", ge=0)] = None
    max_drop: Annotated[float | None, Param("a larger drop counts whatever the test says", ge=0)] = None
    detect: Annotated[float | None, Param("the drop that a run should be able to find", gt=0)] = None
    max_missing: Annotated[float, Param("the share of cases that may lose their score", ge=0, le=1)] = (
        MAX_LOST
    )
    rows: Annotated[
        Sequence[str] | None, Param("the rows, or scorers, that are gated; all by default", min_length=1)
    ] = None
    threshold: Annotated[float | None, Param("the lowest mean of rows from 0 to 9", ge=0, le=9)] = None
    require_calibrated: Annotated[bool, Param("rows of uncalibrated judges are incomparable")] = False
    strict: Annotated[bool, Param("an underpowered row is undecided")] = False

    def __post_init__(self) -> None:
        rows: Any = self.rows
        if hasattr(rows, "__next__"):  # such as a generator, which can be read once
            object.__setattr__(self, "rows", tuple(rows))
        problems = problems_of(self)
        low, high = self.min_drop, self.max_drop
        if not problems and low is not None and high is not None and low > high:
            problems.append(f"min_drop: is {low:g}, above max_drop, which is {high:g}")
        if problems:
            raise ConfigurationError("\n".join(f"gate: {problem}." for problem in problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """The limits that hold for one row."""

    min_drop: float
    max_drop: float
    detect: float

    @classmethod
    def of(cls, row: Row, settings: GateSettings) -> _Limits:
        width = row.scale[1] - row.scale[0]
        usual = (0.2, 1.0, 0.6) if row.scale == NINE else (0.02 * width, math.inf, 0.06 * width)
        small, large, detect = usual
        if row.name == COMPLETED:
            large = 0.1
        return cls(
            min_drop=small if settings.min_drop is None else settings.min_drop,
            max_drop=large if settings.max_drop is None else settings.max_drop,
            detect=detect if settings.detect is None else settings.detect,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A row before the correction: its p of a drop and of a rise, and whether they can be significant at
    all."""

    row: RowComparison
    limits: _Limits
    rise: float = 1.0
    counts: bool = False

    @property
    def is_open(self) -> bool:
        return self.row.verdict in ("steady", "unpaired")


class RegressionGate:
    """Compares runs with a baseline.

    `ci`: without a baseline the exit code is 2, and with one thresholds decide nothing. `accept_changed`:
    rows of another version, judge or mode are compared and shown, and not gated.
    """

    def __init__(
        self, settings: GateSettings | None = None, *, ci: bool = False, accept_changed: bool = False
    ) -> None:
        self.settings = settings or GateSettings()
        self.ci = ci
        self.accept_changed = accept_changed

    def compare(self, run: Measurement, baseline: Baseline | None = None) -> Comparison:
        """Compare a run with a baseline; without one, only thresholds and `must_pass` cases decide.

        A name in `rows` of the settings that gates no row of the run cannot be decided. Raises `ConfigurationError` for
        a baseline of another suite.
        """
        if baseline is not None:
            baseline.refuse_other(run.identity.suite)
        found = {name: self._row(row, run, baseline) for name, row in run.rows.items()}
        rows = {
            name: self._with_threshold(row, run.rows[name], baseline)
            for name, row in self._decided(found).items()
        }
        vanished = self._vanished(run, baseline)
        return Comparison(
            suite=run.identity.suite,
            rows={**rows, **vanished, **self._ungated(run, baseline)},
            must_pass=run.failing,
            unfinished=run.unfinished,
            notes=(
                *_notes(baseline, vanished),
                *_other_models(run, baseline),
                *self._useless_threshold(rows),
            ),
            strict=self.settings.strict,
            missing_baseline=self.ci and baseline is None,
        )

    def _vanished(self, run: Measurement, baseline: Baseline | None) -> dict[str, RowComparison]:
        """The rows of the baseline that the run has not: a scorer that was taken out hides no drop."""
        then: Mapping[str, Row] = {} if baseline is None else baseline.rows
        return {
            name: RowComparison(
                name=name,
                verdict="incomparable",
                gated=self._is_gated(row) and not self.accept_changed,
                scale=row.scale,
                before=row.mean,
                reason=f"{name} is in the baseline, and this run has not measured it",
            )
            for name, row in then.items()
            if name not in run.rows
        }

    def _is_gated(self, row: Row) -> bool:
        names = self.settings.rows
        return _is_bounded(row) and (names is None or any(covers(name, row.name) for name in names))

    def _ungated(self, run: Measurement, baseline: Baseline | None) -> dict[str, RowComparison]:
        """The names in the settings that gate no row: a row that is not there hides no drop."""
        known: dict[str, Row] = {**({} if baseline is None else baseline.rows), **run.rows}
        found: dict[str, RowComparison] = {}
        for name in self.settings.rows or ():
            covered = [row for row in known.values() if covers(name, row.name)]
            if any(map(_is_bounded, covered)):
                continue
            reason = _counts(repr(name))
            if not covered:
                rows = ", ".join(run.rows) or "none"
                reason = f"this run has no row {name!r}. Rows: {rows}.{nearest(name, run.rows)}"
            found[name] = RowComparison(name=name, verdict="incomparable", reason=f"gate: rows: {reason}")
        return found

    def _row(self, row: Row, run: Measurement, baseline: Baseline | None) -> _Found:
        limits = _Limits.of(row, self.settings)
        start = RowComparison(
            name=row.name, verdict="new", gated=self._is_gated(row), scale=row.scale, mean=row.mean
        )
        if not row.n:
            return _Found(replace(start, verdict="incomplete", reason=f"{row.name} was not judged"), limits)
        if self.settings.require_calibrated and not _is_calibrated(row, run):
            reason = f"the judge of {row.name} is not calibrated (arbiter eval calibrate)"
            return _Found(replace(start, verdict="incomparable", reason=reason), limits)
        if baseline is None:
            return _Found(replace(start, reason=f"{row.name} has no baseline"), limits)
        if row.name not in baseline.rows and (row.name in baseline.dimensions or baseline.is_means_only):
            before = baseline.dimensions.get(row.name)
            return _Found(_by_means(start, before, limits, "the baseline has no cases of it"), limits)
        then = baseline.rows.get(row.name)
        if then is None:
            return _Found(replace(start, reason=f"{row.name} is not in the baseline"), limits)
        start = replace(start, before=then.mean)
        why = run.identity.difference(baseline.identity, row.name) or _other_scale(row, then)
        if why and not self.accept_changed:
            return _Found(replace(start, verdict="incomparable", reason=why), limits)
        pairs = pair(row, then, run.identity.cases, baseline.identity.cases)
        found = self._tested(start, row, then, pairs, limits)
        if not why:
            return found
        return replace(
            found, counts=False, row=replace(found.row, verdict="incomparable", gated=False, reason=why)
        )

    def _tested(self, start: RowComparison, row: Row, then: Row, pairs: Pairs, limits: _Limits) -> _Found:
        start = replace(start, lost=pairs.lost, new=pairs.new, gone=pairs.gone, changed=pairs.changed)
        others = len(pairs.new) + len(pairs.gone) + len(pairs.changed)
        has_agents = row.name == COMPLETED  # its elements are the agents, and not what they said
        if row.is_sampled and row.n == then.n == 1 and (pairs.differences or not has_agents):
            # Such as fluency, which judges the whole window at once, or one agent that spoke then, too.
            return _Found(_by_means(start, then.mean, limits, "it has one element"), limits)
        if (row.is_sampled and not has_agents) and (
            len(pairs.differences) < (1 - MAX_LOST) * pairs.before
            or others > MAX_LOST * pairs.before + _SLACK
        ):
            return self._unpaired(start, row, then, limits)
        start = replace(
            start,
            n=len(pairs.differences),
            pairs={unit: (float(pairs.then[unit]), float(pairs.now[unit])) for unit in pairs.differences},
        )
        if len(pairs.lost) > self.settings.max_missing * pairs.before + _SLACK:
            reason = f"{row.name} lost its score in {len(pairs.lost)} of {pairs.before} cases"
            return _Found(replace(start, verdict="incomplete", reason=reason), limits)
        if others > MAX_LOST * pairs.before + _SLACK:
            reason = (
                f"the cases of {row.name} changed: {len(pairs.new)} new, {len(pairs.gone)} gone, "
                f"{len(pairs.changed)} changed, of {pairs.before}"
            )
            return _Found(replace(start, verdict="incomparable", reason=reason), limits)
        if len(pairs.differences) < 2:
            if pairs.differences and not _is_bounded(row):
                delta = float(*pairs.differences.values())
                return _Found(replace(start, verdict="steady", delta=delta, reason=_counts(row.name)), limits)
            compared = "1 case" if pairs.differences else "no cases"
            reason = f"{row.name} has {compared} to compare; two are needed"
            return _Found(replace(start, verdict="incomplete", reason=reason), limits)
        return self._paired(start, pairs, limits)

    def _paired(self, start: RowComparison, pairs: Pairs, limits: _Limits) -> _Found:
        differences = list(pairs.differences.values())
        test = paired(differences)
        moved = sum(map(bool, differences))
        method: Method = "paired t" if moved > MAX_FLIPS else "sign flip"

        def p(alternative: Alternative) -> float:
            if method == "paired t":
                return paired(differences, alternative=alternative).p
            return sign_flip(differences, alternative=alternative).p

        row = replace(
            start,
            verdict="steady",
            delta=test.mean,
            sd=test.sd,
            p=p("less"),
            method=method,
            interval=test.interval,
            detectable=detectable(test.n, test.sd, alpha=self.settings.alpha),
        )
        can_count = method == "paired t" or 2.0**-moved <= self.settings.alpha
        return _Found(row, limits, p("greater") if test.mean > 0 else 1.0, row.gated and can_count)

    def _unpaired(self, start: RowComparison, row: Row, then: Row, limits: _Limits) -> _Found:
        """Two groups of different elements."""
        # A baseline keeps four decimals. Beside equal scores, what they cut off would be a difference of certainty.
        now, before = ([float(exact(value)) for value in each.units.values()] for each in (row, then))
        if min(len(now), len(before)) < 2:
            reason = f"{row.name} has {len(now)} elements now and {len(before)} then; two of each are needed"
            return _Found(replace(start, verdict="incomplete", reason=reason), limits)
        test = welch(now, before, alternative="less")
        se = (test.interval.high - test.interval.low) / 2 / t_quantile(0.975, test.df)
        finds = (t_quantile(1 - self.settings.alpha, test.df) + t_quantile(0.9, test.df)) * se
        found = replace(
            start,
            verdict="unpaired",
            n=len(now),
            delta=test.difference,
            p=test.p,
            method="Welch",
            interval=test.interval,
            detectable=finds,
        )
        return _Found(found, limits, welch(now, before, alternative="greater").p, found.gated)

    def _decided(self, found: Mapping[str, _Found]) -> dict[str, RowComparison]:
        """The rows with their verdicts, corrected together."""
        counted = [name for name, each in found.items() if each.counts]
        drops = dict(zip(counted, holm(found[name].row.p or 0.0 for name in counted), strict=True))
        rises = dict(zip(counted, holm(found[name].rise for name in counted), strict=True))
        tested = sum(each.is_open and each.row.gated for each in found.values())
        return {
            name: self._verdict(
                each, drops.get(name), rises.get(name), f"Holm over {len(counted)} of {tested} rows"
            )
            for name, each in found.items()
        }

    def _verdict(
        self, found: _Found, drop: float | None, rise: float | None, correction: str
    ) -> RowComparison:
        row, limits, alpha, delta = found.row, found.limits, self.settings.alpha, found.row.delta
        if delta is None or row.p is None:
            return row
        p = row.p if drop is None else drop
        row = replace(row, adjusted=p, counted=drop is not None)
        if not found.is_open:
            return row
        scale = scale_text(row.scale)
        size = f"{two(abs(delta))} of {scale}"
        if p <= alpha and -delta >= limits.min_drop - _SLACK:
            why = f"{two(limits.min_drop)} or more counts; p {p_text(p)}, {correction}"
            return replace(row, verdict="regressed", reason=f"{row.name} fell by {size} ({why})")
        if -delta > limits.max_drop + _SLACK:
            why = f"more than {two(limits.max_drop)} counts whatever the test says; p {p_text(p)}"
            return replace(row, verdict="regressed", reason=f"{row.name} fell by {size} ({why})")
        up = found.rise if rise is None else rise
        if (up <= alpha and delta >= limits.min_drop - _SLACK) or delta > limits.max_drop + _SLACK:
            return replace(row, verdict="improved", reason=f"{row.name} rose by {size} (p {p_text(up)})")
        if (row.detectable or 0.0) > limits.detect + _SLACK:
            finds = f"{two(row.detectable)} of {scale}, not of {two(limits.detect)}"
            reason = f"{row.name} has too few cases: this run finds a drop of {finds}"
            return replace(row, verdict="underpowered", reason=reason)
        if -delta >= limits.detect - _SLACK:
            return replace(row, reason=f"{row.name} fell by {size}, which is not significant (p {p_text(p)})")
        if not math.isfinite(limits.detect):
            return replace(row, reason=_counts(row.name))
        return replace(row, reason=f"{row.name} did not fall by {two(limits.detect)} of {scale}")

    def _with_threshold(self, found: RowComparison, row: Row, baseline: Baseline | None) -> RowComparison:
        threshold = row.threshold
        if threshold is None and row.scale == NINE:
            threshold = self.settings.threshold
        decides = not (self.ci and baseline is not None)
        below = threshold is not None and row.mean is not None and row.mean < threshold - _SLACK
        return replace(found, threshold=threshold, below=below and decides)

    def _useless_threshold(self, rows: Mapping[str, RowComparison]) -> list[str]:
        if self.settings.threshold is None or any(row.threshold is not None for row in rows.values()):
            return []
        return [
            f"the threshold {two(self.settings.threshold)} is for rows from 0 to 9, and this run has none"
        ]


def _by_means(start: RowComparison, before: float | None, limits: _Limits, why: str) -> RowComparison:
    """A row against a mean without cases: only the size of the drop can decide."""
    if before is None or start.mean is None:
        return replace(start, reason=f"{start.name} is not in the baseline")
    if not math.isfinite(limits.max_drop):
        reason = f"{start.name} cannot be tested ({why}), and no max_drop says which drop counts"
        return replace(start, verdict="incomparable", before=before, reason=reason)
    delta = start.mean - before
    row = replace(start, before=before, delta=delta, method="means")
    limit = f"means alone; more than {two(limits.max_drop)} counts"
    size = f"{two(abs(delta))} of {scale_text(start.scale)} ({limit})"
    if -delta > limits.max_drop + _SLACK:
        return replace(row, verdict="regressed", reason=f"{start.name} fell by {size}")
    if delta > limits.max_drop + _SLACK:
        return replace(row, verdict="improved", reason=f"{start.name} rose by {size}")
    return replace(row, verdict="steady", reason=f"{start.name} changed by {size}")


def _notes(baseline: Baseline | None, vanished: Mapping[str, RowComparison]) -> list[str]:
    if baseline is not None and baseline.is_means_only:
        return ["the baseline has means without cases; it is compared by max_drop alone, without a test"]
    gone = [name for name, row in vanished.items() if not row.gated]
    return [f"the baseline has rows that this run does not have: {', '.join(gone)}"] if gone else []


def _other_models(run: Measurement, baseline: Baseline | None) -> list[str]:
    """Notes about judges of the same name that the provider answers with another model now."""
    if baseline is None:
        return []
    changed: dict[tuple[str, str], list[str]] = {}
    for row, judge in run.identity.judges.items():
        before = baseline.identity.judges.get(row)
        if before is None or not judge.returned or not before.returned or before.returned == judge.returned:
            continue
        changed.setdefault((", ".join(judge.returned), ", ".join(before.returned)), []).append(row)
    return [
        f"the judge of {', '.join(rows)} answers as {now}, and in the baseline as {before}: "
        "a change may be that of the judge"
        for (now, before), rows in changed.items()
    ]


def covers(name: str, row: str) -> bool:
    """Whether a name in the settings is that of a row, or of the scorer whose rows are `name.part`."""
    return row == name or row.startswith(f"{name}.")


def _counts(name: str) -> str:
    return f"{name} is a count, which is shown and never gated"


def _is_bounded(row: Row) -> bool:
    return all(map(math.isfinite, row.scale)) and row.name.rpartition(".")[2] not in NEVER_GATED


def _is_calibrated(row: Row, run: Measurement) -> bool:
    judge = run.identity.judge_of(row.name)
    return judge is None or judge.calibrated


def _other_scale(now: Row, then: Row) -> str:
    if now.scale == then.scale:
        return ""
    return f"the scale of {now.name} changed: {scale_text(then.scale)} then, {scale_text(now.scale)} now"
