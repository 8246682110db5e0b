"""Claims become one record each, are counted once for each message, and change known facts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory._context import EvalContext
from arbiter.memory._entities import Entity
from arbiter.memory._records import Claim
from arbiter.memory.facts import FactRules, _ingest
from arbiter.memory.facts._adjudication import Pair, Relation
from tests.memory.facts_support import AGENT, START, Room, claim, indexed, relations
from tests.memory.memory_stores import KeywordEmbeddings

SEATTLE = "User lives in Seattle"
CAT = "User has a cat"


def kinds(ctx: EvalContext | None) -> list[str]:
    assert ctx is not None
    return [event.kind for event in ctx.events]


# Confidence ---------------------------------------------------------------------------------------


async def test_each_independent_mention_takes_away_a_part_of_the_doubt(any_store: BaseStore) -> None:
    room = Room(any_store)
    expected = (0.6, 0.72, 0.804, 0.8628)
    for number, confidence in enumerate(expected, 1):
        room.passes(days=1)
        await room.hears("I live in Seattle", claim(SEATTLE), id=f"m{number}")
        [fact] = await room.facts()
        assert fact.confidence == pytest.approx(confidence)
        assert fact.mention_count == number
    [fact] = await room.facts()
    assert fact.source_message_ids == ("m1", "m2", "m3", "m4")
    assert (fact.first_seen_at, fact.last_seen_at) == (START + timedelta(days=1), START + timedelta(days=4))
    assert (fact.speaker, fact.provenance, fact.state) == ("user-1", "self_reported", "active")


async def test_the_same_message_read_again_is_no_mention(any_store: BaseStore) -> None:
    room = Room(any_store)
    await room.hears("I live in Seattle", claim(SEATTLE), id="m1")
    [before] = await room.facts()
    room.passes(days=1)
    again = await room.ingest(claim(SEATTLE, source_message_ids=("m1",)))
    assert (again.inserted, again.reinforced) == (0, 0)
    assert await room.facts() == [before]
    assert kinds(room.last) == []


async def test_a_mention_by_somebody_else_weighs_more() -> None:
    room = Room()
    await room.hears("I live in Seattle", claim(SEATTLE))
    room.says("He lives in Seattle", "x1", user="user-2")
    await room.ingest(claim(SEATTLE, subject="user-1", source_message_ids=("x1",)))
    [fact] = await room.facts()
    assert fact.confidence == pytest.approx(0.8)
    assert fact.speakers == ("user-1", "user-2")


async def test_third_party_claims_begin_with_less_confidence() -> None:
    room = Room()
    room.says("John lives in Seattle", "x1", user="user-2")
    await room.ingest(claim("John lives in Seattle", subject="John", source_message_ids=("x1",)))
    [fact] = await room.facts("user-1")
    assert (fact.provenance, fact.confidence, fact.speaker) == ("third_party", 0.4, "user-2")


async def test_the_agent_is_no_source_for_what_it_says_of_others() -> None:
    room = Room()
    await room.hears("I live in Seattle", claim(SEATTLE))
    room.replies("You live in Seattle and have a cat, right?", "a1")
    found = await room.ingest(
        claim(SEATTLE, source_message_ids=("a1",)),
        claim(CAT, source_message_ids=("a1",)),
        claim(SEATTLE, already_known=True, source_message_ids=("a1",)),
    )
    assert (found.inserted, found.reinforced) == (0, 0)
    [fact] = await room.facts()
    assert (fact.claim, fact.mention_count, fact.confidence) == (SEATTLE, 1, 0.6)


async def test_the_agent_is_a_source_for_what_it_says_of_itself() -> None:
    room = Room()
    room.says("Tell me about you")
    room.replies("I was made in Oslo", "a1")
    await room.ingest(claim("Sarah was made in Oslo", subject="Sarah", source_message_ids=("a1",)))
    assert [fact.claim for fact in await room.facts(AGENT)] == ["Sarah was made in Oslo"]


async def test_two_evaluators_of_one_turn_make_one_mention(any_store: BaseStore) -> None:
    """Even if one of them does not say which message it was, and so means the newest."""
    room = Room(any_store)
    room.says("I live in Seattle", "m1")
    room.says("It is nice", "m2")
    turn: dict[str, Any] = {"run_key": "run"}
    first = await room.ingest(claim(SEATTLE, source_message_ids=("m1",)), **turn)
    second = await room.ingest(claim(SEATTLE, "status"), evaluator="REFLECTION", **turn)
    assert (first.inserted, second.inserted, second.reinforced) == (1, 0, 0)
    [fact] = await room.facts()
    assert (fact.mention_count, fact.confidence, fact.origin["evaluator"]) == (1, 0.6, "GET_FACTS")


async def test_a_batch_that_says_a_thing_twice_says_it_once() -> None:
    room = Room()
    room.says("I live in Seattle", "m1")
    room.says("Yes, Seattle", "m2")
    found = await room.ingest(
        claim(SEATTLE, source_message_ids=("m1",)), claim(f"  {SEATTLE}. ", source_message_ids=("m2",))
    )
    [fact] = await room.facts()
    assert (found.inserted, fact.mention_count, fact.source_message_ids) == (1, 1, ("m1", "m2"))


@pytest.mark.lengthy
async def test_twenty_turns_at_once_make_one_record_with_twenty_mentions(any_store: BaseStore) -> None:
    clock = iter(START + timedelta(seconds=n) for n in range(10_000))
    rooms = [Room(any_store, room_id=f"room-{n % 5}", clock=lambda: next(clock)) for n in range(20)]
    await asyncio.gather(
        *(room.hears("I live in Seattle", claim(SEATTLE), id=f"m{n}") for n, room in enumerate(rooms))
    )
    [fact] = await rooms[0].facts()
    assert fact.mention_count == len(fact.source_message_ids) == 20
    assert {*fact.room_ids} == {f"room-{n}" for n in range(5)}
    assert fact.confidence == 0.99


# Known claims -------------------------------------------------------------------------------------


async def test_known_claims_are_confirmed_and_never_inserted() -> None:
    room = Room()
    nothing = await room.hears("Cats!", claim(CAT, already_known=True))
    assert (nothing.inserted, await room.facts()) == (0, [])
    await room.hears("I have a cat", claim(CAT))
    found = await room.hears("My cat again", claim(CAT, already_known=True))
    [fact] = await room.facts()
    assert (found.reinforced, fact.mention_count) == (1, 2)
    assert fact.confidence == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("User's home is in Seattle", 2),
        ("User does not live in Seattle", 1),
        ("User lives in Seattle, WA", 2),
    ],
)
async def test_a_known_id_is_believed_if_the_claim_can_be_the_same(text: str, mentions: int) -> None:
    room = Room()
    await room.hears("I live in Seattle", claim(SEATTLE))
    [known] = await room.facts()
    await room.hears("...", claim(text, already_known=True, known_id=known.id))
    [fact] = await room.facts()
    assert fact.mention_count == mentions


async def test_a_known_id_of_another_subject_is_ignored() -> None:
    other = Room(user="user-2")
    await other.hears("I live in Seattle", claim(SEATTLE))
    [theirs] = await other.facts()
    room = Room(other.store.store)
    await room.hears("Seattle", claim(SEATTLE, already_known=True, known_id=theirs.id))
    assert (await other.facts(), await room.facts()) == ([theirs], [])


# Places of records --------------------------------------------------------------------------------


async def test_statuses_and_opinions_are_no_facts(any_store: BaseStore) -> None:
    room = Room(any_store)
    found = [claim("A"), claim("B", "status"), claim("C", "opinion"), claim("D", in_bio=True)]
    await room.hears("...", *found)
    for kind, expected in (("facts", ["A"]), ("status", ["B"]), ("opinions", [])):
        assert [fact.claim for fact in await room.facts(kinds=(kind,))] == expected


async def test_opinions_are_stored_if_wanted() -> None:
    room = Room(rules=FactRules(store_opinions=True))
    await room.hears("...", claim("User loves jazz", "opinion"))
    assert await room.facts() == []
    assert [fact.type for fact in await room.facts(kinds=("opinions",))] == ["opinion"]


async def test_claims_of_the_bio_are_not_learned_despite_the_model() -> None:
    room = Room(bio=["Sarah is a community manager. She lives in Oslo."])
    await room.hears(
        "...", claim("She  lives in Oslo", subject="agent"), claim("Sarah is a community manager")
    )
    assert await room.facts() + await room.facts(AGENT) == []


@pytest.mark.parametrize("subject", [None, "", "user", "The User", "John", "john", "user-1"])
async def test_a_claim_is_stored_under_its_subject(subject: str | None) -> None:
    room = Room()
    await room.hears("I live in Seattle", claim(SEATTLE, subject=subject))
    [fact] = await room.facts()
    assert fact.subject == "user-1"


async def test_claims_about_absent_people_are_stored_with_their_speaker() -> None:
    room = Room()
    await room.hears("My aunt Emma lives in Rome", claim("Emma lives in Rome", subject="Emma"))
    [fact] = await room.facts()
    assert (fact.subject, fact.provenance, fact.speaker) == ("Emma", "third_party", "user-1")


async def test_in_a_group_a_claim_without_a_subject_is_its_speakers() -> None:
    room = Room(entities=(Entity(id="user-1"), Entity(id="user-2"), Entity(id=AGENT, is_agent=True)))
    room.says("I have a cat", "x1", user="user-2")
    room.says("Nice", "x2")
    await room.ingest(claim(CAT, source_message_ids=("x1",)))
    assert [fact.claim for fact in await room.facts("user-2")] == [CAT]
    assert await room.facts("user-1") == []


async def test_the_record_says_where_it_comes_from() -> None:
    room = Room()
    await room.hears(
        "I live in Seattle",
        claim(SEATTLE, slot="residence.city", value="Seattle"),
        checkpoint_id="c1",
    )
    [fact] = await room.facts()
    assert fact.origin == {
        "thread_id": "room-1", "node": "reply", "evaluator": "GET_FACTS", "checkpoint_id": "c1",
    }  # fmt: skip
    assert (fact.slot, fact.value, fact.room_ids, fact.agent_id) == (
        "residence.city", "Seattle", ("room-1",), AGENT,
    )  # fmt: skip


async def test_statuses_are_not_believed_for_ever(any_store: BaseStore) -> None:
    room = Room(any_store, rules=FactRules(status_ttl=timedelta(days=2)))
    await room.hears("I am in Paris", claim("User is in Paris", "status"))
    room.passes(days=1)
    await room.hears("Still in Paris", claim("User is in Paris", "status"))
    room.passes(days=1, hours=23)
    assert [fact.mention_count for fact in await room.facts()] == [2]
    room.passes(hours=1)
    assert await room.facts() == []


# Candidates and relations -------------------------------------------------------------------------


async def test_claims_that_are_alike_are_compared_by_a_model_in_one_question() -> None:
    room = Room(indexed("seattle", "cat"), relations("duplicate", "unrelated"))
    await room.hears("...", claim(SEATTLE), claim(CAT))
    assert room.model is not None
    before = room.model.calls
    await room.hears("...", claim("User resides in Seattle"), claim("User has another cat"))
    assert room.model.calls - before == 1
    facts = {fact.claim: fact.mention_count for fact in await room.facts()}
    assert facts == {SEATTLE: 2, CAT: 1, "User has another cat": 1}


@pytest.mark.parametrize("of", ["model", "rule"])
@pytest.mark.parametrize(
    ("known", "new"),
    [
        (SEATTLE, "User does not live in Seattle"),
        ("User has 2 kids", "User has 3 kids"),
        ("Balance: -10 USD", "Balance: +10 USD"),
        ("The limit is 1.5", "The limit is 1 5"),
        ("User never smokes", "User smokes"),
    ],
)
async def test_opposites_are_two_records_even_if_the_model_calls_them_equal(
    of: str, known: str, new: str
) -> None:
    """All texts have the same vector here: a score of 1.0 for each pair."""
    room = Room(indexed(), *([relations("duplicate")] if of == "model" else []))
    await room.hears("...", claim(known))
    await room.hears("...", claim(new))
    assert {fact.claim: fact.mention_count for fact in await room.facts()} == {known: 1, new: 1}


async def test_case_of_identifiers_makes_two_claims() -> None:
    room = Room(indexed())
    await room.hears("...", claim("The variable is API_TOKEN"))
    await room.hears("...", claim("The variable is api_token"))
    assert len(await room.facts()) == 2


async def test_without_a_model_only_the_same_words_are_the_same_claim() -> None:
    """All texts have the same vector here; similarity alone decides nothing."""
    room = Room(indexed())
    await room.hears("...", claim("User works at a tech startup"))
    found = await room.hears("...", claim("User is employed by a technology start-up company"))
    again = await room.hears("...", claim("User works at a  tech startup."))
    assert (found.inserted, again.reinforced) == (1, 1)


async def test_words_in_common_never_make_two_claims_the_same(any_store: BaseStore) -> None:
    room = Room(any_store)
    await room.hears("...", claim("User works at a small tech startup"))
    await room.hears("...", claim("User works at a tech startup"))
    assert [fact.mention_count for fact in await room.facts()] == [1, 1]


async def test_records_that_have_no_score_are_no_candidates() -> None:
    room = Room(indexed("seattle"), relations("duplicate"))
    await room.store.store.aput(("arbiter", AGENT, "facts", "user-1"), "x", {"note": "no claim"}, index=False)
    await room.hears("...", claim(SEATTLE))
    assert room.model is not None
    assert room.model.calls == 0
    assert [fact.claim for fact in await room.facts()] == [SEATTLE]


async def heard_from(room: Room, user: str, text: str, **fields: Any) -> Any:
    """A claim about the user of the room, made by somebody."""
    said = room.says("...", user=user)
    return await room.ingest(claim(text, subject="user-1", source_message_ids=(str(said.id),), **fields))


async def test_a_contradiction_of_two_speakers_puts_both_claims_in_doubt(
    any_indexed_store: BaseStore,
) -> None:
    room = Room(any_indexed_store, relations("contradicts"))
    allergic, not_allergic = "User is allergic to nuts", "User is not allergic to nuts"
    await room.hears("...", claim(allergic))
    found = await heard_from(room, "user-2", not_allergic)
    old, new = await room.fact(allergic), await room.fact(not_allergic)
    assert (old.state, old.confidence, old.contradicts) == ("disputed", 0.3, (new.id,))
    assert (new.state, new.confidence, new.contradicts) == ("disputed", 0.4, (old.id,))
    assert found.conflicts == ((old.id, new.id),)
    assert room.last is not None
    [event] = room.last.events[-1:]
    assert (event.kind, event.speaker, event.fact_id, event.other_id) == (
        "contradicted", "user-2", old.id, new.id,
    )  # fmt: skip


async def test_repeating_a_disputed_claim_resolves_the_dispute(any_indexed_store: BaseStore) -> None:
    room = Room(any_indexed_store, relations("contradicts"))
    await room.hears("...", claim("User is allergic to nuts"))
    await heard_from(room, "user-2", "User is not allergic to nuts")
    room.passes(hours=1)
    found = await room.hears("...", claim("User is allergic to nuts"))
    old, new = await room.fact("User is allergic to nuts"), await room.fact("User is not allergic to nuts")
    assert (old.state, old.mention_count) == ("active", 2)
    assert (new.state, new.superseded_by, new.valid_to) == ("superseded", old.id, room.now)
    assert found.superseded == 1


@pytest.mark.parametrize("words", ["User is not allergic to nuts", "Nuts are no problem for the user"])
async def test_who_changes_over_to_the_other_side_ends_the_dispute(words: str) -> None:
    """In the same words, or in a statement of its own that replaces the old one."""
    room = Room(indexed(), relations("contradicts"), relations("supersedes", "duplicate"))
    await room.hears("...", claim("User is allergic to nuts"))
    await heard_from(room, "user-2", "User is not allergic to nuts")
    await room.hears("Oh, he is right", claim(words))
    states = {fact.claim: fact.state for fact in await room.facts()}
    assert states.pop("User is allergic to nuts") == "superseded"
    assert {*states.values()} == {"active"}


async def test_others_cannot_overrule_a_self_reported_claim() -> None:
    room = Room(indexed(), relations("contradicts"))
    room.says("John has a dog", "x1", user="user-2")
    await room.ingest(claim("John has a dog", subject="John", source_message_ids=("x1",)))
    await room.hears("I have no dog", claim("John has no dog", subject="John"))
    room.says("John does have a dog", "x2", user="user-2")
    await room.ingest(claim("John has a dog", subject="John", source_message_ids=("x2",)))
    assert {fact.state for fact in await room.facts()} == {"disputed"}
    await room.hears("I have no dog", claim("John has no dog", subject="John"))
    assert (await room.fact("John has no dog")).state == "active"


async def test_a_change_supersedes_and_keeps_history(any_indexed_store: BaseStore) -> None:
    room = Room(any_indexed_store, relations("supersedes"))
    await room.hears("...", claim(SEATTLE))
    room.passes(days=3)
    found = await room.hears("I moved to Portland", claim("User lives in Portland"))
    old, new = await room.fact(SEATTLE), await room.fact("User lives in Portland")
    assert (old.state, old.superseded_by, old.valid_to, old.confidence) == (
        "superseded", new.id, room.now, 0.6,
    )  # fmt: skip
    assert (new.state, new.supersedes, new.confidence) == ("active", old.id, 0.6)
    assert (found.superseded, kinds(room.last)) == (1, ["superseded"])
    assert [fact.claim for fact in await room.facts(state="active")] == [new.claim]


async def test_a_claim_that_becomes_true_again_gets_a_new_record() -> None:
    room = Room(indexed("lives"), relations("supersedes"))
    for city in ("Seattle", "Portland", "Seattle"):
        room.passes(days=1)
        await room.hears(f"I live in {city}", claim(f"User lives in {city}"))
    states = [(fact.claim, fact.state) for fact in await room.facts()]
    assert states == [
        (SEATTLE, "superseded"), ("User lives in Portland", "superseded"), (SEATTLE, "active"),
    ]  # fmt: skip
    room.passes(days=1)
    await room.hears("Seattle", claim(SEATTLE))
    assert [(fact.mention_count, fact.state) for fact in await room.facts(state="active")] == [(2, "active")]


async def test_rereading_the_source_of_a_superseded_fact_does_not_revive_it() -> None:
    room = Room(indexed("lives"), relations("supersedes"))
    await room.hears("...", claim(SEATTLE), id="m1")
    await room.hears("...", claim("User lives in Portland"), id="m2")
    before = await room.facts()
    await room.ingest(claim(SEATTLE, source_message_ids=("m1",)))
    assert await room.facts() == before


async def test_without_a_model_other_values_of_a_slot_replace_each_other() -> None:
    room = Room(indexed("lives"))
    city = {"slot": "residence.city"}
    await room.hears("...", claim("User is in Oslo", "status", value="Oslo", **city))
    await room.hears("...", claim("User is in Rome", "status", value="Rome", **city))
    assert [f.claim for f in await room.facts(state="active")] == ["User is in Rome"]
    await room.hears("...", claim("User's birthday is in May", slot="birth.month", value="May"))
    await room.hears("...", claim("User's birthday is in June", slot="birth.month", value="June"))
    assert (await room.fact("User's birthday is in May")).state == "superseded"
    await heard_from(room, "user-2", "User's birthday is in July", slot="birth.month", value="July")
    assert len(await room.facts(state="disputed")) == 2


async def test_a_fact_ends_a_status_and_a_status_ends_no_fact() -> None:
    """Looking for a job, got one, three months in it."""
    room = Room(indexed("job"), relations("ends"))
    looking, got, months = (
        "User is looking for a job", "User got a new job", "User has been at the job for 3 months",
    )  # fmt: skip
    await room.hears("...", claim(looking, "status"))
    room.passes(days=1)
    t1 = room.now
    await room.hears("...", claim(got))
    assert kinds(room.last) == ["ended"]
    room.passes(days=1)
    await room.hears("...", claim(months, "status"))
    ended = await room.fact(looking)
    assert (ended.state, ended.valid_to) == ("superseded", t1)
    assert {f.claim for f in await room.facts(state="active")} == {got, months}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("User is allergic to nuts", "User is not allergic to nuts"),
        ("User is 34 years old", "User is 43 years old"),
        ("User's favourite job is baker", "User's favourite job is now pilot"),
    ],
)
async def test_the_newest_statement_of_a_speaker_holds(first: str, second: str) -> None:
    """Also where the model that compares the claims calls it a contradiction."""
    room = Room(None, relations("contradicts"))
    await room.hears("...", claim(first, slot="x", value="1"))
    found = await room.hears("...", claim(second, slot="x", value="2"))
    old, new = await room.fact(first), await room.fact(second)
    assert (old.state, old.confidence, new.state, new.supersedes) == ("superseded", 0.6, "active", old.id)
    assert (found.superseded, found.conflicts, kinds(room.last)) == (1, (), ["superseded"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("User is allergic to nuts", "User is not allergic to nuts"),
        ("User moved to Oslo in 2010", "User moved to Oslo in 2012"),
        ("User lives in Seattle", "User lives in New York"),
    ],
)
@pytest.mark.parametrize("relation", ["contradicts", "corrects"])
async def test_users_cannot_correct_the_statements_of_somebody_else(
    first: str, second: str, relation: str
) -> None:
    room = Room(None, relations(relation))
    await room.hears("...", claim(first, slot="x", value="1"))
    await heard_from(room, "user-2", second, slot="x", value="2")
    assert [fact.state for fact in await room.facts()] == ["disputed", "disputed"]


async def test_a_refinement_is_a_mention_of_the_coarser_one() -> None:
    room = Room(indexed("seattle"), relations("refines"))
    await room.hears("...", claim(SEATTLE))
    found = await room.hears("...", claim("User lives in the Ballard neighborhood of Seattle"))
    old, new = await room.fact(SEATTLE), await room.fact("User lives in the Ballard neighborhood of Seattle")
    assert (old.state, old.mention_count, new.refines, new.state) == ("active", 2, old.id, "active")
    assert (found.refined, found.inserted) == (1, 1)


async def test_refinements_are_superseded_with_the_refined_fact() -> None:
    room = Room(indexed("seattle", "lives"), relations("refines"), relations("supersedes", "unrelated"))
    await room.hears("...", claim(SEATTLE))
    await room.hears("...", claim("User lives in Ballard, Seattle"))
    await room.hears("...", claim("User lives in Portland"))
    assert {f.claim: f.state for f in await room.facts()} == {
        SEATTLE: "superseded",
        "User lives in Ballard, Seattle": "superseded",
        "User lives in Portland": "active",
    }


async def test_the_end_of_a_fact_can_be_dated() -> None:
    room = Room(indexed(), relations("supersedes"))
    await room.hears("...", claim(SEATTLE))
    since = START - timedelta(days=10)
    await room.hears("...", claim("User lives in Portland", valid_from=since))
    assert (await room.fact(SEATTLE)).valid_to == since


async def test_a_late_evaluation_does_not_undo_a_later_turns_findings() -> None:
    room = Room(indexed(), relations("supersedes"))
    late = room.now
    room.passes(hours=1)
    await room.hears("...", claim("User lives in Portland"))
    [before] = await room.facts()
    room.says("I live in Seattle", "x")
    found = await room.ingest(claim(SEATTLE, source_message_ids=("x",)), ended_at=late)
    assert await room.fact(before.claim) == before
    assert (found.superseded, found.inserted) == (0, 1)
    assert (await room.fact(SEATTLE)).last_seen_at == late


async def test_a_late_mention_counts_and_does_not_make_the_record_older() -> None:
    room = Room()
    late = room.now
    room.passes(hours=1)
    await room.hears("...", claim(SEATTLE))
    room.says("Seattle", "x")
    await room.ingest(claim(SEATTLE, source_message_ids=("x",)), ended_at=late)
    [fact] = await room.facts()
    assert (fact.mention_count, fact.last_seen_at) == (2, room.now)


@pytest.mark.parametrize("said", ["no idea", RuntimeError("down"), '{"relations": [{"pair": 1}]}'])
async def test_a_comparison_that_fails_is_made_by_rule(said: Any) -> None:
    room = Room(indexed(), said)
    await room.hears("...", claim("User is in Oslo", "status", slot="place", value="Oslo"))
    found = await room.hears("...", claim("User is in Rome", "status", slot="place", value="Rome"))
    assert (found.inserted, found.superseded) == (1, 1)


async def test_a_comparison_without_budget_is_made_by_rule() -> None:
    room = Room(indexed(), relations("unrelated"))
    room.budget = 0
    await room.hears("...", claim("User is in Oslo", "status", slot="place", value="Oslo"))
    await room.hears("...", claim("User is in Rome", "status", slot="place", value="Rome"))
    assert room.model is not None
    assert (len(await room.facts(state="active")), room.model.calls) == (1, 0)


async def test_a_batch_that_contradicts_itself_is_compared_with_itself() -> None:
    room = Room()
    room.says("I lived in Oslo, now I moved to Rome", "m1")
    await room.ingest(
        claim("User lives in Oslo", slot="city", value="Oslo", source_message_ids=("m1",)),
        claim("User now lives in Rome", slot="city", value="Rome", source_message_ids=("m1",)),
    )
    assert [f.claim for f in await room.facts(state="active")] == ["User now lives in Rome"]
    assert (await room.fact("User lives in Oslo")).state == "superseded"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (claim("User has three grey cats"), claim("User has two grey cats", corrects=("m1",))),
        (
            claim("User has been in the country since 1", slot="mood", value="glad"),
            claim("User has been in the country since 99", slot="mood", value="sad"),
        ),
    ],
    ids=["corrected", "of one slot"],
)
async def test_a_claim_replaces_the_one_of_its_batch_that_it_means_among_many(
    first: Claim, last: Claim
) -> None:
    room = Room()
    room.says("I have been in many countries", "m1")
    room.says("No, it is otherwise", "m2")
    between = [claim(f"User has been in the country since {year}") for year in range(2, 14)]
    said = [replace(each, source_message_ids=("m1",)) for each in (first, *between)]
    await room.ingest(*said, replace(last, source_message_ids=("m2",)))
    assert (await room.fact(first.claim)).state in ("superseded", "corrected")


async def test_a_claim_is_compared_with_few_claims_of_its_batch_however_many_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Pair] = []

    async def adjudicate(pairs: Sequence[Pair], *args: Any) -> list[Relation]:
        compared.extend(pairs)
        return ["unrelated" for _ in pairs]

    monkeypatch.setattr(_ingest, "adjudicate", adjudicate)
    room = Room()
    room.says("I own many things", "m1")
    claims = [
        claim(f"User owns thing number {n} of the house", source_message_ids=("m1",)) for n in range(80)
    ]
    assert (await room.ingest(*claims)).inserted == 80
    assert len(compared) <= 80 * room.rules.candidates
    assert compared[-1].known.claim == claims[-2].claim


class Crashing(InMemoryStore):
    """Raises for a claim while it is set to."""

    crashes_at = ""

    async def aput(self, namespace: Any, key: str, value: Any, index: Any = None, **options: Any) -> None:
        if self.crashes_at and value.get("claim") == self.crashes_at:
            raise OSError("disk full")
        await super().aput(namespace, key, value, index, **options)


async def test_a_crash_between_two_writes_is_mended_by_the_same_claim() -> None:
    store = Crashing()
    room = Room(store, relations("contradicts"))
    await room.hears("...", claim("User has a dog"), id="m1")
    room.says("...", "m2", user="user-2")
    new = claim("User has no dog", subject="user-1", source_message_ids=("m2",))
    store.crashes_at = new.claim
    with pytest.raises(OSError):
        await room.ingest(new, run_key="run")
    [old] = await room.facts()
    assert old.state == "disputed"
    store.crashes_at = ""
    found = await room.ingest(new, run_key="run")
    old, made = await room.fact("User has a dog"), await room.fact(new.claim)
    assert (old.confidence, old.contradicts, made.contradicts) == (0.3, (made.id,), (old.id,))
    assert (found.inserted, made.state) == (1, "disputed")


# Chaining -----------------------------------------------------------------------------------------


async def test_inferences_are_only_taken_in_if_wanted() -> None:
    room = Room()
    await room.hears("...", claim("User works at a startup"), claim("The startup is in Seattle"))
    premises = tuple(fact.id for fact in await room.facts())
    found = await room.ingest(claim("User works in Seattle", derived_from=premises))
    assert (found.inserted, len(await room.facts())) == (0, 2)


async def test_an_inference_is_retracted_with_its_premise(any_indexed_store: BaseStore) -> None:
    room = Room(any_indexed_store, rules=FactRules(chaining=True))
    works, where, both = "User works at a startup", "The startup is in Seattle", "User works in Seattle"
    await room.hears("...", claim(works, slot="job", value="startup"), claim(where))
    premises = ((await room.fact(works)).id, (await room.fact(where)).id)
    for _ in range(2):
        room.says("...")
        await room.ingest(claim(both, derived_from=premises))
    inferred = await room.fact(both)
    assert inferred.provenance == "inferred"
    assert inferred.confidence == pytest.approx(0.6 * 0.6 * 0.8)
    assert (inferred.derived_from, inferred.mention_count) == (premises, 1)
    await room.hears("...", claim("User works at a bank now", slot="job", value="bank"))
    states = {fact.claim: fact.state for fact in await room.facts()}
    assert states == {
        works: "superseded", where: "active", both: "retracted", "User works at a bank now": "active",
    }  # fmt: skip


async def test_an_inference_from_unknown_facts_is_dropped() -> None:
    room = Room(rules=FactRules(chaining=True))
    await room.hears("...", claim("User works at a startup"))
    [known] = await room.facts()
    await room.ingest(claim("User works in Seattle", derived_from=(known.id, "nothing")))
    assert await room.facts() == [known]


@pytest.fixture
def embeddings() -> KeywordEmbeddings:
    """All claims are alike."""
    return KeywordEmbeddings()
