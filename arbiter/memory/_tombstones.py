"""Tombstones: the messages of a room from which nothing may be remembered, as ids and a time.

They hold no words: what was forgotten cannot be read from them, and what is said again in a later message is
learned again. (The id of a message that came without one is made of its text with a key of the store; see
`arbiter.memory._notes`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from arbiter.memory._records import Record, Records, short_id
from arbiter.memory.stores import Value

KEPT = 1_000
"""Message ids of each sort that a room keeps, the newest."""
ANSWERABLE = timedelta(days=1)
"""The time in which the question whether to forget everything can be answered."""
TIMES = ("everything", "newest")
"""The keys of an entity's forgettings."""
_ROOM = "messages"
_PENDING = "pending"
_SWEPT = "swept:"
_BEGUN = "begun:"
_BEFORE = "before:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(Record):
    """The messages of one room that are forgotten or off the record, and those that asked for it, which only
    later prompts leave out. Oldest first."""

    at: datetime
    messages: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending(Record):
    """An entity's wish to forget everything, of that message, that waits for an answer. `turns` are those
    that did not answer it."""

    at: datetime
    entity_id: str
    message_id: str
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Since(Record):
    """An entity's messages from before that time are to be forgotten."""

    at: datetime
    entity_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Until(Since):
    """In one room, these are the messages up to that one."""

    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun(Record):
    """An entity's wish to forget these messages, which is being carried out."""

    entity_id: str
    messages: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Hidden:
    """The contents of a room's tombstones. `forgotten` messages are no sources; neither they nor those that `asked`
    are shown. `swept` are the times of wishes to forget everything that the room has carried out, `pending`
    those that its speakers have not confirmed, `newest` the times of their newest forgettings, and `begun` the
    messages of wishes that were not carried out to the end, by entity."""

    forgotten: set[str] = field(default_factory=set[str])
    asked: set[str] = field(default_factory=set[str])
    pending: dict[str, Pending] = field(default_factory=dict[str, Pending])
    swept: dict[str, datetime] = field(default_factory=dict[str, datetime])
    newest: dict[str, datetime | None] = field(default_factory=dict[str, datetime | None])
    begun: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def ids(self) -> set[str]:
        return self.forgotten | self.asked


class Tombstones(Records):
    """The tombstones of one room of an agent."""

    kind = "tombstones"

    async def read(self) -> Hidden:
        found = Hidden()
        for entry in await self.store.alist(self.space):
            if entry.key == _ROOM and (tombstone := Tombstone.read(entry.value)) is not None:
                found.forgotten, found.asked = {*tombstone.messages}, {*tombstone.asked}
            elif entry.key.startswith(_SWEPT) and (since := Since.read(entry.value)) is not None:
                found.swept[since.entity_id] = since.at
            elif entry.key.startswith(_BEGUN) and (begun := _Begun.read(entry.value)) is not None:
                found.begun[begun.entity_id] = begun.messages
        return found

    async def bury(self, messages: Iterable[str], *, at: datetime, asked: Iterable[str] = ()) -> None:
        """Learn nothing from these messages, and show neither them nor those that `asked`."""
        more, askers = tuple(messages), tuple(asked)
        if not (more or askers):
            return

        def change(value: Value | None) -> Value | None:
            known = _tombstone(value, at)
            grown = replace(
                known, at=at, messages=_joined(known.messages, more), asked=_joined(known.asked, askers)
            )
            return value if value is not None and grown == replace(known, at=at) else grown.to_value()

        await self.store.aupdate(self.space, _ROOM, change)

    async def begin(self, entity_id: str, messages: Iterable[str]) -> None:
        """Note that these messages are to be forgotten: once they are buried, no prompt shows them to a model that
        could read the wish again."""
        begun = _Begun(entity_id=entity_id, messages=tuple(messages))
        await self.store.aput(self.space, _BEGUN + entity_id, begun.to_value())

    async def end(self, entity_id: str) -> None:
        await self.store.adelete(self.space, _BEGUN + entity_id)

    async def dig_up(self, messages: Iterable[str]) -> None:
        ids = {*map(short_id, messages)}

        def change(value: Value | None) -> Value | None:
            if value is None:
                return None
            known = _tombstone(value, None)
            return replace(known, messages=tuple(id for id in known.messages if id not in ids)).to_value()

        await self.store.aupdate(self.space, _ROOM, change)

    async def sweep(self, entity_id: str, messages: Iterable[str], *, before: datetime) -> None:
        """Bury an entity's messages from before it asked to forget everything, once."""
        await self.bury(messages, at=before)
        await self.store.aput(
            self.space, _SWEPT + entity_id, Since(at=before, entity_id=entity_id).to_value()
        )


class Forgettings(Records):
    """The times of an entity's newest forgetting, of whatever kind, and of the newest one of everything; and its wish
    to forget everything that waits for an answer. The messages of the entity from before the newest one that are unread
    by then teach nothing any more."""

    kind = "tombstones"

    async def at(self, what: Literal["everything", "newest"]) -> datetime | None:
        return _since(await self.store.aget(self.space, what))

    async def pending(self, now: datetime) -> Pending | None:
        """The wish that can be confirmed now."""
        return _pending(await self.store.aget(self.space, _PENDING), now)

    async def read(self, now: datetime) -> tuple[datetime | None, Pending | None, datetime | None]:
        """When everything was forgotten, the wish that can be confirmed now, and the time of the newest forgetting."""
        found = {entry.key: entry.value for entry in await self.store.alist(self.space)}
        return (
            _since(found.get("everything")),
            _pending(found.get(_PENDING), now),
            _since(found.get("newest")),
        )

    async def exported(self) -> list[Value]:
        """The times, each with what was forgotten then. A wish to forget everything that was not confirmed is none,
        and the tombstones of a thread may be there, too: it may have the id of its user."""
        found = await self.store.alist(self.space)
        return [{**entry.value, "what": entry.key} for entry in found if entry.key in TIMES]

    async def ask_back(self, pending: Pending | None) -> None:
        """Note a wish that must be confirmed; with None there is none any more."""
        await self._keep(_PENDING, pending)

    async def note(self, what: Literal["everything", "newest"], at: datetime | None) -> None:
        await self._keep(what, None if at is None else Since(at=at, entity_id=self.scope))

    async def _keep(self, key: str, record: Record | None) -> None:
        value = None if record is None else record.to_value()
        await self.store.aput_many([(self.space, key, value)])


class Before(Records):
    """Beside the cursors of a room, the last message that an entity has said there before its newest forgetting: a
    message has no time of its own, so the first turn after the forgetting notes which ones are older."""

    kind = "cursors"

    async def read(self, entity_id: str) -> tuple[datetime | None, str]:
        """The time of the forgetting, and the id of the message, "" if there is none."""
        found = _Until.read(await self.store.aget(self.space, _BEFORE + entity_id))
        return (None, "") if found is None else (found.at, found.until)

    async def note(self, entity_id: str, at: datetime, until: str) -> None:
        await self.store.aput(
            self.space, _BEFORE + entity_id, _Until(at=at, entity_id=entity_id, until=until).to_value()
        )


def _since(value: Value | None) -> datetime | None:
    found = Since.read(value)
    return None if found is None else found.at


def _pending(value: Value | None, now: datetime) -> Pending | None:
    found = Pending.read(value)
    return found if found is not None and now - found.at < ANSWERABLE else None


def _tombstone(value: Mapping[str, object] | None, at: datetime | None) -> Tombstone:
    return Tombstone.read(value) or Tombstone(at=at or datetime.min.replace(tzinfo=UTC))


def _joined(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *more)))[-KEPT:]
