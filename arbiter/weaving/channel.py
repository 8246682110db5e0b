"""The hidden channel, which carries the facts through supersteps and checkpoints."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_READ,
)
from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError
from langgraph.pregel import Pregel

from arbiter.core import Core
from arbiter.facts import Fact, Past, Value
from arbiter.history import task_order
from arbiter.recorder import Loop

LEDGER = "__arbiter_ledger"


class Origin:
    """The graph that a governed one was made from, and the rules by which its nodes are governed."""

    __slots__ = ("__weakref__", "core", "graph", "rules", "source")

    def __init__(
        self, core: Core, graph: Pregel[Any, Any, Any, Any], rules: Any, source: Origin | None = None
    ) -> None:
        self.core = core
        self.graph = graph
        self.rules = rules
        self.source = source
        """Of a copy, that of the governed graph that was copied. Contracts are checked against it, so it stays."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return Origin(self.core, copy.deepcopy(self.graph, memo), self.rules, self)


class LedgerChannel(BaseChannel[Any, Fact, Value]):
    """Holds the ledger value of a graph. Saved with every checkpoint, and empty to everyone who reads channels: the
    state that tools, middleware and edges get is read channel by channel. See `ledger_in`.

    LangGraph makes one instance for each execution of the graph, so the instance also stands for that
    execution (`loop`).
    """

    __slots__ = ("core", "done", "loop", "origin", "past")

    def __init__(self, origin: Origin, key: str = LEDGER) -> None:
        super().__init__(dict, key)
        self.core = core = origin.core
        self.origin = origin
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
        new = LedgerChannel(self.origin, self.key)
        new.past, new.loop = past, loop
        return new

    def copy(self) -> LedgerChannel:
        return self._with(self.past, self.loop)

    def __deepcopy__(self, memo: dict[int, Any]) -> LedgerChannel:
        if self.loop is None:  # that of a graph, which is copied
            return LedgerChannel(copy.deepcopy(self.origin, memo), self.key)
        new = self.copy()
        new.done = dict(self.done)
        return new

    def from_checkpoint(self, checkpoint: Value | Any) -> LedgerChannel:
        value: Value = {} if checkpoint is MISSING else checkpoint
        return self._with(Past.restored(value, self.core.settings.facts), Loop(self.core.recorder))

    def checkpoint(self) -> Value | Any:
        return self.past.stored() or MISSING

    def get(self) -> Any:
        raise EmptyChannelError

    def is_available(self) -> bool:
        # At the end of a superstep LangGraph calls `update`, where nobody has written, on available channels only.
        return bool(self.done)

    def update(self, values: Sequence[Fact]) -> bool:
        # Also called, with nothing, at the end of a superstep whose facts were not written.
        if done := self.done:
            self.done = {}
            values = [*values, *_in_order(done)]
        elif not values:
            return False
        self.past = self.past.after(values)
        return True


def _in_order(done: Mapping[str, tuple[Fact, Any]]) -> list[Fact]:
    """The facts as LangGraph would apply them, were they written."""
    if len(done) == 1:
        return [next(iter(done.values()))[0]]
    return [fact for fact, _ in sorted(done.values(), key=lambda each: task_order(each[1]))]


def ledger_in(conf: dict[str, Any]) -> LedgerChannel:
    """The hidden channel of the execution that a task belongs to: LangGraph's reader is a partial that holds the
    channels, and `ToolNode` takes them from there as well."""
    found: LedgerChannel = conf[CONFIG_KEY_READ].args[1][LEDGER]
    return found


def writes_in(conf: dict[str, Any]) -> deque[tuple[str, Any]]:
    """What a task has written so far. The reader holds that, too, so that a task reads its own writes."""
    found: deque[tuple[str, Any]] = conf[CONFIG_KEY_READ].args[3].writes
    return found


def conf_of(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = config[CONF]
    return found
