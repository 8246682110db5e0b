"""Recorded states as rules see them: what the ledger does not have is noted when a rule reads it.

A part that was cut, redacted, erased, or never kept is a `Missing`. Any use of it is noted and raises, so the
note stays even if the rule catches the exception. Everything else is made again from the ledger's JSON.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, SupportsIndex, cast, overload

from langchain_core.messages import messages_from_dict

from arbiter._values.states import FrozenList, Unreadable, UnreadableError, View, freeze
from arbiter.ledger._contents import key_from, named_from, restored
from arbiter.ledger._found import REDACTED

_MOST = 200_000
"""Elements of a cut list that are made again; a longer list is missing as a whole."""
_HALF = re.compile(
    r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)
"""Half of a surrogate pair, which the ledger keeps as an escape; a whole pair is one of JSON in a text."""
__all__ = ["Missing", "Notes", "RecordedState", "state_of"]


class Notes:
    """Values that the rules read and that the ledger does not have."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, what: str) -> None:
        self._found[what] = None

    def take(self) -> tuple[str, ...]:
        """The notes since the last call."""
        if not self._found:
            return ()
        found, self._found = tuple(self._found), {}
        return found


class Missing(Unreadable):
    """A value that the ledger does not have. Every use of it is noted and raises `UnreadableError`."""

    __slots__ = ("_notes", "_what")

    def __init__(self, notes: Notes, what: str) -> None:
        object.__setattr__(self, "_notes", notes)
        object.__setattr__(self, "_what", what)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name in _COPYING else _use(self)

    def __copy__(self) -> Missing:
        return self

    def __deepcopy__(self, memo: Any) -> Missing:
        return self


_COPYING = ("__deepcopy__", "__copy__")


def _use(missing: Any, *_: object, **__: object) -> NoReturn:
    what: str = object.__getattribute__(missing, "_what")
    notes: Notes = object.__getattribute__(missing, "_notes")
    notes.add(what)
    raise UnreadableError(what)


def _part_of(missing: Missing, key: Any) -> Missing:
    """The value of a missing mapping under `key`: as missing as the whole, with a name of its own."""
    notes, what = object.__getattribute__(missing, "_notes"), object.__getattribute__(missing, "_what")
    return Missing(notes, what.replace(" was ", f".{key} was ", 1))


_USES = """
    getitem iter len bool eq ne lt le gt ge hash str repr contains
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod
    int float index complex round abs neg pos or ror and rand bytes
    call setattr setitem delitem format enter reversed fspath reduce_ex dir
"""
for _name in _USES.split():
    setattr(Missing, f"__{_name}__", _use)


class RecordedState(View):
    """A recorded mapping of which parts are missing: their reading is noted, also the question whether they are
    there."""

    __slots__ = ("_known", "_lacks")

    def __init__(self, known: Mapping[str, Any], lacks: Missing | None = None) -> None:
        self._known = known
        self._lacks = lacks
        """Stands for further keys, of which nothing is known."""

    def _found(self, key: Any) -> Any:
        value = self._known[key]
        return _use(value) if type(value) is Missing else value

    def _look_for(self, key: Any) -> None:
        """Note a key of which nothing is known, by its name."""
        if key not in self._known and self._lacks is not None:
            _use(_part_of(self._lacks, key))

    def __getitem__(self, key: Any) -> Any:
        self._look_for(key)
        return self._found(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._found(key) if key in self else default

    def __contains__(self, key: object) -> bool:
        self._look_for(key)
        return key in self._known

    def __iter__(self) -> Iterator[Any]:
        if self._lacks is not None:
            _use(self._lacks)
        return iter(self._known)

    def keys(self) -> Sequence[Any]:
        return [*iter(self)]  # not list(self), which would ask for the length

    def values(self) -> Sequence[Any]:
        return [self._found(key) for key in self]

    def items(self) -> Sequence[tuple[Any, Any]]:
        return [(key, self._found(key)) for key in self]

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def __len__(self) -> int:
        if self._lacks is not None:
            _use(self._lacks)
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**self.copy(), **other}

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**other, **self.copy()}

    def __copy__(self) -> dict[Any, Any]:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> RecordedState:
        return self

    def __repr__(self) -> str:
        return repr(self.copy())


class RecordedList(FrozenList):
    """A recorded list of which elements are missing. Its length is the true one."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        for part in list[Any].__iter__(self):
            yield _use(part) if type(part) is Missing else freeze(part)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = list[Any].__getitem__(self, index)
        if isinstance(index, slice):
            return RecordedList(found)
        return _use(found) if type(found) is Missing else freeze(found)


class RecordedObject(RecordedState):
    """A recorded pydantic model or dataclass: its fields are attributes. Its class and methods are not known."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            _use(object.__getattribute__(self, "_lacks"))
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        return self[name]


cast(Any, Mapping).register(RecordedState)


class _Maker:
    """Makes values from captured contents."""

    __slots__ = ("_notes",)

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def value(self, given: Any, path: str) -> Any:
        kind = cast(Any, type(given))
        if kind is str:
            if "\\ud" in given and _HALF.search(given):
                return self._missing(path, "perhaps no valid text, and is kept with escapes")
            return self._missing(path, "redacted") if REDACTED.search(given) else given
        if kind is list:
            return self._list(given, path)
        if kind is not dict:
            return given
        if len(given) == 1:
            mark = next(iter(given))
            if mark in _BECAME:
                return self._missing(path, _BECAME[mark])
            if mark == "$message":
                return self._message(given[mark], path)
            if mark == "$type":
                fields = self._fields(given[mark]["fields"], path)
                return RecordedObject(fields, Missing(self._notes, f"{path} is of a type that is not kept"))
            if mark == "$tuple":
                return tuple(list[Any].__iter__(self._list(given[mark], path)))
            if mark == "$set":
                lacks = type(self._list(given[mark], path)) is RecordedList
                return self._missing(path, "cut") if lacks else restored(given)
            if mark == "$deque":
                parts = self._list(given[mark]["parts"], path)
                return parts if type(parts) is RecordedList else deque(parts, given[mark]["most"])
            if mark == "$enum":
                value = self.value(given[mark]["value"], path)
                return value if type(value) is Missing else _member(given[mark], value)
            if mark == "$named":
                return self._named(given[mark], path)
            if mark in ("$float", "$int", "$decimal", "$time", "$duration", "$path", "$uuid"):
                if isinstance(given[mark], dict):
                    return self.value(given[mark], path)  # cut, or redacted as a whole
                is_redacted = isinstance(given[mark], str) and REDACTED.search(given[mark])
                return self._missing(path, "redacted") if is_redacted else restored(given)
        fields = self._fields(given, path)
        if "$cut" in given:
            return RecordedState(fields, self._missing(path, "cut"))
        return fields

    def _fields(self, given: Mapping[str, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, part in given.items():
            if key != "$cut":
                name = key_from(key)
                found[name] = self.value(part, f"{path}.{name}")
        return found

    def _named(self, given: Mapping[str, Any], path: str) -> Any:
        if "$cut" in given["fields"]:
            return self._missing(path, "cut")
        return named_from(given["name"], self._fields(given["fields"], path))

    def _list(self, given: Sequence[Any], path: str) -> list[Any]:
        found: list[Any] = []
        for part in given:
            cut = cast(Any, part).get("$cut") if isinstance(part, dict) else None
            if cut is not None and "items" in cut:
                found += [self._missing(path, "cut")] * min(cut["items"], _MOST)
            else:
                found.append(self.value(part, path))
        return RecordedList(found) if any(type(part) is Missing for part in found) else found

    def _message(self, given: Mapping[str, Any], path: str) -> Any:
        parts: dict[str, Any] = {name: self.value(part, path) for name, part in given.items()}
        kind = parts.pop("type")
        lost = {name: part for name, part in parts.items() if _is_lost(part)}
        try:
            plain = {"content": "", **{name: part for name, part in parts.items() if name not in lost}}
            (message,) = messages_from_dict([{"type": kind, "data": plain}])
        except (ValueError, TypeError, UnreadableError):
            return self._missing(path, "not kept as a message")
        vars(message).update(lost)
        return message

    def _missing(self, path: str, became: str) -> Missing:
        return Missing(self._notes, f"{path} was {became}")


def _member(given: Mapping[str, Any], value: Any) -> Any:
    """The member of an Enum whose class this process has loaded; else its value. No code is run to find it."""
    found: Any = sys.modules.get(given["module"])
    for name in given["class"].split("."):
        found = getattr(found, "__dict__", {}).get(name)
    members: Mapping[str, Any] = {}
    if isinstance(found, type) and issubclass(found, Enum):
        members = found.__members__
    return members.get(given["name"], value)


def _is_lost(part: Any) -> bool:
    """True if a part of a message, or something in it, is missing."""
    kind = cast(Any, type(part))  # not isinstance, which would use it
    if kind in (Missing, RecordedState, RecordedObject, RecordedList):
        return True
    if kind is dict:
        return any(map(_is_lost, part.values()))
    return kind in (list, tuple) and any(map(_is_lost, part))


_BECAME = {
    "$cut": "cut",
    "$secret": "redacted",
    "$digest": "kept as a digest",
    "$opaque": "of a type that is not kept",
    "$bytes": "bytes, which are kept as a digest",
    "$array": "an array, which is not made again",
}


def state_of(captured: Any, name: str, notes: Notes, *, lost: str | None) -> Any:
    """The state `name`, such as "input", of a node run, from its captured form. `lost` says what became of the whole,
    if it is not there.
    """
    if lost is not None:
        return RecordedState({}, Missing(notes, f"{name} was {lost}"))
    value: Any = _Maker(notes).value(captured, name)
    kind = cast(Any, type(value))
    if value is None:
        return {}
    if kind is Missing:
        return RecordedState({}, value)
    if kind is dict and any(type(part) is Missing for part in value.values()):
        return RecordedState(value)
    return value if kind is dict or kind is RecordedState else {"__root__": value}
