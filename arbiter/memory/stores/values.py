"""Values of a store: what can be stored everywhere, and filters that mean the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

CLAIM = "claim"
"""The one key of a value that is ever embedded."""
PENDING = "needs_embedding"
"""The key that is True while the embedder owes a vector."""

_BROKEN = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` as every store can hold it: U+FFFD for NUL, which PostgreSQL has not, and for halves of characters, which
    UTF-8 has not."""
    if not _BROKEN.search(text):
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # two halves make a character
    return _BROKEN.sub("\ufffd", whole)


def clean(value: object) -> Any:
    """A copy of `value` as plain JSON, its texts by `clean_text`. Numbers that JSON has not become None. `TypeError`
    for what is no JSON."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {clean_text(str(key)): clean(member) for key, member in members.items()}
    if isinstance(value, list | tuple):
        return [clean(member) for member in cast("list[object]", value)]
    raise TypeError(f"a record holds only what JSON has, and {type(value).__name__} is not among it.")


def copied(value: object) -> Any:
    """A copy of something that came out of a store, as deep as its objects and lists go."""
    if isinstance(value, dict):
        return {key: copied(member) for key, member in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [copied(member) for member in cast("list[object]", value)]
    return value


def claim_of(value: Mapping[str, Any]) -> str | None:
    """The text of a value that is to be embedded, None if there is none."""
    claim: object = value.get(CLAIM)
    return claim if isinstance(claim, str) and claim.strip() else None


def matches(value: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Whether each key of `filter` has that value, or stands to it as `{"$gte": 0.5}` says ($eq, $ne, $gt, $gte, $lt,
    $lte). A key that is not there counts as None; what cannot be compared does not match."""
    return all(_matches(value.get(key), wanted) for key, wanted in filter.items())


def _matches(found: Any, wanted: Any) -> bool:
    tests: Mapping[str, Any] = cast("Mapping[str, Any]", wanted) if isinstance(wanted, Mapping) else {}
    if any(name.startswith("$") for name in tests):
        return all(_holds(found, name, limit) for name, limit in tests.items())
    return _same(found, wanted)


def _same(found: Any, wanted: Any) -> bool:
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _holds(found: Any, name: str, limit: Any) -> bool:
    if name == "$eq":
        return _same(found, limit)
    if name == "$ne":
        return not _same(found, limit)
    try:
        if name == "$gt":
            return bool(found > limit)
        if name == "$gte":
            return bool(found >= limit)
        if name == "$lt":
            return bool(found < limit)
        if name == "$lte":
            return bool(found <= limit)
    except TypeError:
        return False
    raise ValueError(f"no filter is called {name!r}: expected $eq, $ne, $gt, $gte, $lt or $lte.")
