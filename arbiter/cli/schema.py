"""`arbiter schema`: the JSON Schema of packs."""

from __future__ import annotations

import json
from pathlib import Path

from arbiter.constitution import FOLDERS, json_schema

NAME = "pack.schema.json"
HEADER = f"# yaml-language-server: $schema={NAME}\n"
"""The first line of a pack, which tells an editor where its schema is."""


def schema_text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def write_schemas(project: Path) -> list[Path]:
    """Write it into those of the three folders that the project has, or else all three. Returns what was written."""
    folders = [project / folder for folder in FOLDERS if (project / folder).is_dir()]
    text = schema_text()
    written: list[Path] = []
    for folder in folders or [project / folder for folder in FOLDERS]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NAME).write_text(text, encoding="utf-8")
        written.append(folder / NAME)
    return written
