"""A node's body inside the lifecycle, and one attempt of one of its tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from types import BuiltinMethodType
from typing import Any, cast

from langchain_core.callbacks import (
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler  # pyright: ignore[reportPrivateUsage]
from langgraph._internal._config import recast_checkpoint_ns
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_SEP,
    NULL_TASK_ID,
    PULL,
    RESUME,
)
from langgraph._internal._runnable import RunnableCallable
from langgraph.errors import ParentCommand
from langgraph.pregel._retry import _should_retry_on  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import Command, RetryPolicy

from arbiter.core import Core
from arbiter.drivers import Final, adrive, adrive_stream, drive
from arbiter.errors import EvaluationError, SyncDriverError
from arbiter.evaluations import Stack, running
from arbiter.facts import Fact, Past
from arbiter.history import ToolsOf, task_order
from arbiter.instructions import Instruction
from arbiter.lifecycle import Ask, Begin, NodeRun, Saved, Schemas, Spend, Stopped, opened
from arbiter.recorder import Loop, Recovered, Run, begin
from arbiter.registry import Plan
from arbiter.states import snapshot
from arbiter.weaving.asking import (
    Access,
    aaccess,
    aask_human,
    access,
    ask_human,
    begin_body,
    bodies,
    body_answers,
    keep_draft,
    note_spent,
    pause_body,
    places_of,
    read_notes,
    skip_ours,
    spend,
)
from arbiter.weaving.channel import LEDGER, LedgerChannel, conf_of, ledger_in, writes_in
from arbiter.weaving.lcel import LcelSteps, ambient_before
from arbiter.weaving.tools import HeldTools
from arbiter.weaving.writers import STASH, Redirect

Body = Any  # a Runnable or LcelSteps: invoke, ainvoke, astream
_LOOK_BACK = 200
_EDGES = ("branch:", "join:", "__pregel", "__start__")
_CALLABLE: Any = RunnableCallable
_DICT: Any = dict
_BUILT_IN: Any = BuiltinMethodType
"""LangGraph's own `send` is the `extend` of a task's writes."""


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
        keeps_writes: bool,
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
        self.keeps_writes = keeps_writes
        """Whether what the nodes of its graph write may be written again, or dropped: then a fact is a write too."""
        self.is_sequence = type(body) is LcelSteps
        self.is_function = _is_function(body)
        self._plan = Plan()
        self._planned = -1
        self.tools = HeldTools(body.steps if self.is_sequence else body)

    def plan(self) -> Plan:
        version = self.core.registry.version
        if self._planned != version:
            self._plan = self.core.registry.plan(self.node, self.instruction, self.targets)
            self._planned = version
            self.core.planned()
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
        finally:
            visit.let_go()
        return visit.finish(output)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        visit = Visit(self, input, config or {}, kwargs)
        try:
            output = await adrive(visit)
        except ParentCommand as exc:
            visit.handed_over(exc)
            raise
        finally:
            visit.let_go()
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
        finally:
            visit.let_go()


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
        plan = node.plan()
        if stack := running.get():
            _refuse_evaluator(stack, node)
        conf = conf_of(config)
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        ledger = ledger_in(conf)
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
            if core.recorder.latest is not run:
                core.recorder.goes_on(run)
        namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS]
        if NS_SEP in namespace:
            namespace = namespace.rpartition(NS_SEP)[0]
        else:
            namespace = ""
        record = begin(
            run.log, run, task, node.node, node.instruction, step, namespace, settings.clock(), path
        )
        record.input = snapshot(input, settings.snapshot)
        NodeRun.__init__(
            self, record, plan, input, settings, run, past, parent, config, node.targets, node.schemas
        )
        self.node = node
        self.is_graph = node.is_subgraph
        self.ledger = ledger
        if loop.first is None:
            loop.first = step
        if ledger.done:
            ledger.done.pop(task, None)  # of an attempt whose later writers failed
        if conf.get(CONFIG_KEY_RESUMING):
            skip_ours(conf)
            self.may_be_held = self._may_be_held()
            self.is_plain = self.is_plain and not self.may_be_held

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

    def look_back(self) -> Saved:
        if (saver := self._resumed()) is None:
            return Saved()
        return self._read_saved([saver.get_tuple(place) for place in places_of(self._conf)])

    async def alook_back(self) -> Saved:
        if (saver := self._resumed()) is None:
            return Saved()
        return self._read_saved([await saver.aget_tuple(place) for place in places_of(self._conf)])

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
        own = self.record.id
        saved = read_notes(writes, own)
        # What came with a command's own update, which no task has written, is no fact.
        facts = [(task, fact) for task, channel, fact in writes if channel == LEDGER and task != NULL_TASK_ID]
        saved.facts = [fact for _, fact in facts]
        if any(task == own for task, _ in facts):
            saved.notes = ()  # it was done: this is a replay
        return saved

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
        channels = cast(Mapping[str, Any], self.ledger.origin.graph.channels)
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
        skip_ours(self._conf, count)

    @property
    def answered(self) -> int:
        return body_answers(self.config)

    def keep(self, note: Mapping[str, Any]) -> None:
        if (saver := self._saver()) is not None:
            access(keep_draft(self._conf, self.record.id, note), saver)

    async def akeep(self, note: Mapping[str, Any]) -> None:
        if (saver := self._saver()) is not None:
            await aaccess(keep_draft(self._conf, self.record.id, note), saver)

    @property
    def is_running(self) -> bool:
        return self.record.id in bodies

    def begin(self, op: Begin) -> bool:
        return access(begin_body(self._conf, op.entry), self._saver())

    async def abegin(self, op: Begin) -> bool:
        return await aaccess(begin_body(self._conf, op.entry), self._saver())

    def stopped(self, op: Stopped) -> None:
        access(self._stopped(op), self._saver())

    async def astopped(self, op: Stopped) -> None:
        await aaccess(self._stopped(op), self._saver())

    def _stopped(self, op: Stopped) -> Access[None]:
        return pause_body(self._conf, op.entry) if op.paused else spend(self._conf)

    def spend(self, op: Spend) -> None:
        if (saver := self._saver()) is not None:
            access(note_spent(self._conf, self.record.id, op), saver)

    async def aspend(self, op: Spend) -> None:
        if (saver := self._saver()) is not None:
            await aaccess(note_spent(self._conf, self.record.id, op), saver)

    def let_go(self) -> None:
        """This attempt is over."""
        if self.entry is not None:
            bodies.discard(self.record.id)

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
        return without_effects(config)

    # Afterwards

    def finish(self, output: Any) -> Any:
        """Hand output and fact to the writers."""
        fact = ledger = None
        if self.node.core.registry.version:  # something was registered
            fact = self.fact()
            ledger = self._taker()
            if self.parent is not None:
                self._report(fact)
        if self.node.commits:
            self._conf[STASH] = fact, self.record, ledger
        elif fact is not None:
            self._commit(fact, ledger)
        return output if self.redirect is None else Redirect(output, self.redirect)

    def handed_over(self, exc: ParentCommand) -> None:
        """A command came up from a subgraph and LangGraph will run the original writers with it."""
        if self.node.core.registry.empty:
            return
        fact = self.fact()
        command: Any = cast(Any, exc).args[0]
        if self.is_own(command):
            self._commit(fact, self._taker())
        self._report(fact)

    def _taker(self) -> LedgerChannel | None:
        """The channel to which the fact is handed, where it need not be a write. A task with a timeout writes through a
        guard, and what it has written is dropped when the time is up."""
        conf = self._conf
        if self.node.keeps_writes or conf.get(CONFIG_KEY_CHECKPOINTER) is not None:
            return None
        return self.ledger if type(conf[CONFIG_KEY_SEND]) is _BUILT_IN else None

    def _commit(self, fact: Fact, ledger: LedgerChannel | None) -> None:
        if ledger is None:
            self._conf[CONFIG_KEY_SEND]([(LEDGER, fact)])
        else:
            ledger.done[self.record.id] = fact, self.record.path

    def _report(self, fact: Fact) -> None:
        if self.parent is not None:
            order = task_order(self.record.path) + self.record.id
            self.parent.report(self.record.namespace, self.record.step, self.ledger.past.value, order, fact)

    # Inside

    def written_aside(self) -> Sequence[Mapping[str, Any]]:
        if not (writes := writes_in(self._conf)):
            return ()
        return [{key: value} for key, value in writes if not key.startswith("__")]

    def take_back(self) -> None:
        writes = writes_in(self._conf)
        kept = [one for one in writes if one[0] == RESUME]  # what a human has answered outlives the output
        writes.clear()
        writes.extend(kept)

    @property
    def tools(self) -> ToolsOf:
        return self.node.tools

    def _body_config(self) -> RunnableConfig | None:
        return with_handlers(self.config, self.handlers) if self.handlers else self.config

    @contextmanager
    def _ambient(self, held: bool) -> Generator[RunnableConfig]:
        config = cast(RunnableConfig, self._body_config())
        if held:
            config = self._holding(config)
        before = ambient_before.set(None if self.parent is None else self.parent.config)
        token = var_child_runnable_config.set(config)
        try:
            yield config
        finally:
            try:
                var_child_runnable_config.reset(token)
                ambient_before.reset(before)
            except ValueError:  # an async generator may be closed in another context
                pass

    def _holding(self, config: RunnableConfig) -> RunnableConfig:
        """The config for a draft: what it streams, and writes to the state by itself, waits until it is taken."""
        self.streamed = held = []
        pushed: list[Mapping[str, Any]] = []
        self.pushed = pushed

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
                    pushed.extend({key: part} for key, part in own if not key.startswith("__"))

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
        """The checkpointer, if the subgraph goes on with what was done before: of that nobody reports here."""
        if self.node.core.registry.empty or not self._conf.get(CONFIG_KEY_RESUMING):
            return None
        is_retry = self._conf[CONFIG_KEY_RUNTIME].execution_info.node_attempt > 1
        return None if is_retry and self._inner else self._saver()

    def _adopt(self, saved: Any) -> None:
        stored = None if saved is None else saved.checkpoint["channel_values"].get(LEDGER)
        if stored:
            past = Past.restored(stored, self.settings.facts)
            self.adopt(self._conf[CONFIG_KEY_CHECKPOINT_NS], past.value)

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


_READ_ONLY = frozenset({CONFIG_KEY_RUNTIME, CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_TASK_ID})
"""Of LangGraph's own keys, those by which nothing is written once they are as `without_effects` makes them."""


def without_effects(config: RunnableConfig) -> RunnableConfig:
    """A config that says the same to a contract, and by which it cannot write, stream, pause or end the run."""
    given: dict[str, Any] = config.get("configurable") or {}
    conf = {key: part for key, part in given.items() if not key.startswith("__") or key in _READ_ONLY}
    if CONFIG_KEY_SEND in given:
        conf[CONFIG_KEY_SEND] = _unheard
    if (scratchpad := given.get(CONFIG_KEY_SCRATCHPAD)) is not None:
        # With questions of its own: it must not get answers that were given to the body.
        conf[CONFIG_KEY_SCRATCHPAD] = replace(
            scratchpad,
            resume=[],
            get_null_resume=_no_answer,
            interrupt_counter=count().__next__,
            call_counter=count().__next__,
            subgraph_counter=count().__next__,
        )
    if (runtime := given.get(CONFIG_KEY_RUNTIME)) is not None:
        idle: dict[str, Any] = {"stream_writer": _unheard, "heartbeat": _do_nothing, "control": None}
        conf[CONFIG_KEY_RUNTIME] = runtime.override(**{k: v for k, v in idle.items() if hasattr(runtime, k)})
    apart: dict[str, Any] = {**config, "configurable": conf, "metadata": dict(config.get("metadata") or {})}
    return cast(RunnableConfig, apart)


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


def _do_nothing() -> None:
    pass


def _unheard(chunk: Any) -> None:
    pass


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
