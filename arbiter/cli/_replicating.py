"""`arbiter experiment table1`: the experiments of Table 1 one after another, also over several sessions.

    .arbiter/experiments/table1-<time>.json     the experiments of a table, each with the id of its run

A table that was stopped goes on with the run that was stopped, and with the experiments that have none yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from arbiter._values.files import write_whole, writing
from arbiter._values.kinds import is_mapping
from arbiter.cli._experiment_options import Settings
from arbiter.cli._experimenting import FORMATS, check, exit_code, prepared, recording, with_models
from arbiter.cli._options import check_format
from arbiter.cli._progress import Progress
from arbiter.cli._streams import stdout_for_results, tell
from arbiter.errors import ConfigurationError, nearest
from arbiter.experiments import ExperimentResult
from arbiter.experiments.replicating import replicated, scenarios_named
from arbiter.experiments.results import load_result
from arbiter.experiments.runner import FOLDER
from arbiter.harness import Limits
from arbiter.harness.identity import Identity
from arbiter.harness.journal import Written
from arbiter.harness.runs import Run
from arbiter.harness.usage import NOTHING

_FORMAT = 1
_LEAST = 1e-9
"""Dollars that are used up at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The experiments of a table by scenario, each with the id of its run, "" before it begins."""

    file: Path
    runs: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def id(self) -> str:
        return self.file.stem

    @classmethod
    def begin(cls, scenarios: Sequence[str]) -> _Table:
        now = datetime.now(UTC)
        file = FOLDER / f"table1-{now:%Y%m%d-%H%M%S}-{now.microsecond:06}.json"
        return cls(file=file, runs=dict.fromkeys(scenarios, ""))

    @classmethod
    def find(cls, name: str) -> _Table:
        """The table of that id, or the "last" one. Raises `ConfigurationError` if there is none."""
        known = sorted(FOLDER.glob("table1-*.json"))
        ids = [file.stem for file in known]
        if not known or name not in ("last", *ids):
            others = f" Tables: {', '.join(ids[-3:])}." if ids else ""
            raise ConfigurationError(f"there is no table {name!r} in {FOLDER}.{nearest(name, ids)}{others}")
        file = known[-1 if name == "last" else ids.index(name)]
        try:
            found: Any = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}.") from None
        runs: Any = found.get("runs") if is_mapping(found) and found.get("format") == _FORMAT else None
        if not is_mapping(runs) or not runs or not all(isinstance(run, str) for run in runs.values()):
            raise ConfigurationError(f"{file} is not a table of experiments. Start a new one.")
        return cls(file=file, runs=dict(runs))

    def began(self, scenario: str, run_id: str) -> None:
        """Keep the id of a run that is about to begin."""
        self.runs[scenario] = run_id
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps({"format": _FORMAT, "runs": self.runs}, indent=2) + "\n")


def replicate(experiments: Sequence[str], settings: Settings, resume: str | None, format: str) -> int:
    """Run experiments of Table 1, and print them beside the paper's. Returns the exit code."""
    check(settings)
    check_format(format, FORMATS)
    if settings.mode != "llm":
        raise ConfigurationError(
            f"--mode {settings.mode}: templates are not scored, so there is nothing to compare with the paper."
        )
    with stdout_for_results():
        table = _table(experiments, resume)
        results = _results(table, settings)
    replication = replicated(results)
    if format == "json":
        typer.echo(json.dumps(replication.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        typer.echo(replication.text())
    if len(results) < len(table.runs) or results[-1].stopped is not None:
        how = f"arbiter experiment table1 ... --resume {table.id}"
        tell(f"the table is not complete. Go on, with the same options: {how}", "yellow")
    return max(map(exit_code, results))


def _table(experiments: Sequence[str], resume: str | None) -> _Table:
    if resume is None:
        return _Table.begin(scenarios_named(experiments))
    table = _Table.find(resume)
    if any(each.strip() for each in experiments) and scenarios_named(experiments) != [*table.runs]:
        raise ConfigurationError(
            f"the table {table.id} has the experiments {', '.join(table.runs)}. Leave --experiments out, or start "
            "a new table."
        )
    return table


def _results(table: _Table, settings: Settings) -> list[ExperimentResult]:
    """The results of the experiments, until one is stopped."""
    results: list[ExperimentResult] = []
    progress = Progress()
    with recording(settings) as kept:
        # All are checked before the first one runs.
        ready = {id: _ready(id, run, settings, kept, progress) for id, run in table.runs.items()}
        for id, found in ready.items():
            if isinstance(found, Run):
                table.began(id, found.session.run_id)
                found.session.limits = _left(found.session.limits, results)
                found = ExperimentResult.of(found.run())
            results.append(found)
            if found.stopped is not None:
                break
    progress.end()
    return results


def _ready(
    id: str, run_id: str, settings: Settings, kept: Mapping[str, Any], progress: Progress
) -> Run | ExperimentResult:
    """The run of an experiment, new or to go on; its result if it is finished."""
    experiment = replace(with_models(id, settings), **kept)

    def on(run: str | None) -> Run:
        return prepared(id, replace(settings, resume=run), experiment, progress)

    if not (FOLDER / run_id / "run.json").is_file():  # "", or killed before it had a journal
        return on(None)
    written = Written.read(FOLDER / run_id)
    if written.end is None or written.end["stopped"] is not None:
        return on(run_id)
    head = on(None).head
    if changed := Identity.of(head["identity"]).changes(Identity.of(written.head["identity"])):
        raise ConfigurationError(f"the table cannot go on, because {id} is done: {'; '.join(changed)}.")
    return load_result(FOLDER / run_id)


def _left(limits: Limits, results: Sequence[ExperimentResult]) -> Limits:
    """The part of the limits that the experiments before have left."""
    spent = sum((spent for result in results for spent in result.usage.values()), NOTHING)
    return replace(
        limits,
        tokens=None if limits.tokens is None else max(0, limits.tokens - spent.tokens),
        calls=None if limits.calls is None else max(0, limits.calls - spent.calls),
        usd=None if limits.usd is None else max(_LEAST, limits.usd - (spent.usd or 0.0)),
    )
