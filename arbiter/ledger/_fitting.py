"""Captured contents cut to a size: small parts stay whole, and of a list its last element goes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arbiter.ledger._contents import dumped

_LEAST = 64
"""Bytes below which a part is not cut but left out. A mark of what was cut takes less."""


def fitted(value: Any, most: int) -> Any:
    """The captured value as JSON of at most `most` bytes: texts lose their end, lists their middle, and mappings
    what is large in their largest parts. A part that is left out is named with its size.
    """
    size = len(dumped(value))
    if size <= most:
        return value
    found = _cut(value, most)
    return {"$cut": {"bytes": size}} if found is None else found


def _cut(value: Any, most: int) -> Any:
    """As `fitted` for a value that is too large; None if nothing of it fits."""
    if most < _LEAST:
        return None
    parts: Any = value
    if isinstance(value, str):
        return _text(value, len(value), most)
    if isinstance(value, list):
        return _list(parts, most)
    (mark, inner), *others = parts.items()
    if others or mark[:1] != "$" or mark[:2] in ("$$", "$:"):
        return _mapping(parts, most)
    if mark == "$cut" and "text" in inner:
        return _text(inner["text"], inner["chars"], most)
    room = most - len(mark) - len('{"":}')
    if mark in ("$type", "$named"):
        fields = _mapping(inner["fields"], room - len(dumped({**inner, "fields": {}})))
        return None if fields is None else {mark: {**inner, "fields": fields}}
    found = _mapping(inner, room) if mark == "$message" else _list(inner, room) if mark == "$tuple" else None
    return None if found is None else {mark: found}


def _text(text: str, chars: int, most: int) -> dict[str, Any]:
    room = most - _LEAST + len('""')
    end = room
    while len(dumped(text[:end])) > room:
        end //= 2
    return {"$cut": {"text": text[:end], "chars": chars}}


def _list(parts: Sequence[Any], most: int) -> list[Any] | None:
    """The last element, cut if it must be, then the first, and then as many before the last as fit whole."""
    room = most - _LEAST
    if room < _LEAST:
        return None
    last = fitted(parts[-1], room)
    room -= len(dumped(last))
    sizes = [len(dumped(part)) + len(",") for part in parts]
    first, begin = 0, len(parts) - 1
    if begin and sizes[0] <= room:
        first = 1
        room -= sizes[0]
    while begin > first and sizes[begin - 1] <= room:
        begin -= 1
        room -= sizes[begin]
    left_out = sum(map(_elements, parts[first:begin]))
    cut = [{"$cut": {"items": left_out, "of": sum(map(_elements, parts))}}] if left_out else []
    return [*parts[:first], *cut, *parts[begin:-1], last]


def _elements(part: Any) -> int:
    """The number of elements that a part of a captured list stands for."""
    of: Any = part
    return of["$cut"]["items"] if isinstance(part, dict) and "items" in of.get("$cut", ()) else 1


def _mapping(parts: Mapping[str, Any], most: int) -> dict[str, Any] | None:
    """All keys. The larger parts get the rest of the share of small ones."""
    left = most - len("{}") - sum(len(dumped(key)) + len(":,") for key in parts)
    if left < _LEAST * len(parts):
        return None
    found: dict[str, Any] = {}
    sizes = {key: len(dumped(part)) for key, part in parts.items()}
    for number, key in enumerate(sorted(parts, key=sizes.__getitem__)):
        found[key] = fitted(parts[key], left // (len(parts) - number))
        left -= len(dumped(found[key]))
    return {key: found[key] for key in parts}
