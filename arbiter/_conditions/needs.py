"""The fields that an expression names: a tree of needs, one node per field."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, NoReturn

from arbiter._conditions.program import compile_cel
from arbiter.errors import ConditionError, nearest

RECORDS = frozenset({"state", "input", "output", "history", "config"})
"""Variables whose fields must be named, because the whole value may be of any size."""

Field = tuple[str | int, ...]


class Need:
    """The needed part of one field: all of it, some of its members, or only its presence."""

    __slots__ = ("each", "keys", "path", "size", "whole")

    def __init__(self, path: str) -> None:
        self.path = path
        self.whole = False
        self.size = False
        """True if the number of elements is needed."""
        self.each: Need | None = None
        """The need that applies to every element."""
        self.keys: dict[str | int, Need] = {}
        """The needs of members, by name or number; a negative number counts from the end."""

    def member(self, key: str | int) -> Need:
        if key not in self.keys:
            plain = isinstance(key, str) and _NAME.fullmatch(key)
            self.keys[key] = Need(self.path + (f".{key}" if plain else f"[{key!r}]"))
        return self.keys[key]

    def element(self) -> Need:
        if self.each is None:
            self.each = Need(self.path + "[]")
        return self.each

    @property
    def presence(self) -> bool:
        return not (self.whole or self.size or self.each or self.keys)

    @property
    def only_size(self) -> bool:
        """True if nothing but the number of elements is needed. CEL then gets as many bytes."""
        return self.size and not (self.whole or self.each or self.keys)

    @property
    def iterates(self) -> bool:
        """True if a part of every element of a list or map is needed."""
        return self.each is not None or any(need.iterates for need in self.keys.values())

    def settle(self) -> None:
        """If every element is needed, merge the needs of single elements into the need of all."""
        if self.each is not None:
            for need in self.keys.values():
                self.each.merge(need)
            self.keys = {}
            self.each.settle()
        for need in self.keys.values():
            need.settle()

    def merge(self, other: Need) -> None:
        self.whole |= other.whole
        self.size |= other.size
        if other.each is not None:
            self.element().merge(other.each)
        for key, need in other.keys.items():
            self.member(key).merge(need)

    def joined(self, other: Need) -> Need:
        """The union of both needs."""
        both = Need(self.path)
        both.merge(self)
        both.merge(other)
        both.settle()
        return both

    def leaves(self) -> Iterator[Field]:
        if self.whole or self.size or self.each or not self.keys:
            yield ()
            return
        for key, need in self.keys.items():
            for path in need.leaves():
                yield (key, *path)


_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
WORDS = frozenset({"true", "false", "null", "in"})
MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
TYPES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"})
_FUNCTIONS = frozenset(
    {"bytes", "double", "duration", "dyn", "int", "matches", "size", "string", "timestamp", "type", "uint"}
)
_METHODS = frozenset(
    {"contains", "endsWith", "matches", "size", "startsWith"}
    | {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours"}
    | {"getMilliseconds", "getMinutes", "getMonth", "getSeconds"}
)
_PARSING = frozenset({"matches", "timestamp", "duration"})
"""Functions whose literal argument is valid or invalid regardless of the values."""

_TOKEN = re.compile(
    r"""
    (?P<blank>   \s+ | //[^\n]* )
  | (?P<text>    (?:[bB]?[rR]) (?: \"{3}[\s\S]*?\"{3} | '{3}[\s\S]*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
               | [bB]? (?: \"{3}(?:\\[\s\S]|[^\\])*?\"{3} | '{3}(?:\\[\s\S]|[^\\])*?'{3}
                         | "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*' ) )
  | (?P<number>  0x[0-9a-fA-F]+[uU]? | (?:\d*\.\d+|\d+)(?:[eE][+-]?\d+)?[uU]? )
  | (?P<name>    [_a-zA-Z][_a-zA-Z0-9]* )
  | (?P<other>   [\s\S] )
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str


_END = Token("end", "")


def tokens_of(expression: str) -> list[Token]:
    """The tokens without blanks and comments. The last one is an end token."""
    found = (Token(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(expression))
    return [*(token for token in found if token.kind != "blank"), _END]


def key_of(token: Token) -> str | int | None:
    """The text or number of a literal in square brackets, or None if it cannot be a key."""
    if token.kind == "text" and token.text[0] not in "bB":
        text: str = compile_cel(token.text).execute({})
        return text
    return int(token.text) if token.kind == "number" and token.text.isdecimal() else None


class Scan:
    """Reads valid CEL and finds the needed fields of each variable.

    The brackets give the structure. Operators do not matter, because precedence never changes which fields
    are named.
    """

    def __init__(
        self, expression: str, variables: frozenset[str], records: Collection[str] = RECORDS
    ) -> None:
        self.expression = expression
        self.variables = variables
        self.needs: dict[str, Need] = {}
        self.bound: set[str] = set()
        """Names that a macro has given to elements."""
        self._scope: dict[str, Need | None] = {}
        self._at = 0
        self._tokens = tokens_of(expression)
        self._until("")
        for name, need in self.needs.items():
            if name in records and (need.whole or need.size or need.each is not None):
                self._refuse(
                    f"it needs all of {name!r}, and only fields that are named are handed over. "
                    f"Name them, as in {name}.{_EXAMPLES[name]}; has({name}.x) says whether there is a field x"
                )

    def _refuse(self, problem: str) -> NoReturn:
        raise ConditionError(self.expression, problem)

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _next(self, *texts: str) -> bool:
        """True if these tokens come next."""
        return all(self._peek(ahead).text == text for ahead, text in enumerate(texts))

    def _until(self, closing: str) -> None:
        """Read everything up to and including the closing bracket."""
        while (token := self._peek()) is not _END and token.text != closing:
            self._needed_whole(self._operand())
        self._at += 1

    def _needed_whole(self, need: Need | None) -> None:
        if need is not None:
            need.whole = True

    def _operand(self) -> Need | None:
        """Read one operand with its members, or one operator. The caller decides how much of a field is
        needed.
        """
        token = self._peek()
        begun = self._at
        self._at += 1
        if token.text in _CLOSING:
            self._until(_CLOSING[token.text])
        elif token.kind == "name" and token.text not in WORDS:
            if self._next("("):
                self._function(token.text)
            else:
                return self._members(self._variable(token.text), begun)
        elif token.text == ".":
            self._refuse("a name begins with a dot. Leave it out")
        elif token.kind == "other":
            return None
        return self._members(None, begun)

    def _variable(self, name: str) -> Need | None:
        if name in self._scope:
            return self._scope[name]
        if name in self.variables:
            return self.needs.setdefault(name, Need(name))
        if self._next("{"):
            self._refuse(f"{name!r} is not a message type: there are none here")
        if name in TYPES:
            return None
        meant = {"True": "true", "False": "false", "None": "null"}.get(name)
        if name == "state" and "input" in self.variables:
            meant = "input"
        known = f"Variables: {', '.join(sorted(self.variables))}.{self._nearest(name)}"
        raise ConditionError(
            self.expression, f"there is no variable {name!r}. {f'Write {meant}' if meant else known}"
        )

    def _nearest(self, name: str) -> str:
        """`" Did you mean ...?"`: a variable, or the field of that name."""
        if name == "output":
            return " The node has no output yet when a checker is asked. Use an evaluator, or the kind schema"
        owner = next((owner for owner in ("input", "output", "state") if owner in self.variables), None)
        field = "" if owner is None else f" Did you mean {owner}.{name}?"
        return nearest(name, self.variables) or field

    def _function(self, name: str) -> None:
        """Read the call of a function, from its opening bracket."""
        if name != "has" and name not in _FUNCTIONS:
            known = sorted(_FUNCTIONS | {"has"})
            self._refuse(
                f"there is no function {name!r}. Functions: {', '.join(known)}.{nearest(name, known)}"
            )
        if name in ("has", "size"):
            self._at += 1
            need = self._operand()
            if need is not None and not self._next(")"):
                need.whole = True
            elif need is not None and name == "size":
                need.size = True
            self._until(")")
            return
        self._arguments(name)

    def _arguments(self, function: str) -> None:
        if function in _PARSING and self._peek(1).kind == "text" and self._peek(2).text == ")":
            self._try(function, self._peek(1).text)
        self._at += 1
        self._until(")")

    def _try(self, function: str, literal: str) -> None:
        """Call the function on the literal, so that a wrong pattern is found now and not during evaluation."""
        call = f"{function}({literal})"
        try:
            compile_cel(f"''.{call}" if function == "matches" else call).execute({})
        except Exception as exc:
            why = str(exc).rpartition("\n")[2].partition(". Check ")[0]
            self._refuse(f"{call} fails: {why.rpartition('error: ')[2]}")

    def _members(self, need: Need | None, begun: int) -> Need | None:
        """Read the fields, methods and indexes that follow an operand. Returns the last field's need."""
        selected = False  # an element of a filter's result; its index is unknown
        while True:
            if self._next(".") and self._peek(1).kind == "name":
                name = self._peek(1).text
                self._at += 2
                if not self._next("("):
                    need = None if need is None else need.member(name)
                    selected = False
                    continue
                if self._is_macro(name):
                    self._macro(need)
                    selected = name == "filter"
                    need = need if selected else None
                    continue
                if name not in _METHODS:
                    known = sorted(_METHODS | MACROS)
                    self._refuse(
                        f"there is no method {name!r}. Methods: {', '.join(known)}.{nearest(name, known)}"
                    )
                if need is not None and name == "size" and self._peek(1).text == ")":
                    need.size = True
                else:
                    self._needed_whole(need)
                need = None
                self._arguments(name)
            elif self._next("["):
                need = self._index(need, begun, selected)
                selected = False
            else:
                return need

    def _is_macro(self, name: str) -> bool:
        return name in MACROS and self._peek(1).kind == "name" and self._peek(2).text == ","

    def _macro(self, need: Need | None) -> None:
        variable = self._peek(1).text
        if variable in self.variables:
            self._refuse(f"{variable!r} is already a variable. Give the elements another name")
        self.bound.add(variable)
        outer = self._scope
        self._scope = {**outer, variable: None if need is None else need.element()}
        self._at += 3
        self._until(")")
        self._scope = outer

    def _index(self, need: Need | None, begun: int, selected: bool) -> Need | None:
        """Read the member in square brackets, from the opening bracket on."""
        chain = [token.text for token in self._tokens[begun : self._at]]
        self._at += 1
        key = None if selected or need is None else self._key() or self._key_from_end(chain)
        if key is not None and need is not None:
            value, length = key
            self._at += length
            return need.member(value)
        element = None if need is None else need.element()
        self._until("]")
        return element

    def _key(self) -> tuple[str | int, int] | None:
        """A literal text or number followed by the closing bracket, and the number of tokens that it takes."""
        key = key_of(self._peek()) if self._peek(1).text == "]" else None
        return None if key is None else (key, 2)

    def _key_from_end(self, chain: list[str]) -> tuple[str | int, int] | None:
        """`messages[size(messages) - 1]`: the last element, instead of all of them."""
        for before in (["size", "(", *chain, ")", "-"], [*chain, ".", "size", "(", ")", "-"]):
            number = self._peek(len(before)).text
            if self._next(*before, number, "]") and number.isdecimal() and int(number) > 0:
                return -int(number), len(before) + 2
        return None


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_EXAMPLES = {
    "state": "user.role",
    "input": "amount",
    "output": "score",
    "history": "count",
    "config": "user_id",
}
