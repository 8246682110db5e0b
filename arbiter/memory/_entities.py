"""The participants of a room, and the resolution of names to them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter.memory._characters import Character
from arbiter.memory._conversation import SPEAKER, speaker_of
from arbiter.memory._records import Record
from arbiter.memory.stores import MemoryStore, namespace

AGENT_ALIASES = ("agent", "assistant", "me")
"""Names that models use for the agent."""
MIN_PREFIX = 6
"""The first characters of an id, at least this many, stand for it if no other id begins with them."""
MAX_NAME = 100
"""Longest name in characters; longer ones are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity(Record):
    """A participant: a user, the agent, or a registered third party. `names` are what it is called, the
    main one first."""

    _tuples = ("names",)

    id: str
    names: tuple[str, ...] = ()
    is_agent: bool = False


# From a name to an entity -------------------------------------------------------------------------


def resolve(name: str, entities: Sequence[Entity], aliases: Mapping[str, str] | None = None) -> str | None:
    """The id of the one entity that `name` means; None if no entity or more than one fits. See
    docs/memory.md.

    The first of these steps with a match decides: an exact id; one of `aliases`, name to id, by default
    `AGENT_ALIASES` for the agent; an exact name in any case; the beginning of an id, at least 6 characters;
    whole words of a name. The result is always an id of `entities`, and parts of words never match.
    """
    wanted = _folded(name)
    if not wanted:
        return None
    asked = name.strip()
    known = aliases if aliases is not None else _agent_aliases(entities)
    alias = {_folded(spoken): id for spoken, id in known.items()}.get(wanted)
    words = _words(wanted)
    steps: tuple[Callable[[Entity], bool], ...] = (
        lambda entity: entity.id == asked,
        lambda entity: entity.id == alias,
        lambda entity: any(_folded(called) == wanted for called in entity.names),
        lambda entity: len(asked) >= MIN_PREFIX and entity.id.startswith(asked),
        lambda entity: any(_has_words(_words(_folded(called)), words) for called in entity.names),
    )
    for meant in steps:
        hits = {entity.id for entity in entities if entity.id and meant(entity)}
        if hits:
            return hits.pop() if len(hits) == 1 else None
    return None


def named_in(text: str, entities: Sequence[Entity]) -> list[str]:
    """The ids of the entities whose name or id is in a text as whole words, in the order of `entities`.

    "Bob's" names Bob. A name that two entities share names neither.
    """
    folded = _folded(text)
    spoken = (_words(folded), _words(_OF_HIS.sub("", folded)))
    called: dict[str, set[str]] = {}
    for entity in entities:
        for name in (entity.id, *entity.names):
            called.setdefault(_folded(name), set()).add(entity.id)
    meant: set[str] = set()
    for name, ids in called.items():
        if len(ids) == 1 and any(_has_words(words, _words(name)) for words in spoken):
            meant |= ids
    return [entity.id for entity in entities if entity.id in meant]


def _agent_aliases(entities: Iterable[Entity]) -> dict[str, str]:
    agent = next((entity.id for entity in entities if entity.is_agent), None)
    return {} if agent is None else dict.fromkeys(AGENT_ALIASES, agent)


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


_EDGES = re.compile(r"^\W+|\W+$")
_OF_HIS = re.compile(r"['\u2019]s\b")


def _words(folded: str) -> list[str]:
    """The words between blanks, without punctuation around them: "jean-paul" and "o'brien" are one word
    each."""
    return [word for part in folded.split() if (word := _EDGES.sub("", part))]


def _has_words(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """True if `words` contains the non-empty sequence `wanted` in one piece."""
    size = len(wanted)
    return size > 0 and any(words[at : at + size] == wanted for at in range(len(words) - size + 1))


# Participants -------------------------------------------------------------------------------------


def participants(
    messages: Iterable[BaseMessage],
    *,
    agent_id: str,
    character: Character,
    entity_id: str,
    user_names: Iterable[str] = (),
    registered: Iterable[Entity] = (),
) -> tuple[Entity, ...]:
    """The entities of a room: the agent, the user of the turn, other speakers in order of appearance,
    registered ones.

    A message with `additional_kwargs["entity_id"]` adds its `name` to that entity. Any other message is
    attributed as in `speaker_of`, and only the newest of the names on the user's messages is kept: several
    names may belong to several people without ids. All of `messages` are read, so pass only the last few.
    """
    names: dict[str, list[str]] = {agent_id: [character.name], entity_id: [*user_names]}
    kept = [entity for entity in registered if entity.id]
    for entity in kept:
        names.setdefault(entity.id, []).extend(entity.names)
    spoken: dict[str, list[str]] = {}
    loose = ""
    for message in messages:
        if not isinstance(message, HumanMessage | AIMessage):
            continue
        called = spoken.setdefault(speaker_of(message, agent_id=agent_id, entity_id=entity_id), [])
        name = message.name or ""
        if isinstance(message, AIMessage) or message.additional_kwargs.get(SPEAKER):
            called.append(name)
        else:
            loose = name or loose
    spoken.setdefault(entity_id, []).append(loose)
    order = dict.fromkeys([agent_id, entity_id, *spoken, *(entity.id for entity in kept)])
    return tuple(
        Entity(
            id=id,
            names=_distinct([*names.get(id, ()), *spoken.get(id, ())]),
            is_agent=id == agent_id,
        )
        for id in order
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names with single blanks, without repetitions in another case and without those that are too
    long."""
    found: dict[str, str] = {}
    for name in names:
        shown = " ".join(name.split())
        if shown and len(shown) <= MAX_NAME:
            found.setdefault(_folded(shown), shown)
    return tuple(found.values())


class Entities:
    """The entities registered with an agent. Speakers who name themselves in messages need no
    registration."""

    def __init__(self, store: MemoryStore, *, agent_id: str) -> None:
        self.store = store
        self.agent_id = agent_id

    async def register(self, entity: Entity) -> None:
        """Register an entity for all rooms. Registering an id again replaces its names."""
        await self.store.aput(namespace(self.agent_id, "entities", "all"), entity.id, entity.to_value())

    async def all(self, *, limit: int | None = None) -> list[Entity]:
        """The registered entities, sorted by id; with `limit` the ones registered last."""
        entries = await self.store.alist(namespace(self.agent_id, "entities", "all"), limit=limit)
        found = (_entity(entry.value) for entry in entries)
        return sorted((entity for entity in found if entity is not None), key=lambda entity: entity.id)


def _entity(value: Mapping[str, Any]) -> Entity | None:
    try:
        return Entity.from_value(value)
    except ValueError:
        return None
