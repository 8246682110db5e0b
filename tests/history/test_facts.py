"""The reducer of facts: its account of the past equals a count over the full list of what happened."""

from __future__ import annotations

import copy
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.history import _facts as facts
from arbiter.history import _past
from arbiter.history._facts import NESTED_RUN, RUN, Value, fold
from arbiter.history._past import Past
from tests.support import examples

pytestmark = pytest.mark.lengthy

NODES, KINDS, KEYS = ["a", "b"], ["X", "Y"], ["k", "l", "m"]


@dataclass(slots=True)
class Happened:
    """One committed node run, as the slow account has it."""

    run: int
    step: int
    fact: dict[str, Any]
    seen: list[Happened] = field(default_factory=list["Happened"])
    """What was in its past, or in its body."""


@dataclass(slots=True)
class Account:
    """The full list of what happened, in the graph and those around it."""

    run: int = 0
    steps: int = 0
    run_from: int = 0
    list: list[Happened] = field(default_factory=list[Happened])

    def inside(self) -> Account:
        return Account(self.run, self.steps, self.run_from, [*self.list])


amounts = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(-2, 3), max_size=2)
plain = st.fixed_dictionaries(
    {"node": st.sampled_from(NODES)},
    optional={
        "in": st.sampled_from(KINDS),
        "status": st.sampled_from(["denied", "failed"]),
        "checks": st.just({"p": "deny"}),
        "tallies": st.dictionaries(st.sampled_from(["p", "q"]), amounts, min_size=1),
    },
)


def with_graphs(writes: Any) -> Any:
    """Node runs in whose body graphs run: each a list of supersteps of node runs."""
    graphs = st.lists(st.lists(st.lists(writes, min_size=1, max_size=3), max_size=3), min_size=1, max_size=2)
    return st.tuples(plain, graphs).map(lambda pair: {**pair[0], "graphs": pair[1]})


writes = st.recursive(plain, with_graphs, max_leaves=6)
supersteps = st.lists(writes, min_size=1, max_size=3)
programs = st.lists(st.one_of(st.just("run"), supersteps), max_size=12)


def play(
    step: list[Any], value: Value, before: Past | None, known: Account, keep: int
) -> Generator[tuple[Past, Account], None, Value]:
    """One superstep: yields (past, account) wherever a node could look at the past. Returns the new value."""
    committed: list[Any] = []
    happened: list[Happened] = []
    longest = 1
    ends: list[Happened] = []
    for write in step:
        fact = {key: part for key, part in write.items() if key != "graphs"}
        fact.update(id=str(len(happened)), step=0, at=0.0)
        results: list[Value] = []
        within: list[Happened] = []
        for graph in write.get("graphs", ()):
            inner, account = fold({}, [NESTED_RUN], keep), known.inside()
            for inner_step in graph:
                inner = yield from play(inner_step, inner, Past(value, before), account, keep)
            results.append(inner)
            longest = max(longest, account.steps - known.steps)
            within += account.list[len(known.list) :]
        if results:
            merged = results[0] if len(results) == 1 else fold({}, [{"inner": v} for v in results], keep)
            fact_with = {"inner": merged, **fact}
        else:
            fact_with = fact
        committed.append(fact_with)
        ends.append(Happened(known.run, 0, fact, [*known.list, *within]))
        happened += [*within, ends[-1]]
    for end in ends:
        end.step = known.steps + longest
    known.list += happened
    known.steps += longest
    unchanged = copy.deepcopy(value)
    new = fold(value, committed, keep)
    assert value == unchanged, "a fold leaves the value before as it was"
    assert json.loads(json.dumps(new)) == new
    assert len(new["facts"]) <= keep
    yield Past(new, before), known
    return new


def agree(past: Past, known: Account) -> None:
    numbered = list(enumerate(known.list, 1))
    assert past.seq == len(numbered)
    assert past.steps == known.steps
    assert past.run_from == known.run_from
    for policy in ("p", "q"):
        for key in KEYS:
            counted = [
                (number, one)
                for number, one in numbered
                if key in one.fact.get("tallies", {}).get(policy, {})
            ]
            anew = [one for _, one in counted if one.fact["tallies"][policy][key] is None]
            gone = {id(seen) for one in anew for seen in one.seen}
            grown = [
                (number, one.run, one.step, 0 if id(one) in gone else one.fact["tallies"][policy][key] or 0)
                for number, one in counted
            ]
            assert past.tally(policy, key) == (
                sum(amount for *_, amount in grown),
                grown[-1][0] if grown else 0,
                sum(amount for _, run, _, amount in grown if run == known.run),
            )
            assert past.tallied_in(policy, key) == (max(step for _, _, step, _ in grown) if grown else None)
    for node in NODES:
        own = [(number, one.fact) for number, one in numbered if one.fact["node"] == node]
        done = [number for number, fact in own if "status" not in fact]
        assert past.total("nodes", node) == len(own)
        assert past.done_at(node) == (done[-1] if done else None)
        last = past.last(node=node)
        assert (last and {**last, "id": ""}) == (own[-1][1] | {"id": ""} if own else None)
    for kind in KINDS:
        own = [(number, one.fact) for number, one in numbered if one.fact.get("in") == kind]
        done = [number for number, fact in own if "status" not in fact]
        assert past.total("instructions", kind) == len(own)
        assert past.first_at(kind) == (done[0] if done else None)
        assert past.last_at(kind) == (done[-1] if done else None)
    denied = [o for _, o in numbered if "status" in o.fact and "checks" in o.fact]
    assert past.total("denied", "p") == len(denied)


@examples(1.5)
@given(program=programs, keep=st.integers(1, 5))
def test_totals_and_tallies_equal_a_count_over_everything(program: list[Any], keep: int) -> None:
    """Also inside of nested graphs, over several runs, and when facts were dropped."""
    value: Value = {}
    known = Account()
    for part in program:
        if part == "run":
            value = fold(value, [RUN], keep)
            known.run += 1
            known.run_from = len(known.list)
            agree(Past(value), known)
            continue
        playing = play(part, value, None, known, keep)
        while True:
            try:
                agree(*next(playing))
            except StopIteration as done:
                value = done.value
                break


def counting(**amounts: float) -> dict[str, Any]:
    return {"id": "", "node": "a", "step": 0, "at": 0.0, "tallies": {"p": amounts}}


def test_the_keys_that_changed_last_are_kept() -> None:
    value: Value = {}
    for number in range(300):
        value = fold(value, [counting(**{f"k{number}": 1, "always": 1})])
    past = Past(value)
    assert len(value["tallies"]["p"]) == facts.KEEP_TALLIES
    assert past.tally("p", "always") == (300, 300, 300)
    assert past.tally("p", "k0") == (0, 0, 0)
    assert past.tally("p", "k299") == (1, 300, 300 - 299)
    again = fold(value, [counting(k60=1)])
    assert next(iter(again["tallies"]["p"])) == "k45"
    assert list(again["tallies"]["p"])[-1] == "k60"


def test_a_run_begins_to_count_anew() -> None:
    value = fold({}, [RUN])
    value = fold(value, [counting(k=2)])
    value = fold(value, [RUN])
    assert Past(value).tally("p", "k") == (2, 1, 0)
    value = fold(value, [counting(k=3)])
    assert Past(value).tally("p", "k") == (5, 2, 3)
    inner = fold(fold({}, [NESTED_RUN]), [counting(k=4)])
    assert Past(inner, Past(value)).tally("p", "k") == (9, 3, 7)
    value = fold(value, [{"inner": inner, **counting(k=1)}])
    assert Past(value).tally("p", "k") == (10, 4, 8)


def test_a_graph_that_is_called_again_starts_afresh() -> None:
    """Its first count is already part of the graph that called it."""
    inner = fold(fold({}, [NESTED_RUN]), [counting(k=4)])
    outer = fold({}, [{"inner": inner, **counting(k=0)}])
    again = fold(inner, [NESTED_RUN])
    assert Past(again, Past(outer)).tally("p", "k") == (4, 2, 4)


def is_graph(part: object) -> bool:
    return isinstance(part, list)


pays = st.recursive(
    st.tuples(st.sampled_from(["pass", "use"]), st.integers(0, 7)),
    lambda inside: st.lists(inside, min_size=1, max_size=12),
    max_leaves=40,
)


@examples(1.5)
@given(program=st.lists(pays, max_size=40))
def test_a_forgotten_pass_denies_and_a_forgotten_use_allows_nothing(program: list[Any]) -> None:
    """A balance is never more than it really is, however many keys were dropped in whatever graph."""
    real: dict[str, int] = {}

    def go(program: list[Any], value: Value, before: Past | None, depth: int) -> Value:
        for part in program:
            if is_graph(part):
                if depth < 2:
                    inner = go(part, fold({}, [NESTED_RUN]), Past(value, before), depth + 1)
                    value = fold(value, [{"inner": inner, **counting()}])
                continue
            act: str = part[0]
            key = f"k{part[1]}"
            if act == "use" and Past(value, before).tally("p", key)[0] < 1:
                continue
            real[key] = real.get(key, 0) + (1 if act == "pass" else -1)
            value = fold(value, [counting(**{key: 1 if act == "pass" else -1})])
            for name, amount in real.items():
                assert Past(value, before).tally("p", name)[0] <= amount
                assert amount >= 0
        return value

    with patch.object(facts, "KEEP_TALLIES", 3), patch.object(facts, "_MOST_TALLIES", 12):
        go(program, {}, None, 0)


def test_tallies_stay_bounded_whatever_their_sign() -> None:
    value: Value = {}
    for number in range(1200):
        value = fold(value, [counting(**{f"k{number}": -1})])
    assert len(value["tallies"]["p"]) == 4 * facts.KEEP_TALLIES


one_or_more = st.one_of(st.just([RUN]), st.lists(plain, min_size=1, max_size=2))


@examples(2)
@given(
    program=st.lists(one_or_more, max_size=25),
    keep=st.integers(1, 12),
    most=st.sampled_from([2, 256]),
    grown=st.sampled_from([3, 32]),
    looked=st.lists(st.booleans(), min_size=26, max_size=26),
    back=st.integers(0, 25),
)
def test_facts_that_wait_are_read_as_if_they_were_folded(
    program: list[list[dict[str, Any]]], keep: int, most: int, grown: int, looked: list[bool], back: int
) -> None:
    """Every read, at any time, returns the result of a fold at each superstep; also if two runs go on from
    one past."""
    value: Value = {}
    waiting = Past(value, keep=keep)
    outer = Past(fold({}, [RUN, {"id": "", "node": "a", "step": 0, "at": 0.0, "in": "X"}]))
    known: list[tuple[Past, Value]] = []
    with (
        patch.object(facts, "KEEP_TALLIES", most),
        patch.object(facts, "_MOST_TALLIES", 4 * most),
        patch.object(_past, "KEEP_TALLIES", most),
        patch.object(_past, "_LONGEST_TAIL", grown),
    ):
        steps = [[RUN], *(committed(number, writes) for number, writes in enumerate(program, 1))]
        for writes, read in zip(steps, looked, strict=False):
            value = fold(value, writes, keep)
            waiting = waiting.after(writes)
            known.append((waiting, value))
            if read:
                for before in (None, outer):
                    assert told(waiting.inside(before)) == told(Past(value, before, keep))
        waiting, value = known[back % len(known)]
        for writes in steps[1:4]:
            value = fold(value, writes, keep)
            waiting = waiting.after(writes)
            known.append((waiting, value))
        for past, value in known:
            assert told(past) == told(Past(value, None, keep))


def committed(number: int, writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The writes of one superstep as facts."""
    if writes == [RUN]:
        return writes
    return [{"id": f"{number}.{at}", "step": number, "at": 0.0, **w} for at, w in enumerate(writes)]


def told(past: Past) -> list[Any]:
    """All answers of a past; its value last, because reading the value folds."""
    policies = ("p", "q")
    return [
        (past.seq, past.steps, past.run_from, past.redirects("r")),
        [past.total(kind, key) for kind, keys in (("nodes", NODES), ("instructions", KINDS)) for key in keys],
        past.total("denied", "p"),
        [(past.tally(p, k), past.tallied_in(p, k), past.own_tally(p, k)) for p in policies for k in KEYS],
        [past.tally_keys(policy) for policy in policies],
        [(past.first_at(kind), past.last_at(kind), past.last(instruction=kind)) for kind in KINDS],
        [(past.done_at(node), past.last(node=node)) for node in NODES],
        past.last(node="a", instruction="X"),
        past.this_run(),
        list(past.newest(of_run=True)),
        list(past.facts()),
        json.dumps(past.value.get("tallies")),  # the order of the keys counts too
        past.value,
    ]
