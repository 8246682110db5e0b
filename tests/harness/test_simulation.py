"""The error rates of the gate, in simulated runs; benchmarks/gate.py has the whole table."""

from __future__ import annotations

import pytest

from tests.harness.simulation import AGENT, World, share_that_fails


@pytest.mark.lengthy
def test_a_drop_is_found_and_an_unchanged_run_passes() -> None:
    """20 cases with 3 votes each find a drop of 0.6 of 0 to 9 in nine of ten runs; few unchanged runs fail."""
    world = World(cases=20, votes=3)
    assert share_that_fails(world, 0.6, trials=150, seed=1) >= 0.9
    assert share_that_fails(world, 0, trials=300, seed=1) <= 0.05


@pytest.mark.lengthy
def test_votes_do_not_make_up_for_an_agent_that_answers_anew() -> None:
    """The same drop is found in about two thirds of the runs."""
    found = share_that_fails(World(cases=20, votes=3, agent=AGENT), 0.6, trials=150, seed=2)
    assert 0.5 <= found <= 0.8
