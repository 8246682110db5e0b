"""Route: all routers are asked, and the first permitted answer wins; and the behaviour at a cap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from langgraph.constants import END
from langgraph.types import Command

from arbiter._lifecycle.evaluations import Evaluations
from arbiter._lifecycle.observing import show_results
from arbiter._lifecycle.outcomes import log
from arbiter._lifecycle.registry import Registration
from arbiter._lifecycle.requests import Call, OutputOf, Raised, Resolve, Steps
from arbiter._lifecycle.runs import NodeRun
from arbiter._values.states import are_commands, freeze, written_by
from arbiter.errors import SyncDriverError, describe, nearest
from arbiter.history._facts import RunFact
from arbiter.history._results import NOTHING
from arbiter.policy import PolicyRouter
from arbiter.verdicts import Verdict, short


def route(run: NodeRun, output: Any, registrations: Sequence[Registration[PolicyRouter]]) -> Steps:
    """Ask all routers. The first one that answers and has not reached its cap wins."""
    record = run.record
    if run.pending_question is not None:
        yield from _ask_again(run, output, run.pending_question, registrations)
        return
    shown = freeze(output)
    routes: dict[str, str | None] = {}
    view = run.view
    for registration in registrations:
        router = registration.contract
        if router.needs:
            yield from _resolve(run, router)
        show_results(run, router, run.item)
        target = yield Call(registration, (view, shown))
        if target is None:
            continue
        routes[registration.name] = None
        if isinstance(target, Verdict):
            _wants_human(run, router, target)
        elif type(target) is Raised:
            if record.status == "cancelled":
                continue  # the router did not fail: the run ended while it was asked
            if not isinstance(target.error, Exception) or isinstance(target.error, SyncDriverError):
                record.failed(f"router {registration.name}", describe(target.error))
            else:
                record.failed(
                    f"router {registration.name}", f"{describe(target.error)}; the normal edges were taken"
                )
        elif not may_go_to(target, run, router):
            record.failed(f"router {registration.name}", _no_target(run, router, target))
        else:
            target = str.__str__(target)  # the text of an Enum may differ from its value
            routes[registration.name] = target
            if not router.enforced:
                record.note(f"router {registration.name}", f"audit: it would have redirected to {target!r}")
                continue
            if run.redirect is not None or run.escalation is not None:
                continue
            if view.past.redirects(registration.name) >= router.max_redirects:
                _at_cap(run, router, f"redirect to {target!r}")
                continue
            log(run, "router %s redirected to %r", registration.name, target)
            run.redirect = record.redirected_to = target
            record.redirected_by = registration.name
    if routes or registrations is not run.plan.routers:
        record.routes = {registration.name: routes.get(registration.name) for registration in registrations}
    else:
        record.routes = run.plan.no_routes


def may_go_to(target: object, run: NodeRun, router: PolicyRouter) -> TypeGuard[str]:
    """True if the answer is a node of the graph, and one of the router's targets if it declares some."""
    return isinstance(target, str) and target in run.plan.targets and target in (router.targets or (target,))


def _no_target(run: NodeRun, router: PolicyRouter, target: object) -> str:
    known, names, what = run.plan.targets, run.plan.targets - {END}, "a node of this graph. Nodes"
    if isinstance(target, str) and target in known:
        known = names = frozenset(router.targets)
        what = "one of its targets. Targets"
    hint = nearest(target, known) if isinstance(target, str) else ""
    listed = ", ".join(sorted(names)) or "none"
    return f"redirects to {short(target)}, which is not {what}: {listed}.{hint}"


def _resolve(run: NodeRun, router: PolicyRouter) -> Steps:
    """Wait for the evaluations that a router needs."""
    evaluations = run.record.evaluations
    if isinstance(evaluations, Evaluations):
        for name in router.needs:
            if (queue := evaluations.queue(name)) is not None:
                yield Resolve(evaluations, queue)
                if (problem := evaluations.misnamed(name)) is not None:
                    run.record.failed(f"router {router.name}", problem)


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
    """Record that the router has reached its cap, and do what `on_cap` says."""
    record = run.record
    remark = f"max_redirects={router.max_redirects} reached; it did not {what}"
    if router.on_cap == "end" and END in run.plan.targets:
        run.redirect = record.redirected_to = END
        remark += ", the run ends"
    elif router.on_cap == "best_attempt":
        run.capped = run.capped or router
    record.note(f"router {router.name}", remark)


def best_attempt(run: NodeRun, output: Any, router: PolicyRouter) -> Steps:
    """The node's output with the state update of the attempt with the best score: this one or an earlier one.

    If scores are equal, the latest wins. The destination of the run stays that of this attempt.
    """
    record, name, reads = run.record, router.best_by or "", run.reads
    raised = output if type(output) is Raised else None
    found = None if reads is None or raised is not None else reads.get(name)
    best, score = None, -math.inf
    for fact in _attempts(run):
        judged = fact.get("evals", NOTHING).get(name)
        if judged is not None and judged[0] >= score:
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
    run.states.output = written_by(taken)
    record.note(f"router {router.name}", f"took the best attempt, {best}, {name}={score:.2f}")
    run.replaced = True
    return taken


def _attempts(run: NodeRun) -> list[RunFact]:
    """The earlier attempts at this piece of work, oldest first.

    They are the outputs that a router redirected, back to the last one that it let pass. If `Send` made
    several attempts in one superstep, the one with the same input counts.
    """
    by_step: dict[int, list[RunFact]] = {}
    for fact in run.past.this_run():
        mine = fact["node"] == run.record.node and fact.get("ns", "") == run.record.namespace
        # A denied or rejected output was no attempt and must not be used.
        if mine and "status" not in fact:
            by_step.setdefault(fact["step"], []).append(fact)
    attempts: list[RunFact] = []
    given = run.sent
    for step in sorted(by_step, reverse=True):
        facts = by_step[step]
        if len(facts) > 1:
            facts = [fact for fact in facts if given is not None and fact.get("sent") == given]
        if len(facts) != 1 or "by" not in facts[0] or "to" not in facts[0]:
            break
        attempts += facts
    return attempts[::-1]


def with_update(output: Any, better: Any) -> Any:
    """`output` with the state update of `better`, and with its own destination."""
    updates: list[Any] = [part.update if isinstance(part, Command) else part for part in parts_of(better)]
    given: Any = output
    if isinstance(output, Command) and len(updates) == 1:
        return dataclasses.replace(given, update=updates[0])
    commands: list[Any] = [part for part in parts_of(given) if isinstance(part, Command)]
    goes = [dataclasses.replace(command, update=None) for command in commands]
    if not goes and not isinstance(better, Command) and len(updates) == 1:
        return updates[0]
    return [*(Command(update=update) for update in updates), *goes]


def parts_of(output: Any) -> list[Any]:
    """The commands and updates of which an output consists."""
    return list(output) if are_commands(output) else [output]


def _ask_again(
    run: NodeRun, output: Any, pending: Mapping[str, Any], registrations: Sequence[Registration[PolicyRouter]]
) -> Steps:
    """Restore the escalation of this output from the open question.

    The router's present approvers count. If it no longer asks, or no longer exists, its earlier question
    counts: the human who was asked is heard.
    """
    for who, remark in pending["notes"].items():
        if who.startswith("router "):
            run.record.note(who, remark)
    registration = next(
        (registration for registration in registrations if registration.name == pending["policy"]), None
    )
    asked = Verdict("ask", pending["reason"], pending)
    if registration is not None and registration.contract.enforced and registration.contract.escalates:
        yield from _resolve(run, registration.contract)
        show_results(run, registration.contract, run.item)
        answer = yield Call(registration, (run.view, freeze(output)))
        if isinstance(answer, Verdict) and answer.kind == "ask":
            asked = answer
    router = PolicyRouter(pending["policy"]) if registration is None else registration.contract
    run.escalation = (router, asked)
