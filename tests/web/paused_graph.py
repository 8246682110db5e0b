"""A graph that asks before large payments. Its checkpoints and its payments are files of a folder, so that a run
pauses in one process and goes on in another."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from arbiter import ArbiterOS
from arbiter.checkers import ConditionChecker
from arbiter.ledger import Ledger

SECRET = "sk-ant-api03-" + "Q7xK2mP9vL4nR8tW" * 3


class State(TypedDict, total=False):
    amount: int
    to: str
    note: str
    account: dict[str, Any]
    paid: int
    done: bool


class Payments:
    """The graph on the files of a folder. `paid` are the inputs that the body of `pay` has got so far."""

    def __init__(self, folder: Path, saver: Any = None) -> None:
        self._file = folder / "paid.txt"
        if saver is None:
            connection = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
            weakref.finalize(self, connection.close)
            saver = SqliteSaver(connection)
        self.saver = saver

    @property
    def paid(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def pay(self, state: State) -> State:
        with self._file.open("a") as file:
            print(
                state.get("amount"), state.get("to"), (state.get("account") or {}).get("api_key"), file=file
            )
        return {"paid": state.get("amount", 0)}

    def graph(self, **nodes: Any) -> Any:
        """A compiled graph of these nodes in a row, by default of `pay` and `tell`."""
        return chained(nodes or {"pay": self.pay, "tell": tell}, checkpointer=self.saver)

    def governed(self, ledger: Ledger, **terms: Any) -> Any:
        arbiter_os = ArbiterOS(ledger=ledger)
        arbiter_os.add_policy_checker(large(**terms))
        return arbiter_os.govern(self.graph(), {"pay": "TOOL_CALL"})


def chained(nodes: Mapping[str, Any], **options: Any) -> Any:
    builder: Any = StateGraph(State)
    before = START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile(**options)


def large(**terms: Any) -> ConditionChecker:
    return ConditionChecker(
        "large", ask_when="input.amount > 1000", reason="a large amount", target_nodes=["pay"], **terms
    )


def tell(_: State) -> State:
    return {"done": True}


def asks(_: State) -> State:
    return {"note": str(interrupt({"say": "which colour?", "token": SECRET}))}


def paused(graph: Any, thread: str, **state: Any) -> Any:
    """Run a thread up to its question."""
    found = graph.invoke({"amount": 5000, "to": "Löhne", **state}, conf(thread))
    assert "__interrupt__" in found
    return found["__interrupt__"][0]


def conf(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": "u-12"}}
