"""How often, in which order and where contracts are called, and what is left of a node run afterwards."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    EvaluationRouter,
    NodeEvaluator,
    PolicyChecker,
    PolicyRouter,
    PolicyViolationError,
    Verdict,
)
from arbiter._threads import deadlines
from arbiter._weaving.node import NodeAttempt
from tests.processes import python
from tests.support import (
    MODES,
    Check,
    Hold,
    Judge,
    Route,
    Spy,
    State,
    add,
    allow,
    chain,
    gained,
    governed,
    run,
    thread,
    until,
)


class Counting(PolicyChecker):
    """Observes, and remembers in which order it was asked."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__(name)
        self.calls = calls

    def check_before(self, history: Any) -> bool:
        self.calls.append(self.name)
        return True

    def observe(self, history: Any) -> dict[str, float]:
        self.calls.append(f"{self.name} observed {history.entries[-1][-1].status}")
        return {"runs": 1}


@MODES
@pytest.mark.parametrize("on_deny", ["raise", "end"])
def test_each_checker_is_asked_once_and_observes_once_if_another_denies(mode: str, on_deny: str) -> None:
    calls: list[str] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Counting("counts", calls))
    arbiter_os.add_policy_checker(
        Check("denies", lambda _: Verdict.deny("no") if calls.count("counts") < 2 else True, on_deny=on_deny)
    )
    app = arbiter_os.govern(chain(Spy("a")))
    if on_deny == "raise":
        with pytest.raises(PolicyViolationError):
            run(app, {"log": []}, mode=mode)
    else:
        run(app, {"log": []}, mode=mode)
    assert calls == ["counts", "counts observed denied"]


@MODES
@pytest.mark.parametrize("where", ["body", "router"])
def test_a_checker_observes_a_failure_and_a_redirect_once(mode: str, where: str) -> None:
    calls: list[str] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Counting("counts", calls))

    def body(state: Any) -> Any:
        if where == "body":
            raise ValueError("broken")
        return {"log": ["a"]}

    if where == "router":
        arbiter_os.add_policy_router(Route("ends", lambda h, o: END))
    app = arbiter_os.govern(_one(body))
    if where == "body":
        with pytest.raises(ValueError, match="broken"):
            run(app, {"log": []}, mode=mode)
    else:
        assert run(app, {"log": []}, mode=mode) == {"log": ["a"]}
    status = "failed" if where == "body" else "completed"
    assert calls == ["counts", f"counts observed {status}"]


def _one(body: Any) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("a", body)
    builder.add_edge(START, "a")
    return builder.compile()


class Later(PolicyChecker):
    """A `def` that returns an awaitable."""

    tags: list[bool]

    def check_before(self, history: Any) -> Any:
        return self.later()

    async def later(self) -> bool:
        self.tags.append("nostream" in (get_config().get("tags") or ()))
        await GenericFakeChatModel(messages=iter([AIMessage("the judge's own")])).ainvoke("?")
        return True


class LaterRouter(PolicyRouter):
    tags: list[bool]

    def route_after(self, history: Any, current_output: Any) -> Any:
        return self.later()

    async def later(self) -> None:
        self.tags.append("nostream" in (get_config().get("tags") or ()))


def _loop(times: int) -> Any:
    async def again(state: State) -> Any:
        return {"log": ["a"]}

    builder: Any = StateGraph(State)
    builder.add_node("a", again)
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", lambda s: "a" if len(s["log"]) < times else END, ["a", END])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return builder.compile()


def test_model_calls_of_contracts_that_return_awaitables_appear_in_no_stream() -> None:
    """They are awaited with a config of their own."""
    checker, router = Later("later"), LaterRouter("routes")
    checker.tags, router.tags = [], []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(checker)
    arbiter_os.add_policy_router(router)

    async def streamed() -> list[Any]:
        app: Any = arbiter_os.govern(_loop(6))
        return [part async for part in app.astream({"log": []}, stream_mode="messages")]

    assert asyncio.run(streamed()) == []
    assert checker.tags == router.tags == [True] * 6


def test_an_async_evaluator_that_a_router_needs_never_blocks_the_event_loop(hold: Hold) -> None:
    class Slow(NodeEvaluator):
        async def evaluate(self, history: Any) -> EvaluationResult:
            return EvaluationResult(1.0, await hold.until_released())

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Slow("slow"))
    arbiter_os.add_policy_router(EvaluationRouter("reflects", "slow", "a"))
    app = arbiter_os.govern(_loop(5))

    async def main() -> None:
        running = asyncio.create_task(app.ainvoke({"log": []}))
        while not (hold.begun.is_set() or running.done()):
            await asyncio.sleep(0.005)
        hold.release()
        await running

    asyncio.run(main())
    assert not any(item.evaluation_errors for item in arbiter_os.history.items())


@pytest.mark.lengthy
@MODES
def test_a_failed_router_does_not_keep_the_run_alive(mode: str) -> None:
    """The frames that an error has passed hold nothing that holds the error."""

    def fails(history: Any, output: Any) -> Any:
        raise ValueError("broken")

    arbiter_os = ArbiterOS(keep=1)
    arbiter_os.add_policy_checker(Check("allows", allow))
    arbiter_os.add_policy_router(Route("fails", fails))
    app = arbiter_os.govern(chain(Spy("a")))
    for _ in range(5):
        run(app, {"log": []}, mode=mode)  # contracts prove to be quick
    assert gained(NodeAttempt, lambda: run(app, {"log": []}, mode=mode), times=10) <= 1


def test_unread_results_are_computed_without_a_drain() -> None:
    """Soon: the worker looks every 50 ms."""
    done: list[int] = []

    def judge(history: Any) -> EvaluationResult:
        done.append(1)
        return EvaluationResult(1.0, True)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("counts", judge))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    until(lambda: done)
    assert done == [1]


@MODES
def test_an_invalid_count_adds_nothing(mode: str) -> None:
    class Wrong(Counting):
        def observe(self, history: Any) -> Any:
            return {"good": 1, "bad": None}

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Wrong("wrong", []))
    seen: list[float] = []

    def looks(history: Any) -> bool:
        seen.append(history.tally("wrong", "good").amount)
        return True

    arbiter_os.add_policy_checker(Check("looks", looks))
    run(arbiter_os.govern(chain(Spy("a"), Spy("b"))), {"log": []}, mode=mode)
    assert seen == [0, 0]


@MODES
def test_a_checker_that_exits_when_it_counts_fails_and_the_node_run_is_recorded(mode: str) -> None:
    """The body has run: without an item in the history, nothing would say what it did."""

    class Leaves(Counting):
        def observe(self, history: Any) -> Any:
            raise SystemExit(3)

    arbiter_os, app = governed(chain(Spy("a")), Leaves("leaves", []))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a"]}
    item = arbiter_os.history.item
    assert item.status == "completed"
    assert "SystemExit: 3; nothing was counted" in str(item.to_dict())


@MODES
def test_a_count_may_be_a_number_of_numpy(mode: str) -> None:
    """No checkpoint takes one, so the run ended."""

    class Numbers(Counting):
        def observe(self, history: Any) -> Any:
            return {"cost": np.float64(1.5), "restarts": np.float64("-inf")}

    arbiter_os, app = governed(
        chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()), Numbers("numbers", [])
    )
    seen: list[float] = []

    def looks(history: Any) -> bool:
        seen.append(history.tally("numbers", "cost").amount)
        return True

    add(arbiter_os, Check("looks", looks))
    run(app, {"log": []}, thread("1"), mode=mode)
    assert seen == [0, 1.5]


@pytest.mark.parametrize(("keys", "warns"), [(255, False), (300, True)])
def test_one_warning_says_that_a_count_may_have_been_dropped(
    keys: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class PerCustomer(Check):
        def observe(self, history: Any) -> Any:
            return {f"customer {number}": 1 for number in range(keys)}

    seen: list[float] = []

    def looks(history: Any) -> bool:
        seen.append(history.tally("per_customer", "customer 0").amount)
        seen.append(history.tally("per_customer", "nobody").amount)
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(PerCustomer("per_customer", looks))
    caplog.set_level(logging.WARNING, "arbiter")
    arbiter_os.govern(chain(Spy("a"), Spy("b"))).invoke({"log": []})
    assert seen == [0, 0, 0 if warns else 1, 0]
    assert [each.partition(", of which")[0] for each in caplog.messages] == (
        ["checker 'per_customer' counts under 256 keys or more"] if warns else []
    )


def test_cancelling_while_a_router_waits_asks_no_other_router(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the log nor the item calls the router failed."""
    asked: list[str] = []
    waits = asyncio.Event()

    async def later() -> None:
        waits.set()
        await asyncio.sleep(60)

    def first(history: Any, output: Any) -> Any:
        asked.append("first")
        return later() if len(asked) > 8 else None  # by then it has proved to be quick

    calls: list[str] = []
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Counting("counts", calls))
    arbiter_os.add_policy_router(Route("first", first))
    arbiter_os.add_policy_router(Route("second", lambda h, o: asked.append("second")))

    async def cancelled() -> None:
        app = arbiter_os.govern(_loop(6))
        running = asyncio.create_task(app.ainvoke({"log": []}))
        await waits.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    last = arbiter_os.history.last()
    assert last is not None
    assert last.status == "cancelled"
    assert asked == ["first", "second"] * 4 + ["first"]
    assert calls[-1].startswith("counts observed")
    assert not last.errors
    assert not caplog.messages


def test_the_next_checker_is_asked_only_after_an_awaited_answer() -> None:
    calls: list[str] = []

    async def later() -> Verdict:
        await asyncio.sleep(0)
        calls.append("answered")
        return Verdict.allow()

    def first(history: Any) -> Any:
        calls.append("first")
        return later()

    def second(history: Any) -> bool:
        calls.append("second")
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_checker(Check("first", first))
    arbiter_os.add_policy_checker(Check("second", second))
    asyncio.run(arbiter_os.govern(_loop(6)).ainvoke({"log": []}))
    assert calls == ["first", "answered", "second"] * 6


@pytest.mark.lengthy
def test_quick_evaluations_are_done_when_the_process_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from arbiter import ArbiterOS, EvaluationResult, NodeEvaluator\n"
        "from langgraph.graph import START, StateGraph\n"
        "class Prints(NodeEvaluator):\n"
        "    def evaluate(self, history):\n"
        "        print('evaluated', flush=True)\n"
        "        return EvaluationResult(1.0, True)\n"
        "builder = StateGraph(dict)\n"
        "builder.add_node('a', lambda state: {})\n"
        "builder.add_edge(START, 'a')\n"
        "arbiter_os = ArbiterOS()\n"
        "arbiter_os.add_evaluator(Prints('prints'))\n"
        "app = arbiter_os.govern(builder.compile())\n"
        "for _ in range(5):\n"
        "    app.invoke({})\n",
        encoding="utf-8",
    )
    done = subprocess.run(python(str(script)), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["evaluated"] * 5


@MODES
def test_a_checker_with_a_deadline_may_close_the_event_loop_of_its_thread(mode: str) -> None:
    """The thread is used again, and the next call makes a loop of its own."""

    def check(_: Any) -> bool:
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            asyncio.set_event_loop(loop := asyncio.new_event_loop())
        try:
            return loop.run_until_complete(asyncio.sleep(0, True))
        finally:
            loop.close()

    _, app = governed(chain(Spy("a")), Check("loop", check, deadline=60))
    for _ in range(3):
        assert run(app, {"log": []}, mode=mode) == {"log": ["a"]}


def test_the_handler_of_a_signal_may_start_a_call_while_another_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes while the other call takes an idle thread: a lock would never be free."""
    answers: list[int] = []

    class Interrupted(list[Any]):
        def pop(self, *args: Any) -> Any:
            if not answers:
                answers.append(0)
                answers.append(deadlines.start(lambda: 1).result())
            return super().pop(*args)

    def outer() -> None:
        answers.append(deadlines.start(lambda: 2).result())

    deadlines.start(lambda: None).result()
    monkeypatch.setattr(deadlines.THREADS, "_idle", Interrupted(vars(deadlines.THREADS)["_idle"]))
    waiter = threading.Thread(target=outer, daemon=True)
    waiter.start()
    waiter.join(10)
    assert answers == [0, 1, 2]
