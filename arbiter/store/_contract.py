"""The protocol of a repository, which scorers, gates and the harness use without knowing its database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from arbiter.personas import (
    CorrectionRepository,
    GateConfig,
    GatedAction,
    InterventionRepository,
    ScorerResult,
)
from arbiter.store._records import (
    AgentMessage,
    CalibrationRecord,
    EvaluationRecord,
    ScoreRecord,
    Status,
    Window,
)


@runtime_checkable
class EvaluationRepository(CorrectionRepository, InterventionRepository, Protocol):
    """Keeps evaluations, corrections, settings and messages of agents.

    Times are aware. Periods include `since` and exclude `until`. Lists begin with the oldest. An agent has to
    be added first, except for what gates and interventions store.
    """

    def add_agent(
        self, id: str, display_name: str = "", *, system_prompt: str | None = None, kind: str = "agent"
    ) -> None:
        """Add an agent, or change the one with that id. `kind` is "agent" or "environment"."""
        ...

    def start_run(
        self,
        agent_id: str,
        dimensions: Sequence[str],
        *,
        window: Window | None = None,
        suite: str = "",
        started: datetime | None = None,
    ) -> UUID:
        """Begin an evaluation, which is stored as `running`. Returns its id.

        `started` is the begin of the whole run of the `suite`: its evaluations that are still `running` from
        before that time, because their process was killed, become `failed`.
        """
        ...

    def finish_run(self, run_id: UUID, results: Iterable[ScorerResult] = (), *, problem: str = "") -> None:
        """End an evaluation: store all scores and its outcome in one transaction.

        With a `problem` it has failed. The overall score is the mean of the dimensions that have one, or the
        number of ideas if nothing else was scored.
        """
        ...

    def add_scores(self, run_id: UUID, results: Iterable[ScorerResult]) -> None:
        """Add scores to an evaluation, in one transaction."""
        ...

    def runs(
        self,
        agent_id: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        status: Status | None = None,
        suite: str | None = None,
    ) -> list[EvaluationRecord]:
        """The evaluations that fit all that is given."""
        ...

    def scores(self, run_id: UUID) -> list[ScoreRecord]:
        """The scores of an evaluation, by dimension and proposition."""
        ...

    def mark_baseline(self, run_id: UUID, is_baseline: bool = True) -> None:
        """Mark a completed evaluation as a baseline, or no longer.

        It takes the place of the agent's baselines that have no other dimensions: their marks are removed.
        """
        ...

    def corrections(
        self, agent_id: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[GatedAction]:
        """The actions that went through a gate. `GateStatistics.of` sums them up."""
        ...

    def config(self, agent_id: str) -> GateConfig:
        """The corrections of an agent: all defaults if none were set."""
        ...

    def set_config(self, agent_id: str, config: GateConfig | None = None, **changes: Any) -> GateConfig:
        """Set the corrections of an agent: all of `config`, or the settings that are named. Returns them."""
        ...

    def add_messages(self, messages: Iterable[AgentMessage]) -> int:
        """Add messages. Returns the number of those that were not there yet.

        The same text of an agent in the same channel, kind and time is the same message.
        """
        ...

    def messages(
        self, agent_id: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[AgentMessage]:
        """The messages of an agent, or of all."""
        ...

    def add_calibration(self, row: str, *, version: str, judge: str, n: int, data: Mapping[str, Any]) -> UUID:
        """Keep the comparison of a judge with people's labels. Returns its id.

        A row has many: the newest one is that of its judge now.
        """
        ...

    def calibrations(self, row: str | None = None) -> list[CalibrationRecord]:
        """The calibrations of a row, or of all."""
        ...
