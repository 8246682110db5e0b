"""Facts in a governed graph: learned from real turns, sync and async, and nowhere to be seen but in the store."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from arbiter import ArbiterOS
from arbiter.memory import EvaluationCycle, FactsProvider, MemoryStore
from arbiter.memory._records import Fact
from arbiter.memory.facts import FactEvaluator, FactStore
from tests.memory.facts_support import START as NOON
from tests.memory.facts_support import answer
from tests.scripted import Scripted
from tests.support import MODES, Chat, run


def config(user: str = "user-1", room: str = "room-1") -> RunnableConfig:
    return {"configurable": {"thread_id": room, "user_id": user}}


def chat(node: Any = None) -> Any:
    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]}

    builder = StateGraph(Chat).add_node("reply", node or reply).add_edge(START, "reply")
    return builder.compile(checkpointer=InMemorySaver())


def governed(
    store: BaseStore, *answers: Any, node: Any = None, **options: Any
) -> tuple[ArbiterOS, Any, Scripted]:
    model = Scripted(answers=list(answers))
    given: dict[str, Any] = {
        "store": store, "evaluator_model": model, "conversation_length": 2, "clock": lambda: NOON, **options,
    }  # fmt: skip
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(EvaluationCycle(**given))
    arbiter_os.add_evaluator(FactEvaluator())
    return arbiter_os, arbiter_os.govern(chat(node), {"reply": "GENERATE"}), model


def known(store: BaseStore, user: str = "user-1") -> list[Fact]:
    learned = FactStore(MemoryStore(store), agent_id="agent", clock=lambda: NOON)
    return asyncio.run(learned.facts(user, state=None))


def said(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


@pytest.mark.lengthy
@MODES
def test_a_graph_learns_from_its_turns(mode: str, any_store: BaseStore) -> None:
    arbiter_os, app, model = governed(any_store, answer("User lives in Seattle"))
    for mentions, confidence in ((1, 0.6), (2, 0.72), (3, 0.804)):
        state = run(app, said("I live in Seattle"), config(), mode=mode)
        [fact] = known(any_store)
        assert fact.mention_count == mentions
        assert fact.confidence == pytest.approx(confidence)
        assert state["messages"][-1].text == "ok"
    assert (fact.subject, fact.speaker, fact.first_seen_at) == ("user-1", "user-1", NOON)
    humans = [message.id for message in state["messages"] if isinstance(message, HumanMessage)]
    assert list(fact.source_message_ids) == humans
    item = arbiter_os.history.last(node="reply")
    assert item is not None
    assert item.evaluation_results["GET_FACTS"].metadata["fact_ids"] == [fact.id]
    assert model.calls == 3


@MODES
@pytest.mark.parametrize("idle", [False, True])
def test_a_fact_names_the_checkpoint_that_it_was_learned_from(mode: str, idle: bool) -> None:
    store = InMemoryStore()
    length = {"conversation_length": 32} if idle else {}
    arbiter_os, app, _ = governed(store, answer("User lives in Seattle"), **length)
    run(app, said("I live in Seattle"), config(), mode=mode)
    assert arbiter_os.drain(20)
    [fact] = known(store)
    [before] = [each for each in app.get_state_history(config()) if each.next == ("reply",)]
    assert fact.origin["checkpoint_id"] == before.config["configurable"]["checkpoint_id"]


@MODES
def test_an_entrypoint_that_saves_its_messages_is_a_conversation(mode: str) -> None:
    """As LangGraph's page about the functional API writes a chat: a list comes in, one message is the value."""
    store, saver = InMemoryStore(), InMemorySaver()
    heard: list[list[str]] = []

    @entrypoint(checkpointer=saver)
    def talk(said: Any, *, previous: Any = None) -> Any:
        messages: Any = add_messages(previous or [], said)
        heard.append([message.text for message in messages])
        reply: Any = AIMessage("ok", id=f"reply-{len(heard)}")
        return entrypoint.final(value=reply, save=add_messages(messages, [reply]))

    cycle = EvaluationCycle(
        store=store, evaluator_model=Scripted(answers=[answer("User is in Seattle")]), conversation_length=2
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    arbiter_os.add_advisor(FactsProvider())
    app: Any = arbiter_os.govern(cast(Any, talk))
    for text in ("I am in Seattle", "Which city?"):
        run(app, [HumanMessage(text)], config(), mode=mode)
    assert [fact.claim for fact in cycle.memory.facts("user-1")] == ["User is in Seattle"]
    assert heard[1][:2] == ["I am in Seattle", "ok"]
    assert "User is in Seattle" in heard[1][2]
    assert "User is in Seattle" not in repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)
    assert not any(item.errors for item in arbiter_os.history_of(thread_id="room-1").items())


def test_learned_facts_are_in_no_log_and_no_history(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="arbiter")
    store = InMemoryStore()
    arbiter_os, app, _ = governed(store, answer("User is called Xanthippe"), "garbage")
    app.invoke(said("Call me by my name"), config())
    app.invoke(said("again"), config())
    item = arbiter_os.history.last(node="reply")
    assert item is not None
    assert item.evaluation_errors == {"GET_FACTS": "UnusableAnswerError in handler"}
    results = [found.evaluation_results for row in arbiter_os.history.entries for found in row]
    for text in (repr(results), repr(item.evaluator_trace), caplog.text, arbiter_os.history.to_jsonl()):
        assert "Xanthippe" not in text


def test_a_node_that_was_interrupted_is_one_turn() -> None:
    def reply(state: Any) -> Any:
        interrupt("really?")
        return {"messages": [AIMessage("ok")]}

    store = InMemoryStore()
    _, app, model = governed(store, answer("User has a cat"), node=reply)
    app.invoke(said("I have a cat"), config())
    assert model.calls == 0
    app.invoke(Command(resume="yes"), config())
    assert [fact.mention_count for fact in known(store)] == [1]


@pytest.mark.lengthy
def test_many_rooms_at_once_count_every_mention(any_store: BaseStore) -> None:
    _, app, _ = governed(any_store, answer("User lives in Seattle"))

    def turn(number: int) -> None:
        app.invoke(said("Seattle"), config(room=f"room-{number % 10}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(20)))
    [fact] = known(any_store)
    assert fact.mention_count == len(fact.source_message_ids) == 20


@pytest.mark.lengthy
def test_in_the_background_nothing_is_lost() -> None:
    store = InMemoryStore()
    arbiter_os, app, _ = governed(store, answer("User lives in Seattle"), mode="background")
    for number in range(10):
        app.invoke(said("Seattle"), config(room=f"room-{number % 3}"))
    arbiter_os.drain(30)
    [fact] = known(store)
    assert fact.mention_count == 10


def test_a_history_that_is_sent_again_is_heard_once() -> None:
    """Without a checkpointer a client sends the whole conversation in each turn, and LangGraph names it anew."""
    app, store = without_checkpointer()
    sent: list[Any] = []
    sources: list[tuple[str, ...]] = []
    for text in ("I live in Oslo", "ok", "ok"):
        sent.append({"role": "user", "content": text})
        app.invoke({"messages": sent}, config())
        sent.append({"role": "assistant", "content": "ok"})
        sources.append(known(store)[0].source_message_ids)
    # Each time one message is new, the two that say "ok" are two.
    assert [len(ids) for ids in sources] == [1, 2, 3]
    assert [ids[: len(sources[0])] for ids in sources] == [sources[0]] * 3


def test_a_client_that_sends_only_its_newest_message_is_heard() -> None:
    """Without a checkpointer, and although the agent gives the same answer each time."""
    app, store = without_checkpointer()
    for number, text in enumerate(("I live in Oslo", "My home is Oslo", "Oslo is where I live"), 1):
        app.invoke({"messages": [{"role": "user", "content": text}]}, config())
        assert known(store)[0].mention_count == number


def without_checkpointer() -> tuple[Any, InMemoryStore]:
    """A governed chat that answers "ok", and its store."""

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]}

    store = InMemoryStore()
    arbiter_os = ArbiterOS()
    model = Scripted(answers=[answer("User lives in Oslo")])
    cycle = EvaluationCycle(store=store, evaluator_model=model, conversation_length=2, clock=lambda: NOON)
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    builder = StateGraph(Chat).add_node("reply", reply).add_edge(START, "reply")
    return arbiter_os.govern(builder.compile(), {"reply": "GENERATE"}), store
