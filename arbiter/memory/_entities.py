"""The participants of a room, and the resolution of names to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter._values.normal import anycase, casefolded, with_latin_i, with_plain_digits
from arbiter.memory._characters import Character
from arbiter.memory._conversation import SPEAKER, speaker_of
from arbiter.memory._records import Record, Records
from arbiter.memory.stores import Namespace, Value, namespace
from arbiter.memory.stores._portable import digest_of

AGENT_ALIASES = ("agent", "assistant", "me")
"""Names that models use for the agent."""
MIN_PREFIX = 6
"""The first characters of an id, at least this many, stand for it if no other id begins with them."""
MAX_NAME = 100
"""Longest name in characters; longer ones are dropped."""
MOST_OF_NAME = 200
"""Characters of a name, or of an id, that are looked at; a hash stands for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity(Record):
    """A participant: a user, the agent, or a registered third party. `names` are what it is called, the
    main one first."""

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
    known = agent_aliases(entities) if aliases is None else aliases
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


_WITH_ID = re.compile(r".*\((?:id:? *+)?([^()]+)\)|(?:id|participant|speaker):? ++(.+)|['\"@[](.+?)['\"\]]?")


def without_label(name: str, entities: Collection[Entity]) -> str:
    """The id in a name like "Ada (id user-1)", "user-1 (Ada)" or "[user-1]", as prompts show an entity, or as models
    write its id; any other name as it is."""
    found = _WITH_ID.fullmatch(name)
    id = next(part.strip() for part in found.groups() if part) if found else name
    first, _, rest = name.partition(" (")
    for entity in entities:
        if id == entity.id or (first == entity.id and rest.removesuffix(")") in entity.names):
            return entity.id
    return name


def called(name: str, entities: Sequence[Entity]) -> frozenset[str]:
    """The ids of all entities that `name` may mean: by its id, by a name, or by whole words of one."""
    words = _words(_folded(name))
    return frozenset(
        entity.id
        for entity in entities
        if any(_has_words(_words(_folded(spoken)), words) for spoken in (entity.id, *entity.names))
    )


def named_in(text: str, entities: Sequence[Entity]) -> list[str]:
    """The ids of the entities whose name or id is in a text as whole words, in the order of `entities`.

    "Bob's" names Bob. A name that two entities share names neither.
    """
    folded = folded_text(text)
    spoken = (_spaced(_words(folded)), _spaced(_words(_OF_HIS.sub("", folded))))
    called: dict[str, set[str]] = {}
    for entity in entities:
        for name in (entity.id, *entity.names):
            called.setdefault(_folded(name), set()).add(entity.id)
    meant: set[str] = set()
    for name, ids in called.items():
        if len(ids) == 1 and (words := _words(name)) and any(_spaced(words) in said for said in spoken):
            meant |= ids
    return [entity.id for entity in entities if entity.id in meant]


def agent_aliases(entities: Iterable[Entity]) -> Mapping[str, str]:
    """The names that models use for the agent, if it is among the entities."""
    agent = next((entity.id for entity in entities if entity.is_agent), None)
    return {} if agent is None else dict.fromkeys(AGENT_ALIASES, agent)


def _folded(name: str, fold: Callable[[str], str] = anycase) -> str:
    whole = " ".join(name.split())
    begin = folded_text(whole[:MOST_OF_NAME], fold)[:MOST_OF_NAME]
    if len(whole) <= MOST_OF_NAME:
        return begin
    # Those that differ only after their beginning stay different.
    return f"{begin} {digest_of(whole.casefold())}"


def folded_text(text: str, fold: Callable[[str], str] = anycase) -> str:
    """A text in NFKC, with single spaces and in any case: to look for in others, or to look in."""
    return " ".join(fold(text).split())


def as_stored(text: str) -> list[str]:
    """The folded texts under which a store may have a name: in older ones the Turkish i are letters of their own, and
    the digits of other scripts digits of their own."""
    older = folded_text(text, casefolded)
    return list(dict.fromkeys((older, with_plain_digits(with_latin_i(older)))))


_EDGES = re.compile(r"^\W+|(?<!\W)\W+$")
_OF_HIS = re.compile(r"['\u2019]s\b")


def _words(folded: str) -> list[str]:
    """The words between blanks, without punctuation around them: "jean-paul" and "o'brien" are one word
    each."""
    return [word for part in folded.split() if (word := _EDGES.sub("", part))]


def _has_words(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """True if `words` contains the non-empty sequence `wanted` in one piece."""
    return bool(wanted) and _spaced(wanted) in _spaced(words)


def _spaced(words: Sequence[str]) -> str:
    """The words as one text, in which looking for others takes no time for each of them."""
    return f" {' '.join(words)} "


# Participants -------------------------------------------------------------------------------------


def participants(
    messages: Iterable[BaseMessage],
    *,
    agent_id: str,
    character: Character,
    entity_id: str,
    registered: Iterable[Entity] = (),
) -> tuple[Entity, ...]:
    """The entities of a room: the agent, the user of the turn, other speakers in order of appearance,
    registered ones.

    A message with `additional_kwargs["entity_id"]` adds its `name` to that entity. Any other message is
    attributed as in `speaker_of`, and only the newest of the names on the user's messages is kept: several
    names may belong to several people without ids. All of `messages` are read, so pass only the last few.
    """
    names: dict[str, list[str]] = {agent_id: [character.name], entity_id: []}
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


class Entities(Records):
    """The entities registered with an agent. Speakers who name themselves in messages need no
    registration.

    Beside them stands an index by name, so that a turn reads only the entities that it mentions: for each name,
    and for each part of one up to `MOST_WORDS` words, the ids of the entities called so.
    """

    kind = "entities"

    async def register(self, entity: Entity) -> None:
        """Register an entity for all rooms. Registering an id again replaces its names."""
        async with self.store.lock(self.agent_id, "entities"):
            known = (await self.get([entity.id])).get(entity.id)
            new = _terms(entity)
            old = {} if known is None else {**_terms(known, casefolded), **_terms(known)}
            postings = await self.store.aget_many(self._names, [*new, *old])
            changes: dict[str, Value | None] = {}
            for term in old.keys() - new.keys():
                changes[term] = _without(postings.get(term, {}), entity.id)
            for term, kind in new.items():
                changes[term] = _with(_without(postings.get(term, {}), entity.id), kind, entity.id)
            await self.store.aput_many(
                [
                    *((self._names, term, value) for term, value in changes.items()),
                    (self.space, entity.id, entity.to_value()),
                ]
            )

    async def get(self, ids: Iterable[str]) -> dict[str, Entity]:
        values = await self.store.aget_many(self.space, ids)
        found = {id: Entity.read(value) for id, value in values.items()}
        return {id: entity for id, entity in found.items() if entity is not None}

    async def meant(self, ids: Iterable[str], texts: Iterable[str]) -> dict[str, Entity]:
        """The registered entities with these ids, and those `named` in these texts, by id."""
        return {**await self.get(ids), **{entity.id: entity for entity in await self.named(texts)}}

    async def named(self, texts: Iterable[str]) -> list[Entity]:
        """The registered entities whose names, or whole words of them, are in these texts, at most 32.

        Of the entities that share a name, two or more are in the result, so that the name fits more than one.
        The first 1,000 different words are looked up, in the order of the texts.
        """
        spoken = [words for text in texts for words in _spoken(text)]
        single = list(dict.fromkeys(word for words in spoken for word in words))[:_LOOKED_UP]
        if not single:
            return []
        found = await self.store.aget_many(self._names, single)
        if not found:
            return []
        # A sequence of words can be a name only if each of its words is part of a name.
        longer = dict.fromkeys(
            " ".join(words[at : at + size])
            for size in range(MOST_WORDS, 1, -1)
            for words in spoken
            for at in range(len(words) - size + 1)
            if all(word in found for word in words[at : at + size])
        )
        postings = [*(await self.store.aget_many(self._names, longer)).values(), *found.values()]
        ids = dict.fromkeys(id for posting in postings for id in _meant(posting))
        return list((await self.get([*ids][:_FOUND])).values())

    @property
    def _names(self) -> Namespace:
        return namespace(self.agent_id, "names", "all")


# The index by name --------------------------------------------------------------------------------

MOST_WORDS = 4
_LOOKED_UP = 1_000
_FOUND = 32
_SHARED = 64
"""Ids that the index keeps for one name. A name that several entities share means none of them anyway."""
_MOST_TERMS = 200


def _terms(entity: Entity, fold: Callable[[str], str] = anycase) -> dict[str, str]:
    """The sequences of words under which an entity is found: "whole" names and ids, and "part" of a name."""
    found: dict[str, str] = {}
    names = [_words(_folded(name, fold)) for name in (entity.id, *entity.names)]
    for words in names[1:]:
        for size in range(1, MOST_WORDS + 1):
            for at in range(len(words) - size + 1):
                found.setdefault(" ".join(words[at : at + size]), "part")
    whole = map(" ".join, names)
    return dict([*found.items()][:_MOST_TERMS]) | {term: "whole" for term in whole if term}


def _spoken(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    for folded in as_stored(text):
        for words in (_words(folded), _words(_OF_HIS.sub("", folded))):
            if words not in found:
                found.append(words)
    return found


def _with(posting: Value | None, kind: str, id: str) -> Value:
    found = posting or {}
    ids: list[str] = found.get(kind) or []
    return found if len(ids) >= _SHARED else {**found, kind: [*ids, id]}


def _without(posting: Value, id: str) -> Value | None:
    left = {kind: [other for other in ids if other != id] for kind, ids in posting.items()}
    return {kind: ids for kind, ids in left.items() if ids} or None


def _meant(posting: Value) -> list[str]:
    ids: list[str] = posting.get("whole") or posting.get("part") or []
    return ids[:2]
