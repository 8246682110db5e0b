"""The work of a worker: some cases, with a session of its own that sends all it has to the desk."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, ClassVar

from arbiter._objects import import_from_here
from arbiter.errors import ConfigurationError
from arbiter.harness.cases import Selection
from arbiter.harness.distributed.desk import DeskAnswers, DeskPlaces, Line
from arbiter.harness.gate import GateSettings
from arbiter.harness.identity import Identity
from arbiter.harness.journal import Kept, NodeRuns, judgement_line
from arbiter.harness.limits import Limits
from arbiter.harness.local import drive, drive_on_threads
from arbiter.harness.recordings import Asked
from arbiter.harness.results import CaseResult
from arbiter.harness.running import Session
from arbiter.harness.scores import Score
from arbiter.harness.suites import Mode, Suite
from arbiter.harness.usage import Spent, Usage
from arbiter.models import JudgeReply

_LATEST = 0.2
"""Seconds that lines may wait for others, if they cost nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """The suite of a run, for all its workers: the function that makes it in the folder `project`, and its
    identity."""

    run_id: str
    make: Callable[[], Suite]
    project: str
    mode: Mode
    select: Selection
    limits: Limits
    identity: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The places of some cases in the order of the suite, and what earlier workers have sent of them."""

    id: str
    places: Sequence[int]
    threads: str
    """The beginning of the LangGraph threads of its cases: others than those of a worker that died."""
    kept: Mapping[tuple[str, int], Kept]
    judgements: Mapping[tuple[str, str], Mapping[str, Any]]
    """By their key and the case."""
    seconds: float | None
    """The time that is left for the run."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The session of this process, and the event loop on which all its tasks run: connections of models belong to
    the loop that opened them."""

    session: Session
    answers: DeskAnswers
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)


_places: dict[str, _Place] = {}
"""That of this process, by run."""


def work(errand: Errand, task: Task, desk: Any) -> int:
    """Run and judge the cases. Returns the number of calls that were left behind."""
    place = _place(errand)
    session, place.answers.desk = place.session, desk
    session.threads = task.threads
    wire = _Wire(desk, is_alone=len(task.places) == 1)
    judging = session.judging
    judging.kept, judging.known = wire.judgement, task.judgements
    judging.usage = Usage()
    judging.limiters.share(lambda key: DeskPlaces(desk, task.id, key, judging.limiters.most))
    # The driver keeps the budget and the clock of the run.
    session.limits = replace(
        errand.limits,
        concurrency=1,
        tokens=None,
        usd=None,
        calls=None,
        seconds=None,
        run_timeout=task.seconds,
    )
    session.write_to(wire)
    SentRepository.wire = wire
    session.take(task.places, task.kept)
    session.begin()
    if session.target.is_async:
        place.loop.run(drive(session))
    else:
        drive_on_threads(session)
    wire.flush()
    return session.left_behind


def _place(errand: Errand) -> _Place:
    """That of the run in this process, made once. Raises `ConfigurationError` if the files differ."""
    if errand.run_id not in _places:
        try:
            os.chdir(errand.project)
        except OSError as error:
            raise ConfigurationError(
                f"the worker has no folder {errand.project!r}: {error.strerror or error}. All machines need the "
                "project in the same place."
            ) from None
        import_from_here()
        suite = replace(errand.make(), gate=GateSettings(), limits=errand.limits)
        answers = DeskAnswers()
        run = suite.prepare(select=errand.select, mode=errand.mode, folder=None, cache=answers)
        here, there = Identity.of(run.head["identity"]), Identity.of(errand.identity)
        if changed := here.changes(there):
            raise ConfigurationError(f"the worker's suite differs from the driver's: {'; '.join(changed)}.")
        run.session.run_id = errand.run_id
        while _places:
            _places.popitem()[1].loop.close()
        _places[errand.run_id] = _Place(run.session, answers)
    return _places[errand.run_id]


class SentRepository:
    """The repository of gates and interventions in a worker: its records are sent to the driver, which stores them."""

    wire: ClassVar[_Wire]
    """That of the task that runs in this process."""

    def log_correction(self, action: Any, persona: Any = None) -> None:
        self._send("log_correction", action, persona)

    def log_intervention(self, evaluated: Any, personas: Sequence[Any] = ()) -> None:
        self._send("log_intervention", evaluated, list(personas))

    def _send(self, name: str, *record: Any) -> None:
        # What cannot be pickled is an error of the record here, and none of the conversation.
        self.wire.record(name, pickle.dumps(record))


class _Wire:
    """Sends the facts of a run to the desk, and waits until it has those that cost something."""

    def __init__(self, desk: Any, *, is_alone: bool) -> None:
        self._desk = desk
        self._is_alone = is_alone
        self._lines: list[Line] = []
        self._replayed: list[Line] = []
        """The amounts of replayed answers, until their case is done: if this process dies, another one replays them."""
        self._sent = monotonic()
        self._lock = threading.Lock()

    def answer(self, line: Mapping[str, Any], nodes: NodeRuns | None = None) -> None:
        # The answers of quick functions are sent together.
        self._add(("answer", (line, nodes)), at_once=self._is_alone or "usage" in line)

    def scores(self, case_id: str, repeat: int, by: str, scores: Sequence[Score]) -> None:
        self._add(("scores", (case_id, repeat, by, tuple(scores))))

    def judgement(self, asked: Asked, reply: JudgeReply) -> None:
        self._add(("judgement", (judgement_line(asked, reply),)), at_once=True)

    def spent(self, case_id: str, repeat: int, purse: str, model: str, spent: Spent, running: int) -> None:
        line = ("spent", (case_id, repeat, purse, model, spent, running))
        if spent.replayed_calls:
            self._replayed.append(line)
        else:
            self._add(line, at_once=True)

    def case(self, result: CaseResult, last: tuple[str, Sequence[Score]] | None = None) -> None:
        if last is not None:
            self.scores(result.case_id, result.repeat, *last)
        while self._replayed:
            self._add(self._replayed.pop(0))
        self._add(("case", (result.case_id, result.repeat, result.as_expected)))

    def record(self, name: str, record: bytes) -> None:
        self._add(("record", (name, record)))

    def flush(self) -> None:
        with self._lock:
            self._send()

    def _add(self, line: Line, *, at_once: bool = False) -> None:
        with self._lock:
            self._lines.append(line)
            if at_once or monotonic() - self._sent > _LATEST:
                self._send()

    def _send(self) -> None:
        import ray

        lines, self._lines, self._sent = self._lines, [], monotonic()
        if lines:
            ray.get(self._desk.put.remote(lines))
