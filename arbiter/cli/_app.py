"""The commands and their options. The implementation of each command is in the module named after it.

Exit codes: 0 success, 1 the linter found errors or the graph itself failed, 2 an argument or a file was
wrong, 3 a policy denied, 4 the run waits for a human.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from arbiter._values.version import __version__
from arbiter.errors import ArbiterError, PolicyViolationError

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
    answer: str = typer.prompt(question, default=proposal or "-", show_default=True)
    return "" if answer.strip() in ("", "-") else answer.strip()


@app.command()
def run(
    graph: Graph,
    input: Annotated[str, typer.Option(help="The input as JSON, or a file that contains it.")] = "{}",
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
    thread: Annotated[str | None, typer.Option(help="The thread id, for graphs with a checkpointer.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="The answer to the question on which the thread waits: JSON, or a plain word."),
    ] = None,
    format: Annotated[
        str, typer.Option(help="text, or json: stdout gets the output alone, and stderr the history.")
    ] = "text",
) -> None:
    """Run a governed graph and print its history."""
    from arbiter.cli._run import run_graph

    raise typer.Exit(run_graph(graph, input, constitution, tuple(allow or ()), thread, resume, format))


@app.command()
def explain(
    policy: Annotated[str, typer.Argument(help="The name of a rule, or of a built-in kind.")],
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
) -> None:
    """Print what a rule does, where it is declared, and its parameters."""
    from arbiter.cli._explain import explain_rule

    explain_rule(policy, constitution, tuple(allow or ()))


def main() -> None:
    """Run the command line. Mistakes are reported in one sentence each, never as a traceback."""
    try:
        app()
    except PolicyViolationError as error:
        errors.print(str(error), style="bold red", markup=False)
        sys.exit(3)
    except (ArbiterError, OSError) as error:
        errors.print(str(error), markup=False)
        sys.exit(2)
