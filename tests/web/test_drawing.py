"""The path that a drawing marks is the one that the graph took, on real LangGraph."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from arbiter import ArbiterOS, PolicyViolationError
from arbiter.ledger import Ledger
from arbiter.web.thread import drawings_of
from tests.ledger.ledger_support import conf
from tests.support import Check, Route, Spy, State

Taken = dict[tuple[str, str], int]


def path_of(tmp_path: Path, graph: Any, *contracts: Any) -> list[Taken]:
    """The arrows that were taken in each drawing of a run, with their counts."""
    with Ledger(tmp_path / "l.db") as ledger:
        arbiter_os = ArbiterOS(ledger=ledger)
        for contract in contracts:
            (arbiter_os.add_policy_router if contract.kind == "router" else arbiter_os.add_policy_checker)(
                contract
            )
        with suppress(PolicyViolationError):
            arbiter_os.govern(graph).invoke({"amount": 1}, conf("t"))
        assert ledger.flush(60)
        reader = ledger.reader
        drawings = drawings_of(reader, reader.thread("t"))
        return [
            {(arrow.source, arrow.target): arrow.count for arrow in drawing.arrows if arrow.count}
            for drawing in drawings
        ]


def graph_of(*nodes: Any) -> Any:
    builder: Any = StateGraph(State)
    for node in nodes:
        builder.add_node(node.__name__, node)
    return builder


def test_a_loop_counts_its_arrows(tmp_path: Path) -> None:
    def again(state: Any) -> str:
        return "write" if len(state["log"]) < 6 else END

    builder = graph_of(Spy("write"), Spy("judge"))
    builder.add_edge(START, "write")
    builder.add_edge("write", "judge")
    builder.add_conditional_edges("judge", again, ["write", END])
    assert path_of(tmp_path, builder.compile()) == [
        {(START, "write"): 1, ("write", "judge"): 3, ("judge", "write"): 2, ("judge", END): 1}
    ]


def test_only_the_branch_that_was_taken_is_marked(tmp_path: Path) -> None:
    def left(state: Any) -> str:
        return "left"

    builder = graph_of(Spy("split"), Spy("left"), Spy("right"))
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", left, ["left", "right"])
    builder.add_edge("left", END)
    builder.add_edge("right", END)
    assert path_of(tmp_path, builder.compile()) == [
        {(START, "split"): 1, ("split", "left"): 1, ("left", END): 1}
    ]


def test_a_join_counts_all_of_its_sources(tmp_path: Path) -> None:
    """One source is two supersteps away, the other one."""
    builder = graph_of(Spy("short"), Spy("long"), Spy("longer"), Spy("join"))
    builder.add_edge(START, "short")
    builder.add_edge(START, "long")
    builder.add_edge("long", "longer")
    builder.add_edge(["short", "longer"], "join")
    builder.add_edge("join", END)
    assert path_of(tmp_path, builder.compile()) == [
        {
            (START, "short"): 1, (START, "long"): 1, ("long", "longer"): 1, ("short", "join"): 1,
            ("longer", "join"): 1, ("join", END): 1,
        }
    ]  # fmt: skip


def test_a_redirect_takes_the_place_of_the_edges(tmp_path: Path) -> None:
    builder = graph_of(Spy("write"), Spy("send"), Spy("reflect"))
    builder.add_edge(START, "write")
    builder.add_edge("write", "send")
    builder.add_edge("reflect", "write")
    router = Route(
        "again", lambda history, output: "reflect" if len(history.item.input_state["log"]) < 2 else None,
        target_nodes=["write"],
    )  # fmt: skip
    assert path_of(tmp_path, builder.compile(), router) == [
        {
            (START, "write"): 1,
            ("write", "reflect"): 1,
            ("reflect", "write"): 1,
            ("write", "send"): 1,
            ("send", END): 1,
        }
    ]


def test_after_a_denial_no_arrow_is_marked(tmp_path: Path) -> None:
    builder = graph_of(Spy("check"), Spy("pay"))
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    denies = Check("no", lambda history: history.item.node != "pay")
    assert path_of(tmp_path, builder.compile(), denies) == [{(START, "check"): 1, ("check", "pay"): 1}]


def test_commands_and_sends_are_jumps(tmp_path: Path) -> None:
    """Neither is an edge of the graph, which LangGraph then draws to the end."""

    def leap(state: Any) -> Any:
        return Command(goto="far", update={"log": ["leap"]})

    def far(state: Any) -> Any:
        sent: Command[Any] = Command(goto=[Send("worker", {"amount": n}) for n in range(3)])
        return sent

    builder = graph_of(leap, far, Spy("worker"))
    builder.add_edge(START, "leap")
    assert path_of(tmp_path, builder.compile(), Check("all", lambda history: True)) == [
        {(START, "leap"): 1, ("leap", "far"): 1, ("far", "worker"): 1}
    ]


def test_of_nodes_that_ran_at_once_only_the_one_that_led_on_is_marked(tmp_path: Path) -> None:
    """By a conditional edge, a command or a `Send`; a sibling whose condition said the end goes there."""

    def sends(state: Any) -> Any:
        sent: Command[Any] = Command(goto=Send("worker", {"log": []}), update={"log": ["sends"]})
        return sent

    def stays(state: Any) -> Any:
        stayed: Command[Any] = Command(update={"log": ["stays"]})
        return stayed

    def to_next(state: Any) -> str:
        return "next"

    def to_end(state: Any) -> str:
        return END

    builder = graph_of(Spy("first"), Spy("goes"), Spy("ends"), sends, stays, Spy("worker"), Spy("next"))
    builder.add_edge(START, "first")
    for node in ("goes", "ends", "sends", "stays"):
        builder.add_edge("first", node)
    builder.add_conditional_edges("goes", to_next, ["next", END])
    builder.add_conditional_edges("ends", to_end, ["next", END])
    builder.add_edge("next", END)
    (found,) = path_of(tmp_path, builder.compile(), Check("all", lambda history: True))
    assert found == {
        (START, "first"): 1,
        **{("first", node): 1 for node in ("goes", "ends", "sends", "stays")},
        ("goes", "next"): 1,
        ("ends", END): 1,
        ("sends", "worker"): 1,
        ("stays", END): 1,
        ("next", END): 1,
    }


def test_a_subgraph_is_a_drawing_of_its_own(tmp_path: Path) -> None:
    inner = graph_of(Spy("think"), Spy("say"))
    inner.add_edge(START, "think")
    inner.add_edge("think", "say")
    outer: Any = StateGraph(State)
    outer.add_node("talk", inner.compile())
    outer.add_edge(START, "talk")
    found = path_of(tmp_path, outer.compile(), Check("all", lambda history: True))
    assert {(START, "think"): 1, ("think", "say"): 1, ("say", END): 1} in found
    assert {(START, "talk"): 1, ("talk", END): 1} in found


def test_the_graph_of_a_thread_is_drawn_above_the_subgraphs_that_ran_last(tmp_path: Path) -> None:
    names = [f"agent-{number}" for number in range(6)]
    builder = graph_of(Spy("plan"))
    builder.add_edge(START, "plan")
    for before, name in pairwise(["plan", *names]):
        inner = graph_of(Spy(f"{name}-works"))
        inner.add_edge(START, f"{name}-works")
        builder.add_node(name, inner.compile())
        builder.add_edge(before, name)
    outer, *inner = path_of(tmp_path, builder.compile())
    assert (START, "plan") in outer
    assert [(START, f"{name}-works") in each for name, each in zip(names[-3:], inner, strict=True)] == [
        True
    ] * 3
