"""How much is behind a claim: a prior by where it comes from, and what each independent mention adds."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from arbiter.memory.records import Provenance

SELF_REPORTED = 0.60
THIRD_PARTY = 0.40
INFERRED = 0.8
"""What is left of the product of the premises' confidences."""
AGAIN = 0.30
"""The part of the remaining doubt that a mention by somebody who has said it before takes away."""
CONFIRMED = 0.50
"""The same for a mention by somebody else."""
HIGHEST = 0.99


def prior(provenance: Provenance, premises: Iterable[float] = ()) -> float:
    """The confidence of a claim that is heard for the first time. `premises`: of what an inferred one follows from."""
    if provenance == "inferred":
        return INFERRED * prod(premises)
    return SELF_REPORTED if provenance == "self_reported" else THIRD_PARTY


def after_mention(confidence: float, *, same_speaker: bool) -> float:
    """The confidence after one more independent mention: 0.60, 0.72, 0.804, 0.8628 for one speaker."""
    step = AGAIN if same_speaker else CONFIRMED
    # Rounded, so that what is stored, printed and compared is the number that one would work out by hand.
    return round(min(HIGHEST, confidence + step * (1 - confidence)), 6)


def after_contradiction(confidence: float) -> float:
    return round(confidence / 2, 6)
