"""Agents as a target: what they said in a window of time, or what they answer to prompts.

    Agents ─▶ a case for each agent, and for each channel ─▶ their messages ─▶ dimensions of personas

Live runs judge stored messages and call no agent; an agent without any is `not_evaluable`. In the mode "synthetic"
an agent with fewer than `ENOUGH` messages in the window answers the prompts that ship in `evaluators/prompts/`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from arbiter._constitution.documents import pack_files, pack_folder, read_document
from arbiter._values.versions import hash_of
from arbiter.errors import ConfigurationError
from arbiter.harness.cases import Case
from arbiter.harness.messages import INSTANT, Message, Messages, duration, moment, span
from arbiter.harness.targets import Answered, NotEvaluableError, Target
from arbiter.personas import Persona

ENOUGH = 10
"""The messages that an agent needs in the window to be judged by them in the mode "synthetic"."""
_MONTH = timedelta(days=30)
CHANNEL = "env:"
"""The beginning of the id of a channel's case."""


def prompts() -> Mapping[str, str]:
    """The prompts that ship with Arbiter, by id."""
    folder = pack_folder("evaluators").joinpath("prompts")
    files = [read_document(file, f"prompts/{file.name}").data for file in pack_files(folder)]
    return {prompt["id"]: prompt["text"] for file in files for prompt in file["prompts"]}


def is_agent(case: Case) -> bool:
    """True for the case of an agent, as `Agents.cases` makes it."""
    return {"agent", "persona"} <= set(case.metadata)


def mistakes_in_times(
    window: str, until: datetime | str | None, history: str | None
) -> Iterator[tuple[str, str]]:
    """The settings of `Agents` that are no times, each with what was expected."""
    times: list[tuple[str, Callable[[Any], object], Any]] = [
        ("window", duration, window),
        ("until", moment, until),
        ("history", span, history),
    ]
    for name, check, given in times:
        try:
            if given is not None:
                check(given)
        except (ConfigurationError, ValueError) as error:
            yield name, str(error).removeprefix("at: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent. `id` is its name in the messages. `persona` may be the text that `Persona.of` takes, such as
    "arbiter:ilka". `graph`, or a function, answers prompts, which it gets as messages under "messages". Without one
    the agent has its stored messages alone.
    """

    id: str
    persona: Persona
    graph: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "persona", Persona.of(self.persona))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Agents with their messages, as a target.

    `window` is the time before `until` (by default the moment after the newest message) whose messages are judged;
    consistency compares them with those of `history`, such as "30d..7d". `channels` are those of which convergence
    and the quantity of ideas are judged.
    """

    agents: Sequence[Agent]
    messages: Messages
    window: str = "7d"
    until: datetime | str | None = None
    history: str | None = None
    channels: Sequence[str] = ()

    def __post_init__(self) -> None:
        channels = (self.channels,) if isinstance(self.channels, str) else tuple(self.channels)
        for name, given in (("agents", tuple(self.agents)), ("channels", channels)):
            object.__setattr__(self, name, given)  # what can be read once is read more often
        if not self.agents:
            raise ConfigurationError("agents: expected at least one")
        if wrong := list(mistakes_in_times(self.window, self.until, self.history)):
            raise ConfigurationError("\n".join(f"{name}: {said}." for name, said in wrong))

    @property
    def cases(self) -> tuple[Case, ...]:
        """A case for each agent, and for each channel."""
        times = {"window": self.window}
        times |= {"until": moment(self.until).isoformat()} if self.until is not None else {}
        times |= {"history": self.history} if self.history is not None else {}
        return (
            *(
                Case(
                    each.id,
                    {"agent": each.id, **times},
                    metadata={"agent": each.id, "persona": asdict(each.persona)},
                )
                for each in self.agents
            ),
            *(
                Case(f"{CHANNEL}{name}", {"channel": name, **times}, metadata={"channel": name})
                for name in self.channels
            ),
        )

    def end(self) -> datetime | None:
        """The end of the window; None without a message."""
        return self.messages.end() if self.until is None else moment(self.until)

    def said(self, agent: str | None, end: datetime | None) -> Sequence[Message]:
        """The messages of the window of an agent, or of all."""
        return [] if end is None else self.messages.read(agent, self._before(end, duration(self.window)), end)

    def said_before(self, agent: str, end: datetime | None) -> Sequence[Message]:
        """The earlier messages of an agent, with which consistency compares those of the window."""
        if end is None:
            return []
        first, last = (_MONTH, duration(self.window)) if self.history is None else span(self.history)
        return self.messages.read(agent, self._before(end, first), self._before(end, last))

    def _before(self, end: datetime, time: timedelta) -> datetime:
        """The moment so long before `until`, or before the newest message."""
        return (end if self.until is not None else end - INSTANT) - time


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsTarget(Target):
    """Agents as a suite measures them. With `synthetic`, agents with few messages answer prompts by `answering`."""

    given: Agents
    answering: Mapping[str, Target]
    synthetic: bool = False
    name: str = "agents"
    is_async: bool = False
    is_recorded: bool = True
    kind: str = "agents"

    def check(self) -> None:
        """Read the messages. Raises `ConfigurationError` if they cannot be read, and if an agent has to answer prompts
        and cannot.
        """
        end = self.given.end()
        if self.given.until is not None:
            self.given.said(None, end)  # else nothing has been read yet
        mute = [
            each.id
            for each in self.given.agents
            if self.synthetic
            and each.id not in self.answering
            and len(self.given.said(each.id, end)) < ENOUGH
        ]
        if mute:
            raise ConfigurationError(
                f"{', '.join(mute)} has fewer than {ENOUGH} messages in the last {self.given.window}, and no graph "
                "that answers prompts. Name one: target.agents.NAME.graph."
            )

    def for_worker(self) -> Callable[[Case, str], Any]:
        calls = {id: target.for_worker() for id, target in self.answering.items()} if self.synthetic else {}
        return lambda case, thread_id: self._answered(case, thread_id, calls)

    def _answered(
        self, case: Case, thread_id: str, calls: Mapping[str, Callable[[Case, str], Any]]
    ) -> Answered:
        end, channel = self.given.end(), case.metadata.get("channel")
        if channel is not None:
            said: Sequence[Message] = [each for each in self.given.said(None, end) if each.channel == channel]
            return Answered({"messages": self._plain(said, f"in the channel {channel!r}", end)})
        agent = str(case.metadata["agent"])
        said = self.given.said(agent, end)
        if self.synthetic and len(said) < ENOUGH:
            return Answered({"messages": self._asked(agent, thread_id, calls[agent]), "before": []})
        before = [*map(_plain, self.given.said_before(agent, end))]
        return Answered({"messages": self._plain(said, f"of {agent!r}", end), "before": before})

    def _plain(self, said: Sequence[Message], whose: str, end: datetime | None) -> list[dict[str, str]]:
        if not said:
            when = "at all" if end is None else f"in the {self.given.window} before {end:%Y-%m-%d %H:%M}"
            raise NotEvaluableError(f"there is no message {whose} {when}")
        return [_plain(message) for message in said]

    def _asked(self, agent: str, thread_id: str, call: Callable[[Case, str], Any]) -> list[dict[str, str]]:
        """The answers of an agent to the prompts."""
        found: list[dict[str, str]] = []
        for name, prompt in prompts().items():
            asked = Case(name, {"messages": [{"role": "user", "content": prompt}]})
            answered: Any = call(asked, f"{thread_id}:{name}")
            if inspect.iscoroutine(answered):
                answered = asyncio.run(answered)
            found.append({"agent": agent, "text": str(answered.output), "prompt": hash_of(prompt)[:16]})
        return found

    def parts(self) -> Mapping[str, str]:
        """The messages are no part of it: a recording is judged again as it is."""
        personas = {f"the persona of {each.id}": hash_of(each.persona) for each in self.given.agents}
        graphs = {
            f"{name} of {id}": digest
            for id, target in self.answering.items()
            for name, digest in target.parts().items()
        }
        return {**personas, **graphs}


def _plain(message: Message) -> dict[str, str]:
    found = {"agent": message.agent, "text": message.text, "channel": message.channel, "kind": message.kind}
    return {**found, "at": message.at.isoformat()}
