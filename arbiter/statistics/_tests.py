"""Tests: Welch's for two groups, the paired t test, and the exact sign-flip test."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Literal

from arbiter.errors import ParameterError
from arbiter.statistics._distributions import t_quantile, t_tail
from arbiter.statistics._numbers import Interval, Number, floats, moments, number, one_of, reals

Alternative = Literal["two-sided", "less", "greater"]
"""The change that a test looks for: any, a drop, or a rise."""

MAX_FLIPS = 1_000
"""The most differences other than 0 that `sign_flip` takes; with more, `paired` gives the same answer
sooner."""
_UNITS = 100_000
"""The most units of the grid on which `sign_flip` counts, over all differences."""
_WORK = 20_000_000
"""The most units times differences for which they are rounded: half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WelchTest:
    """Welch's test of two groups: `difference` is mean of the first - mean of the second."""

    difference: float
    t: float
    df: float
    p: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """The t test of `n` differences: their mean, their standard deviation (with n - 1), t and p."""

    n: int
    mean: float
    sd: float
    t: float
    p: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlipTest:
    """The exact test of differences. `moved` is the number of those other than 0.

    `rounded` is True if the differences lie on no common grid and were rounded to one.
    """

    n: int
    moved: int
    p: float
    rounded: bool


def welch(
    first: Iterable[Number],
    second: Iterable[Number],
    *,
    alternative: Alternative = "two-sided",
    confidence: float = 0.95,
) -> WelchTest:
    """Welch's t test of two independent groups, whose variances may differ. Each needs two values.

        t  = (m1 - m2) / √(v1/n1 + v2/n2)
        df = (v1/n1 + v2/n2)² / ((v1/n1)²/(n1 - 1) + (v2/n2)²/(n2 - 1))

    `interval` is the two-sided one for the difference of the means. If neither group varies, equal means
    give t 0 and p 1, and different means an infinite t and p 0 (two-sided). (Welch 1947, Biometrika 34.)
    """
    a = moments(floats("welch", "first", first, least=2))
    b = moments(floats("welch", "second", second, least=2))
    se = math.hypot(a.error, b.error)
    if se:
        share = (a.error / se) ** 2
        df = 1 / (share**2 / (a.n - 1) + (1 - share) ** 2 / (b.n - 1))
    else:
        df = float(a.n + b.n - 2)
    t, p, interval = _t_test("welch", a.mean - b.mean, se, df, alternative, confidence)
    return WelchTest(difference=a.mean - b.mean, t=t, df=df, p=p, interval=interval)


def paired(
    differences: Iterable[Number], *, alternative: Alternative = "two-sided", confidence: float = 0.95
) -> PairedTest:
    """The t test of paired values, given as their differences. It needs two.

        t = mean·√n / sd;  interval: mean ± t_quantile((1 + confidence)/2, n - 1)·sd/√n

    For -1, -1, -1, 0, -2, -1, 0, -1, 0, 0 (ten cases of a baseline and a candidate) the mean is -0.70, the
    sd 0.674949 and the interval -1.1828 to -0.2172. Differences that are all equal give an infinite t, or t
    0 if they are all 0. (Student 1908, Biometrika 6.)
    """
    found = moments(floats("paired", "differences", differences, least=2))
    t, p, interval = _t_test("paired", found.mean, found.error, found.n - 1, alternative, confidence)
    return PairedTest(n=found.n, mean=found.mean, sd=found.sd, t=t, p=p, interval=interval)


def sign_flip(differences: Iterable[Number], *, alternative: Alternative = "less") -> SignFlipTest:
    """The exact test that paired values did not change: each difference is as likely to be +d as -d.

        p = (number of the 2^m sign patterns of the m differences other than 0 with Σ ±|d| <= Σ d) / 2^m

    That is for `alternative="less"`, a drop; "greater" mirrors it, "two-sided" counts |Σ ±|d|| >= |Σ d|.
    The test holds for any scale, ties and ceilings. It samples nothing: the patterns with each sum are the
    coefficients of Π (1 + x^|d|), which one large integer keeps. For values of 0 and 1 it is McNemar's
    exact test. No difference other than 0: p 1. The smallest p of m differences is 2^-m.

    Differences on a common grid (means of whole scores) are exact. Others are rounded, halves away from
    zero, to a grid of at most 100,000 units in all, which keeps the test valid. More than 1,000 differences
    other than 0 raise `ParameterError`: use `paired`. Pass fractions if thirds must cancel exactly. Floats
    count as the simplest fraction within 1e-9 of them.

    For -1, -1, -1, 0, -2, -1, 0, -1, 0, 0, p is 1/64 = 0.015625; for 3 rises and 10 drops by 1, 0.046143.
    (Fisher 1935, The Design of Experiments, section 21; the polynomial: Pagano and Tritchler 1983, JASA 78.)
    """
    one_of("sign_flip", "alternative", alternative, Alternative)
    given = [_fraction(value) for value in reals("sign_flip", "differences", differences)]
    moved = [value for value in given if value]
    if len(moved) > MAX_FLIPS:
        problem = f"expected at most {MAX_FLIPS:,} other than 0, got {len(moved):,}. Use paired()."
        raise ParameterError("sign_flip", "differences", problem)
    steps, rounded = _on_a_grid(moved)
    if alternative == "greater" or (alternative == "two-sided" and sum(steps) > 0):
        steps = [-step for step in steps]
    patterns = 2 ** len(steps)
    found = _at_most([abs(step) for step in steps], sum(step for step in steps if step > 0))
    if alternative == "two-sided":
        found = min(2 * found, patterns)
    return SignFlipTest(n=len(given), moved=len(moved), p=found / patterns, rounded=rounded)


def _t_test(
    function: str, mean: float, se: float, df: float, alternative: Alternative, confidence: float
) -> tuple[float, float, Interval]:
    """t, p and interval of a mean with that standard error."""
    one_of(function, "alternative", alternative, Alternative)
    confidence = number(function, "confidence", confidence, above=0, below=1)
    t = mean / se if se else math.copysign(math.inf, mean) if mean else 0.0
    if alternative == "two-sided":
        p = min(2 * t_tail(abs(t), df), 1.0)
    elif se or mean:
        p = t_tail(t if alternative == "greater" else -t, df)
    else:
        p = 1.0  # nothing changed: no evidence for a drop or a rise
    half = t_quantile((1 + confidence) / 2, df) * se
    return t, p, Interval(mean - half, mean + half)


def _fraction(value: Number) -> Fraction:
    if isinstance(value, Rational):
        return Fraction(value)
    exact = Fraction(float(value))
    simple = exact.limit_denominator(10_000)
    return simple if abs(simple - exact) <= abs(exact) / 1_000_000_000 else exact


def _on_a_grid(values: list[Fraction]) -> tuple[list[int], bool]:
    """The values as whole numbers of one unit, and True if they had to be rounded to it."""
    if not values:
        return [], False
    unit = Fraction(1, math.lcm(*(value.denominator for value in values)))
    total = sum((abs(value) for value in values), Fraction())
    if total / unit <= _UNITS:
        return [int(value / unit) for value in values], False
    most = min(_UNITS, _WORK // len(values))
    unit = total / (most - len(values) // 2 - 1)  # rounding adds at most half a unit each
    sizes = [math.floor(abs(value) / unit + Fraction(1, 2)) for value in values]
    return [size if value > 0 else -size for size, value in zip(sizes, values, strict=True)], True


def _at_most(sizes: list[int], limit: int) -> int:
    """The number of subsets of `sizes` whose sum is at most `limit`.

    As many subsets have the sum s as have the sum total - s, so that only sums up to half of the total are
    counted. The counts stand side by side in one integer, `width` bits each, of which adding a size shifts
    and adds all at once.
    """
    total, width = sum(sizes), len(sizes) + 1
    if limit >= total:
        return 1 << len(sizes)
    if 2 * limit >= total:
        return (1 << len(sizes)) - _at_most(sizes, total - limit - 1)
    counts, reached, most = 1, 0, (1 << (width * (limit + 1))) - 1
    for size in sorted(sizes):
        counts += counts << (width * size)
        reached += size
        if reached > limit:
            counts &= most
    # In base B, a number is the sum of its digits modulo B - 1; the digits are the counts.
    return counts % ((1 << width) - 1)
