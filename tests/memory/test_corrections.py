"""People correct slips, change their minds and repeat themselves, in any language, and lose no trust by
it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore

from arbiter.memory import open_store
from tests.memory.dialogue_support import Chat, fact, status
from tests.memory.facts_support import Room, claim, relations

IS_34, IS_43 = "User is 34 years old", "User is 43 years old"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("relation", "state"),
    [("corrects", "corrected"), ("supersedes", "superseded"), ("contradicts", "superseded")],
)
async def test_a_slip_is_not_believed_and_costs_no_trust(
    relation: str, state: str, asynchronous: bool
) -> None:
    """Whatever of these the model calls it."""
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, relation, asynchronous=asynchronous)
    await chat.say("I'm 34.")
    await chat.say("Oops, typo! I mean 43.")
    assert await chat.known() == [IS_43]
    slip, right = await chat.fact(IS_34), await chat.fact(IS_43)
    assert (slip.state, slip.superseded_by, right.confidence) == (state, right.id, 0.6)
    assert await chat.trust() == 50
    assert [line.endswith(IS_43) for line in await chat.notes()] == [True]


async def test_the_model_sees_the_messages_their_speakers_and_times() -> None:
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, "corrects")
    await chat.say("I'm 34.", name="Ada")
    chat.pass_by(minutes=5)
    await chat.say("Oops, typo! I mean 43.", name="Ada")
    (prompt,) = chat.compared
    assert "Message 1 of Ada (id user-1):\n[quoted text begins]\n> I'm 34.\n" in prompt
    assert "Message 2 of Ada (id user-1):\n[quoted text begins]\n> Oops, typo! I mean 43.\n" in prompt
    assert "a fact stated by Ada (id user-1) on 2026-03-14 12:00 UTC in message 1:" in prompt
    assert "a fact stated by Ada (id user-1) on 2026-03-14 12:05 UTC in message 2:" in prompt


async def test_the_compared_messages_are_bounded_and_without_secrets() -> None:
    key = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, "corrects")
    await chat.say(f"I'm 34. My key is {key}. " + "x" * 50_000)
    await chat.say("Off the record: I'm 12.", "Oops, I mean 43. " + "y" * 50_000)
    (prompt,) = chat.compared
    assert "I'm 34." in prompt
    assert key not in prompt
    assert "12" not in prompt.split("Pair 1.")[0].split("oldest first")[1]
    assert len(prompt) < 6_000


@pytest.mark.parametrize("texts", [("I'm 34.", "Oops, I mean 43."), ("Ich bin 34.", "Quatsch, 43!")])
async def test_a_message_that_is_said_to_correct_another_one_does(texts: tuple[str, str]) -> None:
    """Also if the two claims share no slot, and the model only sees a contradiction."""
    right = fact(IS_43, corrects=["m1"])
    chat = Chat({texts[0]: [IS_34, "User lives in Oslo"], texts[1]: right}, {(IS_34, IS_43): "contradicts"})
    await chat.say(texts[0], id="m1")
    await chat.say(texts[1])
    assert await chat.known() == [IS_43, "User lives in Oslo"]
    assert (await chat.fact(IS_34)).state == "corrected"


async def test_a_correction_that_the_comparison_misses_still_corrects_what_it_fits() -> None:
    """The extraction says which message is corrected; the slip is the claim in it that is most alike."""
    chat = Chat({"I'm 34": [IS_34, "User lives in Oslo"], "43": fact(IS_43, corrects=["m1"])}, "unrelated")
    await chat.say("I'm 34 and live in Oslo.", id="m1")
    await chat.say("Oops, 43.")
    assert await chat.known() == [IS_43, "User lives in Oslo"]


@pytest.mark.lengthy
async def test_a_correction_finds_a_slip_that_shares_no_word_with_it(any_store: BaseStore) -> None:
    """Among forty other records of the same room, without embeddings."""
    slip, right = "用户三十四岁", "这个人43了"
    many = [f"用户买了第{number}号商品" for number in range(20)]
    chat = Chat(
        {"34": slip, "shopping": many, "43": fact(right, corrects=["m1"])},
        {(slip, right): "corrects"},
        store=any_store,
    )
    await chat.say("我34岁", id="m1")
    chat.pass_by(hours=1)
    await chat.say("shopping")
    chat.pass_by(hours=1)
    await chat.say("打错了，是43")
    assert (await chat.fact(slip)).state == "corrected"
    assert right in await chat.known()


async def test_users_cannot_correct_the_message_of_somebody_else() -> None:
    chat = Chat({"I'm 34": IS_34, "She is 43": fact(IS_43, subject="ada", corrects=["m1"])}, "corrects")
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("I'm 34.", id="m1", user="ada")
    await chat.say(HumanMessage("She is 43!", additional_kwargs={"entity_id": "bob"}), user="ada")
    assert await chat.known("ada", "disputed") == [IS_34, IS_43]
    assert (await chat.trust("ada"), await chat.trust("bob")) == (50, 50)


async def test_a_correction_can_be_corrected() -> None:
    chat = Chat({"I'm 34": IS_34, "43": IS_43, "34 after all": IS_34}, "corrects")
    for text in ("I'm 34.", "Oops, 43.", "No, 34 after all."):
        chat.pass_by(minutes=1)
        await chat.say(text)
    assert await chat.known() == [IS_34]
    assert sorted(one.state for one in await chat.facts()) == ["active", "corrected", "corrected"]
    assert await chat.trust() == 50


async def test_a_correction_in_the_same_window_wins_in_whatever_order_it_is_listed() -> None:
    room = Room(None, relations("contradicts"))
    room.says("I'm 34.", "m1")
    room.says("Oops, 43.", "m2")
    age: Any = {"slot": "age"}
    await room.ingest(
        claim(IS_43, value="43", source_message_ids=("m2",), **age),
        claim(IS_34, value="34", source_message_ids=("m1",), **age),
    )
    assert [one.claim for one in await room.facts(state="active")] == [IS_43]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("relation", ["corrects", "supersedes", "contradicts", "ends"])
async def test_the_newest_statement_of_a_conversation_holds_although_the_clock_was_set_back(
    relation: str, asynchronous: bool
) -> None:
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, relation, asynchronous=asynchronous)
    await chat.say("I'm 34.")
    chat.pass_by(hours=-1)
    await chat.say("It is 43.")
    assert await chat.known() == [IS_43]
    slip, right = await chat.fact(IS_34), await chat.fact(IS_43)
    assert slip.superseded_by == right.id
    assert slip.first_seen_at <= right.first_seen_at
    assert [line.endswith(IS_43) for line in await chat.notes()] == [True]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("relation", ["corrects", "supersedes", "contradicts"])
async def test_the_newest_statement_of_another_thread_holds_although_the_clock_was_set_back(
    relation: str, asynchronous: bool
) -> None:
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, relation, asynchronous=asynchronous)
    await chat.say("I'm 34.")
    chat.pass_by(hours=-1)
    await chat.say("It is 43.", room="room-2")
    assert await chat.known() == [IS_43]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("room", ["room-1", "room-2"])
async def test_a_statement_holds_again_although_the_clock_was_set_back(room: str, asynchronous: bool) -> None:
    chat = Chat({"I'm 34": IS_34, "43": IS_43}, "supersedes", asynchronous=asynchronous)
    await chat.say("I'm 34.")
    chat.pass_by(minutes=1)
    await chat.say("It is 43.")
    chat.pass_by(hours=-1)
    await chat.say("I'm 34 after all.", room=room)
    assert await chat.known() == [IS_34]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_dispute_begins_although_the_clock_was_set_back(asynchronous: bool) -> None:
    hear = {"rows": fact("Cleo rows", subject="cleo"), "sails": fact("Cleo sails", subject="cleo")}
    chat = Chat(hear, "contradicts", asynchronous=asynchronous)
    await chat.cycle.memory.aregister_entity("cleo", "Cleo")
    await chat.say("Cleo rows", user="ada")
    chat.pass_by(hours=-1)
    await chat.say("Cleo sails", user="bob")
    assert {one.state for one in await chat.facts("cleo")} == {"disputed"}


async def test_an_older_message_read_later_in_other_words_does_not_undo_a_correction(
    any_store: BaseStore,
) -> None:
    """Another evaluator reads the whole conversation again, and words the slip differently."""
    room = Room(any_store, relations("contradicts"))
    room.says("I'm 34.", "m1")
    room.says("Oops, 43.", "m2")
    await room.ingest(claim(IS_43, source_message_ids=("m2",)))
    room.passes(minutes=1)
    await room.ingest(claim("User is 34", source_message_ids=("m1",)), evaluator="REFLECTION")
    assert [one.claim for one in await room.facts(state="active")] == [IS_43]
    assert (await room.fact("User is 34")).superseded_by == (await room.fact(IS_43)).id


@pytest.mark.lengthy
async def test_a_correction_survives_the_end_of_the_process(tmp_path: Any) -> None:
    """Said on one day in one thread, corrected on another in another, by a program started anew."""
    hear = {
        "Ich wohne in Köln": status("Der Nutzer wohnt in Köln"),
        "Bonn": status("Der Nutzer wohnt in Bonn"),
    }
    for room, text in (("monday", "Ich wohne in Köln."), ("friday", "Verschrieben, ich meinte Bonn!")):
        with open_store(tmp_path / "memory.db") as store:
            await Chat(hear, "corrects", store=store).say(text, room=room)
    with open_store(tmp_path / "memory.db") as store:
        chat = Chat(hear, store=store)
        assert await chat.known() == ["Der Nutzer wohnt in Bonn"]
        assert (await chat.fact("Der Nutzer wohnt in Köln")).state == "corrected"


async def test_one_fact_in_two_languages_is_one_record() -> None:
    english, german = "User lives in Cologne", "Der Nutzer wohnt in Köln"
    chat = Chat({"Cologne": english, "Köln": german}, {(english, german): "duplicate"})
    await chat.say("I live in Cologne")
    await chat.say("Ich wohne ja in Köln, wie du weißt")
    assert [(one.claim, one.mention_count) for one in await chat.facts()] == [(english, 2)]


async def test_repeating_oneself_raises_the_confidence_and_earns_no_trust() -> None:
    chat = Chat({"Oslo": "User lives in Oslo"})
    for confidence in (0.6, 0.72, 0.804, 0.8628):
        chat.pass_by(days=1)
        await chat.say("I live in Oslo")
        assert (await chat.fact("User lives in Oslo")).confidence == pytest.approx(confidence)
    assert await chat.trust() == 50


@pytest.mark.lengthy
async def test_a_confirmation_by_somebody_else_speaks_for_the_first_speaker(any_store: BaseStore) -> None:
    """Once, and not for the one who confirms: to repeat what another has said costs nothing."""
    lives = fact("Ada lives in Oslo", subject="ada")
    chat = Chat({"Oslo": lives}, store=any_store)
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("I live in Oslo", user="ada")
    for _ in range(3):
        await chat.say(HumanMessage("She lives in Oslo", additional_kwargs={"entity_id": "bob"}), user="ada")
    assert (await chat.trust("ada"), await chat.trust("bob")) == (55, 50)


@pytest.mark.lengthy
async def test_a_comparison_of_many_claims_stays_small() -> None:
    """Without embeddings the newest facts are candidates, too, but not each with each."""
    first = [f"Fact {number} of the first kind" for number in range(30)]
    second = [f"Andere Aussage {number} {number * 7 + 1} {number * 11 + 2}" for number in range(30)]
    chat = Chat({"first": first, "second": second})
    await chat.say("first")
    await chat.say("second")
    (prompt,) = [prompt for prompt in chat.compared if "Andere" in prompt]
    assert 1 <= prompt.count("The new claim, ") <= 24
    assert max(each.count("The new claim, ") for each in chat.compared) <= 64


@pytest.mark.lengthy
@pytest.mark.parametrize("relation", ["supersedes", "ends", "corrects"])
async def test_others_cannot_replace_the_statements_of_users_about_themselves(relation: str) -> None:
    """It is disputed, until they say so themselves."""
    oslo = status("Ada lives in Oslo", subject="ada", slot="home", value="Oslo", kind="home")
    rome = status("Ada lives in Rome", subject="ada", slot="home", value="Rome", kind="home")
    chat = Chat({"Oslo": oslo, "Rome": rome}, relation)
    chat.cycle.memory.register_entity("ada", "Ada")
    chat.cycle.memory.register_entity("bob", "Bob")

    async def told(who: str, text: str) -> dict[str, str]:
        await chat.say(HumanMessage(text, additional_kwargs={"entity_id": who}), user="ada")
        return {fact.claim: fact.state for fact in await chat.facts("ada")}

    await told("ada", "I live in Oslo")
    assert await told("bob", "Ada lives in Rome now") == dict.fromkeys(
        (oslo["claim"], rome["claim"]), "disputed"
    )
    states = await told("ada", "Right, I live in Rome")
    assert (states[rome["claim"]], states[oslo["claim"]]) == ("active", "superseded")


@pytest.mark.lengthy
async def test_a_dispute_ends_with_its_other_side() -> None:
    """The user has said something else since; what remains is one person's word."""
    cat, dog = fact("Ada has a cat", subject="ada"), fact("Ada has only a dog", subject="ada")
    none = fact("Ada has no cat any more", subject="ada")
    pairs = {(cat["claim"], dog["claim"]): "contradicts", (cat["claim"], none["claim"]): "supersedes"}
    chat = Chat({"I have a cat": cat, "only a dog": dog, "gone": none}, pairs)
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    for who, text in (("ada", "I have a cat"), ("bob", "Ada has only a dog"), ("ada", "The cat is gone")):
        await chat.say(HumanMessage(text, additional_kwargs={"entity_id": who}), user="ada")
        chat.pass_by(days=1)
    assert {one.claim: one.state for one in await chat.facts("ada")} == {
        cat["claim"]: "superseded",
        dog["claim"]: "active",
        none["claim"]: "active",
    }
