"""The cost of one decision of a rule, early and late in a run. `python benchmarks/rules.py [--json FILE]`.

In a table of rules, each decides about a node with a view at hand, as in the lifecycle; if it observes
results, it observes this one too. Times are those of the fastest of several rounds, in microseconds a call,
after a past of 10 and of 10,000 steps in which every checker's step ran, passed and was used again and again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from arbiter.checkers import AtMost, HistoryPolicyChecker, NeverAfter, RequireBefore, WithinSteps
from arbiter.history import CausalHistory, Status
from arbiter.history._facts import RUN, Value, fold
from arbiter.history._past import Past
from arbiter.history._record import Record, fact_from
from arbiter.history._recorder import Run, ThreadLog
from arbiter.instructions import GENERATE, TOOL_CALL, VERIFY
from arbiter.policy import PolicyChecker
from arbiter.verdicts import ALLOW

STEPS = (10, 10_000)
STATE: Mapping[str, Any] = {"amount": 1200, "payee": "ACME", "note": "x" * 200}
CYCLE = (("draft", GENERATE), ("check", VERIFY), ("pay", TOOL_CALL))


@dataclass(frozen=True, slots=True)
class Row:
    """One rule, and the limit for its `check_before` in microseconds."""

    make: Callable[[], PolicyChecker]
    most: float


ROWS: Mapping[str, Row] = {
    "forbid_sequence": Row(
        lambda: HistoryPolicyChecker("rule", ["REFLECT", "VERIFY", "TOOL_CALL"], adjacent=False), 3
    ),
    "require_before": Row(lambda: RequireBefore("rule", "VERIFY", target_nodes=["pay"]), 3),
    "require_before, once per use": Row(
        lambda: RequireBefore("rule", "VERIFY", once_per_use=True, target_nodes=["pay"]), 3
    ),
    "require_before, bound to 2 fields": Row(
        lambda: RequireBefore("rule", "VERIFY", bound_to=["amount", "payee"], target_nodes=["pay"]), 15
    ),
    "never_after": Row(lambda: NeverAfter("rule", "node:tell", target_nodes=["pay"]), 3),
    "within_steps": Row(lambda: WithinSteps("rule", "VERIFY", 5, target_nodes=["pay"]), 3),
    "at_most": Row(lambda: AtMost("rule", 1_000_000, target_nodes=["pay"]), 3),
}


class Seen(NamedTuple):
    record: Record
    view: CausalHistory


def view_of(rule: PolicyChecker, value: Value, run: Run, number: int, status: Status = "running") -> Seen:
    """The history's view of the step with that number."""
    node, instruction = CYCLE[number % len(CYCLE)]
    record = Record(f"task-{number}", node, instruction, number, "", time.time())
    record.input, record.status, record.checks = STATE, status, {rule.name: ALLOW}
    return Seen(record, CausalHistory(Past(value), record, run))


def observed(rule: PolicyChecker, view: CausalHistory) -> Mapping[str, float] | None:
    own = view.item
    if type(rule).observe is PolicyChecker.observe or not rule.observes(own.node, own.instruction):
        return None
    return rule.observe(view)


def past_of(rule: PolicyChecker, steps: int) -> tuple[Value, Run]:
    """The value of the facts channel after that many steps, each observed by the rule; the next step is a `pay`."""
    run = Run(ThreadLog("bench", 1000), 1)
    value = fold({}, [RUN])
    for number in range(steps - steps % len(CYCLE) + 2):
        record, view = view_of(rule, value, run, number, "completed")
        record.tallies = {rule.name: counted} if (counted := observed(rule, view)) else {}
        value = fold(value, [fact_from(record)])
    return value, run


def fastest(call: Callable[[], object], rounds: int, times: int = 2000) -> float:
    """Microseconds a call in the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - begun)
    return best / times * 1e6


def measure(row: Row, steps: int, rounds: int) -> dict[str, float]:
    rule = row.make()
    value, run = past_of(rule, steps)
    before = view_of(rule, value, run, 2).view
    answer: Any = rule.check_before(before)
    if answer.kind != "allow":
        raise SystemExit(f"{rule!r} was to allow, and says: {answer.reason}")
    found = {"check": fastest(lambda: rule.check_before(before), rounds), "observe": 0.0}
    for number in (1, 2):
        after = view_of(rule, value, run, number, "completed").view
        took = fastest(lambda: observed(rule, after), rounds)  # noqa: B023 - called at once
        found["observe"] = max(found["observe"], took)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What one decision of a rule costs.")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    table = Table("rule", title="microseconds a call")
    for steps in STEPS:
        table.add_column(f"check, step {steps:,}", justify="right")
        table.add_column(f"observe, step {steps:,}", justify="right")
    table.add_column("check at most", justify="right")
    numbers: dict[str, dict[str, dict[str, float]]] = {}
    missed = False
    for name, row in ROWS.items():
        found = {str(steps): measure(row, steps, options.rounds) for steps in STEPS}
        numbers[name] = found
        missed = missed or any(taken["check"] > row.most for taken in found.values())
        cells = [f"{taken[part]:.2f}" for taken in found.values() for part in ("check", "observe")]
        table.add_row(name, *cells, f"{row.most:g}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
