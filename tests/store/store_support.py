"""Stores for tests: where they are, and rows of raw SQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, create_engine, text

from arbiter._databases import url_of
from arbiter.store._opening import SCHEMA
from arbiter.store._schema import Base


def sql(connection: Connection, statement: str, **values: Any) -> Any:
    """The result of a raw statement."""
    return connection.execute(text(statement), values)


def add_agent(connection: Connection, id: str = "ilka") -> str:
    sql(connection, "INSERT INTO agents (id, display_name) VALUES (:id, 'Ilka')", id=id)
    return id


def without_tables(url: str) -> None:
    """Drop the tables of a store, and the record of its schema."""
    engine = create_engine(url_of(url, SCHEMA))
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {SCHEMA.version_table}")
    engine.dispose()
