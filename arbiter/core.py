"""What one `ArbiterOS` is made of, for the parts that work on its behalf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arbiter.lifecycle import Settings
from arbiter.recorder import Recorder
from arbiter.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Registry, records and settings. `planned` is called when a node of a graph, which runs, has looked up what
    applies to it."""

    registry: Registry
    recorder: Recorder
    settings: Settings
    planned: Callable[[], None]

    def __deepcopy__(self, memo: dict[int, Any]) -> Core:
        """What is copied stays governed by the same `ArbiterOS`."""
        return self
