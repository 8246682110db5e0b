"""Finds JSON in a model's text, despite surrounding prose and fences, single quotes, trailing commas and backslashes.

It takes one pass over the text and at most one more over broken parts, so the time is linear for every text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

MAX_DEPTH = 64
"""Values that are nested deeper are ignored."""
MAX_VALUES = 100
"""Values after this number are ignored."""


class Values(NamedTuple):
    """The objects and arrays in a text, in order: those in fenced blocks, and those outside."""

    fenced: list[Any]
    loose: list[Any]


def extract_json(text: str) -> Any:
    """The JSON value (an object or an array) in a text: the first in a fenced block, else the first anywhere.

    `<think>` blocks are skipped. NaN, Infinity and duplicate keys are mistakes. Broken JSON is skipped to its
    end, because a value inside it is not the answer. Raises `ValueError` if there is no value.
    """
    fenced, loose = json_values(text)
    for value in [*fenced, *loose]:
        return value
    raise ValueError("there is no JSON object or array in the text")


def json_values(text: str) -> Values:
    """All JSON objects and arrays in a text; see `extract_json`."""
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
        elif mark["thought"]:  # the thought began in the prompt, so the text before belongs to it
            found.fenced.clear()
            found.loose.clear()
            in_fence = False
        else:
            at, is_whole = _end(text, mark.start())
            if is_whole:
                values = found.fenced if in_fence else found.loose
                values += _read(text[mark.start() : at])
    return found


def complete_part(text: str) -> Any:
    """The value in which a text breaks off, with the complete items of its first list; None if there is none. A
    thought has none, also one that has no end."""
    at = max((end.end() for end in _END_OF_THOUGHT.finditer(text)), default=0)
    while (mark := _MARK.search(text, at)) and not mark["think"]:
        at = mark.end()
        if mark[0][0] in _PAIRS:
            at, is_whole = _end(text, mark.start())
            if not is_whole and at == len(text):
                return _completed(text, mark.start())
    return None


def _completed(text: str, start: int) -> Any:
    awaited: list[str] = []
    end, closing = start, ""
    for token in _BRACKET.finditer(text, start):
        char = token[0]
        if char in _PAIRS and len(awaited) < MAX_DEPTH:
            awaited.append(_PAIRS[char])
            continue
        if awaited[-1:] == [char]:
            awaited.pop()
        elif not token["string"]:
            break
        if awaited[-1:] == ["]"] and awaited.count("]") == 1:
            end, closing = token.end(), "".join(reversed(awaited))
    return next(iter(_read(text[start:end] + closing)), None)


# Brackets in prose, as in [sic] or {{this}}, do not begin a value.
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
    """The end of the value at `start`, and True if its brackets are balanced; else the place to continue
    the search."""
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
            # The search never goes back behind this token, which keeps the time linear.
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
    """The value of `text` in a list; empty if `text` is neither JSON nor a Python literal."""
    for is_odd in (False, True):
        try:
            return [whole(_DECODER.decode(_as_json(text) if is_odd else text))]
        except (ValueError, OverflowError):
            continue
    return []


def whole(value: Any) -> Any:
    """A JSON value with U+FFFD in place of each lone surrogate, so that one broken character does not cost
    the whole value."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return json.loads(_HALF.sub("\ufffd", text)) if _HALF.search(text) else value


_HALF = re.compile("[\ud800-\udfff]")


def _as_json(text: str) -> str:
    """A Python literal, or JSON with trailing commas or single backslashes, as JSON. Strings keep their content."""
    return _ODD.sub(_without_oddity, text)


_ODD = re.compile(rf"{_STRING}|,(?=\s*[\]}}])|\b(?:True|False|None)\b", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", ",": ""}
_ESCAPES = re.compile(
    r"""\\(?: x([0-9a-fA-F]{2}) | U([0-9a-fA-F]{8}) | (u[0-9a-fA-F]|.) ) | (")""", re.VERBOSE | re.DOTALL
)


def _without_oddity(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] not in "'\"":
        return _WORDS[token]
    return f'"{_ESCAPES.sub(_escape, token[1:-1])}"'


def _escape(match: re.Match[str]) -> str:
    """The JSON form of an escape of Python, of a double quote, or of a backslash that begins no escape."""
    short, long, char, bare = match.groups()
    if code := short or long:
        return json.dumps(chr(int(code, 16)))[1:-1]
    if bare:
        return '\\"'
    if char == "'":
        return "'"
    return match[0] if len(char) > 1 or char in '"\\/bfnrt' else f"\\\\{char}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def no_constant(name: str) -> float:
    """Refuses NaN and Infinity, which `json` reads by default."""
    raise ValueError(f"{name} is not a JSON value")


def finite(number: str) -> float:
    """Refuses numbers that `json` would read as infinity."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number:.80} is too large")
    return value


# Not strict, because models put line ends into strings.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=no_constant, parse_float=finite, strict=False
)
