"""`arbiter eval baseline`: a suite is measured, or a run taken, and its baseline written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.text import Text

from arbiter._objects import import_from_here
from arbiter._values.files import ensure_writable, writing
from arbiter.cli._eval_options import Options
from arbiter.cli._evaluating import interrupted, loaded, prepared
from arbiter.cli._progress import Progress, ends_in_good_order
from arbiter.cli._runs import out
from arbiter.cli._streams import each_warning_once, stdout_for_results, tell
from arbiter.errors import ConfigurationError
from arbiter.harness.agent_baselines import baseline_files
from arbiter.harness.cases import Case
from arbiter.harness.journal import run_folder, runs_of
from arbiter.harness.reports.report import Report, load_report
from arbiter.models import visible

_LAST = 5
"""The runs of a suite among which a baseline should not be the best one."""


def write_baseline(name: str, path: Path | None, *, update: bool, repeats: int, allow: Sequence[str]) -> int:
    """Measure a suite, or take a run, and write the baseline. Returns the exit code."""
    if Path(name).is_file() or Path(name).suffix in (".yaml", ".yml"):
        import_from_here()
        options, progress = Options(repeats=repeats, allow=allow), Progress()
        with stdout_for_results():
            suite = loaded(name, options)
        place = _place(path, suite.gate.baseline, suite.cases, update)
        # A copy of what was measured is no second draw.
        suite = replace(suite, cache="off", gate=replace(suite.gate, baseline=None))
        options = replace(options, no_gate=True)
        with ends_in_good_order(), each_warning_once(), stdout_for_results():
            report = prepared(name, suite, progress, options).run()
        progress.end()
        if report.stopped == "interrupted":
            then = ("baseline", report.run_id, "--out", str(place), *(("--update",) if update else ()))
            return interrupted(report, name, options, then)
    else:
        report = load_report(run_folder(name), compared=False)  # what is replaced may be damaged
        place = _place(path, report.gate.baseline, report.cases, update)
        _warn_of_the_best(report)
    moved = report.save_baseline(place, update=update)
    for line in moved:
        out.print(Text(visible(line)))
    out.print(Text(f"wrote {place}"))
    return 0


def _warn_of_the_best(report: Report) -> None:
    """Say it if a run has the highest mean of the last ones of its suite: its luck would stay in the baseline."""
    folders = (folder for folder in runs_of(report.suite) if folder.name != report.run_id)
    others: list[Report] = []
    for folder in islice(folders, _LAST - 1):
        with suppress(ConfigurationError):  # a run that cannot be read is none to compare with
            others.append(load_report(folder, compared=False))
    best = [
        name
        for name, row in report.rows.items()
        if row.mean is not None
        and (means := [m for run in others if name in run.rows and (m := run.rows[name].mean) is not None])
        and row.mean > max(means)
    ]
    if best:
        tell(
            f"{report.run_id} has the highest mean of the last {len(others) + 1} runs for {', '.join(best)}: a lucky "
            "baseline makes later runs fail. Measure anew: arbiter eval baseline SUITE",
            "yellow",
        )


def _place(given: Path | None, of_suite: str | Path | None, cases: Sequence[Case], update: bool) -> Path:
    """The file of a baseline, or the folder for agents. Mistakes in it are reported before anything is measured."""
    if given is None and of_suite is None:
        raise ConfigurationError(
            "the suite's gate names no baseline. Name a file: --out baselines/SUITE.json."
        )
    place = Path(given or of_suite or "")
    if given is None:
        with writing(place):
            (place if str(of_suite).endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
    if not place.parent.is_dir():
        raise ConfigurationError(f"{place}: the folder {str(place.parent)!r} does not exist. Make it first.")
    for file in baseline_files(place, cases).values():
        with writing(file):
            if file.exists() and not update:
                raise ConfigurationError(f"{file} is there already. Replace it with --update.")
            ensure_writable(file)
    return place
