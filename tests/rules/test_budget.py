"""A budget is never passed at admission, however many node runs begin at once; each use is counted once; it
survives a crash."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from arbiter import EvaluationResult, History, PolicyViolationError, Verdict
from arbiter.checkers import BudgetChecker
from arbiter.checkers._budget import Usage
from arbiter.errors import ParameterError
from arbiter.models import Price
from tests.processes import python
from tests.support import (
    MODES,
    PATIENCE,
    Check,
    Hold,
    Judge,
    Route,
    Spy,
    State,
    chain,
    examples,
    good,
    governed,
    run,
    statuses,
    thread,
)

FULL = os.environ.get("ARBITER_STRESS") == "full"


def larger(one: int, other: int) -> int:
    return max(one, other)


class Fan(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: Annotated[int, larger]


class Bodies:
    """A node that remembers which of its branches began."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.began: list[int] = []
        self.seconds = seconds

    def runnable(self) -> Any:
        def work(state: Any) -> Any:
            self.began.append(state["n"])
            time.sleep(self.seconds)
            return {"log": [str(state["n"])]}

        async def awork(state: Any) -> Any:
            self.began.append(state["n"])
            await asyncio.sleep(self.seconds)
            return {"log": [str(state["n"])]}

        return RunnableLambda(work, awork)


def fan(work: Any, width: int, *, checkpointer: Any = None, retry: RetryPolicy | None = None) -> Any:
    builder = StateGraph(Fan)
    builder.add_node("work", work, retry_policy=retry)

    def sends(_: Any) -> list[Send]:
        return [Send("work", {"n": n}) for n in range(width)]

    builder.add_conditional_edges(START, sends)
    return builder.compile(checkpointer=checkpointer)


def used(budget: BudgetChecker, account: str | None = None) -> Usage:
    usage = budget.used(account)
    assert usage is not None
    return usage


class Talker(BaseChatModel):
    """Answers "ok", and says what that used."""

    usage: Any = (8, 2)
    model: str = "tiny"
    fails: bool = False
    called: Any = None

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _message(self, kind: Any) -> Any:
        if self.fails:
            raise ValueError("no answer")
        if self.called is not None:
            self.called.append(1)
        told = None
        if self.usage is not None:
            given, made = self.usage
            told = UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)
        return kind(content="ok", usage_metadata=told, response_metadata={"model_name": self.model})

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._message(AIMessage))])


class Streamer(Talker):
    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="o"))
        yield ChatGenerationChunk(message=self._message(AIMessageChunk))

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="o"))
        yield ChatGenerationChunk(message=self._message(AIMessageChunk))


def says(model: Any, times: int = 1) -> Any:
    """A node that asks `model` a number of times."""

    def talk(state: Any) -> Any:
        return {"log": [str(model.invoke("hello").content) for _ in range(times)]}

    async def atalk(state: Any) -> Any:
        return {"log": [str((await model.ainvoke("hello")).content) for _ in range(times)]}

    return RunnableLambda(talk, atalk)


# Calls --------------------------------------------------------------------------------------------


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("on_deny", ["end", "raise"])
def test_a_fan_out_runs_exactly_as_many_bodies_as_the_budget_allows(mode: str, on_deny: str) -> None:
    fan_outs(mode, on_deny, 5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@MODES
@pytest.mark.parametrize("on_deny", ["end", "raise"])
def test_a_fan_out_runs_exactly_as_many_bodies_a_thousand_times(mode: str, on_deny: str) -> None:
    fan_outs(mode, on_deny, 1000 if FULL else 60)


def fan_outs(mode: str, on_deny: str, times: int) -> None:
    """With "end" ten bodies run and ten updates are in the state. With "raise" LangGraph stops the superstep at the
    first denial; by then ten were admitted, and the body of one that is cancelled before it begins is not counted.
    """
    for _ in range(times):
        bodies = Bodies()
        budget = BudgetChecker("budget", calls=10, target_nodes=["work"], on_deny=on_deny)
        arbiter_os, app = governed(fan(bodies.runnable(), 100), budget)
        if on_deny == "end":
            assert len(run(app, {"log": []}, mode=mode)["log"]) == 10
            assert len(bodies.began) == 10
        else:
            with pytest.raises(PolicyViolationError, match="10 calls of this run"):
                run(app, {"log": []}, mode=mode)
            assert len(bodies.began) <= 10
        ran = [item for item in arbiter_os.history.items() if item.status == "completed"]
        assert len(bodies.began) == used(budget).calls >= len(ran)
        if on_deny == "end":
            assert used(budget).calls == 10
            assert used(budget).seconds == pytest.approx(sum(item.duration for item in ran))


def _amount(state: Any) -> str:
    return str(state["amount"])


def _asks(state: Any) -> Any:
    return {"log": [interrupt("sure?")]}


@MODES
@pytest.mark.parametrize("inside", [False, True])
def test_an_output_from_a_node_cache_uses_nothing(inside: bool, mode: str) -> None:
    """Also in another thread, and where the run pauses beside it."""
    body = Spy("work")
    builder: Any = StateGraph(State)
    builder.add_node(
        "cached",
        chain(body) if inside else body,
        cache_policy=CachePolicy(key_func=_amount),
    )
    builder.add_node("asks", _asks)
    for name in ("cached", "asks"):
        builder.add_edge(START, name)
    budget = BudgetChecker("budget", calls=2, per="thread", target_nodes=["work" if inside else "cached"])
    _, app = governed(builder.compile(checkpointer=InMemorySaver(), cache=NodeCache()), budget)

    def turn(amount: int, where: str) -> None:
        run(app, {"amount": amount}, thread(where), mode=mode)
        run(app, Command(resume="yes"), thread(where), mode=mode)

    for where in ("1", "1", "2", "1", "2"):
        turn(1, where)
    turn(2, "1")
    assert len(body.calls) == 2
    for amount in (1, 2):
        turn(amount, "1")
    with pytest.raises(PolicyViolationError, match="2 of 2 calls of this thread are used"):
        turn(3, "1")
    for amount in (3, 4):
        turn(amount, "2")
    assert len(body.calls) == 4


def test_a_shadow_budget_counts_cached_outputs_as_one_in_force_does(tmp_path: Path) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("cached", Spy("work"), cache_policy=CachePolicy(key_func=_amount))
    builder.add_edge(START, "cached")
    rules = "name: next\nversion: 1\ndescription: Next\ncheckers:\n"
    (tmp_path / "next.yaml").write_text(rules + "  - {use: budget, name: next, calls: 2, per: thread}\n")
    budget = BudgetChecker("budget", calls=2, per="thread")
    arbiter_os, app = governed(builder.compile(checkpointer=InMemorySaver(), cache=NodeCache()), budget)
    arbiter_os.load_shadow(tmp_path / "next.yaml")
    for amount in (1, 1, 1, 2):
        run(app, {"amount": amount}, thread("1"))
    assert repr(arbiter_os.shadow_report()) == "<ShadowReport: 0 of 2 decisions differ>"


def _to_parent(state: Any) -> Command[Any]:
    return Command(graph=Command.PARENT, update={"log": ["inside"]}, goto="after")


@MODES
def test_a_graph_that_commands_its_parent_uses_budget_beside_a_node_cache(mode: str) -> None:
    saver, inner, builder = InMemorySaver(), StateGraph(State), StateGraph(State)
    inner.add_node("commands", _to_parent)
    inner.add_edge(START, "commands")
    builder.add_node("before", lambda state: {"log": ["before"]}, cache_policy=CachePolicy(key_func=_amount))
    builder.add_node("sub", inner.compile())
    builder.add_node("after", lambda state: {"log": ["after"]})
    builder.add_edge(START, "before")
    builder.add_edge("before", "sub")
    graph = builder.compile(checkpointer=saver, cache=NodeCache())
    for _ in range(2):
        budget = BudgetChecker("budget", calls=2, per="thread", target_nodes=["sub"])
        run(governed(graph, budget)[1], {"amount": 1}, thread("1"), mode=mode)
    budget = BudgetChecker("budget", calls=2, per="thread", target_nodes=["sub"])
    with pytest.raises(PolicyViolationError, match="2 of 2 calls of this thread are used"):
        run(governed(graph, budget)[1], {"amount": 1}, thread("1"), mode=mode)


@pytest.mark.lengthy
@MODES
def test_a_raised_denial_admits_exactly_the_limit_over_all_resumes(mode: str) -> None:
    """Whatever LangGraph cancelled, the run goes on as often as one likes: no more than ten bodies, ten in the end."""
    bodies = Bodies(0.001)
    budget = BudgetChecker("budget", calls=10, target_nodes=["work"])
    _, app = governed(fan(bodies.runnable(), 40, checkpointer=InMemorySaver()), budget)
    for attempt in range(4):
        with pytest.raises(PolicyViolationError):
            run(app, None if attempt else {"log": []}, thread("1"), mode=mode)
    # In an event loop the admitted ones are cancelled on the way, and begin again: they are the same node runs.
    assert len(set(bodies.began)) == 10
    assert used(budget).calls == 10


@MODES
def test_each_run_has_its_own_account_and_a_thread_has_one(mode: str) -> None:
    bodies = Bodies()
    per_run = BudgetChecker("run", calls=3, on_deny="end")
    per_thread = BudgetChecker("thread", calls=7, per="thread", on_deny="end")
    _, app = governed(fan(bodies.runnable(), 3, checkpointer=InMemorySaver()), per_run, per_thread)
    counts: list[int] = []
    for name in ("a", "a", "a", "b"):
        before = len(bodies.began)
        run(app, {"log": []}, thread(name), mode=mode)
        counts.append(len(bodies.began) - before)
    assert counts == [3, 3, 1, 3]
    assert (used(per_thread, "a").calls, used(per_thread, "b").calls) == (7, 3)
    assert per_thread.used("c") is None


@MODES
def test_a_user_has_one_account_over_threads_and_a_run_without_a_user_is_denied(mode: str) -> None:
    pay = Spy("pay")
    budget = BudgetChecker("budget", calls=2, per="user", user_key="who")
    _, app = governed(chain(pay), budget)

    def pays(who: Any, thread_id: str) -> None:
        run(app, {"log": []}, {"configurable": {"who": who, "thread_id": thread_id}}, mode=mode)

    pays("ann", "1")
    pays("ann", "2")
    pays("bob", "1")
    with pytest.raises(PolicyViolationError, match="2 of 2 calls of this user"):
        pays("ann", "3")
    for nobody in (None, "", True, ["ann"]):
        with pytest.raises(PolicyViolationError, match="no 'who' in 'configurable'"):
            pays(nobody, "1")
    assert len(pay.calls) == 3
    assert (used(budget, "ann").calls, used(budget, "bob").calls) == (2, 1)


@MODES
def test_a_process_has_one_account(mode: str) -> None:
    pay = Spy("pay")
    _, app = governed(chain(pay), BudgetChecker("budget", calls=2, per="process"))
    for _ in range(2):
        run(app, {"log": []}, mode=mode)
    with pytest.raises(PolicyViolationError, match="of this process"):
        run(app, {"log": []}, mode=mode)
    assert len(pay.calls) == 2


@MODES
def test_a_run_without_a_thread_has_no_threads_account(mode: str) -> None:
    pay = Spy("pay")
    _, app = governed(chain(pay), BudgetChecker("budget", calls=2, per="thread"))
    with pytest.raises(PolicyViolationError, match="no thread_id"):
        run(app, {"log": []}, mode=mode)
    assert pay.calls == []


@MODES
def test_a_denial_by_another_checker_releases_the_reservation(mode: str) -> None:
    pay, last = Spy("pay"), Spy("last")
    budget = BudgetChecker("budget", calls=1)
    no = Check("no", lambda _: False, target_nodes=["pay"], on_deny="redirect:last")
    _, app = governed(chain(pay, last), budget, no)
    run(app, {"log": []}, mode=mode)
    assert (len(pay.calls), len(last.calls), used(budget).calls) == (0, 1, 1)


@MODES
def test_retries_and_resumes_of_one_node_run_are_one_call(mode: str) -> None:
    """A body that fails, is retried, asks a human, and goes on has used one call, and all of its tokens."""
    tries: list[int] = []
    talker = Talker()

    def moody(state: Any) -> Any:
        tries.append(1)
        talker.invoke("hello")
        if len(tries) == 1:
            raise ConnectionError("try again")
        return {"log": [interrupt("well?")]}

    builder = StateGraph(State)
    builder.add_node("moody", moody, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    builder.add_edge(START, "moody")
    budget = BudgetChecker("budget", calls=1, tokens=1000)
    _, app = governed(builder.compile(checkpointer=InMemorySaver()), budget)
    run(app, {"log": []}, thread("1"), mode=mode)
    assert (len(tries), used(budget).calls, used(budget).tokens) == (2, 1, 20)
    assert run(app, Command(resume="fine"), thread("1"), mode=mode) == {"log": ["fine"]}
    assert (len(tries), used(budget).calls, used(budget).tokens) == (3, 1, 30)
    assert committed(app, "budget") == {
        "calls": 1,
        "tokens": 30,
        "seconds": pytest.approx(used(budget).seconds),
    }


def committed(app: Any, policy: str, thread_id: str = "1") -> dict[str, float]:
    """The tallies in the newest checkpoint."""
    saved = app.checkpointer.get_tuple(thread(thread_id))
    tallies = saved.checkpoint["channel_values"]["__arbiter_ledger"]["tallies"][policy]
    return {key: amount for key, (amount, *_) in tallies.items()}


@MODES
def test_an_approved_node_is_one_call(mode: str) -> None:
    """While a human is asked nothing is held: the body has not begun."""
    pay = Spy("pay")
    ask = Check("ask", lambda _: Verdict.ask("may I?"))
    budget = BudgetChecker("budget", calls=1)
    _, app = governed(chain(pay, checkpointer=InMemorySaver()), budget, ask)
    run(app, {"log": []}, thread("1"), mode=mode)
    assert (len(pay.calls), used(budget).calls) == (0, 0)
    run(app, Command(resume="approve"), thread("1"), mode=mode)
    assert (len(pay.calls), used(budget).calls) == (1, 1)


@MODES
@pytest.mark.parametrize("how", ["mode", "on_deny"])
def test_under_audit_nothing_is_stopped_and_everything_is_counted(mode: str, how: str) -> None:
    bodies = Bodies()
    budget = BudgetChecker("budget", calls=2, on_deny="audit" if how == "on_deny" else "raise")
    if how == "mode":
        budget.mode = "audit"
    arbiter_os, app = governed(fan(bodies.runnable(), 5), budget)
    assert len(run(app, {"log": []}, mode=mode)["log"]) == 5
    denied = [i for i in arbiter_os.history.items() if i.check_policy_results["budget"].kind == "deny"]
    assert (len(denied), used(budget).calls) == (3, 5)


@MODES
def test_a_fork_goes_on_with_what_its_run_had_used_until_then(mode: str) -> None:
    """Per run; the account of the thread knows what the abandoned branch used."""
    nodes = [Spy(name) for name in ("one", "two", "three")]
    per_run = BudgetChecker("run", calls=3)
    per_thread = BudgetChecker("thread", calls=5, per="thread")
    _, app = governed(chain(*nodes, checkpointer=InMemorySaver()), per_run, per_thread)
    run(app, {"log": []}, thread("1"), mode=mode)
    before_two = next(s for s in app.get_state_history(thread("1")) if s.next == ("two",))
    run(app, None, before_two.config, mode=mode)
    assert (used(per_run).calls, used(per_thread, "1").calls) == (3, 5)
    with pytest.raises(PolicyViolationError, match="5 of 5 calls of this thread"):
        run(app, None, before_two.config, mode=mode)
    assert [len(node.calls) for node in nodes] == [1, 2, 2]


@MODES
def test_a_fork_in_a_fresh_process_does_not_pay_for_the_branch_it_left(mode: str) -> None:
    saver = InMemorySaver()
    bodies = Bodies()

    def app() -> Any:
        budget = BudgetChecker("budget", calls=5, target_nodes=["work"])
        return governed(fan(bodies.runnable(), 5, checkpointer=saver), budget)[1]

    first = app()
    run(first, {"log": []}, thread("1"), mode=mode)
    before = next(state for state in first.get_state_history(thread("1")) if "work" in state.next)
    run(app(), None, before.config, mode=mode)
    assert len(bodies.began) == 10


# Seconds ------------------------------------------------------------------------------------------


@MODES
def test_seconds_are_those_of_node_runs(mode: str) -> None:
    bodies = Bodies(0.03)
    builder = StateGraph(Fan)
    builder.add_node("work", bodies.runnable())
    builder.add_edge(START, "work")
    builder.add_edge("work", "work")
    budget = BudgetChecker("budget", seconds=0.05)
    arbiter_os, app = governed(builder.compile(), budget)
    with pytest.raises(PolicyViolationError, match=r"of 0\.05 seconds of this run are used"):
        run(app, {"n": 0}, mode=mode)
    took = [i.duration for i in arbiter_os.history.items() if i.status == "completed"]
    assert len(bodies.began) == len(took)
    assert sum(took[:-1]) < 0.05 <= sum(took) == used(budget).seconds


# Tokens -------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("model", [Talker, Streamer])
def test_tokens_are_those_that_the_models_report(mode: str, model: Any) -> None:
    """Several models in one body, called, streamed and in a batch, also with callbacks of their own."""
    one, other = model(), model(usage=(100, 20), model="large")

    def talk(state: Any) -> Any:
        one.invoke("hello", {"callbacks": [BaseCallbackHandler()]})
        list(other.stream("hello"))
        one.batch(["hello", "hello"])
        return {"log": ["ok"]}

    async def atalk(state: Any) -> Any:
        await one.ainvoke("hello", {"callbacks": [BaseCallbackHandler()]})
        async for _ in other.astream("hello"):
            pass
        await one.abatch(["hello", "hello"])
        return {"log": ["ok"]}

    budget = BudgetChecker("budget", tokens=1000)
    builder = StateGraph(State)
    builder.add_node("talk", RunnableLambda(talk, atalk))
    builder.add_edge(START, "talk")
    _, app = governed(builder.compile(), budget)
    run(app, {"log": []}, mode=mode)
    assert used(budget) == Usage(calls=1, tokens=150, cost=None, seconds=used(budget).seconds, unreported=0)


@MODES
@pytest.mark.parametrize("targets", [["inner"], ["outer"], ["inner", "outer"], None])
def test_tokens_in_a_subgraph_are_counted_once(mode: str, targets: Any) -> None:
    inner = StateGraph(State)
    inner.add_node("inner", says(Talker()))
    inner.add_edge(START, "inner")
    builder = StateGraph(State)
    builder.add_node("outer", inner.compile())
    builder.add_node("after", says(Talker()))
    builder.add_edge(START, "outer")
    builder.add_edge("outer", "after")
    budget = BudgetChecker("budget", tokens=1000, target_nodes=targets)
    _, app = governed(builder.compile(checkpointer=InMemorySaver()), budget)
    run(app, {"log": []}, thread("1"), mode=mode)
    tokens = 20 if targets is None else 10
    assert used(budget).tokens == tokens
    assert committed(app, "budget")["tokens"] == tokens


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("callbacks", [None, []])
def test_tokens_of_a_judge_do_not_count_for_the_node_around_it(mode: str, callbacks: Any) -> None:
    """A judge of an inner node is asked while the body of the outer one runs."""
    judge = Talker()

    def judged(history: History) -> EvaluationResult:
        judge.invoke("good?", {"callbacks": callbacks})
        return good(history)

    inner = StateGraph(State)
    inner.add_node("inner", says(Talker()))
    inner.add_edge(START, "inner")
    budget = BudgetChecker("budget", tokens=1000, target_nodes=["n0"])
    reads = Route("reads", lambda history, _: history.item.evaluation_results["judge"] and None)
    _, app = governed(chain_of(inner.compile()), Judge("judge", judged), reads, budget)
    run(app, {"log": []}, mode=mode)
    assert used(budget).tokens == 10


@pytest.mark.lengthy
@MODES
def test_tokens_reserved_and_used_never_pass_the_limit_at_admission(mode: str) -> None:
    """Of 100 branches that may use 30 each and use 10, as many run as fit one after another."""
    budget = BudgetChecker("budget", tokens=100, reserve_tokens=30, on_deny="end")
    _, app = governed(fan(says(Talker()), 100), budget)
    done = run(app, {"log": []}, mode=mode)["log"]
    assert 3 <= len(done) <= 8  # from all at once to one after another
    assert used(budget).tokens == 10 * len(done)
    budget = BudgetChecker("budget", tokens=100, reserve_tokens=10, on_deny="end")
    _, app = governed(fan(says(Talker()), 100), budget)
    assert len(run(app, {"log": []}, mode=mode)["log"]) == 10
    assert used(budget).tokens == 100


@MODES
def test_a_body_that_has_used_up_the_budget_calls_no_model_again(mode: str) -> None:
    talker = Talker(called=[])
    budget = BudgetChecker("budget", tokens=25, on_deny="end")
    arbiter_os, app = governed(chain_of(says(talker, times=9)), budget)
    with pytest.raises(PolicyViolationError, match="30 of 25 tokens of this run are used"):
        run(app, {"log": []}, mode=mode)
    assert len(talker.called) == 3
    assert [status for _, status in statuses(arbiter_os)] == ["failed"]
    assert used(budget).tokens == 30


def chain_of(*nodes: Any, checkpointer: Any = None) -> Any:
    builder = StateGraph(State)
    before = START
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    return builder.compile(checkpointer=checkpointer)


@MODES
def test_under_audit_no_model_call_is_stopped(mode: str) -> None:
    talker = Talker(called=[])
    budget = BudgetChecker("budget", tokens=25, on_deny="audit")
    _, app = governed(chain_of(says(talker, times=9), says(talker)), budget)
    run(app, {"log": []}, mode=mode)
    assert (len(talker.called), used(budget).tokens) == (10, 100)


@MODES
def test_after_a_call_without_usage_nothing_more_is_allowed(mode: str) -> None:
    """A call that cannot be counted does not count as zero, unless the rule ignores such calls."""
    silent, talker = Talker(usage=None, called=[]), Talker(called=[])
    budget = BudgetChecker("budget", tokens=1000)
    _, app = governed(chain_of(says(silent), says(talker)), budget)
    with pytest.raises(PolicyViolationError, match="did not report their usage"):
        run(app, {"log": []}, mode=mode)
    assert (len(silent.called), len(talker.called)) == (1, 0)
    assert used(budget).unreported == 1
    budget = BudgetChecker("budget", tokens=1000, unreported="ignore")
    _, app = governed(chain_of(says(silent), says(talker)), budget)
    run(app, {"log": []}, mode=mode)
    assert (used(budget).tokens, used(budget).unreported) == (10, 1)


@MODES
def test_a_model_call_that_gave_nothing_has_used_nothing(mode: str) -> None:
    failing = Talker(fails=True)
    node = says(failing).with_fallbacks([says(Talker())])
    budget = BudgetChecker("budget", tokens=1000)
    _, app = governed(chain_of(node), budget)
    run(app, {"log": []}, mode=mode)
    assert (used(budget).tokens, used(budget).unreported) == (10, 0)


def test_a_stream_that_was_left_is_unreported() -> None:
    def leave(state: Any) -> Any:
        stream: Any = Streamer().stream("hello")
        next(stream)
        stream.close()
        return {"log": ["left"]}

    budget = BudgetChecker("budget", tokens=1000)
    _, app = governed(chain_of(leave), budget)
    run(app, {"log": []})
    assert used(budget).unreported == 1


def test_a_model_call_that_outlives_its_node_run_is_unreported_until_it_answers(hold: Hold) -> None:
    done = threading.Event()

    class Slow(Talker):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            hold()
            return super()._generate(*args, **kwargs)

    def leave(state: Any, config: RunnableConfig) -> Any:
        def call() -> None:
            Slow().invoke("hello", config)
            done.set()

        threading.Thread(target=call).start()
        assert hold.begun.wait(PATIENCE)
        return {"log": ["left"]}

    budget = BudgetChecker("budget", tokens=1000)
    _, app = governed(chain_of(leave), budget)
    run(app, {"log": []})
    assert (used(budget).tokens, used(budget).unreported) == (0, 1)
    hold.release()
    assert done.wait(PATIENCE)
    assert (used(budget).tokens, used(budget).unreported) == (10, 0)


@MODES
def test_an_answer_from_the_cache_uses_nothing(mode: str) -> None:
    talker = Talker(cache=InMemoryCache(), called=[])
    budget = BudgetChecker("budget", tokens=1000)
    _, app = governed(chain_of(says(talker, times=3)), budget)
    run(app, {"log": []}, mode=mode)
    assert (len(talker.called), used(budget).tokens, used(budget).unreported) == (1, 10, 0)


# Cost ---------------------------------------------------------------------------------------------


@MODES
def test_cost_is_by_the_given_prices_and_exact(mode: str) -> None:
    """Ten calls at 10 cents fit in one dollar, which they do not when fractions are added up."""
    talker = Talker(usage=(80_000, 10_000), called=[])
    budget = BudgetChecker(
        "budget", cost=0.3, reserve_cost=0.1, prices={"tiny": Price(input=1.0, output=2.0)}, on_deny="end"
    )
    _, app = governed(fan(says(talker), 9), budget)
    run(app, {"log": []}, mode=mode)
    assert (len(talker.called), used(budget).cost) == (3, 0.3)


def test_cost_is_by_the_price_list_without_prices() -> None:
    from genai_prices import Usage as Used
    from genai_prices import calc_price

    budget = BudgetChecker("budget", cost=1)
    _, app = governed(chain_of(says(Talker(usage=(1000, 500), model="gpt-4o"))), budget)
    run(app, {"log": []})
    listed = calc_price(Used(input_tokens=1000, output_tokens=500), "gpt-4o").total_price
    assert used(budget).cost == float(listed) > 0


def test_a_model_without_a_price_is_unreported() -> None:
    budget = BudgetChecker("budget", cost=1)
    _, app = governed(chain_of(says(Talker(model="no such model")), Spy("n")), budget)
    with pytest.raises(PolicyViolationError, match="no known price"):
        run(app, {"log": []})
    assert (used(budget).tokens, used(budget).cost, used(budget).unreported) == (10, 0, 1)


def test_cached_input_has_a_price_of_its_own() -> None:
    class Cached(Talker):
        def _message(self, kind: Any) -> Any:
            message = super()._message(kind)
            message.usage_metadata["input_token_details"] = {"cache_read": 600_000}
            return message

    prices: Any = {"tiny": {"input": 1.0, "output": 4.0, "cached": 0.1}}
    budget = BudgetChecker("budget", cost=10, prices=prices)
    _, app = governed(chain_of(says(Cached(usage=(1_000_000, 250_000)))), budget)
    run(app, {"log": []})
    assert used(budget).cost == 0.4 + 0.06 + 1.0


def test_without_the_price_list_a_cost_budget_needs_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        return None

    monkeypatch.setattr("arbiter.models._prices.find_spec", missing)
    with pytest.raises(ParameterError, match=r"pip install 'arbiteros\[prices\]'"):
        BudgetChecker("budget", cost=1)
    assert BudgetChecker("budget", cost=1, prices={"tiny": Price(1, 1)}).limits == {"cost": 1}


# Crash and resume ---------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.lengthy
@MODES
def test_after_a_crash_in_a_fan_out_the_budget_goes_on_where_it_stood(mode: str, tmp_path: Path) -> None:
    """Five of ten calls were saved when the process died inside the superstep: the next one runs five more."""

    def tell(die: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            python("-m", "tests.rules.budget_story", str(tmp_path / "db.sqlite"), mode, die),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    died = tell("1")
    assert died.returncode == 9, died.stderr
    told = tell("0")
    assert told.returncode == 0, told.stderr
    done = json.loads(told.stdout)
    assert (len(done["ran"]), done["calls"], min(done["ran"])) == (5, 10, 5)


class Killed(BaseException):
    """An exception that ends a process."""


def killed_in(number: int, alive: list[bool]) -> Any:
    """A node whose branch `number` ends the process as long as it is alive, after its siblings."""

    def work(state: Any) -> Any:
        if state["n"] == number and alive[0]:
            time.sleep(0.2)
            raise Killed
        return {"log": [str(state["n"])]}

    async def awork(state: Any) -> Any:
        if state["n"] == number and alive[0]:
            await asyncio.sleep(0.2)
            raise Killed
        return {"log": [str(state["n"])]}

    return RunnableLambda(work, awork)


def nested(inner_work: Any) -> Any:
    """Three branches, each a subgraph that fans out to three and then goes on."""
    inner = StateGraph(Fan)
    inner.add_node("step", lambda state: {"log": ["step"]})
    inner.add_node("work", inner_work)
    inner.add_edge(START, "step")

    def works(state: Any) -> list[Send]:
        return [Send("work", {"n": state["n"] * 3 + i}) for i in range(3)]

    def teams(_: Any) -> list[Send]:
        return [Send("team", {"n": n, "log": []}) for n in range(3)]

    inner.add_conditional_edges("step", works)
    builder = StateGraph(Fan)
    builder.add_node("team", inner.compile())
    builder.add_node("after", lambda state: {"log": ["after"]})
    builder.add_conditional_edges(START, teams)
    builder.add_edge("team", "after")
    return builder


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("per", ["run", "thread"])
@pytest.mark.parametrize("targets", [["work", "step"], ["work", "step", "team", "after"]])
def test_after_a_crash_in_a_subgraph_the_budget_goes_on_where_it_stood(
    mode: str, per: Any, targets: list[str], tmp_path: Path
) -> None:
    """Finished branches, the finished part of the unfinished one, and its finished siblings: each counts once."""
    alive = [True]
    total = 12 + (4 if "team" in targets else 0)

    def budget() -> BudgetChecker:
        return BudgetChecker("budget", calls=total, per=per, target_nodes=targets)

    def go(checker: BudgetChecker, given: Any) -> Any:
        builder = nested(killed_in(4, alive))
        path = str(tmp_path / "db.sqlite")
        if mode == "sync":
            with SqliteSaver.from_conn_string(path) as saver:
                _, app = governed(builder.compile(checkpointer=saver), checker)
                return app.invoke(given, thread("1"), durability="sync")

        async def ago() -> Any:
            async with AsyncSqliteSaver.from_conn_string(path) as saver:
                _, app = governed(builder.compile(checkpointer=saver), checker)
                return await app.ainvoke(given, thread("1"), durability="sync")

        return asyncio.run(ago())

    with pytest.raises(Killed):
        go(budget(), {"log": []})
    alive[0] = False
    fresh = budget()
    assert go(fresh, None)["log"].count("after") == 1
    assert used(fresh).calls == total


@MODES
@pytest.mark.parametrize("per", ["run", "thread"])
def test_a_fresh_process_goes_on_with_the_totals(mode: str, per: Any) -> None:
    saver = InMemorySaver()

    def app_with(budget: BudgetChecker) -> Any:
        stop = ["n1"] if budget.limits["tokens"] == 100 else None
        graph = chain_of(says(Talker()), says(Talker()), says(Talker()), checkpointer=saver)
        arbiter_os, app = governed(graph, budget)
        return arbiter_os, app, stop

    first = BudgetChecker("budget", tokens=100, per=per)
    _, app, stop = app_with(first)
    if mode == "sync":
        app.invoke({"log": []}, thread("1"), interrupt_after=stop)
    else:
        asyncio.run(app.ainvoke({"log": []}, thread("1"), interrupt_after=stop))
    assert used(first).tokens == 20
    second = BudgetChecker("budget", tokens=20, per=per)
    _, app, _ = app_with(second)
    with pytest.raises(PolicyViolationError, match="20 of 20 tokens"):
        run(app, None, thread("1"), mode=mode)
    third = BudgetChecker("budget", tokens=30, per=per)
    _, app, _ = app_with(third)
    run(app, None, thread("1"), mode=mode)
    assert (used(third).tokens, used(third).calls) == (30, 3)


# What failed or paused counts once, in whichever process it goes on --------------------------------


class Branches:
    """Nodes side by side, `a` to `d`, which may wait for others, pause or fail; a process is an `ArbiterOS`."""

    def __init__(self, saver: Any, mode: str, names: str, *, inside: bool = False) -> None:
        self.saver, self.mode, self.names, self.inside = saver, mode, names, inside
        self.ran: list[str] = []
        self.failing: set[str] = set()
        self.asking: set[str] = set()

    def process(self, **limits: Any) -> tuple[BudgetChecker, Any]:
        budget = BudgetChecker("budget", target_nodes=list("abcd"), **limits)
        builder = StateGraph(State)
        for name in self.names:
            builder.add_node(name, self.node(name))
            builder.add_edge(START, name)
        if self.inside:
            outer = StateGraph(State)
            outer.add_node("team", builder.compile())
            outer.add_edge(START, "team")
            builder = outer
        return budget, governed(builder.compile(checkpointer=self.saver), budget)[1]

    def node(self, name: str) -> Any:
        def body(state: Any) -> Any:
            self.ran.append(name)
            if name in self.asking:
                interrupt(f"go on with {name}?")
            if name in self.failing:
                time.sleep(0.05)  # the others are done
                raise ConnectionError(name)
            return {"log": [name]}

        async def abody(state: Any) -> Any:
            return await asyncio.to_thread(body, state)

        return RunnableLambda(body, abody)

    def go(self, app: Any, given: Any) -> Any:
        return run(app, given, thread("1"), mode=self.mode)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("per", ["run", "thread"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_paused_node_run_counts_once_in_every_process(
    elsewhere: bool, per: Any, inside: bool, mode: str
) -> None:
    graph = Branches(InMemorySaver(), mode, "ab", inside=inside)
    graph.asking = {"b"}
    budget, app = graph.process(calls=2, per=per)
    graph.go(app, {"log": []})
    if elsewhere:
        budget, app = graph.process(calls=2, per=per)
    assert sorted(graph.go(app, Command(resume="yes"))["log"]) == ["a", "b"]
    assert used(budget).calls == 2
    third, app = graph.process(calls=2, per="thread")
    graph.asking = set()
    with pytest.raises(PolicyViolationError, match="2 of 2"):
        graph.go(app, {"log": []})
    assert (graph.ran.count("a"), graph.ran.count("b"), used(third).calls) == (1, 2, 2)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("inside", [False, True])
def test_a_node_run_that_failed_in_one_process_is_one_call_wherever_it_is_tried_again(
    inside: bool, mode: str
) -> None:
    graph = Branches(InMemorySaver(), mode, "abc", inside=inside)
    graph.failing = {"c"}
    first, app = graph.process(calls=3, per="thread")
    with pytest.raises(ConnectionError):
        graph.go(app, {"log": []})
    second, other = graph.process(calls=3, per="thread")
    with pytest.raises(ConnectionError):
        graph.go(other, None)
    graph.failing = set()
    graph.go(app, None)
    assert used(first).calls == 3
    for budget, process in ((first, app), (second, other), graph.process(calls=3, per="thread")):
        with pytest.raises(PolicyViolationError, match="3 of 3"):
            graph.go(process, {"log": []})
        assert used(budget).calls == 3


@MODES
def test_a_failure_is_not_forgotten_when_another_process_has_committed_more(mode: str) -> None:
    graph = Branches(InMemorySaver(), mode, "a")
    first, app = graph.process(calls=3, per="thread")
    _, other = graph.process(calls=3, per="thread")
    graph.failing = {"a"}
    with pytest.raises(ConnectionError):
        graph.go(app, {"log": []})
    graph.failing = set()
    for _ in range(2):
        graph.go(other, {"log": []})  # leaves what failed, and begins anew
    with pytest.raises(PolicyViolationError, match="3 of 3"):
        graph.go(app, {"log": []})
    assert graph.ran == ["a"] * 3
    assert used(first).calls == 3


async def test_use_of_a_run_that_is_cancelled_in_a_rule_counts_in_another_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with a client that leaves while a router waits for its judge."""
    caplog.set_level(logging.WARNING, "arbiter")
    waits = asyncio.Event()

    async def wait(*_: Any) -> None:
        waits.set()
        await asyncio.sleep(PATIENCE)

    graph = chain_of(says(Talker()), checkpointer=InMemorySaver())
    budget = BudgetChecker("budget", tokens=15, per="thread")
    arbiter_os, app = governed(graph, budget, Route("judges", wait))
    left = asyncio.create_task(app.ainvoke({"log": []}, thread("1")))
    await waits.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert (statuses(arbiter_os), used(budget).tokens) == ([("n0", "cancelled")], 10)
    budget = BudgetChecker("budget", tokens=15, per="thread")
    _, app = governed(graph, budget)  # as in another process
    await app.ainvoke(None, thread("1"))
    assert (used(budget).tokens, caplog.messages) == (20, [])


@MODES
def test_a_checkpointer_that_cannot_be_read_denies_on_resume(mode: str) -> None:
    class Broken(InMemorySaver):
        broken = False

        def get_tuple(self, config: Any) -> Any:
            if self.broken and config["configurable"].get("checkpoint_id"):
                raise OSError("disk")
            return super().get_tuple(config)

    saver = Broken()
    pay = Spy("pay")
    _, app = governed(chain(Spy("first"), pay, checkpointer=saver), BudgetChecker("budget", calls=9))
    app.invoke({"log": []}, thread("1"), interrupt_after=["first"])
    saver.broken = True
    with pytest.raises(PolicyViolationError, match=r"raised OSError \(disk\)"):
        run(app, None, thread("1"), mode=mode)
    assert pay.calls == []


@MODES
def test_what_a_branch_used_before_it_paused_counts_once_after_it_is_done(mode: str) -> None:
    """Its fact includes it. The note about it stays next to the checkpoint until the superstep is done."""

    def pay(state: Any) -> Any:
        return {"log": [str(interrupt(state["n"]))]}

    async def apay(state: Any) -> Any:
        return pay(state)

    graph = fan(RunnableLambda(pay, apay), 2, checkpointer=InMemorySaver())
    config: Any = thread("1")
    _, app = governed(graph, BudgetChecker("budget", calls=2))
    paused = run(app, {"log": []}, config, mode=mode)
    first, second = sorted(paused["__interrupt__"], key=lambda each: each.value)
    run(app, Command(resume={first.id: "a"}), config, mode=mode)
    budget = BudgetChecker("budget", calls=2)
    _, app = governed(graph, budget)  # as in another process
    assert run(app, Command(resume={second.id: "b"}), config, mode=mode)["log"] == ["a", "b"]
    assert used(budget).calls == 2


# Accounts -----------------------------------------------------------------------------------------


def test_accounts_in_memory_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """The oldest go, and are opened again with what is committed; never one with a node run under way."""
    caplog.set_level(logging.WARNING, "arbiter")
    budget = BudgetChecker("budget", calls=2, per="thread", keep_accounts=3)
    running, finish = threading.Event(), threading.Event()

    def pay(state: Any) -> Any:
        if state.get("amount"):
            running.set()
            finish.wait(60)
        return {"log": ["pay"]}

    _, app = governed(chain_of(pay, checkpointer=InMemorySaver()), budget)
    slow = threading.Thread(target=app.invoke, args=({"log": [], "amount": 1}, thread("slow")))
    slow.start()
    assert running.wait(60)
    for name in "abcd":
        app.invoke({"log": []}, thread(name))
    assert [budget.used(name) is None for name in ("slow", "a", "b", "c", "d")] == [
        False,
        True,
        True,
        False,
        False,
    ]
    finish.set()
    slow.join()
    app.invoke({"log": []}, thread("a"))
    with pytest.raises(PolicyViolationError, match="2 of 2"):
        app.invoke({"log": []}, thread("a"))
    assert caplog.messages == []  # nothing was forgotten


def test_one_warning_says_that_a_user_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "arbiter")
    budget = BudgetChecker("budget", calls=1, per="user", keep_accounts=2)
    _, app = governed(chain(Spy("pay")), budget)

    def pays(user: str) -> None:
        app.invoke({"log": []}, {"configurable": {"user_id": user}})

    pays("ann")
    pays("bob")
    assert caplog.messages == []
    for user in ("cid", "dan", "ann"):
        pays(user)
    assert caplog.messages == [
        "checker 'budget' has seen more than 2 users, and has dropped the account of the user seen longest ago: "
        "it begins again at nothing. Set keep_accounts to more than the number of users. (This is reported once.)"
    ]


def test_one_warning_says_that_a_thread_without_checkpoints_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "arbiter")
    budget = BudgetChecker("budget", calls=1, per="thread", keep_accounts=2)
    _, app = governed(chain(Spy("pay")), budget)
    for name in ("a", "b", "c", "d", "a"):
        app.invoke({"log": []}, thread(name))
    assert caplog.messages == [
        "checker 'budget' has seen more than 2 threads, and has dropped the account of the thread seen longest ago: "
        "it begins again at nothing. Set keep_accounts to more than the number of threads, or compile the graph with "
        "a checkpointer. (This is reported once.)"
    ]


@pytest.mark.lengthy
@examples(0.3)
@given(
    limit=st.integers(1, 30),
    waves=st.lists(
        st.lists(st.sampled_from(["done", "fails"]), min_size=1, max_size=6), min_size=1, max_size=5
    ),
)
def test_totals_are_the_sum_of_what_was_used(limit: int, waves: list[list[str]]) -> None:
    """Whatever fails and is tried again: used = bodies that ever began, never above the limit."""
    began: set[Any] = set()
    tokens: list[int] = []
    talker = Talker(called=tokens)
    failing: set[Any] = set()

    def work(state: Any) -> Any:
        wave, n = divmod(state["n"], 100)
        began.add((wave, n))
        talker.invoke("hello")
        if waves[wave][n] == "fails" and (wave, n) not in failing:
            failing.add((wave, n))
            raise ConnectionError("once")
        return {"log": ["x"]}

    tokens.clear()
    builder = StateGraph(Fan)
    builder.add_node("work", work, retry_policy=RetryPolicy(initial_interval=0, jitter=False))

    def next_wave(state: Any) -> Any:
        return {"n": state["n"] + 1}

    def sends(state: Any) -> Any:
        wave: int = state["n"] - 1
        return (
            [Send("work", {"n": wave * 100 + i}) for i in range(len(waves[wave]))]
            if wave < len(waves)
            else END
        )

    builder.add_node("next", next_wave)
    builder.add_edge(START, "next")
    builder.add_conditional_edges("next", sends, ["work", END])
    builder.add_edge("work", "next")
    budget = BudgetChecker("budget", calls=limit, tokens=10**6, target_nodes=["work"], on_deny="audit")
    strict = BudgetChecker("strict", calls=limit, target_nodes=["work"], on_deny="end")
    _, app = governed(builder.compile(checkpointer=InMemorySaver()), budget, strict)
    app.invoke({"log": [], "n": 0}, thread("1"))
    assert len(began) == used(strict).calls == used(budget).calls <= limit
    assert used(budget).tokens == 10 * len(tokens)
    assert committed(app, "budget")["calls"] == len(began)
    assert committed(app, "budget").get("tokens") == 10 * len(tokens)


# Parameters ---------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "calls: expected a limit, got none"),
    ({"calls": 0}, "calls: expected a whole number above 0, got 0"),
    ({"calls": 1.5}, "calls: expected a whole number above 0, got 1.5"),
    ({"calls": True}, "calls: expected a whole number above 0, got True"),
    ({"tokens": "1,000"}, "tokens: expected a whole number above 0, got '1,000'"),
    ({"cost": -1}, "cost: expected a number above 0, got -1"),
    ({"seconds": float("nan")}, "seconds: expected a number above 0, got nan"),
    ({"calls": 1, "per": "week"}, "per: expected 'run', 'thread', 'user' or 'process', got 'week'"),
    ({"calls": 1, "unreported": "zero"}, "unreported: expected 'deny' or 'ignore', got 'zero'"),
    ({"calls": 1, "user_key": ""}, "user_key: expected a non-empty text, got ''"),
    ({"calls": 1, "reserve_tokens": 5}, "reserve_tokens: expected a limit of tokens with it, got none"),
    ({"tokens": 9, "reserve_cost": 5}, "reserve_cost: expected a limit of cost with it, got none"),
    ({"calls": 1, "user_key": "team"}, "user_key: expected per='user' with it, got per='run'"),
    (
        {"calls": 1, "unreported": "ignore"},
        "unreported: expected a limit of tokens or cost with it, got none",
    ),
    ({"tokens": 1, "prices": {"m": {"input": 1, "output": 1}}}, "prices: expected a limit of cost with it"),
    ({"cost": 1, "reserve_cost": 2}, "reserve_cost: expected at most the limit cost=1, got 2"),
    ({"cost": 1, "prices": {"m": {"input": 1}}}, r"prices\['m'\]: expected input and output"),
    ({"cost": 1, "prices": {"m": {"input": 1, "output": -1}}}, r"prices\['m'\].output: expected US dollars"),
]


@pytest.mark.parametrize(("parameters", "problem"), WRONG)
def test_errors_about_parameters_name_the_expected_value(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=f"checker 'budget': {problem}"):
        BudgetChecker("budget", **parameters)


class Forgetful(InMemorySaver):
    """Loses the writes of single tasks, as LangGraph does when a sibling fails at the same moment."""

    loses = True

    def put_writes(self, *args: Any, **options: Any) -> None:
        if not self.loses:
            super().put_writes(*args, **options)

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        self.put_writes(*args, **options)


@MODES
def test_a_call_whose_writes_were_lost_is_committed_with_its_next_run(mode: str) -> None:
    saver, paid = Forgetful(), threading.Event()

    def flaky(state: Any) -> Any:
        if saver.loses:
            assert paid.wait(PATIENCE)
            raise ConnectionError
        return {}

    def pay(state: Any) -> Any:
        paid.set()
        return {}

    def committed() -> float:
        seen: list[float] = []

        def look(history: Any) -> bool:
            seen.append(history.tally("budget", "calls").amount)
            return False

        _, app = governed(graph(), Check("look", look))
        with pytest.raises(PolicyViolationError):
            run(app, {"log": []}, thread("t"), mode=mode)
        return seen[0]

    def graph() -> Any:
        builder: Any = StateGraph(State)
        builder.add_node("flaky", flaky)
        builder.add_node("pay", pay)
        builder.add_edge(START, "flaky")
        builder.add_edge(START, "pay")
        return builder.compile(checkpointer=saver)

    budget = BudgetChecker("budget", calls=10, per="thread")
    _, app = governed(graph(), budget)
    with pytest.raises(ConnectionError):
        run(app, {"log": []}, thread("t"), mode=mode)
    saver.loses = False
    run(app, None, thread("t"), mode=mode)
    used = budget.used("t")
    assert used is not None
    assert used.calls == committed() == 2


@MODES
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_calls_count_once_if_two_processes_take_turns_on_a_thread(mode: str, durability: Any) -> None:
    """One begins each run, the other resumes it. What paused in the one was committed by the other."""
    saver = InMemorySaver()

    def ask(state: Any) -> Any:
        return {"log": [interrupt("go on?")]}

    def process() -> tuple[BudgetChecker, Any]:
        budget = BudgetChecker("budget", calls=100, per="thread")
        return budget, governed(chain(Spy("work"), ask, Spy("pay"), checkpointer=saver), budget)[1]

    def call(app: Any, given: Any) -> None:
        if mode == "sync":
            app.invoke(given, thread("t"), durability=durability)
        else:
            asyncio.run(app.ainvoke(given, thread("t"), durability=durability))

    def calls(budget: BudgetChecker) -> int:
        used = budget.used("t")
        assert used is not None
        return used.calls

    (first, begins), (second, resumes) = process(), process()
    counted: list[tuple[int, int]] = []
    for _ in range(4):
        call(begins, {"log": []})
        call(resumes, Command(resume="yes"))
        counted.append((calls(first), calls(second)))
    assert counted == [(2, 3), (5, 6), (8, 9), (11, 12)]


@MODES
def test_a_call_inside_a_subgraph_counts_once_if_another_process_resumed_it(mode: str) -> None:
    """The process in which it paused ends the subgraph."""
    saver = InMemorySaver()

    def ask(state: Any) -> Any:
        return {"log": [interrupt("go on?")]}

    inner = StateGraph(State).add_node("one", ask).add_node("two", ask)
    inner.add_edge(START, "one").add_edge(START, "two")
    graph = StateGraph(State).add_node("both", inner.compile()).add_edge(START, "both")

    def process() -> tuple[BudgetChecker, Any]:
        budget = BudgetChecker("budget", calls=100, per="thread")
        return budget, governed(graph.compile(checkpointer=saver), budget)[1]

    def call(app: Any, given: Any) -> None:
        if mode == "sync":
            app.invoke(given, thread("t"))
        else:
            asyncio.run(app.ainvoke(given, thread("t")))

    _, begins = process()
    call(begins, {"log": []})
    first, second = begins.get_state(thread("t")).interrupts
    call(process()[1], Command(resume={first.id: "yes"}))
    call(begins, Command(resume={second.id: "yes"}))
    budget, later = process()
    call(later, {"log": []})
    assert used(budget, "t").calls == 6  # in each of two runs, the subgraph and the nodes in it
