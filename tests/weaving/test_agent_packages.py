"""The shapes that packages on LangGraph build agents of, governed: they run as un-governed.

deepagents hands the state of a tool on to a subagent; langgraph-supervisor and langgraph-swarm hand over by commands to
the parent; trustcall sends each task a state of its own; langmem's tools use the store and names from the config.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NotRequired, cast

import pytest
from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send

from tests.graphs import Governing, bare, create_agent, with_nothing, with_policies
from tests.scripted import ScriptedTools, tool_call
from tests.support import MODES
from tests.weaving.test_shown_to_users import ask, either, told

pytestmark = pytest.mark.lengthy

HELLO = {"messages": [HumanMessage("hello")]}


def scripted(*answers: Any) -> ScriptedTools:
    return ScriptedTools(answers=[AIMessage(each) if isinstance(each, str) else each for each in answers])


def tool_of(function: Any, mode: str) -> Any:
    if mode == "sync":
        return StructuredTool.from_function(function)
    return StructuredTool.from_function(coroutine=either(function, mode))


def merged(left: dict[str, str] | None, right: dict[str, str]) -> dict[str, str]:
    return {**(left or {}), **right}


# Each of these gives a compiled graph and its inputs, one for each turn of a conversation.


def deep_agent(mode: str, saver: Any) -> Any:
    """A tool that copies the state, leaves some keys out, and invokes a subagent with the rest."""

    class Files(AgentState[Any]):
        files: NotRequired[Annotated[dict[str, str], merged]]

    class WithFiles(AgentMiddleware[Any, Any]):
        state_schema = Files

    def write(runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        """Write a file."""
        message = ToolMessage("written", tool_call_id=runtime.tool_call_id)
        return Command(update={"files": {"a.txt": "sun"}, "messages": [message]})

    model = scripted(tool_call("write", {}), "sunny")
    subagent = create_agent(model, [tool_of(write, mode)], middleware=[WithFiles()], name="weather")

    def handed_on(runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
        state = copy.deepcopy(runtime.state)
        kept = {key: part for key, part in state.items() if key not in ("messages", "todos")}
        return {**kept, "messages": [HumanMessage("which weather?")]}

    def answer(runtime: ToolRuntime[Any, Any], result: Mapping[str, Any]) -> Command[Any]:
        update = {key: part for key, part in result.items() if key not in ("messages", "todos")}
        message = ToolMessage(result["messages"][-1].text, tool_call_id=runtime.tool_call_id)
        return Command(update={**update, "messages": [message]})

    def delegate(runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        """Ask a subagent."""
        return answer(runtime, subagent.invoke(handed_on(runtime), runtime.config))

    async def adelegate(runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        return answer(runtime, await subagent.ainvoke(handed_on(runtime), runtime.config))

    tool = StructuredTool.from_function(delegate, adelegate, name="delegate")
    model = scripted(tool_call("delegate", {}), "done", "still there")
    agent = create_agent(model, [tool], middleware=[WithFiles()], checkpointer=saver)
    return agent, [{**HELLO, "files": {"old.txt": "rain"}}, HELLO]


def handoff(to: str, mode: str, **update: Any) -> Any:
    """Hands the whole state over to another agent of the parent graph."""

    def transfer(
        state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Transfer."""
        message = ToolMessage(f"to {to}", tool_call_id=tool_call_id)
        messages = [*state["messages"], message]
        return Command(goto=to, graph=Command.PARENT, update={**state, "messages": messages, **update})

    if mode == "sync":
        return StructuredTool.from_function(transfer, name=f"to_{to}")
    return StructuredTool.from_function(coroutine=either(transfer, mode), name=f"to_{to}")


def supervisor(mode: str, saver: Any) -> Any:
    """A supervisor that hands over to agents, whose answers come back to it."""
    boss = create_agent(scripted(tool_call("to_maths", {}), "four"), [handoff("maths", mode)], name="boss")
    maths = create_agent(scripted("2 + 2 = 4"), [], name="maths")

    def call(state: Any, config: RunnableConfig) -> Any:
        return {"messages": maths.invoke(state, config)["messages"][-1:]}

    async def acall(state: Any, config: RunnableConfig) -> Any:
        return {"messages": (await maths.ainvoke(state, config))["messages"][-1:]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("boss", boss, destinations=("maths", END))
    graph.add_node("maths", call if mode == "sync" else acall)
    graph.add_edge(START, "boss")
    graph.add_edge("maths", "boss")
    return graph.compile(checkpointer=saver, name="supervisor"), [HELLO, HELLO]


class SwarmState(MessagesState):
    active_agent: str


def swarm(mode: str, saver: Any) -> Any:
    """Agents that hand over to one another; the next turn begins with the one that was last."""
    alice = create_agent(
        scripted(tool_call("to_bob", {})), [handoff("bob", mode, active_agent="bob")], name="alice"
    )
    bob = create_agent(
        scripted("I am Bob", tool_call("to_alice", {}), "Bob again"),
        [handoff("alice", mode, active_agent="alice")],
        name="bob",
    )

    def active(state: SwarmState) -> str:
        return state.get("active_agent", "alice")

    graph: Any = StateGraph(SwarmState)
    graph.add_node("alice", alice, destinations=("bob",))
    graph.add_node("bob", bob, destinations=("alice",))
    graph.add_conditional_edges(START, active, ["alice", "bob"])
    return graph.compile(checkpointer=saver, name="swarm"), [HELLO, HELLO]


@dataclass(kw_only=True)
class Extraction:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list[AnyMessage])
    attempts: Annotated[int, operator.add] = 0
    call: str = ""


def extractor(mode: str, saver: Any) -> Any:
    """Each task is sent a dataclass of its own, made of all fields of the state."""
    model = scripted(tool_call("fact", {"n": 1}, {"n": 2}))

    def extract(state: Extraction, config: RunnableConfig) -> Any:
        return {"messages": [model.invoke(state.messages, config)], "attempts": 1}

    def to_patch(state: Extraction) -> list[Send]:
        calls = cast(AIMessage, state.messages[-1]).tool_calls
        fields: Any = asdict(state)
        own: list[Any] = [{**fields, "call": str(call["args"]["n"])} for call in calls]
        return [Send("patch", Extraction(**each)) for each in own]

    def patch(state: Extraction) -> Any:
        update = {"messages": [AIMessage(f"patched {state.call} of {len(state.messages)}")], "attempts": 1}
        return Command(update=update, goto="sync" if state.call == "2" else ())

    def sync(state: Extraction) -> Any:
        return {"attempts": 10}

    graph: Any = StateGraph(Extraction)
    graph.add_node("extract", either(extract, mode))
    graph.add_node("patch", either(patch, mode), destinations=("sync",))
    graph.add_node("sync", either(sync, mode))
    graph.add_edge(START, "extract")
    graph.add_conditional_edges("extract", either(to_patch, mode), ["patch"])
    return graph.compile(checkpointer=saver, name="extractor"), [HELLO, HELLO]


def memory(mode: str, saver: Any) -> Any:
    """Tools that write to the store, in a namespace from the config, and a workflow that calls the agent in a task."""
    store = InMemoryStore()

    def remember(text: str, store: Annotated[BaseStore, InjectedStore], config: RunnableConfig) -> str:
        """Remember `text`."""
        user = config.get("configurable", {})["thread_id"]
        store.put(("memories", user), text, {"text": text})
        return f"{len(get_store().search(('memories',)))} for {user}"

    answers = [tool_call("remember", {"text": "likes tea"}), "noted"]
    agent = create_agent(scripted(*answers, *answers), [tool_of(remember, mode)], store=store)

    def reflect(given: Any) -> Any:
        return agent.invoke(given)["messages"][-1].text

    async def areflect(given: Any) -> Any:
        return (await agent.ainvoke(given))["messages"][-1].text

    of_task: Any = cast(Any, task)(reflect if mode == "sync" else areflect)

    def flow(given: Any, *, previous: Any = None, store: BaseStore) -> Any:
        return [of_task(given).result(), previous, len(store.search(("memories",)))]

    async def aflow(given: Any, *, previous: Any = None, store: BaseStore) -> Any:
        return [await of_task(given), previous, len(store.search(("memories",)))]

    made: Any = entrypoint(checkpointer=saver, store=store)
    return made(flow if mode == "sync" else aflow), [HELLO, HELLO]


SHAPES = (deep_agent, supervisor, swarm, extractor, memory)


def observe(shape: Any, governing: Governing, mode: str, saved: bool) -> list[Any]:
    saver = InMemorySaver() if saved else None
    graph, inputs = shape(mode, saver)
    governed = governing(graph)
    config = {"configurable": {"thread_id": "one"}}
    seen: list[Any] = []
    for given in inputs:
        chunks = ask(
            governed, mode, "stream", given, config, stream_mode=["values", "updates"], subgraphs=True
        )
        seen.append(sorted(map(repr, told(chunks))))  # siblings stream in no order
        if saved:
            seen.append(told(ask(governed, mode, "get_state", config, subgraphs=True)))
    return seen


REST = [(True, "sync"), (False, "async")]


@pytest.mark.parametrize(
    ("saved", "mode"),
    [(True, "async"), (False, "sync"), *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)],
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_packages_shape_runs_governed_as_ungoverned(shape: Any, mode: str, saved: bool) -> None:
    expected = observe(shape, bare, mode, saved)
    for arbiter_os in (with_nothing(), with_policies()):
        seen = observe(shape, arbiter_os.govern, mode, saved)
        assert "arbiter" not in repr(seen)
        assert seen == expected
        assert arbiter_os.history.count() > 0


@MODES
def test_a_governed_subagent_in_a_tool_is_governed(mode: str) -> None:
    """A graph that a tool invokes is none of the governed graph's nodes: it is governed if it was given to `govern`."""
    arbiter_os = with_policies()
    inner = arbiter_os.govern(create_agent(scripted("sunny"), [], name="inner"))

    def delegate(runtime: ToolRuntime[Any, Any]) -> str:
        """Ask a subagent."""
        return str(inner.invoke({**runtime.state, "messages": HELLO["messages"]})["messages"][-1].text)

    async def adelegate(runtime: ToolRuntime[Any, Any]) -> str:
        state = {**runtime.state, "messages": HELLO["messages"]}
        return str((await inner.ainvoke(state))["messages"][-1].text)

    tool = StructuredTool.from_function(delegate, adelegate, name="delegate")
    app = arbiter_os.govern(create_agent(scripted(tool_call("delegate", {}), "done"), [tool]))
    assert ask(app, mode, "invoke", HELLO, None)["messages"][-2].text == "sunny"
    assert arbiter_os.history.count(node="model") == 3
