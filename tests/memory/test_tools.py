"""The agent's own tools: they search, remember and forget for the user of the run alone."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from langchain.agents import create_agent as create_langchain_agent  # pyright: ignore[reportUnknownVariableType]
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from arbiter import ArbiterOS, ConfigurationError
from arbiter.checkers import ToolsChecker
from arbiter.errors import PolicyViolationError
from arbiter.memory import (
    EvaluationCycle,
    Fact,
    FactEvaluator,
    FactRules,
    FactsProvider,
    ReflectionEvaluator,
    memory_tools,
)
from tests.memory.dialogue_support import Chat
from tests.memory.facts_support import answer
from tests.scripted import Scripted, ScriptedTools, tool_call
from tests.support import MODES, run

SOURCE = "m1"
create_agent = cast(Any, create_langchain_agent)


def config(user: str | None = "ada", room: str | None = "room") -> RunnableConfig:
    given = {"user_id": user, "thread_id": room}
    return {"configurable": {name: id for name, id in given.items() if id is not None}}


def call(name: str, said: str = "Hello", id: str = SOURCE, **arguments: Any) -> dict[str, Any]:
    """The state of an agent that has decided to call a tool."""
    return {"messages": [HumanMessage(said, id=id), tool_call(name, arguments)]}


class Agent:
    """A graph with a `ToolNode`, governed, and its memory."""

    def __init__(
        self, *, mode: str = "invoke", graphs_store: bool = False, saver: Any = None, **options: Any
    ) -> None:
        store = InMemoryStore()
        self.mode = mode
        self.cycle = EvaluationCycle(store=None if graphs_store else store, **options)
        builder = StateGraph(MessagesState).add_node("tools", ToolNode(memory_tools(self.cycle)))
        graph = builder.add_edge(START, "tools").compile(store=store, checkpointer=saver)
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        self.app: Any = self.arbiter_os.govern(graph, {"tools": "TOOL_CALL"})
        self.memory = EvaluationCycle(store=store, **options).memory

    def calls(self, name: str, said: str = "Hello", *, user: str | None = "ada", **known: Any) -> str:
        room, id = known.pop("room", "room"), known.pop("id", SOURCE)
        state = run(self.app, call(name, said, id, **known), config(user, room), mode=self.mode)
        found = state["messages"][-1]
        assert isinstance(found, ToolMessage)
        return str(found.content)

    def known(self, user: str = "ada") -> list[str]:
        return [fact.claim for fact in self.memory.facts(user)]


def _is_private(config: RunnableConfig) -> bool:
    return config.get("configurable", {}).get("thread_id") == "private"


def fact_of(agent: Agent, user: str = "ada") -> Fact:
    [fact] = agent.memory.facts(user)
    return fact


# What they do -------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("graphs_store", [False, True])
def test_an_agent_remembers_finds_and_forgets(mode: str, graphs_store: bool) -> None:
    """From one conversation to another, with the store of the cycle or of the graph."""
    agent = Agent(mode=mode, graphs_store=graphs_store)
    said = agent.calls("remember", "I can't stand coriander", claim="Ada dislikes coriander")
    assert said == f"Remembered as [{fact_of(agent).id}]."
    found = agent.calls("search_memory", query="does she like coriander?", room="another")
    assert f"[{fact_of(agent).id}] [conf=0.60" in found
    assert "Ada dislikes coriander" in found
    assert agent.calls("search_memory", query="zebra", room="another") == "Nothing is known about that."
    assert agent.calls("forget_memory", ids=[f"[{fact_of(agent).id}]"]) == "Forgotten: 1 record."
    assert agent.known() == []


@MODES
@pytest.mark.parametrize("query", [{}, {"query": ""}, {"query": " "}, {"query": None}, {"query": "*"}])
def test_without_a_query_the_latest_records_are_found(mode: str, query: dict[str, Any]) -> None:
    """A user asks what is known, and has no word for it."""
    agent = Agent(mode=mode, is_private=_is_private)
    assert agent.calls("search_memory", **query) == "Nothing is known about that."
    agent.calls("remember", claim="Ada plans a party", room="private")
    agent.calls("remember", claim="Bob lives in Rome", user="bob")
    for claim in ("Ada dislikes coriander", "Ada lives in Oslo"):
        agent.calls("remember", claim=claim)
    found = agent.calls("search_memory", "What do you know about me?", room="office", **query)
    assert [line.split("] ")[-1] for line in found.splitlines()[1:]] == [
        "Ada lives in Oslo",
        "Ada dislikes coriander",
    ]


@MODES
def test_the_users_newest_message_is_the_source(mode: str) -> None:
    agent = Agent(mode=mode)
    agent.calls("remember", "I moved to Oslo", claim="Ada lives in Oslo", type="status")
    fact = fact_of(agent)
    assert (fact.source_message_ids, fact.speaker, fact.type) == ((SOURCE,), "ada", "status")
    assert (fact.room_ids, fact.provenance, fact.confidence) == (("room",), "self_reported", 0.6)
    assert "was known already" in agent.calls(
        "remember", "Oslo, as I said", id="m2", claim="Ada lives in Oslo"
    )
    assert fact_of(agent).mention_count == 2


@MODES
@pytest.mark.parametrize("saved", [False, True])
def test_what_a_tool_and_an_evaluator_find_in_one_message_counts_once(mode: str, saved: bool) -> None:
    """Also without a checkpointer, where LangGraph gives each message a new id in each run."""
    model: Any = ScriptedTools(
        answers=[tool_call("remember", {"claim": "Ada lives in Oslo"}), AIMessage("Noted."), AIMessage("Hm.")]
    )
    listener = Scripted(answers=[answer("Ada lives in Oslo")])
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=listener, conversation_length=2)
    graph = create_agent(model, memory_tools(cycle), checkpointer=InMemorySaver() if saved else None)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    app: Any = arbiter_os.govern(graph)
    run(app, {"messages": [HumanMessage("I live in Oslo")]}, config(), mode=mode)
    assert listener.calls == 1
    [fact] = cycle.memory.facts("ada")
    assert (fact.mention_count, fact.confidence) == (1, 0.6)


@MODES
def test_they_work_in_create_agent_with_one_govern(mode: str) -> None:
    cycle = EvaluationCycle(store=InMemoryStore())
    cycle.memory.remember("ada", "Ada lives in Oslo")
    model: Any = ScriptedTools(
        answers=[tool_call("search_memory", {"query": "lives in"}), AIMessage("In Oslo.")]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_advisor(FactsProvider())  # the node of the tools gets a call, which has no place for notes
    app: Any = arbiter_os.govern(create_agent(model, memory_tools(cycle)))
    state = run(app, {"messages": [HumanMessage("Where do I live?")]}, config(), mode=mode)
    assert not any(item.errors for item in arbiter_os.history.items())
    assert "Ada lives in Oslo" in str(state["messages"][2].content)
    assert state["messages"][-1].text == "In Oslo."


class Reply(BaseModel):
    """The agent's answer."""

    text: str


@MODES
def test_an_agent_that_answers_in_the_form_of_a_schema_has_responded(mode: str) -> None:
    """Its answer is a call of a tool, for models without an output of their own for schemas."""
    model: Any = ScriptedTools(answers=[tool_call("Reply", {"text": "Noted."})])
    listener = Scripted(answers=[answer("Ada lives in Oslo")])
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=listener, conversation_length=2)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    app: Any = arbiter_os.govern(create_agent(model, response_format=ToolStrategy(Reply)))
    state = run(app, {"messages": [HumanMessage("I live in Oslo")]}, config(), mode=mode)
    assert state["structured_response"] == Reply(text="Noted.")
    assert [fact.claim for fact in cycle.memory.facts("ada")] == ["Ada lives in Oslo"]


def test_a_node_may_call_them_without_a_tool_node() -> None:
    cycle = EvaluationCycle(store=InMemoryStore())
    search, remember, _ = memory_tools(cycle)
    assert "Remembered" in remember.invoke({"claim": "Ada bakes"}, config())
    assert "Ada bakes" in search.invoke({"query": "bakes"}, config())


def test_a_model_sees_names_arguments_and_what_they_are_for() -> None:
    tools = {tool.name: tool for tool in memory_tools(EvaluationCycle())}
    assert [*tools] == ["search_memory", "remember", "forget_memory"]
    schemas: dict[str, Any] = {name: tool.tool_call_schema for name, tool in tools.items()}
    shown: dict[str, dict[str, Any]] = {
        name: schema.model_json_schema()["properties"] for name, schema in schemas.items()
    }
    assert {name: [*properties] for name, properties in shown.items()} == {
        "search_memory": ["query"],
        "remember": ["claim", "type"],
        "forget_memory": ["ids"],
    }
    assert all("description" in part for properties in shown.values() for part in properties.values())
    assert all(len(tool.description) > 60 for tool in tools.values())


# What they may not --------------------------------------------------------------------------------


@MODES
def test_another_users_records_are_out_of_reach(mode: str) -> None:
    agent = Agent(mode=mode)
    agent.calls("remember", claim="Bob lives in Rome", user="bob")
    bobs = fact_of(agent, "bob").id
    assert agent.calls("search_memory", query="Bob lives in Rome") == "Nothing is known about that."
    said = agent.calls("forget_memory", ids=[bobs])
    assert said == f"Forgotten: 0 records. No record of this user has the id '{bobs}'."
    assert agent.known("bob") == ["Bob lives in Rome"]


@pytest.mark.parametrize("name", ["user_id", "entity_id", "config", "state"])
def test_an_id_that_the_model_writes_changes_nothing(name: str) -> None:
    agent = Agent()
    forged: Any = "bob" if name.endswith("_id") else {"configurable": {"user_id": "bob"}, "messages": []}
    agent.calls("remember", claim="Likes tea", **{name: forged})
    assert (agent.known("ada"), agent.known("bob")) == (["Likes tea"], [])


@MODES
@pytest.mark.parametrize(
    ("said", "claim", "reason"),
    [
        ("Remember my key", "The key is sk-live-4eC39HqLyjWDarjtT1zdp7dc", "it holds a secret"),
        ("I have diabetes", "Ada has diabetes", "it is sensitive"),
        ("Off the record: I quit", "Ada quits her job", "off the record"),
        ("Hm", "   ", "it is blank"),
    ],
)
def test_what_a_tool_remembers_passes_the_same_privacy_rules(
    said: str, claim: str, reason: str, mode: str
) -> None:
    agent = Agent(mode=mode)
    answered = agent.calls("remember", said, claim=claim)
    assert answered.startswith("Not remembered: ")
    assert reason in answered
    assert agent.memory.facts("ada", None) == []


def test_what_was_told_in_a_private_room_is_found_and_deleted_there_only() -> None:
    agent = Agent(is_private=_is_private)
    agent.calls("remember", claim="Ada plans a party", room="private")
    id = fact_of(agent).id
    assert "Nothing" in agent.calls("search_memory", query="party", room="office")
    assert "Forgotten: 0" in agent.calls("forget_memory", ids=[id], room="office")
    assert "party" in agent.calls("search_memory", query="party", room="private")
    assert "Forgotten: 1" in agent.calls("forget_memory", ids=[id], room="private")


def test_unnamed_users_of_two_threads_share_nothing_and_a_run_without_both_has_no_memory() -> None:
    agent = Agent()
    agent.calls("remember", claim="Likes tea", user=None, room="one")
    assert "Nothing" in agent.calls("search_memory", query="Likes tea", user=None, room="two")
    assert "Likes tea" in agent.calls("search_memory", query="Likes tea", user=None, room="one")
    for _ in range(2):
        said = agent.calls("remember", claim="Likes coffee", user=None, room=None)
        assert said == "There is no memory here: this run names neither a user nor a thread."


def test_a_message_of_another_speaker_is_no_source() -> None:
    agent = Agent()
    agent.cycle.memory.register_entity("bob", "Bob")
    messages = [
        HumanMessage("I bake", id="own"),
        HumanMessage("I fish", id="his", additional_kwargs={"entity_id": "bob"}),
        tool_call("remember", {"claim": "Ada bakes"}),
    ]
    agent.app.invoke({"messages": messages}, config())
    assert fact_of(agent).source_message_ids == ("own",)
    assert agent.known("bob") == []


async def test_no_later_prompt_repeats_what_a_tool_was_asked_to_forget() -> None:
    chat = Chat({"live in": "User lives in Oslo"})
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    _, _, forget = memory_tools(chat.cycle)
    await chat.say("I live in Oslo")
    asks = HumanMessage("Please forget that Oslo is my home", id="m2")
    arguments = {"ids": [(await chat.fact("User lives in Oslo")).id], "state": {"messages": [asks]}}
    assert await forget.ainvoke(arguments, config("user-1", "room-1")) == "Forgotten: 1 record."
    calls = chat.model.calls
    await chat.say(asks)
    await chat.say("and what about cheese?")
    shown = [
        prompt for prompt in map(chat.model.prompt, range(calls, chat.model.calls)) if asks.text in prompt
    ]
    assert ["The new messages:" in prompt for prompt in shown] == [True]  # once, by the evaluator of facts


# Policies -----------------------------------------------------------------------------------------


@MODES
def test_a_policy_allows_and_denies_them_like_any_tool(mode: str) -> None:
    agent = Agent(mode=mode)
    agent.arbiter_os.add_policy_checker(ToolsChecker("no_deletion", deny=["forget_memory"]))
    agent.calls("remember", claim="Ada bakes")
    with pytest.raises(PolicyViolationError, match="forget_memory"):
        agent.calls("forget_memory", ids=[fact_of(agent).id])
    assert agent.known() == ["Ada bakes"]


# Mistakes -----------------------------------------------------------------------------------------


def test_tools_without_a_cycle_or_a_store_say_so() -> None:
    wrong: Any = InMemoryStore()
    with pytest.raises(ConfigurationError, match="expected an EvaluationCycle"):
        memory_tools(wrong)
    search, *_ = memory_tools(EvaluationCycle())
    with pytest.raises(ConfigurationError, match="compile the graph with one"):
        search.invoke({"query": "tea"}, config())


def test_a_tool_compares_what_it_stores_with_what_is_known() -> None:
    model = Scripted(answers=['{"relations": [{"pair": 1, "relation": "supersedes"}]}'])
    agent = Agent(evaluator_model=model, fact_rules=FactRules())
    agent.calls("remember", "I live in Oslo", claim="Ada lives in Oslo", type="status")
    agent.calls("remember", "I moved to Rome", id="m2", claim="Ada lives in Rome", type="status")
    assert model.calls == 1
    assert agent.known() == ["Ada lives in Rome"]
    assert not re.search("Oslo", agent.calls("search_memory", query="lives in"))


@MODES
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_forgetting_leaves_unread_messages_of_its_own_thread_to_be_learned_from(
    mode: str, forgotten: bool
) -> None:
    """Another process may have served the thread until now, unless they were hidden by an earlier forgetting."""
    cat = "Ada has a cat called Pixel"

    def read(prompt: str) -> str:
        return answer(*[cat] * ("> My cat" in prompt))

    agent = Agent(mode=mode, evaluator_model=Scripted(answers=[read]))
    agent.arbiter_os.add_evaluator(FactEvaluator(always_run=True))
    fact = agent.memory.remember("ada", "Ada lives in Oslo")
    if forgotten:
        agent.memory.forget("ada", "Pixel")
    wish = call("forget_memory", "Please forget where I live", "m2", ids=[fact.id])
    before = [HumanMessage("My cat is called Pixel", id="m1"), AIMessage("Nice", id="a1")]
    run(agent.app, {"messages": [*before, *wish["messages"]]}, config(), mode=mode)
    assert agent.arbiter_os.drain(10)
    assert agent.known() == ([] if forgotten else [cat])
