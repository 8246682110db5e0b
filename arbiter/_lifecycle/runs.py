"""One attempt of one governed node: its data, its decisions, and the abilities of its driver."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from langchain_core.callbacks import BaseCallbackHandler, Callbacks
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import Command
from pydantic import TypeAdapter

from arbiter._contracts import Contract
from arbiter._lifecycle.background import Background
from arbiter._lifecycle.evaluations import Evaluations, EvaluatorQueue, ReadEvaluations
from arbiter._lifecycle.handlers import ModelChecks
from arbiter._lifecycle.registry import Plan
from arbiter._lifecycle.requests import Entry, Raised, Saved, Saving
from arbiter._lifecycle.saving import Access
from arbiter._lifecycle.shadow import ShadowDecision, ShadowLog
from arbiter._threads.deadlines import as_failure, is_from_outside
from arbiter._threads.forks import new_lock
from arbiter._values.records import Records
from arbiter._values.states import SeenDict, Snapshot, as_state, digest, with_seen
from arbiter.history._causal import CausalHistory
from arbiter.history._facts import KEEP, RunFact, Value, fold
from arbiter.history._items import HistoryItem, ToolsOf
from arbiter.history._past import Past
from arbiter.history._record import (
    ExecutionInfo,
    KeptStates,
    Position,
    Record,
    States,
    fact_from,
    facts_of,
    with_spent,
)
from arbiter.history._recorder import Recovered, Run
from arbiter.history._results import NO_RESULTS, NOTHING
from arbiter.listening import HistoryListener, tell
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.verdicts import Verdict

T = TypeVar("T")


@dataclass(slots=True)
class Schemas:
    """Declared types of a node's input and output: anything that a pydantic `TypeAdapter` accepts."""

    input: TypeAdapter[Any] | None = None
    output: TypeAdapter[Any] | None = None
    input_name: str = ""
    output_name: str = ""
    input_fields: frozenset[str] | None = None
    """The fields of the input that its type reads; None for all."""


@dataclass(slots=True, eq=False)
class Settings:
    """Settings that all node runs of one `ArbiterOS` share. `facts` bounds the facts in a checkpoint."""

    snapshot: Snapshot
    background: Background
    facts: int = KEEP
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    shadow: ShadowLog = dataclasses.field(default_factory=ShadowLog)
    listeners: list[HistoryListener] = dataclasses.field(default_factory=list[HistoryListener])
    records: Records | None = None
    """The rules of recording of the constitution in force."""
    keeps_times: bool = False
    """True if one of the listeners does."""


@dataclass(slots=True, eq=False)
class DelegatedAdvice:
    """Advice for a node that is a graph. The nodes inside get it, because a graph's own input is saved and
    streamed.
    """

    advisor: str
    advice: Any
    id: str
    messages_key: str
    block: frozenset[str] = frozenset()
    """The advisors whose answers it combines."""
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A call that a handler has stopped. `call` is the id of the tool call for which it was made, if known."""

    checker: PolicyChecker
    reason: str
    cause: BaseException | None
    call: str | None


class HasPast(Protocol):
    """An object that holds the past of a graph, as it is now."""

    @property
    def past(self) -> Past: ...


@dataclass(slots=True)
class _Inside:
    """A graph inside a body."""

    of: HasPast
    before: int
    """The number of node runs in the graph's past when it began the superstep `step`."""
    step: int
    facts: dict[str, RunFact] = field(default_factory=dict[str, RunFact])
    """The facts of this superstep, by their order. The past has them once the superstep is done."""

    def value(self, keep: int) -> Value:
        past = self.of.past
        if not self.facts or past.seq > self.before:
            return past.value
        return fold(past.value, [self.facts[order] for order in sorted(self.facts)], keep)


_lock = new_lock()
SHADOW = "shadow:"
"""The prefix of the tallies of a shadow constitution's checkers."""
FUNCTIONS = "()"
"""Stands in place of a namespace for the governed functions in a body."""
_NOT_RESUMED: Recovered = (-1, NOTHING, NOTHING)
current_run: ContextVar[NodeRun | None] = ContextVar("arbiter_opened", default=None)
"""The governed node whose body is running. Graphs and functions that it calls belong to it."""


def call_isolated(
    run: NodeRun, contract: Contract, method: Callable[[CausalHistory], T], view: CausalHistory
) -> T:
    """Call a method of a contract in place. If the contract has no effect, its errors are never more than
    failures.
    """
    if contract.enforced:
        return method(view)
    token = var_child_runnable_config.set(run.isolated_config)
    try:
        return method(view)
    except BaseException as exc:
        if is_from_outside(exc) or isinstance(exc, Exception):
            raise
        raise as_failure(exc) from exc
    finally:
        var_child_runnable_config.reset(token)


class NodeRun:
    """One attempt of one governed node: its data, its decisions, and the abilities of its driver.

    There is one for every step of every graph, so most parts are made on first use, and `__init__` and those of
    subclasses set fewer than 28 attributes: with 30, Python stores an object's attributes in five times the memory.
    Subclasses run the body and ask humans: `weaving.NodeAttempt` in LangGraph, `functions.FunctionCall` without a
    graph.
    """

    redirect: str | None = None
    """The node, or END, to which the run goes instead of along the edges."""
    begun: float
    """The time of the settings' timer when the lifecycle began."""
    item: HistoryItem
    """The item of this node run in the history that policies see."""
    view: CausalHistory
    """The history that policies see."""
    states: States
    """The input and the output that policies see."""
    reads: ReadEvaluations | None = None
    """The evaluations that policies see; None if there are none, or not yet."""
    given: Mapping[str, Any] | None = None
    """The input's fields from before transient advice was added."""
    transient: Mapping[str, Any] = NOTHING
    """State keys and messages that the body gets for this call only."""
    handed: Sequence[DelegatedAdvice] = ()
    """Advice for the nodes of the graph that is this node's body."""
    questions: int = 0
    handlers: Sequence[BaseCallbackHandler] = ()
    """Callback handlers that look into the body."""
    stops: Sequence[Stop] = ()
    """The calls that these handlers have stopped."""
    streamed: Sequence[Callable[[], None]] = ()
    """The held-back chunks of the body; each call sends one of them."""
    pushed: Sequence[Mapping[str, Any]] = ()
    """The held-back writes of the body to the state apart from its output, such as those of `push_message`.
    """
    escalation: tuple[PolicyRouter, Verdict] | None = None
    """The router that wants a human to see the output, and its verdict."""
    pending_question: Mapping[str, Any] | None = None
    """The open question of an earlier attempt about the output of this task. The body is done."""
    saved: Saved | None = None
    """The saved data of this node run, once they have been read."""
    since: int | None = None
    """The number of the first question whose answer this node run uses; None if there was no question."""
    approved_by: str | None = None
    """The policy whose question a human has answered with an approval or an edit."""
    approved_key: str = ""
    """The digest of the input that was approved."""
    retries: int = 0
    """The number of further times that the body may begin on the approvals."""
    entry: Entry | None = None
    """The note that the body has begun on approvals."""
    claims: Sequence[str] = ()
    """The names of what has begun on approvals in this attempt: the task, and the calls of functions in its body."""
    is_over: bool = False
    """True once this attempt has ended."""
    capped: PolicyRouter | None = None
    """The router that wants the best attempt, because it may not redirect again."""
    may_have_asked: bool = False
    """True if an earlier attempt may have asked about its output, even if no rule would ask now."""
    replaced: bool = False
    """True if the node's output differs from the one that its body returned or streamed."""
    shadow: ShadowDecision | None = None
    """The decision of a shadow constitution before the node."""
    model_checks: ModelChecks | None = None
    """The checkers of this node run that ask a model; None without listeners."""
    told: HistoryItem | None = None
    """The item that listeners were told of, while they know of this attempt's begin and not of its end."""
    _shadow_view: CausalHistory | None = None
    _contract_config: RunnableConfig | None = None
    _isolated_config: RunnableConfig | None = None
    _inner: dict[str, _Inside] | None = None
    _functions: Value = {}  # noqa: RUF012
    """The value of the governed functions in the body. It is replaced, never changed."""
    _calls: dict[tuple[int, Any], int] | None = None

    def __init__(
        self,
        record: Record,
        plan: Plan,
        input: Any,
        settings: Settings,
        run: Run,
        past: Past,
        parent: NodeRun | None,
        config: RunnableConfig | None,
        schemas: Schemas | None,
    ) -> None:
        self.record = record
        self.plan = plan
        self.input = input
        self.settings = settings
        self.states = record if settings.snapshot == "shallow" else KeptStates(record, settings.snapshot)
        self.run = run
        self.parent = parent
        self.config = config
        self.schemas = schemas
        self.view = CausalHistory(past, record, run, plan.group, states=self.states)
        self.item = self.view.item
        self.view.clock = settings.clock
        if plan.watchers:
            self.view.give_tools(self.tools)
        if plan.guards:
            self.item.watch()

    @property
    def past(self) -> Past:
        """The facts and totals that policies see."""
        return self.view.past

    @property
    def is_graph(self) -> bool:
        """True if the body is a graph, whose nodes are governed too."""
        return False

    @property
    def is_shared(self) -> bool:
        """True if other code has the input too, and may change its fields."""
        return True

    @property
    def fields(self) -> Collection[str]:
        """The fields of the graph's state; empty if it does not declare any."""
        return ()

    @property
    def is_saved(self) -> bool:
        """True if a checkpointer, or the caller, keeps the node's writes."""
        return True

    @property
    def channels(self) -> Sequence[Mapping[str, Any]]:
        """The channels that the output goes to; see `FinishedRun`."""
        return () if self.parent is None else self.parent.channels

    @property
    def inherited(self) -> Sequence[DelegatedAdvice]:
        """Advice that the graphs around this node got for their nodes."""
        parent = self.parent
        if parent is None or not parent.is_graph:
            return ()
        outer = parent.inherited
        return (*outer, *parent.handed) if outer else parent.handed

    @property
    def lasted(self) -> float:
        """Seconds since the lifecycle began."""
        return self.settings.timer() - self.begun

    def tell_began(self, execution: ExecutionInfo, position: Position) -> None:
        """Tell listeners that this attempt begins."""
        record = self.record
        settings = self.settings
        record.execution, record.position, record.records = execution, position, settings.records
        self.told = item = HistoryItem(record)
        tell(settings.listeners, "began", item)

    def tell_ended(self) -> None:
        """Tell listeners how this attempt ended, and of its evaluations when all are done."""
        told, self.told = self.told, None
        record, listeners = self.record, self.settings.listeners
        if record.status == "interrupted" and record.execution is not None:
            record.execution.outcome = "paused"
        if self.model_checks is not None and self.model_checks.found:
            record.kept_account.model_checks = tuple(self.model_checks.found)
        try:
            tell(listeners, "ended", HistoryItem(record, self.reads))
        finally:  # the listeners before one that Ctrl-C broke off wait for the evaluations
            evaluations = record.evaluations
            if isinstance(evaluations, Evaluations):
                if told is not None:
                    told.give_results(evaluations)  # also after the next attempt has begun the record anew
                evaluations.then(partial(tell, listeners, "judged", told))

    def own_input(self) -> Raised | None:
        """Make what the checkers looked at the node's own. Returns `Raised` if it cannot be copied.

        Neither a sibling nor a caller with the same object can then change it between the check and the body, or
        while the body runs.
        """
        seen = self.item.seen()
        if seen is None or not (seen.returned or self.is_shared):
            return None
        try:
            self.input = self.input_with(seen)
        except Exception as exc:
            return Raised(exc)
        return None

    def input_with(self, seen: SeenDict) -> Any:
        """The input with the values that the checkers have seen."""
        return with_seen(self.input, seen, is_shared=self.is_shared)

    @property
    def shadow_view(self) -> CausalHistory:
        """The history that policies of a shadow constitution see: the same items, with tallies and
        evaluations of their own.
        """
        if self._shadow_view is None:
            self._shadow_view = CausalHistory(
                self.past,
                self.record,
                self.run,
                tallies=SHADOW,
                evaluations=NO_RESULTS,
                states=self.states,
            )
            self._shadow_view.clock = self.settings.clock
            self._shadow_view.give_tools(self.tools)
        return self._shadow_view

    def shadow_evaluations(self, queues: tuple[EvaluatorQueue, ...]) -> Evaluations:
        """The evaluations of a shadow constitution."""
        return Evaluations(queues, self.shadow_view)

    @property
    def contract_config(self) -> RunnableConfig | None:
        """The ambient config during a contract's call.

        The contract's own model calls belong to no stream and no trace of the node. `get_config()` still
        returns thread, user and so on.
        """
        if self._contract_config is None and (config := self.config) is not None:
            tags = [*(config.get("tags") or ()), "nostream"]
            if self.told is not None and self.settings.keeps_times:
                self.model_checks = ModelChecks()
            callbacks: Callbacks = None if self.model_checks is None else [self.model_checks]
            self._contract_config = {**config, "callbacks": callbacks, "tags": tags}
        return self._contract_config

    @property
    def isolated_config(self) -> RunnableConfig | None:
        """As `contract_config`, for a contract without effect: it can neither pause the run nor stream."""
        if self._isolated_config is None and (config := self.contract_config) is not None:
            self._isolated_config = self.without_effects(config)
        return self._isolated_config

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        """A config through which no write is possible."""
        raise NotImplementedError

    def fact(self) -> RunFact:
        """The fact to commit together with the node's own writes."""
        plan, record, reads = self.plan, self.record, self.reads
        fact = fact_from(record, plan.kinds if record.checks is plan.all_allowed else None)
        if reads is not None and reads.read:
            fact["evals"] = facts_of(reads.read, reads.evaluations.version_of)
        if plan.keeps_output:
            if self.redirect is not None:
                fact["task"] = record.id
            if (sent := self.sent) is not None:
                fact["sent"] = sent
        if record.spent:
            fact["tallies"] = with_spent(fact.get("tallies", NOTHING), record.spent)
        if (self._inner or self._functions) and (inner := self.inner()) is not None:
            if record.status == "completed":
                fact["inner"] = inner
            elif used := self._used_up(inner):
                fact["inner"] = used
        return fact

    def _used_up(self, inner: Value) -> Value | None:
        """The consumption of the graphs inside a body of which nothing else is committed."""
        shadow = self.plan.shadow
        names = {
            *self.plan.counts_consumption,
            *(SHADOW + name for name in (shadow.counts_consumption if shadow else ())),
        }
        tallies = {
            policy: {key: [tally[0], 1, tally[0], 0, 1] for key, tally in of_policy.items()}
            for policy, of_policy in inner.get("tallies", NOTHING).items()
            if policy in names
        }
        return {"seq": 0, "facts": [], "tallies": tallies} if tallies else None

    @property
    def sent(self) -> str | None:
        """The digest of an input that came with a `Send`, else None. It tells siblings apart."""
        path: Any = self.record.path
        if not path or path[0] != "__pregel_push":
            return None
        return digest(as_state(self.input if self.given is None else self.given))

    # Inside the body

    def graph_number(self, execution: int, place: tuple[int, Any], *, resumed: bool) -> int:
        """The number of a graph without a namespace in the body: that of the execution of the graph that it goes on
        with at this place, a saver and a thread, or else that of its own.
        """
        with _lock:
            calls = self._calls = self._calls or {}
            if not resumed:
                calls[place] = execution
            return calls.setdefault(place, execution)

    def report(self, graph: str, step: int, of: HasPast, facts: Mapping[str, RunFact]) -> None:
        """Report that nodes of a graph inside the body have finished: the holder of its graph's past, and the facts
        of its superstep `step`, by their order. There is none when a graph goes on where it was.
        """
        with _lock:
            inner = self._inner = self._inner or {}
            known = inner.get(graph)
            if known is None or known.step != step or known.of is not of:
                known = inner[graph] = _Inside(of, of.past.seq, step)
            known.facts.update(facts)

    def called(self, facts: Sequence[RunFact]) -> Past:
        """Add the facts of governed functions in the body. Returns the past of the next one."""
        with _lock:
            if facts:
                self._functions = fold(self._functions, facts, self.settings.facts)
            return Past(self._functions, self.past)

    def inner(self) -> Value | None:
        """The joined values of all graphs and functions inside the body; None if there are none."""
        if not self._inner and not self._functions:
            return None
        keep = self.settings.facts
        with _lock:
            inner = self._inner or {}
            values = [inner[name].value(keep) for name in sorted(inner, key=lambda n: (len(n), n))]
        if self._functions:
            values.insert(0, self._functions)
        return values[0] if len(values) == 1 else fold({}, [{"inner": v} for v in values], keep)

    # Writes of the body apart from its output, such as those of `push_message`

    def written(self, output: Any) -> Any:
        """All writes of the node, to be committed together: those that its body made itself, each as an
        update, then its output.
        """
        return output

    def take_back(self) -> None:
        """Drop these writes."""

    # For the driver

    @property
    def tools(self) -> ToolsOf | None:
        """The function that finds the LangChain tools of the body."""
        return None

    def body(self, buffered: bool) -> Any:
        raise NotImplementedError

    async def abody(self, buffered: bool) -> Any:
        raise NotImplementedError

    def astream_body(self, buffered: bool) -> AsyncIterator[Any]:
        raise NotImplementedError

    @property
    def saver(self) -> Any:
        """The checkpointer, or None."""
        return None

    def access(self, op: Saving) -> Access[Any]:
        """Perform a request that needs the checkpointer."""
        raise NotImplementedError

    @property
    def recovered(self) -> Recovered | None:
        """The superstep that this execution resumes, once it has been read."""
        return _NOT_RESUMED

    def recover(self, recovered: Recovered) -> None:
        """Keep the recovered counts for later node runs of this execution."""

    def skip_questions(self, count: int) -> None:
        """Count the questions that the body asked in an earlier draft, so that they are not asked again."""

    def is_final(self, error: BaseException) -> bool:
        """True if LangGraph will not retry after that error of the body."""
        return True

    def is_own(self, command: Command[Any]) -> bool:
        """True if a command from a subgraph is meant for this node's graph."""
        return False

    @property
    def answered(self) -> int:
        """The number of the body's questions that have an answer."""
        return 0
