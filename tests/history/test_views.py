"""Readers cannot change the views of contracts, nor the history."""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import pickle
import queue
import threading
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel, Field, field_validator, model_validator

from arbiter import (
    Advisor,
    ArbiterOS,
    EvaluationResult,
    History,
    HistoryItem,
    HistoryListener,
    NodeEvaluator,
    PolicyChecker,
    PolicyViolationError,
)
from arbiter.checkers import ApprovalChecker, ConditionChecker, SchemaChecker
from arbiter.evaluation import EvaluatorGroup, FinishedRun, GroupOutcome
from tests.support import MODES, Check, Judge, Route, Spy, add, bad, chain, good, governed, run, thread


@dataclass
class Order:
    amount: int
    lines: list[int] = field(default_factory=list[int])


class PaidBy(BaseModel):
    amount: int
    tags: list[str] = []


class Lines(BaseModel):
    lines: list[PaidBy]


class Ordered(BaseModel):
    order: Lines


class Account:
    """It holds what cannot be copied."""

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.lines = [amount]
        self.lock = threading.Lock()


def _bump_dict(order: Any) -> None:
    order["amount"] = 1_000_000


def _bump_object(order: Any) -> None:
    order.amount = 1_000_000
    getattr(order, "lines", []).append(1)


ORDERS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], None]]] = {
    "dict": ({"amount": 5}, lambda order: order["amount"], _bump_dict),
    "list": ([5], lambda order: order[0], lambda order: order.__setitem__(0, 1_000_000)),
    "tuple of dicts": (
        ({"amount": 5},),
        lambda order: order[0]["amount"],
        lambda order: _bump_dict(order[0]),
    ),
    "proxy": (
        MappingProxyType({"of": {"amount": 5}}),
        lambda order: order["of"]["amount"],
        lambda order: _bump_dict(order["of"]),
    ),
    "dataclass": (Order(5), lambda order: order.amount, _bump_object),
    "model": (PaidBy(amount=5), lambda order: order.amount, _bump_object),
    "message": (
        AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 5}, "id": "1"}]),
        lambda order: order.tool_calls[0]["args"]["amount"],
        lambda order: _bump_dict(order.tool_calls[0]["args"]),
    ),
    "with a lock in it": (Account(5), lambda order: order.lines[0] + order.amount - 5, _bump_object),
    "set of objects": (
        {Account(5)},
        lambda order: max(account.amount for account in order),
        lambda order: _bump_object(next(iter(order))),
    ),
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("door", ["own history", "thread", "view", "output"])
@pytest.mark.parametrize("shape", ORDERS)
def test_the_history_gives_no_way_to_change_the_state(shape: str, door: str, mode: str) -> None:
    made, amount_in, change = ORDERS[shape]
    order = copy_of(made)
    arbiter_os = ArbiterOS()

    def tamper(history: History) -> EvaluationResult:
        items: dict[str, Callable[[], Any]] = {
            "own history": lambda: arbiter_os.history.entries[-1][-1].input_state,
            "thread": lambda: arbiter_os.history_of(thread_id="1").entries[-1][-1].input_state,
            "view": lambda: history.entries[-1][-1].input_state,
            "output": lambda: arbiter_os.history.entries[-1][-1].output_state,
        }
        state = items[door]()
        reaches: list[Callable[[], Any]] = [lambda: state["order"], lambda: next(iter(state.values()))]
        for reach in reaches:
            with suppress(TypeError, AttributeError):
                change(reach())
        change_all(state, change)
        return EvaluationResult(1.0, True)

    class Shop(TypedDict):
        order: Any

    paid: list[Any] = []

    def check(state: Shop) -> Shop:
        return {"order": state["order"]}

    def pay(state: Shop) -> Shop:
        paid.append(amount_in(state["order"]))
        return state

    builder = StateGraph(Shop)
    builder.add_node("check", check)
    builder.add_node("pay", pay)
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    arbiter_os.add_evaluator(Judge("tamper", tamper, target_nodes=["check"], durable=True))
    app = arbiter_os.govern(builder.compile())
    run(app, {"order": order}, thread("1"), mode=mode)
    assert paid == [amount_in(made)]


def change_all(state: Any, change: Callable[[Any], None]) -> None:
    """By the ways in which Python and pydantic copy a dict or take it apart."""
    match state:
        case {"order": order, **rest}:
            ways = [order, *rest.values()]
        case _:
            raise AssertionError(state)
    for found in ({**state}, dict(state), copy.copy(state), state | {}, {} | state):
        ways += [found["order"], itemgetter("order")(found), *found.values()]
    ways += [OrderedDict(state)["order"], ChainMap(state)["order"], Anything.model_validate(state).order]
    for order in ways:
        with suppress(TypeError, AttributeError):
            change(order)


class Anything(BaseModel):
    order: Any


def copy_of(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return MappingProxyType(copy.deepcopy(dict(cast(Any, value))))
    try:
        return copy.deepcopy(value)
    except TypeError:
        return {Account(5)} if isinstance(value, set) else Account(5)


def test_answers_of_contracts_cannot_be_changed_in_the_history() -> None:
    """Neither for those who read it later nor for the next run, if a contract answers with the same object again."""
    checker = ApprovalChecker("boss", approvers=["alice"], target_nodes=["a"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    found = {"tags": ["x"]}
    arbiter_os.add_evaluator(Judge("e", lambda _: EvaluationResult(1.0, True, metadata=found), durable=True))
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    app.invoke({"log": []}, thread("1"))
    (item,) = arbiter_os.history.items()
    payload: Any = item.check_policy_results["boss"].payload
    with pytest.raises(TypeError):
        payload["approvers"].append("mallory")
    with pytest.raises(TypeError):
        payload.update(approvers=["mallory"])
    app.invoke(Command(resume={"type": "approve", "by": "alice"}), thread("1"))
    (item,) = arbiter_os.history.items()
    metadata: Any = item.evaluation_results["e"].metadata
    with pytest.raises(TypeError):
        metadata["tags"].append("y")
    assert metadata == {"tags": ["x"]}


def test_a_recorded_state_is_equal_to_a_plain_one_and_travels_as_one() -> None:
    arbiter_os = ArbiterOS()
    app = arbiter_os.govern(chain(Spy("a")))
    app.invoke({"log": ["x"], "amount": 5})
    state = arbiter_os.history.entries[-1][-1].input_state
    plain = {"log": ["x"], "amount": 5}
    assert state == plain
    assert plain == state
    assert repr(state) == repr(plain)
    assert json.loads(json.dumps(state)) == plain
    assert type(pickle.loads(pickle.dumps(state))) is dict
    assert type(copy.deepcopy(state)["log"]) is list


class Meddles(EvaluatorGroup):
    """Changes what it gets of the node run, as far as it can."""

    durable = True

    def takes(self, evaluator: NodeEvaluator) -> bool:
        return True

    def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
        for state in (finished.input, finished.history.item.output_state):
            with pytest.raises(TypeError):
                cast(Any, state).update(order=None)
            with pytest.raises(TypeError):
                state["order"]["lines"].append(1)
        done = Future[GroupOutcome]()
        done.set_result(GroupOutcome(results={e.name: EvaluationResult(1.0, True) for e in evaluators}))
        return done


@MODES
def test_a_group_changes_neither_the_input_nor_the_output_of_the_node(mode: str) -> None:
    class Shop(TypedDict):
        order: Any

    paid: list[Any] = []

    def check(state: Shop) -> Shop:
        return {"order": state["order"]}

    def pay(state: Shop) -> None:
        paid.append(copy.deepcopy(state["order"]))

    builder = StateGraph(Shop)
    builder.add_node("check", check)
    builder.add_node("pay", pay)
    builder.add_edge(START, "check")
    builder.add_edge("check", "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(Meddles())
    arbiter_os.add_evaluator(Judge("judges", bad, target_nodes=["check"], durable=True))
    run(arbiter_os.govern(builder.compile()), {"order": {"lines": [5]}}, mode=mode)
    assert paid == [{"lines": [5]}]
    item = arbiter_os.history.last(node="check")
    assert item is not None
    assert item.evaluation_results["judges"].score == 1.0


# What was checked is what runs ---------------------------------------------------------------------


class Shared(TypedDict):
    order: Any
    amount: int


def shop(pay: Any, sibling: Any, order: Any, *, by: str, mode: str) -> Any:
    """A graph in which both nodes run side by side: on the state, or with `by="send"` on one shared object."""

    async def apay(state: Any) -> dict[str, Any]:
        return await asyncio.to_thread(pay, state)

    async def asibling(state: Any) -> dict[str, Any]:
        return await asyncio.to_thread(sibling, state)

    builder = StateGraph(Shared)
    builder.add_node("pay", pay if mode == "sync" else apay)
    builder.add_node("sibling", sibling if mode == "sync" else asibling)
    if by == "send":
        shared: Any = {"order": order, "amount": 5}

        def both(_: Any) -> list[Send]:
            return [Send("pay", shared), Send("sibling", shared)]

        builder.add_conditional_edges(START, both)
    else:
        builder.add_edge(START, "pay")
        builder.add_edge(START, "sibling")
    return builder.compile()


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("when", ["after the check", "while the body runs"])
@pytest.mark.parametrize("by", ["state", "send"])
@pytest.mark.parametrize("shape", [shape for shape in ORDERS if shape not in ("proxy", "set of objects")])
def test_a_sibling_changes_nothing_of_what_the_checkers_saw(
    shape: str, by: str, when: str, mode: str
) -> None:
    checked, changed = threading.Event(), threading.Event()
    order = copy_of(ORDERS[shape][0])
    paid: list[Any] = []

    def pay(state: Any) -> dict[str, Any]:
        if when == "while the body runs":
            checked.set()
            assert changed.wait(60)
        paid.append((ORDERS[shape][1](state["order"]), state["amount"]))
        return {}

    def sibling(state: Any) -> dict[str, Any]:
        assert checked.wait(60)
        ORDERS[shape][2](state["order"])
        if by == "send":
            state["amount"] = 1_000_000
            state["order"] = None
        changed.set()
        return {}

    def limit(history: History) -> bool:
        state = history.entries[-1][-1].input_state
        allowed: bool = ORDERS[shape][1](state["order"]) <= 100 and state["amount"] <= 100
        if when == "after the check":
            checked.set()
            assert changed.wait(60)
        return allowed

    arbiter_os = ArbiterOS()
    checker = Check("limit", limit, target_nodes=["pay"])
    checker.blocking = True
    arbiter_os.add_policy_checker(checker)
    app = arbiter_os.govern(shop(pay, sibling, order, by=by, mode=mode))
    run(app, {"order": order, "amount": 5}, mode=mode)
    assert paid == [(5, 5)]


@MODES
@pytest.mark.parametrize(
    "read", ["==", "<", "repr", "json", "in", "items", "deepcopy", "deepcopy of a list", "pickle", "pydantic"]
)
def test_a_state_read_as_a_whole_is_the_state_that_runs(read: str, mode: str) -> None:
    order: Any = {"lines": [{"amount": 5}], "bounds": [[5, 0]]}
    expected = copy.deepcopy(order)
    paid: list[int] = []

    def looks(history: History) -> bool:
        state = history.entries[-1][-1].input_state
        looked: dict[str, Callable[[], Any]] = {
            "==": lambda: state["order"] == expected,
            "repr": lambda: "'amount': 5" in repr(state),
            "json": lambda: '"amount": 5' in json.dumps(state),
            "in": lambda: {"amount": 5} in state["order"]["lines"],
            "items": lambda: dict(dict(state)["order"])["lines"][0] == {"amount": 5},
            "<": lambda: state["order"]["bounds"] < [[5, 1]],
            "deepcopy": lambda: copy.deepcopy(state)["order"]["lines"][0]["amount"] == 5,
            "deepcopy of a list": lambda: copy.deepcopy(state["order"]["lines"])[0]["amount"] == 5,
            "pickle": lambda: pickle.loads(pickle.dumps(state))["order"]["lines"][0]["amount"] == 5,
            "pydantic": lambda: (
                Ordered.model_validate(copy.deepcopy(state)).order.lines[0] == PaidBy(amount=5)
            ),
        }
        allowed: bool = looked[read]()
        order["lines"][0]["amount"] = order["bounds"][0][0] = 1_000_000
        return allowed

    def pay(state: Any) -> dict[str, Any]:
        first = state["order"]["bounds" if read == "<" else "lines"][0]
        paid.append(first[0] if read == "<" else first["amount"])
        return {}

    class Shop(TypedDict):
        order: Any

    builder = StateGraph(Shop)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("looks", looks))
    run(arbiter_os.govern(builder.compile()), {"order": order}, mode=mode)
    assert paid == [5]


def first_pages(shelf: Any) -> Any:
    return shelf["owls" if hasattr(shelf, "keys") else 0]["pages"]


def the_shelf(shelf: Any) -> Any:
    return shelf


LOOKS: dict[str, Callable[[Any], Any]] = {
    "no part": the_shelf,
    "size": len,
    "is there any": bool,
    "one": first_pages,
}


@MODES
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("listed", [False, True])
def test_parts_that_no_checker_looked_at_are_handed_over_as_they_are(
    look: str, listed: bool, mode: str
) -> None:
    """A look at a large shelf copies no book of it, so its cost does not grow with the books."""
    books: Any = {"owls": {"pages": [1]}, "bats": {"pages": [2]}}
    shelf = list(books.values()) if listed else books
    given: list[Any] = []

    def read(state: Any) -> dict[str, Any]:
        given.append(state["order"][1] if listed else state["order"]["bats"])
        return {}

    builder = StateGraph(Shared)
    builder.add_node("read", read)
    builder.add_edge(START, "read")
    _, app = governed(
        builder.compile(), Check("looks", lambda h: bool(LOOKS[look](h.item.input_state["order"]) or True))
    )
    run(app, {"order": shelf, "amount": 5}, mode=mode)
    assert given[0] is books["bats"]


MEETINGS: dict[str, Callable[[], Any]] = {
    "asyncio.Queue": asyncio.Queue,
    "asyncio.Event": asyncio.Event,
    "asyncio.Lock": asyncio.Lock,
    "asyncio.Barrier": lambda: asyncio.Barrier(2),
    "queue.Queue": queue.Queue,
    "threading.Event": threading.Event,
    "threading.Condition": threading.Condition,
    "a future": Future,
    "a sentinel": object,
}


@MODES
@pytest.mark.parametrize("kind", MEETINGS)
def test_a_node_meets_others_at_the_queues_and_events_that_a_checker_looked_at(kind: str, mode: str) -> None:
    meeting = MEETINGS[kind]()
    given: list[Any] = []

    def read(state: Any) -> dict[str, Any]:
        given.append(state["order"])
        return {}

    builder = StateGraph(Shared)
    builder.add_node("read", read)
    builder.add_edge(START, "read")
    _, app = governed(builder.compile(), Check("looks", lambda h: bool([*h.item.input_state["order"]])))
    run(app, {"order": [meeting], "amount": 5}, mode=mode)
    assert given[0][0] is meeting


@MODES
@pytest.mark.parametrize("listed", [False, True])
def test_a_state_that_contains_itself_can_be_checked(listed: bool, mode: str) -> None:
    order: Any = [5] if listed else {0: 5}
    if listed:
        order.append(order)
    else:
        order[1] = order
    paid: list[Any] = []

    def pay(state: Any) -> dict[str, Any]:
        paid.append((state["order"][0], state["order"][1][1][0]))
        return {}

    builder = StateGraph(Shared)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    _, app = governed(builder.compile(), Check("limit", lambda h: h.item.input_state["order"][1][1][0] == 5))
    run(app, {"order": order, "amount": 5}, mode=mode)
    assert paid == [(5, 5)]


class Limited(BaseModel):
    order: dict[str, int]

    @field_validator("order")
    @classmethod
    def limited(cls, order: dict[str, int]) -> dict[str, int]:
        assert order["amount"] <= 100
        return order


class Whole(Limited):
    @model_validator(mode="before")
    @classmethod
    def looks_at_all(cls, given: Any) -> Any:
        return given


@MODES
@pytest.mark.parametrize("by", ["state", "send"])
@pytest.mark.parametrize("schema", [Limited, Whole])
def test_a_sibling_changes_nothing_of_what_an_input_schema_has_validated(
    schema: type[BaseModel], by: str, mode: str
) -> None:
    """Also where no checker has looked at the state."""
    validated, changed = threading.Event(), threading.Event()
    order = {"amount": 5}
    paid: list[Any] = []

    def pay(state: Any) -> dict[str, Any]:
        validated.set()
        assert changed.wait(60)
        paid.append((state["order"]["amount"], state["amount"]))
        return {}

    def sibling(state: Any) -> dict[str, Any]:
        assert validated.wait(60)
        state["order"]["amount"] = 1_000_000
        if by == "send":
            state["amount"] = 1_000_000
        changed.set()
        return {}

    app = ArbiterOS().govern(shop(pay, sibling, order, by=by, mode=mode), schemas={"pay": {"input": schema}})
    run(app, {"order": order, "amount": 5}, mode=mode)
    assert paid == [(5, 5)]


@MODES
def test_the_approved_input_is_the_input_that_runs(mode: str) -> None:
    """Also of what no checker has looked at: the human was shown all of it."""
    shared: dict[str, Any] = {}
    paid: list[Any] = []

    class Shop(TypedDict):
        order: Any

    class Tampering(Advisor):
        def advise(self, history: History, state: Any) -> None:
            shared["order"]["to"]["amount"] = 1_000_000

    def pay(state: Shop) -> Shop:
        paid.append(state["order"]["to"]["amount"])
        return {"order": None}

    builder = StateGraph(Shop)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("boss"))
    arbiter_os.add_policy_checker(Check("finds", lambda h: not shared.update(order=live(h))))
    arbiter_os.add_advisor(Tampering("tamper"))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    run(app, {"order": {"to": {"amount": 5}}}, thread("1"), mode=mode)
    run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert paid == [5]


class Search(BaseModel):
    log: Annotated[list[str], operator.add] = []
    found: str | None = None
    hint: str | None = None
    pages: list[str] = Field(default_factory=list[str])


class Hint(Advisor):
    def advise(self, history: History, state: Any) -> dict[str, str]:
        return {"hint": "be quick"}


@MODES
@pytest.mark.parametrize("rule", ["none", "a look", "approval", "an edit", "a schema", "advice"])
def test_a_node_that_returns_its_pydantic_state_writes_no_fields_that_nothing_has_set(
    rule: str, mode: str
) -> None:
    """A field of a copy that counts as set, though nothing wrote it, is written, and collides with a sibling's."""

    def back(state: Search) -> Search:
        fields.append(state.model_fields_set)
        return state

    def finds(state: Search) -> Any:
        return {"found": "it", "hint": "here"}

    fields: list[set[str]] = []
    builder: Any = StateGraph(Search)
    for body in (back, finds):
        builder.add_node(body)
        builder.add_edge(START, body.__name__)
    arbiter_os = ArbiterOS()
    looks = Check("looks", lambda h: repr(h.entries[-1][-1].input_state) != "", target_nodes=["back"])
    if rule == "a look":
        arbiter_os.add_policy_checker(looks)
    if rule in ("approval", "an edit"):
        arbiter_os.add_policy_checker(ApprovalChecker("boss", target_nodes=["back"]))
    if rule == "advice":
        arbiter_os.add_advisor(Hint("hint", target_nodes=["back"]))
    schemas: Any = {"back": {"input": Search}} if rule == "a schema" else None
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()), schemas=schemas)
    answers = {"approval": "approve", "an edit": {"type": "edit", "input": {"log": ["in"]}}}
    given: Any = {"log": ["in"]}
    result = run(app, given, thread("1"), mode=mode)
    if rule in answers:
        result = run(app, Command(resume=answers[rule]), thread("1"), mode=mode)
    assert result == {"log": ["in", "in"], "found": "it", "hint": "here", "pages": []}
    assert fields == [{"log", "hint"} if rule == "advice" else {"log"}]


def live(history: History) -> Any:
    """The objects in the state themselves, past the views: as a sibling that was given them too has them."""
    record: Any = cast(Any, history.entries[-1][-1])._record
    return record.input["order"]


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_node_gets_its_own_objects_where_no_checker_looked(size: int) -> None:
    """Only parts that a checker read are copied; an audit has no effect at all."""
    big, small = [{"n": n} for n in range(size)], {"n": 1}
    got: list[Any] = []

    class Shop(TypedDict):
        big: Any
        small: Any

    def pay(state: Any) -> dict[str, Any]:
        got.append(state)
        return {}

    for mode in ("enforce", "audit"):
        builder = StateGraph(Shop)
        builder.add_node("pay", pay)
        builder.add_edge(START, "pay")
        arbiter_os = ArbiterOS()
        on_deny = "raise" if mode == "enforce" else "audit"
        look = Check("looks", lambda h: h.entries[-1][-1].input_state["big"][-1]["n"] > 0, on_deny=on_deny)
        arbiter_os.add_policy_checker(look)
        arbiter_os.govern(builder.compile()).invoke({"big": big, "small": small})
    enforced, audited = got
    assert audited["big"] is big
    assert enforced["small"] is small
    assert enforced["big"] == big
    assert [one is other for one, other in zip(enforced["big"], big, strict=True)].count(False) == 1


@MODES
def test_the_item_of_a_history_is_the_own_one_of_a_node_and_else_the_newest(mode: str) -> None:
    seen: list[str] = []

    def look(history: History) -> bool:
        seen.append(history.item.node)
        return True

    arbiter_os, app = governed(chain(Spy("a"), Spy("b")), Check("look", look))
    run(app, {"log": []}, mode=mode)
    assert seen == ["a", "b"]
    assert arbiter_os.history.item == arbiter_os.history.entries[-1][-1]
    with pytest.raises(IndexError):
        _ = History().item


@MODES
def test_rules_see_the_states_of_which_the_history_keeps_digests(mode: str) -> None:
    """A rule must not pass because it compares a word with the digest of that word."""
    shown: list[tuple[str, Any, Any]] = []

    def look(who: str) -> Callable[..., Any]:
        def looked(history: History, *_: Any) -> Any:
            for view in (history, copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
                state, output = view.item.input_state.get("word"), view.item.output_state.get("word")
                shown.append((who, state, output))
            return None if who == "router" else good if who == "evaluator" else True

        return looked

    class After(Check):
        def check_after(self, output: Any, history: History) -> Any:
            return look("after")(history)

    def work(state: Any) -> Any:
        return {"word": f"{state['word']}, done"}

    kept: list[Any] = []

    class Keeps(HistoryListener):
        def began(self, item: HistoryItem) -> None:
            kept.append(item.input_state["word"])

        def ended(self, item: HistoryItem) -> None:
            kept.append(item.output_state["word"])

    arbiter_os = ArbiterOS(snapshot="digest", listeners=[Keeps()])
    for contract in (
        After("after", look("checker")),
        Route("router", look("router")),
        Judge("evaluator", look("evaluator")),
    ):
        add(arbiter_os, contract)
    app = arbiter_os.govern(chain(work, state=dict))
    assert run(app, {"word": "delete"}, mode=mode)["word"] == "delete, done"
    assert arbiter_os.drain(60)
    done = ("delete", "delete, done")
    assert {who: states for who, *states in map(list, shown)} == {
        "checker": ["delete", None],
        **{who: [*done] for who in ("after", "router", "evaluator")},
    }
    assert len(set(shown)) == 4
    item = arbiter_os.history.item
    kept += [item.input_state["word"], item.output_state["word"], arbiter_os.history.to_jsonl()]
    assert "delete" not in repr(kept)
    assert len(kept[0]) == len(kept[1]) == 32


@pytest.mark.parametrize(
    "checker",
    [
        ConditionChecker("never", "input.log == ['delete']"),
        SchemaChecker("never", input={"properties": {"log": {"not": {"const": ["delete"]}}}}),
    ],
    ids=["condition", "schema"],
)
def test_a_rule_of_content_denies_although_the_history_keeps_digests(checker: PolicyChecker) -> None:
    arbiter_os, work = ArbiterOS(snapshot="digest"), Spy("work")
    arbiter_os.add_policy_checker(checker)
    with pytest.raises(PolicyViolationError, match="'never' denied"):
        arbiter_os.govern(chain(work)).invoke({"log": ["delete"]})
    assert work.calls == []


class Bill(BaseModel):
    amount: int = 0


@dataclass
class Purchase:
    amount: int = 0


@MODES
@pytest.mark.parametrize("schema", [Bill, Purchase])
def test_an_attribute_of_a_view_fails_with_the_words_to_write(schema: Any, mode: str) -> None:
    """A view is a dict, whatever class the state of the graph has."""
    arbiter_os = ArbiterOS()

    @arbiter_os.checker
    def small(state: Any) -> bool:
        return bool(state.amount < 10)

    @arbiter_os.checker(on_deny="audit")
    def large(state: Any) -> bool:
        return bool(state["amount"] >= 10)

    def pay(state: Any) -> dict[str, int]:
        return {"amount": 0}

    graph = StateGraph(schema).add_node("pay", pay).add_edge(START, "pay").compile()
    with pytest.raises(PolicyViolationError) as caught:
        run(arbiter_os.govern(graph), {"amount": 50}, mode=mode)
    assert (
        str(caught.value.cause)
        == "the view of a state is a dict without attribute 'amount'; write ['amount']"
    )
    assert arbiter_os.history.item.check_policy_results["large"].kind == "allow"
