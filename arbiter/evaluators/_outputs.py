"""Helpers of several evaluators: a part of the node's output as data or text, and checked numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from arbiter._values.states import Digest, is_number, thaw
from arbiter.errors import EvaluationError, ParameterError, Unscored
from arbiter.history._items import History, HistoryItem


def failure(evaluator: str, item: HistoryItem, problem: str, outcome: Unscored = "error") -> EvaluationError:
    """The error of an evaluator that has no result for that node run."""
    return EvaluationError(problem, evaluator=evaluator, node=item.node, outcome=outcome)


def output_at(history: History, key: str, evaluator: str) -> Any:
    """The output of the node at `key`. Raises `EvaluationError` if it is missing or None."""
    item = history.item
    output = item.output_state
    if key not in output or output[key] is None:
        found = "is None" if key in output else "is missing"
        there = ", ".join(map(repr, output)) or "nothing"
        problem = f"{key!r} {found} in the output of node {item.node!r}, which has {there}"
        raise failure(evaluator, item, problem)
    return output[key]


def text_at(history: History, key: str, evaluator: str) -> str:
    """As `texts_at`, one per line."""
    return "\n".join(texts_at(history, key, evaluator))


def texts_at(history: History, key: str, evaluator: str) -> list[str]:
    """As `output_at`, as texts. Raises `EvaluationError` for a value that is neither text nor messages."""
    value = output_at(history, key, evaluator)
    texts = _texts_in(value)
    if texts is None:
        item = history.item
        given = thaw(value)
        found = f"an empty {type(given).__name__}" if given in ([], ()) else f"of type {type(given).__name__}"
        where = f"{key!r} in the output of node {item.node!r}"
        raise failure(evaluator, item, f"{where} is {found}; expected a text or messages")
    return texts


def text_in(value: Any) -> str | None:
    """A text, or the text of a message or of a list of messages, one per line; None for any other value, also for
    the digest that the history keeps of a text.
    """
    texts = _texts_in(value)
    return None if texts is None else "\n".join(texts)


def _texts_in(value: Any) -> list[str] | None:
    if isinstance(value, str):
        return None if isinstance(value, Digest) else [value]
    if isinstance(value, BaseMessage):
        return [str(value.text)]
    parts: Any = value
    if isinstance(value, list | tuple) and parts and all(isinstance(part, BaseMessage) for part in parts):
        return [str(part.text) for part in parts]
    return None


def messages_in(value: Any, depth: int = 4) -> Iterator[BaseMessage]:
    """The messages in a state, or in some part of it, down to `depth` containers."""
    if isinstance(value, BaseMessage):
        yield value
        return
    parts: Any = value
    if isinstance(value, Mapping):
        parts = parts.values()
    elif not isinstance(value, list | tuple):
        return
    if depth > 0:
        for part in parts:
            yield from messages_in(part, depth - 1)


N = TypeVar("N", bound=float)


def checked_number(
    owner: str,
    parameter: str,
    value: N,
    *,
    above: float | None = None,
    low: float | None = None,
    high: float | None = None,
    whole: bool = False,
) -> N:
    """`value`, if it is a finite number in that range. Booleans are rejected. Raises `ParameterError`."""
    limits = [
        f"above {above:g}" if above is not None else "",
        f"from {low:g}" if low is not None else "",
        f"to {high:g}" if high is not None else "",
    ]
    if (
        not is_number(value)
        or (whole and not isinstance(value, int))
        or (above is not None and value <= above)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        wanted = " ".join(["a whole number" if whole else "a number", *filter(None, limits)])
        raise ParameterError(owner, parameter, f"expected {wanted}, got {value!r:.80}.")
    return value
