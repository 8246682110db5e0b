"""Forgetting is for good: records, vectors, what was derived, thoughts; and it is not learned again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from langgraph.store.base import BaseStore

from arbiter.errors import ParameterError
from arbiter.memory._entities import Entity
from arbiter.memory._records import Thought
from arbiter.memory.facts import FactEvaluator, FactRules
from tests.memory.facts_support import START, Room, answer, claim, indexed, relations, space
from tests.scripted import Scripted

SEATTLE = "User lives in Seattle"
CAT = "User has a cat"


async def think(room: Room, id: str, text: str, *sources: str, room_id: str = "room-1") -> None:
    thought = Thought(
        id=id, text=text, room_id=room_id, at=START, source_message_ids=sources, entity_ids=(room.user,)
    )
    await room.store.aput(space("thoughts", room_id), id, thought.to_value())


async def thoughts(room: Room) -> list[str]:
    spaces = await room.store.aspaces("sarah", "thoughts")
    found = [await room.store.alist(ns) for ns in spaces]
    return sorted(entry.key for entries in found for entry in entries)


async def test_a_query_forgets_facts_that_contain_it(any_indexed_store: BaseStore) -> None:
    room = Room(any_indexed_store, rules=FactRules(store_opinions=True))
    await room.hears(
        "...",
        claim(SEATTLE),
        claim(CAT),
        claim("User is in SEATTLE now", "status"),
        claim("Seattle is grey", "opinion"),
    )
    assert await room.learned.forget("user-1", "seattle") == 3
    assert [f.claim for f in await room.facts(kinds=("facts", "status", "opinions"))] == [CAT]
    for kind in ("facts", "status", "opinions"):
        found = await room.store.asearch(space(kind, "user-1"), "seattle")
        assert all("eattle" not in str(entry.value) for entry in found.entries)
    assert "eattle" not in await room.dump()


async def test_a_query_searches_all_fields_of_a_fact() -> None:
    room = Room()
    await room.hears(
        "a", claim("Home", slot="lives_in_seattle"), claim("Bob is nice", subject="Bob of Seattle")
    )
    assert await room.learned.forget(room.user, "seattle") == 2
    assert "eattle" not in await room.dump()


async def test_superseded_facts_are_returned_for_any_state() -> None:
    """Also statuses that have been superseded, and would no longer be believed."""
    room = Room(None, relations("supersedes"))
    await room.hears("a", claim("User is in Paris", "status", slot="at", value="Paris"))
    await room.hears("b", claim("User is in Rome", slot="at", value="Rome"))
    room.passes(days=60)
    assert {fact.state for fact in await room.facts(state=None)} == {"active", "superseded"}


async def test_one_or_all_are_forgotten() -> None:
    room = Room()
    await room.hears("...", claim(SEATTLE), claim(CAT), claim("User has a dog"))
    assert await room.learned.forget("user-1", id=(await room.fact(CAT)).id) == 1
    assert await room.learned.forget("user-1", id="unknown") == 0
    assert await room.learned.forget("user-2") == 0
    assert await room.learned.forget("user-1") == 2
    assert await room.facts() == []


@pytest.mark.parametrize("query", ["", "  "])
async def test_an_empty_query_does_not_mean_everything(query: str) -> None:
    room = Room()
    await room.hears("...", claim(CAT))
    with pytest.raises(ParameterError, match="query"):
        await room.learned.forget("user-1", query)
    assert len(await room.facts()) == 1


@pytest.mark.parametrize("again", [SEATTLE, f"{SEATTLE}.", "user lives in seattle"])
async def test_forgotten_claims_are_not_learned_again(again: str, any_store: BaseStore) -> None:
    room = Room(any_store)
    await room.hears("...", claim(SEATTLE))
    await room.learned.forget("user-1", "Seattle")
    found = await room.hears("I live in Seattle", claim(again), claim(CAT))
    assert (found.inserted, found.dropped_private) == (1, 1)
    assert [f.claim for f in await room.facts()] == [CAT]
    assert "eattle" not in await room.dump()


async def test_forgetting_about_one_entity_keeps_facts_about_others() -> None:
    room = Room()
    await room.hears("...", claim(SEATTLE))
    other = Room(room.store.store, user="user-2")
    await other.hears("...", claim(SEATTLE))
    await room.learned.forget("user-1")
    assert [f.claim for f in await other.facts()] == [SEATTLE]


async def test_links_to_forgotten_facts_are_cut() -> None:
    room = Room(indexed(), relations("contradicts"))
    await room.hears("...", claim("User has a dog"))
    await room.hears("...", claim("User has no dog"))
    await room.learned.forget("user-1", "has a dog")
    [left] = await room.facts()
    assert (left.claim, left.state, left.contradicts) == ("User has no dog", "active", ())


async def test_inferred_facts_are_forgotten_with_their_premises() -> None:
    room = Room(rules=FactRules(chaining=True))
    await room.hears("...", claim("User works at a startup"))
    [known] = await room.facts()
    await room.ingest(claim("User has shares", derived_from=(known.id,)))
    await room.ingest(claim("User may be rich", derived_from=((await room.fact("User has shares")).id,)))
    assert await room.learned.forget("user-1", "startup") == 3


async def test_thoughts_that_mention_a_forgotten_fact_are_deleted() -> None:
    room = Room()
    await room.hears("...", claim(SEATTLE, value="Seattle"), claim(CAT), id="m1")
    await think(room, "query", "He told me about Seattle.")
    await think(room, "elsewhere", "Seattle again.", room_id="room-9")
    await think(room, "claim", "Nice that John is living in Seattle!")
    await think(room, "other", "We talked about music.", "m1")
    assert await room.learned.forget("user-1", "seattle") == 1
    assert await thoughts(room) == ["other"]
    await think(room, "cat", "The cat came up.", "m1")
    await think(room, "dog", "The dog came up.", "m2")
    await room.learned.forget("user-1", id=(await room.fact(CAT)).id)
    assert await thoughts(room) == ["dog", "other"]
    await room.learned.forget("user-1")
    assert await thoughts(room) == []


async def test_forgetting_while_others_write_leaves_nothing(any_store: BaseStore) -> None:
    room = Room(any_store)
    await room.hears("I live in Seattle", claim(SEATTLE))

    async def mention(number: int) -> None:
        other = Room(any_store, room_id=f"room-{number}")
        for turn in range(3):
            await other.hears("I live in Seattle", claim(SEATTLE), id=f"x{number}-{turn}")

    await asyncio.gather(*(mention(n) for n in range(5)), room.learned.forget("user-1", "Seattle"))
    assert await room.facts() == []
    assert "eattle" not in await room.dump()


# In a message -------------------------------------------------------------------------------------


async def test_a_message_that_asks_to_forget_is_acted_on_at_once(any_store: BaseStore) -> None:
    room = Room(any_store, answer(SEATTLE))
    await room.hears("I live in Seattle", claim(SEATTLE), claim(CAT))
    room.says("Please forget that I live in Seattle")
    outcome = await room.evaluate()
    assert (outcome.data["forgotten"], outcome.data["llm_calls"]) == (1, 0)
    assert [f.claim for f in await room.facts()] == [CAT]
    assert "Seattle" not in repr(outcome)


async def test_a_forgotten_topic_is_not_learned_from_the_same_conversation() -> None:
    room = Room(None, answer(SEATTLE, "User is a Seattle resident", CAT), length=10)
    for text in ("Hi", "I live in Seattle", "I have a cat", "How are you?", "Forget that I live in Seattle"):
        room.says(text)
    room.replies("Seattle? Forgotten.")
    outcome = await room.evaluate()
    assert room.model is not None
    assert "eattle" not in room.model.prompt().split("The new messages:")[1]
    assert [f.claim for f in await room.facts()] == [CAT, "User is a Seattle resident"]
    assert outcome.data["dropped_private"] == 1


async def test_the_last_message_can_be_forgotten() -> None:
    room = Room(None, answer())
    await room.hears("I have a cat", claim(CAT), id="a")
    await room.hears("I live in Seattle", claim(SEATTLE), id="b")
    room.says("Forget what I just said.")
    await room.evaluate()
    assert [f.claim for f in await room.facts()] == [CAT]


async def test_a_user_cannot_have_facts_about_another_user_forgotten() -> None:
    room = Room(None, answer())
    await room.hears("I live in Seattle", claim(SEATTLE))
    room.says("Forget everything about me", user="user-2")
    outcome = await room.evaluate()
    assert outcome.data["forgotten"] == 0
    assert len(await room.facts()) == 1


async def test_a_name_is_enough_if_the_words_differ() -> None:
    room = Room(None, answer())
    await room.hears("...", claim("User visited Paris in May"), claim("User likes Rome"))
    room.says("Forget that I travelled to Paris")
    await room.evaluate()
    assert [f.claim for f in await room.facts()] == ["User likes Rome"]


async def test_it_can_be_told_again_in_other_words_after_forgetting_everything() -> None:
    room = Room(None, answer(CAT), length=1)
    room.says("Forget everything about me.")
    await room.evaluate(FactEvaluator(model=Scripted(answers=[answer()])))
    room.says("I have a cat")
    await room.evaluate()
    assert [f.claim for f in await room.facts()] == [CAT]


@pytest.mark.parametrize("asked", ["Forget that I live in Seattle", "Forget everything about me"])
async def test_earlier_messages_of_another_thread_are_not_learned_after_a_request_to_forget(
    asked: str, any_store: BaseStore
) -> None:
    """Also if it was not read yet when the request came, in another thread."""
    unread = Room(any_store, answer(SEATTLE), length=4, room_id="a")
    unread.says("I live in Seattle", "a1")
    assert await unread.evaluate() is None
    other = Room(any_store, answer(), room_id="b")
    other.passes(minutes=1)
    other.says(asked, "b1")
    await other.evaluate()
    assert "eattle" not in await other.dump()
    unread.passes(minutes=2)
    unread.says("Hi", "a2")
    outcome = await unread.evaluate()
    assert (outcome.data["dropped_private"], await unread.facts()) == (1, [])
    # Later messages are learned from, in any thread.
    unread.passes(minutes=1)
    unread.says("Back to Seattle!", "a3")
    unread.says("So nice", "a4")
    again = claim("User is back in Seattle", source_message_ids=("a3",))
    await unread.ingest(again)
    new = Room(any_store, room_id="c")
    new.passes(minutes=5)
    await new.hears("I love Seattle", claim("User loves Seattle"), id="c1")
    assert {f.claim for f in await new.facts()} == {again.claim, "User loves Seattle"}


@pytest.mark.parametrize("asked", ["Please forget that Ann is a spy", "Forget what I just said"])
async def test_a_users_own_claims_about_others_can_be_forgotten(asked: str) -> None:
    """Only claims that no other user has made are forgotten; others may still make them."""
    people = (Entity(id="user-1"), Entity(id="ann", names=("Ann",)), Entity(id="bob", names=("Bob",)))
    room = Room(None, answer(), entities=people)
    spy, cook = claim("Ann is a spy", subject="Ann"), claim("Ann is a cook", subject="Ann")
    await room.hears("Ann cooks", cook)
    room.says("She does", user="bob", id="b1")
    await room.ingest(replace(cook, source_message_ids=("b1",)))
    await room.hears("Ann is a spy", spy)
    room.says("Forget that Ann is a cook", user="bob")
    room.says(asked)
    outcome = await room.evaluate()
    assert outcome.data["forgotten"] == 1
    assert [f.claim for f in await room.facts("ann")] == ["Ann is a cook"]
    await room.hears("Ann is a spy", spy)
    assert [f.claim for f in await room.facts("ann")] == ["Ann is a cook"]
    room.says("I am a spy", user="ann", id="a1")
    await room.ingest(replace(spy, source_message_ids=("a1",)))
    assert {f.claim for f in await room.facts("ann")} == {"Ann is a cook", "Ann is a spy"}


async def test_a_request_is_acted_on_once(any_store: BaseStore) -> None:
    """Later claims stay, although the request itself is not read for some turns."""
    room = Room(any_store, answer())
    await room.hears("I live in Seattle", claim(SEATTLE))
    room.says("Forget everything about me")
    assert (await room.evaluate()).data["forgotten"] == 1
    await room.hears("I have a cat", claim(CAT))
    room.says("And")
    room.says("so on")
    outcome = await room.evaluate()
    assert (outcome.data["forgotten"], outcome.data["llm_calls"]) == (0, 1)
    assert [f.claim for f in await room.facts()] == [CAT]


# Retention ----------------------------------------------------------------------------------------


async def test_above_the_limit_the_least_certain_and_oldest_facts_expire(any_store: BaseStore) -> None:
    room = Room(any_store, rules=FactRules(max_facts_per_entity=2))
    await room.hears("...", claim("A"))
    await room.hears("...", claim("A"))
    room.passes(days=1)
    await room.hears("...", claim("B"))
    room.passes(days=1)
    await room.hears("...", claim("C"))
    assert {f.claim: f.state for f in await room.facts()} == {"A": "active", "B": "expired", "C": "active"}
    room.passes(days=1)
    await room.hears("...", claim("B"))
    assert (await room.fact("B")).state == "active"


async def test_superseded_facts_are_deleted_after_the_retention_period() -> None:
    room = Room(indexed(), relations("supersedes"), rules=FactRules(retention_days=10))
    await room.hears("...", claim("A"))
    await room.hears("...", claim("B"))
    room.passes(days=9)
    room.model = None
    await room.hears("...", claim("Something new 1"))
    assert {f.claim for f in await room.facts()} >= {"A", "B"}
    room.passes(days=2)
    await room.hears("...", claim("Something new 2"))
    assert "A" not in {f.claim for f in await room.facts()}
    assert room.now - START == timedelta(days=11)
