"""A denied node does not run; what a denial does; who wins; what a failing checker means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import RetryPolicy

from arbiter import ArbiterOS, History, HistoryPolicyChecker, PolicyViolationError, Verdict
from arbiter.instructions import GENERATE, LOAD, REFLECT, TOOL_CALL, VERIFY
from tests.support import MODES, Check, Spy, State, allow, chain, run, statuses, thread


def boom(_: History) -> bool:
    raise ZeroDivisionError("division by zero")


def hang(_: History) -> bool:
    time.sleep(1.5)
    return True


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
def test_checker_past_its_deadline_denies(mode: str) -> None:
    pay = Spy("pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("slow", hang, deadline=0.05))
    app = arbiter_os.govern(chain(pay))
    begun = time.perf_counter()
    with pytest.raises(PolicyViolationError, match=r"no answer within 0\.05 s"):
        run(app, {"log": []}, mode=mode)
    assert time.perf_counter() - begun < 1.2
    assert pay.calls == []


def test_async_checker_past_its_deadline_denies() -> None:
    class Slow(Check):
        async def check_before(self, history: History) -> bool:
            await asyncio.sleep(5)
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


@MODES
def test_denial_is_not_retried(mode: str) -> None:
    """LangGraph's default retry policy leaves a denial alone."""
    from langgraph.graph import START, StateGraph

    asked: list[int] = []

    def deny(_: History) -> bool:
        asked.append(1)
        return False

    builder = StateGraph(State)
    builder.add_node("pay", Spy("pay"), retry_policy=RetryPolicy(initial_interval=0.01))
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", deny))
    with pytest.raises(PolicyViolationError):
        run(arbiter_os.govern(builder), {"log": []}, mode=mode)
    assert len(asked) == 1


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


def test_deadline_is_kept_however_quick_the_checker_was_before() -> None:
    """A checker that was quick many times and then hangs has denied, and the loop goes on turning."""
    calls: list[int] = []

    def sometimes(_: History) -> bool:
        calls.append(1)
        if len(calls) == 8:
            time.sleep(1.0)
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("sometimes", sometimes, deadline=0.1))
    app = arbiter_os.govern(chain(*(Spy(f"n{i}") for i in range(9))))

    async def main() -> None:
        task = asyncio.create_task(app.ainvoke({"log": []}))
        while not task.done():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            assert time.perf_counter() - before < 0.5
        await task

    with pytest.raises(PolicyViolationError, match="no answer within"):
        asyncio.run(main())
