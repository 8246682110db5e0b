"""Route: all routers are asked, the first that answers and may, wins; and what happens at a cap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.constants import END
from langgraph.types import Command

from arbiter.errors import SyncDriverError, describe, nearest
from arbiter.evaluations import Evaluations
from arbiter.facts import Fact
from arbiter.lifecycle.observing import show_results
from arbiter.lifecycle.outcomes import log
from arbiter.lifecycle.requests import Call, OutputOf, Raised, Resolve, Steps
from arbiter.lifecycle.runs import NOTHING, NodeRun
from arbiter.policy import PolicyRouter
from arbiter.registry import Seat
from arbiter.states import freeze, snapshot
from arbiter.verdicts import Verdict


def route(
    run: NodeRun, output: Any, seats: Sequence[Seat[PolicyRouter]], targets: list[Any] | None = None
) -> Steps:
    """Ask all routers; the first that answers and may, wins. `targets` are their answers, if they have been asked."""
    record = run.record
    if run.held is not None:
        yield from _ask_again(run, output, run.held, seats)
        return
    shown = freeze(output)
    routes: dict[str, str | None] = {}
    view = run.view
    for number, seat in enumerate(seats):
        router = seat.contract
        target = targets[number] if targets else (yield from _asked(run, seat, shown))
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
            log(run, "router %s redirected to %r", seat.name, target)
            run.redirect = record.redirected_to = target
            record.redirected_by = seat.name
    if targets:
        targets.clear()  # the frames that an error among them has passed hold this list
    if routes or seats is not run.plan.routers:
        record.routes = {seat.name: routes.get(seat.name) for seat in seats}
    else:
        record.routes = run.plan.no_routes


def _asked(run: NodeRun, seat: Seat[PolicyRouter], shown: Any) -> Steps:
    """What a router answers."""
    router, evaluations = seat.contract, run.record.evaluations
    if router.needs and isinstance(evaluations, Evaluations):
        for name in router.needs:
            if (lane := evaluations.lane(name)) is not None:
                yield Resolve(evaluations, lane)
    if not router.enforced:
        show_results(run, router, run.view)
    answer = yield Call(seat, (run.view, shown))
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


def best_attempt(run: NodeRun, output: Any, router: PolicyRouter) -> Steps:
    """The node's output with the state update of that attempt at this piece of work which was scored best: this one,
    or an earlier one. Of equals it is the latest. Where the run goes stays with this attempt."""
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
    record.output = snapshot(taken, run.settings.snapshot)
    record.note(f"router {router.name}", f"took the best attempt, {best}, {name}={score:.2f}")
    run.replaced = True
    return taken


def _attempts(run: NodeRun) -> list[Fact]:
    """The earlier attempts at this piece of work, oldest first: those that a router has sent elsewhere, up to the last
    one that was let go. Of several in one superstep, which were sent, it is that with the same input."""
    by_step: dict[int, list[Fact]] = {}
    for fact in run.past.this_run():
        mine = fact["node"] == run.record.node and fact.get("ns", "") == run.record.namespace
        # What was denied or rejected was no attempt, and is not to be taken after all.
        if mine and "status" not in fact:
            by_step.setdefault(fact["step"], []).append(fact)
    attempts: list[Fact] = []
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
    """`output` with the state update of `better`; what `output` says about where the run goes stays."""
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
    """The commands and updates that an output is made of."""
    parts: Any = output
    if isinstance(output, list | tuple) and any(isinstance(part, Command) for part in parts):
        return list(parts)
    return [parts]


def _ask_again(
    run: NodeRun, output: Any, held: Mapping[str, Any], seats: Sequence[Seat[PolicyRouter]]
) -> Steps:
    """A router has escalated this output: that is decided. What the router says now, its approvers say, holds; and if
    it no longer asks, or is no longer there, so does what it said then. A human who was asked is heard."""
    for who, remark in held["notes"].items():
        if who.startswith("router "):
            run.record.note(who, remark)
    seat = next((seat for seat in seats if seat.name == held["policy"]), None)
    asked = Verdict("ask", held["reason"], held)
    if seat is not None and seat.contract.enforced and seat.contract.escalates:
        answer = yield from _asked(run, seat, freeze(output))
        if isinstance(answer, Verdict) and answer.kind == "ask":
            asked = answer
    router = PolicyRouter(held["policy"]) if seat is None else seat.contract
    run.escalation = (router, asked)
