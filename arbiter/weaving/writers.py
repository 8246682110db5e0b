"""The writers of a governed node: its update and its fact go together, along its edges or where a redirect leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    TASKS,
)
from langgraph.constants import END
from langgraph.errors import GraphBubbleUp
from langgraph.graph.state import _control_branch  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel._write import PASSTHROUGH, ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry
from langgraph.types import Command

from arbiter.core import Core
from arbiter.facts import NESTED_RUN, RUN
from arbiter.lifecycle import opened
from arbiter.weaving.channel import LEDGER, conf_of, ledger_in

STASH = "__arbiter_fact"
"""Where the wrapper puts what the first writer takes: a fact, to be committed with the node's update, the record of the
node run, and the channel to which the fact is handed if it need not be saved."""
_NO_STASH: tuple[Any, Any, Any] = (None, None, None)
BRANCH_TO = "branch:to:{}"
_DICT: Any = dict


class Redirect:
    """Passes through a node's writers in place of its output when the run goes elsewhere."""

    __slots__ = ("output", "target")

    def __init__(self, output: Any, target: str) -> None:
        self.output = output
        self.target = target


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
        conf = conf_of(config)
        fact, record, ledger = conf.pop(STASH, _NO_STASH) if self.first else _NO_STASH
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
            writes.append(ChannelWriteEntry(BRANCH_TO.format(redirect.target), None))
        return writes


def _not_written(conf: dict[str, Any], error: Exception) -> None:
    """A node has run, and what it returned, or the way that its edges lead, cannot be written."""
    loop = ledger_in(conf).loop
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
            _not_written(conf_of(config), exc)
            raise

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if type(input) is Redirect:
            return input.output if self.last else input
        try:
            return await self.branch.ainvoke(input, config, **kwargs)
        except Exception as exc:
            _not_written(conf_of(config), exc)
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
        conf_of(config)[CONFIG_KEY_SEND](written)
        return input

    async def _awrite(self, input: Any, config: RunnableConfig) -> Any:
        return self._write(input, config)
