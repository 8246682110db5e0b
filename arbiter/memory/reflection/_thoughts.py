"""The agent's thoughts about conversations, by room."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from hashlib import sha256

from arbiter.memory._records import Thought, readable
from arbiter.memory.stores import MemoryStore, Namespace, namespace

MOST = 200
"""Thoughts kept for each room, the newest."""


@dataclass(slots=True)
class Thoughts:
    """The thoughts of one agent about one room."""

    store: MemoryStore
    _: KW_ONLY
    agent_id: str
    room_id: str

    async def add(self, thought: Thought) -> None:
        """Store a thought; it replaces one with the same id. The oldest above `MOST` are dropped."""
        await self.store.aput(self._namespace, thought.id, thought.to_value())
        await self.store.aprune(self._namespace, keep=MOST, at=lambda value: str(value.get("at")))

    async def remove(self, id: str) -> None:
        await self.store.adelete(self._namespace, id)

    async def all(self, *, limit: int | None = None) -> list[Thought]:
        """The thoughts of the room, newest first."""
        # Read a few more: stores sort by the time of writing, and a corrected thought was written later.
        entries = await self.store.alist(self._namespace, limit=None if limit is None else 4 * limit)
        found = readable(Thought, (entry.value for entry in entries))
        return sorted(found, key=lambda thought: thought.at, reverse=True)[:limit]

    @property
    def _namespace(self) -> Namespace:
        return namespace(self.agent_id, "thoughts", self.room_id)


def thought_id(run_key: str, evaluator: str) -> str:
    """The id of an evaluator's thought about a turn; a repetition has the same id."""
    return sha256(f"{evaluator}\n{run_key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
