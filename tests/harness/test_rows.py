"""Rows: what counts, what is only counted beside it, and the intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.harness.rows import Row, exact
from arbiter.verdicts import Outcome

TONE = (6, 6, 7, 5, 5, 8, 6, 6, 8, 5)
OUTCOMES: tuple[Outcome, ...] = ("not_applicable", "abstained", "timeout", "error", "skipped_budget")


def row(name: str, cases: Mapping[str, Any], **options: Any) -> Row:
    return Row(name=name, cases=cases, **options)


def scores(values: Any) -> dict[str, tuple[float | None, ...]]:
    return {f"case-{place:02}": (value,) for place, value in enumerate(values, 1)}


def test_the_intervals_are_those_of_the_first_screen() -> None:
    """t for the mean of scores, Wilson for shares."""
    tone = row("tone", scores(TONE), scale=(0, 9))
    assert tone.mean == pytest.approx(6.2)
    assert tone.interval == pytest.approx((5.39, 7.01), abs=0.005)
    grounded = row("grounded", scores([1] * 9 + [0]), is_share=True)
    assert grounded.interval == pytest.approx((0.60, 0.98), abs=0.005)
    assert row("completed", scores([1] * 10), is_share=True).interval == pytest.approx((0.72, 1.0), abs=0.005)


def test_an_interval_stays_on_the_scale() -> None:
    assert row("tone", scores([9, 9, 9, 4]), scale=(0, 9)).interval == pytest.approx((3.77, 9), abs=0.01)


def test_repeats_are_not_cases() -> None:
    """Ten cases with ten repeats each have n 10 and the spread of their means."""
    repeated = row(
        "tone", {case: (value - 1, value, value + 1) for case, (value,) in scores(TONE).items() if value}
    )
    once = row("tone", scores(TONE))
    assert (repeated.n, repeated.mean, repeated.sd) == (10, once.mean, once.sd)


def test_a_cluster_counts_as_one() -> None:
    """Three turns of one conversation are one unit, and so is a case on its own."""
    clustered = row("tone", scores([1, 2, 3, 8]), clusters={f"case-0{turn}": "talk" for turn in (1, 2, 3)})
    assert clustered.units == {"talk": 2, "case-04": 8}
    assert (clustered.n, clustered.mean) == (2, 5)


@given(st.lists(st.sampled_from(OUTCOMES), max_size=5), st.lists(st.integers(0, 9), max_size=6))
def test_what_was_not_scored_changes_no_number(outcomes: list[Outcome], values: list[int]) -> None:
    """An outcome other than "scored" is counted, and has no part in n, mean, sd or interval."""
    plain = row("tone", scores(values), scale=(0, 9))
    missing: dict[str, tuple[Outcome, ...]] = {
        f"lost-{place}": (each,) for place, each in enumerate(outcomes)
    }
    more = row("tone", {**scores(values), **dict.fromkeys(missing, (None,))}, scale=(0, 9), missing=missing)
    assert (more.n, more.mean, more.sd, more.interval) == (plain.n, plain.mean, plain.sd, plain.interval)
    assert sum(more.outcomes.values()) == len(values) + len(outcomes)
    assert all(more.outcomes[outcome] == outcomes.count(outcome) for outcome in outcomes)


def test_a_row_without_scores_has_no_numbers() -> None:
    """No mean and no interval; never 0."""
    empty = row("tone", {"a": (None,)}, missing={"a": ("timeout",)})
    assert (empty.n, empty.mean, empty.sd, empty.interval) == (0, None, None, None)
    assert empty.outcomes == {"timeout": 1}


@given(
    st.integers(0, 9),
    st.integers(1, 64).flatmap(lambda votes: st.tuples(st.integers(0, votes), st.just(votes))),
)
def test_a_mean_of_votes_is_found_again_after_rounding(whole: int, votes: tuple[int, int]) -> None:
    """Four decimals are enough for the mean of up to 64 votes of whole scores."""
    value = whole + Fraction(*votes)
    assert exact(round(float(value), 4)) == exact(float(value)) == value


def test_very_large_counts_have_a_mean_and_a_spread() -> None:
    """Such as the perplexity of a broken answer."""
    row = Row(name="perplexity", cases={"a": (1e200,), "b": (3.0,), "c": (3e200,)}, scale=(0.0, math.inf))
    assert row.interval is not None
    assert [row.mean, row.sd, *row.interval] == pytest.approx(
        [1.3333e200, 1.5275e200, 0.0, 5.1279e200], rel=1e-4
    )
    largest = Row(name="n", cases={"a": (1e308,), "b": (1e308,), "c": (1.0,)}, scale=(0.0, math.inf))
    assert largest.mean == pytest.approx(6.6667e307, rel=1e-4)
    repeated = Row(
        name="n", cases={"a": (1e308, 1e308), "b": (1.5e308,)}, clusters={"a": "k"}, scale=(0.0, math.inf)
    )
    assert repeated.mean == pytest.approx(1.25e308)
    assert (float(exact(1e308)), float(exact(-1e305))) == (1e308, -1e305)
