"""Scores leave a ledger for Langfuse and LangSmith by their real clients, each at least once under one id."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from langsmith import Client
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from sqlalchemy import Engine, event

from arbiter import ArbiterOS, ConfigurationError, EvaluationResult, telemetry
from arbiter.ledger import Ledger
from arbiter.telemetry import (
    Delivery,
    ExportedScore,
    LangfuseScores,
    LangSmithScores,
    OpenTelemetry,
    ReceiverBusy,
    ReceiverError,
    Refusal,
    ScoreReceiver,
)
from tests.processes import python
from tests.support import Judge, Spy, chain, until
from tests.telemetry.receiver_stubs import KEYS, SESSION, Langfuse, LangSmith, serving


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Generator[Langfuse]:
    with serving(Langfuse()) as stub:
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", KEYS[0])
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEYS[1])
        monkeypatch.setenv("LANGFUSE_BASE_URL", stub.url)
        yield stub


@pytest.fixture
def langsmith(monkeypatch: pytest.MonkeyPatch) -> Generator[LangSmith]:
    with serving(LangSmith()) as stub:
        monkeypatch.setenv("LANGSMITH_API_KEY", "ls-1")
        monkeypatch.setenv("LANGSMITH_ENDPOINT", stub.url)
        monkeypatch.delenv("LANGSMITH_PROJECT", raising=False)
        yield stub


def broken(_: Any) -> EvaluationResult:
    raise RuntimeError("no answer from the judge")


def recorded(
    ledger: Ledger, runs: int = 1, *judges: Any, provider: TracerProvider | None = None, thread: str = "t"
) -> None:
    """Traced runs of a graph of one node with two evaluators, and others."""
    arbiter_os = ArbiterOS(ledger=ledger, listeners=[OpenTelemetry(provider or TracerProvider())])
    given = judges or (
        Judge("quality", lambda _: EvaluationResult(0.75, True, "it answers")),
        Judge("tone", lambda _: EvaluationResult(0.5, None)),
    )
    for judge in given:
        arbiter_os.add_evaluator(judge)
    app = arbiter_os.govern(chain(Spy("answer")))
    for number in range(runs):
        app.invoke({}, {"configurable": {"thread_id": f"{thread}{number}"}})
    assert arbiter_os.drain(60)
    assert ledger.flush(20)


@pytest.fixture
def ledger(tmp_path: Path) -> Generator[Ledger]:
    with Ledger(tmp_path / "l.db") as ledger:
        yield ledger


def spans(tmp_path: Path) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(tmp_path / "l.db")) as database:
        return set(database.execute("SELECT trace, span FROM entries WHERE kind = 'item'"))


@pytest.mark.lengthy
def test_scores_reach_langfuse_with_their_spans_and_only_once(
    ledger: Ledger, langfuse: Langfuse, tmp_path: Path
) -> None:
    recorded(ledger, 3)
    export = ledger.export_to(LangfuseScores(), follow=False)
    assert (export.accepted, export.refused, export.untraced) == (6, 0, 0)
    scores = [score for copies in langfuse.accepted.values() for score in copies]
    assert {(score["traceId"], score["observationId"]) for score in scores} == spans(tmp_path)
    (one,) = [score for score in scores if score["name"] == "quality"][:1]
    assert (one["value"], one["dataType"], one["comment"]) == (0.75, "NUMERIC", "it answers")
    assert one["metadata"]["passed"] is True
    assert one["metadata"]["node"] == "answer"
    assert one["metadata"]["version"]
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == 0
    recorded(ledger, 1, thread="later")
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == 2
    assert len(langfuse.accepted) == 8
    assert langfuse.requests == 2


@pytest.mark.lengthy
def test_a_client_of_langfuse_can_be_given(ledger: Ledger, langfuse: Langfuse) -> None:
    from langfuse import Langfuse as LangfuseClient  # takes a second

    client = LangfuseClient(
        public_key=KEYS[0], secret_key=KEYS[1], base_url=langfuse.url, tracing_enabled=False
    )
    recorded(ledger)
    assert ledger.export_to(LangfuseScores(client), follow=False).accepted == 2
    client.shutdown()


@pytest.mark.lengthy
def test_an_outage_and_its_answers_delay_scores_and_lose_none(ledger: Ledger, langfuse: Langfuse) -> None:
    recorded(ledger, 2)
    langfuse.script = [503, 429, 500]
    export = ledger.export_to(LangfuseScores(), follow=False)
    assert export.accepted == len(langfuse.accepted) == 4
    assert langfuse.requests == 4


@pytest.mark.lengthy
def test_scores_wait_for_a_server_that_is_down(ledger: Ledger, langfuse: Langfuse) -> None:
    langfuse.close()
    recorded(ledger, 2)
    with pytest.raises(ReceiverBusy, match="cannot be reached"):
        ledger.export_to(LangfuseScores(), follow=False, patience=0.3)
    export = ledger.export_to(LangfuseScores())
    assert not export.wait(0.3)
    assert "cannot be reached" in str(export.last_error)
    with serving(Langfuse(langfuse.port)) as again:
        assert export.wait(20)
        assert len(again.accepted) == 4


@pytest.mark.lengthy
def test_what_is_refused_is_counted_kept_and_not_sent_again(ledger: Ledger, langfuse: Langfuse) -> None:
    recorded(ledger, 2)
    langfuse.script = [503, 207]
    export = ledger.export_to(LangfuseScores(), follow=False)
    assert (export.accepted, export.refused) == (3, 1)
    (state,) = ledger.receivers()
    assert (state.refused, state.waiting, state.behind) == (1, 0, 0)
    assert [(count, why) for _, count, why in state.refusals] == [(1, "no such config")]
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == 0
    assert langfuse.requests == 2


@pytest.mark.lengthy
def test_one_bad_score_does_not_hold_up_the_others(ledger: Ledger, langfuse: Langfuse) -> None:
    langfuse.poison = {"tone"}
    recorded(ledger, 2)
    export = ledger.export_to(LangfuseScores(), follow=False)
    assert (export.accepted, export.refused) == (2, 2)
    assert {copies[0]["name"] for copies in langfuse.accepted.values()} == {"quality"}
    assert all("bad score" in why for _, _, why in ledger.receivers()[0].refusals)


@pytest.mark.lengthy
def test_a_wrong_key_stops_the_export_and_loses_nothing(
    ledger: Ledger, langfuse: Langfuse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(ledger)
    with monkeypatch.context() as wrong:
        wrong.setenv("LANGFUSE_SECRET_KEY", "sk-wrong")
        with pytest.raises(ReceiverError, match=r"answered 401: .*Invalid credentials.*LANGFUSE_SECRET_KEY"):
            ledger.export_to(LangfuseScores(), follow=False)
        export = ledger.export_to(LangfuseScores())
        until(lambda: not export.is_running)
    assert "LANGFUSE_SECRET_KEY" in str(export.stopped_by)
    assert not export.wait(1)
    assert "Nothing is lost" in caplog.text
    assert not ledger.receivers()
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == 2


@pytest.mark.lengthy
@pytest.mark.parametrize("status", [301, 302, 402, 404, 410])
def test_an_answer_about_the_address_or_the_account_loses_no_score_of_langfuse(
    ledger: Ledger, langfuse: Langfuse, status: int
) -> None:
    recorded(ledger)
    langfuse.script = [status]
    with pytest.raises(ReceiverError, match=rf"Langfuse answered {status}: .*Check .*LANGFUSE_BASE_URL"):
        ledger.export_to(LangfuseScores(), follow=False)
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == len(langfuse.accepted) == 2


@pytest.mark.lengthy
@pytest.mark.parametrize("status", [301, 302, 402, 410])
def test_an_answer_about_the_address_or_the_account_loses_no_score_of_langsmith(
    ledger: Ledger, langsmith: LangSmith, status: int
) -> None:
    recorded(ledger)
    langsmith.script = [status]
    with pytest.raises(ReceiverError, match=rf"LangSmith answered {status}: .*Check .*LANGSMITH_ENDPOINT"):
        ledger.export_to(LangSmithScores(), follow=False)
    assert ledger.export_to(LangSmithScores(), follow=False).accepted == len(langsmith.accepted) == 2


@pytest.mark.lengthy
def test_a_thread_sends_what_is_committed_and_late_judgements_too(ledger: Ledger, langfuse: Langfuse) -> None:
    def slow(_: Any) -> EvaluationResult:
        until(lambda: langfuse.accepted)  # the quick one
        return EvaluationResult(0.25, False, "late")

    export = ledger.export_to(LangfuseScores())
    recorded(ledger, 1, Judge("slow", slow), Judge("quick", lambda _: EvaluationResult(1.0, True)))
    assert export.wait(20)
    names = [(score["name"], score["value"]) for (score,) in langfuse.accepted.values()]
    assert sorted(names) == [("quick", 1.0), ("slow", 0.25)]
    assert len({(s["traceId"], s["observationId"]) for (s,) in langfuse.accepted.values()}) == 1
    with pytest.raises(ConfigurationError, match="already"):
        ledger.export_to(LangfuseScores())


@pytest.mark.lengthy
def test_closing_a_ledger_sends_what_is_left(tmp_path: Path, langfuse: Langfuse) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        ledger.export_to(LangfuseScores(), every=60)
        recorded(ledger, 4)
    assert len(langfuse.accepted) == 8


@pytest.mark.lengthy
def test_an_export_that_was_stopped_is_kept_until_the_next_one_only(
    ledger: Ledger, langfuse: Langfuse
) -> None:
    export = ledger.export_to(LangfuseScores())
    assert export.stop()
    stopped = weakref.ref(export)
    del export
    assert ledger.export_to(LangfuseScores()).stop()
    gc.collect()
    assert stopped() is None


def test_exports_that_begin_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Closing the ledger stops both."""
    exports = list[Any]()

    class Other(ScoreReceiver):
        name = "other"

    class Slow(ScoreReceiver):
        name = "slow"

        @property
        def takes_failures(self) -> bool:  # type: ignore[override]
            beside.start()
            beside.join(0.2)
            return False

    with Ledger(tmp_path / "l.db") as ledger:
        beside = Thread(target=lambda: exports.append(ledger.export_to(Other())))
        exports.append(ledger.export_to(Slow()))
        beside.join()
    assert [export.is_running for export in exports] == [False, False]


@pytest.mark.lengthy
def test_scores_without_a_span_are_not_sent_and_that_is_said(
    ledger: Ledger, langfuse: Langfuse, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(ledger, 10, provider=TracerProvider(sampler=ALWAYS_OFF))
    export = ledger.export_to(LangfuseScores())
    assert export.wait(20)
    until(lambda: "listeners=[OpenTelemetry()]" in caplog.text)
    assert (export.accepted, export.untraced) == (0, 20)
    assert langfuse.requests == 0


@pytest.mark.lengthy
def test_results_that_are_no_scores_are_not_sent(ledger: Ledger, langfuse: Langfuse) -> None:
    silent = Judge("silent", lambda _: EvaluationResult(0.0, None, outcome="not_applicable"))
    recorded(ledger, 1, silent, Judge("broken", broken), Judge("fine", lambda _: EvaluationResult(1.0, True)))
    assert ledger.export_to(LangfuseScores(), follow=False).accepted == 1
    assert [score["name"] for (score,) in langfuse.accepted.values()] == ["fine"]


@pytest.mark.lengthy
def test_langsmith_gets_feedback_on_the_runs_of_the_spans(
    ledger: Ledger, langsmith: LangSmith, tmp_path: Path
) -> None:
    fine = Judge("fine", lambda _: EvaluationResult(0.25, False, "too short"))
    recorded(ledger, 1, fine, Judge("broken", broken))
    export = ledger.export_to(LangSmithScores(), follow=False)
    assert export.accepted == 2
    found = {copies[0]["key"]: copies[0] for copies in langsmith.accepted.values()}
    ((_, span),) = spans(tmp_path)
    assert {body["run_id"].replace("-", "") for body in found.values()} == {span.rjust(32, "0")}
    assert {body["session_id"] for body in found.values()} == {str(SESSION)}
    assert (found["fine"]["score"], found["fine"]["value"], found["fine"]["comment"]) == (
        0.25, "fail", "too short",
    )  # fmt: skip
    assert found["fine"]["feedback_source"]["type"] == "model"
    assert found["broken"]["error"] is True
    assert "score" not in found["broken"]
    assert "trace_id" not in found["fine"]


@pytest.mark.lengthy
@pytest.mark.parametrize("status", [500, 502, 429])
def test_langsmiths_outage_loses_nothing(
    ledger: Ledger, langsmith: LangSmith, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(ledger, 2)
    langsmith.script = [200, status]
    assert ledger.export_to(LangSmithScores(), follow=False).accepted == 4
    assert len(langsmith.accepted) >= 3
    assert "Traceback" not in caplog.text


@pytest.mark.lengthy
def test_a_run_that_langsmith_does_not_know_is_asked_for_again_for_ten_minutes(
    tmp_path: Path, langsmith: LangSmith, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_800_000_000.0]
    with Ledger(tmp_path / "l.db", clock=lambda: now[0]) as ledger:
        monkeypatch.setattr(LangSmithScores, "most", 3)  # so that those that wait fill more than one batch
        recorded(ledger, 2)
        runs = {f"{span.rjust(32, '0')}" for _, span in spans(tmp_path)}
        langsmith.unknown = {re.sub(r"(.{8})(.{4})(.{4})(.{4})", r"\1-\2-\3-\4-", run) for run in runs}
        export = ledger.export_to(LangSmithScores(), follow=False)
        assert (export.accepted, export.refused) == (0, 0)
        assert ledger.receivers()[0].waiting == 4
        langsmith.unknown.pop()
        now[0] += 599
        assert ledger.export_to(LangSmithScores(), follow=False).accepted == 2
        now[0] += 1
        export = ledger.export_to(LangSmithScores(), follow=False)
        assert (export.accepted, export.refused) == (0, 2)
        (state,) = ledger.receivers()
        assert (state.waiting, state.refused) == (0, 2)
        assert "not there within 10 minutes" in state.refusals[0][2]


@pytest.mark.lengthy
def test_a_project_that_is_not_there_yet_is_waited_for(ledger: Ledger, langsmith: LangSmith) -> None:
    langsmith.projects = []
    recorded(ledger)
    receiver = LangSmithScores(project="agents")
    assert ledger.export_to(receiver, follow=False).accepted == 0
    assert ledger.receivers()[0].waiting == 2
    langsmith.projects = ["agents"]
    assert ledger.export_to(receiver, follow=False).accepted == 2


@pytest.mark.lengthy
@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_langsmith_does_not_take_stops_with_a_sentence(
    ledger: Ledger, langsmith: LangSmith, status: int
) -> None:
    recorded(ledger)
    langsmith.script = [status]
    with pytest.raises(ReceiverError, match=f"answered {status}: .*LANGSMITH_API_KEY"):
        ledger.export_to(LangSmithScores(), follow=False)
    assert ledger.export_to(LangSmithScores(), follow=False).accepted == 2


@pytest.mark.lengthy
def test_settings_that_lose_scores_are_refused(
    langsmith: LangSmith, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING_SAMPLING_RATE", "0.1")
    with pytest.raises(ConfigurationError, match=r"tracing_sampling_rate=0\.1"):
        LangSmithScores(Client(auto_batch_tracing=False))
    recorded(ledger)
    assert ledger.export_to(LangSmithScores(), follow=False).accepted == 2
    monkeypatch.delenv("LANGFUSE_SECRET_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="LANGFUSE_SECRET_KEY"):
        LangfuseScores()
    nameless: Any = ScoreReceiver()
    with pytest.raises(ConfigurationError, match="ScoreReceiver with a name"):
        ledger.export_to(nameless)


class Careless(ScoreReceiver):
    """A receiver that does not account for all scores."""

    name = "careless"

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        return Delivery(accepted=len(batch) - 1)


class Answering(ScoreReceiver):
    """A receiver that gives the answer of a function."""

    name = "answering"
    most = 2

    def __init__(self, answer: Callable[[Sequence[ExportedScore]], Any]) -> None:
        self.answer = answer

    def send(self, batch: Sequence[ExportedScore]) -> Any:
        return self.answer(batch)


MISFITS: list[tuple[Callable[[Sequence[ExportedScore]], Any], str]] = [
    (
        lambda batch: Delivery(accepted=1, later=["nobody's"]),
        'answered that the score "nobody\'s" comes later',
    ),
    (lambda batch: Delivery(accepted=0, later=[batch[0].id] * 2), "of its batch, each once"),
    (lambda batch: None, "answered None; expected a Delivery"),
]


@pytest.mark.parametrize(("answer", "said"), MISFITS)
def test_an_answer_that_fits_no_batch_stops_the_export_with_a_sentence(
    ledger: Ledger, answer: Callable[[Sequence[ExportedScore]], Any], said: str
) -> None:
    recorded(ledger)
    export = ledger.export_to(Answering(answer))
    until(lambda: not export.is_running)
    assert export.stopped_by is not None
    assert said in export.stopped_by
    assert (
        ledger.export_to(Answering(lambda batch: Delivery(accepted=len(batch))), follow=False).accepted == 2
    )


@pytest.mark.parametrize("most", [0, -1, 1.5, True, None])
def test_a_receiver_of_empty_batches_is_refused(ledger: Ledger, most: Any) -> None:
    receiver = Answering(lambda batch: Delivery(accepted=len(batch)))
    receiver.most = most
    with pytest.raises(ConfigurationError, match=f"most={most!r}; expected a whole number from 1"):
        ledger.export_to(receiver)


@pytest.mark.lengthy
def test_a_receiver_that_exits_is_tried_again(ledger: Ledger) -> None:
    answers = [SystemExit(1), asyncio.CancelledError(), GeneratorExit()]

    def answer(batch: Sequence[ExportedScore]) -> Delivery:
        if answers:
            raise answers.pop()
        return Delivery(accepted=len(batch))

    recorded(ledger)
    export = ledger.export_to(Answering(answer))
    assert export.wait(60)
    assert (export.accepted, answers) == (2, [])


def test_an_export_that_is_stopped_sends_no_further_batch(ledger: Ledger) -> None:
    sends, is_stopped = Event(), Event()

    def answer(batch: Sequence[ExportedScore]) -> Delivery:
        sends.set()
        assert is_stopped.wait(60)
        return Delivery(accepted=len(batch))

    recorded(ledger, 3)
    export = ledger.export_to(Answering(answer))
    assert sends.wait(60)
    assert not export.stop(timeout=0)
    is_stopped.set()
    until(lambda: not export.is_running)
    assert export.accepted == 2
    assert (
        ledger.export_to(Answering(lambda batch: Delivery(accepted=len(batch))), follow=False).accepted == 4
    )


def test_scores_that_wait_are_found_by_an_index(tmp_path: Path) -> None:
    selected: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and "FROM undelivered" in statement:
            selected.append((statement, values))

    waits = Answering(lambda batch: Delivery(accepted=0, later=[score.id for score in batch]))
    with Ledger(tmp_path / "l.db") as ledger:
        recorded(ledger, 3)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            ledger.export_to(waits, follow=False)
            ledger.export_to(waits, follow=False)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert ledger.receivers()[0].waiting == 6
    with closing(sqlite3.connect(tmp_path / "l.db")) as database:
        for statement, values in selected:
            plan = " ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}", values))
            assert "(receiver=? AND " in plan, statement
            assert "TEMP B-TREE" not in plan, statement


@pytest.mark.lengthy
def test_a_clock_that_fails_ends_no_export(tmp_path: Path) -> None:
    failures = [SystemExit("the clock"), OSError("the clock")]

    def clock() -> float:
        if threading.current_thread().name.startswith("arbiter-export") and failures:
            raise failures.pop()
        return time.time()

    waits = Answering(lambda batch: Delivery(accepted=0, later=[score.id for score in batch]))
    with Ledger(tmp_path / "l.db", clock=clock) as ledger:
        recorded(ledger, 1)
        export = ledger.export_to(waits)
        assert export.wait(20)
        assert export.is_running
        assert ledger.receivers()[0].waiting == 2


class Picky(ScoreReceiver):
    """A receiver that refuses a score by its id, and takes two at once."""

    name = "picky"
    most = 2

    def send(self, batch: Sequence[ExportedScore]) -> Delivery:
        refused = [Refusal("not this", score.id) for score in batch if score.evaluator == "tone"]
        return Delivery(accepted=len(batch) - len(refused), refused=refused)


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_receivers_of_ones_own_work_on_both_databases(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "l.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    with Ledger(path) as ledger:
        recorded(ledger, 3)
        with pytest.raises(ReceiverError, match="answered for 5 accepted, 0 refused"):
            ledger.export_to(Careless(), follow=False)
        export = ledger.export_to(Picky(), follow=False)
        assert (export.accepted, export.refused) == (3, 3)
        (state,) = ledger.receivers()
        assert (state.receiver, state.refused, state.behind) == ("picky", 3, 0)
        assert ledger.verify()
        erased = ledger.erase(thread_id="t0", reason="a request")
        assert [part for part in erased.elsewhere if "picky received 2 scores" in part]


@pytest.mark.lengthy
def test_secrets_reach_no_receiver(ledger: Ledger, langfuse: Langfuse, langsmith: LangSmith) -> None:
    secret = "sk-" + "a1B2" * 12

    def fails(_: Any) -> EvaluationResult:
        raise RuntimeError(f"the key is {secret}")

    recorded(
        ledger, 1, Judge("leaky", lambda _: EvaluationResult(1.0, True, f"saw {secret}")), Judge("bad", fails)
    )
    ledger.export_to(LangfuseScores(), follow=False)
    ledger.export_to(LangSmithScores(), follow=False)
    sent = "".join((*langfuse.bodies, *langsmith.bodies))
    assert "saw [secret" in sent
    assert secret not in sent


DIES = """
import os, signal, sys
from arbiter.ledger import Ledger
from arbiter.telemetry import LangfuseScores

class Dies(LangfuseScores):
    most = 4

    def send(self, batch):
        answer = super().send(batch)
        os.kill(os.getpid(), signal.SIGKILL)
        return answer

with Ledger(sys.argv[1]) as ledger:
    ledger.export_to((Dies if sys.argv[2] == "dies" else LangfuseScores)(), follow=False)
"""


@pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=pytest.mark.lengthy), pytest.param(20, marks=pytest.mark.slow)]
)
def test_a_process_that_is_killed_between_answer_and_cursor_loses_and_changes_nothing(
    tmp_path: Path, langfuse: Langfuse, kills: int
) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        recorded(ledger, 5)
    for number in range(kills + 1):
        how = "dies" if number < kills else "lives"
        langfuse.script = [503, 207] if number == 0 else []
        done = subprocess.run([*python("-c", DIES), str(path), how], check=False, timeout=60)
        assert (done.returncode == 0) == (how == "lives")
    assert len(langfuse.accepted) == 10
    assert all(copy == copies[0] for copies in langfuse.accepted.values() for copy in copies)
    assert max(len(copies) for copies in langfuse.accepted.values()) == kills + 1
    with Ledger(path) as ledger:
        assert ledger.receivers()[0].behind == 0
        assert ledger.verify()


@pytest.mark.lengthy
def test_the_command_sends_once_and_says_what_was_refused(tmp_path: Path, langfuse: Langfuse) -> None:
    path = tmp_path / "l.db"
    with Ledger(path) as ledger:
        recorded(ledger, 2)
    command = python("-m", "arbiter", "export", "--to", "langfuse", "--ledger", str(path))

    def typed(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
        )
        return done.returncode, done.stdout + done.stderr

    langfuse.script = [207]
    code, said = typed()
    assert code == 1
    assert "took 3 scores, refused 1." in said
    assert "no such config" in said
    code, said = typed()
    assert code == 0
    assert "took 0 scores." in said
    code, said = typed("--since", "1h")
    assert code == 2
    assert "--to langfuse sends every score once" in said


@pytest.mark.lengthy
def test_the_command_that_follows_prints_the_ledger_without_its_password(
    postgres_url: str, langfuse: Langfuse
) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}password=hunter2"
    Ledger(url).close()
    following = subprocess.Popen(
        [sys.executable, "-m", "arbiter", "export", "--to", "langfuse", "--follow", "--ledger", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    first = following.stdout.readline()
    following.send_signal(signal.SIGINT)
    said = first + following.communicate(timeout=60)[0]
    assert following.returncode == 0
    assert "gets the scores of postgresql" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("OpenTelemetry", "opentelemetry", "otel"),
        ("LangfuseScores", "langfuse", "langfuse"),
        ("LangSmithScores", "langsmith", "langsmith"),
    ],
)
def test_a_missing_package_is_a_sentence_that_names_the_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules):
        if module.startswith("arbiter.telemetry._") or module.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"{name} needs {package}: pip install 'arbiteros\[{extra}\]'"
    ):
        getattr(telemetry, name)
