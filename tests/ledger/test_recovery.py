"""Node runs that a killed process had committed to its checkpointer come back into the ledger, once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    EvaluationResult,
    HistoryItem,
    HistoryListener,
    NodeEvaluator,
)
from arbiter.ledger import Ledger, LedgerError
from arbiter.ledger._writer import Writer
from tests.ledger.ledger_support import between_hundredths, conf, sql
from tests.ledger.recovery_story import THREAD, later, story
from tests.processes import python
from tests.support import MODES, Spy, State, chain, run


def runs(tmp_path: Path, kill_at: int) -> int:
    paths = str(tmp_path / "checkpoints.db"), str(tmp_path / "l.db")
    return subprocess.run(
        [*python("-m", "tests.ledger.recovery_story"), *paths, str(kill_at)], check=False
    ).returncode


def recorded(path: Path) -> Counter[tuple[Any, ...]]:
    """The node runs that went well or were redirected, with their kind of entry."""
    with sql(path) as select:
        return Counter(
            select(
                "SELECT kind, node, status FROM entries WHERE kind IN ('item', 'recovered') AND status <> 'cancelled'"
            )
        )


def committed(app: Any) -> Counter[tuple[str, str]]:
    """The node runs that the checkpoint knows."""
    facts = app.channels["__arbiter_ledger"]
    saved = app.checkpointer.get_tuple(THREAD).checkpoint["channel_values"]["__arbiter_ledger"]
    past = facts.from_checkpoint(saved).past
    return Counter((fact["node"], fact.get("status", "completed")) for fact in past.value["facts"])


def without_kind(found: Counter[tuple[Any, ...]]) -> Counter[tuple[str, str]]:
    bare: Counter[tuple[str, str]] = Counter()
    for (_, node, status), number in found.items():
        bare[node, status] += number
    return bare


@pytest.mark.lengthy
@pytest.mark.parametrize("kill_at", [2, *(pytest.param(at, marks=pytest.mark.slow) for at in (5, 8))])
def test_a_thread_that_goes_on_after_a_kill_has_each_node_run_once(tmp_path: Path, kill_at: int) -> None:
    assert runs(tmp_path, kill_at) == -signal.SIGKILL
    assert recorded(tmp_path / "l.db") == {}
    assert runs(tmp_path, 0) == 0
    found = recorded(tmp_path / "l.db")
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver,
        Ledger(tmp_path / "l.db") as ledger,
    ):
        app = story(saver, ledger, 0)
        assert without_kind(found) == committed(app)
        assert sum(number for (kind, *_), number in found.items() if kind == "recovered") > 0
        assert ledger.recover(app) == 0
        assert ledger.verify()
        (thread,) = ledger.threads()
        assert (thread["thread_id"], thread["subject"], thread["outcome"]) == ("t", "ann", "completed")


@pytest.mark.lengthy
def test_recover_adds_what_is_missing_without_a_run(tmp_path: Path) -> None:
    """The entries have scores that rules had read, and no contents."""
    assert runs(tmp_path, 7) == -signal.SIGKILL
    with (
        SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver,
        Ledger(tmp_path / "l.db") as ledger,
    ):
        app = story(saver, ledger, 0)
        added = ledger.recover(app)
        assert added > 3
        assert ledger.recover(app, thread_id="t") == 0
        assert {kind for kind, *_ in recorded(tmp_path / "l.db")} == {"recovered"}
        assert sum(1 for _ in ledger.items()) == added
        scores = [item.evaluation_results["score"].score for item in ledger.items(evaluator="score")]
        assert scores == [0.75, 0.25]
        assert [item.redirected_to for item in ledger.items(node="draft")] == [None, "again"]
        with sql(tmp_path / "l.db") as select:
            assert select("SELECT COUNT(*) FROM contents") == [(0,)]
        assert ledger.counts("node")
        assert ledger.verify()


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_a_ledger_that_lacks_node_runs_gets_them_and_goes_on(
    tmp_path: Path, request: pytest.FixtureRequest, where: str
) -> None:
    url = tmp_path / "l.db" if where == "sqlite" else request.getfixturevalue("postgres_url")
    saver = InMemorySaver()

    def app_of(ledger: Ledger, **options: Any) -> Any:
        return ArbiterOS(ledger=ledger, **options).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))

    with Ledger(tmp_path / "other.db") as other:
        app_of(other).invoke({}, conf("t"))
    with Ledger(url) as ledger:
        app = app_of(ledger, clock=later)
        assert ledger.recover(app) == 2
        app.invoke({}, conf("t"))
        assert ledger.flush(20)
        nodes = [(item.node, bool(item.output_state)) for item in ledger.history("t").items()]
        assert nodes == [("a", False), ("b", False), ("a", True), ("b", True)]
        assert ledger.verify()


def with_ten_threads(path: Path) -> InMemorySaver:
    """The checkpoints of ten threads whose runs another ledger has."""
    saver = InMemorySaver()
    with Ledger(path) as other:
        app = ArbiterOS(ledger=other).govern(chain(Spy("a"), checkpointer=saver))
        for number in range(10):
            app.invoke({}, conf(f"t{number}"))
    return saver


def test_recover_adds_more_threads_than_may_wait_in_the_queue(tmp_path: Path) -> None:
    saver = with_ten_threads(tmp_path / "other.db")
    with Ledger(tmp_path / "l.db", queue=3) as ledger:
        app = ArbiterOS(ledger=ledger, clock=later).govern(chain(Spy("a"), checkpointer=saver))
        assert ledger.recover(app) == 10


def test_recover_says_if_it_could_not_write_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was busy for a minute, and no longer."""
    saver = with_ten_threads(tmp_path / "other.db")
    with Ledger(tmp_path / "l.db", queue=3) as ledger:
        app = ArbiterOS(ledger=ledger, clock=later).govern(chain(Spy("a"), checkpointer=saver))
        answers, flush = [False], Writer.flush

        def busy_once(writer: Writer, timeout: float | None = None) -> bool:
            return answers.pop() if answers else flush(writer, timeout)

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "flush", busy_once)
            with pytest.raises(LedgerError, match="the recovered entries could not be written"):
                ledger.recover(app)
        ledger.recover(app)
        assert sum(1 for _ in ledger.threads()) == 10


def test_a_process_that_has_forgotten_a_thread_adds_nothing_twice(tmp_path: Path) -> None:
    """Node runs that are still queued here are not lost, even if they ended long ago by the clock."""
    saver = InMemorySaver()
    with Ledger(tmp_path / "l.db", flush_every=60) as ledger:
        for number in range(3):
            arbiter_os = ArbiterOS(ledger=ledger, keep=1, clock=partial(float, 60 * number))
            app = arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=saver))
            app.invoke({"amount": number}, conf("t"))
        assert ledger.flush(20)
        assert recorded(tmp_path / "l.db") == {("item", node, "completed"): 3 for node in "abc"}


def test_a_start_between_two_hundredths_of_a_second_is_found_again(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        between_hundredths(ledger)
        assert recorded(tmp_path / "l.db") == {("item", node, "completed"): 3 for node in "abc"}


@pytest.mark.lengthy
def test_a_node_run_that_waits_for_its_evaluation_is_not_lost(tmp_path: Path) -> None:
    saver, judged = InMemorySaver(), threading.Event()

    class Slow(NodeEvaluator):
        def evaluate(self, history: Any) -> EvaluationResult:
            judged.wait(20)
            return EvaluationResult(1.0, passed=True)

    with Ledger(tmp_path / "l.db", flush_every=60) as ledger:
        first = ArbiterOS(ledger=ledger)
        first.add_evaluator(Slow("slow"))
        for arbiter_os in (first, ArbiterOS(ledger=ledger, clock=later)):
            app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
            app.invoke({}, conf("t"))
        assert not ledger.flush(0.1)
        judged.set()
        assert ledger.flush(20)
        assert recorded(tmp_path / "l.db") == {("item", "a", "completed"): 2, ("item", "b", "completed"): 2}


class Restored(HistoryListener):
    """Collects the node runs that have no record in this process."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def restored(self, items: Sequence[HistoryItem]) -> None:
        self.nodes += [item.node for item in items]


class Clock:
    """A clock far from the ledger's."""

    def __init__(self) -> None:
        self.at = 1_000_000_000.0

    def __call__(self) -> float:
        return self.at


def asks(saver: Any, clock: Clock) -> Any:
    """A graph with a subgraph that asks a question in its second node."""

    def node(name: str) -> Any:
        def body(state: Any) -> Any:
            clock.at += 60.0
            if name == "ask":
                interrupt("go on?")
            return {"log": [name]}

        return body

    inner = StateGraph(State)
    outer: Any = StateGraph(State)
    for graph, names in ((inner, ("x", "ask", "z")), (outer, ("a", "sub", "b"))):
        for name in names:
            graph.add_node(name, inner.compile() if name == "sub" else node(name))
        graph.add_edge(START, names[0])
        graph.add_edge(names[0], names[1])
        graph.add_edge(names[1], names[2])
    return outer.compile(checkpointer=saver)


def call(arbiter_os: ArbiterOS, clock: Clock, path: Path, mode: str, given: Any) -> None:
    async def acall() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            await arbiter_os.govern(asks(saver, clock)).ainvoke(given, THREAD)

    if mode == "async":
        asyncio.run(acall())
        return
    with SqliteSaver.from_conn_string(str(path)) as saver:
        arbiter_os.govern(asks(saver, clock)).invoke(given, THREAD)


@MODES
@pytest.mark.parametrize("process", ["same", "another"])
def test_a_subgraph_that_goes_on_after_a_question_has_each_node_run_once(
    tmp_path: Path, mode: str, process: str
) -> None:
    """Listeners hear of restored node runs only from another process, and the ledger has those already."""
    clock, heard = Clock(), Restored()
    with ExitStack() as stack:

        def begun() -> ArbiterOS:
            ledger = stack.enter_context(Ledger(tmp_path / "l.db", flush_every=60))
            return ArbiterOS(ledger=ledger, clock=clock, listeners=[heard])

        arbiter_os = begun()
        for _ in range(2):
            call(arbiter_os, clock, tmp_path / "c.db", mode, {"log": []})
            if process == "another":
                stack.close()
                arbiter_os = begun()
            call(arbiter_os, clock, tmp_path / "c.db", mode, Command(resume="yes"))
    assert bool(heard.nodes) == (process == "another")
    found = recorded(tmp_path / "l.db")
    assert {node for _, node, _ in found} == {"a", "x", "ask", "z", "sub", "b"}
    assert found == {
        **{("item", node, "completed"): 2 for node in ("a", "x", "ask", "z", "sub", "b")},
        **{("item", node, "interrupted"): 2 for node in ("ask", "sub")},
    }


@pytest.mark.parametrize("clock", [time.time, lambda: 1e9], ids=["real", "own"])
@pytest.mark.lengthy
def test_a_thread_that_another_process_takes_over_at_once_has_each_node_run_once(
    tmp_path: Path, clock: Callable[[], float]
) -> None:
    """The queue of the first process is not lost: the second process waits for it a little."""
    saver, path = InMemorySaver(), tmp_path / "l.db"
    with Ledger(path, flush_every=60) as first, Ledger(path, flush_every=0.05) as second:
        for ledger in (first, second):
            app = ArbiterOS(ledger=ledger, clock=clock).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
            run(app, {}, conf("t"))
        assert not second.flush(0.3)
        assert first.flush(20)
        assert second.flush(20)
        assert recorded(path) == {("item", "a", "completed"): 2, ("item", "b", "completed"): 2}


@pytest.mark.lengthy
def test_a_thread_that_two_processes_run_in_quick_turns_has_each_node_run_once(tmp_path: Path) -> None:
    """No process keeps its own node runs back until it knows what became of those of the other."""
    saver, path, turns = InMemorySaver(), tmp_path / "l.db", 24
    with Ledger(path) as first, Ledger(path) as second:
        apps = [
            ArbiterOS(ledger=ledger).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
            for ledger in (first, second)
        ]
        for turn in range(turns):
            run(apps[turn % 2], {}, conf("t"))
            time.sleep(0.02)
        assert first.flush(20)
        assert second.flush(20)
        assert recorded(path) == {("item", "a", "completed"): turns, ("item", "b", "completed"): turns}


@pytest.mark.lengthy
def test_the_history_has_what_was_recovered_before_the_runs_that_came_after_it(tmp_path: Path) -> None:
    """Node runs that another process could still have had in its queue are written later than those."""
    saver, path = InMemorySaver(), tmp_path / "l.db"
    with Ledger(path) as ledger:
        for given in (tmp_path / "lost.db", ledger):
            app = ArbiterOS(ledger=given).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
            run(app, {}, conf("t"))
            run(app, {}, conf("t"))
        assert ledger.flush(20)
        with sql(path) as select:
            assert [kind for (kind,) in select("SELECT kind FROM entries ORDER BY id")] == [
                *["item", "item", "execution"] * 2,
                *["recovered"] * 4,
            ]
        steps = [item.step for item in ledger.history("t").items()]
        assert len(steps) == 8
        assert steps == sorted(steps)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "name"),
    [("item", "at"), ("item", "took"), ("item", "past"), ("item", "execution"), ("recovered", "at")],
)
def test_a_changed_entry_beside_recovered_node_runs_is_a_sentence(
    tmp_path: Path, kind: str, name: str
) -> None:
    saver = InMemorySaver()
    with Ledger(tmp_path / "lost.db") as lost, Ledger(tmp_path / "l.db") as ledger:
        for given in (lost, ledger):
            app = ArbiterOS(ledger=given, clock=later).govern(chain(Spy("a"), checkpointer=saver))
            app.invoke({}, conf("t"))
        assert ledger.recover(app) == 1
        app.invoke({}, conf("t"))
        assert ledger.flush(20)
        with sql(tmp_path / "l.db") as change:
            for number, body in change("SELECT id, body FROM entries WHERE kind = ?", kind):
                changed = json.dumps({**json.loads(body), name: ["x"]}, separators=(",", ":"))
                change("UPDATE entries SET body = ? WHERE id = ?", changed, number)
        with pytest.raises(LedgerError, match=r"entry \d of thread 't' cannot be read"):
            ledger.history("t")


CRASHES = """
import os
import sys
from langgraph.checkpoint.sqlite import SqliteSaver
from arbiter import ArbiterOS
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import conf
from tests.support import Spy, chain

with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    arbiter_os = ArbiterOS(ledger=Ledger(sys.argv[2], ahead="always"), clock=lambda: 1e9)
    arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=saver)).invoke({}, conf("t"))
    os._exit(0)
"""


def test_a_recovered_node_run_stays_behind_the_quick_ones_of_its_own_call(tmp_path: Path) -> None:
    """The crash lost only the last of them. The checkpoint's times do not say which was earlier."""
    saved, path = str(tmp_path / "c.db"), tmp_path / "l.db"
    subprocess.run([*python("-c", CRASHES), saved, str(path)], check=True)
    with SqliteSaver.from_conn_string(saved) as saver, Ledger(path) as ledger:
        app = ArbiterOS(ledger=ledger, clock=later).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
        app.invoke({}, conf("t"))
        assert ledger.flush(20)
        assert recorded(path) == {
            ("item", "a", "completed"): 2,
            ("item", "b", "completed"): 1,
            ("recovered", "b", "completed"): 1,
        }
        assert [item.node for item in ledger.history("t").items()] == ["a", "b", "a", "b"]


@pytest.mark.lengthy
def test_what_was_erased_does_not_come_back_under_its_name(tmp_path: Path) -> None:
    saver = InMemorySaver()
    with Ledger(tmp_path / "l.db") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("a"), Spy("b"), checkpointer=saver)).invoke({}, conf("t"))
        ledger.erase(thread_id="t", reason="request 1")
        app = ArbiterOS(ledger=ledger, clock=later).govern(chain(Spy("a"), Spy("b"), checkpointer=saver))
        assert ledger.recover(app) == 0
        app.invoke({}, conf("t"))
        assert ledger.flush(20)
        assert recorded(tmp_path / "l.db") == {("item", "a", "completed"): 2, ("item", "b", "completed"): 2}


def test_a_ledger_that_comes_late_knows_what_the_checkpoints_know(tmp_path: Path) -> None:
    saver = InMemorySaver()
    before = ArbiterOS(listeners=[HistoryListener()])
    before.govern(chain(Spy("a"), Spy("b"), checkpointer=saver)).invoke({}, conf("t"))
    with Ledger(tmp_path / "l.db") as ledger:
        after = ArbiterOS(ledger=ledger, clock=later)
        run(after.govern(chain(Spy("a"), Spy("b"), checkpointer=saver)), {}, conf("t"))
        assert ledger.flush(20)
        found = recorded(tmp_path / "l.db")
        assert found["recovered", "a", "completed"] == found["item", "a", "completed"] == 1


def test_recover_needs_a_graph_with_this_ledger_and_a_checkpointer(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        with pytest.raises(
            ConfigurationError, match="expected a graph that an ArbiterOS with this ledger governs"
        ):
            ledger.recover(chain(Spy("a")))
        with pytest.raises(ConfigurationError, match="has no checkpointer"):
            ledger.recover(ArbiterOS(ledger=ledger).govern(chain(Spy("a"))))
