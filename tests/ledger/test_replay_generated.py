"""Replay decides as a live shadow does, for generated graphs, constitutions and histories of runs."""

from __future__ import annotations

import asyncio
import json
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from arbiter import ArbiterError, ArbiterOS, HistoryItem, HistoryListener
from arbiter._lifecycle.shadow import ShadowDifference
from arbiter.errors import ArbiterWarning
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import sql
from tests.support import examples

NODES = ("a", "b", "c", "sub", "d")
INSTRUCTIONS = ("GENERATE", "TOOL_CALL", "VERIFY", None)


class State(TypedDict, total=False):
    n: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


@dataclass(frozen=True)
class Step:
    """The work of a node, and its next node: ahead by so many nodes, or back to the first while `n` is
    small."""

    leaves: str
    ahead: int
    adds: int
    fails: int
    retries: int
    pauses: bool


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    instructions: tuple[str | None, ...]
    now: tuple[Any, ...]
    next: tuple[Any, ...]
    calls: tuple[str, ...]
    """How each thread goes on after its first input."""
    saved: bool
    asynchronous: bool


class Clock(HistoryListener):
    """A clock that goes on in the bodies of nodes, and between node runs."""

    def __init__(self) -> None:
        self.at = 1_700_000_000.0
        self.ran: set[str] = set()
        """The node runs of this process."""

    def ended(self, item: HistoryItem) -> None:
        self.at += 0.125
        self.ran.add(item.id)

    def __call__(self) -> float:
        return self.at


targets = st.sampled_from([*NODES[:3], "d"])
on_deny = st.sampled_from(["raise", "end", "redirect:d", "audit"])
nodes = st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True)
limits = st.integers(0, 9)


def rule(use: str, **parts: Any) -> Any:
    return st.fixed_dictionaries({"use": st.just(use), **parts})


checkers = st.one_of(
    rule("condition", deny_when=limits.map("input.n > {}".format), on_deny=on_deny, target_nodes=nodes),
    rule("condition", deny_when=limits.map("has(input.log) && size(input.log) > {}".format), on_deny=on_deny),
    rule("condition", ask_when=limits.map("input.n > {}".format), target_nodes=nodes),
    rule(
        "at_most", times=limits, target_nodes=nodes, per=st.sampled_from(["run", "thread"]), on_deny=on_deny
    ),
    rule("require_before", required=targets.map("node:{}".format), target_nodes=nodes, on_deny=on_deny),
    rule("never_after", after=targets.map("node:{}".format), target_nodes=nodes, on_deny=on_deny),
    rule(
        "within_steps",
        required=st.just("VERIFY"),
        steps=st.integers(1, 4),
        target_nodes=nodes,
        on_deny=on_deny,
    ),
    rule("forbid_sequence", bad_sequence=st.just(["GENERATE", "TOOL_CALL"]), on_deny=on_deny),
    rule(
        "budget", calls=st.integers(1, 9), per=st.sampled_from(["run", "thread", "process"]), on_deny=on_deny
    ),
    rule(
        "budget",
        seconds=st.sampled_from([1.5, 4.5, 1000.0]),
        per=st.sampled_from(["run", "thread"]),
        on_deny=on_deny,
    ),
    rule(
        "rate_limit",
        calls=st.integers(1, 5),
        per_seconds=st.sampled_from([3.0, 1000.0]),
        per=st.sampled_from(["process", "thread", "user"]),
        target_nodes=nodes,
        on_deny=on_deny,
    ),
    rule("approval", reason=st.just("look"), target_nodes=nodes, expires_after=st.sampled_from([0.5, 1e6])),
)
judges = st.one_of(
    rule("threshold", key=st.just("n"), threshold=st.sampled_from([1, 2])),
    rule("condition", pass_when=st.just("has(output.n) && output.n > 1")),
    rule("condition", pass_when=st.just("output.n > 1")),  # fails where there is no n
    rule("latency", at_most=st.just(10)),
)
routers = st.one_of(
    rule(
        "metric_below",
        key=st.just("n"),
        threshold=st.just(2),
        target=targets,
        max_redirects=st.integers(1, 2),
        on_cap=st.sampled_from(["continue", "end"]),
        target_nodes=nodes,
    ),
    rule("evaluation_failed", evaluator=st.just("judge"), target=targets, target_nodes=nodes),
    rule(
        "escalate",
        evaluator=st.just("judge"),
        on_reject=st.sampled_from(["raise", "end", "redirect:d"]),
        target_nodes=nodes,
    ),
    rule("on_error", target=targets, target_nodes=nodes),
)
constitutions = st.tuples(st.lists(checkers, min_size=1, max_size=4), st.lists(routers, max_size=2), judges)
steps = st.builds(
    Step,
    leaves=st.sampled_from(["edge", "edge", "branch", "send", "back", "command"]),
    ahead=st.integers(1, 3),
    adds=st.integers(0, 3),
    fails=st.sampled_from([0, 0, 0, 1, 2]),
    retries=st.sampled_from([0, 2, 3]),
    pauses=st.sampled_from([False, False, False, True]),
)
plans = st.builds(
    Plan,
    steps=st.tuples(*[steps] * len(NODES)),
    instructions=st.tuples(*[st.sampled_from(INSTRUCTIONS)] * len(NODES)),
    now=constitutions,
    next=constitutions,
    calls=st.lists(
        st.sampled_from(["input", "approve", "reject", "edit", "elsewhere", "fork", "again"]), max_size=5
    ).map(tuple),
    saved=st.sampled_from([True, True, True, False]),
    asynchronous=st.booleans(),
)


def pack(at: Path, constitution: Any, *, several_processes: bool) -> Path:
    found, ways, judge = constitution
    if several_processes:
        # A live shadow loses what was used and not committed; nothing in the ledger says where a process began.
        found = [each for each in found if each["use"] not in ("rate_limit", "budget")]
    body = {
        "version": 1,
        "name": at.stem,
        "description": "Generated.",
        "checkers": [{"name": f"checker{i}", **each} for i, each in enumerate(found)],
        "routers": [{"name": f"router{i}", **each} for i, each in enumerate(ways)],
        "evaluators": [{"name": "judge", **judge}],
    }
    at.write_text(json.dumps(body))
    return at


def build(plan: Plan, clock: Clock) -> StateGraph[Any]:
    graph: StateGraph[Any] = StateGraph(State)
    inner: StateGraph[Any] = StateGraph(State)
    for name in ("x", "y"):
        inner.add_node(name, worker(name, Step("edge", 1, 1, 0, 0, False), clock))
    inner.add_edge(START, "x")
    inner.add_conditional_edges("x", logged(lambda length: "x" if length % 3 == 1 else "y"), ["x", "y"])
    for index, (name, step) in enumerate(zip(NODES, plan.steps, strict=True)):
        policy = RetryPolicy(
            initial_interval=0.0, jitter=False, max_attempts=step.retries or 1, retry_on=ValueError
        )
        ahead = NODES[index + step.ahead] if index + step.ahead < len(NODES) else END
        further = NODES[index + 1] if index + 1 < len(NODES) else END
        goes = ahead if step.leaves == "command" else None
        body: Any = inner.compile() if name == "sub" else worker(name, step, clock, goes)
        graph.add_node(name, body, retry_policy=policy if step.retries else None)
        leave(graph, name, step, sorted({ahead, further}))
    graph.add_edge(START, "a")
    return graph


def worker(name: str, step: Step, clock: Clock, goes: str | None = None) -> Any:
    left = [step.fails]

    def work(state: Any) -> Any:
        clock.at += 1.0
        if left[0] > 0:
            left[0] -= 1
            raise ValueError(f"{name} fails")
        if step.pauses:
            interrupt(f"{name} asks")
        update = {"log": [name], **({"n": step.adds} if step.adds else {})}
        return update if goes is None else Command(update=update, goto=goes)

    return work


def logged(chosen: Callable[[int], Any]) -> Any:
    """A choice of edges by the length of the log."""

    def of(state: Any) -> Any:
        return chosen(len(state.get("log", ())))

    return of


def leave(graph: Any, name: str, step: Step, to: list[str]) -> None:
    def sends(state: Any) -> Any:
        real = [target for target in to if target != END]
        return [Send(target, {**state, "n": i}) for i, target in enumerate(real * 2)]

    def back(state: Any) -> Any:
        return "a" if state.get("n", 0) < 4 else to

    if step.leaves == "command" and name != "sub":
        return
    if step.leaves == "branch":
        graph.add_conditional_edges(name, logged(lambda length: to[length % len(to)]), to)
    elif step.leaves == "send":
        graph.add_conditional_edges(name, sends, to)
    elif step.leaves == "back":
        graph.add_conditional_edges(name, back, ["a", *to])
    else:
        for target in to:
            graph.add_edge(name, target)


def live(plan: Plan, folder: Path, ledger_at: Path) -> list[ShadowDifference]:
    """Run the plan with a ledger and a shadow. Returns the differences, as the processes reported them.

    Each node run in the ledger equals the one in memory, field by field.
    """
    clock, saver = Clock(), InMemorySaver() if plan.saved else None
    graph = build(plan, clock)
    several = "elsewhere" in plan.calls
    packs = [
        pack(folder / f"{name}.yaml", rules, several_processes=several)
        for name, rules in (("now", plan.now), ("next", plan.next))
    ]
    instructions = {n: i for n, i in zip(NODES, plan.instructions, strict=True) if i and n != "sub"}
    found: dict[tuple[str, str], ShadowDifference] = {}

    def process() -> tuple[ArbiterOS, Any, Ledger]:
        ledger = Ledger(ledger_at, states="full")
        arbiter_os = ArbiterOS.from_constitution(packs[0], shadow=packs[1], ledger=ledger, clock=clock)
        arbiter_os.add_listener(clock)
        arbiter_os._core.settings.timer = clock  # pyright: ignore[reportPrivateUsage]
        return arbiter_os, arbiter_os.govern(graph.compile(checkpointer=saver), instructions), ledger

    def end(arbiter_os: ArbiterOS, ledger: Ledger) -> None:
        assert ledger.flush(60)
        stored = {item.id: item for item in ledger.items()}
        for thread in ("t0", "t1"):
            for item in arbiter_os.history_of(thread_id=thread).items():
                if item.id in clock.ran:
                    assert stored[item.id].to_dict() == item.to_dict()
        for key in [key for key in found if key[1] in clock.ran]:
            del found[key]
        clock.ran.clear()
        found.update({(each.stage, each.item): each for each in arbiter_os.shadow_report()})
        ledger.close()

    arbiter_os, app, ledger = process()
    for thread in ("t0", "t1"):
        clock.at += 1.0
        config: Any = {
            "configurable": {"thread_id": thread, "user_id": "ann"},
            "recursion_limit": 12,
            "max_concurrency": 1,
        }
        call(plan, app, {"n": 1, "log": ["in"]}, config)
        for how in plan.calls:
            if how == "elsewhere":
                end(arbiter_os, ledger)
                arbiter_os, app, ledger = process()
            else:
                go_on(plan, app, how, config)
    end(arbiter_os, ledger)
    return list(found.values())


def go_on(plan: Plan, app: Any, how: str, config: Any) -> None:
    if how == "input":
        call(plan, app, {"n": 1, "log": ["in"]}, config)
    elif not plan.saved:
        return
    elif how == "again":
        call(plan, app, None, config)
    elif how == "fork":
        states = list(app.get_state_history(config))
        if len(states) > 2:
            call(plan, app, None, {**config, **states[len(states) // 2].config})
    else:
        answer: Any = {
            "approve": "approve",
            "reject": {"type": "reject", "message": "no"},
            "edit": {"type": "edit", "input": {"n": 2}},
        }[how]
        waiting = app.get_state(config).interrupts
        if waiting:
            call(plan, app, Command(resume={each.id: answer for each in waiting}), config)


def call(plan: Plan, app: Any, given: Any, config: Any) -> None:
    with suppress(ArbiterError, ValueError, GraphRecursionError):
        if plan.asynchronous:
            asyncio.run(app.ainvoke(given, config))
        else:
            app.invoke(given, config)


def compared(differences: Sequence[ShadowDifference]) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {
        (each.stage, each.item): (
            each.node,
            each.step,
            each.thread_id,
            str(each.enforced),
            str(each.shadow),
            each.shadow.reason,
            each.enforced.reason,
        )
        for each in differences
    }


def check(plan: Plan) -> Any:
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", ArbiterWarning)  # rules that apply to no node are no matter here
        folder = Path(name)
        expected = live(plan, folder, folder / "l.db")
        with sql(folder / "l.db") as query:
            # Each node run is written by the process that ran it.
            assert query("SELECT node, namespace, attempt FROM entries WHERE kind = 'recovered'") == []
        with Ledger(folder / "l.db") as ledger:
            again = ledger.replay(folder / "now.yaml")
            assert again.unknown == {}
            assert compared(again) == {}
            report = ledger.replay(folder / "next.yaml")
            assert report.unknown == {}
            assert compared(report) == compared(expected)
            return report.summary


@pytest.mark.lengthy
@examples(0.2)
@given(plan=plans)
def test_replay_decides_as_the_live_run_and_as_its_shadow_did(plan: Plan) -> None:
    """Under the recorded rules nothing differs; under others the same differs as in the live shadow."""
    check(plan)


@pytest.mark.slow
@settings(max_examples=200)
@given(plan=plans)
def test_replay_decides_as_two_hundred_live_runs_did(plan: Plan) -> None:
    check(plan)
