"""`arbiter eval calibrate`: a judge compared with people's labels."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path

import typer

from arbiter._objects import import_from_here
from arbiter.cli._options import check_place, model_given
from arbiter.cli._runs import check_row
from arbiter.cli._store import opened_store
from arbiter.cli._streams import stdout_for_results
from arbiter.errors import ConfigurationError
from arbiter.experiments.labelling import calibrate_metric, write_sessions
from arbiter.harness import Calibration, Suite, calibrate, load_suite
from arbiter.harness.calibration import FOLDER
from arbiter.harness.canonical import text_of
from arbiter.harness.files import suite_files
from arbiter.harness.journal import run_folder, runs_of
from arbiter.harness.labels import Labelled, chosen_for_labelling, write_for_labelling
from arbiter.harness.reports.report import Report, load_report


def calibrate_row(
    labels: Path,
    row: str,
    judge: str,
    pass_at: float | None,
    *,
    suite: Path | None,
    store: str | None,
    out: Path | None,
    allow: Sequence[str],
) -> None:
    """Judge the labelled outputs with a scorer of a suite, print the agreement, and write the calibration."""
    import_from_here()
    with _kept(row, out, store) as keep:
        with stdout_for_results():
            loaded = load_suite(suite or _only_suite(), allow=allow)
            found = calibrate(loaded, labels, row=row, pass_at=pass_at, judge=judge)
        typer.echo(f"{keep(found)}{_last_run(loaded, found)}")


@contextmanager
def _kept(row: str, out: Path | None, store: str | None) -> Generator[Callable[[Calibration], str]]:
    """Keeps the calibration that is made inside, in its file and in a store, and returns what to say about it."""
    place = out or FOLDER / f"{row}.json"
    if out is None:
        place.parent.mkdir(exist_ok=True)
    check_place(place, (".json",))
    with nullcontext() if store is None else opened_store(store) as repository:

        def keep(found: Calibration) -> str:
            found.write(place)
            if repository is not None:
                repository.add_calibration(
                    row, version=found.version, judge=found.judge, n=found.n, data=found.to_dict()
                )
            problems = found.problems(version=found.version, judge=found.judge)
            calibrated = f"calibrated for {row} {found.version}"
            verdict = f"uncalibrated: {'; '.join(problems)}" if problems else calibrated
            return f"{found}\n{verdict}; wrote {place}."

        yield keep


def calibrate_judge(
    labels: Path,
    run: str,
    metric: str,
    judge: str | None,
    pass_at: float,
    *,
    store: str | None,
    out: Path | None,
) -> None:
    """Judge labelled conversations of an experiment, print the agreement, and write the calibration."""
    import_from_here()
    if judge is None:
        raise ConfigurationError("--judge is missing: the model that is compared with people's labels.")
    with _kept(metric, out, store) as keep:
        with stdout_for_results():
            found = calibrate_metric(labels, run, metric=metric, judge=model_given(judge), pass_at=pass_at)
        typer.echo(keep(found))


def write_conversations(labels: Path, run: str, metric: str, count: int, *, seed: int, blind: bool) -> None:
    """Write some of the conversations of an experiment for people to label."""
    check_place(labels, (".csv",))
    written = write_sessions(labels, run, metric=metric, count=count, seed=seed, blind=blind)
    typer.echo(
        f"wrote {labels}: {written} conversations. Fill in the column label (0 to 9, or pass and fail), then: "
        f"arbiter experiment calibrate {labels} --from {run} --metric {metric} --judge MODEL --pass-at SCORE"
    )


def _last_run(suite: Suite, found: Calibration) -> str:
    """The share of passes in the last run of the suite, without the judge's mistakes; "" if nothing fits."""
    folder = next(runs_of(suite.name), None)
    row = None if folder is None else load_report(folder).rows.get(found.row)
    if row is None or row.version != found.version or not row.values:
        return ""
    return f" Last run: {found.told([*row.values.values()], row.scale)}."


def write_sample(labels: Path, run: str, row: str, count: int, *, seed: int, blind: bool) -> None:
    """Write some of the outputs of a run for people to label, with the judge's scores if not `blind`."""
    check_place(labels, (".csv",))
    if labels.exists():
        raise ConfigurationError(f"{labels} is there already. People's labels are not overwritten.")
    report = load_report(run_folder(run))
    check_row(row, report)
    sample = _sample(report, row, count, seed)
    if not sample:
        raise ConfigurationError(f"the run {report.run_id} has no output that {row!r} scored.")
    write_for_labelling(labels, sample, scores=None if blind else report.rows[row].values)
    typer.echo(
        f"wrote {labels}: {len(sample)} outputs. Fill in the column label (0 to 9, or pass and fail), then: "
        f"arbiter eval calibrate {labels} --row {row} --pass-at SCORE"
    )


def _sample(report: Report, row: str, count: int, seed: int) -> list[Labelled]:
    """Outputs with scores of all bands, without their scores."""
    cases = {case.id: case for case in report.cases}
    outputs = {result.case_id: result.output for result in report.results if result.repeat == 0}
    low, high = report.rows[row].scale
    scores = {
        id: (value - low) * 9 / (high - low) if isfinite(high) else value
        for id, value in report.rows[row].values.items()
        if outputs.get(id) is not None
    }
    return [
        Labelled(id=id, input=text_of(cases[id].input), output=text_of(outputs[id]), labels={})
        for id in chosen_for_labelling(scores, count, seed=seed)
    ]


def _only_suite() -> Path:
    files = suite_files()
    if len(files) != 1:
        raise ConfigurationError(
            f"suites/ has {len(files)} suites; name the one of the scorer with --suite FILE."
        )
    return files[0]
