"""A checker that gives a step a lifetime, counted in supersteps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arbiter.checkers.steps import AfterStep, causal, whole
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny
from arbiter.verdicts import ALLOW, Verdict


class WithinSteps(AfterStep):
    """Its targets run only within `steps` supersteps after `required` last completed in this run.

    1 is the superstep that follows the one in which `required` ran. Supersteps inside a subgraph count as those
    around it do; subgraphs that run side by side take as long as the longest. `required` is an instruction or
    "node:<name>".
    """

    def __init__(
        self,
        name: str,
        required: Instruction | str,
        steps: int,
        *,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, required, "run", target_instructions, target_nodes, on_deny)
        self.steps = whole(self.owner, "steps", steps, 1)

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
        return _COMPLETED if causal(history).own.status == "completed" else None


_COMPLETED: Mapping[str, float] = {"completed": 1}
