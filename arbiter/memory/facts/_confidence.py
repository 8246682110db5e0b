"""The confidence of claims: a prior by provenance, and the gain of each independent mention."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from arbiter.memory._records import Provenance

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
