"""Check: the strongest verdict wins, before the body and, for checkers of outputs, after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphBubbleUp

from arbiter._lifecycle.asking import approve, refused_by
from arbiter._lifecycle.handlers import harmless
from arbiter._lifecycle.outcomes import consequence_of, denied, denied_by, input_refused
from arbiter._lifecycle.requests import Call, CallAll, Raised, ReadCheckpoint, Spent, Steps, Unusual
from arbiter._lifecycle.runs import NodeRun, call_isolated
from arbiter._lifecycle.stops import stopping
from arbiter._values.states import as_state, digest, freeze, written_by
from arbiter.errors import PolicyViolationError, SyncDriverError, describe
from arbiter.history._facts import RunFact
from arbiter.history._record import PolicyDecision
from arbiter.history._results import NOTHING
from arbiter.policy import PolicyChecker
from arbiter.verdicts import ALLOW, FAILED, Verdict

_log = logging.getLogger("arbiter")


def check(run: NodeRun) -> Steps:
    """Ask all checkers; the strongest verdict wins. Returns `Raised` to stop the node, else None."""
    record, plan = run.record, run.plan
    approved: set[tuple[str, str]] = set()
    if plan.reads_unfinished:
        stopped = yield from _recover(run)
        if stopped is not None or run.redirect is not None:
            return stopped
    while True:
        if run.schemas is not None and (refused := input_refused(run)) is not None:
            record.checks = {"input_schema": Verdict.deny(refused)}
            return denied(run, "input_schema", "raise", refused, None)
        verdicts: dict[str, Verdict] = {}
        causes: dict[str, BaseException] = {}
        unusual: Any = yield CallAll(plan.checkers, (run.view,))
        if unusual:
            stopped = _read_verdicts(run, unusual, verdicts, causes)
            if stopped is not None:
                return stopped
        if not verdicts:
            record.checks = plan.all_allowed
            watched = plan.watchers or plan.shadow is not None
            return (yield from _watch(run)) if watched else None
        enforced: list[PolicyChecker] = [s.contract for s in plan.checkers if s.contract.enforced]
        for checker in enforced:
            if checker.name in verdicts:
                checker.reads_history = True  # from now on a cached output does not replace this checker
        record.checks = verdicts = {s.name: verdicts.get(s.name, ALLOW) for s in plan.checkers}
        if record.kept_account.checked is None:  # else a human has edited the input that was checked first
            _note_checked(run, enforced, verdicts)
        for checker in enforced:
            if verdicts[checker.name].kind == "deny":
                cause = causes.get(checker.name)
                reason = verdicts[checker.name].reason if cause is None else ""
                return denied_by(run, checker, reason, cause)
        asking: list[PolicyChecker] = [c for c in enforced if verdicts[c.name].kind == "ask"]
        key = ""
        if asking:
            try:
                key = digest(as_state(run.input))
            except Exception as exc:
                return refused_by(
                    run, asking[0], f"an approval could not be tied to its input: {describe(exc)}"
                )
            asking = [c for c in asking if (c.name, key) not in approved]
        if not asking:
            return (yield from _watch(run))
        asked_about = run.input
        while asking and run.input is asked_about:
            stopped = yield from approve(run, asking, verdicts, approved)
            if stopped is not None or run.redirect is not None:
                return stopped
            asking = [checker for checker in asking if (checker.name, key) not in approved]
        if run.input is asked_about:
            return (yield from _watch(run))


def _note_checked(run: NodeRun, enforced: Sequence[PolicyChecker], verdicts: Mapping[str, Verdict]) -> None:
    for kind in ("deny", "ask"):
        for checker in enforced:
            if verdicts[checker.name].kind == kind:
                consequence = consequence_of(run, checker) if kind == "deny" else "ask"
                run.record.kept_account.checked = PolicyDecision(
                    kind=kind, policy=checker.name, consequence=consequence
                )
                return


def _read_verdicts(
    run: NodeRun, unusual: Unusual | Raised, verdicts: dict[str, Verdict], causes: dict[str, BaseException]
) -> Raised | None:
    """Record the verdicts that do not allow, and the exceptions of failed checkers. Returns `Raised` to stop
    the node.
    """
    record = run.record
    if isinstance(unusual, Raised):  # not the error of a checker: the run was cancelled
        record.status, record.error = "cancelled", describe(unusual.error)
        return unusual
    found = unusual.copy()
    unusual.clear()  # the traceback of an error among them refers to this list
    for registration, answer in found:
        if isinstance(answer, Raised):
            error = answer.error
            if not isinstance(error, GraphBubbleUp):
                _log.warning(
                    "checker %s failed on node %r: %s", registration.name, record.node, describe(error)
                )
            if registration.contract.enforced and isinstance(error, GraphBubbleUp):
                record.status = "interrupted"  # a checker may call LangGraph's interrupt() itself
                return answer
            if registration.contract.enforced and (
                isinstance(error, SyncDriverError) or not isinstance(error, Exception)
            ):
                record.status, record.error = "failed", describe(error)
                return answer
            causes[registration.name] = error
            verdicts[registration.name] = Verdict.deny(f"{FAILED}{describe(error)}")
        elif answer.kind != "allow":
            verdicts[registration.name] = answer
    return None


def check_output(run: NodeRun, output: Any) -> Steps:
    """Ask the checkers of outputs. To hold back the output, returns `Raised` or sets the redirect."""
    record, registrations = run.record, run.plan.output_checkers
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, BaseException] = {}
    unusual: Any = yield CallAll(registrations, (freeze(written_by(run.written(output))), run.view))
    if (stopped := _read_verdicts(run, unusual, verdicts, causes)) is not None:
        return stopped
    for name, verdict in verdicts.items():
        if verdict.kind == "ask":
            reason = (
                f"it asks about an output, which only a router with escalates=True can do: {verdict.reason}"
            )
            verdicts[name] = Verdict.deny(reason)
    if verdicts:
        record.checks = {**record.checks, **verdicts}
    for registration in registrations:
        checker = registration.contract
        if registration.name in verdicts and checker.enforced:
            checker.reads_history = True  # from now on no cache answers for this checker
            reason = f"its output was not committed: {verdicts[registration.name].reason}"
            _note_checked(run, [checker], verdicts)
            return denied_by(run, checker, reason, causes.get(registration.name))
    return None


def _recover(run: NodeRun) -> Steps:
    """Find the counts of siblings from before this execution of the graph, and of the graphs around it,
    began.
    """
    levels: list[Mapping[str, Mapping[str, float]]] = []
    level: NodeRun | None = run
    while level is not None:
        if (recovered := level.recovered) is None:
            saved = yield ReadCheckpoint(level)
            if type(saved) is Raised:
                return _not_recovered(run, saved)
            if (recovered := level.recovered) is None:  # else a sibling has done it meanwhile
                recovered = (level.record.step, tallies_of(saved.facts, saved.spent), saved.spent)
                level.recover(recovered)
        step, tallies, spent = recovered
        levels.append(tallies if step == level.record.step else NOTHING)
        if level is run and (own := spent.get(run.record.id)):
            run.record.spent = {**run.record.spent, **own}
        level = level.parent
    run.view.give_recovered(levels)
    return None


def _not_recovered(run: NodeRun, raised: Raised) -> Raised | None:
    """Deny for the checkers that need the unreadable checkpoint."""
    record, error = run.record, raised.error
    if not isinstance(error, Exception):
        record.status, record.error = "cancelled", describe(error)
        return raised
    unsure = [
        registration.contract for registration in run.plan.checkers if registration.contract.reads_unfinished
    ]
    reason = f"{FAILED}{describe(error)}"
    record.checks = {checker.name: Verdict.deny(reason) for checker in unsure}
    for checker in unsure:
        if checker.enforced:
            # It is the checkpointer's exception, so it quotes no state.
            told = f"the checkpoint could not be read: it raised {type(error).__name__} ({error})"
            return denied_by(run, checker, told, error)
    return None


def _watch(run: NodeRun) -> Steps:
    """Install the handlers of the checkers that look into the body, now that the node may run.

    Checkers that may wait come last, and not at all if the body is done already: an answer about its output
    is all that is left.
    """
    shadow = run.plan.shadow
    if not run.plan.watchers and shadow is None:
        return None
    handlers: list[BaseCallbackHandler] = []
    for checker in () if shadow is None else shadow.watchers:
        try:
            found = call_isolated(run, checker, checker.handlers, run.shadow_view)
            handlers.extend(harmless(handler, run.isolated_config) for handler in found)
        except Exception as exc:
            run.record.failed(f"shadow {checker.name}", describe(exc))
    for checker in run.plan.watchers:
        if checker.blocking:
            continue
        try:
            answer: Any = call_isolated(run, checker, checker.handlers, run.view)
        except BaseException as exc:
            answer = Raised(exc)
        if (stopped := _install(run, checker, answer, handlers)) is not None or run.redirect is not None:
            return stopped
    for registration in run.plan.waiting if run.pending_question is None else ():
        checker, answer = registration.contract, (yield Call(registration, (run.view,)))
        if (stopped := _install(run, checker, answer, handlers)) is not None or run.redirect is not None:
            return stopped
    run.handlers = handlers
    return None


def _install(
    run: NodeRun, checker: PolicyChecker, answer: Any, handlers: list[BaseCallbackHandler]
) -> Raised | None:
    """Add a checker's handlers, or deny for it if it gave none. Returns `Raised` to stop the node."""
    try:
        if type(answer) is Raised:
            raise answer.error
        for handler in answer:
            if not checker.enforced:
                handlers.append(harmless(handler, run.isolated_config))
            else:
                handlers.append(stopping(handler, checker, run) if handler.raise_error else handler)
    except BaseException as exc:
        is_mistake = isinstance(exc, SyncDriverError) and checker.enforced
        if isinstance(exc, Exception) and not is_mistake:
            return _not_watched(run, checker, exc)
        # Else the run was cancelled, or the checker ends the process.
        run.record.status, run.record.error = "failed" if is_mistake else "cancelled", describe(exc)
        return Raised(exc)
    return None


def _not_watched(run: NodeRun, checker: PolicyChecker, error: Exception) -> Raised | None:
    """Deny for a checker whose handlers could not be made. If it is enforced, returns `Raised` or sets the
    redirect.
    """
    reason, cause = "", cast("Exception | None", error)
    if isinstance(error, PolicyViolationError) and error.cause is None:
        reason, cause = error.reason, None
    else:
        _log.warning("checker %s failed on node %r: %s", checker.name, run.record.node, describe(error))
    verdict = Verdict.deny(reason or f"{FAILED}{describe(error)}")
    run.record.checks = {**run.record.checks, checker.name: verdict}
    return denied_by(run, checker, reason, cause) if checker.enforced else None


def tallies_of(facts: Sequence[RunFact], spent: Spent = NOTHING) -> dict[str, dict[str, float]]:
    """The sums that several node runs and the graphs inside them counted, plus amounts that were used up
    without a fact.
    """
    sums: dict[str, dict[str, float]] = {}

    def add(policy: str, key: str, amount: float) -> None:
        of_policy = sums.setdefault(policy, {})
        of_policy[key] = of_policy.get(key, 0) + amount

    for fact in facts:
        for policy, amounts in fact.get("tallies", NOTHING).items():
            for key, amount in amounts.items():
                add(policy, key, amount or 0)
        for policy, tallies in fact.get("inner", NOTHING).get("tallies", NOTHING).items():
            for key, (amount, *_) in tallies.items():
                add(policy, key, amount)
    for notes in spent.values():
        for note in notes.values():
            for policy, amounts in note.items():
                for key, amount in amounts.items():
                    add(policy, key, amount or 0)
    return sums
