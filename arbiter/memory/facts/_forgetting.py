"""Deletes facts with their vectors, the facts derived from them and the thoughts that mention them, and
leaves tombstones, so that none of it is learned again.

A tombstone's key is a hash of the claim's normal form in lower case: the same claim is recognised, another
wording is not. Thoughts are recognised by words and messages: see `arbiter.memory.facts._forgotten`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from arbiter.memory._records import Fact, Relationship, Thought
from arbiter.memory._related import Related
from arbiter.memory.facts._boundaries import said_by
from arbiter.memory.facts._changes import read, unlinked
from arbiter.memory.facts._forgotten import tombstone
from arbiter.memory.facts._normal import tombstone_key
from arbiter.memory.facts._own_names import OwnNames
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace

KINDS = ("facts", "status", "opinions")
_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The selection to forget: facts, thoughts beyond those that mention these facts, and texts of tags and
    metadata.

    `words`, as `said_by` returns them, recognise the thoughts later; with `everything`, all relationships go
    too.
    """

    fact: Callable[[Fact], bool]
    thought: Callable[[Thought], bool]
    text: Callable[[str], bool] = lambda text: False
    words: frozenset[str] = frozenset()
    everything: bool = False


class Forgetting:
    """Forgets the facts about one entity; with `speaker`, only those heard from that speaker alone, which
    others may still teach."""

    def __init__(
        self, store: MemoryStore, *, agent_id: str, entity_id: str, now: datetime, speaker: str | None = None
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.entity_id = entity_id
        self.now = now
        self.speaker = speaker

    async def forget(self, wanted: Wanted) -> int:
        """Delete everything `wanted`, including concurrent writes. Returns how many facts were deleted."""
        gone: dict[str, Fact] = {}
        for _ in range(_PASSES):
            found = await self._found(wanted, gone)
            if not found:
                break
            # Tombstones come first: concurrent writers look for them after each write.
            for _, fact in found:
                await self._mark(fact)
            for ns, fact in found:
                # Under the record's lock, so that a concurrent mention cannot restore the record.
                await self.store.aupdate(ns, fact.id, lambda value: None)
                gone[fact.id] = fact
        if gone:
            await self._unlink(gone)
        told = {id for fact in gone.values() for id in fact.source_message_ids}
        await OwnNames(self.store, agent_id=self.agent_id, entity_id=self.entity_id).forget(
            None if wanted.everything else told
        )
        await self._forget_thoughts(wanted, list(gone.values()))
        await self._forget_relationships(wanted)
        return len(gone)

    async def _found(self, wanted: Wanted, gone: Collection[str]) -> list[tuple[Namespace, Fact]]:
        everything = [
            (ns, fact)
            for ns in self._namespaces()
            for entry in await self.store.alist(ns)
            if (fact := read(entry.value)) is not None
        ]
        ids = {fact.id for _, fact in everything if self._is_theirs(fact) and wanted.fact(fact)} | {*gone}
        size = -1
        while size != len(ids):
            size = len(ids)
            ids |= {fact.id for _, fact in everything if ids & {*fact.derived_from}}
        return [(ns, fact) for ns, fact in everything if fact.id in ids]

    def _is_theirs(self, fact: Fact) -> bool:
        return self.speaker is None or fact.speakers == (self.speaker,)

    async def _mark(self, fact: Fact) -> None:
        key = tombstone_key(self.agent_id, self.entity_id, fact.claim, self.speaker)
        await self._put(key, said_by(fact.claim), fact.source_message_ids, lasting=True)

    async def _put(self, key: str, words: Iterable[str], sources: Iterable[str], *, lasting: bool) -> None:
        value = tombstone(
            self.agent_id, self.entity_id, words=words, sources=sources, at=self.now, lasting=lasting
        )
        await self.store.aput(namespace(self.agent_id, "tombstones", self.entity_id), key, value)

    async def _unlink(self, gone: Collection[str]) -> None:
        def change(value: Value | None) -> Value | None:
            fact = read(value)
            if fact is None:
                return value
            after = unlinked(fact, gone)
            return value if after is fact else after.to_value()

        for ns in self._namespaces():
            for entry in await self.store.alist(ns):
                fact = read(entry.value)
                if fact is not None and unlinked(fact, gone) is not fact:
                    await self.store.aupdate(ns, entry.key, change)

    async def _forget_thoughts(self, wanted: Wanted, gone: Sequence[Fact]) -> None:
        said = [said_by(fact.claim) for fact in gone]
        sources = {id for fact in gone for id in fact.source_message_ids}
        found: list[tuple[Namespace, str]] = []
        read_again: dict[str, None] = {}
        for ns in await self.store.aspaces(self.agent_id, "thoughts"):
            for entry in await self.store.alist(ns):
                try:
                    thought = Thought.from_value(entry.value)
                except ValueError:
                    continue
                words = said_by(thought.text)
                # A thought about the same messages reveals part of a fact if it shares one word with it.
                about = bool(sources & {*thought.source_message_ids})
                tells = any(fact and (fact <= words or (about and fact & words)) for fact in said)
                takes_part = self.entity_id in thought.entity_ids or not thought.entity_ids
                if (tells or wanted.thought(thought)) and (takes_part or about):
                    found.append((ns, entry.key))
                    if wanted.thought(thought):
                        read_again |= dict.fromkeys(thought.source_message_ids)
        if read_again and (wanted.words or wanted.everything):
            # The messages may be read again and would lead to the same thoughts.
            key = tombstone_key(
                self.agent_id, self.entity_id, f"{self.now.isoformat()} {sorted(wanted.words)}"
            )
            await self._put(key, wanted.words, read_again, lasting=False)
        for ns, key in found:
            await self.store.aupdate(ns, key, lambda value: None)

    async def _forget_relationships(self, wanted: Wanted) -> None:
        def change(value: Value | None) -> Value | None:
            return None if value is None or wanted.everything else _without(value, wanted.text)

        related = Related(self.store, agent_id=self.agent_id)
        for entry in await related.of(self.entity_id):
            source, target = str(entry.value.get("source")), str(entry.value.get("target"))
            await related.update(entry.key, source, target, change)

    def _namespaces(self) -> list[Namespace]:
        return [namespace(self.agent_id, kind, self.entity_id) for kind in KINDS]


def _without(value: Value, unwanted: Callable[[str], bool]) -> Value:
    """A relationship without the tags and metadata whose texts are `unwanted`."""
    try:
        known = Relationship.from_value(value)
        tags = tuple(tag for tag in known.tags if not unwanted(tag.replace("_", " ")))
        metadata = {key: part for key, part in known.metadata.items() if not unwanted(f"{key}: {part}")}
    except (AttributeError, TypeError, ValueError):
        return value
    changed = replace(
        known,
        tags=tags,
        metadata={**metadata, "interactions": known.interactions},
        tag_rooms={tag: rooms for tag, rooms in known.tag_rooms.items() if tag in tags},
        confined_tags=tuple(tag for tag in known.confined_tags if tag in tags),
    )
    return value if changed == known else changed.to_value()
