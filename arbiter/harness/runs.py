"""Runs: a suite with its target, checked and ready, and the execution that makes a report of it.

    Suite.prepare ─▶ Run ─▶ run() or arun() ─▶ Report, and the files of the run

Everything that can be wrong with what is given is wrong in `prepare`, so that several suites are checked before
the first one runs.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from arbiter._threads.deadlines import running_loop, start
from arbiter._values.files import write_whole
from arbiter.errors import ArbiterWarning, callers
from arbiter.harness.baselines import Baseline
from arbiter.harness.gate import GateSettings
from arbiter.harness.journal import Journal, Written
from arbiter.harness.local import drive, drive_on_threads, drive_to_the_end
from arbiter.harness.recordings import Place
from arbiter.harness.reports.report import Report, of_head
from arbiter.harness.running import Session
from arbiter.harness.targets import GraphTarget
from arbiter.models import RecordingError


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that can begin. It runs once."""

    session: Session
    head: Mapping[str, Any]
    """What run.json has beside the cases: the suite as it was read, its identity and options."""
    gate: GateSettings
    baseline: Baseline | None
    folder: Path | None
    """The folder of the journals; None for a run that leaves none."""
    resumed: Written | None = None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=perf_counter)
    journal: Journal | None = None
    is_whole: bool = True
    """True unless some cases of the suite were selected."""
    driver: Callable[[Session, Mapping[str, Any]], None] | None = None
    """Runs the cases of a session with this identity in other processes; None for this one."""
    pressed_late: bool = False
    """True if Ctrl-C came when the cases were done. The run ends as it would have, but no other run should begin. The
    report has it, too."""

    def run(self) -> Report:
        """Run the cases and judge them, on threads or on an event loop of its own. Ctrl-C ends it in good order."""
        session, is_open = self.session, False
        try:
            with _uninterrupted():
                self._open()
                is_open = True
            if self.driver is not None:
                self.driver(session, self.head["identity"])
            elif not session.target.is_async:
                drive_on_threads(session)
            elif running_loop() is not None:
                start(lambda: drive_to_the_end(session), name="arbiter-eval").result()
            else:
                drive_to_the_end(session)
        except BaseException as error:
            session.stop("interrupted")  # what broke off is not finished
            if not (is_open and isinstance(error, KeyboardInterrupt)):
                raise
        finally:
            # The cases are done. What is left takes moments, and without it all that they cost would be lost.
            with self._shielded():
                self._close()
        with self._shielded():
            report = self._report()
        return replace(report, pressed_late=True) if self.pressed_late else report

    def _shielded(self) -> AbstractContextManager[None]:
        """Inside, Ctrl-C waits, unless the program handles it itself, or ignores it."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return nullcontext()
        return handling(signal.SIGINT, self._pressed_late)

    def _pressed_late(self, number: int, frame: Any) -> None:
        if self.pressed_late:  # a second time: it takes too long
            raise KeyboardInterrupt
        self.pressed_late = True

    async def arun(self) -> Report:
        """As `run`, on the running event loop."""
        try:
            self._open()
            if (driver := self.driver) is not None:
                await asyncio.wrap_future(start(lambda: driver(self.session, self.head["identity"])))
            else:
                await drive(self.session)
        except BaseException:
            self.session.stop("interrupted")
            raise
        finally:
            self._close()
        return self._report()

    def _open(self) -> None:
        """Open the journal, and give it to the session and its judges."""
        self.began, self.clock = datetime.now(UTC), perf_counter()
        session, written = self.session, self.resumed
        session.begin()
        if written is not None:
            self.journal = Journal(written.folder, seq=written.seq, whole=written.whole)
            self.journal.session(self.head, session.total)
            self.journal.describe(self.head, session.cases)
            session.judging.known = written.judgements
            session.recount(written.bought)
        elif self.folder is not None:
            self.journal = Journal.begin(self.folder, session.run_id, self.head, session.cases, session.total)
        if (journal := self.journal) is not None:
            session.write_to(journal)
            session.judging.kept = journal.judgement

    def _close(self) -> None:
        session = self.session
        with suppress(OSError):  # a full disk has been raised already
            session.judging.usage.give_up()
        session.judging.usage.kept = None
        try:
            self.release()
        finally:
            if self.journal is not None:
                self._end(self.journal)

    def _end(self, journal: Journal) -> None:
        """Write the last line of the journal, and close it."""
        session = self.session
        with suppress(OSError):
            end = {
                "stopped": session.stopped,
                "reached": session.reached or self._lacks,
                "left_behind": session.left_behind,
                "done": len(session.results),
                **self._evidence(),
            }
            journal.write("end", {name: value for name, value in end.items() if value != ()})
        with suppress(OSError):
            journal.close()

    @property
    def _lacks(self) -> str:
        """The recordings for which a replay is refused; "" if there are none. No report of the run is a pass then."""
        try:
            self._check_recordings()
        except RecordingError as error:
            return str(error).partition(":\n")[0]
        return ""

    def _check_recordings(self) -> None:
        recordings = self.session.judging.recordings
        if recordings is not None and recordings.mode == "replay":
            recordings.check(strict=self.gate.strict and self._is_complete)

    @property
    def _is_complete(self) -> bool:
        return self.is_whole and self.session.stopped is None

    def _evidence(self) -> dict[str, Any]:
        """The recordings of a replay that are outdated, those that it has not used, and the days of the others."""
        recordings = self.session.judging.recordings
        if recordings is None or recordings.mode != "replay":
            return {}
        unused = recordings.unused if self._is_complete else ()
        return {
            "outdated": tuple(sorted(recordings.outdated)),
            "unused": tuple(unused),
            "recorded": tuple(sorted(recordings.dates)),
        }

    def release(self) -> None:
        """Take the evaluators of the suite from the user's `ArbiterOS`, and close cache and recordings. A run that
        does not begin needs it, too."""
        if isinstance(self.session.target, GraphTarget):
            self.session.target.close()
        if (cache := self.session.judging.cache) is not None:
            cache.close()
        if (recordings := self.session.judging.recordings) is not None:
            recordings.failed = {
                Place(result.case_id, result.repeat)
                for result in self.session.results.values()
                if result.status in ("failed", "timeout", "lost") and not result.as_expected
            }
            recordings.close(is_whole=self._is_complete)

    def _report(self) -> Report:
        """The report, which is also written beside the journal.

        Raises `RecordingError` for questions that had no valid recording.
        """
        session = self.session
        if len(session.results) < session.total:
            session.stop("interrupted")  # also if no limit says why: cases without a result must not pass
        unfinished = session.unfinished()  # before the cases that were skipped count as results
        self._check_recordings()
        report = Report(
            **of_head({**self.head, "run_id": session.run_id}),
            cases=session.cases,
            results=tuple(session.finished()),
            baseline=self.baseline,
            gate=self.gate,
            stopped=session.stopped,
            reached=session.reached,
            left_behind=session.left_behind,
            unfinished=tuple(unfinished),
            sessions=1 if self.resumed is None else self.resumed.sessions + 1,
            began=self.began,
            seconds=perf_counter() - self.clock,
            **self._evidence(),
        )
        self._warn_of_unrecorded()
        if self.journal is not None:
            place = self.journal.folder / "report.json"
            try:
                write_whole(place, report.to_json())
            except OSError as error:  # all is done, and the journal has it
                warnings.warn(
                    f"{place} cannot be written: {error.strerror or error}. Write it where there is room: "
                    f"arbiter eval report {session.run_id} --out FILE.",
                    ArbiterWarning,
                    stacklevel=callers(),
                )
        return report

    def _warn_of_unrecorded(self) -> None:
        recordings, target = self.session.judging.recordings, self.session.target
        late = [result.case_id for result in self.session.results.values() if result.status == "timeout"]
        if late and recordings is not None and recordings.mode == "record" and target.is_recorded:
            warnings.warn(
                f"timeouts are not recorded, and a replay refuses to run without the answers of "
                f"{', '.join(dict.fromkeys(late))}. Raise limits.case_timeout, and record again.",
                ArbiterWarning,
                stacklevel=callers(),
            )


@contextmanager
def handling(number: int, handler: Callable[[int, Any], None]) -> Generator[None]:
    """Inside, `handler` takes that signal, if this is the first thread of the process: no other gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Inside, Ctrl-C waits: a run that has files of its own also gets its report."""
    pressed: list[int] = []
    with handling(signal.SIGINT, lambda number, frame: pressed.append(number)):
        yield
    if pressed:
        signal.raise_signal(signal.SIGINT)
