"""What every store can hold: names of records and values, and filters with one meaning for every store."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, cast
from uuid import UUID

# Names --------------------------------------------------------------------------------------------

Namespace = tuple[str, ...]

# Characters that a store refuses in a label or reads as syntax: `.` separates labels in SQL stores, `*` stands for
# any label, PostgreSQL has no NUL, and a lone surrogate cannot be written as UTF-8.
_UNSAFE = re.compile(r"[%.*\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSAFE_IN_KEY = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# PostgreSQL's index takes 2,700 bytes for the labels and the key together.
_LONGEST_LABEL = 400
_LONGEST_KEY = 800


def ns_label(value: object) -> str:
    """`value` as one label of a namespace, different for different values.

    `%`, `.`, `*`, control characters and lone surrogates are percent-encoded as UTF-8; an empty text is
    `%00`. A label longer than 400 bytes is cut and ends in `%~` and its SHA-256. Integers and UUIDs are
    labelled as their text; other values that are not texts begin with `%!` and the name of their type, so
    that None is not the user "None".
    """
    if isinstance(value, str):
        text = str.__str__(value)
    elif isinstance(value, int | UUID) and not isinstance(value, bool):
        text = str(value)
    else:
        return _short(f"%!{type(value).__name__}!{_encoded(str(value))}", repr(value))
    return _short(_encoded(text), text) if text else "%00"


def namespace(agent_id: str, kind: str, scope: str) -> Namespace:
    """("arbiter", agent, kind, scope): the namespace of records of one kind.

    `scope` is the id of an entity; for goals, thoughts and cursors the id of a room; for relationships "all".
    """
    return ("arbiter", ns_label(agent_id), kind, ns_label(scope))


def safe_key(key: str) -> str:
    """`key` itself if every store accepts it, else `sha256:` and its digest."""
    if key and not _UNSAFE_IN_KEY.search(key) and len(key.encode()) <= _LONGEST_KEY:
        return key
    return "sha256:" + digest_of(key)


def joined(parts: tuple[str, ...]) -> str:
    """One text for several parts, different for different parts."""
    return ".".join(ns_label(part) for part in parts)


def _encoded(text: str) -> str:
    """The beginning of a text, as far as a label has it."""
    return _UNSAFE.sub(lambda found: _percent(found.group()), text[: _LONGEST_LABEL + 1])


@lru_cache(4096)
def _percent(character: str) -> str:
    if character == "\x00":
        return "%C0%80"  # not valid UTF-8, so no other text has it; `%00` is the empty text
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _short(label: str, whole: str) -> str:
    encoded = label.encode()
    if len(encoded) <= _LONGEST_LABEL:
        return label
    # `%~` occurs only in labels that were cut: otherwise two digits follow a `%` or, at the beginning, `!`.
    return encoded[: _LONGEST_LABEL - 70].decode(errors="ignore") + "%~" + digest_of(whole)


def digest_of(text: str) -> str:
    """The SHA-256 of any text, also of one that UTF-8 cannot write."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# Values -------------------------------------------------------------------------------------------

CLAIM = "claim"
"""The only key of a value that is embedded."""
PENDING = "needs_embedding"
"""The key that is True while a record waits for its vector."""

_BROKEN = re.compile("[\x00\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_REPLACED = dict.fromkeys([0, *range(0xD800, 0xE000)], "\ufffd")


def clean_text(text: str) -> str:
    """`text` as every store can hold it: U+FFFD replaces NUL, which PostgreSQL lacks, and lone surrogates,
    which UTF-8 lacks."""
    if _PAIR.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins the pairs
    return text.translate(_REPLACED) if _BROKEN.search(text) else text


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
