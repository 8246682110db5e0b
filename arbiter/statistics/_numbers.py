"""Checked input, and the mean and variance of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple, get_args

from arbiter.errors import ParameterError

Number = float | Fraction
"""What functions take; a `Fraction` keeps thirds exact."""


class Interval(NamedTuple):
    """The two ends of an interval. `low, high = wilson(7, 20)` works, too."""

    low: float
    high: float


class Moments(NamedTuple):
    """Size, mean and standard deviation (with n - 1) of some values. One value has the sd 0."""

    n: int
    mean: float
    sd: float

    @property
    def variance(self) -> float:
        return self.sd * self.sd

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.sd / math.sqrt(self.n)


def moments(values: tuple[float, ...]) -> Moments:
    n, low, high = len(values), min(values), max(values)
    if low == high:
        return Moments(n, low, 0.0)  # the mean of equal values can be off by a bit, and then they "vary"
    parts, unit = in_units(values)  # an sd that leaves the range of a float itself is infinite
    mean = math.fsum(parts) / n
    sd = math.sqrt(math.fsum((part - mean) ** 2 for part in parts) / (n - 1))
    return Moments(n, math.ldexp(mean, unit), 2 * math.ldexp(sd / 2, unit))


def in_units(values: Sequence[float]) -> tuple[list[float], int]:
    """The values in units of a power of two, and its exponent. No digit changes, and none is above 1: sums and squares
    of very large or very small values would leave the range of a float."""
    _, unit = math.frexp(max(map(abs, values), default=0.0))
    return [math.ldexp(value, -unit) for value in values], unit


def listed(function: str, parameter: str, values: Any, members: str) -> tuple[Any, ...]:
    """The members of a list, tuple or other iterable. Raises `ParameterError` for anything else."""
    try:
        members_of = None if isinstance(values, str | bytes) else iter(values)
    except TypeError:
        members_of = None
    if members_of is None:
        raise ParameterError(function, parameter, f"expected a list of {members}, got {values!r:.80}.")
    return tuple(members_of)


def reals(function: str, parameter: str, values: Any, *, least: int = 1) -> tuple[Number, ...]:
    """The values of an argument as they are. Raises `ParameterError` unless they are finite numbers, and at
    least `least` of them."""
    given = listed(function, parameter, values, "numbers")
    for place, value in enumerate(given):
        if not is_finite(value):
            problem = f"expected a finite number, got {value!r:.80}."
            raise ParameterError(function, f"{parameter}[{place}]", problem)
    if len(given) < least:
        raise ParameterError(function, parameter, f"expected at least {least} numbers, got {len(given)}.")
    return given


def floats(function: str, parameter: str, values: Any, *, least: int = 1) -> tuple[float, ...]:
    """As `reals`, converted to floats."""
    return tuple(float(value) for value in reals(function, parameter, values, least=least))


def number(
    function: str,
    parameter: str,
    value: Any,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> float:
    """A finite number within bounds. Raises `ParameterError` for anything else."""
    if is_finite(value) and above < value < below and at_least <= value <= at_most:
        return float(value)
    bounds = [
        f" {word} {bound:g}"
        for word, bound in (("above", above), ("from", at_least), ("below", below), ("up to", at_most))
        if math.isfinite(bound)
    ]
    raise ParameterError(function, parameter, f"expected a number{' and'.join(bounds)}, got {value!r:.80}.")


def count(function: str, parameter: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """A whole number within bounds. Raises `ParameterError` for anything else."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return value
    bound = f"from {least}" + (f" to {most}" if most is not None else "")
    raise ParameterError(function, parameter, f"expected a whole number {bound}, got {value!r:.80}.")


def one_of(function: str, parameter: str, value: str, choices: Any) -> str:
    """The value, which is one of a `Literal`. Raises `ParameterError` for any other."""
    if value not in get_args(choices):
        expected = ", ".join(map(repr, get_args(choices)))
        raise ParameterError(function, parameter, f"expected one of {expected}, got {value!r:.80}.")
    return value


def is_finite(value: Any) -> bool:
    try:
        return (type(value) is float or isinstance(value, Real)) and math.isfinite(value)
    except OverflowError:  # a whole number beyond a float
        return False
