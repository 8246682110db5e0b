"""Access to a checkpointer, as a generator that yields each call. A sync run makes the call, an async run
awaits it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from langchain_core.runnables import RunnableConfig

T = TypeVar("T")


class Reading(Protocol):
    """Reads of one checkpoint that several tasks share."""

    def now(self, saver: Any, after: int) -> Any: ...

    async def later(self, saver: Any, after: int) -> Any: ...


@dataclass(slots=True)
class Read:
    """Share a read whose number is above `after`."""

    reads: Reading
    after: int

    def now(self, saver: Any) -> Any:
        return self.reads.now(saver, self.after)

    async def later(self, saver: Any) -> Any:
        return await self.reads.later(saver, self.after)


@dataclass(slots=True)
class Find:
    """Read up to `limit` checkpoints of a thread, newest first, until `found` returns a result."""

    thread: RunnableConfig
    limit: int
    found: Callable[[Any], Any]

    def now(self, saver: Any) -> Any:
        for saved in saver.list(self.thread, limit=self.limit):
            if (found := self.found(saved)) is not None:
                return found
        return None

    async def later(self, saver: Any) -> Any:
        async for saved in saver.alist(self.thread, limit=self.limit):
            if (found := self.found(saved)) is not None:
                return found
        return None


@dataclass(slots=True)
class Put:
    """Save writes of a task next to the checkpoint at `place`."""

    place: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task: str

    def now(self, saver: Any) -> None:
        saver.put_writes(self.place, self.writes, self.task)

    async def later(self, saver: Any) -> None:
        await saver.aput_writes(self.place, self.writes, self.task)


@dataclass(slots=True)
class Wait:
    seconds: float

    def now(self, saver: Any) -> None:
        time.sleep(self.seconds)

    async def later(self, saver: Any) -> None:
        await asyncio.sleep(self.seconds)


Access = Generator[Read | Find | Put | Wait, Any, T]


def access(steps: Access[T], saver: Any) -> T:
    resume: Any = steps.send
    given: Any = None
    try:
        while True:
            op = resume(given)
            try:
                resume, given = steps.send, op.now(saver)
            except BaseException as exc:
                resume, given = steps.throw, exc
    except StopIteration as stop:
        return cast(T, stop.value)


async def aaccess(steps: Access[T], saver: Any) -> T:
    """As `access`, in an event loop."""
    resume: Any = steps.send
    given: Any = None
    try:
        while True:
            op = resume(given)
            try:
                resume, given = steps.send, await op.later(saver)
            except BaseException as exc:
                resume, given = steps.throw, exc
    except StopIteration as stop:
        return cast(T, stop.value)
