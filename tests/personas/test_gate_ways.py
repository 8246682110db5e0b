"""The gate judges a message before any of it is committed, for every way in which a node can write it."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
)
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages, push_message
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from arbiter import ArbiterOS, PolicyChecker, Verdict
from arbiter._values.states import as_state
from arbiter.history import History
from arbiter.personas import PersonaGate, Trajectory
from tests.graphs import pairwise
from tests.personas.gate_support import Speaker, chat, enabled, scored, texts
from tests.personas.personas_support import JIM, prompt_of
from tests.scripted import Scripted
from tests.support import MODES, Chat, run

Way = Callable[[Any, str], Any]


def said(text: str) -> list[AIMessage]:
    return [AIMessage(text, name="Jim")]


WAYS: dict[str, Way] = {
    "commands": lambda _, text: [
        Command(update={"messages": said(text)}),
        Command(update={"messages": said("and")}),
    ],
    "commands, single messages": lambda _, text: [
        Command(update={"messages": said(text)[0]}),
        Command(update={"messages": {"role": "assistant", "content": "and"}}),
    ],
    "a command and an update": lambda _, text: [
        Command(update={"messages": said(text)}),
        {"messages": said("and")},
    ],
    "pairs": lambda _, text: Command(update=[("messages", said(text)), ("messages", said("and"))]),
    "overwrite": lambda state, text: {"messages": Overwrite([*state["messages"], *said(text)])},
    "overwrite as a mapping": lambda state, text: {
        "messages": {"__overwrite__": [*state["messages"], *said(text)]}
    },
    "overwrite in a command": lambda state, text: Command(
        update={"messages": Overwrite([*state["messages"], *said(text)])}
    ),
    "whole conversation in commands": lambda state, text: [
        Command(update={"messages": [*state["messages"], *said(text)]}),
        Command(update={"messages": said("and")}),
    ],
    "the end of the conversation": lambda state, text: {"messages": [*state["messages"][-1:], *said(text)]},
    "hands over": lambda _, text: Command(
        graph=Command.PARENT, update={"messages": said(text)}, goto="__end__"
    ),
    "hands over the conversation": lambda state, text: Command(
        graph=Command.PARENT, update={"messages": [*state["messages"], *said(text)]}, goto="__end__"
    ),
    "pushes": lambda _, text: push_message(said(text)[0].model_copy(update={"id": text})) and {},
}


def team(way: str, *drafts: str) -> tuple[Any, list[list[str]]]:
    """A graph in which Jim speaks in that way; an agent that hands over is a subgraph."""
    left = iter(drafts)
    seen: list[list[str]] = []

    def jim(state: Any) -> Any:
        seen.append(texts(state))
        return WAYS[way](state, next(left))

    if "hands over" not in way:
        return chat(jim), seen
    inner: Any = StateGraph(Chat)
    inner.add_node("inner", jim)
    inner.add_edge(START, "inner")
    outer: Any = StateGraph(Chat)
    outer.add_node("jim", inner.compile())
    outer.add_edge(START, "jim")
    return outer.compile(), seen


GIVEN = {"messages": [HumanMessage("Hello.", id="hello"), AIMessage("Before.", name="Jim", id="before")]}


def governed(graph: Any, scores: dict[str, Any], **known: Any) -> tuple[Any, PersonaGate, ArbiterOS]:
    rewriter = known.pop("rewriter", None)
    gate = PersonaGate(
        scored(scores), [JIM], enabled("fluency", **known), rewriter=rewriter, target_nodes=["jim"]
    )
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    return arbiter_os.govern(graph), gate, arbiter_os


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("way", WAYS)
def test_a_draft_is_judged_whichever_way_it_is_written(way: str, mode: str) -> None:
    """And no word of the rejected one, or of the feedback on it, is in the state."""
    graph, seen = team(way, "BAD", "GOOD")
    app, gate, _ = governed(graph, {"BAD": 2})
    given = texts(GIVEN)
    output = texts(run(app, GIVEN, mode=mode))
    assert output[: len(given)] == given
    assert [text for text in output[len(given) :] if text != "and"] == ["GOOD"]
    assert [(action.outcome, action.agent) for action in gate.actions] == [("passed_after_retry", "Jim")]
    assert str(gate.actions[0].original_text).startswith("BAD")
    assert "Before." not in str(gate.actions[0].original_text)
    assert "was not sent" in seen[1][-1]


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("way", WAYS)
def test_an_earlier_draft_is_committed_whichever_way_it_was_written(way: str, mode: str) -> None:
    graph, _ = team(way, "one", "two", "three")
    app, gate, _ = governed(graph, {"one": 3, "two": 6, "three": 4})
    output = texts(run(app, GIVEN, mode=mode))
    assert [text for text in output[2:] if text != "and"] == ["two"]
    assert gate.actions[0].outcome == "forced_through"


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("way", WAYS)
def test_a_rewritten_draft_replaces_all_messages_of_the_node(way: str, mode: str) -> None:
    graph, _ = team(way, "BAD")
    app, gate, _ = governed(
        graph,
        {"BAD": 2},
        enable_direct_correction=True,
        enable_regeneration=False,
        rewriter=Scripted(answers=["BETTER"]),
    )
    assert texts(run(app, GIVEN, mode=mode)) == ["Hello.", "Before.", "BETTER"]
    assert gate.actions[0].outcome == "corrected"


@MODES
def test_a_hand_over_still_leads_where_it_did(mode: str) -> None:
    """The command keeps its goto when its message is written again, and when it is rewritten."""
    for rewriter in (None, Scripted(answers=["BETTER"])):
        drafts = iter(["BAD", "GOOD"])

        def inner(state: Any) -> Any:
            update = {"messages": said(next(drafts))}  # noqa: B023 - called in this round
            return Command(graph=Command.PARENT, update=update, goto="pam")

        def pam(state: Any) -> Any:
            return {"messages": [AIMessage("pam here", name="Pam")]}

        sub: Any = StateGraph(Chat)
        sub.add_node("inner", inner)
        sub.add_edge(START, "inner")
        outer: Any = StateGraph(Chat)
        outer.add_node("jim", sub.compile(), destinations=("pam",))
        outer.add_node("pam", pam)
        outer.add_edge(START, "jim")
        known: dict[str, Any] = {}
        if rewriter is not None:
            known = {
                "rewriter": rewriter,
                "enable_direct_correction": True,
                "enable_regeneration": False,
            }
        app, _, _ = governed(outer.compile(), {"BAD": 2}, **known)
        expected = "GOOD" if rewriter is None else "BETTER"
        assert texts(run(app, GIVEN, mode=mode))[2:] == [expected, "pam here"]


@MODES
def test_audit_judges_a_hand_over(mode: str) -> None:
    graph, _ = team("hands over", "BAD")
    app, gate, arbiter_os = governed(graph, {"BAD": 2})
    gate.mode = "audit"
    assert texts(run(app, GIVEN, mode=mode))[2:] == ["BAD"]
    items = [item for superstep in arbiter_os.history.entries for item in superstep if item.node == "jim"]
    assert "audit: it would retry" in items[-1].notes["gate persona"]


# The view of checkers and the history -------------------------------------------------------------


@MODES
@pytest.mark.parametrize("way", ["commands", "commands, single messages", "a command and an update", "pairs"])
def test_a_checker_of_the_output_sees_the_messages_of_all_commands(way: str, mode: str) -> None:
    outputs: list[Any] = []

    class Looks(PolicyChecker):
        def check_before(self, history: History) -> Verdict:
            return Verdict.allow()

        def check_after(self, output: Any, history: History) -> Verdict:
            outputs.append(output)
            return Verdict.allow()

    graph, _ = team(way, "one")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Looks("looks"))
    run(arbiter_os.govern(graph), GIVEN, mode=mode)
    shown = str(outputs[0])
    assert "one" in shown
    assert "and" in shown
    assert len(arbiter_os.history.entries[-1][-1].output_state["messages"]) == 2


def test_updates_are_joined_as_a_reducer_would_get_them() -> None:
    one, other = AIMessage("one"), AIMessage("other")

    def state_of(*parts: Any) -> dict[str, Any]:
        return as_state([Command(update={"key": part}) for part in parts])

    assert state_of([one], [other]) == {"key": [one, other]}
    assert state_of(one, other) == {"key": [one, other]}
    assert state_of([one], ("ai", "other")) == {"key": [one, ("ai", "other")]}
    assert state_of({"a": 1}, {"b": 2}) == {"key": {"a": 1, "b": 2}}
    assert state_of(1, 2) == {"key": 2}
    assert state_of("a", "b") == {"key": "b"}
    assert state_of([one], Overwrite([other]), [one]) == {"key": Overwrite([other])}


def in_place(returned: Callable[[Any], Any], *drafts: str) -> Callable[[Any], Any]:
    """A node that appends its message to the list that it was given."""
    left = iter(drafts)

    def jim(state: Any) -> Any:
        as_state(state)["messages"].append(AIMessage(next(left), name="Jim"))
        return returned(state)

    return jim


def the_state(state: Any) -> Any:
    return state


def the_messages(state: Any) -> Any:
    return {"messages": as_state(state)["messages"]}


def nothing(state: Any) -> Any:
    return None


@dataclass
class Told:
    messages: Annotated[list[Any], add_messages]


class Model(BaseModel):
    messages: Annotated[list[Any], add_messages]


@MODES
@pytest.mark.parametrize("schema", [Chat, Told, Model])
@pytest.mark.parametrize("returned", [the_state, the_messages])
def test_a_message_appended_in_place_is_a_draft(returned: Any, schema: Any, mode: str) -> None:
    """It is judged, and a draft that fails is neither in the state nor shown to the next attempt."""
    builder: Any = StateGraph(schema)
    builder.add_node("jim", in_place(returned, "bad", "good")).add_edge(START, "jim")
    gate = PersonaGate(scored({"bad": 2}), JIM, enabled("fluency"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    given = [HumanMessage("Hello.")]
    out = run(arbiter_os.govern(builder.compile()), {"messages": given}, mode=mode)
    assert texts(out) == ["Hello.", "good"]
    assert [attempt.text for attempt in gate.actions[-1].attempts] == ["bad", "good"]
    assert len(given) == 1


@MODES
def test_a_message_appended_in_place_and_not_returned_is_reported(mode: str) -> None:
    """LangGraph does not save it either; with a gate it is not committed."""
    gate = PersonaGate(scored({}), JIM, enabled("fluency"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(in_place(nothing, "bad")))
    assert texts(run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)) == ["Hello."]
    assert "did not return it" in str(arbiter_os.history.entries[-1][-1].errors)


@MODES
def test_audit_judges_messages_appended_in_place(mode: str) -> None:
    gate = PersonaGate(scored({"bad": 2}), JIM, enabled("fluency"))
    gate.mode = "audit"
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(in_place(the_state, "bad")))
    assert texts(run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)) == ["Hello.", "bad"]
    assert [action.outcome for action in gate.actions] == ["forced_through"]


# A message that the state has already ---------------------------------------------------------------


def set_content(message: Any, text: str) -> Any:
    message.content = text
    return message


def set_block(message: Any, text: str) -> Any:
    message.content[0]["text"] = text
    return message


def set_argument(message: Any, text: str) -> Any:
    message.tool_calls[0]["args"]["text"] = text
    return message


def updated(message: Any, text: str) -> Any:
    return message.model_copy(update={"content": text})


CALL: Any = {"name": "send_message", "args": {"text": "Before."}, "id": "1", "type": "tool_call"}
EDITS: dict[str, tuple[AIMessage, Callable[[Any, str], Any]]] = {
    "content": (AIMessage("Before.", name="Jim", id="before"), set_content),
    "a block": (AIMessage([{"type": "text", "text": "Before."}], name="Jim", id="before"), set_block),
    "an argument": (AIMessage("", name="Jim", id="before", tool_calls=[CALL]), set_argument),
    "a copy": (AIMessage("Before.", name="Jim", id="before"), updated),
    "a mapping": (
        AIMessage("Before.", name="Jim", id="before"),
        lambda message, text: {"role": "assistant", "content": text, "name": "Jim", "id": message.id},
    ),
}


def with_it(state: Any, message: Any) -> list[Any]:
    """The conversation with that message in place of its old version."""
    return [message if one.id == "before" else one for one in state["messages"]]


EDITED_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda state, message: {"messages": [message]},
    "conversation": lambda state, message: {"messages": with_it(state, message)},
    "command": lambda state, message: Command(update={"messages": [message]}),
    "commands": lambda state, message: [Command(update={"messages": [message]}), Command(update={})],
    "overwrite": lambda state, message: {"messages": Overwrite(with_it(state, message))},
    "hands over": lambda state, message: Command(
        graph=Command.PARENT, update={"messages": [message]}, goto="__end__"
    ),
}


def shown(message: Any) -> str:
    """The text of a message, from its content or its call."""
    message = convert_to_messages([message])[0]
    calls = getattr(message, "tool_calls", [])
    return str(message.text) or str(calls[0]["args"]["text"] if calls else "")


def editing(edit: Any, way: str, *drafts: str, subgraph: bool = False) -> tuple[Any, list[list[str]]]:
    """A graph in which Jim edits the last message of the state."""
    left, seen = iter(drafts), list[list[str]]()

    def jim(state: Any) -> Any:
        seen.append([shown(message) for message in state["messages"]])
        said = next(one for one in reversed(state["messages"]) if isinstance(one, AIMessage))
        return EDITED_WAYS[way](state, edit(said, next(left)))

    if not subgraph and way != "hands over":
        return chat(jim), seen
    outer: Any = StateGraph(Chat)
    jim.__name__ = "inner"
    outer.add_node("jim", chat(jim)).add_edge(START, "jim")
    return outer.compile(), seen


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("edit", "way", "subgraph", "mode"),
    pairwise(tuple(EDITS), tuple(EDITED_WAYS), (False, True), ("sync", "async")),
)
def test_an_edited_message_of_the_state_is_a_draft(edit: str, way: str, subgraph: bool, mode: str) -> None:
    """The text that the state had when the node began is what it is compared with. The next attempt, and what the
    caller passed, have the message as it was."""
    before, change = EDITS[edit]
    graph, seen = editing(change, way, "bad", "good", subgraph=subgraph)
    app, gate, _ = governed(graph, {"bad": 2})
    given = before.model_copy(deep=True)
    sent = [ToolMessage("sent", tool_call_id=call["id"], id="sent") for call in given.tool_calls]
    output = run(app, {"messages": [HumanMessage("Hello.", id="hello"), given, *sent]}, mode=mode)
    assert [shown(message) for message in output["messages"][:2]] == ["Hello.", "good"]
    assert len(output["messages"]) == 2 + len(sent)
    assert [(action.outcome, action.original_text) for action in gate.actions] == [
        ("passed_after_retry", "bad")
    ]
    assert [call[1] for call in seen] == ["Before.", "Before."]
    assert given == before


@MODES
def test_the_first_of_several_edits_can_be_the_best(mode: str) -> None:
    """Each attempt edits a message of its own."""
    graph, _ = editing(set_content, "alone", "one", "two", "three")
    app, gate, _ = governed(graph, {"one": 6, "two": 3, "three": 4})
    assert texts(run(app, GIVEN, mode=mode)) == ["Hello.", "one"]
    assert gate.actions[0].outcome == "forced_through"


@MODES
def test_a_message_that_takes_the_place_of_another_is_a_draft(mode: str) -> None:
    """It is compared with what remains: a small correction of a message is not too similar to that message. And it is
    not the agent's first."""
    words = "we should paint the house blue"

    def corrected(state: Any) -> Any:
        return {"messages": [set_content(state["messages"][-1], f"{words} now")]}

    def removed(state: Any) -> Any:
        last = state["messages"][-1]
        return {"messages": [RemoveMessage(last.id), AIMessage(f"{words} now", name="Jim")]}

    for body in (corrected, removed):
        body.__name__ = "jim"
        app, gate, _ = governed(
            chat(body), {}, gate_similarity_enabled=True, minimum_required_qty_of_actions=1
        )
        given = {"messages": [HumanMessage("Hello."), AIMessage(words, name="Jim", id="before")]}
        assert texts(run(app, given, mode=mode)) == ["Hello.", f"{words} now"]
        assert [(a.outcome, a.original_text, a.similarity_score) for a in gate.actions] == [
            ("passed", f"{words} now", 0.0)
        ]
        assert gate.actions[0].dimension_scores["fluency"].score == 9


@MODES
@pytest.mark.parametrize("key", ["messages", "answer"])
def test_a_message_without_an_id_can_be_edited_too(key: str, mode: str) -> None:
    """In a state without a reducer, as an element of a list or alone."""

    class Kept(TypedDict, total=False):
        messages: list[Any]
        answer: Any

    drafts = iter(["bad", "good"])

    def jim(state: Any) -> Any:
        message = state[key][-1] if key == "messages" else state[key]
        if isinstance(message, HumanMessage):  # the feedback
            message = state[key][-2]
        message.content = next(drafts)
        return {key: [*state[key][:1], message] if key == "messages" else message}

    builder: Any = StateGraph(Kept)
    builder.add_node("jim", jim).add_edge(START, "jim")
    gate = PersonaGate(scored({"bad": 2}), JIM, enabled("fluency"), key=key)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    before = AIMessage("Before.", name="Jim")
    given = [AIMessage("Hello.", name="Jim"), before] if key == "messages" else before
    out = run(arbiter_os.govern(builder.compile()), {key: given}, mode=mode)
    said = out[key][-1] if key == "messages" else out[key]
    assert said.text == "good"
    assert [action.original_text for action in gate.actions] == ["bad"]
    assert before.text == "Before."


@MODES
def test_a_message_returned_unchanged_is_no_draft(mode: str) -> None:
    """Also if something else of it has changed, and wherever it stands."""

    def jim(state: Any) -> Any:
        marked = state["messages"][-1].model_copy(update={"response_metadata": {"seen": True}})
        return {"messages": [marked, *state["messages"][:1]]}

    app, gate, _ = governed(chat(jim), {})
    assert texts(run(app, GIVEN, mode=mode)) == ["Hello.", "Before."]
    assert not gate.actions


@MODES
@pytest.mark.parametrize("returned", [None, {"messages": [AIMessage("good", name="Jim")]}])
def test_an_edit_that_is_not_returned_is_reported(returned: Any, mode: str) -> None:
    """It is not committed, and the item says so."""

    def jim(state: Any) -> Any:
        state["messages"][-1].content = "bad"
        return returned

    app, _, arbiter_os = governed(chat(jim), {"bad": 2})
    given = {"messages": [HumanMessage("Hello.", id="hello"), AIMessage("Before.", name="Jim", id="before")]}
    said = ["good"] if returned else []
    assert texts(run(app, given, mode=mode)) == ["Hello.", "Before.", *said]
    assert "did not return it" in str(arbiter_os.history.entries[-1][-1].errors)


@MODES
def test_an_edited_argument_of_any_type_is_undone(mode: str) -> None:
    """Also in a call whose arguments are no plain data, and in a message of which nothing is returned."""
    day = date(2026, 1, 1)
    call: Any = {**CALL, "args": {"text": "Before.", "day": day}}
    left = iter(["bad", "good"])
    seen: list[list[Any]] = []

    def jim(state: Any) -> Any:
        said = state["messages"][0]
        seen.append([said.tool_calls[0]["args"]["text"], said.name, {**said.additional_kwargs}])
        said.additional_kwargs["note"] = said.name = said.tool_calls[0]["args"]["text"] = "edited"
        return {"messages": [AIMessage(next(left), name="Jim")]}

    app, _, arbiter_os = governed(chat(jim), {"bad": 2})
    given = AIMessage("", name="Jim", id="before", tool_calls=[call])
    sent = ToolMessage("sent", tool_call_id="1", id="sent")
    output = run(app, {"messages": [given, sent]}, mode=mode)
    assert seen == [["Before.", "Jim", {}]] * 2
    assert (given.tool_calls, given.name, given.additional_kwargs) == (
        [{**CALL, "args": {"text": "Before.", "day": day}}],
        "Jim",
        {},
    )
    assert texts(output) == ["", "sent", "good"]
    assert "did not return it" in str(arbiter_os.history.entries[-1][-1].errors)


@MODES
@pytest.mark.parametrize("name", ["role", "name", "tool_calls"])
@pytest.mark.parametrize(
    "message",
    [
        ChatMessage(content="Before.", role="Pam", id="before"),
        {"role": "assistant", "content": "Before.", "id": "before"},
        AIMessage("Before.", id="before"),
    ],
)
def test_an_edit_of_any_field_that_shows_a_speaker_or_a_call_is_undone(
    message: Any, name: str, mode: str
) -> None:
    """The conversation mixes kinds of messages, of which some have no such field."""

    class Kept(TypedDict, total=False):
        messages: list[Any]

    value: Any = [CALL] if name == "tool_calls" else "Jim"

    def jim(state: Any) -> Any:
        given = state["messages"][1]
        if isinstance(given, dict):
            given[name] = value
        elif name in type(given).model_fields:
            setattr(given, name, value)
        return {}

    builder: Any = StateGraph(Kept)
    builder.add_node("jim", jim).add_edge(START, "jim")
    app, _, arbiter_os = governed(builder.compile(), {})
    before = copy.deepcopy(message)
    run(app, {"messages": [HumanMessage("Hello."), message, "a text"]}, mode=mode)
    assert message == before
    edited = isinstance(message, dict) or name in type(message).model_fields
    assert ("did not return it" in str(arbiter_os.history.entries[-1][-1].errors)) == edited


@MODES
def test_agents_that_edit_one_message_at_once_edit_one_each(mode: str) -> None:
    """Neither sees the other's draft, undoes it or answers for it."""
    drafts = {"one": "first", "two": "bad"}
    meet = threading.Barrier(2)

    def editing(name: str) -> Any:
        def begin(state: Any) -> Any:
            message = state["messages"][-1]
            message.content = drafts[name]
            return message

        def node(state: Any) -> Any:
            message = begin(state)
            meet.wait(60)
            return {name: message.content}

        async def anode(state: Any) -> Any:
            message = begin(state)
            await asyncio.sleep(0.05)
            return {name: message.content}

        return node if mode == "sync" else anode

    class Both(Chat, total=False):
        one: str
        two: str

    builder: Any = StateGraph(Both)
    for name in drafts:
        builder.add_node(name, editing(name)).add_edge(START, name)
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(
        PersonaGate(scored({}), [JIM], enabled("fluency"), target_nodes=["one", "two"])
    )
    given = {"messages": [HumanMessage("Hello.", id="hello"), AIMessage("Before.", name="Jim", id="before")]}
    output = run(arbiter_os.govern(builder.compile()), given, mode=mode)
    assert {name: output[name] for name in drafts} == drafts
    assert texts(output) == ["Hello.", "Before."]


@MODES
def test_audit_judges_an_edited_message(mode: str) -> None:
    graph, _ = editing(set_content, "alone", "bad")
    app, gate, _ = governed(graph, {"bad": 2})
    gate.mode = "audit"
    given = {"messages": [HumanMessage("Hello.", id="hello"), AIMessage("Before.", name="Jim", id="before")]}
    assert texts(run(app, given, mode=mode)) == ["Hello.", "bad"]
    assert [(action.outcome, action.original_text) for action in gate.actions] == [("forced_through", "bad")]


# Messages with a role of their own ------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("role", "name", "judged"),
    [
        ("assistant", None, True),
        ("ai", None, True),
        ("model", None, True),
        ("Jim", None, True),
        ("user", "Jim", True),
        ("user", None, False),
        ("system", None, False),
        ("moderator", None, False),
    ],
)
def test_a_message_is_judged_by_its_role(role: str, name: str | None, judged: bool, mode: str) -> None:
    """An assistant's is the agent's; another role than those of LangChain is the name of a speaker."""
    drafts = iter(["bad", "good"])

    def jim(state: Any) -> Any:
        return {"messages": [ChatMessage(content=next(drafts), role=role, name=name)]}

    app, gate, _ = governed(chat(jim), {"bad": 2})
    output = run(app, GIVEN, mode=mode)
    assert texts(output)[2:] == ["good" if judged else "bad"]
    assert type(output["messages"][-1]) is ChatMessage
    assert [action.agent for action in gate.actions] == (["Jim"] if judged else [])


@MODES
def test_a_rewritten_message_keeps_its_role(mode: str) -> None:
    def jim(state: Any) -> Any:
        return {"messages": [ChatMessage(content="bad", role="assistant")]}

    app, _, _ = governed(
        chat(jim),
        {"bad": 2},
        enable_direct_correction=True,
        enable_regeneration=False,
        rewriter=Scripted(answers=["better"]),
    )
    last = run(app, GIVEN, mode=mode)["messages"][-1]
    assert (last.text, last.role) == ("better", "assistant")


def test_messages_in_an_agents_role_count_as_its_own() -> None:
    """In the conversation that a judge is shown, and in a trajectory."""
    said = [
        ChatMessage(content="one", role="assistant"),
        ChatMessage(content="two", role="Pam"),
        ChatMessage(content="three", role="user"),
        ChatMessage(content="four", role="system"),
    ]
    judge = scored({})
    gate = PersonaGate(judge, [JIM], enabled("fluency"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    arbiter_os.govern(chat(Speaker("new"))).invoke({"messages": said})
    expected = ["Jim acts: [one]", "--> Jim from Pam: [two]", "--> Jim: [three]"]
    prompt = prompt_of(judge.asked[0])
    assert all(line in prompt for line in expected)
    assert "[four]" not in prompt
    assert Trajectory.from_messages(said, "Jim").text(agent="Jim").splitlines() == expected
