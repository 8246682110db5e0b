"""Paths that evade a forbidden sequence, because another step stands between its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from langgraph.constants import START

from arbiter.instructions import NormativeCore
from arbiter.linting._findings import Finding
from arbiter.linting._rules import Demands, Forbidden
from arbiter.linting._topology import Level, Node

_Place = tuple[tuple[Level, str], ...]
"""A node after the nodes whose subgraphs contain it, each with its graph."""


def passed_sequences(graph: Level, demands: Demands) -> Iterator[Finding]:
    """Paths that have the steps of an adjacent sequence in their order, with other steps between.

    A step of the normative core between them (VERIFY, CONSTRAIN, FALLBACK, INTERRUPT) is exactly the purpose
    of such a rule and is not reported.
    """
    for forbidden in demands.sequences:
        if forbidden.adjacent and len(forbidden.steps) > 1:
            for path in _paths(graph, forbidden):
                yield _passed(forbidden, path)


def _paths(graph: Level, forbidden: Forbidden) -> list[tuple[str, ...]]:
    """The shortest such path to each node to which the rule applies."""
    steps = forbidden.steps
    found: dict[str, tuple[str, ...]] = {}
    ahead: deque[tuple[_Place, int, bool, tuple[str, ...]]] = deque()
    for place in _places(graph):
        if _node(place).instruction is steps[0]:
            ahead.append((place, 1, False, (_node(place).full,)))
    seen: set[tuple[str, int, bool]] = set()
    while ahead:
        place, done, gap, path = ahead.popleft()
        for after, left in _next(place):
            node = _node(after)
            names = (*path, *left, node.full)
            if node.instruction is steps[done]:
                if done + 1 < len(steps):
                    _go_on(ahead, seen, after, done + 1, gap or bool(left), names)
                elif (gap or left) and node.is_target_of(forbidden.rule):
                    found.setdefault(node.full, names)
            if node.instruction is not steps[0] and not isinstance(node.instruction, NormativeCore):
                _go_on(ahead, seen, after, done, True, names)
    return list(found.values())


def _go_on(
    ahead: deque[tuple[_Place, int, bool, tuple[str, ...]]],
    seen: set[tuple[str, int, bool]],
    place: _Place,
    done: int,
    gap: bool,
    path: tuple[str, ...],
) -> None:
    if (key := (_node(place).full, done, gap)) not in seen:
        seen.add(key)
        ahead.append((place, done, gap, path))


def _node(place: _Place) -> Node:
    level, name = place[-1]
    return level.nodes[name]


def _places(level: Level, around: _Place = ()) -> Iterator[_Place]:
    for name, node in level.nodes.items():
        place = (*around, (level, name))
        yield place
        if node.inner is not None and node.inner.known:
            yield from _places(node.inner, place)


def _next(place: _Place) -> Iterator[tuple[_Place, tuple[str, ...]]]:
    """The possible next nodes, each with the nodes whose subgraphs end on the way."""
    level, name = place[-1]
    for target in sorted(_successors(level, name)):
        for inside in _first((*place[:-1], (level, target))):
            yield inside, ()
    around = place[:-1]
    if around and any(not outcome.targets for outcome in level.outcomes(name, guesses=False)):
        for after, left in _next(around):
            yield after, (_node(around).full, *left)


def _first(place: _Place) -> Iterator[_Place]:
    inner = _node(place).inner
    if inner is None or not inner.known:
        yield place
        return
    for target in sorted(_successors(inner, START)):
        yield from _first((*place, (inner, target)))


def _successors(level: Level, name: str) -> set[str]:
    if level.goes_anywhere(name):
        return level.always.get(name, set()) & level.nodes.keys()
    return level.successors(name)


def _passed(forbidden: Forbidden, path: tuple[str, ...]) -> Finding:
    rule = forbidden.rule
    steps = " → ".join(map(str, forbidden.steps))
    return Finding(
        code="passed-sequence",
        severity="warning",
        message=f"{rule.name!r} forbids {steps} in supersteps that follow one another, and a path leads to "
        f"{path[-1]!r} with other steps between: there the rule does not hold",
        nodes=(path[-1],),
        path=path,
        rule=rule.name,
        source=rule.source,
        remedy=f"Forbid it whatever runs in between: adjacent=False. To let {path[-1]!r} run once the output is "
        f"checked, use require_before with since=[{forbidden.steps[0]}].",
    )
