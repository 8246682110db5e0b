"""The options that several commands of `arbiter experiment` have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Judge = Annotated[str | None, typer.Option("--judge", help="The model that scores; as --model.")]
Format = Annotated[str, typer.Option("--format", help="table or json.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Also write the result: .json, .md, .txt, or .svg for a picture of the effects."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or last.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """An experiment, where it runs, and where it leaves what it finds: the options that several commands have."""

    model: Annotated[
        str | None,
        typer.Option(help="The model of the agents: a text like openai:gpt-5-mini, or path/to/file.py:name."),
    ] = None
    judge: Judge = None
    corrector: Annotated[
        str | None,
        typer.Option(help="The model that judges drafts and interventions; by default that of the agents."),
    ] = None
    people: Annotated[
        str | None,
        typer.Option(help="The model that invents the agents; by default they are made from templates."),
    ] = None
    profile: Annotated[str, typer.Option(help="The settings of the scenario: paper or seed.")] = "paper"
    seed: Annotated[int, typer.Option(help="Fixes the agents and the order in which they act.")] = 42
    runs: Annotated[
        int,
        typer.Option(help="How often the experiment is repeated, with seeds that follow one another."),
    ] = 1
    scale: Annotated[float, typer.Option(help="The share of environments that run; at least 2 do.")] = 1.0
    order: Annotated[str, typer.Option(help="parallel, or sequential_random.")] = "parallel"
    metrics: Annotated[
        Sequence[str], typer.Option("--metric", help="Measure this metric only. May be repeated.")
    ] = ()
    mode: Annotated[str, typer.Option(help="llm, or template: no model, and no scores.")] = "llm"
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hold the run to a plan that was written before it.")
    ] = None
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped or killed, or last.")
    ] = None
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume, try again what failed or timed out.")
    ] = False
    concurrency: Annotated[int | None, typer.Option(help="How many environments run at once.")] = None
    tokens: Annotated[int | None, typer.Option(help="Start no environment after so many tokens.")] = None
    calls: Annotated[int | None, typer.Option(help="Start no environment after so many calls of models.")] = (
        None
    )
    usd: Annotated[float | None, typer.Option(help="Start no environment after so many dollars.")] = None
    ray: Annotated[
        str | None,
        typer.Option(help="Run the environments on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Store what gates and interventions do: a SQLite file, or a postgresql:// URL.",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Record the node runs of treatments: a SQLite file, or a postgresql:// URL.",
        ),
    ] = None
    out: Out = None
