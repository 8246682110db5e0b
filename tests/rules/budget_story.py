"""Run in a process of its own by test_budget.py: a fan-out on SQLite under a budget of 10 calls.

python -m tests.rules.budget_story DATABASE MODE DIE: with DIE=1 the process dies in the body
number 5, once those before it are saved. Else it goes on with the thread and prints the bodies that it ran, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from arbiter import ArbiterOS
from arbiter.checkers import BudgetChecker
from tests.support import State

WIDTH = 14


def story(database: str, mode: str, die: bool) -> dict[str, Any]:
    ran: list[int] = []

    def work(state: Any) -> Any:
        number: int = state["amount"]
        if die and number == 5:
            while saved(database) < 5:
                time.sleep(0.01)
            os._exit(9)
        if die and number > 5:
            time.sleep(30)
        ran.append(number)
        return {"log": [str(number)]}

    def sends(_: Any) -> list[Send]:
        return [Send("work", {"amount": n}) for n in range(WIDTH)]

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("again", lambda state: {"log": ["again"]})
    builder.add_conditional_edges(START, sends)
    builder.add_edge("work", "again")
    budget = BudgetChecker("budget", calls=10, per="thread", on_deny="end", target_nodes=["work", "again"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(budget)
    config: Any = {"configurable": {"thread_id": "1"}, "max_concurrency": 8}
    given: Any = {"log": []} if die else None
    if mode == "sync":
        with SqliteSaver.from_conn_string(database) as saver:
            arbiter_os.govern(builder.compile(checkpointer=saver)).invoke(given, config)
    else:
        asyncio.run(_arun(arbiter_os, builder, database, given, config))
    usage = budget.used()
    assert usage is not None
    return {"ran": sorted(ran), "calls": usage.calls}


async def _arun(arbiter_os: ArbiterOS, builder: Any, database: str, given: Any, config: Any) -> None:
    async with AsyncSqliteSaver.from_conn_string(database) as saver:
        await arbiter_os.govern(builder.compile(checkpointer=saver)).ainvoke(given, config)


def saved(database: str) -> int:
    """How many bodies have had saved what they wrote."""
    with closing(sqlite3.connect(database)) as connection:
        # The graph's input may be there as well, as the write of its start: an empty list, one byte.
        found = connection.execute(
            "select count(distinct task_id) from writes where channel = 'log' and length(value) > 1"
        )
        count: int = found.fetchone()[0]
    return count


if __name__ == "__main__":
    print(json.dumps(story(sys.argv[1], sys.argv[2], sys.argv[3] == "1")))
