"""One governed node run, as a generator without I/O: check, advise, run, evaluate, route, record.

The generator yields requests (`Call`, `Body`, `Ask`, `Resolve`, ...) and is sent the answers, or `Raised` if
there was an exception; it never raises itself. It returns the node's output, or `Raised`. Only the two
drivers in `drivers.py` know about threads, event loops and LangGraph's interrupt. See
docs/design/lifecycle.md.
"""

from __future__ import annotations

from typing import Any, cast

from langgraph.errors import GraphBubbleUp, ParentCommand

from arbiter._lifecycle.advising import advise, note_untaken, without_transient
from arbiter._lifecycle.asking import begin_approved, is_refused, keep_approved
from arbiter._lifecycle.checking import check, check_output
from arbiter._lifecycle.correcting import audit_draft, correct, draft_in, with_draft
from arbiter._lifecycle.escalating import escalate, kept_output, pending_question_in
from arbiter._lifecycle.evaluations import Evaluations, ReadEvaluations
from arbiter._lifecycle.observing import note_spent, observe
from arbiter._lifecycle.outcomes import denied, end, note_output, output_refused, schemas_unfinished
from arbiter._lifecycle.requests import BODY, Ended, Raised, ReadCheckpoint, Resolve, Steps, Stopped
from arbiter._lifecycle.routing import best_attempt, route
from arbiter._lifecycle.runs import SHADOW, NodeRun
from arbiter._lifecycle.shadowing import (
    compare_checks,
    compare_routes,
    shadow_check,
    shadow_output,
    shadow_route,
)
from arbiter._lifecycle.stops import held_back, note_stops
from arbiter._values.states import as_state, freeze
from arbiter.errors import describe
from arbiter.evaluation import EvaluatorGroup, FinishedRun
from arbiter.verdicts import EvaluationResult


def lifecycle(run: NodeRun) -> Steps:
    """All stages of one node run. Returns the body's output, or `Raised`."""
    timer, plan = run.settings.timer, run.plan
    run.begun = timer()
    return _govern(run) if plan.shadow is None and not plan.observers else _observed(run)


def _observed(run: NodeRun) -> Steps:
    """As `_govern`, with a shadow constitution and with checkers that observe the end."""
    plan = run.plan
    if plan.shadow is not None:
        yield from shadow_check(run, plan.shadow)
    answer = yield from _govern(run)
    if plan.shadow is not None:
        yield from shadow_output(run, plan.shadow)
        handed = _handed_up(run, answer) if type(answer) is Raised else None
        routed = yield from shadow_route(run, plan.shadow, answer if handed is None else handed)
        yield from observe(run, plan.shadow.observers, run.shadow_view, SHADOW)
        yield from observe(run, plan.observers, run.view)
        compare_checks(run, plan.shadow)
        compare_routes(run, routed)
    else:
        yield from observe(run, plan.observers, run.view)
    yield from note_spent(run)
    return answer


def _govern(run: NodeRun) -> Steps:
    plan = run.plan
    if run.schemas is not None and (unknown := schemas_unfinished(run.schemas, run.record.node)):
        return (yield from _failed(run, Raised(unknown)))
    if plan.escalates or run.may_have_asked:
        saved = yield ReadCheckpoint(run)
        if type(saved) is not Raised:
            run.saved = saved
            run.pending_question = pending_question_in(run, saved)
        elif plan.escalates:
            return saved  # it is unknown whether the body has run
    if (
        plan.checkers
        or plan.shadow is not None
        or (run.schemas is not None and run.schemas.input is not None)
    ):
        stopped = yield from check(run)
        if stopped is not None or run.redirect is not None:
            run.record.kept_account.kept_out = True
            return end(run, stopped)
    if run.pending_question is not None:
        output = _output_in_question(run)
    elif not plan.guards or (output := run.own_input()) is None:
        advised = plan.advisors or (run.parent is not None and run.inherited)
        if plan.gate is None and run.approved_by is None and not advised:
            output = yield BODY
        else:
            output = yield from _called(run)
    answer = output
    if type(output) is Raised:
        if (output := _handed_up(run, answer)) is None:
            return (yield from _failed(run, answer))
    elif type(output) is Ended:
        return output.answer
    elif run.schemas is not None and (wrong := output_refused(run, output)) is not None:
        run.take_back()
        return (yield from _failed(run, Raised(wrong)))
    note_output(run, output)
    if plan.watchers or plan.output_checkers:
        stopped = yield from _kept_back(run, output)
        if stopped is not None or run.redirect is not None:
            return stopped
    if plan.keeps_output:
        run.record.raw = output
    reads = None
    if plan.queues:
        reads = run.reads = _begin_evaluations(run, output)
        for queue in plan.awaited:
            yield Resolve(reads.evaluations, queue)
            reads.commit(queue)
    if plan.routers or run.pending_question is not None:
        # The results that routers read are committed. Afterwards evaluators in the background use the view,
        # and what they read of one another decides nothing.
        if reads is None:
            run.item.give_results(plan.unjudged)
        yield from route(run, output, plan.routers)
        run.item.give_results(None)
    if run.redirect is not None:
        # A command that a subgraph raised is returned, so that LangGraph does not take its goto.
        answer = output
    elif run.capped is not None or run.escalation is not None:
        answer = yield from _replaced(run, output, answer)
    if reads is not None:  # the output is now what is committed
        run.settings.background.enqueue(reads.evaluations)
    return answer


def _output_in_question(run: NodeRun) -> Any:
    """The output that a human was asked about. The body is done; only the answer is left."""
    assert run.pending_question is not None
    saved = run.saved
    entry = None if saved is None or saved.paused else saved.entry
    used = entry["upto"] if entry is not None and entry["output"] else 0
    run.questions = max(run.pending_question["question"], used)
    return kept_output(run.pending_question)


def _called(run: NodeRun) -> Steps:
    """Call the body on approvals, with advice or under a gate. Returns its output, `Raised` or `Ended`."""
    plan = run.plan
    if run.approved_by is not None and (stopped := keep_approved(run)) is not None:
        return Ended(stopped)
    if plan.advisors or run.inherited:
        stopped = yield from advise(run)
        if stopped is not None:
            return stopped
    if run.approved_by is not None:
        stopped = yield from begin_approved(run)
        if stopped is not None:
            return Ended(stopped)
    if plan.gate is None:
        output = yield BODY
    elif not plan.gate.contract.enforced:
        output = yield from audit_draft(run, plan.gate)
    else:
        output = yield from correct(run, plan.gate)
    if run.transient and type(draft := draft_in(output)) is not Raised:
        output = with_draft(output, without_transient(run, draft))
    if type(output) is not Raised and run.handed:
        note_untaken(run)
    return output


def _handed_up(run: NodeRun, raised: Raised) -> Any:
    """The command with which a subgraph hands over to this node's graph: for that graph it is the node's result."""
    if isinstance(raised.error, ParentCommand):
        command = cast(Any, raised.error).args[0]
        if run.is_own(command):
            return command
    return None


def _begin_evaluations(run: NodeRun, output: Any) -> ReadEvaluations:
    plan = run.plan
    evaluations = run.record.evaluations = Evaluations(plan.queues, run.view, plan.members)
    if run.settings.keeps_times:
        evaluations.times = {}
    reads = ReadEvaluations(evaluations, plan.audited, plan.known)
    evaluations.read = reads.read, reads.failed
    if run.pending_question is not None:
        # The human saw these results with the question, so the output is not judged again.
        known = {
            name: EvaluationResult(**found) for name, found in run.pending_question["evaluations"].items()
        }
        evaluations.know(known, settled=True)
        reads.read.update(known)
    elif plan.members:
        finished = FinishedRun(
            history=run.view,
            input=freeze(as_state(run.input if run.given is None else run.given)),
            returned=output,
            config=run.contract_config,
            saved=run.is_saved,
            channels=run.channels,
        )
        evaluations.begin(cast(EvaluatorGroup, plan.group), finished)
    return reads


def _replaced(run: NodeRun, output: Any, answer: Any) -> Steps:
    """The answer that takes the place of the node's own: the best attempt, or the answer of a human."""
    if type(answer) is Raised:
        return _not_replaced(run, answer)
    if run.capped is not None:
        answer = output = yield from best_attempt(run, output, run.capped)
    if run.escalation is not None:
        return (yield from escalate(run, output, *run.escalation))
    return answer


def _kept_back(run: NodeRun, output: Any) -> Steps:
    """Check whether the output may be committed. If not, returns `Raised` or sets the redirect."""
    if run.stops:
        stopped = held_back(run, output)
        if stopped is not None or run.redirect is not None:
            return stopped
    if run.plan.output_checkers:
        return (yield from check_output(run, output))
    return None


def _not_replaced(run: NodeRun, answer: Raised) -> Raised | None:
    """Handle an output that is a command from a subgraph: LangGraph has it already, so it cannot be replaced."""
    problem = "a command from a subgraph can neither be replaced nor kept until a human has answered"
    if run.escalation is None:
        capped = run.capped
        assert capped is not None
        run.record.failed(f"router {capped.name}", f"{problem}; the normal edges were taken")
        return answer
    router = run.escalation[0]
    return denied(run, router.name, router.on_reject, problem, None)


def _failed(run: NodeRun, raised: Raised) -> Steps:
    """Handle an exception of the body. Only a router with `on_error` can keep it from being raised."""
    record, error = run.record, raised.error
    if isinstance(error, ParentCommand):  # for a graph further out
        record.status = "completed"
        stopped = yield from _kept_back(run, raised.error.args[0])
        return end(run, raised if stopped is None and run.redirect is None else stopped)
    record.duration = run.lasted
    if run.stops:
        note_stops(run)
    if run.entry is not None and isinstance(error, Exception):
        refused = is_refused(error)
        noted = yield Stopped(run.entry, refused or isinstance(error, GraphBubbleUp), refused)
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
