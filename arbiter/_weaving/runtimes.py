"""What LangGraph makes of a run for each of its tasks, made with less work: its `Runtime` and its callback manager.

LangGraph copies the runtime of a run for each of its tasks, and then this copy and its `execution_info` twice
more, to set the number and the time of the attempt. The copies take about a twentieth of a small step. A task of
a governed run gets one copy, into which these two are written. The function of a node sees a plain `Runtime`, as
in a run that is not governed. LangChain fills a callback manager piece by piece, which takes a fiftieth of a
small step even if there is no handler; a task of a run without handlers gets an equal one, made at once.

A function that is run as one step gets the runtime of the task that calls it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForChainRun,
    CallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph._internal._constants import CONF, CONFIG_KEY_CALL, CONFIG_KEY_RUNTIME
from langgraph.runtime import ExecutionInfo, Runtime

_RUNTIME: Any = Runtime
_SLOTS = [
    (field.name, slot.__get__, slot.__set__)
    for field in fields(Runtime)
    for slot in (_RUNTIME.__dict__[field.name],)
]


class RunRuntime(Runtime[Any]):
    """The runtime of a run, of which its loop makes those of the tasks."""

    __slots__ = ()

    def override(self, **overrides: Any) -> Runtime[Any]:
        if type(overrides.get("execution_info")) is not ExecutionInfo:
            return super().override(**overrides)
        return _copied(self, TaskRuntime, overrides)


class TaskRuntime(Runtime[Any]):
    """The runtime of one task, which no function has seen, so that its own `execution_info` can be completed."""

    __slots__ = ()

    def patch_execution_info(self, **overrides: Any) -> Runtime[Any]:
        info: Any = self.execution_info
        for name, value in overrides.items():
            object.__setattr__(info, name, value)
        if "node_attempt" in overrides:  # the last one before the function is called
            object.__setattr__(self, "__class__", Runtime)
        return self


class RunManager(CallbackManagerForChainRun):
    """The callback manager of a run."""

    def get_child(self, tag: str | None = None) -> CallbackManager:
        parts = _child_of(self, tag)
        return super().get_child(tag) if parts is None else CallbackManager(**parts)


class AsyncRunManager(AsyncCallbackManagerForChainRun):
    """As `RunManager`, of a run in an event loop."""

    def get_child(self, tag: str | None = None) -> AsyncCallbackManager:
        parts = _child_of(self, tag)
        return super().get_child(tag) if parts is None else AsyncCallbackManager(**parts)


_MANAGERS: dict[type[Any], type[Any]] = {
    CallbackManagerForChainRun: RunManager,
    AsyncCallbackManagerForChainRun: AsyncRunManager,
}


def _child_of(
    manager: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun, tag: str | None
) -> dict[str, Any] | None:
    """The parts of the manager's child; None if there are handlers, or the tags need a closer look."""
    tags, metadata = manager.inheritable_tags, manager.inheritable_metadata
    if manager.inheritable_handlers or tag is None or tag in tags:
        return None
    return {
        "handlers": [],
        "parent_run_id": manager.run_id,
        "tags": [*tags, tag],
        "inheritable_tags": [*tags],
        "metadata": {**metadata},
        "inheritable_metadata": {**metadata},
    }


def _copied(runtime: Runtime[Any], kind: type[Runtime[Any]], changes: dict[str, Any]) -> Runtime[Any]:
    new = object.__new__(kind)
    for name, get, put in _SLOTS:
        put(new, changes[name] if name in changes else get(runtime))
    return new


def copy_once(conf: dict[str, Any]) -> None:
    """From now on, the loop of this task's run makes the runtime and the manager of each task as above, if it can be
    reached: a task with a timeout gets only guards of the loop's functions.
    """
    call: Any = conf.get(CONFIG_KEY_CALL)
    loop: Any = getattr(getattr(call, "keywords", {}).get("schedule_task"), "__self__", None)
    shared: Any = getattr(loop, "config", {}).get(CONF, {})
    if type(runtime := shared.get(CONFIG_KEY_RUNTIME)) is Runtime:
        shared[CONFIG_KEY_RUNTIME] = _copied(runtime, RunRuntime, {})
    manager: object = getattr(loop, "manager", None)
    if (kind := _MANAGERS.get(type(manager))) is not None:
        cast(Any, manager).__class__ = kind


def with_ambient(config: RunnableConfig | None) -> RunnableConfig:
    """The config with what it lacks of the one around it, and without LangChain's default limit of supersteps.

    That limit, 25, would be that of the graphs which are called with it.
    """
    found = {**ensure_config(config)}
    around = var_child_runnable_config.get()
    if all((each or {}).get("recursion_limit") is None for each in (config, around)):
        del found["recursion_limit"]
    return cast(RunnableConfig, found)


def with_runtime(config: RunnableConfig | None, context: Any) -> RunnableConfig:
    """The config with a runtime: that of the task which calls this, if there is one, and this context."""
    found = with_ambient(config)
    conf = found.get("configurable", {})
    runtime = conf.get(CONFIG_KEY_RUNTIME)
    if runtime is None:
        runtime = Runtime(context=context)
    elif context is not None:
        runtime = runtime.override(context=context)
    found["configurable"] = {**conf, CONFIG_KEY_RUNTIME: runtime}
    return found
