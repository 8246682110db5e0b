"""The logger `arbiter`: what was decided, and which contract failed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from arbiter import Advisor, ArbiterOS, Correction, CorrectionGate, EvaluationResult, History, Verdict
from arbiter.errors import PolicyViolationError
from arbiter.instructions import GENERATE
from tests.support import MODES, Check, Judge, Route, Spy, chain, run, thread


class Once(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.retry("shorter") if attempt == 1 else Correction.commit()


class Broken(Advisor):
    def advise(self, history: History, state: Any) -> Any:
        raise LookupError("no advice")


def unwell(*_: Any) -> EvaluationResult:
    raise ValueError("no judge today")


def events(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    assert {record.name for record in caplog.records} <= {"arbiter"}
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@MODES
def test_decisions_are_logged_and_states_are_not(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "arbiter")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("sure?"), target_nodes=["work"]))
    arbiter_os.add_correction_gate(Once("brief", target_nodes=["work"]))
    arbiter_os.add_policy_router(Route("send", lambda h, o: "last", target_nodes=["work"]))
    arbiter_os.add_policy_checker(Check("never", lambda _: Verdict.deny("closed"), target_nodes=["last"]))
    app = arbiter_os.govern(
        chain(Spy("work", secret="tiger"), Spy("last"), checkpointer=InMemorySaver()), {"work": GENERATE}
    )
    run(app, {"log": ["tiger"]}, thread("t"), mode=mode)
    with pytest.raises(PolicyViolationError):
        run(app, Command(resume="approve"), thread("t"), mode=mode)
    work = "node 'work' (GENERATE), step 1, thread 't': "
    assert events(caplog, logging.INFO) == [
        work + "ask asked a human",
        work + "gate brief sent back draft 1",
        work + "router send redirected to 'last'",
        "node 'last', step 2, thread 't': never denied it: closed",
    ]
    assert events(caplog, logging.WARNING) == []
    assert "tiger" not in caplog.text


@MODES
def test_a_contract_that_fails_is_a_warning(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "arbiter")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("check", unwell, on_deny="audit"))
    arbiter_os.add_advisor(Broken("advise"))
    arbiter_os.add_policy_router(Route("send", lambda h, o: unwell()))
    arbiter_os.add_evaluator(Judge("judge", unwell, durable=True))
    run(arbiter_os.govern(chain(Spy("work"))), {"log": []}, mode=mode)
    assert arbiter_os.drain(60)
    assert sorted(events(caplog, logging.WARNING)) == [
        "advisor advise failed on node 'work': LookupError: no advice",
        "checker check failed on node 'work': ValueError: no judge today",
        "evaluator judge failed on node 'work': ValueError: no judge today",
        "router send failed on node 'work': ValueError: no judge today; the normal edges were taken",
    ]


def test_reasons_are_not_logged_where_states_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "arbiter")
    arbiter_os = ArbiterOS(snapshot="digest")
    arbiter_os.add_policy_checker(Check("never", lambda _: Verdict.deny("tiger is closed")))
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(chain(Spy("work"))).invoke({"log": []})
    assert events(caplog, logging.INFO) == ["node 'work', step 1: never denied it"]
