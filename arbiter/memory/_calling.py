"""Calls of a user's method on the event loop of a cycle: sync or async, with a time limit, never raising."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from arbiter._threads.deadlines import awaited, start


@dataclass(frozen=True, slots=True)
class Called:
    """The outcome of a call: its value or its error. `late` is True if it timed out; `ms` is its duration."""

    value: Any = None
    error: BaseException | None = None
    late: bool = False
    ms: float = 0.0


async def call(method: Callable[..., Any], *args: Any, timeout: float | None) -> Called:
    """Call `method`: a `def` on a thread of its own, because it may block, an `async def` on this event loop.

    A call that times out is cancelled. A thread, and a coroutine that ignores its cancellation, go on
    unattended.
    """
    begun = time.perf_counter()
    # The task keeps what is raised as its value: a SystemExit that left it would end the event loop.
    done = asyncio.ensure_future(_outcome(method, args))
    try:
        value, error = await awaited(timeout, done)
        late = False
    except TimeoutError as exc:
        value, error, late = None, exc, True
    return Called(value, error, late, (time.perf_counter() - begun) * 1000)


async def _outcome(method: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    try:
        if inspect.iscoroutinefunction(method):
            return await method(*args), None
        value = await asyncio.wrap_future(start(partial(method, *args)))
        return (await value if inspect.isawaitable(value) else value), None
    except BaseException as exc:  # a SystemExit of this method must not end the other evaluators
        return None, exc
