"""From listener to event: what the ledger takes of a node run, at the moment at which it is true.

The input is copied before the checkers see it, the output when the attempt has ended: later nodes may change
the objects in place. Everything else (encoding, redaction, hashing, the database) is the writer's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from arbiter._threads.forks import renew_in_child
from arbiter._values.records import Records
from arbiter.history import HistoryItem
from arbiter.history._packing import is_packed_id
from arbiter.history._record import ExecutionInfo, Record
from arbiter.ledger._contents import Capture, capture
from arbiter.ledger._ended import (
    TEXT,
    EndedRun,
    Judging,
    Parts,
    add_judgements,
    event_of,
    origin_in,
    task_of,
)
from arbiter.ledger._entries import Event, Kind, Origin, Waiting, micros, storable
from arbiter.ledger._keeping import Keeping, Options
from arbiter.ledger._recovering import GRACE
from arbiter.ledger._writer import Writer
from arbiter.listening import HistoryListener


class Recording(HistoryListener):
    """Queues an event for every node run, judgement and execution of one `ArbiterOS`."""

    keeps_facts = True

    def __init__(self, writer: Writer, options: Options, *, subject_key: str | None) -> None:
        self._writer = writer
        self._options = options
        self.keeping = options.keeping()
        """What is kept of items that begin from now on."""
        self._subject_key = subject_key
        self.renew()
        renew_in_child(self)

    def keep(self, records: Records | None) -> None:
        """From the next item on, keep no more than the records of a constitution say."""
        self.keeping = self._options.keeping(records)

    def renew(self) -> None:
        """Begin anew in a forked child: what runs now is the parent's."""
        self._inputs: dict[int, tuple[Capture, Any]] = {}
        """By record, the input as it was before the checkers saw it."""
        self.judging = Judging()

    def began(self, item: HistoryItem) -> None:
        states = self.keeping.states
        if states != "none":
            take, record = Capture(states), item.record
            self._inputs[id(record)] = take, take(record.input)

    def restored(self, items: Sequence[HistoryItem]) -> None:
        """Queue node runs that the ledger may lack, to be compared by the writer. Recent ones wait a little:
        another process may still write them itself.
        """
        if not items:
            return
        execution = items[-1].record.execution
        if execution is not None and execution.thread_id is not None:  # else nothing is before the run
            self._writer.add(_RestoredRuns(items, self._subject_key, self.keeping, self._writer.described))

    def ended(self, item: HistoryItem) -> None:
        record = item.record
        run = EndedRun(record, self._subject_key, self.keeping, self._writer.described, self.judging)
        taken = self._inputs.pop(id(record), None)
        if taken is not None:
            take, given = taken
            run.contents = {"input": given, "output": take(record.output)}
            if record.account is not None or record.gating or record.tallies:
                _add_unusual(run.contents, item, take)
            run.size = take.size
        if record.account is not None:
            for number, answer in enumerate(item.answers):
                self._answered(record, answer, number)
        self._writer.add(run)
        self.judging.add(run)

    def started(self, item: HistoryItem, at: float) -> Event:
        """The event that an attempt was allowed, at that time: it is committed before the body runs."""
        return self._event("started", item.record, at, task_of(Parts.of(item.record)))

    def judged(self, item: HistoryItem) -> None:
        run = self.judging.over(item.evaluation_results)
        if run is not None:
            late = run.late()
            if late is not None:
                self._writer.add(late)
            self.judging.close(run)

    def execution_ended(self, execution: ExecutionInfo) -> None:
        states = self.keeping.states
        event = Event(
            kind="execution",
            at=micros(execution.ended or execution.began),
            origin=origin_in(execution, execution.run_id or execution.id, self._subject_key),
            keeping=self.keeping,
            fields={
                "outcome": execution.outcome,
                "graph": execution.graph,
                "began": micros(execution.began),
                "took": micros((execution.ended or execution.began) - execution.began),
                **({} if execution.rules is None else {"rules": execution.rules}),
                **dict(zip(("trace", "span", "parent"), execution.trace or (), strict=False)),
            },
        )
        if states != "none":
            config = dict(execution.config)
            if isinstance(config.get("thread_id"), str):
                config["thread_id"] = event.origin.thread_id  # as the thread is named in the ledger
            # The subject's name as the thread's row has it, whatever key it came from.
            event.contents = {"config": capture(config), "subject": event.origin.subject}
        self._writer.add(event)

    def _event(self, kind: Kind, record: Record, at: float, fields: dict[str, Any]) -> Event:
        execution = record.execution
        assert execution is not None  # set before the first event
        return Event(
            kind=kind,
            at=micros(at),
            origin=origin_in(execution, execution.run_id, self._subject_key),
            task=record.id,
            attempt=record.attempt,
            fields=fields,
            keeping=self.keeping,
        )

    def _answered(self, record: Record, answer: Any, number: int) -> None:
        question = answer.question
        fields = {
            "node": record.node,
            "question": question.digest,
            "policy_asked": question.policy,
            "about": question.subject,
            "answer": answer.kind,
            "by": None if answer.by is None else storable(answer.by),
            "asked_at": micros(question.asked_at),
        }
        event = self._event("answer", record, answer.at, fields)
        event.nonce = str(number)  # a question whose answer came too late is asked again in the same attempt
        states = self.keeping.states
        if states != "none":
            event.contents = {
                "question": capture(dict(question.payload), states),
                "detail": capture(answer.detail, states),
            }
        self._writer.add(event)


def _add_unusual(contents: dict[str, Any], item: HistoryItem, take: Capture) -> None:
    """Add to the contents what few node runs have and what may change later."""
    record = item.record
    if item.asked_about is not None:
        contents["edited"] = take(record.input)
    if item.drafts:
        contents["drafts"] = [
            {"output": take(dict(output)), "feedback": feedback[:TEXT]} for output, feedback in item.drafts
        ]
    if record.gating:
        contents["gating"] = capture(dict(record.gating))
    if record.tallies:
        contents["tallies"] = capture(dict(record.tallies))


class _RestoredRuns(Waiting):
    """Node runs of a checkpoint that the ledger may lack."""

    kind: Kind = "recovered"
    is_saved = True

    def __init__(
        self,
        items: Sequence[HistoryItem],
        subject_key: str | None,
        keeping: Keeping,
        described: Collection[str],
    ) -> None:
        newest = items[-1].record
        execution = newest.execution
        assert execution is not None
        end = newest.started + newest.duration
        self._where = origin_in(execution, execution.run_id, subject_key), micros(end)
        # Both times are by the clock of the ArbiterOS, which may not be the ledger's.
        self.patience = min(max(GRACE - (execution.began - end), 0.0), GRACE)
        self._items = items
        self._subject_key = subject_key
        self._keeping = keeping
        self._described = described
        self._events: list[Event] | None = None

    def where(self) -> tuple[Origin, int]:
        return self._where

    def is_open(self) -> bool:
        return True  # for as long as its patience lasts

    def events(self) -> Iterable[Event]:
        if self._events is None:
            self._events = list(self._made())
        return self._events

    def _made(self) -> Iterator[Event]:
        source = str(uuid4())
        for item in self._items:
            record = item.record
            event = event_of("recovered", Parts.of(record), self._subject_key, self._keeping, self._described)
            event.source, event.nonce = source, str(uuid4())
            if is_packed_id(record.id):
                event.task = None
            if record.status == "denied":
                event.fields["decision"] = _denial(record)
            evaluations: Any = record.evaluations
            add_judgements(event, evaluations.judgements(), frozenset(evaluations))
            yield event


def _denial(record: Record) -> dict[str, Any]:
    """The denial of a node run of which only a fact is left: its first checker that denied has decided."""
    policy = next((name for name, verdict in record.checks.items() if verdict.kind == "deny"), None)
    return {"kind": "deny", "policy": policy, "consequence": None, "target": record.redirected_to}
