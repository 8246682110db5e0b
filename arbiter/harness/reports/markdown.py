"""The report as Markdown, for the summary of a CI job and for comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from arbiter.harness.reports import texts
from arbiter.harness.reports.report import Report, why_failed
from arbiter.models import visible

MOST_CASES = 200
"""The failed cases that are listed."""
_MARKUP = re.compile(r"([\\`*_\[\]<>|~$&]|^[#+-])")
_REFERENCE = re.compile(r"@|#(?=\d)|\bGH-(?=\d)", re.IGNORECASE)
"""What makes a forge notify a user, or link to an issue and say so there. A space of no width behind it undoes that."""


def render(report: Report) -> str:
    """Markdown with one table of rows. Texts of models and users are escaped, so they format nothing."""
    lines = [f"### {escaped(report.suite)}", "", escaped(" · ".join(texts.head(report))), ""]
    shown = texts.titles(report)
    lines += [table_row(shown), table_row(["---:" if title in texts.NUMBERS else "---" for title in shown])]
    lines += [table_row(map(escaped, texts.cells(report, row))) for row in report.rows.values()]
    lines.append("")
    lines += [f"- worst changes, {escaped(name)}: {escaped(of)}" for name, of in texts.worst(report).items()]
    lines += [f"- labels, {escaped(name)}: {escaped(of)}" for name, of in texts.labels(report).items()]
    lines += [*_failures(report), "", f"not judged: {escaped(texts.not_judged(report))}"]
    if report.usage:
        lines += ["", f"tokens: {escaped(texts.spending(report))}"]
    for line in (*texts.decision(report), *texts.remarks(report)):
        lines += ["", f"**{escaped(line)}**"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return _REFERENCE.sub(r"\g<0>&#8203;", _MARKUP.sub(r"\\\1", visible(text)))


def table_row(shown: Iterable[str]) -> str:
    """A row of a table. The cells are escaped already."""
    return f"| {' | '.join(shown)} |"


def _failures(report: Report) -> Iterator[str]:
    results = texts.failed(report)
    for result in results[:MOST_CASES]:
        yield f"- ✗ {escaped(result.case_id)}: {escaped(why_failed(result))}"
    if len(results) > MOST_CASES:
        yield f"- and {len(results) - MOST_CASES:,} more"
