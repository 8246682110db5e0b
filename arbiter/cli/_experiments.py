"""`arbiter experiment`: runs experiments, shows what they found, and recomputes what a paper printed.

Exit codes: 0 done, 1 a published cell differs (`verify`), 2 something given was wrong, 5 the experiment says
nothing, because it is incomplete or its treatment did not take effect, 130 it was interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

experiment_app = typer.Typer(
    help="Experiments: does a treatment make agents better?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Name = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario; `arbiter experiment plan` lists them.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="The model of the agents: a text like openai:gpt-5-mini, or path/to/file.py:name."
    ),
]
Judge = Annotated[str | None, typer.Option("--judge", help="The model that scores; as --model.")]
Corrector = Annotated[
    str | None,
    typer.Option(
        "--corrector", help="The model that judges drafts and interventions; by default that of the agents."
    ),
]
People = Annotated[
    str | None,
    typer.Option(
        "--people", help="The model that invents the agents; by default they are made from templates."
    ),
]
ProfileOption = Annotated[str, typer.Option("--profile", help="The settings of the scenario: paper or seed.")]
Seed = Annotated[int, typer.Option(help="Fixes the agents and the order in which they act.")]
Runs = Annotated[
    int, typer.Option(help="How often the experiment is repeated, with seeds that follow one another.")
]
Scale = Annotated[float, typer.Option(help="The share of environments that run; at least 2 do.")]
OrderOption = Annotated[str, typer.Option("--order", help="parallel, or sequential_random.")]
Metric = Annotated[
    list[str] | None, typer.Option("--metric", help="Measure this metric only. May be repeated.")
]
Mode = Annotated[str, typer.Option(help="llm, or template: no model, and no scores.")]
Concurrency = Annotated[int | None, typer.Option(help="How many environments run at once.")]
Tokens = Annotated[int | None, typer.Option(help="Start no environment after so many tokens.")]
Calls = Annotated[int | None, typer.Option(help="Start no environment after so many calls of models.")]
Usd = Annotated[float | None, typer.Option(help="Start no environment after so many dollars.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Run the environments on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Store what gates and interventions do: a SQLite file, or a postgresql:// URL.",
    ),
]
KeptIn = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="Record the node runs of treatments: a SQLite file, or a postgresql:// URL.",
    ),
]
Format = Annotated[str, typer.Option("--format", help="table or json.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Also write the result: .json, .md, .txt, or .svg for a picture of the effects."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or last.")]


@experiment_app.command()
def run(
    scenario: Name,
    model: Model = None,
    judge: Judge = None,
    corrector: Corrector = None,
    people: People = None,
    profile: ProfileOption = "paper",
    seed: Seed = 42,
    runs: Runs = 1,
    scale: Scale = 1.0,
    order: OrderOption = "parallel",
    metric: Metric = None,
    mode: Mode = "llm",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would happen, and ask no model.")
    ] = False,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hold the run to a plan that was written before it.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped or killed, or last.")
    ] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume, try again what failed or timed out.")
    ] = False,
    concurrency: Concurrency = None,
    tokens: Tokens = None,
    calls: Calls = None,
    usd: Usd = None,
    ray: Ray = None,
    store: Store = None,
    ledger: KeptIn = None,
    format: Format = "table",
    out: Out = None,
) -> None:
    """Let agents talk in a treatment and a control, and compare what a judge finds."""
    from arbiter.cli._experimenting import Places, Settings, dry, run_experiment

    settings = Settings(
        model=model,
        judge=judge,
        corrector=corrector,
        people=people,
        profile=profile,
        seed=seed,
        runs=runs,
        scale=scale,
        order=order,
        metrics=tuple(metric or ()),
        mode=mode,
        concurrency=concurrency,
        tokens=tokens,
        calls=calls,
        usd=usd,
    )
    places = Places(
        plan=plan, resume=resume, retry_errors=retry_errors, ray=ray, store=store, ledger=ledger, out=out
    )
    if dry_run:
        dry([scenario], settings, format, plan)
        return
    raise typer.Exit(run_experiment(scenario, settings, places, format))


@experiment_app.command("plan")
def plan_command(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="A scenario; by default all of them.")
    ] = None,
    profile: ProfileOption = "paper",
    seed: Seed = 42,
    runs: Runs = 1,
    scale: Scale = 1.0,
    order: OrderOption = "parallel",
    metric: Metric = None,
    mode: Mode = "llm",
    format: Format = "table",
    out: Annotated[
        Path | None, typer.Option(help="Write the plan of one scenario to this file, for `run --plan`.")
    ] = None,
) -> None:
    """Print what experiments would do and ask, and write a plan down before an experiment runs."""
    from arbiter.cli._experimenting import Settings, dry, write_plan

    settings = Settings(
        profile=profile,
        seed=seed,
        runs=runs,
        scale=scale,
        order=order,
        metrics=tuple(metric or ()),
        mode=mode,
    )
    if out is not None:
        write_plan(scenario, settings, out)
    else:
        dry(None if scenario is None else [scenario], settings, format)


@experiment_app.command()
def show(run: Run, format: Format = "table", out: Out = None) -> None:
    """Print the result of a run, also of one that is still going on."""
    from arbiter.cli._experimenting import show_run

    show_run(run, format, out)


@experiment_app.command()
def calibrate(
    labels: Annotated[Path, typer.Argument(help="A CSV file: id, input, output, label, labeller.")],
    metric: Annotated[str, typer.Option(help="The metric: adherence, consistency, fluency or convergence.")],
    run: Annotated[
        str, typer.Option("--from", metavar="RUN", help="The run whose conversations are labelled.")
    ] = "last",
    pass_at: Annotated[
        float | None, typer.Option("--pass-at", help="Compare labels; the lowest score that passes, 0 to 9.")
    ] = None,
    judge: Judge = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Write so many conversations to LABELS, to be labelled.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --sample, chooses the conversations.")] = 42,
    blind: Annotated[bool, typer.Option(help="With --sample, leave the judge's scores out.")] = True,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Also keep the calibration in this store.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; by default calibrations/METRIC.json.")] = None,
) -> None:
    """Compare the judge of a metric with people's labels; or write conversations to be labelled."""
    from arbiter.cli._calibrating import calibrate_judge, write_conversations

    if (sample is None) == (pass_at is None):
        raise typer.BadParameter(
            "give --pass-at to compare labels, or --sample to write conversations to be labelled"
        )
    if sample is not None:
        write_conversations(labels, run, metric, sample, seed=seed, blind=blind)
        return
    assert pass_at is not None
    calibrate_judge(labels, run, metric, judge, pass_at, store=store, out=out)


@experiment_app.command("list")
def list_command() -> None:
    """Print a line for each run."""
    from arbiter.cli._experimenting import list_runs

    list_runs()


@experiment_app.command()
def table1(
    experiments: Annotated[
        str, typer.Option(help="Some of 1, 2.1, 2.2 and 3, with commas between them; by default all.")
    ] = "",
    model: Model = None,
    judge: Judge = None,
    corrector: Corrector = None,
    people: People = None,
    profile: ProfileOption = "paper",
    seed: Seed = 42,
    scale: Scale = 1.0,
    concurrency: Concurrency = None,
    tokens: Tokens = None,
    calls: Calls = None,
    usd: Usd = None,
    mode: Mode = "llm",
    resume: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Go on with a table that was stopped or killed, or last."),
    ] = None,
    ray: Ray = None,
    store: Store = None,
    ledger: KeptIn = None,
    format: Format = "table",
) -> None:
    """Run the experiments of Table 1 with models of your own, and compare directions with the paper."""
    from arbiter.cli._experimenting import Places, Settings
    from arbiter.cli._replicating import replicate

    settings = Settings(
        model=model,
        judge=judge,
        corrector=corrector,
        people=people,
        profile=profile,
        seed=seed,
        scale=scale,
        mode=mode,
        concurrency=concurrency,
        tokens=tokens,
        calls=calls,
        usd=usd,
    )
    places = Places(resume=resume, ray=ray, store=store, ledger=ledger)
    raise typer.Exit(replicate(experiments.split(","), settings, places, format))


@experiment_app.command()
def verify(
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also test environments instead of agents, as pairs.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Other scores than those that ship.")
    ] = None,
    format: Format = "table",
) -> None:
    """Recompute Table 1 of arXiv:2507.09788 from its raw scores; exit 1 unless every cell agrees."""
    from arbiter.cli._experimenting import verify_table

    raise typer.Exit(verify_table(data, sensitivity=sensitivity, format=format))
