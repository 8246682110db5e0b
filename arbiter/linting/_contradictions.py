"""Checks of rules against one another: if two rules cannot both be kept, one of them is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from arbiter._contracts import Contract
from arbiter.checkers import ToolRule, ToolsChecker
from arbiter.checkers._steps import Step
from arbiter.linting._findings import Finding
from arbiter.linting._rules import Ban, Demand, Demands
from arbiter.linting._topology import Level, Node, shortest_path

Contradiction = tuple[Finding, tuple[Contract, ...]]
"""A finding, and the rules that contradict one another."""


def contradicting_rules(
    graph: Level, contracts: Sequence[Contract], demands: Demands
) -> Iterator[Contradiction]:
    """Demands that wait for one another, demands for forbidden steps, and tools that are both allowed and
    denied.
    """
    nodes = [node for _, node in graph.all_nodes()]
    # A demand that begins with another step lets its targets run first.
    yield from _waiting([demand for demand in demands.before if not demand.since], nodes)
    yield from _forbidden(demands, nodes)
    yield from _tools(contracts, nodes)


def _contradiction(
    rules: Sequence[Contract], message: str, nodes: Sequence[str], remedy: str
) -> Contradiction:
    first = rules[0]
    finding = Finding(
        code="contradiction",
        # A rule that only records stands in no other rule's way.
        severity="error" if all(rule.enforced for rule in rules) else "warning",
        message=message,
        nodes=tuple(nodes),
        rule=first.name,
        source=next(filter(None, (rule.source for rule in rules)), ""),
        remedy=remedy,
    )
    return finding, tuple(rules)


def _waiting(before: Sequence[Demand], nodes: Sequence[Node]) -> Iterator[Contradiction]:
    """Circular demands: A needs B before it, and B needs A, so none of them can ever run first."""
    needs = {index: _blocking(demand, before, nodes) for index, demand in enumerate(before)}
    reported: set[int] = set()
    for index in needs:
        if index in reported or not (circle := shortest_path(needs.__getitem__, index, index)[:-1]):
            continue
        reported |= {*circle}
        rules = [before[at] for at in circle]
        first = rules[0]
        targets = [node.full for rule in rules for node in nodes if node.is_target_of(rule.rule)]
        if len(rules) == 1:
            what = (
                f"{first.rule.name!r} demands {first.step} before {first.step} itself: it can never run first"
            )
        else:
            names = ", ".join(
                f"{rule.rule.name!r} demands {rule.step} before {_names(rule, nodes)}" for rule in rules
            )
            what = f"rules wait for one another: {names}"
        yield _contradiction(
            [rule.rule for rule in rules],
            what,
            list(dict.fromkeys(targets)),
            "Narrow the targets of one of them, or drop it.",
        )


def _blocking(demand: Demand, before: Sequence[Demand], nodes: Sequence[Node]) -> list[int]:
    """The demands that block every node that could do the step that this demand waits for."""
    doing = [node for node in nodes if node.does(demand.step)]
    if not doing or not any(node.is_target_of(demand.rule) for node in nodes):
        return []
    return [
        index for index, other in enumerate(before) if all(node.is_target_of(other.rule) for node in doing)
    ]


def _names(demand: Demand, nodes: Sequence[Node]) -> str:
    return ", ".join(node.full for node in nodes if node.is_target_of(demand.rule))


def _forbidden(demands: Demands, nodes: Sequence[Node]) -> Iterator[Contradiction]:
    """X must have run before Y, and Y must not run after X."""
    bans = [
        *demands.after,
        *(
            Ban(rule=forbidden.rule, step=Step(forbidden.steps[0], None))
            for forbidden in demands.sequences
            if len(forbidden.steps) == 2 and not forbidden.adjacent
        ),
    ]
    ends = {id(f.rule): f.steps[-1] for f in demands.sequences}
    for demand, ban in itertools.product((demand for demand in demands.before if not demand.since), bans):
        doing = [node for node in nodes if node.does(demand.step)]
        both = [
            node.full
            for node in nodes
            if node.is_target_of(demand.rule)
            and node.is_target_of(ban.rule)
            and ends.get(id(ban.rule), node.instruction) is node.instruction
        ]
        if doing and both and all(node.does(ban.step) for node in doing):
            yield _contradiction(
                [demand.rule, ban.rule],
                f"{demand.rule.name!r} demands {demand.step} before {', '.join(both)}, and "
                f"{ban.rule.name!r} forbids {', '.join(both)} after {ban.step}",
                both,
                "Drop one of the two rules, or give them different targets.",
            )


def _tools(contracts: Sequence[Contract], nodes: Sequence[Node]) -> Iterator[Contradiction]:
    rules = [rule for rule in contracts if isinstance(rule, ToolsChecker)]
    for one, other in itertools.product(rules, repeat=2):
        both = sorted(_unconditional(one.allow or ()) & _unconditional(other.deny))
        where = [node.full for node in nodes if node.is_target_of(one) and node.is_target_of(other)]
        if both and where:
            who = f"{one.name!r} allows" if one is not other else f"{one.name!r} both allows and denies"
            denies = f", and {other.name!r} denies it" if one is not other else ""
            yield _contradiction(
                [one, other],
                f"{who} {', '.join(both)}{denies}",
                where,
                "A denial wins. Take the tool out of one of the two lists, or give the entry a condition.",
            )


def _unconditional(entries: Iterable[ToolRule]) -> set[str]:
    """The tools that these entries name without a condition."""
    return {entry.tool for entry in entries if not entry.when and not entry.arguments}


def in_contradiction(found: Iterable[Contradiction]) -> set[str]:
    """The names of rules that cannot be kept. Other findings about them follow from that and are left out."""
    return {rule.name for finding, rules in found if finding.severity == "error" for rule in rules}
