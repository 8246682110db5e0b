"""Check: the strongest verdict wins, before the body and, for those that look at outputs, after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphBubbleUp

from arbiter.errors import SyncDriverError, describe
from arbiter.facts import Fact
from arbiter.lifecycle.asking import approve, refused_by
from arbiter.lifecycle.handlers import Harmless
from arbiter.lifecycle.outcomes import denied, input_refused
from arbiter.lifecycle.requests import CallAll, LookBack, Raised, Spent, Steps
from arbiter.lifecycle.runs import NOTHING, NodeRun, call_apart
from arbiter.lifecycle.stops import Stopping
from arbiter.policy import PolicyChecker
from arbiter.registry import Seat
from arbiter.states import as_state, digest, freeze
from arbiter.verdicts import ALLOW, FAILED, Verdict, as_verdict

_log = logging.getLogger("arbiter")


def is_yes(answer: object) -> bool:
    """Whether it is `(True, reason)`: one of the usual forms, beside True and `ALLOW`, of saying that the node may
    run."""
    match answer:
        case (True, str()):
            return True
        case _:
            return False


def check(run: NodeRun, answers: Any = None) -> Steps:
    """Ask all checkers; the strongest verdict wins. Returns `Raised` to stop the node, else None. `answers` are those
    of the checkers, if they have been asked already."""
    record, plan = run.record, run.plan
    approved: set[tuple[str, str]] = set()
    if plan.recovers:
        stopped = yield from _recover(run)
        if stopped is not None or run.redirect is not None:
            return stopped
    while True:
        if (refused := input_refused(run)) is not None:
            record.checks = {"input_schema": Verdict.deny(refused)}
            return denied(run, "input_schema", "raise", refused, None)
        verdicts: dict[str, Verdict] = {}
        causes: dict[str, BaseException] = {}
        if answers is None:
            answers = yield CallAll(plan.checkers, (run.view,))
        if type(answers) is Raised:  # no checker's own: the run was cancelled
            record.status, record.error = "cancelled", describe(answers.error)
            return answers
        stopped = _read_verdicts(run, plan.checkers, answers, verdicts, causes)
        answers.clear()  # the frames that an error among them has passed hold this list
        if stopped is not None:
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
                return denied(run, checker.name, checker.on_deny, reason, cause)
        asking: list[PolicyChecker] = [c for c in enforced if verdicts[c.name].kind == "ask"]
        key = ""
        if asking:
            try:
                key = digest(as_state(run.input))
            except Exception as exc:
                return refused_by(
                    run, asking[0], f"an approval could not be held to its input: {describe(exc)}"
                )
            asking = [c for c in asking if (c.name, key) not in approved]
        if not asking:
            return _watch(run)
        asked_about = run.input
        while asking and run.input is asked_about:
            stopped = yield from approve(run, asking, verdicts, approved)
            if stopped is not None or run.redirect is not None:
                return stopped
            asking = [checker for checker in asking if (checker.name, key) not in approved]
        if run.input is asked_about:
            return _watch(run)
        answers = None


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
            if not isinstance(error, GraphBubbleUp):
                _log.warning("checker %s failed on node %r: %s", seat.name, record.node, describe(error))
            if seat.contract.enforced and isinstance(error, GraphBubbleUp):
                record.status = "interrupted"  # a checker may call LangGraph's interrupt() itself
                return answer
            if seat.contract.enforced and (
                isinstance(error, SyncDriverError) or not isinstance(error, Exception)
            ):
                record.status, record.error = "failed", describe(error)
                return answer
            causes[seat.name] = error
            verdicts[seat.name] = Verdict.deny(f"{FAILED}{describe(error)}")
        elif (verdict := as_verdict(answer)).kind != "allow":
            verdicts[seat.name] = verdict
    return None


def check_output(run: NodeRun, output: Any) -> Steps:
    """Ask the checkers that look at outputs. Returns `Raised`, or sets the redirect, to keep the output back."""
    record, seats = run.record, run.plan.output_checkers
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, BaseException] = {}
    answers: Any = yield CallAll(seats, (freeze(as_state(run.written(output))), run.view))
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
            return denied(run, seat.name, checker.on_deny, reason, causes.get(seat.name))
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
    """The checkpointer cannot be read: those that need to know what is in it deny."""
    record, error = run.record, raised.error
    if not isinstance(error, Exception):
        record.status, record.error = "cancelled", describe(error)
        return raised
    unsure = [seat.contract for seat in run.plan.checkers if seat.contract.recovers]
    reason = f"{FAILED}{describe(error)}"
    record.checks = {checker.name: Verdict.deny(reason) for checker in unsure}
    for checker in unsure:
        if checker.enforced:
            # It is the checkpointer's exception, so it quotes no state.
            told = f"the checkpoint could not be read: it raised {type(error).__name__} ({error})"
            return denied(run, checker.name, checker.on_deny, told, error)
    return None


def _watch(run: NodeRun) -> Raised | None:
    """The node may run: let the checkers that look into its body do so."""
    shadow = run.plan.shadow
    if not run.plan.watchers and shadow is None:
        return None
    handlers: list[BaseCallbackHandler] = []
    for checker in () if shadow is None else shadow.watchers:
        try:
            found = call_apart(run, checker, checker.handlers, run.shadow_view)
            handlers.extend(Harmless(handler, run.apart) for handler in found)
        except Exception as exc:
            run.record.failed(f"shadow {checker.name}", describe(exc))
    for checker in run.plan.watchers:
        try:
            found = call_apart(run, checker, checker.handlers, run.view)
            handlers.extend(
                Stopping(handler, checker, run)
                if checker.enforced and handler.raise_error
                else (handler if checker.enforced else Harmless(handler, run.apart))
                for handler in found
            )
        except Exception as exc:
            _log.warning("checker %s failed on node %r: %s", checker.name, run.record.node, describe(exc))
            reason = f"{FAILED}{describe(exc)}"
            run.record.checks = {**run.record.checks, checker.name: Verdict.deny(reason)}
            if checker.enforced:
                return denied(run, checker.name, checker.on_deny, "", exc)
    run.handlers = handlers
    return None


def tallies_of(facts: Sequence[Fact], spent: Spent = NOTHING) -> dict[str, dict[str, float]]:
    """The sums of what several node runs counted, and the graphs inside them, and of what is used up besides."""
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
