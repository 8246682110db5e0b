"""An upper bound for the work of an expression on given values, found before the engine begins.

The engine cannot be stopped, blocks every thread of the process while it runs, and ends the process if its
memory is used up. A short expression can do that in three ways: macros inside macros, `+` in macros, and
large patterns. So `Work` reads the brackets and macros of an expression, and derives bounds for how often
each operand is reached and how large its value can be. Precedence does not matter: the value between two
brackets is never larger than the sum of its operands. See docs/kinds/condition-checker.md.

A step is the time of copying one value, about 50 ns. A macro's element is a part of the list that it runs
over, so all elements together cost as much as the list. Values from outside that list are counted again for
each element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from arbiter._conditions.needs import MACROS, WORDS, Token, key_of, tokens_of
from arbiter.errors import ConditionError

MAX_STEPS = 5_000_000
"""The number of steps that one evaluation may take."""
MAX_LOOPS = 5
"""The depth to which macros may be nested."""
MAX_BRACKETS = 50
"""The depth to which brackets may be nested."""
MAX_ROW = 200
"""The number of members and operators that may follow one another between two brackets.

Each uses a part of the thread's stack; those in `_BALANCED` do not.
"""

_CHARACTERS = 256
"""The number of characters of a text that count as one step."""
_CALL, _ENTRY = 3, 4
_EACH: Any = object()
"""A member that is known only during evaluation."""


def refuse_deep(expression: str) -> None:
    """Raise `ConditionError` for an expression that would overflow the engine's stack and so end the process.

    The engine would overflow even when it only parses the expression.
    """
    rows = [0]
    for token in tokens_of(expression):
        if token.text in _CLOSING and token.kind == "other":
            rows[-1] += 1
            rows.append(0)
        elif token.text in _CLOSING.values() and len(rows) > 1:
            rows.pop()
        elif token.kind == "other":
            rows[-1] = 0 if token.text in _BALANCED else rows[-1] + 1
        if len(rows) > MAX_BRACKETS:
            raise ConditionError(expression, f"brackets are nested more than {MAX_BRACKETS} deep. Split it")
        if rows[-1] > MAX_ROW:
            raise ConditionError(
                expression, f"more than {MAX_ROW} members or operators follow one another. Split it"
            )


class Size(NamedTuple):
    """The size of a value: its elements, and the steps that copying it takes.

    Both are totals over the macros in `over` (one bit each), and count again for each element of every other
    macro around.
    """

    length: int
    weight: int
    over: int = 0
    data: Any = None
    """The plain data that the value is, or is a part of, if that is known."""


_ONE = Size(1, 1)


class _TooMuchError(Exception):
    """The expression exceeds the bound; the message gives the reason."""


@dataclass(slots=True)
class _Tally:
    """Counts the steps of one evaluation."""

    handed: Mapping[str, Any]
    loops: list[Size] = field(default_factory=list[Size])
    """The lists of the open macros, outermost first."""
    spent: int = 0

    def times(self, over: int = 0) -> int:
        """The number of times that the current place is reached for each value that is a total over those
        macros.
        """
        left = (1 << len(self.loops)) - 1 & ~over
        times = 1
        while left:
            innermost = left.bit_length() - 1
            loop = self.loops[innermost]
            times *= loop.length
            left &= ~(loop.over | 1 << innermost)
        return times

    def total(self, size: Size) -> Size:
        """The same size as a total over all open macros."""
        times = self.times(size.over)
        return Size(size.length * times, size.weight * times, (1 << len(self.loops)) - 1)

    def copied(self, size: Size) -> Size:
        self.spend(self.total(size).weight + _CALL * self.times(), _LOOPS)
        return size

    def spend(self, steps: int, what: str) -> None:
        self.spent += steps
        if self.spent > MAX_STEPS:
            raise _TooMuchError(what)


_Part = Callable[[_Tally], Size]
"""A part of an expression: counts its steps and returns the largest size of its value."""


class Work:
    """The number of steps of one expression."""

    def __init__(self, expression: str, variables: Collection[str]) -> None:
        self.expression = expression
        self.is_simple = True
        """True if there are no macros and all patterns are literals. Then the weight of the values is mostly
        enough to decide.
        """
        self._variables = variables
        self._tokens = tokens_of(expression)
        self._at = 0
        self._open: list[str] = []
        self._operands = self._groups = self._plus = 1
        self._fixed = self._by_weight = 0
        self._whole = self._group("")
        # Independent of the nesting: each group of operands is walked once, and once more for each `+`.
        self._factor = self._operands * (self._groups + self._plus) * _CALL + self._by_weight
        self.refuse_if_too_much({}, 0)

    def refuse_if_too_much(self, handed: Mapping[str, Any], weight: int) -> None:
        """Raise `ConditionError` if the evaluation may take more than `MAX_STEPS`. `weight` is that of all
        passed values.
        """
        if self.is_simple and self._factor * (weight + self._operands) + self._fixed <= MAX_STEPS:
            return
        try:
            self._whole(_Tally(handed))
        except _TooMuchError as exc:
            raise ConditionError(
                self.expression, f"it could take more than {MAX_STEPS:,} steps on these values: {exc}"
            ) from None

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _group(self, closing: str) -> _Part:
        """Read everything up to and including the closing bracket."""
        parts: list[_Part] = []
        plus = 0
        while (token := self._peek()).kind != "end" and token.text != closing:
            if token.kind == "other" and token.text not in _CLOSING:
                self._at += 1
                plus += token.text == "+"
            else:
                parts.append(self._operand())
        self._at += 1
        self._operands += len(parts)
        self._groups += 1
        self._plus += plus
        if len(parts) == 1:
            return parts[0]

        def sum_up(tally: _Tally) -> Size:
            length = weight = times = tally.times()
            for part in parts:
                size = tally.total(part(tally))
                length += size.length
                weight += size.weight
            weight += len(parts) * times
            tally.spend(weight * (1 + plus), "its lists and texts grow too large" if plus else _LOOPS)
            return Size(length + len(parts) * times, weight, (1 << len(tally.loops)) - 1)

        return sum_up

    def _operand(self) -> _Part:
        token = self._peek()
        self._at += 1
        path: list[Any] | None = None
        part: _Part
        if token.text in _CLOSING:
            part = self._group(_CLOSING[token.text])
        elif token.kind == "name" and token.text not in WORDS and self._peek().text == "(":
            part = self._call(token.text, ())
        elif token.kind == "name" and token.text in self._open:
            part = _bound(max(at for at, name in enumerate(self._open) if name == token.text))
        elif token.kind == "name" and token.text in self._variables:
            path = [token.text]
            part = _chain(path)
        else:
            part = _constant(str(key_of(token)) if token.kind == "text" else "")
        return self._members(part, path)

    def _members(self, part: _Part, path: list[Any] | None) -> _Part:
        while True:
            text, name = self._peek().text, self._peek(1)
            if text == "." and name.kind == "name":
                self._at += 2
                if self._peek().text != "(":
                    if path is None:
                        part = _inside(part)
                    else:
                        path.append(name.text)
                        self._operands += 1
                    continue
                if name.text in MACROS and self._peek(1).kind == "name" and self._peek(2).text == ",":
                    part = self._macro(name.text, part)
                else:
                    part = self._call(name.text, (part,))
            elif text == "[":
                key = key_of(name) if self._peek(2).text == "]" else None
                self._at += 1
                index = self._group("]")
                if path is not None:
                    path.append(_EACH if key is None else key)
                    part = part if key is not None else _with(part, index)
                    continue
                part = _inside(_with(part, index))
            else:
                return part
            path = None

    def _call(self, name: str, receiver: tuple[_Part, ...]) -> _Part:
        """Read the call of a function or method, from its opening bracket."""
        self._at += 1
        if name == "matches":
            on = receiver[0] if receiver else self._group(",")
            if self._peek().kind == "text":
                cost = pattern_cost(str(key_of(self._peek())))
                self._fixed += cost.compiling
                self._by_weight += cost.positions * _CHARACTERS // _PER_STEP
            else:
                self.is_simple = False
            return _matching(on, self._group(")"))
        part = self._group(")")
        for on in receiver:
            part = _with(on, part)
        return part if name in _AS_LARGE else _small(part)

    def _macro(self, name: str, of: _Part) -> _Part:
        variable = self._peek(1).text
        if len(self._open) == MAX_LOOPS:
            raise ConditionError(self.expression, f"macros are nested more than {MAX_LOOPS} deep. Split it")
        self.is_simple = False
        self._at += 3
        self._open.append(variable)
        body = self._group(")")
        self._open.pop()

        def loop(tally: _Tally) -> Size:
            size = of(tally)
            outer = (1 << len(tally.loops)) - 1
            tally.loops.append(size)
            times = tally.times()
            tally.spend(times * _CALL, _LOOPS)
            each = tally.total(body(tally))
            tally.loops.pop()
            if name == "map":
                # Each step copies the result so far.
                tally.spend(size.length * (each.weight + times), _BUILT)
                return Size(times, each.weight + times, outer)
            if name == "filter":
                tally.spend(size.length * size.weight * tally.times(size.over), _BUILT)
                return size
            return _ONE

        return loop


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_AS_LARGE = frozenset({"bytes", "dyn", "string"})
"""Functions whose result may be as large as their argument."""
_BALANCED = frozenset("&|,:?")
_LOOPS = "its macros would run too often"
_BUILT = "map and filter copy their result so far for each element. Use all, exists or exists_one"


def _bound(loop: int) -> _Part:
    def element(tally: _Tally) -> Size:
        of = tally.loops[loop]
        return tally.copied(Size(of.weight, of.weight, of.over | 1 << loop, of.data))

    return element


def _inside(part: _Part) -> _Part:
    """A member of the part."""

    def inside(tally: _Tally) -> Size:
        size = part(tally)
        return tally.copied(Size(size.weight, size.weight, size.over, size.data))

    return inside


def _with(part: _Part, other: _Part) -> _Part:
    """The part, with the cost of the other one added."""

    def both(tally: _Tally) -> Size:
        size = part(tally)
        tally.spend(tally.total(size).weight + tally.total(other(tally)).weight, _LOOPS)
        return size

    return both


def _small(part: _Part) -> _Part:
    """A part whose function returns a number or a bool."""

    def small(tally: _Tally) -> Size:
        part(tally)
        return _ONE

    return small


def _constant(text: str) -> _Part:
    size = Size(1, weight_of(text), data=text)

    def constant(tally: _Tally) -> Size:
        tally.spend(size.weight * tally.times(), _LOOPS)
        return size

    return constant


def _chain(path: list[Any]) -> _Part:
    """Members of a variable. The engine copies each member on the way, with its whole content."""

    def chain(tally: _Tally) -> Size:
        times = tally.times()
        size, copied = _along(tally.handed, path)
        tally.spend((copied + _CALL) * times, _LOOPS)
        return size

    return chain


def _along(handed: Mapping[str, Any], path: list[Any]) -> tuple[Size, int]:
    """The size of the value at the end of `path`, and the steps of copying the values on the way."""
    value: Any = handed
    copied = 0
    for at, step in enumerate(path):
        if step is _EACH:
            parts = _parts(value)
            weight = max(map(weight_of, parts), default=0)
            return Size(weight, weight, data=value), copied + weight * (len(path) - at)
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return Size(0, 0, data=""), copied
        copied += weight_of(value) if at else 0
    return Size(max(len(_parts(value)), 1), weight_of(value), data=value), copied


def _parts(value: Any) -> Collection[Any]:
    """The elements of a list, or the values of a map."""
    given: Any = value
    return given.values() if isinstance(value, dict) else given if isinstance(value, list) else ()


def weight_of(value: Any) -> int:
    """The number of steps that copying plain data takes."""
    if isinstance(value, str | bytes):
        return 1 + len(value) // _CHARACTERS
    given: Any = value
    keys = sum(_ENTRY + weight_of(key) for key in given) if isinstance(value, dict) else 0
    return 1 + keys + sum(map(weight_of, _parts(given)))


# Patterns -----------------------------------------------------------------------------------------

_PER_STEP = 12
"""The number of pattern positions times text characters that count as one step."""


class PatternCost(NamedTuple):
    compiling: int
    """Steps for each evaluation, because the engine does not cache patterns."""
    positions: int
    """The number of characters in the pattern with all repetitions written out."""


_UNKNOWN = PatternCost(2_000_000, 250_000)
"""The cost of the largest pattern that the engine accepts."""
_FREE = PatternCost(1000, 1)
_LONG = 10_000
_SLOW = "a pattern is too large, a matched text is too long, or it is matched too often"
_ATOM = re.compile(r"\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]?|\{(\d*)(,?)(\d*)\}|[\s\S]")
_CLASSES = dict.fromkeys("wWpPbB", 8000) | dict.fromkeys("dD", 1500) | dict.fromkeys("sS", 300)


@lru_cache(maxsize=256)
def pattern_cost(pattern: str) -> PatternCost:
    """The cost of a pattern, from its text. For a pattern that the engine rejects the cost has no meaning."""
    open_groups: list[tuple[int, int]] = []
    compiling = positions = last_compiling = last_positions = 0
    for match in _ATOM.finditer(pattern):
        atom = match[0]
        if atom == "(":
            open_groups.append((compiling, positions))
            compiling = positions = last_compiling = last_positions = 0
        elif atom == ")" and open_groups:
            last_compiling, last_positions = compiling, positions
            before = open_groups.pop()
            compiling, positions = compiling + before[0], positions + before[1]
        elif match[1] is not None:
            most = max(int(match[1] or 0), int(match[3] or 0), 1)
            compiling += last_compiling * (most - 1)
            positions += last_positions * (most - 1)
            last_compiling, last_positions = last_compiling * most, last_positions * most
        elif atom not in "*+?|":
            last_compiling, last_positions = _atom_cost(atom), 1
            compiling, positions = compiling + last_compiling, positions + 1
    for before in open_groups:
        compiling, positions = compiling + before[0], positions + before[1]
    if "(?" in pattern:  # flags: case-insensitive letters are classes
        compiling *= 8
    cost = PatternCost(1000 + compiling, 1 + positions)
    return PatternCost(*map(min, cost, _UNKNOWN))


def _atom_cost(atom: str) -> int:
    if atom == ".":
        return 200
    if atom.startswith("["):
        inner = sum(_CLASSES.get(name, 0) for name in re.findall(r"\\(.)", atom))
        return inner + 10 + (200 if not atom.isascii() or atom.startswith("[^") else 0)
    return _CLASSES.get(atom[1], 10) if len(atom) > 1 else 10


def _cost_of(data: Any) -> PatternCost:
    """The cost of the largest pattern among all texts in `data`."""
    given: Any = data
    if isinstance(data, str):
        return pattern_cost(data) if len(data) <= _LONG else _UNKNOWN
    if isinstance(data, dict | list):
        parts = [*given, *_parts(given)]
        costs = [_cost_of(part) for part in parts if isinstance(part, str | dict | list)]
        return PatternCost(*map(max, *costs)) if len(costs) > 1 else costs[0] if costs else _FREE
    return _UNKNOWN


def _matching(part: _Part, pattern: _Part) -> _Part:
    def matching(tally: _Tally) -> Size:
        size, cost = tally.total(part(tally)), _cost_of(pattern(tally).data)
        tally.spend(cost.compiling * tally.times(), _SLOW)
        tally.spend(cost.positions * size.weight * _CHARACTERS // _PER_STEP, _SLOW)
        return _ONE

    return matching
