"""The report as one HTML file: no script, no request when it is opened, intervals as pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from arbiter._values.copies import jsonable
from arbiter.errors import ConfigurationError
from arbiter.harness.reports.report import Report, why_failed
from arbiter.harness.reports.texts import cells, decision, head, labels, not_judged, remarks, titles, worst
from arbiter.harness.rows import Row
from arbiter.models import visible

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment

WIDTH = 200
"""The width of the picture of an interval, in units of its SVG."""


def render(report: Report) -> str:
    """One HTML file with all cases. Texts of models and users are escaped."""
    return str(template().render(values_of(report)))


def template() -> Any:
    """The template of a page. Raises `ConfigurationError` without its package."""
    try:
        from jinja2 import PackageLoader
    except ModuleNotFoundError:
        raise ConfigurationError("a report in HTML needs jinja2: pip install 'arbiteros[report]'") from None
    return templates(PackageLoader("arbiter.harness", "reports")).get_template("page.html.jinja")


def templates(loader: BaseLoader) -> Environment:
    """Templates with the filter `shown`. Everything is escaped, and an undefined name is an error."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["shown"] = shown
    return made


def values_of(report: Report, part: slice = slice(None)) -> dict[str, Any]:
    """The values of a report in the template `body.html.jinja`, with a part of its cases, the failed ones first. It
    needs the filter `shown`."""
    return {
        "suite": report.suite,
        "head": head(report),
        "titles": titles(report),
        "rows": [(texts := cells(report, row), _picture(row, texts)) for row in report.rows.values()],
        "remarks": [*decision(report), *remarks(report)],
        "worst": worst(report),
        "labels": labels(report),
        "not_judged": not_judged(report),
        "results": list(_results(report, part)),
        "width": WIDTH,
    }


def _results(report: Report, part: slice) -> Iterator[dict[str, Any]]:
    inputs = {case.id: case for case in report.cases}
    for result in sorted(report.results, key=lambda result: result.passed)[part]:
        case = inputs[result.case_id]
        yield {
            "id": result.case_id,
            "repeat": result.repeat + 1,
            "passed": result.passed,
            "status": result.status,
            "why": why_failed(result),
            "input": case.input,
            "expected": jsonable(case.expected),
            "output": result.output,
            "error": result.error,
            "scores": result.scores,
        }


def _picture(row: Row, cells: list[str]) -> dict[str, Any] | None:
    """Where the interval of a row lies on its scale, in units of the SVG; None if there is none, or if the scale is
    open."""
    low, high = row.scale
    if row.interval is None or row.mean is None or not (isfinite(low) and isfinite(high)):
        return None
    begin, end, mean = ((value - low) / (high - low) * WIDTH for value in (*row.interval, row.mean))
    scale, mean_text, interval = cells[1], cells[3], cells[4]
    label = f"mean {mean_text}, 95 % {interval} of {scale}"
    return {"low": round(begin, 2), "high": round(end, 2), "mean": round(mean, 2), "label": label}


def shown(value: Any) -> str:
    """A text with its line ends, or JSON; other invisible characters as their codes."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return "\n".join(map(visible, text.split("\n")))
