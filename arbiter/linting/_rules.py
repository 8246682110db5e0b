"""The demands of registered rules, as far as they can be checked against a graph that does not run.

Built-in kinds are recognised by the names of their classes. So a subclass counts as its base, and linting
imports no kind that is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arbiter._contracts import Contract
from arbiter._lifecycle.registry import Registry
from arbiter.checkers._history import HistoryPolicyChecker
from arbiter.errors import ConfigurationError
from arbiter.instructions import Instruction, find_instruction
from arbiter.linting._findings import Severity
from arbiter.linting._topology import Node

_LIMITS = frozenset({"AtMost", "BudgetChecker", "ApprovalChecker"})
"""Kinds that limit how often a node runs, or ask a human each time."""
_BY_STATE = frozenset({"ConditionChecker", "NeverAfter", "WithinSteps"})
"""Kinds that decide by the state, by totals or by earlier steps. They may or may not bound a cycle."""


@dataclass(frozen=True, slots=True)
class Step:
    """All nodes with an instruction, or with a name, as rules name them."""

    instruction: Instruction | None
    node: str | None

    def matches(self, node: Node) -> bool:
        if self.node is not None:
            return self.node in (node.name, node.full)
        return self.instruction is not None and node.instruction is self.instruction

    def __str__(self) -> str:
        return f"node {self.node!r}" if self.node is not None else str(self.instruction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The rule's targets run only after `step` was done; with `each_use`, once for each time that it was
    done.

    With `since`, the step must be done again after each of these, and the demand begins with the first of
    them. With `stays`, a step that a router redirected does not count. `evaluator` must have judged the step.
    """

    rule: Contract
    step: Step
    each_use: bool = False
    since: tuple[Step, ...] = ()
    stays: bool = False
    evaluator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rule's targets run only within `steps` supersteps after `step`."""

    rule: Contract
    step: Step
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """The rule's targets never run after `step`."""

    rule: Contract
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """Steps that must not follow one another."""

    rule: Contract
    steps: tuple[Instruction, ...]
    adjacent: bool


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of the rules that are enforced or in audit mode."""

    before: tuple[Demand, ...]
    within: tuple[Window, ...]
    after: tuple[Ban, ...]
    sequences: tuple[Forbidden, ...]
    never: tuple[Contract, ...]
    """Rules that never let their targets run."""


def contracts_of(rules: Registry | Iterable[Contract]) -> list[Contract]:
    """All registered contracts in order, without those in mode "off"."""
    found: list[Contract] = []
    if isinstance(rules, Registry):
        found += (registration.contract for registration in rules.checkers)
        found += (registration.contract for registration in rules.routers)
        found += (queue.evaluator for queue in rules.evaluators)
        found += (registration.contract for registration in rules.advisors)
        found += (registration.contract for registration in rules.gates)
    else:
        found += rules
    return [contract for contract in found if contract.mode != "off"]


def demands_of(contracts: Sequence[Contract]) -> Demands:
    """The demands of these rules on the order and number of steps."""
    before: list[Demand] = []
    within: list[Window] = []
    after: list[Ban] = []
    sequences: list[Forbidden] = []
    never: list[Contract] = []
    for rule in contracts:
        values: Any = rule
        if isinstance(rule, HistoryPolicyChecker):
            sequences.append(Forbidden(rule=rule, steps=rule.bad_sequence, adjacent=rule.adjacent))
        elif is_a(rule, "RequireBefore"):
            before.append(
                Demand(
                    rule=rule,
                    step=step_of(values.required),
                    each_use=bool(getattr(rule, "once_per_use", False)),
                    since=tuple(map(step_of, getattr(rule, "since", ()))),
                    stays=True,
                    evaluator=getattr(rule, "evaluator", None),
                )
            )
        elif is_a(rule, "WithinSteps"):
            step = step_of(values.required)
            within.append(Window(rule=rule, step=step, steps=values.steps))
            before.append(Demand(rule=rule, step=step))
        elif is_a(rule, "NeverAfter"):
            after.append(Ban(rule=rule, step=step_of(values.after)))
        elif is_a(rule, "AtMost") and values.times == 0:
            never.append(rule)
    return Demands(tuple(before), tuple(within), tuple(after), tuple(sequences), tuple(never))


def caps(rule: Contract) -> bool:
    """True if this rule bounds how often its targets run."""
    return rule.enforced and is_a(rule, *_LIMITS)


def may_cap(rule: Contract) -> bool:
    """True if the rule might do so: a user's checker that looks back or counts, or a kind that decides by the
    state.
    """
    if not rule.enforced or rule.kind != "checker":
        return False
    values: Any = rule
    if (
        is_a(rule, *_BY_STATE)
        or getattr(rule, "once_per_use", False)
        or getattr(rule, "adjacent", True) is False
    ):
        return True
    own = not type(rule).__module__.startswith("arbiter.")
    defined = _defined(rule)
    return own and ("observe" in defined or ("reads_history" in defined and bool(values.reads_history)))


def _defined(rule: Contract) -> set[str]:
    return {
        name
        for base in type(rule).__mro__
        if not base.__module__.startswith("arbiter.")
        for name in vars(base)
    }


def is_a(rule: Contract, *kinds: str) -> bool:
    return any(base.__name__ in kinds for base in type(rule).__mro__)


def source_of(rule: Contract) -> str:
    """The place of the rule's declaration, as "file:line", or ""."""
    found: Any = getattr(rule, "source", None)
    return "" if found is None else str(found)


def severity_of(rule: Contract, severity: Severity) -> Severity:
    """The severity of a finding about this rule. In audit mode an error becomes a warning."""
    return "warning" if severity == "error" and not rule.enforced else severity


def tool_names(rule: Contract, attribute: str) -> set[str]:
    """The tools that a `tools` checker names without a condition, under `allow` or `deny`."""
    entries: Any = getattr(rule, attribute, None) or ()
    names: set[str] = set()
    for entry in entries:
        if isinstance(entry, str):
            names.add(entry)
        elif not any(getattr(entry, part, None) for part in ("when", "arguments")):
            name: Any = getattr(entry, "tool", None)
            if isinstance(name, str):
                names.add(name)
    return names


def step_of(given: Any) -> Step:
    """The step for an instruction, a text ("VERIFY", "node:check"), or a value with `instruction` and `node`."""
    if isinstance(given, Instruction):
        return Step(given, None)
    if isinstance(given, str):
        if given.startswith("node:"):
            return Step(None, given.removeprefix("node:").strip())
        return Step(find_instruction(given), None)
    instruction: Any = getattr(given, "instruction", None)
    node: Any = getattr(given, "node", None)
    if instruction is None and node is None:
        raise ConfigurationError(f"expected an instruction or 'node:<name>', got {given!r}.")
    return Step(instruction, node)
