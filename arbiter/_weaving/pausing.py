"""A checkpointer for a graph that has none, so that a rule can ask a human while the process lasts."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


def pausing_saver() -> InMemorySaver:
    """A checkpointer in memory that takes every state: such a graph may hold functions, locks or connections."""
    return InMemorySaver(serde=_AnyValue())


class _AnyValue(JsonPlusSerializer):
    """Keeps what cannot be serialized as the object itself."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        try:
            return super().dumps_typed(obj)
        except Exception:  # the value's own methods may raise anything
            return _ITSELF, obj

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        kind, value = data
        return value if kind == _ITSELF else super().loads_typed(data)


_ITSELF = "itself"
