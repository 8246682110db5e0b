"""The arguments that a tool's function gets for a call: after the tool's own schema, with its aliases and
defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, ValidationError, create_model

from arbiter._threads.forks import new_lock
from arbiter._values.recent import Recent
from arbiter.checkers._arguments import UnclearError, normalised

SHOWN = 80
_HANDED = ("run_manager", "callbacks", "config")
"""Parameters that LangChain itself passes to a tool's function."""
_VARIADIC = {"args", "kwargs"}
"""Fields of a schema for the `*args` and `**kwargs` of a function."""


def received(tool: Any, given: Mapping[str, Any], looked_at: Collection[str]) -> Mapping[str, Any] | None:
    """The arguments that the tool's function gets, by the names of its parameters.

    None if the tool's schema rejects them, so that the function does not run, or if there is no schema.
    Injected arguments are left out. Raises `UnclearError` for an argument that the tool does not have; if the
    tool takes all, for one that it may take for one of those that are `looked_at`.
    """
    schema: Any = getattr(tool, "args_schema", None)
    if schema is None:
        return _by_signature(tool, given, looked_at)
    if isinstance(schema, Mapping):
        return _by_json_schema(cast(Mapping[str, Any], schema), given, looked_at)
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return _by_model(tool, schema, given, looked_at)
    return None


def refuse_alike(given: Iterable[Any], looked_at: Collection[str], known: Collection[str] = ()) -> None:
    """Raise `UnclearError` for names, other than the `known` ones of the tool, that it may take for one of the
    checked arguments.
    """
    alike = {_alike(name): name for name in looked_at}
    for name in given:
        if name not in looked_at and name not in known and (meant := alike.get(_alike(name))) is not None:
            raise UnclearError(f"has the argument {short(name)}, which a tool may take for {meant!r}")


def _alike(name: str) -> str:
    return "".join(c for c in normalised(name).casefold() if c.isalnum())


def short(name: str) -> str:
    return repr(name if len(name) <= SHOWN else name[: SHOWN - 3] + "...")


def _refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise UnclearError(f"has the argument {short(name)}, which the tool does not have")


def _by_json_schema(
    schema: Mapping[str, Any], given: Mapping[str, Any], looked_at: Collection[str]
) -> Mapping[str, Any]:
    properties = schema.get("properties")
    known = cast(Mapping[str, Any], properties) if isinstance(properties, Mapping) else None
    if known is None or schema.get("additionalProperties") not in (None, False):
        refuse_alike(given, looked_at, known or ())
    else:
        _refuse_unknown(given, known)
    return given


def _by_signature(
    tool: Any, given: Mapping[str, Any], looked_at: Collection[str]
) -> Mapping[str, Any] | None:
    """The arguments of a tool without a schema, which calls its function with them, or with the value of a
    single input.
    """
    if getattr(tool, "func", None) is not None or getattr(tool, "coroutine", None) is not None:
        return None
    try:
        parameters = inspect.signature(tool._run).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = {p.name for p in named}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        refuse_alike(given, looked_at, names)
    else:
        _refuse_unknown(given, names)
    defaults = {p.name: p.default for p in named if p.default is not p.empty and p.name not in _HANDED}
    return {**defaults, **given}


class _Reader:
    """Reads arguments by one schema."""

    def __init__(self, tool: Any, schema: type[BaseModel]) -> None:
        fields = schema.model_fields
        offered: Any = tool.tool_call_schema.model_fields
        self.injected = {name for name in fields if name not in offered}
        without: dict[str, Any] = dict.fromkeys(self.injected, (Any, None))
        self.model = create_model(schema.__name__, __base__=schema, **without) if without else schema
        config: ConfigDict = schema.model_config
        self.takes_all = config.get("extra") == "allow"
        self.drops_others = "kwargs" in fields
        self.names = {*fields, *(name for field in fields.values() for name in _aliases(field))}
        self.optional = {name for name, field in fields.items() if not field.is_required()}

    def read(self, given: Mapping[str, Any], looked_at: Collection[str]) -> Mapping[str, Any] | None:
        if self.takes_all:
            refuse_alike(given, looked_at, self.names)
        elif not self.drops_others:
            _refuse_unknown(given, self.names)
        own = {name: _copied(value) for name, value in given.items() if name not in self.injected}
        try:
            made = self.model.model_validate(own)
        except ValidationError as exc:
            if self.injected and any(not error["loc"] for error in exc.errors(include_input=False)):
                raise UnclearError("does not fit the tool without its injected arguments") from None
            return None
        provided = made.model_fields_set
        names = [*self.model.model_fields, *(made.model_extra or ())]
        return {
            name: getattr(made, name)
            for name in names
            if name not in self.injected
            and (name in given or name in provided or (name in self.optional and name not in _VARIADIC))
        }


_readers = Recent[Any, _Reader](256)
"""By schema. A reader holds its schema, and a server may make tools for each request."""
_lock = new_lock()


def _by_model(
    tool: Any, schema: type[BaseModel], given: Mapping[str, Any], looked_at: Collection[str]
) -> Mapping[str, Any] | None:
    reader = _readers.get(schema)
    if reader is None:
        reader = _Reader(tool, schema)
        with _lock:
            _readers[schema] = reader
    return reader.read(given, looked_at)


def _aliases(field: Any) -> Iterator[str]:
    for alias in (field.alias, field.validation_alias):
        for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            first = choice.path[0] if isinstance(choice, AliasPath) else choice
            if isinstance(first, str):
                yield first


def _copied(value: Any) -> Any:
    """The same data in new containers, because a validator may change its argument."""
    parts: Any = value
    if type(value) is dict:
        return {key: _copied(part) for key, part in parts.items()}
    if type(value) is list:
        return [_copied(part) for part in parts]
    return value
