"""The cost of loading a constitution, and of running under one. `python benchmarks/constitution.py [--json
FILE]`.

*Loading*: a project of 500 rules of several kinds, in ten files; the median of several loads, in seconds of
CPU and of the clock. The goal is 1 s.

*Kernel*: a chain of 100 nodes that do nothing, against the same chain governed by `arbiter:kernel`, whose ten
rules each apply to some of its nodes, and by ten rules that all apply to every node. The contestants take
turns, and each round gives one ratio to the bare sample of that round. The medians and quartiles are
reported, of the clock and of CPU, with those of a second bare contestant, which show the noise of the
machine. The goal is ×1.15. Nodes that do nothing take about 0.2 ms, so this is the cost at its largest.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from rich.console import Console
from rich.table import Table

from arbiter import ArbiterOS
from arbiter._constitution.loading import load_constitution

LOAD_GOAL, KERNEL_GOAL = 1.0, 1.15
RULES = (
    "{{name: {name}, use: at_most, times: 100, target_instructions: [TOOL_CALL]}}",
    "{{name: {name}, use: condition, deny_when: input.amount > {number}, target_instructions: [TOOL_CALL]}}",
    "{{name: {name}, use: require_before, required: VERIFY, target_nodes: [pay]}}",
    "{{name: {name}, use: forbid_sequence, bad_sequence: [GENERATE, TOOL_CALL]}}",
    "{{name: {name}, use: budget, calls: 100, per: user}}",
    "{{name: {name}, use: tools, allow: [search, {{tool: read, arguments: {{path: {{under: /srv}}}}}}]}}",
)
EVERYWHERE = """
version: 1
name: everywhere
description: Ten rules that apply to every node.
checkers:
  - {name: steps, use: at_most, times: 100000}
  - {name: steps_of_thread, use: at_most, times: 100000, per: thread}
  - {name: built, use: forbid_sequence, bad_sequence: [TOOL_BUILD, TOOL_CALL]}
  - {name: learned, use: forbid_sequence, bad_sequence: [GENERATE, UPDATE_KNOWLEDGE]}
  - {name: delegated, use: forbid_sequence, bad_sequence: [DELEGATE, TOOL_BUILD, TOOL_CALL]}
  - {name: after, use: never_after, after: TOOL_BUILD}
  - {name: after_fallback, use: never_after, after: FALLBACK}
  - {name: after_guard, use: never_after, after: CONSTRAIN}
  - {name: after_skill, use: never_after, after: REFINE_SKILL}
  - {name: flow, use: flow, labels: {untrusted: {written_by: [TOOL_BUILD]}}, forbid: {untrusted: [UPDATE_KNOWLEDGE]}}
"""
# The instructions that the kernel's rules apply to, in an order that none of them denies.
KINDS = ("GENERATE", "REFLECT", "VERIFY", "TOOL_CALL", "DELEGATE", "COMMUNICATE", "RESPOND", "LOAD")
LAST = ("VERIFY", "UPDATE_KNOWLEDGE", "VERIFY", "TOOL_BUILD")


class State(TypedDict):
    value: int


def increment(state: State) -> State:
    return {"value": state["value"] + 1}


def instructions_of(length: int) -> dict[str, str]:
    kinds = cycle(KINDS)
    found = {f"n{number}": next(kinds) for number in range(length - len(LAST))}
    for number, kind in enumerate(LAST, len(found)):
        found[f"n{number}"] = kind
    return found


def chain(length: int) -> Any:
    builder = StateGraph(State)
    builder.add_sequence([(f"n{number}", increment) for number in range(length)])
    builder.add_edge(START, "n0")
    return builder.compile()


def project(folder: Path, rules: int, files: int = 10) -> None:
    """That many rules, in the files of a project."""
    (folder / "policies").mkdir()
    for file in range(files):
        head = f"version: 1\nname: pack-{file}\ndescription: Rules to load.\ncheckers:\n"
        lines = [
            "  - " + RULES[number % len(RULES)].format(name=f"rule_{number}", number=number)
            for number in range(file, rules, files)
        ]
        (folder / "policies" / f"pack-{file}.yaml").write_text(
            head + "\n".join(lines) + "\n", encoding="utf-8"
        )


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of CPU."""
    gc.collect()
    gc.disable()
    clock, cpu = time.perf_counter(), time.process_time()
    call()
    taken = time.perf_counter() - clock, time.process_time() - cpu
    gc.enable()
    return taken


def loading(rules: int, rounds: int) -> dict[str, float]:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        project(folder, rules)
        loaded = load_constitution(folder)  # the first one also imports the classes
        if len(loaded.checkers) != rules:
            raise SystemExit(f"{len(loaded.checkers)} rules were loaded, not {rules}")
        taken = [timed(lambda: load_constitution(folder)) for _ in range(rounds)]
    return {"clock": statistics.median(t[0] for t in taken), "cpu": statistics.median(t[1] for t in taken)}


def governing(length: int, seconds: float) -> dict[str, dict[str, float]]:
    graph = chain(length)
    instructions = instructions_of(length)
    with TemporaryDirectory() as temporary:
        everywhere = Path(temporary) / "everywhere.yaml"
        everywhere.write_text(EVERYWHERE, encoding="utf-8")
        sources: Mapping[str, Any] = {"kernel": "arbiter:kernel", "everywhere": everywhere}
        governed = {
            name: ArbiterOS.from_constitution(source).govern(graph, instructions)
            for name, source in sources.items()
        }
    contestants: dict[str, Any] = {"bare": graph, "bare again": graph, **governed}
    given: Any = {"value": 0}
    for app in contestants.values():
        for _ in range(3):
            if app.invoke(given) != {"value": length}:
                raise SystemExit("the chain did not do its work")
    gc.collect()
    gc.freeze()
    rounds: list[dict[str, tuple[float, float]]] = []
    end = time.perf_counter() + seconds
    names = list(contestants)
    while time.perf_counter() < end or len(rounds) < 3:
        turn = len(rounds) % len(names)
        order = names[turn:] + names[:turn]
        rounds.append({name: timed(lambda: contestants[name].invoke(given)) for name in order})  # noqa: B023 - called at once
    gc.unfreeze()
    found: dict[str, dict[str, float]] = {
        "bare": {"ms": statistics.median(r["bare"][0] for r in rounds) * 1e3}
    }
    for name in names[1:]:
        low, median, high = statistics.quantiles([r[name][0] / r["bare"][0] for r in rounds], n=4)
        cpu = statistics.median(r[name][1] / r["bare"][1] for r in rounds)
        found[name] = {"ratio": median, "low": low, "high": high, "cpu": cpu, "rounds": len(rounds)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What a constitution costs.")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the chains take turns")
    parser.add_argument("--rules", type=int, default=500)
    options = parser.parse_args()
    console = Console()

    loaded = loading(options.rules, 5)
    console.print(
        f"loading {options.rules} rules: {loaded['clock']:.2f} s, {loaded['cpu']:.2f} s of CPU (goal: {LOAD_GOAL:g} s)"
    )
    numbers = governing(100, options.seconds)
    table = Table("a chain of 100 nodes", title=f"bare: {numbers['bare']['ms']:.1f} ms")
    for column in ("× bare", "quartiles", "× bare, CPU", "goal"):
        table.add_column(column, justify="right")
    for name, found in list(numbers.items())[1:]:
        goal = f"×{KERNEL_GOAL:g}" if name in ("kernel", "everywhere") else ""
        quartiles = f"{found['low']:.2f} – {found['high']:.2f}"
        table.add_row(name, f"{found['ratio']:.3f}", quartiles, f"{found['cpu']:.3f}", goal)
    console.print(table)
    console.print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(
            json.dumps({"loading": loaded, "chain": numbers}, indent=2) + "\n", encoding="utf-8"
        )
    missed = loaded["clock"] > LOAD_GOAL or any(
        numbers[name]["ratio"] > KERNEL_GOAL for name in ("kernel", "everywhere")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
