"""Escalate: a human decides about an output, which is stored with the question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langgraph.types import Command

from arbiter._lifecycle.asking import Decision, begin_approved, ensure_fields, passes, put_question
from arbiter._lifecycle.checking import check_output
from arbiter._lifecycle.outcomes import denied, note_output, output_refused
from arbiter._lifecycle.requests import Raised, Saved, Steps
from arbiter._lifecycle.runs import NodeRun
from arbiter._values.states import as_state, digest, overwriting_with, thaw, with_fields
from arbiter.errors import ApprovalUsedError, describe
from arbiter.policy import PolicyRouter
from arbiter.verdicts import Verdict, terms_of


def escalate(run: NodeRun, output: Any, router: PolicyRouter, verdict: Verdict) -> Steps:
    """Ask a human about an output. The output is stored with the question, so that the body does not run
    again.
    """
    record = run.record
    record.redirected_by = router.name  # it counts towards the cap
    try:
        terms = terms_of(verdict)
    except Exception as exc:
        reason = f"its question cannot be asked: {describe(exc)}"
        return denied(run, router.name, router.on_reject, reason, None)
    returned: Any = output
    command: Any = returned if isinstance(output, Command) else None
    update: Any = returned if command is None else command.update
    read = {} if run.reads is None else run.reads.read
    try:
        key = digest(as_state(returned))
    except Exception as exc:
        reason = f"a decision could not be tied to its output: {describe(exc)}"
        return denied(run, router.name, router.on_reject, reason, None)
    payload: dict[str, Any] = {
        **thaw(verdict.payload),
        "type": "escalation",
        "policy": router.name,
        "reason": verdict.reason,
        "node": record.node,
        "instruction": record.instruction.qualified if record.instruction else None,
        "item": record.id,
        "output": update,
        "tuples": list(_tuples(update, [])),
        "command": None if command is None else {"goto": command.goto, "graph": command.graph},
        "evaluations": {
            name: {
                "score": float(r.score),
                "passed": r.passed,
                "feedback": r.feedback,
                **({} if r.outcome == "scored" else {"outcome": r.outcome}),
            }
            for name, r in read.items()
        },
        "notes": dict(record.notes),
        "digest": key,
        "allowed": ["approve", "edit", "reject"],
    }
    decision = yield from put_question(run, payload, key, "output", terms)
    if type(decision) is Raised:
        if isinstance(decision.error, ApprovalUsedError):
            return decision
        if passes(decision.error):
            record.status = "interrupted"
            return decision
        reason = f"a human has to see its output, and no human can be asked here: {describe(decision.error)}"
        return denied(run, router.name, router.on_reject, reason, None)
    if decision.kind == "edit":
        try:
            fields = as_state({} if update is None else update)
            ensure_fields(run, fields, decision.detail)
            edits = {key: overwriting_with(fields.get(key), edit) for key, edit in decision.detail.items()}
            changed = with_fields({} if update is None else update, edits)
            returned = changed if command is None else dataclasses.replace(command, update=changed)
            note_output(run, returned)
        except Exception as exc:
            decision = Decision("reject", f"the edited output does not fit: {describe(exc)}", decision.by)
        else:
            run.replaced = True
            if run.plan.keeps_output:
                record.raw = returned
            if (wrong := output_refused(run, returned)) is not None:
                record.status, record.error = "failed", describe(wrong)
                return Raised(wrong)
            if run.plan.output_checkers:
                stopped = yield from check_output(run, returned)
                if stopped is not None or run.redirect is not None:
                    return stopped
    record.note(f"router {router.name}", decision.signature)
    if decision.kind == "reject":
        return denied(run, router.name, router.on_reject, decision.rejection, None)
    run.approved_by = run.approved_by or router.name
    if (used := (yield from begin_approved(run, output=True))) is not None:
        return used
    return returned


def pending_question_in(run: NodeRun, saved: Saved) -> Mapping[str, Any] | None:
    """The question that an earlier attempt of this task has asked about its output, or None."""
    for question in saved.shown:
        # A question that replaced another one carries that one.
        pending: Mapping[str, Any] = (
            question["held"] if isinstance(question.get("held"), Mapping) else question
        )
        # A node that runs a subgraph also has the questions of the nodes in it.
        if (pending.get("type"), pending.get("item")) == ("escalation", run.record.id):
            return pending
    return None


def _tuples(value: Any, path: list[Any]) -> Iterator[list[Any]]:
    """The paths of the tuples in an update, inner ones first: a checkpoint turns them into lists."""
    given: Any = value
    kind = cast(Any, type)(given)
    parts: Any = ()
    if kind is dict:
        parts = [key for key in given if isinstance(key, str | int)]
    elif kind in (list, tuple):
        parts = range(len(given))
    for key in parts:
        yield from _tuples(given[key], [*path, key])
    if kind is tuple:
        yield path


def _with_tuple(value: Any, path: Sequence[Any]) -> Any:
    """`value` with the list at `path` turned back into a tuple."""
    if not path:
        return tuple(value)
    given: Any = value
    new: Any = dict(given) if isinstance(value, dict) else list(given)
    new[path[0]] = _with_tuple(value[path[0]], path[1:])
    return new


def kept_output(question: Mapping[str, Any]) -> Any:
    update, address = question["output"], question["command"]
    for path in question.get("tuples", ()):
        update = _with_tuple(update, path)
    return update if address is None else Command(graph=address["graph"], update=update, goto=address["goto"])
