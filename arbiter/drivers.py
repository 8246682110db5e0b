"""The two drivers of the lifecycle: they do what the generator asks for, one with `await` and one without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from arbiter.calls import start, within
from arbiter.errors import SyncDriverError
from arbiter.lifecycle import Ask, Body, Call, NodeRun, Op, Raised, Resolve, lifecycle


class Host(Protocol):
    """What a node run needs from where it runs: LangGraph, or a plain function call."""

    config: RunnableConfig | None

    def body(self, input: Any, held: bool) -> Any: ...
    def abody(self, input: Any, held: bool) -> Awaitable[Any]: ...
    def astream_body(self, input: Any, held: bool) -> AsyncIterator[Any]: ...
    def ask(self, op: Ask) -> Any: ...
    def aask(self, op: Ask) -> Awaitable[Any]: ...


def drive(run: NodeRun, host: Host) -> Any:
    """Run a node to its end. Raises what the node raised, or what governs it."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                answer = host.body(op.input, op.held) if type(op) is Body else _perform(op, run, host)
            except BaseException as exc:
                answer = Raised(exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        raise answer.error
    return answer


async def adrive(run: NodeRun, host: Host) -> Any:
    """As `drive`, in an event loop."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                if type(op) is Body:
                    answer = await host.abody(op.input, op.held)
                else:
                    answer = await _aperform(op, host)
            except BaseException as exc:
                answer = Raised(exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        raise answer.error
    return answer


async def adrive_stream(run: NodeRun, host: Host) -> AsyncIterator[Any]:
    """As `adrive`, handing on what the body streams. The last thing yielded is `Final`."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                if type(op) is Body and not op.held:
                    total = Sum()
                    async for chunk in host.astream_body(op.input, op.held):
                        total.add(chunk)
                        yield chunk
                    answer = total.value
                elif type(op) is Body:
                    answer = await host.abody(op.input, op.held)
                else:
                    answer = await _aperform(op, host)
            except BaseException as exc:
                answer = Raised(exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        raise answer.error
    yield Final(answer)


class Final:
    """The end of a stream: the node's output."""

    __slots__ = ("output",)

    def __init__(self, output: Any) -> None:
        self.output = output


class Sum:
    """Chunks added up as `Runnable.transform` adds them up."""

    __slots__ = ("_empty", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self._empty = True

    def add(self, chunk: Any) -> None:
        if self._empty:
            self.value, self._empty = chunk, False
            return
        try:
            self.value = self.value + chunk
        except TypeError:
            self.value = chunk


# What is not the body -----------------------------------------------------------------------------


def _perform(op: Op, run: NodeRun, host: Host) -> Any:
    match op:
        case Call(seat, method, args):
            with _aside(host.config):
                deadline = seat.contract.deadline
                if deadline is None:
                    answer = method(*args)
                else:
                    answer = within(deadline, start(partial(method, *args)))
            if isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise SyncDriverError(node=run.record.node, source=f"{seat.contract.kind} {seat.name!r}")
            return answer
        case Resolve(evaluations, lane):
            return evaluations.resolve(lane)
        case Ask():
            return host.ask(op)
        case _:
            raise AssertionError(op)


async def _aperform(op: Op, host: Host) -> Any:
    match op:
        case Call():
            with _aside(host.config):
                return await _acall(op)
        case Resolve(evaluations, lane):
            if evaluations.done(lane.name) or (lane.pace.inline and not lane.evaluator.is_async):
                return evaluations.resolve(lane)
            return await asyncio.wrap_future(start(lambda: evaluations.resolve(lane), context=Context()))
        case Ask():
            return await host.aask(op)
        case _:
            raise AssertionError(op)


async def _acall(op: Call) -> Any:
    contract, pace = op.seat.contract, op.seat.pace
    deadline = contract.deadline
    if contract.is_async:
        return await _by(deadline, op.method(*op.args))
    if pace.inline:
        answer = _timed(pace.saw, op.method, op.args)
    else:
        # A thread of its own, so that a hanging contract holds up neither the loop nor its shutdown.
        future = start(lambda: _timed(pace.saw, op.method, op.args))
        answer = await _by(deadline, asyncio.wrap_future(future))
    return await _by(deadline, answer) if isawaitable(answer) else answer


def _timed(saw: Callable[[float], None], method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    begun = time.perf_counter()
    try:
        return method(*args)
    finally:
        saw(time.perf_counter() - begun)


async def _by(deadline: float | None, awaitable: Awaitable[Any]) -> Any:
    if deadline is None:
        return await awaitable
    try:
        return await asyncio.wait_for(awaitable, deadline)
    except TimeoutError as exc:
        if str(exc):
            raise  # the contract's own
        raise TimeoutError(f"no answer within {deadline:g} s") from None


@contextmanager
def _aside(config: RunnableConfig | None) -> Iterator[None]:
    """While a contract is called: its own model calls belong to no stream and no trace of the node.

    `get_config()` still tells it about thread, user and so on.
    """
    if config is None:
        yield
        return
    aside: RunnableConfig = {**config, "callbacks": None, "tags": [*(config.get("tags") or ()), "nostream"]}
    token = var_child_runnable_config.set(aside)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
