"""The step that a temporal rule speaks of, and what such rules have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from arbiter.errors import ParameterError, UnknownInstructionError
from arbiter.history import CausalHistory, History
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import OnDeny, PolicyChecker

Per = Literal["run", "thread"]


@dataclass(frozen=True, slots=True)
class Step:
    """Every node of an instruction, or the nodes of one name, in the graph and its subgraphs."""

    instruction: Instruction | None = None
    node: str | None = None

    def matches(self, node: str, instruction: Instruction | None) -> bool:
        return node == self.node if self.node is not None else instruction is self.instruction

    def done_at(self, history: CausalHistory) -> int | None:
        """The number, over all that was ever committed, of its last completed run."""
        if self.node is not None:
            return history.done_at(self.node)
        return None if self.instruction is None else history.last_at(self.instruction)

    def __str__(self) -> str:
        return f"node {self.node!r}" if self.node is not None else str(self.instruction)


def find_step(owner: str, parameter: str, given: Instruction | str) -> Step:
    """The step that "VERIFY", "NormativeCore.VERIFY", "node:check" or an instruction names."""
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

    def __init__(
        self,
        name: str,
        per: Per,
        target_instructions: Iterable[Instruction | str] | None,
        target_nodes: Iterable[str] | None,
        on_deny: OnDeny,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        self.owner = f"checker {name!r}"
        given: object = per
        if given not in get_args(Per):
            raise ParameterError(self.owner, "per", f"expected 'run' or 'thread', got {given!r}.")
        self.per = per
        self.span = " in this run" if per == "run" else ""

    def tallied(self, history: History, key: str) -> float:
        """What this rule has counted under `key`."""
        tally = history.tally(self.name, key)
        return tally.in_run if self.per == "run" else tally.amount


class AfterStep(TemporalRule):
    """A rule that makes its targets wait for a step. Without any target it is for all nodes but that step's,
    which could else never begin."""

    def __init__(
        self,
        name: str,
        required: Instruction | str,
        per: Per,
        target_instructions: Iterable[Instruction | str] | None,
        target_nodes: Iterable[str] | None,
        on_deny: OnDeny,
    ) -> None:
        super().__init__(name, per, target_instructions, target_nodes, on_deny)
        self.required = find_step(self.owner, "required", required)

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        if self.target_nodes is None and self.target_instructions is None:
            return not self.required.matches(node, instruction)
        return super().applies_to(node, instruction)


def causal(history: History) -> CausalHistory:
    """The view that a checker gets. Another history cannot say what was committed: a refusal, not a guess."""
    if not isinstance(history, CausalHistory):
        raise TypeError(f"expected the history that a checker is given, got a {type(history).__name__}")
    return history


def whole(owner: str, parameter: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(owner, parameter, f"expected a whole number from {least}, got {value!r}.")
    return value


def how_often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
