"""A checker that gives a step a lifetime in supersteps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.checkers._steps import AfterStep, causal
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.policy import CheckerOptions
from arbiter.verdicts import ALLOW, Verdict


class WithinSteps(AfterStep):
    """Its targets run only within `steps` supersteps after `required` last completed in this run.

    1 is the superstep that follows the one in which `required` ran. Supersteps inside a subgraph count like
    those around it; subgraphs that run side by side take as long as the longest. `required` is an instruction
    or "node:<name>".
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        required: Annotated[
            Instruction | str,
            Param(
                "the step that must have completed in this run", expected="an instruction or 'node:<name>'"
            ),
        ],
        steps: Annotated[
            int,
            Param(
                "how many supersteps later the targets may still run; 1 is the one that follows",
                ge=1,
                tighter="lower",
            ),
        ],
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, required, "run", **options)
        self.steps = steps

    def check_before(self, history: History) -> Verdict:
        view = causal(history)
        if not self.tallied(view, "completed"):
            return Verdict.deny(f"{self.required} has not completed in this run")
        since = view.steps_since(self.name, "completed")
        if since is not None and since <= self.steps:
            return ALLOW
        return Verdict.deny(
            f"{self.required} last completed {since} supersteps ago; at most {self.steps} are allowed"
        )

    def observes(self, node: str, instruction: Instruction | None) -> bool:
        return self.required.matches(node, instruction)

    def observe(self, history: History) -> Mapping[str, float] | None:
        return _COMPLETED if causal(history).item.status == "completed" else None


_COMPLETED: Mapping[str, float] = {"completed": 1}
