"""`Patterns`: the user's own expressions, in RE2, which takes time linear in the length of a text."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from arbiter.redaction._detectors import Found, first_of


class PatternError(ValueError):
    """An expression that is not RE2, or of no use. `name` is its name."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name = name


class Patterns:
    """Named expressions, which find parts of texts that are redacted under these names.

    Raises `PatternError` for an expression that RE2 refuses, such as one that looks ahead, or that finds the
    empty text, and if google-re2 is not installed.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = [(name, _compiled(name, pattern)) for name, pattern in patterns.items()]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def found_in(self, text: str) -> list[Found]:
        """The findings of the expressions, one expression after the other."""
        found: list[Found] = []
        for name, pattern in self._patterns:
            found += first_of(name, (match.span() for match in pattern.finditer(text)), text)
        return found


def _compiled(name: str, pattern: str) -> Any:
    try:
        re2: Any = import_module("re2")
    except ImportError:
        raise PatternError(name, "it needs google-re2: pip install 'arbiteros[ledger]'") from None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        problem: Any = error.args[0] if error.args else "it cannot be read"
        told = problem.decode(errors="replace") if isinstance(problem, bytes) else str(problem)
        raise PatternError(name, told) from None
    if compiled.search("") is not None:
        raise PatternError(name, "it finds the empty text, which is everywhere")
    return compiled
