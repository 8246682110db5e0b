"""The history: what each node run was, and what was decided about it.

A `Record` is the mutable account that the lifecycle keeps while a node runs; a `HistoryItem` is the
read-only face of it that everybody else sees. A `History` is a sequence of supersteps of items:
`RunHistory` shows what is in memory, `CausalHistory` shows one node its committed past and itself.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

from arbiter.copies import DICT, DICTS, Copier, Exported, for_deep_copy, for_pickle, jsonable
from arbiter.facts import NO_TALLY, Fact, Past, Tally
from arbiter.instructions import Instruction, find_instruction
from arbiter.results import Results, settled
from arbiter.states import FrozenDict, SeenDict
from arbiter.verdicts import FAILED, OTHER_TARGETS, EvaluationResult, EvaluatorTrace, Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from arbiter.evaluation import EvaluatorCycle
    from arbiter.evaluations import Evaluations
    from arbiter.recorder import Run

_log = logging.getLogger("arbiter")
Status = Literal["running", "completed", "denied", "failed", "interrupted", "cancelled"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Record:
    """The account of one node run, while it is written. Times are POSIX seconds.

    Made for every step, so what is mostly unset stays with the class until it is set.
    """

    attempt = 1
    duration = 0.0
    status: Status = "running"
    input: Mapping[str, Any] = _NOTHING
    output: Mapping[str, Any] = _NOTHING
    checks: Mapping[str, Verdict] = _NOTHING
    routes: Mapping[str, str | None] = _NOTHING
    evaluations: Evaluations | Mapping[str, EvaluationResult] = _NOTHING
    errors: Mapping[str, str] = _NOTHING
    notes: Mapping[str, str] = _NOTHING
    corrections: tuple[str, ...] = ()
    gating: Mapping[str, Any] = _NOTHING
    drafts: Sequence[Any] = ()
    """What was sent back so far, until the node is done: a retry or resume goes on with the next attempt."""
    elsewhere: tuple[str, ...] = ()
    """Evaluators of a cycle that do not apply to the node."""
    tallies: Mapping[str, Mapping[str, float | None]] = _NOTHING
    spent: Mapping[str, Mapping[str, Mapping[str, float | None]]] = _NOTHING
    """What earlier attempts have used up, by note, checker and key. It is committed with the one that is done."""
    raw: Any = None
    """The output itself, where a router may come back to it."""
    error: str | None = None
    error_types: tuple[str, ...] = ()
    redirected_to: str | None = None
    redirected_by: str | None = None
    sharers = 0
    """How many runs of the thread hold it too: forks."""

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
        self.started = started

    def begin_again(self, started: float) -> None:
        """One more attempt: what the last one found out is gone."""
        attempt = self.attempt + 1
        for name in set(vars(self)) & _FOUND_OUT:
            delattr(self, name)
        self.attempt, self.started = attempt, started

    # Both are rare, so a new dict each time and none in the usual case.

    def failed(self, contract: str, problem: str) -> None:
        """Say that a contract itself failed."""
        _log.warning("%s failed on node %r: %s", contract, self.node, problem)
        self.errors = {**self.errors, contract: problem}

    def note(self, contract: str, remark: str) -> None:
        """Say what a contract did not do although it was asked to, or what a human decided for it."""
        before = self.notes.get(contract)
        self.notes = {**self.notes, contract: remark if before is None else f"{before}; {remark}"}


def share_layout(cls: type[object], *names: str) -> None:
    """Let the instances of a class share one layout with these attributes, which not all of them get.

    Python settles it with those that are made first: to one that later gets an attribute that they had not, it gives a
    dict of its own, three times as large and slower.
    """
    first = object.__new__(cls)
    for name in names:
        setattr(first, name, None)


share_layout(Record, "input", "duration", "output", "status", "checks", "evaluations", "routes")

_UNSEEN: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = (None, _NOTHING)
_FOUND_OUT = {name for name in vars(Record) if not name.startswith("_")} - {
    "attempt",
    "input",
    "spent",
    "drafts",
    "sharers",
}


class HistoryItem(Exported, method="to_dict", returns=DICT):
    """One node run. Read-only, with all that can be reached from it: states are views that refuse changes, and objects
    in them are copies.

    `status` is `running`, `completed`, `denied`, `failed`, `interrupted` or `cancelled`. `attempt` counts
    retries and resumes of the same task, from 1. `duration` is in seconds, `timestamp` (aware, UTC) the start.
    `evaluation_results` is lazy: reading one name waits for that evaluator, iterating waits for all.
    `errors` says which contract failed itself, and how; `notes` where a cap was reached and what a human decided;
    `error` is the node's own.
    """

    # What is mostly unset stays with the class: one is made for every step.
    _evaluations: Mapping[str, EvaluationResult] | None = None
    _input: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = _UNSEEN
    _watched = False
    _output: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = _UNSEEN

    def __init__(
        self,
        record: Record,
        evaluations: Mapping[str, EvaluationResult] | None = None,
    ) -> None:
        self._record = record
        if evaluations is not None:
            self._evaluations = evaluations

    def give_results(self, evaluations: Mapping[str, EvaluationResult] | None) -> None:
        """Show these results from now on; None: those of the record, to whoever looks later."""
        self._evaluations = evaluations
        if evaluations is None:
            self._input = self._output = _UNSEEN

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def node(self) -> str:
        return self._record.node

    @property
    def instruction(self) -> Instruction | None:
        return self._record.instruction

    @property
    def step(self) -> int:
        return self._record.step

    @property
    def namespace(self) -> str:
        return self._record.namespace

    @property
    def sent(self) -> bool:
        """Whether its input was made for it by a `Send`, and is not the graph's state."""
        path = self._record.path
        return bool(path) and path[0] == "__pregel_push"

    @property
    def attempt(self) -> int:
        return self._record.attempt

    @property
    def status(self) -> Status:
        return self._record.status

    @property
    def input_state(self) -> Mapping[str, Any]:
        state = self._record.input
        of, shown = self._input
        if of is not state:
            shown = SeenDict(state) if self._watched else FrozenDict(state)
            self._input = state, shown
        return shown

    @property
    def output_state(self) -> Mapping[str, Any]:
        state = self._record.output
        of, shown = self._output
        if of is not state:
            shown = FrozenDict(state)
            self._output = state, shown
        return shown

    def watch(self) -> None:
        """Remember from now on what is seen of the input."""
        self._watched = True

    def seen(self) -> SeenDict | None:
        """What was seen of the input, None if nobody looked; and remember no more."""
        shown = self._input[1]
        self._watched, self._input = False, _UNSEEN
        return shown if type(shown) is SeenDict else None

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self._record.started, UTC)

    @property
    def duration(self) -> float:
        return self._record.duration

    @property
    def check_policy_results(self) -> Mapping[str, Verdict]:
        return MappingProxyType(dict(self._record.checks))

    @property
    def route_policy_results(self) -> Mapping[str, str | None]:
        return MappingProxyType(dict(self._record.routes))

    @property
    def evaluation_results(self) -> Mapping[str, EvaluationResult]:
        return self._record.evaluations if self._evaluations is None else self._evaluations

    @property
    def read_results(self) -> Mapping[str, EvaluationResult | None]:
        """Of the evaluations, those that somebody has read so far; None for one that failed. Waits for nothing."""
        results = self.evaluation_results
        read: Mapping[str, EvaluationResult | None] = getattr(results, "outcomes", results)
        return read

    @property
    def evaluation_errors(self) -> Mapping[str, str]:
        """Evaluators that gave no result, and why. Waits for all of them."""
        errors: Mapping[str, str] = getattr(self.evaluation_results, "errors", _NOTHING)
        return errors

    def evaluation_error(self, evaluator: str) -> str | None:
        """Why that evaluator gave no result; None if it gave one, or does not judge this node. Waits for it alone."""
        error_of = getattr(self.evaluation_results, "error_of", None)
        return None if error_of is None else error_of(evaluator)

    @property
    def evaluator_trace(self) -> Sequence[EvaluatorTrace]:
        """What a cycle did with its evaluators, also with those that did not run, and why. Waits for nothing: while
        the cycle runs they are `pending`. Empty where the history was restored by another process."""
        trace: Sequence[EvaluatorTrace] = getattr(self._record.evaluations, "trace", ())
        if not self._record.elsewhere:
            return trace
        others = self._record.elsewhere
        return (*trace, *(EvaluatorTrace(name, "gate", "filtered", 0.0, OTHER_TARGETS) for name in others))

    @property
    def error(self) -> str | None:
        return self._record.error

    @property
    def error_types(self) -> tuple[str, ...]:
        """The class of the node's exception and the classes that it derives from, as "module.Class"; empty if it did
        not fail, and where the history was restored by another process."""
        return self._record.error_types

    @property
    def errors(self) -> Mapping[str, str]:
        return MappingProxyType(dict(self._record.errors))

    @property
    def notes(self) -> Mapping[str, str]:
        return MappingProxyType(dict(self._record.notes))

    @property
    def corrections(self) -> Sequence[str]:
        return self._record.corrections

    @property
    def gating(self) -> Mapping[str, Any]:
        """What its correction gate says about how it came to the output; empty where the history was restored by
        another process."""
        return FrozenDict(self._record.gating)

    @property
    def redirected_to(self) -> str | None:
        return self._record.redirected_to

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; what has no JSON form is given as text. Waits for the evaluations."""
        return {
            "id": self.id,
            "node": self.node,
            "instruction": self.instruction.qualified if self.instruction else None,
            "step": self.step,
            "namespace": self.namespace,
            "attempt": self.attempt,
            "status": self.status,
            "timestamp": self.timestamp.isoformat(),
            "duration": self.duration,
            "input_state": jsonable(self._record.input),
            "output_state": jsonable(self._record.output),
            "check_policy_results": {
                name: {"kind": verdict.kind, "reason": verdict.reason}
                for name, verdict in self._record.checks.items()
            },
            "route_policy_results": dict(self._record.routes),
            "evaluation_results": {
                name: {
                    "score": float(result.score),
                    "passed": result.passed,
                    "feedback": result.feedback,
                    "metadata": jsonable(result.metadata),
                }
                for name, result in self.evaluation_results.items()
            },
            "evaluation_errors": dict(self.evaluation_errors),
            "evaluator_trace": [
                {"name": part.name, "stage": part.stage, "status": part.status, "detail": part.detail}
                for part in self.evaluator_trace
            ],
            "corrections": list(self.corrections),
            "gating": jsonable(self._record.gating),
            "error": self.error,
            "errors": dict(self.errors),
            "notes": dict(self.notes),
            "redirected_to": self.redirected_to,
        }

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The pairs of `to_dict`, as those of a pydantic model: `dict(item)` is `item.to_dict()`."""
        return iter(self.to_dict().items())

    def parts(self, copier: Copier) -> ItemParts:
        """Copies of what an item is made of, apart from the run that goes on. Waits for the evaluations."""
        record = self._record
        if self._evaluations is None:
            return _copied(record, copier, settled(record.evaluations, copier)), None
        return _copied(record, copier, _traced(record)), settled(self._evaluations, copier)

    def __reduce__(self) -> tuple[Any, ...]:
        return HistoryItem, self.parts(for_pickle())

    def __copy__(self) -> HistoryItem:
        return HistoryItem(self._record, self._evaluations)

    def __deepcopy__(self, memo: dict[int, Any]) -> HistoryItem:
        return HistoryItem(*self.parts(for_deep_copy(memo)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HistoryItem) and other._record is self._record

    def __hash__(self) -> int:
        return id(self._record)

    def __repr__(self) -> str:
        kind = f" {self.instruction}" if self.instruction else ""
        return f"<HistoryItem {self.node!r}{kind} {self.status}>"


share_layout(HistoryItem, "_evaluations", "_input", "_output", "_watched")
ItemParts = tuple[Record, Results | None]
_OF_THE_RUN = frozenset({"raw", "drafts", "sharers"})
"""What a record holds for the run that goes on."""


def _traced(record: Record) -> Results:
    """Of its evaluations the trace alone, which waits for nothing."""
    return Results({}, trace=getattr(record.evaluations, "trace", ()))


def _copied(record: Record, copier: Copier, evaluations: Results) -> Record:
    new = Record.__new__(Record)
    for name, value in list(vars(record).items()):
        if name == "checks":
            checks: Mapping[str, Verdict] = value
            new.checks = {
                each: Verdict(verdict.kind, verdict.reason, copier(verdict.payload))
                for each, verdict in checks.items()
            }
        elif name not in _OF_THE_RUN and name != "evaluations":
            setattr(new, name, copier(value))
    new.evaluations = evaluations
    return new


class History(Exported, method="to_dicts", returns=DICTS):
    """Supersteps of items, oldest first. Items that ran at the same time share a superstep."""

    entries: Sequence[Sequence[HistoryItem]] = ()
    clock: Callable[[], float] = staticmethod(time.time)
    """The clock of the `ArbiterOS`, in the view of a node run: seconds since 1970."""

    @property
    def now(self) -> datetime:
        """The time, aware and in UTC, by the clock of the `ArbiterOS`. Contracts that go by time read it here, and not
        from the system, so that tests and replays can set it."""
        return datetime.fromtimestamp(self.clock(), UTC)

    @property
    def cycle(self) -> EvaluatorCycle | None:
        """The cycle of evaluators of the `ArbiterOS`, in the view of a node run; elsewhere None."""
        return None

    def items(self) -> Iterator[HistoryItem]:
        for superstep in self.entries:
            yield from superstep

    def earlier(self) -> Iterator[HistoryItem]:
        """The items before the newest superstep, the newest first. In the view of a node run: all that is committed,
        and none is made before it is reached."""
        for superstep in reversed(self.entries[:-1]):
            yield from reversed(superstep)

    def last(
        self, instruction: Instruction | str | None = None, node: str | None = None
    ) -> HistoryItem | None:
        """The newest item of that instruction and that node, or `None`."""
        wanted = None if instruction is None else find_instruction(instruction)
        for superstep in reversed(self.entries):
            for item in reversed(superstep):
                if _matches(item, wanted, node):
                    return item
        return None

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        """How many items there were of that instruction and that node, whatever their status.

        Of a run or a view: exact also for items that are no longer kept, and in constant time, whichever of the two is
        given.
        """
        wanted = None if instruction is None else find_instruction(instruction)
        return sum(_matches(item, wanted, node) for item in self.items())

    def tally(self, policy: str, key: str) -> Tally:
        """What the checker `policy` has counted under `key` in `observe`, as far as it is committed.

        Known to checkers, routers and evaluators, in constant time; elsewhere there is none.
        """
        return NO_TALLY

    def tally_keys(self, policy: str) -> Collection[str]:
        """The keys under which the checker `policy` has a tally, in no order."""
        return ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """All items as plain data; see `HistoryItem.to_dict`. `superstep` counts from 1."""
        return [
            {"superstep": number, **item.to_dict()}
            for number, superstep in enumerate(self.entries, 1)
            for item in superstep
        ]

    def to_jsonl(self) -> str:
        """One JSON object a line, one line an item."""
        return "".join(
            json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n" for item in self.to_dicts()
        )

    def pprint(self, console: Console | None = None) -> None:
        """Print the history for a human; see arbiter/rendering.py for the shape."""
        from arbiter.rendering import pprint_history

        pprint_history(self, console)

    def _repr_html_(self) -> str:
        from arbiter.rendering import history_html

        return history_html(self)

    def __len__(self) -> int:
        """The number of supersteps."""
        return len(self.entries)

    def __iter__(self) -> Iterator[Sequence[HistoryItem]]:
        """The supersteps; `items()` gives the items."""
        return iter(self.entries)

    @overload
    def __getitem__(self, index: int) -> Sequence[HistoryItem]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[HistoryItem]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.entries[index]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.entries)} supersteps, {self.count()} items>"


def _matches(item: HistoryItem, instruction: Instruction | None, node: str | None) -> bool:
    return (instruction is None or item.instruction == instruction) and (node is None or item.node == node)


ToolsOf = Callable[[], Mapping[str, Sequence[Any]]]
"""Finds tools, by their names."""
Kind = tuple[Instruction | None, str]
"""An instruction and a node."""
Totals = Mapping[Kind, int]
"""How many items there were of each kind. Its size is that of the graph, not of the run."""


def kind_of(record: Record) -> Kind:
    return record.instruction, record.node


def total(totals: Totals, instruction: Instruction | None, node: str | None) -> int:
    return sum(
        amount
        for (of_instruction, of_node), amount in totals.items()
        if (instruction is None or of_instruction == instruction) and (node is None or of_node == node)
    )


class RunHistory(History):
    """What is in memory of one run, or of all runs of one thread."""

    __slots__ = ("_totals",)  # `vars` has `entries` alone, which FastAPI sends where it knows no type

    def __init__(self, records: Sequence[Record], totals: Totals) -> None:
        self.entries = _supersteps(records)
        self._totals = totals

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        wanted = None if instruction is None else find_instruction(instruction)
        return total(self._totals, wanted, node)

    def _copied(self, copier: Copier) -> tuple[Any, ...]:
        entries = [[item.parts(copier) for item in superstep] for superstep in self.entries]
        return entries, dict(self._totals)

    @classmethod
    def _of(cls, entries: Sequence[Sequence[ItemParts]], totals: Totals) -> Self:
        new = cls.__new__(cls)
        new.entries = [[HistoryItem(*parts) for parts in superstep] for superstep in entries]
        new._totals = totals
        return new

    def __copy__(self) -> Self:
        new = self._of((), self._totals)
        new.entries = self.entries
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, self._copied(for_pickle())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._of(*self._copied(for_deep_copy(memo)))


def _supersteps(records: Sequence[Record]) -> list[list[HistoryItem]]:
    """Group by graph and superstep; siblings in task order; what a subgraph did before the node that ran it."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.namespace, record.step), []).append(record)
    inside: dict[str, list[tuple[str, int]]] = {}
    roots: list[tuple[str, int]] = []
    ids = {record.id for record in records}
    for key in groups:
        owner = key[0].rsplit(":", 1)[-1].split("|", 1)[0]
        if key[0] and owner in ids:
            inside.setdefault(owner, []).append(key)
        else:
            roots.append(key)
    ordered: list[list[HistoryItem]] = []

    def lay(key: tuple[str, int]) -> None:
        group = sorted(groups[key], key=lambda record: task_order(record.path))
        for record in group:
            for nested in inside.pop(record.id, ()):
                lay(nested)
        ordered.append([HistoryItem(record) for record in group])

    for key in roots:
        lay(key)
    return ordered


def task_order(path: Any) -> str:
    """A sort key that orders tasks of one superstep as LangGraph applies their writes."""
    if isinstance(path, tuple | list):
        return "~" + ", ".join(task_order(part) for part in path)  # pyright: ignore[reportUnknownVariableType]
    return f"{path:010d}" if isinstance(path, int) else str(path)


class CausalHistory(History):
    """What one node run may know: the committed past, then itself. Never a sibling of its superstep."""

    _tools_of: ToolsOf | None = None
    _cycle: EvaluatorCycle | None = None
    _tallies: str = ""
    _recovered: Sequence[Mapping[str, Mapping[str, float]]] = ()

    def __init__(
        self,
        past: Past,
        record: Record,
        run: Run,
        cycle: EvaluatorCycle | None = None,
        *,
        tallies: str = "",
        evaluations: Mapping[str, EvaluationResult] | None = None,
    ) -> None:
        self._past = past
        self._record = record
        self._own = own = HistoryItem(record, evaluations)
        self._run = run
        self.entries = _CausalEntries(past, own, run)
        if tallies:
            self._tallies = tallies
        if cycle is not None:
            self._cycle = cycle

    @property
    def cycle(self) -> EvaluatorCycle | None:
        return self._cycle

    def give_results(self, evaluations: Mapping[str, EvaluationResult] | None) -> None:
        """From now on the node's own item shows these results; None: those of its record."""
        self._own.give_results(evaluations)

    @property
    def past(self) -> Past:
        """The facts and totals behind this view."""
        return self._past

    def earlier(self) -> Iterator[HistoryItem]:
        return (_item(fact, self._run) for fact in self._past.latest())

    def last(
        self, instruction: Instruction | str | None = None, node: str | None = None
    ) -> HistoryItem | None:
        wanted = None if instruction is None else find_instruction(instruction)
        if _matches(self._own, wanted, node):
            return self._own
        fact = self._past.last(instruction=wanted.qualified if wanted else None, node=node)
        return None if fact is None else _item(fact, self._run)

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        own = self._record
        if instruction is None:
            if node is None:
                return self._past.seq + 1
            return self._past.total("nodes", node) + (own.node == node)
        wanted = instruction if isinstance(instruction, Instruction) else find_instruction(instruction)
        if node is None:
            return self._past.total("instructions", wanted.qualified) + (own.instruction is wanted)
        # A node has one instruction, so its own total is the answer unless it is of another.
        fact = self._past.last(instruction=wanted.qualified, node=node)
        before = self._past.total("nodes", node) if fact is not None else 0
        return before + (own.node == node and own.instruction is wanted)

    def tally(self, policy: str, key: str) -> Tally:
        return self._past.tally(self._tallies + policy, key)

    def tally_keys(self, policy: str) -> Collection[str]:
        return self._past.tally_keys(self._tallies + policy)

    def recovered(self, policy: str, key: str) -> float:
        """What siblings of this superstep, and of the supersteps around it, added to that tally before the run was
        resumed, in this process or in one that crashed. Known to checkers with `recovers = True`, and part of no
        tally until the superstep is committed."""
        policy = self._tallies + policy
        return sum(level.get(policy, {}).get(key, 0) for level in self._recovered)

    def spent(self, policy: str, key: str) -> float:
        """What earlier attempts of this node run, which failed or paused, in this process or another, have used up.
        Known to checkers with `recovers = True`."""
        policy = self._tallies + policy
        return sum(note.get(policy, _NOTHING).get(key) or 0 for note in self._record.spent.values())

    def own_part(self, policy: str, key: str) -> float:
        """How much of `tally` and `recovered` together was counted in this very graph: in a subgraph what this call
        of it had counted before it was resumed."""
        policy = self._tallies + policy
        recovered = self._recovered[0].get(policy, {}).get(key, 0) if self._recovered else 0
        return self._past.own_tally(policy, key) + recovered

    @property
    def tools(self) -> Mapping[str, Sequence[Any]]:
        """The LangChain tools that the node's body holds, by name, as far as they can be found without running it.
        Known to checkers that define `handlers`."""
        return _NOTHING if self._tools_of is None else self._tools_of()

    def give_tools(self, tools_of: ToolsOf | None) -> None:
        """Say where the tools of the node's body are found."""
        self._tools_of = tools_of

    def give_recovered(self, levels: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
        """What siblings had counted, by checker and key: of this graph first, then of those around it."""
        self._recovered = levels

    def denied(self) -> list[HistoryItem]:
        """Node runs of the thread that were denied, as far as this process remembers them, oldest first: also those
        that no checkpoint has, because the denial ended the run with an exception. Another process may know less, so
        it is for evaluators that learn from it, and not for what must be decided alike everywhere."""
        return [HistoryItem(record) for record in self._run.log.denied()]

    @property
    def thread_id(self) -> str | None:
        return self._run.log.thread_id

    @property
    def run_id(self) -> str:
        """Names the run, one input to a graph and all that follows from it, in this process."""
        return self._run.id

    @property
    def own(self) -> HistoryItem:
        return self._own

    def recent(self, count: int) -> list[set[Instruction | None]]:
        """The instructions of the last `count` committed supersteps of this run, oldest first."""
        steps: list[set[Instruction | None]] = []
        key: tuple[str, int] | None = None
        for fact in self._past.newest():
            if "status" in fact:
                continue  # denied or failed: the step was not done
            where = (fact.get("ns", ""), fact["step"])
            if where != key:
                if len(steps) == count:
                    break
                key = where
                steps.append(set())
            steps[-1].add(instruction_of(fact))
        return steps[::-1]

    def first_at(self, instruction: Instruction) -> int | None:
        return self._past.first_at(instruction.qualified)

    def last_at(self, instruction: Instruction) -> int | None:
        return self._past.last_at(instruction.qualified)

    def done_at(self, node: str) -> int | None:
        return self._past.done_at(node)

    @property
    def run_from(self) -> int:
        """How many node runs had been committed when this run began."""
        return self._past.run_from

    def steps_since(self, policy: str, key: str) -> int | None:
        """How many supersteps ago that tally last changed: 1 in the one before this; None if it never did.

        The supersteps of subgraphs count, those that ran side by side once.
        """
        step = self._past.tallied_in(self._tallies + policy, key)
        return None if step is None else self._past.steps - step + 1

    def _copied(self, copier: Copier) -> tuple[Any, ...]:
        record, evaluations = self._own.parts(copier)
        known = {fact["id"]: self._run.log.by_id.get(fact["id"]) for fact in self._past.facts()}
        # Of what is committed the view shows the results that were committed: those of the record wait for nobody.
        records = {
            id: _copied(each, copier, _traced(each))
            for id, each in known.items()
            if each is not None and each.status != "running"
        }
        denied = [_copied(each, copier, _traced(each)) for each in self._run.log.denied()]
        run = _CopiedRun(self._run.id, self._run.log.thread_id, records, denied)
        return self._past, record, run, evaluations, self._tallies, copier(self._recovered)

    @classmethod
    def _of(
        cls,
        past: Past,
        record: Record,
        run: _CopiedRun,
        evaluations: Results | None,
        tallies: str,
        recovered: Sequence[Mapping[str, Mapping[str, float]]],
    ) -> Self:
        new = cls(past, record, cast("Run", run), tallies=tallies, evaluations=evaluations)
        new._recovered = recovered
        return new

    def __copy__(self) -> Self:
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, self._copied(for_pickle())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._of(*self._copied(for_deep_copy(memo)))


share_layout(CausalHistory, "_cycle")


class _CopiedRun:
    """What a copied view still knows of its run and thread."""

    def __init__(
        self, id: str, thread_id: str | None, by_id: Mapping[str, Record], denied: Sequence[Record]
    ) -> None:
        self.id = id
        self.thread_id = thread_id
        self.by_id = by_id
        self._denied = denied

    @property
    def log(self) -> _CopiedRun:
        return self

    def denied(self) -> Sequence[Record]:
        return self._denied


class _CausalEntries(Sequence[Sequence[HistoryItem]]):
    """`entries` of a causal view. `[-1]`, which nearly everybody asks for, builds nothing."""

    __slots__ = ("_newest", "_past", "_run", "_supersteps")

    def __init__(self, past: Past, own: HistoryItem, run: Run) -> None:
        self._past = past
        self._run = run
        self._newest = (own,)
        self._supersteps: list[tuple[HistoryItem, ...]] | None = None

    def _all(self) -> list[tuple[HistoryItem, ...]]:
        if self._supersteps is None:
            grouped: list[tuple[tuple[str, int], list[HistoryItem]]] = []
            for fact in self._past.facts():
                key = (fact.get("ns", ""), fact["step"])
                if not grouped or grouped[-1][0] != key:
                    grouped.append((key, []))
                grouped[-1][1].append(_item(fact, self._run))
            self._supersteps = [tuple(items) for _, items in grouped]
            self._supersteps.append(self._newest)
        return self._supersteps

    @overload
    def __getitem__(self, index: int) -> Sequence[HistoryItem]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[HistoryItem]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if index == -1:
            return self._newest
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self._all()),)


def _item(fact: Fact, run: Run) -> HistoryItem:
    """What is committed of a node run."""
    record = run.log.by_id.get(fact["id"])
    if record is None or record.status == "running":
        record = record_from(fact)
    return HistoryItem(record, evaluations_from(fact))


def record_from(fact: Fact) -> Record:
    """What a fact still knows of a node run whose record is gone. Its states are empty."""
    record = Record(
        fact["id"],
        fact["node"],
        instruction_of(fact),
        fact["step"],
        fact.get("ns", ""),
        fact["at"],
    )
    record.duration = fact.get("took", 0.0)
    record.attempt = fact.get("attempt", 1)
    record.status = fact.get("status", "completed")
    why: Mapping[str, str] = fact.get("why", _NOTHING)
    record.checks = {name: Verdict(kind, why.get(name, "")) for name, kind in fact.get("checks", {}).items()}
    record.routes = dict(fact.get("routes", _NOTHING))
    record.redirected_to = fact.get("to")
    record.notes = fact.get("notes", _NOTHING)
    record.evaluations = evaluations_from(fact)
    return record


def instruction_of(fact: Fact) -> Instruction | None:
    qualified = fact.get("in")
    try:
        return find_instruction(qualified) if qualified else None
    except ValueError:  # of a core that this process does not have
        return None


def evaluations_from(fact: Fact) -> Mapping[str, EvaluationResult]:
    return Results(
        {
            name: EvaluationResult(score, passed, feedback)
            for name, (score, passed, feedback) in fact.get("evals", {}).items()
        }
    )


def with_spent(
    tallies: Mapping[str, Mapping[str, float | None]],
    spent: Mapping[str, Mapping[str, Mapping[str, float | None]]],
) -> dict[str, dict[str, float | None]]:
    """A node run's tallies with what its earlier attempts have used up."""
    sums = {policy: {**amounts} for policy, amounts in tallies.items()}
    for note in spent.values():
        for policy, amounts in note.items():
            of_policy = sums.setdefault(policy, {})
            for key, amount in amounts.items():
                of_policy[key] = (of_policy.get(key) or 0) + (amount or 0)
    return sums


_MAX_FEEDBACK = 500


def _committed(reason: str) -> str:
    """A checker's reason as it is committed. What a failed checker's exception says may be made of the state, which
    may be wiped before the checkpoint is: its class is enough there."""
    if reason.startswith(FAILED):
        reason = FAILED + reason.removeprefix(FAILED).partition(":")[0]
    return reason[:_MAX_FEEDBACK]


def fact_from(record: Record, kinds: Mapping[str, str] | None = None) -> Fact:
    """The fact of a finished node run. `kinds` are its checks by kind, where all allowed it, no router answered, and
    nothing was noted."""
    fact: Fact = {
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
    if kinds is not None:
        if kinds:
            fact["checks"] = kinds
        return fact
    if record.status != "completed":
        fact["status"] = record.status
    if record.checks:
        fact["checks"] = {name: verdict.kind for name, verdict in record.checks.items()}
        if why := {name: _committed(v.reason) for name, v in record.checks.items() if v.reason}:
            fact["why"] = why
    if record.notes:
        fact["notes"] = {name: remark[:_MAX_FEEDBACK] for name, remark in record.notes.items()}
    if record.redirected_to is not None:
        fact["to"] = record.redirected_to
    if record.redirected_by is not None:
        fact["by"] = record.redirected_by
    if record.routes and any(record.routes.values()):
        fact["routes"] = {name: target for name, target in record.routes.items() if target is not None}
    return fact


def facts_of(results: Mapping[str, EvaluationResult]) -> dict[str, list[Any]]:
    """Evaluation results as a fact holds them."""
    facts: dict[str, list[Any]] = {}
    for name, result in results.items():
        facts[name] = [float(result.score), result.passed, result.feedback[:_MAX_FEEDBACK]]
    return facts
