"""An evaluator that asks a condition in CEL about the output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arbiter.conditions import Totals, condition_of, instructions_in
from arbiter.evaluation import NodeEvaluator
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult

_VARIABLES = frozenset({"output", "input", "history", "node", "instruction"})


class ConditionEvaluator(NodeEvaluator):
    """Passes, with the score 1.0, when the condition `pass_when` is true; else the score is 0.0.

    The condition is CEL over `output` and `input` of the node, `history` (`count`, `counts.<INSTRUCTION>`,
    `nodes.<node>`, `denied.<policy>`), `node` and `instruction` (a text such as "GENERATE", or null). One that fails,
    or needs a field that is missing, gives no score: it is an error in the record.
    """

    def __init__(
        self,
        name: str,
        pass_when: str,
        *,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable)
        self.pass_when = pass_when
        self._condition = condition_of(f"evaluator {name!r}", "pass_when", pass_when, _VARIABLES)
        self.blocking = None if self._condition.grows else False
        self._instructions = instructions_in([self._condition])

    def evaluate(self, history: History) -> EvaluationResult:
        own = history.entries[-1][-1]
        values: dict[str, Any] = {
            "output": own.output_state,
            "input": own.input_state,
            "history": Totals(history, self._instructions),
            "node": own.node,
            "instruction": own.instruction,
        }
        passed = self._condition.evaluate(values)
        return EvaluationResult(float(passed), passed, f"{'✓' if passed else '✗'} {self.pass_when}")
