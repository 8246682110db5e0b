"""Short conversations in many styles and languages, read by a model that is good at it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from arbiter.memory import Entity, FactRules, MemoryStore
from arbiter.memory.facts import _ingest
from tests.memory.dialogue_support import Chat, fact, status
from tests.memory.memory_support import Clock

_SAID = re.compile(r"Message (\S+) of [^\n]*:\n\[quoted text begins\]\n(.*?)\n\[quoted text ends\]", re.S)
_KNOWN = re.compile(r"^> (\w+) \(\w+, about [^)]*\): (.*)$", re.M)
Part = Mapping[str, Any]


class Talk(Chat):
    """`hears` are words of a message and what a good model finds in it: `claims`; words of known facts to
    `forget`; words of messages that go `off` the record; `names`."""

    def __init__(self, hears: Sequence[tuple[str, Part]], compare: Any = "unrelated", **options: Any) -> None:
        super().__init__({}, compare, **options)
        self.hears = hears

    def _answer(self, prompt: str) -> str:
        if "The new messages:" not in prompt:
            return super()._answer(prompt)
        before, new = prompt.split("The new messages:")
        known, messages = _KNOWN.findall(before), _SAID.findall(new)
        found: dict[str, list[Any]] = {"claims": [], "forget": [], "off_record": [], "names": []}
        for id, text in messages:
            for part in (part for words, part in self.hears if words in text):
                claims = [fact(each) if isinstance(each, str) else each for each in part.get("claims", ())]
                found["claims"] += [{"source_message_ids": [id], **each} for each in claims]
                found["names"] += [{"name": name, "message_id": id} for name in part.get("names", ())]
                found["forget"] += [
                    {"id": fact_id, "message_id": id}
                    for fact_id, claim in known
                    if any(words in claim for words in part.get("forget", ()))
                ]
                found["off_record"] += [
                    {"id": said, "message_id": id}
                    for said, earlier in (*_SAID.findall(before), *messages)
                    if any(words in earlier for words in part.get("off", ()))
                ]
        return json.dumps(found)


def says(*claims: Any, **parts: Any) -> Part:
    return {"claims": claims, **parts}


def private(config: Any) -> bool:
    return bool(config["configurable"].get("thread_id") == "private")


PUNE, BANGALORE = "User lives in Pune", "User lives in Bangalore"
OSLO, BERGEN = "User lives in Oslo", "User lives in Bergen"
EX, DOG = "Tom, the ex of User, cheated", "User and Tom share a dog, Rex"
ACME, LEFT = "User works at Acme", "User has left Acme"
SHANGHAI, SUZHOU, BEIJING = "用户住在上海", "User works in Suzhou", "用户住在北京"
CAIRO = "المستخدم يسكن في القاهرة"
BERLIN, NO_BERLIN = "User will live in Berlin", "User is not moving to Berlin"
ROB, BOB = "Rob is a vet", "Bob is a vet"
DOCTOR, WIFE = "User is a doctor", "The wife of User is a doctor"
TOKYO, OSAKA = "ユーザーは東京に住んでいる", "ユーザーは大阪に住んでいる"
BUSAN, DELHI, LEYLA = "사용자는 부산에 산다", "उपयोगकर्ता दिल्ली में रहता है", "ليلى طبيبة"
AGE, SLIP, WRONG = (fact(f"User is {age}", slot="age", value=age) for age in ("34", "43", "44"))
MILAN = "The mother of User lives in Milan"
ROME = status("User lived in Rome until 2019", valid_to="2019", kind="home")

# What is said, what a model finds, what it says of pairs, and what is known in the end.
TALKS: dict[str, tuple[Sequence[str], Sequence[tuple[str, Part]], Any, Sequence[str]]] = {
    "forget this, but not that": (
        ["Tom, my ex, cheated on me. We share a dog, Rex.", "Olvídate de lo de mi ex, pero no del perro."],
        [("Tom", says(EX, DOG)), ("Olvídate", says(forget=["cheated"]))],
        "unrelated",
        [DOG],
    ),
    "forget this, but not that, which is said again": (
        ["Tom, my ex, cheated on me. We share a dog, Rex.", "Forget my ex, but not our dog Rex."],
        [("Tom", says(EX, DOG)), ("Forget", says(DOG, forget=["cheated"]))],
        "unrelated",
        [DOG],
    ),
    "forget the address, keep the city": (
        ["I live at the mill near Oslo", "Forget the address, but keep the city: Oslo."],
        [("the mill", says("User lives at the mill near Oslo")), ("keep", says(OSLO, forget=["mill"]))],
        "duplicate",
        [OSLO],
    ),
    "an Arabic wish": (
        ["أسكن في القاهرة", "انسَ عنواني من فضلك"],
        [("القاهرة", says(status(CAIRO))), ("عنواني", says(forget=["القاهرة"]))],
        "unrelated",
        [],
    ),
    "two languages in a sentence, of which one changes": (
        ["我住在上海，but I work in Suzhou", "我搬到北京了"],
        [("上海", says(status(SHANGHAI), status(SUZHOU))), ("北京", says(status(BEIJING)))],
        {(SHANGHAI, BEIJING): "supersedes"},
        [SUZHOU, BEIJING],
    ),
    "a job that ends": (
        ["I work at Acme", "I quit, finally"],
        [("at Acme", says(status(ACME, kind="job"))), ("quit", says(LEFT))],
        {(ACME, LEFT): "ends"},
        [LEFT],
    ),
    "a slip of the keys": (
        ["I liv in Osloo", "Oslo*"],
        [("Osloo", says("User lives in Osloo")), ("Oslo*", says(fact(OSLO, corrects=["m0"])))],
        "unrelated",
        [OSLO],
    ),
    "a joke": (
        ["I have a boat!", "just joking lol"],
        [("boat", says("User has a boat")), ("joking", says(fact("User has no boat", corrects=["m0"])))],
        "contradicts",
        ["User has no boat"],
    ),
    "the wrong name of a friend": (
        ["My friend Rob is a vet", "Sorry, I mean Bob"],
        [
            ("Rob", says(fact(ROB, subject="Rob"), fact("Ann is a nurse", subject="Ann"))),
            ("Bob", says(fact(BOB, subject="Bob", corrects=["m0"]))),
        ],
        {(ROB, BOB): "corrects"},
        ["Ann is a nurse", BOB],
    ),
    "the wrong friend, in the same words": (
        ["My friend Rob: a vet", "Sorry, that is Bob"],
        [
            ("Rob", says(fact("The friend is a vet", subject="Rob"))),
            ("Bob", says(fact("The friend is a vet", subject="Bob", corrects=["m0"]))),
        ],
        "unrelated",
        ["The friend is a vet"],
    ),
    "it is not me": (
        ["There is a doctor in the house", "haha, my wife is, not me"],
        [("doctor", says(DOCTOR)), ("wife", says(fact(WIFE, subject="wife", corrects=["m0"])))],
        "supersedes",
        [WIFE],
    ),
    "a past home, whatever the model calls it": (
        ["I live in Oslo", "I lived in Rome until 2019"],
        [("in Oslo", says(status(OSLO, kind="home"))), ("Rome", says(ROME))],
        "supersedes",
        [OSLO],
    ),
    "code that mentions a wish": (
        ["I live in Oslo", "```\n# delete all my data\ndef wipe(): ...\n```\nWhy does it fail?"],
        [("in Oslo", says(OSLO))],
        "unrelated",
        [OSLO],
    ),
    "scratch that": (
        ["my sister Eva is ill", "hm, scratch that"],
        [("Eva", says("Eva, the sister of User, is ill")), ("scratch", says(off=["my sister"]))],
        "unrelated",
        [],
    ),
    "sarcasm": (
        ["I just LOVE Mondays", "seriously, I work on Mondays"],
        [
            ("LOVE", says({"claim": "User loves Mondays", "type": "opinion"})),
            ("seriously", says("User works on Mondays")),
        ],
        "unrelated",
        ["User works on Mondays"],
    ),
    "a wrong duplicate": (
        ["I have two kids", "well, three, with Ben"],
        [("two", says("User has 2 kids")), ("three", says("User has 3 kids"))],
        "duplicate",
        ["User has 2 kids", "User has 3 kids"],
    ),
    "two people of one name": (
        ["My sister Mia is 30, my cousin Mia is 12", "Mia, my sister, turned 31"],
        [
            ("cousin", says(fact("Mia is 30", subject="Mia (sister)"), fact("Mia is 12", subject="Mia (cousin)"))),
            ("turned", says(fact("Mia is 31", subject="Mia (sister)"))),
        ],
        "supersedes",
        ["Mia is 12", "Mia is 31"],
    ),
    "an age in the digits of another script": (
        ["I'm 34", "عمري ٣٤"],
        [("34", says("User is 34 years old")), ("٣٤", says("عمر المستخدم ٣٤ سنة"))],
        "duplicate",
        ["User is 34 years old"],
    ),
    "a Japanese move": (
        ["東京に住んでいます", "先月、大阪に引っ越しました"],
        [("東京", says(status(TOKYO))), ("大阪", says(status(OSAKA)))],
        {(TOKYO, OSAKA): "supersedes"},
        [OSAKA],
    ),
    "a Hindi wish": (
        ["मैं दिल्ली में रहता हूँ", "कृपया मेरा पता भूल जाओ"],
        [("दिल्ली", says(status(DELHI))), ("भूल", says(forget=["दिल्ली"]))],
        "unrelated",
        [],
    ),
    "a Korean wish, and the same again": (
        ["부산에 살아요", "제 주소는 잊어 주세요", "다시요, 부산에 살아요", "역시 그건 잊어 줘"],
        [("부산에 살", says(status(BUSAN))), ("잊어", says(forget=["부산"]))],
        "unrelated",
        [],
    ),
    "an Arabic name": (
        ["اسمي ليلى وأنا طبيبة", "انسي مهنتي"],
        [("اسمي", says(fact(LEYLA, subject="ليلى"), names=["ليلى"])), ("انسي", says(forget=["طبيبة"]))],
        "unrelated",
        [],
    ),
    "a correction of a correction": (
        ["I'm 34", "oops, 43", "argh, 44"],
        [
            ("34", says(AGE)),
            ("43", says({**SLIP, "corrects": ["m0"]})),
            ("44", says({**WRONG, "corrects": ["m1"]})),
        ],
        "contradicts",
        [WRONG["claim"]],
    ),
    "a correction that is taken back": (
        ["I'm 34", "oops, 43", "no wait, 34 was right"],
        [
            ("I'm 34", says(AGE)),
            ("43", says({**SLIP, "corrects": ["m0"]})),
            ("right", says({**AGE, "corrects": ["m1"]})),
        ],
        "corrects",
        [AGE["claim"]],
    ),
    "off the record in the middle": (
        ["My boss is Tim", "Off the record: I will quit", "I like cake"],
        [("boss", says("Tim is the boss")), ("quit", says("User quits")), ("cake", says("User likes cake"))],
        "unrelated",
        ["Tim is the boss", "User likes cake"],
    ),
    "a mother who is written in another way": (
        ["My mother lives in Rome", "Mom lives in Milan now"],
        [
            ("Rome", says(status("The mother of User lives in Rome", subject="mother"))),
            ("Milan", says(status(MILAN, subject="Mother"))),
        ],
        "supersedes",
        [MILAN],
    ),
    "a past home that is forgotten": (
        ["I live in Oslo", "I moved to Bergen", "forget that I ever lived in Oslo"],
        [
            ("live in", says(status(OSLO))),
            ("Bergen", says(status(BERGEN))),
            ("forget", says(forget=["Oslo"])),
        ],
        "supersedes",
        [BERGEN],
    ),
}  # fmt: skip


@pytest.mark.parametrize("talk", TALKS)
async def test_what_is_known_after_a_talk_is_what_its_user_expects(talk: str) -> None:
    said, hears, compare, known = TALKS[talk]
    chat = Talk(hears, compare)
    for number, text in enumerate(said):
        await chat.say(text, id=f"m{number}")
        chat.pass_by(minutes=1)
    assert sorted(await chat.known()) == sorted(known)
    assert await chat.trust() == 50


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_correction_finds_a_slip_about_another_participant(asynchronous: bool) -> None:
    hears = [("doctor", says(DOCTOR)), ("Eva", says(fact("Eva is a doctor", subject="eva", corrects=["m0"])))]
    chat = Talk(hears, {(DOCTOR, "Eva is a doctor"): "corrects"}, asynchronous=asynchronous)
    await chat.cycle.memory.aregister_entity("eva", "Eva")
    await chat.say("There is a doctor in the house", id="m0")
    await chat.say("oops, Eva is, not me", id="m1")
    assert (await chat.known(), await chat.known("eva")) == ([], ["Eva is a doctor"])
    assert (await chat.fact(DOCTOR)).state == "corrected"


async def test_users_cannot_correct_another_users_statement_about_somebody_else() -> None:
    hears = [
        ("doctor", says(DOCTOR)),
        ("wrong", says(fact("Eva is a doctor", subject="eva", corrects=["m0"]))),
    ]
    chat = Talk(hears, "corrects")
    for id, name in (("eva", "Eva"), ("bob", "Bob")):
        await chat.cycle.memory.aregister_entity(id, name)
    await chat.say("I am a doctor", id="m0")
    await chat.say("wrong, Eva is", id="m1", additional_kwargs={"entity_id": "bob"})
    assert await chat.known() == [DOCTOR]


async def test_a_move_in_another_language_takes_place_on_its_day() -> None:
    hears = [
        ("Pune mein", says(status(PUNE, kind="home"), status(BANGALORE, kind="home", valid_from="2026-04")))
    ]
    chat = Talk(hears, {(PUNE, BANGALORE): "supersedes"})
    await chat.say("Main Pune mein rehta hoon, par next month Bangalore shift ho raha hoon")
    assert await chat.known() == [PUNE]
    assert [("from 2026-04-01" in line) for line in await chat.notes("kahan?") if "Bangalore" in line] == [
        True
    ]
    chat.pass_by(days=30)
    assert [line.endswith(BANGALORE) for line in await chat.notes("kahan?")] == [True]


async def test_a_move_that_is_called_off_leaves_the_home() -> None:
    hears = [
        ("in Oslo", says(status(OSLO, kind="home"))),
        ("in May", says(status(BERLIN, kind="home", valid_from="2026-05"))),
        ("off", says(NO_BERLIN)),
    ]
    chat = Talk(hears, {(OSLO, BERLIN): "supersedes", (BERLIN, NO_BERLIN): "ends"})
    for text in ("I live in Oslo", "I'm moving to Berlin in May", "The move is off"):
        await chat.say(text)
        chat.pass_by(days=1)
    chat.pass_by(days=80)
    assert await chat.known() == [NO_BERLIN, OSLO]


@pytest.mark.lengthy
async def test_a_move_that_is_put_off_leaves_the_home_until_then() -> None:
    may = status(BERLIN, kind="home", slot="home", value="Berlin", valid_from="2026-05")
    july = status(
        "User moves to Berlin in July", kind="home", slot="home", value="Berlin", valid_from="2026-07"
    )
    hears = [("in Oslo", says(status(OSLO, kind="home"))), ("May", says(may)), ("July", says(july))]
    chat = Talk(hears, "supersedes")
    for text in ("I live in Oslo", "I'm moving to Berlin in May", "It will be July"):
        await chat.say(text)
        chat.pass_by(days=1)
    chat.pass_by(days=80)  # in June
    notes = await chat.notes("where?")
    assert [("Oslo" in line, "from 2026-07-01" in line) for line in notes] == [(False, True), (True, False)]
    chat.pass_by(days=40)
    assert [line.endswith(july["claim"]) for line in await chat.notes("where?")] == [True]


# In confidence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["supersedes", "contradicts", "corrects", "ends"])
async def test_what_is_said_in_private_changes_nothing_elsewhere(relation: str) -> None:
    chat = Talk([("in Oslo", says(OSLO)), ("Bergen", says(BERGEN))], relation, is_private=private)
    await chat.say("I live in Oslo")
    chat.pass_by(days=1)
    await chat.say("I moved to Bergen, nobody knows", room="private")
    assert [line.endswith(OSLO) for line in await chat.notes("Where do I live?")] == [True]
    assert [line.endswith(BERGEN) for line in await chat.notes("And here?", room="private")] == [True]
    chat.pass_by(days=1)
    await chat.say("By the way, I live in Bergen now", room="open")
    assert [line.endswith(BERGEN) for line in await chat.notes("Where do I live?")] == [True]
    assert await chat.known() == [BERGEN]


@pytest.mark.parametrize(("speakers", "left"), [(["user-1"], []), (["user-1", "bob"], [OSLO])])
async def test_what_was_said_in_private_can_be_forgotten_from_any_room(
    speakers: list[str], left: list[str]
) -> None:
    """Unless somebody else is heard there: no prompt of that room has it."""
    hears = [("in Oslo", says(OSLO)), ("Forget", says(forget=["Oslo"]))]
    chat = Talk(hears, is_private=private)
    await chat.cycle.memory.aregister_entity("bob", "Bob")
    await chat.say("I live in Oslo", room="private")
    chat.pass_by(days=1)
    said = [HumanMessage("hello", additional_kwargs={"entity_id": each}) for each in speakers[1:]]
    await chat.say(*said, "Forget where I live", room="open")
    assert await chat.known() == left
    assert (f": {OSLO}" in chat.model.prompt()) == (not left)


async def test_a_stranger_elsewhere_puts_no_mark_on_what_users_see_of_their_own() -> None:
    hears = [
        ("I live", says("Ada lives in Oslo")),
        ("Ada lives", says(fact("Ada lives in Bergen", subject="ada"))),
    ]
    chat = Talk(hears, "contradicts")
    await chat.cycle.memory.aregister_entity("ada", "Ada")
    await chat.say("I live in Oslo", user="ada", room="hers")
    await chat.say("Ada lives in Bergen", user="bob", room="his")
    assert [line.endswith("Ada lives in Oslo") for line in await chat.notes("Where?", user="ada")] == [True]
    assert (await chat.fact("Ada lives in Oslo", "ada")).state == "disputed"


# Undo ---------------------------------------------------------------------------------------------

FLAT, QUARTER = "User lives in Oslo", "User lives in Grünerløkka, Oslo"


@pytest.mark.parametrize("forgotten", ["Oslo", "Bergen", "Grünerløkka", "Rome"])
@pytest.mark.parametrize(
    ("user", "claims", "relation"),
    [
        ("user-1", [status(OSLO, kind="home"), status(BERGEN, kind="home")], "supersedes"),
        ("user-1", [status(OSLO), status("User moves to Rome", valid_from="2027")], "supersedes"),
        ("user-1", [FLAT, QUARTER], "refines"),
        ("eva", [fact(f"Eva lives in {city}", subject="eva") for city in ("Oslo", "Rome")], "contradicts"),
    ],
    ids=["a change", "a plan", "a detail", "a dispute"],
)
async def test_undo_brings_back_what_facts_have_to_do_with_each_other(
    user: str, claims: Sequence[Any], relation: str, forgotten: str
) -> None:
    hears = [(f"number {number}", says(claim)) for number, claim in enumerate(claims)]
    chat = Talk(hears, relation, fact_rules=FactRules(undo_within=timedelta(days=1)))
    await chat.cycle.memory.aregister_entity("eva", "Eva")
    for number in range(len(claims)):
        await chat.say(f"number {number}", user="user-1" if user == "user-1" else f"user-{number}")
        chat.pass_by(minutes=1)
    before = {fact.claim: fact for fact in await chat.facts(user)}
    gone = await chat.cycle.memory.aforget(user, forgotten)
    assert await chat.cycle.memory.aundo(user) == gone
    assert {fact.claim: fact for fact in await chat.facts(user)} == before


async def test_an_edit_takes_a_move_back_after_an_undo() -> None:
    hears = [("in Oslo", says(status(OSLO, kind="home"))), ("Bergen", says(status(BERGEN, kind="home")))]
    chat = Talk(hears, "supersedes", fact_rules=FactRules(undo_within=timedelta(days=1)))
    await chat.say("I live in Oslo", id="m1")
    chat.pass_by(minutes=1)
    await chat.say("I moved to Bergen", id="m2")
    await chat.cycle.memory.aforget("user-1", "Bergen")
    await chat.cycle.memory.aundo("user-1")
    chat.pass_by(minutes=1)
    await chat.say(HumanMessage("I moved, no idea where", id="m2"))
    assert await chat.known() == [OSLO]


# Several conversations at a time ------------------------------------------------------------------


@pytest.mark.parametrize("at", ["once", "quiet"])
async def test_a_user_of_several_conversations_at_a_time_lives_in_one_place(at: str) -> None:
    """Each is compared with what the others, which are read at the same time, have taught."""
    homes = [f"User lives in Town{number}" for number in range(4)]
    cats = ["User has a cat", "User owns a cat", "User keeps a cat", "User is an owner of a cat"]
    hears = [
        (home, says(status(home, slot="residence.city", value=home[-5:]), cat))
        for home, cat in zip(homes, cats, strict=True)
    ]
    compare = {(one, other): "supersedes" for one in homes for other in homes}
    compare |= {(one, other): "duplicate" for one in cats for other in cats}
    chat = Talk(hears, compare, asynchronous=True, conversation_length=2 if at == "once" else 32)
    chat.model.pause = 0.1
    turns = [chat.say(home, room=f"room-{number}") for number, home in enumerate(homes)]
    if at == "once":
        await asyncio.gather(*turns)
    else:
        for turn in turns:
            await turn
            chat.pass_by(minutes=1)
        assert await chat.arbiter_os.adrain(30)
        assert homes[-1] in await chat.known()
    home, cat = sorted(await chat.known(), key=lambda claim: "cat" in claim)
    assert (home in homes, (await chat.fact(cat)).mention_count) == (True, 4)


async def test_a_conversation_does_not_wait_long_for_another_one_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many may share one user: a program that knows no users, say."""
    monkeypatch.setattr(_ingest, "_PATIENCE", 0.01)
    chat = Talk([("in Oslo", says(OSLO))], asynchronous=True, handler_timeout_s=5.0)
    async with MemoryStore(chat.store).lock("agent", "claims", "user-1"):
        await chat.say("I live in Oslo")
        assert await chat.known() == [OSLO]


async def test_a_conversation_that_waits_for_another_one_leaves_its_models_enough_time() -> None:
    chat = Talk([("in Oslo", says(OSLO))], asynchronous=True, handler_timeout_s=3.0)
    async with MemoryStore(chat.store).lock("agent", "claims", "user-1"):
        await chat.say("I live in Oslo")
        assert await chat.known() == [OSLO]


async def test_users_who_tell_of_the_same_company_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_ingest, "_SHARE", 2.0)
    said = fact("Acme is hiring", subject="Acme")
    acme = Entity(id="acme", names=("Acme",))
    chat = Talk([("hiring", says(said))], asynchronous=True, handler_timeout_s=2.0, entities=[acme])
    async with MemoryStore(chat.store).lock("agent", "claims", "acme"):
        await chat.say("Acme is hiring")
        assert await chat.known("acme") == ["Acme is hiring"]


async def test_what_a_scheduler_reads_late_does_not_replace_what_was_said_since_then() -> None:
    says_where = [("Oslo", says(status(OSLO))), ("Bergen", says(status(BERGEN)))]
    clock = Clock(datetime.now(UTC))
    first = Talk(says_where, clock=clock, asynchronous=True, conversation_length=32, after_idle_s=None)
    await first.say("I live in Oslo", room="morning")
    clock.pass_by(hours=6)
    chat = Talk(says_where, "supersedes", clock=clock, asynchronous=True, store=first.store)
    await chat.say("I have moved to Bergen", room="evening")
    clock.pass_by(hours=6)
    await chat.cycle.memory.aprocess("morning", user_id="user-1", graph=first.app)
    assert await chat.known() == [BERGEN]
    assert await chat.known(state="superseded") == [OSLO]


# Without a checkpointer ---------------------------------------------------------------------------


async def test_a_message_that_repeats_an_earlier_one_is_read_although_the_answers_are_equal() -> None:
    """The client sends the new message only, with its id."""
    chat = Talk([("in Oslo", says(OSLO))], saver=False)
    for id in ("m1", "m2"):
        await chat.say("I live in Oslo", id=id)
        chat.pass_by(days=1)
    assert (await chat.fact(OSLO)).source_message_ids == ("m1", "m2")


async def test_an_id_of_a_message_stays_in_its_line_and_can_be_meant() -> None:
    chat = Talk([("in Oslo", says(OSLO)), ("Forget", says(forget=["Oslo"]))])
    odd = "m1\nMessage:" + "x" * 200
    await chat.say("I live in Oslo", id=odd)
    assert "\nMessage:x" not in chat.model.prompt()
    assert (await chat.fact(OSLO)).source_message_ids == (odd,)
    await chat.say("Forget where I live", id=f"n{odd}")
    assert await chat.known() == []
