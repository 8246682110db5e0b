"""The commands and their options. The implementation of each command is in the module named after it.

Exit codes: 0 success, 1 a check found something or the graph itself failed, 2 an argument or a file was
wrong, 3 a policy denied, 4 the run waits for a human.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from arbiter._values.version import __version__
from arbiter.cli._eval import eval_app
from arbiter.cli._experiments import experiment_app
from arbiter.cli._options import LEDGER, AfterOption, FormatOption, LedgerOption, SinceOption, UntilOption
from arbiter.cli._store import store_app
from arbiter.cli._streams import begin, end, sentence, warnings_as_sentences
from arbiter.errors import ArbiterError, ConfigurationError, PolicyViolationError

app = typer.Typer(
    help="Governs LangGraph graphs by rules that people can review.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Graph = Annotated[
    str, typer.Argument(help="Where the graph is: package.module:name or path/to/file.py:name.")
]
ConstitutionOption = Annotated[
    str | None,
    typer.Option(
        "--constitution",
        "-c",
        metavar="DIR",
        help="A folder with instructions/, policies/ and evaluators/, a YAML file, or arbiter:<pack>.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", help="A prefix of dotted paths that packs may name classes by. May be repeated."),
]


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
def run(
    graph: Graph,
    input: Annotated[str, typer.Option(help="The input as JSON, or a file that contains it.")] = "{}",
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
    thread: Annotated[
        str | None, typer.Option(help="The thread id. Needs a checkpointer or --ledger, which keeps it.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="The answer to the question on which the thread waits: JSON, or a plain word."),
    ] = None,
    format: Annotated[
        str, typer.Option(help="text, or json: stdout gets the output alone, and stderr the history.")
    ] = "text",
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            envvar="ARBITER_LEDGER",
            metavar="URL",
            help="Record the run: in a file, or in a database at a postgresql:// URL.",
        ),
    ] = None,
) -> None:
    """Run a governed graph and print its history."""
    from arbiter.cli._run import run_graph

    raise typer.Exit(
        run_graph(graph, input, constitution, tuple(allow or ()), thread, resume, format, ledger)
    )


@app.command()
def explain(
    policy: Annotated[str, typer.Argument(help="The name of a rule, or of a built-in kind.")],
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
) -> None:
    """Print what a rule does, where it is declared, and its parameters."""
    from arbiter.cli._explain import explain_rule

    explain_rule(policy, constitution, tuple(allow or ()))


Thread = Annotated[
    str | None, typer.Argument(help="A thread id, or the ref of a thread; eight digits are enough.")
]


@app.command()
def history(
    thread: Thread = None,
    ledger: LedgerOption = LEDGER,
    run: Annotated[
        int | None, typer.Option(help="One run of the thread: 1 is the first, -1 the newest.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new items as they come; end it with Ctrl+C.")
    ] = False,
    node: Annotated[str | None, typer.Option(help="Items of this node.")] = None,
    policy: Annotated[str | None, typer.Option(help="Items that this policy decided.")] = None,
    verdict: Annotated[str | None, typer.Option(help="allow, deny or ask.")] = None,
    status: Annotated[
        str | None, typer.Option(help="completed, denied, failed, interrupted or cancelled.")
    ] = None,
    evaluator: Annotated[str | None, typer.Option(help="Items that this evaluator scored.")] = None,
    below: Annotated[float | None, typer.Option(help="Items whose score by --evaluator is lower.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: AfterOption = None,
    format: FormatOption = "table",
) -> None:
    """Print what a ledger recorded: the threads, the items that fit, or one thread."""
    from arbiter.cli._history import show_history

    code = show_history(
        ledger,
        thread,
        run=run,
        follow=follow,
        format=format,
        node=node,
        policy=policy,
        verdict=verdict,
        status=status,
        evaluator=evaluator,
        below=below,
        since=since,
        until=until,
        after=after,
    )
    raise typer.Exit(code)


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
def replay(
    threads: Annotated[
        list[str] | None, typer.Argument(help="The threads whose runs count; all by default.")
    ] = None,
    constitution: ConstitutionOption = None,
    ledger: LedgerOption = LEDGER,
    since: SinceOption = None,
    until: UntilOption = None,
    file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Read a file of `arbiter export --to jsonl` instead."),
    ] = None,
    allow: AllowOption = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on", help="Exit with 1 for these: looser, stricter, elsewhere, unknown; or none."
        ),
    ] = "looser,stricter,elsewhere",
    all: Annotated[bool, typer.Option("--all", help="Show all differences, not the first 20.")] = False,
    format: FormatOption = "table",
) -> None:
    """Let another constitution decide about recorded runs. No node, tool or model is called.

    Exits with 1 if a decision differs; --fail-on says what counts.
    """
    from arbiter.cli._replay import replay_runs

    code = replay_runs(
        ledger,
        constitution,
        threads or (),
        since=since,
        until=until,
        file=file,
        allow=tuple(allow or ()),
        fail_on=fail_on,
        all=all,
        format=format,
    )
    raise typer.Exit(code)


@app.command()
def view(
    ledger: LedgerOption = LEDGER,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine needs --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 7575,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Several people: lines `NAME: SHA256-OF-TOKEN`, or `... read`."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The name that your answers are signed with.")
    ] = None,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODULE:GRAPH", help="A graph whose questions can be answered. May be repeated."
        ),
    ] = None,
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
    reports: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Runs of `arbiter eval`, shown as pages; .arbiter/evals here."),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Show what a ledger recorded in the browser, live."""
    from arbiter.cli._view import view_ledger

    code = view_ledger(
        ledger,
        host=host,
        port=port,
        tokens=tokens,
        name=name,
        graphs=graph or (),
        constitution=constitution,
        allow=tuple(allow or ()),
        reports=reports,
        open=open,
    )
    raise typer.Exit(code)


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


upkeep = typer.Typer(help="The upkeep of a ledger.", no_args_is_help=True)
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
        errors.print(sentence(str(error), "bold red"))
        sys.exit(3)
    except (ArbiterError, OSError) as error:
        errors.print(sentence(str(error)))
        sys.exit(2)
