"""Conversations read by a model that answers sloppily: what it means is learned and forgotten all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call_chunk
from langchain_core.messages.utils import message_chunk_to_message

from arbiter.memory import Entity, ReflectionEvaluator
from arbiter.memory.facts import _wishes
from arbiter.memory.facts._knowledge import Knowledge
from tests.memory.dialogue_support import Chat, fact, status
from tests.memory.test_talks import Talk, says
from tests.scripted import ScriptedTools, tool_call

Answer = dict[str, Any]
CAT = "User has a cat"
HOME, MOVED = "User lives in Oslo", "User lives in Bergen"


class Sloppy(Talk):
    """`shape` writes the answer about new messages, `pairs` that about two claims."""

    def __init__(
        self,
        *hears: Any,
        shape: Callable[[Answer], Any] = json.dumps,
        pairs: Callable[[list[Answer]], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(hears, **options)
        self.shape = shape
        self.pairs = pairs

    def _answer(self, prompt: str) -> str:
        answer = json.loads(super()._answer(prompt))
        if "The new messages:" in prompt:
            answer = self.shape(answer)
        elif self.pairs is not None and "relations" in answer:
            answer = self.pairs(answer["relations"])
        return answer if isinstance(answer, str) else json.dumps(answer)


async def talk(chat: Chat, *said: str) -> None:
    for number, text in enumerate(said):
        await chat.say(text, id=f"m{number}")
        chat.pass_by(minutes=1)


def each(**fields: Any) -> Callable[[Answer], Answer]:
    """The claims with these fields changed."""
    return lambda answer: {"claims": [{**claim, **fields} for claim in answer["claims"]]}


SHAPES: dict[str, Callable[[Answer], Any]] = {
    "in prose and a fence": lambda a: f"Sure!\n\n```json\n{json.dumps(a, indent=1)}\n```\nAnything else?",
    "after a thought": lambda a: f'<think>{{"claims": []}}?</think>{json.dumps(a)}',
    "as Python writes it": lambda a: repr({**a, "forget_everything": None}),
    "a list alone": lambda a: a["claims"],
    "under another name beside null": lambda a: {**a, "claims": None, "facts": a["claims"]},
    "under another name beside none": lambda a: {**a, "claims": [], "facts": a["claims"]},
    "a claim alone": lambda a: a["claims"][0],
    "a list around it": lambda a: [a],
    "a claim in place of a list": lambda a: {"claims": a["claims"][0]},
    "sentences": lambda a: {"claims": [claim["claim"] for claim in a["claims"]]},
    "in an object around it": lambda a: {"result": a},
    "facts for claims": lambda a: {"facts": a["claims"], "forget": []},
    "text for claim": lambda a: {"claims": [{"text": c["claim"], "type": "fact"} for c in a["claims"]]},
    "without a type": lambda a: {"claims": [{"claim": claim["claim"]} for claim in a["claims"]]},
    "with a type of its own": each(type="personal fact"),
    "with words around an id": each(source_message_ids=["Message m0"]),
    "with a wrong id": each(source_message_ids=[1]),
    "with null everywhere": each(subject=None, slot=None, known_id=None, corrects=None, valid_to=None),
    "with words for null": each(subject="null", slot="N/A", known_id="none", valid_from="unknown"),
    "with none for empty lists": lambda a: {**a, "forget": "none", "off_record": "None.", "names": {}},
    "a list as a text": lambda a: {"claims": json.dumps(a["claims"])},
    "as the text of a call": lambda a: {"name": "ExtractedClaims", "arguments": a, "id": {"of": "call"}},
    "a claim with an object of its own": lambda a: {**a["claims"][0], "qualifiers": {}},
    "beside a list that never ends": lambda a: {**a, "forget": "[" * 20_000},
    "with a type in a list": each(type=["status", "fact"]),
    "in capitals": lambda a: {"CLAIMS": [{key.upper(): part for key, part in a["claims"][0].items()}]},
    "statuses beside no facts": lambda a: {"facts": [], "statuses": a["claims"]},
    "statuses alone": lambda a: {"statuses": a["claims"]},
    "a list for each type": lambda a: {"claims": {"facts": a["claims"], "statuses": [], "opinions": []}},
    "with keys as in JavaScript": lambda a: {"claims": [_in_humps(claim) for claim in a["claims"]]},
}


def _in_humps(given: Answer) -> Answer:
    return {re.sub("_(.)", lambda found: found[1].upper(), key): part for key, part in given.items()}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_claim_is_learned_from_an_answer_in_another_shape(shape: str) -> None:
    chat = Sloppy(("cat", says(CAT)), shape=SHAPES[shape])
    await talk(chat, "I have a cat")
    assert await chat.known() == [CAT]
    assert chat.model.calls == 1


@pytest.mark.parametrize("around", [False, True])
async def test_claims_that_are_listed_by_their_types_have_these(around: bool) -> None:
    def shape(answer: Answer) -> Answer:
        lists = {"facts": [{"claim": CAT}], "statuses": [{"claim": HOME}], "opinions": None}
        return {"claims": lists} if around else lists

    chat = Sloppy(shape=shape)
    await talk(chat, "I have a cat, and live in Oslo")
    assert {known.claim: known.type for known in await chat.facts()} == {CAT: "fact", HOME: "status"}
    assert chat.model.calls == 1


async def test_keys_as_in_javascript_name_sources_wishes_and_messages() -> None:
    chat = Sloppy(
        ("cat", says(CAT)),
        ("dog", says("User has a dog", forget=["cat"])),
        shape=lambda a: _in_humps({key: [_in_humps(each) for each in part] for key, part in a.items()}),
        conversation_length=6,
    )
    await talk(chat, "I have a cat", "Hello?", "Well")
    assert (await chat.fact(CAT)).source_message_ids == ("m0",)
    await chat.say("Forget that, I have a dog", id="m9")
    assert await chat.known() == ["User has a dog"]


@pytest.mark.parametrize(
    "claims",
    [
        "none",
        "",
        {},
        ["none"],
        ["None."],
        [{"claim": "none"}],
        [{"claim": "n/a", "type": "fact"}],
        [{}],
        [None],
    ],
)
async def test_words_for_nothing_are_no_claims(claims: Any) -> None:
    chat = Sloppy(shape=lambda a: {"claims": claims})
    await talk(chat, "Hello")
    assert (await chat.facts(), chat.model.calls) == ([], 1)


@pytest.mark.parametrize(
    "subject",
    [
        *(
            "None",
            "the user",
            "'user-1'",
            "@user-1",
            "id: user-1",
            "Ada (id user-1)",
            "User (user-1)",
            "self",
        ),
        *("Der Nutzer", "L'utilisateur", "Пользователь", "Kullanıcı", "用户", "ユーザー"),
    ],
)
async def test_the_user_is_meant_by_many_names(subject: str) -> None:
    chat = Sloppy(("cat", says(fact(CAT, subject=subject))))
    await talk(chat, "I have a cat")
    assert [known.subject for known in await chat.facts()] == ["user-1"]


@pytest.mark.parametrize("subject", ["Ada (a friend)", "Ada (user-2)", "Ada", "user-10"])
async def test_others_stay_others(subject: str) -> None:
    chat = Sloppy(("cat", says(fact(CAT, subject=subject))))
    await talk(chat, "She has a cat")
    assert [known.subject for known in await chat.facts()] == [subject]


@pytest.mark.parametrize("named", ["user-1", "[user-1]", "Ada (id user-1)", "user-1 (Ada)"])
async def test_a_participant_is_meant_by_the_labels_of_prompts(named: str) -> None:
    """The prompt of a reflection shows "user-1 (Ada)", that of the extraction "Ada (id user-1)"."""
    chat = Chat({}, entities=[Entity(id="user-1", names=("Ada",))])
    chat.arbiter_os.remove_evaluator("GET_FACTS")
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    friendly = {"sourceEntityId": named, "targetEntityId": "agent", "tags": ["friendly"]}
    answer = {"thought": "", "facts": [fact(CAT, subject=named)], "relationships": [friendly]}
    chat.model.answers[:] = [json.dumps(answer)]
    await chat.say("I have a cat")
    assert [known.subject for known in await chat.facts()] == ["user-1"]
    assert [one.source for one in await chat.cycle.memory.arelationships()] == ["user-1"]


@pytest.mark.parametrize("named", ["user-1 (a friend)", "Ada (a friend)"])
async def test_somebody_with_a_note_is_no_participant(named: str) -> None:
    chat = Sloppy(("cat", says(fact(CAT, subject=named))), entities=[Entity(id="user-1", names=("Ada",))])
    await talk(chat, "She has a cat")
    assert [known.subject for known in await chat.facts()] == [named]


@pytest.mark.parametrize("named", ["(id:" + " " * 100_000 + "x", "id:" + " " * 100_000 + "x\ny"])
async def test_a_name_of_many_blanks_is_nobody(named: str) -> None:
    """To look for an id in it took minutes."""
    chat = Chat({}, entities=[Entity(id="user-1", names=("Ada",))])
    chat.arbiter_os.remove_evaluator("GET_FACTS")
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    friendly = {"sourceEntityId": named, "targetEntityId": "agent", "tags": ["friendly"]}
    chat.model.answers[:] = [json.dumps({"thought": "", "facts": [], "relationships": [friendly]})]
    await chat.say("I have a cat")
    assert await chat.cycle.memory.arelationships() == []


@pytest.mark.parametrize("name", ["Null", "None", "Unknown"])
async def test_people_may_be_called_by_a_word_for_nothing(name: str) -> None:
    claim = fact(f"{name} lives in Rome", subject=name)
    friend = Sloppy(("lives", says(claim)))
    await talk(friend, f"My friend {name} lives in Rome")
    assert [known.subject for known in await friend.facts()] == [name]
    user = Sloppy(("lives", says(claim)), ("I am", says(names=[name])))
    await talk(user, f"{name} lives in Rome", f"I am {name}")
    assert [known.subject for known in await user.facts()] == ["user-1"]


@pytest.mark.parametrize("name", ["null", "None", "Unknown.", "n/a"])
async def test_a_word_for_nothing_in_place_of_a_name_is_no_name(name: str) -> None:
    chat = Sloppy(
        ("Rome", says(fact("Ada lives in Rome", subject="Ada"))),
        shape=lambda answer: {**answer, "names": [{"name": name, "message_id": "m0"}]},
    )
    await talk(chat, "I live in Rome, and have null appetite")
    assert (await chat.cycle.memory.aexport("user-1"))["own_names"] == []
    assert chat.model.calls == 1


@pytest.mark.parametrize(
    "facts",
    [{"facts": [], "statuses": [status(CAT)]}, {"claims": {"facts": [], "statuses": [{"claim": CAT}]}}],
)
async def test_a_reflection_may_list_facts_by_their_types(facts: Answer) -> None:
    chat = Chat({})
    chat.arbiter_os.remove_evaluator("GET_FACTS")
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    chat.model.answers[:] = [json.dumps({"thought": "", **facts, "relationships": []})]
    await chat.say("I have a cat")
    assert [(known.claim, known.type) for known in await chat.facts()] == [(CAT, "status")]


@pytest.mark.parametrize("facts", [[CAT], None])
async def test_a_reflection_may_list_sentences(facts: list[str] | None) -> None:
    chat = Chat({})
    chat.arbiter_os.remove_evaluator("GET_FACTS")
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    chat.model.answers[:] = [json.dumps({"thought": "", "facts": facts, "relationships": []})]
    await chat.say("I have a cat")
    assert (await chat.known(), chat.model.calls) == (facts or [], 1)


@pytest.mark.parametrize("named", [[{"id": "m0"}], [{"message_id": "m0"}], {"id": "m0"}, ["m0"]])
async def test_a_slip_is_corrected_however_the_model_names_its_message(named: Any) -> None:
    slip, right = fact("User is 34"), fact("User is 43", corrects=named)
    chat = Sloppy(("I'm 34", says(slip)), ("oops", says(right)), compare="contradicts")
    await talk(chat, "I'm 34", "oops, 43")
    assert (await chat.fact("User is 34")).state == "corrected"


async def test_a_slip_is_corrected_if_the_model_names_the_known_fact() -> None:
    def shape(answer: Answer) -> Answer:
        slip = {"corrects": [known[0].id]} if known else {}
        return {"claims": [{**claim, **slip} for claim in answer["claims"]]}

    chat = Sloppy(
        ("I'm 34", says("User is 34")), ("oops", says("User is 43")), compare="contradicts", shape=shape
    )
    known = await chat.facts()
    await talk(chat, "I'm 34")
    known = await chat.facts()
    await chat.say("oops, 43", id="m1")
    assert (await chat.fact("User is 34")).state == "corrected"


async def test_a_source_may_be_an_object() -> None:
    chat = Sloppy(("cat", says(CAT)), shape=each(source_message_ids=[{"id": "m0"}]), conversation_length=6)
    await talk(chat, "I have a cat", "Hello?")
    assert (await chat.fact(CAT)).source_message_ids == ("m0",)


@pytest.mark.parametrize("names", ["Ada", ["Ada"], [{"name": "Ada"}], [{"name": "Ada", "message_id": None}]])
async def test_a_name_without_a_message_is_that_of_the_only_speaker(names: Any) -> None:
    chat = Sloppy(
        ("Rome", says(fact("Ada lives in Rome", subject="Ada"))),
        shape=lambda answer: {**answer, "names": names},
    )
    await talk(chat, "Ada lives in Rome", "Ada, c'est moi")
    assert [known.subject for known in await chat.facts()] == ["user-1"]


@pytest.mark.parametrize("yes", [True, "Yes", 1, "1"])
async def test_a_wish_to_forget_everything_is_confirmed_however_the_model_writes_it(yes: Any) -> None:
    def shape(answer: Answer) -> Answer:
        return {**answer, "forget_everything": None if answer["claims"] else yes}

    chat = Sloppy(("cat", says(CAT)), shape=shape)
    await talk(chat, "I have a cat", "let it all be gone", "yes")
    assert await chat.facts() == []


WISHES: dict[str, Callable[[str], Any]] = {
    "the id alone": lambda id: id,
    "its line": lambda id: [f"{id} (fact, about user-1): {CAT}"],
    "in brackets": lambda id: [f"[{id}]"],
    "in capitals": lambda id: [id.upper()],
    "shortened": lambda id: [id[:8]],
    "under ids": lambda id: {"ids": [id]},
    "alone under ids": lambda id: {"ids": id},
    "requests under ids": lambda id: {"ids": [{"id": id, "message_id": "m1"}, {"id": "unlisted"}]},
    "a request under ids": lambda id: {"ids": {"factId": id}},
    "under ids beside an empty text": lambda id: {"id": "", "ids": [id]},
    "requests under ids beside null": lambda id: {"id": None, "ids": [{"fact_id": id}]},
    "several in one": lambda id: [{"id": [id, "m1"], "message_id": "m1"}],
    "several under ids": lambda id: [{"ids": ["unlisted", id], "messageId": "m1"}],
    "several as a text": lambda id: [{"fact_ids": json.dumps([id])}],
    "several beside null": lambda id: {"id": None, "known_facts": [id], "message_ids": ["m1"]},
    "a longer key": lambda id: [{"fact_id": id, "message_id": "m1"}],
    "another key": lambda id: [{"fact": id, "message_id": "m1"}],
    "the words under a key of their own": lambda id: [{"claim": CAT, "message_id": "m1"}],
    "the words of the fact": lambda id: ["user has a cat."],
    "a wrong message": lambda id: [{"id": id, "message_id": "2"}],
    "the message of the fact": lambda id: [{"id": id, "message_id": "m0"}],
    "words around the message": lambda id: [{"id": id, "message_id": "Message m1"}],
}


@pytest.mark.parametrize("wish", WISHES)
async def test_a_wish_is_carried_out_however_the_model_names_it(wish: str) -> None:
    def shape(answer: Answer) -> Answer:
        return {**answer, "forget": next((WISHES[wish](one["id"]) for one in answer["forget"]), None)}

    chat = Sloppy(("cat", says(CAT)), ("vergiss", says(forget=["cat"])), shape=shape)
    await talk(chat, "I have a cat", "bitte vergiss meine Katze")
    assert await chat.known() == []


@pytest.mark.parametrize("key", ["claims", "facts"])
async def test_a_wish_is_carried_out_beside_null_for_the_claims(key: str) -> None:
    def shape(answer: Answer) -> Answer:
        return {key: answer["claims"] or None, "forget": answer.get("forget")}

    chat = Sloppy(("cat", says(CAT)), ("vergiss", says(forget=["cat"])), shape=shape)
    await talk(chat, "I have a cat", "bitte vergiss meine Katze")
    assert (await chat.known(), chat.model.calls) == ([], 2)


KNOWN: dict[str, Callable[[str], str]] = {
    "in brackets": lambda id: f"[{id}]",
    "its line": lambda id: f"{id} (fact, about user-1): {CAT}",
    "in capitals": str.upper,
    "shortened": lambda id: id[:8],
    "the words of the fact": lambda id: CAT,
}


@pytest.mark.parametrize("named", KNOWN)
async def test_a_repetition_counts_however_the_model_names_the_fact(named: str) -> None:
    def shape(answer: Answer) -> Answer:
        again = {"already_known": True, "known_id": KNOWN[named](known[0].id)} if known else {}
        return {"claims": [{**claim, **again} for claim in answer["claims"]]}

    chat = Sloppy(("have a cat", says(CAT)), ("my cat", says("A cat lives with User")), shape=shape)
    known = await chat.facts()
    await talk(chat, "I have a cat")
    known = await chat.facts()
    await chat.say("my cat is asleep", id="m1")
    assert [(one.claim, one.mention_count) for one in await chat.facts()] == [(CAT, 2)]


def named_as(known: list[Any], is_known: bool = True) -> Callable[[Answer], Answer]:
    """The claims with the id of the first of `known`."""

    def shape(answer: Answer) -> Answer:
        again = {"already_known": is_known, "known_id": known[0].id} if known else {}
        return {"claims": [{**claim, **again} for claim in answer["claims"]]}

    return shape


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    "claim", ["User has a dog", "User is a vet", "User does not have a cat", "User has a dog and a bird"]
)
async def test_a_claim_with_the_id_of_another_fact_is_compared_and_does_not_count_for_that(
    claim: str, is_known: bool
) -> None:
    known: list[Any] = []
    chat = Sloppy(("a cat", says(CAT)), ("Well", says(claim)), shape=named_as(known, is_known))
    await talk(chat, "I have a cat")
    known += await chat.facts()
    await chat.say("Well, ...", id="m1")
    assert (await chat.known(), (await chat.fact(CAT)).mention_count) == (sorted([CAT, claim]), 1)
    assert len(chat.compared) == 1


async def test_the_fact_that_a_claim_names_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = []
    chat = Sloppy(("a cat", says(CAT)), ("Well", says("User has a dog")), shape=named_as(known))
    await talk(chat, "I have a cat")
    known += await chat.facts()
    read: list[str] = []
    find = Knowledge.find

    async def counted(knowledge: Knowledge, candidate: Any, id: str) -> Any:
        read.append(id)
        return await find(knowledge, candidate, id)

    monkeypatch.setattr(Knowledge, "find", counted)
    await chat.say("Well, ...", id="m1")
    assert read == [known[0].id]


async def test_a_fact_that_is_named_in_another_language_counts_again() -> None:
    known: list[Any] = []
    hears = ("a cat", says(CAT)), ("猫", says("用户有一只猫"))
    chat = Sloppy(*hears, shape=named_as(known), compare="duplicate")
    await talk(chat, "I have a cat")
    known += await chat.facts()
    await chat.say("我的猫", id="m1")
    assert [(one.claim, one.mention_count) for one in await chat.facts()] == [(CAT, 2)]


async def test_a_reflection_may_write_the_id_of_a_fact_in_another_way() -> None:
    chat = Chat({"have a cat": CAT}, conversation_length=4)
    await chat.say("I have a cat", id="m0")
    cat = await chat.fact(CAT)
    again = {
        "claim": "A cat lives with User",
        "type": "fact",
        "already_known": True,
        "known_id": f"[{cat.id}]",
    }
    chat.arbiter_os.remove_evaluator("GET_FACTS")
    chat.arbiter_os.add_evaluator(ReflectionEvaluator())
    chat.model.answers[:] = [json.dumps({"thought": "", "facts": [again], "relationships": []})]
    await chat.say("my cat is asleep", id="m1")
    assert [(one.claim, one.mention_count) for one in await chat.facts()] == [(CAT, 2)]


async def test_a_message_that_takes_itself_back_may_be_named_by_its_id_alone() -> None:
    def shape(answer: Answer) -> Answer:
        return {**answer, "off_record": [{"message_id": one["id"]} for one in answer["off_record"]]}

    chat = Sloppy(("cat", says(CAT, off=["cat"])), shape=shape)
    await talk(chat, "I have a cat, but that is nobody's business")
    assert await chat.known() == []


@pytest.mark.parametrize(
    "asked",
    [
        {"message_ids": ["m0", "m1"]},
        {"ids": [{"message_id": "m0"}, {"message_id": "m1"}]},
        [{"fact_ids": ["x"], "message_id": "m0"}, {"id": None, "message_id": "m1"}],
    ],
)
async def test_messages_of_a_request_are_all_off_the_record(asked: Any) -> None:
    def shape(answer: Answer) -> Answer:
        return answer if answer["claims"] else {**answer, "off_record": asked}

    chat = Sloppy(("cat", says(CAT)), ("dog", says("User has a dog")), shape=shape)
    await talk(chat, "I have a cat", "And a dog", "That was for your ears only")
    assert await chat.known() == []


@pytest.mark.parametrize("part", ["off_record", "forget"])
@pytest.mark.parametrize("named", ["m0", "Message m0", "[m0]", "I have a cat", "i have a cat."])
async def test_a_message_is_named_by_its_id_or_its_words(part: str, named: str) -> None:
    chat = Sloppy(
        ("cat", says(CAT)), shape=lambda answer: answer if answer["claims"] else {**answer, part: [named]}
    )
    await talk(chat, "I have a cat", "That was for your ears only")
    assert await chat.known() == []


@pytest.mark.parametrize("part", ["off_record", "forget"])
async def test_a_message_is_read_once_for_all_that_a_model_names(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[BaseMessage] = []

    def counted(message: BaseMessage) -> str:
        read.append(message)
        return message.text

    monkeypatch.setattr(_wishes, "text_of", counted)
    chat = Sloppy(shape=lambda answer: {**answer, part: [f"x{number}" for number in range(100)]})
    await talk(chat, "I have a cat", "Well, ...")
    assert 0 < len(read) < 20


@pytest.mark.parametrize("named", ["?", "a1"])
async def test_where_several_speak_a_wrong_message_asks_for_nobody(named: str) -> None:
    def shape(answer: Answer) -> Answer:
        return {**answer, "forget": [{**one, "message_id": named} for one in answer["forget"]]}

    def by(who: str, text: str, id: str) -> HumanMessage:
        return HumanMessage(text, id=id, additional_kwargs={"entity_id": who})

    chat = Sloppy(
        ("cat", says(fact("Ben has a cat", subject="ben"))),
        ("forget", says(forget=["cat"])),
        shape=shape,
        entities=[Entity(id="ann", names=("Ann",)), Entity(id="ben", names=("Ben",))],
    )
    await chat.say(by("ben", "I have a cat", "b1"), by("ann", "I'd rather not know of it", "a1"), user=None)
    said = [by("ann", "yes", "a2"), by("ben", "she wants you to forget it?", "b2")]
    await chat.say(*said[named == "a1" :], user=None)
    assert await chat.known("ben") == ["Ben has a cat"]


PAIRS: dict[str, Callable[[list[Answer]], Any]] = {
    "in capitals": lambda pairs: {"relations": [{**pair, "relation": "SUPERSEDES"} for pair in pairs]},
    "in another form": lambda pairs: {"relations": [{**pair, "relation": "superseded"} for pair in pairs]},
    "in another word": lambda pairs: {"relations": [{**pair, "relation": "update"} for pair in pairs]},
    "by number": lambda pairs: {"relations": {str(pair["pair"]): pair["relation"] for pair in pairs}},
    "by number alone": lambda pairs: {str(pair["pair"]): pair["relation"] for pair in pairs},
    "words": lambda pairs: [pair["relation"] for pair in pairs],
    "one alone": lambda pairs: pairs[0],
    "one in place of a list": lambda pairs: {"relations": pairs[0]},
}


@pytest.mark.parametrize("shape", PAIRS)
async def test_a_change_is_noticed_from_an_answer_in_another_shape(shape: str) -> None:
    hears = ("in Oslo", says(status(HOME))), ("in Bergen", says(status(MOVED)))
    chat = Sloppy(*hears, pairs=PAIRS[shape], compare="supersedes")
    await talk(chat, "I live in Oslo", "I live in Bergen now")
    assert await chat.known() == [MOVED]


@pytest.mark.parametrize(
    ("more", "other"),
    [
        ({}, {}),
        ({"forget": []}, {"forget": []}),
        ({"forget_everything": None}, {"forget_everything": False}),
        ({"forget_everything": False}, {"forget_everything": None}),
        ({"profiles": {}}, {"profiles": {"UserProfile": {"city": "Oslo"}}}),
    ],
)
async def test_claims_in_several_calls_of_one_reply_are_learned(more: Answer, other: Answer) -> None:
    chat = Sloppy()
    calls: list[Answer] = [{"claims": [fact(CAT)], **more}, {"claims": [fact(HOME)], **other}]
    answer = tool_call("ExtractedClaims", *calls)
    chat.model = chat.cycle.evaluator_model = ScriptedTools(answers=[answer])
    await talk(chat, "I have a cat, and live in Oslo")
    assert (await chat.known(), chat.model.calls) == ([CAT, HOME], 1)


async def test_several_calls_of_one_claim_each_are_learned() -> None:
    chat = Sloppy()
    answer = tool_call("ExtractedClaims", fact(CAT), fact(HOME))
    chat.model = chat.cycle.evaluator_model = ScriptedTools(answers=[answer])
    await talk(chat, "I have a cat, and live in Oslo")
    assert (await chat.known(), chat.model.calls) == ([CAT, HOME], 1)


async def test_of_several_calls_that_disagree_none_is_believed() -> None:
    chat = Sloppy()
    calls = [{"claims": [fact(CAT)], "forget_everything": each} for each in (True, False)]
    chat.model = chat.cycle.evaluator_model = ScriptedTools(answers=[tool_call("ExtractedClaims", *calls)])
    await talk(chat, "I have a cat")
    assert await chat.facts() == []


# Answers that are cut off -------------------------------------------------------------------------

CUT = json.dumps(
    {
        "forget": [],
        "claims": [
            fact(CAT, source_message_ids=["m0"]),
            fact("User has a dog", source_message_ids=["m0"], subject="user-1"),
        ],
    }
)[: -len('-1"}]}')]
LIMITS: list[dict[str, Any]] = [
    *({key: word} for key in ("finish_reason", "stop_reason") for word in ("length", "MAX_TOKENS")),
    {"done_reason": "length"},
    {"stopReason": "max_tokens"},
    {"incomplete_details": {"reason": "max_output_tokens"}},
]


def streamed(args: str, limit: dict[str, Any]) -> BaseMessage:
    """A call as LangChain makes it of a stream: it closes the brackets of one that is cut off."""
    call = tool_call_chunk(name="ExtractedClaims", args=args, id="1", index=0)
    return message_chunk_to_message(
        AIMessageChunk(content="", tool_call_chunks=[call], response_metadata=limit)
    )


def unread(args: str, limit: dict[str, Any]) -> BaseMessage:
    call = invalid_tool_call(name="ExtractedClaims", args=args, id="1", error=None)
    return AIMessage("", invalid_tool_calls=[call], response_metadata=limit)


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
@pytest.mark.parametrize("made", [streamed, unread, None])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_complete_claims_of_an_answer_that_is_cut_off_are_learned(
    made: Callable[..., BaseMessage] | None,
    limit: dict[str, Any],
    asynchronous: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chat = Sloppy(asynchronous=asynchronous)
    answer = AIMessage(CUT, response_metadata=limit) if made is None else made(CUT, limit)
    chat.model = chat.cycle.evaluator_model = ScriptedTools(answers=[answer])
    await talk(chat, "I have a cat and a dog", "Well, ...")
    await chat.say("And so on")
    assert set(await chat.known()) == {CAT}
    assert chat.model.calls % 2 == 0
    assert caplog.text.count("is cut off") == 1
    assert CAT not in caplog.text


CUTS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"```json\n{text}",
    lambda text: text.partition('"claims": ')[2],
    lambda text: text.replace('"', "'"),
    lambda text: '{"result": ' + text,
    lambda text: f'{{"claims": ["{CAT}", "User has a do',
]


@pytest.mark.parametrize("length", [len(CUT), CUT.index("dog"), CUT.index("dog") + 20])
@pytest.mark.parametrize("shape", CUTS)
async def test_no_half_claim_is_learned(length: int, shape: Callable[[str], str]) -> None:
    chat = Sloppy(shape=lambda answer: shape(CUT[:length]))
    await talk(chat, "I have a cat and a dog")
    assert await chat.known() == [CAT]


ALONE = '{"claim": "Bob has a dog", "source_message_ids": ["m0"], "subject": "Bo'


@pytest.mark.parametrize(
    "answer", [ALONE, f'{{"result": {ALONE}', streamed(ALONE, {"stop_reason": "length"})]
)
async def test_a_claim_that_stands_alone_is_not_learned_without_its_subject(answer: Any) -> None:
    chat = Sloppy()
    chat.model = chat.cycle.evaluator_model = ScriptedTools(answers=[answer])
    await talk(chat, "Bob has a dog")
    assert await chat.facts() == []


@pytest.mark.parametrize("before", ["", "</think>"])
async def test_nothing_is_learned_from_a_thought_that_is_cut_off(before: str) -> None:
    chat = Sloppy(shape=lambda answer: f"<think>{before}Perhaps <think>{CUT}")
    await talk(chat, "I have a cat and a dog")
    assert await chat.facts() == []


async def test_a_second_answer_that_is_complete_counts_alone() -> None:
    answers = [AIMessage(CUT, response_metadata={"finish_reason": "length"}), f'{CUT}-1"}}]}}']
    chat = Sloppy()
    chat.model.answers[:] = answers
    await talk(chat, "I have a cat and a dog")
    assert await chat.known() == [CAT, "User has a dog"]


async def test_an_answer_whose_lost_end_has_a_wish_in_words_of_no_table_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def shape(answer: Answer) -> str:
        return json.dumps(answer).partition('"message_id"')[0] if answer["forget"] else json.dumps(answer)

    hears = ("a cat", says(CAT)), ("Strike", says("User has a dog", forget=["cat"]))
    chat = Sloppy(*hears, shape=shape)
    await talk(chat, "I have a cat")
    await chat.say("Strike my animal from your notes, I have a dog", id="m1")
    assert await chat.known() == [CAT, "User has a dog"]
    assert "is cut off" in caplog.text
    assert "Let the model write more tokens" in caplog.text


async def test_an_answer_that_is_cut_off_may_lack_a_wish_and_is_asked_for_again() -> None:
    def shape(answer: Answer) -> Any:
        return json.dumps({"claims": [fact(HOME)], **answer})[:80] if is_cut and answer["forget"] else answer

    is_cut = True
    chat = Sloppy(("cat", says(CAT)), ("Forget", says(HOME, forget=["cat"])), shape=shape)
    await talk(chat, "I have a cat", "Forget that, I live in Oslo")
    assert await chat.known() == [CAT]
    is_cut = False
    chat.pass_by(hours=1)
    await chat.say("Please!", id="m8")
    assert await chat.known() == [HOME]


# Dates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "since"),
    [
        *((each, "2027-05-01") for each in ("May 2027", "1 May 2027", "May 1st, 2027", "1st of May 2027")),
        *(
            (each, "2027-05-01")
            for each in ("2027-05-XX", "01.05.2027", "05/2027", "2027.05.01", "2027年5月1日")
        ),
        *((each, "2027-05-01") for each in ("20270501", "2027-05-01T00:00", "~2027-05", "from 2027-05 on")),
        *(
            (each, "2027-01-01")
            for each in (
                "2027-XX-XX",
                "maybe 2027",
                "05/01/2027",
                "early 2027",
                "2027-H1",
                "weekends of 2027",
            )
        ),
        *((each, "2027-04-01") for each in ("2027-Q2", "Q2/2027", "2027Q2", "q2 of 2027")),
        *((each, "2027-06-01") for each in ("summer 2027", "Summer of 2027", "in the summer, 2027")),
        *((each, "2027-12-01") for each in ("end of 2027", "Winter 2027", "Christmas 2027")),
        ("summer 2026", "2026-06-01"),
        ("end of May 2026", "2026-05-01"),
        ("2027, end of May", "2027-01-01"),
        ("late summer 2027", "2027-06-01"),
        ("summer 2027 in Marseille", "2027-06-01"),
        ("Q4 2027 (Oct-Dec)", "2027-10-01"),
    ],
)
async def test_a_plan_with_a_date_in_another_form_is_not_taken_for_the_present(
    written: str, since: str
) -> None:
    hears = ("in Oslo", says(status(HOME))), ("move", says(status(MOVED, valid_from=written)))
    chat = Sloppy(*hears, compare="supersedes")
    await talk(chat, "I live in Oslo", "I'll move to Bergen")
    assert await chat.known() == [HOME]
    [planned] = [known.valid_from for known in await chat.facts() if known.claim == MOVED]
    assert planned is not None
    assert planned.date().isoformat() == since


@pytest.mark.parametrize(
    "written", ["soon", "2019-2021", "in 2019, and from 2027 on", "jan" * 10_000, "12:30"]
)
async def test_what_is_no_single_date_is_none(written: str) -> None:
    chat = Sloppy(("move", says(status(MOVED, valid_from=written))))
    await talk(chat, "I'll move to Bergen")
    assert [known.valid_from for known in await chat.facts()] == [None]


async def test_a_wish_to_forget_is_no_claim_of_what_is_forgotten() -> None:
    wish = says("User wants the agent to forget the cat", forget=["cat"])
    chat = Sloppy(("I have", says(CAT)), ("forget", wish))
    await talk(chat, "I have a cat", "Please forget my cat")
    assert await chat.known() == []
