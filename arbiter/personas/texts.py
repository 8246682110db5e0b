"""Text statistics: how much texts repeat themselves and each other. Plain functions, no model.

Words are Unicode words: "Café" is one, and Chinese text is not nothing. For a text without words every number is 0.
"""

from __future__ import annotations

import math
import re
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
    overlaps = (count * (both / (sizes - both)) for (both, sizes), count in _shared(times).items())
    return math.fsum([equal, *overlaps]) / math.comb(len(messages), 2)


_BITS = 800_000_000
"""How much memory the numbers of `_shared` may take, about."""
_NARROW = 64


def _shared(times: Mapping[frozenset[str], int]) -> Counter[tuple[int, int]]:
    """How many pairs of different sets share how much: counts by (|A ∩ B|, |A| + |B|), without those that share
    nothing. Each set counts as often as `times` says.

    The sets that have a phrase are the bits of one number, and what a set shares with all others at once is the sum of
    the numbers of its phrases, added bit by bit: that takes as many additions as it has phrases, however many others
    have them, too. Phrases that the same sets have, such as those of one sentence, are added together.
    """
    sets = sorted(times, key=lambda found: (len(found), times[found]))
    holders: dict[str, list[int]] = {}
    for at, found in enumerate(sets):
        for phrase in found:
            holders.setdefault(phrase, []).append(at)
    together = Counter(tuple(having) for having in holders.values() if len(having) > 1)
    phrases: list[list[tuple[int, int]]] = [[] for _ in sets]
    for number, (having, weight) in enumerate(together.items()):
        places = [(number, place) for place in range(weight.bit_length()) if weight >> place & 1]
        for at in having:
            phrases[at] += places
    width = max(_NARROW, _BITS // max(1, len(together)))
    counts: Counter[tuple[int, int]] = Counter()
    for begin in range(0, len(sets), width):
        _count(sets[begin:], phrases[begin:], times, width, counts)
    return counts


def _count(
    sets: Sequence[frozenset[str]],
    phrases: Sequence[Sequence[tuple[int, int]]],
    times: Mapping[frozenset[str], int],
    width: int,
    counts: Counter[tuple[int, int]],
) -> None:
    """Count what each set shares with those of the first `width` sets that come before it."""
    alike: dict[tuple[int, int], int] = {}
    having: dict[int, int] = {}
    for at, found in enumerate(sets):
        size, many = len(found), times[found]
        numbers = [(having[number], place) for number, place in phrases[at] if number in having]
        for both, others in _added(numbers):
            for (other_size, other_many), bits in alike.items():
                if pairs := (others & bits).bit_count():
                    counts[both, size + other_size] += pairs * many * other_many
        if at < width:
            alike[size, many] = alike.get((size, many), 0) | 1 << at
            for number in {number for number, _ in phrases[at]}:
                having[number] = having.get(number, 0) | 1 << at


def _added(numbers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """How much the bits of all numbers come to, one by one: pairs of a count from 1 on, and the bits that have it.

    A number at place 3 counts 8 times.
    """
    digits: list[int] = []  # of the counts, as binary numbers: the bits whose count has that digit
    for number, place in numbers:
        while number:
            while place >= len(digits):
                digits.append(0)
            digits[place], number = digits[place] ^ number, digits[place] & number
            place += 1
    anywhere = 0
    for digit in digits:
        anywhere |= digit
    found = [(0, anywhere)]
    for place, digit in enumerate(digits):
        found = [
            (count, bits)
            for known, those in found
            for count, bits in ((known, those & ~digit), (known + (1 << place), those & digit))
            if bits
        ]
    return found


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
