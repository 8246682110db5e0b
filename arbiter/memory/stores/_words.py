"""The words of a text: for likeness (`overlap`), and as the terms of an index (`terms_of`). They know no meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

from arbiter._values.kinds import is_list
from arbiter._values.normal import anycase, casefolded, unaccented, with_latin_i
from arbiter._values.words import HAN, UNSPACED, pairs_of
from arbiter.memory.stores._portable import Namespace, claim_of, clean_text, digest_of

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
    return frozenset(_WORD.findall(anycase(text)))


def overlap(one: Set[str], other: Set[str]) -> float:
    """The number of shared words divided by the geometric mean of both numbers of words: 0.0 (none) to 1.0
    (the same)."""
    shared = len(one & other)
    return shared / sqrt(len(one) * len(other)) if shared else 0.0


# Terms of an index --------------------------------------------------------------------------------

# Written without blanks, or (Hangul) with endings that make a word a different one: indexed by pairs of characters.
_DENSE = UNSPACED + "\u31f0-\u31ff\uac00-\ud7a3"
# Python's \w lacks the vowel signs of the scripts of India, and of Hebrew and Arabic.
_SIGNS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff\u0f00-\u0fff"
_TERM = re.compile(rf"\d+(?:[.,:]\d+)+|[{_DENSE}]+|(?:[^\W_{_DENSE}]|[{_SIGNS}])+")
_IS_DENSE = re.compile(f"[{_DENSE}]")
_IS_HAN = re.compile(f"[{HAN}]")
_LONGEST = 40
_MOST = 512


def terms_of(text: str, fold: Callable[[str], str] = anycase) -> Counter[str]:
    """The terms of a text for an index, and how often each occurs.

    Case, width and accents do not matter, nor do the most frequent endings of English words. Chinese,
    Japanese, Korean, Thai, Lao, Burmese and Khmer are indexed by pairs of characters, Chinese also by single ones.
    `fold` makes texts in any case equal.
    A text has at most 512 different terms.
    """
    found: Counter[str] = Counter()
    for match in _TERM.finditer(unaccented(fold(text))):
        run = match.group()
        if _IS_DENSE.match(run):
            found.update(pairs_of(run))
            if len(run) > 1:
                found.update(_IS_HAN.findall(run))
        else:
            found[_stem(run)[:_LONGEST]] += 1
        if len(found) >= _MOST:
            break
    return found


@lru_cache(maxsize=2**14)
def _stem(word: str) -> str:
    """`word` without the endings of English plurals, persons and tenses: lives, lived and living are one term."""
    if not word.isascii() or not word.isalpha() or len(word) < _SHORTEST:
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _ROOT:
            word = word[: -len(ending)] + instead
            break
    if len(word) > _SHORTEST and word[-1] == word[-2] and word[-1] not in "aeiosl":
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > _ROOT else word


_SHORTEST, _ROOT = 4, 3
_ENDINGS = (
    ("ies", "y"),
    ("ied", "y"),
    ("sses", "ss"),
    ("ings", ""),
    ("ing", ""),
    ("ed", ""),
    ("ss", "ss"),
    ("us", "us"),
    ("is", "is"),
    ("s", ""),
)

_FUNCTION = (
    "a an and any are as at be been but by can could did do does for from had has have he her him his how i if in is "
    "it its me my of on or our she should so than that the their them then there these they this those to us was we "
    "were what when where which who whom whose why will with would you your am about s t ll ve re d m"
)

# Words of questions, and the words of claims that answer them, which count less: "Where is my home?" and "lives in
# Oslo" share no word. Only what everybody is asked; the slots of claims and embeddings know more.
_ANSWERS = {
    "home address": "home address live reside residence",
    "live": "home residence",
    "job work profession occupation": "job work profession occupation employer",
    "old age birthday": "old age birthday born",
    "partner spouse married": "partner spouse wife husband married girlfriend boyfriend",
    "child children kid": "child children kid son daughter",
    "pet": "pet dog cat",
    "allergy allergic": "allergy allergic",
    "eat food meal cook dinner lunch": "allergy allergic vegan vegetarian diet",
}
_ALLY, _EARLIER = 0.4, 0.25
_QUERY = 4_000
_ASKED = 96


def asked_for(query: str) -> dict[str, float]:
    """The terms to search for and their weights, without English function words; at most 96 terms, the last
    ones of the query first.

    The last line counts most, because a query may be the last messages of a conversation: a line before it
    counts half, all earlier ones a quarter.
    """
    return dict(_asked(query[-_QUERY:]))


@lru_cache(maxsize=256)
def _asked(query: str) -> Mapping[str, float]:
    # A turn asks the same of several name spaces.
    weights: dict[str, float] = {}
    answers: dict[str, float] = {}
    weight = 1.0
    for line in reversed(query.splitlines()):
        found: dict[str, int] = terms_of(line)
        if not line.isascii():
            # Tables of older versions have the digits of other scripts as they were written.
            found = {**terms_of(line, lambda text: with_latin_i(casefolded(text))), **found}
        terms = [term for term in reversed(found) if term not in _NO_TERMS]
        for term in terms:
            if len(weights) < _ASKED and term not in weights:
                weights[term] = weight
                for ally in _ALLIES.get(term, ()):
                    answers.setdefault(ally, weight * _ALLY)
        weight = max(weight / 2, _EARLIER) if terms else weight
    return answers | weights


_NO_TERMS = frozenset(terms_of(_FUNCTION))
_ALLIES = {
    term: {*terms_of(answers)} - {term} for asked, answers in _ANSWERS.items() for term in terms_of(asked)
}


def terms_that_mean(claim: str) -> Set[str]:
    """The terms of a claim without English function words, and without the "User" whom it is about."""
    return terms_of(claim).keys() - _NO_TERMS - {"user"}


# The records of an index ---------------------------------------------------------------------------

PAGE = 100
"""Postings of a word that are read at once."""
EVERY = ""
"""The word that every record has."""
_MOST_OF_VALUE = 200


class Posting(NamedTuple):
    """A record with a word: its number in its place, how often it has the word, and its number of words."""

    record: int
    times: int
    length: int


class Written(NamedTuple):
    """The part of a record that an index keeps. `seen` orders records by time; a closed one, such as a
    superseded fact, is searched for only if asked."""

    words: Mapping[str, int]
    seen: str
    is_open: bool


CLOSED = ("superseded", "corrected", "retracted", "expired")


LINKS = ("slot", "refines", "superseded_by", "source_message_ids")


def link(name: str, value: str) -> str:
    """A word that a record with that value has. It counts nothing, and no text has it."""
    return "=" + digest_of(f"{name}\n{value}")[:24]


def is_open(value: Mapping[str, Any]) -> bool:
    return value.get("state") not in CLOSED


def written_of(value: Mapping[str, Any]) -> Written | None:
    """The part of a value to index: the words of its claim, and those of its slot and value; None without
    a claim."""
    claim = claim_of(value)
    if claim is None:
        return None
    words = terms_of(claim)
    for name in ("slot", "value"):
        given: object = value.get(name)
        if isinstance(given, str):
            words |= terms_of(given[:_MOST_OF_VALUE])
    for name in LINKS:
        found: object = value.get(name)
        for each in found if is_list(found) else [found]:
            if isinstance(each, str):
                words[link(name, each)] = 0
    seen: object = value.get("last_seen_at")
    # A Counter takes a link, which counts nothing, for one that is not there.
    return Written(dict(words), clean_text(seen) if isinstance(seen, str) else "", is_open(value))


Place = tuple[Namespace, bool]
"""A namespace, and whether it is the part with open records."""
