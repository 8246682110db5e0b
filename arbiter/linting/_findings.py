"""Findings of the linter, and the meaning of each code."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

CODES: dict[str, str] = {
    "no-instruction": "A node has no instruction, so no rule for an instruction applies to it.",
    "dead-rule": "A rule can never fire: it matches no node of the graph.",
    "unknown-node": "A rule names a node that the graph does not have.",
    "unknown-field": "A rule names a field that the state does not have.",
    "no-boolean": "A condition never gives true or false, so it fails each time.",
    "unknown-instruction": "A condition compares the instruction with a text that is none.",
    "unknown-rule": "A condition counts the denials of a rule that does not exist, but one of nearly that name.",
    "unknown-evaluator": "A rule reads an evaluator that is not registered, or is off.",
    "unknown-tool": "A rule names a tool that the graph does not have, but one of nearly that name.",
    "unknown-error": "A router is for an exception that does not exist, but one of nearly that name, or path.",
    "unknown-target": "A redirect leads to a node that the graph does not have.",
    "unverified-path": "A path leads to a node without the step that a rule demands before it.",
    "always-denied": "A rule denies a node on every path, so it can never run.",
    "denied-edge": "An edge leads into a sequence that a rule forbids.",
    "passed-sequence": "A path has a forbidden sequence with other steps between, where its rule does not hold.",
    "endless-cycle": "A cycle of static edges has no way out.",
    "no-end": "No path leads from these nodes to the end of the run.",
    "uncapped-cycle": "Nothing bounds how often a cycle is repeated.",
    "contradiction": "Two rules cannot both be kept.",
    "no-checkpointer": "A rule asks a human, and the graph has no checkpointer to keep the question.",
    "unreachable": "No path from the start leads to a node.",
    "not-analysed": "A graph was too large, or too dynamic, for a check to look at all of its runs.",
}
"""Every code, with its meaning in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake in a graph and its rules.

    `nodes` are the offending nodes, the main one first; a node of a subgraph is `parent:child`. `path` is the
    offending path, in order. `rule` is the name of the rule and `source` the place of its declaration
    ("file:line"), or "".
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
        """The main offending node, or ""."""
        return self.nodes[0] if self.nodes else ""

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-able data."""
        return asdict(self) | {"nodes": list(self.nodes), "path": list(self.path)}

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}{self.severity} {self.code}: {self.message}"
