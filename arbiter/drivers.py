"""The two drivers of the lifecycle: they do what the generator asks for, one with `await` and one without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import Context
from functools import partial
from inspect import isawaitable, iscoroutine
from operator import length_hint
from typing import Any, cast

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

from arbiter.calls import as_failure, awaited, is_from_outside, start, within
from arbiter.errors import SyncDriverError, describe
from arbiter.history import CausalHistory
from arbiter.lifecycle import (
    Ask,
    Begin,
    Body,
    Call,
    CallAll,
    Keep,
    LookBack,
    NodeRun,
    Op,
    OutputOf,
    Raised,
    Resolve,
    Spend,
    Steps,
    Stopped,
    conclude,
    is_yes,
    judge,
    lifecycle,
    note_output,
    observed,
    routed,
    tell,
)
from arbiter.registry import Seat
from arbiter.states import freeze
from arbiter.verdicts import ALLOW, Correction, Verdict

_set_ambient, _reset_ambient = var_child_runnable_config.set, var_child_runnable_config.reset

# Where a node run is plain, as most are, the generator is taken up only where somebody objects: a checker that does not
# allow the node, a router that answers, a body that raises.


def drive(run: NodeRun) -> Any:
    """Run a node to its end. Raises what the node raised, or what governs it."""
    if not run.is_plain:
        return _drive(run, lifecycle(run))
    run.begun = run.settings.timer()
    view = None if run.plan.empty else run.view
    if view is not None and (answers := _objections(run, view)) is not None:
        steps = lifecycle(run, answers)
        del answers  # as below: an error in it would be held by a frame that it passes
        return _drive(run, steps)
    try:
        if view is not None:
            run.input = run.checked_input()
        output = run.body(run.input, False)
    except BaseException as exc:
        return _drive(run, observed(run, conclude(run, Raised(exc))))
    note_output(run, output)
    if view is not None and (targets := _redirections(run, view, output)) is not None:
        return _drive(run, observed(run, routed(run, output, output, targets)))
    return output


def _objections(run: NodeRun, view: CausalHistory, *, timed: bool = False) -> Any:
    """Ask the checkers of a plain node run; their answers, or `Raised`, unless all allow."""
    plan = run.plan
    checks = plan.timed_checks if timed else plan.checks
    if not checks:
        return None
    left, answers = iter(checks), None
    token = _set_ambient(run.aside)
    try:
        for check in left:
            answer = check(view)
            if answer is not True and answer is not ALLOW and not is_yes(answer):
                answers = _answered(checks, left, True, answer)
                break
    except Exception as exc:
        answers = _answered(checks, left, True, Raised(exc))
    except BaseException as exc:
        return Raised(exc)
    finally:
        _reset_ambient(token)
    if answers is None:
        run.record.checks = plan.all_allowed
        return None
    try:
        return _call_all(plan.checkers, (view,), run, answers, timed=timed)
    except BaseException as exc:
        return Raised(exc)


def _redirections(run: NodeRun, view: CausalHistory, output: Any, *, timed: bool = False) -> list[Any] | None:
    """The body of a plain node run is done: evaluate, ask the routers; their answers, if there are any."""
    plan = run.plan
    reads = judge(run, view) if plan.lanes else None
    routes = plan.timed_routes if timed else plan.routes
    if routes:
        given, left, targets = freeze(output), iter(routes), None
        if reads is not None:
            view.give_results(reads)
        token = _set_ambient(run.aside)
        try:
            for route in left:
                target = route(view, given)
                if target is not None:
                    targets = _answered(routes, left, None, target)
                    break
        except BaseException as exc:
            if is_from_outside(exc):
                raise
            targets = _answered(routes, left, None, Raised(exc))
        finally:
            _reset_ambient(token)
        if targets is not None:
            return _call_all(plan.routers, (view, given), run, targets, timed=timed, errors=BaseException)
        view.give_results(None)
        run.record.routes = plan.no_routes
    if reads is not None:
        run.settings.background.enqueue(reads.evaluations)
    if plan.observers:
        tell(run, plan.observers, view)
    return None


def _answered(asked: Sequence[Any], left: Iterator[Any], usual: Any, last: Any) -> list[Any]:
    """The answers so far: all as usual but the last."""
    return [usual] * (len(asked) - length_hint(left) - 1) + [last]


def _drive(run: NodeRun, steps: Steps) -> Any:
    run.is_plain = False
    answer: Any = None
    ended: Raised | None = None
    try:
        while True:
            op = steps.send(answer)
            if ended is not None:
                answer = ended
                continue
            try:
                if type(op) is Body:
                    answer = run.body(op.input, op.held)
                elif type(op) is CallAll:
                    answer = _call_all(op.seats, op.args, run)
                elif type(op) is Call:
                    answer = _call(op, run)
                elif type(op) is Resolve:
                    answer = op.evaluations.resolve(op.lane)
                else:
                    answer = _perform(op, run)
            except BaseException as exc:
                answer = Raised(exc)
                ended = _ended(op, answer)
    except StopIteration as stop:
        answer = _after(run, stop.value, ended)
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
    return answer


def _ended(op: Op, raised: Raised) -> Raised | None:
    """The end of the run that came while a contract was called: nothing else is done, whatever becomes of the answer
    of that contract. What ends a body is the lifecycle's affair."""
    return raised if type(op) is not Body and is_from_outside(raised.error) else None


def _after(run: NodeRun, answer: Any, ended: Raised | None) -> Any:
    if ended is None:
        return answer
    run.record.status, run.record.error = "cancelled", describe(ended.error)
    return ended


async def adrive(run: NodeRun) -> Any:
    """As `drive`, in an event loop."""
    plan, is_plain = run.plan, run.is_plain
    for pace in plan.paces:
        is_plain = is_plain and pace.inline
    if not is_plain:
        return await _adrive(run, lifecycle(run))
    run.begun = run.settings.timer()
    view = None if plan.empty else run.view
    if view is not None and (answers := _objections(run, view, timed=True)) is not None:
        steps = lifecycle(run, await _verdicts(run, answers))
        del answers
        return await _adrive(run, steps)
    try:
        if view is not None:
            run.input = run.checked_input()
        output = await run.abody(run.input, False)
    except BaseException as exc:
        return await _adrive(run, observed(run, conclude(run, Raised(exc))))
    note_output(run, output)
    if view is None:
        return output
    if (targets := _redirections(run, view, output, timed=True)) is not None:
        targets = await _all_of(plan.routers, (view, freeze(output)), run, targets, BaseException)
        return await _adrive(run, observed(run, routed(run, output, output, targets)))
    return output


async def _verdicts(run: NodeRun, answers: Any) -> Any:
    """The answers of all checkers, or `Raised`, where some have been called in place."""
    if type(answers) is Raised:
        return answers
    try:
        return await _all_of(run.plan.checkers, (run.view,), run, answers, Exception)
    except BaseException as exc:
        return Raised(exc)


async def _all_of(
    seats: Sequence[Seat[Any]],
    args: tuple[Any, ...],
    run: NodeRun,
    answers: list[Any],
    errors: type[BaseException],
) -> list[Any]:
    """As `_call_all`, that has stopped: the last answer may be something to wait for, and others come after it."""
    answers[-1] = await _awaited(run, answers[-1], errors)
    for seat in seats[len(answers) :]:
        if errors is not BaseException and _pauses(answers[-1]):
            break
        try:
            answers.append(await _acall(Call(seat, args), run))
        except errors as exc:
            if is_from_outside(exc):
                raise
            answers.append(Raised(exc))
    return answers


async def _awaited(run: NodeRun, answer: Any, errors: type[BaseException]) -> Any:
    if type(answer) in _ANSWERS or not isawaitable(answer):
        return answer
    token = _set_ambient(run.aside)
    try:
        return await answer
    except errors as exc:
        if is_from_outside(exc):
            raise
        return Raised(exc)
    finally:
        _reset_ambient(token)


def _pauses(answer: Any) -> bool:
    return type(answer) is Raised and isinstance(answer.error, GraphBubbleUp)


async def _adrive(run: NodeRun, steps: Steps) -> Any:
    run.is_plain = False
    answer: Any = None
    ended: Raised | None = None
    try:
        while True:
            op = steps.send(answer)
            if ended is not None:
                answer = ended
                continue
            try:
                if type(op) is Body:
                    answer = await run.abody(op.input, op.held)
                else:
                    answer = await _aperform(op, run)
            except BaseException as exc:
                answer = Raised(exc)
                ended = _ended(op, answer)
    except StopIteration as stop:
        answer = _after(run, stop.value, ended)
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
    return answer


async def adrive_stream(run: NodeRun) -> AsyncIterator[Any]:
    """As `adrive`, handing on what the body streams. The last thing yielded is `Final`."""
    run.is_plain = False
    steps = lifecycle(run)
    answer: Any = None
    ended: Raised | None = None
    try:
        while True:
            op = steps.send(answer)
            if ended is not None:
                answer = ended
                continue
            try:
                if type(op) is Body and not op.held:
                    total = Sum()
                    async for chunk in run.astream_body(op.input, op.held):
                        total.add(chunk)
                        yield chunk
                    answer = total.value
                elif type(op) is Body:
                    answer = await run.abody(op.input, op.held)
                else:
                    answer = await _aperform(op, run)
            except BaseException as exc:
                answer = Raised(exc)
                ended = _ended(op, answer)
    except StopIteration as stop:
        answer = _after(run, stop.value, ended)
    if type(answer) is Raised:
        try:
            raise answer.error
        finally:
            del answer  # this frame is in the error's traceback: a cycle would keep the whole run alive
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


def _perform(op: Op, run: NodeRun) -> Any:
    if type(op) is LookBack:
        return op.run.look_back()
    if type(op) is OutputOf:
        return run.output_of(op.task)
    if type(op) is Keep:
        return run.keep(op.note)
    if type(op) is Begin:
        return run.begin(op)
    if type(op) is Stopped:
        return run.stopped(op)
    if type(op) is Spend:
        return run.spend(op)
    return run.ask(cast(Ask, op))


# What is not the body -----------------------------------------------------------------------------


def _call_all(
    seats: Sequence[Seat[Any]],
    args: tuple[Any, ...],
    run: NodeRun,
    answers: list[Any] | None = None,
    *,
    timed: bool = False,
    errors: type[BaseException] = Exception,
) -> list[Any]:
    """Call a method of several contracts, after those that have answered. `timed`: in an async run, in place, as far as
    none answers with something to wait for. `errors` are answers too; of `BaseException` none keeps the others from
    being asked."""
    if answers is None:
        answers = []
    elif not _is_settled(answers, seats, run, timed=timed, errors=errors):
        return answers
    token = _set_ambient(run.aside)
    try:
        for seat in seats[len(answers) :]:
            if seat.deadline is not None or not seat.contract.enforced:
                answers.append(_try_call(Call(seat, args), run))
                continue
            try:
                answers.append(seat.timed(*args) if timed else seat.method(*args))
            except errors as exc:
                if is_from_outside(exc):
                    raise
                answers.append(Raised(exc))
            if not _is_settled(answers, seats, run, timed=timed, errors=errors):
                break
    finally:
        _reset_ambient(token)
    return answers


def _is_settled(
    answers: list[Any],
    seats: Sequence[Seat[Any]],
    run: NodeRun,
    *,
    timed: bool,
    errors: type[BaseException],
) -> bool:
    """Whether the next contract may be called after the last answer: it is no pause, and nothing to wait for."""
    answer = answers[-1]
    if type(answer) in _ANSWERS:
        return True
    if isawaitable(answer):
        if timed:
            return False
        try:
            _no_coroutine(answer, seats[len(answers) - 1], run)
        except SyncDriverError as exc:
            answers[-1] = Raised(exc)
    return errors is BaseException or not _pauses(answer)


def _try_call(op: Call, run: NodeRun) -> Any:
    try:
        return _call(op, run)
    except Exception as exc:
        return Raised(exc)


def _without_effect(error: BaseException, seat: Seat[Any]) -> BaseException:
    """What is raised where that contract has. One whose decisions do not hold can fail, and no more than that."""
    return error if seat.contract.enforced or is_from_outside(error) else as_failure(error)


def _no_coroutine(answer: Any, seat: Seat[Any], run: NodeRun) -> Any:
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise SyncDriverError(node=run.record.node, source=f"{seat.contract.kind} {seat.name!r}")
    return answer


def _call(op: Call, run: NodeRun) -> Any:
    seat = op.seat
    token = _set_ambient(run.aside if seat.contract.enforced else run.apart)
    try:
        if seat.deadline is None:
            answer = seat.method(*op.args)
        else:
            answer = within(seat.deadline, start(partial(seat.method, *op.args)))
    except BaseException as exc:
        if (error := _without_effect(exc, seat)) is exc:
            raise
        raise error from exc
    finally:
        _reset_ambient(token)
    return answer if type(answer) in _ANSWERS else _no_coroutine(answer, seat, run)


# The usual answers, of which nobody has to find out whether they can be awaited.
_ANSWERS = frozenset({type(None), bool, str, tuple, list, dict, Verdict, Correction})


async def _aperform(op: Op, run: NodeRun) -> Any:
    if type(op) is Resolve:
        evaluations, lane = op.evaluations, op.lane
        if evaluations.done(lane) or (lane.pace.inline and not lane.is_async):
            return evaluations.resolve(lane)
        return await asyncio.wrap_future(start(partial(evaluations.resolve, lane), context=Context()))
    if type(op) is Call:
        return await _acall(op, run)
    if type(op) is CallAll:
        answers: list[Any] = []
        for seat in op.seats:
            answer = await _try_acall(Call(seat, op.args), run)
            answers.append(answer)
            if _pauses(answer) and seat.contract.enforced:
                break
        return answers
    if type(op) is LookBack:
        return await op.run.alook_back()
    if type(op) is OutputOf:
        return await run.aoutput_of(op.task)
    if type(op) is Keep:
        return await run.akeep(op.note)
    if type(op) is Begin:
        return await run.abegin(op)
    if type(op) is Stopped:
        return await run.astopped(op)
    if type(op) is Spend:
        return await run.aspend(op)
    return await run.aask(cast(Ask, op))


async def _try_acall(op: Call, run: NodeRun) -> Any:
    try:
        return await _acall(op, run)
    except Exception as exc:
        return Raised(exc)


async def _acall(op: Call, run: NodeRun) -> Any:
    seat = op.seat
    token = _set_ambient(run.aside if seat.contract.enforced else run.apart)
    try:
        if seat.amethod is not None:
            return await _waited(seat, seat.amethod(*op.args))
        if seat.is_async:
            return await _waited(seat, seat.method(*op.args))
        if seat.pace.inline:
            answer = seat.pace.timed(seat.method, *op.args)
        else:
            # A thread of its own, so that a hanging contract holds up neither the loop nor its shutdown.
            future = start(partial(seat.pace.timed, seat.method, *op.args))
            answer = await awaited(seat.deadline, asyncio.wrap_future(future))
        if type(answer) in _ANSWERS or not isawaitable(answer):
            return answer
        return await _waited(seat, answer)
    except BaseException as exc:
        if (error := _without_effect(exc, seat)) is exc:
            raise
        raise error from exc
    finally:
        _reset_ambient(token)


async def _waited(seat: Seat[Any], awaitable: Any) -> Any:
    """What it gives, within the deadline. On a task of its own, which the deadline takes, a SystemExit would end the
    event loop."""
    if seat.deadline is None or seat.contract.enforced:
        return await awaited(seat.deadline, awaitable)
    return await awaited(seat.deadline, _failing(awaitable))


async def _failing(awaitable: Any) -> Any:
    try:
        return await awaitable
    except BaseException as exc:
        if is_from_outside(exc):
            raise
        raise as_failure(exc) from exc
