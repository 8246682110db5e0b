"""How far an evaluator has read a room, through trimmed, edited and repeated lists of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, overload

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory._cursors import TAIL, Cursors
from arbiter.memory.stores import MemoryStore, namespace
from tests.memory.reflection_support import START, Clock


def say(*numbers: int) -> list[BaseMessage]:
    """Messages m1, m2, ...: odd ones of the user, even ones of the agent."""
    return [
        HumanMessage(f"text {n}", id=f"m{n}") if n % 2 else AIMessage(f"text {n}", id=f"m{n}")
        for n in numbers
    ]


def span(first: int, last: int) -> list[BaseMessage]:
    return say(*range(first, last + 1))


def ids(messages: Iterable[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(InMemoryStore())


def cursors(store: MemoryStore, clock: Clock, **known: Any) -> Cursors:
    options: dict[str, Any] = {"agent_id": "agent", "room_id": "room-1", "evaluator": "REFLECTION"}
    options["ended_at"] = clock()
    return Cursors(store, clock=clock, **options | known)


@pytest.fixture
def cursor(store: MemoryStore, clock: Clock) -> Cursors:
    return cursors(store, clock)


class Counting(Sequence[BaseMessage]):
    """A list that notes how many of its messages were looked at."""

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self.messages = messages
        self.read = 0

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BaseMessage]: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | Sequence[BaseMessage]:
        self.read += 1
        return self.messages[index]


# New messages -------------------------------------------------------------------------------------


async def test_without_a_cursor_everything_is_new(cursor: Cursors) -> None:
    assert ids(await cursor.unprocessed(span(1, 3))) == ["m1", "m2", "m3"]


async def test_messages_of_a_prompt_are_not_new_again(cursor: Cursors) -> None:
    await cursor.advance(span(1, 9))
    assert await cursor.unprocessed(span(1, 9)) == []
    assert ids(await cursor.unprocessed(span(1, 13))) == ["m10", "m11", "m12", "m13"]


async def test_the_cursor_is_at_the_newest_message_of_the_prompt_not_of_the_room(cursor: Cursors) -> None:
    """Messages that came while the model was asked are still new."""
    await cursor.advance(span(1, 4))
    assert ids(await cursor.unprocessed(span(1, 6))) == ["m5", "m6"]


async def test_only_human_and_ai_messages_count(cursor: Cursors) -> None:
    silent = [
        SystemMessage("be kind", id="s"),
        ToolMessage("7", tool_call_id="c", id="t"),
        AIMessage("", id="e", tool_calls=[{"name": "f", "args": {}, "id": "c"}]),
        HumanMessage("  \n", id="b"),
        AIMessage([{"type": "reasoning", "reasoning": "hm"}], id="r"),
    ]
    assert ids(await cursor.unprocessed([*silent, *say(1), *silent])) == ["m1"]
    await cursor.advance([*silent, *say(1), *silent])
    assert ids(await cursor.unprocessed([*silent, *say(1), *silent, *say(2)])) == ["m2"]
    found = await cursor.read()
    assert (found.last_id, found.tail_ids, found.processed_total) == ("m1", ("m1",), 1)


@pytest.mark.parametrize("kept", [range(1, 9), range(5, 9), [3], [1, 8], []], ids=str)
async def test_trimmed_lists_give_nothing_twice(cursor: Cursors, kept: Iterable[int]) -> None:
    """Also when the very message of the cursor is gone, as long as one is left that was read."""
    await cursor.advance(span(1, 9))
    rest = say(*kept)
    assert ids(await cursor.unprocessed([*rest, *span(10, 12)])) == ["m10", "m11", "m12"]
    await cursor.advance([*rest, *span(10, 12)])
    assert (await cursor.read()).processed_total == 12
    assert await cursor.unprocessed([*rest, *span(10, 12)]) == []


async def test_messages_older_than_the_remembered_ids_are_not_new_again(cursor: Cursors) -> None:
    """Of 200 messages 64 ids are remembered; the cursor's own message is removed."""
    everything = span(1, 200)
    for end in range(10, 201, 10):
        await cursor.advance(everything[:end][-32:])
    assert (await cursor.read()).processed_total == 200
    assert len((await cursor.read()).tail_ids) == TAIL
    assert ids(await cursor.unprocessed([*everything[:-1], *say(201)])) == ["m201"]
    assert ids(await cursor.unprocessed([*everything[:150], *say(201)])) == ["m201"]


async def test_messages_that_are_removed_and_added_again_are_not_new(cursor: Cursors) -> None:
    await cursor.advance(span(1, 9))
    assert ids(await cursor.unprocessed([*span(4, 9), *say(10, 2, 3, 11)])) == ["m10", "m11"]
    assert ids(await cursor.unprocessed([*span(4, 8), *say(10, 2, 11)])) == ["m10", "m11"]
    assert ids(await cursor.unprocessed([*span(4, 8), *say(10, 11, 2)])) == ["m10", "m11"]


async def test_a_summary_in_front_is_not_new_while_read_messages_are_left(cursor: Cursors) -> None:
    await cursor.advance(span(1, 9))
    summary = HumanMessage("so far: ...", id="summary")
    assert ids(await cursor.unprocessed([summary, *say(8, 9, 10)])) == ["m10"]
    assert ids(await cursor.unprocessed([summary, *say(8, 10)])) == ["m10"]


async def test_a_list_without_known_messages_is_new_once(cursor: Cursors) -> None:
    await cursor.advance(span(1, 9))
    summarised = say(101, 102, 103)
    assert ids(await cursor.unprocessed(summarised)) == ["m101", "m102", "m103"]
    await cursor.advance(summarised)
    assert await cursor.unprocessed(summarised) == []
    assert ids(await cursor.unprocessed([*summarised, *say(104)])) == ["m104"]


async def test_messages_without_ids_are_like_no_other(cursor: Cursors) -> None:
    """None is no id: neither of a cursor that was never moved, nor of one that is at such a message."""
    nameless: list[BaseMessage] = [HumanMessage("a"), AIMessage("b")]
    assert len(await cursor.unprocessed([*nameless, *say(1)])) == 3
    await cursor.advance(nameless)
    assert len(await cursor.unprocessed([*nameless, *say(1)])) == 3
    await cursor.advance([*nameless, *say(1), *nameless])
    assert (await cursor.read()).last_id == "m1"
    assert (await cursor.read()).tail_ids == ("m1",)
    assert len(await cursor.unprocessed([*nameless, *say(1), *nameless])) == 2
    assert len(await cursor.unprocessed([HumanMessage("x", id="")])) == 1


async def test_only_the_end_of_a_huge_list_is_looked_at(cursor: Cursors) -> None:
    everything = span(1, 5000)
    messages = Counting(everything)
    assert len(await cursor.unprocessed(messages, limit=32)) == 32
    assert messages.read <= 33 + 32
    await cursor.advance(everything[-32:])
    for rest in (everything, everything[:-1]):
        messages = Counting([*rest, *span(5001, 5004)])
        assert ids(await cursor.unprocessed(messages)) == ["m5001", "m5002", "m5003", "m5004"]
        assert messages.read <= 4 + TAIL + 1 + 4


async def test_a_limit_keeps_the_newest(cursor: Cursors) -> None:
    await cursor.advance(span(1, 2))
    assert ids(await cursor.unprocessed(span(1, 9), limit=3)) == ["m7", "m8", "m9"]
    assert ids(await cursor.unprocessed(span(1, 4), limit=3)) == ["m3", "m4"]
    await cursor.advance(span(1, 9))
    assert ids(await cursor.unprocessed([*span(1, 8), *span(10, 14), *say(2)], limit=3)) == [
        "m12",
        "m13",
        "m14",
    ]


# Going on -----------------------------------------------------------------------------------------


async def test_the_same_messages_once_more_change_nothing(cursor: Cursors, clock: Clock) -> None:
    await cursor.advance(span(1, 9))
    before = await cursor.read()
    clock.move(5)
    await cursor.advance(span(1, 9))
    await cursor.advance(span(3, 7))
    assert await cursor.read() == before


async def test_windows_that_overlap_are_counted_once(cursor: Cursors) -> None:
    """Also windows that are longer than the ids that are remembered."""
    await cursor.advance(span(1, 100))
    await cursor.advance(span(5, 104))
    found = await cursor.read()
    assert (found.last_id, found.processed_total) == ("m104", 104)
    assert found.tail_ids == tuple(f"m{n}" for n in range(41, 105))


@pytest.mark.parametrize("older", [span(1, 5), span(3, 7), say(7)], ids=["first five", "middle", "one"])
async def test_a_late_turn_does_not_move_the_cursor_back(cursor: Cursors, older: list[BaseMessage]) -> None:
    await cursor.advance(span(1, 10))
    await cursor.advance(older)
    assert (await cursor.read()).last_id == "m10"
    assert await cursor.unprocessed(span(1, 10)) == []


async def test_a_late_turn_whose_messages_are_not_known_does_not_move_the_cursor_back(
    store: MemoryStore, clock: Clock
) -> None:
    """The newer turn's window was short: that the other one is older shows in when the turns ended only."""
    early = cursors(store, clock, ended_at=START)
    late = cursors(store, clock, ended_at=START + timedelta(minutes=1))
    await late.advance(span(6, 10))
    await early.advance(span(1, 5))
    found = await late.read()
    assert (found.last_id, found.processed_total) == ("m10", 10)
    assert await late.unprocessed(span(1, 10)) == []
    assert ids(await late.unprocessed([*span(1, 9), *say(11)])) == ["m11"]


async def test_the_order_of_messages_goes_before_the_order_of_turns(store: MemoryStore, clock: Clock) -> None:
    """Two machines' clocks may differ: a window that goes on after the cursor moves it."""
    await cursors(store, clock, ended_at=START).advance(span(1, 5))
    await cursors(store, clock, ended_at=START - timedelta(minutes=1)).advance(span(3, 8))
    assert (await cursors(store, clock).read()).last_id == "m8"


async def test_a_machine_whose_clock_is_behind_reads_nothing_twice(store: MemoryStore, clock: Clock) -> None:
    await cursors(store, clock, ended_at=START).advance(span(1, TAIL + 1))
    behind = cursors(store, clock, ended_at=START - timedelta(minutes=5))
    for last in range(TAIL + 6, 2 * TAIL, 5):
        assert ids(await behind.unprocessed(span(1, last))) == ids(span(last - 4, last))
        await behind.advance(span(last - 4, last))


async def test_cursors_are_of_one_agent_one_room_and_one_evaluator(store: MemoryStore, clock: Clock) -> None:
    await cursors(store, clock).advance(span(1, 3))
    for other in ({"agent_id": "b"}, {"room_id": "room-2"}, {"room_id": "a.b@c"}, {"evaluator": "GET_FACTS"}):
        assert len(await cursors(store, clock, **other).unprocessed(span(1, 3))) == 3
    assert await store.aget(namespace("agent", "cursors", "room-1"), "REFLECTION") is not None


@pytest.mark.parametrize("broken", [{"tail_ids": 7}, {"next_try_at": "soon"}, {}], ids=str)
async def test_an_unreadable_cursor_counts_as_none(
    store: MemoryStore, cursor: Cursors, broken: dict[str, Any]
) -> None:
    await store.aput(namespace("agent", "cursors", "room-1"), "REFLECTION", broken)
    assert len(await cursor.unprocessed(span(1, 3))) == 3
    await cursor.advance(span(1, 3))
    assert await cursor.unprocessed(span(1, 3)) == []


# Failing ------------------------------------------------------------------------------------------


async def test_after_a_failure_it_waits_longer_each_time(cursor: Cursors, clock: Clock) -> None:
    assert not await cursor.waits()
    for minutes in (2, 4):
        assert not await cursor.fail(span(1, 9))
        assert await cursor.waits()
        assert (await cursor.read()).next_try_at == clock.now + timedelta(minutes=minutes)
        clock.move(minutes - 0.1)
        assert await cursor.waits()
        clock.move(0.1)
        assert not await cursor.waits()
    assert len(await cursor.unprocessed(span(1, 9))) == 9


async def test_after_three_failures_the_window_is_skipped(cursor: Cursors) -> None:
    assert [await cursor.fail(span(1, 9)) for _ in range(3)] == [False, False, True]
    assert await cursor.unprocessed(span(1, 9)) == []
    assert not await cursor.waits()
    assert ids(await cursor.unprocessed(span(1, 10))) == ["m10"]


async def test_a_model_that_never_answers_is_asked_less_and_less(cursor: Cursors, clock: Clock) -> None:
    """Window after window, the waits grow to 64 minutes."""
    waits: list[float] = []
    for window in range(4):
        messages = span(1, 9 * (window + 1))
        for _ in range(3):
            await cursor.fail(messages)
            until = (await cursor.read()).next_try_at
            waits.append(0 if until is None else (until - clock.now).total_seconds() / 60)
        assert await cursor.unprocessed(messages) == []
    assert waits == [2, 4, 0, 16, 32, 0, 64, 64, 0, 64, 64, 0]


async def test_an_answer_ends_the_waiting(cursor: Cursors) -> None:
    await cursor.fail(span(1, 9))
    await cursor.advance(span(1, 9))
    assert not await cursor.waits()
    assert (await cursor.read()).failures == 0
    await cursor.fail(span(1, 13))
    assert (await cursor.read()).failures == 1


async def test_a_late_failure_delays_no_later_turn(cursor: Cursors) -> None:
    await cursor.advance(span(1, 10))
    before = await cursor.read()
    assert not await cursor.fail(span(1, 8))
    assert await cursor.read() == before


# In every store -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "room_id", ["room-1", "", "a.b%c@d", "r" * 10_000], ids=["plain", "empty", "dots", "long"]
)
async def test_a_cursor_is_the_same_from_every_store(
    any_store: BaseStore, room_id: str, clock: Clock
) -> None:
    store = MemoryStore(any_store)
    await cursors(store, clock, room_id=room_id, ended_at=START).advance(span(1, 70))
    await cursors(store, clock, room_id=room_id).fail(span(60, 75))
    found = await cursors(MemoryStore(any_store), clock, room_id=room_id).read()
    assert (found.last_id, found.processed_total, found.failures) == ("m70", 70, 1)
    assert found.tail_ids == tuple(f"m{n}" for n in range(7, 71))
    assert (found.next_try_at, found.updated_at) == (START + timedelta(minutes=2), START)
    assert found.turn_ended_at == START


def test_a_cursor_that_many_threads_move_counts_each_message_once(any_store: BaseStore, clock: Clock) -> None:

    def read(last: int) -> None:
        asyncio.run(cursors(MemoryStore(any_store), clock).advance(span(1, last)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, [10, 20, 30, 40, 40, 30, 20, 10]))
    found = asyncio.run(cursors(MemoryStore(any_store), clock).read())
    assert (found.last_id, found.processed_total) == ("m40", 40)
