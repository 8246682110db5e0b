"""The graph as LangGraph draws it, with the linter's findings marked."""

from __future__ import annotations

import itertools
import re

from arbiter.linting._findings import SEVERITIES, Severity
from arbiter.linting._linter import compiled
from arbiter.linting._report import LintReport
from arbiter.linting._table import shown

_FILL: dict[Severity, str] = {
    "error": "fill:#fdd,stroke:#c00,stroke-width:2px",
    "warning": "fill:#ffd,stroke:#b80,stroke-width:2px",
    "info": "fill:#def,stroke:#38c",
}
_STROKE: dict[Severity, str] = {"error": "#c00", "warning": "#b80", "info": "#38c"}
_EDGE = re.compile(r"^\t(?P<start>\S+) (?:-->|-\.->|-\. .* \.->|-- .* -->) (?P<end>\S+);$")
_PLAIN = re.compile(r"[A-Za-z0-9_-]")


def to_mermaid(report: LintReport, graph: object) -> str:
    """The graph as Mermaid text: offending nodes and paths are coloured, and each finding is a comment."""
    drawn = _drawn(graph)
    ids = {found for line in drawn.splitlines() for found in re.findall(r"^\t(\S+?)\(", line)}
    lines = [drawn.rstrip("\n")]
    for severity in SEVERITIES:
        of_this = [finding for finding in report if finding.severity == severity]
        # A node with an error is drawn as an error, whatever its other findings.
        nodes = {_id(node) for finding in of_this for node in finding.nodes} & ids
        ids -= nodes
        if nodes:
            lines.append(f"\tclassDef lint_{severity} {_FILL[severity]}")
            lines.append(f"\tclass {','.join(sorted(nodes))} lint_{severity}")
    lines += [f"\tlinkStyle {at} stroke:{_STROKE[s]},stroke-width:2px" for at, s in _marked(drawn, report)]
    lines += [f"%% {finding.severity} {finding.code}: {_comment(finding.message)}" for finding in report]
    return "\n".join(lines) + "\n"


def _drawn(graph: object) -> str:
    target = compiled(graph)
    try:
        return target.get_graph(xray=True).draw_mermaid()
    except ValueError:  # two subgraphs with the same name, which Mermaid does not support
        return target.get_graph().draw_mermaid()


def _marked(drawn: str, report: LintReport) -> list[tuple[int, Severity]]:
    """The edges on offending paths, by their position in the drawing."""
    edges = [(m["start"], m["end"]) for line in drawn.splitlines() if (m := _EDGE.match(line))]
    places = {place for edge in edges for place in edge}
    worst: dict[tuple[str, str], Severity] = {}
    for finding in report:  # errors come first
        # A node that is drawn as its subgraph has no place of its own.
        path = [place for name in finding.path if (place := _id(name)) in places]
        for pair in itertools.pairwise(path):
            worst.setdefault(pair, finding.severity)
    return [(at, worst[edge]) for at, edge in enumerate(edges) if edge in worst]


def _id(name: str) -> str:
    """The id of a node in LangChain's drawing."""
    return "".join(c if _PLAIN.match(c) else f"\\{ord(c):x}" for c in name)


def _comment(text: str) -> str:
    # Mermaid reads braces in a comment as a directive.
    return shown(text).replace("{", "(").replace("}", ")")
