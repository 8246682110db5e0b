"""An agent that looks up, notes and deletes what it knows about its user with tools.

    python examples/memory_tools.py [--store memory.db]

Ada tells something in one thread and asks for it in another; Bob asks the same and gets nothing of hers. When
Ada wants it forgotten, a checker asks a human first. The model is scripted, so that this runs anywhere; the
tools, the store, the graph and the governance are real.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from rich.console import Console

from arbiter import ArbiterOS, ConfigurationError, History, PolicyChecker, Verdict
from arbiter.instructions import GENERATE, TOOL_CALL
from arbiter.memory import EvaluationCycle, memory_tools, open_store

STORY = (
    ("ada", "monday", "Please remember that I am allergic to nuts."),
    ("ada", "friday", "What may I not eat?"),
    ("bob", "saturday", "What may I not eat?"),
    ("ada", "sunday", "Forget what I may not eat."),
    ("ada", "holiday", "What may I not eat?"),
)


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """What a model with tools does: look up before it answers or deletes, and note what it is asked to note."""
    said = next(message for message in reversed(messages) if isinstance(message, HumanMessage)).text
    result = messages[-1].text if isinstance(messages[-1], ToolMessage) else ""
    if said.startswith("Please remember") and not result:
        return calling("remember", claim="The user is allergic to nuts")
    if not result:
        return calling("search_memory", query="allergic eat food")
    if said.startswith("Forget") and (ids := re.findall(r"^\[(\w+)\]", result, re.M)):
        return calling("forget_memory", ids=ids)
    return AIMessage(re.sub(r"( as )?\[[^]]*\] ?", "", result.splitlines()[-1]))


def calling(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}"}])


class AsksBeforeForgetting(PolicyChecker):
    """Has a human confirm each deletion."""

    def __init__(self) -> None:
        super().__init__("asks_before_forgetting", target_instructions=[TOOL_CALL])

    def check_before(self, history: History) -> Verdict:
        for call in history.item.input_state["messages"][-1].tool_calls:
            if call["name"] == "forget_memory":
                return Verdict.ask("records are about to be deleted", number=len(call["args"]["ids"]))
        return Verdict.allow()


def build(store: BaseStore) -> Any:
    """The governed agent."""
    tools = memory_tools(EvaluationCycle(store=store))

    def model(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [answer(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AsksBeforeForgetting())
    app = graph.compile(checkpointer=InMemorySaver())
    return arbiter_os.govern(app, instructions={"model": GENERATE, "tools": TOOL_CALL})


def tell(app: Any, console: Console) -> None:
    for user, thread, text in STORY:
        console.print(f"\n{user}, {thread}: {text}", style="bold", markup=False, highlight=False)
        config: RunnableConfig = {"configurable": {"thread_id": thread, "user_id": user}}
        result = app.invoke({"messages": [HumanMessage(text)]}, config)
        if "__interrupt__" in result:
            console.print("  a human is asked, and approves", style="yellow")
            result = app.invoke(Command(resume="approve"), config)
        for message in result["messages"]:
            if isinstance(message, AIMessage) and message.tool_calls:
                console.print(f"  calls {message.tool_calls[0]['name']}", style="dim")
        console.print(f"  {result['messages'][-1].text}", style="green", markup=False, highlight=False)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description="An agent with tools for its memory.")
    parser.add_argument(
        "--store", help="an SQLite file or a PostgreSQL URL; without it, memory ends with the script"
    )
    where = parser.parse_args(arguments).store
    try:
        with open_store(where) if where else nullcontext(InMemoryStore()) as store:
            tell(build(store), Console())
    except ConfigurationError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
