"""Deleting for good: records with their vectors, what was derived from them, thoughts that mention them; and a mark by
which none of it is learned again.

The mark is a hash of the claim's normal form, whatever its case: the same claim is recognised, one in other
words is not. Thoughts are recognised by words and messages: see `arbiter.memory.facts.forgotten`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from arbiter.memory.facts.boundaries import said_by
from arbiter.memory.facts.changes import read, unlinked
from arbiter.memory.facts.forgotten import tombstone
from arbiter.memory.facts.normal import tombstone_key
from arbiter.memory.records import Fact, Relationship, Thought
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace

KINDS = ("facts", "status", "opinions")
_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be forgotten: which facts, which thoughts beside those that tell one of them, and which tags and
    metadata of relationships, by their words.

    `words`, as `said_by` gives them, are what the thoughts are found by; with `everything`, the relationships go too.
    """

    fact: Callable[[Fact], bool]
    thought: Callable[[Thought], bool]
    text: Callable[[str], bool] = lambda text: False
    words: frozenset[str] = frozenset()
    everything: bool = False


class Forgetting:
    """Forgets what an agent knows of one entity; with `speaker`, what it has heard from that one alone, and may still
    learn from others."""

    def __init__(
        self, store: MemoryStore, *, agent_id: str, entity_id: str, now: datetime, speaker: str | None = None
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.entity_id = entity_id
        self.now = now
        self.speaker = speaker

    async def forget(self, wanted: Wanted) -> int:
        """Delete what is `wanted`, also what others write meanwhile. How many records of facts that were."""
        gone: dict[str, Fact] = {}
        for _ in range(_PASSES):
            found = await self._found(wanted, gone)
            if not found:
                break
            # First the marks: whoever writes looks for them afterwards.
            for _, fact in found:
                await self._mark(fact)
            for ns, fact in found:
                # Under the record's lock, so that no mention that is on its way brings it back.
                await self.store.aupdate(ns, fact.id, lambda value: None)
                gone[fact.id] = fact
        if gone:
            await self._unlink(gone)
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
                # Of thoughts about the same messages, those that share a word with it tell something of it.
                about = bool(sources & {*thought.source_message_ids})
                tells = any(fact and (fact <= words or (about and fact & words)) for fact in said)
                takes_part = self.entity_id in thought.entity_ids or not thought.entity_ids
                if (tells or wanted.thought(thought)) and (takes_part or about):
                    found.append((ns, entry.key))
                    if wanted.thought(thought):
                        read_again |= dict.fromkeys(thought.source_message_ids)
        if read_again and (wanted.words or wanted.everything):
            # The messages may be looked at again, and would be thought of as before.
            key = tombstone_key(
                self.agent_id, self.entity_id, f"{self.now.isoformat()} {sorted(wanted.words)}"
            )
            await self._put(key, wanted.words, read_again, lasting=False)
        for ns, key in found:
            await self.store.aupdate(ns, key, lambda value: None)

    async def _forget_relationships(self, wanted: Wanted) -> None:
        def change(value: Value | None) -> Value | None:
            return None if value is None or wanted.everything else _without(value, wanted.text)

        ns = namespace(self.agent_id, "relationships", "all")
        for end in ("source", "target"):
            for entry in await self.store.alist(ns, filter={end: self.entity_id}):
                await self.store.aupdate(ns, entry.key, change)

    def _namespaces(self) -> list[Namespace]:
        return [namespace(self.agent_id, kind, self.entity_id) for kind in KINDS]


def _without(value: Value, unwanted: Callable[[str], bool]) -> Value:
    """A relationship without the tags and metadata whose words are `unwanted`."""
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
