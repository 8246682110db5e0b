"""The tables of the evaluation store, one definition for SQLite and PostgreSQL.

    agents ─┬─▶ evaluation_runs ─▶ evaluation_scores
            ├─▶ correction_logs ─▶ correction_attempts        runs (of graphs) ─▶ correction_logs, messages
            ├─▶ agent_evaluation_config
            ├─▶ intervention_logs
            └─▶ messages                                      calibrations stand alone

Deleting an agent deletes all that belongs to it; deleting a run sets its references to NULL. Every default is
one of the database too, so that rows of other programs get it. `migrations/` creates and changes these tables;
a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Uuid,
    false,
    text,
    true,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column

from arbiter._values.parameters import Param, declared_in
from arbiter.personas import GateConfig
from arbiter.store._types import Json, NewUuid, Now, Texts, Time, Words

NAMES = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
}
DIMENSIONS = ("adherence", "consistency", "fluency", "convergence", "ideas_quantity")
IDEAS_MOST = 1_000_000
OUTCOMES = ("passed", "corrected", "passed_after_retry", "forced_through", "timeout_pass_through", "rejected")


class Base(DeclarativeBase):
    """The declarative base of the store's tables."""

    metadata = MetaData(naming_convention=NAMES)


def _id() -> MappedColumn[UUID]:
    return mapped_column(Uuid(), primary_key=True, default=uuid4, server_default=NewUuid())


def _time() -> MappedColumn[datetime]:
    return mapped_column(Time(), server_default=Now())


def _agent(**options: Any) -> MappedColumn[str]:
    return mapped_column(Words(), ForeignKey("agents.id", ondelete="CASCADE"), **options)


def _run() -> MappedColumn[UUID | None]:
    return mapped_column(Uuid(), ForeignKey("runs.id", ondelete="SET NULL"))


def _switch(value: bool) -> MappedColumn[bool]:
    return mapped_column(
        Boolean(), nullable=False, default=value, server_default=true() if value else false()
    )


def _number(value: float) -> MappedColumn[float]:
    return mapped_column(Double(), nullable=False, default=value, server_default=text(repr(value)))


def _count(value: int) -> MappedColumn[int]:
    return mapped_column(Integer(), nullable=False, default=value, server_default=text(str(value)))


def _words(value: str = "") -> MappedColumn[str]:
    return mapped_column(Words(), default=value, server_default=value)


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _between(column: str, least: float, most: float) -> CheckConstraint:
    # NaN is above every number in PostgreSQL.
    return CheckConstraint(f"{column} >= {least:g} AND {column} <= {most:g}", name=column)


def _least(column: str, least: int) -> CheckConstraint:
    return CheckConstraint(f"{column} >= {least}", name=column)


class Agent(Base):
    """An agent, or an environment: a channel whose conversation is scored as a whole."""

    __tablename__ = "agents"
    __table_args__ = (_one_of("kind", "agent", "environment"), CheckConstraint("id <> ''", name="id"))

    id: Mapped[str] = mapped_column(Words(), primary_key=True)
    display_name: Mapped[str] = mapped_column(Words())
    system_prompt: Mapped[str | None] = mapped_column(Words())
    kind: Mapped[str] = _words("agent")


class Run(Base):
    """A run of a graph."""

    __tablename__ = "runs"

    id: Mapped[UUID] = _id()
    thread_id: Mapped[str | None] = mapped_column(Words())
    created_at: Mapped[datetime] = _time()


class EvaluationRun(Base):
    """One evaluation of an agent: `dimensions` of a conversation, scored together."""

    __tablename__ = "evaluation_runs"
    __table_args__ = (
        _one_of("status", "pending", "running", "completed", "failed"),
        _least("sample_size", 0),
        CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('completed', 'failed'))", name="completed_at"
        ),
        CheckConstraint("window_start <= window_end", name="window"),
        Index("evaluation_runs_agent_id_created_at", "agent_id", "created_at"),
        Index("evaluation_runs_suite_status", "suite", "status"),
    )

    id: Mapped[UUID] = _id()
    agent_id: Mapped[str] = _agent()
    status: Mapped[str] = _words("pending")
    dimensions: Mapped[list[str]] = mapped_column(Texts)
    window_start: Mapped[datetime | None] = mapped_column(Time())
    window_end: Mapped[datetime | None] = mapped_column(Time())
    sample_size: Mapped[int] = mapped_column(Integer())
    overall_score: Mapped[float | None] = mapped_column(Double())
    is_baseline: Mapped[bool] = _switch(False)
    token_usage: Mapped[dict[str, Any] | None] = mapped_column(Json())
    created_at: Mapped[datetime] = _time()
    completed_at: Mapped[datetime | None] = mapped_column(Time())
    suite: Mapped[str] = _words()
    problem: Mapped[str] = _words()


class EvaluationScore(Base):
    """The score of one proposition in one evaluation."""

    __tablename__ = "evaluation_scores"
    __table_args__ = (
        _one_of("dimension", *DIMENSIONS),
        CheckConstraint(
            f"score >= 0 AND score <= CASE WHEN dimension = 'ideas_quantity' THEN {IDEAS_MOST} ELSE 9 END",
            name="score",
        ),
        Index("evaluation_scores_evaluation_run_id_dimension", "evaluation_run_id", "dimension"),
    )

    id: Mapped[UUID] = _id()
    evaluation_run_id: Mapped[UUID] = mapped_column(
        Uuid(), ForeignKey("evaluation_runs.id", ondelete="CASCADE")
    )
    dimension: Mapped[str] = mapped_column(Words())
    proposition_id: Mapped[str] = mapped_column(Words())
    score: Mapped[float] = mapped_column(Double())
    reasoning: Mapped[str] = mapped_column(Words())
    context_snippet: Mapped[str | None] = mapped_column(Words())
    created_at: Mapped[datetime] = _time()


class CorrectionLog(Base):
    """One action that went through a gate."""

    __tablename__ = "correction_logs"
    __table_args__ = (
        _least("attempt_number", 1),
        _between("similarity_score", 0, 1),
        _one_of("outcome", *OUTCOMES),
        Index("correction_logs_agent_id_created_at", "agent_id", "created_at"),
    )

    id: Mapped[UUID] = _id()
    agent_id: Mapped[str] = _agent()
    run_id: Mapped[UUID | None] = _run()
    original_text: Mapped[str] = mapped_column(Words())
    corrected_text: Mapped[str | None] = mapped_column(Words())
    dimension_scores: Mapped[dict[str, Any] | None] = mapped_column(Json())
    similarity_score: Mapped[float | None] = mapped_column(Double())
    total_score: Mapped[float | None] = mapped_column(Double())
    attempt_number: Mapped[int] = mapped_column(Integer())
    outcome: Mapped[str] = mapped_column(Words())
    token_usage: Mapped[dict[str, Any] | None] = mapped_column(Json())
    created_at: Mapped[datetime] = _time()
    enforced: Mapped[bool] = _switch(True)
    problem: Mapped[str] = _words()
    action_id: Mapped[str] = _words()
    item_id: Mapped[str] = _words()
    node: Mapped[str] = _words()


class CorrectionAttempt(Base):
    """One draft of a gated action."""

    __tablename__ = "correction_attempts"
    __table_args__ = (
        _least("attempt_number", 1),
        _one_of("stage", "draft", "rewrite"),
        _between("similarity_score", 0, 1),
        _one_of("status", "judged", "precondition_false", "no_evidence", "timeout", "error", "unchecked"),
        Index(
            "correction_attempts_correction_log_id_attempt_number",
            "correction_log_id",
            "attempt_number",
            unique=True,
        ),
    )

    id: Mapped[UUID] = _id()
    correction_log_id: Mapped[UUID] = mapped_column(
        Uuid(), ForeignKey("correction_logs.id", ondelete="CASCADE")
    )
    attempt_number: Mapped[int] = mapped_column(Integer())
    stage: Mapped[str] = _words("draft")
    text: Mapped[str | None] = mapped_column(Words())
    dimension_scores: Mapped[dict[str, Any] | None] = mapped_column(Json())
    similarity_score: Mapped[float | None] = mapped_column(Double())
    total_score: Mapped[float | None] = mapped_column(Double())
    passed: Mapped[bool] = mapped_column(Boolean())
    status: Mapped[str] = mapped_column(Words())
    max_similarity: Mapped[float | None] = mapped_column(Double())
    similar_to: Mapped[str] = _words()
    calls: Mapped[int] = _count(0)
    token_usage: Mapped[dict[str, Any] | None] = mapped_column(Json())


def _bounds(column: str, param: Param) -> list[CheckConstraint]:
    if param.gt is not None:
        return [CheckConstraint(f"{column} > {param.gt:g} AND {column} <= 1e308", name=column)]
    if param.ge is None:
        return []
    return [_least(column, int(param.ge)) if param.le is None else _between(column, param.ge, param.le)]


class AgentConfig(Base):
    """The corrections of one agent, with a column for each setting of `GateConfig`. An agent without a row has all
    defaults."""

    __tablename__ = "agent_evaluation_config"
    __table_args__ = tuple(
        check for name, _, param in declared_in(GateConfig) for check in _bounds(name, param)
    )

    id: Mapped[UUID] = _id()
    agent_id: Mapped[str] = _agent(unique=True)
    updated_at: Mapped[datetime] = _time()


_OF_TYPE: Mapping[type, Callable[[Any], MappedColumn[Any]]] = {bool: _switch, int: _count, float: _number}
for _setting in fields(GateConfig):
    _default: Any = _setting.default
    setattr(AgentConfig, _setting.name, _OF_TYPE[type(_default)](_default))


class InterventionLog(Base):
    """One evaluation of an intervention, for one agent. Each condition is NULL if it was not asked."""

    __tablename__ = "intervention_logs"
    __table_args__ = (Index("intervention_logs_agent_id_created_at", "agent_id", "created_at"),)

    id: Mapped[UUID] = _id()
    agent_id: Mapped[str] = _agent()
    channel: Mapped[str] = _words()
    name: Mapped[str] = mapped_column(Words())
    functional: Mapped[bool | None] = mapped_column(Boolean())
    textual: Mapped[bool | None] = mapped_column(Boolean())
    propositional: Mapped[bool | None] = mapped_column(Boolean())
    fired: Mapped[bool] = mapped_column(Boolean())
    nudge: Mapped[str | None] = mapped_column(Words())
    token_usage: Mapped[dict[str, Any] | None] = mapped_column(Json())
    created_at: Mapped[datetime] = _time()
    problem: Mapped[str] = _words()


class Message(Base):
    """One message of an agent."""

    __tablename__ = "messages"
    __table_args__ = (Index("messages_agent_id_at", "agent_id", "at"),)

    id: Mapped[UUID] = _id()
    agent_id: Mapped[str] = _agent()
    run_id: Mapped[UUID | None] = _run()
    channel: Mapped[str] = _words()
    kind: Mapped[str] = _words("TALK")
    text: Mapped[str] = mapped_column(Words())
    at: Mapped[datetime] = mapped_column(Time())


class CalibrationRow(Base):
    """A judge compared with people's labels: for which row and version, and all numbers in `data`."""

    __tablename__ = "calibrations"
    __table_args__ = (_least("n", 0), Index("calibrations_row_created_at", "row", "created_at"))

    id: Mapped[UUID] = _id()
    row: Mapped[str] = mapped_column(Words())
    version: Mapped[str] = mapped_column(Words())
    judge: Mapped[str] = mapped_column(Words())
    n: Mapped[int] = mapped_column(Integer())
    data: Mapped[dict[str, Any]] = mapped_column(Json())
    created_at: Mapped[datetime] = _time()
