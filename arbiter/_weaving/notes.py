"""Notes about questions, answers and begun bodies: pending writes next to the checkpoint.

They stand under task ids made here. Resume values, interrupts of a body, state updates and node outputs
cannot be written under these ids, so a note is recognised by its place. See "Approval" in
docs/design/lifecycle.md.

A checkpointer can only read all pending writes at once. So the tasks of one execution share their reads: a
task reads again only after it has a note of its own to see.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.runnables import RunnableConfig

from arbiter._lifecycle.saving import Access, Put, Read
from arbiter._threads.deadlines import running_loop
from arbiter._threads.forks import new_lock
from arbiter._weaving.channel import FACTS, facts_in, reads_in
from arbiter.history._facts import RunFact

_NOTE = "__arbiter_note"
_INTERRUPT = "__interrupt__"
Note = Mapping[str, Any]


def _id(task: str, name: object) -> str:
    """The task id under which a note is kept. With the task's own id, LangGraph would take the task for done."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{task} {name}"))


class Writes:
    """The pending writes next to a checkpoint, found by their task."""

    def __init__(self, writes: Sequence[Any]) -> None:
        self.of: dict[str, list[tuple[str, Any]]] = {}
        """Channel and value of each write, by task."""
        self._noted: dict[str, list[tuple[str, str, Note]]] = {}
        for where, channel, value in writes:
            if channel != _NOTE:
                self.of.setdefault(where, []).append((channel, value))
                continue
            match value:
                case {"name": str(name), "about": {"task": str(task)} as about}:
                    self._noted.setdefault(task, []).append((where, name, about))
                case _:
                    pass  # a command's update may have any value under this name

    def notes(self, task: str, kind: str = "") -> dict[str, Note]:
        """The notes about a task whose name begins with `kind`, by name. A write in another place is not a note."""
        return {
            name: about
            for where, name, about in self._noted.get(task, ())
            if name.startswith(kind) and where == _id(task, name)
        }

    @cached_property
    def spent(self) -> dict[str, dict[str, Any]]:
        """The amounts that tasks without a fact have used up, by task and note. A fact has those of its task."""
        spent: dict[str, dict[str, Any]] = {}
        for task in self._noted.keys() - self.done.keys():
            for name, about in self.notes(task, "spent ").items():
                spent.setdefault(task, {})[name.removeprefix("spent ")] = about["spent"]
        return spent

    @cached_property
    def facts(self) -> list[RunFact]:
        """The facts of finished tasks."""
        return facts_in(value for task in self.done for channel, value in self.of[task] if channel == FACTS)

    @cached_property
    def done(self) -> dict[str, None]:
        """The finished tasks, which have written a fact."""
        return {task: None for task, writes in self.of.items() if any(c == FACTS for c, _ in writes)}

    def interrupts(self, task: str | None = None) -> list[Any]:
        """The questions of a task, by default those of all tasks."""
        writes = chain.from_iterable(self.of.values()) if task is None else self.of.get(task, ())
        return [each for channel, found in writes if channel == _INTERRUPT for each in found]


# Reads --------------------------------------------------------------------------------------------


class _Noted:
    """Which tasks this process has written notes about, next to one checkpoint, while executions continue it.

    Reads of that checkpoint are numbered, so that a read which began after a note is known to show it.
    """

    __slots__ = ("__weakref__", "_after", "_lock", "begun")

    def __init__(self) -> None:
        self._lock = new_lock()
        self.begun = 0
        """The number of the latest read."""
        self._after: dict[str, int] = {}

    def begin(self) -> int:
        """The number of a read that begins now."""
        with self._lock:
            self.begun += 1
            return self.begun

    def add(self, task: str) -> None:
        with self._lock:
            self._after[task] = self.begun

    def after(self, task: str) -> int:
        """A read with a higher number shows all these notes about a task."""
        return self._after.get(task, 0)


class Reads:
    """The reads of one checkpoint by the tasks of one execution that run in one event loop, or in none."""

    def __init__(self, place: RunnableConfig, noted: _Noted) -> None:
        self._place = place
        self.noted = noted
        self._lock = new_lock()
        self._turn = asyncio.Lock()
        self._latest: tuple[int, Writes | None] = (0, None)

    def now(self, saver: Any, after: int) -> Writes | None:
        """The pending writes, as of a read with a number above `after`; None without a checkpoint."""
        if self._latest[0] <= after:
            with self._lock:
                if self._latest[0] <= after:
                    return self._keep(self.noted.begin(), saver.get_tuple(self._place))
        return self._latest[1]

    async def later(self, saver: Any, after: int) -> Writes | None:
        """As `now`, in an event loop."""
        if self._latest[0] <= after:
            async with self._turn:
                if self._latest[0] <= after:
                    await asyncio.sleep(0)  # siblings that are as far now need no read of their own
                    return self._keep(self.noted.begin(), await saver.aget_tuple(self._place))
        return self._latest[1]

    def _keep(self, number: int, saved: Any) -> Writes | None:
        if saved is None:
            return None  # it may be saved in the background
        self._latest = number, (found := Writes(saved.pending_writes or ()))
        return found


_lock = new_lock()
_noted: WeakValueDictionary[tuple[Any, ...], _Noted] = WeakValueDictionary()
"""By checkpoint: thread, namespace and id."""


def _reads_at(conf: Mapping[str, Any], place: RunnableConfig) -> Reads:
    known, key = reads_in(conf), _key(place)
    # A body may run a subgraph in a loop of its own, whose nodes read this checkpoint too.
    own = key, running_loop()
    with _lock:
        if (found := known.get(own)) is None:
            noted = _noted.get(key) or _noted.setdefault(key, _Noted())
            found = known[own] = Reads(place, noted)
        return found


def _key(place: RunnableConfig) -> tuple[Any, ...]:
    return tuple(place.get("configurable", {}).values())


def read(conf: Mapping[str, Any], place: RunnableConfig, task: str) -> Access[Writes | None]:
    """The pending writes at a place: with all notes about `task` that this process has written, and else as of
    some time in this execution.
    """
    reads = _reads_at(conf, place)
    found: Writes | None = yield Read(reads, reads.noted.after(task))
    return found


def read_again(conf: Mapping[str, Any], place: RunnableConfig) -> Access[Writes | None]:
    """The pending writes at a place, as they are now."""
    reads = _reads_at(conf, place)
    found: Writes | None = yield Read(reads, reads.noted.begun)
    return found


def read_first(
    conf: Mapping[str, Any], places: Sequence[RunnableConfig], task: str
) -> Access[tuple[RunnableConfig, Writes] | None]:
    """The place of the checkpoint and its pending writes, as `read` finds them."""
    for place in places:
        if (found := (yield from read(conf, place, task))) is not None:
            return place, found
    return None


# Notes --------------------------------------------------------------------------------------------


def note(place: RunnableConfig, task: str, name: str, about: Note) -> Access[None]:
    try:
        yield Put(place, [(_NOTE, {"name": name, "about": {**about, "task": task}})], _id(task, name))
    finally:
        if (noted := _noted.get(_key(place))) is not None:
            noted.add(task)


being_noted: dict[str, str] = {}
"""The writer, in this process, of each note that only one execution may write."""


def note_first(
    conf: Mapping[str, Any], place: RunnableConfig, task: str, name: str, about: Note
) -> Access[Note | None]:
    """Write a note unless there is one. Returns None if this execution wrote it, else the existing note.

    Most savers keep the first of two writes to one place. So two processes that both find none read once more
    to see whose note was kept. A saver that keeps the last write is safe only within one process, where
    writers wait for one another.
    """
    by = uuid.uuid4().hex
    where = _id(task, name)
    if being_noted.setdefault(where, by) != by:
        return {"by": "another execution"}
    try:
        stands = (yield from _noted_about(conf, place, task)).get(name)
        if stands is None:
            yield from note(place, task, name, {**about, "by": by})
            stands = (yield from _noted_about(conf, place, task)).get(name)
        if stands is None:
            raise RuntimeError("the checkpointer of this graph did not keep the note next to its checkpoint")
        return None if stands["by"] == by else stands
    finally:
        being_noted.pop(where, None)  # forked here, the child has dropped it


def _noted_about(conf: Mapping[str, Any], place: RunnableConfig, task: str) -> Access[dict[str, Note]]:
    found = yield from read(conf, place, task)
    return {} if found is None else found.notes(task)
