"""Personas: the characters that agents play."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, ValidationError

from arbiter._constitution.documents import (
    PackModel,
    explain,
    pack_files,
    pack_folder,
    read_document,
    validate,
)
from arbiter._values.parameters import Param, is_several
from arbiter.errors import ConfigurationError

SHIPPED = "arbiter:"


@dataclass(frozen=True, slots=True)
class Persona:
    """A character: its display name and a description in words.

    `id` is the name of its proposition files (`<dimension>/<id>.yaml`); "" if it has none. `fields` are
    further traits by name, such as an age or a list of habits; a judge sees them after the description.
    """

    name: Annotated[str, Param("the display name")]
    description: Annotated[str, Param("what the character is like, in words")]
    id: Annotated[str, Param("the name of its proposition files, `<dimension>/<id>.yaml`")] = ""
    fields: Annotated[Mapping[str, Any], Param("further traits by name, shown to the judge")] = field(
        default_factory=dict[str, Any]
    )

    def __post_init__(self) -> None:
        for name in ("name", "description", "id"):
            if not isinstance(given := getattr(self, name), str):
                raise ConfigurationError(f"Persona: {name}: expected a text, got {given!r:.80}.")
        if not self.name.strip():
            raise ConfigurationError(f"Persona: name: expected a name, got {self.name!r}.")
        if not isinstance(fields := cast(Any, self.fields), Mapping):
            raise ConfigurationError(f"Persona: fields: expected a mapping, got {fields!r:.80}.")

    @property
    def text(self) -> str:
        """The description and the further traits, as a judge sees them."""
        traits = (
            f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
            for key, value in self.fields.items()
        )
        return "\n".join([self.description.strip(), *traits])

    @classmethod
    def of(cls, source: Persona | str | Path | Mapping[str, Any]) -> Persona:
        """The persona itself, or one from a mapping, a YAML file, or a shipped one ("arbiter:ilka").

        Raises `PackError` with all mistakes of a file, `ConfigurationError` for any other mistake.
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


def name_of(agent: Persona | str) -> str:
    return agent.name if isinstance(agent, Persona) else agent


def agents_of(given: Persona | str | Iterable[Persona | str]) -> list[Persona | str]:
    """The agents in a list. Raises `ConfigurationError` unless each is a persona or a name."""
    listed: list[Any] = list(given) if is_several(given) else [given]
    for one in listed:
        if not isinstance(one, Persona | str):
            raise ConfigurationError(f"expected agents, each a Persona or a name, got {one!r:.80}.")
    return listed


class Names:
    """Finds the persona that a name in a message or of a node means.

    An exact name comes first, then an exact id, then the only persona whose name or id differs just in case,
    punctuation and spaces, because some providers allow `Ilka_Brandt` and not `Ilka Brandt`.
    """

    def __init__(self, personas: Iterable[Persona]) -> None:
        self._exact: dict[str, str] = {}
        loose: dict[str, set[str]] = {}
        personas = tuple(personas)
        for persona in personas:
            self._exact[persona.name] = persona.name
            for written in filter(None, (persona.name, persona.id)):
                loose.setdefault(_loosely(written), set()).add(persona.name)
        for persona in personas:
            if persona.id:
                self._exact.setdefault(persona.id, persona.name)
        self._loose = {written: names.pop() for written, names in loose.items() if len(names) == 1}

    def find(self, written: str) -> str | None:
        """The display name of the persona; None if no persona or more than one fits."""
        return self._exact.get(written) or self._loose.get(_loosely(written))


_NO_LETTERS = re.compile(r"[\W_]+")


def _loosely(written: str) -> str:
    folded = unicodedata.normalize("NFKC", written).casefold()
    return _NO_LETTERS.sub(" ", folded).strip() or folded


class PersonaFile(PackModel):
    """A character."""

    name: Annotated[str, Field(pattern=r"\S")]
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
    given: Any = source
    if not isinstance(given, str | Path):
        raise ConfigurationError(f"expected a Persona, a mapping or a file, got {given!r:.80}.")
    if Path(given).suffix.lower() not in (".yaml", ".yml") and not os.path.isfile(given):
        raise ConfigurationError(
            f"expected a persona's YAML file, or one that ships, like {SHIPPED}ilka, got {str(given)!r:.80}. "
            "Write Persona(name, description) for one of your own."
        )
    return Path(source), str(source)
