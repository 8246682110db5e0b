"""Text statistics: how much texts repeat themselves and each other. Plain functions, no model.

Words are Unicode words: "Café" is one, and Chinese text is not nothing. For a text without words every number is 0.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import combinations
from typing import Any

_NEITHER_WORD_NOR_BLANK = re.compile(r"[^\w\s]")
_SENTENCE_END = re.compile(r"[.!?]+")


def tokens(text: str) -> list[str]:
    """The words of a text: lower-case, what is neither `\\w` nor `\\s` deleted, split on blanks.

    "It's 5pm." gives "its" and "5pm".
    """
    return _NEITHER_WORD_NOR_BLANK.sub("", text.lower()).split()


def ngrams(text: str, n: int) -> set[str]:
    """The runs of `n` words of a text, each joined by a blank; none if it has fewer words."""
    _check_n(n)
    words = tokens(text)
    return {" ".join(words[at : at + n]) for at in range(len(words) - n + 1)}


def jaccard(one: Set[Any], other: Set[Any]) -> float:
    """|A ∩ B| / |A ∪ B|, 0.0 to 1.0; 0.0 for two empty sets."""
    shared = len(one & other)
    union = len(one) + len(other) - shared
    return shared / union if union else 0.0


def repetition(messages: Sequence[str], n: int = 3) -> float:
    """Mean Jaccard overlap of the word n-grams of every unordered pair of `messages`, 0.0 to 1.0.

    Fewer than two messages give 0.0, and so do pairs without an n-gram: two equal messages of two words have a
    3-gram repetition of 0.
    """
    _check_n(n)
    if len(messages) < 2:
        return 0.0
    # What is said twice is looked at once: a pair of equal messages has an overlap of 1, or none without n-grams.
    times = Counter(frozenset(ngrams(message, n)) for message in messages)
    times.pop(frozenset(), None)
    equal = sum(math.comb(count, 2) for count in times.values())
    pairs = _shared(list(times), list(times.values()))
    overlaps = (count * (both / (sizes - both)) for (both, sizes), count in pairs.items() if count)
    return math.fsum([equal, *overlaps]) / math.comb(len(messages), 2)


_FREQUENT = 100
_TOO_MANY = 5_000_000


def _shared(sets: Sequence[frozenset[str]], times: Sequence[int]) -> Counter[tuple[int, int]]:
    """How many pairs of different sets share how much: counts by (|A ∩ B|, |A| + |B|), without those that share
    nothing. Each set counts as often as `times` says.

    Only pairs that share something are looked at. Where a phrase is in so many sets that these are too many, the
    sets are first put together by the frequent phrases that they have, and the rest is counted on top of that.
    """
    holders: dict[str, list[int]] = {}
    for at, found in enumerate(sets):
        for ngram in found:
            holders.setdefault(ngram, []).append(at)
    pairs = sum(math.comb(len(having), 2) for having in holders.values())
    limit = _FREQUENT if pairs > _TOO_MANY else len(sets)
    frequent = {
        ngram: 1 << bit for bit, ngram in enumerate(g for g, having in holders.items() if len(having) > limit)
    }
    masks = [sum(frequent[ngram] for ngram in found if ngram in frequent) for found in sets]
    counts = _shared_frequent(sets, times, masks)
    for at, found in enumerate(sets):
        shared: Counter[int] = Counter()
        for ngram in found:
            if ngram not in frequent:
                having = holders[ngram]
                shared.update(having[: bisect_left(having, at)])
        for other, both in shared.items():
            base = (masks[at] & masks[other]).bit_count()
            sizes = len(found) + len(sets[other])
            many = times[at] * times[other]
            if base:
                counts[base, sizes] -= many
            counts[base + both, sizes] += many
    return counts


def _shared_frequent(
    sets: Sequence[frozenset[str]], times: Sequence[int], masks: Sequence[int]
) -> Counter[tuple[int, int]]:
    """As `_shared`, of the phrases in `masks` alone."""
    counts: Counter[tuple[int, int]] = Counter()
    alike: dict[tuple[int, int], list[int]] = {}
    for found, count, mask in zip(sets, times, masks, strict=True):
        if mask:
            alike.setdefault((mask, len(found)), []).append(count)
    groups = [(mask, size, sum(many), many) for (mask, size), many in alike.items()]
    for at, (mask, size, total, many) in enumerate(groups):
        counts[mask.bit_count(), 2 * size] += (total * total - sum(one * one for one in many)) // 2
        for other_mask, other_size, other_total, _ in groups[:at]:
            if both := (mask & other_mask).bit_count():
                counts[both, size + other_size] += total * other_total
    return counts


def repeated_ngrams(messages: Iterable[str], n: int = 3) -> dict[str, int]:
    """The n-grams that more than one of `messages` has, with in how many; the most frequent first."""
    counts = Counter(ngram for message in messages for ngram in ngrams(message, n))
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {ngram: count for ngram, count in ordered if count > 1}


def unique_ratio(messages: Sequence[str]) -> float:
    """|different words| / |words| of all messages together; 0.0 without any word."""
    words = tokens(" ".join(messages))
    return len(set(words)) / len(words) if words else 0.0


def average_sentence_length(messages: Sequence[str]) -> float:
    """|words| / max(1, |sentences|) of all messages joined by blanks; a sentence is what stands between runs of
    ".", "!" and "?" and is not blank. 0.0 without any word."""
    text = " ".join(messages)
    sentences = sum(1 for piece in _SENTENCE_END.split(text) if piece.strip())
    return len(tokens(text)) / max(1, sentences)


def punctuation_density(messages: Sequence[str]) -> float:
    """|characters that are neither `\\w` nor `\\s`| / |characters| of all messages joined by blanks; 0.0 without
    any word."""
    text = " ".join(messages)
    if not tokens(text):
        return 0.0
    return len(_NEITHER_WORD_NOR_BLANK.findall(text)) / len(text)


def text_statistics(messages: Sequence[str]) -> dict[str, float]:
    """All numbers about one speaker's messages, by name."""
    return {
        "repetition_3": repetition(messages, 3),
        "repetition_5": repetition(messages, 5),
        "unique_ratio": unique_ratio(messages),
        "average_sentence_length": average_sentence_length(messages),
        "punctuation_density": punctuation_density(messages),
    }


def vocabulary_similarity(messages: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], float]:
    """For each pair of speakers the Jaccard overlap of all words that they use, 0.0 to 1.0.

    `messages` are the texts of each speaker. The keys are pairs of names, each sorted.
    """
    words = {
        speaker: {word for text in texts for word in tokens(text)} for speaker, texts in messages.items()
    }
    return {(one, other): jaccard(words[one], words[other]) for one, other in combinations(sorted(words), 2)}


def _check_n(n: int) -> None:
    if n < 1:
        raise ValueError(f"expected n-grams of at least 1 word, got n={n!r}")
