"""Executions as listeners see them: each call of a governed graph, from its begin to its end.

All the ways to run a graph go through its `stream` or `astream`, so a governed graph with listeners is of a
subclass of its own class that has these two. Without listeners it is of that class itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel

from arbiter._lifecycle import NodeRun, Settings, current_run
from arbiter._weaving.channel import FACTS, FactsChannel
from arbiter.errors import PolicyViolationError
from arbiter.history._record import ExecutionInfo, Record
from arbiter.history._recorder import Execution, Run, starting
from arbiter.listening import tell

_PLAIN = (str, int, float, bool)


def report_executions(graph: Pregel[Any, Any, Any, Any]) -> None:
    """From now on report the executions of a governed graph, and of its later copies, to listeners."""
    graph.__class__ = listened_to(type(graph))


@cache
def listened_to(cls: type[Any]) -> type[Any]:
    """A subclass of a graph's class that reports its executions to listeners. It goes by the name of its base."""
    if hasattr(cls, "_arbiter_listens"):
        return cls

    base: Any = cls

    class Listened(cls):  # type: ignore[misc]
        _arbiter_listens = True

        def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
            chunks: Any = base.stream(self, input, config, **kwargs)
            settings = _heard(self)
            return chunks if settings is None else _told(settings, _info(self, settings, config), chunks)

        def astream(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> AsyncIterator[Any]:
            chunks: Any = base.astream(self, input, config, **kwargs)
            settings = _heard(self)
            return chunks if settings is None else _atold(settings, _info(self, settings, config), chunks)

    for name in ("__module__", "__qualname__", "__name__", "__doc__"):
        setattr(Listened, name, getattr(cls, name))
    return Listened


def _heard(graph: Pregel[Any, Any, Any, Any]) -> Settings | None:
    """The settings of the graph's `ArbiterOS`, if somebody listens and this is not the graph of a governed node."""
    channel: Any = cast("Mapping[str, Any]", graph.channels).get(FACTS)
    if not isinstance(channel, FactsChannel) or not channel.core.settings.listeners:
        return None
    outer = current_run.get()
    return None if outer is not None and outer.settings is channel.core.settings else channel.core.settings


def _info(graph: Any, settings: Settings, config: RunnableConfig | None) -> ExecutionInfo:
    merged: Any = merge_configs(graph.config, config)
    conf: Mapping[str, Any] = merged.get("configurable") or {}
    return _made(settings, graph.get_name(), conf, graph)


def _made(settings: Settings, name: str, conf: Mapping[str, Any], graph: Any = None) -> ExecutionInfo:
    thread_id = conf.get("thread_id")
    return ExecutionInfo(
        id=str(uuid4()),
        run_id="",
        thread_id=None if thread_id is None else str(thread_id),
        graph=name,
        began=settings.clock(),
        config={
            key: value
            for key, value in conf.items()
            if not key.startswith("__") and (value is None or isinstance(value, _PLAIN))
        },
        nodes=graph,
    )


def info_of(
    settings: Settings, execution: Execution, conf: Mapping[str, Any], run: Run, parent: NodeRun | None
) -> ExecutionInfo:
    """The execution that a node run belongs to: the outermost one."""
    info = parent.record.execution if parent is not None else None
    if info is None:
        info = execution.info
    if info is None:  # it began before anybody listened
        info = execution.info = _made(settings, "", conf)
    if not info.run_id:
        info.run_id = run.uuid
    return info


def _told(settings: Settings, info: ExecutionInfo, chunks: Iterator[Any]) -> Iterator[Any]:
    tell(settings.listeners, "execution_began", info)
    try:
        # LangGraph makes the execution before its first chunk.
        token = starting.set([info])
        try:
            chunk = next(chunks, _END)
        finally:
            starting.reset(token)
        while chunk is not _END:
            _look(info, chunk)
            yield chunk
            chunk = next(chunks, _END)
    except BaseException as error:
        info.outcome = _outcome(error)
        raise
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
        _end(settings, info)


async def _atold(settings: Settings, info: ExecutionInfo, chunks: Any) -> AsyncIterator[Any]:
    tell(settings.listeners, "execution_began", info)
    try:
        token = starting.set([info])
        try:
            chunk = await anext(chunks, _END)
        finally:
            starting.reset(token)
        while chunk is not _END:
            _look(info, chunk)
            yield chunk
            chunk = await anext(chunks, _END)
    except BaseException as error:
        info.outcome = _outcome(error)
        raise
    finally:
        await chunks.aclose()
        _end(settings, info)


_END: Any = object()


def _look(info: ExecutionInfo, chunk: Any) -> None:
    """Note that the graph pauses, as LangGraph reports it in its stream."""
    parts: Any = chunk
    payload = parts[-1] if isinstance(chunk, tuple) and parts else parts
    if isinstance(payload, dict) and "__interrupt__" in payload:
        info.outcome = "paused"


def _outcome(error: BaseException) -> str:
    if isinstance(error, PolicyViolationError):
        return "denied"
    if isinstance(error, GeneratorExit):
        return "closed"
    if isinstance(error, Exception):
        return "failed"
    return "cancelled" if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) else "failed"


def _end(settings: Settings, info: ExecutionInfo) -> None:
    info.outcome = info.outcome or "completed"
    info.ended = settings.clock()
    tell(settings.listeners, "execution_ended", info)


_ENDS = {"completed": "completed", "denied": "denied", "interrupted": "paused", "cancelled": "cancelled"}


def begin_call(settings: Settings, name: str, config: RunnableConfig | None, run: Run) -> ExecutionInfo:
    """The execution of a governed function that no governed node calls: the call itself."""
    conf: Mapping[str, Any] = {} if config is None else config.get("configurable", {})
    info = _made(settings, name, conf)
    info.run_id = run.uuid
    tell(settings.listeners, "execution_began", info)
    return info


def end_call(settings: Settings, info: ExecutionInfo, record: Record) -> None:
    """Tell listeners that the call of a governed function has ended."""
    info.outcome = _ENDS.get(record.status, "failed")
    _end(settings, info)
