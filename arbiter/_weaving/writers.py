"""The writers of a governed node. Its update and its fact are written together, along its edges or to a
redirect's target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._constants import CONF, CONFIG_KEY_SEND, CONFIG_KEY_TASK_ID, TASKS
from langgraph.constants import END
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.pregel._write import PASSTHROUGH, ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry
from langgraph.types import Command

from arbiter._lifecycle.core import Core
from arbiter._lifecycle.runs import current_run
from arbiter._lifecycle.saving import Access, aaccess, access
from arbiter._weaving.asking import pause_edge, saver_in, saver_of
from arbiter._weaving.channel import FACTS, call_of, conf_of, fact_write, facts_channel_in, writes_in
from arbiter._weaving.runtimes import copy_once
from arbiter.errors import describe
from arbiter.history._facts import NESTED_RUN, RUN, RunFact

STASH = "__arbiter_fact"
"""The config key under which the wrapper passes three values to the first writer.

They are the fact to commit with the node's update, the record of the node run, and the channel that gets the
fact directly if it need not be saved.
"""
_NO_STASH: tuple[Any, Any, Any] = (None, None, None)
BRANCH_TO = "branch:to:{}"


@dataclass(slots=True, eq=False)
class Redirect:
    """Passes through a node's writers instead of its output if the run is redirected."""

    output: Any
    target: str


class _Write(ChannelWrite):
    """A channel write that does not hold itself.

    LangGraph's own keeps its two methods, bound, as attributes. Such a cycle would keep an `ArbiterOS` of one request,
    with its history, in memory until Python collects all garbage.
    """

    def __init__(self, write: ChannelWrite) -> None:
        super().__init__(write.writes, tags=write.tags)
        del self.func, self.afunc

    def func(self, input: Any, config: RunnableConfig) -> Any:
        return self._write(input, config)

    async def afunc(self, input: Any, config: RunnableConfig) -> Any:
        return self._write(input, config)


class GatedWrite(_Write):
    """A node's channel write. On a redirect the first one writes the state update and the new target, and
    later ones write nothing.
    """

    def __init__(self, write: ChannelWrite, core: Core, *, first: bool, last: bool) -> None:
        super().__init__(write)
        self.first = first
        self.last = last
        self.core = core
        self.parts = _parts_written(write.writes)

    def write(self, input: Any, config: RunnableConfig) -> Any:
        """Write the node's output and the values that its wrapper has stashed. Returns the input for the next
        writer.
        """
        conf = conf_of(config)
        fact, record, channel = conf.pop(STASH, _NO_STASH) if self.first else _NO_STASH
        written: list[Any] = [] if fact is None or channel is not None else [fact_write(fact)]
        passed_on = input
        try:
            if type(input) is Redirect:
                if self.last:
                    passed_on = input.output
                if not self.first:
                    if self.last and self.core.settings.listeners:
                        _tell_end(conf)
                    return passed_on
                _gather(_do_write, self._redirected(input), written)
            elif self.parts is None:
                _gather(super()._write, input, written)
            else:
                for mapper, pair in self.parts:
                    if mapper is None:
                        written.append(pair)
                    elif found := mapper(input):
                        written.extend(found)
            conf[CONFIG_KEY_SEND](written)
            if channel is not None:
                channel.done[record.id] = fact, record.path
        except Exception as exc:
            not_written(conf, exc)
            raise
        if self.last and self.core.settings.listeners:
            _tell_end(conf, chose=isinstance(input, Command | list | tuple))
        return passed_on

    _write = write

    def _redirected(self, redirect: Redirect) -> list[Any]:
        """The state update, which is the first entry of a node's first writer, and the new target."""
        update = cast(ChannelWriteTupleEntry, self.writes[0])
        writes: list[Any] = [ChannelWriteTupleEntry(update.mapper, _for_this_graph(redirect.output))]
        if redirect.target != END:
            writes.append(ChannelWriteEntry(BRANCH_TO.format(redirect.target), None))
        return writes


def not_written(conf: dict[str, Any], error: BaseException) -> None:
    """Record a failure or cancellation: the node has run, but its output or the choice of its edges cannot be
    written.
    """
    channel, task = facts_channel_in(conf), conf[CONFIG_KEY_TASK_ID]
    writes = writes_in(conf)
    if all(name == FACTS for name, _ in writes):  # for LangGraph such a node has an update
        writes.clear()
        channel.done.pop(task, None)
    if isinstance(error, ParentCommand):  # the node is done, and its command is for a graph around this one
        _tell_end(conf, chose=True)
        return
    execution = channel.execution
    if execution is None or execution.run is None:
        return
    if (record := execution.run.log.by_id.get(task)) is not None:
        if isinstance(error, GraphBubbleUp):
            record.status = "interrupted"
        else:
            record.status = "failed" if isinstance(error, Exception) else "cancelled"
            record.error = describe(error)
    _tell_end(conf)


def _tell_end(conf: dict[str, Any], *, chose: bool = False) -> None:
    """Tell listeners that the task has ended: its writers are done. `chose` is True if they chose the next nodes."""
    record, told = facts_channel_in(conf).ending.pop(conf[CONFIG_KEY_TASK_ID], _NOT_ENDING)
    if chose and record is not None:
        record.kept_account.sent = _targets(writes_in(conf))
    if told is not None:
        told()


_NOT_ENDING = (None, None)
_BRANCH = BRANCH_TO.format("")


def _targets(writes: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """The nodes to which these writes lead, each once."""
    found = (
        value.node if name == TASKS else name.removeprefix(_BRANCH)
        for name, value in writes
        if name == TASKS or name.startswith(_BRANCH)
    )
    return tuple(dict.fromkeys(found))


# A fact is written together with the node's writes, all or none, and before them. All or none, because a fact
# alone would make LangGraph take a failed task for done. Before them, because savers identify a task's writes
# by position and keep the old ones when the task runs again (a replay from an addressed checkpoint): a fact
# after them could occupy the place of a write that only the new attempt has.


def _gather(write: Callable[[Any, Any], Any], input: Any, written: list[Any]) -> None:
    """Add to `written` what `write` writes of `input`."""
    # The only part of a config that a channel write reads.
    write(input, {CONF: {CONFIG_KEY_SEND: written.extend}})


def _do_write(writes: Any, config: Any) -> None:
    ChannelWrite.do_write(config, writes)


def _parts_written(entries: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """The entries of a plain channel write, as (mapper of the node's output, None) or (None, written value).

    Returns None if the write does more than that of a usual node with edges.
    """
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
    """A command's update without its goto. Applies also to a command for the parent graph, which a redirect
    replaces.
    """
    parts: Any = output
    if isinstance(output, Command):
        return replace(parts, graph=None, goto=())
    if isinstance(output, list | tuple):
        return [_for_this_graph(part) for part in parts]
    return parts


class GatedBranch(Runnable[Any, Any]):
    """A conditional edge that is not evaluated on a redirect."""

    def __init__(self, branch: Runnable[Any, Any], core: Core, *, last: bool) -> None:
        self.branch = branch
        self.last = last
        self.core = core

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            if type(input) is Redirect:
                passed_on = self._skipped(input)
            else:
                passed_on = self.branch.invoke(input, config, **kwargs)
        except BaseException as exc:
            access(_not_chosen(conf_of(config), exc), saver_of(config))
            raise
        return self._chosen(passed_on, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            if type(input) is Redirect:
                passed_on = self._skipped(input)
            else:
                passed_on = await self.branch.ainvoke(input, config, **kwargs)
        except BaseException as exc:
            await aaccess(_not_chosen(conf_of(config), exc), saver_of(config))
            raise
        return self._chosen(passed_on, config)

    def _chosen(self, passed_on: Any, config: RunnableConfig | None) -> Any:
        if self.last and self.core.settings.listeners:
            _tell_end(conf_of(config), chose=True)
        return passed_on

    def _skipped(self, redirect: Redirect) -> Any:
        return redirect.output if self.last else redirect


def _not_chosen(conf: dict[str, Any], error: BaseException) -> Access[None]:
    """Record that a conditional edge has failed or paused."""
    not_written(conf, error)
    if isinstance(error, GraphInterrupt) and saver_in(conf) is not None:
        yield from pause_edge(conf)


class StartWrite(_Write):
    """The write of a graph's input. It also reports to the facts channel that a run begins, and lets the loop copy
    its runtime quickly from the first superstep on.
    """

    def __init__(self, write: ChannelWrite, core: Core) -> None:
        super().__init__(write)
        self.core = core

    def _write(self, input: Any, config: RunnableConfig) -> Any:
        copy_once(conf_of(config))
        if not self.core.keeps_facts:
            return super()._write(input, config)
        parent = current_run.get()
        nested = parent is not None and parent.settings is self.core.settings
        run: RunFact = RUN
        if nested:
            run = {**NESTED_RUN, "call": call_of(conf_of(config), cast(Any, parent).config)}
        elif self.core.settings.listeners:
            run = {**RUN, "id": str(uuid4())}
        written: list[Any] = [fact_write(run)]
        _gather(super()._write, input, written)
        conf_of(config)[CONFIG_KEY_SEND](written)
        return input
