"""Secrets are never stored, in no field; sensitive claims only on request, and then for their room."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory._secrets import redacted
from arbiter.memory.facts import FactRules
from arbiter.memory.facts._privacy import category, has_secret
from tests.memory.facts_support import Room, answer, claim, relations
from tests.redaction.forms import FORMS
from tests.support import quick

SECRETS = (
    "بطاقتي ٤١١١ ١١١١ ١١١١ ١١١١",
    "मेरा कार्ड ४१११११११११११११११",
    "شماره حساب DE۸۹۳۷۰۴۰۰۴۴۰۵۳۲۰۱۳۰۰۰",
    "my SSN is ٠٧٨-٠٥-١١٢٠",
    "User's key is sk-live-4eC39HqLyjWDarjtT1zdp7dc",
    "key sk-live-abc123",
    "User pays with card 4111 1111 1111 1111",
    "4111-1111-1111-1111 expires 12 26",
    "card 5500005555555559",
    "４１１１ １１１１ １１１１ １１１１",
    "password is hunter2",
    "User's password for Netflix is hunter2",
    "the wifi password: correcthorse",
    "User uses hunter2 as their password",
    "pass\u200bword is hunter2",
    "User's PIN is 4821",
    "the API key is abcdef",
    "pwd=abc",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
    "postgres://user:pw@host/db",
    "User's SSN is 078-05-1120",
    "social security number 078051120",
    "passport number is X1234567",
    "AB 12 34 56 C",
    "GB82 WEST 1234 5698 7654 32",
    "User's password is now hunter2",
    "User's password was always fluffy",
    "User's password is A!b2c3d4",
    "User's password is the-cat-99",
    "User's password is in$ane99",
    "User's password is new-york-1987",
    "User's password has been set to fluffy",
    "User's password is very secret123",
    "The password, by the way, is fluffy",
    "The password for User's home wifi is fluffy",
    "the wifi password changed to fluffy",
    "the pw is fluffy",
    "User's login is bob and pass is hunter2",
    "The secret is hunter2x9",
    "password \u2192 fluffy",
    "User chose hunter2 as password",
    "CVV 123",
    "DB_PASSWORD=secret",
    "DB_PASSWORD_PROD=fluffy",
    "OPENAI_API_KEY=abcd1234efgh5678",
    "aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "dbPassword: fluffy",
    '{"db_password": "fluffy"}',
)
HARMLESS = (
    "password is required",
    "User forgot their password",
    "User's password is very strong",
    "User's password is long",
    "The password is wrong.",
    "The password is (still) wrong",
    "The password is now expired",
    "The password is still the same",
    "The password is always different",
    "The password has been changed",
    "The password was changed to protect the account",
    "The password's strength is fine",
    "User likes tools such as password managers",
    "User's ski pass is valid until May",
    "User changed their password to something else",
    "The secret to happiness is love",
    "The secret is out",
    "User works on token budgets",
    "User is a secretary",
    "User's number is +1 415 555 0123",
    "Order 1712345678901",
    "User's ISBN is 9783161484100",
    "User was born in 1990 and moved in 2015",
    "Prices are 10,000 12,000 13,000 15,000 USD",
    "User's email is bob@example.com",
    "User moved to Seattle last month",
)


@pytest.mark.parametrize("text", [*SECRETS, *map("".join, FORMS)])
def test_secrets_are_recognised(text: str) -> None:
    assert has_secret(text)
    assert has_secret("User told something", value=text)
    assert has_secret("User told something", subject=text)
    assert has_secret("User told something", slot=text)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_are_no_secrets(text: str) -> None:
    assert not has_secret(text)
    assert redacted(text) == text


def test_a_value_is_a_secret_by_its_slot_or_claim() -> None:
    assert has_secret("User set it up", slot="account.password", value="hunter2")
    assert has_secret("User's password", value="hunter2")
    assert not has_secret("User's city", slot="residence.city", value="Seattle")


def luhn(digits: str) -> bool:
    """True if the last digit is the check digit of the others."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


@given(st.integers(10**14, 10**15 - 1), st.sampled_from([" ", "-", "", "."]))
def test_every_card_number_is_found_however_it_is_grouped(body: int, separator: str) -> None:
    digits = next(d for d in (f"4{body}"[:15] + str(check) for check in range(10)) if luhn(d))
    grouped = separator.join(digits[at : at + 4] for at in range(0, 16, 4))
    assert has_secret(f"User's card is {grouped}, exp 12/26")


def test_secrets_are_not_shown_to_a_model_either() -> None:
    shown = redacted("My card is 4111 1111 1111 1111 and my password is hunter2, ok?")
    assert shown == "My card is [removed] and my password is [removed] ok?"


def test_all_of_a_secret_is_removed() -> None:
    assert redacted('my password is "the fluffy cat", ok?') == 'my password is "[removed]", ok?'
    assert redacted("my recovery phrase is apple pear fig. Hi") == "my recovery phrase is [removed]. Hi"
    assert redacted("the password is now a'b2c3") == "the password is now [removed]"


@pytest.mark.lengthy
def test_long_texts_are_looked_at_in_little_time() -> None:
    hostile = (
        "a.b-c1:" * 600,
        "ssn " * 1_000,
        "4" * 4_000,
        "4 " * 2_000,
        "password is " * 300,
        "password for a b c " * 200,
        "password is now " * 250,
        "api_key_" * 500,
        "son is " * 600,
    )
    with quick(3):
        for text in hostile:
            redacted(text)
            category(text)


async def test_no_secret_is_stored_logged_or_shown(
    any_store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = answer(
        "User's key is sk-live-4eC39HqLyjWDarjtT1zdp7dc",
        {"claim": "User pays by card", "slot": "card", "value": "4111 1111 1111 1111"},
        "User's password is hunter2",
    )
    room = Room(any_store, found, length=2)
    room.says("my key is sk-live-4eC39HqLyjWDarjtT1zdp7dc, card 4111 1111 1111 1111, password is hunter2")
    outcome = await room.evaluate()
    assert (outcome.data["dropped_private"], outcome.data["inserted"]) == (3, 0)
    assert room.model is not None
    everything = [await room.dump(), repr(outcome), caplog.text, room.model.prompt()]
    for secret in ("4eC39Hq", "4111 1111", "hunter2"):
        assert all(secret not in text for text in everything)


# Sensitive categories -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("User was diagnosed with cancer", "health"),
        ("User is a devout Catholic", "religion"),
        ("User voted for Obama", "politics"),
        ("User is gay", "sexuality"),
        ("User lives at 12 Main Street", "address"),
        ("User's daughter Emma is 6", "minors"),
        ("User has a 5-year-old son", "minors"),
        ("User was convicted of theft", "criminal record"),
        ("User is allergic to nuts", None),
        ("User lives in Seattle", None),
        ("User has two kids", None),
        ("User works with Christian", None),
        ("User disabled notifications", None),
        ("User's company has 12 offices on the way", None),
        ("User has a 5-year-old car", None),
        ("John found the community through a friend interested in AI", None),
    ],
)
def test_sensitive_categories_are_recognised(text: str, expected: str | None) -> None:
    assert category(text) == expected


@pytest.mark.parametrize(
    "found",
    [
        {"claim": "User was diagnosed with cancer"},
        {"claim": "X", "sensitivity": "sensitive"},
    ],
)
async def test_sensitive_claims_are_not_stored_unless_wanted(found: dict[str, Any]) -> None:
    text = found.pop("claim")
    room = Room()
    outcome = await room.hears("...", claim(text, **found))
    assert (outcome.dropped_private, await room.facts()) == (1, [])
    room = Room(rules=FactRules(allow_sensitive=True, visibility="agent"))
    await room.hears("...", claim(text, **found))
    [fact] = await room.facts()
    assert (fact.visibility, fact.sensitivity) == ("room", "sensitive")
    other = Room(room.store.store, rules=room.rules, room_id="room-2")
    await other.hears("...", claim(text, **found), id="x")
    [fact] = await room.facts()
    assert (fact.visibility, fact.mention_count) == ("room", 2)


@pytest.mark.parametrize("sensitivity", ["public", "personal"])
@pytest.mark.parametrize("text", ["User works in cancer research", "User's dog Rex is 3 years old"])
async def test_a_claim_is_as_sensitive_as_the_model_says(text: str, sensitivity: str) -> None:
    """Words decide only if the model does not say."""
    room = Room()
    outcome = await room.hears("...", claim(text, sensitivity=sensitivity))
    [fact] = await room.facts()
    assert (outcome.dropped_private, fact.sensitivity) == (0, sensitivity)


# Visibility ---------------------------------------------------------------------------------------


async def test_facts_of_a_private_room_stay_there_until_said_openly() -> None:
    private = Room(is_private=True, room_id="private")
    await private.hears("I have a cat", claim("User has a cat"))
    [fact] = await private.facts()
    assert fact.visibility == "room"
    learned = private.learned
    assert await learned.relevant(["user-1"], "cat", room_id="open", limit=5) == []
    assert len(await learned.relevant(["user-1"], "cat", room_id="private", limit=5)) == 1
    public = Room(private.store.store, room_id="open")
    await public.hears("I have a cat", claim("User has a cat"), id="x")
    [fact] = await public.facts()
    assert (fact.visibility, fact.room_ids) == ("entity", ("private", "open"))


class _OneMeaning(Embeddings):
    """An embedder with the same vector for all texts."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]


@pytest.mark.parametrize("judged", ["by a model", "as known"])
@pytest.mark.parametrize(
    ("confidential", "openly", "allow_sensitive"),
    [
        (
            "User is secretly living in Seattle with his boss",
            "User is living in Seattle with his boss",
            False,
        ),
        ("User is gay and lives in Seattle", "User lives in Seattle", True),
    ],
)
async def test_an_open_claim_in_other_words_does_not_reveal_a_confidential_one(
    confidential: str, openly: str, allow_sensitive: bool, judged: str
) -> None:
    """The confidential wording is shown in its room only; the open one is a record of its own."""
    rules = FactRules(allow_sensitive=allow_sensitive)
    store = InMemoryStore(index={"dims": 2, "embed": _OneMeaning(), "fields": ["claim"]})
    private = Room(store, room_id="private", is_private=not allow_sensitive, rules=rules)
    await private.hears("...", claim(confidential))
    [secret] = await private.facts()
    public = Room(store, relations("duplicate"), room_id="public", rules=rules)
    known: dict[str, Any] = {"known_id": secret.id, "already_known": True} if judged == "as known" else {}
    await public.hears("...", claim(openly, **known), id="x")
    for room_id, claims in {"private": {confidential}, "public": {openly}}.items():
        shown = {
            fact.claim for fact in await public.learned.relevant(["user-1"], "", room_id=room_id, limit=5)
        }
        assert shown & {confidential, openly} >= claims
        assert room_id == "private" or confidential not in shown
    kept = await public.fact(confidential)
    assert (kept.visibility, kept.room_ids) == ("room", ("private",))
    assert (await public.fact(openly)).sensitivity == ("sensitive" if allow_sensitive else "personal")


async def test_a_refinement_elsewhere_does_not_reveal_a_confidential_claim() -> None:
    private = Room(is_private=True, room_id="private")
    await private.hears("...", claim("User secretly lives in Seattle with Bob"))
    public = Room(private.store.store, relations("refines"), room_id="public")
    await public.hears("...", claim("User lives in Ballard, Seattle"), id="x")
    old = await public.fact("User secretly lives in Seattle with Bob")
    assert (old.visibility, old.room_ids, old.mention_count) == ("room", ("private",), 2)
    shown = await public.learned.relevant(["user-1"], "Seattle", room_id="public", limit=5)
    assert [fact.claim for fact in shown] == ["User lives in Ballard, Seattle"]


async def test_messages_off_the_record_are_no_sources() -> None:
    room = Room()
    room.says("I quit, off the record", "m1")
    room.replies("You quit", "m2")
    found = await room.ingest(claim("User quit", source_message_ids=("m1",)), claim("User quit it"))
    assert (found.dropped_private, await room.facts()) == (1, [])
