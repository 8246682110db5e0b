"""Events of facts, kept in the store until the trust evaluator has counted them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from arbiter.memory._records import Record, readable
from arbiter.memory.stores import MemoryStore, Value, namespace

MOST = 64
"""Events kept for each room, the newest: without a trust evaluator nothing would remove them."""
_KEY = "facts:events"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEvent(Record):
    """The effect of a claim on a known fact, for evaluators that run later in the turn. `speaker` is the id of
    the entity that made the claim, `at` the end of the turn."""

    _times = ("at",)
    _tuples = ("confirms",)

    kind: str
    """`confirmed` (an independent mention), `contradicted` (by another speaker), `corrected`, `superseded`,
    `refined` or `ended`."""
    speaker: str
    fact_id: str
    other_id: str | None = None
    confirms: tuple[str, ...] = ()
    """Other speakers that had said before what is confirmed; none if a speaker repeats an own statement."""
    at: datetime | None = None


class Events:
    """The uncounted events of one room. Adding an event again changes nothing."""

    def __init__(self, store: MemoryStore, *, agent_id: str, room_id: str) -> None:
        self.store = store
        self._namespace = namespace(agent_id, "cursors", room_id)

    async def all(self) -> list[FactEvent]:
        """The events, oldest first."""
        return _events(await self.store.aget(self._namespace, _KEY))

    async def add(self, event: FactEvent) -> None:
        def change(value: Value | None) -> Value | None:
            known = _events(value)
            return value if event in known else _value([*known, event][-MOST:])

        await self.store.aupdate(self._namespace, _KEY, change)

    async def remove(self, events: Collection[FactEvent]) -> None:
        if not events:
            return

        def change(value: Value | None) -> Value | None:
            known = _events(value)
            left = [event for event in known if event not in events]
            return value if left == known else _value(left)

        await self.store.aupdate(self._namespace, _KEY, change)


def _events(value: Value | None) -> list[FactEvent]:
    found: Any = (value or {}).get("events")
    return readable(FactEvent, found or ())


def _value(events: Collection[FactEvent]) -> Value:
    return {"events": [event.to_value() for event in events]}
