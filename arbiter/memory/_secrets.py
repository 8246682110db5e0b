"""Removes secrets from what is said, and the middle of long texts, before memory works with it."""

from __future__ import annotations

from hashlib import blake2b

from arbiter._threads.forks import new_lock
from arbiter._values.recent import Recent
from arbiter.redaction import SecretRedactor

REMOVED = "[removed]"
DETECT = ("secrets", "cards", "papers", "spoken")
_REDACTOR = SecretRedactor(DETECT, mark=REMOVED)
_LONG = 1_000
_KEPT = Recent[bytes, str](512)
"""The last long texts, redacted: a conversation is read again in each turn. Texts as they were said are not kept."""
_GUARD = new_lock()


def redacted(text: str) -> str:
    """A text with each secret replaced by "[removed]", and without the middle of a long one; the same text if
    it has no secret and is short."""
    if len(text) <= _LONG:
        return _REDACTOR.text(text)
    key = blake2b(text.encode(errors="surrogatepass"), digest_size=20).digest()
    with _GUARD:
        found = _KEPT.get(key)
    if found is None:
        found = _REDACTOR.text(text)
    with _GUARD:
        _KEPT[key] = found
    return text if found == text else found
