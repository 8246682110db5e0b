"""Checks of what a program passes to memory; mistakes are errors before the first turn."""

from __future__ import annotations

from typing import Any

from arbiter._values.states import is_number
from arbiter.errors import ParameterError, with_article
from arbiter.evaluators._outputs import checked_number

OWNER = "EvaluationCycle"


def wrong(parameter: str, problem: str) -> ParameterError:
    return ParameterError(OWNER, parameter, problem)


def one_of(name: str, value: Any, *allowed: str) -> None:
    if value not in allowed:
        raise wrong(name, f"expected {' or '.join(map(repr, allowed))}, got {value!r:.80}.")


def whole(name: str, value: Any, least: int) -> None:
    checked_number(OWNER, name, value, low=least, whole=True)


def seconds(name: str, value: Any) -> None:
    if value is not None and not (is_number(value) and value > 0):
        raise wrong(name, f"expected seconds above 0, or None, got {value!r:.80}.")


def of_kind(name: str, value: Any, kind: type, *, none: bool = False, owner: str = OWNER) -> None:
    if not isinstance(value, kind) and not (none and value is None):
        expected = "a text" if kind is str else with_article(kind.__name__)
        raise ParameterError(owner, name, f"expected {expected}, got {value!r:.80}.")


def has_members(value: Any) -> bool:
    """True for what has members, and is no single text."""
    return hasattr(value, "__iter__") and not isinstance(value, str)


def text(name: str, value: Any, owner: str = OWNER) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ParameterError(owner, name, f"expected a non-empty text, got {value!r:.80}.")
