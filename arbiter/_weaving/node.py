"""A node's body inside the lifecycle, and one attempt of one of its tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from types import BuiltinMethodType
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler  # pyright: ignore[reportPrivateUsage]
from langgraph._internal._config import recast_checkpoint_ns
from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_END,
    NS_SEP,
    PULL,
    RESUME,
)
from langgraph._internal._runnable import RunnableCallable
from langgraph.errors import ParentCommand
from langgraph.pregel import _retry
from langgraph.pregel._retry import _should_retry_on  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import Command, RetryPolicy

from arbiter._lifecycle.core import Core
from arbiter._lifecycle.drivers import Final, adrive, adrive_stream, drive
from arbiter._lifecycle.evaluations import Stack, running
from arbiter._lifecycle.registry import Plan
from arbiter._lifecycle.requests import (
    Ask,
    Begin,
    IsUsed,
    OutputOf,
    ReadCheckpoint,
    Saved,
    SaveNote,
    Saving,
    Spend,
    Stopped,
)
from arbiter._lifecycle.runs import NodeRun, Schemas, current_run
from arbiter._lifecycle.saving import Access, Find
from arbiter._values.states import as_state, joined
from arbiter._weaving.asking import (
    ask_human,
    begin_body,
    body_answers,
    drop_refused,
    finished_siblings,
    finished_tasks,
    is_resumed,
    is_used,
    keep_draft,
    keeping_answers,
    let_go,
    no_answer,
    note_spent,
    pause_body,
    place_in,
    read_saved,
    saver_in,
    skip_ours,
    spend,
)
from arbiter._weaving.channel import (
    FACTS,
    FactsChannel,
    conf_of,
    fact_write,
    facts_channel_in,
    note_calls,
    writes_in,
)
from arbiter._weaving.executions import info_of, tell_unknown
from arbiter._weaving.lcel import LcelSteps, ambient_before
from arbiter._weaving.runtimes import copy_once
from arbiter._weaving.stores import ReadOnlyStore
from arbiter._weaving.tools import HeldTools
from arbiter._weaving.watching import watched
from arbiter._weaving.writers import STASH, Redirect
from arbiter.errors import EvaluationError, PolicyViolationError, SyncDriverError
from arbiter.history._facts import RunFact
from arbiter.history._items import ToolsOf
from arbiter.history._past import task_order
from arbiter.history._record import Position
from arbiter.history._recorder import FirstTask, Recovered, begin
from arbiter.instructions import Instruction

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
        fields: frozenset[str],
        retry: Sequence[RetryPolicy],
        commits: bool,
        is_subgraph: bool,
        keeps_writes: bool,
    ) -> None:
        self.name = node
        self.node = node
        self.path = (PULL, node)
        """The path of tasks that no `Send` created."""
        self.core = core
        self.body = body
        self.instruction = instruction
        self.schemas = schemas
        self.targets = targets
        self.fields = fields
        self.retry = retry
        self.commits = commits
        """True if a gated writer follows and commits the fact."""
        self.is_subgraph = is_subgraph
        self.keeps_writes = keeps_writes
        """True if the writes of the graph's nodes may be repeated or dropped. Facts are then written as well.
        """
        self.is_sequence = type(body) is LcelSteps
        self.is_function = _is_function(body)
        # One pair, stored at once: another thread must not find an older plan beside a newer version.
        self._planned = (-1, Plan())
        self.tools = HeldTools(body.steps if self.is_sequence else body)

    def plan(self, config: RunnableConfig) -> Plan:
        version = self.core.registry.version
        known, plan = self._planned
        if known != version:
            plan = self.core.registry.plan(self.node, self.instruction, self.targets)
            self._planned = (version, plan)
            self.core.planned(plan, config)
        return plan

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        attempt = NodeAttempt(self, input, config or {}, kwargs)
        if (contract := attempt.plan.only_async) is not None:
            raise SyncDriverError(node=self.node, source=f"{contract.kind} {contract.name!r}")
        try:
            output = drive(attempt)
        except ParentCommand as exc:
            attempt.handed_over(exc)
            raise
        finally:
            attempt.let_go()
        return attempt.finish(output)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        attempt = NodeAttempt(self, input, config or {}, kwargs)
        try:
            output = await adrive(attempt)
        except ParentCommand as exc:
            attempt.handed_over(exc)
            raise
        finally:
            attempt.let_go()
        return attempt.finish(output)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if self.is_sequence:
            ambient_before.set(var_child_runnable_config.get())  # LangGraph streams all steps with one config
        attempt = NodeAttempt(self, input, config or {}, kwargs)
        streamed = False
        try:
            async for chunk in adrive_stream(attempt):
                if type(chunk) is not Final:
                    streamed = True
                    yield chunk
                    continue
                output = attempt.finish(chunk.output)
                # The last chunk replaces the streamed ones if it is not their sum.
                if not streamed or type(output) is Redirect or attempt.transient or attempt.replaced:
                    yield output
        except ParentCommand as exc:
            attempt.handed_over(exc)
            raise
        finally:
            attempt.let_go()


def _is_function(body: Any) -> bool:
    """True if LangGraph would only call a function with the node's input."""
    if type(body) is not _CALLABLE or body.trace or body.func_accepts or body.kwargs:
        return False
    return body.recurse and not body.explode_args


def _is_runnable(output: object) -> bool:
    return isinstance(output, Runnable)


class NodeAttempt(NodeRun):
    """One attempt of one task at a governed node."""

    def __init__(
        self, node: GovernedNode, input: Any, config: RunnableConfig, kwargs: Mapping[str, Any]
    ) -> None:
        core = node.core
        plan = node.plan(config)
        if stack := running.get():
            _refuse_evaluator(stack, node)
        conf = conf_of(config)
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        self.channel = channel = facts_channel_in(conf)
        execution: Any = channel.execution
        task: str = conf[CONFIG_KEY_TASK_ID]
        step: int = metadata["langgraph_step"]
        path = metadata.get("langgraph_path", ())
        if path == node.path:
            path = node.path  # one object shared by all its runs
        self.node = node
        self._conf = conf
        self._kwargs = kwargs
        settings = core.settings
        clock = settings.clock
        if execution.run is None:  # a resume has no START
            copy_once(conf)
        pending: Sequence[RunFact] = ()
        parent = current_run.get()
        if parent is not None and parent.settings is settings:
            past = channel.past.inside(parent.past)
            if (run := execution.run) is None:
                first = _first_task(conf, step, task, path)
                owner, begun = parent.record.id, parent.record.attempt > 1
                run = execution.join(parent.run, past, first, owner=owner, begun=begun)
                pending = first.pending
        else:
            parent = None
            past = channel.past
            run = execution.run or execution.bind(past, _first_task(conf, step, task, path))
            if core.recorder.latest is not run:
                core.recorder.goes_on(run)
        namespace: str = conf[CONFIG_KEY_CHECKPOINT_NS].rpartition(NS_SEP)[0]
        record = begin(run, task, node.node, node.instruction, step, namespace, clock(), path)
        if parent is not None:
            record.owner = parent.record.id
            if not namespace:
                place = id(conf.get(CONFIG_KEY_CHECKPOINTER)), conf.get("thread_id")
                number = parent.graph_number(execution.number, place, resumed=is_resumed(conf))
                execution.number = record.call = number
            if pending:
                parent.report(execution.name, step, channel, {fact["id"]: fact for fact in pending})
        NodeRun.__init__(self, record, plan, input, settings, run, past, parent, config, node.schemas)
        self.states.input = as_state(input)
        if channel.done:
            channel.done.pop(task, None)  # left by an attempt whose later writers failed
        if conf.get(CONFIG_KEY_RESUMING):
            note_calls(conf)
            skip_ours(conf)
            if channel.ran is None and channel.origin.caches:
                done = finished_tasks(conf)
                if channel.ran is None:  # a task beside this one may have run meanwhile
                    channel.ran = done
            self.may_have_asked = self._may_have_asked()
        if settings.listeners:
            info = info_of(channel, execution, conf, run, parent)
            execution.info = info
            if execution.unknown or execution.pending:
                tell_unknown(channel, past, info)
            self.tell_began(info, self._position())

    def _position(self) -> Position:
        after, past = self.channel.past.end
        checkpoints: Mapping[str, str] | None = self._conf.get(CONFIG_KEY_CHECKPOINT_MAP)
        # Elsewhere the namespace names the task around the graph.
        is_called = NS_END not in self.record.namespace or not isinstance(self.parent, NodeAttempt)
        return Position(
            after=after,
            past=past,
            checkpoint=checkpoints.get(self.record.namespace) if checkpoints and self.is_saved else None,
            caller=(self.record.owner or None) if is_called else None,
            call=self.record.call,
            rules=self.plan.rules,
            graph=self.channel.origin.described(),
        )

    # The lifecycle asks

    @property
    def is_shared(self) -> bool:
        return self.record.path is not self.node.path

    @property
    def is_graph(self) -> bool:
        return self.node.is_subgraph

    @property
    def fields(self) -> Collection[str]:
        return self.node.fields

    @property
    def is_saved(self) -> bool:
        return self.saver is not None

    @property
    def channels(self) -> Sequence[Mapping[str, Any]]:
        callbacks: Any = (self.config or {}).get("callbacks") or ()
        for handler in getattr(callbacks, "handlers", callbacks):
            # A stream of messages gives them ids; `astream_events`, whose handler is async, does not.
            if isinstance(handler, _StreamingCallbackHandler) and not isinstance(
                handler, (AsyncCallbackHandler, _MutedHandler)
            ):
                return ()
        own = cast(Mapping[str, Any], self.channel.origin.graph.channels)
        if self.parent is None:
            # A graph around this one that is not governed, or by another ArbiterOS, is not known.
            return () if self.record.namespace else (own,)
        outer = self.parent.channels
        return (own, *outer) if outer else ()

    def is_final(self, error: BaseException) -> bool:
        runtime = self._conf.get(CONFIG_KEY_RUNTIME)
        info = getattr(runtime, "execution_info", None)
        attempt = 1 if info is None else info.node_attempt
        for policy in self.node.retry:
            if _should_retry_on(policy, cast(Exception, error)):
                return attempt >= policy.max_attempts
        return True

    def is_own(self, command: Command[Any]) -> bool:
        # The comparison by which LangGraph decides to which graph a ParentCommand belongs.
        namespace: str = self._conf[CONFIG_KEY_CHECKPOINT_NS]
        return command.graph in (namespace, recast_checkpoint_ns(namespace), self.node.node)

    # Saved data

    @property
    def saver(self) -> Any:
        return saver_in(self._conf)

    def access(self, op: Saving) -> Access[Any]:
        match op:
            case Ask():
                return (yield from ask_human(op, self.config))
            case ReadCheckpoint() if not self.is_saved or not self._conf.get(CONFIG_KEY_RESUMING):
                return Saved()
            case ReadCheckpoint():
                return (yield from read_saved(self._conf, self.record.id))
            case Begin():
                if not (yield from begin_body(self._conf, op.entry)):
                    return False
                self.claims = (*self.claims, self.record.id)
                if self._begins_first(op.entry):
                    # Else a graph in it that keeps its state would go on with an earlier call instead of the input.
                    cast(Any, self._conf)[CONFIG_KEY_RESUMING] = False
                return True
            case IsUsed():
                return (yield from is_used(self._conf, [self.record.id]))
            case Stopped():
                if op.refused:
                    drop_refused(self._conf)
                return (yield from (pause_body(self._conf, op.entry) if op.paused else spend(self._conf)))
            case _ if not self.is_saved:
                return None
            case OutputOf():
                return (
                    yield Find(
                        place_in(self._conf, self.record.namespace),
                        _LOOK_BACK,
                        partial(self._written, op.task),
                    )
                )
            case SaveNote():
                return (yield from keep_draft(self._conf, self.record.id, op.note))
            case Spend():
                return (yield from note_spent(self._conf, self.record.id, op))

    def _begins_first(self, entry: Mapping[str, Any]) -> bool:
        """True if the body has certainly not run in this task before its approval."""
        first = next(iter(self.saved.asked if self.saved is not None else ()), None)
        is_first = first is not None and first["type"] == "approval" and not first.get("resumed", True)
        return is_first and not entry["entry"]

    @property
    def recovered(self) -> Recovered | None:
        execution = self.channel.execution
        return None if execution is None else execution.recovered

    def recover(self, recovered: Recovered) -> None:
        if self.channel.execution is not None:
            self.channel.execution.recovered = recovered

    def _may_have_asked(self) -> bool:
        begun = self.channel.execution is not None and self.channel.execution.first == self.record.step
        return begun and self.node.core.registry.changes > 0 and self.is_saved

    def _written(self, task: str, saved: Any) -> tuple[Any] | None:
        """The update that a task wrote, in the form in which a node returns it; None if the task has not
        ended.
        """
        channels = cast(Mapping[str, Any], self.channel.origin.graph.channels)
        writes = [
            (channel, value) for of_task, channel, value in saved.pending_writes or () if of_task == task
        ]
        if not any(channel == FACTS for channel, _ in writes):
            return None  # another task, or an unfinished one
        update = [
            (channel, value)
            for channel, value in writes
            if channel in channels and not channel.startswith(_EDGES) and channel != FACTS
        ]
        if len({channel for channel, _ in update}) < len(update):
            return (Command(update=update),)  # several commands wrote to one key
        written = dict(update)
        return (written.get("__root__", written),)

    def skip_questions(self, count: int) -> None:
        skip_ours(self._conf, count)

    @property
    def answered(self) -> int:
        return body_answers(self.config)

    def let_go(self) -> None:
        """End this attempt."""
        self.is_over = True
        if self.claims:
            has_output = self.record.status == "completed" or self.redirect is not None
            let_go(self.claims, self.record.id if has_output else None)
        if self.told is not None and self.record.status != "completed" and self.redirect is None:
            self.tell_ended()  # it raised: no writer follows

    # The driver asks

    def body(self, buffered: bool) -> Any:
        node, input, config = self.node, self.input, self.config
        output: Any
        token = current_run.set(self)
        try:
            # A function's own calls go by the ambient config.
            if buffered or node.is_sequence or self.handlers:
                with self._ambient(buffered) as config:
                    output = node.body.invoke(input, config, **self._kwargs)
            elif node.is_function and (func := node.body.func) is not None and not self._kwargs:
                output = func(input)
                if type(output) is not _DICT and _is_runnable(output):
                    output = output.invoke(input, config)
            else:
                output = node.body.invoke(input, config, **self._kwargs)
        finally:
            current_run.reset(token)
        return output

    async def abody(self, buffered: bool) -> Any:
        node, input, config = self.node, self.input, self.config
        output: Any
        token = current_run.set(self)
        try:
            # A function's own calls go by the ambient config.
            if buffered or node.is_sequence or self.handlers:
                with self._ambient(buffered) as config:
                    output = await node.body.ainvoke(input, config, **self._kwargs)
            elif node.is_function and (afunc := node.body.afunc) is not None and not self._kwargs:
                output = await afunc(input)
                if type(output) is not _DICT and _is_runnable(output):
                    output = await output.ainvoke(input, config)
            else:
                output = await node.body.ainvoke(input, config, **self._kwargs)
        finally:
            current_run.reset(token)
        return output

    async def astream_body(self, buffered: bool) -> AsyncIterator[Any]:
        token = current_run.set(self)
        try:
            with self._ambient(buffered) as config:
                async for chunk in self.node.body.astream(self.input, config, **self._kwargs):
                    yield chunk
        finally:
            try:
                current_run.reset(token)
            except ValueError:  # an async generator may be closed in another context
                current_run.set(None)

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        return without_effects(config)

    # Afterwards

    def finish(self, output: Any) -> Any:
        """Pass output and fact to the writers."""
        fact = channel = None
        if self.node.core.keeps_facts:
            fact = self.fact()
            channel = self._taker()
            if self.parent is not None or self.channel.ran is not None:
                self._report(fact)
        if self.node.commits:
            self._conf[STASH] = fact, self.record, channel
        elif fact is not None:
            self._commit(fact, channel)
        if self.told is not None:
            if self.node.commits:  # once the writers are done
                self.channel.ending[self.record.id] = self.record, self.tell_ended
            else:
                self.tell_ended()
        return output if self.redirect is None else Redirect(output, self.redirect)

    def handed_over(self, exc: ParentCommand) -> None:
        """Commit the fact of a node whose subgraph raised a command; LangGraph runs the original writers with
        that command.
        """
        if self.told is not None:
            self.tell_ended()
        if not self.node.core.keeps_facts:
            return
        fact = self.fact()
        command: Any = cast(Any, exc).args[0]
        if self.is_own(command):
            self._commit(fact, self._taker())
        self._report(fact)

    def _taker(self) -> FactsChannel | None:
        """The channel that gets the fact directly, or None if the fact must be a write.

        A task with a timeout writes through a guard, which drops its writes when the time is up, so its fact
        must be a write.
        """
        conf = self._conf
        if self.node.keeps_writes or conf.get(CONFIG_KEY_CHECKPOINTER) is not None:
            return None
        return self.channel if type(conf[CONFIG_KEY_SEND]) is _BUILT_IN else None

    def _commit(self, fact: RunFact, channel: FactsChannel | None) -> None:
        if channel is None:
            self._conf[CONFIG_KEY_SEND]([fact_write(fact)])
        else:
            channel.done[self.record.id] = fact, self.record.path

    def _report(self, fact: RunFact) -> None:
        """Report that the node has run, and its fact to the node around its graph."""
        if self.channel.ran is not None:
            self.channel.ran.add(self.record.id)
        if self.parent is not None:
            execution: Any = self.channel.execution
            order = task_order(self.record.path) + self.record.id
            self.parent.report(execution.name, self.record.step, self.channel, {order: fact})

    # Inside

    def written(self, output: Any) -> Any:
        if not (writes := writes_in(self._conf)):
            return output
        beside = [{key: value} for key, value in writes if not key.startswith("__")]
        return joined([*beside, as_state(output)]) if beside else output

    def take_back(self) -> None:
        writes = writes_in(self._conf)
        kept = [one for one in writes if one[0] == RESUME]  # a human's answers outlive the output
        writes.clear()
        writes.extend(kept)

    @property
    def tools(self) -> ToolsOf:
        return self.node.tools

    @contextmanager
    def _ambient(self, buffered: bool) -> Generator[RunnableConfig]:
        given, handlers = cast(RunnableConfig, self.config), self.handlers
        with (
            watched(given, handlers) if handlers else nullcontext(given) as own,
            self._buffering(own) if buffered else nullcontext(own) as config,
        ):
            before = ambient_before.set(ambient_before.get())  # a graph in the body sets its own
            token = var_child_runnable_config.set(config)
            try:
                yield config
            finally:
                try:
                    var_child_runnable_config.reset(token)
                    ambient_before.reset(before)
                except ValueError:  # an async generator may be closed in another context
                    pass

    @contextmanager
    def _buffering(self, config: RunnableConfig) -> Generator[RunnableConfig]:
        """The config for a draft: its streamed chunks and its own writes to the state are kept back until it
        is accepted.
        """
        self.streamed = buffer = []
        pushed: list[Mapping[str, Any]] = []
        self.pushed = pushed
        callbacks = config.get("callbacks")
        handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else []
        clocks: list[Any] = [handler for handler in handlers if isinstance(handler, _IDLE_CLOCK)]

        def keep(emit: Callable[[Any], None], part: Any) -> None:
            buffer.append(partial(emit, part))
            # LangGraph sees it only when the draft is accepted, and would take the node for idle until then.
            for clock in clocks:
                clock.on_custom_event()

        def later(emit: Callable[[Any], None]) -> Callable[[Any], None]:
            return partial(keep, emit)

        def from_inside(emit: Callable[[Any], None]) -> Callable[[Any], None]:
            # A graph in the body has the feedback on earlier drafts in its state, and would stream it.
            return lambda chunk: keep(emit, chunk) if chunk[1] == "custom" else None

        def writes_later(send: Callable[[Any], None]) -> Callable[[Any], None]:
            def write(writes: Sequence[tuple[str, Any]]) -> None:
                # A human's answers outlive the draft that asked.
                now = [one for one in writes if one[0] == RESUME]
                own = [one for one in writes if one[0] != RESUME]
                if now:
                    send(now)
                if own:
                    keep(send, own)
                    pushed.extend({key: part} for key, part in own if not key.startswith("__"))

            return write

        conf = self._conf
        # For the same reason a graph in the body saves no checkpoint; it starts again when the run is
        # resumed.
        patch: dict[str, Any] = {
            CONFIG_KEY_CHECKPOINTER: None,
            CONFIG_KEY_SEND: writes_later(conf[CONFIG_KEY_SEND]),
        }
        if conf.get(CONFIG_KEY_DURABILITY) == "sync":
            patch[CONFIG_KEY_DURABILITY] = "async"  # a graph without a checkpointer fails under "sync"
        if (runtime := conf.get(CONFIG_KEY_RUNTIME)) is not None:
            writer = later(runtime.stream_writer)
            patch[CONFIG_KEY_RUNTIME] = runtime.override(stream_writer=writer)
        if (stream := conf.get(CONFIG_KEY_STREAM)) is not None:
            inside = from_inside if self.record.drafts else later
            patch[CONFIG_KEY_STREAM] = StreamProtocol(inside(stream), stream.modes)
        tags = [*(config.get("tags") or ()), "nostream"]
        buffered_config: RunnableConfig = {**config, "tags": tags}
        if isinstance(callbacks, BaseCallbackManager):
            # Handlers that stream events at once (messages, astream_events) would show a rejected draft.
            callbacks = callbacks.copy()
            for handler in [h for h in callbacks.handlers if isinstance(h, _StreamingCallbackHandler)]:
                callbacks.remove_handler(handler)
                if clocks:
                    callbacks.add_handler(_MutedHandler())
            buffered_config["callbacks"] = callbacks
        with keeping_answers(conf) as pad:
            buffered_config["configurable"] = {**conf, **patch, CONFIG_KEY_SCRATCHPAD: pad}
            yield buffered_config


_IDLE_CLOCK: Any = getattr(_retry, "_IdleProgressCallbackHandler", ())
"""The class of the handler that resets a node's idle timeout."""


class _MutedHandler(BaseCallbackHandler, _StreamingCallbackHandler[Any]):
    """A handler that makes models stream and ignores the tokens; each token still resets an idle timeout."""

    # Otherwise an async model would call it in a thread for each token.
    run_inline = True

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Without this method LangChain makes one text of the messages, and fails at those of unknown types."""

    def tap_output_aiter(self, run_id: Any, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return output

    def tap_output_iter(self, run_id: Any, output: Iterator[Any]) -> Iterator[Any]:
        return output


_READ_ONLY = frozenset({CONFIG_KEY_RUNTIME, CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_TASK_ID})
"""LangGraph's own keys that allow no write once `without_effects` has replaced their values."""


def without_effects(config: RunnableConfig) -> RunnableConfig:
    """A config with the same information for a contract, but without the means to write, stream, pause or end
    the run.
    """
    given: dict[str, Any] = config.get("configurable") or {}
    conf = {key: part for key, part in given.items() if not key.startswith("__") or key in _READ_ONLY}
    if CONFIG_KEY_SEND in given:
        conf[CONFIG_KEY_SEND] = _unheard
    if (scratchpad := given.get(CONFIG_KEY_SCRATCHPAD)) is not None:
        # With its own list of questions: it must not get answers that were given to the body.
        conf[CONFIG_KEY_SCRATCHPAD] = replace(
            scratchpad,
            resume=[],
            get_null_resume=no_answer,
            interrupt_counter=count().__next__,
            call_counter=count().__next__,
            subgraph_counter=count().__next__,
        )
    if (runtime := given.get(CONFIG_KEY_RUNTIME)) is not None:
        idle: dict[str, Any] = {"stream_writer": _unheard, "heartbeat": _unheard, "control": None}
        if runtime.store is not None:
            idle["store"] = ReadOnlyStore(runtime.store)
        conf[CONFIG_KEY_RUNTIME] = runtime.override(**{k: v for k, v in idle.items() if hasattr(runtime, k)})
    isolated_config: dict[str, Any] = {
        **config,
        "configurable": conf,
        "metadata": dict(config.get("metadata") or {}),
    }
    return cast(RunnableConfig, isolated_config)


def denials_stand(policies: Sequence[RetryPolicy]) -> Sequence[RetryPolicy]:
    """The same retry policies, but a denial is final: it is a decision and no failure of the node."""
    return tuple(
        # LangGraph's own default does not retry a denial.
        policy
        if policy.retry_on == RetryPolicy().retry_on
        else policy._replace(retry_on=partial(_is_retried, policy))
        for policy in policies
    )


def _is_retried(policy: RetryPolicy, error: Exception) -> bool:
    return not isinstance(error, PolicyViolationError) and _should_retry_on(policy, error)


def _unheard(*told: Any) -> None:
    pass


def _first_task(conf: Mapping[str, Any], step: int, task: str, path: Any) -> FirstTask:
    thread_id = conf.get(CONFIG_KEY_THREAD_ID)
    return FirstTask(
        thread_id=None if thread_id is None else str(thread_id),
        saved=bool(conf.get(CONFIG_KEY_CHECKPOINTER)),
        resumed=bool(conf.get(CONFIG_KEY_RESUMING)),
        step=step,
        id=task,
        path=path,
        pending=finished_siblings(conf) if conf.get(CONFIG_KEY_RESUMING) else (),
    )


def _refuse_evaluator(stack: Stack, node: GovernedNode) -> None:
    """Raise `EvaluationError` if an evaluator runs a graph that it judges itself. It may run other graphs."""
    for queue, _ in stack:
        if any(queue is own for own in node.core.registry.evaluators):
            raise EvaluationError(
                f"evaluator {queue.name!r} ran node {node.node!r}, which its own ArbiterOS governs; "
                "an evaluator judges a run and starts none.",
                evaluator=queue.name,
                node=node.node,
            )
