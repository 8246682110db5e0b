"""A router that has a human look at what a node returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from arbiter.errors import ParameterError
from arbiter.history import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.policy import OnCap, OnReject, PolicyRouter, question, stops
from arbiter.routers._cap import set_cap
from arbiter.states import is_number, number_at
from arbiter.verdicts import Verdict


class EscalationRouter(PolicyRouter):
    """Pauses the run and shows a human the node's output, before anything of it is committed.

    It does so when the evaluation by `evaluator` did not pass, or failed; when the number at `key` of the output is
    under `below` (a key that is absent or no number is not low); and always when neither is given. The human
    approves, edits or rejects the output; the node does not run again for that. `approvers` and `expires_after` are
    as those of `ApprovalChecker`. `on_reject` says what a rejection does: "raise", "redirect:<node>" or "end".

    `max_redirects` is how often it asks in one run. What it would ask about after that is taken unseen with
    `on_cap="continue"`, ends the run with `"end"`, and gives way to the best attempt with `"best_attempt"`
    (by `best_by`, else by `evaluator`).
    """

    blocking = False
    escalates = True

    def __init__(
        self,
        name: str,
        *,
        evaluator: str | None = None,
        key: str | None = None,
        below: float | None = None,
        reason: str = "a human has to see the output",
        approvers: Sequence[str] | None = None,
        expires_after: float | None = None,
        on_reject: OnReject = "raise",
        on_cap: OnCap = "end",
        best_by: str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        max_redirects: int = 3,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, max_redirects)
        owner = f"router {name!r}"
        set_cap(self, on_cap, evaluator if best_by is None else best_by)
        if (key is None) != (below is None):
            missing, given = ("key", "below") if key is None else ("below", "key")
            raise ParameterError(
                owner, missing, f"expected it together with {given}, got None. Give both or neither."
            )
        if below is not None and not is_number(below):
            raise ParameterError(owner, "below", f"expected a finite number, got {below!r}. Write 0.5.")
        if not stops(on_reject):
            raise ParameterError(
                owner,
                "on_reject",
                f"expected 'raise', 'redirect:<node>' or 'end', got {on_reject!r}. Write 'raise'.",
            )
        self.question = question(owner, reason, approvers, expires_after)
        self.on_reject = on_reject
        self.evaluator = evaluator
        self.key = key
        self.below = below
        self.needs = () if evaluator is None else (evaluator,)

    def route_after(self, history: History, current_output: Any) -> Verdict | None:
        if self.evaluator is None and self.key is None:
            return self.question
        item = history.entries[-1][-1]
        why = self._judged(item) or self._low(item)
        return None if why is None else replace(self.question, reason=f"{self.question.reason}: {why}")

    def _judged(self, item: HistoryItem) -> str | None:
        if self.evaluator is None:
            return None
        result = item.evaluation_results.get(self.evaluator)
        if result is None:
            failure = item.evaluation_error(self.evaluator)
            return None if failure is None else f"{self.evaluator} failed ({failure})"
        if result.passed:
            return None
        return f"{self.evaluator}={result.score:.2f} did not pass" + (
            f" ({result.feedback})" if result.feedback else ""
        )

    def _low(self, item: HistoryItem) -> str | None:
        if self.key is None or self.below is None:
            return None
        value = number_at(item.output_state, self.key)
        return (
            None if value is None or value >= self.below else f"{self.key}={value:g} is below {self.below:g}"
        )
