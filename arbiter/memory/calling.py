"""How a user's method is called on the event loop of a cycle: sync or async, within a time, never raising."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from arbiter.calls import awaited, start


@dataclass(frozen=True, slots=True)
class Called:
    """What a call came to: its value, or the error; `late` if it took longer than it may. `ms` is how long it took."""

    value: Any = None
    error: BaseException | None = None
    late: bool = False
    ms: float = 0.0


async def call(method: Callable[..., Any], *args: Any, timeout: float | None) -> Called:
    """Call `method`: one that is `def` on a thread of its own, because it may block; one that is `async def` here.

    What is late is cancelled, or left to itself where it is a thread or does not agree to be cancelled.
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
    except BaseException as exc:  # whatever it is, it is this method's own affair
        return None, exc
