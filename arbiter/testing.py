"""Histories for unit tests of rules: a checker, router or evaluator, called without a graph.

history = history_of(state={"amount": 5000}, node="pay", past=[{"node": "verify"}])
assert not checker.check_before(history)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, get_args
from uuid import uuid4

from arbiter._lifecycle.observing import counted
from arbiter._values.states import snapshot
from arbiter.errors import ConfigurationError, describe, nearest
from arbiter.history._causal import CausalHistory
from arbiter.history._facts import RUN, fold
from arbiter.history._items import History
from arbiter.history._past import Past
from arbiter.history._record import Record, Status, fact_from, facts_of
from arbiter.history._results import Results
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import PolicyChecker
from arbiter.verdicts import Evaluated, EvaluationResult, Several, as_evaluation

__all__ = ["PastRun", "history_of"]


class PastRun(TypedDict, total=False):
    """An earlier node run. `tallies` has the amounts that checkers counted in it: by the name of the checker,
    then by key.
    """

    node: str
    instruction: Instruction | str | None
    state: object
    output: object
    evaluation_results: Mapping[str, Evaluated]
    tallies: Mapping[str, Mapping[str, float]]
    status: Status
    redirected_to: str


def history_of(
    *,
    state: object = None,
    output: object = None,
    node: str = "node",
    instruction: Instruction | str | None = None,
    evaluation_results: Mapping[str, Evaluated] | None = None,
    error: BaseException | None = None,
    past: Iterable[PastRun | Sequence[PastRun]] = (),
    counted_by: Iterable[PolicyChecker] = (),
    thread_id: str | None = None,
    clock: Callable[[], float] = time.time,
) -> History:
    """The history that a contract gets for one node run, whose own item is `history.item`.

    `state` is the node's input. Without `output` the node has not run yet, as in `check_before`; `error` is the
    exception that it failed with. `evaluation_results` are what evaluators would return. `past` are the node runs
    that were committed earlier in this run of the graph, oldest first; a list in it is one superstep of several.
    The checkers in `counted_by` observe them and find in the history what they have counted.
    """
    known: dict[str, Record] = {}
    run = _Run(thread_id, known)
    before = Past(fold({}, [RUN]))
    checkers = tuple(counted_by)
    step = 0
    for entry in past:
        step += 1
        siblings = [entry] if isinstance(entry, Mapping | str) else list(entry)
        records = [_record_of(sibling, step, clock) for sibling in siblings]
        for record in records:
            _count(record, CausalHistory(before, record, run), checkers, clock)
        known.update((record.id, record) for record in records)
        before = before.after([_committed(record) for record in records])
    record = _record(node, instruction, step + 1, clock)
    record.input = snapshot({} if state is None else state, "shallow")
    record.evaluations = _results(evaluation_results or {})
    if output is not None:
        record.output, record.status = snapshot(output, "shallow"), "completed"
    if error is not None:
        record.error, record.status = describe(error), "failed"
        record.error_types = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__[:-1])
    history = CausalHistory(before, record, run)
    history.clock = clock
    return history


class _Run:
    """The run and thread of a history."""

    def __init__(self, thread_id: str | None, by_id: Mapping[str, Record]) -> None:
        self.id = uuid4().hex
        self.thread_id = thread_id
        self.by_id = by_id

    @property
    def log(self) -> _Run:
        return self

    def denied(self) -> Sequence[Record]:
        return [record for record in self.by_id.values() if record.status == "denied"]


def _record(
    node: str, instruction: Instruction | str | None, step: int, clock: Callable[[], float]
) -> Record:
    found = None if instruction is None else find_instruction(instruction)
    return Record(uuid4().hex, node, found, step, "", clock())


def _record_of(past: PastRun, step: int, clock: Callable[[], float]) -> Record:
    fields = PastRun.__annotations__
    if not isinstance(past, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"a past run is {past!r:.80}; expected a mapping, such as {{'node': 'pay'}}, or a list of them."
        )
    for key in past:
        if key not in fields:
            raise ConfigurationError(
                f"a past run has {key!r}; expected one of {', '.join(fields)}.{nearest(key, fields)}"
            )
    status = past.get("status", "completed")
    if status not in get_args(Status):
        raise ConfigurationError(
            f"a past run has the status {status!r}; expected one of {', '.join(get_args(Status))}."
            f"{nearest(str(status), get_args(Status))}"
        )
    record = _record(past.get("node", "node"), past.get("instruction"), step, clock)
    record.input = snapshot(past.get("state", {}), "shallow")
    record.output = snapshot(past.get("output", {}), "shallow")
    record.evaluations = _results(past.get("evaluation_results", {}))
    record.status = status
    record.redirected_to = past.get("redirected_to")
    record.tallies = {name: dict(amounts) for name, amounts in past.get("tallies", {}).items()}
    return record


def _count(
    record: Record, view: CausalHistory, checkers: Iterable[PolicyChecker], clock: Callable[[], float]
) -> None:
    view.clock = clock
    for checker in checkers:
        if checker.observes(record.node, record.instruction) and (found := checker.observe(view)):
            record.tallies = {**record.tallies, checker.name: counted(found)}


def _committed(record: Record) -> Any:
    fact = fact_from(record)
    if record.evaluations:
        fact["evals"] = facts_of(record.evaluations)
    return fact


def _results(given: Mapping[str, Evaluated]) -> Results:
    results: dict[str, EvaluationResult] = {}
    for name, answer in given.items():
        read = as_evaluation(answer)
        fault = next(iter(read.faults.values()), None) if isinstance(read, Several) else None
        if isinstance(read, str) or fault is not None:
            raise ConfigurationError(f"evaluation_results: evaluator {name!r} {fault or read}.")
        if isinstance(read, Several):
            results.update((f"{name}.{key}", found) for key, found in read.results.items())
        else:
            results[name] = read
    return Results(results)
