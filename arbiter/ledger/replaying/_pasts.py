"""The recorded attempts of a thread, and the causal past of each, made again from the ledger.

An attempt names the last fact that its graph had committed before its superstep (`after`) and how many there
were (`past`). The attempts of one superstep, a `Superstep`, have one checkpoint, or without a checkpointer one
step of one call. The past of a superstep is that of the superstep before it, and the facts of that one. If the
number is another one, the past is not known.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any

from arbiter.history._facts import NESTED_RUN, RUN, RunFact
from arbiter.history._packing import is_packed_id
from arbiter.history._past import Past, task_order
from arbiter.history._record import Calling, Record
from arbiter.ledger._entries import saved_starts
from arbiter.ledger._exporting import RecordedThread
from arbiter.ledger._stored import record_of


@dataclass(slots=True, eq=False)
class Superstep:
    """The attempts of one graph that ran at one checkpoint."""

    attempts: list[Attempt] = field(default_factory=list["Attempt"])
    past: Past | None = None
    """The past of its graph; None if it is not known."""
    is_known: bool = False
    """True once `past` has been looked for."""
    ends: dict[tuple[int, ...], Past] = field(default_factory=dict[tuple[int, ...], Past])
    """The past of the next superstep, by the attempts whose facts were committed."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One recorded attempt of a node run."""

    number: int
    """Its place among the entries of the thread."""
    body: Mapping[str, Any]
    record: Record
    """The account of it as it was recorded."""
    contents: Mapping[str, Any]
    lost: str | None
    """The reason why its contents are not there, if they are not."""
    committed: bool
    """True if its graph committed a fact of it."""
    superstep: Superstep = field(default_factory=Superstep)
    caller: Attempt | None = None
    """The attempt in whose body it ran."""
    inner: list[Attempt] = field(default_factory=list["Attempt"])
    """The attempts that ran in its body."""
    next: float = math.inf
    """The first start of those that end later, of the same execution, and may run the same graph that keeps its
    state."""
    calls: list[Attempt] = field(default_factory=list["Attempt"])
    """The calls of governed functions among these, in the order in which they began."""
    place: int = 0
    """Its place among the calls of its caller."""
    again: Attempt | None = None
    """The earlier call that a LangGraph task which began again has made again."""
    is_last: bool = True
    """True if the task was not tried again in the same call of the graph."""
    visit: Any = None
    """The `ReplayedRun` that stands for it, once it has begun; None if its past is not known."""
    begun: bool = False
    over: bool = False
    fact: RunFact | None = None

    @property
    def task(self) -> str:
        return self.record.id

    @property
    def execution(self) -> str:
        found: str = self.body.get("execution", "")
        return found

    @property
    def run(self) -> str:
        found: str = self.body.get("run", "")
        return found

    @property
    def ended(self) -> float:
        return self.record.started + self.record.duration

    @property
    def order(self) -> tuple[float, int]:
        """When it began, among the attempts of the thread."""
        return self.record.started, self.number

    @property
    def is_called(self) -> bool:
        """True for a governed function, which has no graph."""
        return "graph" not in self.body and not self.is_recovered

    @property
    def calling(self) -> Calling | None:
        """The LangGraph task that called this governed function, if no governed node did. None also in an entry of a
        version that did not record it.
        """
        found: Sequence[Any] | None = self.body.get("calling")
        return None if found is None else Calling(*found)

    @property
    def is_recovered(self) -> bool:
        """True if only its fact is known, from a checkpoint."""
        found: bool = self.body["kind"] == "recovered"
        return found


class Pasts:
    """The attempts of one recorded thread and their pasts.

    `end` is called with each attempt whose fact is needed, unless it is over.
    """

    def __init__(self, thread: RecordedThread, keep: int, end: Callable[[Attempt], None]) -> None:
        self._keep = keep
        self._end = end
        self.configs: dict[str, Mapping[str, Any] | None] = {}
        """The config of each call of a graph."""
        self.attempts: list[Attempt] = []
        self._tasks: dict[str, list[Attempt]] = {}
        self._bodies: dict[tuple[str, str], list[Attempt]] = {}
        """Those in whose bodies a graph that keeps its state may have run, by execution and its namespace."""
        self._supersteps: dict[tuple[Any, ...], Superstep] = {}
        self._begun_at: dict[tuple[str, int], list[Superstep]] = {}
        """Those in which an attempt began then, by namespace and hundredth of a second."""
        self._read(thread)

    def _read(self, thread: RecordedThread) -> None:
        parsed = [row.parsed() for row in thread.rows]
        gone = {body["kind"] for body, _ in parsed if body["kind"] in ("erasure", "pruned")}
        lost = "erased" if "erasure" in gone else "removed after its time" if gone else "not kept"
        judged: dict[str, list[tuple[Any, Any]]] = {}
        for body, contents in parsed:
            if body["kind"] == "judged":
                judged.setdefault(body["of"], []).append((body, contents))
            elif body["kind"] == "execution":
                self.configs[body["execution"]] = None if contents is None else contents.get("config")
        for number, (body, contents) in enumerate(parsed):
            if body["kind"] not in ("item", "recovered"):
                continue
            record = record_of(body, contents, judged.get(body["key"], ()))
            attempt = Attempt(
                number=number,
                body=body,
                record=record,
                contents=contents or {},
                lost=lost if contents is None else None,
                committed=(
                    body["kind"] == "recovered"
                    or record.status == "completed"
                    or record.redirected_to is not None
                ),
            )
            self.attempts.append(attempt)
            self._tasks.setdefault(record.id, []).append(attempt)
        for tried in self._tasks.values():
            tried.sort(key=_order)
            for one, later in pairwise(tried):
                one.is_last = one.execution != later.execution
            for each in tried:
                self._bodies.setdefault((each.execution, _kept_inside(each.record)), []).append(each)
        for inside in self._bodies.values():
            inside.sort(key=_number)
            for each, later in reversed([*pairwise(inside)]):
                each.next = min(later.record.started, later.next)
        shared: dict[tuple[Any, ...], Superstep] = {}
        # The checkpoint of what was recovered is not known: it joins its siblings by its place.
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.is_recovered):
            if (caller := self._caller(attempt)) is not None:
                attempt.caller = caller
                caller.inner.append(attempt)
            place = attempt.record.namespace, attempt.record.step, attempt.body.get("past")
            is_placed = attempt.is_recovered and place[2] is not None
            known = shared.get(place, attempt.superstep) if is_placed else attempt.superstep
            attempt.superstep = self._supersteps.setdefault(_ran_with(attempt), known)
            attempt.superstep.attempts.append(attempt)
            shared.setdefault(place, attempt.superstep)
        for attempt in self.attempts:
            attempt.calls = sorted((each for each in attempt.inner if each.is_called), key=_order)
            for number, each in enumerate(attempt.calls):
                each.place = number
        self._find_calls_made_again()
        for (namespace, *_), superstep in self._supersteps.items():
            starts = {start for each in superstep.attempts for start in saved_starts(each.record.started)}
            for start in starts:
                self._begun_at.setdefault((namespace, start), []).append(superstep)

    def _find_calls_made_again(self) -> None:
        """Find the calls that a LangGraph task has made again when it was resumed. A retry begins anew."""
        made: dict[tuple[str, str, str], dict[Calling, list[Attempt]]] = {}
        for attempt in sorted(self.attempts, key=_order):
            if (calling := attempt.calling) is not None:
                attempts = made.setdefault((attempt.run, calling.namespace, attempt.record.node), {})
                attempts.setdefault(calling, []).append(attempt)
        for attempts in made.values():
            for (_, earlier), (calling, later) in pairwise(attempts.items()):
                for before, attempt in zip(earlier, later if calling.retry == 1 else (), strict=False):
                    attempt.again = before

    def _caller(self, attempt: Attempt) -> Attempt | None:
        owner = attempt.body.get("caller")
        if owner is None and attempt.record.namespace:
            if ":" not in attempt.record.namespace:
                return self._keeper(attempt)
            owner = attempt.record.namespace.rsplit(":", 1)[-1].split("|", 1)[0]
        around = [each for each in self._tasks.get(owner or "", ()) if each.execution == attempt.execution]
        begun = [each for each in around if each.record.started <= attempt.record.started]
        # It is written when it has ended: after what ran in its body.
        open = [each for each in begun if each.number > attempt.number]
        return next(iter(open or begun[-1:] or around), None)

    def _keeper(self, attempt: Attempt) -> Attempt | None:
        """The attempt that ran a graph which keeps its state: the first that ends later. None if another one may
        have run it, as with parallel `Send`s."""
        kept, started = _COUNTED.sub("", attempt.record.namespace), attempt.record.started
        inside = self._bodies.get((attempt.execution, kept), [])
        place = bisect_right(inside, attempt.number, key=_number)
        found = inside[place] if place < len(inside) else None
        return found if found is not None and found.record.started <= started < found.next else None

    def earlier(self, attempt: Attempt) -> list[Attempt]:
        """The earlier attempts of the same task, or of a governed function by the earlier attempts of its caller,
        oldest first.
        """
        if not attempt.is_called:
            return [each for each in self._tasks[attempt.task] if each.order < attempt.order]
        if attempt.again is not None:
            found = [*self.earlier(attempt.again), attempt.again]
        else:
            before = [] if attempt.caller is None else self.earlier(attempt.caller)
            found = [each.calls[attempt.place] for each in before if attempt.place < len(each.calls)]
        return [each for each in found if each.record.node == attempt.record.node]

    def newest(self) -> list[Attempt]:
        """The newest attempt of each task, in the order in which they began."""
        return sorted([tried[-1] for tried in self._tasks.values()], key=_order)

    def of(self, attempt: Attempt) -> Past | None:
        """The past of the attempt's graph before its superstep, or None if it is not known."""
        superstep = attempt.superstep
        if not superstep.is_known:
            superstep.is_known = True
            superstep.past = self._made(attempt)
        past = superstep.past
        return None if past is None or past.end[1] != attempt.body.get("past") else past

    def _made(self, attempt: Attempt) -> Past | None:
        number = attempt.body.get("past")
        if number is None:
            return None
        nested = bool(attempt.record.namespace)
        if number == 0:
            past = Past({}, keep=self._keep)
            if nested:
                past = past.after([NESTED_RUN])
        elif (found := self._past_after(attempt)) is None:
            return None
        else:
            past = found
        if not nested and past.value.get("run_id") != attempt.run:
            past = past.after([{**RUN, "id": attempt.run}])
        return past

    def unfinished(self, attempt: Attempt) -> list[Attempt]:
        """The last attempt of each superstep that its past builds on and that has not ended yet, oldest
        first.

        There is usually none; a clock that was set back leaves many.
        """
        found: list[Attempt] = []
        seen: set[int] = set()
        last = self._last_before(attempt)
        while last is not None and not last.over and last.number not in seen:
            seen.add(last.number)
            found.append(last)
            last = self._last_before(last)
        return found[::-1]

    def _last_before(self, attempt: Attempt) -> Attempt | None:
        """The attempt whose fact is the last that the attempt's graph had committed before."""
        after: str = attempt.body.get("after", "")
        if not is_packed_id(after):
            named = self._tasks.get(after, ())
            return next((each for each in named if each.record.namespace == attempt.record.namespace), None)
        return next((last for _, last in self._at(after, attempt)), None)

    def _at(self, after: str, attempt: Attempt) -> Iterator[tuple[Superstep, Attempt]]:
        """The supersteps before the attempt whose last fact has the time that the packed id `after` names."""
        at = int(after.split("@")[1])
        namespace = attempt.record.namespace
        for superstep in reversed(self._begun_at.get((namespace, at), [])):
            if superstep is attempt.superstep or min(map(_order, superstep.attempts)) >= attempt.order:
                continue
            last = self._committed(superstep, attempt)
            if last and at in saved_starts(last[-1].record.started):
                yield superstep, last[-1]

    def _past_after(self, attempt: Attempt) -> Past | None:
        """The past with the fact that the attempt names as the last."""
        after: str = attempt.body["after"]
        if not is_packed_id(after):
            known = self._last_before(attempt)
            return None if known is None else self._end_of(known.superstep, attempt)
        # Another process committed it, and the checkpoint has no ids: the number and the time tell.
        number, _, _ = after[1:].partition("@")
        for superstep, _ in self._at(after, attempt):
            past = self._end_of(superstep, attempt)
            if past is not None and past.end[1] == int(number):
                return past
        return None

    def _committed(self, superstep: Superstep, attempt: Attempt) -> list[Attempt]:
        """The attempts of a superstep whose facts were there when the attempt began, in the order of their
        writes.

        The same task may have been run again: by a fork, or after a crash.
        """
        chosen: dict[str, Attempt] = {}
        for each in sorted(superstep.attempts, key=_order):
            known = chosen.get(each.task)
            if not each.committed or (each.execution != attempt.execution and each.order > attempt.order):
                continue
            if known is None or known.execution != attempt.execution or each.execution == attempt.execution:
                chosen[each.task] = each
        return sorted(chosen.values(), key=lambda each: task_order(each.record.path))

    def _end_of(self, superstep: Superstep, attempt: Attempt) -> Past | None:
        committed = self._committed(superstep, attempt)
        for each in committed:
            self._end(each)
        if superstep.past is None:
            return None
        key = tuple(each.number for each in committed)
        if key not in superstep.ends:
            facts = [each.fact for each in committed if each.fact is not None]
            superstep.ends[key] = superstep.past.after(facts)
        return superstep.ends[key]


_order = attrgetter("order")
_number = attrgetter("number")
_COUNTED = re.compile(r"\|\d+(?![^|])")
"""The number in the namespace of each call of a graph in one node run but the first."""


def _kept_inside(record: Record) -> str:
    """The namespace, without ids of tasks, of a graph that keeps its state and runs in that node run."""
    outer = (part.partition(":")[0] for part in _COUNTED.sub("", record.namespace).split("|"))
    return "|".join([*filter(None, outer), record.node])


def _ran_with(attempt: Attempt) -> tuple[Any, ...]:
    """The name of its superstep: its checkpoint, or its place in the call of its graph if nothing was saved."""
    namespace, checkpoint = attempt.record.namespace, attempt.body.get("checkpoint")
    if checkpoint is not None:
        return namespace, checkpoint
    if attempt.is_called:
        return (attempt.task,)
    if attempt.is_recovered:
        return namespace, "recovered", attempt.record.step, attempt.body.get("past")
    caller = None if attempt.caller is None else attempt.caller.number
    return namespace, attempt.execution, caller, attempt.body.get("call"), attempt.record.step
