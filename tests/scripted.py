"""Chat models that answer by a script, with and without structured output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field


def usage(into: int, out: int) -> UsageMetadata:
    return UsageMetadata(input_tokens=into, output_tokens=out, total_tokens=into + out)


class Scripted(BaseChatModel):
    """Gives its answers one after another, the last one for ever. No tool calls.

    An exception is raised; a function gets the text of the prompt and returns the answer.
    """

    answers: list[Any]
    pause: float = 0.0
    """Seconds that each answer takes."""
    asked: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])
    """What it was asked, call by call."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def calls(self) -> int:
        return len(self.asked)

    def prompt(self, call: int = -1) -> str:
        """Everything that the model saw in that call."""
        return "\n".join(str(message.text) for message in self.asked[call])

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        time.sleep(self.pause)
        answer: Any = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(list(messages))
        if callable(answer):
            answer = answer(self.prompt())
        if isinstance(answer, Exception):
            raise answer
        message = answer if isinstance(answer, BaseMessage) else AIMessage(content=answer)
        return ChatResult(generations=[ChatGeneration(message=message.model_copy(deep=True))])


class Named(Scripted):
    """A model with a name, as those of providers have."""

    model_name: str


class ScriptedTools(Scripted):
    """As `Scripted`, with tool calls, and so with LangChain's own structured output."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return self.bind(tools=tools)


class RefusesTools(ScriptedTools):
    """A model whose class supports tool calls and whose endpoint refuses them."""

    status: int = 400

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if "tools" in kwargs:
            self.asked.append(list(messages))
            raise EndpointError(self.status)
        return super()._generate(messages, *args, **kwargs)


class EndpointError(Exception):
    """An error as the clients of OpenAI, Anthropic and Ollama raise it."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


def tool_call(name: str, *arguments: dict[str, Any], **fields: Any) -> AIMessage:
    """A message that calls the tool once for each of `arguments`."""
    calls = [
        {"name": name, "args": given, "id": f"call-{number}", "type": "tool_call"}
        for number, given in enumerate(arguments)
    ]
    return AIMessage("", tool_calls=calls, **fields)
