"""The history in memory: records by thread and by run, bounded.

A *run* is one input to a graph and everything that follows from it, interrupts and resumes included. The
channel of facts, which LangGraph restores with the checkpoint, says which run a node belongs to. So a resume
continues the run that it resumes, in this process or another, and a fork has its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from math import inf
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from arbiter._threads.deadlines import running_loop
from arbiter._threads.forks import new_lock
from arbiter._values.once import Once
from arbiter.errors import AmbiguousHistoryError, ArbiterWarning, callers
from arbiter.history._facts import RUN, RunFact, Value, fold
from arbiter.history._items import RunHistory
from arbiter.history._packing import is_packed_id
from arbiter.history._past import Past, task_order
from arbiter.history._record import ExecutionInfo, Kind, Record, kind_of, record_from
from arbiter.instructions import Instruction

_log = logging.getLogger("arbiter")
_reported = Once()
"""The recorders of which a resume after a forgotten run was reported."""
KEEP_THREADS = 200
_MOST_UNCOUNTED = 256
_MOST_UNFINISHED = 1000
_MOST_IDENTIFIED = 1000
_MOST_TASKS = 32


TaskAttempt = tuple[str, Any]
"""A LangGraph task by its id, and an object that is equal for all that one attempt of it calls."""


class Run:
    """The records of one run, oldest first."""

    def __init__(self, log: ThreadLog, epoch: int, uuid: str | None = None) -> None:
        self.called: Value = {}
        """The facts of governed functions in this run, if there is no graph to keep them."""
        self._settled: Value = {}
        """The facts among them whose tasks are not expected to run again."""
        self._tasks: dict[str, tuple[Any, int, Value]] = {}
        """The other ones by the LangGraph task that called the function: its attempt, that one's number, the facts."""
        self._attempts = 0
        self.caller: weakref.ref[Execution] | None = None
        """The execution that adds to them."""
        self.id = f"{log.thread_id or ''}#{next(_run_numbers)}"
        self.log = log
        self.epoch = epoch
        self.records: deque[Record] = deque()
        self.saved = False
        """True if a checkpointer keeps its thread."""
        self.forgotten: list[Kind] = []
        """Kinds of records that are no longer kept and not counted yet."""
        self._counted: Counter[Kind] = Counter()
        self._uuid = uuid

    @property
    def uuid(self) -> str:
        """The run's name: in all processes, if listeners were there when its input was written."""
        if self._uuid is None:
            with self.log.lock:
                if self._uuid is None:
                    self._uuid = str(uuid4())
        return self._uuid

    def begins(self, root: str, calling: TaskAttempt, keep: int) -> int:
        """Report that an attempt of a LangGraph task calls governed functions. What earlier attempts of the task have
        called does not count any more, because this one calls it again. `root` names the entrypoint's task. Returns
        the number of the attempt among all that the run's tasks have begun.
        """
        task, attempt = calling
        with self.log.lock:
            known, number, value = self._tasks.get(task, (None, 0, {}))
            if known == attempt:
                return number
            self._tasks.pop(task, None)
            self._attempts = number = self._attempts + 1
            self._tasks[task] = attempt, number, {}
            if value:
                self.called = self._settled
                for _, _, value in self._tasks.values():
                    self.called = _with(self.called, value, keep)
            if len(self._tasks) > _MOST_TASKS:
                # An entrypoint begins again at each resume, another task only until it is done.
                oldest = next(each for each in self._tasks if not root.endswith(each))
                self._settled = _with(self._settled, self._tasks.pop(oldest)[2], keep)
            return number

    def calls(self, calling: TaskAttempt | None, fact: RunFact, keep: int) -> None:
        """Add a call of a governed function. The caller must hold the lock of the log."""
        task, attempt = calling or ("", None)
        if task in self._tasks:
            known, number, value = self._tasks[task]
            if known != attempt:
                return  # it outlived its attempt
            self._tasks[task] = attempt, number, fold(value, (fact,), keep)
        elif self._tasks:
            self._settled = fold(self._settled, (fact,), keep)
        self.called = fold(self.called, (fact,), keep)

    def history(self) -> RunHistory:
        with self.log.lock:
            return RunHistory(list(self.records), self.counted().copy())

    def counted(self) -> Counter[Kind]:
        """The number of records, by kind, that are no longer kept. The caller must hold the lock of the log."""
        if self.forgotten:
            self._counted.update(self.forgotten)
            self.forgotten.clear()
        return self._counted


def _with(value: Value, part: Value, keep: int) -> Value:
    return fold(value, ({"inner": part},), keep) if part else value


class ThreadLog:
    """The runs of one thread. Holds at most `keep` records, and counts the ones that it has dropped."""

    def __init__(self, thread_id: str | None, keep: int | None) -> None:
        self.thread_id = thread_id
        self.keep: float = inf if keep is None else keep
        self.lock = new_lock()
        self.runs: deque[Run] = deque()
        self.by_id: dict[str, Record] = {}
        self.size = 0
        self._called: Value = {}
        """The facts of governed functions that were called without a graph."""
        self._calls: dict[str, int] = {}
        """The newest step of the calls of governed functions, by namespace."""
        self._counted: Counter[Kind] = Counter()
        """The counts of dropped runs, less the records that several of the remaining runs have counted."""
        self.unfinished: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """The run and the number of attempts of tasks whose record was dropped before they were done. They
        may be tried again.
        """

    def add(self, run: Run, record: Record) -> None:
        """Add a record. The caller must hold the lock."""
        records = run.records
        # others of the thread may have pushed out all that it had
        if not records and all(each.records is not records for each in self.runs):
            self.runs.insert(max(len(self.runs) - 1, 0), run)
            self._counted.subtract(run.counted())
        records.append(record)
        self.by_id[record.id] = record
        if self.size < self.keep:
            self.size += 1
        else:
            self._forget_oldest()

    def let_go(self) -> None:
        """Break the cycles of a thread that no code can ask for any more: of the log and its runs, which hold each
        other.

        Their states would stay in memory until Python collects all garbage, which a large process seldom does. An
        execution that still uses a run holds the log, whose copy of the run has the same records.
        """
        with self.lock:
            self.runs = deque(map(copy, self.runs))
            for run in self.runs:
                run.log = weakref.proxy(self)

    def step_of_call(self, namespace: str) -> int:
        """The step of the next call of a governed function, which no checkpoint numbers: one after the newest
        in this thread, 1 for the first.
        """
        with self.lock:
            newest = self._calls.get(namespace)
            if newest is None:  # a checkpoint may have restored calls of another process
                steps = (record.step for record in self.by_id.values() if record.namespace == namespace)
                newest = max(steps, default=0)
            self._calls[namespace] = newest + 1
            return newest + 1

    def share(self, run: Run, record: Record) -> None:
        """Add a record that another run of the thread holds too. The caller must hold the lock."""
        record.sharers += 1
        self.add(run, record)

    def _forget_oldest(self) -> None:
        while not (run := self.runs[0]).records:
            self._counted.update(self.runs.popleft().counted())
        record = run.records.popleft()
        forgotten = run.forgotten
        forgotten.append((record.instruction, record.node))
        if len(forgotten) == _MOST_UNCOUNTED:
            run.counted()
        if record.sharers:
            record.sharers -= 1
            self._counted[kind_of(record)] -= 1
        elif self.by_id.get(record.id) is record:
            del self.by_id[record.id]
            if record.status != "completed":
                self.unfinished[record.id] = run.id, record.attempt
                if len(self.unfinished) > _MOST_UNFINISHED:
                    self.unfinished.popitem(last=False)

    def take_back(self, run: Run, record: Record) -> int:
        """Add a record of a task whose earlier record may have been dropped and counted.

        Returns the number of earlier attempts. The caller must hold the lock.
        """
        of, attempts = self.unfinished.pop(record.id, ("", 0))
        if attempts:
            (run.counted() if of == run.id else self._counted)[kind_of(record)] -= 1
        self.add(run, record)
        return attempts

    def identify(self, past: Past) -> None:
        """Match the facts of a past that comes from a checkpoint with the records that are kept."""
        if not past.is_packed:
            return
        with self.lock:
            records = list(islice(reversed(self.by_id.values()), _MOST_IDENTIFIED))
        past.identify(records)

    def new_run(self, epoch: int, past: Past) -> Run:
        """Begin a run with the committed facts of it."""
        with self.lock:
            run = Run(self, epoch, past.value.get("run_id"))
            # Without a thread nobody asks for the log, so it lives as long as its run.
            self.runs.append(weakref.proxy(run) if self.thread_id is None else run)
            for fact in past.this_run():
                if (known := self.by_id.get(fact["id"])) is None:
                    self.add(run, record_from(fact))
                else:
                    self.share(run, known)
            return run

    def called_run(self, keep: int) -> Run:
        """Begin a run of governed functions that are called without a graph. It begins with the past of the thread's
        earlier ones, of which `keep` facts are kept.
        """
        run = self.new_run(PLAIN, Past({}))
        with self.lock:
            before = self.runs[-2] if len(self.runs) > 1 else None
            if before is not None and before.caller is not None and before.caller() is None:
                before.called = {}
            if self._called:
                self._called = run.called = fold(self._called, (RUN,), keep)
        return run

    def remember(self, run: Run, fact: RunFact, keep: int, calling: TaskAttempt | None = None) -> None:
        """Add a call of a governed function to the past of its run and, without a graph, of the thread."""
        with self.lock:
            before = run.called
            run.calls(calling, fact, keep)
            if run.caller is not None:
                alone = self._called is before or not self._called
                self._called = run.called if alone else fold(self._called, (fact,), keep)

    def unknown(self, facts: Iterable[RunFact]) -> list[RunFact]:
        """Those of these facts whose node run has no record here: another process ran it, or it was forgotten."""
        return [fact for fact in facts if fact["id"] not in self.by_id]

    def restore(self, run: Run, facts: Iterable[RunFact], *, begun: bool, owner: str = "") -> None:
        """Add records for facts of another process, and replace those of node runs that paused or failed here and
        were done there. `begun` is True if this process has begun this part of the run too: if records of the run
        were dropped, the facts may be theirs, and they are counted already. `owner` is the id of the node run whose
        graph they are of.
        """
        with self.lock:
            if begun and run.counted():
                return
            added = [record_from(fact) for fact in facts if self.is_news(fact)]
            known = enumerate(run.records) if added else ()
            left = {each.id: (at, each) for at, each in known if _is_open(each)}
            places: dict[tuple[str, int, str], list[str]] = {}
            for _, each in sorted(left.values(), key=lambda entry: task_order(entry[1].path)):
                places.setdefault(_place_of(each), []).append(each.id)
            for record in added:
                record.owner = owner
                # Facts without their own ids are in the order of their tasks.
                same = places.get(_place_of(record), ()) if is_packed_id(record.id) else ()
                own = next((id for id in (record.id, *same) if id in left), None)
                if own is None:
                    self.add(run, record)
                    continue
                at, before = left.pop(own)
                record.path, record.owner, record.call = before.path, before.owner, before.call
                before.sharers = max(before.sharers - 1, 0)
                self.by_id.pop(own)
                self.by_id[record.id] = run.records[at] = record

    def is_news(self, fact: RunFact) -> bool:
        """True if this process does not know that the node run is done."""
        known = self.by_id.get(fact["id"])
        return known is None or (_is_open(known) and known.status != fact.get("status", "completed"))

    def denied(self) -> list[Record]:
        with self.lock:
            unique = {id(r): r for run in self.runs for r in run.records if r.status == "denied"}
            return list(unique.values())

    def history(self) -> RunHistory:
        """All runs of the thread. Records that a fork shares with its origin appear once."""
        with self.lock:
            seen: set[int] = set()
            runs: list[list[Record]] = []
            for run in self.runs:
                runs.append([record for record in run.records if id(record) not in seen])
                seen.update(map(id, runs[-1]))
            forgotten: Counter[Kind] = Counter()
            for counted in (self._counted, *(run.counted() for run in self.runs)):
                if counted:
                    forgotten.update(counted)
            return RunHistory((), forgotten, runs)


Recovered = tuple[int, Mapping[str, Mapping[str, float]], Mapping[str, Any]]
"""The superstep that an execution resumes, with two maps of amounts.

The first holds the counts of the superstep's tasks, by checker and key; the second the amounts that
unfinished tasks have used up, by task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTask:
    """The task with which an execution of a graph begins."""

    thread_id: str | None
    saved: bool
    """True if a checkpointer keeps the thread."""
    resumed: bool
    """True if LangGraph reports a resume."""
    step: int
    id: str
    path: Any
    pending: Sequence[RunFact] = ()
    """The facts of siblings that were done before, and whose superstep is not committed."""


class Execution:
    """One execution of a graph by LangGraph, from `invoke` to its return. Its run is known from the first
    node on.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self.number = next(_execution_numbers)
        begun = starting.get()
        self.info: ExecutionInfo | None = begun.pop() if begun else None
        """The report of this execution for listeners; None without listeners."""
        self.run: Run | None = None
        self.newest: Run | None = None
        """The run that began last: this one, or one in a copy of the context that this execution left behind.
        """
        self.called: weakref.WeakValueDictionary[str | None, Run] = weakref.WeakValueDictionary()
        """The runs of governed functions that this context has called without a graph, by thread."""
        self.alone: Run | None = None
        """The one of them without a thread, which no log keeps."""
        self.first: int | None = None
        """The superstep in which the execution began, once a node has run."""
        self.recovered: Recovered | None = None
        """None until it is looked up."""
        self.unknown: Sequence[RunFact] = ()
        """The facts of the checkpoint that had no record here when the execution began."""
        self.pending: Sequence[RunFact] = ()
        """As `unknown`, the facts next to the checkpoint: of siblings that were done before."""
        self._lock = new_lock()
        known = _current.get()
        self._place = weakref.ref(_place())
        before = known.get(recorder.uid)
        self._before = before = None if before is None else before.with_run
        self._outer: tuple[weakref.ref[Execution], ...] = ()
        """The executions that left the contexts from which this one's was copied."""
        if before is not None:
            self._outer = before._outer
            if not before.is_here:
                self._outer = (*(loop for loop in self._outer if loop() is not None), weakref.ref(before))
        # Entries whose ArbiterOS is gone are dropped, since no code can ask for them any more.
        _current.set({**{uid: loop for uid, loop in known.items() if uid in _alive}, recorder.uid: self})

    @property
    def name(self) -> str:
        """The name of the graph in the body that calls it, in the order of the calls."""
        return f"call {self.number}"

    def bind(self, past: Past, first: FirstTask) -> Run:
        """Find the run of this execution, whose first task is `first`."""
        with self._lock:
            if self.run is None:
                recorder = self._recorder()
                assert recorder is not None  # the running graph holds its recorder
                self.first = first.step
                run, self.unknown, self.pending = recorder.run_for(past, first)
                self.begins(run)
                return run
        return self.run

    def begins(self, run: Run) -> None:
        """Set the run. Call it only for a run that is not part of another execution's."""
        self.run, self.newest, self._before = run, run, None
        for outer in self._outer:
            if (loop := outer()) is not None:
                loop.newest = run

    @property
    def with_run(self) -> Execution | None:
        """This execution, or the one before it while no node has run in this one: reading a state is an
        execution too.
        """
        return self._before if self.run is None else self

    @property
    def is_here(self) -> bool:
        """True if the execution began in the current task or thread."""
        return self._place() is _place()

    def join(self, run: Run, past: Past, first: FirstTask, *, owner: str, begun: bool) -> Run:
        """Make this execution part of `run`, as a subgraph of its node run with the id `owner`. `begun` is True if
        this process has begun that node run before.

        If another process began the execution, `past` has the facts that it committed there.
        """
        with self._lock:
            if self.run is None:
                self.first = first.step
                log = run.log
                log.identify(past)
                self.unknown = log.unknown(past.value.get("facts", ()))
                self.pending = log.unknown(first.pending)
                facts = (*past.value.get("facts", ()), *first.pending)
                log.restore(run, facts, begun=begun, owner=owner)
            self.run, self.newest, self._before = run, run, None
        return run


def _place() -> Any:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


_NONE: Mapping[int, Execution] = MappingProxyType({})
starting: ContextVar[list[ExecutionInfo] | None] = ContextVar("arbiter_starting", default=None)
"""The call of a graph whose execution LangGraph is about to make. The execution takes it out."""
_current: ContextVar[Mapping[int, Execution]] = ContextVar("arbiter_loops", default=_NONE)
"""The newest execution that began in this context, by recorder."""
_uids = count(1)
_run_numbers = count(1)
_execution_numbers = count(1)
_alive: weakref.WeakValueDictionary[int, Recorder] = weakref.WeakValueDictionary()


class Recorder:
    """All histories of one `ArbiterOS`."""

    def __init__(self, keep: int | None, keep_threads: int | None = KEEP_THREADS) -> None:
        self.uid = next(_uids)
        _alive[self.uid] = self
        self.keep = keep
        self.keep_threads: float = inf if keep_threads is None else keep_threads
        self._lock = new_lock()
        self._threads: OrderedDict[str, ThreadLog] = OrderedDict()
        self._held: set[str] = set()
        """Threads that somebody reads when they are done: they are not forgotten before."""
        self._functional: OrderedDict[tuple[str | None, str], Run] = OrderedDict()
        self.latest: Run | None = None
        """The run that began last."""
        self.is_shared = False
        """True if several threads are known, or runs without a thread have overlapped. Then the latest run
        may be another caller's.
        """
        self._several = False
        """True if several runs without a thread are known. In a server, each may belong to another request.
        """
        self._forgotten = False
        self._forgotten_runs = False
        """True if a run of an entrypoint was forgotten."""
        weakref.finalize(self, _let_go, self._threads).atexit = False

    def log_of(self, thread_id: str | None) -> ThreadLog:
        if thread_id is None:
            return ThreadLog(None, self.keep)
        forgotten: ThreadLog | None = None
        with self._lock:
            log = self._threads.get(thread_id)
            if log is None:
                log = self._threads[thread_id] = ThreadLog(thread_id, self.keep)
                if len(self._threads) > self.keep_threads + len(self._held):
                    oldest = next(each for each in self._threads if each not in self._held)
                    forgotten = self._threads.pop(oldest)
                    self._forgotten = True
            else:
                self._threads.move_to_end(thread_id)
        if forgotten is not None:
            forgotten.let_go()
        return log

    def hold(self, thread_id: str) -> None:
        """Keep a thread until it is released, however many others run meanwhile."""
        with self._lock:
            self._held.add(thread_id)

    def release(self, thread_id: str, *, forget: bool) -> None:
        """Let a thread be forgotten as any other, or `forget` it now."""
        with self._lock:
            self._held.discard(thread_id)
            log = self._threads.pop(thread_id, None) if forget else None
        if log is not None:
            log.let_go()

    def run_for(self, past: Past, first: FirstTask) -> tuple[Run, Sequence[RunFact], Sequence[RunFact]]:
        """The run of an execution, and the facts of its past and of finished siblings that had no record here."""
        log = self.log_of(first.thread_id)
        log.identify(past)
        unknown, pending = log.unknown(past.value.get("facts", ())), log.unknown(first.pending)
        with log.lock:
            run = next((run for run in reversed(log.runs) if run.epoch != PLAIN), None)
        epoch: int = past.value.get("run", 0)
        continues = (
            run is not None
            and first.saved
            and (run.epoch == epoch if epoch else first.resumed)
            and not _diverged(run.records, past.value, first)
        )
        if run is None or not continues:
            run = log.new_run(epoch, past)
        else:
            # Older facts are of outputs that a node cache served.
            with log.lock:
                began = run.records[0].started - 0.01 if run.records else 0
            log.restore(run, (fact for fact in past.this_run() if fact["at"] > began), begun=True)
        log.restore(run, first.pending, begun=continues)
        run.saved, run.log = first.saved, log  # the thread may have been forgotten meanwhile
        self._began(run)
        return run, unknown, pending

    def _began(self, run: Run) -> None:
        before, self.latest = self.latest, run
        if before is None or before is run or self.is_shared:
            return
        if before.log.thread_id != run.log.thread_id:
            self.is_shared = True
        elif run.log.thread_id is None:
            self._several = True
            self.is_shared = "running" in [record.status for record in list(before.records)]

    def goes_on(self, run: Run) -> None:
        """Report that a node begins in a run that is not the latest."""
        if run.log.thread_id is None and run.records:
            self.is_shared = True

    def plain_run(self, thread_id: str | None, keep: int) -> Run:
        """The run of governed functions that are called without a graph: that of this context on the thread."""
        loop = _current.get().get(self.uid)
        if loop is None or (loop.run is not None and loop.run.epoch != PLAIN):
            loop = Execution(self)
        log = None if thread_id is None else self.log_of(thread_id)
        run = loop.run
        # The run of an entrypoint has no caller: its past is not that of the thread.
        if run is not None and (run.log.thread_id != thread_id or (log is not None and run.caller is None)):
            if not loop.is_here:
                loop = Execution(self)
            run = loop.called.get(thread_id)
        # A thread may have been forgotten meanwhile.
        if run is None or (log is not None and run.log is not log):
            run = (log or self.log_of(None)).called_run(keep)
        if loop.is_here or loop.run is None:
            loop.called[thread_id], run.caller = run, weakref.ref(loop)
            loop.alone = run if log is None else loop.alone
            loop.begins(run)
        self._began(run)
        return run

    def functional_run(self, thread_id: str | None, root: str, *, resumed: bool = False) -> Run:
        """The run of governed functions inside LangGraph's functional API; `root` names the entrypoint's task."""
        with self._lock:
            if (run := self._functional.get((thread_id, root))) is not None:
                self._functional.move_to_end((thread_id, root))
        if run is None:
            if resumed and self._forgotten_runs and _reported.is_new(self.uid):
                _log.warning(
                    "a run of an entrypoint was resumed on thread %r, and its earlier calls of governed functions may "
                    "have been forgotten: rules that count or look back begin again at nothing. "
                    "ArbiterOS(keep_threads=%s) keeps %s runs of entrypoints. (This is reported once.)",
                    thread_id,
                    self.keep_threads,
                    self.keep_threads,
                )
            run = self.log_of(thread_id).new_run(PLAIN, Past({}))
            with self._lock:
                run = self._functional.setdefault((thread_id, root), run)
                if len(self._functional) > self.keep_threads:
                    self._functional.popitem(last=False)
                    self._forgotten_runs = True
        if (loop := _current.get().get(self.uid)) is not None:
            loop.begins(run)  # the caller's own: its context was inherited
        self._began(run)
        return run

    def current(self) -> RunHistory:
        """The history of the newest run of the current context and its copies; without one, of the latest
        run.

        Raises `AmbiguousHistoryError` if that run may be another caller's.
        """
        run: Run | None = None
        loop = _current.get().get(self.uid)
        # The requests of a server inherit the run that its start left in their context. Once one of them has
        # begun a run elsewhere, as in a task of its own, it may be any of them.
        if loop and (loop := loop.with_run) and (loop.is_here or loop.newest is loop.run):
            run = loop.newest
        if run is None and (self.is_shared or (self._several and _may_be_a_request())):
            raise AmbiguousHistoryError()
        run = run or self.latest
        return RunHistory([], {}) if run is None else run.history()

    def of_thread(self, thread_id: str) -> RunHistory:
        with self._lock:
            log = self._threads.get(thread_id)
        if log is None and self._forgotten:
            warnings.warn(
                f"the history has no thread {thread_id!r}. It may have been forgotten: "
                f"ArbiterOS(keep_threads={self.keep_threads}) keeps the newest {self.keep_threads} threads in memory.",
                ArbiterWarning,
                stacklevel=callers(),
            )
        return RunHistory([], {}) if log is None else log.history()


def _let_go(threads: Mapping[str, ThreadLog]) -> None:
    for log in threads.values():
        if not log.lock.locked():  # by the code that was interrupted by a garbage collection, which does this
            log.let_go()


def _may_be_a_request() -> bool:
    """True if other requests may run graphs at the same time as this code. A script waits for each of its
    runs.
    """
    return threading.current_thread() is not threading.main_thread() or running_loop() is not None


PLAIN = -1
_LOOK_BACK = 200


def _is_open(record: Record) -> bool:
    """True if the node run ended here in a way in which it may be tried again."""
    return record.status not in ("completed", "running")


def _place_of(record: Record) -> tuple[str, int, str]:
    return record.node, record.step, record.namespace


def _diverged(records: Iterable[Record], value: Value, first: FirstTask) -> bool:
    """True if this execution continues from an earlier point than the one that the run reached: a fork."""
    tracked = bool(value)
    committed = {fact["id"] for fact in value.get("facts", ())}
    return any(
        record.status == "completed"
        and not record.namespace
        and record.id not in committed
        and (
            record.id == first.id
            or record.step > first.step
            or (record.step < first.step and tracked)
            # Within one superstep paths are unique; a finished sibling has another path.
            or (record.step == first.step and record.path == first.path)
        )
        for record in list(records)[-_LOOK_BACK:]
    )


def begin(
    run: Run,
    id: str,
    node: str,
    instruction: Instruction | None,
    step: int,
    namespace: str,
    started: float,
    path: Any,
) -> Record:
    """The record of a node run that starts now: a new one, or the next attempt of the same task."""
    log = run.log
    known = log.by_id.get(id)
    if known is not None and known.status != "completed":
        known.begin_again(started)
        with log.lock:
            if not any(each is known for each in reversed(run.records)):
                if log.by_id.get(id) is known:
                    log.share(run, known)
                else:  # a sibling has just pushed it out
                    log.take_back(run, known)
        return known
    record = Record(id, node, instruction, step, namespace, started, path)
    with log.lock:
        record.attempt += log.take_back(run, record)
    return record
