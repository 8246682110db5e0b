"""Payment of invoices under a constitution of three files.

    python examples/payments/main.py

Shows a payment with a memo that is sent back twice and ends with its best attempt, a denial by a condition, a
denial of an invoice that matches no order, an approval that is edited and checked again, a budget that runs
out, and the linter's report on a shortcut.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import Any

from langgraph.types import Command
from rich.console import Console
from rich.text import Text

from arbiter import ArbiterOS, PolicyViolationError
from arbiter.linting._table import table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))  # for `python examples/payments/main.py`, from any folder

from examples.payments.graph import BANK, build, graph  # noqa: E402

VISITS = count()
console = Console(highlight=False)


def tell(text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def settle(app: Any, invoice: str, answers: tuple[Any, ...] = (), clerk: str = "kim") -> None:
    """Pay one invoice with a human's answers to the questions, and report the result."""
    config = {"configurable": {"thread_id": f"{invoice}-{next(VISITS)}", "user_id": clerk}}
    given: Any = {"invoice": invoice}
    try:
        output = app.invoke(given, config)
        for answer in answers:
            (question,) = output["__interrupt__"]
            tell(f"  asked: {question.value['reason']}")
            tell(f"  a human says: {answer}")
            output = app.invoke(Command(resume=answer), config)
        tell(f"  {output['receipt']}", "green")
    except PolicyViolationError as error:
        tell(f"  refused by {error.policy}: {error.reason}", "red")


def main() -> None:
    arbiter_os = ArbiterOS.from_constitution(HERE)
    app = arbiter_os.govern(graph)

    tell("1. An invoice. Its memo is sent back twice; the second attempt was the best.", "bold")
    settle(app, "A-1")
    arbiter_os.history.pprint(console)

    tell("2. The auditors stopped this vendor: a condition denies.", "bold")
    settle(app, "I-1")

    tell("3. No order matches: the verification ran, and did not pass.", "bold")
    settle(app, "G-2")

    tell("4. A large payment is approved with another amount, which is checked again.", "bold")
    settle(app, "A-2", ({"type": "edit", "input": {"amount": 9000.0}},))
    settle(app, "A-2", ({"type": "edit", "input": {"amount": 900.0}},))

    tell("5. One clerk sends four payments. The fifth is over the budget; another clerk's is not.", "bold")
    for invoice in ("A-3", "A-4", "G-1"):
        settle(app, invoice)
    settle(app, "G-1", clerk="sam")

    tell(f"The bank has seen: {', '.join(f'{invoice} {amount:.2f}' for invoice, amount in BANK)}", "bold")

    tell("6. The linter reads the shortcut for small invoices, before anybody runs it.", "bold")
    console.print(table(arbiter_os.lint(build(express=True))))


if __name__ == "__main__":
    main()
