"""Requests to a language model for a value, and prompts with text that must stay data.

`ask` and `aask` follow one procedure: structured output if the model supports it, else JSON in its text, else
one repair, else no value. `quote` puts untrusted text into a prompt. No function here invents an answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeVar, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from pydantic import BaseModel, BeforeValidator, ValidationError

from arbiter._threads.deadlines import LOOP, start
from arbiter._values.contexts import during
from arbiter.errors import ConfigurationError
from arbiter.models._json import json_values, whole

# `BaseChatModel` itself takes longer to import than all of Arbiter.
ChatModel = Runnable[Any, Any]
"""A `BaseChatModel`, or one with retries, fallbacks or bound arguments around it."""

T = TypeVar("T", bound=BaseModel)

MAX_REQUESTS = 2
"""The number of model calls that one `ask` makes at most."""
MAX_ANSWER = 400_000
"""The length, in characters, above which a model's text is not searched for an answer."""


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a whole number, got true or false")
    return value


WHOLE = BeforeValidator(_no_truth_value)
"""A validator for whole numbers, last in the type of a schema: `Annotated[int, Field(ge=0, le=10), WHOLE]`.

It accepts 7, 7.0 and "7", and rejects true, which pydantic reads as 1, as well as 7.5, "seven" and "7/10".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """The result of a request to a model. `value` is None if no answer fits, and `problem` gives the reason.

    `texts` are the model's answers, oldest first; the arguments of a tool call as JSON. `usage` is the sum of
    the usage that the model reports for all of them, None if it reports none for one of them; `usages` then has
    that of each. `attempts` counts the calls. `model` is the name in the answer, else the name of the object that
    was called.
    """

    value: T | None
    problem: str
    texts: tuple[str, ...]
    attempts: int
    usage: UsageMetadata | None
    model: str
    usages: tuple[UsageMetadata | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one call of a model: its `message`.

    After a request for structured output, `parsed` or `failure` is the reading of the model's own
    integration.
    """

    message: Any
    parsed: Any = None
    failure: BaseException | None = None

    @property
    def calls(self) -> list[Any]:
        """The arguments of its tool calls."""
        return _tool_calls(self.message)

    @property
    def text(self) -> str:
        """The message as text, the arguments of tool calls as JSON. Reasoning shown before the answer is left
        out.
        """
        return _text(self.message)


def ask(model: ChatModel, messages: Sequence[BaseMessage], schema: type[T]) -> Answer[T]:
    """Ask for a value of `schema`. At most `MAX_REQUESTS` calls of the model.

    The first call uses the model's own structured output, if it has one. An answer without a tool call is
    searched for JSON. If there is no value, the model gets the mistake and is asked once more. If an endpoint
    rejects the structured request as such (status 400, 422 or 501), or an integration cannot make one
    (`NotImplementedError`, `TypeError`) or raises because it cannot read the answer, the second and last call
    asks for text. Other exceptions of the model (rate limits, timeouts) are raised here.
    """
    steps = _asking(model, messages, schema)
    request = next(steps)
    awaitable = _is_async(model)
    while True:
        try:
            answer = reply(request.model, request.messages, awaitable=awaitable)
        except Exception as error:
            answer = error
        try:
            request = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # of `_asking`


async def aask(
    model: ChatModel,
    messages: Sequence[BaseMessage],
    schema: type[T],
    *,
    read: Callable[[Reply], tuple[T | None, str]] | None = None,
    more: Callable[[int], bool] | None = None,
    config: RunnableConfig | None = None,
) -> Answer[T]:
    """As `ask`, without blocking the event loop.

    `read` finds the value in a reply, or returns None and the mistake, which the model gets. `more` replaces
    `MAX_REQUESTS`: it is called before each further call with the number of replies so far and returns True
    to allow it. `config` is for the model.
    """
    steps = _asking(model, messages, schema, read, more)
    request = next(steps)
    awaitable = _is_async(model)
    while True:
        try:
            answer = await areply(request.model, request.messages, config, awaitable=awaitable)
        except Exception as error:
            answer = error
        try:
            request = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # of `_asking`


def reply(model: ChatModel, messages: Sequence[BaseMessage], *, awaitable: bool | None = None) -> Any:
    """The model's reply. A model that has nothing but async methods is awaited on an event loop of Arbiter's.

    `awaitable` is as for `areply`.
    """
    try:
        return model.invoke(messages)
    except (AttributeError, NotImplementedError, TypeError) as error:
        # LangChain refuses to call an async function by a `TypeError`; others are mistakes.
        is_refused = isinstance(error, NotImplementedError) or "coroutine function" in str(error)
        is_refused = is_refused or not hasattr(model, "invoke")
        is_async = _is_async(model) if awaitable is None else awaitable
        if not (is_refused and is_async) or LOOP.is_here:
            raise
        return LOOP.submit(model.ainvoke(messages), copy_context()).result()


async def areply(
    model: ChatModel,
    messages: Sequence[BaseMessage],
    config: RunnableConfig | None = None,
    *,
    awaitable: bool | None = None,
) -> Any:
    """The model's reply, without blocking the event loop: a model without async methods is called on a thread
    of its own.

    `awaitable` is True if the model has async methods, None if that is unknown.
    """
    if _is_async(model) if awaitable is None else awaitable:
        return await model.ainvoke(messages, config)
    return await asyncio.wrap_future(start(partial(model.invoke, messages, config)))


def _is_async(model: Any) -> bool:
    """True if a model can be awaited without a thread.

    LangChain runs other models in the loop's default executor. Its few threads are shared, and the loop waits
    for all of them when it ends: a model that hangs would block other sync calls, long after its own timeout.
    """
    from langchain_core.runnables import RunnableWithFallbacks  # langgraph alone does not import it

    if isinstance(model, _BINDING):  # a model with retries is a binding too
        return _is_async(model.bound)
    if isinstance(model, RunnableSequence):
        return all(map(_is_async, cast(Any, model).steps))
    if isinstance(model, RunnableWithFallbacks):
        return all(map(_is_async, cast(Any, model).runnables))
    kind = model.__class__
    own: list[Any] = [getattr(kind, name, None) for name in ("_agenerate", "ainvoke")]
    return any(method and method.__module__ not in _BY_THREAD for method in own) or hasattr(model, "afunc")


_BINDING: Any = RunnableBindingBase
_BY_THREAD = ("langchain_core.language_models.chat_models", "langchain_core.runnables.base")
"""The modules of the inherited async methods that only call the sync method on a thread."""


@dataclass(frozen=True, slots=True)
class _Request:
    model: ChatModel
    messages: list[BaseMessage]


def _asking(
    model: ChatModel,
    messages: Sequence[BaseMessage],
    schema: type[T],
    read: Callable[[Reply], tuple[T | None, str]] | None = None,
    more: Callable[[int], bool] | None = None,
) -> Generator[_Request, Any, Answer[T]]:
    """Yields requests, and is sent the model's reply or its exception. Returns the answer."""
    structured = _structured(model, schema)
    replies: list[Reply] = []
    # The usages of answers that were given and cannot be read.
    lost: list[None] = []
    refusal: Exception | None = None
    value: T | None = None
    problem = ""
    attempt = 0
    while value is None and (
        attempt == 0 or (attempt < MAX_REQUESTS if more is None else more(len(replies)))
    ):
        attempt += 1
        extra = [_repair(problem, replies[-1].text)] if replies else []
        if structured is None:
            extra.append(_as_json(schema))
        request = [*messages, HumanMessage("\n\n".join(extra))] if extra else [*messages]
        given = yield _Request(model if structured is None else structured, request)
        if isinstance(given, Exception):
            if structured is None or not _is_refusal(given):
                raise given
            structured, refusal = None, given
            if isinstance(given, _UNREADABLE):
                lost.append(None)
            continue
        reply = _reply(given, structured is not None)
        replies.append(reply)
        refusal = None
        value, problem = _read(reply, schema) if read is None else read(reply)
    if refusal is not None:
        raise refusal
    usages = (*lost, *(getattr(reply.message, "usage_metadata", None) for reply in replies))
    usage = total_usage(usages)
    return Answer(
        value=value,
        problem=problem,
        texts=tuple(reply.text for reply in replies),
        attempts=attempt,
        usage=usage,
        usages=usages if usage is None else (),
        model=_name(model, replies[-1].message),
    )


def _reply(given: Any, structured: bool) -> Reply:
    if not structured or isinstance(given, BaseMessage):
        return Reply(given)
    parts: Any = given
    if isinstance(given, Mapping) and "raw" in parts:
        return Reply(parts["raw"], parts.get("parsed"), parts.get("parsing_error"))
    return Reply(given, given)  # an integration that does not know `include_raw`


def _structured(model: ChatModel, schema: type[BaseModel]) -> ChatModel | None:
    """The model with structured output for `schema`, or None if it has none."""
    try:
        make = getattr(model, "with_structured_output", None)
        if make is None:
            return None
        made: ChatModel = make(schema, include_raw=True)
    except Exception:
        # Each integration refuses in its own way (NotImplementedError, ValueError, ImportError, ...). The
        # model is then asked for text, and that call shows any mistake in the model itself.
        return None
    return made


def _is_refusal(error: Exception) -> bool:
    """True if structured output is not supported, or cannot be read by the model's integration, as opposed to a
    temporary or personal refusal."""
    return isinstance(error, _UNSUPPORTED) or getattr(error, "status_code", None) in (400, 422, 501)


_UNREADABLE = (OutputParserException, ValidationError, json.JSONDecodeError)
_UNSUPPORTED = (NotImplementedError, TypeError, *_UNREADABLE)


@lru_cache(maxsize=256)
def _as_json(schema: type[BaseModel]) -> str:
    wanted = json.dumps(schema.model_json_schema())
    return f"Answer with one JSON object and nothing else. It has to fit this JSON Schema:\n{wanted}"


def _repair(problem: str, text: str) -> str:
    return (
        f"Your last answer could not be used: {problem}. It was:\n{quote(text, limit=2_000)}\n"
        "Answer once more, completely, with that put right."
    )


# Reading an answer --------------------------------------------------------------------------------


def _read(reply: Reply, schema: type[T]) -> tuple[T | None, str]:
    """The value in an answer, or None and the mistake."""
    calls, text, failure = reply.calls, reply.text, reply.failure
    found: list[Any] = []
    if calls:
        found = calls
    elif reply.parsed is not None:  # in a form that only the model's own integration knows
        found = [reply.parsed]
    elif len(text) > MAX_ANSWER:
        return None, f"it has {len(text)} characters, and at most {MAX_ANSWER} are read"
    else:
        fenced, loose = json_values(text)
        for value in fenced + loose:
            found += value if isinstance(value, list) else [value]
        found = [part for part in found if isinstance(part, dict)]
    values: list[T] = []
    problem = ""
    for candidate in found:
        try:
            value = schema.model_validate(candidate)
        except ValidationError as error:
            problem = problem or described(error)
        else:
            if value not in values:
                values.append(value)
    if len(values) > 1:
        # A model may quote an answer from its input, so choosing between different answers would be a guess.
        return None, f"it has {len(values)} different answers where one is expected"
    if values:
        return values[0], ""
    if not problem and failure is not None:
        problem = _one_line(str(failure))
    return None, problem or "it has no JSON object"


def _tool_calls(reply: Any) -> list[Any]:
    return [whole(call["args"]) for call in reply.tool_calls] if isinstance(reply, AIMessage) else []


def _text(reply: Any) -> str:
    """A model's answer as text. Reasoning shown before the answer is left out."""
    if calls := _tool_calls(reply):
        return "\n".join(json.dumps(arguments, ensure_ascii=False, default=str) for arguments in calls)
    # An answer in JSON may quote the end of a thought; `json_values` tells the two apart.
    return _THOUGHT.sub("", str(reply.text) if isinstance(reply, BaseMessage) else str(reply))


def without_thought(text: str) -> str:
    """A message of a model without the reasoning before it, which may have begun in the prompt, or have no
    end."""
    return _ANY_THOUGHT.sub("", text)


_FLAGS = re.DOTALL | re.IGNORECASE
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", _FLAGS)
_ANY_THOUGHT = re.compile(
    rf"{_THOUGHT.pattern}|\A\s*<think(?:ing)?>.*|\A(?:(?!<think).)*?</think(?:ing)?>", _FLAGS
)


def described(error: ValidationError) -> str:
    """The mistakes of a validation in one line, without the values."""
    mistakes = error.errors(include_url=False, include_input=False, include_context=False)
    return _one_line(
        "; ".join(
            f"{'.'.join(map(str, mistake['loc'])) or 'the answer'}: {mistake['msg']}"
            for mistake in mistakes[:5]
        )
    )


def _one_line(text: str) -> str:
    line = visible(" ".join(text.split())).rstrip(".")
    return line if len(line) <= 500 else line[:497] + "..."


NO_TOKENS = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)


def total_usage(usages: Iterable[UsageMetadata | None]) -> UsageMetadata | None:
    """The sum of token usages; None if one of them is unknown. No usages give no tokens."""
    total: UsageMetadata | None = None
    for usage in usages:
        if usage is None:
            return None  # a partial sum would look like the whole
        total = add_usage(total, usage)
    if total is None:
        return NO_TOKENS
    if not isinstance(cast(object, total), dict):
        return total  # the stand-in of a test for a message may give anything
    # A copy with every number: a user's judge may leave one out, and may go on counting in its own dict.
    return cast(UsageMetadata, {**NO_TOKENS, **total})


def _name(model: ChatModel, reply: Any) -> str:
    said: Mapping[str, Any] = getattr(reply, "response_metadata", None) or {}
    for name in (said.get("model_name"), getattr(model, "model_name", None), getattr(model, "model", None)):
        if isinstance(name, str) and name:
            return name
    return type(model).__name__


# Text that must stay data -------------------------------------------------------------------------


def quote(text: str, *, limit: int = 20_000) -> str:
    """`text` for a prompt, as lines that each begin with "> ", between two lines that do not.

    No text can end its quotation or imitate a line outside of it, and equal texts are quoted alike. If `text`
    is longer than `limit` characters, its first and last `limit / 2` are shown, with a line between them that
    counts the others. Invisible characters are shown by their code.
    """
    if len(text) <= limit:
        lines = _quoted(text)
    else:
        half = limit // 2
        cut = f"[... {len(text) - 2 * half:,} characters cut ...]"
        lines = [*_quoted(text[:half]), cut, *_quoted(text[len(text) - half :])]
    return "\n".join(["[quoted text begins]", *lines, "[quoted text ends]"])


def _quoted(text: str) -> list[str]:
    return ["> " + visible(line) for line in text.replace("\r\n", "\n").split("\n")]


def visible(text: str, most: int | None = None) -> str:
    """`text` with each invisible character, and line ends, as its code: `\\u200b`. Tabs stay. `most` is the length
    at which the result is cut.
    """
    text = text[:most]
    if text.replace("\t", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _code(char) for char in text)[:most]


def _code(char: str) -> str:
    # Python does not call blanks of other widths "printable", but they are harmless to read.
    if unicodedata.category(char) == "Zs":
        return char
    number = ord(char)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def as_text(value: Any) -> str:
    """A part of a state as readable text: a text or message unchanged, any other value as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseMessage) and not _tool_calls(value):
        return str(value.text)
    return json.dumps(_plain(value, 0), ensure_ascii=False, indent=1)


_MAX_DEPTH = 20


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, BaseMessage):
            message: dict[str, Any] = {"type": value.type, "text": str(value.text)}
            if isinstance(value, AIMessage) and value.tool_calls:
                message["tool_calls"] = [
                    {"name": call["name"], "args": _plain(call["args"], depth + 1)}
                    for call in value.tool_calls
                ]
            return message
        if isinstance(value, BaseModel):
            return _plain(dict(value), depth + 1)
        parts: Any = value
        if isinstance(value, Mapping):
            return {str(key): _plain(part, depth + 1) for key, part in parts.items()}
        if isinstance(value, set | frozenset):
            # In one order: a judge's recorded answer is found by its prompt, also in another process. Numbers have one.
            members = [_plain(part, depth + 1) for part in parts]
            is_ordered = all(isinstance(part, int | float) for part in members)
            return members if is_ordered else sorted(members, key=json.dumps)
        if isinstance(value, list | tuple):
            return [_plain(part, depth + 1) for part in parts]
    return str(value)


# Which model --------------------------------------------------------------------------------------


def model_of(value: ChatModel | str, **settings: Any) -> ChatModel:
    """`value` itself, or for a text like "openai:gpt-5-mini" the model from LangChain's `init_chat_model`.

    `settings`, such as a temperature, apply only to a model that is made here. Raises `ConfigurationError`,
    also for mistakes that the provider's package finds, such as a missing key.
    """
    given: Any = value
    # A class of the user's own with the methods of a model is one, too; a class without an instance is not.
    if not isinstance(value, str) and callable(getattr(given.__class__, "ainvoke", None)):
        return value
    if not isinstance(given, str) or not given.strip():
        raise ConfigurationError(
            f"expected a chat model, or a text like 'openai:gpt-5-mini', got {given!r:.80}."
        )
    if _unasked.get() == "replay" or (_unasked.get() == "lint" and ":" in given):
        from arbiter.models._unmade import UnmadeModel

        return UnmadeModel(name=given, make=partial(_made, **settings))
    return _made(given, **settings)


def _made(name: str, **settings: Any) -> ChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise ConfigurationError(
            f"the model {name!r} is named by a text, which needs langchain: pip install 'arbiteros[models]'; or "
            "pass a chat model."
        ) from error
    try:
        return cast(ChatModel, init_chat_model(name, **settings))
    except Exception as error:  # a provider's package may raise anything
        raise ConfigurationError(f"the model {name!r} could not be made: {_one_line(str(error))}.") from error


_unasked: ContextVar[Literal["", "replay", "lint"]] = ContextVar("arbiter_unasked", default="")


def models_unasked(reason: Literal["replay", "lint"]) -> AbstractContextManager[None]:
    """Inside, a model that a text names is made when it is first asked: a replay asks none, and needs neither the
    package of its provider nor a key. A lint still finds a name without a provider that LangChain does not know.
    """
    return during(_unasked, reason)
