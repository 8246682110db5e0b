"""The `Runtime` and the callback manager that tasks of a governed graph get."""

from __future__ import annotations

import asyncio
import operator
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    AsyncParentRunManager,
    CallbackManagerForChainRun,
    ParentRunManager,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy, Send

from arbiter import ArbiterOS
from arbiter._weaving.runtimes import AsyncRunManager, RunManager
from tests.support import Spy, chain, thread


class Called(TypedDict):
    user: int


class Seen(TypedDict):
    seen: Annotated[list[Any], operator.add]


def look(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
    info: Any = runtime.execution_info
    assert runtime is get_runtime()
    assert info.node_first_attempt_time > 0
    kinds = [type(part).__name__ for part in (runtime, info, runtime.store)]
    names = [info.checkpoint_ns.split(":")[0], info.thread_id, info.run_id]
    return {"seen": [[kinds, names, runtime.context, info.node_attempt]]}


def twice(state: Seen) -> list[Send]:
    return [Send("sent", state), Send("sent", state)]


def graph_of_all_tasks() -> Any:
    """A subgraph, a node that is tried three times, and two tasks that are sent."""
    inner: Any = StateGraph(Seen)
    inner.add_node("in1", look).add_node("in2", look).add_edge(START, "in1").add_edge("in1", "in2")
    tries = iter(range(1, 4))

    def fails(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        found = look(state, runtime)
        if next(tries) < 3:
            raise ConnectionError
        return found

    builder: Any = StateGraph(Seen, context_schema=Called)
    builder.add_node("sub", inner.compile()).add_node("sent", look)
    builder.add_node("fails", fails, retry_policy=RetryPolicy(initial_interval=0.001))
    builder.add_edge(START, "sub").add_edge("sub", "fails")
    builder.add_conditional_edges("fails", twice, ["sent"])
    return builder.compile(checkpointer=InMemorySaver(), store=InMemoryStore())


def seen(graph: Any, mode: str) -> Any:
    given: dict[str, Any] = {"config": thread("1"), "context": {"user": 1}}
    if mode == "sync":
        return graph.invoke({"seen": []}, **given)["seen"]
    return asyncio.run(graph.ainvoke({"seen": []}, **given))["seen"]


@pytest.mark.lengthy
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_node_gets_the_runtime_of_a_run_that_is_not_governed(mode: str) -> None:
    expected = seen(graph_of_all_tasks(), mode)
    assert [attempt for *_, attempt in expected] == [1, 1, 3, 1, 1]
    assert seen(ArbiterOS().govern(graph_of_all_tasks()), mode) == expected


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_the_start_of_a_governed_run_makes_a_runtime_and_a_manager_piece_by_piece(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Any] = []

    def counted(given: Any, **changes: Any) -> Any:
        copied.append(given)
        return replace(given, **changes)

    def child_of(manager: Any, tag: str | None = None) -> Any:
        copied.append(manager)
        return fill(manager, tag)

    parent: Any = AsyncParentRunManager if mode == "async" else ParentRunManager
    fill = parent.get_child
    monkeypatch.setattr(parent, "get_child", child_of)
    monkeypatch.setattr("langgraph.runtime.replace", counted)

    def copies(length: int) -> int:
        copied.clear()
        app = ArbiterOS().govern(chain(*(Spy(f"n{number}") for number in range(length))))
        if mode == "sync":
            app.invoke({"log": []})
        else:
            asyncio.run(app.ainvoke({"log": []}))
        return len(copied)

    assert copies(3) == copies(12) > 0


@pytest.mark.parametrize("tag", ["graph:step:1", "ours", None])
@pytest.mark.parametrize(
    ("langchains", "kind"),
    [(CallbackManagerForChainRun, RunManager), (AsyncCallbackManagerForChainRun, AsyncRunManager)],
)
def test_a_task_of_a_run_without_handlers_gets_the_callback_manager_that_langchain_makes(
    langchains: type[Any], kind: type[Any], tag: str | None
) -> None:
    parts: dict[str, Any] = {"tags": ["own"], "inheritable_tags": ["ours"]}
    parts |= {"metadata": {"of": "run"}, "inheritable_metadata": {"of": "all", "lc_versions": {"a": "1"}}}
    given: dict[str, Any] = {"run_id": UUID(int=1), "handlers": [], "inheritable_handlers": [], **parts}
    expected = langchains(**deepcopy(given)).get_child(tag)
    run = kind(**deepcopy(given))
    child = run.get_child(tag)
    assert (type(child), vars(child)) == (type(expected), vars(expected))
    child.add_tags(["later"])
    child.add_metadata({"later": True})
    assert {name: getattr(run, name) for name in parts} == parts
