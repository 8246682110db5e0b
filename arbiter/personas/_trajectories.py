"""Trajectories: events in order, as one agent saw them or as a whole channel, and their text for a judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple, overload

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)

from arbiter.errors import ConfigurationError
from arbiter.models import visible

MAX_EVENT = 20_000
"""Characters of one event that a judge sees; of a longer one the first and the last half of this."""
SOMEBODY = "assistant"
"""The speaker of an AI message without a name, if no agent is known to have written it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: an agent did it (`kind="action"`, by `actor`) or perceived it (`"stimulus"`, received by
    `actor`).

    `type` is "TALK", "THINK", or another kind of action. `seq` is the place in the conversation, from 0.
    `channel` names the conversation; consistency compares messages within one. `source` is the origin of a
    stimulus, "" if it is unknown.
    """

    kind: Literal["action", "stimulus"]
    actor: str
    text: str
    type: str = "TALK"
    seq: int = 0
    channel: str = ""
    source: str = ""

    @classmethod
    def action(cls, actor: str, text: str, type: str = "TALK", *, seq: int = 0, channel: str = "") -> Event:
        """An action of `actor`."""
        return cls("action", actor, text, type, seq, channel)

    @classmethod
    def stimulus(cls, actor: str, text: str, type: str = "TALK", *, seq: int = 0, channel: str = "") -> Event:
        """A stimulus that `actor` perceives."""
        return cls("stimulus", actor, text, type, seq, channel)

    def seen_by(self, agent: str) -> Event:
        """The event from that agent's side: an action of another agent becomes a stimulus from that agent."""
        if self.kind == "stimulus" or self.actor == agent:
            return self
        return Event("stimulus", agent, self.text, self.type, self.seq, self.channel, self.actor)

    def line(self, *, with_type: bool = False) -> str:
        """The event as exactly one line: line ends and invisible characters become codes."""
        text = shortened(self.text, MAX_EVENT)
        shown = visible(text.replace("\r\n", "\n").replace("\n", "\\n"))
        if with_type:
            shown = f"[{visible(self.type)}] {shown}"
        # The speaker stands outside the brackets, where no text can imitate one.
        actor, source = _name(self.actor), f" from {_name(self.source)}" if self.source else ""
        return f"{actor} acts: [{shown}]" if self.kind == "action" else f"--> {actor}{source}: [{shown}]"


def _name(name: str) -> str:
    return visible(name).replace("[", "(").replace("]", ")")


def shortened(text: str, limit: int) -> str:
    """`text`; a text longer than `limit` becomes its first and last `limit // 2` characters and the number
    of those cut."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters cut ...] {text[-half:]}"


class LazyEvents(Sequence[Event]):
    """Events that are created when they are read: reading the end of a long conversation costs no more than a
    short one.

    `slots` is the largest number of events; `at` returns the event of a slot, or None; `actor_at` returns the
    actor of a slot, if any, without creating its event. Created events are kept.
    """

    def __init__(
        self, slots: int, at: Callable[[int], Event | None], actor_at: Callable[[int], str | None]
    ) -> None:
        self._slots = slots
        self._make = at
        self._actor_at = actor_at
        self._known: dict[int, Event | None] = {}

    def _at(self, slot: int) -> Event | None:
        if slot not in self._known:
            self._known[slot] = self._make(slot)
        return self._known[slot]

    @cached_property
    def _all(self) -> tuple[Event, ...]:
        # `iter`, because `tuple(self)` would ask for the length, which is that of this tuple.
        return tuple(iter(self))

    def __iter__(self) -> Iterator[Event]:
        return (event for slot in range(self._slots) if (event := self._at(slot)) is not None)

    def __reversed__(self) -> Iterator[Event]:
        return (event for slot in reversed(range(self._slots)) if (event := self._at(slot)) is not None)

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...
    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        return self._all[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyEvents):
            return self._all == other._all
        return self._all == other

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return repr(self._all)

    def __add__(self, other: Iterable[Event]) -> tuple[Event, ...]:
        return (*self, *other)

    def __radd__(self, other: Iterable[Event]) -> tuple[Event, ...]:
        return (*other, *self)

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[tuple[Event, ...]]]:
        """Pickles and copies are plain tuples, which hold no reference to a graph."""
        return tuple, (self._all,)

    def actions_of(self, agent: str) -> Iterator[Event]:
        """The agent's actions, newest first."""
        for slot in reversed(range(self._slots)):
            if self._actor_at(slot) == agent and (event := self._at(slot)) is not None:
                yield event

    def seen_by(self, agent: str) -> LazyEvents:
        """As `Trajectory.seen_by`."""

        def seen(slot: int) -> Event | None:
            event = self._at(slot)
            return event and event.seen_by(agent)

        return LazyEvents(self._slots, seen, lambda slot: agent if self._actor_at(slot) == agent else None)

    def then(self, events: Sequence[Event]) -> LazyEvents:
        """These events followed by `events`."""

        def at(slot: int) -> Event | None:
            return self._at(slot) if slot < self._slots else events[slot - self._slots]

        def actor_at(slot: int) -> str | None:
            if slot < self._slots:
                return self._actor_at(slot)
            event = events[slot - self._slots]
            return event.actor if event.kind == "action" else None

        return LazyEvents(self._slots + len(events), at, actor_at)

    def window(self, first: int, last: int) -> Window:
        """As the function `window`. Omitted messages are counted with or without a text."""
        head: list[Event] = []
        begin = 0
        while begin < self._slots and len(head) < first:
            if (event := self._at(begin)) is not None:
                head.append(event)
            begin += 1
        tail: list[Event] = []
        end = self._slots
        while end > begin and len(tail) < last:
            end -= 1
            if (event := self._at(end)) is not None:
                tail.append(event)
        tail.reverse()
        if end <= begin:
            return Window((*head, *tail))
        return Window(tuple(head), end - begin, tuple(tail))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Events in chronological order: an agent's own view, or a whole channel, which has only actions."""

    events: Sequence[Event] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> Trajectory:
        """These events, each with its place as `seq`."""
        return cls(tuple(replace(event, seq=seq) for seq, event in enumerate(events)))

    @classmethod
    def from_messages(
        cls,
        messages: Iterable[BaseMessage | Mapping[str, Any] | tuple[str, Any]],
        agent: str | None = None,
        *,
        channel: str = "",
    ) -> Trajectory:
        """A conversation from LangChain's messages, or from any form that LangChain accepts, such as
        `{"role": "user", "content": "Hi"}` or `("ai", "Hello")`.

        An AI message is an action of its `name`, else of `agent`, else of "assistant". A human message with a
        name is that person's action. A human message without a name, and a tool message, is a stimulus to
        `agent` (or "assistant"). System messages and messages without text are left out. Raises
        `ConfigurationError` for anything other than messages.
        """
        found = (event_of(message, agent or SOMEBODY, channel=channel) for message in _messages(messages))
        return cls.of(event for event in found if event is not None)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def actors(self) -> tuple[str, ...]:
        """The agents that act, in the order of their first action."""
        return tuple(dict.fromkeys(event.actor for event in self.events if event.kind == "action"))

    def actions_of(
        self, agent: str, *, last: int | None = None, type: str | None = None
    ) -> tuple[Event, ...]:
        """The agent's actions, oldest first; with `last` only the newest ones, with `type` only those of
        that type."""
        if isinstance(self.events, LazyEvents):
            newest = self.events.actions_of(agent)
        else:
            newest = (
                event for event in reversed(self.events) if event.kind == "action" and event.actor == agent
            )
        wanted = (event for event in newest if type is None or event.type == type)
        return tuple(islice(wanted, last))[::-1]

    def seen_by(self, agent: str) -> Trajectory:
        """The trajectory from one agent's side: actions of others become stimuli from them."""
        if isinstance(self.events, LazyEvents):
            return Trajectory(self.events.seen_by(agent))
        return Trajectory(tuple(event.seen_by(agent) for event in self.events))

    def text(self, first_n: int | None = None, last_n: int | None = None, *, agent: str | None = None) -> str:
        """One line for each event of that window, and a line with the number of omitted events; from the side
        of `agent`.

        Lines show types ("[THINK] ...") if any of these events is not a "TALK".
        """
        shown = window(self.events, first_n, last_n)
        with_type = any(event.type != "TALK" for event in (*shown.head, *shown.tail))
        head, tail = (
            [(event if agent is None else event.seen_by(agent)).line(with_type=with_type) for event in part]
            for part in (shown.head, shown.tail)
        )
        left_out = [f"({shown.omitted} events omitted)"] if shown.omitted else []
        return "\n".join([*head, *left_out, *tail])


def listed(value: Any) -> list[Any]:
    """The members of a list of messages, or a single one. Raises `ConfigurationError` for anything else."""
    if isinstance(value, BaseMessage):
        return [value]
    many: Any = value
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        kind = "a text" if isinstance(value, str) else f"a {type(many).__name__}"
        raise ConfigurationError(
            f"expected a list of messages, got {kind}: {many!r:.80}. For a graph's state pass state['messages']."
        )
    return list(many)


def _messages(value: Any) -> list[BaseMessage]:
    given = listed(value)
    if all(isinstance(one, BaseMessage) for one in given):
        return [by_role(one) for one in given]
    if texts := [one for one in given if isinstance(one, str)]:
        raise ConfigurationError(
            f"expected messages, got the text {texts[0]!r:.80}, which does not say who speaks. "
            "Write ('ai', text), or Trajectory.of([Event.action(name, text)])."
        )
    try:
        return [by_role(one) for one in convert_to_messages(given)]
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"expected messages that LangChain knows: {reason}") from None


_ROLES: Mapping[str, type[BaseMessage]] = {
    **dict.fromkeys(("assistant", "ai", "model"), AIMessage),
    **dict.fromkeys(("user", "human"), HumanMessage),
    **dict.fromkeys(("system", "developer"), SystemMessage),
}
_OF_NOBODY = ("tool", "function")


def by_role(message: BaseMessage) -> BaseMessage:
    """A `ChatMessage` as the message class of its role; any other message unchanged.

    An unknown role becomes the name of a human speaker.
    """
    if not isinstance(message, ChatMessage) or message.role.lower() in _OF_NOBODY:
        return message
    made = _ROLES.get(message.role.lower())
    name = message.name or (None if made else message.role)
    return (made or HumanMessage)(content=message.content, name=name, id=message.id)


def event_of(message: BaseMessage, agent: str, *, seq: int = 0, channel: str = "") -> Event | None:
    """A message as an event; None for a system message or a message without text.

    `agent` is the actor of an AI message without a name, and the receiver of a stimulus without a speaker.
    """
    content: object = message.content
    text = content if type(content) is str else str(message.text)
    if not text or text.isspace() or isinstance(message, SystemMessage):
        return None
    if isinstance(message, AIMessage):
        return Event("action", message.name or agent, text, "TALK", seq, channel)
    if isinstance(message, HumanMessage) and message.name:
        return Event("action", message.name, text, "TALK", seq, channel)
    return Event("stimulus", agent, text, "TALK", seq, channel)


class Window(NamedTuple):
    """The part of a trajectory that a judge sees. Without omission all of it is in `head`."""

    head: tuple[Event, ...]
    omitted: int = 0
    tail: tuple[Event, ...] = ()


def window(events: Sequence[Event], first_n: int | None, last_n: int | None) -> Window:
    """The first and the last events, each once; actions and stimuli count alike.

    If both numbers are None, all events; a single None counts as 0.
    """
    if first_n is None and last_n is None:
        return Window(tuple(events))
    first, last = first_n or 0, last_n or 0
    if isinstance(events, LazyEvents):
        return events.window(first, last)
    omitted = len(events) - first - last
    if omitted <= 0:
        return Window(tuple(events))
    return Window(tuple(events[:first]), omitted, tuple(events[len(events) - last :]))
