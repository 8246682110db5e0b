"""The causal view: the committed past of one node run, and the node run itself."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, overload

from arbiter._values.copies import Copier, for_deep_copy, for_pickle
from arbiter._values.once import Once
from arbiter.history._facts import KEEP_TALLIES, RunFact
from arbiter.history._items import History, HistoryItem, ToolsOf, copied, matches, traced, wanted_instruction
from arbiter.history._past import Past, Tally
from arbiter.history._record import Record, States, evaluations_from, record_from
from arbiter.history._recorder import Run
from arbiter.history._results import NOTHING, EvaluationResults, Lazy, Results
from arbiter.instructions import Instruction, recorded_instruction

_log = logging.getLogger("arbiter")
_forgetful = Once()
"""The checkers of which a dropped tally was reported."""


class CausalHistory(History):
    """The committed past of one node run, then the run itself. Never a sibling of its superstep."""

    _tools_of: ToolsOf | None = None
    _recovered: Sequence[Mapping[str, Mapping[str, float]]] = ()
    inside: Past | None = None
    """The past of the graphs and functions in the node's body, for checkers that observe its end."""

    def __init__(
        self,
        past: Past,
        record: Record,
        run: Run | CopiedRun,
        group: object = None,
        *,
        tallies: str = "",
        evaluations: EvaluationResults | None = None,
        states: States | None = None,
    ) -> None:
        self._past = past
        self._record = record
        self._own = own = HistoryItem(record, evaluations, states)
        self._run = run
        self.entries = _CausalEntries(past, own, run)
        self._tallies = tallies
        self._group = group

    @property
    def group(self) -> object:
        return self._group

    @property
    def past(self) -> Past:
        """The facts and totals behind this view."""
        return self._past

    def earlier(self) -> Iterator[HistoryItem]:
        return (_item(fact, self._run) for fact in self._past.newest())

    def last(
        self, instruction: Instruction | str | None = None, node: str | None = None
    ) -> HistoryItem | None:
        wanted = wanted_instruction(instruction)
        if matches(self._own, wanted, node):
            return self._own
        fact = self._past.last(instruction=wanted.qualified if wanted else None, node=node)
        return None if fact is None else _item(fact, self._run)

    def count(self, instruction: Instruction | str | None = None, node: str | None = None) -> int:
        own = self._record
        wanted = wanted_instruction(instruction)
        if wanted is None:
            if node is None:
                return self._past.seq + 1
            return self._past.total("nodes", node) + (own.node == node)
        if node is None:
            return self._past.total("instructions", wanted.qualified) + (own.instruction is wanted)
        # A node has one instruction, so its own total is the answer unless it is of another.
        fact = self._past.last(instruction=wanted.qualified, node=node)
        before = self._past.total("nodes", node) if fact is not None else 0
        return before + (own.node == node and own.instruction is wanted)

    def tally(self, policy: str, key: str) -> Tally:
        name = self._tallies + policy
        found = self._past.tally(name, key)
        if not found.at and self._past.may_forget(name) and _forgetful.is_new(name):
            _log.warning(
                "checker %r counts under %s keys or more, of which a thread keeps the %s that changed last: the count "
                "of an older key is dropped, and begins again at 0. Count under fewer keys, or keep the counts in a "
                "store of your own. (This is reported once.)",
                policy,
                KEEP_TALLIES,
                KEEP_TALLIES,
            )
        return found

    def tally_keys(self, policy: str) -> Collection[str]:
        return self._past.tally_keys(self._tallies + policy)

    def recovered(self, policy: str, key: str) -> float:
        """The amount that siblings of this superstep and of the supersteps around it added to the tally
        before a resume.

        The run may have been interrupted in this process or have crashed in another. Only checkers with
        `reads_unfinished = True` get it. It becomes part of the tally when the superstep is committed.
        """
        policy = self._tallies + policy
        return sum(level.get(policy, {}).get(key, 0) for level in self._recovered)

    def spent(self, policy: str, key: str) -> float:
        """The amount that earlier attempts of this node run, failed or paused, in this process or another,
        have used up.

        Only checkers with `reads_unfinished = True` get it.
        """
        policy = self._tallies + policy
        return sum(note.get(policy, NOTHING).get(key) or 0 for note in self._record.spent.values())

    def own_part(self, policy: str, key: str) -> float:
        """The part of `tally` and `recovered` together that was counted in this very graph.

        In a subgraph this is what the current call had counted before it was resumed.
        """
        policy = self._tallies + policy
        recovered = self._recovered[0].get(policy, {}).get(key, 0) if self._recovered else 0
        return self._past.own_tally(policy, key) + recovered

    @property
    def tools(self) -> Mapping[str, Sequence[Any]]:
        """The LangChain tools that the node's body holds, by name, as far as they can be found without
        running it.

        Only checkers that define `handlers` get them.
        """
        return NOTHING if self._tools_of is None else self._tools_of()

    def give_tools(self, tools_of: ToolsOf | None) -> None:
        """Set the function that finds the tools of the node's body."""
        self._tools_of = tools_of

    def give_recovered(self, levels: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
        """Set the amounts that siblings had counted, by checker and key: this graph first, then the graphs
        around it.
        """
        self._recovered = levels

    def denied(self) -> list[HistoryItem]:
        """The denied node runs of the thread that this process remembers, oldest first.

        They include runs that no checkpoint has, because the denial ended the run with an exception. Another
        process may know fewer of them, so evaluators may learn from them, but no decision should depend on
        them.
        """
        return [HistoryItem(record) for record in self._run.log.denied()]

    def denials(self) -> list[HistoryItem]:
        """The items in which a checker denied, the own item whatever its verdicts, and those of `denied`."""
        # An item is built only for a denial: an evaluator asks in each step, and most runs have none.
        committed = [
            _item(fact, self._run)
            for fact in self._past.facts()
            if "deny" in fact.get("checks", NOTHING).values()
        ]
        return [*committed, self._own, *self.denied()]

    @property
    def thread_id(self) -> str | None:
        return self._run.log.thread_id

    @property
    def is_saved(self) -> bool:
        """True if a checkpointer keeps the thread."""
        return self._run.saved

    @property
    def run_id(self) -> str:
        """The name of the run in this process. A run is one input to a graph and everything that follows from
        it.
        """
        return self._run.id

    @property
    def run_uuid(self) -> str:
        """The uuid of the run, as in `execution.run_id` of a listener. Other processes that resume the run have
        the same one if a listener was there when its input was written.
        """
        return self._run.uuid

    @property
    def item(self) -> HistoryItem:
        return self._own

    def recent(self, count: int) -> list[set[Instruction | None]]:
        """The instructions of the last `count` committed supersteps of this run, oldest first."""
        steps: list[set[Instruction | None]] = []
        key: tuple[str, int] | None = None
        for fact in self._past.newest(of_run=True):
            if "status" in fact:
                continue  # denied or failed: the step was not done
            where = (fact.get("ns", ""), fact["step"])
            if where != key:
                if len(steps) == count:
                    break
                key = where
                steps.append(set())
            steps[-1].add(recorded_instruction(fact.get("in")))
        return steps[::-1]

    def first_at(self, instruction: Instruction) -> int | None:
        return self._past.first_at(instruction.qualified)

    def last_at(self, instruction: Instruction) -> int | None:
        return self._past.last_at(instruction.qualified)

    def done_at(self, node: str) -> int | None:
        return self._past.done_at(node)

    @property
    def run_from(self) -> int:
        """The number of node runs that had been committed when this run began."""
        return self._past.run_from

    def steps_since(self, policy: str, key: str) -> int | None:
        """The number of supersteps since that tally last changed: 1 for the previous one, None if it never
        changed.

        Supersteps of subgraphs count; those that ran side by side count once.
        """
        step = self._past.tallied_in(self._tallies + policy, key)
        return None if step is None else self._past.steps - step + 1

    def copied(self, copier: Copier) -> tuple[Any, ...]:
        record, evaluations = self._own.parts(copier)
        known = {fact["id"]: self._run.log.by_id.get(fact["id"]) for fact in self._past.facts()}
        # The view shows committed results of committed runs. So the results of the record are not waited for.
        records = {
            id: copied(each, copier, traced(each))
            for id, each in known.items()
            if each is not None and each.status != "running"
        }
        denied = [copied(each, copier, traced(each)) for each in self._run.log.denied()]
        run = CopiedRun(
            self._run.id, self._run.uuid, self._run.saved, self._run.log.thread_id, records, denied
        )
        return self._past, record, run, evaluations, self._tallies, copier(self._recovered)

    @classmethod
    def _of(
        cls,
        past: Past,
        record: Record,
        run: CopiedRun,
        evaluations: Results | None,
        tallies: str,
        recovered: Sequence[Mapping[str, Mapping[str, float]]],
    ) -> Self:
        new = cls(past, record, run, tallies=tallies, evaluations=evaluations)
        new._recovered = recovered
        return new

    def __copy__(self) -> Self:
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, self.copied(for_pickle())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._of(*self.copied(for_deep_copy(memo)))


@dataclass(eq=False)
class CopiedRun:
    """The part of its run and thread that a view keeps without them."""

    id: str
    uuid: str
    saved: bool
    thread_id: str | None
    by_id: Mapping[str, Record]
    _denied: Sequence[Record]

    @property
    def log(self) -> CopiedRun:
        return self

    def denied(self) -> Sequence[Record]:
        return self._denied


_CopiedRun = CopiedRun  # its name in older pickles


class _CausalEntries(Sequence[Sequence[HistoryItem]]):
    """The `entries` of a causal view. `[-1]`, by far the most frequent access, builds nothing."""

    __slots__ = ("_newest", "_past", "_run", "_supersteps")

    def __init__(self, past: Past, own: HistoryItem, run: Run | CopiedRun) -> None:
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


def _item(fact: RunFact, run: Run | CopiedRun) -> HistoryItem:
    """The item of a committed node run."""
    record = run.log.by_id.get(fact["id"])
    if record is None or record.status == "running":
        record = record_from(fact)
    results = evaluations_from(fact)
    if isinstance(record.evaluations, Lazy):
        results.absent = partial(record.evaluations.report_uncommitted, node=record.node)
    return HistoryItem(record, results)
