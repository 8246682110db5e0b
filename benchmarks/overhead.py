"""The cost of governing: bare LangGraph against governed, in one process. `make bench`.

Three contestants run the same graph: *bare* is LangGraph alone, *nothing* is governed with nothing
registered, *policies* is governed with 3 checkers, 1 router and 2 evaluators. They take turns in a rotating
order, so that other load of the machine meets all of them, and each round gives one ratio to the bare sample
of that round. The median of those ratios and their quartiles are reported, and the same for a second bare
contestant, which shows the noise of the machine.

Garbage is collected before each sample and not within it. Evaluations without a reader run in the background
and are drained before the next sample. The rows "in a row" do not drain: the background work of a run then
overlaps with the following runs, whose CPU time includes it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import itertools
import json
import operator
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send
from rich.console import Console
from rich.table import Table

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    History,
    NodeEvaluator,
    PolicyChecker,
    PolicyRouter,
    Verdict,
)
from arbiter._lifecycle.drivers import drive
from arbiter._lifecycle.runs import NodeRun
from arbiter._values.states import as_state
from arbiter._weaving.node import GovernedNode
from arbiter.history._past import NO_PAST
from arbiter.history._recorder import ThreadLog, begin
from arbiter.instructions import GENERATE

Graph = CompiledStateGraph[Any, Any, Any, Any]
BARE, AGAIN, NOTHING, POLICIES = "bare", "bare again", "nothing", "policies"


# The policies: ordinary subclasses, cheap ones ----------------------------------------------------


class Allowed(PolicyChecker):
    def check_before(self, history: History) -> bool:
        return history.entries[-1][-1].node != "forbidden"


class Shaped(PolicyChecker):
    def check_before(self, history: History) -> tuple[bool, str]:
        return "value" in history.entries[-1][-1].input_state, "the input has no value"


class Budget(PolicyChecker):
    def check_before(self, history: History) -> Verdict:
        if history.count(GENERATE) > 10_000_000:
            return Verdict.deny("the budget is spent")
        return Verdict.allow()


class Quality(NodeEvaluator):
    def evaluate(self, history: History) -> EvaluationResult:
        score = 1.0 if history.entries[-1][-1].output_state else 0.0
        return EvaluationResult(score, score > 0.5)


class Speed(NodeEvaluator):
    def evaluate(self, history: History) -> EvaluationResult:
        took = history.entries[-1][-1].duration
        return EvaluationResult(1.0 / (1.0 + took), took < 60.0)


class Slow(NodeEvaluator):
    def evaluate(self, history: History) -> EvaluationResult:
        time.sleep(1.0)
        return EvaluationResult(1.0, True)


class Reflect(PolicyRouter):
    """Reads one of the two evaluations; nothing reads the other."""

    def route_after(self, history: History, current_output: Any) -> str | None:
        passed = history.entries[-1][-1].evaluation_results["quality"].passed
        return None if passed else "reflect"


class Same(NodeEvaluator):
    """Returns the same object each time, because the benchmark must not count the memory of users'
    results."""

    def evaluate(self, history: History) -> EvaluationResult:
        return _PASSED


_PASSED = EvaluationResult(1.0, True)


def with_policies(
    keep: int | None = 1000,
    quality: type[NodeEvaluator] = Quality,
    speed: type[NodeEvaluator] = Speed,
) -> ArbiterOS:
    arbiter_os = ArbiterOS(keep=keep)
    arbiter_os.add_policy_checker(Allowed("allowed"))
    arbiter_os.add_policy_checker(Shaped("shaped"))
    arbiter_os.add_policy_checker(Budget("budget"))
    arbiter_os.add_policy_router(Reflect("reflect"))
    arbiter_os.add_evaluator(quality("quality"))
    arbiter_os.add_evaluator(speed("speed"))
    return arbiter_os


def arbiter_for(
    contestant: str, keep: int | None = 1000, evaluator: type[NodeEvaluator] | None = None
) -> ArbiterOS | None:
    """The governance of that contestant: none, an empty `ArbiterOS`, or the policies."""
    match contestant:
        case "nothing":
            return ArbiterOS(keep=keep)
        case "policies":
            return with_policies(keep, evaluator or Quality, evaluator or Speed)
        case _:
            return None


def governed(arbiter_os: ArbiterOS, graph: Graph) -> Graph:
    nodes = [name for name in graph.nodes if name != START]
    return arbiter_os.govern(graph, instructions=dict.fromkeys(nodes, GENERATE))


# The graphs ---------------------------------------------------------------------------------------


class Number(TypedDict):
    value: int


class Fan(TypedDict):
    value: int
    done: Annotated[list[int], operator.add]


class Large(TypedDict):
    value: int
    blob: str
    messages: Annotated[list[AnyMessage], add_messages]


def increment(state: Number) -> dict[str, Any]:
    return {"value": state["value"] + 1}


async def aincrement(state: Number) -> dict[str, Any]:
    return {"value": state["value"] + 1}


def answer(state: Large) -> dict[str, Any]:
    return {"value": state["value"] + 1, "messages": [AIMessage("An answer.")]}


def chain(
    length: int, body: Callable[[Any], Any], state: type[Any] = Number, checkpointer: Any = None
) -> Graph:
    builder: Any = StateGraph(state)
    before = START
    for number in range(length):
        builder.add_node(f"n{number}", body)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    return cast(Graph, builder.compile(checkpointer=checkpointer))


def fan_out(width: int, *, is_async: bool) -> Graph:
    def branch(state: Fan) -> dict[str, Any]:
        return {"done": [state["value"]]}

    async def abranch(state: Fan) -> dict[str, Any]:
        return {"done": [state["value"]]}

    def spread(_: Fan) -> list[Send]:
        return [Send("branch", {"value": number}) for number in range(width)]

    builder: Any = StateGraph(Fan)
    builder.add_node("branch", abranch if is_async else branch)
    builder.add_conditional_edges(START, spread, ["branch"])
    return cast(Graph, builder.compile())


def loop(steps: int, on_step: Callable[[int], object]) -> Graph:
    """One node that runs `steps` times. The state stays the same object, so that its size costs nothing."""
    done = 0
    update = {"value": 0}

    def body(_: Number) -> dict[str, Any]:
        nonlocal done
        done += 1
        on_step(done)
        return update

    def again(_: Number) -> str:
        return END if done % steps == 0 else "step"

    builder: Any = StateGraph(Number)
    builder.add_node("step", body)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", again, ["step", END])
    return cast(Graph, builder.compile())


# Measuring ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A timed call, and untimed work after it."""

    run: Callable[[], object]
    settle: Callable[[], object] = lambda: None
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Sample:
    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its quartiles, which show how reliable it is."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0], len(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of the table. `limit` None: no limit was promised."""

    value: Spread
    unit: str
    limit: float | None = None
    cpu: Spread | None = None

    @property
    def holds(self) -> bool | None:
        return None if self.limit is None else self.value.median <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    case: str
    cells: Mapping[str, Cell]
    note: str = ""


@contextmanager
def no_garbage() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def take(contestant: Contestant) -> Sample:
    contestant.prepare()
    with no_garbage():
        wall, cpu = time.perf_counter(), time.process_time()
        contestant.run()
        sample = Sample(time.perf_counter() - wall, time.process_time() - cpu)
    contestant.settle()
    return sample


def compete(
    contestants: Mapping[str, Contestant], seconds: float, *, warm: int = 3
) -> list[dict[str, Sample]]:
    """Rounds in which each contestant runs once, in a rotating order, for about `seconds`."""
    gc.collect()
    gc.freeze()  # so that each collection skips the objects that exist already
    for contestant in contestants.values():
        for _ in range(warm):
            take(contestant)
    names = list(contestants)
    rounds: list[dict[str, Sample]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        turn = len(rounds) % len(names)
        order = names[turn:] + names[:turn]
        if len(rounds) // len(names) % 2:
            order.reverse()
        rounds.append({name: take(contestants[name]) for name in order})
    gc.unfreeze()
    return rounds


def ratios(
    rounds: Sequence[Mapping[str, Sample]],
    limits: Mapping[str, float | None],
    base: str = BARE,
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name in rounds[0]:
        if name == base:
            continue
        cells[name] = Cell(
            value=Spread.of([r[name].wall / r[base].wall for r in rounds]),
            cpu=Spread.of([r[name].cpu / r[base].cpu for r in rounds]),
            unit="×",
            limit=limits.get(name),
        )
    return cells


@dataclass(frozen=True, slots=True)
class Effort:
    """The duration of each part. A full run takes about three and a half minutes."""

    seconds: float
    steps: int
    loops: int
    kept: int
    long_run: int
    tight: int


FULL = Effort(seconds=9.0, steps=5_000, loops=3, kept=2_000, long_run=50_000, tight=1_000)
QUICK = Effort(seconds=0.8, steps=500, loops=2, kept=900, long_run=3_000, tight=200)


# The cases ----------------------------------------------------------------------------------------


class _Alone(NodeRun):
    """A node run without LangGraph."""

    @property
    def is_shared(self) -> bool:
        return False

    def body(self, buffered: bool) -> Any:
        return _closure(self.input)


_UPDATE = {"value": 2}


def _closure(_: Any) -> dict[str, Any]:
    return _UPDATE


def lifecycle_alone(effort: Effort) -> Iterator[Row]:
    """The lifecycle and its sync driver around a trivial body, and the whole wrapper as LangGraph calls
    it."""
    n = effort.tight
    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> Callable[[], None]:
        # This thread's CPU only: the rows of whole graphs include the background work.
        def run() -> None:
            begun = time.thread_time()
            work()
            times[name] = time.thread_time() - begun

        return run

    def contest(works: Mapping[str, Contestant], base: Mapping[str, str], label: str, note: str) -> Row:
        rounds: list[dict[str, float]] = []

        def settled(name: str, settle: Callable[[], object]) -> Callable[[], None]:
            def after() -> None:
                settle()
                if name == last:
                    rounds.append(dict(times))

            return after

        last = list(works)[-1]
        compete(
            {
                name: Contestant(prepare=c.prepare, run=timed(name, c.run), settle=settled(name, c.settle))
                for name, c in works.items()
            },
            effort.seconds / 2,
        )
        rounds = rounds[3:]  # the warm-up
        cells: dict[str, Cell] = {}
        for name, limit in ((BARE, None), ("stamped", None), (NOTHING, 5.0), (POLICIES, 15.0)):
            below = base.get(name)
            values = [(r[name] - (r[below] if below else 0.0)) / n * 1e6 for r in rounds]
            cells[name] = Cell(value=Spread.of(values), unit="µs", limit=limit)
        return Row(case=label, cells=cells, note=note)

    state = {"value": 1}
    log: list[Any] = []

    def bare() -> None:
        for _ in range(n):
            _closure(state)

    def stamped() -> None:
        for _ in range(n):
            begun = time.perf_counter()
            output = _closure(state)
            log.append((time.time(), dict(state), dict(output), time.perf_counter() - begun))

    targets = frozenset({"step", "reflect", END})

    def driven(arbiter_os: ArbiterOS) -> Contestant:
        core = _governed_node(arbiter_os).core
        plan = core.registry.plan("step", GENERATE, targets)
        thread, settings = ThreadLog(None, 1000), core.settings
        run = thread.new_run(0, NO_PAST)

        def work() -> None:
            for _ in range(n):
                record = begin(run, str(next(_ids)), "step", GENERATE, 1, "", settings.clock(), ())
                record.input = as_state(state)
                node_run = _Alone(record, plan, state, settings, run, NO_PAST, None, None, None)
                drive(node_run)

        return Contestant(run=work, settle=arbiter_os.drain)

    yield contest(
        {
            BARE: Contestant(run=bare),
            "stamped": Contestant(run=stamped, settle=log.clear),
            NOTHING: driven(ArbiterOS()),
            POLICIES: driven(with_policies()),
        },
        {NOTHING: BARE, POLICIES: BARE},
        "lifecycle alone, added per step",
        "record, node run, driver; CPU of the thread",
    )

    # The wrapper as LangGraph calls it, against the node's own Runnable.
    inner, config = _step_of(None)
    configs = _with_task_ids(config, n)

    def bare_node() -> None:
        for each in configs:
            inner.invoke(state, each)

    def stamped_node() -> None:
        for each in configs:
            begun = time.perf_counter()
            output = inner.invoke(state, each)
            log.append((time.time(), dict(state), dict(output), time.perf_counter() - begun))

    def wrapped(arbiter_os: ArbiterOS) -> Contestant:
        node, config = _step_of(arbiter_os)
        fresh: list[RunnableConfig] = []

        def prepare() -> None:
            fresh[:] = _with_task_ids(config, n)

        def work() -> None:
            for each in fresh:
                node.invoke(state, each)

        return Contestant(run=work, settle=arbiter_os.drain, prepare=prepare)

    yield contest(
        {
            BARE: Contestant(run=bare_node),
            "stamped": Contestant(run=stamped_node, settle=log.clear),
            NOTHING: wrapped(ArbiterOS()),
            POLICIES: wrapped(with_policies()),
        },
        {NOTHING: BARE, POLICIES: BARE},
        "whole wrapper, added per step",
        "GovernedNode.invoke, less the node's own; CPU of the thread",
    )


_ids = count()


def _with_task_ids(config: RunnableConfig, number: int) -> list[RunnableConfig]:
    conf = config.get("configurable", {})
    return [
        cast(
            RunnableConfig,
            {**config, "configurable": {**conf, "__pregel_task_id": str(next(_ids))}},
        )
        for _ in range(number)
    ]


def _governed_node(arbiter_os: ArbiterOS) -> GovernedNode:
    node = governed(arbiter_os, chain(1, increment)).nodes["n0"].node
    return cast(GovernedNode, cast(Any, node).steps[0])


def _step_of(arbiter_os: ArbiterOS | None) -> tuple[Any, RunnableConfig]:
    """The first runnable of a task of a one-node graph, with the config that LangGraph passes."""
    caught: list[RunnableConfig] = []

    def catch(state: Number, config: RunnableConfig) -> dict[str, Any]:
        caught.append(config)
        return {"value": 2}

    def body(state: Number) -> dict[str, Any]:
        return {"value": 2}

    found: list[Any] = []
    functions: tuple[Callable[..., Any], ...] = (catch, body)
    for function in functions:
        graph = chain(1, cast(Callable[[Any], Any], function))
        if arbiter_os is not None:
            graph = governed(arbiter_os, graph)
        graph.invoke({"value": 0})
        found.append(cast(Any, graph.nodes["n0"].node).steps[0])
    config = caught[0]

    def send(_: object) -> None:
        """Stands in for the channel of the task's writes."""

    conf = {**config.get("configurable", {}), "__pregel_send": send}
    return found[1], cast(RunnableConfig, {**config, "configurable": conf})


LIMITS = {NOTHING: 1.00, POLICIES: 1.10}


def _contest(
    effort: Effort,
    graph: Graph,
    state: Mapping[str, Any],
    *,
    limits: Mapping[str, float],
    label: str,
    is_async: bool = False,
    times: int = 1,
    in_a_row: bool = False,
) -> Iterator[Row]:
    """The contestants on one graph, with `times` invocations in a sample."""
    with asyncio.Runner() as runner:
        event_loop = runner.get_loop()

        def contestant(app: Graph, runs: int, arbiter_os: ArbiterOS | None = None) -> Contestant:
            config: RunnableConfig = {"recursion_limit": 1_000}

            def run() -> None:
                for _ in range(runs):
                    app.invoke(state, config)

            async def arun() -> None:
                for _ in range(runs):
                    await app.ainvoke(state, config)

            return Contestant(
                run=(lambda: event_loop.run_until_complete(arun())) if is_async else run,
                settle=(lambda: None) if arbiter_os is None else arbiter_os.drain,
            )

        def contestants(runs: int, *, again: bool) -> dict[str, Contestant]:
            nothing, policies = ArbiterOS(), with_policies()
            return {
                BARE: contestant(graph, runs),
                **({AGAIN: contestant(graph, runs)} if again else {}),
                NOTHING: contestant(governed(nothing, graph), runs, nothing),
                POLICIES: contestant(governed(policies, graph), runs, policies),
            }

        rounds = compete(contestants(times, again=True), effort.seconds)
        yield Row(case=label, cells=ratios(rounds, limits), note=_bare(rounds, times))
        if in_a_row:
            rounds = compete(contestants(times * 3, again=False), effort.seconds / 2, warm=1)
            yield Row(
                case=f"{label}, 3 in a row",
                cells=ratios(rounds, {}),
                note="not drained in between; its CPU includes the evaluations",
            )


def _bare(rounds: Sequence[Mapping[str, Sample]], times: int) -> str:
    seconds = statistics.median(r[BARE].wall for r in rounds) / times
    return f"bare {seconds * 1000:.1f} ms"


def chain_of_100(effort: Effort) -> Iterator[Row]:
    for is_async, name in ((False, "invoke"), (True, "ainvoke")):
        yield from _contest(
            effort,
            chain(100, aincrement if is_async else increment),
            {"value": 0},
            limits={**LIMITS, POLICIES: 1.05} if is_async else LIMITS,
            label=f"chain of 100, {name}",
            is_async=is_async,
            in_a_row=True,
        )


def fan_out_of_32(effort: Effort) -> Iterator[Row]:
    for is_async, name in ((False, "invoke"), (True, "ainvoke")):
        yield from _contest(
            effort,
            fan_out(32, is_async=is_async),
            {"value": 0, "done": []},
            limits=LIMITS,
            label=f"fan-out of 32, {name}",
            is_async=is_async,
            times=3,
        )


def large_state(effort: Effort) -> Iterator[Row]:
    messages = [HumanMessage(f"message {number}", id=str(number)) for number in range(1_000)]
    yield from _contest(
        effort,
        chain(10, answer, Large),
        {"value": 0, "blob": "x" * 1_000_000, "messages": messages},
        limits={**LIMITS, POLICIES: 1.05},
        label="1 MB and 1,000 messages",
    )


def long_loop(effort: Effort) -> Iterator[Row]:
    """The time of a step at the end of a long run, divided by that at its beginning."""
    steps = effort.steps

    def contestant(arbiter_os: ArbiterOS | None) -> tuple[Contestant, list[float]]:
        stamps: list[float] = []
        graph = loop(steps, lambda _: stamps.append(time.perf_counter()))
        app = graph if arbiter_os is None else governed(arbiter_os, graph)

        def settle() -> None:
            if arbiter_os is not None:
                arbiter_os.drain()

        return Contestant(
            run=lambda: app.invoke({"value": 0}, {"recursion_limit": steps + 10}),
            prepare=stamps.clear,
            settle=settle,
        ), stamps

    growth: dict[str, list[float]] = {BARE: [], NOTHING: [], POLICIES: []}
    for turn in range(effort.loops):
        names = list(growth)
        for name in names[turn % 3 :] + names[: turn % 3]:
            arbiter_os = arbiter_for(name)
            runner, stamps = contestant(arbiter_os)
            gc.freeze()
            take(runner)
            gc.unfreeze()
            # Medians of single steps, because one pause of the machine must not look like growth.
            took = [b - a for a, b in itertools.pairwise(stamps)]
            tenth = len(took) // 10
            growth[name].append(statistics.median(took[-tenth:]) / statistics.median(took[:tenth]))
    limits = {BARE: None, NOTHING: 1.1, POLICIES: 1.1}
    yield Row(
        case=f"loop of {steps:,}, last tenth / first",
        cells={
            name: Cell(value=Spread.of(values), unit="×", limit=limits[name])
            for name, values in growth.items()
        },
        note=f"one node, {steps:,} steps of one run",
    )


def checkpointed(effort: Effort) -> Iterator[Row]:
    """Graphs with a checkpointer, which stores the facts of policies at each superstep: runs of new threads, and
    runs of one thread that holds as many facts as are kept.
    """

    def contestant(arbiter_os: ArbiterOS | None, thread: str | None) -> Contestant:
        graph = chain(10, increment, checkpointer=InMemorySaver())
        app = graph if arbiter_os is None else governed(arbiter_os, graph)

        def run() -> None:
            for _ in range(5):
                of = thread or str(next(_ids))
                app.invoke({"value": 0}, {"configurable": {"thread_id": of}})

        if thread is not None:
            for _ in range(6):
                run()
        return Contestant(run=run, settle=(lambda: None) if arbiter_os is None else arbiter_os.drain)

    for label, thread in (("new threads", None), ("a long thread", "long")):
        names = (BARE, AGAIN, NOTHING, POLICIES)
        rounds = compete({name: contestant(arbiter_for(name), thread) for name in names}, effort.seconds)
        yield Row(case=f"checkpointer, {label}", cells=ratios(rounds, {}), note=_bare(rounds, 50) + " a step")


def unrelated(effort: Effort) -> Iterator[Row]:
    """An ungoverned graph right after another graph ran bare, ran governed, ran governed with policies."""
    mine, other = chain(50, increment), chain(20, increment)
    nothing, policies = ArbiterOS(), with_policies()

    def after(app: Graph) -> Contestant:
        def prepare() -> None:
            app.invoke({"value": 0})
            for each in (nothing, policies):
                each.drain()
            time.sleep(
                0.002
            )  # waiting for the background cools the processor's caches, so let all contestants wait

        return Contestant(prepare=prepare, run=lambda: mine.invoke({"value": 0}, {"recursion_limit": 100}))

    rounds = compete(
        {
            BARE: after(other),
            AGAIN: after(other),
            NOTHING: after(governed(nothing, other)),
            POLICIES: after(governed(policies, other)),
        },
        effort.seconds,
    )
    yield Row(
        case="unrelated graph, un-governed",
        cells=ratios(rounds, {NOTHING: 1.01, POLICIES: 1.01}),
        note="after a governed one ran, over after a bare one ran",
    )


def memory(effort: Effort) -> Iterator[Row]:
    """The memory of a step: with all items kept (`keep=None`), and over a long run with `keep=`."""
    per_step = {name: _left_behind(name, effort.kept) for name in (BARE, NOTHING, POLICIES)}
    limits = {NOTHING: None, POLICIES: 1.5}
    cells = {
        name: Cell(value=Spread.of([per_step[name] - per_step[BARE]]), unit="KB", limit=limit)
        for name, limit in limits.items()
    }
    cells[BARE] = Cell(value=Spread.of([per_step[BARE]]), unit="KB")
    yield Row(
        case="memory per step, all kept",
        cells=cells,
        note="tracemalloc, less bare; state and results are single objects",
    )
    grown = {name: _blocks_grown(name, effort.long_run) for name in (BARE, NOTHING, POLICIES)}
    limit = 50.0  # one leaked record would be ten blocks a step
    cells = {
        name: Cell(value=Spread.of([grown[name] - grown[BARE]]), unit="blocks", limit=limit)
        for name in (NOTHING, POLICIES)
    }
    cells[BARE] = Cell(value=Spread.of([grown[BARE]]), unit="blocks")
    yield Row(
        case=f"growth over {effort.long_run:,} steps, keep=1000",
        cells=cells,
        note="allocated blocks per 1,000 steps after the first quarter, less bare",
    )


def _left_behind(name: str, steps: int) -> float:
    """KB that each step of a run keeps if all items are kept, without results."""
    points: list[int] = []
    app = _marked_loop(
        name, None, steps, {300, steps - 1}, lambda: tracemalloc.get_traced_memory()[0], points
    )
    tracemalloc.start()
    app.invoke({"value": 0}, {"recursion_limit": steps + 10})
    tracemalloc.stop()
    return (points[1] - points[0]) / 1024 / (steps - 301)


def _blocks_grown(name: str, steps: int) -> float:
    """Memory blocks that a run grew by per 1,000 steps, once there are more items than are kept."""
    points: list[int] = []
    first = max(steps // 4, 1_500)
    app = _marked_loop(name, 1000, steps, {first, steps - 1}, sys.getallocatedblocks, points)
    app.invoke({"value": 0}, {"recursion_limit": steps + 10})
    return (points[1] - points[0]) / (steps - 1 - first) * 1000


def _marked_loop(
    name: str,
    keep: int | None,
    steps: int,
    marks: set[int],
    measure: Callable[[], int],
    points: list[int],
) -> Graph:
    """A loop that measures at some of its steps, when there is no garbage and no evaluation pending."""
    arbiter_os = arbiter_for(name, keep, Same)

    def on_step(number: int) -> None:
        if number in marks:
            if arbiter_os is not None:
                arbiter_os.drain()
            gc.collect()
            points.append(measure())

    app = loop(steps, on_step)
    return app if arbiter_os is None else governed(arbiter_os, app)


def slow_evaluator(effort: Effort) -> Iterator[Row]:
    """`invoke` with an unread evaluator that takes a second, divided by `invoke` without it."""
    graph = chain(2, increment)
    state = {"value": 0}
    quick, slow = with_policies(), with_policies()
    slow.add_evaluator(Slow("slow"))
    without, beside = governed(quick, graph), governed(slow, graph)

    def times(app: Graph) -> Callable[[], None]:
        def run() -> None:
            for _ in range(5):
                app.invoke(state)

        return run

    # Not drained, because that would take ten seconds a sample; the evaluator only sleeps.
    rounds = compete(
        {
            "without": Contestant(run=times(without), settle=quick.drain),
            "without again": Contestant(run=times(without), settle=quick.drain),
            POLICIES: Contestant(run=times(beside), settle=lambda: time.sleep(0.005)),
        },
        effort.seconds,
    )
    cells = ratios(rounds, {POLICIES: 1.05}, base="without")
    seconds = statistics.median(r[POLICIES].wall for r in rounds) / 5
    yield Row(
        case="1 s evaluator nobody reads, 2 nodes",
        cells={AGAIN: cells["without again"], POLICIES: cells[POLICIES]},
        note=f"over the same without it; invoke takes {seconds * 1000:.2f} ms",
    )


CASES: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "lifecycle": lifecycle_alone,
    "chain": chain_of_100,
    "fan-out": fan_out_of_32,
    "loop": long_loop,
    "large": large_state,
    "checkpointer": checkpointed,
    "unrelated": unrelated,
    "memory": memory,
    "slow-evaluator": slow_evaluator,
}


# Showing ------------------------------------------------------------------------------------------


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(
        title="What governing costs", caption="median \\[quartiles] of pairwise ratios; cpu: all threads"
    )
    table.add_column("case")
    for title in ("bare", "nothing registered", "3 checkers, 1 router, 2 evaluators"):
        table.add_column(title, justify="right")
    for row in rows:
        bare = [cell for name in (BARE, AGAIN) if (cell := row.cells.get(name))]
        stamped = row.cells.get("stamped")
        first = "\n".join(_text(cell) for cell in bare)
        if stamped is not None:
            first += f"\nstamped {_text(stamped)}"
        table.add_row(
            f"{row.case}\n[dim]{row.note}[/dim]" if row.note else row.case,
            first,
            *(_text(row.cells[name]) if name in row.cells else "" for name in (NOTHING, POLICIES)),
            end_section=True,
        )
    console.print(table)
    console.print(
        "bare: the spread of two equal contestants, or the closure itself ('stamped': with clock and append)",
        style="dim",
    )


def _text(cell: Cell) -> str:
    def number(value: float) -> str:
        return f"×{value:.3f}" if cell.unit == "×" else f"{value:.2f}"

    spread = cell.value
    unit = "" if cell.unit == "×" else f" {cell.unit}"
    text = f"{number(spread.median)}{unit}"
    if spread.count > 1:
        text += f" [dim]\\[{number(spread.low).lstrip('×')}–{number(spread.high).lstrip('×')}][/dim]"
    if cell.cpu is not None:
        text += f"\n[dim]cpu {number(cell.cpu.median)}[/dim]"
    if cell.holds is not None:
        word = "[green]ok[/green]" if cell.holds else "[bold red]over[/bold red]"
        text += f"\nlimit {number(cast(float, cell.limit))} {word}"
    return text


def as_json(rows: Sequence[Row], *, quick: bool, seconds: float) -> dict[str, Any]:
    return {
        "quick": quick,
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
        "langgraph": version("langgraph"),
        "cpus": os.cpu_count(),
        "rows": [
            {
                "case": row.case,
                "note": row.note,
                "cells": {
                    name: {**dataclasses.asdict(cell), "holds": cell.holds}
                    for name, cell in row.cells.items()
                },
            }
            for row in rows
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What governing costs, against bare LangGraph.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the numbers there")
    parser.add_argument("--quick", action="store_true", help="half a minute, and much noise")
    parser.add_argument(
        "--only", metavar="CASE", action="append", choices=list(CASES), help="one of " + ", ".join(CASES)
    )
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    # Progress goes to stderr, so that the results can be piped.
    progress = Console(stderr=True)
    begun = time.perf_counter()
    rows: list[Row] = []
    for name in options.only or CASES:
        for row in CASES[name](effort):
            rows.append(row)
            progress.print(f"{time.perf_counter() - begun:5.0f} s  {row.case}", style="dim", highlight=False)
    show(rows, Console())
    if options.json is not None:
        found = as_json(rows, quick=options.quick, seconds=time.perf_counter() - begun)
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
