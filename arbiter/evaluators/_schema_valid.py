"""An evaluator of the shape of an output, by JSON Schema or pydantic class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Unpack

from langchain_core.messages import BaseMessage

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.shapes import A_SCHEMA, shape_of, whole
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.history._items import History
from arbiter.models import no_constant
from arbiter.verdicts import EvaluationResult


class SchemaEvaluator(NodeEvaluator):
    """Scores 1.0 and passes if the output, or its value at `key`, fits `schema`; else 0.0, with the mistakes
    as feedback.

    `schema` is a JSON Schema (a mapping), a class that pydantic validates, or the dotted path of such a
    class. A text at `key` is read as JSON, in a ``` fence or not, unless the schema itself describes a text, by
    its type or by a list of texts.
    A message counts as its text, a list of messages as the text of the last one.
    """

    DOTTED_PARAMETERS: ClassVar[tuple[str, ...]] = ("schema",)
    """As `SchemaChecker.DOTTED_PARAMETERS`."""

    @check_parameters
    def __init__(
        self,
        name: str,
        schema: Annotated[
            Mapping[str, Any] | str | type, Param("what the output must fit", expected=A_SCHEMA)
        ],
        *,
        key: Annotated[
            str | None, Param("the key of the output that is judged; the whole output by default")
        ] = None,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self.key = key
        self._shape = shape_of(schema, f"evaluator {name!r}", "schema")

    def evaluate(self, history: History) -> EvaluationResult:
        output = history.item.output_state
        if self.key is None:
            return _result(self._shape.mistakes(whole(output), "output"))
        if self.key not in output:
            return _result([f"output has no {self.key!r}"])
        value: Any = _text(output[self.key])
        if isinstance(value, str) and not self._shape.of_text:
            if self._shape.takes_texts and not self._shape.mistakes(value, self.key):
                return _result([])
            try:
                value = _json_of(value)
            except (ValueError, RecursionError) as exc:
                if not self._shape.takes_texts:
                    return _result([f"{self.key} is not JSON: {exc}"])
        return _result(self._shape.mistakes(value, self.key))


def _result(mistakes: list[str]) -> EvaluationResult:
    return EvaluationResult(0.0 if mistakes else 1.0, not mistakes, "; ".join(mistakes) or "fits the schema")


def _text(value: Any) -> Any:
    """A message's text, or that of the last message of a list; any other value unchanged."""
    parts: Any = value
    last: Any = parts[-1] if isinstance(value, list) and parts else parts
    return str(last.text) if isinstance(last, BaseMessage) else parts


def _json_of(text: str) -> Any:
    """The value of a JSON text, which may stand in one ``` fence. Raises `ValueError` if it is not JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        _, _, text = text.removesuffix("```").partition("\n")
    return json.loads(text, parse_constant=no_constant)
