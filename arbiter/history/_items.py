"""The history: every node run, and the decisions about it.

A `Record` is the mutable account that the lifecycle keeps while a node runs. A `HistoryItem` is its read-only
view, for everybody else. A `History` is a sequence of supersteps of items: `RunHistory` holds the runs in
memory, `CausalHistory` the committed past of one node run and the run itself.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast, overload

from arbiter._values.copies import DICT, DICTS, Copier, Exported, for_deep_copy, for_pickle, jsonable
from arbiter._values.states import FrozenDict, SeenDict, View
from arbiter.errors import ArbiterWarning, UnknownInstructionError, callers, nearest
from arbiter.history._past import NO_TALLY, Tally, task_order
from arbiter.history._record import (
    UNSEEN,
    Answer,
    ExecutionInfo,
    PolicyDecision,
    Position,
    Question,
    Record,
    States,
    Status,
    Totals,
    kind_of,
    total,
)
from arbiter.history._results import NOTHING, EvaluationResults, Results, settled
from arbiter.instructions import Instruction, find_instruction
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, Outcome, Verdict

if TYPE_CHECKING:
    from rich.console import Console


def wanted_instruction(instruction: Instruction | str | None) -> Instruction | None:
    """The instruction by which items are looked for. The error for a text that is none names the way to a node."""
    try:
        return None if instruction is None else find_instruction(instruction)
    except UnknownInstructionError as error:
        remedy = f"If it is a node, write node={instruction!r}."
        raise UnknownInstructionError(f"{error} {remedy}", name=error.name) from None


class HistoryItem(Exported, method="to_dict", returns=DICT):
    """One node run. Read-only: states are views that refuse changes, and objects inside them are copies.

    `status` is `running`, `completed`, `denied`, `failed`, `interrupted` or `cancelled`. `attempt` counts
    retries and resumes of the same task, from 1. `duration` is in seconds; `timestamp` (aware, UTC) is the
    start. `evaluation_results` is lazy: reading one name waits for that evaluator, iterating waits for all.
    `errors` maps each contract that itself failed to the problem; `notes` records caps that were reached and
    decisions of a human; `error` is the exception of the node itself.
    """

    __slots__ = ("_evaluations", "_input", "_output", "_record", "_states", "_watched")

    def __init__(
        self,
        record: Record,
        evaluations: EvaluationResults | None = None,
        states: States | None = None,
    ) -> None:
        self._record = record
        self._states: States = record if states is None else states
        self._evaluations = evaluations
        self._input: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = UNSEEN
        self._output: tuple[Mapping[str, Any] | None, Mapping[str, Any]] = UNSEEN
        self._watched = False

    def give_results(self, evaluations: EvaluationResults | None) -> None:
        """Show these results from now on. With None, show those of the record again, also to later readers."""
        self._evaluations = evaluations
        if evaluations is None:
            self._input = self._output = UNSEEN

    @property
    def record(self) -> Record:
        """The record that this item shows. For Arbiter's own modules: it is no promise, and not to be changed."""
        return self._record

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
        """True if a `Send` made the input of this node run; the input is then not the graph's state."""
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
        state = self._states.input
        of, shown = self._input
        if of is not state:
            shown = SeenDict(state) if self._watched else _shown(state)
            self._input = state, shown
        return shown

    @property
    def output_state(self) -> Mapping[str, Any]:
        state = self._states.output
        of, shown = self._output
        if of is not state:
            shown = _shown(state)
            self._output = state, shown
        return shown

    def watch(self) -> None:
        """From now on remember which parts of the input are read."""
        self._watched = True

    def seen(self) -> SeenDict | None:
        """The parts of the input that were read, or None if no code read it. Stops watching."""
        shown = self._input[1]
        self._watched, self._input = False, UNSEEN
        return shown if type(shown) is SeenDict else None

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(round(self._record.started, 6), UTC)

    @property
    def duration(self) -> float:
        return round(self._record.duration, 9)  # further digits measure nothing

    @property
    def check_policy_results(self) -> Mapping[str, Verdict]:
        return MappingProxyType(dict(self._record.checks))

    @property
    def route_policy_results(self) -> Mapping[str, str | None]:
        return MappingProxyType(dict(self._record.routes))

    @property
    def evaluation_results(self) -> EvaluationResults:
        return self._record.evaluations if self._evaluations is None else self._evaluations

    @property
    def read_results(self) -> Mapping[str, EvaluationResult | None]:
        """The evaluation results that some code has read so far, None for an evaluator that failed. Does not
        wait.
        """
        results = self.evaluation_results
        read: Mapping[str, EvaluationResult | None] = getattr(results, "outcomes", results)
        return read

    @property
    def evaluation_errors(self) -> Mapping[str, str]:
        """The evaluators that gave no result, with the reason. Waits for all of them."""
        errors: Mapping[str, str] = getattr(self.evaluation_results, "errors", NOTHING)
        return errors

    @property
    def evaluation_outcomes(self) -> Mapping[str, Outcome]:
        """How each evaluation ended: "scored", or the reason why there is no number. Waits for all of them.

        "not_applicable" stands for an evaluator that had nothing to judge, "abstained" for a judge that gave
        no usable answer. A history that another process restored has the outcomes of results alone.
        """
        results = self.evaluation_results
        ended: Mapping[str, Outcome] = getattr(results, "ended", NOTHING)
        return MappingProxyType(dict(ended))

    @property
    def evaluation_versions(self) -> Mapping[str, str]:
        """The version of the evaluator behind each result; see `NodeEvaluator.version`. Waits for all of them.

        Results of different versions are not comparable. A result of an older checkpoint has none.
        """
        versions: Mapping[str, str] = getattr(self.evaluation_results, "versions", NOTHING)
        return MappingProxyType(dict(versions))

    def evaluation_error(self, evaluator: str) -> str | None:
        """The reason why `evaluator` gave no result, or None if it gave one or does not judge this node.
        Waits for this evaluator only.
        """
        error_of = getattr(self.evaluation_results, "error_of", None)
        return None if error_of is None else error_of(evaluator)

    @property
    def evaluator_trace(self) -> Sequence[EvaluatorTrace]:
        """The stages that the evaluators of a group went through; those that did not run are listed with the
        reason.

        Does not wait: while a group runs, its evaluators are `pending`. Empty if another process restored the
        history.
        """
        trace: Sequence[EvaluatorTrace] = getattr(self._record.evaluations, "trace", ())
        return trace

    @property
    def error(self) -> str | None:
        return self._record.error

    @property
    def error_types(self) -> tuple[str, ...]:
        """The class of the node's exception and its base classes, as "module.Class".

        Empty if the node did not fail or if another process restored the history.
        """
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
        """The correction gate's account of how the output came about. Empty if another process restored the
        history.
        """
        return FrozenDict(self._record.gating)

    @property
    def redirected_to(self) -> str | None:
        return self._record.redirected_to

    @property
    def execution(self) -> ExecutionInfo | None:
        """The call of the graph that this node run belongs to. Known to listeners only; None otherwise."""
        return self._record.execution

    @property
    def position(self) -> Position | None:
        """The place of this node run among the committed ones. Known to listeners only; None otherwise."""
        return self._record.position

    @property
    def decision(self) -> PolicyDecision:
        """The decision before the node: the policy that denied or asked, and the consequence."""
        account = self._record.account
        return ALLOWED if account is None or account.decision is None else account.decision

    @property
    def questions(self) -> Sequence[Question]:
        """The questions that a human was asked in this attempt."""
        return () if self._record.account is None else self._record.account.questions

    @property
    def answers(self) -> Sequence[Answer]:
        """The answers that this attempt used, each with its question, by whom and when."""
        return () if self._record.account is None else self._record.account.answers

    @property
    def asked_about(self) -> Mapping[str, Any] | None:
        """The input before a human edited it; None if it was not edited."""
        account = self._record.account
        return None if account is None or account.asked_about is None else FrozenDict(account.asked_about)

    @property
    def drafts(self) -> Sequence[tuple[Mapping[str, Any], str]]:
        """The drafts that a correction gate sent back in this attempt, each with the feedback on it."""
        return () if self._record.account is None else self._record.account.drafts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data; values without a JSON form become text. Waits for the evaluations."""
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
            "input_state": jsonable(self._states.input),
            "output_state": jsonable(self._states.output),
            "check_policy_results": {
                name: {"kind": verdict.kind, "reason": jsonable(verdict.reason)}
                for name, verdict in self._record.checks.items()
            },
            "route_policy_results": dict(self._record.routes),
            "evaluation_results": {
                name: {
                    "score": float(result.score),
                    "passed": result.passed,
                    "feedback": jsonable(result.feedback),
                    "metadata": jsonable(result.metadata),
                }
                for name, result in self.evaluation_results.items()
            },
            "evaluation_errors": jsonable(self.evaluation_errors),
            "evaluation_outcomes": dict(self.evaluation_outcomes),
            "evaluator_trace": [
                {
                    "name": part.name,
                    "stage": part.stage,
                    "status": part.status,
                    "detail": jsonable(part.detail),
                }
                for part in self.evaluator_trace
            ],
            "corrections": jsonable(self.corrections),
            "gating": jsonable(self._record.gating),
            "error": jsonable(self.error),
            "errors": jsonable(self._record.errors),
            "notes": jsonable(self._record.notes),
            "redirected_to": self.redirected_to,
        }

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The pairs of `to_dict`, as a pydantic model yields its fields: `dict(item)` equals
        `item.to_dict()`.
        """
        return iter(self.to_dict().items())

    def parts(self, copier: Copier) -> ItemParts:
        """Copies of the parts of this item, independent of the run that goes on. Waits for the evaluations."""
        record, evaluations = self._record, self._evaluations
        if evaluations is None:
            new, results = copied(record, copier, settled(record.evaluations, copier)), None
        else:
            new, results = copied(record, copier, traced(record)), settled(evaluations, copier)
        if self._states is not record:
            new.input, new.output = copier(self._states.input), copier(self._states.output)
        return new, results

    def __reduce__(self) -> tuple[Any, ...]:
        return HistoryItem, self.parts(for_pickle())

    def __copy__(self) -> HistoryItem:
        return HistoryItem(self._record, self._evaluations, self._states)

    def __deepcopy__(self, memo: dict[int, Any]) -> HistoryItem:
        return HistoryItem(*self.parts(for_deep_copy(memo)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HistoryItem) and other._record is self._record

    def __hash__(self) -> int:
        return id(self._record)

    def __repr__(self) -> str:
        kind = f" {self.instruction}" if self.instruction else ""
        return f"<HistoryItem {self.node!r}{kind} {self.status}>"


def _shown(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", state) if isinstance(state, View) else FrozenDict(state)


ItemParts = tuple[Record, Results | None]
ALLOWED = PolicyDecision()
_NOT_COPIED = frozenset(
    {"raw", "drafts", "sharers", "checks", "evaluations", "account", "execution", "position"}
)
"""Fields of a record that only a continuing run needs, and fields that are copied in a way of their own."""


def traced(record: Record) -> Results:
    """The trace of the record's evaluations without their results. Does not wait."""
    return Results({}, trace=getattr(record.evaluations, "trace", ()))


def copied(record: Record, copier: Copier, evaluations: Results) -> Record:
    new = Record(record.id, record.node, record.instruction, record.step, record.namespace, record.started)
    for field in fields(Record):
        if field.name not in _NOT_COPIED:
            setattr(new, field.name, copier(getattr(record, field.name)))
    new.checks = {
        name: Verdict(verdict.kind, verdict.reason, copier(verdict.payload))
        for name, verdict in record.checks.items()
    }
    new.evaluations = evaluations
    return new


class History(Exported, method="to_dicts", returns=DICTS):
    """Supersteps of items, oldest first. Items that ran at the same time share a superstep."""

    entries: Sequence[Sequence[HistoryItem]] = ()
    clock: Callable[[], float] = staticmethod(time.time)
    """The clock of the `ArbiterOS`, in seconds since 1970."""

    @property
    def now(self) -> datetime:
        """The current time, aware and in UTC, by the clock of the `ArbiterOS`.

        Contracts read the time here and not from the system, so that tests and replays can set it.
        """
        return datetime.fromtimestamp(self.clock(), UTC)

    @property
    def group(self) -> object:
        """The `ArbiterOS`'s group of evaluators in the view of a node run; None in any other history."""
        return None

    @property
    def item(self) -> HistoryItem:
        """The newest item: in the history that a contract gets, the node's own.

        It is `history.entries[-1][-1]`. Raises `IndexError` for a history without items.
        """
        if not self.entries:
            raise IndexError(
                "the history has no items, because no governed node has run. Run a graph that govern() returned, "
                "and name its thread: arbiter_os.history_of(thread_id=...)."
            )
        return self.entries[-1][-1]

    def items(self) -> Iterator[HistoryItem]:
        """All items, oldest first."""
        for superstep in self.entries:
            yield from superstep

    def earlier(self) -> Iterator[HistoryItem]:
        """The items before the newest superstep, newest first.

        In the view of a node run these are all committed items. Each is built only when the iteration reaches
        it.
        """
        for superstep in reversed(self.entries[:-1]):
            yield from reversed(superstep)

    def last(
        self, instruction: Instruction | str | None = None, node: str | None = None
    ) -> HistoryItem | None:
        """The newest item with this instruction and this node, or None. An argument that is None matches
        every item.

        `arbiter_os.history` warns of a node that no governed graph has. A contract's view does not, because a
        rule may serve several graphs.
        """
        wanted = wanted_instruction(instruction)
        for superstep in reversed(self.entries):
            for item in reversed(superstep):
                if matches(item, wanted, node):
                    return item
        return None

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        """The number of items with this instruction and this node, whatever their status.

        In a run or a view the count includes items that are no longer kept, and takes constant time if only
        one of the two is given.
        """
        wanted = wanted_instruction(instruction)
        return sum(matches(item, wanted, node) for item in self.items())

    def tally(self, policy: str, key: str) -> Tally:
        """The committed sum of what the checker `policy` has counted under `key` in `observe`.

        Checkers, routers and evaluators see tallies, in constant time; in any other history every tally is 0.
        """
        return NO_TALLY

    def tally_keys(self, policy: str) -> Collection[str]:
        """The keys under which the checker `policy` has a tally, in no particular order."""
        return ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """All items as plain data; see `HistoryItem.to_dict`. `superstep` counts from 1."""
        return [
            {"superstep": number, **item.to_dict()}
            for number, superstep in enumerate(self.entries, 1)
            for item in superstep
        ]

    def to_jsonl(self) -> str:
        """One JSON object per item, one item per line."""
        lines = (json.dumps(item, ensure_ascii=False, allow_nan=False) + "\n" for item in self.to_dicts())
        # Half of a surrogate pair, as in the name of a rule, has no UTF-8 form; JSON has an escape for it.
        return "".join(lines).encode("utf-8", "backslashreplace").decode("utf-8")

    def pprint(self, console: Console | None = None) -> None:
        """Print the history for a human; arbiter/history/_text.py describes the format."""
        from arbiter.history._rendering import pprint_history

        pprint_history(self, console)

    def _repr_html_(self) -> str:
        from arbiter.history._rendering import history_html

        return history_html(self)

    def __len__(self) -> int:
        """The number of supersteps."""
        return len(self.entries)

    def __iter__(self) -> Iterator[Sequence[HistoryItem]]:
        """The supersteps. Call `items()` to iterate over the items."""
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


def matches(item: HistoryItem, instruction: Instruction | None, node: str | None) -> bool:
    return (instruction is None or item.instruction == instruction) and (node is None or item.node == node)


ToolsOf = Callable[[], Mapping[str, Sequence[Any]]]
"""Returns the tools of a node's body, by name."""


NodesOf = Callable[[], Collection[str]]


class RunHistory(History):
    """The part of one run, or of all runs of one thread, that is in memory."""

    # `vars` has `entries` alone, which FastAPI serialises for an unknown type.
    __slots__ = ("_forgotten", "_known_totals", "_nodes")

    def __init__(
        self, records: Sequence[Record], forgotten: Totals, more: Sequence[Sequence[Record]] = ()
    ) -> None:
        """`forgotten` counts the records that are no longer kept. `more` are those of further runs, which share no
        superstep: without a checkpointer, each run of a thread begins with the first one."""
        self.entries = [superstep for run in (records, *more) for superstep in _supersteps(run)]
        self._forgotten = forgotten
        self._known_totals: Totals | None = None
        self._nodes: NodesOf | None = None

    @property
    def _totals(self) -> Totals:
        """The number of items of each kind, counted when it is first asked for."""
        if self._known_totals is None:
            totals = Counter(kind_of(item.record) for item in self.items())
            totals.update(self._forgotten)
            self._known_totals = totals
        return self._known_totals

    def give_nodes(self, nodes: NodesOf) -> None:
        """Set the function that returns the names of all nodes that may occur."""
        self._nodes = nodes

    def last(
        self, instruction: Instruction | str | None = None, node: str | None = None
    ) -> HistoryItem | None:
        found = super().last(instruction, node)
        if found is None:
            self._report_unknown(node)
        return found

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        wanted = wanted_instruction(instruction)
        found = total(self._totals, wanted, node)
        if not found:
            self._report_unknown(node)
        return found

    def _report_unknown(self, node: str | None) -> None:
        names = () if node is None or self._nodes is None else self._nodes()
        if names and node not in names:
            warnings.warn(
                f"no governed graph has a node {node!r}.{nearest(str(node), names)} "
                f"Nodes: {', '.join(sorted(names))}.",
                ArbiterWarning,
                stacklevel=callers(),
            )

    def copied(self, copier: Copier) -> tuple[Any, ...]:
        entries = [[item.parts(copier) for item in superstep] for superstep in self.entries]
        return entries, dict(self._totals)

    @classmethod
    def _of(cls, entries: Sequence[Sequence[ItemParts]], totals: Totals) -> Self:
        new = cls.__new__(cls)
        new.entries = [[HistoryItem(*parts) for parts in superstep] for superstep in entries]
        new._forgotten, new._known_totals = {}, totals
        new._nodes = None
        return new

    def __copy__(self) -> Self:
        new = self._of((), self._totals)
        new.entries = self.entries
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, self.copied(for_pickle())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._of(*self.copied(for_deep_copy(memo)))


def _supersteps(records: Sequence[Record]) -> list[list[HistoryItem]]:
    """Group records by graph and superstep. Siblings are in task order; a subgraph comes before the node that
    ran it.
    """
    groups: dict[tuple[str, int], list[Record]] = {}
    nested = False
    for record in records:
        graph = record.graph
        nested = nested or graph != ""
        groups.setdefault((graph, record.step), []).append(record)
    for group in groups.values():
        if len(group) > 1:
            group.sort(key=lambda record: task_order(record.path))
    ordered = _nested_first(groups) if nested else groups.values()
    return [[HistoryItem(record) for record in group] for group in ordered]


def _nested_first(groups: Mapping[tuple[str, int], Sequence[Record]]) -> list[Sequence[Record]]:
    """The groups, those of a subgraph before that of the node that ran it."""
    inside: dict[str, list[tuple[str, int]]] = {}
    roots: list[tuple[str, int]] = []
    ids = {record.id for group in groups.values() for record in group}
    for key, group in groups.items():
        owner = group[0].owner
        if owner not in ids:
            # It is not known of a stored record, or is of an earlier attempt: the namespace names the task.
            owner = key[0].rsplit(":", 1)[-1].split("|", 1)[0]
        if owner in ids:
            inside.setdefault(owner, []).append(key)
        else:
            roots.append(key)
    ordered: list[Sequence[Record]] = []

    def lay(key: tuple[str, int]) -> None:
        for record in groups[key]:
            for nested in inside.pop(record.id, ()):
                lay(nested)
        ordered.append(groups[key])

    for key in roots:
        lay(key)
    return ordered
