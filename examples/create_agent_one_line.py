"""A LangChain agent, governed in one line.

    python examples/create_agent_one_line.py

No code maps nodes to instructions: Arbiter recognises the graphs of `create_agent`, and knows that `model` is
GENERATE and `tools` is TOOL_CALL. One checker then decides about each call of the tool, with its arguments at
hand. The model is scripted, so that this runs anywhere; the tool, the agent and the governance are real.

Needs langchain: pip install 'arbiteros[models]'
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from rich.console import Console

from arbiter import ArbiterOS, History, PolicyChecker, PolicyViolationError, Verdict
from arbiter.instructions import TOOL_CALL

Agent = CompiledStateGraph[Any, Any, Any, Any]
QUESTIONS = (
    "What is the average salary of the team: 52000, 61000, 58000 and 49000?",
    "What is the average salary of the director: 187000?",
)


def mean(numbers: list[float]) -> float:
    """The arithmetic mean of `numbers`."""
    return statistics.mean(numbers)


class ScriptedModel(BaseChatModel):
    """Asks for the mean of the numbers in a question, then repeats the tool's result."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked = messages[-1]
        if isinstance(asked, ToolMessage):
            answer = AIMessage(f"The average is {asked.text}.")
        else:
            numbers = [float(number) for number in re.findall(r"\d+", asked.text)]
            call = {"name": "mean", "args": {"numbers": numbers}, "id": "call_1"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class NobodyAlone(PolicyChecker):
    """Denies a mean over too few people, because it would reveal what one of them earns."""

    def __init__(self, least: int = 3) -> None:
        super().__init__("nobody_alone", target_instructions=[TOOL_CALL])
        self.least = least

    def check_before(self, history: History) -> Verdict:
        # The agent sends its tools a bare list of calls; Arbiter puts an unnamed input under `__root__`.
        for call in history.item.input_state["__root__"]:
            if (people := len(call["args"]["numbers"])) < self.least:
                return Verdict.deny(f"an average over {people}, where {self.least} is the least")
        return Verdict.allow()


def main() -> int:
    console = Console()
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(NobodyAlone())

    agent: Agent = arbiter_os.govern(create_agent(ScriptedModel(), [mean]))  # the one line

    for question in QUESTIONS:
        console.print()
        console.rule(question, style="bold")
        try:
            result = agent.invoke({"messages": [("user", question)]})
        except PolicyViolationError as error:
            console.print(f"\nrefused: {error}\n", style="red", markup=False, highlight=False)
        else:
            answer = result["messages"][-1].text
            console.print(f"\nanswer: {answer}\n", style="green", markup=False, highlight=False)
        arbiter_os.history.pprint(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
