"""With `ahead`, an entry proves that a node was allowed before its body runs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from arbiter import ArbiterOS, ArbiterWarning, ConfigurationError, PolicyViolationError, Verdict
from arbiter.ledger import Ledger
from arbiter.ledger._entries import checks_of
from tests.ledger.ledger_support import conf, sql
from tests.support import MODES, Check, Spy, chain, run

PAYS = {"pay": "TOOL_CALL"}
ACTS = {**PAYS, "write": "GENERATE"}


def started(path: Path) -> list[tuple[Any, ...]]:
    """The entries committed ahead that another connection finds."""
    with sql(path) as select:
        rows = select("SELECT body FROM entries WHERE kind = 'started' ORDER BY id")
    return [
        (body["node"], body["attempt"], checks_of(body)["ledger"])
        for body in (json.loads(row[0]) for row in rows)
    ]


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Another process keeps the write lock."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.execute("ROLLBACK")
    holder.close()


@MODES
def test_a_body_that_acts_finds_its_own_entry_through_another_connection(tmp_path: Path, mode: str) -> None:
    path, found = tmp_path / "l.db", list[Any]()

    def pay(state: Any) -> Any:
        found.extend(started(path))
        with Ledger(path) as other:
            assert other.verify().findings == []
        return {"log": ["pay"]}

    with Ledger(path, ahead="acts", flush_every=60) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(Spy("write"), pay), ACTS)
        run(app, {"amount": 7}, mode=mode)
        assert found == [("pay", 1, "allow")]
        assert ledger.flush(60)
        assert [item.node for item in ledger.items(order="oldest")] == ["write", "pay"]
        assert ledger.verify()


def test_the_entry_has_the_time_of_the_clock_that_the_run_goes_by(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", ahead="always") as ledger:
        ArbiterOS(ledger=ledger, clock=lambda: 1_700_000_000.0).govern(chain(Spy("write"))).invoke({})
        assert ledger.flush(60)
        with sql(tmp_path / "l.db") as select:
            assert {row[0] for row in select("SELECT at FROM entries WHERE kind = 'started'")} == {
                1_700_000_000_000_000
            }


@MODES
def test_with_always_each_body_has_an_entry(tmp_path: Path, mode: str) -> None:
    with Ledger(tmp_path / "l.db", ahead="always") as ledger:
        run(ArbiterOS(ledger=ledger).govern(chain(Spy("write"), Spy("pay")), ACTS), {}, mode=mode)
        assert [entry[0] for entry in started(tmp_path / "l.db")] == ["write", "pay"]


@pytest.mark.lengthy
@MODES
def test_a_node_that_acts_does_not_run_when_the_database_is_gone(tmp_path: Path, mode: str) -> None:
    """The denial names the policy `ledger` and the cause; a node that does not act runs."""
    path, write, pay = tmp_path / "l.db", Spy("write"), Spy("pay")
    ledger = Ledger(path, ahead="acts")
    app = ArbiterOS(ledger=ledger).govern(chain(write, pay), ACTS)
    kept = path.rename(tmp_path / "elsewhere.db")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PolicyViolationError) as denied:
        patch.setattr("arbiter.ledger._ahead.WITHIN", 0.5)
        run(app, {}, mode=mode)
    assert denied.value.policy == "ledger"
    assert "was removed; put it back" in str(denied.value)
    assert str(denied.value).startswith("policy 'ledger' denied node 'pay' (TOOL_CALL): ")
    assert (len(write.calls), pay.calls) == (1, [])
    kept.rename(path)
    assert ledger.flush(20)
    # What came too late is not written afterwards: it would say that a denied node was allowed.
    assert started(path) == []
    assert [(item.node, item.status) for item in ledger.items(order="oldest")] == [
        ("write", "completed"), ("pay", "denied")
    ]  # fmt: skip
    assert [item.node for item in ledger.items(verdict="deny", policy="ledger")] == ["pay"]
    ledger.close()


def test_an_entry_waits_for_a_lock_and_the_event_loop_goes_on_meanwhile(tmp_path: Path) -> None:
    """Another process that keeps the lock for a while delays the node and nothing else."""
    path, ticks = tmp_path / "l.db", 0

    async def main() -> Any:
        nonlocal ticks
        with locked(path):
            task = asyncio.ensure_future(app.ainvoke({}))
            while ticks < 50:
                await asyncio.sleep(0.001)
                ticks += 1
            assert not task.done()
        return await task

    with Ledger(path, ahead="acts") as ledger:
        pay = Spy("pay")
        app = ArbiterOS(ledger=ledger).govern(chain(pay), PAYS)
        assert asyncio.run(main())["log"] == ["pay"]
        assert started(path) == [("pay", 1, "allow")]


def test_a_run_that_is_cancelled_while_its_entry_waits_does_not_run_the_body(tmp_path: Path) -> None:
    path, pay = tmp_path / "l.db", Spy("pay")

    async def main() -> None:
        with locked(path):
            task = asyncio.ensure_future(app.ainvoke({}))
            while not arbiter_os.history.count():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with Ledger(path, ahead="acts") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        app = arbiter_os.govern(chain(pay), PAYS)
        asyncio.run(main())
        assert ledger.flush(20)
        assert [item.status for item in ledger.items()] == ["cancelled"]
    assert pay.calls == []


@MODES
def test_a_node_that_a_checker_or_a_human_does_not_allow_has_no_entry(tmp_path: Path, mode: str) -> None:
    """The entry says that everybody has allowed the node, so it is asked for last."""
    path, pay = tmp_path / "l.db", Spy("pay")
    asks = Check("limit", lambda history: Verdict.ask("too much"))
    with Ledger(path, ahead="acts") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(asks)
        app = arbiter_os.govern(chain(pay, checkpointer=InMemorySaver()), PAYS)
        run(app, {"amount": 9}, conf("t"), mode=mode)
        assert (started(path), pay.calls) == ([], [])
        run(app, Command(resume="approve"), conf("t"), mode=mode)
        assert ([entry[0] for entry in started(path)], len(pay.calls)) == (["pay"], 1)


def test_a_function_that_acts_has_its_entry_too(tmp_path: Path) -> None:
    path, found = tmp_path / "l.db", list[Any]()

    def pay(amount: int) -> int:
        found.extend(started(path))
        return amount

    with Ledger(path, ahead="acts") as ledger:
        assert ArbiterOS(ledger=ledger).govern(pay, instruction="TOOL_CALL")(5) == 5
    assert found == [("pay", 1, "allow")]


def test_a_closed_ledger_denies_what_acts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db", ahead="acts")
    app = ArbiterOS(ledger=ledger).govern(chain(Spy("pay")), PAYS)
    ledger.close()
    with pytest.raises(PolicyViolationError, match="the ledger is closed"):
        app.invoke({})


def test_an_unknown_value_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ahead is 'act'; expected one of .* Did you mean 'acts'\?"):
        Ledger(tmp_path / "l.db", ahead="act")  # type: ignore[arg-type]


def test_a_graph_in_which_no_node_acts_gets_a_warning(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", ahead="acts") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("write")), {"write": "GENERATE"})
        with pytest.warns(
            ArbiterWarning, match="checker 'ledger' applies to no node: no node has an instruction that"
        ):
            app.invoke({})
    with Ledger(tmp_path / "m.db", ahead="always") as ledger:
        ArbiterOS(ledger=ledger).govern(chain(Spy("write"))).invoke({})


def test_a_ledger_verifies_if_a_body_erases_the_thread_that_another_graph_ran_on(tmp_path: Path) -> None:
    """The last that the erased thread has of the second graph is `started`, which does not name the graph."""
    with Ledger(tmp_path / "l.db", ahead="always") as ledger:

        def forget(_: Any) -> None:
            ledger.erase(thread_id="t", reason="asked for")

        for node in (Spy("a"), forget):
            graph = chain(node, name=f"graph of {node.__name__}")
            ArbiterOS(ledger=ledger).govern(graph).invoke({}, conf("t"))
        assert ledger.flush(60)
        assert ledger.verify().findings == []
