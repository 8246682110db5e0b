"""A governed payments graph whose ledger the tests read, change by SQL, and break."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from arbiter import ArbiterOS, ThresholdEvaluator
from arbiter.ledger import Ledger
from tests.support import Check, Spy, State, chain

KEY = b"k" * 32


def pays_up_to(limit: float) -> Check:
    return Check("limit", lambda history: history.item.input_state.get("amount", 0) <= limit)


def payments(ledger: Ledger, *contracts: Any, **options: Any) -> tuple[ArbiterOS, Any]:
    """A graph of two nodes with a checkpointer, whose runs the ledger keeps."""
    arbiter_os = ArbiterOS(ledger=ledger, **options)
    arbiter_os.add_policy_checker(pays_up_to(100))
    arbiter_os.add_evaluator(ThresholdEvaluator("score", "score", 0.5))
    app = arbiter_os.govern(
        chain(Spy("check", score=0.75), Spy("pay"), checkpointer=InMemorySaver()), {"pay": "TOOL_CALL"}
    )
    return arbiter_os, app


def between_hundredths(ledger: Ledger) -> None:
    """Three runs of the thread t, each of another process, whose node runs begin just between two hundredths of a
    second: a checkpoint keeps such a start rounded up, and an entry to a microsecond from which it is rounded down.
    """
    saver = InMemorySaver()
    for number in range(3):
        clock = partial(float, 1_800_000_000.6650002 + 60 * number)
        app = ArbiterOS(ledger=ledger, clock=clock).govern(
            chain(Spy("a"), Spy("b"), Spy("c"), checkpointer=saver)
        )
        app.invoke({}, conf("t"))
        assert ledger.flush(20)


def conf(thread: str, user: str = "ann", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": user, **more}}


def recorded(where: Any, runs: int = 3, **options: Any) -> Ledger:
    """An open ledger with that many finished runs of threads t0, t1, ..."""
    ledger = Ledger(where, **options)
    _, app = payments(ledger)
    for number in range(runs):
        app.invoke({"amount": number}, conf(f"t{number}", f"user-{number % 2}"))
    assert ledger.flush(20)
    return ledger


@contextmanager
def sql(path: Path) -> Generator[Callable[..., list[Any]]]:
    """Run statements on the file, past Arbiter's own code."""
    connection = sqlite3.connect(path)
    try:

        def run(statement: str, *values: Any) -> list[Any]:
            return connection.execute(statement, values).fetchall()

        yield run
        connection.commit()
    finally:
        connection.close()


__all__ = ["KEY", "State", "conf", "payments", "pays_up_to", "recorded", "sql"]
