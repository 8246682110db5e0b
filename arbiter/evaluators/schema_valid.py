"""An evaluator of the shape of an output, by JSON Schema or pydantic class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from langchain_core.messages import BaseMessage

from arbiter.evaluation import NodeEvaluator
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.values import shape_of, whole
from arbiter.verdicts import EvaluationResult


class SchemaEvaluator(NodeEvaluator):
    """Scores 1.0 and passes when the output, or the value at `key` of it, fits `schema`; else 0.0, with the mistakes.

    `schema` is a JSON Schema (a mapping), a class that pydantic validates, or the dotted path of such a class.
    A text at `key` is read as JSON, in a ``` fence or not, unless the schema itself describes a text. A message
    stands for its text, a list of messages for that of the last one.
    """

    DOTTED_PARAMETERS: ClassVar[tuple[str, ...]] = ("schema",)
    """As `SchemaChecker.DOTTED_PARAMETERS`."""

    def __init__(
        self,
        name: str,
        schema: Mapping[str, Any] | str | type,
        *,
        key: str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self.key = key
        self._shape = shape_of(schema, f"evaluator {name!r}", "schema")

    def evaluate(self, history: History) -> EvaluationResult:
        output = history.entries[-1][-1].output_state
        if self.key is None:
            return _result(self._shape.mistakes(whole(output), "output"))
        if self.key not in output:
            return _result([f"output has no {self.key!r}"])
        value: Any = _text(output[self.key])
        if isinstance(value, str) and not self._shape.of_text:
            try:
                value = read_json(value)
            except (ValueError, RecursionError) as exc:
                return _result([f"{self.key} is no JSON: {exc}"])
        return _result(self._shape.mistakes(value, self.key))


def _result(mistakes: list[str]) -> EvaluationResult:
    return EvaluationResult(0.0 if mistakes else 1.0, not mistakes, "; ".join(mistakes) or "fits the schema")


def _text(value: Any) -> Any:
    """A message's text, and that of the last one of a list; anything else as it is."""
    parts: Any = value
    last: Any = parts[-1] if isinstance(value, list) and parts else parts
    return str(last.text) if isinstance(last, BaseMessage) else parts


def read_json(text: str) -> Any:
    """The value of a JSON text that may stand in one ``` fence. Raises `ValueError` if it is none."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        _, _, text = text.removesuffix("```").partition("\n")
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")
