"""Functions on texts: normal forms, numbers, negations, names; messages off the record and requests to
forget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter.memory.facts._boundaries import Forget, forget_request, off_the_record, on_record
from arbiter.memory.facts._guards import may_agree, may_repeat, names, negations, numbers
from arbiter.memory.facts._normal import fact_id, normal_form, tombstone_key

# Normal forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("User lives in Seattle", "  User  lives\n in\tSeattle. "),
        ("User has ﬁve cats", "User has five cats"),
        ("He said no", "He said no."),
    ],
)
def test_claims_of_one_normal_form_are_one(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)
    assert fact_id("a", "u", one) == fact_id("a", "u", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Balance: -10 USD", "Balance: +10 USD"),
        ("It is 1.5", "It is 1 5"),
        ("API_KEY is set", "api_key is set"),
        ("User lives in Seattle", "user lives in Seattle"),
        ("He asked why?", "He asked why"),
        ("Wait...", "Wait"),
    ],
)
def test_case_and_punctuation_make_two_claims(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)
    assert fact_id("a", "u", one) != fact_id("a", "u", other)


@pytest.mark.lengthy
@given(st.text(), st.text(), st.text())
def test_ids_tell_agents_and_subjects_apart(one: str, other: str, text: str) -> None:
    assert fact_id(one, other, text) == fact_id(one, other, text)
    if one != other:
        assert fact_id(one, other, text) != fact_id(other, one, text)
        assert fact_id(one, "", text) != fact_id(other, "", text)
    assert normal_form(normal_form(text)) == normal_form(text) or text.rstrip().endswith("..")


def test_a_tombstone_key_hides_the_claim_and_ignores_case() -> None:
    mark = tombstone_key("a", "u", "User lives in Seattle")
    assert mark == tombstone_key("a", "u", "USER lives in  seattle.")
    assert mark != tombstone_key("a", "v", "User lives in Seattle")
    assert "eattle" not in mark


# Numbers, negations, names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two kids", ["2"]),
        ("2.0 kids", ["2"]),
        ("-10 USD", ["-10"]),
        ("\u221210 USD", ["-10"]),
        ("-$10 and $-11", ["-10", "-11"]),
        ("+10", ["10"]),
        ("pages 5-10", ["10", "5"]),
        ("1.5", ["1.5"]),
        ("1 5", ["1", "5"]),
        ("1,000 or one thousand", ["1000", "1000"]),
        ("twenty-one and two hundred and five", ["205", "21"]),
        ("2.5 million", ["2500000"]),
        ("a hundred", ["100"]),
        ("half a dozen", ["0.5", "12"]),
        ("version 3.11.2", ["3.11.2"]),
        ("10k, 5%", ["10k", "5%"]),
        ("the third time, twice, the 2nd", ["2", "2", "3"]),
        ("no numbers, attention, none, weighty", []),
    ],
)
def test_numbers_are_read_in_digits_and_words(text: str, expected: list[str]) -> None:
    assert list(numbers(text)) == expected


@given(st.integers(0, 999_999))
def test_a_number_is_the_same_with_and_without_separators(value: int) -> None:
    assert numbers(f"it is {value:,} or so") == numbers(f"it is {value} or so") == (str(value),)


@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    assert may_agree(text, text)
    off_the_record(text)
    forget_request(text)


@pytest.mark.parametrize(
    "text",
    [
        "does not live",
        "doesn't live",
        "doesn\u2019t live",
        "never lived",
        "no longer lives",
        "hates it",
        "used to live",
    ],
)
def test_negating_words_are_counted(text: str) -> None:
    assert negations(text) == 1


def test_names_are_words_for_something_particular() -> None:
    assert names("The user's boss Bob's API_KEY is in /etc/x, v2") == {"Bob", "API_KEY", "/etc/x", "v2"}
    assert names("用户住在北京") != names("用户住在上海")


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("User works at a tech startup", "The user is employed by a technology start-up", True),
        ("User has two kids", "User has 2 children", True),
        ("User hates dogs", "User does not like dogs", True),
        ("User has two kids", "User has three kids", False),
        ("User lives in Seattle", "User does not live in Seattle", False),
        ("User likes dogs", "User hates dogs", False),
        ("User is married", "User is unmarried", False),
        ("User lives in Seattle", "User lives in Portland", False),
        ("Limit is 10%", "Limit is 10", False),
    ],
)
def test_guards_object_to_differences_that_similarity_misses(one: str, other: str, agree: bool) -> None:
    assert may_agree(one, other) is may_agree(other, one) is agree


def test_names_may_be_left_out_if_a_model_calls_two_texts_equal() -> None:
    assert may_repeat("User lives in Seattle", "User lives in Seattle, WA")
    assert not may_repeat("User lives in Seattle", "User lives in Portland")
    assert not may_repeat("User has 2 cats", "User has 3 cats")


# Off the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Off the record: I'm quitting",
        "This is OFF-THE-RECORD",
        "Don't remember this: I like tea",
        "please don\u2019t store that",
        "Do not ever save this!",
        "This is confidential, ok?",
        "it's a secret",
        "What I'm telling you is strictly confidential",
        "keep this between us",
        "Please keep that to yourself",
        "Confidential: we are merging",
        "I tell you this in confidence",
        "don't tell anyone, but I won",
        "o\u200bff the record, I quit",
        "off the\nrecord, I quit",
        "Can you not remember this: I quit",
        "I'd rather you didn't remember this",
        "I quit - don't write this down",
    ],
)
def test_confidential_messages_are_off_the_record(text: str) -> None:
    assert off_the_record(text)


@pytest.mark.parametrize(
    "text",
    [
        "I don't remember that place",
        "This is not confidential",
        "The meeting was not off the record",
        "Please remember this",
        "Is this confidential?",
        "I keep a secret diary",
        "We never store those",
    ],
)
def test_messages_that_only_sound_confidential_are_on_the_record(text: str) -> None:
    assert not off_the_record(text)


# Forgetting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("Forget that I live in Seattle", "User lives in Seattle"),
        ("please forget that I'm allergic to nuts.", "User is allergic to nuts"),
        ("Could you forget about my job?", "User got a new job"),
        ("Hi! Forget everything I told you about Bob", "User's brother Bob is a pilot"),
        ("I want you to forget that I went to Paris", "User is going to Paris"),
        ("Forget that I don't like dogs", "User does not like dogs"),
        ("Delete everything you know about my children", "User has one child"),
        ("forget that I moved to Seattle, please", "User moved to Seattle last month"),
    ],
)
def test_a_request_means_the_claims_that_say_it(text: str, claim: str) -> None:
    asked = forget_request(text)
    assert asked is not None
    assert asked.means(claim)
    assert not asked.means("User plays the violin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Forget everything about me", Forget(everything=True)),
        ("Please delete all data you have about me.", Forget(everything=True)),
        ("erase my data", Forget(everything=True)),
        ("forget what I just said", Forget(last=True)),
        ("Never mind, forget that", Forget(last=True)),
        ("Don't forget that I live in Seattle", None),
        ("never forget that I love you", None),
        ("I forget that sometimes", None),
        ("Did you forget that I live in Seattle?", None),
        ("forget it", None),
        ("Forget that.", None),
        ("delete the report about Seattle", None),
    ],
)
def test_requests_to_forget_are_recognised(text: str, expected: Forget | None) -> None:
    assert forget_request(text) == expected


def test_a_model_sees_only_messages_on_the_record() -> None:
    said: list[BaseMessage] = [
        HumanMessage("hi", id="1"),
        AIMessage("yo", id="2"),
        HumanMessage("off the record: I quit", id="3"),
        AIMessage("You quit!", id="4"),
        HumanMessage("I live in Seattle", id="5"),
        AIMessage("Seattle, nice", id="6"),
        HumanMessage("I like tea", id="7"),
        AIMessage("", id="8"),
        HumanMessage("Forget that I live in Seattle", id="9"),
        AIMessage("Seattle is forgotten", id="10"),
        HumanMessage("I love my cat", id="11"),
        HumanMessage("Forget what I just said", id="12"),
        HumanMessage("bye", id="13"),
    ]
    assert [m.id for m in on_record(said, agent_id="a", entity_id="u")] == ["1", "2", "7", "13"]


def test_other_speakers_messages_stay_on_the_record() -> None:
    said: list[BaseMessage] = [
        HumanMessage("I live in Seattle", id="1", additional_kwargs={"entity_id": "other"}),
        HumanMessage("I live in Seattle", id="2"),
        HumanMessage("Forget everything about me", id="3"),
        HumanMessage("I live in Rome", id="4"),
    ]
    assert [m.id for m in on_record(said, agent_id="a", entity_id="u")] == ["1", "4"]
