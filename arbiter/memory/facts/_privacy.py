"""Privacy rules in code, independent of any model: secrets are never stored, sensitive claims only on
request.

Secrets are keys, passwords, card numbers and national ids. Sensitive claims concern a person's health,
religion, politics, sexuality, exact address, children or criminal record. Both are recognised in English, and
by their form.
"""

from __future__ import annotations

from arbiter.memory.facts._normal import bare
from arbiter.memory.facts._secrets import SECRET_SLOT, secrets
from arbiter.memory.facts._sensitive import category

__all__ = ["REMOVED", "category", "has_secret", "redacted"]

REMOVED = "[removed]"


def has_secret(
    claim: str, *, subject: str | None = None, slot: str | None = None, value: str | None = None
) -> bool:
    """True if a field of a claim is a secret, or its fields together are."""
    if slot and value and SECRET_SLOT.search(slot):
        return True
    parts = [part for part in (claim, subject, slot, value) if part]
    # A value alone may look harmless: "hunter2" is a secret only together with "password".
    joined = [f"{part}: {value}" for part in (claim.rstrip(" ."), slot) if part and value]
    return any(secrets(bare(part)) for part in (*parts, *joined))


def redacted(text: str) -> str:
    """A text with each secret replaced by "[removed]"; the same text if it has none."""
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
