"""How far an evaluator has read a room, and when it may try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from langchain_core.messages import BaseMessage

from arbiter.memory.conversation import counts
from arbiter.memory.records import Record
from arbiter.memory.stores import MemoryStore, Value, namespace

TAIL = 64
"""How many of the messages that were read last are known by their ids."""
MAX_WAIT_MINUTES = 64
FAILURES_PER_WINDOW = 3
"""How often the same stretch of a conversation is tried before it is passed over."""
OUTAGES_PER_WINDOW = 8
"""The same where a model or a store raised: with the waits between them some three hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor(Record):
    """`last_id` is the newest message that was in a prompt, `tail_ids` the last 64. After failures nothing is tried
    before `next_try_at`. `failures` counts those since the last answer, also over windows that were passed over;
    `turn_ended_at` is the end of the turn that moved the cursor last."""

    _times = ("next_try_at", "updated_at", "turn_ended_at")
    _tuples = ("tail_ids",)

    last_id: str | None = None
    tail_ids: tuple[str, ...] = ()
    processed_total: int = 0
    failures: int = 0
    next_try_at: datetime | None = None
    updated_at: datetime | None = None
    turn_ended_at: datetime | None = None


class Cursors:
    """The cursor of one evaluator in one room.

    `ended_at` is when the turn ended that the caller works on: where the ids of its messages do not tell, a turn that
    ended before the one which moved the cursor does not move it.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        agent_id: str,
        room_id: str,
        evaluator: str,
        clock: Callable[[], datetime],
        ended_at: datetime | None = None,
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.room_id = room_id
        self.evaluator = evaluator
        self.clock = clock
        self.ended_at = ended_at

    async def read(self) -> Cursor:
        return _cursor(await self.store.aget(self._namespace, self.evaluator))

    async def waits(self) -> bool:
        """Whether it is too early to try again after a failure."""
        cursor = await self.read()
        return cursor.next_try_at is not None and self.clock() < cursor.next_try_at

    async def unprocessed(
        self, messages: Sequence[BaseMessage], *, limit: int | None = None
    ) -> list[BaseMessage]:
        """Of all messages, oldest first, the human and AI messages with text that are newer than the cursor, also when
        older ones have been trimmed from the list; with `limit` the newest so many.

        Looks from the end, and no further than it must. Where nothing is left of what was read, all are new.
        """
        return newer(messages, await self.read(), limit=limit)

    async def advance(self, prompted: Sequence[BaseMessage]) -> None:
        """Those were in a prompt that was answered: go on after the newest. Clears failures. Never goes back, and the
        same messages once more change nothing."""

        def change(value: Value | None) -> Value | None:
            cursor = _cursor(value)
            moved = self._moved(cursor, prompted)
            if moved is cursor and not cursor.failures and value is not None:
                return value
            return replace(moved, failures=0, next_try_at=None, updated_at=self.clock()).to_value()

        await self.store.aupdate(self._namespace, self.evaluator, change)

    async def fail(self, prompted: Sequence[BaseMessage], *, raised: bool = False) -> bool:
        """The model gave no answer that can be used: wait min(2^failures, 64) minutes. After three failures the window
        is skipped, that is, the cursor goes on without waiting; True then. When a model `raised`, because it is out
        of order as a rule and not because of these messages, that takes eight. What a later turn has read already
        cannot fail any more."""
        skipped = False
        most = OUTAGES_PER_WINDOW if raised else FAILURES_PER_WINDOW

        def change(value: Value | None) -> Value | None:
            nonlocal skipped
            skipped = False
            cursor = _cursor(value)
            if not newer(prompted, cursor):
                return value
            now = self.clock()
            failures = cursor.failures + 1
            skipped = failures % most == 0
            minutes = min(2 ** min(failures, 10), MAX_WAIT_MINUTES)
            if skipped:
                cursor = self._moved(cursor, prompted)
            return replace(
                cursor,
                failures=failures,
                next_try_at=None if skipped else now + timedelta(minutes=minutes),
                updated_at=now,
            ).to_value()

        await self.store.aupdate(self._namespace, self.evaluator, change)
        return skipped

    @property
    def _namespace(self) -> tuple[str, ...]:
        return namespace(self.agent_id, "cursors", self.room_id)

    def _moved(self, cursor: Cursor, prompted: Sequence[BaseMessage]) -> Cursor:
        """The cursor after those; the very same if it has them behind it."""
        fresh = newer(prompted, cursor)
        if not fresh:
            return cursor
        ids = tuple(dict.fromkeys(message.id for message in fresh if message.id))
        total = cursor.processed_total + len(fresh)
        if self._is_late(cursor, prompted):
            return replace(cursor, tail_ids=(*ids, *cursor.tail_ids)[-TAIL:], processed_total=total)
        return replace(
            cursor,
            last_id=ids[-1] if ids else cursor.last_id,
            tail_ids=(*cursor.tail_ids, *ids)[-TAIL:],
            processed_total=total,
            turn_ended_at=self.ended_at,
        )

    def _is_late(self, cursor: Cursor, prompted: Sequence[BaseMessage]) -> bool:
        """Whether the cursor was moved by a turn after this one. What begins with the cursor's message is not late."""
        if self.ended_at is None or cursor.turn_ended_at is None or self.ended_at >= cursor.turn_ended_at:
            return False
        return all(message.id != cursor.last_id for message in prompted)


def newer(messages: Sequence[BaseMessage], cursor: Cursor, *, limit: int | None = None) -> list[BaseMessage]:
    """Of `messages`, oldest first, those that count and are newer than the cursor; see `Cursors.unprocessed`.

    If the newest message that was read is gone, the newest one that is still known takes its place. A message that
    was read, removed and added again at the end is not new.
    """
    rank = {id: number for number, id in enumerate(cursor.tail_ids)}
    best = -1
    found: list[BaseMessage] = []
    kept = 0
    left: int | None = None
    for message in reversed(messages):
        # A message without an id is like no other one, and above all not like a cursor that has none.
        id = message.id
        if id is not None and id == cursor.last_id:
            return found[::-1]
        if id in rank:
            # One that was added again may stand behind messages that are newer than it; within the length of a tail
            # a more recent one is looked for, and what stands before that was read or passed over.
            left = TAIL if left is None else left
            if rank[id] > best:
                best, kept = rank[id], len(found)
        elif counts(message) and len(found) != limit:
            found.append(message)
        if left is not None:
            left -= 1
        if left == 0 or (left is None and len(found) == limit):
            break
    return found[: kept if best >= 0 else None][::-1]


def _cursor(value: Value | None) -> Cursor:
    # What cannot be read is as good as none: messages are read once more, and every write can be repeated.
    try:
        return Cursor() if value is None else Cursor.from_value(value)
    except ValueError:
        return Cursor()
