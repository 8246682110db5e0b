"""Student's t distribution: its upper tail and its quantiles, for any positive degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from arbiter.errors import ParameterError
from arbiter.statistics._numbers import number

_TINY = 1e-300
_MOST = 20_000
"""Terms of the continued fraction. At 10,000,000 degrees of freedom it needs about 6,000."""
_MANY = 100_000.0
"""Degrees of freedom from which a quantile is that of the normal distribution, corrected by two terms."""
_NORMAL = 1e10
"""Degrees of freedom from which a tail is that of the normal distribution: the fraction would end too soon."""


def t_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t with `df` degrees of freedom.

    2·P(T > |t|) = I_{df/(df+t²)}(df/2, 1/2), the regularised incomplete beta function, by its continued
    fraction (DiDonato and Morris 1992, modified Lentz). The tail is never computed as 1 - cdf, so that it
    stays accurate when it is small: `t_tail(15.4718, 189.16)` is 9.9e-36.
    """
    df = number("t_tail", "df", df, above=0)
    if math.isnan(t):
        raise ParameterError("t_tail", "t", "expected a number, got nan.")
    if df > _NORMAL:
        return math.erfc(t / math.sqrt(2)) / 2
    squared = t * t / df
    half = _beta(df / 2, 0.5, 1 / (1 + squared), squared / (1 + squared)) / 2 if squared < math.inf else 0.0
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The value that Student's t with `df` degrees of freedom exceeds with probability 1 - p.

    `t_quantile(0.975, 9)` is 2.2622. Found by bisection of `t_tail`; above 100,000 degrees of freedom by the
    expansion z + (z³ + z)/4df + (5z⁵ + 16z³ + 3z)/96df² (Abramowitz and Stegun 26.7.5).
    """
    p = number("t_quantile", "p", p, above=0, below=1)
    df = number("t_quantile", "df", df, above=0)
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -_upper(p, df)
    return _upper(1 - p, df)


def _upper(tail: float, df: float) -> float:
    """The t above 0 whose upper tail is `tail`, which is below 0.5."""
    if df > _MANY:
        z = -NormalDist().inv_cdf(tail)
        return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df * df)
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if t_tail(middle, df) > tail:
            low = middle
        else:
            high = middle


def _beta(a: float, b: float, x: float, complement: float) -> float:
    """I_x(a, b). `complement` is 1 - x, given because it loses digits if x is near 1."""
    if x <= 0 or complement <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction of the other tail converges faster
        return 1 - _front(b, a, complement, x) * _fraction(b, a, complement)
    return _front(a, b, x, complement) * _fraction(a, b, x)


def _front(a: float, b: float, x: float, complement: float) -> float:
    """x^a·(1-x)^b / (a·B(a, b))."""
    scale = _log_gamma_step(a + b - 0.5) - math.lgamma(0.5)  # one of the two is 1/2
    # The logarithm of a number near 1 comes from its distance to 1, which is exact.
    log_x = math.log1p(-complement) if complement < 0.5 else math.log(x)
    log_complement = math.log1p(-x) if x < 0.5 else math.log(complement)
    return math.exp(scale + a * log_x + b * log_complement) / a


def _log_gamma_step(a: float) -> float:
    """log(Γ(a + 1/2)/Γ(a)). The difference of two large logarithms would keep few digits."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
