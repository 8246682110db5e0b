"""User code sees the same in a governed graph as in the bare one: state, config, channels, by each way of reading."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import operator
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph._internal import _constants
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph, add_messages
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, Command, RetryPolicy, Send
from typing_extensions import TypedDict  # pydantic takes no other for a schema

from arbiter._weaving.channel import FACTS
from tests.graphs import Governing, bare, create_agent, with_nothing, with_policies
from tests.scripted import ScriptedTools, tool_call
from tests.support import thread

pytestmark = pytest.mark.lengthy

Shown = list[Any]
"""What user code was shown: (who looked, what at, what it was)."""


def told(value: object, depth: int = 0) -> Any:
    """A value by its keys, its parts and their classes; what differs from run to run is named by its class."""
    if depth > 9:
        return "..."
    if isinstance(value, CallbackManager | AsyncCallbackManager):
        # Until somebody looks at it, a manager that nobody listens to is one of ours.
        return {name: told(part, depth + 1) for name, part in sorted(vars(value.copy()).items())}
    if isinstance(value, BaseMessage):
        return value.type, value.content, told(getattr(value, "tool_calls", None), depth + 1)
    if isinstance(value, Mapping):
        return {told(key): told(part, depth + 1) for key, part in cast(Any, value).items()}
    if isinstance(value, Send):
        return "Send", value.node, told(value.arg, depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [told(part, depth + 1) for part in cast(Any, value)]
    if isinstance(value, str) and len(value) < 24:
        return value
    return value if value is None or isinstance(value, bool | int) else type(value).__qualname__


def works(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as exc:
        return repr(exc)
    return "works"


def read(config: Any) -> Any:
    """Every answer of LangGraph's reader of channels, as `ToolNode` asks it and in each other way."""
    reader = config["configurable"][_constants.CONFIG_KEY_READ]
    names = list(reader.args[1])
    shown = {name: reader(name, fresh) for name in names for fresh in (False, True)}
    every = [reader(names), reader(names, True), reader(names, fresh=True)]
    return [told({name: value for name, value in shown.items() if value is not None}), told(every)]


def look(shown: Shown, who: str, state: Any, config: Any, runtime: Any = None) -> None:
    """Note all that can be seen there."""
    shown.append((who, "state", told(state)))
    shown.append((who, "copies", works(lambda: copy.deepcopy(state)), works(lambda: pickle.dumps(state))))
    shown.append((who, "config", told(config), told(get_config())))
    shown.append((who, "channels", read(config)))
    reader = config["configurable"][_constants.CONFIG_KEY_READ]
    shown.append((who, "copies of channels", works(lambda: copy.deepcopy(reader.args[1]))))
    if runtime is not None:
        names = [name for name in dir(runtime) if not name.startswith("_")]
        shown.append((who, "runtime", {name: told(getattr(runtime, name)) for name in names}))


def either(function: Any, mode: str) -> Any:
    """The function, or the same as a coroutine function."""
    if mode == "sync":
        return function

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return awaited


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


def nodes_and_edges(shown: Shown, mode: str, saver: Any) -> Any:
    """Bodies, a conditional edge, `Send`, a cache key, a retry, an error handler, a subgraph."""
    failures = iter([KeyError("again")])

    def plain(state: State, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        look(shown, "plain", state, config, runtime)
        return {"log": ["plain"]}

    def fan_out(state: State, config: RunnableConfig) -> Any:
        look(shown, "edge", state, config)
        return [Send("sent", {"log": ["for sent"]})]

    def sent(state: State, config: RunnableConfig) -> Any:
        look(shown, "sent", state, config)
        for failure in failures:
            raise failure
        return Command(update={"log": ["sent"]}, goto="inner")

    def retried(error: Exception) -> bool:
        shown.append(("retry", type(error).__name__, told(error.args)))
        return True

    def key(*args: Any, **kwargs: Any) -> str:
        shown.append(("key", told(args), told(kwargs), works(lambda: pickle.dumps((args, kwargs)))))
        return "key"

    def broken(state: State) -> Any:
        raise ValueError("broken")

    def handler(state: State, config: RunnableConfig) -> Any:
        look(shown, "handler", state, config)
        return {"log": ["handled"]}

    def inside(state: State, config: RunnableConfig) -> Any:
        look(shown, "inside", state, config)
        return {"log": ["inside"]}

    retry = RetryPolicy(retry_on=retried, initial_interval=0.001, jitter=False)
    inner: Any = StateGraph(State)
    inner.add_node("inside", either(inside, mode))
    inner.add_edge(START, "inside")
    graph: Any = StateGraph(State)
    graph.add_node("plain", either(plain, mode))
    graph.add_node("sent", either(sent, mode), retry_policy=retry, destinations=("inner",))
    graph.add_node("inner", inner.compile())
    graph.add_node("cached", either(plain, mode), cache_policy=CachePolicy(key_func=key))
    graph.add_node("broken", either(broken, mode), error_handler=either(handler, mode))
    graph.add_edge(START, "plain")
    graph.add_conditional_edges("plain", either(fan_out, mode), ["sent"])
    graph.add_edge("inner", "cached")
    graph.add_edge("cached", "broken")
    return graph.compile(checkpointer=saver, cache=InMemoryCache()), {"log": []}


class Watching(AgentMiddleware[Any, Any]):
    """Looks in every hook of an agent."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self.shown = shown

    def _hook(self, who: str, state: Any, runtime: Any) -> None:
        look(self.shown, who, state, get_config(), runtime)

    def before_agent(self, state: Any, runtime: Any) -> None:
        self._hook("before_agent", state, runtime)

    def before_model(self, state: Any, runtime: Any) -> None:
        self._hook("before_model", state, runtime)

    def after_model(self, state: Any, runtime: Any) -> None:
        self._hook("after_model", state, runtime)

    def after_agent(self, state: Any, runtime: Any) -> None:
        self._hook("after_agent", state, runtime)

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self._hook("wrap_model_call", request.state, request.runtime)
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self._hook("wrap_model_call", request.state, request.runtime)
        return await handler(request)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self._hook("wrap_tool_call", request.state, request.runtime)
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self._hook("wrap_tool_call", request.state, request.runtime)
        return await handler(request)


def looking_tool(shown: Shown, mode: str) -> Any:
    def lookup(
        query: str,
        state: Annotated[Any, InjectedState],
        runtime: ToolRuntime[Any, Any],
        config: RunnableConfig,
    ) -> str:
        """Look `query` up."""
        look(shown, "InjectedState", state, config)
        look(shown, "ToolRuntime", runtime.state, runtime.config, runtime)
        return f"about {query}"

    if mode == "sync":
        return StructuredTool.from_function(lookup)
    return StructuredTool.from_function(coroutine=either(lookup, mode))


def agent(shown: Shown, mode: str, saver: Any) -> Any:
    """An agent with middleware and a tool that is called twice at once."""
    model = ScriptedTools(answers=[tool_call("lookup", {"query": "a"}), AIMessage("done")])
    tools = [looking_tool(shown, mode)]
    graph = create_agent(model, tools, middleware=[Watching(shown)], checkpointer=saver)
    return graph, {"messages": [HumanMessage("hello")]}


def tool_node(shown: Shown, mode: str, saver: Any) -> Any:
    """A `ToolNode` that an edge leads to, and one that a call is sent to."""
    call = tool_call("lookup", {"query": "a"})

    def ask(state: State) -> Any:
        return {"messages": [call]}

    def send(state: State) -> Any:
        return [Send("sent", [ToolCall(name="lookup", args={"query": "b"}, id="call-b", type="tool_call")])]

    graph: Any = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([looking_tool(shown, mode)]))
    graph.add_node("sent", ToolNode([looking_tool(shown, mode)]))
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "tools")
    graph.add_conditional_edges("tools", send, ["sent"])
    return graph.compile(checkpointer=saver), {"messages": [HumanMessage("hello")]}


def functional(shown: Shown, mode: str, saver: Any) -> Any:
    """An entrypoint and a task of LangGraph's functional API."""

    def part(given: int) -> int:
        look(shown, "task", given, get_config())
        return given + 1

    of_task: Any = cast(Any, task)(either(part, mode))

    def flow(given: int, *, previous: Any = None, config: RunnableConfig) -> Any:
        look(shown, "entrypoint", [given, previous], config)
        return of_task(given).result()

    async def aflow(given: int, *, previous: Any = None, config: RunnableConfig) -> Any:
        look(shown, "entrypoint", [given, previous], config)
        return await of_task(given)

    made: Any = entrypoint(checkpointer=saver)
    return made(flow if mode == "sync" else aflow), 1


SHAPES = (nodes_and_edges, agent, tool_node, functional)


def observe(shape: Any, governing: Governing, mode: str, saved: bool) -> Shown:
    shown: Shown = []
    saver = InMemorySaver() if saved else None
    graph, given = shape(shown, mode, saver)
    governed = governing(graph)
    config = thread("one")
    modes = ["values", "updates", "debug", "checkpoints", "tasks"]
    for _ in range(2):
        shown.append(("output", told(ask(governed, mode, "invoke", given, config))))
        chunks = ask(governed, mode, "stream", given, config, stream_mode=modes, subgraphs=True)
        shown.append(("streamed", told(chunks)))
    if saved:
        shown.append(("state", told(ask(governed, mode, "get_state", config, subgraphs=True))))
        shown.append(("history", told(ask(governed, mode, "get_state_history", config))))
    if shape is not functional and saved:
        ask(governed, mode, "update_state", config, given, as_node=next(iter(graph.builder.nodes)))
        shown.append(("updated", told(ask(governed, mode, "get_state", config))))
    return shown


def ask(graph: Any, mode: str, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the graph, or its async form; gather what it yields."""
    listed = method in ("stream", "get_state_history")
    if mode == "sync":
        answer = getattr(graph, method)(*args, **kwargs)
        return list(answer) if listed else answer

    async def awaited() -> Any:
        answer = getattr(graph, f"a{method}")(*args, **kwargs)
        return [one async for one in answer] if listed else await answer

    return asyncio.run(awaited())


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "unsaved"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_user_code_is_shown_what_the_bare_graph_shows(shape: Any, mode: str, saved: bool) -> None:
    """State, config and channels are the same in all that LangGraph calls, by each way of reading, and what can be
    copied or pickled can be copied or pickled."""
    expected = observe(shape, bare, mode, saved)
    assert len({who for who, *_ in expected}) > 3
    for arbiter_os in (with_nothing(), with_policies()):
        shown = observe(shape, arbiter_os.govern, mode, saved)
        assert "arbiter" not in repr(shown).lower()
        for one, other in zip(shown, expected, strict=True):
            assert one == other


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "unsaved"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_config_that_user_code_keeps_holds_nothing_of_arbiter(mode: str, saved: bool) -> None:
    """Also after the node run, when what is committed with it has been handed over."""
    kept: list[Any] = []

    def keep(state: State, config: RunnableConfig) -> Any:
        kept.append(config)
        return {"log": ["kept"]}

    graph: Any = StateGraph(State)
    graph.add_node("keep", either(keep, mode))
    graph.add_edge(START, "keep")
    app = with_policies().govern(graph.compile(checkpointer=InMemorySaver() if saved else None))
    ask(app, mode, "invoke", {"log": []}, thread("one"))
    assert "arbiter" not in str(list(kept[0]["configurable"]) + list(kept[0]["metadata"])).lower()
    assert type(kept[0]["callbacks"].copy()) in (CallbackManager, AsyncCallbackManager)
    assert type(kept[0]["callbacks"]) in (CallbackManager, AsyncCallbackManager)


def described(graph: Any) -> dict[str, Any]:
    """The description of a compiled graph: public attributes, and the results of methods without
    parameters."""
    shown: dict[str, Any] = {}
    names: list[str] = dir(graph)
    for name in names:
        if name.startswith("_") or name in ("config_schema", "get_config_jsonschema"):  # deprecated
            continue
        part: Any = getattr(graph, name)
        if inspect.ismethod(part):
            if not name.startswith("get_") or name.startswith("get_state"):
                continue
            part = part()
        if hasattr(part, "__next__"):
            part = list(part)
        if hasattr(part, "model_json_schema"):
            part = part.model_json_schema()
        shown[name] = part.to_json() if name == "get_graph" else without_addresses(part)
    own = cast(dict[str, Any], vars(graph))
    return {**shown, "repr": without_addresses(graph), "vars": sorted(own)}


def without_addresses(part: object) -> str:
    return re.sub(r"0x\w+", "0x", repr(part))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_governed_graph_describes_itself_as_the_bare_one_does(shape: Any) -> None:
    """Except that it has one channel more."""
    graph, _ = shape([], "sync", InMemorySaver())
    expected = described(graph)
    shown = described(with_policies().govern(graph))
    assert shown.pop("channels") != expected.pop("channels")
    assert shown == expected
    assert {**with_policies().govern(graph).channels, **graph.channels}.keys() - graph.channels.keys() == {
        FACTS
    }
