"""The commands and their options. What each one does is in the module named after it.

Exit codes: 0 all is well, 1 the linter found errors or the graph itself failed, 2 something given was wrong,
3 a policy denied, 4 the run waits for a human.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from arbiter.errors import ArbiterError, PolicyViolationError
from arbiter.version import __version__

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
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which one this is.")
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
    """Find what is wrong in a graph and its constitution before anything runs."""
    from arbiter.cli.lint import lint_graph

    raise typer.Exit(lint_graph(graph, constitution, tuple(allow or ()), format, strict))


@app.command()
def schema(
    folder: Annotated[Path, typer.Argument(help="The project that has the packs.")] = Path("."),
) -> None:
    """Write the JSON Schema of packs, which editors complete by, beside the packs of a project."""
    from arbiter.cli.schema import write_schemas

    for path in write_schemas(folder):
        typer.echo(f"wrote {path}")


@app.command()
def init(
    graph: Graph,
    folder: Annotated[Path, typer.Argument(help="Where to put the three folders.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take every proposal without asking.")] = False,
) -> None:
    """Make instructions/, policies/ and evaluators/ for a graph, with a proposed instruction for each node."""
    from arbiter.cli.init import scaffold

    for path in scaffold(graph, folder, ask=None if yes else _ask):
        typer.echo(f"wrote {path}")


def _ask(question: str, proposal: str) -> str:
    answer: str = typer.prompt(question, default=proposal or "-", show_default=True)
    return "" if answer.strip() in ("", "-") else answer.strip()


@app.command()
def run(
    graph: Graph,
    input: Annotated[str, typer.Option(help="The input as JSON, or a file that holds it.")] = "{}",
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
    thread: Annotated[str | None, typer.Option(help="The thread id, for graphs with a checkpointer.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Answer the question that the thread waits with: JSON, or a plain word."),
    ] = None,
    format: Annotated[
        str, typer.Option(help="text, or json: stdout gets the output alone, and stderr the history.")
    ] = "text",
) -> None:
    """Run a graph governed, and print its history."""
    from arbiter.cli.run import run_graph

    raise typer.Exit(run_graph(graph, input, constitution, tuple(allow or ()), thread, resume, format))


@app.command()
def explain(
    policy: Annotated[str, typer.Argument(help="The name of a rule, or of a built-in kind.")],
    constitution: ConstitutionOption = None,
    allow: AllowOption = None,
) -> None:
    """Say what a rule does, where it is declared, and what its parameters are."""
    from arbiter.cli.explain import explain_rule

    explain_rule(policy, constitution, tuple(allow or ()))


def main() -> None:
    """Run the command line. Mistakes are told in a sentence each, never as a traceback."""
    try:
        app()
    except PolicyViolationError as error:
        errors.print(str(error), style="bold red", markup=False)
        sys.exit(3)
    except (ArbiterError, OSError) as error:
        errors.print(str(error), markup=False)
        sys.exit(2)
