"""A governed graph behaves as the graph it was made from: the matrix of node kinds, entry points, states, shapes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from arbiter import ArbiterOS
from tests import graphs
from tests.graphs import Governing, Observed, Recorder, bare


@dataclass(frozen=True)
class Case:
    driver: str
    kind: str
    entry: str
    state: str
    topology: str
    saver: str
    fails: bool
    alone: bool
    """One task at a time, which gives parallel branches an order."""

    @property
    def ordered(self) -> bool:
        return self.alone or self.topology not in graphs.PARALLEL | {"Command"}

    @property
    def limit(self) -> int | None:
        return 1 if self.alone else None

    def __str__(self) -> str:
        parts = [self.driver, self.kind, self.entry, self.state, self.topology, self.saver]
        return "-".join([*parts, "fails" if self.fails else "works", "alone" if self.alone else "free"])


CASES = [
    Case(*row)
    for row in graphs.pairwise(
        ("sync", "async"),
        graphs.BODIES,
        graphs.ENTRIES,
        tuple(graphs.STATES),
        graphs.TOPOLOGIES,
        graphs.SAVERS,
        (False, True),
        (False, True),
    )
]


def observe(case: Case, governing: Governing) -> tuple[dict[str, Any], list[Any]]:
    """Everything that can be seen of one run, and what its checkpointer holds."""
    if case.driver == "async":
        return asyncio.run(_aobserve(case, governing))
    recorder = Recorder()
    config = graphs.config_of("one", recorder, case.limit)
    with graphs.saver(case.saver) as saver:
        graph = _graph(case, governing, saver)
        seen = graphs.run(graph, case.entry, graphs.INPUT, config)
        snapshots: list[Any] = []
        saved: list[Any] = []
        if saver is not None:
            plain = graphs.config_of("one", None, None)
            snapshots = [graph.get_state(plain, subgraphs=True), *graph.get_state_history(plain)]
            saved = list(saver.list(plain))
    return _account(case, seen, recorder, snapshots), saved


async def _aobserve(case: Case, governing: Governing) -> tuple[dict[str, Any], list[Any]]:
    recorder = Recorder()
    config = graphs.config_of("one", recorder, case.limit)
    async with graphs.asaver(case.saver) as saver:
        graph = _graph(case, governing, saver)
        seen = await graphs.arun(graph, case.entry, graphs.INPUT, config)
        snapshots: list[Any] = []
        saved: list[Any] = []
        if saver is not None:
            plain = graphs.config_of("one", None, None)
            snapshots = [await graph.aget_state(plain, subgraphs=True)]
            snapshots += [snapshot async for snapshot in graph.aget_state_history(plain)]
            saved = [checkpoint async for checkpoint in saver.alist(plain)]
    return _account(case, seen, recorder, snapshots), saved


def _graph(case: Case, governing: Governing, saver: Any) -> Any:
    graph = graphs.make(
        case.kind, case.state, case.topology, fails=case.fails, governing=governing
    )
    return governing(graph.compile(checkpointer=saver, name="outer"))


def _account(
    case: Case, seen: Observed, recorder: Recorder, snapshots: list[Any]
) -> dict[str, Any]:
    return graphs.account(seen, recorder, snapshots, ordered=case.ordered)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_governed_equals_ungoverned(case: Case) -> None:
    """Outputs, chunks, callback events, exceptions and states are those of the graph without Arbiter, with nothing
    registered (then also all that the checkpointer holds) and with policies and evaluators that let everything pass."""
    expected, saved = observe(case, bare)
    governed, governed_saved = observe(case, ArbiterOS().govern)
    assert governed == expected
    ordered = case.ordered
    assert graphs.raw_checkpoints(governed_saved, ordered=ordered) == graphs.raw_checkpoints(
        saved, ordered=ordered
    )
    arbiter_os = graphs.with_policies(asynchronous=case.driver == "async")
    governed, _ = observe(case, arbiter_os.govern)
    assert governed == expected
    assert arbiter_os.drain(10)
