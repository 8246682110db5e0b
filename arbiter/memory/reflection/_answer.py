"""The schema of a model's reflection, tolerant of the many ways in which models write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from math import isfinite
from typing import Annotated, Any, cast

from pydantic import AliasChoices, AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from arbiter.memory._records import Claim
from arbiter.memory.answers import LISTED, TEXT, TOLERANT
from arbiter.memory.facts._extraction import ExtractedClaim, meant
from arbiter.memory.reflection._relationships import normal_tags

MAX_METADATA = 16
"""Entries of a relationship's metadata that are read."""
MAX_METADATA_TEXT = 200
"""Longest text in metadata, in characters; longer ones are left out."""


def _none_as_text(value: object) -> object:
    return "" if value is None else value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    parts = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return tuple(part for part in parts if isinstance(part, str))


def _tags(value: object) -> tuple[str, ...]:
    return normal_tags(_texts(value))


def _scalars(value: object) -> dict[str, Any]:
    """Numbers, booleans and short texts by short names; a model's answer must not store anything larger."""
    if not isinstance(value, Mapping):
        return {}
    given = cast("Mapping[object, object]", value)
    found = {
        key: part
        for key, part in given.items()
        if isinstance(key, str) and _is_scalar(key) and _is_scalar(part)
    }
    return dict(list(found.items())[:MAX_METADATA])


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_METADATA_TEXT
    return isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))


def _either(name: str) -> AliasChoices:
    return AliasChoices(name, to_camel(name))


class FoundFact(ExtractedClaim):
    """A claim that the conversation supports, its keys written either way: `in_bio` or `inBio`."""

    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=_either))

    def sourced(self, message_ids: Mapping[str, str], zone: tzinfo | None = UTC) -> Claim:
        """The claim for a `FactStore`. Sources that the prompt did not show are dropped; `message_ids`
        maps shown ids to real ones. Dates without a zone are of `zone`."""
        told, wrong = (
            tuple(message_ids[id] for name in given if (id := meant(name, message_ids)))
            for given in (self.source_message_ids, self.corrects)
        )
        return replace(self.as_claim(zone), source_message_ids=told, corrects=wrong)


def _end(name: str) -> AliasChoices:
    return AliasChoices(f"{name}EntityId", f"{name}_entity_id", f"{name}Id", f"{name}_id", name)


class FoundRelationship(BaseModel):
    """What one entity is to another, in one direction."""

    source: Annotated[str, TEXT, Field(validation_alias=_end("source"))]
    target: Annotated[str, TEXT, Field(validation_alias=_end("target"))]
    tags: Annotated[tuple[str, ...], BeforeValidator(_tags)] = ()
    metadata: Annotated[dict[str, Any], BeforeValidator(_scalars)] = Field(default_factory=dict[str, Any])


class ReflectionAnswer(BaseModel):
    """A reflection on a stretch of conversation. A part that is wrong, or an item of one, does not cost the others."""

    thought: Annotated[
        str,
        BeforeValidator(_none_as_text),
        Field(description="how the conversation goes, in the first person"),
    ] = ""
    facts: Annotated[list[FoundFact], TOLERANT, LISTED] = Field(default_factory=list[FoundFact])
    relationships: Annotated[list[FoundRelationship], TOLERANT, LISTED] = Field(
        default_factory=list[FoundRelationship]
    )
