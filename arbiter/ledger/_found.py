"""The values for which a condition was true, in words."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from arbiter._conditions.condition import Condition
from arbiter._conditions.needs import Field
from arbiter.errors import ConditionError

_INPUT = frozenset({"input", "state"})
_LONG = 60
_MANY = 4
_PLAIN = (int, float, bool, type(None))
REDACTED = re.compile(r"\[secret: [^\]]+\]")
"""The mark of a secret in a stored text."""


def found(reason: str, state: Any) -> str:
    """The reason of a verdict or, if it is a condition, the values that made it true, as in "input.amount is 1200".

    The reason itself if it is not a condition on the input alone, if it is not true for `state`, or if it names a
    list, an object, a long text, what was redacted, or more than four fields.
    """
    return _values(reason, state) or reason


def _values(reason: str, state: Any) -> str:
    condition = _condition(reason)
    try:
        if condition is None or not condition.evaluate({"input": state, "state": state}):
            return ""
        values = {field: _value(state, field) for field in sorted(condition.fields, key=str)}
        if len(values) > _MANY or not all(map(_is_plain, values.values())):
            return ""
        return ", ".join(
            f"{_name(field)} is {json.dumps(value, ensure_ascii=False)}" for field, value in values.items()
        )
    except (ConditionError, ValueError):  # also for a number that is too long to be written
        return ""


@lru_cache(maxsize=256)
def _condition(reason: str) -> Condition | None:
    """None if the reason is in words, as most are."""
    try:
        return Condition(reason, _INPUT)
    except ConditionError:
        return None


def _value(state: Any, field: Field) -> Any:
    """The value of a field, and an object if the field is not there or lies in an object."""
    value = state
    try:
        for key in field[1:]:
            value = value[key]
    except (LookupError, TypeError):
        return object()
    return value


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _LONG and not REDACTED.search(value)
    return type(value) in _PLAIN


def _name(field: Field) -> str:
    first, *rest = field
    keys = (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in rest)
    return f"{first}{''.join(keys)}"
