"""`FactRules`: which facts are remembered, for how long, and when two are the same; and the numbers behind them:
the confidence of a claim, and how long a status lives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import exp2, prod
from typing import Any

from arbiter.errors import ParameterError
from arbiter.evaluators._outputs import checked_number
from arbiter.memory._records import Fact, Provenance, Visibility
from arbiter.memory.stores._words import words_of

VISIBILITIES: Sequence[Visibility] = ("room", "entity", "agent")
"""From the narrowest to the widest."""
_OWNER = "FactRules"
_LONGEST = timedelta(days=365_000)
"""Longer than any record lives, and short enough for every calendar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRules:
    """The options of remembering facts.

    A status is believed until it changes, or for some time after its last mention, as its kind demands: home, job
    and partner last, a mood ends after 2 days, a plan after 14, and any other kind after a year. `status_ttl`, if
    given, is the time for all of them. Opinions are dropped unless
    `store_opinions`. Sensitive claims (health, religion, politics, sexuality, addresses, minors, criminal
    records) are dropped unless `allow_sensitive`, and then visible in their room only. `visibility` applies
    to all other claims, except in private rooms, where it is "room".

    Records with a similarity of at least `candidate_score` are compared with a new claim, at most
    `candidates` of them. Without embeddings, `lexical_score` is the limit for their words.

    Above `max_facts_per_entity` the facts with the least confidence and the greatest age are put away (state
    "expired") until they are heard again. Records that were superseded, corrected, retracted or put away are
    kept for `retention_days` (None: without a limit), at most the latest `max_closed_per_entity` of each kind
    (facts, statuses, opinions). A field of a profile is known for `profile_ttl` after the user last mentioned
    it, or for ever. With `chaining`, a model may infer facts from known facts.

    Forgotten facts are erased at once; with `undo_within` a bin keeps them for that time, and
    `Memory.undo` restores them from it.
    """

    status_ttl: timedelta | None = None
    store_opinions: bool = False
    allow_sensitive: bool = False
    visibility: Visibility = "entity"
    candidate_score: float = 0.65
    lexical_score: float = 0.35
    candidates: int = 8
    max_facts_per_entity: int = 500
    max_closed_per_entity: int = 100
    retention_days: float | None = None
    profile_ttl: timedelta | None = None
    chaining: bool = False
    undo_within: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("candidate_score", "lexical_score"):
            checked_number(_OWNER, name, getattr(self, name), low=0, high=1)
        for name in ("candidates", "max_facts_per_entity", "max_closed_per_entity"):
            checked_number(_OWNER, name, getattr(self, name), low=1, whole=True)
        for name in ("store_opinions", "allow_sensitive", "chaining"):
            given: Any = getattr(self, name)
            if not isinstance(given, bool):
                raise ParameterError(_OWNER, name, f"expected True or False, got {given!r:.80}.")
        if self.visibility not in VISIBILITIES:
            allowed = ", ".join(map(repr, VISIBILITIES))
            raise ParameterError(
                _OWNER, "visibility", f"expected one of {allowed}, got {self.visibility!r:.80}."
            )
        for name in ("status_ttl", "profile_ttl", "undo_within"):
            period: Any = getattr(self, name)
            if period is not None and (not isinstance(period, timedelta) or period <= timedelta(0)):
                problem = f"expected a timedelta above 0, got {period!r:.80}. Write timedelta(days=30)."
                raise ParameterError(_OWNER, name, problem)
            if period is not None and period > _LONGEST and name != "status_ttl":
                problem = f"expected at most {_LONGEST.days:,} days, got {period!r:.80}."
                raise ParameterError(_OWNER, name, problem)
        if self.retention_days is not None:
            checked_number(_OWNER, "retention_days", self.retention_days, above=0)
            if self.retention_days > _LONGEST.days:
                problem = f"expected at most {_LONGEST.days:,}, got {self.retention_days!r:.80}."
                raise ParameterError(_OWNER, "retention_days", problem)


SELF_REPORTED = 0.60
THIRD_PARTY = 0.40
INFERRED = 0.8
"""Factor on the product of the premises' confidences."""
AGAIN = 0.30
"""The part of the remaining doubt that a repetition by the same speaker removes."""
CONFIRMED = 0.50
"""The part of the remaining doubt that a mention by a new speaker removes."""
HIGHEST = 0.99


def prior(provenance: Provenance, premises: Iterable[float] = ()) -> float:
    """The confidence of a claim at its first mention. `premises` are the confidences of the facts that it
    was inferred from."""
    if provenance == "inferred":
        return INFERRED * prod(premises)
    return SELF_REPORTED if provenance == "self_reported" else THIRD_PARTY


def after_mention(confidence: float, *, same_speaker: bool) -> float:
    """The confidence after one more independent mention: 0.60, 0.72, 0.804, 0.8628 for one speaker."""
    step = AGAIN if same_speaker else CONFIRMED
    # Rounded, so that stored and printed numbers equal those that a reader computes by hand.
    return round(min(HIGHEST, confidence + step * (1 - confidence)), 6)


def after_contradiction(confidence: float) -> float:
    return round(confidence / 2, 6)


def weight(fact: Fact, now: datetime, half_life_days: float = 30) -> float:
    """The worth of a fact for keeping and showing it: its confidence, halved every `half_life_days` since the
    last mention."""
    days = max((now - fact.last_seen_at) / timedelta(days=1), 0.0)
    return fact.confidence * exp2(-days / half_life_days)


UNKNOWN = timedelta(days=365)
"""A status of an unknown kind. Rather long: a forgotten one has to be repeated, and a change supersedes it anyway.
"""
_MOMENT = timedelta(days=2)
_PLAN = timedelta(days=14)
_WORD = re.compile(r"[^\W_]+")
_LASTING = words_of("""
    home residence address city country job work employer occupation profession role career company education school
    study studies university partner spouse wife husband marriage relationship family child children pet pets health
    condition diet allergy medication language hobby hobbies interest interests preference preferences membership
    subscription project goal name age religion phone email car
""")
_LIFETIMES: dict[str, timedelta | None] = {
    **dict.fromkeys(_LASTING),
    **dict.fromkeys(words_of("mood feeling feelings emotion today tonight now weather activity"), _MOMENT),
    **dict.fromkeys(words_of("plan plans trip travel vacation holiday holidays"), _PLAN),
    **dict.fromkeys(words_of("appointment errand visit week weekend"), _PLAN),
}
"""By words of a kind or slot; None lasts until it is changed."""


_SINGLE = words_of("""
    home residence address city country place location current live living job work employer occupation profession role
    title company partner spouse wife husband name age mood
""")


def has_one_value(fact: Fact) -> bool:
    """True for a slot that surely has one value at a time, by its words or by the kind of a status: a new home ends
    the old one, and a new pet no other."""
    named = [{*_WORD.findall((text or "").casefold())} for text in (fact.slot, fact.kind)]
    return bool(fact.slot) and fact.type != "opinion" and any(words and words <= _SINGLE for words in named)


def expiry(fact: Fact, rules: FactRules) -> datetime | None:
    """When a status ends without a further mention; None if it lasts until it is changed. A status that
    begins later lives from then on, and one of a known end until then, if no `status_ttl` ends it before."""
    lifetime = _lifetime(fact, rules)
    if lifetime is None:
        return None
    begin = max(fact.last_seen_at, fact.valid_from or fact.last_seen_at)
    if lifetime >= datetime.max.replace(tzinfo=UTC) - begin:
        return None
    if fact.valid_to is None or fact.superseded_by is not None or rules.status_ttl is not None:
        return begin + lifetime
    return max(begin + lifetime, fact.valid_to)


def _lifetime(fact: Fact, rules: FactRules) -> timedelta | None:
    if fact.type != "status":
        return None
    if rules.status_ttl is not None:
        return rules.status_ttl
    for named in (fact.kind, fact.slot):
        for word in _WORD.findall((named or "").casefold()):
            if word in _LIFETIMES:
                return _LIFETIMES[word]
    return UNKNOWN
