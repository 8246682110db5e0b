"""`Target`: the trajectory that propositions are judged on, and the personas behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from arbiter.errors import ConfigurationError
from arbiter.personas._characters import Persona
from arbiter.personas._trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The material of a judgement: a trajectory of one `agent` or (None) of the whole channel, and the known
    personas.

    A proposition with `target_type="agent"` shows the trajectory from the agent's side, and the agent's
    persona; one with "environment" shows all of it in order, and every participant's persona.

    `before` is for a `trajectory` that is part of a conversation, such as one message: the conversation
    before it. All of `trajectory` is judged then, and `first_n` and `last_n` of a proposition set how many
    events of the conversation up to its end are shown with it. A proposition that sets neither shows
    `trajectory` alone.
    """

    trajectory: Trajectory
    agent: str | None = None
    personas: tuple[Persona, ...] = ()
    channel: str = ""
    before: Trajectory | None = None

    def __post_init__(self) -> None:
        for name in ("trajectory", "before"):
            given: Any = getattr(self, name)
            if not isinstance(given, Trajectory) and not (name == "before" and given is None):
                raise ConfigurationError(
                    f"Target: {name}: expected a Trajectory, got {given!r:.80}. "
                    "Make one from messages with Trajectory.from_messages(messages, agent)."
                )

        if isinstance(cast(Any, self.personas), Persona):
            raise ConfigurationError(f"Target: personas: expected a tuple, got {self.personas!r:.80}.")
        for name in ("agent", "channel"):
            given = getattr(self, name)
            if not isinstance(given, str) and not (name == "agent" and given is None):
                raise ConfigurationError(f"Target: {name}: expected a text, got {given!r:.80}.")

    @property
    def own_personas(self) -> tuple[Persona, ...]:
        """The persona with the agent's name; a single persona in any case."""
        own = tuple(persona for persona in self.personas if persona.name == self.agent)
        return own or (self.personas if len(self.personas) == 1 or self.agent is None else ())

    @property
    def variables(self) -> dict[str, str]:
        """The template variables that the target fills."""
        found: dict[str, str] = {}
        if self.agent is not None:
            found["agent_name"] = self.agent
        if self.channel:
            found["channel_name"] = self.channel
        return found
