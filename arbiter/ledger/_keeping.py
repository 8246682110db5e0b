"""`Keeping`: what is kept, by the options of a ledger and by the constitution in force, the stricter of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arbiter._values.records import RANKS, Records
from arbiter.ledger._contents import States
from arbiter.redaction import ContentRedactor, Redactor

_BY_RULE = ("reasons", "notes", "errors", "tallies", "evaluations", "evaluation_errors")
"""Parts of the contents of an entry that say something of each rule, by its name."""


@dataclass(frozen=True, slots=True, eq=False)
class Keeping:
    """How much is kept of a state, what is redacted before it is stored, and for how many days it is kept."""

    states: States
    redactor: ContentRedactor
    keep_days: float | None = None

    @property
    def is_bounded(self) -> bool:
        return self.states != "full"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a ledger that say what is kept."""

    states: States
    redactor: Redactor | None
    keep_days: float | None

    def keeping(self, records: Records | None = None) -> Keeping:
        """The stricter of these options and of a constitution's records."""
        if records is None:
            records = Records()
        states = self.states
        if records.states is not None and RANKS[records.states] < RANKS[states]:
            states = records.states
        redactor = ContentRedactor(
            keys=records.keys,
            detect=records.detectors,
            patterns=records.patterns,
            also=() if self.redactor is None else (self.redactor,),
            by_rule=_BY_RULE,
        )
        return Keeping(states, redactor, shortest((self.keep_days, records.keep_days)))


def shortest(days: Iterable[float | None]) -> float | None:
    """The least of these numbers of days; None if all are kept for ever."""
    return min((each for each in days if each is not None), default=None)
