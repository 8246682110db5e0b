"""An evaluator that compares the length of a part of the output with bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Literal, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ParameterError
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.evaluators._outputs import failure, output_at, texts_at
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult

Unit = Literal["characters", "words", "items"]


class LengthEvaluator(NodeEvaluator):
    """Passes if the output at `key` is neither shorter than `at_least` nor longer than `at_most`.

    Counts characters (Unicode code points) or words (separated by blanks) of a text or of messages, or the
    items of a list, set or mapping. The score is 1.0 within the bounds; below, length / `at_least`; above,
    `at_most` / length. If the key is missing or None, there is no length: that is an evaluator error.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        key: Annotated[str, Param("where in the output the text or list is")],
        *,
        at_least: Annotated[
            int | None,
            Param("the shortest that passes; one of the two bounds is needed", ge=0, tighter="higher"),
        ] = None,
        at_most: Annotated[int | None, Param("the longest that passes", ge=0, tighter="lower")] = None,
        unit: Annotated[
            Unit,
            Param(
                "what is counted: Unicode code points, what blanks separate, or the items of a list, set or mapping"
            ),
        ] = "characters",
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"evaluator {name!r}"
        if at_least is None and at_most is None:
            raise ParameterError(
                owner, "at_least", "expected a whole number for at_least or at_most, got neither."
            )
        if at_least is not None and at_most is not None and at_least > at_most:
            raise ParameterError(
                owner, "at_least", f"expected at most {at_most}, which is at_most, got {at_least}."
            )
        self.key = key
        self.at_least = at_least
        self.at_most = at_most
        self.unit = unit

    def evaluate(self, history: History) -> EvaluationResult:
        length = self._length(history)
        said = f"{self.key} has {length} {self.unit}"
        metadata = {"length": length, "unit": self.unit}
        if self.at_least is not None and length < self.at_least:
            score = length / self.at_least
            return EvaluationResult(score, False, f"{said} (✗ at_least={self.at_least})", metadata)
        if self.at_most is not None and length > self.at_most:
            score = self.at_most / length
            return EvaluationResult(score, False, f"{said} (✗ at_most={self.at_most})", metadata)
        return EvaluationResult(1.0, True, f"{said} (✓)", metadata)

    def _length(self, history: History) -> int:
        if self.unit != "items":
            texts = texts_at(history, self.key, self.name)
            return sum(len(text) if self.unit == "characters" else len(text.split()) for text in texts)
        value = parts = output_at(history, self.key, self.name)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | Set | Mapping):
            item = history.item
            where = f"{self.key!r} in the output of node {item.node!r}"
            problem = f"{where} is of type {type(value).__name__}; expected a list, set or mapping"
            raise failure(self.name, item, problem)
        return len(parts)
