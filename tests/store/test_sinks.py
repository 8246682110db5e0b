"""Gates and interventions of governed graphs store what they decided; a repository that fails changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS
from arbiter.errors import ConfigurationError
from arbiter.history import HistoryItem
from arbiter.ledger import Ledger
from arbiter.personas import (
    Attempt,
    GatedAction,
    GateStatistics,
    Intervened,
    Intervention,
    InterventionBatch,
    MockJudge,
    Persona,
    PersonaGate,
    anti_convergence,
)
from arbiter.store import SqlRepository
from tests.personas.gate_support import Speaker, chat, enabled, gated, hello, scored, texts
from tests.personas.personas_support import Says
from tests.store.store_support import sql
from tests.support import MODES, run, thread

JIM = Persona("Jim", "A calm salesman.", "jim-1")
ON_FILE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
HARD = enabled("fluency", "suitability", "similarity", max_correction_attempts=1)


def rows(repository: SqlRepository, query: str) -> list[Mapping[str, Any]]:
    with repository._engine.connect() as connection:  # pyright: ignore[reportPrivateUsage]
        return [dict(row) for row in sql(connection, query).mappings()]


@MODES
@pytest.mark.lengthy
def test_each_action_of_a_governed_run_is_a_row_with_its_attempts(
    repository: SqlRepository, mode: str
) -> None:
    judge = scored({"Bad.": {"fluency": 3}, "Worse.": {"suitability": 2, "fluency": 1}})
    jim = Speaker("Bad.", "Good.", "Fine.", "Worse.", "Bad.")
    app, gate, _ = gated(
        judge, HARD, jim, personas=[JIM], checkpointer=InMemorySaver(), repository=repository
    )
    for _ in range(3):
        run(app, hello(), thread("t1"), mode=mode)
    stored = rows(repository, "SELECT * FROM correction_logs ORDER BY created_at")
    assert [row["outcome"] for row in stored] == ["passed_after_retry", "passed", "forced_through"]
    assert {row["agent_id"] for row in stored} == {"jim-1"}
    assert [row["original_text"] for row in stored] == ["Bad.", "Fine.", "Worse."]
    assert [row["corrected_text"] for row in stored] == ["Good.", None, "Bad."]
    assert [row["problem"] for row in stored] == ["", "", ""]
    (agent,) = rows(repository, "SELECT * FROM agents WHERE id <> 'ilka'")
    assert agent == {
        "id": "jim-1",
        "display_name": "Jim",
        "system_prompt": "A calm salesman.",
        "kind": "agent",
    }
    attempts = rows(repository, "SELECT * FROM correction_attempts ORDER BY attempt_number, text")
    assert sorted((row["attempt_number"], row["text"], bool(row["passed"])) for row in attempts) == [
        (1, "Bad.", False),
        (1, "Fine.", True),
        (1, "Worse.", False),
        (2, "Bad.", False),
        (2, "Good.", True),
    ]
    runs = rows(repository, "SELECT * FROM runs")
    assert [row["thread_id"] for row in runs] == ["t1"] * 3
    # What the gate knows in this process, the rows know in any.
    assert repository.corrections() == list(gate.actions)
    assert repository.corrections("ilka") == []
    assert GateStatistics.of(repository.corrections("jim-1")) == gate.statistics()


@MODES
@pytest.mark.parametrize("failing", ["raises", "hangs", "wrong setting"])
def test_a_repository_that_fails_changes_nothing_that_is_committed(
    failing: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The action, the item and the log say so."""

    class Failing:
        def log_correction(self, action: GatedAction, persona: Persona | None = None) -> None:
            if failing == "hangs":
                time.sleep(30)
            elif failing == "raises":
                raise ZeroDivisionError("boom")
            raise ConfigurationError("a mistake of the repository's own")

    monkeypatch.setattr("arbiter.personas._repositories.WAIT", 0.2)
    judge = {"Bad.": {"fluency": 3}}
    said: dict[str, list[str]] = {}
    for name, repository in (("without", None), ("with", Failing())):
        jim = Speaker("Bad.", "Good.")
        app, gate, arbiter_os = gated(scored(judge), HARD, jim, personas=[JIM], repository=repository)
        said[name] = texts(run(app, hello(), mode=mode))
        (action,) = gate.actions
        why = {"raises": "boom", "hangs": "no answer within 0.2 s"}.get(failing, "a mistake")
        assert (why in action.problem) is (repository is not None)
        assert action.outcome == "passed_after_retry"
        item = arbiter_os.history.entries[-1][-1]
        assert item.gating["problem"] == action.problem
        if repository is not None:
            assert any("did not store" in error for error in item.errors.values())
            assert "the repository did not store this" in caplog.text
    assert said["with"] == said["without"] == ["Hello.", "Good."]


@MODES
def test_a_store_that_is_gone_is_a_failing_repository(repository: SqlRepository, mode: str) -> None:
    with repository._engine.begin() as connection:  # pyright: ignore[reportPrivateUsage]
        connection.exec_driver_sql("ALTER TABLE correction_attempts RENAME TO elsewhere")
    try:
        app, gate, _ = gated(scored({}), HARD, Speaker("Fine."), personas=[JIM], repository=repository)
        assert texts(run(app, hello(), mode=mode)) == ["Hello.", "Fine."]
        assert "StoreError" in gate.actions[0].problem
        assert rows(repository, "SELECT * FROM correction_logs") == []  # one transaction: all or nothing
    finally:
        with repository._engine.begin() as connection:  # pyright: ignore[reportPrivateUsage]
            connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO correction_attempts")


@ON_FILE
def test_the_run_of_an_action_can_be_ones_own(repository: SqlRepository) -> None:
    own = uuid4()

    def run_of(item: HistoryItem) -> UUID:
        return own

    app, gate, _ = gated(
        scored({}), HARD, Speaker("A."), personas=[JIM], repository=repository, run_of=run_of
    )
    run(app, hello())
    assert gate.actions[0].run_id == str(own)
    assert [UUID(str(row["run_id"])) for row in rows(repository, "SELECT run_id FROM correction_logs")] == [
        own
    ]


@pytest.mark.lengthy
def test_a_store_and_a_ledger_share_a_database_and_the_names_of_runs(
    repository: SqlRepository, place: str
) -> None:
    gate = PersonaGate(scored({}), JIM, HARD, repository=repository)
    with Ledger(place) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_correction_gate(gate)
        app = arbiter_os.govern(chat(Speaker("A."), checkpointer=InMemorySaver()))
        run(app, hello(), thread("t1"))
        assert ledger.flush(20)
        assert ledger.verify()
        runs = rows(repository, "SELECT DISTINCT run FROM entries WHERE run IS NOT NULL")
    (action,) = repository.corrections()
    assert [row["run"] for row in runs] == [action.run_id]
    SqlRepository(place).close()


@ON_FILE
@pytest.mark.parametrize("wrong", ["raises", "no uuid"])
def test_a_run_of_that_fails_is_reported_and_blocks_nothing(repository: SqlRepository, wrong: str) -> None:
    def run_of(item: Any) -> str:
        return "run 7" if wrong == "no uuid" else str(1 / 0)

    app, gate, _ = gated(
        scored({}), HARD, Speaker("A."), personas=[JIM], repository=repository, run_of=run_of
    )
    assert texts(run(app, hello())) == ["Hello.", "A."]
    expected = (
        "run_of failed: ZeroDivisionError"
        if wrong == "raises"
        else "did not store this: StoreError: run_id: expected the uuid"
    )
    assert expected in gate.actions[0].problem
    assert len(rows(repository, "SELECT * FROM correction_logs")) == (1 if wrong == "raises" else 0)


@ON_FILE
def test_an_action_of_an_unknown_agent_belongs_to_its_node(repository: SqlRepository) -> None:
    app, gate, _ = gated(
        scored({}),
        HARD,
        Speaker("A.", name="somewhere"),
        personas=[JIM, Persona("Pam", "A painter.", "pam")],
        repository=repository,
    )
    run(app, hello())
    (row,) = rows(repository, "SELECT agent_id, problem FROM correction_logs")
    assert row["agent_id"] == "env:somewhere"
    assert "it is not known who speaks" in row["problem"]
    assert repository.corrections() == list(gate.actions)


@ON_FILE
def test_a_lost_first_draft_is_stored_as_an_empty_text_with_the_problem(repository: SqlRepository) -> None:
    app, gate, _ = gated(scored({}), HARD, Speaker("A."), personas=[JIM])
    run(app, hello())
    found = gate.actions[0]
    lost = Attempt(number=1, text=None)
    later = replace(found.attempts[0], number=2)
    action = replace(found, original_text=None, attempt_number=2, attempts=(lost, later))
    repository.log_correction(action, JIM)
    (row,) = rows(repository, "SELECT original_text, problem FROM correction_logs")
    assert row["original_text"] == ""
    assert row["problem"].startswith("the text of the first draft is lost")
    assert repository.corrections()[0].original_text is None


@ON_FILE
def test_actions_of_an_audit_are_marked(repository: SqlRepository) -> None:
    judge = scored({"Bad.": {"fluency": 3}})
    app, gate, _ = gated(judge, HARD, Speaker("Bad."), personas=[JIM], repository=repository)
    gate.mode = "audit"
    assert texts(run(app, hello())) == ["Hello.", "Bad."]
    assert [action.enforced for action in repository.corrections()] == [False]


@ON_FILE
def test_the_settings_of_the_store_configure_a_gate(repository: SqlRepository) -> None:
    repository.add_agent("jim-1", "Jim")
    repository.set_config("jim-1", enabled("fluency"))
    app, gate, _ = gated(
        scored({"Bad.": {"fluency": 3}}),
        {"jim-1": repository.config("jim-1")},
        Speaker("Bad.", "Good."),
        personas=[JIM],
    )
    assert texts(run(app, hello())) == ["Hello.", "Good."]
    assert gate.actions[0].outcome == "passed_after_retry"


# Interventions ------------------------------------------------------------------------------------


def advised(advisor: Any, *bodies: Any) -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_advisor(advisor)
    return arbiter_os.govern(chat(*bodies))


@MODES
def test_each_evaluation_of_an_intervention_is_stored(repository: SqlRepository, mode: str) -> None:
    nudged = (
        Intervention(JIM, judge=Says({"result": True}), repository=repository, channel="office", name="sing")
        .set_functional_precondition(lambda targets: True)
        .set_textual_precondition("they are bored")
        .set_effect("Sing.")
    )
    quiet = Intervention(JIM, repository=repository, channel="office", name="quiet")
    quiet.set_functional_precondition(lambda targets: False).set_effect("Hush.")
    jim = Speaker("Hi")
    run(advised(InterventionBatch([nudged, quiet]), jim), hello(), mode=mode)
    assert "Sing." in jim.told()
    first, second = rows(repository, "SELECT * FROM intervention_logs ORDER BY name DESC")
    assert (first["agent_id"], first["channel"], first["nudge"]) == ("jim-1", "office", "Sing.")
    conditions = ("functional", "textual", "propositional", "fired")
    assert [first[name] for name in conditions] == [True, True, None, True]
    assert [second[name] for name in conditions] == [False, None, None, False]
    assert second["nudge"] is None
    assert "12" in str(first["token_usage"])


@ON_FILE
def test_each_nudged_agent_has_a_row_and_the_tokens_count_once(repository: SqlRepository) -> None:
    both = [JIM, Persona("Pam", "A painter.", "pam")]
    one = (
        Intervention(both, judge=Says({"result": True}), repository=repository)
        .set_textual_precondition("they are bored")
        .set_effect("Sing.")
    )
    run(advised(one, Speaker("Hi")), hello())
    found = rows(repository, "SELECT agent_id, token_usage FROM intervention_logs ORDER BY agent_id")
    assert [row["agent_id"] for row in found] == ["jim-1", "pam"]
    assert ["12" in str(row["token_usage"]) for row in found] == [True, False]


@pytest.mark.lengthy
def test_interventions_that_nudge_the_same_new_agents_at_once_are_all_stored(
    repository: SqlRepository,
) -> None:
    """In PostgreSQL each of the two waited for an agent of the other, and one was refused."""
    with ThreadPoolExecutor(4) as threads:
        for hour in range(5):
            names = [f"agent {hour}.{n}" for n in range(30)]
            nudges = [dict.fromkeys(order, "Sing.") for order in [names, names[::-1]] * 2]
            list(
                threads.map(repository.log_intervention, [Intervened(name="sing", nudges=n) for n in nudges])
            )
    (found,) = rows(repository, "SELECT count(*) AS stored FROM intervention_logs")
    assert found["stored"] == 5 * 4 * 30


@ON_FILE
def test_built_in_interventions_pass_the_repository_on(repository: SqlRepository) -> None:
    team = [JIM, Persona("Pam", "A painter.", "pam")]
    batch = anti_convergence(team, Says({"result": True}), repository=repository)
    run(advised(batch, Speaker("Hi")), hello("The tide is wrong."))
    (row,) = rows(repository, "SELECT agent_id, name, fired FROM intervention_logs")
    assert (row["agent_id"], row["name"], bool(row["fired"])) == ("env:", "anti_convergence", False)


def test_a_repository_that_raises_stops_no_nudge(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def log_intervention(self, evaluated: Any, personas: Any = ()) -> None:
            raise ZeroDivisionError("boom")

    one = Intervention(JIM, repository=Failing()).set_effect("Sing.")
    one.set_functional_precondition(lambda targets: True)
    jim = Speaker("Hi")
    run(advised(one, jim), hello())
    assert "Sing." in jim.told()
    assert one.log[0].problem == "the repository did not store this: ZeroDivisionError: boom"
    assert "the repository did not store this" in caplog.text


@pytest.mark.parametrize("wrong", ["sqlite:///evaluation.db", SqlRepository, object()])
def test_an_object_that_is_not_a_repository_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"repository: expected an object with log_correction\(\)"):
        PersonaGate(MockJudge({}), JIM, repository=wrong)
    with pytest.raises(ConfigurationError, match=r"repository: expected an object with log_intervention\(\)"):
        Intervention(JIM, repository=wrong)
