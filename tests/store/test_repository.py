"""A repository stores evaluations, settings and messages, and refuses what does not fit."""

from __future__ import annotations

import copy
import pickle
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage

from arbiter.errors import ParameterError
from arbiter.personas import (
    FluencyScorer,
    GateConfig,
    IdeasScorer,
    Persona,
    PropositionScore,
    ScorerResult,
)
from arbiter.store import (
    AgentMessage,
    EvaluationRepository,
    MemoryRepository,
    SqlRepository,
    StoreError,
    evaluation,
)
from tests.personas.personas_support import Says
from tests.processes import python

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """A clock that tests turn."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def result(dimension: str, score: float | None, **known: Any) -> ScorerResult:
    """A scorer's result with one proposition."""
    proposition = PropositionScore(
        proposition_id=f"{dimension}-1",
        weight=1,
        score=score,
        raw=score,
        reasoning="dry \x00 \ud800",
        snippet="Hello.",
        judged=1,
        results=(),
    )
    usage: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    return ScorerResult(
        dimension=dimension,
        overall=score,
        propositions=(proposition,),
        sample_size=3,
        token_usage=usage,
        judged=1,
        **known,
    )


# Evaluations --------------------------------------------------------------------------------------


def test_the_scores_of_an_evaluation_are_there_once_it_is_finished(repository: SqlRepository) -> None:
    window = NOW - 24 * HOUR, NOW
    with evaluation(repository, "ilka", ["adherence", "fluency"], window=window, suite="weekly") as found:
        assert [run.status for run in repository.runs()] == ["running"]
        found.add(result("adherence", 8.0))
        found.add(result("fluency", None))
        assert repository.scores(found.run_id) == []
    (run,) = repository.runs("ilka")
    assert (run.id, run.status, run.dimensions) == (found.run_id, "completed", ("adherence", "fluency"))
    assert (run.window, run.suite, run.overall_score, run.sample_size) == (window, "weekly", 8.0, 6)
    assert run.token_usage == {"input_tokens": 20, "output_tokens": 4, "total_tokens": 24}
    assert run.completed_at is not None
    assert run.completed_at >= run.created_at
    (score,) = repository.scores(run.id)
    assert (score.dimension, score.proposition_id, score.score) == ("adherence", "adherence-1", 8.0)
    assert (score.reasoning, score.context_snippet) == ("dry \\x00 \\ud800", "Hello.")


def test_real_scorers_are_stored(repository: SqlRepository) -> None:
    """A mean of the judged dimensions; ideas are a count of their own."""
    ilka = Persona("Ilka", "A ferrywoman.", "ilka")
    said = [AIMessage("The tide is wrong.", name="Ilka"), AIMessage("Wait.", name="Ilka")]
    scorer = FluencyScorer(Says({"score": 7, "reasoning": "r"}), personas=[ilka], batch=False)
    with evaluation(repository, "ilka", "fluency") as found:
        kept = found.add(scorer.score(said))
    assert repository.runs()[0].overall_score == kept.overall
    assert {score.proposition_id: score.score for score in repository.scores(found.run_id)} == {
        proposition.proposition_id: proposition.score for proposition in kept.propositions
    }
    repository.add_agent("env:ferry", "ferry", kind="environment")
    counting = IdeasScorer(Says({"ideas": [f"idea {n}" for n in range(12)], "reasoning": "twelve"}))
    with evaluation(repository, "env:ferry", "ideas_quantity") as found:
        found.add(counting.score(said))
    (run,) = repository.runs("env:ferry")
    assert run.overall_score == 12
    assert [(score.proposition_id, score.score) for score in repository.scores(run.id)] == [("enumerate", 12)]


def test_an_evaluation_that_raises_is_stored_as_failed_without_scores(repository: SqlRepository) -> None:
    with (
        pytest.raises(ZeroDivisionError, match="boom"),
        evaluation(repository, "ilka", ["adherence", "fluency"]) as found,
    ):
        found.add(result("adherence", 8.0))
        raise ZeroDivisionError("boom")
    (run,) = repository.runs()
    assert (run.status, run.overall_score, run.problem) == ("failed", None, "ZeroDivisionError: boom")
    assert run.completed_at is not None
    assert repository.scores(run.id) == []


def test_all_scores_are_stored_or_none(repository: SqlRepository) -> None:
    """A score that the database refuses leaves the evaluation as it was."""
    run = repository.start_run("ilka", ["adherence", "fluency"])
    with pytest.raises(StoreError, match=r"(?i)check"):
        repository.finish_run(run, [result("adherence", 8.0), result("fluency", 12.0)])
    assert repository.scores(run) == []
    assert [found.status for found in repository.runs()] == ["running"]
    repository.add_scores(run, [result("adherence", 8.0)])
    assert len(repository.scores(run)) == 1


KILLED = """
import os, sys
from arbiter.store import SqlRepository, evaluation
repository = SqlRepository(sys.argv[1])
with evaluation(repository, "ilka", "fluency", suite="weekly"):
    os._exit(9)
"""


@pytest.mark.lengthy
def test_the_next_run_of_a_suite_ends_what_a_killed_process_left(
    repository: SqlRepository, place: str
) -> None:
    """Evaluations of other suites, and those of the run itself, go on."""
    assert subprocess.run([*python("-c", KILLED), place], check=False).returncode == 9
    other = repository.start_run("ilka", ["fluency"], suite="daily")
    (killed,) = repository.runs(suite="weekly")
    assert killed.status == "running"
    started = datetime.now(UTC)
    first = repository.start_run("ilka", ["fluency"], suite="weekly", started=started)
    second = repository.start_run("ilka", ["fluency"], suite="weekly", started=started)
    states = {run.id: run.status for run in repository.runs()}
    assert states == {killed.id: "failed", other: "running", first: "running", second: "running"}
    (failed,) = repository.runs(status="failed")
    assert failed.completed_at is not None
    assert failed.overall_score is None
    assert failed.problem == "its process ended before the evaluation did"


def test_evaluations_are_found_by_period(place: str) -> None:
    clock = Clock()
    with SqlRepository(place, now=clock) as repository:
        repository.add_agent("ilka")
        for _ in range(3):
            repository.start_run("ilka", ["fluency"])
            clock.now += HOUR
        found = [run.created_at for run in repository.runs("ilka", since=NOW + HOUR, until=NOW + 2 * HOUR)]
        assert found == [NOW + HOUR]
        assert len(repository.runs("nobody")) == 0


def test_a_completed_evaluation_can_be_a_baseline(repository: SqlRepository) -> None:
    run = repository.start_run("ilka", ["fluency"])
    with pytest.raises(StoreError, match="is running; only a completed one can be a baseline"):
        repository.mark_baseline(run)
    repository.finish_run(run, [result("fluency", 7.5)])
    with pytest.raises(StoreError, match="is completed already"):
        repository.finish_run(run, [result("fluency", 2.5)])
    assert [score.score for score in repository.scores(run)] == [7.5]
    repository.mark_baseline(run)
    assert repository.runs()[0].is_baseline
    repository.mark_baseline(run, False)
    assert not repository.runs()[0].is_baseline


def test_a_new_baseline_takes_the_place_of_the_older_one(repository: SqlRepository) -> None:
    """The older mark of the agent goes, unless it stands for another dimension, too."""

    def marked(agent: str, *dimensions: Any) -> UUID:
        run = repository.start_run(agent, dimensions)
        repository.finish_run(run, [result(dimension, 7.5) for dimension in dimensions])
        repository.mark_baseline(run)
        return run

    repository.add_agent("pam")
    others = marked("pam", "fluency"), marked("ilka", "adherence")
    first, second = marked("ilka", "fluency"), marked("ilka", "fluency")
    assert {run.id for run in repository.runs() if run.is_baseline} == {*others, second}
    repository.mark_baseline(first)
    assert {run.id for run in repository.runs() if run.is_baseline} == {*others, first}
    both = marked("ilka", "fluency", "adherence")
    assert {run.id for run in repository.runs() if run.is_baseline} == {others[0], both}
    newest = marked("ilka", "fluency")
    assert {run.id for run in repository.runs() if run.is_baseline} == {others[0], both, newest}


def test_messages_that_are_stored_at_once_in_another_order_are_stored_once(place: str) -> None:
    """In PostgreSQL each of the two waited for a row of the other, and one was refused."""
    with SqlRepository(place) as repository, ThreadPoolExecutor(4) as threads:
        repository.add_agent("ilka")
        for hour in range(5):
            messages = [
                AgentMessage(agent_id="ilka", text=f"word {n}", at=NOW + hour * HOUR, run_id=uuid4())
                for n in range(200)
            ]
            list(threads.map(repository.add_messages, [messages, messages[::-1]] * 2))
            assert len(repository.messages("ilka")) == 200 * (hour + 1)


def test_of_baselines_that_are_marked_at_once_one_is_left(place: str) -> None:
    with SqlRepository(place) as repository, ThreadPoolExecutor(8) as threads:
        repository.add_agent("ilka")
        for _ in range(5):
            runs = [repository.start_run("ilka", ["fluency"]) for _ in range(8)]
            for run in runs:
                repository.finish_run(run)
            list(threads.map(repository.mark_baseline, runs))
            assert sum(run.is_baseline for run in repository.runs("ilka")) == 1


@pytest.mark.lengthy
def test_what_is_changed_at_once_is_changed_one_after_another(place: str) -> None:
    """Two changes of settings are both kept, and an evaluation is finished once."""
    with SqlRepository(place) as other, ThreadPoolExecutor(1) as thread:
        other.add_agent("ilka")
        run = other.start_run("ilka", ["fluency"])
        beside: list[Future[Any]] = []

        def now() -> datetime:
            if len(beside) < len(doing):
                beside.append(thread.submit(doing[-1]))
                wait(beside[-1:], timeout=0.3)  # it waits for the change here, where it must
            return datetime.now(UTC)

        doing: list[Any] = [lambda: other.set_config("ilka", judge_timeout=9.0)]
        with SqlRepository(place, now=now) as repository:
            repository.set_config("ilka", enable_regeneration=False)
            beside[0].result()
            doing.append(lambda: other.finish_run(run))
            repository.finish_run(run)
        with pytest.raises(StoreError, match="is completed already"):
            beside[1].result()
        config = other.config("ilka")
        assert (config.judge_timeout, config.enable_regeneration) == (9.0, False)


def test_mistakes_name_the_remedy(repository: SqlRepository) -> None:
    unknown = uuid4()
    naive = NOW.replace(tzinfo=None)
    made: Any = iter([])  # is read once
    text: Any = "7d"
    mistakes: dict[Callable[[], Any], str] = {
        lambda: repository.start_run("ilca", ["fluency"]): "no agent 'ilca'; add it with add_agent.* 'ilka'",
        lambda: repository.start_run("ilka", ["charm"]): "expected some of adherence, .*; got 'charm'",
        lambda: repository.start_run("ilka", []): "got none",
        lambda: repository.start_run("ilka", ["fluency"], started=NOW): "needs the name of the suite",
        lambda: repository.start_run("ilka", ["fluency"], window=(naive, NOW)): "a time with a zone",
        lambda: repository.start_run("ilka", ["fluency"], window=(NOW, NOW - HOUR)): "(?i)check",
        lambda: repository.finish_run(unknown): f"no evaluation {unknown}",
        lambda: repository.mark_baseline(unknown): f"no evaluation {unknown}",
        lambda: repository.add_agent(""): "expected an id",
        lambda: repository.add_agent("x", kind="robot"): "'agent' or 'environment', got 'robot'",
        lambda: repository.config("ilca"): "Did you mean 'ilka'",
        lambda: repository.set_config(
            "ilka", gate_fluncy_enabled=True
        ): "Did you mean 'gate_fluency_enabled'",
        lambda: repository.add_messages([AgentMessage(agent_id="ilka", text="x", at=naive)]): "with a zone",
        lambda: repository.add_messages([AgentMessage(agent_id="pam", text="x", at=NOW)]): "no agent 'pam'",
        lambda: repository.runs(since=naive): "a time with a zone",
        lambda: repository.runs(since=text): "a time with a zone, got '7d'",
        lambda: repository.start_run("ilka", made): "got none",
        lambda: repository.add_messages(
            [AgentMessage(agent_id="ilka", text="x", at=NOW, run_id="run-1")]
        ): "run_id: expected the uuid of a run, got 'run-1'",
        lambda: repository.add_messages(
            [AgentMessage(agent_id="ilka", text="x", at=datetime(1, 1, 1, tzinfo=timezone(HOUR)))]
        ): "out of range",
        lambda: repository.set_config("ilka", max_correction_attempts=2**70): "(?i)(large|range)",
    }
    for mistake, said in mistakes.items():
        with pytest.raises(StoreError, match=said) as raised:
            mistake()
        assert "\n" not in str(raised.value)


def test_only_named_dimensions_are_added_once(repository: SqlRepository) -> None:
    with evaluation(repository, "ilka", ["fluency"]) as found:
        with pytest.raises(StoreError, match="still takes fluency; got those of 'adherence'"):
            found.add(result("adherence", 8.0))
        found.add(result("fluency", 8.0))
        with pytest.raises(StoreError, match="still takes no scores"):
            found.add(result("fluency", 8.0))


# Settings -----------------------------------------------------------------------------------------


def test_settings_are_kept_and_changes_are_timed(place: str) -> None:
    clock = Clock()
    with SqlRepository(place, now=clock) as repository:
        repository.add_agent("ilka")
        assert repository.config("ilka") == GateConfig()
        given = GateConfig(gate_fluency_enabled=True, gate_fluency_threshold=6.5, judge_timeout=2.5)
        assert repository.set_config("ilka", given) == given
        clock.now += HOUR
        changed = repository.set_config("ilka", max_correction_attempts=0)
        assert repository.config("ilka") == changed
        assert (changed.gate_fluency_threshold, changed.drafts) == (6.5, 1)
        with repository._engine.connect() as connection:  # pyright: ignore[reportPrivateUsage]
            found: Any = connection.exec_driver_sql(
                "SELECT count(*), max(updated_at) FROM agent_evaluation_config"
            )
            rows, when = found.one()
        assert rows == 1
        assert str(when).startswith("2026-11-23 13:00:00")
        with pytest.raises(ParameterError, match="max_action_similarity"):
            repository.set_config("ilka", max_action_similarity=2)
        assert repository.config("ilka") == changed


# Messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store.db", "depo ğ.db"])
def test_a_store_stays_where_it_is_when_the_program_changes_its_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with SqlRepository(name) as repository:
        monkeypatch.chdir("sub")
        repository.add_agent("ada")
        (tmp_path / name).rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreError, match="was removed"):
            repository.add_agent("ada")


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_written_to_a_file_that_is_no_longer_the_stores(tmp_path: Path, is_replaced: bool) -> None:
    path, aside = tmp_path / "store.db", tmp_path / "aside.db"
    with SqlRepository(path) as repository:
        repository.add_agent("ada")
        path.rename(aside)
        if is_replaced:
            path.write_bytes(b"")
        with pytest.raises(StoreError, match=r"store\.db' was removed, or is another file now; put it back"):
            repository.add_agent("bob")
        aside.replace(path)
        repository.add_agent("eve")
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT id FROM agents ORDER BY id").fetchall() == [("ada",), ("eve",)]


def test_messages_are_stored_once_and_found_by_period(repository: SqlRepository) -> None:
    run = uuid4()
    said = [
        AgentMessage(agent_id="ilka", text="Ferry \x00 closed.", at=NOW, channel="quay", run_id=run),
        AgentMessage(agent_id="ilka", text="Wait.", at=NOW + HOUR, kind="THINK"),
    ]
    assert repository.add_messages(said) == 2
    assert repository.add_messages([*said, AgentMessage(agent_id="ilka", text="Wait.", at=NOW)]) == 1
    found = repository.messages("ilka", since=NOW, until=NOW + HOUR)
    assert {message.text for message in found} == {"Ferry \\x00 closed.", "Wait."}
    assert [message.kind for message in repository.messages("ilka", since=NOW + HOUR)] == ["THINK"]
    first = next(message for message in found if message.channel)
    assert (first.channel, first.run_id, first.at) == ("quay", run, NOW)
    assert repository.messages("pam") == []


# Processes and threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.lengthy
def test_threads_share_a_repository(kind: str, tmp_path: Path) -> None:
    makes: Callable[[], SqlRepository] = (
        MemoryRepository if kind == "memory" else lambda: SqlRepository(tmp_path / "evaluation.db")
    )
    with makes() as repository:
        repository.add_agent("ilka")

        def evaluate(number: int) -> UUID:
            with evaluation(repository, "ilka", "fluency") as found:
                found.add(result("fluency", number % 10))
            return found.run_id

        with ThreadPoolExecutor(8) as pool:
            runs = list(pool.map(evaluate, range(40)))
        assert {run.id for run in repository.runs(status="completed")} == {*runs}


def test_a_repository_can_be_sent_to_another_process(repository: SqlRepository) -> None:
    protocol: EvaluationRepository = repository
    sent: SqlRepository = pickle.loads(pickle.dumps(protocol))
    with sent:
        assert sent.config("ilka") == GateConfig()
    assert copy.deepcopy(repository) is repository
    with MemoryRepository() as memory, pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(memory)


FORKS = """
import os, sys
from datetime import UTC, datetime
from arbiter.store import AgentMessage, SqlRepository

def say(text):
    repository.add_messages([AgentMessage(agent_id="ilka", text=text, at=datetime.now(UTC))])

repository = SqlRepository(sys.argv[1])
say("before")
child = os.fork()
if child == 0:
    say("child")
    os._exit(0)
say("parent")
assert os.waitpid(child, 0)[1] == 0
assert {message.text for message in repository.messages()} == {"before", "child", "parent"}
"""


@pytest.mark.lengthy
def test_a_forked_process_shares_a_repository(repository: SqlRepository, place: str) -> None:
    done = subprocess.run([*python("-c", FORKS), place], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(repository.messages("ilka")) == 3
