"""Two drivers, sync and async, for all decisions about personas, which are generators that yield
operations."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from arbiter._threads.deadlines import LOOK, Turns, awaited_in_turn, in_turn, is_from_outside, start
from arbiter.errors import ConfigurationError
from arbiter.models import Judge, JudgeReply, JudgeRequest, usage_meter

T = TypeVar("T")
Op = TypeVar("Op")
Outcome = JudgeReply | Exception
Steps = Generator[Sequence[JudgeRequest], Sequence[Outcome], T]
"""Decisions that ask a judge, several questions at a time."""


def drive(steps: Generator[Op, Any, T], answer: Callable[[Op], Any]) -> T:
    """Run the decisions. `answer` performs each operation that they yield and returns its result."""
    try:
        asked = next(steps)
        while True:
            asked = steps.send(answer(asked))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # of `steps`


async def adrive(steps: Generator[Op, Any, T], answer: Callable[[Op], Awaitable[Any]]) -> T:
    """Async version of `drive`; the decisions run on threads."""
    asked: Any = await _advanced(steps)
    while type(asked) is not _Ended:
        asked = await _advanced(steps, await answer(asked))
    return asked.value  # type: ignore[no-any-return]  # of `steps`


def outcome(call: Callable[[], T]) -> T | Exception:
    """The result of `call`, or the error that it raised. A mistake in the set-up (`ConfigurationError`),
    such as a stale recording, is raised."""
    try:
        return call()
    except ConfigurationError:
        raise
    except Exception as error:
        return error


async def aoutcome(awaitable: Awaitable[T]) -> T | Exception:
    """Async version of `outcome`. An awaitable that cancels itself counts as a timeout."""
    try:
        return await awaitable
    except ConfigurationError:
        raise
    except asyncio.CancelledError as error:
        if is_from_outside(error):
            raise
        return TimeoutError("it cancelled itself")
    except Exception as error:
        return error


class _Ended(NamedTuple):
    """The return value of a generator."""

    value: Any


async def _advanced(steps: Generator[Any, Any, Any], answer: Any = None) -> Any:
    """Send `answer` to `steps`. Returns the next operation, or `_Ended`.

    The generator runs on a thread, because it counts and quotes texts of any length and must not block the
    event loop. One such thread begins at a time, so that the loop, which shares the interpreter with them,
    gets its turn after each.
    """
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        future = asyncio.wrap_future(start(partial(_sent, steps, answer), name="arbiter-decisions"))
        try:
            await asyncio.wait({future}, timeout=_TURN)
        except BaseException:
            future.cancel()
            raise
    return await future


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_TURN = 0.1
"""Seconds after which the next thread may begin, because a user's function may block for long."""


def _sent(steps: Generator[Any, Any, Any], answer: Any) -> Any:
    try:
        return steps.send(answer)
    except StopIteration as done:
        return _Ended(done.value)


def ask_all(
    judge: Judge, asked: Sequence[JudgeRequest], timeout: float | None, concurrency: int
) -> list[Outcome]:
    """The judge's answers or errors, in order; several questions at once, on threads.

    A question that times out is an error, and its thread goes on unattended. The time in which it waits for its turn
    among other calls of the model does not count.
    """
    calls = [partial(judge.judge, request) for request in asked]
    if timeout is None and (concurrency == 1 or len(asked) == 1):
        return [_metered(*each) for each in zip(asked, map(_outcome, calls), strict=True)]
    outcomes: dict[int, Outcome] = {}
    waiting = deque(enumerate(calls))
    running: dict[Future[Any], tuple[int, Turns]] = {}
    seconds = math.inf if timeout is None else timeout
    while waiting or running:
        while waiting and len(running) < concurrency:
            at, call = waiting.popleft()
            with in_turn() as turns:
                running[start(call, name="arbiter-judge")] = at, turns
        first = min(turns.left(seconds) for _, turns in running.values())
        wait(running, None if timeout is None else max(first, LOOK), FIRST_COMPLETED)
        for future, (at, turns) in [*running.items()]:
            if future.done() or turns.left(seconds) <= 0:
                del running[future]
                outcomes[at] = _metered(asked[at], _outcome(partial(future.result, 0)))
    return [outcomes[at] for at in range(len(asked))]


def _metered(request: JudgeRequest, found: Outcome) -> Outcome:
    """The outcome, reported to the meter of the caller if there is one."""
    if (meter := usage_meter.get()) is not None:
        meter(request.purse, found if isinstance(found, JudgeReply) else None)
    return found


async def aask_all(
    judge: Judge, asked: Sequence[JudgeRequest], timeout: float | None, concurrency: int
) -> list[Outcome]:
    """Async version of `ask_all`, on this event loop."""
    free = asyncio.Semaphore(concurrency)

    async def answer(request: JudgeRequest) -> JudgeReply:
        async with free:
            return _checked(await awaited_in_turn(timeout, judge.ajudge(request)))

    async def metered(request: JudgeRequest) -> Outcome:
        return _metered(request, await aoutcome(answer(request)))

    return list(await asyncio.gather(*map(metered, asked)))


def _outcome(call: Callable[[], Any]) -> Outcome:
    return outcome(lambda: _checked(call()))


def _checked(reply: Any) -> JudgeReply:
    if not isinstance(reply, JudgeReply):
        raise TypeError(f"the judge returned a {type(reply).__name__}; expected a JudgeReply")
    return reply


def together(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Several sets of decisions as one: their next questions are asked at once."""
    results: dict[int, T] = {}
    waiting: dict[int, Sequence[JudgeRequest]] = {}

    def go_on(at: int, outcomes: Sequence[Outcome] | None) -> None:
        try:
            waiting[at] = next(many[at]) if outcomes is None else many[at].send(outcomes)
        except StopIteration as done:
            results[at] = done.value

    for at in range(len(many)):
        go_on(at, None)
    while waiting:
        before, waiting = waiting, {}
        outcomes = yield [request for asked in before.values() for request in asked]
        used = 0
        for at, asked in before.items():
            go_on(at, outcomes[used : used + len(asked)])
            used += len(asked)
    return [results[at] for at in range(len(many))]
