"""What was forgotten, as what is thought later is held against it: its words, as hashes, and the messages that said it.

A tombstone is `{"at", "words", "sources", "lasting"}`. That of a fact lasts: whatever has all of its words is not to be
thought again. That of a query, and of everything, is about the messages that were forgotten with it, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from arbiter.memory.facts.boundaries import said_by
from arbiter.memory.facts.normal import tombstone_key
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
    """A tombstone. `words` are as `said_by` gives them, `sources` ids of messages."""
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
    """What an agent was told to forget about some entities."""

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
        """Whether a message is among those that said what is forgotten, or its speaker says it again."""
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
        """Whether a thought about these messages, by these speakers, says what is forgotten."""
        for entity_id, marks in self.marks.items():
            words = self._words(entity_id, text)
            for mark in marks:
                about = not mark.sources.isdisjoint(sources)
                whole = bool(mark.words) and mark.words <= words
                if whole and (about or (mark.lasting and entity_id in speakers)):
                    return True
                # Of what was said in the same messages, one word of it says something of it.
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
