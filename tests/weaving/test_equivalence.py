"""A governed graph behaves as the graph it was made from: the matrix of node kinds, entry points, states, shapes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from arbiter import ArbiterOS
from tests import graphs
from tests.graphs import Governing, Observed, Recorder, bare

pytestmark = pytest.mark.lengthy


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
    def parallel(self) -> bool:
        return self.topology in graphs.PARALLEL | {"Command"}

    @property
    def body(self) -> str:
        """An async function fails in a sync run, which is chance among branches."""
        return "function" if self.parallel and self.driver == "sync" and "async" in self.kind else self.kind

    @property
    def options(self) -> dict[str, Any]:
        """A join's channel hands its own set to the checkpointer, which may save it after the next step changed it."""
        return {"durability": "sync"} if self.topology == "join" and self.saver != "none" else {}

    @property
    def single_file(self) -> bool:
        """Whether branches run one after another. LangGraph streams these modes with a thread of the same pool,
        so that one thread is not enough."""
        hindered = self.driver == "sync" and self.entry in ("custom", "messages", "list", "subgraphs", "v2")
        return (self.alone or self.breaks) and not hindered

    @property
    def breaks(self) -> bool:
        """Whether `work` fails. Which of several branches fails first, and how far the others got by then, is
        chance unless they run in single file."""
        streams = self.entry not in ("invoke", "values", "updates", "batch")
        left_behind = self.driver == "async" and self.entry == "batch"  # the task of the other run
        return self.fails and not left_behind and not (self.parallel and (self.driver == "async" or streams))

    @property
    def ordered(self) -> bool:
        return self.single_file or not (self.parallel or self.entry == "batch")

    def __str__(self) -> str:
        parts = [self.driver, self.kind, self.entry, self.state, self.topology, self.saver]
        return "-".join([*parts, "fails" if self.fails else "works", "alone" if self.alone else "free"])


BESIDE = (tuple(graphs.STATES), graphs.TOPOLOGIES, graphs.SAVERS, (False, True), (False, True))
ALL_MODES = ("invoke", "list", "subgraphs", "v2", "events", "batch")
"""Entry points that stream all modes at once, or none. Each meets each kind of node."""
SINGLE_MODES = tuple(entry for entry in graphs.ENTRIES if entry not in ALL_MODES)
"""Entry points that stream one of the modes. Each meets each driver."""
CASES = [
    *(Case(*row) for row in graphs.pairwise(("sync", "async"), graphs.BODIES, ALL_MODES, *BESIDE)),
    *(
        Case(driver, *row)
        for (driver, entry), (kind, _, *beside) in zip(
            product(("sync", "async"), SINGLE_MODES),
            graphs.pairwise(graphs.BODIES, ALL_MODES, *BESIDE),
            strict=False,
        )
        for row in [(kind, entry, *beside)]
    ),
]


def observe(case: Case, governing: Governing) -> tuple[dict[str, Any], list[Any]]:
    """Everything that can be seen of one run, and what its checkpointer holds."""
    if case.driver == "async":
        return asyncio.run(_aobserve(case, governing))
    recorder = Recorder()
    config = graphs.config_of("one", recorder, 1 if case.single_file else None)
    with graphs.saver(case.saver) as saver:
        graph = _graph(case, governing, saver)
        seen = graphs.run(graph, case.entry, graphs.INPUT, config, **case.options)
        snapshots: list[Any] = []
        saved: list[Any] = []
        if saver is not None:
            plain = graphs.config_of("one", None, None)
            snapshots = [graph.get_state(plain, subgraphs=True), *graph.get_state_history(plain)]
            saved = list(saver.list(plain))
    return _account(case, seen, recorder, snapshots), saved


async def _aobserve(case: Case, governing: Governing) -> tuple[dict[str, Any], list[Any]]:
    recorder = Recorder()
    config = graphs.config_of("one", recorder, 1 if case.single_file else None)
    async with graphs.asaver(case.saver) as saver:
        graph = _graph(case, governing, saver)
        seen = await graphs.arun(graph, case.entry, graphs.INPUT, config, **case.options)
        snapshots: list[Any] = []
        saved: list[Any] = []
        if saver is not None:
            plain = graphs.config_of("one", None, None)
            snapshots = [await graph.aget_state(plain, subgraphs=True)]
            snapshots += [snapshot async for snapshot in graph.aget_state_history(plain)]
            saved = [checkpoint async for checkpoint in saver.alist(plain)]
    if case.entry == "batch" and seen.error is not None:
        # Tasks of the other run are left behind; what they still report and save is chance.
        return {"error": graphs.Names().plain(seen.error)}, []
    return _account(case, seen, recorder, snapshots), saved


def _graph(case: Case, governing: Governing, saver: Any) -> Any:
    graph = graphs.make(case.body, case.state, case.topology, fails=case.breaks, governing=governing)
    return governing(graph.compile(checkpointer=saver, name="outer"))


def _account(case: Case, seen: Observed, recorder: Recorder, snapshots: list[Any]) -> dict[str, Any]:
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
    assert arbiter_os.drain(60)
