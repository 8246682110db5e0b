"""`arbiter.testing`: a rule called by hand decides as it decides in a governed graph."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langgraph.types import Overwrite

from arbiter import (
    ConfigurationError,
    EvaluationResult,
    EvaluationRouter,
    FeedbackAdvisor,
    History,
    HistoryPolicyChecker,
    MetricThresholdPolicyRouter,
    PolicyChecker,
    ThresholdEvaluator,
)
from arbiter.checkers import (
    AtMost,
    BudgetChecker,
    ConditionChecker,
    NeverAfter,
    RateLimitChecker,
    RequireBefore,
    WithinSteps,
)
from arbiter.evaluators import WeightedEvaluator
from arbiter.history import CausalHistory
from arbiter.instructions import GENERATE, TOOL_CALL, VERIFY
from arbiter.routers import ErrorRouter, EscalationRouter
from arbiter.testing import PastRun, history_of
from arbiter.verdicts import as_verdict
from tests.support import Check, Spy, chain, governed

VERIFIED: PastRun = {"node": "verify", "instruction": VERIFY, "evaluation_results": {"sound": True}}
DRAFT: PastRun = {"node": "write", "instruction": GENERATE, "output": {"text": "a"}}
PAID: PastRun = {"node": "pay", "instruction": TOOL_CALL}


def allows(checker: Any, past: Any = (), **own: Any) -> bool:
    history = history_of(past=past, counted_by=[checker], **own)
    return bool(as_verdict(checker.check_before(history)))


def test_the_own_item_has_what_was_given_and_the_past_stands_before_it() -> None:
    history = history_of(
        state={"amount": 1},
        output={"paid": 2},
        node="pay",
        instruction="TOOL_CALL",
        evaluation_results={
            "style": {"brief": True},
            "quality": 0.5,
            "sound": EvaluationResult(0.2, False, "no"),
        },
        past=[DRAFT, [VERIFIED, {"node": "other", "status": "failed"}]],
        thread_id="t",
    )
    assert isinstance(history, CausalHistory)
    item = history.item
    assert item is history.entries[-1][-1]
    assert (item.node, item.instruction, item.status) == ("pay", TOOL_CALL, "completed")
    assert (item.input_state, item.output_state) == ({"amount": 1}, {"paid": 2})
    assert {name: result.passed for name, result in item.evaluation_results.items()} == {
        "style.brief": True,
        "quality": None,
        "sound": False,
    }
    assert [[item.node for item in superstep] for superstep in history] == [
        ["write"],
        ["verify", "other"],
        ["pay"],
    ]
    assert (history.count(), history.count(GENERATE), history.thread_id) == (4, 1, "t")
    draft = history.last(GENERATE)
    assert draft is not None
    assert draft.output_state == {"text": "a"}
    assert history_of().item.status == "running"


@pytest.mark.parametrize(
    ("checker", "allowed", "denied"),
    [
        (AtMost("most", 2, target_nodes=["pay"]), [PAID], [PAID, PAID]),
        (RequireBefore("first", VERIFY), [VERIFIED], [DRAFT]),
        (
            RequireBefore("sound", VERIFY, evaluator="sound"),
            [VERIFIED],
            [{**VERIFIED, "evaluation_results": {"sound": False}}],
        ),
        (NeverAfter("never", "node:write"), [VERIFIED], [DRAFT]),
        (WithinSteps("soon", VERIFY, 2), [VERIFIED, DRAFT], [VERIFIED, DRAFT, DRAFT]),
        (HistoryPolicyChecker("blind", [GENERATE, TOOL_CALL]), [DRAFT, VERIFIED], [DRAFT]),
        (
            BudgetChecker("spend", calls=3),
            [{"tallies": {"spend": {"calls": 2}}}],
            [{"tallies": {"spend": {"calls": 2}}}, {"tallies": {"spend": {"calls": 1}}}],
        ),
    ],
)
def test_checkers_that_look_back(checker: Any, allowed: Any, denied: Any) -> None:
    own = {"node": "pay", "instruction": TOOL_CALL}
    assert allows(checker, allowed, **own)
    assert not allows(checker, denied, **own)


def test_checkers_that_go_by_input_and_time() -> None:
    assert allows(ConditionChecker("small", "input.amount > 10"), state={"amount": 10})
    assert not allows(ConditionChecker("small", "input.amount > 10"), state={"amount": 11})
    rate, now = RateLimitChecker("rate", calls=1, per_seconds=60), [1000.0]
    assert [allows(rate, clock=lambda: now[0], thread_id="t") for _ in range(2)] == [True, False]
    now[0] += 61
    assert allows(rate, clock=lambda: now[0], thread_id="t")


def test_routers_evaluators_and_advisors() -> None:
    scored = history_of(
        output={"confidence": 0.4}, evaluation_results={"quality": False, "style": {"ok": 0.75}}
    )
    assert EvaluationRouter("r", "quality", "fix").route_after(scored, None) == "fix"
    assert MetricThresholdPolicyRouter("r", "confidence", 0.5, "fix").route_after(scored, None) == "fix"
    assert EscalationRouter("r", evaluator="quality").route_after(scored, None) is not None
    assert WeightedEvaluator("w", {"style.ok": 1}, at_least=0.7).evaluate(scored).passed
    assert not ThresholdEvaluator("t", "confidence", 0.7).evaluate(scored).passed
    failed = history_of(error=ConnectionError("down"))
    assert ErrorRouter("r", "fix", errors=["ConnectionError"]).route_after(failed, None) == "fix"
    assert ErrorRouter("r", "fix", errors=["KeyError"]).route_after(failed, None) is None
    told = history_of(past=[{"evaluation_results": {"quality": EvaluationResult(0, False, "too long")}}])
    assert FeedbackAdvisor("f", "quality").advise(told, {}) == "quality: too long"


def test_a_rule_decides_by_hand_as_it_decides_in_a_graph() -> None:
    def facts(history: History) -> Any:
        own = history.item
        past = [(item.node, dict(item.output_state)) for item in history.earlier()]
        return own.node, own.status, dict(own.input_state), past, history.count(node="a"), len(history)

    seen: list[Any] = []

    def look(history: History) -> bool:
        seen.append(facts(history))
        return True

    _, app = governed(chain(Spy("a", amount=1), Spy("b")), Check("look", look, target_nodes=["b"]))
    app.invoke({"log": []})
    past: list[PastRun] = [{"node": "a", "output": {"log": ["a"], "amount": 1}}]
    assert facts(history_of(state={"log": ["a"], "amount": 1}, node="b", past=past)) == seen[0]


def test_mistakes_in_what_is_given_are_errors() -> None:
    with pytest.raises(ConfigurationError, match=r"a past run has 'outptu'.* Did you mean 'output'"):
        history_of(past=[{"outptu": {}}])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="a past run is 'pay'; expected a mapping, such as"):
        history_of(past=cast(Any, ["pay"]))
    with pytest.raises(ConfigurationError, match=r"status is 'complete'.* Did you mean 'completed'"):
        history_of(past=cast(Any, [{"status": "complete"}]))
    for broken in (float("nan"), {"brief": "yes"}):
        with pytest.raises(ConfigurationError, match="evaluation_results: evaluator 'style' returned"):
            history_of(evaluation_results={"style": broken})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"error": "boom"}, r"error is 'boom'; expected an exception, such as ValueError"),
        ({"error": ValueError}, r"error is <class 'ValueError'>; expected an exception"),
        ({"error": ValueError("no"), "output": {}}, "a node that failed has no output"),
        (
            {"counted_by": BudgetChecker("spend", calls=1)},
            r"expected a list of checkers. Write counted_by=\[...\]",
        ),
        ({"counted_by": ["spend"]}, r"counted_by is \('spend',\); expected a list of checkers"),
        ({"past": {"node": "pay"}}, r"expected a list of past runs, such as .* Write past=\[...\]"),
        ({"past": "pay"}, "past is 'pay'; expected a list of past runs"),
        ({"past": [5]}, "a past run is 5; expected a mapping"),
        ({"past": [{"tallies": {"spend": 2}}]}, "a past run: tallies is .*; expected the amounts by key"),
        ({"past": [{"redirected_to": 2}]}, "a past run: redirected_to is 2; expected the name of a node"),
        (
            {"past": [{"evaluation_results": 0.5}]},
            "a past run: evaluation_results is 0.5; expected a mapping",
        ),
        ({"evaluation_results": ["quality"]}, "evaluation_results is .*; expected a mapping by the names"),
        ({"node": None}, "node is None; expected the name of a node"),
        ({"thread_id": 7}, "thread_id is 7; expected a text"),
        ({"clock": 1000.0}, "clock is 1000.0; expected a function that returns POSIX seconds"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_that_names_the_expected_one(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        history_of(**given)


def test_a_checker_that_counted_nothing_of_the_past_is_an_error_that_names_counted_by() -> None:
    """Its counts would all be 0, so it would allow what it denies in a graph."""
    budget = BudgetChecker("spend", calls=3)
    with pytest.raises(ConfigurationError, match=r"'spend' counted .*it counted none .*counted_by=\["):
        budget.check_before(history_of(past=[PAID]))
    with pytest.raises(ConfigurationError, match="Did you mean 'spend'"):
        BudgetChecker("spent", calls=3).check_before(history_of(past=[PAID], counted_by=[budget]))
    with pytest.raises(ConfigurationError, match="counted_by"):
        history_of(past=[PAID]).tally_keys("spend")
    assert as_verdict(budget.check_before(history_of()))
    assert as_verdict(budget.check_before(history_of(past=[PAID], counted_by=iter([budget]))))
    assert as_verdict(budget.check_before(history_of(past=[{"tallies": {"spend": {"calls": 2}}}])))


@pytest.mark.parametrize("per", ["run", "thread", "process"])
def test_a_budget_counts_the_past(per: Any) -> None:
    def left(*past: Any) -> bool:
        return allows(BudgetChecker("spend", calls=2, per=per), past, thread_id="a")

    assert left(PAID)
    assert not left(PAID, PAID)
    assert not left([PAID, PAID])
    assert left(PAID, {**PAID, "status": "denied"})


def test_a_pass_that_a_past_run_used_permits_no_other() -> None:
    def left(*past: Any) -> bool:
        once = RequireBefore("once", VERIFY, once_per_use=True, target_instructions=[TOOL_CALL])
        return allows(once, past, instruction=TOOL_CALL)

    assert left(VERIFIED)
    assert not left(VERIFIED, PAID)
    assert left(VERIFIED, PAID, VERIFIED)


def test_a_past_run_without_a_state_is_counted_by_a_checker_that_reads_one() -> None:
    class Thrice(PolicyChecker):
        def check_before(self, history: Any) -> bool:
            return history.item.input_state["amount"] < 100 and self.seen(history) < 3

        def seen(self, history: Any) -> float:
            return float(history.tally(self.name, "runs").amount)

        def observe(self, history: Any) -> Any:
            return {"runs": 1}

    rule = Thrice("thrice")
    view = history_of(past=[{"node": "pay"}, {"node": "pay"}], state={"amount": 5}, counted_by=[rule])
    assert (rule.seen(view), rule.check_before(view)) == (2, True)


def test_a_checker_that_counts_nothing_may_be_in_counted_by() -> None:
    checker = Check("open", lambda history: True)
    assert history_of(past=[PAID], counted_by=[checker]).count(TOOL_CALL) == 1


def test_an_output_that_overwrites_is_the_value_that_it_writes() -> None:
    history = history_of(output={"score": Overwrite(0.9)}, past=[{"output": {"score": Overwrite(0.2)}}])
    assert [item.output_state for item in history.items()] == [{"score": 0.2}, {"score": 0.9}]
