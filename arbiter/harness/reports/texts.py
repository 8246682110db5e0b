"""The texts of a report that all of its forms for humans share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from shlex import quote

from arbiter.harness.agents import is_agent
from arbiter.harness.comparisons import RowComparison, decimals, scale_text, sentence
from arbiter.harness.expectations import reads_time
from arbiter.harness.judging import family_of
from arbiter.harness.kinds import UNTIMED
from arbiter.harness.reports.report import Report
from arbiter.harness.results import CaseResult
from arbiter.harness.rows import Row
from arbiter.harness.scores import SHARE, Scale
from arbiter.harness.usage import NOTHING, Spent, cost_text
from arbiter.models import visible
from arbiter.statistics import half_up, p_text

INTERVAL = "95 %"
NUMBERS = frozenset({"cases", "mean", "baseline", "Δ", "p"})
"""The titles of columns of numbers."""
_NO_LOSS = ("scored", "not_applicable")
_MOST_CHANGES = 3
_MOST_LABELS = 10
_LONGEST_LABEL = 60
_LONGEST_REASON = 300
_MARKS: Mapping[str, str] = {"regressed": "✗", "improved": "✓", "steady": "✓", "unpaired": "✓", "new": "·"}


def head(report: Report) -> list[str]:
    """The target, the mode, how much was run, who judged it, and what makes the numbers doubtful."""
    cases = counted(len(report.cases) + report.left_out, "case")
    parts = [report.target, report.mode, f"{len(report.cases):,} of {cases}" if report.left_out else cases]
    if len(report.results) > len(report.cases):
        parts.append(counted(len(report.results), "run"))
    for model, calibrated in report.judges.items():
        parts.append(f"judge {model} ({'' if calibrated else 'un'}calibrated)")
    if report.recorded:
        first, last = report.recorded[0], report.recorded[-1]
        parts.append(f"recorded {first}" if first == last else f"recorded {first} to {last}")
    if report.outdated:
        parts.append(f"{counted(len(report.outdated), 'recording')} outdated")
    if report.unknown_calls:
        parts.append(f"{counted(report.unknown_calls, 'call')} of unknown size")
    if report.sessions > 1:
        parts.append(f"{report.sessions} sessions")
    if report.stopped is not None:
        parts.append("still running" if report.stopped == "running" else f"stopped: {report.stopped}")
    return parts


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def titles(report: Report) -> list[str]:
    shown = ["evaluator", "scale", "cases", "mean", INTERVAL]
    return shown if report.baseline is None else [*shown, "baseline", "Δ", "p", "verdict"]


def cells(report: Report, row: Row) -> list[str]:
    """The cells of a row, by `titles`."""
    low, high = row.interval or (None, None)
    interval = "" if low is None or high is None else f"{number(low)} … {number(high)}"
    shown = [visible(row.name), scale(row), f"{row.n:,}", number(row.mean), interval]
    if report.baseline is None:
        return shown
    found = report.comparison.rows[row.name]
    shown += [number(found.before), _signed(found.delta), "" if found.p is None else p_text(found.p)]
    return [*shown, f"{_MARKS.get(found.verdict, '?')} {found.verdict}{_test(found)}{_finds(found)}"]


def _test(found: RowComparison) -> str:
    """The test of a row, if it is another one than that of its verdict's name and the usual one."""
    unpaired = found.method == "Welch" and found.verdict != "unpaired"
    return ", unpaired" if unpaired else ", paired t" if found.method == "paired t" else ""


def _finds(found: RowComparison) -> str:
    finds = found.verdict == "underpowered" and found.detectable is not None
    return f": finds {number(found.detectable)}" if finds else ""


def _signed(value: float | None) -> str:
    return "" if value is None else decimals(value, sign="+").replace("-", "−")


def number(value: float | None) -> str:
    return "—" if value is None else decimals(value)


def scale(row: Row) -> str:
    if row.is_share:
        return "share"
    low, high = (f"{end:g}" if isfinite(end) else "" for end in row.scale)
    return f"{low}–{high}" if high else "count"


def worst(report: Report) -> dict[str, str]:
    """The cases that dropped most, by row. Of a count, such as tokens or seconds, less may be better."""
    if report.baseline is None:
        return {}
    return {
        name: _changes(row, row.worst)
        for name, row in report.comparison.rows.items()
        if row.worst and isfinite(row.scale[1])
    }


def _changes(row: RowComparison, cases: tuple[str, ...]) -> str:
    shown = ", ".join(f"{case} {_change(row, *row.pairs[case])}" for case in cases[:_MOST_CHANGES])
    return shown + _more(len(cases) - _MOST_CHANGES)


def _change(row: RowComparison, then: float, now: float) -> str:
    if row.scale == SHARE and {then, now} == {0.0, 1.0}:
        return "✓ → ✗"
    return f"{half_up(then, 2):g} → {half_up(now, 2):g}"


def decision(report: Report) -> list[str]:
    """The line that says why the run fails, or cannot be decided; empty if it passed."""
    found = report.comparison
    if found.failures:
        case = next(_dropped(report), "")
        look = f" Look at it: arbiter eval show {quote(report.suite)} {case}" if case else ""
        how = "regressed" if any(row.verdict == "regressed" for row in found.rows.values()) else "failed"
        return [visible(f"✗ {report.suite} {how}: {sentence(found.failures)}{look}")]
    if found.missing_baseline:
        how = "Measure it, and name the file in gate.baseline: arbiter eval baseline SUITE"
        return [visible(f"✗ {report.suite} failed: there is no baseline, and CI asks for one. {how}.")]
    if found.undecided:
        return [visible(f"? {report.suite} is undecided: {sentence(found.undecided)}")]
    return []


def _dropped(report: Report) -> Iterator[str]:
    """The cases of the largest drops. The drop may also be that of a cluster, or of an agent; then
    the name of the row has the agent in it."""
    failing = {result.case_id for result in report.results if not result.passed}
    for row in report.comparison.rows.values():
        if row.verdict == "regressed":
            for name in (*row.worst[:1], row.name.partition(".")[2]):
                found = (case.id for case in report.cases if name in (case.id, case.cluster))
                yield from sorted(found, key=lambda id: id not in failing)


def failed(report: Report) -> list[CaseResult]:
    """The results that did not pass: first those of cases that always passed in the baseline and now always fail."""
    broken = {case for row in report.comparison.rows.values() for case in row.broken}
    found = [result for result in report.results if not result.passed]
    return sorted(found, key=lambda result: result.case_id not in broken)


def remarks(report: Report) -> list[str]:
    """The notes of the gate, why judges are uncalibrated, and what there is to say about recordings of a replay."""
    found = list(report.comparison.notes)
    if report.baseline is None and report.gate.baseline is not None:
        found.append(
            f"there is no baseline {report.gate.baseline} yet. Measure one: arbiter eval baseline SUITE"
        )
    if report.moved and any(row.verdict == "regressed" for row in report.comparison.rows.values()):
        found.append(
            "this is the first run since the baseline was replaced, and the one before passed: the new baseline "
            "may be a lucky draw. Measure it again: arbiter eval baseline SUITE --update"
        )
    rows: dict[str, list[str]] = {}
    for row, reason in report.uncalibrated.items():
        rows.setdefault(reason, []).append(row)
    found += [f"uncalibrated judge of {', '.join(its)}: {reason}" for reason, its in rows.items()]
    for row, calibration in report.calibrations.items():
        about = f"calibrated judge of {row}: it {calibration.summary}"
        mine = report.rows.get(row)  # a scorer of several has no row of its own
        found.append(
            about if mine is None else f"{about}; {calibration.told([*mine.values.values()], mine.scale)}"
        )
    found += [*_abstained(report), *_relatives(report), *_mixed(report), *_untimed(report)]
    if report.outdated:
        found.append(f"outdated recordings were taken (--allow-stale): {_first(report.outdated)}")
    if report.unused:
        how = "arbiter eval record --all removes them"
        found.append(f"recordings that no case needs: {_first(report.unused)}; {how}")
    return found


def _abstained(report: Report) -> Iterator[str]:
    """The rows of which nothing was judged because their judge abstained, each with the first reason."""
    for name in [name for name, row in report.rows.items() if not row.n]:
        reasons = (
            f"{name} abstained, first about {result.case_id}: {_short(score.reason, _LONGEST_REASON)}"
            for result in report.results
            for score in result.scores
            if score.name == name and score.outcome == "abstained" and score.reason
        )
        yield from islice(reasons, 1)


def _relatives(report: Report) -> Iterator[str]:
    """The judges that are of the family of the target's models, or are one of them."""
    models = sorted({model for result in report.results for model in result.usage.get("target", {}) if model})
    for judge in report.judges:
        for model in models:
            if judge.rpartition(":")[2] == model:
                yield f"the judge {judge} is also the model of the target"
            elif (family := family_of(judge)) and family == family_of(model):
                yield f"the judge {judge} is of the family of the target's {model}, whose style it may prefer"


def _mixed(report: Report) -> Iterator[str]:
    """The rows whose mean is over scores on several scales."""
    scales: dict[str, set[Scale]] = {}
    for result in report.results:
        for score in result.scores:
            if score.value is not None:
                scales.setdefault(score.name, set()).add(score.scale)
    for name, several in scales.items():
        if len(several) > 1:
            shown = " and ".join(map(scale_text, sorted(several)))
            yield f"the scores of {name} are on the scales {shown}, and its mean mixes them: give them one scale"


def _untimed(report: Report) -> Iterator[str]:
    """The scorers and cases that judge the time of replayed runs, which was not measured."""
    rows = {score.name: 0 for result in report.results for score in result.scores if score.reason == UNTIMED}
    untimed = (result for result in report.results if not result.duration)
    replayed = {result.case_id for result in untimed if result.status != "skipped_budget"}
    asked = (case for case in report.cases if case.id in replayed and reads_time(case.assertions))
    if found := [*rows, *(f"expect of {case.id}" for case in asked)]:
        yield f"{UNTIMED}, so these say nothing: {_first(found)}"


def _first(parts: Sequence[str]) -> str:
    return "; ".join(parts[:_MOST_CHANGES]) + _more(len(parts) - _MOST_CHANGES)


def _more(left: int) -> str:
    return f" (and {left:,} more)" if left > 0 else ""


def labels(report: Report) -> dict[str, str]:
    """The labels that were given most, with their numbers, by the name of the score."""
    found: dict[str, str] = {}
    for name, counts in report.labels.items():
        often = sorted(counts.items(), key=lambda each: -each[1])
        shown = ", ".join(
            f"{_short(label, _LONGEST_LABEL)} {count:,}" for label, count in often[:_MOST_LABELS]
        )
        found[name] = shown + _more(len(often) - _MOST_LABELS)
    return found


def _short(text: str, most: int) -> str:
    return (text or '""') if len(text) <= most else text[: most - 1] + "…"


def not_judged(report: Report) -> str:
    """The number of judgements that are missing, by row and outcome; "none" if there are all."""
    missing = [
        f"{row.name} {', '.join(f'{n:,} {o}{_unasked(report, row, o)}' for o, n in counts.items())}"
        for row in report.rows.values()
        if (counts := {o: count for o, count in row.outcomes.items() if not row.n or o not in _NO_LOSS})
    ]
    agents = {case.id for case in report.cases if is_agent(case)}
    missing += [
        f"{score.name}: {score.reason}"
        for result in report.results
        for score in result.scores
        if result.case_id in agents
        and score.outcome == "not_applicable"
        and score.name.endswith(f".{result.case_id}")
    ]
    return " · ".join(missing) or "none"


def _unasked(report: Report, row: Row, outcome: str) -> str:
    """How the runs ended that a row calls errors because there was nothing to judge; "" if there are none."""
    ended = Counter(
        result.status
        for result in report.results
        if result.unasked == result.outcome(row.name) == outcome == "error" and not result.scored(row.name)
    )
    return f" ({', '.join(f'{count:,} {status}' for status, count in ended.items())})" if ended else ""


def spending(report: Report) -> str:
    """The tokens by purse, and the cost, on one line."""
    purses = " · ".join(_spent(purse, spent) for purse, spent in report.usage.items())
    return f"{purses}   cost {cost_text(sum(report.usage.values(), NOTHING))}"


def _spent(purse: str, spent: Spent) -> str:
    least = "≥ " if spent.unknown_calls else ""
    tokens = "unknown" if spent.unknown_calls and not spent.tokens else f"{least}{spent.tokens:,}"
    replayed = f" (replayed {spent.replayed_tokens:,})" if spent.replayed_calls else ""
    return f"{purse} {tokens}{replayed}"
