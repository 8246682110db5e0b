"""Digests of values: what approvals and passes that are bound to fields are held to."""

import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, PrivateAttr

from arbiter import ArbiterOS, PolicyViolationError
from arbiter._values.states import digest, digests_of, freeze
from arbiter.checkers import ApprovalChecker, RequireBefore
from arbiter.instructions import VERIFY
from tests.support import MODES, run, thread

pytestmark = pytest.mark.lengthy


class Slots:
    __slots__ = ("amount",)

    def __init__(self, amount: int) -> None:
        self.amount = amount


class More(Slots):
    __slots__ = ("payee",)

    def __init__(self, amount: int, payee: str) -> None:
        super().__init__(amount)
        self.payee = payee


class Tagged(dict[str, Any]):
    tag = ""


class Text(str):
    tag = ""


class Model(BaseModel):
    amount: int = 0
    _payee: str = PrivateAttr("")


@dataclass
class Order:
    amount: int

    @cached_property
    def double(self) -> int:
        return 2 * self.amount


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    x: int
    y: int


def given_attributes(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def deep(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


DIFFERENT: list[tuple[Any, Any]] = [
    (Slots(5), Slots(5000)),
    (More(5, "a"), More(5, "b")),
    (More(5, "a"), More(6, "a")),
    (given_attributes(Tagged(), tag="a"), given_attributes(Tagged(), tag="b")),
    (given_attributes(Text("t"), tag="a"), given_attributes(Text("t"), tag="b")),
    (given_attributes(Model(), _payee="a"), given_attributes(Model(), _payee="b")),
    (Model(amount=1), {"amount": 1}),
    (given_attributes(Order(1), extra=1), given_attributes(Order(1), extra=2)),
    (deep(5, 45), deep(5000, 45)),
    ({1}, ["set", 1]),
    ({1}, ["set", [1]]),
    ([1], ["list", 1]),
    (1.5, ["float", (1.5).hex()]),
    ({"a": 5}, ["map", [["a", 5]]]),
    ({1: 5}, ["map", [1, 5]]),
    ({1: 5}, {"1": 5}),
    (b"x", "x"),
    (Decimal("1.10"), "1.10"),
    (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)),  # noqa: DTZ001  # the difference is meant
    (Colour.RED, "red"),
    (int, float),
    (len, print),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest([one]) != digest([other])


read = Order(1)
assert read.double == 2
SAME: list[tuple[Any, Any]] = [
    (Slots(5), Slots(5)),
    (More(5, "a"), More(5, "a")),
    (Model(amount=0), Model()),
    (read, Order(1)),
    ((1, 2), [1, 2]),
    (Pair(1, 2), (1, 2)),
    (Text("t"), "t"),
    (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (freeze({"a": [{"b": 1}]}), {"a": [{"b": 1}]}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_values_have_equal_digests(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


PLAIN: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.floats(allow_nan=False)
    | st.binary(max_size=3),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), part, max_size=3)
    ),
)


def typed(value: Any) -> Any:
    """The value with its types, so that 1, 1.0 and True are apart."""
    if isinstance(value, list):
        return [typed(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return sorted((repr(key), repr(typed(part))) for key, part in value.items()), dict  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return type(value), repr(value)


@given(PLAIN, PLAIN)
def test_plain_data_has_the_same_digest_only_if_it_is_the_same(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (typed(one) == typed(other))


@pytest.mark.slow
def test_equal_values_have_equal_digests_in_other_processes() -> None:
    program = (
        "from langchain_core.messages import AIMessage\nfrom tests.history.test_digest import *\n"
        "print(digest([{'b', 'a', 'c'}, {'x': {1, 2}}, More(5, 'a'), Model(), AIMessage('hi', id='1'), Decimal(1),"
        " datetime(2026, 1, 1, tzinfo=UTC), Order(1), Colour.RED, given_attributes(Tagged(), tag='t')]))"
    )
    root = Path(__file__).parent.parent.parent
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


itself: list[Any] = []
itself.append(itself)
NAMELESS: list[Any] = [threading.Lock(), (number for number in [1]), lambda: 1, itself, deep(1, 200)]
IDS = ["lock", "generator", "lambda", "itself", "deep"]


@pytest.mark.parametrize("value", NAMELESS, ids=IDS)
def test_indistinguishable_objects_have_no_digest(value: Any) -> None:
    """In the history each looks unlike all others."""
    with pytest.raises(TypeError, match="cannot be told from others"):
        digest({"x": value})
    assert digests_of({"x": value}) != digests_of({"x": value})


class State(TypedDict, total=False):
    x: Any
    paid: bool


def verified_then_changed(first: Any, then: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("check", lambda state: {"x": first})
    builder.add_node("change", lambda state: {"x": then})
    builder.add_node("pay", lambda state: {"paid": True})
    builder.add_edge(START, "check")
    builder.add_edge("check", "change")
    builder.add_edge("change", "pay")
    return builder.compile()


@MODES
@pytest.mark.parametrize("then", [Slots(5000), lambda: 1], ids=["slots", "lambda"])
@pytest.mark.parametrize("how", ["shallow", "digest"])
def test_a_pass_for_one_object_does_not_count_for_another(how: Any, then: Any, mode: str) -> None:
    arbiter_os = ArbiterOS(snapshot=how)
    arbiter_os.add_policy_checker(RequireBefore("v", VERIFY, bound_to=["x"], target_nodes=["pay"]))
    first = Slots(5) if isinstance(then, Slots) else lambda: 2
    assert run(
        arbiter_os.govern(verified_then_changed(Slots(5), Slots(5)), {"check": VERIFY}), {}, mode=mode
    )["paid"]
    with pytest.raises(PolicyViolationError):
        run(arbiter_os.govern(verified_then_changed(first, then), {"check": VERIFY}), {}, mode=mode)


@MODES
def test_input_that_has_no_digest_cannot_be_approved(mode: str) -> None:
    builder = StateGraph(State)
    builder.add_node("pay", lambda state: {"paid": True})
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ApprovalChecker("asks", target_nodes=["pay"]))
    app = arbiter_os.govern(builder.compile(checkpointer=InMemorySaver()))
    with pytest.raises(PolicyViolationError, match="an approval could not be tied to its input"):
        run(app, {"x": deep(1, 150)}, thread("t"), mode=mode)


@MODES
def test_a_pass_for_a_whole_number_of_any_length_counts_for_it_alone(mode: str) -> None:
    """Python refuses to write very long ones in decimal."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(RequireBefore("v", VERIFY, bound_to=["x"], target_nodes=["pay"]))
    number = 1 << 20_000
    app = arbiter_os.govern(verified_then_changed(number, number), {"check": VERIFY})
    assert run(app, {}, mode=mode)["paid"]
    for other in (number + 1, ["int", hex(number)]):
        with pytest.raises(PolicyViolationError):
            run(arbiter_os.govern(verified_then_changed(number, other), {"check": VERIFY}), {}, mode=mode)
