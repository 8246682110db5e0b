"""Storage and memory of a governed step, by the length of the thread. `python benchmarks/growth.py`.

Stored: bytes that `SqliteSaver` has written for each superstep of one thread, against the same graph
ungoverned, and the CPU time of a step. In memory: the growth of the process after many threads, and after
many denied runs, against the ungoverned graph.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from rich.console import Console
from rich.table import Table
from typing_extensions import TypedDict

from arbiter import ArbiterOS, PolicyChecker, PolicyRouter, PolicyViolationError, ThresholdEvaluator
from arbiter.instructions import GENERATE, VERIFY

MOST_STORED = 2.0
"""Factor on the storage of the ungoverned graph."""


class State(TypedDict, total=False):
    n: int
    text: str


class Fine(PolicyChecker):
    def check_before(self, history: Any) -> bool:
        return True


class OnlyWrites(PolicyChecker):
    def check_before(self, history: Any) -> bool:
        return bool(history.entries[-1][-1].node == "write")


class Quality(PolicyRouter):
    def route_after(self, history: Any, current_output: Any) -> None:
        history.entries[-1][-1].evaluation_results.get("quality")


def write(state: State) -> State:
    return {"n": state.get("n", 0) + 1}


def verify(state: State) -> State:
    return {}


def graph_of(saver: Any, steps: int) -> Any:
    """Two nodes that take turns for that many supersteps."""

    def onward(state: State) -> str:
        return "write" if state.get("n", 0) % (steps // 2) else END

    builder: Any = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("verify", verify)
    builder.add_edge(START, "write")
    builder.add_edge("write", "verify")
    builder.add_conditional_edges("verify", onward, ["write", END])
    return builder.compile(checkpointer=saver)


def governed(graph: Any, *checkers: PolicyChecker) -> Any:
    arbiter_os = ArbiterOS()
    for checker in checkers or [Fine(f"fine {number}") for number in range(3)]:
        arbiter_os.add_policy_checker(checker)
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "n", 5, [GENERATE]))
    arbiter_os.add_policy_router(Quality("quality router", target_nodes=["write"]))
    return arbiter_os.govern(graph, {"write": GENERATE, "verify": VERIFY})


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes and milliseconds of CPU for each step of one thread."""

    bytes: float
    cpu_ms: float


def run_thread(steps: int, *, is_governed: bool, turns: int) -> Stored:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.db"
        with SqliteSaver.from_conn_string(str(path)) as saver:
            app = graph_of(saver, steps // turns)
            app = governed(app) if is_governed else app
            config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": steps + 10}
            begun = time.process_time()
            for _ in range(turns):
                app.invoke({}, config)
            took = time.process_time() - begun
        return Stored(bytes=path.stat().st_size / steps, cpu_ms=took * 1000 / steps)


def resident() -> float:
    """Megabytes of memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not say how much memory a process has")


def grown(once: Callable[[int], object], lengths: Sequence[int]) -> list[float]:
    """Megabytes by which the process has grown after that many calls."""
    for number in range(100):
        once(-number)
    gc.collect()
    before, done, found = resident(), 0, list[float]()
    for length in lengths:
        for number in range(done, length):
            once(number)
        done = length
        gc.collect()
        found.append(resident() - before)
    return found


def in_memory(app: Any, *, threads: bool) -> Callable[[int], object]:
    def once(number: int) -> None:
        config: Any = {"configurable": {"thread_id": str(number) if threads else "one"}}
        try:
            app.invoke({"text": f"{number} " + "x" * 2000}, config)
        except PolicyViolationError:
            pass

    return once


def main() -> int:
    parser = argparse.ArgumentParser(description="What a governed step stores and keeps in memory.")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=10_000, help="the longest thread, and the most threads")
    options = parser.parse_args()
    lengths = [length for length in (10, 100, 1_000, 10_000) if length <= options.most]
    numbers: dict[str, Any] = {}
    missed: list[str] = []
    console = Console()
    for turns_of in (0, 10):
        title = "one run of the whole length" if not turns_of else f"runs of {turns_of} steps"
        table = Table("steps", "bytes bare", "governed", "×", "CPU ms bare", "governed", title=title)
        for steps in lengths:
            turns = steps // turns_of if turns_of else 1
            pairs = [
                (
                    run_thread(steps, is_governed=False, turns=turns),
                    run_thread(steps, is_governed=True, turns=turns),
                )
                for _ in range(1 if steps > 1_000 else options.rounds)
            ]
            bare, own = (
                Stored(
                    bytes=statistics.median(pair[side].bytes for pair in pairs),
                    cpu_ms=statistics.median(pair[side].cpu_ms for pair in pairs),
                )
                for side in (0, 1)
            )
            ratio = own.bytes / bare.bytes
            if ratio > MOST_STORED:
                missed.append(f"{title}, {steps} steps: stores ×{ratio:.2f}, at most ×{MOST_STORED}")
            numbers[f"{title}, {steps}"] = {"bare": asdict(bare), "governed": asdict(own)}
            cells = (bare.bytes, own.bytes, ratio, bare.cpu_ms, own.cpu_ms)
            table.add_row(f"{steps:,}", *(f"{cell:,.2f}" if cell < 100 else f"{cell:,.0f}" for cell in cells))
        console.print(table)
    table = Table(
        "megabytes after", *(f"{length:,}" for length in lengths[1:]), title="memory of the process"
    )
    for name, threads, checkers in (
        ("many threads", True, ()),
        ("denied runs of one thread", False, (OnlyWrites("writes"),)),
    ):
        for kind in ("bare", "governed"):
            graph = graph_of(None, 2)
            app = graph if kind == "bare" else governed(graph, *checkers)
            found = grown(in_memory(app, threads=threads), lengths[1:])
            numbers[f"{name}, {kind}"] = found
            table.add_row(f"{name}, {kind}", *(f"{amount:.1f}" for amount in found))
            if len(found) > 2 and found[-1] > found[-2] + 3:
                missed.append(f"{name}, {kind}: grew by {found[-1] - found[-2]:.1f} MB in the last tenfold")
    console.print(table)
    for miss in missed:
        console.print(f"[red]missed[/red] {miss}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
