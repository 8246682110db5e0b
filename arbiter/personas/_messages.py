"""Messages in the state of a graph: read where they stand, and compared, at the cost of those that are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress, count
from operator import attrgetter, is_not
from typing import Any, overload

from langchain_core.messages import BaseMessage, RemoveMessage, convert_to_messages

from arbiter._values.states import Digest, overwriting
from arbiter.errors import ConfigurationError
from arbiter.personas._trajectories import by_role


class Messages(Sequence[Any]):
    """The messages and texts in a part of a state, converted to messages when they are read.

    Reading may raise the errors of `convert_to_messages`. A text stays a text only if all parts are texts.
    """

    __slots__ = ("_texts", "parts")

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self._texts = bool(parts) and isinstance(parts[0], str) and all(isinstance(one, str) for one in parts)

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Messages(self.parts[index])
        one = self.parts[index]
        if self._texts:
            return one
        return by_role(one if isinstance(one, BaseMessage) else convert_to_messages([one])[0])


_ROLES = frozenset({"human", "user", "ai", "assistant", "function", "tool", "system", "developer"})


def messages_at(state: Mapping[str, Any], key: str) -> Messages:
    """The messages at that key of a state. Raises the errors of `messages_in`."""
    return messages_in(part_at(state, key))


def part_at(state: Mapping[str, Any], key: str) -> Any:
    """The part of a state without its read-only view, which would copy each message that is read."""
    return dict[str, Any].get(state, key) if isinstance(state, dict) else state.get(key)


def messages_in(value: Any) -> Messages:
    """The messages and texts in a part of a state, or a single one.

    A message may also be written as LangChain accepts it, `{"role": ..., "content": ...}` or `("ai", ...)`.
    An `Overwrite` gives its new value. Raises `TypeError` for anything else, and `ConfigurationError` if the
    history keeps only digests.
    """
    value = overwriting(value)[1]
    if value is None:
        return Messages([])
    if isinstance(value, Digest):
        raise ConfigurationError(
            "the conversation cannot be judged, because the history keeps only digests. "
            "Use ArbiterOS(snapshot='shallow') or 'deep'."
        )
    if isinstance(value, str | BaseMessage):
        return Messages([value])
    if is_single(value):
        return Messages(list(convert_to_messages([value])))
    return Messages(parts_of(value))


def parts_of(value: Any) -> list[Any]:
    """The elements, without the iterator of a read-only view, which would copy each."""
    parts: Any = value
    return list[Any].__getitem__(parts, slice(None)) if isinstance(value, list) else list(parts)


def is_single(value: Any) -> bool:
    """True for one text or message, False for a list of them."""
    pair: Any = value
    if isinstance(value, tuple):
        return len(pair) == 2 and isinstance(pair[0], str) and pair[0] in _ROLES
    return isinstance(value, str | BaseMessage | Mapping)


def new_of(given: Messages, now: Messages) -> Messages:
    """The new messages of a node's output, which may repeat all or part of the node's input.

    A message with a known id and another content is new.
    """
    if all(isinstance(one, str) for one in now.parts):
        # Texts have no ids, so an agent may repeat an earlier one.
        return (now[len(given) :] if now.parts[: len(given)] == given.parts else now) or now
    if len(now) == 1 and _id(now.parts[0]) is None:
        return now
    # An unedited conversation begins with the very objects of the input.
    differs = map(is_not, now.parts, given.parts)
    same = next(compress(count(), differs), min(len(now), len(given)))
    ids = set(_ids(now.parts[same:]))
    earlier = enumerate(_ids(given.parts[same:]), same)
    known = Counter(_as_said(given[at]) for at in [at for at, id in earlier if id in ids])
    new: list[Any] = []
    for at in range(same, len(now)):
        said = _as_said(now[at])
        if not known[said]:
            new.append(now.parts[at])
        elif said[0] is None:  # a message without an id may be repeated
            known[said] -= 1
    return Messages(new)


def standing(given: Messages, new: Messages) -> Messages:
    """The messages of a conversation that remain after a node wrote `new`.

    A message with the same id replaces the old one, and a `RemoveMessage` removes it.
    """
    gone = {one.id if isinstance(one, RemoveMessage) else _id(one) for one in new.parts} - {None}
    ids = _ids(given.parts) if gone else []
    if gone.isdisjoint(ids):
        return given
    return Messages([one for one, id in zip(given.parts, ids, strict=True) if id not in gone])


_id_in: Any = attrgetter("id")


def _ids(parts: list[Any]) -> list[str | None]:
    try:
        return list(map(_id_in, parts))  # C code, because a conversation may be long
    except AttributeError:  # some are mappings, or texts
        return list(map(_id, parts))


def _id(one: Any) -> str | None:
    fields: Any = one
    return fields.get("id") if isinstance(one, Mapping) else getattr(fields, "id", None)


def _as_said(one: Any) -> tuple[Any, ...]:
    """The id and the spoken content of a message; a message that differs in nothing else is not a new
    draft."""
    if isinstance(one, str):
        return None, "text", None, one, ""
    calls = getattr(one, "tool_calls", None)
    return one.id, one.type, one.name, str(one.text), repr(calls) if calls else ""
