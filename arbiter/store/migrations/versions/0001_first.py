"""The tables of the first schema. An empty database gets those of the newest one at once."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
