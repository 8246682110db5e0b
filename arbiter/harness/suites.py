"""Suites: cases, what judges them, and the run that makes a report of both."""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, get_args
from uuid import uuid4

from arbiter._values.exceptions import ExceptionNames
from arbiter._values.spelling import misspelt
from arbiter._values.states import is_whole
from arbiter._values.version import __version__
from arbiter.arbiter_os import ArbiterOS
from arbiter.errors import ConfigurationError, RegistrationError, nearest
from arbiter.evaluation import NodeEvaluator
from arbiter.harness.agent_baselines import baseline_if_measured, read_baseline
from arbiter.harness.agents import Agents, AgentsTarget
from arbiter.harness.baselines import Baseline
from arbiter.harness.cache import Answers, Cache, CacheMode
from arbiter.harness.cases import Case, Selection, checked_cases
from arbiter.harness.expectations import Expectations
from arbiter.harness.gate import GateSettings, covers
from arbiter.harness.identity import Identity, changes_between
from arbiter.harness.journal import (
    FOLDER,
    OTHER_FORM,
    Kept,
    Written,
    plain_fields,
    reading,
    run_folder,
    runs_of,
)
from arbiter.harness.judging import Judging
from arbiter.harness.kinds import made_of_entry, refuse_unused
from arbiter.harness.limits import Limits
from arbiter.harness.measures import Measure
from arbiter.harness.recordings import Recording
from arbiter.harness.reports.report import Report
from arbiter.harness.results import COMPLETED, EXPECT
from arbiter.harness.running import Session
from arbiter.harness.runs import Run
from arbiter.harness.scorers import NamedScorer, Scorers, scorers_of
from arbiter.harness.tapes import CachedTape, RecordedTape, Tape
from arbiter.harness.targets import GraphTarget, Target, target_of
from arbiter.harness.trajectories import chosen, names_in
from arbiter.models._asking import models_unasked

_log = logging.getLogger("arbiter.harness")

Mode: TypeAlias = Literal["live", "mock", "record", "synthetic"]
Progress: TypeAlias = Callable[[Session], None]
"""Called after each case × repeat, on the thread that ran it."""


class RunOptions(TypedDict, total=False):
    """The options of `Suite.prepare`, by name."""

    arbiter_os: ArbiterOS | None
    select: Selection | None
    mode: Mode
    baseline: Baseline | str | Path | None
    resume: str | None
    retry_errors: bool
    folder: str | Path | None
    recordings: str | Path | Recording
    cache: Answers | None
    ci: bool
    accept_changed: bool
    progress: Progress | None


_MOST_RUNS = 10_000_000
"""The most cases × repeats of a run, which are listed before it begins."""
_LOOKED_AT = 5
"""The runs among which one is sought that was compared with a baseline."""


class SuiteError(ConfigurationError):
    """All mistakes of a suite and its target, one line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(mistakes))


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases, and what judges them.

    `scorers` judge whole runs: functions of a `CaseRun` by name, or a list of functions and objects; a mapping is an
    entry as in a file, such as `{"name": "kind", "use": "judge", "rubric": "...", "judge": "main"}`. `models` are the
    chat models that such entries name. `evaluators` judge node runs: `NodeEvaluator`s, or the names of some that the
    `ArbiterOS` of the target has. `target` is what `run` measures unless it gets another: a graph, a builder, a
    function of the input, a function that returns a graph, or a mapping from case ids to outputs. `repeats` is how
    often each case runs, `votes` how often judges are asked each question (None: as often as each row asks). `gate`
    says which baseline a run is compared with, and what counts as a regression. With `cache` "judge", live runs take
    judgements of earlier runs from `.arbiter/cache.sqlite`, with "all" also the answers of a graph. `seed` chooses the
    messages that persona scorers judge.
    """

    name: str
    cases: Sequence[Case]
    _: KW_ONLY
    scorers: Scorers = ()
    evaluators: Sequence[NodeEvaluator | str] = ()
    target: Any = None
    repeats: int = 1
    votes: int | None = None
    models: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gate: GateSettings = field(default_factory=GateSettings)
    limits: Limits = field(default_factory=Limits)
    cache: CacheMode = "off"
    seed: int = 42

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(
                f"a suite has the name {name!r:.80}; expected a text, such as 'refunds'."
            )
        if not is_whole(self.repeats, least=1):
            raise ConfigurationError(f"repeats is {self.repeats!r:.80}; expected a whole number from 1.")
        if self.votes is not None and not is_whole(self.votes, least=1):
            raise ConfigurationError(f"votes is {self.votes!r:.80}; expected a whole number from 1, or None.")
        if self.cache not in get_args(CacheMode):
            raise ConfigurationError(f"cache is {self.cache!r:.80}; expected off, judge or all.")
        if not is_whole(self.seed, least=0):
            raise ConfigurationError(f"seed is {self.seed!r:.80}; expected a whole number from 0.")
        if not isinstance(self.limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits is {self.limits!r:.80}; expected Limits(concurrency=8, ...).")
        if not isinstance(self.gate, GateSettings):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"gate is {self.gate!r:.80}; expected GateSettings(baseline=..., ...).")
        object.__setattr__(self, "cases", checked_cases(self.cases))
        object.__setattr__(self, "evaluators", _evaluators(self.evaluators))
        if not isinstance(self.models, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"models is {self.models!r:.80}; expected chat models by name.")
        made = partial(made_of_entry, models=self.models)
        object.__setattr__(self, "scorers", scorers_of(self.scorers, made))
        refuse_unused(self.models, self.judges)
        self._refuse_same_names()

    @property
    def judges(self) -> tuple[NamedScorer, ...]:
        """The scorers, each under the name of its row."""
        return cast("tuple[NamedScorer, ...]", self.scorers)

    def _refuse_same_names(self) -> None:
        names = {each if isinstance(each, str) else each.name for each in self.evaluators}
        for scorer in self.judges:
            if scorer.name in names:
                raise ConfigurationError(
                    f"an evaluator and a scorer have the name {scorer.name!r}; each is a row of its own."
                )
            if scorer.name in (COMPLETED, EXPECT) or scorer.name.startswith("expect."):
                raise ConfigurationError(
                    f"a scorer has the name {scorer.name!r}, which is a row of its own already."
                )

    def run(self, target: Any = None, **options: Unpack[RunOptions]) -> Report:
        """Run the cases and judge them. The options are those of `prepare`.

        Ctrl-C stops: what runs gets 5 seconds, and the report has what is done. A loop over several suites asks
        `report.interrupted` before the next one.
        """
        return self.prepare(target, **options).run()

    async def arun(self, target: Any = None, **options: Unpack[RunOptions]) -> Report:
        """As `run`, on the running event loop."""
        return await self.prepare(target, **options).arun()

    def prepare(
        self,
        target: Any = None,
        *,
        arbiter_os: ArbiterOS | None = None,
        select: Selection | None = None,
        mode: Mode = "live",
        baseline: Baseline | str | Path | None = None,
        resume: str | None = None,
        retry_errors: bool = False,
        folder: str | Path | None = FOLDER,
        recordings: str | Path | Recording = "recordings",
        cache: Answers | None = None,
        ci: bool = False,
        accept_changed: bool = False,
        progress: Progress | None = None,
    ) -> Run:
        """Check all that is given, load the target, and return a run that can begin.

        `target` and `arbiter_os`: a bare graph is governed by that `ArbiterOS`, or by one of the run's own; a graph
        that is governed keeps its own. `select` chooses some of the cases. In the mode "record" all answers of a
        graph and of judges are kept in `recordings`; "mock" replays them, without a model and without running the
        graph, and raises `RecordingError` for what is missing or stale. Functions run in any mode. "synthetic" is for
        agents, who answer prompts if they have few messages. `cache` has the answers of earlier live runs, in place of
        `.arbiter/cache.sqlite`. `baseline` is compared with, in place of that of `gate`, whose file may be missing
        unless `ci` is set; `ci` and `accept_changed` are those of `RegressionGate`. The run leaves a journal and
        report.json in `folder` (None: no files). `resume` goes on with a run that was stopped or killed, by its id or
        "last"; with `retry_errors` it does again what failed.
        """
        with ExitStack() as undo:  # what a run that is refused has taken
            taped = self._recordings(mode, recordings)
            if taped is not None:
                undo.callback(taped.close)
            if retry_errors and resume is None:
                raise ConfigurationError("retry_errors is for a run that is resumed. Name it: resume='last'.")
            if resume is not None and folder is None:
                raise ConfigurationError("resume needs the folder of the run's journal; folder is None.")
            before = self._baseline(baseline, required=ci)
            chosen: Any = Selection() if select is None else select
            if not isinstance(chosen, Selection):
                raise ConfigurationError(f"select is {chosen!r:.80}; expected Selection(ids=[...]).")
            cases = chosen.of(self.cases)
            written = None
            if resume is not None and folder is not None:
                written = Written.read(run_folder(resume, Path(folder), suite=self.name))
            # What began without a cache measures anew to its end.
            if mode != "live" or "off" in (self.cache, "" if written is None else written.head.get("cache")):
                cache = None
            elif cache is None:
                cache = Cache()
                undo.callback(cache.close)
            judging = Judging(
                limits=self.limits,
                recordings=taped,
                cache=cache,
                votes=self.votes,
                limiters=getattr(self.target if target is None else target, "limiters", None),
            )
            with models_unasked("replay") if mode == "mock" else nullcontext():
                measured = self._target(target, arbiter_os, judging)
            if isinstance(measured, GraphTarget):
                undo.callback(measured.close)
            if isinstance(measured, AgentsTarget):
                measured = replace(measured, synthetic=mode == "synthetic")
                if mode != "mock":
                    measured.check()
            elif mode == "synthetic":
                raise ConfigurationError(
                    "the mode 'synthetic' is for agents that answer prompts; see target.agents."
                )
            scorers = [scorer.seeded(self.seed).asking(judging) for scorer in self.judges]
            if mistakes := list(self._mistakes(measured, judging, cases, is_cached=cache is not None)):
                raise SuiteError(mistakes)
            if mode != "mock":
                for remark in _ignored(measured, cases):
                    _log.warning("%s: %s", self.name, remark)
            if isinstance(measured, GraphTarget):
                judging.count(measured.queues)
            head = self._head(measured, cases, judging, mode)
            options: dict[str, Any] = {"ci": ci, "accept_changed": accept_changed}
            head |= {"mode": mode, "options": options, "left_out": len(self.cases) - len(cases)}
            head["cache"] = "off" if cache is None else self.cache
            if isinstance(baseline, str | Path):
                head["baseline"] = str(baseline)  # in place of that of the gate, wherever the report is shown
            if written is not None:
                with reading(written.folder):
                    self._refuse_other(written, head, retry_errors)
            if before is not None and folder is not None:
                head["captured"] = before.captured_at.isoformat()
                mine = None if written is None else written.folder.name
                others = (run for run in runs_of(self.name, Path(folder)) if run.name != mine)
                options["moved"] = _has_moved(head["captured"], others)
            if taped is not None:
                taped.rows_in_answers = frozenset(each.name for each in measured.evaluators)
            tape = _tape(taped, cache if self.cache == "all" else None, measured, judging)
            if taped is not None and (tape is not None or judging.judges):
                taped.refuse_none()
            elif mode == "record":
                is_function = measured.kind == "function"
                remedy = " Keep the answers of the function, too: target.record: true." if is_function else ""
                _log.warning(
                    "%s: nothing is recorded, and a replay needs no recordings: it measures %s, and no row asks a "
                    "judge.%s",
                    self.name,
                    measured.name,
                    remedy,
                )
            session = Session(
                _run_id() if written is None else written.folder.name,
                cases,
                measured,
                scorers,
                repeats=self.repeats,
                limits=self.limits,
                progress=progress,
                judging=judging,
                tape=tape,
                kept={} if written is None else _kept(written, retry_errors, mode, tape, judging),
                number=1 if written is None else written.sessions + 1,
            )
            if tape is not None:
                tape.check(session.todo)
            undo.pop_all()
        return Run(
            session=session,
            head=head,
            gate=self.gate,
            baseline=before,
            folder=None if folder is None else Path(folder),
            resumed=written,
            is_whole=len(cases) == len(self.cases),
        )

    def _mistakes(
        self, target: Target, judging: Judging, cases: Sequence[Case], *, is_cached: bool = True
    ) -> Iterator[str]:
        """Sentences about what a run would refuse."""
        yield from self._useless(target, judging, is_cached=is_cached)
        yield from target.mistakes(cases)
        yield from self._unknown_rows(target)
        unmet = Expectations().mistakes(cases, target.nodes(), target.checkers(), kind=target.kind)
        yield from (f"{case.source}: {said}" if case.source else said for case, said in unmet)
        runs = sum(self.repeats if case.repeats is None else case.repeats for case in cases)
        if runs > _MOST_RUNS:
            yield f"cases × repeats are {runs:,}; a run has at most {_MOST_RUNS:,}. Lower repeats."

    def _useless(self, target: Target, judging: Judging, *, is_cached: bool) -> Iterator[str]:
        """A cache, and votes, that would have no effect."""
        if self.cache == "judge" and not judging.judges:
            yield "cache is 'judge', and no row of the suite asks a judge. Leave cache out."
        if is_cached and self.cache == "all" and not target.is_recorded:
            yield (
                f"cache is 'all', and the target is {target.name}: only the answers of graphs are kept, because "
                "nothing shows when those of others are outdated. Use 'judge', or say target.record: true."
            )
        if self.votes is None or self.votes == 1:
            return
        if not judging.judges:
            yield f"votes is {self.votes}, and no row of the suite asks a judge. Leave votes out."
        for row, judge in judging.judges.items():
            if judge.temperature == 0:
                yield (
                    f"votes is {self.votes}, and the judge of {row!r} has the temperature 0, so it gives one answer "
                    f"{self.votes} times. Leave votes out, or give the judge another temperature."
                )

    def _unknown_rows(self, target: Target) -> Iterator[str]:
        """Gated rows that no score can be in. A scorer that returns several scores has a row for each."""
        evaluators = [each.name for each in target.evaluators]
        known = [*evaluators, *(each.name for each in self.judges), EXPECT, COMPLETED]
        for name in self.gate.rows or ():
            if not any(covers(one, name) for one in known):
                yield f"gate: rows: the suite has no row {name!r}. Rows: {', '.join(known)}.{nearest(name, known)}"

    def _recordings(self, mode: Mode, given: str | Path | Recording) -> Recording | None:
        """The recordings of the suite; None for a live run."""
        if mode not in get_args(Mode):
            raise ConfigurationError(f"mode is {mode!r}; expected one of {', '.join(get_args(Mode))}.")
        if mode in ("live", "synthetic"):
            return None
        if isinstance(given, Recording):
            return given
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ConfigurationError(
                f"the suite has the name {self.name!r:.80}, which cannot be that of the folder of its recordings; "
                "expected letters, digits and _ . -, as in 'refunds'."
            )
        return Recording(Path(given) / self.name, "replay" if mode == "mock" else "record")

    def _baseline(self, given: Baseline | str | Path | None, *, required: bool) -> Baseline | None:
        """The baseline with which the run is compared; None if that of the gate is not measured yet, unless it is
        `required`. Raises `ConfigurationError` for that of another suite."""
        named = self.gate.baseline if given is None else given
        read = read_baseline if required or given is not None else baseline_if_measured
        found: Any = read(named, self.cases) if isinstance(named, str | Path) else named
        if found is None:
            return None
        if not isinstance(found, Baseline):
            raise ConfigurationError(
                f"baseline is {found!r:.80}; expected the path of a file, or a Baseline."
            )
        try:
            found.refuse_other(self.name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{named}: {error}" if found is not named else str(error)) from None
        return found

    def _head(self, target: Target, cases: Sequence[Case], judging: Judging, mode: Mode) -> dict[str, Any]:
        """The suite as it was read, and what its numbers belong to."""
        measures = [
            *(Measure(each.name, each.scale, str(each.version)) for each in target.evaluators),
            *(Measure(each.name, each.scale, each.seeded(self.seed).version) for each in self.judges),
        ]
        identity = Identity(
            suite=self.name,
            mode="synthetic" if mode == "synthetic" else "live",
            cases={case.id: case.digest for case in cases},
            target=target.version(),
            rows={measure.name: measure.version for measure in measures},
            judges={**judging.judges, **judging.others},
            repeats=self.repeats,
            votes=self.votes or 1,
            seed=self.seed,
            arbiter=__version__,
            python=platform.python_version(),
        )
        return {
            "suite": self.name,
            "target": target.name,
            "identity": identity.to_dict(),
            "parts": dict(target.parts()),
            "measures": [measure.to_dict() for measure in measures],
            "gate": plain_fields(self.gate),
        }

    def _refuse_other(self, written: Written, head: Mapping[str, Any], retry_errors: bool) -> None:
        """Raise `ConfigurationError` if a run that is to go on is finished, or of something else."""
        run_id = written.folder.name
        if written.end is not None and written.end["stopped"] is None and not retry_errors:
            raise ConfigurationError(f"the run {run_id} is finished. Start a new one, or retry its errors.")
        changed = Identity.of(head["identity"]).changes(Identity.of(written.head["identity"]))
        now, then = head["mode"], written.head["mode"]
        if now != then and "mode" not in (part.split()[0] for part in changed):
            # A replay has the identity of a live run, because its numbers are those of one.
            changed.append(f"mode changed from {then!r} to {now!r}")
        if changed:
            parts = changes_between(written.head.get("parts", {}), head["parts"])
            if "target changed" in changed and parts:
                at = changed.index("target changed")
                changed[at : at + 1] = [f"{name} {how}" for name, how in parts.items()]
            raise ConfigurationError(f"the run {run_id} cannot go on: {'; '.join(changed)}. Start a new one.")

    def lint(self) -> list[str]:
        """Load the target and check all cases against it, without running anything. Returns remarks.

        Raises `ConfigurationError` for what a run would refuse, with the remarks.
        """
        judging = Judging(limits=self.limits)
        target = self._target(None, None, judging)
        for scorer in self.judges:
            scorer.asking(judging)
        mistakes, remarks = [*self._mistakes(target, judging, self.cases)], [*self._remarks(target, judging)]
        if mistakes:
            raise SuiteError([*mistakes, *remarks])
        return remarks

    def _remarks(self, target: Target, judging: Judging) -> Iterator[str]:
        unnamed = sum(not case.is_named for case in self.cases)
        if unnamed:
            yield f"{unnamed} of {len(self.cases)} cases have no id; a changed input is then a new case"
        nodes = target.nodes()
        known = set(nodes or ())
        # Without their parents. A name of its own may have a "/", too.
        own = {
            name if outer in known else node for node in known for outer, _, name in [node.rpartition("/")]
        }
        for evaluator in target.evaluators:
            for node in evaluator.target_nodes or ():
                if nodes is not None and node not in own:
                    yield f"the evaluator {evaluator.name!r} is for the node {node!r}, which the graph does not have"
            yield from _unread(evaluator, target)
        if isinstance(target, GraphTarget) and target.shares_store:
            yield (
                "the graph has a store that all cases share, so a case finds what others left there. Let a function "
                "make the graph and its store, and set target.fresh: case"
            )
        yield from _ignored(target, self.cases)
        yield from self._not_yet(nodes)
        yield from self._misspelt(target.tools())
        for scorer in self.judges:
            if getattr(scorer.given, "reads_expected", False) and not any(
                case.expected is not None for case in self.cases
            ):
                yield f"the scorer {scorer.name!r} judges nothing: it reads `expected`, which no case has"
        for gate, model in target.gates().items():
            for row, judge in judging.judges.items():
                if judge.model == model:
                    yield f"the judge of {row}, {model}, is also that of the gate {gate!r}, which tunes texts to it"
        if not self.judges and not target.evaluators and not any(case.assertions for case in self.cases):
            yield "nothing judges its cases: it has no scorers, no evaluators and no `expect`"

    def _not_yet(self, nodes: Sequence[str] | None) -> Iterator[str]:
        """Remarks about nodes that `expect` allows to run, and that the graph has not."""
        for case in self.cases if nodes is not None else ():
            if (given := case.assertions.get("nodes")) is None:
                continue
            how, expected = chosen(given)
            for name in names_in(expected) if how == "subset" else ():
                if name not in (nodes or ()):
                    yield f"the case {case.id!r} allows the node {name!r}, which the graph has not"

    def _misspelt(self, tools: Sequence[str]) -> Iterator[str]:
        """Remarks about tools and exceptions of `expect` that are nearly those of the target, or of Python."""
        for case in self.cases:
            if (given := case.assertions.get("tools")) is not None:
                names = list(names_in(chosen(given)[1]))
                for name in names:
                    meant = None if name in tools else misspelt(name, tools)
                    # A case that names both tools intends both.
                    if meant is not None and meant not in names:
                        yield (
                            f"the case {case.id!r} expects the tool {name!r}, which the graph has not. "
                            f"Did you mean {meant!r}?"
                        )
            for name, meant in ExceptionNames({case.assertions.get("raises", "Exception")}).wrong():
                yield f"the case {case.id!r} expects {name!r}, but no exception has that name. Did you mean {meant!r}?"

    def _target(self, given: Any, arbiter_os: ArbiterOS | None, judging: Judging) -> Target:
        target = self.target if given is None else given
        if target is None:
            raise ConfigurationError(f"the suite {self.name!r} has no target. Pass one: suite.run(graph).")
        if isinstance(target, Agents):
            if self.evaluators:
                raise ConfigurationError("evaluators judge node runs, and the target is agents. Use scorers.")
            answering = {each.id: target_of(each.graph) for each in target.agents if each.graph is not None}
            return AgentsTarget(given=target, answering=answering)
        evaluators = [each if isinstance(each, str) else judging.evaluator(each) for each in self.evaluators]
        return target_of(target, arbiter_os=arbiter_os, evaluators=evaluators)


def _run_id() -> str:
    """A new id. Ids sort in the order of time, so that "last" is the last one."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond:05x}{uuid4().hex[:3]}"


def _has_moved(captured: str, runs: Iterator[Path]) -> bool:
    """True if the newest one of these runs that was compared with a baseline passed, and that was another one."""
    for run in islice(runs, _LOOKED_AT):
        try:
            before = json.loads((run / "run.json").read_text(encoding="utf-8")).get("captured")
            if before is None:
                continue
            if before == captured:
                return False
            report = json.loads((run / "report.json").read_text(encoding="utf-8"))
            return bool(report["comparison"]["exit_code"] == 0)
        except (OSError, *OTHER_FORM):  # it was killed
            return False
    return False


def _ignored(target: Target, cases: Sequence[Case]) -> Iterator[str]:
    """Remarks about keys of inputs that the graph does not read."""
    if isinstance(target, GraphTarget):
        for key, count, why in target.ignored_keys(case.input for case in cases):
            some = "1 case has" if count == 1 else f"{count:,} cases have"
            yield f"{some} {key!r} in the input, {why}"


def _unread(evaluator: NodeEvaluator, target: Target) -> Iterator[str]:
    """A remark about an evaluator that reads a key which no node can write."""
    key: Any = getattr(evaluator, "key", None)
    known = target.state_keys() if isinstance(target, GraphTarget) else None
    if known and isinstance(key, str) and key not in known:
        yield (
            f"the evaluator {evaluator.name!r} reads {key!r}, which is not a key of the graph's state. "
            f"Keys: {', '.join(known)}.{nearest(key, known)} Correct its key."
        )


def _tape(
    recordings: Recording | None, cache: Answers | None, target: Target, judging: Judging
) -> Tape | None:
    """The recorded or cached answers of a target; None for one that runs in any mode."""
    if (recordings is None and cache is None) or not target.is_recorded:
        return None
    parts = {**target.parts(), **{f"row {each.name}": str(each.version) for each in target.evaluators}}
    for each in target.evaluators:
        parts |= judging.parts_of(each)
    if recordings is not None:
        details = target.details() if isinstance(target, GraphTarget) else {}
        for each in target.evaluators:
            details |= judging.details_of(each)
        return RecordedTape(recordings, parts, details)
    return None if cache is None else CachedTape(cache, parts)


def _kept(
    written: Written, retry_errors: bool, mode: Mode, tape: Tape | None, judging: Judging
) -> Mapping[tuple[str, int], Kept]:
    kept = written.kept
    if retry_errors:
        kept = {place: each.without_errors() for place, each in kept.items()}
    if mode != "mock" or (tape is None and not judging.judges):
        return kept
    # A replay asks its recordings again, which costs nothing: it has to know those that are missing, and not needed.
    if tape is not None:
        return {}
    return {
        place: Kept(each.answer, {by: its for by, its in each.scores.items() if by not in judging.judges})
        for place, each in kept.items()
    }


def _evaluators(given: Any) -> tuple[NodeEvaluator | str, ...]:
    are_several = hasattr(given, "__iter__") and not isinstance(given, str | NodeEvaluator)
    found: tuple[Any, ...] = tuple(cast(Any, given)) if are_several else (given,)
    names: set[str] = set()
    for each in found:
        if not isinstance(each, str | NodeEvaluator):
            raise RegistrationError(
                f"evaluators has {each!r:.80}; expected a NodeEvaluator or the name of one. Functions of a whole run "
                "are scorers."
            )
        name = each if isinstance(each, str) else each.name
        if name in names:
            raise ConfigurationError(f"two evaluators have the name {name!r}. Give each a name of its own.")
        names.add(name)
    return found
