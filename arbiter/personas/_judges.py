"""Judges: a chat model, a recording of one, or any object with the two methods of `Judge`.

A `JudgeRequest` is the whole prompt and the schema of the answer; a `JudgeReply` is the answer as plain data,
or the reason why there is none. The engine (_engine.py) chooses the prompt and interprets the answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, MethodType, NoneType
from typing import Any, Literal, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from arbiter.errors import ConfigurationError
from arbiter.models import Answer, ChatModel, aask, ask, model_of

Purpose = Literal["score", "batch", "check", "ideas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """One question to a judge. `propositions` are the ids of the claims in it, in order; none for ideas.

    The answer must fit `schema`; its docstring and field descriptions are part of the question.
    """

    purpose: Purpose
    propositions: tuple[str, ...]
    messages: tuple[BaseMessage, ...]
    schema: type[BaseModel]

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
    their tokens; None if the model does not report one of them.
    """

    value: Mapping[str, Any] | None
    problem: str = ""
    texts: tuple[str, ...] = ()
    calls: int = 1
    usage: UsageMetadata | None = None
    model: str = ""


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


class ChatJudge:
    """A chat model as a judge, or a text for LangChain's `init_chat_model`, like "openai:gpt-5-mini".

    It uses structured output if the model supports it, else JSON in the model's text, with one repair
    (`arbiter.models.ask`). `temperature` applies to a model made from a text (None: the provider's default);
    a model object keeps its own.
    """

    def __init__(self, model: ChatModel | str, *, temperature: float | None = 0.0) -> None:
        self.model = model_of(model) if temperature is None else model_of(model, temperature=temperature)

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the model, at most twice. Raises the model's errors."""
        return _reply(ask(self.model, request.messages, request.schema))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        return _reply(await aask(self.model, request.messages, request.schema))


def _reply(answer: Answer[Any]) -> JudgeReply:
    return JudgeReply(
        value=None if answer.value is None else answer.value.model_dump(),
        problem=answer.problem,
        texts=answer.texts,
        calls=answer.attempts,
        usage=answer.usage,
        model=answer.model,
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


# Recordings ---------------------------------------------------------------------------------------

VERSION = 1


class RecordingError(ConfigurationError):
    """A recording lacks the judgement of a question, or has a judgement whose question was never asked."""


class RecordingJudge:
    """Asks another judge, or a chat model, and records its answers for a `MockJudge`.

    Errors of the judge are not recorded. `recording` maps the key of a question to its judgement.
    """

    replays = True

    def __init__(self, inner: Judge | ChatModel | str) -> None:
        self.inner = judge_of(inner)
        self.recording: dict[str, dict[str, Any]] = {}

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the other judge and record the answer. Raises the judge's errors."""
        return self._kept(request, self.inner.judge(request))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        return self._kept(request, await self.inner.ajudge(request))

    def save(self, path: str | Path) -> None:
        """Write the recording as sorted JSON, so that equal recordings are equal byte by byte."""
        data = {"version": VERSION, "judgements": self.recording}
        text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def _kept(self, request: JudgeRequest, reply: JudgeReply) -> JudgeReply:
        self.recording[request.key] = {
            "purpose": request.purpose,
            "propositions": list(request.propositions),
            "value": reply.value,
            "problem": reply.problem,
            "texts": list(reply.texts),
            "calls": reply.calls,
            "usage": reply.usage,
            "model": reply.model,
        }
        return reply


class MockJudge:
    """Replays a recording: the judgements by the key of the question, or the file that `RecordingJudge.save`
    wrote.

    The key is a hash of the whole prompt, so an edited claim, persona or message is a question without an
    answer. It raises `RecordingError`, never a default, through the engine and the scorers to the caller.
    """

    replays = True

    def __init__(self, recording: Mapping[str, Mapping[str, Any]] | str | Path) -> None:
        self.recording = recording if isinstance(recording, Mapping) else _read(Path(recording))
        if wrong := [key for key, found in self.recording.items() if not _is_judgement(found)]:
            raise RecordingError(f"expected judgements with a value, got {self.recording[wrong[0]]!r:.80}.")
        self._asked: set[str] = set()

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """The recorded answer. Raises `RecordingError` if there is none."""
        key = request.key
        found = self.recording.get(key)
        if found is None:
            raise RecordingError(self._missing(request, key))
        self._asked.add(key)
        return JudgeReply(
            value=found["value"],
            problem=found.get("problem", ""),
            texts=tuple(found.get("texts", ())),
            calls=found.get("calls", 1),
            usage=found.get("usage"),
            model=found.get("model", ""),
        )

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """Async version of `judge`."""
        return self.judge(request)

    @property
    def stale(self) -> tuple[str, ...]:
        """The keys of judgements whose questions were not asked yet."""
        return tuple(key for key in self.recording if key not in self._asked)

    def check_used(self) -> None:
        """Raise `RecordingError` if a judgement was not used: the recording then belongs to other
        questions."""
        if stale := self.stale:
            ids = {str(id) for key in stale for id in self.recording[key].get("propositions", ())}
            raise RecordingError(
                f"{len(stale)} of {len(self.recording)} recorded judgements were not asked for "
                f"(about {', '.join(sorted(ids)) or 'ideas'}). Record again."
            )

    def _missing(self, request: JudgeRequest, key: str) -> str:
        about = ", ".join(request.propositions) or request.purpose
        known = any(
            tuple(found.get("propositions", ())) == request.propositions for found in self.recording.values()
        )
        why = "the question has changed since" if known else "nothing about it was recorded"
        return f"the recording has no judgement {key[:12]} of {about}: {why}. Record again."


def _is_judgement(found: Any) -> bool:
    given: Any = found
    return isinstance(found, Mapping) and "value" in given and isinstance(given["value"], Mapping | NoneType)


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION or not all(map(_is_judgement, data["judgements"].values())):
            raise ValueError("another version, or a judgement without a value")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"expected a recording in {str(path)!r}, got {type(error).__name__}: {error}"
        ) from None
    judgements: Mapping[str, Mapping[str, Any]] = data["judgements"]
    return judgements
