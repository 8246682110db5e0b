"""Comparison of two settings of a rule: which one is tighter?"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from arbiter._values.parameters import Tighter
from arbiter.errors import UnknownInstructionError
from arbiter.instructions import find_instruction


def is_same(one: Any, other: Any) -> bool:
    """True if two values of YAML are equal and of equal types: 1 is not true."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))  # pyright: ignore[reportUnknownArgumentType]
    return bool(one == other)


def with_instructions(value: Any) -> Any:
    """The value with instructions in place of their names; texts that name none stay."""
    parts: Any = value
    if isinstance(value, list):
        return [with_instructions(part) for part in parts]
    if isinstance(value, dict):
        return {key: with_instructions(part) for key, part in parts.items()}
    with suppress(UnknownInstructionError):
        return find_instruction(value)
    return value


def is_tighter(how: Tighter | None, before: Any, after: Any) -> bool:
    """True if a rule with `before` became tighter with `after`. False if they cannot be compared."""
    match how:
        case "any":
            return True
        case "true":
            return after is True
        case "denial":
            return bool(after == "raise" or (before == "audit" and after == "end"))
        case "lower" | "higher":
            if before is None or not _is_number(before) or not _is_number(after):
                return before is None
            return bool(after <= before if how == "lower" else after >= before)
        case "fewer":
            return before is None or _all_in(after, before)
        case "more":
            return before is None or _all_in(before, after)
        case "wider":
            return after is None or _all_in(before, after)
        case None:
            return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _all_in(some: Any, others: Any) -> bool:
    """True if both are lists, and the second contains each member of the first unchanged."""
    return (
        isinstance(some, list)
        and isinstance(others, list)
        and all(any(is_same(part, other) for other in others) for part in some)  # pyright: ignore[reportUnknownVariableType]
    )
