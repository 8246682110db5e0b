"""Whose turn it is in a node of a graph, and what was said before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, convert_to_messages

from arbiter.errors import ConfigurationError
from arbiter.history import HistoryItem
from arbiter.personas.characters import Persona
from arbiter.personas.config import GateConfig
from arbiter.personas.engine import Target
from arbiter.personas.trajectories import SOMEBODY, Event, Trajectory

T = TypeVar("T")
AgentOf = Callable[[HistoryItem], str | None]
"""Says from a node run which agent acts in it, by name or id; None for nobody who is known."""


class Cast:
    """The agents of a graph: which one acts in a node run, and what its conversation is.

    `key` is where the conversation is in the state: messages, or texts. An agent is known by the name or the id of its
    persona. Who acts in a node run is what `agent_of` says; without it, whose name or id is the name of the node; else
    the only agent that there is.
    """

    def __init__(
        self,
        agents: Iterable[Persona | str] = (),
        *,
        key: str = "messages",
        agent_of: AgentOf | None = None,
        channel: str = "",
    ) -> None:
        self.personas = {
            persona.name: persona
            for persona in (one if isinstance(one, Persona) else Persona(one, "") for one in agents)
        }
        self.aliases = {p.id: p.name for p in self.personas.values() if p.id}
        self.key = key
        self.agent_of = agent_of
        self.channel = channel

    def name(self, known: str | None) -> str | None:
        """The name of the agent with that name or id; what is no agent's stays as it is."""
        return None if known is None else self.aliases.get(known, known)

    def acting(self, item: HistoryItem) -> str | None:
        """Who acts in that node run."""
        if self.agent_of is not None:
            return self.name(self.agent_of(item))
        found = self.name(item.node)
        if found in self.personas:
            return found
        return next(iter(self.personas)) if len(self.personas) == 1 else None

    def persona(self, agent: str | None) -> tuple[Persona, ...]:
        """The persona of that agent, if it has one."""
        found = self.personas.get(agent or "")
        return (found,) if found is not None and found.text else ()

    def before(self, item: HistoryItem, agent: str | None = None) -> Trajectory:
        """What was said before that node run. AI messages without a name are said by `agent`."""
        return self.trajectory(messages_in(item.input_state.get(self.key)), agent)

    def trajectory(self, said: Iterable[Any], agent: str | None) -> Trajectory:
        """Messages and texts as events of the agents' names."""
        events: list[Event] = []
        for one in said:
            if isinstance(one, str):
                if one.strip():
                    events.append(Event.action(agent or SOMEBODY, one))
            else:
                events += Trajectory.from_messages([one], agent)
        return Trajectory.of(
            replace(event, actor=self.aliases.get(event.actor, event.actor), channel=self.channel)
            for event in events
        )

    def target(self, trajectory: Trajectory, agent: str | None) -> Target:
        """What a judge is shown: of one agent, or (None) of all."""
        personas = self.persona(agent) if agent is not None else tuple(self.personas.values())
        return Target(trajectory=trajectory, agent=agent, personas=personas, channel=self.channel)


def messages_in(value: Any) -> list[Any]:
    """The messages and texts in a part of a state. Raises what `convert_to_messages` raises."""
    if value is None:
        return []
    if isinstance(value, str | BaseMessage):
        return [value]
    parts = list(value)
    return parts if all(isinstance(part, str) for part in parts) else list(convert_to_messages(parts))


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
