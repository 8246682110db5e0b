"""The needed fields of some values, copied into plain data that CEL accepts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from arbiter._conditions.needs import Need
from arbiter._values.states import Unreadable
from arbiter.errors import ConditionError

MAX_DEPTH = 64
"""The depth to which a field's value may be nested."""
MAX_VALUES = 200_000
"""The number of values that one evaluation may get."""
MAX_CHARACTERS = 16_000_000
"""The total length of all texts that one evaluation may get."""

_ABSENT: Any = object()
_type_of: Any = type
# Bypasses the read-only views, which copy the values that they return.
_get = cast(Any, dict.get)
_keys = cast(Any, dict.keys)
_iter = cast(Any, list.__iter__)
_at = cast(Any, list.__getitem__)
_PLAIN = frozenset({str, bool, float, bytes, type(None)})
_TEXTS = frozenset({str, bytes})
_LISTS = (list, tuple, set, frozenset, deque)
_LOWEST, _HIGHEST = -(2**63), 2**64
_LONGEST = timedelta(microseconds=2**63 // 1000)


class _UnfitError(Exception):
    """A value that CEL cannot take."""


class Handover:
    """Copies the needed fields of some values into plain data, and remembers which ones were missing.

    Values are recognised by their types: no method of an unknown object is called.
    """

    __slots__ = ("_expression", "_left", "_missing", "characters", "unread")

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._left = MAX_VALUES
        self.characters = 0
        self._missing: list[tuple[str | int, Need]] = []
        self.unread: list[Unreadable] = []
        """Values that are not there: CEL fails if it looks into one, and otherwise its answer holds without it."""

    @property
    def weight(self) -> int:
        """An upper bound for the steps that copying all passed values takes; see `conditions.work`."""
        return 6 * (MAX_VALUES - self._left) + self.characters // 256

    def root(self, need: Need, values: Mapping[str, Any], name: str) -> Any:
        try:
            value = values[name]
        except KeyError:
            raise ConditionError(self._expression, f"{name} is missing", field=name) from None
        return self.part(need, value)

    def absent(self, key: str) -> str | None:
        """The missing field that made CEL fail on `key`, or None. A field that only has() asks for is the
        last choice.
        """
        by_number = key.startswith("index out of bounds")
        found = [need for of, need in self._missing if str(of) == key or (by_number and isinstance(of, int))]
        found.sort(key=lambda need: need.presence)
        return found[0].path if found else None

    def part(self, need: Need, value: Any) -> Any:
        try:
            return self.whole(value, 0) if need.whole else self._some(need, value)
        except ConditionError:
            raise
        except _UnfitError as exc:
            problem = f"{need.path} {exc}"
        except Exception as exc:
            problem = f"{need.path} could not be read: {type(exc).__name__}"
        raise ConditionError(self._expression, problem, field=need.path)

    def _some(self, need: Need, value: Any) -> Any:
        if need.presence:
            return None
        shape = _shape(_type_of(value))
        if shape == "list":
            return self._elements(need, value)
        if shape in ("int", "scalar"):
            return self.whole(value, 0)  # another kind than the expression expects; CEL reports that
        if shape == "unreadable":
            self.unread.append(value)
            return None  # no operator, function or has() takes it
        handed: dict[Any, Any] = {}
        if need.size or need.each is not None:
            if need.only_size:
                return bytes(_count(value, shape))
            names = _names(value, shape)
            self._spend(len(names))
            for name in names:
                found = None if need.each is None else self.part(need.each, _member(value, shape, name))
                handed[self._key(name)] = found
        for key, wanted in need.keys.items():
            found = _member(value, shape, key)
            if found is _ABSENT:
                self._missing.append((key, wanted))
            else:
                handed[key] = self.part(wanted, found)
        return handed

    def _elements(self, need: Need, value: Any) -> Any:
        length = len(value)
        if need.each is not None:
            self._spend(length)
            each = need.each
            elements = _iter(value) if isinstance(value, list) else value
            return [self.part(each, element) for element in elements]
        if need.size and not need.keys:
            return bytes(length)  # only its length is needed
        positions: dict[int, Need] = {}
        for key, wanted in need.keys.items():
            if isinstance(key, str) or not -length <= key < length:
                self._missing.append((key, wanted))
            else:
                at = key % length
                positions[at] = wanted if at not in positions else positions[at].joined(wanted)
        first, last = _span(need, length)
        self._spend(last - first)
        handed: list[Any] = [None] * (last - first)
        parts: Any = value
        elements = list(parts) if isinstance(value, set | frozenset) else parts
        for at, wanted in positions.items():
            found = _at(elements, at) if isinstance(elements, list) else elements[at]
            handed[at - first] = self.part(wanted, found)
        return handed

    def whole(self, value: Any, depth: int) -> Any:
        """A whole value in a form that CEL accepts."""
        kind = _type_of(value)
        if kind in _PLAIN:
            return self._text(value) if kind in _TEXTS else value
        shape = _shape(kind)
        if shape == "int":
            number = int(value)
            if not _LOWEST <= number < _HIGHEST:
                raise _UnfitError("holds a number that does not fit into 64 bits")
            return number
        if shape == "unreadable":
            return len(value)  # raises
        if depth > MAX_DEPTH:
            raise _UnfitError(f"is nested more than {MAX_DEPTH} deep, or holds itself")
        if shape == "scalar":
            return self._scalar(value, kind, depth)
        if shape == "list":
            self._spend(len(value))
            elements = _iter(value) if isinstance(value, list) else value
            return [self.whole(element, depth + 1) for element in elements]
        names = _names(value, shape)
        self._spend(len(names))
        return {self._key(name): self.whole(_member(value, shape, name), depth + 1) for name in names}

    def _scalar(self, value: Any, kind: Any, depth: int) -> Any:
        if issubclass(kind, Enum):
            return self.whole(value.value, depth + 1)
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if issubclass(kind, datetime):
            if value.utcoffset() is None:
                raise _UnfitError("holds a time without a time zone. Make it aware, as in datetime.now(UTC)")
            return value
        if issubclass(kind, timedelta):
            if abs(value) > _LONGEST:
                raise _UnfitError("holds a duration of more than 292 years")
            return value
        if issubclass(kind, Decimal):
            return _decimal(value)
        if issubclass(kind, Real):
            return float(value)
        if issubclass(kind, bytes | bytearray | memoryview):
            return self._text(bytes(value))
        if issubclass(kind, UUID | PurePath):
            return self._text(str(value))
        raise _UnfitError(f"holds an object of type {kind.__name__}, which a condition cannot read")

    def _key(self, name: Any) -> Any:
        if isinstance(name, Enum):
            name = name.value
        if type(name) is str:
            return self._text(name)
        if type(name) is bool or (type(name) is int and _LOWEST <= name < 2**63):
            return name
        raise _UnfitError(
            f"has a key that is a {type(name).__name__}; expected a text, a whole number or a bool"
        )

    def _text(self, text: Any) -> Any:
        self.characters += len(text)
        if self.characters > MAX_CHARACTERS:
            raise _UnfitError(f"is too large: more than {MAX_CHARACTERS:,} characters would be handed over")
        return text

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _UnfitError(f"is too large: more than {MAX_VALUES:,} values would be handed over")


def _span(need: Need, length: int) -> tuple[int, int]:
    """The part of a list that must be present so that its numbered elements can be found: start and end."""
    numbers = [key for key in need.keys if isinstance(key, int)]
    lowest, highest = min(numbers, default=0), max(numbers, default=-1)
    if need.size or lowest < 0 <= highest:
        return 0, length
    # A negative index counts from the end of the part that is passed.
    return (max(0, length + lowest), length) if lowest < 0 else (0, min(highest + 1, length))


def _decimal(value: Decimal) -> int | float:
    if not value.is_finite() or abs(value.adjusted()) > 300:
        raise _UnfitError("holds a decimal number that CEL has no number for")
    if value == value.to_integral_value() and _LOWEST <= value < _HIGHEST:
        return int(value)
    return float(value)


@lru_cache(maxsize=1024)
def _shape(kind: Any) -> str:
    """The way in which a value of that type is read, by the type alone."""
    if issubclass(kind, _LISTS):
        return "list"
    if issubclass(kind, Unreadable):
        return "unreadable"
    if issubclass(kind, dict):
        return "dict"
    if issubclass(kind, BaseModel):
        return "model"
    if issubclass(kind, Enum):
        return "scalar"
    if issubclass(kind, Integral):
        return "int"
    if hasattr(kind, "__dataclass_fields__"):
        return "dataclass"
    return "mapping" if issubclass(kind, Mapping) else "scalar"


def _names(value: Any, shape: str) -> Collection[Any]:
    """The names of all members."""
    match shape:
        case "dict":
            return list(_keys(value))
        case "model":
            return [*value.__dict__, *(value.__pydantic_extra__ or ())]
        case "dataclass":
            return [name for name in _type_of(value).__dataclass_fields__ if hasattr(value, name)]
        case _:
            return list(value)


def _count(value: Any, shape: str) -> int:
    """The number of all members."""
    return dict.__len__(value) if shape == "dict" else len(_names(value, shape))


def _member(value: Any, shape: str, key: Any) -> Any:
    if shape == "dict":
        return _get(value, key, _ABSENT)
    if shape == "model":
        found = _get(value.__dict__, key, _ABSENT)
        return _get(value.__pydantic_extra__ or {}, key, _ABSENT) if found is _ABSENT else found
    if shape == "dataclass":
        known: bool = key in _type_of(value).__dataclass_fields__
        return getattr(value, key, _ABSENT) if known else _ABSENT
    try:
        return value[key]
    except KeyError:
        return _ABSENT
