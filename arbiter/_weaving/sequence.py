"""A governed node and its writers, one after another, as LangGraph runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import copy_context
from typing import Any, ClassVar, cast

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackManager, CallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7
from langgraph._internal._runnable import RunnableSeq

from arbiter._threads.forks import new_rlock
from arbiter._weaving.channel import conf_of
from arbiter._weaving.lcel import ambient_before
from arbiter._weaving.node import GovernedNode
from arbiter._weaving.writers import STASH, GatedWrite, not_written


class GovernedSequence(RunnableSeq):
    """The wrapper of a node and its writers, one after another, as LangGraph runs them.

    LangGraph opens a run for callback handlers around them, and gives each step a child of it. Without a
    handler of chains (one of models alone ignores them) that run is invisible, so it is left out, and the child is
    made only when some code uses it.
    """

    is_plain: bool
    """True if no setting changes the inputs and outputs that a tracer shows."""
    node: GovernedNode
    rest: list[tuple[int, Any]]
    """The steps after the wrapper, numbered from 2."""

    @classmethod
    def of(cls, sequence: RunnableSeq, node: GovernedNode) -> GovernedSequence:
        """The same steps as LangGraph's sequence, whose first step is `node`."""
        new = cls.__new__(cls)
        vars(new).update(vars(sequence))
        new.node, new.rest = node, list(enumerate(cast(list[Any], sequence.steps)[1:], 2))
        policy = getattr(sequence, "trace_policy", None)
        transforms = [getattr(sequence, "trace_inputs", None)]
        transforms += [getattr(policy, name, None) for name in ("process_inputs", "process_outputs")]
        new.is_plain = transforms == [None, None, None]
        return new

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self.node.is_sequence:
            ambient_before.set(var_child_runnable_config.get())
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
                output = step.invoke(output, _step_config(own, SyncLazyManager.of(config, number, manager)))
        return output

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if self.node.is_sequence:
            ambient_before.set(var_child_runnable_config.get())
        try:
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
                    output = await step.ainvoke(
                        output, _step_config(own, AsyncLazyManager.of(config, number, manager))
                    )
        except asyncio.CancelledError as exc:
            _not_begun(config, exc)
            raise
        return output

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        try:
            async for chunk in super().astream(input, config, **kwargs):
                yield chunk
        except asyncio.CancelledError as exc:
            _not_begun(config, exc)
            raise

    def _unheard(self, config: Any, kind: type[BaseCallbackManager], lazy: type[LazyManager]) -> Any:
        """The config of the first step if no handler sees the run of this task, else None."""
        if config is None:
            return None
        manager: Any = config.get("callbacks")
        if type(manager) is not kind:
            return None
        if manager.handlers and not all(handler.ignore_chain for handler in manager.handlers):
            return None
        if not self.is_plain or config.get("run_id") is not None:
            return None
        return _step_config(config, lazy.of(config, 1, None))


def _not_begun(config: Any, error: asyncio.CancelledError) -> None:
    """Handle a cancellation: the node may be done, and its writers have not begun."""
    if STASH in (conf := conf_of(config)):
        not_written(conf, error)


def _step_config(config: Any, manager: BaseCallbackManager) -> RunnableConfig:
    """The config of a step, derived from that of the step before, as LangGraph does it."""
    own: RunnableConfig = config.copy()
    own.pop("run_name", None)
    own.pop("run_id", None)
    own["callbacks"] = manager
    return own


class LazyManager(BaseCallbackManager):
    """Becomes, on first use, the callback manager that LangGraph would make.

    That is a child of the run that LangGraph would open for the sequence of a task with this config.
    """

    kind: ClassVar[type[BaseCallbackManager]]
    made_of: tuple[Any, int, BaseCallbackManager | None]
    """The task's config, the number of the step, and the manager of the sequence's first step."""

    @classmethod
    def of(cls, config: Any, number: int, first: BaseCallbackManager | None) -> LazyManager:
        manager = cls.__new__(cls)
        manager.made_of = (config, number, first)
        return manager

    def __getattr__(self, name: str) -> Any:
        if name not in _MANAGED:
            raise AttributeError(name)
        self._become()
        return vars(self)[name]

    # A method that builds a manager of the same class needs the real one.

    def copy(self) -> Any:
        self._become()
        return self.copy()

    def merge(self, other: Any) -> Any:
        self._become()
        return self.merge(other)

    def _become(self) -> None:
        with _managers:
            own = vars(self)
            if (made_of := own.get("made_of")) is not None:
                own.update({**vars(self._made(*made_of)), **own})  # attributes that were set before stay
                del own["made_of"]
                self.__class__ = self.kind  # type: ignore[assignment]

    def _made(self, config: Any, number: int, first: BaseCallbackManager | None) -> BaseCallbackManager:
        outer: BaseCallbackManager = config["callbacks"]
        # The run is that of all steps. The first step's manager keeps its id, and need not become real for it.
        kept = vars(self if first is None else first)
        if "parent_run_id" not in kept:
            kept["parent_run_id"] = uuid7()
        made = BaseCallbackManager([], parent_run_id=kept["parent_run_id"])
        made.set_handlers(outer.inheritable_handlers)
        made.add_tags(outer.inheritable_tags)
        made.add_tags([tag for tag in config.get("tags") or () if tag not in made.tags])
        made.add_metadata(outer.inheritable_metadata, inherit=False)
        made.add_metadata(config.get("metadata") or {}, inherit=False)
        made.inheritable_metadata = made.metadata.copy()
        made.add_tags([f"seq:step:{number}"], inherit=False)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        self._become()
        return type(self).__new__, (type(self),), vars(self)


class SyncLazyManager(LazyManager, CallbackManager):
    kind = CallbackManager


class AsyncLazyManager(LazyManager, AsyncCallbackManager):
    kind = AsyncCallbackManager


_MANAGED = frozenset(vars(BaseCallbackManager([])))
_managers = new_rlock()


class Passthrough(Runnable[Any, Any]):
    """Replaces a later step of a sequence, so that the steps after it keep their numbers in traces."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input
