"""Routers for outputs of low quality."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import number_at
from arbiter.errors import EvaluationError
from arbiter.history._items import History
from arbiter.policy import PolicyRouter, RouterOptions
from arbiter.verdicts import unjudged


class MetricThresholdPolicyRouter(PolicyRouter):
    """Goes to `target` if the number at `key` of the node's output is below `threshold`.

    A missing key, or a value that is not a number, does not count as low: the normal edges are taken. After
    `max_redirects` redirects in a run, `on_cap` decides: `"continue"` takes the normal edges, `"end"` ends
    the run, `"best_attempt"` takes the normal edges with the best attempt, by the evaluator `best_by`.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        key: Annotated[str, Param("the key of the output that holds the number")],
        threshold: Annotated[
            float, Param("the router redirects if the number is below this", tighter="higher")
        ],
        target: Annotated[str, Param("the node to go to")],
        **options: Unpack[RouterOptions],
    ) -> None:
        super().__init__(name, **options)
        self.key = key
        self.threshold = threshold
        self.target = target
        self.targets = (target,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        value = number_at(history.item.output_state, self.key)
        return self.target if value is not None and value < self.threshold else None


class EvaluationRouter(PolicyRouter):
    """Goes to `target` if that evaluator judged the node's output and it did not pass.

    If the evaluation failed, the normal edges are taken. The same holds for a score without `passed`, which
    `item.errors` reports. `max_redirects` and `on_cap` are like those of `MetricThresholdPolicyRouter`;
    `best_by` is the evaluator itself unless another is named.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        evaluator: Annotated[str, Param("the evaluator; it has to be registered", min_length=1)],
        target: Annotated[str, Param("the node to go to")],
        **options: Unpack[RouterOptions],
    ) -> None:
        if options.get("best_by") is None:
            options["best_by"] = evaluator
        super().__init__(name, **options)
        self.evaluator = evaluator
        self.target = target
        self.targets = (target,)
        self.needs = (evaluator,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        result = history.item.evaluation_results.get(self.evaluator)
        if result is not None and result.passed is None:
            raise EvaluationError(unjudged(self.evaluator), evaluator=self.evaluator)
        return self.target if result is not None and not result.passed else None
