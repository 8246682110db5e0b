"""The viewer on the payments of the example: recorded once, then shown in the browser.

    python examples/payments/viewer.py --open

Records what `main.py` runs, and a large payment that waits for an answer, in `.arbiter/payments.db`. Two hours
lie between the payments, so that there are scores over time to see. Then it serves the viewer, whose inbox
answers that question. Options are those of `arbiter view`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langgraph.types import Command

from arbiter import ArbiterOS, HistoryListener, PolicyViolationError
from arbiter.cli import main as command
from arbiter.ledger import Ledger

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))  # for `python examples/payments/viewer.py`, from any folder

from examples.payments.graph import graph  # noqa: E402

LEDGER = Path(".arbiter/payments.db")
EDIT = {"type": "edit", "input": {"amount": 900.0}}
PAYMENTS: tuple[tuple[str, str, Any], ...] = (
    ("A-1", "kim", None),
    ("I-1", "kim", None),
    ("G-2", "kim", None),
    ("A-2", "kim", EDIT),
    ("A-3", "kim", None),
    ("A-4", "kim", None),
    ("G-1", "kim", None),
    ("G-1", "sam", None),
    ("A-2", "sam", None),
)
"""Invoices with the clerk who pays them, and the answer to the question about a large one. The last one waits."""
BETWEEN = 2 * 3600.0
"""Seconds from one payment to the next; the last one is paid now."""


def record(ledger: Ledger, graph: Any = graph, listeners: Sequence[HistoryListener] = ()) -> Any:
    """Run all payments governed by the example's constitution, and return the governed graph."""
    ago = 0.0
    arbiter_os = ArbiterOS(ledger=ledger, listeners=listeners, clock=lambda: time.time() - ago)
    arbiter_os.load_constitution(HERE)
    app = arbiter_os.govern(graph)
    for number, (invoice, clerk, answer) in enumerate(PAYMENTS):
        ago = BETWEEN * (len(PAYMENTS) - 1 - number)
        config: Any = {"configurable": {"thread_id": f"{invoice}-{clerk}-{number}", "user_id": clerk}}
        given: Any = {"invoice": invoice}
        try:
            app.invoke(given, config)
            if answer is not None:
                app.invoke(Command(resume=answer), config)
        except PolicyViolationError:
            pass  # the ledger has it
    ledger.flush(30)
    return app


def main() -> None:
    LEDGER.parent.mkdir(exist_ok=True)
    for old in LEDGER.parent.glob(f"{LEDGER.name}*"):
        old.unlink()
    with Ledger(LEDGER) as ledger:
        record(ledger)
    place = "payments=examples.payments.graph:graph"
    sys.argv[1:1] = ["view", "--ledger", str(LEDGER), "-c", str(HERE), "--graph", place]
    command()


if __name__ == "__main__":
    main()
