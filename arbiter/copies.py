"""Copies of what a history holds: plain data for exports, and parts for pickles and deep copies."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from arbiter.states import FrozenDict, FrozenList

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_DICTS = (dict, FrozenDict)
_LISTS = (list, FrozenList)


class Copier:
    """Copies dicts, lists and tuples, and has `part` copy what is in them. It copies each object once, so messages that
    the states of many node runs share stay shared."""

    def __init__(self, part: Callable[[Any], Any]) -> None:
        self._part = part
        self._known: dict[int, tuple[Any, Any]] = {}
        """By id, each object and its copy. The object is kept, so that its id stays its own."""

    def __call__(self, value: Any) -> Any:
        kind = cast(Any, type(value))
        if kind in _ATOMS:
            return value
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        made: Any
        if kind in _DICTS or kind is MappingProxyType:
            made = self._know(value, {})
            whole: Any = dict if kind in _DICTS else MappingProxyType  # past what freezes each part
            made.update({self._key(key): self(part) for key, part in whole.items(value)})
        elif kind in _LISTS:
            made = self._know(value, [])
            made.extend(map(self, list[Any].__iter__(value)))
        elif kind is tuple:
            made = self._know(value, tuple(map(self, value)))
        else:
            made = self._know(value, self._part(value))
        return made

    def _know(self, value: Any, made: Any) -> Any:
        self._known[id(value)] = value, made
        return made

    def _key(self, key: Any) -> Any:
        made = self(key)
        return made if made == key else str(key)


def for_pickle() -> Copier:
    """Keeps what can be pickled and read again; the rest becomes plain data, as in exports."""
    return Copier(_pickled)


def for_deep_copy(memo: dict[int, Any]) -> Copier:
    """Copies what can be deep-copied; the rest is shared with the original."""

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
    """pydantic, and so FastAPI, serialises an instance by one of its methods, also in a field of type `Any`, and reads
    none."""

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


def jsonable(value: Any, depth: int = 0) -> Any:
    """Plain JSON-able data; what has no JSON form is given as text."""
    parts: Any = value
    if value is None or type(value) in (bool, int, str):
        return _clean(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < 20:
        if isinstance(value, Mapping):
            return {_clean(str(k)): jsonable(v, depth + 1) for k, v in parts.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [jsonable(part, depth + 1) for part in parts]
        if hasattr(value, "model_dump"):
            try:
                return jsonable(value.model_dump(), depth + 1)
            except Exception:
                return f"<{type(value).__name__}>"
    try:
        return _clean(str(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _clean(text: str) -> str:
    """Lone surrogates have no UTF-8 form; a JSON line must be writable to a file."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
