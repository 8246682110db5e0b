"""Graphs with many nodes."""

from __future__ import annotations

import sys

import pytest

from arbiter import ArbiterOS
from tests.support import Check, Spy, allow, chain


def calls_to_govern(nodes: int) -> int:
    """The number of function calls that governing a chain of that length takes."""
    graph = chain(*(Spy(f"n{number}") for number in range(nodes)))
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", allow))
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        arbiter_os.govern(graph)
    finally:
        sys.setprofile(None)
    return made


@pytest.mark.lengthy
def test_governing_takes_calls_in_proportion_to_the_nodes() -> None:
    calls_to_govern(10)  # what is looked up once in a process
    assert calls_to_govern(400) <= 11 * calls_to_govern(40)
