"""How long a page of each question takes in a large ledger. `python benchmarks/ledger_pages.py --items 1000000`.

The ledger is made once, of events that the ledger's own store encodes, chains and writes, 2,000 in a transaction:
threads of 20 node runs over 30 days, of which one in 50 is denied, one in 100 has failed, and each has a score.
`--where` keeps it, as a file or in PostgreSQL, for the next time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter import ArbiterWarning
from arbiter._databases import writing
from arbiter.ledger import Ledger
from arbiter.ledger._entries import Event, origin_of, parts_of

RUNS = 20
BATCH = 2_000
DAY = 86_400_000_000
LIMIT = 0.1
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "thread_id": {"thread_id": "t7"},
    "node": {"node": "n3"},
    "instruction": {"instruction": "CognitiveCore.REASON"},
    "status": {"status": "failed"},
    "verdict": {"verdict": "deny"},
    "policy": {"policy": "limit"},
    "evaluator": {"evaluator": "quality"},
    "score below": {"evaluator": "quality", "below": 0.001},
    "subject": {"subject": "user-3"},
    "run": {"run": "00000000-0000-4000-8000-000000000007"},
}


def events(items: int, now: int) -> Iterator[Event]:
    random = Random(7)
    threads = items // RUNS
    for number in range(threads):
        begun = now - 30 * DAY + 30 * DAY * number // threads
        run = f"00000000-0000-4000-8000-{number:012x}"
        for step in range(RUNS):
            denied, failed = random.random() < 0.02, random.random() < 0.01
            fields: dict[str, Any] = {
                "node": f"n{step % 10}",
                "step": step,
                "instruction": "CognitiveCore.REASON" if step % 5 == 0 else "ExecutionCore.TOOL_CALL",
                "status": "denied" if denied else "failed" if failed else "completed",
                "took": 1_000,
                "checks": {"limit": "deny" if denied else "allow"},
            }
            if denied:
                fields["decision"] = {
                    "kind": "deny",
                    "policy": "limit",
                    "consequence": "raise",
                    "target": None,
                }
            yield Event(
                kind="item",
                at=begun + step * 1_000_000,
                origin=origin_of(f"t{number}", run, run, f"user-{number % 1000}", "agent"),
                task=f"{number:08x}-0000-4000-8000-{step:012x}",
                attempt=1,
                fields=fields,
                contents={"input": {"value": step}, "output": {"value": step + 1, "text": "x" * 100}},
                evals=[parts_of("quality", random.random(), True, False, "", "scored")],
            )
        yield Event(
            kind="execution",
            at=begun + RUNS * 1_000_000,
            origin=origin_of(f"t{number}", run, run, f"user-{number % 1000}", "agent"),
            fields={"outcome": "completed", "graph": "agent", "began": begun},
        )


def fill(ledger: Ledger, items: int) -> float:
    """Write the events, past the queue. Returns the items written in a second."""
    store: Any = ledger._store  # pyright: ignore[reportPrivateUsage]
    waiting: list[Event] = []
    begun = time.perf_counter()
    for event in events(items, time.time_ns() // 1000):
        waiting.append(event)
        if len(waiting) == BATCH:
            store.write(waiting)
            waiting = []
    if waiting:
        store.write(waiting)
    return items / (time.perf_counter() - begun)


def analyze(ledger: Ledger) -> None:
    """Count the rows, as a server does in the background: without these numbers PostgreSQL plans blindly."""
    with writing(ledger._store.engine) as connection:  # pyright: ignore[reportPrivateUsage]
        connection.exec_driver_sql("ANALYZE")


def page_times(ledger: Ledger) -> dict[str, dict[str, float]]:
    """Seconds of the first page, of one in the middle, and of both in a range of time, for items by each filter,
    threads, executions, and counts and curves.
    """
    (middle,) = ledger.items(since="16d", until="15d", order="oldest").page(limit=1)
    found: dict[str, dict[str, float]] = {}
    questions: dict[str, Callable[..., Any]] = {
        **{name: partial(ledger.items, **wanted) for name, wanted in FILTERS.items()},
        "threads": ledger.threads,
        "threads of a subject": partial(ledger.threads, subject="user-3"),
        "executions": ledger.executions,
        "executions of a thread": partial(ledger.executions, thread_id="t7"),
    }
    for name, ask in questions.items():
        ranges: dict[str, dict[str, Any]] = {
            "first": {},
            "middle": {"until": middle.timestamp},
            "in a week": {"since": "16d", "until": "9d"},
        }
        found[name] = {}
        # Nothing fits some of these questions, such as that for a run in another week, which is a warning.
        with warnings.catch_warnings(action="ignore", category=ArbiterWarning):
            for place, more in ranges.items():
                pages = ask(**more)
                after = pages.page().next
                found[name][place] = max(
                    min(_seconds(partial(pages.page, after=cursor)) for _ in range(2))
                    for cursor in (None, after)
                )
    for name, ask in {
        "counts": partial(ledger.counts, "verdict"),
        "counts by hour": partial(ledger.counts, "verdict", every="hour"),
        "scores": partial(ledger.scores, "quality"),
    }.items():
        found[name] = {
            place: min(_seconds(partial(ask, since=since)) for _ in range(2))
            for place, since in (("first", None), ("middle", "15d"), ("in a week", "7d"))
        }
    return found


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--where", help="a path or a URL; by default a file that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Ledger(options.where or f"{folder}/l.db") as ledger:
        console = Console()
        if sum(count["count"] for count in ledger.counts("items")) < options.items:
            console.print(f"{fill(ledger, options.items):,.0f} items/s")
            analyze(ledger)
        found = page_times(ledger)
        table = Table("filter", *next(iter(found.values())))
        for name, places in found.items():
            table.add_row(name, *(f"{1000 * seconds:.1f} ms" for seconds in places.values()))
        console.print(table)
        worst = max(seconds for places in found.values() for seconds in places.values())
        median = statistics.median(seconds for places in found.values() for seconds in places.values())
        console.print(
            f"median {1000 * median:.1f} ms, worst {1000 * worst:.1f} ms, limit {1000 * LIMIT:.0f} ms"
        )
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
