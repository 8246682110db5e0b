"""Trust: computed from evidence, without a model. `Trust` keeps the evidence, `TrustEvaluator` collects it.

The same evidence, in any order, and the same time give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, Unpack

from langchain_core.messages import HumanMessage

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter._values.kinds import is_list, is_listing
from arbiter.errors import ParameterError, nearest
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.memory._context import EvalContext
from arbiter.memory._conversation import heard
from arbiter.memory._evaluators import CognitiveEvaluator, CognitiveOptions, HandlerOutcome
from arbiter.memory._notes import Events, FactEvent
from arbiter.memory._records import Record, readable
from arbiter.memory._strangers import marked
from arbiter.memory.stores import MemoryStore, Value, namespace
from arbiter.verdicts import FAILED

__all__ = ["Trust", "TrustEvaluator"]

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

    entity_id: str
    at: datetime
    evidence: tuple[Evidence, ...] = field(default=())

    @property
    def dimensions(self) -> dict[str, float]:
        """Each dimension, 0 to 100: `NEUTRAL` plus the sum of all evidence, clamped once, at the end."""
        # fsum is exact, so the order of evidence does not change the last digit.
        points: dict[str, list[float]] = {name: [NEUTRAL] for name in WEIGHTS}
        for piece in self.evidence:
            weight = age_weight(piece.at, self.at)
            for name, delta in piece.deltas.items():
                points[name].append(delta * weight)
        return {name: min(100.0, max(0.0, math.fsum(found))) for name, found in points.items()}

    @property
    def overall(self) -> int:
        """The weighted mean of the dimensions, rounded to a whole number, 0 to 100; halves go up."""
        return overall(self.dimensions)

    @property
    def confidence(self) -> float:
        """The confidence in the overall trust, 0.0 to 1.0: from the amount of evidence, its agreement and its
        recency."""
        count = len(self.evidence)
        if count < FEWEST:
            return 0.0
        agreement = abs(sum(piece.sign for piece in self.evidence)) / count
        recent = sum(self.at - piece.at <= RECENT for piece in self.evidence) / count
        return 0.4 * min(1.0, count / 20) + 0.3 * agreement + 0.3 * recent

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        found = value.get("evidence")  # other programs may have written anything
        kept = tuple(readable(Evidence, found)) if is_list(found) else ()
        return super(TrustProfile, cls).from_value({**value, "evidence": kept})


def age_weight(at: datetime, now: datetime) -> float:
    """The weight of evidence by age: 0.85 when it is new, and at least 0.15. Times in the future count as
    now."""
    days = max(0.0, (now - at).total_seconds() / 86_400)
    return 0.7 * math.exp(-0.5 * days) + 0.3 * 0.5


def overall(found: Mapping[str, float]) -> int:
    mean = math.fsum(weight * found[name] for name, weight in WEIGHTS.items())
    return math.floor(round(mean, 9) + 0.5)


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


# Keeping and collecting it ------------------------------------------------------------------------

_KEY = "profile"
_MAX_DENIALS = 1_024


class Trust:
    """The trust profiles of one agent."""

    def __init__(self, store: MemoryStore, agent_id: str, clock: Callable[[], datetime]) -> None:
        self.store = store
        self.agent_id = agent_id
        self.clock = clock

    async def profile(self, entity_id: str) -> TrustProfile:
        """The evidence about an entity, and its trust at this moment. A stranger has no evidence."""
        found = await self.store.aget(namespace(self.agent_id, "trust", entity_id), _KEY)
        return replace(self._profile(entity_id, found), at=self.clock())

    async def record(self, entity_id: str, evidence: Iterable[Evidence]) -> int:
        """Add evidence; pieces with a known id are not added again. Returns how many are new and were kept. Raises
        `ParameterError` for an unknown type."""
        pieces = [*evidence]
        for piece in pieces:
            _check(piece)
        added = 0

        def change(value: Value | None) -> Value | None:
            nonlocal added
            profile = self._profile(entity_id, value)
            kept = admit(profile.evidence, pieces)
            added = len({piece.id for piece in kept} - {piece.id for piece in profile.evidence})
            if kept == profile.evidence:
                return value
            return {**(value or {}), **replace(profile, at=self.clock(), evidence=kept).to_value()}

        await self.store.aupdate(namespace(self.agent_id, "trust", entity_id), _KEY, change)
        return added

    def _profile(self, entity_id: str, value: Value | None) -> TrustProfile:
        return TrustProfile.read(value) or TrustProfile(entity_id=entity_id, at=self.clock())


def _check(piece: Evidence) -> None:
    owner = f"evidence {piece.id!r:.80}"
    if piece.type not in EVIDENCE:
        raise ParameterError(owner, "type", f"there is no {piece.type!r:.80}.{nearest(piece.type, EVIDENCE)}")
    if piece.at.tzinfo is None:
        raise ParameterError(owner, "at", "expected a time with its zone.")
    if piece.points is not None and not math.isfinite(piece.points):
        raise ParameterError(owner, "points", f"expected a finite number, got {piece.points!r}.")


class TrustEvaluator(CognitiveEvaluator):
    """Keeps the trust in the user of a turn up to date; needs no model.

    Evidence comes from facts and from denials. A statement that another speaker confirms speaks for those who
    made it before, as found by evaluators registered before this one. A user's repetitions, corrections and
    changes of their own statements are no evidence. A checker's denial in this thread counts as
    `policy_evidence` says: types of evidence by the checker's name, "*" for all others, None for no evidence.
    A denial counts against the speaker of the newest human message in the node's input, so exclude checkers
    that deny for other reasons. A denial that raised is in no checkpoint; only the process in which it
    happened counts it.

    The score is the overall trust / 100; it passes from `min_trust` on, by default the trust in a stranger.
    """

    description = "Keeps up to date how far the user can be trusted."
    always_run = True
    skip_selection = True
    needs_store = True
    needs_messages = False

    def __init__(
        self,
        name: str = "TRUST",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        *,
        min_trust: float = 50,
        policy_evidence: Mapping[str, str | None] | None = None,
        **options: Unpack[CognitiveOptions],
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, **options)
        given: Any = min_trust
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 100:
            raise ParameterError(f"evaluator {name!r}", "min_trust", f"expected 0 to 100, got {given!r:.80}.")
        self.min_trust = min_trust
        self.policy_evidence = (
            {"*": "SUSPICIOUS_ACTIVITY"} if policy_evidence is None else {**policy_evidence}
        )
        for checker, type in self.policy_evidence.items():
            if type is not None and type not in EVIDENCE:
                problem = f"there is no evidence {type!r:.80}.{nearest(str(type), EVIDENCE)}"
                raise ParameterError(f"evaluator {name!r}", f"policy_evidence[{checker!r}]", problem)

    async def handle(self, ctx: EvalContext) -> HandlerOutcome:
        trust = Trust(ctx.needed_store(), ctx.agent_id, ctx.clock)
        events = Events(ctx.needed_store(), ctx.agent_id, ctx.room_id)
        kept = await events.all()
        found = of_events([*kept, *ctx.events], at=ctx.ended_at)
        for entity, pieces in (await self._of_denials(ctx)).items():
            found.setdefault(entity, []).extend(pieces)
        agents = {ctx.agent_id, *(entity.id for entity in ctx.entities if entity.is_agent)}
        agents |= {*ctx.strangers.values()}  # nor people of whom only a name is known
        recorded = 0
        for entity, pieces in found.items():
            if entity not in agents and pieces:
                recorded += await trust.record(entity, pieces)
        await events.remove(kept)
        profile = await trust.profile(ctx.entity_id)
        overall = profile.overall
        data: dict[str, Any] = {
            "overall": overall,
            "dimensions": {name: round(value, 2) for name, value in profile.dimensions.items()},
            "confidence": round(profile.confidence, 4),
            "evidence": len(profile.evidence),
            "recorded": recorded,
        }
        return HandlerOutcome(overall / 100, overall >= self.min_trust, f"trust {overall} of 100", data)

    async def _of_denials(self, ctx: EvalContext) -> dict[str, list[Evidence]]:
        """Evidence from the denials in the history, by the entity that each was first attributed to in
        this room."""
        denials = {id: (item, type) for id, item, type in self._denials(ctx.history)}
        if not denials:
            return {}
        blamed: dict[str, str] = {}

        def change(value: Value | None) -> Value | None:
            kept = _blamed(value)
            blamed.update(kept)
            missing = {id: _cause(item, ctx) for id, (item, _) in denials.items() if id not in kept}
            if not missing:
                return value
            blamed.update(missing)
            return {"denials": [[id, entity] for id, entity in blamed.items()][-_MAX_DENIALS:]}

        # Store the attribution before the evidence: after a crash in between, the same entity is blamed again.
        place = namespace(ctx.agent_id, "cursors", ctx.room_id)
        await ctx.needed_store().aupdate(place, f"{self.name}:denials", change)
        found: dict[str, list[Evidence]] = {}
        for id, (item, type) in denials.items():
            piece = Evidence(id=f"policy:{id}", type=type, at=_when(item, ctx), source="policy")
            found.setdefault(blamed[id], []).append(piece)
        return found

    def _denials(self, history: History) -> Iterable[tuple[str, HistoryItem, str]]:
        """The id, the node run and the type of evidence of each denial."""
        for item in history.denials() if isinstance(history, CausalHistory) else history.items():
            for checker, verdict in item.check_policy_results.items():
                type = self.policy_evidence.get(checker, self.policy_evidence.get("*"))
                # A checker that failed is no user's fault; see arbiter/_lifecycle/checking.py.
                is_just = verdict.kind == "deny" and not verdict.reason.startswith(FAILED)
                if type is not None and is_just:
                    yield f"{item.id}:{checker}", item, type


def of_events(events: Iterable[FactEvent], *, at: datetime) -> dict[str, list[Evidence]]:
    """Evidence by entity from what happened to facts: another speaker has confirmed a statement.

    It speaks for those who said it before, once for each confirming speaker. A user who repeats, corrects or
    changes their own statement gives no evidence, and neither does one who contradicts somebody else.
    """
    found: dict[str, list[Evidence]] = {}
    for event in events:
        if event.kind == "confirmed":
            for speaker in event.confirms:
                piece = Evidence(
                    id=f"confirmed:{event.fact_id}:{event.speaker}",
                    type="CONSISTENT_BEHAVIOR",
                    at=event.at or at,
                    source="facts",
                )
                found.setdefault(speaker, []).append(piece)
    return found


def _cause(item: HistoryItem, ctx: EvalContext) -> str:
    """The speaker of the newest human message in the node's input, else the user of this turn."""
    for part in item.input_state.values():
        for message in reversed(part) if is_listing(part) else ():
            if isinstance(message, HumanMessage):
                [message] = marked(heard([message], ctx.speakers), ctx.strangers)
                return ctx.speaker_of(message)
    return ctx.entity_id


def _when(item: HistoryItem, ctx: EvalContext) -> datetime:
    """The time of a node run by the clock of the cycle; the history has a clock of its own."""
    return ctx.ended_at - max(ctx.item.timestamp - item.timestamp, timedelta(0))


def _blamed(value: Value | None) -> dict[str, str]:
    pairs: Any = (value or {}).get("denials")
    return {str(pair[0]): str(pair[1]) for pair in pairs or () if len(pair) == 2}
