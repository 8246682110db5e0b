"""The commands and their options. The implementation of each command is in the module named after it.

Exit codes: 0 success, 1 a check found something or the graph itself failed, 2 an argument or a file was
wrong, 3 a policy denied, 4 the run waits for a human.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from arbiter._values.version import __version__
from arbiter.cli._app_options import (
    AllowOption,
    ConstitutionOption,
    Graph,
    HistoryOptions,
    ReplayOptions,
    RunOptions,
    Thread,
    ViewOptions,
)
from arbiter.cli._eval import eval_app
from arbiter.cli._experiments import experiment_app
from arbiter.cli._options import LEDGER, Commands, FormatOption, LedgerOption, SinceOption, takes
from arbiter.cli._store import store_app
from arbiter.cli._streams import begin, end, tell, warnings_as_sentences
from arbiter.errors import ArbiterError, ConfigurationError, PolicyViolationError

app = Commands(
    help="Governs LangGraph graphs by rules that people can review.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"arbiter {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def lint(
    graph: Graph,
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
    format: Annotated[str, typer.Option(help="table, json, sarif or mermaid.")] = "table",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Find mistakes in a graph and its constitution before anything runs."""
    from arbiter.cli._lint import lint_graph

    raise typer.Exit(lint_graph(graph, constitution, tuple(allow or ()), format, strict))


@app.command()
def schema(
    folder: Annotated[Path, typer.Argument(help="The project that contains the packs.")] = Path("."),
) -> None:
    """Write the JSON Schema of packs, which editors use for completion, next to the packs of a project."""
    from arbiter.cli._schema import write_schemas

    for path in write_schemas(folder):
        typer.echo(f"wrote {path}")


@app.command()
def init(
    graph: Graph,
    folder: Annotated[Path, typer.Argument(help="Where to put the three folders.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept every proposal without asking.")] = False,
) -> None:
    """Create instructions/, policies/ and evaluators/ for a graph, with a proposed instruction for each node."""
    from arbiter.cli._init import scaffold

    for path in scaffold(graph, folder, ask=None if yes else _ask):
        typer.echo(f"wrote {path}")


def _ask(question: str, proposal: str) -> str:
    try:
        answer: str = typer.prompt(question, default=proposal or "-", show_default=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise  # by Ctrl+C
        raise ConfigurationError(
            "there is no terminal to ask in, so nothing was written. Take the proposed instructions with --yes."
        ) from None
    return "" if answer.strip() in ("", "-") else answer.strip()


@app.command()
@takes(RunOptions)
def run(options: RunOptions) -> int:
    """Run a governed graph and print its history."""
    from arbiter.cli._run import run_graph

    return run_graph(options)


@app.command()
def explain(
    policy: Annotated[str, typer.Argument(help="The name of a rule, or of a built-in kind.")],
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
) -> None:
    """Print what a rule does, where it is declared, and its parameters."""
    from arbiter.cli._explain import explain_rule

    explain_rule(policy, constitution, tuple(allow or ()))


@app.command()
@takes(HistoryOptions)
def history(options: HistoryOptions) -> None:
    """Print what a ledger recorded: the threads, the items that fit, or one thread."""
    from arbiter.cli._history import show_history

    show_history(options)


@app.command()
def export(
    thread: Thread = None,
    to: Annotated[
        str,
        typer.Option(
            help="jsonl (everything, as it is stored), csv (a row for each node run), html (one thread), otlp "
            "(spans), langfuse or langsmith (the scores that were not sent yet)."
        ),
    ] = "jsonl",
    ledger: LedgerOption = LEDGER,
    since: SinceOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is added, until Ctrl+C; not for csv.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write this file, when all of it is there."),
    ] = None,
) -> None:
    """Write what a ledger recorded as JSON lines or CSV, a thread as HTML, or send scores to another system."""
    from arbiter.cli._export import export_records

    raise typer.Exit(export_records(ledger, to, thread, since=since, follow=follow, output=output))


@app.command()
@takes(ReplayOptions)
def replay(options: ReplayOptions) -> int:
    """Let another constitution decide about recorded runs. No node, tool or model is called.

    Exits with 1 if a decision differs; --fail-on says what counts.
    """
    from arbiter.cli._replay import replay_runs

    return replay_runs(options)


@app.command()
@takes(ViewOptions)
def view(options: ViewOptions) -> None:
    """Show what a ledger recorded in the browser, live."""
    from arbiter.cli._view import view_ledger

    view_ledger(options)


@app.command("verify")
def verify_chain(
    thread: Thread = None,
    ledger: LedgerOption = LEDGER,
    anchors: Annotated[
        str | None, typer.Option(metavar="FILE", help="The anchors that were kept outside of the database.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:GRAPH",
            help="First add what the checkpoints of this graph know and the ledger lacks.",
        ),
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Compare everything that a ledger stores with its chain of hashes."""
    from arbiter.cli._verify import verify_ledger

    raise typer.Exit(verify_ledger(ledger, thread, anchors=anchors, against=against, format=format))


@app.command()
def erase(
    reason: Annotated[str, typer.Option(help="Why; it is kept with the entry that says so.")],
    thread: Annotated[str | None, typer.Option(help="The thread to erase.")] = None,
    subject: Annotated[str | None, typer.Option(help="Erase all threads about this person.")] = None,
    graph: Annotated[
        str | None,
        typer.Option(metavar="MODULE:GRAPH", help="Delete the checkpoints of these threads here as well."),
    ] = None,
    ledger: LedgerOption = LEDGER,
) -> None:
    """Delete what a ledger has of a thread or a person, for good; its chain stays whole."""
    from arbiter.cli._ledgers import erase_records

    raise typer.Exit(erase_records(ledger, thread, subject, reason, graph))


@app.command()
def anchor(
    ledger: LedgerOption = LEDGER,
    anchors: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Append the anchor to this file, outside of the database."),
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Write an anchor: one line that proves all entries before it."""
    from arbiter.cli._ledgers import write_anchor

    raise typer.Exit(write_anchor(ledger, anchors, format))


upkeep = Commands(help="The upkeep of a ledger.", no_args_is_help=True)
app.add_typer(upkeep, name="ledger")


@upkeep.command()
def prune(
    keep_days: Annotated[float, typer.Option("--keep-days", help="Remove what is older than that.")],
    ledger: LedgerOption = LEDGER,
) -> None:
    """Remove old contents, and whole threads whose last entry is old; threads that wait for a human stay."""
    from arbiter.cli._ledgers import prune_records

    raise typer.Exit(prune_records(ledger, keep_days))


@upkeep.command()
def upgrade(ledger: LedgerOption = LEDGER) -> None:
    """Bring the tables of a ledger to the newest schema; a SQLite file is copied first."""
    from arbiter.cli._ledgers import upgrade_ledger

    raise typer.Exit(upgrade_ledger(ledger))


app.add_typer(eval_app, name="eval")
app.add_typer(experiment_app, name="experiment")
app.add_typer(store_app, name="store")


def main() -> None:
    """Run the command line. Mistakes are reported in one sentence each, never as a traceback."""
    begin()
    try:
        with warnings_as_sentences():
            app()
    except SystemExit as done:
        end(done.code)
        raise
    except PolicyViolationError as error:
        tell(str(error), "bold red")
        sys.exit(3)
    except (ArbiterError, OSError) as error:
        tell(str(error))
        sys.exit(2)
