"""Text statistics: how much texts repeat themselves and each other. Plain functions, no model.

Words are Unicode words: "Café" is one word. Where a script has no blanks between words, such as Chinese, each
pair of neighbouring characters counts as a word. For texts without words every number is 0.

Evaluators count many long texts on threads, and one long call of C blocks all other threads. So messages are
counted, and freed, one by one, and never joined.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from heapq import nsmallest
from itertools import combinations
from typing import Any

from arbiter._values.normal import normalized
from arbiter._values.words import UNSPACED, VOWEL_SIGNS, with_pairs
from arbiter.errors import ConfigurationError

_NEITHER_WORD_NOR_BLANK = re.compile(r"[^\w\s]")
_NO_PART_OF_A_WORD = re.compile(rf"[^\w\s{VOWEL_SIGNS}]")
_SENTENCE_END = re.compile(r"[.!?。！？।॥؟۔။።]+")
_OVERLAP = re.compile(f"([{UNSPACED}]) \\1")


def tokens(text: str) -> list[str]:
    r"""The words of a text: lower-case, with all characters deleted that are neither `\w` nor `\s`, split on
    blanks.

    "It's 5pm." gives "its" and "5pm". In scripts without blanks between words, such as Chinese, each pair of
    neighbouring characters is a word. The vowel signs of scripts such as Devanagari are a part of the word.
    """
    if text.isascii():
        return _NEITHER_WORD_NOR_BLANK.sub("", text.lower()).split()
    return with_pairs(_NO_PART_OF_A_WORD.sub("", normalized("NFC", text.lower())).split())


def as_written(ngram: str) -> str:
    """An n-gram without the overlaps of pairs of characters."""
    return _OVERLAP.sub(r"\1", ngram)


def ngrams(text: str, n: int) -> set[str]:
    """The runs of `n` words of a text, each joined by a blank; none if it has fewer words."""
    _check_n(n)
    return _ngrams(tokens(text), n)


def _ngrams(words: Sequence[str], n: int) -> set[str]:
    return set(map(" ".join, zip(*(words[at:] for at in range(n)), strict=False)))


def jaccard(one: Set[Any], other: Set[Any]) -> float:
    """|A ∩ B| / |A ∪ B|, 0.0 to 1.0; 0.0 for two empty sets."""
    shared = len(one & other)
    union = len(one) + len(other) - shared
    return shared / union if union else 0.0


def repetition(messages: Sequence[str], n: int = 3) -> float:
    """Mean Jaccard overlap of the word n-grams of every unordered pair of `messages`, 0.0 to 1.0.

    Fewer than two messages give 0.0, and so do pairs without an n-gram: two equal messages of two words have a
    3-gram repetition of 0. Raises `ConfigurationError` for more than 2,000 messages without NumPy.
    """
    _check_n(n)
    return _repetition([tokens(message) for message in messages], n)


FEW = 500
MOST = 2_000
"""Up to `FEW` messages are compared pair by pair. NumPy is quicker from there on, and necessary above `MOST`."""


def _repetition(messages: Sequence[Sequence[str]], n: int) -> float:
    if len(messages) < 2:
        return 0.0
    sums = _sums(messages, n) if len(messages) > FEW else _pair_by_pair(messages, n)
    return math.fsum(sums) / math.comb(len(messages), 2)


def _pair_by_pair(messages: Sequence[Sequence[str]], n: int) -> Iterator[float]:
    sets = [_ngrams(words, n) for words in messages]
    sizes = list(map(len, sets))
    # Most n-grams of long texts occur in a single text, so no pair shares them.
    several = set(_several(sets))
    for at in range(len(sets)):
        sets[at] &= several
    del several
    while sets:
        one, size = sets.pop(), sizes.pop()
        for other, other_size in zip(sets, sizes, strict=True):
            shared = len(one & other)
            union = size + other_size - shared
            yield shared / union if union else 0.0


def _several(sets: Iterable[Set[str]]) -> dict[str, int]:
    """The members of more than one set, with the number of sets that have them."""
    counts: Counter[str] = Counter()
    for found in sets:
        counts.update(found)
    return {each: count for each, count in counts.items() if count > 1}


def _sums(messages: Sequence[Sequence[str]], n: int) -> Iterator[float]:
    try:
        from arbiter.personas._overlaps import overlap_sums
    except ImportError as error:
        if len(messages) > MOST:
            raise ConfigurationError(
                f"comparing {len(messages):,} messages needs NumPy; without it, at most {MOST:,} are compared: "
                "pip install 'arbiteros[stats]'"
            ) from error
        return _pair_by_pair(messages, n)
    return overlap_sums(messages, n)


def repeated_ngrams(messages: Iterable[str], n: int = 3, *, most: int | None = None) -> dict[str, int]:
    """The n-grams that more than one of `messages` has, with the number of messages; most frequent first,
    at most `most`."""
    sets = [ngrams(message, n) for message in messages]
    several = _several(sets)
    found = nsmallest(
        len(several) if most is None else most, several.items(), key=lambda pair: (-pair[1], pair[0])
    )
    del several
    while sets:
        sets.pop()
    return dict(found)


def unique_ratio(messages: Sequence[str]) -> float:
    """|distinct words| / |words| of all messages together; 0.0 without any word."""
    return _unique_ratio(map(tokens, messages))


def _unique_ratio(texts: Iterable[Sequence[str]]) -> float:
    different: set[str] = set()
    count = 0
    for words in texts:
        different.update(words)
        count += len(words)
    return len(different) / count if count else 0.0


def average_sentence_length(messages: Sequence[str]) -> float:
    """|words| / max(1, |sentences|) of all messages joined by blanks; 0.0 without any word.

    A sentence is a non-blank text between runs of ".", "!" and "?", or of their forms in other scripts.
    """
    return sum(len(tokens(message)) for message in messages) / max(1, _sentences(messages))


def _sentences(messages: Iterable[str]) -> int:
    count, begun = 0, False
    for message in messages:
        for at, piece in enumerate(_SENTENCE_END.split(message)):
            begun = begun and at == 0  # a sentence may continue in the next message
            if not begun and piece.strip():
                count, begun = count + 1, True
    return count


def punctuation_density(messages: Sequence[str]) -> float:
    """|characters that are neither `\\w` nor `\\s` nor accents or vowel signs| / |characters| of all messages
    joined by blanks; 0.0 without any word."""
    if not any(map(tokens, messages)):
        return 0.0
    marks = sum(
        not unicodedata.category(found).startswith("M")
        for message in messages
        for found in _NEITHER_WORD_NOR_BLANK.findall(message)
    )
    return marks / (sum(map(len, messages)) + len(messages) - 1)


def text_statistics(messages: Sequence[str]) -> dict[str, float]:
    """All statistics of one speaker's messages, by name."""
    words = [tokens(message) for message in messages]
    return {
        "repetition_3": _repetition(words, 3),
        "repetition_5": _repetition(words, 5),
        "unique_ratio": _unique_ratio(words),
        "average_sentence_length": average_sentence_length(messages),
        "punctuation_density": punctuation_density(messages),
    }


def vocabulary_similarity(messages: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], float]:
    """The Jaccard overlap of all words of each pair of speakers, 0.0 to 1.0.

    `messages` are the texts of each speaker. The keys are pairs of names, each sorted.
    """
    words = {
        speaker: {word for text in texts for word in tokens(text)} for speaker, texts in messages.items()
    }
    return {(one, other): jaccard(words[one], words[other]) for one, other in combinations(sorted(words), 2)}


def _check_n(n: int) -> None:
    if n < 1:
        raise ValueError(f"expected n-grams of at least 1 word, got n={n!r}")
