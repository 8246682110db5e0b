"""Evidence of how far somebody can be trusted, and what it comes to.

The same evidence, in any order, and the same time give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

from arbiter.memory.records import Record

WEIGHTS: Mapping[str, float] = {
    "reliability": 0.25,
    "competence": 0.20,
    "integrity": 0.25,
    "benevolence": 0.20,
    "transparency": 0.10,
}
"""The dimensions, each 0 to 100, and what each counts in the overall trust."""
NEUTRAL = 50.0
"""Where each dimension stands without evidence."""

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
"""The types of evidence, and by how many points fresh and unverified evidence of each moves which dimensions, before
age is counted in."""

VERIFIED = 1.5
"""What verified evidence counts, compared with other."""
FEWEST = 3
"""With less evidence there is no confidence."""
RECENT = timedelta(days=7)

MAX_POSITIVE_A_DAY = 3
"""So many pieces of positive evidence that nobody recorded by hand are kept of one day (UTC), the earliest."""
MAX_DAYS = 60
"""Such evidence is kept of that many days, the newest that have any."""
MAX_OTHER = 200
"""That many pieces of other evidence are kept, the newest."""

Source = Literal["host", "facts", "policy", "judge"]
"""Who recorded evidence: the program itself, or an evaluator because of what was said about facts, of a checker that
denied, or of a model that judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Record):
    """One piece. What has the same `id` is the same piece. `points`, if given, is how far it moves the dimension that
    its type moves most, and the others with it in proportion."""

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
        """1 for positive evidence, -1 for negative."""
        total = sum(self.deltas.values())
        return (total > 0) - (total < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustProfile(Record):
    """The evidence about an entity, oldest first; the numbers are those of the time `at`."""

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
        """0 to 100."""
        return overall(self.dimensions)

    @property
    def confidence(self) -> float:
        """How much is behind it, 0.0 to 1.0."""
        return confidence(self.evidence, self.at)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        found = value.get("evidence")
        pieces: Any = found  # whatever somebody has written there
        read = map(_evidence, pieces) if isinstance(found, list) else ()
        kept = tuple(piece for piece in read if piece is not None)
        return super(TrustProfile, cls).from_value({**value, "evidence": kept})


def _evidence(value: Any) -> Evidence | None:
    """Evidence as it is stored; None for what is none, as the rest is still evidence."""
    try:
        piece: Any = Evidence.from_value(value)
        fine = isinstance(piece.id, str) and isinstance(piece.type, str)
        return piece if fine and isinstance(piece.points, int | float | None) else None
    except ValueError:
        return None


def age_weight(at: datetime, now: datetime) -> float:
    """What evidence of that age counts: 0.85 when it is new, and never less than 0.15. The future counts as now."""
    return 0.7 * math.exp(-0.5 * _days(at, now)) + 0.3 * 0.5


def dimensions(evidence: Iterable[Evidence], now: datetime) -> dict[str, float]:
    """Each dimension, 0 to 100: `NEUTRAL` and the sum of all evidence, held to that range once, at the end."""
    # fsum is exact, so that the order does not show in the last digit.
    points: dict[str, list[float]] = {name: [NEUTRAL] for name in WEIGHTS}
    for piece in evidence:
        weight = age_weight(piece.at, now)
        for name, delta in piece.deltas.items():
            points[name].append(delta * weight)
    return {name: min(100.0, max(0.0, math.fsum(found))) for name, found in points.items()}


def overall(found: Mapping[str, float]) -> int:
    """The weighted mean of the dimensions, to the nearest whole number, 0 to 100; halves go up."""
    mean = math.fsum(weight * found[name] for name, weight in WEIGHTS.items())
    return math.floor(round(mean, 9) + 0.5)


def confidence(evidence: Sequence[Evidence], now: datetime) -> float:
    """How much is behind a score, 0.0 to 1.0: how much evidence there is, how much it agrees, and how recent it is."""
    count = len(evidence)
    if count < FEWEST:
        return 0.0
    agreement = abs(sum(piece.sign for piece in evidence)) / count
    recent = sum(now - piece.at <= RECENT for piece in evidence) / count
    return 0.4 * min(1.0, count / 20) + 0.3 * agreement + 0.3 * recent


def admit(kept: Sequence[Evidence], new: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """What is kept of both, oldest first: bounded, and each id once, as it was first recorded.

    Positive evidence that nobody recorded by hand is easily produced. So only the earliest of a day count, and it never
    takes the place of other evidence. What is kept does not depend on the order in which pieces arrive, and one
    that was left out is left out again.
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
