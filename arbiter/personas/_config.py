"""The settings of corrections while an agent speaks. All corrections are off until enabled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from arbiter.errors import ParameterError
from arbiter.personas._answers import HIGHEST

Dimension = Literal["adherence", "consistency", "fluency", "suitability"]
DIMENSIONS: tuple[Dimension, ...] = ("adherence", "consistency", "fluency", "suitability")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """The corrections of one agent.

    `gate_*_enabled` and `gate_*_threshold` select the dimensions on which each draft is judged, and the score
    from 0 to 9 that it needs. With `gate_similarity_enabled` a draft fails if it shares more than
    `max_action_similarity` (Jaccard, 0.0 to 1.0) of its words with one of the agent's last five messages. A
    failed draft is written again up to `max_correction_attempts` times; then the best draft is used, or with
    `continue_on_failure=False` none. The gate starts after the agent's first
    `minimum_required_qty_of_actions` actions.

    `anti_convergence_*`, `variety_*` and `repetition_*` are the settings of `anti_convergence`, `variety` and
    `RepetitionSuppressor`: the vocabulary that speakers share (0.0 to 1.0), the number of an agent's
    messages, and the mean overlap of the 3-grams of its last five messages (0.0 to 1.0).

    `judge_timeout` limits the judgement of one dimension, in seconds; the dimensions are judged at the same
    time. With `enable_regeneration=False` the agent does not write drafts again. With
    `enable_direct_correction` the gate's rewriter then rewrites the best draft, up to
    `max_correction_attempts` times.
    """

    gate_adherence_enabled: bool = False
    gate_consistency_enabled: bool = False
    gate_fluency_enabled: bool = False
    gate_suitability_enabled: bool = False
    gate_adherence_threshold: float = 7.0
    gate_consistency_threshold: float = 7.0
    gate_fluency_threshold: float = 7.0
    gate_suitability_threshold: float = 7.0
    gate_similarity_enabled: bool = False
    max_action_similarity: float = 0.6
    max_correction_attempts: int = 2
    continue_on_failure: bool = True
    minimum_required_qty_of_actions: int = 0
    anti_convergence_enabled: bool = False
    convergence_threshold: float = 0.6
    variety_intervention_enabled: bool = False
    variety_message_threshold: int = 7
    repetition_suppression_enabled: bool = False
    repetition_threshold: float = 0.3
    judge_timeout: float = 5.0
    enable_regeneration: bool = True
    enable_direct_correction: bool = False

    def __post_init__(self) -> None:
        for dimension in DIMENSIONS:
            self._number(f"gate_{dimension}_threshold", 0, HIGHEST)
        for share in ("max_action_similarity", "convergence_threshold", "repetition_threshold"):
            self._number(share, 0, 1)
        for count in (
            "max_correction_attempts",
            "minimum_required_qty_of_actions",
            "variety_message_threshold",
        ):
            given: Any = getattr(self, count)
            if isinstance(given, bool) or not isinstance(given, int) or given < 0:
                raise ParameterError(
                    "GateConfig", count, f"expected a whole number from 0, got {given!r:.80}."
                )
        self._number("judge_timeout", 0, math.inf)
        if not 0 < self.judge_timeout < math.inf:
            raise ParameterError(
                "GateConfig", "judge_timeout", f"expected seconds above 0, got {self.judge_timeout!r}."
            )
        for name in self.__dataclass_fields__:
            switch = name.endswith("_enabled") or name.startswith("enable_") or name == "continue_on_failure"
            given = getattr(self, name)
            if switch and not isinstance(given, bool):
                raise ParameterError("GateConfig", name, f"expected True or False, got {given!r:.80}.")

    def _number(self, name: str, lowest: float, highest: float) -> None:
        given: Any = getattr(self, name)
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not lowest <= given <= highest:
            problem = f"expected a number from {lowest:g} to {highest:g}, got {given!r:.80}."
            raise ParameterError("GateConfig", name, problem)

    @property
    def thresholds(self) -> dict[Dimension, float]:
        """The required score of each enabled dimension."""
        return {
            dimension: float(getattr(self, f"gate_{dimension}_threshold"))
            for dimension in DIMENSIONS
            if getattr(self, f"gate_{dimension}_enabled")
        }

    @property
    def gates(self) -> bool:
        """True if the gate checks drafts."""
        return bool(self.thresholds) or self.gate_similarity_enabled

    @property
    def drafts(self) -> int:
        """Most drafts that the agent writes for one message."""
        return 1 + (self.max_correction_attempts if self.enable_regeneration else 0)
