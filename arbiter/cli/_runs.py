"""`arbiter eval show`, `list`, `report`, `gate`, `compare` and `plan`: runs that are there already."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from arbiter.cli._options import Screen, check_format, check_place
from arbiter.cli._streams import reader_may_leave, tell
from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.baselines import Baseline
from arbiter.harness.canonical import text_of
from arbiter.harness.journal import (
    FOLDER,
    Summary,
    head_of,
    reading,
    run_folder,
    runs_in,
    runs_of,
    summary_of,
)
from arbiter.harness.planning import plan, usual_drops, votes_of
from arbiter.harness.reports.report import FORMS, Report, load_report, result_to_dict, timing_of
from arbiter.harness.rows import Row
from arbiter.models import visible

FORMATS = {"table": "", "json": "", "md": "markdown", "html": "page", "junit": "junit"}
"""The values of `--format`, each with the module of its form."""
out = Console(highlight=False, soft_wrap=False)


def print_report(report: Report, format: str) -> None:
    """Print a report in one of the `FORMATS`."""
    with reader_may_leave():
        if format == "json":
            print(json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False))
        elif form := FORMATS[format]:
            print(report.rendered(form), end="")
        else:
            report.pprint(out)


def show_run(run: str, format: str) -> None:
    check_format(format, FORMATS)
    with reading(folder := run_folder(run)):
        print_report(load_report(folder), format)


def show_case(run: str, case: str, format: str) -> None:
    """Print all about a case of a run."""
    if format not in ("table", "json"):
        raise ConfigurationError(f"--format is {format!r}; expected table or json, as for all about a case.")
    with reading(folder := run_folder(run)):
        _print_case(load_report(folder), case, format)


def _print_case(report: Report, case: str, format: str) -> None:
    results = [result for result in report.results if result.case_id == case]
    cases = {each.id: each for each in report.cases}
    if not results:
        raise ConfigurationError(f"the run {report.run_id} has no case {case!r}.{nearest(case, cases)}")
    asked = cases[case]
    if format == "json":
        data = {
            "case": asked.to_dict(),
            "results": [{**result_to_dict(r), "timing": timing_of(r)} for r in results],
        }
        print(json.dumps(data, ensure_ascii=False, allow_nan=False))
        return
    for line in _case_lines({"input": asked.input, "expected": asked.expected}):
        out.print(line)
    for result in results:
        took = f" in {result.duration:.3g} s" if result.duration else ""  # a replay takes no time
        out.print(Text(f"repeat {result.repeat + 1}: {result.status}{took}", "bold"))
        for line in _case_lines({"output": result.output, "error": result.error}):
            out.print(line)
        for step in result.trajectory:
            ran = ", ".join(visit["node"] for visit in step if "status" not in visit)
            ended = [_ended(visit) for visit in step if "status" in visit]
            for told in ([f"ran {ran}"] if ran else []) + ended:
                out.print(Text(visible(f"  {told}")))
        for score in result.scores:
            scored = '""' if score.value is None else f"{score.value:g}"
            value = score.outcome if score.outcome != "scored" else score.label or scored
            mark = {True: " ✓", False: " ✗", None: ""}[score.passed]
            where = f" ({score.node})" if score.node else ""
            for line in _lines(f"  {score.name}{where} {value}{mark}  {score.reason}".rstrip()):
                out.print(line)


def _ended(visit: Mapping[str, Any]) -> str:
    """How a node run ended that did not complete. Its policy denied it, or asked a human."""
    by = f" by {visit['policy']}" if "policy" in visit else ""
    return f"{visit['node']} {visit['status']}{by}"


def _case_lines(values: dict[str, Any]) -> Iterable[Text]:
    for name, value in values.items():
        if value is not None:
            first, *more = _lines(text_of(value))
            yield Text.assemble((f"  {name} ", "bold"), first)
            yield from more


def _lines(text: str) -> list[Text]:
    """A text line by line, the later ones indented."""
    first, *more = text.splitlines() or [""]
    return [Text(visible(first)), *(Text(f"    {visible(line)}") for line in more)]


def list_runs() -> None:
    """Print a line for each run."""
    rows = [
        (run, found.suite, found.target, f"{found.done:,}", found.state) for run, found in summaries(FOLDER)
    ]
    Screen("table").table(("run", "suite", "target", ">cases", "state"), rows)


def summaries(folder: Path) -> Iterator[tuple[str, Summary]]:
    """The runs in a folder by their ids, the newest last. A run that cannot be read is reported, and hides no other."""
    for run in runs_in(folder):
        try:
            found = summary_of(run)
        except ConfigurationError as error:
            tell(str(error), "yellow")
        else:
            yield run.name, found


def write_report(run: str, path: Path) -> Path:
    check_place(path, FORMS)
    with reading(folder := run_folder(run)):
        return load_report(folder).write(path)


def gate_run(
    run: str, baseline: Path | None, format: str, *, ci: bool, strict: bool, accept_changed: bool
) -> int:
    """Print the report of a run with the verdicts about a baseline. Returns the exit code."""
    check_format(format, FORMATS)
    with reading(folder := run_folder(run)):
        report = gated(folder, baseline, ci=ci, strict=strict, accept_changed=accept_changed)
        print_report(report, format)
    if report.baseline is None and report.gate.baseline is None:
        said = "the run names no baseline, so it was compared with none. Name one: --baseline FILE"
        tell(said, "yellow")
    return report.comparison.exit_code


def gated(folder: Path, baseline: Path | None, *, ci: bool, strict: bool, accept_changed: bool) -> Report:
    """The report of a run with the verdicts about a baseline, by default that of its suite."""
    report = load_report(folder, baseline=baseline)
    gate = replace(report.gate, strict=True) if strict else report.gate
    return replace(report, gate=gate, ci=ci, accept_changed=accept_changed)


def compare_runs(before: str, after: str | None, format: str) -> int:
    """Print the newer run with the verdicts about the older one. Returns the exit code."""
    check_format(format, FORMATS)
    first = run_folder(before)
    with reading(first):
        older = load_report(first)
    second = run_folder(after or "last", suite=older.suite)
    if after is None and second.name == first.name:
        first = _before(second, older.suite)
        with reading(first):
            older = load_report(first)
    if after is not None and (other := head_of(second).get("suite")) != older.suite:
        raise ConfigurationError(
            f"{first.name} is a run of the suite {older.suite!r}, and {second.name} of {other!r}. "
            "Name two runs of one suite."
        )
    with reading(first, second):
        then = Baseline.of(older.measurement(), captured_at=older.began)
        report = load_report(second, baseline=then)
        print_report(report, format)
        return report.comparison.exit_code


def _before(run: Path, suite: str) -> Path:
    """The run before the newest one of a suite."""
    for folder in runs_of(suite):
        if folder.name < run.name:
            return folder
    raise ConfigurationError(
        f"there is nothing to compare: {run.name} is the only run of the suite {suite!r}."
    )


def print_plan(run: str, drop: float | None, row: str | None) -> None:
    """Print the number of cases that it takes to find a drop, for each row."""
    with reading(folder := run_folder(run)):
        _print_plan(load_report(folder), drop, row)


def _print_plan(report: Report, drop: float | None, row: str | None) -> None:
    if row is not None:
        check_row(row, report)
    if drop is not None and not 0 < drop < math.inf:
        raise ConfigurationError(f"--drop is {drop:g}; expected a number above 0.")
    refused: list[str] = []
    names = [row] if row is not None else list(report.rows)
    for name in names:
        try:
            votes = votes_of(report.results, name)
            found = plan(
                report.rows[name],
                comparison=report.comparison.rows[name],
                votes=votes if len(votes) > 1 else None,
                drops=_drops(report.rows[name], drop),
            )
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            for line in found.text(drop).splitlines():
                out.print(Text(visible(line)), soft_wrap=True)
    if len(refused) == len(names):
        raise ConfigurationError("\n".join(refused))
    for problem in refused:
        tell(problem)


def check_row(row: str, report: Report) -> None:
    """Raise `ConfigurationError` for a row that the run has not."""
    if row not in report.rows:
        raise ConfigurationError(
            f"{row!r} is not a row of the run. Rows: {', '.join(report.rows)}.{nearest(row, report.rows)}"
        )


def _drops(row: Row, wanted: float | None) -> Sequence[float] | None:
    """The usual drops of a row and the one that is wanted; that alone for a scale without an end."""
    if wanted is None:
        return None
    return sorted({wanted, *(usual_drops(row) if all(map(math.isfinite, row.scale)) else ())})
