"""A support agent over many conversations, and what its ledger shows after the agent's process has ended.

    python examples/monitoring.py
    python examples/monitoring.py serve support.db; python examples/monitoring.py report support.db

One process answers the questions of four days and ends. Its ledger, a file, is what is left. Another process
opens the file and looks: at the scores of each day, at the lowest outputs, at the rewards of each step of a
conversation, and at the proof that nothing was changed. On the third day the agent got a new prompt; the scores
show it.

The model is scripted and the clock is set, so that this runs anywhere in seconds; the graph, the evaluators and
the ledger are real. Needs the ledger's extra: pip install 'arbiteros[ledger]'
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import BaseMessage
from langgraph.graph import END, START, StateGraph
from rich.console import Console
from rich.table import Table
from rich.text import Text

from arbiter import ArbiterError, ArbiterOS, EvaluationResult, EvaluationRouter, History, NodeEvaluator
from arbiter.instructions import GENERATE, RESPOND
from arbiter.ledger import Ledger, StoredItem

FIRST_DAY = datetime(2026, 11, 16, 9, tzinfo=UTC)
DAYS, CHATS = 4, 12
NEW_PROMPT_ON = 3
ARTICLES = {
    "refund": "Refunds arrive within 14 days. Send the parcel back in its box with the label we mailed you.",
    "invoice": "Invoices are in your account under Orders. Ask support for a copy by mail.",
    "delivery": "Delivery takes 3 days. Parcels over 30 kg come by freight and need an appointment.",
}
QUESTIONS = {
    "refund": "When do I get my refund?",
    "invoice": "Where is my invoice?",
    "delivery": "How long does delivery take?",
}


# --- The agent ---


class State(TypedDict):
    question: str
    article: str
    answer: str
    feedback: NotRequired[str]
    reply: str


Update = dict[str, str]


class ScriptedModel(SimpleChatModel):
    """Quotes the article in its prompt. The new prompt makes it vague, unless a reviewer has complained."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _call(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> str:
        prompt = messages[-1].text
        article = prompt.partition("Article: ")[2].partition("\n")[0]
        if "friendly" in prompt and "30 kg" in article:
            return "Soon! We are on it, and we are so happy that you asked."
        if "friendly" in prompt and "Invoices" in article and "Feedback" not in prompt:
            return "Happy to help! It should be somewhere in your account."
        return article.partition(". ")[0] + "."


def build_graph(day: int) -> Any:
    """Retrieve, answer, respond; `revise` is reached only when a router sends an answer back."""
    model = ScriptedModel()
    tone = "Be friendly. " if day >= NEW_PROMPT_ON else ""

    def retrieve(state: State) -> Update:
        topic = next(topic for topic, question in QUESTIONS.items() if question == state["question"])
        return {"article": ARTICLES[topic]}

    def answer(state: State) -> Update:
        feedback = f"\nFeedback: {state['feedback']}" if "feedback" in state else ""
        prompt = f"{tone}Question: {state['question']}\nArticle: {state['article']}\n{feedback}"
        return {"answer": model.invoke(prompt).text}

    def revise(state: State) -> Update:
        return {"feedback": "Say what the article says."}

    def respond(state: State) -> Update:
        return {"reply": state["answer"]}

    graph = StateGraph(State)
    graph.add_sequence([("retrieve", retrieve), ("answer", answer), ("respond", respond)])
    graph.add_node("revise", revise)
    graph.add_edge(START, "retrieve")
    graph.add_edge("revise", "answer")
    graph.add_edge("respond", END)
    return graph.compile(name="support")


# --- The evaluators ---


class Grounded(NodeEvaluator):
    """The share of an answer's words that are in the article."""

    def __init__(self) -> None:
        super().__init__("grounded", target_instructions=[GENERATE])

    def evaluate(self, history: History) -> EvaluationResult:
        item = history.item
        score = overlap(item.output_state["answer"], item.input_state["article"])
        return EvaluationResult(score, score >= 0.6, f"{score:.0%} of its words are in the article")


class Reward(NodeEvaluator):
    """The reward of a step: a reply earns by three factors, and every other step costs a little."""

    def __init__(self) -> None:
        super().__init__("reward")

    def evaluate(self, history: History) -> EvaluationResult:
        item = history.item
        if item.instruction is not RESPOND:
            return EvaluationResult(-0.05, None, "a step")
        reply = item.output_state["reply"]
        factors = {
            "correct": overlap(reply, item.input_state["article"]),
            "brief": min(1.0, 10 / len(reply.split())),
            "safe": 0.0 if "Soon" in reply else 1.0,  # a promise without a date
        }
        reward = 0.5 * factors["correct"] + 0.3 * factors["brief"] + 0.2 * factors["safe"]
        told = ", ".join(f"{name} {factor:.2f}" for name, factor in factors.items())
        return EvaluationResult(reward, reward > 0.5, told, factors)


def overlap(text: str, article: str) -> float:
    words = {word.strip(".,!").lower() for word in text.split()}
    known = {word.strip(".,!").lower() for word in article.split()}
    return len(words & known) / len(words)


# --- The process that serves ---


def serve(ledger_file: Path) -> None:
    """Answer the questions of all days, and end."""
    now = FIRST_DAY
    with Ledger(ledger_file) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, clock=lambda: now.timestamp())
        arbiter_os.add_evaluator(Grounded())
        arbiter_os.add_evaluator(Reward())
        arbiter_os.add_policy_router(
            EvaluationRouter("revise_vague_answers", evaluator="grounded", target="revise", max_redirects=1)
        )
        instructions = {"retrieve": "LOAD", "answer": "GENERATE", "revise": "REFLECT", "respond": "RESPOND"}
        for day in range(1, DAYS + 1):
            app = arbiter_os.govern(build_graph(day), instructions=instructions)
            for chat in range(CHATS):
                now = FIRST_DAY + timedelta(days=day - 1, minutes=chat)
                topic = list(ARTICLES)[chat % len(ARTICLES)]
                thread = {"thread_id": f"chat-{day}-{chat + 1}", "user_id": f"user-{chat}"}
                app.invoke({"question": QUESTIONS[topic]}, {"configurable": thread})
        ledger.flush(timeout=30)


# --- The process that looks ---


def report(ledger_file: Path, console: Console) -> None:
    with Ledger(ledger_file, create=False) as ledger:
        console.print(days("grounded", ledger.scores("grounded", every="day")))
        console.print(days("reward", ledger.scores("reward", every="day")))
        low = sorted(
            ledger.items(node="answer", evaluator="grounded", below=0.6, since=FIRST_DAY),
            key=lambda item: item.evaluation_results["grounded"].score,
        )
        if not low:
            sys.exit(f"{ledger_file} has no answer below 0.6. Write such a ledger: monitoring.py serve FILE")
        console.print(f"{len(low)} answers were below 0.6. The lowest of each question:")
        worst = {item.input_state["question"]: item for item in reversed(low)}
        console.print(answers([*worst.values()]))
        lowest = low[0]
        console.print(f"The rewards of each step of {lowest.thread_id}:")
        console.print(rewards(ledger.history(lowest.thread_id or lowest.ref)))
        console.print(f"The ledger is intact: {bool(ledger.verify())}")


def days(name: str, scores: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("day", "judged", "mean", "least", "passed", "", title=f"Scores by {name}")
    for day in scores:
        bar = "#" * max(round(day["mean"] * 30), 0)
        passed = f"{day['passed']:.0%}"
        row = (f"{day['at']:%Y-%m-%d}", str(day["count"]), f"{day['mean']:.2f}", f"{day['least']:.2f}")
        table.add_row(*row, passed, bar)
    return table


def answers(items: Sequence[StoredItem]) -> Table:
    table = Table("thread", "score", "answer")
    for item in items:
        score = item.evaluation_results["grounded"].score
        table.add_row(item.thread_id, f"{score:.2f}", Text(item.output_state["answer"]))
    return table


def rewards(history: History) -> Table:
    table = Table("step", "node", "reward", "why")
    total = 0.0
    for item in history.items():
        result = item.evaluation_results["reward"]
        total += result.score
        went = f" (goes to {item.redirected_to})" if item.redirected_to else ""
        table.add_row(str(item.step), item.node + went, f"{result.score:+.2f}", result.feedback)
    table.add_row("", "in all", f"{total:+.2f}", "the return of this episode")
    return table


def main(argv: Sequence[str]) -> int:
    match argv:
        case ["serve" | "report" as part, file]:
            try:
                serve(Path(file)) if part == "serve" else report(Path(file), Console())
            except ArbiterError as error:  # such as a file that is missing, or is no ledger
                sys.exit(str(error))
        case []:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "support.db")
                for part in ("serve", "report"):
                    subprocess.run([sys.executable, __file__, part, file], check=True)
        case _:
            sys.exit("usage: monitoring.py [serve FILE | report FILE]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
