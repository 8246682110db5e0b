"""Two drivers for one set of decisions: what is to be asked is yielded, several questions at a time, and what
the judge answered, or raised, is sent back."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, TypeVar

from arbiter.calls import awaited, start
from arbiter.errors import ConfigurationError
from arbiter.personas.judges import Judge, JudgeReply, JudgeRequest

T = TypeVar("T")
Outcome = JudgeReply | Exception
Steps = Generator[Sequence[JudgeRequest], Sequence[Outcome], T]


def drive(steps: Steps[T], judge: Judge, timeout: float | None, concurrency: int) -> T:
    """Run the decisions, asking with `judge`; several questions at once on threads.

    A judge that does not answer in time costs its timeout: its thread is left to itself.
    """
    try:
        asked = next(steps)
        while True:
            asked = steps.send(_ask_all(judge, asked, timeout, concurrency))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # of `steps`


async def adrive(steps: Steps[T], judge: Judge, timeout: float | None, concurrency: int) -> T:
    """As `drive`, asking with `ajudge` on this event loop."""
    free = asyncio.Semaphore(concurrency)

    async def answer(request: JudgeRequest) -> Outcome:
        async with free:
            try:
                return _checked(await awaited(timeout, judge.ajudge(request)))
            except ConfigurationError:
                raise
            except Exception as error:
                return error

    try:
        asked = next(steps)
        while True:
            asked = steps.send(await asyncio.gather(*map(answer, asked)))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # of `steps`


def _ask_all(
    judge: Judge, asked: Sequence[JudgeRequest], timeout: float | None, concurrency: int
) -> list[Outcome]:
    calls = [partial(judge.judge, request) for request in asked]
    if timeout is None and (concurrency == 1 or len(asked) == 1):
        return [_outcome(call) for call in calls]
    outcomes: dict[int, Outcome] = {}
    waiting = deque(enumerate(calls))
    running: dict[Future[Any], tuple[int, float]] = {}
    while waiting or running:
        while waiting and len(running) < concurrency:
            at, call = waiting.popleft()
            end = math.inf if timeout is None else time.monotonic() + timeout
            running[start(call, name="arbiter-judge")] = at, end
        first = min(end for _, end in running.values())
        wait(running, None if first == math.inf else max(0.0, first - time.monotonic()), FIRST_COMPLETED)
        now = time.monotonic()
        for future, (at, end) in [*running.items()]:
            if future.done() or end <= now:
                del running[future]
                outcomes[at] = _outcome(partial(future.result, 0))
    return [outcomes[at] for at in range(len(asked))]


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return _checked(call())
    except ConfigurationError:
        raise  # a mistake of whoever set this up, such as a stale recording: no outcome of a judgement
    except Exception as error:
        return error


def _checked(reply: Any) -> JudgeReply:
    if not isinstance(reply, JudgeReply):
        raise TypeError(f"the judge returned a {type(reply).__name__}; expected a JudgeReply")
    return reply


def together(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Several sets of decisions as one: what all of them ask next is asked at once."""
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
