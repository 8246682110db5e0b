"""A graph that pays invoices. It knows nothing of Arbiter: its rules are in the three folders next to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

HERE = Path(__file__).parent
BANK: list[tuple[str, float]] = []
"""The payments that were made."""


class State(TypedDict, total=False):
    invoice: str
    vendor: str
    amount: float
    matched: bool
    attempt: int
    memo: str
    completeness: float
    receipt: str


def books() -> Any:
    return json.loads((HERE / "invoices.json").read_text(encoding="utf-8"))


def load(state: Any) -> State:
    """Reads the invoice."""
    found = books()["invoices"][state["invoice"]]
    return {"vendor": found["vendor"], "amount": found["amount"]}


def match(state: Any) -> State:
    """Looks for the order that the invoice belongs to."""
    return {"matched": state["amount"] in books()["orders"].get(state["vendor"], [])}


def memo(state: Any) -> State:
    """Writes the text of the payment. It stands for a model that gets better, and then worse, when it is
    asked again."""
    attempt = state.get("attempt", 0)
    vendor, invoice = str(state["vendor"]), str(state["invoice"])
    texts = [f"Payment to {vendor}", f"Payment to {vendor} for invoice {invoice}", "Payment as discussed"]
    text = texts[min(int(attempt), 2)]
    named = [vendor in text, invoice in text, f"{state['amount']:.2f}" in text]
    return {"memo": text, "completeness": sum(named) / len(named)}


def reflect(state: Any) -> State:
    """Notes that the memo has to be better."""
    return {"attempt": state.get("attempt", 0) + 1}


def pay(state: Any) -> State:
    """Sends the money."""
    BANK.append((state["invoice"], state["amount"]))
    return {"amount": state["amount"]}  # which a human may have changed


def receipt(state: Any) -> State:
    return {"receipt": f"paid {state['amount']:.2f} to {state['vendor']}: {state['memo']}"}


def size(state: Any) -> str:
    return "match" if state["amount"] > 200 else "memo"


def build(*, express: bool = False) -> Any:
    """The graph. `express` is a shortcut that was once proposed: it skips the match of small invoices."""
    builder = StateGraph(State)
    for node in (load, match, memo, reflect, pay, receipt):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "load")
    if express:
        builder.add_conditional_edges("load", size, ["match", "memo"])
    else:
        builder.add_edge("load", "match")
    builder.add_edge("match", "memo")
    builder.add_edge("memo", "pay")
    builder.add_edge("reflect", "memo")
    builder.add_edge("pay", "receipt")
    builder.add_edge("receipt", END)
    return builder.compile(checkpointer=InMemorySaver(), name="payments")


def express() -> Any:
    return build(express=True)


graph = build()
