"""Exactly those inner parts of LangGraph that `arbiter._weaving` relies on, held on every supported release.

When one of these fails on a new LangGraph, the weaving has to be looked at before anything else.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.context import register_configure_hook
from langgraph._internal import _constants, _runnable
from langgraph._internal._config import recast_checkpoint_ns
from langgraph._internal._runnable import RunnableSeq
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.channels.last_value import LastValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.constants import START
from langgraph.errors import EmptyChannelError
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel, _retry
from langgraph.pregel._read import DEFAULT_BOUND, PregelNode
from langgraph.pregel._retry import _should_retry_on  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt

from arbiter._weaving.stores import held_items, loop_of
from tests.support import Spy, State, chain, run, thread


def compiled(*nodes: Any, **kwargs: Any) -> Any:
    return chain(*(nodes or (Spy("a"), Spy("b"))), **kwargs)


def test_a_task_runs_the_cached_node() -> None:
    """`PregelNode.node` is a cached property: what stands in the instance's `__dict__` is run."""
    graph = compiled(Spy("a"))
    graph.nodes["a"].__dict__["node"] = RunnableLambda(lambda s: None)
    assert graph.invoke({"log": ["in"]}) == {"log": ["in"]}


def test_node_copy_builds_the_sequence_anew() -> None:
    node: Any = compiled().nodes["a"]
    assert type(node) is cast(Any, PregelNode)
    marker: Any = cast(Any, RunnableLambda)(Spy("marker"))
    built: Any = node.copy({"bound": marker}).node
    assert type(built) is cast(Any, RunnableSeq)
    assert built.steps[0] is marker
    assert [type(step) for step in built.steps[1:]] == [type(writer) for writer in node.flat_writers]
    assert node.bound is not marker


def test_first_writer_is_the_update_then_the_control_then_the_edges() -> None:
    writers: Any = compiled().nodes["a"].flat_writers
    assert type(writers[0]) is ChannelWrite
    update, control, edge = writers[0].writes
    assert isinstance(update, ChannelWriteTupleEntry)
    assert update.mapper({"log": ["x"], "unknown": 1}) == [("log", ["x"])]
    assert isinstance(control, ChannelWriteTupleEntry)
    assert control.mapper(Command(goto="b")) == [("branch:to:b", None)]
    assert edge == ChannelWriteEntry("branch:to:b", None)


def test_channel_write_looks_at_nothing_of_a_config_but_send() -> None:
    sent: list[Any] = []
    write: Any = compiled().nodes["a"].flat_writers[0]
    config = {_constants.CONF: {_constants.CONFIG_KEY_SEND: sent.extend}}
    assert write._write({"log": ["x"]}, config) == {"log": ["x"]}
    assert sent == [("log", ["x"]), ("branch:to:b", None)]


def test_start_is_one_writer_without_a_body() -> None:
    start = compiled().nodes[START]
    assert start.bound is DEFAULT_BOUND
    assert [type(writer) for writer in start.flat_writers] == [ChannelWrite]


def test_graph_is_plain_attributes() -> None:
    """A shallow copy with other nodes and channels is a graph of its own."""
    import copy

    graph = compiled()
    other = copy.copy(graph)
    other.nodes, other.channels = dict(graph.nodes), dict(graph.channels)
    assert isinstance(other, Pregel)
    assert other.invoke({"log": []}) == {"log": ["a", "b"]}
    assert {name for name in graph.channels if name.startswith("branch:to:")} == {
        "branch:to:a",
        "branch:to:b",
    }


def test_sequence_config_of_a_step() -> None:
    """The callbacks of step N are a child of the node's with the tag seq:step:N; the writers share one
    `configurable` with the body."""
    seen: dict[str, Any] = {}

    def body(state: State, config: RunnableConfig) -> Any:
        callbacks: Any = config.get("callbacks")
        seen["conf"] = config.get("configurable", {})
        seen["tags"] = callbacks.tags
        return {"log": ["a"]}

    def branch(state: State, config: RunnableConfig) -> str:
        seen["same"] = config.get("configurable", {}) is seen["conf"]
        return "__end__"

    builder = StateGraph(State)
    builder.add_node("a", body)
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", branch)
    builder.compile().invoke({"log": []})
    assert seen["tags"] == ["seq:step:1"]
    assert seen["same"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_config_of_a_task(mode: str) -> None:
    seen: dict[str, Any] = {}

    def body(state: State, config: RunnableConfig) -> Any:
        seen.update(config)
        seen["log"] = seen["configurable"][_constants.CONFIG_KEY_READ]("log")
        return {"log": ["a"]}

    graph = compiled(body, checkpointer=InMemorySaver())
    if mode == "sync":
        graph.invoke({"log": []}, thread("1"))
    else:
        asyncio.run(graph.ainvoke({"log": []}, thread("1")))
    conf, metadata = seen["configurable"], seen["metadata"]
    assert conf[_constants.CONFIG_KEY_THREAD_ID] == "1"
    assert conf[_constants.CONFIG_KEY_CHECKPOINT_NS] == f"body:{conf[_constants.CONFIG_KEY_TASK_ID]}"
    assert callable(conf[_constants.CONFIG_KEY_SEND])
    assert seen["log"] == []
    assert conf[_constants.CONFIG_KEY_CHECKPOINTER] is not None
    info = conf[_constants.CONFIG_KEY_RUNTIME].execution_info
    assert (info.node_attempt, info.task_id) == (1, conf[_constants.CONFIG_KEY_TASK_ID])
    assert info.checkpoint_id
    assert (metadata["langgraph_node"], metadata["langgraph_step"]) == ("body", 1)
    assert metadata["langgraph_path"] == ("__pregel_pull", "body")
    assert conf.get(_constants.CONFIG_KEY_RESUMING) in (None, False)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_loop_of_a_task_makes_the_runtimes_of_later_tasks(mode: str) -> None:
    """The loop owns the function that schedules further tasks, and copies the runtime in its config for each
    task: first with an `execution_info` of the task's own, then with the attempt, of which the number is last."""
    copies: list[tuple[str, dict[str, Any]]] = []

    class Watched(Runtime[Any]):
        __slots__ = ()

        def override(self, **overrides: Any) -> Runtime[Any]:
            copies.append(("override", overrides))
            return super().override(**overrides)

        def patch_execution_info(self, **overrides: Any) -> Runtime[Any]:
            copies.append(("patch", overrides))
            return super().patch_execution_info(**overrides)

    def a(state: Any, config: RunnableConfig) -> None:
        call: Any = config.get("configurable", {})[_constants.CONFIG_KEY_CALL]
        shared = call.keywords["schedule_task"].__self__.config[_constants.CONF]
        known = shared[_constants.CONFIG_KEY_RUNTIME]
        assert type(known) is cast(Any, Runtime)
        values = {field.name: getattr(known, field.name) for field in fields(known)}
        shared[_constants.CONFIG_KEY_RUNTIME] = Watched(**values)

    graph = compiled(a, Spy("b"))
    if mode == "sync":
        graph.invoke({"log": []})
    else:
        asyncio.run(graph.ainvoke({"log": []}))
    (of_task, made), *patches = copies
    assert of_task == "override"
    assert type(made["execution_info"]) is ExecutionInfo
    assert [(how, *given) for how, given in patches] == [
        ("patch", "node_first_attempt_time"),
        ("patch", "node_attempt"),
    ]


def test_a_resume_says_so_and_its_answers_are_in_the_scratchpad() -> None:
    seen: list[Any] = []

    def body(state: State, config: RunnableConfig) -> Any:
        conf = config.get("configurable", {})
        pad = conf[_constants.CONFIG_KEY_SCRATCHPAD]
        seen.append((bool(conf.get(_constants.CONFIG_KEY_RESUMING)), conf[_constants.CONFIG_KEY_TASK_ID]))
        answer = interrupt("sure?")
        assert pad.resume[0] == answer
        assert isinstance(pad.resume, list)
        return {"log": [answer]}

    saver = InMemorySaver()
    graph = compiled(body, checkpointer=saver)
    graph.invoke({"log": []}, thread("1"))
    saved: Any = saver.get_tuple(thread("1"))
    ((task, channel, value),) = [w for w in saved.pending_writes if w[1] == _constants.INTERRUPT]
    assert (task, channel, [i.value for i in value]) == (seen[0][1], "__interrupt__", ["sure?"])
    assert graph.invoke(Command(resume="yes"), thread("1"))["log"] == ["yes"]
    assert [resuming for resuming, _ in seen] == [False, True]
    assert len({task for _, task in seen}) == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_graph_in_a_body_takes_a_number_and_then_restores_its_channels_in_the_same_context(
    mode: str,
) -> None:
    """Each graph has the next number, also one that only continues; to read a state takes none. The number is the
    last part of the namespace of its tasks, but for the first graph."""
    happened: list[Any] = []
    number: ContextVar[int | None] = ContextVar("number", default=None)

    class Restoring(LastValue[Any]):
        def from_checkpoint(self, checkpoint: Any) -> Restoring:
            happened.append(("restored", number.get()))
            return super().from_checkpoint(checkpoint)

    def inner(state: Any, config: RunnableConfig) -> None:
        happened.append(config.get("configurable", {})[_constants.CONFIG_KEY_CHECKPOINT_NS].split("|")[1:-1])

    graph = compiled(inner)
    graph.channels["score"] = Restoring(float, "score")

    def watch(config: RunnableConfig) -> None:
        conf: Any = config.get("configurable")
        pad = conf[_constants.CONFIG_KEY_SCRATCHPAD]

        def counter() -> int:
            number.set(pad.subgraph_counter())
            return cast(int, number.get())

        conf[_constants.CONFIG_KEY_SCRATCHPAD] = replace(pad, subgraph_counter=counter)

    def body(state: Any, config: RunnableConfig) -> None:
        watch(config)
        for _ in range(2):
            graph.invoke({"log": []})
            number.set(None)
        interrupt("?")
        graph.get_state(config)

    async def abody(state: Any, config: RunnableConfig) -> None:
        watch(config)
        for _ in range(2):
            await graph.ainvoke({"log": []})
            number.set(None)
        interrupt("?")
        await graph.aget_state(config)

    outer = compiled(body if mode == "sync" else abody, checkpointer=InMemorySaver())
    run(outer, {"log": []}, thread("1"), mode=mode)
    run(outer, Command(resume="yes"), thread("1"), mode=mode)
    first = [("restored", 0), [], ("restored", 1), ["1"]]
    assert happened == [*first, ("restored", 0), ("restored", 1), ("restored", None)]


def test_an_attempt_of_a_task_has_a_counter_of_calls_or_a_number_of_its_own() -> None:
    seen: list[Any] = []

    def body(state: State, config: RunnableConfig) -> Any:
        conf: Any = config.get("configurable")
        pad, info = conf[_constants.CONFIG_KEY_SCRATCHPAD], conf[_constants.CONFIG_KEY_RUNTIME].execution_info
        seen.append((pad.call_counter, info.node_attempt))
        if len(seen) == 1:
            raise OSError
        interrupt("?")

    builder: Any = StateGraph(State)
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=OSError)
    builder.add_node("body", body, retry_policy=policy).add_edge(START, "body")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke({"log": []}, thread("1"))
    graph.invoke(Command(resume="yes"), thread("1"))
    assert [attempt for _, attempt in seen] == [1, 2, 1]
    assert seen[1][0] is not seen[2][0]


def test_one_channel_instance_for_each_execution() -> None:
    made: list[object] = []

    class Counting(BaseChannel[Any, Any, Any]):
        @property
        def ValueType(self) -> Any:  # noqa: N802
            return dict

        @property
        def UpdateType(self) -> Any:  # noqa: N802
            return dict

        def from_checkpoint(self, checkpoint: Any) -> Counting:
            made.append(checkpoint is MISSING)
            return Counting(dict, self.key)

        def get(self) -> Any:
            return self

        def update(self, values: Any) -> bool:
            return False

    graph = compiled()
    graph.channels["counting"] = Counting(dict, "counting")
    graph.stream_channels = ["log"]
    for _ in range(2):
        graph.invoke({"log": []})
    assert made == [True, True]


def test_a_callback_manager_gets_the_handler_that_a_hook_returns() -> None:
    """LangChain asks each registered hook, by `get`, and adds a handler only once."""
    handler = BaseCallbackHandler()
    given: list[BaseCallbackHandler | None] = [handler]

    class Hook:
        def get(self) -> BaseCallbackHandler | None:
            return given[0]

    register_configure_hook(cast(Any, Hook()), inheritable=True)
    try:
        assert CallbackManager.configure([]).inheritable_handlers == [handler]
        assert CallbackManager.configure([handler]).handlers == [handler]
    finally:
        given[0] = None


def test_small_helpers() -> None:
    assert recast_checkpoint_ns("a:1|b:2") == "a|b"
    assert _should_retry_on(RetryPolicy(retry_on=ValueError), ValueError("x"))
    assert not _should_retry_on(RetryPolicy(retry_on=ValueError), KeyError("x"))
    touched: list[bool] = []
    retries: Any = cast(Any, _retry)
    scope = retries._TimedAttemptScope(lambda: touched.append(True), refresh_on="auto")
    retries._IdleProgressCallbackHandler(scope).on_custom_event()
    assert touched
    coerce: Any = cast(Any, _runnable).coerce_to_runnable
    assert coerce(Spy("y"), name="x", trace=False).name == "x"


def test_a_store_in_memory_holds_its_items_by_namespace() -> None:
    store = InMemoryStore()
    for key in ("a", "b", "a"):
        store.put(("some", "where"), key, {"n": key})
    assert [item.key for item in held_items(store, ("some", "where")) or ()] == ["a", "b"]
    assert held_items(store, ("elsewhere",)) == []
    assert loop_of(store) is None


async def test_an_async_store_has_its_event_loop() -> None:
    class Batched(AsyncBatchedBaseStore):
        async def abatch(self, ops: Any) -> Any:
            return []

        def batch(self, ops: Any) -> Any:
            return []

    assert loop_of(Batched()) is asyncio.get_running_loop()


def test_an_unwritten_channel_is_updated_at_each_superstep() -> None:
    """`update` is called with nothing at the end of it: then the facts that are no writes are taken."""
    told: list[int] = []

    class Told(LastValue[Any]):
        def update(self, values: Any) -> bool:
            told.append(len(values))
            return super().update(values)

        def is_available(self) -> bool:
            return True

        def from_checkpoint(self, checkpoint: Any) -> Any:
            new = Told(self.typ, self.key)
            new.value = None
            return new

    graph = compiled(Spy("a"), Spy("b"))
    graph.channels["told"] = Told(int, "told")
    graph.invoke({"log": []})
    assert told == [0, 0, 0]  # the input's, a, b


def test_an_empty_channel_is_saved_and_not_read() -> None:
    """`checkpoint()` decides what is saved, `get` what is read."""

    class Hidden(LastValue[Any]):
        def get(self) -> Any:
            raise EmptyChannelError

        def checkpoint(self) -> Any:
            return self.value

        def from_checkpoint(self, checkpoint: Any) -> Any:
            new = Hidden(self.typ, self.key)
            new.value = checkpoint
            return new

    read: list[Any] = []

    def node(state: State, config: RunnableConfig) -> State:
        conf: Any = config.get("configurable", {})
        conf[_constants.CONFIG_KEY_SEND]([("hidden", 1)])
        reader = conf[_constants.CONFIG_KEY_READ]
        assert list(reader.args[3].writes) == [("hidden", 1)]
        read.extend([reader("hidden"), reader(["hidden"]), reader(["hidden"], True)])
        return {}

    saver = InMemorySaver()
    graph = compiled(node, checkpointer=saver)
    graph.channels["hidden"] = Hidden(int, "hidden")
    for _ in range(2):
        graph.invoke({"log": []}, thread("1"))
    assert read == [None, {}, {}] * 2
    saved = saver.get_tuple(thread("1"))
    assert saved is not None
    assert saved.checkpoint["channel_values"]["hidden"] == 1


def test_the_reader_of_a_task_holds_the_channels() -> None:
    seen: list[Any] = []

    def node(state: State, config: RunnableConfig) -> State:
        read: Any = config.get("configurable", {})[_constants.CONFIG_KEY_READ]
        seen.append(read.args[1])
        return {}

    compiled(node).invoke({"log": ["x"]})
    assert seen[0]["log"].get() == ["x"]


@pytest.mark.parametrize("nested", [False, True])
def test_the_function_that_returns_a_resume_value_holds_the_pending_writes(nested: bool) -> None:
    """Behind `interrupt()`: the scratchpad's function holds the pending writes, or that of the graph around it does."""
    seen: list[Any] = []

    def node(state: State, config: RunnableConfig) -> State:
        pad: Any = config.get("configurable", {})[_constants.CONFIG_KEY_SCRATCHPAD]
        held: dict[str, Any] = {}
        for _ in range(1 + nested):
            hands_out = pad.get_null_resume
            cells = zip(hands_out.__code__.co_freevars, hands_out.__closure__, strict=True)
            held = {name: cell.cell_contents for name, cell in cells}
            pad = held["parent_scratchpad"]
        seen.append(held)
        interrupt("sure?")
        return {}

    graph: Any = compiled(node)
    if nested:
        graph.name = graph.__name__ = "team"
        graph = compiled(graph)
    graph.checkpointer = InMemorySaver()
    graph.invoke({"log": []}, thread("1"))
    graph.invoke(Command(resume="yes"), thread("1"))
    assert seen[0]["null_resume_write"] is None
    assert seen[1]["null_resume_write"][2] == "yes"
    (shown,) = [value for _, channel, value in seen[1]["pending_writes"] if channel == _constants.INTERRUPT]
    assert shown[0].value == "sure?"
