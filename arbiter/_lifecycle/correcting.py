"""Correct: call the body until the gate accepts a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langgraph.errors import ParentCommand
from langgraph.types import Command

from arbiter._lifecycle.advising import add_transient, without_transient
from arbiter._lifecycle.outcomes import log
from arbiter._lifecycle.registry import Registration
from arbiter._lifecycle.requests import BODY, DRAFT, Call, Raised, ReadCheckpoint, SaveNote, Steps
from arbiter._lifecycle.routing import parts_of, with_update
from arbiter._lifecycle.runs import NodeRun
from arbiter._values.edits import SaidBefore, own_copies
from arbiter._values.states import (
    as_state,
    freeze,
    joined,
    overwriting,
    replaced,
    thaw,
    with_fields,
    with_parts,
    written_by,
)
from arbiter.errors import ConfigurationError, CorrectionError, describe
from arbiter.history._record import Record
from arbiter.verdicts import Correction, short


def audit_draft(run: NodeRun, registration: Registration[Any]) -> Steps:
    """Call the body once, and record the decision that the gate would have made about its first draft."""
    if registration.contract.judges_input(run.view):
        _audited(run, registration, (yield Call(registration, (run.view, freeze(as_state(run.input)), 0))))
    # The gate judges against the messages from before the body ran. The body may append to them, or edit them.
    key = registration.contract.messages_key
    said = SaidBefore(_messages(run, registration))
    if isinstance(given := run.states.input.get(key), list):
        run.states.input = {**run.states.input, key: [*given]}
    output = yield BODY
    if before := {id(said.messages[at]): said.before(at) for at in said.edited()}:
        run.states.input = replaced(run.states.input, lambda part: before.get(id(part), part))
    draft = draft_in(output)
    if type(draft) is Raised:
        return output
    run.states.output = written_by(draft)
    answer = yield Call(registration, (run.view, freeze(as_state(draft)), 1))
    _audited(run, registration, answer)
    return output


def _audited(run: NodeRun, registration: Registration[Any], answer: Any) -> None:
    if isinstance(answer, Correction):
        _note(run, registration, answer)
        if answer.kind != "commit" or answer.replaces:
            what = (
                "have replaced the draft" if answer.kind == "commit" else f"{answer.kind}: {answer.feedback}"
            )
            run.record.note(f"gate {registration.name}", f"audit: it would {what}")
    elif run.record.status != "cancelled":
        run.record.failed(f"gate {registration.name}", _problem_of(answer))


def _problem_of(answer: Any) -> str:
    """Why an answer is no decision."""
    return describe(answer.error) if type(answer) is Raised else f"returned a {type(answer).__name__}"


def _stops(answer: Any) -> bool:
    """True if a gate was cancelled or is set up wrongly: the node raises that."""
    return type(answer) is Raised and (
        isinstance(answer.error, ConfigurationError) or not isinstance(answer.error, Exception)
    )


def draft_in(output: Any) -> Any:
    """The draft in a body's result: its output, or the command that a subgraph raises to the graph around it.

    Returns `Raised` if the body has written nothing.
    """
    if type(output) is not Raised or not isinstance(output.error, ParentCommand):
        return output
    return cast(Any, output.error).args[0]


def with_draft(output: Any, draft: Any) -> Any:
    if type(output) is not Raised:
        return draft
    output.error.args = (draft,)  # LangGraph does the same on the way up
    return output


@dataclass(slots=True)
class SentBack:
    """A draft that the gate sent back.

    `note` is saved: the number, the questions asked before it, and the data that the gate wants to keep;
    never the draft. The other fields exist only in the process that wrote it.
    """

    note: Mapping[str, Any]
    feedback: str | None = None
    output: Any = None
    streamed: Sequence[Callable[[], None]] = ()


def correct(run: NodeRun, registration: Registration[Any]) -> Steps:
    """Call the body until the gate accepts a draft. Returns its output, or `Raised`."""
    gate, record = registration.contract, run.record
    if gate.judges_input(run.view) and (stopped := (yield from _judge_input(run, registration))) is not None:
        return stopped
    given, transient = run.input, run.transient
    yield from _go_on(run, registration)
    while True:
        attempt = len(record.drafts) + 1
        messages = SharedMessages(run, registration)
        try:
            output = yield DRAFT
        finally:
            edits = messages.take_back()
        draft = draft_in(output)
        if type(draft) is Raised:
            return output
        if edits:
            draft = replaced(draft, lambda part: edits.get(id(part), part))  # noqa: B023 - called at once
            output = with_draft(output, draft)
        if (lost := messages.not_returned(edits.values(), as_state(draft))) is not None:
            record.failed(f"gate {registration.name}", lost)
        if run.transient:
            draft = without_transient(run, draft)
            output = with_draft(output, draft)
        run.states.output = written_by(draft)
        written = joined([*run.pushed, as_state(draft)])
        answer = yield Call(registration, (run.view, freeze(written), attempt))
        if not isinstance(answer, Correction):
            if _stops(answer):
                return answer
            expected = "" if type(answer) is Raised else "; expected a Correction"
            problem = f"{_problem_of(answer)}{expected}; the draft was let through"
            record.failed(f"gate {registration.name}", problem)
            break
        _note(run, registration, answer)
        if answer.kind == "commit":
            return _taken(run, registration, answer, output)
        feedback = cast(Any, answer.feedback)
        said = "" if feedback is None else feedback if isinstance(feedback, str) else short(feedback)
        record.corrections = (*record.corrections, said)
        account = record.kept_account
        account.drafts = (*account.drafts, (record.output, said))
        log(run, "gate %s sent back draft %d", registration.name, attempt)
        exhausted = attempt >= gate.max_attempts
        if answer.kind == "give_up" or (exhausted and gate.on_exhausted == "raise"):
            reason = said or "no reason was given"
            if answer.kind == "retry":
                reason = f"{attempt} drafts were sent back, the last one because: {reason}"
            if record.drafts:  # a retry begins with a first draft
                yield SaveNote({**record.drafts[-1].note, "seq": _seq(record), "over": True})
                record.drafts = ()
            return Raised(CorrectionError(gate=registration.name, node=record.node, reason=reason))
        if exhausted:
            record.note(
                f"gate {registration.name}", f"max_attempts={attempt} reached; the last draft was taken"
            )
            break
        note = {"task": record.id, "seq": _seq(record), "asked": run.answered, "kept": thaw(answer.keep)}
        record.drafts = (*record.drafts, SentBack(note, answer.feedback, output, run.streamed))
        kept = yield SaveNote(note)
        if type(kept) is Raised:
            if not isinstance(kept.error, Exception):
                return kept
            record.failed(
                f"gate {registration.name}", f"the attempt could not be saved: {describe(kept.error)}"
            )
        run.input, run.transient = given, transient
        _add_feedback(run, registration, answer.feedback, draft)
    for emit in run.streamed:
        emit()
    return output


_NOT_RETURNED = (
    "the node {0} {1!r} of its input and did not return it, so that is not committed. "
    "Return {{{1!r}: [message]}}"
)


_in_use: set[int] = set()
"""The ids of the last messages of the lists that gated bodies use at this moment."""


class SharedMessages:
    """The messages of a node's input while its body uses them.

    The body gets them in a list of its own, and its edits of them are undone when it is done. So a draft that the
    body appends or edits in place is a draft like any other, and invisible until the gate accepts it. The body gets
    copies if another gated body uses the same messages at this moment: an edit would not show who made it.
    """

    def __init__(self, run: NodeRun, registration: Registration[Any]) -> None:
        self._key = key = registration.contract.messages_key
        messages = _messages(run, registration)
        self._last = id(messages[-1]) if messages else 0
        self._is_first = self._last not in _in_use
        if self._is_first:
            _in_use.add(self._last)
        else:
            messages = own_copies(messages)
        self._said = SaidBefore(messages)
        given = as_state(run.input).get(key)
        self._list = list(messages) if isinstance(given, list) else None
        if messages or self._list is not None:
            part = messages[0] if self._list is None else self._list
            run.input = with_parts(run.input, {key: part})
            if run.given is not None and key in run.given and key not in run.transient:
                run.given = {**run.given, key: part}

    def take_back(self) -> dict[int, Any]:
        """Undo the body's edits. Returns a copy with the edit for each edited message, by the `id()` of the message."""
        if self._is_first:
            _in_use.discard(self._last)
        return {id(self._said.messages[at]): self._said.undo(at) for at in self._said.edited()}

    def not_returned(self, edited: Collection[Any], draft: Mapping[str, Any]) -> str | None:
        """A description of the messages that the body appended or edited in place and did not return; None if there
        are none."""
        key = self._key
        if key not in draft and self._list is not None and len(self._list) > len(self._said.messages):
            return _NOT_RETURNED.format("appended to the list", key)
        returned = _listed(draft.get(key)) if edited else []
        ids, parts = {_id(part) for part in returned} - {None}, set(map(id, returned))
        if all(_id(one) in ids or id(one) in parts for one in edited):
            return None
        return _NOT_RETURNED.format("edited a message in", key)


def _messages(run: NodeRun, registration: Registration[Any]) -> list[Any]:
    """The messages of the input, as a new list."""
    return _listed(as_state(run.input).get(registration.contract.messages_key))


def _listed(part: Any) -> list[Any]:
    written = overwriting(part)[1]
    if isinstance(written, list):
        return list(cast(Any, written))
    return [] if written is None else [written]


def _id(message: Any) -> Any:
    fields: Any = message
    return fields.get("id") if isinstance(message, Mapping) else getattr(fields, "id", None)


def _judge_input(run: NodeRun, registration: Registration[Any]) -> Steps:
    """Have the gate judge the text that the body is to say. Returns `Raised` if the body must not run."""
    answer = yield Call(registration, (run.view, freeze(as_state(run.input)), 0))
    if _stops(answer):
        return answer
    if not isinstance(answer, Correction):
        run.record.failed(f"gate {registration.name}", f"{_problem_of(answer)}; the input was let through")
        return None
    _note(run, registration, answer)
    if answer.kind == "give_up":
        reason = answer.feedback or "no reason was given"
        return Raised(CorrectionError(gate=registration.name, node=run.record.node, reason=reason))
    if answer.replaces:
        run.input = with_fields(run.input, thaw(answer.output))
        run.states.input = as_state(run.input)
    return None


def _note(run: NodeRun, registration: Registration[Any], answer: Correction) -> None:
    """Record the gate's account of its decision."""
    if answer.details:
        run.record.gating = answer.details
    if answer.problem:
        run.record.failed(f"gate {registration.name}", answer.problem)


def _seq(record: Record) -> int:
    return record.drafts[-1].note["seq"] + 1 if record.drafts else 1


def _go_on(run: NodeRun, registration: Registration[Any]) -> Steps:
    """Continue after the drafts that were sent back before the run paused, failed or crashed."""
    record = run.record
    if not record.drafts:
        saved = yield ReadCheckpoint(run)
        if type(saved) is Raised:
            record.failed(
                f"gate {registration.name}", f"earlier attempts are not known: {describe(saved.error)}"
            )
            return
        notes: list[Mapping[str, Any]] = sorted(saved.notes, key=lambda note: note["seq"])
        over = max((at for at, note in enumerate(notes, 1) if "over" in note), default=0)
        record.drafts = [SentBack(note) for note in notes[over:]]
    else:  # their streamed chunks belong to an execution that has ended
        record.drafts = [dataclasses.replace(draft, streamed=()) for draft in record.drafts]
    if not record.drafts:
        return
    # Further attempts do not repeat questions that were answered before them.
    run.skip_questions(record.drafts[-1].note["asked"])
    feedback: Any = record.drafts[-1].feedback
    if feedback is None:
        try:
            feedback = registration.contract.resume(run.view, [draft.note["kept"] for draft in record.drafts])
        except Exception as exc:
            record.failed(f"gate {registration.name}", f"resume: {describe(exc)}")
            return
    _add_feedback(run, registration, feedback)


def _add_feedback(run: NodeRun, registration: Registration[Any], feedback: Any, output: Any = None) -> None:
    record = run.record
    id, key = f"arbiter-{record.id}-draft-{len(record.drafts)}", registration.contract.messages_key
    try:
        add_transient(run, feedback, id, key=key, feedback=True, output=output)
    except Exception as exc:
        record.failed(f"gate {registration.name}", f"the feedback could not be passed on: {describe(exc)}")


def _taken(run: NodeRun, registration: Registration[Any], answer: Correction, output: Any) -> Any:
    """The accepted draft, or the output that the gate puts in its place. Streams the chunks that were held
    back for it.
    """
    record, streamed = run.record, run.streamed
    if answer.replaces:
        better: Any = thaw(answer.output)
        draft = draft_in(output)
        if not isinstance(answer.output, Command | list) and any(
            isinstance(part, Command) for part in parts_of(draft)
        ):
            better = with_update(draft, better)
        return with_draft(output, better)
    if answer.attempt is not None and answer.attempt != len(record.drafts) + 1:
        known = record.drafts[answer.attempt - 1 : answer.attempt] if answer.attempt > 0 else ()
        if known and known[0].feedback is not None:
            output, streamed = known[0].output, known[0].streamed
        else:
            problem = f"attempt {answer.attempt} is not at hand; the last draft was taken"
            record.failed(f"gate {registration.name}", problem)
    for emit in streamed:
        emit()
    return output
