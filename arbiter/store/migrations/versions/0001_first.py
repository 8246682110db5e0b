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

_DOUBLE = sa.Double[float]()
_JSON: Any = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_TEXTS: Any = sa.JSON().with_variant(postgresql.ARRAY(sa.Text()), "postgresql")


def _by_dialect(sqlite: str, other: str) -> sa.TextClause:
    return sa.text(f"({sqlite})" if op.get_bind().dialect.name == "sqlite" else other)


def _uuid() -> sa.TextClause:
    return _by_dialect(
        "lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2) || "
        "substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || hex(randomblob(6)))",
        "gen_random_uuid()",
    )


def _now() -> sa.TextClause:
    # A colon before a letter would be a parameter.
    return _by_dialect(r"strftime('%Y-%m-%d %H\:%M\:%f000', 'now')", "now()")


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("system_prompt", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), server_default="agent", nullable=False),
        sa.CheckConstraint("id <> ''", name=op.f("agents_id_check")),
        sa.CheckConstraint("kind IN ('agent', 'environment')", name=op.f("agents_kind_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("agents_pkey")),
    )
    op.create_table(
        "calibrations",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("row", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.CheckConstraint("n >= 0", name=op.f("calibrations_n_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("calibrations_pkey")),
    )
    op.create_index("calibrations_row_created_at", "calibrations", ["row", "created_at"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("runs_pkey")),
    )
    op.create_table(
        "agent_evaluation_config",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("gate_adherence_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gate_consistency_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gate_fluency_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gate_suitability_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gate_adherence_threshold", _DOUBLE, server_default=sa.text("7.0"), nullable=False),
        sa.Column("gate_consistency_threshold", _DOUBLE, server_default=sa.text("7.0"), nullable=False),
        sa.Column("gate_fluency_threshold", _DOUBLE, server_default=sa.text("7.0"), nullable=False),
        sa.Column("gate_suitability_threshold", _DOUBLE, server_default=sa.text("7.0"), nullable=False),
        sa.Column("gate_similarity_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("max_action_similarity", _DOUBLE, server_default=sa.text("0.6"), nullable=False),
        sa.Column("max_correction_attempts", sa.Integer(), server_default=sa.text("2"), nullable=False),
        sa.Column("continue_on_failure", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column(
            "minimum_required_qty_of_actions", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("anti_convergence_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("convergence_threshold", _DOUBLE, server_default=sa.text("0.6"), nullable=False),
        sa.Column("variety_intervention_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("variety_message_threshold", sa.Integer(), server_default=sa.text("7"), nullable=False),
        sa.Column("repetition_suppression_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("repetition_threshold", _DOUBLE, server_default=sa.text("0.3"), nullable=False),
        sa.Column("judge_timeout", _DOUBLE, server_default=sa.text("5.0"), nullable=False),
        sa.Column("enable_regeneration", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("enable_direct_correction", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.CheckConstraint(
            "convergence_threshold >= 0 AND convergence_threshold <= 1",
            name=op.f("agent_evaluation_config_convergence_threshold_check"),
        ),
        sa.CheckConstraint(
            "gate_adherence_threshold >= 0 AND gate_adherence_threshold <= 9",
            name=op.f("agent_evaluation_config_gate_adherence_threshold_check"),
        ),
        sa.CheckConstraint(
            "gate_consistency_threshold >= 0 AND gate_consistency_threshold <= 9",
            name=op.f("agent_evaluation_config_gate_consistency_threshold_check"),
        ),
        sa.CheckConstraint(
            "gate_fluency_threshold >= 0 AND gate_fluency_threshold <= 9",
            name=op.f("agent_evaluation_config_gate_fluency_threshold_check"),
        ),
        sa.CheckConstraint(
            "gate_suitability_threshold >= 0 AND gate_suitability_threshold <= 9",
            name=op.f("agent_evaluation_config_gate_suitability_threshold_check"),
        ),
        sa.CheckConstraint(
            "judge_timeout > 0 AND judge_timeout <= 1e308",
            name=op.f("agent_evaluation_config_judge_timeout_check"),
        ),
        sa.CheckConstraint(
            "max_action_similarity >= 0 AND max_action_similarity <= 1",
            name=op.f("agent_evaluation_config_max_action_similarity_check"),
        ),
        sa.CheckConstraint(
            "max_correction_attempts >= 0", name=op.f("agent_evaluation_config_max_correction_attempts_check")
        ),
        sa.CheckConstraint(
            "minimum_required_qty_of_actions >= 0",
            name=op.f("agent_evaluation_config_minimum_required_qty_of_actions_check"),
        ),
        sa.CheckConstraint(
            "repetition_threshold >= 0 AND repetition_threshold <= 1",
            name=op.f("agent_evaluation_config_repetition_threshold_check"),
        ),
        sa.CheckConstraint(
            "variety_message_threshold >= 0",
            name=op.f("agent_evaluation_config_variety_message_threshold_check"),
        ),
        sa.ForeignKeyConstraint(
            ["agent_id"],
            ["agents.id"],
            name=op.f("agent_evaluation_config_agent_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("agent_evaluation_config_pkey")),
        sa.UniqueConstraint("agent_id", name=op.f("agent_evaluation_config_agent_id_key")),
    )
    op.create_table(
        "correction_logs",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("original_text", sa.Text(), nullable=False),
        sa.Column("corrected_text", sa.Text(), nullable=True),
        sa.Column("dimension_scores", _JSON, nullable=True),
        sa.Column("similarity_score", _DOUBLE, nullable=True),
        sa.Column("total_score", _DOUBLE, nullable=True),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("token_usage", _JSON, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.Column("enforced", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.Column("action_id", sa.Text(), server_default="", nullable=False),
        sa.Column("item_id", sa.Text(), server_default="", nullable=False),
        sa.Column("node", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            "outcome IN ('passed', 'corrected', 'passed_after_retry', 'forced_through', "
            "'timeout_pass_through', 'rejected')",
            name=op.f("correction_logs_outcome_check"),
        ),
        sa.CheckConstraint("attempt_number >= 1", name=op.f("correction_logs_attempt_number_check")),
        sa.CheckConstraint(
            "similarity_score >= 0 AND similarity_score <= 1",
            name=op.f("correction_logs_similarity_score_check"),
        ),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("correction_logs_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("correction_logs_run_id_fkey"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("correction_logs_pkey")),
    )
    op.create_index(
        "correction_logs_agent_id_created_at", "correction_logs", ["agent_id", "created_at"], unique=False
    )
    op.create_table(
        "evaluation_runs",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("dimensions", _TEXTS, nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=True),
        sa.Column("window_end", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sample_size", sa.Integer(), nullable=False),
        sa.Column("overall_score", _DOUBLE, nullable=True),
        sa.Column("is_baseline", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("token_usage", _JSON, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("suite", sa.Text(), server_default="", nullable=False),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('completed', 'failed'))",
            name=op.f("evaluation_runs_completed_at_check"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'completed', 'failed')",
            name=op.f("evaluation_runs_status_check"),
        ),
        sa.CheckConstraint("sample_size >= 0", name=op.f("evaluation_runs_sample_size_check")),
        sa.CheckConstraint("window_start <= window_end", name=op.f("evaluation_runs_window_check")),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("evaluation_runs_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("evaluation_runs_pkey")),
    )
    op.create_index(
        "evaluation_runs_agent_id_created_at", "evaluation_runs", ["agent_id", "created_at"], unique=False
    )
    op.create_index("evaluation_runs_suite_status", "evaluation_runs", ["suite", "status"], unique=False)
    op.create_table(
        "intervention_logs",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), server_default="", nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("functional", sa.Boolean(), nullable=True),
        sa.Column("textual", sa.Boolean(), nullable=True),
        sa.Column("propositional", sa.Boolean(), nullable=True),
        sa.Column("fired", sa.Boolean(), nullable=False),
        sa.Column("nudge", sa.Text(), nullable=True),
        sa.Column("token_usage", _JSON, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("intervention_logs_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("intervention_logs_pkey")),
    )
    op.create_index(
        "intervention_logs_agent_id_created_at", "intervention_logs", ["agent_id", "created_at"], unique=False
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("channel", sa.Text(), server_default="", nullable=False),
        sa.Column("kind", sa.Text(), server_default="TALK", nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["agents.id"], name=op.f("messages_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("messages_run_id_fkey"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("messages_pkey")),
    )
    op.create_index("messages_agent_id_at", "messages", ["agent_id", "at"], unique=False)
    op.create_table(
        "correction_attempts",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("correction_log_id", sa.Uuid(), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Text(), server_default="draft", nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("dimension_scores", _JSON, nullable=True),
        sa.Column("similarity_score", _DOUBLE, nullable=True),
        sa.Column("total_score", _DOUBLE, nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("max_similarity", _DOUBLE, nullable=True),
        sa.Column("similar_to", sa.Text(), server_default="", nullable=False),
        sa.Column("calls", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("token_usage", _JSON, nullable=True),
        sa.CheckConstraint("stage IN ('draft', 'rewrite')", name=op.f("correction_attempts_stage_check")),
        sa.CheckConstraint(
            "status IN ('judged', 'precondition_false', 'no_evidence', 'timeout', 'error', 'unchecked')",
            name=op.f("correction_attempts_status_check"),
        ),
        sa.CheckConstraint("attempt_number >= 1", name=op.f("correction_attempts_attempt_number_check")),
        sa.CheckConstraint(
            "similarity_score >= 0 AND similarity_score <= 1",
            name=op.f("correction_attempts_similarity_score_check"),
        ),
        sa.ForeignKeyConstraint(
            ["correction_log_id"],
            ["correction_logs.id"],
            name=op.f("correction_attempts_correction_log_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("correction_attempts_pkey")),
    )
    op.create_index(
        "correction_attempts_correction_log_id_attempt_number",
        "correction_attempts",
        ["correction_log_id", "attempt_number"],
        unique=True,
    )
    op.create_table(
        "evaluation_scores",
        sa.Column("id", sa.Uuid(), server_default=_uuid(), nullable=False),
        sa.Column("evaluation_run_id", sa.Uuid(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("proposition_id", sa.Text(), nullable=False),
        sa.Column("score", _DOUBLE, nullable=False),
        sa.Column("reasoning", sa.Text(), nullable=False),
        sa.Column("context_snippet", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_now(), nullable=False),
        sa.CheckConstraint(
            "dimension IN ('adherence', 'consistency', 'fluency', 'convergence', 'ideas_quantity')",
            name=op.f("evaluation_scores_dimension_check"),
        ),
        sa.CheckConstraint(
            "score >= 0 AND score <= CASE WHEN dimension = 'ideas_quantity' THEN 1000000 ELSE 9 END",
            name=op.f("evaluation_scores_score_check"),
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_run_id"],
            ["evaluation_runs.id"],
            name=op.f("evaluation_scores_evaluation_run_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("evaluation_scores_pkey")),
    )
    op.create_index(
        "evaluation_scores_evaluation_run_id_dimension",
        "evaluation_scores",
        ["evaluation_run_id", "dimension"],
        unique=False,
    )
