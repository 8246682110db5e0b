"""An evaluator that evaluates a CEL condition on the output."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from arbiter._conditions import Totals, condition_of, instructions_in
from arbiter._values.parameters import Param, check_parameters
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult

_VARIABLES = frozenset({"output", "input", "history", "node", "instruction"})


class ConditionEvaluator(NodeEvaluator):
    """Passes, with the score 1.0, if the condition `pass_when` is true; else the score is 0.0.

    The condition is CEL over `output` and `input` of the node, `history` (`count`, `counts.<INSTRUCTION>`,
    `nodes.<node>`, `denied.<policy>`), `node` and `instruction` (a text such as "GENERATE", or null). If it
    fails or needs a missing field, there is no score: that is an error in the record.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        pass_when: Annotated[str, Param("a condition in CEL: true passes")],
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self.pass_when = pass_when
        self._condition = condition_of(f"evaluator {name!r}", "pass_when", pass_when, _VARIABLES)
        self.blocking = None if self._condition.grows else False
        self._instructions = instructions_in([self._condition])

    def evaluate(self, history: History) -> EvaluationResult:
        own = history.item
        values: dict[str, Any] = {
            "output": own.output_state,
            "input": own.input_state,
            "history": Totals(history, self._instructions),
            "node": own.node,
            "instruction": own.instruction,
        }
        passed = self._condition.evaluate(values)
        return EvaluationResult(float(passed), passed, f"{'✓' if passed else '✗'} {self.pass_when}")
