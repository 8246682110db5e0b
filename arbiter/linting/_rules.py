"""The demands of registered rules, as far as they can be checked against a graph that does not run.

A subclass of a built-in kind counts as its base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arbiter._contracts import Contract
from arbiter._lifecycle.registry import Registry
from arbiter.checkers import (
    ApprovalChecker,
    AtMost,
    BudgetChecker,
    ConditionChecker,
    HistoryPolicyChecker,
    NeverAfter,
    RequireBefore,
    WithinSteps,
)
from arbiter.checkers._steps import Step
from arbiter.instructions import Instruction
from arbiter.linting._findings import Finding, Severity
from arbiter.policy import PolicyChecker

_LIMITS = (AtMost, BudgetChecker, ApprovalChecker)
"""Kinds that limit how often a node runs, or ask a human each time."""
_BY_STATE = (ConditionChecker, NeverAfter, WithinSteps)
"""Kinds that decide by the state, by totals or by earlier steps. They may or may not bound a cycle."""


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
    """All registered contracts."""
    return list(rules.registered(Contract) if isinstance(rules, Registry) else rules)


def demands_of(contracts: Sequence[Contract]) -> Demands:
    """The demands of these rules on the order and number of steps."""
    before: list[Demand] = []
    within: list[Window] = []
    after: list[Ban] = []
    sequences: list[Forbidden] = []
    never: list[Contract] = []
    for rule in contracts:
        match rule:
            case HistoryPolicyChecker():
                sequences.append(Forbidden(rule=rule, steps=rule.bad_sequence, adjacent=rule.adjacent))
            case RequireBefore():
                before.append(
                    Demand(
                        rule=rule,
                        step=rule.required,
                        each_use=rule.once_per_use,
                        since=rule.since,
                        stays=True,
                        evaluator=rule.evaluator,
                    )
                )
            case WithinSteps():
                within.append(Window(rule=rule, step=rule.required, steps=rule.steps))
                before.append(Demand(rule=rule, step=rule.required))
            case NeverAfter():
                after.append(Ban(rule=rule, step=rule.after))
            case AtMost(times=0):
                never.append(rule)
            case _:
                pass
    return Demands(tuple(before), tuple(within), tuple(after), tuple(sequences), tuple(never))


def caps(rule: Contract) -> bool:
    """True if this rule bounds how often its targets run."""
    return rule.enforced and isinstance(rule, _LIMITS)


def may_cap(rule: Contract) -> bool:
    """True if the rule might do so: a user's checker that looks back or counts, or a kind that decides by the
    state.
    """
    if not rule.enforced or not isinstance(rule, PolicyChecker):
        return False
    if (
        isinstance(rule, _BY_STATE)
        or (isinstance(rule, RequireBefore) and rule.once_per_use)
        or (isinstance(rule, HistoryPolicyChecker) and not rule.adjacent)
    ):
        return True
    own = {
        name
        for base in type(rule).__mro__
        if not base.__module__.startswith("arbiter.")
        for name in vars(base)
    }
    return "observe" in own or ("reads_history" in own and rule.reads_history)


def about(
    rule: Contract, code: str, severity: Severity, said: str, remedy: str, *, nodes: Sequence[str] = ()
) -> Finding:
    """A finding about a rule. Its message is the kind and the name of the rule, and then `said`."""
    return Finding(
        code=code,
        severity=severity,
        message=f"{rule.kind} {rule.name!r} {said}",
        nodes=tuple(nodes),
        rule=rule.name,
        source=rule.source,
        remedy=remedy,
    )


def severity_of(rule: Contract, severity: Severity) -> Severity:
    """The severity of a finding about this rule. In audit mode an error becomes a warning."""
    return "warning" if severity == "error" and not rule.enforced else severity
