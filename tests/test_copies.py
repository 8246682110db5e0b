"""Copies and pickles of what Arbiter gives out: they work where those of LangGraph's own objects work."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS, ConfigurationError, PolicyViolationError, Verdict
from arbiter.errors import UnknownNodeError
from arbiter.instructions import GENERATE
from tests.support import MODES, Check, Spy, State, chain, run

COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])


def nested() -> Any:
    """Two nodes, the second of which is a graph."""
    graph: Any = StateGraph(State)
    graph.add_node("a", Spy("a"))
    graph.add_node("inner", chain(Spy("b")))
    graph.add_edge(START, "a")
    graph.add_edge("a", "inner")
    return graph.compile()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as exc:
        return type(exc)


@COPIES
@MODES
def test_a_copy_of_a_governed_graph_runs_as_a_copy_of_the_bare_one(copied: Any, mode: str) -> None:
    """LangGraph's own deep copies raise, because they compare a copied sentinel by identity."""
    expected = outcome(lambda: run(copied(nested()), {"log": []}, mode=mode))
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", lambda h: True))
    app = copied(arbiter_os.govern(nested()))
    assert outcome(lambda: run(app, {"log": []}, mode=mode)) == expected


@MODES
def test_a_copy_of_a_governed_graph_is_governed_by_the_contracts_of_its_arbiter_os(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = copy.copy(arbiter_os.govern(nested(), {"a": GENERATE}))
    arbiter_os.add_policy_checker(Check("no", lambda h: Verdict.deny("no"), target_nodes=["b"]))
    with pytest.raises(PolicyViolationError, match="no"):
        run(app, {"log": []}, mode=mode)
    assert arbiter_os.history.count(GENERATE) == 1


@COPIES
def test_a_copy_of_a_governed_graph_belongs_to_the_same_arbiter_os(copied: Any) -> None:
    arbiter_os = ArbiterOS()
    app = copied(arbiter_os.govern(nested()))
    gc.collect()
    assert arbiter_os.govern(app) is app
    again = arbiter_os.govern(app, {"inner:b": GENERATE})
    assert list(again.nodes) == list(app.nodes)
    with pytest.raises(ConfigurationError, match="another ArbiterOS"):
        ArbiterOS().govern(app)
    # What is registered later is checked against the nodes of the copy.
    with pytest.raises(UnknownNodeError, match="nowhere"):
        arbiter_os.add_policy_checker(Check("no", lambda h: True, on_deny="redirect:nowhere"))
