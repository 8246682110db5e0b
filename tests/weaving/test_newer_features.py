"""Features that LangGraph got lately behave in a governed graph as in the graph that it was made from."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain.agents import middleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.callbacks import GraphCallbackHandler
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, Overwrite, Send, StateUpdate, TimeoutPolicy, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from arbiter import ArbiterOS, PolicyViolationError
from tests import graphs
from tests.graphs import Governing, Names, as_is, bare
from tests.scripted import Scripted, ScriptedTools
from tests.support import MODES, Check, Spy, run, thread

STREAMS = ["values", "updates", "custom", "messages", "debug", "tasks", "checkpoints"]


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    n: int


class Session:
    """Runs graphs in one mode, and keeps all that can be seen."""

    def __init__(self, governing: Governing, mode: str) -> None:
        self.governing = governing
        self.mode = mode
        self.seen: list[Any] = []

    def see(self, *values: Any) -> None:
        self.seen.append(as_is(list(values)))

    def body(self, function: Callable[..., Any]) -> Any:
        if self.mode == "sync":
            return function

        async def body(state: Any) -> Any:
            return function(state)

        return body

    def compiled(self, builder: Any, **options: Any) -> Any:
        return self.governing(builder.compile(checkpointer=InMemorySaver(), **options))

    def stream(self, graph: Any, given: Any, **options: Any) -> None:
        options = {"stream_mode": STREAMS, "subgraphs": True, **options}
        config = options.pop("config", thread("1"))

        async def astream() -> None:
            async for chunk in graph.astream(given, config, **options):
                self.see(chunk)

        try:
            if self.mode == "async":
                asyncio.run(astream())
            else:
                for chunk in graph.stream(given, config, **options):
                    self.see(chunk)
        except Exception as exc:
            self.see(exc)

    def look(self, graph: Any) -> list[Any]:
        states = [graph.get_state(thread("1"), subgraphs=True), *graph.get_state_history(thread("1"))]
        self.see(states)
        return states[1:]


def loop_of(state: Any, body: Any, times: int) -> Any:
    def again(seen: Any) -> str:
        return "work" if seen["n"] < times else END

    builder = StateGraph(state)
    builder.add_node("work", body)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", again, ["work", END])
    return builder


def _joined(value: list[str], writes: Any) -> list[str]:
    return [*value, *(part for write in writes for part in write)]


class Deltas(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(_joined, list)]
    n: int


def delta_channels_and_forks(session: Session) -> None:
    def work(state: Any) -> Any:
        return {"said": [f"a{state.get('n', 0)}"], "n": state.get("n", 0) + 1}

    for durability in ("sync", "async", "exit"):
        graph = session.compiled(loop_of(Deltas, session.body(work), 3))
        session.stream(graph, {"said": ["in"]}, durability=durability)
        states = session.look(graph)
        session.stream(graph, None, config=states[len(states) // 2].config)
        graph.update_state(thread("1"), {"said": Overwrite(["only"])}, as_node="work")
        graph.bulk_update_state(
            thread("1"), [[StateUpdate({"said": ["b"]}, "work")], [StateUpdate({"n": 1}, "work")]]
        )
        session.stream(graph, None)
        session.look(graph)


class Short(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    once: Annotated[int, EphemeralValue]
    untracked: Annotated[Any, UntrackedValue]
    topic: Annotated[list[int], Topic(int, accumulate=True)]
    last: IsLastStep
    left: RemainingSteps


def channels_that_are_not_kept(session: Session) -> None:
    def fill(state: Any) -> Any:
        return {"once": 1, "untracked": 2, "topic": [3, 4]}

    def tell(state: Any) -> Any:
        seen = [state.get(key) for key in ("once", "untracked", "topic", "last", "left")]
        return {"log": [(sorted(state), seen)]}

    builder = StateGraph(Short)
    builder.add_node("first", session.body(fill))
    for before, name in (("first", "second"), ("second", "third")):
        builder.add_node(name, session.body(tell))
        builder.add_edge(before, name)
    builder.add_edge(START, "first")
    graph = session.compiled(builder)
    for limit in (4, 2):
        session.stream(graph, {"log": []}, config={**thread("1"), "recursion_limit": limit})
    session.look(graph)


def timeouts(session: Session) -> None:
    async def beats(state: Any, runtime: Runtime) -> Any:
        runtime.heartbeat()
        return {"log": ["beats"]}

    async def late(state: Any) -> None:
        await asyncio.sleep(30)

    async def rescue(state: Any) -> Any:
        return {"log": ["rescued"]}

    def to_late(state: Any) -> Any:
        return [Send("late", {}, timeout=0.02)]

    builder: Any = StateGraph(Log)
    builder.add_node("beats", beats, timeout=TimeoutPolicy(idle_timeout=20, refresh_on="heartbeat"))
    builder.add_node("late", late, timeout=0.01, error_handler=rescue)
    builder.add_edge(START, "beats")
    builder.add_conditional_edges("beats", to_late, ["late"])
    session.stream(session.compiled(builder), {"log": []}, stream_mode=["values", "updates"])


class Answer(BaseModel):
    yes: bool


class Pauses(GraphCallbackHandler):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_interrupt(self, event: Any) -> None:
        self.told.append(("paused", event.status, [each.value for each in event.interrupts]))

    def on_resume(self, event: Any) -> None:
        self.told.append(("resumed", event.status))


def answers_with_a_schema(session: Session) -> None:
    def ask(state: Any) -> Any:
        return {"log": [interrupt("sure?", response_schema=Answer).yes]}

    inner: Any = StateGraph(Log)
    inner.add_node("ask", session.body(ask))
    inner.add_edge(START, "ask")
    builder: Any = StateGraph(Log)
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "inner")
    graph = session.compiled(builder)
    pauses = Pauses()
    inputs: list[Any] = [{"log": []}, Command(resume={"yes": "neither"}), Command(resume={"yes": True})]
    for given in inputs:
        session.stream(graph, given, config={**thread("1"), "callbacks": [pauses]})
    session.see(pauses.told)
    session.look(graph)


@dataclass
class Context:
    user: str = "nobody"


def contexts_and_draining(session: Session) -> None:
    def work(state: Any, runtime: Runtime[Context]) -> Any:
        get_stream_writer()({"written": runtime.context.user})
        if runtime.control is not None:
            runtime.control.request_drain("enough")
        return {"log": [runtime.context.user, runtime.drain_requested], "n": state.get("n", 0) + 1}

    async def awork(state: Any, runtime: Runtime[Context]) -> Any:
        return work(state, runtime)

    builder = loop_of(Log, work if session.mode == "sync" else awork, 3)
    builder.context_schema = Context
    graph = session.compiled(builder)
    session.stream(graph, {"log": []}, context={"user": "ann"}, control=RunControl())
    session.stream(graph, None, context=Context("bob"))
    session.look(graph)
    session.see(graph.get_context_jsonschema())


@middleware.before_agent(can_jump_to=["end"])
def _stops(state: Any, runtime: Any) -> Any:
    return {"jump_to": "end"} if state["messages"][-1].text == "stop" else None


@middleware.after_model(can_jump_to=["model"])
def _asks_again(state: Any, runtime: Any) -> Any:
    runtime.stream_writer({"seen for": runtime.context.user})
    last = state["messages"][-1]
    again = {"jump_to": "model", "messages": [HumanMessage("again", id=f"after {last.id}")]}
    return again if last.text == "what?" else None


_CALL = AIMessage("", tool_calls=[{"name": "write_todos", "args": {"todos": []}, "id": "call"}], id="b")


def middleware_of_agents(session: Session) -> None:
    answers = [AIMessage("what?", id="a"), _CALL, AIMessage("done")]
    steps: list[Any] = [
        _stops,
        _asks_again,
        middleware.TodoListMiddleware(),
        middleware.SummarizationMiddleware(
            Scripted(answers=["a summary"]), trigger=("messages", 5), keep=("messages", 2)
        ),
        middleware.ModelFallbackMiddleware(ScriptedTools(answers=answers)),
        middleware.ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False, on_failure="error"),
        middleware.HumanInTheLoopMiddleware({"write_todos": True}),
        middleware.ModelCallLimitMiddleware(run_limit=5),
        middleware.PIIMiddleware("email"),
    ]
    down = ScriptedTools(answers=[ConnectionError("the model is down")])
    graph = session.governing(
        graphs.create_agent(down, [], middleware=steps, context_schema=Context, checkpointer=InMemorySaver())
    )
    approve: Any = Command(resume={"decisions": [{"type": "approve"}]})
    inputs: list[Any] = ["write to a@b.example", approve, "and then?", "stop"]
    for number, given in enumerate(inputs):
        if isinstance(given, str):
            given = {"messages": [HumanMessage(given, id=f"said {number}")]}
        session.stream(graph, given, context=Context("ann"))
        session.look(graph)


def forks_inside_of_subgraphs(session: Session) -> None:
    def ask(state: Any) -> Any:
        return {"log": [interrupt("which?")]}

    def write(state: Any) -> Any:
        return {"log": ["before"]}

    for checkpointer in (None, True):
        inner: Any = StateGraph(Log)
        inner.add_sequence([("write", session.body(write)), ("ask", session.body(ask))])
        inner.add_edge(START, "write")
        builder: Any = StateGraph(Log)
        builder.add_node("inner", inner.compile(checkpointer=checkpointer))
        builder.add_edge(START, "inner")
        graph = session.compiled(builder)
        session.stream(graph, {"log": []})
        inside = session.look(graph)[0].tasks[0].state
        past = list(graph.get_state_history(inside))
        graph.update_state(inside, {"log": ["edited"]}, as_node="write")
        session.stream(graph, Command(resume="first"))
        for state in past:
            session.stream(graph, None, config=state.config)
        session.stream(graph, Command(resume="second"))
        session.see(past, session.look(graph))


FEATURES = (
    delta_channels_and_forks,
    channels_that_are_not_kept,
    timeouts,
    answers_with_a_schema,
    contexts_and_draining,
    middleware_of_agents,
    forks_inside_of_subgraphs,
)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("feature", FEATURES)
def test_a_newer_feature_runs_governed_as_ungoverned(feature: Any, mode: str) -> None:
    if feature is timeouts and mode == "sync":
        return  # LangGraph has timeouts of async nodes alone

    def observed(governing: Governing) -> Any:
        session = Session(governing, mode)
        feature(session)
        found = Names().plain(session.seen)
        assert len(found) > 2
        return re.sub(r"elapsed: [\d.]+s", "elapsed", repr(found))

    expected = observed(bare)
    assert observed(ArbiterOS().govern) == expected
    assert observed(graphs.with_policies(asynchronous=False).govern) == expected


@MODES
def test_an_error_handler_gets_a_denial_and_the_denied_node_does_not_run(mode: str) -> None:
    denied, told = Spy("pay"), list[BaseException]()

    def rescue(state: Any, error: NodeError) -> Any:
        told.append(error.error)
        return {"log": ["rescued"]}

    builder: Any = StateGraph(Log)
    builder.add_node("pay", denied, error_handler=rescue)
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("never", lambda _: False, target_nodes=["pay"]))
    assert run(arbiter_os.govern(builder), {"log": []}, mode=mode) == {"log": ["rescued"]}
    assert (denied.calls, [type(error) for error in told]) == ([], [PolicyViolationError])
    assert arbiter_os.history.last(node="pay").status == "denied"  # type: ignore[union-attr]
