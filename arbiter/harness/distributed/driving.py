"""The driver: submits cases to workers, and writes what they send."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any
from uuid import uuid4

from arbiter.errors import ArbiterError, ConfigurationError
from arbiter.harness.cases import Selection
from arbiter.harness.distributed.desk import Desk, Line
from arbiter.harness.distributed.working import Errand, Task, work
from arbiter.harness.journal import Journal, Kept, NodeRuns, answer_to_dict
from arbiter.harness.results import CaseRun
from arbiter.harness.running import GRACE, Session
from arbiter.harness.runs import handling
from arbiter.harness.suites import Mode, Suite
from arbiter.harness.usage import Spent, purse_of

_log = logging.getLogger("arbiter.harness")
_ANSWER = 10.0
"""Seconds in which a cluster has to answer."""
_SETTINGS = b"\x04"
"""The type of the frame with which both sides of an HTTP/2 connection begin."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + _SETTINGS + b"\x00" * 5
_LOOK = 0.05
"""Seconds between two looks for lines."""
_STRIKES = 2
"""A case whose workers died so often is lost."""
_CHUNK = 200
_QUICK = 0.005
"""Seconds. A function that takes less gets `_CHUNK` cases a task, because a task costs some milliseconds."""
_SAMPLE = 20


def on_ray(
    address: str,
    make: Callable[[], Suite],
    *,
    select: Selection | None = None,
    mode: Mode = "live",
    repository: Any = None,
) -> Callable[[Session, Mapping[str, Any]], None]:
    """A driver of a session on a Ray cluster, for `Run.driver`.

    `address` is "auto" (the cluster of this process, of RAY_ADDRESS or of this machine, else one that is started
    here for the run), "host:port" or "ray://host:port". `make` is sent to each worker, and makes the suite there: all
    machines need the files that it reads in the same place. `repository` gets the records of each `SentRepository` in
    that suite. Raises `ConfigurationError` if Ray is not installed or
    the cluster does not answer in 10 seconds.
    """
    ray = _imported()
    _probe(address)

    def driver(session: Session, identity: Mapping[str, Any]) -> None:
        errand = Errand(
            run_id=session.run_id,
            make=make,
            project=str(Path.cwd()),
            mode=mode,
            select=select or Selection(),
            limits=session.limits,
            identity=identity,
        )
        with _interrupts() as interrupts, _connected(ray, address):
            _Crew(ray, session, errand, interrupts, repository).run()

    return driver


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigurationError("--ray needs the package ray. Install arbiteros[ray].") from error


def _probe(address: str) -> None:
    """Raise `ConfigurationError` if no cluster answers at the address."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(f"--ray is {address!r}; expected auto, HOST:PORT or ray://HOST:PORT.")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER) as connection:
            _greet(connection)
    except OSError as error:
        raise ConfigurationError(
            f"no Ray cluster answers at {address!r}: {error.strerror or error}. Start one with `ray start --head`, or "
            "use --ray auto."
        ) from None


def _greet(connection: socket.socket) -> None:
    """Raise `OSError` if the other side does not speak gRPC as all servers of Ray do: `ray.init` would wait for half a
    minute and more. With TLS only the connection is tried."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("0", "false"):
        return
    connection.sendall(_HELLO)
    answer = connection.recv(9)
    if answer[3:4] != _SETTINGS:
        raise OSError("the server there is not Ray, whose default port is 6379")


@contextmanager
def _interrupts() -> Generator[Sequence[int]]:
    """Inside, Ctrl-C is noted in the list, and the second one raised: an exception between two lines of a worker would
    lose one of them."""
    found: list[int] = []

    def interrupted(number: int, frame: Any) -> None:
        found.append(number)
        if len(found) > 1:
            raise KeyboardInterrupt

    with handling(signal.SIGINT, interrupted):
        yield found


@contextmanager
def _connected(ray: Any, address: str) -> Generator[None]:
    """Connect to the cluster, unless this process is connected already."""
    if ray.is_initialized():
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    terminated = signal.getsignal(signal.SIGTERM)
    where: dict[str, Any] = {"include_dashboard": False} if address == "auto" else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"Ray cannot be used at {address!r}: {str(error).rstrip('.')}. A cluster with tokens needs "
            "RAY_AUTH_MODE=token and its token in RAY_AUTH_TOKEN."
        ) from None
    if is_main:
        signal.signal(signal.SIGTERM, terminated)  # Ray has set its own, which ends the process at once
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(slots=True)
class _Known:
    """The facts of a case that workers have sent."""

    kept: Kept = field(default_factory=Kept)
    judgements: dict[tuple[str, str], Mapping[str, Any]] = field(
        default_factory=dict[tuple[str, str], Mapping[str, Any]]
    )


class _Crew:
    """The tasks of a run."""

    def __init__(
        self, ray: Any, session: Session, errand: Errand, interrupts: Sequence[int], repository: Any
    ) -> None:
        self.ray = ray
        self.repository = repository
        self.interrupts = interrupts
        self.session = session
        self.desk = (
            ray.remote(Desk)
            .options(num_cpus=0, name=f"arbiter-{errand.run_id}")
            .remote(session.judging.limiters.most)
        )
        self.errand = ray.put(errand)
        self.work = ray.remote(max_retries=0)(work)
        self.running: dict[Any, Task] = {}
        self.again: deque[int] = deque()
        """Places whose worker has died. They run alone, so that it shows which of them kills."""
        self.strikes: Counter[int] = Counter()
        self.places = {(case.id, repeat): at for at, (case, repeat) in enumerate(session.todo)}
        self.known = {place: _Known(replace(kept)) for place, kept in session.kept.items()}
        for line in session.judging.known.values():
            self._know(line)

    def run(self) -> None:
        """Run all cases, and wait for them. Ctrl-C ends it in good order, a second one at once."""
        given_up = float("inf")
        try:
            while True:
                if self.interrupts and given_up == float("inf"):
                    self.session.stop("interrupted")
                    given_up = monotonic() + GRACE
                self._submit()
                if not self.running or monotonic() > given_up:
                    break
                self._attend()
        finally:
            for ref in self.running:
                self.ray.cancel(ref, force=True)
            self.ray.kill(self.desk)

    def _submit(self) -> None:
        limit = self.session.limits.concurrency
        while len(self.running) < limit and (places := self._claimed()):
            todo = [self._place(at) for at in places]
            known = {place: self._known(place) for place in todo}
            died, threads = max(self.strikes[at] for at in places), self.session.threads
            task = Task(
                id=uuid4().hex,
                places=places,
                threads=f"{threads}-{died}" if died else threads,
                kept={place: each.kept for place, each in known.items() if each.kept.answer is not None},
                judgements={key: line for each in known.values() for key, line in each.judgements.items()},
                seconds=self.session.time_left,
            )
            self.running[self.work.remote(self.errand, task, self.desk)] = task

    def _claimed(self) -> list[int]:
        """The places of the next task."""
        if self.again and self.session.stopped is None:
            return [self.again.popleft()]
        found: list[int] = []
        while len(found) < self._size() and (at := self.session.claim()) is not None:
            found.append(at)
        return found

    def _size(self) -> int:
        """The number of cases for a task: one, or many of a quick function that calls no model."""
        done = self.session.results
        if (
            self.session.target.kind == "graph"
            or len(done) < _SAMPLE
            or self.session.judging.usage.total.calls
        ):
            return 1
        sample = [done[at].duration for at in list(done)[-_SAMPLE:]]
        return _CHUNK if median(sample) < _QUICK else 1

    def _attend(self) -> None:
        """Write what the workers have sent, and look after the tasks that have ended."""
        ended, _ = self.ray.wait([*self.running], num_returns=len(self.running), timeout=_LOOK)
        # After the wait: a task sends everything before it ends.
        for line in self.ray.get(self.desk.take.remote()):
            self._write(line)
        for ref in ended:
            task = self.running.pop(ref)
            died = False
            try:
                self._left_behind(self.ray.get(ref))
            except self.ray.exceptions.RayTaskError as error:
                raise _failure(error) from None
            except self.ray.exceptions.RayError:
                died = True
                self.ray.get(self.desk.release.remote(task.id))
            self._look_after(task, died)

    def _left_behind(self, number: int) -> None:
        self.session.left_behind += number
        if self.session.left_behind >= self.session.limits.concurrency:
            self.session.stop("run_timeout" if self.session.time_left == 0 else "stuck")

    def _look_after(self, task: Task, died: bool) -> None:
        """Run the cases of a task again that have no result; a case whose worker died twice is lost."""
        left = [at for at in task.places if at not in self.session.results]
        for at in left:
            self.session.judging.usage.give_up(self._thread_id(at))
            self.strikes[at] += died or len(left) == len(task.places)
            if self.strikes[at] >= _STRIKES:
                self._lose(at)
            else:
                self.again.append(at)

    def _lose(self, at: int) -> None:
        case, repeat = self.session.todo[at]
        lost = CaseRun(case=case, repeat=repeat, status="lost", error="its worker died twice")
        line = answer_to_dict(lost, None, self._thread_id(at))
        self._write(("answer", (line,)))
        self._write(("case", (case.id, repeat, False)))

    # Lines

    def _place(self, at: int) -> tuple[str, int]:
        case, repeat = self.session.todo[at]
        return case.id, repeat

    def _thread_id(self, at: int) -> str:
        return self.session.thread_id(*self.session.todo[at])

    def _known(self, place: tuple[str, int]) -> _Known:
        return self.known.setdefault(place, _Known())

    def _know(self, judgement: Mapping[str, Any]) -> None:
        place = judgement["case"], judgement["repeat"]
        self._known(place).judgements[judgement["key"], judgement["case"]] = judgement

    def _write(self, line: Line) -> None:
        """Write a line of a worker to the journal, and remember it."""
        kind, parts = line
        getattr(self, f"_on_{kind}")(*parts)

    def _on_answer(self, line: Mapping[str, Any], nodes: NodeRuns | None = None) -> None:
        if (journal := self.session.journal) is not None:
            journal.answer(line, nodes)
        known = self._known((line["case"], line["repeat"]))
        known.kept = Kept(line)

    def _on_scores(self, case_id: str, repeat: int, by: str, scores: Any) -> None:
        if (journal := self.session.journal) is not None:
            journal.scores(case_id, repeat, by, scores)
        self._known((case_id, repeat)).kept.scores[by] = scores

    def _on_judgement(self, line: Mapping[str, Any]) -> None:
        if isinstance(journal := self.session.journal, Journal):
            journal.write("judgement", line)
        self._know(line)

    def _on_spent(
        self, case_id: str, repeat: int, purse: str, model: str, spent: Spent, running: int
    ) -> None:
        thread_id = self._thread_id(self.places[case_id, repeat])
        self.session.judging.usage.take(thread_id, purse_of(purse), model, spent, running)

    def _on_question(self, number: int, key: str) -> None:
        cache = self.session.judging.cache
        self.desk.tell.remote(number, None if cache is None else cache.get(key))

    def _on_known(self, key: str, value: Mapping[str, Any]) -> None:
        if (cache := self.session.judging.cache) is not None:
            cache.put(key, value)

    def _on_record(self, name: str, record: bytes) -> None:
        try:
            getattr(self.repository, name)(*pickle.loads(record))
        except Exception as error:
            _log.warning("a record of a worker was not stored: %s: %s", type(error).__name__, error)

    def _on_case(self, case_id: str, repeat: int, as_expected: bool) -> None:
        at, kept = self.places[case_id, repeat], self._known((case_id, repeat)).kept
        used = self.session.used(self._thread_id(at))
        kept.done = {"as_expected": as_expected, "usage": used}
        result = kept.result()
        assert result is not None
        self.known.pop((case_id, repeat))
        self.session.leave()
        self.session.finish(at, result)


def _failure(error: Any) -> Exception:
    """The worker's own error: a mistake in the set-up as it is, any other with its traceback."""
    cause = error.cause
    if isinstance(cause, ArbiterError):
        return ConfigurationError(f"a worker cannot run the suite: {cause}")
    return RuntimeError(f"a worker failed: {error}")
