"""The two drivers of the lifecycle. They do what the generator asks for, one with `await` and one without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, cast

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

from arbiter._lifecycle.flow import lifecycle
from arbiter._lifecycle.registry import Registration
from arbiter._lifecycle.requests import (
    Body,
    Call,
    CallAll,
    Op,
    Raised,
    ReadCheckpoint,
    Resolve,
    Saving,
    Spend,
    Steps,
    Unusual,
)
from arbiter._lifecycle.runs import NodeRun
from arbiter._lifecycle.saving import aaccess, access
from arbiter._threads.deadlines import as_failure, awaited, is_from_outside, start, within
from arbiter.errors import SyncDriverError, describe
from arbiter.verdicts import ALLOW, Correction, Verdict, as_verdict

_set_ambient, _reset_ambient = var_child_runnable_config.set, var_child_runnable_config.reset


def drive(run: NodeRun) -> Any:
    """Run a node to its end and return its output. Raises the node's error, or that of a rule."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                if type(op) is Body:
                    answer = run.body(op.buffered)
                elif type(op) is CallAll:
                    answer = _call_all(op, run)
                elif type(op) is Call:
                    answer = call(op.registration, op.args, run)
                elif type(op) is Resolve:
                    answer = op.evaluations.resolve(op.queue)
                else:
                    of = op.run if type(op) is ReadCheckpoint else run
                    answer = access(of.access(cast(Saving, op)), of.saver)
            except BaseException as exc:
                steps, answer = _raised(run, steps, op, exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
    return answer


def _raised(run: NodeRun, steps: Steps, op: Op, error: BaseException) -> tuple[Steps, Raised | None]:
    """The steps that are left after an exception, and the answer for them.

    An exception from outside during a contract's call ends the run at once, whatever the contract would
    answer. The lifecycle itself handles an exception of a body.
    """
    raised = Raised(error)
    if type(op) is Body or not is_from_outside(error):
        return steps, raised
    return _ended(run, steps, raised), None


def _ended(run: NodeRun, steps: Steps, raised: Raised) -> Steps:
    """What is left of a run that was ended from outside: its budgets are charged all the same."""
    run.record.status = "cancelled"  # so that what follows can tell it from a failure of the contract
    # A coroutine that is closed may wait for nothing.
    may_wait = not isinstance(raised.error, GeneratorExit)
    answer: Any = raised
    try:
        while True:
            op = steps.send(answer)
            answer = (yield op) if may_wait and type(op) is Spend else raised
    except StopIteration:
        run.record.status, run.record.error = "cancelled", describe(raised.error)
    return raised


async def adrive(run: NodeRun) -> Any:
    """As `drive`, in an event loop."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                if type(op) is Body:
                    answer = await run.abody(op.buffered)
                elif type(op) is CallAll:
                    answer = await _acall_all(op, run)
                else:
                    answer = await _aperform(op, run)
            except BaseException as exc:
                steps, answer = _raised(run, steps, op, exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
    return answer


async def adrive_stream(run: NodeRun) -> AsyncIterator[Any]:
    """As `adrive`, and yields the chunks that the body streams. The last value is `Final`."""
    steps = lifecycle(run)
    answer: Any = None
    try:
        while True:
            op = steps.send(answer)
            try:
                if type(op) is Body and not op.buffered:
                    total = Sum()
                    async for chunk in run.astream_body(op.buffered):
                        total.add(chunk)
                        yield chunk
                    answer = total.value
                elif type(op) is Body:
                    answer = await run.abody(op.buffered)
                else:
                    answer = await _aperform(op, run)
            except BaseException as exc:
                steps, answer = _raised(run, steps, op, exc)
    except StopIteration as stop:
        answer = stop.value
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
    yield Final(answer)


@dataclass(slots=True)
class Final:
    """The end of a stream: the node's output."""

    output: Any


class Sum:
    """Chunks added up in the way of `Runnable.transform`."""

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


# Calls of contracts -------------------------------------------------------------------------------


def _no_coroutine(answer: Any, registration: Registration[Any], run: NodeRun) -> Any:
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise SyncDriverError(
            node=run.record.node, source=f"{registration.contract.kind} {registration.name!r}"
        )
    return answer


def _call_all(op: CallAll, run: NodeRun) -> Unusual:
    unusual: Unusual = []
    args = op.args
    token = _set_ambient(run.contract_config)
    model_checks = run.model_checks
    try:
        for registration in op.registrations:
            if model_checks is not None:
                model_checks.next(registration.name)
            try:
                if registration.in_place:
                    answer = registration.method(*args)
                    if answer is True or answer is ALLOW:
                        continue
                    if type(answer) not in _ANSWERS:
                        answer = _no_coroutine(answer, registration, run)
                else:
                    answer = call(registration, args, run)
                if (verdict := as_verdict(answer)) is not ALLOW:
                    unusual.append((registration, verdict))
            except Exception as exc:
                unusual.append((registration, Raised(exc)))
                if _pauses(exc, registration):
                    break
    finally:
        if model_checks is not None:
            model_checks.next(None)
        _reset_ambient(token)
    return unusual


def _pauses(error: Exception, registration: Registration[Any]) -> bool:
    return isinstance(error, GraphBubbleUp) and registration.contract.enforced


def call(registration: Registration[Any], args: tuple[Any, ...], run: NodeRun) -> Any:
    """The answer of a contract's method, called without an event loop."""
    with_effects = registration.in_place or registration.contract.enforced
    token = _set_ambient(run.contract_config if with_effects else run.isolated_config)
    try:
        if registration.deadline is None:
            answer = registration.method(*args)
        else:
            answer = within(registration.deadline, start(partial(registration.method, *args)))
    except BaseException as exc:
        if registration.contract.enforced or isinstance(exc, Exception) or is_from_outside(exc):
            raise
        # A contract whose decisions have no effect can fail, and no more than that.
        raise as_failure(exc) from exc
    finally:
        _reset_ambient(token)
    return answer if type(answer) in _ANSWERS else _no_coroutine(answer, registration, run)


# The types of the usual answers, none of which can be awaited.
_ANSWERS = frozenset({type(None), bool, str, tuple, list, dict, Verdict, Correction})


async def _aperform(op: Op, run: NodeRun) -> Any:
    if type(op) is Resolve:
        evaluations, queue = op.evaluations, op.queue
        is_quick = queue.timing.inline and not queue.is_async and queue not in evaluations.members
        if evaluations.done(queue) or is_quick:
            return evaluations.resolve(queue)
        return await asyncio.wrap_future(start(partial(evaluations.resolve, queue), context=Context()))
    if type(op) is CallAll:
        return await _acall_all(op, run)
    if type(op) is Call:
        return await acall(op.registration, op.args, run)
    of = op.run if type(op) is ReadCheckpoint else run
    return await aaccess(of.access(cast(Saving, op)), of.saver)


async def _acall_all(op: CallAll, run: NodeRun) -> Unusual:
    unusual: Unusual = []
    args = op.args
    token = _set_ambient(run.contract_config)
    model_checks = run.model_checks
    try:
        for registration in op.registrations:
            if model_checks is not None:
                model_checks.next(registration.name)
            try:
                if registration.in_place and registration.timing.inline:
                    answer = registration.timing.timed(registration.method, *args)
                    if answer is True or answer is ALLOW:
                        continue
                    if type(answer) not in _ANSWERS and isawaitable(answer):
                        answer = await _waited(registration, answer)
                else:
                    answer = await acall(registration, args, run)
                if (verdict := as_verdict(answer)) is not ALLOW:
                    unusual.append((registration, verdict))
            except Exception as exc:
                unusual.append((registration, Raised(exc)))
                if _pauses(exc, registration):
                    break
    finally:
        if model_checks is not None:
            model_checks.next(None)
        _reset_ambient(token)
    return unusual


async def acall(registration: Registration[Any], args: tuple[Any, ...], run: NodeRun) -> Any:
    """As `call`, in an event loop."""
    token = _set_ambient(run.contract_config if registration.contract.enforced else run.isolated_config)
    try:
        if registration.amethod is not None:
            return await _waited(registration, registration.amethod(*args))
        if registration.is_async:
            return await _waited(registration, registration.method(*args))
        if registration.timing.inline:
            answer = registration.timing.timed(registration.method, *args)
        else:
            # A thread of its own, so that a hanging contract holds up neither the loop nor its shutdown.
            timed = partial(registration.timing.timed, registration.method, *args)
            answer = await awaited(registration.deadline, asyncio.wrap_future(start(timed)))
        if type(answer) in _ANSWERS or not isawaitable(answer):
            return answer
        return await _waited(registration, answer)
    except BaseException as exc:
        if registration.contract.enforced or isinstance(exc, Exception) or is_from_outside(exc):
            raise
        # A contract whose decisions have no effect can fail, and no more than that.
        raise as_failure(exc) from exc
    finally:
        _reset_ambient(token)


async def _waited(registration: Registration[Any], awaitable: Any) -> Any:
    """The result of an awaitable, within the deadline.

    A deadline runs it in a task of its own, in which a SystemExit would end the event loop, so it is caught
    there.
    """
    if registration.deadline is None or registration.contract.enforced:
        return await awaited(registration.deadline, awaitable)
    return await awaited(registration.deadline, _failing(awaitable))


async def _failing(awaitable: Any) -> Any:
    try:
        return await awaitable
    except BaseException as exc:
        if isinstance(exc, Exception) or is_from_outside(exc):
            raise
        raise as_failure(exc) from exc
