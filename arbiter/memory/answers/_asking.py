"""Structured answers of a model, read in any form and in a bounded number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import BaseModel

from arbiter.memory.answers._replies import Reader
from arbiter.models import ChatModel, aask

T = TypeVar("T", bound=BaseModel)

TAGS = ("nostream", "arbiter:evaluator")
"""Tags of each model call: its tokens stay out of the graph's stream, and a tracer can tell it from the agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutcome(Generic[T]):
    """The outcome of a structured call.

    `value` is None if no answer fits; `error` then gives the reason, without the model's words. `status` is
    `ok` for the first reply, `repaired` for a later one, `salvaged` for a part of one, or `failed`. `calls`
    is the number of model calls. `dropped_items` counts the items that were left out of `value`, by
    `TOLERANT` or by salvaging.
    """

    value: T | None
    status: Literal["ok", "repaired", "salvaged", "failed"]
    calls: int
    dropped_items: int = 0
    error: str = ""
    raised: bool = False
    """True if there was no answer at all: the model raised or timed out."""
    failure: Exception | None = field(default=None, compare=False, repr=False)
    """The model's exception in that case."""


class CallBudget:
    """The number of model calls that a turn has left."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def left(self) -> int:
        return self.limit - self.used

    def take(self) -> bool:
        """Use up one call. Returns False if none is left."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True


async def structured_call(
    model: ChatModel,
    schema: type[T],
    messages: Sequence[BaseMessage],
    *,
    repair_attempts: int = 1,
    timeout_s: float | None = 20,
    item_field: str | None = None,
    budget: CallBudget | None = None,
) -> StructuredOutcome[T]:
    """Ask a model for a `schema`, within `timeout_s` seconds in total.

    The first question is that of `arbiter.models.aask`; a bare JSON array is read as the list `item_field`.
    If the answer does not fit, the model sees it with its mistakes, up to `repair_attempts` times. If none
    fits, the valid part of the last one is kept: wrong items of lists and wrong fields with a default are
    left out, and at least one given value must remain. A model that refuses structured output is asked for
    text, which costs one more call. Each call takes one of `budget`. Errors of the model are returned in the
    outcome, never raised.
    """
    if budget is not None and not budget.take():
        return StructuredOutcome(value=None, status="failed", calls=0, error="no model calls are left")
    calls = 1

    def more(replies: int) -> bool:
        nonlocal calls
        if replies > repair_attempts or not (budget is None or budget.take()):
            return False
        calls += 1
        return True

    reader = Reader(schema, item_field)
    config: RunnableConfig = {"tags": list(TAGS)}
    # Callbacks and streams of the graph's run must not see this call.
    ambient = var_child_runnable_config.set(None)
    raised: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s):
            answer = await aask(model, messages, schema, read=reader.read, more=more, config=config)
        value, error = answer.value, reader.trouble
    except Exception as failure:  # each model integration has errors of its own
        value, error, raised = None, type(failure).__name__, failure
    finally:
        var_child_runnable_config.reset(ambient)
    if value is not None:
        status: Literal["ok", "repaired"] = "ok" if reader.replies == 1 else "repaired"
        return StructuredOutcome(value=value, status=status, calls=calls, dropped_items=reader.dropped)
    value, dropped = reader.salvaged()
    if value is not None:
        return StructuredOutcome(
            value=value, status="salvaged", calls=calls, dropped_items=dropped, error=error
        )
    return StructuredOutcome(
        value=None, status="failed", calls=calls, error=error, raised=raised is not None, failure=raised
    )
