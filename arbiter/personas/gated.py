"""What a gate found out about each action, and what that comes to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from langchain_core.messages.ai import UsageMetadata

from arbiter.personas.config import DIMENSIONS
from arbiter.personas.engine import Status

Outcome = Literal[
    "passed", "passed_after_retry", "corrected", "forced_through", "timeout_pass_through", "rejected"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionCheck:
    """One dimension of one draft.

    `score` is 0.0 to 9.0; None where there is none (`status` "timeout" or "error"), and then it passes. `reasoning` is
    that of the worst proposition. `recommended` are pairs of a reasoning and what its proposition recommends.
    """

    score: float | None
    threshold: float
    status: Status
    reasoning: str = ""
    recommended: tuple[tuple[str, str | None], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the score is at least the threshold, or there is none."""
        return self.score is None or self.score >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "score": self.score,
            "threshold": self.threshold,
            "passed": self.passed,
            "reasoning": self.reasoning,
            "status": self.status,
            "recommended": [list(pair) for pair in self.recommended],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DimensionCheck:
        """What `to_dict` gave."""
        pairs = tuple((reasoning, recommendation) for reasoning, recommendation in data["recommended"])
        return cls(
            score=data["score"],
            threshold=data["threshold"],
            status=data["status"],
            reasoning=data["reasoning"],
            recommended=pairs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One draft and what was found out about it.

    `text` is None for a draft of a process that has crashed. `similarity` (0.0 to 1.0) is None where it is not looked
    at; `similar_to` is the message that is most like it. `calls` of the judge took `token_usage`, None where the model
    does not say. `stage` is "rewrite" for what the gate's rewriter wrote.
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
        """Whether it repeats an earlier message."""
        return self.similarity is not None and self.similarity > self.most_similarity

    @property
    def passed(self) -> bool:
        """Whether nothing was found wrong with it."""
        return not self.too_similar and all(check.passed for check in self.checks.values())

    @property
    def unjudged(self) -> bool:
        """Whether a dimension passed because the judge failed."""
        return any(check.score is None for check in self.checks.values())

    @property
    def total(self) -> float:
        """The sum of the scores. A dimension that has none counts as its threshold; similarity does not count."""
        return math.fsum(
            check.threshold if check.score is None else check.score for check in self.checks.values()
        )

    @property
    def judged(self) -> bool:
        """Whether something was looked at, and either failed, or passed on all dimensions that are enabled."""
        looked_at = bool(self.checks) or self.similarity is not None
        return looked_at and (not self.passed or not self.unjudged)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "number": self.number,
            "stage": self.stage,
            "text": self.text,
            "checks": {name: check.to_dict() for name, check in self.checks.items()},
            "similarity": self.similarity,
            "most_similarity": self.most_similarity,
            "similar_to": self.similar_to,
            "passed": self.passed,
            "total_score": self.total,
            "calls": self.calls,
            "token_usage": _usage(self.token_usage),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attempt:
        """What `to_dict` gave."""
        known = {name: data[name] for name in ("number", "stage", "text", "similarity", "most_similarity")}
        return cls(
            **known,
            checks={name: DimensionCheck.from_dict(check) for name, check in data["checks"].items()},
            similar_to=data["similar_to"],
            calls=data["calls"],
            token_usage=data["token_usage"],
        )

    def to_note(self) -> dict[str, Any]:
        """The numbers, as plain data, without a word of what was said."""
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
        """What is left of a draft of another process."""
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

    `id` is the action's own; `item_id` names the node run in the history, whose tries are actions of their own.
    `run_id` names the run in its process. `enforced` is False in audit mode: the draft was judged, and whatever was
    found, it was committed as it is.

    `attempt_number` is that of the draft that was taken (of a rejected action: of the last one), and the scores are
    its. `original_text` is the first draft, None if a process that has crashed wrote it; `corrected_text` is what was
    committed, None where that is the first draft or nothing. `total_score` is None where nothing was judged.
    `token_usage` and `calls` are those of all attempts. `problem` is what kept the gate from judging anything, or from
    having a draft rewritten.
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
            "id": self.id,
            "item_id": self.item_id,
            "agent": self.agent,
            "agent_id": self.agent_id,
            "node": self.node,
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "at": self.at.isoformat(),
            "outcome": self.outcome,
            "attempt_number": self.attempt_number,
            "original_text": self.original_text,
            "corrected_text": self.corrected_text,
            "dimension_scores": {name: check.to_dict() for name, check in self.dimension_scores.items()},
            "similarity_score": self.similarity_score,
            "total_score": self.total_score,
            "token_usage": _usage(self.token_usage),
            "calls": self.calls,
            "enforced": self.enforced,
            "problem": self.problem,
            "attempts": [attempt.to_dict() for attempt in self.attempts],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GatedAction:
        """What `to_dict` gave, also after JSON."""
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
    """One dimension over all attempts. What the judge gave no score for is not `judged`; `mean` is None without any."""

    judged: int
    failures: int
    timeouts: int
    errors: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatistics:
    """What a number of gated actions come to. A rate of nothing is None.

    Rates are over drafts that were judged: a draft that passed because the judge failed, or because nothing was looked
    at, has not passed. `judged_count` counts the actions whose first draft was judged, `unjudged_count` the others.
    `original_pass_rate` is the share of actions that passed with the first draft. A *regeneration* is a draft after
    the first; `regeneration_failure_rate` is the share of those that failed, `retry_success_rate` the share of the
    actions that needed one and passed with one. `timeout_count` counts the actions that passed because the judge
    failed, `similarity_failure_count` the drafts that repeated an earlier message. Means and sample deviations of the
    total score are those of the regenerations, and of what the rewriter wrote; the deviation of fewer than 2 is 0.
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
        """Count."""
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


def _usage(usage: UsageMetadata | None) -> dict[str, Any] | None:
    return None if usage is None else dict(usage)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
