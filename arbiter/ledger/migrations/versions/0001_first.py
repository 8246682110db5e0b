"""The tables of the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "anchors",
        sa.Column("id", _Id, autoincrement=False, nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("root", sa.String(length=64), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("signature", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "constitutions",
        sa.Column("id", _Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "cursors",
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("receiver"),
    )
    op.create_table(
        "graphs",
        sa.Column("id", _Id, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "ledgers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("schema", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_entry", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "rollups",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
        sa.Column("least", sa.Float(), nullable=True),
        sa.Column("most", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("hour", "kind", "name", "value"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "threads",
        sa.Column("id", _Id, nullable=False),
        sa.Column("ref", sa.String(length=36), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column("graph", sa.Text(), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("denied", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("asked", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("head_seq", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("head_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("erased_at", sa.BigInteger(), nullable=True),
        sa.Column("pruned_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("ref"),
        sa.UniqueConstraint("thread_id"),
    )
    op.create_index("threads_last_at", "threads", ["last_at"])
    op.create_index("threads_subject", "threads", ["subject"])
    op.create_table(
        "anchor_heads",
        sa.Column("anchor", _Id, autoincrement=False, nullable=False),
        sa.Column("thread", _Id, autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["anchor"], ["anchors.id"]),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"]),
        sa.PrimaryKeyConstraint("anchor", "thread"),
    )
    op.create_index("anchor_heads_thread", "anchor_heads", ["thread", "anchor"])
    op.create_table(
        "entries",
        sa.Column("id", _Id, autoincrement=False, nullable=False),
        sa.Column("thread", _Id, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("execution", sa.String(length=36), nullable=True),
        sa.Column("run", sa.String(length=36), nullable=True),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("instruction", sa.Text(), nullable=True),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("took", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.String(length=8), nullable=True),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("trace", sa.String(length=32), nullable=True),
        sa.Column("span", sa.String(length=16), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sa.UniqueConstraint("thread", "seq", name="entries_thread_seq"),
    )
    op.create_index("entries_at", "entries", ["at"])
    op.create_index("entries_instruction", "entries", ["instruction", "at"])
    op.create_index("entries_node", "entries", ["node", "at"])
    _partial_index("entries_policy", ["policy", "at"], "policy IS NOT NULL")
    _partial_index("entries_status", ["status", "at"], "status IS NOT NULL AND status <> 'completed'")
    op.create_index("entries_task", "entries", ["thread", "task"])
    _partial_index("entries_verdict", ["at"], "verdict IS NOT NULL AND verdict <> 'allow'")
    op.create_table(
        "contents",
        sa.Column("entry", _Id, autoincrement=False, nullable=False),
        sa.Column("salt", sa.LargeBinary(length=16), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["entry"], ["entries.id"]),
        sa.PrimaryKeyConstraint("entry"),
    )
    op.create_table(
        "scores",
        sa.Column("entry", _Id, autoincrement=False, nullable=False),
        sa.Column("evaluator", sa.Text(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("read", sa.Boolean(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["entry"], ["entries.id"]),
        sa.PrimaryKeyConstraint("entry", "evaluator"),
        sqlite_with_rowid=False,
    )
    op.create_index("scores_at", "scores", ["evaluator", "at"])


def _partial_index(name: str, columns: list[str], where: str) -> None:
    """An index of entries, of those alone for which the condition holds."""
    op.create_index(name, "entries", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
