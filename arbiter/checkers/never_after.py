"""A checker that closes some nodes for good once a step is done."""

from __future__ import annotations

from collections.abc import Iterable

from arbiter.checkers.steps import Per, TemporalRule, causal, find_step
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny
from arbiter.verdicts import ALLOW, Verdict


class NeverAfter(TemporalRule):
    """Its targets never run once the step `after` has completed: in the thread, or with `per="run"` in this run.

    `after` is an instruction or "node:<name>". A run of it that was denied or failed has not completed.
    """

    def __init__(
        self,
        name: str,
        after: Instruction | str,
        *,
        per: Per = "thread",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, per, target_instructions, target_nodes, on_deny)
        self.after = find_step(self.owner, "after", after)

    def check_before(self, history: History) -> Verdict:
        view = causal(history)
        done = self.after.done_at(view)
        if done is None or (self.per == "run" and done <= view.run_from):
            return ALLOW
        return Verdict.deny(f"{self.after} has completed{self.span}")
