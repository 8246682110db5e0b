"""Another constitution decides about recorded runs, without running anything."""

from __future__ import annotations

import contextvars
import sys
import time
from collections import Counter
from contextlib import suppress
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from types import FrameType
from typing import Any, NamedTuple, TypedDict, cast
from uuid import UUID

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from arbiter import (
    ArbiterOS,
    ArbiterWarning,
    ConfigurationError,
    Correction,
    CorrectionGate,
    History,
    HistoryItem,
    HistoryListener,
    PackError,
    PolicyChecker,
    PolicyViolationError,
    Verdict,
)
from arbiter.ledger import Ledger, ReplayReport
from arbiter.ledger._exporting import JsonLines, read_records, write_whole
from arbiter.ledger.replaying._replay import replay
from tests.ledger.ledger_support import between_hundredths, conf, sql
from tests.support import MODES, Chat, Spy, State, chain, run


class Point(NamedTuple):
    x: int
    y: int


HEAD = "version: 1\nname: rules\ndescription: Rules.\ncheckers:\n"


def pack(at: Path, name: str, *rules: str) -> Path:
    """A constitution of one file: checkers as YAML flow mappings."""
    file = at / f"{name}.yaml"
    file.write_text(HEAD + "".join(f"  - {{{rule}}}\n" for rule in rules) if rules else HEAD[:-11])
    return file


LIMIT = "name: limit, use: condition, target_nodes: pay, deny_when: input.amount > {}, on_deny: end"


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger(tmp_path / "l.db") as opened:
        yield opened


def payments(ledger: Ledger, rules: Path, amounts: dict[str, int]) -> None:
    """Record a payment in a thread of its own for each amount."""
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    app = arbiter_os.govern(chain(Spy("look"), Spy("pay"), checkpointer=InMemorySaver()))
    for thread, amount in amounts.items():
        app.invoke({"amount": amount}, conf(thread))


def shown(report: ReplayReport) -> list[tuple[Any, ...]]:
    return [(each.thread_id, each.node, each.outcome, str(each.shadow)) for each in report]


def test_replay_under_the_recorded_constitution_differs_in_nothing(tmp_path: Path, ledger: Ledger) -> None:
    rules = pack(tmp_path, "now", LIMIT.format(100))
    payments(ledger, rules, {"small": 10, "large": 200})
    report = ledger.replay(rules)
    assert list(report) == []
    assert report.summary.decisions == report.summary.same == 4
    assert report.summary.threads == 2
    assert report.idle == []


def test_a_function_that_each_request_calls_on_a_thread_is_replayed_with_the_past_of_the_thread(
    tmp_path: Path, ledger: Ledger
) -> None:
    once, most = (
        "name: once, use: at_most, times: 1",
        "name: most, use: at_most, per: thread, times: {}, on_deny: end",
    )
    now = pack(tmp_path, "now", once, most.format(3))
    arbiter_os = ArbiterOS.from_constitution(now, ledger=ledger)
    for _ in range(4):
        contextvars.Context().run(arbiter_os.execute, {}, Spy("node"), conf("t"))
    ledger.flush(10)
    same = ledger.replay(now)
    assert (list(same), dict(same.unknown), same.summary.same) == ([], {}, 4)
    stricter = ledger.replay(pack(tmp_path, "next", once, most.format(2)))
    assert [(each.outcome, each.step) for each in stricter] == [("stricter", 3)]


def test_the_cap_of_a_loop_of_denials_holds_in_a_replay(tmp_path: Path, ledger: Ledger) -> None:
    """Denials redirect twice, then one raises: the same rules decide the same, a higher cap goes on."""
    rule = (
        "name: limit, use: condition, deny_when: input.amount > 5, on_deny: redirect:pay, max_redirects: {}"
    )
    now = pack(tmp_path, "now", rule.format(2))
    with pytest.raises(PolicyViolationError, match="max_redirects=2 reached"):
        payments(ledger, now, {"large": 10})
    assert ledger.flush(10)
    same = ledger.replay(now)
    assert (list(same), same.summary.unknown, same.summary.decisions) == ([], 0, 3)
    higher = ledger.replay(pack(tmp_path, "next", rule.format(3)))
    assert [str(each.shadow) for each in higher] == ["deny → pay by limit"]


def test_a_stricter_and_a_looser_constitution(tmp_path: Path, ledger: Ledger) -> None:
    payments(ledger, pack(tmp_path, "now", LIMIT.format(100)), {"small": 10, "large": 200})
    stricter = ledger.replay(pack(tmp_path, "next", LIMIT.format(5)))
    assert shown(stricter) == [("small", "pay", "stricter", "deny → end by limit")]
    assert stricter[0].shadow.reason == "input.amount > 5"
    looser = ledger.replay(pack(tmp_path, "none", LIMIT.format(1000)))
    assert shown(looser) == [("large", "pay", "looser", "allow")]
    assert looser[0].enforced.policy == "limit"
    assert looser.summary.looser == 1


@MODES
def test_without_a_checkpointer_the_past_of_each_node_run_is_known(
    tmp_path: Path, ledger: Ledger, mode: str
) -> None:
    """A graph inside a node that is tried again counts anew, and so does the next call of the graph."""
    failures = iter([True, False, False])

    def fails_once(state: State) -> State:
        if next(failures):
            raise ConnectionError("try again")
        return {}

    inner = StateGraph(State)
    for name, body in {"one": Spy("one"), "two": Spy("two"), "also": Spy("also"), "last": fails_once}.items():
        inner.add_node(name, cast(Any, body))
    inner.add_edge(START, "one")
    inner.add_edge("one", "two")
    inner.add_edge("one", "also")
    inner.add_edge(["two", "also"], "last")
    outer = StateGraph(State)
    outer.add_node("sub", inner.compile(), retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    outer.add_node("pay", cast(Any, Spy("pay")))
    outer.add_edge(START, "sub")
    outer.add_edge("sub", "pay")
    rule = "name: few, use: at_most, times: {}, per: thread"
    arbiter_os = ArbiterOS.from_constitution(pack(tmp_path, "now", rule.format(50)), ledger=ledger)
    app = arbiter_os.govern(outer.compile())
    run(app, {"amount": 1}, conf("t"), mode=mode)
    run(app, {"amount": 1}, conf("t"), mode=mode)
    assert ledger.flush(60)
    with sql(tmp_path / "l.db") as query:
        stored = query("SELECT body FROM entries WHERE kind = 'item'")
    assert not any("checkpoint" in body for (body,) in stored)
    same = ledger.replay(pack(tmp_path, "same", rule.format(40)))
    assert (list(same), same.summary.unknown) == ([], 0)
    # A node run that was tried again is one decision.
    assert (same.summary.decisions, len(stored)) == (16, 17)


def test_a_rule_that_applies_to_nothing_is_named(tmp_path: Path, ledger: Ledger) -> None:
    payments(ledger, pack(tmp_path, "now", LIMIT.format(100)), {"small": 10})
    report = ledger.replay(pack(tmp_path, "next", LIMIT.format(100).replace("pay,", "pays,")))
    assert report.idle == ["limit"]


def alone(arbiter_os: ArbiterOS, one: Any, other: Any) -> None:
    """Two functions outside of a graph, one after the other."""
    for _ in range(2):
        one(1)
        other(1)


def in_an_entrypoint(arbiter_os: ArbiterOS, one: Any, other: Any) -> None:
    """Both as tasks of LangGraph's functional API, in two runs of one thread."""

    @entrypoint(checkpointer=InMemorySaver())
    def app(number: int) -> None:
        task(one)(number).result()
        task(other)(number).result()

    for _ in range(2):
        app.invoke(1, conf("t"))


def in_a_node(arbiter_os: ArbiterOS, one: Any, other: Any) -> None:
    """One calls the other, and a node of a graph calls it."""

    def calls(number: int) -> None:
        other(one(number))

    calling = arbiter_os.govern(calls, instruction="GENERATE")

    def node(state: State) -> None:
        calling(1)

    app = arbiter_os.govern(chain(node, Spy("last"), checkpointer=InMemorySaver()))
    for _ in range(2):
        app.invoke({}, conf("t"))


@pytest.mark.parametrize("calls", [alone, in_an_entrypoint, in_a_node])
def test_governed_functions_are_decided_about_as_nodes_are(
    tmp_path: Path, ledger: Ledger, calls: Any
) -> None:
    """Each past is known, and what other rules count begins with the first call of its run."""
    first = (
        "name: first, use: require_before, required: VERIFY, target_instructions: [TOOL_CALL], on_deny: audit"
    )
    rules = pack(tmp_path, "now", first, "name: few, use: at_most, times: 9, per: run, target_nodes: act")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)

    def look(number: int) -> int:
        return number

    def act(number: int) -> int:
        return number

    calls(
        arbiter_os,
        arbiter_os.govern(look, instruction="VERIFY"),
        arbiter_os.govern(act, instruction="TOOL_CALL"),
    )
    report = ledger.replay(rules)
    assert (len(report), report.summary.unknown) == (0, 0)
    never = "name: never, use: never_after, after: 'node:look', target_nodes: act"
    report = ledger.replay(pack(tmp_path, "next", never))
    assert [(each.node, str(each.shadow)) for each in report] == [("act", "deny by never")] * 2


@pytest.mark.parametrize("place", ["alone", "in a node"])
def test_graphs_that_a_governed_function_calls_are_recorded_as_calls_of_their_own(
    tmp_path: Path, ledger: Ledger, place: str
) -> None:
    """The history of the ledger is that of the process, and each graph is decided about with what ran before it."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: act")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    look, act = arbiter_os.govern(chain(Spy("look"))), arbiter_os.govern(chain(Spy("act"), Spy("end")))

    def calls(state: State) -> None:
        for graph in (look, act, act):
            graph.invoke({})

    calling = arbiter_os.govern(calls, instruction="GENERATE")

    def node(state: State) -> None:
        calling({})
        calling({})

    if place == "alone":
        calling({})
    else:
        arbiter_os.govern(chain(node)).invoke({}, conf("t"))
    ledger.flush(10)
    (thread,) = ledger.threads()
    recorded = ledger.history(thread["thread_id"] or thread["ref"])
    live = [[item.node for item in step] for step in arbiter_os.history.entries]
    assert [[item.node for item in step] for step in recorded.entries] == live
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})
    few = pack(tmp_path, "next", "name: few, use: at_most, times: 2, per: run, target_nodes: act")
    assert [each.node for each in ledger.replay(few)] == ["act"] * (2 if place == "in a node" else 0)


@pytest.mark.parametrize("place", ["node", "function", "entrypoint"])
@pytest.mark.parametrize("ends", ["with a caught error", "before a pause"])
def test_graphs_of_a_function_that_fails_or_is_called_again_are_decided_about_with_their_past(
    tmp_path: Path, ledger: Ledger, ends: str, place: str
) -> None:
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: act")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    act = arbiter_os.govern(chain(Spy("act")))

    def settle(state: Any) -> None:
        act.invoke({})
        if ends == "with a caught error":
            raise KeyError("caught")

    def finish(state: Any) -> None:
        act.invoke({})

    settled, finished = arbiter_os.govern(settle), arbiter_os.govern(finish)

    def node(state: Any) -> None:
        with suppress(KeyError):
            settled({})
        if ends == "before a pause":
            interrupt("go on?")
        finished({})

    saver = InMemorySaver()
    body: Any = arbiter_os.govern(node)

    def calls(state: Any) -> None:
        body({})

    app: Any
    if place == "entrypoint":
        app = cast(Any, entrypoint)(checkpointer=saver)(node)
    else:
        app = arbiter_os.govern(chain(node if place == "node" else calls, Spy("last"), checkpointer=saver))
    app.invoke({}, conf("t"))
    if ends == "before a pause":
        app.invoke(Command(resume="yes"), conf("t"))
    ledger.flush(10)
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})
    once = ledger.replay(
        pack(tmp_path, "next", "name: once, use: at_most, times: 1, per: run, target_nodes: act")
    )
    assert [(each.node, str(each.shadow)) for each in once] == [("act", "deny by once")]


@pytest.mark.parametrize("retries", [False, True])
def test_functions_that_an_entrypoint_and_its_tasks_call_are_decided_about_after_each_resume(
    tmp_path: Path, ledger: Ledger, retries: bool
) -> None:
    """Those of a task that is done count once, and so do the graphs in a function that is called again."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: pay")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    done, pay = arbiter_os.govern(chain(Spy("done"))), arbiter_os.govern(Spy("pay"))
    failures = [1] if retries else []

    def ask(state: State) -> Any:
        return {"log": [interrupt("go on?")]}

    asking = arbiter_os.govern(chain(ask))

    def settle(state: Any) -> None:
        done.invoke({})
        if failures:
            raise ConnectionError(failures.pop())
        if not retries:
            asking.invoke({})

    settled = arbiter_os.govern(settle)
    in_a_task = cast(Any, task)(lambda: pay({}), name="in_a_task")
    quick = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False)

    def body(state: Any) -> None:
        settled({})
        for _ in range(2):
            in_a_task().result()
            interrupt("go on?")
            pay({})

    app: Any = cast(Any, entrypoint)(checkpointer=InMemorySaver(), retry_policy=quick)(body)
    app.invoke({}, conf("t"))
    while app.get_state(conf("t")).next:
        app.invoke(Command(resume="yes"), conf("t"))
    ledger.flush(10)
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})
    few = pack(tmp_path, "next", "name: few, use: at_most, times: 3, per: run, target_nodes: pay")
    # The last one alone follows two of tasks and one of the entrypoint.
    assert [str(each.shadow) for each in ledger.replay(few)] == ["deny by few"]


def test_functions_that_a_resumed_entrypoint_calls_in_another_order_are_decided_about(
    tmp_path: Path, ledger: Ledger
) -> None:
    """As those that run beside one another begin in any order."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: pay")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    pay, done = arbiter_os.govern(chain(Spy("pay"))), arbiter_os.govern(chain(Spy("done")))

    def buy(state: Any) -> None:
        pay.invoke({})
        pay.invoke({})

    def settle(state: Any) -> None:
        done.invoke({})

    functions: list[Any] = [arbiter_os.govern(buy), arbiter_os.govern(settle)]

    def body(state: Any) -> None:
        for function in functions:
            function({})
        functions.reverse()
        interrupt("go on?")
        for function in functions:
            function({})

    app: Any = cast(Any, entrypoint)(checkpointer=InMemorySaver())(body)
    app.invoke({}, conf("t"))
    app.invoke(Command(resume="yes"), conf("t"))
    ledger.flush(10)
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})


def pay_while_done_is_saved(arbiter_os: ArbiterOS, done: Any, *others: Any) -> None:
    """Run tasks side by side: a governed `done`, a governed `pay` that begins between the end of `done` and its
    saving, and others.
    """
    has_ended, has_begun = Event(), Event()

    class Slow(HistoryListener):
        def ended(self, item: HistoryItem) -> None:
            if item.node == "done":
                has_ended.set()
                assert has_begun.wait(5)

    arbiter_os.add_listener(Slow())

    def pay(state: Any) -> None:
        has_begun.set()

    governed_pay = arbiter_os.govern(pay)

    def in_time(state: Any) -> None:
        assert has_ended.wait(5)
        governed_pay({})

    # A `Spy` has no name of its own.
    functions = (*others, arbiter_os.govern(done), in_time)
    tasks = [cast(Any, task)(each, name=f"task {at}") for at, each in enumerate(functions)]

    def body(state: Any) -> None:
        for future in [made({}) for made in tasks]:
            future.result()

    app: Any = cast(Any, entrypoint)()(body)
    app.invoke({}, conf("t"))


def test_a_function_that_began_before_one_of_another_task_was_saved_is_decided_about(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The recorded end of a function is a moment before it counts for others."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: pay")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    pay_while_done_is_saved(arbiter_os, Spy("done"))
    ledger.flush(10)
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})


def test_a_function_that_began_after_an_end_from_which_no_other_began_is_decided_about(
    tmp_path: Path, ledger: Ledger
) -> None:
    """One function has ended, and that of another task is being saved."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: pay")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    runs, is_saved = Event(), Event()

    def done(state: Any) -> None:
        runs.set()
        assert is_saved.wait(5)

    earlier = arbiter_os.govern(Spy("earlier"))

    def first(state: Any) -> None:
        assert runs.wait(5)
        earlier({})
        is_saved.set()

    pay_while_done_is_saved(arbiter_os, done, first)
    ledger.flush(10)
    report = ledger.replay(rules)
    assert (len(report), dict(report.unknown)) == (0, {})


@pytest.mark.parametrize("place", ["in a function", "in Sends"])
def test_a_graph_that_keeps_its_state_is_recorded_with_its_caller(
    tmp_path: Path, ledger: Ledger, place: str
) -> None:
    """Its namespace does not name the task around it."""
    rules = pack(tmp_path, "now", "name: many, use: at_most, times: 9, per: run, target_nodes: act")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    kept = arbiter_os.govern(chain(Spy("act"), checkpointer=True))

    def calls(state: State) -> None:
        kept.invoke({})

    calling = arbiter_os.govern(calls)

    def node(state: State) -> None:
        if place == "in a function":
            calling({})
        kept.invoke({})

    outer: Any = StateGraph(State).add_node("node", node)

    def begin(state: State) -> list[Send]:
        return [Send("node", {})] * (3 if place == "in Sends" else 1)

    outer.add_conditional_edges(START, begin)
    arbiter_os.govern(outer.compile(checkpointer=InMemorySaver())).invoke({}, conf("t"))
    ledger.flush(10)
    live = [[item.node for item in step] for step in arbiter_os.history.entries]
    assert [[item.node for item in step] for step in ledger.history("t").entries] == live
    report = ledger.replay(rules)
    assert (len(report), "the node run around it is not recorded" in report.unknown) == (0, False)


class Late(PolicyChecker):
    """Answers as code that waits does, and fails where there is no amount."""

    async def check_before(self, history: History) -> bool:
        return bool(history.item.input_state["amount"] < 100)


def test_a_checker_that_waits_or_raises_decides_as_it_did(tmp_path: Path, ledger: Ledger) -> None:
    rules = pack(tmp_path, "now", f"name: late, use: {__name__}.Late, on_deny: end")
    app = ArbiterOS.from_constitution(rules, ledger=ledger, allow=[__name__]).govern(chain(Spy("pay")))
    for given in ({"amount": 5}, {"amount": 500}, {}):
        run(app, given, mode="async")
    report = ledger.replay(rules, allow=[__name__])
    assert (report.summary.same, report.summary.decisions) == (3, 3)
    report = ledger.replay(pack(tmp_path, "next"))
    assert [each.outcome for each in report] == ["looser", "looser"]


def test_a_range_without_node_runs_is_no_success(tmp_path: Path, ledger: Ledger) -> None:
    rules = pack(tmp_path, "now", LIMIT.format(100))
    with pytest.raises(ConfigurationError, match="no node runs are recorded"):
        ledger.replay(rules)
    payments(ledger, rules, {"small": 10})
    with pytest.raises(ConfigurationError, match=r"no node runs between 2999-01-01 00:00:00.* and now"):
        ledger.replay(rules, since="2999-01-01")
    with pytest.raises(ConfigurationError, match=r"has no thread 'smal'. Did you mean 'small'"):
        ledger.replay(rules, threads=["smal"])
    with pytest.raises(ConfigurationError, match=r"threads: expected a list of thread ids, got \[\]"):
        ledger.replay(rules, threads=[])
    with pytest.raises(PackError, match="limit"):
        ledger.replay(pack(tmp_path, "bad", "name: limit, use: nothing"))


def test_a_human_s_answer_leaves_the_decision_a_question(tmp_path: Path, ledger: Ledger) -> None:
    """Approved, edited and rejected: the recorded decision is that a human was asked."""
    asks = "name: ask, use: condition, target_nodes: pay, ask_when: input.amount > 100"
    rules = pack(tmp_path, "now", asks)
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    app = arbiter_os.govern(chain(Spy("look"), Spy("pay"), checkpointer=InMemorySaver()))
    for name, answer in {
        "approved": "approve",
        "edited": {"type": "edit", "input": {"amount": 5}},
        "rejected": {"type": "reject", "message": "no"},
    }.items():
        app.invoke({"amount": 200}, conf(name))
        if name == "rejected":
            with pytest.raises(PolicyViolationError):
                app.invoke(Command(resume=answer), conf(name))
        else:
            app.invoke(Command(resume=answer), conf(name))
    assert shown(ledger.replay(rules)) == []
    denies = ledger.replay(pack(tmp_path, "next", asks.replace("ask_when", "deny_when")))
    assert [(each.thread_id, str(each.enforced), each.outcome) for each in denies] == [
        (name, "ask by ask", "stricter") for name in ("approved", "edited", "rejected")
    ]


def test_what_follows_a_difference_is_marked_and_the_counts_agree(tmp_path: Path, ledger: Ledger) -> None:
    rules = pack(tmp_path, "now", LIMIT.format(100))
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    app = arbiter_os.govern(
        chain(Spy("one"), Spy("pay"), Spy("three"), Spy("four"), checkpointer=InMemorySaver())
    )
    app.invoke({"amount": 10}, conf("t"))
    every = "name: every, use: condition, deny_when: input.amount > 5 && node != 'one'"
    report = ledger.replay(pack(tmp_path, "next", every))
    assert [(each.node, each.follows) for each in report] == [("pay", False), ("three", True), ("four", True)]
    assert report.summary.follow == 2
    data = report.to_dict()
    assert [each["follows"] for each in data["differences"]] == [False, True, True]
    assert data["summary"]["stricter"] == len(report.to_dicts()) == 3
    assert data["changes"] == [
        {"outcome": "stricter", "recorded": "allow", "next": "deny", "target": "", "count": 3}
    ]


# Unknown ------------------------------------------------------------------------------------------


class Keyed(TypedDict):
    keyed: dict[Any, Any]
    point: Point


def is_near(history: History) -> bool:
    state: Any = history.item.input_state
    return bool(state["keyed"][1] == "a" and state["keyed"][1, 2] is None and state["point"].x == 1)


def test_keys_that_are_no_texts_and_named_tuples_are_what_a_rule_saw(tmp_path: Path, ledger: Ledger) -> None:
    near = f"name: near, use: {__name__}.is_near, target_nodes: pay"
    keyed = "name: keyed, use: condition, target_nodes: pay, deny_when: \"input.keyed[1] != 'a'\""
    rules = pack(tmp_path, "rules", near, keyed)
    app = ArbiterOS.from_constitution(rules, allow=["tests."], ledger=ledger).govern(
        chain(Spy("pay"), state=Keyed)
    )
    app.invoke({"keyed": {1: "a", "1": "b", (1, 2): None}, "point": Point(1, 2)})
    report = ledger.replay(rules, allow=["tests."])
    assert (report.summary.same, report.summary.decisions, dict(report.unknown)) == (1, 1, {})


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Painted(TypedDict):
    colour: Any
    size: Any
    others: list[Any]


def is_red(history: History) -> bool:
    state: Any = history.item.input_state
    return state["colour"] is Colour.RED and state["size"].name == "SMALL" and Colour.BLUE in state["others"]


def test_a_member_of_an_enum_is_what_a_rule_saw(tmp_path: Path, ledger: Ledger) -> None:
    """A condition reads its value, and a checker in Python the member."""
    rules = pack(
        tmp_path,
        "now",
        f"name: red, use: {__name__}.is_red, target_nodes: pay",
        "name: value, use: condition, deny_when: input.colour != 'red' || input.size != 1, target_nodes: pay",
    )
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger, allow=["tests."])
    app = arbiter_os.govern(chain(Spy("pay"), state=Painted))
    app.invoke({"colour": Colour.RED, "size": Size.SMALL, "others": [Colour.BLUE]})
    report = ledger.replay(rules, allow=["tests."])
    assert (report.summary.decisions, report.summary.same) == (1, 1)
    (item,) = ledger.items()
    assert dict(item.input_state) == {"colour": "red", "size": 1, "others": ["blue"]}


def test_a_call_that_the_model_wrote_wrongly_is_what_a_rule_saw(tmp_path: Path, ledger: Ledger) -> None:
    """Its arguments are no JSON; the tool is forbidden all the same."""
    call: Any = {"name": "rm", "args": "{", "id": "1", "error": "no JSON", "type": "invalid_tool_call"}
    said = AIMessage("", invalid_tool_calls=[call], id="said")
    rules = pack(tmp_path, "rules", "name: tools, use: tools, allow: [look], on_deny: end")
    app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(
        chain(Spy("act"), checkpointer=InMemorySaver()), instructions={"act": "TOOL_CALL"}
    )
    app.invoke({"log": [said]}, conf("t"))
    assert ledger.flush(20)
    (item,) = ledger.items()
    assert (item.status, list(item.input_state["log"])) == ("denied", [said])
    assert shown(ledger.replay(rules)) == []


@pytest.mark.parametrize(
    ("text", "is_known"), [("half \ud83d", False), ('{"json": "\\ud83d\\ude00"}', True), ("é 😀", True)]
)
def test_half_of_a_surrogate_pair_is_not_taken_for_its_escape(
    tmp_path: Path, ledger: Ledger, text: str, is_known: bool
) -> None:
    """A model may write one: a condition cannot read it."""
    said = "name: said, use: condition, deny_when: \"input.log[0] == 'no'\", on_deny: end"
    rules = pack(tmp_path, "now", said)
    app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(chain(Spy("a")))
    app.invoke({"log": [text]})
    report = ledger.replay(rules)
    assert (len(report), report.summary.unknown) == (0, 0 if is_known else 1)


class ReadsOne(PolicyChecker):
    """Reads a part of the first message."""

    def check_before(self, history: History) -> bool:
        first: Any = history.item.input_state["messages"][0]
        match self.name:
            case "artifact":
                return not first.artifact["ok"]
            case "reason":
                return bool(first.response_metadata.get("finish_reason") != "stop")
            case "model":
                return first.response_metadata.get("model_provider") is None
            case _:
                return bool(first.text)


@pytest.mark.parametrize(
    ("read", "unknown"),
    [
        ("artifact", "input.messages was of a type that is not kept"),
        ("reason", "input.messages.finish_reason was cut"),
        ("model", None),
        ("text", None),
    ],
)
def test_what_a_message_had_and_the_ledger_has_not_is_unknown(
    tmp_path: Path, ledger: Ledger, read: str, unknown: str | None
) -> None:
    """The artifact of a tool, and all that a provider says about its answer but the names of the model."""
    messages = {
        "artifact": ToolMessage("ok", tool_call_id="1", artifact={"ok": True}),
        "other": AIMessage("ok", response_metadata={"finish_reason": "stop", "model_name": "m"}),
    }
    rules = pack(tmp_path, "now", f"name: {read}, use: {__name__}.ReadsOne, on_deny: end")
    app = ArbiterOS.from_constitution(rules, ledger=ledger, allow=[__name__]).govern(
        chain(Spy("a", messages=[]), state=Chat)
    )
    app.invoke({"messages": [messages.get(read, messages["other"])]})
    report = ledger.replay(rules, allow=[__name__])
    assert (len(report), dict(report.unknown)) == (0, {unknown: 1} if unknown else {})


@pytest.mark.parametrize("more", [{}, {"done": True}])
def test_a_rule_reads_the_model_under_the_name_that_its_provider_has_for_it(
    tmp_path: Path, ledger: Ledger, more: dict[str, Any]
) -> None:
    when = 'input.messages[0].response_metadata.model == "m"'
    rules = pack(tmp_path, "now", f"name: rule, use: condition, deny_when: '{when}', on_deny: end")
    app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(chain(Spy("a"), state=Chat))
    app.invoke({"messages": [AIMessage("ok", response_metadata={"model": "m", **more})]})
    report = ledger.replay(rules)
    assert (list(report), report.summary.same) == ([], 1)


def test_a_read_of_what_was_cut_is_unknown_and_named(tmp_path: Path, ledger: Ledger) -> None:
    """The newest message is there; a message in the middle of a long conversation is not."""

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage("ok")]}

    app = ArbiterOS(ledger=ledger).govern(chain(reply, state=Chat, checkpointer=InMemorySaver()))
    app.invoke({"messages": [HumanMessage(f"m{number}") for number in range(500)]}, conf("t"))

    def decided(when: str) -> tuple[int, dict[str, int], list[str]]:
        rule = f"name: rule, use: condition, target_nodes: reply, deny_when: '{when}'"
        report = ledger.replay(pack(tmp_path, "next", rule))
        return report.summary.unknown, dict(report.unknown), [str(each.shadow) for each in report]

    assert decided("size(input.messages) > 400") == (0, {}, ["deny by rule"])
    assert decided('input.messages[size(input.messages) - 1].content == "m499"') == (0, {}, ["deny by rule"])
    assert decided('input.messages[200].content == "m200"') == (1, {"input.messages was cut": 1}, [])
    assert decided('input.messages.exists(m, m.content == "no")') == (1, {"input.messages was cut": 1}, [])


class Catches(PolicyChecker):
    """Reads the field `note` and allows, whatever happens."""

    def check_before(self, history: History) -> Verdict:
        try:
            note = history.item.input_state["note"]
            return Verdict.deny("short") if isinstance(note, str) and len(note) < 3 else Verdict.allow()
        except Exception:
            return Verdict.allow()


CATCHES = f"name: catches, use: {__name__}.Catches, target_nodes: pay"


@pytest.mark.parametrize(
    ("note", "options", "became"),
    [
        ("x" * 20_000, {}, "cut"),
        ("sk-" + "ant-api03-" + "a1B2" * 20, {}, "redacted"),
        ("plain", {"states": "digest"}, "kept as a digest"),
        ("plain", {"states": "none"}, "not kept"),
        ("plain", {"erase": True}, "erased"),
    ],
)
def test_a_rule_that_reads_missing_contents_has_no_decision(
    tmp_path: Path, note: str, options: dict[str, Any], became: str
) -> None:
    """It caught the exception and allowed; a denial by another rule makes the decision known."""
    erase = options.pop("erase", False)
    with Ledger(tmp_path / "l.db", **options) as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("pay"), state=Note, checkpointer=InMemorySaver()))
        app.invoke({"note": note, "amount": 7}, conf("t"))
        if erase:
            ledger.erase(thread_id="t", reason="request")
        report = ledger.replay(pack(tmp_path, "reads", CATCHES), allow=["tests."])
        assert dict(report.unknown) == {f"input.note was {became}": 1}
        assert report.summary.same == 0
        for where, needs in (("input.note", 'input.note == ""'), ("config.user_id", 'config.user_id == "x"')):
            lacks = where == "input.note" or became in ("not kept", "erased")
            read = ledger.replay(pack(tmp_path, "asks", f"name: asks, use: condition, deny_when: '{needs}'"))
            assert dict(read.unknown) == ({f"{where} was {became}": 1} if lacks else {})
        nothing = ledger.replay(pack(tmp_path, "node", 'name: asks, use: condition, deny_when: node == "x"'))
        assert nothing.summary.same == 1
        denies = "name: stop, use: at_most, times: 0, target_nodes: pay"
        known = ledger.replay(pack(tmp_path, "denies", CATCHES, denies), allow=["tests."])
        assert dict(known.unknown) == {}
        assert [str(each.shadow) for each in known] == ["deny by stop"]
        elsewhere = pack(tmp_path, "leads", CATCHES + ", on_deny: end", denies)
        assert ledger.replay(elsewhere, allow=["tests."]).summary.unknown == 1


@pytest.mark.parametrize("states", ["full", "bounded", "digest"])
@pytest.mark.parametrize(
    "needs",
    [
        'input.note == "plain"',
        'input.note != "plain"',
        "size(input.note) > 9",
        "has(input.note.x) && input.note.x > 9",
    ],
)
def test_no_rule_takes_a_digest_that_the_history_kept_for_the_value(
    tmp_path: Path, states: Any, needs: str
) -> None:
    """With `snapshot="digest"` the record has digests, whatever the ledger would keep."""
    with Ledger(tmp_path / "l.db", states=states) as ledger:
        app = ArbiterOS(ledger=ledger, snapshot="digest").govern(chain(Spy("pay"), state=Note))
        app.invoke({"note": "plain", "amount": 7})
        report = ledger.replay(pack(tmp_path, "asks", f"name: asks, use: condition, deny_when: '{needs}'"))
        assert dict(report.unknown) == {"input.note was kept as a digest": 1}
        assert (report.summary.same, list(report)) == (0, [])


@pytest.mark.parametrize(
    "needs", ["has(input.note.part.x)", "has(input.note.part.x) && input.note.part.x > 9"]
)
def test_no_rule_takes_a_part_that_was_not_kept_for_one_without_fields(
    tmp_path: Path, ledger: Ledger, needs: str
) -> None:
    rules = pack(tmp_path, "asks", f"name: asks, use: condition, deny_when: '{needs}', on_deny: end")
    app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(chain(Spy("pay"), state=Note))
    app.invoke({"note": {"part": object()}})
    report = ledger.replay(rules)
    assert dict(report.unknown) == {"input.note.part was of a type that is not kept": 1}
    assert (report.summary.same, list(report)) == (0, [])


class Note(TypedDict, total=False):
    note: str
    amount: int
    log: list[str]


def test_a_count_that_needed_missing_contents_is_unknown_later(tmp_path: Path, ledger: Ledger) -> None:
    """A rule counts passes by an output that was cut; the node that needs a pass is unknown."""

    def look(state: Any) -> Any:
        return {"note": "x" * 20_000}

    app = ArbiterOS(ledger=ledger).govern(
        chain(look, Spy("pay"), Spy("other"), state=Note, checkpointer=InMemorySaver())
    )
    app.invoke({"amount": 1}, conf("t"))
    when = "passed_when: \"output.note == 'ok'\""
    rule = f'name: seen, use: require_before, required: "node:look", {when}, target_nodes: pay'
    report = ledger.replay(pack(tmp_path, "next", rule))
    assert dict(report.unknown) == {"what 'seen' counted before is not known": 1}
    assert report.summary.same == 2


def test_a_past_that_is_not_complete_is_unknown(tmp_path: Path, ledger: Ledger) -> None:
    rules = pack(tmp_path, "now", LIMIT.format(100))
    payments(ledger, rules, {"t": 10})
    ledger.flush(60)
    with sql(tmp_path / "l.db") as query:
        (entry,) = query("SELECT id FROM entries WHERE node = 'look'")[0]
        query("DELETE FROM contents WHERE entry = ?", entry)
        query("DELETE FROM entries WHERE id = ?", entry)
    assert dict(ledger.replay(rules).unknown) == {"its past is not recorded completely": 1}


@MODES
@pytest.mark.parametrize("pauses", [False, True])
def test_node_runs_in_a_subgraph_that_keeps_its_state_are_decided(
    tmp_path: Path, ledger: Ledger, mode: str, pauses: bool
) -> None:
    """Its namespace has no ids of tasks; nor has that of a graph in it."""

    def asks(state: Any) -> Any:
        return {"amount": interrupt("?") if pauses else state["amount"]}

    rules = pack(tmp_path, "now", LIMIT.format(100))
    deep = chain(asks, Spy("pay"), checkpointer=True)
    inner: Any = StateGraph(State).add_node("deep", deep).add_edge(START, "deep")
    outer: Any = (
        StateGraph(State).add_node("sub", inner.compile(checkpointer=True)).add_node("last", Spy("last"))
    )
    outer.add_edge(START, "sub").add_edge("sub", "last")
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    for amount in (10, 20):
        run(app, {"amount": amount}, conf("t"), mode=mode)
        if pauses:
            run(app, Command(resume=amount), conf("t"), mode=mode)
    again = ledger.replay(rules)
    assert (list(again), dict(again.unknown)) == ([], {})
    found = ledger.replay(pack(tmp_path, "next", LIMIT.format(15)))
    assert ([each.node for each in found], dict(found.unknown)) == (["pay"], {})


@MODES
def test_a_graph_that_keeps_its_state_is_called_several_times_in_one_node(
    tmp_path: Path, ledger: Ledger, mode: str
) -> None:
    """The namespace of each call but the first has a number."""
    rules = pack(tmp_path, "now", LIMIT.format(100))
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger)
    inner: Any = arbiter_os.govern(chain(Spy("look"), Spy("pay"), checkpointer=True))

    def calls(state: Any) -> None:
        for more in range(3):
            inner.invoke({"amount": state["amount"] + more})

    async def acalls(state: Any) -> None:
        for more in range(3):
            await inner.ainvoke({"amount": state["amount"] + more})

    outer: Any = StateGraph(State).add_node("calls", calls if mode == "sync" else acalls)
    outer.add_node("last", Spy("last")).add_edge(START, "calls").add_edge("calls", "last")
    app = arbiter_os.govern(outer.compile(checkpointer=InMemorySaver()))
    for amount in (10, 20):
        run(app, {"amount": amount}, conf("t"), mode=mode)
    again = ledger.replay(rules)
    assert (list(again), dict(again.unknown), again.summary.same) == ([], {}, 16)
    found = ledger.replay(pack(tmp_path, "next", LIMIT.format(21)))
    assert ([each.node for each in found], dict(found.unknown)) == (["pay"], {})


@MODES
def test_node_runs_in_parallel_calls_of_a_graph_that_keeps_its_state_are_not_guessed(
    tmp_path: Path, ledger: Ledger, mode: str
) -> None:
    """They write into one state."""
    rules = pack(tmp_path, "now", LIMIT.format(100))
    both = Barrier(2)

    def look(state: Any) -> dict[str, Any]:
        both.wait(20)
        return {"log": ["look"]}

    def each(state: Any) -> list[Send]:
        return [Send("sub", {"amount": 10}), Send("sub", {"amount": 20})]

    outer: Any = StateGraph(State).add_node("sub", chain(look, Spy("pay"), checkpointer=True))
    outer.add_node("last", Spy("last"))
    outer.add_conditional_edges(START, each, ["sub"]).add_edge("sub", "last")
    app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(
        outer.compile(checkpointer=InMemorySaver())
    )
    with suppress(InvalidUpdateError):
        run(app, {"amount": 10}, conf("t"), mode=mode)
    again = ledger.replay(rules)
    assert list(again) == []
    # A past may lack what the other has committed meanwhile.
    assert set(again.unknown) <= {"its past is not recorded completely"}


def test_a_past_is_found_again_whose_last_start_is_between_two_hundredths_of_a_second(
    tmp_path: Path, ledger: Ledger
) -> None:
    between_hundredths(ledger)
    report = ledger.replay(pack(tmp_path, "rules", LIMIT.format(100)))
    assert (report.summary.decisions, dict(report.unknown)) == (9, {})


@pytest.mark.lengthy
def test_a_past_of_other_processes_is_found_without_a_look_at_the_whole_thread(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Twice as many turns, each of another process, take twice as many calls."""

    def calls_of(turns: int) -> int:
        saver, calls = InMemorySaver(), Counter[str]()
        for _ in range(turns):
            app = ArbiterOS(ledger=ledger).govern(chain(Spy("a"), checkpointer=saver))
            app.invoke({}, conf(f"{turns} turns"))

        def count(frame: FrameType, event: str, arg: object) -> None:
            calls[frame.f_code.co_filename] += 1

        sys.setprofile(count)
        try:
            report = ledger.replay(rules, threads=[f"{turns} turns"])
        finally:
            sys.setprofile(None)
        assert dict(report.unknown) == {}
        return sum(count for file, count in calls.items() if file.endswith("_pasts.py"))

    rules = pack(tmp_path, "rules", LIMIT.format(100))
    assert calls_of(80) < 2.3 * calls_of(40)


def test_a_thread_that_counts_is_named_as_everywhere(tmp_path: Path) -> None:
    """By the number or UUID that LangGraph was given, and one without an id by its ref; a time hides none of them.

    The report names them by their refs, too, and is the same from a file.
    """
    rules, now = pack(tmp_path, "now", LIMIT.format(5)), time.time()
    with Ledger(tmp_path / "l.db", clock=lambda: now) as ledger:
        arbiter_os = ArbiterOS(ledger=ledger, clock=lambda: now)
        app = arbiter_os.govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
        for name in (7, UUID(int=5), "a\ud800b", "gone"):
            app.invoke({"amount": 10}, {"configurable": {"thread_id": name}})
        arbiter_os.govern(chain(Spy("pay"))).invoke({"amount": 10})
        ledger.flush(20)
        refs = {each["thread_id"]: each["ref"] for each in ledger.threads()}
        ledger.erase(thread_id="gone", reason="request 7")
        write_whole(tmp_path / "runs.jsonl", JsonLines(ledger.records()).all())
        file = read_records(tmp_path / "runs.jsonl")
        named: list[Any] = [7, UUID(int=5), "a\ud800b", refs[None], refs[None][:9]]
        for name in named:
            report = ledger.replay(rules, threads=[name])
            assert [each.ref for each in report] == [refs.get(str(name), report[0].ref)]
            assert replay(file, rules, threads=[name]).to_json() == report.to_json()
        assert len(ledger.replay(rules, threads=named)) == 4
        assert ledger.replay(rules, threads=[refs["gone"]]).unknown == {"input.amount was erased": 1}
        for ask in (ledger.replay, partial(replay, file)):
            with pytest.raises(ConfigurationError, match="has no thread 'gone'"):
                ask(rules, threads=["7", "gone"])
        now += 86_400
        with pytest.raises(ConfigurationError, match="no node runs of 7 between"):
            ledger.replay(rules, threads=named[:1], since="1h")


def test_the_beginning_of_several_refs_names_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a ledger and of a file; one more digit that tells them apart names one of them."""
    rules = pack(tmp_path, "now", LIMIT.format(5))
    refs = [f"aaaaaaaa-{number}000-4000-8000-000000000000" for number in (1, 2)]
    monkeypatch.setattr("arbiter.ledger._store.uuid4", iter(map(UUID, refs)).__next__)
    with Ledger(tmp_path / "l.db") as ledger:
        app = ArbiterOS(ledger=ledger).govern(chain(Spy("pay"), checkpointer=InMemorySaver()))
        for name in ("a", "b"):
            app.invoke({"amount": 10}, {"configurable": {"thread_id": name}})
        ledger.flush(20)
        write_whole(tmp_path / "runs.jsonl", JsonLines(ledger.records()).all())
        file = read_records(tmp_path / "runs.jsonl")
        for ask, place in ((ledger.replay, "ledger"), (partial(replay, file), "file")):
            said = (
                f"'{refs[0][:9]}' is the beginning of the refs of 2 threads of this {place}. Give more digits"
            )
            with pytest.raises(ConfigurationError, match=said):
                ask(rules, threads=[refs[0][:9]])
            for ref in refs:
                assert [each.ref for each in ask(rules, threads=[ref[:10]])] == [ref]


@pytest.mark.lengthy
def test_hundreds_of_named_threads_may_be_older_than_the_time(tmp_path: Path) -> None:
    rules, now = pack(tmp_path, "now", LIMIT.format(5)), time.time()
    with Ledger(tmp_path / "l.db", clock=lambda: now) as ledger:
        app = ArbiterOS(ledger=ledger, clock=lambda: now).govern(
            chain(Spy("pay"), checkpointer=InMemorySaver())
        )
        names = [f"t{number}" for number in range(501)]
        for name in names:
            if name == names[-1]:
                ledger.flush(20)
                now += 86_400
            app.invoke({"amount": 10}, conf(name))
        report = ledger.replay(rules, threads=names, since="1h")
        assert [each.thread_id for each in report] == ["t500"]


def test_each_thread_that_counts_is_looked_up_once(tmp_path: Path, ledger: Ledger) -> None:
    """Not compared with all others: there may be thousands of both."""

    class Name(str):
        compared = 0
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    rules = pack(tmp_path, "now", LIMIT.format(100))
    payments(ledger, rules, {f"t{number}": 10 for number in range(20)})
    assert ledger.replay(rules, threads=[Name(f"t{number}") for number in range(20)]).summary.threads == 20
    assert Name.compared <= 3 * 20


# Rules that need something else -------------------------------------------------------------------


JUDGE = """
evaluators:
  - {name: good, use: judge, rubric: "Is it good?", model: judge, at_least: 0.5, target_nodes: pay}
routers:
  - {name: again, use: evaluation_failed, evaluator: good, target: look, target_nodes: pay, max_redirects: 1}
"""


@pytest.mark.parametrize("node_runs", [1, 2, 6])
def test_what_was_recovered_counts_in_the_past_of_later_node_runs(
    tmp_path: Path, ledger: Ledger, node_runs: int
) -> None:
    """A process whose queue was lost ran the first two turns; what it decided about is unknown."""
    saver = InMemorySaver()
    nodes = [Spy(f"n{number}") for number in range(node_runs - 1)]
    graph = chain(*nodes, Spy("pay"), checkpointer=saver)
    lost = ArbiterOS(listeners=[HistoryListener()]).govern(graph)
    later = ArbiterOS(ledger=ledger, clock=lambda: time.time() + 10).govern(graph)
    for number in range(5):
        (lost if number < 2 else later).invoke({"amount": number}, conf("t"))
    assert ledger.flush(20)
    rules = pack(tmp_path, "rules", "name: three, use: at_most, times: 3, per: thread, target_nodes: pay")
    report = ledger.replay(rules)
    assert dict(report.unknown) == {"it was recovered without its contents": 2 * node_runs}
    assert report.summary.decisions == 5 * node_runs
    assert shown(report) == [("t", "pay", "stricter", "deny by three")] * 2


def test_a_judge_is_taken_from_the_ledger_asked_or_unknown(tmp_path: Path, ledger: Ledger) -> None:
    rules = tmp_path / "now.yaml"
    rules.write_text(HEAD[:-11] + JUDGE)

    def model(grade: int) -> Any:
        answer = f'{{"reasoning": "so", "score": {grade}}}'
        return FakeListChatModel(responses=[answer] * 20)

    arbiter_os = ArbiterOS.from_constitution(rules, models={"judge": model(9)}, ledger=ledger)
    app = arbiter_os.govern(chain(Spy("look"), Spy("pay"), checkpointer=InMemorySaver()))
    app.invoke({"amount": 1}, conf("t"))
    assert ledger.replay(rules).summary.unknown == 0
    other = tmp_path / "other.yaml"
    other.write_text(rules.read_text().replace("Is it good?", "Is it bad?"))
    assert dict(ledger.replay(other).unknown) == {"evaluator 'good' needs a model": 1}
    (difference,) = ledger.replay(other, models={"judge": model(1)})
    assert str(difference.shadow) == "redirect → look by again"
    assert difference.outcome == "elsewhere"
    with pytest.warns(
        ArbiterWarning, match=r"models has 'jugde', and no rule names it\. Rules name: 'judge'\."
    ):
        ledger.replay(other, models={"jugde": model(1)})


def test_a_judge_whose_model_fails_is_unknown_unless_it_failed_in_the_recorded_run(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the model during the replay does not count as "the same"."""

    class Down(FakeListChatModel):
        def _call(self, *args: Any, **kwargs: Any) -> str:
            raise RuntimeError("the model is down")

    rules = tmp_path / "now.yaml"
    rules.write_text(HEAD[:-11] + JUDGE)
    down = {"judge": Down(responses=[])}
    app = ArbiterOS.from_constitution(rules, models=down, ledger=ledger).govern(
        chain(Spy("look"), Spy("pay"), checkpointer=InMemorySaver())
    )
    app.invoke({"amount": 1}, conf("t"))
    assert ledger.replay(rules).summary.unknown == 0
    other = tmp_path / "other.yaml"
    other.write_text(rules.read_text().replace("Is it good?", "Is it bad?"))
    assert dict(ledger.replay(other, models=down).unknown) == {"evaluator 'good' failed": 1}
    caplog.clear()
    assert dict(ledger.replay(other).unknown) == {"evaluator 'good' needs a model": 1}
    assert not caplog.records  # the report says it


@pytest.mark.lengthy
def test_outputs_that_a_restarted_application_had_forgotten_make_no_difference(
    tmp_path: Path, ledger: Ledger
) -> None:
    rules = tmp_path / "now.yaml"
    rules.write_text(
        HEAD[:-11]
        + """
evaluators: [{name: alike, use: text_similarity, key: messages, at_least: 0.9, compare: 1, ngram: 1, target_nodes: say}]
routers: [{name: again, use: evaluation_failed, evaluator: alike, target: say, max_redirects: 1}]
"""
    )
    texts = iter(["one", "two"])

    def say(_: Any) -> Any:
        return {"messages": [AIMessage(next(texts))]}

    graph = chain(say, state=Chat, checkpointer=InMemorySaver())
    for _ in range(2):
        app = ArbiterOS.from_constitution(rules, ledger=ledger).govern(graph)
        app.invoke({"messages": []}, conf("t"))
    report = ledger.replay(rules)
    assert (report.summary.same, report.summary.decisions) == (4, 4)


def test_budgets_in_tokens_count_what_the_recorded_answers_report(tmp_path: Path, ledger: Ledger) -> None:
    def ask(state: Any) -> Any:
        usage = {"input_tokens": 60, "output_tokens": 40, "total_tokens": 100}
        return {"messages": [AIMessage("ok", usage_metadata=usage)]}

    app = ArbiterOS(ledger=ledger).govern(chain(ask, state=Chat, checkpointer=InMemorySaver()))
    for _ in range(3):
        app.invoke({"messages": []}, conf("t"))
    report = ledger.replay(pack(tmp_path, "next", "name: tokens, use: budget, tokens: 150, per: thread"))
    assert [each.shadow.reason for each in report] == ["200 of 150 tokens of this thread are used"]


def answered(text: str = "ok") -> AIMessage:
    usage = UsageMetadata(input_tokens=60, output_tokens=40, total_tokens=100)
    return AIMessage(text, usage_metadata=usage)


class Reply(TypedDict, total=False):
    messages: list[Any]
    reply: Any
    notes: Any


@pytest.mark.parametrize(
    ("reply", "is_known"),
    [
        ({"messages": [answered("The password is hunter2, the key sk-ant-api03-" + "Ab3" * 20)]}, True),
        ({"reply": answered("The card is 4111 1111 1111 1111.")}, True),
        ({"messages": [answered("long " * 60_000)]}, True),
        ({"messages": [answered()], "notes": UUID(int=1)}, True),
        ({"messages": [answered()], "notes": Document("page")}, True),
        ({"messages": [answered()], "notes": [Document("page")]}, True),
        ({"messages": [answered()], "notes": b"bytes"}, False),
        ({"messages": [answered() for _ in range(200)]}, False),
    ],
    ids=["secret", "single", "cut", "plain", "object", "objects", "bytes", "cut list"],
)
def test_budgets_in_tokens_do_not_need_what_else_an_answer_says(
    tmp_path: Path, ledger: Ledger, reply: Any, is_known: bool
) -> None:
    """An answer that is missing as a whole makes the later decisions unknown, never the same."""

    def ask(state: Any) -> Any:
        return reply

    app = ArbiterOS(ledger=ledger).govern(chain(ask, state=Reply, checkpointer=InMemorySaver()))
    for _ in range(3):
        app.invoke({"messages": []}, conf("t"))
    report = ledger.replay(pack(tmp_path, "next", "name: tokens, use: budget, tokens: 150, per: thread"))
    assert [each.outcome for each in report] == ["stricter"] * is_known
    assert (report.summary.same, sum(report.unknown.values())) == ((2, 0) if is_known else (1, 2))


@pytest.mark.lengthy
@pytest.mark.parametrize("gone", ["erased", "none"])
def test_budgets_in_tokens_are_unknown_after_node_runs_whose_contents_are_gone(
    tmp_path: Path, gone: str
) -> None:
    def ask(state: Any) -> Any:
        return {"messages": [answered()]}

    graph = chain(ask, state=Chat, checkpointer=InMemorySaver())
    with Ledger(tmp_path / "l.db", states="none" if gone == "none" else "bounded") as ledger:
        for _ in range(2):
            ArbiterOS(ledger=ledger).govern(graph).invoke({"messages": []}, conf("t"))
        if gone == "erased":
            ledger.erase(thread_id="t", reason="asked")
        report = ledger.replay(pack(tmp_path, "next", "name: tokens, use: budget, tokens: 50, per: thread"))
    assert (list(report), report.summary.same, sum(report.unknown.values())) == ([], 1, 1)


@pytest.mark.parametrize("on_deny", ["raise", "end", "redirect:look"])
@pytest.mark.parametrize("catches", [True, False])
def test_a_call_that_was_stopped_in_a_body_is_a_recorded_denial(
    tmp_path: Path, ledger: Ledger, catches: bool, on_deny: str
) -> None:
    """Rules that look into bodies might stop it again, which nothing says; others would let it be."""

    @tool
    def remove(path: str) -> str:
        """Remove a file."""
        return path

    def act(state: State) -> State:
        with suppress(PolicyViolationError if catches else KeyError):
            remove.invoke({"path": "x"})
        return {"log": ["act"]}

    now = pack(tmp_path, "now", f"name: stops, use: tools, deny: [remove], on_deny: '{on_deny}'")
    app = ArbiterOS.from_constitution(now, ledger=ledger).govern(chain(act, extra=[Spy("look")]))
    with suppress(PolicyViolationError):
        app.invoke({})
    report = ledger.replay(pack(tmp_path, "next"))
    assert [(each.node, each.outcome, str(each.enforced)) for each in report] == [
        ("act", "looser", "deny by stops")
    ]
    report = ledger.replay(now)
    assert (len(report), dict(report.unknown)) == (0, {"what its body called is not recorded": 1})
    assert set(report.not_replayed) == {"stops"}


def test_checkers_that_look_into_bodies_are_named(tmp_path: Path, ledger: Ledger) -> None:
    payments(ledger, pack(tmp_path, "now", LIMIT.format(100)), {"t": 10})
    report = ledger.replay(
        pack(tmp_path, "next", "name: only, use: tools, allow: [search], target_nodes: pay")
    )
    assert dict(report.not_replayed) == {"only": 1}
    assert report.summary.unknown == 0


TIMED = (
    "name: rate, use: rate_limit, calls: 2, per_seconds: 60, per: user, target_nodes: pay, on_deny: end",
    "name: slow, use: budget, seconds: 1000, per: thread, on_deny: end",
    "name: ask, use: approval, reason: look, expires_after: 5, target_nodes: other",
)


def test_times_are_the_recorded_ones(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A year later, in another time zone and with a clock that stands still, replay finds the same."""
    now = [1_700_000_000.0]
    rules = pack(tmp_path, "now", *TIMED)
    arbiter_os = ArbiterOS.from_constitution(rules, ledger=ledger, clock=lambda: now[0])
    app = arbiter_os.govern(chain(Spy("look"), Spy("pay"), Spy("other"), checkpointer=InMemorySaver()))
    denied: list[bool] = []
    for number, wait in enumerate((0, 1, 1, 40, 1)):
        now[0] += wait
        app.invoke({"amount": number}, conf(f"t{number}"))
        denied.append(
            not any(item.node == "other" for item in arbiter_os.history_of(thread_id=f"t{number}").items())
        )
        now[0] += 10  # too late for an answer
        if not denied[-1]:
            app.invoke(Command(resume="approve"), conf(f"t{number}"))
    assert denied.count(True) == 1
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    try:
        report = ledger.replay(rules)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert list(report) == []
    assert dict(report.unknown) == {}
    assert list(report.approximate) == ["rate"]
    assert report.summary.decisions == 14


def when_it_took_long(history: History, output: Any) -> str | None:
    return "other" if (history.now - history.item.timestamp).total_seconds() > 5 else None


def test_a_router_decides_at_the_time_of_the_end(tmp_path: Path, ledger: Ledger) -> None:
    """The clock goes on in a body: rules after it have a later time than rules before it."""
    now = [1_700_000_000.0]

    def works(state: State) -> None:
        now[0] += state.get("amount", 0)

    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\nname: rules\ndescription: Rules.\nrouters:\n"
        f"  - {{name: late, use: {__name__}.when_it_took_long, target_nodes: works}}\n"
    )
    arbiter_os = ArbiterOS.from_constitution(rules, allow=["tests."], ledger=ledger, clock=lambda: now[0])
    arbiter_os._core.settings.timer = lambda: now[0]  # pyright: ignore[reportPrivateUsage]
    app = arbiter_os.govern(chain(works, Spy("pay"), Spy("other"), checkpointer=InMemorySaver()))
    for amount in (1, 10):
        app.invoke({"amount": amount}, conf(f"t{amount}"))
    assert ledger.flush(60)
    assert [item.redirected_to for item in ledger.items(node="works")] == ["other", None]
    summary = ledger.replay(rules, allow=["tests."]).summary
    assert (summary.node_runs, summary.same) == (5, summary.decisions)


class Keeps(CorrectionGate):
    def review(self, history: History, draft: Any, attempt: int) -> Correction:
        return Correction.commit_attempt(1, details={"outcome": "kept"})


def when_a_draft_was_kept(history: History, output: Any) -> str | None:
    return "other" if history.item.gating == {"outcome": "kept"} else None


def test_a_rule_sees_how_a_gate_ended(tmp_path: Path, ledger: Ledger) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\nname: rules\ndescription: Rules.\nrouters:\n"
        f"  - {{name: kept, use: {__name__}.when_a_draft_was_kept, target_nodes: works}}\n"
    )
    arbiter_os = ArbiterOS.from_constitution(rules, allow=["tests."], ledger=ledger)
    arbiter_os.add_correction_gate(Keeps("review", target_nodes=["works"]))
    app = arbiter_os.govern(chain(Spy("works"), Spy("pay"), Spy("other"), checkpointer=InMemorySaver()))
    app.invoke({}, conf("t"))
    assert ledger.flush(60)
    assert [item.redirected_to for item in ledger.items(node="works")] == ["other"]
    summary = ledger.replay(rules, allow=["tests."]).summary
    assert (summary.node_runs, summary.same) == (2, summary.decisions)


class Counted(TypedDict):
    n: int


@pytest.mark.lengthy
@pytest.mark.parametrize("saved", [False, True])
def test_a_clock_that_is_set_back_leaves_the_order_as_it_was(
    tmp_path: Path, ledger: Ledger, saved: bool
) -> None:
    """Each of 300 node runs begins before the one that it builds on, by a clock that runs backwards."""
    times = iter(range(2_000_000_000, 0, -1))
    arbiter_os = ArbiterOS(ledger=ledger, clock=lambda: next(times) / 1000)

    def count(state: Counted) -> Counted:
        return {"n": state["n"] + 1}

    def again(state: Counted) -> str:
        return END if state["n"] >= 300 else "count"

    builder = StateGraph(Counted).add_node("count", count).add_edge(START, "count")
    builder.add_conditional_edges("count", again)
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver() if saved else None))
    config: Any = {**conf("t"), "recursion_limit": 1000}
    app.invoke({"n": 0}, config)
    ledger.flush(60)
    next_ = pack(tmp_path, "next", "name: limit, use: at_most, times: 250, target_nodes: count")
    summary = ledger.replay(next_).summary
    assert (summary.node_runs, summary.same, summary.stricter, summary.unknown) == (300, 250, 50, 0)
