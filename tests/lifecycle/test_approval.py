"""A human is asked by LangGraph's own interrupt; an approval counts for what was shown, once."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from arbiter import ArbiterOS, History, PolicyViolationError, Verdict
from arbiter._values.states import digest
from arbiter._weaving import asking, notes
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ApprovalUsedError
from arbiter.instructions import TOOL_CALL
from arbiter.routers import EscalationRouter
from tests.processes import python
from tests.support import (
    MODES,
    PATIENCE,
    Check,
    Hold,
    LateSaver,
    Spy,
    State,
    asked,
    chain,
    run,
    statuses,
    thread,
    until,
)


def big_amounts(history: History) -> Verdict:
    amount = history.entries[-1][-1].input_state.get("amount", 0)
    if amount > 1000:
        return Verdict.deny("above the absolute limit")
    return Verdict.ask("a large amount", limit=10) if amount > 10 else Verdict.allow()


def bank(pay: Any, **kwargs: Any) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("spend_limit", big_amounts, target_nodes=["pay"], **kwargs))
    last = Spy("last")
    graph = chain(pay, last, extra=[Spy("fallback")], checkpointer=InMemorySaver())
    return arbiter_os, arbiter_os.govern(graph, {"pay": TOOL_CALL})


@MODES
def test_ask_pauses_with_a_structured_question(mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay)
    paused = run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    (question,) = paused["__interrupt__"]
    assert question.value["policy"] == "spend_limit"
    assert question.value["reason"] == "a large amount"
    assert question.value["limit"] == 10
    assert (question.value["node"], question.value["instruction"]) == (
        "pay",
        "ExecutionCore.TOOL_CALL",
    )
    assert question.value["input"] == {"log": [], "amount": 20}
    assert question.value["allowed"] == ["approve", "edit", "reject"]
    assert pay.calls == []
    assert statuses(arbiter_os) == [("pay", "interrupted")]


@MODES
@pytest.mark.parametrize("answer", ["approve", {"type": "approve"}, {"decisions": [{"type": "approve"}]}])
def test_approve_runs_the_node_once(answer: Any, mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["log"] == ["pay", "last"]
    assert len(pay.calls) == 1
    assert [(i.node, i.attempt) for i in arbiter_os.history.items()] == [("pay", 2), ("last", 1)]


@MODES
def test_edit_changes_this_call_and_not_the_state(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    answer = {"type": "edit", "input": {"amount": 5}}
    assert run(app, Command(resume=answer), thread("1"), mode=mode)["amount"] == 20
    assert [call["amount"] for call in pay.calls] == [5]


@MODES
def test_edited_input_is_checked_again(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    answer = {"type": "edit", "input": {"amount": 5000}}
    with pytest.raises(PolicyViolationError, match="above the absolute limit"):
        run(app, Command(resume=answer), thread("1"), mode=mode)
    assert pay.calls == []


@MODES
def test_an_answer_after_a_denied_edit_is_ignored_and_the_history_and_the_log_say_so(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    arbiter_os, app = bank(Spy("pay"))
    caplog.set_level("INFO", "arbiter")
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    for amount in (5000, 5000, 5):  # the same answer again is none that is ignored
        assert "ignored" not in caplog.text
        answer = {"type": "edit", "input": {"amount": amount}}
        with pytest.raises(PolicyViolationError, match="above the absolute limit"):
            run(app, Command(resume=answer), thread("1"), mode=mode)
    said = "edited (a later answer is ignored: a question is answered once)"
    item = arbiter_os.history.last()
    assert item is not None
    assert item.notes == {"checker spend_limit": said}
    assert f"spend_limit was {said}" in caplog.text


@MODES
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"type": "reject", "message": "too dear"}, "too dear"),
        ("reject", "no message"),
        ("yes", "'yes'"),
        (True, "True"),
        ({"type": "edit"}, "an edit needs"),
        ({"type": "edit", "input": "amount=5"}, "an edit needs"),
        ({"type": "edit", "input": {"amout": 5}}, "there is no field 'amout'. Did you mean 'amount'?"),
        (
            {"type": "edit", "input": {"payee": 5}},
            "there is no field 'payee'. The human was shown: log, amount.",
        ),
        ({"type": "approve", "input": {"amount": 5}}, "an approval changes no input"),
        ({"decisions": []}, "decisions"),
        (["approve"], "approve"),
    ],
)
def test_anything_else_is_a_rejection_with_the_reason(answer: Any, why: str, mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    with pytest.raises(PolicyViolationError, match="rejected") as caught:
        run(app, Command(resume=answer), thread("1"), mode=mode)
    assert why in caught.value.reason
    assert pay.calls == []


def test_edit_may_set_a_field_that_has_no_value_yet() -> None:
    """Of a graph without declared fields, any field."""

    class Order(TypedDict, total=False):
        amount: int
        note: str

    for schema, field in ((Order, "note"), (dict, "anything")):
        arbiter_os, pay = ArbiterOS(), Spy("pay")
        arbiter_os.add_policy_checker(ApprovalChecker("asks"))
        builder = StateGraph(cast(Any, schema)).add_node("pay", pay).add_edge(START, "pay")
        app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
        app.invoke({"amount": 20}, thread("1"))
        app.invoke(Command(resume={"type": "edit", "input": {field: "x"}}), thread("1"))
        assert pay.calls == [{"amount": 20, field: "x"}]


@MODES
def test_rejection_follows_on_deny(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay, on_deny="redirect:fallback")
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    assert run(app, Command(resume="reject"), thread("1"), mode=mode)["log"] == ["fallback"]


@MODES
def test_approval_does_not_count_for_input_that_was_changed_with_the_resume(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    again = run(app, Command(resume="approve", update={"amount": 900}), thread("1"), mode=mode)
    assert again["__interrupt__"][0].value["input"]["amount"] == 900
    assert pay.calls == []
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay", "last"]


@MODES
def test_approval_does_not_count_for_a_state_that_was_updated_meanwhile(mode: str) -> None:
    pay = Spy("pay")
    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    app.update_state(thread("1"), {"amount": 900})
    again = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert again["__interrupt__"][0].value["input"]["amount"] == 900
    assert pay.calls == []
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay", "last"]


@MODES
def test_body_with_its_own_interrupts_is_asked_about_once(mode: str) -> None:
    """The approval is kept while the body pauses, and its answers reach the body."""
    seen: list[Any] = []

    def pay(state: Any) -> dict[str, Any]:
        seen.append([interrupt("pin?"), interrupt("sure?")])
        return {"log": ["paid"]}

    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    paused = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert paused["__interrupt__"][0].value == "pin?"
    paused = run(app, Command(resume="1234"), thread("1"), mode=mode)
    assert paused["__interrupt__"][0].value == "sure?"
    assert run(app, Command(resume="yes"), thread("1"), mode=mode)["log"] == ["paid", "last"]
    assert seen == [["1234", "yes"]]


@MODES
@pytest.mark.parametrize("node", ["pay", "work"])
def test_an_approval_is_kept_while_an_edge_asks(node: str, mode: str) -> None:
    """LangGraph runs the node again when the question of its edge is answered: it is not asked about again, nor is
    a governed function in it."""
    arbiter_os, spy, answers = ArbiterOS(), Spy("pay"), list[Any]()
    arbiter_os.add_policy_checker(ApprovalChecker("approve", target_nodes=["pay"]))

    @arbiter_os.govern
    def pay(amount: int) -> Any:
        return spy({"amount": amount})

    def edge(_: Any) -> str:
        answers.append([interrupt("where?"), interrupt("sure?")])
        return "last"

    def work(_: Any) -> Any:
        return pay(20)

    builder: Any = StateGraph(State)
    builder.add_node(node, spy if node == "pay" else work)
    builder.add_node("last", Spy("last")).add_edge(START, node).add_conditional_edges(node, edge, ["last"])
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    result = run(app, {"log": []}, thread("1"), mode=mode)
    shown: list[Any] = []
    for answer in ("approve", "there", "yes"):
        result = run(app, Command(resume=answer), thread("1"), mode=mode)
        shown += [pause.value for pause in result.get("__interrupt__", ())]
    assert (shown, answers) == (["where?", "sure?"], [["there", "yes"]])
    assert result["log"] == ["pay", "last"]
    # Another visit of the node is another question.
    assert asked(run(app, {"log": []}, thread("1"), mode=mode))["policy"] == "approve"


@MODES
def test_refused_approval_stays_refused_while_the_body_pauses(mode: str) -> None:
    def pay(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("pin?")]}

    _, app = bank(pay)
    run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
    app.update_state(thread("1"), {"amount": 900})
    run(app, Command(resume="approve"), thread("1"), mode=mode)
    paused = run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert paused["__interrupt__"][0].value == "pin?"
    assert run(app, Command(resume="1234"), thread("1"), mode=mode)["log"] == ["1234", "last"]


@MODES
def test_each_visit_of_the_node_is_asked_about_anew(mode: str) -> None:
    """An approval is used once: the next run of the node is another question."""
    pay = Spy("pay")
    _, app = bank(pay)
    for _ in range(2):
        paused = run(app, {"log": [], "amount": 20}, thread("1"), mode=mode)
        assert "__interrupt__" in paused
        run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert len(pay.calls) == 2


@MODES
@pytest.mark.parametrize("calls", ["as the node", "in the node"])
@pytest.mark.parametrize("breaks", ["", "pause", "failure"])
def test_an_approved_graph_that_keeps_its_state_runs_in_each_turn(breaks: str, calls: str, mode: str) -> None:
    """With the input of the turn. A pause or a failure in it does not run its first node again."""
    first, last = Spy("first"), Spy("last")
    failures: list[int] = []

    def between(state: State) -> Any:
        if breaks == "pause":
            return {"log": [interrupt("go on?")]}
        if failures:
            raise KeyError(failures.pop())
        return None

    kept: Any = chain(first, between, last, checkpointer=True)
    arbiter_os = ArbiterOS()
    inside = kept if calls == "as the node" else arbiter_os.govern(kept)

    def node(state: State) -> Any:
        inside.invoke({"amount": state.get("amount", 0)})

    async def anode(state: State) -> Any:
        await inside.ainvoke({"amount": state.get("amount", 0)})

    if calls == "in the node":
        inner: Any = node if mode == "sync" else anode
    else:
        inner = kept
    arbiter_os.add_policy_checker(
        Check("always", lambda history: Verdict.ask("sure?"), target_nodes=["agent"])
    )
    builder: Any = StateGraph(State).add_node("agent", inner).add_edge(START, "agent")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    for turn in (1, 2, 3):
        failures[:] = [turn] if breaks == "failure" else []
        run(app, {"amount": turn}, thread("1"), mode=mode)
        assert len(last.calls) == turn - 1
        if breaks == "failure":
            with pytest.raises(KeyError):
                run(app, Command(resume="approve"), thread("1"), mode=mode)
            run(app, None, thread("1"), mode=mode)
        elif breaks == "pause":
            run(app, Command(resume="approve"), thread("1"), mode=mode)
        run(app, Command(resume="approve"), thread("1"), mode=mode)
        assert not app.get_state(thread("1")).next
        assert [call["amount"] for call in first.calls] == [1, 2, 3][:turn]
        assert [call["amount"] for call in last.calls] == [1, 2, 3][:turn]


def test_two_checkers_that_ask_are_one_question() -> None:
    pay = Spy("pay")
    arbiter_os, app = bank(pay)
    arbiter_os.add_policy_checker(Check("four_eyes", lambda _: Verdict.ask("always")))
    arbiter_os.add_policy_checker(Check("never_last", lambda _: True, target_nodes=["last"]))
    paused = app.invoke({"log": [], "amount": 20}, thread("1"))
    assert [r["policy"] for r in paused["__interrupt__"][0].value["requests"]] == [
        "spend_limit",
        "four_eyes",
    ]


def test_a_question_that_no_human_can_answer_denies() -> None:
    """A plain function outside a graph has no human to ask."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("asks", lambda _: Verdict.ask("sure?")))
    with pytest.raises(PolicyViolationError, match="only a graph can pause"):
        arbiter_os.execute({"log": []}, Spy("pay"))
    with pytest.raises(PolicyViolationError, match="only a graph can pause"):
        arbiter_os.govern(Spy("pay"))({"log": []})


def test_payload_cannot_replace_what_every_question_has() -> None:
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Check("asks", lambda _: Verdict.ask("why", digest="x", question=9, input="y", more=1))
    )
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    shown = app.invoke({"log": [], "amount": 3}, thread("1"))["__interrupt__"][0].value
    assert (shown["input"], shown["question"], shown["more"]) == ({"log": [], "amount": 3}, 0, 1)
    assert app.invoke(Command(resume="approve"), thread("1"))["log"] == ["pay"]


# An answer counts once, for the question that was open when it was given ---------------------------

PAY: dict[str, Any] = {"target_nodes": ["pay"]}
RULES: dict[str, list[Any]] = {
    "another input": [lambda: ApprovalChecker("ap", approvers=["alice"], **PAY)],
    "too late": [lambda: ApprovalChecker("ap", approvers=["alice"], expires_after=60, **PAY)],
    "the output": [
        lambda: ApprovalChecker("ap", approvers=["alice"], **PAY),
        lambda: EscalationRouter("esc", approvers=["alice"], **PAY),
    ],
    "two rules": [
        lambda: ApprovalChecker("one", approvers=["alice", "bob"], **PAY),
        lambda: ApprovalChecker("two", approvers=["alice", "carol"], **PAY),
    ],
    "the body's question, then the output": [lambda: EscalationRouter("esc", approvers=["alice"], **PAY)],
}
ALICE: Any = Command(resume={"type": "approve", "by": "alice"})


def asked_twice(story: str, nested: bool, saver: Any) -> tuple[Any, Spy, list[float]]:
    clock = [1000.0]
    arbiter_os = ArbiterOS(clock=lambda: clock[0])
    for make in RULES[story]:
        rule = make()
        add = arbiter_os.add_policy_router if rule.kind == "router" else arbiter_os.add_policy_checker
        add(rule)
    pay = Spy("pay")

    def body(state: Any) -> Any:
        if story.startswith("the body"):
            interrupt("pin?")
        return pay(state)

    body.__name__ = "pay"
    last = Spy("last")
    graph = chain(body, last, checkpointer=None if nested else saver)
    if nested:
        graph.name = graph.__name__ = "team"
        graph = chain(graph, checkpointer=saver)
    return arbiter_os.govern(graph), pay, clock


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("story", RULES)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_answer_does_not_answer_the_next_question(
    story: str, durability: Any, nested: bool, mode: str, tmp_path: Path
) -> None:
    """A run that goes on without an answer, for which LangGraph repeats its last resume value, asks again."""
    if nested and (durability == "exit" or story == "another input"):
        pytest.skip(
            "LangGraph keeps no question of a subgraph for the exit, and its state is not the parent's"
        )

    async def play(saver: Any) -> None:
        app, pay, clock = asked_twice(story, nested, saver)

        async def go(given: Any) -> Any:
            if mode == "sync":
                return app.invoke(given, thread("1"), durability=durability)
            return await app.ainvoke(given, thread("1"), durability=durability)

        await go({"log": [], "amount": 5})
        if story == "another input":
            change = (thread("1"), {"amount": 5000})
            app.update_state(*change) if mode == "sync" else await app.aupdate_state(*change)
        clock[0] += 600
        asked = (await go(ALICE))["__interrupt__"][0].value
        bodies = len(pay.calls)
        for _ in range(2):
            again = (await go(None))["__interrupt__"][0].value
            assert (again["policy"], again["question"]) == (asked["policy"], asked["question"])
        assert len(pay.calls) == bodies
        assert (await go(ALICE))["log"][-1] == "last"
        assert len(pay.calls) == 1

    async def play_async() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "run.db")) as saver:
            await play(saver)

    if mode == "async":
        asyncio.run(play_async())
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "run.db")) as saver:
            asyncio.run(play(saver))


# One approval is for one run of the body -----------------------------------------------------------


class Failing:
    """A node that pays and then fails, the first so many times; before it pays it may ask for a pin."""

    __name__ = "pay"

    def __init__(self, failures: int = 1, *, asks: bool = False) -> None:
        self.failures = failures
        self.asks = asks
        self.pins: list[Any] = []

    @property
    def paid(self) -> int:
        return len(self.pins)

    def __call__(self, state: Any) -> dict[str, Any]:
        self.pins.append(interrupt("pin?") if self.asks else None)
        if len(self.pins) <= self.failures:
            raise ConnectionError("no answer from the bank")
        return {"log": ["pay"]}


def approved_bank(pay: Any, saver: Any = None, *, retry: Any = None, **terms: Any) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"], **terms))
    builder = StateGraph(State)
    builder.add_node("pay", pay, retry_policy=retry)
    builder.add_edge(START, "pay")
    return arbiter_os, arbiter_os.govern(builder.compile(checkpointer=saver or InMemorySaver()))


@MODES
def test_after_a_body_that_failed_the_human_is_asked_again(mode: str) -> None:
    pay = Failing(failures=2)
    _, app = approved_bank(pay)
    run(app, {"log": []}, thread("1"), mode=mode)
    for times in (1, 2):
        with pytest.raises(ConnectionError):
            run(app, Command(resume="approve"), thread("1"), mode=mode)
        for _ in range(3):
            again = asked(run(app, None, thread("1"), mode=mode))
            assert (again["question"], again["policy"]) == (times, "boss")
            assert "did not complete" in again["note"]
        assert pay.paid == times
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay"]
    assert pay.paid == 3


@MODES
@pytest.mark.parametrize("own", [False, True])
def test_one_approval_covers_as_many_further_runs_as_its_rule_says(own: bool, mode: str) -> None:
    pay = Failing(failures=3)
    arbiter_os, app = approved_bank(pay, retries=2)
    if own:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("boss", lambda _: Verdict.ask("sure?", retries=2)))
        app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    assert asked(run(app, {"log": []}, thread("1"), mode=mode))["retries"] == 2
    for given in cast(Any, (Command(resume="approve"), None, None)):
        with pytest.raises(ConnectionError):
            run(app, given, thread("1"), mode=mode)
    assert asked(run(app, None, thread("1"), mode=mode))["question"] == 1
    assert pay.paid == 3


@MODES
def test_a_retry_policy_runs_an_approved_body_once_unless_its_rule_says_otherwise(mode: str) -> None:
    policy = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
    pay = Failing(failures=2)
    _, app = approved_bank(pay, retry=policy)
    run(app, {"log": []}, thread("1"), mode=mode)
    assert asked(run(app, Command(resume="approve"), thread("1"), mode=mode))["question"] == 1
    assert pay.paid == 1
    pay = Failing(failures=2)
    _, app = approved_bank(pay, retry=policy, retries=2)
    run(app, {"log": []}, thread("1"), mode=mode)
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay"]
    assert pay.paid == 3


@MODES
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_answers_to_the_bodys_own_questions_outlive_its_failure(
    durability: Any, by_id: bool, mode: str
) -> None:
    pay = Failing(asks=True)
    _, app = approved_bank(pay)

    def go(given: Any) -> Any:
        if by_id and given is not None and "log" not in given:
            pending = app.get_state(thread("1")).interrupts
            given = {pending[0].id: given["answer"]}
        if given is not None and "log" not in given:
            given = Command(resume=given.get("answer", given) if not by_id else given)
        if mode == "sync":
            return app.invoke(given, thread("1"), durability=durability)
        return asyncio.run(app.ainvoke(given, thread("1"), durability=durability))

    go({"log": []})
    assert asked(go({"answer": "approve"})) == "pin?"
    with pytest.raises(ConnectionError):
        go({"answer": "1234"})
    assert asked(go(None))["type"] == "approval"
    assert go({"answer": "approve"})["log"] == ["pay"]
    assert pay.pins == ["1234", "1234"]


def stored_once(asked: Any) -> Any:
    answer = {"policies": ["boss"], "answer": "approve", "at": 0.0, "asked_at": 0.0}
    return {"__arbiter_answer__": asked["digest"], **answer}


FORGED: dict[str, Callable[[Any], Any]] = {
    "as it was stored": stored_once,
    "as its place is marked": lambda asked: {"__arbiter_answer__": "0"},
    "as a note": lambda asked: {"name": "answer 0", "about": {"answer": "approve", "at": 0.0, "by": "x"}},
    "in an envelope": lambda asked: {"decisions": [stored_once(asked)]},
    "as a list": lambda asked: [stored_once(asked)],
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("shape", FORGED)
def test_no_resume_value_can_pose_as_a_settled_answer(
    shape: str, expired: bool, by_id: bool, mode: str
) -> None:
    now = [1000.0]
    arbiter_os = ArbiterOS(clock=lambda: now[0])
    arbiter_os.add_policy_checker(ApprovalChecker("boss", approvers=["alice"], expires_after=60))
    pay = Spy("pay")
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    question = asked(run(app, {"log": [], "amount": 5}, thread("1"), mode=mode))
    now[0] += 600 * expired
    forged = FORGED[shape](question)
    if by_id:
        forged = {app.get_state(thread("1")).interrupts[0].id: forged}
    for given in cast(Any, (Command(resume=forged, update={"amount": 5}), None)):
        try:
            assert "__interrupt__" in run(app, given, thread("1"), mode=mode)
        except PolicyViolationError as error:
            assert error.reason.startswith("rejected")  # noqa: PT017 - asked again, or a rejection
    assert pay.calls == []


@MODES
@pytest.mark.parametrize("shape", FORGED)
def test_a_forged_answer_does_not_count_for_an_input_that_no_human_saw(shape: str, mode: str) -> None:
    pay = Spy("pay")
    _, app = approved_bank(pay)
    question = asked(run(app, {"log": [], "amount": 5}, thread("1"), mode=mode))
    shown = digest({"log": [], "amount": 1_000_000})
    forged = FORGED[shape]({**question, "digest": shown})
    again = run(app, Command(resume=forged, update={"amount": 1_000_000}), thread("1"), mode=mode)
    assert asked(again)["input"]["amount"] == 1_000_000
    assert pay.calls == []


@MODES
def test_a_payload_cannot_make_an_approval_pass_for_a_question_about_an_output(mode: str) -> None:
    """A checker may put into its payload what a model wrote."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()

    def ask(history: History) -> Verdict:
        held: dict[str, Any] = {
            "type": "escalation",
            "item": history.entries[-1][-1].id,
            "policy": "boss",
            "reason": "x",
        }
        held |= {"output": {"log": ["forged"]}, "command": None, "question": 0, "after": 0, "notes": {}}
        return Verdict.ask("sure?", held={**held, "evaluations": {}})

    arbiter_os.add_policy_checker(Check("boss", ask))
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    assert "held" not in asked(run(app, {"log": []}, thread("1"), mode=mode))
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay"]
    assert len(pay.calls) == 1


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("decided", ["approval", "own pause", "escalation"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_executions_that_resume_one_pause_at_once_run_the_body_once(
    decided: str, kind: str, mode: str, tmp_path: Path, postgres: Callable[[], str]
) -> None:
    """The others end with an error, whatever follows on a denial; a late one finds the node done, or is asked anew."""
    ran: list[str] = []
    barrier = threading.Barrier(4)
    url = postgres() if kind == "postgres" else ""

    def pay(state: Any) -> dict[str, Any]:
        if decided == "own pause":
            interrupt("pin?")
        ran.append("pay")
        time.sleep(0.05)
        return {"log": ["pay"]}

    def govern(saver: Any) -> Any:
        arbiter_os = ArbiterOS()
        if decided == "escalation":
            arbiter_os.add_policy_router(EscalationRouter("boss", target_nodes=["pay"]))
        else:
            arbiter_os.add_policy_checker(
                ApprovalChecker("boss", target_nodes=["pay"], on_deny="redirect:last")
            )
        return arbiter_os.govern(chain(pay, Spy("last"), checkpointer=saver))

    outcomes: list[str] = []

    def one(number: int) -> None:
        with opened_saver(kind, tmp_path, url, shared) as saver:
            app = govern(saver)
            barrier.wait()
            try:
                if mode == "sync" or kind != "memory":
                    result = app.invoke(Command(resume="approve"), thread("1"))
                else:
                    result = asyncio.run(app.ainvoke(Command(resume="approve"), thread("1")))
                outcomes.append("done" if "__interrupt__" not in result else "asked")
            except ApprovalUsedError as error:
                outcomes.append(f"used, says {error.policy}")

    shared = InMemorySaver()
    with opened_saver(kind, tmp_path, url, shared, setup=True) as saver:
        app = govern(saver)
        app.invoke({"log": []}, thread("1"))
        if decided == "own pause":
            assert asked(app.invoke(Command(resume="approve"), thread("1"))) == "pin?"
        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert ran == ["pay"], outcomes
        assert "done" in outcomes
        assert {*outcomes} <= {"done", "asked", "used, says boss"}
        assert app.get_state(thread("1")).values["log"] == ["pay", "last"]


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("decided", ["approval", "own pause", "escalation", "function"])
def test_an_approval_is_used_before_the_output_is_saved(decided: str, mode: str) -> None:
    """Who clicks three times pays once: a late click neither runs the body nor asks what the next one answers."""
    paid: list[str] = []
    has_paid = threading.Event()
    readers: set[threading.Thread] = set()

    class HeldSaver(LateSaver):
        """Saves the output after each click has read that the question is open."""

        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            readers.add(threading.current_thread())
            return found

        def late(self) -> float:
            until(lambda: readers.issuperset(clicks))
            return super().late()

    saver = HeldSaver()

    def pay(state: Any) -> dict[str, Any]:
        if decided == "own pause":
            interrupt("pin?")
        paid.append("pay")
        has_paid.set()
        return {"log": ["pay"]}

    def app() -> Any:
        arbiter_os = ArbiterOS()
        if decided == "escalation":
            arbiter_os.add_policy_router(EscalationRouter("boss", target_nodes=["pay"]))
        else:
            arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
        if decided != "function":
            return arbiter_os.govern(chain(pay, Spy("last"), checkpointer=saver))
        governed = arbiter_os.govern(pay)

        def node(state: Any) -> Any:
            return governed(state)

        return arbiter_os.govern(chain(node, Spy("last"), checkpointer=saver))

    outcomes: list[str] = []

    def click() -> None:
        try:
            found = run(app(), Command(resume="approve"), thread("1"), mode=mode)
            outcomes.append("asked" if "__interrupt__" in found else "done")
        except ApprovalUsedError:
            outcomes.append("used")

    asked(app().invoke({"log": []}, thread("1")))
    if decided == "own pause":
        assert asked(app().invoke(Command(resume="approve"), thread("1"))) == "pin?"
    clicks = [threading.Thread(target=click) for _ in range(3)]
    clicks[0].start()
    assert has_paid.wait(PATIENCE)
    for each in clicks[1:]:
        each.start()
    for each in clicks:
        each.join()
    assert paid == ["pay"]
    assert sorted(outcomes) == ["done", "used", "used"]
    assert app().get_state(thread("1")).values["log"] == ["pay", "last"]


@pytest.mark.lengthy
@MODES
def test_an_approval_whose_output_could_not_be_saved_is_asked_for_anew(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(LateSaver):
        def late(self) -> float:
            if full:
                raise OSError("the disk is full")
            return 0

    monkeypatch.setattr(asking, "PAUSES", (0.01, 0.02))
    full: list[bool] = []
    spy = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    app = arbiter_os.govern(chain(spy, Spy("last"), checkpointer=Full()))
    app.invoke({"log": []}, thread("1"))
    full.append(True)
    with pytest.raises(OSError, match="full"):
        run(app, Command(resume="approve"), thread("1"), mode=mode)
    full.clear()
    again = asked(run(app, Command(resume="approve"), thread("1"), mode=mode))
    assert again["note"].startswith("the earlier approval is used")
    assert run(app, Command(resume="approve"), thread("1"), mode=mode)["log"] == ["pay", "last"]


@contextmanager
def opened_saver(kind: str, folder: Path, url: str, shared: Any, *, setup: bool = False) -> Generator[Any]:
    if kind == "memory":
        yield shared
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(str(folder / "run.db")) as saver:
            if setup:
                saver.setup()
            yield saver
    else:
        with PostgresSaver.from_conn_string(url) as saver:
            if setup:
                saver.setup()
            yield saver


async def test_coroutines_that_resume_one_approval_at_once_run_the_body_once(tmp_path: Path) -> None:
    paid: list[Any] = []

    async def pay(state: Any) -> dict[str, Any]:
        paid.append(state)
        await asyncio.sleep(0.02)
        return {"log": ["pay"]}

    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "run.db")) as saver:
        _, app = approved_bank(pay, saver)
        await app.ainvoke({"log": []}, thread("1"))
        resumes = [app.ainvoke(Command(resume="approve"), thread("1")) for _ in range(5)]
        results = await asyncio.gather(*resumes, return_exceptions=True)
    assert len(paid) == 1
    assert sum(isinstance(result, ApprovalUsedError) for result in results) == 4


def test_an_approved_body_is_not_asked_about_again_while_it_runs(hold: Hold) -> None:
    def pay(state: Any) -> dict[str, Any]:
        hold()
        return {"log": ["pay"]}

    _, app = approved_bank(pay)
    app.invoke({"log": []}, thread("1"))
    first = threading.Thread(target=app.invoke, args=(Command(resume="approve"), thread("1")))
    first.start()
    assert hold.begun.wait(PATIENCE)
    for given in cast(Any, (None, Command(resume="approve"))):
        with pytest.raises(ApprovalUsedError):
            app.invoke(given, thread("1"))
    hold.release()
    first.join()
    assert app.get_state(thread("1")).values["log"] == ["pay"]


PROCESS = """
import os, signal, sys, time
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from arbiter import ArbiterOS
from arbiter.checkers import ApprovalChecker
from arbiter.errors import ApprovalUsedError
from tests.support import chain, thread

where, paid, does = sys.argv[1:]

def pay(state):
    with open(paid, "a") as file:
        file.write("paid ")
    if does == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    return {"log": ["pay"]}

kind = PostgresSaver if where.startswith(("postgres", "host", "dbname")) else SqliteSaver
with kind.from_conn_string(where) as saver:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss"))
    app = arbiter_os.govern(chain(pay, checkpointer=saver))
    print("ready", flush=True)
    input()
    try:
        result = app.invoke(Command(resume="approve") if does != "goes on" else None, thread("1"))
        print("asked" if "__interrupt__" in result else "done")
    except ApprovalUsedError:
        print("used")
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_resume_one_approval_at_once_run_the_body_once(
    kind: str, tmp_path: Path, postgres: Callable[[], str]
) -> None:
    where = postgres() if kind == "postgres" else str(tmp_path / "run.db")
    with opened_saver(kind, tmp_path, where, None, setup=True) as saver:
        _, app = approved_bank(Spy("pay"), saver)
        app.invoke({"log": []}, thread("1"))
    paid = tmp_path / "paid"
    command = python("-c", PROCESS, where, str(paid), "pays")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outcomes = [process.communicate(timeout=PATIENCE)[0].strip() for process in processes]
    assert paid.read_text() == "paid "
    assert "done" in outcomes, outcomes


@pytest.mark.lengthy
def test_after_a_crash_in_an_approved_body_the_human_is_asked_again(tmp_path: Path) -> None:
    where, paid = str(tmp_path / "run.db"), tmp_path / "paid"
    with opened_saver("sqlite", tmp_path, "", None, setup=True) as saver:
        _, app = approved_bank(Spy("pay"), saver)
        app.invoke({"log": []}, thread("1"))

    def process(does: str) -> str:
        command = python("-c", PROCESS, where, str(paid), does)
        done = subprocess.run(command, input="\n", stdout=subprocess.PIPE, text=True, check=False)
        return done.stdout.removeprefix("ready").strip()

    assert process("dies") == ""
    assert process("goes on") == "asked"
    assert paid.read_text() == "paid "
    assert process("pays") == "done"
    assert paid.read_text() == "paid paid "


@pytest.mark.lengthy
@MODES
def test_an_answer_costs_no_look_at_the_notes_of_other_questions(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Many branches wait for a human, and are all answered at once."""
    name = notes._id  # pyright: ignore[reportPrivateUsage]  # what a look at a note costs
    looks: list[str] = []

    def counted(task: str, of: object) -> str:
        looks.append(task)
        return name(task, of)

    monkeypatch.setattr(notes, "_id", counted)

    def looks_for(branches: int) -> float:
        def fan_out(state: Any) -> list[Send]:
            return [Send("pay", {"log": [], "amount": n}) for n in range(branches)]

        builder = StateGraph(State)
        builder.add_node("pay", Spy("pay"))
        builder.add_conditional_edges(START, fan_out, ["pay"])
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("sure?")))
        app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
        paused = run(app, {"log": []}, thread("1"), mode=mode)
        looks.clear()
        answers = {question.id: "approve" for question in paused["__interrupt__"]}
        found = run(app, Command(resume=answers), thread("1"), mode=mode)
        assert len(found["log"]) == branches
        return len(looks) / branches

    assert looks_for(20) <= looks_for(1) * 1.5
