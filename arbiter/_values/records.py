"""`Records`: what a constitution says about what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

States = Literal["none", "digest", "bounded", "full"]
"""What is kept of inputs and outputs, least first."""
RANKS: Mapping[str, int] = {states: rank for rank, states in enumerate(get_args(States))}

DETECT = ("secrets", "cards")
"""The detectors that look into texts if no pack says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How much is kept of inputs and outputs, what is redacted, and for how many days contents are kept.

    None and empty parts say nothing. `source` is the place of the last pack that has a say.
    """

    states: States | None = None
    keys: tuple[str, ...] = ()
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    detect: tuple[str, ...] | None = None
    keep_days: float | None = None
    source: str = ""

    @property
    def detectors(self) -> tuple[str, ...]:
        """The detectors that look into texts."""
        return DETECT if self.detect is None else self.detect

    def to_dict(self) -> dict[str, Any]:
        """As a pack writes it."""
        redact: dict[str, Any] = {"keys": [*self.keys], "patterns": dict(self.patterns)}
        if self.detect is not None:
            redact["detect"] = [*self.detect]
        parts = {"states": self.states, "redact": redact, "keep_days": self.keep_days}
        return {key: part for key, part in parts.items() if part is not None}
