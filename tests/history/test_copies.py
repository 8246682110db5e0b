"""Copies and pickles of what Arbiter gives out: they work where those of LangGraph's own objects work."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from arbiter import ArbiterOS, ConfigurationError, EvaluationResult, History, PolicyViolationError, Verdict
from arbiter._constitution.kinds import KINDS, class_at
from arbiter._constitution.loading import load_constitution
from arbiter.errors import UnknownNodeError
from arbiter.instructions import GENERATE, TOOL_CALL
from tests.constitution.test_kinds import MODEL, packs_in
from tests.kind_pages import ALL, page
from tests.processes import python
from tests.support import MODES, Check, Judge, Route, Spy, State, chain, run, thread

COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])


def nested() -> Any:
    """Two nodes, the second of which is a graph."""
    graph: Any = StateGraph(State)
    graph.add_node("a", Spy("a"))
    graph.add_node("inner", chain(Spy("b")))
    graph.add_edge(START, "a")
    graph.add_edge("a", "inner")
    return graph.compile()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as exc:
        return type(exc)


@COPIES
@MODES
def test_a_copy_of_a_governed_graph_runs_as_a_copy_of_the_bare_one(copied: Any, mode: str) -> None:
    """LangGraph's own deep copies raise, because they compare a copied sentinel by identity."""
    expected = outcome(lambda: run(copied(nested()), {"log": []}, mode=mode))
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("fine", lambda h: True))
    app = copied(arbiter_os.govern(nested()))
    assert outcome(lambda: run(app, {"log": []}, mode=mode)) == expected


@MODES
def test_a_copy_of_a_governed_graph_is_governed_by_the_contracts_of_its_arbiter_os(mode: str) -> None:
    arbiter_os = ArbiterOS()
    app = copy.copy(arbiter_os.govern(nested(), {"a": GENERATE}))
    arbiter_os.add_policy_checker(Check("no", lambda h: Verdict.deny("no"), target_nodes=["b"]))
    with pytest.raises(PolicyViolationError, match="no"):
        run(app, {"log": []}, mode=mode)
    assert arbiter_os.history.count(GENERATE) == 1


@pytest.mark.lengthy
@COPIES
def test_a_copy_of_a_governed_graph_belongs_to_the_same_arbiter_os(copied: Any) -> None:
    arbiter_os = ArbiterOS()
    app = copied(arbiter_os.govern(nested()))
    gc.collect()
    assert arbiter_os.govern(app) is app
    again = arbiter_os.govern(app, {"inner:b": GENERATE})
    assert list(again.nodes) == list(app.nodes)
    with pytest.raises(ConfigurationError, match="another ArbiterOS"):
        ArbiterOS().govern(app)
    # What is registered later is checked against the nodes of the copy.
    with pytest.raises(UnknownNodeError, match="nowhere"):
        arbiter_os.add_policy_checker(Check("no", lambda h: True, on_deny="redirect:nowhere"))


# Histories


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class Kept:
    """Part of a state. Counts how often it is pickled."""

    times = 0

    def __reduce__(self) -> Any:
        Kept.times += 1
        return Kept, ()


class Mixed(TypedDict, total=False):
    messages: list[Any]
    lock: Any
    maker: Any
    tags: tuple[str, ...]


def mixed(state: Mixed) -> Any:
    """Writes what can be pickled beside what cannot."""
    return {
        "messages": [HumanMessage("hello", id="1"), {"lock": threading.Lock()}],
        "lock": threading.Lock(),
        "maker": lambda: 1,
        "tags": ("a", "b"),
    }


def after(state: Mixed) -> Any:
    return {"tags": ()}


def judged(*, keep: int | None = 1000, **options: Any) -> ArbiterOS:
    """With an evaluator that takes its time, one that raises, a checker and a router."""

    def slow(history: History) -> EvaluationResult:
        time.sleep(0.05)
        return EvaluationResult(0.25, False, "slow", {"lock": threading.Lock(), "n": 1})

    arbiter_os = ArbiterOS(keep=keep, **options)
    arbiter_os.add_evaluator(Judge("slow", slow))
    arbiter_os.add_evaluator(Judge("broken", lambda h: 1 / 0))
    arbiter_os.add_policy_checker(Check("fine", lambda h: Verdict.allow()))
    arbiter_os.add_policy_router(Route("stay", lambda h, out: None))
    return arbiter_os


def run_mixed(arbiter_os: ArbiterOS, mode: str = "sync") -> None:
    graph: Any = StateGraph(Mixed)
    graph.add_node("mixed", mixed)
    graph.add_node("after", after)
    graph.add_edge(START, "mixed")
    graph.add_edge("mixed", "after")
    run(arbiter_os.govern(graph.compile(), {"mixed": GENERATE}), {"messages": []}, mode=mode)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, copy.copy])
def test_a_copy_of_a_history_has_the_same_content(copied: Any, mode: str) -> None:
    """Also what is still being evaluated, which it waits for, and what no longer is kept, which it counts."""
    arbiter_os = judged(keep=3)
    run_mixed(arbiter_os, mode)
    run_mixed(arbiter_os, mode)
    history = arbiter_os.history
    before = repr(history)
    other = copied(history)
    assert isinstance(other, History)
    assert type(other) is type(history)
    assert repr(other) == before
    for one in (history, other):
        assert one.count() == 2
        assert one.count(GENERATE) == one.count(node="mixed") == 1
    told, expected = other.to_dicts(), history.to_dicts()
    for pair in zip(told, expected, strict=True):
        for addressed in pair:  # parts of the state that can only be told by their address
            for state in ("input_state", "output_state"):
                addressed[state] = str(addressed[state]).split("0x")[0]
            addressed["evaluation_results"]["slow"].pop("metadata")
    assert told == expected
    assert [each["evaluation_errors"] for each in told] == [
        {"broken": "ZeroDivisionError: division by zero"}
    ] * 2
    first, last = (history.last(node="after"), other.last(GENERATE))
    assert first is not None
    assert last is not None
    assert last.instruction is GENERATE
    assert last.evaluation_results["slow"].metadata["n"] == 1
    assert last.timestamp < first.timestamp


def test_a_pickled_history_keeps_states_as_they_were_recorded_where_they_can_be_pickled() -> None:
    arbiter_os = judged()
    run_mixed(arbiter_os)
    output = pickled(arbiter_os.history).last(node="mixed").output_state
    assert output["messages"][0] == HumanMessage("hello", id="1")
    assert output["tags"] == ("a", "b")
    assert "lock" in output["messages"][1]["lock"]
    assert "lock" in output["lock"]
    assert "lambda" in output["maker"]


def test_a_deep_copy_of_a_history_keeps_all_parts_of_states() -> None:
    arbiter_os = judged()
    run_mixed(arbiter_os)
    item = arbiter_os.history.last(node="mixed")
    assert item is not None
    output = copy.deepcopy(item).output_state
    assert output["lock"] is item.output_state["lock"]  # nothing copies a lock
    assert output["messages"][0] == item.output_state["messages"][0]
    assert output["messages"][0] is not item.output_state["messages"][0]


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
@pytest.mark.parametrize("levels", [200, 2000])
def test_a_deeply_nested_state_keeps_no_history_from_being_copied(copied: Any, levels: int) -> None:
    """What pickle itself can follow is kept as it was."""
    arbiter_os = ArbiterOS()
    nested: Any = "core"
    for _ in range(levels):
        nested = [nested]
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": nested})
    found: Any = copied(arbiter_os.history).entries[0][0].input_state["log"]
    depth = 0
    while not isinstance(found, str):
        found, depth = found[0], depth + 1
    assert (depth, found) == (levels, "core") or (levels > 1000 and depth > 100)


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, copy.copy])
def test_a_copy_of_an_item_has_the_same_content(copied: Any) -> None:
    arbiter_os = judged()
    arbiter_os.govern(chain(Spy("a")), {"a": TOOL_CALL}).invoke({"log": ["in"]})
    item = arbiter_os.history.last()
    assert item is not None
    other = copied(item)
    assert type(other) is type(item)
    results = copied(item.evaluation_results)
    assert set(results) == {"slow"}
    assert results["slow"].score == 0.25
    assert results.error_of("broken") == "ZeroDivisionError: division by zero"
    for each in (item, other):
        each.evaluation_results["slow"]  # a lock in the metadata has an address
    assert {**other.to_dict(), "evaluation_results": 0} == {**item.to_dict(), "evaluation_results": 0}
    assert copied(list(arbiter_os.history.entries))[-1][-1].node == "a"


@pytest.mark.lengthy
def test_another_process_reads_a_pickled_history() -> None:
    arbiter_os = judged()
    arbiter_os.govern(chain(Spy("a"), Spy("b")), {"a": GENERATE}).invoke({"log": []})
    script = (
        "import pickle, sys; h = pickle.load(sys.stdin.buffer); print(h.count(), h.last('GENERATE').node)"
    )
    told = subprocess.run(
        python("-c", script),
        input=pickle.dumps(arbiter_os.history),
        capture_output=True,
        check=True,
    )
    assert told.stdout.split() == [b"2", b"a"]


def test_pickling_a_history_looks_at_each_part_of_the_states_once() -> None:
    """A part that many states share, such as the messages of a conversation, is read once."""

    def times(steps: int) -> int:
        arbiter_os = ArbiterOS()
        shared = [Kept() for _ in range(5)]

        def more(state: Mixed) -> Any:
            return {"messages": [*state.get("messages", ()), *shared]}

        graph: Any = StateGraph(Mixed)
        for number in range(steps):
            graph.add_node(str(number), more)
            graph.add_edge(str(number - 1) if number else START, str(number))
        arbiter_os.govern(graph.compile()).invoke({"messages": []})
        Kept.times = 0
        assert len(pickled(arbiter_os.history).entries) == steps
        return Kept.times

    assert times(20) == times(2)


@MODES
@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, copy.copy])
def test_a_copy_of_the_view_of_a_contract_has_the_same_content(copied: Any, mode: str) -> None:
    """The committed past, its counts and tallies, and the node run itself, of a subgraph too."""
    told: list[tuple[Any, Any]] = []

    def tell(history: Any) -> Any:
        # The entries of the own item's evaluations would be read, and so committed.
        rows = [(item.node, item.status, item.step, item.check_policy_results) for item in history.items()]
        own = history.entries[-1][-1]
        counts = [
            history.count(),
            history.count(GENERATE),
            history.count(node="b"),
            history.count(GENERATE, "a"),
        ]
        last = history.last(GENERATE)
        return rows, counts, own.input_state, last and last.id, history.tally("count", "x"), history.thread_id

    def look(history: Any, *_: Any) -> Any:
        other = copied(history)
        assert type(other) is type(history)
        told.append((tell(other), tell(history)))

    class Counting(Check):
        def observe(self, history: Any) -> dict[str, float]:
            return {"x": 2.0}

    arbiter_os = ArbiterOS(facts=3)
    arbiter_os.add_evaluator(Judge("seen", lambda h: look(h) or EvaluationResult(1.0, True)))
    arbiter_os.add_policy_checker(Counting("count", lambda h: look(h) or True))
    arbiter_os.add_policy_router(Route("look", look))
    app = arbiter_os.govern(
        chain(Spy("a"), Spy("b"), Spy("c"), Spy("d"), checkpointer=InMemorySaver()), {"a": GENERATE}
    )
    for _ in range(2):
        run(app, {"log": []}, thread("one"), mode=mode)
    assert arbiter_os.drain(60)
    assert len(told) == 24
    for one, two in told:
        assert one == two


def test_a_router_that_pickles_its_history_has_read_no_evaluation() -> None:
    """Results that a policy reads are committed with the node, and a copy is not a decision."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("good", lambda h: EvaluationResult(1.0, True)))
    results: list[Any] = []

    def route(history: History, output: Any) -> None:
        results.append(pickled(history).entries[-1][-1].evaluation_results["good"].score)
        results.append(list(history.entries[-1][-1].read_results))

    arbiter_os.add_policy_router(Route("route", route))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    assert results == [1.0, []]


# ArbiterOS and contracts


def test_a_copy_of_an_arbiter_os_is_itself_and_a_pickle_says_what_to_do() -> None:
    arbiter_os = ArbiterOS()
    assert copy.copy(arbiter_os) is copy.deepcopy(arbiter_os) is arbiter_os
    with pytest.raises(TypeError, match="Pickle its history"):
        pickle.dumps(arbiter_os)


@pytest.mark.parametrize(("section", "use"), ALL)
def test_a_built_in_contract_can_be_copied(section: Any, use: str, tmp_path: Path) -> None:
    file = tmp_path / "pack.yaml"
    file.write_text(packs_in(page(section, use).read_text(encoding="utf-8"))[0], encoding="utf-8")
    models = {"judge": MODEL, "openai:gpt-5-mini": MODEL}
    contracts = load_constitution(file, allow=["mycompany.", "pydantic."], models=models).contracts
    mine = [contract for contract in contracts if type(contract) is class_at(KINDS[section][use])]
    assert mine
    for contract in mine:
        for copied in (copy.deepcopy, copy.copy):
            other = copied(contract)
            assert (type(other), other.name) == (type(contract), contract.name)
            assert set(vars(other)) == set(vars(contract))
            other.ensure_valid()


def test_a_contract_with_a_lock_of_its_own_can_be_copied_and_pickled() -> None:
    contract = Locked("locked")
    contract.seen["a"] = 1
    for copied in (pickled, copy.deepcopy):
        other = copied(contract)
        assert other.lock is not contract.lock
        with other.lock:
            assert other.seen == {"a": 1}
    assert copy.copy(contract).lock is contract.lock


class Locked(Check):
    def __init__(self, name: str) -> None:
        super().__init__(name, agree)
        self.lock = threading.Lock()
        self.seen: dict[str, int] = {}


def agree(history: History) -> bool:
    return True
