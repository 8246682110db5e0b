"""Telemetry: what governed graphs do, for the systems that a team already has.

`OpenTelemetry` is a listener: executions and node runs become spans, evaluations and decisions log records.
`LangfuseScores` and `LangSmithScores` receive the scores of a ledger. See docs/telemetry.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arbiter.ledger._receivers import (
        BatchRefused,
        Delivery,
        ExportedScore,
        ReceiverBusy,
        ReceiverError,
        Refusal,
        ScoreReceiver,
    )
    from arbiter.telemetry._langfuse import LangfuseScores
    from arbiter.telemetry._langsmith import LangSmithScores
    from arbiter.telemetry._spans import OpenTelemetry

_LAZY = {
    "OpenTelemetry": ("_spans", "opentelemetry", "otel"),
    "LangfuseScores": ("_langfuse", "langfuse", "langfuse"),
    "LangSmithScores": ("_langsmith", "langsmith", "langsmith"),
}
"""The names that need an extra of their own: their modules, the packages that they need, and the extras. The others
need a ledger."""

__all__ = [
    "BatchRefused",
    "Delivery",
    "ExportedScore",
    "LangSmithScores",
    "LangfuseScores",
    "OpenTelemetry",
    "ReceiverBusy",
    "ReceiverError",
    "Refusal",
    "ScoreReceiver",
]


def __getattr__(name: str) -> Any:
    """Import what needs an extra when it is asked for, so that each needs its own only."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _LAZY:
        return getattr(importlib.import_module("arbiter.ledger._receivers"), name)
    module, package, extra = _LAZY[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {error.name}: pip install 'arbiteros[{extra}]'", name=error.name
        ) from None
