""" "I'm Ada" makes Ada the user, for the claims of that user alone."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory import FactRules, open_store
from arbiter.memory.facts._own_names import denies, introduces, tells_of_another
from tests.memory.dialogue_support import Chat, fact, status, texts

SEATTLE, PORTLAND = "Ada lives in Seattle", "User lives in Portland"
HEAR: dict[str, Any] = {
    "in Seattle": status(SEATTLE, subject="Ada", slot="residence.city", value="Seattle"),
    "to Portland": status(PORTLAND, subject="user-1", slot="residence.city", value="Portland"),
}
IS_ADA: dict[str, Any] = {"name": {"names": {"name": "Ada"}}}


@pytest.mark.lengthy
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


@pytest.mark.lengthy
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


@pytest.mark.lengthy
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


@pytest.mark.lengthy
@pytest.mark.parametrize("by", ["agent", "bob", "user-1"])
async def test_a_name_is_still_the_users_after_long_texts(by: str) -> None:
    """Answers and messages of others may be of any length, and of the user's own a part is looked at."""
    chat = Chat({"live in Rome": fact("Ada lives in Rome", subject="Ada")})
    await chat.say("Hi, I'm Ada.")
    for _ in range(3 if by == "user-1" else 10):
        if by == "agent":
            await chat.say("What is new?", AIMessage("A long answer. " * 500))
        else:
            await chat.say("A long text. " * 500, user=by)
    await chat.say("I live in Rome.")
    assert [one.subject for one in await chat.facts()] == ["user-1"]


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


@pytest.mark.parametrize(
    ("friend", "user"),
    [
        ("My friend Ada lives in Rome", "I'm Ada too. I like tea."),
        ("My friend Ada lives in Rome", "My name is Ada, I like tea."),
        ("Ada, my sister, lives in Rome", "Hi, I'm Ada. I like tea."),
        ("Meine Freundin Ada wohnt in Rome", "Ich heiße Ada und mag tea"),
        ("Mon amie Ada habite Rome", "Je m'appelle Ada, moi aussi; tea"),
        ("Ada lives in Rome", "I'm Ada, too, and I like tea"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
async def test_a_friend_of_the_users_name_stays_a_friend(friend: str, user: str, listed: bool) -> None:
    """Also if the model gives the name as the subject of both, and lists it as the user's."""
    hear = {
        "Rome": fact("Ada lives in Rome", subject="Ada"),
        "tea": fact("Ada likes tea", subject="Ada"),
        "Kiel": fact("Ada is moving to Kiel", subject="Ada"),
        "cake": fact("Ada likes cake", subject="Ada"),
    }
    chat = Chat(hear, says={user: {"names": {"name": "Ada"}}} if listed else {})
    await chat.say(friend)
    await chat.say(user, room="friday")
    await chat.say("Ada is moving to Kiel", room="saturday")
    await chat.say("I like cake", room="sunday")
    assert {one.claim: one.subject for one in await chat.facts()} == {
        "Ada lives in Rome": "Ada",
        "Ada likes tea": "user-1",
        "Ada is moving to Kiel": "Ada",
        "Ada likes cake": "user-1",
    }


@pytest.mark.lengthy
async def test_a_friend_of_the_users_name_stays_a_friend_after_many_words_about_another() -> None:
    """However often other friends are mentioned, and at the same cost."""
    chat = Chat(
        {
            "Rome": fact("Ada lives in Rome", subject="Ada"),
            "Bob": fact("Bob sails", subject="Bob"),
            "tea": fact("Ada likes tea", subject="Ada"),
            "Kiel": fact("Ada is moving to Kiel", subject="Ada"),
        }
    )
    await chat.say("My friend Ada lives in Rome")
    for _ in range(17):
        await chat.say("My friend Bob sails")
    [names] = (await chat.cycle.memory.aexport("user-1"))["own_names"]
    assert [one["name"] for one in names["names"]] == ["Ada", "Bob"]
    await chat.say("I'm Ada. I like tea.", room="friday")
    await chat.say("Ada is moving to Kiel", room="saturday")
    subjects = {one.claim: one.subject for one in await chat.facts()}
    assert subjects["Ada likes tea"] == "user-1"
    assert subjects["Ada lives in Rome"] == subjects["Ada is moving to Kiel"] == "Ada"


async def test_a_friend_who_is_mentioned_after_the_users_name_stays_a_friend() -> None:
    """Whether the user gave the name, or the program did."""
    for registered in (False, True):
        chat = Chat({"Rome": fact("Ada lives in Rome", subject="Ada")})
        if registered:
            await chat.cycle.memory.aregister_entity("user-1", "Ada")
        await chat.say("Hi, I'm Ada.")
        await chat.say("My friend Ada lives in Rome.")
        assert [one.subject for one in await chat.facts()] == ["Ada"]


@pytest.mark.lengthy
@pytest.mark.parametrize("everything", [False, True])
async def test_a_name_is_back_when_its_forgetting_is_undone(any_store: BaseStore, everything: bool) -> None:
    """Beside one that was given meanwhile."""
    chat = Chat(
        {"Rome": fact("User lives in Rome"), "jazz": fact("Ada likes jazz", subject="Ada")},
        store=any_store,
        fact_rules=FactRules(undo_within=timedelta(days=1)),
        says={"Eve": {"names": {"name": "Eve"}}, **IS_ADA},
    )
    memory = chat.cycle.memory
    await chat.say("My name is Ada, I live in Rome")
    await memory.aforget("user-1", None if everything else "Rome")
    assert (await memory.aexport("user-1"))["own_names"] == []
    chat.pass_by(hours=1)
    await chat.say("They also say Eve to me")
    assert await memory.aundo("user-1") == 1
    names = [one["name"] for part in (await memory.aexport("user-1"))["own_names"] for one in part["names"]]
    assert names == ["Ada", "Eve"]
    await chat.say("I like jazz", room="elsewhere")
    assert (await chat.fact("Ada likes jazz")).subject == "user-1"


@pytest.mark.lengthy
@pytest.mark.parametrize("listed", [False, True])
async def test_a_name_can_be_taken_back(any_store: BaseStore, listed: bool) -> None:
    """Facts that came home with the name go back, and those that they had replaced hold again."""
    rome, oslo = status("Ada lives in Rome", subject="Ada"), status("User lives in Oslo", subject="user-1")
    denial = "Kidding: that is not me, Ada is not my name" if listed else "Sorry, I'm not Ada."
    chat = Chat(
        {"Oslo": oslo, "lives in Rome": rome, "jazz": fact("Ada likes jazz", subject="Ada")},
        {("User lives in Oslo", "Ada lives in Rome"): "supersedes"},
        says={**IS_ADA, denial: {"names": {"name": "Ada", "is_own": False}}},
        store=any_store,
    )
    await chat.say("I live in Oslo")
    chat.pass_by(hours=1)
    await chat.say("Ada lives in Rome")
    await chat.say("I can tell you my name: Ada")
    assert await chat.known() == ["Ada lives in Rome"]
    assert (await chat.fact("Ada lives in Rome")).subject == "user-1"
    await chat.say(denial)
    await chat.say("Ada likes jazz")
    assert {one.claim: (one.subject, one.state, one.confidence) for one in await chat.facts()} == {
        "User lives in Oslo": ("user-1", "active", 0.6),
        "Ada lives in Rome": ("Ada", "active", 0.4),
        "Ada likes jazz": ("Ada", "active", 0.4),
    }


async def test_the_last_word_on_a_name_holds() -> None:
    chat = Chat({"jazz": fact("Ada likes jazz", subject="Ada")})
    for text in ("I'm Ada.", "I'm not Ada.", "OK, I'm Ada.", "I like jazz"):
        await chat.say(text)
    assert [one.subject for one in await chat.facts()] == ["user-1"]


@pytest.mark.lengthy
async def test_names_of_friends_push_out_no_own_name() -> None:
    friends = [f"Friend{chr(65 + number)}" for number in range(20)]
    hear = {name: fact(f"{name} sails", subject=name) for name in friends}
    chat = Chat({**hear, "jazz": fact("Ada likes jazz", subject="Ada")}, says=IS_ADA)
    await chat.say("My name is Ada")
    for name in friends:
        await chat.say(f"My friend {name} sails")
    await chat.say("I like jazz", room="elsewhere")
    assert (await chat.fact("Ada likes jazz")).subject == "user-1"


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
        "Hoi.\nIk ben Ada", "Benim adım Ada, değil mi?",
    ],
)  # fmt: skip
def test_an_introduction_is_recognised_in_many_languages(text: str) -> None:
    assert introduces(text, "Ada")


async def test_a_turkish_name_is_the_same_in_any_case() -> None:
    chat = Chat({"çay": fact("irem çay sever", subject="irem")})
    await chat.say("BENİM ADIM İREM")
    await chat.say("çay severim")
    await chat.cycle.memory.aregister_entity("user-2", "Işıl")
    chat.hear = {"ışıl": fact("ışıl doktor", subject="ışıl")}
    await chat.say("arkadaşım ışıl doktor")
    assert [one.subject for one in await chat.facts()] == ["user-1"]
    assert await chat.known("user-2") == ["ışıl doktor"]


@pytest.mark.parametrize(
    "text",
    [
        "I'm Ada's brother", "My friend Ada lives in Rome", "I am not Ada", "I'm Adam", "She said: \"I'm Ada\"",
        "Ich bin Adas Bruder", "I told him I'm Ada", "私はAdaの兄です", "Ada", "", "I'm with Ada", "Is this Ada?",
        "We watched a film where a robot says I'm Ada", "Benim adım Ada değil", "私はAdaではありません",
        "私はAdaじゃない", "저는 Ada가 아니에요", "저는 Ada 아닙니다", "What does this do?\n```\nI'm Ada\n```",
        "> I'm Ada\nWho wrote this?",
    ],
)  # fmt: skip
def test_sentences_that_are_not_introductions(text: str) -> None:
    assert not introduces(text, "Ada")


@pytest.mark.parametrize(
    "text",
    [
        "My friend Ada lives in Rome", "my best friend Ada", "I met my sister, Ada, there", "Ada is my boss",
        "her dog Ada", "We have a friend called Ada", "Meine Freundin Ada", "unsere kleine Schwester Ada ist da",
        "Ada ist meine Schwester", "mi amiga Ada", "mon amie Ada", "minha amiga Ada", "mijn zus Ada", "min syster Ada",
        "моя подруга Ada", "我的朋友Ada住在罗马", "私の友達のAdaはローマにいる", "友達のAdaはローマにいる",
        "내 친구 Ada", "I'm Ada too", "Ada, a friend of mine",
    ],
)  # fmt: skip
def test_somebody_else_of_a_name_is_recognised_in_many_languages(text: str) -> None:
    assert tells_of_another(text, "Ada")


@pytest.mark.parametrize(
    "text",
    [
        "My name is Ada", "You can call me by my name, Ada", "my nickname: Ada", "Ada is my name", "Mein Name ist Ada",
        "mi nombre es Ada", "我的名字是Ada", "私の名前はAda", "My friends call me Ada", "Ada lives in Rome", "I'm Ada",
        "Mein Vorname lautet Ada", "me llamo Ada", "my friend Adam", "I'm Ada. Too bad that it rains", "",
        "Ada is a doctor", "Ada, a doctor, is here", "Mi chiamo Ada", "ma sono Ada", "Ada is her own boss",
        "I'm Ada, my dear",
    ],
)  # fmt: skip
def test_an_own_name_is_nobody_elses(text: str) -> None:
    assert not tells_of_another(text, "Ada")


@pytest.mark.parametrize(
    "text",
    [
        "I'm not Ada", "No, I’m not Ada!", "Oh wait I'm not Ada", "My name isn't Ada.", "Ich bin nicht Ada",
        "Nein, ich heiße nicht Ada", "Je ne suis pas Ada", "No soy Ada", "Non sono Ada", "Eu não sou a Ada",
        "Jag heter inte Ada", "меня зовут не Ada", "我不叫Ada", "Hi. Don't call me Ada", "Benim adım Ada değil",
        "私はAdaではありません", "저는 Ada가 아닙니다",
    ],
)  # fmt: skip
def test_a_denial_is_recognised_in_many_languages(text: str) -> None:
    assert denies(text, "Ada")


@pytest.mark.parametrize(
    "text",
    [
        "I'm Ada", "I'm not Ada's brother", "He said that I'm not Ada", "Ada is not here", "I'm not sure",
        "私はAdaです", "Ada değil mi?", "Benim adım Ada, değil mi?", "```\nI'm not Ada\n```",
    ],
)  # fmt: skip
def test_sentences_that_are_not_denials(text: str) -> None:
    assert not denies(text, "Ada")
