"""A report as a table: code, message, offending path, place of the rule, remedy."""

from __future__ import annotations

import io
from collections.abc import Sequence

from langgraph.constants import START
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from arbiter.linting._findings import SEVERITIES, Finding

_START = {START: "START"}
_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def render_table(report: Sequence[Finding], *, width: int = 80, color: bool = False) -> str:
    """The report as text of `width` columns, without a final line end."""
    # Without colour the terminal is not queried, so that a file gets the same text as a screen.
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(table(report))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def table(report: Sequence[Finding]) -> Group | Text:
    """The report for `console.print`."""
    if not report:
        return Text("Nothing found.", style="green")
    rows = Table(box=box.SIMPLE_HEAD, show_lines=True, pad_edge=False, expand=False)
    rows.add_column("finding", no_wrap=True)
    rows.add_column("what, where, and what to do", overflow="fold")
    # A general pack has rules that this graph has no use for. They share one line.
    idle = sorted({finding.rule for finding in report if _is_idle(finding)})
    for finding in report:
        if not _is_idle(finding):
            code = Text(f"{finding.severity}\n{finding.code}", style=_STYLE[finding.severity])
            rows.add_row(code, _what(finding))
    counts = ((len([f for f in report if f.severity == severity]), severity) for severity in SEVERITIES)
    said = ", ".join(
        f"{count} {name}{'s' * (count != 1 and name != 'info')}" for count, name in counts if count
    )
    parts: list[Table | Text] = [rows] if rows.row_count else []
    if idle:
        parts.append(
            Text(
                f"Rules of shipped packs with nothing to do in this graph: {shown(', '.join(idle))}.\n",
                "cyan",
            )
        )
    return Group(*parts, Text(said))


def _is_idle(finding: Finding) -> bool:
    return (finding.code, finding.severity) == ("dead-rule", "info")


def _what(finding: Finding) -> Group:
    # Text and not markup: names come from users and from files.
    lines = [Padding(Text(shown(finding.message)), 0)]
    if finding.path:
        lines.append(_line("path", " → ".join(_START.get(name, name) for name in finding.path)))
    if finding.rule:
        lines.append(_line("rule", finding.rule + (f"  {finding.source}" if finding.source else "")))
    if finding.remedy:
        lines.append(_line("remedy", finding.remedy))
    return Group(*lines)


def _line(label: str, text: str) -> Padding:
    return Padding(Text.assemble((f"{label}: ", "dim"), shown(text)), (0, 0, 0, 2))


def shown(text: str) -> str:
    """`text` on one line, with escapes for characters that a terminal would act on or hide."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
