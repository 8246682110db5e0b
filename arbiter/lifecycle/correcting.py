"""Correct: call the body until the gate takes a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langgraph.errors import ParentCommand
from langgraph.types import Command

from arbiter.errors import ConfigurationError, CorrectionError, describe
from arbiter.history import Record
from arbiter.lifecycle.advising import lend, without_lent
from arbiter.lifecycle.outcomes import log
from arbiter.lifecycle.requests import Body, Call, Keep, LookBack, Raised, Steps
from arbiter.lifecycle.routing import parts_of, with_update
from arbiter.lifecycle.runs import NodeRun
from arbiter.registry import Seat
from arbiter.states import as_state, freeze, joined, snapshot, thaw, with_fields, with_own_list
from arbiter.verdicts import Correction


def audit_draft(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body once, and note what the gate would have made of its first draft."""
    if seat.contract.judges_input(run.view):
        _audited(run, seat, (yield Call(seat, (run.view, freeze(as_state(run.input)), 0))))
    # What was said before the body ran is judged by; a body may append to the list that it was given.
    run.record.input = with_own_list(run.record.input, seat.contract.messages_key)
    output = yield Body(run.input)
    draft = draft_in(output)
    if type(draft) is Raised:
        return output
    run.record.output = snapshot(draft, run.settings.snapshot)
    answer = yield Call(seat, (run.view, freeze(as_state(draft)), 1))
    _audited(run, seat, answer)
    return output


def _audited(run: NodeRun, seat: Seat[Any], answer: Any) -> None:
    if isinstance(answer, Correction):
        _note(run, seat, answer)
        if answer.kind != "commit" or answer.replaces:
            what = (
                "have replaced the draft" if answer.kind == "commit" else f"{answer.kind}: {answer.feedback}"
            )
            run.record.note(f"gate {seat.name}", f"audit: it would {what}")
    else:
        problem = describe(answer.error) if type(answer) is Raised else f"returned a {type(answer).__name__}"
        run.record.failed(f"gate {seat.name}", problem)


def draft_in(output: Any) -> Any:
    """What a body has written: its output, or the command with which a subgraph hands over to the graph around it,
    which it raises. `Raised` if it has written nothing."""
    if type(output) is not Raised or not isinstance(output.error, ParentCommand):
        return output
    return cast(Any, output.error).args[0]


def _with_draft(output: Any, draft: Any) -> Any:
    """The output with that draft."""
    if type(output) is not Raised:
        return draft
    output.error.args = (draft,)  # as LangGraph itself does on its way up
    return output


@dataclass(slots=True)
class SentBack:
    """A draft that the gate sent back. What is in `note` is saved: number, what was asked before it, what the gate
    wants kept; never the draft. The rest is known to the process in which it was written alone."""

    note: Mapping[str, Any]
    feedback: str | None = None
    output: Any = None
    streamed: Sequence[Callable[[], None]] = ()


def correct(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Call the body until the gate takes a draft."""
    gate, record = seat.contract, run.record
    if gate.judges_input(run.view) and (stopped := (yield from _judge_input(run, seat))) is not None:
        return stopped
    given, lent = run.input, run.lent
    _give_own_list(run, seat)
    yield from _go_on(run, seat)
    while True:
        attempt = len(record.drafts) + 1
        begun = _length(run, seat)
        output = yield Body(run.input, held=True)
        draft = draft_in(output)
        if type(draft) is Raised:
            return output
        if _length(run, seat) > begun and gate.messages_key not in as_state(draft):
            record.failed(f"gate {seat.name}", _NOT_RETURNED.format(gate.messages_key))
        if run.lent:
            draft = without_lent(run, draft)
            output = _with_draft(output, draft)
        record.output = snapshot(draft, run.settings.snapshot)
        written = joined([*run.pushed, as_state(draft)])
        answer = yield Call(seat, (run.view, freeze(written), attempt))
        if type(answer) is Raised or not isinstance(answer, Correction):
            if type(answer) is Raised and (
                isinstance(answer.error, ConfigurationError) or not isinstance(answer.error, Exception)
            ):
                return answer
            problem = (
                describe(answer.error)
                if type(answer) is Raised
                else f"returned a {type(answer).__name__}; expected a Correction"
            )
            record.failed(f"gate {seat.name}", f"{problem}; the draft was let through")
            break
        _note(run, seat, answer)
        if answer.kind == "commit":
            return _taken(run, seat, answer, output)
        record.corrections = (*record.corrections, answer.feedback)
        log(run, "gate %s sent back draft %d", seat.name, attempt)
        exhausted = attempt >= gate.max_attempts
        if answer.kind == "give_up" or (exhausted and gate.on_exhausted == "raise"):
            reason = answer.feedback or "no reason was given"
            if answer.kind == "retry":
                reason = f"{attempt} drafts were sent back, the last one because: {reason}"
            if record.drafts:  # whoever tries again begins with a first draft
                yield Keep({**record.drafts[-1].note, "seq": _seq(record), "over": True})
                record.drafts = ()
            return Raised(CorrectionError(gate=seat.name, node=record.node, reason=reason))
        if exhausted:
            record.note(f"gate {seat.name}", f"max_attempts={attempt} reached; the last draft was taken")
            break
        note = {"task": record.id, "seq": _seq(record), "asked": run.answered, "kept": thaw(answer.keep)}
        record.drafts = (*record.drafts, SentBack(note, answer.feedback, output, run.streamed))
        kept = yield Keep(note)
        if type(kept) is Raised:
            if not isinstance(kept.error, Exception):
                return kept
            record.failed(f"gate {seat.name}", f"the attempt could not be saved: {describe(kept.error)}")
        run.input, run.lent = given, lent
        _give_own_list(run, seat)
        _lend_feedback(run, seat, answer.feedback, draft)
    for emit in run.streamed:
        emit()
    return output


_NOT_RETURNED = (
    "the node appended to the list {0!r} of its input and did not return it, so that is not committed. "
    "Return {{{0!r}: [message]}}"
)


def _give_own_list(run: NodeRun, seat: Seat[Any]) -> None:
    """Give the body a list of messages of its own. A draft that it appends there in place is a draft like another, and
    nobody sees it before the gate takes it."""
    key = seat.contract.messages_key
    run.input = with_own_list(run.input, key)
    if run.given is not None and key in run.given:
        run.given = {**run.given, key: as_state(run.input)[key]}


def _length(run: NodeRun, seat: Seat[Any]) -> int:
    messages: object = as_state(run.input).get(seat.contract.messages_key)
    return len(messages) if isinstance(messages, list) else 0  # pyright: ignore[reportUnknownArgumentType]


def _judge_input(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Have the gate judge what the body is given to say. Returns `Raised` if it must not run."""
    answer = yield Call(seat, (run.view, freeze(as_state(run.input)), 0))
    if type(answer) is Raised and (
        isinstance(answer.error, ConfigurationError) or not isinstance(answer.error, Exception)
    ):
        return answer
    if not isinstance(answer, Correction):
        problem = describe(answer.error) if type(answer) is Raised else f"returned a {type(answer).__name__}"
        run.record.failed(f"gate {seat.name}", f"{problem}; the input was let through")
        return None
    _note(run, seat, answer)
    if answer.kind == "give_up":
        reason = answer.feedback or "no reason was given"
        return Raised(CorrectionError(gate=seat.name, node=run.record.node, reason=reason))
    if answer.replaces:
        run.input = with_fields(run.input, thaw(answer.output))
        run.record.input = snapshot(run.input, run.settings.snapshot)
    return None


def _note(run: NodeRun, seat: Seat[Any], answer: Correction) -> None:
    """Record what the gate says about its decision."""
    if answer.details:
        run.record.gating = answer.details
    if answer.problem:
        run.record.failed(f"gate {seat.name}", answer.problem)


def _seq(record: Record) -> int:
    return record.drafts[-1].note["seq"] + 1 if record.drafts else 1


def _go_on(run: NodeRun, seat: Seat[Any]) -> Steps:
    """Go on after the drafts that were sent back before the run paused, failed or crashed."""
    record = run.record
    if not record.drafts:
        saved = yield LookBack(run)
        if type(saved) is Raised:
            record.failed(f"gate {seat.name}", f"earlier attempts are not known: {describe(saved.error)}")
            return
        notes: list[Mapping[str, Any]] = sorted(saved.notes, key=lambda note: note["seq"])
        over = max((at for at, note in enumerate(notes, 1) if "over" in note), default=0)
        record.drafts = [SentBack(note) for note in notes[over:]]
    else:  # what they streamed belongs to an execution that is over
        record.drafts = [dataclasses.replace(draft, streamed=()) for draft in record.drafts]
    if not record.drafts:
        return
    # The attempts that follow are not asked again what was answered before them.
    run.skip_questions(record.drafts[-1].note["asked"])
    feedback: Any = record.drafts[-1].feedback
    if feedback is None:
        try:
            feedback = seat.contract.resume(run.view, [draft.note["kept"] for draft in record.drafts])
        except Exception as exc:
            record.failed(f"gate {seat.name}", f"resume: {describe(exc)}")
            return
    _lend_feedback(run, seat, feedback)


def _lend_feedback(run: NodeRun, seat: Seat[Any], feedback: Any, output: Any = None) -> None:
    record = run.record
    id, key = f"arbiter-{record.id}-draft-{len(record.drafts)}", seat.contract.messages_key
    try:
        lend(run, feedback, id, key=key, feedback=True, output=output)
    except Exception as exc:
        record.failed(f"gate {seat.name}", f"the feedback could not be passed on: {describe(exc)}")


def _taken(run: NodeRun, seat: Seat[Any], answer: Correction, output: Any) -> Any:
    """The draft that the gate takes, or what it takes in its place. What goes with the draft is let go of."""
    record, streamed = run.record, run.streamed
    if answer.replaces:
        better: Any = thaw(answer.output)
        draft = draft_in(output)
        if not isinstance(answer.output, Command | list) and any(
            isinstance(part, Command) for part in parts_of(draft)
        ):
            better = with_update(draft, better)
        return _with_draft(output, better)
    if answer.attempt is not None and answer.attempt != len(record.drafts) + 1:
        known = record.drafts[answer.attempt - 1 : answer.attempt] if answer.attempt > 0 else ()
        if known and known[0].feedback is not None:
            output, streamed = known[0].output, known[0].streamed
        else:
            problem = f"attempt {answer.attempt} is not at hand; the last draft was taken"
            record.failed(f"gate {seat.name}", problem)
    for emit in streamed:
        emit()
    return output
