"""The tables of the first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAMES = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
}
_JSON: Any = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_TEXTS: Any = sa.JSON().with_variant(postgresql.ARRAY(sa.Text()), "postgresql")
_Column = sa.Column[Any]


def _by_dialect(sqlite: str, other: str) -> sa.TextClause:
    return sa.text(f"({sqlite})" if op.get_bind().dialect.name == "sqlite" else other)


def _id() -> _Column:
    made = _by_dialect(
        "lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2) || "
        "substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || hex(randomblob(6)))",
        "gen_random_uuid()",
    )
    return sa.Column("id", sa.Uuid(), primary_key=True, server_default=made)


def _created_at(name: str = "created_at") -> _Column:
    # A colon before a letter would be a parameter.
    now = _by_dialect(r"strftime('%Y-%m-%d %H\:%M\:%f000', 'now')", "now()")
    return sa.Column(name, sa.DateTime(timezone=True), server_default=now, nullable=False)


def _time(name: str, *, null: bool = False) -> _Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=null)


def _text(name: str, default: str | None = None, *, null: bool = False) -> _Column:
    return sa.Column(name, sa.Text(), server_default=default, nullable=null)


def _json(name: str, *, null: bool = False) -> _Column:
    return sa.Column(name, _JSON, nullable=null)


def _number(name: str, default: float | None = None, *, null: bool = False) -> _Column:
    return sa.Column(name, sa.Double(), server_default=_literal(default), nullable=null)


def _count(name: str, default: int | None = None) -> _Column:
    return sa.Column(name, sa.Integer(), server_default=_literal(default), nullable=False)


def _literal(default: float | None) -> sa.TextClause | None:
    return None if default is None else sa.text(repr(default))


def _flag(name: str, default: bool | None = None, *, null: bool = False) -> _Column:
    value = None if default is None else sa.true() if default else sa.false()
    return sa.Column(name, sa.Boolean(), server_default=value, nullable=null)


def _agent(*, unique: bool = False) -> _Column:
    agent = sa.ForeignKey("agents.id", ondelete="CASCADE")
    return sa.Column("agent_id", sa.Text(), agent, unique=unique or None, nullable=False)


def _run() -> _Column:
    return sa.Column("run_id", sa.Uuid(), sa.ForeignKey("runs.id", ondelete="SET NULL"))


def _of(name: str, table: str) -> _Column:
    return sa.Column(name, sa.Uuid(), sa.ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=False)


def _check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


def _between(name: str, least: int, most: int) -> sa.CheckConstraint:
    return _check(name, f"{name} >= {least} AND {name} <= {most}")


def upgrade() -> None:
    tables = sa.MetaData(naming_convention=_NAMES)
    sa.Table(
        "agents",
        tables,
        sa.Column("id", sa.Text(), primary_key=True),
        _text("display_name"),
        _text("system_prompt", null=True),
        _text("kind", "agent"),
        _check("id", "id <> ''"),
        _check("kind", "kind IN ('agent', 'environment')"),
    )
    sa.Table(
        "calibrations",
        tables,
        _id(),
        _text("row"),
        _text("version"),
        _text("judge"),
        _count("n"),
        _json("data"),
        _created_at(),
        _check("n", "n >= 0"),
        sa.Index("calibrations_row_created_at", "row", "created_at"),
    )
    sa.Table("runs", tables, _id(), _text("thread_id", null=True), _created_at())
    dimensions = ("adherence", "consistency", "fluency", "suitability")
    sa.Table(
        "agent_evaluation_config",
        tables,
        _id(),
        _agent(unique=True),
        *(_flag(f"gate_{dimension}_enabled", False) for dimension in dimensions),
        *(_number(f"gate_{dimension}_threshold", 7.0) for dimension in dimensions),
        _flag("gate_similarity_enabled", False),
        _number("max_action_similarity", 0.6),
        _count("max_correction_attempts", 2),
        _flag("continue_on_failure", True),
        _count("minimum_required_qty_of_actions", 0),
        _flag("anti_convergence_enabled", False),
        _number("convergence_threshold", 0.6),
        _flag("variety_intervention_enabled", False),
        _count("variety_message_threshold", 7),
        _flag("repetition_suppression_enabled", False),
        _number("repetition_threshold", 0.3),
        _number("judge_timeout", 5.0),
        _flag("enable_regeneration", True),
        _flag("enable_direct_correction", False),
        _created_at("updated_at"),
        *(_between(f"gate_{dimension}_threshold", 0, 9) for dimension in dimensions),
        _between("max_action_similarity", 0, 1),
        _between("convergence_threshold", 0, 1),
        _between("repetition_threshold", 0, 1),
        _check("max_correction_attempts", "max_correction_attempts >= 0"),
        _check("minimum_required_qty_of_actions", "minimum_required_qty_of_actions >= 0"),
        _check("variety_message_threshold", "variety_message_threshold >= 0"),
        _check("judge_timeout", "judge_timeout > 0 AND judge_timeout <= 1e308"),
    )
    sa.Table(
        "correction_logs",
        tables,
        _id(),
        _agent(),
        _run(),
        _text("original_text"),
        _text("corrected_text", null=True),
        _json("dimension_scores", null=True),
        _number("similarity_score", null=True),
        _number("total_score", null=True),
        _count("attempt_number"),
        _text("outcome"),
        _json("token_usage", null=True),
        _created_at(),
        _flag("enforced", True),
        _text("problem", ""),
        _text("action_id", ""),
        _text("item_id", ""),
        _text("node", ""),
        _check("attempt_number", "attempt_number >= 1"),
        _between("similarity_score", 0, 1),
        _check(
            "outcome",
            "outcome IN ('passed', 'corrected', 'passed_after_retry', 'forced_through', "
            "'timeout_pass_through', 'rejected')",
        ),
        sa.Index("correction_logs_agent_id_created_at", "agent_id", "created_at"),
    )
    sa.Table(
        "correction_attempts",
        tables,
        _id(),
        _of("correction_log_id", "correction_logs"),
        _count("attempt_number"),
        _text("stage", "draft"),
        _text("text", null=True),
        _json("dimension_scores", null=True),
        _number("similarity_score", null=True),
        _number("total_score", null=True),
        _flag("passed"),
        _text("status"),
        _number("max_similarity", null=True),
        _text("similar_to", ""),
        _count("calls", 0),
        _json("token_usage", null=True),
        _check("attempt_number", "attempt_number >= 1"),
        _check("stage", "stage IN ('draft', 'rewrite')"),
        _between("similarity_score", 0, 1),
        _check(
            "status",
            "status IN ('judged', 'precondition_false', 'no_evidence', 'timeout', 'error', 'unchecked')",
        ),
        sa.Index(
            "correction_attempts_correction_log_id_attempt_number",
            "correction_log_id",
            "attempt_number",
            unique=True,
        ),
    )
    sa.Table(
        "evaluation_runs",
        tables,
        _id(),
        _agent(),
        _text("status", "pending"),
        sa.Column("dimensions", _TEXTS, nullable=False),
        _time("window_start", null=True),
        _time("window_end", null=True),
        _count("sample_size"),
        _number("overall_score", null=True),
        _flag("is_baseline", False),
        _json("token_usage", null=True),
        _created_at(),
        _time("completed_at", null=True),
        _text("suite", ""),
        _text("problem", ""),
        _check("status", "status IN ('pending', 'running', 'completed', 'failed')"),
        _check("sample_size", "sample_size >= 0"),
        _check("completed_at", "(completed_at IS NOT NULL) = (status IN ('completed', 'failed'))"),
        _check("window", "window_start <= window_end"),
        sa.Index("evaluation_runs_agent_id_created_at", "agent_id", "created_at"),
        sa.Index("evaluation_runs_suite_status", "suite", "status"),
    )
    sa.Table(
        "evaluation_scores",
        tables,
        _id(),
        _of("evaluation_run_id", "evaluation_runs"),
        _text("dimension"),
        _text("proposition_id"),
        _number("score"),
        _text("reasoning"),
        _text("context_snippet", null=True),
        _created_at(),
        _check(
            "dimension",
            "dimension IN ('adherence', 'consistency', 'fluency', 'convergence', 'ideas_quantity')",
        ),
        _check(
            "score",
            "score >= 0 AND score <= CASE WHEN dimension = 'ideas_quantity' THEN 1000000 ELSE 9 END",
        ),
        sa.Index("evaluation_scores_evaluation_run_id_dimension", "evaluation_run_id", "dimension"),
    )
    sa.Table(
        "intervention_logs",
        tables,
        _id(),
        _agent(),
        _text("channel", ""),
        _text("name"),
        *(_flag(name, null=True) for name in ("functional", "textual", "propositional")),
        _flag("fired"),
        _text("nudge", null=True),
        _json("token_usage", null=True),
        _created_at(),
        _text("problem", ""),
        sa.Index("intervention_logs_agent_id_created_at", "agent_id", "created_at"),
    )
    sa.Table(
        "messages",
        tables,
        _id(),
        _agent(),
        _run(),
        _text("channel", ""),
        _text("kind", "TALK"),
        _text("text"),
        _time("at"),
        sa.Index("messages_agent_id_at", "agent_id", "at"),
    )
    tables.create_all(op.get_bind(), checkfirst=False)
