"""People who take part in a room under a name alone: a human message has another name than the user's, and no
speaker's id. They are known as speakers in their turn and nothing of what they say of themselves is stored."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter.memory._conversation import SPEAKER, said_by, text_of
from arbiter.memory._entities import Entity, as_stored, called, folded_text
from arbiter.memory._notes import key_of_messages
from arbiter.memory._records import Records
from arbiter.memory.stores import Value

_KEY = "speakers"
_PART = re.compile(r"[^\W_]+")


def bare_name(message: BaseMessage) -> str:
    """The name of a human message that claims no speaker's id; "" for any other message."""
    claims = message.additional_kwargs.get(SPEAKER)
    return "" if claims or not isinstance(message, HumanMessage) else " ".join((message.name or "").split())


def marked(messages: Sequence[BaseMessage], strangers: Mapping[str, str]) -> list[BaseMessage]:
    """The messages, those of strangers with the ids that `strangers` has for their names."""
    return [
        said_by(message, speaker) if (speaker := strangers.get(bare_name(message))) else message
        for message in messages
    ]


class RoomNames(Records):
    """The user of each name in a room, so that the next user is not taken for the one before. The store has
    hashes of the names, made with a random key."""

    kind = "cursors"

    async def user_of(self, names: Sequence[str]) -> dict[str, str]:
        """The users that are known by these names."""
        found = await self.store.aget(self.space, _KEY) or {}
        key = await key_of_messages(self.store, self.agent_id) if found else b""
        hashes = [(name, self._hash(text, key)) for name in names for text in as_stored(name)]
        return {name: str(found[hash]) for name, hash in hashes if hash in found}

    async def note(self, name: str, entity_id: str) -> None:
        key = await key_of_messages(self.store, self.agent_id)

        def change(value: Value | None) -> Value | None:
            return {self._hash(folded_text(name), key): entity_id, **(value or {})}

        await self.store.aupdate(self.space, _KEY, change)

    def _hash(self, folded: str, key: bytes) -> str:
        return hmac.digest(key, json.dumps([self.scope, folded]).encode(), "sha256").hex()[:32]


async def strangers_among(
    messages: Sequence[BaseMessage],
    *,
    entity_id: str,
    entities: Sequence[Entity],
    rooms: RoomNames | None,
    given: Sequence[str] = (),
) -> dict[str, str]:
    """The names under which others than the user speak, with ids that no participant has.

    The user is known by the own id, by the names of its entity, by the names `given` by itself, and by the name
    under which it alone spoke in this room. As long as none of those fits, a single name is the user's if all
    human messages have it.
    """
    names = list(dict.fromkeys(name for message in messages if (name := bare_name(message))))
    if not names:
        return {}
    known = await rooms.user_of(names) if rooms is not None else {}
    user = next((entity for entity in entities if entity.id == entity_id), Entity(id=entity_id))
    own = {name for name in names if known.get(name) == entity_id or _is_of(name, user, given)}
    left = [
        name
        for name in names
        if name not in own and name not in known and not called(name, entities) - {entity_id}
    ]
    if not own and not user.names and len(left) == 1 and not any(map(_is_nameless, messages)):
        own = {*left}
    if rooms is not None:
        for name in own - known.keys():
            await rooms.note(name, entity_id)
    taken = {entity_id, *(entity.id for entity in entities), *map(_claimed, messages)}
    return {name: _id(name, taken) for name in names if name not in own}


def _is_of(name: str, user: Entity, given: Sequence[str]) -> bool:
    """True if the words of a name are some of the user's id or of one of its names, or the other way round."""
    words = _words(name)
    own = [_words(known) for known in (*user.names, *given)]
    return bool(words) and (
        words <= _words(user.id) or any(known and (words <= known or known <= words) for known in own)
    )


def _words(name: str) -> set[str]:
    return {*_PART.findall(folded_text(name))}


def _is_nameless(message: BaseMessage) -> bool:
    is_said = isinstance(message, HumanMessage) and bool(text_of(message).strip())
    return is_said and not bare_name(message) and not _claimed(message)


def _claimed(message: BaseMessage) -> str:
    return str(message.additional_kwargs.get(SPEAKER) or "")


def _id(name: str, taken: set[str]) -> str:
    id = f"unknown:{name}"
    while id in taken:
        id += "'"
    return id
