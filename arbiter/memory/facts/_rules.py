"""`FactRules`: which facts are remembered, for how long, and when two are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from arbiter.errors import ParameterError
from arbiter.evaluators._outputs import checked_number
from arbiter.memory._records import Visibility

VISIBILITIES: Sequence[Visibility] = ("room", "entity", "agent")
"""From the narrowest to the widest."""
_OWNER = "FactRules"


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
    "expired") until they are heard again. Of the records that were superseded, corrected, retracted or put away
    the latest `max_closed_per_entity` of each kind (facts, statuses, opinions) are kept, none longer than
    `retention_days`; None sets no limit of time. With `chaining`, a model may infer facts from known facts.

    What is forgotten is erased at once; with `undo_within` it is kept in a bin for that time, from which
    `Memory.undo` restores it.
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
        for name in ("status_ttl", "undo_within"):
            period: Any = getattr(self, name)
            if period is not None and (not isinstance(period, timedelta) or period <= timedelta(0)):
                problem = f"expected a timedelta above 0, got {period!r:.80}. Write timedelta(days=30)."
                raise ParameterError(_OWNER, name, problem)
        if self.retention_days is not None:
            checked_number(_OWNER, "retention_days", self.retention_days, above=0)
