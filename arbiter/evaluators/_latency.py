"""An evaluator that compares a node's duration with a limit."""

from __future__ import annotations

from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.evaluators._outputs import failure
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult


class LatencyEvaluator(NodeEvaluator):
    """Passes if the node took at most `at_most` seconds.

    This is the item's `duration`: from the first check to the end of the body, of the last attempt. The score
    is 1.0 within the limit, else `at_most / duration`. A draft in a correction gate has no duration yet: that
    is an evaluator error.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        at_most: Annotated[float, Param("the most seconds", gt=0, tighter="lower")],
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self.at_most = at_most

    def evaluate(self, history: History) -> EvaluationResult:
        item = history.item
        if item.status == "running":
            raise failure(self.name, item, f"node {item.node!r} is not done yet, so it has no duration")
        took = item.duration
        passed = took <= self.at_most
        return EvaluationResult(
            1.0 if passed else self.at_most / took,
            passed,
            f"took {took:.3g} s ({'✓' if passed else '✗'} at_most={self.at_most:g} s)",
            {"seconds": took},
        )
