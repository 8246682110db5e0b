"""Messages of a turn: ids, texts, speakers, and whether the agent responded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter._values.kinds import is_list, is_listing
from arbiter._values.states import ROOT, FrozenList, Whole, freeze
from arbiter.memory._secrets import redacted
from arbiter.redaction._texts import MOST_CHARACTERS

SPEAKER = "entity_id"
"""The key of `additional_kwargs` under which a message may name the entity that said it."""


def text_of(message: BaseMessage) -> str:
    """The text of a message without tool calls and reasoning; "" if it has none."""
    return str(message.text)


def counts(message: BaseMessage) -> bool:
    """True for a human or AI message with text: only those are part of the conversation."""
    return isinstance(message, HumanMessage | AIMessage) and bool(text_of(message).strip())


def speaker_of(message: BaseMessage, *, agent_id: str, entity_id: str) -> str:
    """The id of the message's speaker: `additional_kwargs["entity_id"]` if set, else the agent for an AI
    message and the user of the turn for a human one. `message.name` is not used as an id, and no human message is
    the agent's."""
    said: Any = message.additional_kwargs.get(SPEAKER)
    if isinstance(said, str) and said and (said != agent_id or not isinstance(message, HumanMessage)):
        return said
    return agent_id if isinstance(message, AIMessage) else entity_id


def heard(messages: Iterable[BaseMessage], speakers: Collection[str] | None) -> list[BaseMessage]:
    """The messages, without the speaker that a message claims if `speakers` does not contain it; None allows
    any.

    Clients send messages: once the program has named the user, a message cannot claim to be from somebody
    else.
    """
    if speakers is None:
        return [*messages]
    fine = (None, *speakers)
    return [part if part.additional_kwargs.get(SPEAKER) in fine else said_by(part, None) for part in messages]


def signed(messages: Iterable[BaseMessage], speakers: Mapping[str, str]) -> list[BaseMessage]:
    """The messages, those with these ids with their speakers."""
    return [said_by(part, speaker) if (speaker := speakers.get(part.id or "")) else part for part in messages]


def said_by(message: BaseMessage, speaker: str | None) -> BaseMessage:
    """The message as one of that speaker; None removes the speaker that it claims."""
    said = {key: value for key, value in message.additional_kwargs.items() if key != SPEAKER}
    named = {} if speaker is None else {SPEAKER: speaker}
    return message.model_copy(update={"additional_kwargs": {**said, **named}})


def responded(new_messages: Iterable[BaseMessage]) -> bool:
    """True if one of the messages is an AI message with text and without tool calls."""
    return any(
        isinstance(message, AIMessage) and not message.tool_calls and bool(text_of(message).strip())
        for message in new_messages
    )


def window(messages: Sequence[BaseMessage], length: int, *, end: int | None = None) -> list[BaseMessage]:
    """The last `length` messages that have text, oldest first; with `end` the last ones before that place."""
    found: list[BaseMessage] = []
    for place in range((len(messages) if end is None else end) - 1, -1, -1):
        if len(found) == length:
            break
        if counts(messages[place]):
            found.append(messages[place])
    return found[::-1]


def raw(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state to look at: a read-only one would copy each object that is read."""
    return dict(dict[str, Any].items(state)) if isinstance(state, dict) else state


def holds_messages(value: object) -> bool:
    """True for a list that ends with a message."""
    return is_list(value) and bool(value) and isinstance(value[-1], BaseMessage)


def misplaced(state: Mapping[str, Any], key: str) -> str | None:
    """The cause of what cannot work, if a state has its messages under another key than the cycle's."""
    for other, value in raw(state).items() if key not in state else ():
        if other != ROOT and holds_messages(value):
            return (
                f"the state has no {key!r}, and messages at {other!r}. "
                f"Give the EvaluationCycle messages_key={other!r}"
            )
    return None


def list_of(value: Mapping[str, Any], key: str) -> list[Any]:
    """The value under `key` of a state as a list; a single message becomes a list of one."""
    found: Any = value.get(key)
    if found is None:
        return []
    return [*found] if is_listing(found) and not _is_one(found) else [found]


def _is_one(found: list[Any] | tuple[Any, ...]) -> bool:
    """True for one message written as a pair of texts: ("ai", "hello")."""
    return isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, str) for part in found)


# What memory works with ---------------------------------------------------------------------------


def safe(message: BaseMessage) -> BaseMessage:
    """A message without secrets and with a bounded text; the same message if it is so already."""
    said = text_of(message)
    shown = redacted(said)
    return message if shown == said else message.model_copy(update={"content": shown})


class Shown(Sequence[BaseMessage]):
    """Messages as memory works with them: safe copies, each made at its first access and kept."""

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = messages
        self._copies: dict[int, BaseMessage] = {}

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BaseMessage]: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | Sequence[BaseMessage]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        if (copy := self._copies.get(at)) is None:
            copy = self._copies.setdefault(at, freeze(safe(self._messages[at])))
        return copy

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def originals(self) -> Sequence[BaseMessage]:
        return self._messages

    def last(self, most: int) -> list[BaseMessage]:
        """The last messages, to be kept for later: copied only where their texts are too long."""
        kept = self._messages[-most:]
        return [safe(message) if len(text_of(message)) > MOST_CHARACTERS else message for message in kept]

    def the(self, message: BaseMessage) -> BaseMessage:
        """The copy of that message, matched by identity; a copy of its own if it is not in the list."""
        for at in range(len(self) - 1, -1, -1):
            if self._messages[at] is message:
                return self[at]
        copy: BaseMessage = freeze(safe(message))
        return copy


def originals(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """The messages as they were said, for their ids, kinds and speakers: a safe copy of each message of a long
    conversation would take seconds."""
    return messages.originals if isinstance(messages, Shown) else messages


class ShownList(Whole, FrozenList):
    """A read-only list of messages in a state, as memory works with them."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        found: Any = list[Any].__getitem__(self, index)
        return ShownList(found) if isinstance(index, slice) else freeze(safe(found))

    def __iter__(self) -> Iterator[Any]:
        return (freeze(safe(message)) for message in list[Any].__iter__(self))

    def __reversed__(self) -> Iterator[Any]:
        return (freeze(safe(message)) for message in list[Any].__reversed__(self))
