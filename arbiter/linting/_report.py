"""The linter's report: its findings in order."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, overload

from arbiter.linting._findings import CODES, SEVERITIES, Finding, Severity
from arbiter.linting._table import render_table


class LintReport(Sequence[Finding]):
    """Findings, errors first. Printed as text, it is the table of `arbiter lint`."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._findings = tuple(sorted(findings, key=_order))

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that should keep the graph out of production."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that a human should look at."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """True if there is no error. There may be warnings."""
        return not self.errors

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self._findings if finding.severity == severity)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data."""
        return {
            "ok": self.ok,
            "counts": {severity: len(self._of(severity)) for severity in SEVERITIES},
            "findings": [finding.to_dict() for finding in self._findings],
        }

    def __str__(self) -> str:
        return render_table(self)

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {s}" for s in SEVERITIES if (found := self._of(s)))
        return f"<LintReport: {counts or 'nothing found'}>"


def _order(finding: Finding) -> tuple[int, int, tuple[str, ...], str]:
    codes = list(CODES)
    at = codes.index(finding.code) if finding.code in CODES else len(codes)
    return SEVERITIES.index(finding.severity), at, finding.nodes, finding.rule
