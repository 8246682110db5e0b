"""Groups: evaluators of a node run that are judged together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from arbiter import ArbiterOS, EvaluationResult, NodeEvaluator, RegistrationError
from arbiter.evaluation import EvaluatorGroup, EvaluatorTrace, FinishedRun, GroupOutcome
from tests.support import MODES, Judge, Route, Spy, chain, good, run, thread, until


class Group(EvaluatorGroup):
    """Runs all evaluators but those named "own" with one function of their names."""

    def __init__(self, judge: Callable[[list[str]], Any], durable: bool = False) -> None:
        self.judge = judge
        self.durable = durable
        self.pool = ThreadPoolExecutor(4)
        self.begun: list[tuple[int, FinishedRun]] = []

    def takes(self, evaluator: NodeEvaluator) -> bool:
        return evaluator.name != "own"

    def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
        self.begun.append((threading.get_ident(), finished))
        return self.pool.submit(self.judge, [evaluator.name for evaluator in evaluators])


def all_passed(names: list[str]) -> GroupOutcome:
    return GroupOutcome(results={name: EvaluationResult(1.0, True) for name in names})


def grouped(
    group: EvaluatorGroup, *more: Any, names: Sequence[str] = ("a", "own", "b")
) -> tuple[ArbiterOS, Any]:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(group)
    for name in names:
        arbiter_os.add_evaluator(Judge(name, good))
    for router in more:
        arbiter_os.add_policy_router(router)
    return arbiter_os, arbiter_os.govern(chain(Spy("write")))


@MODES
@pytest.mark.parametrize("durable", [False, True])
def test_one_call_judges_all_evaluators_of_a_group(mode: str, durable: bool) -> None:
    asked: list[list[str]] = []

    def judge(names: list[str]) -> GroupOutcome:
        asked.append(names)
        return GroupOutcome(
            results={"a": EvaluationResult(0.5, True)},
            trace=[EvaluatorTrace("a", "run", "ran"), EvaluatorTrace("b", "gate", "filtered")],
        )

    group = Group(judge, durable)
    arbiter_os, app = grouped(group)
    run(app, {}, mode=mode)
    assert arbiter_os.drain(10)
    item = arbiter_os.history.item
    assert asked == [["a", "b"]]
    assert {name: found.score for name, found in item.evaluation_results.items()} == {"a": 0.5, "own": 1.0}
    assert item.evaluation_outcomes == {"a": "scored", "own": "scored", "b": "not_applicable"}
    assert [part.status for part in item.evaluator_trace] == ["ran", "filtered"]
    assert not item.evaluation_errors
    [(_, finished)] = group.begun
    assert finished.returned is not None
    assert finished.config is not None


def test_a_group_that_falls_behind_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbiter._lifecycle.background.MANY", 3)
    go_on = threading.Event()

    def judge(names: list[str]) -> GroupOutcome:
        assert go_on.wait(60)
        return all_passed(names)

    arbiter_os, app = grouped(Group(judge), names=("a", "b"))
    for _ in range(5):
        app.invoke({})

    def told() -> list[str]:
        return [line for line in caplog.messages if "falls behind" in line]

    (line,) = until(told)
    assert line.startswith("evaluator a falls behind: 3 node runs wait for it")
    go_on.set()
    assert arbiter_os.drain(60)
    for _ in range(5):
        app.invoke({})
    assert arbiter_os.drain(60)
    assert told() == [line]


def test_a_group_begins_on_the_nodes_own_thread() -> None:
    threads: list[int] = []
    group = Group(all_passed)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(group)
    arbiter_os.add_evaluator(Judge("a", good))

    def body(state: Any) -> Any:
        threads.append(threading.get_ident())
        return {}

    arbiter_os.govern(chain(body)).invoke({}, thread("t"))
    assert [ident for ident, _ in group.begun] == threads


@MODES
def test_a_router_waits_for_the_group_whose_result_it_reads(mode: str) -> None:
    go_on = threading.Event()

    def judge(names: list[str]) -> GroupOutcome:
        assert go_on.wait(10)
        return all_passed(names)

    seen: list[Any] = []

    def route(history: Any, output: Any) -> None:
        go_on.set()
        seen.append(history.item.evaluation_results.get("b"))

    arbiter_os, app = grouped(Group(judge), Route("reads", route))
    run(app, {}, mode=mode)
    assert [found.passed for found in seen] == [True]
    assert arbiter_os.history.item.evaluation_results["a"].passed


@MODES
@pytest.mark.parametrize("where", ["begin", "run"])
def test_a_group_that_raises_is_an_error_of_each_of_its_evaluators(mode: str, where: str) -> None:
    def fails(names: list[str]) -> Any:
        raise SystemExit("no")

    group = Group(fails)
    if where == "begin":
        group.pool.shutdown()
    arbiter_os, app = grouped(group)
    run(app, {}, mode=mode)
    item = arbiter_os.history.item
    problem = f"{'RuntimeError' if where == 'begin' else 'SystemExit'} in the group"
    assert item.evaluation_errors == {"a": problem, "b": problem}
    assert item.evaluation_results["own"].passed


def test_an_invalid_result_of_a_group_is_an_error_of_its_evaluator() -> None:
    def judge(names: list[str]) -> GroupOutcome:
        wrong: Any = {"a": 1.0, "b": EvaluationResult(1.0, True)}
        return GroupOutcome(results=wrong)

    arbiter_os, app = grouped(Group(judge))
    app.invoke({}, thread("t"))
    item = arbiter_os.history.item
    assert item.evaluation_errors == {"a": "evaluator 'a' returned 1.0; expected an EvaluationResult"}
    assert item.evaluation_results["b"].passed


@MODES
def test_a_group_that_reads_its_own_results_does_not_hang(mode: str) -> None:
    found: list[Any] = []

    class Reads(Group):
        def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
            found.append(finished.history.item.evaluation_results.get("a"))
            return super().begin(evaluators, finished)

    arbiter_os, app = grouped(Reads(all_passed))
    run(app, {}, mode=mode)
    assert found == [None]
    assert arbiter_os.history.item.evaluation_results["a"].passed


@pytest.mark.lengthy
def test_drain_waits_for_a_group() -> None:
    go_on = threading.Event()

    def judge(names: list[str]) -> GroupOutcome:
        go_on.wait(10)
        return all_passed(names)

    arbiter_os, app = grouped(Group(judge))
    app.invoke({}, thread("t"))
    assert not arbiter_os.drain(0.3)
    assert [part.status for part in arbiter_os.history.item.evaluator_trace] == ["pending", "pending"]
    go_on.set()
    assert arbiter_os.drain(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_group_of_its_parent() -> None:
    go_on = threading.Event()

    def judge(names: list[str]) -> GroupOutcome:
        go_on.wait(60)
        return all_passed(names)

    arbiter_os, app = grouped(Group(judge))
    app.invoke({}, thread("t"))
    if (pid := os.fork()) == 0:
        try:
            errors = arbiter_os.history.item.evaluation_errors
            os._exit(0 if errors["a"] == "RuntimeError in the group" else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    go_on.set()
    assert os.waitstatus_to_exitcode(status) == 0
    assert arbiter_os.history.item.evaluation_results["a"].passed


def test_there_is_one_group_at_most() -> None:
    arbiter_os, _ = grouped(Group(all_passed))
    with pytest.raises(RegistrationError, match="there is one at most"):
        arbiter_os.add_evaluation_cycle(Group(all_passed))


def test_a_reader_that_waits_gets_a_result_that_is_false_in_a_boolean_context() -> None:
    class Judged(EvaluationResult):
        def __bool__(self) -> bool:
            return False

    go_on = threading.Event()

    def judge(_: list[str]) -> GroupOutcome:
        assert go_on.wait(10)
        return GroupOutcome(results={"a": Judged(0.25, False)})

    arbiter_os, app = grouped(Group(judge))
    app.invoke({})
    threading.Timer(0.2, go_on.set).start()
    assert arbiter_os.history.item.evaluation_results["a"].score == 0.25
