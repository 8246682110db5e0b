"""Forgetting by a program: records, vectors, what was derived, thoughts; and what is kept for how long."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from langgraph.store.base import BaseStore, PutOp

from arbiter.errors import ParameterError
from arbiter.memory._notes import Traces
from arbiter.memory._records import Thought
from arbiter.memory.facts import FactRules
from tests.memory.facts_support import START, Room, claim, indexed, relations, space

SEATTLE = "User lives in Seattle"
CAT = "User has a cat"


async def think(room: Room, id: str, text: str, *sources: str, room_id: str = "room-1") -> None:
    thought = Thought(
        id=id, text=text, room_id=room_id, at=START, source_message_ids=sources, entity_ids=(room.user,)
    )
    await room.store.aput(space("thoughts", room_id), id, thought.to_value())


async def thoughts(room: Room) -> list[str]:
    found = await asyncio.to_thread(room.store.store.search, ("arbiter", "sarah", "thoughts"), limit=10_000)
    return sorted(item.key for item in found)


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


@pytest.mark.parametrize("query", ["izmir", "IZMIR", "İzmir", "İZMİR"])
async def test_a_query_finds_a_turkish_i_in_any_case(query: str) -> None:
    room = Room()
    await room.hears("a", claim("User lives in İzmir"))
    assert await room.learned.forget(room.user, query) == 1


@pytest.mark.parametrize("query", ["ada's dog", "ADA\u2019S DOG"])
@pytest.mark.parametrize("text", ["Ada's dog is Rex", "Ada\u2019s dog is Rex"])
async def test_a_query_finds_an_apostrophe_of_either_form(query: str, text: str) -> None:
    room = Room()
    await room.hears("a", claim(text))
    assert await room.learned.forget(room.user, query) == 1


async def test_a_query_searches_all_fields_of_a_fact() -> None:
    room = Room()
    await room.hears(
        "a", claim("Home", slot="lives_in_seattle"), claim("Bob is nice", subject="Bob of Seattle")
    )
    assert await room.learned.forget(room.user, "seattle") == 2
    assert "eattle" not in await room.dump()


@pytest.mark.parametrize(
    ("query", "count"),
    [("cat", 0), (".", 0), ("school", 1), ("educ", 1), ("education.school", 1), ("学校", 1)],
)
async def test_a_query_searches_the_words_of_a_slot_from_their_beginnings(query: str, count: int) -> None:
    """A cat is in no education."""
    room = Room()
    await room.hears("a", claim("User is at MIT", slot="education.school.学校"))
    assert await room.learned.forget("user-1", query) == count


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


async def test_the_messages_of_a_forgotten_claim_teach_it_no_more_and_later_ones_do(
    any_store: BaseStore,
) -> None:
    room = Room(any_store)
    await room.hears("I live in Seattle", claim(SEATTLE), id="m1")
    await room.learned.forget("user-1", "Seattle")
    found = await room.ingest(claim(SEATTLE, source_message_ids=("m1",)))
    assert (found.inserted, found.dropped_private, await room.facts()) == (0, 1, [])
    assert "eattle" not in await room.dump()
    found = await room.hears("I live in Seattle again", claim(SEATTLE), id="m2")
    assert (found.inserted, (await room.fact(SEATTLE)).source_message_ids) == (1, ("m2",))


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


async def test_thoughts_that_rest_on_a_forgotten_fact_or_mention_it_are_deleted() -> None:
    room = Room()
    await room.hears("...", claim(SEATTLE, value="Seattle"), claim(CAT), id="m1")
    await Traces(room.store, "sarah", room.user).was_in("room-9")
    await think(room, "words", "He told me about Seattle.")
    await think(room, "elsewhere", "Seattle again.", room_id="room-9")
    await think(room, "message", "We talked about a city.", "m1")
    await think(room, "other", "We talked about music.", "m2")
    assert await room.learned.forget("user-1", "seattle") == 1
    assert await thoughts(room) == ["other"]
    await room.learned.forget("user-1")
    assert await thoughts(room) == []


class KilledError(BaseException):
    """The end of a process."""


class Fatal(BaseStore):
    """A store whose process is killed before its write number `at`."""

    def __init__(self, inner: BaseStore, at: int) -> None:
        self.inner = inner
        self.left = at

    def batch(self, ops: Any) -> Any:
        self.left -= any(isinstance(op, PutOp) for op in ops)
        if self.left <= 0:
            raise KilledError
        return self.inner.batch(ops)

    async def abatch(self, ops: Any) -> Any:
        return self.batch(ops)


@pytest.mark.parametrize("query", ["seattle", "lives in seattle", None])
async def test_the_same_call_finishes_a_forgetting_that_was_killed_at_any_write(query: str | None) -> None:
    """Facts go last: what rests on them is found by them."""
    killed, at, left = True, 0, ["other"] if query else []
    while killed:
        room = Room()
        await room.hears("...", claim(SEATTLE, value="Seattle"), claim(CAT), id="m1")
        await think(room, "words", "He told me about Seattle.")
        await think(room, "message", "We talked about a city.", "m1")
        await think(room, "other", "We talked about music.", "m2")
        at += 1
        try:
            dying = Room(Fatal(room.store.store, at))
            await dying.learned.forget("user-1", query)
            killed = False
        except KilledError:
            await room.learned.forget("user-1", query)
        assert await thoughts(room) == left, at
        assert [fact.claim for fact in await room.facts()] == ([CAT] if query else []), at
    assert at > 5


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
async def test_words_are_forgotten_in_any_unicode_form(forms: Sequence[Literal["NFC", "NFD"]]) -> None:
    """A file name of macOS writes the letter and its dots apart."""
    said, asked = (unicodedata.normalize(form, "Zürich") for form in forms)
    room = Room()
    await room.hears("...", claim(f"User lives in {said}", value=said), id="m1")
    await think(room, "words", f"He told me about {asked}.")
    assert await room.learned.forget("user-1", asked) == 1
    assert await thoughts(room) == []


async def test_forgetting_while_others_write_leaves_nothing_of_what_was_said_before(
    any_store: BaseStore,
) -> None:
    room = Room(any_store)
    await room.hears("I live in Seattle", claim(SEATTLE), id="old")

    async def mention(number: int) -> None:
        other = Room(any_store, room_id=f"room-{number}")
        for turn in range(3):
            await other.hears("I live in Seattle", claim(SEATTLE), id=f"x{number}-{turn}")

    async def again() -> None:
        other = Room(any_store)
        other.messages = [*room.messages]
        for _ in range(3):
            await other.ingest(claim(SEATTLE, source_message_ids=("old",)))

    await asyncio.gather(again(), *(mention(n) for n in range(5)), room.learned.forget("user-1", "Seattle"))
    assert all("old" not in fact.source_message_ids for fact in await room.facts())


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
