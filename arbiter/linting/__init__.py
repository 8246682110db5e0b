"""The linter: what is wrong with a graph and its rules, found without running either. See docs/linting.md."""

from arbiter.linting.findings import CODES, Finding, LintReport, Severity
from arbiter.linting.linter import lint
from arbiter.linting.mermaid import to_mermaid
from arbiter.linting.sarif import to_json, to_sarif
from arbiter.linting.table import render_table

__all__ = [
    "CODES",
    "Finding",
    "LintReport",
    "Severity",
    "lint",
    "render_table",
    "to_json",
    "to_mermaid",
    "to_sarif",
]
