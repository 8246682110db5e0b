"""The path that a thread took through its graph, as nodes and arrows with counts.

    description of the graph + bodies of node runs ─▶ Drawing ─▶ JSON beside the page ─▶ dagre ─▶ SVG

An arrow counts as taken by these facts. Within a run of a graph, supersteps follow one another. A node run that
was redirected went to its target and nowhere else, and one that was denied went nowhere unless it was redirected.
An arrow without a condition was taken if its source has completed since its target ran before, so that joins
count all of their sources. An arrow with a condition was taken if the entry of its source names the target. A
target that is no arrow of the graph was reached by a `Command` or a `Send`. Entries from before these names were
recorded count as leading to all that ran in the next superstep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

START, END = "__start__", "__end__"
Body = Mapping[str, Any]
ArrowKind = Literal["edge", "condition", "redirect", "jump"]
Edges = Mapping[tuple[str, str], bool]
"""The arrows of a graph by source and target: True for those with a condition."""
Taken = tuple[tuple[str, str], ArrowKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node with the numbers of its runs."""

    name: str
    instruction: str | None
    runs: int
    denied: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A connection of two nodes, and how often it was taken: 0 for never."""

    source: str
    target: str
    kind: ArrowKind
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One graph with the path that was taken through it."""

    name: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]

    def to_dict(self) -> dict[str, Any]:
        """The drawing as data for the script that draws it."""
        return {
            "name": self.name,
            "nodes": [
                {"id": box.name, "instruction": box.instruction, "runs": box.runs, "denied": box.denied,
                 "failed": box.failed}
                for box in self.boxes
            ],
            "edges": [
                {"from": arrow.source, "to": arrow.target, "kind": arrow.kind, "count": arrow.count}
                for arrow in self.arrows
            ],
        }  # fmt: skip


def drawing_of(graph: Mapping[str, Any], bodies: Iterable[Body], outcomes: Mapping[str, str]) -> Drawing:
    """The path of node runs through a graph.

    `graph` is its description in the ledger, `bodies` are those of its node runs, oldest first, and `outcomes` maps
    runs to how they ended.
    """
    edges: Edges = {(source, target): bool(conditional) for source, target, conditional in graph["edges"]}
    newest = list({body.get("task") or body["key"]: body for body in bodies}.values())
    taken: Counter[tuple[str, str]] = Counter()
    kinds: dict[tuple[str, str], ArrowKind] = {}
    for (run, _), part in _sequences(newest).items():
        for pair, kind in _taken(edges, part, outcomes.get(run)):
            taken[pair] += 1
            kinds.setdefault(pair, kind)
    counts = {
        status: Counter(_name(body) for body in newest if status in (None, body.get("status")))
        for status in (None, "denied", "failed")
    }
    instructions: Mapping[str, str | None] = graph["nodes"]
    ends = (name for pair in (*edges, *taken) for name in pair)
    return Drawing(
        name=str(graph.get("name", "")),
        boxes=[
            Box(
                name=name,
                instruction=instructions.get(name),
                runs=counts[None][name],
                denied=counts["denied"][name],
                failed=counts["failed"][name],
            )
            for name in dict.fromkeys((*instructions, *ends, *counts[None]))
        ],
        arrows=[
            Arrow(source=pair[0], target=pair[1], kind=_kind(edges, kinds, pair), count=taken[pair])
            for pair in dict.fromkeys((*edges, *taken))
        ],
    )


def _kind(edges: Edges, kinds: Mapping[tuple[str, str], ArrowKind], pair: tuple[str, str]) -> ArrowKind:
    """An arrow of the graph itself is an edge or has a condition; others are named by how they were taken."""
    if pair not in edges:
        return kinds[pair]
    return "condition" if edges[pair] else "edge"


def _sequences(bodies: Iterable[Body]) -> dict[tuple[str, str], list[Body]]:
    """The node runs by their run and by the call of the graph in it."""
    found: dict[tuple[str, str], list[Body]] = {}
    for body in bodies:
        call = str(body.get("namespace", ""))
        found.setdefault((str(body.get("run", "")), call), []).append(body)
    return found


def _taken(edges: Edges, bodies: Sequence[Body], outcome: str | None) -> Iterator[Taken]:
    """The arrows that one call of a graph took, one by one."""
    call = _Call(edges)
    ordered = sorted(bodies, key=_step)
    for _, step in groupby(ordered, key=_step):
        yield from call.advance(list(step))
    is_subgraph = any(body.get("namespace") for body in bodies)
    if outcome == "completed" or (outcome is None and is_subgraph):
        yield from call.ends(gone=frozenset())


def _step(body: Body) -> int:
    return int(body.get("step", 0))


class _Call:
    """One call of a graph while its supersteps are followed."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._waiting = {START}
        """The sources that have completed and were not redirected."""
        self._used: dict[str, set[str]] = {}
        """By target, the sources whose arrow without a condition it has taken since they completed."""
        self._before: Sequence[Body] = ()

    def advance(self, step: Sequence[Body]) -> Iterator[Taken]:
        """The arrows into a superstep, and those that lead from the one before it to the end."""
        arrows = [arrow for node in dict.fromkeys(_name(body) for body in step) for arrow in self._into(node)]
        yield from arrows
        yield from self.ends(gone=frozenset(source for (source, _), _ in arrows))
        for body in step:
            name = _name(body)
            self._waiting.discard(name)
            if body.get("status") == "completed" and target_of(body) is None:
                self._waiting.add(name)
                for sources in self._used.values():
                    sources.discard(name)
        self._before = step

    def _into(self, node: str) -> list[Taken]:
        used = self._used.setdefault(node, set())
        joined = sorted(source for source in self._waiting - used if self._edges.get((source, node)) is False)
        used.update(joined)
        found = self._of_kind("edge", joined, node)
        for source, target, sent in self._last():
            conditional = self._edges.get((source, node))
            if target == node:
                found += self._of_kind("redirect", [source], node)
            elif source in self._waiting and sent is not None:
                if node in sent and conditional is not False:
                    found += self._of_kind("condition" if conditional else "jump", [source], node)
            elif source in self._waiting and conditional is True:
                found += self._of_kind("condition", [source], node)
        if not self._before and self._edges.get((START, node)) is True:
            found += self._of_kind("condition", [START], node)
        # No edge leads here from a completed node, and the entry has no destination.
        ran = [source for source, _, sent in self._last() if source in self._waiting and sent is None]
        return list(dict.fromkeys(found)) or self._of_kind("jump", ran, node)

    def _of_kind(self, kind: ArrowKind, sources: Iterable[str], node: str) -> list[Taken]:
        return [((source, node), kind) for source in sources]

    def ends(self, *, gone: frozenset[str]) -> Iterator[Taken]:
        """The arrows from the newest superstep to the end: of nodes that went nowhere else, as `gone` did."""
        found: list[Taken] = []
        for source, target, sent in self._last():
            conditional = self._edges.get((source, END))
            if target == END:
                found.append(((source, END), "redirect"))
            elif source in self._waiting and conditional is not None and not sent and source not in gone:
                found.append(((source, END), "condition" if conditional else "edge"))
        yield from dict.fromkeys(found)

    def _last(self) -> Sequence[tuple[str, str | None, tuple[str, ...] | None]]:
        """The nodes of the superstep before, each with the node to which it was redirected, and those to which it
        led.
        """
        return list(dict.fromkeys((_name(body), target_of(body), _sent(body)) for body in self._before))


def _name(body: Body) -> str:
    return str(body["node"])


def _sent(body: Body) -> tuple[str, ...] | None:
    """The nodes to which a conditional edge or a command led; None if the entry does not say it."""
    found: Sequence[str] | None = body.get("sent")
    return None if found is None else tuple(found)


def target_of(body: Body) -> str | None:
    """The node to which a policy or a router has redirected a node run."""
    decision: Body = body.get("decision") or {}
    route: Body = body.get("route") or {}
    return route.get("target") or decision.get("target")
