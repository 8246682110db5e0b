"""A report as JSON, and as SARIF 2.1.0, which code hosts and editors show next to the lines of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from arbiter.linting._findings import CODES, Finding
from arbiter.linting._report import LintReport

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_json(report: LintReport) -> str:
    """The report as JSON text; see `LintReport.to_dict`."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False)


def to_sarif(report: LintReport, *, folder: str | Path = "") -> str:
    """The report as SARIF 2.1.0. Findings about a rule from a file point to that file, others to their nodes.

    `folder` is that of a constitution, which names its files relative to it.
    """
    codes = [code for code in CODES if any(finding.code == code for finding in report)]
    driver = {
        "name": "arbiter",
        "rules": [{"id": code, "shortDescription": {"text": CODES[code]}} for code in codes],
    }
    run = {"tool": {"driver": driver}, "results": [_result(finding, codes, folder) for finding in report]}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


def _result(finding: Finding, codes: list[str], folder: str | Path) -> dict[str, Any]:
    text = finding.message + (f"\nPath: {' → '.join(finding.path)}" if finding.path else "")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{text}\n{finding.remedy}" if finding.remedy else text},
    }
    location: dict[str, Any] = {}
    if (physical := _physical(finding.source, folder)) is not None:
        location["physicalLocation"] = physical
    if finding.nodes:
        location["logicalLocations"] = [
            {"name": node.rpartition(":")[2], "fullyQualifiedName": node, "kind": "function"}
            for node in finding.nodes
        ]
    if location:
        result["locations"] = [location]
    return result


def _physical(source: str, folder: str | Path) -> dict[str, Any] | None:
    file, _, line = source.rpartition(":")
    if not file or not line.isdecimal() or int(line) < 1 or file.startswith("arbiter:"):
        return None
    path = Path(folder, file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}
