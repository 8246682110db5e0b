"""CEL itself: the compiler, and explanations of its errors."""

from __future__ import annotations

import re
from typing import Any

from arbiter.errors import ConditionError

MAX_LENGTH = 4000
"""The number of characters that an expression may have."""

_MISTAKE = re.compile(r"ERROR: <input>:(?P<line>\d+):(?P<column>\d+): (?P<what>[^\n]*)")


def compile_cel(expression: str) -> Any:
    """The compiled program. Raises `ConditionError` with line and column if the expression is wrong."""
    if not expression.strip():
        raise ConditionError(expression, "it is empty. Write something like input.amount > 1000")
    if len(expression) > MAX_LENGTH:
        raise ConditionError(
            expression,
            f"it has {len(expression):,} characters, and at most {MAX_LENGTH:,} are read. Split it",
        )
    import cel

    try:
        return cel.compile(expression)
    except BaseException as exc:
        if not is_failure(exc):
            raise
        mistakes = list(_MISTAKE.finditer(str(exc)))
        found = next((m for m in mistakes if "Incomplete" not in m["what"]), None)
        if found is None:
            raise ConditionError(expression, first_line(str(exc))) from None
        line, column = int(found["line"]), int(found["column"])
        what = found["what"].removeprefix("Syntax error: ").partition(" expecting ")[0]
        what = what.replace("'<EOF>'", "the end of the text")
        raise ConditionError(
            expression, f"line {line}, column {column}: {what}{_remedy(expression, line, column)}"
        ) from None


def is_failure(exc: BaseException) -> bool:
    """True if CEL raised it. A panic in its compiled part is a BaseException, but no reason to end the run."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def _remedy(expression: str, line: int, column: int) -> str:
    """The CEL spelling of a common mistake at that place, as a sentence; or ""."""
    rest = expression.splitlines()[line - 1][column - 1 :] if expression.splitlines()[line - 1 :] else ""
    word = re.match(r"\w+|[^\w\s]+", rest)
    meant = _MEANT.get(word[0]) if word else None
    if meant is None and re.search(r"\bnot\b", expression):
        meant = _MEANT["not"]
    return "" if meant is None else f". Write {meant}"


_MEANT = {
    "=": "== to compare",
    "and": "&& for and",
    "&": "&& for and",
    "or": "|| for or",
    "|": "|| for or",
    "not": "! for not",
    "is": "== to compare",
    "===": "== to compare",
    "<>": "!= for not equal",
}


def first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
