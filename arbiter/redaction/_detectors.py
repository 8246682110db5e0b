"""The detectors by name, and where they find something in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from arbiter._values.normal import with_plain_digits
from arbiter.redaction._forms import keys_in, tokens_in
from arbiter.redaction._numbers import cards_in, digits_in, ibans_in, papers_in
from arbiter.redaction._spoken import told_in

Range = tuple[int, int]

_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}+@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")
_PHONE = re.compile(r"(?<![\w.])\+?\(?[0-9](?:[ ()./-]{0,3}[0-9]){6,14}+(?![ ./-]?[0-9])")


@dataclass(frozen=True, slots=True)
class Found:
    """The range `start` to `end` of a secret, and the name of the detector that found it."""

    start: int
    end: int
    detector: str


def _secrets(text: str, folded: str, digits: int) -> Iterator[Range]:
    yield from keys_in(text, folded)
    if digits:
        yield from tokens_in(text)


def _cards(text: str, digits: int) -> Iterator[Range]:
    if digits >= 13:
        yield from cards_in(text)
    if digits >= 2:
        yield from ibans_in(text)


_BY_NAME: dict[str, Callable[[str, str, int], Iterator[Range]]] = {
    "secrets": _secrets,
    "cards": lambda text, folded, digits: _cards(text, digits),
    "papers": papers_in,
    "spoken": lambda text, folded, digits: told_in(text, folded),
    "emails": lambda text, folded, digits: _all(_EMAIL, text) if "@" in text else iter(()),
    "phones": lambda text, folded, digits: _all(_PHONE, text) if digits >= 7 else iter(()),
}
_ESCAPED = ("\\n", "\\r", "\\t", "\\b", "\\f")
_MOST = 64
"""Findings of a detector in one text; from the last one on, all of the text counts as one."""
DETECTORS: Final = tuple(_BY_NAME)
"""The names of all detectors."""


def found_in(text: str, detect: Collection[str]) -> list[Found]:
    """The findings of the detectors `detect` in `text`, in the order of their start; ranges may overlap.

    The text is read as it is: without removing invisible characters, and at any length; only digits of other scripts
    are read as ASCII ones. If it has escaped ends of lines or tabs, as in the printed form of a text, it is read once
    more with blanks in their place: `\\n` may as well be a part of a password.
    """
    found: set[Found] = set()
    for reading in _readings(with_plain_digits(text)):
        folded, digits = _folded(reading), digits_in(reading)
        for name in detect:
            found.update(first_of(name, _BY_NAME[name](reading, folded, digits), text))
    return sorted(found, key=lambda one: (one.start, -one.end, one.detector))


def first_of(detector: str, ranges: Iterable[Range], text: str) -> Iterator[Found]:
    """The findings of a detector in these ranges, as many as count."""
    first = list(islice(ranges, _MOST))
    if len(first) == _MOST:
        first[-1] = (first[-1][0], len(text))
    return (Found(start, end, detector) for start, end in first if end > start)


def _readings(text: str) -> Collection[str]:
    plain = text
    if "\\" in text:
        for escaped in _ESCAPED:
            plain = plain.replace(escaped, "  ")
    return (text,) if plain == text else (text, plain)


def _all(pattern: re.Pattern[str], text: str) -> Iterator[Range]:
    return (match.span() for match in pattern.finditer(text))


def _folded(text: str) -> str:
    """`text` in lower case, character by character: no place moves."""
    if text.isascii():
        return text.lower()
    # The lower case of this letter alone has two characters.
    return text.replace("\u0130", "i").lower()
