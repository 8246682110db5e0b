"""A checker that limits how often some nodes run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.checkers._steps import Per, TemporalRule, how_often
from arbiter.history._items import History
from arbiter.policy import CheckerOptions
from arbiter.verdicts import ALLOW, Verdict


class AtMost(TemporalRule):
    """Its targets, all together, run at most `times` times in a run, or with `per="thread"` in the thread.

    Runs that completed count, and those that failed and were sent elsewhere by a router, from the registration
    of the rule on; denied runs do not. Siblings of one superstep see the same past, so a fan-out may exceed the
    limit. For a limit that holds there too, use a budget.
    """

    counts_consumption = True

    @check_parameters
    def __init__(
        self,
        name: str,
        times: Annotated[int, Param("how often the targets may run, all together", ge=0, tighter="lower")],
        *,
        per: Annotated[Per, Param("whether runs are counted over the run or the whole thread")] = "run",
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, per, **options)
        self.times = times

    def check_before(self, history: History) -> Verdict:
        ran = self.tallied(history, "runs")
        if ran < self.times:
            return ALLOW
        return Verdict.deny(
            f"the rule's nodes, all together, ran {how_often(int(ran))}{self.span}; at most {self.times} allowed"
        )

    def observe(self, history: History) -> Mapping[str, float] | None:
        return _RAN if history.item.status in ("completed", "failed") else None


_RAN: Mapping[str, float] = {"runs": 1}
