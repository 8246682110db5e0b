"""What the linter says: findings, the report that holds them, and what each code means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

CODES: dict[str, str] = {
    "no-instruction": "A node has no instruction, so no rule for an instruction applies to it.",
    "dead-rule": "A rule can never fire: it matches no node of the graph.",
    "unknown-node": "A rule names a node that the graph does not have.",
    "unknown-target": "A redirect leads to a node that the graph does not have.",
    "unverified-path": "A path leads to a node without the step that a rule demands before it.",
    "always-denied": "A rule denies a node on every path, so it can never run.",
    "denied-edge": "An edge leads into a sequence that a rule forbids.",
    "passed-sequence": "A path has a forbidden sequence with other steps between, where its rule does not hold.",
    "endless-cycle": "A cycle of static edges has no way out.",
    "no-end": "No path leads from these nodes to the end of the run.",
    "uncapped-cycle": "Nothing bounds how often a cycle is repeated.",
    "contradiction": "Two rules cannot both be kept.",
    "unreachable": "No path from the start leads to a node.",
    "not-analysed": "A graph was too large, or too dynamic, for a check to look at all of its runs.",
}
"""Every code, with what it means in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong with a graph and its rules.

    `nodes` are the offending ones, the first one most of all; a node of a subgraph is `parent:child`. `path` is the
    offending path, in order. `rule` is the name of the rule and `source` where it was declared ("file:line"), or "".
    """

    code: str
    severity: Severity
    message: str
    nodes: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    rule: str = ""
    source: str = ""
    remedy: str = ""

    @property
    def node(self) -> str:
        """The node that is most at fault, or ""."""
        return self.nodes[0] if self.nodes else ""

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-able data."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "nodes": list(self.nodes),
            "path": list(self.path),
            "rule": self.rule,
            "source": self.source,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}{self.severity} {self.code}: {self.message}"


class LintReport(Sequence[Finding]):
    """Findings, errors first. As text it is the table that `arbiter lint` prints."""

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
        """Findings with which the graph should not go into production."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that somebody should look at."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """Whether there is no error. Warnings may be left."""
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
        from arbiter.linting.table import render_table

        return render_table(self)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {s}" for s in SEVERITIES if (found := self._of(s)))
        return f"<LintReport: {counts or 'nothing found'}>"


def _order(finding: Finding) -> tuple[int, int, tuple[str, ...], str]:
    codes = list(CODES)
    at = codes.index(finding.code) if finding.code in CODES else len(codes)
    return SEVERITIES.index(finding.severity), at, finding.nodes, finding.rule
