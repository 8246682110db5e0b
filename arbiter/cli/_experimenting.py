"""The implementation of `arbiter experiment`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from arbiter._objects import import_from_here
from arbiter.cli._options import Screen, check_format, check_place, model_given, opened
from arbiter.cli._progress import Progress, ends_in_good_order
from arbiter.cli._runs import summaries
from arbiter.cli._store import opened_store
from arbiter.cli._streams import stdout_for_results
from arbiter.errors import ArbiterWarning, ConfigurationError
from arbiter.experiments import SCENARIOS, AgentFactory, Experiment, ExperimentResult, verify_table1
from arbiter.experiments.plans import COLUMNS, ExperimentPlan
from arbiter.experiments.results import ENDINGS, load_result
from arbiter.experiments.runner import FOLDER, LIMITS
from arbiter.harness import Suite
from arbiter.harness.journal import run_folder
from arbiter.harness.runs import Run
from arbiter.personas import Persona

FORMATS = ("table", "json")
err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options that several commands have."""

    model: str | None = None
    judge: str | None = None
    corrector: str | None = None
    people: str | None = None
    profile: str = "paper"
    seed: int = 42
    runs: int = 1
    scale: float = 1.0
    order: Any = "parallel"
    metrics: Sequence[str] = ()
    mode: Any = "llm"
    concurrency: int | None = None
    tokens: int | None = None
    calls: int | None = None
    usd: float | None = None

    def planned(self, scenario: str) -> Experiment:
        """The experiment without its models."""
        return Experiment(
            scenario,
            profile=self.profile,
            seed=self.seed,
            runs=self.runs,
            scale=self.scale,
            order=self.order,
            metrics=self.metrics or None,
            mode=self.mode,
        )

    def experiment(self, scenario: str, agents: Sequence[Persona] | None = None) -> Experiment:
        """The experiment with its models. `agents` are known already, and need not be invented."""
        import_from_here()
        planned = self.planned(scenario)
        population = planned.setting.population
        invented = self.people is not None and agents is None
        return replace(
            planned,
            model=model_given(self.model),
            judge=model_given(self.judge),
            corrector=model_given(self.corrector),
            agents=AgentFactory(population, model_given(self.people), self.seed) if invented else agents,
            limits=replace(
                LIMITS,
                concurrency=LIMITS.concurrency if self.concurrency is None else self.concurrency,
                tokens=self.tokens,
                calls=self.calls,
                usd=self.usd,
            ),
        )

    def suite_on_worker(self, scenario: str, agents: Sequence[Persona] | None, *, is_stored: bool) -> Suite:
        """The suite of the experiment, in a process that gets its cases from another one."""
        from arbiter.harness.distributed import SentRepository

        repository = SentRepository() if is_stored else None
        return replace(self.experiment(scenario, agents), repository=repository).suite()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where an experiment runs, and where it leaves what it found."""

    plan: Path | None = None
    resume: str | None = None
    retry_errors: bool = False
    ray: str | None = None
    store: str | None = None
    ledger: str | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.ray is not None and self.ledger is not None:
            raise ConfigurationError(
                "--ledger cannot be combined with --ray: workers write to no database. Leave one of them out."
            )
        if self.out is not None:
            check_place(self.out, ENDINGS)


def run_experiment(scenario: str, settings: Settings, places: Places, format: str) -> int:
    """Run an experiment and print its result. Returns the exit code."""
    check_format(format, FORMATS)
    with stdout_for_results(), recording(places) as kept:
        experiment = replace(settings.experiment(scenario), **kept)
        progress = Progress()
        result = ExperimentResult.of(prepared(scenario, settings, experiment, places, progress).run())
        progress.end()
    if places.out is not None:
        result.write(places.out)
    _print(result, format)
    if result.stopped == "interrupted":
        how = f"arbiter experiment run {result.plan.scenario} ... --resume {result.run_id}"
        err.print(Text(f"interrupted. Go on, with the same options: {how}", "yellow"))
    return exit_code(result)


@contextmanager
def recording(places: Places) -> Generator[dict[str, Any]]:
    """The open store and ledger, as fields of an experiment that runs inside."""
    found: dict[str, Any] = {}
    with ExitStack() as opening:
        if places.store is not None:
            found["repository"] = opening.enter_context(opened_store(places.store))
        if places.ledger is not None:
            found["ledger"] = opening.enter_context(opened(places.ledger, create=True, sign=True))
        opening.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ArbiterWarning)  # the result has them
        opening.enter_context(ends_in_good_order())
        yield found


def prepared(
    scenario: str, settings: Settings, experiment: Experiment, places: Places, progress: Progress
) -> Run:
    """The run of an experiment, new or the one to resume."""
    suite = experiment.suite(places.plan)
    run = suite.prepare(
        resume=places.resume, retry_errors=places.retry_errors, folder=FOLDER, progress=progress
    )
    if places.ray is not None:
        from arbiter.harness.distributed import on_ray

        is_stored = places.store is not None
        make = partial(settings.suite_on_worker, scenario, _invented(experiment), is_stored=is_stored)
        run.driver = on_ray(places.ray, make, repository=experiment.repository)
    return run


def _invented(experiment: Experiment) -> Sequence[Persona] | None:
    """The people that a model invented, for workers that must not ask it again."""
    given = experiment.agents
    return given.agents(experiment.plan.distinct) if isinstance(given, AgentFactory) else None


def exit_code(result: ExperimentResult) -> int:
    """130 for an experiment that was interrupted, 5 for one that says nothing, else 0."""
    if result.stopped == "interrupted":
        return 130
    return 5 if {"incomplete", "not_scored", "treatment_not_exercised"} & {*result.marks} else 0


def _print(result: ExperimentResult, format: str) -> None:
    if format == "json":
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        typer.echo(result.table())


# Plans --------------------------------------------------------------------------------------------


def dry(scenarios: Sequence[str] | None, settings: Settings, format: str, plan: Path | None = None) -> None:
    """Print what experiments would do and ask. Raises `ConfigurationError` if it is not what `plan` has."""
    check_format(format, FORMATS)
    planned = [settings.planned(id) for id in scenarios or SCENARIOS]
    if plan is not None:
        planned[0].plan.check(ExperimentPlan.read(plan))
    if format == "json":
        plans = [
            {
                **each.plan.to_dict(),
                "hash": each.plan.hash,
                "table": dict(zip(COLUMNS, each.plan.row(each.corrections), strict=True)),
            }
            for each in planned
        ]
        typer.echo(json.dumps(plans, ensure_ascii=False))
        return
    Screen("table").table(COLUMNS, [each.plan.row(each.corrections) for each in planned])


def write_plan(scenario: str | None, settings: Settings, file: Path) -> None:
    if scenario is None:
        raise ConfigurationError(
            f"--out is for one scenario. Name one: arbiter experiment plan {next(iter(SCENARIOS))} --out {file}."
        )
    plan = settings.planned(scenario).plan
    plan.write(file)
    typer.echo(f"wrote {file}: {plan.hash}")


# Looking ------------------------------------------------------------------------------------------


def show_run(run: str, format: str, file: Path | None) -> None:
    check_format(format, FORMATS)
    if file is not None:
        check_place(file, ENDINGS)
    result = load_result(run_folder(run, FOLDER))
    if file is not None:
        result.write(file)
    _print(result, format)


def list_runs() -> None:
    """Print a line for each run."""
    rows = [
        (run, found.suite.removeprefix("experiment:"), f"{found.done:,} of {found.total:,}", found.state)
        for run, found in summaries(FOLDER)
    ]
    Screen("table").table(("run", "scenario", "environments × arms", "state"), rows)


# Table 1 ------------------------------------------------------------------------------------------


def verify_table(data: Path | None, *, sensitivity: bool, format: str) -> int:
    """Print Table 1 recomputed; 1 unless it agrees with the paper and with the tests of its authors."""
    check_format(format, FORMATS)
    table = verify_table1(data)
    if format == "json":
        typer.echo(json.dumps(table.to_dict(), indent=2, allow_nan=False))
    else:
        typer.echo(table.text(sensitivity=sensitivity))
    return 1 if table.problems else 0
