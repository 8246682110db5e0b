"""Checks and writes records that a program imports: exports of a memory, or claims from elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, cast

from arbiter._values.kinds import is_list, is_listing, is_mapping
from arbiter._values.parameters import is_several
from arbiter.errors import ParameterError, nearest
from arbiter.memory._entities import Entities, Entity
from arbiter.memory._notes import KEYS, Related, Traces, read_key
from arbiter.memory._records import (
    BELIEVED,
    KINDS,
    Fact,
    Goal,
    Record,
    Relationship,
    Thought,
    mistakes_in,
    readable,
    short_id,
)
from arbiter.memory._tombstones import TIMES, Since, Tombstones
from arbiter.memory.facts import FactRules
from arbiter.memory.facts._changes import OPEN
from arbiter.memory.facts._intake import LONGEST, wrong_text
from arbiter.memory.facts._normal import FactIds, normal_form
from arbiter.memory.facts._own_names import Introduction, OwnNames
from arbiter.memory.facts._privacy import UNFIT, has_secret
from arbiter.memory.facts._profiles import KIND as PROFILES
from arbiter.memory.facts._profiles import Telling
from arbiter.memory.facts._rules import expiry, prior
from arbiter.memory.goals._evaluator import Goals, words_of
from arbiter.memory.reflection._relationships import key_of
from arbiter.memory.stores import MemoryStore, Namespace, Value, namespace
from arbiter.memory.stores._portable import clean
from arbiter.memory.trust import TrustProfile

_log = logging.getLogger("arbiter.memory")

_RECORDS: Mapping[str, type[Record]] = {
    **dict.fromkeys(KINDS.values(), Fact),
    "trust": TrustProfile,
    "relationships": Relationship,
    "goals": Goal,
    "thoughts": Thought,
    "entities": Entity,
}
_OWN = {"trust": "profile", "own_names": "given", KEYS: "facts"}
"""Kinds with one record for each entity, and its key."""
_NOBODY = "?"
"""Stands for an entity without a usable id, to look for more mistakes."""
_LISTS = (KEYS, *_RECORDS, PROFILES, "own_names", "tombstones")
_HEAD = {"entity_id", "agent_id", "exported_at"}
_SOURCES = "source_message_ids"
_IDS = {0: ("entity_id",), 2: (_SOURCES, "room_ids", "speaker")}
"""The keys of ids in a profile or a list of names, by their depth."""
_MOST = 50
_DEEPEST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A record to write, unless there is one already."""

    kind: str
    entity_id: str
    ns: Namespace
    key: str
    value: Value
    record: Record | None = None


class Import:
    """Reads records, collects the mistakes in all of them, and writes them if there are none."""

    def __init__(
        self, store: MemoryStore, *, agent_id: str, rules: FactRules, clock: Callable[[], datetime]
    ) -> None:
        self.store = store
        self.agent_id = agent_id
        self.rules = rules
        self.clock = clock
        self.mistakes: list[str] = []
        self.unknown: list[str] = []
        """What is left out although nothing else is wrong: a newer version may have written it."""
        self._ids: dict[str, FactIds] = {}
        self._believed: dict[tuple[str, tuple[str, ...]], dict[tuple[str, str, bool], tuple[str, str]]] = {}

    async def run(self, given: Any) -> int:
        """The number of records that are new. Raises `ParameterError` with all mistakes, and writes nothing then."""
        planned = [*self._planned(given)]
        if self.mistakes:
            raise ParameterError("import_", "records", f"nothing is imported. {_listing(self.mistakes)}")
        if self.unknown:
            _log.warning("import_ leaves out what it does not know. %s", _listing(self.unknown))
        written = [await self._write(await self._with_id(record)) for record in planned]
        await self.store.aindex(record.ns for record in planned if isinstance(record.record, Fact))
        return sum(written)

    # Reading

    def _planned(self, given: Any) -> Iterable[Planned]:
        if is_mapping(given):
            if self._is_flat(given, "the export"):
                yield from self._of_mapping(given)
            return
        if not is_several(given):
            self.mistakes.append(f"expected an export, or a list of records, got {given!r:.80}.")
            return
        for number, part in enumerate(given):
            where = f"records[{number}]"
            if not self._is_flat(part, where):
                continue
            if is_mapping(part):
                yield from self._of_mapping(part, where)
            else:
                self.mistakes.append(f"{where}: expected a mapping, got {part!r:.80}.")

    def _of_mapping(self, given: Mapping[str, Any], where: str = "") -> Iterable[Planned]:
        """An export if it has one of its lists, or nothing but its head; else a claim."""
        names = set(given)
        if "claim" in names or not (names <= _HEAD or names.intersection(_LISTS)):
            yield from self._of_claim(given, where or "record")
        else:
            yield from self._of_export(given, f"{where}." if where else "")

    def _is_flat(self, value: Any, where: str) -> bool:
        if is_deep := _is_deeper(value, _DEEPEST):
            self.mistakes.append(f"{where}: it is nested deeper than {_DEEPEST} levels.")
        return not is_deep

    def _of_claim(self, given: Mapping[str, Any], where: str) -> Iterable[Planned]:
        """A claim from elsewhere: `entity_id` and `claim`, and any other field of a fact."""
        fields = dict(given)
        entity_id = fields.pop("entity_id", fields.get("subject"))
        known = ("entity_id", *Fact.__dataclass_fields__)
        for name in fields.keys() - {*known}:
            found = str(name)[:80]
            self.mistakes.append(f"{where}.{found}: there is no such field.{nearest(found, known)}")
        entity_id = self._entity(entity_id, f"{where}.")
        now = self.clock().isoformat()
        seen = fields.get("first_seen_at", fields.get("last_seen_at", now))
        subject = fields.get("subject", entity_id)
        own = subject == fields.get("speaker", entity_id)
        value: Value = {
            "id": "",
            "type": "fact",
            "subject": subject,
            "agent_id": self.agent_id,
            "speaker": entity_id,
            "provenance": "self_reported" if own else "third_party",
            "confidence": prior("self_reported" if own else "third_party"),
            "first_seen_at": seen,
            "last_seen_at": seen,
            "speakers": [fields.get("speaker", entity_id)],
            **fields,
        }
        kind = KINDS.get(str(value["type"]), "facts")
        for planned in self._of_record(kind, value, entity_id, where):
            fact = planned.record
            if isinstance(fact, Fact) and fact.last_seen_at < fact.first_seen_at:
                self.mistakes.append(f"{where}.last_seen_at: it is before first_seen_at.")
            if isinstance(fact, Fact) and "expires_at" not in fields:
                fact = replace(fact, expires_at=expiry(fact, self.rules))
                planned = replace(planned, record=fact, value=fact.to_value())
            yield planned

    def _of_export(self, given: Mapping[str, Any], where: str) -> Iterable[Planned]:
        entity_id = self._entity(given.get("entity_id"), where)
        if given.get("agent_id", self.agent_id) != self.agent_id:
            expected = f"expected {self.agent_id!r}, got {given['agent_id']!r:.80}"
            self.mistakes.append(f"{where}agent_id: {expected}. An export belongs to one agent.")
            return
        for name in [str(name)[:80] for name in given if name not in {*_HEAD, *_LISTS}]:
            self.unknown.append(f"{where}{name}: there is no such list.{nearest(name, _LISTS)}")
        if "exported_at" not in given and given.keys().isdisjoint(_LISTS):
            here = where.rstrip(".") or "record"
            self.unknown.append(
                f"{here}: it has neither a claim nor a list of an export, so it says nothing."
            )
        for kind in _LISTS:
            values = given.get(kind, ())
            if not is_listing(values):
                self.mistakes.append(f"{where}{kind}: expected a list, got {values!r:.80}.")
                continue
            for number, value in enumerate(values):
                if kind == "tombstones" and is_mapping(value) and "messages" in value:
                    # Earlier exports have those of a thread, too, if it has the id of the entity.
                    continue
                yield from self._of_record(kind, value, entity_id, f"{where}{kind}[{number}]")

    def _entity(self, given: Any, where: str) -> str:
        if isinstance(given, str) and given.strip():
            return given
        self.mistakes.append(f"{where}entity_id: expected a non-empty text, got {given!r:.80}.")
        return _NOBODY

    def _of_record(self, kind: str, value: Any, entity_id: str, where: str) -> Iterable[Planned]:
        if not is_mapping(value):
            self.mistakes.append(f"{where}: expected a mapping, got {value!r:.80}.")
            return
        given: Value = {str(name): part for name, part in value.items()}
        record: Record | None = None
        if (cls := _RECORDS.get(kind)) is not None:
            wrong = [f"{where}.{name}: {problem}." for name, problem in mistakes_in(cls, given)]
            self.mistakes += wrong
            if wrong:
                return
            record = cls.from_value(given)
            known = [part.name for part in fields(cast(Any, cls))]
            for name in [name[:80] for name in given if name not in known]:
                self.unknown.append(f"{where}.{name}: there is no such field.{nearest(name, known)}")
        if (problem := self._refused(kind, record, given)) is not None:
            self.mistakes.append(f"{where}{problem}.")
            return
        place = self._place(kind, record, given, entity_id)
        if place is None:
            self.mistakes.append(f"{where}: it has no key.")
            return
        # With all fields: records are also looked for by fields that were not given, such as the state.
        value = given if record is None else {**given, **record.to_value()}
        try:
            clean(value)
        except TypeError as error:
            self.mistakes.append(f"{where}: {error}")
            return
        yield Planned(kind=kind, entity_id=entity_id, ns=place[0], key=place[1], value=value, record=record)

    def _refused(self, kind: str, record: Record | None, value: Value) -> str | None:
        """The field and the reason for which a readable record may not be imported, without its words."""
        if isinstance(record, Fact):
            if record.agent_id != self.agent_id:
                return f".agent_id: expected {self.agent_id!r}, got {record.agent_id!r:.80}"
            if (wrong := wrong_text(record)) is not None:
                return f".{wrong}: expected a text of 1 to {LONGEST:,} characters"
            if not 0 <= record.confidence <= 1:
                return f".confidence: expected 0 to 1, got {record.confidence!r}"
            if has_secret(record.claim, subject=record.subject, slot=record.slot, value=record.value):
                return f".claim: it holds {UNFIT}"
        elif kind == KEYS:
            return None if read_key(value) else ": it is no key of an entity"
        elif any(has_secret(text) for text in _words_of(record, value)):
            return f": it holds {UNFIT}"
        return None if record is not None else _unreadable(kind, value)

    def _place(
        self, kind: str, record: Record | None, value: Value, entity_id: str
    ) -> tuple[Namespace, str] | None:
        scope, key = entity_id, _OWN.get(kind)
        match record:
            case Fact():
                key = record.id
            case Relationship():
                scope, key = "all", key_of(record.source, record.target)
            case Goal() | Thought():
                scope, key = record.room_id, record.id
            case Entity():
                scope, key = "all", record.id
            case _:
                if kind == PROFILES:
                    name = value.get("schema")
                    key = name if isinstance(name, str) and name else None
                elif kind == "tombstones":
                    # Earlier exports do not say what was forgotten.
                    what = value.get("what", "everything")
                    key = what if what in TIMES else None
        if not key and not isinstance(record, Fact):
            return None
        return namespace(self.agent_id, kind, scope), key or ""

    # Writing

    async def _with_id(self, planned: Planned) -> Planned:
        """A claim without an id with the one that it would get in a conversation."""
        fact = planned.record
        if not isinstance(fact, Fact) or fact.id:
            return planned
        fact = replace(fact, id=await self._own_id(fact, planned))
        return replace(planned, key=fact.id, record=fact, value=fact.to_value())

    async def _own_id(self, fact: Fact, planned: Planned) -> str:
        ids = self._ids.setdefault(planned.entity_id, FactIds(self.store, self.agent_id, planned.entity_id))
        return (await ids.ready()).of(fact.subject, fact.claim)

    async def _is_believed(self, fact: Fact, planned: Planned) -> bool:
        """True if this store believes the same claim under another id."""
        now = self.clock()
        if not _holds(fact, now):
            return False
        kinds = BELIEVED if planned.kind in BELIEVED else (planned.kind,)
        place = planned.entity_id, kinds
        if place not in self._believed:
            spaces = [namespace(self.agent_id, kind, planned.entity_id) for kind in kinds]
            values = [entry.value for ns in spaces for entry in await self.store.alist(ns)]
            known = [each for each in readable(Fact, values) if _holds(each, now)]
            self._believed[place] = {_said(each, now): _place_of(each) for each in known}
        here = _place_of(fact)
        return self._believed[place].setdefault(_said(fact, now), here) != here

    async def _write(self, planned: Planned) -> bool:
        """Write a record if there is none, and its content was not forgotten. True if it is new."""
        record, added = planned.record, False

        def change(value: Value | None) -> Value | None:
            nonlocal added
            added = value is None
            return kept if value is None else value

        if isinstance(record, Fact | Thought) and await self._is_forgotten(record):
            return False
        if isinstance(record, Fact) and await self._is_believed(record, planned):
            return False
        kept = await self._not_forgotten(planned)
        if kept is None:
            return False
        if isinstance(record, Relationship):
            related = Related(self.store, self.agent_id)
            await related.update(planned.key, record.source, record.target, change)
        elif isinstance(record, Entity):
            entities = Entities(self.store, self.agent_id)
            added = record.id not in await entities.get([record.id])
            if added:
                await entities.register(record)
        else:
            await self.store.aupdate(planned.ns, planned.key, change)
        await self._trace(planned)
        return added

    async def _is_forgotten(self, record: Fact | Thought) -> bool:
        """True if all messages of a record are forgotten, so that an old export does not bring it back."""
        rooms = record.room_ids if isinstance(record, Fact) else (record.room_id,)
        return _rests_on(record.source_message_ids, await self._buried(rooms))

    async def _not_forgotten(self, planned: Planned) -> Value | None:
        """The value of a record without the fields of a profile, or the names, whose messages are all forgotten;
        None if nothing is left."""
        part = {PROFILES: "fields", OwnNames.kind: OwnNames.field}.get(planned.kind, "")
        parts = planned.value.get(part)
        left: Any
        if is_mapping(parts):
            buried = await self._buried(id for field in parts.values() for id in _of(field, "room_ids"))
            left = {
                name: field for name, field in parts.items() if not _rests_on(_of(field, _SOURCES), buried)
            }
        elif is_list(parts):
            _, rooms = await Traces(self.store, self.agent_id, planned.entity_id).read()
            buried = await self._buried(rooms)
            left = [name for name in parts if not _rests_on(_of(name, _SOURCES), buried)]
        else:
            return planned.value
        return {**planned.value, part: left} if left or not parts else None

    async def _buried(self, rooms: Iterable[str]) -> set[str]:
        buried = set[str]()
        for room_id in dict.fromkeys(rooms):
            buried |= (await Tombstones(self.store, self.agent_id, room_id).read()).forgotten
        return buried

    async def _trace(self, planned: Planned) -> None:
        """Note what a request to forget, or another export, must find."""
        record, scope = planned.record, planned.ns[-1]
        if isinstance(record, Fact):
            own = namespace(self.agent_id, planned.kind, record.speaker)[-1]
            traces = Traces(self.store, self.agent_id, record.speaker)
            if own != scope and record.speaker != self.agent_id:
                await traces.has_told(record.id, kind=planned.kind, scope=planned.entity_id)
            for room_id in record.room_ids:
                await traces.was_in(room_id)
        if isinstance(record, Goal):
            await Goals(self.store, self.agent_id).belongs(record)
        if isinstance(record, Thought):
            for entity_id in record.entity_ids:
                await Traces(self.store, self.agent_id, entity_id).was_in(record.room_id)


def _listing(found: Sequence[str]) -> str:
    more = f" And {len(found) - _MOST} more." if len(found) > _MOST else ""
    return " ".join(found[:_MOST]) + more


def _unreadable(kind: str, value: Value) -> str | None:
    """The first part of a record of this kind that no reader could use, and the reason."""
    parts: dict[str, tuple[type[Record], Any]] = {}
    if kind == "tombstones":
        parts[""] = Since, value
    elif kind == PROFILES:
        if not is_mapping(told := value.get("fields")):
            return ".fields: expected a mapping of fields"
        parts = {f".fields.{name}": (Telling, field) for name, field in told.items()}
    elif kind == OwnNames.kind:
        if not is_listing(names := value.get(OwnNames.field)):
            return f".{OwnNames.field}: expected a list of names"
        parts = {f".{OwnNames.field}[{number}]": (Introduction, name) for number, name in enumerate(names)}
    for place, (cls, part) in parts.items():
        if not is_mapping(part):
            return f"{place}: expected a mapping"
        for name, problem in mistakes_in(cls, part):
            return f"{place}.{name}: {problem}"
        if cls is Telling and "value" not in part:
            return f"{place}.value: it is missing"
    return None


def _holds(fact: Fact, now: datetime) -> bool:
    return fact.state in OPEN and not fact.expired(now)


def _said(fact: Fact, now: datetime) -> tuple[str, str, bool]:
    return fact.subject, normal_form(fact.claim), fact.planned(now)


def _place_of(fact: Fact) -> tuple[str, str]:
    return KINDS[fact.type], fact.id


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if is_mapping(value) else value if is_listing(value) else None
    return parts is not None and (levels == 0 or any(_is_deeper(part, levels - 1) for part in parts))


def _rests_on(sources: Collection[str], buried: Collection[str]) -> bool:
    return bool(sources) and {*map(short_id, sources)}.issubset(buried)


def _of(part: Any, key: str) -> list[str]:
    """The ids under a key of a field or a name."""
    return [*_texts_in(part.get(key))] if is_mapping(part) else []


def _words_of(record: Record | None, value: Value) -> Iterable[str]:
    """The texts of a record that are no ids."""
    match record:
        case Thought():
            return [record.text]
        case Goal():
            return words_of(record)
        case Relationship():
            return [*(tag.replace("_", " ") for tag in record.tags), *_texts_in(record.metadata)]
        case None:
            return _texts_in(value, _IDS)
        case _:
            return ()


def _texts_in(value: Any, but: Mapping[int, Collection[str]] | None = None, depth: int = 0) -> Iterable[str]:
    """The texts in a value of JSON, without those under the keys `but` of their depth."""
    if isinstance(value, str):
        yield value
    elif is_mapping(value):
        for key, part in value.items():
            if key not in (but or {}).get(depth, ()):
                yield from _texts_in(part, but, depth + 1)
    elif is_listing(value):
        for part in value:
            yield from _texts_in(part, but, depth + 1)
