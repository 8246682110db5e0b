"""Likeness by words: what stands in where nothing is embedded. It knows no meaning, and is never called semantic."""

from __future__ import annotations

import re
from collections.abc import Set
from math import sqrt
from unicodedata import normalize

# A number with its decimals is one word; scripts that do not separate words count by the character.
_WORD = re.compile(
    r"\d+(?:[.,]\d+)+|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def words_of(text: str) -> frozenset[str]:
    """The different words of a text, numbers included, upper and lower case aside."""
    if not text.isascii():
        text = normalize("NFKC", text)
    return frozenset(_WORD.findall(text.casefold()))


def overlap(one: Set[str], other: Set[str]) -> float:
    """How many words both have, divided by the geometric mean of how many each has: 0.0 (none) to 1.0 (the same)."""
    shared = len(one & other)
    return shared / sqrt(len(one) * len(other)) if shared else 0.0
