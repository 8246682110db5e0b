"""Messages that a node's body writes by itself, with `push_message` and its like, are part of the node's
writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import push_message
from langgraph.graph.ui import push_ui_message, ui_message_reducer
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from arbiter import ArbiterOS, EvaluationResult, History, PolicyChecker, PolicyViolationError
from arbiter.checkers import FlowChecker, Label
from arbiter.errors import OutputSchemaError
from arbiter.instructions import RESPOND, TOOL_CALL
from arbiter.routers import ErrorRouter
from tests.support import MODES, Judge, good, run, thread


class State(MessagesState, total=False):
    ui: Annotated[list[Any], ui_message_reducer]
    note: str


def said(text: str) -> AIMessage:
    return AIMessage(text, id=text)


def by_message() -> None:
    push_message(said("pushed"))


def by_ui() -> None:
    push_ui_message("card", {"text": "pushed"})


def by_send() -> None:
    get_config().get("configurable", {})["__pregel_send"]([("note", "pushed")])


WAYS = pytest.mark.parametrize(
    ("push", "key"),
    [(by_message, "messages"), (by_ui, "ui"), (by_send, "note")],
    ids=["message", "ui", "send"],
)


def pushing(push: Callable[[], None], mode: str, then: Callable[[], Any] = dict, **node: Any) -> Any:
    """A graph whose first node pushes, and goes on to the next."""

    def speak(state: State) -> Any:
        push()
        return then()

    async def aspeak(state: State) -> Any:
        return speak(state)

    builder: Any = StateGraph(State)
    builder.add_node("speak", speak if mode == "sync" else aspeak, **node)
    for name in ("after", "help"):
        builder.add_node(name, _says(name))
    builder.add_edge(START, "speak")
    builder.add_edge("speak", "after")
    return builder


def _says(name: str) -> Callable[[Any], Any]:
    return lambda state: {"messages": [said(name)]}


class Refuse(PolicyChecker):
    """Refuses each output that has something in a key."""

    def __init__(self, name: str, key: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.key = key

    def check_before(self, history: History) -> bool:
        return True

    def check_after(self, output: Mapping[str, Any], history: History) -> bool:
        return not output.get(self.key)


@MODES
@WAYS
@pytest.mark.parametrize(("on_deny", "follows"), [("end", []), ("redirect:help", ["help"])])
@pytest.mark.parametrize("node", [{}, {"timeout": 30}], ids=["", "with a timeout"])
def test_messages_pushed_by_a_refused_node_are_not_committed(
    push: Callable[[], None], key: str, on_deny: str, follows: list[str], node: dict[str, Any], mode: str
) -> None:
    """The checker sees it as part of the output."""
    if node and mode == "sync":
        return  # LangGraph has timeouts of async nodes alone
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Refuse("refuse", key, target_nodes=["speak"], on_deny=on_deny))
    app = arbiter_os.govern(pushing(push, mode, **node).compile(checkpointer=InMemorySaver()))
    result = run(app, {"messages": [HumanMessage("hi", id="hi")]}, thread("1"), mode=mode)
    assert [message.text for message in result["messages"]] == ["hi", *follows]
    assert not result.get("ui")
    assert not result.get("note")
    first = next(item for item in arbiter_os.history.items() if item.node == "speak")
    assert first.status == "denied"


class Noted(BaseModel):
    note: str


@WAYS
@pytest.mark.parametrize("by", ["checker", "schema"])
def test_messages_pushed_by_a_refused_node_are_not_saved_with_the_checkpoint(
    push: Callable[[], None], key: str, by: str
) -> None:
    """LangGraph saves what a failed node has written so far, and `get_state` shows it."""
    saver = InMemorySaver()
    arbiter_os = ArbiterOS()
    if by == "checker":
        arbiter_os.add_policy_checker(Refuse("refuse", key, target_nodes=["speak"]))
    app = arbiter_os.govern(
        pushing(push, "sync").compile(checkpointer=saver),
        schemas={"speak": {"output": Noted}} if by == "schema" else None,
    )
    with pytest.raises((PolicyViolationError, OutputSchemaError)):
        app.invoke({"messages": [HumanMessage("hi", id="hi")]}, thread("1"))
    assert not any(app.get_state(thread("1")).values.get(name) for name in ("ui", "note"))
    assert "pushed" not in f"{app.get_state(thread('1'))}{saver.storage}{saver.writes}"


@MODES
@WAYS
def test_allowed_messages_are_committed_as_without_arbiter(
    push: Callable[[], None], key: str, mode: str
) -> None:
    seen: list[Mapping[str, Any]] = []
    given: Any = {"messages": [HumanMessage("hi", id="hi")]}
    bare = run(pushing(push, mode).compile(), given, mode=mode)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Refuse("refuse", "no such key"))

    def see(history: History) -> EvaluationResult:
        seen.append(history.entries[-1][-1].output_state)
        return good(history)

    arbiter_os.add_evaluator(Judge("see", see))
    governed = run(arbiter_os.govern(pushing(push, mode).compile()), given, mode=mode)
    arbiter_os.drain(60)
    for result in (bare, governed):
        for card in result.get("ui", ()):
            card["id"] = ""
            card["metadata"] = {}
    assert governed == bare
    assert any(key in state for state in seen)


@MODES
def test_pushed_and_returned_messages_are_one_output(mode: str) -> None:
    outputs: list[Any] = []

    class Look(Refuse):
        def check_after(self, output: Mapping[str, Any], history: History) -> bool:
            outputs.append([message.text for message in output["messages"]])
            return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Look("look", "", target_nodes=["speak"]))
    ways: list[Callable[[], Any]] = [
        lambda: {"messages": [said("returned")]},
        lambda: Command(update={"messages": [said("returned")]}),
    ]
    for then in ways:
        result = run(
            arbiter_os.govern(pushing(by_message, mode, then).compile()), {"messages": []}, mode=mode
        )
        assert [message.text for message in result["messages"]] == ["pushed", "returned", "after"]
    assert outputs == [["pushed", "returned"]] * 2


@MODES
@WAYS
def test_messages_pushed_by_a_tool_call_carry_its_label(
    push: Callable[[], None], key: str, mode: str
) -> None:
    arbiter_os = ArbiterOS()
    labels = {"untrusted": Label(written_by=["TOOL_CALL"])}
    arbiter_os.add_policy_checker(FlowChecker("flow", labels, {"untrusted": ["RESPOND"]}))
    app = arbiter_os.govern(
        pushing(push, mode).compile(), instructions={"speak": TOOL_CALL, "after": RESPOND}
    )
    with pytest.raises(PolicyViolationError, match=f"'{key}' \\(untrusted since node 'speak'\\)"):
        run(app, {"messages": []}, mode=mode)


@MODES
def test_messages_pushed_by_a_failed_node_do_not_reach_its_fallback(mode: str) -> None:
    def fail() -> Any:
        raise ValueError("no")

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(ErrorRouter("rescue", "help"))
    result = run(arbiter_os.govern(pushing(by_message, mode, fail).compile()), {"messages": []}, mode=mode)
    assert [message.text for message in result["messages"]] == ["help"]


def test_an_answer_outlives_the_output_that_is_taken_back() -> None:
    """A body asks a human, pushes, and is refused: the refusal is not asked about again."""
    asked: list[str] = []

    def ask_and_push() -> None:
        asked.append(interrupt("go on?"))
        by_message()

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Refuse("refuse", "messages", target_nodes=["speak"], on_deny="redirect:help")
    )
    app = arbiter_os.govern(pushing(ask_and_push, "sync").compile(checkpointer=InMemorySaver()))
    app.invoke({"messages": []}, thread("1"))
    result = app.invoke(Command(resume="yes"), thread("1"))
    assert [message.text for message in result["messages"]] == ["help"]
    assert asked == ["yes"]
