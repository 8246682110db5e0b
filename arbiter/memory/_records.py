"""The records in a store, dataclasses in the program and JSON in the store, with times in aware UTC; and the claims
from which facts are made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import MINYEAR, UTC, datetime, tzinfo
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from arbiter.errors import ParameterError, with_article
from arbiter.memory.stores import MemoryStore, namespace
from arbiter.memory.stores._portable import digest_of

ClaimType = Literal["fact", "status", "opinion"]
FactState = Literal["active", "superseded", "corrected", "disputed", "retracted", "expired"]
Provenance = Literal["self_reported", "third_party", "inferred"]
Visibility = Literal["room", "entity", "agent"]
Sensitivity = Literal["public", "personal", "sensitive"]
GoalStatus = Literal["IN_PROGRESS", "DONE", "FAILED"]

KINDS: Mapping[str, str] = {"fact": "facts", "status": "status", "opinion": "opinions"}
"""The kind of namespace for each type of claim."""
BELIEVED = ("facts", "status")
"""All of these kinds except opinions."""
SCHEMA_VERSION = 1

R = TypeVar("R", bound="Record")


class Record:
    """Base of everything that a store keeps. `to_value` returns plain JSON; `from_value` reads it.

    `from_value` ignores unknown keys, so that an older process can read the records of a newer one. It raises
    `ValueError` for a value that is not a record of this class.
    """

    def to_value(self) -> dict[str, Any]:
        return {part.name: _plain(getattr(self, part.name)) for part in fields(cast(Any, self))}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        try:
            given: dict[str, Any] = {}
            for name, (types, members) in _types_of(cast(Any, cls)).items():
                if name in value:
                    found = _read(value[name], types)
                    found = given[name] = with_short_ids(found) if name in _MESSAGE_IDS else found
                    if not _is(found, types, members):
                        raise TypeError(f"{name!r} is a {type(found).__name__}")
            return cls(**given)
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no {cls.__name__} in the store's value: {error}") from None

    @classmethod
    def altered(cls, value: dict[str, Any] | None, change: Callable[[Self], Self]) -> dict[str, Any] | None:
        """A store's value after a change of its record; the same object if nothing changes, or if the value cannot
        be read."""
        record = cls.read(value)
        after = None if record is None else change(record)
        return value if after is None or after is record else after.to_value()

    @classmethod
    def read(cls, value: Mapping[str, Any] | None) -> Self | None:
        """As `from_value`; None if there is no value, or if it cannot be read."""
        try:
            return None if value is None else cls.from_value(value)
        except ValueError:
            return None


class Records:
    """The records of one `kind` that an agent keeps about one entity, or of one room: `scope` is its id. Some kinds
    have the records of "all" in one place."""

    kind: ClassVar[str]

    def __init__(self, store: MemoryStore, agent_id: str, scope: str = "all") -> None:
        self.store = store
        self.agent_id = agent_id
        self.scope = scope
        self.space = namespace(agent_id, self.kind, scope)


Types = tuple[type, ...]


@cache
def _types_of(kind: type[Record]) -> Mapping[str, tuple[Types, Types]]:
    """For each field the types of its value, and the types of its members if it is a tuple."""
    return {name: _types(hint) for name, hint in get_type_hints(kind).items() if not name.startswith("_")}


def _types(hint: Any) -> tuple[Types, Types]:
    origin: Any = get_origin(hint)
    parts: tuple[Any, ...] = get_args(hint)
    if origin is Literal:
        # All literals here are texts. Their values are not checked: a newer process may have more of them.
        return (str,), ()
    if origin in (Union, UnionType):
        found = [_types(part) for part in parts]
        return sum((types for types, _ in found), ()), sum((members for _, members in found), ())
    if origin is tuple:
        return (tuple,), _types(parts[0])[0]
    return ((float, int) if hint is float else (origin or hint,)), ()


def _read(value: Any, types: Types) -> Any:
    """A value of JSON as a field of these types has it."""
    if datetime in types:
        return None if value is None else time_of(value)
    return tuple(value) if tuple in types else value


def short_id(id: str) -> str:
    """The id of a message, or a hash in place of a very long one: cursors, facts and tombstones keep many."""
    return id if len(id) <= _LONGEST_ID else "sha256:" + digest_of(id)


_LONGEST_ID = 1_000
_MESSAGE_IDS = frozenset(("source_message_ids", "messages", "asked", "message_id", "last_id", "tail_ids"))
"""The fields with ids of messages. Records that were written before have long ones in full."""


def with_short_ids(found: Any) -> Any:
    """The same with short ids, for an id or several; any other value as it is."""
    parts: Any = found
    if isinstance(found, str):
        return short_id(found)
    if not isinstance(found, list | tuple) or max(map(len, map(str, parts)), default=0) <= _LONGEST_ID:
        return parts
    short = [short_id(part) if isinstance(part, str) else part for part in parts]
    return short if isinstance(found, list) else tuple(short)


def _is(value: Any, types: Types, members: Types) -> bool:
    if isinstance(value, bool):  # isinstance counts bool as int
        return bool in types
    parts: Any = value
    if not isinstance(value, types):
        return False
    return type(value) is not tuple or not members or all(isinstance(part, members) for part in parts)


def _plain(found: Any) -> Any:
    parts: Any = found
    if isinstance(found, Record):
        return found.to_value()
    if isinstance(found, datetime):
        return time_in(found, UTC).isoformat()
    if isinstance(found, tuple):
        return [_plain(part) for part in parts]
    return dict(parts) if isinstance(found, Mapping) else parts


def mistakes_in(kind: type[Record], value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields of a value that is to become a record, each with the problem; none if it can."""
    wrong: dict[str, str] = {}
    hints = get_type_hints(kind)
    for part in fields(cast(Any, kind)):
        name = part.name
        if name not in value:
            if part.default is MISSING and part.default_factory is MISSING:
                wrong[name] = "it is missing"
            continue
        given: Any = value[name]
        items: Any = value[name]
        is_list = isinstance(given, list)
        types, members = _types_of(cast(Any, kind))[name]
        inside = next((member for member in members if issubclass(member, Record)), None)
        if is_list and inside is not None:
            for number, item in enumerate(items):
                place = f"{name}[{number}]"
                if isinstance(item, Mapping):
                    found = mistakes_in(inside, cast("Mapping[str, Any]", item))
                    wrong |= {f"{place}.{part}": problem for part, problem in found}
                else:
                    wrong[place] = f"expected a mapping, got {item!r:.80}"
            continue
        if datetime in types:
            try:
                if given is None and type(None) in types:
                    continue
                time_of(items)
            except (TypeError, ValueError):
                wrong[name] = f"expected a time as ISO 8601, got {given!r:.80}"
        elif not _is(tuple(items) if is_list and tuple in types else given, types, members):
            wrong[name] = f"{with_article(type(items).__name__)} does not fit"
        elif get_origin(hints[name]) is Literal and given not in get_args(hints[name]):
            wrong[name] = f"expected one of {', '.join(map(repr, get_args(hints[name])))}, got {given!r:.80}"
    if not wrong:
        try:
            kind.from_value(value)
        except ValueError as error:
            wrong["value"] = str(error).partition(": ")[2] or str(error)
    return list(wrong.items())


def readable(kind: type[R], values: Iterable[Mapping[str, Any]]) -> list[R]:
    """The records of that class in a store's values, in order; values that cannot be read are left out."""
    return [record for value in values if (record := kind.read(value)) is not None]


def utc_now() -> datetime:
    return datetime.now(UTC)


def time_of(text: str | datetime) -> datetime:
    """An aware UTC time from ISO 8601. A time without a zone is read as UTC. Raises `ValueError`."""
    when = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else time_in(when, UTC)


def latest(values: Sequence[str], most: int, keep: Collection[str]) -> tuple[str, ...]:
    """The last `most` of these values, oldest first. Those in `keep` stay as long as there are others to leave out."""
    gone = [value for value in values if value not in keep][: max(len(values) - most, 0)]
    return tuple(value for value in values if value not in gone)[-most:]


def time_in(when: datetime, zone: tzinfo | None) -> datetime:
    """An aware time in that zone; the first or the last one that there is if the zone's calendar has none for it, such
    as 9999-12-31T23:59Z in Tokyo."""
    try:
        return when.astimezone(zone)
    except OverflowError:
        return (
            datetime.min.replace(tzinfo=zone) if when.year == MINYEAR else datetime.max.replace(tzinfo=zone)
        )


def checked_time(owner: str, parameter: str, value: Any) -> datetime | None:
    """`value` as an aware UTC time; None for None. Raises `ParameterError`."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        problem = f"expected a datetime, got {value!r:.80}. Write datetime(2026, 1, 31, tzinfo=UTC)."
        raise ParameterError(owner, parameter, problem)
    return time_of(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Record):
    """One claim about `subject`, an entity's id, and the evidence for it.

    `type` is `fact` (stays true), `status` (true for now) or `opinion`. A `superseded` fact was true before, a
    `corrected` one was a slip. `confidence` is 0 to 0.99. `speaker` is the entity that said it first,
    `speakers` are all that said it. `room_ids` and `source_message_ids` list the places, oldest first.
    `valid_from` and `valid_to` bound the time when it held, as far as known; a status is not believed after
    `expires_at`. `counted` are the turns whose mentions were counted last, so that none is counted twice.
    """

    id: str
    claim: str
    type: ClaimType
    subject: str
    agent_id: str
    provenance: Provenance
    speaker: str
    confidence: float
    first_seen_at: datetime
    last_seen_at: datetime
    mention_count: int = 1
    source_message_ids: tuple[str, ...] = ()
    room_ids: tuple[str, ...] = ()
    slot: str | None = None
    value: str | None = None
    kind: str | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    state: FactState = "active"
    supersedes: str | None = None
    superseded_by: str | None = None
    refines: str | None = None
    contradicts: tuple[str, ...] = ()
    derived_from: tuple[str, ...] = ()
    sensitivity: Sensitivity = "personal"
    visibility: Visibility = "entity"
    expires_at: datetime | None = None
    needs_embedding: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    speakers: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def is_told_in(self, room_id: str) -> bool:
        """False if the fact is visible in other rooms only."""
        return self.visibility != "room" or room_id in self.room_ids

    def expired(self, now: datetime) -> bool:
        """True if the fact no longer holds: it has ended, or was not mentioned for too long."""
        return any(end is not None and end <= now for end in (self.expires_at, self.valid_to))

    def planned(self, now: datetime) -> bool:
        """True if the fact does not hold yet: a status, or the successor of another fact, that begins later."""
        begins_later = self.valid_from is not None and self.valid_from > now
        return begins_later and (self.type == "status" or self.supersedes is not None)

    def state_at(self, when: datetime) -> FactState | None:
        """The state at that time, by what is known today; None if the claim was not known or did not hold yet.

        A claim holds from `valid_from`, or, if that is unknown, from the first time that it was said. It is
        "superseded" from `valid_to` on. A corrected or retracted claim was never true.
        """
        since = self.first_seen_at if self.valid_from is None else min(self.valid_from, self.first_seen_at)
        if when < since or self.planned(when):
            return None
        if self.state in ("corrected", "retracted"):
            return self.state
        if self.state == "superseded" and self.valid_to is None:
            return "superseded"
        if self.valid_to is not None and when >= self.valid_to:
            return "superseded"
        if self.expired(when) or (self.state == "expired" and when > self.last_seen_at):
            return "expired"
        return "disputed" if self.state == "disputed" else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relationship(Record):
    """The relationship of `source` to `target`, in one direction.

    `metadata["interactions"]` counts the reflections that saw it, from 1; `counted` are the turns that were
    counted last, so that none is counted twice.

    The whole record is for a program; `told_in` returns the part that a prompt in a room may use. `tag_rooms`
    has for each tag the rooms in which it was seen; `confined_tags` were seen in private rooms only, or are
    sensitive. `private_interactions` counts for each private room how many of the `interactions` happened
    there.
    """

    source: str
    target: str
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    first_seen_at: datetime
    last_seen_at: datetime
    room_ids: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    tag_rooms: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    confined_tags: tuple[str, ...] = ()
    private_interactions: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def interactions(self) -> int:
        """The number of interactions; 0 if another program has written something else there."""
        try:
            return int(self.metadata.get("interactions", 0))
        except (TypeError, ValueError, OverflowError):
            return 0

    def told_in(self, room_id: str, *, only_there: bool = False) -> Self | None:
        """The part of the relationship that a prompt in a room may use; None if there is none.

        It keeps the tags that were seen openly or in that room, and counts the interactions of those places;
        with `only_there` it keeps only the tags of that room. Only that count is left of the metadata; other
        rooms and times are removed.
        """
        elsewhere = sum(count for room, count in self.private_interactions.items() if room != room_id)
        if elsewhere and elsewhere >= self.interactions:
            return None
        if only_there and room_id not in self.room_ids:
            return None

        def is_told(tag: str) -> bool:
            seen_there = room_id in self.tag_rooms.get(tag, self.room_ids)
            return seen_there or not (only_there or tag in self.confined_tags)

        return replace(
            self,
            tags=tuple(filter(is_told, self.tags)),
            metadata={"interactions": self.interactions - elsewhere},
            room_ids=(room_id,) if room_id in self.room_ids else (),
            counted=(),
            tag_rooms={},
            confined_tags=(),
            private_interactions={},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Record):
    """One step of a goal."""

    description: str
    completed: bool = False
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Record):
    """An aim of a room, for an entity."""

    id: str
    room_id: str
    entity_id: str
    name: str
    status: GoalStatus = "IN_PROGRESS"
    objectives: tuple[Objective, ...] = ()

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        try:
            objectives = tuple(Objective.from_value(found) for found in value.get("objectives", ()))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no Goal in the store's value: {error}") from None
        return super(Goal, cls).from_value({**value, "objectives": objectives})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought(Record):
    """The agent's reflection on a stretch of conversation in a room.

    `entity_ids` are the participants of that stretch, `source_message_ids` its messages, `fact_ids` the known
    facts that the agent was shown with it.
    """

    id: str
    text: str
    room_id: str
    at: datetime
    source_message_ids: tuple[str, ...] = ()
    entity_ids: tuple[str, ...] = ()
    fact_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement that a model found in a conversation, not yet checked; the fields are those of the
    extraction schema.

    `type` is "fact", "status" or "opinion"; `kind` of a status is "home", "job", "mood" or the like. `known_id`
    is the id of the known fact that the claim repeats, `corrects` the ids of earlier messages of the same
    speaker with a slip that it puts right, `derived_from` the ids of the known facts that it was inferred from.
    """

    claim: str
    type: str
    in_bio: bool = False
    already_known: bool = False
    subject: str | None = None
    slot: str | None = None
    value: str | None = None
    kind: str | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    source_message_ids: tuple[str, ...] = ()
    sensitivity: str | None = None
    known_id: str | None = None
    corrects: tuple[str, ...] = ()
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """The result of storing claims, as counts and ids for the metadata of an evaluation.

    `conflicts` are pairs of fact ids, the older fact first. `fact_ids` are all facts that the claims created
    or changed.
    """

    inserted: int = 0
    reinforced: int = 0
    superseded: int = 0
    refined: int = 0
    conflicts: tuple[tuple[str, str], ...] = ()
    dropped_private: int = 0
    dropped_invalid: int = 0
    fact_ids: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        lists = {"conflicts": [list(pair) for pair in self.conflicts], "fact_ids": list(self.fact_ids)}
        return {**asdict(self), **lists}
