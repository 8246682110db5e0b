"""Finds and undoes what a node's body edits in place in its messages."""

from __future__ import annotations

import copy
import marshal
from functools import cached_property, lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

from langchain_core.messages import BaseMessage

from arbiter._values.states import thaw

_TEXTS = ("content", "name", "role")
_NESTED = ("tool_calls", "additional_kwargs")
_Columns = list[list[Any]]
_fields_in: Any = attrgetter("__dict__")  # faster than `vars`
_get: Any = dict[str, Any].get


class SaidBefore:
    """The text, calls and speaker of each of these messages.

    A copy of every message would be the largest cost of a gate in a long conversation. Strings do not change, so
    references to them are enough; only lists and mappings are copied. Each field is read from all messages by one
    call of C code.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages
        self._fields = _fields(messages)
        self._text_names, self._nested_names = _names(frozenset({BaseMessage, *map(type, messages)}))
        content, *names = self._read(self._text_names)
        if set(map(type, content)) != {str}:
            content = [part if type(part) is str else thaw(part) for part in content]
        self._texts = [content, *names]
        self._nested = _packed(self._read(self._nested_names))

    def edited(self) -> list[int]:
        """The indices of the messages that have changed since."""
        texts, nested = self._read(self._text_names), self._read(self._nested_names)
        if texts == self._texts and _packed(nested) == self._nested:
            return []
        pairs = zip(zip(*self._before, strict=True), zip(*texts, *nested, strict=True), strict=True)
        return [at for at, (before, now) in enumerate(pairs) if before != now]

    def before(self, at: int) -> Any:
        """A copy of a message without its edit."""
        twin = _twin(self.messages[at])
        self._restore(at, _fields([twin])[0])
        return twin

    def undo(self, at: int) -> Any:
        """Undo the edit of a message. Returns a copy with the edit."""
        twin = _twin(self.messages[at])
        self._restore(at, self._fields[at])
        return twin

    def _restore(self, at: int, fields: dict[str, Any]) -> None:
        names = (*self._text_names, *self._nested_names)
        for name, column in zip(names, self._before, strict=True):
            if fields.get(name) == column[at]:
                continue
            if column[at] is None and isinstance(self.messages[at], dict):
                del fields[name]  # the mapping had no such key
            else:
                fields[name] = thaw(column[at])

    def _read(self, names: tuple[str, ...]) -> _Columns:
        return [list(map(_get, self._fields, repeat(name))) for name in names]

    @cached_property
    def _before(self) -> _Columns:
        """Unpacked at the first edit, and once for all of them."""
        nested = self._nested
        return [*self._texts, *(marshal.loads(nested) if isinstance(nested, bytes) else nested)]


def own_copies(messages: list[Any]) -> list[Any]:
    """Copies of messages whose content can be edited without changing the originals."""
    return [_own(message) for message in messages]


def _own(message: Any) -> Any:
    twin = _twin(message)
    fields = _fields([twin])[0]
    for name in (*_TEXTS, *_NESTED):
        if name in fields:
            fields[name] = thaw(fields[name])
    return twin


def _twin(message: Any) -> Any:
    one: Any = message
    return copy.copy(one) if isinstance(message, BaseMessage | dict) else one


@lru_cache(maxsize=256)
def _names(kinds: frozenset[type[Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields in `_TEXTS` and those in `_NESTED` that messages of these types can have."""

    def in_use(name: str) -> bool:
        return any(not issubclass(kind, BaseMessage) or name in kind.model_fields for kind in kinds)

    return tuple(filter(in_use, _TEXTS)), tuple(filter(in_use, _NESTED))


def _fields(messages: list[Any]) -> list[dict[str, Any]]:
    try:
        return list(map(_fields_in, messages))
    except AttributeError:  # some are mappings, or texts
        return [_fields_of(message) for message in messages]


def _fields_of(message: Any) -> dict[str, Any]:
    if isinstance(message, dict):
        return cast("dict[str, Any]", message)
    return vars(message) if isinstance(message, BaseMessage) else {}


def _packed(columns: _Columns) -> bytes | _Columns:
    """A copy of plain data that can be compared with another copy. One call of C code makes it."""
    try:
        return marshal.dumps(columns, 2)  # the newest version that packs equal data equally
    except ValueError:  # an argument of a call that is not plain data
        return cast(_Columns, thaw(columns))
