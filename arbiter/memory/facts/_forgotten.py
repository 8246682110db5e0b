"""Tombstones of forgotten facts, checked against later thoughts: hashes of their words, and the ids of their
messages.

A tombstone is `{"at", "words", "sources", "lasting"}`. That of a fact lasts: no later thought may contain all
of its words. That of a query, or of everything, applies only to the messages that were forgotten with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from arbiter.memory.facts._boundaries import said_by
from arbiter.memory.facts._normal import tombstone_key
from arbiter.memory.stores import MemoryStore, Value, namespace

_SOURCES = 500
_DIGITS = 16


def tombstone(
    agent_id: str,
    entity_id: str,
    *,
    words: Iterable[str],
    sources: Iterable[str],
    at: datetime,
    lasting: bool,
) -> Value:
    """The stored value of a tombstone. `words` are those of `said_by`, `sources` ids of messages."""
    return {
        "at": at.isoformat(),
        "words": sorted(_hashed(agent_id, entity_id, words)),
        "sources": list(dict.fromkeys(sources))[-_SOURCES:],
        "lasting": lasting,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    words: frozenset[str]
    sources: frozenset[str]
    lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """The tombstones of some entities."""

    agent_id: str
    marks: Mapping[str, Collection[_Mark]]

    @classmethod
    async def about(cls, store: MemoryStore, agent_id: str, entity_ids: Iterable[str]) -> Forgotten:
        marked = set(await store.aspaces(agent_id, "tombstones"))
        marks: dict[str, list[_Mark]] = {}
        for entity_id in dict.fromkeys(entity_ids):
            ns = namespace(agent_id, "tombstones", entity_id)
            if ns in marked:
                marks[entity_id] = [_mark(entry.value) for entry in await store.alist(ns)]
        return cls(agent_id=agent_id, marks=marks)

    def has_told(self, text: str, *, speaker: str, message_id: str | None) -> bool:
        """True if a message is a source of a forgotten fact, or its speaker repeats the fact."""
        for entity_id, marks in self.marks.items():
            own = speaker == entity_id
            words = self._words(entity_id, text)
            for mark in marks:
                source = message_id in mark.sources
                if source and (mark.lasting or (own and not mark.words)):
                    return True
                if mark.words and mark.words <= words and (source or (own and mark.lasting)):
                    return True
        return False

    def tells(self, text: str, *, sources: Collection[str], speakers: Collection[str]) -> bool:
        """True if a thought about these messages, by these speakers, reveals a forgotten fact."""
        for entity_id, marks in self.marks.items():
            words = self._words(entity_id, text)
            for mark in marks:
                about = not mark.sources.isdisjoint(sources)
                whole = bool(mark.words) and mark.words <= words
                if whole and (about or (mark.lasting and entity_id in speakers)):
                    return True
                # A thought about the same messages reveals part of a fact with a single word of it.
                if about and mark.lasting and mark.words & words:
                    return True
        return False

    def _words(self, entity_id: str, text: str) -> frozenset[str]:
        return _hashed(self.agent_id, entity_id, said_by(text))


def _hashed(agent_id: str, entity_id: str, words: Iterable[str]) -> frozenset[str]:
    return frozenset(tombstone_key(agent_id, entity_id, word)[:_DIGITS] for word in words)


def _mark(value: Mapping[str, Any]) -> _Mark:
    return _Mark(
        words=_texts(value.get("words")),
        sources=_texts(value.get("sources")),
        lasting=value.get("lasting") is True,
    )


def _texts(found: Any) -> frozenset[str]:
    parts = cast("list[object]", found) if isinstance(found, list) else ()
    return frozenset(part for part in parts if isinstance(part, str))
