"""Memory leaves messages as LangGraph leaves them: where it gives no ids, the state has none, and records refer to
ids of memory's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from arbiter import ArbiterOS
from arbiter._values.states import ROOT, as_state
from arbiter.memory import (
    CognitiveEvaluator,
    EvalContext,
    EvaluationCycle,
    Fact,
    FactEvaluator,
    HandlerOutcome,
    Provider,
    ProviderContext,
    ProviderResult,
    open_store,
)
from tests.memory.dialogue_support import Chat
from tests.support import MODES, run

ADA: Any = {"configurable": {"thread_id": "t1", "user_id": "ada"}}
SAID = ("I live in Oslo.", "My cat is called Pixel.", "Yes", "Yes")


class Replaced(TypedDict):
    messages: list[Any]


class Added(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Concatenated(TypedDict):
    messages: Annotated[list[Any], operator.concat]


def last(state: Any) -> Any:
    return {"messages": [AIMessage("OK.")]}


def whole(state: Any) -> Any:
    return {"messages": [*state["messages"], AIMessage("OK.")]}


def copies(state: Any) -> Any:
    return {"messages": [*(part.model_copy() for part in state["messages"]), AIMessage("OK.")]}


def trimmed(state: Any) -> Any:
    return {"messages": [*state["messages"][-3:], AIMessage("OK.")]}


def one(schema: Any, node: Any, saver: Any = None) -> Any:
    return StateGraph(schema).add_node("reply", node).add_edge(START, "reply").compile(checkpointer=saver)


def root(saver: Any) -> Any:
    def node(messages: Any) -> Any:
        return [AIMessage("OK.")]

    return one(Annotated[list[Any], operator.add], node, saver)


def nested(saver: Any) -> Any:
    return one(Replaced, one(Replaced, whole), saver)


def functional(saver: Any) -> Any:
    decorate: Any = entrypoint(checkpointer=saver)
    return decorate(whole)


FORMS: dict[str, Callable[[Any], Any]] = {
    "replaced": partial(one, Replaced, last),
    "replaced-whole": partial(one, Replaced, whole),
    "added": partial(one, Added, last),
    "concatenated": partial(one, Concatenated, last),
    "root": root,
    "nested": nested,
    "functional": functional,
}


class Watcher(CognitiveEvaluator):
    """Notes the messages of each turn as evaluators get them."""

    needs_messages = False

    def __init__(self) -> None:
        super().__init__("WATCHER", always_run=True)
        self.heard: list[list[BaseMessage]] = []
        self.new: list[list[str]] = []

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        self.heard.append([*ctx.messages])
        self.new.append([part.text for part in ctx.new_messages])
        return HandlerOutcome()


def governed(graph: Any, evaluator: CognitiveEvaluator) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(EvaluationCycle(store=InMemoryStore()))
    arbiter_os.add_evaluator(evaluator)
    return arbiter_os, arbiter_os.govern(graph)


def shown(values: Any) -> list[tuple[str, str, str | None]]:
    state = as_state(values)
    parts: list[BaseMessage] = state.get("messages") or state.get(ROOT) or []
    return [(part.type, part.text, part.id) for part in parts]


@MODES
@pytest.mark.parametrize("form", FORMS)
def test_messages_without_ids_stay_so_in_outputs_and_checkpoints(form: str, mode: str) -> None:
    bare = FORMS[form](InMemorySaver())
    app = governed(FORMS[form](InMemorySaver()), Watcher())[1]
    given: Any = [HumanMessage("Hi")] if form == "root" else {"messages": [HumanMessage("Hi")]}
    seen = [
        [shown(run(graph, given, ADA, mode=mode)), *(shown(s.values) for s in graph.get_state_history(ADA))]
        for graph in (bare, app)
    ]
    assert seen[0] == seen[1]
    assert [id for _, _, id in seen[0][0]] == [None] * len(seen[0][0])


def test_a_graph_around_that_gives_ids_gives_those_that_memory_knows() -> None:
    watcher = Watcher()
    graph = one(MessagesState, one(Replaced, last), InMemorySaver())
    state = governed(graph, watcher)[1].invoke({"messages": [HumanMessage("Hi")]}, ADA)
    assert [[part.id for part in heard] for heard in watcher.heard] == [[p.id for p in state["messages"]]] * 2


LISTENER = Chat({"Oslo": "Ada lives in Oslo", "Pixel": "Ada has a cat called Pixel"}).model


@contextmanager
def process(folder: Path, graph: Any, watcher: Watcher) -> Generator[tuple[Any, EvaluationCycle]]:
    """A graph and its memory as a new process finds them."""
    with open_store(folder / "memory.db") as store:
        cycle = EvaluationCycle(store=store, evaluator_model=LISTENER, conversation_length=2)
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(cycle)
        arbiter_os.add_evaluator(FactEvaluator())
        arbiter_os.add_evaluator(watcher)
        yield arbiter_os.govern(graph), cycle


@MODES
@pytest.mark.parametrize(
    ("schema", "node"),
    [(Added, last), (Replaced, whole), (Replaced, copies), (Replaced, trimmed)],
    ids=["added", "whole", "copies", "trimmed"],
)
def test_each_process_knows_the_messages_of_the_turns_before(
    schema: Any, node: Any, mode: str, tmp_path: Path
) -> None:
    """Facts are learned once, and their sources are found again in later turns."""
    saver = InMemorySaver()
    facts: list[Fact] = []
    for said in SAID:
        watcher = Watcher()
        with process(tmp_path, one(schema, node, saver), watcher) as (app, cycle):
            before: list[Any] = [] if schema is Added else app.get_state(ADA).values.get("messages", [])
            state = run(app, {"messages": [*before, HumanMessage(said)]}, ADA, mode=mode)
            assert {part.id for part in state["messages"]} == {None}
            [heard] = watcher.heard
            assert watcher.new == [["OK."]]
            assert len({part.id for part in heard}) == len(heard)
            if node is not trimmed:
                assert [part.text for part in heard] == [part.text for part in state["messages"]]
            facts = cycle.memory.facts("ada")
            assert {fact.mention_count for fact in facts} == {1}
            for fact in facts:
                ids = {part.id for part in heard if fact.claim.split()[-1] in part.text}
                assert ids <= set(fact.source_message_ids)
    assert sorted(fact.claim for fact in facts) == ["Ada has a cat called Pixel", "Ada lives in Oslo"]


def test_a_stream_of_messages_gives_the_ids_that_memory_knows(tmp_path: Path) -> None:
    saver, watcher = InMemorySaver(), Watcher()
    with process(tmp_path, one(Replaced, whole, saver), watcher) as (app, cycle):
        state: list[Any] = []
        for said in SAID[:2]:
            given = {"messages": [*state, HumanMessage(said)]}
            streamed = [message.id for message, _ in app.stream(given, ADA, stream_mode="messages")]
            state = app.get_state(ADA).values["messages"]
            assert set(streamed) <= {part.id for part in state} == {part.id for part in watcher.heard[-1]}
        assert [fact.mention_count for fact in cycle.memory.facts("ada")] == [1, 1]


def test_what_a_thread_without_ids_has_lost_unread_is_learned_once_it_is_quiet() -> None:
    def shortened(state: Any) -> Any:
        return {"messages": [*state["messages"][-1:], AIMessage("OK.")]}

    arbiter_os = ArbiterOS()
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=LISTENER, conversation_length=16)
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    app: Any = arbiter_os.govern(one(Replaced, shortened, InMemorySaver()))
    for said in SAID[:3]:
        before = app.get_state(ADA).values.get("messages", [])
        app.invoke({"messages": [*before, HumanMessage(said)]}, ADA)
    assert cycle.memory.facts("ada") == []
    arbiter_os.drain()
    assert {fact.claim: fact.mention_count for fact in cycle.memory.facts("ada")} == {
        "Ada has a cat called Pixel": 1,
        "Ada lives in Oslo": 1,
    }


class Burying(CognitiveEvaluator):
    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        await ctx.tombstones.bury([part.id or "" for part in ctx.messages], at=ctx.clock())
        return HandlerOutcome()


class Reading(Provider):
    def __init__(self) -> None:
        super().__init__("reading")
        self.seen: list[list[str]] = []

    def get(self, ctx: ProviderContext) -> ProviderResult:
        self.seen.append([part.text for part in ctx.messages])
        return ProviderResult()


def test_a_resume_in_another_process_finds_the_messages_of_the_turn_before(tmp_path: Path) -> None:
    def asks(state: Any) -> Any:
        return {"messages": [AIMessage(interrupt("Which city?"))]}

    graph = StateGraph(Added).add_sequence([("reply", last), ("ask", asks)]).add_edge(START, "reply")
    watchers = [Watcher(), Watcher()]
    path = str(tmp_path / "graph.db")
    with (
        SqliteSaver.from_conn_string(path) as saver,
        process(tmp_path, graph.compile(checkpointer=saver), watchers[0]) as (app, _),
    ):
        app.invoke({"messages": [HumanMessage(SAID[0])]}, ADA)
    with (
        SqliteSaver.from_conn_string(path) as saver,
        process(tmp_path, graph.compile(checkpointer=saver), watchers[1]) as (app, cycle),
    ):
        state = app.invoke(Command(resume="Bergen"), ADA)
        [fact] = cycle.memory.facts("ada")
    assert {part.id for part in state["messages"]} == {None}
    [before], [after] = (watcher.heard for watcher in watchers)
    assert [part.id for part in after[:-1]] == [part.id for part in before]
    assert (fact.mention_count, [*fact.source_message_ids]) == (1, [before[0].id])


@MODES
@pytest.mark.parametrize("saver", [InMemorySaver, lambda: None], ids=["saved", "unsaved"])
def test_providers_see_no_buried_messages_of_a_thread_without_ids(saver: Any, mode: str) -> None:
    reading = Reading()
    arbiter_os, app = governed(one(Added, last, saver()), Burying("BURYING"))
    arbiter_os.add_advisor(reading)
    state: Any = {"messages": []}
    for said in ("one", "two", "two"):
        before: list[Any] = [] if saver is InMemorySaver else state["messages"]
        state = run(app, {"messages": [*before, HumanMessage(said)]}, ADA, mode=mode)
    assert reading.seen == [["one"], ["two"], ["two"]]


def test_a_message_object_that_a_node_returns_in_each_turn_is_new_in_each() -> None:
    answer = AIMessage("OK.")

    def node(state: Any) -> Any:
        return {"messages": [answer]}

    watcher = Watcher()
    app = governed(one(Added, node), watcher)[1]
    messages: list[Any] = []
    for said in ("one", "two", "two"):
        messages = app.invoke({"messages": [*messages, HumanMessage(said)]}, ADA)["messages"]
    assert watcher.new == [["OK."]] * 3
    assert answer.id is None
