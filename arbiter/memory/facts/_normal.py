"""The normal form of a claim, and the keys derived from it. See docs/memory.md."""

from __future__ import annotations

import json
import re
from uuid import UUID, uuid5

from arbiter._values.normal import normalized

_FACTS = UUID("6f0c5d1e-6a4b-5b0c-9d0e-0c5f1a7e2b34")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def normal_form(claim: str) -> str:
    """A claim in NFKC, with single spaces, and without one trailing full stop.

    Case and other punctuation stay: "Balance: -10 USD" and "Balance: +10 USD" are two claims, as are "1.5"
    and "1 5", or "API_KEY" and "api_key".
    """
    return " ".join(normalized("NFKC", claim).split()).removesuffix(".").rstrip()


def fact_id(agent_id: str, subject: str, claim: str, generation: int = 0) -> str:
    """The id, and key, of the record of a claim about `subject`; it is the same for every writer.

    `generation` counts how often the claim has ended and become true again.
    """
    parts = [agent_id, subject, normal_form(claim)]
    return str(uuid5(_FACTS, _joined([*parts, str(generation)] if generation else parts)))


def sentences(texts: tuple[str, ...]) -> frozenset[str]:
    """The normal forms of all texts and of each sentence in them."""
    found = {normal_form(part) for text in texts for part in (text, *_SENTENCE.split(text))}
    return frozenset(found - {""})


def _joined(parts: list[str]) -> str:
    # JSON keeps ("a", "bc") and ("ab", "c") apart, and can encode lone surrogates, unlike UTF-8.
    return json.dumps(parts)
