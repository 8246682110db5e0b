"""A denied node does not run; what a denial does; who wins; what a failing checker means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send

from arbiter import ArbiterOS, History, HistoryPolicyChecker, PolicyViolationError, Verdict
from arbiter.checkers import ApprovalChecker
from arbiter.instructions import GENERATE, LOAD, REFLECT, TOOL_CALL, VERIFY
from tests.support import MODES, Check, Hold, Spy, State, allow, chain, run, statuses, thread


def boom(_: History) -> bool:
    raise ZeroDivisionError("division by zero")


NO: dict[str, tuple[Callable[[History], Any], str]] = {
    "False": (lambda _: False, "the checker returned False"),
    "(False, why)": (lambda _: (False, "why"), "why"),
    "deny": (lambda _: Verdict.deny("because"), "because"),
    "raises": (boom, "ZeroDivisionError"),
    "None": (lambda _: None, "returned None"),
    "a string": (lambda _: "yes", "returned 'yes'"),
    "1": (lambda _: 1, "returned 1"),
    "a short tuple": (lambda _: (True,), "returned (True,)"),
    "lacks input": (lambda h: h.entries[-1][-1].input_state["absent"], "KeyError"),
}
NOT_ALLOWED: list[Callable[[History], Any]] = [lambda _: False, boom, lambda _: Verdict.ask("may I?")]


@MODES
@pytest.mark.parametrize(("answer", "reason"), NO.values(), ids=NO.keys())
def test_denied_node_does_not_run(answer: Any, reason: str, mode: str) -> None:
    """The body is not called, and the error says which policy denied, where and why."""
    first, pay, last = Spy("first"), Spy("pay"), Spy("last")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("spend_limit", answer, target_nodes=["pay"]))
    app = arbiter_os.govern(chain(first, pay, last), {"pay": TOOL_CALL})
    with pytest.raises(PolicyViolationError) as caught:
        run(app, {"log": []}, mode=mode)
    assert (len(first.calls), pay.calls, last.calls) == (1, [], [])
    error = caught.value
    assert (error.policy, error.node, error.instruction) == ("spend_limit", "pay", TOOL_CALL)
    assert "spend_limit" in str(error)
    assert "pay" in str(error)
    assert reason in str(error)
    assert reason in error.reason
    assert statuses(arbiter_os) == [("first", "completed"), ("pay", "denied")]
    item = arbiter_os.history.entries[-1][-1]
    assert item.check_policy_results["spend_limit"].kind == "deny"
    assert item.error == str(error)


@MODES
def test_checker_past_its_deadline_denies(mode: str, hold: Hold) -> None:
    """The run goes on while the checker still hangs."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("slow", hold, deadline=0.05))
    with pytest.raises(PolicyViolationError, match=r"no answer within 0\.05 s"):
        run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert pay.calls == []


def test_async_checker_past_its_deadline_denies() -> None:
    class Slow(Check):
        async def check_before(self, history: History) -> bool:
            await asyncio.sleep(60)
            return True

    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Slow("slow", allow, deadline=0.05))
    with pytest.raises(PolicyViolationError, match="no answer within"):
        run(arbiter_os.govern(chain(pay)), {"log": []}, mode="async")
    assert pay.calls == []


@MODES
def test_on_deny_redirect_runs_that_node_instead(mode: str) -> None:
    pay, last, fallback = Spy("pay"), Spy("last"), Spy("fallback")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Check("no", lambda _: False, target_nodes=["pay"], on_deny="redirect:fallback")
    )
    app = arbiter_os.govern(chain(pay, last, extra=[fallback]))
    assert run(app, {"log": []}, mode=mode) == {"log": ["fallback"]}
    assert (pay.calls, last.calls) == ([], [])
    assert statuses(arbiter_os) == [("pay", "denied"), ("fallback", "completed")]
    assert arbiter_os.history.entries[0][0].redirected_to == "fallback"


def looping(*, inside: bool = False, again: str = "pay", **parameters: Any) -> tuple[ArbiterOS, Any, Spy]:
    """`pay` is always denied and redirects to `again`; `fix` leads back to it."""
    pay, last = Spy("pay"), Spy("last")
    builder = StateGraph(State)
    for node in (pay, last, Spy("fix")):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "pay").add_edge("pay", "last").add_edge("fix", "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Check("no", lambda _: False, target_nodes=["pay"], on_deny=f"redirect:{again}", **parameters)
    )
    graph: Any = builder.compile()
    if inside:
        outer: Any = StateGraph(State).add_node("graph", graph).add_edge(START, "graph")
        graph = outer
    else:
        graph = builder
    return arbiter_os, arbiter_os.govern(graph.compile(checkpointer=InMemorySaver())), pay


@MODES
@pytest.mark.parametrize("inside", [False, True], ids=["graph", "subgraph"])
@pytest.mark.parametrize("again", ["pay", "fix"])
def test_a_loop_of_denials_ends(again: str, inside: bool, mode: str) -> None:
    """Once denials have redirected `max_redirects` times in a run, the next one raises and says so."""
    arbiter_os, app, pay = looping(inside=inside, again=again)
    config = thread("t")
    with pytest.raises(PolicyViolationError, match="returned False; max_redirects=10 reached") as caught:
        run(app, {"log": []}, config, mode=mode)
    assert caught.value.policy == "no"
    assert pay.calls == []
    denied = [item for item in arbiter_os.history_of(thread_id="t").items() if item.node == "pay"]
    assert [item.redirected_to for item in denied] == [again] * 10 + [None]
    assert denied[-1].notes == {"checker no": f"max_redirects=10 reached; it did not redirect to {again}"}
    assert denied[-1].decision.consequence == "raise"
    with pytest.raises(PolicyViolationError, match="max_redirects=10 reached"):
        run(app, None, config, mode=mode)
    later = arbiter_os.history_of(thread_id="t").items()
    assert [i.attempt for i in later if i.node == "pay"] == [1] * 10 + [2]


@MODES
def test_the_cap_of_denials_holds_for_each_run_and_in_another_process(mode: str) -> None:
    arbiter_os, app, _ = looping(max_redirects=2)
    config = thread("t")
    for denied in (3, 6):
        with pytest.raises(PolicyViolationError, match="max_redirects=2 reached"):
            run(app, {"log": []}, config, mode=mode)
        assert arbiter_os.history_of(thread_id="t").count(node="pay") == denied
    elsewhere = ArbiterOS()
    elsewhere.add_policy_checker(arbiter_os.checkers[0])
    with pytest.raises(PolicyViolationError, match="max_redirects=2 reached"):
        run(elsewhere.govern(app.builder.compile(checkpointer=app.checkpointer)), None, config, mode=mode)


@MODES
def test_denied_siblings_count_once(mode: str) -> None:
    """Twelve parts that are denied in one superstep are one turn of a loop, not twelve."""

    def deal(state: State) -> Any:
        return [Send("pay", {"amount": amount}) for amount in range(12)]

    def again(state: State) -> str:
        return "deal" if len(state.get("log", ())) < 4 else END

    builder: Any = StateGraph(State).add_node("pay", Spy("pay")).add_node("fix", Spy("fix"))
    builder.add_node("deal", Spy("deal")).add_edge(START, "deal").add_conditional_edges("deal", deal, ["pay"])
    builder.add_conditional_edges("fix", again, ["deal", END])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        Check("no", lambda _: False, target_nodes=["pay"], on_deny="redirect:fix", max_redirects=2)
    )
    app = arbiter_os.govern(builder.compile())
    assert run(app, {"log": []}, mode=mode) == {"log": ["deal", "fix", "deal", "fix"]}
    assert arbiter_os.history.count(node="pay") == 24


@MODES
def test_rejections_by_a_human_have_no_cap(mode: str) -> None:
    builder = StateGraph(State).add_node("pay", Spy("pay")).add_node("fix", Spy("fix"))
    builder.add_edge(START, "pay").add_edge("fix", "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        ApprovalChecker("boss", target_nodes=["pay"], on_deny="redirect:fix", max_redirects=1)
    )
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    given: Any = {"log": []}
    for _ in range(4):
        asked = run(app, given, thread("t"), mode=mode)
        assert "__interrupt__" in asked
        given = Command(resume="reject")
    assert run(app, Command(resume="approve"), thread("t"), mode=mode)["log"] == ["fix"] * 3 + ["pay"]


@MODES
def test_on_deny_end_takes_no_edge(mode: str) -> None:
    first, pay, last = Spy("first"), Spy("pay"), Spy("last")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda _: False, target_nodes=["pay"], on_deny="end"))
    app = arbiter_os.govern(chain(first, pay, last))
    assert run(app, {"log": []}, mode=mode) == {"log": ["first"]}
    assert (pay.calls, last.calls) == ([], [])


@MODES
@pytest.mark.parametrize("answer", NOT_ALLOWED)
def test_on_deny_audit_records_and_runs(answer: Any, mode: str) -> None:
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("shadow", answer, on_deny="audit"))
    app = arbiter_os.govern(chain(pay))
    assert run(app, {"log": []}, mode=mode) == {"log": ["pay"]}
    assert arbiter_os.history.entries[-1][-1].check_policy_results["shadow"].kind != "allow"


@MODES
def test_strongest_verdict_wins_and_all_are_recorded(mode: str) -> None:
    """Deny over ask over allow, whatever the order; the first that denies says what happens."""
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", allow))
    arbiter_os.add_policy_checker(Check("asks", lambda _: Verdict.ask("sure?")))
    arbiter_os.add_policy_checker(Check("denies", lambda _: Verdict.deny("never")))
    arbiter_os.add_policy_checker(Check("denies_too", lambda _: False, on_deny="end"))
    app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError, match="never"):
        run(app, {"log": []}, thread("1"), mode=mode)
    checks = arbiter_os.history.entries[-1][-1].check_policy_results
    assert {name: verdict.kind for name, verdict in checks.items()} == {
        "fine": "allow",
        "asks": "ask",
        "denies": "deny",
        "denies_too": "deny",
    }
    assert pay.calls == []


@MODES
def test_denied_run_can_be_resumed_once_the_reason_is_gone(mode: str) -> None:
    """A raised denial leaves the checkpoint as it was."""
    allowed = False
    first, pay = Spy("first"), Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("later", lambda _: allowed, target_nodes=["pay"]))
    app = arbiter_os.govern(chain(first, pay, checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, thread("1"), mode=mode)
    assert app.get_state(thread("1")).next == ("pay",)
    allowed = True
    assert run(app, None, thread("1"), mode=mode) == {"log": ["first", "pay"]}
    assert statuses(arbiter_os) == [("first", "completed"), ("pay", "completed")]
    assert [item.attempt for item in arbiter_os.history.items()] == [1, 2]


def unless_missing(error: Exception) -> bool:
    return not isinstance(error, KeyError)


RETRIED: dict[str, Any] = {
    "default": {},
    "Exception": {"retry_on": Exception},
    "classes": {"retry_on": (ConnectionError, RuntimeError)},
    "function": {"retry_on": unless_missing},
}


@MODES
@pytest.mark.parametrize("inside", [False, True], ids=["graph", "subgraph"])
@pytest.mark.parametrize("retried", RETRIED.values(), ids=RETRIED.keys())
def test_a_denial_is_never_retried(retried: Any, inside: bool, mode: str) -> None:
    """A denial is a decision, whatever LangGraph's retry policy is for: only the body's own errors are retried."""
    asked: list[int] = []

    def deny_later(_: History) -> bool:
        asked.append(1)
        return len(asked) < 3

    errors = iter([ConnectionError("try again")])

    def pay(state: State) -> State:
        for error in errors:
            raise error
        return {"log": ["pay"]}

    policy = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=4, **retried)
    builder: Any = StateGraph(State)
    builder.add_node("pay", pay, retry_policy=policy)
    builder.add_edge(START, "pay")
    if inside:
        inner = builder.compile()
        builder = StateGraph(State)
        builder.add_node("inner", inner, retry_policy=policy)
        builder.add_edge(START, "inner")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("later", deny_later, target_nodes=["pay"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    assert run(app, {"log": []}, thread("a"), mode=mode) == {"log": ["pay"]}
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, thread("b"), mode=mode)
    assert len(asked) == 3
    denied = [item for item in arbiter_os.history_of(thread_id="b").items() if item.node == "pay"]
    assert [(item.status, item.attempt) for item in denied] == [("denied", 1)]


def test_targets_by_instruction_and_by_node() -> None:
    seen: list[str] = []

    def note(history: History) -> bool:
        seen.append(history.entries[-1][-1].node)
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("a", note, target_instructions=["GENERATE"]))
    arbiter_os.add_policy_checker(Check("b", note, target_nodes=["two"]))
    arbiter_os.add_policy_checker(Check("both", note, target_instructions=[GENERATE], target_nodes=["two"]))
    app = arbiter_os.govern(
        chain(Spy("one"), Spy("two"), Spy("three")), {"one": GENERATE, "two": "CognitiveCore.GENERATE"}
    )
    app.invoke({"log": []})
    assert seen == ["one", "two", "two", "two"]


def test_async_checker_in_a_sync_run_stops_before_the_first_body() -> None:
    from arbiter import SyncDriverError

    class Later(Check):
        async def check_before(self, history: History) -> bool:
            return True

    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Later("later", allow))
    app = arbiter_os.govern(chain(pay))
    with pytest.raises(SyncDriverError, match=r"'later'.*'pay'.*ainvoke"):
        app.invoke({"log": []})
    assert pay.calls == []
    assert asyncio.run(app.ainvoke({"log": []})) == {"log": ["pay"]}


@MODES
def test_forbidden_sequence_over_consecutive_supersteps(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("verify_first", [GENERATE, TOOL_CALL]))
    act = Spy("act")
    app = arbiter_os.govern(chain(Spy("think"), act), {"think": GENERATE, "act": TOOL_CALL})
    with pytest.raises(PolicyViolationError, match="GENERATE → TOOL_CALL"):
        run(app, {"log": []}, mode=mode)
    assert act.calls == []
    app = arbiter_os.govern(
        chain(Spy("think"), Spy("check"), act),
        {"think": GENERATE, "check": VERIFY, "act": TOOL_CALL},
    )
    assert run(app, {"log": []}, mode=mode) == {"log": ["think", "check", "act"]}


@MODES
def test_forbidden_sequence_with_other_steps_between(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        HistoryPolicyChecker("never_after_load", [LOAD, GENERATE, TOOL_CALL], adjacent=False)
    )
    kinds = {"load": LOAD, "mid": REFLECT, "think": GENERATE, "act": TOOL_CALL}
    spies = {name: Spy(name) for name in kinds}
    fine = arbiter_os.govern(chain(spies["think"], spies["load"], spies["mid"], spies["act"]), kinds)
    assert run(fine, {"log": []}, mode=mode)["log"][-1] == "act"
    refused = arbiter_os.govern(
        chain(spies["load"], spies["mid"], spies["think"], Spy("other"), spies["act"]), kinds
    )
    with pytest.raises(PolicyViolationError, match="never_after_load"):
        run(refused, {"log": []}, mode=mode)


def test_forbidden_sequence_does_not_span_two_runs_of_a_thread() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("s", [GENERATE, TOOL_CALL]))
    app = arbiter_os.govern(
        chain(Spy("act"), Spy("check"), Spy("think"), checkpointer=InMemorySaver()),
        {"think": GENERATE, "act": TOOL_CALL, "check": VERIFY},
    )
    app.invoke({"log": []}, thread("1"))
    app.invoke({"log": []}, thread("1"))


@pytest.mark.lengthy
@pytest.mark.parametrize("answers", [False, True])
def test_a_checker_that_hangs_leaves_the_loop_free_however_quick_it_was_before(
    answers: bool, hold: Hold
) -> None:
    """And denies at its deadline."""
    calls: list[int] = []

    def sometimes(_: History) -> bool:
        calls.append(1)
        return len(calls) < 8 or hold()

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("sometimes", sometimes, deadline=60 if answers else 0.1))
    app = arbiter_os.govern(chain(*(Spy(f"n{i}") for i in range(9))))

    async def main() -> None:
        task = asyncio.create_task(app.ainvoke({"log": []}))
        while not (hold.begun.is_set() or task.done()):
            await asyncio.sleep(0.005)
        if answers:
            hold.release()
        await task

    with nullcontext() if answers else pytest.raises(PolicyViolationError, match="no answer within"):
        asyncio.run(main())
