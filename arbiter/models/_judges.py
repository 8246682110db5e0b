"""Judges: a chat model, a recording of one, or any object with the two methods of `Judge`.

A `JudgeRequest` is the whole prompt and the schema of the answer; a `JudgeReply` is the answer as plain data,
or the reason why there is none. The caller (an evaluator, the engine of personas) chooses the prompt and
interprets the answer.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Literal, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from arbiter._values.contexts import during
from arbiter.errors import ArbiterWarning, ConfigurationError, callers
from arbiter.models._asking import Answer, ChatModel, aask, ask, model_of

judged_thread: ContextVar[str | None] = ContextVar("arbiter_judged_thread", default=None)
"""The LangGraph thread whose node run is being judged, for judges that count or record by thread."""
Meter = Callable[[str, "JudgeReply | None"], None]
"""Called with the purse and the reply of each call of a judge; None for a call that failed."""
usage_meter: ContextVar[Meter | None] = ContextVar("arbiter_usage_meter", default=None)
"""Counts what the judges inside a node's run use: those of correction gates and interventions."""
counted_apart: ContextVar[str | None] = ContextVar("arbiter_counted_apart", default=None)
"""The purse inside calls of models that a meter or a harness counts by the judge's reply. Callbacks that count the
calls of a run leave them out."""
Purpose = Literal["score", "batch", "check", "ideas", "grade"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """One question to a judge. `propositions` are the ids of the claims in it, in order; none for ideas and
    grades.

    The answer must fit `schema`; its docstring and field descriptions are part of the question. `vote` counts
    from 0 if the same question is asked several times, `purse` names what the answer is for; a model sees
    neither.
    """

    purpose: Purpose
    propositions: tuple[str, ...]
    messages: tuple[BaseMessage, ...]
    schema: type[BaseModel]
    vote: int = 0
    purse: str = "judge"

    @property
    def key(self) -> str:
        """A hash of the whole question: every word of the prompt and the schema of the answer."""
        asked = [
            self.purpose,
            self.propositions,
            [(message.type, str(message.text)) for message in self.messages],
            _schema(self.schema),
        ]
        text = json.dumps(asked, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _schema(schema: type[BaseModel]) -> dict[str, Any]:
    return schema.model_json_schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """A judge's answer. `value` is None if no answer could be read; `problem` then gives the reason.

    `texts` are the answers word for word, oldest first. `calls` counts the model calls. `usage` is the sum of
    their tokens; None if the model does not report one of them, and `usages` then has those of each call.
    """

    value: Mapping[str, Any] | None
    problem: str = ""
    texts: tuple[str, ...] = ()
    calls: int = 1
    usage: UsageMetadata | None = None
    model: str = ""
    usages: tuple[UsageMetadata | None, ...] = ()


@runtime_checkable
class Judge(Protocol):
    """Answers questions. It may raise; the engine turns that into an outcome. It must be safe to call from
    several threads."""

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """The answer to a question."""
        ...

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        ...


def counting_apart(purse: str) -> AbstractContextManager[None]:
    """Calls of models inside are counted by their caller, in that purse."""
    return during(counted_apart, purse)


class ChatJudge:
    """A chat model as a judge, or a text for LangChain's `init_chat_model`, like "openai:gpt-5-mini".

    It uses structured output if the model supports it, else JSON in the model's text, with one repair
    (`arbiter.models.ask`). `temperature` applies to a model made from a text (None: the provider's default);
    a model object keeps its own.
    """

    named: tuple[str, float | None] | None = None
    """The text and the temperature of a model that is made here."""

    def __init__(self, model: ChatModel | str, *, temperature: float | None = 0.0) -> None:
        self.model = model_of(model) if temperature is None else model_of(model, temperature=temperature)
        if isinstance(model, str):
            self.named = (model, temperature)
        elif temperature:
            warnings.warn(
                f"temperature={temperature!r:.80} has no effect on a model object, which keeps its own. Set it on "
                "the model.",
                ArbiterWarning,
                stacklevel=callers(),
            )

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the model, at most twice. Raises the model's errors."""
        with counting_apart(request.purse):
            return _reply(ask(self.model, request.messages, request.schema))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        with counting_apart(request.purse):
            return _reply(await aask(self.model, request.messages, request.schema))


def _reply(answer: Answer[Any]) -> JudgeReply:
    return JudgeReply(
        value=None if answer.value is None else answer.value.model_dump(),
        problem=answer.problem,
        texts=answer.texts,
        calls=answer.attempts,
        usage=answer.usage,
        model=answer.model,
        usages=answer.usages,
    )


def judge_of(value: Judge | ChatModel | str) -> Judge:
    """`value` itself if it is a judge, else a `ChatJudge`. Raises `ConfigurationError`."""
    given: Any = value
    if isinstance(given, type):
        raise ConfigurationError(
            f"expected a judge, got the class {given.__name__}. Write {given.__name__}()."
        )
    if isinstance(value, Judge):
        return value
    methods = [name for name in ("judge", "ajudge") if callable(getattr(given, name, None))]
    if methods:
        [missing] = {"judge", "ajudge"} - {*methods}
        raise ConfigurationError(
            f"expected a judge with judge() and ajudge(), got a {type(given).__name__} without {missing}()."
        )
    if isinstance(given, FunctionType | MethodType):
        raise ConfigurationError(
            f"expected a judge, got the function {given.__name__}. Write a class with judge(request) and "
            "ajudge(request), which return a JudgeReply."
        )
    return ChatJudge(value)
