"""`arbiter eval run`, `record`, `lint` and `schema`: suites are run, or checked without running."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from arbiter._objects import import_from_here
from arbiter._values.files import writing
from arbiter.cli._eval_options import Options
from arbiter.cli._options import check_format, check_place
from arbiter.cli._progress import Progress, ends_in_good_order
from arbiter.cli._runs import FORMATS, out, print_report
from arbiter.cli._streams import each_warning_once, stdout_for_results, tell, wait_for_no_thread
from arbiter.errors import ConfigurationError, PackError, nearest, with_article
from arbiter.harness.agents import Agents
from arbiter.harness.cases import Selection
from arbiter.harness.files import SCHEMA, load_suite, suite_files, suite_schema
from arbiter.harness.gate import covers
from arbiter.harness.journal import plain_fields
from arbiter.harness.recordings import Recording
from arbiter.harness.reports.page import template
from arbiter.harness.reports.report import FORMS, Report
from arbiter.harness.results import COMPLETED, EXPECT
from arbiter.harness.runs import Run
from arbiter.harness.suites import Suite, SuiteError
from arbiter.models import visible
from arbiter.models._asking import models_unasked

_WHOLE_DOCUMENTS = ("json", "html", "junit")
"""Forms of which two after each other cannot be read."""
_WORST = (130, 2, 1, 5, 0)
"""Exit codes, the one that counts for several suites first."""


def _check(options: Options) -> None:
    """Raise `ConfigurationError` for options that contradict one another."""
    check_format(options.format, FORMATS)
    if options.ray is not None and options.mode not in ("live", "synthetic"):
        raise ConfigurationError(
            f"--ray is for runs that ask models, and the mode is {options.mode!r}, which is as fast in this process."
        )
    if options.out is not None:
        check_place(options.out, FORMS)
    if options.format == "html" or (options.out is not None and options.out.suffix == ".html"):
        template()  # without its package, the run would be paid for and not shown
    if options.allow_stale and options.mode != "mock":
        raise ConfigurationError("--allow-stale is for --mock.")
    if options.retry_errors and options.resume is None:
        raise ConfigurationError("--retry-errors is for a run that goes on. Name it: --resume last.")
    if options.no_gate and (options.baseline is not None or options.ci):
        raise ConfigurationError("--no-gate contradicts --baseline and --ci. Leave one of them out.")


def _files(suites: Sequence[str]) -> list[str]:
    """The suite files that were named, or all in suites/."""
    found = [str(file) for file in suite_files()]
    if not suites and not found:
        raise ConfigurationError("there is no suite in suites/. Name a file: arbiter eval run SUITE.")
    if found and (missing := [name for name in suites if not Path(name).exists()]):
        raise ConfigurationError(
            f"{missing[0]}:1: expected a file that can be read, got none of that name. "
            f"Suites: {', '.join(found)}.{nearest(missing[0], found)}"
        )
    return list(suites) or found


def run_suites(options: Options) -> int:
    """Run suites and print their reports. Returns the exit code."""
    _check(options)
    files = _files(options.suites)
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
        print_report(report, options.format)
        left = files[len(codes) + 1 :]
        then = _arguments(left, options) if left else ()
        is_cut = report.stopped == "interrupted" or (report.pressed_late and bool(left))
        codes.append(interrupted(report, file, options, then) if is_cut else report.comparison.exit_code)
        if report.stopped is not None or any(result.status == "timeout" for result in report.results):
            wait_for_no_thread()
        if is_cut:
            break
    return next(code for code in _WORST if code in codes)


def _on_ray(address: str, file: str, options: Options) -> Any:
    """The driver of a run on a Ray cluster."""
    from arbiter.harness.distributed import on_ray

    return on_ray(address, partial(loaded, file, options), select=_selection(options), mode=options.mode)


def _selection(options: Options) -> Selection:
    return Selection(ids=options.ids, tags=options.tags, text=options.text)


def _all_prepared(files: Sequence[str], progresses: Sequence[Progress], options: Options) -> list[Run]:
    """The runs of all suites. Raises `ConfigurationError` with what is wrong with each of them."""
    runs: list[Run] = []
    refused: list[ConfigurationError] = []
    for file, progress in zip(files, progresses, strict=True):
        try:
            runs.append(prepared(file, loaded(file, options), progress, options))
        except ConfigurationError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:  # a wrong option is wrong for each suite
        raise ConfigurationError("\n".join(dict.fromkeys(map(str, refused))))
    return runs


def prepared(file: str, suite: Suite, progress: Progress, options: Options) -> Run:
    """A run that can begin. Raises `ConfigurationError` with the file and each mistake in it."""
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
    if isinstance(error, PackError):
        return str(error)
    told = error.mistakes if isinstance(error, SuiteError) else [str(error)]
    return "\n".join(each if each.startswith(f"{file}:") else f"{file}: {each}" for each in told)


def _recordings(suite: Suite, options: Options) -> Path | Recording:
    folder = Path("recordings")
    if options.mode not in ("mock", "record"):
        return folder
    kind: Literal["replay", "record"] = "replay" if options.mode == "mock" else "record"
    return Recording(folder / suite.name, kind, again=options.again, allow_stale=options.allow_stale)


def loaded(file: str, options: Options) -> Suite:
    """A suite with a target, changed by the options."""
    suite = load_suite(file, allow=options.allow, replay=options.mode == "mock")
    if suite.target is None:
        raise PackError.at(file, 1, "target: expected graph, function or outputs, got nothing")
    for name in ("repeats", "votes", "seed"):
        if (given := getattr(options, name)) is not None:
            suite = replace(suite, **{name: given})
    if options.seed is not None and not any(getattr(one.given, "samples", False) for one in suite.judges):
        raise ConfigurationError(f"--seed: no scorer of {file} samples, so the seed would have no effect.")
    suite = _of_agents(_of_dimensions(suite, options), options)
    if options.concurrency is not None:
        suite = replace(suite, limits=replace(suite.limits, concurrency=options.concurrency))
    changes: dict[str, Any] = {"strict": True} if options.strict else {}
    if options.no_gate:
        changes["baseline"] = None
    if options.threshold is not None:
        changes["threshold"] = options.threshold
    return replace(suite, gate=replace(suite.gate, **changes)) if changes else suite


def _of_dimensions(suite: Suite, options: Options) -> Suite:
    """The suite with the judges of the dimensions that are asked for; its gate leaves out the rows of others."""
    if options.dimensions is None:
        return suite
    known = {name: one for one in suite.judges if (name := getattr(one.given, "dimension", ""))}
    asked = {
        known[name].name: known[name].given for name in _named(options.dimensions, known, "dimension", suite)
    }
    others = [one.name for one in suite.judges if one.name not in asked]
    rows = [row for row in suite.gate.rows or () if not any(covers(other, row) for other in others)]
    return replace(suite, scorers=asked, gate=replace(suite.gate, rows=rows or None))


def _of_agents(suite: Suite, options: Options) -> Suite:
    """The suite with the agents and the window that are asked for."""
    about = {"agents": options.agents, "window": options.window, "until": options.until}
    given: dict[str, Any] = {name: value for name, value in about.items() if value is not None}
    if not given:
        return suite
    agents = suite.target
    if not isinstance(agents, Agents):
        raise ConfigurationError(
            f"--{next(iter(given))} is for agents, and the target of the suite {suite.name!r} is none."
        )
    names = given.pop("agents", "all")
    if names != "all":
        wanted = _named(names, [agent.id for agent in agents.agents], "agent", suite)
        agents = replace(agents, agents=[agent for agent in agents.agents if agent.id in wanted])
    agents = replace(agents, **given)
    return replace(suite, target=agents, cases=agents.cases)


def _named(text: str, known: Collection[str], noun: str, suite: Suite) -> list[str]:
    """The names in an option. Raises `ConfigurationError` for an unknown one."""
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    for name in wanted:
        if name not in known:
            raise ConfigurationError(
                f"--{noun}s: {name!r} is not {with_article(noun)} of the suite {suite.name!r}. "
                f"{noun.capitalize()}s: {', '.join(known) or 'none'}.{nearest(name, known)}"
            )
    return wanted


def interrupted(report: Report, file: str, options: Options, then: Sequence[str]) -> int:
    """Print the command that goes on with a run, and the one that follows it if there is one. Returns the exit code."""
    resumed = () if options.mode == "record" else ("--resume", report.run_id)
    own = [[*_arguments([file], options), *resumed]] if report.stopped == "interrupted" else []
    commands = [*own, *([then] if then else [])]
    how = "; ".join(f"arbiter eval {shlex.join(command)}" for command in commands)
    tell(f"interrupted after {len(report.results)} runs. Go on: {how}", "yellow")
    return 130


_SPELLED = {"ids": "--case", "tags": "--tag", "text": "-k", "again": "--all"}
"""The options of a command that are not named as the fields of `Options`."""


def _arguments(files: Sequence[str], options: Options) -> list[str]:
    """The arguments of a command with the same options about other suites. `record` asks only what is missing."""
    records = options.records
    found = ["record" if records else "run", *files]
    left_out = {"suites", "live", "records", "resume", "retry_errors", *(["no_gate"] if records else [])}
    for part in fields(options):
        value: Any = getattr(options, part.name)
        if value == part.default or part.name in left_out:
            continue
        name = _SPELLED.get(part.name, f"--{part.name.replace('_', '-')}")
        for each in value if part.name in ("ids", "tags", "allow") else (value,):
            found += (name,) if each is True else (name, str(each))
    return found


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
            tell(_of_suite(file, error))
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
    path = folder / SCHEMA
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(suite_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
