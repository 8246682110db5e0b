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
    seen: set[tuple[int, int, bool]] = set()
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
    seen: set[tuple[int, int, bool]],
    place: _Place,
    done: int,
    gap: bool,
    path: tuple[str, ...],
) -> None:
    if (key := (id(_node(place)), done, gap)) not in seen:
        seen.add(key)
        ahead.append((place, done, gap, path))


def _node(place: _Place) -> Node:
    level, name = place[-1]
    return level.nodes[name]


def _places(level: Level, around: _Place = ()) -> Iterator[_Place]:
    for name, node in level.nodes.items():
        place = (*around, (level, name))
        yield place
        for inner in _known(node):
            yield from _places(inner, place)


def _next(place: _Place) -> Iterator[tuple[_Place, tuple[str, ...]]]:
    """The possible next nodes, each with the nodes whose subgraphs end on the way."""
    level, name = place[-1]
    for target in sorted(_successors(level, name)):
        for inside in _first((*place[:-1], (level, target))):
            yield inside, ()
    around = place[:-1]
    if around and any(not outcome.targets for outcome in level.outcomes(name, guesses=False)):
        node = _node(around)
        graphs = _known(node)
        behind = graphs[next(at for at, graph in enumerate(graphs) if graph is level) + 1 :]
        ways = ((inside, ()) for inside in _entered(around, behind[0])) if behind else _next(around)
        for after, left in ways:
            yield after, (node.full, *left)


def _first(place: _Place) -> Iterator[_Place]:
    graphs = _known(_node(place))
    if not graphs:
        yield place
        return
    yield from _entered(place, graphs[0])


def _entered(place: _Place, inner: Level) -> Iterator[_Place]:
    for target in sorted(_successors(inner, START)):
        yield from _first((*place, (inner, target)))


def _known(node: Node) -> list[Level]:
    """The graphs that are its body, one after another, without those whose edges are unknown."""
    return [inner for inner in node.graphs if inner.known]


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
