"""Similarity by words, used without embeddings. It knows no meaning, and is never called semantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from functools import lru_cache
from math import sqrt
from typing import TypeVar
from unicodedata import normalize

T = TypeVar("T")

# A number with its decimals is one word; scripts that do not separate words count by the character.
_WORD = re.compile(
    r"\d+(?:[.,]\d+)+|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)

_SHORT = 500


def words_of(text: str) -> frozenset[str]:
    """The distinct words of a text, numbers included, in folded case."""
    return _kept(text) if len(text) <= _SHORT else _found(text)


@lru_cache(maxsize=2**14)
def _kept(text: str) -> frozenset[str]:
    # The same claims are compared turn after turn.
    return _found(text)


def _found(text: str) -> frozenset[str]:
    if not text.isascii():
        text = normalize("NFKC", text)
    return frozenset(_WORD.findall(text.casefold()))


def likest(claims: Iterable[tuple[T, str]], query: str, *, limit: int) -> list[tuple[T, float]]:
    """Of pairs (item, text), at most `limit` whose text shares words with `query`, with their `overlap`,
    best first."""
    wanted = words_of(query)
    found = [
        (what, overlap(words, wanted))
        for what, text in claims
        if not wanted.isdisjoint(words := words_of(text))
    ]
    found.sort(key=lambda pair: pair[1], reverse=True)
    return found[:limit]


def overlap(one: Set[str], other: Set[str]) -> float:
    """The number of shared words divided by the geometric mean of both numbers of words: 0.0 (none) to 1.0
    (the same)."""
    shared = len(one & other)
    return shared / sqrt(len(one) * len(other)) if shared else 0.0
