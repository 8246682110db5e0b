"""An evaluator that holds a number of the output against a threshold."""

from __future__ import annotations

from collections.abc import Iterable

from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.states import number_at
from arbiter.verdicts import EvaluationResult


class ThresholdEvaluator(NodeEvaluator):
    """Passes when the number at `key` of the node's output is at least `threshold`.

    The score is that number as it is. A key that is missing or holds no number scores 0.0 and fails.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        key: str,
        threshold: float,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable)
        self.key = key
        self.threshold = checked_number(f"evaluator {name!r}", "threshold", threshold)

    def evaluate(self, history: History) -> EvaluationResult:
        output = history.entries[-1][-1].output_state
        value = number_at(output, self.key)
        if value is None:
            found = f"holds {type(output[self.key]).__name__}" if self.key in output else "is missing"
            return EvaluationResult(0.0, False, f"{self.key} {found} (✗ threshold={self.threshold})")
        passed = value >= self.threshold
        mark = "✓" if passed else "✗"
        return EvaluationResult(value, passed, f"{self.key}={value:.2f} ({mark} threshold={self.threshold})")
