"""History items as the ledger recorded them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import orjson

from arbiter.errors import describe
from arbiter.history import HistoryItem, RunHistory
from arbiter.history._record import Account, Answer, PolicyDecision, Question, Record
from arbiter.history._results import Results
from arbiter.instructions import recorded_instruction
from arbiter.ledger._contents import frozen, restored, said
from arbiter.ledger._database import LedgerError
from arbiter.ledger._entries import ITEMS, checks_of, routes_of, scores_of, times_of
from arbiter.ledger._found import found
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, Outcome, Verdict

T = TypeVar("T")
Parsed = tuple[dict[str, Any], dict[str, Any] | None]
"""The body and the contents of an entry."""


_STAGE = len(fields(EvaluatorTrace))
_RECOVERED = '"kind":"recovered"'
"""What the body of a recovered node run has, and no other: quotes within a text are escaped."""
_ROUNDED = 10_000
"""Microseconds: a checkpoint has times in hundredths of a second."""


class Row(NamedTuple):
    """An entry as it is stored: body and contents as JSON texts, and its place."""

    body: str
    contents: str | None
    thread: str
    """The thread id, or the ref of a thread without one."""
    seq: int

    def parsed(self) -> Parsed:
        """Body and contents. Raises `LedgerError` if they cannot be read any more."""
        try:
            body: dict[str, Any] = orjson.loads(self.body)
            for name in ("kind", "key", "seq", "at"):
                body[name]
            return body, None if self.contents is None else orjson.loads(self.contents)
        except (LookupError, TypeError, ValueError) as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> LedgerError:
        """The error that this entry cannot be read."""
        return LedgerError(
            f"entry {self.seq} of thread {self.thread!r} cannot be read ({describe(error)[:200]}): it was changed in "
            "the database. `arbiter verify` names all entries that were changed; take these from a backup."
        )


class StoredHistory(RunHistory):
    """The history of one thread, or of one run of it, from a ledger."""

    __slots__ = ()


class StoredItem(HistoryItem):
    """A node run in a ledger.

    `thread_id` is None if the run had none and after an erasure; `ref` is the ledger's own name of the thread.
    `run` is the uuid of the run, and `seq` the number of the entry in its thread, from 1. `questions` are those that
    were answered: an open one is in the checkpointer.
    """

    __slots__ = ("ref", "run", "seq", "thread_id")

    def __init__(self, record: Record, *, thread_id: str | None, ref: str, run: str, seq: int) -> None:
        super().__init__(record)
        self.thread_id = thread_id
        self.ref = ref
        self.run = run
        self.seq = seq


def why_of(item: HistoryItem) -> str:
    """Why a policy decided so: the values that a condition on the input found, else the reason; or the error."""
    verdict = item.check_policy_results.get(item.decision.policy or "")
    reason = "" if verdict is None else verdict.reason
    return found(reason, item.input_state) or item.error or ""


def record_of(
    body: Mapping[str, Any],
    contents: Mapping[str, Any] | None,
    judged: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = (),
    answers: Sequence[Parsed] = (),
) -> Record:
    """The record of a node run: its entry, the evaluations that were written after it, and the answers that it used."""
    found: Mapping[str, Any] = contents or {}
    started, lasted = times_of(body)
    record = Record(
        body.get("task") or body["key"],
        body.get("node", ""),
        recorded_instruction(body.get("instruction")),
        body.get("step", 0),
        body.get("namespace", ""),
        started,
        frozen(body.get("path", ("__pregel_pull", body.get("node", "")))),
    )
    record.owner, record.call = body.get("caller", ""), body.get("call", 0)
    record.attempt = body.get("attempt", 1)
    record.status = body.get("status", "completed")
    record.duration = lasted
    record.input = state_of(found.get("edited", found.get("input")))
    record.output = state_of(found.get("output"))
    reasons: Mapping[str, str] = said(found.get("reasons")) or {}
    checks = checks_of(body)
    record.checks = {name: Verdict(kind, reasons.get(name, "")) for name, kind in checks.items()}
    record.routes = routes_of(body)
    record.redirected_to = (body.get("route") or {}).get("target") or (body.get("decision") or {}).get(
        "target"
    )
    record.account = _account(body, found, answers)
    record.redirected_by = (body.get("route") or {}).get("policy")
    record.notes = dict(said(found.get("notes")) or {})
    record.errors = dict(said(found.get("errors")) or {})
    record.error = said(found.get("error"))
    record.error_types = tuple(said(found.get("error_types")) or ())
    record.corrections = tuple(said(found.get("corrections")) or ())
    record.gating = state_of(found.get("gating"))
    results: dict[str, EvaluationResult] = {}
    errors: dict[str, str] = {}
    ended: dict[str, Outcome] = {}
    versions: dict[str, str] = {}
    trace: Sequence[Any] = ()
    for part, text in ((body, found), *((late, more or {}) for late, more in judged)):
        judged_so: Mapping[str, Any] = text.get("evaluations") or {}
        for score in scores_of(part):
            of: Mapping[str, Any] = judged_so.get(score.evaluator) or {}
            results[score.evaluator] = EvaluationResult(
                score.score,
                score.passed,
                said(of.get("feedback")) or "",
                restored(of.get("metadata") or {}),
                outcome=score.outcome,
            )
            if score.version:
                versions[score.evaluator] = score.version
        problems: Mapping[str, str] = said(text.get("evaluation_errors")) or {}
        for name, outcome, *_ in part.get("failed") or ():
            errors[name], ended[name] = problems.get(name, "it failed"), outcome
        ended.update(dict.fromkeys(part.get("not_run") or (), "not_applicable"))
        results = _ordered(results, part.get("order") or ())
        trace = said(text.get("trace")) or trace
    stages = [EvaluatorTrace(*stage) for stage in trace if len(stage) == _STAGE]
    record.evaluations = Results(results, errors, stages, ended=ended, versions=versions)
    return record


def _account(
    body: Mapping[str, Any], contents: Mapping[str, Any], answers: Sequence[Parsed]
) -> Account | None:
    decision, drafts = body.get("decision"), contents.get("drafts") or ()
    if not (decision or drafts or answers or "edited" in contents):
        return None
    account = Account()
    if decision:
        account.decision = PolicyDecision(
            kind=decision["kind"], policy=decision["policy"], consequence=decision.get("consequence")
        )
    if "edited" in contents:
        account.asked_about = state_of(contents.get("input"))
    # Of drafts that were too large together, a mark stands for those in the middle.
    account.drafts = tuple(
        (state_of(draft.get("output", draft)), said(draft.get("feedback")) or "") for draft in drafts
    )
    account.answers = tuple(_answer(*answer) for answer in answers)
    account.questions = tuple(answer.question for answer in account.answers)
    return account


def _answer(body: Mapping[str, Any], contents: Mapping[str, Any] | None) -> Answer:
    found: Mapping[str, Any] = contents or {}
    question = Question(
        policy=body["policy_asked"],
        subject=body["about"],
        digest=body["question"],
        asked_at=body["asked_at"] / 1_000_000,
        payload=state_of(found.get("question")),
    )
    return Answer(
        question=question,
        kind=body["answer"],
        by=body["by"],
        at=body["at"] / 1_000_000,
        detail=restored(found.get("detail")),
    )


def _ordered(parts: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    """The parts in the order of these names, and then the others."""
    first = [name for name in names if name in parts]
    return {name: parts[name] for name in dict.fromkeys((*first, *parts))}


def state_of(captured: Any) -> Mapping[str, Any]:
    """A captured state as a mapping: one that is none has its value under `__root__`."""
    value = restored(captured)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"__root__": value}  # pyright: ignore[reportUnknownVariableType]


def node_runs_of(rows: Sequence[Row]) -> list[tuple[Mapping[str, Any], Record]]:
    """The node runs in rows, in order: the body and the record of each. A `judged` entry is merged into the item that
    it is about, and an `answer` into the one that used it.

    Raises `LedgerError` for a row that cannot be read any more.
    """
    parsed = [row.parsed() for row in rows]
    judged: dict[str, list[Parsed]] = {}
    answers: dict[Any, list[Parsed]] = {}
    for body, contents in parsed:
        if body["kind"] == "judged":
            judged.setdefault(body.get("of", ""), []).append((body, contents))
        elif body["kind"] == "answer":
            answers.setdefault(_attempt(body), []).append((body, contents))
    found: list[tuple[Mapping[str, Any], Record]] = []
    for row, (body, contents) in zip(rows, parsed, strict=True):
        if body["kind"] in ITEMS:
            try:
                late = judged.get(body["key"], ())
                found.append((body, record_of(body, contents, late, answers.get(_attempt(body), ()))))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise row.unreadable(error) from error
    return found


def _attempt(body: Mapping[str, Any]) -> tuple[Any, ...]:
    return body.get("execution"), body.get("task"), body.get("attempt")


def history_of(rows: Sequence[Row]) -> StoredHistory:
    """The history in these rows: of each task its newest attempt. So a node run that paused for one of its graph
    stands behind those that ran after the pause.
    """
    run = ""
    newest: dict[str, tuple[str, str | None, Record]] = {}
    for body, record in node_runs_of(_in_order(rows)):
        # A checkpoint does not know the run of a node run that was recovered from it, if a later run goes on there.
        run = body.get("run") or run
        newest.pop(record.id, None)
        newest[record.id] = run, None if record.namespace else body.get("checkpoint"), record
    runs: list[list[Record]] = []
    # The newest part of each run, with the checkpoint of each superstep.
    parts: dict[str, tuple[list[Record], dict[int, str]]] = {}
    for of, checkpoint, record in newest.values():
        step = record.step
        if outer := newest.get(record.namespace.partition(":")[2].partition("|")[0]):
            _, checkpoint, around = outer
            step = around.step
        part = parts.get(of)
        # A fork goes on from an earlier checkpoint of the run: it has the numbers of its supersteps again, or comes
        # after a later run.
        is_new = part is not None and checkpoint and part[1].get(step) != checkpoint
        if part is None or (is_new and (step in part[1] or part[0] is not runs[-1])):
            part = parts[of] = [], {}
            runs.append(part[0])
        part[0].append(record)
        if checkpoint:
            part[1][step] = checkpoint
    return StoredHistory((), {}, runs)


def _in_order(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows with recovered node runs before the calls that began after them. They were written after these if
    another process could still have had them in its queue.
    """
    if not any(_RECOVERED in row.body for row in rows):
        return rows
    # The first entry of each call: its place, when it began, and the number of node runs before it, -1 if unknown.
    calls: list[tuple[int, int, int]] = []
    # By call, the latest begin so far.
    latest: list[int] = []
    known: set[Any] = set()
    places: list[tuple[int, bool]] = []
    for number, row in enumerate(rows):
        body, place = row._replace(contents=None).parsed()[0], number
        is_recovered = body["kind"] == "recovered"
        try:
            past = -1 if body.get("namespace") else body.get("past", -1)
            if is_recovered:
                end = body["at"]
                found = map(calls.__getitem__, range(bisect_left(latest, end - _ROUNDED), len(calls)))
                # Of two times that are so near, either may be the earlier. A later call has more node runs before it.
                later = (
                    at
                    for at, begin, before in found
                    if begin >= end + (-_ROUNDED if 0 <= past < before else _ROUNDED)
                )
                place = next(later, number)
            elif (execution := body.get("execution")) not in known:
                known.add(execution)
                begin = body["at"] - body.get("took", 0)
                calls.append((number, begin, past))
                latest.append(max([begin, *latest[-1:]]))
        except TypeError as error:
            raise row.unreadable(error) from error
        places.append((place, not is_recovered))
    return [rows[number] for number in sorted(range(len(rows)), key=places.__getitem__)]
