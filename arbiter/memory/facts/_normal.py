"""When two claims are one: their normal form, a veto on duplicates, and the ids of records. See docs/memory.md."""

from __future__ import annotations

import hmac
import json
import re

from arbiter._values.normal import anycase, normalized, with_plain_digits
from arbiter.memory._entities import folded_text
from arbiter.memory._notes import KEYS, key_in
from arbiter.memory._records import Records
from arbiter.redaction._texts import bare

_OF_FACTS = "facts"
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def normal_form(claim: str) -> str:
    """A claim in NFKC, with single spaces, and without one trailing full stop.

    Case and other punctuation stay: "Balance: -10 USD" and "Balance: +10 USD" are two claims, as are "1.5"
    and "1 5", or "API_KEY" and "api_key".
    """
    return " ".join(normalized("NFKC", claim).split()).removesuffix(".").rstrip()


def sought(text: str) -> str:
    """A text in the form in which it is looked for in others."""
    return folded_text(text).replace("\u2019", "'")


def begins_word(part: str, name: str) -> bool:
    """True if a word in the name of a slot or a field, or the name, begins with a sought text: "employ" in
    `job.employer`, "model" and "carmodel" in `carModel`, but "cat" not in `education`."""
    if not name:
        return False
    words = sought(f"{name} {_HUMP.sub(' ', name)}")
    return re.search(f"(?<![a-z0-9]){re.escape(part)}", words) is not None


def caseless(text: str) -> str:
    """The normal form of a text in any case: for names, and for words that are only compared."""
    return anycase(normal_form(text))


class FactIds(Records):
    """The ids, and keys, of the records of an entity's facts; the same for every writer of a claim.

    They are made with a random key that the store keeps for the entity, so that an id in a history confirms
    no guess of a claim. The key is deleted when everything about the entity is forgotten.
    """

    kind = KEYS
    _key: bytes | None = None

    async def ready(self) -> FactIds:
        """These ids with their key, which is made if the entity has none."""
        self._key = self._key or await key_in(self.store, self.space, _OF_FACTS)
        return self

    def of(self, subject: str, claim: str, generation: int = 0) -> str:
        """The id of a claim about `subject`. `generation` counts how often the claim has ended and become true
        again. Needs `ready`."""
        if self._key is None:
            raise RuntimeError("FactIds.ready was not awaited.")
        # JSON keeps ("a", "bc") and ("ab", "c") apart, and can encode lone surrogates, unlike UTF-8.
        parts = json.dumps([self.agent_id, subject, normal_form(claim), generation])
        return hmac.digest(self._key, parts.encode(), "sha256").hex()[:32]


def sentences(texts: tuple[str, ...]) -> frozenset[str]:
    """The normal forms of all texts and of each sentence in them."""
    found = {normal_form(part) for text in texts for part in (text, *_SENTENCE.split(text))}
    return frozenset(found - {""})


_NUMBER = re.compile(r"(?<![\w.])[-+]?[$€£¥]?\d[\d.,:/]*|\d[\d.,:/]*")
# As claims are written in many languages: two of them in different languages may be one.
_NEGATION = re.compile(
    r"\b(?:not|no|never|cannot|nicht|kein\w*|nie|niemals|niet|geen|nooit|inte|ikke|ingen|aldrig|nunca|jamás|não|pas"
    r"|jamais|non|nigdy|не|нет|никогда|δεν|değil|yok|لا|ليس|لم)\b|n't\b|[不没沒]|ない|ません|않|없|नहीं",
    re.IGNORECASE,
)


def same_sense(one: str, other: str) -> bool:
    """True unless both texts have digits and differ in them, or only one has "not", "no", "never" or the
    like, in one of many languages."""
    here, there = _numbers(one), _numbers(other)
    return (not (here and there) or here == there) and _is_negated(one) == _is_negated(other)


def _numbers(text: str) -> list[str]:
    found = _NUMBER.findall(with_plain_digits(bare(text)).replace("\u2212", "-"))
    return sorted(re.sub(r"[$€£¥+]|[.,:/]+$|,(?=\d{3}\b)", "", number) for number in found)


def _is_negated(text: str) -> bool:
    return _NEGATION.search(bare(text).replace("\u2019", "'")) is not None
