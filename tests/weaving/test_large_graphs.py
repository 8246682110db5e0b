"""Graphs with many nodes."""

from __future__ import annotations

import sys

import pytest

from arbiter import ArbiterOS, Correction, CorrectionGate, History
from tests.support import Check, Spy, allow, chain


class Takes(CorrectionGate):
    def review(self, history: History, draft: object, attempt: int) -> Correction:
        return Correction.commit()


def calls_to_govern(nodes: int, *, gated: bool = False) -> int:
    """The number of function calls that governing a chain of that length takes, each node with a gate if `gated`."""
    graph = chain(*(Spy(f"n{number}") for number in range(nodes)))
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", allow))
    for number in range(nodes if gated else 0):
        arbiter_os.add_correction_gate(Takes(f"g{number}", target_nodes=[f"n{number}"]))
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


@pytest.mark.lengthy
def test_governing_looks_at_each_node_once_for_each_gate() -> None:
    calls_to_govern(10, gated=True)
    assert calls_to_govern(80, gated=True) <= 4.5 * calls_to_govern(40, gated=True)
