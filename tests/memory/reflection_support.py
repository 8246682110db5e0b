"""A clock and turns for the tests of what reflection remembers: a year earlier than elsewhere, and moved by minutes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import BaseMessage

from arbiter.memory._context import EvalContext
from arbiter.memory.stores import MemoryStore
from tests.memory import memory_support

START = datetime(2025, 1, 1, tzinfo=UTC)


class Clock(memory_support.Clock):
    def __init__(self) -> None:
        super().__init__(START)

    def move(self, minutes: float) -> None:
        self.pass_by(minutes=minutes)


def turn(
    messages: Sequence[BaseMessage] = (),
    *,
    store: MemoryStore | None = None,
    run: str = "run-1",
    **known: Any,
) -> EvalContext:
    """One turn of a room, as the context of an evaluator."""
    clock = known.pop("clock", None) or Clock()
    return memory_support.turn(store, messages, clock=clock, run_key=run, **known)
