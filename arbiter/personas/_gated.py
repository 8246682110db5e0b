"""The records of a gate: attempts, actions and their statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, get_args

from langchain_core.messages.ai import UsageMetadata

from arbiter.personas._config import DIMENSIONS
from arbiter.personas._engine import Status

Outcome = Literal[
    "passed", "passed_after_retry", "corrected", "forced_through", "timeout_pass_through", "rejected"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionCheck:
    """One dimension of one draft.

    `score` is 0.0 to 9.0; None without a score (`status` "timeout" or "error"), which passes. `reasoning` is
    that of the worst proposition. `recommended` are pairs of a reasoning and the recommendation of its
    proposition.
    """

    score: float | None
    threshold: float
    status: Status
    reasoning: str = ""
    recommended: tuple[tuple[str, str | None], ...] = ()

    @property
    def passed(self) -> bool:
        """True if the score reaches the threshold, or if there is no score."""
        return self.score is None or self.score >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **_fields(self),
            "passed": self.passed,
            "recommended": [list(pair) for pair in self.recommended],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DimensionCheck:
        """The check from the result of `to_dict`."""
        pairs = tuple((reasoning, recommendation) for reasoning, recommendation in data["recommended"])
        known: dict[str, Any] = {**_known(cls, data), "recommended": pairs}
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One draft and its checks.

    `text` is None for a draft of a process that crashed. `similarity` (0.0 to 1.0) is None if it was not
    measured; `similar_to` is the most similar message. `calls` counts the judge's calls; `token_usage` is
    their sum, None if the model does not report it. `stage` is "rewrite" for a text of the gate's rewriter.
    """

    number: int
    text: str | None
    checks: Mapping[str, DimensionCheck] = field(default_factory=dict[str, DimensionCheck])
    similarity: float | None = None
    most_similarity: float = 1.0
    similar_to: str = ""
    calls: int = 0
    token_usage: UsageMetadata | None = None
    stage: Literal["draft", "rewrite"] = "draft"

    @property
    def too_similar(self) -> bool:
        """True if the draft repeats an earlier message."""
        return self.similarity is not None and self.similarity > self.most_similarity

    @property
    def passed(self) -> bool:
        """True if no check failed. A dimension without a score counts as passed."""
        return not self.too_similar and all(check.passed for check in self.checks.values())

    @property
    def unjudged(self) -> bool:
        """True if a dimension passed because the judge failed."""
        return any(check.score is None for check in self.checks.values())

    @property
    def total(self) -> float:
        """The sum of the scores. A dimension without a score counts as its threshold; similarity does not
        count."""
        return math.fsum(
            check.threshold if check.score is None else check.score for check in self.checks.values()
        )

    @property
    def judged(self) -> bool:
        """True if a check failed, or if all enabled dimensions have a score. False if nothing was checked."""
        looked_at = bool(self.checks) or self.similarity is not None
        return looked_at and (not self.passed or not self.unjudged)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **_fields(self),
            "checks": {name: check.to_dict() for name, check in self.checks.items()},
            "passed": self.passed,
            "total_score": self.total,
            "token_usage": _usage(self.token_usage),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attempt:
        """The attempt from the result of `to_dict`."""
        checks = {name: DimensionCheck.from_dict(check) for name, check in data["checks"].items()}
        known: dict[str, Any] = {**_known(cls, data), "checks": checks}
        return cls(**known)

    def to_note(self) -> dict[str, Any]:
        """The numbers as plain data, without any text of the conversation."""
        return {
            "checks": {
                name: [check.score, check.threshold, check.status] for name, check in self.checks.items()
            },
            "similarity": [self.similarity, self.most_similarity],
            "calls": self.calls,
            "usage": None if self.token_usage is None else dict(self.token_usage),
        }

    @staticmethod
    def from_note(number: int, note: Mapping[str, Any]) -> Attempt:
        """The attempt of another process, from its note; its text is lost."""
        similarity, most = note["similarity"]
        return Attempt(
            number=number,
            text=None,
            checks={
                name: DimensionCheck(score=score, threshold=threshold, status=status)
                for name, (score, threshold, status) in note["checks"].items()
            },
            similarity=similarity,
            most_similarity=most,
            calls=note["calls"],
            token_usage=note["usage"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedAction:
    """One action that went through a gate, once it was decided.

    `id` is the action's own; `item_id` is the node run in the history, and each retry of a node run is an
    action of its own. `run_id` is the uuid of the run, as in a ledger. `enforced` is False in audit mode: the
    draft was judged and committed unchanged, whatever the result.

    `attempt_number` is that of the committed draft (of the last one for a rejected action), and the scores
    are its scores. `original_text` is the first draft; None if a process that crashed wrote it.
    `corrected_text` is the committed text; None if that is the first draft, or if nothing was committed.
    `total_score` is None if nothing was judged. `token_usage` and `calls` are those of all attempts.
    `problem` explains why the gate could not judge, or could not have a draft rewritten.
    """

    id: str
    item_id: str
    agent: str | None
    agent_id: str | None
    node: str
    thread_id: str | None
    run_id: str | None
    at: datetime
    outcome: Outcome
    attempt_number: int
    original_text: str | None
    corrected_text: str | None
    dimension_scores: Mapping[str, DimensionCheck]
    similarity_score: float | None
    total_score: float | None
    token_usage: UsageMetadata | None
    calls: int
    attempts: tuple[Attempt, ...]
    enforced: bool = True
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, one row."""
        return {
            **_fields(self),
            "at": self.at.isoformat(),
            "dimension_scores": {name: check.to_dict() for name, check in self.dimension_scores.items()},
            "token_usage": _usage(self.token_usage),
            "attempts": [attempt.to_dict() for attempt in self.attempts],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GatedAction:
        """The action from the result of `to_dict`, also after JSON."""
        scores = data["dimension_scores"]
        known: dict[str, Any] = {
            **data,
            "at": datetime.fromisoformat(data["at"]),
            "dimension_scores": {name: DimensionCheck.from_dict(check) for name, check in scores.items()},
            "attempts": tuple(Attempt.from_dict(attempt) for attempt in data["attempts"]),
        }
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionStatistics:
    """One dimension over all attempts. Checks without a score are not `judged`; `mean` is None without a
    score."""

    judged: int
    failures: int
    timeouts: int
    errors: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatistics:
    """Statistics of a number of gated actions. A rate without cases is None.

    Rates are over judged drafts: a draft that passed because the judge failed, or because nothing was
    checked, does not count as passed. `judged_count` counts the actions whose first draft was judged,
    `unjudged_count` the others. `original_pass_rate` is the share of actions that passed with the first
    draft. A *regeneration* is a draft after the first; `regeneration_failure_rate` is the share of those that
    failed, `retry_success_rate` the share of the actions that needed one and passed with one. `timeout_count`
    counts the actions that passed because the judge failed, `similarity_failure_count` the drafts that
    repeated an earlier message. Means and sample deviations of the total score are those of the
    regenerations, and of the rewriter's texts; the deviation of fewer than 2 is 0.
    """

    total_actions: int
    judged_count: int
    unjudged_count: int
    original_pass_rate: float | None
    regeneration_attempts: int
    regeneration_failure_rate: float | None
    retry_success_rate: float | None
    forced_through_count: int
    rejected_count: int
    timeout_count: int
    similarity_failure_count: int
    dimensions: Mapping[str, DimensionStatistics]
    outcomes: Mapping[str, int]
    regeneration_score_mean: float | None
    regeneration_score_sd: float
    rewrite_score_mean: float | None
    rewrite_score_sd: float

    @classmethod
    def of(cls, actions: Iterable[GatedAction]) -> GateStatistics:
        """The statistics of these actions."""
        rows = tuple(actions)
        attempts = [attempt for row in rows for attempt in row.attempts]
        drafts = [attempt for attempt in attempts if attempt.stage == "draft"]
        again = [attempt for attempt in drafts if attempt.number > 1]
        first = [row.attempts[0] for row in rows if row.attempts and row.attempts[0].judged]
        retried = [row for row in rows if any(a.number > 1 and a.stage == "draft" for a in row.attempts)]
        retried = [row for row in retried if row.attempts[-1].judged or row.attempts[-1].text == ""]
        judged_again = [attempt for attempt in again if attempt.judged]
        rewrites = [attempt.total for attempt in attempts if attempt.stage == "rewrite"]
        fixed = sum(row.attempts[-1].stage == "draft" and row.attempts[-1].passed for row in retried)
        scores = [attempt.total for attempt in again]
        return cls(
            total_actions=len(rows),
            judged_count=len(first),
            unjudged_count=len(rows) - len(first),
            original_pass_rate=_share(sum(attempt.passed for attempt in first), len(first)),
            regeneration_attempts=len(again),
            regeneration_failure_rate=_share(
                sum(not attempt.passed for attempt in judged_again), len(judged_again)
            ),
            retry_success_rate=_share(fixed, len(retried)),
            forced_through_count=sum(row.outcome == "forced_through" for row in rows),
            rejected_count=sum(row.outcome == "rejected" for row in rows),
            timeout_count=sum(row.outcome == "timeout_pass_through" for row in rows),
            similarity_failure_count=sum(attempt.too_similar for attempt in attempts),
            dimensions={name: found for name in DIMENSIONS if (found := _dimension(name, attempts))},
            outcomes={name: sum(row.outcome == name for row in rows) for name in get_args(Outcome)},
            regeneration_score_mean=_mean(scores),
            regeneration_score_sd=statistics.stdev(scores) if len(scores) > 1 else 0.0,
            rewrite_score_mean=_mean(rewrites),
            rewrite_score_sd=statistics.stdev(rewrites) if len(rewrites) > 1 else 0.0,
        )


def _dimension(name: str, attempts: Iterable[Attempt]) -> DimensionStatistics | None:
    checks = [attempt.checks[name] for attempt in attempts if name in attempt.checks]
    if not checks:
        return None
    scores = [check.score for check in checks if check.score is not None]
    return DimensionStatistics(
        judged=len(scores),
        failures=sum(not check.passed for check in checks),
        timeouts=sum(check.status == "timeout" for check in checks),
        errors=sum(check.status == "error" for check in checks),
        mean=_mean(scores),
    )


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in fields(kind)}


def _usage(usage: UsageMetadata | None) -> dict[str, Any] | None:
    return None if usage is None else dict(usage)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
