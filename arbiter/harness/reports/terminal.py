"""The report on a terminal: one table of rows, the worst cases, and what was not judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from arbiter.harness.reports import texts
from arbiter.harness.reports.report import Report, why_failed
from arbiter.models import visible

MOST_CASES = 50
"""The failed or changed cases that are shown."""
_ASCII = str.maketrans(
    {"✓": "+", "✗": "x", "·": "-", "–": "-", "−": "-", "…": "..", "Δ": "d", "×": "x", "→": ">", "—": "-"}
)


class Rendered:
    """The report as something that rich prints, as wide as the console and in characters that it has."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain, report = options.ascii_only, self.report
        about = visible(" · ".join(texts.head(report)))
        yield _shown(Text.assemble((visible(report.suite), "bold"), "  ", about), plain)
        yield Text("")
        yield _table(report, plain, options.max_width)
        for line in (*_worst(report), *_failures(report), *_foot(report), *_decision(report)):
            yield _shown(line, plain)


def _shown(line: Text, plain: bool) -> Text:
    if not plain:
        return line
    shown = Text(line.plain.translate(_ASCII).encode("ascii", "backslashreplace").decode(), style=line.style)
    shown.overflow, shown.no_wrap = "crop" if line.overflow == "ellipsis" else line.overflow, line.no_wrap
    return shown


def _table(report: Report, plain: bool, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = texts.titles(report)
    left_out = shown.index(texts.INTERVAL) if report.baseline is not None and width < 100 else None
    for title in _without(shown, left_out):
        justify: Any = "right" if title in texts.NUMBERS else "left"
        table.add_column(
            title.translate(_ASCII) if plain else title,
            justify=justify,
            overflow="fold",
            no_wrap=title not in ("evaluator", "verdict"),
        )
    for row in report.rows.values():
        style = "" if report.baseline is None else _STYLES.get(report.comparison.rows[row.name].verdict, "")
        found = _without(texts.cells(report, row), left_out)
        table.add_row(*(_shown(Text(cell), plain) for cell in found), style=style)
    return table


def _without(parts: list[str], place: int | None) -> list[str]:
    return parts if place is None else parts[:place] + parts[place + 1 :]


_STYLES = {
    "regressed": "red",
    "improved": "green",
    "underpowered": "yellow",
    "incomplete": "yellow",
    "incomparable": "yellow",
}


def _decision(report: Report) -> Iterator[Text]:
    style = "bold red" if report.comparison.failures else "yellow"
    for line in texts.decision(report):
        yield Text(line, style=style)
    for note in texts.remarks(report):
        yield Text(visible(f"  {note}"))


def _worst(report: Report) -> Iterator[Text]:
    for name, changes in texts.worst(report).items():
        yield Text(visible(f" worst changes   {name}: {changes}"))


def _failures(report: Report) -> Iterator[Text]:
    """The cases that failed, with the reasons."""
    results = texts.failed(report)
    for result in results[:MOST_CASES]:
        yield Text.assemble(
            (" ✗ ", "red"),
            visible(result.case_id),
            f"  {visible(why_failed(result))}",
            overflow="ellipsis",
            no_wrap=True,
        )
    if len(results) > MOST_CASES:
        yield Text(f"   and {len(results) - MOST_CASES:,} more")


def _foot(report: Report) -> Iterator[Text]:
    for name, counts in texts.labels(report).items():
        yield Text(visible(f" labels   {name}: {counts}"))
    yield Text(visible(f" not judged   {texts.not_judged(report)}"))
    if report.usage:
        yield Text(visible(f" tokens   {texts.spending(report)}"))
    if report.left_behind:
        yield Text(
            f" {texts.counted(report.left_behind, 'call')} of a sync function did not return and could not be stopped.",
            style="yellow",
        )
