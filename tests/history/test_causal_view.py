"""A node sees the committed past and itself, never a sibling; the same decisions every time."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from arbiter import ArbiterOS, EvaluationResult, EvaluationRouter, History, PolicyViolationError
from arbiter.checkers import BudgetChecker
from arbiter.instructions import GENERATE, RESPOND, VERIFY
from tests.support import MODES, Check, Judge, Route, Spy, State, chain, governed, run, thread


class Fan(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


def fan(width: int, delays: list[float]) -> StateGraph[Fan]:
    builder = StateGraph(Fan)

    def work(state: Any) -> Any:
        number: int = state["n"]
        time.sleep(delays[number])
        return {"log": [f"work{number}"]}

    async def awork(state: Any) -> Any:
        number: int = state["n"]
        await asyncio.sleep(delays[number])
        return {"log": [f"work{number}"]}

    def sends(state: Any) -> list[Send]:
        return [Send("work", {"n": i}) for i in range(width)]

    from langchain_core.runnables import RunnableLambda

    builder.add_node("work", RunnableLambda(work, awork))
    builder.add_node("repair", lambda state: {"log": ["repair"]})
    builder.add_node("after", lambda state: {"log": ["after"]})
    builder.add_conditional_edges(START, sends)
    builder.add_edge("work", "after")
    return builder


RUNS = 12 if os.environ.get("ARBITER_STRESS") != "full" else 1000


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("seed", range(3))
def test_each_branch_sees_its_own_item(mode: str, seed: int) -> None:
    """32 parallel branches: every contract judges its own branch, and decides the same every time."""
    branches_of_many_runs(mode, seed, RUNS // 3 + 1, 32)


@pytest.mark.slow
@MODES
def test_each_branch_sees_its_own_item_many_times(mode: str) -> None:
    runs = 500 if os.environ.get("ARBITER_STRESS") == "full" else 60
    branches_of_many_runs(mode, 99, runs, 32)


def branches_of_many_runs(mode: str, seed: int, runs: int, width: int) -> None:
    random_ = random.Random(seed)
    wrong: list[Any] = []

    def own(history: History) -> int:
        item = history.entries[-1][-1]
        number: int = item.input_state["n"]
        if len(history.entries[-1]) != 1 or item.node != "work":
            wrong.append(("entries", number))
        return number

    def check(history: History) -> bool:
        own(history)
        if len(history.entries) != 1:
            wrong.append(("sees a sibling", len(history.entries)))
        return True

    def judge(history: History) -> EvaluationResult:
        number = own(history)
        if history.entries[-1][-1].output_state != {"log": [f"work{number}"]}:
            wrong.append(("judge", number))
        return EvaluationResult(number / width, number % 5 != 0, str(number))

    def route(history: History, output: Any) -> str | None:
        number = own(history)
        if output != {"log": [f"work{number}"]}:
            wrong.append(("route", number))
        if history.entries[-1][-1].evaluation_results["judge"].feedback != str(number):
            wrong.append(("evaluation", number))
        return "repair" if number % 7 == 3 else None

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("check", check, target_nodes=["work"]))
    arbiter_os.add_evaluator(Judge("judge", judge, target_nodes=["work"]))
    arbiter_os.add_policy_router(Route("route", route, target_nodes=["work"], max_redirects=99))
    decisions: set[Any] = set()
    delays = [0.0] * width
    app = arbiter_os.govern(fan(width, delays))
    for _ in range(runs):
        delays[:] = [random_.random() * 0.004 for _ in range(width)]
        output = run(app, {"log": []}, mode=mode)
        items = arbiter_os.history.entries[0]
        assert [item.input_state["n"] for item in items] == list(range(width))
        assert [item.evaluation_results["judge"].feedback for item in items] == [str(n) for n in range(width)]
        decisions.add((tuple(output["log"]), tuple(item.redirected_to for item in items)))
    assert wrong == []
    assert len(decisions) == 1


@pytest.mark.lengthy
@MODES
def test_sibling_cannot_satisfy_a_verify_first_policy(mode: str) -> None:
    """A VERIFY in the same superstep does not count, however early it finishes."""

    def verified(history: History) -> bool:
        return history.last(instruction=VERIFY) is not None

    builder = StateGraph(State)
    answer = Spy("answer")

    def slow_answer(state: Any) -> Any:
        return answer(state)

    def check(state: Any) -> Any:
        return {"log": ["check"]}

    def wait(history: History) -> bool:
        time.sleep(0.05)  # let the sibling finish first
        return verified(history)

    builder.add_node("check", check)
    builder.add_node("answer", slow_answer)
    builder.add_edge(START, "check")
    builder.add_edge(START, "answer")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("verify_first", wait, target_nodes=["answer"]))
    app = arbiter_os.govern(builder, {"check": VERIFY, "answer": RESPOND})
    for _ in range(5):
        with pytest.raises(PolicyViolationError, match="verify_first"):
            run(app, {"log": []}, mode=mode)
    assert answer.calls == []


@MODES
def test_past_of_parent_and_subgraph(mode: str) -> None:
    """A node in a subgraph knows what the parent did before; afterwards the parent knows what it did."""
    seen: dict[str, list[str]] = {}

    def look(history: History) -> bool:
        own = history.entries[-1][-1]
        seen[own.node] = [item.node for step in history.entries for item in step]
        assert len(seen[own.node]) == history.count()
        return True

    inner = chain(Spy("in1"), Spy("in2"))
    builder = StateGraph(State)
    builder.add_node("before", Spy("before"))
    builder.add_node("sub", inner)
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "sub")
    builder.add_edge("sub", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look))
    app = arbiter_os.govern(builder, {"in1": GENERATE, "sub:in2": VERIFY})
    run(app, {"log": []}, mode=mode)
    assert seen == {
        "before": ["before"],
        "sub": ["before", "sub"],
        "in1": ["before", "in1"],
        "in2": ["before", "in1", "in2"],
        "after": ["before", "in1", "in2", "sub", "after"],
    }
    assert [i.node for i in arbiter_os.history.items()] == ["before", "in1", "in2", "sub", "after"]
    assert arbiter_os.history.count(instruction=VERIFY) == 1


def calls_inside(saver: InMemorySaver, seen: list[list[str]], *, asks: str, keeps: bool) -> Any:
    """`team` calls the graph `quick` ∥ `slow` twice; `asks` is the node that asks a human."""

    def slow(state: State) -> State:
        if asks == "slow":
            interrupt("go on?")
        return {"log": ["slow"]}

    def team(state: State) -> State:
        first = inner.invoke({"log": []})
        second = inner.invoke({"log": []})
        if asks == "team":
            interrupt("go on?")
        return {"log": [*first["log"], *second["log"]]}

    async def ateam(state: State) -> State:
        first = await inner.ainvoke({"log": []})
        second = await inner.ainvoke({"log": []})
        if asks == "team":
            interrupt("go on?")
        return {"log": [*first["log"], *second["log"]]}

    from langchain_core.runnables import RunnableLambda

    def look(history: History) -> bool:
        seen.append(sorted(item.node for item in history.items()))
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look, target_nodes=["after"]))
    parallel = StateGraph(State)
    parallel.add_node("quick", Spy("quick"))
    parallel.add_node("slow", slow)
    parallel.add_edge(START, "quick")
    parallel.add_edge(START, "slow")
    inner = arbiter_os.govern(parallel.compile(checkpointer=keeps or None))
    builder = StateGraph(State)
    builder.add_node("team", RunnableLambda(team, ateam))
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "team")
    builder.add_edge("team", "after")
    return arbiter_os.govern(builder.compile(checkpointer=saver))


@MODES
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("asks", ["slow", "team"])
def test_nodes_of_a_called_graph_that_ran_before_a_pause_are_in_the_past(
    asks: str, keeps: bool, elsewhere: bool, mode: str
) -> None:
    """LangGraph does not run them again, neither beside a question nor in a graph that was done before it."""
    saver, seen = InMemorySaver(), list[list[str]]()
    app = calls_inside(saver, seen, asks=asks, keeps=keeps)
    result = run(app, {"log": []}, thread("t"), mode=mode)
    while "__interrupt__" in result:
        if elsewhere:
            app = calls_inside(saver, seen, asks=asks, keeps=keeps)
        result = run(app, Command(resume="yes"), thread("t"), mode=mode)
    assert result["log"][-1] == "after"
    assert seen == [["after", "quick", "quick", "slow", "slow", "team"]]


def test_a_graph_that_the_choice_of_an_edge_calls_goes_on_where_it_paused() -> None:
    """It has the namespace that it had: the search for graphs that the body has called takes no number."""

    def asks(state: State) -> State:
        interrupt("go on?")
        return {"log": ["asks"]}

    def choice(state: State) -> str:
        inner.invoke({"log": []})
        return "after"

    first = Spy("first")
    parts = StateGraph(State)
    parts.add_node("first", first)
    parts.add_node("asks", asks)
    parts.add_edge(START, "first")
    parts.add_edge("first", "asks")
    inner: Any = parts.compile()
    builder = StateGraph(State)
    builder.add_node("team", Spy("team"))
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "team")
    builder.add_conditional_edges("team", choice, ["after"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", lambda history: True))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    assert "__interrupt__" in app.invoke({"log": []}, thread("t"))
    assert app.invoke(Command(resume="yes"), thread("t"))["log"] == ["team", "after"]
    assert len(first.calls) == 1


def test_a_subgraph_that_is_resumed_under_streamed_events_has_its_past() -> None:
    def asks(state: State) -> State:
        interrupt("go on?")
        return {"log": ["asks"]}

    seen: list[list[str]] = []

    def look(history: History) -> bool:
        seen.append([item.node for item in history.items()])
        return True

    async def stream(app: Any, state: Any) -> None:
        async for _ in app.astream_events(state, thread("t"), version="v2"):
            pass

    inner = StateGraph(State)
    inner.add_node("quick", Spy("quick"))
    inner.add_node("asks", asks)
    inner.add_edge(START, "quick")
    inner.add_edge(START, "asks")
    builder = StateGraph(State)
    builder.add_node("team", inner.compile())
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "team")
    builder.add_edge("team", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look, target_nodes=["after"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    asyncio.run(stream(app, {"log": []}))
    asyncio.run(stream(app, Command(resume="yes")))
    assert seen == [["asks", "quick", "team", "after"]]


@MODES
def test_subgraph_that_keeps_its_own_thread_is_not_counted_twice(mode: str) -> None:
    counts: list[tuple[str, int]] = []

    def look(history: History) -> bool:
        counts.append((history.entries[-1][-1].node, history.count(node="in1")))
        return True

    def build(checkpointer: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("in1", Spy("in1"))
        builder.add_edge(START, "in1")
        return builder.compile(checkpointer=checkpointer)

    builder = StateGraph(State)
    builder.add_node("sub", build(True))
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "sub")
    builder.add_edge("sub", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    for _ in range(3):
        run(app, {"log": []}, thread("1"), mode=mode)
    assert counts == [
        *[("sub", 0), ("in1", 1), ("after", 1)],
        *[("sub", 1), ("in1", 2), ("after", 2)],
        *[("sub", 2), ("in1", 3), ("after", 3)],
    ]


@MODES
def test_subgraphs_side_by_side_keep_their_items_in_another_process(mode: str) -> None:
    """Their nodes have the same numbers and started at the same time."""
    saver, seen = InMemorySaver(), list[list[str]]()

    def ask(state: State) -> State:
        interrupt("go on?")
        return {"log": ["ask"]}

    def build() -> Any:
        def look(history: History) -> bool:
            seen.append([item.node for item in history.items()])
            return True

        builder = StateGraph(State)
        for side in ("left", "right"):
            inner = StateGraph(State)
            nodes = [f"{side}{number}" for number in (1, 2, 3)]
            for node in nodes:
                inner.add_node(node, Spy(node))
            inner.add_node(f"{side}_ask", ask)
            for start, end in zip((START, *nodes), (*nodes, f"{side}_ask"), strict=True):
                inner.add_edge(start, end)
            builder.add_node(side, inner.compile())
            builder.add_edge(START, side)
            builder.add_edge(side, "after")
        builder.add_node("after", Spy("after"))
        arbiter_os = ArbiterOS(clock=lambda: 1_000_000.0)
        arbiter_os.add_policy_checker(Check("look", look, target_nodes=["after"]))
        return arbiter_os.govern(builder.compile(checkpointer=saver))

    run(build(), {"log": []}, thread("t"), mode=mode)
    app = build()
    answers = {question.id: "yes" for question in app.get_state(thread("t")).interrupts}
    run(app, Command(resume=answers), thread("t"), mode=mode)
    sides = [[f"{side}1", f"{side}2", f"{side}3", f"{side}_ask", side] for side in ("left", "right")]
    assert seen == [[*sides[0], *sides[1], "after"]]


@MODES
def test_subgraph_that_keeps_its_state_is_not_counted_for_a_task_in_which_it_ran_nothing(mode: str) -> None:
    """LangGraph resumes it after an update of the state, and takes what it did in an earlier task for all."""
    counts: list[int] = []

    def look(history: History) -> bool:
        counts.append(history.count(node="in1"))
        return True

    inner = StateGraph(State)
    inner.add_node("in1", Spy("in1"))
    inner.add_edge(START, "in1")
    builder = StateGraph(State)
    builder.add_node("before", Spy("before"))
    builder.add_node("sub", inner.compile(checkpointer=True))
    builder.add_node("after", Spy("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "sub")
    builder.add_edge("sub", "after")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look, target_nodes=["after"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    app.update_state(thread("1"), {"log": ["edited"]}, as_node="before")
    run(app, None, thread("1"), mode=mode)
    run(app, {"log": []}, thread("1"), mode=mode)
    assert counts == [1, 1, 2]


@pytest.mark.lengthy
def test_two_hundred_concurrent_threads_do_not_mix() -> None:
    """No item, total or canary of one thread shows in another, sync and async at once."""
    arbiter_os = ArbiterOS()
    mixed: list[Any] = []

    def look(history: History) -> bool:
        own = history.entries[-1][-1]
        canary = own.input_state["log"][0]
        for step in history.entries:
            for item in step:
                if item.input_state["log"][0] != canary:
                    mixed.append((canary, item.input_state))
        return True

    arbiter_os.add_policy_checker(Check("look", look))
    arbiter_os.add_evaluator(
        Judge("canary", lambda h: EvaluationResult(1.0, True, h.entries[-1][-1].input_state["log"][0]))
    )
    arbiter_os.add_policy_router(EvaluationRouter("r", "canary", "c"))
    app = arbiter_os.govern(
        chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=InMemorySaver()), {"a": GENERATE}
    )
    barrier = threading.Barrier(8)

    def one(number: int) -> None:
        if number < 8:
            barrier.wait(60)
        name = f"canary-{number}"
        app.invoke({"log": [name]}, thread(name))
        mine = arbiter_os.history
        if [item.input_state["log"][0] for item in mine.items()] != [name] * 3:
            mixed.append((name, "history of the current context"))

    async def many() -> None:
        async def one_async(number: int) -> None:
            name = f"async-{number}"
            await app.ainvoke({"log": [name]}, thread(name))
            if [i.input_state["log"][0] for i in arbiter_os.history.items()] != [name] * 3:
                mixed.append((name, "history of the current context"))

        await asyncio.gather(*(one_async(n) for n in range(100)))

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(one, n) for n in range(100)]
        asyncio.run(many())
        for job in jobs:
            job.result()
    assert mixed == []
    for name in [f"canary-{n}" for n in range(100)] + [f"async-{n}" for n in range(100)]:
        history = arbiter_os.history_of(thread_id=name)
        assert [item.node for item in history.items()] == ["a", "b", "c"]
        assert {item.evaluation_results["canary"].feedback for item in history.items()} == {name}


@MODES
def test_update_state_in_a_subgraph_keeps_its_effect(mode: str) -> None:
    """The history of a paused subgraph survives an update of its state."""
    seen: list[int] = []

    def look(history: History) -> bool:
        seen.append(history.count(node="in1"))
        return True

    inner = StateGraph(State)
    inner.add_node("in1", Spy("in1"))
    inner.add_node("in2", Spy("in2"))
    inner.add_edge(START, "in1")
    inner.add_edge("in1", "in2")
    builder = StateGraph(State)
    builder.add_node("sub", inner.compile(interrupt_before=["in2"]))
    builder.add_edge(START, "sub")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("look", look, target_nodes=["in2"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    paused: Any = app.get_state(thread("1"), subgraphs=True).tasks[0].state
    app.update_state(paused.config, {"log": ["edited"]})
    run(app, None, thread("1"), mode=mode)
    assert seen == [1]


@MODES
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("kept", [None, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_all_runs_of_a_resumed_subgraph_count(
    mode: str, durability: Any, kept: bool | None, elsewhere: bool
) -> None:
    """Of those before the pause, of its siblings and of those after it, in this process or another."""
    saver = InMemorySaver()
    seen: list[tuple[int, float]] = []

    def asks(state: State) -> Any:
        return {"log": [interrupt("go on?")]}

    def graph() -> Any:
        inner: Any = StateGraph(State)
        for name, node in {
            "first": Spy("first"),
            "sibling": Spy("sibling"),
            "asks": asks,
            "last": Spy("last"),
        }.items():
            inner.add_node(name, node)
        inner.add_edge(START, "first")
        inner.add_edge("first", "sibling")
        inner.add_edge("first", "asks")
        inner.add_edge(["sibling", "asks"], "last")
        outer: Any = StateGraph(State)
        outer.add_node("team", inner.compile(checkpointer=kept))
        outer.add_node("after", Spy("after"))
        outer.add_edge(START, "team")
        outer.add_edge("team", "after")
        return outer.compile(checkpointer=saver)

    def look(history: History) -> bool:
        if history.item.node == "after":
            seen.append((history.count() - 1, cast(Any, history).tally("calls", "calls").amount))
        return True

    def app() -> Any:
        rules = BudgetChecker("calls", calls=100, per="thread"), Check("look", look)
        return governed(graph(), *rules)[1]

    def call(app: Any, given: Any) -> None:
        if mode == "sync":
            app.invoke(given, thread("t"), durability=durability)
        else:
            asyncio.run(app.ainvoke(given, thread("t"), durability=durability))

    begun = app()
    for _ in range(2):
        call(begun, {"log": []})
        begun = app() if elsewhere else begun
        call(begun, Command(resume="yes"))
    assert seen == [(5, 5), (11, 11)]
