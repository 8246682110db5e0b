"""Unicode normal forms in linear time, and texts in any case."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

MOST_MARKS = 30
"""Longest run of combining marks, as in Unicode's stream-safe format: sorting a run takes quadratic time."""


def normalized(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
    """`text` in that normal form, with at most 30 combining marks in a row."""
    if text.isascii():
        return text
    # A run that is too long has a mark at one of these places.
    if any(map(unicodedata.combining, text[:: MOST_MARKS + 1])):
        text = _marks().sub(r"\1", text)
    return unicodedata.normalize(form, text)


def casefolded(text: str) -> str:
    """`text` in NFKC and in any case, but for the Turkish i with a dot and the one without."""
    return normalized("NFKC", text).casefold()


def anycase(text: str) -> str:
    """`text` in NFKC and in any case, with ASCII digits. The Turkish i with a dot and the one without count as the
    Latin i."""
    return with_plain_digits(with_latin_i(casefolded(text)))


def with_latin_i(folded: str) -> str:
    """A text in any case, with the Latin i in place of the Turkish ones."""
    return folded.replace("i\u0307", "i").replace("\u0131", "i")


_DIGIT = re.compile(r"[^\D0-9]")  # of another script


def with_plain_digits(text: str) -> str:
    """`text` with ASCII digits in place of those of other scripts: no place moves."""
    return text if text.isascii() or not _DIGIT.search(text) else text.translate(_digits())


@cache
def _digits() -> dict[int, str]:
    """The ASCII digit of each digit of another script."""
    return {ord(digit): str(int(digit)) for digit in map(chr, range(0x660, 0x20000)) if digit.isdecimal()}


_ACCENTS = re.compile("[\u0300-\u036f]")
# Small letters that Unicode does not take apart.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe"})


def unaccented(text: str) -> str:
    """`text`, small letters, in NFC without the accents of Latin, Greek and Cyrillic. In other scripts marks are
    vowels, and stay."""
    if text.isascii():
        return text
    return normalized("NFC", _ACCENTS.sub("", normalized("NFD", text))).translate(_LETTERS)


@cache
def _marks() -> re.Pattern[str]:
    """A run of too many combining marks, and its allowed part."""
    marks = "".join(char for char in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(char))
    return re.compile(f"([{marks}]{{{MOST_MARKS}}})[{marks}]+")
