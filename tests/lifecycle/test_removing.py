"""Rules can be looked at and removed, also while graphs are governed by them."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS, EvaluationRouter, PolicyViolationError, RegistrationError
from arbiter.advice import Advisor, CorrectionGate
from arbiter.advisors import FeedbackAdvisor
from arbiter.verdicts import Correction
from tests.support import MODES, Check, Judge, Route, Spy, add, bad, chain, governed, run, thread


class Gate(CorrectionGate):
    def review(self, history: Any, draft: Any, attempt: int) -> Correction:
        return Correction.give_up("no")


class Advise(Advisor):
    def advise(self, history: Any, state: Any) -> Any:
        raise AssertionError("it was removed")


def test_registered_rules_are_listed_in_the_order_in_which_they_are_asked() -> None:
    checks = [Check(name, lambda _: True) for name in ("one", "two")]
    route, judge = Route("route", lambda history, output: None), Judge("judge", bad)
    arbiter_os, _ = governed(chain(Spy("a")), checks[1], route, checks[0], judge)
    assert arbiter_os.checkers == (checks[1], checks[0])
    assert arbiter_os.routers == (route,)
    assert arbiter_os.evaluators == (judge,)


@MODES
def test_a_removed_rule_no_longer_governs_graphs_that_were_governed_before(mode: str) -> None:
    arbiter_os, app = governed(
        chain(Spy("a"), extra=[Spy("fix")]),
        Check("no", lambda _: (False, "never")),
        Judge("judge", bad),
        EvaluationRouter("again", "judge", "fix", target_nodes=["a"]),
        Gate("gate"),
        Advise("advise"),
    )
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, mode=mode)
    for name in ("no", "gate", "advise", "again", "judge"):
        arbiter_os.remove(name)
    assert run(app, {"log": []}, mode=mode)["log"] == ["a"]
    item = arbiter_os.history.item
    assert (item.check_policy_results, item.route_policy_results, dict(item.evaluation_results)) == (
        {},
        {},
        {},
    )
    assert (arbiter_os.checkers, arbiter_os.routers, arbiter_os.evaluators) == ((), (), ())


@MODES
def test_a_run_that_waits_for_a_removed_checker_goes_on(mode: str) -> None:
    from arbiter.checkers import ApprovalChecker

    arbiter_os, app = governed(
        chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()), ApprovalChecker("ask", target_nodes=["b"])
    )
    run(app, {"log": []}, thread("1"), mode=mode)
    arbiter_os.remove("ask")
    assert run(app, None, thread("1"), mode=mode)["log"] == ["a", "b"]


def test_a_checker_that_looks_at_outputs_is_removed_as_a_whole() -> None:
    class After(Check):
        def check_after(self, output: Any, history: Any) -> Any:
            return False

    arbiter_os, app = governed(chain(Spy("a")), After("after", lambda _: True))
    arbiter_os.remove("after")
    assert app.invoke({"log": []})["log"] == ["a"]


def test_an_evaluator_that_another_rule_reads_is_not_removed() -> None:
    arbiter_os = ArbiterOS()
    for contract in (Judge("style", bad), EvaluationRouter("again", "style.brief", "fix")):
        add(arbiter_os, contract)
    for remove in (arbiter_os.remove, arbiter_os.remove_evaluator):
        with pytest.raises(
            RegistrationError, match=r"router 'again' reads the results of 'style'\. Remove it first"
        ):
            remove("style")
    arbiter_os.remove("again")
    arbiter_os.remove("style")


def test_an_evaluator_that_only_an_advisor_reads_is_removed() -> None:
    """The advisor then gives nothing, and no decision depends on it."""
    arbiter_os = ArbiterOS()
    for contract in (Judge("style", bad), FeedbackAdvisor("hint", "style")):
        add(arbiter_os, contract)
    arbiter_os.remove("style")
    assert arbiter_os.evaluators == ()


def test_a_name_of_two_rules_is_refused_and_the_object_says_which() -> None:
    judge = Judge("same", bad)
    arbiter_os, _ = governed(chain(Spy("a")), judge, Check("same", lambda _: True))
    with pytest.raises(RegistrationError, match=r"'same' is an evaluator and a checker\. Pass the object"):
        arbiter_os.remove("same")
    arbiter_os.remove(judge)
    assert [rule.name for rule in (*arbiter_os.evaluators, *arbiter_os.checkers)] == ["same"]
    arbiter_os.remove("same")
    with pytest.raises(RegistrationError, match="is not registered"):
        arbiter_os.remove(judge)


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    arbiter_os, _ = governed(chain(Spy("a")), Check("no_guessing", lambda _: True))
    with pytest.raises(RegistrationError, match=r"no rule 'no_gessing' .*Did you mean 'no_guessing'"):
        arbiter_os.remove("no_gessing")
