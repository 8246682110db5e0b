"""Privacy rules in code, independent of any model: secrets are never stored, sensitive claims only on
request.

Secrets are keys, passwords, card numbers and national ids. Sensitive claims concern a person's health,
religion, politics, sexuality, exact address, children or criminal record; they are recognised in English.
"""

from __future__ import annotations

import re

from arbiter.memory._secrets import DETECT, REMOVED, redacted
from arbiter.memory.facts._sensitive import category
from arbiter.redaction import found_in
from arbiter.redaction._texts import bare

__all__ = ["REMOVED", "category", "has_secret", "redacted"]

_SECRET_SLOT = re.compile(
    r"(?:^|[._\s-])(?:pass\s?-?(?:word|code|phrase)s?|passwd|pwd?|pin(?:[ _-]?(?:code|number))?|cvv2?|cvc|security code"
    r"|(?:api|access|secret|private|auth|encryption|license|recovery|seed)[ _-]?(?:keys?|tokens?|codes?|phrase)"
    r"|client[ _]secret|tokens?|credentials?|mother'?s maiden name|ssn|social[._ -]security(?:[._ -]number)?"
    r"|(?:credit[._ -]?|debit[._ -]?)?card[._ -]number|iban)(?:$|[._\s-])",
    re.IGNORECASE,
)
"""The key of a slot whose value is always a secret."""


def has_secret(
    claim: str, *, subject: str | None = None, slot: str | None = None, value: str | None = None
) -> bool:
    """True if a field of a claim is a secret, or its fields together are."""
    if slot and value and _SECRET_SLOT.search(slot[:200]):
        return True
    parts = [part for part in (claim, subject, slot, value) if part]
    # A value alone may look harmless: "hunter2" is a secret only together with "password".
    joined = [f"{part}: {value}" for part in (claim.rstrip(" ."), slot) if part and value]
    return any(found_in(bare(part), DETECT) for part in (*parts, *joined))
