"""The form that a value must have: JSON Schemas and classes that pydantic validates, both as a `Shape`.

Patterns are matched by the linear engine that comes with pydantic, so that no text can make a pattern hang.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema

from arbiter._values.states import ROOT, as_state, thaw
from arbiter.errors import ParameterError, nearest

A_SCHEMA = "a JSON Schema, a class that pydantic validates, or the dotted path of one"
MAX_STEPS = 100_000
"""The number of times that a keyword of a JSON Schema is checked against a value or a part of it, about 5 µs
each.
"""
MOST = 5
"""The number of mistakes that are listed for one value."""
_LONGEST = 160
_DEEPEST = 8

Path = tuple[str | int, ...]
Faults = Callable[[Any], Iterator[tuple[Path, str]]]


class Shape:
    """A JSON Schema, or a class that pydantic validates."""

    def __init__(self, faults: Faults, *, of_text: bool, takes_texts: bool = False) -> None:
        self._faults = faults
        self.of_text = of_text
        """True if the shape describes a text itself, and not JSON inside a text."""
        self.takes_texts = takes_texts
        """True if it takes nothing but texts, or null, as by a list of them. One of them may be JSON inside a text."""

    def mistakes(self, value: Any, root: str) -> list[str]:
        """The mistakes in `value`, such as "output.items[0].price: is not of type 'number'"; empty if it
        fits.

        The value itself is never quoted. At most five mistakes are listed, then "...". `root` is the name of
        the value.
        """
        found = [
            f"{_where(root, path)}: {_short(what)}" for path, what in islice(self._faults(value), MOST + 1)
        ]
        return [*found[:MOST], "..."] if len(found) > MOST else found


def shape_of(given: object, owner: str, parameter: str) -> Shape:
    """The shape for a JSON Schema, a class, or the dotted path of a class. Raises `ParameterError` for
    anything else.
    """
    schema: Any = given
    if isinstance(given, Mapping):
        faults = _json_faults(schema, owner, parameter)
        return Shape(faults, of_text=schema.get("type") == "string", takes_texts=_takes_texts(schema))
    if isinstance(given, str):
        try:
            schema = resolve(given)
        except (ImportError, AttributeError, TypeError, ValueError) as exc:
            problem = f"expected a class by dotted path, got {given!r}, which cannot be imported: {exc}"
            raise ParameterError(owner, parameter, f"{problem}. Write package.module.Class.") from exc
    if not isinstance(schema, type):
        raise ParameterError(
            owner, parameter, f"expected a JSON Schema (a mapping) or a class, got {_short(repr(given))}."
        )
    try:
        adapter = TypeAdapter[Any](schema)
    except (PydanticSchemaGenerationError, PydanticUserError) as exc:
        problem = f"expected a class that pydantic validates, got {schema.__qualname__}. "
        raise ParameterError(owner, parameter, f"{problem}Make it a pydantic BaseModel.") from exc
    choices = [member.value for member in schema] if issubclass(schema, Enum) else ()
    return Shape(_class_faults(adapter), of_text=issubclass(schema, str), takes_texts=_are_texts(choices))


def _takes_texts(given: Any) -> bool:
    schema = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {})
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return all(map(_takes_texts, parts))
    if kinds := schema.get("type"):
        return all(kind in ("string", "null") for kind in ([kinds] if isinstance(kinds, str) else kinds))
    return _are_texts(schema.get("enum", [schema["const"]] if "const" in schema else ()))


def _are_texts(choices: Collection[Any]) -> bool:
    return bool(choices) and all(isinstance(choice, str | None) for choice in choices)


def resolve(path: str) -> type:
    """The class at a dotted path. Imports its module, so a path from a file must be allowed before this call."""
    module, _, name = path.rpartition(".")
    found: object = getattr(import_module(module), name)
    if not isinstance(found, type):
        raise TypeError(f"it is a {type(found).__name__}, not a class")
    return found


def whole(state: Mapping[str, Any]) -> Any:
    """The value that a state stands for: the state itself, or the value that was not a mapping."""
    return state[ROOT] if len(state) == 1 and ROOT in state else state


def _where(root: str, path: Iterable[str | int]) -> str:
    for part in path:
        root += f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]"
    return root


def _short(text: str) -> str:
    """A long text shortened to its two ends."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


# Classes ------------------------------------------------------------------------------------------


def _class_faults(adapter: TypeAdapter[Any]) -> Faults:
    def faults(value: Any) -> Iterator[tuple[Path, str]]:
        try:
            # A validator of the class may change its argument, so it gets a copy.
            adapter.validate_python(thaw(value), from_attributes=True)
        except ValidationError as exc:
            for error in exc.errors(include_url=False):
                yield error["loc"], problem_of(error)

    return faults


def problem_of(error: Any) -> str:
    """The mistake that a class finds in a value, without the value itself: reasons are kept longer than
    states.

    `error` is one of the details of a pydantic `ValidationError`.
    """
    if error["type"] in ("value_error", "assertion_error"):
        text = str(error["msg"])
        return "its validator refuses it" if _quotes(text, error.get("input")) else text
    if error["type"] in ("union_tag_invalid", "json_invalid"):
        return "its tag is none of those expected" if error["type"] == "union_tag_invalid" else "is no JSON"
    return str(error["msg"])


def _quotes(text: str, value: Any, depth: int = 0) -> bool:
    """True if a text contains a part of the value. A deeply nested value cannot be checked, so it counts as
    quoted.
    """
    parts: Any = value
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        parts = as_state(value)
    if isinstance(parts, Mapping):
        parts = list(cast(Any, parts).values())
    if isinstance(parts, list | tuple | set | frozenset):
        members = cast("Collection[Any]", parts)
        return (
            depth > _DEEPEST
            or len(members) > _LONGEST
            or any(_quotes(text, one, depth + 1) for one in members)
        )
    return value is not None and not isinstance(value, bool) and str(value) != "" and str(value) in text


# JSON Schemas -------------------------------------------------------------------------------------


def _json_faults(given: Mapping[str, Any], owner: str, parameter: str) -> Faults:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import SchemaError as NotASchema
    from jsonschema.validators import validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        schema: dict[str, Any] = copy.deepcopy(dict(given))
        dialect: Any = Draft202012Validator
        if "$schema" in schema:
            dialect = validator_for(schema, default=cast(Any, None))
        if dialect is None:
            problem = f"expected a dialect from draft 3 to 2020-12, got {schema['$schema']!r}"
            raise ParameterError(owner, f"{parameter}.$schema", f"{problem}. Leave it out for draft 2020-12.")
        # No formats: Python's regex engine must not judge patterns; `_Checked` compiles them.
        dialect.check_schema(schema, format_checker=FormatChecker(()))
        _refuse_unknown(schema, dialect, owner, parameter)
        patterns = _Checked(schema, dialect, owner, parameter).patterns
    except NotASchema as exc:
        problem = f"expected a JSON Schema: {_short(exc.message)}."
        raise ParameterError(owner, _where(parameter, exc.absolute_path), problem) from exc
    except RecursionError as exc:
        raise ParameterError(owner, parameter, "expected a JSON Schema, got one nested too deep.") from exc
    # An empty registry: jsonschema's default one fetches unknown references from the network.
    validator = _linear(dialect, patterns)(schema, registry=EMPTY_REGISTRY)

    def faults(value: Any) -> Iterator[tuple[Path, str]]:
        given: Any = value
        _left.set([MAX_STEPS])
        try:
            for error in validator.iter_errors(
                _Fields(given) if isinstance(value, Mapping) else plain(given)
            ):
                yield tuple(error.absolute_path), _without_value(error)
        except _TooMuchError:
            yield (), f"takes more than {MAX_STEPS:,} steps to check, so the check stops here"

    return faults


class _TooMuchError(Exception):
    """The check takes more than `MAX_STEPS`."""


_left: ContextVar[list[int]] = ContextVar("arbiter_schema_steps")
"""The number of steps that are left for the value that is being checked."""


def _spend(steps: int) -> None:
    left = _left.get()
    left[0] -= steps
    if left[0] < 0:
        raise _TooMuchError


_SAID = frozenset(
    {"additionalProperties", "anyOf", "const", "contains", "dependentRequired", "enum", "exclusiveMaximum"}
    | {
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
    }
    | {"minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "required", "type", "uniqueItems"}
)
"""Keywords whose jsonschema message is the value followed by a part of the schema."""


def _without_value(error: Any) -> str:
    """The mistake that a schema finds in a value, without the value itself: reasons are kept longer than
    states.
    """
    keyword, text, value = str(error.validator), str(error.message), repr(error.instance)
    if keyword not in _SAID:
        return f"does not satisfy {keyword!r}"
    return text.removeprefix(value).lstrip()


def _refuse_unknown(schema: Mapping[str, Any], dialect: Any, owner: str, parameter: str) -> None:
    """Raise `ParameterError` for a keyword that the dialect does not define: most often a misspelt one, which
    demands nothing.
    """
    registry: Any = import_module("jsonschema_specifications").REGISTRY  # which has no types
    meta: dict[str, Any] = dialect.META_SCHEMA
    known = {*dialect.VALIDATORS, *meta.get("properties", ())}
    resolver = registry.resolver(meta.get("$id", meta.get("id", "")))
    for vocabulary in meta.get("allOf", ()):
        known.update(resolver.lookup(vocabulary["$ref"]).contents["properties"])
    whole_text = repr(schema)
    for keyword in map(str, schema):
        referred = f"'#/{keyword}" in whole_text  # the target of a $ref
        if keyword not in known and not keyword.startswith(("$", "x-")) and not referred:
            problem = f"expected keywords of JSON Schema, got {keyword!r}.{nearest(keyword, known)}"
            raise ParameterError(owner, parameter, f"{problem} Names of fields go under properties.")


class _Checked:
    """Walks a JSON Schema and all its references. `patterns` are its regular expressions, compiled."""

    def __init__(self, schema: dict[str, Any], dialect: Any, owner: str, parameter: str) -> None:
        from referencing import Resource
        from referencing.jsonschema import EMPTY_REGISTRY, specification_with

        self.patterns: dict[str, SchemaValidator] = {}
        self._owner = owner
        self._parameter = parameter
        self._seen: set[int] = set()
        self._used: set[str] = set()
        specification: Any = specification_with(dialect.META_SCHEMA["$schema"])
        self._resource_of = specification.create_resource
        root: Any = Resource.from_contents(schema, default_specification=specification)
        self._walk(root, EMPTY_REGISTRY.resolver_with_root(root))
        if {"patternProperties", "unevaluatedProperties"} <= self._used:
            # The library's search for evaluated properties has Python's engine built in.
            problem = "patternProperties and unevaluatedProperties are not supported together"
            self._refuse(f"{problem}. Use additionalProperties.")

    def _refuse(self, problem: str) -> None:
        raise ParameterError(self._owner, self._parameter, problem)

    def _walk(self, resource: Any, resolver: Any) -> None:
        schema: Any = resource.contents
        if not isinstance(schema, dict) or id(cast(Any, schema)) in self._seen:
            return
        parts: dict[str, Any] = cast(Any, schema)
        self._seen.add(id(parts))
        self._used.update(parts)
        for pattern in (
            *parts.get("patternProperties", ()),
            *([parts["pattern"]] if "pattern" in parts else ()),
        ):
            self._compile(pattern)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(parts.get(keyword), str):
                found = self._look_up(parts[keyword], resolver)
                self._walk(self._resource_of(found.contents), found.resolver)
        for inner in resource.subresources():
            self._walk(inner, resolver.in_subresource(inner))

    def _look_up(self, ref: str, resolver: Any) -> Any:
        from referencing.exceptions import Unresolvable

        try:
            return resolver.lookup(ref)
        except Unresolvable:
            self._refuse(
                f"$ref: expected a place in this schema, as in '#/$defs/name', got {ref!r}. "
                "Nothing is fetched: put the schema that it refers to under $defs."
            )

    def _compile(self, pattern: str) -> None:
        try:
            matcher = core_schema.str_schema(pattern=pattern, strict=True, regex_engine="rust-regex")
            self.patterns[pattern] = SchemaValidator(matcher)
        except SchemaError as exc:
            why = str(exc).splitlines()[-1].removeprefix("error: ").strip()
            self._refuse(f"pattern {pattern!r} cannot be matched in linear time: {why}")


def _linear(dialect: Any, patterns: Mapping[str, SchemaValidator]) -> Any:
    """The dialect with the given validators for its patterns, for states of any kind."""
    from jsonschema import ValidationError as Fault
    from jsonschema import validators

    def pattern(validator: Any, given: str, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not patterns[given].isinstance_python(value):
            yield Fault(f"does not match {given!r}")

    def pattern_properties(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "object"):
            for known, inner in given.items():
                for key in value:
                    if patterns[known].isinstance_python(key):
                        yield from validator.descend(value[key], inner, path=key, schema_path=known)

    def additional_properties(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        if given is True or not validator.is_type(value, "object"):
            return
        known = [patterns[one] for one in schema.get("patternProperties", ())]
        for key in value:
            if key in schema.get("properties", ()) or any(one.isinstance_python(key) for one in known):
                continue
            if given is False:
                yield Fault(f"{key!r} is none of the properties that it may have")
            else:
                yield from validator.descend(value[key], given, path=key)

    def unique_items(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        if (
            given
            and validator.is_type(value, "array")
            and len({_equal_as(part) for part in value}) < len(value)
        ):
            yield Fault("has non-unique elements")

    base = dialect.TYPE_CHECKER

    def is_object(_: Any, value: Any) -> bool:
        return isinstance(value, Mapping)

    def is_number(_: Any, value: Any) -> bool:
        # JSON has no NaN or infinity, and no limit would ever reject NaN.
        return base.is_type(value, "number") and _is_finite(value)

    keywords: dict[str, Any] = {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
    }
    keywords = {name: _counted(keyword) for name, keyword in {**dialect.VALIDATORS, **keywords}.items()}
    types = base.redefine_many({"object": is_object, "number": is_number})
    return cast(Any, validators).extend(dialect, validators=keywords, type_checker=types)


def _counted(keyword: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """The keyword, with each call counted against `MAX_STEPS`."""

    def counted(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        choices, members = _size_of(given), _size_of(value)
        # Each value is compared with a whole list of names or values, each member with all patterns.
        steps = choices // 8 + (members if keyword.__name__ in _FOR_EACH_MEMBER else 0)
        _spend(1 + steps * (choices if keyword.__name__ == "pattern_properties" else 1))
        yield from keyword(validator, given, value, schema) or ()

    return counted


def _size_of(value: Any) -> int:
    parts: Any = value
    return len(parts) if isinstance(value, list | Mapping) else 1


_FOR_EACH_MEMBER = frozenset({"additional_properties", "pattern_properties"})


def _equal_as(value: Any) -> Any:
    """Something hashable that is equal for two values if they are equal in JSON."""
    _spend(1)
    parts: Any = value
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, tuple([_equal_as(part) for part in parts])
    if isinstance(value, Mapping):
        return dict, frozenset([(key, _equal_as(parts[key])) for key in parts])
    try:
        hash(value)
    except TypeError:
        return object, id(value)
    return value


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return True


class _Fields(Mapping[Any, Any]):
    """A state as a JSON object. Fields that the schema does not name are never converted."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._state = state

    def __getitem__(self, key: Any) -> Any:
        return plain(self._state[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ..." for key in self) + "}"


def plain(value: Any) -> Any:
    """`value` as JSON would represent it.

    Models and dataclasses become objects, tuples and sets arrays, enums their values, dates texts. A value
    without such a form is returned unchanged.
    """
    if value is None or (isinstance(value, str | bool | int | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Mapping):
        parts: Mapping[Any, Any] = cast(Any, value)
        return {key: plain(parts[key]) for key in parts}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in cast(Iterable[Any], value)]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return plain(as_state(value))
    given: Any = value
    return given.isoformat() if hasattr(given, "isoformat") else given
