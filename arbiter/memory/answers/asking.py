"""What a model answers, however it answers, in a bounded number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import BaseModel

from arbiter.memory.answers.replies import Reader
from arbiter.models import ChatModel, aask

T = TypeVar("T", bound=BaseModel)

TAGS = ("nostream", "arbiter:evaluator")
"""On each call of a model: its tokens are no part of what a graph streams, and a tracer can tell it from the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutcome(Generic[T]):
    """`value` is None when there is none that fits, and `error` says why, without the model's words. `status`: `ok` at
    the first reply, `repaired` at a later one, `salvaged` in part, `failed`. `calls` were made. `dropped_items` were
    left out of `value`, by `TOLERANT` or because the rest was salvaged."""

    value: T | None
    status: Literal["ok", "repaired", "salvaged", "failed"]
    calls: int
    dropped_items: int = 0
    error: str = ""
    raised: bool = False
    """Whether there was no answer at all, because the model raised or took too long."""


class CallBudget:
    """How many calls of models a turn has left."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def left(self) -> int:
        return self.limit - self.used

    def take(self) -> bool:
        """Use one up; False if there is none left."""
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
    """Ask a model for a `schema`, with `timeout_s` seconds for all of it.

    First as `arbiter.models.aask` does; a bare JSON array is taken for the list `item_field`. An answer that does not
    fit is shown to the model with what is wrong, up to `repair_attempts` times. If none fits then, what does of the
    last one is kept: items of lists that are wrong are left out, and so are wrong fields that have a default. Something
    that the model gave has to be left. A model that refuses structured output is asked for text, which is one more
    call. Each call takes one of `budget`. Never raises what the model raises.
    """
    if budget is not None and not budget.take():
        return StructuredOutcome(value=None, status="failed", calls=0, error="no calls of models are left")
    calls = 1

    def more(replies: int) -> bool:
        nonlocal calls
        if replies > repair_attempts or not (budget is None or budget.take()):
            return False
        calls += 1
        return True

    reader = Reader(schema, item_field)
    config: RunnableConfig = {"tags": list(TAGS)}
    # Nothing of the graph's run (callbacks, streams) reaches the model.
    ambient = var_child_runnable_config.set(None)
    raised = False
    try:
        async with asyncio.timeout(timeout_s):
            answer = await aask(model, messages, schema, read=reader.read, more=more, config=config)
        value, error = answer.value, reader.trouble
    except Exception as failure:  # whatever the model's integration thinks of
        value, error, raised = None, type(failure).__name__, True
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
    return StructuredOutcome(value=None, status="failed", calls=calls, error=error, raised=raised)
