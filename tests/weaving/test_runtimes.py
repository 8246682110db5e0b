"""The `Runtime` of LangGraph that nodes of a governed graph get."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy, Send

from arbiter import ArbiterOS
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
def test_only_the_start_of_a_governed_run_copies_its_runtime_field_by_field(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Any] = []

    def counted(given: Any, **changes: Any) -> Any:
        copied.append(given)
        return replace(given, **changes)

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
