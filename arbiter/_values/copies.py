"""Copies of the contents of a history: plain data for exports, and parts for pickles and deep copies."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, cast

from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from arbiter._values.states import DECIMAL_BITS, FrozenDict, FrozenList

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_DICTS = (dict, FrozenDict)
_LISTS = (list, FrozenList)
_LEVELS = 100
"""Levels of nesting below which a container is copied as one part, or not at all."""


class Copier:
    """Copies dicts, lists and tuples, and calls `part`, which never raises, to copy their contents. Each object is
    copied once, so messages that the states of many node runs share stay shared.
    """

    def __init__(self, part: Callable[[Any], Any]) -> None:
        self._part = part
        self._known: dict[int, tuple[Any, Any]] = {}
        """By id, each object and its copy. The object is kept, so that its id stays its own."""
        self._level = 0

    def __call__(self, value: Any) -> Any:
        kind = cast(Any, type(value))
        if kind in _ATOMS:
            return value
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        made: Any
        self._level += 1
        if self._level > _LEVELS:
            made = self._know(value, self._part(value))
        elif kind in _DICTS or kind is MappingProxyType:
            made = self._know(value, {})
            whole: Any = dict if kind in _DICTS else MappingProxyType  # past what freezes each part
            for key, part in whole.items(value):
                made[self._key(key)] = self(part)
        elif kind in _LISTS:
            made = self._know(value, [])
            made.extend(map(self, list[Any].__iter__(value)))
        elif kind is tuple:
            made = self._know(value, tuple(map(self, value)))
        else:
            made = self._know(value, self._part(value))
        self._level -= 1
        return made

    def _know(self, value: Any, made: Any) -> Any:
        self._known[id(value)] = value, made
        return made

    def _key(self, key: Any) -> Any:
        made = self(key)
        return made if made == key else str(key)


def for_pickle() -> Copier:
    """A copier that keeps values that survive a pickle; other values become plain data, as in exports."""
    return Copier(_pickled)


def for_deep_copy(memo: dict[int, Any]) -> Copier:
    """A copier that deep-copies; values that cannot be deep-copied are shared with the original."""

    def part(value: Any) -> Any:
        try:
            return copy.deepcopy(value, memo)
        except Exception:
            return value

    return Copier(part)


def _pickled(value: Any) -> Any:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return jsonable(value)
    return value


class Exported:
    """Base of classes that pydantic, and so FastAPI, serialises by one of their methods, even in a field of
    type `Any`. Such an instance cannot be validated from data.
    """

    __slots__ = ()

    __pydantic_serializer__: ClassVar[SchemaSerializer]
    _serialization: ClassVar[Any]

    def __init_subclass__(cls, method: str = "", returns: CoreSchema | None = None) -> None:
        super().__init_subclass__()
        if method:
            cls._serialization = core_schema.plain_serializer_function_ser_schema(
                lambda exported: getattr(exported, method)(), return_schema=returns
            )
            cls.__pydantic_serializer__ = SchemaSerializer(
                core_schema.any_schema(serialization=cls._serialization)
            )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.is_instance_schema(cls, serialization=cls._serialization)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        return {"title": cls.__name__, **handler(cls._serialization["return_schema"])}


DICT = core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
DICTS = core_schema.list_schema(DICT)


MAX_VALUES = 100_000
"""The number of values, at any depth, that one exported value may contain. A count replaces the rest."""
_DEPTH = 20
_SMALL = 1 << 63
_PLAIN = frozenset({type(None), bool})


def jsonable(value: Any, models: Callable[[Any], Any] | None = None, *, most: float = MAX_VALUES) -> Any:
    """Plain JSON-able data of at most `most` values; values without a JSON form become text. Never
    raises. `models` returns what stands for an object with fields, in place of its `model_dump()`.
    """
    if type(value) is str and value.isascii():  # as most outputs and expected answers
        return value
    return Exporter(models, most)(value)


def _fields_of(model: Any) -> Any:
    return model.model_dump()


def unboxed(value: Any) -> Any:
    """A number, bool, text or time of numpy as Python's own; any other value as it is."""
    numpy = sys.modules.get("numpy")  # there can be one only if it has been imported
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    plain: Any = value.item()
    return float(plain) if isinstance(plain, numpy.generic) else plain  # a longdouble


class Exporter:
    """Exports one value after the other, each as `jsonable` does."""

    __slots__ = ("_around", "_left", "_models", "_most")

    def __init__(self, models: Callable[[Any], Any] | None = None, most: float = MAX_VALUES) -> None:
        self._models = models or _fields_of
        self._most = most
        self._left = most
        self._around: set[int] = set()

    def __call__(self, value: Any) -> Any:
        self._left = self._most
        return self.of(value, 0)

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        kind = cast(Any, type(value))
        # These need no look.
        if (
            kind in _PLAIN
            or (kind is str and value.isascii())
            or (kind is int and -_SMALL < value < _SMALL)
            or (kind is float and math.isfinite(value))
        ):
            return value
        try:
            if depth < _DEPTH and (kind is dict or kind is list):
                return self._once(self._fields if kind is dict else self._elements, value, depth)
            return self._plain(value, depth)
        except Exception:  # a value whose own methods fail has at least a type
            return f"<{_name(value)}>"

    def _plain(self, value: Any, depth: int) -> Any:
        kind = cast(Any, type(value))
        if kind is int:
            # Python refuses to write numbers of very many digits.
            return value if value.bit_length() <= DECIMAL_BITS else hex(value)
        if issubclass(kind, Enum):
            return self.of(value.value, depth + 1)
        if issubclass(kind, str):
            return _clean(str.__str__(value))
        if issubclass(kind, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if (plain := unboxed(value)) is not value:
            return self.of(plain, depth)
        if depth < _DEPTH and (export := self._export_of(value)) is not None:
            return self._once(export, value, depth)
        return _clean(str(value))

    def _once(self, export: Callable[[Any, int], Any], value: Any, depth: int) -> Any:
        """The export of a value that has parts, unless the value is one of its own parts."""
        mark = id(value)
        if mark in self._around:
            return f"<{_name(value)} that holds itself>"
        self._around.add(mark)
        try:
            return export(value, depth)
        finally:
            self._around.remove(mark)

    def _export_of(self, value: Any) -> Callable[[Any, int], Any] | None:
        if isinstance(value, Mapping):
            return self._fields
        if isinstance(value, list | tuple | set | frozenset):
            return self._elements
        if hasattr(value, "model_dump"):
            return lambda model, depth: self.of(self._models(model), depth + 1)
        if is_dataclass(value):
            return lambda of, depth: self._fields(
                {each.name: getattr(of, each.name) for each in fields(of)}, depth
            )
        return None

    def _elements(self, parts: Collection[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        for part in parts:
            if self._left <= 0:
                found.append(_more(parts, found))
                break
            found.append(self.of(part, depth + 1))
        return found

    def _fields(self, parts: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in parts:
            if self._left <= 0:
                found["..."] = _more(parts, found)
                break
            name = key if type(key) is str and key.isascii() else _clean(_text(key))
            found[name] = self.of(parts[key], depth + 1)
        return found


def _more(parts: Collection[Any], found: Collection[Any]) -> str:
    return f"... {len(parts) - len(found):,} more, which are left out"


def _text(key: Any) -> str:
    try:
        return str(key.value if isinstance(key, Enum) else key)
    except Exception:
        return f"<{_name(key)}>"


def _name(value: Any) -> str:
    return str(cast(Any, type(value)).__name__)


def _clean(text: str) -> str:
    """Lone surrogates have no UTF-8 form; a JSON line must be writable to a file."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
