"""What is never stored, and what only on request: decided in code, whatever a model says.

Secrets are keys, passwords, card numbers and national ids. Sensitive is what is said of somebody's health, religion,
politics, sexuality, exact address, children or criminal record. Both are recognised in English, and by their form.
"""

from __future__ import annotations

from arbiter.memory.facts._secrets import SECRET_SLOT, secrets
from arbiter.memory.facts._sensitive import category
from arbiter.memory.facts.normal import bare

__all__ = ["REMOVED", "category", "has_secret", "redacted"]

REMOVED = "[removed]"


def has_secret(
    claim: str, *, subject: str | None = None, slot: str | None = None, value: str | None = None
) -> bool:
    """Whether any part of what would be stored is a secret, or all of it together is."""
    if slot and value and SECRET_SLOT.search(slot):
        return True
    parts = [part for part in (claim, subject, slot, value) if part]
    # A value says nothing by itself where its claim says what it is: "password" and "hunter2".
    joined = [f"{part}: {value}" for part in (claim.rstrip(" ."), slot) if part and value]
    return any(secrets(bare(part)) for part in (*parts, *joined))


def redacted(text: str) -> str:
    """A text with each secret replaced by "[removed]". Without secrets: the text as it is."""
    looked_at = bare(text)
    found = sorted(secrets(looked_at))
    if not found:
        return text
    made, at = "", 0
    for start, end in found:
        if end > at:
            made += (looked_at[at:start] + REMOVED) if start >= at else ""
            at = end
    return made + looked_at[at:]
