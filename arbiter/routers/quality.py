"""Routers that go elsewhere when the quality is low."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from arbiter.errors import ParameterError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnCap, PolicyRouter
from arbiter.routers._cap import set_cap
from arbiter.states import is_number, number_at


class MetricThresholdPolicyRouter(PolicyRouter):
    """Goes to `target` when the number at `key` of the node's output is below `threshold`.

    A key that is absent or no number is absent, and not low: the normal edges are taken. After `max_redirects` of
    them in a run, `on_cap` decides: `"continue"` takes the normal edges, `"end"` ends the run, `"best_attempt"`
    takes the normal edges with the best attempt, by the evaluator `best_by`.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        key: str,
        threshold: float,
        target: str,
        *,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_redirects: int = 3,
        on_cap: OnCap = "continue",
        best_by: str | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_redirects)
        set_cap(self, on_cap, best_by)
        if not is_number(threshold):
            raise ParameterError(
                f"router {name!r}", "threshold", f"expected a finite number, got {threshold!r}. Write 0.5."
            )
        self.key = key
        self.threshold = threshold
        self.target = target
        self.targets = (target,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        value = number_at(history.entries[-1][-1].output_state, self.key)
        return self.target if value is not None and value < self.threshold else None


class EvaluationRouter(PolicyRouter):
    """Goes to `target` when that evaluator judged the node's output and it did not pass.

    An evaluation that failed is no judgement: the normal edges are taken. `max_redirects` and `on_cap` are as those
    of `MetricThresholdPolicyRouter`; `best_by` is the evaluator itself unless another is named.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        evaluator: str,
        target: str,
        *,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_redirects: int = 3,
        on_cap: OnCap = "continue",
        best_by: str | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_redirects)
        set_cap(self, on_cap, evaluator if best_by is None else best_by)
        self.evaluator = evaluator
        self.target = target
        self.targets = (target,)
        self.needs = (evaluator,)

    def route_after(self, history: History, current_output: Any) -> str | None:
        result = history.entries[-1][-1].evaluation_results.get(self.evaluator)
        return self.target if result is not None and not result.passed else None
