"""Canonical JSON: one text for one value, so that equal values have equal hashes in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json

from arbiter._values.copies import jsonable
from arbiter._values.kinds import is_list, is_mapping, is_tuple

T = TypeVar("T")
_AT_ONCE = 100

canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=True
).encode
"""The JSON of a value with sorted keys and no blanks. Raises `ValueError` or `TypeError` for what is not JSON."""


def compact(value: Any) -> bytes:
    """The JSON of a value in UTF-8 without blanks, in the order of the keys."""
    try:
        return to_json(value)
    except ValueError:  # a lone surrogate, which has no UTF-8 form and is escaped
        return json.dumps(value, separators=(",", ":")).encode()


def listed(values: Sequence[T], form: Callable[[T], Any]) -> str:
    """The JSON of a list of values in that form. It is made of some at a time: all of them as dicts at once take many
    times the room, and the garbage collector visits them."""
    parts = (compact([*map(form, values[at : at + _AT_ONCE])]) for at in range(0, len(values), _AT_ONCE))
    return f"[{','.join(part[1:-1].decode() for part in parts)}]"


def digest(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


ATOMS = frozenset({str, int, float, bool, type(None)})


def plain_copy(value: Any) -> Any:
    """A copy of a JSON value: new mappings and lists all the way down."""
    if type(value) in ATOMS:
        return value
    if is_mapping(value):
        return {key: part if type(part) in ATOMS else plain_copy(part) for key, part in value.items()}
    if is_list(value):
        return [plain_copy(part) for part in value]
    if is_tuple(value):
        return tuple(map(plain_copy, value))
    return value  # all else in JSON is immutable


def text_of(value: Any) -> str:
    """A text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)


def only_text(value: Any) -> str:
    """The only text of a mapping; else as `text_of`."""
    parts: Any = list(value.values()) if is_mapping(value) else ()
    return text_of(parts[0] if len(parts) == 1 and isinstance(parts[0], str) else value)
