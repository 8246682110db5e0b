"""Executions as listeners see them: each call of a governed graph, from its begin to its end.

All the ways to run a graph go through its `stream` or `astream`, so a governed graph with listeners is of a
subclass of its own class that has these two. Without listeners it is of that class itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel

from arbiter._lifecycle.runs import NodeRun, Settings, current_run
from arbiter._values.contexts import during
from arbiter._weaving.channel import FACTS, FactsChannel, runs_in
from arbiter.errors import PolicyViolationError
from arbiter.history._items import HistoryItem
from arbiter.history._past import Past
from arbiter.history._record import ExecutionInfo, Position, Record
from arbiter.history._recorder import Execution, Run, starting
from arbiter.listening import RestoredItems, tell

T = TypeVar("T")
_PLAIN = (str, int, float, bool)


def report_executions(graph: Pregel[Any, Any, Any, Any]) -> None:
    """From now on report the executions of a governed graph, and of its later copies, to listeners."""
    graph.__class__ = listened_to(type(graph))


@cache
def listened_to(cls: type[Any]) -> type[Any]:
    """A subclass of a graph's class that reports its executions to listeners. It has the name of its base."""
    if hasattr(cls, "_arbiter_listens"):
        return cls

    base: Any = cls

    class Listened(cls):  # type: ignore[misc]
        _arbiter_listens = True

        def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
            return _reported(self, config, base.stream(self, input, config, **kwargs), _stream)

        def astream(
            self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
        ) -> AsyncIterator[Any]:
            return _reported(self, config, base.astream(self, input, config, **kwargs), _astream)

        def _arbiter_checkpointed(self, thread_id: str | None) -> Iterator[Sequence[HistoryItem]]:
            return checkpointed(self, thread_id)

    for name in ("__module__", "__qualname__", "__name__", "__doc__"):
        setattr(Listened, name, getattr(cls, name))
    return Listened


def _heard(graph: Pregel[Any, Any, Any, Any]) -> Settings | None:
    """The settings of the graph's `ArbiterOS`, if it has listeners and this is not the graph of a governed
    node."""
    channel: Any = cast("Mapping[str, Any]", graph.channels).get(FACTS)
    if not isinstance(channel, FactsChannel) or not channel.core.settings.listeners:
        return None
    outer = current_run.get()
    return None if outer is not None and outer.settings is channel.core.settings else channel.core.settings


def _info(graph: Any, settings: Settings, config: RunnableConfig | None) -> ExecutionInfo:
    merged: Any = merge_configs(graph.config, config)
    conf: Mapping[str, Any] = merged.get("configurable") or {}
    info = _made(settings, graph.get_name(), conf)
    rules = graph.channels[FACTS].core.registry.rules
    info.rules = None if rules is None else rules.digest
    return info


def _made(settings: Settings, name: str, conf: Mapping[str, Any]) -> ExecutionInfo:
    thread_id = conf.get("thread_id")
    return ExecutionInfo(
        id=_uuid_of_now(),
        run_id="",
        thread_id=None if thread_id is None else str(thread_id),
        graph=name,
        began=settings.clock(),
        config={
            key: value
            for key, value in conf.items()
            if not key.startswith("__") and (value is None or isinstance(value, _PLAIN))
        },
    )


def _uuid_of_now() -> str:
    """A uuid of version 7: it begins with the time, so that listeners can keep executions in their order."""
    drawn = int.from_bytes(os.urandom(10)) & ~(0xF << 76 | 0x3 << 62)
    return str(UUID(int=(time.time_ns() // 1_000_000) << 80 | 0x7 << 76 | drawn | 0x2 << 62))


def info_of(
    channel: FactsChannel, execution: Execution, conf: Mapping[str, Any], run: Run, parent: NodeRun | None
) -> ExecutionInfo:
    """The execution that a node run belongs to: the outermost one."""
    info = parent.record.execution if parent is not None else None
    if info is None:
        info = execution.info
    if info is None:  # it began before anybody listened
        name = channel.origin.graph.get_name() if parent is None else ""
        info = execution.info = _made(channel.core.settings, name, conf)
    if not info.run_id:
        info.run_id = run.uuid
    return info


def checkpointed(graph: Pregel[Any, Any, Any, Any], thread_id: str | None) -> Iterator[Sequence[HistoryItem]]:
    """The node runs in the newest checkpoint of each thread and namespace of a governed graph's checkpointer."""
    saver = cast("Any", graph.checkpointer)
    channel: Any = cast("Mapping[str, Any]", graph.channels)[FACTS]
    seen: set[tuple[str, str]] = set()
    graph_name = graph.get_name()
    now = channel.core.settings.clock()
    for saved in saver.list(None if thread_id is None else {"configurable": {"thread_id": thread_id}}):
        conf = saved.config["configurable"]
        place = str(conf["thread_id"]), str(conf.get("checkpoint_ns", ""))
        if place in seen:
            continue  # an older checkpoint
        seen.add(place)
        past = Past.restored(saved.checkpoint["channel_values"].get(FACTS) or {}, channel.core.settings.facts)
        written = runs_in(saved.pending_writes or ())
        run = str(past.value.get("run_id") or "")
        info = ExecutionInfo(id="", run_id=run, thread_id=place[0], graph=graph_name, began=now, config={})
        facts = [*past.value.get("facts", ()), *written]
        yield RestoredItems(
            info, facts, [*past.this_run(), *written], partial(_positions, channel, past, written)
        )


def tell_unknown(channel: FactsChannel, past: Past, info: ExecutionInfo) -> None:
    """Report to listeners the node runs of another process that were done before this execution began."""
    execution: Any = channel.execution
    (unknown, pending), execution.unknown, execution.pending = (execution.unknown, execution.pending), (), ()
    places = partial(_positions, channel, past, pending)
    items = RestoredItems(info, [*unknown, *pending], [*past.this_run(), *pending], places)
    tell(channel.core.settings.listeners, "restored", items)


def _positions(channel: FactsChannel, past: Past, written: Sequence[Any]) -> Mapping[str, Position]:
    """The places of the facts of a checkpoint, and of those that were written after it."""
    graph, (after, number) = channel.origin.described(), past.end
    next = Position(after=after, past=number, graph=graph)
    return {**past.positions(graph), **{fact["id"]: next for fact in written if not fact.get("ns")}}


@dataclass(frozen=True, slots=True)
class _Reporting:
    """Reports the begin and the end of an execution around the iteration of its chunks."""

    settings: Settings
    info: ExecutionInfo

    def __enter__(self) -> _Reporting:
        tell(self.settings.listeners, "execution_began", self.info)
        return self

    def first_chunk(self) -> AbstractContextManager[None]:
        """LangGraph makes the execution before its first chunk, in this context."""
        return during(starting, [self.info])

    def look(self, chunk: Any) -> None:
        """Note that the graph pauses, as LangGraph reports it in its stream."""
        parts: Any = chunk
        payload = parts[-1] if isinstance(chunk, tuple) and parts else parts
        if isinstance(payload, dict) and "__interrupt__" in payload:
            self.info.outcome = "paused"

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.info.outcome = _outcome(error)
        _end(self.settings, self.info)


def _reported(
    graph: Any, config: RunnableConfig | None, chunks: Any, iterate: Callable[[_Reporting, Any], T]
) -> T:
    settings = _heard(graph)
    return (
        chunks if settings is None else iterate(_Reporting(settings, _info(graph, settings, config)), chunks)
    )


def _stream(reporting: _Reporting, chunks: Any) -> Iterator[Any]:
    # A class of the user's may return an iterator that cannot be closed.
    with reporting, closing(chunks) if hasattr(chunks, "close") else nullcontext():
        with reporting.first_chunk():
            chunk = next(chunks, _END)
        if chunk is not _END:
            reporting.look(chunk)
            yield chunk
            for chunk in chunks:
                reporting.look(chunk)
                yield chunk


async def _astream(reporting: _Reporting, chunks: Any) -> AsyncIterator[Any]:
    with reporting:
        async with aclosing(chunks) if hasattr(chunks, "aclose") else nullcontext():
            with reporting.first_chunk():
                chunk = await _first(chunks)
            while chunk is not _END:
                reporting.look(chunk)
                yield chunk
                chunk = await anext(chunks, _END)


def _first(chunks: Any) -> Any:
    """The first step of the stream. An event loop that ends does not close it beside the stream around it."""
    noted = sys.get_asyncgen_hooks().firstiter
    sys.set_asyncgen_hooks(firstiter=None)
    try:
        return anext(chunks, _END)
    finally:
        sys.set_asyncgen_hooks(firstiter=noted)


_END: Any = object()


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
    """Report to listeners that the call of a governed function has ended."""
    info.outcome = _ENDS.get(record.status, "failed")
    _end(settings, info)
