"""The statistics equal those of scipy, statsmodels, scikit-learn and krippendorff, and every worked number holds."""

from __future__ import annotations

import gc
import importlib
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.errors import ParameterError
from arbiter.statistics import (
    Alternative,
    Level,
    Weights,
    cases_needed,
    cohen_d,
    corrected_rate,
    detectable,
    half_up,
    holm,
    kappa,
    krippendorff_alpha,
    paired,
    pass_at,
    pass_hat,
    sign_flip,
    t_quantile,
    t_tail,
    variance_split,
    welch,
    wilson,
)
from tests.support import Lazy

# Most of them have no types.
krippendorff: Any = importlib.import_module("krippendorff")
np, scipy_stats, sklearn_metrics = Lazy("numpy"), Lazy("scipy.stats"), Lazy("sklearn.metrics")
contingency_tables = Lazy("statsmodels.stats.contingency_tables")
multitest, proportion = Lazy("statsmodels.stats.multitest"), Lazy("statsmodels.stats.proportion")

ALTERNATIVES: tuple[Alternative, ...] = ("two-sided", "less", "greater")
TEN = [-1, -1, -1, 0, -2, -1, 0, -1, 0, 0]
"""What a baseline 7 6 8 5 7 9 6 7 8 6 and a candidate 6 6 7 5 5 8 6 6 8 5 differ by, sorted differently."""
KRIPPENDORFF: list[list[int | None]] = [
    [1, 1, None, 1],
    [2, 2, 3, 2],
    [3, 3, 3, 3],
    [3, 3, 3, 3],
    [2, 2, 2, 2],
    [1, 2, 3, 4],
    [4, 4, 4, 4],
    [1, 1, 2, 1],
    [2, 2, 2, 2],
    [None, 5, 5, 5],
    [None, None, 1, 1],
    [None, None, 3, None],
]


def groups(seed: int) -> tuple[list[float], list[float]]:
    """Two groups of different sizes and spreads; those of even seeds are whole scores."""
    rng = random.Random(seed)
    values = [
        [rng.gauss(5, sd) for _ in range(rng.randint(2, 60))]
        for sd in (rng.uniform(0.1, 3), rng.uniform(0.1, 3))
    ]
    first, second = ([float(round(value)) if seed % 2 == 0 else value for value in group] for group in values)
    return first, second


@pytest.mark.lengthy
@pytest.mark.parametrize("df", [0.7, 1, 2, 4.3, 9, 29, 189.16, 1_000, 54_321.5])
@pytest.mark.parametrize("t", [0.0, 1e-4, 0.3, 1.0, 1.9946, 4.4, 15.4718, 60.0, 1e9])
def test_the_tail_of_t_is_that_of_scipy(t: float, df: float) -> None:
    """Also where it is as small as 1e-200."""
    assert t_tail(t, df) == pytest.approx(scipy_stats.t.sf(t, df), rel=1e-9, abs=1e-300)
    assert t_tail(-t, df) == pytest.approx(scipy_stats.t.sf(-t, df), rel=1e-12)


@pytest.mark.parametrize("df", [1, 2.5, 9, 29, 500, 100_001, 1e8])
@pytest.mark.parametrize("p", [0.0005, 0.025, 0.5, 0.9, 0.95, 0.975, 0.9999])
def test_the_quantiles_of_t_are_those_of_scipy(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy_stats.t.ppf(p, df), rel=1e-9, abs=1e-12)


def test_the_tail_of_an_infinite_t_is_empty() -> None:
    assert (t_tail(math.inf, 3), t_tail(-math.inf, 3), t_tail(1e200, 3)) == (0, 1, 0)


@pytest.mark.parametrize("df", [1e11, 1e20, 1e62, 1e300])
def test_t_with_very_many_degrees_of_freedom_is_normal(df: float) -> None:
    for t in (-2.0, 0.5, 3.0, 8.0):
        assert t_tail(t, df) == pytest.approx(scipy_stats.norm.sf(t), rel=1e-6, abs=0)
    assert t_quantile(1e-20, df) == pytest.approx(scipy_stats.norm.ppf(1e-20), rel=1e-6)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("seed", range(8))
def test_welch_is_that_of_scipy(seed: int, alternative: Alternative) -> None:
    """The interval is the two-sided one of 95 %, whatever the alternative."""
    first, second = groups(seed)
    theirs = scipy_stats.ttest_ind(first, second, equal_var=False, alternative=alternative)
    found = welch(first, second, alternative=alternative)
    assert (found.t, found.df, found.p) == pytest.approx(
        (theirs.statistic, theirs.df, theirs.pvalue), rel=1e-9
    )
    two_sided = scipy_stats.ttest_ind(first, second, equal_var=False)
    assert tuple(found.interval) == pytest.approx(tuple(two_sided.confidence_interval()), rel=1e-9)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("seed", range(8))
def test_the_paired_test_is_that_of_scipy(seed: int, alternative: Alternative) -> None:
    first, second = groups(seed)
    differences = [a - b for a, b in zip(first, second, strict=False)]
    theirs = scipy_stats.ttest_1samp(differences, 0, alternative=alternative)
    found = paired(differences, alternative=alternative)
    assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)
    two_sided = scipy_stats.ttest_1samp(differences, 0)
    assert tuple(found.interval) == pytest.approx(tuple(two_sided.confidence_interval()), rel=1e-9)
    assert found.sd == pytest.approx(np.std(differences, ddof=1))


def test_groups_that_do_not_vary() -> None:
    """Equal means are no difference; other means are a difference beyond doubt. One group may be constant."""
    same, other = welch([3, 3], [3, 3, 3]), welch([5, 5], [3, 3, 3])
    assert (same.t, same.p, cohen_d([3, 3], [3, 3, 3])) == (0, 1, 0)
    assert (other.t, other.p, cohen_d([3, 3], [5, 5])) == (math.inf, 0, -math.inf)
    assert welch([3, 3, 3], [1, 2, 4]).df == pytest.approx(2)
    assert (paired([0, 0]).p, paired([-1, -1, -1]).t, paired([-1, -1]).p) == (1, -math.inf, 0)
    assert [paired([0, 0], alternative=alternative).p for alternative in ALTERNATIVES] == [1, 1, 1]
    assert paired([0.1] * 3).sd == 0  # 0.1 + 0.1 + 0.1 is not 0.3


def brute(differences: list[float], alternative: Alternative) -> float:
    """The test by trying every pattern of signs."""
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
    sums, observed = np.abs(differences) @ signs, sum(differences)
    if alternative == "two-sided":
        return float(np.mean(np.abs(sums) >= abs(observed) - 1e-9))
    return float(np.mean(sums <= observed + 1e-9 if alternative == "less" else sums >= observed - 1e-9))


@pytest.mark.lengthy
@pytest.mark.parametrize("alternative", ALTERNATIVES)
@given(
    st.lists(
        st.one_of(st.integers(-9, 9), st.floats(-9, 9).filter(lambda d: d == 0 or abs(d) > 1e-3)),
        min_size=1,
        max_size=10,
    )
)
def test_sign_flip_counts_every_pattern(alternative: Alternative, differences: list[float]) -> None:
    """Whole differences are exact; others are exact to the grid to which they are rounded."""
    found = sign_flip(differences, alternative=alternative)
    expected = brute(differences, alternative)
    assert found.moved == sum(difference != 0 for difference in differences)
    assert 2.0**-found.moved <= found.p <= 1
    if found.rounded:
        assert found.p == pytest.approx(expected, abs=max(0.02, 4 * 2.0**-found.moved))
    else:
        assert found.p == pytest.approx(expected)


@pytest.mark.parametrize("better", range(0, 14, 3))
@pytest.mark.parametrize("worse", [0, 1, 5, 10])
def test_sign_flip_of_zeros_and_ones_is_mcnemars(better: int, worse: int) -> None:
    differences = [1] * better + [-1] * worse + [0] * 7
    theirs = contingency_tables.mcnemar([[7, worse], [better, 0]], exact=True)
    assert sign_flip(differences, alternative="two-sided").p == pytest.approx(theirs.pvalue)


def test_sign_flip_of_a_thousand_cases_is_exact() -> None:
    """All signs alike give 2^-1000, and thirds that cancel are equal to 0."""
    assert sign_flip([-Fraction(1, 3)] * 1_000).p == 2.0**-1000
    thirds = [-1 / 3, 2 / 3, -1 / 3, -2 / 3 + 1]
    assert sign_flip(thirds).p == sign_flip([-1, 2, -1, 1]).p
    halves = sign_flip([-1] * 500 + [1] * 500)
    assert halves.p == pytest.approx(scipy_stats.binom.cdf(500, 1_000, 0.5), rel=1e-12)
    assert not halves.rounded


@pytest.mark.lengthy
def test_sign_flip_of_many_broken_differences_is_near_the_t_test() -> None:
    rng = random.Random(4)
    differences = [rng.gauss(-0.05, 1) for _ in range(300)]
    found = sign_flip(differences)
    assert found.rounded
    assert found.p == pytest.approx(paired(differences, alternative="less").p, abs=0.002)


def test_sign_flip_depends_on_no_scale_and_no_order() -> None:
    rng = random.Random(5)
    differences = [rng.gauss(0.2, 1) for _ in range(15)]
    shuffled = rng.sample(differences, 15)
    assert sign_flip(shuffled) == sign_flip(differences)
    assert sign_flip([1e-12 * d for d in differences]).p == pytest.approx(sign_flip(differences).p, abs=1e-3)
    assert sign_flip([-d for d in differences], alternative="greater") == sign_flip(differences)


def test_worked_numbers_of_the_sign_flip() -> None:
    assert sign_flip(TEN).p == 1 / 64
    assert sign_flip([1] * 3 + [-1] * 10 + [0] * 7).p == pytest.approx(0.046143, abs=5e-7)
    assert [sign_flip([-1] * n).p for n in (4, 5)] == [0.0625, 0.03125]
    assert sign_flip([0, 0]).p == 1


def test_worked_numbers_of_the_paired_test() -> None:
    found = paired(TEN)
    assert (found.n, found.mean) == (10, -0.7)
    assert found.sd == pytest.approx(0.674949, abs=5e-7)
    assert tuple(found.interval) == pytest.approx((-1.1828, -0.2172), abs=5e-5)


@pytest.mark.parametrize("seed", range(4))
def test_d_is_the_difference_in_pooled_standard_deviations(seed: int) -> None:
    """From Student's t, which pools in the same way: d = t·√(1/n1 + 1/n2)."""
    first, second = groups(seed)
    student = scipy_stats.ttest_ind(first, second, equal_var=True)
    scale = math.sqrt(1 / len(first) + 1 / len(second))
    assert cohen_d(first, second) == pytest.approx(float(student.statistic) * scale)


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels(p_values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", int)  # statsmodels collects the garbage of the process at each call
    theirs = multitest.multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(list(theirs))


def test_worked_numbers_of_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert holm([]) == []


@pytest.mark.parametrize("n", [5, 7, 20, 100])
def test_the_detectable_drop_is_near_that_of_the_noncentral_t(n: int) -> None:
    """Within 2 % from 5 cases on, and 1 % from 20."""
    critical = scipy_stats.t.ppf(0.95, n - 1)
    drop = detectable(n, 1)
    for share, power in ((-0.02 if n < 20 else -0.01, 0.9), (0.02 if n < 20 else 0.01, 0.9)):
        reached = float(scipy_stats.nct.sf(critical, n - 1, drop * (1 + share) * math.sqrt(n)))
        assert (reached < power) == (share < 0)


@pytest.mark.lengthy
def test_worked_numbers_of_planning() -> None:
    """The table in the docstring of `cases_needed` is right, cell by cell."""
    assert detectable(20, 1) == pytest.approx(0.6835, abs=5e-5)
    head, _, *lines = [
        [cell.strip() for cell in line.strip(" |").split("|")]
        for line in (cases_needed.__doc__ or "").splitlines()
        if line.strip().startswith("|")
    ]
    assert len(lines) == 5
    for sd, *needed in lines:
        assert [cases_needed(float(drop), float(sd)) for drop in head[1:]] == [int(n) for n in needed]
    assert cases_needed(0.5, 0) == 2


@pytest.mark.lengthy
@given(st.floats(0.05, 2), st.floats(0, 3))
def test_one_case_fewer_than_needed_finds_less(drop: float, sd: float) -> None:
    n = cases_needed(drop, sd)
    assert detectable(n, sd) <= drop
    assert n == 2 or detectable(n - 1, sd) > drop


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_that_of_statsmodels(share: tuple[int, int]) -> None:
    low, high = wilson(*share)
    theirs = proportion.proportion_confint(*share, method="wilson")
    assert (low, high) == pytest.approx(tuple(float(end) for end in theirs), abs=1e-9)


def test_worked_numbers_of_rates() -> None:
    assert tuple(wilson(7, 20)) == pytest.approx((0.1812, 0.5671), abs=5e-5)
    found = corrected_rate(150, 200, passes=(54, 60), fails=(32, 40))
    assert found is not None
    assert (found.rate, *found.interval) == pytest.approx((0.7857, 0.6585, 0.9265), abs=5e-5)
    assert corrected_rate(150, 200, passes=(5, 10), fails=(5, 10)) is None
    assert corrected_rate(150, 200, passes=(3, 10), fails=(7, 10)) is None


def test_the_corrected_rate_covers_the_truth() -> None:
    """Of 300 samples with a judge of 0.9 and 0.8, at least 93 % have the true share in the interval."""
    rng = random.Random(8)
    true, q1, q0, covered = 0.7, 0.9, 0.8, 0
    for _ in range(300):
        passed = sum(rng.random() < (q1 if rng.random() < true else 1 - q0) for _ in range(200))
        right = (
            (sum(rng.random() < q1 for _ in range(60)), 60),
            (sum(rng.random() < q0 for _ in range(40)), 40),
        )
        found = corrected_rate(passed, 200, passes=right[0], fails=right[1])
        assert found is not None
        covered += found.interval.low <= true <= found.interval.high
    assert covered >= 0.93 * 300


def test_worked_numbers_of_repeats() -> None:
    split = variance_split([[[7, 8], [5, 6]], [[4, 4], [6, 5]], [[8, 9], [9, 9]]])
    assert (split.judge, split.agent, split.case) == pytest.approx((0.3333, 0.9167, 3.4792), abs=5e-5)
    assert (pass_at(2, 5, 3), pass_hat(2, 5, 3)) == pytest.approx((0.9, 0.3))


@pytest.mark.lengthy
def test_the_variances_are_found_again() -> None:
    """A judge's sd of 0.9, an agent's of 0.7, and cases' of 1.5 in 2,000 cases; whole scores add 1/12."""
    rng = random.Random(7)
    scores = [
        [
            [round(case + agent + rng.gauss(0, 0.9)) for _ in range(3)]
            for agent in (rng.gauss(0, 0.7), rng.gauss(0, 0.7))
        ]
        for case in (rng.gauss(0, 1.5) for _ in range(2_000))
    ]
    split = variance_split(scores)
    assert (split.judge, split.agent, split.case) == pytest.approx((0.81 + 1 / 12, 0.49, 2.25), rel=0.08)
    assert (split.change(), split.change(votes=3)) == pytest.approx((1.66, 1.26), abs=0.04)
    assert split.change(votes=3, repeats=4) == pytest.approx(split.change(votes=3) / 2)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n), st.integers(0, n))))
def test_attempts_are_counted(attempts: tuple[int, int, int]) -> None:
    """Passing at least once is at least as likely as passing always; both are hypergeometric."""
    k, n, c = attempts
    assert pass_hat(k, n, c) == pytest.approx(float(scipy_stats.hypergeom.pmf(k, n, c, k)))
    assert 1 - pass_at(k, n, c) == pytest.approx(float(scipy_stats.hypergeom.pmf(0, n, c, k)))


@pytest.mark.lengthy
@pytest.mark.parametrize("weights", ["none", "linear", "quadratic"])
@pytest.mark.parametrize("seed", range(4))
def test_kappa_is_that_of_scikit_learn(seed: int, weights: Weights) -> None:
    rng = random.Random(seed)
    first = [rng.randint(0, 9) for _ in range(40)]
    second = [min(9, max(0, label + rng.choice([-2, 0, 0, 1]))) for label in first]
    theirs = sklearn_metrics.cohen_kappa_score(
        first, second, labels=list(range(10)), weights=None if weights == "none" else weights
    )
    assert kappa(first, second, weights=weights) == pytest.approx(theirs)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
@pytest.mark.parametrize("seed", range(4))
def test_alpha_is_that_of_krippendorff(seed: int, level: Level) -> None:
    """Also with missing labels, and with units that have one label."""
    rng = random.Random(seed)
    units = [
        [None if rng.random() < 0.3 else min(9, max(0, true + rng.choice([-1, 0, 0, 2]))) for _ in range(4)]
        for true in (rng.randint(0, 9) for _ in range(25))
    ]
    table = np.array(
        [[np.nan if label is None else label for label in unit] for unit in units], dtype=float
    ).T
    theirs = krippendorff.alpha(reliability_data=table, level_of_measurement=level)
    assert krippendorff_alpha(units, level=level) == pytest.approx(theirs)


def test_worked_numbers_of_agreement() -> None:
    first, second = ["yes"] * 25 + ["no"] * 25, ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert kappa(first, second) == pytest.approx(0.4)
    found = [krippendorff_alpha(KRIPPENDORFF, level=level) for level in ("nominal", "ordinal", "interval")]
    assert found == pytest.approx([0.7434, 0.8154, 0.8491], abs=5e-5)


def test_agreement_is_none_if_no_disagreement_is_expected() -> None:
    """If every label is the same, chance explains everything."""
    assert kappa(["pass"] * 5, ["pass"] * 5) is None
    assert krippendorff_alpha([[1, 1], [1, 1]]) is None
    assert krippendorff_alpha([[1, None], [2]]) is None


class _Label:
    """A label that can be compared with its own kind alone."""

    compared = 0

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: Any) -> bool:
        _Label.compared += 1
        return bool(self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)


def test_alpha_of_very_many_raters_costs_no_comparison_of_all_pairs() -> None:
    units = [[_Label("yes"), None, *map(_Label, ["yes"] * 400 + ["no"] * 100)] for _ in range(2)]
    found = krippendorff_alpha(units)
    assert _Label.compared < 10 * 2 * 500
    assert found == krippendorff_alpha([["yes"] * 401 + ["no"] * 100] * 2)


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (5.805, 2, 5.81),
        (-3.125, 2, -3.13),
        (2.675, 2, 2.68),
        (0.125, 2, 0.13),
        (4.5, 0, 5),
        (-0.001, 2, 0),
        (1e300, 2, 1e300),
    ],
)
def test_worked_numbers_of_rounding(value: float, digits: int, expected: float) -> None:
    found = half_up(value, digits)
    assert (found, math.copysign(1, found)) == (expected, math.copysign(1, expected))


@given(st.integers(-(10**9), 10**9), st.integers(0, 4))
def test_halves_are_rounded_away_from_zero(whole: int, digits: int) -> None:
    """Any whole number and a half of the last digit, which `round` gets wrong half of the time."""
    value = float(Fraction(2 * whole + (1 if whole >= 0 else -1), 2 * 10**digits))
    assert half_up(value, digits) == float(Fraction(whole + (1 if whole >= 0 else -1), 10**digits))


BAD: dict[str, Callable[[], object]] = {
    "welch: first: expected at least 2 numbers, got 1.": lambda: welch([1], [1, 2]),
    "welch: second[1]: expected a finite number, got nan.": lambda: welch([1, 2], [1, math.nan]),
    "paired: differences: expected a list of numbers, got '12'.": lambda: paired("12"),  # type: ignore[arg-type]
    "paired: differences[0]: expected a finite number, got '1'.": lambda: paired(["1", 2]),  # type: ignore[list-item]
    "paired: alternative: expected one of 'two-sided', 'less', 'greater', got 'lower'.": lambda: paired(
        [1, 2],
        alternative="lower",  # type: ignore[arg-type]
    ),
    "paired: confidence: expected a number above 0 and below 1, got 95.": lambda: paired(
        [1, 2], confidence=95
    ),
    "sign_flip: differences: expected at most 1,000 other than 0, got 1,001. Use paired().": lambda: (
        sign_flip([1] * 1_001)
    ),
    "sign_flip: differences: expected at least 1 numbers, got 0.": lambda: sign_flip([]),
    "holm: p_values[1]: expected a number from 0 to 1, got 2.": lambda: holm([0.5, 2]),
    "detectable: n: expected a whole number from 2, got 1.": lambda: detectable(1, 1),
    "detectable: sd: expected a number from 0, got -1.": lambda: detectable(5, -1),
    "cases_needed: drop: expected a number above 0, got 0.": lambda: cases_needed(0, 1),
    "cases_needed: drop: no number of cases finds 1e-09 with an sd of 1.": lambda: cases_needed(1e-9, 1),
    "wilson: successes: expected a number from 0 and up to 5, got 6.": lambda: wilson(6, 5),
    "corrected_rate: passes[0]: expected a whole number from 0 to 5, got 6.": lambda: corrected_rate(
        1, 2, passes=(6, 5), fails=(1, 1)
    ),
    "variance_split: scores: expected as many repeats of each case, and as many votes of each repeat, got 2 to 3 "
    "repeats and 2 votes.": lambda: variance_split([[[1, 2], [1, 2]], [[1, 2]] * 3]),
    "variance_split: scores[0]: expected at least 2 lists, got 1.": lambda: variance_split(
        [[[1, 2]], [[1, 2]]]
    ),
    "pass_at: k: expected a whole number from 1 to 5, got 6.": lambda: pass_at(6, 5, 3),
    "pass_hat: c: expected a whole number from 0 to 5, got 6.": lambda: pass_hat(1, 5, 6),
    "kappa: second: expected two lists of one length, at least 1, got 1 and 2 labels.": lambda: kappa(
        [1], [1, 2]
    ),
    "kappa: labels: expected finite numbers, got 'a'.": lambda: kappa(
        ["a", "b"], ["b", "a"], weights="linear"
    ),
    "krippendorff_alpha: level: expected one of 'nominal', 'ordinal', 'interval', got 'ratio'.": (
        lambda: krippendorff_alpha([[1, 2]], level="ratio")  # type: ignore[arg-type]
    ),
    "half_up: value: expected a number, got nan.": lambda: half_up(math.nan),
    "half_up: digits: expected a whole number from 0 to 10, got -1.": lambda: half_up(1.5, -1),
    "t_tail: df: expected a number above 0, got 0.": lambda: t_tail(1, 0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_expected(message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        BAD[message]()
    assert str(caught.value) == message


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_the_size_of_the_numbers_changes_no_test(unit: float) -> None:
    """Squares of such numbers are not in the range of a float."""
    first, second = [1.0, 2.0, 4.0], [3.0, 5.0, 4.5, 7.0]
    wide_first, wide_second = [x * unit for x in first], [x * unit for x in second]
    one, other = welch(first, second), welch(wide_first, wide_second)
    assert (other.t, other.df, other.p) == pytest.approx((one.t, one.df, one.p), rel=1e-9)
    assert tuple(other.interval) == pytest.approx([end * unit for end in one.interval], rel=1e-9, abs=0)
    before, after = paired(first), paired(wide_first)
    assert (after.t, after.p, after.sd) == pytest.approx(
        (before.t, before.p, before.sd * unit), rel=1e-9, abs=0
    )
    d = cohen_d(first, second)
    assert cohen_d(wide_first, wide_second) == pytest.approx(d, rel=1e-9)
    assert paired([1e308, -1e308]).t == 0
    for big, small in ((1e308, -1e308), (unit, 0.0), (10**300, 1)):
        assert kappa([big, small, big], [big, big, small], weights="quadratic") == pytest.approx(-0.5)
        assert krippendorff_alpha([[big, small], [big, big]], level="interval") == pytest.approx(0.0)
    with pytest.raises(ParameterError, match="labels: expected finite numbers, got 1000"):
        kappa([10**400, 1], [1, 1], weights="linear")
