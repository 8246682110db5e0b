"""An evaluator that holds the length of a part of the output against bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal, get_args

from arbiter.errors import EvaluationError, ParameterError
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number, output_at, own_item, text_at
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult

Unit = Literal["characters", "words", "items"]


class LengthEvaluator(NodeEvaluator):
    """Passes when what the output holds at `key` is neither shorter than `at_least` nor longer than `at_most`.

    Counts characters (Unicode code points) or words (what blanks separate) of a text or of messages, or the items of
    a list, set or mapping. The score is 1.0 within the bounds; outside, the length as a part of `at_least`, or
    `at_most` as a part of the length. A key that is missing or None has no length: that is an evaluator error.
    """

    def __init__(
        self,
        name: str,
        key: str,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        unit: Unit = "characters",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        owner = f"evaluator {name!r}"
        if at_least is None and at_most is None:
            raise ParameterError(
                owner, "at_least", "expected a whole number here or at at_most, got neither."
            )
        for parameter, bound in (("at_least", at_least), ("at_most", at_most)):
            if bound is not None:
                checked_number(owner, parameter, bound, low=0, whole=True)
        if at_least is not None and at_most is not None and at_least > at_most:
            raise ParameterError(
                owner, "at_least", f"expected at most {at_most}, which is at_most, got {at_least}."
            )
        if unit not in get_args(Unit):
            raise ParameterError(owner, "unit", f"expected 'characters', 'words' or 'items', got {unit!r}.")
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
            text = text_at(history, self.key, self.name)
            return len(text) if self.unit == "characters" else len(text.split())
        value = parts = output_at(history, self.key, self.name)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | Set | Mapping):
            item = own_item(history)
            raise EvaluationError(
                f"{self.key!r} in the output of node {item.node!r} is of type {type(value).__name__}; "
                "expected a list, set or mapping",
                evaluator=self.name,
                node=item.node,
            )
        return len(parts)
