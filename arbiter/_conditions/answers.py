"""The kind of value that an expression gives, and the texts that it compares a variable with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arbiter._conditions.needs import Token, key_of, tokens_of

_GIVES = {
    "size": "a number",
    "int": "a number",
    "uint": "a number",
    "double": "a number",
    "string": "a text",
    "bytes": "bytes",
    "timestamp": "a time",
    "duration": "a duration",
    "type": "a type",
    "map": "a list",
    "filter": "a list",
}
"""What functions, methods and macros give that never give true or false."""
_DECIDES = frozenset({"<", ">", "=", "!", "&", "|", "?"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def never_boolean(expression: str) -> str:
    """The kind of value of a valid expression, such as "a number"; "" if it may be true or false."""
    tokens = tokens_of(expression)[:-1]
    outside, begins = _outermost(tokens)
    while outside == ["(", ")"]:
        tokens = tokens[1:-1]
        outside, begins = _outermost(tokens)
    if _DECIDES.intersection(outside) or "in" in outside:
        return ""
    if {"+", "-", "*", "/", "%"}.intersection(outside):
        return "the result of a calculation"
    first, last = tokens[0], tokens[-1]
    if len(tokens) == 1:
        return {"number": "a number", "text": "a text"}.get(
            first.kind, "null" if first.text == "null" else ""
        )
    if begins == 0 and last.text in ("]", "}"):
        return "a list" if first.text == "[" else "a map"
    called = tokens[begins - 1].text if last.text == ")" and begins > 0 else ""
    return "a number" if called.startswith("get") else _GIVES.get(called, "")  # getHours and its kin


def _outermost(tokens: Sequence[Token]) -> tuple[list[str], int]:
    """The texts of the tokens outside all brackets, brackets included, and where the last bracket begins."""
    found: list[str] = []
    depth, begins = 0, -1
    for at, token in enumerate(tokens):
        text = token.text if token.kind in ("other", "name") else ""
        if text in _CLOSING:
            depth -= 1
        if depth == 0:
            found.append(text)
            begins = at if text in _OPENING else begins
        if text in _OPENING:
            depth += 1
    return found, begins


def compared(expression: str, variable: str) -> Iterator[str]:
    """The texts that a valid expression compares a variable with, by `==`, `!=` or `in [...]`."""
    tokens = tokens_of(expression)
    texts = [token.text if token.kind in ("other", "name") else "" for token in tokens]
    for at in (at for at, text in enumerate(texts) if text == variable and texts[at - 1 : at] != ["."]):
        others: list[Token] = []
        if texts[at - 2 : at] in (["=", "="], ["!", "="]):
            others.append(tokens[at - 3])
        if texts[at + 1 : at + 3] in (["=", "="], ["!", "="]):
            others.append(tokens[at + 3])
        if texts[at + 1 : at + 3] == ["in", "["] and "]" in texts[at:]:
            others += tokens[at + 3 : texts.index("]", at)]
        yield from (text for other in others if isinstance(text := key_of(other), str))
