"""The report of a run: its results in the order of the suite, the rows made of them, and what the gate found."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from arbiter._values.files import ensure_ending, writing
from arbiter.errors import ConfigurationError
from arbiter.harness.agent_baselines import agents_in, baseline_if_measured, read_baseline, write_baseline
from arbiter.harness.baselines import Baseline
from arbiter.harness.calibration import Calibration, looked_up
from arbiter.harness.canonical import compact, listed
from arbiter.harness.cases import Case
from arbiter.harness.comparisons import Comparison, RegressionError
from arbiter.harness.gate import GateSettings, RegressionGate
from arbiter.harness.identity import Identity, Measurement
from arbiter.harness.journal import Written, lasting_score, plain_fields, reading, state_without_end
from arbiter.harness.measures import Measure, labels_of, rows_of
from arbiter.harness.reports.agents import agents_to_dict
from arbiter.harness.results import CaseResult
from arbiter.harness.rows import Row
from arbiter.harness.scores import plain_scale
from arbiter.harness.usage import Spent

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 1
_UNFINISHED = {
    "interrupted": "the run was interrupted",
    "running": "the run is still running",
    "stuck": "the target or a scorer does not return: as many calls were left behind as there are workers",
    "run_timeout": "the time of the run is over",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a run, in the order of the suite.

    `stopped` says why the run ended early: "interrupted", "stuck", "budget" or "run_timeout"; None if it did not. A
    report that is read while its run goes on has "running".
    `reached` names the limit of the budget, or the recordings for which a replay was refused.
    `left_behind` counts calls of sync functions that were late and could not be stopped. `sessions` counts the
    processes that the run took. `unfinished` has the usage of each case that is not done, by purse and model.
    `outdated` has the stale recordings that a replay took because it was allowed, each with the change since, and
    `unused` those that it did not need; `recorded` has the days of those that it took. `moved` says that this is the
    first run since its baseline was replaced, and that the one before passed. `left_out` counts the cases of the suite
    that were not selected. `comparison` uses `baseline`, `gate`, `ci` and `accept_changed`.
    """

    run_id: str
    suite: str
    target: str
    mode: str
    identity: Identity
    cases: Sequence[Case]
    results: tuple[CaseResult, ...]
    measures: Sequence[Measure]
    """The evaluators and scorers, in the order of their rows."""
    began: datetime
    seconds: float
    stopped: str | None = None
    pressed_late: bool = False
    """True if Ctrl-C came when the cases were done: all results are there."""
    reached: str = ""
    left_behind: int = 0
    sessions: int = 1
    unfinished: tuple[Mapping[str, Any], ...] = ()
    outdated: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    moved: bool = False
    left_out: int = 0
    baseline: Baseline | None = None
    gate: GateSettings = field(default_factory=GateSettings)
    ci: bool = False
    accept_changed: bool = False

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C was pressed, so that no other run should begin."""
        return self.stopped == "interrupted" or self.pressed_late

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        """The rows by name: evaluators and scorers in their order, `expect`, `completed`."""
        return rows_of(self.results, self.measures, self.cases)

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, int]]:
        """How often each label was given, by the name of the score."""
        return labels_of(self.results)

    @cached_property
    def comparison(self) -> Comparison:
        """The verdict of the gate, about the baseline of the run if there is one."""
        return self._compared(self.baseline, self.gate)

    def compare(self, baseline: Baseline | str | Path, gate: GateSettings | None = None) -> Comparison:
        """The verdict of the gate about a baseline, or the file of one."""
        if isinstance(cast(Any, baseline), Report):
            raise ConfigurationError(
                "baseline is a report; expected a Baseline or the path of its file. Write one with "
                "save_baseline(path), and compare with that path."
            )
        given = baseline if isinstance(baseline, Baseline) else read_baseline(baseline, self.cases)
        return self._compared(given, gate or self.gate)

    def _compared(self, baseline: Baseline | None, gate: GateSettings) -> Comparison:
        found = RegressionGate(gate, ci=self.ci, accept_changed=self.accept_changed)
        run, agents = self.measurement(), agents_in(self.cases)
        # Another window asks the same of agents, about other messages.
        asked = {id: digest for id, digest in run.identity.cases.items() if id not in agents}
        compared = found.compare(replace(run, identity=replace(run.identity, cases=asked)), baseline)
        has_others = any(row.gone for row in compared.rows.values())
        if not (self.left_out and has_others and compared.undecided):
            return compared
        others = (
            f"{self.left_out:,} of {len(self.cases) + self.left_out:,} cases of the suite were not selected"
        )
        said = f"{others}, and the baseline has them: arbiter eval run --no-gate leaves the comparison out"
        return replace(compared, notes=(*compared.notes, said))

    @cached_property
    def _known(self) -> Identity:
        """The identity with what only the results show: the calibrated judges, and the models that answered."""
        answered = (
            (score.name, score.model) for result in self.results for score in result.scores if score.model
        )
        known = self.identity.answered_by(answered) if self.identity.judges else self.identity
        judges = {
            row: replace(judge, calibrated=row in self.calibrations) for row, judge in known.judges.items()
        }
        return replace(known, judges=judges)

    def measurement(self) -> Measurement:
        """The run as the gate sees it."""
        return Measurement(
            identity=self._known,
            rows=self.rows,
            failing=self._failing(),
            usage={
                purse: {"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens}
                for purse, spent in self.usage.items()
            },
            unfinished=self.reached or _UNFINISHED.get(self.stopped or "", self.stopped or ""),
        )

    @cached_property
    def judges(self) -> Mapping[str, bool]:
        """The models of the judges; True for one that is calibrated for all of its rows."""
        found: dict[str, bool] = {}
        for judge in self._known.judges.values():
            found[judge.model] = judge.calibrated and found.get(judge.model, True)
        return found

    @cached_property
    def uncalibrated(self) -> Mapping[str, str]:
        """The rows whose judge is not calibrated with labels of people, each with the reason."""
        return {row: found for row, found in self._looked_up.items() if isinstance(found, str)}

    @cached_property
    def calibrations(self) -> Mapping[str, Calibration]:
        """The rows whose judge is calibrated, each with its calibration."""
        return {row: found for row, found in self._looked_up.items() if isinstance(found, Calibration)}

    @cached_property
    def _looked_up(self) -> Mapping[str, Calibration | str]:
        return looked_up(self.identity)

    @cached_property
    def usage(self) -> Mapping[str, Spent]:
        """The calls and tokens of the run by purse: target, judge, correction, intervention."""
        found: dict[str, Spent] = {}
        for usage in (*(result.usage for result in self.results), *self.unfinished):
            for purse, models in usage.items():
                for spent in models.values():
                    found[purse] = found.get(purse, Spent()) + Spent.from_dict(spent)
        return found

    @property
    def unknown_calls(self) -> int:
        """The calls of models that did not report their tokens."""
        return sum(spent.unknown_calls for spent in self.usage.values())

    def _failing(self) -> dict[str, str]:
        must = {case.id for case in self.cases if case.must_pass}
        found: dict[str, str] = {}
        for result in self.results:
            if result.case_id in must and not result.passed:
                found.setdefault(result.case_id, why_failed(result))
        return found

    def save_baseline(self, path: str | Path, update: bool = False) -> tuple[str, ...]:
        """Write the run as a baseline: a file, or for agents a file for each of them if `path` is a folder. Returns one
        line for each row that moved.

        `update` is needed to replace a file. Raises `ConfigurationError` for a run that is incomplete, or of some cases
        of its suite.
        """
        if self.left_out:
            raise ConfigurationError(
                f"the run cannot be a baseline: {self.left_out} of {len(self.cases) + self.left_out} cases of the "
                "suite were not selected."
            )
        found = Baseline.of(self.measurement(), captured_at=datetime.now(UTC))
        return write_baseline(found, path, self.cases, self.results, update=update)

    def check(self) -> None:
        """Raise `RegressionError` unless the run passes. Its message has the printed report."""
        try:
            self.comparison.check()
        except RegressionError as error:
            error.args = (f"{error}\n\n{self.printed()}",)
            raise

    def printed(self, width: int = 120) -> str:
        """The report as a terminal shows it, without colours."""
        from rich.console import Console

        shown = io.StringIO()
        Console(file=shown, width=width, color_system=None, force_jupyter=False).print(self)
        return shown.getvalue()

    def __rich__(self) -> Any:
        return import_module(f"{__package__}.terminal").Rendered(self)

    def pprint(self, console: Console | None = None) -> None:
        """Print the report for a human."""
        from rich.console import Console

        (console or Console()).print(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data, which fits `report.schema.json` beside this module. Ids, times and durations
        are under `timing`."""
        return {
            **self._head(),
            "results": [result_to_dict(result) for result in self.results],
            "timing": {**self._timing(), "results": [timing_of(result) for result in self.results]},
        }

    def to_json(self) -> str:
        """The JSON of `to_dict` on one line."""
        head, timing = (compact(part).decode()[:-1] for part in (self._head(), self._timing()))
        results, timings = listed(self.results, result_to_dict), listed(self.results, timing_of)
        return f'{head},"results":{results},"timing":{timing},"results":{timings}}}}}'

    def _head(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "suite": self.suite,
            "target": self.target,
            "mode": self.mode,
            "stopped": self.stopped,
            "reached": self.reached,
            "outdated": list(self.outdated),
            "unused": list(self.unused),
            "recorded": list(self.recorded),
            "identity": self._known.to_dict(),
            "uncalibrated": dict(self.uncalibrated),
            "calibrations": {row: found.to_dict() for row, found in self.calibrations.items()},
            "rows": {name: row_to_dict(row) for name, row in self.rows.items()},
            "labels": {name: dict(counts) for name, counts in self.labels.items()},
            "comparison": comparison_to_dict(self.comparison),
            **agents_to_dict(self.cases, self.results, self.comparison),
            "usage": {purse: spent.to_dict() for purse, spent in self.usage.items()},
        }

    def _timing(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "began": self.began.isoformat(),
            "seconds": self.seconds,
            "sessions": self.sessions,
            "moved": self.moved,
            "left_behind": self.left_behind,
        }

    def rendered(self, form: str) -> str:
        """The report in a form, which is one of the values of `FORMS`."""
        text: str = import_module(f"{__package__}.{form}").render(self)
        return text

    def write(self, path: str | Path) -> Path:
        """Write the report in the form that the ending of the path names."""
        file = Path(path)
        ensure_ending(file, FORMS)
        text = self.rendered(FORMS[file.suffix])
        # A lone surrogate becomes `\\ud800`, which is also how JSON has it.
        with writing(path):
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        return file


FORMS: Mapping[str, str] = {".json": "plain", ".md": "markdown", ".xml": "junit", ".html": "page"}
"""The module of each form of a report, by the ending of the file. It has a function `render(report) -> str`."""
# The modules are imported by name, because they know the report.


def of_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the report of a run that its run.json has."""
    if wrong := [name for name in ("run_id", "suite", "target", "mode") if not isinstance(head[name], str)]:
        raise TypeError(f"{wrong[0]} is {head[wrong[0]]!r:.80}")
    return {
        "run_id": head["run_id"],
        "suite": head["suite"],
        "target": head["target"],
        "mode": head["mode"],
        "identity": Identity.of(head["identity"]),
        "measures": [Measure.of(measure) for measure in head["measures"]],
        "left_out": head.get("left_out", 0),
        **head.get("options", {}),
    }


def load_report(
    folder: Path, *, baseline: Baseline | str | Path | None = None, compared: bool = True
) -> Report:
    """The report of a run from its files, compared with the baseline that the run had, or with another; with none
    unless `compared`."""
    state = state_without_end(folder)  # before it is read: it may end meanwhile
    written = Written.read(folder)
    with reading(folder):
        gate = GateSettings(**written.head["gate"])
        cases = [Case(**case) for case in written.head["cases"]]
        about = of_head(written.head)
    end = written.end or {"stopped": "running" if state == "running" else "interrupted", "left_behind": 0}
    evidence: dict[str, Any] = {name: tuple(end.get(name, ())) for name in ("outdated", "unused", "recorded")}
    if isinstance(baseline, str | Path):
        baseline = read_baseline(baseline, cases)
    elif baseline is None and (place := written.head.get("baseline") or gate.baseline) is not None:
        gate = replace(gate, baseline=place)  # is named if it is gone
        baseline = baseline_if_measured(place, cases) if compared else None
    with reading(folder):
        return Report(
            **about,
            cases=cases,
            results=tuple(written.results()),
            baseline=baseline,
            gate=gate,
            began=datetime.fromtimestamp(written.began, UTC),
            seconds=written.last - written.began,
            stopped=end["stopped"],
            reached=end.get("reached", ""),
            left_behind=end["left_behind"],
            sessions=written.sessions,
            unfinished=tuple(written.unfinished()),
            **evidence,
        )


def row_to_dict(row: Row) -> dict[str, Any]:
    return {
        "scale": plain_scale(row.scale),
        "version": row.version,
        "n": row.n,
        "mean": row.mean,
        "sd": row.sd,
        "interval": None if row.interval is None else list(row.interval),
        "outcomes": dict(row.outcomes),
    }


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    return {
        "exit_code": comparison.exit_code,
        "failures": list(comparison.failures),
        "undecided": list(comparison.undecided),
        "notes": list(comparison.notes),
        "rows": {
            name: {**plain_fields(row), "scale": plain_scale(row.scale), "pairs": dict(row.pairs)}
            for name, row in comparison.rows.items()
        },
    }


def result_to_dict(result: CaseResult) -> dict[str, Any]:
    """A result as JSON-able data, without what differs from run to run."""
    return {
        "case": result.case_id,
        "repeat": result.repeat,
        "status": result.status,
        "as_expected": result.as_expected,
        "output": result.output,
        "error": result.error,
        "trajectory": result.trajectory,
        "scores": [*map(lasting_score, result.scores)],
        "usage": dict(result.usage),
    }


def timing_of(result: CaseResult) -> dict[str, Any]:
    """The ids and durations of a result."""
    return {
        "thread_id": result.thread_id,
        "seconds": result.duration,
        "scores": [{"seconds": score.duration, "item_id": score.item_id} for score in result.scores],
    }


def why_failed(result: CaseResult) -> str:
    """Why a case failed, in a line: its end, and the assertions and scorers that failed."""
    parts: list[str] = []
    if not result.as_expected:
        by = f" by {', '.join(map(repr, result.policies))}" if result.policies else ""
        parts.append(f"{result.status}{by}" if result.error is None else f"{result.status}: {result.error}")
    for score in result.scores:
        if score.passed is False or score.outcome in ("error", "timeout"):
            said = score.reason or ("" if score.outcome == "scored" else score.outcome)
            parts.append(f"{score.name}: {said}" if said else score.name)
    lines = ((line.strip() for line in part.splitlines()) for part in parts)
    return " · ".join(" ".join(filter(None, each)) for each in lines)[:1_000]
