"""An evaluator can change nothing, and no code waits for a result that it does not read."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt

from arbiter import (
    ArbiterOS,
    EvaluationResult,
    EvaluationRouter,
    History,
    HistoryItem,
    NodeEvaluator,
    PolicyViolationError,
    ThresholdEvaluator,
)
from arbiter._lifecycle import background, evaluations
from arbiter._threads import deadlines
from arbiter._values.once import Once
from arbiter.errors import RegistrationError
from arbiter.instructions import GENERATE, VERIFY
from tests.support import MODES, PATIENCE, Check, Hold, Judge, Route, Spy, add, bad, chain, good, run, thread


def mutate_output(history: History) -> EvaluationResult:
    history.entries[-1][-1].output_state["log"] = ["hacked"]  # type: ignore[index]
    return good(history)


def mutate_nested(history: History) -> EvaluationResult:
    history.entries[-1][-1].output_state["log"].append("hacked")
    return good(history)


def mutate_input(history: History) -> EvaluationResult:
    history.entries[-1][-1].input_state["log"].clear()
    return good(history)


def mutate_item(history: History) -> EvaluationResult:
    history.entries[-1][-1].status = "hacked"  # type: ignore[misc, assignment]
    return good(history)


def leave(history: History) -> EvaluationResult:
    raise SystemExit(1)


class QuitsWhenShownError(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


def leave_when_shown(history: History) -> EvaluationResult:
    raise QuitsWhenShownError


def pause(history: History) -> EvaluationResult:
    raise GraphInterrupt(())


BROKEN: dict[str, Callable[[Any], Any]] = {
    "raises": lambda h: 1 / 0,
    "returns None": lambda h: None,
    "returns a string": lambda h: "good",
    "returns a list": lambda h: [1.0],
    "returns NaN": lambda h: float("nan"),
    "scores NaN": lambda h: EvaluationResult(float("nan"), True),
    "scores infinity": lambda h: EvaluationResult(float("inf"), True),
    "scores text": lambda h: EvaluationResult("0.9", True),  # type: ignore[arg-type]
    "scores True": lambda h: EvaluationResult(True, True),
    "passes text": lambda h: EvaluationResult(0.5, "yes"),  # type: ignore[arg-type]
    "changes the output": mutate_output,
    "changes a list in the output": mutate_nested,
    "changes the input": mutate_input,
    "changes the item": mutate_item,
    "raises SystemExit": leave,
    "raises what exits when it is shown": leave_when_shown,
    "raises GraphInterrupt": pause,
}


@pytest.mark.lengthy
@MODES
@pytest.mark.parametrize("read", [False, True], ids=["unread", "read by a router"])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_broken_evaluator_changes_nothing(broken: Any, read: bool, mode: str) -> None:
    """The output is that of a run without it, and the failure is in `evaluation_errors`."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("broken", broken))
    arbiter_os.add_evaluator(Judge("sound", good))
    if read:
        arbiter_os.add_policy_router(EvaluationRouter("r", "broken", "b"))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), checkpointer=InMemorySaver()))
    assert run(app, {"log": ["in"]}, thread("1"), mode=mode) == {"log": ["in", "a", "b"]}
    assert arbiter_os.drain(60)
    for item in arbiter_os.history.items():
        assert list(item.evaluation_errors) == ["broken"]
        assert item.evaluation_errors["broken"]
        assert dict(item.evaluation_results) == {"sound": EvaluationResult(1.0, True, "good")}
        assert "broken" not in item.evaluation_results
        assert item.evaluation_results.get("broken") is None
    assert app.get_state(thread("1")).values == {"log": ["in", "a", "b"]}


@MODES
def test_hanging_evaluator_is_an_error_after_its_deadline(mode: str, hold: Hold) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("hangs", hold, deadline=0.1))
    app = arbiter_os.govern(chain(Spy("a")))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a"]}
    assert arbiter_os.drain(PATIENCE)
    assert "0.1 s" in arbiter_os.history.entries[-1][-1].evaluation_errors["hangs"]


@pytest.mark.lengthy
@MODES
def test_hanging_evaluator_that_a_router_reads_costs_its_deadline(mode: str, hold: Hold) -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("hangs", hold, deadline=0.1))
    arbiter_os.add_policy_router(EvaluationRouter("r", "hangs", "b"))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "b"]}
    assert "0.1 s" in arbiter_os.history.entries[0][0].evaluation_errors["hangs"]


@MODES
def test_unread_results_delay_no_run(mode: str, hold: Hold) -> None:
    """`invoke` returns before a slow evaluator has finished; reading its result waits for it."""

    def slow(history: History) -> EvaluationResult:
        hold()
        return EvaluationResult(0.5, True, "late")

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("slow", slow))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "b"]}
    assert not arbiter_os.drain(0.05)
    hold.release()
    assert arbiter_os.history.entries[-1][-1].evaluation_results["slow"].feedback == "late"
    assert arbiter_os.drain(60)


@MODES
def test_async_evaluator_in_either_kind_of_run(mode: str) -> None:
    class Later(NodeEvaluator):
        async def evaluate(self, history: History) -> EvaluationResult:
            await asyncio.sleep(0.01)
            return EvaluationResult(0.2, False, history.entries[-1][-1].node)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Later("later", target_nodes=["a"]))
    arbiter_os.add_policy_router(EvaluationRouter("r", "later", "c"))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b"), extra=[Spy("c")]))
    assert run(app, {"log": []}, mode=mode) == {"log": ["a", "c"]}
    assert arbiter_os.history.entries[0][0].evaluation_results["later"].feedback == "a"


@pytest.mark.parametrize("slow", ["checker", "evaluator", "router"])
def test_slow_sync_contracts_never_stall_the_event_loop(slow: str, hold: Hold) -> None:
    """The loop turns while one of them takes its time."""
    arbiter_os = ArbiterOS()
    contracts: dict[str, Any] = {
        "checker": Check("c", hold),
        "evaluator": Judge("e", hold.then(EvaluationResult(1.0, True)), durable=True),
        "router": Route("r", hold.then(None)),
    }
    add(arbiter_os, contracts[slow])
    app = arbiter_os.govern(chain(Spy("a")))

    async def main() -> None:
        task = asyncio.create_task(app.ainvoke({"log": []}))
        while not (hold.begun.is_set() or task.done()):
            await asyncio.sleep(0.005)
        hold.release()
        await task

    asyncio.run(main())
    assert not arbiter_os.history.item.errors
    assert not arbiter_os.history.item.evaluation_errors


def test_one_evaluators_calls_run_one_after_another() -> None:
    running = 0
    most = 0

    def judge(history: History) -> EvaluationResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("judge", judge))
    app = arbiter_os.govern(chain(*(Spy(f"n{i}") for i in range(5))))
    app.invoke({"log": []})

    def read(item: Any) -> None:
        item.evaluation_results.get("judge")

    threads = [threading.Thread(target=read, args=(item,)) for item in arbiter_os.history.items()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert arbiter_os.drain(60)
    assert most == 1


def test_each_evaluation_runs_once_however_many_read_it() -> None:
    calls: list[str] = []

    def judge(history: History) -> EvaluationResult:
        calls.append(history.entries[-1][-1].node)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("judge", judge))
    arbiter_os.add_policy_router(EvaluationRouter("r", "judge", "b"))
    arbiter_os.govern(chain(Spy("a"), Spy("b"))).invoke({"log": []})
    for item in arbiter_os.history.items():
        assert item.evaluation_results["judge"].passed
        assert len(item.evaluation_results) == 1
    arbiter_os.drain()
    assert calls == ["a", "b"]


def test_evaluator_that_runs_the_graph_again_is_refused() -> None:
    arbiter_os = ArbiterOS()
    graph = chain(Spy("a"))
    app = arbiter_os.govern(graph)
    arbiter_os.add_evaluator(Judge("again", lambda h: app.invoke({"log": []})))
    arbiter_os.add_evaluator(Judge("bare", lambda h: good(h) if graph.invoke({"log": []}) else bad(h)))
    assert app.invoke({"log": []}) == {"log": ["a"]}
    item = arbiter_os.history.entries[-1][-1]
    assert "starts none" in item.evaluation_errors["again"]
    assert item.evaluation_results["bare"].passed
    assert arbiter_os.history.count() == 1


def test_evaluator_may_read_another_and_waiting_in_a_circle_is_an_error() -> None:
    def total(history: History) -> EvaluationResult:
        results = history.entries[-1][-1].evaluation_results
        return EvaluationResult(results["part"].score / 2, True)

    def selfish(history: History) -> EvaluationResult:
        return history.entries[-1][-1].evaluation_results["selfish"]

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("total", total))
    arbiter_os.add_evaluator(Judge("part", good))
    arbiter_os.add_evaluator(Judge("selfish", selfish))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    item = arbiter_os.history.entries[-1][-1]
    assert item.evaluation_results["total"].score == 0.5
    assert "selfish" in item.evaluation_errors


def test_an_async_evaluator_that_reads_another_synchronously_blocks_no_other() -> None:
    """While that other is called from elsewhere, and waits for the loop that both run on."""
    has_read = threading.Event()

    async def slow(history: History) -> EvaluationResult:
        while not has_read.is_set():
            await asyncio.sleep(0.002)
        return good(history)

    async def reads(history: History) -> EvaluationResult:
        await asyncio.sleep(0.05)
        assert history.entries[-1][-1].evaluation_results.get("slow") is None
        has_read.set()
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("slow", slow))
    arbiter_os.add_evaluator(Judge("reads", reads))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    item = arbiter_os.history.entries[-1][-1]
    assert arbiter_os.drain(PATIENCE)
    assert dict(item.evaluation_errors) == {}


def test_model_calls_of_evaluators_and_policies_do_not_leak_into_the_message_stream() -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("judged")] * 20))

    def judge(history: History) -> EvaluationResult:
        model.invoke("is it good?")
        return good(history)

    def check(history: History) -> bool:
        return bool(model.invoke("is it allowed?"))

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("judge", judge))
    arbiter_os.add_policy_router(EvaluationRouter("r", "judge", "b"))
    arbiter_os.add_policy_checker(Check("check", check))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    assert list(app.stream({"log": []}, stream_mode="messages")) == []

    async def collect() -> list[Any]:
        stream: AsyncIterator[Any] = app.astream({"log": []}, stream_mode="messages")
        return [chunk async for chunk in stream]

    assert asyncio.run(collect()) == []


@MODES
def test_only_results_that_were_read_are_committed(mode: str) -> None:
    """A later checker finds results that a router read or that are durable, and no others."""
    seen: dict[str, Any] = {}

    def look(history: History) -> bool:
        found = history.last(node="a")
        assert found is not None
        seen.update({name: result.passed for name, result in found.evaluation_results.items()})
        seen["unread"] = "unread" in found.evaluation_results
        return True

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("read", good))
    arbiter_os.add_evaluator(Judge("durable", bad, durable=True))
    arbiter_os.add_evaluator(Judge("unread", good))
    arbiter_os.add_policy_router(EvaluationRouter("r", "read", "b"))
    arbiter_os.add_policy_checker(Check("look", look, target_nodes=["b"]))
    run(arbiter_os.govern(chain(Spy("a"), Spy("b"))), {"log": []}, mode=mode)
    assert seen == {"read": True, "durable": False, "unread": False}


@MODES
def test_a_look_for_a_result_that_nothing_commits_is_reported_once(
    caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The rule would never act; the warning says how it finds the result. A result that may be absent is not
    reported."""
    arbiter_os = ArbiterOS()
    for judge in (Judge("unread", bad), Judge("kept", leave, durable=True), Judge("read", leave)):
        arbiter_os.add_evaluator(judge)
    arbiter_os.add_policy_router(Route("reader", lambda h, _: h.item.evaluation_results.get("read") and None))

    def look(history: History) -> bool:
        for item in history.earlier():
            for name in ("unread", "kept", "read", "unknown"):
                assert item.evaluation_results.get(name) is None
                assert name not in copy.deepcopy(item.evaluation_results)
        return True

    arbiter_os.add_policy_checker(Check("looks", look))
    run(arbiter_os.govern(chain(Spy("a"), Spy("b"), Spy("c"))), {"log": []}, mode=mode)
    told = [record.getMessage() for record in caplog.records if "looked for" in record.getMessage()]
    assert told == [
        "a rule looked for the result 'unread' of an earlier run of node 'a', which is not committed: no router "
        "read it there. Set durable=True on evaluator 'unread', so that later rules find it"
    ]


@MODES
def test_policy_that_waits_for_a_verification(mode: str) -> None:
    """RESPOND-like steps run only after a VERIFY that passed, not merely ran."""

    def verified(history: History) -> bool:
        check = history.last(instruction=VERIFY)
        return check is not None and check.evaluation_results["sound"].passed is True

    for passed in (True, False):
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluator(ThresholdEvaluator("sound", "score", 0.5, [VERIFY], durable=True))
        arbiter_os.add_policy_checker(Check("verified", verified, target_nodes=["answer"]))
        graph = chain(Spy("think"), Spy("check", score=0.9 if passed else 0.1), Spy("answer"))
        app = arbiter_os.govern(graph, {"think": GENERATE, "check": VERIFY})
        if passed:
            assert run(app, {"log": []}, mode=mode)["log"][-1] == "answer"
        else:
            with pytest.raises(PolicyViolationError, match="verified"):
                run(app, {"log": []}, mode=mode)


def test_threshold_evaluator_as_the_seed_has_it() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(ThresholdEvaluator("confidence_check", "score", 0.7))
    arbiter_os.govern(chain(Spy("a", score=0.9), Spy("b", score=0.2), Spy("c"), Spy("d", score="x"))).invoke(
        {"log": []}
    )
    results = [item.evaluation_results["confidence_check"] for item in arbiter_os.history.items()]
    assert [(r.score, r.passed) for r in results] == [
        (0.9, True),
        (0.2, False),
        (0.0, False),
        (0.0, False),
    ]
    assert results[0].feedback == "score=0.90 (✓ threshold=0.7)"


def test_failed_and_denied_nodes_are_not_judged() -> None:
    def broken(state: Any) -> Any:
        raise ValueError("no")

    judged: list[str] = []

    def judge(history: History) -> EvaluationResult:
        judged.append(history.entries[-1][-1].node)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("judge", judge))
    with pytest.raises(ValueError, match="no"):
        arbiter_os.govern(chain(Spy("a"), broken)).invoke({"log": []})
    arbiter_os.drain()
    assert judged == ["a"]


@MODES
def test_deadline_is_kept_however_quick_the_evaluator_was_before(mode: str, hold: Hold) -> None:
    calls: list[int] = []

    def sometimes(history: History) -> EvaluationResult:
        calls.append(1)
        if len(calls) == 6:
            hold()
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("sometimes", sometimes, durable=True, deadline=0.1))
    app = arbiter_os.govern(chain(*(Spy(f"n{i}") for i in range(6))))
    run(app, {"log": []}, mode=mode)
    assert "0.1 s" in arbiter_os.history.entries[-1][-1].evaluation_errors["sometimes"]


@pytest.mark.lengthy
def test_quick_evaluator_is_called_in_place_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is used until an evaluator has proved to be quick, and again while it is often slow."""
    now = 0.0
    monkeypatch.setattr(deadlines, "perf_counter", lambda: now)
    threads: list[str] = []

    def judge(history: History) -> EvaluationResult:
        nonlocal now
        if len(threads) in (10, 20):
            now += 1.0  # all other calls take no time
        threads.append(threading.current_thread().name)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quick", judge, durable=True))
    app = arbiter_os.govern(chain(*(Spy(f"n{i}") for i in range(65))))
    for _ in range(2):
        app.invoke({"log": []}, {"recursion_limit": 99})
    here = threading.current_thread().name
    assert [threads[0], threads[9], threads[11], threads[19]] == ["arbiter-call", here, "arbiter-call", here]
    assert set(threads[21:121]) == {"arbiter-call"}
    assert set(threads[121:]) == {here}


@pytest.mark.lengthy
def test_a_worker_that_ends_leaves_no_evaluation_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends when it has had nothing to do for a while, at any moment in which somebody queues."""
    monkeypatch.setattr(background, "_LOOK", 0.0005)
    monkeypatch.setattr(background, "_LOOKS", 1)
    evaluated: list[str] = []

    def note(history: History) -> EvaluationResult:
        evaluated.append(history.entries[-1][-1].id)
        return good(history)

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("note", note))
    app = arbiter_os.govern(chain(Spy("a")))

    def some(pause: float) -> None:
        for _ in range(40):
            app.invoke({"log": []})
            time.sleep(pause)

    threads = [threading.Thread(target=some, args=(n / 4000,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert arbiter_os.drain(60)
    assert len(set(evaluated)) == len(evaluated) == 160


@MODES
def test_an_evaluator_runs_in_a_context_of_its_own(mode: str) -> None:
    """Also if a rule or a caller reads its result: it leaves nothing in their context, and the graph's config
    does not reach it."""
    own: ContextVar[str] = ContextVar("own", default="unset")
    found: list[str] = []

    def look(history: History) -> EvaluationResult:
        found.append(str(var_child_runnable_config.get()))
        own.set("of the evaluator")
        return good(history)

    def node(state: Any) -> Any:
        found.append(f"node: {own.get()}")
        return {"log": ["a"]}

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("look", look))
    arbiter_os.add_policy_router(EvaluationRouter("r", "look", "node"))
    app = arbiter_os.govern(chain(node))
    token = own.set("of the caller")
    run(app, {"log": []}, mode=mode)
    run(app, {"log": []}, mode=mode)
    assert own.get() == "of the caller"
    own.reset(token)
    assert found == ["node: of the caller", "None"] * 2


class Meeting(NodeEvaluator):
    """Its calls end when `many` of them run at once, or fail in the end."""

    def __init__(self, many: int, concurrency: int) -> None:
        super().__init__("meeting")
        self.concurrency = concurrency
        self.barrier = threading.Barrier(many)
        self.lock = threading.Lock()
        self.running = self.most = self.calls = 0

    def count(self, change: int) -> None:
        with self.lock:
            self.running += change
            self.calls += change > 0
            self.most = max(self.most, self.running)

    def evaluate(self, history: History) -> Any:
        self.count(1)
        try:
            self.barrier.wait(PATIENCE)
            return EvaluationResult(1.0, True)
        finally:
            self.count(-1)


class AsyncMeeting(Meeting):
    async def evaluate(self, history: History) -> Any:
        self.count(1)
        try:
            async with asyncio.timeout(PATIENCE):
                while self.most < self.barrier.parties:
                    await asyncio.sleep(0.001)
            return EvaluationResult(1.0, True)
        finally:
            self.count(-1)


@MODES
@pytest.mark.parametrize("deadline", [None, 20.0, 30.0], ids=["no deadline", "a deadline", "the default"])
@pytest.mark.parametrize("kind", [Meeting, AsyncMeeting])
def test_evaluator_judges_several_threads_at_once(
    kind: type[Meeting], deadline: float | None, mode: str
) -> None:
    """With `concurrency = 8`, the node runs of eight threads are judged at the same time."""
    evaluator = kind(8, concurrency=8)
    evaluator.deadline = deadline
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    for case in range(8):
        run(app, {"log": []}, thread(str(case)), mode=mode)
    assert arbiter_os.drain(60)
    for case in range(8):
        [item] = arbiter_os.history_of(thread_id=str(case)).items()
        assert item.evaluation_results["meeting"].score == 1.0
    assert (evaluator.calls, evaluator.most) == (8, 8)


@pytest.mark.lengthy
def test_evaluator_never_runs_more_calls_at_once_than_its_concurrency() -> None:
    """Twelve node runs, three at once; and one at once if the evaluator says nothing."""

    class Busy(Meeting):
        def evaluate(self, history: History) -> Any:
            self.count(1)
            time.sleep(0.01)
            self.count(-1)
            return EvaluationResult(1.0, True)

    three, one = Busy(1, concurrency=3), Busy(1, concurrency=NodeEvaluator.concurrency)
    one.name = "one"
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(three)
    arbiter_os.add_evaluator(one)
    app = arbiter_os.govern(chain(Spy("a"), checkpointer=InMemorySaver()))
    for case in range(12):
        app.invoke({"log": []}, thread(str(case)))
    assert arbiter_os.drain(60)
    assert (three.calls, three.most) == (12, 3)
    assert (one.calls, one.most) == (12, 1)


def test_several_readers_of_one_result_share_one_call() -> None:
    """An evaluator that may judge many node runs at once still judges each of them once."""
    evaluator = Meeting(1, concurrency=32)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(evaluator)
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    item = arbiter_os.history.item
    begin = threading.Barrier(8)

    def read() -> float:
        begin.wait(PATIENCE)
        return item.evaluation_results["meeting"].score

    with ThreadPoolExecutor(8) as readers:
        assert [each.result() for each in [readers.submit(read) for _ in range(8)]] == [1.0] * 8
    assert evaluator.calls == 1


@pytest.mark.parametrize("read", ["get", "[]", "in"])
def test_a_rule_that_reads_a_misspelt_result_is_reported_once(
    read: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that another node's evaluator gives is none of those: a router of several nodes may look for it."""
    misspelt = f"qualty_{read}"

    def reads(history: Any, output: Any) -> None:
        results = history.item.evaluation_results
        assert results.get("of_b") is None or history.item.node == "b"
        match read:
            case "get":
                assert results.get(misspelt) is None
            case "in":
                assert misspelt not in results
            case _:
                with pytest.raises(KeyError):
                    results[misspelt]

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge(f"quality_{read}", good))
    caplog.set_level(logging.WARNING, "arbiter")
    arbiter_os.add_evaluator(Judge("of_b", good, target_nodes=["b"]))
    arbiter_os.add_policy_router(Route("reads", reads))
    app = arbiter_os.govern(chain(Spy("a"), Spy("b")))
    for _ in range(2):
        app.invoke({"log": []})
    assert caplog.messages == [
        f"a rule read the result {misspelt!r} of its node, and no evaluator gives one of that name, so it found none. "
        f"Evaluators: quality_{read}, of_b. Did you mean 'quality_{read}'? (This is reported once.)"
    ]


def test_a_result_can_be_awaited_where_nothing_is_judged() -> None:
    """`aget` finds none, as `get` does, before the body and on a node without an evaluator."""
    arbiter_os = ArbiterOS()
    found: list[object] = []

    @arbiter_os.checker
    async def before(item: HistoryItem) -> bool:
        found.append(await item.evaluation_results.aget("style"))
        return True

    @arbiter_os.checker
    async def afterwards(output: object, history: History) -> bool:
        found.extend([await item.evaluation_results.aget("style") for item in history.items()])
        return True

    assert run(arbiter_os.govern(chain(Spy("a"))), {"log": []}, mode="async")["log"] == ["a"]
    assert found == [None, None]


def test_a_result_that_a_rule_reads_where_nothing_is_judged_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No evaluator applies to the node of the router, so nothing would ever be found."""
    arbiter_os = ArbiterOS()
    arbiter_os.add_policy_router(Route("reads", lambda h, _: h.item.evaluation_results.get("nowhere")))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    assert [message for message in caplog.messages if "'nowhere'" in message] == [
        "a rule read the result 'nowhere' of its node, and no evaluator gives one of that name, so it found none. "
        "Evaluators: none. (This is reported once.)"
    ]


def test_names_from_user_texts_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name is reported once, and after 256 names none is, so that the memory of the process is bounded, too."""
    monkeypatch.setattr(evaluations, "_unknown", Once())
    names = [f"a text {number}" for number in range(1000)]

    def reads(history: Any, output: Any) -> None:
        for name in names * 2:
            assert history.item.evaluation_results.get(name) is None

    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("quality", good))
    arbiter_os.add_policy_router(Route("reads", reads))
    arbiter_os.govern(chain(Spy("a"))).invoke({"log": []})
    assert len([message for message in caplog.messages if "'a text " in message]) == 256


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "8", None])
def test_concurrency_is_a_whole_number_from_1(wrong: Any) -> None:
    """The mistake is found at registration."""
    evaluator = Meeting(1, concurrency=wrong)
    with pytest.raises(RegistrationError, match="concurrency"):
        ArbiterOS().add_evaluator(evaluator)
