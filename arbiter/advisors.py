"""Built-in advisor and correction gate."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from arbiter.advice import Advisor, CorrectionGate
from arbiter.evaluation import NodeEvaluator
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.verdicts import Correction, EvaluationResult


class FeedbackAdvisor(Advisor):
    """Tells a node what an evaluator found wrong with the newest output that it judged.

    Finds the results that were committed: those that a router read, or of a durable evaluator.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        evaluator: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        self.evaluator = evaluator

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        for superstep in reversed(history.entries[:-1]):
            for item in reversed(superstep):
                result = item.evaluation_results.get(self.evaluator)
                if result is not None:
                    return None if result.passed else f"{self.evaluator}: {result.feedback}"
        return None


class EvaluatorGate(CorrectionGate):
    """Lets a draft pass when an evaluator passes it; else sends it back with the evaluator's feedback."""

    def __init__(
        self,
        name: str,
        evaluator: NodeEvaluator,
        max_attempts: int = 2,
        on_exhausted: str = "commit",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_attempts, on_exhausted)
        self.evaluator = evaluator

    def review(
        self, history: History, draft: Mapping[str, Any], attempt: int
    ) -> Correction | Awaitable[Correction]:
        answer = self.evaluator.evaluate(history)
        if inspect.isawaitable(answer):
            return _later(answer)
        return _correction(answer)


async def _later(answer: Awaitable[EvaluationResult]) -> Correction:
    return _correction(await answer)


def _correction(result: EvaluationResult) -> Correction:
    return Correction.commit() if result.passed else Correction.retry(result.feedback)
