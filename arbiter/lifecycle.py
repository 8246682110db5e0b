"""One governed node run, as a generator without I/O: check, advise, run, evaluate, route, record.

The generator yields what it needs (`Call`, `Body`, `Ask`, `Resolve`, ...) and is sent the answer, or `Raised` when
there was an exception; it never raises itself. What it returns is the node's output, or `Raised`. The two
drivers in `drivers.py` are all that knows about threads, event loops and LangGraph's interrupt.
See docs/design/lifecycle.md.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.constants import END
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.types import Command
from pydantic import BaseModel, TypeAdapter, ValidationError

from arbiter.contracts import Contract
from arbiter.errors import (
    CorrectionError,
    OutputSchemaError,
    PolicyViolationError,
    SyncDriverError,
    nearest,
)
from arbiter.evaluations import Background, Evaluations, Lane, ReadEvaluations
from arbiter.facts import KEEP, Fact, Past, Value, fold
from arbiter.history import CausalHistory, HistoryItem, Record, fact_from, facts_of
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.recorder import Recovered, Run
from arbiter.registry import Plan, Seat
from arbiter.shadow import ShadowDecision, ShadowDifference, ShadowLog
from arbiter.states import Snapshot, as_state, digest, freeze, is_atom, snapshot, thaw, with_fields, without
from arbiter.verdicts import ALLOW, Correction, EvaluationResult, Terms, Verdict, as_verdict, terms_of

# What the generator asks for ----------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """Call a contract's method."""

    seat: Seat[Any]
    args: tuple[Any, ...]


@dataclass(slots=True)
class CallAll:
    """Call one method of several contracts, one after another, with the same arguments; sends the answers."""

    seats: Sequence[Seat[Any]]
    args: tuple[Any, ...]


@dataclass(slots=True)
class Body:
    """Run the node's body. `held`: what it streams is kept back until it is released."""

    input: Any
    held: bool = False


@dataclass(slots=True)
class Ask:
    """Interrupt with `payload`, unless a human has answered that: sends `Answered`, or `NO_ANSWER`. `number` counts
    the questions of this node run from 0, `key` is the digest of what the question is about, `at` is the time."""

    payload: Mapping[str, Any]
    number: int
    key: str
    at: float

    @property
    def policies(self) -> list[str]:
        """Who asks."""
        requests = self.payload.get("requests", ())
        return [self.payload["policy"], *(request["policy"] for request in requests)]

    def is_about(self, digest: object, policies: object) -> bool:
        """Whether that question was about the same, and asked in the name of all who ask now."""
        return digest == self.key and isinstance(policies, list | tuple) and {*self.policies} <= {*policies}

    def is_like(self, question: Mapping[str, Any]) -> bool:
        """Whether a saved question is this one, asked earlier."""
        if "digest" not in question or question.get("question") != self.number:
            return False
        asked = Ask(question, self.number, question["digest"], 0)
        return self.is_about(asked.key, asked.policies)


@dataclass(slots=True)
class Answered:
    """What a human answered. `asked_at` is when the question was asked first, None if that is not known, `at` when
    the answer came, both in POSIX seconds."""

    answer: Any
    asked_at: float | None
    at: float


@dataclass(slots=True)
class Resolve:
    """Wait for one evaluator's outcome."""

    evaluations: Evaluations
    lane: Lane


@dataclass(slots=True)
class LookBack:
    """What the checkpointer holds of the superstep of `run`; sends a `Saved`."""

    run: NodeRun


@dataclass(slots=True)
class OutputOf:
    """The output of an earlier task of this node that is no longer in memory; sends `(output,)` or None."""

    task: str


@dataclass(slots=True)
class Keep:
    """Keep a note about this task beside the checkpoint, until the task is done. It is plain data."""

    note: Mapping[str, Any]


@dataclass(slots=True)
class Saved:
    """What was saved of an unfinished superstep."""

    facts: Sequence[Fact] = ()
    """Of tasks that had finished."""
    asked: Sequence[Mapping[str, Any]] = ()
    """The questions of this task that are open or were just answered."""
    notes: Sequence[Mapping[str, Any]] = ()
    """What was noted about this task, in any order."""


@dataclass(slots=True)
class Raised:
    """An exception in place of an answer."""

    error: BaseException


class NoAnswer:
    """The answer to a question that was not asked about this input."""


NO_ANSWER = NoAnswer()
Op = Call | CallAll | Body | Ask | Resolve | LookBack | OutputOf | Keep
Steps = Generator[Op, Any, Any]


# One node run -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Schemas:
    """Declared shapes of a node's input and output. Anything that a pydantic `TypeAdapter` takes."""

    input: TypeAdapter[Any] | None = None
    output: TypeAdapter[Any] | None = None
    input_name: str = ""
    output_name: str = ""


@dataclass(slots=True, eq=False)
class Settings:
    """What is the same for all node runs of one `ArbiterOS`. `facts` bounds what a checkpoint holds."""

    snapshot: Snapshot
    background: Background
    facts: int = KEEP
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    shadow: ShadowLog = dataclasses.field(default_factory=ShadowLog)


_lock = threading.Lock()
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NO_RESULTS: Mapping[str, EvaluationResult] = MappingProxyType({})
SHADOW = "shadow:"
"""What the tallies of a shadow constitution's checkers are filed under."""
_FUNCTIONS = "()"
_NOT_RESUMED: Recovered = (-1, _NOTHING)
opened: ContextVar[NodeRun | None] = ContextVar("arbiter_opened", default=None)
"""The governed node whose body is running: what graphs and functions that it calls belong to."""


class NodeRun:
    """One attempt of one governed node: what the lifecycle reads and decides, and what its driver can do.

    Made for every step of every graph, so most of it is made when it is first needed. Subclasses say how the
    body runs and how a human is asked: `weaving.Visit` in LangGraph, `functions.FunctionCall` without a graph.
    """

    redirect: str | None = None
    """Where the run goes instead of along the edges: a node, or END."""
    given: Mapping[str, Any] | None = None
    """The input's fields before something was lent."""
    lent: Mapping[str, Any] = _NOTHING
    """State keys and messages that the body has for this call only."""
    reads: ReadEvaluations | None = None
    questions: int = 0
    handlers: Sequence[BaseCallbackHandler] = ()
    """What looks into the body."""
    streamed: Sequence[Callable[[], None]] = ()
    """What the body has streamed while it was held; each sends one thing on its way."""
    escalation: tuple[PolicyRouter, Verdict] | None = None
    """A router wants a human to look at the output."""
    held: Mapping[str, Any] | None = None
    """The question about the output of this task that an earlier attempt has asked. The body is done."""
    capped: PolicyRouter | None = None
    """A router wants the best attempt, because it may not redirect again."""
    replaced: bool = False
    """The node's output is another than what its body returned or streamed."""
    begun: float = 0.0
    shadow: ShadowDecision | None = None
    """What a shadow constitution decided before the node."""
    _view: CausalHistory | None = None
    _shadow_view: CausalHistory | None = None
    _aside: RunnableConfig | None = None
    _apart: RunnableConfig | None = None
    _inner: dict[str, tuple[int, Value, dict[str, Fact]]] | None = None

    def __init__(
        self,
        *,
        record: Record,
        plan: Plan,
        input: Any,
        settings: Settings,
        run: Run,
        past: Past,
        parent: NodeRun | None,
        config: RunnableConfig | None,
        targets: frozenset[str],
        schemas: Schemas | None,
    ) -> None:
        self.record = record
        self.plan = plan
        self.input = input
        self.settings = settings
        self.run = run
        self.past = past
        self.parent = parent
        self.config = config
        self.targets = targets
        self.schemas = schemas

    @property
    def view(self) -> CausalHistory:
        """What policies see."""
        if self._view is None:
            self._view = CausalHistory(self.past, HistoryItem(self.record, view=True), self.run)
        return self._view

    @property
    def shadow_view(self) -> CausalHistory:
        """What policies of a shadow constitution see: the same, with tallies and evaluations of their own."""
        if self._shadow_view is None:
            item = HistoryItem(self.record, view=True, evaluations=_NO_RESULTS)
            self._shadow_view = CausalHistory(self.past, item, self.run, SHADOW)
        return self._shadow_view

    @property
    def aside(self) -> RunnableConfig | None:
        """The ambient config while a contract is called: its own model calls belong to no stream and no trace
        of the node, and `get_config()` still tells it about thread, user and so on."""
        if self._aside is None and (config := self.config) is not None:
            tags = [*(config.get("tags") or ()), "nostream"]
            self._aside = {**config, "callbacks": None, "tags": tags}
        return self._aside

    @property
    def apart(self) -> RunnableConfig | None:
        """As `aside`, for a contract whose decisions do not hold: it can neither pause the run nor stream."""
        if self._apart is None and (config := self.aside) is not None:
            self._apart = self.without_effects(config)
        return self._apart

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        return config

    def fact(self) -> Fact:
        """What is to be committed with the node's own writes."""
        fact = fact_from(
            self.record, self.plan.kinds if self.record.checks is self.plan.all_allowed else None
        )
        if self.reads is not None and self.reads.read:
            fact["evals"] = facts_of(self.reads.read)
        if (inner := self.inner()) is not None:
            fact["inner"] = inner
        return fact

    # What happens inside the body

    def report(self, namespace: str, step: int, value: Value, order: str, fact: Fact) -> None:
        """A node of a graph inside the body has finished: its graph's value before, and its fact."""
        with _lock:
            inner = self._inner = self._inner or {}
            known = inner.get(namespace)
            if known is None or known[0] != step:
                known = inner[namespace] = (step, value, {})
            known[2][order] = fact

    def adopt(self, namespace: str, value: Value) -> None:
        """What a graph inside the body has come to, where nobody could report it."""
        with _lock:
            inner = self._inner = self._inner or {}
            inner[namespace] = (-1, value, {})

    def called(self, facts: Sequence[Fact]) -> Past:
        """Note what governed functions in the body did; the past of the next one."""
        with _lock:
            inner = self._inner = self._inner or {}
            _, value, _ = inner.get(_FUNCTIONS, (-1, {}, {}))
            if facts:
                value = fold(value, facts, self.settings.facts)
                inner[_FUNCTIONS] = (-1, value, {})
        return Past(value, self.past)

    def inner(self) -> Value | None:
        """What all graphs and functions inside the body have come to."""
        if not self._inner:
            return None
        with _lock:
            parts = [self._inner[name] for name in sorted(self._inner, key=lambda n: (len(n), n))]
        keep = self.settings.facts
        values = [fold(value, [facts[o] for o in sorted(facts)], keep) for _, value, facts in parts]
        return values[0] if len(values) == 1 else fold({}, [{"inner": v} for v in values], keep)

    # What the driver needs

    def body(self, input: Any, held: bool) -> Any:
        raise NotImplementedError

    async def abody(self, input: Any, held: bool) -> Any:
        raise NotImplementedError

    def astream_body(self, input: Any, held: bool) -> AsyncIterator[Any]:
        raise NotImplementedError

    def ask(self, op: Ask) -> Any:
        raise NotImplementedError

    async def aask(self, op: Ask) -> Any:
        raise NotImplementedError

    def saved(self) -> Saved:
        return Saved()

    async def asaved(self) -> Saved:
        return Saved()

    @property
    def recovered(self) -> Recovered | None:
        """What this execution resumes, once somebody has looked."""
        return _NOT_RESUMED

    def recover(self, recovered: Recovered) -> None:
        """Remember it for the node runs that follow in this execution."""

    def output_of(self, task: str) -> tuple[Any] | None:
        return None

    async def aoutput_of(self, task: str) -> tuple[Any] | None:
        return None

    def skip_questions(self, count: int) -> None:
        """Count the questions that the body asked when it ran: they are not asked again."""

    def is_final(self, error: BaseException) -> bool:
        """Whether nobody will retry after that error of the body."""
        return True

    def is_own(self, command: Command[Any]) -> bool:
        """Whether a command that came up from a subgraph is meant for this node's graph."""
        return False

    @property
    def answered(self) -> int:
        """How many questions of this node run have an answer, those of the body included."""
        return 0

    def keep(self, note: Mapping[str, Any]) -> None:
        """Save a note about this task, if a checkpointer is there to keep it."""

    async def akeep(self, note: Mapping[str, Any]) -> None:
        """As `keep`."""


def lifecycle(run: NodeRun) -> Steps:
    """The whole of one node run. Returns the body's output, or `Raised`."""
    run.begun = run.settings.timer()
    plan = run.plan
    if plan.shadow is None and not plan.observers:
        return (yield from _govern(run))
    if plan.shadow is not None:
        yield from _shadow_check(run, plan.shadow)
    answer = yield from _govern(run)
    if plan.shadow is not None:
        _compare_checks(run)
        if run.record.status == "completed":
            yield from _shadow_route(run, plan.shadow, answer)
        yield from _observe(run, plan.shadow.observers, run.shadow_view, SHADOW)
    yield from _observe(run, plan.observers, run.view)
    return answer


def _govern(run: NodeRun) -> Steps:
    plan = run.plan
    if plan.escalates:
        saved = yield LookBack(run)
        if type(saved) is Raised:
            return saved  # it is not known whether the body has run
        run.held = _held_question(run, saved)
    if (
        plan.checkers
        or plan.shadow is not None
        or (run.schemas is not None and run.schemas.input is not None)
    ):
        stopped = yield from _check(run)
        if stopped is not None or run.redirect is not None:
            return _end(run, stopped)
    if run.held is not None:
        # The body is done; what is left is the human's answer.
        run.skip_questions(run.held["after"] - run.questions)
        run.questions = run.held["question"]
        return (yield from conclude(run, _kept_output(run.held)))
    if plan.advisors:
        yield from _advise(run)
    if plan.gate is None:
        output = yield Body(run.input)
    elif not plan.gate.contract.enforced:
        output = yield from _audit_draft(run, plan.gate)
    else:
        output = yield from _correct(run, plan.gate)
    return (yield from conclude(run, output))


def conclude(run: NodeRun, output: Any) -> Steps:
    """What follows the body. `output` is what it returned, or `Raised`."""
    if type(output) is Raised:
        return (yield from _failed(run, output))
    if run.lent:
        output = _without_lent(run, output)
    if (wrong := _output_refused(run, output)) is not None:
        return (yield from _failed(run, Raised(wrong)))
    return (yield from _completed(run, output, output))


def _end(run: NodeRun, output: Any) -> Any:
    run.record.duration = run.settings.timer() - run.begun
    return output


def note_output(run: NodeRun, output: Any) -> None:
    record = run.record
    record.duration = run.settings.timer() - run.begun
    record.output = snapshot(output, run.settings.snapshot)
    record.status = "completed"
    if record.drafts:
        record.drafts = ()


def _completed(run: NodeRun, output: Any, answer: Any) -> Steps:
    """The body is done: record, evaluate, route. `answer` is what the node run returns."""
    record, plan = run.record, run.plan
    note_output(run, output)
    if plan.output_checkers:
        stopped = yield from _check_output(run, output)
        if stopped is not None or run.redirect is not None:
            return stopped
    if plan.keeps_output:
        record.raw = output
    if plan.lanes:
        evaluations = record.evaluations = Evaluations(plan.lanes, run.view)
        run.reads = reads = ReadEvaluations(evaluations, plan.unseen)
        if run.held is not None:
            # Nobody judges again what a human was shown with its judgement.
            known = {name: EvaluationResult(**found) for name, found in run.held["evaluations"].items()}
            evaluations.know(known)
            reads.read.update(known)
        for lane in plan.awaited:
            yield Resolve(evaluations, lane)
            reads.get(lane.name)
        if plan.routers:
            # What routers read is committed. Afterwards the view is that of evaluators in the background, and
            # what those read of one another is nobody's decision.
            run.view.give_results(reads)
            yield from _route(run, output, plan.routers)
            run.view.give_results(None)
        if not evaluations.complete:
            run.settings.background.enqueue(evaluations)
    elif plan.routers:
        yield from _route(run, output, plan.routers)
    if (run.capped is None and run.escalation is None) or run.redirect is not None:
        return answer
    if type(answer) is Raised:
        return _not_replaced(run, answer)
    if run.capped is not None:
        answer = output = yield from _best_attempt(run, output, run.capped)
    if run.escalation is not None:
        return (yield from _escalate(run, output, *run.escalation))
    return answer


def _not_replaced(run: NodeRun, answer: Raised) -> Raised | None:
    """The output is a command that comes up from a subgraph: LangGraph has it already."""
    problem = "a command from a subgraph can neither be replaced nor kept until a human has answered"
    if run.escalation is None:
        capped = run.capped
        assert capped is not None
        run.record.failed(f"router {capped.name}", f"{problem}; the normal edges were taken")
        return answer
    router = run.escalation[0]
    return _denied(run, router.name, router.on_reject, problem, None)


def _observe(
    run: NodeRun, observers: Sequence[PolicyChecker], view: CausalHistory, prefix: str = ""
) -> Steps:
    """Tell how it went to the checkers that want to know."""
    record = run.record
    evaluations = record.evaluations
    tallies: dict[str, Mapping[str, float]] = {}
    if isinstance(evaluations, Evaluations) and run.reads is not None:
        # Before the first of them is told: what one finds read must not depend on which came first.
        for checker in observers:
            for name in checker.needs_of(record.node, record.instruction):
                if (lane := evaluations.lane(name)) is not None:
                    yield Resolve(evaluations, lane)
                    if checker.enforced:
                        run.reads.get(name)
    for checker in observers:
        try:
            _show_results(run, checker, view)
            found: Any = checker.observe(view)
            if found:
                tallies[prefix + checker.name] = {str(key): _amount(amount) for key, amount in found.items()}
        except Exception as exc:
            record.failed(f"checker {checker.name}", f"observe: {describe(exc)}; nothing was counted")
        finally:
            if run.reads is not None:
                view.give_results(None)
    if tallies:
        record.tallies = {**record.tallies, **tallies}


def _show_results(run: NodeRun, policy: Contract, view: CausalHistory) -> None:
    """Let a policy see the evaluations. What it reads is committed, and then later policies find it, so one whose
    decisions do not hold reads without a trace, and only for it are there evaluators whose results do not count."""
    if (reads := run.reads) is not None:
        view.give_results(reads if policy.enforced else ReadEvaluations(reads.evaluations))


def _amount(amount: object) -> float:
    if isinstance(amount, bool) or not isinstance(amount, int | float) or amount != amount:
        raise TypeError(f"expected a number, got {amount!r}")
    return amount


def _failed(run: NodeRun, raised: Raised) -> Steps:
    """The body raised. Only a router with `on_error` can keep the exception from passing through."""
    record, error = run.record, raised.error
    if isinstance(error, ParentCommand):
        # A subgraph hands over with a command; for this graph that is the node's result.
        command: Any = raised.error.args[0]
        if not run.is_own(command):
            record.status = "completed"
            return _end(run, raised)
        return (yield from _completed(run, command, raised))
    record.duration = run.settings.timer() - run.begun
    if isinstance(error, GraphBubbleUp):
        record.status = "interrupted"
        return raised
    record.status = "failed" if isinstance(error, Exception) else "cancelled"
    record.error = describe(error)
    record.error_types = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__[:-1])
    if run.plan.error_routers and isinstance(error, Exception) and run.is_final(error):
        yield from _route(run, None, run.plan.error_routers)
        if run.redirect is not None:
            return None
        if run.capped is not None:
            return (yield from _best_attempt(run, raised, run.capped))
    return raised


# Check --------------------------------------------------------------------------------------------


def _check(run: NodeRun) -> Steps:
    """Ask all checkers; the strongest verdict wins. Returns `Raised` to stop the node, else None."""
    record, plan = run.record, run.plan
    approved: set[tuple[str, str]] = set()
    if plan.recovers:
        stopped = yield from _recover(run)
        if stopped is not None or run.redirect is not None:
            return stopped
    while True:
        if (refused := _input_refused(run)) is not None:
            record.checks = {"input_schema": Verdict.deny(refused)}
            return _denied(run, "input_schema", "raise", refused, None)
        verdicts: dict[str, Verdict] = {}
        causes: dict[str, BaseException] = {}
        answers: Any = yield CallAll(plan.checkers, (run.view,))
        if type(answers) is Raised:  # no checker's own: the run was cancelled
            record.status, record.error = "cancelled", describe(answers.error)
            return answers
        if (stopped := _read_verdicts(run, plan.checkers, answers, verdicts, causes)) is not None:
            return stopped
        if not verdicts:
            record.checks = plan.all_allowed
            return _watch(run)
        for seat in plan.checkers:
            if seat.name in verdicts and seat.contract.enforced:
                seat.contract.reads_history = True  # from now on no cache answers for this checker
        verdicts = {seat.name: verdicts.get(seat.name, ALLOW) for seat in plan.checkers}
        record.checks = verdicts
        enforced: list[PolicyChecker] = [s.contract for s in plan.checkers if s.contract.enforced]
        for checker in enforced:
            if verdicts[checker.name].kind == "deny":
                cause = causes.get(checker.name)
                reason = verdicts[checker.name].reason if cause is None else ""
                return _denied(run, checker.name, checker.on_deny, reason, cause)
        asking: list[PolicyChecker] = [c for c in enforced if verdicts[c.name].kind == "ask"]
        key = ""
        if asking:
            key = digest(as_state(run.input))
            asking = [c for c in asking if (c.name, key) not in approved]
        if not asking:
            return _watch(run)
        asked_about = run.input
        while asking and run.input is asked_about:
            stopped = yield from _approve(run, asking, verdicts, approved)
            if stopped is not None or run.redirect is not None:
                return stopped
            asking = [checker for checker in asking if (checker.name, key) not in approved]
        if run.input is asked_about:
            return _watch(run)


def _read_verdicts(
    run: NodeRun,
    seats: Sequence[Seat[PolicyChecker]],
    answers: Sequence[Any],
    verdicts: dict[str, Verdict],
    causes: dict[str, BaseException],
) -> Raised | None:
    """Note the verdicts that do not allow, and what failed checkers raised. Returns `Raised` to stop the node."""
    record = run.record
    for seat, answer in zip(seats, answers, strict=False):
        if answer is True or answer is ALLOW:
            continue
        if type(answer) is Raised:
            error = answer.error
            if seat.contract.enforced and isinstance(error, GraphBubbleUp):
                record.status = "interrupted"  # a checker may call LangGraph's interrupt() itself
                return answer
            if seat.contract.enforced and (
                isinstance(error, SyncDriverError) or not isinstance(error, Exception)
            ):
                record.status, record.error = "failed", describe(error)
                return answer
            causes[seat.name] = error
            verdicts[seat.name] = Verdict.deny(f"the checker failed: {describe(error)}")
        elif (verdict := as_verdict(answer)).kind != "allow":
            verdicts[seat.name] = verdict
    return None


def _check_output(run: NodeRun, output: Any) -> Steps:
    """Ask the checkers that look at outputs. Returns `Raised`, or sets the redirect, to keep the output back."""
    record, seats = run.record, run.plan.output_checkers
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, BaseException] = {}
    answers: Any = yield CallAll(seats, (freeze(as_state(output)), run.view))
    if type(answers) is Raised:
        record.status, record.error = "cancelled", describe(answers.error)
        return answers
    if (stopped := _read_verdicts(run, seats, answers, verdicts, causes)) is not None:
        return stopped
    for name, verdict in verdicts.items():
        if verdict.kind == "ask":
            reason = (
                f"it asks about an output, which only a router with escalates=True can do: {verdict.reason}"
            )
            verdicts[name] = Verdict.deny(reason)
    if verdicts:
        record.checks = {**record.checks, **verdicts}
    for seat in seats:
        checker = seat.contract
        if seat.name in verdicts and checker.enforced:
            checker.reads_history = True  # from now on no cache answers for this checker
            reason = f"its output was not committed: {verdicts[seat.name].reason}"
            return _denied(run, seat.name, checker.on_deny, reason, causes.get(seat.name))
    return None


def _recover(run: NodeRun) -> Steps:
    """Find out what siblings had counted before this execution of the graph, and of those around it, began."""
    levels: list[Mapping[str, Mapping[str, float]]] = []
    level: NodeRun | None = run
    while level is not None:
        if (recovered := level.recovered) is None:
            saved = yield LookBack(level)
            if type(saved) is Raised:
                return _not_recovered(run, saved)
            # Each of several siblings may have looked; they all saw the same.
            recovered = (level.record.step, tallies_of(saved.facts))
            level.recover(recovered)
        step, tallies = recovered
        levels.append(tallies if step == level.record.step else _NOTHING)
        level = level.parent
    run.view.give_recovered(levels)
    return None


def _not_recovered(run: NodeRun, raised: Raised) -> Raised | None:
    """The checkpointer cannot be read: those that need to know what is in it deny."""
    record, error = run.record, raised.error
    if not isinstance(error, Exception):
        record.status, record.error = "cancelled", describe(error)
        return raised
    unsure = [seat.contract for seat in run.plan.checkers if seat.contract.recovers]
    reason = f"the checker failed: {describe(error)}"
    record.checks = {checker.name: Verdict.deny(reason) for checker in unsure}
    for checker in unsure:
        if checker.enforced:
            return _denied(run, checker.name, checker.on_deny, "", error)
    return None


def _watch(run: NodeRun) -> Raised | None:
    """The node may run: let the checkers that look into its body do so."""
    shadow = run.plan.shadow
    if not run.plan.watchers and shadow is None:
        return None
    handlers: list[BaseCallbackHandler] = []
    for checker in () if shadow is None else shadow.watchers:
        try:
            handlers.extend(checker.handlers(run.shadow_view))
        except Exception as exc:
            run.record.failed(f"shadow {checker.name}", describe(exc))
    for checker in run.plan.watchers:
        try:
            handlers.extend(checker.handlers(run.view))
        except Exception as exc:
            reason = f"the checker failed: {describe(exc)}"
            run.record.checks = {**run.record.checks, checker.name: Verdict.deny(reason)}
            if checker.enforced:
                return _denied(run, checker.name, checker.on_deny, "", exc)
    run.handlers = handlers
    return None


def _input_refused(run: NodeRun) -> str | None:
    schemas = run.schemas
    if schemas is None or schemas.input is None:
        return None
    return _refused(schemas.input, schemas.input_name, run.input)


def _output_refused(run: NodeRun, output: Any) -> OutputSchemaError | None:
    schemas = run.schemas
    if schemas is None or schemas.output is None:
        return None
    refused = _refused(schemas.output, schemas.output_name, output)
    if refused is None:
        return None
    return OutputSchemaError(node=run.record.node, schema=schemas.output_name, message=refused)


def _refused(schema: TypeAdapter[Any], name: str, value: Any) -> str | None:
    """What the schema finds wrong, in one line, or None."""
    if isinstance(value, Command | list):
        value = as_state(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        schema.validate_python(value, from_attributes=True)
    except ValidationError as exc:
        parts = [f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in exc.errors()[:5]]
        return f"{name}: " + "; ".join(parts)
    except Exception as exc:  # a validator of the schema's own that breaks has not agreed
        return f"{name}: {describe(exc)}"
    return None


def _denied(
    run: NodeRun, policy: str, on_deny: str, reason: str, cause: BaseException | None
) -> Raised | None:
    record = run.record
    record.status = "denied"
    record.duration = run.settings.timer() - run.begun
    _, found, target = on_deny.partition("redirect:")
    if on_deny == "end":
        target = END
    elif not found:
        target = ""
    if target and target in run.targets:
        run.redirect = record.redirected_to = target
        return None
    error = PolicyViolationError(
        policy=policy, node=record.node, instruction=record.instruction, reason=reason, cause=cause
    )
    record.error = str(error)
    return Raised(error)


def _approve(
    run: NodeRun,
    asking: Sequence[PolicyChecker],
    verdicts: Mapping[str, Verdict],
    approved: set[tuple[str, str]],
) -> Steps:
    """Ask a human. An approval counts for the very input that it was given for.

    One question for all who ask, except that checkers with different approvers have a question each.
    """
    record = run.record
    terms: dict[str, Terms] = {}
    for checker in asking:
        try:
            terms[checker.name] = terms_of(verdicts[checker.name])
        except Exception as exc:
            return _refused_by(run, checker, f"its question cannot be asked: {describe(exc)}")
    first = next((c for c in asking if terms[c.name].approvers is not None), asking[0])
    approvers = terms[first.name].approvers
    asking = [c for c in asking if terms[c.name].approvers in (None, approvers)]
    limits = [after for c in asking if (after := terms[c.name].expires_after) is not None]
    state = as_state(run.input)
    key = digest(state)
    payload: dict[str, Any] = {
        **{k: v for c in reversed(asking) for k, v in verdicts[c.name].payload.items()},
        "type": "approval",
        "policy": first.name,
        "reason": verdicts[first.name].reason,
        "requests": [{"policy": c.name, "reason": verdicts[c.name].reason} for c in asking],
        "node": record.node,
        "instruction": record.instruction.qualified if record.instruction else None,
        "input": state,
        "digest": key,
        "allowed": ["approve", "edit", "reject"],
    }
    if run.held is not None:
        payload["held"] = run.held  # a question takes the place of the one before
    decision = yield from _ask(run, payload, key, "input", Terms(approvers, min(limits, default=None)))
    if type(decision) is Raised:
        if _passes(decision.error):
            record.status = "interrupted"
            return decision
        problem = f"it needs a human's approval, and nobody can be asked here: {describe(decision.error)}"
        return _refused_by(run, first, problem)
    if decision.kind == "edit":
        try:
            edited = with_fields(run.input, decision.detail)
            key = digest(as_state(edited))
            shown = snapshot(edited, run.settings.snapshot)
        except Exception as exc:
            return _refused_by(run, first, f"rejected: the edited input does not fit: {describe(exc)}")
        run.input, record.input = edited, shown
    if decision.kind == "reject":
        return _refused_by(run, first, decision.rejection)
    for checker in asking:
        record.note(f"checker {checker.name}", decision.signature)
    approved.update((checker.name, key) for checker in asking)
    return None


def _refused_by(run: NodeRun, checker: PolicyChecker, reason: str) -> Raised | None:
    """The checker asked, and that ended in a denial."""
    run.record.checks = {**run.record.checks, checker.name: Verdict.deny(reason)}
    return _denied(run, checker.name, checker.on_deny, reason, None)


@dataclass(slots=True)
class Decision:
    """What a human decided. `detail` is an edit's changes or a rejection's reason, `by` is who it was."""

    kind: Literal["approve", "edit", "reject"]
    detail: Any = None
    by: str | None = None

    @property
    def signature(self) -> str:
        done = {"approve": "approved", "edit": "edited", "reject": "rejected"}[self.kind]
        return done if self.by is None else f"{done} by {self.by!r}"

    @property
    def rejection(self) -> str:
        return f"{self.signature}: {self.detail}"


def _ask(run: NodeRun, payload: Mapping[str, Any], key: str, subject: str, terms: Terms) -> Steps:
    """Put a question to a human until there is an answer to it that came in time. Returns a `Decision`, or `Raised`."""
    remark: dict[str, Any] = {}
    while True:
        now = run.settings.clock()
        question: dict[str, Any] = {**payload, **remark, "asked_at": now}
        op = Ask(question, run.questions, key, now)
        if terms.approvers is not None:
            question["approvers"] = sorted(terms.approvers)
        if terms.expires_after is not None:
            # The question may be open already: it is as old as it was when it was asked first.
            saved = yield LookBack(run)
            if type(saved) is Saved:
                question["asked_at"] = next((q["asked_at"] for q in saved.asked if op.is_like(q)), now)
            question["expires_at"] = question["asked_at"] + terms.expires_after
        found = yield op
        run.questions += 1
        if type(found) is Raised:
            return found
        if type(found) is not Answered:
            continue
        decision = read_answer(found.answer, subject, terms.approvers)
        if decision.kind == "reject" or not terms.expired(found.asked_at, found.at):
            return decision
        remark = {"note": f"{decision.signature} too late; the question had expired"}


def _passes(error: BaseException) -> bool:
    """Whether an exception from asking is that of the pause, or of a cancellation."""
    return isinstance(error, GraphBubbleUp) or not isinstance(error, Exception)


def read_answer(answer: Any, subject: str, approvers: frozenset[str] | None = None) -> Decision:
    """What a resume value says. Anything unknown is a rejection, also an approval by somebody who may not."""
    try:
        decision = _read_answer(answer, subject)
    except Exception as exc:
        return Decision("reject", f"the answer could not be read: {type(exc).__name__}")
    if approvers is None or decision.kind == "reject" or decision.by in approvers:
        return decision
    names = ", ".join(map(repr, sorted(approvers)))
    if decision.by is None:
        example = f"{{'type': {decision.kind!r}, 'by': ...}}"
        return Decision("reject", f"the answer does not say by whom; expected {example} with one of {names}")
    return Decision("reject", f"{decision.by!r} may not approve; expected one of {names}")


def _read_answer(answer: Any, subject: str) -> Decision:
    given: Any = answer
    if isinstance(answer, Mapping) and isinstance(given.get("decisions"), list):
        decisions: Any = given["decisions"]
        answer = given = decisions[0] if len(decisions) == 1 else given  # LangChain's envelope
    if isinstance(answer, str) and answer == "approve":
        return Decision("approve")
    if isinstance(answer, str) and answer == "reject":
        return Decision("reject", "no message was given")
    if isinstance(answer, Mapping):
        name = given.get("by")
        by = str.__str__(name) if isinstance(name, str) and name else None
        match given.get("type"):
            case "approve":
                return Decision("approve", None, by)
            case "edit" if isinstance(given.get(subject), Mapping):
                return Decision("edit", given[subject], by)
            case "edit":
                return Decision("reject", f"an edit needs {{'type': 'edit', {subject!r}: {{...}}}}", by)
            case "reject":
                return Decision("reject", str(given.get("message") or "no message was given"), by)
            case _:
                pass
    text = repr(given)
    text = text if len(text) <= 80 else text[:77] + "..."
    return Decision("reject", f"the answer was {text}; expected approve, edit or reject")


# Advise and correct -------------------------------------------------------------------------------


def _advise(run: NodeRun) -> Steps:
    for number, seat in enumerate(run.plan.advisors):
        state = freeze(as_state(run.input))
        advice = yield Call(seat, (run.view, state))
        if type(advice) is Raised:
            if not isinstance(advice.error, Exception):
                continue
            run.record.failed(f"advisor {seat.name}", describe(advice.error))
            continue
        if not seat.contract.enforced:
            if advice is not None and advice != "":
                run.record.note(f"advisor {seat.name}", "audit: it would have added advice")
            continue
        try:
            _lend(run, advice, f"arbiter-{run.record.id}-{number}")
        except Exception as exc:
            run.record.failed(f"advisor {seat.name}", describe(exc))


def _lend(run: NodeRun, advice: Any, id: str, *, feedback: bool = False) -> None:
    """Add advice to the input of this call."""
    if advice is None or advice == "":
        return
    state = as_state(run.input)
    messages: Any = state.get("messages")
    has_messages = isinstance(state.get("messages"), list)
    if isinstance(advice, str):
        if has_messages:
            advice = HumanMessage(advice) if feedback else SystemMessage(advice)
        else:
            advice = {"feedback" if feedback else "advice": advice}
    given: Any = thaw(advice)
    if isinstance(advice, Mapping):
        if run.given is None:
            run.given = state
        run.input = with_fields(run.input, given)
        run.lent = {**run.lent, **given}
        return
    added: Any = [given] if isinstance(advice, BaseMessage) else given
    if not isinstance(advice, BaseMessage | Sequence) or not all(isinstance(m, BaseMessage) for m in added):
        raise TypeError(f"advice was a {type(given).__name__}; expected a text, messages or a mapping")
    if not has_messages:
        raise TypeError("advice was messages, but the node's input has no list 'messages'")
    named = [m.model_copy(update={"id": f"{id}-{i}"}) for i, m in enumerate(added)]
    lead = next((i for i, m in enumerate(messages) if getattr(m, "type", "") != "system"), len(messages))
    # System messages go with the leading ones: some providers refuse them anywhere else.
    system = [m for m in named if m.type == "system"]
    others = [m for m in named if m.type != "system"]
    run.input = with_fields(run.input, {"messages": [*messages[:lead], *system, *messages[lead:], *others]})
    run.lent = {**run.lent, **{m.id: m for m in named if m.id}}


def _without_lent(run: NodeRun, output: Any) -> Any:
    """The output without what was lent, should the node have returned it."""
    lent = run.lent
    output = without(output, lambda part: isinstance(part, BaseMessage) and part.id in lent)
    given: Any = output
    if isinstance(output, Command):
        update: Any = given.update
        kept = _own_fields(run, update) if isinstance(given.update, dict) else update
        return given if kept is update else dataclasses.replace(given, update=kept)
    if isinstance(output, dict):
        return _own_fields(run, given)
    if isinstance(output, BaseModel):
        return given.model_copy(update=changes) if (changes := _lent_back(run, given)) else given
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(given, **changes) if (changes := _lent_back(run, given)) else given
    return given


def _own_fields(run: NodeRun, output: dict[str, Any]) -> dict[str, Any]:
    """The fields of an output that the node wrote itself."""
    # A number that equals a lent one is the node's own, unless the node hands back the whole of its input.
    given = run.given or {}
    whole = given.keys() <= output.keys() and any(
        output[k] is v for k, v in given.items() if k not in run.lent
    )
    back = [k for k, v in output.items() if k in run.lent and v is run.lent[k] and (whole or not is_atom(v))]
    return {k: v for k, v in output.items() if k not in back} if back else output


def _lent_back(run: NodeRun, output: Any) -> dict[str, Any]:
    """Fields of a model that came back as they were lent, with what they were before."""
    given = run.given or {}
    state = as_state(output)
    return {k: given[k] for k, v in state.items() if k in run.lent and v is run.lent[k] and k in given}


def _audit_draft(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body once, and note what the gate would have made of its first draft."""
    output = yield Body(run.input)
    if type(output) is Raised:
        return output
    run.record.output = snapshot(output, run.settings.snapshot)
    answer = yield Call(seat, (run.view, freeze(as_state(output)), 1))
    if isinstance(answer, Correction):
        if answer.kind != "commit" or answer.replaces:
            what = (
                "have replaced the draft" if answer.kind == "commit" else f"{answer.kind}: {answer.feedback}"
            )
            run.record.note(f"gate {seat.name}", f"audit: it would {what}")
    else:
        problem = describe(answer.error) if type(answer) is Raised else f"returned a {type(answer).__name__}"
        run.record.failed(f"gate {seat.name}", problem)
    return output


@dataclass(slots=True)
class SentBack:
    """A draft that the gate sent back. What is in `note` is saved: number, what was asked before it, what the gate
    wants kept; never the draft. The rest is known to the process in which it was written alone."""

    note: Mapping[str, Any]
    feedback: str | None = None
    output: Any = None
    streamed: Sequence[Callable[[], None]] = ()


def _correct(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body until the gate takes a draft."""
    gate, record = seat.contract, run.record
    given, lent = run.input, run.lent
    yield from _go_on(run, seat)
    while True:
        attempt = len(record.drafts) + 1
        output = yield Body(run.input, held=True)
        if type(output) is Raised:
            return output
        if run.lent:
            output = _without_lent(run, output)
        record.output = snapshot(output, run.settings.snapshot)
        answer = yield Call(seat, (run.view, freeze(as_state(output)), attempt))
        if type(answer) is Raised or not isinstance(answer, Correction):
            if type(answer) is Raised and not isinstance(answer.error, Exception):
                return answer
            problem = (
                describe(answer.error)
                if type(answer) is Raised
                else f"returned a {type(answer).__name__}; expected a Correction"
            )
            record.failed(f"gate {seat.name}", f"{problem}; the draft was let through")
            break
        record.gating = answer.details
        if answer.kind == "commit":
            return _taken(run, seat, answer, output)
        record.corrections = (*record.corrections, answer.feedback)
        exhausted = attempt >= gate.max_attempts
        if answer.kind == "give_up" or (exhausted and gate.on_exhausted == "raise"):
            reason = answer.feedback or "no reason was given"
            if answer.kind == "retry":
                reason = f"{attempt} drafts were sent back, the last one because: {reason}"
            if record.drafts:  # whoever tries again begins with a first draft
                yield Keep({**record.drafts[-1].note, "seq": _seq(record), "over": True})
                record.drafts = ()
            return Raised(CorrectionError(gate=seat.name, node=record.node, reason=reason))
        if exhausted:
            record.note(f"gate {seat.name}", f"max_attempts={attempt} reached; the last draft was taken")
            break
        note = {"task": record.id, "seq": _seq(record), "asked": run.answered, "kept": thaw(answer.keep)}
        record.drafts = (*record.drafts, SentBack(note, answer.feedback, output, run.streamed))
        kept = yield Keep(note)
        if type(kept) is Raised:
            if not isinstance(kept.error, Exception):
                return kept
            record.failed(f"gate {seat.name}", f"the attempt could not be saved: {describe(kept.error)}")
        run.input, run.lent = given, lent
        _lend_feedback(run, seat, answer.feedback)
    for emit in run.streamed:
        emit()
    return output


def _seq(record: Record) -> int:
    return record.drafts[-1].note["seq"] + 1 if record.drafts else 1


def _go_on(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Go on after the drafts that were sent back before the run paused, failed or crashed."""
    record = run.record
    if not record.drafts:
        saved = yield LookBack(run)
        if type(saved) is Raised:
            record.failed(f"gate {seat.name}", f"earlier attempts are not known: {describe(saved.error)}")
            return
        notes: list[Mapping[str, Any]] = sorted(saved.notes, key=lambda note: note["seq"])
        over = max((at for at, note in enumerate(notes, 1) if "over" in note), default=0)
        record.drafts = [SentBack(note) for note in notes[over:]]
    else:  # what they streamed belongs to an execution that is over
        record.drafts = [dataclasses.replace(draft, streamed=()) for draft in record.drafts]
    if not record.drafts:
        return
    # The attempts that follow are not asked again what was answered before them.
    run.skip_questions(record.drafts[-1].note["asked"] - run.questions)
    feedback: Any = record.drafts[-1].feedback
    if feedback is None:
        try:
            feedback = seat.contract.resume(run.view, [draft.note["kept"] for draft in record.drafts])
        except Exception as exc:
            record.failed(f"gate {seat.name}", f"resume: {describe(exc)}")
            return
    _lend_feedback(run, seat, feedback)


def _lend_feedback(run: NodeRun, seat: Seat[Any], feedback: Any) -> None:
    record = run.record
    try:
        _lend(run, feedback, f"arbiter-{record.id}-draft-{len(record.drafts)}", feedback=True)
    except Exception as exc:
        record.failed(f"gate {seat.name}", f"the feedback could not be passed on: {describe(exc)}")


def _taken(run: NodeRun, seat: Seat[Any], answer: Correction, output: Any) -> Any:
    """The draft that the gate takes, or what it takes in its place. What goes with the draft is let go of."""
    record, streamed = run.record, run.streamed
    if answer.replaces:
        better: Any = thaw(answer.output)
        if isinstance(better, Command | list):
            return better
        return with_update(output, better) if any(isinstance(p, Command) for p in _parts(output)) else better
    if answer.attempt is not None and answer.attempt != len(record.drafts) + 1:
        known = record.drafts[answer.attempt - 1 : answer.attempt] if answer.attempt > 0 else ()
        if known and known[0].feedback is not None:
            output, streamed = known[0].output, known[0].streamed
        else:
            problem = f"attempt {answer.attempt} is not at hand; the last draft was taken"
            record.failed(f"gate {seat.name}", problem)
    for emit in streamed:
        emit()
    return output


# Route --------------------------------------------------------------------------------------------


def _route(run: NodeRun, output: Any, seats: Sequence[Seat[PolicyRouter]]) -> Steps:
    """Ask all routers; the first that answers and may, wins."""
    record = run.record
    if run.held is not None and (yield from _ask_again(run, output, run.held, seats)):
        return
    shown = freeze(output)
    routes: dict[str, str | None] = {}
    view = run.view
    for seat in seats:
        router = seat.contract
        target = yield from _asked(run, seat, shown)
        if target is None:
            continue
        routes[seat.name] = None
        if isinstance(target, Verdict):
            _wants_human(run, router, target)
        elif type(target) is Raised:
            if not isinstance(target.error, Exception) or isinstance(target.error, SyncDriverError):
                record.failed(f"router {seat.name}", describe(target.error))
            else:
                record.failed(f"router {seat.name}", f"{describe(target.error)}; the normal edges were taken")
        elif not isinstance(target, str) or target not in run.targets:
            names = ", ".join(sorted(run.targets - {END})) or "none"
            hint = nearest(target, run.targets) if isinstance(target, str) else ""
            record.failed(
                f"router {seat.name}",
                f"redirects to {target!r}, which is not a node of this graph. Nodes: {names}.{hint}",
            )
        else:
            target = str.__str__(target)  # an Enum's own text may be another
            routes[seat.name] = target
            if not router.enforced:
                record.note(f"router {seat.name}", f"audit: it would have redirected to {target!r}")
                continue
            if run.redirect is not None or run.escalation is not None:
                continue
            if view.past.redirects(seat.name) >= router.max_redirects:
                _at_cap(run, router, f"redirect to {target!r}")
                continue
            run.redirect = record.redirected_to = target
            record.redirected_by = seat.name
    if routes or seats is not run.plan.routers:
        record.routes = {seat.name: routes.get(seat.name) for seat in seats}
    else:
        record.routes = run.plan.no_routes


# Shadow -------------------------------------------------------------------------------------------


def _shadow_check(run: NodeRun, shadow: Plan) -> Steps:
    """What a shadow constitution would decide about this node. Changes nothing."""
    decision = ShadowDecision(kind="allow")
    answers: Any = yield CallAll(shadow.checkers, (run.shadow_view,))
    if type(answers) is Raised:
        return
    for seat, answer in zip(shadow.checkers, answers, strict=False):
        if type(answer) is Raised:
            kind = "ask" if isinstance(answer.error, GraphBubbleUp) else "deny"
            verdict = Verdict(cast(Any, kind), f"the checker failed: {describe(answer.error)}")
        else:
            verdict = as_verdict(answer)
        if _STRENGTH[verdict.kind] > _STRENGTH[decision.kind]:
            decision = _decision(verdict, seat.contract)
    run.shadow = decision


_STRENGTH = {"allow": 0, "ask": 1, "deny": 2}


def _decision(verdict: Verdict, checker: PolicyChecker) -> ShadowDecision:
    target = ""
    if verdict.kind == "deny" and checker.on_deny not in ("raise", "audit"):
        target = checker.on_deny.removeprefix("redirect:")
    return ShadowDecision(kind=verdict.kind, policy=checker.name, reason=verdict.reason, target=target)


def _compare_checks(run: NodeRun) -> None:
    if run.shadow is None:
        return
    enforced = ShadowDecision(kind="allow")
    by_name = {seat.name: seat.contract for seat in run.plan.checkers}
    for name, verdict in run.record.checks.items():
        checker = by_name.get(name)
        if checker is None:  # an input schema, which both have
            return
        if checker.enforced and _STRENGTH[verdict.kind] > _STRENGTH[enforced.kind]:
            enforced = _decision(verdict, checker)
    _note_difference(run, "check", enforced, run.shadow)


def _shadow_route(run: NodeRun, shadow: Plan, output: Any) -> Steps:
    record, view = run.record, run.shadow_view
    if not shadow.routers:
        return
    evaluations = Evaluations(shadow.lanes, view)
    view.give_results(evaluations)
    decision = ShadowDecision(kind="continue")
    shown = freeze(output)
    for seat in shadow.routers:
        router = seat.contract
        for name in router.needs:
            if (lane := evaluations.lane(name)) is not None:
                yield Resolve(evaluations, lane)
        target = yield Call(seat, (view, shown) if seat.takes_output else (view,))
        if isinstance(target, Verdict) and target.kind == "ask" and router.escalates:
            decision = ShadowDecision(kind="ask", policy=router.name, reason=target.reason)
        elif isinstance(target, str) and target in run.targets:
            if view.past.redirects(seat.name) >= router.max_redirects:
                continue
            decision = ShadowDecision(kind="redirect", policy=router.name, target=str.__str__(target))
        else:
            continue
        break
    view.give_results(_NO_RESULTS)
    enforced = ShadowDecision(kind="continue")
    if record.redirected_to is not None:
        enforced = ShadowDecision(
            kind="redirect", policy=record.redirected_by or "", target=record.redirected_to
        )
    _note_difference(run, "route", enforced, decision)


def _note_difference(
    run: NodeRun, stage: Literal["check", "route"], enforced: ShadowDecision, shadow: ShadowDecision
) -> None:
    record = run.record
    run.settings.shadow.add(
        ShadowDifference(
            stage=stage,
            item=record.id,
            node=record.node,
            instruction=record.instruction.qualified if record.instruction else None,
            step=record.step,
            thread_id=run.run.log.thread_id,
            enforced=enforced,
            shadow=shadow,
        )
    )


def _asked(run: NodeRun, seat: Seat[PolicyRouter], shown: Any) -> Steps:
    """What a router answers."""
    router, evaluations = seat.contract, run.record.evaluations
    if router.needs and isinstance(evaluations, Evaluations):
        for name in router.needs:
            if (lane := evaluations.lane(name)) is not None:
                yield Resolve(evaluations, lane)
    if not router.enforced:
        _show_results(run, router, run.view)
    answer = yield Call(seat, (run.view, shown) if seat.takes_output else (run.view,))
    if not router.enforced and run.reads is not None:
        run.view.give_results(run.reads)
    return answer


def _wants_human(run: NodeRun, router: PolicyRouter, verdict: Verdict) -> None:
    who = f"router {router.name}"
    if verdict.kind == "allow":
        return
    if not router.enforced:
        run.record.note(who, f"audit: it would have asked a human: {verdict.reason}")
    elif verdict.kind != "ask" or not router.escalates:
        run.record.failed(
            who, f"answered {verdict.kind}; expected a node, None, or with escalates=True an ask"
        )
    elif run.redirect is None and run.escalation is None:
        if run.view.past.redirects(router.name) >= router.max_redirects:
            _at_cap(run, router, "ask a human")
        else:
            run.escalation = (router, verdict)


def _at_cap(run: NodeRun, router: PolicyRouter, what: str) -> None:
    """The router may not do that again in this run."""
    record = run.record
    remark = f"max_redirects={router.max_redirects} reached; it did not {what}"
    if router.on_cap == "end" and END in run.targets:
        run.redirect = record.redirected_to = END
        remark += ", the run ends"
    elif router.on_cap == "best_attempt":
        run.capped = run.capped or router
    record.note(f"router {router.name}", remark)


def _best_attempt(run: NodeRun, output: Any, router: PolicyRouter) -> Steps:
    """The node's output with the state update of that attempt of this node in this run which was scored best: this
    one, or an earlier one. Of equals it is the latest. Where the run goes stays with this attempt."""
    record, name, reads = run.record, router.best_by or "", run.reads
    raised = output if type(output) is Raised else None
    found = None if reads is None or raised is not None else reads.get(name)
    best, score = None, -math.inf
    for fact in run.past.this_run():
        judged = fact.get("evals", _NOTHING).get(name)
        mine = fact["node"] == record.node and fact.get("ns", "") == record.namespace
        # What was denied or rejected was no attempt, and is not to be taken after all.
        if mine and "status" not in fact and judged is not None and judged[0] >= score:
            best, score = fact["id"], judged[0]
    if best is None or (found is not None and float(found.score) >= score):
        return output
    known = run.run.log.by_id.get(best)
    kept: Any = (known.raw,) if known is not None and known.raw is not None else (yield OutputOf(best))
    if type(kept) is not tuple:
        instead = "the exception passed through" if raised else "the last one was taken"
        record.failed(f"router {router.name}", f"the best attempt could not be found again; {instead}")
        return output
    taken = with_update(None if raised else output, kept[0])
    record.output = snapshot(taken, run.settings.snapshot)
    record.note(f"router {router.name}", f"took the best attempt, {best}, {name}={score:.2f}")
    run.replaced = True
    return taken


def with_update(output: Any, better: Any) -> Any:
    """`output` with the state update of `better`; what `output` says about where the run goes stays."""
    updates: list[Any] = [part.update if isinstance(part, Command) else part for part in _parts(better)]
    given: Any = output
    if isinstance(output, Command) and len(updates) == 1:
        return dataclasses.replace(given, update=updates[0])
    commands: list[Any] = [part for part in _parts(given) if isinstance(part, Command)]
    goes = [dataclasses.replace(command, update=None) for command in commands]
    if not goes and not isinstance(better, Command) and len(updates) == 1:
        return updates[0]
    return [*(Command(update=update) for update in updates), *goes]


def _parts(output: Any) -> list[Any]:
    """The commands and updates that an output is made of."""
    parts: Any = output
    if isinstance(output, list | tuple) and any(isinstance(part, Command) for part in parts):
        return list(parts)
    return [parts]


# Escalate -----------------------------------------------------------------------------------------


def _escalate(run: NodeRun, output: Any, router: PolicyRouter, verdict: Verdict) -> Steps:
    """Ask a human about an output. It travels with the question, so that the body does not run again."""
    record = run.record
    record.redirected_by = router.name  # it counts towards the cap
    try:
        terms = terms_of(verdict)
    except Exception as exc:
        reason = f"its question cannot be asked: {describe(exc)}"
        return _denied(run, router.name, router.on_reject, reason, None)
    returned: Any = output
    command: Any = returned if isinstance(output, Command) else None
    update: Any = returned if command is None else command.update
    read = {} if run.reads is None else run.reads.read
    key = digest(as_state(returned))
    payload: dict[str, Any] = {
        **verdict.payload,
        "type": "escalation",
        "policy": router.name,
        "reason": verdict.reason,
        "node": record.node,
        "instruction": record.instruction.qualified if record.instruction else None,
        "item": record.id,
        "output": update,
        "command": None if command is None else _address(command),
        "evaluations": {
            name: {"score": float(r.score), "passed": r.passed, "feedback": r.feedback}
            for name, r in read.items()
        },
        "notes": dict(record.notes),
        "digest": key,
        "allowed": ["approve", "edit", "reject"],
    }
    decision = yield from _ask(run, payload, key, "output", terms)
    if type(decision) is Raised:
        if _passes(decision.error):
            record.status = "interrupted"
            return decision
        reason = f"a human has to see its output, and nobody can be asked here: {describe(decision.error)}"
        return _denied(run, router.name, router.on_reject, reason, None)
    if decision.kind == "edit":
        try:
            changed = with_fields({} if update is None else update, decision.detail)
            returned = changed if command is None else dataclasses.replace(command, update=changed)
            note_output(run, returned)
        except Exception as exc:
            decision = Decision("reject", f"the edited output does not fit: {describe(exc)}", decision.by)
        else:
            run.replaced = True
            if run.plan.keeps_output:
                record.raw = returned
            if (wrong := _output_refused(run, returned)) is not None:
                record.status, record.error = "failed", describe(wrong)
                return Raised(wrong)
            if run.plan.output_checkers:
                stopped = yield from _check_output(run, returned)
                if stopped is not None or run.redirect is not None:
                    return stopped
    record.note(f"router {router.name}", decision.signature)
    if decision.kind == "reject":
        return _denied(run, router.name, router.on_reject, decision.rejection, None)
    return returned


def _held_question(run: NodeRun, saved: Saved) -> Mapping[str, Any] | None:
    """The question that an earlier attempt of this task has asked about its output."""
    for question in saved.asked:
        held: Mapping[str, Any] = question
        if isinstance(question.get("held"), Mapping):
            held = question["held"]
        # A node that runs a subgraph also has the questions of the nodes in it.
        if (held.get("type"), held.get("item")) == ("escalation", run.record.id):
            return held
    return None


def _ask_again(
    run: NodeRun, output: Any, held: Mapping[str, Any], seats: Sequence[Seat[PolicyRouter]]
) -> Steps:
    """A router has escalated this output: that is decided. What the router says now, its approvers say, holds."""
    for seat in seats:
        if seat.name == held["policy"] and seat.contract.enforced and seat.contract.escalates:
            for who, remark in held["notes"].items():
                if who.startswith("router "):
                    run.record.note(who, remark)
            answer = yield from _asked(run, seat, freeze(output))
            asks = isinstance(answer, Verdict) and answer.kind == "ask"
            run.escalation = (seat.contract, answer if asks else Verdict("ask", held["reason"], held))
            return True
    return False


def _address(command: Any) -> dict[str, Any]:
    """A command without its update, as data."""
    update = command.update
    pairs = isinstance(update, list | tuple) and all(isinstance(pair, tuple) for pair in update)  # pyright: ignore[reportUnknownVariableType]
    return {"goto": command.goto, "graph": command.graph, "pairs": pairs}


def _kept_output(question: Mapping[str, Any]) -> Any:
    update, address = question["output"], question["command"]
    if address is None:
        return update
    if address["pairs"]:  # a checkpoint has no tuples
        update = [tuple(pair) for pair in update]
    return Command(graph=address["graph"], update=update, goto=address["goto"])


def tallies_of(facts: Sequence[Fact]) -> dict[str, dict[str, float]]:
    """The sums of what several node runs counted, and the graphs inside them."""
    sums: dict[str, dict[str, float]] = {}

    def add(policy: str, key: str, amount: float) -> None:
        of_policy = sums.setdefault(policy, {})
        of_policy[key] = of_policy.get(key, 0) + amount

    for fact in facts:
        for policy, amounts in fact.get("tallies", _NOTHING).items():
            for key, amount in amounts.items():
                add(policy, key, amount)
        for policy, tallies in fact.get("inner", _NOTHING).get("tallies", _NOTHING).items():
            for key, (amount, *_) in tallies.items():
                add(policy, key, amount)
    return sums


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
