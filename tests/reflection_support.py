"""A clock and turns for the tests of what evaluators remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage

from arbiter.memory.answers import CallBudget
from arbiter.memory.characters import Character
from arbiter.memory.context import EvalContext
from arbiter.memory.stores import MemoryStore

START = datetime(2025, 1, 1, tzinfo=UTC)


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def move(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


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
