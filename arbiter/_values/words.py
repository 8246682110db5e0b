"""The words of scripts that have no blanks between words, such as Chinese, or that spell vowels as marks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from operator import add

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""The ranges of Chinese characters, for a class of a pattern."""
UNSPACED = HAN + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
"""Those of all such scripts: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
VOWEL_SIGNS = "".join(
    char
    for char in map(chr, (*range(0x780, 0x1DC0), *range(0xA800, 0xAC00)))
    if unicodedata.category(char).startswith("M")
)
r"""The marks that words are spelt with, from Thaana to Vedic and in Meetei Mayek, which are no `\w`. Arabic, Hebrew
and Latin do without theirs, once NFC has composed the letters that have them."""
_RUN = re.compile(f"([{UNSPACED}]+)")


def with_pairs(words: Iterable[str]) -> list[str]:
    """The words, with each pair of neighbouring characters in place of a run of characters of such a script."""
    return [part for word in words for part in (_parts(word) if _RUN.search(word) else (word,))]


def pairs_of(run: str) -> Iterable[str]:
    """The pairs of neighbouring characters; a single character by itself."""
    return map(add, run, run[1:]) if len(run) > 1 else (run,)


def _parts(word: str) -> Iterator[str]:
    for at, part in enumerate(_RUN.split(word)):
        if at % 2:
            yield from pairs_of(part)
        elif part:
            yield part
