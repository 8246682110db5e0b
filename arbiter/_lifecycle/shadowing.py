"""Shadow: the decisions of another constitution, without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from langgraph.constants import END
from langgraph.errors import GraphBubbleUp

from arbiter._lifecycle.outcomes import consequence_of
from arbiter._lifecycle.registry import Plan, Registration
from arbiter._lifecycle.requests import Call, CallAll, Raised, Resolve, Steps
from arbiter._lifecycle.routing import may_go_to
from arbiter._lifecycle.runs import SHADOW, NodeRun
from arbiter._lifecycle.shadow import ShadowDecision, ShadowDifference
from arbiter._values.states import freeze
from arbiter.errors import describe
from arbiter.history._record import PolicyDecision, Record
from arbiter.history._results import NO_RESULTS
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
        yield from _decide(run, shadow.output_checkers, (freeze(run.states.output), run.shadow_view))


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
            run.shadow = _decision(run, verdict, registration.contract)


_STRENGTH = {"allow": 0, "ask": 1, "deny": 2}


def _decision(run: NodeRun, verdict: Verdict, checker: PolicyChecker) -> ShadowDecision:
    target = target_of(consequence_of(run, checker)) if verdict.kind == "deny" else ""
    return ShadowDecision(kind=verdict.kind, policy=checker.name, reason=verdict.reason, target=target)


def target_of(on_deny: str) -> str:
    return "" if on_deny in ("raise", "audit") else on_deny.removeprefix("redirect:")


def recorded_check(checked: PolicyDecision, checks: Mapping[str, Verdict]) -> ShadowDecision:
    """The decision that the checkers of a record came to."""
    policy = checked.policy or ""
    target = target_of(checked.consequence or "raise") if checked.kind == "deny" else ""
    reason = checks[policy].reason if policy in checks else ""
    return ShadowDecision(kind=checked.kind, policy=policy, reason=reason, target=target)


def recorded_route(record: Record) -> ShadowDecision:
    """The decision that the routers of a record came to."""
    if record.redirected_to is not None:
        return ShadowDecision(kind="redirect", policy=record.redirected_by or "", target=record.redirected_to)
    if record.redirected_by is not None:  # its router has had a human asked
        return ShadowDecision(kind="ask", policy=record.redirected_by)
    return ShadowDecision(kind="continue")


def compare_checks(run: NodeRun, shadow: Plan) -> None:
    """Compare the decisions before the body, inside it, and about its output. Call it after both have
    observed the end.
    """
    record = run.record
    if run.shadow is None or "input_schema" in record.checks:  # the schema is not a rule: both have it
        return
    enforced = ShadowDecision(kind="allow")
    checked = None if record.account is None else record.account.checked
    if checked is not None:
        enforced = recorded_check(checked, record.checks)
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
    asked = _asks_about_error(run, output) if failed else type(output) is not Raised
    if not registrations or not asked:
        return None
    evaluations = None if failed else run.shadow_evaluations(shadow.queues)
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
        question = target if isinstance(target, Verdict) else None
        asks = question is not None and question.kind == "ask" and router.escalates and not failed
        if not asks and not may_go_to(target, run, router):
            continue
        if view.past.redirects(registration.name) >= router.max_redirects:
            if router.on_cap != "end" or END not in run.plan.targets:
                continue
            decision = ShadowDecision(kind="redirect", policy=router.name, target=END)
        elif question is not None:
            decision = ShadowDecision(kind="ask", policy=router.name, reason=question.reason)
        else:
            decision = ShadowDecision(
                kind="redirect", policy=router.name, target=str.__str__(cast(str, target))
            )
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
    if decision is not None:
        _note_difference(run, "route", recorded_route(run.record), decision)


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
