"""Limits of a run: how much happens at once, how long it may take, and what it may cost.

`Budget` says when no further case may start. `limited(model, limiter)` is the same chat model behind a `Limiter`:
it waits for a place, gives way when the provider says that there are too many calls, and tries again after
failures of the connection.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from langchain_core.runnables import RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from arbiter._threads.deadlines import waiting
from arbiter._values.contexts import during
from arbiter._values.parameters import Param, problems_of
from arbiter._values.states import is_whole
from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel

if TYPE_CHECKING:
    from arbiter.harness.usage import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run. Times are in seconds.

    `concurrency` cases run at once, and `judge_concurrency` questions to judges over all cases. `case_timeout` is
    for the target, `score_timeout` for each scorer and evaluator, `run_timeout` for the whole run. When `tokens`,
    `usd`, `calls` or `seconds` are spent, no further case starts.
    """

    concurrency: Annotated[int, Param("the cases that run at once", ge=1)] = 16
    judge_concurrency: Annotated[int, Param("the questions to judges at once, over all cases", ge=1)] = 8
    case_timeout: Annotated[float | None, Param("the seconds that the target has for a case", gt=0)] = 120
    score_timeout: Annotated[float | None, Param("the seconds that a scorer has for a case", gt=0)] = 30
    run_timeout: Annotated[float | None, Param("the seconds that the whole run has", gt=0)] = None
    tokens: Annotated[int | None, Param("no case starts after so many tokens", ge=0)] = None
    usd: Annotated[float | None, Param("no case starts after so many dollars", gt=0)] = None
    calls: Annotated[int | None, Param("no case starts after so many calls of models", ge=0)] = None
    seconds: Annotated[float | None, Param("no case starts after so many seconds", gt=0)] = None

    def __post_init__(self) -> None:
        if problems := problems_of(self):
            raise ConfigurationError("\n".join(f"limits: {problem}." for problem in problems))


class Budget:
    """Says when a run has used up what its limits allow. Running cases then go on, and no new one starts."""

    def __init__(self, limits: Limits, usage: Usage, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limits = limits
        self._usage = usage
        self._clock = clock
        self._begun = clock()

    @property
    def exhausted(self) -> str | None:
        """The limit that is reached, and by how much; None if cases may start."""
        limits, spent = self._limits, self._usage.total
        seconds = self._clock() - self._begun
        for name, limit, used in (
            ("tokens", limits.tokens, spent.tokens),
            ("calls", limits.calls, spent.calls),
            ("seconds", limits.seconds, seconds),
        ):
            if limit is not None and used >= limit:
                return f"limits.{name} is {limit:,.15g}, and {round(used, 1):,} are used"
        if limits.usd is not None and spent.usd is not None and spent.usd >= limits.usd:
            shown = f"{spent.usd:.2f}" if spent.usd >= 1 else f"{spent.usd:.3g}"
            return f"limits.usd is {limits.usd:,.15g}, and {shown} are used"
        return self.unenforceable

    @property
    def unenforceable(self) -> str | None:
        """Why the cost cannot be limited; None if it can, or need not."""
        if self._limits.usd is None or self._usage.total.usd is not None:
            return None
        models = ", ".join(map(repr, self._usage.unpriced)) or "a call that did not report its tokens"
        how = "Limit tokens or calls"
        if find_spec("genai_prices") is None:
            how = "pip install 'arbiteros[prices]', or limit tokens or calls"
        return f"limits.usd cannot be enforced: there is no price for {models}. {how}"


# One limiter a model ------------------------------------------------------------------------------

GOOD_CALLS = 10
"""After so many calls without a complaint one more may run at once."""
RETRIES = 4


class Places:
    """The places for calls of one model: `most` at once, half as many after a 429, and one more after 10 good calls."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = most
        """The number of calls that may run at once now."""
        self.running = 0
        self._good = 0
        self._halved = 0
        self._waiting: deque[Future[int]] = deque()
        self._lock = threading.Lock()

    def enter(self) -> Future[int]:
        """A place, as soon as there is one, in the order of the calls. Its number is for `leave`."""
        future: Future[int] = Future()
        with self._lock:
            if self._waiting or self.running >= self.open:
                self._waiting.append(future)
                return future
            self.running += 1
        future.set_result(self._halved)
        return future

    async def aenter(self) -> int:
        """Async version of `enter`. A cancelled caller gives its place back."""
        future = self.enter()
        try:
            return await asyncio.wrap_future(future)
        except BaseException:
            if not future.cancel():
                self.leave(future.result())
            raise

    def leave(self, began: int, *, failed: bool = False, too_many: bool = False) -> None:
        """Give the place back. `failed`: the call failed; `too_many`: because of too many calls at once."""
        given: list[Future[int]] = []
        with self._lock:
            self.running -= 1
            if not failed:
                self._good += 1
                if self._good >= GOOD_CALLS and self.open < self.most:
                    self.open, self._good = self.open + 1, 0
            elif too_many:
                self._good = 0
                if began == self._halved:  # of many calls that are refused at once, one halves the places
                    self.open, self._halved = max(1, self.open // 2), self._halved + 1
            while self._waiting and self.running < self.open:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    self.running += 1
                    given.append(future)
        for future in given:
            future.set_result(self._halved)


class Limiter:
    """Calls of one model: each waits for one of its `Places`, and is tried again after failures of the connection.

    `sleep` and `asleep` wait between two tries.
    """

    def __init__(
        self,
        most: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
        asleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not is_whole(most, least=1):
            raise ConfigurationError(
                f"a limiter for {most!r:.80} calls at once; expected a whole number from 1."
            )
        self.most = most
        self.counter = Places(most)
        settings: Mapping[str, Any] = {
            "retry": retry_if_exception(is_transport),
            "stop": stop_after_attempt(RETRIES + 1),
            "wait": _pause,
            "reraise": True,
        }
        self._tries = Retrying(sleep=sleep, **settings)
        self._atries = AsyncRetrying(sleep=asleep, **settings)

    def call(self, call: Callable[[], T]) -> T:
        """The result of `call`, made in a place. Failures of the connection are tried again up to 4 times, out of
        the place meanwhile."""
        result: T = self._tries(cast(Any, self._once), call)
        return result

    async def acall(self, call: Callable[[], Awaitable[T]]) -> T:
        """Async version of `call`."""
        result: T = await self._atries(self._aonce, call)
        return result

    def _once(self, call: Callable[[], T]) -> T:
        with waiting():
            began = self.enter().result()
        with self._held(began):
            return call()

    async def _aonce(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._held(await self.aenter()):
            return await call()

    @contextmanager
    def _held(self, began: int) -> Generator[None]:
        """A call runs inside, in a place that it gives back at its end."""
        try:
            yield
        except BaseException as error:
            self.leave(began, error)
            raise
        self.leave(began)

    def stream(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The chunks of a stream, which has its place until it ends."""
        began, first, chunks = self._tries(self._begun, begin)
        with self._held(began):
            yield from first
            yield from chunks

    def _begun(self, begin: Callable[[], Iterator[Any]]) -> tuple[int, list[Any], Iterator[Any]]:
        with waiting():
            began = self.enter().result()
        try:
            chunks = begin()
            return began, list(islice(chunks, 1)), chunks
        except BaseException as error:
            self.leave(began, error)
            raise

    async def astream(self, begin: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        """Async version of `stream`."""
        begun: tuple[int, list[Any], AsyncIterator[Any]] = await self._atries(self._abegun, begin)
        began, first, chunks = begun
        with self._held(began):
            for chunk in first:
                yield chunk
            async for chunk in chunks:
                yield chunk

    async def _abegun(
        self, begin: Callable[[], AsyncIterator[Any]]
    ) -> tuple[int, list[Any], AsyncIterator[Any]]:
        began = await self.aenter()
        try:
            chunks = begin()
            async for chunk in chunks:
                return began, [chunk], chunks
            return began, [], chunks
        except BaseException as error:
            self.leave(began, error)
            raise

    @property
    def places(self) -> int:
        """The number of calls that may run at once now."""
        return self.counter.open

    @property
    def running(self) -> int:
        """The number of calls that run now."""
        return self.counter.running

    def enter(self) -> Future[int]:
        """A place, as soon as there is one, in the order of the calls. Its number is for `leave`."""
        return self.counter.enter()

    async def aenter(self) -> int:
        """Async version of `enter`. A cancelled caller gives its place back."""
        with waiting():
            return await self.counter.aenter()

    def leave(self, began: int, error: BaseException | None = None) -> None:
        """Give the place back. `error` is the failure of the call."""
        self.counter.leave(
            began, too_many=error is not None and _status(error) == _TOO_MANY, failed=error is not None
        )


class Limiters:
    """One `Limiter` for each provider and model, however many objects call it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_model: dict[tuple[str, str], Limiter] = {}
        self._lock = threading.Lock()

    def share(self, places: Callable[[tuple[str, str]], Places]) -> None:
        """Give each limiter the places that `places` returns for its model, such as those of several processes."""
        with self._lock:
            for key, limiter in self._by_model.items():
                limiter.counter = places(key)

    def of(self, model: Any) -> Limiter:
        """The limiter of a chat model, of one with bound arguments, or of any other object."""
        with self._lock:
            return self._by_model.setdefault(_key_of(model), Limiter(self.most))


def _key_of(model: Any) -> tuple[str, str]:
    inner = innermost(model)
    provider, name = provider_and_name(inner)
    return provider or type(inner).__module__, name or f"{type(inner).__name__} {id(inner)}"


def provider_and_name(model: Any) -> tuple[str | None, str | None]:
    """The provider and the name of a chat model, as LangChain reports them in traces; None if it has none."""
    known: Any = getattr(model, "_get_ls_params", None)
    told: Any = known() if callable(known) else {}
    name = told.get("ls_model_name") or getattr(model, "model_name", None) or getattr(model, "model", None)
    provider = told.get("ls_provider")
    return (str(provider) if provider else None), (name if isinstance(name, str) and name else None)


def innermost(model: Any) -> Any:
    """The chat model inside bound arguments, retries, fallbacks and sequences: of several the first."""
    from langchain_core.runnables import RunnableWithFallbacks

    if isinstance(model, _BINDING):
        return innermost(model.bound)
    if isinstance(model, RunnableWithFallbacks):
        return innermost(cast(Any, model).runnable)
    if isinstance(model, RunnableSequence):
        return innermost(cast(Any, model).first)
    return model


_BINDING: Any = RunnableBindingBase


def limited(model: ChatModel, limiter: Limiter | Limiters) -> ChatModel:
    """The same chat model behind a limiter, which several models may share.

    Structured output, tools, streaming and bound arguments work as before. Retries are for failures of
    the connection alone: 429, 5xx, a lost connection and a timeout of the client; `Retry-After` is obeyed. A stream
    is tried again only before its first chunk.
    """
    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableWithFallbacks

    given: Any = model
    if isinstance(given, BaseChatModel):
        if isinstance(given, _Limited):
            return given
        found = limiter if isinstance(limiter, Limiter) else limiter.of(given)
        copy = given.model_copy()
        copy.__class__ = _limited_class(type(given), found)
        return copy
    if isinstance(given, _BINDING):
        return cast(ChatModel, given.model_copy(update={"bound": limited(given.bound, limiter)}))
    parts: Any = given
    if isinstance(given, RunnableWithFallbacks):
        changes = {
            "runnable": limited(parts.runnable, limiter),
            "fallbacks": [limited(each, limiter) for each in parts.fallbacks],
        }
        return cast(ChatModel, parts.model_copy(update=changes))
    if isinstance(given, RunnableSequence):
        return cast(ChatModel, parts.model_copy(update={"first": limited(parts.first, limiter)}))
    raise ConfigurationError(
        f"expected a chat model, got a {type(given).__name__}. Pass a model of LangChain, such as "
        "init_chat_model('openai:gpt-5-mini')."
    )


class _Limited:
    """Marks the classes of limited models."""


_inside: ContextVar[Limiter | None] = ContextVar("arbiter_limiter", default=None)
"""The limiter in whose place the caller is."""


def _marked(limiter: Limiter, chunks: Iterator[Any]) -> Iterator[Any]:
    while True:
        with during(_inside, limiter):
            chunk = next(chunks, _NO_MORE)
        if chunk is _NO_MORE:
            return
        yield chunk


async def _amarked(limiter: Limiter, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        with during(_inside, limiter):
            chunk = await anext(chunks, _NO_MORE)
        if chunk is _NO_MORE:
            return
        yield chunk


_NO_MORE = object()


def _limited_class(kind: type[Any], limiter: Limiter) -> type[Any]:
    """A subclass that calls the model behind the limiter.

    It overrides only what the class itself defines: LangChain looks at that to see if a model can stream, or be
    awaited.
    """
    from langchain_core.language_models import BaseChatModel

    # A model's own `_agenerate` or `_stream` may call its `_generate`, which has its place already then.

    def generate(self: Any, *args: Any, **known: Any) -> Any:
        def call() -> Any:
            with during(_inside, limiter):
                return kind._generate(self, *args, **known)

        return call() if _inside.get() is limiter else limiter.call(call)

    async def agenerate(self: Any, *args: Any, **known: Any) -> Any:
        async def call() -> Any:
            with during(_inside, limiter):
                return await kind._agenerate(self, *args, **known)

        return await (call() if _inside.get() is limiter else limiter.acall(call))

    def stream(self: Any, *args: Any, **known: Any) -> Iterator[Any]:
        def begin() -> Iterator[Any]:
            return _marked(limiter, kind._stream(self, *args, **known))

        return begin() if _inside.get() is limiter else limiter.stream(begin)

    def astream(self: Any, *args: Any, **known: Any) -> AsyncIterator[Any]:
        def begin() -> AsyncIterator[Any]:
            return _amarked(limiter, kind._astream(self, *args, **known))

        return begin() if _inside.get() is limiter else limiter.astream(begin)

    own: dict[str, Any] = {"_generate": generate}
    for name, method in (("_agenerate", agenerate), ("_stream", stream), ("_astream", astream)):
        if getattr(kind, name) is not getattr(BaseChatModel, name):
            own[name] = method
    own.update(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__)
    made: type[Any] = type(kind.__name__, (kind, _Limited), own)
    return made


# Failures of the connection -----------------------------------------------------------------------

_TOO_MANY = 429
_TRANSPORT = frozenset(
    {
        "APIConnectionError",  # openai, anthropic
        "APITimeoutError",
        "TransportError",  # httpx
        "ClientConnectionError",  # aiohttp
        "ServerTimeoutError",
        "EndpointConnectionError",  # botocore
        "ReadTimeoutError",
        "ConnectTimeoutError",
        "ServiceUnavailable",  # google
        "ResourceExhausted",
        "DeadlineExceeded",
    }
)
"""Exceptions of clients that say nothing by a status."""


def is_transport(error: BaseException) -> bool:
    """True for a failure of the connection: 429, 5xx, a lost connection, a timeout of the client.

    A used-up quota has the status 429 too, and is none of these, because waiting does not help.
    """
    status = _status(error)
    if status is not None:
        used_up = getattr(error, "code", None) == "insufficient_quota"
        return (status in (408, _TOO_MANY) or status >= 500) and not used_up
    return isinstance(error, ConnectionError | TimeoutError) or any(
        kind.__name__ in _TRANSPORT for kind in type(error).__mro__
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error of a client, None without one."""
    response: Any = getattr(error, "response", None)
    for owner, name in (
        (error, "status_code"),
        (response, "status_code"),
        (error, "code"),
        (error, "status"),
    ):
        found: Any = getattr(owner, name, None)
        if isinstance(found, int) and not isinstance(found, bool):
            return int(found)
    return _TOO_MANY if type(error).__name__ == "ResourceExhausted" else None


_jittered = wait_random_exponential(multiplier=0.5, max=30)


def _pause(state: RetryCallState) -> float:
    """The seconds before the next try: as the provider says, else more each time."""
    assert state.outcome is not None
    error = state.outcome.exception()
    asked = None if error is None else _retry_after(error)
    return _jittered(state) if asked is None else asked


def _retry_after(error: BaseException) -> float | None:
    """The header `Retry-After` in seconds; None without one."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        if (text := headers.get("retry-after-ms")) is not None:
            return max(float(text) / 1_000, 0.0) if isfinite(float(text)) else None
        if (text := headers.get("retry-after")) is None:
            return None
        if str(text).strip().replace(".", "", 1).isdigit():
            return float(text)
        at = parsedate_to_datetime(str(text))
        return max((at - datetime.now(UTC)).total_seconds(), 0.0)
    except (AttributeError, TypeError, ValueError):
        return None
