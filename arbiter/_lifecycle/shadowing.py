"""Shadow: the decisions of another constitution, without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from langgraph.errors import GraphBubbleUp

from arbiter._lifecycle.evaluations import Evaluations
from arbiter._lifecycle.registry import Plan, Registration
from arbiter._lifecycle.requests import Call, CallAll, Raised, Resolve, Steps
from arbiter._lifecycle.routing import may_go_to
from arbiter._lifecycle.runs import NO_RESULTS, SHADOW, NodeRun
from arbiter._lifecycle.shadow import ShadowDecision, ShadowDifference
from arbiter._values.states import freeze
from arbiter.errors import describe
from arbiter.policy import PolicyChecker
from arbiter.verdicts import FAILED, Verdict


def shadow_check(run: NodeRun, shadow: Plan) -> Steps:
    """Find the decision of a shadow constitution about this node. Has no effect on the run."""
    run.shadow = ShadowDecision(kind="allow")
    yield from _decide(run, shadow.checkers, (run.shadow_view,))


def shadow_output(run: NodeRun, shadow: Plan) -> Steps:
    """Find the shadow's decision about the output."""
    record = run.record
    if shadow.output_checkers and (record.status == "completed" or record.output):
        yield from _decide(run, shadow.output_checkers, (freeze(record.output), run.shadow_view))


def _decide(
    run: NodeRun, registrations: Sequence[Registration[PolicyChecker]], args: tuple[Any, ...]
) -> Steps:
    """Ask these checkers; the strongest verdict so far is the decision."""
    unusual: Any = yield CallAll(registrations, args)
    if type(unusual) is Raised or run.shadow is None:
        return
    for registration, answer in unusual:
        if type(answer) is Raised:
            kind = "ask" if isinstance(answer.error, GraphBubbleUp) else "deny"
            verdict = Verdict(cast(Any, kind), f"{FAILED}{describe(answer.error)}")
        else:
            verdict = answer
        if _STRENGTH[verdict.kind] > _STRENGTH[run.shadow.kind]:
            run.shadow = _decision(verdict, registration.contract)


_STRENGTH = {"allow": 0, "ask": 1, "deny": 2}


def _decision(verdict: Verdict, checker: PolicyChecker) -> ShadowDecision:
    target = ""
    if verdict.kind == "deny" and checker.on_deny not in ("raise", "audit"):
        target = checker.on_deny.removeprefix("redirect:")
    return ShadowDecision(kind=verdict.kind, policy=checker.name, reason=verdict.reason, target=target)


def compare_checks(run: NodeRun, shadow: Plan) -> None:
    """Compare the decisions before the body, inside it, and about its output. Call it after both have
    observed the end.
    """
    if run.shadow is None:
        return
    enforced = ShadowDecision(kind="allow")
    by_name = {registration.name: registration.contract for registration in run.plan.checkers}
    for name, verdict in run.record.checks.items():
        checker = by_name.get(name)
        if checker is None:  # an input schema, which both have
            return
        if checker.enforced and _STRENGTH[verdict.kind] > _STRENGTH[enforced.kind]:
            enforced = _decision(verdict, checker)
    enforced = _stopped(run, [c for c in run.plan.observers if c.enforced], "") or enforced
    decided = run.shadow
    if decided.kind == "allow":
        decided = _stopped(run, shadow.observers, SHADOW) or decided
    _note_difference(run, "check", enforced, decided)


def _stopped(run: NodeRun, observers: Sequence[PolicyChecker], prefix: str) -> ShadowDecision | None:
    """The denial of a checker that stopped a call in the body, or would have, whatever its `on_deny`; else
    None.
    """
    for checker in observers:
        if checker.counts_stops and (stops := run.record.tallies.get(prefix + checker.name)):
            calls = ", ".join(stops)
            return ShadowDecision(kind="deny", policy=checker.name, reason=f"stops in the body: {calls}")
    return None


def shadow_route(run: NodeRun, shadow: Plan, output: Any) -> Steps:
    """The shadow's destination, or None if none of its routers is asked. `output` may be `Raised`."""
    view = run.shadow_view
    failed = run.record.status != "completed"
    registrations = shadow.error_routers if failed else shadow.routers
    if not registrations or (failed and not _asks_about_error(run, output)):
        return None
    evaluations = None if failed else Evaluations(shadow.queues, view)
    if evaluations is not None:
        view.item.give_results(evaluations)
    decision = ShadowDecision(kind="continue")
    shown = None if failed else freeze(output)
    for registration in registrations:
        router = registration.contract
        for name in router.needs:
            if evaluations is not None and (queue := evaluations.queue(name)) is not None:
                yield Resolve(evaluations, queue)
        target = yield Call(registration, (view, shown))
        if isinstance(target, Verdict) and target.kind == "ask" and router.escalates and not failed:
            decision = ShadowDecision(kind="ask", policy=router.name, reason=target.reason)
        elif may_go_to(target, run, router):
            if view.past.redirects(registration.name) >= router.max_redirects:
                continue
            decision = ShadowDecision(kind="redirect", policy=router.name, target=str.__str__(target))
        else:
            continue
        break
    if evaluations is not None:
        view.item.give_results(NO_RESULTS)
    return decision


def _asks_about_error(run: NodeRun, output: Any) -> bool:
    """True if the routers for errors are asked: the body has failed, and LangGraph does not retry."""
    if run.record.status != "failed":
        return False
    if type(output) is not Raised:
        return run.record.redirected_to is not None  # an enforced router has handled the error
    return isinstance(output.error, Exception) and run.is_final(output.error)


def compare_routes(run: NodeRun, decision: ShadowDecision | None) -> None:
    record = run.record
    if decision is None:
        return
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
