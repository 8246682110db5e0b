"""Correct: call the body until the gate takes a draft."""

from __future__ import annotations

from typing import Any

from arbiter.errors import (
    CorrectionError,
)
from arbiter.lifecycle.advising import lend, without_lent
from arbiter.lifecycle.outcomes import describe
from arbiter.lifecycle.requests import Body, Call, Raised, Steps
from arbiter.lifecycle.runs import NodeRun
from arbiter.registry import Seat
from arbiter.states import as_state, freeze, snapshot, thaw
from arbiter.verdicts import Correction


def audit_draft(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body once, and note what the gate would have made of its first draft."""
    output = yield Body(run.input)
    if type(output) is Raised:
        return output
    run.record.output = snapshot(output, run.settings.snapshot)
    answer = yield Call(seat, (run.view, freeze(as_state(output)), 1))
    if isinstance(answer, Correction):
        if answer.kind != "commit" or answer.replaces:
            what = (
                "have replaced the draft" if answer.kind == "commit" else f"{answer.kind}: {answer.feedback}"
            )
            run.record.note(f"gate {seat.name}", f"audit: it would {what}")
    else:
        problem = describe(answer.error) if type(answer) is Raised else f"returned a {type(answer).__name__}"
        run.record.failed(f"gate {seat.name}", problem)
    return output


def correct(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body until the gate takes a draft."""
    gate, record, given = seat.contract, run.record, run.input
    lent = run.lent
    attempt = 0
    while True:
        attempt += 1
        output = yield Body(run.input, held=True)
        if type(output) is Raised:
            return output
        if run.lent:
            output = without_lent(run, output)
        record.output = snapshot(output, run.settings.snapshot)
        answer = yield Call(seat, (run.view, freeze(as_state(output)), attempt))
        if type(answer) is Raised or not isinstance(answer, Correction):
            if type(answer) is Raised and not isinstance(answer.error, Exception):
                return answer
            problem = (
                describe(answer.error)
                if type(answer) is Raised
                else f"returned a {type(answer).__name__}; expected a Correction"
            )
            record.failed(f"gate {seat.name}", f"{problem}; the draft was let through")
            break
        if answer.kind == "commit":
            output = thaw(answer.output) if answer.replaces else output
            break
        record.corrections = (*record.corrections, answer.feedback)
        exhausted = attempt >= gate.max_attempts
        if answer.kind == "give_up" or (exhausted and gate.on_exhausted == "raise"):
            reason = answer.feedback or "no reason was given"
            if answer.kind == "retry":
                reason = f"{attempt} drafts were sent back, the last one because: {reason}"
            return Raised(CorrectionError(gate=seat.name, node=record.node, reason=reason))
        if exhausted:
            record.note(f"gate {seat.name}", f"max_attempts={attempt} reached; the last draft was taken")
            break
        run.input, run.lent = given, lent
        try:
            lend(run, answer.feedback, f"arbiter-{record.id}-draft-{attempt}", feedback=True)
        except Exception as exc:
            record.failed(f"gate {seat.name}", f"the feedback could not be passed on: {describe(exc)}")
    run.release()
    return output
