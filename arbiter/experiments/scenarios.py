"""Scenarios: what an experiment lets agents talk about, in how many environments, and what is measured.

An environment is one conversation of one group of agents about one theme. The four scenarios of arXiv:2507.09788
(Table 1) are in `SCENARIOS`, in two profiles:

    "paper"   sizes, steps and settings as far as the authors published them, such as a gate for adherence
              alone with a threshold of 5; groups are used again for each theme and repetition
    "seed"    the same sizes with one theme, new agents in each environment, 3 steps (the debate 4), a gate for
              adherence and consistency with a threshold of 7, and interventions that wait for 2 messages

The prompts and themes are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from arbiter._values.kinds import is_list, is_tuple
from arbiter._values.states import is_number, is_whole
from arbiter.errors import ConfigurationError, nearest
from arbiter.experiments.arms import Corrections
from arbiter.experiments.table1 import LABELS
from arbiter.personas import GateConfig, variety
from arbiter.personas._scorers import Method

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
    ideas: Method = "enumerate"

    def __post_init__(self) -> None:
        treatment: Any = self.treatment
        texts, sizes = ("id", "population", "intro", "task"), ("group_size", "groups", "repetitions")
        for name, is_right, expected in (
            *((name, _is_text(getattr(self, name)), "a text") for name in texts),
            *((name, is_whole(getattr(self, name), least=1), "a whole number from 1") for name in sizes),
            ("steps", is_whole(self.steps, least=2), "a whole number from 2: the introduction and the task"),
            ("themes", _are_texts(self.themes), "at least one text in a list"),
            ("treatment", isinstance(treatment, Corrections), "Corrections(...)"),
            ("ideas", self.ideas in get_args(Method), " or ".join(get_args(Method))),
        ):
            if not is_right:
                given = getattr(self, name)
                raise ConfigurationError(f"{self._where}{name} is {given!r:.80}; expected {expected}.")
        if THEME not in self.task and len(self.themes) > 1:
            raise ConfigurationError(
                f"{self._where}task is the same for all {len(self.themes)} themes. Write {THEME} where the theme goes."
            )
        object.__setattr__(self, "themes", tuple(self.themes))
        object.__setattr__(self, "metrics", checked_metrics(self.metrics, self._where))

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
    asked: Any = metrics
    given = [asked] if isinstance(asked, str) or not hasattr(asked, "__iter__") else [*asked]
    if unknown := [name for name in given if not isinstance(name, str) or name not in LABELS]:
        raise ConfigurationError(
            f"{where}metrics has {unknown[0]!r:.80}; expected some of {', '.join(LABELS)}."
            f"{nearest(unknown[0], LABELS)}"
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


def _gate(attempts: int, threshold: float = 5.0, *, consistency: bool = False) -> GateConfig:
    return GateConfig(
        gate_adherence_enabled=True,
        gate_adherence_threshold=threshold,
        gate_consistency_enabled=consistency,
        gate_consistency_threshold=threshold,
        max_correction_attempts=attempts,
    )


def _variety_after(messages: int) -> tuple[Any]:
    return (partial(variety, stale_after=messages, persist=True),)


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

_paper = partial(
    Scenario, profile="paper", repetitions=2, intro=INTRO, steps=11, hard=True, ideas="rapporteur"
)
_PAPER = (
    _paper(
        id="brainstorming-average",
        experiment="1",
        group_size=5,
        groups=4,
        themes=_PRODUCTS,
        population="averageCustomer",
        task=_IDEAS,
        treatment=Corrections(_gate(5), _variety_after(10)),
    ),
    _paper(
        id="brainstorming-difficult-full",
        experiment="2.1",
        group_size=4,
        groups=3,
        themes=_PRODUCTS[:4],
        population="difficultCustomer",
        task=_IDEAS,
        treatment=Corrections(_gate(2), _variety_after(5)),
    ),
    _paper(
        id="brainstorming-difficult-variety",
        experiment="2.2",
        group_size=4,
        groups=3,
        themes=_PRODUCTS[:4],
        population="difficultCustomer",
        task=_IDEAS,
        treatment=Corrections(None, _variety_after(5)),
        hard=False,
    ),
    _paper(
        id="debate-controversial",
        experiment="3",
        group_size=5,
        groups=4,
        themes=_QUESTIONS,
        population="politicalCompass",
        task=_DEBATE,
        steps=6,
        treatment=Corrections(_gate(2)),
        metrics=("adherence", "consistency", "fluency", "convergence"),
    ),
)


def _seed(paper: Scenario) -> Scenario:
    """The scenario in the profile "seed"."""
    steps = 4 if paper.task == _DEBATE else 3
    waits = steps - 1  # evaluated once, at the head of the last step
    config = GateConfig(variety_intervention_enabled=True, variety_message_threshold=waits)
    soon = partial(variety, config=config, stale_after=waits - 1)
    gate = None if paper.treatment.gate is None else _gate(2, 7.0, consistency=True)
    return replace(
        paper,
        profile="seed",
        groups=paper.environments,
        themes=paper.themes[:1],
        repetitions=1,
        steps=steps,
        treatment=Corrections(gate, (soon,) if paper.treatment.interventions else ()),
        hard=False,
        ideas="enumerate",
    )


SCENARIOS: Mapping[str, Mapping[str, Scenario]] = {
    paper.id: {"paper": paper, "seed": _seed(paper)} for paper in _PAPER
}
"""The scenarios of the paper by id and profile, in the order of its table."""
