"""What registered rules demand, as far as it can be held against a graph that does not run.

Built-in kinds are known by the names of their classes, so that a subclass counts as what it extends, and so that
linting a graph imports no kind that is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arbiter.checkers.history import HistoryPolicyChecker
from arbiter.contracts import Contract
from arbiter.errors import ConfigurationError
from arbiter.instructions import Instruction, find_instruction
from arbiter.linting.findings import Severity
from arbiter.linting.topology import Node
from arbiter.registry import Registry

_LIMITS = frozenset({"AtMost", "BudgetChecker", "ApprovalChecker"})
"""Kinds that let a node run only so often, or ask a human each time."""
_BY_STATE = frozenset({"ConditionChecker", "NeverAfter", "WithinSteps"})
"""Kinds that decide by the state, by totals or by what ran before: they may bound a cycle, and they may not."""


@dataclass(frozen=True, slots=True)
class Step:
    """Every node of an instruction, or the nodes of one name, as rules name them."""

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
    """Its targets run only when `step` has been done; with `each_use`, once for each time that it was.

    With `since`, it has to be done again after each of these, and not before the first of them. With `stays`, what a
    router sent elsewhere was not done. `evaluator` has to judge it.
    """

    rule: Contract
    step: Step
    each_use: bool = False
    since: tuple[Step, ...] = ()
    stays: bool = False
    evaluator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Its targets run only within `steps` supersteps after `step`."""

    rule: Contract
    step: Step
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Its targets never run after `step`."""

    rule: Contract
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """Steps that may not follow one another."""

    rule: Contract
    steps: tuple[Instruction, ...]
    adjacent: bool


@dataclass(frozen=True, slots=True)
class Demands:
    """What the rules ask that are in force, or recorded only (`mode = "audit"`)."""

    before: tuple[Demand, ...]
    within: tuple[Window, ...]
    after: tuple[Ban, ...]
    sequences: tuple[Forbidden, ...]
    never: tuple[Contract, ...]
    """Rules that let their targets run no time at all."""


def contracts_of(rules: Registry | Iterable[Contract]) -> list[Contract]:
    """Everything that is registered, in order, without what is switched off."""
    found: list[Contract] = []
    if isinstance(rules, Registry):
        found += (seat.contract for seat in rules.checkers)
        found += (seat.contract for seat in rules.routers)
        found += (lane.evaluator for lane in rules.evaluators)
        found += (seat.contract for seat in rules.advisors)
        found += (seat.contract for seat in rules.gates)
    else:
        found += rules
    return [contract for contract in found if contract.mode != "off"]


def demands_of(contracts: Sequence[Contract]) -> Demands:
    """What these rules demand of the order and number of steps."""
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
                    step=_step(values.required),
                    each_use=bool(getattr(rule, "once_per_use", False)),
                    since=tuple(map(_step, getattr(rule, "since", ()))),
                    stays=True,
                    evaluator=getattr(rule, "evaluator", None),
                )
            )
        elif is_a(rule, "WithinSteps"):
            step = _step(values.required)
            within.append(Window(rule=rule, step=step, steps=values.steps))
            before.append(Demand(rule=rule, step=step))
        elif is_a(rule, "NeverAfter"):
            after.append(Ban(rule=rule, step=_step(values.after)))
        elif is_a(rule, "AtMost") and values.times == 0:
            never.append(rule)
    return Demands(tuple(before), tuple(within), tuple(after), tuple(sequences), tuple(never))


def caps(rule: Contract) -> bool:
    """Whether this rule bounds how often its targets run."""
    return rule.enforced and is_a(rule, *_LIMITS)


def may_cap(rule: Contract) -> bool:
    """Whether it might: a checker of the user's own that looks back or counts, or one that decides by the state."""
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
    """Where it was declared, as "file:line", or ""."""
    found: Any = getattr(rule, "source", None)
    return "" if found is None else str(found)


def severity_of(rule: Contract, severity: Severity) -> Severity:
    """What is an error of a rule that is enforced is a warning of one that only records."""
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


def _step(given: Any) -> Step:
    """Out of an instruction, a text ("VERIFY", "node:check"), or a value with `instruction` and `node`."""
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
