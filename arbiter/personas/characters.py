"""Who an agent is meant to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from arbiter.errors import ConfigurationError
from arbiter.packs import PackModel, explain, pack_files, pack_folder, read_document, validate

SHIPPED = "arbiter:"


@dataclass(frozen=True, slots=True)
class Persona:
    """A character: its display name, and what it is like, in words.

    `id` is the name of its proposition files (`<dimension>/<id>.yaml`), "" for none. `fields` are further traits
    by name, such as an age or a list of habits; a judge is shown them after the description.
    """

    name: str
    description: str
    id: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The description and the further traits, as a judge is shown them."""
        traits = (
            f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
            for key, value in self.fields.items()
        )
        return "\n".join([self.description.strip(), *traits])

    @classmethod
    def of(cls, source: Persona | str | Path | Mapping[str, Any]) -> Persona:
        """The persona itself, or one from a mapping, a YAML file, or what ships ("arbiter:ilka").

        Raises `PackError` with all that is wrong in a file, `ConfigurationError` for another mistake.
        """
        if isinstance(source, Persona):
            return source
        if isinstance(source, Mapping):
            try:
                return _persona(PersonaFile.model_validate(source))
            except ValidationError as error:
                wrong = (
                    f"{'.'.join(map(str, place)) or 'it'}: {message}"
                    for place, message in explain(PersonaFile, source, error)
                )
                raise ConfigurationError(f"a persona is wrong: {'; '.join(wrong)}") from None
        file, name = _file(source)
        return _persona(validate(read_document(file, name), PersonaFile))


class PersonaFile(PackModel):
    """A character."""

    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str, Field(min_length=1)]
    id: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]*)?$")] = ""
    fields: Annotated[dict[str, Any], Field(default_factory=dict[str, Any])]


def _persona(found: PersonaFile) -> Persona:
    return Persona(found.name, found.description, found.id, found.fields)


def _file(source: str | Path) -> tuple[Traversable, str]:
    if isinstance(source, str) and source.startswith(SHIPPED):
        folder = pack_folder("evaluators").joinpath("personas")
        files = {file.name.rpartition(".")[0]: file for file in pack_files(folder)}
        if (file := files.get(source.removeprefix(SHIPPED))) is None:
            names = ", ".join(f"{SHIPPED}{name}" for name in files)
            raise ConfigurationError(f"expected one of {names}, got {source!r}.")
        return file, f"personas/{file.name}"
    return Path(source), str(source)
