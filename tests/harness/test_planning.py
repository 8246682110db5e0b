"""Planning: cases and votes that it takes to find a drop, from the noise of a run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from arbiter.errors import ConfigurationError, ParameterError
from arbiter.harness import plan
from tests.harness.measurements import AFTER, BEFORE, row, share, tone


def test_the_screen_of_a_plan() -> None:
    """From the differences between a run and its baseline."""
    found = plan(row("tone", AFTER), comparison=tone(BEFORE, AFTER).rows["tone"])
    assert str(found) == (
        "tone: sd of a case's change 0.67 (10 cases, from the baseline). "
        "With 10 cases a drop of 0.69 is found in 9 of 10 runs.\n"
        " drop to find    0.20    0.30    0.60    1.00\n"
        " cases            100      45      13       6"
    )
    assert (found.more(0.6), found.more(1.0)) == (3, 0)
    assert found.text(0.6) == f"{found}        0.60 takes 3 more."
    assert found.text(1.0).endswith("1.00 takes no more.")


def test_repeats_show_the_noise_without_a_baseline() -> None:
    """An sd of 1 between repeats is one of √2 between two runs, and of 1 if both have two repeats."""
    rng = random.Random(2)
    noisy = row("tone", [[mean + rng.gauss(0, 1) for _ in range(10)] for mean in [5, 6, 7] * 40])
    assert plan(noisy).sd == pytest.approx(2**0.5, rel=0.05)
    assert plan(noisy, repeats=2).sd == pytest.approx(1, rel=0.05)
    assert plan(noisy).source == "repeats"


@pytest.mark.lengthy
def test_votes_help_against_the_judge_alone() -> None:
    """A judge's sd of 0.9: three votes take a third of the cases. An agent's own noise of 0.7 stays."""
    rng = random.Random(3)
    judge = {f"c{i}": [[5 + rng.gauss(0, 0.9) for _ in range(3)]] for i in range(400)}
    both = {
        f"c{i}": [
            [agent + rng.gauss(0, 0.9) for _ in range(3)] for agent in (rng.gauss(5, 0.7), rng.gauss(5, 0.7))
        ]
        for i in range(400)
    }
    once = row("tone", [5] * 400)
    alone, together = plan(once, votes=judge).by_votes, plan(once, votes=both).by_votes
    assert alone[3][0.3] == pytest.approx(alone[1][0.3] / 3, rel=0.05)
    assert together[3][0.3] > 0.5 * together[1][0.3]
    assert [list(found) for found in (alone, together)] == [[1, 2, 3, 4, 5]] * 2


def test_no_plan_has_fewer_cases_than_the_test_can_decide_with() -> None:
    """Four cases can never be significant at 0.05."""
    steady = tone([7, 7, 7, 8], [7, 7, 7, 7.9]).rows["tone"]
    assert set(plan(row("tone", [7, 7, 7, 7.9]), comparison=steady).cases.values()) == {5}


def test_a_run_without_noise_promises_no_drop_of_zero() -> None:
    """Of a share, a drop in fewer than five cases is never significant."""
    found = str(plan(share("grounded", [[1, 1]] * 20)))
    assert "No case changed, so a drop is significant from 5 cases on." in found
    assert "a drop of 0.00 is found" not in found


@pytest.mark.lengthy
def test_drops_fit_the_scale() -> None:
    found = plan(share("grounded", [[1, 0], [1, 1], [0, 1]]), drops=None)
    assert list(found.cases) == [0.02, 0.03, 0.06, 0.1]
    assert list(plan(share("grounded", [[1, 0], [1, 1]]), drops=[0.5]).cases) == [0.5]


def test_a_run_that_shows_no_noise_has_no_plan() -> None:
    with pytest.raises(ConfigurationError, match="the run has one repeat and no baseline"):
        plan(row("tone", BEFORE))
    with pytest.raises(ConfigurationError, match="tone has 1 scored cases; a plan needs two"):
        plan(row("tone", [5]), votes={"a": [[4, 5]], "b": [[4, 5]]})
    with pytest.raises(ParameterError, match="expected two votes or more of at least two cases"):
        plan(row("tone", BEFORE), votes={"a": [[4, 5]], "b": [[5]]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repeats": 0}, "repeats: expected a whole number from 1, got 0"),
        ({"repeats": 1.5}, "repeats: expected a whole number from 1, got 1.5"),
        ({"alpha": 0}, "alpha: expected a number above 0 and below 1, got 0"),
        ({"alpha": float("nan")}, "alpha: expected a number above 0 and below 1, got nan"),
        ({"drops": 0.5}, "drops: expected a list of numbers, got 0.5"),
        ({"drops": ["a"]}, r"drops\[0\]: expected a finite number, got 'a'"),
        ({"drops": [0]}, "drop: expected a number above 0, got 0"),
    ],
)
def test_a_plan_names_the_parameter_that_is_wrong(options: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        plan(row("tone", [[5, 6], [7, 7]]), **options)


def test_a_scale_without_an_end_asks_for_the_drop_to_find() -> None:
    tokens = row("tokens", [[1, 2], [3, 5]], scale=(0, float("inf")))
    with pytest.raises(ConfigurationError, match=r"tokens has a scale .*: --row tokens --drop 10, or drops="):
        plan(tokens)
    assert list(plan(tokens, drops=[10]).cases) == [10]
