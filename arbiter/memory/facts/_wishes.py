"""`Wish`: a request to forget, kept for claims that are not learned yet.

Messages of another room, from before the request, may be read after it. The store keeps only hashes of the
request's words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from arbiter.memory._records import Record, readable
from arbiter.memory.stores import MemoryStore, namespace

_KIND = "wish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Record):
    """A request to forget every claim with all of `words` that was made before `at`; without words, every
    claim."""

    _times = ("at",)
    _tuples = ("words",)

    at: datetime
    room_id: str
    words: tuple[str, ...] = ()
    kind: str = _KIND


class Wishes:
    """The requests of one entity to an agent."""

    def __init__(self, store: MemoryStore, *, agent_id: str, entity_id: str) -> None:
        self.store = store
        self.agent_id = agent_id
        self.entity_id = entity_id
        self._namespace = namespace(agent_id, "tombstones", entity_id)

    async def note(self, words: Iterable[str], *, room_id: str, at: datetime) -> None:
        wish = Wish(at=at, room_id=room_id, words=tuple(sorted(map(self._hash, words))))
        key = self._hash(json.dumps([_KIND, room_id, *wish.words]))
        await self.store.aput(self._namespace, key, wish.to_value())

    async def about(self, words: Collection[str]) -> list[Wish]:
        """The wishes that cover a text with these words."""
        entries = await self.store.alist(self._namespace, filter={"kind": _KIND})
        hashes = {self._hash(word) for word in words} if entries else set[str]()
        return [
            wish for wish in readable(Wish, (entry.value for entry in entries)) if {*wish.words} <= hashes
        ]

    def _hash(self, word: str) -> str:
        # JSON can encode lone surrogates, unlike UTF-8.
        return hashlib.sha256(json.dumps([self.agent_id, self.entity_id, word]).encode()).hexdigest()
