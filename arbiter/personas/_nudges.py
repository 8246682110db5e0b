"""The shipped interventions, against converging voices and against stagnating ideas, and their nudges."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from itertools import combinations
from typing import Any, Literal
from typing import cast as cast_to

from arbiter._values.states import is_whole
from arbiter.advice import Advisor
from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel, Judge
from arbiter.personas._characters import Persona, agents_of, name_of
from arbiter.personas._config import GateConfig, checked_configs, config_for
from arbiter.personas._conversation import Cast
from arbiter.personas._engine import PropositionEngine
from arbiter.personas._interventions import OF_BATCH, Condition, Effect, Intervention, InterventionBatch
from arbiter.personas._propositions import Proposition
from arbiter.personas._scorers import weighted_mean
from arbiter.personas._targets import Target
from arbiter.personas._texts import tokens
from arbiter.personas._trajectories import window

_log = logging.getLogger("arbiter.personas")

NudgeKind = Literal[
    "devils_advocate", "change_subject", "personal_story", "challenging_question", "new_ideas"
]

NUDGES: Mapping[NudgeKind, str] = {
    "devils_advocate": "Everybody agrees a little too quickly. Name the weakest point of what was said last, and hold "
    "to it as {name} would.",
    "change_subject": "This has been talked through. Bring up something else that matters to {name}.",
    "personal_story": "Tell something that happened to {name} and that puts all of this in another light.",
    "challenging_question": "Ask the one question that nobody here wants to answer, in the words of {name}.",
    "new_ideas": "Think of all ideas so far. Now come up with a completely new one, no variation of any of them, that "
    "only {name} could have.",
}


def nudge_for(kind: NudgeKind, target: Target) -> str:
    """A nudge in the name of the target's character, with a reminder of its description."""
    persona = target.own_personas[0] if target.own_personas else None
    text = NUDGES[kind].replace("{name}", target.agent or "yourself")
    if persona is None or not persona.description.strip():
        return text
    return f"{text} You are {persona.name}: {' '.join(persona.description.split())}"


AGREEING = (
    "The participants agree with one another too readily: they take up what was said before, in much the same words, "
    "without objection, doubt or a view of their own."
)
STAGNATING = (
    "{{agent_name}} has brought up no entirely new idea in more than its last %s: what it says are "
    "repetitions and refinements of ideas that were there before."
)


def anti_convergence(
    agents: Persona | str | Iterable[Persona | str],
    judge: PropositionEngine | Judge | ChatModel | str,
    config: GateConfig | Mapping[str, GateConfig] | None = None,
    *,
    nudges: Mapping[str, NudgeKind] | NudgeKind = "devils_advocate",
    persist: bool = False,
    name: str = "anti_convergence",
    **settings: Any,
) -> InterventionBatch:
    """Keeps voices apart: nudges each agent when the agents share many words and a judge finds that they
    agree too readily.

    The agents must share at least `convergence_threshold` of their words (`shared_words`, mean over all
    pairs; 0 leaves the decision to the judge). Both conditions read the first 5 and last 15 events of the
    conversation, unless `first_n` and `last_n` are given; only messages of the agents count, not those of a
    host.

    `nudges` sets the kind of nudge, for all agents or by agent. With a `config`, only agents with
    `anti_convergence_enabled` are nudged. Agents with different thresholds have an intervention each.
    """
    known = agents_of(agents)
    cast = Cast(known)
    configs = _checked(config, cast, name)
    thresholds: dict[float, list[Persona | str]] = {}
    for agent in known:
        limits = config_for(configs, cast, name_of(agent))
        if limits.anti_convergence_enabled:
            thresholds.setdefault(limits.convergence_threshold, []).append(agent)
    targets = {key: settings.pop(key) for key in OF_BATCH if key in settings}
    made: dict[str, Any] = {"first_n": 5, "last_n": 15, **settings}
    effect = _nudging(cast, nudges, "devils_advocate", name)
    each = [
        Intervention(group, judge=judge, agents=known, name=name, persist=persist, **made)
        .set_functional_precondition(_converged(cast, threshold, made["first_n"], made["last_n"]))
        .set_propositional_precondition(
            Proposition("agreeing", AGREEING, target_type="environment", include_personas=False)
        )
        .set_effect(effect)
        for threshold, group in thresholds.items()
    ]
    return InterventionBatch(each, name=name, cast=_cast_of(name, known, settings, targets), **targets)


def variety(
    agents: Persona | str | Iterable[Persona | str],
    judge: PropositionEngine | Judge | ChatModel | str,
    config: GateConfig | Mapping[str, GateConfig] | None = None,
    *,
    stale_after: int = 5,
    nudges: Mapping[str, NudgeKind] | NudgeKind = "new_ideas",
    persist: bool = False,
    name: str = "variety",
    **settings: Any,
) -> InterventionBatch:
    """Keeps ideas coming: nudges an agent when a judge finds no entirely new idea in its last `stale_after`
    messages.

    Each agent has its own intervention, which waits for `variety_message_threshold` messages. The judge reads
    the first 5 and last 20 events of the conversation, or more if the last `stale_after` rounds take them,
    unless `first_n` and `last_n` are given. With a `config`, only agents with `variety_intervention_enabled`
    take part.
    """
    if not is_whole(stale_after, least=1):
        raise ConfigurationError(
            f"{name!r}: stale_after: expected a whole number from 1, got {stale_after!r:.80}."
        )
    known = agents_of(agents)
    targets = {key: settings.pop(key) for key in OF_BATCH if key in settings}
    cast = _cast_of(name, known, settings, targets)
    configs = _checked(config, cast, name)
    # In a round everybody speaks, and perhaps a host. More than `stale_after` messages of an agent take one more.
    last_n = max(20, (stale_after + 1) * (len(known) + 1))
    made: dict[str, Any] = {"first_n": 5, "last_n": last_n, **settings}
    messages = "message" if stale_after == 1 else f"{stale_after} messages"
    effect = _nudging(cast, nudges, "new_ideas", name)
    each: list[Intervention] = []
    for agent in known:
        called = name_of(agent)
        limits = config_for(configs, cast, called)
        if limits.variety_intervention_enabled:
            one = Intervention(agent, judge=judge, name=f"{name}:{called}", persist=persist, **made)
            one.waits_for = limits.variety_message_threshold
            one.set_functional_precondition(_many(one.waits_for))
            each.append(one.set_textual_precondition(STAGNATING % messages).set_effect(effect))
    return InterventionBatch(each, name=name, cast=cast, **targets)


def _cast_of(
    name: str, agents: Iterable[Persona | str], settings: Mapping[str, Any], targets: Mapping[Any, Any]
) -> Cast:
    advisor = Advisor(name, targets.get("target_instructions"), targets.get("target_nodes"))
    known = {key: settings[key] for key in ("key", "agent_of", "channel") if key in settings}
    return Cast(agents, nodes=advisor.target_nodes, instructions=advisor.target_instructions, **known)


def _converged(cast: Cast, threshold: float, first_n: int, last_n: int) -> Condition:
    def converged(targets: list[Target]) -> bool:
        words: dict[str, set[str]] = {}
        shown = window(targets[0].trajectory.events, first_n, last_n)
        for event in (*shown.head, *shown.tail):
            if event.kind == "action" and event.type == "TALK" and event.actor in cast.personas:
                words.setdefault(event.actor, set()).update(tokens(event.text))
        alike = weighted_mean(
            (1.0, shared_words(one, other)) for one, other in combinations(words.values(), 2)
        )
        return alike is not None and alike >= threshold

    return converged


def shared_words(one: Set[str], other: Set[str]) -> float:
    """The share of the smaller vocabulary that is also in the other one, 0.0 to 1.0; 0.0 if one is empty.

    A speaker who echoes adds few words, however much the other says. The Jaccard overlap would miss that: it
    stays below 0.6 even if three speakers repeat one another.
    """
    smaller = min(len(one), len(other))
    return len(one & other) / smaller if smaller else 0.0


def _many(threshold: int) -> Condition:
    def many(targets: list[Target]) -> bool:
        target = targets[0]
        said = target.trajectory.actions_of(target.agent or "", last=threshold, type="TALK")
        return len(said) >= threshold

    return many


def _checked(
    config: GateConfig | Mapping[str, GateConfig] | None, cast: Cast, name: str
) -> GateConfig | Mapping[str, GateConfig]:
    """The settings of the agents; without any, each may be nudged."""
    if not cast.personas:
        _log.warning("intervention %r has no agents, so it nudges nobody. Name its agents.", name)
    enabled = GateConfig(anti_convergence_enabled=True, variety_intervention_enabled=True)
    return checked_configs(enabled if config is None else config, cast, f"intervention {name!r}")


def _nudging(
    cast: Cast, nudges: Mapping[str, NudgeKind] | NudgeKind, fallback: NudgeKind, name: str
) -> Effect:
    kinds: dict[str | None, NudgeKind] = {}
    otherwise = fallback
    if isinstance(nudges, str):
        otherwise = nudges
    elif not isinstance(cast_to(Any, nudges), Mapping):
        problem = f"expected a kind of nudge, or one for each agent, got {nudges!r:.80}."
        raise ConfigurationError(f"intervention {name!r}: nudges: {problem}")
    else:
        kinds = {cast.name(agent): kind for agent, kind in nudges.items()}
    for agent in kinds.keys() - cast.personas.keys():
        agents = ", ".join(map(repr, cast.personas))
        raise ConfigurationError(
            f"intervention {name!r}: nudges: {agent!r} is not an agent. Agents: {agents}."
        )
    for kind in (otherwise, *kinds.values()):
        if kind not in NUDGES:
            known = ", ".join(map(repr, NUDGES))
            raise ConfigurationError(
                f"intervention {name!r}: nudges: expected one of {known}, got {kind!r:.80}."
            )

    def effect(targets: list[Target]) -> dict[str, str]:
        return {
            target.agent: nudge_for(kinds.get(target.agent, otherwise), target)
            for target in targets
            if target.agent is not None
        }

    return effect
