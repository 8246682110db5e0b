"""Error messages of a failed evaluation: the fields and their kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from arbiter._conditions.needs import Need


def _leaves(need: Need, handed: Any) -> Iterator[tuple[str, Any]]:
    """The fields that were passed whole, or that have another kind than the expression expects."""
    parts: Any = handed
    if need.only_size and isinstance(handed, bytes):
        return  # they stand for a value of whatever kind
    if need.whole or not isinstance(handed, dict | list):
        if not need.presence:
            yield need.path, parts
        return
    if need.each is not None:
        for part in parts.values() if isinstance(handed, dict) else parts:
            yield from _leaves(need.each, part)
    for key, wanted in need.keys.items():
        if isinstance(handed, list) and isinstance(key, str):
            yield need.path, parts
        elif key in (parts if isinstance(handed, dict) else range(-len(parts), len(parts))):
            yield from _leaves(wanted, parts[key])


def kinds(need: Need, handed: Any) -> list[str]:
    return list(dict.fromkeys(f"{path} is {kind_of(value)}" for path, value in _leaves(need, handed)))


def kind_of(value: object) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "not a number"
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: dict[type[Any], str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an int",
    float: "a double",
    str: "a string",
    bytes: "bytes",
    list: "a list",
    dict: "a map",
    datetime: "a timestamp",
    timedelta: "a duration",
}


def broken_text(need: Need, handed: Any) -> str | None:
    """The field with a text that has no UTF-8 form."""
    return next((path for path, value in _leaves(need, handed) if _is_broken(value)), None)


def _is_broken(value: Any) -> bool:
    if isinstance(value, str):
        return not value.isascii() and value != value.encode(errors="ignore").decode()
    parts: Any = value
    if isinstance(value, dict):
        return any(_is_broken(part) for item in parts.items() for part in item)
    return isinstance(value, list) and any(map(_is_broken, parts))
