"""Evidence about an entity, and the trust computed from it.

The same evidence, in any order, and the same time give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

from arbiter.memory._records import Record, readable

WEIGHTS: Mapping[str, float] = {
    "reliability": 0.25,
    "competence": 0.20,
    "integrity": 0.25,
    "benevolence": 0.20,
    "transparency": 0.10,
}
"""The dimensions, each 0 to 100, and their weights in the overall trust."""
NEUTRAL = 50.0
"""The value of each dimension without evidence."""

EVIDENCE: Mapping[str, Mapping[str, float]] = {
    "PROMISE_KEPT": {"reliability": 15, "integrity": 10},
    "HELPFUL_ACTION": {"benevolence": 15, "competence": 10},
    "CONSISTENT_BEHAVIOR": {"reliability": 20, "transparency": 10},
    "VERIFIED_IDENTITY": {"integrity": 20, "transparency": 15},
    "COMMUNITY_CONTRIBUTION": {"benevolence": 20, "competence": 15},
    "SUCCESSFUL_TRANSACTION": {"reliability": 15, "competence": 10},
    "PROMISE_BROKEN": {"reliability": -25, "integrity": -15},
    "HARMFUL_ACTION": {"benevolence": -30, "integrity": -20},
    "INCONSISTENT_BEHAVIOR": {"reliability": -20, "transparency": -15},
    "SUSPICIOUS_ACTIVITY": {"transparency": -20, "integrity": -15},
    "FAILED_VERIFICATION": {"integrity": -25, "transparency": -20},
    "SPAM": {"benevolence": -15, "competence": -10},
    "SECURITY_VIOLATION": {"integrity": -35, "reliability": -20},
    "IDENTITY_CHANGE": {"transparency": -5},
}
"""The types of evidence, and the points by which unverified evidence of each moves dimensions, before age is counted
in."""

VERIFIED = 1.5
"""Factor for verified evidence."""
FEWEST = 3
"""Pieces of evidence below which the confidence is 0."""
RECENT = timedelta(days=7)

MAX_POSITIVE_A_DAY = 3
"""Pieces of automatic positive evidence kept for one day (UTC), the earliest."""
MAX_DAYS = 60
"""Days with automatic positive evidence that are kept, the newest."""
MAX_OTHER = 200
"""Pieces of other evidence that are kept, the newest."""

Source = Literal["host", "facts", "policy"]
"""The source of evidence: the program itself, or an evaluator that read events of facts or a checker's denial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Record):
    """One piece of evidence, identified by its `id`.

    `points`, if given, replaces the points of the dimension that the type moves most; the others change in
    proportion.
    """

    _times = ("at",)

    id: str
    type: str
    at: datetime
    source: Source = "host"
    verified: bool = False
    points: float | None = None

    @property
    def deltas(self) -> Mapping[str, float]:
        """The points by dimension, without age; none for a type that is not known here."""
        found = EVIDENCE.get(self.type, {})
        scale = VERIFIED if self.verified else 1.0
        if self.points is not None and found:
            scale *= abs(self.points) / max(map(abs, found.values()))
        return {name: delta * scale for name, delta in found.items()}

    @property
    def sign(self) -> int:
        """1 for positive evidence, -1 for negative, 0 for none."""
        total = sum(self.deltas.values())
        return (total > 0) - (total < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustProfile(Record):
    """The evidence about an entity, oldest first, and its trust at the time `at`."""

    _times = ("at",)

    entity_id: str
    at: datetime
    evidence: tuple[Evidence, ...] = field(default=())

    @property
    def dimensions(self) -> dict[str, float]:
        """Each dimension, 0 to 100."""
        return dimensions(self.evidence, self.at)

    @property
    def overall(self) -> int:
        """The overall trust, 0 to 100."""
        return overall(self.dimensions)

    @property
    def confidence(self) -> float:
        """The confidence in the overall trust, 0.0 to 1.0."""
        return confidence(self.evidence, self.at)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        found = value.get("evidence")
        pieces: Any = found  # other programs may have written anything
        kept = tuple(readable(Evidence, pieces)) if isinstance(found, list) else ()
        return super(TrustProfile, cls).from_value({**value, "evidence": kept})


def age_weight(at: datetime, now: datetime) -> float:
    """The weight of evidence by age: 0.85 when it is new, and at least 0.15. Times in the future count as
    now."""
    return 0.7 * math.exp(-0.5 * _days(at, now)) + 0.3 * 0.5


def dimensions(evidence: Iterable[Evidence], now: datetime) -> dict[str, float]:
    """Each dimension, 0 to 100: `NEUTRAL` plus the sum of all evidence, clamped once, at the end."""
    # fsum is exact, so the order of evidence does not change the last digit.
    points: dict[str, list[float]] = {name: [NEUTRAL] for name in WEIGHTS}
    for piece in evidence:
        weight = age_weight(piece.at, now)
        for name, delta in piece.deltas.items():
            points[name].append(delta * weight)
    return {name: min(100.0, max(0.0, math.fsum(found))) for name, found in points.items()}


def overall(found: Mapping[str, float]) -> int:
    """The weighted mean of the dimensions, rounded to a whole number, 0 to 100; halves go up."""
    mean = math.fsum(weight * found[name] for name, weight in WEIGHTS.items())
    return math.floor(round(mean, 9) + 0.5)


def confidence(evidence: Sequence[Evidence], now: datetime) -> float:
    """The confidence of a score, 0.0 to 1.0: from the amount of evidence, its agreement and its recency."""
    count = len(evidence)
    if count < FEWEST:
        return 0.0
    agreement = abs(sum(piece.sign for piece in evidence)) / count
    recent = sum(now - piece.at <= RECENT for piece in evidence) / count
    return 0.4 * min(1.0, count / 20) + 0.3 * agreement + 0.3 * recent


def admit(kept: Sequence[Evidence], new: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """The evidence kept of both, oldest first: bounded, and each id once, as it was first recorded.

    Automatic positive evidence is easily produced, so only the earliest pieces of a day count, and they never
    displace other evidence. The result does not depend on the order of arrival, and a rejected piece is
    rejected again.
    """
    by_id: dict[str, Evidence] = {}
    for piece in (*kept, *new):
        by_id.setdefault(piece.id, piece)
    pieces = sorted(by_id.values(), key=_order)
    other = [piece for piece in pieces if not _easy(piece)]
    days: dict[str, list[Evidence]] = {}
    for piece in filter(_easy, pieces):
        days.setdefault(piece.at.astimezone(UTC).date().isoformat(), []).append(piece)
    easy = [piece for day in sorted(days)[-MAX_DAYS:] for piece in days[day][:MAX_POSITIVE_A_DAY]]
    return tuple(sorted([*other[-MAX_OTHER:], *easy], key=_order))


def _easy(piece: Evidence) -> bool:
    return piece.source != "host" and piece.sign > 0


def _order(piece: Evidence) -> tuple[datetime, str]:
    return piece.at, piece.id


def _days(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds() / 86_400)
