"""Who judges: a chat model, a recording of one, or anything of yours with two methods.

A `JudgeRequest` is the whole prompt and the schema of the answer; a `JudgeReply` is the answer as plain data, or
that there was none. Which prompt, and what becomes of the answer, is the engine's (engine.py) business.
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
    """One question to a judge. `propositions` are the ids of what it is about, in order; none for ideas.

    `schema` is what the answer has to fit; its docstring and field descriptions are part of the question.
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
    """What a judge answered. `value` is None when no answer could be read; `problem` then says why.

    `texts` are the answers word for word, oldest first. `calls` is how many calls of a model it took. `usage` is the
    sum of what the model says about them, None as soon as it says nothing about one.
    """

    value: Mapping[str, Any] | None
    problem: str = ""
    texts: tuple[str, ...] = ()
    calls: int = 1
    usage: UsageMetadata | None = None
    model: str = ""


@runtime_checkable
class Judge(Protocol):
    """Answers questions. It may raise; the engine makes an outcome of that. May be called from several threads."""

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """The answer to a question."""
        ...

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """As `judge`."""
        ...


class ChatJudge:
    """A chat model as a judge, or a text for LangChain's `init_chat_model`, like "openai:gpt-5-mini".

    Structured output if the model has it, else JSON in its text, else one repair (`arbiter.models.ask`). A text is
    made a model of that `temperature` (None: of the provider's own); a model has the one that you gave it.
    """

    def __init__(self, model: ChatModel | str, *, temperature: float | None = 0.0) -> None:
        self.model = model_of(model) if temperature is None else model_of(model, temperature=temperature)

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the model, at most twice. Raises what the model raises."""
        return _reply(ask(self.model, request.messages, request.schema))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """As `judge`."""
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
    """A recording has no judgement of what is asked, or one that nobody asks for any more."""


class RecordingJudge:
    """Asks another judge, or a chat model, and keeps what it answered, for a `MockJudge`. What the judge raises is
    not kept. `recording` has the judgements by the key of the question."""

    replays = True

    def __init__(self, inner: Judge | ChatModel | str) -> None:
        self.inner = judge_of(inner)
        self.recording: dict[str, dict[str, Any]] = {}

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """Ask the other judge."""
        return self._kept(request, self.inner.judge(request))

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        """As `judge`."""
        return self._kept(request, await self.inner.ajudge(request))

    def save(self, path: str | Path) -> None:
        """Write the recording as JSON, sorted, so that two of the same are equal byte by byte."""
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
    """Replays a recording: the judgements by the key of the question, or the file that `RecordingJudge.save` wrote.

    The key is a hash of the whole prompt, so that an edited claim, persona or message is a question without an
    answer: `RecordingError`, never a default. It goes through the engine, the scorers and the caller.
    """

    replays = True

    def __init__(self, recording: Mapping[str, Mapping[str, Any]] | str | Path) -> None:
        self.recording = recording if isinstance(recording, Mapping) else _read(Path(recording))
        if wrong := [key for key, found in self.recording.items() if not _is_judgement(found)]:
            raise RecordingError(f"expected judgements with a value, got {self.recording[wrong[0]]!r:.80}.")
        self._asked: set[str] = set()

    def judge(self, request: JudgeRequest) -> JudgeReply:
        """What is recorded. Raises `RecordingError` if nothing is."""
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
        """As `judge`."""
        return self.judge(request)

    @property
    def stale(self) -> tuple[str, ...]:
        """The keys of judgements that nobody has asked for yet."""
        return tuple(key for key in self.recording if key not in self._asked)

    def check_used(self) -> None:
        """Raise `RecordingError` if a judgement was not asked for: then the recording is of something else."""
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
        why = "what it is asked has changed since" if known else "nothing about it was recorded"
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
