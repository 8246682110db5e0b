"""Stores, a clock and turns for the tests of what evaluators remember."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from psycopg import Connection, OperationalError, sql

from arbiter.memory.answers import CallBudget
from arbiter.memory.characters import Character
from arbiter.memory.context import EvalContext
from arbiter.memory.stores import MemoryStore

START = datetime(2025, 1, 1, tzinfo=UTC)
POSTGRES = "postgresql://127.0.0.1:5432/test"
STORES = ("memory", "sqlite", "postgres")


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def move(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


@contextmanager
def opened(kind: str) -> Generator[BaseStore]:
    """An empty store of that kind."""
    if kind == "memory":
        yield InMemoryStore()
    elif kind == "sqlite":
        with SqliteStore.from_conn_string(":memory:") as store:
            store.setup()
            yield store
    else:
        with _postgres() as store:
            yield store


@contextmanager
def _postgres() -> Generator[BaseStore]:
    """In a schema of its own, which is dropped afterwards."""
    schema = f"test_{uuid.uuid4().hex}"
    name = sql.Identifier(schema)
    try:
        connection = Connection.connect(POSTGRES, autocommit=True, connect_timeout=3)
    except OperationalError:
        pytest.skip("there is no PostgreSQL server at 127.0.0.1:5432")
    with connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        try:
            with PostgresStore.from_conn_string(f"{POSTGRES}?options=-csearch_path%3D{schema}") as store:
                store.setup()
                yield store
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))


def turn(
    messages: Sequence[BaseMessage] = (),
    *,
    store: MemoryStore | None = None,
    run: str = "run-1",
    **known: Any,
) -> EvalContext:
    """One turn of a room, as an evaluator is given it."""
    clock: Any = known.get("clock", lambda: START)
    options: Mapping[str, Any] = {
        "history": None,
        "item": None,
        "instruction": None,
        "node": "reply",
        "state": {"messages": messages},
        "messages": messages,
        "new_messages": messages[-1:],
        "message": None,
        "did_respond": True,
        "room_id": "room-1",
        "entity_id": "user-1",
        "agent_id": "agent",
        "entities": (),
        "is_private": False,
        "store": store,
        "model": None,
        "selector_model": None,
        "character": Character("Agent"),
        "conversation_length": 10,
        "context": None,
        "config": {},
        "clock": clock,
        "emit": print,
        "run_key": run,
        "ended_at": clock(),
        "budget": CallBudget(4),
    }
    return EvalContext(**{**options, **known})
