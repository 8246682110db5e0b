"""Built-in advisor and correction gate."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any

from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter._values.parameters import Param, check_parameters
from arbiter.advice import Advisor, CorrectionGate, MaxAttempts, OnExhausted
from arbiter.errors import EvaluationError, ParameterError
from arbiter.evaluation import NodeEvaluator
from arbiter.history._items import History
from arbiter.verdicts import Correction, Several, as_evaluation, unjudged


class FeedbackAdvisor(Advisor):
    """Gives a node the evaluator's feedback on the newest output that the evaluator judged.

    It finds only committed results: those that a router read, and those of a durable evaluator.
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        evaluator: Annotated[str, Param("the evaluator whose feedback is given", min_length=1)],
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        self.evaluator = evaluator
        self.needs = (evaluator,)

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        for item in history.earlier():
            result = item.evaluation_results.get(self.evaluator)
            if result is not None:
                return (
                    None if result.passed or not result.feedback else f"{self.evaluator}: {result.feedback}"
                )
        return None


class EvaluatorGate(CorrectionGate):
    """Commits a draft if an evaluator passes it, and otherwise sends it back with the evaluator's feedback."""

    def __init__(
        self,
        name: str,
        evaluator: NodeEvaluator,
        max_attempts: MaxAttempts = 2,
        on_exhausted: OnExhausted = "commit",
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_attempts, on_exhausted)
        given: Any = evaluator
        if not isinstance(given, NodeEvaluator):
            raise ParameterError(
                f"gate {name!r}",
                "evaluator",
                f"expected an evaluator, got {given!r:.80}. Pass the object itself.",
            )
        self.evaluator = evaluator

    def review(
        self, history: History, draft: Mapping[str, Any], attempt: int
    ) -> Correction | Awaitable[Correction]:
        answer: Any = self.evaluator.evaluate(history)
        if inspect.isawaitable(answer):
            return self._later(answer)
        return self._correction(answer)

    async def _later(self, answer: Awaitable[object]) -> Correction:
        return self._correction(await answer)

    def _correction(self, answer: object) -> Correction:
        """Commit if every result passed; else retry with the feedback of those that did not."""
        name = self.evaluator.name
        read = as_evaluation(answer)
        if isinstance(read, Several) and read.faults:
            read = next(iter(read.faults.values()))
        if isinstance(read, str):
            raise EvaluationError(f"evaluator {name!r} {read}", evaluator=name)
        results = list(read.results.values()) if isinstance(read, Several) else [read]
        if any(result.passed is None for result in results):
            raise EvaluationError(unjudged(name), evaluator=name)
        failed = [result for result in results if not result.passed]
        return (
            Correction.retry("\n".join(each.feedback for each in failed)) if failed else Correction.commit()
        )
