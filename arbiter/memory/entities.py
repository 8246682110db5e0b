"""Who takes part in a room, and which of them a name means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AGENT_ALIASES = ("agent", "assistant", "me")
"""What a model calls the agent that it speaks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A participant: a user, the agent, or anybody that was registered. `names` are what it is called."""

    id: str
    names: tuple[str, ...] = ()
    is_agent: bool = False


def resolve(name: str, entities: Sequence[Entity], aliases: Mapping[str, str] | None = None) -> str | None:
    """The id of the one entity that `name` means, None if that is none or more than one. See docs/memory.md."""
    raise NotImplementedError
