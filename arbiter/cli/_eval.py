"""`arbiter eval`: run suites, look at runs, and compare them with baselines.

Exit codes: 0 passed, 1 a row regressed or a `must_pass` case failed, 2 something given was wrong, 5 the run could
not be decided, 130 it was interrupted. Standard output has the result alone; progress goes to standard error.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from arbiter.cli._eval_options import (
    AcceptChanged,
    Allow,
    Ci,
    Format,
    OfSuite,
    Options,
    Out,
    Run,
    Strict,
    Suites,
)
from arbiter.cli._options import Commands, takes
from arbiter.errors import ConfigurationError

eval_app = Commands(
    help="Measures agents on suites of cases, and compares runs with baselines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@eval_app.command()
@takes(Options)
def run(options: Options) -> int:
    """Run suites and judge their cases."""
    from arbiter.cli._evaluating import run_suites

    modes = [name for name in ("live", "mock", "synthetic") if getattr(options, name)]
    if len(modes) > 1:
        raise ConfigurationError(f"--{modes[0]} contradicts --{modes[1]}. Leave one of them out.")
    return run_suites(options)


@eval_app.command()
@takes(Options, "suites", "repeats", "votes", "seed", "window", "until", "allow")
def record(
    options: Options, all_: Annotated[bool, typer.Option("--all", help="Ask everything again.")] = False
) -> int:
    """Run suites, and keep every answer in recordings/; only what is missing or stale is asked."""
    from arbiter.cli._evaluating import run_suites

    return run_suites(replace(options, records=True, again=all_, no_gate=True))


@eval_app.command()
def show(
    run: Run = "last",
    case: Annotated[str | None, typer.Argument(help="The id of a case, to see all about it.")] = None,
    format: Format = "table",
) -> None:
    """Print the report of a run, or all about one of its cases."""
    from arbiter.cli._runs import show_case, show_run

    if case is None:
        show_run(run, format)
    else:
        show_case(run, case, format)


@eval_app.command("list")
def list_() -> None:
    """List the runs, the newest last."""
    from arbiter.cli._runs import list_runs

    list_runs()


@eval_app.command()
def report(run: Run = "last", out: Out = None, format: Format = "table") -> None:
    """Write the report of a run to a file, or print it in a form."""
    from arbiter.cli._runs import show_run, write_report

    if out is None:
        show_run(run, format)
    else:
        typer.echo(f"wrote {write_report(run, out)}")


@eval_app.command()
def gate(
    run: Run = "last",
    baseline: OfSuite = None,
    ci: Ci = False,
    strict: Strict = False,
    accept_changed: AcceptChanged = False,
    format: Format = "table",
) -> None:
    """Compare a run with a baseline again. Nothing is run."""
    from arbiter.cli._runs import gate_run

    raise typer.Exit(gate_run(run, baseline, format, ci=ci, strict=strict, accept_changed=accept_changed))


@eval_app.command()
def comment(
    runs: Annotated[
        list[str] | None, typer.Argument(help="The ids of runs; by default the newest run of each suite.")
    ] = None,
    pr: Annotated[
        int | None,
        typer.Option(help="The number of the pull request; without it the comment is printed.", min=1),
    ] = None,
    baseline: OfSuite = None,
    ci: Ci = False,
    strict: Strict = False,
    accept_changed: AcceptChanged = False,
) -> None:
    """Write the comment of a pull request on GitHub, or replace it. Nothing is run."""
    from arbiter.cli._commenting import write_comment

    write_comment(runs or [], pr, baseline, ci=ci, strict=strict, accept_changed=accept_changed)


@eval_app.command()
def compare(
    before: Annotated[
        str, typer.Argument(help="The id of the older run; for the newest run, the run before it is taken.")
    ] = "last",
    after: Annotated[
        str | None, typer.Argument(help="The id of the newer run; by default the newest of the suite.")
    ] = None,
    format: Format = "table",
) -> None:
    """Compare two runs, as the gate compares a run with a baseline. Nothing is run."""
    from arbiter.cli._runs import compare_runs

    raise typer.Exit(compare_runs(before, after, format))


@eval_app.command()
def baseline(
    suite: Annotated[str, typer.Argument(help="A suite file, which is measured anew, or the id of a run.")],
    out: Annotated[Path | None, typer.Option(help="The file; by default that of the suite's gate.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Replace the file.")] = False,
    repeats: Annotated[int, typer.Option(help="How often each case runs.")] = 3,
    allow: Allow = None,
) -> None:
    """Measure a suite and write its baseline."""
    from arbiter.cli._baselining import write_baseline

    raise typer.Exit(write_baseline(suite, out, update=update, repeats=repeats, allow=tuple(allow or ())))


@eval_app.command("plan")
def plan_(
    run: Run = "last",
    drop: Annotated[float | None, typer.Option(help="A drop to find, on the scale of the rows.")] = None,
    row: Annotated[str | None, typer.Option(help="One row; all by default.")] = None,
) -> None:
    """Print how many cases it takes to find a drop, from the noise of a run."""
    from arbiter.cli._runs import print_plan

    print_plan(run, drop, row)


@eval_app.command()
def lint(suites: Suites = None, allow: Allow = None) -> None:
    """Check suites, their cases and their targets without running anything."""
    from arbiter.cli._evaluating import lint_suites

    raise typer.Exit(lint_suites(suites or [], tuple(allow or ())))


@eval_app.command()
def schema(
    folder: Annotated[Path, typer.Argument(help="The folder of the suites.")] = Path("suites"),
) -> None:
    """Write the JSON Schema of suite files, which editors use for completion."""
    from arbiter.cli._evaluating import write_schema

    typer.echo(f"wrote {write_schema(folder)}")


@eval_app.command()
def init(
    target: Annotated[
        str | None, typer.Option(help="Your graph or function: package.module:name or path/to/file.py:name.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also write a workflow of GitHub Actions for pull requests.")
    ] = False,
    allow: Allow = None,
) -> None:
    """Write a first suite, suites/first.yaml, which runs at once. Existing files are never overwritten."""
    from arbiter.cli._first_suite import write_first_suite

    for path in write_first_suite(target, github=github, allow=tuple(allow or ())):
        typer.echo(f"wrote {path}")


@eval_app.command("calibrate")
def calibrate_(
    labels: Annotated[Path, typer.Argument(help="A CSV file: id, input, output, label, labeller.")],
    row: Annotated[str, typer.Option(help="The scorer to calibrate.")],
    pass_at: Annotated[
        float | None,
        typer.Option("--pass-at", help="The lowest score that passes; by default the scorer's at_least."),
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(help="The suite of the scorer; by default that in suites/.")
    ] = None,
    judge: Annotated[str, typer.Option(help="The judge's model, if the suite does not name it.")] = "",
    run: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Write outputs of this run to LABELS, to be labelled."),
    ] = None,
    sample: Annotated[int, typer.Option(help="With --from, the number of outputs.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="With --from, chooses the outputs.")] = 42,
    blind: Annotated[bool, typer.Option(help="With --from, leave the judge's scores out.")] = True,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Also keep the calibration in this store.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; by default calibrations/ROW.json.")] = None,
    allow: Allow = None,
) -> None:
    """Compare a judge with people's labels, and write the calibration; or write outputs to be labelled."""
    from arbiter.cli._calibrating import calibrate_row, write_sample

    if run is None and pass_at is None and not labels.exists():
        raise ConfigurationError(
            "give --pass-at to compare labels, or --from to write outputs to be labelled."
        )
    if run is not None:
        judging = {
            "--pass-at": pass_at,
            "--judge": judge or None,
            "--suite": suite,
            "--store": store,
            "--out": out,
        }
        if given := [name for name, value in judging.items() if value is not None]:
            raise ConfigurationError(f"--from asks no judge; leave out {', '.join(given)}.")
        write_sample(labels, run, row, sample, seed=seed, blind=blind)
        return
    calibrate_row(labels, row, judge, pass_at, suite=suite, store=store, out=out, allow=tuple(allow or ()))


@eval_app.command("export")
def export_(
    run: Run,
    to: Annotated[
        str, typer.Option(help="steps, trl-grpo, trl-dpo, trl-reward, trl-kto, stepwise, verl or openrlhf.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder; by default exports/SUITE-FORMAT.")] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="A row that is a reward; all by default. May be repeated."),
    ] = None,
    include_control: Annotated[
        bool, typer.Option("--include-control", help="Take also scores that steered the run as rewards.")
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(help="The least difference of a pair, as a share of the scale; 0.2 by default."),
    ] = None,
    corrections: Annotated[
        bool, typer.Option("--corrections", help="Pairs of the drafts that correction gates sent back.")
    ] = False,
    per_node: Annotated[
        bool, typer.Option("--per-node", help="For stepwise: a row of each node run that was judged.")
    ] = False,
    split: Annotated[
        float | None, typer.Option(help="The share of cases in train; the others go into test.")
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(help="For trl-grpo: the file of the suite; by default that in suites/.")
    ] = None,
    allow: Allow = None,
) -> None:
    """Write what a run judged as rewards, preferences or labels for a trainer."""
    from arbiter._objects import import_from_here
    from arbiter.harness.exports import ExportOptions, export_run

    import_from_here()
    options = ExportOptions(
        rows=tuple(row or ()),
        include_control=include_control,
        margin=margin,
        split=split,
        corrections=corrections,
        per_node=per_node,
        suite=suite,
        allow=tuple(allow or ()),
    )
    made = export_run(run, to, out=out, options=options)
    for name, count in made.files.items():
        typer.echo(f"wrote {made.folder / name}" + ("" if count is None else f" ({count:,} rows)"))
