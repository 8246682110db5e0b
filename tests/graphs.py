"""Graphs of every shape as factories, and the observations of a run, as data that compares.

A run is observed twice, bare and governed, on two graphs from the same factory. Random values of LangGraph
itself (uuids, times, addresses) are replaced by names in the order of appearance, so that references are
still compared.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypedDict, cast

import langchain.agents
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from pydantic import BaseModel

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    History,
    NodeEvaluator,
    PolicyChecker,
    PolicyRouter,
    Verdict,
)

# Its type leaves parameters open, which strict checkers pass on to every graph it makes.
create_agent = cast(Any, langchain.agents).create_agent

Governing = Callable[[Any], Any]
"""Makes a graph governed, or leaves it as it is."""


def bare(graph: Any) -> Any:
    return graph


# Governing ----------------------------------------------------------------------------------------


class Agreeing(PolicyChecker):
    """Allows everything, after having looked at all that it is shown."""

    reads_history = False  # a node cache serves as it would

    def check_before(self, history: History) -> Verdict:
        own = history.entries[-1][-1]
        assert own.status == "running", own
        assert sum(1 for _ in history.items()) == len(list(history.items()))
        own.input_state.items()
        return Verdict.allow()


class AgreeingSlowly(PolicyChecker):
    """As `Agreeing`, with `async def`."""

    reads_history = False

    async def check_before(self, history: History) -> bool:
        await asyncio.sleep(0)
        return bool(history.entries)


class Nodding(PolicyChecker):
    reads_history = False

    def check_before(self, history: History) -> Any:
        return True, "fine"


class Reading(PolicyRouter):
    """Reads both evaluations, and sends the run nowhere."""

    def route_after(self, history: History, current_output: Any) -> str | None:
        results = history.entries[-1][-1].evaluation_results
        assert results["fields"].passed
        assert results.get("broken") is None
        return None


class Fields(NodeEvaluator):
    def evaluate(self, history: History) -> EvaluationResult:
        return EvaluationResult(float(len(history.entries[-1][-1].output_state)), True, "counted")


class Broken(NodeEvaluator):
    def evaluate(self, history: History) -> EvaluationResult:
        raise ZeroDivisionError("this evaluator is broken")


def with_nothing() -> ArbiterOS:
    return ArbiterOS()


def with_policies(*, asynchronous: bool = False) -> ArbiterOS:
    """Two checkers that allow, a router that answers nothing, two evaluators of which one raises."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Agreeing("agreeing"))
    arbiter_os.add_policy_checker(AgreeingSlowly("second") if asynchronous else Nodding("second"))
    arbiter_os.add_policy_router(Reading("reading"))
    arbiter_os.add_evaluator(Fields("fields"))
    arbiter_os.add_evaluator(Broken("broken"))
    return arbiter_os


# States -------------------------------------------------------------------------------------------


def merge(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    merged = {**left, **right}
    if "log" in right:
        merged["log"] = [*left.get("log", []), *right["log"]]
    if "n" in right:
        merged["n"] = max(left.get("n", 0), right["n"])
    if "messages" in right:
        merged["messages"] = add_messages(left.get("messages", []), right["messages"])
    return merged


def largest(left: int, right: int) -> int:
    return max(left, right)


class TypedState(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: Annotated[int, largest]
    messages: Annotated[list[AnyMessage], add_messages]


class ModelState(BaseModel):
    log: Annotated[list[str], operator.add] = []
    n: Annotated[int, largest] = 0
    messages: Annotated[list[AnyMessage], add_messages] = []


@dataclass
class DataState:
    log: Annotated[list[str], operator.add] = field(default_factory=list[str])
    n: Annotated[int, largest] = 0
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list[AnyMessage])


STATES: dict[str, Any] = {
    "dict": Annotated[dict[str, Any], merge],
    "TypedDict": TypedState,
    "pydantic": ModelState,
    "dataclass": DataState,
}


def get(state: Any, key: str, default: Any = None) -> Any:
    if isinstance(state, Mapping):
        return cast(Mapping[str, Any], state).get(key, default)
    return getattr(state, key, default)


def changed(state: Any, **changes: Any) -> Any:
    """A state of the same kind with some fields replaced."""
    if isinstance(state, BaseModel):
        return state.model_copy(update=changes)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **changes)
    return {**cast(Mapping[str, Any], state), **changes}


def of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a state; says so to type checkers, which do not know LangGraph's types here."""
    return function


def builder(state: Any) -> Any:
    return StateGraph(state)


# Bodies -------------------------------------------------------------------------------------------


class EchoModel(BaseChatModel):
    """Repeats its prompt word by word. With tools it first calls `lookup`."""

    with_tools: bool = False

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        if self.with_tools and messages[-1].type != "tool":
            return tool_call()
        return AIMessage(f"you said {messages[-1].text} ok")

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        if answer.tool_calls:
            chunk = AIMessageChunk(
                content="",
                tool_call_chunks=[
                    {
                        "name": "lookup",
                        "args": '{"query": "q"}',
                        "id": "call-1",
                        "index": 0,
                        "type": "tool_call_chunk",
                    }
                ],
            )
            yield ChatGenerationChunk(message=chunk)
            return
        for word in re.split(r"(\s)", answer.text):
            part = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager is not None:
                run_manager.on_llm_new_token(word, chunk=part)
            yield part

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return self.model_copy(update={"with_tools": True})


def tool_call() -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "lookup", "args": {"query": "q"}, "id": "call-1"}])


class Worker:
    """The common work of all node bodies: write to the stream, ask a model, return an update or fail."""

    def __init__(self, label: str, *, fails: bool = False, leave: Callable[[Any], Any] = bare) -> None:
        self.label = label
        self.fails = fails
        self.leave = leave
        self.model = EchoModel()

    def begin(self, state: Any) -> str:
        text = f"{self.label} {get(state, 'n', 0)}"
        get_stream_writer()({"from": text})
        return text

    def end(self, text: str) -> Any:
        if self.fails:
            raise ValueError(f"{text} failed")
        return self.leave({"log": [text]})

    def work(self, state: Any) -> Any:
        text = self.begin(state)
        self.model.invoke(text)
        return self.end(text)

    async def awork(self, state: Any) -> Any:
        text = self.begin(state)
        await self.model.ainvoke(text)
        return self.end(text)

    def with_prefix(self, prefix: str, state: Any) -> Any:
        return self.work(changed(state, n=f"{prefix}{get(state, 'n', 0)}"))

    def step_out(self, state: Any) -> Any:
        return self.end(self.begin(state))


class WorkRunnable(Runnable[Any, Any]):
    """A Runnable of the user's own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self.worker.work(input)


BODIES = (
    "function",
    "async function",
    "method",
    "partial",
    "Runnable",
    "RunnableLambda",
    "LCEL sequence",
    "ToolNode",
    "subgraph",
    "called subgraph",
    "called governed subgraph",
    "create_agent",
)
COMMANDING = frozenset(BODIES) - {"subgraph", "create_agent"}
"""Bodies that can return a command themselves."""


def body(
    kind: str,
    state: Any,
    *,
    label: str = "work",
    fails: bool = False,
    leave: Callable[[Any], Any] = bare,
    governing: Governing = bare,
    worker: Worker | None = None,
    message: bool = False,
) -> Any:
    """A node's body of that kind; `message`: a tool returns what `leave` makes of its message."""
    worker = worker or Worker(label, fails=fails, leave=leave)
    message = message or leave is not bare
    match kind:
        case "function":

            def function(state: Any) -> Any:
                return worker.work(state)

            return function
        case "async function":

            async def async_function(state: Any) -> Any:
                return await worker.awork(state)

            return async_function
        case "method":
            return worker.work
        case "partial":
            return functools.partial(worker.with_prefix, "p")
        case "Runnable":
            return WorkRunnable(worker)
        case "RunnableLambda":
            return RunnableLambda(worker.work, worker.awork)
        case "LCEL sequence":
            prompt = RunnableLambda(worker.begin, name="prompt")
            return prompt | worker.model | RunnableLambda(_text) | RunnableLambda(worker.end)
        case "ToolNode":
            return ToolNode([lookup(worker, message=message)], handle_tool_errors=False)
        case "subgraph":
            return inner_graph(worker, state)
        case "called subgraph" | "called governed subgraph":
            called = inner_graph(Worker(label), state)
            if kind == "called governed subgraph":
                called = governing(called)

            def calls(state: Any) -> Any:
                values = called.invoke({"n": get(state, "n", 0), "log": []})
                return worker.end(get(values, "log")[-1])

            async def acalls(state: Any) -> Any:
                values = await called.ainvoke({"n": get(state, "n", 0), "log": []})
                return worker.end(get(values, "log")[-1])

            return RunnableLambda(calls, acalls, name="calls")
        case "create_agent":
            return create_agent(EchoModel(), [lookup(worker)], name="agent")
        case _:
            raise AssertionError(kind)


def _text(message: BaseMessage) -> str:
    return message.text


def lookup(worker: Worker, *, message: bool = False) -> Any:
    def lookup(query: str) -> Any:
        """Look `query` up."""
        get_stream_writer()({"looked up": query})
        if worker.fails:
            raise ValueError(f"{worker.label} failed")
        if not message:
            return f"about {query}"
        answer = {"role": "tool", "content": f"about {query}", "tool_call_id": "call-1"}
        return worker.leave({"messages": [answer]})

    return StructuredTool.from_function(lookup)


def inner_graph(worker: Worker, state: Any) -> Any:
    """A graph of two nodes; the second one does the worker's work."""
    graph = builder(state)
    graph.add_node("inside", of(lambda state: {"log": ["inside"]}))
    graph.add_node("deep", worker.work if worker.leave is bare else worker.step_out)
    graph.add_edge(START, "inside")
    graph.add_edge("inside", "deep")
    graph.add_edge("deep", END)
    return graph.compile()


# Graphs -------------------------------------------------------------------------------------------

TOPOLOGIES = ("static", "conditional", "Send", "Command", "Command.PARENT", "join", "defer", "loop")
PARALLEL = frozenset({"Send", "join", "defer"})


def first(state: Any) -> Any:
    return {"log": ["first"], "n": get(state, "n", 0) + 1, "messages": [tool_call()]}


def last(state: Any) -> Any:
    return {"log": [f"last after {len(get(state, 'log', []))}"]}


def to_last(state_kind: str, update: Any) -> Any:
    return Command(update=_for_command(state_kind, update), goto="last")


def to_last_of_parent(state_kind: str, update: Any) -> Any:
    return Command(graph=Command.PARENT, update=_for_command(state_kind, update), goto="last")


def _for_command(state_kind: str, update: Any) -> Any:
    return [("__root__", update)] if state_kind == "dict" else update


def make(
    kind: str, state_kind: str, topology: str, *, fails: bool = False, governing: Governing = bare
) -> Any:
    """A builder: `first`, `work` (a body of that kind), `last`, and what the topology has besides."""
    state = STATES[state_kind]
    graph = builder(state)
    graph.add_node("first", first)
    graph.add_node("last", last, defer=topology == "defer")
    graph.add_edge(START, "first")
    graph.add_edge("last", END)
    work = functools.partial(body, kind, state, fails=fails, governing=governing)
    here = functools.partial(to_last, state_kind)
    up = functools.partial(to_last_of_parent, state_kind)

    def other(given: Any) -> Any:
        update = {"log": ["other"]}
        return update if state_kind in ("dict", "TypedDict") else state(**update)

    match topology:
        case "static":
            graph.add_node("work", work())
            graph.add_edge("first", "work")
            graph.add_edge("work", "last")
        case "conditional":
            graph.add_node("work", work())
            graph.add_node("other", other)
            graph.add_conditional_edges("first", of(lambda state: "work"), ["work", "other"])
            graph.add_conditional_edges("work", of(lambda state: ["other"]), ["other", "last"])
            graph.add_edge("other", "last")
        case "Send":
            graph.add_node("work", work())

            def fan_out(state: Any) -> Any:
                return [Send("work", changed(state, n=n)) for n in range(3)]

            graph.add_conditional_edges("first", fan_out, ["work"])
            graph.add_edge("work", "last")
        case "Command":
            graph.add_node("other", other)
            if kind in COMMANDING:
                graph.add_node("work", work(leave=here), destinations=("last",))
            else:
                graph.add_node("work", work())
                graph.add_node(
                    "go", of(lambda state: [replace(here({"log": ["go"]}), goto=()), Command(goto="last")])
                )
                graph.add_edge("work", "go")
            graph.add_node("choose", of(lambda state: Command(goto=["work", Send("other", state)])))
            graph.add_edge("first", "choose")
        case "Command.PARENT":
            inner = builder(state)
            if kind in COMMANDING:
                inner.add_node("work", work(leave=up))
            else:
                inner.add_node("work", work())
                inner.add_node("leave", of(lambda state: up({"log": ["leave"]})))
                inner.add_edge("work", "leave")
            inner.add_edge(START, "work")
            graph.add_node("team", inner.compile(), destinations=("last",))
            graph.add_edge("first", "team")
        case "join":
            graph.add_node("work", work())
            graph.add_node("other", other)
            graph.add_node("another", other)
            graph.add_edge("first", "work")
            graph.add_edge("first", "other")
            graph.add_edge("other", "another")
            graph.add_edge(["work", "another"], "last")
        case "defer":
            graph.add_node("work", work())
            graph.add_node("other", other)
            graph.add_node("another", other)
            graph.add_edge("first", "work")
            graph.add_edge("first", "other")
            graph.add_edge("other", "another")
            graph.add_edge("another", "last")
            graph.add_edge("work", "last")
        case "loop":
            graph.add_node("work", work())
            graph.add_edge("first", "work")
            graph.add_conditional_edges(
                "work", of(lambda state: "first" if get(state, "n") < 3 else "last"), ["first", "last"]
            )
        case _:
            raise AssertionError(topology)
    return graph


# Checkpointers ------------------------------------------------------------------------------------

SAVERS = ("none", "memory", "SQLite")


@contextmanager
def saver(kind: str) -> Generator[Any]:
    if kind == "SQLite":
        with SqliteSaver.from_conn_string(":memory:") as sqlite:
            yield sqlite
    else:
        yield InMemorySaver() if kind == "memory" else None


@asynccontextmanager
async def asaver(kind: str) -> AsyncGenerator[Any]:
    if kind == "SQLite":
        async with AsyncSqliteSaver.from_conn_string(":memory:") as sqlite:
            yield sqlite
    else:
        yield InMemorySaver() if kind == "memory" else None


# Values that compare ------------------------------------------------------------------------------

_RANDOM = re.compile(
    r"(?P<id>[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})"
    r"|(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?)"
    r"|(?P<address>0x[0-9a-f]{6,})"
    # A channel version of the in-memory and SQLite savers ends in a random fraction.
    r"|(?P<version>(?<=\d{32})\.[\d.e-]+)"
)


@functools.lru_cache(maxsize=10_000)
def _is_random(text: str) -> bool:
    return _RANDOM.search(text) is not None


class Names:
    """Replaces what is random. `ordered=False`: without saying which is which, for parallel branches."""

    def __init__(self, *, ordered: bool = True) -> None:
        self.ordered = ordered
        self._known: dict[str, str] = {}

    def scrub(self, text: str) -> str:
        return _RANDOM.sub(self._name, text) if _is_random(text) else text

    def _name(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind != "id" or not self.ordered:
            return f"<{kind}>"
        return self._known.setdefault(match[0].replace("-", ""), f"<id {len(self._known)}>")

    def plain(self, value: Any) -> Any:
        """`value` as data: types named, random parts replaced."""
        # First what is found most often: to look up the class of anything else takes long.
        kind: Any = value.__class__
        if kind is str:
            return self.scrub(value)
        if kind is dict:
            return {self.scrub(str(k)): self.plain(v) for k, v in value.items() if k not in _UNCOMPARABLE}
        if kind is list or kind is tuple:
            return self.listed(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, BaseException):
            return [type(value).__qualname__, self.plain(value.args), self.scrub(str(value))]
        if isinstance(value, BaseMessage):
            # LangGraph names a nameless message in place, at a time that depends on the checkpointer's thread.
            shown = dict(value)
            if shown["id"] is None or _RANDOM.search(shown["id"]):
                shown["id"] = "<some id>"
            return [type(value).__qualname__, self.plain(shown)]
        if isinstance(value, BaseModel):
            return [type(value).__qualname__, self.plain(dict(value))]
        if isinstance(value, Send):
            return ["Send", value.node, self.plain(value.arg)]
        if is_dataclass(value) and not isinstance(value, type):
            own = {f.name: self.plain(getattr(value, f.name, None)) for f in fields(value)}
            return [type(value).__qualname__, own]
        if isinstance(value, Mapping):
            items = cast(Any, value).items()
            return {self.scrub(str(k)): self.plain(v) for k, v in items if k not in _UNCOMPARABLE}
        if isinstance(value, tuple) and hasattr(cast(Any, value), "_fields"):
            named = cast(Any, value)
            return [type(named).__qualname__, {n: self.plain(getattr(named, n)) for n in named._fields}]
        if isinstance(value, list | tuple):
            return self.listed(cast(Sequence[Any], value))
        if isinstance(value, set | frozenset):
            return sorted(map(str, cast(set[Any], value)))
        return self.scrub(repr(value))

    def listed(self, values: Sequence[Any]) -> list[Any]:
        found = [self.plain(value) for value in values]
        return found if self.ordered else sorted(found, key=repr)


_UNCOMPARABLE = frozenset({"callbacks", "__pregel_runtime"})


class _AsIs(Names):
    """Data now, names later: a node may change what a handler was given."""

    def scrub(self, text: str) -> str:
        return text


_AS_IS = _AsIs()


def as_is(value: Any) -> Any:
    """`value` as data, with its names to be replaced later, together with those of other values."""
    return _AS_IS.plain(value)


# Traces -------------------------------------------------------------------------------------------


_UNTOLD = frozenset({"serialized", "invocation_params", "options"})


class Recorder(BaseCallbackHandler):
    """All events that a callback handler receives, in order."""

    run_inline = True

    def __init__(self) -> None:
        self.events: list[Any] = []

    def _add(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        told = {k: v for k, v in kwargs.items() if k not in _UNTOLD}
        if metadata := told.get("metadata"):
            # LangGraph's own handler adds tags to the same dict, before or after this one.
            told["metadata"] = {k: v for k, v in metadata.items() if k != "tags"}
        if kind.endswith("_start"):
            args = args[1:]
        self.events.append([kind, _AS_IS.plain(args), _AS_IS.plain(told)])

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        self._add("chain_start", args, kwargs)

    def on_chain_end(self, *args: Any, **kwargs: Any) -> None:
        self._add("chain_end", args, kwargs)

    def on_chain_error(self, *args: Any, **kwargs: Any) -> None:
        self._add("chain_error", args, kwargs)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self._add("chat_model_start", args, kwargs)

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        self._add("llm_new_token", args, kwargs)

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self._add("llm_end", args, kwargs)

    def on_llm_error(self, *args: Any, **kwargs: Any) -> None:
        self._add("llm_error", args, kwargs)

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        self._add("tool_start", args, kwargs)

    def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
        self._add("tool_end", args, kwargs)

    def on_tool_error(self, *args: Any, **kwargs: Any) -> None:
        self._add("tool_error", args, kwargs)

    def on_custom_event(self, *args: Any, **kwargs: Any) -> None:
        self._add("custom_event", args, kwargs)


# Observing ----------------------------------------------------------------------------------------

MODES = ("values", "updates", "custom", "messages", "debug", "tasks", "checkpoints")
ENTRIES = ("invoke", *MODES, "list", "subgraphs", "v2", "events", "batch")
Driver = Literal["sync", "async"]
INPUT: dict[str, Any] = {"log": ["in"], "n": 0, "messages": [HumanMessage("hello", id="hello")]}


def config_of(thread: str, recorder: BaseCallbackHandler | None, limit: int | None) -> RunnableConfig:
    config: RunnableConfig = {
        "configurable": {"thread_id": thread},
        "callbacks": None if recorder is None else [recorder],
        "tags": ["mine"],
        "metadata": {"whose": "mine"},
        "recursion_limit": 30,
    }
    if limit is not None:
        config["max_concurrency"] = limit
    return config


def _options(entry: str) -> dict[str, Any]:
    match entry:
        case "list":
            return {"stream_mode": list(MODES)}
        case "subgraphs":
            return {"stream_mode": list(MODES), "subgraphs": True}
        case "v2":
            return {"stream_mode": list(MODES), "subgraphs": True, "version": "v2"}
        case _:
            return {"stream_mode": entry}


@dataclass
class Observed:
    """The observations of a run: its chunks or outputs, and the exception that ended it."""

    chunks: list[Any] = field(default_factory=list[Any])
    error: BaseException | None = None


def run(graph: Any, entry: str, given: Any, config: RunnableConfig, **options: Any) -> Observed:
    """Run `graph` from that entry point, and keep what comes out."""
    seen = Observed()
    try:
        match entry:
            case "invoke":
                seen.chunks.append(graph.invoke(given, config, **options))
            case "batch":
                seen.chunks.extend(graph.batch([given, given], _two(config), **options))
            case "events":
                seen.chunks.append(graph.invoke(given, config, version="v2", **options))
            case _:
                for chunk in graph.stream(given, config, **_options(entry), **options):
                    seen.chunks.append(_AS_IS.plain(chunk))
    except Exception as exc:
        seen.error = exc
    return seen


async def arun(graph: Any, entry: str, given: Any, config: RunnableConfig, **options: Any) -> Observed:
    """As `run`, with `await`."""
    seen = Observed()
    try:
        match entry:
            case "invoke":
                seen.chunks.append(await graph.ainvoke(given, config, **options))
            case "batch":
                seen.chunks.extend(await graph.abatch([given, given], _two(config), **options))
            case "events":
                async for event in graph.astream_events(given, config, version="v2", **options):
                    seen.chunks.append(_AS_IS.plain(event))
            case _:
                async for chunk in graph.astream(given, config, **_options(entry), **options):
                    seen.chunks.append(_AS_IS.plain(chunk))
    except Exception as exc:
        seen.error = exc
    return seen


def _two(config: RunnableConfig) -> list[RunnableConfig]:
    own = config.get("configurable", {})["thread_id"]
    return [{**config, "configurable": {"thread_id": thread}} for thread in (own, f"{own} again")]


def account(
    seen: Observed,
    recorder: Recorder,
    snapshots: Sequence[Any],
    *,
    ordered: bool = True,
) -> dict[str, Any]:
    """All observations as data."""
    names = Names(ordered=ordered)
    return {
        "error": names.plain(seen.error),
        "notes": names.plain(list(getattr(seen.error, "__notes__", ()))),
        "chunks": names.listed(seen.chunks),
        "events": names.listed(recorder.events),
        "snapshots": names.listed(snapshots),
    }


def raw_checkpoints(saved: Sequence[Any], *, ordered: bool = True) -> list[Any]:
    """The content of a checkpointer, including pending writes."""
    return Names(ordered=ordered).listed(saved)


# Pairwise -----------------------------------------------------------------------------------------


def pairwise(*dimensions: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few rows in which each two values of any two dimensions meet."""
    missing = {
        ((i, a), (j, b))
        for (i, left), (j, right) in itertools.combinations(enumerate(dimensions), 2)
        for a, b in itertools.product(left, right)
    }
    order = sorted(missing, key=repr)
    rows: list[tuple[Any, ...]] = []
    while missing:
        seed = next(pair for pair in order if pair in missing)
        row = dict(seed)
        for i, values in enumerate(dimensions):
            if i not in row:
                turn = len(rows) % len(values)  # so that values of equal gain take turns
                turned = [*values[turn:], *values[:turn]]
                row[i] = max(turned, key=functools.partial(_gain, row, i, missing))
        rows.append(tuple(row[i] for i in range(len(dimensions))))
        cells = sorted(row.items())
        missing -= set(itertools.combinations(cells, 2))
    return rows


def _gain(row: dict[int, Any], i: int, missing: set[Any], value: Any) -> int:
    pairs = (((i, value), cell) if i < cell[0] else (cell, (i, value)) for cell in row.items())
    return sum(1 for pair in pairs if pair in missing)
