"""Where no callback handler listens, a governed node runs without the runs that LangGraph would open for
handlers. A body finds the same in its config as in the bare graph, and handlers that begin further inside get
the same events."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.config import get_config, get_store
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send
from typing_extensions import TypedDict

from arbiter import (
    ArbiterOS,
    Correction,
    CorrectionGate,
    History,
    PolicyChecker,
    PolicyRouter,
    ThresholdEvaluator,
)
from arbiter._lifecycle.runs import current_run
from tests.support import State, chain

VARIES = {"langgraph_checkpoint_ns", "checkpoint_ns"}
"""Holds the id of a task."""


class Listener(BaseCallbackHandler):
    """Begins to listen inside of a body."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **more: Any
    ) -> None:
        given: dict[str, Any] = more.get("metadata") or {}
        metadata = {key: value for key, value in given.items() if key not in VARIES}
        named = (more.get("name"), sorted(cast(list[str], more.get("tags") or [])), metadata)
        self.heard.append((*named, parent_run_id is None))


class OfModels(BaseCallbackHandler):
    """Does not see nodes."""

    @property
    def ignore_chain(self) -> bool:
        return True


class Number(TypedDict, total=False):
    n: int


class Allow(PolicyChecker):
    def check_before(self, history: Any) -> bool:
        return True


def looked_at(config: Any) -> Any:
    """The visible parts of a config that are the same in every run."""
    manager = config["callbacks"]
    assert isinstance(manager, CallbackManager | AsyncCallbackManager)
    assert isinstance(manager.parent_run_id, UUID)
    metadata = {key: value for key, value in config["metadata"].items() if key not in VARIES}
    known = {key: value for key, value in manager.metadata.items() if key not in VARIES}
    inherited = {key: value for key, value in manager.inheritable_metadata.items() if key not in VARIES}
    return (
        sorted(key for key in config if key != "run_id"),
        sorted(config["configurable"]),
        metadata,
        (known, inherited),
        (sorted(manager.tags), sorted(manager.inheritable_tags)),
        (manager.handlers, manager.inheritable_handlers),
        sorted(config.get("tags") or ()),
    )


def manager_of(config: Any) -> Any:
    return config["callbacks"]


def graph_of(listener: Listener, seen: list[Any], is_async: bool) -> Any:
    def noted(state: Number, config: RunnableConfig) -> dict[str, Any]:
        manager = manager_of(config)
        seen.append(looked_at(config))
        seen.append(looked_at(get_config()))
        inner: Any = cast(Any, RunnableLambda(lambda x: x)).with_config(run_name="inner", tags=["own"])
        inner.invoke(1, {**config, "callbacks": copy.copy(manager)})
        listening = manager.copy()
        listening.add_handler(listener)
        inner.invoke(1, {**config, "callbacks": listening})
        RunnableLambda(lambda x: x).invoke(1, {"callbacks": [listener], "run_name": "ambient"})
        return {"n": state.get("n", 0) + 1}

    async def anoted(state: Number, config: RunnableConfig) -> dict[str, Any]:
        seen.append(looked_at(config))
        manager = manager_of(config)
        listening = manager.copy()
        listening.add_handler(listener)
        await RunnableLambda(lambda x: x).ainvoke(1, {**config, "callbacks": listening, "run_name": "inner"})
        return {"n": state.get("n", 0) + 1}

    def path(state: Number, config: RunnableConfig) -> str:
        seen.append(("path", looked_at(config)))
        return "inside"

    def spread(state: Number, config: RunnableConfig) -> list[Send]:
        return [Send("sent", {"n": 5})]

    body: Callable[..., Any] = anoted if is_async else noted
    inside: Any = StateGraph(Number)
    inside.add_node("deep", body)
    inside.add_edge(START, "deep")
    inside.add_conditional_edges("deep", spread, ["sent"])
    inside.add_node("sent", lambda state: {})  # pyright: ignore[reportUnknownLambdaType]
    builder: Any = StateGraph(Number)
    builder.add_node("first", body, metadata={"of": "node"})
    builder.add_node("inside", inside.compile())
    builder.add_node("chained", RunnableLambda(lambda s: s) | RunnableLambda(body))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", path, ["inside"])
    builder.add_edge("inside", "chained")
    builder.add_edge("chained", END)
    return builder.compile()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ruled", [False, True], ids=["nothing", "ruled"])
@pytest.mark.parametrize(
    "config",
    [{}, {"tags": ["mine"], "metadata": {"user": "u"}, "run_name": "top"}, {"callbacks": [OfModels()]}],
    ids=["bare", "given", "models"],
)
def test_a_body_finds_the_config_that_it_would_find_ungoverned(
    config: Any, ruled: bool, is_async: bool
) -> None:
    found: list[Any] = []
    for governed in (False, True):
        listener, seen = Listener(), list[Any]()
        graph = graph_of(listener, seen, is_async)
        if governed:
            arbiter_os = ArbiterOS()
            if ruled:
                arbiter_os.add_policy_checker(Allow("allow"))
            graph = arbiter_os.govern(graph)
        output = asyncio.run(graph.ainvoke({"n": 0}, config)) if is_async else graph.invoke({"n": 0}, config)
        found.append((output, seen, listener.heard))
    assert found[0] == found[1]


def test_runs_opened_by_one_node_run_share_a_parent() -> None:
    """And another node run another."""
    parents: list[Any] = []

    def body(state: Number, config: RunnableConfig) -> dict[str, Any]:
        parents.append((manager_of(config).parent_run_id, manager_of(get_config()).parent_run_id))
        return {}

    builder: Any = StateGraph(Number)
    builder.add_sequence([("a", body), ("b", body)])
    builder.add_edge(START, "a")
    ArbiterOS().govern(builder.compile()).invoke({})
    (first, again), (second, _) = parents
    assert first == again != second


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_context_variables_set_by_a_body_stay_in_its_context(is_async: bool) -> None:
    found: list[str] = []

    def body(state: Number) -> dict[str, Any]:
        found.append(variable.get())
        variable.set("set")
        return {}

    async def abody(state: Number) -> dict[str, Any]:
        return body(state)

    builder: Any = StateGraph(Number)
    builder.add_sequence([("a", abody if is_async else body), ("b", abody if is_async else body)])
    builder.add_edge(START, "a")
    app = ArbiterOS().govern(builder.compile())

    async def run() -> None:
        await app.ainvoke({})
        found.append(variable.get())

    if is_async:
        asyncio.run(run())
    else:
        app.invoke({})
        found.append(variable.get())
    assert found == ["unset"] * 3


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_body_may_return_a_runnable(is_async: bool) -> None:
    """LangGraph then runs that with the node's input."""

    def add(state: Number) -> Number:
        return {"n": state.get("n", 0) + 1}

    after: Any = RunnableLambda(add)

    async def abody(state: Number) -> Any:
        return after

    builder: Any = StateGraph(Number)
    builder.add_node("a", abody if is_async else lambda state: after)  # pyright: ignore[reportUnknownLambdaType]
    builder.add_edge(START, "a")
    bare = builder.compile()
    app = ArbiterOS().govern(bare)
    for graph in (bare, app):
        output = asyncio.run(graph.ainvoke({"n": 1})) if is_async else graph.invoke({"n": 1})
        assert output == {"n": 2}


def attributes_of(value: object) -> list[str]:
    return sorted(vars(value))


def test_a_copy_of_the_callback_manager_is_an_ordinary_one() -> None:
    copies: list[Any] = []

    def body(state: Number, config: RunnableConfig) -> dict[str, Any]:
        manager = manager_of(config)
        made: Any
        for made in (copy.copy(manager), copy.deepcopy(manager), pickle.loads(pickle.dumps(manager))):
            assert made.parent_run_id == manager.parent_run_id
            copies.append((type(made), attributes_of(made), made.tags))
        return {}

    builder: Any = StateGraph(Number)
    builder.add_node("a", body)
    builder.add_edge(START, "a")
    for graph in (builder.compile(), ArbiterOS().govern(builder.compile())):
        graph.invoke({})
    assert copies[:3] == copies[3:]


def test_a_conditional_edge_finds_the_config_that_the_body_has_left() -> None:
    """LangGraph makes the config of each step of that of the step before."""
    found: list[Any] = []

    def body(state: Number, config: RunnableConfig) -> dict[str, Any]:
        config["callbacks"] = None
        config["tags"] = ["left"]
        return {}

    def path(state: Number, config: RunnableConfig) -> str:
        found.append((config.get("tags"), sorted(manager_of(config).tags)))
        return END

    builder: Any = StateGraph(Number)
    builder.add_node("a", body)
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", path, [END])
    for graph in (builder.compile(), ArbiterOS().govern(builder.compile())):
        graph.invoke({})
    assert found[0] == found[1]


def test_a_body_may_add_a_handler_before_it_reads_the_callback_manager() -> None:
    class Heard(BaseCallbackHandler):
        def __init__(self) -> None:
            self.started = 0

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            self.started += 1

    handler = Heard()

    def body(state: State) -> Any:
        config: Any = get_config()
        config["callbacks"].set_handlers([handler])
        GenericFakeChatModel(messages=iter([AIMessage("hi")])).invoke("?", config)
        return {"log": ["a"]}

    ArbiterOS().govern(chain(body)).invoke({"log": []})
    assert handler.started == 1


def test_the_attributes_of_a_node_run_are_few_enough_for_the_compact_form_of_python() -> None:
    counts: list[int] = []

    def body(state: State) -> State:
        counts.append(len(vars(current_run.get())))
        return {"amount": 1}

    class Reader(PolicyRouter):
        def route_after(self, history: History, current_output: Any) -> None:
            assert history.item.evaluation_results["enough"].passed

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Allow("allow"))
    arbiter_os.add_policy_router(Reader("reader"))
    arbiter_os.add_evaluator(ThresholdEvaluator("enough", "amount", 0))
    arbiter_os.govern(chain(body)).invoke({"amount": 0})

    assert 0 < counts[0] < 28  # with 30 Python gives each object a table of its own


class Stored(Runnable[Any, Any]):
    """A step of the user's own. It reads the store of the config around it."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return {"log": [type(get_store()).__name__]}
        except RuntimeError:
            return {"log": ["no store"]}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self.invoke(input)


def in_two_steps(**options: Any) -> Any:
    async def aunchanged(state: State) -> State:
        return state

    builder: Any = StateGraph(State)
    builder.add_node("node", RunnableLambda(lambda state: state, aunchanged) | Stored(), **options)
    return builder.add_edge(START, "node").compile(store=InMemoryStore())


@pytest.mark.parametrize(("timeout", "found"), [(None, "no store"), (60.0, "InMemoryStore")])
def test_the_second_step_of_a_node_finds_the_same_config_around_it(timeout: float | None, found: str) -> None:
    """LangGraph runs a node with a timeout in a context that has the node's config."""

    async def log(graph: Any) -> Any:
        return (await graph.ainvoke({"log": []}))["log"]

    graph = in_two_steps(timeout=timeout)
    assert asyncio.run(log(graph)) == [found]
    assert asyncio.run(log(ArbiterOS().govern(graph))) == [found]


def test_the_second_step_of_a_node_finds_the_config_of_the_function_that_calls_the_graph() -> None:
    graph = in_two_steps()

    def log(graph: Any) -> Any:
        def calls(state: State) -> Any:
            return {"log": graph.invoke({"log": []})["log"]}

        outer: Any = StateGraph(State)
        outer.add_node("outer", calls)
        return outer.add_edge(START, "outer").compile(store=InMemoryStore()).invoke({"log": []})["log"]

    assert log(graph) == log(ArbiterOS().govern(graph)) == ["InMemoryStore"]


class Passing(Runnable[Any, Any]):
    """A step that runs a graph and passes its input on, in the context of its caller."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        self.graph.invoke(input, config)
        return input


class Twice(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.commit() if attempt == 2 else Correction.retry("again")


def test_the_second_step_of_a_second_draft_finds_the_same_config_around_it() -> None:
    """The graph in the first step has a node of several steps too."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Twice("twice", target_nodes=["outer"]))
    builder: Any = StateGraph(State)
    builder.add_node("outer", Passing(arbiter_os.govern(in_two_steps())) | Stored())
    app = arbiter_os.govern(builder.add_edge(START, "outer").compile(store=InMemoryStore()))
    assert app.invoke({"log": []})["log"] == ["no store"]


def test_the_second_step_of_a_traced_node_with_a_gate_finds_the_same_config_around_it() -> None:
    async def log(graph: Any) -> Any:
        events = [event async for event in graph.astream_events({"log": []}, version="v2")]
        return events[-1]["data"]["output"]["log"]

    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(Twice("twice"))
    graph = in_two_steps()
    assert asyncio.run(log(graph)) == asyncio.run(log(arbiter_os.govern(graph))) == ["InMemoryStore"]
