"""`arbiter schema`: the JSON Schemas of packs, of propositions and of personas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from arbiter._constitution.loading import FOLDERS
from arbiter._constitution.schema import json_schema
from arbiter._values.files import writing
from arbiter.personas._characters import PersonaFile
from arbiter.personas._propositions import PropositionFile

NAME = "pack.schema.json"
HEADER = f"# yaml-language-server: $schema={NAME}\n"
"""The first line of a pack, by which an editor finds the schema."""


PERSONAS: dict[str, tuple[str, type[BaseModel]]] = {
    "evaluators/propositions/propositions.schema.json": ("Propositions of one dimension", PropositionFile),
    "evaluators/personas/persona.schema.json": ("A persona", PersonaFile),
}
"""The schemas of the other files, by path. Each is written only if the project has that folder."""


def schema_text() -> str:
    """The text of the schema file of packs."""
    return _text(json_schema())


def persona_schema_text(place: str) -> str:
    """The text of the schema file in `PERSONAS` at that path."""
    title, model = PERSONAS[place]
    schema = model.model_json_schema()
    return _text({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title})


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(project: Path) -> list[Path]:
    """Write the schema of packs into each of the three folders that the project has, or into all three if it
    has none.

    The schemas in `PERSONAS` are written if the project has their folder. Returns the written files.
    """
    folders = [project / folder for folder in FOLDERS if (project / folder).is_dir()]
    text = schema_text()
    written: list[Path] = []
    for folder in folders or [project / folder for folder in FOLDERS]:
        with writing(folder / NAME):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NAME).write_text(text, encoding="utf-8")
        written.append(folder / NAME)
    for place in PERSONAS:
        file = project / place
        if file.parent.is_dir():
            with writing(file):
                file.write_text(persona_schema_text(place), encoding="utf-8")
            written.append(file)
    return written
