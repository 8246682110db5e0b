"""The options of `arbiter eval run`, and those that several commands of `arbiter eval` have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from arbiter.harness.suites import Mode


_SUITES: Any = typer.Argument(help="Suite files; by default every file in suites/.")
_ALLOW: Any = typer.Option(
    "--allow", help="A prefix of dotted paths that suites may name functions by. May be repeated."
)
Suites = Annotated[list[str] | None, _SUITES]
Allow = Annotated[list[str] | None, _ALLOW]
Run = Annotated[str, typer.Argument(help="The id of a run, a suite for its newest run, or last.")]
Format = Annotated[str, typer.Option(help="table, json, md, html or junit.")]
Repeats = Annotated[int | None, typer.Option(help="How often each case runs.")]
OfSuite = Annotated[Path | None, typer.Option(help="The baseline; by default that of the suite.")]
Ci = Annotated[
    bool, typer.Option("--ci", help="Fail without a baseline; with one, thresholds do not decide.")
]
Strict = Annotated[bool, typer.Option("--strict", help="An underpowered row is undecided.")]
AcceptChanged = Annotated[
    bool, typer.Option("--accept-changed", help="Show rows whose evaluator changed, without gating them.")
]
Out = Annotated[Path | None, typer.Option(help="A file for the report; its ending names the form.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `arbiter eval run`. `record` runs suites too, and asks everything anew if `again`."""

    suites: Annotated[Sequence[str], _SUITES] = ()
    ids: Annotated[
        Sequence[str], typer.Option("--case", help="Run the case of this id. May be repeated.")
    ] = ()
    tags: Annotated[
        Sequence[str], typer.Option("--tag", help="Run the cases with this tag. May be repeated.")
    ] = ()
    text: Annotated[str, typer.Option("-k", help="Run the cases with this text in their id.")] = ""
    live: Annotated[bool, typer.Option("--live", help="Run the target and ask the judges; the default.")] = (
        False
    )
    mock: Annotated[
        bool, typer.Option("--mock", "--mock-judge", help="Replay recordings, without any model.")
    ] = False
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Let agents with few messages answer prompts.")
    ] = False
    records: bool = False
    again: bool = False
    allow_stale: Annotated[
        bool, typer.Option("--allow-stale", help="With --mock: take recordings that are outdated.")
    ] = False
    agents: Annotated[str | None, typer.Option(help="The agents to judge, separated by commas.")] = None
    dimensions: Annotated[
        str | None, typer.Option(help="The dimensions of personas to judge, separated by commas.")
    ] = None
    window: Annotated[
        str | None, typer.Option(help="The time whose messages are judged, of agents: 7d, 24h or 2w.")
    ] = None
    until: Annotated[str | None, typer.Option(help="The end of that time, such as 2026-11-23T00:00:00Z.")] = (
        None
    )
    threshold: Annotated[float | None, typer.Option(help="The lowest mean of rows from 0 to 9.")] = None
    repeats: Repeats = None
    votes: Annotated[int | None, typer.Option(help="How often judges are asked each question.")] = None
    seed: Annotated[int | None, typer.Option(help="Chooses the messages that persona scorers judge.")] = None
    concurrency: Annotated[int | None, typer.Option(help="How many cases run at once.")] = None
    baseline: Annotated[Path | None, typer.Option(help="The baseline to compare with.")] = None
    no_gate: Annotated[bool, typer.Option("--no-gate", help="Compare with no baseline.")] = False
    ci: Ci = False
    strict: Strict = False
    accept_changed: AcceptChanged = False
    resume: Annotated[str | None, typer.Option(help="Go on with a run: its id, or last.")] = None
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume: do again what failed or timed out.")
    ] = False
    ray: Annotated[
        str | None, typer.Option(help="Run the cases on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
    ] = None
    allow: Annotated[Sequence[str], _ALLOW] = ()
    format: Format = "table"
    out: Out = None

    @property
    def mode(self) -> Mode:
        return (
            "record" if self.records else "mock" if self.mock else "synthetic" if self.synthetic else "live"
        )
