"""A checker that asks a human before a node runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny, PolicyChecker, question
from arbiter.verdicts import Verdict


class ApprovalChecker(PolicyChecker):
    """Asks a human before every run of the nodes that it applies to.

    With `approvers` an approval or an edit counts only if it says who gave it, `{"type": "approve", "by": "alice"}`,
    and that is one of them; otherwise it is a rejection. Who may speak in that name is for the application to know
    that resumes the run. With `expires_after` (seconds) an approval that comes later than that after the question was
    first asked does not count, and the question is asked anew. A rejection counts whenever it comes, whoever
    gives it.

    An approval is for one run of the node: after one that failed, the question is asked anew. With `retries` one
    approval covers so many further runs.
    """

    blocking = False

    def __init__(
        self,
        name: str,
        *,
        reason: str = "a human has to approve it",
        approvers: Sequence[str] | None = None,
        expires_after: float | None = None,
        retries: int = 0,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        self.question = question(f"checker {name!r}", reason, approvers, expires_after, retries)

    def check_before(self, history: History) -> Verdict:
        return self.question
