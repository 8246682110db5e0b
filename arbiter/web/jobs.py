"""Work that a page starts and then watches: one job of a kind at a time, the newest of them kept."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from arbiter._threads.deadlines import start
from arbiter.errors import ArbiterError, describe

KEPT = 10
"""The jobs of a kind that can be looked at again."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One piece of work. `result` is there when it is done, and `problem` if it failed."""

    id: str
    about: str
    by: str
    started: datetime
    done: int = 0
    """How many entries or node runs it has read so far."""
    ended: datetime | None = None
    result: Any = None
    problem: str | None = None

    @property
    def seconds(self) -> float:
        return ((self.ended or datetime.now(UTC)) - self.started).total_seconds()


@dataclass(slots=True)
class Jobs:
    """The jobs of one kind. Safe to use from several threads."""

    _jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, work: Callable[[Callable[[int], None]], Any], *, about: str, by: str) -> Job:
        """Start the work, or return the job that is running: there is one at a time.

        The work is called on a thread of its own with a function that takes how much is done.
        """
        with self._lock:
            running = next((job for job in self._jobs.values() if job.ended is None), None)
            if running is not None:
                return running
            job = Job(id=secrets.token_hex(8), about=about, by=by, started=datetime.now(UTC))
            self._jobs[job.id] = job
            for old in list(self._jobs)[:-KEPT]:
                del self._jobs[old]

        def progress(done: int) -> None:
            job.done = done

        def run() -> None:
            try:
                job.result = work(progress)
            except ArbiterError as error:
                job.problem = str(error)
            except BaseException as error:
                # A changed ledger may raise anything, and a user's module may call sys.exit.
                job.problem = describe(error)
            job.ended = datetime.now(UTC)

        start(run, name="arbiter-viewer-job")
        return job

    def find(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def newest(self) -> list[Job]:
        """The jobs that are kept, newest first."""
        return [*self._jobs.values()][::-1]
