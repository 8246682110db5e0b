"""Whichever way a node has to write a message, the gate judges it before anything of it is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages, push_message
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from arbiter import ArbiterOS, PolicyChecker, Verdict
from arbiter.history import History
from arbiter.personas import PersonaGate
from arbiter.states import as_state
from tests.gate_support import Chat, chat, enabled, scored, texts
from tests.personas_support import JIM
from tests.scripted import Scripted
from tests.support import MODES, run

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


@MODES
@pytest.mark.parametrize("way", WAYS)
def test_an_earlier_draft_is_committed_whichever_way_it_was_written(way: str, mode: str) -> None:
    graph, _ = team(way, "one", "two", "three")
    app, gate, _ = governed(graph, {"one": 3, "two": 6, "three": 4})
    output = texts(run(app, GIVEN, mode=mode))
    assert [text for text in output[2:] if text != "and"] == ["two"]
    assert gate.actions[0].outcome == "forced_through"


@MODES
@pytest.mark.parametrize("way", WAYS)
def test_a_rewritten_draft_takes_the_place_of_all_that_was_said(way: str, mode: str) -> None:
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


# What checkers and the history see ----------------------------------------------------------------


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
def test_what_is_appended_in_place_is_a_draft(returned: Any, schema: Any, mode: str) -> None:
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
def test_what_is_appended_in_place_and_not_returned_is_told(mode: str) -> None:
    """LangGraph does not save it either; with a gate it is not committed."""
    gate = PersonaGate(scored({}), JIM, enabled("fluency"))
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(in_place(nothing, "bad")))
    assert texts(run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)) == ["Hello."]
    assert "did not return it" in str(arbiter_os.history.entries[-1][-1].errors)


@MODES
def test_audit_judges_what_is_appended_in_place(mode: str) -> None:
    gate = PersonaGate(scored({"bad": 2}), JIM, enabled("fluency"))
    gate.mode = "audit"
    arbiter_os = ArbiterOS()
    arbiter_os.add_correction_gate(gate)
    app = arbiter_os.govern(chat(in_place(the_state, "bad")))
    assert texts(run(app, {"messages": [HumanMessage("Hello.")]}, mode=mode)) == ["Hello.", "bad"]
    assert [action.outcome for action in gate.actions] == ["forced_through"]
