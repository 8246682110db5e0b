"""What was said: events in order, as one agent saw them or as a whole channel, and how a judge is shown them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)

from arbiter.errors import ConfigurationError
from arbiter.models import visible

MAX_EVENT = 20_000
"""Of a longer text of one event, in characters, a judge is shown the first and the last half of that."""
SOMEBODY = "assistant"
"""Who says an AI message that has no name, where nobody else is known to."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that an agent did (`kind="action"`; `actor` did it) or perceived (`"stimulus"`; `actor` got it).

    `type` is "TALK", "THINK", or whatever else an agent can do. `seq` is the place in the conversation, from 0.
    `channel` names the conversation, where that matters: consistency compares within one. `source` is who a stimulus
    comes from, "" where that is not known.
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
        """`actor` does something."""
        return cls("action", actor, text, type, seq, channel)

    @classmethod
    def stimulus(cls, actor: str, text: str, type: str = "TALK", *, seq: int = 0, channel: str = "") -> Event:
        """`actor` perceives something."""
        return cls("stimulus", actor, text, type, seq, channel)

    def line(self, *, with_type: bool = False) -> str:
        """The event as exactly one line, whatever its text: line ends, and what cannot be seen, become codes."""
        text = shortened(self.text, MAX_EVENT)
        shown = visible(text.replace("\r\n", "\n").replace("\n", "\\n"))
        if with_type:
            shown = f"[{visible(self.type)}] {shown}"
        # Who it is from stands outside the brackets, where no text can get.
        actor, source = _name(self.actor), f" from {_name(self.source)}" if self.source else ""
        return f"{actor} acts: [{shown}]" if self.kind == "action" else f"--> {actor}{source}: [{shown}]"


def _name(name: str) -> str:
    return visible(name).replace("[", "(").replace("]", ")")


def shortened(text: str, limit: int) -> str:
    """`text`, or of a longer one the first and the last half of `limit` characters and how many are left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters cut ...] {text[-half:]}"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Events in chronological order: an agent's own view, or a whole channel (then all are actions)."""

    events: tuple[Event, ...] = ()

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
        """A conversation in LangChain's messages, or in what LangChain takes for messages, such as
        `{"role": "user", "content": "Hi"}` or `("ai", "Hello")`.

        An AI message is an action of its `name`, else of `agent`, else of "assistant". A human message with a name
        is that person's action; without one, and for tool messages, it is a stimulus to `agent` (or "assistant").
        System messages, which nobody in the conversation says, and messages without text are left out. Raises
        `ConfigurationError` for anything else than messages.
        """
        return cls.of(_events_of(_messages(messages), agent or SOMEBODY, channel))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def actors(self) -> tuple[str, ...]:
        """Who acts in it, in the order of their first action."""
        return tuple(dict.fromkeys(event.actor for event in self.events if event.kind == "action"))

    def actions_of(self, agent: str) -> tuple[Event, ...]:
        """What that agent did."""
        return tuple(event for event in self.events if event.kind == "action" and event.actor == agent)

    def seen_by(self, agent: str) -> Trajectory:
        """The same from one agent's side: the others' actions are stimuli to that agent, from them."""
        return Trajectory(
            tuple(
                event
                if event.actor == agent or event.kind == "stimulus"
                else replace(event, kind="stimulus", actor=agent, source=event.actor)
                for event in self.events
            )
        )

    def text(self, first_n: int | None = None, last_n: int | None = None) -> str:
        """One line for each event of that window, with one that says how many are left out.

        With types ("[THINK] ...") if any event is no "TALK".
        """
        shown = window(self.events, first_n, last_n)
        with_type = any(event.type != "TALK" for event in self.events)
        lines = [event.line(with_type=with_type) for event in shown.head]
        if shown.omitted:
            lines.append(f"({shown.omitted} events omitted)")
        return "\n".join(lines + [event.line(with_type=with_type) for event in shown.tail])


def _messages(value: Any) -> list[BaseMessage]:
    if isinstance(value, BaseMessage):
        return [value]
    many: Any = value
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        kind = "a text" if isinstance(value, str) else f"a {type(many).__name__}"
        raise ConfigurationError(
            f"expected a list of messages, got {kind}: {many!r:.80}. Of a graph's state pass state['messages']."
        )
    given: list[Any] = list(many)
    if all(isinstance(one, BaseMessage) for one in given):
        return given
    if texts := [one for one in given if isinstance(one, str)]:
        raise ConfigurationError(
            f"expected messages, got the text {texts[0]!r:.80}, which does not say who speaks. "
            "Write ('ai', text), or Trajectory.of([Event.action(name, text)])."
        )
    try:
        return convert_to_messages(given)
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"expected messages that LangChain knows: {reason}") from None


def _events_of(messages: Iterable[BaseMessage], agent: str, channel: str) -> Iterator[Event]:
    for message in messages:
        text = str(message.text)
        if isinstance(message, SystemMessage) or not text.strip():
            continue
        if isinstance(message, AIMessage):
            yield Event.action(message.name or agent, text, channel=channel)
        elif isinstance(message, HumanMessage) and message.name:
            yield Event.action(message.name, text, channel=channel)
        else:
            yield Event.stimulus(agent, text, channel=channel)


class Window(NamedTuple):
    """The part of a trajectory that a judge is shown. Without omission all of it is in `head`."""

    head: tuple[Event, ...]
    omitted: int = 0
    tail: tuple[Event, ...] = ()


def window(events: Sequence[Event], first_n: int | None, last_n: int | None) -> Window:
    """The first and the last events, each once; actions and stimuli count alike.

    None twice is everything; one None is 0.
    """
    if first_n is None and last_n is None:
        return Window(tuple(events))
    first, last = first_n or 0, last_n or 0
    omitted = len(events) - first - last
    if omitted <= 0:
        return Window(tuple(events))
    return Window(tuple(events[:first]), omitted, tuple(events[len(events) - last :]))
