"""The subjects that a thread had before its present one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "subjects",
        sa.Column(
            "thread", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.ForeignKey("threads.id"),
            autoincrement=False, nullable=False,
        ),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("thread", "subject"),
    )  # fmt: skip
    op.create_index("subjects_subject", "subjects", ["subject"])
    op.execute("UPDATE ledgers SET schema = 3")
