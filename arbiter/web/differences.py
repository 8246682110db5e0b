"""Differences of two texts by words, as parts that a template marks with `ins` and `del`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, Literal

from arbiter.harness.reports.page import shown
from arbiter.history._rendering import value_text

Part = tuple[Literal["same", "ins", "del"], str]
WORDS = 3_000
"""The words of a text that are compared; the rest is left out, and a part says so."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_WIDTH = 100
_LINES = 400


def word_differences(before: str, after: str) -> list[Part]:
    """The parts of `after` and what was removed of `before`, in the order of reading.

    Joined without those that are `del`, the parts are `after`; without those that are `ins`, `before`.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    cut = max(len(old), len(new)) > WORDS
    old, new = old[:WORDS], new[:WORDS]
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    start, end = new[:head], new[len(new) - tail :]
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    parts: list[Part] = [("same", "".join(start))] if start else []
    # Blanks and other frequent words begin no match of long texts: comparing each with each takes minutes.
    for kind, i, j, k, m in SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(new[k:m])))
            continue
        if j > i:
            parts.append(("del", "".join(old[i:j])))
        if m > k:
            parts.append(("ins", "".join(new[k:m])))
    if end:
        parts.append(("same", "".join(end)))
    if cut:
        parts.append(("same", f"\n… only the first {WORDS:,} words are compared"))
    return parts


def _alike(one: list[str], other: list[str]) -> int:
    """The number of words with which both begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


def state_differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, list[Part]]]:
    """The fields in which two states differ, each with the differences of its text."""
    for name in dict.fromkeys((*before, *after)):
        old, new = (_text(state, name) for state in (before, after))
        if old != new:
            yield name, word_differences(old, new)


def _text(state: Mapping[str, Any], name: str) -> str:
    """A field's value as it is shown: escaped and bounded, "" if it is not there."""
    if name not in state:
        return ""
    value = state[name]
    return (
        shown(value) if isinstance(value, str) else value_text({name: value}, width=_WIDTH, max_lines=_LINES)
    )
