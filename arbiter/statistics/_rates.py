"""Shares: Wilson's interval, and the share that is left when a judge's mistakes are taken out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from arbiter.errors import ParameterError
from arbiter.statistics._numbers import Interval, count, listed, number


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedRate:
    """A share of passes as people would have given it, with its 95 % interval."""

    rate: float
    interval: Interval


def wilson(successes: float, n: int, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share.

        centre = (k + z²/2)/(n + z²);  half-width = z·√(k·(n - k)/n + z²/4)/(n + z²)

    7 of 20: 0.1812 to 0.5671. `successes` may be broken, as the sum of the shares of `n` cases is. (Wilson
    1927, JASA 22.)
    """
    n = count("wilson", "n", n, least=1)
    k = number("wilson", "successes", successes, at_least=0, at_most=n)
    confidence = number("wilson", "confidence", confidence, above=0, below=1)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (k + z * z / 2) / (n + z * z)
    half = z * math.sqrt(k * (n - k) / n + z * z / 4) / (n + z * z)
    return Interval(max(0.0, centre - half) if k else 0.0, min(1.0, centre + half) if k < n else 1.0)


def corrected_rate(
    passed: int, n: int, *, passes: tuple[int, int], fails: tuple[int, int]
) -> CorrectedRate | None:
    """The share of passes without the judge's mistakes, of `n` judged cases of which it passed `passed`.

    `passes` is (right, labelled): of the cases that people passed, how many the judge passed, too. `fails`
    is the same of those that people failed. With q1 and q0 these two rates, p = passed/n and z = 1.96:

        θ = (p + q0 - 1)/(q0 + q1 - 1), cut to 0...1
        n' = n + z²;  p' = (k + z²/2)/n';  a = (tp + 1)/(P + 2);  b = (tn + 1)/(N + 2)
        A = a(1 - a)/(P + 2);  B = b(1 - b)/(N + 2);  θ' = (p' + b - 1)/(a + b - 1)
        Δθ = 2z²·(θ'·A - (1 - θ')·B)
        interval = θ' + Δθ ± z/(a + b - 1)·√(p'(1 - p')/n' + θ'²·A + (1 - θ')²·B)

    150 of 200 passed, 54 of 60 and 32 of 40 right: 0.7857, 0.6585 to 0.9265. None if q0 + q1 <= 1: such a
    judge is no better than chance. (Rogan and Gladen 1978, AJE 107; Lang and Reiczigel 2014, Preventive
    Veterinary Medicine 113.)
    """
    n = count("corrected_rate", "n", n, least=1)
    k = count("corrected_rate", "passed", passed, most=n)
    tp, passes_n = _right("passes", passes)
    tn, fails_n = _right("fails", fails)
    informed = tp / passes_n + tn / fails_n - 1
    if informed <= 1e-12:  # 0.3 + 0.7 - 1 is not 0 in floats
        return None
    z = 1.96
    n2 = n + z * z
    p2 = (k + z * z / 2) / n2
    a, b = (tp + 1) / (passes_n + 2), (tn + 1) / (fails_n + 2)
    if a + b <= 1:
        return None
    spread_a, spread_b = a * (1 - a) / (passes_n + 2), b * (1 - b) / (fails_n + 2)
    theta = (p2 + b - 1) / (a + b - 1)
    centre = theta + 2 * z * z * (theta * spread_a - (1 - theta) * spread_b)
    variance = p2 * (1 - p2) / n2 + theta**2 * spread_a + (1 - theta) ** 2 * spread_b
    half = z / (a + b - 1) * math.sqrt(variance)
    rate = (k / n + tn / fails_n - 1) / informed
    return CorrectedRate(rate=_cut(rate), interval=Interval(_cut(centre - half), _cut(centre + half)))


def _right(parameter: str, counts: Any) -> tuple[int, int]:
    pair = listed("corrected_rate", parameter, counts, "two numbers")
    if len(pair) != 2:
        problem = f"expected (right, labelled), as in (54, 60), got {counts!r:.80}."
        raise ParameterError("corrected_rate", parameter, problem)
    labelled = count("corrected_rate", f"{parameter}[1]", pair[1], least=1)
    return count("corrected_rate", f"{parameter}[0]", pair[0], most=labelled), labelled


def _cut(share: float) -> float:
    return min(max(share, 0.0), 1.0)
