"""People who take part in a room under a name alone are not taken for the user of the run."""

from __future__ import annotations

import hmac
import json
import logging
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore

from arbiter.memory import Entity, EvalContext, ReflectionEvaluator, evaluator
from arbiter.memory._notes import key_of_messages
from arbiter.memory.stores import MemoryStore
from tests.memory.dialogue_support import Chat, fact

ROME = "The user lives in Rome"
HEAR = {
    "in Rome": ROME,
    "in Oslo": "The user lives in Oslo",
    "Bob's cat": fact("Bob has a cat", subject="Bob"),
}


def human(text: str, name: str | None = None, **fields: Any) -> HumanMessage:
    return HumanMessage(text, name=name, **fields)


@pytest.mark.lengthy
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("user", ["alice", "Alice", "alice-7", "4f1c"])
async def test_what_another_person_says_is_not_kept_as_the_users(
    any_store: BaseStore, user: str, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the name is the user's id or not. One warning names the remedy, and no name."""
    chat = Chat(HEAR, store=any_store, asynchronous=asynchronous)
    with caplog.at_level(logging.WARNING, logger="arbiter"):
        await chat.say(human("hi all", "Alice"), human("I live in Rome", "Bob"), user=user)
        await chat.say(human("I still live in Rome", "Bob"), user=user)
    assert await chat.known(user) == []
    warnings = [one.getMessage() for one in caplog.records if "speaker's id" in one.getMessage()]
    assert len(warnings) == 1
    assert "additional_kwargs={'entity_id': ...}" in warnings[0]
    assert "register_entity" in warnings[0]
    assert "Bob" not in caplog.text


async def test_the_user_is_still_learned_from() -> None:
    """Also in the turns after somebody else has spoken, in the same room and others."""
    chat = Chat(HEAR)
    await chat.say(human("hello", "Alice"))
    await chat.say(human("I live in Rome", "Bob"))
    await chat.say(human("I live in Oslo", "Alice"))
    assert await chat.known() == ["The user lives in Oslo"]
    await chat.say(human("I live in Rome", "Bob"), human("And what do you know of Bob's cat?", "Alice"))
    assert [(one.claim, one.subject) for one in await chat.facts()] == [
        ("Bob has a cat", "Bob"), ("The user lives in Oslo", "user-1"),
    ]  # fmt: skip


async def test_users_who_take_turns_in_a_room_are_distinguished() -> None:
    """Each run has its user, and each message the name of its speaker."""
    chat = Chat(HEAR)
    await chat.say(human("I live in Rome", "Alice"), user="u1", room="group")
    await chat.say(human("I live in Oslo", "Bob"), user="u2", room="group")
    await chat.say(human("Nice", "Alice"), user="u1", room="group")
    assert (await chat.known("u1"), await chat.known("u2")) == ([ROME], ["The user lives in Oslo"])


async def test_no_guess_of_a_name_can_be_checked_against_another_store() -> None:
    kept: list[set[str]] = []
    for _ in range(2):
        chat = Chat(HEAR)
        await chat.say(human("hello", "Alice"))
        await chat.say(human("I live in Rome", "Bob"))
        [known] = [
            item for item in chat.store.search(("arbiter", "agent", "cursors")) if item.key == "speakers"
        ]
        kept.append({*known.value})
        assert "Alice" not in str(known.value)
    assert kept[0]
    assert kept[0].isdisjoint(kept[1])


async def test_a_turkish_name_of_an_older_store_is_the_users() -> None:
    """There the Turkish i with a dot was a letter of its own."""
    chat = Chat(HEAR)
    await chat.say(human("hello", "İrem"), user="4f1c")
    [kept] = [item for item in chat.store.search(("arbiter", "agent", "cursors")) if item.key == "speakers"]
    key = await key_of_messages(MemoryStore(chat.store), "agent")
    name = json.dumps(["room-1", "i\u0307rem"]).encode()
    chat.store.put(kept.namespace, kept.key, {hmac.digest(key, name, "sha256").hex()[:32]: "4f1c"})
    await chat.say(human("I live in Oslo", "İrem"), human("I live in Rome", "Bob"), user="4f1c")
    assert await chat.known("4f1c") == ["The user lives in Oslo"]


@pytest.mark.parametrize("name", ["Ada", "ada", "Ada Lovelace", " Ada "])
async def test_a_registered_name_is_the_users(name: str) -> None:
    chat = Chat(HEAR, entities=[Entity(id="user-1", names=("Ada",))])
    await chat.say(human("I live in Oslo", name), human("I live in Rome", "Bob"))
    assert await chat.known() == ["The user lives in Oslo"]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
async def test_a_registered_name_is_the_users_in_any_unicode_form(
    forms: Sequence[Literal["NFC", "NFD"]],
) -> None:
    """Some systems write a letter and its accent apart."""
    known, said = (unicodedata.normalize(form, "José") for form in forms)
    chat = Chat(HEAR, entities=[Entity(id="user-1", names=(known,))])
    await chat.say(human("I live in Oslo", said), human("I live in Rome", "Bob"))
    assert await chat.known() == ["The user lives in Oslo"]


@pytest.mark.parametrize("unnamed", [True, False])
async def test_a_name_beside_messages_without_one_is_another_persons(unnamed: bool) -> None:
    chat = Chat(HEAR)
    await chat.say(human("hello", None if unnamed else "Bob"), human("I live in Rome", "Bob"))
    assert await chat.known() == ([] if unnamed else [ROME])


async def test_a_name_that_the_user_has_given_is_the_users() -> None:
    chat = Chat(HEAR, says={"I'm Ada": {"names": {"name": "Ada"}}})
    await chat.say("I'm Ada", room="r1")
    await chat.say(human("I live in Oslo", "Ada"), human("I live in Rome", "Bob"), room="r2")
    assert await chat.known() == ["The user lives in Oslo"]


async def test_what_a_stranger_is_called_is_not_kept(any_store: BaseStore) -> None:
    chat = Chat(HEAR, says={"I'm Bob": {"names": {"name": "Bob"}}}, store=any_store)
    await chat.say(human("hello", "Alice"), human("I'm Bob, I live in Rome", "Bob"), user="alice")
    for id in ("alice", "unknown:Bob"):
        exported = await chat.cycle.memory.aexport(id)
        assert (exported["own_names"], exported["facts"], exported["trust"]) == ([], [], [])


async def test_the_name_of_a_registered_person_is_not_the_users() -> None:
    """Even if no other name is there; and no other person gets that person's records."""
    chat = Chat(HEAR)
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say(human("I live in Rome", "Bob"))
    assert (await chat.known(), await chat.known("bob")) == ([], [])


async def test_the_remedy_works() -> None:
    chat = Chat(HEAR)
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say(
        human("I live in Oslo", "Alice"),
        human("I live in Rome", "Bob", additional_kwargs={"entity_id": "bob"}),
        user="alice",
    )
    assert (await chat.known("alice"), await chat.known("bob")) == (["The user lives in Oslo"], [ROME])


async def test_an_unregistered_id_is_no_way_around() -> None:
    """The program has named the user, so a message cannot claim to be from somebody unknown."""
    chat = Chat(HEAR)
    await chat.say(human("hi", "Alice"), user="alice")
    await chat.say(human("I live in Rome", "Bob", additional_kwargs={"entity_id": "bob"}), user="alice")
    assert (await chat.known("alice"), await chat.known("bob")) == ([], [])


async def test_a_stranger_can_forget_nothing_of_the_users() -> None:
    chat = Chat(HEAR)
    await chat.say(human("I live in Rome", "Alice"), user="alice")
    await chat.say(human("Forget everything you know about me.", "Bob"), user="alice")
    assert await chat.known("alice") == [ROME]


async def test_a_claim_without_a_source_is_not_guessed_to_be_the_users() -> None:
    chat = Chat({"in Rome": fact(ROME, source_message_ids=[])})
    await chat.say(human("I live in Rome", "Bob"), human("Cool", "Alice"), user="alice")
    assert await chat.known("alice") == []


async def test_an_id_that_looks_like_a_strangers_stays_a_users() -> None:
    """The ids of strangers are made so that no participant has them."""
    seen: list[Any] = []

    @evaluator("SEEN", description="Sees the speakers.")
    async def look(ctx: EvalContext) -> None:
        seen.append(dict(ctx.strangers))

    chat = Chat(HEAR)
    chat.arbiter_os.add_evaluator(look)
    zed = {"entity_id": "unknown:Bob"}
    await chat.cycle.memory.aregister_entity("unknown:Bob", "Zed")
    await chat.say(
        human("I live in Oslo", "Zed", additional_kwargs=zed),
        human("hi", "Alice"),
        human("I live in Rome", "Bob"),
        user="alice",
    )
    assert await chat.known("unknown:Bob") == ["The user lives in Oslo"]
    assert seen == [{"Bob": "unknown:Bob'"}]


async def test_no_relationship_of_a_stranger_is_stored() -> None:
    chat = Chat(HEAR, conversation_length=1)
    found = {
        "thought": "t",
        "facts": [],
        "relationships": [{"source": "Alice", "target": "Bob", "tags": ["friend"]}],
    }
    chat.arbiter_os.add_evaluator(ReflectionEvaluator(model=type(chat.model)(answers=[json.dumps(found)])))
    await chat.say(human("hi", "Alice"), human("hello", "Bob"), user="alice")
    assert await chat.cycle.memory.arelationships() == []
