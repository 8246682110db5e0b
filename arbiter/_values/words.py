"""The words of scripts that have no blanks between words, such as Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import add

UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A character of such a script: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_RUN = re.compile(f"({UNSPACED}+)")


def with_pairs(words: Iterable[str]) -> list[str]:
    """The words, with each pair of neighbouring characters in place of a run of characters of such a script."""
    return [part for word in words for part in (_parts(word) if _RUN.search(word) else (word,))]


def _parts(word: str) -> Iterator[str]:
    for at, part in enumerate(_RUN.split(word)):
        if at % 2 and len(part) > 1:
            yield from map(add, part, part[1:])
        elif part:
            yield part
