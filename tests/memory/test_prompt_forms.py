"""The headings and quotes of the memory's prompts, which a scripted model reads in users' own tests.

A new sentence may be added to a prompt, but these forms stay: known facts with their ids, new messages with
their ids and speakers, and pairs that begin with the known claim, then the new one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from arbiter import ArbiterOS
from arbiter.memory import EvaluationCycle, FactEvaluator
from tests.scripted import Scripted

MESSAGE = r"Message (\S+) of ([^\n]*):\n\[quoted text begins\]\n> (.*?)\n\[quoted text ends\]"
KNOWN = r"^> (\S+) \((fact|status|opinion), about ([^)]*)\): (.*)$"
PAIR = r"Pair (\d+)\..*?\n> (.*?)\n\[quoted.*?\n> (.*?)\n\[quoted"


def test_a_scripted_model_finds_messages_known_facts_and_pairs_in_the_prompts() -> None:
    seen: dict[str, list[Any]] = {"messages": [], "known": [], "pairs": []}

    def answer(prompt: str) -> str:
        if "Pair 1." in prompt:
            pairs = re.findall(PAIR, prompt, re.S)
            seen["pairs"] += [(known, new) for _, known, new in pairs]
            return json.dumps({"relations": [{"pair": int(n), "relation": "supersedes"} for n, *_ in pairs]})
        before, new = prompt.split("The new messages:")
        if "The known facts, each with its id:" in before:
            listed = before.split("The known facts, each with its id:")[1]
            seen["known"] += re.findall(KNOWN, listed, re.M)
        said = re.findall(MESSAGE, new, re.S)
        seen["messages"] += [(id, text) for id, _, text in said]
        claims = [
            {"claim": f"User {text.removeprefix('I ')}", "type": "status", "source_message_ids": [id]}
            for id, _, text in said
            if text.startswith("I ")
        ]
        return json.dumps({"claims": claims})

    store = InMemoryStore()
    cycle = EvaluationCycle(store=store, evaluator_model=Scripted(answers=[answer]), conversation_length=2)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    builder = StateGraph(MessagesState).add_node("reply", lambda state: {"messages": [AIMessage("ok")]})
    app = arbiter_os.govern(
        builder.add_edge(START, "reply").compile(checkpointer=InMemorySaver()), {"reply": "RESPOND"}
    )
    config: Any = {"configurable": {"thread_id": "room", "user_id": "user-1"}}
    for number, text in enumerate(("I live in Oslo", "I live in Rome")):
        app.invoke({"messages": [HumanMessage(text, id=f"m{number}")]}, config)

    assert ("m0", "I live in Oslo") in seen["messages"]
    assert ("m1", "I live in Rome") in seen["messages"]
    assert [claim for *_, claim in seen["known"]] == ["User live in Oslo"]
    assert seen["pairs"] == [("User live in Oslo", "User live in Rome")]
    (fact,) = cycle.memory.facts("user-1")
    assert fact.claim == "User live in Rome"
    assert seen["known"][0][0] in {old.id for old in cycle.memory.facts("user-1", state="superseded")}
