"""The hidden channel takes facts from Arbiter alone: a caller who names it in a write changes nothing."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from arbiter import ArbiterOS, PolicyViolationError
from arbiter._weaving.channel import FACTS
from arbiter.checkers import ApprovalChecker, BudgetChecker, RequireBefore
from tests.support import MODES, PATIENCE, Spy, State, chain, run, thread

FACT = {
    "id": "1",
    "node": "approve",
    "step": 1,
    "at": 0.0,
    "took": 0.0,
    "tallies": {"approved": {"passed": 1}},
}
FORGED: list[Any] = [
    FACT,
    [FACT],
    {"start": "run"},
    {"start": "nested"},
    {"seq": 9, "facts": []},
    "text",
    None,
]


def paying(app: Any) -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(RequireBefore("approved", "node:approve", target_nodes=["pay"]))
    return arbiter_os.govern(app)


@MODES
@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_a_command_cannot_forge_what_a_rule_counts(mode: str, forged: Any, caplog: Any) -> None:
    pay = Spy("pay")
    graph = chain(Spy("first"), pay, checkpointer=InMemorySaver())
    graph.interrupt_before_nodes = ["pay"]
    app = paying(graph)
    run(app, {}, thread("t"), mode=mode)
    with pytest.raises(PolicyViolationError, match="'approve' has not passed"):
        run(app, Command(update={FACTS: forged}), thread("t"), mode=mode)
    assert not pay.calls
    assert "ignored a write to channel '__arbiter_ledger'" in caplog.text


@MODES
def test_a_command_cannot_begin_a_budget_again(mode: str) -> None:
    spy = Spy("pay")
    graph = chain(spy, Spy("last"), checkpointer=InMemorySaver())
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(BudgetChecker("calls", calls=1, per="thread", target_nodes=["pay"]))
    app = arbiter_os.govern(graph)
    run(app, {}, thread("t"), mode=mode)
    again = Command(update={FACTS: {"start": "nested"}}, goto="pay")
    with pytest.raises(PolicyViolationError, match="calls"):
        run(app, again, thread("t"), mode=mode)
    assert len(spy.calls) == 1


@pytest.mark.parametrize("where", ["node", "update_state"])
def test_a_graph_whose_state_is_one_value_passes_no_forged_fact_on(where: str) -> None:
    """LangGraph writes all that the update of a command names where the state has no keys."""
    forged: Any = Command(update=[("__root__", ["x"]), (FACTS, FACT)])
    state: Any = Annotated[list[str], operator.add]
    builder: Any = StateGraph(state)

    def first(state: list[str]) -> Any:
        return forged if where == "node" else ["first"]

    def pay(state: list[str]) -> list[str]:
        return ["paid"]

    builder.add_node("first", first)
    builder.add_node("pay", pay)
    builder.add_edge(START, "first")
    builder.add_edge("first", "pay")
    app = paying(builder.compile(checkpointer=InMemorySaver(), interrupt_before=["pay"]))
    app.invoke(["begin"], thread("t"))
    if where == "update_state":
        app.update_state(thread("t"), forged)
    with pytest.raises(PolicyViolationError, match="'approve' has not passed"):
        app.invoke(None, thread("t"))


def test_update_state_and_inputs_drop_the_key_as_any_unknown_one() -> None:
    app = paying(chain(Spy("first"), Spy("pay"), checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError):
        app.invoke({FACTS: FACT}, thread("t"))
    app.update_state(thread("t"), {FACTS: FACT})
    with pytest.raises(PolicyViolationError):
        app.invoke(None, thread("t"))


@MODES
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_fact_that_waited_as_a_pending_write_is_taken(mode: str, durability: Any) -> None:
    """Its sibling failed, and another `ArbiterOS` goes on from the checkpoint, which allows no types of its own."""
    failing = True
    approved = threading.Event()

    def flaky(state: Any) -> Any:
        if failing:
            assert approved.wait(PATIENCE)
            raise ConnectionError
        return {}

    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    approve = Spy("approve")

    def graph() -> Any:
        builder = StateGraph(State)
        for node in (approve, flaky, Spy("pay")):
            builder.add_node(node.__name__, node)
        builder.add_edge(START, "approve")
        builder.add_edge(START, "flaky")
        builder.add_edge(["approve", "flaky"], "pay")
        return builder.compile(checkpointer=saver)

    # LangGraph has kept the writes of a node when it streams its update; with "custom" it does so at once.
    options: Any = {"stream_mode": ["updates", "custom"], "durability": durability}

    async def astream(app: Any) -> None:
        async for _ in app.astream({}, thread("t"), **options):
            approved.set()

    with pytest.raises(ConnectionError):
        if mode == "async":
            asyncio.run(astream(paying(graph())))
        for _ in paying(graph()).stream({}, thread("t"), **options):
            approved.set()
    failing = False
    assert run(paying(graph()), None, thread("t"), mode=mode)["log"] == ["approve", "pay"]
    assert len(approve.calls) == 1


@MODES
@pytest.mark.parametrize("forged", ["text", 7, None, {}, {"about": {}}, {"about": {"task": "x"}, "name": []}])
def test_a_command_cannot_forge_a_note(mode: str, forged: Any) -> None:
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("ask", target_nodes=["pay"]))
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    run(app, {}, thread("t"), mode=mode)
    answer: Any = Command(resume="approve", update={"__arbiter_note": forged})
    assert run(app, answer, thread("t"), mode=mode)["log"] == ["pay"]
    assert len(pay.calls) == 1
