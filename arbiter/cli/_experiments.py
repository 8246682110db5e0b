"""`arbiter experiment`: runs experiments, shows what they found, and recomputes what a paper printed.

Exit codes: 0 done, 1 a published cell differs (`verify`), 2 something given was wrong, 5 the experiment says
nothing, because it is incomplete or its treatment did not take effect, 130 it was interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arbiter.cli._experiment_options import Format, Judge, Out, Run, Settings
from arbiter.cli._options import Commands, takes
from arbiter.errors import ConfigurationError

experiment_app = Commands(
    help="Experiments: does a treatment make agents better?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@experiment_app.command()
@takes(Settings)
def run(
    settings: Settings,
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario; `arbiter experiment plan` lists them.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would happen, and ask no model.")
    ] = False,
    format: Format = "table",
) -> int:
    """Let agents talk in a treatment and a control, and compare what a judge finds."""
    from arbiter.cli._experimenting import check, dry, run_experiment

    check(settings)
    if dry_run:
        dry([scenario], settings, format)
        return 0
    return run_experiment(scenario, settings, format)


@experiment_app.command("plan")
@takes(Settings, "profile", "seed", "runs", "scale", "order", "metrics", "mode")
def plan_command(
    settings: Settings,
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="A scenario; by default all of them.")
    ] = None,
    format: Format = "table",
    out: Annotated[
        Path | None, typer.Option(help="Write the plan of one scenario to this file, for `run --plan`.")
    ] = None,
) -> None:
    """Print what experiments would do and ask, and write a plan down before an experiment runs."""
    from arbiter.cli._experimenting import dry, write_plan

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
        float | None,
        typer.Option("--pass-at", help="Compare labels; the lowest score that passes, 0 to 9."),
    ] = None,
    judge: Judge = None,
    sample: Annotated[
        int | None, typer.Option(help="Write so many conversations to LABELS, to be labelled.", min=1)
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
        raise ConfigurationError(
            "give --pass-at to compare labels, or --sample to write conversations to be labelled."
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
@takes(
    Settings,
    *("model", "judge", "corrector", "people", "profile", "seed", "scale", "mode"),
    *("concurrency", "tokens", "calls", "usd", "ray", "store", "ledger"),
)
def table1(
    settings: Settings,
    experiments: Annotated[
        str, typer.Option(help="Some of 1, 2.1, 2.2 and 3, with commas between them; by default all.")
    ] = "",
    resume: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Go on with a table that was stopped or killed, or last."),
    ] = None,
    format: Format = "table",
) -> int:
    """Run the experiments of Table 1 with models of your own, and compare directions with the paper."""
    from arbiter.cli._replicating import replicate

    return replicate(experiments.split(","), settings, resume, format)


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
