"""The record: the mutable account of one node run, and the fact that is committed of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from arbiter._values.states import Snapshot, digests_of, with_own_parts
from arbiter.history._facts import RunFact
from arbiter.history._results import NO_RESULTS, NOTHING, EvaluationResults, Results
from arbiter.instructions import Instruction, recorded_instruction
from arbiter.verdicts import FAILED, EvaluationResult, Outcome, Verdict

if TYPE_CHECKING:
    from arbiter._values.records import Records


_log = logging.getLogger("arbiter")


Status = Literal["running", "completed", "denied", "failed", "interrupted", "cancelled"]


@dataclass(slots=True, eq=False, kw_only=True)
class ExecutionInfo:
    """One call of a governed graph: of `invoke`, `stream` or one of their twins.

    `id` is a uuid. `run_id` is the uuid of the run: one input to the graph and everything that follows from
    it, resumes in other processes included. `config` has the plain values of the caller's `configurable`.
    `outcome` is None until the call has ended; then it is `completed`, `denied`, `failed`, `paused`,
    `cancelled` or, for a stream that its reader left, `closed`.
    """

    id: str
    run_id: str
    thread_id: str | None
    graph: str
    began: float
    """POSIX seconds."""
    config: Mapping[str, Any]
    outcome: str | None = None
    ended: float | None = None
    rules: str | None = None
    """The digest of the constitution that was in force when the call began."""
    trace: tuple[str, str, str] | None = None
    """The ids of the trace, of the span that a listener opened for the call, and of its parent, in hex; a parent
    of zeros is none.
    """


@dataclass(frozen=True, slots=True)
class Described:
    """A text in force, such as a constitution or the description of a graph, and the digest that names it."""

    digest: str
    body: str

    @classmethod
    def of(cls, body: str) -> Described:
        data = body.encode("utf-8", "replace")  # half of a surrogate pair has no UTF-8 form
        return cls(hashlib.sha256(data).hexdigest()[:32], data.decode())


class Calling(NamedTuple):
    """An attempt of a LangGraph task that calls governed functions."""

    namespace: str
    number: int
    """Its number among the attempts that tasks of the run have begun."""
    retry: int
    """Its number among those that LangGraph has begun without a pause between them."""


# Not frozen: with listeners there is one for every node run, and a frozen one takes three times as long to make.
@dataclass(slots=True, kw_only=True)
class Position:
    """The place of a node run among the committed ones, and the rules and the graph that it ran under.

    `after` is the id of the last fact that its graph had committed before this superstep, "" for none, and
    `past` the number of all facts of its graph. Together with the namespace they name its causal past.
    """

    after: str
    past: int
    checkpoint: str | None = None
    """The checkpoint of its superstep, if a checkpointer keeps it."""
    caller: str | None = None
    """The id of the node run whose body called this governed function, or of the governed function that called this
    node's graph."""
    call: int = 0
    """The number of its graph among those that the governed function called, if the graph has no namespace."""
    calling: Calling | None = None
    """The LangGraph task that called this governed function, if no governed node did."""
    rules: Described | None = None
    graph: Described | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """The decision that a node run ended with: `allow`, `deny` or `ask`.

    `policy` is the checker that decided, None if all allowed. `consequence` is the checker's `on_deny`:
    "raise", "end" or "redirect:NODE"; "ask" if a human was asked.
    """

    kind: Literal["allow", "deny", "ask"] = "allow"
    policy: str | None = None
    consequence: str | None = None

    @property
    def redirects(self) -> bool:
        return self.consequence is not None and self.consequence.startswith("redirect:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that a human was asked about a node run. `asked_at` is in POSIX seconds."""

    policy: str
    subject: str
    """The part of the node run that it is about: "input" or "output"."""
    digest: str
    asked_at: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A human's answer: `approve`, `edit` or `reject`. `by` is the name that it gave. Times are POSIX seconds."""

    question: Question
    kind: str
    by: str | None
    at: float
    detail: Any = None


@dataclass(slots=True, eq=False)
class Account:
    """How a node run came to its end, apart from the verdicts: made only for runs that need one."""

    decision: PolicyDecision | None = None
    checked: PolicyDecision | None = None
    """The decision of the checkers before any human answered: about the input as it came, and the output."""
    questions: tuple[Question, ...] = ()
    answers: tuple[Answer, ...] = ()
    asked_about: Mapping[str, Any] | None = None
    """The input before a human edited it."""
    drafts: tuple[tuple[Mapping[str, Any], str], ...] = ()
    """The drafts that a gate sent back, each with the feedback on it."""
    kept_out: bool = False
    """True if a checker or a question ended the attempt before its body began."""
    sent: tuple[str, ...] | None = None
    """The nodes to which a conditional edge or a command led; None if only edges without a condition did."""
    trace: tuple[int, int] | None = None
    """The ids of the trace and of the span that a listener opened for the attempt."""
    model_checks: Sequence[tuple[str, int, int]] = ()
    """The checkers that asked a model, and when they began and ended, in nanoseconds since 1970; known only if
    somebody listens.
    """


@dataclass(slots=True, eq=False, init=False)
class Record:
    """The account of one node run while it is being written. Times are POSIX seconds."""

    id: str
    node: str
    instruction: Instruction | None
    step: int
    namespace: str
    path: Sequence[Any]
    started: float
    attempt: int
    input: Mapping[str, Any]
    spent: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    """The amounts that earlier attempts have used up, by note, checker and key. Committed with the attempt
    that succeeds.
    """
    drafts: Sequence[Any]
    """The drafts that were sent back so far, kept until the node is done: a retry or resume continues with
    the next attempt.
    """
    sharers: int
    """The number of further runs of the thread that hold this record: forks."""
    duration: float
    status: Status
    output: Mapping[str, Any]
    checks: Mapping[str, Verdict]
    routes: Mapping[str, str | None]
    evaluations: EvaluationResults
    errors: Mapping[str, str]
    notes: Mapping[str, str]
    corrections: tuple[str, ...]
    gating: Mapping[str, Any]
    tallies: Mapping[str, Mapping[str, float | None]]
    owner: str
    """The id of the node run that ran this one's graph or called this function, "" for none or if it is not known."""
    call: int
    """The number of its graph in the owner's body, if that graph has no namespace; 0 if that is not known."""
    raw: Any
    """The output itself, kept while a router may still need it."""
    error: str | None
    error_types: tuple[str, ...]
    redirected_to: str | None
    redirected_by: str | None
    account: Account | None
    execution: ExecutionInfo | None
    """The call of the graph that this attempt belongs to; set only if somebody listens."""
    position: Position | None
    """As `execution`."""
    records: Records | None
    """The rules of recording that the constitution had when the attempt began. As `execution`."""

    def __init__(
        self,
        id: str,
        node: str,
        instruction: Instruction | None,
        step: int,
        namespace: str,
        started: float,
        path: Sequence[Any] = (),
    ) -> None:
        self.id = id
        self.node = node
        self.instruction = instruction
        self.step = step
        self.namespace = namespace
        self.path = path
        self.input = self.spent = NOTHING
        self.drafts = ()
        self.owner = ""
        self.attempt = self.sharers = self.call = 0
        self.execution = self.position = self.records = None
        self.begin_again(started)

    def begin_again(self, started: float) -> None:
        """Begin an attempt. The findings of the previous attempt are dropped."""
        self.attempt += 1
        self.started = started
        self.duration = 0.0
        self.status = "running"
        self.output = self.checks = self.routes = self.errors = self.notes = NOTHING
        self.gating = self.tallies = NOTHING
        self.evaluations = NO_RESULTS
        self.corrections = self.error_types = ()
        self.raw = self.error = self.redirected_to = self.redirected_by = self.account = None

    @property
    def graph(self) -> str:
        """The name of its graph in the run. LangGraph gives a graph that a governed function calls no namespace."""
        return self.namespace or (f"{self.owner}|{self.call}" if self.owner else "")

    @property
    def kept_account(self) -> Account:
        """The account of this attempt, made at its first use."""
        if self.account is None:
            self.account = Account()
        return self.account

    # Both are rare, so each call makes a new dict, and a usual node run has none.

    def failed(self, contract: str, problem: str) -> None:
        """Record that a contract itself failed."""
        _log.warning("%s failed on node %r: %s", contract, self.node, problem)
        self.errors = {**self.errors, contract: problem}

    def note(self, contract: str, remark: str) -> None:
        """Record an action that a contract was asked for and did not take, or a human's decision about it."""
        before = self.notes.get(contract)
        self.notes = {**self.notes, contract: remark if before is None else f"{before}; {remark}"}


UNSEEN: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = (None, NOTHING)


Kind = tuple[Instruction | None, str]
"""An instruction and a node."""


Totals = Mapping[Kind, int]
"""The number of items of each kind. Its size depends on the graph, not on the length of the run."""


class KeptStates:
    """The states of a node run, as rules see them, if the record does not keep shallow copies.

    With "deep", rules and the record get deep copies of what is set. With "digest", rules get what is set, and the
    record digests of its fields; the states then live as long as the view of the rules: until the last evaluation
    is done.
    """

    __slots__ = ("_how", "_record", "input", "output")

    _how: Snapshot
    _record: Record
    input: Mapping[str, Any]
    output: Mapping[str, Any]

    def __init__(self, record: Record, how: Snapshot) -> None:
        for name, value in (("_how", how), ("_record", record), ("input", NOTHING), ("output", NOTHING)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Mapping[str, Any]) -> None:
        seen = with_own_parts(value) if self._how == "deep" else value
        object.__setattr__(self, name, seen)
        setattr(self._record, name, seen if self._how == "deep" else digests_of(value))


States = Record | KeptStates
"""The input and the output of a node run, as rules see them."""


def kind_of(record: Record) -> Kind:
    return record.instruction, record.node


def total(totals: Totals, instruction: Instruction | None, node: str | None) -> int:
    return sum(
        amount
        for (of_instruction, of_node), amount in totals.items()
        if (instruction is None or of_instruction == instruction) and (node is None or of_node == node)
    )


def record_from(fact: RunFact) -> Record:
    """Restore a record from its fact, for a node run whose record is gone. Its states are empty."""
    record = Record(
        fact["id"],
        fact["node"],
        recorded_instruction(fact.get("in")),
        fact["step"],
        fact.get("ns", ""),
        fact["at"],
    )
    record.duration = fact.get("took", 0.0)
    record.attempt = fact.get("attempt", 1)
    record.status = fact.get("status", "completed")
    why: Mapping[str, str] = fact.get("why", NOTHING)
    record.checks = {name: Verdict(kind, why.get(name, "")) for name, kind in fact.get("checks", {}).items()}
    record.routes = dict(fact.get("routes", NOTHING))
    record.redirected_to, record.redirected_by = fact.get("to"), fact.get("by")
    record.notes = fact.get("notes", NOTHING)
    record.evaluations = evaluations_from(fact)
    return record


def evaluations_from(fact: RunFact) -> Results:
    found: dict[str, EvaluationResult] = {}
    versions: dict[str, str] = {}
    for name, (score, passed, feedback, *more) in fact.get("evals", {}).items():
        outcome: Outcome = more[1] if len(more) > 1 else "scored"
        found[name] = EvaluationResult(score, passed, feedback, outcome=outcome)
        if more and more[0]:
            versions[name] = more[0]
    return Results(found, versions=versions)


def with_spent(
    tallies: Mapping[str, Mapping[str, float | None]],
    spent: Mapping[str, Mapping[str, Mapping[str, float | None]]],
) -> dict[str, dict[str, float | None]]:
    """A node run's tallies plus the amounts that its earlier attempts have used up."""
    sums = {policy: {**amounts} for policy, amounts in tallies.items()}
    for note in spent.values():
        for policy, amounts in note.items():
            of_policy = sums.setdefault(policy, {})
            for key, amount in amounts.items():
                of_policy[key] = (of_policy.get(key) or 0) + (amount or 0)
    return sums


_MAX_FEEDBACK = 500


def _committed(reason: str) -> str:
    """A checker's reason in the form that is committed.

    The message of a failed checker's exception may contain parts of the state, which may be wiped before the
    checkpoint is. So only the class of the exception is committed.
    """
    if reason.startswith(FAILED):
        reason = FAILED + reason.removeprefix(FAILED).partition(":")[0]
    return reason[:_MAX_FEEDBACK]


def fact_from(record: Record, kinds: Mapping[str, str] | None = None) -> RunFact:
    """The fact of a finished node run. `kinds` maps each check to its verdict's kind; it is given if all of
    them allowed.
    """
    fact: RunFact = {
        "id": record.id,
        "node": record.node,
        "step": record.step,
        "at": record.started,
        "took": record.duration,
    }
    if record.instruction is not None:
        fact["in"] = record.instruction.qualified
    if record.namespace:
        fact["ns"] = record.namespace
    if record.attempt != 1:
        fact["attempt"] = record.attempt
    if record.tallies:
        fact["tallies"] = record.tallies
    if record.status != "completed":
        fact["status"] = record.status
    if kinds:
        fact["checks"] = kinds
    elif record.checks:
        fact["checks"] = {name: verdict.kind for name, verdict in record.checks.items()}
        if why := {name: _committed(v.reason) for name, v in record.checks.items() if v.reason}:
            fact["why"] = why
    if record.notes:
        fact["notes"] = {name: remark[:_MAX_FEEDBACK] for name, remark in record.notes.items()}
    if record.redirected_to is not None:
        fact["to"] = record.redirected_to
    if record.redirected_by is not None:
        fact["by"] = record.redirected_by
    elif record.status == "denied" and (decision := record.kept_account.decision) and decision.redirects:
        fact["denied_by"] = decision.policy
    if record.routes and any(record.routes.values()):
        fact["routes"] = {name: target for name, target in record.routes.items() if target is not None}
    return fact


def facts_of(
    results: Mapping[str, EvaluationResult], version_of: Callable[[str], str] = lambda name: ""
) -> dict[str, list[Any]]:
    """Evaluation results in the form that a fact stores. `version_of` finds that of a result's evaluator."""
    facts: dict[str, list[Any]] = {}
    for name, result in results.items():
        fact = facts[name] = [float(result.score), result.passed, result.feedback[:_MAX_FEEDBACK]]
        if (version := version_of(name)) or result.outcome != "scored":
            fact.append(version)
        if result.outcome != "scored":
            fact.append(result.outcome)
    return facts
