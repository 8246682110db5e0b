"""The cost of a ledger, beside bare LangGraph and `SqliteSaver`. `python benchmarks/ledger.py`.

CPU is that of the whole process, the writer's thread and the evaluations included, until everything is
committed. A sample is several calls in a row and then a flush, because the writer works on what came in a
quarter of a second. All contestants run in one process, in rounds; the figures are medians of their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter.ledger import Ledger
from benchmarks.overhead import Graph, Number, chain, governed, increment, no_garbage, with_policies

LENGTH = 100
CALLS = 5
"""Calls of a sample."""
WAITS = 0.005
"""Seconds that each node of the second chain waits, as for a model."""
LIMITS = {
    "CPU added to a step / CPU of a bare step": 0.40,
    "CPU added to a step / CPU that SqliteSaver adds": 0.30,
    "wall of invoke / governed without, trivial nodes": 1.35,
    "wall of invoke / governed without, nodes that wait": 1.10,
    "bytes an item": 1600.0,
    "verify / reading the rows": 6.0,
    "ms of CPU a replayed decision": 1.0,
}


def measured(run: Callable[[], object]) -> tuple[float, float]:
    with no_garbage():
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        return time.perf_counter() - wall, time.process_time() - cpu


def rounds(
    contestants: Mapping[str, Callable[[], object]], seconds: float
) -> list[dict[str, tuple[float, float]]]:
    for run in contestants.values():
        run()
    found: list[dict[str, tuple[float, float]]] = []
    end = time.perf_counter() + seconds
    names = [*contestants]
    while time.perf_counter() < end or len(found) < 5:
        names = [*names[1:], names[0]]
        found.append({name: measured(contestants[name]) for name in names})
    return found


def wait(state: Number) -> dict[str, Any]:
    time.sleep(WAITS)
    return increment(state)


def several(call: Callable[[], object], walls: list[float] | None = None) -> None:
    """One sample of calls; `walls` gets the seconds of each."""
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        if walls is not None:
            walls.append(time.perf_counter() - begun)


def figures(folder: Path, seconds: float) -> dict[str, float]:
    graph, waiting = chain(LENGTH, increment), chain(LENGTH, wait)
    ledger = Ledger(folder / "ledger.db")
    with_ledger, without = with_policies(), with_policies()
    with_ledger.add_listener(ledger.listener)
    recorded, plain = governed(with_ledger, graph), governed(without, graph)
    config: Any = {"recursion_limit": LENGTH + 10}
    walls: list[float] = []
    alone: list[float] = []

    with SqliteSaver.from_conn_string(str(folder / "saver.db")) as saver:
        saved = graph.copy({"checkpointer": saver})
        number = iter(range(10**9))

        def call_saved() -> None:
            of_thread: Any = {**config, "configurable": {"thread_id": str(next(number))}}
            saved.invoke({"value": 0}, of_thread)

        def run_recorded() -> None:
            several(lambda: recorded.invoke({"value": 0}, config), walls)
            with_ledger.drain()
            assert ledger.flush(30)

        def run_alone() -> None:
            several(lambda: plain.invoke({"value": 0}, config), alone)
            without.drain()

        found = rounds(
            {
                "bare": lambda: several(lambda: graph.invoke({"value": 0}, config)),
                "governed": run_alone,
                "ledger": run_recorded,
                "saver": lambda: several(call_saved),
            },
            seconds,
        )

    def cpu(name: str) -> list[float]:
        return [each[name][1] for each in found]

    added = [ledger - alone for ledger, alone in zip(cpu("ledger"), cpu("governed"), strict=True)]
    by_saver = statistics.median(s - b for s, b in zip(cpu("saver"), cpu("bare"), strict=True))
    items = LENGTH * CALLS * (len(found) + 1)
    ledger.close()
    Ledger(folder / "empty.db").close()
    size = (folder / "ledger.db").stat().st_size - (folder / "empty.db").stat().st_size
    return {
        "CPU added to a step / CPU of a bare step": statistics.median(
            a / b for a, b in zip(added, cpu("bare"), strict=True)
        ),
        "CPU added to a step / CPU that SqliteSaver adds": statistics.median(added) / by_saver,
        "wall of invoke / governed without, trivial nodes": statistics.median(
            a / b for a, b in zip(walls[CALLS:], alone[CALLS:], strict=True)
        ),
        "wall of invoke / governed without, nodes that wait": of_waiting(folder, waiting, config),
        "bytes an item": size / items,
        "verify / reading the rows": verifying(folder / "ledger.db"),
        "ms of CPU a replayed decision": replaying(folder),
    }


def of_waiting(folder: Path, graph: Graph, config: Any) -> float:
    """Wall time of a call with a ledger against that without one."""
    with Ledger(folder / "waiting.db") as ledger:
        with_ledger, without = with_policies(), with_policies()
        with_ledger.add_listener(ledger.listener)
        recorded, plain = governed(with_ledger, graph), governed(without, graph)
        pairs = [
            (
                measured(lambda: recorded.invoke({"value": 0}, config))[0],
                measured(lambda: plain.invoke({"value": 0}, config))[0],
            )
            for _ in range(10)
        ]
    return statistics.median(a / b for a, b in pairs[1:])


def verifying(path: Path) -> float:
    """CPU of `verify` against that of reading the rows that it compares."""
    with Ledger(path) as ledger:
        engine: Any = ledger._store.engine  # pyright: ignore[reportPrivateUsage]

        def read() -> None:
            with engine.connect() as connection:
                for table in ("entries e LEFT JOIN contents c ON c.entry = e.id", "scores"):
                    for _ in connection.exec_driver_sql(f"SELECT * FROM {table}"):
                        pass

        pairs = [(measured(ledger.verify)[1], measured(read)[1]) for _ in range(5)]
    return statistics.median(a / b for a, b in pairs)


RULES = """
version: 1
name: rules
description: Three checkers, one router and two evaluators.
checkers:
  - {name: small, use: condition, deny_when: input.value > 1000000}
  - {name: seldom, use: at_most, times: 1000000}
  - {name: slowly, use: budget, calls: 1000000, per: thread}
evaluators:
  - {name: quick, use: latency, at_most: 60}
  - {name: there, use: condition, pass_when: has(output.value)}
routers:
  - {name: again, use: evaluation_failed, evaluator: there, target: n0}
"""


def replaying(folder: Path) -> float:
    """CPU of one decision of three checkers, or of a router that reads an evaluator. Replay is told a quiet
    machine's figure; on a loaded one it is higher.
    """
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    with Ledger(folder / "ledger.db") as ledger:
        decisions: list[int] = []

        def run() -> None:
            decisions.append(ledger.replay(rules).summary.decisions)

        costs = [measured(run)[1] * 1000 / decisions[-1] for _ in range(3)]
    return statistics.median(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = figures(Path(folder), options.seconds)
    table = Table("figure", "value", "limit", "")
    for name, value in found.items():
        limit = LIMITS[name]
        table.add_row(name, f"{value:.2f}", f"{limit:g}", "ok" if value <= limit else "over")
    Console().print(table)
    return 0 if all(value <= LIMITS[name] for name, value in found.items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
