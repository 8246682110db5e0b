"""Evaluations without a score are kept with the reason, and each evaluation with its evaluator's version."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from arbiter import ArbiterOS, EvaluationResult, HistoryItem, HistoryListener, NodeEvaluator
from arbiter.errors import EvaluationError
from arbiter.evaluation import EvaluatorGroup, EvaluatorTrace, FinishedRun, GroupOutcome
from arbiter.ledger import Ledger
from arbiter.ledger._ended import EndedRun
from arbiter.ledger._entries import Event
from arbiter.ledger._writer import Writer
from tests.ledger.ledger_support import conf
from tests.support import MODES, Judge, Spy, chain, run


class _Refuses(NodeEvaluator):
    version = "refuses 7"

    def evaluate(self, history: Any) -> EvaluationResult:
        raise EvaluationError("the judge did not answer", outcome="timeout")


_LONG = "because " * 1_000


def _half(_: Any) -> float:
    return 0.5


def _several(_: Any) -> Any:
    return {"brief": 1.0, "kind": EvaluationResult(0.0, None, "no tone", outcome="not_applicable")}


def _abstains(_: Any) -> EvaluationResult:
    return EvaluationResult(0.0, None, "cannot say", outcome="abstained")


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "l.db"


@MODES
@pytest.mark.parametrize("is_late", [False, True])
def test_outcomes_and_versions_come_back_as_they_were(where: Path, mode: str, is_late: bool) -> None:
    """Those of evaluations that were done when their node run was written, and those of later ones."""
    go_on = threading.Event()

    def waits(history: Any) -> Any:
        assert not is_late or go_on.wait(60)
        return _abstains(history)

    with Ledger(where, flush_every=0.01) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        for name, judge in (("plain", _half), ("tone", _several), ("sure", waits)):
            arbiter_os.add_evaluator(Judge(name, judge))
        arbiter_os.add_evaluator(_Refuses("slow"))
        app = arbiter_os.govern(chain(Spy("write")))
        run(app, {}, conf("t"), mode=mode)
        if is_late:
            assert not ledger.flush(0.5)
        go_on.set()
        assert ledger.flush(60)
        (known,) = arbiter_os.history_of(thread_id="t").items()
        (stored,) = ledger.items()
        assert stored.to_dict() == known.to_dict()
        assert stored.evaluation_outcomes == {
            "plain": "scored",
            "tone.brief": "scored",
            "tone.kind": "not_applicable",
            "sure": "abstained",
            "slow": "timeout",
        }
        assert dict(stored.evaluation_versions) == dict(known.evaluation_versions)
        assert stored.evaluation_versions["plain"]
        assert ledger.verify()


class _Failed(EvaluationResult):
    def __bool__(self) -> bool:
        return False


def _fails(_: Any) -> EvaluationResult:
    return _Failed(0.0, False)


def test_late_results_come_back_in_their_order(where: Path) -> None:
    """Also where a result is false in a boolean context."""
    go_on = threading.Event()

    def waits(_: Any) -> float:
        assert go_on.wait(60)
        return 1.0

    with Ledger(where, flush_every=0.01) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        judges: Mapping[str, Any] = {"z": waits, "y": _fails, "x": _half}
        for name, judge in judges.items():
            arbiter_os.add_evaluator(Judge(name, judge))
        arbiter_os.govern(chain(Spy("write"))).invoke({}, conf("t"))
        results = arbiter_os.history_of(thread_id="t").item.evaluation_results
        assert (results["x"].score, results["y"].score) == (0.5, 0.0)
        assert not ledger.flush(0.3)
        go_on.set()
        assert ledger.flush(60)
        (stored,) = ledger.items()
        assert list(stored.evaluation_results) == list(judges)


class _AllButOne(EvaluatorGroup):
    """Runs all but the last of its evaluators."""

    def __init__(self, durable: bool, go_on: threading.Event) -> None:
        self.durable, self.go_on = durable, go_on
        self.pool = ThreadPoolExecutor(2)

    def takes(self, evaluator: NodeEvaluator) -> bool:
        return evaluator.name != "own"

    def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
        return self.pool.submit(self._run, evaluators)

    def _run(self, evaluators: Sequence[NodeEvaluator]) -> GroupOutcome:
        self.go_on.wait(10)
        *ran, left = evaluators
        stages = [EvaluatorTrace(each.name, "run", "ran", 1.5) for each in ran]
        return GroupOutcome(
            results={each.name: EvaluationResult(1.0, True) for each in ran},
            trace=[*stages, EvaluatorTrace(left.name, "select", "not_selected", 0.0, "no need")],
        )


@pytest.mark.parametrize(("durable", "is_late"), [(True, False), (False, False), (False, True)])
def test_the_stages_of_a_group_come_back_as_they_were(where: Path, durable: bool, is_late: bool) -> None:
    """Also if its results end after their node run was written."""
    go_on = threading.Event()
    with Ledger(where, flush_every=0.01) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluation_cycle(_AllButOne(durable, go_on))
        for name in ("own", "first", "second"):
            arbiter_os.add_evaluator(Judge(name, _half))
        arbiter_os.add_evaluator(Judge("other", _half, target_nodes=["read"]))
        if not is_late:
            go_on.set()
        arbiter_os.govern(chain(Spy("write"), Spy("read"))).invoke({}, conf("t"))
        if is_late:
            assert not ledger.flush(0.3)
        go_on.set()
        assert ledger.flush(60)
        known = {item.node: item.to_dict() for item in arbiter_os.history_of(thread_id="t").items()}
        assert {item.node: item.to_dict() for item in ledger.items()} == known
        assert [part["status"] for part in known["write"]["evaluator_trace"]][:2] == ["ran", "not_selected"]
        assert ledger.verify()


class _Verbose(_AllButOne):
    """Says much about each of its evaluators."""

    def _run(self, evaluators: Sequence[NodeEvaluator]) -> GroupOutcome:
        return GroupOutcome(
            results={each.name: EvaluationResult(1.0, True, _LONG) for each in evaluators[::2]},
            errors={each.name: _LONG for each in evaluators[1::2]},
            trace=[EvaluatorTrace(each.name, "run", "ran", 1.5, _LONG) for each in evaluators],
        )


@pytest.mark.lengthy
def test_more_is_said_about_a_node_run_than_is_kept_of_one(where: Path) -> None:
    """The item is read again: with the beginning of each text, and the first and the last stages."""
    with Ledger(where) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluation_cycle(_Verbose(True, threading.Event()))
        for number in range(200):
            arbiter_os.add_evaluator(Judge(f"e{number}", _half))
        arbiter_os.govern(chain(Spy("write"))).invoke({}, conf("t"))
        assert ledger.flush(60)
        (stored,) = ledger.items()
        said = [result.feedback for result in stored.evaluation_results.values()]
        said += stored.evaluation_errors.values()
        assert len(said) == 200
        assert all(_LONG.startswith(text) and len(text) > 100 for text in said)
        whole = _LONG[:4_000]
        first, *_, last = stages = stored.evaluator_trace
        assert (first.name, last.name, first.detail, last.detail) == ("e0", "e199", whole, whole)
        assert 2 < len(stages) < 200
        assert ledger.verify()


@pytest.mark.lengthy
def test_flush_waits_for_a_late_judgement_until_it_is_queued(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, add = threading.Event(), Writer.add

    def slowly(writer: Writer, event: Event) -> None:
        if event.kind == "judged":
            time.sleep(0.3)
        add(writer, event)

    monkeypatch.setattr(Writer, "add", slowly)
    with Ledger(where, flush_every=0.01) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("late", lambda _: float(go_on.wait(60))))
        run(arbiter_os.govern(chain(Spy("write"))), {}, conf("t"))
        assert not ledger.flush(0.3)
        go_on.set()
        assert ledger.flush(60)
        (stored,) = ledger.items()
        assert stored.evaluation_results["late"].score == 1.0


@pytest.mark.lengthy
def test_only_scored_results_count_as_numbers(where: Path) -> None:
    """An abstention is no 0.0: it is in no mean, no bound finds it, and it is counted beside the scores."""
    answers: Iterator[Any] = iter([0.8, EvaluationResult(0.0, None, outcome="abstained"), 0.6])
    with Ledger(where) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("sure", lambda _: next(answers)))
        arbiter_os.add_evaluator(_Refuses("slow"))
        app = arbiter_os.govern(chain(Spy("write")))
        for number in range(3):
            app.invoke({}, conf(f"t{number}"))
            assert ledger.flush(60)
        (sure,) = ledger.scores("sure", every=None)
        assert (sure["count"], round(sure["mean"], 3), sure["least"]) == (2, 0.7, 0.6)
        assert sure["unscored"] == {"abstained": 1}
        (slow,) = ledger.scores("slow", every=None)
        assert (slow["count"], slow["mean"], slow["unscored"]) == (0, None, {"timeout": 3})
        assert [item.thread_id for item in ledger.items(evaluator="sure", below=0.5)] == []
        assert {thread["lowest"] for thread in ledger.threads()} == {None, ("sure", 0.6), ("sure", 0.8)}
        assert ledger.names("evaluator") == ["slow", "sure"]
        assert ledger.verify()


def test_only_the_writer_makes_events_of_node_runs(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node waits for copies of its states and no more."""
    made_by: list[str] = []

    def made(run: EndedRun) -> Any:
        made_by.append(threading.current_thread().name)
        return events(run)

    events = EndedRun.events
    monkeypatch.setattr(EndedRun, "events", made)
    with Ledger(where) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("write")))
        run(app, {}, conf("t"))
        assert ledger.flush(60)
    assert made_by == ["arbiter-ledger"]


def test_a_closed_ledger_keeps_nothing_of_later_runs(where: Path) -> None:
    ledger = Ledger(where)
    arbiter_os = ArbiterOS(ledger=ledger)
    arbiter_os.add_evaluator(Judge("plain", _half))
    app = arbiter_os.govern(chain(Spy("write")))
    ledger.close()
    run(app, {}, conf("t"))
    assert arbiter_os.drain()
    assert not any(each.judging.open for each in ledger._recordings)  # pyright: ignore[reportPrivateUsage]


class _Interrupting(Mapping[str, Any]):
    """A value at which Ctrl-C is pressed while the ledger copies it."""

    pressed = False

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def items(self) -> Any:
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return ()


def test_a_node_run_of_which_ctrl_c_kept_the_ledger_keeps_no_flush_waiting(where: Path) -> None:
    with Ledger(where) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("plain", _half))
        app = arbiter_os.govern(chain(Spy("write", amount=_Interrupting())))
        with pytest.raises(KeyboardInterrupt):
            run(app, {}, conf("t"))
        assert ledger.flush(60)
        assert run(app, {}, conf("t"))
        assert ledger.flush(60)
        assert [item.node for item in ledger.items()] == ["write"]


class _Pressing(HistoryListener):
    """A listener that Ctrl-C breaks off at the first node run."""

    pressed = False

    def ended(self, item: HistoryItem) -> None:
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_a_node_run_of_which_ctrl_c_broke_off_another_listener_keeps_no_flush_waiting(where: Path) -> None:
    with Ledger(where) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_evaluator(Judge("plain", _half))
        arbiter_os.add_listener(_Pressing())
        app = arbiter_os.govern(chain(Spy("write")))
        with pytest.raises(KeyboardInterrupt):
            run(app, {}, conf("t"))
        assert ledger.flush(10)
        assert [item.evaluation_results["plain"].score for item in ledger.items()] == [0.5]
