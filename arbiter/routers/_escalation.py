"""A router that shows a node's output to a human."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import number_at
from arbiter.errors import ParameterError
from arbiter.history._items import History, HistoryItem
from arbiter.policy import Approvers, ExpiresAfter, PolicyRouter, Reason, Rejection, RouterOptions, question
from arbiter.verdicts import Verdict


class EscalationRouter(PolicyRouter):
    """Pauses the run and shows a human the node's output, before any part of it is committed.

    It does so if the evaluation by `evaluator` failed or did not pass; if the number at `key` of the output
    is under `below` (a missing key or a value that is not a number does not count as low); and always if
    neither is given. The human approves, edits or rejects the output; the node does not run again for that.
    `approvers` and `expires_after` are like those of `ApprovalChecker`. `on_reject` is the consequence of a
    rejection: "raise", "redirect:<node>" or "end".

    `max_redirects` is the number of questions in one run. Further outputs are committed unseen with
    `on_cap="continue"`, end the run with `"end"`, and are replaced by the best attempt with `"best_attempt"`
    (by `best_by`, else by `evaluator`).
    """

    blocking = False
    escalates = asks = True
    on_cap = "end"

    @check_parameters
    def __init__(
        self,
        name: str,
        *,
        evaluator: Annotated[
            str | None, Param("asks if this evaluation did not pass, and if it failed itself", min_length=1)
        ] = None,
        key: Annotated[
            str | None, Param("the key of the output whose number is compared with `below`")
        ] = None,
        below: Annotated[
            float | None,
            Param("asks if the number at `key` is under this; absent is not low", tighter="higher"),
        ] = None,
        reason: Reason = "a human has to see the output",
        approvers: Approvers = None,
        expires_after: ExpiresAfter = None,
        on_reject: Rejection = "raise",
        **options: Unpack[RouterOptions],
    ) -> None:
        if options.get("best_by") is None:
            options["best_by"] = evaluator
        super().__init__(name, **options)
        owner = f"router {name!r}"
        if (key is None) != (below is None):
            missing, given = ("key", "below") if key is None else ("below", "key")
            raise ParameterError(
                owner, missing, f"expected it together with {given}, got None. Give both or neither."
            )
        self.question = question(reason, approvers, expires_after)
        self.on_reject = on_reject
        self.evaluator = evaluator
        self.key = key
        self.below = below
        self.needs = () if evaluator is None else (evaluator,)

    def route_after(self, history: History, current_output: Any) -> Verdict | None:
        if self.evaluator is None and self.key is None:
            return self.question
        item = history.item
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
        how = "did not pass" if result.passed is False else "does not say whether it passed"
        return f"{self.evaluator}={result.score:.2f} {how}" + (
            f" ({result.feedback})" if result.feedback else ""
        )

    def _low(self, item: HistoryItem) -> str | None:
        if self.key is None or self.below is None:
            return None
        value = number_at(item.output_state, self.key)
        return (
            None if value is None or value >= self.below else f"{self.key}={value:g} is below {self.below:g}"
        )
