"""The hidden channel, which carries the facts through supersteps and checkpoints."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_READ,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_TASK_ID,
    NS_SEP,
)
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError
from langgraph.pregel import Pregel
from langgraph.types import Send

from arbiter._lifecycle.core import Core
from arbiter._lifecycle.registry import Registry
from arbiter._lifecycle.runs import SHADOW, current_run
from arbiter.history._facts import MOVED, RunFact, Value, without_tallies
from arbiter.history._past import Past, task_order
from arbiter.history._record import Described, Record
from arbiter.history._recorder import Execution

FACTS = "__arbiter_ledger"
"""The channel's key in checkpoints. It is older than its name here; another key would lose the facts of saved threads.
"""
_log = logging.getLogger("arbiter")


def fact_write(fact: RunFact) -> tuple[str, Any]:
    """The write that puts a fact into the hidden channel.

    `Command(update=...)` can write to any channel by name, so a caller could name this one. But a `Send` has
    no JSON form, so a client's JSON cannot forge a fact. Every checkpointer stores a `Send`, as it stores
    those of a graph, so another process finds it among the pending writes.
    """
    return FACTS, Send(FACTS, fact)


def facts_in(values: Iterable[Any]) -> list[RunFact]:
    """The facts among the values that were written to the hidden channel. Other values are ignored."""
    return [value.arg for value in values if isinstance(value, Send) and value.node == FACTS]


def runs_in(writes: Iterable[tuple[Any, str, Any]]) -> list[RunFact]:
    """The facts of node runs among the pending writes of a checkpoint."""
    return [fact for fact in facts_in(value for _, name, value in writes if name == FACTS) if "node" in fact]


class Origin:
    """The original of a governed graph, and the rules that govern its nodes. `path` are the nodes around a
    subgraph.
    """

    def __init__(
        self,
        core: Core,
        graph: Pregel[Any, Any, Any, Any],
        rules: Any,
        path: tuple[str, ...] = (),
        source: Origin | None = None,
        describe: Callable[[Origin], Described] | None = None,
    ) -> None:
        self.core = core
        self.graph = graph
        self.rules = rules
        self.path = path
        self.source = source
        """For a copy, the origin of the governed graph that was copied. Contracts are checked against it, so
        it is kept alive.
        """
        self.describe = describe
        self._described: Described | None = None
        policies: list[Any] = [graph.cache_policy, *(node.cache_policy for node in graph.nodes.values())]
        self.caches = any(policy is not None for policy in policies)
        """True if a node cache may serve outputs."""

    def described(self) -> Described | None:
        """The description of the graph for listeners, made at its first use."""
        if self._described is None and self.describe is not None:
            self._described = self.describe(self)
        return self._described

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        graph = copy.deepcopy(self.graph, memo)
        return Origin(self.core, graph, self.rules, self.path, self, self.describe)


class FactsChannel(BaseChannel[Any, Any, Value]):
    """The channel that carries a graph's facts. It is saved with every checkpoint.

    It looks empty to code that reads channels: tools, middleware and edges get the state channel by channel.
    Use `facts_channel_in` to reach it. LangGraph makes one instance for each execution of the graph, so the
    instance also stands for that execution (`execution`).
    """

    __slots__ = ("core", "done", "ending", "execution", "moved", "origin", "past", "ran", "reads")

    def __init__(
        self, origin: Origin, key: str = FACTS, past: Past | None = None, execution: Execution | None = None
    ) -> None:
        super().__init__(dict, key)
        self.core = core = origin.core
        self.origin = origin
        self.past = Past({}, keep=core.settings.facts) if past is None else past
        self.execution = execution
        self.done: dict[str, tuple[RunFact, Any]] = {}
        """The fact and path of this superstep's finished tasks, by id, if no checkpointer saves writes.

        They avoid a write, which costs LangGraph as much time as a whole governed node run.
        """
        self.ending: dict[str, tuple[Record, Callable[[], None]]] = {}
        """By task, the call that tells listeners of its end once its writers are done."""
        self.ran: set[str] | None = None
        """In a graph with a node cache, the tasks of this superstep that ran: the facts of others are served by the
        cache. None while that is not known."""
        self.reads: dict[Any, Any] = {}
        """The reads of its checkpoint that this superstep's tasks share, by place and event loop."""
        self.moved: str | None = None
        """The call in which the graph goes on, until it has done so, if it began in another one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactsChannel) and other.core is self.core

    __hash__ = None  # type: ignore[assignment]

    @property
    def ValueType(self) -> Any:  # noqa: N802 - BaseChannel's name
        return dict

    @property
    def UpdateType(self) -> Any:  # noqa: N802 - BaseChannel's name
        return dict

    def copy(self) -> FactsChannel:
        return FactsChannel(self.origin, self.key, self.past, self.execution)

    def __deepcopy__(self, memo: dict[int, Any]) -> FactsChannel:
        if self.execution is None:  # the instance of a graph, which is being copied
            return FactsChannel(copy.deepcopy(self.origin, memo), self.key)
        new = self.copy()
        new.done = dict(self.done)
        return new

    def from_checkpoint(self, checkpoint: Value | Any) -> FactsChannel:
        value: Value = {} if checkpoint is MISSING else checkpoint
        past = Past.restored(value, self.core.settings.facts)
        channel = FactsChannel(self.origin, self.key, past, Execution(self.core.recorder))
        if (call := _begun.get()) is not None:
            _begun.set(None)
            if value and past.value.get("call", call) == call:
                channel._go_on()
            else:
                channel.moved = call
        return channel

    def _go_on(self) -> None:
        """Report to the node run around the graph what the graph has done for it before."""
        caller = current_run.get()
        if caller is not None and caller.settings is self.core.settings:
            caller.run.log.identify(self.past)  # else listeners would take them for those of another process
            caller.report(cast(Execution, self.execution).name, -1, self, {})

    def checkpoint(self) -> Value | Any:
        return self.past.stored() or MISSING

    def get(self) -> Any:
        raise EmptyChannelError

    def is_available(self) -> bool:
        # At the end of a superstep LangGraph calls `update` on channels without writes only if they are available.
        return bool(self.done)

    def update(self, values: Sequence[Any]) -> bool:
        # Also called, without values, at the end of a superstep whose facts were not written.
        if self.reads:
            self.reads = {}
        facts = facts_in(values) if values else []
        if len(facts) < len(values):  # ignored, as LangGraph ignores a write to an unknown channel
            _log.warning("ignored a write to channel %r, to which Arbiter alone writes", FACTS)
        if done := self.done:
            self.done = {}
            ended = [*done.values()]
            # In the order in which LangGraph would apply them as writes.
            if len(ended) > 1:
                ended.sort(key=lambda each: task_order(each[1]))
            facts += [fact for fact, _ in ended]
        if not facts:
            return False
        if self.moved is not None:
            facts.insert(0, {**MOVED, "call": self.moved})
            self.moved = None
        if self.origin.caches:
            if self.ran is not None:
                spends = {*_spends(registry := self.core.registry)}
                if registry.shadow is not None:
                    spends.update(SHADOW + name for name in _spends(registry.shadow))
                facts = [
                    fact if fact.get("id") in self.ran else without_tallies(fact, spends) for fact in facts
                ]
            self.ran = set()
        self.past = self.past.after(facts)
        return True


def _spends(registry: Registry) -> Iterator[str]:
    return (each.name for each in registry.checkers if each.contract.counts_consumption)


def facts_channel_in(conf: dict[str, Any]) -> FactsChannel:
    """The hidden channel of the execution to which a task belongs.

    LangGraph's reader is a partial that holds the channels; `ToolNode` reads them from there too.
    """
    found: FactsChannel = conf[CONFIG_KEY_READ].args[1][FACTS]
    return found


def reads_in(conf: Mapping[str, Any]) -> dict[Any, Any]:
    """The shared reads of the execution to which a task belongs; none if its graph is not governed."""
    channel = conf[CONFIG_KEY_READ].args[1].get(FACTS)
    return {} if channel is None else channel.reads


def writes_in(conf: dict[str, Any]) -> deque[tuple[str, Any]]:
    """The writes of a task so far. The reader holds them too, so that a task reads its own writes."""
    found: deque[tuple[str, Any]] = conf[CONFIG_KEY_READ].args[3].writes
    return found


def conf_of(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = config[CONF]
    return found


# When a task is resumed, LangGraph loads each graph that its body calls where the graph was, and runs none of the
# nodes that are done. So the node run or function around a graph has to look at what the graph has saved. The number
# of the call tells it from what the graph has saved in another superstep, and from a look at its state. `Send`s share
# the place of a graph that keeps its state, which has the work of the last one: it stands for that of each.

_begun: ContextVar[str | None] = ContextVar("arbiter_begun", default=None)
"""The call of the graph that LangGraph is about to load, in a task that is resumed."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """LangGraph's counter of the graphs that a task calls, which also notes the call."""

    step: str
    counter: Callable[[], int]

    def __call__(self) -> int:
        number = self.counter()
        _begun.set(f"{self.step}|{number}")
        return number


def note_calls(conf: dict[str, Any]) -> None:
    """Note the calls of graphs in this task, which is resumed, from now on."""
    pad = conf.get(CONFIG_KEY_SCRATCHPAD)
    if pad is not None and type(pad.subgraph_counter) is not _Calls:
        calls = _Calls(_step_of(conf), pad.subgraph_counter)
        conf[CONFIG_KEY_SCRATCHPAD] = replace(pad, subgraph_counter=calls)


def call_of(conf: Mapping[str, Any], caller: RunnableConfig | None) -> str:
    """The call of the graph of a task, by that config and the config of the node run around the graph. "" if no task
    of LangGraph calls the graph.
    """
    around: Mapping[str, Any] = (caller or {}).get(CONF, {})
    if CONFIG_KEY_TASK_ID not in around:
        return ""
    # The first graph has no number.
    number = str(conf[CONFIG_KEY_CHECKPOINT_NS]).rpartition(NS_SEP)[0].rpartition(NS_SEP)[2]
    return f"{_step_of(around)}|{number if number.isdigit() else 0}"


def _step_of(conf: Mapping[str, Any]) -> str:
    """The checkpoint with which the superstep of a task began, or the task if LangGraph names no checkpoint."""
    namespace = str(conf.get(CONFIG_KEY_CHECKPOINT_NS, "")).rpartition(NS_SEP)[0]
    return str(conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(namespace, conf[CONFIG_KEY_TASK_ID]))
