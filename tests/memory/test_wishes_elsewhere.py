"""Forgetting where unread messages wait in threads that another process serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore, GetOp, Op
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from arbiter.memory import FactEvaluator, FactRules, ReflectionEvaluator
from tests.memory.memory_support import Clock
from tests.memory.test_wishes import CAT, OSLO, Talk, claims, everything, forget, off_record

DOG = "User has a dog"
READS = {
    "in Oslo": claims(OSLO),
    "Pixel": claims(CAT),
    "a dog": claims(DOG),
    "where I live": forget("Oslo"),
    "between us": off_record(),
    "as a friend": off_record(),
    "it all": everything(True),
    "yes, do": everything(True),
}


def two(store: BaseStore | None = None, **options: Any) -> tuple[Talk, Talk]:
    """The cycles of two processes on one store; the second one reads four messages at once, so that a single turn
    stays unread."""
    clock, store = Clock(), store or InMemoryStore()
    return (
        Talk(READS, store=store, clock=clock, **options),
        Talk(READS, store=store, clock=clock, conversation_length=8, **options),
    )


def later(*talks: Talk) -> None:
    talks[0].clock.pass_by(minutes=1)


@pytest.fixture(params=["sync", "async"])
def say(request: pytest.FixtureRequest) -> Any:
    def speak(talk: Talk, text: str, *, user: str = "ada", room: str = "room") -> None:
        config: Any = {"configurable": {"thread_id": room, "user_id": user}}
        if request.param == "sync":
            talk.app.invoke({"messages": [HumanMessage(text)]}, config)
        else:
            asyncio.run(talk.app.ainvoke({"messages": [HumanMessage(text)]}, config))

    return speak


@pytest.mark.parametrize("by", ["user", "program", "command", "everything"])
def test_what_another_process_has_not_read_before_a_forgetting_is_not_learned_after_it(
    any_store: BaseStore, say: Any, by: str
) -> None:
    here, there = two(any_store)
    say(here, "I live in Oslo", room="a")
    say(there, "I live in Oslo", room="b")
    say(there, "I live in Oslo", user="bob", room="c")
    later(here)
    if by == "user":
        say(here, "Please forget where I live", room="a")
    elif by == "program":
        here.memory.forget("ada", "Oslo")
    elif by == "command":
        say(here, "Forget what I just said", room="a")
    else:
        say(here, "Forget everything about me", room="a")
    assert here.known() == []
    later(here)
    say(there, "I have a cat, Pixel", room="b")
    say(there, "I have a dog", user="bob", room="c")
    assert there.known() == [CAT]
    assert there.known("bob") == [DOG, OSLO]
    later(here)
    say(there, "I live in Oslo", room="b")
    say(there, "Really", room="b")
    assert there.known() == [CAT, OSLO]


@pytest.mark.parametrize("when", ["in its turn", "when it is quiet", "by a scheduler"])
def test_a_thread_of_another_process_teaches_nothing_from_before_a_forgetting(when: str) -> None:
    here, there = two()
    there.say("I live in Oslo", room="b", id="m1")
    later(here)
    here.memory.forget("ada", "Oslo")
    later(here)
    if when == "in its turn":
        there.say("Hello", room="b").say("And you?", room="b")
    elif when == "when it is quiet":
        assert there.arbiter_os.drain(10)
    else:
        there.memory.process("b", user_id="ada", messages=[HumanMessage("I live in Oslo", id="m1")])
    assert there.known() == []
    assert "in Oslo" not in there.prompts
    there.say("I have a cat, Pixel", room="b", id="m2")
    assert there.arbiter_os.drain(10)
    assert there.known() == [CAT]


def test_a_message_without_text_before_a_forgetting_changes_nothing() -> None:
    here, there = two()
    config: Any = {"configurable": {"thread_id": "b", "user_id": "ada"}}
    picture: Any = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    there.app.invoke({"messages": [HumanMessage("I live in Oslo"), HumanMessage(picture)]}, config)
    later(here)
    here.memory.forget("ada", "Oslo")
    later(here)
    there.say("My cat is called Pixel", room="b")
    assert there.arbiter_os.drain(10)
    assert there.known() == [CAT]


def test_what_is_said_in_several_messages_at_a_time_after_a_forgetting_is_learned() -> None:
    here, there = two()
    there.say("Good morning", room="b").say("Hello?", room="b")
    here.memory.forget("ada", "Oslo")
    later(here)
    config: Any = {"configurable": {"thread_id": "b", "user_id": "ada"}}
    there.app.invoke({"messages": [HumanMessage("I live in Oslo"), HumanMessage("with Pixel")]}, config)
    assert there.arbiter_os.drain(10)
    assert there.known() == [CAT, OSLO]


@pytest.mark.parametrize("by", ["forgetting", "everything"])
def test_in_a_room_of_several_only_what_the_one_who_asked_has_said_is_not_learned(by: str) -> None:
    here, there = two()
    there.cycle.conversation_length = 32
    there.say("I live in Oslo", room="b").say("I live in Oslo", user="bob", room="b")
    later(here)
    here.memory.forget("ada", "Oslo" if by == "forgetting" else None)
    later(here)
    there.say("I have a dog", user="bob", room="b")
    assert there.arbiter_os.drain(10)
    assert (there.known(), there.known("bob")) == ([], [DOG, OSLO])


def test_what_is_said_at_the_moment_of_a_forgetting_is_learned() -> None:
    here, there = two()
    there.say("I live in Oslo", room="b")
    here.memory.forget("ada", "Oslo")
    there.say("I have a cat, Pixel", room="b")
    assert there.known() == [CAT]


def test_a_wish_that_another_process_has_not_read_is_carried_out_after_a_later_forgetting() -> None:
    here, there = two()
    here.say("I live in Oslo", room="a")
    answers, there.model.answers[:] = [*there.model.answers], [RuntimeError("no network")]
    there.say("Please forget where I live", room="b")
    later(here)
    here.memory.forget("ada", "salary")
    here.clock.pass_by(hours=2)
    there.model.answers[:] = answers
    there.say("Hello", room="b")
    assert there.known() == []


@pytest.mark.parametrize(
    "text",
    ["I tell you as a friend: I have a dog", "Forget what I just said"],
    ids=["off the record", "command"],
)
def test_a_wish_about_messages_of_which_nothing_was_learned_costs_nothing_elsewhere(text: str) -> None:
    here, there = two()
    there.say("My cat is called Pixel", room="b")
    later(here)
    here.say("I have no idea", room="a").say(text, room="a")
    later(here)
    there.say("Hello", room="b").say("And you?", room="b")
    assert there.known() == [CAT]


def test_undoing_a_forgetting_lets_unread_messages_from_before_teach_again() -> None:
    here, there = two(fact_rules=FactRules(undo_within=timedelta(days=1)))
    here.say("I have a dog", room="a").say("I live in Oslo", room="a")
    there.say("My cat is called Pixel", room="b")
    later(here)
    first = here.memory.forget("ada", "Oslo")
    later(here)
    second = here.memory.forget("ada", "dog")
    assert here.memory.undo("ada", id=second.id) == 1
    later(here)
    there.say("Hello", room="c")
    there.say("Hello", room="b")
    assert there.known() == [DOG]
    there.say("My cat is called Pixel", room="d")
    assert here.memory.undo("ada", id=first.id) == 1
    there.say("Hello", room="d")
    assert there.known() == [CAT, DOG, OSLO]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_undoing_all_forgettings_in_any_order_lets_unread_messages_teach_again(
    order: tuple[int, int],
) -> None:
    here, there = two(fact_rules=FactRules(undo_within=timedelta(days=1)))
    here.say("I have a dog", room="a").say("I live in Oslo", room="a")
    there.say("My cat is called Pixel", room="b")
    gone: list[str | None] = []
    for words in ("Oslo", "dog"):
        later(here)
        gone.append(here.memory.forget("ada", words).id)
    for number in order:
        assert here.memory.undo("ada", id=gone[number]) == 1
    later(here)
    there.say("Hello", room="b")
    assert there.known() == [CAT, DOG, OSLO]


def test_reflection_reads_nothing_from_before_a_forgetting_either() -> None:
    here, there = two(evaluators=[ReflectionEvaluator()])
    there.say("I live in Oslo", room="b")
    later(here)
    here.memory.forget("ada", "Oslo")
    later(here)
    there.say("Hello", room="b").say("And you?", room="b")
    assert there.model.calls
    assert "in Oslo" not in there.prompts


def test_the_room_of_a_wish_is_read_as_before() -> None:
    talk = Talk(READS, conversation_length=8, evaluators=[FactEvaluator(), ReflectionEvaluator()])
    talk.memory.remember("ada", OSLO)
    talk.say("My cat is called Pixel").say("Please forget where I live").say("I have a dog")
    assert talk.arbiter_os.drain(10)
    assert talk.known() == [CAT, DOG]
    assert any(
        "called Pixel" in talk.model.prompt(call) and "The new messages:" not in talk.model.prompt(call)
        for call in range(talk.model.calls)
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_turns_after_a_forgetting_that_stay_unread_are_learned_later(restarts: bool) -> None:
    """Also if another process reads them: the first turn has noted which messages are older."""
    here, there = two()
    there.cycle.conversation_length = 32
    for text in ("I live in Oslo", "Hello"):
        there.say(text, room="b")
    later(here)
    here.memory.forget("ada", "Oslo")
    for text in ("My cat is called Pixel", "I have a dog"):
        later(here)
        there.say(text, room="b")
    if restarts:
        state = there.app.get_state({"configurable": {"thread_id": "b"}})
        here.memory.process("b", user_id="ada", messages=state.values["messages"])
    else:
        assert there.arbiter_os.drain(10)
    assert here.known() == [CAT, DOG]


@pytest.mark.parametrize("after", [True, False])
def test_a_profile_is_not_filled_from_before_a_forgetting(after: bool) -> None:
    class Home(BaseModel):
        city: str | None = None

    said: dict[str, Any] = {"claims": [], "profiles": {"Home": {"city": "Oslo"}}}
    here, there = two(evaluators=[FactEvaluator(schemas=[Home])])

    def answer(prompt: str) -> str:
        return json.dumps(said if "> I live in Oslo" in prompt else {"claims": []})

    there.model.answers[:] = [answer]
    there.say("I live in Oslo", room="b")
    later(here)
    here.memory.forget("ada", "Oslo")
    later(here)
    there.say("I live in Oslo" if after else "Hello", room="b")
    assert there.arbiter_os.drain(10)
    assert here.memory.profile("ada", Home).city == ("Oslo" if after else None)


def test_a_turn_looks_for_a_forgetting_of_its_user_where_it_reads_anyway() -> None:
    class Watched(InMemoryStore):
        looks = 0

        def batch(self, ops: Iterable[Op]) -> list[Any]:
            listed = [*ops]
            self.looks += sum(isinstance(op, GetOp) and op.key == "newest" for op in listed)
            return super().batch(listed)

        async def abatch(self, ops: Iterable[Op]) -> list[Any]:
            return self.batch(ops)

    store = Watched()
    talk, _ = two(store, evaluators=[FactEvaluator(), ReflectionEvaluator()])
    talk.say("I live in Oslo").say("My cat is called Pixel")
    assert talk.known() == [CAT, OSLO]
    assert store.looks == 0
