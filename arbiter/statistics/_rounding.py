"""Rounding as people round."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

from arbiter.errors import ParameterError
from arbiter.statistics._numbers import count


def half_up(value: float, digits: int = 2) -> float:
    """The value with that many decimals; halves go away from zero, as in print.

    It rounds the shortest decimal of the float: 5.805 becomes 5.81, -3.125 -3.13, 2.675 2.68 and
    0.125 0.13, where `round` gives 5.8, -3.12, 2.67 and 0.12. Never -0.0. Infinities stay as they are; NaN
    raises `ParameterError`.
    """
    digits = count("half_up", "digits", digits, most=10)
    if math.isnan(value):
        raise ParameterError("half_up", "value", "expected a number, got nan.")
    if abs(value) >= 2**53:  # it has no decimals
        return float(value)
    shortest, unit = Decimal(repr(float(value))), Decimal(1).scaleb(-digits)
    return float(shortest.quantize(unit, rounding=ROUND_HALF_UP)) + 0.0


def p_text(p: float) -> str:
    """A p-value as tables print it: three decimals, halves up, and "<0.001" below that."""
    return "<0.001" if p < 0.001 else f"{half_up(p, 3):.3f}"
