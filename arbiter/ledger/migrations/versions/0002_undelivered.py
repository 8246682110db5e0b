"""Scores that a receiver refused, or that are sent again later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "undelivered",
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("entry", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("evaluator", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("receiver", "entry", "evaluator"),
    )
    op.execute("UPDATE ledgers SET schema = 2")
