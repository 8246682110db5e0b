"""The settings of corrections while an agent speaks. All corrections are off until enabled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from arbiter._values.parameters import Param, declared_in, problem
from arbiter.errors import ConfigurationError, ParameterError
from arbiter.personas._answers import HIGHEST

if TYPE_CHECKING:
    from arbiter.personas._conversation import Cast

Dimension = Literal["adherence", "consistency", "fluency", "suitability"]
DIMENSIONS: tuple[Dimension, ...] = ("adherence", "consistency", "fluency", "suitability")

_Judged = Annotated[bool, Param("judge each draft on the dimension")]
_Threshold = Annotated[float, Param("the score that a draft needs", ge=0, le=HIGHEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """The corrections of one agent; all are off until enabled.

    A draft that fails is written again; then the best draft is used, or none. `anti_convergence_*`,
    `variety_*` and `repetition_*` are the settings of `anti_convergence`, `variety` and
    `RepetitionSuppressor`.
    """

    gate_adherence_enabled: _Judged = False
    gate_consistency_enabled: _Judged = False
    gate_fluency_enabled: _Judged = False
    gate_suitability_enabled: _Judged = False
    gate_adherence_threshold: _Threshold = 7.0
    gate_consistency_threshold: _Threshold = 7.0
    gate_fluency_threshold: _Threshold = 7.0
    gate_suitability_threshold: _Threshold = 7.0
    gate_similarity_enabled: Annotated[
        bool, Param("compare each draft with the agent's last five messages")
    ] = False
    max_action_similarity: Annotated[
        float,
        Param("the share of words (Jaccard) that a draft may have in common with one of them", ge=0, le=1),
    ] = 0.6
    max_correction_attempts: Annotated[int, Param("how often a failed draft is written again", ge=0)] = 2
    continue_on_failure: Annotated[bool, Param("use the best draft if none passes, instead of none")] = True
    minimum_required_qty_of_actions: Annotated[
        int, Param("the number of the agent's first actions that are not judged", ge=0)
    ] = 0
    anti_convergence_enabled: Annotated[bool, Param("nudge speakers that share too many words")] = False
    convergence_threshold: Annotated[
        float, Param("the share of vocabulary at which that begins", ge=0, le=1)
    ] = 0.6
    variety_intervention_enabled: Annotated[bool, Param("nudge an agent to vary what it says")] = False
    variety_message_threshold: Annotated[int, Param("the number of messages at which that begins", ge=0)] = 7
    repetition_suppression_enabled: Annotated[bool, Param("nudge an agent that repeats itself")] = False
    repetition_threshold: Annotated[
        float,
        Param("the mean overlap of the 3-grams of its last five messages at which that begins", ge=0, le=1),
    ] = 0.3
    judge_timeout: Annotated[
        float,
        Param(
            "the seconds for judging one dimension; all are judged at the same time",
            gt=0,
            expected="seconds above 0",
        ),
    ] = 5.0
    enable_regeneration: Annotated[bool, Param("let the agent write failed drafts again")] = True
    enable_direct_correction: Annotated[
        bool, Param("then let the gate's rewriter rewrite the best draft, as often as the agent may")
    ] = False

    def __post_init__(self) -> None:
        for name, hint, param in declared_in(GateConfig):
            if (wrong := problem(param, hint, getattr(self, name))) is not None:
                raise ParameterError("GateConfig", name, f"{wrong}.")

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


def config_for(configs: GateConfig | Mapping[str, GateConfig], cast: Cast, agent: str | None) -> GateConfig:
    """The settings of an agent: its own by name or id, else those of "*"."""
    if isinstance(configs, GateConfig):
        return configs
    named = {cast.name(known): config for known, config in configs.items()}
    found = named.get(agent) or named.get("*")
    return found if found is not None else GateConfig()


def checked_configs(
    configs: GateConfig | Mapping[str, GateConfig], cast: Cast, owner: str
) -> GateConfig | Mapping[str, GateConfig]:
    """The given settings. Raises `ConfigurationError` for anything else, for settings of an unknown agent, and
    for two of one agent."""
    if not isinstance(configs, GateConfig):
        given: Any = configs
        settings: Any = given.items() if issubclass(type(given), Mapping) else [("", given)]
        for known, config in settings:
            if not isinstance(known, str) or not isinstance(config, GateConfig):
                problem = f"expected a GateConfig, or a mapping with one for each agent, got {given!r:.80}."
                raise ConfigurationError(f"{owner}: config: {problem}")
        for known in configs:
            if known != "*" and cast.personas and cast.name(known) not in cast.personas:
                agents = ", ".join(map(repr, cast.personas))
                raise ConfigurationError(
                    f"{owner}: there are settings for {known!r}, which is not an agent. Agents: {agents}."
                )
        named: dict[str | None, str] = {}
        for known in configs:
            if (other := named.setdefault(cast.name(known), known)) != known:
                raise ConfigurationError(
                    f"{owner}: {other!r} and {known!r} are the same agent. Keep one of its settings."
                )
    return configs


def all_configs(configs: GateConfig | Mapping[str, GateConfig]) -> tuple[GateConfig, ...]:
    return (configs,) if isinstance(configs, GateConfig) else tuple(configs.values())
