"""Node runs that have ended, until the writer makes events of them.

    node's thread        EndedRun(...)          copies of the states, and references to what will not change
    writer's thread      EndedRun.events()      fields of the body, texts, the evaluations that are done by then
    evaluator's thread   EndedRun.late()        an event of the evaluations that were done later

A step of a graph pays several times as much for the same code as the writer, which runs it for many in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from arbiter.history._record import Account, ExecutionInfo, PolicyDecision, Position, Record, Status
from arbiter.history._results import Judgement
from arbiter.instructions import Instruction
from arbiter.ledger._contents import capture
from arbiter.ledger._entries import Event, Kind, Origin, Waiting, micros, origin_of, parts_of
from arbiter.verdicts import EvaluatorTrace, Verdict

if TYPE_CHECKING:
    from arbiter.ledger._keeping import Keeping

TEXT = 4_000
"""Characters of a reason, a feedback or an error that are kept."""
_NONE: frozenset[str] = frozenset()


class Parts(NamedTuple):
    """The parts of a record that an event needs. The next attempt of the node begins the record anew."""

    id: str
    node: str
    instruction: Instruction | None
    step: int
    namespace: str
    path: Sequence[Any]
    attempt: int
    started: float
    duration: float
    status: Status
    checks: Mapping[str, Verdict]
    routes: Mapping[str, str | None]
    errors: Mapping[str, str]
    notes: Mapping[str, str]
    corrections: tuple[str, ...]
    error: str | None
    error_types: tuple[str, ...]
    redirected_to: str | None
    redirected_by: str | None
    account: Account | None
    execution: ExecutionInfo | None
    position: Position | None

    @classmethod
    def of(cls, record: Record) -> Parts:
        return cls._make(_values_of(record))


_values_of: Any = attrgetter(*Parts._fields)


class EndedRun(Waiting):
    """An attempt of a node run that has ended."""

    kind: Kind = "item"
    evaluations: Any = None
    is_over: bool = False
    is_written: bool = False
    known: Collection[str] = _NONE
    """The evaluators whose results are in the event."""
    _event: Event | None = None

    def __init__(
        self,
        record: Record,
        subject_key: str | None,
        keeping: Keeping,
        described: Collection[str],
        judging: Judging,
    ) -> None:
        self._values = _values_of(record)
        self._subject_key = subject_key
        self.keeping = keeping
        self._described = described
        self._judging = judging
        evaluations: Any = record.evaluations
        if hasattr(evaluations, "then"):  # they may still run
            self.evaluations = evaluations
            read, failed = evaluations.read
            self._read = frozenset((*read, *failed)) if read or failed else _NONE

    def where(self) -> tuple[Origin, int]:
        parts = Parts._make(self._values)
        execution = parts.execution
        assert execution is not None
        origin = origin_in(execution, execution.run_id, self._subject_key)
        return origin, micros(parts.started + parts.duration)

    def is_open(self) -> bool:
        return self.evaluations is not None and not self.is_over

    def withdraw(self) -> None:
        super().withdraw()
        if self.evaluations is not None:
            self._judging.written(self)

    def events(self) -> Iterable[Event]:
        if self._event is None:
            self._event = event = self._made()
            if self.evaluations is not None:
                self._add(event, self._judging.written(self))
        return (self._event,)

    def _made(self) -> Event:
        parts = Parts._make(self._values)
        event = event_of("item", parts, self._subject_key, self.keeping, self._described)
        if self.contents is not None:
            _add_texts(self.contents, parts)
            event.contents = self.contents
        return event

    def late(self) -> Event | None:
        """The event of the evaluations that are not in that of the node run; None if there are none."""
        if self._event is None or self.is_withdrawn:
            return None
        done: Sequence[Judgement] = self.evaluations.judgements()
        late = [each for each in done if each.name not in self.known]
        if not late:
            return None
        event = replace(self._event, kind="judged", fields={"of": self._event.key}, contents=None, evals=())
        self._add(event, late)
        if self.known:
            # These stand among those of the item.
            event.fields["order"] = [each.name for each in done if each.result is not None]
        return event

    def _add(self, event: Event, done: Sequence[Judgement]) -> None:
        texts = add_judgements(event, done, self._read)
        if trace := self.evaluations.trace:
            texts.update(_stages(trace, done))
        if texts and self.keeping.states != "none":
            event.contents = {**(event.contents or {}), **texts}


class Judging:
    """The node runs whose evaluations are not both done and written.

    The writer adds the evaluations that are done to the event of their node run. If others are left, they become
    one event of their own when the last of them is done.
    """

    def __init__(self) -> None:
        self.open: dict[int, EndedRun] = {}
        """By the id of the evaluations."""
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._waiting = 0

    def add(self, run: EndedRun) -> None:
        """This node run is queued. Only now does a flush wait for it: Ctrl-C may have kept it from the queue."""
        if run.evaluations is not None:
            self.open[id(run.evaluations)] = run

    def written(self, run: EndedRun) -> Sequence[Judgement]:
        """The writer makes the event of this node run. Returns the evaluations that are done."""
        with self._guard:
            run.is_written = True
            done: Sequence[Judgement] = run.evaluations.judgements()
            if run.is_over:
                self._forget(run)
            else:
                run.known = frozenset([each.name for each in done])
        return done

    def over(self, evaluations: Any) -> EndedRun | None:
        """All these evaluations are done. Returns their node run if its event may lack some; `close` it then."""
        with self._guard:
            run = self.open.get(id(evaluations))
            if run is None:
                return None
            run.is_over = True
            if self._waiting:
                self._changed.notify_all()
            return run if run.is_written else None

    def close(self, run: EndedRun) -> None:
        """All evaluations of this node run are queued or written."""
        with self._guard:
            self._forget(run)

    def _forget(self, run: EndedRun) -> None:
        self.open.pop(id(run.evaluations), None)
        if self._waiting:
            self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait until all that was added so far is done, and queued if it is late. False if the time was up first."""
        with self._guard:
            added = list(self.open.values())
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: not any(map(self._is_awaited, added)), timeout)
            finally:
                self._waiting -= 1

    def _is_awaited(self, run: EndedRun) -> bool:
        if run.is_written:
            return self.open.get(id(run.evaluations)) is run
        return not run.is_over


def event_of(
    kind: Kind, parts: Parts, subject_key: str | None, keeping: Keeping, described: Collection[str]
) -> Event:
    """The event of a node run that has ended, without its contents and evaluations. `described` has the digests
    of the rules and graphs that the ledger knows.
    """
    fields = task_of(parts)
    fields["status"] = parts.status
    # A body holds no floats: the time is that of the end, and the rest below a microsecond stands apart.
    took, fields["ns"] = divmod(round(parts.duration * 1e9), 1000)
    fields["took"] = took
    account, execution, position = parts.account, parts.execution, parts.position
    if routes := parts.routes:
        fields["routes"] = [name if to is None else [name, to] for name, to in routes.items()]
    if parts.redirected_to is not None or parts.redirected_by is not None:
        fields["route"] = {"target": parts.redirected_to, "policy": parts.redirected_by}
    if account is not None:
        _account(fields, account, parts)
    assert execution is not None  # set before the first event
    event = Event(
        kind=kind,
        at=micros(parts.started) + took,
        origin=origin_in(execution, execution.run_id, subject_key),
        task=parts.id,
        attempt=parts.attempt,
        fields=fields,
        keeping=keeping,
    )
    if position is not None:
        _add_place(event, position, described)
    return event


def origin_in(execution: ExecutionInfo, run: str, subject_key: str | None) -> Origin:
    """The origin of what happens in an execution."""
    subject = None if subject_key is None else execution.config.get(subject_key)
    return origin_of(
        execution.thread_id,
        run,
        execution.id,
        None if subject is None else str(subject),
        execution.graph or None,
    )


def task_of(parts: Parts) -> dict[str, Any]:
    """Where a node run is in its graph, and what its checkers said."""
    found: dict[str, Any] = {"node": parts.node, "step": parts.step}
    if parts.instruction is not None:
        found["instruction"] = parts.instruction.qualified
    if parts.namespace:
        found["namespace"] = parts.namespace
    if parts.path and tuple(parts.path) != ("__pregel_pull", parts.node):
        found["path"] = _plain(parts.path)
    if parts.checks:
        found["checks"] = [
            name if verdict.kind == "allow" else [name, verdict.kind]
            for name, verdict in parts.checks.items()
        ]
    return found


def _add_place(event: Event, position: Position, described: Collection[str]) -> None:
    """Add the place among the committed node runs, and the rules and the graph that it ran under."""
    fields = event.fields
    fields["after"], fields["past"] = position.after, position.past
    if position.checkpoint is not None:
        fields["checkpoint"] = position.checkpoint
    if position.caller is not None:
        fields["caller"] = position.caller
    if position.call:
        fields["call"] = position.call
    if position.calling is not None:
        fields["calling"] = [*position.calling]
    for name, text in (("rules", position.rules), ("graph", position.graph)):
        if text is not None:
            fields[name] = text.digest
            if text.digest not in described:
                event.describes = (*event.describes, (name, text))


def _account(fields: dict[str, Any], account: Account, parts: Parts) -> None:
    decision, checked = account.decision, account.checked
    if decision is not None and decision.policy is not None:
        target = parts.redirected_to if decision.kind == "deny" else None
        fields["decision"] = {**_plain_decision(decision), "target": target}
    if account.sent is not None:
        fields["sent"] = [*account.sent]
    if account.kept_out:
        fields["began"] = False
    if checked != decision:
        fields["checked"] = None if checked is None else _plain_decision(checked)
    if account.trace is not None:
        trace, span = account.trace
        fields["trace"], fields["span"] = f"{trace:032x}", f"{span:016x}"


def _plain_decision(decision: PolicyDecision) -> dict[str, Any]:
    return {"kind": decision.kind, "policy": decision.policy, "consequence": decision.consequence}


def _add_texts(contents: dict[str, Any], parts: Parts) -> None:
    reasons = {name: verdict.reason[:TEXT] for name, verdict in parts.checks.items() if verdict.reason}
    if reasons:
        contents["reasons"] = reasons
    if parts.notes:
        contents["notes"] = {of: text[:TEXT] for of, text in parts.notes.items()}
    if parts.errors:
        contents["errors"] = {of: text[:TEXT] for of, text in parts.errors.items()}
    if parts.error is not None:
        contents["error"] = parts.error[:TEXT]
        contents["error_types"] = [*parts.error_types]
    if parts.corrections:
        contents["corrections"] = [text[:TEXT] for text in parts.corrections]


def add_judgements(event: Event, done: Iterable[Judgement], read: Collection[str]) -> dict[str, Any]:
    """Add evaluations to an event: results as scores, the others by name with the reason why there is none.
    Returns their texts, for its contents.
    """
    evals: list[Any] = []
    failed: list[Any] = []
    not_run: list[str] = []
    said: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, result, problem, outcome, version in done:
        if result is not None:
            evals.append(parts_of(name, result.score, result.passed, name in read, version, outcome))
            feedback, metadata = result.feedback, result.metadata
            if feedback or metadata:
                said[name] = {"feedback": feedback[:TEXT]}
                if metadata:
                    said[name]["metadata"] = capture(dict(metadata))
        elif problem is not None:
            failed.append([name, outcome, name in read, version])
            problems[name] = problem[:TEXT]
        else:
            not_run.append(name)
    event.evals = evals
    if failed:
        event.fields["failed"] = failed
    if not_run:
        event.fields["not_run"] = not_run
    texts: dict[str, Any] = {"evaluations": said} if said else {}
    if problems:
        texts["evaluation_errors"] = problems
    return texts


def _stages(trace: Sequence[EvaluatorTrace], done: Iterable[Judgement]) -> dict[str, Any]:
    """The stages that some of these evaluators were in, for the contents of an event."""
    if {part.name for part in trace}.isdisjoint(each.name for each in done):
        return {}
    return {"trace": [[part.name, part.stage, part.status, part.ms, part.detail[:TEXT]] for part in trace]}


def _plain(path: Any) -> Any:
    parts: Any = path
    if isinstance(path, tuple | list):
        return [_plain(part) for part in parts]
    return path if isinstance(path, str | int) or path is None else str(path)
