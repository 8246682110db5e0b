"""Ids that are the same whenever they are worked out."""

from __future__ import annotations

from uuid import UUID, uuid5

_NAMESPACE = UUID("6f0c6f5e-4a0e-5b8e-9d1c-0f6f4b1f7a53")


def id_at(trace: str, span: str, *about: str) -> str:
    """The id, for other systems, of a score or a log record about a span; the ids of trace and span are in hex."""
    return str(uuid5(_NAMESPACE, ":".join((trace, span, *about))))
