"""The options of the commands that have many, and those that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from arbiter.cli._options import (
    LEDGER,
    AfterOption,
    FormatOption,
    LedgerOption,
    SinceOption,
    UntilOption,
)

Graph = Annotated[
    str, typer.Argument(help="Where the graph is: package.module:name or path/to/file.py:name.")
]
ConstitutionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constitution",
        "-c",
        metavar="DIR",
        help="A folder with instructions/, policies/ and evaluators/, a YAML file, or arbiter:<pack>. "
        "May be repeated.",
    ),
]
_ALLOW: Any = typer.Option(
    "--allow", help="A prefix of dotted paths that packs may name classes by. May be repeated."
)
AllowOption = Annotated[list[str] | None, _ALLOW]
Thread = Annotated[
    str | None, typer.Argument(help="A thread id, or the ref of a thread; eight digits are enough.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `arbiter run`."""

    graph: Graph
    input: Annotated[str, typer.Option(help="The input as JSON, or a file that contains it.")] = "{}"
    constitution: ConstitutionOption = None
    allow: Annotated[Sequence[str], _ALLOW] = ()
    thread: Annotated[
        str | None, typer.Option(help="The thread id. Needs a checkpointer or --ledger, which keeps it.")
    ] = None
    resume: Annotated[
        str | None,
        typer.Option(help="The answer to the question on which the thread waits: JSON, or a plain word."),
    ] = None
    format: Annotated[
        str, typer.Option(help="text, or json: stdout gets the output alone, and stderr the history.")
    ] = "text"
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="ARBITER_LEDGER",
            metavar="URL",
            help="Record the run: in a file, or in a database at a postgresql:// URL.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """The options of `arbiter history`."""

    thread: Thread = None
    ledger: LedgerOption = LEDGER
    run: Annotated[int | None, typer.Option(help="One run of the thread: 1 is the first, -1 the newest.")] = (
        None
    )
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new items as they come; end it with Ctrl+C.")
    ] = False
    node: Annotated[str | None, typer.Option(help="Items of this node.")] = None
    policy: Annotated[str | None, typer.Option(help="Items that this policy decided.")] = None
    verdict: Annotated[str | None, typer.Option(help="allow, deny or ask.")] = None
    status: Annotated[
        str | None, typer.Option(help="completed, denied, failed, interrupted or cancelled.")
    ] = None
    evaluator: Annotated[str | None, typer.Option(help="Items that this evaluator scored.")] = None
    below: Annotated[float | None, typer.Option(help="Items whose score by --evaluator is lower.")] = None
    since: SinceOption = None
    until: UntilOption = None
    after: AfterOption = None
    format: FormatOption = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of `arbiter replay`."""

    threads: Annotated[
        Sequence[str], typer.Argument(help="The threads whose runs count; all by default.")
    ] = ()
    constitution: ConstitutionOption = None
    ledger: LedgerOption = LEDGER
    since: SinceOption = None
    until: UntilOption = None
    file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Read a file of `arbiter export --to jsonl` instead."),
    ] = None
    allow: Annotated[Sequence[str], _ALLOW] = ()
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on", help="Exit with 1 for these: looser, stricter, elsewhere, unknown; or none."
        ),
    ] = "looser,stricter,elsewhere"
    all: Annotated[bool, typer.Option("--all", help="Show all differences, not the first 20.")] = False
    format: FormatOption = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """The options of `arbiter view`."""

    ledger: LedgerOption = LEDGER
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine needs --tokens.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65_535)] = 7575
    tokens: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Several people: lines `NAME: SHA256-OF-TOKEN`, or `... read`."),
    ] = None
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The name that your answers are signed with.")
    ] = None
    graphs: Annotated[
        Sequence[str],
        typer.Option(
            "--graph",
            metavar="NAME=MODULE:GRAPH",
            help="A graph whose questions can be answered. May be repeated.",
        ),
    ] = ()
    constitution: ConstitutionOption = None
    allow: Annotated[Sequence[str], _ALLOW] = ()
    reports: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Runs of `arbiter eval`, shown as pages; .arbiter/evals here."),
    ] = None
    open: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False
