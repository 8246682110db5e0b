"""An evaluator that holds the time that a node took against a limit."""

from __future__ import annotations

from collections.abc import Iterable

from arbiter.errors import EvaluationError
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number, own_item
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult


class LatencyEvaluator(NodeEvaluator):
    """Passes when the node took at most `at_most` seconds.

    That is the item's `duration`: from the first check to the end of the body, of the last attempt. The score is
    1.0 within the limit, else `at_most / duration`. A draft, which a correction gate judges, has no duration yet:
    that is an evaluator error.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        at_most: float,
        *,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self.at_most = checked_number(f"evaluator {name!r}", "at_most", at_most, above=0)

    def evaluate(self, history: History) -> EvaluationResult:
        item = own_item(history)
        if item.status == "running":
            raise EvaluationError(
                f"node {item.node!r} is not done yet, so it has no duration",
                evaluator=self.name,
                node=item.node,
            )
        took = item.duration
        passed = took <= self.at_most
        return EvaluationResult(
            1.0 if passed else self.at_most / took,
            passed,
            f"took {took:.3g} s ({'✓' if passed else '✗'} at_most={self.at_most:g} s)",
            {"seconds": took},
        )
