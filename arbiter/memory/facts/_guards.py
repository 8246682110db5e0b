"""Guards against false duplicates: two texts must agree in numbers, negations and names.

Embeddings do not see these: "two kids" and "three kids" are more similar than many paraphrases. Each guard
errs towards "different".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from arbiter.memory.facts._patterns import one_of
from arbiter.memory.stores._words import words_of
from arbiter.redaction._texts import bare

_ONES = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = (
    *(
        "zeroth",
        "first",
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
    ),
    *(
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
    ),
    "nineteenth",
)
_UNITS: dict[str, Decimal] = {
    **{word: Decimal(value) for value, word in enumerate(_ONES)},
    **{word: Decimal(value) for value, word in enumerate(_ORDINALS)},
    **{word: Decimal(20 + 10 * place) for place, word in enumerate(_TENS)},
    **{word[:-1] + "ieth": Decimal(20 + 10 * place) for place, word in enumerate(_TENS)},
    "once": Decimal(1),
    "twice": Decimal(2),
    "thrice": Decimal(3),
    "couple": Decimal(2),
    "half": Decimal("0.5"),
}
_SCALES = {
    "hundred": 100,
    "hundredth": 100,
    "dozen": 12,
    "thousand": 1_000,
    "million": 1_000_000,
    "billion": 1_000_000_000,
    "trillion": 1_000_000_000_000,
}
_WORDS = "|".join(sorted([*_UNITS, *_SCALES, *(f"{scale}s" for scale in _SCALES)], key=len, reverse=True))
_DIGITS = r"\d[\d,]*(?:\.\d+)*"
_UNIT = r"(?:bn|[kmb%])?"
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<sign>[-+])?\s?[$€£¥]?(?P<inner>[-+])?(?P<signed>{_DIGITS}|\.\d+)(?P<unit>{_UNIT})"
    rf"|(?P<plain>{_DIGITS}|(?<!\d)\.\d+)(?P<tail>{_UNIT})"
    rf"|\b(?P<word>{_WORDS})\b",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_BETWEEN = re.compile(r"[\s-]+(and\s+)?")


def numbers(text: str) -> tuple[str, ...]:
    """All numbers in a text, each in one form, sorted as texts.

    "two", "2" and "2.0" are "2", "-$10" is "-10", "1,000" and "one thousand" are "1000". Units that are part
    of a number stay ("10k", "5%"), and so do longer forms ("3.11.2").
    """
    return tuple(sorted(_numbers(bare(text).replace("\u2212", "-"))))


def _numbers(text: str) -> Iterator[str]:
    spelled: list[tuple[Decimal, bool]] = []
    end = 0
    for found in _NUMBER.finditer(text):
        joined = _BETWEEN.fullmatch(text[end : found.start()]) is not None
        end = found.end()
        word = found["word"]
        if word is None:
            yield from _read(spelled)
            written = _written(found)
            value = None if "," in written or written.count(".") > 1 else _decimal(written)
            # Words may continue the number, as in "2.5 million".
            spelled = [] if value is None else [(value, False)]
            if value is None:
                yield written
            continue
        if not joined:
            yield from _read(spelled)
            spelled = []
        scale = _SCALES.get(word.lower().removesuffix("s"))
        if scale is None:
            spelled.append((_UNITS[word.lower()], False))
        else:
            spelled.append((Decimal(scale), True))
    yield from _read(spelled)


def _written(found: re.Match[str]) -> str:
    """The normal form of digits. A minus is kept if it is a sign, and not the dash of "5-10"."""
    digits = found["signed"] or found["plain"]
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "")
    digits = digits.rstrip(",")
    minus = "-" if "-" in (found["sign"], found["inner"]) else ""
    return minus + digits + (found["unit"] or found["tail"] or "").lower()


def _decimal(written: str) -> Decimal | None:
    return Decimal(written) if re.fullmatch(r"-?(\d+(\.\d+)?|\.\d+)", written) else None


def _read(spelled: list[tuple[Decimal, bool]]) -> Iterator[str]:
    """The numbers in consecutive words: "two hundred and five" is one, "two three" are two."""
    total = Decimal(0)
    part: Decimal | None = None
    for value, is_scale in spelled:
        if is_scale and value < 1_000:
            part = (1 if part is None else part) * value
        elif is_scale:
            total += (1 if part is None else part) * value
            part = Decimal(0)
        elif part is None or _continues(part, value):
            part = value if part is None else part + value
        else:
            yield _plain(total + part)
            total, part = Decimal(0), value
    if part is not None:
        yield _plain(total + part)


def _continues(part: Decimal, value: Decimal) -> bool:
    """True if `value` continues the number, as "five" continues "twenty" and "two hundred"."""
    if part == 0 or part % 100 == 0:
        return 0 < value < 100
    return part % 100 in range(20, 100, 10) and 0 < value < 10


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


# Negation -----------------------------------------------------------------------------------------

_NEGATING = one_of(r"""
    no longer|not|never|no|none|nobody|no one|nothing|nowhere|neither|without|cannot|unable|hardly|barely|rarely|seldom
    \w+n't|(?:do|does|did|is|are|was|were|has|have|had|ca|wo|would|should|could)nt|used to|former(?:ly)?|previously
    lack(?:s|ed|ing)?|fail(?:s|ed)? to|stopped|quits?|avoid(?:s|ed|ing)?|refus\w+|den(?:y|ies|ied)
    dislik\w+|hat(?:e|es|ed|ing)|detest\w*|loath\w+|despis\w+|ex-(?=\w)|non-?(?=\w)
""")
_NEGATION = re.compile(rf"\b{_NEGATING}(?:\b|(?<=-))", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_OPPOSITE = ("un", "dis", "non", "in", "im", "ir", "il")


def negations(text: str) -> int:
    """The number of negating words in a text."""
    return len(_NEGATION.findall(bare(text).replace("\u2019", "'")))


def _opposed(one: str, other: str) -> bool:
    """True if one text has a word and the other its opposite with "un-" or the like: "married" and
    "unmarried"."""
    here = {word.lower() for word in _WORD.findall(one)}
    there = {word.lower() for word in _WORD.findall(other)}
    return any(
        f"{prefix}{word}" in others
        for words, others in ((here - there, there - here), (there - here, here - there))
        for word in words
        for prefix in _OPPOSITE
    )


# Names --------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[^\s,;:!?()\[\]{}<>\"“”„«»]+")
_COMMON = words_of("""
    a an the this that these those i he she it they we you his her its their our my your user users agent speaker
    person there here is are was were has have had does do did works lives likes loves wants needs
""")
_COUNT = re.compile(r"[-+$€£¥]*\d[\d.,:/%-]*(?:st|nd|rd|th|k|m|bn)?", re.IGNORECASE)
_UNCASED = re.compile(r"[\u0600-\u06ff\u0900-\u0dff\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def names(text: str) -> frozenset[str]:
    """The words of a text that name something: words with a capital letter, a digit, `_` or the like.

    Numbers are left out. In scripts without capitals every run of letters counts.
    """
    found: set[str] = set()
    for token in _TOKEN.findall(bare(text).replace("\u2019", "'")):
        word = token.strip(".'`*-").removesuffix("'s")
        particular = word != word.lower() or re.search(r"[\d_@#/\\.]", word)
        counts = _COUNT.fullmatch(word) or word.lower() in _UNITS
        if particular and not counts and word.lower() not in _COMMON:
            found.add(word)
        found.update(_UNCASED.findall(word))
    return frozenset(found)


def may_agree(one: str, other: str) -> bool:
    """True if two texts may mean the same: same numbers, equally many negations, same names."""
    return same_sense(one, other) and names(one) == names(other)


def may_repeat(one: str, other: str) -> bool:
    """Like `may_agree`, for texts that a model called equal: one of them may leave out names."""
    here, there = names(one), names(other)
    return same_sense(one, other) and (here <= there or there <= here)


def same_sense(one: str, other: str) -> bool:
    """True if two texts have the same numbers and equally many negations."""
    return numbers(one) == numbers(other) and negations(one) == negations(other) and not _opposed(one, other)
