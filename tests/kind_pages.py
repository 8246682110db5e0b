"""Writes the tables of docs/kinds/*.md: the parameters of each kind, as its constructor declares them.

    python -m tests.kind_pages

The text around the tables is written by hand. `tests/constitution/test_kinds.py` compares the tables with the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from arbiter._constitution.kinds import KINDS, class_at, parameter_rows
from arbiter._constitution.loading import SECTIONS
from tests.docs_check import ROOT

PAGES = ROOT / "docs" / "kinds"
ALL = [(section, use) for section in SECTIONS for use in KINDS[section]]
TWICE = {use for _, use in ALL if [kind for _, kind in ALL].count(use) > 1}
_TABLE = re.compile(r"^\| parameter .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def page(section: str, use: str) -> Path:
    """A kind's page; where a checker and an evaluator share a name, each has its own."""
    return PAGES / (f"{use}-{section.removesuffix('s')}.md" if use in TWICE else f"{use}.md")


def table(section: str, use: str) -> str:
    """The table of a kind's parameters."""
    rows = [
        f"| `{row.name}` | {row.expected} | {row.default} | {row.sentence} |"
        for row in parameter_rows(class_at(KINDS[section][use]))  # type: ignore[index]
    ]
    return "\n".join(["| parameter | is | default | meaning |", "|---|---|---|---|", *rows])


def with_table(text: str, section: str, use: str) -> str:
    """A kind's page with the table that the code gives."""
    return _TABLE.sub(lambda _: table(section, use), text, count=1)


if __name__ == "__main__":
    for section, use in ALL:
        path = page(section, use)
        path.write_text(with_table(path.read_text(encoding="utf-8"), section, use), encoding="utf-8")
