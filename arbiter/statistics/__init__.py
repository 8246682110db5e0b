"""Statistics of evaluations: tests, effects, intervals, agreement. They need the standard library only.

    scores ─▶ differences by case ─▶ sign_flip (does the gate fail?), paired (which interval is shown?)
           ─▶ two groups          ─▶ welch, cohen_d
           ─▶ noise               ─▶ variance_split ─▶ detectable, cases_needed
    labels ─▶ kappa, krippendorff_alpha, corrected_rate

Functions take plain sequences of numbers and return a number or a small frozen object. Input that has no
answer (one value where two are needed, NaN) raises `ParameterError`, a `ValueError`. See
docs/statistics.md.
"""

from arbiter.statistics._agreement import Level, Weights, kappa, krippendorff_alpha
from arbiter.statistics._distributions import t_quantile, t_tail
from arbiter.statistics._effects import cases_needed, cohen_d, detectable, holm
from arbiter.statistics._numbers import Interval
from arbiter.statistics._rates import CorrectedRate, corrected_rate, wilson
from arbiter.statistics._repeats import VarianceSplit, pass_at, pass_hat, variance_split
from arbiter.statistics._rounding import half_up, p_text
from arbiter.statistics._tests import (
    MAX_FLIPS,
    Alternative,
    PairedTest,
    SignFlipTest,
    WelchTest,
    paired,
    sign_flip,
    welch,
)

__all__ = [
    "Alternative",
    "CorrectedRate",
    "Interval",
    "Level",
    "MAX_FLIPS",
    "PairedTest",
    "SignFlipTest",
    "VarianceSplit",
    "Weights",
    "WelchTest",
    "cases_needed",
    "cohen_d",
    "corrected_rate",
    "detectable",
    "half_up",
    "holm",
    "kappa",
    "krippendorff_alpha",
    "p_text",
    "paired",
    "pass_at",
    "pass_hat",
    "sign_flip",
    "t_quantile",
    "t_tail",
    "variance_split",
    "welch",
    "wilson",
]
