"""Canonical JSON: one text for one value, so that equal values have equal hashes in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic_core import to_json

__all__ = ["canonical", "compact", "digest", "is_list", "is_mapping", "plain_copy"]

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


def digest(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain_copy(value: Any) -> Any:
    """A copy of a JSON value: new mappings and lists all the way down."""
    if type(value) in _ATOMS:
        return value
    if is_mapping(value):
        return {key: part if type(part) in _ATOMS else plain_copy(part) for key, part in value.items()}
    if is_list(value):
        return [plain_copy(part) for part in value]
    if is_tuple(value):
        return tuple(map(plain_copy, value))
    return value  # all else in JSON is immutable


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return type(value) is dict or isinstance(value, Mapping)  # `isinstance` asks the class in Python


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
