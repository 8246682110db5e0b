"""Profiles: a program's own pydantic models, filled from conversations field by field, one record for each
entity and model.

A record is `{"schema", "entity_id", "fields"}`. Each field has its value, the time of the turn that told it, its
messages and rooms, and its visibility; so it can be shown and forgotten by itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WrapValidator, create_model

from arbiter._values.kinds import is_list, is_mapping
from arbiter.errors import ParameterError
from arbiter.memory._records import Claim, Fact, Record, Records, Visibility, time_of, with_short_ids
from arbiter.memory.answers import TOLERANT
from arbiter.memory.facts._changes import Mention
from arbiter.memory.facts._extraction import Texts
from arbiter.memory.facts._normal import caseless
from arbiter.memory.facts._privacy import category, has_secret
from arbiter.memory.facts._rules import VISIBILITIES, FactRules
from arbiter.memory.stores import MemoryStore, Value
from arbiter.memory.stores._words import words_of

P = TypeVar("P", bound=BaseModel)
Schema = type[BaseModel]
StoredField = Mapping[str, Any]
Left = Callable[[str, str, StoredField], StoredField | None]
"""What is left of a field with that name, of the profile with that key."""
KIND = "profiles"
LONGEST = 2_000
"""Longest value of a field, in characters of JSON."""
_MOST_SOURCES = 100
_CHOICES = ("enum", "literal_error")
"""Mistakes of pydantic in a value that is none of its choices."""
_OWN = ("subject", "source_message_ids")
"""Names in an answer that say whom the fields are about and which messages tell them."""


# The schemas of a program -------------------------------------------------------------------------


def checked_schemas(owner: str, given: Any) -> tuple[Schema, ...]:
    """The models of profiles. Raises `ParameterError` with all mistakes in them."""
    wanted: Any = given
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ParameterError(owner, "schemas", f"expected a list of pydantic models, got {given!r:.80}.")
    found: list[Schema] = []
    mistakes: list[str] = []
    for schema in wanted:
        if not isinstance(schema, type) or not issubclass(schema, BaseModel):
            mistakes.append(f"expected a pydantic model, got {schema!r:.80}.")
            continue
        if schema.__name__ in (each.__name__ for each in found):
            mistakes.append(f"two models are called {schema.__name__}. Give one another name.")
        found.append(schema)
        mistakes += _mistakes(schema)
    if mistakes:
        raise ParameterError(owner, "schemas", " ".join(mistakes))
    return tuple(found)


def _mistakes(schema: Schema) -> list[str]:
    name = schema.__name__
    mistakes = [] if schema.model_fields else [f"{name} has no fields."]
    for field, declared in schema.model_fields.items():
        if declared.is_required():
            mistakes.append(
                f"{name}.{field} has no default, but a profile begins empty. Give it one, such as None."
            )
        if field in _OWN or declared.alias is not None or declared.validation_alias is not None:
            mistakes.append(
                f"{name}.{field}: expected a name other than {' and '.join(_OWN)}, without an alias."
            )
    return mistakes


# The answer of a model ----------------------------------------------------------------------------


def _as_given(value: Any, validate: Callable[[Any], Any]) -> Any:
    """A wrong value costs its field, not the answer: it is left out when the profile is validated."""
    try:
        return validate(value)
    except ValidationError:
        return value


def _listed(given: Any) -> list[Any]:
    if is_list(given):
        return [*given]
    return [given] if is_mapping(given) else []


def _object(given: Any) -> dict[str, Any]:
    return dict(given) if is_mapping(given) else {}


def _by_name(given: Any, *, schemas: tuple[Schema, ...]) -> dict[str, list[Any]]:
    """The profiles in an answer by their models: models write names in another case, a list of profiles, and the
    fields of the only profile without its name."""
    models = {schema.__name__: schema for schema in schemas}
    names = {name.casefold(): name for name in models} | {name: name for name in models}
    [(only, schema), *others] = models.items()
    found: dict[str, list[Any]] = {}
    for part in _listed(given):
        fields = _object(part)
        # A model may write other keys than texts, too.
        called = {key: names.get(key) or names.get(str(key).casefold()) for key in fields}
        named = [(name, told) for key, name in called.items() if name and (told := _listed(fields[key]))]
        if not (named or others) and not schema.model_fields.keys().isdisjoint(fields):
            # The name of the profile may be a field beside its own.
            named = [(only, [{key: value for key, value in fields.items() if value != only}])]
        for name, told in named:
            found.setdefault(name, []).extend(told)
    return found


@lru_cache(maxsize=64)
def with_profiles(answer: type[P], schemas: tuple[Schema, ...]) -> type[P]:
    """The schema of an answer that also has `profiles`, by the names of the models; made once."""
    if not schemas:
        return answer
    parts: dict[str, Any] = {}
    for schema in schemas:
        fields: dict[str, Any] = {
            name: (
                Annotated[declared.annotation | None, WrapValidator(_as_given)],  # type: ignore[operator]
                Field(None, description=declared.description),
            )
            for name, declared in schema.model_fields.items()
        }
        fields["subject"] = (
            Annotated[str | None, WrapValidator(_as_given)],
            Field(None, description="The id or name of the speaker, if it is not the user."),
        )
        fields["source_message_ids"] = (
            Texts,
            Field((), description="The ids of the messages that say so."),
        )
        update: Any = create_model(schema.__name__, __doc__=schema.__doc__, **fields)
        parts[schema.__name__] = (
            Annotated[list[update], TOLERANT, BeforeValidator(_listed)],
            Field(default_factory=list),
        )
    made: Any = create_model  # its hints know no fields that are made at run time
    profiles: Any = made("Profiles", __doc__="Fields of profiles that the new messages tell.", **parts)
    whole: type[P] = made(
        answer.__name__,
        __base__=answer,
        __doc__=answer.__doc__,
        profiles=(
            Annotated[profiles, BeforeValidator(partial(_by_name, schemas=schemas))],
            Field(default_factory=profiles),
        ),
    )
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Fields of a profile that an answer names. `subject` is a name or an id, None for the user."""

    schema: Schema
    values: Mapping[str, Any]
    subject: str | None
    source_message_ids: tuple[str, ...]


def updates_in(answer: BaseModel, schemas: Sequence[Schema]) -> list[Update]:
    """The updates in an answer, in its order. null is no update: models write it for what they do not know."""
    found: list[Update] = []
    profiles: Any = getattr(answer, "profiles", None)
    for schema in schemas:
        for part in getattr(profiles, schema.__name__, ()):
            try:
                values = part.model_dump(mode="json", exclude_none=True, warnings=False)
            except ValueError:  # nested too deeply for pydantic
                continue
            subject = values.pop("subject", None)
            sources = tuple(values.pop("source_message_ids", ()))
            if values:
                found.append(
                    Update(
                        schema=schema,
                        values=values,
                        subject=subject if isinstance(subject, str) else None,
                        source_message_ids=sources,
                    )
                )
    return found


# The records --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling(Record):
    """What a record has of a field beside its value, which is any JSON."""

    at: datetime
    source_message_ids: tuple[str, ...]
    room_ids: tuple[str, ...]
    visibility: Visibility


class Profiles(Records):
    """The profiles of one entity; `rules` and `now` decide which fields are too old to be known."""

    kind = KIND

    def __init__(
        self, store: MemoryStore, agent_id: str, entity_id: str, rules: FactRules, now: datetime
    ) -> None:
        super().__init__(store, agent_id, entity_id)
        self.rules = rules
        self._now = now
        self._since = None if rules.profile_ttl is None else now - rules.profile_ttl

    async def read(self, schema: type[P], *, room_id: str | None = None) -> P:
        """The profile; with `room_id` only the fields that this room may see.

        Fields that no longer fit the model are left out.
        """
        fields = _fields(await self.store.aget(self.space, schema.__name__))
        values = {
            name: field["value"]
            for name, field in fields.items()
            if name in schema.model_fields
            and not self._is_old(field)
            and (room_id is None or field["visibility"] != "room" or room_id in field["room_ids"])
        }
        return _valid(schema, {}, values)[0]

    async def update(self, schema: Schema, values: Mapping[str, Any], told: Mention) -> Counter[str]:
        """Change fields of the profile. Doing it again changes nothing; a later turn's value stays.

        Returns numbers of fields: "changed", and left out as "private" or "invalid".
        """
        allowed = {name: part for name, part in values.items() if self._may_be_kept(name, part)}
        changed = invalid = 0

        def change(value: Value | None) -> Value | None:
            nonlocal changed, invalid
            before = {name: field for name, field in _fields(value).items() if not self._is_old(field)}
            current = {name: field["value"] for name, field in before.items()}
            profile, wrong = _valid(schema, current, allowed)
            shown = profile.model_dump(mode="json", warnings=False)
            after = dict(before)
            for name in allowed.keys() - wrong:
                field = before.get(name)
                # After the clock was set back, earlier values are in the future.
                if field is None or not told.at < time_of(field["at"]) <= self._now:
                    sensitive = _is_sensitive(name, shown[name])
                    after[name] = _told_again(field, shown[name], told, sensitive=sensitive)
            changed = sum(after[name]["value"] != current.get(name) for name in after)
            invalid = len(wrong)
            if after == before:
                return value
            return {"schema": schema.__name__, "entity_id": self.scope, "fields": after}

        if allowed:
            await self.store.aupdate(self.space, schema.__name__, change)
        return Counter(changed=changed, private=len(values) - len(allowed), invalid=invalid)

    async def taken_by(self, left: Left) -> list[tuple[str, Value]]:
        """The key of each profile with a field of which not all is left, and its value with what is not left alone."""
        found: list[tuple[str, Value]] = []
        for entry in await self.store.alist(self.space):
            fields = _fields(entry.value)
            taken = {name: _taken(field, left(entry.key, name, field)) for name, field in fields.items()}
            if parts := {name: field for name, field in taken.items() if field is not None}:
                found.append((entry.key, {**entry.value, "fields": parts}))
        return found

    async def drop_old(self) -> None:
        def left(_: str, name: str, field: StoredField) -> StoredField | None:
            return None if self._is_old(field) else field

        if self._since is not None:
            for key, _ in await self.taken_by(left):
                await self.keep(key, left)

    def _may_be_kept(self, name: str, value: Any) -> bool:
        text = _text(value)
        if len(text) > LONGEST or has_secret(f"{_phrase(name)}: {text}", slot=_phrase(name), value=text):
            return False
        return self.rules.allow_sensitive or not _is_sensitive(name, value)

    def _is_old(self, field: Mapping[str, Any]) -> bool:
        return self._since is not None and time_of(field["at"]) < self._since

    async def keep(self, key: str, left: Left) -> None:
        """Keep of each field of a profile what is left, and of the profile nothing if no field is."""

        def change(value: Value | None) -> Value | None:
            after = {name: kept for name, field in _fields(value).items() if (kept := left(key, name, field))}
            return None if value is None or not after else {**value, "fields": after}

        await self.store.aupdate(self.space, key, change)


def left_of(
    name: str,
    field: StoredField,
    *,
    gone: Collection[Fact],
    kept: Collection[Fact],
    messages: Collection[str],
    unwanted: Callable[[str, str], bool],
) -> StoredField | None:
    """A field without what has an unwanted text or states one of the facts that are `gone`: without some parts of
    a list, or None.

    A value states a fact if the fact's claim has the value. A value of a forgotten message is forgotten too,
    unless one of the facts that are `kept` states it.
    """
    told = not {*messages}.isdisjoint(field["source_message_ids"])

    def is_forgotten(value: Any) -> bool:
        if unwanted(_text(value), name) or any(_states(value, fact) for fact in gone):
            return True
        return told and not any(_states(value, fact) for fact in kept)

    value = _without(field["value"], is_forgotten)
    return None if value is None else {**field, "value": value}


def still_told(
    values: Mapping[str, Any], *, gone: Collection[Claim | Fact], kept: Collection[Claim]
) -> dict[str, Any]:
    """The values of an update without what states a claim that is `gone`, unless one that is `kept` states it, too."""

    def is_gone(value: Any) -> bool:
        return any(_states(value, claim) for claim in gone) and not any(_states(value, one) for one in kept)

    left = {name: _without(value, is_gone) for name, value in values.items()}
    return {name: value for name, value in left.items() if value is not None}


def _taken(field: StoredField, left: StoredField | None) -> StoredField | None:
    """What `left` lacks of a field: the whole field, or some parts of its list."""
    if left is None:
        return field
    if left == field:
        return None
    return {**field, "value": [part for part in field["value"] if part not in left["value"]]}


def put_back(fields: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a profile with what a forgetting has taken of them. A field with a later time stays as it is."""
    found = {**taken, **fields}
    for name, field in taken.items():
        now = found[name]
        if now is not field and now["at"] == field["at"] and isinstance(now["value"], list):
            back = [part for part in field["value"] if part not in now["value"]]
            found[name] = {**now, "value": [*now["value"], *back]}
    return found


def _without(value: Any, unwanted: Callable[[Any], bool]) -> Any:
    """A value without the unwanted parts of a list; None if nothing is left."""
    if is_list(value) and value:
        return [part for part in value if not unwanted(part)] or None
    return None if unwanted(value) else value


def fields_of(schemas: Iterable[Schema]) -> list[str]:
    """The names of all fields, as a prompt lists them: "UserProfile.city"."""
    return [listed_as(schema.__name__, name) for schema in schemas for name in schema.model_fields]


def listed_as(schema: str, name: str) -> str:
    return f"{schema}.{name}"


def lines_of(profile: BaseModel) -> list[tuple[str, str]]:
    """The fields of a profile that have been told, with their values as text."""
    values = profile.model_dump(mode="json", exclude_unset=True, exclude_none=True, warnings=False)
    return [(name, _text(value)) for name, value in values.items()]


def _fields(value: Value | None) -> dict[str, dict[str, Any]]:
    fields = _object((value or {}).get("fields"))
    return {
        name: {**field, "source_message_ids": with_short_ids(field["source_message_ids"])}
        for name, field in fields.items()
        if isinstance(field, dict) and "value" in field and Telling.read(cast(Value, field)) is not None
    }


def _valid(schema: type[P], current: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[P, set[str]]:
    """The profile with the new values, and the names of those that do not fit."""
    good, wrong, is_spelt = dict(new), set[str](), False
    known = {name: value for name, value in current.items() if name in schema.model_fields}
    while True:
        try:
            return schema.model_validate({**known, **good}), wrong
        except ValidationError as error:
            # Once: the members of a union may spell a choice in two ways.
            if not is_spelt and (spelt := _as_spelt(good, error)) != good:
                good, is_spelt = spelt, True
                continue
            bad = {str(mistake["loc"][0]) for mistake in error.errors() if mistake["loc"]}
            # A mistake of the whole model is blamed on the new values, and on the known ones if there are no new.
            names = bad & {*good, *known} or {*good} or {*known}
            wrong |= names & {*good}
            known = {name: value for name, value in known.items() if name not in names - {*good}}
            good = {name: value for name, value in good.items() if name not in names}


def _as_spelt(values: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """The values with choices of an Enum or a Literal as their schema spells them: models write "Vegan" for "vegan"."""
    found = dict(values)
    for mistake in error.errors():
        expected = mistake.get("ctx", {}).get("expected") if mistake["type"] in _CHOICES else None
        given, choices = caseless(str(mistake["input"])), re.findall("'([^']*)'", str(expected))
        meant = [choice for choice in choices if caseless(choice) == given]
        if len(meant) == 1 and mistake["loc"][0] in found:
            found = _with(found, mistake["loc"], meant[0])
    return found


def _with(value: Any, place: Sequence[int | str], part: Any) -> Any:
    """A copy of the value with another part at that place, of which pydantic writes the members of unions, too."""
    if not place:
        return part
    at, *rest = place
    if isinstance(at, str) and is_mapping(value) and at in value:
        return {**value, at: _with(value[at], rest, part)}
    if is_list(value) and isinstance(at, int) and at < len(value):
        return [*value[:at], _with(value[at], rest, part), *value[at + 1 :]]
    return _with(value, rest, part)


def _told_again(
    before: Mapping[str, Any] | None, value: Any, told: Mention, *, sensitive: bool
) -> dict[str, Any]:
    visibility: Visibility = "room" if sensitive else told.visibility
    sources, rooms = [*told.sources], [told.room_id]
    if before is not None and before["value"] == value:
        if {*told.sources} <= {*before["source_message_ids"]}:
            return dict(before)
        sources, rooms = [*before["source_message_ids"], *sources], [*before["room_ids"], *rooms]
        known: Visibility = before["visibility"]
        is_wider = VISIBILITIES.index(known) > VISIBILITIES.index(visibility)
        visibility = known if sensitive or is_wider else visibility
    return {
        "value": value,
        "at": told.at.isoformat(),
        "source_message_ids": [*dict.fromkeys(sources)][-_MOST_SOURCES:],
        "room_ids": [*dict.fromkeys(rooms)][-_MOST_SOURCES:],
        "visibility": visibility,
    }


def _is_sensitive(name: str, value: Any) -> bool:
    return category(f"{_phrase(name)}: {_text(value)}", _phrase(name), _text(value)) is not None


def _phrase(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _states(value: Any, claim: Claim | Fact) -> bool:
    """True if a claim has the words of the value, or of a part of it."""
    parts = value if is_list(value) else [*value.values()] if is_mapping(value) else [value]
    said = words_of(f"{claim.claim} {claim.value or ''}")
    found = [words_of(_text(part)) for part in parts if not isinstance(part, bool)]
    return any(words and words <= said for words in found)
