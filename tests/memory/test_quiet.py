"""A short conversation is read when its thread is quiet, once."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from arbiter import ArbiterOS
from arbiter._threads.exits import forget_held
from arbiter.errors import ConfigurationError, ParameterError
from arbiter.memory import (
    CognitiveEvaluator,
    EvalContext,
    EvaluationCycle,
    FactEvaluator,
    Memory,
    Processed,
    ReflectionEvaluator,
    _cursors,
    _cycle,
    evaluator,
    open_store,
)
from arbiter.memory import _quiet as quiet
from arbiter.memory._conversation import Shown
from tests.memory.memory_support import Clock
from tests.processes import python
from tests.scripted import Scripted
from tests.support import until

SAID = ("I live in Oslo", "I have a cat called Pixel", "I work at Acme")


def answer(prompt: str) -> str:
    """Each new message of the user as a claim."""
    if "thought" in prompt and "claims" not in prompt:
        return json.dumps({"thought": "They talk", "facts": [], "relationships": []})
    new = prompt.rpartition("The new messages:")[2]
    claims = [
        {"claim": f"User: {text}", "type": "fact", "in_bio": False, "already_known": False}
        for text in SAID
        if text in new
    ]
    return json.dumps({"claims": claims})


class Slow:
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self, prompt: str) -> str:
        self.asked.set()
        assert self.go.wait(30)
        return answer(prompt)


class Chat:
    """A governed chat with memory. Options as `EvaluationCycle` has them."""

    def __init__(
        self,
        store: BaseStore | None = None,
        *,
        reflects: bool = False,
        saver: Any = None,
        plan: Any = None,
        reply: Any = None,
        **options: Any,
    ) -> None:
        self.model = Scripted(answers=[options.pop("answers", answer)], pause=options.pop("pause", 0))
        self.store = InMemoryStore() if store is None else store
        self.cycle = EvaluationCycle(store=self.store, evaluator_model=self.model, **options)
        self.os = ArbiterOS()
        self.os.add_evaluation_cycle(self.cycle)
        self.os.add_evaluator(FactEvaluator())
        if reflects:
            self.os.add_evaluator(ReflectionEvaluator())
        graph = StateGraph(MessagesState)
        graph.add_node("plan", plan or (lambda state: {}))
        graph.add_node("reply", reply or (lambda state: {"messages": [AIMessage("ok")]}))
        graph.add_edge(START, "plan")
        graph.add_edge("plan", "reply")
        compiled = graph.compile(checkpointer=InMemorySaver() if saver is None else saver or None)
        self.app = self.os.govern(compiled, {"reply": "RESPOND"})

    def says(self, *texts: str, thread: str = "room", user: str = "ada", mode: str = "sync") -> None:
        config: Any = {"configurable": {"thread_id": thread, "user_id": user}}
        for text in texts:
            turn: Any = {"messages": [HumanMessage(text)]}
            if mode == "sync":
                self.app.invoke(turn, config)
            else:
                asyncio.run(self.app.ainvoke(turn, config))

    @property
    def extractions(self) -> int:
        return sum("The new messages:" in self.model.prompt(call) for call in range(self.model.calls))

    def knows(self, user: str = "ada") -> set[str]:
        return known(self.cycle.memory, user)


def known(memory: Memory, user: str = "ada") -> set[str]:
    return {fact.claim.removeprefix("User: ") for fact in memory.facts(user)}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("when", ["inline", "background"])
def test_a_chat_of_three_turns_is_learned_from(mode: str, when: Any) -> None:
    """With default options; `drain` does not wait for the thread to be quiet."""
    chat = Chat(mode=when)
    chat.says(*SAID, mode=mode)
    assert chat.os.drain(20) if mode == "sync" else asyncio.run(chat.os.adrain(20))
    assert chat.knows() == {*SAID}
    assert chat.model.calls == 1
    assert chat.os.drain(20)
    assert chat.model.calls == 1


@pytest.mark.lengthy
@pytest.mark.parametrize("when", ["inline", "background"])
def test_a_quiet_thread_is_learned_from_by_itself(when: Any) -> None:
    chat = Chat(after_idle_s=0.2, mode=when)
    chat.says(*SAID)
    until(lambda: chat.knows() == {*SAID})
    assert chat.model.calls == 1


def test_a_quiet_thread_is_read_with_the_date_of_its_last_turn() -> None:
    """Otherwise "tomorrow", said before midnight and read after it, is a day late."""
    clock = Clock(datetime(2026, 12, 31, 23, 59, 30, tzinfo=timezone(timedelta(hours=1))))
    chat = Chat(reflects=True, clock=clock)
    chat.says("From tomorrow on I live in Bern")
    clock.pass_by(minutes=2)
    assert chat.os.drain(10)
    prompts = [chat.model.prompt(call) for call in range(chat.model.calls)]
    assert len(prompts) == 2
    assert all("Today is 2026-12-31." in prompt for prompt in prompts)


@pytest.mark.lengthy
@pytest.mark.slow
def test_a_turn_begins_the_wait_anew() -> None:
    chat = Chat(after_idle_s=1.5)
    for text in SAID:
        chat.says(text)
        time.sleep(0.7)
        assert chat.model.calls == 0
    until(lambda: chat.knows() == {*SAID})
    assert chat.model.calls == 1


def test_a_later_turn_is_learned_in_its_turn_and_nothing_twice() -> None:
    chat = Chat()
    chat.says(SAID[0])
    chat.os.drain(20)
    chat.says(SAID[1])
    chat.os.drain(20)
    assert chat.knows() == {*SAID[:2]}
    assert chat.extractions == 2
    assert {fact.mention_count for fact in chat.cycle.memory.facts("ada")} == {1}


def test_a_conversation_that_was_read_in_its_turns_does_not_wait() -> None:
    chat = Chat(conversation_length=2)
    chat.says(*SAID)
    assert chat.extractions == 3
    assert quiet_of(chat).pending == 0
    chat.os.drain(20)
    assert chat.extractions == 3


def test_reflection_reads_a_quiet_thread_too() -> None:
    chat = Chat(reflects=True)
    chat.says(*SAID)
    chat.os.drain(20)
    [thought] = chat.cycle.memory.export("ada")["thoughts"]
    assert thought["text"] == "They talk"


def test_without_a_time_a_thread_waits_until_it_is_asked_for() -> None:
    chat = Chat(after_idle_s=None)
    chat.says(*SAID)
    assert chat.os.drain(20)
    assert chat.model.calls == 0
    done = chat.cycle.memory.process("room")
    assert done.evaluators == ("GET_FACTS",)
    assert chat.knows() == {*SAID}


@pytest.mark.parametrize("wrong", [0, -1, "60", True])
def test_an_invalid_time_is_refused(wrong: Any) -> None:
    with pytest.raises((ParameterError, ConfigurationError), match="after_idle_s"):
        EvaluationCycle(after_idle_s=wrong)


def test_a_new_thread_of_the_same_user_hastens_the_old_one() -> None:
    chat = Chat(after_idle_s=4_000)
    chat.says(SAID[0], thread="old")
    chat.says(SAID[1], thread="theirs", user="bob")
    for held in quiet_of(chat)._rooms.values():  # pyright: ignore[reportPrivateUsage]
        held.since -= 1_001
    chat.says(SAID[2], thread="new")
    until(lambda: chat.knows() == {SAID[0]})
    assert chat.model.calls == 1


def test_a_new_thread_looks_at_no_thread_of_its_user_that_is_not_quiet_yet() -> None:
    """Programs that name no user, or one for all, begin thousands of threads of it within the time."""

    class Counted(dict[str, quiet.Held]):
        looks = 0

        def __getitem__(self, room_id: str) -> quiet.Held:
            self.looks += 1
            return super().__getitem__(room_id)

    chat, rooms = Chat(), Counted()
    quiet_of(chat)._rooms = rooms  # pyright: ignore[reportPrivateUsage]
    for number in range(20):
        chat.says("hello", thread=f"room-{number}")
    assert len(rooms) == 20
    assert rooms.looks <= 2 * 20


@pytest.mark.lengthy
def test_waiting_work_is_done_without_a_reference_to_it() -> None:
    store = InMemoryStore()

    def short() -> None:
        Chat(store, after_idle_s=0.3).says(*SAID)

    short()
    gc.collect()
    until(lambda: known(Memory(store)) == {*SAID})


def test_waiting_threads_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quiet, "MOST_WAITING", 3 * (2 + quiet._MORE))  # pyright: ignore[reportPrivateUsage]
    chat = Chat()
    for number in range(6):
        chat.says(SAID[0], thread=f"room-{number}", user=f"user-{number}")
    assert quiet_of(chat).pending == 3
    assert len([record for record in caplog.records if "quiet threads wait" in record.message]) == 1
    chat.os.drain(20)
    assert [bool(chat.knows(f"user-{number}")) for number in range(6)] == [False] * 3 + [True] * 3
    chat.says("hello again", thread="room-0", user="user-0")
    chat.os.drain(20)
    assert chat.knows("user-0") == {SAID[0]}, "its messages are still unread"


def test_short_threads_leave_more_room_than_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "MOST_WAITING", 100)
    chat = Chat()
    for number in range(10):
        chat.says("hello", thread=f"room-{number}", user=f"user-{number}")
    assert quiet_of(chat).pending == 10
    chat.says(*["hello"] * 6, thread="long")
    assert quiet_of(chat).pending == 9


@pytest.mark.slow
def test_all_of_a_thousand_users_with_short_chats_are_learned_from() -> None:
    chat = Chat()
    users = [f"user-{number}" for number in range(1_100)]
    for user in users:
        chat.says(SAID[0], thread=f"room of {user}", user=user)
    assert chat.os.drain(240)
    assert all(chat.knows(user) == {SAID[0]} for user in users)


def test_a_waiting_thread_keeps_neither_long_texts_nor_the_history() -> None:
    chat = Chat()
    chat.says("hello " * 20_000, "hi")
    [held] = quiet_of(chat)._rooms.values()  # pyright: ignore[reportPrivateUsage]
    assert isinstance(held.ctx.messages, Shown)
    kept = held.ctx.messages._messages  # pyright: ignore[reportPrivateUsage]
    assert all(len(message.text) < 9_000 for message in kept)
    assert not held.ctx.item.input_state


@pytest.mark.lengthy
def test_a_time_that_is_too_short_is_reported() -> None:
    chat = Chat(pause=1.0)
    chat.says(*SAID)
    assert not chat.os.drain(0.1)
    assert chat.os.drain(20)
    assert chat.knows() == {*SAID}


def test_a_failing_model_is_reported_and_the_messages_stay_unread(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(answers=RuntimeError("down"))
    chat.says(*SAID)
    done = chat.cycle.memory.process("room")
    assert done.results == {}
    assert list(done.errors) == ["GET_FACTS"]
    assert "failed about a quiet thread" in caplog.text


def test_a_problem_of_many_quiet_threads_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(answers=RuntimeError("down"))
    for thread in ("one", "two", "three"):
        chat.says(*SAID, thread=thread)
        assert list(chat.cycle.memory.process(thread).errors) == ["GET_FACTS"]
    assert caplog.text.count("evaluator 'GET_FACTS' failed about a quiet thread") == 1


class Recovering:
    """A model's answers: it is down until `calls` of them were tried."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, prompt: str) -> str:
        self.calls -= 1
        if self.calls >= 0:
            raise ConnectionError("down")
        return answer(prompt)


@pytest.mark.lengthy
def test_a_quiet_thread_is_tried_again_after_its_model_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the cursor allows it."""
    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=150))
    chat = Chat(after_idle_s=0.2, answers=Recovering(2))
    chat.says(*SAID)
    until(lambda: chat.knows() == {*SAID})
    assert chat.model.calls == 3
    until(lambda: quiet_of(chat).pending == 0)


def test_after_a_drain_the_last_turn_of_a_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of its turns have failed while the drain waited for another thread."""
    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=150))
    go = threading.Event()

    def late(prompt: str) -> str:
        if SAID[2] in prompt:
            assert go.wait(30)
        elif not go.is_set():
            raise ConnectionError("down")
        return answer(prompt)

    chat = Chat(answers=late)
    failed = quiet_of(chat)._failed  # pyright: ignore[reportPrivateUsage]
    chat.says(SAID[2], thread="slow", user="bob")
    chat.says(SAID[0])
    with ThreadPoolExecutor() as pool:
        drained = pool.submit(chat.os.drain, 30)
        until(lambda: len(failed) == 1)
        chat.says(SAID[1])
        until(lambda: len(failed) == 2)
        go.set()
        assert drained.result()
    until(lambda: chat.knows() == {*SAID[:2]})


@pytest.mark.lengthy
@pytest.mark.parametrize("of", [Op, PutOp], ids=["away", "full"])
def test_a_quiet_thread_is_tried_again_after_its_store_was_away(
    of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that could be read, and not written."""

    class Away(InMemoryStore):
        is_away = False

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            ops = list(ops)
            if self.is_away and any(isinstance(op, of) for op in ops):
                raise ConnectionError("the server is starting")
            return await super().abatch(ops)

    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=150))
    store = Away()
    chat = Chat(store, after_idle_s=0.5)
    chat.says(*SAID)
    store.is_away = True
    until(lambda: "failed about a quiet thread" in caplog.text)
    store.is_away = False
    until(lambda: chat.knows() == {*SAID})
    monkeypatch.setattr(_cycle, "OUTAGES_PER_WINDOW", 2)
    store.is_away = True
    chat.says("Bye")
    until(lambda: quiet_of(chat).pending == 0)


@pytest.mark.lengthy
@pytest.mark.parametrize("limit", ["validate_timeout_s", "handler_timeout_s"])
def test_a_quiet_thread_is_tried_again_after_its_store_was_slow(
    limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server with too much to do loses no conversation."""

    class Slow(InMemoryStore):
        is_slow = False

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            if self.is_slow:
                await asyncio.sleep(0.2)
            return await super().abatch(ops)

    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=150))
    store = Slow()
    limits: dict[str, Any] = {"validate_timeout_s": None, "handler_timeout_s": None, limit: 0.15}
    chat = Chat(store, after_idle_s=0.5, **limits)
    chat.says(*SAID)
    store.is_slow = True
    until(lambda: "failed about a quiet thread" in caplog.text)
    store.is_slow = False
    until(lambda: chat.knows() == {*SAID})


@pytest.mark.lengthy
def test_a_thread_whose_model_has_failed_in_a_turn_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=150))
    chat = Chat(after_idle_s=0.1, answers=Recovering(1), conversation_length=2)
    chat.says(SAID[0])
    until(lambda: chat.knows() == {SAID[0]})


@pytest.mark.lengthy
def test_what_is_done_about_a_quiet_thread_is_not_done_again_because_another_evaluator_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(CognitiveEvaluator):
        description, when_quiet = "Counts its calls.", True

        def __init__(self, name: str, calls: list[str]) -> None:
            self.name, self.calls = name, calls

        async def validate(self, ctx: EvalContext) -> bool:
            return ctx.quiet

        async def handle(self, ctx: EvalContext) -> None:
            self.calls.append(self.name)
            if self.name == "broken" and self.calls.count("broken") < 3:
                raise ValueError("a mistake")

    monkeypatch.setattr(_cursors, "MINUTE", timedelta(milliseconds=50))
    chat, calls = Chat(after_idle_s=0.2), list[str]()
    chat.os.add_evaluator(Own("sound", calls))
    chat.os.add_evaluator(Own("broken", calls))
    chat.says(*SAID)
    until(lambda: calls.count("broken") == 3)
    until(lambda: quiet_of(chat).pending == 0)
    assert calls.count("sound") == 1


def test_a_thread_whose_model_has_failed_waits_on_and_holds_up_no_drain() -> None:
    chat = Chat(answers=Recovering(1))
    chat.says(*SAID)
    assert chat.os.drain(20)
    assert (chat.model.calls, quiet_of(chat).pending) == (1, 1)
    assert chat.os.drain(20), "two minutes are not over"
    assert chat.model.calls == 1


def test_of_two_drains_at_a_time_none_waits_for_a_thread_whose_model_has_failed() -> None:
    """The one that ends first lets the thread wait again, and the other one leaves it waiting."""
    slow = Slow()

    def down(prompt: str) -> str:
        slow(prompt)
        raise ConnectionError("down")

    chat = Chat(answers=down)
    chat.says(*SAID)
    with ThreadPoolExecutor(2) as pool:
        drains = [pool.submit(chat.os.drain, 10) for _ in range(2)]
        assert slow.asked.wait(30)
        until(lambda: quiet_of(chat)._drains == 2)  # pyright: ignore[reportPrivateUsage]
        slow.go.set()
        assert [drain.result() for drain in drains] == [True, True]
    assert (chat.model.calls, quiet_of(chat).pending) == (1, 1)


def test_a_drain_during_a_call_of_process_leaves_the_other_threads_to_their_own_calls() -> None:
    slow = Slow()
    chat = Chat(answers=slow, after_idle_s=None)
    for thread in ("one", "two"):
        chat.says(*SAID, thread=thread)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(chat.cycle.memory.process, "one")
        assert slow.asked.wait(30)
        drained = pool.submit(chat.os.drain, 10)
        until(lambda: quiet_of(chat)._drains == 1)  # pyright: ignore[reportPrivateUsage]
        slow.go.set()
        assert drained.result()
        assert reading.result().evaluators == ("GET_FACTS",)
    assert chat.model.calls == 1


def test_a_drain_works_through_threads_that_are_heard_meanwhile() -> None:
    slow = Slow()
    chat = Chat(answers=slow)
    chat.says(SAID[0])
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(chat.os.drain, 60)
        assert slow.asked.wait(30)
        chat.says(SAID[1], thread="other")
        slow.go.set()
        assert drained.result(60)
    assert chat.knows() == {SAID[0], SAID[1]}


# The end of the process ---------------------------------------------------------------------------

SCRIPT = """
import sys
import arbiter._threads.exits
from arbiter.memory import open_store
from tests.memory.test_quiet import SAID, Chat

arbiter._threads.exits.EXIT_SECONDS = float(sys.argv[2])
opened = open_store(sys.argv[1])
store = opened.__enter__()
chat = Chat(store, pause=float(sys.argv[3]), mode=sys.argv[4])
chat.says(*SAID)
chat.says("hi", thread="other", user="bob")
"""


def ended(path: Path, *, patience: float, pause: float, mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python("-c", SCRIPT, str(path), str(patience), str(pause), mode),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("mode", ["inline", "background"])
@pytest.mark.lengthy
def test_the_end_of_a_script_learns_from_its_conversations(tmp_path: Path, mode: str) -> None:
    done = ended(tmp_path / "memory.db", patience=30, pause=0.2, mode=mode)
    assert (done.returncode, done.stderr) == (0, "")
    with open_store(str(tmp_path / "memory.db")) as store:
        assert known(Memory(store)) == {*SAID}


@pytest.mark.lengthy
def test_the_end_of_a_script_waits_no_longer_than_it_must_and_reports_the_number(tmp_path: Path) -> None:
    done = ended(tmp_path / "memory.db", patience=0.5, pause=600, mode="inline")
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if "process ended" in line]
    assert "2 conversations were not worked through" in line
    assert "call arbiter_os.drain()" in line


@pytest.mark.lengthy
def test_closing_a_store_learns_from_the_conversations_that_need_it(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "memory.db")) as store:
        Chat(store).says(*SAID)
    with open_store(str(tmp_path / "memory.db")) as store:
        assert known(Memory(store)) == {*SAID}


@pytest.mark.lengthy
def test_a_store_that_an_exception_closes_has_learned_from_them_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the user"), open_store(str(tmp_path / "memory.db")) as store:
        Chat(store).says(*SAID)
        raise ValueError("of the user")
    with open_store(str(tmp_path / "memory.db")) as store:
        assert known(Memory(store)) == {*SAID}


@pytest.mark.lengthy
def test_what_fails_when_a_store_closes_is_not_tried_again_without_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(str(tmp_path / "memory.db")) as store:
        chat = Chat(store, answers=RuntimeError("down"))
        chat.says(*SAID)
    assert chat.os.drain(20)
    assert "UnusableAnswerError" in caplog.text
    assert "ProgrammingError" not in caplog.text


LEFT_OPEN = """
from arbiter.memory import open_store
from tests.memory.test_quiet import SAID, Chat

opening = open_store("memory.db")
Chat(opening.__enter__(), answers=RuntimeError("down")).says(*SAID)
"""


@pytest.mark.lengthy
def test_a_store_that_nobody_closes_holds_up_no_end_of_the_process(tmp_path: Path) -> None:
    """Its threads were tried before; when Python deletes the last objects, no other thread runs any more."""
    done = subprocess.run(
        python("-c", LEFT_OPEN), capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True
    )
    assert "failed about a quiet thread" in done.stderr
    assert "when the store was closed" not in done.stderr


FORK = """
import os
from tests.memory.test_quiet import SAID, Chat

chat = Chat()
chat.says(*SAID)
pid = os.fork()
if pid == 0:
    print("child", chat.os.drain(20), chat.model.calls, flush=True)
    chat.says("hello", thread="mine", user="bob")
    print("child", chat.os.drain(20), chat.extractions, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", chat.os.drain(20), chat.knows() == {*SAID}, flush=True)
"""


@pytest.mark.lengthy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_parent_alone_works_through_its_conversations() -> None:
    done = subprocess.run(python("-c", FORK), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["child True 0", "child True 1", "parent True True"], done.stderr[
        -2000:
    ]


# For a scheduler ----------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_threads_that_were_forgotten_leave_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Neither one that waits for its time nor one that is worked on."""
    slow = Slow()
    waiting, working = Chat(after_idle_s=0.3), Chat(answers=slow, after_idle_s=0.01)
    working.says(SAID[0])
    assert slow.asked.wait(10)
    waiting.says(SAID[0])
    forget_held()
    slow.go.set()
    until(lambda: working.knows() == {SAID[0]})
    time.sleep(0.5)
    assert waiting.model.calls == 0
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_thread_is_worked_through_on_request(mode: str) -> None:
    chat = Chat()
    chat.says(*SAID)
    done = processed(chat, mode, "room")
    assert done.thread_id == "room"
    assert done.evaluators == ("GET_FACTS",)
    assert done.results["GET_FACTS"].metadata["inserted"] == 3
    assert done.errors == {}
    assert processed(chat, mode, "room").evaluators == ()
    assert chat.model.calls == 1


async def test_a_thread_is_read_to_the_end_if_its_caller_waits_no_longer() -> None:
    slow = Slow()
    chat = Chat(answers=slow)
    await asyncio.to_thread(chat.says, *SAID)
    reading = asyncio.ensure_future(chat.cycle.memory.aprocess("room"))
    await asyncio.to_thread(slow.asked.wait, 30)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    slow.go.set()
    await asyncio.to_thread(until, lambda: chat.knows() == {*SAID})
    assert chat.model.calls == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_unknown_thread_is_an_error(mode: str) -> None:
    chat = Chat()
    with pytest.raises(ConfigurationError, match=r"holds nothing of the thread 'nowhere'.*messages="):
        processed(chat, mode, "nowhere")
    with pytest.raises(ConfigurationError, match="has no evaluators"):
        Memory(chat.store).process("room")
    with pytest.raises(ConfigurationError, match="the graph has no 'messages' in the thread 'nowhere'"):
        processed(chat, mode, "nowhere", graph=chat.app)


@pytest.mark.lengthy
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("by", ["messages", "graph"])
def test_another_process_works_through_a_thread_of_its_own(any_store: BaseStore, mode: str, by: str) -> None:
    """A second cycle on the same store reads what the first one has not, and counts nothing twice."""
    saver = InMemorySaver()
    first = Chat(any_store, saver=saver, after_idle_s=None)
    first.says(*SAID)
    second = Chat(any_store, saver=saver, after_idle_s=None)
    config: Any = {"configurable": {"thread_id": "room"}}
    given: dict[str, Any] = (
        {"messages": first.app.get_state(config).values["messages"]}
        if by == "messages"
        else {"graph": second.app}
    )
    done = processed(second, mode, "room", user_id="ada", **given)
    assert done.results["GET_FACTS"].metadata["inserted"] == 3
    assert processed(second, mode, "room", user_id="ada", **given).evaluators == ()
    assert processed(first, mode, "room").evaluators == ()
    assert second.model.calls == 1
    assert first.model.calls == 0
    assert {fact.mention_count for fact in second.cycle.memory.facts("ada")} == {1}
    first.says("hello again")
    assert first.os.drain(20)
    assert first.model.calls == 0


def processed(chat: Chat | EvaluationCycle, mode: str, thread: str, **given: Any) -> Processed:
    memory = (chat if isinstance(chat, EvaluationCycle) else chat.cycle).memory
    if mode == "sync":
        return memory.process(thread, **given)
    return asyncio.run(memory.aprocess(thread, **given))


def quiet_of(chat: Chat) -> quiet.Quiet:
    return chat.cycle._quiet  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("on_the_loop", [True, False])
@pytest.mark.parametrize("is_quiet", [True, False])
def test_an_evaluator_may_forget_while_its_thread_is_worked_through(
    on_the_loop: bool, is_quiet: bool
) -> None:
    """It does not wait for its own thread, also if that thread waits once more."""
    chat = Chat(after_idle_s=None)
    chat.cycle.memory.remember("ada", "User lives in Rome")

    async def forgetting(ctx: EvalContext) -> None:
        if is_quiet == ctx.quiet:
            await chat.cycle.memory.aforget("ada", "Rome")

    def blocking(ctx: EvalContext) -> None:
        if is_quiet == ctx.quiet:
            chat.cycle.memory.forget("ada", "Rome")

    made = evaluator("FORGETS")(forgetting if on_the_loop else blocking)
    made.when_quiet = True
    chat.os.add_evaluator(made)
    begun = time.monotonic()
    chat.says("I live in Oslo", "hello")
    chat.cycle.memory.process("room")
    assert time.monotonic() - begun < 5
    assert [fact.claim for fact in chat.cycle.memory.facts("ada")] == ["User: I live in Oslo"]


def keeping(count: int) -> Any:
    """A node that answers, and leaves the last `count` messages of the thread before its answer."""

    def reply(state: MessagesState) -> dict[str, Any]:
        gone = [RemoveMessage(id=str(message.id)) for message in state["messages"][:-count]]
        return {"messages": [*gone, AIMessage("ok")]}

    return reply


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_thread_of_a_graph_is_read_with_the_date_of_its_last_checkpoint(mode: str) -> None:
    zone = timezone(timedelta(hours=14))
    clock = Clock(datetime.now(zone))
    chat = Chat(after_idle_s=None, clock=clock)
    chat.says("From tomorrow on I live in Bern")
    dates = {f"Today is {each:%Y-%m-%d}." for each in (clock.now, datetime.now(zone))}
    clock.pass_by(days=5)
    processed(chat, mode, "room", user_id="ada", graph=chat.app)
    assert any(date in chat.model.prompt(0) for date in dates)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_old_conversation_is_read_as_of_the_time_at_which_it_was_held(mode: str) -> None:
    """It is history: the user has moved since then."""
    clock = Clock(datetime(2026, 3, 14, 12, tzinfo=UTC))
    cycle = EvaluationCycle(store=InMemoryStore(), evaluator_model=Scripted(answers=[_city]), clock=clock)
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluation_cycle(cycle)
    arbiter_os.add_evaluator(FactEvaluator())
    cycle.memory.remember("ada", "Ada lives in Oslo", type="status", slot="home", value="Oslo")
    old = [HumanMessage("I live in Rome", id="m1"), AIMessage("ok", id="m2")]
    then = datetime(2024, 5, 1, tzinfo=UTC)
    given: Any = {"user_id": "ada", "messages": old, "ended_at": then}
    done = processed(cycle, mode, "old", **given)
    assert done.errors == {}
    assert [fact.claim for fact in cycle.memory.facts("ada")] == ["Ada lives in Oslo"]
    held = cycle.memory.facts("ada", as_of=then + timedelta(days=1))
    assert [fact.claim for fact in held] == ["User lives in Rome"]


def _city(prompt: str) -> str:
    if "Pair 1." in prompt:
        return json.dumps({"relations": [{"pair": 1, "relation": "supersedes"}]})
    assert "Today is 2024-05-01." in prompt
    claim = {"claim": "User lives in Rome", "type": "status", "kind": "home", "source_message_ids": ["m1"]}
    return json.dumps({"claims": [claim]})


def test_a_time_without_messages_is_refused() -> None:
    memory = EvaluationCycle(store=InMemoryStore()).memory
    with pytest.raises(ParameterError, match="ended_at"):
        memory.process("room", ended_at=datetime(2024, 5, 1, tzinfo=UTC))


@pytest.mark.parametrize("noted", [None, "", "yesterday", 1_764_500_000.0, "0001-01-01T00:00:00+00:00"])
def test_a_thread_whose_checkpoint_has_no_readable_time_is_read(noted: Any) -> None:
    chat = Chat(after_idle_s=None, clock=Clock(datetime.now(timezone(timedelta(hours=-8)))))
    chat.says(SAID[0])

    class Foreign:
        def get_state(self, config: Any) -> Any:
            return chat.app.get_state(config)._replace(created_at=noted)

    chat.cycle.memory.process("room", user_id="ada", graph=Foreign())
    assert chat.knows() == {SAID[0]}


@pytest.mark.lengthy
@pytest.mark.parametrize("case", ["older messages", "a clock ahead"])
def test_a_scheduler_reads_a_long_thread_once(case: str) -> None:
    """Also if another process has read its earlier messages at a later time, or with a clock that is ahead."""
    saver = InMemorySaver()
    ahead = timedelta(hours=case == "a clock ahead")
    first = Chat(saver=saver, after_idle_s=None, clock=lambda: datetime.now(UTC) + ahead)
    first.says(*(f"chatter {number}" for number in range(41)))
    assert first.os.drain(20)
    room: Any = {"configurable": {"thread_id": "room"}}
    earlier = first.app.get_state(room).values["messages"]
    chat = Chat(first.store, saver=saver, after_idle_s=None)
    chat.says(SAID[0])
    if case == "older messages":
        more = [HumanMessage(f"chatter {number}") for number in range(50)]
        chat.app.update_state(room, {"messages": more}, as_node="reply")
        processed(first, "sync", "room", user_id="ada", messages=earlier)
    for _ in range(3):
        processed(chat, "sync", "room", user_id="ada", graph=chat.app)
    assert chat.knows() == {SAID[0]}
    assert chat.extractions == 1


def test_a_scheduler_learns_what_is_said_after_a_forgetting_elsewhere() -> None:
    chat, other = Chat(after_idle_s=None), Chat(after_idle_s=None)
    chat.says(SAID[0])
    chat.cycle.memory.process("room")
    other.says(SAID[1], thread="other")
    assert chat.cycle.memory.forget("ada", "Oslo") == 1
    chat.cycle.memory.process("other", user_id="ada", graph=other.app)
    assert chat.knows() == set()
    other.says(SAID[2], thread="other")
    chat.cycle.memory.process("other", user_id="ada", graph=other.app)
    assert chat.knows() == {SAID[2]}


@pytest.mark.parametrize("options", [{"reply": keeping(1)}, {"reply": keeping(3)}, {"saver": False}])
@pytest.mark.parametrize("when", ["inline", "background"])
def test_messages_that_a_thread_has_lost_before_they_were_read_are_learned(options: Any, when: Any) -> None:
    """A graph trims its thread, or a client sends nothing but the new message to a graph without a checkpointer."""
    chat = Chat(mode=when, **options)
    chat.says(*SAID)
    assert chat.model.calls == 0
    assert chat.os.drain(20)
    assert chat.knows() == {*SAID}
    assert chat.model.calls == 1


def test_a_scheduler_reads_the_messages_that_a_thread_has_lost() -> None:
    chat = Chat(reply=keeping(3), after_idle_s=None)
    chat.says(*SAID)
    chat.cycle.memory.process("room", user_id="ada", graph=chat.app)
    assert chat.knows() == {*SAID}


@pytest.mark.parametrize("options", [{"reply": keeping(1)}, {"saver": False}])
def test_lost_messages_count_as_unread_in_later_turns(options: Any) -> None:
    """Half of the conversation's length is reached, although the thread never has so many messages."""
    chat = Chat(reflects=True, conversation_length=12, after_idle_s=None, **options)
    chat.says(SAID[0], "Hello", SAID[1])
    assert chat.knows() == {SAID[0], SAID[1]}
    assert chat.extractions == 1
    chat.says("Well", "Fine")
    assert chat.extractions == 1
    chat.says(SAID[2])
    assert chat.knows() == {*SAID}
    assert chat.extractions == 2
    [fact] = [each for each in chat.cycle.memory.facts("ada") if each.claim == f"User: {SAID[1]}"]
    assert fact.mention_count == 1


def test_a_message_that_is_removed_is_not_learned() -> None:
    """Trimming takes the oldest messages; another one is removed on purpose."""
    chat = Chat()
    chat.says(*SAID[:2])
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    said = chat.app.get_state(config).values["messages"]
    chat.app.update_state(config, {"messages": [RemoveMessage(id=said[2].id)]}, as_node="reply")
    chat.says(SAID[2])
    assert chat.os.drain(20)
    assert chat.knows() == {SAID[0], SAID[2]}


def test_a_thread_that_begins_anew_leaves_nothing_to_learn() -> None:
    """A user goes back and says something else instead of the first message."""
    chat = Chat()
    chat.says(SAID[0])
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    first: Any = [*chat.app.get_state_history(config)][-1]
    first.config["configurable"]["user_id"] = "ada"
    chat.app.invoke({"messages": [HumanMessage(SAID[1])]}, first.config)
    assert chat.os.drain(20)
    assert chat.knows() == {SAID[1]}


def test_messages_that_another_node_has_trimmed_are_learned() -> None:
    def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(message.id)) for message in state["messages"][:-1]]}

    chat = Chat(plan=trim)
    chat.says(*SAID)
    assert chat.os.drain(20)
    assert chat.knows() == {*SAID}


def test_lost_messages_are_forgotten_with_everything() -> None:
    chat = Chat(reply=keeping(1))
    chat.says(SAID[0], "Hello")
    chat.says("Forget everything about me", thread="elsewhere")
    chat.says(SAID[1])
    assert chat.os.drain(20)
    assert chat.knows() == {SAID[1]}


def test_evaluators_of_turns_see_the_messages_of_the_thread() -> None:
    """Lost messages are for evaluators that read what is unread."""
    seen: list[list[str]] = []

    @evaluator("SEES", description="Looks at the messages.")
    def sees(ctx: EvalContext) -> None:
        seen.append([message.text for message in ctx.messages])

    chat = Chat(reply=keeping(1))
    chat.os.add_evaluator(sees)
    chat.says("one", "two")
    assert seen == [["one", "ok"], ["two", "ok"]]


def test_an_evaluator_that_was_removed_reads_no_waiting_thread() -> None:
    chat = Chat(reflects=True)
    chat.says(SAID[0])
    chat.os.remove_evaluator("GET_FACTS")
    chat.says(SAID[1])
    assert chat.os.drain(20)
    assert chat.knows() == set()
    assert chat.cycle.memory.thoughts("room")


@pytest.mark.parametrize("end", ["raises", "asks"])
def test_a_turn_without_an_answer_leaves_its_thread_waiting(end: str) -> None:
    """What was said before it is learned when the thread is quiet, as if the turn had not been."""

    def reply(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) > 2:
            if end == "asks":
                interrupt("May I?")
            raise ValueError
        return {"messages": [AIMessage("ok")]}

    chat = Chat(reply=reply, reflects=True)
    chat.says(SAID[0])
    with pytest.raises(ValueError) if end == "raises" else nullcontext():
        chat.says(SAID[1])
    assert chat.os.drain(20)
    assert SAID[0] in chat.knows()


def test_a_turn_of_another_evaluator_leaves_the_thread_waiting() -> None:
    chat = Chat()
    chat.os.remove_evaluator("GET_FACTS")
    chat.os.add_evaluator(FactEvaluator(target_nodes=["plan"], always_run=True))
    chat.os.add_evaluator(ReflectionEvaluator(target_nodes=["reply"]))
    chat.says(SAID[0])
    assert chat.os.drain(20)
    assert chat.knows() == {SAID[0]}


def test_a_summary_of_langchain_is_no_statement_of_the_user() -> None:
    """A model has written it, also about what was off the record or is forgotten."""
    chat = Chat()
    config: Any = {"configurable": {"thread_id": "room", "user_id": "ada"}}
    written = {"lc_source": "summarization"}
    summary = HumanMessage(f"Here is a summary of the conversation: {SAID[0]}", additional_kwargs=written)
    chat.app.invoke({"messages": [summary, HumanMessage(SAID[1])]}, config)
    assert chat.os.drain(20)
    assert chat.knows() == {SAID[1]}
    assert SAID[0] not in chat.model.prompt()
