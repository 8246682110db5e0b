"""Lazy evaluation results: queued for the background, or run by the code that reads them first.

`Evaluations` is an item's `evaluation_results`. `Background` runs evaluations that no code has read: one
cheap enqueue per item, one worker for quick evaluators, and a queue of its own for each slow one. See
docs/design/evaluations.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine
from math import inf
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, cast

from langchain_core.runnables.config import var_child_runnable_config

from arbiter._threads.deadlines import (
    LOOP,
    EventLoop,
    InlineTiming,
    Runner,
    as_coroutine,
    is_from_outside,
    start,
    within,
)
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter.errors import MissingEvaluationError, describe
from arbiter.evaluation import EvaluatorCycle, NodeEvaluator, Turn, TurnOutcome
from arbiter.history._items import History
from arbiter.history._results import Lazy, Results
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, Several, as_evaluation, evaluation_fault

LOOK = 0.05
_NOTHING: Mapping[str, Any] = MappingProxyType({})
log = logging.getLogger("arbiter")
_set_ambient = var_child_runnable_config.set
_told = new_lock()
Stack = tuple[tuple["EvaluatorQueue", int], ...]
running: ContextVar[Stack] = ContextVar("arbiter_running_evaluations", default=())
"""The evaluations in whose `evaluate` the caller runs: each with the evaluator's queue and the id of its
`Evaluations`.
"""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


class _NotRun:
    """The cycle has not run that evaluator."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The outcome of an evaluator that returned several results: these and their failures, by their full
    names.
    """

    results: Mapping[str, EvaluationResult]
    errors: Mapping[str, str]


NOT_RUN = _NotRun()
Outcome = EvaluationResult | _Parts | _Failure | _NotRun


def owner_of(name: str, evaluators: Collection[str]) -> str | None:
    """Which of these evaluators gives the result of that name; `style` gives `style.brief`."""
    if name in evaluators:
        return name
    return max((each for each in evaluators if name.startswith(f"{each}.")), key=len, default=None)


class EvaluatorQueue:
    """One registered evaluator. Its calls run one after another."""

    __slots__ = (
        "__weakref__",
        "awaits",
        "backlog",
        "evaluator",
        "is_async",
        "lock",
        "loop",
        "mark",
        "name",
        "runner",
        "timing",
    )

    def __init__(self, evaluator: NodeEvaluator, loop: EventLoop) -> None:
        self.evaluator = evaluator
        self.loop = loop
        self.name = evaluator.name
        self.is_async = evaluator.is_async
        self.mark = secrets.token_hex()  # as that of a `Registration`
        self.lock = new_lock()
        self.awaits = False
        """True if the holder of the lock waits for the event loop."""
        self.runner = Runner()
        # A deadline needs another thread, which costs more than most evaluators and doubles the cost of a
        # step. So a deadline that the user set is always kept, and the default one is dropped once an
        # evaluator has proved to be quick.
        asked_for = evaluator.deadline not in (None, NodeEvaluator.deadline)
        self.timing = InlineTiming(True if asked_for else evaluator.blocking)
        self.backlog: SimpleQueue[Evaluations] | None = None
        renew_in_child(self)

    def renew(self) -> None:
        """Start anew after a fork: the evaluator's threads exist only in the parent process."""
        self.awaits, self.runner, self.backlog = False, Runner(), None

    def run(self, evaluations: Evaluations, at: int) -> Outcome:
        """The evaluator's outcome at place `at`, run now if it is missing. Never raises."""
        stack, own = running.get(), (self, id(evaluations))
        if own in stack:
            return _Failure(f"evaluator {self.name!r} waits for its own result")
        if not self.lock.acquire(False) and (problem := self._problem_of_waiting()) is not None:
            return self._failed(problem.message, evaluations.view)
        try:
            found = evaluations.found
            if (outcome := found[at]) is None:  # another reader may have put it there meanwhile
                outcome = copy_context().run(self._outcome, (*stack, own), evaluations)
                found[at] = outcome
                evaluations.let_go()
            return outcome
        finally:
            self.lock.release()

    def _problem_of_waiting(self) -> _Failure | None:
        """Wait for the lock. Returns a `_Failure` if that was impossible or took too long."""
        left = inf if self.evaluator.deadline is None else self.evaluator.deadline
        while left > 0:
            if self.awaits and self.loop.is_here:  # the holder of the lock waits for this very loop
                return _Failure(_FROM_THE_LOOP.format(self.name))
            if self.lock.acquire(timeout=min(left, LOOK)):
                return None
            left -= LOOK
        return _Failure(f"TimeoutError: an earlier call of {self.name!r} is still running")

    def _outcome(self, stack: Stack, evaluations: Evaluations) -> Outcome:
        view: Any = evaluations.view
        running.set(stack)
        # An evaluator never gets the graph's callbacks and streams, whichever code reads its result.
        _set_ambient(None)
        try:
            if self.timing.inline:
                answer: Any = self.timing.timed(self.evaluator.evaluate, view)
            else:
                answer = self._called(view)
            if type(answer) is not EvaluationResult:
                if isawaitable(answer):
                    answer = self._waited(answer)
                if isinstance(answer, _Failure):
                    return self._failed(answer.message, view)
            read = as_evaluation(answer)
        except BaseException as exc:  # also SystemExit: an evaluator's failure never ends the run
            if isinstance(exc, KeyboardInterrupt) and is_from_outside(exc):
                raise
            return self._failed(describe(exc), view)
        if isinstance(read, EvaluationResult):
            return read
        if isinstance(read, str):
            return self._failed(f"evaluator {self.name!r} {read}", view)
        return self._parts(read, evaluations, view)

    def _parts(self, several: Several, evaluations: Evaluations, view: History) -> _Parts:
        faults = dict(several.faults)
        for key in several.results:
            if any(queue.name == f"{self.name}.{key}" for queue in evaluations.queues):
                faults[key] = (
                    f"returned a result {key!r}, but '{self.name}.{key}' is another evaluator. Rename one of the two"
                )
        for key, fault in faults.items():
            self._failed(f"its result {key!r}: evaluator {self.name!r} {fault}", view)
        return _Parts(
            {f"{self.name}.{key}": found for key, found in several.results.items() if key not in faults},
            {f"{self.name}.{key}": f"evaluator {self.name!r} {fault}" for key, fault in faults.items()},
        )

    def _failed(self, problem: str, view: History | None) -> _Failure:
        if view is not None and log.isEnabledFor(logging.WARNING):
            node = view.item.node
            log.warning("evaluator %s failed on node %r: %s", self.name, node, problem)
        return _Failure(problem)

    def _called(self, view: History) -> Any:
        deadline = self.evaluator.deadline
        if deadline is None or self.is_async:
            return self.timing.timed(self.evaluator.evaluate, view)
        context = _own_context()
        call = partial(self.timing.timed, self.evaluator.evaluate, view)
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


def _own_context() -> Context:
    """A context without the graph's run. It has only the waiting evaluations, so that one that waits for
    itself is noticed.
    """
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
    ) as exc:  # would end the event loop with all its coroutines
        return _Failure(describe(exc))


_FROM_THE_LOOP = (
    "evaluator {!r} is not done, and runs on the same event loop as the caller. "
    "Await evaluation_results.aget(name), or read it in a `def`."
)


class CycleRun:
    """One turn of a cycle. It runs once, when some code reads the first of its results."""

    __slots__ = ("__weakref__", "_fault", "_future", "_lock", "_trace", "cycle", "queues", "turn")

    def __init__(self, cycle: EvaluatorCycle, turn: Turn, queues: tuple[EvaluatorQueue, ...]) -> None:
        self.cycle = cycle
        self.turn: Turn | None = turn
        self.queues = queues
        self._lock = new_lock()
        self._future: Future[TurnOutcome] | None = None
        self._trace: Sequence[EvaluatorTrace] = ()
        self._fault: Exception | None = None
        renew_in_child(self)

    def renew(self) -> None:
        """Fail after a fork: a turn that had begun runs in the parent process."""
        if self._future is not None and not self._future.done():
            self._future = Future()
            self._future.set_exception(RuntimeError("the turn runs in the parent process"))

    def begin(self) -> None:
        """Let the cycle store what it needs before the turn. Never raises."""
        assert self.turn is not None
        try:
            self.cycle.begin(self.turn)
        except Exception as exc:
            self._fault = exc

    def start(self, key: int, settle: Callable[[TurnOutcome], None]) -> Future[TurnOutcome]:
        """Run the turn unless it has begun. `settle` gets its outcome before any waiting reader."""
        with self._lock:
            if self._future is None:
                stack = (*running.get(), *((queue, key) for queue in self.queues))
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
        except BaseException as exc:  # also exceptions that would end the event loop
            problem = f"{type(exc).__name__} in the cycle"
            outcome = TurnOutcome(errors={queue.name: problem for queue in self.queues})
        self._trace = tuple(outcome.trace)
        settle(outcome)
        return outcome

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        if self._future is not None and self._future.done():
            return self._trace
        return tuple(EvaluatorTrace(queue.name, "run", "pending") for queue in self.queues)


class Evaluations(Lazy):
    """The evaluation results of one item. Lazy.

    `get`, `[]` and `in` wait for one name; `len`, iteration and `errors` wait for all. A name whose evaluator
    failed is absent, and `errors` gives the reason.
    """

    __slots__ = ("_after", "found", "queues", "together", "view")

    def __init__(
        self, queues: tuple[EvaluatorQueue, ...], view: History, together: CycleRun | None = None
    ) -> None:
        self.queues = queues
        self.view: History | None = view
        """The history that the evaluators see, until all are done."""
        self.together = together
        self.found: list[Outcome | None] = [None] * len(queues)
        """The outcomes so far, in the order of the evaluators."""
        self._after: Callable[[], None] | None = None

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when all evaluations are done: now, or on the thread that ends the last one.

        Reads and runs nothing. There is one callback at most.
        """
        self._after = callback
        self.let_go()

    def outcome(self, queue: EvaluatorQueue) -> Outcome | None:
        """The outcome of that evaluator, or None if it is not done."""
        return self.found[self.queues.index(queue)]

    def resolve(self, queue: EvaluatorQueue) -> Outcome:
        """The outcome of that evaluator. Runs it here and now unless it has begun."""
        return self._resolved(queue, self.queues.index(queue))

    def _resolved(self, queue: EvaluatorQueue, at: int) -> Outcome:
        if (outcome := self.found[at]) is not None:
            return outcome
        return self._run_together(queue) if self.in_cycle(queue) else queue.run(self, at)

    def in_cycle(self, queue: EvaluatorQueue) -> bool:
        """True if the cycle runs that evaluator together with others."""
        return self.together is not None and queue in self.together.queues

    def _run_together(self, queue: EvaluatorQueue) -> Outcome:
        if (queue, id(self)) in running.get():
            return _Failure(f"evaluator {queue.name!r} waits for its own turn")
        if LOOP.is_here:
            return _Failure(_FROM_THE_LOOP.format(queue.name))
        self.start_together().result()
        found = self.outcome(queue)
        assert found is not None
        return found

    def start_together(self) -> Future[TurnOutcome]:
        """Run the turn of the cycle unless it has begun."""
        assert self.together is not None
        return self.together.start(id(self), self._settle)

    def _settle(self, outcome: TurnOutcome) -> None:
        assert self.together is not None
        for queue in self.together.queues:
            if not self.done(queue):
                self.found[self.queues.index(queue)] = _settled(queue.name, outcome)
        self.let_go()

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        """The cycle's work so far."""
        return () if self.together is None else self.together.trace

    def resolve_all(self) -> None:
        for queue in self.queues:
            self.resolve(queue)

    def let_go(self) -> None:
        """Drop the view, which keeps the past alive, when all are done."""
        for outcome in self.found:  # not `in`, which would compare results
            if outcome is None:
                return
        self.view = None
        if self._after is not None:
            # Taken in one step: two evaluations that end at the same time make one call.
            with _told:
                callback, self._after = self._after, None
            if callback is not None:
                callback()

    def know(self, results: Mapping[str, EvaluationResult], *, settled: bool = False) -> None:
        """Set results that were found before, so that their evaluators do not run again.

        With `settled`, the evaluators of the cycle that gave no result do not run either.
        """
        parts: dict[EvaluatorQueue, dict[str, EvaluationResult]] = {}
        for name, found in results.items():
            queue = self.queue(name)
            if queue is not None and queue.name == name:
                self.found[self.queues.index(queue)] = found
            elif queue is not None:
                parts.setdefault(queue, {})[name] = found
        for queue, several in parts.items():  # all of them: they are read together
            self.found[self.queues.index(queue)] = _Parts(several, _NOTHING)
        if settled and self.together is not None:
            self._settle(TurnOutcome())
        self.let_go()

    def queue(self, name: object) -> EvaluatorQueue | None:
        """The evaluator that gives the result of that name."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        if not isinstance(name, str) or "." not in name:
            return None
        owner = owner_of(name, [queue.name for queue in self.queues])
        return None if owner is None else self.queue(owner)

    def parts(self, name: str) -> Mapping[str, EvaluationResult]:
        """All results of the evaluator that gives the one of that name, if it gave several. Waits for it."""
        queue = self.queue(name)
        outcome = None if queue is None else self.resolve(queue)
        return outcome.results if isinstance(outcome, _Parts) else _NOTHING

    def done(self, queue: EvaluatorQueue) -> bool:
        return self.outcome(queue) is not None

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        queue = self.queue(name)
        if queue is None:
            return None
        if not self.done(queue) and self.in_cycle(queue):
            if (queue, id(self)) not in running.get():
                await asyncio.wrap_future(self.start_together())
        elif not self.done(queue) and not queue.timing.inline:
            await asyncio.wrap_future(start(lambda: self.resolve(queue), context=_own_context()))
        return self.get(name)

    def find(self, name: str) -> EvaluationResult | None:
        """The result of that evaluator, or None if there is none. Waits for it."""
        for at, queue in enumerate(self.queues):
            if queue.name == name:
                if (outcome := self.found[at]) is None:
                    outcome = queue.run(self, at) if self.together is None else self._resolved(queue, at)
                return outcome if isinstance(outcome, EvaluationResult) else None
        return self.parts(name).get(name)

    def __getitem__(self, name: str) -> EvaluationResult:
        if (found := self.find(name)) is None:
            raise self.missing(name)
        return found

    def missing(self, name: str) -> KeyError:
        """The exception for a name without a result."""
        queue, problem = self.queue(name), self.error_of(name)
        if queue is None or problem is None:
            return KeyError(name)
        what = "no result" if name == queue.name else f"no result {name!r}"
        return MissingEvaluationError(
            f"evaluator {queue.name!r} gave {what}: {problem}", evaluator=queue.name
        )

    def misnamed(self, name: str) -> str | None:
        """Why a rule that reads that name finds nothing, although the evaluator is done and has not failed."""
        queue = self.queue(name)
        outcome = None if queue is None else self.outcome(queue)
        if (
            isinstance(outcome, _Failure | None)
            or self.find(name) is not None
            or isinstance(outcome, _NotRun)
        ):
            return None
        return f"it reads {name!r}, but {self.error_of(name)}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        self.resolve_all()
        return (name for name, found in self.outcomes.items() if found is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def error_of(self, name: str) -> str | None:
        """The reason why that evaluator gave no result, or None if it gave one. Waits for it."""
        if (queue := self.queue(name)) is None:
            return None
        self.resolve(queue)
        found = self.outcome(queue)  # None for an evaluator that waits for itself
        if isinstance(found, _Failure):
            return found.message
        if isinstance(found, _Parts) and name not in found.results:
            return found.errors.get(name) or f"the evaluator gave {_listed(found.results)}"
        if isinstance(found, EvaluationResult) and name != queue.name:
            return f"the evaluator gave one result, {queue.name!r}"
        return None

    @property
    def errors(self) -> Mapping[str, str]:
        self.resolve_all()
        errors: dict[str, str] = {}
        for queue, found in zip(self.queues, self.found, strict=True):
            if isinstance(found, _Failure):
                errors[queue.name] = found.message
            elif isinstance(found, _Parts):
                errors.update(found.errors)
        return MappingProxyType(errors)

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results so far; None for an evaluator that failed."""
        outcomes: dict[str, EvaluationResult | None] = {}
        for queue, found in zip(self.queues, list(self.found), strict=True):
            if isinstance(found, EvaluationResult):
                outcomes[queue.name] = found
            elif isinstance(found, _Parts):
                outcomes.update(found.results)
                outcomes.update(dict.fromkeys(found.errors))
            elif isinstance(found, _Failure):
                outcomes[queue.name] = None
        return outcomes

    def __repr__(self) -> str:
        states = (
            f"{queue.name}={self.outcome(queue) if self.done(queue) else 'pending'!r}"
            for queue in self.queues
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "no result"


class ReadEvaluations(Lazy):
    """An item's evaluations for a router or gate. The results that it reads are remembered, to be committed.

    `audited` names evaluators in audit mode, whose results are invisible here.
    """

    __slots__ = ("_audited", "_failed", "evaluations", "read")

    def __init__(self, evaluations: Evaluations, audited: frozenset[str] = frozenset()) -> None:
        self.evaluations = evaluations
        self._failed: tuple[str, ...] = ()
        self.read: dict[str, EvaluationResult] = {}
        self._audited = audited

    def __getitem__(self, name: str) -> EvaluationResult:
        if (found := self.get(name)) is None:
            raise KeyError(name) if self._hides(name) else self.evaluations.missing(name)
        result: EvaluationResult = found
        return result

    def get(self, key: str, default: Any = None) -> Any:
        if self._audited and self._hides(key):
            return default
        if (found := self.evaluations.find(key)) is None:
            if self.evaluations.error_of(key) is not None:
                self._failed = (*self._failed, key)
            return default
        if "." in key:
            self.read.update(self.evaluations.parts(key))
        self.read[key] = found
        return found

    def commit(self, queue: EvaluatorQueue) -> None:
        """Read whatever that evaluator gave."""
        if parts := self.evaluations.parts(queue.name):
            self.read.update(parts)
        else:
            self.get(queue.name)

    def _hides(self, name: str) -> bool:
        if not self._audited:
            return False
        queue = self.evaluations.queue(name)
        return (name if queue is None else queue.name) in self._audited

    @property
    def unread(self) -> Results:
        """All visible results, without marking them as read. Waits for them."""
        seen = {name: result for name, result in self.evaluations.items() if not self._hides(name)}
        return Results(seen, self.errors, self.evaluations.trace)

    def untracked(self) -> ReadEvaluations:
        """The same for a policy in audit mode: further results that it reads are not marked as read."""
        own = ReadEvaluations(self.evaluations)
        own.read, own._failed = dict(self.read), self._failed
        return own

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results that were read so far; None for an evaluator that failed."""
        return {**self.read, **dict.fromkeys(self._failed)}

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        if self._hides(name):
            return None
        await self.evaluations.aget(name)
        found: EvaluationResult | None = self.get(name)
        return found

    def error_of(self, name: str) -> str | None:
        """As `Evaluations.error_of`."""
        return None if self._hides(name) else self.evaluations.error_of(name)

    @property
    def errors(self) -> Mapping[str, str]:
        errors = self.evaluations.errors
        return MappingProxyType({k: v for k, v in errors.items() if k not in self._audited})

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.evaluations if not self._hides(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


# Evaluations that are not done when the interpreter ends are lost, because no checkpoint has them. The same
# is true of a cycle's unwritten results.
