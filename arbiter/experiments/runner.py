"""The runner: an experiment as a suite of the harness, in which each environment of each arm is a case.

    scenario, arms ─▶ plan ─▶ cases (environment × arm) ─▶ world, treatment ─▶ scorers ─▶ ExperimentResult

Environment e of every arm has the same agents, prompts and seeds. Journal, resume, budget, concurrency and usage
are the harness's.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args
from uuid import uuid4

from arbiter._values.kinds import is_mapping
from arbiter._values.states import is_whole
from arbiter._values.versions import hash_of
from arbiter.errors import ArbiterWarning, ConfigurationError, callers
from arbiter.experiments.arms import Corrections, NoJudge, Repository, Treatment
from arbiter.experiments.factory import AgentFactory
from arbiter.experiments.measuring import MetricScorer, plain_messages
from arbiter.experiments.plans import ExperimentPlan
from arbiter.experiments.results import METADATA, ExperimentResult
from arbiter.experiments.scenarios import Scenario, checked_metrics, scenario_of
from arbiter.experiments.world import ROLE, TURN, Order, Setting, World
from arbiter.harness import Case, Limits, Suite
from arbiter.harness.cases import MAX_CASES
from arbiter.harness.judging import family_of, judge_settings
from arbiter.harness.limits import Limiters, innermost, limited, provider_and_name
from arbiter.harness.suites import Progress
from arbiter.models import ChatJudge, ChatModel, Judge, judge_of, model_of
from arbiter.personas import Persona
from arbiter.personas._repositories import checked_repository
from arbiter.personas._scorers import REPORT_QUESTION

T = TypeVar("T")
FOLDER = Path(".arbiter/experiments")
ExperimentMode = Literal["llm", "template"]
LIMITS = Limits(concurrency=4, case_timeout=3_600, score_timeout=600)
"""An environment is a long conversation."""
_log = logging.getLogger("arbiter.experiments")


class Agents(Protocol):
    """Makes people, as `AgentFactory` does."""

    def agents(self, n: int, /) -> Sequence[Persona]: ...


@dataclass(frozen=True)
class Experiment:
    """Two or more arms of one scenario, and what is measured in them.

    `model` plays the agents, `judge` scores them, `corrector` judges drafts and conditions of interventions; by
    default the model does. `arms` maps names to `Corrections`; by default the scenario's treatment and a control.
    `metrics` are in place of the scenario's. `profile` is that of a scenario given by name. `scale` shrinks the
    number of environments (at least 2). `runs` repeats the experiment with `seed`, `seed` + 1 and so on, and pools
    the scores. `agents` are people, or an object that makes them like `AgentFactory`; by default templates of the
    scenario's population.

    `repository`, such as a `SqlRepository`, stores what the gates and interventions of all arms do, and `ledger`, an
    open `Ledger`, the node runs of arms that have corrections. The result is the same without them.

    `mode="template"` needs no model: agents speak templates, nothing is corrected or scored, and there are no
    statistics.
    """

    scenario: Scenario | str
    _: KW_ONLY
    model: ChatModel | str | None = None
    judge: Judge | ChatModel | str | None = None
    corrector: Judge | ChatModel | str | None = None
    arms: Mapping[str, Corrections] | None = None
    metrics: Sequence[str] | None = None
    profile: str = "paper"
    seed: int = 42
    scale: float = 1.0
    runs: int = 1
    order: Order = "parallel"
    agents: Sequence[Persona] | Agents | None = None
    mode: ExperimentMode = "llm"
    limits: Limits = field(default_factory=lambda: LIMITS)
    repository: Repository | None = None
    ledger: Any = None

    def __post_init__(self) -> None:
        mistakes: list[str] = []

        def checked(check: Callable[[], T]) -> T | None:
            try:
                return check()
            except ConfigurationError as error:
                mistakes.append(str(error))
                return None

        scenario = checked(lambda: scenario_of(self.scenario, self.profile))
        for name, known in (("mode", get_args(ExperimentMode)), ("order", get_args(Order))):
            given: Any = getattr(self, name)
            if given not in known:
                mistakes.append(f"{name} is {given!r:.80}; expected one of {', '.join(known)}.")
        if type(self.seed) is not int:
            mistakes.append(f"seed is {self.seed!r:.80}; expected a whole number.")
        if not is_whole(self.runs, least=1):
            mistakes.append(f"runs is {self.runs!r:.80}; expected a whole number from 1.")
        arms: Any = self.arms
        if arms is not None and not (is_mapping(arms) and len(arms) > 1 and all(map(_is_arm, arms.items()))):
            mistakes.append(
                f"arms is {arms!r:.80}; expected at least two Corrections by name, such as a treatment and a control."
            )
        limits: Any = self.limits
        if not isinstance(limits, Limits):
            mistakes.append(f"limits is {limits!r:.80}; expected Limits(concurrency=4, ...).")
        checked(lambda: checked_repository(self.repository, Repository, "experiment"))
        if self.ledger is not None and not callable(getattr(self.ledger, "recording", None)):
            mistakes.append(
                f"ledger is {self.ledger!r:.80}; expected an open ledger: Ledger({str(self.ledger)!r:.60})."
            )
        agents: Any = self.agents
        if agents is not None and not hasattr(agents, "agents"):
            if hasattr(agents, "__iter__"):
                object.__setattr__(self, "agents", tuple(agents))  # each run reads them
            else:
                mistakes.append(f"agents is {agents!r:.80}; expected personas, or an AgentFactory.")
        metrics: Any = self.metrics
        wanted = None if metrics is None else checked(lambda: checked_metrics(metrics))
        if scenario is not None:
            checked(lambda: scenario.scaled(self.scale))
        if mistakes or scenario is None:
            raise ConfigurationError("\n".join(mistakes))
        object.__setattr__(self, "scenario", scenario)
        usual = {"treatment": scenario.treatment, "control": Corrections()}
        object.__setattr__(self, "arms", usual if arms is None else {**arms})
        object.__setattr__(self, "metrics", tuple(scenario.metrics if wanted is None else wanted))

    @property
    def setting(self) -> Scenario:
        """The scenario, also if it was given by name."""
        assert isinstance(self.scenario, Scenario)
        return self.scenario

    @property
    def corrections(self) -> Mapping[str, Corrections]:
        """The arms by name."""
        assert self.arms is not None
        return self.arms

    @cached_property
    def plan(self) -> ExperimentPlan:
        """The course of the experiment; see `ExperimentPlan`."""
        scenario = self.setting
        environments = scenario.scaled(self.scale)
        return ExperimentPlan(
            scenario=scenario.id,
            profile=scenario.profile,
            mode=self.mode,
            pairs=environments * self.runs,
            group_size=scenario.group_size,
            steps=scenario.steps,
            distinct=min(scenario.groups, environments) * scenario.group_size,
            runs=self.runs,
            seed=self.seed,
            order=self.order,
            arms={arm: corrections.version for arm, corrections in self.corrections.items()},
            metrics=tuple(self.metrics or ()),
            ideas=scenario.ideas,
        )

    def run(
        self,
        *,
        plan: ExperimentPlan | str | Path | None = None,
        resume: str | None = None,
        retry_errors: bool = False,
        folder: str | Path | None = FOLDER,
        progress: Progress | None = None,
    ) -> ExperimentResult:
        """Run all environments of all arms, and score them.

        `plan` is one that was written before: a difference from it is a `ConfigurationError`. `resume` goes on with
        a run that was stopped or killed, by its id or "last"; with `retry_errors`, conversations and scores that failed
        are tried again. The journal is in `folder` (None: no journal).
        """
        suite = self.suite(plan)
        return ExperimentResult.of(
            suite.run(resume=resume, retry_errors=retry_errors, folder=folder, progress=progress)
        )

    async def arun(
        self,
        *,
        plan: ExperimentPlan | str | Path | None = None,
        resume: str | None = None,
        retry_errors: bool = False,
        folder: str | Path | None = FOLDER,
        progress: Progress | None = None,
    ) -> ExperimentResult:
        """As `run`, on the running event loop."""
        suite = self.suite(plan)
        return ExperimentResult.of(
            await suite.arun(resume=resume, retry_errors=retry_errors, folder=folder, progress=progress)
        )

    def suite(self, plan: ExperimentPlan | str | Path | None = None) -> Suite:
        """The experiment as a suite of the harness: a case for each environment of each arm, and a scorer for each
        metric. `plan` is that of `run`. `ExperimentResult.of` makes the result of its report.
        """
        if plan is not None:
            self.plan.check(plan if isinstance(plan, ExperimentPlan) else ExperimentPlan.read(plan))
        models = self._models()
        about = {
            "plan": self.plan.to_dict(),
            "plan_hash": None if plan is None else self.plan.hash,
            "models": models.names,
            "warnings": models.warnings,
            "treats": {arm: self._kinds(each) for arm, each in self.corrections.items()},
        }
        for each in models.warnings:
            warnings.warn(each, ArbiterWarning, stacklevel=callers())
        world = World(models.agents, order=self.order)
        target = _Environments(self, world, models)
        scorers: list[Any] = []
        if models.judge is not None:
            known: Any = {"hard": self.setting.hard, "ideas": self.setting.ideas}
            scorers = [MetricScorer(metric, models.judge, **known) for metric in self.plan.metrics]
        name = f"experiment:{self.setting.id}"
        return Suite(name, self._cases(about), scorers=scorers, target=target, limits=self.limits)

    def _kinds(self, corrections: Corrections) -> list[str]:
        """The kinds of corrections that an arm should get."""
        if self.mode == "template":
            return []
        found = {
            "gate": corrections.gate is not None,
            "interventions": bool(corrections.interventions),
            "repetition": corrections.repetition,
        }
        return [name for name, holds in found.items() if holds]

    def _cases(self, about: Mapping[str, Any]) -> list[Case]:
        """The environments, each in every arm before the next one."""
        scenario = self.setting
        if (count := self.plan.pairs * len(self.corrections)) > MAX_CASES:
            raise ConfigurationError(
                f"the environments of all arms are {count:,}; expected at most {MAX_CASES:,}. Lower runs."
            )
        cases: list[Case] = []
        each_run = self.plan.pairs // self.runs
        for run in range(self.runs):
            people = self._people(run)
            if not run:
                self._warn_of_idle_interventions(people[: scenario.group_size])
            for at in range(each_run):
                environment = scenario.environment(at)
                first = environment.group * scenario.group_size
                group = people[first : first + scenario.group_size]
                shared = {
                    "run": run,
                    "environment": at,
                    "theme": environment.theme,
                    "seed": self.seed + run,
                    "personas": [asdict(persona) for persona in group],
                }
                cases += [
                    Case(
                        f"{run * each_run + at + 1:03d}:{number}",
                        {"arm": arm, **shared},
                        metadata={METADATA: about},
                    )
                    for number, arm in enumerate(self.corrections)
                ]
        return cases

    def _warn_of_idle_interventions(self, people: Sequence[Persona]) -> None:
        """Warn of interventions that will never fire in this scenario. If none fires, the result is marked."""
        steps = self.setting.steps
        for arm, corrections in self.corrections.items() if self.mode == "llm" else ():
            for name, least in corrections.idle(people, steps).items():
                _log.warning(
                    "arm %r: intervention %r never fires, because it waits for %d messages of an agent, who has said "
                    "%d when the last of %d steps begins. Give the scenario more steps, or the intervention a config "
                    "with a lower variety_message_threshold.",
                    arm,
                    name,
                    least,
                    steps - 1,
                    steps,
                )

    def _people(self, run: int) -> Sequence[Persona]:
        needed = self.plan.distinct
        given: Any = self.agents
        if given is None:
            given = AgentFactory(self.setting.population, seed=self.seed + run, template_only=True)
        people: Sequence[Any] = list(given.agents(needed) if hasattr(given, "agents") else given)
        if strangers := [each for each in people if not isinstance(each, Persona)]:
            raise ConfigurationError(
                f"agents has {strangers[0]!r:.80}; expected personas: Persona(name, text)."
            )
        if len(people) < needed:
            raise ConfigurationError(
                f"agents has {len(people)} people; the experiment needs {needed} "
                f"({needed // self.setting.group_size} groups of {self.setting.group_size})."
            )
        counts = Counter(person.name for person in people)
        if twice := next((name for name, count in counts.items() if count > 1), None):
            raise ConfigurationError(f"two people have the name {twice!r}. Give each a name of their own.")
        return people

    def _models(self) -> _Models:
        if self.mode == "template":
            given = [name for name in ("model", "judge", "corrector") if getattr(self, name) is not None]
            if given:
                raise ConfigurationError(
                    f"mode 'template' asks no model, and {', '.join(given)} would do nothing. Leave it out, "
                    "or use mode 'llm'."
                )
            return _Models(None, None, None, Limiters(self.limits.judge_concurrency), {}, ())
        if self.model is None or self.judge is None:
            raise ConfigurationError(
                "an experiment needs a model for the agents and a judge: Experiment(scenario, model=..., judge=...). "
                "mode='template' needs none, and scores nothing."
            )
        limiters = Limiters(self.limits.judge_concurrency)
        model: Any = model_of(self.model)
        corrector: Any = model if self.corrector is None else self.corrector
        judge, correcting = judge_of(self.judge), judge_of(corrector)
        names = {"agents": judge_settings(judge_of(model))["model"], "judge": judge_settings(judge)["model"]}
        found: list[str] = []
        if _are_one(self.judge, model):
            found.append("the judge that scores also plays the agents")
        elif (family := family_of(names["judge"])) and family == family_of(names["agents"]):
            found.append(
                f"the judge is of the family of the agents' model ({family}), whose style it may prefer"
            )
        if any(self.corrections.values()):
            names["corrector"] = judge_settings(correcting)["model"]
            if _are_one(self.judge, corrector):
                found.append(
                    "the judge that corrects also scores, so that a treatment is tuned to its own measure"
                )
            if _are_one(model, corrector):
                found.append("the judge that corrects also plays the agents")
        if type(correcting) is ChatJudge:
            correcting = ChatJudge(_limited(correcting.model, limiters), temperature=None)
        return _Models(_limited(model, limiters), judge, correcting, limiters, names, found)


@dataclass(frozen=True, slots=True)
class _Models:
    """The models of an experiment; None in the mode "template"."""

    agents: ChatModel | None
    judge: Judge | None
    corrector: Judge | None
    limiters: Limiters
    names: Mapping[str, str]
    warnings: Sequence[str]


def _is_arm(given: tuple[Any, Any]) -> bool:
    name, corrections = given
    return isinstance(name, str) and bool(name.strip()) and isinstance(corrections, Corrections)


def _limited(model: ChatModel, limiters: Limiters) -> ChatModel:
    """The model with a limited number of calls at once; a function in the place of a model as it is."""
    try:
        return limited(model, limiters)
    except ConfigurationError:
        return model


def _are_one(one: Any, other: Any) -> bool:
    """True for one object, and for two chat models of the same provider and name."""
    first, second = (innermost(each.model if isinstance(each, ChatJudge) else each) for each in (one, other))
    known = provider_and_name(first)
    return first == second or (known[1] is not None and known == provider_and_name(second))


class _Environments:
    """The target of the suite: lets the agents of an environment talk, in one of the arms."""

    __name__ = "world"

    def __init__(self, experiment: Experiment, world: World, models: _Models) -> None:
        self._experiment = experiment
        self._scenario = scenario = experiment.setting
        self._world = world
        self._corrector = models.corrector
        self.limiters = models.limiters
        """Those of the models; the judge's calls have places in them, too."""
        plan = experiment.plan
        self._has_report = (
            "ideas_quantity" in plan.metrics and plan.ideas == "rapporteur" and plan.mode == "llm"
        )
        texts = [scenario.intro, scenario.task, ROLE, TURN, REPORT_QUESTION]
        self.version = hash_of([plan.to_dict(), texts, dict(models.names)])[:16]

    async def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The conversation of an environment, the report of its first agent, and the exposure."""
        personas = [Persona(**persona) for persona in given["personas"]]
        number = given["environment"]
        environment = self._scenario.environment(number)
        setting = Setting(
            personas, self._scenario.prompts(environment), self._scenario.steps, given["seed"], number
        )
        corrections = Corrections() if self._corrector is None else self._experiment.corrections[given["arm"]]
        # Reading the propositions of a gate takes milliseconds, during which other environments should go on.
        treatment = await asyncio.to_thread(
            Treatment,
            corrections,
            personas,
            self._corrector or NoJudge(),
            repository=self._experiment.repository,
            ledger=self._experiment.ledger,
        )
        # A store and a ledger have the conversations of many experiments.
        thread_id = f"{self._scenario.id}:{given['run']}:{number}:{given['arm']}:{uuid4().hex[:8]}"
        graph = treatment.govern(self._world.graph)
        said = await self._world.converse(setting, graph=graph, thread_id=thread_id)
        report = await self._report(setting, said) if self._has_report else None
        return {
            "said": plain_messages(said),
            "report": report,
            "exposure": treatment.exposure(setting.drafts).to_dict(),
        }

    async def _report(self, setting: Setting, said: Sequence[Any]) -> str | None:
        """The ideas as the first agent reports them; None if its model fails: the ideas are then not counted."""
        try:
            return await self._world.ask(setting, said, setting.personas[0].name, REPORT_QUESTION)
        except Exception as error:
            _log.warning("a rapporteur gave no report: %s: %s", type(error).__name__, error)
            return None
