"""What one `ArbiterOS` is made of, for the parts that work on its behalf."""

from __future__ import annotations

from dataclasses import dataclass

from arbiter.lifecycle import Settings
from arbiter.recorder import Recorder
from arbiter.registry import Registry


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Registry, records and settings."""

    registry: Registry
    recorder: Recorder
    settings: Settings
