"""How receivers of scores read HTTP answers."""

from __future__ import annotations

from collections.abc import Mapping

from arbiter.ledger._receivers import BatchRefused, ReceiverBusy, ReceiverError

_BAD_SCORES = frozenset({400, 413, 422})
"""Answers about the scores themselves: without the one that is the reason, the others are taken."""
_TRY_AGAIN = frozenset({408, 425, 429})
"""Answers to a client that ask for another attempt, as 500 and above do. All others below 500 stay the same
until a key or an address is changed.
"""
REASON = 300
"""Characters of an answer that are kept."""


def meaning_of(
    service: str, status: int, text: str, headers: Mapping[str, str] | None, settings: str
) -> ReceiverError | BatchRefused | ReceiverBusy:
    """The meaning of an error for an export. `settings` names the values that a user may have to correct."""
    if status in _BAD_SCORES:
        return BatchRefused(f"{status}: {text}")
    said = f"{service} answered {status}: {text}"
    if 300 <= status < 500 and status not in _TRY_AGAIN:
        return ReceiverError(f"{said}. Check {settings}.")
    return ReceiverBusy(said, retry_after=_seconds_of(headers))


def _seconds_of(headers: Mapping[str, str] | None) -> float | None:
    """The seconds that a `Retry-After` asks for; None without one, or for a date."""
    for name, value in (headers or {}).items():
        if name.lower() == "retry-after":
            try:
                return max(float(value), 0.0)
            except ValueError:
                return None
    return None
