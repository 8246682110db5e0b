"""The records that a repository returns, and the messages that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

Status = Literal["pending", "running", "completed", "failed"]
Window = tuple[datetime, datetime]
"""The period that was sampled: from the first time on, before the second one. Both are aware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation of an agent. Times are aware.

    `sample_size` counts the judged messages, pairs or events. `overall_score` is 0.0 to 9.0 (a count, if ideas
    alone were counted); None until it is completed, and if nothing could be judged. `token_usage` is None if
    the model does not report it. `problem` explains why it failed.
    """

    id: UUID
    agent_id: str
    status: Status
    dimensions: tuple[str, ...]
    window: Window | None
    sample_size: int
    overall_score: float | None
    is_baseline: bool
    token_usage: Mapping[str, Any] | None
    created_at: datetime
    completed_at: datetime | None
    suite: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRecord:
    """The score of one proposition: 0.0 to 9.0, or a count of ideas. The reasoning and the snippet are those
    of the worst element."""

    dimension: str
    proposition_id: str
    score: float
    reasoning: str
    context_snippet: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """One message of an agent at an aware time. `kind` is an action type, such as TALK or THINK; `run_id` is
    the uuid of the run of the graph."""

    agent_id: str
    text: str
    at: datetime
    channel: str = ""
    kind: str = "TALK"
    run_id: UUID | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """A judge compared with people's labels: for which row and version, over `n` outputs. `data` has all
    numbers."""

    row: str
    version: str
    judge: str
    n: int
    data: Mapping[str, Any]
    created_at: datetime
