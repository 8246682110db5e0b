"""Governing without a graph: plain functions, Runnables, and the functions of LangGraph's functional API.

The lifecycle is the same, but the past differs. Without a checkpoint to keep facts in, the past of a governed
function consists of the governed functions that ran before it in the same run and process.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.constants import END

from arbiter._lifecycle.core import Core
from arbiter._lifecycle.drivers import adrive, drive
from arbiter._lifecycle.registry import Plan
from arbiter._lifecycle.requests import Answered, Ask, Begin, ReadCheckpoint, Saved, Saving, Stopped
from arbiter._lifecycle.runs import FUNCTIONS, NodeRun, Schemas, current_run
from arbiter._lifecycle.saving import Access
from arbiter._threads.forks import new_lock
from arbiter._values.contexts import ambient
from arbiter._values.states import SeenDict, as_state, has_parts_of
from arbiter._weaving.asking import (
    ask_human,
    attempt_of,
    begin_function,
    claims_of,
    drop_refused,
    is_resumed,
    let_go,
    pause_function,
    saver_of,
)
from arbiter._weaving.channel import conf_of, note_calls
from arbiter._weaving.executions import begin_call, end_call
from arbiter._weaving.node import without_effects
from arbiter._weaving.runtimes import with_ambient
from arbiter._weaving.tools import HeldTools
from arbiter._weaving.watching import watched
from arbiter.errors import NotAGraphError, SyncDriverError
from arbiter.history._facts import RunFact
from arbiter.history._items import ToolsOf
from arbiter.history._past import Past
from arbiter.history._record import Calling, ExecutionInfo, Position
from arbiter.history._recorder import Run, TaskAttempt, begin
from arbiter.instructions import Instruction

_lock = new_lock()
_NO_GRAPH = frozenset({END})


@dataclass(frozen=True, slots=True)
class Governed:
    """The parts that all calls of one governed function or Runnable have in common."""

    core: Core
    name: str
    instruction: Instruction | None
    schemas: Schemas | None
    tools: HeldTools


class FunctionCall(NodeRun):
    """One call of a governed function."""

    _task: TaskAttempt | None = None
    """The LangGraph task that calls it, if no governed node does."""
    _calling: Calling | None = None

    def __init__(
        self,
        governed: Governed,
        input: Any,
        call: Callable[[Any], Any],
        config: RunnableConfig | None = None,
    ) -> None:
        core, name, instruction = governed.core, governed.name, governed.instruction
        core.planned(Plan(), None)
        settings = core.settings
        config = var_child_runnable_config.get() if config is None else with_ambient(config)
        if config and is_resumed(conf := config.get("configurable", {})):
            note_calls(cast(Any, conf))
        parent = current_run.get()
        if parent is not None and parent.settings is settings:
            run, past = parent.run, parent.called(())
        else:
            parent = None
            run, self._task, self._calling = _run_of(core, config)
            past = Past(run.called)
        namespace = "" if parent is None else FUNCTIONS
        record = begin(
            run,
            str(uuid.uuid4()),
            name,
            instruction,
            run.log.step_of_call(namespace),
            namespace,
            settings.clock(),
            (),
        )
        record.owner = "" if parent is None else parent.record.id
        self._tools = governed.tools
        super().__init__(
            record=record,
            plan=core.registry.plan(name, instruction, _NO_GRAPH),
            input=input,
            settings=settings,
            run=run,
            past=past,
            parent=parent,
            config=config,
            schemas=governed.schemas,
        )
        self.states.input = as_state(input)
        self.call = call
        self._uses: tuple[str, ...] = ()
        """The names of the runs on the approvals that this run uses."""
        self._execution: ExecutionInfo | None = None
        """The execution that this call is, if no governed node made it; only with listeners."""
        if settings.listeners:
            outer = None if parent is None else parent.record.execution
            if outer is None:
                outer = self._execution = begin_call(settings, name, config, run)
            after, number = past.end
            caller = None if parent is None else parent.record.id
            rules = self.plan.rules
            position = Position(after=after, past=number, caller=caller, calling=self._calling, rules=rules)
            self.tell_began(outer, position)

    def invoke(self) -> Any:
        if (contract := self.plan.only_async) is not None:
            raise SyncDriverError(node=self.record.node, source=f"{contract.kind} {contract.name!r}")
        try:
            return drive(self)
        finally:
            self._remember()

    async def ainvoke(self) -> Any:
        try:
            return await adrive(self)
        finally:
            self._remember()

    def _remember(self) -> None:
        self.is_over = True
        if self.claims:
            self._hand_on(self.claims)
        if self.told is not None:
            self.tell_ended()
        if self._execution is not None:
            end_call(self.settings, self._execution, self.record)
        fact: RunFact
        if self.record.status == "completed" or self.redirect is not None:
            fact = self.fact()
        elif self.record.status != "interrupted" and (inner := self.inner()) is not None:
            # Its caller may catch the error and go on. The node runs of its graphs are done.
            fact = {"inner": inner}
        else:
            return
        if self.parent is not None:
            self.parent.called((fact,))
        else:
            self.run.log.remember(self.run, fact, self.settings.facts, self._task)

    def _hand_on(self, claims: Sequence[str]) -> None:
        """No other execution may begin before the output of the whole node is saved."""
        if (parent := self.parent) is not None:
            with _lock:
                parent.claims = (*parent.claims, *claims)
        if parent is None or parent.is_over:  # a thread or a task of asyncio may outlive its node
            let_go(claims)

    # The driver asks

    def input_with(self, seen: SeenDict) -> Any:
        """As for a node. Returns the caller's own object if its fields are still the checked ones, since a
        function may change its argument on purpose.
        """
        checked = super().input_with(seen)
        return self.input if has_parts_of(checked, self.input) else checked

    @property
    def tools(self) -> ToolsOf:
        return self._tools

    def without_effects(self, config: RunnableConfig) -> RunnableConfig:
        return without_effects(config)

    def body(self, buffered: bool) -> Any:
        token = current_run.set(self)
        try:
            with self._configured():
                return self.call(self.input)
        finally:
            current_run.reset(token)

    @contextmanager
    def _configured(self) -> Generator[None]:
        """Let the body's calls see the config, and the handlers see these calls, while the body runs."""
        with watched(self.config, self.handlers) if self.handlers else nullcontext(self.config) as config:
            # The name and the id are those of this call, and not of each one in it.
            inner: Any = config and {k: v for k, v in config.items() if k not in {"run_id", "run_name"}}
            with ambient(inner):
                yield

    async def abody(self, buffered: bool) -> Any:
        token = current_run.set(self)
        try:
            with self._configured():
                answer = self.call(self.input)
                return await answer if inspect.isawaitable(answer) else answer
        finally:
            current_run.reset(token)

    @property
    def saver(self) -> Any:
        return saver_of(self.config)

    def access(self, op: Saving) -> Access[Any]:
        match op:
            case Ask():
                # Inside a LangGraph task this pauses; elsewhere no human can answer.
                answer = yield from ask_human(op, self.config, inside=True)
                if type(answer) is Answered:
                    self._uses = (*self._uses, op.use)
                return answer
            case ReadCheckpoint():
                return Saved()
            case Begin():
                config = cast(RunnableConfig, self.config)
                if not (yield from begin_function(config, self._uses, op.entry["retries"])):
                    return False
                self.claims = claims_of(config, self._uses)
                return True
            case Stopped() if op.paused:
                if op.refused:
                    drop_refused(conf_of(self.config))
                return (yield from pause_function(cast(RunnableConfig, self.config), self._uses))
            case _:
                return None  # a function has no checkpoint


def _run_of(core: Core, config: RunnableConfig | None) -> tuple[Run, TaskAttempt | None, Calling | None]:
    """The run of a function that was not called by a governed node, and the LangGraph task that calls it, if any, as
    the run knows it and as it is recorded.
    """
    conf = (config or {}).get("configurable") or {}
    thread_id = None if conf.get("thread_id") is None else str(conf["thread_id"])
    # A namespace is that of a LangGraph task that is not governed: the functional API.
    if namespace := conf.get("checkpoint_ns"):
        root = str(namespace).split("|", 1)[0]
        run = core.recorder.functional_run(thread_id, root, resumed=is_resumed(conf))
        if (calling := attempt_of(conf)) is not None:
            number = run.begins(root, calling, core.settings.facts)
            return run, calling, Calling(str(namespace), number, calling[1][1] or 1)
        return run, None, None
    return core.recorder.plain_run(thread_id, core.settings.facts), None, None


def govern_function(governed: Governed, function: Callable[..., Any]) -> Callable[..., Any]:
    """A governed function of the same kind and signature.

    The node's input is the argument if there is only one, else a dict of all arguments by name; an approved
    edit of the input replaces them. Raises `NotAGraphError` for a generator function, and without a signature.

    A `@task` stays one, and its function is governed: a call of the task only gives a future.
    """
    if _is_task(function):
        same: Any = copy.copy(function)
        same.func = govern_function(governed, same.func)
        return cast("Callable[..., Any]", same)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise NotAGraphError(
            f"{governed.name!r} is a generator function, which cannot be governed on its own. "
            "Make it a node of a graph, or return a value."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C, such as max
        raise NotAGraphError(
            f"{governed.name!r} has no signature that can be read. Govern a function of yours that calls it."
        ) from None

    def call_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall:
        if len(args) == 1 and not kwargs:
            return FunctionCall(governed, args[0], function)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()

        def again(input: dict[str, Any]) -> Any:
            again = inspect.BoundArguments(
                signature,
                cast(
                    "Any", {**bound.arguments, **{key: input[key] for key in bound.arguments if key in input}}
                ),
            )
            return function(*again.args, **again.kwargs)

        return FunctionCall(governed, dict(bound.arguments), again)

    if is_async(function):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await call_of(args, kwargs).ainvoke()

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_of(args, kwargs).invoke()

    return call


def _is_task(function: object) -> bool:
    func: Any = sys.modules.get("langgraph.func")
    # Without that module there are no tasks.
    return func is not None and isinstance(function, type(func.task(_is_task)))


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted
    )


class GovernedRunnable(Runnable[Any, Any]):
    """A governed Runnable outside a graph."""

    def __init__(self, governed: Governed, runnable: Runnable[Any, Any]) -> None:
        self.name = governed.name
        self.governed = governed
        self.runnable = runnable

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        def call(state: Any) -> Any:
            return self.runnable.invoke(state, config, **kwargs)

        return FunctionCall(self.governed, input, call, config).invoke()

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        def call(state: Any) -> Any:
            return self.runnable.ainvoke(state, config, **kwargs)

        return await FunctionCall(self.governed, input, call, config).ainvoke()
