"""All possible runs of a graph, as far as a rule about the order of steps can tell them apart.

A run proceeds in supersteps: a set of nodes at once, then all nodes to which they lead. The `Explorer` plays
them through with a *mark*: how many of the steps of interest have been done, in their order, in the committed
past. So a join waits as in a real run, and a node whose branches come together in the same superstep has all
of them behind it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from langgraph.constants import START

from arbiter.checkers._steps import Step
from arbiter.linting._topology import Level, Node, Outcome

_STATES = 5_000
_MOVES = 256

Test = Callable[[Node], bool]


@dataclass(slots=True)
class Runs:
    """The result for all runs of the graph.

    `reached`: for each node that `watches`, by its full name, the shortest path to it with each mark. `ends`: the
    marks with which a run can end. `complete` is False if there were too many runs to look at all.
    """

    reached: dict[str, dict[int, tuple[str, ...]]] = field(
        default_factory=dict[str, dict[int, tuple[str, ...]]]
    )
    ends: set[int] = field(default_factory=set[int])
    complete: bool = True

    def reach(self, node: str, mark: int, path: tuple[str, ...]) -> None:
        paths = self.reached.setdefault(node, {})
        if mark not in paths or len(path) < len(paths[mark]):
            paths[mark] = path


@dataclass(frozen=True, slots=True)
class _At:
    """The state between two supersteps: active nodes, nodes that wait for the others to end, open joins, and
    the mark.
    """

    active: frozenset[str]
    held: frozenset[str]
    arrived: frozenset[tuple[int, str]]
    mark: int


@dataclass(frozen=True, slots=True)
class _Move:
    """The effect of one node in a superstep: the mark that it sets, 0 for none, or whether it removes it."""

    name: str
    outcome: Outcome
    mark: int
    clears: bool = False


@dataclass(slots=True, kw_only=True)
class Explorer:
    """Plays the runs of a graph. A node that does one of `steps` raises the mark to its number, after the one before
    it; `watches` selects the nodes of interest.

    With `resets`, a watched node removes the mark, and so does a node that `clears` names, even next to a
    node that sets it. With `stays`, a node that a router redirects sets no mark. Without `guesses`,
    undeclared choices lead nowhere.
    """

    steps: Sequence[Step]
    watches: Test
    resets: bool = False
    clears: Test | None = None
    stays: bool = False
    guesses: bool = True
    _known: dict[tuple[int, int], Runs] = field(init=False, default_factory=dict[tuple[int, int], Runs])

    def play(self, level: Level, mark: int = 0) -> Runs:
        """All runs of this graph that begin with that mark."""
        key = (id(level), mark)
        if key not in self._known:
            self._known[key] = Runs(ends={mark})  # for a graph that contains itself
            self._known[key] = self._play(level, mark)
        return self._known[key]

    def _play(self, level: Level, mark: int) -> Runs:
        runs = Runs()
        begin = _At(frozenset({START}), frozenset(), frozenset(), mark)
        # For each state the path to each of its nodes, active or held back.
        paths: dict[_At, dict[str, tuple[str, ...]]] = {begin: {START: (START,)}}
        ahead = deque([begin])
        while ahead:
            at = ahead.popleft()
            for name in at.active - {START}:
                self._look(level, name, at.mark, paths[at][name], runs)
            for new, came in self._next(level, at, runs):
                if not new.active:
                    runs.ends.add(new.mark)
                elif new not in paths:
                    if len(paths) >= _STATES:
                        runs.complete = False
                        return runs
                    paths[new] = _paths(level, paths[at], at, came)
                    ahead.append(new)
        return runs

    def _look(self, level: Level, name: str, mark: int, path: tuple[str, ...], runs: Runs) -> None:
        node = level.nodes[name]
        if self.watches(node):
            runs.reach(node.full, mark, path)
        for inner in self._played(node, mark)[0]:
            runs.complete &= inner.complete
            for full, found in inner.reached.items():
                for seen, rest in found.items():
                    runs.reach(full, seen, (*path, *rest[1:]))

    def _played(self, node: Node, mark: int) -> tuple[list[Runs], set[int]]:
        """The runs of the graphs that are the node's body, one after another, and the marks at their end."""
        played: list[Runs] = []
        marks = {0}
        for level in node.graphs:
            if level.known:
                now = [(begin, self.play(level, begin)) for begin in (sorted(marks) if played else [mark])]
                played += [runs for _, runs in now]
                marks = {end for begin, runs in now for end in runs.ends or {begin}}
        return played, marks

    def _next(self, level: Level, at: _At, runs: Runs) -> Iterator[tuple[_At, dict[str, str]]]:
        """The possible next states, and for each of their new nodes the node that led to it."""
        options = [self._moves(level, name, at.mark) for name in sorted(at.active)]
        moves = list(itertools.islice(itertools.product(*options), _MOVES + 1))
        if len(moves) > _MOVES:
            runs.complete = False
        for chosen in moves[:_MOVES]:
            yield _after(level, at, chosen, self._marked(level, at, chosen))

    def _moves(self, level: Level, name: str, mark: int) -> list[_Move]:
        node = level.nodes.get(name)
        played, marks = ([], {0}) if node is None else self._played(node, mark)
        done = min(mark, len(self.steps) - 1)
        own = node is not None and node.does(self.steps[done])
        cleared = node is not None and not own and self.clears is not None and self.clears(node)
        inside = self.clears is not None and bool(played)
        if own:
            marks = {done + 1}
        elif cleared:
            marks = {0}
        return [
            _Move(
                name,
                outcome,
                made if outcome.ran and not (own and self.stays and outcome.redirected) else 0,
                outcome.ran and not made and (cleared or (inside and mark > 0)),
            )
            for outcome in level.outcomes(name, guesses=self.guesses)
            for made in sorted(marks)
        ]

    def _marked(self, level: Level, at: _At, chosen: tuple[_Move, ...]) -> int:
        if any(move.clears for move in chosen):
            return 0
        used = self.resets and any(
            move.outcome.ran and self.watches(level.nodes[move.name]) for move in chosen if move.name != START
        )
        return max(0 if used else at.mark, *(move.mark for move in chosen))


def _after(level: Level, at: _At, chosen: tuple[_Move, ...], mark: int) -> tuple[_At, dict[str, str]]:
    came: dict[str, str] = {}
    arrived = set(at.arrived)
    for move in chosen:
        for target in move.outcome.targets:
            came.setdefault(target, move.name)
        if not move.outcome.redirected and move.outcome.ran:
            for index, join in enumerate(level.joins):
                if move.name in join.starts:
                    arrived.add((index, move.name))
                    if all((index, start) in arrived for start in join.starts):
                        came.setdefault(join.end, move.name)
    for index, join in enumerate(level.joins):
        if join.end in came and all((index, start) in arrived for start in join.starts):
            arrived -= {(index, start) for start in join.starts}
    triggered = frozenset(came)
    late = frozenset(name for name in triggered if level.nodes[name].deferred)
    held = at.held | late
    active = triggered - late
    if not active and held:
        active, held = held, frozenset[str]()
    return _At(active, held, frozenset(arrived), mark), came


def _paths(
    level: Level, before: dict[str, tuple[str, ...]], at: _At, came: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    paths = {name: before[name] for name in at.held}
    for name, source in came.items():
        paths[name] = (*before[source], level.full(name))
    return paths
