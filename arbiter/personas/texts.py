"""Text statistics: how much texts repeat themselves and each other. Plain functions, no model.

Words are Unicode words: "Café" is one, and Chinese text is not nothing. For a text without words every number is 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import Any

from arbiter.errors import ConfigurationError

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
    return _ngrams(tokens(text), n)


def _ngrams(words: Sequence[str], n: int) -> set[str]:
    return {" ".join(words[at : at + n]) for at in range(len(words) - n + 1)}


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
    return (jaccard(one, other) for one, other in combinations(sets, 2))


def _sums(messages: Sequence[Sequence[str]], n: int) -> Iterator[float]:
    try:
        from arbiter.personas.overlaps import overlap_sums
    except ImportError as error:
        if len(messages) > MOST:
            raise ConfigurationError(
                f"the repetition of {len(messages):,} messages takes NumPy; without it at most {MOST:,} are compared. "
                "pip install 'arbiteros[stats]'"
            ) from error
        return _pair_by_pair(messages, n)
    return overlap_sums(messages, n)


def repeated_ngrams(messages: Iterable[str], n: int = 3) -> dict[str, int]:
    """The n-grams that more than one of `messages` has, with in how many; the most frequent first."""
    counts = Counter(ngram for message in messages for ngram in ngrams(message, n))
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {ngram: count for ngram, count in ordered if count > 1}


def unique_ratio(messages: Sequence[str]) -> float:
    """|different words| / |words| of all messages together; 0.0 without any word."""
    return _unique_ratio(tokens(" ".join(messages)))


def _unique_ratio(words: Sequence[str]) -> float:
    return len(set(words)) / len(words) if words else 0.0


def average_sentence_length(messages: Sequence[str]) -> float:
    """|words| / max(1, |sentences|) of all messages joined by blanks; a sentence is what stands between runs of
    ".", "!" and "?" and is not blank. 0.0 without any word."""
    text = " ".join(messages)
    return len(tokens(text)) / max(1, _sentences(text))


def _sentences(text: str) -> int:
    return sum(1 for piece in _SENTENCE_END.split(text) if piece.strip())


def punctuation_density(messages: Sequence[str]) -> float:
    """|characters that are neither `\\w` nor `\\s`| / |characters| of all messages joined by blanks; 0.0 without
    any word."""
    text = " ".join(messages)
    if not tokens(text):
        return 0.0
    return len(_NEITHER_WORD_NOR_BLANK.findall(text)) / len(text)


def text_statistics(messages: Sequence[str]) -> dict[str, float]:
    """All numbers about one speaker's messages, by name."""
    words = [tokens(message) for message in messages]
    return {
        "repetition_3": _repetition(words, 3),
        "repetition_5": _repetition(words, 5),
        "unique_ratio": _unique_ratio([word for said in words for word in said]),
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
