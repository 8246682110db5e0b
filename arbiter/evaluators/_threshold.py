"""An evaluator that compares a number in the output with a threshold."""

from __future__ import annotations

from typing import Annotated

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import number_at
from arbiter.evaluation import Deadline, Durable, NodeEvaluator
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult


class ThresholdEvaluator(NodeEvaluator):
    """Passes if the number at `key` of the node's output is at least `threshold`.

    The score is that number. If the key is missing or its value is not a number, the score is 0.0 and the
    evaluation fails.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        key: Annotated[str, Param("where in the output the number is")],
        threshold: Annotated[float, Param("passes from here on", tighter="higher")],
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
        durable: Durable = False,
        deadline: Deadline = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self.key = key
        self.threshold = threshold

    def evaluate(self, history: History) -> EvaluationResult:
        output = history.item.output_state
        value = number_at(output, self.key)
        if value is None:
            found = f"holds {type(output[self.key]).__name__}" if self.key in output else "is missing"
            return EvaluationResult(0.0, False, f"{self.key} {found} (✗ threshold={self.threshold})")
        passed = value >= self.threshold
        mark = "✓" if passed else "✗"
        return EvaluationResult(value, passed, f"{self.key}={value:.2f} ({mark} threshold={self.threshold})")
