"""Calls of users' methods, and their outcomes as results, errors and traces for the history."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from arbiter._threads.deadlines import awaited, start
from arbiter._values.contexts import during
from arbiter._values.states import is_number
from arbiter.evaluation import NodeEvaluator
from arbiter.memory._context import BudgetSpentError, NotAvailableError, UnusableAnswerError
from arbiter.memory._cursors import MOMENT
from arbiter.memory._evaluators import CognitiveEvaluator, HandlerOutcome
from arbiter.verdicts import EvaluationResult, EvaluatorTrace, evaluation_fault

LIMIT = ContextVar("arbiter_memory_limit", default=math.inf)
"""The seconds that the call under way may take."""


@dataclass(frozen=True, slots=True)
class Called:
    """The outcome of a call: its value or its error. `late` is True if it timed out; `ms` is its duration."""

    value: Any = None
    error: BaseException | None = None
    late: bool = False
    ms: float = 0.0


async def call(method: Callable[..., Any], *args: Any, timeout: float | None) -> Called:
    """Call `method`: a `def` on a thread of its own, because it may block, an `async def` on this event loop.

    A call that times out is cancelled, and has a moment to note it. A thread, and a coroutine that ignores its
    cancellation, go on unattended.
    """
    begun = time.perf_counter()
    # The task keeps what is raised as its value: a SystemExit that left it would end the event loop.
    with during(LIMIT, math.inf if timeout is None else timeout):
        done = asyncio.ensure_future(outcome(method, args))
    try:
        value, error = await awaited(timeout, done)
        late = False
    except TimeoutError as exc:
        value, error, late = None, exc, True
        await asyncio.wait((done,), timeout=MOMENT)
    return Called(value, error, late, (time.perf_counter() - begun) * 1000)


async def outcome(method: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """The value of a method, or what it raises."""
    try:
        if inspect.iscoroutinefunction(method):
            return await method(*args), None
        value = await asyncio.wrap_future(start(partial(method, *args)))
        return (await value if inspect.isawaitable(value) else value), None
    except BaseException as exc:  # a SystemExit of this method must not end the other evaluators
        return None, exc


def gated(answer: Called) -> tuple[str | None, str]:
    """The status and detail of a trace for an answer of `validate`; the status is None if the evaluator
    may go on."""
    if answer.late:
        return "validate_timeout", ""
    if answer.error is not None:
        return "validate_error", type(answer.error).__name__
    try:
        return (None, "") if answer.value else ("validate_false", "")
    except Exception as exc:  # the answer's __bool__ raised
        return "validate_error", type(exc).__name__


def unknown_names(names: Sequence[str], evaluators: Collection[str]) -> list[EvaluatorTrace]:
    """Traces for names that the selector returned and no candidate has.

    Only names of other evaluators are repeated. The rest is counted, because a model may quote its prompt.
    """
    said = [name for name in names if name in evaluators]
    remarks = [EvaluatorTrace(name, "select", "unknown_name") for name in said]
    if other := sum(name not in evaluators for name in names):
        count = "1 name" if other == 1 else f"{other} names"
        remarks.append(EvaluatorTrace("selector", "select", "unknown_name", 0.0, count))
    return remarks


def settled(
    evaluator: NodeEvaluator, done: Called, results: dict[str, EvaluationResult], errors: dict[str, str]
) -> EvaluatorTrace:
    """File the outcome of a handler in `results` or `errors`. Returns its trace."""
    name, error = evaluator.name, done.error
    if isinstance(error, BudgetSpentError):
        return EvaluatorTrace(name, "run", "filtered", done.ms, "budget")
    if isinstance(error, NotAvailableError):
        return EvaluatorTrace(name, "run", "filtered", done.ms, str(error))
    if error is not None:
        # Without its text: it may quote what somebody said, and the history is printed and exported.
        errors[name] = f"{type(error).__name__} in handler"
        detail = "window_skipped" if isinstance(error, UnusableAnswerError) and error.skipped else ""
        return EvaluatorTrace(name, "run", "timeout" if done.late else "failed", done.ms, detail)
    if isinstance(evaluator, CognitiveEvaluator):
        result, remark = _result_of(done.value)
    else:
        fault = evaluation_fault(done.value)
        result, remark = (done.value, "") if fault is None else (None, f"evaluator {name!r} {fault}")
    if result is None:
        errors[name] = remark
        return EvaluatorTrace(name, "run", "failed", done.ms)
    results[name] = result
    return EvaluatorTrace(name, "run", "ran", done.ms, remark)


def _result_of(answer: Any) -> tuple[EvaluationResult | None, str]:
    """A handler's answer as a result, None if it is unusable, and a remark about its fault."""
    if answer is None:
        answer = HandlerOutcome()
    if not isinstance(answer, HandlerOutcome | EvaluationResult):
        expected = "a HandlerOutcome, an EvaluationResult or None"
        return None, f"the handler returned a {type(answer).__name__}; expected {expected}"
    remark = ""
    score: Any = answer.score
    if isinstance(score, float) and math.isnan(score):
        score, remark = 0.0, "the score was NaN"
    elif isinstance(score, float) or is_number(score):
        score = min(1.0, max(0.0, float(score)))
    data: Any = answer.data if isinstance(answer, HandlerOutcome) else answer.metadata
    result = EvaluationResult(score, answer.passed, answer.feedback, data)
    if evaluation_fault(result) is not None:
        # The fault's own text would quote the returned values.
        return None, "the handler returned an outcome whose fields have the wrong types"
    try:
        json.dumps(dict(data), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None, "the handler returned data that is not JSON"
    return result, remark
