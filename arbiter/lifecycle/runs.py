"""One attempt of one governed node: what the lifecycle reads and decides, and what its driver can do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import Command
from pydantic import TypeAdapter

from arbiter.calls import as_failure, is_from_outside, new_lock
from arbiter.contracts import Contract
from arbiter.evaluations import Background, ReadEvaluations
from arbiter.facts import KEEP, Fact, Past, Value, fold
from arbiter.history import CausalHistory, Record, ToolsOf, fact_from, facts_of, share_layout, with_spent
from arbiter.lifecycle.requests import Ask, Begin, Entry, Saved, Spend, Stopped
from arbiter.policy import PolicyChecker, PolicyRouter
from arbiter.recorder import Recovered, Run
from arbiter.registry import Plan
from arbiter.shadow import ShadowDecision, ShadowLog
from arbiter.states import Snapshot, as_state, digest, joined, with_seen
from arbiter.verdicts import EvaluationResult, Verdict

T = TypeVar("T")


@dataclass(slots=True)
class Schemas:
    """Declared shapes of a node's input and output. Anything that a pydantic `TypeAdapter` takes."""

    input: TypeAdapter[Any] | None = None
    output: TypeAdapter[Any] | None = None
    input_name: str = ""
    output_name: str = ""


@dataclass(slots=True, eq=False)
class Settings:
    """What is the same for all node runs of one `ArbiterOS`. `facts` bounds what a checkpoint holds."""

    snapshot: Snapshot
    background: Background
    facts: int = KEEP
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    shadow: ShadowLog = dataclasses.field(default_factory=ShadowLog)


@dataclass(slots=True, eq=False)
class Handed:
    """Advice for a node that is a graph: it goes to the nodes inside, since a graph's input is saved and streamed."""

    advisor: str
    advice: Any
    id: str
    messages_key: str
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A call that a handler has stopped. `call` is the id of the tool call that it was made for, if known."""

    checker: PolicyChecker
    reason: str
    cause: BaseException | None
    call: str | None


_lock = new_lock()
NOTHING: Mapping[str, Any] = MappingProxyType({})
NO_RESULTS: Mapping[str, EvaluationResult] = MappingProxyType({})
SHADOW = "shadow:"
"""What the tallies of a shadow constitution's checkers are filed under."""
_FUNCTIONS = "()"
_NOT_RESUMED: Recovered = (-1, NOTHING, NOTHING)
opened: ContextVar[NodeRun | None] = ContextVar("arbiter_opened", default=None)
"""The governed node whose body is running: what graphs and functions that it calls belong to."""


def call_apart(
    run: NodeRun, contract: Contract, method: Callable[[CausalHistory], T], view: CausalHistory
) -> T:
    """Call a method of a contract in place. One whose decisions do not hold can fail, and no more than that."""
    if contract.enforced:
        return method(view)
    token = var_child_runnable_config.set(run.apart)
    try:
        return method(view)
    except BaseException as exc:
        if is_from_outside(exc) or isinstance(exc, Exception):
            raise
        raise as_failure(exc) from exc
    finally:
        var_child_runnable_config.reset(token)


class NodeRun:
    """One attempt of one governed node: what the lifecycle reads and decides, and what its driver can do.

    Made for every step of every graph, so most of it is made when it is first needed. Subclasses say how the
    body runs and how a human is asked: `weaving.Visit` in LangGraph, `functions.FunctionCall` without a graph.
    """

    redirect: str | None = None
    """Where the run goes instead of along the edges: a node, or END."""
    given: Mapping[str, Any] | None = None
    """The input's fields before something was lent."""
    lent: Mapping[str, Any] = NOTHING
    """State keys and messages that the body has for this call only."""
    handed: Sequence[Handed] = ()
    """Advice for the nodes of the graph that this node is."""
    reads: ReadEvaluations | None = None
    questions: int = 0
    handlers: Sequence[BaseCallbackHandler] = ()
    """What looks into the body."""
    stops: Sequence[Stop] = ()
    """What that has stopped."""
    streamed: Sequence[Callable[[], None]] = ()
    """What the body has streamed while it was held; each sends one thing on its way."""
    pushed: Sequence[Mapping[str, Any]] = ()
    """What the body has written to the state by itself, beside its output, while it was held: `push_message`, say."""
    escalation: tuple[PolicyRouter, Verdict] | None = None
    """A router wants a human to look at the output."""
    held: Mapping[str, Any] | None = None
    """The question about the output of this task that an earlier attempt has asked. The body is done."""
    saved: Saved | None = None
    """What was saved of it, once somebody has looked."""
    since: int | None = None
    """The number of the first question on whose answer this node run goes; None if nobody was asked."""
    approved_by: str | None = None
    """The policy whose question a human has answered with an approval or an edit."""
    approved_key: str = ""
    """The digest of the input that was approved."""
    retries: int = 0
    """How many further times the body may begin on the approvals that were given."""
    entry: Entry | None = None
    """The note that it has begun on approvals."""
    capped: PolicyRouter | None = None
    """A router wants the best attempt, because it may not redirect again."""
    may_be_held: bool = False
    """Whether an earlier attempt may have asked about its output, also where no rule would ask now."""
    replaced: bool = False
    """The node's output is another than what its body returned or streamed."""
    begun: float = 0.0
    shadow: ShadowDecision | None = None
    """What a shadow constitution decided before the node."""
    _view: CausalHistory | None = None
    _shadow_view: CausalHistory | None = None
    _aside: RunnableConfig | None = None
    _apart: RunnableConfig | None = None
    _inner: dict[str, tuple[int, Value, dict[str, Fact]]] | None = None

    def __init_subclass__(cls) -> None:
        share_layout(cls, "begun", "_view", "_aside", "reads")

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
        targets: frozenset[str],
        schemas: Schemas | None,
    ) -> None:
        self.record = record
        self.plan = plan
        self.input = input
        self.settings = settings
        self.run = run
        self.past = past
        self.parent = parent
        self.config = config
        self.targets = targets
        self.schemas = schemas
        self.is_plain = plan.plain and schemas is None and (parent is None or not self.inherited)
        """Whether there is nothing to decide unless a checker or router objects, or the body raises; and, at its end,
        whether none did."""

    is_graph: bool = False
    """Whether its body is a graph, whose nodes are governed too."""

    @property
    def is_saved(self) -> bool:
        """Whether what it writes is kept by a checkpointer, or by whoever called it."""
        return True

    @property
    def inherited(self) -> Sequence[Handed]:
        """Advice that the graphs around this node were given for their nodes."""
        parent = self.parent
        if parent is None or not parent.is_graph:
            return ()
        outer = parent.inherited
        return (*outer, *parent.handed) if outer else parent.handed

    @property
    def view(self) -> CausalHistory:
        """What policies see."""
        if self._view is None:
            self._view = CausalHistory(self.past, self.record, self.run, self.plan.cycle)
            if self.settings.clock is not time.time:
                self._view.clock = self.settings.clock
            if self.plan.watchers:
                self._view.give_tools(self.tools)
            if self.plan.guards:
                self._view.own.watch()
        return self._view

    def checked_input(self) -> Any:
        """The input as the checkers have seen it: what they looked at is the node's own from now on. A sibling, or
        anybody who has the same object, changes it neither between the check and the body nor while that runs."""
        if self._view is None or not self.plan.guards:
            return self.input
        seen = self._view.own.seen()
        path: Any = self.record.path
        is_shared = bool(path) and path[0] == "__pregel_push"
        if seen is None:
            return self.input
        return with_seen(self.input, seen, is_shared=is_shared)

    @property
    def shadow_view(self) -> CausalHistory:
        """What policies of a shadow constitution see: the same, with tallies and evaluations of their own."""
        if self._shadow_view is None:
            self._shadow_view = CausalHistory(
                self.past, self.record, self.run, tallies=SHADOW, evaluations=NO_RESULTS
            )
            self._shadow_view.clock = self.settings.clock
            self._shadow_view.give_tools(self.tools)
        return self._shadow_view

    @property
    def aside(self) -> RunnableConfig | None:
        """The ambient config while a contract is called: its own model calls belong to no stream and no trace
        of the node, and `get_config()` still tells it about thread, user and so on."""
        if self._aside is None and (config := self.config) is not None:
            tags = [*(config.get("tags") or ()), "nostream"]
            self._aside = {**config, "callbacks": None, "tags": tags}
        return self._aside

    @property
    def apart(self) -> RunnableConfig | None:
        """As `aside`, for a contract whose decisions do not hold: it can neither pause the run nor stream."""
        if self._apart is None and (config := self.aside) is not None:
            self._apart = self.without_effects(config)
        return self._apart

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        """A config by which nothing can be written."""
        raise NotImplementedError

    def fact(self) -> Fact:
        """What is to be committed with the node's own writes."""
        fact = fact_from(self.record, self.plan.kinds if self.is_plain else None)
        if self.reads is not None and self.reads.read:
            fact["evals"] = facts_of(self.reads.read)
        if self.plan.keeps_output:
            if self.redirect is not None:
                fact["task"] = self.record.id
            if (sent := self.sent) is not None:
                fact["sent"] = sent
        if self.record.spent:
            fact["tallies"] = with_spent(fact.get("tallies", NOTHING), self.record.spent)
        if self._inner and (inner := self.inner()) is not None:
            if self.record.status == "completed":
                fact["inner"] = inner
            elif used := self._used_up(inner):
                fact["inner"] = used
        return fact

    def _used_up(self, inner: Value) -> Value | None:
        """What stays of the graphs inside a body of which nothing is committed: what they used up."""
        shadow = self.plan.shadow
        names = {*self.plan.spends, *(SHADOW + name for name in (shadow.spends if shadow else ()))}
        tallies = {
            policy: {key: [tally[0], 1, tally[0], 0, 1] for key, tally in of_policy.items()}
            for policy, of_policy in inner.get("tallies", NOTHING).items()
            if policy in names
        }
        return {"seq": 0, "facts": [], "tallies": tallies} if tallies else None

    @property
    def sent(self) -> str | None:
        """The digest of the input, if it came with a `Send`: it tells siblings apart."""
        path: Any = self.record.path
        if not path or path[0] != "__pregel_push":
            return None
        return digest(as_state(self.input if self.given is None else self.given))

    # What happens inside the body

    def report(self, namespace: str, step: int, value: Value, order: str, fact: Fact) -> None:
        """A node of a graph inside the body has finished: its graph's value before, and its fact."""
        with _lock:
            inner = self._inner = self._inner or {}
            known = inner.get(namespace)
            if known is None or known[0] != step:
                known = inner[namespace] = (step, value, {})
            known[2][order] = fact

    def adopt(self, namespace: str, value: Value) -> None:
        """What a graph inside the body has come to, where nobody could report it."""
        with _lock:
            inner = self._inner = self._inner or {}
            inner[namespace] = (-1, value, {})

    def called(self, facts: Sequence[Fact]) -> Past:
        """Note what governed functions in the body did; the past of the next one."""
        with _lock:
            inner = self._inner = self._inner or {}
            _, value, _ = inner.get(_FUNCTIONS, (-1, {}, {}))
            if facts:
                value = fold(value, facts, self.settings.facts)
                inner[_FUNCTIONS] = (-1, value, {})
        return Past(value, self.past)

    def inner(self) -> Value | None:
        """What all graphs and functions inside the body have come to."""
        if not self._inner:
            return None
        with _lock:
            parts = [self._inner[name] for name in sorted(self._inner, key=lambda n: (len(n), n))]
        keep = self.settings.facts
        values = [fold(value, [facts[o] for o in sorted(facts)], keep) for _, value, facts in parts]
        return values[0] if len(values) == 1 else fold({}, [{"inner": v} for v in values], keep)

    # What the body wrote by itself, beside its output: `push_message`, say

    def written_aside(self) -> Sequence[Mapping[str, Any]]:
        """Each as an update of its own, in order. It waits to be committed with the output."""
        return ()

    def take_back(self) -> None:
        """Commit nothing of it."""

    def written(self, output: Any) -> Any:
        """All that the node writes: its output, after what its body wrote by itself."""
        aside = self.written_aside()
        return joined([*aside, as_state(output)]) if aside else output

    # What the driver needs

    @property
    def tools(self) -> ToolsOf | None:
        """Finds the LangChain tools that the body holds."""
        return None

    def body(self, input: Any, held: bool) -> Any:
        raise NotImplementedError

    async def abody(self, input: Any, held: bool) -> Any:
        raise NotImplementedError

    def astream_body(self, input: Any, held: bool) -> AsyncIterator[Any]:
        raise NotImplementedError

    def ask(self, op: Ask) -> Any:
        raise NotImplementedError

    async def aask(self, op: Ask) -> Any:
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """Whether another execution in this process has begun on approvals of this task, and has not ended."""
        return False

    def spend(self, op: Spend) -> None:
        """Save what the node run has used up."""

    async def aspend(self, op: Spend) -> None:
        """As `spend`."""

    def begin(self, op: Begin) -> bool:
        """Note that the body begins on approvals; whether no other execution has."""
        return True

    async def abegin(self, op: Begin) -> bool:
        return True

    def stopped(self, op: Stopped) -> None:
        """Note how it ended, if it did not complete."""

    async def astopped(self, op: Stopped) -> None:
        """As `stopped`."""

    def look_back(self) -> Saved:
        return Saved()

    async def alook_back(self) -> Saved:
        return Saved()

    @property
    def recovered(self) -> Recovered | None:
        """What this execution resumes, once somebody has looked."""
        return _NOT_RESUMED

    def recover(self, recovered: Recovered) -> None:
        """Remember it for the node runs that follow in this execution."""

    def output_of(self, task: str) -> tuple[Any] | None:
        return None

    async def aoutput_of(self, task: str) -> tuple[Any] | None:
        return None

    def skip_questions(self, count: int) -> None:
        """Count the questions that the body asked in an earlier draft: they are not asked again."""

    def is_final(self, error: BaseException) -> bool:
        """Whether nobody will retry after that error of the body."""
        return True

    def is_own(self, command: Command[Any]) -> bool:
        """Whether a command that came up from a subgraph is meant for this node's graph."""
        return False

    @property
    def answered(self) -> int:
        """How many questions of the body have an answer."""
        return 0

    def keep(self, note: Mapping[str, Any]) -> None:
        """Save a note about this task, if a checkpointer is there to keep it."""

    async def akeep(self, note: Mapping[str, Any]) -> None:
        """As `keep`."""
