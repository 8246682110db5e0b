"""Turns of a governed chat on SQLite that may kill itself; test_properties.py runs it in a process of its
own.

python -m tests.memory.memory_story FOLDER KILL_AT: the process kills itself with SIGKILL at the `KILL_AT`th
call of the store or a model; 0 means never. Prints the memory as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from arbiter import ArbiterOS
from arbiter.memory import EvaluationCycle, FactEvaluator, ReflectionEvaluator, open_store
from tests.scripted import Scripted

CLAIMS = json.dumps({"claims": [{"claim": "User lives in Oslo", "type": "fact"}]})
RELATION = {"sourceEntityId": "ada", "targetEntityId": "agent", "tags": ["friendly"]}
REFLECTION = json.dumps({"thought": "Ada is settled.", "facts": [], "relationships": [RELATION]})


class Fatal:
    """Counts calls, and ends the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(BaseStore):
    """A store that reports each call before and after it."""

    supports_ttl = True

    def __init__(self, store: BaseStore, event: Fatal) -> None:
        self.inner = store
        self.event = event

    def batch(self, ops: Any) -> Any:
        self.event()
        results = self.inner.batch(ops)
        self.event()
        return results

    async def abatch(self, ops: Any) -> Any:
        raise NotImplementedError


class Answers(Scripted):
    """Answers each kind of question with its own script."""

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.answers = [REFLECTION if '"thought"' in str(messages) else CLAIMS]
        return super()._generate(messages, *args, **kwargs)


def story(folder: Path, kill_at: int) -> dict[str, Any]:
    event = Fatal(kill_at)
    with (
        open_store(folder / "memory.db") as store,
        SqliteSaver.from_conn_string(str(folder / "graph.db")) as saver,
    ):
        cycle = EvaluationCycle(
            store=Watched(store, event),
            evaluator_model=Answers(answers=[""]),
            conversation_length=2,
        )
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(cycle)
        arbiter_os.add_evaluator(FactEvaluator())
        arbiter_os.add_evaluator(ReflectionEvaluator())
        builder = StateGraph(MessagesState).add_edge(START, "reply")
        builder.add_node("reply", lambda state: {"messages": [AIMessage("ok")]})
        app: Any = arbiter_os.govern(builder.compile(checkpointer=saver), {"reply": "RESPOND"})
        config: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
        started = bool(app.get_state(config).values)
        given = None if started else {"messages": [HumanMessage("I live in Oslo", id="m1")]}
        app.invoke(given, config, durability="sync")
        return {
            "facts": [
                [f.claim, f.mention_count, f.confidence, f.state] for f in cycle.memory.facts("ada", None)
            ],
            "interactions": [r.interactions for r in cycle.memory.relationships()],
            "thoughts": [t.text for t in cycle.memory.thoughts("t")],
            "events": event.calls,
        }


if __name__ == "__main__":
    print(json.dumps(story(Path(sys.argv[1]), int(sys.argv[2]))))
