"""Cursors: how far an evaluator has read a room, when it may try again after a failure, and the texts that it has
read: a chat may replace a message under its id."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter.memory._conversation import counts, originals, text_of
from arbiter.memory._notes import key_of_messages
from arbiter.memory._records import Record, short_id, time_of
from arbiter.memory.stores import MemoryStore, Value, namespace

_log = logging.getLogger("arbiter.memory")

TAIL = 64
"""A cursor keeps the ids of this many messages that were read last."""
MAX_WAIT_MINUTES = 64
MINUTE = timedelta(minutes=1)
FAILURES_PER_WINDOW = 3
"""A stretch of a conversation is skipped after this many failed attempts."""
OUTAGES_PER_WINDOW = 8
"""The same limit if a model or a store raised; with the waits in between, some three hours."""
MOMENT = 0.5
"""Seconds in which a handler that is stopped may note it."""
_LOOKED_AT = 4 * TAIL
"""The last messages of a conversation among which an edited one is found."""
_HEAD, _END = 6_000, 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor(Record):
    """A reading position in a room.

    `last_id` is the newest message that was in a prompt, `tail_ids` are the last 64. After failures, nothing
    is tried before `next_try_at`. `failures` counts all since the last usable answer, including those of
    skipped windows. `turn_ended_at` is the end of the turn that moved the cursor last.
    """

    last_id: str | None = None
    tail_ids: tuple[str, ...] = ()
    processed_total: int = 0
    failures: int = 0
    next_try_at: datetime | None = None
    updated_at: datetime | None = None
    turn_ended_at: datetime | None = None


@dataclass(slots=True)
class Cursors:
    """The cursor of one evaluator in one room.

    `ended_at` is the end of the turn in progress. A turn that ended before the one that last moved the cursor
    does not move it, unless its messages include the cursor's message.
    """

    store: MemoryStore
    _: KW_ONLY
    agent_id: str
    room_id: str
    evaluator: str
    clock: Callable[[], datetime]
    ended_at: datetime

    async def read(self) -> Cursor:
        return _cursor(await self.store.aget(self._namespace, self.evaluator))

    async def waits(self) -> bool:
        """True if it is too early to try again after a failure."""
        cursor = await self.read()
        return cursor.next_try_at is not None and self.clock() < cursor.next_try_at

    async def unprocessed(
        self, messages: Sequence[BaseMessage], *, limit: int | None = None, most: int | None = None
    ) -> list[BaseMessage]:
        """The human and AI messages with text that are newer than the cursor, oldest first; with `limit` only
        the newest ones, with `most` the first and the last half of so many.

        The search starts at the end and stops as soon as the result is certain. It works for trimmed lists
        too; if none of the messages that were read is left, all count as new.
        """
        return newer(messages, await self.read(), limit=limit, most=most)

    async def advance(self, prompted: Sequence[BaseMessage]) -> None:
        """Move the cursor behind messages whose prompt was answered, and clear its failures.

        The cursor never moves back, and repeating a call changes nothing.
        """

        def change(value: Value | None) -> Value | None:
            cursor = _cursor(value)
            moved = self._moved(cursor, prompted)
            if moved is cursor and not cursor.failures and value is not None:
                return value
            return replace(moved, failures=0, next_try_at=None, updated_at=self.clock()).to_value()

        await self.store.aupdate(self._namespace, self.evaluator, change)

    async def fail(
        self, prompted: Sequence[BaseMessage], *, raised: bool = False, again: bool = False
    ) -> bool:
        """Record that the model gave no usable answer: the next attempt waits min(2^failures, 64) minutes.

        After three failures the window is skipped: the cursor moves on without a wait, and the result is
        True. With `raised`, for a model that raised, eight failures are needed, because outages seldom depend on
        these messages; callers also say so of messages that must not be lost. Messages that a later turn has read
        meanwhile cannot fail, unless they were to be read `again`.
        """
        skipped = False
        most = OUTAGES_PER_WINDOW if raised else FAILURES_PER_WINDOW

        def change(value: Value | None) -> Value | None:
            nonlocal skipped
            skipped = False
            cursor = _cursor(value)
            if not (again or newer(prompted, cursor)):
                return value
            now = self.clock()
            failures = cursor.failures + 1
            skipped = failures % most == 0
            if skipped:
                cursor = self._moved(cursor, prompted)
            return replace(
                cursor,
                failures=failures,
                next_try_at=None if skipped else now + wait_after(failures),
                updated_at=now,
            ).to_value()

        await self.store.aupdate(self._namespace, self.evaluator, change)
        return skipped

    @asynccontextmanager
    async def stopped_as_failed(
        self, prompted: Sequence[BaseMessage], *, again: bool = False
    ) -> AsyncGenerator[None]:
        """Inside, a handler that is stopped, because its model or a store takes too long, has failed: it must not
        cost a call of the model in every turn."""
        try:
            yield
        except asyncio.CancelledError:
            # A store that gives no answer must not keep the locks that the handler holds.
            with suppress(TimeoutError):
                async with asyncio.timeout(MOMENT):
                    if await self.fail(prompted, raised=True, again=again):
                        _log.warning(
                            "evaluator %r was stopped at the last of %d attempts at messages of the thread "
                            "%r: they are passed over, also one that asks to forget something. "
                            "cycle.memory.forget(...) does it from a program. A longer handler_timeout_s helps.",
                            *(self.evaluator, OUTAGES_PER_WINDOW, self.room_id),
                        )
            raise

    # Edited messages

    async def edited(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The human messages that have another text than the one that was read last, oldest first.

        Keeps the texts as hashes with a random key. A turn that ended before the one that was noted last may
        have older texts, and finds none.
        """
        value = await self.store.aget(self._namespace, self._texts)
        known = _texts_in(value)
        if value is None or self._ended < _noted_at(value):
            return []
        key = await key_of_messages(self.store, self.agent_id)
        said = originals(messages)
        return [
            messages[place]
            for place in range(max(0, len(said) - _LOOKED_AT), len(said))
            if (id := said[place].id) in known and known[id] != _mark(said[place], key)
        ]

    async def note_texts(self, messages: Sequence[BaseMessage], read: Iterable[BaseMessage]) -> None:
        """Keep the texts that those of the messages that were `read` have now."""
        ids = {message.id for message in read if isinstance(message, HumanMessage) and message.id}
        if not ids:
            return
        key = await key_of_messages(self.store, self.agent_id)
        ended = self._ended
        marks = {message.id: _mark(message, key) for message in originals(messages) if message.id in ids}

        def change(value: Value | None) -> Value | None:
            before = _noted_at(value)
            known = _texts_in(value)
            left = {id: mark for id, mark in known.items() if id not in marks}
            texts = {**marks, **known} if ended < before else {**left, **marks}
            return {
                "at": max(ended, before).isoformat(),
                "texts": [[*pair] for pair in texts.items()][-TAIL:],
            }

        await self.store.aupdate(self._namespace, self._texts, change)

    @property
    def _ended(self) -> datetime:
        return time_of(self.ended_at)

    @property
    def _texts(self) -> str:
        return f"texts:{self.evaluator}"

    @property
    def _namespace(self) -> tuple[str, ...]:
        return namespace(self.agent_id, "cursors", self.room_id)

    def _moved(self, cursor: Cursor, prompted: Sequence[BaseMessage]) -> Cursor:
        """The cursor behind those messages; the same object if it is behind them already."""
        fresh = newer(prompted, cursor)
        if not fresh:
            return cursor
        ids = tuple(dict.fromkeys(message.id for message in fresh if message.id))
        total = cursor.processed_total + len(fresh)
        if self._is_late(cursor, prompted):
            # Not before all others: a full tail loses its first ids, and these messages would be read again.
            tail_ids = (*cursor.tail_ids[:-1], *ids, *cursor.tail_ids[-1:])[-TAIL:]
            return replace(cursor, tail_ids=tail_ids, processed_total=total)
        return replace(
            cursor,
            last_id=ids[-1] if ids else cursor.last_id,
            tail_ids=(*cursor.tail_ids, *ids)[-TAIL:],
            processed_total=total,
            turn_ended_at=self.ended_at,
        )

    def _is_late(self, cursor: Cursor, prompted: Sequence[BaseMessage]) -> bool:
        """True if a later turn moved the cursor. Messages that include the cursor's own message are never
        late."""
        if cursor.turn_ended_at is None or self.ended_at >= cursor.turn_ended_at:
            return False
        return all(message.id != cursor.last_id for message in prompted)


def wait_after(failures: int) -> timedelta:
    """The wait after that many failures in a row."""
    minutes: int = min(2 ** min(failures, 10), MAX_WAIT_MINUTES)
    return minutes * MINUTE


def newer(
    messages: Sequence[BaseMessage], cursor: Cursor, *, limit: int | None = None, most: int | None = None
) -> list[BaseMessage]:
    """The messages with text that are newer than the cursor, oldest first; see `Cursors.unprocessed`.

    If the list no longer has the newest message that was read, the newest one still known takes its place. A
    message that was read, removed and appended again is not new.
    """
    rank = {id: number for number, id in enumerate(cursor.tail_ids)}
    best = -1
    kept = 0
    left: int | None = None
    found: list[int] = []
    said = originals(messages)
    for place in range(len(said) - 1, -1, -1):
        message = said[place]
        # A message without an id equals no other one; a cursor without an id must not match it.
        id = message.id
        if id is not None and id == cursor.last_id:
            best = -1
            break
        if id in rank:
            # A message that was appended again may follow newer ones, so look for a more recent one within the
            # length of a tail; all messages before that one were read or skipped.
            left = TAIL if left is None else left
            if rank[id] > best:
                best, kept = rank[id], len(found)
        elif counts(message) and len(found) != limit:
            found.append(place)
        if left is not None:
            left -= 1
        if left == 0 or (left is None and len(found) == limit):
            break
    places = found[: kept if best >= 0 else None][::-1]
    if most is not None and len(places) > most:
        places = [*places[: most // 2], *places[-(most // 2) :]]
    return [messages[place] for place in places]


def _cursor(value: Value | None) -> Cursor:
    # An unreadable cursor counts as none: messages are read again, and every write can be repeated safely.
    return Cursor.read(value) or Cursor()


def _texts_in(value: Value | None) -> dict[str, str]:
    return {short_id(str(id)): str(mark) for id, mark in (value or {}).get("texts", ())}


def _noted_at(value: Value | None) -> datetime:
    """When the turn ended whose texts were noted last, whatever the zone of its clock."""
    try:
        return time_of(str((value or {}).get("at", "")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _mark(message: BaseMessage, key: bytes) -> str:
    text = text_of(message)
    shown = f"{len(text)} {text[:_HEAD]} {text[-_END:]}".encode(errors="surrogatepass")
    return hmac.digest(key, shown, "sha256").hex()[:16]
