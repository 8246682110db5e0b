"""The tables hold what they promise, to programs that write raw SQL as well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, inspect, select
from sqlalchemy.exc import IntegrityError, StatementError

from arbiter._databases import url_of
from arbiter.personas import GateConfig
from arbiter.personas._gated import Outcome
from arbiter.store._opening import SCHEMA, open_store, upgrade_store
from arbiter.store._schema import AgentConfig, Base, EvaluationRun, Message
from tests.store.store_support import add_agent, sql, without_tables

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


def refused(connection: Connection, statement: str, **values: Any) -> bool:
    """True if the statement meets a constraint; it then has no effect."""
    try:
        with connection.begin_nested():
            sql(connection, statement, **values)
    except IntegrityError:
        return True
    return False


def test_a_score_outside_of_its_scale_is_refused(engine: Engine) -> None:
    outside = [("fluency", score) for score in (12, -0.1, float("nan"), float("inf"))]
    outside += [("ideas_quantity", score) for score in (float("nan"), float("inf"), -1, 1_000_001)]
    with engine.begin() as connection:
        run = add_run(connection)
        for dimension, score in [*outside, ("charm", 5)]:
            assert refused(connection, SCORE, run=run, dimension=dimension, score=score), (dimension, score)
        for dimension, score in (("fluency", 9), ("fluency", 0), ("ideas_quantity", 12)):
            assert not refused(connection, SCORE, run=run, dimension=dimension, score=score)
        assert refused(connection, SCORE, run=uuid4().hex, dimension="fluency", score=5)
        assert count(connection, "evaluation_scores") == 3


def test_an_evaluation_that_contradicts_itself_is_refused(engine: Engine) -> None:
    time = "'2026-11-23 12:00:00'"
    with engine.begin() as connection:
        add_run(connection)
        for change in (
            "status = 'completed'",
            "status = 'failed'",
            f"completed_at = {time}",
            f"status = 'done', completed_at = {time}",
            "sample_size = -1",
            f"window_start = {time}, window_end = '2026-11-22 12:00:00'",
            "agent_id = 'unknown'",
        ):
            assert refused(connection, f"UPDATE evaluation_runs SET {change}"), change
        for change in (
            f"status = 'completed', completed_at = {time}",
            f"status = 'failed', completed_at = {time}",
            "status = 'running', completed_at = NULL",
            f"window_start = {time}, window_end = {time}",
        ):
            assert not refused(connection, f"UPDATE evaluation_runs SET {change}"), change


def test_an_evaluation_has_a_sample_size(engine: Engine) -> None:
    with engine.begin() as connection:
        add_agent(connection)
        listed = "[]" if connection.dialect.name == "sqlite" else ["fluency"]
        into = "INSERT INTO evaluation_runs (agent_id, dimensions) VALUES ('ilka', :listed)"
        assert refused(connection, into, listed=listed)


def test_a_correction_outside_of_its_ranges_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        add_agent(connection)
        for wrong in (
            {"attempt": 0},
            {"outcome": "gave_up"},
            {"similarity": 1.5},
            {"similarity": -0.5},
            {"run": uuid4().hex},
        ):
            assert refused(connection, CORRECTION, **{**PASSED, **wrong}), wrong
        for outcome in get_args(Outcome):
            right = {**PASSED, "outcome": outcome, "similarity": 1.0}
            assert not refused(connection, CORRECTION, **right), outcome


def test_a_setting_outside_of_its_range_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        add_agent(connection)
        sql(connection, "INSERT INTO agent_evaluation_config (agent_id) VALUES ('ilka')")
        for change in (
            "gate_fluency_threshold = 9.5",
            "max_action_similarity = 1.1",
            "repetition_threshold = -0.1",
            "max_correction_attempts = -1",
            "judge_timeout = 0",
        ):
            assert refused(connection, f"UPDATE agent_evaluation_config SET {change}"), change
        assert refused(connection, "INSERT INTO agent_evaluation_config (agent_id) VALUES ('ilka')")
        assert count(connection, "agent_evaluation_config") == 1


def test_an_agent_has_an_id_and_a_known_kind(engine: Engine) -> None:
    with engine.begin() as connection:
        for values in ("('', 'nobody', 'agent')", "('ilka', 'Ilka', 'robot')"):
            assert refused(connection, f"INSERT INTO agents (id, display_name, kind) VALUES {values}")


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


def _definitions(connection: Connection) -> list[Any]:
    """All tables, constraints, defaults and indexes, as the database describes them."""
    if connection.dialect.name == "sqlite":
        rows = sql(
            connection, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        ).all()
        return [
            (name, sorted(part.strip(" ,\t") for part in text.splitlines()))
            for name, text in rows
            if name != SCHEMA.version_table
        ]
    tables = tuple(Base.metadata.tables)
    columns = sql(
        connection,
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_name = ANY(:tables) ORDER BY 1, 2",
        tables=list(tables),
    ).all()
    constraints = sql(
        connection,
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid::regclass::text = ANY(:tables) ORDER BY 1, 2",
        tables=list(tables),
    ).all()
    indexes = sql(
        connection,
        "SELECT tablename, indexdef FROM pg_indexes WHERE tablename = ANY(:tables) ORDER BY 1, 2",
        tables=list(tables),
    ).all()
    return [*columns, *constraints, *indexes]


@pytest.mark.lengthy
def test_the_migrations_make_the_tables_that_the_code_knows(bare_place: str) -> None:
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
        migrated = _definitions(connection)
        assert mine <= {*inspect(connection).get_table_names()}
    engine.dispose()
    without_tables(bare_place)
    engine = create_engine(url_of(bare_place, SCHEMA))
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        assert _definitions(connection) == migrated
    engine.dispose()


def test_each_connection_to_sqlite_has_the_pragmas(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "evaluation.db")
    first, second = engine.connect(), engine.connect()
    for connection in (first, second):
        for pragma, value in (("foreign_keys", 1), ("busy_timeout", 30_000), ("journal_mode", "wal")):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        connection.close()
    engine.dispose()
