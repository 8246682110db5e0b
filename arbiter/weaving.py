"""Weaving the lifecycle into a compiled LangGraph graph.

The one module that touches LangGraph's inner parts; `tests/test_langgraph_contract.py` holds exactly those
against the oldest and the newest supported release.

A governed graph is a copy in which each node's cached `PregelNode.node`, which is what a task runs, is built by
LangGraph from a wrapper and gated writers. `bound` and `writers` stay what they were, so everything that looks at
the graph sees the original. One hidden channel, `LedgerChannel`, carries the facts through checkpoints.
See docs/design/weaving.md.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseCallbackManager,
    CallbackManager,
)
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler  # pyright: ignore[reportPrivateUsage]
from langchain_core.utils.uuid import uuid7
from langgraph._internal._config import recast_checkpoint_ns
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    INTERRUPT,
    NS_SEP,
    NULL_TASK_ID,
    PULL,
    RESUME,
    TASKS,
)
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.constants import END, START
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.graph.state import _control_branch  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel import Pregel
from langgraph.pregel._read import DEFAULT_BOUND, PregelNode
from langgraph.pregel._retry import _should_retry_on  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel._write import PASSTHROUGH, ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import Command, RetryPolicy, interrupt

from arbiter.core import Core
from arbiter.drivers import Final, adrive, adrive_stream, drive
from arbiter.errors import EvaluationError, SyncDriverError
from arbiter.evaluations import Stack, running
from arbiter.facts import NESTED_RUN, RUN, Fact, Past, Value
from arbiter.history import task_order
from arbiter.instructions import Instruction
from arbiter.lifecycle import NO_ANSWER, Answered, Ask, NodeRun, Saved, Schemas, opened
from arbiter.recorder import Loop, Recovered, Run, begin
from arbiter.registry import Plan, Seat
from arbiter.states import snapshot

LEDGER = "__arbiter_ledger"
_STASH = "__arbiter_fact"
_NOTE = "__arbiter_note"
_BRANCH_TO = "branch:to:{}"
_STAMP = "__arbiter_answer__"


# The hidden channel -------------------------------------------------------------------------------


class LedgerChannel(BaseChannel[Any, Fact, Value]):
    """Holds the ledger value of a graph. Its `get` gives the channel itself: value and execution.

    LangGraph makes one instance for each execution of the graph, so the instance also stands for that
    execution (`loop`).
    """

    __slots__ = ("core", "done", "loop", "original", "past")

    def __init__(self, core: Core, original: Pregel[Any, Any, Any, Any], key: str = LEDGER) -> None:
        super().__init__(dict, key)
        self.core = core
        self.original = original
        self.past = Past({}, keep=core.settings.facts)
        self.loop: Loop | None = None
        self.done: dict[str, tuple[Fact, Any]] = {}
        """Fact and path of the tasks of this superstep that are done, by id, where no checkpointer saves writes: a
        write costs LangGraph as much as a node run costs us."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerChannel) and other.core is self.core

    __hash__ = None  # type: ignore[assignment]

    @property
    def ValueType(self) -> Any:  # noqa: N802 - BaseChannel's name
        return dict

    @property
    def UpdateType(self) -> Any:  # noqa: N802 - BaseChannel's name
        return dict

    def _with(self, past: Past, loop: Loop | None) -> LedgerChannel:
        new = LedgerChannel(self.core, self.original, self.key)
        new.past, new.loop = past, loop
        return new

    def copy(self) -> LedgerChannel:
        return self._with(self.past, self.loop)

    def from_checkpoint(self, checkpoint: Value | Any) -> LedgerChannel:
        value: Value = {} if checkpoint is MISSING else checkpoint
        return self._with(Past(value, keep=self.core.settings.facts), Loop(self.core.recorder))

    def checkpoint(self) -> Value | Any:
        return self.past.value or MISSING

    def get(self) -> Any:
        return self

    def is_available(self) -> bool:
        return True

    def update(self, values: Sequence[Fact]) -> bool:
        # Also called, with nothing, at the end of a superstep in which nobody has written.
        if done := self.done:
            self.done = {}
            values = [*values, *(_in_order(done) if len(done) > 1 else done.popitem()[1][:1])]
        elif not values:
            return False
        self.past = self.past.after(values)
        return True


def _in_order(done: Mapping[str, tuple[Fact, Any]]) -> list[Fact]:
    """The facts as LangGraph would apply them, were they written."""
    return [fact for fact, _ in sorted(done.values(), key=lambda each: task_order(each[1]))]


# What passes through the writers ------------------------------------------------------------------


class Redirect:
    """Passes through a node's writers in place of its output when the run goes elsewhere."""

    __slots__ = ("output", "target")

    def __init__(self, output: Any, target: str) -> None:
        self.output = output
        self.target = target


_NO_STASH: tuple[Any, Any, Any] = (None, None, None)
"""What is on its way from the wrapper to the first writer: a fact, to be committed with the node's update, the record
of the node run, and where the fact goes if it need not be saved."""


# Writers ------------------------------------------------------------------------------------------


class GatedWrite(ChannelWrite):
    """A node's channel write. On a redirect the first one writes the state update and the new target,
    and every later one writes nothing."""

    def __init__(self, write: ChannelWrite, *, first: bool, last: bool) -> None:
        super().__init__(write.writes, tags=write.tags)
        self.first = first
        self.last = last
        self.parts = parts = _parts_written(write.writes)
        self.parts_of_dict = (
            None if parts is None else [part for part in parts if part[0] is not _control_branch]
        )
        """A dict is no command."""

    def write(self, input: Any, config: RunnableConfig) -> Any:
        """Write what the node has returned, and what its wrapper has stashed; pass it on."""
        conf = _conf(config)
        fact, record, ledger = conf.pop(_STASH, _NO_STASH) if self.first else _NO_STASH
        written: list[Any] = [] if fact is None or ledger is not None else [(LEDGER, fact)]
        passed_on = input
        try:
            if type(input) is Redirect:
                if self.last:
                    passed_on = input.output
                if not self.first:
                    return passed_on
                _gather(_do_write, self._redirected(input), written)
            elif (parts := self.parts if type(input) is not _DICT else self.parts_of_dict) is None:
                _gather(super()._write, input, written)
            else:
                for mapper, pair in parts:
                    if mapper is None:
                        written.append(pair)
                    elif found := mapper(input):
                        written.extend(found)
            conf[CONFIG_KEY_SEND](written)
            if ledger is not None:
                ledger.done[record.id] = fact, record.path
        except Exception as exc:
            _not_written(conf, exc)
            raise
        return passed_on

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        return self.write(input, config)

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        return self.write(input, config)

    def _redirected(self, redirect: Redirect) -> list[Any]:
        """The state update, which is the first entry of a node's first writer, and the new target."""
        update = cast(ChannelWriteTupleEntry, self.writes[0])
        writes: list[Any] = [ChannelWriteTupleEntry(update.mapper, _for_this_graph(redirect.output))]
        if redirect.target != END:
            writes.append(ChannelWriteEntry(_BRANCH_TO.format(redirect.target), None))
        return writes


def _not_written(conf: dict[str, Any], error: Exception) -> None:
    """A node has run, and what it returned, or the way that its edges lead, cannot be written."""
    loop = _ledger_in(conf).loop
    if loop is None or loop.run is None or isinstance(error, GraphBubbleUp):
        return
    if (record := loop.run.log.by_id.get(conf[CONFIG_KEY_TASK_ID])) is not None:
        record.status, record.error = "failed", f"{type(error).__name__}: {error}"


# A fact goes together with the node's writes, all or none, and before them. All or none, because a fact alone would
# make LangGraph take a failed task for done. Before them, because savers know a task's writes by position and keep the
# old ones when the task runs again (a replay from an addressed checkpoint): a fact behind them would keep the place of
# a write that only the new attempt has.


def _gather(write: Callable[[Any, Any], Any], input: Any, written: list[Any]) -> None:
    """Add to `written` what `write` writes of `input`."""
    write(input, {CONF: {CONFIG_KEY_SEND: written.extend}})  # all of a config that a channel write looks at


def _do_write(writes: Any, config: Any) -> None:
    ChannelWrite.do_write(config, writes)


def _parts_written(entries: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """What a channel write does, as (mapper of the node's output, None) or (None, what is written), where it is as
    plain as that of a node with edges."""
    parts: list[tuple[Any, Any]] = []
    for entry in entries:
        if type(entry) is ChannelWriteTupleEntry and entry.value is PASSTHROUGH:
            parts.append((entry.mapper, None))
        elif type(entry) is ChannelWriteEntry and entry[1:] == (None, False, None) and entry.channel != TASKS:
            parts.append((None, (entry.channel, None)))
        else:
            return None
    return parts


def _ledger_in(conf: dict[str, Any]) -> LedgerChannel:
    """The hidden channel of the execution that a task belongs to.

    LangGraph's reader is a partial that holds the channels. Calling it gathers the task's own writes first,
    which takes as long as a fifth of a step of ours, so we look at what it holds, if it is as we know it.
    """
    read: Any = conf[CONFIG_KEY_READ]
    try:
        found: LedgerChannel = read.args[1][LEDGER]
    except (AttributeError, IndexError, KeyError, TypeError):
        found = read(LEDGER)
    return found


def _conf(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = config[CONF]
    return found


def _for_this_graph(output: Any) -> Any:
    """A command's update without its goto; also that of a command to the parent, which is not reached now."""
    parts: Any = output
    if isinstance(output, Command):
        return replace(parts, graph=None, goto=())
    if isinstance(output, list | tuple):
        return [_for_this_graph(part) for part in parts]
    return parts


class GatedBranch(Runnable[Any, Any]):
    """A conditional edge that is not asked on a redirect."""

    def __init__(self, branch: Runnable[Any, Any], *, last: bool) -> None:
        self.branch = branch
        self.last = last

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if type(input) is Redirect:
            return input.output if self.last else input
        try:
            return self.branch.invoke(input, config, **kwargs)
        except Exception as exc:
            _not_written(_conf(config), exc)
            raise

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if type(input) is Redirect:
            return input.output if self.last else input
        try:
            return await self.branch.ainvoke(input, config, **kwargs)
        except Exception as exc:
            _not_written(_conf(config), exc)
            raise


class StartWrite(ChannelWrite):
    """The write of a graph's input: also tells the ledger that a run begins."""

    def __init__(self, write: ChannelWrite, core: Core) -> None:
        super().__init__(write.writes, tags=write.tags)
        self.core = core

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        if self.core.registry.empty:
            return super()._write(input, config)
        parent = opened.get()
        nested = parent is not None and parent.settings is self.core.settings
        written: list[Any] = [(LEDGER, NESTED_RUN if nested else RUN)]
        _gather(super()._write, input, written)
        _conf(config)[CONFIG_KEY_SEND](written)
        return input

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        return self._write(input, config)


class GovernedSequence(RunnableSeq):
    """The wrapper of a node and its writers, one after another, as LangGraph runs them.

    LangGraph opens a run for callback handlers around them, and hands each step a child of it. Where there is no
    handler nobody is told of that run, so it is left out, and the child is made when somebody looks at it.
    """

    is_plain: bool
    """Whether nothing changes what a tracer would be shown."""
    node: GovernedNode
    rest: list[tuple[int, Any]]
    """The steps after it, numbered from 2."""

    @classmethod
    def of(cls, sequence: RunnableSeq, node: GovernedNode) -> GovernedSequence:
        """The same steps as the sequence that LangGraph has made, of which `node` is the first."""
        new = cls.__new__(cls)
        vars(new).update(vars(sequence))
        new.node, new.rest = node, list(enumerate(cast(list[Any], sequence.steps)[1:], 2))
        policy = getattr(sequence, "trace_policy", None)
        transforms = [getattr(sequence, "trace_inputs", None)]
        transforms += [getattr(policy, name, None) for name in ("process_inputs", "process_outputs")]
        new.is_plain = transforms == [None, None, None]
        return new

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if (own := self._unheard(config, CallbackManager, SyncLazyManager)) is None:
            return super().invoke(input, config, **kwargs)
        manager = own["callbacks"]
        context = copy_context()
        context.run(var_child_runnable_config.set, own)
        output = context.run(self.node.invoke, input, own, **kwargs)
        for number, step in self.rest:
            if type(step) is GatedWrite:
                output = step.write(output, own)
            elif type(step) is not Passthrough:
                output = step.invoke(output, _step_config(own, manager.sibling(number)))
        return output

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if (own := self._unheard(config, AsyncCallbackManager, AsyncLazyManager)) is None:
            return await super().ainvoke(input, config, **kwargs)
        manager = own["callbacks"]
        context = copy_context()
        context.run(var_child_runnable_config.set, own)
        output = await asyncio.create_task(self.node.ainvoke(input, own, **kwargs), context=context)
        for number, step in self.rest:
            if type(step) is GatedWrite:
                output = step.write(output, own)
            elif type(step) is not Passthrough:
                output = await step.ainvoke(output, _step_config(own, manager.sibling(number)))
        return output

    def _unheard(self, config: Any, kind: type[BaseCallbackManager], lazy: type[LazyManager]) -> Any:
        """The config of the first step, if nothing listens to the callbacks of this task."""
        if config is None:
            return None
        manager: Any = config.get("callbacks")
        if type(manager) is not kind or manager.handlers or manager.inheritable_handlers:
            return None
        if not self.is_plain or config.get("run_id") is not None:
            return None
        return _step_config(config, lazy.of(config, 1, None))


def _step_config(config: Any, manager: BaseCallbackManager) -> RunnableConfig:
    """The config of a step, as LangGraph makes it of that of the step before."""
    own: RunnableConfig = config.copy()
    own.pop("run_name", None)
    own.pop("run_id", None)
    own["callbacks"] = manager
    return own


class LazyManager(BaseCallbackManager):
    """A callback manager that is what LangGraph would make it from the first look at it on: a child of the run that it
    would open for the sequence of a task with this config."""

    kind: ClassVar[type[BaseCallbackManager]]
    made_of: tuple[Any, int, LazyManager | None]
    """The task's config, the number of the step, and the manager of the sequence's first step."""

    @classmethod
    def of(cls, config: Any, number: int, first: LazyManager | None) -> LazyManager:
        manager = cls.__new__(cls)
        manager.made_of = (config, number, first)
        return manager

    def sibling(self, number: int) -> LazyManager:
        """That of a later step."""
        return self.of(self.made_of[0], number, self)

    def __getattr__(self, name: str) -> Any:
        if name not in _MANAGED:
            raise AttributeError(name)
        with _managers:
            if name not in vars(self):
                made = vars(self._made(*self.made_of))
                vars(self).update({**made, **vars(self)})  # what somebody has set before stays
        return vars(self)[name]

    def _made(self, config: Any, number: int, first: LazyManager | None) -> BaseCallbackManager:
        outer: BaseCallbackManager = config["callbacks"]
        made = BaseCallbackManager([], parent_run_id=uuid7() if first is None else first.parent_run_id)
        made.add_tags(outer.inheritable_tags)
        made.add_tags([tag for tag in config.get("tags") or () if tag not in made.tags])
        made.add_metadata(outer.inheritable_metadata)
        made.add_metadata(config.get("metadata") or {})
        made.add_tags([f"seq:step:{number}"], inherit=False)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is an ordinary manager."""
        state = {name: getattr(self, name) for name in _MANAGED}
        return self.kind.__new__, (self.kind,), state


class SyncLazyManager(LazyManager, CallbackManager):
    """In a sync run."""

    kind = CallbackManager


class AsyncLazyManager(LazyManager, AsyncCallbackManager):
    """In an async run."""

    kind = AsyncCallbackManager


_MANAGED = frozenset(vars(BaseCallbackManager([])))
_managers = threading.RLock()


class Passthrough(Runnable[Any, Any]):
    """Stands where a later step of a sequence stood, so that the steps after it keep their numbers in traces."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input


class LcelSteps:
    """The steps of a node that is an LCEL sequence, run as LangGraph runs them: flattened into the node's own.

    LangGraph gives each step a child of the node's callbacks with the tag `seq:step:N`; only the first step
    runs with the node's config as the ambient one.
    """

    def __init__(self, steps: Sequence[Runnable[Any, Any]]) -> None:
        self.steps = steps

    def _configs(self, config: RunnableConfig) -> list[RunnableConfig]:
        return [config, *(_lcel_config(config, n) for n in range(2, len(self.steps) + 1))]

    def invoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        configs = self._configs(config)
        value = self.steps[0].invoke(input, configs[0], **kwargs)
        with _ambient_of_parent():
            for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
                value = step.invoke(value, step_config)
        return value

    async def ainvoke(self, input: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        configs = self._configs(config)
        value = await self.steps[0].ainvoke(input, configs[0], **kwargs)
        with _ambient_of_parent():
            for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
                value = await step.ainvoke(value, step_config)
        return value

    async def astream(self, input: Any, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[Any]:
        configs = self._configs(config)
        stream = self.steps[0].astream(input, configs[0], **kwargs)
        for step, step_config in zip(self.steps[1:], configs[1:], strict=True):
            stream = step.atransform(stream, step_config)
        async for chunk in stream:
            yield chunk


def _lcel_config(config: RunnableConfig, number: int) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager):
        return config
    manager = callbacks.copy()
    manager.remove_tags(["seq:step:1"])
    manager.add_tags([f"seq:step:{number}"], inherit=False)
    return {**config, "callbacks": manager}


@contextmanager
def _ambient_of_parent() -> Generator[None]:
    this = opened.get()
    before = _ambient_before.get()
    token = var_child_runnable_config.set(before if this is not None else None)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


_ambient_before: ContextVar[RunnableConfig | None] = ContextVar("arbiter_ambient", default=None)


# The wrapper --------------------------------------------------------------------------------------

Body = Any  # a Runnable or LcelSteps: invoke, ainvoke, astream


class GovernedNode(Runnable[Any, Any]):
    """A node's body inside the lifecycle."""

    def __init__(
        self,
        core: Core,
        *,
        node: str,
        body: Body,
        instruction: Instruction | None,
        schemas: Schemas | None,
        targets: frozenset[str],
        retry: Sequence[RetryPolicy],
        commits: bool,
        is_subgraph: bool,
        is_cached: bool,
    ) -> None:
        self.name = node
        self.node = node
        self.path = (PULL, node)
        """The path of its tasks, where they were not sent."""
        self.core = core
        self.body = body
        self.instruction = instruction
        self.schemas = schemas
        self.targets = targets
        self.retry = retry
        self.commits = commits
        """Whether a gated writer follows that commits the fact."""
        self.is_subgraph = is_subgraph
        self.is_cached = is_cached
        """Whether what a node of its graph writes may be kept, to be written again instead of running it."""
        self.is_sequence = type(body) is LcelSteps
        self.is_function = _is_function(body)
        self._plan = Plan()
        self._planned = -1

    def plan(self) -> Plan:
        version = self.core.registry.version
        if self._planned != version:
            self._plan = self.core.registry.plan(self.node, self.instruction, self.targets)
            self._planned = version
        return self._plan

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        visit = Visit(self, input, config or {}, kwargs)
        if (contract := visit.plan.only_async) is not None:
            raise SyncDriverError(node=self.node, source=f"{contract.kind} {contract.name!r}")
        try:
            output = drive(visit)
        except ParentCommand as exc:
            visit.handed_over(exc)
            raise
        return visit.finish(output)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        visit = Visit(self, input, config or {}, kwargs)
        try:
            output = await adrive(visit)
        except ParentCommand as exc:
            visit.handed_over(exc)
            raise
        return visit.finish(output)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        visit = Visit(self, input, config or {}, kwargs)
        streamed = False
        try:
            async for chunk in adrive_stream(visit):
                if type(chunk) is not Final:
                    streamed = True
                    yield chunk
                    continue
                output = visit.finish(chunk.output)
                # What comes last replaces what was streamed, should it not be its sum.
                if not streamed or type(output) is Redirect or visit.lent or visit.replaced:
                    yield output
        except ParentCommand as exc:
            visit.handed_over(exc)
            raise


def _is_function(body: Any) -> bool:
    """Whether LangGraph would do no more than call a function with the node's input."""
    if type(body) is not _CALLABLE or body.trace or body.func_accepts or body.kwargs:
        return False
    return body.recurse and not body.explode_args


def _is_runnable(output: object) -> bool:
    return isinstance(output, Runnable)


class Visit(NodeRun):
    """One attempt of one task at a governed node."""

    def __init__(
        self, node: GovernedNode, input: Any, config: RunnableConfig, kwargs: Mapping[str, Any]
    ) -> None:
        core = node.core
        if stack := running.get():
            _refuse_evaluator(stack, node)
        conf = _conf(config)
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        ledger = _ledger_in(conf)
        loop: Any = ledger.loop
        task: str = conf[CONFIG_KEY_TASK_ID]
        step: int = metadata["langgraph_step"]
        path = metadata.get("langgraph_path", ())
        if path == node.path:
            path = node.path  # one object for all its runs
        self._conf = conf
        self._kwargs = kwargs
        settings = core.settings
        parent = opened.get()
        if parent is not None and parent.settings is settings:
            past = ledger.past.inside(parent.past)
            run = loop.run or loop.join(parent.run, past)
        else:
            parent = None
            past = ledger.past
            run = loop.run or _bound(loop, conf, past, step, task, path)
        namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS]
        if NS_SEP in namespace:
            namespace = namespace.rpartition(NS_SEP)[0]
        else:
            namespace = ""
        record = begin(
            run.log, run, task, node.node, node.instruction, step, namespace, settings.clock(), path
        )
        record.input = snapshot(input, settings.snapshot)
        super().__init__(
            record, node.plan(), input, settings, run, past, parent, config, node.targets, node.schemas
        )
        self.node = node
        self.is_graph = node.is_subgraph
        self.ledger = ledger
        if loop.first is None:
            loop.first = step
        if ledger.done:
            ledger.done.pop(task, None)  # of an attempt whose later writers failed
        if conf.get(CONFIG_KEY_RESUMING):
            self.may_be_held = self._may_be_held()

    # The lifecycle asks

    @property
    def is_saved(self) -> bool:
        return self._saver() is not None

    def is_final(self, error: BaseException) -> bool:
        runtime = self._conf.get(CONFIG_KEY_RUNTIME)
        info = getattr(runtime, "execution_info", None)
        attempt = 1 if info is None else info.node_attempt
        for policy in self.node.retry:
            if _should_retry_on(policy, cast(Exception, error)):
                return attempt >= policy.max_attempts
        return True

    def is_own(self, command: Command[Any]) -> bool:
        # The comparison with which LangGraph decides whose a ParentCommand is.
        namespace: str = self._conf[CONFIG_KEY_CHECKPOINT_NS]
        return command.graph in (namespace, recast_checkpoint_ns(namespace), self.node.node)

    # What was saved

    def saved(self) -> Saved:
        if (saver := self._resumed()) is None:
            return Saved()
        return self._read_saved([saver.get_tuple(place) for place in _places(self._conf)])

    async def asaved(self) -> Saved:
        if (saver := self._resumed()) is None:
            return Saved()
        return self._read_saved([await saver.aget_tuple(place) for place in _places(self._conf)])

    @property
    def recovered(self) -> Recovered | None:
        loop = self.ledger.loop
        return None if loop is None else loop.recovered

    def recover(self, recovered: Recovered) -> None:
        if self.ledger.loop is not None:
            self.ledger.loop.recovered = recovered

    def _may_be_held(self) -> bool:
        begun = self.ledger.loop is not None and self.ledger.loop.first == self.record.step
        return begun and not self.node.core.registry.empty and self._saver() is not None

    def _resumed(self) -> Any:
        return self._saver() if self._conf.get(CONFIG_KEY_RESUMING) else None

    def _read_saved(self, found: Sequence[Any]) -> Saved:
        writes = [write for saved in found if saved is not None for write in saved.pending_writes or ()]
        facts = [value for _, channel, value in writes if channel == LEDGER]
        own = self.record.id
        notes = [v for _, channel, v in writes if channel == _NOTE and v["task"] == own]
        if any(of_task == own and channel == LEDGER for of_task, channel, _ in writes):
            notes = []  # it was done: this is a replay
        return Saved(facts, _questions(writes, self.record.id), notes)

    def output_of(self, task: str) -> tuple[Any] | None:
        if (saver := self._saver()) is None:
            return None
        for saved in saver.list(self._thread(), limit=_LOOK_BACK):
            if (found := self._written(saved, task)) is not None:
                return found
        return None

    async def aoutput_of(self, task: str) -> tuple[Any] | None:
        if (saver := self._saver()) is None:
            return None
        async for saved in saver.alist(self._thread(), limit=_LOOK_BACK):
            if (found := self._written(saved, task)) is not None:
                return found
        return None

    def _thread(self) -> RunnableConfig:
        place = {CONFIG_KEY_THREAD_ID: str(self._conf.get(CONFIG_KEY_THREAD_ID))}
        return {"configurable": {**place, CONFIG_KEY_CHECKPOINT_NS: self.record.namespace}}

    def _written(self, saved: Any, task: str) -> tuple[Any] | None:
        """The update that a task wrote, as a node would return it."""
        channels = cast(Mapping[str, Any], self.ledger.original.channels)
        writes = [
            (channel, value) for of_task, channel, value in saved.pending_writes or () if of_task == task
        ]
        if not any(channel == LEDGER for channel, _ in writes):
            return None  # not this task, or not its end
        update = [
            (channel, value)
            for channel, value in writes
            if channel in channels and not channel.startswith(_EDGES) and channel != LEDGER
        ]
        if len({channel for channel, _ in update}) < len(update):
            return (Command(update=update),)  # several commands that write to one key
        written = dict(update)
        return (written.get("__root__", written),)

    def skip_questions(self, count: int) -> None:
        counter = self._conf[CONFIG_KEY_SCRATCHPAD].interrupt_counter
        for _ in range(count):
            counter()

    @property
    def answered(self) -> int:
        return _asked_before(self.config)

    def keep(self, note: Mapping[str, Any]) -> None:
        if (saver := self._saver()) is None:
            return
        place = _places(self._conf)[0]
        for pause in self._until_saved():
            if saver.get_tuple(place) is not None:
                break
            time.sleep(pause)
        saver.put_writes(place, [(_NOTE, dict(note))], _note_id(note))

    async def akeep(self, note: Mapping[str, Any]) -> None:
        if (saver := self._saver()) is None:
            return
        place = _places(self._conf)[0]
        for pause in self._until_saved():
            if await saver.aget_tuple(place) is not None:
                break
            await asyncio.sleep(pause)
        await saver.aput_writes(place, [(_NOTE, dict(note))], _note_id(note))

    def _until_saved(self) -> Sequence[float]:
        """How long to wait for the checkpoint of this superstep, which LangGraph may save in the background: a note
        on one that a crash has kept from being saved would be lost. With "exit" it is not saved before the end."""
        return () if self._conf.get(CONFIG_KEY_DURABILITY) == "exit" else _PAUSES

    # The driver asks

    def body(self, input: Any, held: bool) -> Any:
        node, config = self.node, self.config
        output: Any
        token = opened.set(self)
        try:
            if held or node.is_sequence or self.handlers:  # a function's own calls go by the ambient config
                with self._ambient(held) as config:
                    output = node.body.invoke(input, config, **self._kwargs)
            elif node.is_function and node.body.func is not None and not self._kwargs:
                output = node.body.func(input)
                if type(output) is not _DICT and _is_runnable(output):
                    output = output.invoke(input, config)
            else:
                output = node.body.invoke(input, config, **self._kwargs)
        finally:
            opened.reset(token)
        if node.is_subgraph and (saver := self._unseen()) is not None:
            self._adopt(saver.get_tuple(self._own_config()))
        return output

    async def abody(self, input: Any, held: bool) -> Any:
        node, config = self.node, self.config
        output: Any
        token = opened.set(self)
        try:
            if held or node.is_sequence or self.handlers:  # a function's own calls go by the ambient config
                with self._ambient(held) as config:
                    output = await node.body.ainvoke(input, config, **self._kwargs)
            elif node.is_function and node.body.afunc is not None and not self._kwargs:
                output = await node.body.afunc(input)
                if type(output) is not _DICT and _is_runnable(output):
                    output = await output.ainvoke(input, config)
            else:
                output = await node.body.ainvoke(input, config, **self._kwargs)
        finally:
            opened.reset(token)
        if node.is_subgraph and (saver := self._unseen()) is not None:
            self._adopt(await saver.aget_tuple(self._own_config()))
        return output

    async def astream_body(self, input: Any, held: bool) -> AsyncIterator[Any]:
        token = opened.set(self)
        try:
            with self._ambient(held) as config:
                async for chunk in self.node.body.astream(input, config, **self._kwargs):
                    yield chunk
        finally:
            try:
                opened.reset(token)
            except ValueError:  # an async generator may be closed in another context
                opened.set(None)

    def ask(self, op: Ask) -> Any:
        return ask_human(op, self.config)

    async def aask(self, op: Ask) -> Any:
        return await aask_human(op, self.config)

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        conf: dict[str, Any] = {**self._conf}
        # With questions of its own: it must not get answers that were given to the body.
        conf[CONFIG_KEY_SCRATCHPAD] = replace(
            conf[CONFIG_KEY_SCRATCHPAD],
            resume=[],
            get_null_resume=_no_answer,
            interrupt_counter=count().__next__,
        )
        if (runtime := conf.get(CONFIG_KEY_RUNTIME)) is not None:
            conf[CONFIG_KEY_RUNTIME] = runtime.override(stream_writer=_unheard)
        return {**config, "configurable": conf}

    # Afterwards

    def finish(self, output: Any) -> Any:
        """Hand output and fact to the writers."""
        conf, node = self._conf, self.node
        fact = ledger = None
        if node.core.registry.version:  # something was registered
            fact = self.fact()
            if self.parent is not None:
                self._report(fact)
            if not node.is_cached and conf.get(CONFIG_KEY_CHECKPOINTER) is None:
                ledger = self.ledger
        if node.commits:
            conf[_STASH] = fact, self.record, ledger
        elif fact is not None:
            conf[CONFIG_KEY_SEND]([(LEDGER, fact)])
        return output if self.redirect is None else Redirect(output, self.redirect)

    def handed_over(self, exc: ParentCommand) -> None:
        """A command came up from a subgraph and LangGraph will run the original writers with it."""
        if self.node.core.registry.empty:
            return
        fact = self.fact()
        command: Any = cast(Any, exc).args[0]
        if self.is_own(command):
            self._conf[CONFIG_KEY_SEND]([(LEDGER, fact)])
        self._report(fact)

    def _report(self, fact: Fact) -> None:
        if self.parent is not None:
            order = task_order(self.record.path) + self.record.id
            self.parent.report(self.record.namespace, self.record.step, self.ledger.past.value, order, fact)

    # Inside

    def _body_config(self) -> RunnableConfig | None:
        return with_handlers(self.config, self.handlers) if self.handlers else self.config

    @contextmanager
    def _ambient(self, held: bool) -> Generator[RunnableConfig]:
        config = cast(RunnableConfig, self._body_config())
        if held:
            config = self._holding(config)
        before = _ambient_before.set(None if self.parent is None else self.parent.config)
        token = var_child_runnable_config.set(config)
        try:
            yield config
        finally:
            try:
                var_child_runnable_config.reset(token)
                _ambient_before.reset(before)
            except ValueError:  # an async generator may be closed in another context
                pass

    def _holding(self, config: RunnableConfig) -> RunnableConfig:
        """The config for a draft: what it streams, and writes to the state by itself, waits until it is taken."""
        self.streamed = held = []

        def later(emit: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda chunk: held.append(partial(emit, chunk))

        def from_inside(emit: Callable[[Any], None]) -> Callable[[Any], None]:
            # A graph in the body has the feedback on earlier drafts in its state, and streams that.
            return lambda chunk: held.append(partial(emit, chunk)) if chunk[1] == "custom" else None

        def writes_later(send: Callable[[Any], None]) -> Callable[[Any], None]:
            def write(writes: Sequence[tuple[str, Any]]) -> None:
                # What a human has answered outlives the draft that asked.
                now = [one for one in writes if one[0] == RESUME]
                own = [one for one in writes if one[0] != RESUME]
                if now:
                    send(now)
                if own:
                    held.append(partial(send, own))

            return write

        conf = self._conf
        # For the same reason a graph in the body saves nothing; it begins anew when the run is resumed.
        patch: dict[str, Any] = {
            CONFIG_KEY_CHECKPOINTER: None,
            CONFIG_KEY_SEND: writes_later(conf[CONFIG_KEY_SEND]),
        }
        if (runtime := conf.get(CONFIG_KEY_RUNTIME)) is not None:
            writer = later(runtime.stream_writer)
            patch[CONFIG_KEY_RUNTIME] = runtime.override(stream_writer=writer)
        if (stream := conf.get(CONFIG_KEY_STREAM)) is not None:
            inside = from_inside if self.record.drafts else later
            patch[CONFIG_KEY_STREAM] = StreamProtocol(inside(stream), stream.modes)
        tags = [*(config.get("tags") or ()), "nostream"]
        held_config: RunnableConfig = {**config, "tags": tags, "configurable": {**conf, **patch}}
        callbacks = config.get("callbacks")
        if isinstance(callbacks, BaseCallbackManager):
            # What streams events as they happen (messages, astream_events) would show a rejected draft.
            callbacks = callbacks.copy()
            for handler in [h for h in callbacks.handlers if isinstance(h, _StreamingCallbackHandler)]:
                callbacks.remove_handler(handler)
            held_config["callbacks"] = callbacks
        return held_config

    def _unseen(self) -> Any:
        """The checkpointer, if the subgraph may have finished before this process saw any of it."""
        if self.node.core.registry.empty or not self._conf.get(CONFIG_KEY_RESUMING):
            return None
        return None if self._inner else self._saver()

    def _adopt(self, saved: Any) -> None:
        value = None if saved is None else saved.checkpoint["channel_values"].get(LEDGER)
        if value:
            self.adopt(self._conf[CONFIG_KEY_CHECKPOINT_NS], value)

    def _saver(self) -> Any:
        saver = self._conf.get(CONFIG_KEY_CHECKPOINTER)
        return saver if hasattr(saver, "get_tuple") else None

    def _own_config(self) -> RunnableConfig:
        conf = self._conf
        return {
            CONF: {
                CONFIG_KEY_THREAD_ID: str(conf.get(CONFIG_KEY_THREAD_ID)),
                CONFIG_KEY_CHECKPOINT_NS: conf[CONFIG_KEY_CHECKPOINT_NS],
            }
        }


def with_handlers(config: RunnableConfig | None, handlers: Sequence[BaseCallbackHandler]) -> RunnableConfig:
    """`config` with handlers that also see what is called inside."""
    callbacks = (config or {}).get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        for handler in handlers:
            callbacks.add_handler(handler, inherit=True)
    else:
        callbacks = [*(callbacks or ()), *handlers]
    return {**(config or {}), "callbacks": callbacks}


def _no_answer(consume: bool = False) -> None:
    return None


def _unheard(chunk: Any) -> None:
    pass


_LOOK_BACK = 200
_EDGES = ("branch:", "join:", "__pregel", "__start__")


# Asking a human -----------------------------------------------------------------------------------

_FRESH = object()


def ask_human(op: Ask, config: RunnableConfig | None) -> Any:
    """Interrupt, or the answer that was given to this very question. `NO_ANSWER` if one was given to another.

    LangGraph hands a resume value to whatever asks first. Between question and answer the state may have
    been changed (`update_state`, `Command(resume=..., update=...)`): then nobody was shown this input. So a fresh
    answer is held against the questions in the checkpoint, and the outcome is noted beside it. And it would hand out
    the value again, to a question that is asked later: so what was given before this one is spent when it pauses.
    """
    try:
        answer = _answer(op, config)
    except GraphInterrupt:
        _spend(_conf(config))
        raise
    if answer is not _FRESH:
        return answer
    conf = _conf(config)
    saver = _saver_of(conf)
    for where in _places(conf):
        if (saved := saver.get_tuple(where)) is not None:
            return _settle(op, conf, saved)
    raise RuntimeError(_NO_CHECKPOINT)


async def aask_human(op: Ask, config: RunnableConfig | None) -> Any:
    """As `ask_human`, in an event loop."""
    try:
        answer = _answer(op, config)
    except GraphInterrupt:
        await _aspend(_conf(config))
        raise
    if answer is not _FRESH:
        return answer
    conf = _conf(config)
    saver = _saver_of(conf)
    for where in _places(conf):
        if (saved := await saver.aget_tuple(where)) is not None:
            return _settle(op, conf, saved)
    raise RuntimeError(_NO_CHECKPOINT)


def _answer(op: Ask, config: RunnableConfig | None) -> Any:
    """What LangGraph has for this question; it pauses the graph if that is nothing. `_FRESH`: it came just now."""
    if CONFIG_KEY_SCRATCHPAD in (config or {}).get(CONF, {}):
        _saver_of(_conf(config))  # without one nobody could answer
    token = var_child_runnable_config.set(config)
    try:
        answer: Any = interrupt({**op.payload, "question": op.number, "after": _asked_before(config)})
    finally:
        var_child_runnable_config.reset(token)
    given: Any = answer
    if isinstance(answer, dict) and _STAMP in answer:
        if not op.is_about(given[_STAMP], given.get("policies")):
            return NO_ANSWER
        return Answered(given["answer"], given.get("asked_at"), given["at"])
    return _FRESH


def _asked_before(config: RunnableConfig | None) -> int:
    """How many questions of this task have an answer: all that were asked before the one that is open."""
    pad = (config or {}).get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return 0 if pad is None else len(pad.resume)


_NO_CHECKPOINT = (
    "this graph has no checkpointer, which keeps the question until it is answered. "
    "Compile the graph with one, and a subgraph without checkpointer=False"
)


def _note_id(note: Mapping[str, Any]) -> str:
    """Where a note is kept. Not under the task's own id: LangGraph would take the task for done."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{note['task']} {note['seq']}"))


def _saver_of(conf: Mapping[str, Any]) -> Any:
    saver = conf.get(CONFIG_KEY_CHECKPOINTER)
    if not hasattr(saver, "get_tuple"):
        raise RuntimeError(_NO_CHECKPOINT)
    return saver


def _places(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """Where the checkpoint of this task may be: in the graph's namespace, which for a @task is further out."""
    info = conf[CONFIG_KEY_RUNTIME].execution_info
    places: list[RunnableConfig] = []
    namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS]
    while namespace:
        namespace = namespace.rpartition(NS_SEP)[0]
        place = {
            CONFIG_KEY_THREAD_ID: str(conf.get(CONFIG_KEY_THREAD_ID)),
            CONFIG_KEY_CHECKPOINT_NS: namespace,
            "checkpoint_id": info.checkpoint_id,
        }
        places.append({"configurable": place})
    return places


def _settle(op: Ask, conf: Mapping[str, Any], saved: Any) -> Any:
    """Whether the fresh answer was given to this very question; noted, so that it stays settled."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    index = len(pad.resume) - 1  # a fresh answer is the newest
    answer = pad.resume[index]
    shown = _questions(saved.pending_writes or (), conf[CONFIG_KEY_TASK_ID])
    question = next((question for question in shown if op.is_like(question)), None)
    stamp: dict[str, Any] = {_STAMP: "", "answer": answer, "at": op.at}
    if question is not None:
        stamp |= {_STAMP: op.key, "policies": op.policies, "asked_at": question.get("asked_at")}
    pad.resume[index] = stamp
    conf[CONFIG_KEY_SEND]([(RESUME, list(pad.resume[: index + 1]))])
    return NO_ANSWER if question is None else Answered(answer, stamp["asked_at"], op.at)


def _spend(conf: Mapping[str, Any]) -> None:
    """Take out of the checkpoint the resume value that this run was given, now that a question has had it.

    LangGraph keeps it for as long as the superstep is unfinished, and gives it to whatever asks next.
    """
    saver = _saver_of(conf)
    for pause in _PAUSES:
        found = [saver.get_tuple(level) for level in _levels(conf)]
        for place, task, resume in _spent(conf, found):
            saver.put_writes(place, [(RESUME, resume)], task)
        if _is_spent(conf, found):
            return
        time.sleep(pause)
    raise RuntimeError(_NOT_SPENT)


async def _aspend(conf: Mapping[str, Any]) -> None:
    """As `_spend`, in an event loop."""
    saver = _saver_of(conf)
    for pause in _PAUSES:
        found = [await saver.aget_tuple(level) for level in _levels(conf)]
        for place, task, resume in _spent(conf, found):
            await saver.aput_writes(place, [(RESUME, resume)], task)
        if _is_spent(conf, found):
            return
        await asyncio.sleep(pause)
    raise RuntimeError(_NOT_SPENT)


_PAUSES = (0.001, 0.01, 0.1, 0.4, 1.0, 2.0)
"""Seconds between looks at what LangGraph saves in the background."""
_NOT_SPENT = (
    "the answer to an earlier question is not in the checkpointer of this graph, so that it might be taken for the "
    "answer to this one too. Give a subgraph no checkpointer of its own"
)


def _levels(conf: Mapping[str, Any]) -> list[RunnableConfig]:
    """The checkpoints of this task's graph, and of those around it, from the inside out."""
    thread = str(conf.get(CONFIG_KEY_THREAD_ID))
    known: Mapping[str, str] = conf[CONFIG_KEY_CHECKPOINT_MAP]
    return [
        {
            CONF: {
                CONFIG_KEY_THREAD_ID: thread,
                CONFIG_KEY_CHECKPOINT_NS: namespace,
                "checkpoint_id": known[namespace],
            }
        }
        for namespace in sorted(known, key=len, reverse=True)
    ]


def _spent(conf: Mapping[str, Any], found: Sequence[Any]) -> list[tuple[RunnableConfig, str, Any]]:
    """What is to be saved, in this order: the answers that this task has had, as its own, and in the place of the
    resume value nothing. A crash between the two loses no answer."""
    given = [saved for saved in found if saved is not None and _given(saved)]
    if not given:
        return []
    spent: list[tuple[RunnableConfig, str, Any]] = []
    if found[0] is not None and (had := conf[CONFIG_KEY_SCRATCHPAD].resume):
        spent.append((found[0].config, conf[CONFIG_KEY_TASK_ID], list(had)))
    return [*spent, *((saved.config, NULL_TASK_ID, None) for saved in given)]


def _is_spent(conf: Mapping[str, Any], found: Sequence[Any]) -> bool:
    """Whether no resume value of this run can be on its way into the checkpoint any more."""
    pad = conf[CONFIG_KEY_SCRATCHPAD]
    # What came by the id of its question is not kept, and with "exit" it is dropped before anything is saved.
    if conf.get(CONFIG_KEY_RESUME_MAP) or conf.get(CONFIG_KEY_DURABILITY) == "exit":
        return True
    if any(saved is not None and _given(saved) for saved in found):
        return True
    before = 0
    if found[0] is not None:
        before = max((len(had) for had in _resumes(found[0], conf[CONFIG_KEY_TASK_ID])), default=0)
    return len(pad.resume) <= before


def _given(saved: Any) -> bool:
    return any(value is not None for value in _resumes(saved, NULL_TASK_ID))


def _resumes(saved: Any, task: str) -> list[Any]:
    writes = saved.pending_writes or ()
    return [value for of_task, channel, value in writes if (of_task, channel) == (task, RESUME)]


def _questions(writes: Sequence[Any], task: str) -> list[Mapping[str, Any]]:
    """The questions of a task among the pending writes of its checkpoint."""
    return [
        question.value
        for of_task, channel, value in writes
        if of_task == task and channel == INTERRUPT
        for question in cast(Sequence[Any], value)
        if isinstance(question.value, Mapping)
    ]


def _bound(loop: Loop, conf: Mapping[str, Any], past: Past, step: int, task: str, path: Any) -> Run:
    thread_id = conf.get(CONFIG_KEY_THREAD_ID)
    return loop.bind(
        None if thread_id is None else str(thread_id),
        past,
        saved=bool(conf.get(CONFIG_KEY_CHECKPOINTER)),
        resumed=bool(conf.get(CONFIG_KEY_RESUMING)),
        step=step,
        task=task,
        path=path,
    )


def _refuse_evaluator(stack: Stack, node: GovernedNode) -> None:
    """An evaluator may run other graphs, and not those that it is there to judge."""
    for lane, _ in stack:
        if any(lane is own for own in node.core.registry.evaluators):
            raise EvaluationError(
                f"evaluator {lane.name!r} ran node {node.node!r}, which its own ArbiterOS governs; "
                "an evaluator judges a run and starts none.",
                evaluator=lane.name,
                node=node.node,
            )


# The graph ----------------------------------------------------------------------------------------


class NodeRule:
    """What govern() found out about one node: its instruction and schemas."""

    __slots__ = ("instruction", "schemas")

    def __init__(self, instruction: Instruction | None, schemas: Schemas | None) -> None:
        self.instruction = instruction
        self.schemas = schemas


Rules = Callable[[tuple[str, ...], str, PregelNode, Pregel[Any, Any, Any, Any]], NodeRule]
"""(path of parent nodes, node name, node, graph) → its rule."""


def ledger_of(graph: object) -> LedgerChannel | None:
    """The hidden channel of a governed graph."""
    channels: Mapping[str, Any] = getattr(graph, "channels", {}) if isinstance(graph, _GRAPH) else {}
    channel = channels.get(LEDGER)
    return channel if isinstance(channel, LedgerChannel) else None


def governed_nodes(graph: Pregel[Any, Any, Any, Any]) -> dict[str, PregelNode]:
    """The nodes that have a body."""
    return {name: node for name, node in graph.nodes.items() if node.bound is not DEFAULT_BOUND}


def targets_of(graph: Pregel[Any, Any, Any, Any]) -> frozenset[str]:
    """Where a redirect can lead: nodes that edges can lead to, and END."""
    names = {name for name in graph.nodes if _BRANCH_TO.format(name) in graph.channels}
    return frozenset({*names, END}) if names else frozenset()


def subgraph_of(node: PregelNode) -> Pregel[Any, Any, Any, Any] | None:
    """The graph that is the node's body, or a step of it."""
    return _graph_in(node.bound)


def _graph_in(body: Any) -> Pregel[Any, Any, Any, Any] | None:
    for part in _parts(body):
        if isinstance(part, _GRAPH):
            return cast(Pregel[Any, Any, Any, Any], part)
    return None


_SEQUENCES: tuple[Any, ...] = (RunnableSequence, RunnableSeq)
_BINDING: Any = RunnableBindingBase
_GRAPH: Any = Pregel
_CALLABLE: Any = RunnableCallable
_DICT: Any = dict


def _parts(bound: Any) -> list[Any]:
    if isinstance(bound, _SEQUENCES):
        return [inner for step in bound.steps for inner in _parts(step)]
    if isinstance(bound, _BINDING):
        return _parts(bound.bound)
    return [bound]


def weave(
    graph: Pregel[Any, Any, Any, Any],
    core: Core,
    rules: Rules,
    path: tuple[str, ...] = (),
) -> Pregel[Any, Any, Any, Any]:
    """A governed copy of `graph`. The original stays as it is."""
    targets = targets_of(graph)
    nodes: dict[str, PregelNode] = {}
    for name, node in graph.nodes.items():
        woven = copy.copy(node)
        woven.__dict__.pop("node", None)
        if node.bound is DEFAULT_BOUND:
            writers = _writers(node)
            if name == START and writers and type(writers[0]) is ChannelWrite:
                starts = [StartWrite(writers[0], core), *writers[1:]]  # with a branch, where START has one
                woven.__dict__["node"] = node.copy({"writers": starts}).node
        else:
            rule = rules(path, name, node, graph)
            body = _woven_body(node.bound, core, rules, (*path, name))
            woven.__dict__["node"] = _woven(graph, name, node, rule, core, body, targets)
            if node.subgraphs and (inner := _graph_in(body)) is not None:
                # `update_state` inside the subgraph saves its channels: with the hidden one, or it is lost.
                woven.subgraphs = [inner]
            if node.cache_policy is not None:
                woven.cache_policy = _own_cache(node.cache_policy, core, name, rule, targets)
        nodes[name] = woven
    governed = copy.copy(graph)
    governed.nodes = nodes
    governed.channels = {**graph.channels, LEDGER: LedgerChannel(core, graph)}
    # Without a list of its own a graph streams all channels; the hidden one is not among them.
    governed.stream_channels = graph.stream_channels_asis
    return governed


def _woven(
    graph: Pregel[Any, Any, Any, Any],
    name: str,
    node: PregelNode,
    rule: NodeRule,
    core: Core,
    body: Any,
    targets: frozenset[str],
) -> Runnable[Any, Any] | None:
    writers = _writers(node)
    gated: list[Runnable[Any, Any]] = []
    for index, writer in enumerate(writers):
        last = index == len(writers) - 1
        if isinstance(writer, ChannelWrite):
            gated.append(GatedWrite(writer, first=index == 0, last=last))
        else:
            gated.append(GatedBranch(writer, last=last))
    steps: list[Runnable[Any, Any]] = []
    if isinstance(body, _SEQUENCES):
        steps = [Passthrough() for _ in body.steps[1:]]
        body = LcelSteps(list(body.steps))
    wrapper = GovernedNode(
        core,
        node=name,
        body=body,
        instruction=rule.instruction,
        schemas=rule.schemas,
        targets=targets,
        retry=node.retry_policy or graph.retry_policy or (),
        commits=bool(gated) and isinstance(gated[0], GatedWrite),
        is_subgraph=subgraph_of(node) is not None,
        is_cached=_is_cached(graph),
    )
    sequence = node.copy({"bound": wrapper, "writers": [*steps, *gated]}).node
    return GovernedSequence.of(sequence, wrapper) if type(sequence) is RunnableSeq else sequence


def _is_cached(graph: Pregel[Any, Any, Any, Any]) -> bool:
    policies: list[Any] = [graph.cache_policy, *(node.cache_policy for node in graph.nodes.values())]
    return any(policy is not None for policy in policies)


def _writers(node: PregelNode) -> Sequence[Runnable[Any, Any]]:
    return cast(Sequence[Runnable[Any, Any]], cast(Any, node).flat_writers)


def _woven_body(bound: Any, core: Core, rules: Rules, path: tuple[str, ...]) -> Any:
    """The body with the graphs in it governed."""
    if isinstance(bound, _GRAPH):
        return bound if ledger_of(bound) is not None else weave(bound, core, rules, path)
    if not any(isinstance(part, _GRAPH) for part in _parts(bound)):
        return bound
    if isinstance(bound, _SEQUENCES):
        steps = [_woven_body(step, core, rules, path) for step in bound.steps]
        return type(bound)(*steps, name=bound.name)
    return bound.model_copy(update={"bound": _woven_body(bound.bound, core, rules, path)})


def _own_cache(policy: Any, core: Core, name: str, rule: NodeRule, targets: frozenset[str]) -> Any:
    """A node cache that passes nothing on unchecked: neither what an ungoverned graph put there or a graph with
    other rules, nor anything that a checker would look at again.

    Rules are the same if they are the very ones that were registered: by a name or a class nobody can tell what they
    allow. So a cache that outlives the process serves nothing of an earlier one where rules apply.
    """
    key_of = policy.key_func

    def key(*args: Any, **kwargs: Any) -> str | bytes:
        found = key_of(*args, **kwargs)
        plan = core.registry.plan(name, rule.instruction, targets)
        gate = () if plan.gate is None else (plan.gate,)
        seats: list[Seat[Any]] = [*plan.checkers, *plan.output_checkers, *plan.advisors, *gate, *plan.routers]
        marks = {seat.mark for seat in (*seats, *plan.error_routers) if seat.contract.enforced}
        marks.update(lane.mark for lane in plan.lanes if lane.evaluator.enforced)
        if any(seat.contract.reads_history for seat in plan.checkers if seat.contract.enforced):
            marks.add(uuid.uuid4().hex)
        rules = hashlib.sha256(",".join(sorted(marks)).encode()).hexdigest() if marks else ""
        mark = f"arbiter:{rules}:"
        return mark + found if isinstance(found, str) else mark.encode() + found

    return replace(policy, key_func=key)
