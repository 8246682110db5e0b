"""The tables hold what they promise, to programs that write raw SQL as well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    CheckConstraint,
    Connection,
    Engine,
    Index,
    Table,
    UniqueConstraint,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import IntegrityError, StatementError

from arbiter.personas import GateConfig
from arbiter.personas._gated import Outcome
from arbiter.store._opening import SCHEMA, open_store, upgrade_store
from arbiter.store._schema import AgentConfig, Base, EvaluationRun, Message
from arbiter.store._types import Words
from tests.store.store_support import add_agent, sql

NOW = datetime(2026, 11, 23, 12, 30, 0, 123456, tzinfo=UTC)


def add_run(connection: Connection, id: UUID | None = None) -> str:
    """An evaluation of Ilka; the id as that database writes it."""
    add_agent(connection)
    run = (id or uuid4()).hex
    sql(
        connection,
        "INSERT INTO evaluation_runs (id, agent_id, dimensions, sample_size) VALUES (:id, 'ilka', :dimensions, 0)",
        id=run,
        dimensions="[]" if connection.dialect.name == "sqlite" else ["fluency"],
    )
    return run


SCORE = """
INSERT INTO evaluation_scores (evaluation_run_id, dimension, proposition_id, score, reasoning)
VALUES (:run, :dimension, 'p', :score, 'r')
"""
CORRECTION = """
INSERT INTO correction_logs (agent_id, run_id, original_text, attempt_number, outcome, similarity_score)
VALUES ('ilka', :run, 'Hello.', :attempt, :outcome, :similarity)
"""
PASSED: dict[str, Any] = {"run": None, "attempt": 1, "outcome": "passed", "similarity": None}


def count(connection: Connection, table: str) -> int:
    return int(sql(connection, f"SELECT count(*) FROM {table}").scalar())


def test_a_raw_insert_of_the_agent_alone_has_every_default(engine: Engine) -> None:
    with engine.begin() as connection:
        add_agent(connection)
        sql(connection, "INSERT INTO agent_evaluation_config (agent_id) VALUES ('ilka')")
        row: Any = connection.execute(select(AgentConfig.__table__)).mappings().one()
        assert sql(connection, "SELECT kind FROM agents").scalar() == "agent"
    settings = {name: row[name] for name in row if name not in ("id", "agent_id", "updated_at")}
    assert GateConfig(**settings) == GateConfig()
    assert len(settings) == 22
    assert isinstance(row["id"], UUID)
    assert row["id"].version == 4
    assert abs(datetime.now(UTC) - row["updated_at"]) < timedelta(minutes=5)


def test_each_uuid_of_the_database_is_new_and_a_version_4(engine: Engine) -> None:
    with engine.begin() as connection:
        for _ in range(50):
            connection.exec_driver_sql("INSERT INTO runs DEFAULT VALUES")
        found = list(connection.execute(select(Base.metadata.tables["runs"].c.id)).scalars())
    assert {(id.version, id.variant) for id in found} == {(4, "specified in RFC 4122")}
    assert len({*found}) == 50


def test_all_of_a_deleted_agent_vanishes(engine: Engine) -> None:
    with engine.begin() as connection:
        run = add_run(connection)
        sql(connection, SCORE, run=run, dimension="fluency", score=8)
        sql(connection, CORRECTION, **PASSED)
        log = sql(connection, "SELECT id FROM correction_logs").scalar()
        sql(
            connection,
            "INSERT INTO correction_attempts (correction_log_id, attempt_number, passed, status) "
            "VALUES (:log, 1, :passed, 'judged')",
            log=log,
            passed=True,
        )
        sql(connection, "INSERT INTO agent_evaluation_config (agent_id) VALUES ('ilka')")
        sql(
            connection,
            "INSERT INTO intervention_logs (agent_id, name, fired) VALUES ('ilka', 'i', :no)",
            no=False,
        )
        connection.execute(insert(Message).values(agent_id="ilka", text="Hello.", at=NOW))
    tables = [name for name in Base.metadata.tables if name not in ("agents", "runs", "calibrations")]
    with engine.begin() as connection:
        assert {name: count(connection, name) for name in tables} == dict.fromkeys(tables, 1)
        sql(connection, "DELETE FROM agents")
        assert {name: count(connection, name) for name in tables} == dict.fromkeys(tables, 0)


def test_a_deleted_run_leaves_the_corrections_and_messages(engine: Engine) -> None:
    run = uuid4()
    with engine.begin() as connection:
        add_agent(connection)
        sql(connection, "INSERT INTO runs (id) VALUES (:run)", run=run.hex)
        sql(connection, CORRECTION, **{**PASSED, "run": run.hex})
        connection.execute(insert(Message).values(agent_id="ilka", run_id=run, text="Hello.", at=NOW))
    with engine.begin() as connection:
        sql(connection, "DELETE FROM runs")
        for table in ("correction_logs", "messages"):
            assert sql(connection, f"SELECT run_id FROM {table}").all() == [(None,)]


def refusal(connection: Connection, statement: str, **values: Any) -> str:
    """The error of a statement that meets a constraint; it then has no effect. "" if it meets none."""
    try:
        with connection.begin_nested():
            sql(connection, statement, **values)
    except IntegrityError as error:
        return str(error.orig)
    return ""


def test_a_score_that_is_no_number_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        run = add_run(connection)
        for dimension in ("fluency", "ideas_quantity"):
            for score in (float("nan"), float("inf")):
                assert refusal(connection, SCORE, run=run, dimension=dimension, score=score), (
                    dimension,
                    score,
                )
        assert count(connection, "evaluation_scores") == 0


EVERYWHERE = """
INSERT INTO agents (id, display_name) VALUES ('ilka', 'Ilka'), ('tomasz', 'Tomasz');
INSERT INTO runs (thread_id) VALUES ('t');
INSERT INTO evaluation_runs (agent_id, dimensions, sample_size) VALUES ('ilka', '{}', 0);
INSERT INTO evaluation_scores (evaluation_run_id, dimension, proposition_id, score, reasoning)
    SELECT id, 'fluency', 'p', 8, 'r' FROM evaluation_runs;
INSERT INTO correction_logs (agent_id, original_text, attempt_number, outcome) VALUES ('ilka', 'a', 1, 'passed');
INSERT INTO correction_attempts (correction_log_id, attempt_number, passed, status)
    SELECT id, 1, TRUE, 'judged' FROM correction_logs;
INSERT INTO correction_attempts (correction_log_id, attempt_number, passed, status)
    SELECT id, 2, TRUE, 'judged' FROM correction_logs;
INSERT INTO agent_evaluation_config (agent_id) VALUES ('ilka');
INSERT INTO agent_evaluation_config (agent_id) VALUES ('tomasz');
INSERT INTO intervention_logs (agent_id, name, fired) VALUES ('ilka', 'i', TRUE);
INSERT INTO messages (agent_id, text, at) VALUES ('ilka', 'Hello.', '2026-11-23 12:00:00');
INSERT INTO calibrations ("row", version, judge, n, data) VALUES ('tone', '1', 'm', 1, '{}')
"""
"""At least one row in each table."""
TIME = "'2026-11-23 12:00:00'"
SHARES = ["-0.1", "1.1"]
WRONG: dict[str, list[str]] = {
    "agents_kind_check": ["kind = 'robot'"],
    "agents_id_check": ["id = ''"],
    "evaluation_runs_status_check": ["status = 'done'"],
    "evaluation_runs_sample_size_check": ["sample_size = -1"],
    "evaluation_runs_completed_at_check": [
        "status = 'completed'",
        "status = 'failed'",
        f"completed_at = {TIME}",
    ],
    "evaluation_runs_window_check": [f"window_start = {TIME}, window_end = '2026-11-22 12:00:00'"],
    "evaluation_scores_dimension_check": ["dimension = 'charm'"],
    "evaluation_scores_score_check": [
        "score = 9.1",
        "score = -0.1",
        "dimension = 'ideas_quantity', score = -1",
        "dimension = 'ideas_quantity', score = 1000001",
    ],
    "correction_logs_attempt_number_check": ["attempt_number = 0"],
    "correction_logs_similarity_score_check": [f"similarity_score = {share}" for share in SHARES],
    "correction_logs_outcome_check": ["outcome = 'gave_up'"],
    "correction_attempts_attempt_number_check": ["attempt_number = 0"],
    "correction_attempts_stage_check": ["stage = 'idea'"],
    "correction_attempts_similarity_score_check": [f"similarity_score = {share}" for share in SHARES],
    "correction_attempts_status_check": ["status = 'late'"],
    **{
        f"agent_evaluation_config_gate_{dimension}_threshold_check": [
            f"gate_{dimension}_threshold = {wrong}" for wrong in ("-0.1", "9.1")
        ]
        for dimension in ("adherence", "consistency", "fluency", "suitability")
    },
    **{
        f"agent_evaluation_config_{name}_check": [f"{name} = {share}" for share in SHARES]
        for name in ("max_action_similarity", "convergence_threshold", "repetition_threshold")
    },
    **{
        f"agent_evaluation_config_{name}_check": [f"{name} = -1"]
        for name in (
            "max_correction_attempts",
            "minimum_required_qty_of_actions",
            "variety_message_threshold",
        )
    },
    "agent_evaluation_config_judge_timeout_check": ["judge_timeout = 0", "judge_timeout = 1.1e308"],
    "calibrations_n_check": ["n = -1"],
    "agent_evaluation_config_agent_id_key": ["agent_id = 'ilka'"],
    "correction_attempts_correction_log_id_attempt_number": ["attempt_number = 1"],
}
"""What raw SQL may not set, by the constraint that it meets."""


def constraints() -> dict[str, Table]:
    """The checks and unique keys of all tables."""
    found: dict[str, Table] = {}
    for table in Base.metadata.sorted_tables:
        named = [*table.constraints, *(index for index in table.indexes if index.unique)]
        found |= {
            str(each.name): table
            for each in named
            if isinstance(each, CheckConstraint | UniqueConstraint | Index)
        }
    return found


def everywhere(connection: Connection) -> None:
    """A row in each table."""
    text = (
        EVERYWHERE
        if connection.dialect.name == "postgresql"
        else EVERYWHERE.replace("'ilka', '{}'", "'ilka', '[]'")
    )
    for statement in text.split(";"):
        sql(connection, statement)


def test_raw_sql_meets_every_check_and_every_unique_key(engine: Engine) -> None:
    """The error names the constraint, so that none stands in for another."""
    known = constraints()
    assert {*WRONG} == {*known}
    with engine.begin() as connection:
        everywhere(connection)
        for name, table in known.items():
            for change in WRONG[name]:
                problem = refusal(connection, f"UPDATE {table.name} SET {change}")
                unique = engine.dialect.name == "sqlite" and not name.endswith("_check")
                assert (table.name if unique else name) in problem, (name, change, problem)


def test_raw_sql_meets_every_reference_and_every_column_that_is_needed(engine: Engine) -> None:
    with engine.begin() as connection:
        everywhere(connection)
        sql(connection, "DELETE FROM agents WHERE id = 'tomasz'")
        for table in Base.metadata.sorted_tables:
            for column in table.columns:
                place = f'UPDATE {table.name} SET "{column.name}"'
                if not column.nullable:
                    assert "null" in refusal(connection, f"{place} = NULL").lower(), place
                if column.foreign_keys:
                    unknown = "nobody" if isinstance(column.type, Words) else uuid4().hex
                    assert "foreign key" in refusal(connection, f"{place} = '{unknown}'").lower(), place


def test_values_at_the_ends_of_their_ranges_are_taken(engine: Engine) -> None:
    with engine.begin() as connection:
        everywhere(connection)
        for table, changes in {
            "evaluation_runs": [
                f"status = 'completed', completed_at = {TIME}",
                f"status = 'failed', completed_at = {TIME}",
                "status = 'running', completed_at = NULL",
                f"window_start = {TIME}, window_end = {TIME}",
            ],
            "evaluation_scores": ["score = 0", "score = 9", "dimension = 'ideas_quantity', score = 1000000"],
            "correction_logs": [
                *(f"outcome = '{outcome}'" for outcome in get_args(Outcome)),
                "similarity_score = 0",
                "similarity_score = 1",
            ],
            "agent_evaluation_config": ["gate_fluency_threshold = 9", "max_correction_attempts = 0"],
        }.items():
            for change in changes:
                assert refusal(connection, f"UPDATE {table} SET {change}") == "", change


def test_times_are_aware_in_utc_and_naive_ones_are_refused(engine: Engine) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    with engine.begin() as connection:
        add_agent(connection)
        connection.execute(insert(Message).values(agent_id="ilka", text="Hello.", at=elsewhere))
        found: Any = connection.execute(select(Message.at)).scalar()
        assert found == NOW
        assert found.utcoffset() == timedelta(0)
        assert connection.execute(select(Message.text).where(Message.at >= elsewhere)).scalar() == "Hello."
    with pytest.raises(StatementError, match="expected a time with a zone"), engine.begin() as connection:
        connection.execute(
            insert(EvaluationRun).values(
                agent_id="ilka", dimensions=[], sample_size=0, window_start=NOW.replace(tzinfo=None)
            )
        )


def test_lists_and_mappings_come_back_as_they_were(engine: Engine) -> None:
    with engine.begin() as connection:
        add_agent(connection)
        usage = {"input_tokens": 3, "output_tokens": 5}
        connection.execute(
            insert(EvaluationRun).values(
                agent_id="ilka", dimensions=["fluency", "adherence"], sample_size=0, token_usage=usage
            )
        )
        found: Any = connection.execute(select(EvaluationRun.__table__)).mappings().one()
        assert found["dimensions"] == ["fluency", "adherence"]
        assert found["token_usage"] == usage
        connection.execute(EvaluationRun.__table__.update().values(token_usage=None))  # type: ignore[attr-defined]
        assert count(connection, "evaluation_runs WHERE token_usage IS NULL") == 1


@pytest.mark.lengthy
def test_a_new_store_has_the_tables_that_the_code_knows(bare_place: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    assert upgrade_store(bare_place) == (None, SCHEMA.newest)
    assert upgrade_store(bare_place) == (SCHEMA.newest, SCHEMA.newest)
    engine = open_store(bare_place, create=False)
    options: dict[str, Any] = {"version_table": SCHEMA.version_table, "compare_type": True}
    mine = {*Base.metadata.tables}

    def is_mine(name: str | None, kind: str, _: Any) -> bool:
        return kind != "table" or name in mine

    options["include_name"] = is_mine
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
        assert mine <= {*inspect(connection).get_table_names()}
    engine.dispose()


def test_each_connection_to_sqlite_has_the_pragmas(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "evaluation.db")
    first, second = engine.connect(), engine.connect()
    for connection in (first, second):
        for pragma, value in (("foreign_keys", 1), ("busy_timeout", 30_000), ("journal_mode", "wal")):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        connection.close()
    engine.dispose()
