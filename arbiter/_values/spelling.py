"""Misspelt names: the name that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable


def misspelt(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` of which `name` is a misspelling; None if it may well be a name of its own.

    A misspelling differs in case or separators, has the parent's name in front, or has one letter too many,
    too few, changed or swapped (two in long names). Names that differ in a number or in a single letter that
    stands alone ("step_1", "step_2") are different on purpose.
    """
    found = [(distance, each) for each in names if (distance := _distance(name, each)) is not None]
    return min(found)[1] if found else None


def _distance(name: str, other: str) -> int | None:
    """The number of wrong letters, or None for another name."""
    own, theirs = (_PLAIN.sub("", text.rpartition(":")[2].casefold()) for text in (name, other))
    if own == theirs:
        return 0
    if _LABELS.findall(name.casefold()) != _LABELS.findall(other.casefold()):
        return None
    short, long = sorted((len(own), len(theirs)))
    # A first letter is seldom mistyped, and a different one makes another word: send, end.
    if short < 3 or (own[0] != theirs[0] and own[:2] != theirs[1::-1]):
        return None
    allowed = 2 if short >= 8 else 1
    edits = _edits(own, theirs)
    if short < 5 and edits == 1 and short == long and sorted(own) != sorted(theirs):
        return None  # in a short word, one changed letter makes another word: pay, pry
    return edits if edits <= allowed else None


_PLAIN = re.compile(r"[\s_.-]+")
_LABELS = re.compile(r"\d+|(?<![^\W_])[^\W\d_](?![^\W_])")
"""Numbers, and letters that stand alone."""


def _edits(one: str, other: str) -> int:
    """The number of letters to insert, delete, change or swap with the next one, to turn one name into the
    other.
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, target in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != target))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == target:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
