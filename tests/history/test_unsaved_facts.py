"""Without a checkpointer a fact is handed to the hidden channel itself, and is no write of LangGraph's. Later
nodes see the same past."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from hypothesis import given
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, RetryPolicy, Send
from typing_extensions import TypedDict

from arbiter import ArbiterOS, History, PolicyChecker
from arbiter.history._packing import RunFact
from arbiter.history._past import Past
from tests import graphs
from tests.support import MODES, Judge, Route, Spy, bad, chain, run, thread
from tests.weaving.test_equivalence_generated import GENERATED, Plan, build, plans

QUICK = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=3)


def told(past: Past | None) -> Any:
    """A past without ids and times. It is not read itself: that would fold what waits in it."""
    if past is None:
        return None
    value = past.inside(None).value

    def plain(fact: RunFact) -> Any:
        kept = {key: part for key, part in fact.items() if key not in ("id", "at", "took")}
        kept["ns"] = re.sub(r":[-\w]+", "", fact.get("ns", ""))
        return sorted((key, repr(part)) for key, part in kept.items())

    facts = [plain(fact) for fact in value.get("facts", ())]
    last = {node: (number, plain(fact), done) for node, (number, fact, done) in value.get("last", {}).items()}
    rest = {key: part for key, part in value.items() if key not in ("facts", "last", "run_id", "call")}
    return facts, last, rest, told(past.before)


class Witness(PolicyChecker):
    """Notes what it sees before each node, and counts afterwards."""

    def __init__(self) -> None:
        super().__init__("witness")
        self.seen: list[Any] = []

    def check_before(self, history: Any) -> bool:
        own = history.entries[-1][-1]
        self.seen.append((own.node, own.step, history.count(), history.count(node="n0"), told(history.past)))
        return True

    def observe(self, history: History) -> dict[str, float]:
        own = history.entries[-1][-1]
        return {own.node: 1, str(len(own.output_state)): own.step}

    @property
    def account(self) -> list[Any]:
        return sorted(self.seen, key=repr)


def governing() -> tuple[ArbiterOS, Witness]:
    arbiter_os, witness = ArbiterOS(), Witness()
    arbiter_os.add_policy_checker(witness)
    arbiter_os.add_evaluator(Judge("quality", bad))
    arbiter_os.add_policy_router(
        Route("look", lambda h, _: h.entries[-1][-1].evaluation_results["quality"].passed or None)
    )
    return arbiter_os, witness


@pytest.mark.lengthy
@GENERATED
@given(plan=plans)
def test_the_past_is_the_same_with_a_checkpointer_and_without(plan: Plan) -> None:
    accounts: list[Any] = []
    for saver in (None, InMemorySaver()):
        arbiter_os, witness = governing()
        graph = build(plan, arbiter_os.govern).compile(checkpointer=saver)
        config = graphs.config_of("one", None, 1) | {"recursion_limit": 14}
        seen = graphs.run(arbiter_os.govern(graph), "values", graphs.INPUT, config)
        if seen.error is not None and plan.parallel:
            return  # a failure stops the other branches somewhere
        accounts.append((witness.account, arbiter_os.history.count()))
    assert accounts[0] == accounts[1]


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def last_seen(graph: Any, mode: str, given: Any = None) -> tuple[Any, Sequence[tuple[str, int]]]:
    """The past that the node `end` sees, and the items of the history with their attempts."""
    arbiter_os, witness = governing()
    run(arbiter_os.govern(graph), given or {"log": []}, thread("one"), mode=mode)
    (seen,) = (seen for seen in witness.seen if seen[0] == "end")
    return seen, [(item.node, item.attempt) for item in arbiter_os.history.items()]


@MODES
@pytest.mark.parametrize("saved", [False, True])
def test_an_attempt_whose_edge_fails_leaves_no_fact(mode: str, saved: bool) -> None:
    """The fact goes with the first writer; what a later one raises takes it back."""
    failing = iter([True, True, False])

    def edge(_: Any) -> str:
        if next(failing):
            raise ConnectionError("not yet")
        return "end"

    builder: Any = StateGraph(Log)
    builder.add_node("work", Spy("work"), retry_policy=QUICK)
    builder.add_node("end", Spy("end"))
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", edge, ["end"])
    seen, items = last_seen(builder.compile(checkpointer=InMemorySaver() if saved else None), mode)
    assert seen[2] == 2  # work, and itself
    assert items == [("work", 3), ("end", 1)]


@pytest.mark.parametrize("saved", [False, True])
def test_a_node_without_an_update_whose_edge_fails_leaves_no_fact(saved: bool) -> None:
    """LangGraph would stream an update of the node, if the fact were there."""

    def edge(_: Any) -> str:
        raise ConnectionError("edge")

    def handler(state: Any, error: NodeError) -> Any:
        return Command(update={"log": [str(error.error)]}, goto="end")

    def work(_: Any) -> Any:
        return {}

    builder: Any = StateGraph(Log)
    builder.add_node("work", work, error_handler=handler)
    builder.add_node("end", Spy("end"))
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", edge, ["end"])
    graph = builder.compile(checkpointer=InMemorySaver() if saved else None)
    arbiter_os, witness = governing()
    updates = list(arbiter_os.govern(graph).stream({"log": []}, thread("one"), stream_mode="updates"))
    assert updates == list(graph.stream({"log": []}, thread("two"), stream_mode="updates"))
    (seen,) = (seen for seen in witness.seen if seen[0] == "end")
    assert "work" not in dict(seen[4][2]["nodes"])


@MODES
@pytest.mark.parametrize("saved", [False, True])
def test_a_failed_attempt_after_one_whose_edge_failed_leaves_none_either(mode: str, saved: bool) -> None:
    calls = iter(["fine", "body", "body"])

    def work(_: Any) -> Any:
        if next(calls) == "body":
            raise ConnectionError("body")
        return {"log": ["work"]}

    def edge(_: Any) -> str:
        raise ConnectionError("edge")

    def handler(state: Any, error: NodeError) -> Any:
        return Command(update={"log": [str(error.error)]}, goto="end")

    builder: Any = StateGraph(Log)
    builder.add_node("work", work, retry_policy=QUICK, error_handler=handler)
    builder.add_node("end", Spy("end"))
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", edge, ["end"])
    seen, _ = last_seen(builder.compile(checkpointer=InMemorySaver() if saved else None), mode)
    nodes = dict(seen[4][2]["nodes"])
    assert "work" not in nodes
    assert sum(nodes.values()) == 1  # the handler's


@MODES
def test_cached_outputs_are_counted(mode: str) -> None:
    """A cached node's fact is among the writes that the cache keeps, beside siblings that ran."""
    builder: Any = StateGraph(Log)
    for name in ("a", "cached", "z"):
        builder.add_node(name, Spy(name), cache_policy=CachePolicy() if name == "cached" else None)
        builder.add_edge(START, name)
        builder.add_edge(name, "end")
    builder.add_node("end", Spy("end"))
    graph = builder.compile(cache=InMemoryCache())
    arbiter_os, witness = governing()
    app = arbiter_os.govern(graph)
    for _ in range(2):
        run(app, {"log": []}, mode=mode)
    first, second = (list(seen[4][0]) for seen in witness.seen if seen[0] == "end")
    assert len(first) == 3
    assert first == second


@MODES
def test_siblings_are_in_the_order_of_their_tasks(mode: str) -> None:
    """The order does not depend on which is done first."""

    def work(state: Any) -> Any:
        return {"log": [f"w{state['n']}"]}

    def sends(_: Any) -> list[Send]:
        return [Send("work", {"n": n, "log": []}) for n in range(12)]

    builder: Any = StateGraph(Log)
    builder.add_node("work", work)
    builder.add_node("end", Spy("end"))
    builder.add_conditional_edges(START, sends, ["work"])
    builder.add_edge("work", "end")
    seen, items = last_seen(builder.compile(), mode)
    again, _ = last_seen(builder.compile(checkpointer=InMemorySaver()), mode)
    assert seen == again
    assert len(items) == 13


def test_a_command_to_the_parent_leaves_what_the_subgraph_did() -> None:
    def up(_: Any) -> Any:
        return Command(graph=Command.PARENT, goto="end", update={"log": ["up"]})

    inner: Any = StateGraph(Log)
    inner.add_node("one", Spy("one"))
    inner.add_node("up", up)
    inner.add_edge(START, "one")
    inner.add_edge("one", "up")
    outer: Any = StateGraph(Log)
    outer.add_node("team", inner.compile())
    outer.add_node("other", Spy("other"))
    outer.add_node("end", Spy("end"))
    outer.add_edge(START, "team")
    outer.add_edge("team", "other")
    outer.add_edge("other", END)
    seen, _ = last_seen(outer.compile(), "sync")
    again, _ = last_seen(outer.compile(checkpointer=InMemorySaver()), "sync")
    assert seen == again
    assert seen[2] > 2


def test_a_redirect_is_in_the_past_of_its_target() -> None:
    for saver in (None, InMemorySaver()):
        graph = chain(Spy("a"), Spy("b"), Spy("end"), checkpointer=saver)
        arbiter_os, witness = governing()
        arbiter_os.add_policy_router(
            Route("skip", lambda h, _: "end" if h.entries[-1][-1].node == "a" else None)
        )
        run(arbiter_os.govern(graph), {"log": []}, thread("one"))
        assert [seen[0] for seen in witness.seen] == ["a", "end"]
        (fact,) = witness.seen[-1][4][0]
        assert ("to", "'end'") in fact


@pytest.mark.lengthy
@pytest.mark.parametrize("slow", ["body", "edge"])
@pytest.mark.parametrize("saved", [False, True])
def test_an_attempt_that_took_too_long_leaves_no_fact(slow: str, saved: bool) -> None:
    """LangGraph drops what it wrote, also what it writes when the time is up."""

    async def work(_: Any) -> Any:
        if slow == "body":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)  # tidies up, and returns
        return {"log": ["work"]}

    async def edge(_: Any) -> str:
        if slow == "edge":
            await asyncio.sleep(60)
        return "end"

    async def later(_: Any) -> Any:
        await asyncio.sleep(0.15)
        return {"log": ["later"]}

    def handler(_: Any) -> Any:
        return Command(update={"log": ["handled"]}, goto="later")

    builder: Any = StateGraph(Log)
    builder.add_node("work", work, timeout=0.05, error_handler=handler)
    builder.add_node("later", later)
    builder.add_node("end", Spy("end"))
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", edge, ["end"])
    builder.add_edge("later", "end")
    seen, _ = last_seen(builder.compile(checkpointer=InMemorySaver() if saved else None), "async")
    assert "work" not in seen[4][2]["nodes"]
    assert seen[4][2]["nodes"]["later"] == 1


def test_a_command_to_the_parent_keeps_the_order_of_siblings() -> None:
    def up(_: Any) -> Any:
        return Command(graph=Command.PARENT, goto="end", update={"log": ["up"]})

    inner: Any = StateGraph(Log)
    inner.add_node("up", up)
    inner.add_edge(START, "up")
    outer: Any = StateGraph(Log)
    outer.add_node("a", Spy("a"))
    outer.add_node("b", inner.compile())
    outer.add_node("end", Spy("end"))
    outer.add_edge(START, "a")
    outer.add_edge(START, "b")
    seen, _ = last_seen(outer.compile(), "sync")
    again, _ = last_seen(outer.compile(checkpointer=InMemorySaver()), "sync")
    assert seen == again
    assert next(iter(seen[4][2]["nodes"])) == "a"
