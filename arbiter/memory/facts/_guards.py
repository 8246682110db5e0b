"""A veto on duplicates that a model has found: two texts with other digits, or one of them negated.

Models and embeddings overlook these. The veto errs towards "different", which costs a second record at most.
"""

from __future__ import annotations

import re

from arbiter.redaction._texts import bare

_NUMBER = re.compile(r"(?<![\w.])[-+]?[$€£¥]?\d[\d.,:/]*|\d[\d.,:/]*")
_NEGATION = re.compile(r"\b(?:not|no|never|cannot)\b|n't\b", re.IGNORECASE)


def same_sense(one: str, other: str) -> bool:
    """True unless both texts have digits and differ in them, or only one has "not", "no", "never" or the
    like."""
    here, there = _numbers(one), _numbers(other)
    return (not (here and there) or here == there) and _is_negated(one) == _is_negated(other)


def _numbers(text: str) -> list[str]:
    found = _NUMBER.findall(bare(text).replace("\u2212", "-"))
    return sorted(re.sub(r"[$€£¥+]|[.,:/]+$|,(?=\d{3}\b)", "", number) for number in found)


def _is_negated(text: str) -> bool:
    return _NEGATION.search(bare(text).replace("\u2019", "'")) is not None
