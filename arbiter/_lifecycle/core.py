"""The parts of one `ArbiterOS`, for the modules that work for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from arbiter._lifecycle.registry import Plan, Registry
from arbiter._lifecycle.runs import Settings
from arbiter.history._recorder import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Registry, records and settings.

    `planned` is called when a running node has looked up its rules, with these and its config, and when a
    governed function is called.
    """

    registry: Registry
    recorder: Recorder
    settings: Settings
    planned: Callable[[Plan, RunnableConfig | None], None]

    @property
    def keeps_facts(self) -> bool:
        """True if node runs leave facts: a rule may look back on them, or a listener gets what was lost."""
        return bool(self.registry.changes or self.settings.listeners)

    def __deepcopy__(self, memo: dict[int, Any]) -> Core:
        """Returns the same object, so that a copied graph stays governed by the same `ArbiterOS`."""
        return self
