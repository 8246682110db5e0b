"""The time of a gate's record in the store, as the store grows. `python benchmarks/store.py`.

Stores an action with its attempt in stores that have 10, 1,000 and 10,000 actions, in interleaved rounds, and adds
10,000 messages. A record must take as long in each of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arbiter.personas import Attempt, DimensionCheck, GatedAction, Persona
from arbiter.store import AgentMessage, SqlRepository

SIZES = (10, 1_000, 10_000)
LIMIT = 1.5
"""A record in the largest store, in records of the smallest one."""
ILKA = Persona("Ilka Brandt", "A retired harbour pilot.", "ilka")
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def action(number: int) -> GatedAction:
    """An action that passed at once."""
    check = {"fluency": DimensionCheck(score=8.0, threshold=7.0, status="judged", reasoning="dry")}
    attempt = Attempt(number=1, text="Fog. We wait.", checks=check, calls=1)
    return GatedAction(
        id=f"a{number}",
        item_id=f"a{number}",
        agent=ILKA.name,
        agent_id=ILKA.id,
        node="ilka",
        thread_id=None,
        run_id=None,
        at=NOW + timedelta(seconds=number),
        outcome="passed",
        attempt_number=1,
        original_text=attempt.text,
        corrected_text=None,
        dimension_scores=check,
        similarity_score=None,
        total_score=8.0,
        token_usage=None,
        calls=1,
        attempts=(attempt,),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds: int = parser.parse_args().rounds
    with TemporaryDirectory() as folder:
        stores = {size: SqlRepository(Path(folder) / f"{size}.db") for size in SIZES}
        for size, store in stores.items():
            for number in range(size):
                store.log_correction(action(number), ILKA)
        took: dict[int, list[float]] = {size: [] for size in SIZES}
        for number in range(rounds):
            for size, store in stores.items():
                begun = time.perf_counter()
                store.log_correction(action(number), ILKA)
                took[size].append(time.perf_counter() - begun)
        messages = [
            AgentMessage(agent_id="ilka", text=str(n), at=NOW + timedelta(seconds=n)) for n in range(10_000)
        ]
        begun = time.perf_counter()
        stores[SIZES[0]].add_messages(messages)
        added = time.perf_counter() - begun
        for store in stores.values():
            store.close()
    medians = {size: statistics.median(each) * 1_000 for size, each in took.items()}
    table = Table("actions in the store", "ms a record, median", "least")
    for size, median in medians.items():
        table.add_row(f"{size:,}", f"{median:.2f}", f"{min(took[size]) * 1_000:.2f}")
    console = Console()
    console.print(table)
    console.print(f"10,000 messages: {added:.2f} s")
    return 0 if medians[SIZES[-1]] <= LIMIT * medians[SIZES[0]] else 1


if __name__ == "__main__":
    sys.exit(main())
