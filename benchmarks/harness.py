"""What the evaluation harness costs: a case of an offline suite, its report, and a judge that takes its time.

    python benchmarks/harness.py [cases]

10,000 offline cases (a function and one scorer, with the journal) may take 0.1 ms of CPU each, and the report of
them 1 s. pydantic-evals, which the extra `test` installs, runs the same cases beside it in the same process. The
assistant of `make demo`, with its rules, may take 1.15 times as long in a suite as by itself: one case at a time in a
loop of `invoke`, and 16 at a time on a pool of 16 threads. Four empty nodes are the worst case and have no limit: they
take 0.6 ms, and a case costs the harness 0.1.
CPU time of the whole process, medians of interleaved rounds.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.graph import START, StateGraph
from rich.console import Console
from typing_extensions import TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter import ArbiterOS, History, NodeEvaluator
from arbiter.harness import Case, CaseRun, Limits, Report, Suite
from arbiter.harness.journal import run_folder
from arbiter.harness.reports.report import load_report
from examples.stdlib_assistant import INSTRUCTIONS, Library, build_arbiter, build_graph

ROUNDS = 3


class State(TypedDict, total=False):
    question: int


def answer(given: dict[str, int]) -> str:
    return f"answer {given['question']}"


def right(run: CaseRun) -> bool:
    return bool(run.expected == run.output)


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of CPU that a call takes, and its result."""
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def peer(count: int) -> Callable[[], Any] | None:
    """The same cases for pydantic-evals; None if it is not installed."""
    if importlib.util.find_spec("pydantic_evals") is None:
        return None
    evals: Any = importlib.import_module("pydantic_evals")
    equal: Any = importlib.import_module("pydantic_evals.evaluators").EqualsExpected
    cases = [
        evals.Case(name=f"case-{n}", inputs={"question": n}, expected_output=f"answer {n}")
        for n in range(count)
    ]
    dataset = evals.Dataset(name="offline", cases=cases, evaluators=[equal()])

    async def task(given: dict[str, int]) -> str:
        return answer(given)

    return lambda: dataset.evaluate_sync(task, progress=False)


class Slow(NodeEvaluator):
    """A judge that waits for 0.2 s."""

    blocking = True
    concurrency = 20

    def evaluate(self, history: History) -> float:
        time.sleep(0.2)
        return 0.5


def draw(report: Report, folder: Path) -> None:
    """Print and write a report."""
    report.pprint(Console(file=io.StringIO()))
    report.write(folder / "report.json")


def nothing(state: State) -> State:
    return {}


def judged() -> float:
    """The wall time of 20 cases with such a judge, all at once."""
    builder: Any = StateGraph(State)
    builder.add_node("write", nothing)
    builder.add_edge(START, "write")
    cases = [Case(f"case-{n}", {"question": n}) for n in range(20)]
    suite = Suite("judged", cases, evaluators=[Slow("slow")], limits=Limits(concurrency=20))
    begun = time.perf_counter()
    suite.run(builder.compile(), folder=None)
    return time.perf_counter() - begun


def assistant() -> tuple[ArbiterOS, Any]:
    """The assistant of `make demo`, governed by its rules."""
    arbiter_os = build_arbiter()
    return arbiter_os, arbiter_os.govern(build_graph(Library.installed()), instructions=INSTRUCTIONS)


def empty_nodes() -> tuple[ArbiterOS, Any]:
    """A governed graph of four nodes that do nothing."""
    builder: Any = StateGraph(State)
    for name in "abcd":
        builder.add_node(name, nothing)
    builder.add_edge(START, "a")
    for one, other in zip("abc", "bcd", strict=True):
        builder.add_edge(one, other)
    arbiter_os = ArbiterOS()
    return arbiter_os, arbiter_os.govern(builder.compile())


def against_itself(
    arbiter_os: ArbiterOS, graph: Any, given: Any, rounds: int, count: int = 100
) -> list[tuple[int, float, float]]:
    """For one thread and for 16, the CPU time of a case of a governed graph that is called by itself, in seconds, and
    how many times as long it takes in the harness. Both have the evaluations of its nodes."""
    cases = [Case(f"case-{n}", given) for n in range(count)]
    itself: dict[int, list[float]] = {1: [], 16: []}
    ratios: dict[int, list[float]] = {1: [], 16: []}
    with tempfile.TemporaryDirectory() as folder:

        def inside(concurrency: int) -> float:
            limits = Limits(concurrency=concurrency)
            suite = Suite("graph", cases, scorers={"done": lambda run: True}, limits=limits)
            return cpu(lambda: suite.run(graph, arbiter_os=arbiter_os, folder=folder))[0]

        for round_ in range(rounds):
            for threads in itself:
                seconds = cpu(partial(bare, arbiter_os, graph, cases, round_, threads))[0]
                itself[threads].append(seconds / count)
                ratios[threads].append(inside(threads) / seconds)
    return [(n, statistics.median(itself[n]), statistics.median(ratios[n])) for n in itself]


def bare(arbiter_os: ArbiterOS, graph: Any, cases: list[Case], round_: int, threads: int) -> None:
    """The same cases without the harness."""

    def call(case: Case) -> None:
        graph.invoke(case.input, {"configurable": {"thread_id": f"{round_}:{threads}:{case.id}"}})

    if threads == 1:
        for case in cases:
            call(case)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(call, cases))
    arbiter_os.drain()


def main(count: int) -> int:
    cases = [Case(f"case-{n}", {"question": n}, expected=f"answer {n}") for n in range(count)]
    suite = Suite("offline", cases, scorers=[right])
    other = peer(count)
    ours, theirs, shown, resumed = list[float](), list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            seconds, report = cpu(lambda: suite.run(answer, folder=folder))
            ours.append(seconds)
            if other is not None:
                theirs.append(cpu(other)[0])
            shown.append(cpu(partial(draw, report, Path(folder)))[0])
            resumed.append(cpu(lambda: load_report(run_folder("last", Path(folder))))[0])
    each = statistics.median(ours) / count * 1000
    print(f"{count:,} offline cases       {each:.3f} ms of CPU each (at most 0.1)")
    peers = f"{statistics.median(theirs) / count * 1000:.3f} ms" if theirs else "not installed"
    print(f"  pydantic-evals          {peers}")
    drawn = statistics.median(shown)
    print(f"terminal and JSON         {drawn:.2f} s of CPU (at most 1)")
    print(f"reading the journal       {statistics.median(resumed):.2f} s of CPU (at most 1)")
    of_assistant = against_itself(*assistant(), {"question": "How do I shuffle a list in place?"}, rounds=9)
    for name, limit, found in (
        ("the demo's assistant", " (at most 1.15)", of_assistant),
        ("four empty nodes", "", against_itself(*empty_nodes(), {"question": 1}, rounds=15)),
    ):
        for threads, seconds, ratio in found:
            print(
                f"{name:<25} {seconds * 1000:.2f} ms of CPU a case by itself, × {ratio:.2f} in a suite{limit}, "
                f"{threads} at a time"
            )
    waited = judged()
    print(f"20 cases, judge of 0.2 s  {waited:.2f} s (at most 0.5)")
    return int(each > 0.1 or drawn > 1 or max(ratio for *_, ratio in of_assistant) > 1.15 or waited > 0.5)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
