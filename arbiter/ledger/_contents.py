"""States as the ledger keeps them: copied at the moment, bounded, as JSON with marks.

`capture` is all that a node waits for. It visits a bounded number of values and copies containers, so that later
changes in place are not recorded. Keys that begin with `$` are marks:

    $message   a LangChain message: its class and fields      $cut      parts left out, and how many there were
    $type      fields of a pydantic model or dataclass        $secret   the detector that found a secret
    $float $int $time $set $tuple $bytes                      $opaque   a type that has no form here

A user's own key `$x` is kept as `$$x`. Only messages and built-in types are ever made from it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from hashlib import sha256
from itertools import islice
from typing import Any, Literal, cast
from uuid import UUID

import orjson
from langchain_core.messages import BaseMessage, messages_from_dict
from pydantic import BaseModel

from arbiter.redaction import LONGEST_JSON

States = Literal["none", "digest", "bounded", "full"]

VALUES = 2_000
FIRST, LAST = 20, 80
KEYS = 200
CHARS = 16 * 1024
BYTES = 256 * 1024
_BEYOND = 256
_DEPTH = 64
_LARGEST = 2**53 - 1
_MESSAGE_FIELDS = ("content", "id", "name", "tool_calls", "tool_call_id", "status", "additional_kwargs")


class _Capture:
    """One capture: the number of values that may still be visited."""

    __slots__ = ("bounded", "left")

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded
        self.left = VALUES if bounded else 10**9

    def value(self, value: Any, depth: int = 0) -> Any:
        self.left -= 1
        kind = cast(Any, type(value))
        of: Any = value
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if -_LARGEST <= value <= _LARGEST else {"$int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if depth > _DEPTH:
            return {"$cut": {"depth": depth}}
        if isinstance(value, BaseMessage):
            return self._message(value, depth)
        if isinstance(value, Mapping):
            return self._mapping(of, depth)
        if isinstance(value, list):
            return self._list(of, depth)
        if isinstance(value, tuple):
            return {"$tuple": self._list([*of], depth)}
        return self._other(value, depth)

    def _list(self, parts: list[Any], depth: int) -> list[Any]:
        size = len(parts)
        if not self.bounded or (size <= FIRST + LAST and self.left > 0):
            return [self.value(part, depth + 1) for part in parts]
        # The last element is never cut away: in a conversation it is what the node was asked.
        first, last = (FIRST, LAST) if self.left > 0 else (0, 1)
        kept_first = [self.value(part, depth + 1) for part in parts[: min(first, size - 1)]]
        rest = parts[len(kept_first) :]
        kept_last = [self.value(part, depth + 1) for part in rest[-last:]]
        left_out = size - len(kept_first) - len(kept_last)
        cut = [{"$cut": {"items": left_out, "of": size}}] if left_out else []
        return [*kept_first, *cut, *kept_last]

    def _mapping(self, parts: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        size = len(parts)
        kept = [*islice(parts.items(), KEYS)] if self.bounded else [*parts.items()]
        for number, (key, part) in enumerate(kept):
            if self.left <= 0 and self.bounded:
                kept = kept[:number]
                break
            name = key if type(key) is str else str(key)
            found[f"${name}" if name.startswith("$") else name] = self.value(part, depth + 1)
        if len(kept) < size:
            found["$cut"] = {"keys": size - len(kept), "of": size}
        return found

    def _message(self, message: BaseMessage, depth: int) -> dict[str, Any]:
        parts: dict[str, Any] = {"type": message.type}
        for name in _MESSAGE_FIELDS:
            found: Any = getattr(message, name, None)
            if found or name == "content":
                parts[name] = self.value(found, depth + 1)
        usage: Any = getattr(message, "usage_metadata", None)
        if usage:
            parts["usage_metadata"] = self.value(dict(usage), depth + 1)
        return {"$message": parts}

    def _other(self, value: Any, depth: int) -> Any:
        kind = cast(Any, type(value))
        of: Any = value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, Enum):
            return self.value(value.value, depth + 1)
        if isinstance(value, bool | int | float):
            return self.value(int(value) if isinstance(value, int) else float(value), depth + 1)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return {"$time": aware.astimezone(UTC).isoformat()}
        if isinstance(value, date | time):
            return {"$time": value.isoformat()}
        if isinstance(value, timedelta):
            return {"$float": repr(value.total_seconds())}
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(of)
            return {"$bytes": {"size": len(data), "sha256": sha256(data).hexdigest()}}
        if isinstance(value, Set):
            parts: list[Any] = sorted(of, key=repr)
            return {"$set": self._list(parts, depth)}
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, BaseModel):
            inner = {**value.__dict__, **(value.__pydantic_extra__ or {})}
            return {"$type": {"name": name, "fields": self._mapping(inner, depth)}}
        if is_dataclass(value) and not isinstance(value, type):
            of = {field.name: getattr(value, field.name, None) for field in fields(value)}
            return {"$type": {"name": name, "fields": self._mapping(of, depth)}}
        return {"$opaque": name}


def capture(value: Any, states: States = "bounded") -> Any:
    """A copy of a state as JSON with marks, or None for `none`. Never raises.

    `digest` keeps only a digest of each field. `bounded` visits 2,000 values and keeps the first 20 and last
    80 elements of a list and 200 keys of a mapping. `full` keeps everything.
    """
    if states == "none":
        return None
    try:
        copied = _Capture(bounded=states != "full").value(value)
        return _digests(copied) if states == "digest" else copied
    except Exception as error:  # a property or a mapping of the user's that raises
        return {"$opaque": f"{type(value).__module__}.{type(value).__qualname__}: {type(error).__name__}"}


def _digests(value: Any) -> Any:
    """The digest of each field of a captured state."""
    parts: Any = value
    fields: dict[str, Any] = parts if isinstance(value, dict) else {"__root__": parts}
    return {key: {"$digest": sha256(dumped(part)).hexdigest()} for key, part in fields.items()}


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
    """The bytes of captured contents. Lone surrogates, which UTF-8 lacks, become U+FFFD."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return orjson.dumps(_clean(value), option=orjson.OPT_SORT_KEYS)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
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
            return _RESTORED[mark](given[mark])
    return {(key[1:] if key.startswith("$$") else key): restored(part) for key, part in given.items()}


def _message_from(parts: dict[str, Any]) -> Any:
    found = {name: restored(part) for name, part in parts.items()}
    kind = found.pop("type")
    try:
        return messages_from_dict([{"type": kind, "data": {"content": "", **found}}])[0]
    except (ValueError, TypeError):  # cut or redacted beyond what the class accepts
        return {"$message": {"type": kind, **found}}


def _time_from(text: str) -> Any:
    try:
        return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)
    except ValueError:
        return text


def _set_from(parts: list[Any]) -> Any:
    return {_hashable(restored(part)) for part in parts}


def _tuple_from(parts: list[Any]) -> Any:
    return tuple(restored(part) for part in parts)


def _fields_from(parts: dict[str, Any]) -> Any:
    return restored(parts["fields"])


_RESTORED: Mapping[str, Any] = {
    "$message": _message_from,
    "$float": float,
    "$int": int,
    "$time": _time_from,
    "$set": _set_from,
    "$tuple": _tuple_from,
    "$type": _fields_from,
}


def _hashable(value: Any) -> Any:
    return repr(value) if type(value) in (dict, list) else value
