"""A rate limit admits what a token bucket admits, exactly; a denial says when the next is possible."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from arbiter import ArbiterOS, History, PolicyViolationError, Verdict
from arbiter.checkers import RateLimitChecker
from arbiter.errors import ParameterError
from tests.support import MODES, Check, Spy, State, chain, examples, run, thread


class Clock:
    def __init__(self) -> None:
        self.nano = 5 * 10**9

    def __call__(self) -> float:
        return self.nano / 10**9


def limited(app: Any, *checkers: Any, clock: Clock | None = None) -> Any:
    arbiter_os = ArbiterOS()
    for checker in checkers:
        if isinstance(checker, RateLimitChecker):
            checker.clock = clock or Clock()
        arbiter_os.add_policy_checker(checker)
    return arbiter_os.govern(app)


def passes(app: Any, config: Any = None, *, mode: str = "sync") -> bool:
    try:
        run(app, {"log": []}, config, mode=mode)
    except PolicyViolationError:
        return False
    return True


def test_a_long_wait_is_in_whole_seconds() -> None:
    app = limited(chain(Spy("pay")), RateLimitChecker("rate", 1, 5400), clock=Clock())
    assert passes(app)
    with pytest.raises(PolicyViolationError, match="the next is possible in 5400 s"):
        run(app, {"log": []})


@MODES
def test_so_many_calls_in_so_much_time(mode: str) -> None:
    clock, pay = Clock(), Spy("pay")
    app = limited(chain(pay), RateLimitChecker("rate", 2, 10), clock=clock)
    assert [passes(app, mode=mode) for _ in range(3)] == [True, True, False]
    with pytest.raises(PolicyViolationError, match=r"2 in 10 s per process .* the next is possible in 5 s"):
        run(app, {"log": []}, mode=mode)
    clock.nano += 5 * 10**9 - 1
    assert not passes(app, mode=mode)
    clock.nano += 1
    assert [passes(app, mode=mode) for _ in range(2)] == [True, False]
    assert len(pay.calls) == 3


@MODES
def test_a_burst_may_be_smaller_than_the_rate(mode: str) -> None:
    clock = Clock()
    app = limited(chain(Spy("pay")), RateLimitChecker("rate", 60, 60, burst=1), clock=clock)
    assert [passes(app, mode=mode) for _ in range(2)] == [True, False]
    clock.nano += 10**9
    assert passes(app, mode=mode)


@MODES
def test_each_thread_or_user_has_its_own_rate(mode: str) -> None:
    per_user = RateLimitChecker("user", 1, 60, per="user")
    app = limited(chain(Spy("pay")), per_user)
    ann, bob = ({"configurable": {"user_id": who}} for who in ("ann", "bob"))
    assert [passes(app, who, mode=mode) for who in (ann, bob, ann)] == [True, True, False]
    with pytest.raises(PolicyViolationError, match="no 'user_id' in 'configurable'"):
        run(app, {"log": []}, mode=mode)
    per_thread = RateLimitChecker("thread", 1, 60, per="thread")
    app = limited(chain(Spy("pay")), per_thread)
    assert [passes(app, thread(name), mode=mode) for name in "aba"] == [True, True, False]
    with pytest.raises(PolicyViolationError, match="no thread_id"):
        run(app, {"log": []}, mode=mode)


@MODES
def test_a_body_that_does_not_begin_takes_nothing(mode: str) -> None:
    """Denied by another checker, or waiting for a human."""
    answers = [Verdict.deny("no"), Verdict.ask("may I?"), True]
    pay = Spy("pay")
    other = Check("other", lambda _: answers[0])
    app = limited(chain(pay, checkpointer=InMemorySaver()), RateLimitChecker("rate", 1, 60), other)
    assert not passes(app, thread("1"), mode=mode)
    answers.pop(0)
    run(app, {"log": []}, thread("2"), mode=mode)
    assert pay.calls == []
    run(app, Command(resume="approve"), thread("2"), mode=mode)
    assert len(pay.calls) == 1
    answers.pop(0)
    assert not passes(app, thread("3"), mode=mode)


def test_buckets_that_are_not_full_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbiter.checkers._accounts.KEEP_ACCOUNTS", 2)
    app = limited(chain(Spy("pay")), RateLimitChecker("rate", 1, 60, per="thread"))
    assert all(passes(app, thread(name)) for name in "abcde")
    assert not any(passes(app, thread(name)) for name in "abcde")


class Looking(RateLimitChecker):
    """Counts the buckets that are looked at for one to drop."""

    looks = 0

    def _is_full(self, bucket: Any) -> bool:
        self.looks += 1
        return super()._is_full(bucket)


@pytest.mark.lengthy
def test_the_cost_of_a_new_user_does_not_grow_with_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while nearly all buckets wait to be refilled. Once they are full, they are dropped again."""
    monkeypatch.setattr("arbiter.checkers._accounts.KEEP_ACCOUNTS", 50)
    clock, rate = Clock(), Looking("rate", 1, 60, per="user")
    app = limited(chain(Spy("pay")), rate, clock=clock)

    def arrive(names: range) -> None:
        for name in names:
            assert passes(app, {"configurable": {"user_id": name}})

    arrive(range(100))
    before = rate.looks
    arrive(range(100, 120))
    assert rate.looks - before <= 20 * 10
    assert not any(passes(app, {"configurable": {"user_id": name}}) for name in range(120))
    clock.nano += 61 * 10**9
    arrive(range(120, 140))
    before = rate.looks
    arrive(range(140, 160))
    assert rate.looks - before <= 20 * 2  # one goes for one that comes


class Asked:
    """Asks a checker directly, at any time, as often as one likes."""

    def __init__(self, checker: RateLimitChecker, clock: Clock) -> None:
        self.app = limited(chain(Spy("pay")), checker, clock=clock)
        self.clock = clock

    def at(self, nano: int) -> tuple[bool, float | None]:
        """Whether a call is admitted then; if not, the seconds until the next."""
        self.clock.nano = 5 * 10**9 + nano
        try:
            self.app.invoke({"log": []})
        except PolicyViolationError as denied:
            found = re.search(r"possible in (\S+) s", denied.reason)
            assert found is not None
            return False, float(found[1])
        return True, None


@pytest.mark.lengthy
@examples(0.6)
@given(
    calls=st.integers(1, 7),
    per=st.integers(1, 10_000),
    burst=st.integers(1, 9),
    gaps=st.lists(st.integers(0, 4000), min_size=1, max_size=25),
)
def test_admits_what_a_token_bucket_admits(calls: int, per: int, burst: int, gaps: list[int]) -> None:
    """As an exact bucket of fractions does, and never more than burst + rate * t in any window of length t."""
    asked = Asked(RateLimitChecker("rate", calls, per / 10**9, burst=burst), Clock())
    rate = Fraction(calls, per)
    tokens, now, admitted = Fraction(burst), 0, list[int]()
    for gap in gaps:
        now += gap
        tokens = min(tokens + gap * rate, Fraction(burst))
        allowed, wait = asked.at(now)
        assert allowed == (tokens >= 1)
        if allowed:
            tokens -= 1
            admitted.append(now)
        else:
            assert wait == pytest.approx(float((1 - tokens) / rate) / 10**9, rel=0.01, abs=1.01e-9)
    for i, begin in enumerate(admitted):
        for j in range(i, len(admitted)):
            assert j - i + 1 <= burst + rate * (admitted[j] - begin)


@MODES
@pytest.mark.parametrize("place", ["node", "subgraph", "function"])
def test_contracts_go_by_the_clock_of_the_arbiter_os(place: str, mode: str) -> None:
    """One run in a minute: an hour later by that clock there is another."""
    clock = Clock()
    arbiter_os = ArbiterOS(clock=clock)
    arbiter_os.add_policy_checker(RateLimitChecker("rate", 1, 60, target_nodes=["pay"]))
    seen: list[datetime] = []

    def look(history: History) -> bool:
        seen.append(history.now)
        return True

    arbiter_os.add_policy_checker(Check("looks", look, target_nodes=["pay"]))
    pay = Spy("pay")
    outer = StateGraph(State)
    outer.add_node("outer", chain(pay))
    outer.add_edge(START, "outer")
    app = arbiter_os.govern(chain(pay) if place == "node" else outer.compile())

    def attempt() -> bool:
        if place != "function":
            return passes(app, mode=mode)
        try:
            if mode == "sync":
                arbiter_os.execute({"log": []}, pay)
            else:
                asyncio.run(arbiter_os.aexecute({"log": []}, pay))
        except PolicyViolationError:
            return False
        return True

    assert [attempt(), attempt()] == [True, False]
    clock.nano += 3600 * 10**9
    assert [attempt(), attempt()] == [True, False]
    assert [seen[0], seen[-1]] == [datetime.fromtimestamp(5, UTC), datetime.fromtimestamp(3605, UTC)]


def test_a_checker_with_a_clock_of_its_own_goes_by_that() -> None:
    arbiter_os = ArbiterOS(clock=lambda: 10.0**9)
    checker, clock = RateLimitChecker("rate", 1, 60), Clock()
    checker.clock = clock
    arbiter_os.add_policy_checker(checker)
    app = arbiter_os.govern(chain(Spy("pay")))
    assert [passes(app), passes(app)] == [True, False]
    clock.nano += 3600 * 10**9
    assert passes(app)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    asked = Asked(RateLimitChecker("rate", 1, 1), Clock())
    assert asked.at(10**9)[0]
    assert not asked.at(0)[0]
    assert not asked.at(10**9 + 5 * 10**8)[0]
    assert asked.at(2 * 10**9)[0]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((0, 1), {}, "calls: expected a whole number above 0, got 0"),
    ((1, 0), {}, "per_seconds: expected a number above 0, got 0"),
    ((1, float("inf")), {}, "per_seconds: expected a number above 0, got inf"),
    ((1, 1), {"burst": 1.5}, "burst: expected a whole number above 0, got 1.5"),
    ((1, 1), {"per": "run"}, "per: expected 'process', 'thread' or 'user', got 'run'"),
    ((1, 1), {"user_key": "team"}, "user_key: expected per='user' with it, got per='process'"),
    ((1, 1), {"user_key": 3}, "user_key: expected a non-empty text, got 3"),
]


@pytest.mark.parametrize(("given", "named", "problem"), WRONG)
def test_errors_about_parameters_name_the_expected_value(given: Any, named: Any, problem: str) -> None:
    with pytest.raises(ParameterError, match=f"checker 'rate': {problem}"):
        RateLimitChecker("rate", *given, **named)


@pytest.mark.lengthy
def test_many_threads_at_once_take_no_more_than_there_is() -> None:
    app = limited(chain(Spy("pay")), RateLimitChecker("rate", 10, 60))
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(passes, [app] * 100)) == 10
