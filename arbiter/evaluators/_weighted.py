"""An evaluator that combines several evaluators' scores into one reward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ParameterError
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.evaluators._outputs import checked_number, failure
from arbiter.history._items import History
from arbiter.verdicts import EvaluationResult

Missing = Literal["error", "skip"]


class WeightedEvaluator(NodeEvaluator):
    """The weighted mean of other evaluators' scores for the same node run, 0.0 to 1.0. Waits for them.

    `weights` maps names of evaluators to numbers above 0, which need not add up to 1. Passes if the mean is
    at least `at_least`. If a part gave no result, the whole is an evaluator error; with `missing="skip"` it
    is the mean of the other parts, if there are any. A score outside of 0.0 to 1.0 is always an error.
    """

    # It is quick itself, but waits for others.
    blocking = True

    @check_parameters
    def __init__(
        self,
        name: str,
        weights: Annotated[
            Mapping[str, float],
            Param(
                "the evaluators' weights, numbers above 0; they need not add up to 1",
                min_length=1,
                expected="names of evaluators with their weights",
            ),
        ],
        *,
        at_least: Annotated[float, Param("passes from here on", ge=0, le=1, tighter="higher")] = 0.5,
        missing: Annotated[
            Missing,
            Param("a part that gave no result is an error, or is left out of the mean"),
        ] = "error",
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"evaluator {name!r}"
        for part, weight in weights.items():
            checked_number(owner, f"weights[{part!r}]", weight, above=0)
        self.weights = dict(weights)
        self.needs = tuple(weights)
        if name in self.needs:
            raise ParameterError(owner, f"weights[{name!r}]", "expected other evaluators, got itself.")
        self.at_least = at_least
        self.missing: Missing = missing

    def evaluate(self, history: History) -> EvaluationResult:
        scores = self._scores(history)
        total = math.fsum(self.weights[part] for part in scores)
        reward = math.fsum(self.weights[part] * score for part, score in scores.items()) / total
        # The mean of parts that all score 0.8 must be 0.8, not 0.7999999999999999, which would not pass 0.8.
        reward = min(1.0, round(reward, 12))
        passed = reward >= self.at_least
        parts = ", ".join(f"{part}={score:.2f}×{self.weights[part]:g}" for part, score in scores.items())
        return EvaluationResult(
            reward,
            passed,
            f"{reward:.2f} ({'✓' if passed else '✗'} at_least={self.at_least:g}) of {parts}",
            {"scores": scores, "skipped": [part for part in self.weights if part not in scores]},
        )

    def _scores(self, history: History) -> dict[str, float]:
        item = history.item
        scores: dict[str, float] = {}
        for part in self.weights:
            result = item.evaluation_results.get(part)
            if result is None:
                if self.missing == "error":
                    raise failure(self.name, item, f"{part!r} gave no result, or does not judge this node")
                continue
            score = float(result.score)
            if not 0.0 <= score <= 1.0:
                raise failure(
                    self.name, item, f"{part!r} scored {score:g}; the score of a part must be from 0.0 to 1.0"
                )
            scores[part] = score
        if not scores:
            raise failure(self.name, item, f"none of {', '.join(map(repr, self.weights))} gave a result")
        return scores
