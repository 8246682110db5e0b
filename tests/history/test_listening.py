"""Listeners get every execution, node run and judgement, once each, and change nothing."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from arbiter import (
    ArbiterOS,
    HistoryItem,
    HistoryListener,
    NodeEvaluator,
    PolicyViolationError,
    RegistrationError,
)
from arbiter._weaving.channel import FACTS
from arbiter.history._packing import restore
from arbiter.listening import ExecutionInfo
from tests.support import MODES, Check, Judge, Route, Spy, State, add, allow, bad, chain, good, run, thread


class Diary(HistoryListener):
    """Notes every event, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.executions: list[ExecutionInfo] = []
        self.items: list[HistoryItem] = []

    def execution_began(self, execution: ExecutionInfo) -> None:
        self.told.append("execution began")

    def execution_ended(self, execution: ExecutionInfo) -> None:
        self.told.append(f"execution {execution.outcome}")
        self.executions.append(execution)

    def began(self, item: HistoryItem) -> None:
        self.told.append(f"{item.node} began")

    def ended(self, item: HistoryItem) -> None:
        self.told.append(f"{item.node} {item.status}")
        self.items.append(item)

    def judged(self, item: HistoryItem) -> None:
        self.told.append(f"{item.node} judged")


def listened(*contracts: Any, **options: Any) -> tuple[ArbiterOS, Diary]:
    diary = Diary()
    arbiter_os = ArbiterOS(listeners=[diary], **options)
    for contract in contracts:
        add(arbiter_os, contract)
    return arbiter_os, diary


@MODES
def test_a_listener_hears_of_an_execution_and_its_node_runs_in_order(mode: str) -> None:
    arbiter_os, diary = listened()
    run(arbiter_os.govern(chain(Spy("a"), Spy("b"))), {}, mode=mode)
    assert diary.told == [
        "execution began",
        "a began",
        "a completed",
        "b began",
        "b completed",
        "execution completed",
    ]


STARTS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda app, config: app.invoke({}, config),
    "stream": lambda app, config: list(app.stream({}, config)),
    "stream of values": lambda app, config: list(app.stream({}, config, stream_mode=["values", "custom"])),
    "stream with subgraphs": lambda app, config: list(app.stream({}, config, subgraphs=True)),
    "batch": lambda app, config: app.batch([{}], config),
    "with_config": lambda app, config: app.with_config(tags=["t"]).invoke({}, config),
    "a copy": lambda app, config: copy.copy(app).invoke({}, config),
    "ainvoke": lambda app, config: asyncio.run(app.ainvoke({}, config)),
    "astream": lambda app, config: asyncio.run(_all(app.astream({}, config))),
    "abatch": lambda app, config: asyncio.run(app.abatch([{}], config)),
    "astream_events": lambda app, config: asyncio.run(_all(app.astream_events({}, config, version="v2"))),
    "in a chain": lambda app, config: (app | RunnablePassthrough()).invoke({}, config),
}


async def _all(parts: Any) -> list[Any]:
    return [part async for part in parts]


@pytest.mark.parametrize("start", STARTS)
def test_an_execution_is_reported_once_however_it_is_started(start: str) -> None:
    arbiter_os, diary = listened()
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    STARTS[start](app, thread("t"))
    assert diary.told == ["execution began", "a began", "a completed", "execution completed"]
    (execution,) = diary.executions
    assert (execution.thread_id, execution.config["thread_id"]) == ("t", "t")
    assert execution.run_id


def test_a_governed_graph_inside_a_node_belongs_to_the_execution_around_it() -> None:
    arbiter_os, diary = listened()
    inner = arbiter_os.govern(chain(Spy("inner")))

    def calls(state: State) -> Any:
        inner.invoke({})
        return {}

    run(arbiter_os.govern(chain(calls)), {})
    assert diary.told == [
        "execution began", "calls began", "inner began", "inner completed", "calls completed", "execution completed",
    ]  # fmt: skip
    assert {item.execution for item in diary.items} == {diary.items[0].execution}


@MODES
def test_a_denial_a_failure_and_a_pause_are_reported_with_their_outcome(mode: str) -> None:
    arbiter_os, diary = listened(
        Check("judge", lambda history: history.item.input_state.get("amount", 0) < 5)
    )

    def breaks(state: State) -> Any:
        if state.get("amount") == 1:
            raise ValueError("broken")
        if state.get("amount") == 2:
            interrupt("really?")
        return {}

    app = arbiter_os.govern(chain(breaks, checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError):
        run(app, {"amount": 9}, thread("a"), mode=mode)
    with pytest.raises(ValueError, match="broken"):
        run(app, {"amount": 1}, thread("b"), mode=mode)
    run(app, {"amount": 2}, thread("c"), mode=mode)
    run(app, Command(resume="yes"), thread("c"), mode=mode)
    assert [part for part in diary.told if "began" not in part] == [
        "breaks denied", "execution denied", "breaks failed", "execution failed",
        "breaks interrupted", "execution paused", "breaks completed", "execution completed",
    ]  # fmt: skip
    assert diary.items[0].decision.policy == "judge"
    assert diary.items[0].decision.consequence == "raise"
    # A resume is another execution of the same run.
    assert diary.executions[2].run_id == diary.executions[3].run_id
    assert diary.executions[2].id != diary.executions[3].id


def test_a_run_resumed_by_another_arbiter_os_keeps_its_name() -> None:
    saver = InMemorySaver()

    def asks(state: State) -> Any:
        interrupt("really?")
        return {}

    first, diary = listened(Check("judge", allow))
    run(first.govern(chain(Spy("a"), asks, checkpointer=saver)), {}, thread("t"))
    second, later = listened(Check("judge", allow))
    run(second.govern(chain(Spy("a"), asks, checkpointer=saver)), Command(resume="yes"), thread("t"))
    assert diary.executions[0].run_id == later.executions[0].run_id


def test_each_attempt_of_a_retried_node_is_reported() -> None:
    arbiter_os, diary = listened()
    left = [1]

    def flaky(state: State) -> Any:
        if left.pop() if left else 0:
            raise ConnectionError("again")
        return {}

    builder: Any = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    builder.add_edge(START, "flaky")
    run(arbiter_os.govern(builder.compile()), {})
    assert diary.told[1:-1] == ["flaky began", "flaky failed", "flaky began", "flaky completed"]


def test_a_node_whose_edge_raises_has_failed_when_its_end_is_reported() -> None:
    arbiter_os, diary = listened(Check("judge", allow))

    def edge(state: State) -> str:
        raise RuntimeError("no way")

    builder: Any = StateGraph(State)
    builder.add_node("a", Spy("a"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", edge, ["a"])
    with pytest.raises(RuntimeError):
        run(arbiter_os.govern(builder.compile()), {})
    assert diary.told == ["execution began", "a began", "a failed", "execution failed"]


@MODES
def test_an_exception_of_an_edge_passes_as_it_was_even_if_it_has_no_text(mode: str) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def edge(state: State) -> str:
        raise MuteError

    arbiter_os, diary = listened(Check("judge", allow))
    builder: Any = StateGraph(State)
    builder.add_node("a", Spy("a"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", edge, ["a"])
    with pytest.raises(MuteError):
        run(arbiter_os.govern(builder.compile()), {}, mode=mode)
    assert diary.items[0].error == "MuteError: (its text raised RuntimeError)"


def test_a_stream_that_its_reader_leaves_is_closed() -> None:
    arbiter_os, diary = listened()
    for _ in arbiter_os.govern(chain(Spy("a"), Spy("b"))).stream({}):
        break
    assert diary.told[-1] == "execution closed"


def test_a_stream_that_is_open_at_the_end_of_its_loop_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """The loop also closed the stream inside it, which was being closed, and logged an error."""
    arbiter_os, diary = listened()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    kept: list[Any] = []

    async def leave() -> None:
        kept.append(stream := app.astream({}))
        await anext(stream)

    asyncio.run(leave())
    assert diary.told[-1] == "execution closed"
    assert not caplog.records


def test_a_stream_that_is_dropped_after_its_loop_was_closed_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the bare graph. `asyncio.run` closes streams before the loop, other callers may not."""
    app = listened()[0].govern(chain(Spy("a"), Spy("b")))
    kept: list[Any] = []
    problems: list[Any] = []

    async def leave() -> None:
        kept.append(stream := app.astream({}))
        await anext(stream)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    monkeypatch.setattr(sys, "unraisablehook", problems.append)
    kept.clear()
    gc.collect()
    assert not problems


@pytest.mark.parametrize("traced", ["", "ainvoke", "astream_events"])
@pytest.mark.parametrize("where", ["node", "edge"])
def test_a_cancellation_between_a_node_and_its_edges_is_reported(where: str, traced: str) -> None:
    """Also where a tracer follows the run: the node was recorded as completed, and no listener heard of its end."""
    arbiter_os, diary = listened()
    running: list[asyncio.Task[Any]] = []

    async def node(state: Any) -> Any:
        if where == "node":
            running[0].cancel()
        return {"log": ["a"]}

    async def edge(state: Any) -> str:
        running[0].cancel()
        await asyncio.sleep(60)
        return "b"

    builder: Any = StateGraph(State)
    builder.add_node("a", node).add_node("b", Spy("b")).add_edge(START, "a")
    builder.add_conditional_edges("a", edge, ["b"])
    app = arbiter_os.govern(builder.compile())
    config: Any = {"callbacks": [BaseCallbackHandler()]} if traced else {}

    async def start() -> None:
        if traced != "astream_events":
            await app.ainvoke({"log": []}, config)
        async for _ in app.astream_events({"log": []}, config, version="v2"):
            pass

    async def main() -> None:
        running.append(asyncio.create_task(start()))
        with pytest.raises(asyncio.CancelledError):
            await running[0]

    asyncio.run(main())
    assert diary.told == ["execution began", "a began", "a cancelled", "execution cancelled"]
    assert arbiter_os.history.item.status == "cancelled"


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("where", ["node", "edge"])
def test_a_node_that_was_cancelled_as_it_ended_and_runs_again_is_one_item(where: str, traced: bool) -> None:
    """Also if no listener is there."""
    arbiter_os = ArbiterOS()
    running: list[asyncio.Task[Any]] = []

    async def node(state: Any) -> Any:
        if where == "node" and len(running) == 1:
            running[0].cancel()
        return {"log": ["a"]}

    async def edge(state: Any) -> str:
        if where == "edge" and len(running) == 1:
            running[0].cancel()
            await asyncio.sleep(60)
        return END

    builder: Any = StateGraph(State)
    builder.add_node("a", node).add_edge(START, "a").add_conditional_edges("a", edge, [END])
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    config: Any = {**thread("1"), "callbacks": [BaseCallbackHandler()] if traced else []}

    async def main() -> None:
        running.append(asyncio.create_task(app.ainvoke({"log": []}, config)))
        with pytest.raises(asyncio.CancelledError):
            await running[0]
        assert arbiter_os.history_of(thread_id="1").item.status == "cancelled"
        running.append(asyncio.create_task(app.ainvoke(None, config)))
        assert await running[1] == {"log": ["a"]}

    asyncio.run(main())
    items = arbiter_os.history_of(thread_id="1").items()
    assert [(item.node, item.status, item.attempt) for item in items] == [("a", "completed", 2)]


@MODES
@pytest.mark.parametrize("several", [False, True])
def test_a_node_that_commands_the_graph_around_its_own_has_ended(several: bool, mode: str) -> None:
    """As an agent does that hands over to another one."""

    def leave(state: State) -> Any:
        command = Command(graph=Command.PARENT, update={"log": ["leave"]}, goto="other")
        return [command] if several else command

    outer = StateGraph(State).add_node("inner", chain(leave)).add_node("other", Spy("other"))
    arbiter_os, diary = listened(Judge("good", good))
    run(arbiter_os.govern(outer.add_edge(START, "inner")), {"log": []}, mode=mode)
    assert arbiter_os.drain(60)
    assert [told for told in diary.told if told.endswith("completed")] == [
        "leave completed",
        "inner completed",
        "other completed",
        "execution completed",
    ]
    assert diary.told.count("leave judged") == 1


def test_an_edge_that_is_interrupted_ends_its_node() -> None:
    arbiter_os, diary = listened()

    def edge(state: Any) -> str:
        raise KeyboardInterrupt

    builder: Any = StateGraph(State)
    builder.add_node("a", Spy("a")).add_edge(START, "a").add_conditional_edges("a", edge, ["a"])
    with pytest.raises(KeyboardInterrupt):
        arbiter_os.govern(builder.compile()).invoke({"log": []})
    assert diary.told == ["execution began", "a began", "a cancelled", "execution cancelled"]


@MODES
def test_an_edge_that_asks_pauses_its_node(mode: str) -> None:
    """The node runs again when the run is resumed, as the same item."""
    arbiter_os, diary = listened()

    def edge(state: Any) -> Any:
        return interrupt("Where to?")

    builder: Any = StateGraph(State).add_node("a", Spy("a")).add_node("b", Spy("b")).add_edge(START, "a")
    builder.add_conditional_edges("a", edge, ["b"])
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    assert diary.told[-2:] == ["a interrupted", "execution paused"]
    assert run(app, Command(resume="b"), thread("1"), mode=mode)["log"] == ["a", "b"]
    items = arbiter_os.history_of(thread_id="1").items()
    assert [(item.node, item.status, item.attempt) for item in items] == [
        ("a", "completed", 2),
        ("b", "completed", 1),
    ]


class Unclosable:
    """An iterator of a class of the user's, which nothing closes."""

    def __init__(self, chunks: Any) -> None:
        self.chunks = chunks

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.chunks)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self.chunks)


class Own(CompiledStateGraph[Any, Any, Any, Any]):
    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return Unclosable(super().stream(*args, **kwargs))

    def astream(self, *args: Any, **kwargs: Any) -> Any:
        return Unclosable(super().astream(*args, **kwargs))


@MODES
def test_a_graph_of_an_own_class_may_stream_what_cannot_be_closed(mode: str) -> None:
    arbiter_os, diary = listened()
    graph = chain(Spy("a"))
    graph.__class__ = Own
    assert run(arbiter_os.govern(graph), {}, mode=mode) == {"log": ["a"]}
    assert diary.told[-1] == "execution completed"


@MODES
def test_an_item_is_judged_when_its_last_evaluation_is_done_and_nothing_waits_for_it(mode: str) -> None:
    may_end = threading.Event()

    class Slow(NodeEvaluator):
        def evaluate(self, history: Any) -> Any:
            may_end.wait(60)
            return 0.5

    arbiter_os, diary = listened(Slow("slow"))
    run(arbiter_os.govern(chain(Spy("a"))), {}, mode=mode)
    assert "a judged" not in diary.told
    may_end.set()
    arbiter_os.drain(60)
    assert diary.told.count("a judged") == 1
    assert diary.items[0].evaluation_results["slow"].score == 0.5


def test_a_governed_function_is_an_execution_of_its_own() -> None:
    arbiter_os, diary = listened()
    assert arbiter_os.execute({}, Spy("step")) == {"log": ["step"]}
    assert diary.told == ["execution began", "step began", "step completed", "execution completed"]


@MODES
@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_a_listener_that_raises_is_logged_and_changes_nothing(
    kind: type[BaseException], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(HistoryListener):
        def began(self, item: HistoryItem) -> None:
            raise kind("oh")

        def execution_ended(self, execution: ExecutionInfo) -> None:
            raise kind("oh")

    arbiter_os = ArbiterOS(listeners=[Broken()])
    with caplog.at_level(logging.WARNING, "arbiter"):
        assert run(arbiter_os.govern(chain(Spy("a"))), {}, mode=mode) == {"log": ["a"]}
    assert f"listener Broken failed in 'began': {kind.__name__}: oh" in caplog.text
    assert arbiter_os.history.item.status == "completed"


def test_an_object_that_is_not_a_listener_is_refused() -> None:
    with pytest.raises(RegistrationError, match="expected a HistoryListener, got <function"):
        ArbiterOS().add_listener(bad)  # type: ignore[arg-type]


def test_a_listener_added_after_governing_hears_of_executions_too() -> None:
    arbiter_os, diary = ArbiterOS(), Diary()
    app = arbiter_os.govern(chain(Spy("a")))
    run(app, {})
    arbiter_os.add_listener(diary)
    run(app, {})
    assert diary.told == ["execution began", "a began", "a completed", "execution completed"]


def test_a_listener_added_twice_is_called_once() -> None:
    arbiter_os, diary = listened()
    arbiter_os.add_listener(diary)
    run(arbiter_os.govern(chain(Spy("a"))), {})
    assert diary.told.count("a began") == 1


def test_the_clock_of_the_arbiter_os_times_executions_and_items() -> None:
    arbiter_os, diary = listened(clock=lambda: 1000.0)
    run(arbiter_os.govern(chain(Spy("a"))), {})
    assert (diary.executions[0].began, diary.executions[0].ended) == (1000.0, 1000.0)
    assert diary.items[0].timestamp.timestamp() == 1000.0


@pytest.mark.lengthy
def test_a_graph_can_be_freed_while_its_history_is_kept() -> None:
    arbiter_os, _ = listened()
    app = arbiter_os.govern(chain(Spy("a")))
    app.invoke({})
    freed = weakref.ref(app)
    del app
    gc.collect()
    assert freed() is None
    last = arbiter_os.history.last()
    assert last is not None
    assert last.node == "a"


def test_a_run_that_began_without_listeners_does_not_take_the_name_of_the_one_before() -> None:
    saver, diary = InMemorySaver(), Diary()
    for listeners in ([diary], [], [diary]):
        arbiter_os = ArbiterOS(listeners=listeners)
        add(arbiter_os, Check("c", allow))
        app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=saver))
        app.invoke({}, thread("t"))
    assert diary.executions[0].run_id != diary.executions[1].run_id
    found: Any = saver.get_tuple(thread("t"))
    facts, _ = restore(found.checkpoint["channel_values"][FACTS])
    assert facts["run_id"] == diary.executions[1].run_id


def test_an_evaluation_that_no_policy_has_read_does_not_count_as_read() -> None:
    class Reads(Diary):
        def ended(self, item: HistoryItem) -> None:
            evaluations: Any = item.record.evaluations
            list(evaluations)  # done, as by the background
            self.told.append(",".join(item.read_results))

    reads = Reads()
    arbiter_os = ArbiterOS(listeners=[reads])
    add(arbiter_os, Judge("unread", bad))
    add(arbiter_os, Judge("read", bad))
    add(arbiter_os, Route("r", lambda history, _: history.item.evaluation_results.get("read") and None))
    arbiter_os.govern(chain(Spy("a"))).invoke({})
    assert reads.told[2] == "read"


def test_a_graph_is_deep_copied_without_its_listeners() -> None:
    """As a bare graph is copied. The listener of a ledger, with its locks, cannot be."""

    class Locked(Diary):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    def to_b(state: State) -> str:
        return "b"

    builder = StateGraph(State).add_node("a", Spy("a")).add_node("b", Spy("b")).add_edge(START, "a")
    builder.add_conditional_edges("a", to_b, ["b"])
    copied = copy.deepcopy(ArbiterOS(listeners=[Locked()]).govern(builder.compile()))
    assert {"a", "b"} <= {*copied.nodes}
