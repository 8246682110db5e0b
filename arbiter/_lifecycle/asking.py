"""Approvals by a human: who may answer, until when, and what an answer means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import langgraph.errors
from langgraph.errors import GraphBubbleUp

from arbiter._lifecycle.outcomes import denied, log
from arbiter._lifecycle.requests import (
    TAKEN,
    Answered,
    Ask,
    Begin,
    Entry,
    IsUsed,
    Raised,
    ReadCheckpoint,
    Steps,
)
from arbiter._lifecycle.runs import NodeRun
from arbiter._values.states import as_state, digest, thaw, with_fields, with_own
from arbiter.errors import ApprovalUsedError, ConfigurationError, describe, nearest
from arbiter.history._record import Answer, PolicyDecision, Question
from arbiter.policy import PolicyChecker
from arbiter.verdicts import Terms, Verdict, short, terms_of

# An older LangGraph has no schemas for answers.
is_refused: Callable[[BaseException], bool] = getattr(
    langgraph.errors, "is_invalid_resume", lambda error: False
)
"""True if an answer did not fit the schema of its question. The question can be answered again."""


def approve(
    run: NodeRun,
    asking: Sequence[PolicyChecker],
    verdicts: Mapping[str, Verdict],
    approved: set[tuple[str, str]],
) -> Steps:
    """Ask a human. An approval counts only for the very input that was shown.

    All checkers that ask share one question, except that checkers with different approvers have a question
    each.
    """
    record = run.record
    terms: dict[str, Terms] = {}
    for checker in asking:
        try:
            terms[checker.name] = terms_of(verdicts[checker.name])
        except Exception as exc:
            return refused_by(run, checker, f"its question cannot be asked: {describe(exc)}")
    first = next((c for c in asking if terms[c.name].approvers is not None), asking[0])
    approvers = terms[first.name].approvers
    asking = [c for c in asking if terms[c.name].approvers in (None, approvers)]
    limits = [after for c in asking if (after := terms[c.name].expires_after) is not None]
    retries = min(terms[c.name].retries for c in asking)
    state = as_state(run.input)
    key = digest(state)
    payload: dict[str, Any] = {
        **{k: thaw(v) for c in reversed(asking) for k, v in verdicts[c.name].payload.items()},
        "type": "approval",
        "policy": first.name,
        "reason": verdicts[first.name].reason,
        "requests": [{"policy": c.name, "reason": verdicts[c.name].reason} for c in asking],
        "node": record.node,
        "instruction": record.instruction.qualified if record.instruction else None,
        "input": state,
        "digest": key,
        "allowed": ["approve", "edit", "reject"],
    }
    payload.pop("held", None)
    if run.pending_question is not None:
        payload["held"] = run.pending_question  # a question replaces the one before
    decision = yield from put_question(
        run, payload, key, "input", Terms(approvers, min(limits, default=None), retries)
    )
    if type(decision) is Raised:
        if isinstance(decision.error, ApprovalUsedError):
            return decision
        if passes(decision.error):
            record.status = "interrupted"
            return decision
        problem = f"it needs a human's approval, and no human can be asked here: {describe(decision.error)}"
        return refused_by(run, first, problem)
    if decision.kind == "edit":
        try:
            ensure_fields(run, state, decision.detail)
            edited = with_fields(run.input, decision.detail)
            shown = as_state(edited)
            key = digest(shown)
        except Exception as exc:
            return refused_by(run, first, f"rejected: the edited input does not fit: {describe(exc)}")
        account = record.kept_account
        account.asked_about = record.input if account.asked_about is None else account.asked_about
        run.input, run.states.input = edited, shown
    if decision.kind == "reject":
        return refused_by(run, first, decision.rejection)
    run.retries = retries if run.approved_by is None else min(run.retries, retries)
    run.approved_by, run.approved_key = first.name, key
    for checker in asking:
        record.note(f"checker {checker.name}", decision.signature)
    approved.update((checker.name, key) for checker in asking)
    return None


def ensure_fields(run: NodeRun, state: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise if a change is for a field that neither the graph's state nor what the human saw has.

    The node would run on the values that the human meant to replace.
    """
    if not run.fields:
        return
    for key in changes:
        if key not in state and key not in run.fields:
            shown = ", ".join(map(str, state)) or "no field"
            meant = nearest(key, [*state, *run.fields]) or f" The human was shown: {shown}."
            raise ConfigurationError(f"there is no field {key!r}.{meant}")


def refused_by(run: NodeRun, checker: PolicyChecker, reason: str) -> Raised | None:
    """Record that the checker's question ended in a denial."""
    run.record.checks = {**run.record.checks, checker.name: Verdict.deny(reason)}
    return denied(run, checker.name, checker.on_deny, reason, None)


_IGNORED = " (a later answer is ignored: a question is answered once)"


@dataclass(slots=True)
class Decision:
    """The decision of a human. `detail` is an edit's changes or a rejection's reason, `by` the name of the
    human.
    """

    kind: Literal["approve", "edit", "reject"]
    detail: Any = None
    by: str | None = None
    stands: bool = False
    """True if a later answer to the same question is ignored."""

    @property
    def signature(self) -> str:
        done = {"approve": "approved", "edit": "edited", "reject": "rejected"}[self.kind]
        return (done if self.by is None else f"{done} by {self.by!r}") + (_IGNORED if self.stands else "")

    @property
    def rejection(self) -> str:
        return f"{self.signature}: {self.detail}"


def put_question(run: NodeRun, payload: Mapping[str, Any], key: str, subject: str, terms: Terms) -> Steps:
    """Ask a human until there is an answer that came in time. Returns a `Decision`, or `Raised`."""
    if (failed := (yield from _begin_asking(run, payload))) is not None:
        return failed
    assert run.saved is not None
    remark: dict[str, Any] = {}
    entry = run.saved.entry
    if entry is not None and run.questions == entry["upto"] and entry["output"] == (subject == "output"):
        remark = {"note": "the earlier approval is used: the node run that it was for did not complete"}
    while True:
        now = run.settings.clock()
        question: dict[str, Any] = {**payload, **remark, "asked_at": now}
        op = Ask(question, run.questions, key, now)
        if terms.approvers is not None:
            question["approvers"] = sorted(terms.approvers)
        if terms.retries:
            question["retries"] = terms.retries
        if terms.expires_after is not None:
            question["expires_at"] = question["asked_at"] + terms.expires_after
        asked = Question(
            policy=question["policy"], subject=subject, digest=key, asked_at=now, payload=question
        )
        account = run.record.kept_account
        account.decision = PolicyDecision(kind="ask", policy=asked.policy, consequence="ask")
        account.questions = (*account.questions, asked)
        found = yield op
        run.questions += 1
        if type(found) is Raised:
            if isinstance(found.error, GraphBubbleUp):
                log(run, "%s asked a human", payload["policy"])
            return found
        if found is TAKEN:
            return _used_elsewhere(run, payload["policy"])
        if type(found) is not Answered:
            continue
        decision = read_answer(found.answer, subject, terms.approvers)
        if found.ignored:
            decision.stands = True
            log(run, "%s was %s", question["policy"], decision.signature)
        if found.asked_at is not None:  # the run asked before it paused, and has come here again
            question = {**question, "asked_at": found.asked_at}
            if terms.expires_after is not None:
                question["expires_at"] = found.asked_at + terms.expires_after
            asked = replace(asked, asked_at=found.asked_at, payload=question)
            account.questions = (*account.questions[:-1], asked)
        answer = Answer(
            question=asked, kind=decision.kind, by=decision.by, at=found.at, detail=decision.detail
        )
        account.answers = (*account.answers, answer)
        if decision.kind == "reject" or not terms.expired(found.asked_at, found.at):
            return decision
        remark = {"note": f"{decision.signature} too late; the question had expired"}


def _begin_asking(run: NodeRun, payload: Mapping[str, Any]) -> Steps:
    """Find the question with which this node run continues.

    If a body has begun on some answers and did not pause, these answers are used up: new questions are asked.
    """
    if run.since is not None:
        return None
    if run.saved is None:
        saved = yield ReadCheckpoint(run)
        if type(saved) is Raised:
            return saved
        run.saved = saved
    assert run.saved is not None
    used = yield IsUsed()
    if type(used) is Raised:
        return used
    if used:
        return _used_elsewhere(run, payload["policy"])
    entry, since = run.saved.entry, 0
    if entry is not None:
        lasts = run.saved.paused or run.pending_question is not None or entry["failed"] < entry["retries"]
        since = entry["since"] if lasts else entry["upto"]
    run.since = since
    run.questions = max(run.questions, since)
    return None


def begin_approved(run: NodeRun, *, output: bool = False) -> Steps:
    """Use the approvals of this node run: its body begins, or its output is committed.

    Returns `Raised` if another execution of the graph has used them, else None.
    """
    policy = run.approved_by
    assert policy is not None
    assert run.since is not None
    assert run.saved is not None
    known = run.saved.entry
    entry: Entry = {
        "task": run.record.id,
        "entry": 0,
        "output": output,
        "since": run.since,
        "upto": run.questions,
        "retries": run.retries,
        "failed": 0,
        "by": "",
    }
    if known is not None:
        entry["entry"] = known["entry"] + 1
        if known["since"] == run.since:
            entry["failed"] = known["failed"] + (not run.saved.paused)
            entry["retries"] = min(known["retries"], entry["retries"])
    begun = yield Begin(entry)
    if begun is not True:
        if type(begun) is Raised and passes(begun.error):
            return begun
        return _used_elsewhere(run, policy, begun.error if type(begun) is Raised else None)
    run.entry = entry
    return None


def keep_approved(run: NodeRun) -> Raised | None:
    """Give the body the approved input as a copy that no other code can change.

    Returns `Raised` if the input was changed after the approval.
    """
    own = with_own(run.input)
    if digest(as_state(own)) == run.approved_key:
        run.input = own
        return None
    reason = "its input was changed by something else after it was approved"
    return denied(run, run.approved_by or "", "raise", reason, None)


def _used_elsewhere(run: NodeRun, policy: str, cause: BaseException | None = None) -> Raised:
    """End this execution of the graph, whatever `on_deny` says: another execution continues."""
    record = run.record
    error = ApprovalUsedError(policy=policy, node=record.node, instruction=record.instruction, cause=cause)
    record.status, record.error = "denied", str(error)
    record.duration = run.lasted
    return Raised(error)


def passes(error: BaseException) -> bool:
    """True if an exception from asking is that of the pause, or of a cancellation."""
    return isinstance(error, GraphBubbleUp) or not isinstance(error, Exception)


def read_answer(answer: Any, subject: str, approvers: frozenset[str] | None = None) -> Decision:
    """The decision in a resume value. Unknown values are rejections, and so is an approval by a person who
    may not approve.
    """
    try:
        decision = _read_answer(answer, subject)
    except Exception as exc:
        return Decision("reject", f"the answer could not be read: {type(exc).__name__}")
    by = decision.by
    decision = replace(decision, by=by and _short(by))
    if approvers is None or decision.kind == "reject" or by in approvers:
        return decision
    names = ", ".join(map(repr, sorted(approvers)))
    if decision.by is None:
        example = f"{{'type': {decision.kind!r}, 'by': ...}}"
        return Decision("reject", f"the answer does not say by whom; expected {example} with one of {names}")
    return Decision("reject", f"{decision.by!r} may not approve; expected one of {names}")


_LONGEST_NAME = 1_000


def _short(name: str) -> str:
    """The name, or its beginning: a ledger keeps the name of a human for good, and reads it for each proof."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _read_answer(answer: Any, subject: str) -> Decision:
    given: Any = answer
    if isinstance(answer, Mapping) and isinstance(given.get("decisions"), list):
        decisions: Any = given["decisions"]
        answer = given = decisions[0] if len(decisions) == 1 else given  # LangChain's envelope
    if isinstance(answer, str) and answer == "approve":
        return Decision("approve")
    if isinstance(answer, str) and answer == "reject":
        return Decision("reject", "no message was given")
    if isinstance(answer, Mapping):
        name = given.get("by")
        by = str.__str__(name) if isinstance(name, str) and name else None
        match given.get("type"):
            case "approve" if subject in given:
                # The human meant to change it, so the unchanged one must not count as approved.
                edit = f"{{'type': 'edit', {subject!r}: {{...}}}}"
                why = f"an approval changes no {subject}; to change it, answer {edit}"
                return Decision("reject", why, by)
            case "approve":
                return Decision("approve", None, by)
            case "edit" if isinstance(given.get(subject), Mapping):
                return Decision("edit", given[subject], by)
            case "edit":
                return Decision("reject", f"an edit needs {{'type': 'edit', {subject!r}: {{...}}}}", by)
            case "reject":
                return Decision("reject", str(given.get("message") or "no message was given"), by)
            case _:
                pass
    return Decision("reject", f"the answer was {short(given)}; expected approve, edit or reject")
