"""JSON in what a model wrote: with prose and fences around it, single quotes, commas too many.

One pass over the text and at most one more over what is broken, so the time is linear whatever the text is.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from arbiter.models import no_number, unique_keys

MAX_DEPTH = 64
"""What is nested deeper is no answer."""
MAX_VALUES = 100
"""What comes after so many values is not read."""


class Values(NamedTuple):
    """The objects and arrays in a text, in order: those in fenced blocks, and those outside."""

    fenced: list[Any]
    loose: list[Any]


def extract_json(text: str) -> Any:
    """The JSON value (an object or an array) in a text: the first in a fenced block, else the first anywhere.

    `<think>` blocks are passed over. NaN, Infinity and a key that is given twice are mistakes. What begins like JSON
    and is broken is passed over to its end: a value that it quotes is not the answer. `ValueError` if there is none.
    """
    fenced, loose = json_values(text)
    for value in [*fenced, *loose]:
        return value
    raise ValueError("there is no JSON object or array in the text")


def json_values(text: str) -> Values:
    """All of them; see `extract_json`."""
    found = Values([], [])
    in_fence = False
    at = 0
    while len(found.fenced) + len(found.loose) < MAX_VALUES and (mark := _MARK.search(text, at)):
        at = mark.end()
        if mark["fence"]:
            in_fence = not in_fence
        elif mark["think"]:
            end = _END_OF_THOUGHT.search(text, at)
            at = len(text) if end is None else end.end()
        elif mark["thought"]:  # it began in the prompt: all before it was no answer
            found.fenced.clear()
            found.loose.clear()
            in_fence = False
        else:
            at, is_whole = _end(text, mark.start())
            if is_whole:
                values = found.fenced if in_fence else found.loose
                values += _read(text[mark.start() : at])
    return found


# A bracket that prose has, as in [sic] or {{this}}, is not taken for the beginning of a value.
_MARK = re.compile(
    r"""(?P<fence>```) | (?P<think><think(?:ing)?>) | (?P<thought></think(?:ing)?>)
    | \[ (?= \s* (?: ["'\[{\]\d-] | (?:true|false|null|True|False|None)\b ) ) | \{ (?= \s* ["'}] )""",
    re.VERBOSE | re.IGNORECASE,
)
_END_OF_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_STRING = r'"(?:[^"\\]|\\.)*+"' + "|" + r"'(?:[^'\\]|\\.)*+'"
_BRACKET = re.compile(rf"""(?P<string>{_STRING}) | [\[\]{{}}"'\\]""", re.VERBOSE | re.DOTALL)
_PAIRS = {"[": "]", "{": "}"}


def _end(text: str, start: int) -> tuple[int, bool]:
    """Where the value that begins there ends, and whether its brackets are balanced; else where to look on."""
    awaited: list[str] = []
    for token in _BRACKET.finditer(text, start):
        char = token[0]
        if token["string"]:
            continue
        if char in _PAIRS and len(awaited) < MAX_DEPTH:
            awaited.append(_PAIRS[char])
        elif awaited[-1] == char:
            awaited.pop()
        else:
            # Never back to before what was read: that is what keeps the time linear.
            return max(token.end(), _closing(text, start)), False
        if not awaited:
            return token.end(), True
    return len(text), False


def _closing(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`, by counting; the end of the text without one."""
    begin = text[start]
    depth = 0
    for bracket in _SAME[begin].finditer(text, start):
        depth += 1 if bracket[0] == begin else -1
        if depth == 0:
            return bracket.end()
    return len(text)


_SAME = {"[": re.compile(r"[\[\]]"), "{": re.compile(r"[{}]")}


def _read(text: str) -> list[Any]:
    """The value that `text` is, or nothing."""
    for is_odd in (False, True):
        try:
            return [whole(_DECODER.decode(_as_json(text) if is_odd else text))]
        except (ValueError, OverflowError):
            continue
    return []


def whole(value: Any) -> Any:
    """A JSON value with U+FFFD for each half of a character, which no other value in it has to suffer for."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_HALF.sub("\ufffd", text)) if _HALF.search(text) else value


_HALF = re.compile("[\ud800-\udfff]")


def _as_json(text: str) -> str:
    """A Python literal, or JSON with commas too many, as JSON. What stands in a string stays as it is."""
    return _ODD.sub(_without_oddity, text)


_ODD = re.compile(rf"{_STRING}|,(?=\s*[\]}}])|\b(?:True|False|None)\b", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", ",": ""}
_ESCAPES = re.compile(r"""\\(?:x(..)|U(.{8})|(.)) | (")""", re.VERBOSE | re.DOTALL)


def _without_oddity(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] not in "'\"":
        return _WORDS[token]
    return f'"{_ESCAPES.sub(_escape, token[1:-1])}"'


def _escape(match: re.Match[str]) -> str:
    """What JSON has for an escape of Python, or for a double quote."""
    short, long, char, bare = match.groups()
    if code := short or long:
        return json.dumps(chr(int(code, 16)))[1:-1]
    if bare:
        return '\\"'
    return "'" if char == "'" else match[0]


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


# Models end lines in the middle of a string.
_DECODER = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=no_number, parse_float=_finite, strict=False
)
