"""The report as JSON."""

from __future__ import annotations

import json

from arbiter.harness.reports.report import Report


def render(report: Report) -> str:
    """The JSON of `report.to_dict()`, with a final line end."""
    return json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
