"""Lazy evaluation results: queued for the background, or run by whoever reads them first.

`Evaluations` is what an item's `evaluation_results` is. `Background` runs what nobody has read: one cheap
enqueue per item, one worker for what is quick, and a lane for each evaluator that is not.
See docs/design/evaluations.md.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from types import MappingProxyType
from typing import Any, cast

from langchain_core.runnables.config import var_child_runnable_config

from arbiter.calls import (
    LOOP,
    EventLoop,
    Pace,
    Runner,
    as_coroutine,
    is_from_outside,
    new_lock,
    renew_in_child,
    start,
    within,
)
from arbiter.errors import MissingEvaluationError, describe
from arbiter.evaluation import EvaluatorCycle, NodeEvaluator, Turn, TurnOutcome
from arbiter.history import History
from arbiter.results import Lazy, Results
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, evaluation_fault

_LOOK = 0.05
_log = logging.getLogger("arbiter")
Stack = tuple[tuple["Lane", int], ...]
running: ContextVar[Stack] = ContextVar("arbiter_running_evaluations", default=())
"""The evaluations in whose `evaluate` the caller runs: the evaluator's lane, and the id of its `Evaluations`."""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


class _NotRun:
    """The cycle has not run that evaluator."""


NOT_RUN = _NotRun()
Outcome = EvaluationResult | _Failure | _NotRun


class Lane:
    """One registered evaluator. Its calls run one after another."""

    __slots__ = (
        "__weakref__",
        "awaits",
        "evaluator",
        "is_async",
        "lock",
        "loop",
        "mark",
        "name",
        "pace",
        "queue",
        "runner",
    )

    def __init__(self, evaluator: NodeEvaluator, loop: EventLoop) -> None:
        self.evaluator = evaluator
        self.loop = loop
        self.name = evaluator.name
        self.is_async = evaluator.is_async
        self.mark = secrets.token_hex()  # as that of a seat
        self.lock = new_lock()
        self.awaits = False
        """Whether whoever has the lock waits for the event loop."""
        self.runner = Runner()
        # A deadline can be kept on another thread only, which costs more than most evaluators and doubles the
        # cost of a step. So one that was asked for is always kept, and the default one is given up for an
        # evaluator that has proved to be quick.
        asked_for = evaluator.deadline not in (None, NodeEvaluator.deadline)
        self.pace = Pace(True if asked_for else evaluator.blocking)
        self.queue: SimpleQueue[Evaluations] | None = None
        renew_in_child(self)

    def renew(self) -> None:
        """A fork: the threads that called the evaluator have stayed in the parent process."""
        self.awaits, self.runner, self.queue = False, Runner(), None

    def run(self, evaluations: Evaluations, at: int) -> Outcome:
        """Make sure that this evaluator's outcome stands at that place, and return it. Never raises."""
        stack, own = running.get(), (self, id(evaluations))
        if own in stack:
            return _Failure(f"evaluator {self.name!r} waits for its own result")
        if not self.lock.acquire(False) and (problem := self._problem_of_waiting()) is not None:
            return self._failed(problem.message, evaluations.view)
        try:
            found = evaluations.found
            if (outcome := found[at]) is None:  # whoever came first has put it there
                outcome = found[at] = copy_context().run(self._outcome, (*stack, own), evaluations.view)
                evaluations.let_go()
            return outcome
        finally:
            self.lock.release()

    def _problem_of_waiting(self) -> _Failure | None:
        """Wait for the lock; why that came to nothing, if it did."""
        left = inf if self.evaluator.deadline is None else self.evaluator.deadline
        while left > 0:
            if self.awaits and self.loop.is_here:  # whoever has the lock waits for what runs here
                return _Failure(_FROM_THE_LOOP.format(self.name))
            if self.lock.acquire(timeout=min(left, _LOOK)):
                return None
            left -= _LOOK
        return _Failure(f"TimeoutError: an earlier call of {self.name!r} is still running")

    def _outcome(self, stack: Stack, view: Any) -> Outcome:
        running.set(stack)
        # Nothing of the graph's run (callbacks, streams) reaches an evaluator, whoever reads its result.
        var_child_runnable_config.set(None)
        try:
            if self.pace.inline:
                answer: Any = self.pace.timed(self.evaluator.evaluate, view)
            else:
                answer = self._called(view)
            if type(answer) is not EvaluationResult:
                if isawaitable(answer):
                    answer = self._waited(answer)
                if isinstance(answer, _Failure):
                    return self._failed(answer.message, view)
            fault = evaluation_fault(answer)
        except BaseException as exc:  # also SystemExit: an evaluator's failure is its own affair
            if isinstance(exc, KeyboardInterrupt) and is_from_outside(exc):
                raise
            return self._failed(describe(exc), view)
        return answer if fault is None else self._failed(f"evaluator {self.name!r} {fault}", view)

    def _failed(self, problem: str, view: History | None) -> _Failure:
        if view is not None and _log.isEnabledFor(logging.WARNING):
            node = view.entries[-1][-1].node
            _log.warning("evaluator %s failed on node %r: %s", self.name, node, problem)
        return _Failure(problem)

    def _called(self, view: History) -> Any:
        deadline = self.evaluator.deadline
        if deadline is None or self.is_async:
            return self.pace.timed(self.evaluator.evaluate, view)
        context = _apart()
        call = partial(self.pace.timed, self.evaluator.evaluate, view)
        return self.runner.run(lambda: context.run(call), deadline)

    def _waited(self, answer: Any) -> Any:
        coroutine = answer if iscoroutine(answer) else as_coroutine(answer)
        if self.loop.is_here:
            coroutine.close()
            raise RuntimeError(_FROM_THE_LOOP.format(self.name))
        self.awaits = True
        try:
            return within(self.evaluator.deadline, self.loop.submit(_in(running.get(), coroutine)))
        except TimeoutError:
            self.loop.leave_if_stuck()
            raise
        finally:
            self.awaits = False


def _apart() -> Context:
    """A context with nothing of the graph's run: only the evaluations that wait, so that one that waits for itself is
    told so."""
    context = Context()
    context.run(running.set, running.get())
    return context


async def _in(stack: Stack, coroutine: Any) -> Any:
    running.set(stack)
    try:
        return await coroutine
    except (
        SystemExit,
        KeyboardInterrupt,
    ) as exc:  # would end the event loop, and with it all that runs there
        return _Failure(describe(exc))


_FROM_THE_LOOP = (
    "evaluator {!r} is not done, and runs on the same event loop as the caller. "
    "Await evaluation_results.aget(name), or read it in a `def`."
)


class Together:
    """A turn of a cycle: run once, for whoever reads one of its results first."""

    __slots__ = ("__weakref__", "_fault", "_future", "_lock", "_trace", "cycle", "lanes", "turn")

    def __init__(self, cycle: EvaluatorCycle, turn: Turn, lanes: tuple[Lane, ...]) -> None:
        self.cycle = cycle
        self.turn: Turn | None = turn
        self.lanes = lanes
        self._lock = new_lock()
        self._future: Future[TurnOutcome] | None = None
        self._trace: Sequence[EvaluatorTrace] = ()
        self._fault: Exception | None = None
        renew_in_child(self)

    def renew(self) -> None:
        """A fork: a turn that runs, runs in the parent process."""
        if self._future is not None and not self._future.done():
            self._future = Future()
            self._future.set_exception(RuntimeError("the turn runs in the parent process"))

    def begin(self) -> None:
        """Let the cycle keep what it needs. Never raises."""
        assert self.turn is not None
        try:
            self.cycle.begin(self.turn)
        except Exception as exc:
            self._fault = exc

    def start(self, key: int, settle: Callable[[TurnOutcome], None]) -> Future[TurnOutcome]:
        """Run the turn, if nobody has begun. `settle` is called with its outcome before anybody else has it."""
        with self._lock:
            if self._future is None:
                stack = (*running.get(), *((lane, key) for lane in self.lanes))
                self._future = LOOP.submit(self._run(stack, settle))
            return self._future

    async def _run(self, stack: Stack, settle: Callable[[TurnOutcome], None]) -> TurnOutcome:
        running.set(stack)
        turn, self.turn = self.turn, None
        assert turn is not None
        try:
            if self._fault is not None:
                raise self._fault
            outcome = await self.cycle.run(turn)
        except BaseException as exc:  # also those that would end the event loop
            problem = f"{type(exc).__name__} in the cycle"
            outcome = TurnOutcome(errors={lane.name: problem for lane in self.lanes})
        self._trace = tuple(outcome.trace)
        settle(outcome)
        return outcome

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        if self._future is not None and self._future.done():
            return self._trace
        return tuple(EvaluatorTrace(lane.name, "run", "pending") for lane in self.lanes)


class Evaluations(Lazy):
    """The evaluation results of one item. Lazy.

    `get`, `[]` and `in` wait for one name; `len`, iteration and `errors` wait for all. A name whose evaluator
    failed is absent, and `errors` says why.
    """

    __slots__ = ("found", "lanes", "together", "view")

    def __init__(self, lanes: tuple[Lane, ...], view: History, together: Together | None = None) -> None:
        self.lanes = lanes
        self.view: History | None = view
        """What the evaluators see, until all are done."""
        self.together = together
        self.found: list[Outcome | None] = [None] * len(lanes)
        """What the evaluators have found so far, in their order."""

    def outcome(self, lane: Lane) -> Outcome | None:
        """What that evaluator found, if it is done."""
        return self.found[self.lanes.index(lane)]

    def resolve(self, lane: Lane) -> Outcome:
        """The outcome of that evaluator, run here and now if nobody has begun."""
        return self._resolved(lane, self.lanes.index(lane))

    def _resolved(self, lane: Lane, at: int) -> Outcome:
        if (outcome := self.found[at]) is not None:
            return outcome
        return self._run_together(lane) if self.in_cycle(lane) else lane.run(self, at)

    def in_cycle(self, lane: Lane) -> bool:
        """Whether that evaluator is run together with others."""
        return self.together is not None and lane in self.together.lanes

    def _run_together(self, lane: Lane) -> Outcome:
        if (lane, id(self)) in running.get():
            return _Failure(f"evaluator {lane.name!r} waits for its own turn")
        if LOOP.is_here:
            return _Failure(_FROM_THE_LOOP.format(lane.name))
        self.start_together().result()
        found = self.outcome(lane)
        assert found is not None
        return found

    def start_together(self) -> Future[TurnOutcome]:
        """Run the turn of the cycle, if nobody has begun."""
        assert self.together is not None
        return self.together.start(id(self), self._settle)

    def _settle(self, outcome: TurnOutcome) -> None:
        assert self.together is not None
        for lane in self.together.lanes:
            if not self.done(lane):
                self.found[self.lanes.index(lane)] = _settled(lane.name, outcome)
        self.let_go()

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        """What the cycle did so far."""
        return () if self.together is None else self.together.trace

    def resolve_all(self) -> None:
        for lane in self.lanes:
            self.resolve(lane)

    def let_go(self) -> None:
        """When all are done, keep the past no longer that the view holds."""
        for outcome in self.found:  # no `in`: that would compare results
            if outcome is None:
                return
        self.view = None

    def know(self, results: Mapping[str, EvaluationResult], *, settled: bool = False) -> None:
        """These results were found before; their evaluators are not asked again, nor, if that is `settled`, those of
        the cycle that gave none."""
        for name, found in results.items():
            if (lane := self.lane(name)) is not None:
                self.found[self.lanes.index(lane)] = found
        if settled and self.together is not None:
            self._settle(TurnOutcome())
        self.let_go()

    def lane(self, name: object) -> Lane | None:
        for lane in self.lanes:
            if lane.name == name:
                return lane
        return None

    def done(self, lane: Lane) -> bool:
        return self.outcome(lane) is not None

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        lane = self.lane(name)
        if lane is None:
            return None
        if not self.done(lane) and self.in_cycle(lane):
            if (lane, id(self)) not in running.get():
                await asyncio.wrap_future(self.start_together())
        elif not self.done(lane) and not lane.pace.inline:
            await asyncio.wrap_future(start(lambda: self.resolve(lane), context=_apart()))
        return self.get(name)

    def find(self, name: str) -> EvaluationResult | None:
        """The result of that evaluator, None if there is none. Waits for it."""
        for at, lane in enumerate(self.lanes):
            if lane.name == name:
                if (outcome := self.found[at]) is None:
                    outcome = lane.run(self, at) if self.together is None else self._resolved(lane, at)
                return outcome if isinstance(outcome, EvaluationResult) else None
        return None

    def __getitem__(self, name: str) -> EvaluationResult:
        if (found := self.find(name)) is None:
            raise self.missing(name)
        return found

    def missing(self, name: str) -> KeyError:
        """What to raise for a name that has no result."""
        if (problem := self.error_of(name)) is None:
            return KeyError(name)
        return MissingEvaluationError(f"evaluator {name!r} gave no result: {problem}", evaluator=name)

    def __contains__(self, name: object) -> bool:
        lane = self.lane(name)
        return lane is not None and isinstance(self.resolve(lane), EvaluationResult)

    def __iter__(self) -> Iterator[str]:
        self.resolve_all()
        return (lane.name for lane in self.lanes if isinstance(self.outcome(lane), EvaluationResult))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def error_of(self, name: str) -> str | None:
        """Why that evaluator gave no result, if it gave none. Waits for it."""
        if (lane := self.lane(name)) is None:
            return None
        self.resolve(lane)
        found = self.outcome(lane)  # None to an evaluator that waits for itself
        return found.message if isinstance(found, _Failure) else None

    @property
    def errors(self) -> Mapping[str, str]:
        self.resolve_all()
        failures = ((lane.name, self.outcome(lane)) for lane in self.lanes)
        return MappingProxyType({k: v.message for k, v in failures if isinstance(v, _Failure)})

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """What there is so far; None for an evaluator that failed."""
        return {
            lane.name: found if isinstance(found, EvaluationResult) else None
            for lane, found in zip(self.lanes, list(self.found), strict=True)
            if found is not None and not isinstance(found, _NotRun)
        }

    def __repr__(self) -> str:
        states = (
            f"{lane.name}={self.outcome(lane) if self.done(lane) else 'pending'!r}" for lane in self.lanes
        )
        return f"<evaluations {', '.join(states)}>"


def _settled(name: str, outcome: TurnOutcome) -> Outcome:
    if (problem := outcome.errors.get(name)) is not None:
        return _Failure(problem)
    found: object = outcome.results.get(name, NOT_RUN)
    if found is NOT_RUN:
        return NOT_RUN
    fault = evaluation_fault(found)
    return cast(EvaluationResult, found) if fault is None else _Failure(f"evaluator {name!r} {fault}")


class ReadEvaluations(Lazy):
    """An item's evaluations as a router or gate sees them: what it reads is remembered, to be committed.

    `unseen` names evaluators whose results nobody may act by.
    """

    __slots__ = ("_failed", "_unseen", "evaluations", "read")

    def __init__(self, evaluations: Evaluations, unseen: frozenset[str] = frozenset()) -> None:
        self.evaluations = evaluations
        self._failed: tuple[str, ...] = ()
        self.read: dict[str, EvaluationResult] = {}
        self._unseen = unseen

    def __getitem__(self, name: str) -> EvaluationResult:
        if name not in self._unseen and (found := self.evaluations.find(name)) is not None:
            self.read[name] = found
            return found
        if self.get(name) is None:  # which also notes what failed
            raise KeyError(name) if name in self._unseen else self.evaluations.missing(name)
        return self.read[name]

    def get(self, key: str, default: Any = None) -> Any:
        if key in self._unseen:
            return default
        if (found := self.evaluations.find(key)) is None:
            if self.evaluations.error_of(key) is not None:
                self._failed = (*self._failed, key)
            return default
        self.read[key] = found
        return found

    @property
    def unread(self) -> Results:
        """All that there is to read, which leaves no trace. Waits for it."""
        seen = {name: result for name, result in self.evaluations.items() if name not in self._unseen}
        return Results(seen, self.errors, self.evaluations.trace)

    def apart(self) -> ReadEvaluations:
        """The same for a policy whose decisions do not hold: what it reads in addition leaves no trace."""
        own = ReadEvaluations(self.evaluations)
        own.read, own._failed = dict(self.read), self._failed
        return own

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """What was read so far; None for an evaluator that failed."""
        return {**self.read, **dict.fromkeys(self._failed)}

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        if name in self._unseen:
            return None
        await self.evaluations.aget(name)
        found: EvaluationResult | None = self.get(name)
        return found

    def error_of(self, name: str) -> str | None:
        """As that of `Evaluations`."""
        return None if name in self._unseen else self.evaluations.error_of(name)

    @property
    def errors(self) -> Mapping[str, str]:
        errors = self.evaluations.errors
        return MappingProxyType({k: v for k, v in errors.items() if k not in self._unseen})

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.evaluations if name not in self._unseen)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_LOOKS = 100
_IDLE = _LOOK * _LOOKS


class Background:
    """Runs the evaluations that nobody reads. One per `ArbiterOS`.

    Its worker looks now and then whether there are some. What runs in the meantime goes first, since Python runs one
    thread at a time, and nobody pays for waking it.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Begin with nothing. After a fork, what is queued is done by the parent process, which has the worker."""
        self._queue: deque[Evaluations] = deque()
        self._lock = threading.Lock()
        self._none_open = threading.Condition(self._lock)
        self._open = 0
        """How many of those that are no longer queued are not done."""
        self._wake = threading.Event()
        self._worker: threading.Thread | None = None

    def enqueue(self, evaluations: Evaluations) -> None:
        """Queue an item's evaluations, unless all are done."""
        if evaluations.view is None:
            return
        self._queue.append(evaluations)
        if self._worker is None:  # looked at after it was queued: a worker that goes looks once more
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._worker is None:
                _drain_at_exit(self)
                worker = threading.Thread(target=self._work, name="arbiter-evaluations", daemon=True)
                try:
                    worker.start()
                except RuntimeError:  # the next one tries again, and whoever reads a result runs it then
                    return
                self._worker = worker

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all queued evaluations are done; False if `timeout` (seconds) was too short."""
        with self._none_open:
            self._wake.set()
            return self._none_open.wait_for(lambda: not self._queue and self._open == 0, timeout)

    @property
    def pending(self) -> int:
        """How many evaluations are not done."""
        queued = list(self._queue)
        return self._open + sum(not each.done(lane) for each in queued for lane in each.lanes)

    def _work(self) -> None:
        idle = 0
        while idle < _LOOKS:
            self._wake.wait(_LOOK)  # not time.sleep, which people's tests replace
            self._wake.clear()
            idle += 1
            while (evaluations := self._next()) is not None:
                idle = 0
                try:
                    self._process(evaluations)
                except Exception:  # no thread could be started, say: whoever reads a result runs it then
                    _log.exception("evaluations could not be begun in the background")
            if idle == _LOOKS:
                with self._lock:
                    self._worker = None
                    if self._queue:
                        idle, self._worker = 0, threading.current_thread()

    def _next(self) -> Evaluations | None:
        with self._lock:
            if not self._queue:
                return None
            self._open += 1
            return self._queue.popleft()

    def _process(self, evaluations: Evaluations) -> None:
        together = evaluations.together
        try:
            if together is not None and not evaluations.done(together.lanes[0]):
                with self._lock:
                    self._open += 1
                evaluations.start_together().add_done_callback(lambda _: self._closed())
            for lane in evaluations.lanes:
                if evaluations.done(lane) or evaluations.in_cycle(lane):
                    continue
                if lane.pace.inline:
                    evaluations.resolve(lane)
                else:
                    self._hand_over(lane, evaluations)
        finally:
            self._closed()

    def _hand_over(self, lane: Lane, evaluations: Evaluations) -> None:
        with self._lock:
            self._open += 1
            if lane.queue is not None:
                lane.queue.put(evaluations)
                return
            lane.queue = queue = SimpleQueue[Evaluations]()
            queue.put(evaluations)
        try:
            threading.Thread(
                target=self._run_lane, args=(lane, queue), name=f"arbiter-{lane.name}", daemon=True
            ).start()
        except RuntimeError:  # the next one tries again
            lane.queue = None
            self._closed()
            raise

    def _run_lane(self, lane: Lane, queue: SimpleQueue[Evaluations]) -> None:
        while True:
            try:
                evaluations = queue.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if queue.empty():
                        lane.queue = None
                        return
                continue
            try:
                evaluations.resolve(lane)
            finally:
                del evaluations
                self._closed()

    def _closed(self) -> None:
        with self._none_open:
            self._open -= 1
            if self._open == 0 and not self._queue:
                self._none_open.notify_all()


# What is not evaluated when the interpreter ends is lost, and so is what a cycle has not written: no checkpoint has it.
# That has to be waited for before Python closes its thread pools, in which sync models are called, and so before
# `atexit` comes to its turn. By `atexit`, what graphs have left to do that ran on in threads of the user's.
_at_exit: Callable[[Callable[[], None]], Any] = getattr(threading, "_register_atexit", atexit.register)
_pending: weakref.WeakSet[Background] = weakref.WeakSet()
_EXIT_SECONDS = 30.0
"""How long the end of the process waits for all of them."""


_reported: weakref.WeakKeyDictionary[Background, int] = weakref.WeakKeyDictionary()
"""How many evaluations of those that have been waited for as long as that were not done."""


def _drain_at_exit(background: Background) -> None:
    if background not in _pending:
        if not _pending:
            atexit.register(_drain_all)
            with suppress(RuntimeError):  # the main thread has ended
                _at_exit(_drain_all)
        _pending.add(background)


def _drain_all() -> None:
    end = monotonic() + _EXIT_SECONDS
    waiting = list(_pending)
    try:
        left = [
            each for each in waiting if not each.drain(0 if each in _reported else max(end - monotonic(), 0))
        ]
    except KeyboardInterrupt:
        left = waiting
    count = 0
    for each in left:
        pending = each.pending
        count += max(pending - _reported.get(each, 0), 0)
        _reported[each] = pending
    if count:
        are = "1 evaluation was" if count == 1 else f"{count} evaluations were"
        _log.warning(
            "%s not done when the process ended, and the end waits no longer than %g s; "
            "call arbiter_os.drain() before it to wait for all of them",
            are,
            _EXIT_SECONDS,
        )
