"""Scenarios: what an experiment lets agents talk about, in how many environments, and what is measured.

An environment is one conversation of one group of agents about one theme. The four scenarios of arXiv:2507.09788
(Table 1) are in `SCENARIOS`, in two profiles:

    "paper"   sizes, steps and settings as far as the authors published them; groups are used again for each
              theme and repetition
    "seed"    the same sizes with one theme, new agents in each environment, 3 steps (the debate 4), a gate for
              adherence and consistency with a threshold of 7, and interventions that wait for 2 messages

The prompts and themes are ours. So are the dimensions of the gate in "paper": adherence and consistency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from arbiter._values.states import is_number, is_whole
from arbiter.errors import ConfigurationError, nearest
from arbiter.experiments.arms import Corrections
from arbiter.experiments.table1 import LABELS
from arbiter.harness.canonical import is_list, is_tuple
from arbiter.personas import GateConfig, variety

ProfileName = Literal["paper", "seed"]
THEME = "{theme}"
_AGENT_LEVEL = frozenset({"adherence", "consistency", "fluency"})


@dataclass(frozen=True, slots=True)
class Environment:
    """One conversation: its number, the numbers of its group and repetition, and its theme."""

    number: int
    group: int
    theme: str
    repetition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An experiment's conversations, its treatment and its measures.

    There are `groups` × themes × `repetitions` environments of `group_size` agents each, who are made by the
    population profile `population`. The facilitator says `intro` in the first step and `task`, in which
    `{theme}` is replaced, in the second; agents act once in each of `steps` steps. `treatment` is registered in
    the treatment arm. `metrics` are some of adherence, consistency, fluency (measured for each agent of an
    environment), convergence and ideas_quantity (for the environment). `hard` chooses the strict
    propositions of adherence. `ideas` counts the ideas of the conversation ("enumerate"), or of the report that
    its first agent gives afterwards ("rapporteur").
    """

    id: str
    experiment: str = ""
    profile: str = ""
    group_size: int
    groups: int
    themes: Sequence[str]
    repetitions: int = 1
    population: str = "averageCustomer"
    intro: str
    task: str
    steps: int
    treatment: Corrections
    metrics: Sequence[str] = tuple(LABELS)
    hard: bool = False
    ideas: Literal["enumerate", "rapporteur"] = "enumerate"

    def __post_init__(self) -> None:
        treatment: Any = self.treatment
        texts, sizes = ("id", "population", "intro", "task"), ("group_size", "groups", "repetitions")
        for name, is_right, expected in (
            *((name, _is_text(getattr(self, name)), "a text") for name in texts),
            *((name, is_whole(getattr(self, name), least=1), "a whole number from 1") for name in sizes),
            ("steps", is_whole(self.steps, least=2), "a whole number from 2: the introduction and the task"),
            (
                "themes",
                _are_texts(self.themes),
                "at least one text in a list",
            ),
            ("treatment", isinstance(treatment, Corrections), "Corrections(...)"),
        ):
            if not is_right:
                given = getattr(self, name)
                raise ConfigurationError(f"{self._where}{name} is {given!r:.80}; expected {expected}.")
        if THEME not in self.task and len(self.themes) > 1:
            raise ConfigurationError(
                f"{self._where}task is the same for all {len(self.themes)} themes. Write {THEME} where the theme goes."
            )
        checked_metrics(self.metrics, self._where)
        object.__setattr__(self, "themes", tuple(self.themes))
        object.__setattr__(self, "metrics", tuple(name for name in LABELS if name in self.metrics))

    @property
    def _where(self) -> str:
        return f"scenario {self.id!r}: "

    @property
    def environments(self) -> int:
        """The number of environments in one run at scale 1."""
        return self.groups * len(self.themes) * self.repetitions

    def scaled(self, scale: float) -> int:
        """The number of environments at a scale: at least 2, so that they can vary."""
        given: Any = scale
        if not is_number(given) or not 0 < given <= 100:
            raise ConfigurationError(f"scale is {scale!r:.80}; expected a number above 0 and up to 100.")
        return max(2, int(self.environments * scale + 0.5))

    def environment(self, number: int) -> Environment:
        """The environment of that number, from 0. Consecutive ones differ in group and theme."""
        group, rest = number % self.groups, number // self.groups
        theme = self.themes[(rest + group) % len(self.themes)]
        return Environment(number, group, theme, rest // len(self.themes))

    @property
    def distinct(self) -> int:
        """The number of different agents that one run at scale 1 needs."""
        return self.groups * self.group_size

    def prompts(self, environment: Environment) -> dict[int, str]:
        """The facilitator's prompts by step."""
        return {0: self.intro, 1: self.task.replace(THEME, environment.theme)}


def _is_text(given: object) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _are_texts(given: object) -> bool:
    return (is_list(given) or is_tuple(given)) and bool(given) and all(map(_is_text, given))


def checked_metrics(metrics: Sequence[str], where: str = "") -> tuple[str, ...]:
    """The metrics in the order of `LABELS`. Raises `ConfigurationError` for unknown ones."""
    given = [metrics] if isinstance(metrics, str) else list(metrics)
    if unknown := [name for name in given if name not in LABELS]:
        raise ConfigurationError(
            f"{where}metrics has {unknown[0]!r:.80}; expected some of {', '.join(LABELS)}."
            f"{nearest(str(unknown[0]), LABELS)}"
        )
    if not given:
        raise ConfigurationError(f"{where}metrics is empty; expected some of {', '.join(LABELS)}.")
    return tuple(name for name in LABELS if name in given)


def is_of_agents(metric: str) -> bool:
    """True for a metric that each agent of an environment has a value of."""
    return metric in _AGENT_LEVEL


def scenario_of(given: Scenario | str, profile: str = "paper") -> Scenario:
    """The scenario itself, or that of a name in a profile. Raises `ConfigurationError` for an unknown one."""
    name: Any = given
    if isinstance(name, Scenario):
        return name
    if not isinstance(name, str):
        raise ConfigurationError(
            f"scenario is {name!r:.80}; expected a Scenario, or one of {', '.join(SCENARIOS)}."
        )
    if profile not in get_args(ProfileName):
        raise ConfigurationError(
            f"profile is {profile!r:.80}; expected one of {', '.join(get_args(ProfileName))}."
            f"{nearest(profile, get_args(ProfileName))}"
        )
    if name not in SCENARIOS:
        raise ConfigurationError(
            f"there is no scenario {name!r:.80}. Scenarios: {', '.join(SCENARIOS)}.{nearest(name, SCENARIOS)}"
        )
    return SCENARIOS[name][profile]


def _gate(threshold: float, attempts: int) -> GateConfig:
    return GateConfig(
        gate_adherence_enabled=True,
        gate_adherence_threshold=threshold,
        gate_consistency_enabled=True,
        gate_consistency_threshold=threshold,
        max_correction_attempts=attempts,
    )


def _soon(steps: int) -> dict[str, Any]:
    """The settings of `variety` with which it is evaluated once, at the head of the last step."""
    least = steps - 1
    config = GateConfig(variety_intervention_enabled=True, variety_message_threshold=least)
    return {"config": config, "stale_after": least - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of the table of scenarios. `attempts` None is a treatment without a gate, `stale` None one without
    interventions."""

    id: str
    experiment: str
    group_size: int
    groups: int
    themes: Sequence[str]
    population: str
    task: str
    metrics: Sequence[str] = tuple(LABELS)
    main_steps: int = 10
    attempts: int | None = None
    stale: int | None = None
    hard: bool = True
    steps_of_seed: int = 3
    repetitions: int = 2

    def paper(self) -> Scenario:
        return self._scenario(
            "paper",
            groups=self.groups,
            themes=self.themes,
            repetitions=self.repetitions,
            steps=1 + self.main_steps,
            treatment=self._treatment(
                5.0, self.attempts, {} if self.stale is None else {"stale_after": self.stale, "persist": True}
            ),
            hard=self.hard,
            ideas="rapporteur",
        )

    def seed(self) -> Scenario:
        return self._scenario(
            "seed",
            groups=self.groups * len(self.themes) * self.repetitions,
            themes=self.themes[:1],
            repetitions=1,
            steps=self.steps_of_seed,
            treatment=self._treatment(
                7.0,
                None if self.attempts is None else 2,
                {} if self.stale is None else _soon(self.steps_of_seed),
            ),
            hard=False,
            ideas="enumerate",
        )

    def _treatment(self, threshold: float, attempts: int | None, nudging: Mapping[str, Any]) -> Corrections:
        gate = None if attempts is None else _gate(threshold, attempts)
        return Corrections(gate, (partial(variety, **nudging),) if nudging else ())

    def _scenario(self, profile: str, **known: Any) -> Scenario:
        return Scenario(
            id=self.id,
            experiment=self.experiment,
            profile=profile,
            group_size=self.group_size,
            population=self.population,
            intro=INTRO,
            task=self.task,
            metrics=self.metrics,
            **known,
        )


INTRO = "Welcome. Please introduce yourselves to one another, in a few sentences each."
_IDEAS = (
    "Here is our task for today: {theme} Bring up as many ideas as you can, tell one another what you think of them, "
    "and do not come back to what has been said."
)
_DEBATE = "Here is the question for today: {theme} Say where you stand and why, and answer the others."
_PRODUCTS = (
    "new features for a word processor.",
    "a new kind of service for people who move house.",
    "gadgets for a kitchen that is too small.",
    "things that a public library could offer at night.",
    "ways to make waiting at an airport pleasant.",
)
_QUESTIONS = (
    "Should the state give every citizen a basic income?",
    "Should people be free to own guns?",
    "Should there be a limit to immigration?",
)

_ROWS = (
    _Row(
        id="brainstorming-average",
        experiment="1",
        group_size=5,
        groups=4,
        themes=_PRODUCTS,
        population="averageCustomer",
        task=_IDEAS,
        attempts=5,
        stale=10,
    ),
    _Row(
        id="brainstorming-difficult-full",
        experiment="2.1",
        group_size=4,
        groups=3,
        themes=_PRODUCTS[:4],
        population="difficultCustomer",
        task=_IDEAS,
        attempts=2,
        stale=5,
    ),
    _Row(
        id="brainstorming-difficult-variety",
        experiment="2.2",
        group_size=4,
        groups=3,
        themes=_PRODUCTS[:4],
        population="difficultCustomer",
        task=_IDEAS,
        stale=5,
        hard=False,
    ),
    _Row(
        id="debate-controversial",
        experiment="3",
        group_size=5,
        groups=4,
        themes=_QUESTIONS,
        population="politicalCompass",
        task=_DEBATE,
        main_steps=5,
        attempts=2,
        metrics=("adherence", "consistency", "fluency", "convergence"),
        steps_of_seed=4,
    ),
)
SCENARIOS: Mapping[str, Mapping[str, Scenario]] = {
    row.id: {"paper": row.paper(), "seed": row.seed()} for row in _ROWS
}
"""The scenarios of the paper by id and profile, in the order of its table."""
