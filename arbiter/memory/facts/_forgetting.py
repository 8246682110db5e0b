"""Deletes facts with their vectors, the facts derived from them, and the thoughts that rest on them, and
buries their messages, so that none of it is learned again from these.

Reads the records of one entity only: its own, those that it has told about others (see
`arbiter.memory._notes`), and the thoughts of its rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from arbiter.memory._notes import Related, Traces
from arbiter.memory._records import KINDS, Fact, Relationship, Thought, readable
from arbiter.memory._tombstones import Before, Forgettings, Tombstones
from arbiter.memory._turns import AT_WORK
from arbiter.memory.facts._bin import Bin, Binned, empty_bins
from arbiter.memory.facts._changes import OPEN, links_of, unlinked
from arbiter.memory.facts._normal import FactIds, begins_word, sought
from arbiter.memory.facts._own_names import OwnNames
from arbiter.memory.facts._profiles import Profiles, StoredField, left_of, listed_as
from arbiter.memory.facts._rules import FactRules
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace

_PASSES = 5
_SHORTEST = 3
"""Values of facts with fewer characters are not looked for in other texts."""


class Forgotten(int):
    """How many facts were forgotten. `id` names the forgetting for `Memory.undo`; None if it cannot be undone
    or has found nothing."""

    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The selection to forget.

    `fact` selects facts, `text` what else mentions them, by a text and the name of its field, if it has one: thoughts,
    tags and metadata of relationships, and profiles. `fields` are those of profiles, as "UserProfile.city".
    `messages` are buried, by room, and `asked` are messages whose thoughts go. If nothing is `named` but messages of
    which nothing was learned, unread ones of other threads are learned from as before. With `told`, facts that the
    entity alone has told about others are looked at too. `everything` is the time of a wish to forget all:
    all relationships go, too, and unread messages from before it are not learned from. If the `messages` were
    `edited`, they stay sources, what their earlier texts replaced is back, and nothing can be undone.
    """

    fact: Callable[[Fact], bool]
    text: Callable[[str, str], bool] = lambda text, name: False
    fields: Collection[str] = ()
    messages: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    asked: Collection[str] = ()
    named: bool = True
    told: bool = False
    everything: datetime | None = None
    edited: bool = False


class Forgetting:
    """One forgetting of an entity. `gone` are the facts that it has deleted so far, by scope and id, and `fields` the
    fields of profiles that were named, with their values."""

    def __init__(
        self, store: MemoryStore, rules: FactRules, *, agent_id: str, entity_id: str, now: datetime
    ) -> None:
        self.store = store
        self.rules = rules
        self.agent_id = agent_id
        self.entity_id = entity_id
        self.now = self.wished_at = now
        self.gone: dict[tuple[str, str], Fact] = {}
        self.fields: dict[str, Any] = {}
        self._spaces = [namespace(agent_id, kind, entity_id) for kind in KINDS.values()]
        self._traces = Traces(store, agent_id, entity_id)
        self._bin = Bin(store, agent_id, entity_id)
        self._id: str | None = None
        self._forgettings = Forgettings(store, agent_id, entity_id)
        self._before: datetime | None = None
        """The time of the forgetting before."""
        self._known: dict[Namespace, dict[str, tuple[Value, Fact | None]]] = {}
        """The records as they were read last."""

    async def forget(self, wanted: Wanted) -> Forgotten:
        """Delete everything `wanted`, including concurrent writes."""
        await empty_bins(self.store, self.agent_id, self.now)
        self.fields = dict.fromkeys(wanted.fields)
        if wanted.edited:
            self.rules = replace(self.rules, undo_within=None)
        else:
            self._before = await self._forgettings.at("newest")
        if wanted.everything is not None:
            await self._note_everything(wanted.everything, wanted.messages)
        rooms = {room_id: {*ids} for room_id, ids in wanted.messages.items()}
        # Tombstones come first: concurrent writers look for them after each write.
        if not wanted.edited:
            await self._bury(rooms)
        found = await self._found(wanted)
        if not wanted.edited and (found or wanted.named):
            await self._note_time()
        for _ in range(_PASSES):
            if not wanted.edited:
                buried = await self._sources(fact for _, fact in found)
                await self._bury(buried)
                for room_id, ids in buried.items():
                    rooms.setdefault(room_id, set()).update(ids)
            self.gone |= {(ns[-1], fact.id): fact for ns, fact in found}
            # Facts go last: after a crash in between, the same wish finds them again, and by them what mentions them.
            await self._forget_mentions(wanted, rooms)
            await self._delete([(ns, fact.id, fact.to_value()) for ns, fact in found])
            if not found or not (found := await self._found(wanted)):
                break
        if self.gone:
            await self._unlink(reopen=wanted.edited)
        if wanted.everything is not None:
            await self._forget_ids()
        forgotten = Forgotten(len(self.gone))
        forgotten.id = self._id
        return forgotten

    async def _note_time(self) -> None:
        """Have unread messages from before teach nothing, but for those of the room of the wish: its evaluators read
        these together with it."""
        if self._before is None or self._before < self.wished_at:
            if room_id := AT_WORK.get():
                before = Before(self.store, self.agent_id, room_id)
                noted, until = await before.read(self.entity_id)
                # Else it has not had a turn since the forgetting before, which hides what is unread.
                if self._before is None or (noted is not None and noted >= self._before):
                    await before.note(self.entity_id, self.wished_at, until)
            await self._forgettings.note("newest", self.wished_at)

    async def _note_everything(self, at: datetime, rooms: Iterable[str]) -> None:
        before = await self._forgettings.at("everything")
        await self._open_bin(is_everything=True, before=before)
        latest = at if before is None else max(before, at)
        # The rooms come first: a turn after a crash would bury the wish with the messages before it.
        for room_id in rooms:
            tombstones = Tombstones(self.store, self.agent_id, room_id)
            await tombstones.sweep(self.entity_id, (), before=latest)
        await self._forgettings.note("everything", latest)

    # Facts

    async def _found(self, wanted: Wanted) -> list[tuple[Namespace, Fact]]:
        """The facts to delete, with those derived from them. The scope belongs to the id of a fact: two
        users may have told the same about somebody."""
        told = await told_about_others(self.store, self.agent_id, self.entity_id) if wanted.told else []
        chosen = {(ns[-1], fact.id) for ns, fact in told if wanted.fact(fact)} | {*self.gone}
        own = self._spaces[0][-1]
        found = [(ns, fact) for ns in self._near(chosen) for fact in await self._facts(ns)]
        chosen |= {(own, fact.id) for ns, fact in found if ns[-1] == own and wanted.fact(fact)}
        size = -1
        while size != len(chosen):
            size = len(chosen)
            chosen |= {
                (ns[-1], fact.id)
                for ns, fact in found
                if any((ns[-1], premise) in chosen for premise in fact.derived_from)
            }
        return [(ns, fact) for ns, fact in found if (ns[-1], fact.id) in chosen]

    async def _unlink(self, *, reopen: bool) -> None:
        for ns in self._near(self.gone):
            gone = {id for scope, id in self.gone if scope == ns[-1]}
            # As the last look has read them: it found nothing left to delete.
            for _, fact in self._known.get(ns, {}).values():
                if fact is not None and unlinked(fact, gone) is not fact:
                    await self._into_bin([(ns, fact.id, {"links": links_of(fact)})], {})
                    free = partial(unlinked, gone=gone, reopen=reopen)
                    await self.store.aupdate(ns, fact.id, partial(Fact.altered, change=free))

    async def _facts(self, ns: Namespace) -> list[Fact]:
        before = self._known.get(ns)
        if before is None:
            entries = await self.store.alist(ns)
        else:
            # Another look is for what was written meanwhile. Closed records do not change.
            entries = [e for state in OPEN for e in await self.store.alist(ns, filter={"state": state})]
        now = {
            key: known
            for key, known in (before or {}).items()
            if (ns[-1], key) not in self.gone and known[1] is not None and known[1].state not in OPEN
        }
        for entry in entries:
            known = (before or {}).get(entry.key)
            # Reading a fact costs more than comparing values, and most are the same at each look.
            same = known is not None and known[0] == entry.value
            now[entry.key] = known if known is not None and same else (entry.value, Fact.read(entry.value))
        self._known[ns] = now
        return [fact for _, fact in now.values() if fact is not None]

    def _near(self, chosen: Iterable[tuple[str, str]]) -> list[Namespace]:
        """The entity's own namespaces, and those of others with chosen facts."""
        scopes = dict.fromkeys([self._spaces[0][-1], *(scope for scope, _ in chosen)])
        return [(*ns[:-1], scope) for scope in scopes for ns in self._spaces]

    async def _forget_ids(self) -> None:
        ns = FactIds(self.store, self.agent_id, self.entity_id).space
        await self._delete([(ns, entry.key, entry.value) for entry in await self.store.alist(ns)])

    # What mentions them

    async def _forget_mentions(self, wanted: Wanted, rooms: dict[str, set[str]]) -> None:
        """Forget all but facts. Adds the messages of fields of profiles that were named to those in `rooms`."""
        messages = {id for ids in rooms.values() for id in ids}
        await self._forget_names(None if wanted.everything else messages)
        for room_id, ids in (await self._forget_profiles(wanted, messages)).items():
            rooms.setdefault(room_id, set()).update(ids)
        await self._forget_thoughts(wanted, rooms)
        await self._forget_relationships(wanted)

    async def _forget_names(self, messages: Collection[str] | None) -> None:
        """Forget the names given in these messages, or all."""
        names = OwnNames(self.store, self.agent_id, self.entity_id)
        gone = [
            one
            for one in await names.all()
            if messages is None or not {*messages}.isdisjoint(one.source_message_ids)
        ]
        if gone:
            await self._into_bin(
                [(names.space, names.key, {names.field: [one.to_value() for one in gone]})], {}
            )
            await names.remove(gone)

    async def _forget_profiles(self, wanted: Wanted, messages: Collection[str]) -> dict[str, set[str]]:
        """Forget fields. Returns the messages of those that were named, by room."""
        rooms: dict[str, set[str]] = {}
        profiles = Profiles(self.store, self.agent_id, self.entity_id, self.rules, self.now)
        if not await self.store.alist(profiles.space, limit=1):
            return rooms  # most users have none, and reading their facts once more is not free
        own = self._spaces[0][-1]
        gone = [fact for (scope, _), fact in self.gone.items() if scope == own]
        near = [(ns, fact) for ns in self._spaces for fact in await self._facts(ns)]
        kept = [fact for ns, fact in near if (ns[-1], fact.id) not in self.gone]

        def left(key: str, name: str, field: StoredField) -> StoredField | None:
            if wanted.everything is not None or listed_as(key, name) in wanted.fields:
                return None
            return left_of(name, field, gone=gone, kept=kept, messages=messages, unwanted=wanted.text)

        for key, value in await profiles.taken_by(left):
            for name, taken in value["fields"].items():
                if (listed := listed_as(key, name)) in wanted.fields:
                    self.fields[listed] = taken["value"]
                    for room_id in taken["room_ids"]:
                        rooms.setdefault(room_id, set()).update(taken["source_message_ids"])
            await self._into_bin([(profiles.space, key, value)], {})
            await self._bury(rooms)
            await profiles.keep(key, left)
        return rooms

    async def _forget_thoughts(self, wanted: Wanted, rooms: Mapping[str, Collection[str]]) -> None:
        _, visited = await self._traces.read()
        messages = {id for ids in rooms.values() for id in ids} | {*wanted.asked}
        mentions = self._mentions(wanted)
        ids = {id for _, id in self.gone}

        def rests_on_it(thought: Thought) -> bool:
            return not (messages.isdisjoint(thought.source_message_ids) and ids.isdisjoint(thought.fact_ids))

        def is_meant(thought: Thought) -> bool:
            takes_part = self.entity_id in thought.entity_ids or not thought.entity_ids
            return takes_part and (wanted.everything is not None or mentions(thought.text, ""))

        found: list[tuple[Namespace, str, Value]] = []
        for room_id in dict.fromkeys([*rooms, *visited]):
            ns = namespace(self.agent_id, "thoughts", room_id)
            entries = await self.store.alist(ns)
            thoughts = readable(Thought, (entry.value for entry in entries))
            gone = [each for each in thoughts if rests_on_it(each) or is_meant(each)]
            # The messages of a thought that was found by its words would lead to the same thought again.
            told = {id for each in gone if not rests_on_it(each) for id in each.source_message_ids}
            if not wanted.edited:
                tombstones = Tombstones(self.store, self.agent_id, room_id)
                await tombstones.bury((), at=self.now, asked=told)
            found += [(ns, each.id, each.to_value()) for each in gone]
        await self._delete(found)

    async def _forget_relationships(self, wanted: Wanted) -> None:
        mentions = self._mentions(wanted)

        def change(value: Value | None) -> Value | None:
            return None if value is None or wanted.everything else _without(value, mentions)

        def lost(value: Value) -> Value:
            after = change(value)
            if after is None:
                return value
            return {**value, "tags": [tag for tag in value["tags"] if tag not in after["tags"]]}

        related = Related(self.store, self.agent_id)
        found = [each for each in await related.entries(self.entity_id) if change(each.value) != each.value]
        await self._into_bin([(related.space, each.key, lost(each.value)) for each in found], {})
        for each in found:
            source, target = str(each.value.get("source")), str(each.value.get("target"))
            await related.update(each.key, source, target, change)

    def _mentions(self, wanted: Wanted) -> Callable[[str, str], bool]:
        """A test for texts, under a name or "", that mention what was forgotten. The words are compared now and kept
        nowhere."""
        parts = {
            sought(part)
            for fact in self.gone.values()
            for part in (fact.claim, fact.value or "")
            if len(part.strip()) >= _SHORTEST
        }

        def mentions(text: str, name: str) -> bool:
            here = sought(text)
            return wanted.text(text, name) or any(part in here or begins_word(part, name) for part in parts)

        return mentions

    # Writing

    async def _sources(self, facts: Iterable[Fact]) -> dict[str, set[str]]:
        """The messages of facts, for each room in which they were told; for each of the entity's rooms if that
        is not known."""
        rooms: dict[str, set[str]] = {}
        for fact in facts:
            for room_id in fact.room_ids or (await self._traces.read())[1]:
                rooms.setdefault(room_id, set()).update(fact.source_message_ids)
        return rooms

    async def _bury(self, rooms: Mapping[str, Collection[str]]) -> None:
        places = {room_id: Tombstones(self.store, self.agent_id, room_id) for room_id in rooms}
        fresh = {room_id: {*ids} - (await places[room_id].read()).forgotten for room_id, ids in rooms.items()}
        await self._into_bin([], {room_id: ids for room_id, ids in fresh.items() if ids})
        for room_id, ids in rooms.items():
            await places[room_id].bury(ids, at=self.now)
            await self._traces.was_in(room_id)

    async def _delete(self, records: Sequence[tuple[Namespace, str, Value]]) -> None:
        if not records:
            return
        await self._into_bin(records, {})
        for ns, key, _ in records:
            # Under the record's lock, so that a concurrent mention cannot restore the record.
            await self.store.aupdate(ns, key, lambda value: None)

    async def _into_bin(
        self, records: Sequence[tuple[Namespace, str, Value]], messages: Mapping[str, Collection[str]]
    ) -> None:
        """Put into the bin, which is one record, what is about to be deleted: few times, and much at a time."""
        if records or any(messages.values()):
            await self._open_bin()
            if self._id is not None:
                await self._bin.add(self._id, records, messages)

    async def _open_bin(self, *, is_everything: bool = False, before: datetime | None = None) -> None:
        if self._id is not None or self.rules.undo_within is None:
            return
        self._id = uuid4().hex
        binned = Binned(
            id=self._id,
            entity_id=self.entity_id,
            at=self.wished_at,
            until=self.now + self.rules.undo_within,
            is_everything=is_everything,
            everything_at=before,
            newest_before=self._before,
        )
        await self._bin.open(binned)


async def told_about_others(
    store: MemoryStore, agent_id: str, entity_id: str, limit: int | None = None
) -> list[tuple[Namespace, Fact]]:
    """The facts about others that an entity alone has told, the newest first."""
    traces = Traces(store, agent_id, entity_id)
    places: dict[Namespace, list[str]] = {}
    for id, kind, scope in (await traces.read())[0][:limit]:
        places.setdefault(namespace(agent_id, kind, scope), []).append(id)
    found: list[tuple[Namespace, Fact]] = []
    for ns, ids in places.items():
        records = await store.aget_many(ns, ids)
        for id in ids:
            if id not in records:
                await traces.drop(id)
        facts = [Fact.read(value) for value in records.values()]
        found += [(ns, fact) for fact in facts if fact is not None and fact.speakers == (entity_id,)]
    return found


def _without(value: Value, unwanted: Callable[[str, str], bool]) -> Value:
    """A relationship without the tags and metadata whose texts are `unwanted`."""
    known = Relationship.read(value)
    if known is None:
        return value
    tags = tuple(tag for tag in known.tags if not unwanted(tag.replace("_", " "), ""))
    metadata = {key: part for key, part in known.metadata.items() if not unwanted(str(part), key)}
    changed = replace(
        known,
        tags=tags,
        metadata={**metadata, "interactions": known.interactions},
        tag_rooms={tag: rooms for tag, rooms in known.tag_rooms.items() if tag in tags},
        confined_tags=tuple(tag for tag in known.confined_tags if tag in tags),
    )
    return value if changed == known else changed.to_value()
