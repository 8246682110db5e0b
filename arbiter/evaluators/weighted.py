"""An evaluator that makes one reward of several evaluators' scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from arbiter.errors import EvaluationError, ParameterError
from arbiter.evaluation import NodeEvaluator
from arbiter.evaluators.outputs import checked_number, own_item
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import EvaluationResult

Missing = Literal["error", "skip"]


class WeightedEvaluator(NodeEvaluator):
    """The weighted mean of other evaluators' scores for the same node run, 0.0 to 1.0. Waits for them.

    `weights` maps names of evaluators to numbers above 0, which need not add up to 1. Passes when the mean is at
    least `at_least`. A part that gave no result makes the whole an evaluator error; with `missing="skip"` the
    mean is that of the other parts, if there are any. A score outside 0.0 to 1.0 is an error always.
    """

    # However quick it is itself, it waits for others.
    blocking = True

    def __init__(
        self,
        name: str,
        weights: Mapping[str, float],
        *,
        at_least: float = 0.5,
        missing: Missing = "error",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        owner = f"evaluator {name!r}"
        given: Any = weights
        if not isinstance(given, Mapping) or not given:
            raise ParameterError(
                owner, "weights", f"expected names of evaluators with their weights, got {given!r:.80}."
            )
        for part, weight in weights.items():
            checked_number(owner, f"weights[{part!r}]", weight, above=0)
        if name in weights:
            raise ParameterError(owner, f"weights[{name!r}]", "expected other evaluators, got itself.")
        if missing not in ("error", "skip"):
            raise ParameterError(owner, "missing", f"expected 'error' or 'skip', got {missing!r}.")
        self.weights = dict(weights)
        self.needs = tuple(weights)
        self.at_least = checked_number(owner, "at_least", at_least, low=0, high=1)
        self.missing: Missing = missing

    def evaluate(self, history: History) -> EvaluationResult:
        scores = self._scores(history)
        total = math.fsum(self.weights[part] for part in scores)
        reward = math.fsum(self.weights[part] * score for part, score in scores.items()) / total
        # Parts that all score 0.8 make 0.8, and not 0.7999999999999999, which would not pass 0.8.
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
        item = own_item(history)
        scores: dict[str, float] = {}
        for part in self.weights:
            result = item.evaluation_results.get(part)
            if result is None:
                if self.missing == "error":
                    raise self._error(item.node, f"{part!r} gave no result, or does not judge this node")
                continue
            score = float(result.score)
            if not 0.0 <= score <= 1.0:
                raise self._error(
                    item.node, f"{part!r} scored {score:g}; a part has to score from 0.0 to 1.0"
                )
            scores[part] = score
        if not scores:
            raise self._error(item.node, f"none of {', '.join(map(repr, self.weights))} gave a result")
        return scores

    def _error(self, node: str, problem: str) -> EvaluationError:
        return EvaluationError(problem, evaluator=self.name, node=node)
