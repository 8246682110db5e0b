"""The types that a user's editor and type checker see: `make check` holds this file against mypy and pyright."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, Literal, assert_type, get_args, get_type_hints

from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from arbiter import ArbiterOS, History, HistoryItem, PolicyChecker, PolicyRouter
from arbiter.checkers import AtMost
from arbiter.history import Status
from arbiter.policy import CheckerOptions, OnDeny


class State(TypedDict):
    amount: int


class Context(TypedDict):
    user: str


class Input(TypedDict):
    amount: int


class Output(TypedDict):
    amount: int


def pay(state: State) -> State:
    return {"amount": state["amount"] + 1}


class OneArgument(PolicyRouter):
    """The older form."""

    def route_after(self, history: History) -> str | None:
        return None


class TwoArguments(PolicyRouter):
    def route_after(self, history: History, current_output: Any) -> str | None:
        return None


class Asynchronous(PolicyRouter):
    async def route_after(self, history: History, current_output: Any) -> str | None:
        return None


class Redirecting(PolicyChecker):
    on_deny: OnDeny = "redirect:pay"

    def check_before(self, history: History) -> bool:
        return True


def test_a_governed_graph_keeps_the_types_of_its_builder() -> None:
    builder = StateGraph(State, context_schema=Context, input_schema=Input, output_schema=Output)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    for router in (OneArgument("one"), TwoArguments("two")):
        arbiter_os.add_policy_router(router)
    governed = assert_type(arbiter_os.govern(builder), CompiledStateGraph[State, Context, Input, Output])
    again = assert_type(
        arbiter_os.govern(builder.compile()), CompiledStateGraph[State, Context, Input, Output]
    )
    for app in (governed, again):
        assert app.invoke({"amount": 1}, context={"user": "ann"}) == {"amount": 2}


def test_a_governed_function_keeps_its_type() -> None:
    governed = ArbiterOS().govern(pay)
    assert_type(governed({"amount": 1}), State)
    assert governed({"amount": 1}) == {"amount": 2}


def test_a_function_that_becomes_a_rule_keeps_its_type() -> None:
    arbiter_os = ArbiterOS()

    @arbiter_os.checker
    def small(state: State) -> bool:
        return state["amount"] < 10

    @arbiter_os.checker(on_deny="end", target_nodes=["pay"])
    async def later(state: State, history: History) -> tuple[bool, str]:
        return state["amount"] < 10, "too much"

    @arbiter_os.router(targets=["pay"])
    def again(item: HistoryItem) -> str | None:
        return None

    @arbiter_os.evaluator(durable=True)
    def several(output: State) -> dict[str, bool | float]:
        return {"small": output["amount"] < 10, "amount": output["amount"]}

    async def types(item: HistoryItem, history: History) -> None:
        assert_type(await later(history=history, state={"amount": 1}), tuple[bool, str])
        assert_type(again(item), str | None)
        small()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        arbiter_os.checker(on_deny=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        arbiter_os.checker(lambda state: "yes")  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]

    assert callable(types)
    assert assert_type(small({"amount": 1}), bool)
    assert several(output={"amount": 2}) == {"small": True, "amount": 2}


def test_the_status_of_an_item_is_one_of_six() -> None:
    getter: Any = vars(HistoryItem)["status"].fget
    assert get_type_hints(getter)["return"] is Status
    assert set(get_args(Status)) == {
        "running",
        "completed",
        "denied",
        "failed",
        "interrupted",
        "cancelled",
    }

    def shown(item: HistoryItem) -> Status:
        return assert_type(
            item.status, Literal["running", "completed", "denied", "failed", "interrupted", "cancelled"]
        )

    assert callable(shown)


def test_on_deny_is_a_known_word_or_a_redirect() -> None:
    for owner in (PolicyChecker.__init__, CheckerOptions):  # the options are those of every built-in checker
        assert get_type_hints(owner)["on_deny"] == OnDeny
    assert AtMost("x", 1, on_deny="end").on_deny == "end"
    words = [part for part in get_args(OnDeny) if typing.get_origin(part) is Literal]
    assert get_args(words[0]) == ("raise", "end", "audit")
    assert Redirecting("x", on_deny="redirect:pay").redirect_targets == ("pay",)


def test_a_history_is_a_sequence_of_supersteps() -> None:
    builder = StateGraph(State)
    for name in ("first", "second"):
        builder.add_node(name, pay)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    arbiter_os = ArbiterOS()
    arbiter_os.govern(builder).invoke({"amount": 1})
    history = arbiter_os.history
    assert [[item.node for item in superstep] for superstep in history] == [["first"], ["second"]]
    assert [superstep[0].node for superstep in reversed(history)] == ["second", "first"]
    assert assert_type(history[0], Sequence[HistoryItem])[0].node == history[-2][0].node == "first"
    assert assert_type(history[1:], Sequence[Sequence[HistoryItem]])[0][0].node == "second"
    assert len(history) == len(list(history)) == len(history.entries) == 2


def test_an_empty_history_can_be_made() -> None:
    """For a checker's unit test."""
    history = History()
    assert repr(history) == "<History: 0 supersteps, 0 items>"
    assert (list(history), len(history), history.count(), history.last(), history.to_dicts()) == (
        [],
        0,
        0,
        None,
        [],
    )
