"""A visit: one recorded attempt of a node run, about which the candidate's rules decide again.

    recorded attempt ─▶ begin: shadow_check ─▶ end: shadow_output, shadow_route, observe ─▶ decisions, fact

The stages are those that a shadow constitution goes through in a live run. There is no body: what it returned
comes from the ledger. Begins and ends come in the order of their recorded times, but an attempt never begins
before what its past holds has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, cast

import orjson
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.constants import END

from arbiter._constitution.kinds import takes_model
from arbiter._lifecycle.background import Background
from arbiter._lifecycle.drivers import acall, call
from arbiter._lifecycle.evaluations import Evaluations, EvaluatorQueue
from arbiter._lifecycle.observing import note_spent, observe
from arbiter._lifecycle.registry import Plan, Registration, Registry
from arbiter._lifecycle.requests import Call, CallAll, Raised, Resolve, Spend, Steps
from arbiter._lifecycle.runs import SHADOW, NodeRun, Settings, call_isolated
from arbiter._lifecycle.shadow import ShadowDecision
from arbiter._lifecycle.shadowing import (
    recorded_check,
    recorded_route,
    shadow_check,
    shadow_output,
    shadow_route,
    target_of,
)
from arbiter._lifecycle.stops import STOPPED
from arbiter._threads.deadlines import LOOP
from arbiter._values.states import UnreadableError
from arbiter.checkers import BudgetChecker
from arbiter.errors import Unscored
from arbiter.history import CausalHistory
from arbiter.history._facts import KEEP, RUN, fold
from arbiter.history._past import Past, Tally, task_order
from arbiter.history._record import PolicyDecision
from arbiter.history._recorder import FirstTask, Recorder, Run, begin
from arbiter.history._results import NO_RESULTS, Results
from arbiter.ledger._entries import scores_of
from arbiter.ledger._exporting import RecordedThread
from arbiter.ledger.replaying._pasts import Attempt, Pasts
from arbiter.ledger.replaying._views import Missing, Notes, RecordedList, RecordedState, state_of
from arbiter.policy import PolicyChecker
from arbiter.verdicts import ALLOW, EvaluationResult, as_verdict

_UNKNOWN = "\0unknown"
"""The key of a tally that counts what could not be counted, because something was missing."""
_MOST_EARLIER = 100
"""Earlier runs of functions of a thread among which the one is looked for whose past a run goes on with."""
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A recorded decision and that of the candidate, None if it is unknown, for these reasons."""

    stage: Literal["check", "route"]
    attempt: Attempt
    recorded: ShadowDecision
    next: ShadowDecision | None
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class Candidate:
    """The rules that decide again, and what they need."""

    registry: Registry
    notes: Notes
    graphs: dict[str, str] = field(default_factory=dict[str, str])
    taken: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By the digest of recorded rules, the evaluators whose recorded results are those of the candidate's."""
    asked: set[str] = field(default_factory=set[str])
    """The rules that were asked about at least one node run."""
    not_replayed: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By checker, the node runs into whose bodies it would have looked."""
    now: float = 0.0
    _targets: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    _plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict[tuple[Any, ...], Plan])

    def targets(self, attempt: Attempt) -> frozenset[str] | None:
        """The possible targets of a redirect, or None if the graph is not known."""
        digest: str | None = attempt.body.get("graph")
        if digest is None:
            return frozenset({END})
        if digest not in self._targets:
            if digest not in self.graphs:
                return None
            self._targets[digest] = frozenset(orjson.loads(self.graphs[digest])["targets"])
        return self._targets[digest]

    def plan(self, attempt: Attempt, targets: frozenset[str]) -> Plan:
        record = attempt.record
        key = record.node, record.instruction, targets
        if key not in self._plans:
            shadow = self.registry.plan(record.node, record.instruction, targets)
            unfinished = any(checker.reads_unfinished for checker in shadow.observers)
            self._plans[key] = Plan(shadow=shadow, targets=targets, reads_unfinished=unfinished)
            asked: list[Sequence[Registration[Any]]] = [shadow.checkers, shadow.output_checkers]
            asked += [shadow.routers, shadow.error_routers]
            self.asked.update(registration.name for each in asked for registration in each)
            self.asked.update(checker.name for checker in shadow.observers)
            self.asked.update(queue.name for queue in shadow.queues)
        return self._plans[key]


class _View(CausalHistory):
    """The history that the candidate's rules see. Tallies to which something is missing are noted."""

    notes: Notes

    def tally(self, policy: str, key: str) -> Tally:
        self._note(policy)
        return super().tally(policy, key)

    def tally_keys(self, policy: str) -> Sequence[str]:
        self._note(policy)
        return [key for key in super().tally_keys(policy) if key != _UNKNOWN]

    def steps_since(self, policy: str, key: str) -> int | None:
        self._note(policy)
        return super().steps_since(policy, key)

    def _note(self, policy: str) -> None:
        if self.past.tally(SHADOW + policy, _UNKNOWN).amount:
            self.notes.add(f"what {policy!r} counted before is not known")


class _Evaluations(Evaluations):
    """The candidate's evaluations. An evaluator that read something that is missing has no result."""

    __slots__ = ("_notes", "_unknown")

    def __init__(self, queues: tuple[EvaluatorQueue, ...], view: CausalHistory, notes: Notes) -> None:
        super().__init__(queues, view)
        self._notes = notes
        self._unknown: dict[str, tuple[str, ...]] = {}

    def resolve(self, queue: EvaluatorQueue) -> Any:
        before, is_done = self._notes.take(), self.outcome(queue) is not None
        found: Any = super().resolve(queue)
        if reasons := self._notes.take():
            self._unknown[queue.name] = tuple(_named(queue.name, reason) for reason in reasons)
        elif not is_done and takes_model(type(queue.evaluator)) and getattr(found, "outcome", "") in _FAILED:
            self._unknown[queue.name] = (f"evaluator {queue.name!r} failed",)
        for reason in (*before, *self._unknown.get(queue.name, ())):
            self._notes.add(reason)
        return found


def _named(evaluator: str, reason: str) -> str:
    return f"evaluator {evaluator!r} {reason}" if reason == NEEDS_A_MODEL else reason


NEEDS_A_MODEL = "needs a model"
_FAILED: Collection[Unscored] = ("error", "timeout")
"""The outcomes of a judge that gave no answer, perhaps because its model could not be reached."""


class _Reads(Results):
    """The recorded results of a node run, and which of them its rules had read."""

    __slots__ = ("_failed", "read")

    def __init__(self, found: Mapping[str, EvaluationResult], attempt: Attempt) -> None:
        super().__init__(found, cast(Any, attempt.record.evaluations).errors)
        names = [score.evaluator for score in scores_of(attempt.body) if score.read]
        self.read = {name: found[name] for name in names if name in found}
        self._failed = [name for name, _, was_read, _ in attempt.body.get("failed") or () if was_read]

    @property
    def evaluations(self) -> _Reads:
        return self

    def version_of(self, name: str) -> str:
        return ""  # no rule reads the version of an earlier result

    def untracked(self) -> _Reads:
        return self

    @property
    def outcomes(self) -> Mapping[str, EvaluationResult | None]:
        return {**self.read, **dict.fromkeys(self._failed)}


class ReplayedRun(NodeRun):
    """A node run whose body is not there: its data come from the ledger."""

    def __init__(self, attempt: Attempt, candidate: Candidate, settings: Settings, **parts: Any) -> None:
        super().__init__(settings=settings, schemas=None, **parts)
        self.attempt = attempt
        self.candidate = candidate
        self.order: dict[str, int] = {}
        """The order in which the checkers were asked."""
        self.unsure: list[tuple[int, PolicyChecker, tuple[str, ...]]] = []
        """The checkers that read something that is missing, when they were asked, and what it was."""
        self.unsure_routes: tuple[str, ...] = ()
        self.metered: list[PolicyChecker] = []
        """The budgets that count what model calls used."""
        self.uncounted: set[str] = set()
        """The checkers that cannot count this node run, because something is missing."""
        self.watching: list[PolicyChecker] = []
        """The checkers that would have looked into the body."""

    @property
    def shadow_view(self) -> CausalHistory:
        if self._shadow_view is None:
            view = _View(self.past, self.record, self.run, tallies=SHADOW, evaluations=NO_RESULTS)
            view.notes = self.candidate.notes
            view.clock = self.settings.clock
            self._shadow_view = view
        return self._shadow_view

    def shadow_evaluations(self, queues: tuple[EvaluatorQueue, ...]) -> Evaluations:
        evaluations = _Evaluations(queues, self.shadow_view, self.candidate.notes)
        taken = self.candidate.taken.get(self.attempt.body.get("rules", ""), frozenset())
        known = self.attempt.record.evaluations
        errors = cast(Any, known).errors
        evaluations.know(
            {name: known[name] for name in taken if name in known},
            errors={name: errors[name] for name in taken if name in errors},
        )
        return evaluations

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        return config

    def is_final(self, error: BaseException) -> bool:
        return self.attempt.is_last

    def body(self, buffered: bool) -> Any:
        raise AssertionError("a replayed node run has no body")

    def take_over(self, earlier: ReplayedRun) -> None:
        """Add those graphs of an earlier attempt of which this one ran no node: they were done."""
        # Only the namespaces with the id of the task are the same in each attempt.
        done = {name: graph for name, graph in (earlier._inner or _NOTHING).items() if ":" in name}
        self._inner = {**done, **(self._inner or _NOTHING)}


class ThreadVisit:
    """The visits to all attempts of one recorded thread."""

    def __init__(self, thread: RecordedThread, candidate: Candidate) -> None:
        self._candidate = candidate
        self._settings = Settings("shallow", Background(), KEEP, lambda: candidate.now)
        self.pasts = Pasts(thread, KEEP, self.end)
        # An erased thread has no id any more, but had one.
        has_id = thread.thread_id is not None or any(a.lost == "erased" for a in self.pasts.attempts)
        self._thread_id = (thread.thread_id or thread.ref) if has_id else None
        self.thread_id, self.ref = thread.thread_id, thread.ref
        self._recorder = Recorder(keep=None, keep_threads=None)
        self._log = self._recorder.log_of(self._thread_id)
        self._runs: dict[str, Run] = {}
        self._calls: dict[tuple[Any, ...], tuple[Any, Attempt | None]] = {}
        """By run and end of the past, what functions without a caller had done before, and the call after it if any."""
        self.decided: dict[tuple[str, str], Decided] = {}
        """By stage and task, the decisions about its newest attempt."""

    # Begin

    def begin(self, attempt: Attempt) -> None:
        """Ask the candidate's checkers about the input, unless this has been done."""
        if attempt.begun:
            return
        attempt.begun = True
        if attempt.caller is not None:
            self.begin(attempt.caller)
        for earlier in (*self.pasts.unfinished(attempt), *self.pasts.earlier(attempt)):
            self.end(earlier)
        reason = self._prepare(attempt)
        run: ReplayedRun | None = attempt.visit
        if run is None:
            self._unknown(attempt, reason)
            return
        self._candidate.now = attempt.record.started
        self._candidate.notes.take()
        shadow = run.plan.shadow
        assert shadow is not None
        self._drive(run, shadow_check(run, shadow))
        if attempt.body.get("began", True):
            self._watch(run, shadow.watchers)

    def _prepare(self, attempt: Attempt) -> str:
        """Make the attempt's visit. Returns the reason why there can be none, or ""."""
        candidate, known = self._candidate, attempt.record
        targets = candidate.targets(attempt)
        if targets is None:
            return "its graph is not recorded"
        if "past" not in attempt.body:
            return "its place among the other node runs is not recorded"
        caller = attempt.caller
        if caller is None and (known.namespace or attempt.body.get("caller")):
            return "the node run around it is not recorded"
        if caller is not None and caller.visit is None:
            return "the past of the node run around it is not known"
        parent: ReplayedRun | None = None if caller is None else caller.visit
        if (past := self._past(attempt, parent)) is None:
            return "its past is not recorded completely"
        run = parent.run if parent is not None else self._run(attempt, past)
        record = begin(
            run,
            known.id,
            known.node,
            known.instruction,
            known.step,
            known.namespace,
            known.started,
            known.path,
        )
        record.owner, record.call, record.attempt = known.owner, known.call, known.attempt
        given = attempt.contents.get("input")
        record.input = state_of(given, "input", candidate.notes, lost=attempt.lost)
        attempt.visit = ReplayedRun(
            attempt,
            candidate,
            self._settings,
            record=record,
            plan=candidate.plan(attempt, targets),
            input=record.input,
            run=run,
            past=past,
            parent=parent,
            config=self._config(attempt),
        )
        return ""

    def _past(self, attempt: Attempt, parent: ReplayedRun | None) -> Past | None:
        if not attempt.is_called:
            past = self.pasts.of(attempt)
            return past if past is None or parent is None else past.inside(parent.past)
        if parent is not None:
            past = parent.called(())
        else:
            past = self._past_of_call(attempt)
        return past if past.end[1] == attempt.body.get("past") else None

    def _past_of_call(self, attempt: Attempt) -> Past:
        """The past of a function that no governed node calls. An entrypoint that is resumed calls its functions again,
        from the past that they had. An entry of an older version does not tell that, but the past does.
        """
        run, calling = self._plain_run(attempt), attempt.calling
        if calling is not None:
            run.begins(calling.namespace.split("|")[0], calling[:2], KEEP)
        called, end = run.called, (attempt.run, attempt.body.get("after"), attempt.body.get("past"))
        if end in self._calls and Past(called).end[1] != attempt.body.get("past"):
            called, again = self._calls[end]
            # Otherwise a parallel task's function had ended, and was not yet among what ran before.
            if calling is None:
                run.called, attempt.again = called, again
        self._keep_called(end, called, attempt)
        return Past(called)

    def _keep_called(self, end: tuple[Any, ...], called: Any, attempt: Attempt | None) -> None:
        self._calls[end] = called, attempt
        if len(self._calls) > _MOST_EARLIER:
            del self._calls[next(iter(self._calls))]

    def _run(self, attempt: Attempt, past: Past) -> Run:
        """The run that the attempt belongs to. A fork is a run of its own, as it is when it happens."""
        if attempt.is_called:
            return self._plain_run(attempt)
        if (run := self._runs.get(attempt.execution)) is None:
            before = self._log.runs[-1] if self._log.runs else None
            record = attempt.record
            first = FirstTask(
                thread_id=self._thread_id,
                saved=before is not None and before.uuid == attempt.run,
                resumed=True,
                step=record.step,
                id=record.id,
                path=record.path,
            )
            if self._thread_id is None and before is not None and before.uuid == attempt.run:
                run = before
            else:
                run, *_ = self._recorder.run_for(past, first)
            self._runs[attempt.execution] = run
            self._log = run.log
        return run

    def _plain_run(self, attempt: Attempt) -> Run:
        if (run := self._runs.get(attempt.run)) is None:
            earlier = islice(reversed(self._log.runs), _MOST_EARLIER)
            end = attempt.body.get("after"), attempt.body.get("past")
            before = next((each.called for each in earlier if Past(each.called).end == end), None)
            run = self._runs[attempt.run] = self._log.new_run(-1, Past({"run_id": attempt.run}))
            if before:
                run.called = fold(before, (RUN,), KEEP)
        return run

    def _config(self, attempt: Attempt) -> RunnableConfig:
        notes = self._candidate.notes
        config = self.pasts.configs.get(attempt.execution)
        if config is None:
            lost = Missing(notes, f"config was {attempt.lost or 'not kept'}")
            known = {} if self._thread_id is None else {"thread_id": self._thread_id}
            return {"configurable": cast(Any, RecordedState(known, lost))}
        return {"configurable": state_of(config, "config", notes, lost=None)}

    def _watch(self, run: ReplayedRun, watchers: Iterable[PolicyChecker]) -> None:
        """Report to the checkers that look into bodies that this one begins, as a live run does."""
        handlers: list[Any] = []
        for checker in watchers:
            try:
                found = call_isolated(run, checker, checker.handlers, run.shadow_view)
            except Exception as error:
                run.record.failed(f"checker {checker.name}", str(error))
                continue
            if found and isinstance(checker, BudgetChecker):
                run.metered.append(checker)
                handlers.extend(found)
            elif found:
                run.watching.append(checker)
                self._candidate.not_replayed.setdefault(checker.name, set()).add(run.record.id)
        run.handlers = handlers
        self._candidate.notes.take()

    # End

    def end(self, attempt: Attempt) -> None:
        """Ask the candidate's rules about the output, unless this has been done."""
        if attempt.over:
            return
        attempt.over = True
        self.begin(attempt)
        for inner in attempt.inner:
            self.end(inner)
        run: ReplayedRun | None = attempt.visit
        if run is None:
            return
        candidate, notes = self._candidate, self._candidate.notes
        self._restore(run)
        candidate.now = attempt.ended
        shadow = run.plan.shadow
        assert shadow is not None
        self._drive(run, shadow_output(run, shadow))
        self._feed(run)
        if attempt.lost and run.record.status == "failed" and shadow.error_routers:
            run.unsure_routes = (f"the error was {attempt.lost}",)
        routed = self._drive(run, shadow_route(run, shadow, self._output(run)))
        for checker in shadow.observers:
            notes.take()
            self._drive(run, observe(run, (checker,), run.shadow_view, SHADOW))
            if notes.take() or checker.name in run.uncounted:
                self._count_unknown(run, checker)
        self._drive(run, note_spent(run))
        self._compare(run, routed)
        self._commit(run)

    def _restore(self, run: ReplayedRun) -> None:
        """Give the visit's record what was recorded of the end."""
        attempt, record = run.attempt, run.record
        known, notes = attempt.record, self._candidate.notes
        for name in ("duration", "status", "checks", "routes", "redirected_to", "notes", "errors"):
            setattr(record, name, getattr(known, name))
        for name in ("error", "error_types", "corrections", "gating", "account"):
            setattr(record, name, getattr(known, name))
        record.redirected_by = (attempt.body.get("route") or _NOTHING).get("policy")
        lost = attempt.lost
        if "edited" in attempt.contents:
            record.input = state_of(attempt.contents["edited"], "input", notes, lost=lost)
        output = attempt.contents.get("output")
        if known.status == "completed" or output:
            record.output = state_of(output, "output", notes, lost=lost)
        found = dict(known.evaluations)
        if found or attempt.body.get("failed"):
            run.reads = cast(Any, _Reads(found, attempt))
        record.evaluations = Results(found)

    def _output(self, run: ReplayedRun) -> Any:
        if run.record.status == "failed" and run.record.redirected_to is None:
            return Raised(RuntimeError(run.record.error or ""))
        return run.record.output

    def _feed(self, run: ReplayedRun) -> None:
        """Report to the budgets what the model calls used whose answers are in the output."""
        if not run.handlers:
            return
        answers, is_whole = _answers(run.record.output)
        if not is_whole:
            run.uncounted = {checker.name for checker in run.metered}  # the answers may be what is missing
        for message in answers:
            # A budget reads what an answer used, never its text, which may be missing.
            message = message.model_copy(update={"content": ""})
            try:
                if message.usage_metadata:
                    _report(message, run.handlers)
            except UnreadableError:
                run.uncounted = {checker.name for checker in run.metered}
        self._candidate.notes.take()

    def _count_unknown(self, run: ReplayedRun, checker: PolicyChecker) -> None:
        tallies, name = run.record.tallies, SHADOW + checker.name
        run.record.tallies = {**tallies, name: {**tallies.get(name, {}), _UNKNOWN: 1.0}}

    def _commit(self, run: ReplayedRun) -> None:
        attempt, caller = run.attempt, run.attempt.caller
        if not attempt.committed and (not attempt.is_called or run.record.status == "interrupted"):
            return
        self._continue_inner(run)
        if attempt.committed:
            attempt.fact = fact = run.fact()
        elif (inner := run.inner()) is not None:
            fact = {"inner": inner}  # its caller may have caught the error
        else:
            return
        parent: ReplayedRun | None = None if caller is None else caller.visit
        if attempt.is_called and parent is not None:
            parent.called((fact,))
        elif attempt.is_called:
            calling = attempt.calling
            run.run.calls(calling and calling[:2], fact, KEEP)
            end = attempt.run, *Past(run.run.called).end
            if calling is not None and end not in self._calls:
                self._keep_called(end, run.run.called, None)
        elif parent is not None:
            record = run.record
            order = task_order(record.path) + record.id
            parent.report(record.graph, record.step, cast(Any, attempt.superstep), {order: fact})

    def _continue_inner(self, run: ReplayedRun) -> None:
        """Take over what graphs inside the body did in earlier attempts, if they did nothing in this one."""
        did_nothing = run.inner() is None
        for earlier in reversed(self.pasts.earlier(run.attempt)):
            if earlier.execution == run.attempt.execution:
                continue  # a retry began anew
            if earlier.visit is None:
                continue
            if did_nothing:
                if (inner := earlier.visit.inner()) is not None:
                    run.called(({"inner": inner},))
                    return
            elif run.attempt.again is None or run.attempt.calling is not None:
                run.take_over(earlier.visit)

    # Decisions

    def _compare(self, run: ReplayedRun, routed: ShadowDecision | None) -> None:
        attempt = run.attempt
        if attempt.is_recovered:
            self._unknown(attempt, "it was recovered without its contents")
            return
        check, stop = _recorded_check(attempt), _stop(attempt)
        self._forget(attempt)
        if check is not None:
            decided, unknown = self._checked(run)
            if stop is not None and any(checker.name == stop.policy for checker in run.metered):
                stop = None  # as for a live shadow, its calls of models are not those of the candidate
            check = stop or check
            if unknown == () and run.watching and decided.kind != "deny" and stop is not None:
                unknown = ("what its body called is not recorded",)
            self._note("check", attempt, check, decided, unknown)
        if routed is not None:
            self._note("route", attempt, recorded_route(run.record), routed, run.unsure_routes)

    def _checked(self, run: ReplayedRun) -> tuple[ShadowDecision, tuple[str, ...]]:
        """The candidate's decision about the node, and why it is unknown."""
        decided = run.shadow or ShadowDecision(kind="allow")
        place = run.order.get(decided.policy, -1)
        for order, checker, reasons in run.unsure:
            # A denial by another rule stays, unless this one comes first and leads elsewhere.
            if decided.kind == "deny" and (order > place or target_of(checker.on_deny) == decided.target):
                continue
            return decided, reasons
        return decided, ()

    def _unknown(self, attempt: Attempt, reason: str) -> None:
        self._forget(attempt)
        check = _recorded_check(attempt)
        if check is not None:
            self._note("check", attempt, check, check, (reason,))
        targets = self._candidate.targets(attempt)
        shadow = None if targets is None else self._candidate.plan(attempt, targets).shadow
        if shadow is not None and shadow.routers and attempt.record.status == "completed":
            route = recorded_route(attempt.record)
            self._note("route", attempt, route, route, (reason,))

    def _forget(self, attempt: Attempt) -> None:
        for stage in ("check", "route"):
            self.decided.pop((stage, attempt.task), None)

    def _note(
        self,
        stage: Literal["check", "route"],
        attempt: Attempt,
        recorded: ShadowDecision,
        next: ShadowDecision,
        unknown: tuple[str, ...],
    ) -> None:
        self.decided[stage, attempt.task] = Decided(
            stage=stage,
            attempt=attempt,
            recorded=recorded,
            next=None if unknown else next,
            unknown=unknown,
        )

    # The driver

    def _drive(self, run: ReplayedRun, steps: Steps) -> Any:
        answer: Any = None
        try:
            while True:
                op = steps.send(answer)
                if type(op) is CallAll:
                    answer = self._call_all(run, op)
                elif type(op) is Call:
                    answer = self._call_router(run, op)
                elif type(op) is Resolve:
                    op.evaluations.resolve(op.queue)
                    self._candidate.notes.take()  # the router that reads it is told again
                    answer = None
                elif type(op) is Spend:
                    answer = None  # kept in the record
                else:
                    raise AssertionError(f"a shadow asks for {op!r:.80}")
        except StopIteration as stop:
            return stop.value

    def _call_all(self, run: ReplayedRun, op: CallAll) -> Any:
        unusual: list[Any] = []
        for registration in op.registrations:
            self._candidate.notes.take()
            answer = _answer(registration, op.args, run)
            place = run.order[registration.name] = len(run.order)
            if reasons := self._candidate.notes.take():
                run.unsure.append((place, registration.contract, reasons))
            elif type(answer) is Raised:
                unusual.append((registration, answer))
            elif (verdict := as_verdict(answer)) is not ALLOW:
                unusual.append((registration, verdict))
        return unusual

    def _call_router(self, run: ReplayedRun, op: Call) -> Any:
        self._candidate.notes.take()
        answer = _answer(op.registration, op.args, run)
        if reasons := self._candidate.notes.take():
            run.unsure_routes = (*run.unsure_routes, *reasons)
            return None
        return answer


def _answer(registration: Registration[Any], args: tuple[Any, ...], run: ReplayedRun) -> Any:
    try:
        if registration.is_async:
            return LOOP.submit(acall(registration, args, run)).result()
        return call(registration, args, run)
    except Exception as error:
        return Raised(error)


def _answers(output: Any) -> tuple[list[AIMessage], bool]:
    """The AI messages in an output, alone or in a list; and whether all parts that may hold one are there.

    The types are compared, because `isinstance` reads a part that may be missing.
    """
    if type(output) is not dict:
        return [], output is None
    parts: list[Any] = []
    for value in cast(Any, output).values():
        parts += list[Any].__iter__(value) if type(value) in (list, RecordedList) else [value]
    return [part for part in parts if issubclass(type(part), AIMessage)], Missing not in map(type, parts)


def _report(answer: AIMessage, handlers: Sequence[Any]) -> None:
    """Report a call of a model with this answer, as a live run does."""
    result = LLMResult(generations=[[ChatGeneration(message=answer)]])
    for handler in handlers:
        id = uuid.uuid4()
        try:
            handler.on_chat_model_start({}, [[]], run_id=id)
        except Exception:  # it would have stopped the call, which has happened
            continue
        handler.on_llm_end(result, run_id=id)


def _recorded_check(attempt: Attempt) -> ShadowDecision | None:
    """The recorded decision before the body; None if there was none to compare, because a schema refused the
    input.
    """
    body, checks = attempt.body, attempt.record.checks
    if "input_schema" in checks:
        return None
    checked = body.get("checked", body.get("decision"))
    if checked is None:
        return ShadowDecision(kind="allow")
    found = PolicyDecision(kind=checked["kind"], policy=checked["policy"], consequence=checked["consequence"])
    return recorded_check(found, checks)


def _stop(attempt: Attempt) -> ShadowDecision | None:
    """The denial of a checker that stopped a call in the body, whatever the node made of it; None without one."""
    for name, verdict in attempt.record.checks.items():
        if verdict.kind == "deny" and STOPPED in attempt.record.notes.get(f"checker {name}", ""):
            return ShadowDecision(kind="deny", policy=name, reason=verdict.reason)
    return None


def visit_in_order(visits: Iterable[ThreadVisit]) -> None:
    """Begin and end all attempts of these threads in the order of time.

    If times are equal, the attempt that ended first comes first.
    """
    events: list[tuple[float, int, int, Callable[[Attempt], None], Attempt]] = []
    for number, visit in enumerate(visits):
        for attempt in visit.pasts.attempts:
            events.append((attempt.record.started, number, attempt.number, visit.begin, attempt))
            events.append((attempt.ended, number, attempt.number, visit.end, attempt))
    # Sorting is stable: an attempt that took no time begins before it ends.
    for *_, act, attempt in sorted(events, key=lambda event: event[:3]):
        act(attempt)
