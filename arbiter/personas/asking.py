"""Two drivers for one set of decisions: what is to be asked is yielded, several questions at a time, and what
the judge answered, or raised, is sent back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from arbiter.calls import start, within
from arbiter.errors import ConfigurationError
from arbiter.personas.judges import Judge, JudgeReply, JudgeRequest

T = TypeVar("T")
Outcome = JudgeReply | Exception
Steps = Generator[Sequence[JudgeRequest], Sequence[Outcome], T]


def drive(steps: Steps[T], judge: Judge, timeout: float | None, concurrency: int) -> T:
    """Run the decisions, asking with `judge`; several questions at once on threads."""
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
                return _checked(await asyncio.wait_for(judge.ajudge(request), timeout))
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
    outcomes: list[Outcome] = []
    for at in range(0, len(asked), concurrency):
        futures = [start(call, name="arbiter-judge") for call in calls[at : at + concurrency]]
        end = None if timeout is None else time.monotonic() + timeout
        outcomes += [_outcome(partial(_wait, end, future)) for future in futures]
    return outcomes


def _wait(end: float | None, future: Future[Any]) -> Any:
    return within(None if end is None else max(0.0, end - time.monotonic()), future)


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
