"""States as the ledger keeps them: copied at the moment, bounded, as JSON with marks.

`Capture` is all that a node waits for. It visits a bounded number of values and copies containers, so that later
changes in place are not recorded. Keys that begin with `$` are marks:

    $message   a LangChain message: its class and fields      $cut      parts left out, and how many there were
    $type      fields of a pydantic model or dataclass        $secret   the detector that found a secret
    $float $int $decimal $time $duration $path                $bytes    the size and digest of bytes
    $set $tuple $deque $uuid                                  $array    the shape and elements of an array
    $named     class and fields of a named tuple              $opaque   a type that has no form here
    $enum      class, name and value of a member of an Enum

A user's own key `$x` is kept as `$$x`, and a key that is no text as JSON behind `$:`. Only messages and built-in
types are ever made from it again.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, cast
from uuid import UUID

import orjson
from langchain_core.messages import BaseMessage, messages_from_dict
from pydantic import BaseModel

from arbiter._values.copies import unboxed
from arbiter._values.states import Digest, digest
from arbiter._values.versions import path_of
from arbiter.redaction import LONGEST_JSON

States = Literal["none", "digest", "bounded", "full"]

VALUES = 2_000
MOST_VALUES = 5_000_000
"""Values of a state that even `full` visits at most: one value that is held many times can grow without end."""
FIRST, LAST = 20, 80
_MOST: Mapping[str, int] = {"bounded": VALUES, "full": MOST_VALUES}
KEYS = 200
CHARS = 16 * 1024
BYTES = 256 * 1024
_BEYOND = 256
_DEPTH = 64
_BYTES_A_VALUE = 72
"""About the memory that a value takes beside its text, with its key and its place in a container."""
_LARGEST = 2**53 - 1
_CONSTANTS = frozenset({bool, type(None)})
_class_of: Any = type
_MESSAGE_FIELDS = (
    "content", "id", "name", "role", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "additional_kwargs",
)  # fmt: skip


class Capture:
    """Copies states as JSON with marks, and counts how large the copies are.

    `none` keeps nothing, and `digest` only a digest of each whole field. `bounded` visits 2,000 values and keeps
    the first 20 and last 80 elements of a list and 200 keys of a mapping. `full` keeps everything.
    """

    __slots__ = ("_around", "left", "size", "states")

    def __init__(self, states: States = "bounded") -> None:
        self.states = states
        self.left = self.size = 0
        """The values that may still be visited; about the bytes that the copies so far take while they wait."""
        self._around: set[int]
        """The ids of the containers that are being copied: one that holds itself has no end."""

    def __call__(self, value: Any) -> Any:
        """A copy of the state `value`; None for `none`. Never raises."""
        most = _MOST.get(self.states)
        if most is None:
            return None if self.states == "none" else self._digests(value)
        if _class_of(value) is dict and (copied := self._plain(value)) is not None:
            return copied
        self.left, self._around = most, set()
        copied = self.value(value)
        self.size += _BYTES_A_VALUE * (most - self.left)
        return copied

    def _plain(self, state: dict[Any, Any]) -> dict[str, Any] | None:
        """A copy of a state of a few texts and numbers, as `value` makes it, at half the cost; None for any other."""
        if len(state) > KEYS:
            return None
        copied = state.copy()
        size = _BYTES_A_VALUE * (len(copied) + 1)
        for key, part in copied.items():
            kind = _class_of(part)
            if kind is str:
                size += len(part)
            elif kind is int:
                if not -_LARGEST <= part <= _LARGEST:
                    return None
            elif kind not in _CONSTANTS and not (kind is float and math.isfinite(part)):
                return None
            if _class_of(key) is not str or key[:1] == "$":
                return None
        self.size += size
        return copied

    def _digests(self, value: Any) -> dict[str, Any]:
        """The digest of each field of a state."""
        given: Any = value
        parts: Mapping[Any, Any] = given if isinstance(value, Mapping) else {"__root__": value}
        self.size += 2 * _BYTES_A_VALUE * len(parts)
        return {_key_of(key): _digest(part) for key, part in parts.items()}

    def value(self, value: Any, depth: int = 0) -> Any:
        """A copy of one value. Never raises."""
        self.left -= 1
        kind = _class_of(value)
        of: Any = value
        if kind is not dict and kind is not list:
            if kind is str:
                self.size += len(value)
                return value
            if kind in _CONSTANTS:
                return value
            if kind is int:
                return value if -_LARGEST <= value <= _LARGEST else self._text("$int", _digits(value))
            if kind is float:
                return value if math.isfinite(value) else {"$float": repr(value)}
        if depth > _DEPTH:
            return {"$cut": {"depth": depth}}
        at = id(value)
        if at in self._around:
            return {"$cut": {"cycle": True}}
        self._around.add(at)
        try:
            # The usual classes first: for the abstract ones a look takes ten times as long.
            if kind is dict:
                return self._mapping(of, depth)
            if kind is list:
                return self._list(of, depth)
            if isinstance(value, BaseMessage):
                return self._message(value, depth)
            if isinstance(value, Mapping):
                return self._mapping(of, depth)
            if isinstance(value, list):
                return self._list(of, depth)
            if isinstance(value, tuple):
                return self._tuple(of, depth)
            return self._other(value, depth)
        except Exception as error:  # a property or a mapping of the user's that raises
            return {"$opaque": f"{path_of(kind)}: {type(error).__name__}"}
        finally:
            self._around.discard(at)

    def _text(self, mark: str, text: str) -> dict[str, str]:
        """A value that is kept as the text `text`."""
        self.size += len(text)
        return {mark: text}

    def _tuple(self, parts: tuple[Any, ...], depth: int) -> dict[str, Any]:
        names: Any = getattr(parts, "_fields", None)
        if not isinstance(names, tuple) or len(cast(Any, names)) != len(parts):
            return {"$tuple": self._list(parts, depth)}
        fields = self._mapping(dict(zip(cast(Any, names), parts, strict=True)), depth)
        return {"$named": {"name": type(parts).__name__, "fields": fields}}

    def _list(self, parts: Sequence[Any], depth: int) -> list[Any]:
        first, last = self._kept_of(len(parts))
        if first is None:
            return [self.value(part, depth + 1) for part in parts]
        return self._cut(parts[:first], parts[last:], last - first, depth)

    def _kept_of(self, size: int) -> tuple[int | None, int]:
        """Where the middle of a list begins and ends that is cut away; (None, 0) if all is kept."""
        if self.left > 0 and (size <= FIRST + LAST or self.states == "full"):
            return None, 0
        # The last element is never cut away: in a conversation it is what the node was asked.
        first, last = (FIRST, LAST) if self.left > 0 else (0, 1)
        first = min(first, max(size - 1, 0))
        return first, max(size - last, first)

    def _cut(self, first: Iterable[Any], last: Iterable[Any], left_out: int, depth: int) -> list[Any]:
        kept_first = [self.value(part, depth + 1) for part in first]
        kept_last = [self.value(part, depth + 1) for part in last]
        size = len(kept_first) + left_out + len(kept_last)
        cut = [{"$cut": {"items": left_out, "of": size}}] if left_out else []
        return [*kept_first, *cut, *kept_last]

    def _set(self, parts: Set[Any], depth: int) -> list[Any]:
        """The elements in an order that is the same in each process; of a set that is cut, any of them."""
        size = len(parts)
        first, last = self._kept_of(size)
        left_out = 0 if first is None else last - first
        kept = sorted((self.value(part, depth + 1) for part in islice(parts, size - left_out)), key=dumped)
        return [*kept, {"$cut": {"items": left_out, "of": size}}] if left_out else kept

    def _array(self, array: Any, depth: int) -> dict[str, Any]:
        """The mark of an array of numpy: its elements in order, without its dimensions."""
        first, last = self._kept_of(array.size)
        flat = array.flat
        if first is None:
            values = [self.value(part, depth + 1) for part in flat[:].tolist()]
        else:
            values = self._cut(flat[:first].tolist(), flat[last:].tolist(), last - first, depth)
        return {"$array": {"type": str(array.dtype), "shape": [*array.shape], "values": values}}

    def _mapping(self, parts: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        size, number = len(parts), 0
        # A list of them, because a property of the user's may change the mapping meanwhile.
        kept = parts.items() if size <= KEYS or self.states == "full" else islice(parts.items(), KEYS)
        for key, part in list(kept):
            if self.left <= 0:
                break
            kind = _class_of(part)
            # Most fields are texts and numbers: a call for each would cost more than all the rest.
            if kind is str:
                self.left -= 1
                self.size += len(part)
            elif kind in _CONSTANTS or (kind is int and -_LARGEST <= part <= _LARGEST):
                self.left -= 1
            else:
                part = self.value(part, depth + 1)
            found[key if type(key) is str and key[:1] != "$" else _key_of(key, number)] = part
            number += 1
        if number < size:
            found["$cut"] = {"keys": size - number, "of": size}
        return found

    def _message(self, message: BaseMessage, depth: int) -> dict[str, Any]:
        parts: dict[str, Any] = {"type": message.type}
        is_full = self.states == "full"
        own = vars(message)  # to ask a message for a field that its class lacks takes longer than all others
        if more := message.__pydantic_extra__:
            own = {**own, **more}
        for name in _MESSAGE_FIELDS:
            found: Any = own.get(name)
            if found or name == "content":
                parts[name] = self.value(found, depth + 1)
        if usage := own.get("usage_metadata"):
            parts["usage_metadata"] = self.value(dict(usage), depth + 1)
        if told := own.get("response_metadata"):
            parts["response_metadata"] = self.value(told, depth + 1) if is_full else self._told(told, depth)
        if (artifact := own.get("artifact")) is not None:
            name = path_of(_class_of(artifact))
            parts["artifact"] = self.value(artifact, depth + 1) if is_full else {"$opaque": name}
        return {"$message": parts}

    def _told(self, told: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The names in what a provider says about its answer. No rule of a replay may take the rest for absent."""
        names = {name: told.get(name) for name in ("model_name", "model", "model_provider")}
        left_out = len(told.keys() - names.keys())
        names["model_name"] = names["model_name"] or names["model"]
        known = {name: self.value(named, depth + 1) for name, named in names.items() if named}
        return (
            {**dict.fromkeys(names), **known, "$cut": {"keys": left_out, "of": len(told)}}
            if left_out
            else known
        )

    def _other(self, value: Any, depth: int) -> Any:
        kind = cast(Any, type(value))
        of: Any = value
        if isinstance(value, Enum):
            where = {"module": kind.__module__, "class": kind.__qualname__, "name": value.name}
            return {"$enum": {**where, "value": self.value(value.value, depth + 1)}}
        if isinstance(value, Digest):
            # The history keeps digests itself. No rule of a replay may take one for the value.
            return self._text("$digest", str(value))
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bool | int | float):
            return self.value(int(value) if isinstance(value, int) else float(value), depth + 1)
        if isinstance(value, date | time):  # a datetime is a date
            return {"$time": value.isoformat()}
        if isinstance(value, timedelta):
            return {"$duration": [value.days, value.seconds, value.microseconds]}
        if isinstance(value, UUID):
            return {"$uuid": str(value)}
        if isinstance(value, Decimal):
            return self._text("$decimal", str(value))
        if isinstance(value, PurePath):
            return self._text("$path", str(value))
        if isinstance(value, deque):
            return {"$deque": {"parts": self._list([*of], depth), "most": of.maxlen}}
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(of)
            return {"$bytes": {"size": len(data), "sha256": sha256(data).hexdigest()}}
        if isinstance(value, Set):
            return {"$set": self._set(of, depth)}
        name = path_of(kind)
        if (plain := unboxed(value)) is not value:
            return self.value(plain, depth + 1)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return self._array(value, depth)
        if isinstance(value, BaseModel):
            inner = {**value.__dict__, **(value.__pydantic_extra__ or {})}
            return {"$type": {"name": name, "fields": self._mapping(inner, depth)}}
        if is_dataclass(value) and not isinstance(value, type):
            of = {field.name: getattr(value, field.name, None) for field in fields(value)}
            return {"$type": {"name": name, "fields": self._mapping(of, depth)}}
        return {"$opaque": name}


def capture(value: Any, states: States = "bounded") -> Any:
    """A copy of one state, as `Capture` makes it."""
    return Capture(states)(value)


def _digest(value: Any) -> dict[str, Any]:
    """The mark of a value by its digest; a value that equals no other, such as a lock, has none."""
    if isinstance(value, Digest):
        return {"$digest": str(value)}
    try:
        return {"$digest": digest(value)}
    except Exception as error:
        return {"$opaque": f"{path_of(cast(Any, type(value)))}: {type(error).__name__}"}


def _digits(number: int) -> str:
    """The number as a text; a very long one in base 16, because Python refuses to write it in base 10."""
    try:
        return str(number)
    except ValueError:
        return hex(number)


def _key_of(key: Any, number: int = 0) -> str:
    """The name of a mapping's key, which is its `number`th."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        text = str.__str__(key)
        return f"${text}" if text[:1] == "$" else text
    key = unboxed(key)
    try:
        return _key_of(str(key)) if not _is_plain(key) else f"$:{json.dumps(key)}"
    except Exception:  # it has no text
        return f"$:{type(key).__qualname__} {number}"


def _is_plain(key: Any) -> bool:
    parts: Any = key
    return isinstance(key, int | float | str | None) or (
        isinstance(key, tuple) and all(map(_is_plain, parts))
    )


def key_from(name: str) -> Any:
    """The key that `name` stands for in captured contents."""
    if name[:2] == "$$":
        return name[1:]
    if name[:2] != "$:":
        return name
    try:
        return frozen(json.loads(name[2:]))
    except ValueError:  # redacted, or a key without a text
        return name


def frozen(parts: Any) -> Any:
    """Lists of JSON as the tuples that they were."""
    return tuple(map(frozen, parts)) if isinstance(parts, list) else parts  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def before_redaction(value: Any) -> Any:
    """The captured value with long texts cut a little later than they will be, so that no half of a secret
    stays, and so that a megabyte is not searched for the sake of its beginning.
    """
    if isinstance(value, str) and len(value) > LONGEST_JSON:
        return {"$cut": {"text": value[: CHARS + _BEYOND], "chars": len(value)}}
    return _each(before_redaction, value)


def bounded_texts(value: Any) -> Any:
    """The captured value with strings of at most 16 KiB; the length of what was cut is kept."""
    if isinstance(value, str) and len(value) > CHARS:
        return {"$cut": {"text": value[:CHARS], "chars": len(value)}}
    parts: Any = value
    if isinstance(value, dict) and "$cut" in value and isinstance(parts["$cut"].get("text"), str):
        return {"$cut": {**parts["$cut"], "text": parts["$cut"]["text"][:CHARS]}}
    return _each(bounded_texts, value)


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """A captured list or mapping with its parts changed; any other value as it is."""
    parts: Any = value
    if isinstance(value, dict):
        return {key: change(part) for key, part in parts.items()}
    return [change(part) for part in parts] if isinstance(value, list) else value


def dumped(value: Any) -> bytes:
    """The bytes of captured contents, fields in their own order. Lone surrogates, which UTF-8 lacks, are escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    parts: Any = value
    if isinstance(value, dict):
        return {_clean(key): _clean(part) for key, part in parts.items()}
    return _each(_clean, value)


def restored(value: Any) -> Any:
    """The state in captured contents: messages and built-in types are made again; other marks stay mappings."""
    given: Any = value
    if not isinstance(value, dict):
        return _each(restored, given)
    if len(given) == 1:
        mark = next(iter(given))
        if mark in _RESTORED:
            try:
                return _RESTORED[mark](given[mark])
            except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
                return restored(given[mark])  # cut or redacted
    return {key_from(key): restored(part) for key, part in given.items()}


def said(part: Any) -> Any:
    """The texts in contents that are no state, such as reasons: of one that was cut its beginning, and nothing of
    what was left out.
    """
    parts: Any = part
    if isinstance(part, list):
        return [text for each in parts if (text := said(each)) is not None]
    if not isinstance(part, dict):
        return part
    if isinstance(cut := parts.get("$cut"), dict):
        return cast(Any, cut).get("text")
    return {name: text for name, each in parts.items() if (text := said(each)) is not None}


def _message_from(parts: dict[str, Any]) -> Any:
    found = {name: restored(part) for name, part in parts.items()}
    kind = found.pop("type")
    data = {"content": "", **found}
    try:
        if calls := found.get("invalid_tool_calls"):  # that a text in them was cut makes the message no other
            data["invalid_tool_calls"] = [{name: said(part) for name, part in call.items()} for call in calls]
        return messages_from_dict([{"type": kind, "data": data}])[0]
    except (ValueError, TypeError, AttributeError):  # cut or redacted beyond what the class accepts
        return {"$message": {"type": kind, **found}}


def _time_from(text: str) -> Any:
    kind = datetime if "T" in text else time if ":" in text else date
    return kind.fromisoformat(text)


def named_from(name: str, fields: Mapping[str, Any]) -> Any:
    """A named tuple with these fields; a plain one if a class cannot have their names."""
    try:
        return _named(name, tuple(fields))(*fields.values())
    except (ValueError, TypeError):
        return tuple(fields.values())


@lru_cache(256)
def _named(name: str, fields: tuple[str, ...]) -> Any:
    make: Any = namedtuple
    return make(name, fields)


def _listed(parts: Any) -> list[Any]:
    """The elements of a mark. Raises `TypeError` if they are no list any more, but redacted as a whole."""
    if not isinstance(parts, list):
        raise TypeError(parts)
    return [restored(part) for part in parts]  # pyright: ignore[reportUnknownVariableType]


_RESTORED: Mapping[str, Callable[[Any], Any]] = {
    "$message": _message_from,
    "$float": float,
    "$int": lambda digits: int(digits, 0),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$named": lambda given: named_from(given["name"], restored(given["fields"])),
    "$path": Path,
    "$time": _time_from,
    "$duration": lambda parts: timedelta(*parts),
    "$set": lambda parts: set(map(_hashable, _listed(parts))),
    "$tuple": lambda parts: tuple(_listed(parts)),
    "$deque": lambda given: deque(_listed(given["parts"]), given["most"]),
    "$type": lambda given: restored(given["fields"]),
    "$enum": lambda given: restored(given["value"]),
}


def _hashable(value: Any) -> Any:
    if type(value) is set:
        return frozenset(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    try:
        hash(value)
    except TypeError:  # a mapping or list that stands for an object
        return repr(value)
    return value
