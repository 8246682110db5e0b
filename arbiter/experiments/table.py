"""The table of an experiment, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean

from arbiter.experiments.comparing import MetricComparison
from arbiter.experiments.plans import ALPHA
from arbiter.experiments.results import CONVERSATION, ExperimentResult
from arbiter.experiments.table1 import interval_text, signed
from arbiter.harness.calibration import UNLABELLED
from arbiter.harness.scores import NINE
from arbiter.models import visible
from arbiter.statistics import half_up, p_text, paired

_NONE = "–"
_LONG = 200
"""Characters of a reason that are shown."""
_COLUMNS = (
    ("", 18),
    ("Δ [95 %]", 20),
    ("p", 6),
    ("Holm", 6),
    ("T: mean (sd)", 12),
    ("C: mean (sd)", 12),
    ("p", 7),
    ("d", 5),
    ("n T/C", 0),
)
"""The names of the columns and their widths, where no cell is wider."""


def text_of(result: ExperimentResult) -> str:
    """The result as lines: what ran, exposure, a table for each pair of arms, and what is to be said about it."""
    return "\n".join(map(visible, _lines(result)))


def _lines(result: ExperimentResult) -> Iterator[str]:
    plan = result.plan
    head = [
        plan.scenario,
        *([f"profile {plan.profile}"] if plan.profile else []),
        f"seed {plan.seed}" if plan.runs == 1 else f"seeds {plan.seed} to {plan.seed + plan.runs - 1}",
        f"{plan.pairs} pairs of environments",
    ]
    yield " · ".join(head)
    yield from about(result)
    if "synthetic" in result.marks:
        return
    for _, rows in groupby(result.comparisons, lambda row: row.arms):
        yield from _compared([*rows])
    yield from _remarks(result)


def about(result: ExperimentResult) -> Iterator[str]:
    """The lines that stand above any numbers of the result: models, calibration, plan, warnings and exposure."""
    if result.models:
        names = {"agents": "agents", "judge": "judge", "corrector": "correction judge"}
        models = (f"{names[role]} {name}{_calibrated(result, role)}" for role, name in result.models.items())
        yield " · ".join(models)
    if result.plan_hash:
        yield f"planned beforehand: {result.plan_hash}"
    yield from (f"warning: {warning}" for warning in result.warnings)
    reasons: dict[str, list[str]] = {}
    for metric, reason in result.uncalibrated.items():
        if reason != UNLABELLED:
            reasons.setdefault(reason, []).append(metric)
    yield from (f"uncalibrated for {', '.join(its)}: {reason}" for reason, its in reasons.items())
    if "synthetic" in result.marks:
        yield "scores: synthetic (the texts are templates; nothing was corrected or judged)"
    width = max(map(len, result.exposure))
    for number, (arm, found) in enumerate(result.exposure.items()):
        yield (
            f"{'exposure' if not number else '':<10}{arm:<{width}}  {found.drafts:,} drafts · {found.checks:,} checks, "
            f"{found.regenerations:,} regenerations, {found.forced:,} forced · {found.evaluations:,} evaluations, "
            f"{found.nudges:,} nudges{_more(found.unjudged, 'not judged')}"
            f"{_more(found.failures, 'failed interventions')}"
            f"{_more(found.repetitions, 'told what to avoid')}"
        )


def _calibrated(result: ExperimentResult, role: str) -> str:
    if role != "judge" or not result.uncalibrated:
        return " (calibrated)" if role == "judge" and result.calibrations else ""
    is_all = len(result.uncalibrated) == len(result.plan.metrics)
    some = "" if is_all else f" for {', '.join(result.uncalibrated)}"
    why = ": no labels of people" if {*result.uncalibrated.values()} == {UNLABELLED} else ""
    return f" (uncalibrated{some}{why})"


def _more(count: int, what: str) -> str:
    return f", {count:,} {what}" if count else ""


def _compared(rows: Sequence[MetricComparison]) -> Iterator[str]:
    arms = " − ".join(rows[0].arms)
    lines = [[name for name, _ in _COLUMNS], *map(_cells, rows)]
    widths = widths_of(_COLUMNS, lines)
    widths[0] = max(widths[0], len(arms) - 1)
    head, *table = (
        " " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    yield ""
    yield (f"{arms:<{widths[0] + 1}}  {'paired over environments':<{sum(widths[1:4]) + 4}}  as in the paper")
    yield head
    if rows[0].untested:
        yield f" no p-values: {rows[0].untested}"
    yield from table


def widths_of(columns: Sequence[tuple[str, int]], lines: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column: its own, or that of its longest cell."""
    longest = (max(map(len, column)) for column in zip(*lines, strict=True))
    return [max(width, found) for (_, width), found in zip(columns, longest, strict=True)]


def _cells(row: MetricComparison) -> list[str]:
    test = row.paired
    delta, p, adjusted = _NONE, _NONE, _NONE
    if test is not None:
        delta = f"{signed(test.mean)} {interval_text(test.interval)}"
        p, adjusted = _p(row.p), _p(row.adjusted)
    elif row.untested and row.difference is not None:
        delta = signed(row.difference)
    return [row.label, delta, p, adjusted, *cells_of_paper(row)]


def cells_of_paper(row: MetricComparison) -> tuple[str, str, str, str, str]:
    """The cells as in the paper: mean and sd of both arms, p with its star, d, and the numbers of scores."""
    return (
        _group(row.treatment),
        _group(row.control),
        _NONE if row.welch is None else p_text(row.welch.p) + "*" * row.starred,
        _NONE if row.d is None else signed(row.d),
        f"{len(row.treatment)}/{len(row.control)}",
    )


def _remarks(result: ExperimentResult) -> Iterator[str]:
    yield ""
    for arm, metrics in result.dropped.items():
        reasons = result.reasons[arm]
        missing = [f"{count} of {metric}" for metric, count in metrics.items() if count]
        if missing:
            yield f"{arm}: not scored: {', '.join(missing)}{_why(reasons[name] for name in metrics if name in reasons)}"
        if result.failed[arm]:
            why = _why(reasons[name] for name in (CONVERSATION,) if name in reasons)
            yield f"{arm}: {result.failed[arm]} environments did not end{why}"
    yield from (
        f"{row.label}: {row.dropped} pairs without a score in both arms are left out of the paired test"
        for row in result.comparisons
        if row.dropped and not row.untested
    )
    for arm, found in result.exposure.items():
        if "gate" in result.treats[arm] and found.checks and not found.regenerations:
            yield f"{arm}: the gate judged {found.checks:,} drafts and had none written again"
    for metric, calibration in result.calibrations.items():
        shares = (f"{arm} {calibration.told(scores[metric], NINE)}" for arm, scores in result.scores.items())
        yield f"calibrated judge of {metric}: it {calibration.summary}; {'; '.join(shares)}"
    spent = [f"{purse} {each.tokens:,}" for purse, each in result.usage.items() if each.tokens]
    if result.unknown_calls:
        spent.append(f"{result.unknown_calls:,} calls without a report")
    if spent:
        yield f"tokens: {' · '.join(spent)}"
    yield f"The test that counts is the exact sign flip over pairs of environments (two-sided, α {ALPHA});"
    yield "the interval is that of the paired t test."


def _why(reasons: Iterable[str]) -> str:
    """The different reasons, shortened, in brackets."""
    found = dict.fromkeys(reason if len(reason) < _LONG else f"{reason[:_LONG]} …" for reason in reasons)
    return f" ({'; '.join(found)})" if found else ""


def _p(p: float | None) -> str:
    return _NONE if p is None else p_text(p)


def _group(scores: tuple[float, ...]) -> str:
    """Mean and standard deviation of scores, as far as there are any."""
    if not scores:
        return _NONE
    mean = f"{half_up(fmean(scores), 2):.2f}"
    if len(scores) < 2:
        return mean
    return f"{mean} ({half_up(paired(scores).sd, 2):.2f})"
