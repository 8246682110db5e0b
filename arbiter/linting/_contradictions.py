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


def contradicting_rules(graph: Level, contracts: Sequence[Contract], demands: Demands) -> Iterator[Finding]:
    """Demands that wait for one another, demands for forbidden steps, and tools that are both allowed and
    denied.
    """
    nodes = [node for _, node in graph.all_nodes()]
    # A demand that begins with another step lets its targets run first.
    yield from _waiting([demand for demand in demands.before if not demand.since], nodes)
    yield from _forbidden(demands, nodes)
    yield from _tools(contracts, nodes)


def _waiting(before: Sequence[Demand], nodes: Sequence[Node]) -> Iterator[Finding]:
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
        yield Finding(
            code="contradiction",
            severity="error",
            message=what,
            nodes=tuple(dict.fromkeys(targets)),
            rule=first.rule.name,
            source=first.rule.source,
            remedy="Narrow the targets of one of them, or drop it.",
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


def _forbidden(demands: Demands, nodes: Sequence[Node]) -> Iterator[Finding]:
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
            yield Finding(
                code="contradiction",
                severity="error",
                message=f"{demand.rule.name!r} demands {demand.step} before {', '.join(both)}, and "
                f"{ban.rule.name!r} forbids {', '.join(both)} after {ban.step}",
                nodes=tuple(both),
                rule=demand.rule.name,
                source=demand.rule.source or ban.rule.source,
                remedy="Drop one of the two rules, or give them different targets.",
            )


def _tools(contracts: Sequence[Contract], nodes: Sequence[Node]) -> Iterator[Finding]:
    rules = [rule for rule in contracts if isinstance(rule, ToolsChecker)]
    for one, other in itertools.product(rules, repeat=2):
        both = sorted(_unconditional(one.allow or ()) & _unconditional(other.deny))
        where = [node.full for node in nodes if node.is_target_of(one) and node.is_target_of(other)]
        if both and where:
            who = f"{one.name!r} allows" if one is not other else f"{one.name!r} both allows and denies"
            yield Finding(
                code="contradiction",
                severity="error",
                message=f"{who} {', '.join(both)}"
                + (f", and {other.name!r} denies it" if one is not other else ""),
                nodes=tuple(where),
                rule=one.name,
                source=one.source or other.source,
                remedy="A denial wins. Take the tool out of one of the two lists, or give the entry a condition.",
            )


def _unconditional(entries: Iterable[ToolRule]) -> set[str]:
    """The tools that these entries name without a condition."""
    return {entry.tool for entry in entries if not entry.when and not entry.arguments}


def in_contradiction(findings: Sequence[Finding], demands: Demands) -> set[str]:
    """The names of rules in a contradiction. Other findings about them follow from it and are left out."""
    named = " ".join(finding.message for finding in findings)
    rules = [*(demand.rule for demand in demands.before), *(banned.rule for banned in demands.sequences)]
    return {rule.name for rule in rules if repr(rule.name) in named}
