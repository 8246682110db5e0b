"""The text statistics are the formulas, on any language, and quick on many messages."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.errors import ConfigurationError
from arbiter.personas import _overlaps as overlaps
from arbiter.personas import _texts as module
from arbiter.personas import (
    average_sentence_length,
    jaccard,
    ngrams,
    punctuation_density,
    repeated_ngrams,
    repetition,
    text_statistics,
    tokens,
    unique_ratio,
    vocabulary_similarity,
)
from tests.support import quick

BEACH = "I think we should go to the beach"
PARK = "I think we should go to the park"
WORDLIST = [f"w{number}" for number in range(3_000)]


def test_tokens_are_lower_case_words_with_marks_deleted() -> None:
    assert tokens("Hello, World! It's 5pm.") == ["hello", "world", "its", "5pm"]
    assert tokens("") == tokens(" ?! ") == []


def test_words_of_every_language_are_words() -> None:
    assert tokens("Café 你好!") == ["café", "你好"]
    assert jaccard({*tokens("你好 世界")}, {*tokens("你好")}) == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया"]),
        ("कि की के", ["कि", "की", "के"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("cafe\u0301 ❤\ufe0f", ["café"]),
        ("İstanbul", ["istanbul"]),
        ("مُحَمَّد", ["محمد"]),
    ],
)
def test_vowel_signs_are_a_part_of_the_word(text: str, words: list[str]) -> None:
    """Without them, many short words of Hindi are one. An accent counts, however it is encoded."""
    assert tokens(text) == words


def test_vowel_signs_are_no_punctuation() -> None:
    assert punctuation_density(["हिन्दी में लिखो।"]) == 1 / 16
    assert punctuation_density(["e\u0301te\u0301!"]) == 1 / 6
    assert average_sentence_length(["यह घर है। वह घर है।"]) == 3


def test_pairs_of_characters_are_words_where_a_script_has_no_blanks_between_words() -> None:
    """A near copy resembles its original in Chinese, Japanese and Thai as it does in English."""
    assert tokens("iPhone手机壳 Ω, 我") == ["iphone", "手机", "机壳", "ω", "我"]
    assert tokens("ｶﾞ 한국어 naïve") == ["ｶﾞ", "한국어", "naïve"]
    for one, other in (
        ("今天天气很好，我们去海边吧", "今天天气很好，我们去公园吧"),
        ("今日は天気がいいので海へ行きましょう", "今日は天気がいいので公園へ行きましょう"),
        ("วันนี้อากาศดีเราไปทะเลกันเถอะ", "วันนี้อากาศดีเราไปสวนกันเถอะ"),
    ):
        assert 0.5 < jaccard({*tokens(one)}, {*tokens(other)}) < 1
        assert repetition([one, one], 3) == 1.0
        assert 0.3 < repetition([one, other], 3) < 1
    assert average_sentence_length(["你好。你好！"]) == 1.5  # three pairs in two sentences


def test_overlaps_of_two_sentences() -> None:
    assert jaccard({*tokens(BEACH)}, {*tokens(PARK)}) == 7 / 9
    assert jaccard(ngrams(BEACH, 3), ngrams(PARK, 3)) == 5 / 7
    assert jaccard(ngrams(BEACH, 5), ngrams(PARK, 5)) == 3 / 5
    assert jaccard(set(), set()) == 0.0


def test_ngrams_need_as_many_words() -> None:
    assert ngrams("a b", 3) == set()
    assert ngrams("a b c d", 3) == {"a b c", "b c d"}
    with pytest.raises(ValueError, match="at least 1"):
        ngrams("a", 0)


def test_repetition_of_few_messages() -> None:
    assert repetition(["a b c d", "a b c e", "x y z w"], 3) == pytest.approx(1 / 9)
    assert repetition(["a b c", "a b c"], 3) == 1.0
    assert repetition(["a b", "a b"], 3) == 0.0
    assert repetition(["a b c"], 3) == repetition([], 3) == 0.0


WORDS = st.lists(st.sampled_from(["a", "b", "c", "Ä", "you?"]), max_size=7).map(" ".join)


# Few messages are compared pair by pair. Many are multiplied as matrices: columns that many messages have, and the
# others, in products and parts of any size.
WAYS: dict[str, dict[str, int]] = {
    "pair by pair": {},
    "matrices": {"_COMMON": 2},
    "multiplied": {"_COMMON": 0, "_CELLS": 40, "_ROWS": 2},
    "counted": {"_COMMON": 99, "_CELLS": 1, "_ROWS": 3, "_PAIRS": 2},
    "numbered again": {"_COMMON": 2, "_LARGEST": 1},
}


@pytest.mark.lengthy
@pytest.mark.parametrize("way", WAYS)
@given(messages=st.lists(WORDS, max_size=8), n=st.integers(1, 5))
def test_repetition_is_its_definition(way: str, messages: list[str], n: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if way != "pair by pair":
            patch.setattr(module, "FEW", 0)
        for name, value in WAYS[way].items():
            patch.setattr(overlaps, name, value)
        found = [jaccard(ngrams(one, n), ngrams(two, n)) for one, two in combinations(messages, 2)]
        mean = math.fsum(found) / len(found) if found else 0.0
        assert repetition(messages, n) == pytest.approx(mean, rel=1e-14)


def test_numbers_about_one_speaker() -> None:
    said = ["Hello there! How are you? I am fine."]
    assert unique_ratio(said) == 1.0
    assert average_sentence_length(said) == pytest.approx(8 / 3)
    assert punctuation_density(said) == 3 / 36
    assert unique_ratio(["a a", "b a"]) == 0.5


@pytest.mark.parametrize("said", [[], [""], ["!!! ...", "?"]])
def test_without_words_every_number_is_zero(said: list[str]) -> None:
    assert set(text_statistics(said).values()) == {0.0}


@given(st.lists(st.text("aΣς b.!?,\u2028\n") | st.text(), max_size=5))
def test_numbers_of_messages_are_those_of_their_joined_text(said: list[str]) -> None:
    """A sentence may go on in the next message."""
    joined = [" ".join(said)]
    assert unique_ratio(said) == unique_ratio(joined)
    assert average_sentence_length(said) == average_sentence_length(joined)
    assert punctuation_density(said) == punctuation_density(joined)
    words = tokens(joined[0])
    sentences = sum(1 for part in re.split(r"[.!?。！？।॥؟۔။።]+", joined[0]) if part.strip())
    assert average_sentence_length(said) == len(words) / max(1, sentences)


def test_vocabularies_are_compared_pair_by_pair() -> None:
    alike = vocabulary_similarity({"pam": ["we sell paper"], "jim": ["we", "sell boats"], "al": []})
    assert alike == {("al", "jim"): 0.0, ("al", "pam"): 0.0, ("jim", "pam"): 0.5}


def test_repeated_phrases_are_returned_with_their_count() -> None:
    assert repeated_ngrams(["a b c d", "x a b c", "b c d", "q"], 3) == {"a b c": 2, "b c d": 2}


@pytest.mark.lengthy
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_repetition_of_canned_messages_is_its_definition(seed: int) -> None:
    """With phrases that always come together, messages that are equal, and some that share nothing."""
    random = Random(seed)
    canned = [" ".join(random.choices(WORDLIST, k=6)) for _ in range(5)]
    said = [". ".join(random.choices(canned, k=random.randint(1, 4))) for _ in range(300)] + ["x y z"] * 3
    overlaps = [jaccard(ngrams(one, 3), ngrams(two, 3)) for one, two in combinations(said, 2)]
    assert repetition(said, 3) == pytest.approx(math.fsum(overlaps) / len(overlaps), rel=1e-14)


def canned_messages(sentences: int, words: int = 9, each: int = 4) -> list[str]:
    """Some sentences each, out of a few."""
    random = Random(1)
    canned = [" ".join(random.choices(WORDLIST, k=words)) for _ in range(sentences)]
    return [". ".join(random.choices(canned, k=each)) for _ in range(10_000)]


def drawn_messages(words: int, vocabulary: list[str]) -> list[str]:
    random = Random(1)
    return [" ".join(random.choices(vocabulary, k=words)) for _ in range(10_000)]


def zipf_messages(words: int) -> list[str]:
    """Messages with the word frequencies of speech: a few words in most of them, most words hardly ever."""
    random = Random(1)
    return [
        " ".join(f"w{int(random.paretovariate(0.9)) % 5000}" for _ in range(words)) for _ in range(10_000)
    ]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        (partial(zipf_messages, 12), 3),
        pytest.param(partial(drawn_messages, 12, WORDLIST), 3, marks=pytest.mark.slow),
        pytest.param(partial(canned_messages, 200, 4, 3), 3, marks=pytest.mark.slow),
        pytest.param(partial(zipf_messages, 60), 6, marks=pytest.mark.slow),
        pytest.param(partial(drawn_messages, 60, WORDLIST), 6, marks=pytest.mark.slow),
        pytest.param(partial(drawn_messages, 60, WORDLIST[:10]), 6, marks=pytest.mark.slow),
        pytest.param(partial(canned_messages, 200, 10, 6), 6, marks=pytest.mark.slow),
    ],
    ids=[
        "12 Zipf",
        "12 uniform",
        "12 of templates",
        "60 Zipf",
        "60 uniform",
        "60 of few words",
        "60 of templates",
    ],
)
def test_ten_thousand_messages_take_seconds(messages: Callable[[], list[str]], seconds: float) -> None:
    """3 s for messages of 12 words and 6 s for 60, with any overlap."""
    said = messages()
    with quick(seconds):
        text_statistics(said)


@pytest.mark.lengthy
def test_ten_thousand_formulaic_messages_take_less_than_three_seconds() -> None:
    """All messages open alike, so that nearly all pairs share a phrase."""
    openings = ("i think we should really go", "well yes my dear friend", "to be honest with you all")
    said = [
        f"{openings[at % 3]} {' '.join(f'w{at * k % 997}' for k in range(1, 12))}" for at in range(10_000)
    ]
    with quick(3):
        text_statistics(said)
        vocabulary_similarity({str(number): said[number::4] for number in range(4)})


def test_without_numpy_a_few_messages_are_compared_and_more_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = ["a b c d", "a b c e", "x y z w"] * 200
    with_numpy = repetition(said, 3)
    monkeypatch.setitem(sys.modules, "arbiter.personas._overlaps", None)
    assert repetition(said, 3) == pytest.approx(with_numpy, rel=1e-14)
    monkeypatch.setattr(module, "MOST", 599)
    with pytest.raises(ConfigurationError, match=r"600 messages needs NumPy.*arbiteros\[stats\]"):
        repetition(said, 3)
