"""`arbiter lint`: the linter on a graph and a constitution."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from arbiter._objects import load_graph
from arbiter.arbiter_os import ArbiterOS
from arbiter.cli._models import StandIns
from arbiter.cli._options import check_format, tell_of_unread_rules
from arbiter.cli._streams import reader_may_leave
from arbiter.linting import to_json, to_mermaid, to_sarif
from arbiter.linting._table import table

FORMATS = ("table", "json", "sarif", "mermaid")


def lint_graph(
    where: str, constitution: list[str] | None, allow: tuple[str, ...], format: str, strict: bool
) -> int:
    """Print the findings of the linter. Returns 1 if there are errors (with `strict`, also warnings), else 0."""
    check_format(format, FORMATS)
    graph = load_graph(where)
    tell_of_unread_rules(graph, constitution)
    arbiter_os = ArbiterOS()
    if constitution:
        arbiter_os.load_constitution(constitution, allow=allow, models=StandIns())
    report = arbiter_os.lint(graph)
    with reader_may_leave():
        match format:
            case "table":
                Console(highlight=False).print(table(report))
            case "json":
                sys.stdout.write(to_json(report) + "\n")
            case "sarif":
                # Files of several sources are named from here, those of one from its folder.
                place = Path(constitution[0] if constitution and not constitution[1:] else "")
                folder = place if place.is_dir() else place.parent
                sys.stdout.write(to_sarif(report, folder=folder) + "\n")
            case _:
                sys.stdout.write(to_mermaid(report, graph) + "\n")
    wrong = [
        finding
        for finding in report
        if finding.severity == "error" or (strict and finding.severity == "warning")
    ]
    return 1 if wrong else 0
