""" "I'm Ada" makes Ada the user, for the claims of that user alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory import open_store
from arbiter.memory.facts._own_names import introduces
from tests.memory.dialogue_support import Chat, fact, status, texts

SEATTLE, PORTLAND = "Ada lives in Seattle", "User lives in Portland"
HEAR: dict[str, Any] = {
    "in Seattle": status(SEATTLE, subject="Ada", slot="residence.city", value="Seattle"),
    "to Portland": status(PORTLAND, subject="user-1", slot="residence.city", value="Portland"),
}
IS_ADA: dict[str, Any] = {"name": {"names": {"name": "Ada"}}}


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_users_own_name_is_the_user(any_store: BaseStore, asynchronous: bool) -> None:
    """Also if the model only uses the name as a subject."""
    chat = Chat(HEAR, "supersedes", store=any_store, asynchronous=asynchronous)
    await chat.say("Hi, I'm Ada. I live in Seattle.")
    seattle = await chat.fact(SEATTLE)
    assert (seattle.subject, seattle.provenance, seattle.confidence) == ("user-1", "self_reported", 0.6)
    await chat.say("I moved to Portland.", room="r2")
    assert await chat.known() == [PORTLAND]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Mein Name tut nichts zur Sache, aber alle nennen mich Ada", "Ada"),
        ("人们都叫我小爱 name", "小爱"),
        ("Tout le monde dit Ada, c'est moi", "Ada"),
    ],
)
async def test_a_model_hears_a_name_in_any_language(text: str, name: str) -> None:
    says = {text: {"names": {"name": name}}}
    chat = Chat({text: status(f"{name} lives in Rome", subject=name)}, says=says)
    await chat.say(text)
    (lives,) = await chat.facts()
    assert (lives.subject, lives.provenance) == ("user-1", "self_reported")


async def test_what_was_stored_of_a_third_person_comes_home(any_store: BaseStore) -> None:
    """In another thread, on another day; compared with what is known of the user since then."""
    likes = "Ada likes jazz"
    chat = Chat(
        {**HEAR, "jazz": fact(likes, subject="Ada")},
        {(PORTLAND, SEATTLE): "contradicts", (SEATTLE, PORTLAND): "supersedes"},
        says=IS_ADA,
        store=any_store,
    )
    await chat.say("Ada lives in Seattle and likes jazz. Yes, in Seattle.", room="r1")
    await chat.say("Ada likes jazz.", room="r1b")
    assert {one.subject for one in await chat.facts()} == {"Ada"}
    chat.pass_by(days=1)
    await chat.say("I moved to Portland.", room="r2")
    chat.pass_by(days=1)
    await chat.say("You can call me by my name, Ada.", room="r3")
    assert await chat.known() == [likes, PORTLAND]
    assert {one.subject for one in await chat.facts()} == {"user-1"}
    jazz, seattle = await chat.fact(likes), await chat.fact(SEATTLE)
    assert (jazz.provenance, jazz.mention_count, jazz.confidence) == ("self_reported", 2, 0.72)
    assert (seattle.state, seattle.superseded_by) == ("superseded", (await chat.fact(PORTLAND)).id)


async def test_the_links_of_moved_records_stay() -> None:
    """A history of a third person: Rome, then Oslo."""
    rome, oslo = "Ada lives in Rome", "Ada lives in Oslo"
    hear = {"in Rome": status(rome, subject="Ada"), "in Oslo": status(oslo, subject="Ada")}
    chat = Chat(hear, {(rome, oslo): "supersedes"}, says=IS_ADA)
    await chat.say("Ada lives in Rome")
    await chat.say("Ada now lives in Oslo")
    await chat.say("By the way, my name is Ada.")
    first, second = await chat.fact(rome), await chat.fact(oslo)
    assert {first.subject, second.subject} == {"user-1"}
    assert (first.state, first.superseded_by, second.supersedes) == ("superseded", second.id, first.id)


class Unsteady(InMemoryStore):
    """Fails at one write."""

    left: int | None = None

    def fail(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise OSError("the disk is full")

    async def aput(self, *arguments: Any, **options: Any) -> None:
        self.fail()
        await super().aput(*arguments, **options)

    async def adelete(self, *arguments: Any, **options: Any) -> None:
        self.fail()
        await super().adelete(*arguments, **options)


@pytest.mark.lengthy
async def test_one_home_after_a_crash_in_between() -> None:
    """Whichever write fails: the same messages are read again, and nothing is there twice."""
    for failing in range(1, 12):
        store = Unsteady()
        chat = Chat(HEAR, "supersedes", says=IS_ADA, store=store, conversation_length=1)
        await chat.say("Ada lives in Seattle. I mean in Seattle, WA.")
        store.left = failing
        await chat.say("my name: Ada", id="m9")
        store.left = None
        chat.pass_by(hours=2)
        await chat.say("hello")
        assert [(one.claim, one.subject, one.mention_count) for one in await chat.facts()] == [
            (SEATTLE, "user-1", 1)
        ], failing


async def test_a_name_survives_the_process_and_is_exported_and_forgotten(tmp_path: Any) -> None:
    later = {"jazz": fact("Ada likes jazz", subject="ada")}
    with open_store(tmp_path / "memory.db") as store:
        await Chat(HEAR, says=IS_ADA, store=store).say("My name is Ada.", id="m1")
    with open_store(tmp_path / "memory.db") as store:
        chat = Chat(later, store=store)
        await chat.say("Ada loves jazz, you know.", room="r2")
        assert [one.subject for one in await chat.facts()] == ["user-1"]
        exported = await chat.cycle.memory.aexport("user-1")
        assert [[one["name"] for one in part["names"]] for part in exported["own_names"]] == [["Ada"]]
        await chat.cycle.memory.aforget("user-1")
        assert (await chat.cycle.memory.aexport("user-1"))["own_names"] == []


async def test_a_name_given_in_an_earlier_message_is_the_users() -> None:
    """The model lists no names: it notes one as a fact, or not at all."""
    for first in ({}, {"I'm Ada": fact("The user is called Ada", slot="first_name", value="Ada")}):
        chat = Chat({**first, "live in Rome": fact("Ada lives in Rome", subject="Ada")})
        await chat.say("Hi, I'm Ada.")
        await chat.say("I live in Rome.")
        assert {one.subject for one in await chat.facts()} == {"user-1"}


async def test_a_name_in_a_slot_is_one_in_any_language_and_a_pets_is_not() -> None:
    hear = {
        "Mainītu": fact("Lietotāju sauc Ada", slot="name", value="Ada"),
        "kaķis": fact("The user's cat is called Pixel", slot="pet.name", value="Pixel"),
        "Romā": fact("Ada dzīvo Romā", subject="Ada"),
        "guļ": fact("Pixel guļ", subject="Pixel"),
    }
    chat = Chat(hear)
    for text in ("Mainītu vārdu, bet saka Ada.", "Mans kaķis ir Pixel.", "Dzīvoju Romā.", "Pixel guļ."):
        await chat.say(text)
    assert (await chat.fact("Ada dzīvo Romā")).subject == "user-1"
    assert (await chat.fact("Pixel guļ")).subject == "Pixel"


# Others -------------------------------------------------------------------------------------------


async def test_two_users_of_one_name_stay_apart() -> None:
    hear = {
        "in Rome": status("Alex lives in Rome", subject="Alex"),
        "in Kiel": status("Alex lives in Kiel", subject="Alex"),
    }
    chat = Chat(hear, "supersedes", says={"I'm Alex": {"names": {"name": "Alex"}}})
    await chat.say("I'm Alex, I live in Rome", user="alex-1", room="a")
    await chat.say("I'm Alex, I live in Kiel", user="alex-2", room="b")
    assert await chat.known("alex-1") == ["Alex lives in Rome"]
    assert await chat.known("alex-2") == ["Alex lives in Kiel"]


async def test_two_users_of_one_name_stay_apart_in_one_room() -> None:
    hear = {
        "in Rome": status("Alex lives in Rome", subject="Alex"),
        "in Kiel": status("Alex lives in Kiel", subject="Alex"),
    }
    chat = Chat(hear, "supersedes", says={"I'm Alex": {"names": {"name": "Alex"}}}, conversation_length=4)
    for user in ("alex-1", "alex-2"):
        await chat.cycle.memory.aregister_entity(user, "Alex")
    await chat.say(
        HumanMessage("I'm Alex, I live in Rome", additional_kwargs={"entity_id": "alex-1"}),
        HumanMessage("I'm Alex, I live in Kiel", additional_kwargs={"entity_id": "alex-2"}),
        user="alex-1",
    )
    assert await chat.known("alex-1") == ["Alex lives in Rome"]
    assert await chat.known("alex-2") == ["Alex lives in Kiel"]


async def test_what_others_have_told_of_an_ada_stays_theirs() -> None:
    sister = "Ada lives in Rome"
    chat = Chat({**HEAR, "sister": fact(sister, subject="Ada")}, says=IS_ADA)
    await chat.say("My sister Ada lives in Rome", user="bob", room="bob")
    await chat.say("My sister Ada lives in Rome", user="eve", room="shared")
    await chat.say("My name is Ada", user="user-1", room="shared")
    assert (await chat.known("user-1"), await chat.notes()) == ([], [])
    assert [one.subject for one in (*await chat.facts("bob"), *await chat.facts("eve"))] == ["Ada", "Ada"]


@pytest.mark.parametrize("text", ["I'm Bob. I live in Rome.", "name: Bob, in Rome"])
async def test_an_impostor_gets_and_gives_nothing(text: str) -> None:
    """Alice says that she is Bob, whom the program knows as another person."""
    hear = {"hunt": fact("Bob hunts", subject="bob"), "in Rome": fact("Bob lives in Rome", subject="Bob")}
    chat = Chat(hear, says={"Bob": {"names": {"name": "Bob"}}})
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("I hunt", user="bob", room="b")
    await chat.say(text, user="alice", room="a")
    assert await chat.known("bob") == ["Bob hunts"]
    assert await chat.known("alice") == ["Bob lives in Rome"]
    assert (await chat.cycle.memory.aexport("alice"))["own_names"] == []
    assert "hunts" not in str(await chat.notes(user="alice"))


async def test_a_known_user_who_takes_another_name_keeps_friends_apart() -> None:
    """Ada has told of her friend Bob, and then calls herself Bob."""
    friend = "Bob lives in Rome"
    chat = Chat(
        {"friend": fact(friend, subject="Bob")},
        says={"I'm Ada": {"names": {"name": "Ada"}}, "I'm Bob": {"names": {"name": "Bob"}}},
    )
    for text in ("I'm Ada", "My friend Bob lives in Rome", "Haha, I'm Bob"):
        await chat.say(text)
    assert [(one.claim, one.subject) for one in await chat.facts()] == [(friend, "Bob")]


async def test_a_model_cannot_invent_a_name() -> None:
    chat = Chat({"Rome": fact("Eve lives in Rome", subject="Eve")}, says={"Rome": {"names": {"name": "Eve"}}})
    await chat.say("My neighbour lives in Rome")
    assert [one.subject for one in await chat.facts()] == ["Eve"]


@pytest.mark.parametrize(
    "answer",
    [
        [{"message": "m1", "name": "Ada"}],
        {"message_id": "m1", "name": "Ada"},
        [{"speaker": "user-1", "name": "Ada"}],
        [{"name": 7}, None, {"message_id": "m1", "name": " Ada "}, {"message_id": "m77", "name": "Ada"}],
    ],
)
async def test_names_are_read_tolerantly(answer: Any) -> None:
    chat = Chat({})
    found = {"claims": [{"claim": SEATTLE, "type": "fact", "subject": "Ada"}], "names": answer}
    chat.model.answers[:] = [json.dumps(found)]
    await chat.say("everybody says Ada to me", id="m1")
    assert texts(await chat.facts()) == [SEATTLE]
    assert [one.subject for one in await chat.facts()] == ["user-1"]


@pytest.mark.parametrize(
    "text",
    [
        "Hi, I'm Ada. I live in Seattle.", "i am ada", "Hello there! My name is Ada", "Hey all, call me Ada please",
        "Thanks! I’m Ada, by the way", "Hallo, ich bin Ada.", "Guten Tag, ich heiße Ada und wohne hier",
        "ich bin die Ada", "Bonjour, je m'appelle Ada", "Hola, soy Ada", "Me llamo Ada.", "Ciao, sono Ada",
        "Olá, eu sou a Ada", "Привет, меня зовут Ada", "你好，我叫Ada", "私はAdaです", "Hej, jag heter Ada",
        "Hoi.\nIk ben Ada",
    ],
)  # fmt: skip
def test_an_introduction_is_recognised_in_many_languages(text: str) -> None:
    assert introduces(text, "Ada")


@pytest.mark.parametrize(
    "text",
    [
        "I'm Ada's brother", "My friend Ada lives in Rome", "I am not Ada", "I'm Adam", "She said: \"I'm Ada\"",
        "Ich bin Adas Bruder", "I told him I'm Ada", "私はAdaの兄です", "Ada", "", "I'm with Ada", "Is this Ada?",
        "We watched a film where a robot says I'm Ada",
    ],
)  # fmt: skip
def test_sentences_that_are_not_introductions(text: str) -> None:
    assert not introduces(text, "Ada")
