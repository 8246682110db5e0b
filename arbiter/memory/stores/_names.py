"""Names of records: labels of namespaces, keys, and names of locks."""

from __future__ import annotations

import re
from hashlib import sha256
from uuid import UUID

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
    return "sha256:" + _digest(key)


def joined(parts: tuple[str, ...]) -> str:
    """One text for several parts, different for different parts."""
    return ".".join(ns_label(part) for part in parts)


def _encoded(text: str) -> str:
    return _UNSAFE.sub(lambda found: _percent(found.group()), text)


def _percent(character: str) -> str:
    if character == "\x00":
        return "%C0%80"  # not valid UTF-8, so no other text has it; `%00` is the empty text
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _short(label: str, whole: str) -> str:
    encoded = label.encode()
    if len(encoded) <= _LONGEST_LABEL:
        return label
    # `%~` occurs only in labels that were cut: otherwise two digits follow a `%` or, at the beginning, `!`.
    return encoded[: _LONGEST_LABEL - 70].decode(errors="ignore") + "%~" + _digest(whole)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
