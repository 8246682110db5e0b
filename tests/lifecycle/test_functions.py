"""Governing without a graph: functions, Runnables, and LangGraph's functional API."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import logging
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSequence
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, interrupt
from langgraph_sdk.schema import StreamPart
from pydantic import BaseModel

from arbiter import (
    ArbiterOS,
    ConfigurationError,
    History,
    HistoryPolicyChecker,
    NotAGraphError,
    OutputSchemaError,
    PolicyViolationError,
    SyncDriverError,
    ThresholdEvaluator,
    UnknownNodeError,
    Verdict,
)
from arbiter.checkers import ApprovalChecker, AtMost, BudgetChecker, RequireBefore
from arbiter.errors import ApprovalUsedError
from arbiter.instructions import GENERATE, TOOL_CALL, VERIFY
from tests.support import MODES, PATIENCE, Check, Spy, State, chain, run, thread


def test_execute_a_node_function() -> None:
    """One governed step without a graph, as the seed has it."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("quality", "score", 0.5))
    node = Spy("node", score=0.9)
    assert arbiter_os.execute({"query": "test"}, node, instruction=GENERATE) == {
        "log": ["node"],
        "score": 0.9,
    }
    item = arbiter_os.history.entries[-1][-1]
    assert (item.node, item.instruction, item.status) == ("node", GENERATE, "completed")
    assert item.input_state == {"query": "test"}
    assert item.evaluation_results["quality"].score == 0.9


def test_steps_of_one_context_are_one_history() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("verify_first", [GENERATE, TOOL_CALL]))
    act = Spy("act")
    arbiter_os.execute({}, Spy("think"), instruction=GENERATE)
    with pytest.raises(PolicyViolationError, match="verify_first"):
        arbiter_os.execute({}, act, instruction=TOOL_CALL)
    arbiter_os.execute({}, Spy("check"), instruction=VERIFY)
    arbiter_os.execute({}, act, instruction=TOOL_CALL)
    assert [i.node for i in arbiter_os.history.items()] == ["think", "act", "check", "act"]
    assert arbiter_os.history.count(instruction=TOOL_CALL) == 2


def test_execute_injects_what_a_node_may_ask_for() -> None:
    def node(state: dict[str, Any], config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        return {"user": config.get("configurable", {})["user"], "context": runtime.context}

    output = ArbiterOS().execute({}, node, {"configurable": {"user": "u"}}, {"tenant": 1})
    assert output == {"user": "u", "context": {"tenant": 1}}


@MODES
@pytest.mark.parametrize("given", [None, {"tags": ["mine"]}])
def test_a_step_in_a_node_has_what_the_node_has(given: Any, mode: str) -> None:
    """Its function gets the node's config, store and context, and its rules can ask."""

    def step(state: State, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        stored = runtime.store is not None
        return {"log": [config.get("configurable", {})["thread_id"], stored, runtime.context]}

    def node(state: State) -> Any:
        return arbiter_os.execute(state, step, given)

    async def anode(state: State) -> Any:
        return await arbiter_os.aexecute(state, step, given)

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("ask", target_nodes=["step"]))
    options: Any = {"checkpointer": InMemorySaver(), "store": InMemoryStore()}
    graph = chain(node if mode == "sync" else anode, **options).with_config(thread("1"))

    async def resumed() -> Any:
        asked = await graph.ainvoke({"log": []}, context="us")
        return asked, await graph.ainvoke(Command(resume="approve"), context="us")

    if mode == "async":
        asked, output = asyncio.run(resumed())
    else:
        asked = graph.invoke({"log": []}, context="us")
        output = graph.invoke(Command(resume="approve"), context="us")
    assert asked["__interrupt__"][0].value["node"] == "step"
    assert output == {"log": ["1", True, "us"]}


@pytest.mark.parametrize("given", [None, {"tags": ["mine"]}, {"recursion_limit": 30}])
@pytest.mark.parametrize("watched", [False, True])
def test_a_graph_that_a_step_calls_has_the_limit_of_langgraph(watched: bool, given: Any) -> None:
    """And not LangChain's of 25 supersteps, unless the caller gave one; also if a checker looks into the step."""
    graph = chain(*(Spy(f"n{number}") for number in range(40)))

    def step(state: State, config: RunnableConfig) -> Any:
        return graph.invoke(state, config)

    arbiter_os = ArbiterOS()
    if watched:
        arbiter_os.add_policy_checker(BudgetChecker("much", tokens=1_000))

    def bare(state: State) -> Any:
        return graph.invoke(state)

    call: Any
    for call in (step, bare):
        if given and "recursion_limit" in given:
            with pytest.raises(GraphRecursionError, match="30"):
                arbiter_os.execute({"log": []}, step, given)
        else:
            assert len(arbiter_os.execute({"log": []}, call, given)["log"]) == 40


def test_a_context_reaches_a_remote_graph() -> None:
    """It is one step, and takes its context as every graph does."""
    sent: list[Any] = []

    class Client:
        """LangGraph's client of a server."""

        runs: Any = property(lambda self: self)

        def stream(self, **request: Any) -> Any:
            sent.append(request["context"])
            return iter([StreamPart("values", {"log": ["far"]})])

    arbiter_os = ArbiterOS()
    remote: Any = RemoteGraph("far", sync_client=cast(Any, Client()))
    for target in (remote, remote.with_retry(), arbiter_os.govern(remote)):
        assert arbiter_os.execute({"log": []}, target, context={"tenant": 1}) == {"log": ["far"]}
    assert sent == [{"tenant": 1}] * 3


def test_execute_and_aexecute_other_kinds() -> None:
    class Worker:
        def work(self, state: dict[str, Any]) -> dict[str, Any]:
            return {"x": state["x"] + 1}

        def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
            return self.work(state)

    async def later(state: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"x": state["x"] + 1}

    def add(by: int, state: dict[str, Any]) -> dict[str, Any]:
        return {"x": state["x"] + by}

    arbiter_os = ArbiterOS()
    sync_kinds = [Worker().work, Worker(), functools.partial(add, 1), RunnableLambda(Worker().work)]
    for kind in sync_kinds:
        assert arbiter_os.execute({"x": 1}, kind) == {"x": 2}
    for kind in [*sync_kinds, later]:
        assert asyncio.run(arbiter_os.aexecute({"x": 1}, kind)) == {"x": 2}


@MODES
@pytest.mark.parametrize("in_a_node", [False, True])
def test_a_step_sees_its_own_context_and_config_everywhere(in_a_node: bool, mode: str) -> None:
    """Also in what it calls, and not those of the node around it."""

    def look(state: State, runtime: Runtime[Any]) -> Any:
        return {"log": [runtime.context]}

    def step(state: State, runtime: Runtime[Any]) -> Any:
        inner = chain(look).invoke({"log": []})["log"]
        return {"log": [runtime.context, get_runtime().context, *inner, *get_config().get("tags", ())]}

    async def astep(state: State, runtime: Runtime[Any]) -> Any:
        return step(state, runtime)

    arbiter_os = ArbiterOS()
    given: Any = {"tags": ["mine"]}

    def node(state: State) -> Any:
        return arbiter_os.execute(state, step, given, "ours")

    async def anode(state: State) -> Any:
        return await arbiter_os.aexecute(state, astep, given, "ours")

    if not in_a_node:
        output = node({}) if mode == "sync" else asyncio.run(anode({}))
    elif mode == "sync":
        output = chain(node).invoke({"log": []}, context="theirs")
    else:
        output = asyncio.run(chain(anode).ainvoke({"log": []}, context="theirs"))
    assert output == {"log": ["ours", "ours", "ours", "mine"]}


@MODES
def test_the_name_and_the_id_of_a_step_are_not_those_of_its_calls(mode: str) -> None:
    """Two runs with one id are one run for LangSmith and other tracers."""
    ids: list[Any] = []
    names: list[Any] = []

    class Tracer(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, run_id: Any, **kwargs: Any) -> None:
            ids.append(run_id)
            names.append(kwargs["name"])

    def step(state: State) -> Any:
        for name in ("one", "two"):
            RunnableLambda(same, name=name).invoke(state)
        return {}

    own = uuid.uuid4()
    config: RunnableConfig = {"callbacks": [Tracer()], "run_id": own, "run_name": "step"}
    if mode == "sync":
        ArbiterOS().execute({}, step, config)
    else:
        asyncio.run(ArbiterOS().aexecute({}, step, config))
    assert names == ["one", "two"]
    assert len({*ids, own}) == 3


@MODES
def test_a_graph_in_a_runnable_keeps_the_limit_that_it_has_without_governance(mode: str) -> None:
    graph = chain(*(Spy(f"n{number}") for number in range(30)))

    class Caller(Runnable[Any, Any]):
        def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            return graph.invoke(input)

    sequence = graph | same
    for target in (Caller(), sequence):
        fails = pytest.raises(GraphRecursionError) if target is sequence else contextlib.nullcontext()
        for call in (target, ArbiterOS().govern(target)):
            with fails:
                if mode == "sync":
                    call.invoke({}, {"tags": ["mine"]})
                else:
                    asyncio.run(call.ainvoke({}, {"tags": ["mine"]}))


def test_calls_on_a_thread_do_not_end_the_run_of_calls_without_one() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("twice", target_nodes=["step"], times=2))

    def step(state: State) -> Any:
        return {}

    for number in range(4):
        with contextlib.nullcontext() if number < 2 else pytest.raises(PolicyViolationError, match="twice"):
            arbiter_os.execute({}, step)
        arbiter_os.execute({}, same, {"configurable": {"thread_id": "t"}})


def same(state: Any) -> Any:
    return state


BINDINGS: dict[str, Callable[[Any], Any]] = {
    "bind": lambda graph: graph.bind(),
    "with_retry": lambda graph: graph.with_retry(wait_exponential_jitter=False),
    "with_types": lambda graph: graph.with_types(),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    **BINDINGS,
    "first": lambda graph: graph | same,
    "last": lambda graph: RunnableLambda(same) | graph,
    "retried": lambda graph: RunnableLambda(same) | graph.with_retry(wait_exponential_jitter=False),
}


@MODES
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_nodes_of_a_graph_in_a_runnable_are_governed(wrapper: str, mode: str) -> None:
    """`graph.with_retry()` and `graph | parser` have the graph's nodes, so a rule for one of them holds."""
    pay = Spy("pay")
    graph = chain(pay)
    wrapped = WRAPPERS[wrapper](graph)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("never", lambda history: False, target_nodes=["pay"]))
    with pytest.raises(PolicyViolationError, match="'pay'"):
        run(arbiter_os.govern(wrapped), {"log": []}, mode=mode)
    with pytest.raises(PolicyViolationError, match="'pay'"):
        if mode == "sync":
            arbiter_os.execute({"log": []}, wrapped)
        else:
            asyncio.run(arbiter_os.aexecute({"log": []}, wrapped))
    assert not pay.calls


def test_a_sequence_keeps_its_class() -> None:
    class Named(RunnableSequence[Any, Any]):
        def __init__(self, graph: Any) -> None:
            super().__init__(graph, RunnableLambda(same))

        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            return {"named": super().invoke(*args, **kwargs)}

    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(Named(chain(Spy("pay"))))
    assert app.invoke({"log": []}) == {"named": {"log": ["pay"]}}
    assert [item.node for item in arbiter_os.history.items()] == ["pay", "Named"]


@MODES
@pytest.mark.parametrize("saved", [False, True])
def test_each_graph_in_a_runnable_counts(saved: bool, mode: str) -> None:
    """Two graphs of one sequence are two graphs, in the history and for the rules of later calls."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("four", 4, per="thread", target_nodes=["pay"]))
    pay, log = Spy("pay"), Spy("log")
    saver = InMemorySaver() if saved else None
    both: Any = chain(pay, log, checkpointer=saver) | chain(pay, checkpointer=saver)
    app = arbiter_os.govern(both)
    one_call = ["pay", "log", "pay", "RunnableSequence"]
    for calls in (1, 2):
        run(app, {"log": []}, thread("t"), mode=mode)
        items = list(arbiter_os.history_of(thread_id="t").items())
        assert [item.node for item in items] == one_call * calls
    assert all(len(superstep) == 1 for superstep in arbiter_os.history_of(thread_id="t"))
    with pytest.raises(PolicyViolationError, match="ran 4 times"):
        run(app, {"log": []}, thread("t"), mode=mode)


def test_the_history_shows_graphs_before_the_function_that_ran_them() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("pay"), Spy("log")))
    inner = arbiter_os.govern(same)

    def settle(state: Any) -> Any:
        inner(state)
        return app.invoke(state)

    settled = arbiter_os.govern(settle)

    @entrypoint(checkpointer=InMemorySaver())
    def both(state: Any) -> Any:
        settled(state)
        return settled(state)

    settled({"log": []})
    assert [item.node for item in arbiter_os.history.items()] == ["same", "pay", "log", "settle"]

    def node(state: Any) -> Any:
        return {"log": settled(state)["log"]}

    arbiter_os.govern(chain(node)).invoke({"log": []})
    nodes = [item.node for item in arbiter_os.history.items()]
    assert nodes == ["same", "pay", "log", "settle", "node"]
    both.invoke({"log": []}, thread("t"))
    nodes = [item.node for item in arbiter_os.history_of(thread_id="t").items()]
    assert nodes == ["same", "pay", "log", "settle"] * 2


def test_graphs_that_a_function_runs_at_the_same_time_all_count() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("three", 3, target_nodes=["pay"]))
    app = arbiter_os.govern(chain(Spy("pay"), Spy("log")))

    async def several(state: Any) -> Any:
        return await asyncio.gather(*(app.ainvoke(state) for _ in range(3)))

    governed = arbiter_os.govern(several)

    async def calls() -> None:
        await governed({"log": []})
        with pytest.raises(PolicyViolationError, match="ran 3 times"):
            await governed({"log": []})

    asyncio.run(calls())


def test_a_graph_that_a_function_resumes_counts_once() -> None:
    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    counted: list[int] = []

    @arbiter_os.checker(target_nodes=["answered"])
    def count(history: History) -> bool:
        counted.append(history.count(node="pay"))
        return True

    app = arbiter_os.govern(chain(Spy("pay"), ask, checkpointer=InMemorySaver()))

    def answered(name: str) -> Any:
        app.invoke({"log": []}, thread(name))
        return app.invoke(Command(resume="yes"), thread(name))["log"]

    governed = arbiter_os.govern(answered)
    for name in ("a", "b", "c"):
        assert governed(name) == ["pay", "yes"]
    assert counted == [0, 1, 2]


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_graph_that_was_resumed_or_cached_leaves_other_graphs_counted(is_cached: bool) -> None:
    """Also if the other graph ran as many nodes as the resumed one had, or as the cache served."""

    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("once", 1, target_nodes=["pay", "same"]))
    pay = arbiter_os.govern(chain(Spy("pay")))
    builder: Any = StateGraph(State).add_node("log", Spy("log"), cache_policy=CachePolicy())
    builder.add_node("ask", Spy("ask") if is_cached else ask).add_edge(START, "log").add_edge("log", "ask")
    cache = InMemoryCache[Any]() if is_cached else None
    saver = None if is_cached else InMemorySaver()
    app = arbiter_os.govern(builder.compile(cache=cache, checkpointer=saver))

    def paid(state: Any) -> Any:
        pay.invoke(state)
        return app.invoke(state if is_cached else Command(resume="yes"), thread("t"))

    now, later = arbiter_os.govern(paid), arbiter_os.govern(same)
    app.invoke({"log": []}, thread("t"))
    now({"log": []})
    with pytest.raises(PolicyViolationError, match="ran once"):
        later({"log": []})


@MODES
@pytest.mark.parametrize("nested", [False, True])
def test_the_graphs_of_a_function_in_a_node_that_pauses_count_once(mode: str, nested: bool) -> None:
    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    counts: dict[str, int] = {}

    @arbiter_os.checker(target_nodes=["later"])
    def count(history: History) -> bool:
        counts.update({node: history.count(node=node) for node in ("first", "before", "ask", "paid")})
        return True

    first, second = (
        arbiter_os.govern(chain(Spy("first"))),
        arbiter_os.govern(chain(Spy("before"), ask, Spy("last"))),
    )

    def paid(state: Any) -> None:
        first.invoke({"log": []})
        second.invoke({"log": []})

    pays = arbiter_os.govern(paid)

    def outer(state: Any) -> None:
        pays(state)

    inside = arbiter_os.govern(outer) if nested else pays

    def node(state: State) -> None:
        inside({})

    app = arbiter_os.govern(chain(node, Spy("later"), checkpointer=InMemorySaver()))
    run(app, {"log": []}, thread("1"), mode=mode)
    run(app, Command(resume="yes"), thread("1"), mode=mode)
    assert counts == {"first": 1, "before": 1, "ask": 1, "paid": 1}


@MODES
@pytest.mark.parametrize("place", ["function in a node", "function in a function", "entrypoint"])
def test_node_runs_beside_a_pause_in_the_graph_of_a_function_count_once(place: str, mode: str) -> None:
    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    counts: list[int] = []

    @arbiter_os.checker(target_nodes=["later"])
    def count(history: History) -> bool:
        counts.extend(history.count(node=node) for node in ("beside", "ask"))
        return True

    graph: Any = StateGraph(State).add_node("beside", Spy("beside")).add_node("ask", ask)
    both = arbiter_os.govern(graph.add_edge(START, "beside").add_edge(START, "ask").compile())

    async def acalls(state: Any) -> None:
        await both.ainvoke({"log": []})

    def calls(state: Any) -> None:
        both.invoke({"log": []})

    def later(state: Any) -> None:
        return None

    inside: Any = arbiter_os.govern(calls if mode == "sync" else acalls)
    app: Any
    if place == "function in a function":
        inside = arbiter_os.govern(functools.partial(inside), instruction=GENERATE)
    if place != "entrypoint":
        node = RunnableLambda(inside)
        builder: Any = StateGraph(State).add_node("node", node).add_node("later", later)
        builder.add_edge(START, "node").add_edge("node", "later")
        app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    else:
        at_last = arbiter_os.govern(later)

        def main(state: Any) -> Any:
            inside({})
            at_last({})
            return {"log": []}

        async def amain(state: Any) -> Any:
            await inside({})
            at_last({})
            return {"log": []}

        made: Any = entrypoint(checkpointer=InMemorySaver())
        app = made(main if mode == "sync" else amain)
    run(app, {"log": []}, thread("1"), mode=mode)
    run(app, Command(resume="yes"), thread("1"), mode=mode)
    assert counts == [1, 1]


def test_a_graph_that_goes_on_beside_finished_nodes_counts_them_once() -> None:
    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    counts: dict[str, int] = {}

    @arbiter_os.checker(target_nodes=["same"])
    def count(history: History) -> bool:
        counts.update({node: history.count(node=node) for node in ("first", "pay", "ask")})
        return True

    builder: Any = StateGraph(State).add_node("first", Spy("first")).add_node("pay", Spy("pay"))
    builder.add_node("ask", ask).add_edge(START, "first").add_edge("first", "pay").add_edge("first", "ask")
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))

    def paid(state: Any) -> Any:
        app.invoke(state, thread("t"))
        return app.invoke(Command(resume="yes"), thread("t"))

    later, now = arbiter_os.govern(same), arbiter_os.govern(paid)
    now({"log": []})
    later({"log": []})
    assert counts == {"first": 1, "pay": 1, "ask": 1}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_governing_a_graph_in_a_runnable_does_not_keep_it(wrapper: str) -> None:
    arbiter_os = ArbiterOS()
    graph = chain(Spy("pay"))
    kept = weakref.ref(graph)
    arbiter_os.govern(WRAPPERS[wrapper](graph))
    del graph
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("wrapper", BINDINGS)
def test_a_graph_in_a_binding_is_governed_as_the_graph(wrapper: str) -> None:
    """It streams, keeps its thread and asks, takes instructions by node, and is no step of its own."""
    graph = chain(Spy("pay"), checkpointer=InMemorySaver())
    arbiter_os = ArbiterOS()
    ask = Check("ask", lambda history: Verdict.ask("may it?"), target_instructions=[TOOL_CALL])
    arbiter_os.add_policy_checker(ask)
    app = arbiter_os.govern(BINDINGS[wrapper](graph), {"pay": TOOL_CALL})
    (asked,) = app.stream({"log": []}, thread("1"), stream_mode="updates")
    assert asked["__interrupt__"][0].value["node"] == "pay"
    assert arbiter_os.execute(Command(resume="approve"), app, thread("1")) == {"log": ["pay"]}
    assert [item.node for item in arbiter_os.history_of(thread_id="1").items()] == ["pay"]
    assert arbiter_os.govern(app) is not graph
    other = ArbiterOS()
    assert other.govern(app, instruction=GENERATE).invoke(None, thread("1")) == {"log": ["pay"]}
    assert [item.instruction for item in other.history.items()] == [GENERATE]


@pytest.mark.parametrize("wrapper", BINDINGS)
def test_a_binding_takes_instructions_and_schemas_by_node_as_the_graph_does(wrapper: str) -> None:
    """Also if its graph is governed already. A name that no node has is an error."""

    class Paid(BaseModel):
        amount: int

    for governed_before in (False, True):
        arbiter_os = ArbiterOS()
        graph = chain(Spy("pay"))
        bound = BINDINGS[wrapper](arbiter_os.govern(graph) if governed_before else graph)
        arbiter_os.govern(bound, {"pay": TOOL_CALL}).invoke({"log": []})
        assert [item.instruction for item in arbiter_os.history.items()] == [TOOL_CALL]
        with pytest.raises(UnknownNodeError, match="'pya'"):
            arbiter_os.govern(bound, {"pya": TOOL_CALL})
        with pytest.raises(PolicyViolationError, match="denied node 'pay': Paid: amount"):
            arbiter_os.govern(bound, schemas={"pay": (Paid, None)}).invoke({"log": []})
        with pytest.raises(PolicyViolationError, match="denied node 'LangGraph': Paid: amount"):
            arbiter_os.govern(bound, schemas={"input": Paid}).invoke({"log": []})


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_context_reaches_the_nodes_of_a_graph_in_a_runnable(wrapper: str) -> None:
    def look(state: State, runtime: Runtime[Any]) -> Any:
        return {"log": [runtime.context]}

    graph = chain(look)
    wrapped = WRAPPERS[wrapper](graph)
    arbiter_os = ArbiterOS()
    for target in (wrapped, arbiter_os.govern(wrapped)):
        assert arbiter_os.execute({"log": []}, target, context="us") == {"log": ["us"]}
    said = arbiter_os.execute({}, RunnableLambda(lambda _: get_runtime().context), context="us")
    assert said == "us"


def test_execute_a_graph_weaves_once() -> None:
    arbiter_os = ArbiterOS()
    graph = chain(Spy("a"), Spy("b"))
    assert arbiter_os.execute({"log": []}, graph) == {"log": ["a", "b"]}
    first = arbiter_os._remembered(graph)  # pyright: ignore[reportPrivateUsage]
    assert asyncio.run(arbiter_os.aexecute({"log": []}, graph)) == {"log": ["a", "b"]}
    assert arbiter_os._remembered(graph) is first  # pyright: ignore[reportPrivateUsage]
    assert arbiter_os.execute({"log": []}, first) == {"log": ["a", "b"]}
    assert arbiter_os.govern(first) is first


def test_execute_sees_nodes_that_are_added_to_a_builder_later() -> None:
    arbiter_os = ArbiterOS()
    builder = StateGraph(State)
    builder.add_node("a", Spy("a"))
    builder.add_edge(START, "a")
    assert arbiter_os.execute({"log": []}, builder) == {"log": ["a"]}
    builder.add_node("b", Spy("b"))
    builder.add_edge("a", "b")
    assert arbiter_os.execute({"log": []}, builder) == {"log": ["a", "b"]}


def test_execute_sees_a_node_and_an_edge_of_a_builder_that_took_the_place_of_others() -> None:
    """A branch was known by its name alone, a node by an address in memory, which the next one may have."""
    arbiter_os = ArbiterOS()

    def route(state: Any) -> str:
        return "a"

    def builder_with(route: Any) -> Any:
        return builder.add_conditional_edges(START, route, ["a", "b"])

    builder: Any = StateGraph(State)
    builder.add_node("a", Spy("a")).add_node("b", Spy("b"))
    assert arbiter_os.execute({"log": []}, builder_with(route)) == {"log": ["a"]}

    def other(state: Any) -> str:
        return "b"

    other.__name__ = route.__name__
    builder.branches.clear()
    assert arbiter_os.execute({"log": []}, builder_with(other)) == {"log": ["b"]}
    for number in range(30):
        del builder.nodes["b"]
        builder.add_node("b", Spy(f"b{number}"))
        assert arbiter_os.execute({"log": []}, builder) == {"log": [f"b{number}"]}


def test_execute_sees_a_checkpointer_that_a_compiled_graph_is_given_later() -> None:
    arbiter_os = ArbiterOS()
    graph = chain(Spy("a"))
    assert arbiter_os.execute({"log": []}, graph) == {"log": ["a"]}
    graph.checkpointer = InMemorySaver()
    assert arbiter_os.execute({"log": []}, graph, thread("1")) == {"log": ["a"]}
    assert graph.get_state(thread("1")).values == {"log": ["a"]}


def test_governed_function_is_of_the_same_kind() -> None:
    def think(question: str, *, tries: int = 1) -> str:
        """Thinks."""
        return question * tries

    async def athink(question: str) -> str:
        return question

    arbiter_os = ArbiterOS()
    governed = arbiter_os.govern(think, instruction=GENERATE)
    assert governed("a", tries=3) == "aaa"
    assert governed("a") == "a"
    assert inspect.signature(governed) == inspect.signature(think)
    assert (governed.__name__, governed.__doc__) == ("think", "Thinks.")
    assert inspect.iscoroutinefunction(arbiter_os.govern(athink))
    assert asyncio.run(arbiter_os.govern(athink)("b")) == "b"
    items = list(arbiter_os.history.items())
    assert items[0].input_state == {"question": "a", "tries": 3}
    assert items[0].output_state == {"__root__": "aaa"}


def test_denied_function_is_not_called() -> None:
    calls: list[str] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("no", lambda _: (False, "never")))

    def act(x: str) -> None:
        calls.append(x)

    with pytest.raises(PolicyViolationError, match="never"):
        arbiter_os.govern(act, instruction=TOOL_CALL)("x")
    assert calls == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_functional_api(mode: str) -> None:
    """Governed functions as @task and inside @entrypoint: one history of the run, interrupts included."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(HistoryPolicyChecker("verify_first", [GENERATE, TOOL_CALL]))
    arbiter_os.add_policy_checker(Check("ask", lambda h: Verdict.ask("sure?"), target_nodes=["act"]))

    def think(x: int) -> int:
        return x + 1

    def check(x: int) -> int:
        return x

    def act(x: int) -> int:
        return x * 10

    t_think = task(arbiter_os.govern(think, instruction=GENERATE))
    t_check = task(arbiter_os.govern(check, instruction=VERIFY))
    t_act = task(arbiter_os.govern(act, instruction=TOOL_CALL))

    @entrypoint(checkpointer=InMemorySaver())
    def careless(x: int) -> int:
        return t_act(t_think(x).result()).result()

    @entrypoint(checkpointer=InMemorySaver())
    def careful(x: int) -> int:
        return t_act(t_check(t_think(x).result()).result()).result()

    def go(flow: Any, value: Any, name: str) -> Any:
        config: Any = {"configurable": {"thread_id": name}}
        if mode == "sync":
            return flow.invoke(value, config)
        return asyncio.run(flow.ainvoke(value, config))

    with pytest.raises(PolicyViolationError, match="verify_first"):
        go(careless, 1, "1")
    assert go(careful, 1, "2")["__interrupt__"][0].value["reason"] == "sure?"
    assert go(careful, Command(resume="approve"), "2") == 20
    assert [i.node for i in arbiter_os.history_of(thread_id="2").items()][:3] == [
        "think",
        "check",
        "act",
    ]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_governed_task_stays_a_task_and_its_function_is_governed(mode: str) -> None:
    """`@arbiter_os.govern` above `@task`: rules and the history see the result, and not its future."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("paid", "paid", 1))

    @arbiter_os.checker
    def affordable(output: dict[str, int]) -> bool:
        return output["paid"] < 100

    @arbiter_os.govern
    @task
    def pay(amount: int) -> dict[str, int]:
        if amount < 0:
            raise ValueError("no such amount")
        return {"paid": amount}

    @arbiter_os.govern
    @task
    async def apay(amount: int) -> dict[str, int]:
        return {"paid": amount}

    @entrypoint()
    def flow(amount: int) -> dict[str, int]:
        return pay(amount).result()

    @entrypoint()
    async def aflow(amount: int) -> dict[str, int]:
        return await (apay(amount) if amount > 0 else pay(amount))

    def go(amount: int) -> Any:
        return flow.invoke(amount) if mode == "sync" else asyncio.run(aflow.ainvoke(amount))

    assert go(5) == {"paid": 5}
    (item,) = arbiter_os.history.items()
    assert (item.status, item.output_state) == ("completed", {"paid": 5})
    assert item.evaluation_results["paid"].score == 5
    with pytest.raises(PolicyViolationError, match="affordable"):
        go(500)
    with pytest.raises(ValueError, match="no such amount"):
        go(-1)
    assert [item.status for item in arbiter_os.history.items()] == ["failed"]
    pay.clear_cache(InMemoryCache())


def test_a_resumed_entrypoint_that_was_forgotten_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """No checkpoint keeps its calls, so a cap begins again; one warning says so."""
    caplog.set_level(logging.WARNING, "arbiter")
    arbiter_os = ArbiterOS(keep_threads=2)
    arbiter_os.add_policy_checker(AtMost("once", 1))
    act = task(arbiter_os.govern(Spy("act")))

    @entrypoint(checkpointer=InMemorySaver())
    def flow(asks: bool) -> int:
        act({}).result()
        if asks:
            interrupt("go on?")
            act({}).result()
        return 1

    def resumed(name: str, others: int) -> Any:
        flow.invoke(True, thread(name))
        for other in range(others):
            flow.invoke(False, thread(f"{name}, {other}"))
        return flow.invoke(Command(resume="yes"), thread(name))

    with pytest.raises(PolicyViolationError, match="at most 1"):
        resumed("remembered", 1)
    assert caplog.messages == []
    assert [resumed("ann", 2), resumed("bob", 2)] == [1, 1]
    assert caplog.messages == [
        "a run of an entrypoint was resumed on thread 'ann', and its earlier calls of governed functions may have "
        "been forgotten: rules that count or look back begin again at nothing. ArbiterOS(keep_threads=2) keeps 2 runs "
        "of entrypoints. (This is reported once.)"
    ]


def test_an_entrypoint_that_goes_on_is_not_forgotten_for_newer_ones() -> None:
    """The run that was used longest ago goes first. The one that began first went, and its cap began again."""
    arbiter_os = ArbiterOS(keep_threads=2)
    arbiter_os.add_policy_checker(AtMost("few", 3))
    spy = Spy("act")
    act = arbiter_os.govern(spy)

    @entrypoint()
    def other(_: int) -> None:
        act({})

    @entrypoint()
    def long(_: int) -> None:
        for number in range(5):
            act({})
            other.invoke(number, thread(str(number)))

    with pytest.raises(PolicyViolationError, match="at most 3"):
        long.invoke(0, thread("long"))


def test_governed_entrypoint_itself() -> None:
    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> int:
        return x + 1

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", lambda _: True))
    governed = arbiter_os.govern(cast(Any, flow), {"flow": "GENERATE"})
    config: Any = {"configurable": {"thread_id": "1"}}
    assert governed.invoke(1, config) == 2
    assert list(governed.stream(1, config)) == list(flow.stream(1, {"configurable": {"thread_id": "x"}}))
    assert arbiter_os.history.entries[-1][-1].instruction == GENERATE


def test_function_inside_a_node_belongs_to_the_nodes_run() -> None:
    arbiter_os = ArbiterOS()

    def same(x: Any) -> Any:
        return x

    inner = arbiter_os.govern(same, instruction=VERIFY)
    seen: list[int] = []

    def verified(history: Any) -> bool:
        seen.append(history.count(instruction=VERIFY))
        return True

    arbiter_os.add_policy_checker(Check("look", verified, target_nodes=["b"]))

    def a(state: Any) -> Any:
        inner(1)
        inner(2)
        return {"log": ["a"]}

    arbiter_os.govern(chain(a, Spy("b"))).invoke({"log": []})
    assert seen == [2]
    assert arbiter_os.history.count(instruction=VERIFY) == 2


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    log: list[str]


def test_the_steps_of_functions_count_within_their_own_thread() -> None:
    """Calls of another thread are not counted, and two runs of one thread are not shown as one superstep."""
    arbiter_os = ArbiterOS()
    first, second = arbiter_os.govern(Spy("first")), arbiter_os.govern(Spy("second"))

    @entrypoint(checkpointer=InMemorySaver())
    def app(number: int) -> int:
        first({"number": number})
        second({"number": number})
        return number

    for of in "abb":
        app.invoke(1, thread(of))
    steps = {of: [item.step for item in arbiter_os.history_of(thread_id=of).items()] for of in "ab"}
    assert steps == {"a": [1, 2], "b": [1, 2, 3, 4]}
    assert [len(superstep) for superstep in arbiter_os.history_of(thread_id="b").entries] == [1, 1, 1, 1]


@MODES
def test_a_function_that_is_called_on_a_thread_belongs_to_the_thread(mode: str) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(BudgetChecker("twice", calls=2, per="thread"))

    def called(thread_id: object) -> int:
        """Call the function in a context of its own, as a server's request does. Returns the length of the run."""

        def request() -> int:
            config: Any = {"configurable": {"thread_id": thread_id}}
            if mode == "sync":
                arbiter_os.execute({"query": "?"}, Spy("node"), config)
                return arbiter_os.history.count()

            async def main() -> int:
                await arbiter_os.aexecute({"query": "?"}, Spy("node"), config)
                return arbiter_os.history.count()

            return asyncio.run(main())

        return contextvars.Context().run(request)

    assert [called("a"), called(7), called("a"), called("7")] == [1, 1, 1, 1]
    with pytest.raises(PolicyViolationError, match="2 of 2 calls of this thread"):
        called("a")
    of_a = [item.status for item in arbiter_os.history_of(thread_id="a").items()]
    assert of_a == ["completed", "completed", "denied"]
    assert arbiter_os.history_of(thread_id="7").count() == 2


def test_each_request_that_calls_a_function_on_a_thread_is_a_run_of_it() -> None:
    """Limits per run are those of a request, and rules over the thread see what earlier requests did."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(BudgetChecker("twice", calls=2))
    arbiter_os.add_policy_checker(RequireBefore("verified", VERIFY, target_instructions=[TOOL_CALL]))
    arbiter_os.add_policy_checker(AtMost("four", 4, per="thread", target_instructions=[TOOL_CALL]))

    def request(*calls: tuple[str, Any]) -> None:
        for thread_id, instruction in calls:
            arbiter_os.execute({}, Spy("node"), thread(thread_id), instruction=instruction)

    def requested(*calls: tuple[str, Any]) -> None:
        contextvars.Context().run(request, *calls)

    requested(("a", VERIFY), ("b", VERIFY), ("a", TOOL_CALL))
    for _ in range(3):
        requested(("a", TOOL_CALL))
    with pytest.raises(PolicyViolationError, match="ran 4 times"):
        requested(("a", TOOL_CALL))
    with pytest.raises(PolicyViolationError, match="2 of 2 calls of this run"):
        requested(("b", TOOL_CALL), ("c", VERIFY), ("b", TOOL_CALL), ("b", TOOL_CALL))


def test_the_calls_of_requests_at_once_all_count_for_their_thread() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(AtMost("three", 3, per="thread"))
    at_once = threading.Barrier(3)

    def wait(state: State) -> State:
        at_once.wait(PATIENCE)
        return {}

    calls = [threading.Thread(target=arbiter_os.execute, args=({}, wait, thread("t"))) for _ in range(3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(PATIENCE)
    with pytest.raises(PolicyViolationError, match="ran 3 times"):
        arbiter_os.execute({}, Spy("node"), thread("t"))


def test_a_thread_that_was_forgotten_is_known_again_once_a_function_is_called_on_it() -> None:
    arbiter_os = ArbiterOS(keep_threads=1)
    arbiter_os.execute({}, Spy("node"), thread("a"))
    arbiter_os.execute({}, chain(Spy("other")), thread("b"))
    arbiter_os.execute({}, Spy("node"), thread("a"))
    assert arbiter_os.history_of(thread_id="a").count() == 1


def test_a_graph_that_paused_goes_on_after_a_function_was_called_on_its_thread() -> None:
    def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(ask, checkpointer=InMemorySaver()))
    app.invoke({}, thread("t"))
    arbiter_os.execute({}, Spy("node"), thread("t"))
    assert app.invoke(Command(resume="yes"), thread("t")) == {"log": ["yes"]}
    (paused,) = [item for item in arbiter_os.history_of(thread_id="t").items() if item.node == "ask"]
    assert (paused.status, paused.attempt) == ("completed", 2)


def test_a_call_in_a_node_goes_on_after_the_steps_that_a_checkpoint_restores() -> None:
    saver = InMemorySaver()

    def app(arbiter_os: ArbiterOS) -> Any:
        called = arbiter_os.govern(Spy("called"))

        def a(state: State) -> Any:
            return called(state)

        def b(state: State) -> Any:
            return called(state)

        arbiter_os.add_policy_checker(Check("any", lambda history: True))
        return arbiter_os.govern(chain(a, b, checkpointer=saver, interrupt_before=["b"]))

    before = ArbiterOS()
    app(before).invoke({}, thread("t"))
    assert [item.step for item in before.history_of(thread_id="t").items() if item.node == "called"] == [1]
    after = ArbiterOS()
    app(after).invoke(None, thread("t"))
    assert [item.step for item in after.history_of(thread_id="t").items() if item.node == "called"] == [1, 2]


def test_schemas_on_a_label() -> None:
    """Input that does not fit is denied before the body; output that does not fit is an error."""
    arbiter_os = ArbiterOS()
    calls: list[Any] = []

    @arbiter_os.instruction(GENERATE, input_schema=Question, output_schema=Answer)
    def answer(state: dict[str, Any]) -> dict[str, Any]:
        calls.append(state)
        return {"log": state["text"] if state["text"] == "bad" else [state["text"]]}

    assert answer({"text": "x"}) == {"log": ["x"]}
    calls.clear()
    assert arbiter_os.execute({"text": "x"}, answer) == {"log": ["x"]}
    assert arbiter_os.history.entries[-1][-1].instruction == GENERATE
    with pytest.raises(PolicyViolationError, match="text"):
        arbiter_os.execute({"txt": "x"}, answer)
    assert len(calls) == 1
    with pytest.raises(OutputSchemaError, match=r"'answer'.*Answer.*log"):
        arbiter_os.execute({"text": "bad"}, answer)


@pytest.mark.parametrize("shape", [{"input": Answer}, (Answer, None)])
def test_schemas_on_a_graph(shape: Any) -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")), schemas={"b": shape})
    assert app.invoke({"log": []}) == {"log": ["a", "b"]}
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")), schemas={"b": {"output": Question}})
    with pytest.raises(OutputSchemaError, match="Question"):
        app.invoke({"log": []})
    assert arbiter_os.history.entries[-1][-1].status == "failed"


def test_ungovernable_objects_are_refused() -> None:
    arbiter_os = ArbiterOS()

    def generator(state: Any) -> Any:
        yield state

    async def later(state: Any) -> Any:
        return state

    things: list[Any] = [42, "graph", None, dict, Spy]
    for thing in things:
        with pytest.raises(NotAGraphError):
            arbiter_os.govern(thing)
        with pytest.raises(NotAGraphError):
            arbiter_os.execute({}, thing)
    with pytest.raises(NotAGraphError, match="generator"):
        arbiter_os.govern(generator)
    with pytest.raises(NotAGraphError, match="'max' has no signature"):
        arbiter_os.govern(max)
    with pytest.raises((SyncDriverError, TypeError)):
        arbiter_os.execute({}, later)
    with pytest.raises(ConfigurationError, match="instructions="):
        arbiter_os.govern(Spy("a"), instructions={"a": GENERATE})  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="instruction="):
        arbiter_os.govern(chain(Spy("a")), instruction=GENERATE)


def test_history_after_the_functional_api_is_that_of_its_run() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.execute({}, Spy("before"), instruction=GENERATE)
    think = task(arbiter_os.govern(Spy("think"), instruction=GENERATE))

    @entrypoint()
    def flow(x: int) -> Any:
        return think({"x": x}).result()

    flow.invoke(1)
    assert [item.node for item in arbiter_os.history.items()] == ["think"]


def test_schema_that_pydantic_refuses_is_a_configuration_error() -> None:
    import typing

    Shape = typing.TypedDict("Shape", {"x": int})  # noqa: UP013
    for schema in (Shape, object()):
        if schema is Shape and __import__("sys").version_info >= (3, 12):
            continue
        with pytest.raises(ConfigurationError, match="'a'"):
            ArbiterOS().govern(chain(Spy("a")), schemas={"a": {"input": schema}})


@dataclass(slots=True)
class Order:
    amount: int


class OrderModel(BaseModel):
    amount: int


def kinds_of_input() -> list[Any]:
    return [{"amount": 5}, OrderedDict(amount=5), Order(5), OrderModel(amount=5)]


def amount_of(order: Any) -> Any:
    given: Any = order
    return given["amount"] if isinstance(order, dict) else given.amount


def set_amount(order: Any, amount: int) -> None:
    if isinstance(order, dict):
        order["amount"] = amount
    else:
        order.amount = amount


@MODES
@pytest.mark.parametrize("snapshot", ["shallow", "deep"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("nested", [False, True])
def test_a_function_runs_on_what_was_checked(mode: str, snapshot: Any, number: int, nested: bool) -> None:
    """Its caller may hold the same object, and change it while a later checker is asked."""
    order = kinds_of_input()[number]
    given: Any = {"order": order} if nested else order
    got: list[Any] = []

    def limited(history: History) -> bool:
        state = history.entries[-1][-1].input_state
        return bool(amount_of(state["order"] if nested else state) < 10)

    def change(_: History) -> bool:
        set_amount(order, 999)
        return True

    def pay(order: Any) -> None:
        got.append(amount_of(order["order"] if nested else order))

    async def apay(order: Any) -> None:
        pay(order)

    arbiter_os = ArbiterOS(snapshot=snapshot)
    arbiter_os.add_policy_checker(Check("limited", limited))
    arbiter_os.add_policy_checker(Check("change", change))
    if mode == "sync":
        arbiter_os.govern(pay)(given)
    else:
        asyncio.run(arbiter_os.govern(apay)(given))
    assert got == [5]


@pytest.mark.parametrize("given", [{}, *kinds_of_input()], ids=repr)
def test_a_function_may_write_to_the_input_that_was_checked(given: Any) -> None:
    """Plain fields that nothing has changed are handed over in the object that was given."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("looks", lambda h: bool(str(h.entries[-1][-1].input_state)) or True))

    def same(order: Any) -> Any:
        return order

    assert arbiter_os.govern(same)(given) is given


# One approval, one run -----------------------------------------------------------------------------


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("after", ["function fails", "node fails", "node pauses", "function pauses"])
def test_a_function_in_a_node_runs_once_for_each_approval(after: str, durability: Any, mode: str) -> None:
    """The function asks again if its approval is used, and the node's own questions keep their answers. A function
    that pauses itself continues on its approval."""
    paid: list[int] = []
    pins: list[Any] = []
    fails = iter([True])

    def pay(amount: int) -> int:
        if after == "function pauses":
            pins.append(interrupt("pin?"))
        paid.append(amount)
        if after == "function fails" and next(fails, False):
            raise ValueError("no connection")
        return amount

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))
    governed = arbiter_os.govern(pay)

    def node(state: Any) -> Any:
        governed(5)
        if after == "node fails" and next(fails, False):
            raise ValueError("no connection")
        if after == "node pauses":
            pins.append(interrupt("pin?"))
        return {"log": ["done"]}

    app = arbiter_os.govern(chain(node, checkpointer=InMemorySaver()))

    def go(given: Any) -> Any:
        if mode == "sync":
            out = app.invoke(given, thread("1"), durability=durability)
        else:
            out = asyncio.run(app.ainvoke(given, thread("1"), durability=durability))
        return out["__interrupt__"][0].value if "__interrupt__" in out else out["log"]

    assert go({"log": []})["policy"] == "boss"
    if "fails" in after:
        with pytest.raises(ValueError, match="no connection"):
            go(Command(resume="approve"))
        assert go(None)["note"].startswith("the earlier approval is used")
    else:
        assert go(Command(resume="approve")) == "pin?"
        if after == "node pauses":
            assert go(Command(resume="1234"))["note"].startswith("the earlier approval is used")
    asked_again = after != "function pauses"
    assert paid == ([5] if asked_again else [])
    assert go(Command(resume="approve" if asked_again else "1234")) == ["done"]
    assert paid == ([5, 5] if asked_again else [5])
    assert pins == (["1234"] if "pauses" in after else [])


@MODES
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("first", [[], ["node"]])
def test_each_of_two_functions_in_a_node_runs_once_for_each_approval(
    first: list[str], by_id: bool, mode: str
) -> None:
    """The answer about the second one stays with it while the first one, which has run, asks again."""
    ran: list[str] = []

    def one(amount: int) -> None:
        ran.append("one")

    def two(amount: int) -> None:
        ran.append("two")

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=[*first, "one", "two"]))
    governed = [arbiter_os.govern(one), arbiter_os.govern(two)]

    def node(state: Any) -> Any:
        for function in governed:
            function(5)
        return {"log": ["done"]}

    app = arbiter_os.govern(chain(node, checkpointer=InMemorySaver()))
    out = run(app, {"log": []}, thread("1"), mode=mode)
    asked: list[str] = []
    while "__interrupt__" in out:
        (question,) = out["__interrupt__"]
        asked.append(question.value["node"])
        answer = {question.id: "approve"} if by_id else "approve"
        out = run(app, Command(resume=answer), thread("1"), mode=mode)
    assert asked == [*first, "one", "two", "one"]
    assert ran == ["one", "one", "two"]


def test_executions_that_resume_one_pause_at_once_run_a_function_once() -> None:
    """The others end with an error, or ask again."""
    paid: list[int] = []
    resumed: list[bool] = []
    barrier = threading.Barrier(4)
    saver = InMemorySaver()

    def execution() -> Any:
        arbiter_os = ArbiterOS()
        arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["pay"]))

        def pay(amount: int) -> int:
            paid.append(amount)
            time.sleep(0.05)
            return amount

        governed = arbiter_os.govern(pay)

        def node(state: Any) -> Any:
            if resumed:  # all executions have loaded the same pause
                barrier.wait(PATIENCE)
            governed(5)
            return {"log": ["done"]}

        return arbiter_os.govern(chain(node, checkpointer=saver))

    def one(_: int) -> str:
        try:
            out = execution().invoke(Command(resume="approve"), thread("1"))
            return "asked" if "__interrupt__" in out else "done"
        except ApprovalUsedError:
            return "used"

    execution().invoke({"log": []}, thread("1"))
    resumed.append(True)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(one, range(4)))
    assert paid == [5]
    assert "done" in outcomes


def test_a_rule_that_is_switched_on_holds_from_the_next_call_of_a_function_and_the_next_graph() -> None:
    def double(number: int) -> int:
        return 2 * number

    checker = Check("never", lambda history: (False, "no"))
    checker.mode = "off"
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    function = arbiter_os.govern(double)
    graph = chain(Spy("work"))
    assert function(2) == 4
    arbiter_os.govern(graph).invoke({"log": []})
    checker.mode = "enforce"
    with pytest.raises(PolicyViolationError):
        function(2)
    with pytest.raises(PolicyViolationError):
        arbiter_os.govern(graph).invoke({"log": []})
