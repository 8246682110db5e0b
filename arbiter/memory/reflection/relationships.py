"""Relationships between entities: what was seen of them, tags and counted interactions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from arbiter.memory.facts.privacy import category
from arbiter.memory.records import Relationship
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace
from arbiter.memory.stores.names import joined

if TYPE_CHECKING:
    from arbiter.memory.context import EvalContext

EXCLUSIVE_TAGS = (("new_interaction", "frequent_interaction"),)
COUNTED = 64
"""So many turns that were counted are remembered with each relationship."""
ROOMS = 256
"""So many rooms in which it was seen, the latest to be added."""
MAX_TAGS = 32
MAX_TAG = 64
"""What is longer, in characters, is no tag."""
INTERACTIONS = "interactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One relationship as an evaluator has seen it, between entities' ids, from `source` to `target`."""

    source: str
    target: str
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """How many relationships were new, counted once more or not changed, and how many sightings were of one entity with
    itself."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    self_loops: int = 0


class Relationships:
    """All relationships that one agent knows of.

    `exclusive_tags` are groups of tags that do not go together: of those that were seen, only the latest is kept, and
    of those seen at once the one that stands later in its group.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        agent_id: str,
        clock: Callable[[], datetime],
        exclusive_tags: Sequence[Sequence[str]] = EXCLUSIVE_TAGS,
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.clock = clock
        self.exclusive_tags = tuple(normal_tags(group) for group in exclusive_tags)

    async def upsert(self, found: Iterable[Sighting], ctx: EvalContext) -> Upserted:
        """Add what was seen in a turn. Each direction is a relationship of its own; the same one twice is united first.

        A relationship that is new has 1 interaction, one that is known gets 1 more, once for each turn (`ctx.run_key`),
        whatever a sighting's metadata says. Its other metadata and its tags are added to those that are there. What is
        seen in a private room, and a sensitive tag anywhere, is noted as such: see `Relationship.told_in`.
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
        changes = [await self._upsert(sighting, ctx) for sighting in united.values()]
        return Upserted(
            created=changes.count("created"),
            updated=changes.count("updated"),
            unchanged=changes.count("unchanged"),
            self_loops=loops,
        )

    async def _upsert(self, sighting: Sighting, ctx: EvalContext) -> str:
        turn = _digest(ctx.run_key)
        done = ""

        def change(value: Value | None) -> Value | None:
            nonlocal done
            known = _relationship(value)
            now = self.clock()
            if known is None:
                done = "created"
                return self._new(sighting, now, ctx, turn).to_value()
            changed = self._tagged(
                replace(known, metadata={**known.metadata, **_without_count(sighting.metadata)}),
                normal_tags(sighting.tags),
                ctx,
            )
            if turn not in known.counted:
                changed = replace(
                    changed,
                    metadata={**changed.metadata, INTERACTIONS: known.interactions + 1},
                    last_seen_at=max(known.last_seen_at, now),
                    room_ids=tuple(dict.fromkeys([*known.room_ids, ctx.room_id]))[-ROOMS:],
                    counted=(*known.counted, turn)[-COUNTED:],
                    private_interactions=_counted(known.private_interactions, ctx),
                )
            done = "unchanged" if changed == known else "updated"
            return value if changed == known else changed.to_value()

        await self.store.aupdate(self._namespace, key_of(sighting.source, sighting.target), change)
        return done

    def _new(self, sighting: Sighting, now: datetime, ctx: EvalContext, turn: str) -> Relationship:
        untagged = Relationship(
            source=sighting.source,
            target=sighting.target,
            tags=(),
            metadata={**_without_count(sighting.metadata), INTERACTIONS: 1},
            first_seen_at=now,
            last_seen_at=now,
            room_ids=(ctx.room_id,),
            counted=(turn,),
            private_interactions=_counted({}, ctx),
        )
        return self._tagged(untagged, normal_tags(sighting.tags), ctx)

    def _tagged(self, known: Relationship, seen: Sequence[str], ctx: EvalContext) -> Relationship:
        """With the tags seen in this room, and where each was seen."""
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
        """Those known and then the new ones, without what the latest of a group excludes."""
        latest = normal_tags(seen)
        tags = tuple(dict.fromkeys([*known, *latest]))
        for group in self.exclusive_tags:
            present = [tag for tag in group if tag in latest] or [tag for tag in group if tag in tags]
            tags = tuple(tag for tag in tags if tag not in group or tag == present[-1])
        # The newest say what is so now.
        return tags[-MAX_TAGS:]

    async def of(self, entity_id: str | None = None) -> list[Relationship]:
        """Relationships from or to an entity, or all; those with the most interactions first, then the latest."""
        if entity_id is None:
            entries = await self.store.alist(self._namespace)
        else:
            entries = await self.store.alist(self._namespace, filter={"source": entity_id})
            entries += await self.store.alist(self._namespace, filter={"target": entity_id})
        read = (_relationship(entry.value) for entry in entries)
        found = [relationship for relationship in read if relationship is not None]
        return sorted(found, key=lambda one: (one.interactions, one.last_seen_at), reverse=True)

    async def between(self, source: str, target: str) -> Relationship | None:
        """What `source` is to `target`, None if nothing is known."""
        return _relationship(await self.store.aget(self._namespace, key_of(source, target)))

    @property
    def _namespace(self) -> Namespace:
        return namespace(self.agent_id, "relationships", "all")


def key_of(source: str, target: str) -> str:
    """Under which key the relationship of that direction is stored."""
    return _digest(joined((source, target)))


def normal_tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    """Tags in lower case, trimmed, with `_` for blanks, each once. One text is a list with commas."""
    parts = [tags] if isinstance(tags, str) else tags
    found = (_BLANKS.sub("_", tag.strip().lower()) for part in parts for tag in part.split(","))
    return tuple(dict.fromkeys(tag for tag in found if tag and len(tag) <= MAX_TAG))


_BLANKS = re.compile(r"\s+")
_NO_ROOM = ""


def _united(one: Sighting, other: Sighting) -> Sighting:
    return replace(
        one,
        tags=(*normal_tags(one.tags), *normal_tags(other.tags)),
        metadata={**one.metadata, **other.metadata},
    )


def _counted(known: Mapping[str, int], ctx: EvalContext) -> Mapping[str, int]:
    """How often it was seen in each private room, once more if this is one."""
    if not ctx.is_private:
        return known
    counts = {**known, ctx.room_id: known.get(ctx.room_id, 0) + 1}
    # What is no longer listed must not count as seen openly: it is of no room.
    dropped = [room for room in counts if room not in (_NO_ROOM, ctx.room_id)][: max(0, len(counts) - ROOMS)]
    lost = sum(counts.pop(room) for room in dropped)
    return {**counts, _NO_ROOM: counts.get(_NO_ROOM, 0) + lost} if lost else counts


def _without_count(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != INTERACTIONS}


def _relationship(value: Value | None) -> Relationship | None:
    try:
        found = None if value is None else Relationship.from_value(value)
        # Both are looked at, because a store may have been written by anybody.
        return found if found is None or (found.interactions and found.first_seen_at) else None
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # nothing that can be counted on; a sighting makes it anew
        return None


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
