"""The cost of a condition on a small state, and on one of 1 MB with 1,000 messages. `python
benchmarks/conditions.py`.

The benchmark times `check_before` of a `ConditionChecker`, which a node waits for, in CPU time: the check
does no I/O, so CPU time is its duration on an idle machine, and other programs do not count. The two states
take turns, each round gives one ratio, and the medians are reported. The goal: at most 40 µs on the small
state, and at most 1.2 times that on the large one. The last row reads every message, so its time does grow
with their number.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from rich.console import Console
from rich.table import Table

from arbiter import History
from arbiter.checkers import ConditionChecker
from arbiter.history import CausalHistory
from arbiter.history._past import NO_PAST
from arbiter.history._record import Record
from arbiter.history._recorder import ThreadLog
from arbiter.instructions import TOOL_CALL

FIELDS = {
    "one number": "input.amount > 1000",
    "two fields": "input.amount > 1000 && !state.user.is_admin",
    "six terms": (
        "(input.amount > 1000 && !state.user.is_admin) || state.user.name.startsWith('bad') || "
        "history.counts.TOOL_CALL > 50 || node == 'transfer' || has(state.blocked)"
    ),
    "last message": "state.messages[size(state.messages) - 1].content.contains('DROP TABLE')",
    "how many messages": "size(state.messages) > 5000",
}
LISTS = {
    "any message": "state.messages.exists(m, m.type == 'tool')",
}
GOAL, GOAL_RATIO = 40.0, 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Medians in µs, and the median of the rounds' ratios."""

    condition: str
    small: float
    large: float
    ratio: float

    @property
    def reached(self) -> bool:
        return self.small <= GOAL and self.ratio <= GOAL_RATIO


def state_of(messages: int, characters: int) -> dict[str, Any]:
    said = [AIMessage(f"answer {n}") if n % 2 else HumanMessage(f"question {n}") for n in range(messages)]
    return {
        "amount": 500,
        "user": {"name": "ann", "is_admin": False},
        "blob": "x" * characters,
        "messages": said,
    }


def history_of(state: Mapping[str, Any]) -> History:
    """The history that the lifecycle builds for a node with that input."""
    record = Record("id", "pay", TOOL_CALL, 1, "", time.time())
    record.input = state
    return CausalHistory(NO_PAST, record, ThreadLog(None, None).new_run(0, NO_PAST))


def sample(checker: ConditionChecker, history: History, calls: int) -> float:
    """µs of CPU for each check."""
    gc.collect()
    begun = time.thread_time()
    for _ in range(calls):
        checker.check_before(history)
    return (time.thread_time() - begun) / calls * 1e6


def measure(name: str, expression: str, rounds: int, calls: int) -> Cost:
    checker = ConditionChecker("bench", expression)
    small, large = history_of(state_of(4, 100)), history_of(state_of(1000, 1_000_000))
    assert checker.check_before(small).kind == checker.check_before(large).kind == "allow"
    pairs: list[tuple[float, float]] = []
    for turn in range(rounds):
        if turn % 2:
            later = sample(checker, large, calls)
            pairs.append((sample(checker, small, calls), later))
        else:
            first = sample(checker, small, calls)
            pairs.append((first, sample(checker, large, calls)))
    return Cost(
        condition=name,
        small=statistics.median(small for small, _ in pairs),
        large=statistics.median(large for _, large in pairs),
        ratio=statistics.median(large / small for small, large in pairs),
    )


def table_of(costs: list[Cost]) -> Table:
    table = Table(title="A condition's check, median")
    for column in ("condition", "small state", "1 MB, 1,000 messages", "ratio", "goal"):
        table.add_column(column, justify="left" if column == "condition" else "right")
    for cost in costs:
        goal = "-" if cost.condition in LISTS else "reached" if cost.reached else "missed"
        table.add_row(
            cost.condition, f"{cost.small:.1f} µs", f"{cost.large:.1f} µs", f"×{cost.ratio:.2f}", goal
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=500, help="checks in each sample")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    costs = [measure(name, text, options.rounds, options.calls) for name, text in FIELDS.items()]
    costs += [
        measure(name, text, options.rounds, max(1, options.calls // 20)) for name, text in LISTS.items()
    ]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
    else:
        Console().print(table_of(costs))
    return 0 if all(cost.reached for cost in costs if cost.condition in FIELDS) else 1


if __name__ == "__main__":
    sys.exit(main())
