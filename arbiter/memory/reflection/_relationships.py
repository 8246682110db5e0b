"""Relationships between entities: sightings, tags and counted interactions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from arbiter.memory._notes import Related
from arbiter.memory._records import Relationship, latest
from arbiter.memory.facts._privacy import category
from arbiter.memory.stores import MemoryStore, Value
from arbiter.memory.stores._portable import digest_of, joined

if TYPE_CHECKING:
    from arbiter.memory._context import EvalContext

EXCLUSIVE_TAGS = (("new_interaction", "frequent_interaction"),)
COUNTED = 64
"""Counted turns that each relationship remembers, the latest."""
ROOMS = 256
"""Rooms of sightings that each relationship remembers, the latest."""
MAX_TAGS = 32
MAX_METADATA = 64
"""Entries of metadata that each relationship keeps, the latest."""
MAX_TAG = 64
"""Longest tag in characters; longer ones are dropped."""
INTERACTIONS = "interactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One relationship as an evaluator saw it, from `source` to `target`, both ids of entities."""

    source: str
    target: str
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """The number of relationships that were seen, and how many of them are new; `self_loops` are sightings of an
    entity with itself."""

    seen: int = 0
    created: int = 0
    self_loops: int = 0


class Relationships(Related):
    """All relationships that one agent knows.

    `exclusive_tags` are groups of tags that exclude each other: only the latest tag of a group is kept; of
    tags seen at once, the one later in its group.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        agent_id: str,
        exclusive_tags: Sequence[Sequence[str]] = EXCLUSIVE_TAGS,
    ) -> None:
        super().__init__(store, agent_id)
        self.exclusive_tags = tuple(normal_tags(group) for group in exclusive_tags)

    async def upsert(self, found: Iterable[Sighting], ctx: EvalContext) -> Upserted:
        """Add the sightings of a turn. Each direction is a relationship of its own; repeated sightings are
        merged first.

        A new relationship has 1 interaction; a known one gets 1 more for each turn (`ctx.run_key`), whatever
        a sighting's metadata says. Other metadata and tags are added to the known ones. Sightings in private
        rooms and sensitive tags are recorded as such: see `Relationship.told_in`.
        """
        united: dict[tuple[str, str], Sighting] = {}
        loops = 0
        for sighting in found:
            if sighting.source == sighting.target:
                loops += 1
                continue
            pair = (sighting.source, sighting.target)
            known = united.get(pair)
            united[pair] = sighting if known is None else _united(known, sighting)
        created = sum([await self._upsert(sighting, ctx) for sighting in united.values()])
        return Upserted(seen=len(united), created=created, self_loops=loops)

    async def _upsert(self, sighting: Sighting, ctx: EvalContext) -> bool:
        """Add a sighting. True if the relationship is new."""
        source, target = sighting.source, sighting.target
        turn = digest_of(ctx.run_key)
        is_new = False

        def change(value: Value | None) -> Value | None:
            nonlocal is_new
            now = ctx.clock()
            known = _relationship(value)
            is_new = known is None
            known = known or Relationship(
                source=source, target=target, tags=(), metadata={}, first_seen_at=now, last_seen_at=now
            )
            is_counted = turn in known.counted
            metadata = _latest(_without_count(known.metadata), _without_count(sighting.metadata))
            count = known.interactions + (not is_counted)
            changed = self._tagged(
                replace(known, metadata={**metadata, INTERACTIONS: count}), _newest(sighting.tags), ctx
            )
            if not is_counted:
                changed = replace(
                    changed,
                    last_seen_at=max(known.last_seen_at, now),
                    room_ids=tuple(dict.fromkeys([*known.room_ids, ctx.room_id]))[-ROOMS:],
                    counted=(*known.counted, turn)[-COUNTED:],
                    private_interactions=_counted(known.private_interactions, ctx),
                )
            return value if changed == known else changed.to_value()

        await self.update(key_of(source, target), source, target, change)
        return is_new

    def _tagged(self, known: Relationship, seen: Sequence[str], ctx: EvalContext) -> Relationship:
        """The relationship with the tags seen in this room, and the rooms of each tag."""
        tags = self._tags(known.tags, seen)
        rooms = {tag: known.tag_rooms.get(tag, known.room_ids if tag in known.tags else ()) for tag in tags}
        confined = {tag for tag in tags if tag in known.confined_tags}
        for tag in seen:
            if tag not in rooms:
                continue
            rooms[tag] = list(dict.fromkeys([*rooms[tag], ctx.room_id]))[-ROOMS:]
            if category(tag.replace("_", " ")) is not None or (ctx.is_private and tag not in known.tags):
                confined.add(tag)
            elif not ctx.is_private:
                confined.discard(tag)
        return replace(
            known,
            tags=tags,
            tag_rooms={tag: list(found) for tag, found in rooms.items()},
            confined_tags=tuple(tag for tag in tags if tag in confined),
        )

    def _tags(self, known: Sequence[str], seen: Iterable[str]) -> tuple[str, ...]:
        """The known tags and then the new ones, without tags that a later one of their group excludes."""
        new = normal_tags(seen)
        tags = tuple(dict.fromkeys([*known, *new]))
        for group in self.exclusive_tags:
            present = [tag for tag in group if tag in new] or [tag for tag in group if tag in tags]
            tags = tuple(tag for tag in tags if tag not in group or tag == present[-1])
        # The newest tags are the most current, so the oldest are cut, but none that was just seen.
        return latest(tags, MAX_TAGS, keep=new)

    async def of(self, entity_id: str | None = None) -> list[Relationship]:
        """Relationships from or to an entity, or all: most interactions first, then the latest."""
        entries = await (self.store.alist(self.space) if entity_id is None else self.entries(entity_id))
        read = (_relationship(entry.value) for entry in entries)
        found = [relationship for relationship in read if relationship is not None]
        return sorted(found, key=lambda one: (one.interactions, one.last_seen_at), reverse=True)

    async def among(self, entity_ids: Sequence[str]) -> list[Relationship]:
        keys = [key_of(one, other) for one in entity_ids for other in entity_ids if one != other]
        values = await self.store.aget_many(self.space, keys)
        found = (_relationship(value) for value in values.values())
        return [relationship for relationship in found if relationship is not None]


def key_of(source: str, target: str) -> str:
    return digest_of(joined((source, target)))


def normal_tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    """Tags in lower case, trimmed, with `_` for blanks, each once. A single text is split at commas."""
    parts = [tags] if isinstance(tags, str) else tags
    found = (_BLANKS.sub("_", tag.strip().lower()) for part in parts for tag in part.split(","))
    return tuple(dict.fromkeys(tag for tag in found if tag and len(tag) <= MAX_TAG))


_BLANKS = re.compile(r"\s+")
_NO_ROOM = ""


def _newest(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags of a turn, the latest if they are more than a relationship keeps."""
    return normal_tags(tags)[-MAX_TAGS:]


def _united(one: Sighting, other: Sighting) -> Sighting:
    return replace(
        one,
        tags=_newest((*one.tags, *other.tags)),
        metadata=_latest(one.metadata, other.metadata),
    )


def _counted(known: Mapping[str, int], ctx: EvalContext) -> Mapping[str, int]:
    """The sightings by private room, plus one if this room is private."""
    if not ctx.is_private:
        return known
    counts = {**known, ctx.room_id: known.get(ctx.room_id, 0) + 1}
    # Counts of dropped rooms move to "no room": they must not count as seen openly.
    dropped = [room for room in counts if room not in (_NO_ROOM, ctx.room_id)][: max(0, len(counts) - ROOMS)]
    lost = sum(counts.pop(room) for room in dropped)
    return {**counts, _NO_ROOM: counts.get(_NO_ROOM, 0) + lost} if lost else counts


def _latest(known: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    older = {key: part for key, part in known.items() if key not in seen}
    return dict([*older.items(), *seen.items()][-MAX_METADATA:])


def _without_count(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != INTERACTIONS}


def _relationship(value: Value | None) -> Relationship | None:
    """The record; None if it cannot be read, so that the next sighting replaces it."""
    found = Relationship.read(value)
    return found if found is not None and found.interactions else None
