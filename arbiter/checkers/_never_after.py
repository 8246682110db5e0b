"""A checker that denies some nodes for good once a step is done."""

from __future__ import annotations

from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.checkers._steps import Per, TemporalRule, causal, find_step
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.policy import CheckerOptions
from arbiter.verdicts import ALLOW, Verdict


class NeverAfter(TemporalRule):
    """Its targets never run once the step `after` has completed: in the thread, or with `per="run"` in this
    run.

    `after` is an instruction or "node:<name>". A denied or failed run of it has not completed.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        after: Annotated[
            Instruction | str,
            Param("the step after which the targets are denied", expected="an instruction or 'node:<name>'"),
        ],
        *,
        per: Annotated[
            Per, Param("whether a completion counts in the whole thread or only in its run")
        ] = "thread",
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, per, **options)
        self.after = find_step(self.owner, "after", after)
        self.awaited_steps = ((self.after.name,),)

    def check_before(self, history: History) -> Verdict:
        view = causal(history)
        done = self.after.done_at(view)
        if done is None or (self.per == "run" and done <= view.run_from):
            return ALLOW
        return Verdict.deny(f"{self.after} has completed{self.span}")
