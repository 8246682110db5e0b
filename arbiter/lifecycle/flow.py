"""One governed node run, as a generator without I/O: check, advise, run, evaluate, route, record.

The generator yields what it needs (`Call`, `Body`, `Ask`, `Resolve`, ...) and is sent the answer, or `Raised` when
there was an exception; it never raises itself. What it returns is the node's output, or `Raised`. The two
drivers in `drivers.py` are all that knows about threads, event loops and LangGraph's interrupt.
See docs/design/lifecycle.md.
"""

from __future__ import annotations

from typing import Any

from langgraph.errors import GraphBubbleUp, ParentCommand

from arbiter.errors import describe
from arbiter.evaluation import Turn
from arbiter.evaluations import Evaluations, ReadEvaluations, Together
from arbiter.history import CausalHistory
from arbiter.lifecycle.advising import advise, note_untaken, without_lent
from arbiter.lifecycle.asking import begin_approved, keep_approved
from arbiter.lifecycle.checking import check, check_output
from arbiter.lifecycle.correcting import audit_draft, correct
from arbiter.lifecycle.escalating import escalate, held_question, kept_output
from arbiter.lifecycle.observing import note_spent, observe, tell
from arbiter.lifecycle.outcomes import denied, end, note_output, output_refused
from arbiter.lifecycle.requests import Body, LookBack, Raised, Resolve, Steps, Stopped
from arbiter.lifecycle.routing import best_attempt, route
from arbiter.lifecycle.runs import SHADOW, NodeRun
from arbiter.lifecycle.shadowing import (
    compare_checks,
    compare_routes,
    shadow_check,
    shadow_output,
    shadow_route,
)
from arbiter.lifecycle.stops import held_back, note_stops
from arbiter.verdicts import EvaluationResult


def lifecycle(run: NodeRun, answers: Any = None) -> Steps:
    """The whole of one node run. Returns the body's output, or `Raised`. `answers` are those of the checkers, if they
    have been asked already."""
    run.begun = run.begun or run.settings.timer()
    plan = run.plan
    if plan.shadow is None and not plan.observers:
        return (yield from _govern(run, answers))
    if plan.shadow is not None:
        yield from shadow_check(run, plan.shadow)
    answer = yield from _govern(run, answers)
    if plan.shadow is not None:
        yield from shadow_output(run, plan.shadow)
        routed = yield from shadow_route(run, plan.shadow, answer)
        yield from observe(run, plan.shadow.observers, run.shadow_view, SHADOW)
        yield from observe(run, plan.observers, run.view)
        compare_checks(run, plan.shadow)
        compare_routes(run, routed)
    else:
        yield from observe(run, plan.observers, run.view)
    yield from note_spent(run)
    return answer


def _govern(run: NodeRun, answers: Any = None) -> Steps:
    plan = run.plan
    if plan.escalates or run.may_be_held:
        saved = yield LookBack(run)
        if type(saved) is not Raised:
            run.saved = saved
            run.held = held_question(run, saved)
        elif plan.escalates:
            return saved  # it is not known whether the body has run
    if (
        plan.checkers
        or plan.shadow is not None
        or (run.schemas is not None and run.schemas.input is not None)
    ):
        stopped = yield from check(run, answers)
        if stopped is not None or run.redirect is not None:
            return end(run, stopped)
    if run.held is not None:
        # The body is done; what is left is the human's answer.
        entry = None if run.saved is None else run.saved.entry
        used = entry["upto"] if entry is not None and entry["output"] else 0
        run.questions = max(run.held["question"], used)
        return (yield from conclude(run, kept_output(run.held)))
    run.input = run.checked_input()
    if run.approved_by is not None and (stopped := keep_approved(run)) is not None:
        return stopped
    if plan.advisors or run.inherited:
        stopped = yield from advise(run)
        if stopped is not None:
            return (yield from conclude(run, stopped))
    if run.approved_by is not None:
        stopped = yield from begin_approved(run)
        if stopped is not None:
            return stopped
    if plan.gate is None:
        output = yield Body(run.input)
    elif not plan.gate.contract.enforced:
        output = yield from audit_draft(run, plan.gate)
    else:
        output = yield from correct(run, plan.gate)
    return (yield from conclude(run, output))


def observed(run: NodeRun, steps: Steps) -> Steps:
    """The rest of a plain node run, and what those that observe are told of it."""
    answer = yield from steps
    tell(run, run.plan.observers, run.view)
    yield from note_spent(run)
    return answer


def conclude(run: NodeRun, output: Any) -> Steps:
    """What follows the body. `output` is what it returned, or `Raised`."""
    if type(output) is Raised:
        return (yield from _failed(run, output))
    if run.handed:
        note_untaken(run)
    if run.lent:
        output = without_lent(run, output)
    if (wrong := output_refused(run, output)) is not None:
        return (yield from _failed(run, Raised(wrong)))
    return (yield from _completed(run, output, output))


def _completed(run: NodeRun, output: Any, answer: Any) -> Steps:
    """The body is done: record, evaluate, route. `answer` is what the node run returns."""
    record, plan = run.record, run.plan
    note_output(run, output)
    if run.stops or plan.output_checkers:
        stopped = yield from _kept_back(run, output)
        if stopped is not None or run.redirect is not None:
            return stopped
    if plan.keeps_output:
        record.raw = output
    if plan.lanes:
        together = _turn(run, output) if plan.members else None
        reads = judge(run, run.view, together)
        evaluations = reads.evaluations
        if run.held is not None:
            # Nobody judges again what a human was shown with its judgement.
            known = {name: EvaluationResult(**found) for name, found in run.held["evaluations"].items()}
            evaluations.know(known, settled=True)
            reads.read.update(known)
        for lane in plan.awaited:
            yield Resolve(evaluations, lane)
            reads.get(lane.name)
    return (yield from routed(run, output, answer))


def _kept_back(run: NodeRun, output: Any) -> Steps:
    """Whether what the node has written may be committed. Returns `Raised`, or sets the redirect, if not."""
    if run.stops:
        stopped = held_back(run, output)
        if stopped is not None or run.redirect is not None:
            return stopped
    if run.plan.output_checkers:
        return (yield from check_output(run, output))
    return None


def judge(run: NodeRun, view: CausalHistory, together: Together | None = None) -> ReadEvaluations:
    """Let the output be evaluated, when somebody asks or the background comes to it."""
    plan = run.plan
    run.record.evaluations = evaluations = Evaluations(plan.lanes, view, together)
    run.reads = reads = ReadEvaluations(evaluations, plan.unseen)
    return reads


def routed(run: NodeRun, output: Any, answer: Any, targets: list[Any] | None = None) -> Steps:
    """Where the run goes. `targets` are the routers' answers, if they have been asked already."""
    if run.plan.routers or run.held is not None:
        # What routers read is committed. Afterwards the view is that of evaluators in the background, and
        # what those read of one another is nobody's decision.
        run.view.give_results(run.reads)
        yield from route(run, output, run.plan.routers, targets)
        run.view.give_results(None)
    if run.reads is not None:
        run.settings.background.enqueue(run.reads.evaluations)
    if (run.capped is None and run.escalation is None) or run.redirect is not None:
        return answer
    if type(answer) is Raised:
        return _not_replaced(run, answer)
    if run.capped is not None:
        answer = output = yield from best_attempt(run, output, run.capped)
    if run.escalation is not None:
        return (yield from escalate(run, output, *run.escalation))
    return answer


def _turn(run: NodeRun, output: Any) -> Together:
    """What the cycle gets of this node run."""
    plan = run.plan
    assert plan.cycle is not None
    turn = Turn(
        evaluators=tuple(lane.evaluator for lane in plan.members),
        history=run.view,
        input=run.input if run.given is None else run.given,
        output=output,
        config=run.aside,
        saved=run.is_saved,
    )
    together = Together(plan.cycle, turn, plan.members)
    if run.held is None:
        together.begin()
    return together


def _not_replaced(run: NodeRun, answer: Raised) -> Raised | None:
    """The output is a command that comes up from a subgraph: LangGraph has it already."""
    problem = "a command from a subgraph can neither be replaced nor kept until a human has answered"
    if run.escalation is None:
        capped = run.capped
        assert capped is not None
        run.record.failed(f"router {capped.name}", f"{problem}; the normal edges were taken")
        return answer
    router = run.escalation[0]
    return denied(run, router.name, router.on_reject, problem, None)


def _failed(run: NodeRun, raised: Raised) -> Steps:
    """The body raised. Only a router with `on_error` can keep the exception from passing through."""
    record, error = run.record, raised.error
    if isinstance(error, ParentCommand):
        # A subgraph hands over with a command; for this graph that is the node's result.
        command: Any = raised.error.args[0]
        if not run.is_own(command):
            record.status = "completed"
            stopped = yield from _kept_back(run, command)
            return end(run, raised if stopped is None and run.redirect is None else stopped)
        return (yield from _completed(run, command, raised))
    record.duration = run.settings.timer() - run.begun
    if run.stops:
        note_stops(run)
    if run.entry is not None and isinstance(error, Exception):
        noted = yield Stopped(run.entry, isinstance(error, GraphBubbleUp))
        if type(noted) is Raised:
            record.failed("approval", f"how its body ended could not be saved: {describe(noted.error)}")
    if isinstance(error, GraphBubbleUp):
        record.status = "interrupted"
        return raised
    record.status = "failed" if isinstance(error, Exception) else "cancelled"
    record.error = describe(error)
    record.error_types = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__[:-1])
    if run.plan.error_routers and isinstance(error, Exception) and run.is_final(error):
        yield from route(run, None, run.plan.error_routers)
        if run.redirect is not None:
            run.take_back()
            return None
        if run.capped is not None:
            return (yield from best_attempt(run, raised, run.capped))
    return raised
