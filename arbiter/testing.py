"""Histories for unit tests of rules: a checker, router or evaluator, called without a graph.

history = history_of(state={"amount": 5000}, node="pay", past=[{"node": "verify"}])
assert not checker.check_before(history)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, TypedDict, cast, get_args
from uuid import uuid4

from arbiter._lifecycle.observing import counted
from arbiter._values.parameters import is_several
from arbiter._values.states import as_state, is_number, written_by
from arbiter.errors import ConfigurationError, describe, nearest
from arbiter.history._causal import CausalHistory, CopiedRun
from arbiter.history._facts import RUN, fold
from arbiter.history._items import History
from arbiter.history._past import Past, Tally
from arbiter.history._record import Record, Status, fact_from, facts_of
from arbiter.history._results import Results
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import PolicyChecker
from arbiter.verdicts import Evaluated, EvaluationResult, Several, as_evaluation, as_verdict

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
    The checkers in `counted_by` check and observe them, as in a graph, and find in the history what they have
    counted. A checker that asks for counts of its own, and is neither there nor in the `tallies` of the past, gets a
    `ConfigurationError`.
    """
    checkers = tuple(counted_by) if is_several(counted_by) else counted_by
    given = {"node": node, "error": error, "past": past, "counted_by": checkers}
    for name, value in {**given, "thread_id": thread_id, "clock": clock}.items():
        _check("history_of", name, value)
    if error is not None and output is not None:
        raise ConfigurationError("history_of got an error and an output; a node that failed has no output.")
    known: dict[str, Record] = {}
    denied: list[Record] = []
    run = CopiedRun(uuid4().hex, str(uuid4()), True, thread_id, known, denied)
    before = Past(fold({}, [RUN]))
    counted = {checker.name for checker in checkers}
    step = 0
    for entry in past:
        step += 1
        siblings: list[Any] = list(entry) if is_several(entry) else [entry]
        records = [_record_of(sibling, step, clock) for sibling in siblings]
        counted.update(name for record in records for name in record.tallies)
        for record in records:
            _count(record, CausalHistory(before, record, run), checkers, clock)
        known.update((record.id, record) for record in records)
        denied += [record for record in records if record.status == "denied"]
        before = before.after([_committed(record) for record in records])
    record = _record(node, instruction, step + 1, clock)
    record.input = as_state(state)
    record.evaluations = _results(evaluation_results or {}, "history_of")
    if output is not None:
        record.output, record.status = written_by(output), "completed"
    if error is not None:
        record.error, record.status = describe(error), "failed"
        record.error_types = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__[:-1])
    history = _GivenHistory(before, record, run)
    history.clock = clock
    history.counted = counted if step else None
    return history


class _GivenHistory(CausalHistory):
    """Raises for the tallies of a checker that counted nothing, which would otherwise all be 0."""

    counted: Collection[str] | None = None
    """The checkers with tallies in the past; None if all tallies are 0 because there is no past."""

    def tally(self, policy: str, key: str) -> Tally:
        self._refuse_uncounted(policy)
        return super().tally(policy, key)

    def tally_keys(self, policy: str) -> Collection[str]:
        self._refuse_uncounted(policy)
        return super().tally_keys(policy)

    def _refuse_uncounted(self, policy: str) -> None:
        if self.counted is not None and policy not in self.counted:
            raise ConfigurationError(
                f"history_of: the amounts that {policy!r} counted are asked for, and it counted none of the past "
                f"node runs.{nearest(policy, self.counted)} Pass counted_by=[<the checker>], or give a past run "
                f"its amounts: 'tallies': {{{policy!r}: {{...}}}}."
            )


def _check(owner: str, name: str, value: Any) -> None:
    """Raise `ConfigurationError` for an argument of `history_of` or a value of a past run of a wrong type."""
    fits, expected = _EXPECTED[name]
    if fits(value):
        return
    shown: object = value
    remedy = nearest(str(value), get_args(Status)) if name == "status" else ""
    if name in ("past", "counted_by") and isinstance(value, Mapping | PolicyChecker):
        remedy = f" Write {name}=[...]."
    raise ConfigurationError(f"{owner}: {name} is {shown!r:.80}; expected {expected}.{remedy}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _are_tallies(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(amounts, Mapping) and all(map(is_number, cast("Mapping[str, Any]", amounts).values()))
        for amounts in cast("Mapping[str, Any]", value).values()
    )


_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "node": (_is_text, "the name of a node"),
    "error": (
        lambda value: value is None or isinstance(value, BaseException),
        "an exception, such as ValueError('boom')",
    ),
    "past": (is_several, "a list of past runs, such as [{'node': 'pay'}]"),
    "counted_by": (
        lambda value: is_several(value) and all(isinstance(each, PolicyChecker) for each in value),
        "a list of checkers",
    ),
    "thread_id": (lambda value: value is None or isinstance(value, str), "a text or None"),
    "clock": (callable, "a function that returns POSIX seconds"),
    "evaluation_results": (
        lambda value: isinstance(value, Mapping),
        "a mapping by the names of evaluators, such as {'quality': 0.5}",
    ),
    "tallies": (
        _are_tallies,
        "the amounts by key by the name of the checker, such as {'spend': {'calls': 2}}",
    ),
    "redirected_to": (lambda value: value is None or _is_text(value), "the name of a node"),
    "status": (lambda value: value in get_args(Status), f"one of {', '.join(get_args(Status))}"),
}


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
    given: Any = past
    for key, value in given.items():
        if key not in fields:
            raise ConfigurationError(
                f"a past run has {key!r}; expected one of {', '.join(fields)}.{nearest(str(key), fields)}"
            )
        if key in _EXPECTED:
            _check("a past run", key, value)
    record = _record(past.get("node", "node"), past.get("instruction"), step, clock)
    record.input = as_state(past.get("state"))
    record.output = written_by(past.get("output", {}))
    record.evaluations = _results(past.get("evaluation_results", {}), "a past run")
    record.status = past.get("status", "completed")
    record.redirected_to = past.get("redirected_to")
    record.tallies = {name: dict(amounts) for name, amounts in past.get("tallies", {}).items()}
    return record


def _count(
    record: Record, view: CausalHistory, checkers: Iterable[PolicyChecker], clock: Callable[[], float]
) -> None:
    view.clock = clock
    for checker in checkers:
        if checker.name in record.tallies:
            continue  # its amounts are given
        if record.status != "denied" and checker.applies_to(record.node, record.instruction):
            _begin(record, view, checker)
        if type(checker).observe is PolicyChecker.observe:
            continue  # it counts nothing
        if checker.observes(record.node, record.instruction) and (found := checker.observe(view)):
            record.tallies = {**record.tallies, checker.name: counted(found)}


def _begin(record: Record, view: CausalHistory, checker: PolicyChecker) -> None:
    """Ask the checker for a node run of the past: some note in `check_before` and `handlers` what they count."""
    try:
        answer = checker.check_before(view)
    except Exception:
        return  # it may look at a state that is not given; the node has run anyway
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        return
    record.checks = {**record.checks, checker.name: as_verdict(answer)}
    if type(checker).handlers is not PolicyChecker.handlers:
        checker.handlers(view)


def _committed(record: Record) -> Any:
    fact = fact_from(record)
    if record.evaluations:
        fact["evals"] = facts_of(record.evaluations)
    return fact


def _results(given: Mapping[str, Evaluated], owner: str) -> Results:
    _check(owner, "evaluation_results", given)
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
