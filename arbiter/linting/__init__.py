"""The linter: what is wrong with a graph and its rules, found without running either. See docs/linting.md."""

from arbiter.linting._findings import CODES, Finding, Severity
from arbiter.linting._linter import lint
from arbiter.linting._mermaid import to_mermaid
from arbiter.linting._report import LintReport
from arbiter.linting._sarif import to_json, to_sarif
from arbiter.linting._table import render_table

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
