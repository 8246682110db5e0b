"""A companion that remembers Ada from one conversation to the next, and forgets on her request.

    python examples/companion/main.py [--model openai:gpt-5-mini] [--embeddings] [--store memory.db]

Three threads of one user. In the first the companion learns, in the second it corrects itself, and in the
third, whose messages it has never seen, it answers from memory; on request it forgets. At the end the script
prints the known facts, their confidence and their sources. Without `--model` everything is played from a
script.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from rich.console import Console
from rich.text import Text

from arbiter import ArbiterOS, ConfigurationError
from arbiter.instructions import RESPOND
from arbiter.memory import (
    Character,
    EvaluationCycle,
    FactEvaluator,
    FactsProvider,
    GoalEvaluator,
    GoalsProvider,
    LocalEmbeddings,
    ReflectionEvaluator,
    RelationshipsProvider,
    TimeProvider,
    TrustEvaluator,
    open_store,
)
from arbiter.models import model_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))  # for `python examples/companion/main.py`, from any folder

from examples.companion.script import STORY, Listener, Talker  # noqa: E402

USER = "ada"
STEPS = ("find a flat", "tell the neighbours")


class Companion:
    """A chat agent whose graph knows nothing of memory, and its governance."""

    def __init__(self, store: BaseStore, model: str | None = None) -> None:
        talker: Any = Talker()
        listener: Any = Listener()
        if model is not None:
            talker = listener = model_of(model)

        def talk(state: MessagesState) -> dict[str, Any]:
            return {"messages": [talker.invoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk")
        self.cycle = EvaluationCycle(
            store=store,
            evaluator_model=listener,
            conversation_length=4,  # so that two unread messages are enough for the fact evaluator
            agent_id="juniper",
            character=Character("Juniper", bio=["Juniper likes to hear what is new."]),
        )
        self.arbiter_os = ArbiterOS()
        self.arbiter_os.add_evaluation_cycle(self.cycle)
        for evaluator in (FactEvaluator(), ReflectionEvaluator(), GoalEvaluator(), TrustEvaluator()):
            self.arbiter_os.add_evaluator(evaluator)
        for provider in (FactsProvider(), RelationshipsProvider(), GoalsProvider(), TimeProvider()):
            self.arbiter_os.add_advisor(provider)
        self.app: Any = self.arbiter_os.govern(graph.compile(checkpointer=InMemorySaver()), {"talk": RESPOND})

    def say(self, text: str, thread: str) -> AIMessage:
        """The companion's answer in that thread."""
        config: RunnableConfig = {"configurable": {"thread_id": thread, "user_id": USER}}
        answer: AIMessage = self.app.invoke({"messages": [HumanMessage(text)]}, config)["messages"][-1]
        return answer

    def learned(self) -> str:
        """The evaluators' findings in the last turn, in one line; "" if there are none."""
        item = self.arbiter_os.history.last(node="talk")
        if item is None:
            return ""
        results = item.evaluation_results
        return "; ".join(f"{name}: {result.feedback}" for name, result in results.items() if result.feedback)


def play(companion: Companion, console: Console) -> None:
    memory = companion.cycle.memory
    memory.create_goal("thursday", "Move to Portland", STEPS, entity_id=USER, id="move")
    for thread, lines in STORY:
        console.rule(thread)
        for line in lines:
            answer = companion.say(line, thread)
            console.print(Text.assemble(("Ada: ", "bold"), line))
            console.print(Text.assemble(("Juniper: ", "bold"), str(answer.text)))
            if remark := companion.learned():
                console.print(Text(f"  ({remark})", style="magenta"))
    console.rule("what Juniper knows of Ada")
    console.print(memory.table(USER))
    for goal in memory.goals("thursday"):
        steps = ", ".join(f"{'✓' if step.completed else '·'} {step.description}" for step in goal.objectives)
        console.print(Text(f"{goal.name} ({goal.status}): {steps}"))


def main() -> None:
    parser = argparse.ArgumentParser(description="A companion that remembers.")
    parser.add_argument("--model", help="a real model for all parts, such as openai:gpt-5-mini")
    parser.add_argument("--embeddings", action="store_true", help="search by meaning, with the offline model")
    parser.add_argument(
        "--store", default=":memory:", help="the SQLite file or postgresql:// URL to remember in"
    )
    arguments = parser.parse_args()
    try:
        embeddings = LocalEmbeddings() if arguments.embeddings else None
        with open_store(arguments.store, embeddings=embeddings) as store:
            play(Companion(store, arguments.model), Console())
    except ConfigurationError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
