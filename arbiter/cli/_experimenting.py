"""The implementation of `arbiter experiment`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from arbiter._objects import import_from_here
from arbiter.cli._experiment_options import Settings
from arbiter.cli._options import Screen, check_format, check_place, model_given, opened
from arbiter.cli._progress import Progress, ends_in_good_order
from arbiter.cli._runs import summaries
from arbiter.cli._store import opened_store
from arbiter.cli._streams import each_warning_once, stdout_for_results, tell
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


def check(settings: Settings) -> None:
    """Raise `ConfigurationError` for options that contradict one another, or name no file that can be written."""
    if settings.ray is not None and settings.ledger is not None:
        raise ConfigurationError(
            "--ledger cannot be combined with --ray: workers write to no database. Leave one of them out."
        )
    if settings.out is not None:
        check_place(settings.out, ENDINGS)


def planned(scenario: str, settings: Settings) -> Experiment:
    """The experiment without its models."""
    names = ("profile", "seed", "runs", "scale", "order", "mode")
    given: dict[str, Any] = {name: getattr(settings, name) for name in names}
    return Experiment(scenario, metrics=settings.metrics or None, **given)


def with_models(scenario: str, settings: Settings, agents: Sequence[Persona] | None = None) -> Experiment:
    """The experiment with its models. `agents` are known already, and need not be invented."""
    import_from_here()
    found = planned(scenario, settings)
    invented = settings.people is not None and agents is None
    population = found.setting.population
    return replace(
        found,
        model=model_given(settings.model),
        judge=model_given(settings.judge),
        corrector=model_given(settings.corrector),
        agents=AgentFactory(population, model_given(settings.people), settings.seed) if invented else agents,
        limits=replace(
            LIMITS,
            concurrency=LIMITS.concurrency if settings.concurrency is None else settings.concurrency,
            tokens=settings.tokens,
            calls=settings.calls,
            usd=settings.usd,
        ),
    )


def suite_on_worker(scenario: str, settings: Settings, agents: Sequence[Persona] | None) -> Suite:
    """The suite of the experiment, in a process that gets its cases from another one."""
    from arbiter.harness.distributed import SentRepository

    repository = None if settings.store is None else SentRepository()
    return replace(with_models(scenario, settings, agents), repository=repository).suite()


def run_experiment(scenario: str, settings: Settings, format: str) -> int:
    """Run an experiment and print its result. Returns the exit code."""
    check_format(format, FORMATS)
    with stdout_for_results(), recording(settings) as kept:
        experiment = replace(with_models(scenario, settings), **kept)
        progress = Progress()
        result = ExperimentResult.of(prepared(scenario, settings, experiment, progress).run())
        progress.end()
    if settings.out is not None:
        result.write(settings.out)
    _print(result, format)
    if result.stopped == "interrupted":
        how = f"arbiter experiment run {result.plan.scenario} ... --resume {result.run_id}"
        tell(f"interrupted. Go on, with the same options: {how}", "yellow")
    return exit_code(result)


@contextmanager
def recording(settings: Settings) -> Generator[dict[str, Any]]:
    """The open store and ledger, as fields of an experiment that runs inside."""
    found: dict[str, Any] = {}
    with ExitStack() as opening:
        if settings.store is not None:
            found["repository"] = opening.enter_context(opened_store(settings.store))
        if settings.ledger is not None:
            found["ledger"] = opening.enter_context(opened(settings.ledger, create=True, sign=True))
        opening.enter_context(each_warning_once())
        opening.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ArbiterWarning)  # the result has them
        opening.enter_context(ends_in_good_order())
        yield found


def prepared(scenario: str, settings: Settings, experiment: Experiment, progress: Progress) -> Run:
    """The run of an experiment, new or the one to resume."""
    suite = experiment.suite(settings.plan)
    run = suite.prepare(
        resume=settings.resume, retry_errors=settings.retry_errors, folder=FOLDER, progress=progress
    )
    if settings.ray is not None:
        from arbiter.harness.distributed import on_ray

        make = partial(suite_on_worker, scenario, settings, _invented(experiment))
        run.driver = on_ray(settings.ray, make, repository=experiment.repository)
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


def dry(scenarios: Sequence[str] | None, settings: Settings, format: str) -> None:
    """Print what experiments would do and ask. Raises `ConfigurationError` if it is not what the plan has."""
    check_format(format, FORMATS)
    experiments = [planned(id, settings) for id in scenarios or SCENARIOS]
    if settings.plan is not None:
        experiments[0].plan.check(ExperimentPlan.read(settings.plan))
    if format == "json":
        plans = [
            {
                **each.plan.to_dict(),
                "hash": each.plan.hash,
                "table": dict(zip(COLUMNS, each.plan.row(each.corrections), strict=True)),
            }
            for each in experiments
        ]
        typer.echo(json.dumps(plans, ensure_ascii=False))
        return
    Screen("table").table(COLUMNS, [each.plan.row(each.corrections) for each in experiments])


def write_plan(scenario: str | None, settings: Settings, file: Path) -> None:
    if scenario is None:
        raise ConfigurationError(
            f"--out is for one scenario. Name one: arbiter experiment plan {next(iter(SCENARIOS))} --out {file}."
        )
    plan = planned(scenario, settings).plan
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
