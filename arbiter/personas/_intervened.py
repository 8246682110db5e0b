"""The record of one evaluation of an intervention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from langchain_core.messages.ai import UsageMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervened:
    """One evaluation of an intervention: the conditions that held (None: not asked), and the nudges by agent.

    `agent` is the agent whose turn it was, in the node run `item_id` of that `step`, run and thread.
    `problem` explains why a condition could not be answered, or lacked evidence; `failed` says that a judge or a
    function raised. `calls` and `token_usage` are
    those of the judge; the usage is None if the model does not report it. `targets` are the names of the
    intervention's agents, `channel` is the one of its cast.
    """

    name: str
    at: datetime | None = None
    agent: str | None = None
    item_id: str = ""
    step: int = 0
    run_id: str = ""
    thread_id: str | None = None
    functional: bool | None = None
    textual: bool | None = None
    propositional: bool | None = None
    fired: bool = False
    nudges: Mapping[str, str] = field(default_factory=dict[str, str])
    problem: str = ""
    failed: bool = False
    calls: int = 0
    token_usage: UsageMetadata | None = None
    targets: tuple[str, ...] = ()
    channel: str = ""
