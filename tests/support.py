"""Small graphs, spies and contracts that several test files share."""

from __future__ import annotations

import asyncio
import gc
import operator
import resource
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, TypeVar

import pytest
from hypothesis import settings
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph, add_messages
from typing_extensions import TypedDict

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    History,
    NodeEvaluator,
    PolicyChecker,
    PolicyRouter,
    Verdict,
)

T = TypeVar("T")


class Lazy:
    """A module that takes long to import: it is imported when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            # pytest and Hypothesis ask each object of a test module whether it is a fixture or a mock.
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


def examples(times: float, **options: Any) -> settings:
    """For a property: so many times the examples of the profile (see `tests/conftest.py`)."""
    return settings(max_examples=max(1, round(times * settings().max_examples)), **options)


MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    amount: int
    score: float


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


def run(app: Any, state: Any, config: Any = None, *, mode: str = "sync") -> Any:
    """`invoke`, or `ainvoke` in an event loop of its own."""
    if mode == "sync":
        return app.invoke(state, config)
    return asyncio.run(app.ainvoke(state, config))


class Spy:
    """A node that writes its name to the log and keeps its inputs."""

    def __init__(self, name: str, **update: Any) -> None:
        self.__name__ = name
        self.update = update
        self.calls: list[Any] = []

    def __call__(self, state: Any) -> dict[str, Any]:
        self.calls.append(state)
        return {"log": [self.__name__], **self.update}


def chain(*nodes: Any, state: Any = State, extra: Sequence[Any] = (), **options: Any) -> Any:
    """A compiled graph that runs `nodes` one after another; `extra` nodes are there, without edges to them."""
    builder: Any = StateGraph(state)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    for node in extra:
        builder.add_node(node.__name__, node)
    return builder.compile(**options)


def add(arbiter_os: ArbiterOS, contract: Any) -> None:
    """Register a contract of any kind."""
    adders: dict[str, Any] = {
        "checker": arbiter_os.add_policy_checker,
        "router": arbiter_os.add_policy_router,
        "evaluator": arbiter_os.add_evaluator,
        "advisor": arbiter_os.add_advisor,
        "gate": arbiter_os.add_correction_gate,
    }
    adders[contract.kind](contract)


def governed(graph: Any, *contracts: Any, instructions: Any = None) -> tuple[ArbiterOS, Any]:
    """An `ArbiterOS` with these contracts, and the graph that it governs."""
    arbiter_os = ArbiterOS()
    for contract in contracts:
        add(arbiter_os, contract)
    return arbiter_os, arbiter_os.govern(graph, instructions)


class Check(PolicyChecker):
    """A checker around a function of the history."""

    def __init__(self, name: str, answer: Callable[[History], Any], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.answer = answer

    def check_before(self, history: History) -> Any:
        return self.answer(history)


class Route(PolicyRouter):
    """A router around a function of the history and the output."""

    def __init__(self, name: str, answer: Callable[[History, Any], Any], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.answer = answer

    def route_after(self, history: History, current_output: Any) -> Any:
        return self.answer(history, current_output)


class Judge(NodeEvaluator):
    """An evaluator around a function of the history."""

    def __init__(self, name: str, answer: Callable[[History], Any], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.answer = answer

    def evaluate(self, history: History) -> Any:
        return self.answer(history)


def good(_: History) -> EvaluationResult:
    return EvaluationResult(1.0, True, "good")


def bad(_: History) -> EvaluationResult:
    return EvaluationResult(0.1, False, "bad")


def allow(_: History) -> Verdict:
    return Verdict.allow()


PATIENCE = 120.0
"""The seconds that a test waits for what has to happen, however busy the machine is."""


class Hold:
    """A call that takes until the test lets it go or ends; see the fixture `hold`.

    A caller that waits for it although it should not gets an error in the end.
    """

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._over = threading.Event()

    def __call__(self, *_: Any) -> bool:
        self.begun.set()
        if not self._over.wait(PATIENCE):
            raise AssertionError("the run waits for what the test holds")
        return True

    def then(self, result: T) -> Callable[..., T]:
        """A function that returns it after the hold."""

        def call(*_: Any) -> T:
            self()
            return result

        return call

    async def until_released(self, *_: Any) -> bool:
        """As a call, for a coroutine; it can be cancelled."""
        self.begun.set()
        end = time.monotonic() + PATIENCE
        while not self._over.is_set():
            if time.monotonic() > end:
                raise AssertionError("the run waits for what the test holds")
            await asyncio.sleep(0.002)
        return True

    def release(self) -> None:
        self._over.set()


def until(found: Callable[[], T]) -> T:
    """Wait until it is true, and return it."""
    end = time.monotonic() + PATIENCE
    while not (result := found()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s"
        time.sleep(0.01)
    return result


@contextmanager
def no_room_after(size: int) -> Generator[None]:
    """No file of this process can grow beyond that number of bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def within(seconds: float, attempt: Callable[[], Any]) -> None:
    """Fails unless one of a few attempts takes less than that: other work on the machine delays some of them,
    what makes it slow delays all."""
    took: list[float] = []
    while not took or (took[-1] >= seconds and len(took) < 6):
        begun = time.monotonic()
        attempt()
        took.append(time.monotonic() - begun)
    assert took[-1] < seconds, (
        f"took {', '.join(f'{each:.2g}' for each in took)} s, always above {seconds:g} s"
    )


@contextmanager
def quick(seconds: float) -> Generator[None]:
    """Fails if its thread takes more CPU for its block than that, scaled by how much slower this machine is than
    an ordinary one."""
    begun = time.thread_time()
    yield
    took = time.thread_time() - begun
    if took >= seconds:
        assert took < seconds * _slowness()


def _slowness() -> float:
    begun, words = time.thread_time(), dict[str, int]()
    for number in range(200_000):
        word = f"w{number % 997}"
        words[word] = words.get(word, 0) + len(word.split("1"))
    return (time.thread_time() - begun) / _ORDINARY


_ORDINARY = 0.07
"""Seconds."""


def question(paused: Any) -> dict[str, Any]:
    """The question of a paused run."""
    (asked,) = paused["__interrupt__"]
    found: dict[str, Any] = asked.value
    return found


def gained(kind: type[Any], call: Callable[[], object], *, times: int) -> int:
    """The number of objects of that class that `times` calls leave until Python searches for cycles."""

    def there() -> int:
        return sum(type(one) is kind for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = there()
        for _ in range(times):
            call()
        return there() - before
    finally:
        gc.enable()


def asked(result: Any) -> Any:
    """The question with which a run has paused."""
    return result["__interrupt__"][0].value


class LateSaver(InMemorySaver):
    """Saves the output that leads to a node called "last" late, as a database far away does."""

    def late(self) -> float:
        return 0.3

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if any(channel == "branch:to:last" for channel, _ in writes):
            time.sleep(self.late())
        super().put_writes(config, writes, task_id, task_path)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if any(channel == "branch:to:last" for channel, _ in writes):
            await asyncio.sleep(self.late())
        super().put_writes(config, writes, task_id, task_path)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if "branch:to:last" in checkpoint["channel_values"]:
            time.sleep(self.late())
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if "branch:to:last" in checkpoint["channel_values"]:
            await asyncio.sleep(self.late())
        return super().put(config, checkpoint, metadata, new_versions)


def statuses(arbiter_os: ArbiterOS) -> list[tuple[str, str]]:
    return [(item.node, item.status) for item in arbiter_os.history.items()]


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}
