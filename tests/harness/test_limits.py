"""One limiter a model: places, halved after a 429, and retries of the connection alone; and the budget of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGenerationChunk
from pydantic import BaseModel

from arbiter.errors import ConfigurationError
from arbiter.harness.limits import Budget, Limiter, Limiters, Limits, innermost, is_transport, limited
from arbiter.harness.usage import Usage
from arbiter.models import ask, judge_of
from tests.personas.gate_support import Speaker, enabled, gated, hello
from tests.scripted import EndpointError, Scripted, ScriptedTools, tool_call, usage
from tests.support import MODES, run


class Response:
    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpError(Exception):
    """An error in the form of httpx."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = Response(status, **headers)


class QuotaError(EndpointError):
    code = "insufficient_quota"


class APIConnectionError(Exception):
    """As that of openai and anthropic, by its name."""


class Paused:
    """A limiter whose pauses are noted and take no time."""

    def __init__(self, most: int = 8) -> None:
        self.pauses: list[float] = []
        self.limiter = Limiter(most, sleep=self.pauses.append, asleep=self.asleep)

    async def asleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def call(mode: str, model: Any, question: str = "?") -> Any:
    return model.invoke(question) if mode == "sync" else asyncio.run(model.ainvoke(question))


@MODES
@pytest.mark.parametrize(
    "error",
    [
        EndpointError(429),
        EndpointError(503),
        HttpError(500),
        APIConnectionError("refused"),
        ConnectionResetError("reset"),
        TimeoutError("late"),
    ],
    ids=repr,
)
def test_failures_of_the_connection_are_tried_again(error: Exception, mode: str) -> None:
    paused = Paused()
    model = Scripted(answers=[error, error, "fine"])
    assert call(mode, limited(model, paused.limiter)).content == "fine"
    assert (model.calls, len(paused.pauses)) == (3, 2)
    assert paused.limiter.running == 0


@MODES
def test_at_most_four_retries(mode: str) -> None:
    paused = Paused()
    model = Scripted(answers=[EndpointError(503)])
    with pytest.raises(EndpointError):
        call(mode, limited(model, paused.limiter))
    assert model.calls == 5


@MODES
@pytest.mark.parametrize("error", [EndpointError(400), QuotaError(429), ValueError("wrong")], ids=repr)
def test_other_errors_are_raised_at_once(error: Exception, mode: str) -> None:
    model = Scripted(answers=[error, "fine"])
    with pytest.raises(type(error)):
        call(mode, limited(model, Paused().limiter))
    assert model.calls == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry_after": "7"}, 7.0), ({"retry_after": "2.5"}, 2.5), ({"retry_after_ms": "300"}, 0.3)],
)
def test_retry_after_is_obeyed(headers: dict[str, str], seconds: float) -> None:
    paused = Paused()
    limited(Scripted(answers=[HttpError(429, **headers), "fine"]), paused.limiter).invoke("?")
    assert paused.pauses == [seconds]


def test_retry_after_a_date_in_the_past_or_a_word() -> None:
    for text in ("Wed, 21 Oct 2015 07:28:00 GMT", "soon"):
        paused = Paused()
        limited(Scripted(answers=[HttpError(429, retry_after=text), "fine"]), paused.limiter).invoke("?")
        assert 0 <= paused.pauses[0] <= 30


def test_places_are_halved_after_a_429_and_come_back() -> None:
    """Ten good calls bring back one place, up to as many as there were."""
    limiter = Paused(8).limiter
    limited(Scripted(answers=[EndpointError(429), EndpointError(429), "fine"]), limiter).invoke("?")
    assert limiter.places == 2
    model = limited(Scripted(answers=["fine"]), limiter)
    seen = [(model.invoke("?"), limiter.places)[1] for _ in range(80)]
    assert [seen.index(places) for places in (3, 4, 8)] == [8, 18, 58]
    assert limiter.places == 8


def test_calls_that_are_refused_together_halve_the_places_once() -> None:
    limiter = Limiter(8)
    places = [limiter.enter().result() for _ in range(8)]
    for place in places:
        limiter.leave(place, EndpointError(429))
    assert limiter.places == 4


@MODES
def test_no_more_calls_run_at_once_than_there_are_places(mode: str) -> None:
    """Models that share a limiter share its places."""
    lock, state = threading.Lock(), {"running": 0, "most": 0}

    class Busy(Scripted):
        def _generate(self, *args: Any, **known: Any) -> Any:
            with lock:
                state["running"] += 1
                state["most"] = max(state["most"], state["running"])
            try:
                return super()._generate(*args, **known)
            finally:
                with lock:
                    state["running"] -= 1

    limiters = Limiters(3)
    models = [limited(Busy(answers=["fine"], pause=0.01), Limiter(1)) for _ in range(2)]
    shared = limiters.of(models[0])
    models = [limited(Busy(answers=["fine"], pause=0.01), shared) for _ in range(2)]
    if mode == "sync":
        with ThreadPoolExecutor(12) as pool:
            for each in [pool.submit(models[at % 2].invoke, "?") for at in range(12)]:
                each.result()
    else:

        async def many() -> None:
            await asyncio.gather(*(models[at % 2].ainvoke("?") for at in range(12)))

        asyncio.run(many())
    assert state["most"] == 3


def test_cancelled_call_gives_its_place_back() -> None:
    async def cancelled() -> None:
        limiter = Limiter(1)
        first = await limiter.aenter()
        waiting = [asyncio.create_task(limiter.aenter()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        limiter.leave(first)
        waiting[1].cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        assert limiter.running == 1
        limiter.leave(await asyncio.wait_for(waiting[2], 5))
        assert limiter.running == 0

    asyncio.run(cancelled())


class Answer(BaseModel):
    """An answer."""

    number: int


def test_limited_model_can_do_what_the_model_can() -> None:
    """Structured output, tools, bound arguments, retries, fallbacks and sequences stay, and stay limited."""
    limiter = Limiter(4)
    model = ScriptedTools(answers=[tool_call("Answer", {"number": 7})])
    made: Any = limited(model, limiter)
    assert isinstance(made, ScriptedTools)
    assert type(made).__name__ == "ScriptedTools"
    assert made.get_name() == model.get_name()
    found = ask(made, [], Answer)
    assert found.value == Answer(number=7)
    assert limited(made, Limiter(1)) is made

    failing = Scripted(answers=[ValueError("no"), "fine"])
    other = Scripted(answers=["other"])
    assert limited(failing.with_fallbacks([other]), limiter).invoke("?").content == "other"
    assert limited(failing.with_retry(), limiter).invoke("?").content == "fine"
    assert limited(failing.bind(stop=["x"]), limiter).invoke("?").content == "fine"
    assert limited(failing | StrOutputParser(), limiter).invoke("?") == "fine"
    assert innermost(failing.bind(stop=["x"]).with_retry()) is failing
    wrong: Any = "openai:gpt-5-mini"
    with pytest.raises(ConfigurationError, match="chat model"):
        limited(wrong, limiter)


def chunks(texts: list[str]) -> Iterator[ChatGenerationChunk]:
    for text in texts:
        yield ChatGenerationChunk(message=AIMessageChunk(content=text))


class Streaming(Scripted):
    def _stream(self, *args: Any, **known: Any) -> Iterator[ChatGenerationChunk]:
        self.asked.append([])
        if self.calls == 1:
            raise EndpointError(503)
        yield from chunks(["a", "b", "c"])

    async def _astream(self, *args: Any, **known: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream():
            yield chunk


@MODES
def test_streams_have_a_place_until_they_end(mode: str) -> None:
    """A stream that fails before its first chunk is tried again; one that is left gives its place back."""
    paused = Paused(1)
    model = limited(Streaming(answers=["?"]), paused.limiter)

    async def streamed(model: Any) -> list[str]:
        found: list[str] = []
        async for chunk in model.astream("?"):
            assert paused.limiter.running == bool(chunk.content)  # LangChain adds an empty last one
            found.append(str(chunk.content))
        return found

    if mode == "sync":
        found: list[str] = []
        for chunk in model.stream("?"):
            assert paused.limiter.running == bool(chunk.content)  # LangChain adds an empty last one
            found.append(str(chunk.content))
        for _ in model.stream("?"):
            break
    else:
        found = asyncio.run(streamed(model))
    assert "".join(found) == "abc"
    assert len(paused.pauses) == 1
    assert paused.limiter.running == 0


def test_one_limiter_a_provider_and_model() -> None:
    class Named(Scripted):
        model: str = "one"

    limiters = Limiters(8)
    first = limiters.of(Named(answers=["?"]))
    assert limiters.of(Named(answers=["!"])) is first
    assert limiters.of(Named(answers=["!"]).bind(stop=["x"])) is first
    assert limiters.of(Named(answers=["!"], model="two")) is not first


@pytest.mark.parametrize("most", [0, -1, 2.5, True, None])
def test_places_are_a_whole_number_from_1(most: Any) -> None:
    with pytest.raises(ConfigurationError, match="whole number from 1"):
        Limiter(most)


# The budget ---------------------------------------------------------------------------------------


def test_budget_names_the_limit_that_is_reached() -> None:
    now = [0.0]
    spent = Usage(prices={"m": {"input": 1_000_000.0, "output": 0.0}})

    def budget(**limits: Any) -> str | None:
        found = Budget(Limits(**limits), spent, clock=lambda: now[0])
        now[0] += 2.0
        return found.exhausted

    assert budget(tokens=10, calls=1, usd=1.0, seconds=3.0) is None
    assert "seconds" in (budget(seconds=2.0) or "")
    spent.add("judge", "m", usage(3, 8), thread_id="t")
    assert budget(tokens=12, calls=2, usd=3.5) is None
    assert "tokens is 11, and 11 are used" in (budget(tokens=11) or "")
    assert "calls" in (budget(calls=1) or "")
    assert "usd is 3, and 3.00 are used" in (budget(usd=3.0) or "")
    spent.add("judge", "m", usage(0, 2_000_123), thread_id="t")
    assert "tokens is 2,000,000, and 2,000,134 are used" in (budget(tokens=2_000_000) or "")


def test_a_budget_of_tenths_of_a_cent_is_reported_in_tenths_of_a_cent() -> None:
    spent = Usage(prices={"m": {"input": 1.0, "output": 1.0}})
    spent.add("judge", "m", usage(2_000, 0), thread_id="t")
    assert "usd is 0.001, and 0.002 are used" in (Budget(Limits(usd=0.001), spent).exhausted or "")


def no_package(name: str) -> None:
    return None


def test_dollars_that_cannot_be_known_stop_a_run_that_limits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a price would make the limit do nothing."""
    spent = Usage()
    spent.add("target", "a-model-of-mine", usage(3, 8))
    assert "no price for 'a-model-of-mine'. Limit tokens" in (Budget(Limits(usd=5.0), spent).exhausted or "")
    assert Budget(Limits(), spent).exhausted is None
    monkeypatch.setattr("arbiter.harness.limits.find_spec", no_package)
    assert "pip install 'arbiteros[prices]'" in (Budget(Limits(usd=5.0), spent).exhausted or "")


def test_replayed_answers_use_no_budget() -> None:
    spent = Usage()
    spent.add("judge", "m", usage(30, 80), replayed=True)
    assert Budget(Limits(tokens=10, calls=1, usd=1.0), spent).exhausted is None


def test_transport_errors_are_known_without_the_clients() -> None:
    assert not is_transport(asyncio.CancelledError())
    assert not is_transport(KeyboardInterrupt())


@pytest.mark.lengthy
@MODES
def test_a_question_to_a_judge_has_its_time_from_when_it_has_a_place(mode: str) -> None:
    """Else the gates of many conversations, whose judge answers few at once, would let drafts pass unjudged."""
    limiter = Limiter(1)
    other = limiter.enter().result()
    judge = judge_of(limited(Scripted(answers=['{"score": 8, "reasoning": "read"}']), limiter))
    app, gate, _ = gated(judge, enabled("adherence", judge_timeout=2), Speaker("Fine"))
    ends = threading.Timer(2.5, limiter.leave, [other])
    ends.start()
    run(app, hello(), mode=mode)
    ends.join()
    assert gate.actions[0].outcome == "passed"
    assert gate.actions[0].dimension_scores["adherence"].score == 8
