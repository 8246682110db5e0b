"""The step that a temporal rule names, and the common parts of such rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Unpack

from arbiter.errors import ParameterError, UnknownInstructionError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import CheckerOptions, PolicyChecker

Per = Literal["run", "thread"]


@dataclass(frozen=True, slots=True)
class Step:
    """All nodes with an instruction, or with a name, in the graph and its subgraphs."""

    instruction: Instruction | None = None
    node: str | None = None

    def matches(self, node: str, instruction: Instruction | None) -> bool:
        return node == self.node if self.node is not None else instruction is self.instruction

    def done_at(self, history: CausalHistory) -> int | None:
        """The number of its last completed run, over all committed node runs; None if there is none."""
        if self.node is not None:
            return history.done_at(self.node)
        return None if self.instruction is None else history.last_at(self.instruction)

    @property
    def name(self) -> Instruction | str:
        """The instruction, or the name of the node."""
        return self.instruction or self.node or ""

    def __str__(self) -> str:
        return f"node {self.node!r}" if self.node is not None else str(self.instruction)


def find_step(owner: str, parameter: str, given: Instruction | str) -> Step:
    """The step for "VERIFY", "NormativeCore.VERIFY", "node:check" or an instruction. Raises `ParameterError`."""
    if isinstance(given, str) and given.startswith("node:"):
        if not (node := given.removeprefix("node:").strip()):
            raise ParameterError(owner, parameter, f"expected 'node:<name>', got {given!r}. Name the node.")
        return Step(node=node)
    try:
        return Step(instruction=find_instruction(given))
    except UnknownInstructionError as exc:
        raise ParameterError(owner, parameter, f"{exc} A node is written 'node:<name>'.") from None


class TemporalRule(PolicyChecker):
    """A checker that decides by the committed past of a thread, or of its current run, in constant time."""

    blocking = False

    def __init__(self, name: str, per: Per, **options: Unpack[CheckerOptions]) -> None:
        super().__init__(name, **options)
        self.owner = f"checker {name!r}"
        self.per = per
        self.span = " in this run" if per == "run" else ""

    def tallied(self, history: History, key: str) -> float:
        """The sum that this rule has counted under `key`."""
        tally = history.tally(self.name, key)
        return tally.in_run if self.per == "run" else tally.amount


class AfterStep(TemporalRule):
    """A rule that makes its targets wait for a step.

    Without targets it applies to all nodes but those of the step, which otherwise could never begin.
    """

    def __init__(
        self,
        name: str,
        required: Instruction | str,
        per: Per,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, per, **options)
        self.required = find_step(self.owner, "required", required)
        self.awaited_steps = ((self.required.name,),)

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        if self.target_nodes is None and self.target_instructions is None:
            return not self.required.matches(node, instruction)
        return super().applies_to(node, instruction)


def causal(history: History) -> CausalHistory:
    """The view that a checker gets. Raises `TypeError` for another history, which does not know the committed
    past.
    """
    if not isinstance(history, CausalHistory):
        raise TypeError(f"expected the history of a checker, got a {type(history).__name__}")
    return history


def how_often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
