"""Many branches wait for a human. They share the reads of their checkpoint, and decide as if each had its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from arbiter import ArbiterOS, Verdict
from arbiter._weaving import notes
from arbiter.checkers import BudgetChecker
from arbiter.errors import ApprovalUsedError
from tests.support import MODES, Check, State, thread


class Counting(InMemorySaver):
    """A saver that counts its reads."""

    reads = 0

    def get_tuple(self, config: Any) -> Any:
        self.reads += 1
        return super().get_tuple(config)


class KeepsTheLast(InMemorySaver):
    """A saver that keeps the last of two writes to one place, and needs time for each."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        place = config["configurable"]
        key = (place["thread_id"], place.get("checkpoint_ns", ""), place["checkpoint_id"])
        for number in range(len(writes)):
            self.writes[key].pop((task_id, number), None)
        super().put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: Any) -> Any:
        found = self.get_tuple(config)
        await asyncio.sleep(0.002)
        return found


def fan_out(body: Any, branches: int, saver: Any, *, inner: bool = False, **options: Any) -> Any:
    """A graph whose branches run `body`; with `inner` as a subgraph of the only node of another one."""

    def sends(state: Any) -> list[Send]:
        return [Send("pay", {"log": [], "amount": number}) for number in range(branches)]

    builder: Any = StateGraph(State)
    builder.add_node("pay", body, **options)
    builder.add_conditional_edges(START, sends, ["pay"])
    builder.add_edge("pay", END)
    if not inner:
        return builder.compile(checkpointer=saver)
    outer: Any = StateGraph(State)
    outer.add_node("team", builder.compile())
    outer.add_edge(START, "team")
    return outer.compile(checkpointer=saver)


def pays(state: Any) -> Any:
    return {"log": [str(state["amount"])]}


async def apays(state: Any) -> Any:
    return pays(state)


def asking(graph: Any) -> Any:
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("sure?"), target_nodes=["pay"]))
    return arbiter_os.govern(graph)


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("inner", [False, True])
def test_reads_of_the_checkpoint_do_not_grow_with_the_branches(mode: str, inner: bool) -> None:
    """In an event loop all branches share them. In threads each branch reads only to see whether its own answer
    and its own beginning were kept, and one read serves the threads that wait for it.
    """

    def reads(branches: int) -> tuple[int, int]:
        saver = Counting()
        app = asking(fan_out(pays if mode == "sync" else apays, branches, saver, inner=inner))
        config: Any = {**thread("1"), "max_concurrency": 1 if mode == "sync" else None}

        def go(what: Any) -> tuple[Any, int]:
            before = saver.reads
            if mode == "sync":
                found = app.invoke(what, config, durability="sync")
            else:
                found = asyncio.run(app.ainvoke(what, config, durability="sync"))
            return found, saver.reads - before

        paused, to_ask = go({"log": []})
        answers = {question.id: "approve" for question in paused["__interrupt__"]}
        found, to_resume = go(Command(resume=answers))
        assert len(found["log"]) == len(answers) == branches
        return to_ask, to_resume

    (few_asked, few_resumed), (many_asked, many_resumed) = reads(5), reads(25)
    assert many_asked - few_asked <= (20 if mode == "sync" else 0)
    assert many_resumed - few_resumed <= (40 if mode == "sync" else 0)


def test_two_executions_of_one_process_share_no_answer_though_the_saver_keeps_the_last_write() -> None:
    """Each of them has read the checkpoint before the other one writes its notes."""
    paid: list[str] = []

    async def pay(state: Any) -> Any:
        paid.append(str(state["amount"]))
        await asyncio.sleep(0.01)
        return pays(state)

    app = asking(fan_out(pay, 4, KeepsTheLast()))

    async def go() -> list[Any]:
        paused = await app.ainvoke({"log": []}, thread("1"), durability="sync")
        answers = {question.id: "approve" for question in paused["__interrupt__"]}

        async def later(seconds: float) -> Any:
            await asyncio.sleep(seconds)
            return await app.ainvoke(Command(resume=answers), thread("1"), durability="sync")

        return list(await asyncio.gather(*map(later, (0, 0.004, 0.007)), return_exceptions=True))

    outcomes: Any = asyncio.run(go())
    assert sorted(paid) == sorted({*paid})
    assert all(isinstance(each, dict | ApprovalUsedError) for each in outcomes), outcomes


class SavesSlowly(InMemorySaver):
    """A saver that needs time for each checkpoint and, in an event loop, for each read."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        time.sleep(0.3)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        await asyncio.sleep(0.3)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aget_tuple(self, config: Any) -> Any:
        await asyncio.sleep(0.02)
        return self.get_tuple(config)


@pytest.mark.lengthy
@MODES
def test_branches_that_run_graphs_in_event_loops_of_their_own_wait_for_no_other_loop(mode: str) -> None:
    """A fork is saved in the background, so the inner nodes are the first to find the outer checkpoint."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(BudgetChecker("budget", calls=100, per="thread", target_nodes=["asks"]))

    def asks(state: Any) -> Any:
        return {"log": [interrupt("which?")]}

    inner = arbiter_os.govern(StateGraph(State).add_node("asks", asks).add_edge(START, "asks").compile())

    def pay(state: Any) -> Any:
        return {"log": asyncio.run(inner.ainvoke({"log": []}))["log"]}

    app = arbiter_os.govern(fan_out(pay, 4, SavesSlowly()))

    def go(what: Any, config: Any) -> Any:
        return app.invoke(what, config) if mode == "sync" else asyncio.run(app.ainvoke(what, config))

    assert len(go({"log": []}, thread("1"))["__interrupt__"]) == 4
    fork = next(iter(app.get_state_history(thread("1")))).config
    assert len(go(None, fork)["__interrupt__"]) == 4


def place_of(question: Any) -> str:
    """The branch that asks: LangGraph lists questions as threads happened to ask them."""
    match question.value:
        case {"input": {"amount": amount}}:
            return str(amount)
        case text:
            return str(text)


Does = st.sampled_from(["pays", "fails once", "asks too", "pays"])
Answer = st.sampled_from([None, "approve", "reject", {"type": "edit", "input": {"amount": 99}}])


@pytest.mark.lengthy
@settings(max_examples=40, deadline=None)
@given(
    does=st.lists(Does, min_size=1, max_size=4),
    rounds=st.lists(st.lists(Answer, min_size=8, max_size=8), min_size=1, max_size=4),
    inner=st.booleans(),
    is_async=st.booleans(),
    durability=st.sampled_from(["sync", "exit"]),
    restarts=st.booleans(),
)
def test_branches_that_share_reads_decide_as_if_each_had_its_own(
    does: list[str], rounds: list[list[Any]], inner: bool, is_async: bool, durability: str, restarts: bool
) -> None:
    def story() -> list[Any]:
        told: list[Any] = []
        failed: set[int] = set()

        def body(state: Any) -> Any:
            amount: int = state["amount"]
            what = does[amount] if amount < len(does) else "pays"
            told.append((what, amount))
            if what == "fails once" and amount not in failed:
                failed.add(amount)
                raise ConnectionError(amount)
            if what == "asks too":
                return {"log": [str(interrupt(f"{amount} which?"))]}
            return pays(state)

        async def abody(state: Any) -> Any:
            return body(state)

        retry = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
        saver = InMemorySaver()
        node = abody if is_async else body
        graph = fan_out(node, len(does), saver, inner=inner, retry_policy=retry)

        def governed() -> tuple[BudgetChecker, Any]:
            arbiter_os = ArbiterOS()
            budget = BudgetChecker("budget", calls=len(does) + 1, target_nodes=["pay"])
            arbiter_os.add_policy_checker(budget)
            arbiter_os.add_policy_checker(Check("ask", lambda _: Verdict.ask("sure?"), target_nodes=["pay"]))
            return budget, arbiter_os.govern(graph)

        budget, app = governed()
        given: Any = {"log": []}
        for answers in [*rounds, []]:
            seen = len(told)
            found: Any
            config: Any = {**thread("1"), "max_concurrency": 1}
            try:
                if is_async:
                    found = asyncio.run(app.ainvoke(given, config, durability=durability))
                else:
                    found = app.invoke(given, config, durability=durability)
            except Exception as exc:
                found = {"log": [type(exc).__name__, str(exc)]}
            asked = sorted(found.get("__interrupt__", ()), key=place_of)
            questions: list[Any] = [
                (place_of(each), each.value["question"], each.value.get("note"))
                if isinstance(each.value, Mapping)
                else each.value
                for each in asked
            ]
            told[seen:] = sorted(told[seen:])
            used = budget.used()
            told += [found["log"], questions, used and used.calls]
            if restarts:
                budget, app = governed()
            given = Command(
                resume={
                    each.id: answer
                    for each, answer in zip(asked, answers, strict=False)
                    if answer is not None
                }
            )
            if not given.resume:
                break
        return told

    def alone(conf: Any) -> dict[Any, Any]:
        return {}

    with patch.object(notes, "reads_in", alone):
        expected = story()
    assert story() == expected
