"""Values of a store: JSON that every store can hold, and filters with one meaning for every store."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, cast

CLAIM = "claim"
"""The only key of a value that is embedded."""
PENDING = "needs_embedding"
"""The key that is True while a record waits for its vector."""

_BROKEN = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` as every store can hold it: U+FFFD replaces NUL, which PostgreSQL lacks, and lone surrogates,
    which UTF-8 lacks."""
    if not _BROKEN.search(text):
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs
    return _BROKEN.sub("\ufffd", whole)


def clean(value: object) -> Any:
    """A copy of `value` as plain JSON, its texts by `clean_text`. NaN and infinities become None.

    Raises `TypeError` for values that are not JSON.
    """
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
    raise TypeError(f"a record holds only JSON values, and {type(value).__name__} is not one.")


def copied(value: object) -> Any:
    """A deep copy of the dicts and lists in a store's value."""
    if isinstance(value, dict):
        return {key: copied(member) for key, member in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [copied(member) for member in cast("list[object]", value)]
    return value


def claim_of(value: Mapping[str, Any]) -> str | None:
    """The text of a value to embed; None if there is none."""
    claim: object = value.get(CLAIM)
    return claim if isinstance(claim, str) and claim.strip() else None


def matches(value: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """True if each key of `filter` has that value, or satisfies a comparison such as `{"$gte": 0.5}`.

    The comparisons are $eq, $ne, $gt, $gte, $lt and $lte. A missing key counts as None; values that cannot be
    compared do not match.
    """
    return all(_matches(value.get(key), wanted) for key, wanted in filter.items())


def _matches(found: Any, wanted: Any) -> bool:
    tests: Mapping[str, Any] = cast("Mapping[str, Any]", wanted) if isinstance(wanted, Mapping) else {}
    if any(name.startswith("$") for name in tests):
        return all(_holds(found, name, limit) for name, limit in tests.items())
    return _same(found, wanted)


def _same(found: Any, wanted: Any) -> bool:
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": _same,
    "$ne": lambda found, limit: not _same(found, limit),
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def _holds(found: Any, name: str, limit: Any) -> bool:
    if name not in _TESTS:
        raise ValueError(f"there is no filter {name!r}: expected {', '.join(_TESTS)}.")
    try:
        return bool(_TESTS[name](found, limit))
    except TypeError:
        return False
