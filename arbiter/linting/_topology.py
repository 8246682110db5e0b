"""A graph as the linter sees it: the nodes of each level, and the possible continuations after each node."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from langgraph.constants import END, START
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from arbiter._contracts import Contract
from arbiter._weaving.graph import Rules, governed_nodes, subgraphs_of, targets_of
from arbiter.checkers._steps import Step
from arbiter.instructions import Instruction
from arbiter.linting._code import Look, look_at

_COMBINATIONS = 64


@dataclass(slots=True, kw_only=True)
class Node:
    """`full` is its name with those of the parent nodes, "parent:child"; `inner` is the graph that is its
    body, or the first one in its sequence, and `later` are the others. `reads` are the fields of its input and
    `writes` those that it may write, None if they are unknown.
    """

    name: str
    full: str
    instruction: Instruction | None
    inner: Level | None = None
    later: Sequence[Level] = ()
    pauses: bool = False
    deferred: bool = False
    handles_errors: bool = False
    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None

    @property
    def graphs(self) -> Sequence[Level]:
        """The graphs that are its body, one after another."""
        return () if self.inner is None else (self.inner, *self.later)

    def is_target_of(self, contract: Contract) -> bool:
        return contract.applies_to(self.name, self.instruction)

    def does(self, step: Step) -> bool:
        """True if a run of this node is the step that a rule names."""
        return step.matches(self.name, self.instruction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A choice that a run makes: a conditional edge, or a node's `Command`.

    `ends` may contain END. `sure`: they are declared, not read from the code; `anywhere`: the destinations
    are unknown. `optional`: it may also choose none; `several`: it may choose more than one.
    """

    ends: frozenset[str]
    sure: bool = True
    anywhere: bool = False
    optional: bool = False
    several: bool = False

    def choices(self) -> list[frozenset[str]]:
        found = [frozenset({end}) for end in sorted(self.ends)]
        if self.several and len(self.ends) > 1:
            found.append(self.ends)
        if self.optional or not found:
            found.append(frozenset())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """A rule may send a run from a node to `target` instead of along its edges. `ran` as in `Outcome`."""

    target: str
    ran: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One way in which a run may continue after a node. `ran`: it was not denied, and has not failed; `redirected`:
    by a rule.
    """

    targets: frozenset[str]
    ran: bool = True
    redirected: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    starts: frozenset[str]
    end: str


@dataclass(slots=True, kw_only=True)
class Level:
    """One graph: the outermost, or a node's subgraph. `known` is False if LangGraph keeps no edges for it."""

    path: tuple[str, ...]
    nodes: dict[str, Node]
    known: bool
    always: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    joins: list[Join] = field(default_factory=list[Join])
    branches: dict[str, list[Branch]] = field(default_factory=dict[str, list[Branch]])
    redirects: dict[str, list[Redirect]] = field(default_factory=dict[str, list[Redirect]])
    instead: dict[str, Branch] = field(default_factory=dict[str, Branch])
    """The destinations of nodes that leave their graph by a command for the parent graph, instead of taking
    edges.
    """
    leaving: set[str] | None = None
    """The texts in the code of nodes that may leave this graph for its parent; None if no node does."""
    handlers: dict[str, str] = field(default_factory=dict[str, str])
    targets: frozenset[str] = frozenset()
    recursion_limit: int | None = None

    def full(self, name: str) -> str:
        return name if name in (START, END) else ":".join((*self.path, name))

    def levels(self) -> Iterator[Level]:
        yield self
        for node in self.nodes.values():
            for inner in node.graphs:
                yield from inner.levels()

    @property
    def sends(self) -> bool:
        """True if a branch may send nodes a payload of its own with `Send`."""
        return any(branch.several for branches in self.branches.values() for branch in branches)

    def all_nodes(self) -> Iterator[tuple[Level, Node]]:
        for level in self.levels():
            for node in level.nodes.values():
                yield level, node

    def outcomes(self, name: str, *, guesses: bool = True) -> list[Outcome]:
        """The ways in which a run may continue after a node or START. Joins are left out, because they need
        further nodes.

        Without `guesses`, an undeclared choice chooses nothing.
        """
        branches = self.branches.get(name, ())
        choices = [branch.choices() if branch.sure or guesses else [frozenset[str]()] for branch in branches]
        static = self.always.get(name, set())
        found = [
            Outcome(targets=frozenset(static).union(*chosen) & self.nodes.keys())
            for chosen in itertools.islice(itertools.product(*choices), _COMBINATIONS)
        ]
        for redirect in self.redirects.get(name, ()):
            targets = frozenset({redirect.target}) & self.nodes.keys()
            found.append(Outcome(targets=targets, ran=redirect.ran, redirected=True))
        if (jump := self.instead.get(name)) is not None and (jump.sure or guesses):
            found += [Outcome(targets=end & self.nodes.keys()) for end in jump.choices()]
        if name in self.handlers:
            found.append(Outcome(targets=frozenset({self.handlers[name]}), ran=False))
        return found

    def successors(self, name: str) -> set[str]:
        """All nodes that may come directly after a node, without END."""
        found = {end for outcome in self.outcomes(name) for end in outcome.targets}
        return found | {join.end for join in self.joins if name in join.starts}

    def dynamic(self, name: str) -> bool:
        """True if the node may go to undeclared destinations."""
        return any(not branch.sure for branch in self._ways(name))

    def goes_anywhere(self, name: str) -> bool:
        """True if the destinations of the node are unknown."""
        return any(branch.anywhere for branch in self._ways(name))

    def _ways(self, name: str) -> list[Branch]:
        return [*self.branches.get(name, ()), *([self.instead[name]] if name in self.instead else ())]

    def reachable(self, blocked: Iterable[str] = ()) -> set[str]:
        """The nodes that a run can reach from START without passing through `blocked`."""
        closed = set(blocked)
        found: set[str] = set()
        ahead = [START]
        while ahead:
            name = ahead.pop()
            if name in found or name in closed:
                continue
            found.add(name)
            ahead += {end for outcome in self.outcomes(name) for end in outcome.targets}
            ahead += (join.end for join in self.joins if name in join.starts and join.starts <= found)
        return found


N = TypeVar("N")


def shortest_path(ahead: Callable[[N], Iterable[N]], start: N, end: N) -> tuple[N, ...]:
    """The shortest path of one edge or more; empty if there is none."""
    paths: deque[tuple[N, ...]] = deque([(start,)])
    seen: set[N] = set()
    while paths:
        path = paths.popleft()
        places: list[N] = sorted(cast(Any, ahead(path[-1])))
        for place in places:
            if place == end:
                return (*path, place)
            if place not in seen:
                seen.add(place)
                paths.append((*path, place))
    return ()


def read_graph(
    graph: Pregel[Any, Any, Any, Any], rules: Rules, contracts: Iterable[Contract], path: tuple[str, ...] = ()
) -> Level:
    """The levels of a compiled graph, with the instruction of each node and the redirects of rules."""
    policies = list(contracts)
    builder: Any = getattr(graph, "builder", None)
    known = isinstance(builder, StateGraph)
    specs: dict[str, Any] = dict(cast(Any, builder).nodes) if known else {}
    level = Level(
        path=path,
        nodes={},
        known=known,
        targets=targets_of(graph),
        recursion_limit=(graph.config or {}).get("recursion_limit"),
    )
    looks: dict[str, Look] = {}
    for name, node in governed_nodes(graph).items():
        inner = [read_graph(each, rules, policies, (*path, name)) for each in subgraphs_of(node)]
        looks[name] = look = look_at(node.bound)
        level.nodes[name] = Node(
            name=name,
            full=":".join((*path, name)),
            instruction=rules(path, name, node).instruction,
            inner=next(iter(inner), None),
            later=inner[1:],
            pauses=look.pauses or _stops_at(graph, name),
            deferred=bool(getattr(specs.get(name), "defer", False)),
            handles_errors=bool(getattr(specs.get(name), "is_error_handler", False)),
            reads=_fields(node.channels) if known else None,
            writes=_fields(cast("Iterable[str]", builder.channels)) if known else None,
        )
    if known:
        _read_edges(level, builder, specs, looks)
        _read_redirects(level, policies)
    return level


def _fields(channels: Iterable[str]) -> frozenset[str] | None:
    """The fields of a state that has these channels; None if it is a single value, such as a dict."""
    names = frozenset({channels} if isinstance(channels, str) else channels)
    return None if "__root__" in names else names


def _stops_at(graph: Pregel[Any, Any, Any, Any], name: str) -> bool:
    stops: list[Any] = [graph.interrupt_before_nodes, graph.interrupt_after_nodes]
    return any(stop == "*" or name in stop for stop in stops)


def _read_edges(level: Level, builder: Any, specs: dict[str, Any], looks: dict[str, Look]) -> None:
    for start, end in builder.edges:
        level.always.setdefault(start, set()).add(end)
    level.joins = [Join(frozenset(starts), end) for starts, end in builder.waiting_edges if end != END]
    for start, branches in builder.branches.items():
        for branch in branches.values():
            level.branches.setdefault(start, []).append(_conditional(level, branch))
    for name, spec in specs.items():
        if name in level.nodes:
            _read_commands(level, name, spec, looks[name])
            if (handler := getattr(spec, "error_handler_node", None)) in level.nodes:
                level.handlers[name] = handler


def _conditional(level: Level, spec: Any) -> Branch:
    look = look_at(spec.path)
    if spec.ends is not None:
        ends = frozenset(spec.ends.values())
        return Branch(ends=ends, optional=look.optional, several=look.several)
    return _guessed(level, look)


def _read_commands(level: Level, name: str, spec: Any, look: Look) -> None:
    """Record where a node's `Command` may go: its own, or one from inside its subgraph."""
    ends = frozenset(spec.ends or ())
    leaving = [inner.leaving for inner in level.nodes[name].graphs if inner.leaving is not None]
    if look.leaves:
        level.leaving = (level.leaving or set()) | look.strings
        level.instead[name] = Branch(ends=frozenset({END}))
    if leaving:
        named = Look(strings=set[str]().union(*leaving))
        level.instead[name] = Branch(ends=ends) if ends else _guessed(level, named)
    elif ends:
        branch = Branch(ends=ends, optional=not look.commands_only, several=look.several)
        level.branches.setdefault(name, []).append(branch)
    elif look.jumps and not look.leaves:
        level.branches.setdefault(name, []).append(_guessed(level, look, optional=True))


def _guessed(level: Level, look: Look, *, optional: bool = False) -> Branch:
    named = frozenset(look.strings) & {*level.nodes, END}
    anywhere = not named - {END}
    ends = frozenset({*level.nodes, END}) if anywhere else named
    return Branch(
        ends=ends,
        sure=False,
        anywhere=anywhere,
        optional=optional or look.optional,
        several=look.several,
    )


def _read_redirects(level: Level, policies: Iterable[Contract]) -> None:
    for policy in policies:
        if policy.mode == "off" or not policy.enforced:
            continue
        for target in policy.redirect_targets:
            if target != END and target not in level.targets:
                continue
            ran = policy.kind != "checker" and not getattr(policy, "on_error", False)
            redirect = Redirect(target=target, ran=ran)
            for node in level.nodes.values():
                if node.is_target_of(policy):
                    level.redirects.setdefault(node.name, []).append(redirect)
