"""Shadow: what another constitution would have decided. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from langgraph.errors import GraphBubbleUp

from arbiter.evaluations import Evaluations
from arbiter.lifecycle.outcomes import describe
from arbiter.lifecycle.requests import Call, CallAll, Raised, Resolve, Steps
from arbiter.lifecycle.runs import NO_RESULTS, NodeRun
from arbiter.policy import PolicyChecker
from arbiter.registry import Plan, Seat
from arbiter.shadow import ShadowDecision, ShadowDifference
from arbiter.states import freeze
from arbiter.verdicts import Verdict, as_verdict


def shadow_check(run: NodeRun, shadow: Plan) -> Steps:
    """What a shadow constitution would decide about this node. Changes nothing."""
    run.shadow = ShadowDecision(kind="allow")
    yield from _decide(run, shadow.checkers, (run.shadow_view,))


def shadow_output(run: NodeRun, shadow: Plan) -> Steps:
    """What it would decide about the output."""
    record = run.record
    if shadow.output_checkers and (record.status == "completed" or record.output):
        yield from _decide(run, shadow.output_checkers, (freeze(record.output), run.shadow_view))


def _decide(run: NodeRun, seats: Sequence[Seat[PolicyChecker]], args: tuple[Any, ...]) -> Steps:
    """Ask these; the strongest verdict so far is the decision."""
    answers: Any = yield CallAll(seats, args)
    if type(answers) is Raised or run.shadow is None:
        return
    for seat, answer in zip(seats, answers, strict=False):
        if type(answer) is Raised:
            kind = "ask" if isinstance(answer.error, GraphBubbleUp) else "deny"
            verdict = Verdict(cast(Any, kind), f"the checker failed: {describe(answer.error)}")
        else:
            verdict = as_verdict(answer)
        if _STRENGTH[verdict.kind] > _STRENGTH[run.shadow.kind]:
            run.shadow = _decision(verdict, seat.contract)


_STRENGTH = {"allow": 0, "ask": 1, "deny": 2}


def _decision(verdict: Verdict, checker: PolicyChecker) -> ShadowDecision:
    target = ""
    if verdict.kind == "deny" and checker.on_deny not in ("raise", "audit"):
        target = checker.on_deny.removeprefix("redirect:")
    return ShadowDecision(kind=verdict.kind, policy=checker.name, reason=verdict.reason, target=target)


def compare_checks(run: NodeRun) -> None:
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


def shadow_route(run: NodeRun, shadow: Plan, output: Any) -> Steps:
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
    view.give_results(NO_RESULTS)
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
