"""Runs the migrations on the connection that the opener hands over."""

from __future__ import annotations

from alembic import context

config = context.config
context.configure(
    connection=config.attributes["connection"],
    version_table=config.attributes["version_table"],
    transaction_per_migration=False,
)
context.run_migrations()
