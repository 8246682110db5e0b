"""How far an evaluator has read a room, and when it may try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from langchain_core.messages import BaseMessage

from arbiter.memory.records import Record
from arbiter.memory.stores import MemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor(Record):
    """`last_id` is the newest message that was in a prompt, `tail_ids` the last 64. After failures nothing is tried
    before `next_try_at`."""

    _times = ("next_try_at", "updated_at")
    _tuples = ("tail_ids",)

    last_id: str | None = None
    tail_ids: tuple[str, ...] = ()
    processed_total: int = 0
    failures: int = 0
    next_try_at: datetime | None = None
    updated_at: datetime | None = None


class Cursors:
    """The cursor of one evaluator in one room."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        agent_id: str,
        room_id: str,
        evaluator: str,
        clock: Callable[[], datetime],
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.room_id = room_id
        self.evaluator = evaluator
        self.clock = clock

    async def read(self) -> Cursor:
        raise NotImplementedError

    async def waits(self) -> bool:
        """Whether it is too early to try again after a failure."""
        raise NotImplementedError

    async def unprocessed(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Of all messages, oldest first, the human and AI messages with text that are newer than the cursor, also when
        older ones have been trimmed from the list."""
        raise NotImplementedError

    async def advance(self, prompted: Sequence[BaseMessage]) -> None:
        """Those were in a prompt that was answered: go on after the newest. Clears failures."""
        raise NotImplementedError

    async def fail(self, prompted: Sequence[BaseMessage]) -> bool:
        """The model gave no answer: wait min(2^failures, 64) minutes. After three failures the window is skipped, that
        is, the cursor goes on; True then."""
        raise NotImplementedError
