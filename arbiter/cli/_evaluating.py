"""The implementation of `arbiter eval`."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from arbiter._objects import import_from_here
from arbiter.cli._options import Screen, check_format, check_place
from arbiter.cli._streams import each_warning_once, reader_may_leave, stdout_for_results, wait_for_no_thread
from arbiter.errors import ConfigurationError, PackError, nearest
from arbiter.harness.agent_baselines import baseline_files
from arbiter.harness.agents import Agents
from arbiter.harness.baselines import Baseline
from arbiter.harness.cases import Case, Selection
from arbiter.harness.files import SCHEMA, load_suite, suite_files, suite_schema
from arbiter.harness.gate import covers
from arbiter.harness.journal import FOLDER, Summary, plain_fields, run_folder, runs_in, runs_of, summary_of
from arbiter.harness.planning import plan, usual_drops, votes_of
from arbiter.harness.recordings import Recording
from arbiter.harness.reports.report import FORMS, Report, load_report, result_to_dict, timing_of
from arbiter.harness.results import COMPLETED, EXPECT
from arbiter.harness.rows import Row
from arbiter.harness.running import Session
from arbiter.harness.runs import Run
from arbiter.harness.suites import Mode, Suite
from arbiter.harness.usage import cost_text
from arbiter.models import visible
from arbiter.models._asking import models_unasked

FORMATS = {"table": "", "json": "", "md": "markdown", "html": "page", "junit": "junit"}
"""What `--format` takes, each with the module of its form."""
_WHOLE_DOCUMENTS = ("json", "html", "junit")
"""Forms of which two after each other cannot be read."""
_WORST = (130, 2, 1, 5, 0)
"""Exit codes, the one that counts for several suites first."""
out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `arbiter eval run`."""

    ids: Sequence[str] = ()
    tags: Sequence[str] = ()
    text: str = ""
    mode: Mode = "live"
    agents: str | None = None
    dimensions: str | None = None
    window: str | None = None
    until: str | None = None
    threshold: float | None = None
    again: bool = False
    allow_stale: bool = False
    repeats: int | None = None
    votes: int | None = None
    seed: int | None = None
    concurrency: int | None = None
    baseline: Path | None = None
    no_gate: bool = False
    ci: bool = False
    strict: bool = False
    accept_changed: bool = False
    resume: str | None = None
    retry_errors: bool = False
    ray: str | None = None
    allow: Sequence[str] = ()
    format: str = "table"
    out: Path | None = None

    def __post_init__(self) -> None:
        check_format(self.format, FORMATS)
        if self.ray is not None and self.mode not in ("live", "synthetic"):
            raise ConfigurationError(
                f"--ray is for runs that ask models, and the mode is {self.mode!r}, which is as fast in this process."
            )
        if self.out is not None:
            check_place(self.out, FORMS)
        if self.allow_stale and self.mode != "mock":
            raise ConfigurationError("--allow-stale is for --mock.")
        if self.retry_errors and self.resume is None:
            raise ConfigurationError("--retry-errors is for a run that goes on. Name it: --resume last.")
        if self.no_gate and (self.baseline is not None or self.ci):
            raise ConfigurationError("--no-gate contradicts --baseline and --ci. Leave one of them out.")


def _files(suites: Sequence[str]) -> list[str]:
    """The suite files that were named, or all in suites/."""
    if suites:
        return list(suites)
    if not (found := suite_files()):
        raise ConfigurationError("there is no suite in suites/. Name a file: arbiter eval run SUITE.")
    return [str(file) for file in found]


# Running ------------------------------------------------------------------------------------------


def run_suites(suites: Sequence[str], options: Options) -> int:
    """Run suites and print their reports. Returns the exit code."""
    files = _files(suites)
    if len(files) > 1 and (options.out is not None or options.resume is not None):
        what = "--out" if options.out is not None else "--resume"
        raise ConfigurationError(f"{what} is for one suite, and there are {len(files)}. Name one.")
    if len(files) > 1 and options.format in _WHOLE_DOCUMENTS:
        raise ConfigurationError(
            f"--format {options.format} is for one suite, and there are {len(files)}. Name one, or run them without it "
            f"and print each: arbiter eval report SUITE --format {options.format}."
        )
    import_from_here()
    out = None if options.out is None else options.out.absolute()
    progresses = [Progress() for _ in files]
    # All are loaded, and all are checked, before the first one runs.
    with stdout_for_results():
        runs = _all_prepared(files, progresses, options)
        if options.ray is not None:
            for file, run in zip(files, runs, strict=True):
                run.driver = _on_ray(options.ray, file, options)
    codes: list[int] = []
    for file, run, progress in zip(files, runs, progresses, strict=True):
        with ends_in_good_order(), stdout_for_results(), each_warning_once():
            report = run.run()
        progress.end()
        if out is not None:
            report.write(out)
        _print(report, options.format)
        codes.append(_code(report, file, options))
        if report.stopped is not None or any(result.status == "timeout" for result in report.results):
            wait_for_no_thread()
        if report.interrupted:
            break
    return next(code for code in _WORST if code in codes)


def _on_ray(address: str, file: str, options: Options) -> Any:
    """The driver of a run on a Ray cluster."""
    from arbiter.harness.distributed import on_ray

    return on_ray(address, partial(_loaded, file, options), select=_selection(options), mode=options.mode)


def _selection(options: Options) -> Selection:
    return Selection(ids=options.ids, tags=options.tags, text=options.text)


def _all_prepared(files: Sequence[str], progresses: Sequence[Progress], options: Options) -> list[Run]:
    """The runs of all suites. Raises `ConfigurationError` with what is wrong with each of them."""
    runs: list[Run] = []
    refused: list[ConfigurationError] = []
    for file, progress in zip(files, progresses, strict=True):
        try:
            runs.append(_prepared(file, _loaded(file, options), progress, options))
        except ConfigurationError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:  # a wrong option is wrong for each suite
        raise ConfigurationError("\n".join(dict.fromkeys(map(str, refused))))
    return runs


def _prepared(file: str, suite: Suite, progress: Progress, options: Options) -> Run:
    try:
        run = suite.prepare(
            select=_selection(options),
            mode=options.mode,
            recordings=_recordings(suite, options),
            baseline=options.baseline,
            resume=options.resume,
            retry_errors=options.retry_errors,
            ci=options.ci,
            accept_changed=options.accept_changed,
            progress=progress,
        )
    except ConfigurationError as error:
        if (told := _of_suite(file, error)) == str(error):
            raise
        raise ConfigurationError(told) from error
    return run if options.dimensions is None or run.gate.rows is not None else _with_gated_rows(run)


def _with_gated_rows(run: Run) -> Run:
    """The run, which gates what it measures: its baseline may have dimensions that were not asked for."""
    measured = [each["name"] for each in run.head["measures"] if None not in each["scale"]]  # no counts
    expected = [EXPECT] * (sum(bool(case.assertions) for case in run.session.cases) > 1)
    gate = replace(run.gate, rows=[*measured, *expected, COMPLETED])
    return replace(run, gate=gate, head={**run.head, "gate": plain_fields(gate)})


def _of_suite(file: str, error: ConfigurationError) -> str:
    """The message of an error, with the file of the suite that it is about."""
    told = str(error)
    return told if isinstance(error, PackError) or told.startswith(f"{file}:") else f"{file}: {told}"


@contextmanager
def ends_in_good_order() -> Generator[None]:
    """Inside, SIGTERM ends a run as Ctrl-C does: what runs gets its time, and the report is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:  # by a script that runs this in the background; SIGTERM would be ignored with it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _recordings(suite: Suite, options: Options) -> Path | Recording:
    folder = Path("recordings")
    if options.mode not in ("mock", "record"):
        return folder
    kind: Literal["replay", "record"] = "replay" if options.mode == "mock" else "record"
    return Recording(folder / suite.name, kind, again=options.again, allow_stale=options.allow_stale)


def _loaded(file: str, options: Options) -> Suite:
    suite = load_suite(file, allow=options.allow, replay=options.mode == "mock")
    if suite.target is None:
        raise PackError.at(file, 1, "target: expected graph, function or outputs, got nothing")
    for name in ("repeats", "votes", "seed"):
        if (given := getattr(options, name)) is not None:
            suite = replace(suite, **{name: given})
    if options.seed is not None and not any(getattr(one.given, "samples", False) for one in suite.judges):
        raise ConfigurationError(f"--seed: no scorer of {file} samples, so the seed would have no effect.")
    suite = _of_agents(suite, options)
    if options.concurrency is not None:
        suite = replace(suite, limits=replace(suite.limits, concurrency=options.concurrency))
    changes: dict[str, Any] = {"strict": True} if options.strict else {}
    if options.no_gate:
        changes["baseline"] = None
    if options.threshold is not None:
        changes["threshold"] = options.threshold
    return replace(suite, gate=replace(suite.gate, **changes)) if changes else suite


def _of_agents(suite: Suite, options: Options) -> Suite:
    """The suite with the options that are about agents and dimensions."""
    if options.dimensions is not None:
        wanted = _listed(options.dimensions)
        known = {getattr(one.given, "dimension", ""): one for one in suite.judges}
        if unknown := [name for name in wanted if name not in known or not name]:
            shown = ", ".join(filter(None, known)) or "none"
            raise ConfigurationError(
                f"--dimensions: {unknown[0]!r} is not a dimension of the suite {suite.name!r}. Dimensions: {shown}."
                f"{nearest(unknown[0], known)}"
            )
        asked = {known[name].name: known[name].given for name in wanted}
        others = [one.name for one in suite.judges if one.name not in asked]
        rows = [row for row in suite.gate.rows or () if not any(covers(other, row) for other in others)]
        suite = replace(suite, scorers=asked, gate=replace(suite.gate, rows=rows or None))
    about = {"--agents": options.agents, "--window": options.window, "--until": options.until}
    given = [name for name, value in about.items() if value is not None]
    if not given:
        return suite
    agents = suite.target
    if not isinstance(agents, Agents):
        raise ConfigurationError(
            f"{given[0]} is for agents, and the target of the suite {suite.name!r} is none."
        )
    if options.agents is not None and options.agents != "all":
        wanted = _listed(options.agents)
        ids = [agent.id for agent in agents.agents]
        if unknown := [name for name in wanted if name not in ids]:
            raise ConfigurationError(
                f"--agents: {unknown[0]!r} is not an agent of the suite {suite.name!r}. Agents: {', '.join(ids)}."
                f"{nearest(unknown[0], ids)}"
            )
        agents = replace(agents, agents=[agent for agent in agents.agents if agent.id in wanted])
    if options.window is not None:
        agents = replace(agents, window=options.window)
    if options.until is not None:
        agents = replace(agents, until=options.until)
    return replace(suite, target=agents, cases=agents.cases)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _code(report: Report, file: str, options: Options) -> int:
    if report.interrupted:
        how = f"arbiter eval {shlex.join(_goes_on(report.run_id, file, options))}"
        err.print(
            Text(f"interrupted after {len(report.results)} runs. Go on: {how}", "yellow"), soft_wrap=True
        )
        return 130
    return report.comparison.exit_code


_SPELLED = {"ids": "--case", "tags": "--tag", "text": "-k", "again": "--all"}
"""The options of a command that are not named as the fields of `Options`."""


def _goes_on(run: str, file: str, options: Options) -> Iterator[str]:
    """The arguments that go on with an interrupted run: those that it had. `record` asks only what is missing."""
    records = options.mode == "record"
    yield from ("record" if records else "run", file)
    left_out = {"mode", "resume", "retry_errors", *(["no_gate"] if records else [])}
    for part in fields(options):
        value: Any = getattr(options, part.name)
        if value == part.default or part.name in left_out:
            continue
        name = _SPELLED.get(part.name, f"--{part.name.replace('_', '-')}")
        for each in value if part.name in ("ids", "tags", "allow") else (value,):
            yield from (name,) if each is True else (name, str(each))
    if options.mode in ("mock", "synthetic"):
        yield f"--{options.mode}"
    if not records:
        yield from ("--resume", run)


def _print(report: Report, format: str) -> None:
    with reader_may_leave():
        if format == "json":
            print(json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False))
        elif form := FORMATS[format]:
            print(report.rendered(form), end="")
        else:
            report.pprint(out)


class Progress:
    """One line on standard error: rewritten on a terminal, else every 10 seconds; with CI set, the last one alone."""

    def __init__(self) -> None:
        self.begun = self.shown = 0.0
        self.live = err.is_terminal
        self.quiet = bool(os.environ.get("CI"))
        self.last: Session | None = None

    def __call__(self, session: Session) -> None:
        now = time.monotonic()
        if self.last is not session:
            self.end()
            self.begun = self.shown = now - session.elapsed
        self.last = session
        if not self.quiet and now - self.shown > (0.1 if self.live else 10):
            self.shown = now
            self._write(session, "\r" if self.live else "", "" if self.live else "\n")

    def end(self) -> None:
        if self.last is not None and (self.live or self.quiet):
            self._write(self.last, "\r" if self.live else "", "\n")

    def _write(self, session: Session, before: str, after: str) -> None:
        done = len(session.results)
        parts = [f"{done}/{session.total}", f"{session.running} running"]
        failed = sum(not result.passed for result in list(session.results.values()))
        if failed:
            parts.append(f"{failed} failed")
        spent = session.judging.usage.total
        if spent.tokens:
            parts.append(
                f"{spent.tokens / 1000:,.0f}k tokens" if spent.tokens >= 1000 else f"{spent.tokens} tokens"
            )
            parts.append("cost unknown" if spent.usd is None else cost_text(spent))
        if 0 < done < session.total:
            left = (time.monotonic() - self.begun) / done * (session.total - done)
            parts.append(f"{int(left // 3600)}:{int(left // 60 % 60):02}:{int(left % 60):02} left")
        line = " · ".join(parts)
        sys.stderr.write(f"{before}{line:<70}{after}" if self.live else f"{line}{after}")
        sys.stderr.flush()


# Looking ------------------------------------------------------------------------------------------


def show_run(run: str, format: str) -> None:
    check_format(format, FORMATS)
    _print(load_report(run_folder(run)), format)


def show_case(run: str, case: str, format: str) -> None:
    """Print all about a case of a run."""
    if format not in ("table", "json"):
        raise ConfigurationError(f"--format is {format!r}; expected table or json, as for all about a case.")
    report = load_report(run_folder(run))
    results = [result for result in report.results if result.case_id == case]
    if not results:
        known = [each.id for each in report.cases]
        raise ConfigurationError(f"the run {report.run_id} has no case {case!r}.{nearest(case, known)}")
    asked = next(each for each in report.cases if each.id == case)
    if format == "json":
        data = {
            "case": asked.to_dict(),
            "results": [{**result_to_dict(r), "timing": timing_of(r)} for r in results],
        }
        print(json.dumps(data, ensure_ascii=False, allow_nan=False))
        return
    for line in _case_lines({"input": asked.input, "expected": asked.expected}):
        out.print(line)
    for result in results:
        out.print(Text(f"repeat {result.repeat + 1}: {result.status} in {result.duration:.3g} s", "bold"))
        for line in _case_lines({"output": result.output, "error": result.error}):
            out.print(line)
        for step in result.trajectory:
            out.print(Text(visible("  ran " + ", ".join(visit["node"] for visit in step))))
        for score in result.scores:
            value = score.outcome if score.outcome != "scored" else score.label or f"{score.value:g}"
            mark = {True: " ✓", False: " ✗", None: ""}[score.passed]
            where = f" ({score.node})" if score.node else ""
            for line in _lines(f"  {score.name}{where} {value}{mark}  {score.reason}".rstrip()):
                out.print(line)


def _case_lines(values: dict[str, Any]) -> Iterable[Text]:
    for name, value in values.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            first, *more = _lines(text)
            yield Text.assemble((f"  {name} ", "bold"), first)
            yield from more


def _lines(text: str) -> list[Text]:
    """A text line by line, the later ones indented."""
    first, *more = text.splitlines() or [""]
    return [Text(visible(first)), *(Text(f"    {visible(line)}") for line in more)]


def list_runs() -> None:
    """Print a line for each run."""
    rows = [
        (run, found.suite, found.target, f"{found.done:,}", found.state) for run, found in summaries(FOLDER)
    ]
    Screen("table").table(("run", "suite", "target", ">cases", "state"), rows)


def summaries(folder: Path) -> Iterator[tuple[str, Summary]]:
    """The runs in a folder by their ids, the newest last. One that cannot be read is reported, and hides no other."""
    for run in runs_in(folder):
        try:
            found = summary_of(run)
        except ConfigurationError as error:
            err.print(Text(visible(str(error)), "yellow"), soft_wrap=True)
        else:
            yield run.name, found


def write_report(run: str, path: Path) -> Path:
    check_place(path, FORMS)
    return load_report(run_folder(run)).write(path)


# Comparing ----------------------------------------------------------------------------------------


def gate_run(
    run: str, baseline: Path | None, format: str, *, ci: bool, strict: bool, accept_changed: bool
) -> int:
    """Print the report of a run with the verdicts about a baseline. Returns the exit code."""
    check_format(format, FORMATS)
    report = gated(run_folder(run), baseline, ci=ci, strict=strict, accept_changed=accept_changed)
    _print(report, format)
    return report.comparison.exit_code


def gated(folder: Path, baseline: Path | None, *, ci: bool, strict: bool, accept_changed: bool) -> Report:
    """The report of a run with the verdicts about a baseline, by default that of its suite."""
    report = load_report(folder, baseline=baseline)
    gate = replace(report.gate, strict=True) if strict else report.gate
    return replace(report, gate=gate, ci=ci, accept_changed=accept_changed)


def compare_runs(before: str, after: str | None, format: str) -> int:
    """Print the newer run with the verdicts about the older one. Returns the exit code."""
    check_format(format, FORMATS)
    first = run_folder(before)
    older = load_report(first)
    second = run_folder(after or "last", suite=older.suite)
    if after is None and second.name == first.name:
        older = load_report(_before(second, older.suite))
    then = Baseline.of(older.measurement(), captured_at=older.began)
    report = load_report(second, baseline=then)
    _print(report, format)
    return report.comparison.exit_code


def _before(run: Path, suite: str) -> Path:
    """The run before the newest one of a suite."""
    for folder in runs_of(suite):
        if folder.name < run.name:
            return folder
    raise ConfigurationError(
        f"there is nothing to compare: {run.name} is the only run of the suite {suite!r}."
    )


def write_baseline(name: str, path: Path | None, *, update: bool, repeats: int, allow: Sequence[str]) -> None:
    """Measure a suite, or take a run, and write the baseline."""
    if Path(name).is_file() or Path(name).suffix in (".yaml", ".yml"):
        import_from_here()
        with stdout_for_results():
            suite = load_suite(name, allow=allow)
        suite = replace(suite, repeats=repeats)
        place = _place(path, suite.gate.baseline, suite.cases, update)
        progress = Progress()
        with ends_in_good_order(), stdout_for_results():
            report = replace(suite, gate=replace(suite.gate, baseline=None)).run(progress=progress)
        progress.end()
    else:
        report = load_report(run_folder(name))
        place = _place(path, report.gate.baseline, report.cases, update)
        _warn_of_the_best(report)
    moved = report.save_baseline(place, update=update)
    for line in moved:
        out.print(Text(visible(line)))
    out.print(Text(f"wrote {place}"))


_LAST = 5
"""The runs of a suite among which a baseline should not be the best one."""


def _warn_of_the_best(report: Report) -> None:
    """Say it if a run has the highest mean of the last ones of its suite: its luck would stay in the baseline."""
    folders = (folder for folder in runs_of(report.suite) if folder.name != report.run_id)
    others = [load_report(folder) for folder in islice(folders, _LAST - 1)]
    best = [
        name
        for name, row in report.rows.items()
        if row.mean is not None
        and (means := [m for run in others if name in run.rows and (m := run.rows[name].mean) is not None])
        and row.mean > max(means)
    ]
    if best:
        err.print(
            Text(
                f"{report.run_id} has the highest mean of the last {len(others) + 1} runs for {', '.join(best)}: "
                "a lucky baseline makes later runs fail. Measure anew: arbiter eval baseline SUITE",
                "yellow",
            ),
            soft_wrap=True,
        )


def _place(given: Path | None, of_suite: str | Path | None, cases: Sequence[Case], update: bool) -> Path:
    """The file of a baseline, or the folder for agents. Mistakes in it are reported before anything is measured."""
    if given is None and of_suite is None:
        raise ConfigurationError(
            "the suite's gate names no baseline. Name a file: --out baselines/SUITE.json."
        )
    place = Path(given or of_suite or "")
    if given is None:
        (place if str(of_suite).endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
    if not place.parent.is_dir():
        raise ConfigurationError(f"{place}: the folder {str(place.parent)!r} does not exist. Make it first.")
    for file in baseline_files(place, cases).values():
        if file.exists() and not update:
            raise ConfigurationError(f"{file} is there already. Replace it with --update.")
    return place


def print_plan(run: str, drop: float | None, row: str | None) -> None:
    """Print the number of cases that it takes to find a drop, for each row."""
    report = load_report(run_folder(run))
    if row is not None:
        check_row(row, report)
    if drop is not None and not 0 < drop < math.inf:
        raise ConfigurationError(f"--drop is {drop:g}; expected a number above 0.")
    refused: list[str] = []
    names = [row] if row is not None else list(report.rows)
    for name in names:
        try:
            votes = votes_of(report.results, name)
            found = plan(
                report.rows[name],
                comparison=report.comparison.rows[name],
                votes=votes if len(votes) > 1 else None,
                drops=_drops(report.rows[name], drop),
            )
        except ConfigurationError as error:
            refused.append(str(error))
        else:
            for line in found.text(drop).splitlines():
                out.print(Text(visible(line)), soft_wrap=True)
    if len(refused) == len(names):
        raise ConfigurationError("\n".join(refused))
    for problem in refused:
        err.print(Text(visible(problem)), soft_wrap=True)


def check_row(row: str, report: Report) -> None:
    """Raise `ConfigurationError` for a row that the run has not."""
    if row not in report.rows:
        raise ConfigurationError(
            f"{row!r} is not a row of the run. Rows: {', '.join(report.rows)}.{nearest(row, report.rows)}"
        )


def _drops(row: Row, wanted: float | None) -> Sequence[float] | None:
    """The usual drops of a row and the one that is wanted; that alone for a scale without an end."""
    if wanted is None:
        return None
    return sorted({wanted, *(usual_drops(row) if all(map(math.isfinite, row.scale)) else ())})


# Suites -------------------------------------------------------------------------------------------


def lint_suites(suites: Sequence[str], allow: Sequence[str]) -> int:
    """Load suites and their targets, and print what is wrong. Returns the exit code."""
    import_from_here()
    failed = False
    for file in _files(suites):
        try:
            with stdout_for_results(), models_unasked("lint"):
                suite = load_suite(file, allow=allow)
                notes = suite.lint()
        except ConfigurationError as error:
            err.print(Text(_of_suite(file, error)), soft_wrap=True)
            failed = True
            continue
        for note in notes:
            out.print(Text(visible(f"{file}: {note}")), soft_wrap=True)
        if not notes:
            count = "1 case" if len(suite.cases) == 1 else f"{len(suite.cases):,} cases"
            out.print(Text(f"{file}: {count}, nothing to report"))
    return 2 if failed else 0


def write_schema(folder: Path) -> Path:
    """Write the JSON Schema of suites into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCHEMA
    path.write_text(json.dumps(suite_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
