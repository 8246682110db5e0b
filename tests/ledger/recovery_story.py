"""Run in a process of its own by test_recovery.py: a governed graph on SQLite that may kill itself.

python -m tests.ledger.recovery_story CHECKPOINTS LEDGER KILL_AT: `KILL_AT` is the number of the body in which
the process kills itself with SIGKILL; 0 never. The ledger is written when the process ends, and not before.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS, NodeEvaluator, ThresholdEvaluator
from arbiter.ledger import Ledger
from tests.support import Check, Route, State

THREAD: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}


class Kills:
    """Makes bodies, of which one kills the process."""

    def __init__(self, kill_at: int) -> None:
        self.left = kill_at

    def node(self, name: str) -> Any:
        def body(state: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            score = {"score": 0.25 + 0.5 * state["log"].count("again")} if name == "draft" else {}
            return {"log": [name], **score}

        return body


def later() -> float:
    """A clock by which a killed process has ended long ago."""
    return time.time() + 60


def story(saver: Any, ledger: Ledger | None, kill_at: int) -> Any:
    """A loop, two siblings, a subgraph and a denial that redirects, governed."""
    kills = Kills(kill_at)
    inner = StateGraph(State)
    inner.add_node("inside", kills.node("inside"))
    inner.add_node("beside", kills.node("beside"))
    inner.add_edge(START, "inside")
    inner.add_edge("inside", "beside")
    builder: Any = StateGraph(State)
    for name in ("draft", "again", "left", "right", "join", "stop"):
        builder.add_node(name, kills.node(name))
    builder.add_node("sub", inner.compile())
    for before, after in [
        (START, "draft"), ("again", "draft"), ("draft", "left"), ("draft", "right"), ("left", "sub"),
        (["right", "sub"], "join"),
    ]:  # fmt: skip
        builder.add_edge(before, after)
    arbiter_os = ArbiterOS(ledger=ledger, clock=time.time if kill_at else later)
    score: NodeEvaluator = ThresholdEvaluator("score", "score", 0.5, target_nodes=["draft"])
    arbiter_os.add_evaluator(score)
    arbiter_os.add_policy_router(
        Route(
            "improve",
            lambda h, _: None if h.item.evaluation_results["score"].passed else "again",
            target_nodes=["draft"],
        )
    )
    arbiter_os.add_policy_checker(
        Check("never", lambda h: False, target_nodes=["join"], on_deny="redirect:stop")
    )
    return arbiter_os.govern(builder.compile(checkpointer=saver), {"draft": "GENERATE"})


if __name__ == "__main__":
    checkpoints, path, kill_at = sys.argv[1:]
    with (
        SqliteSaver.from_conn_string(checkpoints) as saver,
        Ledger(path, flush_every=60) as ledger,
    ):
        app = story(saver, ledger, int(kill_at))
        app.invoke(None if app.get_state(THREAD).next else {"log": []}, THREAD, durability="sync")
