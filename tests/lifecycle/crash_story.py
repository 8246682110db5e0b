"""Run in a process of its own by test_crash.py: a governed graph on SQLite that may kill itself.

python -m tests.lifecycle.crash_story DATABASE KILL_AT: `KILL_AT` is the number of the event (a body's begin or end) at
which the process kills itself with SIGKILL; 0 never. Prints the decisions of the finished run as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS, EvaluationResult, EvaluationRouter, History, HistoryPolicyChecker
from arbiter.instructions import COMMUNICATE, GENERATE, LOAD, REFLECT, RESPOND, VERIFY
from tests.support import Check, Judge, State, thread


def story(database: str, kill_at: int) -> dict[str, Any]:
    events = 0

    def event() -> None:
        nonlocal events
        events += 1
        if events == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def node(name: str) -> Any:
        def body(state: Any) -> Any:
            event()
            update = {"log": [name], "score": 0.2 + 0.25 * state["log"].count("reflect")}
            event()
            return update

        return body

    def verified(history: History) -> tuple[bool, str]:
        check = history.last(instruction=VERIFY)
        drafts = history.count(instruction=GENERATE)
        return check is not None and check.evaluation_results["sound"].passed is True, f"{drafts} drafts"

    inner = StateGraph(State)
    inner.add_node("check", node("check"))
    inner.add_node("tidy", node("tidy"))
    inner.add_edge(START, "check")
    inner.add_edge("check", "tidy")
    builder = StateGraph(State)
    for name in ("load", "draft", "reflect", "respond", "tell"):
        builder.add_node(name, node(name))
    builder.add_node("verify", inner.compile())
    for before, after in [
        (START, "load"),
        ("load", "draft"),
        ("reflect", "draft"),
        ("draft", "verify"),
        ("verify", "respond"),
        ("respond", "tell"),
    ]:
        builder.add_edge(before, after)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", _by_score, target_instructions=[GENERATE]))
    arbiter_os.add_evaluator(
        Judge("sound", lambda h: EvaluationResult(1.0, True), target_nodes=["check"], durable=True)
    )
    arbiter_os.add_policy_router(EvaluationRouter("improve", "quality", "reflect", max_redirects=2))
    arbiter_os.add_policy_checker(Check("verified", verified, target_nodes=["respond"]))
    arbiter_os.add_policy_checker(
        HistoryPolicyChecker("calm", [REFLECT, COMMUNICATE], adjacent=False, on_deny="end")
    )
    with SqliteSaver.from_conn_string(database) as saver:
        app = arbiter_os.govern(
            builder.compile(checkpointer=saver),
            {
                "load": LOAD,
                "draft": GENERATE,
                "reflect": REFLECT,
                "respond": RESPOND,
                "tell": COMMUNICATE,
                "check": VERIFY,
            },
        )
        config = thread("1")
        begun = app.get_state(config).created_at is not None
        app.invoke(None if begun else {"log": []}, config, durability="sync")
        return {
            "log": app.get_state(config).values["log"],
            "decisions": [
                [
                    item.node,
                    item.status,
                    item.redirected_to,
                    {name: verdict.kind for name, verdict in item.check_policy_results.items()},
                    "improve" in item.notes,
                ]
                for item in arbiter_os.history.items()
            ],
        }


def _by_score(history: History) -> EvaluationResult:
    score = history.entries[-1][-1].output_state["score"]
    return EvaluationResult(score, score > 0.9, f"score {score}")


if __name__ == "__main__":
    print(json.dumps(story(sys.argv[1], int(sys.argv[2]))))
