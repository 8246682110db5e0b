"""Approvers, deadlines and answers: `ApprovalChecker`, and questions of your own."""

from __future__ import annotations

import asyncio
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from arbiter import ArbiterOS, ConfigurationError, History, PolicyViolationError, Verdict
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ParameterError
from arbiter.routers import EscalationRouter
from tests.support import MODES, Check, Spy, State, chain, examples, question, run, statuses, thread

PAUSED: Any = {"log": [], "amount": 20}


class Clock:
    """POSIX seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def bank(pay: Any, saver: Any = None, clock: Any = None, **parameters: Any) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS(clock=clock or Clock())
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"], **parameters))
    graph = chain(pay, Spy("last"), extra=[Spy("fallback")], checkpointer=saver or InMemorySaver())
    return arbiter_os, arbiter_os.govern(graph)


def by(who: Any, kind: str = "approve", **more: Any) -> dict[str, Any]:
    return {"type": kind, "by": who, **more}


# Who ----------------------------------------------------------------------------------------------


@MODES
def test_the_question_says_who_may_approve_and_until_when(mode: str) -> None:
    _, app = bank(Spy("pay"), reason="above the limit", approvers=["bob", "alice"], expires_after=60)
    asked = question(run(app, PAUSED, thread("1"), mode=mode))
    assert (asked["policy"], asked["reason"], asked["input"]) == ("boss", "above the limit", PAUSED)
    assert asked["approvers"] == ["alice", "bob"]
    assert (asked["asked_at"], asked["expires_at"]) == (1_000_000.0, 1_000_060.0)


def test_approvers_that_can_be_read_once_may_approve_each_time() -> None:
    """Each question reads them."""
    arbiter_os, app = bank(pay := Spy("pay"), approvers=iter(["alice"]))
    arbiter_os.add_policy_router(
        EscalationRouter("editor", target_nodes=["last"], approvers=cast(Any, iter(["alice"])))
    )
    for name in ("1", "2"):
        assert question(run(app, PAUSED, thread(name)))["approvers"] == ["alice"]
        assert question(run(app, Command(resume=by("alice")), thread(name)))["approvers"] == ["alice"]
        assert run(app, Command(resume=by("alice")), thread(name))["log"] == ["pay", "last"]
    assert len(pay.calls) == 2


@MODES
@pytest.mark.parametrize("envelope", [False, True])
def test_a_named_approver_lets_the_node_run_and_the_history_names_them(envelope: bool, mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    run(app, PAUSED, thread("1"), mode=mode)
    answer: Any = {"decisions": [by("alice")]} if envelope else by("alice")
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["log"] == ["pay", "last"]
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.notes["checker boss"] == "approved by 'alice'"
    assert item.check_policy_results["boss"].kind == "ask"


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("kind", ["approve", "edit"])
@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("mallory", "'mallory' may not approve"),
        ("Alice", "'Alice' may not approve"),
        ("alice ", "may not approve"),
        (None, "does not say by whom"),
        ("", "does not say by whom"),
        (["alice"], "does not say by whom"),
        ({"alice": 1}, "does not say by whom"),
        (1, "does not say by whom"),
    ],
)
def test_only_approvers_can_approve_or_edit(who: Any, why: str, kind: str, mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    run(app, PAUSED, thread("1"), mode=mode)
    answer = by(who, kind, **({"input": {"amount": 1}} if kind == "edit" else {}))
    with pytest.raises(PolicyViolationError) as caught:
        run(app, Command(resume=answer), thread("1"), mode=mode)
    assert why in caught.value.reason
    assert "alice" in caught.value.reason
    assert pay.calls == []
    denied = arbiter_os.history.entries[-1][-1].check_policy_results["boss"]
    assert (denied.kind, why in denied.reason) == ("deny", True)


@MODES
def test_a_bare_approve_has_no_name(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay, approvers=["alice"])
    run(app, PAUSED, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="does not say by whom"):
        run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert pay.calls == []


@MODES
def test_anybody_can_reject_and_the_reason_says_who(mode: str) -> None:
    """A denial by redirect keeps the reason in the history, where no exception tells it."""
    arbiter_os, app = bank(Spy("pay"), approvers=["alice"], on_deny="redirect:fallback")
    run(app, PAUSED, thread("1"), mode=mode)
    answer = by("bob", "reject", message="too dear")
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["log"] == ["fallback"]
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.check_policy_results["boss"] == Verdict.deny("rejected by 'bob': too dear")


@MODES
def test_without_approvers_the_name_is_recorded_all_the_same(mode: str) -> None:
    arbiter_os, app = bank(Spy("pay"))
    run(app, PAUSED, thread("1"), mode=mode)
    run(app, Command(resume=by("carol")), thread("1"), mode=mode)
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.notes["checker boss"] == "approved by 'carol'"


@MODES
def test_of_an_endless_name_the_beginning_is_recorded(mode: str) -> None:
    """A ledger keeps names for good, so an answer must not make its entries grow without a bound."""
    arbiter_os, app = bank(Spy("pay"))
    run(app, PAUSED, thread("1"), mode=mode)
    run(app, Command(resume=by("c" * 1_000_000)), thread("1"), mode=mode)
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.answers[0].by == "c" * 1_000 + "…"
    assert len(item.notes["checker boss"]) < 1_100


@MODES
def test_an_approver_with_a_long_name_may_approve(mode: str) -> None:
    """Names are compared as they are, and not what is recorded of them."""
    pay, name = Spy("pay"), "c" * 2_000
    _, app = bank(pay, approvers=[name])
    run(app, PAUSED, thread("1"), mode=mode)
    run(app, Command(resume=by(name)), thread("1"), mode=mode)
    assert len(pay.calls) == 1
    run(app, PAUSED, thread("2"), mode=mode)
    with pytest.raises(PolicyViolationError, match="may not approve"):
        run(app, Command(resume=by(f"{name[:1_500]}d")), thread("2"), mode=mode)


def test_another_process_knows_the_name_of_the_approver(tmp_path: Path) -> None:
    """It is committed with what the node wrote."""
    seen: list[Any] = []

    def look(history: History) -> bool:
        past = history.last(node="pay")
        seen.append(None if past is None else dict(past.notes))
        return True

    def process(given: Any) -> Any:
        with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            arbiter_os, app = bank(Spy("pay"), saver, approvers=["alice"])
            arbiter_os.add_policy_checker(Check("look", look, target_nodes=["last"]))
            return app.invoke(given, thread("1"))

    process(PAUSED)
    process(Command(resume=by("alice")))
    assert seen == [{"checker boss": "approved by 'alice'"}]


@MODES
def test_different_approvers_have_a_question_each(mode: str) -> None:
    """Four eyes: both must agree, and neither can agree for the other."""
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    arbiter_os.add_policy_checker(ApprovalChecker("audit", target_nodes=["pay"], approvers=["bob"]))
    arbiter_os.add_policy_checker(ApprovalChecker("anybody", target_nodes=["pay"]))
    first = question(run(app, PAUSED, thread("1"), mode=mode))
    assert [request["policy"] for request in first["requests"]] == ["boss", "anybody"]
    second = question(run(app, Command(resume=by("alice")), thread("1"), mode=mode))
    assert [request["policy"] for request in second["requests"]] == ["audit"]
    assert pay.calls == []
    assert run(app, Command(resume=by("bob")), thread("1"), mode=mode)["log"] == ["pay", "last"]
    item = arbiter_os.history.last(node="pay")
    assert item is not None
    assert item.notes == {
        "checker boss": "approved by 'alice'",
        "checker anybody": "approved by 'alice'",
        "checker audit": "approved by 'bob'",
    }


@MODES
def test_the_second_of_four_eyes_is_not_those_of_the_first(mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    arbiter_os.add_policy_checker(ApprovalChecker("audit", target_nodes=["pay"], approvers=["bob"]))
    run(app, PAUSED, thread("1"), mode=mode)
    run(app, Command(resume=by("alice")), thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="'alice' may not approve") as caught:
        run(app, Command(resume=by("alice")), thread("1"), mode=mode)
    assert caught.value.policy == "audit"
    assert pay.calls == []


# Edits --------------------------------------------------------------------------------------------


@MODES
def test_edited_input_is_checked_again_by_all(mode: str) -> None:
    """Also by a condition, which no approval overrules."""
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    arbiter_os.add_policy_checker(
        Check("limit", lambda h: (h.entries[-1][-1].input_state["amount"] <= 100, "above 100"))
    )
    run(app, PAUSED, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="above 100"):
        run(app, Command(resume=by("alice", "edit", input={"amount": 5000})), thread("1"), mode=mode)
    assert pay.calls == []
    run(app, PAUSED, thread("2"), mode=mode)
    run(app, Command(resume=by("alice", "edit", input={"amount": 90})), thread("2"), mode=mode)
    assert [call["amount"] for call in pay.calls] == [90]
    item = arbiter_os.history_of(thread_id="2").last(node="pay")
    assert item is not None
    assert item.notes["checker boss"] == "edited by 'alice'"


@MODES
def test_an_edit_by_one_is_shown_to_the_other(mode: str) -> None:
    """An approval from before the edit was for another input."""
    pay = Spy("pay")
    arbiter_os, app = bank(pay, approvers=["alice"])
    arbiter_os.add_policy_checker(ApprovalChecker("audit", target_nodes=["pay"], approvers=["bob"]))
    run(app, PAUSED, thread("1"), mode=mode)
    run(app, Command(resume=by("alice")), thread("1"), mode=mode)
    again = question(run(app, Command(resume=by("bob", "edit", input={"amount": 7})), thread("1"), mode=mode))
    assert (again["policy"], again["input"]["amount"]) == ("boss", 7)
    assert run(app, Command(resume=by("alice")), thread("1"), mode=mode)["log"] == ["pay", "last"]
    assert [call["amount"] for call in pay.calls] == [7]


class Dying(InMemorySaver):
    """Loses what the outermost graph would have shown, as a crash at that time does."""

    dies = False

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        shows = any(channel == "__interrupt__" for channel, _ in writes)
        if not (self.dies and shows and not config["configurable"].get("checkpoint_ns")):
            super().put_writes(config, writes, task_id, task_path)


@MODES
def test_an_answer_given_twice_after_a_crash_is_not_taken_for_the_next_question(mode: str) -> None:
    """The subgraph has saved the second question, and the graph still shows the first."""
    pay, saver = Spy("pay"), Dying()
    inner = chain(pay, checkpointer=None)
    builder: Any = StateGraph(State).add_node("sub", inner).add_edge(START, "sub")
    arbiter_os = ArbiterOS()
    for name, who in (("first", "alice"), ("second", "bob")):
        arbiter_os.add_policy_checker(ApprovalChecker(name, target_nodes=["pay"], approvers=[who]))
    app = arbiter_os.govern(builder.compile(checkpointer=saver))

    def answer(who: str) -> Any:
        (shown,) = app.get_state(thread("1")).interrupts
        assert shown.value["approvers"] == [who]
        return run(app, Command(resume={shown.id: by(who)}), thread("1"), mode=mode)

    run(app, PAUSED, thread("1"), mode=mode)
    saver.dies = True
    answer("alice")
    saver.dies = False
    answer("alice")
    assert answer("bob")["log"] == ["pay"]
    assert len(pay.calls) == 1


@MODES
@pytest.mark.parametrize("by_id", [True, False])
def test_an_approval_given_twice_after_a_crash_is_no_answer_for_the_body(by_id: bool, mode: str) -> None:
    heard, saver = list[Any](), Dying()

    def pay(state: State) -> State:
        heard.append(interrupt("which account?"))
        return {"log": ["pay"]}

    builder: Any = StateGraph(State).add_node("sub", chain(pay)).add_edge(START, "sub")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    app = arbiter_os.govern(builder.compile(checkpointer=saver))

    def answer(value: Any) -> Any:
        (shown,) = app.get_state(thread("1")).interrupts
        resume = {shown.id: value} if by_id else value
        return run(app, Command(resume=resume), thread("1"), mode=mode)

    run(app, PAUSED, thread("1"), mode=mode)
    saver.dies = True
    answer(by("alice"))
    saver.dies = False
    answer(by("alice"))
    assert answer("the second")["log"] == ["pay"]
    assert heard == ["the second"]


# Until when ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(("after", "runs"), [(59.0, True), (60.0, True), (60.5, False), (1e6, False)])
def test_an_approval_counts_until_it_expires(after: float, runs: bool, mode: str) -> None:
    """After that the question is asked anew, with a time of its own."""
    pay, clock = Spy("pay"), Clock()
    _, app = bank(pay, clock=clock, expires_after=60)
    run(app, PAUSED, thread("1"), mode=mode)
    clock.now += after
    result = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert bool(pay.calls) is runs
    if not runs:
        again = question(result)
        assert again["asked_at"] == clock.now
        assert again["note"] == "approved too late; the question had expired"
        clock.now += 10
        assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay", "last"]
    assert len(pay.calls) == 1


@MODES
def test_a_late_edit_is_no_edit_and_a_late_rejection_is_one(mode: str) -> None:
    pay, clock = Spy("pay"), Clock()
    _, app = bank(pay, clock=clock, expires_after=60)
    run(app, PAUSED, thread("1"), mode=mode)
    clock.now += 61
    question(run(app, Command(resume={"type": "edit", "input": {"amount": 1}}), thread("1"), mode=mode))
    clock.now += 61
    with pytest.raises(PolicyViolationError, match="rejected"):
        run(app, Command(resume="reject"), thread("1"), mode=mode)
    assert pay.calls == []


@MODES
def test_looking_at_a_paused_run_does_not_give_it_more_time(mode: str) -> None:
    """The time counts from when the question was asked first, however often the run is started again."""
    pay, clock = Spy("pay"), Clock()
    _, app = bank(pay, clock=clock, expires_after=60)
    run(app, PAUSED, thread("1"), mode=mode)
    for _ in range(3):
        clock.now += 19
        assert question(run(app, None, thread("1"), mode=mode))["asked_at"] == 1_000_000.0
    clock.now += 19
    question(run(app, Command(resume="approve"), thread("1"), mode=mode))
    assert pay.calls == []


@MODES
def test_a_sibling_that_is_answered_first_does_not_give_more_time(mode: str) -> None:
    clock = Clock()
    one, two = Spy("one"), Spy("two")
    builder = StateGraph(State)
    for node in (one, two):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    arbiter_os = ArbiterOS(clock=clock)
    arbiter_os.add_policy_checker(ApprovalChecker("boss", expires_after=60))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    asked = {i.value["node"]: i.id for i in run(app, PAUSED, thread("1"), mode=mode)["__interrupt__"]}
    clock.now += 40
    run(app, Command(resume={asked["one"]: "approve"}), thread("1"), mode=mode)
    clock.now += 40
    again = question(run(app, Command(resume={asked["two"]: "approve"}), thread("1"), mode=mode))
    assert (again["node"], again["note"]) == ("two", "approved too late; the question had expired")
    assert (len(one.calls), len(two.calls)) == (1, 0)


@pytest.mark.parametrize("late", [False, True])
def test_expiry_holds_in_another_process(late: bool, tmp_path: Path) -> None:
    """The time comes from the saved question."""
    pay = Spy("pay")
    clock = Clock()

    def process(given: Any) -> Any:
        with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            return bank(pay, saver, clock, expires_after=60)[1].invoke(given, thread("1"))

    process(PAUSED)
    clock.now += 61 if late else 59
    assert ("__interrupt__" in process(Command(resume="approve"))) is late
    assert bool(pay.calls) is not late


@pytest.mark.parametrize("late", [False, True])
def test_expiry_holds_in_another_async_process(late: bool, tmp_path: Path) -> None:
    pay = Spy("pay")
    clock = Clock()

    async def process(given: Any) -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
            return await bank(pay, saver, clock, expires_after=60)[1].ainvoke(given, thread("1"))

    asyncio.run(process(PAUSED))
    clock.now += 61 if late else 59
    assert ("__interrupt__" in asyncio.run(process(Command(resume="approve")))) is late
    assert bool(pay.calls) is not late


@MODES
def test_an_approval_in_time_stays_one_while_the_body_pauses(mode: str) -> None:
    clock = Clock()

    def pay(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("pin?")]}

    _, app = bank(pay, clock=clock, approvers=["alice"], expires_after=60)
    run(app, PAUSED, thread("1"), mode=mode)
    clock.now += 59
    assert question_text(run(app, Command(resume=by("alice")), thread("1"), mode=mode)) == "pin?"
    clock.now += 10_000
    assert run(app, Command(resume="1234"), thread("1"), mode=mode)["log"] == ["1234", "last"]


def question_text(paused: Any) -> Any:
    return paused["__interrupt__"][0].value


@MODES
def test_state_changed_meanwhile_is_a_new_question_with_a_new_time(mode: str) -> None:
    pay, clock = Spy("pay"), Clock()
    _, app = bank(pay, clock=clock, approvers=["alice"], expires_after=60)
    run(app, PAUSED, thread("1"), mode=mode)
    clock.now += 50
    app.update_state(thread("1"), {"amount": 900})
    again = question(run(app, Command(resume=by("alice")), thread("1"), mode=mode))
    assert (again["input"]["amount"], again["asked_at"]) == (900, clock.now)
    assert pay.calls == []


# Rules that changed meanwhile ---------------------------------------------------------------------


@MODES
def test_the_rule_in_force_when_the_answer_comes_decides(mode: str) -> None:
    """Somebody who may no longer approve cannot, though the question still named them."""
    pay, saver = Spy("pay"), InMemorySaver()
    run(bank(pay, saver, approvers=["alice", "bob"])[1], PAUSED, thread("1"), mode=mode)
    _, later = bank(pay, saver, approvers=["bob"])
    with pytest.raises(PolicyViolationError, match="'alice' may not approve"):
        run(later, Command(resume=by("alice")), thread("1"), mode=mode)
    assert pay.calls == []


@MODES
def test_an_approval_does_not_count_for_a_rule_that_came_later(mode: str) -> None:
    """The answer was to a question in the name of others: it is put aside."""
    pay, saver = Spy("pay"), InMemorySaver()
    run(bank(pay, saver)[1], PAUSED, thread("1"), mode=mode)
    arbiter_os, later = bank(pay, saver)
    arbiter_os.add_policy_checker(ApprovalChecker("new", target_nodes=["pay"]))
    again = question(run(later, Command(resume="approve"), thread("1"), mode=mode))
    assert [request["policy"] for request in again["requests"]] == ["boss", "new"]
    assert pay.calls == []
    assert run(later, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay", "last"]


# Any checker can ask so ---------------------------------------------------------------------------


@MODES
def test_a_checker_of_ones_own_asks_on_the_same_terms(mode: str) -> None:
    pay, clock = Spy("pay"), Clock()
    arbiter_os = ArbiterOS(clock=clock)
    arbiter_os.add_policy_checker(
        Check(
            "mine", lambda _: Verdict.ask("why", approvers=("alice",), expires_after=5), target_nodes=["pay"]
        )
    )
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    run(app, PAUSED, thread("1"), mode=mode)
    clock.now += 6
    question(run(app, Command(resume=by("alice")), thread("1"), mode=mode))
    with pytest.raises(PolicyViolationError, match="'bob' may not"):
        run(app, Command(resume=by("bob")), thread("1"), mode=mode)
    assert pay.calls == []


@MODES
@pytest.mark.parametrize(
    "payload",
    [
        {"approvers": []},
        {"approvers": "alice"},
        {"approvers": 5},
        {"approvers": [""]},
        {"approvers": [None]},
        {"expires_after": 0},
        {"expires_after": -1},
        {"expires_after": "soon"},
        {"expires_after": True},
        {"expires_after": float("nan")},
        {"expires_after": float("inf")},
    ],
)
def test_terms_that_make_no_sense_deny(payload: Any, mode: str) -> None:
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("mine", lambda _: Verdict.ask("why", **payload)))
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError, match=next(iter(payload))):
        run(app, PAUSED, thread("1"), mode=mode)
    assert pay.calls == []


@pytest.mark.parametrize(
    ("parameters", "parameter"),
    [
        ({"approvers": []}, "approvers"),
        ({"approvers": "alice"}, "approvers"),
        ({"approvers": [1]}, "approvers"),
        ({"expires_after": 0}, "expires_after"),
        ({"expires_after": "1h"}, "expires_after"),
        ({"reason": ""}, "reason"),
    ],
)
def test_wrong_parameters_are_named(parameters: Any, parameter: str) -> None:
    with pytest.raises(ParameterError, match="checker 'boss'") as caught:
        ApprovalChecker("boss", **parameters)
    assert caught.value.parameter == parameter


def test_on_deny_is_checked_as_everywhere() -> None:
    with pytest.raises(ConfigurationError, match="on_deny"):
        ArbiterOS().add_policy_checker(ApprovalChecker("boss", on_deny="explode"))


@MODES
def test_a_graph_without_a_checkpointer_denies_with_the_remedy(mode: str) -> None:
    """There the question would be lost, because it could never be answered."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss"))
    with pytest.raises(PolicyViolationError, match="no checkpointer"):
        run(arbiter_os.govern(chain(pay)), PAUSED, mode=mode)
    assert pay.calls == []
    assert statuses(arbiter_os) == [("pay", "denied")]


# Whatever comes back ------------------------------------------------------------------------------


class Hostile(UserDict[str, Any]):
    """A mapping that raises when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError("read me not")


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError("print me not")


NASTY: list[Callable[[], Any]] = [
    lambda: Hostile({"type": "approve"}),
    lambda: Unprintable(),
    lambda: {"type": Unprintable()},
    lambda: {"type": "reject", "message": Unprintable()},
    lambda: {"type": "edit", "by": "alice", "input": {1: 2, "a": 3}},
    lambda: {"type": "edit", "by": "alice", "input": Hostile({"amount": 1})},
    lambda: {"decisions": [{"decisions": [{"type": "approve", "by": "alice"}]}]},
]


@pytest.mark.parametrize("nasty", NASTY)
def test_hostile_answers_deny(nasty: Callable[[], Any]) -> None:
    """Read as the lifecycle reads them; such objects do not survive a checkpointer."""
    from arbiter._lifecycle.asking import read_answer

    decision = read_answer(nasty(), "input", frozenset({"alice"}))
    assert decision.kind in ("reject", "edit")


_words = st.sampled_from(["approve", "edit", "reject", "alice", "bob", "", "type", "amount"])
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _words
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=8,
)
_answers = _values | st.fixed_dictionaries(
    {"type": _words},
    optional={"by": _values, "input": _values, "message": _values, "decisions": _values},
)


@pytest.mark.lengthy
@examples(1.5)
@given(answer=_answers.filter(lambda answer: answer is not None))
def test_any_answer_runs_the_node_or_denies_it(answer: Any) -> None:
    """Only an approval or an edit by who may give it runs the node; all else is a denial with a reason."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", approvers=["alice"]))
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    app.invoke(PAUSED, thread("1"))
    allowed = _may(answer)
    command: Any = Command(resume={app.get_state(thread("1")).interrupts[0].id: answer})
    if allowed:
        assert "__interrupt__" not in app.invoke(command, thread("1"))
        assert len(pay.calls) == 1
        return
    with pytest.raises(PolicyViolationError) as caught:
        app.invoke(command, thread("1"))
    assert caught.value.reason.startswith("rejected")
    assert pay.calls == []


def _may(answer: Any) -> bool:
    """Whether that is an approval or an edit by Alice; written once more, from the documentation."""
    nothing: dict[str, Any] = {}
    found: Any = answer
    given: dict[str, Any] = found if isinstance(answer, dict) else nothing
    if isinstance(given.get("decisions"), list):
        decisions: list[Any] = given["decisions"]
        only: Any = decisions[0] if len(decisions) == 1 else None
        given = cast(dict[str, Any], only) if isinstance(only, dict) else nothing
    if given.get("by") != "alice":
        return False
    return given.get("type") == "approve" or (
        given.get("type") == "edit" and isinstance(given.get("input"), dict)
    )
