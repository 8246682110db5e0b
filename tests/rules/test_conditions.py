"""Conditions in CEL: what they see, what they refuse, and that they deny when they cannot tell."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from arbiter import ArbiterOS, PolicyViolationError
from arbiter._conditions import Condition, ConditionError
from arbiter._values.states import freeze
from arbiter.checkers import ConditionChecker
from arbiter.errors import ParameterError
from arbiter.evaluators import ConditionEvaluator
from arbiter.instructions import GENERATE, TOOL_CALL
from tests.processes import python
from tests.support import MODES, Spy, chain, examples, governed, quick, run, statuses, thread

ALL = frozenset({"state", "input", "output", "node", "instruction", "config", "history"})


def answer(expression: str, **values: Any) -> bool:
    return Condition(expression, ALL).evaluate(values)


def asked(expression: str, state: Any) -> bool:
    return answer(expression, state=state)


# What is asked ------------------------------------------------------------------------------------


class Level(Enum):
    HIGH = "high"


class Role(StrEnum):
    ADMIN = "admin"


class User(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    role: Role = Role.ADMIN


@dataclass(slots=True)
class Order:
    amount: int
    tags: list[str] = field(default_factory=list[str])


def state_of_all_kinds() -> dict[str, Any]:
    call = {"name": "pay", "args": {"amount": 7}, "id": "1", "type": "tool_call"}
    return {
        "user": User.model_validate({"name": "ann", "team": "red"}),
        "order": Order(7, ["a"]),
        "level": Level.HIGH,
        "price": Decimal("10.50"),
        "whole": Decimal(10),
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "took": timedelta(seconds=90),
        "id": UUID(int=1),
        "nothing": None,
        "yes": True,
        "big": 2**63,
        "bytes": bytearray(b"ab"),
        "set": {"a", "b"},
        "deque": deque([1, 2]),
        "proxy": MappingProxyType({"a": 1}),
        "default": defaultdict(int, a=1),
        "numbers": {1: "one", Level.HIGH: 1},
        "messages": [HumanMessage("hi"), AIMessage("bye", tool_calls=[call])],
        "a-b": {"c": [0, [1]]},
    }


TRUE = [
    "state.user.name == 'ann' && state.user.role == 'admin' && state.user.team == 'red'",
    "state.order.amount > 5 && 'a' in state.order.tags && state.order.tags[0] == 'a'",
    "state.level == 'high'",
    "state.price > 10.4 && state.price < 11",
    "state.whole == 10",
    "state.when < timestamp('2026-01-03T00:00:00Z') && state.when.getFullYear() == 2026",
    "state.took > duration('1m')",
    "state.id.endsWith('001')",
    "state.nothing == null && has(state.nothing)",
    "state.yes",
    "state.big > 1000",
    "state.bytes == b'ab'",
    "'a' in state.set && size(state.set) == 2",
    "state.deque[1] == 2 && state.deque.all(n, n > 0)",
    "state.proxy.a == 1 && state.proxy == {'a': 1}",
    "state.default.a == 1 && !has(state.default.b) && state['default']['a'] == 1",
    "state.numbers[1] == 'one' && state.numbers['hi' + 'gh'] == 1",
    "state.messages[0].type == 'human' && state.messages[0].content == 'hi'",
    "state.messages[size(state.messages) - 1].tool_calls[0].args.amount == 7",
    "state.messages[state.messages.size() - 2].content == 'hi' && size(state.messages) == 2",
    "state.messages.exists(m, m.type == 'ai' && m.tool_calls.exists(c, c.name == 'pay'))",
    "state.messages.filter(m, m.type == 'ai').size() == 1",
    "state.messages.filter(m, m.type == 'ai')[0].content == 'bye'",
    "state.messages.map(m, m.content) == ['hi', 'bye']",
    "state['a-b'].c[1][0] == 1 && state[\"a-b\"]['''c'''][0] == 0 && state[r'a-b']['\\x63'][0] == 0",
    "state . user . name // the 'name of state.whole\n == 'ann'",
    "!has(state.absent) || state.absent > 1",
    "has(state.user.name) && !has(state.user.absent)",
    "size(state.proxy) == 1 && size(state.user.name) == 3 && state.proxy.size() == 1",
    "state.messages[1].type == 'ai' && state.messages[size(state.messages) - 1].content == 'bye'",
    "has(state.messages[1].type) && state.messages[size(state.messages) - 1].tool_calls[0].name == 'pay'",
    "{'state': 1}.state == 1 && [state.order.amount, 2][0] == 7",
    "(state.yes ? state.order.amount : state.absent) == 7",
    "type(state.user.name) == string && 'state.x' != \"input['y']\"",
    "state.order.tags.all(t, state.user.name.contains('n') && t == 'a')",
]


@pytest.mark.parametrize("frozen", [False, True], ids=["plain", "read-only view"])
@pytest.mark.parametrize("expression", TRUE)
def test_conditions_read_what_states_hold(expression: str, frozen: bool) -> None:
    """Models, dataclasses, messages, enums, times, decimals, and read-only views of all of them."""
    state = state_of_all_kinds()
    assert asked(expression, freeze(state) if frozen else state)


NAMED = {
    "input.amount > 1000 && !state.user.is_admin": {("input", "amount"), ("state", "user", "is_admin")},
    "has(state.x.y)": {("state", "x", "y")},
    "state['a'].b[0].c == 1": {("state", "a", "b", 0, "c")},
    "state.m[state.k] == 1": {("state", "m"), ("state", "k")},
    "state.m.exists(e, e.f == input.x)": {("state", "m"), ("input", "x")},
    "node == 'pay' || 'state.x' == \"input.y\" // state.z": {("node",)},
    "state.a.size() > size(state.b)": {("state", "a"), ("state", "b")},
    "'''state.x' ''' == r\"\\\" || b'state.y' == b'z' || state.in_ == 1": {("state", "in_")},
}


@pytest.mark.parametrize(("expression", "fields"), NAMED.items())
def test_a_condition_knows_which_fields_it_names(expression: str, fields: set[Any]) -> None:
    assert Condition(expression, ALL).fields == fields


class Watched(dict[str, Any]):
    """Fails when anything else than the named fields is looked at."""

    def __iter__(self) -> Any:
        raise AssertionError("all of the state was read")

    keys = items = values = __iter__


@pytest.mark.parametrize(
    "expression",
    ["state.amount > 1", "has(state.other) || state.amount > 1", "state.user.name == 'ann'"],
)
def test_only_named_fields_are_looked_at(expression: str) -> None:
    """Other fields may hold anything, and are never touched."""
    hostile = Hostile()
    state = Watched(amount=2, other=hostile, user=Watched(name="ann", other=hostile), more=hostile)
    assert asked(expression, state)


def test_a_condition_costs_the_same_beside_a_large_state() -> None:
    """The benchmark says it in numbers; this holds that it does not grow with the state."""
    condition = Condition("state.amount > 1 && size(state.messages) > 3", ALL)
    small = {"amount": 2, "messages": ["x"] * 4}
    large = {"amount": 2, "blob": "x" * 10**7, "messages": [HumanMessage("x")] * 20_000}

    def cost(state: Any) -> float:
        times: list[float] = []
        for _ in range(300):
            begun = time.perf_counter()
            condition.evaluate({"state": state})
            times.append(time.perf_counter() - begun)
        return min(times)

    assert cost(large) < 3 * cost(small)


def test_a_condition_survives_pickling_and_copying() -> None:
    condition = Condition("state.x > 1", ALL)
    for other in (pickle.loads(pickle.dumps(condition)), copy.deepcopy(condition)):
        assert other.evaluate({"state": {"x": 2}})


# The fields are found as CEL finds them ----------------------------------------------------------

_KEYS = ["a", "b", "c"]
_LEAVES = st.sampled_from([0, 1, 2, True, False, None, "a", "b", 1.5])
_ITEMS = st.fixed_dictionaries(
    {"a": st.sampled_from([0, 1, True]), "c": st.lists(st.sampled_from([0, 1]), max_size=2)},
    optional={"b": _LEAVES},
)
_LIKELY = st.fixed_dictionaries(
    {"a": st.lists(_ITEMS, min_size=1, max_size=3), "b": _ITEMS, "c": st.lists(_LEAVES, max_size=3)}
)
_UNLIKELY = st.dictionaries(
    st.sampled_from(_KEYS),
    st.recursive(
        _LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=3,
)
_STATES = _LIKELY | _LIKELY | _LIKELY | _UNLIKELY
_LISTS = ["s.a", "s['a']", "s.c", "s.b.c", "s.a[0].c", "s.a[size(s.a) - 1].c", "s.a.filter(f, f.a == 1)"]
_MAPS = [
    "s.b",
    "s.a[0]",
    "s.a[s.a.size() - 1]",
    "s['b']",
    "s.a[1]",
    "s.a[s.b.a]",
    "s.a.filter(f, f.c == [])[0]",
]
_STEPS = [".a", ".b", "['a']", "[0]", "[1]", "['a' + '']", ".c[0]", "[size(s.c) - 1]", "[s.b.a]"]


def _questions(elements: tuple[str, ...], depth: int) -> st.SearchStrategy[str]:
    """Questions about `s` of the shape of `_LIKELY`, and about elements of its lists."""
    maps = st.sampled_from([*_MAPS, *elements])
    lists = st.sampled_from([*_LISTS, *_LISTS, *(f"{name}.c" for name in elements)])
    values = st.builds("{}.{}".format, maps, st.sampled_from("aab")) | maps | lists
    values |= st.builds("{}{}".format, maps | lists, st.sampled_from(_STEPS))
    literal = st.sampled_from(["0", "1", "'a'", "true", "null", "1.5", "[0]", "{'a': 0}"])
    simple = [
        st.builds("{} == {}".format, values, literal),
        st.builds("{} != {}".format, values, values),
        st.builds("{} in {}".format, literal, maps | lists),
        st.builds("size({}) > {}".format, maps | lists, st.sampled_from("012")),
        st.builds("{}.size() == 1".format, maps | lists),
        st.builds("has({}.{})".format, maps, st.sampled_from("abx")),
        st.builds("{0}[size({0}) - 1] == {1}".format, lists, literal),
        st.builds("{0}.size() > 0 && {0}[{0}.size() - 1] == {1}".format, lists, literal),
        st.builds("{}[{}] == 1".format, lists, values),
    ]
    if not depth:
        return st.one_of(simple)
    name = f"e{depth}"
    inner = _questions(elements, depth - 1)
    element = _questions((*elements, name, name, name), depth - 1)
    return st.one_of(
        *simple,
        st.builds("({}) && ({})".format, inner, inner),
        st.builds("!({}) || ({})".format, inner, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        *(
            st.builds(f"{{}}.{macro}({name}, {{}})".format, lists | maps, element)
            for macro in ("all", "exists", "exists_one")
        ),
        st.builds(f"{{}}.filter({name}, {{}}).size() == 1".format, lists, element),
        st.builds(f"{{}}.filter({name}, {{}})[0].a == 1".format, lists, element),
        st.builds(f"{{}}.map({name}, {{}}) == [true]".format, lists, element),
        st.builds(f"{{}}.map({name}, {{}}, {name}.a)[0] == 1".format, lists, element),
    )


def _outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception:
        return "failed"


@pytest.mark.lengthy
@examples(6)
@given(_questions((), 2), _STATES)
def test_the_passed_fields_give_the_same_answer_as_the_whole_state(
    question: str, state: dict[str, Any]
) -> None:
    """For any question and any state: never another answer, and none where CEL has none."""
    expected = _outcome(lambda: cel.compile(question).execute({"s": state}))
    if not isinstance(expected, bool):
        expected = "failed"
    found = _outcome(lambda: Condition(question, {"s"}).evaluate({"s": freeze(state)}))
    assert found == expected


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_EXACT = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)


@given(
    st.sampled_from(sorted(_OPERATORS)),
    st.one_of(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(_EXACT, _EXACT),
        st.tuples(st.text(), st.text()),
        st.tuples(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC))),
    ),
)
def test_comparisons_are_those_of_python(symbol: str, values: tuple[Any, Any]) -> None:
    """Whole numbers of 64 bits, floating point beside whole numbers up to 2**53, texts, times."""
    left, right = values
    for state in ({"a": left, "b": right}, {"a": left, "b": left}):
        assert asked(f"state.a {symbol} state.b", state) is _OPERATORS[symbol](state["a"], state["b"])


# What has no answer -------------------------------------------------------------------------------


class Hostile:
    """Answers nothing."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"nobody may ask for {name}")


class HostileMap(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no")

    get = keys = items = __iter__ = __getitem__  # type: ignore[assignment]


class LazyMap(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 1


class Leaky(BaseModel):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


def nested(depth: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.extend([loop, loop])
    return loop


def expanding() -> list[Any]:
    part: list[Any] = [1] * 10
    for _ in range(12):
        part = [part] * 10
    return part


NO_ANSWER: dict[str, tuple[str, Any, str]] = {
    "a missing field": ("state.user.name == ''", {"user": {}}, "state.user.name is missing"),
    "a missing parent": ("has(state.user.name)", {}, "state.user is missing"),
    "a missing element": ("state.l[3] == 1", {"l": [1]}, "state.l[3] is missing"),
    "the last of none": ("state.l[size(state.l) - 1] == 1", {"l": []}, "state.l[-1] is missing"),
    "a missing field of an element": ("state.l.all(e, e.ok)", {"l": [{}]}, "state.l[].ok is missing"),
    "a dynamic key": ("state.m[state.k] == 1", {"m": {}, "k": "x"}, "there is no such key"),
    "null": ("state.user.name == ''", {"user": None}, "state.user is null"),
    "a text for a number": ("state.x > 1", {"x": "2"}, "state.x is a string"),
    "a boolean for a number": ("state.x > 1", {"x": True}, "state.x is a boolean"),
    "NaN": ("state.x > 1", {"x": math.nan}, "state.x is not a number"),
    "no boolean": ("state.x", {"x": 1}, "it gave an int, expected true or false"),
    "zero": ("1 / state.x > 1", {"x": 0}, "division by zero"),
    "an overflow": ("state.x + 1 > 1", {"x": 2**63 - 1}, "overflow"),
    "a huge number": ("state.x > 1", {"x": 2**64}, "state.x holds a number that does not fit into 64 bits"),
    "a hugely negative one": ("state.x < 1", {"x": -(10**4000)}, "state.x holds a number"),
    "a lone surrogate": (
        "state.x == 'a'",
        {"x": "é\ud800"},
        "state.x holds a text that is not valid Unicode",
    ),
    "one deep inside": ("state.x.y == ['a']", {"x": {"y": ["\ud800"]}}, "state.x.y holds a text"),
    "an unknown object": ("state.x == 1", {"x": object()}, "state.x holds an object of type object"),
    "one deep inside a field": ("state.x == []", {"x": [[print]]}, "state.x holds an object of type builtin"),
    "a naive time": ("state.x == 1", {"x": datetime(2026, 1, 1)}, "state.x holds a time without a time zone"),  # noqa: DTZ001
    "an infinite decimal": ("state.x > 1", {"x": Decimal("inf")}, "state.x holds a decimal number"),
    "a hostile object": ("state.x == 1", {"x": Hostile()}, "state.x"),
    "its fields": ("state.x.y == 1", {"x": Hostile()}, "state.x"),
    "a hostile mapping": ("state.x.y == 1", {"x": LazyMap()}, "state.x could not be read: ZeroDivisionError"),
    "all of it": ("state.x == {}", {"x": LazyMap()}, "state.x could not be read"),
    "a hostile model": ("state.x.y == 1", {"x": Leaky()}, "state.x.y is missing"),
    "odd keys": ("state.x == {}", {"x": {(1, 2): 3}}, "state.x has a key that is a tuple"),
    "deep nesting": ("state.x == []", {"x": nested(5000)}, "state.x is nested more than 64 deep"),
    "a loop": ("state.x == []", {"x": itself()}, "state.x"),
    "an expanding list": ("state.x == []", {"x": expanding()}, "state.x is too large"),
    "too many": ("state.x.all(e, e > 0)", {"x": range(0)}, "state.x holds an object of type range"),
    "a pattern": ("'x'.matches(state.x)", {"x": "["}, "not a valid regex"),
}


@pytest.mark.parametrize(("expression", "state", "says"), NO_ANSWER.values(), ids=NO_ANSWER.keys())
def test_an_unanswerable_condition_is_an_error_that_names_the_field(
    expression: str, state: Any, says: str
) -> None:
    with pytest.raises(ConditionError) as caught:
        asked(expression, state)
    assert says in str(caught.value)
    assert expression in str(caught.value)
    assert caught.value.expression == expression
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (restored.problem, restored.field) == (caught.value.problem, caught.value.field)


def test_a_hostile_dict_is_read_past_its_methods() -> None:
    assert asked("state.x.y == 1 && state.x == {'y': 1}", {"x": HostileMap(y=1)})


def test_null_bytes_and_other_odd_texts_are_texts() -> None:
    assert asked("state.x == 'a\\x00b' && state.y == '😀'", {"x": "a\0b", "y": "\U0001f600"})


def test_a_panic_of_the_library_is_a_failed_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code that panics raises a BaseException; a run does not end by it. Ctrl-C still does."""

    class PanicException(BaseException):
        """As PyO3 raises it."""

    condition = Condition("state.x > 1", ALL)
    for raised, expected in (
        (PanicException("oh"), ConditionError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        monkeypatch.setattr(condition, "_program", _Raises(raised))
        with pytest.raises(expected):
            condition.evaluate({"state": {"x": 1}})


class _Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def execute(self, _: Any) -> Any:
        raise self.error


def test_a_pattern_takes_linear_time() -> None:
    """`(a+)+$`, which other engines try for ages, on 50 kB."""
    condition = Condition("state.text.matches('(a+)+$')", ALL)
    with quick(1):
        assert not condition.evaluate({"state": {"text": "a" * 50_000 + "b"}})


# What would take too much -------------------------------------------------------------------------

HOSTILE = {
    "macros in macros": ("state.xs.all(a, state.xs.all(b, a + b >= 0))", "macros would run too often"),
    "three deep": ("state.xs.all(a, state.xs.all(b, state.xs.all(c, c >= 0)))", "macros would run too often"),
    "macros over macros": ("state.xs.map(a, state.xs).all(b, b.all(c, c >= 0))", "5,000,000 steps"),
    "a list that is built": ("size(state.rows.filter(r, r.all(x, x == 'a'))) > 0", "map and filter copy"),
    "members in macros": ("state.table.all(k, state.table[k].age >= 0)", "macros would run too often"),
    "texts that grow": ("state.words.map(w, w + w).map(w, w + w).map(w, w + state.text) == []", "5,000,000"),
    "lists that grow": ("state.xs.exists(x, size(state.xs + state.xs + state.xs) == x)", "5,000,000"),
    "a long sum": ("size(" + "+".join(["state.text"] * 90) + ") > 0", "lists and texts grow too large"),
    "patterns": ("state.words.all(w, w.matches('[\\\\w.]+@[\\\\w.]+'))", "a pattern is too large"),
    "given patterns": ("state.patterns.all(p, 'a'.matches(p))", "a pattern is too large"),
    "a large pattern": ("state.text.matches('(a{100}){100}')", "a pattern is too large"),
    "a large given pattern": ("state.text.matches(state.pattern)", "a pattern is too large"),
    "one text many times": (
        "size(state.shared) > 0 && state.shared.all(t, t == '')",
        "16,000,000 characters",
    ),
    "long time": ("state.time + state.span > state.time", "a duration of more than 292 years"),
}


class Large(TypedDict, total=False):
    xs: list[int]
    rows: list[list[str]]
    table: dict[str, Any]
    words: list[str]
    text: str
    patterns: list[str]
    pattern: str
    shared: list[str]
    time: datetime
    span: timedelta


LARGE: dict[str, Any] = {
    "xs": list(range(1500)),
    "rows": [["a", "b", "c"]] * 1500,
    "table": {f"k{n}": {"age": n} for n in range(1500)},
    "words": ["word " * 50] * 1500,
    "text": "a" * 1_000_000,
    "patterns": [r"\w{50}"] * 1500,
    "pattern": "(a{100}){100}",
    "shared": ["x" * 1_000_000] * 50_000,
    "time": datetime(9999, 12, 31, tzinfo=UTC),
    "span": timedelta.max,
}


@MODES
@pytest.mark.parametrize(("expression", "says"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_condition_that_would_block_every_thread_is_denied_with_the_bound(
    expression: str, says: str, mode: str
) -> None:
    """The engine cannot be stopped, and no other thread runs meanwhile."""
    pay = Spy("pay")
    builder = StateGraph(Large)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ConditionChecker("limit", expression))
    app = arbiter_os.govern(builder.compile())
    begun = time.process_time()
    with pytest.raises(PolicyViolationError) as caught:
        run(app, LARGE, mode=mode)
    assert time.process_time() - begun < 10
    assert says in caught.value.reason
    assert not pay.calls


NESTED = "".join(f"[1].all(x{n}, " for n in range(6)) + "true" + ")" * 6
BOMBS = {
    "doubled texts": "['x']" + ".map(s, s + s)" * 40 + " == []",
    "doubled lists": "[1]" + ".map(s, [s, s])" * 40 + " == []",
    "macros six deep": NESTED,
    "members": "state.x" + ".y" * 1900 + " == 1",
    "indexes": "state.x" + "[0]" * 1200 + " == 1",
    "brackets": "(" * 1900 + "1" + ")" * 1900,
    "a sum": "1" + "+1" * 1900 + " > 0",
    "comparisons": "==".join(["true"] * 600),
}


@pytest.mark.parametrize("expression", BOMBS.values(), ids=BOMBS.keys())
def test_a_condition_too_large_for_any_values_is_refused_when_it_is_made(expression: str) -> None:
    with pytest.raises(ParameterError, match=r"steps|deep|one another"):
        ConditionChecker("limit", expression)


@pytest.mark.lengthy
def test_no_condition_ends_the_process() -> None:
    """Each of these let the engine abort, for want of memory or of stack."""
    script = f"""
import resource, threading
from arbiter._conditions import Condition, ConditionError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
threading.stack_size(512 << 10)

def ask(expression):
    try:
        Condition(expression, {{"state"}}).evaluate({{"state": {{"x": {{}}, "words": ["x" * 10_000] * 1500}}}})
    except ConditionError:
        pass

for expression in {[*BOMBS.values(), "state.words.map(w, w + w + w) == state.words.map(w, [w, w])"]!r}:
    thread = threading.Thread(target=ask, args=(expression,))
    thread.start()
    thread.join()
print("alive")
"""
    done = subprocess.run(python("-c", script), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


USUAL = {
    "any message": ("state.messages.exists(m, m.type == 'tool' && m.content.contains('DROP'))", False),
    "inside messages": ("state.messages.exists(m, m.tags.exists(t, t in state.blocked))", False),
    "a few in many": ("state.messages.exists(m, state.blocked.exists(b, m.content.contains(b)))", False),
    "pairs": ("state.blocked.all(a, state.blocked.exists(b, a == b))", True),
    "patterns": ("state.messages.exists(m, m.content.matches('DROP +TABLE'))", False),
    "a list of patterns": ("state.blocked.exists(b, state.text.matches(b))", False),
    "one pattern": (r"state.text.matches('\\w+@\\w+')", False),
    "filtered": ("size(state.recent.filter(m, m.type == 'tool')) > 3", False),
    "last": ("state.messages[size(state.messages) - 1].type == 'human'", True),
    "long text": ("state.text.contains('DROP') || state.text.startsWith('q')", False),
}


@pytest.mark.lengthy
@pytest.mark.parametrize(("expression", "holds"), USUAL.values(), ids=USUAL.keys())
def test_usual_questions_about_long_conversations_are_answered(expression: str, holds: bool) -> None:
    messages = [{"type": "human", "content": "hello " * 20, "tags": ["a", "b"]} for _ in range(1500)]
    blocked = [f"blocked{n}" for n in range(20)]
    state = {"messages": messages, "recent": messages[:300], "blocked": blocked, "text": "x" * 100_000}
    assert asked(expression, state) is holds


@pytest.mark.lengthy
@pytest.mark.parametrize("expression", ["size(state.users) > 250000", "state.users.size() > 250000"])
def test_a_size_is_asked_of_the_value_alone(expression: str) -> None:
    """However large it is: its members, of which CEL gets 200,000 at most, are not read."""
    users = {f"u{number}": number for number in range(300_000)}
    assert asked(expression, {"users": users})
    assert asked(expression, {"users": list(users)})
    assert not asked(expression, {"users": {"u1": 1}})
    with pytest.raises(ConditionError, match="is too large"):
        asked(f"{expression} && 'u1' in state.users", {"users": users})


@pytest.mark.parametrize("users", [["a"], {"a": 1}])
def test_an_error_beside_a_size_does_not_name_the_kind_of_its_value(users: Any) -> None:
    with pytest.raises(ConditionError, match=r"kinds of values: state\.name is a string$"):
        asked("size(state.users) > state.name", {"users": users, "name": "x"})


# What is no condition -----------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str]] = {
    "unfinished": ("input.amount >", "line 1, column 15"),
    "second line": ("input.amount > 1\n&& && true", "line 2, column 4"),
    "assignment": ("input.amount = 1", "Write == to compare"),
    "and": ("input.a and input.b", "Write && for and"),
    "or": ("input.a or input.b", "Write || for or"),
    "not": ("not input.a", "Write ! for not"),
    "True": ("input.a == True", "Write true"),
    "empty": ("  ", "it is empty"),
    "unknown variable": ("inptu.amount > 1", "there is no variable 'inptu'. Variables: "),
    "its nearest": ("inptu.amount > 1", "Did you mean 'input'?"),
    "in a macro": ("input.l.all(x, y > 1)", "there is no variable 'y'"),
    "after a macro": ("input.l.all(x, x > 1) && x > 1", "there is no variable 'x'"),
    "unknown function": ("lower(input.a) == 'b'", "there is no function 'lower'"),
    "unknown method": ("input.a.startswith('b')", "Did you mean 'startsWith'?"),
    "whole state": ("size(state) > 1", "it needs all of 'state'"),
    "dynamic": ("state[input.key] == 1", "it needs all of 'state'"),
    "as a list": ("state.exists(k, k == 'a')", "it needs all of 'state'"),
    "bare": ("input == state", "it needs all of"),
    "in": ("'x' in state", "has(state.x) says whether"),
    "in brackets": ("(state).x == 1", "it needs all of 'state'"),
    "shadowing": ("input.l.all(state, state > 1)", "'state' is already a variable"),
    "pattern": ("input.a.matches('(')", "matches('(') fails: unclosed group"),
    "large pattern": ("input.a.matches('(x{1000}){1000}')", "fails: Compiled regex exceeds size limit"),
    "pattern with the words of the engine": ("input.a.matches('(a. Check ')", "fails: unclosed group"),
    "look-around": ("input.a.matches('(?=a)')", "look-around"),
    "timestamp": ("timestamp('today') > input.a", "timestamp('today') fails"),
    "message": ("Foo{a: 1}.a == 1", "'Foo' is not a message type"),
    "leading dot": (".input.a == 1", "begins with a dot"),
    "long": ("input.a == 1" + " " * 4000, "4,012 characters"),
    "deep": ("(" * 60 + "input.a" + ")" * 60, "more than 50 deep"),
    "null byte": ("input.a\0 == 1", "line 1, column 8"),
    "surrogate": ("input.a == '\ud800'", ""),
    "big number": ("input.a > 99999999999999999999", "line 1, column 11: invalid int literal"),
}


@pytest.mark.parametrize(("expression", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_condition_is_refused_when_it_is_made(expression: str, says: str) -> None:
    """Where, what was found, and what to write."""
    with pytest.raises(ParameterError) as caught:
        ConditionChecker("limit", expression)
    assert says in str(caught.value)
    assert (caught.value.owner, caught.value.parameter) == ("checker 'limit'", "deny_when")
    with pytest.raises(ConditionError):
        Condition(expression, ALL)


def test_a_condition_before_the_node_that_names_its_output_is_sent_elsewhere() -> None:
    with pytest.raises(ParameterError, match="has no output yet when a checker is asked") as caught:
        ConditionChecker("limit", "output.paid > 1")
    assert "Did you mean" not in str(caught.value)


PARAMETERS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "none": (lambda: ConditionChecker("c"), "deny_when", "Give deny_when, ask_when or both"),
    "ask": (lambda: ConditionChecker("c", ask_when="a ="), "ask_when", "line 1"),
    "number": (lambda: ConditionChecker("c", cast(Any, 3)), "deny_when", "got 3"),
    "reason": (lambda: ConditionChecker("c", "true", reason=cast(Any, 3)), "reason", "expected a text"),
    "output": (lambda: ConditionChecker("c", "output.x"), "deny_when", "there is no variable 'output'"),
    "internal": (lambda: ConditionChecker("c", "has(config.__pregel_x)"), "deny_when", "LangGraph's own"),
    "instruction": (
        lambda: ConditionChecker("c", "history.counts.TOOL_CAL > 1"),
        "deny_when",
        "Did you mean 'TOOL_CALL'?",
    ),
    "all counts": (
        lambda: ConditionChecker("c", "history.counts[input.i] > 1"),
        "deny_when",
        "Write history.count, history.counts.TOOL_CALL",
    ),
    "entries": (lambda: ConditionChecker("c", "history.entries[0].x"), "deny_when", "the history has no"),
    "pass_when": (lambda: ConditionEvaluator("e", "state.x"), "pass_when", "there is no variable 'state'"),
}


@pytest.mark.parametrize(("make", "parameter", "says"), PARAMETERS.values(), ids=PARAMETERS.keys())
def test_wrong_parameters_are_refused(make: Callable[[], Any], parameter: str, says: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make()
    assert caught.value.parameter == parameter
    assert says in str(caught.value)


# In a graph ---------------------------------------------------------------------------------------


def paying(pay: Spy, *contracts: Any, instruction: Any = TOOL_CALL, **options: Any) -> tuple[ArbiterOS, Any]:
    return governed(chain(pay, **options), *contracts, instructions={"pay": instruction})


@MODES
def test_a_condition_that_holds_denies(mode: str) -> None:
    pay = Spy("pay")
    _, app = paying(pay, ConditionChecker("limit", "input.amount > 1000 && instruction == 'TOOL_CALL'"))
    run(app, {"log": [], "amount": 1000}, mode=mode)
    with pytest.raises(PolicyViolationError) as caught:
        run(app, {"log": [], "amount": 1001}, mode=mode)
    assert len(pay.calls) == 1
    assert caught.value.reason == "input.amount > 1000 && instruction == 'TOOL_CALL'"


@MODES
@pytest.mark.parametrize("asks", [False, True], ids=["deny_when", "ask_when"])
def test_a_missing_field_denies_and_is_named(mode: str, asks: bool) -> None:
    """Also where the condition would only have asked."""
    pay = Spy("pay")
    expression = "state.amount > 1000 && state.log == []"
    checker = (
        ConditionChecker("limit", ask_when=expression) if asks else ConditionChecker("limit", expression)
    )
    _, app = paying(pay, checker)
    with pytest.raises(PolicyViolationError, match=r"state\.amount is missing"):
        run(app, {"log": []}, mode=mode)
    assert pay.calls == []


@MODES
def test_a_field_may_be_optional(mode: str) -> None:
    pay = Spy("pay")
    _, app = paying(pay, ConditionChecker("limit", "has(state.amount) && state.amount > 1000"))
    run(app, {"log": []}, mode=mode)
    assert len(pay.calls) == 1


@MODES
def test_a_question_is_put_to_a_human_and_a_denial_is_stronger(mode: str) -> None:
    pay = Spy("pay")
    checker = ConditionChecker(
        "limit", "input.amount > 1000", ask_when="input.amount > 100", reason="a large amount"
    )
    _, app = paying(pay, checker, checkpointer=InMemorySaver())
    paused = run(app, {"log": [], "amount": 500}, thread("asks"), mode=mode)
    assert paused["__interrupt__"][0].value["reason"] == "a large amount"
    assert pay.calls == []
    run(app, Command(resume="approve"), thread("asks"), mode=mode)
    assert len(pay.calls) == 1
    with pytest.raises(PolicyViolationError, match="a large amount"):
        run(app, {"log": [], "amount": 5000}, thread("denies"), mode=mode)


@MODES
def test_the_history_gives_totals(mode: str) -> None:
    """Of instructions, nodes and denials, over the runs of a thread."""
    pay = Spy("pay")
    checkers = [
        ConditionChecker("never", "input.amount > 1000", on_deny="end"),
        ConditionChecker("calls", "history.counts.TOOL_CALL > 3", reason="three calls are enough"),
        ConditionChecker("nodes", "history.nodes.pay != history.counts['ExecutionCore.TOOL_CALL']"),
        ConditionChecker("all", "history.nodes.pay != history.count"),
        ConditionChecker("trust", "history.denied.never > 0 && history.nodes.other == 0"),
    ]
    _, app = paying(pay, *checkers, checkpointer=InMemorySaver())
    for _ in range(3):
        run(app, {"log": [], "amount": 1}, thread("calls"), mode=mode)
    with pytest.raises(PolicyViolationError, match="three calls are enough"):
        run(app, {"log": [], "amount": 1}, thread("calls"), mode=mode)
    run(app, {"log": [], "amount": 5000}, thread("trust"), mode=mode)
    with pytest.raises(PolicyViolationError, match="policy 'trust'"):
        run(app, {"log": [], "amount": 1}, thread("trust"), mode=mode)
    assert len(pay.calls) == 3


@MODES
def test_the_config_of_the_run_is_known(mode: str) -> None:
    pay = Spy("pay")
    _, app = paying(pay, ConditionChecker("users", "!(config.user in ['ann', 'bob'])"))
    run(app, {"log": []}, {"configurable": {"user": "ann"}}, mode=mode)
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, {"configurable": {"user": "eve"}}, mode=mode)
    with pytest.raises(PolicyViolationError, match=r"config\.user is missing"):
        run(app, {"log": []}, mode=mode)
    assert len(pay.calls) == 1


@MODES
def test_without_an_instruction_it_is_null(mode: str) -> None:
    pay = Spy("pay")
    _, app = paying(pay, ConditionChecker("c", "instruction != null || node != 'pay'"), instruction=GENERATE)
    with pytest.raises(PolicyViolationError):
        run(app, {"log": []}, mode=mode)
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(ConditionChecker("c", "instruction != null || node != 'pay'"))
    run(arbiter_os.govern(chain(pay)), {"log": []}, mode=mode)
    assert len(pay.calls) == 1


class Batch(TypedDict):
    amounts: list[int]
    amount: int


@MODES
def test_a_node_called_by_send_is_checked_on_what_it_was_sent(mode: str) -> None:
    builder = StateGraph(Batch)
    done: list[int] = []

    def pay(state: Batch) -> dict[str, Any]:
        done.append(state["amount"])
        return {}

    def pays(state: Batch) -> list[Send]:
        return [Send("pay", {"amount": amount}) for amount in state["amounts"]]

    builder.add_node("pay", pay)
    builder.add_conditional_edges(START, pays, ["pay"])
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(
        ConditionChecker("limit", "state.amount > 10 || input.amount > 10", on_deny="end")
    )
    run(arbiter_os.govern(builder.compile()), {"amounts": [1, 50, 7]}, mode=mode)
    assert sorted(done) == [1, 7]
    assert sorted(status for _, status in statuses(arbiter_os)) == ["completed", "completed", "denied"]


def test_a_condition_beyond_the_input_is_not_answered_from_a_cache() -> None:
    assert not ConditionChecker("c", "input.x > 1 && node == 'a'").reads_history
    assert ConditionChecker("c", "input.x > 1", ask_when="history.count > 1").reads_history
    assert ConditionChecker("c", "config.user == 'eve'").reads_history


@MODES
@pytest.mark.parametrize("durable", [False, True])
def test_an_output_is_judged(mode: str, durable: bool) -> None:
    pay = Spy("pay", score=0.7)
    evaluator = ConditionEvaluator("good", "output.score > 0.5 && output.log[0] == node", durable=durable)
    more = ConditionEvaluator("more", "output.score > input.score && history.counts.TOOL_CALL == 1")
    arbiter_os, app = paying(pay, evaluator, more)
    run(app, {"log": [], "score": 0.9}, mode=mode)
    results = arbiter_os.history.entries[-1][-1].evaluation_results
    assert (results["good"].score, results["good"].passed) == (1.0, True)
    assert (results["more"].score, results["more"].passed) == (0.0, False)
    assert "output.score > input.score" in results["more"].feedback


@MODES
def test_an_output_that_cannot_be_judged_has_no_score(mode: str) -> None:
    pay = Spy("pay")
    arbiter_os, app = paying(pay, ConditionEvaluator("good", "output.score > 0.5"))
    run(app, {"log": []}, mode=mode)
    item = arbiter_os.history.entries[-1][-1]
    assert "good" not in item.evaluation_results
    assert "output.score is missing" in item.evaluation_errors["good"]


@pytest.mark.lengthy
def test_the_library_is_imported_when_a_condition_is_made() -> None:
    """`import arbiter` does not bring it."""
    code = "import sys, arbiter, arbiter.checkers, arbiter.evaluators; assert 'cel' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
