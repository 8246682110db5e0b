"""A checker that lets some nodes run a limited number of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arbiter.checkers.steps import Per, TemporalRule, how_often, whole
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny
from arbiter.verdicts import ALLOW, Verdict


class AtMost(TemporalRule):
    """Its targets, all together, run at most `times` times in a run, or with `per="thread"` in the thread.

    Runs that completed or failed count, from when the rule was registered; those that were denied do not. Siblings
    of one superstep see the same past, so a fan-out may go past the limit: for a limit that holds there too, use
    a budget.
    """

    spends = True

    def __init__(
        self,
        name: str,
        times: int,
        *,
        per: Per = "run",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, per, target_instructions, target_nodes, on_deny)
        self.times = whole(self.owner, "times", times, 0)

    def check_before(self, history: History) -> Verdict:
        ran = self.tallied(history, "runs")
        if ran < self.times:
            return ALLOW
        return Verdict.deny(f"ran {how_often(int(ran))}{self.span}; at most {self.times} allowed")

    def observe(self, history: History) -> Mapping[str, float] | None:
        return _RAN if history.entries[-1][-1].status in ("completed", "failed") else None


_RAN: Mapping[str, float] = {"runs": 1}
