"""Lazy evaluation results: queued for the background, or run by the code that reads them first.

`Evaluations` is an item's `evaluation_results`. `Background` runs evaluations that no code has read: one
cheap enqueue per item, one worker for quick evaluators, and a queue of its own for each slow one. See
docs/design/evaluations.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine
from math import inf
from queue import SimpleQueue
from threading import Condition, Lock
from typing import Any, TypeVar, cast

from langchain_core.runnables.config import var_child_runnable_config

from arbiter._threads.deadlines import (
    LOOP,
    EventLoop,
    InlineTiming,
    as_coroutine,
    is_from_outside,
    start,
    within,
)
from arbiter._threads.forks import new_lock, renew_in_child
from arbiter._values.once import Once
from arbiter._values.states import UnreadableError
from arbiter.errors import EvaluationError, MissingEvaluationError, Unscored, describe, nearest
from arbiter.evaluation import EvaluatorGroup, FinishedRun, GroupOutcome, NodeEvaluator
from arbiter.history._items import History
from arbiter.history._results import NOTHING, End, Judgement, Lazy
from arbiter.models import judged_thread, usage_meter
from arbiter.verdicts import (
    EvaluationResult,
    EvaluatorTrace,
    Several,
    as_evaluation,
    evaluation_fault,
)

T = TypeVar("T")
LOOK = 0.05
log = logging.getLogger("arbiter")
_told = new_lock()
Stack = tuple[tuple["EvaluatorQueue", int], ...]
running: ContextVar[Stack] = ContextVar("arbiter_running_evaluations", default=())
"""The evaluations in whose `evaluate` the caller runs: each with the evaluator's queue and the id of its
`Evaluations`.
"""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    outcome: Unscored = "error"


class _NotRun:
    """The group has not run that evaluator."""


NOT_RUN = _NotRun()
Found = EvaluationResult | Several | _Failure | _NotRun
"""The outcome of an evaluator. Several results are here by their full names."""


def owner_of(name: str, evaluators: Collection[str]) -> str | None:
    """Which of these evaluators gives the result of that name; `style` gives `style.brief`."""
    if name in evaluators:
        return name
    return max((each for each in evaluators if name.startswith(f"{each}.")), key=len, default=None)


class Places:
    """The places in which an evaluator's calls run: at most `size` at once, and one for each node run."""

    __slots__ = ("_free", "_lock", "_waiting", "awaiting", "size", "taken")

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self._free = Condition(self._lock)
        self._waiting = 0
        self.taken: set[int] = set()
        """The ids of the `Evaluations` that are being worked on."""
        self.awaiting: set[int] = set()
        """Those of them whose call waits for the evaluator's event loop."""

    def take(self, key: int, seconds: float) -> bool:
        """Take a place for a node run. Returns False if `seconds` (0: do not wait) were too short."""
        with self._lock:
            if self._blocked(key):
                if seconds <= 0:
                    return False
                self._waiting += 1
                try:
                    if not self._free.wait_for(lambda: not self._blocked(key), seconds):
                        return False
                finally:
                    self._waiting -= 1
            self.taken.add(key)
            return True

    def _blocked(self, key: int) -> bool:
        return key in self.taken or len(self.taken) >= self.size

    def leave(self, key: int) -> None:
        """Give the place back. Code that begins to wait meanwhile looks once more."""
        self.taken.discard(key)
        if self._waiting:
            with self._lock:
                self._free.notify_all()

    def waits_for_loop(self, key: int) -> bool:
        """True if a place for that node run becomes free only when the evaluator's event loop goes on."""
        return key in self.awaiting or len(self.awaiting) >= self.size


class EvaluatorQueue:
    """One registered evaluator. At most `concurrency` of its calls run at once, by default one."""

    def __init__(self, evaluator: NodeEvaluator, loop: EventLoop) -> None:
        self.evaluator = evaluator
        self.loop = loop
        self.name = evaluator.name
        self.is_async = evaluator.is_async
        self.stand_ins: dict[str | None, NodeEvaluator] = {}
        """Copies that judge in its place, by LangGraph thread: those whose judges a harness counts."""
        self._version: str | None = None
        self.token = secrets.token_hex()  # as that of a `Registration`
        # A deadline needs another thread, which costs more than most evaluators and doubles the cost of a
        # step. So a deadline that the user set is always kept, and the default one is dropped once an
        # evaluator has proved to be quick. The time of a call that returns a coroutine proves nothing.
        asked_for = evaluator.deadline not in (None, NodeEvaluator.deadline)
        is_unknown = self.is_async and evaluator.blocking is None
        self.timing = InlineTiming(True if asked_for or is_unknown else evaluator.blocking)
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Start anew after a fork: the evaluator's threads exist only in the parent process."""
        self.places = Places(self.evaluator.concurrency)
        self.backlog = SimpleQueue[Evaluations]()
        self.open = 0
        """The number of node runs that were handed over to the evaluator's threads and are not judged."""
        self.workers = 0
        """The number of these threads."""

    @property
    def version(self) -> str:
        """The evaluator's version; "" if it cannot be found. The first call may read its source."""
        if self._version is None:
            try:
                self._version = str(self.evaluator.version)
            except Exception as exc:  # of a user's own `version` or `texts`
                log.warning("evaluator %s has no version: %s", self.name, describe(exc))
                self._version = ""
        return self._version

    def run(self, evaluations: Evaluations, at: int) -> Found:
        """The evaluator's outcome at place `at`, run now if it is missing. Never raises."""
        key = id(evaluations)
        stack, own = running.get(), (self, key)
        if own in stack:
            return _Failure(f"evaluator {self.name!r} waits for its own result")
        if not self.places.take(key, 0) and (problem := self._problem_of_waiting(key)) is not None:
            return self._failed(problem, evaluations.view)
        try:
            found = evaluations.found
            if (outcome := found[at]) is None:  # another reader may have put it there meanwhile
                begun = 0 if evaluations.times is None else time.time_ns()
                outcome = copy_context().run(self._outcome, (*stack, own), evaluations)
                if evaluations.times is not None:
                    evaluations.times[self.name] = begun, time.time_ns()
                found[at] = outcome
                evaluations.let_go()
            return outcome
        finally:
            self.places.leave(key)

    def _problem_of_waiting(self, key: int) -> _Failure | None:
        """Wait for a place. Returns a `_Failure` if that was impossible or took too long."""
        left = inf if self.evaluator.deadline is None else self.evaluator.deadline
        while left > 0:
            if self.loop.is_here and self.places.waits_for_loop(key):  # which this very thread blocks
                return _Failure(_FROM_THE_LOOP.format(self.name))
            if self.places.take(key, min(left, LOOK)):
                return None
            left -= LOOK
        return _Failure(f"TimeoutError: an earlier call of {self.name!r} is still running", "timeout")

    def _outcome(self, stack: Stack, evaluations: Evaluations) -> Found:
        view: Any = evaluations.view
        running.set(stack)
        thread_id = getattr(view, "thread_id", None)
        judged_thread.set(thread_id)
        usage_meter.set(None)
        # An evaluator never gets the graph's callbacks and streams, whichever code reads its result.
        var_child_runnable_config.set(None)
        evaluate = self.stand_ins.get(thread_id, self.evaluator).evaluate
        try:
            if self.timing.inline:
                answer: Any = self.timing.timed(evaluate, view)
            else:
                answer = self._called(evaluate, view)
            if type(answer) is not EvaluationResult:
                if isawaitable(answer):
                    answer = self._waited(answer, id(evaluations))
                if isinstance(answer, _Failure):
                    return self._failed(answer, view)
            read = as_evaluation(answer)
        except BaseException as exc:  # also SystemExit: an evaluator's failure never ends the run
            if is_from_outside(exc):
                raise
            # A replay reports what it could not read itself: once, not for each node run.
            shown = None if isinstance(exc, UnreadableError) else view
            return self._failed(_Failure(describe(exc), _unscored(exc)), shown)
        if isinstance(read, EvaluationResult):
            return read
        if isinstance(read, str):
            return self._failed(_Failure(f"evaluator {self.name!r} {read}"), view)
        return self._parts(read, evaluations, view)

    def _parts(self, several: Several, evaluations: Evaluations, view: History) -> Several:
        faults = dict(several.faults)
        evaluators = {queue.name for queue in evaluations.queues}
        for key in several.results:
            if (owner := owner_of(f"{self.name}.{key}", evaluators)) != self.name:
                faults[key] = (
                    f"returned a result {key!r}, but {owner!r} is another evaluator. Rename one of the two"
                )
        for key, fault in faults.items():
            self._failed(_Failure(f"its result {key!r}: evaluator {self.name!r} {fault}"), view)
        return Several(
            {f"{self.name}.{key}": found for key, found in several.results.items() if key not in faults},
            {f"{self.name}.{key}": f"evaluator {self.name!r} {fault}" for key, fault in faults.items()},
        )

    def _failed(self, failure: _Failure, view: History | None) -> _Failure:
        if view is not None and log.isEnabledFor(logging.WARNING):
            node = view.item.node
            log.warning("evaluator %s failed on node %r: %s", self.name, node, failure.message)
        return failure

    def _called(self, evaluate: Callable[[History], Any], view: History) -> Any:
        deadline = self.evaluator.deadline
        if deadline is None or self.is_async:
            return self.timing.timed(evaluate, view)
        call = partial(self.timing.timed, evaluate, view)
        return within(deadline, start(call, context=_own_context(), name="arbiter-call"))

    def _waited(self, answer: Any, key: int) -> Any:
        coroutine = answer if iscoroutine(answer) else as_coroutine(answer)
        if self.loop.is_here:
            coroutine.close()
            raise RuntimeError(_FROM_THE_LOOP.format(self.name))
        awaiting = self.places.awaiting
        awaiting.add(key)
        try:
            return within(
                self.evaluator.deadline, self.loop.submit(_in(running.get(), judged_thread.get(), coroutine))
            )
        except TimeoutError:
            self.loop.leave_if_stuck()
            raise
        finally:
            awaiting.discard(key)


def _own_context() -> Context:
    """A context without the graph's run. It has only the waiting evaluations, so that one that waits for
    itself is noticed.
    """
    context = Context()
    context.run(running.set, running.get())
    context.run(judged_thread.set, judged_thread.get())
    return context


async def _in(stack: Stack, thread_id: str | None, coroutine: Any) -> Any:
    running.set(stack)
    judged_thread.set(thread_id)
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as exc:  # would end the event loop with all its coroutines
        return _Failure(describe(exc))


def _unscored(error: BaseException) -> Unscored:
    """The outcome of an evaluator that raised this."""
    if isinstance(error, EvaluationError):
        return error.outcome
    return "timeout" if isinstance(error, TimeoutError) else "error"


_FROM_THE_LOOP = (
    "evaluator {!r} is not done, and runs on the same event loop as the caller. "
    "Await evaluation_results.aget(name), or read it in a `def`."
)


_uncommitted = Once()
"""The evaluators that `report_uncommitted` has reported."""
_unknown = Once()
"""The names that `_report_unknown` has reported."""
_UNREAD: tuple[Collection[str], Collection[str]] = ((), ())


class Evaluations(Lazy):
    """The evaluation results of one item. Lazy.

    `get`, `[]` and `in` wait for one name; `len`, iteration and `errors` wait for all. A name whose evaluator
    failed is absent, and `errors` gives the reason.
    """

    __slots__ = ("_after", "_trace", "begun", "found", "members", "queues", "read", "times", "view")

    def __init__(
        self,
        queues: tuple[EvaluatorQueue, ...],
        view: History | None,
        members: tuple[EvaluatorQueue, ...] = (),
    ) -> None:
        self.queues = queues
        self.view = view
        """The history that the evaluators see, until all are done."""
        self.members = members
        """The evaluators that the group runs."""
        self.begun: tuple[Future[GroupOutcome], int] | None = None
        """Their outcome, and the process that works on it, until it is done."""
        self._trace: Sequence[EvaluatorTrace] | None = None
        self.found: list[Found | None] = [None] * len(queues)
        """The outcomes so far, in the order of the evaluators."""
        self._after: Callable[[], None] | None = None
        self.times: dict[str, tuple[int, int]] | None = None
        """When each evaluator began and ended, in nanoseconds since 1970, if somebody listens."""
        self.read: tuple[Collection[str], Collection[str]] = _UNREAD
        """The evaluators whose results, or whose failures, the deciding rules have read so far."""

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when all evaluations are done: now, or on the thread that ends the last one.

        Reads and runs nothing. There is one callback at most.
        """
        self._after = callback
        self.let_go()

    def outcome(self, queue: EvaluatorQueue) -> Found | None:
        """The outcome of that evaluator, or None if it is not done."""
        return self.found[self.queues.index(queue)]

    def resolve(self, queue: EvaluatorQueue) -> Found:
        """The outcome of that evaluator. Runs it here and now unless it has begun."""
        at = self.queues.index(queue)
        if (outcome := self.found[at]) is not None:
            return outcome
        return self._finished(queue) if queue in self.members else queue.run(self, at)

    def begin(self, group: EvaluatorGroup, finished: FinishedRun) -> None:
        """Begin the evaluators of the group, on the node's own thread. Never raises."""
        context = _own_context()
        context.run(running.set, (*running.get(), *((queue, id(self)) for queue in self.members)))
        thread_id = getattr(finished.history, "thread_id", None)
        context.run(judged_thread.set, thread_id)
        evaluators = [queue.stand_ins.get(thread_id, queue.evaluator) for queue in self.members]
        try:
            begun = context.run(group.begin, evaluators, finished)
        except Exception as exc:
            begun = Future[GroupOutcome]()
            begun.set_exception(exc)
        self.begun = begun, os.getpid()
        begun.add_done_callback(self._take)

    def _finished(self, queue: EvaluatorQueue) -> Found:
        """The outcome of an evaluator of the group. Waits for the whole group."""
        if not self.done(queue) and (queue, id(self)) in running.get():
            return _Failure(f"evaluator {queue.name!r} waits for its own group")
        if (begun := self.begun) is not None:
            future, pid = begun
            if pid != os.getpid() and not future.done():
                future = Future[GroupOutcome]()
                future.set_exception(RuntimeError("it runs in the parent process"))
            if LOOP.is_here and not future.done():
                return _Failure(_FROM_THE_LOOP.format(queue.name))
            wait((future,))
            self._take(future)  # the callback may do it later than a reader needs it
        outcome = self.outcome(queue)
        return (
            _Failure(f"the group of evaluator {queue.name!r} has not begun") if outcome is None else outcome
        )

    def _take(self, begun: Future[GroupOutcome]) -> None:
        """Take over the outcomes of the group, which is done."""
        try:
            outcome, trace = begun.result(), tuple(begun.result().trace)
        except BaseException as exc:  # also SystemExit, as of any evaluator
            problem = f"{type(exc).__name__} in the group"
            outcome, trace = GroupOutcome(errors={queue.name: problem for queue in self.members}), ()
        self._settle(outcome, trace)

    def _settle(self, outcome: GroupOutcome, trace: Sequence[EvaluatorTrace] = ()) -> None:
        self._trace = trace
        for queue in self.members:
            if not self.done(queue):
                self.found[self.queues.index(queue)] = _settled(queue.name, outcome)
        if self.times is not None:
            self.times.update(outcome.times)
        self.begun = None
        self.let_go()

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        if self._trace is not None or not self.members:
            return self._trace or ()
        return tuple(EvaluatorTrace(queue.name, "run", "pending") for queue in self.members)

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

    def know(
        self,
        results: Mapping[str, EvaluationResult],
        *,
        errors: Mapping[str, str] = NOTHING,
        settled: bool = False,
    ) -> None:
        """Set results and errors that were found before, so that their evaluators do not run again.

        With `settled`, the evaluators of the group that gave no result do not run either.
        """
        for at, each in enumerate(self.queues):
            if each.name in errors:
                self.found[at] = _Failure(errors[each.name])
        parts: dict[EvaluatorQueue, dict[str, EvaluationResult]] = {}
        for name, found in results.items():
            queue = self.queue(name)
            if queue is not None and queue.name == name:
                self.found[self.queues.index(queue)] = found
            elif queue is not None:
                parts.setdefault(queue, {})[name] = found
        for queue, several in parts.items():  # all of them: they are read together
            self.found[self.queues.index(queue)] = Several(several, NOTHING)
        if settled and self.members:
            self._settle(GroupOutcome())
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

    def report_uncommitted(self, name: str, node: str) -> None:
        queue = self.queue(name)
        if queue is None or queue.evaluator.durable or not queue.evaluator.enforced:
            return
        if queue.name in self.read[0] or queue.name in self.read[1]:
            return
        if not _uncommitted.is_new(weakref.ref(queue)):
            return
        log.warning(
            "a rule looked for the result %r of an earlier run of node %r, which is not committed: no router "
            "read it there. Set durable=True on evaluator %r, so that later rules find it",
            name,
            node,
            queue.name,
        )

    def parts(self, name: str) -> Mapping[str, EvaluationResult]:
        """All results of the evaluator that gives the one of that name, if it gave several. Waits for it."""
        queue = self.queue(name)
        outcome = None if queue is None else self.resolve(queue)
        return outcome.results if isinstance(outcome, Several) else NOTHING

    def done(self, queue: EvaluatorQueue) -> bool:
        return self.outcome(queue) is not None

    async def aget(self, name: str) -> EvaluationResult | None:
        """As `get`, without blocking the event loop."""
        queue = self.queue(name)
        if queue is None:
            return None
        if not self.done(queue) and (queue in self.members or not queue.timing.inline):
            await asyncio.wrap_future(start(lambda: self.resolve(queue), context=_own_context()))
        return self.get(name)

    def find(self, name: str) -> EvaluationResult | None:
        """The result of that evaluator, or None if there is none. Waits for it."""
        if (queue := self.queue(name)) is None:
            return None
        outcome = self.resolve(queue)
        if isinstance(outcome, Several):
            return outcome.results.get(name)
        return outcome if isinstance(outcome, EvaluationResult) and queue.name == name else None

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

    def error_of(self, name: str) -> str | None:
        """The reason why that evaluator gave no result, or None if it gave one. Waits for it."""
        if (queue := self.queue(name)) is None:
            return None
        self.resolve(queue)
        found = self.outcome(queue)  # None for an evaluator that waits for itself
        if isinstance(found, _Failure):
            return found.message
        if isinstance(found, Several) and name not in found.results:
            return found.faults.get(name) or f"the evaluator gave {_listed(found.results)}"
        if isinstance(found, EvaluationResult) and name != queue.name:
            return f"the evaluator gave one result, {queue.name!r}"
        return None

    def version_of(self, name: str) -> str:
        queue = self.queue(name)
        return "" if queue is None else queue.version

    def judgements(self) -> list[Judgement]:
        """The evaluations that are done so far. Waits for nothing."""
        return [Judgement(*end, queue.version) for queue, end in self._done()]

    def ends(self) -> Iterator[End]:
        for queue in self.queues:
            self.resolve(queue)
        return (end for _, end in self._done())

    def _done(self) -> Iterator[tuple[EvaluatorQueue, End]]:
        for queue, found in zip(self.queues, self.found, strict=True):
            if isinstance(found, EvaluationResult):
                yield queue, (queue.name, found, None, found.outcome)
            elif isinstance(found, Several):
                for name, result in found.results.items():
                    yield queue, (name, result, None, result.outcome)
                for name, problem in found.faults.items():
                    yield queue, (name, None, problem, "error")
            elif isinstance(found, _Failure):
                yield queue, (queue.name, None, found.message, found.outcome)
            elif found is not None:
                yield queue, (queue.name, None, None, "not_applicable")

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results so far; None for an evaluator that failed."""
        return {
            name: result
            for _, (name, result, problem, _) in self._done()
            if result is not None or problem is not None
        }

    def __repr__(self) -> str:
        states = (
            f"{queue.name}={self.outcome(queue) if self.done(queue) else 'pending'!r}"
            for queue in self.queues
        )
        return f"<evaluations {', '.join(states)}>"


def _settled(name: str, outcome: GroupOutcome) -> Found:
    if (problem := outcome.errors.get(name)) is not None:
        late = any(part.name == name and part.status == "timeout" for part in outcome.trace)
        return _Failure(problem, "timeout" if late else "error")
    found: object = outcome.results.get(name, NOT_RUN)
    if found is NOT_RUN:
        return NOT_RUN
    fault = evaluation_fault(found)
    return cast(EvaluationResult, found) if fault is None else _Failure(f"evaluator {name!r} {fault}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "no result"


def _report_unknown(name: str, known: Sequence[str]) -> None:
    """Warn that a rule read a result that no evaluator gives."""
    if _unknown.is_new(name):
        names = ", ".join(known) or "none"
        log.warning(
            "a rule read the result %r of its node, and no evaluator gives one of that name, so it found none. "
            "Evaluators: %s.%s (This is reported once.)",
            name,
            names,
            nearest(name, known),
        )


class ReadEvaluations(Lazy):
    """An item's evaluations for a router or gate. The results that it reads are remembered, to be committed.

    `audited` names evaluators in audit mode, whose results are invisible here, and `known` all evaluators, of
    this node or not.
    """

    __slots__ = ("_audited", "_known", "evaluations", "failed", "read")

    def __init__(
        self, evaluations: Evaluations, audited: frozenset[str] = frozenset(), known: Sequence[str] = ()
    ) -> None:
        self.evaluations = evaluations
        self._known = known
        self.failed: list[str] = []
        """The names that were read of evaluators that failed."""
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
                self.failed.append(key)
            elif owner_of(key, self._known) is None:
                _report_unknown(key, self._known)
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

    def ends(self) -> Iterator[End]:
        return (end for end in self.evaluations.ends() if not self._hides(end[0]))

    def version_of(self, name: str) -> str:
        return self.evaluations.version_of(name)

    @property
    def trace(self) -> Sequence[EvaluatorTrace]:
        return self.evaluations.trace

    def untracked(self) -> ReadEvaluations:
        """The same for a policy in audit mode: further results that it reads are not marked as read."""
        own = ReadEvaluations(self.evaluations, known=self._known)
        own.read, own.failed = dict(self.read), list(self.failed)
        return own

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        """The results that were read so far; None for an evaluator that failed."""
        return {**self.read, **dict.fromkeys(self.failed)}

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
