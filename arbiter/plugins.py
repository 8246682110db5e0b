"""Plugins: evaluators and providers that belong together, for `ArbiterOS.use`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arbiter.advice import Advisor
from arbiter.evaluation import EvaluatorGroup, NodeEvaluator

__all__ = ["Plugin"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plugin:
    """Evaluators and providers that are registered together, in this order, with the `cycle` that they need.

    `init(config, arbiter_os)` is called first, with the config and the `ArbiterOS` of `use`. It may
    register objects itself.
    """

    name: str
    description: str = ""
    init: Callable[[Mapping[str, Any], Any], None] | None = None
    evaluators: Sequence[NodeEvaluator] = ()
    providers: Sequence[Advisor] = ()
    cycle: EvaluatorGroup | None = None
