"""What a model answers, however it answers, in a bounded number of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from arbiter.models import ChatModel

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutcome(Generic[T]):
    """`value` is None when there is none that fits, and `error` says why, without the model's words. `status`: `ok` at
    the first call, `repaired` at a later one, `salvaged` in part, `failed`. `calls` were made."""

    value: T | None
    status: Literal["ok", "repaired", "salvaged", "failed"]
    calls: int
    dropped_items: int = 0
    error: str = ""


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
    """Ask a model for a `schema`. `item_field` names its list: a bare JSON array is taken for that, and if nothing fits
    as a whole, its items are validated one by one and the good ones kept. Never raises what the model raises."""
    raise NotImplementedError


def extract_json(text: str) -> Any:
    """The JSON value (an object or an array) in a text; `ValueError` if there is none."""
    raise NotImplementedError
