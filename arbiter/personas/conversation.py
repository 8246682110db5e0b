"""Whose turn it is in a node of a graph, and what was said before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages

from arbiter.errors import ConfigurationError
from arbiter.history import History, HistoryItem
from arbiter.personas.characters import Persona
from arbiter.personas.config import GateConfig
from arbiter.personas.engine import Target
from arbiter.personas.trajectories import SOMEBODY, Event, Trajectory
from arbiter.states import Digest

T = TypeVar("T")
AgentOf = Callable[[HistoryItem], str | None]
"""Says from a node run which agent acts in it, by name or id; None for nobody who is known."""


class Cast:
    """The agents of a graph: which one acts in a node run, and what its conversation is.

    `key` is where the conversation is in the state: messages, or texts. An agent is known by the name or the id of its
    persona. Who acts in a node run is what `agent_of` says; without it, whose name or id is the name of the node; else,
    in the `nodes` that a single agent is bound to, that one, unless one of them has its name. Nobody is guessed.
    Without any agents each node is one, by its own name.
    """

    def __init__(
        self,
        agents: Iterable[Persona | str] = (),
        *,
        key: str = "messages",
        agent_of: AgentOf | None = None,
        channel: str = "",
        nodes: Iterable[str] | None = None,
    ) -> None:
        self.personas = {
            persona.name: persona
            for persona in (one if isinstance(one, Persona) else Persona(one, "") for one in agents)
        }
        self.aliases = {p.id: p.name for p in self.personas.values() if p.id}
        self.key = key
        self.agent_of = agent_of
        self.channel = channel
        self.nodes = frozenset([nodes] if isinstance(nodes, str) else nodes or ())

    def name(self, known: str | None) -> str | None:
        """The name of the agent with that name or id; what is no agent's stays as it is."""
        return None if known is None else self.aliases.get(known, known)

    def acting(self, item: HistoryItem) -> str | None:
        """Who acts in that node run; None if that is not known."""
        if self.agent_of is not None:
            return self.name(self.agent_of(item))
        found = self.name(item.node)
        if not self.personas or found in self.personas:
            return found
        return self._bound if item.node in self.nodes else None

    @property
    def _bound(self) -> str | None:
        """The only agent that there is, where no node has its name."""
        if len(self.personas) != 1 or any(self.name(node) in self.personas for node in self.nodes):
            return None
        return next(iter(self.personas))

    def persona(self, agent: str | None) -> tuple[Persona, ...]:
        """The persona of that agent, if it has one."""
        found = self.personas.get(agent or "")
        return (found,) if found is not None and found.text else ()

    def before(self, history: History, agent: str | None = None) -> Trajectory:
        """What was said before the newest node run. See `trajectory`. Raises what `messages_in` raises."""
        given = messages_in(history.entries[-1][-1].input_state.get(self.key))
        return self.trajectory(given, agent, self.writers(history, given))

    def trajectory(
        self, said: Iterable[Any], agent: str | None, writers: Mapping[str, str] | None = None
    ) -> Trajectory:
        """Messages and texts as events of the agents' names.

        AI messages without a name, and texts, are said by whom `writers` has seen writing them; else by `agent`, where
        there is no other agent who might have.
        """
        events: list[Event] = []
        alone = agent if len(self.personas) < 2 else None
        for one in said:
            speaker = agent
            if _unsigned(one):
                speaker = next((found for mark in _marks(one) if (found := (writers or {}).get(mark))), alone)
            if not isinstance(one, str):
                events += Trajectory.from_messages([one], speaker)
            elif one.strip():
                events.append(Event.action(speaker or SOMEBODY, one))
        return Trajectory.of(
            replace(event, actor=self.aliases.get(event.actor, event.actor), channel=self.channel)
            for event in events
        )

    def writers(self, history: History, said: Iterable[Any]) -> Mapping[str, str]:
        """Who wrote what has no name in `said`: the agent of the node run, else the node, as far as the history has
        seen it.

        By the id of a message, or by its text if it has none; a text that two have written is nobody's.
        """
        found: dict[str, str] = {}
        if not any(map(_unsigned, said)):
            return found
        for superstep in history.entries[:-1]:
            for item in superstep:
                written = [one for one in self._written(item) if _unsigned(one)]
                who = (self.acting(item) or item.node) if written else ""
                for one in written:
                    mark = _marks(one)[0]
                    if found.setdefault(mark, who) != who and mark.startswith(_TEXT):
                        found[mark] = SOMEBODY
        return found

    def _written(self, item: HistoryItem) -> list[Any]:
        try:
            now = messages_in(item.output_state.get(self.key))
            # Only a node that returns several messages may return the conversation that it was given.
            return new_of(messages_in(item.input_state.get(self.key)), now) if len(now) > 1 else now
        except (TypeError, ValueError, NotImplementedError):
            return []

    def target(self, trajectory: Trajectory, agent: str | None) -> Target:
        """What a judge is shown: of one agent, or (None) of all."""
        personas = self.persona(agent) if agent is not None else tuple(self.personas.values())
        return Target(trajectory=trajectory, agent=agent, personas=personas, channel=self.channel)


_TEXT = "text "


def _unsigned(one: Any) -> bool:
    return isinstance(one, str) or (isinstance(one, AIMessage) and not one.name)


def _marks(one: Any) -> list[str]:
    """What a text or message may be known by, the surest first."""
    if isinstance(one, str):
        return [_TEXT + one]
    return [*([f"id {one.id}"] if one.id else []), _TEXT + str(one.text)]


_ROLES = frozenset({"human", "user", "ai", "assistant", "function", "tool", "system", "developer"})


def messages_in(value: Any) -> list[Any]:
    """The messages and texts in a part of a state, which may be a single one: a text, a message, or what LangChain
    takes for a message, `{"role": ..., "content": ...}` or `("ai", ...)`.

    Raises what `convert_to_messages` raises, and `ConfigurationError` where the history keeps digests alone.
    """
    if value is None:
        return []
    if isinstance(value, Digest):
        raise ConfigurationError(
            "what was said cannot be judged, because the history keeps digests alone. "
            "Use ArbiterOS(snapshot='shallow') or 'deep'."
        )
    if isinstance(value, str | BaseMessage):
        return [value]
    if is_single(value):
        return list(convert_to_messages([value]))
    parts = list(value)
    return parts if all(isinstance(part, str) for part in parts) else list(convert_to_messages(parts))


def is_single(value: Any) -> bool:
    """Whether that is one text or message, and no list of them."""
    pair: Any = value
    if isinstance(value, tuple):
        return len(pair) == 2 and isinstance(pair[0], str) and pair[0] in _ROLES
    return isinstance(value, str | BaseMessage | Mapping)


def new_of(given: list[Any], now: list[Any]) -> list[Any]:
    """What is new of what a node says: it may return the whole conversation that it was given."""
    if now[: len(given)] != given:
        return now
    new = now[len(given) :]
    # Messages have ids; texts that are the same as those before may well be said again.
    return new if new or not all(isinstance(one, str) for one in now) else now


def config_for(configs: GateConfig | Mapping[str, GateConfig], cast: Cast, agent: str | None) -> GateConfig:
    """The settings of an agent: by its name or id where there are several, "*" for all others."""
    if isinstance(configs, GateConfig):
        return configs
    named = {cast.name(known): config for known, config in configs.items()}
    found = named.get(agent) or named.get("*")
    return found if found is not None else GateConfig()


def checked_configs(
    configs: GateConfig | Mapping[str, GateConfig], cast: Cast, owner: str
) -> GateConfig | Mapping[str, GateConfig]:
    """The same. Raises `ConfigurationError` for settings of somebody who is no agent."""
    if not isinstance(configs, GateConfig):
        for known in configs:
            if known != "*" and cast.personas and cast.name(known) not in cast.personas:
                agents = ", ".join(map(repr, cast.personas))
                raise ConfigurationError(f"{owner}: there are settings for {known!r}. Agents: {agents}.")
    return configs


def all_configs(configs: GateConfig | Mapping[str, GateConfig]) -> tuple[GateConfig, ...]:
    """All settings that there are."""
    return (configs,) if isinstance(configs, GateConfig) else tuple(configs.values())
