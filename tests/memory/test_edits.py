"""A chat lets its users edit messages: the new text is learned, and the old one is as if it had not been said."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore
from pydantic import BaseModel

from arbiter.memory import FactEvaluator, FactRules
from tests.memory.dialogue_support import Chat, fact, status
from tests.memory.memory_support import Clock

OSLO, BERGEN, ROME = "User lives in Oslo", "User lives in Bergen", "User lives in Rome"


class Home(BaseModel):
    city: str | None = None


HEAR = {"in Oslo": OSLO, "in Bergen": BERGEN, "in Rome": ROME, "cats": "User likes cats"}


@pytest.mark.lengthy
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_edited_message_is_read_again_and_its_old_text_is_forgotten(asynchronous: bool) -> None:
    chat = Chat(HEAR, asynchronous=asynchronous, conversation_length=4)
    await chat.say("I live in Oslo and like cats.", id="m1")
    await chat.say("How are you?", id="m2")
    assert await chat.known() == ["User likes cats", OSLO]
    await chat.say("I live in Bergen and like cats.", id="m1")
    assert await chat.known(state=None) == ["User likes cats", BERGEN]
    (kept,) = [one for one in await chat.facts() if one.claim == "User likes cats"]
    assert (kept.mention_count, kept.source_message_ids) == (1, ("m1",))
    assert await chat.trust() == 50
    # An edit is read once, and the text can be changed back.
    await chat.say("Fine.", id="m3")
    assert "Bergen" not in chat.model.prompt(-1).split("The new messages:")[1]
    await chat.say("I live in Oslo and like cats.", id="m1")
    assert await chat.known(state=None) == ["User likes cats", OSLO]


async def test_no_word_of_the_old_text_is_left(any_store: BaseStore) -> None:
    chat = Chat(HEAR, store=any_store, fact_rules=FactRules(undo_within=timedelta(days=1)))
    await chat.say("I live in Oslo.", id="m1")
    await chat.say("I would rather not say where I live.", id="m1")
    assert await chat.known(state=None) == []
    kept = await asyncio.to_thread(any_store.search, (), limit=1_000)
    assert "Oslo" not in str([item.value for item in kept])
    assert await chat.cycle.memory.aundo("user-1") == 0


async def test_what_another_message_says_too_is_kept() -> None:
    chat = Chat(HEAR)
    await chat.say("I live in Oslo.", id="m1")
    await chat.say("Yes, in Oslo.", id="m2")
    await chat.say("I like cats.", id="m1")
    assert await chat.known() == ["User likes cats", OSLO]


async def test_what_the_old_text_replaced_holds_again() -> None:
    chat = Chat(HEAR, {(ROME, OSLO): "supersedes"})
    await chat.say("I live in Rome.", id="m1")
    chat.pass_by(days=1)
    await chat.say("I moved, now I live in Oslo.", id="m2")
    assert await chat.known() == [OSLO]
    chat.pass_by(minutes=1)
    await chat.say("I visit my aunt.", id="m2")
    assert [(one.claim, one.state, one.valid_to) for one in await chat.facts()] == [(ROME, "active", None)]


@pytest.mark.parametrize("text", ["Off the record: I live in Bergen.", ""])
async def test_a_message_that_is_taken_off_the_record_or_emptied_teaches_nothing(text: str) -> None:
    chat = Chat(HEAR)
    await chat.say("I live in Oslo.", id="m1")
    await chat.say(text, id="m1")
    assert await chat.known(state=None) == []


async def test_what_was_told_about_others_goes_with_the_old_text_and_what_they_said_stays() -> None:
    chat = Chat(
        {"Bob is ill": status("Bob is ill", subject="bob"), "Bob is fine": fact("Bob is fine", subject="bob")}
    )
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("Bob is fine, says he.", user="bob", room="his")
    await chat.say("Bob is ill.", id="m1")
    await chat.say("Bob is here.", id="m1")
    assert await chat.known("bob", None) == ["Bob is fine"]


async def test_a_name_that_was_given_in_the_old_text_is_no_name_any_more() -> None:
    hear = {"lives": fact("Ada lives in Oslo", subject="Ada"), "I'm Ada": fact("User sings", subject="Ada")}
    chat = Chat(hear, says={"I'm Ada": {"names": {"name": "Ada"}}})
    await chat.say("I'm Ada, I sing.", id="m1")
    await chat.say("I'm here.", id="m1")
    await chat.say("Ada lives there.", id="m2")
    (told,) = await chat.facts()
    assert (told.subject, told.provenance) == ("Ada", "third_party")


async def test_an_answer_that_cannot_be_read_is_asked_for_again_later_and_not_at_once() -> None:
    chat = Chat(HEAR)
    await chat.say("I live in Oslo.", id="m1")
    good = chat.model.answers
    chat.model.answers = ["no json"]
    await chat.say("I live in Bergen.", id="m1")
    calls = chat.model.calls
    await chat.say("I live in Bergen.", id="m1")
    assert (chat.model.calls, await chat.known()) == (calls, [OSLO])
    chat.model.answers = good
    chat.pass_by(minutes=3)
    await chat.say("I live in Bergen.", id="m1")
    assert await chat.known(state=None) == [BERGEN]


@pytest.mark.lengthy
async def test_the_context_of_new_messages_is_shown_beside_an_edited_one() -> None:
    chat = Chat(HEAR, conversation_length=6)
    texts = ["I live in Oslo.", "one", "two", "three", "four"]
    for number, text in enumerate(texts):
        await chat.say(text, id=f"m{number}")
    await chat.say(HumanMessage("I live in Bergen.", id="m0"), HumanMessage("five", id="m5"))
    context, new = chat.model.prompt(-1).split("The new messages:")
    assert ("I live in Bergen." in new, "five" in new, "three" in context) == (True, True, True)


@pytest.mark.lengthy
@pytest.mark.parametrize("model", [True, False])
async def test_a_message_that_becomes_a_plain_command_is_carried_out(model: bool) -> None:
    chat = Chat(HEAR)
    await chat.say("I live in Oslo.", id="m1")
    await chat.say("Hello.", id="m2")
    if not model:
        chat.model.answers = ["no json"]
    await chat.say("Forget everything about me.", id="m2")
    assert await chat.known(state=None) == []


@pytest.mark.lengthy
async def test_a_field_of_a_profile_goes_with_its_text() -> None:
    def answer(prompt: str) -> str:
        told = "I live in Oslo" in prompt.split("The new messages:")[1]
        return json.dumps({"claims": [], "profiles": {"Home": {"city": "Oslo"}} if told else {}})

    chat = Chat(HEAR)
    chat.arbiter_os.add_evaluator(FactEvaluator("PROFILES", schemas=[Home], similes=["PROFILING"]))
    chat.model.answers = [answer]
    await chat.say("I live in Oslo.", id="m1")
    assert (await chat.cycle.memory.aprofile("user-1", Home)).city == "Oslo"
    await chat.say("I would rather not say.", id="m1")
    assert (await chat.cycle.memory.aprofile("user-1", Home)).city is None


async def test_an_edit_is_found_whatever_the_zones_of_the_clocks() -> None:
    """Of two processes, or of one clock before and after the end of summer time."""
    chat = Chat(HEAR, clock=Clock(datetime(2026, 1, 1, 18, tzinfo=timezone(timedelta(hours=9)))))
    await chat.say("I live in Oslo.", id="m1")
    chat.clock.now = (chat.clock.now + timedelta(hours=1)).astimezone(UTC)
    await chat.say("I live in Rome.", id="m1")
    assert await chat.known() == [ROME]


async def test_a_process_with_the_old_text_does_not_undo_the_edit() -> None:
    """A thread waits there since before the edit."""
    chat = Chat(HEAR)
    other = Chat(HEAR, store=chat.store, clock=chat.clock, conversation_length=32)
    await other.say("I live in Oslo", id="m1")
    chat.pass_by(minutes=1)
    await chat.say("I live in Rome", id="m1")
    await other.cycle.memory.aprocess("room-1")
    assert await chat.known() == [ROME]
