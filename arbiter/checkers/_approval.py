"""A checker that asks a human before a node runs."""

from __future__ import annotations

from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.history._items import History
from arbiter.policy import Approvers, CheckerOptions, ExpiresAfter, PolicyChecker, Reason, question
from arbiter.verdicts import Verdict


class ApprovalChecker(PolicyChecker):
    """Asks a human before every run of the nodes to which it applies.

    With `approvers` an approval or an edit counts only if it names one of them, `{"type": "approve", "by":
    "alice"}`; otherwise it is a rejection. The application that resumes the run must check that this name is
    true. With `expires_after` (seconds), an approval that comes later than that after the question was first
    asked does not count, and the question is asked again. A rejection always counts, at any time and from any
    human.

    An approval is for one run of the node: if that run fails, the question is asked again. With `retries` one
    approval covers so many further runs.
    """

    blocking = False
    asks = True

    @check_parameters
    def __init__(
        self,
        name: str,
        *,
        reason: Reason = "a human has to approve it",
        approvers: Approvers = None,
        expires_after: ExpiresAfter = None,
        retries: Annotated[
            int,
            Param("how many further runs of the node an approval covers if it fails", ge=0, tighter="lower"),
        ] = 0,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.question = question(reason, approvers, expires_after, retries)

    def check_before(self, history: History) -> Verdict:
        return self.question
