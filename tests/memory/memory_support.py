"""Turns, and a clock that is set by hand, for tests of single evaluators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage

from arbiter.history import HistoryItem, RunHistory
from arbiter.history._record import Record
from arbiter.memory import Character, EvalContext, MemoryStore
from arbiter.memory._conversation import responded
from arbiter.memory._turns import newest_human
from arbiter.memory.answers import CallBudget

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


class Clock:
    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **amount: float) -> None:
        self.now += timedelta(**amount)


def turn(
    store: MemoryStore | None,
    messages: Sequence[BaseMessage] = (),
    *,
    clock: Clock | None = None,
    records: Sequence[Record] = (),
    **fields: Any,
) -> EvalContext:
    """A turn in which the node `reply` wrote the last of `messages`, after the node runs `records`."""
    clock = clock or Clock()
    own = Record("own", "reply", None, 99, "", clock.now.timestamp())
    own.status = "completed"
    given: dict[str, Any] = {
        "history": RunHistory([*records, own], {}),
        "item": HistoryItem(own),
        "instruction": None,
        "node": "reply",
        "state": {"messages": [*messages]},
        "messages": [*messages],
        "new_messages": [*messages][-1:],
        "message": newest_human(messages),
        "did_respond": responded([*messages][-1:]),
        "room_id": "room-1",
        "entity_id": "user-1",
        "agent_id": "agent",
        "entities": (),
        "is_private": False,
        "store": store,
        "model": None,
        "selector_model": None,
        "character": Character("Ava"),
        "conversation_length": 10,
        "context": None,
        "config": {},
        "clock": clock,
        "emit": _silent,
        "run_key": "run-1",
        "ended_at": clock.now,
        "budget": CallBudget(4),
    }
    return EvalContext(**{**given, **fields})


def _silent(chunk: Any) -> None:
    return None
