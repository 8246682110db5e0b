"""Checks of the graph's shape: nodes that cannot be reached, and cycles that cannot end or have no bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from langgraph.constants import START

from arbiter._contracts import Contract
from arbiter.checkers import ApprovalChecker
from arbiter.instructions import INTERRUPT, MONITOR_RESOURCES
from arbiter.linting._findings import Finding
from arbiter.linting._rules import caps, may_cap
from arbiter.linting._topology import Level, Node, shortest_path

_FEW = 1_000
"""A recursion limit up to this counts as a cap. The defaults of LangGraph and of create_agent are higher."""

Edges = Mapping[str, set[str]]


# Unreachable --------------------------------------------------------------------------------------


def unreachable_nodes(graph: Level) -> Iterator[Finding]:
    """Nodes to which no path leads. If a node may go anywhere, nothing is reported."""
    for level in _reached_levels(graph):
        found = level.reachable()
        if not level.known or any(level.dynamic(name) for name in found):
            continue
        lost = [name for name in level.nodes if name not in found and not level.nodes[name].handles_errors]
        for group in _groups(level, lost):
            names = tuple(map(level.full, group))
            rest = ", ".join(names[1:])
            beyond = f", and what only it leads to: {rest}" if rest else ""
            yield Finding(
                code="unreachable",
                severity="warning",
                message=f"no path from the start leads to {names[0]!r}{beyond}",
                nodes=names,
                remedy=f"Add an edge to {group[0]!r}, name it in a path_map or in Command[Literal[...]], "
                "or take it out.",
            )


def _reached_levels(graph: Level) -> Iterator[Level]:
    """This graph and the subgraphs of its reachable nodes. Other subgraphs are unreachable as a whole."""
    yield graph
    found = graph.reachable() if graph.known else set(graph.nodes)
    for name, node in graph.nodes.items():
        for inner in node.graphs if name in found else ():
            yield from _reached_levels(inner)


def _groups(level: Level, lost: Sequence[str]) -> Iterator[list[str]]:
    """The lost nodes, each with the nodes that depend on it; nodes without a lost predecessor come first."""
    edges = {name: level.successors(name) & set(lost) for name in lost}
    entered = {end for start, ends in edges.items() for end in ends if end != start}
    seen: set[str] = set()
    for name in [*(n for n in lost if n not in entered), *lost]:
        if name not in seen:
            group = [name, *sorted(_from(edges, name) - {name} - seen)]
            seen |= {*group}
            yield group


# Ends ---------------------------------------------------------------------------------------------


def cycles_without_end(graph: Level, contracts: Sequence[Contract]) -> Iterator[Finding]:
    """Cycles that a run can never leave, whatever it chooses."""
    for level in _reached_levels(graph):
        caught = _caught(level)
        stops = {name for name in caught if _stops(level.nodes[name], contracts)}
        edges = {name: level.successors(name) & caught for name in caught & level.reachable()}
        for members in _components(edges):
            if members & stops:
                continue
            cycle = _cycle(edges, members)
            chooses = any(level.branches.get(name) or name in level.instead for name in members)
            names = tuple(map(level.full, cycle))
            yield Finding(
                code="no-end" if chooses else "endless-cycle",
                severity="warning" if chooses else "error",
                message=(
                    f"the end cannot be reached from {names[0]!r}: every way on stays in the cycle"
                    if chooses
                    else f"the cycle through {names[0]!r} has static edges only, so a run never leaves it"
                ),
                nodes=tuple(dict.fromkeys(names)),
                path=names,
                remedy="Give one of its nodes a conditional edge that can lead to END."
                if not chooses
                else "Let one of these choices lead to END (in its path_map, or in Command[Literal[...]]).",
            )


def _caught(level: Level) -> set[str]:
    """The nodes from which every choice leads to another node of this set: the run never ends."""
    static = {name: level.always.get(name, set()) & level.nodes.keys() for name in level.nodes}
    # A join repeats for ever only if the node behind it surely starts all its branches again.
    joins = [join for join in level.joins if join.starts <= _from(static, join.end) | {join.end}]
    caught = set(level.nodes)
    while True:
        left = {
            name
            for name in caught
            if any(name in join.starts and join.end in caught for join in joins)
            or all(
                outcome.targets & caught
                for outcome in level.outcomes(name)
                if not outcome.redirected and outcome.ran
            )
        }
        if left == caught:
            return caught
        caught = left


def _stops(node: Node, contracts: Sequence[Contract]) -> bool:
    """True if a human is asked there, or a rule ends the run regularly."""
    if _pauses(node) or any(
        isinstance(rule, ApprovalChecker) and rule.enforced and node.is_target_of(rule) for rule in contracts
    ):
        return True
    return any(
        rule.kind == "checker" and getattr(rule, "on_deny", "") == "end" and (caps(rule) or may_cap(rule))
        for rule in contracts
        if node.is_target_of(rule)
    )


# Caps ---------------------------------------------------------------------------------------------


def cycles_without_cap(graph: Level, contracts: Sequence[Contract]) -> Iterator[Finding]:
    """Cycles that a run can leave but that nothing forces it to leave."""
    if graph.recursion_limit is not None and graph.recursion_limit <= _FEW:
        return
    for level in _reached_levels(graph):
        if not level.known:
            continue
        bounded = {name for name, node in level.nodes.items() if _bounded(node, contracts)}
        edges = _free_edges(level, _caught(level) | bounded)
        for members in _components(edges):
            yield _uncapped(level, _cycle(edges, members))


def _free_edges(level: Level, closed: set[str]) -> Edges:
    """Edges on cycles without a cap. Redirects are capped; edges with unknown destinations are left out."""
    edges: dict[str, set[str]] = {}
    for name in level.reachable() - closed - {START}:
        anywhere = level.goes_anywhere(name)
        found: set[str] = set(level.always.get(name, ())) if anywhere else set()
        for outcome in () if anywhere else level.outcomes(name):
            if not outcome.redirected:
                found |= outcome.targets
        found |= {join.end for join in level.joins if name in join.starts}
        edges[name] = found - closed
    return edges


def _bounded(node: Node, contracts: Sequence[Contract]) -> bool:
    """True if a rule or a human bounds this node, or a node that each run of its subgraph must pass."""
    if _pauses(node) or node.instruction is MONITOR_RESOURCES:
        return True
    if any((caps(rule) or may_cap(rule)) and node.is_target_of(rule) for rule in contracts):
        return True
    return any(_bounds(inner, contracts) for inner in node.graphs if inner.known)


def _bounds(inner: Level, contracts: Sequence[Contract]) -> bool:
    """True if each run of a subgraph must pass a node that is bounded."""
    blocked = {name for name, within in inner.nodes.items() if _bounded(within, contracts)}
    return bool(blocked) and not any(_may_end(inner, name) for name in inner.reachable(blocked))


def _may_end(level: Level, name: str) -> bool:
    joined = any(name in join.starts for join in level.joins)
    return any(not outcome.targets and not joined for outcome in level.outcomes(name))


def _pauses(node: Node) -> bool:
    return node.pauses or node.instruction is INTERRUPT


def _uncapped(level: Level, cycle: Sequence[str]) -> Finding:
    names = tuple(map(level.full, cycle))
    return Finding(
        code="uncapped-cycle",
        severity="warning",
        message=f"nothing bounds how often the cycle {' → '.join(names)} is repeated",
        nodes=tuple(dict.fromkeys(names)),
        path=names,
        remedy="Cap it by a rule for one of its nodes (at_most, or a budget), for example "
        f"AtMost('{cycle[0]}_rounds', 10, target_nodes=[{cycle[0]!r}]), or give the "
        f"graph a recursion limit: with_config(recursion_limit=50).",
    )


# Walking ------------------------------------------------------------------------------------------


def _from(edges: Edges, start: str) -> set[str]:
    """The nodes that can be reached from a node by one edge or more."""
    found: set[str] = set()
    ahead = list(edges.get(start, ()))
    while ahead:
        name = ahead.pop()
        if name not in found and name in edges:
            found.add(name)
            ahead += edges[name]
    return found


def _components(edges: Edges) -> list[set[str]]:
    """The largest sets of nodes that lie on cycles with one another."""
    ahead = {name: _from(edges, name) for name in edges}
    found: list[set[str]] = []
    placed: set[str] = set()
    for name in sorted(edges):
        if name in placed or name not in ahead[name]:
            continue
        members = {other for other in ahead[name] if name in ahead[other]}
        placed |= members
        found.append(members)
    return found


def _cycle(edges: Edges, members: Iterable[str]) -> tuple[str, ...]:
    """The shortest cycle among these nodes, with its first node at both ends."""

    def ahead(name: str) -> Iterable[str]:
        return edges.get(name, ())

    cycles = (shortest_path(ahead, name, name) for name in sorted(members))
    return min(filter(None, cycles), key=len)
