"""Stops: calls in a body that a checker's handler has stopped, and the fate of a body that continued
nevertheless.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage

from arbiter._lifecycle.handlers import Inside
from arbiter._lifecycle.outcomes import denied_by
from arbiter._lifecycle.requests import Raised
from arbiter._lifecycle.runs import NodeRun, Stop, current_run
from arbiter._values.states import written_by
from arbiter.errors import PolicyViolationError
from arbiter.policy import PolicyChecker
from arbiter.verdicts import FAILED, Verdict

STOPPED = "stopped a call in the body"
"""The note of a checker that did so begins with it."""


def stopping(handler: BaseCallbackHandler, checker: PolicyChecker, run: NodeRun) -> BaseCallbackHandler:
    """A handler that may stop calls in a body. The node run records each call that it stops."""
    # The run has its handlers: without the weak reference both would stay until a collection.
    return Inside(handler, partial(_watched, checker, ref(run)), raise_error=True)


@contextmanager
def _watched(checker: PolicyChecker, run: ref[NodeRun], told: Mapping[str, Any]) -> Generator[None]:
    try:
        yield
    except Exception as exc:
        _note(run(), checker, exc, told)
        raise


def _note(run: NodeRun | None, checker: PolicyChecker, error: Exception, told: Mapping[str, Any]) -> None:
    # LangChain reads a NotImplementedError as "call on_llm_start instead".
    if isinstance(error, NotImplementedError):
        return
    inner = current_run.get()  # a node's handlers also see the calls of nodes of an inner graph
    if inner is not None and checker in inner.plan.watchers:
        run = inner
    if run is None:
        return  # it is over
    if isinstance(error, PolicyViolationError) and error.cause is None:
        reason, cause = error.reason, None
    else:
        reason, cause = f"{FAILED}{type(error).__name__}", error
    call: Any = told.get("tool_call_id")
    run.stops = (*run.stops, Stop(checker=checker, reason=reason, cause=cause, call=call))


def note_stops(run: NodeRun) -> None:
    """Record the stopped calls, and the checkers that stopped them."""
    record = run.record
    checks = dict(record.checks)
    for stop in run.stops:
        name = stop.checker.name
        if checks.get(name) is None or checks[name].kind != "deny":
            checks[name] = Verdict.deny(stop.reason)
        record.note(f"checker {name}", f"{STOPPED}: {stop.reason}")
    record.checks = checks


def held_back(run: NodeRun, output: Any) -> Raised | None:
    """Handle a body that has caught a denial and returned an output.

    To hold back the output, returns `Raised` or sets the redirect; otherwise returns None.
    """
    note_stops(run)
    answered: set[str] | None = None
    for stop in run.stops:
        checker = stop.checker
        caught = checker.on_caught or ("continue" if checker.on_deny == "raise" else "answered")
        if caught == "continue":
            continue
        if caught == "answered" and stop.call is not None:
            if answered is None:
                answered = set(_answered(written_by(run.written(output))))
            if stop.call in answered:
                continue
        reason = f"its output was not committed, since a call in its body was stopped: {stop.reason}"
        return denied_by(run, checker, reason, stop.cause)
    return None


def _answered(state: Mapping[str, Any]) -> Iterator[str]:
    """The ids of the tool calls that an output answers."""
    for value in state.values():
        for part in value if isinstance(value, list | tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            if isinstance(part, ToolMessage):
                yield part.tool_call_id
