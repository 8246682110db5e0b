"""Who takes part in a room, and which of them a name means."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter.memory.characters import Character
from arbiter.memory.conversation import SPEAKER, speaker_of
from arbiter.memory.records import Record
from arbiter.memory.stores import MemoryStore, namespace

AGENT_ALIASES = ("agent", "assistant", "me")
"""What a model calls the agent that it speaks for."""
MIN_PREFIX = 6
"""So many characters of an id, from its beginning, stand for it if they are the beginning of no other one."""
MAX_NAME = 100
"""What is longer, in characters, is no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity(Record):
    """A participant: a user, the agent, or anybody that was registered. `names` are what it is called."""

    _tuples = ("names",)

    id: str
    names: tuple[str, ...] = ()
    is_agent: bool = False


# Which of them a name means -----------------------------------------------------------------------


def resolve(name: str, entities: Sequence[Entity], aliases: Mapping[str, str] | None = None) -> str | None:
    """The id of the one entity that `name` means, None if that is none or more than one. See docs/memory.md.

    In this order, and the first that has a hit decides: an exact id; one of `aliases`, name to id, by default
    `AGENT_ALIASES` for the agent; an exact name in any case; the beginning of an id, from 6 characters on; whole words
    of a name. Ids that nobody in `entities` has are never taken, and neither are parts of words.
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
    """The ids of those whose name, or id, stands in a text as whole words, "Bob's" for Bob too, in order of `entities`.
    A name that two have means nobody."""
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
    """The words between blanks, without punctuation around them: "jean-paul" and "o'brien" are one word each."""
    return [word for part in folded.split() if (word := _EDGES.sub("", part))]


def _has_words(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether `wanted`, if anything, stands in `words` in one piece."""
    size = len(wanted)
    return size > 0 and any(words[at : at + size] == wanted for at in range(len(words) - size + 1))


# Who takes part -----------------------------------------------------------------------------------


def participants(
    messages: Iterable[BaseMessage],
    *,
    agent_id: str,
    character: Character,
    entity_id: str,
    user_names: Iterable[str] = (),
    registered: Iterable[Entity] = (),
) -> tuple[Entity, ...]:
    """The entities of a room: the agent, the user of the turn, other speakers as they appear, registered ones.

    A message that says under `additional_kwargs["entity_id"]` who spoke gives that entity its `name`. One that does
    not is the agent's or the user's, as `speaker_of` has it; of the names on the user's, only the newest is taken:
    several are as likely several people whose ids nobody gave. All of `messages` are read, so give the last few.
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
    """Names as they are shown, each once in whatever case."""
    found: dict[str, str] = {}
    for name in names:
        shown = " ".join(name.split())
        if shown and len(shown) <= MAX_NAME:
            found.setdefault(_folded(shown), shown)
    return tuple(found.values())


class Entities:
    """Who was registered with an agent, beside those who speak for themselves."""

    def __init__(self, store: MemoryStore, *, agent_id: str) -> None:
        self.store = store
        self.agent_id = agent_id

    async def register(self, entity: Entity) -> None:
        """Make an entity known in all rooms. Once more with the same id replaces its names."""
        await self.store.aput(namespace(self.agent_id, "entities", "all"), entity.id, entity.to_value())

    async def all(self, *, limit: int | None = None) -> list[Entity]:
        """All that were registered, or as many of the latest, by their ids."""
        entries = await self.store.alist(namespace(self.agent_id, "entities", "all"), limit=limit)
        found = (_entity(entry.value) for entry in entries)
        return sorted((entity for entity in found if entity is not None), key=lambda entity: entity.id)


def _entity(value: Mapping[str, Any]) -> Entity | None:
    try:
        return Entity.from_value(value)
    except ValueError:
        return None
