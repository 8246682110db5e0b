"""The history: per run and per thread, exact totals, bounded memory, exports, forks."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import json
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC
from itertools import count, pairwise
from time import sleep
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from rich.console import Console

from arbiter import (
    AmbiguousHistoryError,
    ArbiterOS,
    ConfigurationError,
    EvaluationResult,
    EvaluationRouter,
    History,
    PolicyViolationError,
    Verdict,
)
from arbiter._weaving.channel import FACTS
from arbiter.checkers import BudgetChecker
from arbiter.errors import ArbiterWarning, UnknownInstructionError
from arbiter.history._facts import KEEP
from arbiter.history._past import NO_PAST
from arbiter.history._record import Record
from arbiter.history._recorder import ThreadLog, begin
from arbiter.instructions import GENERATE, TOOL_CALL, VERIFY
from tests.support import (
    MODES,
    Check,
    Judge,
    Route,
    Spy,
    State,
    allow,
    chain,
    gained,
    good,
    governed,
    quick,
    run,
    thread,
)


def loop(times: int, checkpointer: Any = None) -> Any:
    """One node that runs `times` times."""

    def work(state: Any) -> Any:
        return {"amount": state["amount"] + 1}

    def again(state: Any) -> str:
        return "work" if state["amount"] < times else "__end__"

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again)
    return builder.compile(checkpointer=checkpointer)


@MODES
def test_items_say_what_happened(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")), {"a": GENERATE})
    run(app, {"log": ["in"]}, mode=mode)
    a, b = arbiter_os.history.items()
    assert (a.node, a.instruction, a.status, a.attempt, a.namespace) == ("a", GENERATE, "completed", 1, "")
    assert a.input_state == {"log": ["in"]}
    assert a.output_state == {"log": ["a"]}
    assert a.timestamp.tzinfo is UTC
    assert a.duration >= 0
    assert b.instruction is None
    assert b.step == a.step + 1
    assert [len(step) for step in arbiter_os.history.entries] == [1, 1]
    with pytest.raises(AttributeError):
        a.status = "x"  # type: ignore[misc, assignment]


def test_last_and_count() -> None:
    arbiter_os = ArbiterOS()
    kinds = {"a": GENERATE, "b": VERIFY, "c": GENERATE}
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c")), kinds)
    app.invoke({"log": []})
    history = arbiter_os.history
    last = history.last(instruction="GENERATE")
    assert last is not None
    assert last.node == "c"
    assert history.last(instruction=GENERATE, node="a") == history.entries[0][0]
    assert history.last(instruction=TOOL_CALL) is None
    assert (history.count(), history.count(GENERATE), history.count(node="b")) == (3, 2, 1)
    assert history.count(GENERATE, "c") == 1
    assert history.count(GENERATE, "b") == 0
    for look in (history.last, history.count):
        with pytest.raises(UnknownInstructionError, match=r"got 'c'\..* If it is a node, write node='c'\."):
            look("c")


def test_every_shape_of_output_is_normalised() -> None:
    from langgraph.types import Command

    class Model(BaseModel):
        amount: int

    def returning(result: Any) -> Any:
        def body(state: Any) -> Any:
            return result

        return body

    shapes: list[tuple[Any, Any]] = [
        (None, {}),
        ({"amount": 1}, {"amount": 1}),
        (Command(update={"amount": 2}), {"amount": 2}),
        ([Command(update={"amount": 3}), {"log": ["x"]}], {"amount": 3, "log": ["x"]}),
        (Model(amount=4), {"amount": 4}),
        (Command(), {}),
        (Command(update=[("amount", 5)]), {"amount": 5}),
    ]
    for result, expected in shapes:
        arbiter_os = ArbiterOS()
        builder = StateGraph(State)
        builder.add_node("a", returning(result))
        builder.add_edge(START, "a")
        arbiter_os.govern(builder).invoke({"log": []})
        assert arbiter_os.history.entries[-1][-1].output_state == expected


@MODES
def test_runs_and_threads_are_kept_apart(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
    for name in ("1", "2", "1"):
        run(app, {"log": [name]}, thread(name), mode=mode)
    assert arbiter_os.history_of(thread_id="1").count() == 4
    assert arbiter_os.history_of(thread_id="2").count() == 2
    assert arbiter_os.history_of(thread_id="3").count() == 0
    assert arbiter_os.history_of(thread_id="3").entries == []
    # Reading a state runs nothing, and is no run.
    app.get_state(thread("2"))
    app.update_state(thread("2"), {"log": ["x"]}, as_node="b")
    assert arbiter_os.history_of(thread_id="2").count() == 2
    assert arbiter_os.history_of(thread_id="2").entries[0][0].input_state["log"][0] == "2"


@MODES
def test_runs_of_a_thread_without_a_checkpointer_share_no_superstep(mode: str) -> None:
    """Each of them begins again with the first superstep, so their items stood side by side."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    for amount in (1, 2):
        run(app, {"log": [], "amount": amount}, thread("1"), mode=mode)
    history = arbiter_os.history_of(thread_id="1")
    assert [[(item.node, item.input_state["amount"]) for item in step] for step in history] == [
        [("a", 1)],
        [("b", 1)],
        [("a", 2)],
        [("b", 2)],
    ]


@MODES
def test_two_forks_from_one_checkpoint_share_no_superstep(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    before_b = next(s for s in app.get_state_history(thread("1")) if s.next == ("b",))
    for _ in range(2):
        run(app, None, before_b.config, mode=mode)
    assert [[item.node for item in step] for step in arbiter_os.history_of(thread_id="1")] == [
        ["a"],
        ["b"],
        ["b"],
        ["b"],
    ]


def test_the_history_of_the_context_is_the_run_that_began_in_it() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    for name in ("1", "2", "1"):
        app.invoke({"log": [name]}, thread(name))
        assert arbiter_os.history.entries[-1][-1].input_state["log"][-1] == name


def test_one_thread_at_a_time_has_a_latest_run() -> None:
    """Wherever it ran: in an event loop of its own, in another task, or in another OS thread."""
    configs: list[Any] = [thread("1"), {}]
    for config in configs:
        arbiter_os = ArbiterOS()
        app: Any = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver() if config else None))
        for number in range(3):
            asyncio.run(app.ainvoke({"log": [str(number)]}, config))
            assert arbiter_os.history.entries[-1][-1].input_state["log"][-1] == str(number)
        worker = threading.Thread(target=app.invoke, args=({"log": ["3"]}, config))
        worker.start()
        worker.join()
        assert arbiter_os.history.entries[-1][-1].input_state["log"][-1] == "3"


WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "shield": asyncio.shield,
    "task": asyncio.create_task,
    "gather": asyncio.gather,
}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_server_never_shows_the_history_of_another_request(way: str, named: bool) -> None:
    """`arbiter_os.history` is the request's own run or an error that names `history_of`."""
    arbiter_os = ArbiterOS()

    async def slow(state: Any) -> Any:
        await asyncio.sleep(0.001)
        return {"amount": state["amount"]}

    app = arbiter_os.govern(chain(slow, Spy("b"), checkpointer=InMemorySaver() if named else None))

    async def request(number: int) -> None:
        config: Any = thread(str(number)) if named else None
        await asyncio.sleep(0.001 * (number % 3))
        await WAYS[way](app.ainvoke({"log": [], "amount": number}, config))
        if named:
            own = arbiter_os.history_of(thread_id=str(number))
            assert own.entries[0][0].input_state["amount"] == number
        with pytest.raises(AmbiguousHistoryError, match=r"history_of\(thread_id="):
            _ = arbiter_os.history

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(20)))

    asyncio.run(serve())


@pytest.mark.parametrize("way", ["shield", "to_thread", "executor"])
def test_requests_whose_runs_do_not_overlap_never_see_each_other(way: str) -> None:
    """The run of the second request begins and ends between that of the first and its look at the history."""
    arbiter_os = ArbiterOS()
    app: Any = arbiter_os.govern(chain(Spy("a")))
    seen: list[Any] = []

    async def request(number: int, goes_on: asyncio.Event) -> None:
        state: Any = {"log": [], "amount": number}
        if way == "shield":
            await asyncio.shield(app.ainvoke(state))
        elif way == "to_thread":
            await asyncio.to_thread(app.invoke, state)
        else:
            await asyncio.get_running_loop().run_in_executor(None, app.invoke, state)
        await goes_on.wait()
        try:
            seen.append(arbiter_os.history.entries[0][0].input_state["amount"] == number)
        except AmbiguousHistoryError:
            seen.append("ambiguous")

    async def serve() -> None:
        goes_on = asyncio.Event()
        first = asyncio.create_task(request(1, goes_on))
        while (last := arbiter_os.history.last()) is None or last.status == "running":
            await asyncio.sleep(0.001)
        goes_on_at_once = asyncio.Event()
        goes_on_at_once.set()
        await asyncio.create_task(request(2, goes_on_at_once))
        goes_on.set()
        await first

    asyncio.run(serve())
    assert seen == ["ambiguous", "ambiguous"]


@pytest.mark.parametrize("before", ["run", "run and state"])
def test_a_run_in_a_copy_of_the_context_is_newer_than_that_before_it(before: str) -> None:
    arbiter_os = ArbiterOS()
    app: Any = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))

    def latest() -> Any:
        return arbiter_os.history.entries[0][0].input_state["amount"]

    for number in (0, 10):
        app.invoke({"amount": number}, thread("1"))
        if before == "run and state":
            app.get_state(thread("1"))
        assert latest() == number
        for further in (number + 1, number + 2):
            asyncio.run(app.ainvoke({"amount": further}, thread(str(further))))
            assert latest() == further

    async def inside() -> None:
        await app.ainvoke({"amount": 20}, thread("1"))
        await asyncio.create_task(app.ainvoke({"amount": 21}, thread("2")))
        assert latest() == 21
        waiting = asyncio.Event()

        async def aside() -> None:
            await waiting.wait()
            await app.ainvoke({"amount": 23}, thread("3"))

        task = asyncio.create_task(aside())
        await app.ainvoke({"amount": 22}, thread("1"))
        waiting.set()
        await task
        assert latest() == 22, "a task that was begun before a run does not hide it"

    asyncio.run(inside())


@pytest.mark.parametrize("way", ["own", "shield", "to_thread"])
def test_a_run_at_the_start_of_a_server_does_not_hide_those_of_its_requests(way: str) -> None:
    """Each request inherits the context in which it ran."""
    arbiter_os = ArbiterOS()
    app: Any = arbiter_os.govern(chain(Spy("a")))
    seen: list[Any] = []

    def look() -> Any:
        try:
            return arbiter_os.history.entries[0][0].input_state["amount"]
        except AmbiguousHistoryError:
            return "ambiguous"

    async def request(number: int) -> None:
        if way == "own":
            await app.ainvoke({"amount": number})
            assert await asyncio.to_thread(look) == number
        elif way == "shield":
            await asyncio.shield(app.ainvoke({"amount": number}))
        else:
            await asyncio.to_thread(app.invoke, {"amount": number})
        seen.append(look())

    async def serve() -> None:
        await app.ainvoke({"amount": 0})
        assert await asyncio.create_task(asyncio.to_thread(look)) == 0
        for number in (1, 2):
            await asyncio.create_task(request(number))

    app.invoke({"amount": -1})
    asyncio.run(serve())
    assert seen == ([1, 2] if way == "own" else ["ambiguous"] * 2)


def test_a_server_that_awaits_a_graph_in_its_own_task_sees_its_own_run() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a")))

    async def request(number: int) -> None:
        await app.ainvoke({"log": [], "amount": number})
        assert arbiter_os.history.entries[0][0].input_state["amount"] == number

    async def serve() -> None:
        await asyncio.gather(*(request(number) for number in range(20)))

    asyncio.run(serve())


def test_threads_that_ran_longest_ago_are_forgotten_first() -> None:
    """`keep_threads` bounds what stays in memory. Asking for a forgotten thread warns."""
    arbiter_os = ArbiterOS(keep_threads=3)
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    for name in ("0", "1", "2", "0", "3", "4"):
        app.invoke({"log": []}, thread(name))
    assert [arbiter_os.history_of(thread_id=name).count() for name in ("0", "3", "4")] == [2, 1, 1]
    with pytest.warns(ArbiterWarning, match="keep_threads=3") as caught:
        assert arbiter_os.history_of(thread_id="1").count() == 0
    assert [each.filename for each in caught] == [__file__]
    with pytest.raises(ConfigurationError, match="keep_threads"):
        ArbiterOS(keep_threads=0)


@pytest.mark.lengthy
def test_memory_use_is_bounded() -> None:
    """Neither a loop of denials nor many short threads keep more than `keep` and `keep_threads` allow."""

    class Large(str):
        __slots__ = ("__weakref__",)

    def first(state: Any) -> Any:
        return {}

    def second(state: Any) -> Any:
        raise AssertionError("it is denied")

    alive: weakref.WeakSet[Large] = weakref.WeakSet()
    arbiter_os = ArbiterOS(keep=5, keep_threads=4)
    arbiter_os.add_policy_checker(Check("no", lambda h: h.entries[-1][-1].node != "second"))
    app = arbiter_os.govern(chain(first, second))

    def once(number: int) -> None:
        text = Large(f"text {number}")
        alive.add(text)
        with pytest.raises(PolicyViolationError):
            app.invoke({"log": [text]}, thread(str(number) if number < 30 else "one"))

    for number in range(60):
        once(number)
    gc.collect()
    assert len(alive) <= 5 + 4


@pytest.mark.lengthy
@MODES
def test_items_of_a_run_without_a_thread_go_when_the_next_one_begins(mode: str) -> None:
    """At once: they do not wait for Python's search for cycles."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", allow))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    run(app, {"log": []}, mode=mode)
    assert gained(Record, lambda: run(app, {"log": []}, mode=mode), times=5) <= 2


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_forgotten_thread_goes_at_once(mode: str, is_saved: bool) -> None:
    """In a large process, Python searches for cycles so seldom that gigabytes of states would wait for it."""
    arbiter_os = ArbiterOS(keep_threads=2)
    arbiter_os.add_policy_checker(Check("fine", allow))
    arbiter_os.add_evaluator(Judge("quality", good))
    arbiter_os.add_policy_router(EvaluationRouter("router", "quality", "b"))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver() if is_saved else None))
    threads = iter(range(100))

    def once() -> None:
        run(app, {"log": []}, thread(str(next(threads))), mode=mode)
        arbiter_os.drain(5)

    for _ in range(3):
        once()
    assert gained(Record, once, times=5) <= 0


@pytest.mark.lengthy
def test_an_arbiter_of_one_request_goes_at_once() -> None:
    graph = chain(Spy("a"), Spy("b"))

    def once() -> None:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("fine", allow))
        arbiter_os.execute({"log": []}, graph, thread("one"))

    once()
    assert gained(Record, once, times=5) <= 0
    assert gained(ThreadLog, once, times=5) <= 0


def test_runs_whose_thread_is_forgotten_meanwhile_go_on() -> None:
    """More run at once than `keep_threads` holds. Each still sees its own past, its denials and its history."""
    seen: list[tuple[str, int, int]] = []
    arbiter_os = ArbiterOS(keep=3, keep_threads=2)

    def look(history: History) -> bool:
        seen.append(
            (history.entries[-1][-1].input_state["log"][0], history.count(), len(cast(Any, history).denied()))
        )
        return history.entries[-1][-1].node != "d"

    arbiter_os.add_policy_checker(Check("look", look, on_deny="audit"))
    arbiter_os.add_policy_checker(Check("no", lambda h: h.entries[-1][-1].node != "d", on_deny="redirect:e"))

    def slow(name: str) -> Any:
        async def node(state: Any) -> Any:
            await asyncio.sleep(0.001)
            return {"log": [name]}

        node.__name__ = name
        return node

    app = arbiter_os.govern(chain(*map(slow, "abcde")))

    async def serve() -> list[Any]:
        return await asyncio.gather(
            *(app.ainvoke({"log": [str(number)]}, thread(str(number))) for number in range(20))
        )

    found = asyncio.run(serve())
    assert found == [{"log": [str(number), *"abce"]} for number in range(20)]
    for number in range(20):
        assert [counts for name, *counts in seen if name == str(number)] == [
            [1, 0],
            [2, 0],
            [3, 0],
            [4, 0],
            [5, 1],
        ]


def in_order(*parts: tuple[str, Any], **options: Any) -> Any:
    """A compiled graph of named nodes, some of which are graphs, one after another."""
    builder: Any = StateGraph(State)
    for name, node in parts:
        builder.add_node(name, node)
    names = [START, *(name for name, _ in parts)]
    for before, name in pairwise(names):
        builder.add_edge(before, name)
    return builder.compile(**options)


@MODES
def test_a_subgraph_that_keeps_its_state_stands_before_the_node_that_ran_it(mode: str) -> None:
    """In each run, within another subgraph too, and whatever is inside of it."""
    deep = in_order(("in1", Spy("in1")), ("in2", Spy("in2")), checkpointer=True)
    plain = in_order(("in3", Spy("in3")), ("deep", deep))
    keeps = in_order(("in4", Spy("in4")), ("plain", in_order(("in5", Spy("in5")))), checkpointer=True)
    graph = in_order(
        ("first", Spy("first")), ("outer", plain), ("keeps", keeps), checkpointer=InMemorySaver()
    )
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(graph)
    for _ in range(3):
        run(app, {"log": []}, thread("a"), mode=mode)
    known = arbiter_os.history_of(thread_id="a")
    once = ["first", "in3", "in1", "in2", "deep", "outer", "in4", "in5", "plain", "keeps"]
    assert [item.node for item in known.items()] == 3 * once


@MODES
def test_a_subgraph_that_keeps_its_state_stands_before_its_node_also_if_it_paused(mode: str) -> None:
    """Here and in another process that resumes it."""

    def asks(state: State) -> Any:
        interrupt("?")
        return {"log": ["asks"]}

    saver = InMemorySaver()
    inner = in_order(("in1", Spy("in1")), ("asks", asks), ("in2", Spy("in2")), checkpointer=True)
    graph = in_order(("sub", inner), ("last", Spy("last")), checkpointer=saver)
    arbiter_os, app = governed(graph, Check("all", allow))
    elsewhere, again = governed(graph, Check("all", allow))
    once = ["in1", "asks", "in2", "sub", "last"]
    for _ in range(2):
        run(app, {"log": []}, thread("a"), mode=mode)
        run(app, Command(resume="yes"), thread("a"), mode=mode)
    assert [item.node for item in arbiter_os.history_of(thread_id="a").items()] == 2 * once
    run(app, {"log": []}, thread("a"), mode=mode)
    run(again, Command(resume="yes"), thread("a"), mode=mode)
    assert [item.node for item in elsewhere.history_of(thread_id="a").items()][-5:] == once


@pytest.mark.parametrize("passes", [0, -1])
def test_the_order_of_a_history_does_not_depend_on_the_clock(passes: int) -> None:
    ticks = count(1_000_000, passes)
    inner = in_order(("in1", Spy("in1")), ("in2", Spy("in2")), checkpointer=True)
    arbiter_os = ArbiterOS(clock=lambda: float(next(ticks)))
    app = arbiter_os.govern(in_order(("sub", inner), ("last", Spy("last")), checkpointer=InMemorySaver()))
    for _ in range(2):
        app.invoke({"log": []}, thread("a"))
    known = arbiter_os.history_of(thread_id="a")
    assert [item.node for item in known.items()] == 2 * ["in1", "in2", "sub", "last"]


def test_a_history_has_all_nodes_whatever_their_names() -> None:
    """A part of a namespace that is a number is usually that of a call."""
    inner = in_order(("2", Spy("2")), ("3", Spy("3")), checkpointer=True)
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(in_order(("1", inner), ("4", Spy("4")), checkpointer=InMemorySaver()))
    app.invoke({"log": []}, thread("a"))
    assert [item.node for item in arbiter_os.history_of(thread_id="a").items()] == ["2", "3", "1", "4"]


def test_a_subgraph_whose_node_is_no_longer_kept_stands_where_it_ran() -> None:
    """The node that ran it began first, so it is dropped first; that of another run is not taken for it."""
    inner = in_order(("in1", Spy("in1")), ("in2", Spy("in2")), checkpointer=True)
    arbiter_os = ArbiterOS(keep=7)
    app = arbiter_os.govern(in_order(("sub", inner), ("last", Spy("last")), checkpointer=InMemorySaver()))
    for _ in range(2):
        app.invoke({"log": []}, thread("a"))
    known = arbiter_os.history_of(thread_id="a")
    assert [item.node for item in known.items()] == ["in1", "in2", "last", "in1", "in2", "sub", "last"]


@MODES
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_run_whose_thread_is_forgotten_meanwhile_keeps_the_records_of_the_thread(
    mode: str, is_saved: bool
) -> None:
    """Earlier runs have filled the thread up to `keep`. Their records go first, as in a thread that is not
    forgotten, and their denials are there until they go."""

    def seen(keep_threads: int) -> list[object]:
        found: list[object] = []
        arbiter_os = ArbiterOS(keep=8, keep_threads=keep_threads)

        def b(state: Any) -> Any:
            if "last" in state["log"]:
                other = threading.Thread(
                    target=arbiter_os.execute, args=({"log": []}, graph, thread("other"))
                )
                other.start()
                other.join()
            return {"log": ["b"]}

        def d(state: Any) -> Any:
            nodes = [item.node for items in arbiter_os.history.entries for item in items]
            found.append((arbiter_os.history.count(), nodes))
            return {"log": ["d"]}

        def look(history: History) -> bool:
            found.append((history.count(), len(cast(Any, history).denied())))
            return history.entries[-1][-1].node != "c"

        graph = chain(Spy("d"))
        app = arbiter_os.govern(
            chain(Spy("a"), b, Spy("c"), d, checkpointer=InMemorySaver() if is_saved else None)
        )
        arbiter_os.add_policy_checker(Check("look", look, on_deny="redirect:d"))
        for name in ("first", "second", "last"):
            run(app, {"log": [name]}, thread("one"), mode=mode)
        return found

    assert seen(keep_threads=1) == seen(keep_threads=9)


def test_a_run_begins_while_its_thread_is_forgotten_and_another_run_of_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arbiter_os = ArbiterOS(keep_threads=1)
    arbiter_os.add_policy_checker(Check("look", lambda history: not cast(Any, history).denied()))
    running, ends, begins, goes_on = (threading.Event() for _ in range(4))

    def wait(state: Any) -> Any:
        if state["log"] == ["first"]:
            running.set()
            assert ends.wait(5)
        return {"log": ["wait"]}

    app = arbiter_os.govern(chain(wait))
    identify = ThreadLog.identify

    def slowly(log: ThreadLog, past: Any) -> None:
        identify(log, past)
        if running.is_set() and log.thread_id == "one":
            begins.set()
            assert goes_on.wait(5)

    monkeypatch.setattr(ThreadLog, "identify", slowly)
    outputs: list[Any] = []

    def serve(name: str) -> threading.Thread:
        server = threading.Thread(
            target=lambda: outputs.append(app.invoke({"log": [name]}, thread("one"))), daemon=True
        )
        server.start()
        return server

    first = serve("first")
    assert running.wait(5)
    second = serve("second")
    assert begins.wait(5)
    app.invoke({"log": []}, thread("other"))
    ends.set()
    first.join(5)
    goes_on.set()
    second.join(5)
    assert outputs == [{"log": ["first", "wait"]}, {"log": ["second", "wait"]}]


@pytest.mark.lengthy
def test_a_history_that_outlives_its_arbiter_can_be_asked_while_python_frees_it() -> None:
    """Python may search for cycles at any moment, also while the history holds its lock."""
    kept: list[Any] = []

    def keep(history: History) -> bool:
        kept.append(history)
        return True

    def serve() -> None:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("keep", keep))
        app = arbiter_os.govern(chain(Spy("a")))
        app.invoke({"log": []}, thread("one"))
        cycle: list[Any] = [arbiter_os, app]
        cycle.append(cycle)

    def ask(moment: int) -> None:
        denied = kept.pop().denied
        gc.set_threshold(gc.get_count()[0] + moment, *others)
        gc.enable()
        denied()

    first, *others = gc.get_threshold()
    for moment in range(20):
        gc.collect()
        gc.disable()
        try:
            serve()
            asking = threading.Thread(target=ask, args=(moment,), daemon=True)
            asking.start()
            asking.join(5)
        finally:
            gc.set_threshold(first, *others)
            gc.enable()
        assert not asking.is_alive()


@MODES
def test_history_inside_a_node_is_that_of_its_run(mode: str) -> None:
    arbiter_os = ArbiterOS()
    seen: list[list[str]] = []

    def look(state: Any) -> Any:
        seen.append([item.node for item in arbiter_os.history.items()])
        return {"log": ["look"]}

    run(arbiter_os.govern(chain(Spy("a"), look)), {"log": []}, mode=mode)
    assert seen == [["a", "look"]]


@MODES
@pytest.mark.parametrize("registered", [False, True])
def test_fork_has_the_history_of_its_own_past(registered: bool, mode: str) -> None:
    arbiter_os = ArbiterOS()
    if registered:
        arbiter_os.add_policy_checker(Check("fine", allow))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    before_b = next(s for s in app.get_state_history(thread("1")) if s.next == ("b",))
    run(app, None, before_b.config, mode=mode)
    if registered:
        assert [item.node for item in arbiter_os.history.items()] == ["a", "b", "c"]
        first_a = arbiter_os.history.entries[0][0]
        assert first_a.output_state == {"log": ["a"]}
    fork = app.update_state(before_b.config, {"log": ["edited"]})
    run(app, None, fork, mode=mode)
    if registered:
        assert [item.node for item in arbiter_os.history.items()] == ["a", "b", "c"]
    assert arbiter_os.history.entries[-1][-1].input_state["log"][:2] == ["a", "edited"]


def test_memory_is_bounded_and_totals_stay_exact() -> None:
    arbiter_os = ArbiterOS(keep=20)
    app = arbiter_os.govern(loop(100), {"work": GENERATE})
    app.invoke({"amount": 0}, {"recursion_limit": 200})
    assert len(list(arbiter_os.history.items())) == 20
    assert arbiter_os.history.count() == arbiter_os.history.count(GENERATE) == 100
    assert arbiter_os.history.entries[-1][-1].output_state == {"amount": 100}


@pytest.mark.lengthy
@pytest.mark.parametrize("keep", [1, 7, 1000])
def test_totals_are_exact_over_many_runs_and_forks_of_a_thread(keep: int) -> None:
    """Whenever somebody asks, and however little is kept."""
    arbiter_os = ArbiterOS(keep=keep)
    arbiter_os.add_policy_checker(Check("fine", allow))
    app = arbiter_os.govern(loop(30, InMemorySaver()), {"work": GENERATE})
    config: Any = {"recursion_limit": 99, **thread("1")}
    for number in range(1, 5):
        app.invoke({"amount": 0}, config)
        assert arbiter_os.history.count(node="work") == 30
        if number != 2:  # nobody asks in between
            assert arbiter_os.history_of(thread_id="1").count(GENERATE) == 30 * number
    earlier = [s for s in app.get_state_history(thread("1")) if s.next][9]
    app.invoke(None, app.update_state(earlier.config, {"amount": 25}) | {"recursion_limit": 99})
    more = arbiter_os.history_of(thread_id="1").count(GENERATE)
    if keep == 1000:  # else nobody knows any more what the fork shares
        assert more == 120 + 5
    app.invoke({"amount": 28}, config)
    assert arbiter_os.history_of(thread_id="1").count() == more + 2
    assert arbiter_os.history.count() == 2


@MODES
@pytest.mark.parametrize("keep", [2, 1000])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_totals_are_exact_after_pauses(restarts: int, nested: bool, keep: int, mode: str) -> None:
    """Siblings that were done before a pause count once, also in the process that resumes the run."""
    saver = InMemorySaver()

    def ask(state: State) -> State:
        interrupt("go on?")
        interrupt("really?")
        return {"log": ["ask"]}

    def process() -> tuple[ArbiterOS, Any]:
        builder: Any = StateGraph(State)
        for start, end in zip((START, "a", "b"), ("a", "b", "c"), strict=True):
            builder.add_node(end, Spy(end))
            builder.add_edge(start, end)
        for node, body in {"ask": ask, "d": Spy("d"), "e": Spy("e")}.items():
            builder.add_node(node, body)
            builder.add_edge("c", node)
        builder.add_node("f", Spy("f"))
        builder.add_edge(["ask", "d", "e"], "f")
        if nested:
            builder = StateGraph(State).add_node("sub", builder.compile()).add_edge(START, "sub")
        arbiter_os = ArbiterOS(keep=keep)
        arbiter_os.add_policy_checker(Check("fine", allow))
        return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=saver))

    arbiter_os, app = process()
    given: Any = {"log": []}
    for left in (2, 1, 0):
        result = run(app, given, thread("1"), mode=mode)
        for history in (arbiter_os.history, arbiter_os.history_of(thread_id="1")):
            assert [history.count(node=node) for node in "abcde"] == [1, 1, 1, 1, 1]
            assert history.count() == 6 + nested + (left == 0)
        if left and restarts >= left:
            arbiter_os, app = process()
        given = Command(resume="yes")
    assert sorted(result["log"]) == ["a", "ask", "b", "c", "d", "e", "f"]


@pytest.mark.lengthy
@pytest.mark.parametrize("keep", [1, 5, 100])
def test_a_run_that_others_of_its_thread_have_pushed_out_goes_on(keep: int) -> None:
    """Two runs of one thread at the same time, without a checkpointer."""
    arbiter_os = ArbiterOS(keep=keep)
    begun, go_on = threading.Event(), threading.Event()

    def work(state: State) -> Any:
        if state.get("amount") == 3:
            begun.set()
            assert go_on.wait(60)
        return {"amount": state.get("amount", 0) + 1}

    def again(state: Any) -> str:
        return END if state["amount"] in (90, 190) else "work"

    builder: Any = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again, ["work", END])
    app = arbiter_os.govern(builder.compile())
    config: Any = {"recursion_limit": 200, **thread("1")}

    def run_first() -> None:
        app.invoke({"amount": 0}, config)

    first = threading.Thread(target=run_first)
    first.start()
    assert begun.wait(60)
    assert app.invoke({"amount": 100}, config)["amount"] == 190
    go_on.set()
    first.join()
    assert arbiter_os.history_of(thread_id="1").count() == 180
    assert len(list(arbiter_os.history_of(thread_id="1").items())) == keep


def test_checkpoint_does_not_grow_with_the_run_and_totals_are_exact() -> None:
    seen: list[int] = []

    def look(history: History) -> bool:
        seen.append(history.count(node="work"))
        assert len(history.entries) <= KEEP + 1
        return True

    arbiter_os = ArbiterOS(facts=10)
    arbiter_os.add_policy_checker(Check("look", look))
    saver = InMemorySaver()
    app = arbiter_os.govern(loop(40, saver), {"work": GENERATE})
    app.invoke({"amount": 0}, {"recursion_limit": 99, **thread("1")})
    assert seen == list(range(1, 41))
    saved = saver.get_tuple(thread("1"))
    assert saved is not None
    value = saved.checkpoint["channel_values"][FACTS]
    assert len(value["facts"]) == 10
    assert value["nodes"] == {"work": 40}
    json.dumps(value)


@MODES
def test_facts_never_show(mode: str) -> None:
    """Not in outputs, streams, states or schemas; and with nothing registered, not even in the checkpoint."""
    for registered in (False, True):
        saver = InMemorySaver()
        arbiter_os = ArbiterOS()
        if registered:
            arbiter_os.add_policy_checker(Check("fine", allow))
        app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
        output = run(app, {"log": []}, thread("1"), mode=mode)
        chunks = list(
            app.stream(
                {"log": []}, thread("2"), stream_mode=["values", "updates", "debug", "checkpoints", "tasks"]
            )
        )
        shown = [
            output,
            chunks,
            app.get_state(thread("1")),
            app.get_input_jsonschema(),
            app.get_output_jsonschema(),
        ]
        assert FACTS not in str(shown)
        saved = saver.get_tuple(thread("1"))
        assert saved is not None
        assert (FACTS in saved.checkpoint["channel_values"]) is registered


def test_exports() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", allow))
    arbiter_os.add_evaluator(Judge("good", lambda h: EvaluationResult(0.5, True, "ok", {"x": float("nan")})))
    arbiter_os.add_evaluator(Judge("broken", lambda h: 1 / 0))

    def odd(state: Any) -> Any:
        return {"log": [AIMessage("hi"), object(), b"\x00", "\ud800", {1: {2}}, float("inf")]}

    arbiter_os.govern(chain(Spy("a"), odd), {"a": GENERATE}).invoke({"log": []})
    dicts = arbiter_os.history.to_dicts()
    assert [(d["superstep"], d["node"], d["instruction"]) for d in dicts] == [
        (1, "a", "CognitiveCore.GENERATE"),
        (2, "odd", None),
    ]
    assert dicts[0]["check_policy_results"] == {"fine": {"kind": "allow", "reason": ""}}
    assert dicts[0]["evaluation_results"]["good"]["score"] == 0.5
    assert "ZeroDivisionError" in dicts[0]["evaluation_errors"]["broken"]
    lines = arbiter_os.history.to_jsonl().splitlines()
    assert [json.loads(line) for line in lines] == dicts
    lines[1].encode("utf-8")


def test_half_a_character_in_a_text_of_a_rule_or_an_error_leaves_a_line_that_a_file_takes() -> None:
    """Models and tools write such texts: an emoji that was cut."""
    half, shown = "half \ud83d", "half \\ud83d"

    def broken(_: History) -> Any:
        raise ValueError(half)

    def work(state: Any) -> Any:
        raise ValueError(half)

    arbiter_os, app = governed(
        chain(Spy("a"), work),
        Check("says", lambda _: Verdict.deny(half), target_nodes=["a"], on_deny="audit"),
        Judge("told", lambda _: EvaluationResult(0.5, True, half)),
        Judge("broken", broken),
        Route("lost", lambda h, _: broken(h)),
    )
    with pytest.raises(ValueError, match="half"):
        app.invoke({"log": []})
    first, second = arbiter_os.history.to_dicts()
    json.dumps(first, ensure_ascii=False).encode()
    json.dumps(second, ensure_ascii=False).encode()
    assert first["check_policy_results"]["says"]["reason"] == shown
    assert first["evaluation_results"]["told"]["feedback"] == shown
    assert first["evaluation_errors"] == {"broken": f"ValueError: {shown}"}
    assert first["errors"]["router lost"].startswith(f"ValueError: {shown}")
    assert second["error"] == f"ValueError: {shown}"
    assert arbiter_os.history.to_jsonl().encode()


class NoTextError(Exception):
    pass


class NoText:
    def __str__(self) -> str:
        raise NoTextError

    __repr__ = __str__


class NoDump:
    def model_dump(self) -> Any:
        raise NoTextError


class NoFields(dict[str, int]):
    def __iter__(self) -> Any:
        raise NoTextError

    items = keys = values = __iter__


class NoClass:
    @property  # type: ignore[misc]  # a proxy's
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NoTextError


class NoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise NoTextError


def _endless() -> list[Any]:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    return cycle


ODD: dict[str, Callable[[], Any]] = {
    "a number of 5,000 digits": lambda: [10**5000, -(10**5000)],
    "such a number as a key": lambda: {10**5000: 1},
    "a key that has no text": lambda: {NoText(): 1},
    "such a key in a tuple": lambda: {(1, NoText()): 1},
    "no text": NoText,
    "no dump": NoDump,
    "no fields": lambda: NoFields(a=1),
    "no class": NoClass,
    "no attributes": NoAttributes,
    "a list that holds itself": _endless,
    "no number": lambda: [float("nan"), float("inf")],
    "half a character": lambda: {"\ud800": "\ud800"},
}


@pytest.mark.parametrize("made", ODD.values(), ids=ODD.keys())
def test_one_odd_value_keeps_nothing_from_being_exported_and_printed(made: Callable[[], Any]) -> None:
    arbiter_os = ArbiterOS()

    def odd(state: Any) -> Any:
        return {"log": [made(), "beside it"]}

    arbiter_os.govern(chain(odd, Spy("next"))).invoke({"log": []})
    history = arbiter_os.history
    dicts = history.to_dicts()
    assert [json.loads(line) for line in history.to_jsonl().splitlines()] == dicts
    assert dicts[0]["output_state"]["log"][1] == dicts[1]["input_state"]["log"][1] == "beside it"
    console = Console(width=80, record=True, file=io.StringIO())
    history.pprint(console)
    assert "beside it" in console.export_text()
    assert "beside it" in history._repr_html_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "made", [lambda: list(range(1_000_000)), lambda: {str(n): n for n in range(300_000)}]
)
def test_of_a_very_large_state_the_beginning_is_exported(made: Callable[[], Any]) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": [made()]})
    with quick(2):
        large: Any = json.loads(arbiter_os.history.to_jsonl())["input_state"]["log"][0]
    assert 99_000 < len(large) <= 100_000
    assert f"{len(made()) - len(large) + 1:,} more" in str(large)[-200:]


def test_pprint_prints_a_real_run() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", good))
    app = arbiter_os.govern(chain(Spy("a", text="[/red] \x1b[31m")), {"a": GENERATE})
    app.invoke({"log": []})
    console = Console(width=80, record=True, file=io.StringIO())
    arbiter_os.history.pprint(console)
    text = console.export_text()
    assert "╔═══ SuperStep 1 ═══╗" in text
    assert "[1.1] GENERATE" in text
    assert "✓ quality: score=1.00 - good" in text
    assert "[/red]" in text
    assert "\x1b" not in text
    assert "SuperStep" in arbiter_os.history._repr_html_()  # pyright: ignore[reportPrivateUsage]  # as notebooks call it


@pytest.mark.parametrize("how", ["shallow", "deep", "digest"])
def test_snapshots(how: Any) -> None:
    items = ["one"]

    def a(state: Any) -> Any:
        return {"log": items}

    def b(state: Any) -> Any:
        items.append("two")
        return {}

    arbiter_os = ArbiterOS(snapshot=how)
    arbiter_os.govern(chain(a, b)).invoke({"log": []})
    kept = arbiter_os.history.entries[0][0].output_state["log"]
    if how == "digest":
        assert isinstance(kept, str)
        assert len(kept) == 32
    else:
        assert kept == (["one", "two"] if how == "shallow" else ["one"])


@pytest.mark.lengthy
@given(
    keep=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from(["run", "new", "share"]), st.integers(0, 9)), max_size=60),
)
def test_totals_are_exact_however_little_is_kept(keep: int, steps: list[tuple[str, int]]) -> None:
    """Runs of one thread, side by side, of which some share what the others have: forks."""
    log = ThreadLog("t", keep)
    runs = [log.new_run(1, NO_PAST)]
    added: list[list[Record]] = [[]]
    for number, (what, which) in enumerate(steps):
        at = which % len(runs)
        if what == "run":
            runs.append(log.new_run(1, NO_PAST))
            added.append([])
            continue
        record = Record(f"id {number}", f"node {which % 3}", None, number, "", 0.0)
        if what == "new":
            log.add(runs[at], record)
        else:
            others = [known for known in log.by_id.values() if known not in runs[at].records]
            if not others:
                continue
            record = others[which % len(others)]
            log.share(runs[at], record)
        added[at].append(record)
        assert len(log.by_id) <= sum(len(each.records) for each in runs) == log.size <= keep
        for each, records in zip(runs, added, strict=True):
            of_run = Counter(record.node for record in records)
            assert {name: each.history().count(node=name) for name in of_run} == of_run
            assert each.history().count() == len(records)
        ever = {id(record): record for records in added for record in records}
        of_thread = Counter(record.node for record in ever.values())
        assert {name: log.history().count(node=name) for name in of_thread} == of_thread
        assert log.history().count() == len(ever)


@pytest.mark.lengthy
@pytest.mark.parametrize("keep", [1, 3, 1000])
def test_retries_of_siblings_are_counted_once_however_little_is_kept(keep: int) -> None:
    """They push out one another's records between two attempts."""
    failed: Counter[str] = Counter()

    def work(state: Any) -> Any:
        failed[state["key"]] += 1
        if failed[state["key"]] < 3:
            raise ValueError("again")
        return {"log": [state["key"]]}

    def send(state: State) -> list[Send]:
        return [Send("work", {"key": key}) for key in state.get("log", [])]

    builder: Any = StateGraph(State)
    retry = RetryPolicy(initial_interval=0.0001, max_interval=0.001, jitter=False, retry_on=ValueError)
    builder.add_node("work", work, retry_policy=retry)
    builder.add_conditional_edges(START, send, ["work"])
    arbiter_os = ArbiterOS(keep=keep)
    app = arbiter_os.govern(builder.compile(), {"work": GENERATE})
    pause = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(1, 21):
            keys = [f"{number}/{at}" for at in range(12)]
            assert app.invoke({"log": keys}, thread("t")) == {"log": [*keys, *keys]}
            assert arbiter_os.history.count(GENERATE) == 12
            assert arbiter_os.history_of(thread_id="t").count(node="work") == 12 * number
    finally:
        sys.setswitchinterval(pause)
    kept = list(arbiter_os.history_of(thread_id="t").items())
    assert len(kept) == min(keep, 240)
    assert {(item.status, item.attempt) for item in kept} == {("completed", 3)}


def test_records_pushed_out_by_siblings_leave_the_index() -> None:
    """Also if that happens while one of them begins again."""

    class Index(dict[str, Record]):
        def get(self, key: str, default: Any = None) -> Any:
            found = super().get(key, default)
            if key == "again" and "other" not in log.unfinished and "other" not in self:
                start("other")
            return found

    def start(name: str) -> Record:
        return begin(run_, name, "node", None, 1, "", 0.0, ())

    log = ThreadLog("t", 1)
    run_ = log.new_run(1, NO_PAST)
    start("again").status = "failed"
    log.by_id = Index(log.by_id)
    assert start("again").attempt == 2
    for number in range(5):
        start(f"later {number}")
    assert list(log.by_id) == ["later 4"] == [record.id for record in run_.records]
    assert run_.history().count() == log.history().count() == 7


@pytest.mark.lengthy
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="others lay out instances in their own way")
def test_a_record_has_no_dict_of_its_own() -> None:
    """Also where nothing was registered for the steps before, so that theirs have fewer attributes."""
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(loop(200))
    app.invoke({"amount": 0}, {"recursion_limit": 300})
    arbiter_os.add_policy_checker(Check("fine", allow))
    arbiter_os.add_evaluator(Judge("judge", good))
    arbiter_os.add_policy_router(EvaluationRouter("r", "judge", "work"))
    app.invoke({"amount": 0}, {"recursion_limit": 300})
    records = [each for each in gc.get_objects() if type(each) is Record and each.routes == {"r": None}]
    assert len(records) >= 200
    for record in records:
        assert not any(type(part) is dict and "node" in part for part in gc.get_referents(record))


def test_an_empty_history_says_why_it_has_no_item() -> None:
    with pytest.raises(IndexError, match="no items, because no governed node has run"):
        _ = ArbiterOS().history.item
    with pytest.raises(IndexError, match="no governed node has run"):
        _ = History().item


def test_a_node_that_no_governed_graph_has_is_a_warning_with_the_nearest_name() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.govern(chain(Spy("verify")))
    arbiter_os.govern(chain(Spy("pay"))).invoke({"log": []}, thread("1"))
    for history in (
        arbiter_os.history,
        arbiter_os.history_of(thread_id="1"),
        arbiter_os.history_of(thread_id="2"),
    ):
        with pytest.warns(ArbiterWarning, match=r"a node 'payy'\. Did you mean 'pay'\? Nodes: pay, verify"):
            assert history.last(node="payy") is None
        with pytest.warns(ArbiterWarning, match="'payy'"):
            assert history.count(node="payy") == 0
        assert history.last(node="verify") is None
        assert history.count(node="verify") == 0
    assert copy.deepcopy(arbiter_os.history).last(node="payy") is None  # a copy knows no graph


def test_where_no_graph_is_governed_no_name_is_unknown() -> None:
    """A restored history, or one in a process without graphs."""
    assert ArbiterOS().history.last(node="pay") is None


@MODES
def test_a_process_that_resumes_again_knows_what_another_ran_between(mode: str) -> None:
    """Also that the other has done the node run that paused here."""
    saver = InMemorySaver()

    def asks(name: str) -> Any:
        def body(state: Any) -> Any:
            return {"log": [f"{name} {interrupt(name)}"]}

        body.__name__ = name
        return body

    def process() -> tuple[ArbiterOS, Any]:
        nodes = [asks(name) if name in "bdf" else Spy(name) for name in "abcdefg"]
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("fine", allow))
        return arbiter_os, arbiter_os.govern(chain(*nodes, checkpointer=saver))

    first, other = process(), process()
    for number, ((arbiter_os, app), ran) in enumerate(
        ((first, "ab"), (other, "abcd"), (first, "abcdef"), (other, "abcdefg"))
    ):
        sent: Any = Command(resume="x") if number else {"log": []}
        run(app, sent, thread("1"), mode=mode)
        ended = "interrupted" if ran[-1] in "bdf" else "completed"
        expected = [*((name, "completed") for name in ran[:-1]), (ran[-1], ended)]
        found = arbiter_os.history_of(thread_id="1")
        assert [(item.node, item.status) for item in found.items()] == expected
        assert found.count() == len(ran)


@pytest.mark.lengthy
def test_siblings_that_two_processes_answer_in_turns_are_one_item_each() -> None:
    saver = InMemorySaver()

    def process() -> tuple[ArbiterOS, Any]:
        builder: Any = StateGraph(State)

        def asks(state: Any) -> Any:
            return {"log": [interrupt(state.get("amount"))]}

        builder.add_node("work", asks)
        builder.add_node("last", asks)
        fan_out = [Send("work", {"amount": amount}) for amount in range(3)]

        def sends(_: Any) -> Any:
            return fan_out

        builder.add_conditional_edges(START, sends, ["work"])
        builder.add_edge("work", "last")
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("fine", allow))
        return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=saver))

    first, other = process(), process()
    first[1].invoke({"log": []}, thread("1"))
    for done, (arbiter_os, app) in enumerate((other, first, other, first), 1):
        sleep(0.02)  # so that each has its own time of beginning
        waiting = app.get_state(thread("1")).interrupts[0].id
        app.invoke(Command(resume={waiting: "yes"}), thread("1"))
        found = arbiter_os.history_of(thread_id="1")
        ended = [item.status for item in found.items()]
        assert ended == ["completed"] * done + ["interrupted"] * ((4 if done > 2 else 3) - done)
        assert found.count() == len(ended)


@pytest.mark.lengthy
def test_a_resume_adds_no_item_for_an_output_that_a_node_cache_served() -> None:
    def asks(state: Any) -> Any:
        return {"log": [interrupt("?")]}

    builder: Any = StateGraph(State)
    builder.add_node("a", Spy("a"))

    def key(_: Any) -> str:
        return "always"

    builder.add_node("cached", Spy("cached"), cache_policy=CachePolicy(key_func=key))
    for name, body in (("b", asks), ("c", Spy("c")), ("d", asks)):
        builder.add_node(name, body)
    for edge in pairwise((START, "a", "cached", "b", "c", "d")):
        builder.add_edge(*edge)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(BudgetChecker("budget", calls=99, per="thread"))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver(), cache=NodeCache()))
    for name, expected in (("1", ["a", "cached", "b", "c", "d"]), ("2", ["a", "b", "c", "d"])):
        sent: list[Any] = [{"log": []}, *[Command(resume="yes")] * 2]
        for each in sent:
            app.invoke(each, thread(name))
            sleep(0.02)
        assert [item.node for item in arbiter_os.history_of(thread_id=name).items()] == expected
