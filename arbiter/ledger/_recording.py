"""From listener to event: what the ledger takes of a node run, at the moment at which it is true.

The input is copied before the checkers see it, the output when the attempt has ended: later nodes may change
the objects in place. Everything else (encoding, redaction, hashing, the database) is the writer's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from arbiter._threads.forks import renew_in_child
from arbiter.history import HistoryItem
from arbiter.history._record import ExecutionInfo, Record
from arbiter.ledger._contents import States, capture
from arbiter.ledger._entries import Event, Score, micros
from arbiter.ledger._writer import Writer
from arbiter.listening import HistoryListener
from arbiter.verdicts import EvaluationResult

_TEXT = 4_000
"""Characters of a reason, a feedback or an error that are kept."""


@dataclass(slots=True)
class _Judgement:
    """The evaluations of one item, which may end after the item is written."""

    event: Event
    evaluations: Any
    read: frozenset[str]
    known: frozenset[str] = frozenset()
    """The evaluators that the item's own entry has."""
    written: bool = False
    is_over: bool = False

    def done(self) -> dict[str, EvaluationResult | None]:
        """The results so far; None for an evaluator that failed. Waits for nothing."""
        return dict(self.evaluations.outcomes)


class Recording(HistoryListener):
    """Queues an event for every node run, judgement and execution."""

    def __init__(self, writer: Writer, *, states: States, subject_key: str | None) -> None:
        self._writer = writer
        self._states: States = states
        self._subject_key = subject_key
        self._inputs: dict[int, Any] = {}
        """By record and attempt, the input as it was before the checkers saw it."""
        self._open: dict[int, _Judgement] = {}
        """By the id of the evaluations, those that are not both done and written."""
        self._lock = threading.Condition(threading.Lock())
        renew_in_child(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what runs now is the parent's."""
        self._lock = threading.Condition(threading.Lock())
        self._inputs, self._open = {}, {}

    def began(self, item: HistoryItem) -> None:
        if self._states != "none":
            self._inputs[id(item.record)] = capture(item.record.input, self._states)

    def ended(self, item: HistoryItem) -> None:
        record = item.record
        event = self._event("item", record, at=record.started + record.duration)
        event.fields.update(
            node=record.node,
            step=record.step,
            status=record.status,
            took=micros(record.duration),
            times=[repr(record.started), repr(record.duration)],  # exact: a body holds no floats
        )
        if item.decision.policy is not None:
            event.fields["decision"] = _decision(item)
        if record.instruction is not None:
            event.fields["instruction"] = record.instruction.qualified
        if record.namespace:
            event.fields["namespace"] = record.namespace
        if record.path and tuple(record.path) != ("__pregel_pull", record.node):
            event.fields["path"] = _plain(record.path)
        if record.checks:
            event.fields["checks"] = {name: verdict.kind for name, verdict in record.checks.items()}
        if any(record.routes.values()):
            event.fields["routes"] = {name: to for name, to in record.routes.items() if to is not None}
        if record.redirected_to is not None:
            event.fields["route"] = {"target": record.redirected_to, "policy": record.redirected_by}
        for answer in item.answers:
            self._answered(record, answer)
        event.contents = self._contents(item, self._inputs.pop(id(record), None))
        event.size = _size(event.contents)
        evaluations: Any = record.evaluations
        if hasattr(evaluations, "then"):
            judgement = _Judgement(event, evaluations, frozenset(item.read_results))
            event.complete = partial(self._complete, judgement)
            event.is_open = lambda: not judgement.is_over
            with self._lock:
                self._open[id(evaluations)] = judgement
        self._writer.add(event)

    def _complete(self, found: _Judgement, event: Event) -> None:
        """Add to an item's event the evaluations that are done by now."""
        with self._lock:
            found.written = True
            done = found.done()
            self._judge(event, found, done)
            found.known = frozenset(done)
            if found.is_over:
                self._close(found)

    def judged(self, item: HistoryItem) -> None:
        with self._lock:
            found = self._open.get(id(item.record.evaluations))
            if found is None:
                return
            found.is_over = True
            if not found.written:
                return  # the writer adds them to the item's own event
            late = {name: result for name, result in found.done().items() if name not in found.known}
            self._close(found)
        if late:
            event = replace(
                found.event, kind="judged", fields={"of": found.event.key}, contents=None, scores=()
            )
            self._judge(event, found, late)
            self._writer.add(event)

    def _judge(self, event: Event, found: _Judgement, results: Mapping[str, Any]) -> None:
        """Add these evaluations to an event: scores, and the names of those that failed."""
        done = {name: result for name, result in results.items() if result is not None}
        failed = sorted(results.keys() - done.keys())
        event.scores = [
            Score(evaluator=name, score=float(result.score), passed=result.passed, read=name in found.read)
            for name, result in done.items()
        ]
        if failed:
            event.fields["failed"] = failed
        if self._states != "none" and results:
            errors = {name: str(found.evaluations.error_of(name)) for name in failed}
            event.contents = {**(event.contents or {}), **_judgements(done, errors)}

    def _close(self, found: _Judgement) -> None:
        self._open.pop(id(found.evaluations), None)
        self._lock.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait until everything that has ended so far is judged. False if the time was up first."""
        with self._lock:
            waiting = [found for found in self._open.values() if not found.is_over]
            return self._lock.wait_for(lambda: all(found.is_over for found in waiting), timeout)

    def execution_ended(self, execution: ExecutionInfo) -> None:
        event = Event(
            kind="execution",
            at=micros(execution.ended or execution.began),
            thread_id=execution.thread_id,
            run=execution.run_id or execution.id,
            execution=execution.id,
            subject=self._subject(execution),
            graph=execution.graph,
            fields={
                "outcome": execution.outcome,
                "graph": execution.graph,
                "began": micros(execution.began),
                "took": micros((execution.ended or execution.began) - execution.began),
            },
        )
        if self._states != "none":
            event.contents = {"config": capture(dict(execution.config))}
        self._writer.add(event)

    def _event(self, kind: Any, record: Record, *, at: float) -> Event:
        execution = record.execution
        assert execution is not None  # set before the first event
        return Event(
            kind=kind,
            at=micros(at),
            thread_id=execution.thread_id,
            run=execution.run_id,
            execution=execution.id,
            task=record.id,
            attempt=record.attempt,
            subject=self._subject(execution),
            graph=execution.graph or None,
        )

    def _subject(self, execution: ExecutionInfo) -> str | None:
        found = None if self._subject_key is None else execution.config.get(self._subject_key)
        return None if found is None else str(found)

    def _contents(self, item: HistoryItem, given: Any) -> dict[str, Any] | None:
        if self._states == "none":
            return None
        record = item.record
        found: dict[str, Any] = {"input": given, "output": capture(record.output, self._states)}
        if item.asked_about is not None:
            found["edited"] = capture(record.input, self._states)
        if item.drafts:
            found["drafts"] = [
                {"output": capture(dict(output), self._states), "feedback": feedback[:_TEXT]}
                for output, feedback in item.drafts
            ]
        texts: dict[str, Any] = {
            "reasons": {
                name: verdict.reason[:_TEXT] for name, verdict in record.checks.items() if verdict.reason
            },
            "notes": {name: text[:_TEXT] for name, text in record.notes.items()},
            "errors": {name: text[:_TEXT] for name, text in record.errors.items()},
            "error": None if record.error is None else record.error[:_TEXT],
            "error_types": list(record.error_types),
            "corrections": [text[:_TEXT] for text in record.corrections],
            "gating": capture(dict(record.gating)) if record.gating else None,
            "tallies": capture(dict(record.tallies)) if record.tallies else None,
        }
        found.update({name: text for name, text in texts.items() if text})
        return found

    def _answered(self, record: Record, answer: Any) -> None:
        event = self._event("answer", record, at=answer.at)
        question = answer.question
        event.fields.update(
            node=record.node,
            question=question.digest,
            policy_asked=question.policy,
            about=question.subject,
            answer=answer.kind,
            by=answer.by,
            asked_at=micros(question.asked_at),
        )
        if self._states != "none":
            event.contents = {
                "question": capture(dict(question.payload), self._states),
                "detail": capture(answer.detail, self._states),
            }
        self._writer.add(event)


def _decision(item: HistoryItem) -> dict[str, Any]:
    decision = item.decision
    target = item.redirected_to if decision.kind == "deny" else None
    return {
        "kind": decision.kind,
        "policy": decision.policy,
        "consequence": decision.consequence,
        "target": target,
    }


def _judgements(results: Mapping[str, EvaluationResult], errors: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if results:
        found["evaluations"] = {
            name: {
                "feedback": result.feedback[:_TEXT],
                **({"metadata": capture(dict(result.metadata))} if result.metadata else {}),
            }
            for name, result in results.items()
            if result.feedback or result.metadata
        }
    if errors:
        found["evaluation_errors"] = {name: text[:_TEXT] for name, text in errors.items()}
    return found


def _plain(path: Any) -> Any:
    parts: Any = path
    if isinstance(path, tuple | list):
        return [_plain(part) for part in parts]
    return path if isinstance(path, str | int) or path is None else str(path)


def _size(contents: Any) -> int:
    """About the bytes of captured contents."""
    parts: Any = contents
    if isinstance(contents, str):
        return len(contents) + 50
    if isinstance(contents, dict):
        return 64 + sum(len(key) + _size(part) for key, part in parts.items())
    return 56 + sum(map(_size, parts)) if isinstance(contents, list) else 32
