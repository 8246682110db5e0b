"""Functions on texts: normal forms, the veto on duplicates, messages off the record, commands to forget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter.memory._commands import hastens, plain_command
from arbiter.memory.facts import off_the_record, on_record
from arbiter.memory.facts._normal import normal_form, same_sense

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


@given(st.text())
def test_a_normal_form_is_its_own(text: str) -> None:
    assert normal_form(normal_form(text)) == normal_form(text) or text.rstrip().endswith("..")


# A veto on duplicates ------------------------------------------------------------------------------


@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    assert same_sense(text, text)
    off_the_record(text)
    plain_command(text)
    hastens(text)


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("User works at a tech startup", "The user is employed by a technology start-up", True),
        ("User has two kids", "User has 2 children", True),
        ("Price: $1,000", "The price is 1000.", True),
        ("User does not smoke", "User doesn\u2019t smoke", True),
        ("User has 2 kids", "User has 3 kids", False),
        ("User lives in Seattle", "User does not live in Seattle", False),
        ("User never smokes", "User smokes", False),
        ("User does not eat meat", "Der Nutzer isst kein Fleisch", True),
        ("用户不吃肉", "El usuario no come carne", True),
        ("L'utilisateur ne fume pas", "ユーザーはタバコを吸わない", True),
        ("Пользователь не курит", "Пользователь курит", False),
        ("Der Nutzer isst Fleisch", "Der Nutzer isst kein Fleisch", False),
        ("用户吃肉", "用户不吃肉", False),
        ("उपयोगकर्ता मांस खाता है", "उपयोगकर्ता मांस नहीं खाता", False),
        ("Balance: -10 USD", "Balance: 10 USD", False),
        ("The limit is 1.5", "The limit is 1 5", False),
    ],
)
def test_other_digits_and_a_negation_make_two_claims(one: str, other: str, agree: bool) -> None:
    assert same_sense(one, other) is same_sense(other, one) is agree


# Off the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Off the record: I'm quitting",
        "This is OFF-THE-RECORD",
        "I quit, off the record",
        "I quit in May. Off the record, please!",
        "o\u200bff the record, I quit",
        "off the\nrecord, I quit",
        "Don\u2019t remember this: I like tea",
        "Confidential: we are merging",
        "don't tell anyone, but I won",
        "Between you and me - I can't stand it",
        "Unter uns: ich kündige",
        "Entre nosotros, voy a dejar el trabajo",
        "Entre nous : je démissionne",
        "Cá entre nós, vou sair",
        "Olá Ana, cá entre nós: vou sair",
        "Bí mật: tôi sắp nghỉ việc",
        "Dung luu dieu nay: toi sap nghi viec",
        "Que ca reste entre nous : je pars",
        "Miedzy nami: odchodze",
        "Aramizda kalsin, istifa edecegim",
        "ΕΜΠΙΣΤΕΥΤΙΚΑ: φεύγω",
        "Между нами: я ухожу",
        "ここだけの話、転職します",
        "ここだけの話なんだけど、転職します",
        "Por favor, no guardes esto: renuncio",
        "*Please*, don't tell anyone: I quit",
        "请保密：我要离职了",
        "Resta tra noi: me ne vado",
        "别告诉别人：我要离职了",
        "誰にも言わないで。転職します",
        "아무에게도 말하지 마. 나 이직해",
        "Hola, entre nosotros: voy a dejar el trabajo",
        "Hallo Ada! Unter uns: ich kündige",
        "Hey, please, don't tell anyone: I quit",
    ],
)
def test_a_message_that_begins_off_the_record_is_off_the_record(text: str) -> None:
    assert off_the_record(text)


@pytest.mark.parametrize(
    "text",
    [
        "It is very quiet here.",
        "This is private property",
        "The meeting was not off the record",
        "Entre nous deux tout va bien",
        "Bị mất: ví của tôi",
        "Unter uns wohnt eine Familie",
        "Confidential papers are boring: mine too",
        "I keep a secret diary",
        "Please remember this",
        "Please, this is a photo",
        "I quit. Confidential, that is not",
        "Hi, between us there is a wall",
        "Hello to all of you, confidential, that is not",
    ],
)
def test_messages_that_only_sound_confidential_are_on_the_record(text: str) -> None:
    assert not off_the_record(text)


@pytest.mark.parametrize(
    "text",
    [
        "# off the record\nx = 1",
        "x = 1  # off the record",
        "load()  # off the record",
        "Why does this fail?\n```python\n# off the record\nprint(1)\n```",
        "What does `off the record` mean here?",
        "// off the record\nconst x = 1;",
        "/* off the record */\nint main() {",
        "def f():\n    # off the record\n    return 1",
        "SELECT a FROM b; -- off the record",
        "#!/bin/sh\n# off the record\necho hi",
        "<!-- off the record -->\n<div>hi</div>",
        'log("off the record")',
        '"""\nOff the record.\n"""',
        'He said: "Off the record, I quit."',
        "> Between us\n> he lies\nI live in Oslo",
        "„Unter uns: er geht“, sagte sie",
    ],
)
def test_code_and_quotations_put_nothing_off_the_record(text: str) -> None:
    assert not off_the_record(text)


@pytest.mark.parametrize(
    "text",
    [
        "# Off the record\nI quit my job, and my salary = 85k",
        "**Off the record:** I quit",
        "- off the record\n- I quit",
        '"Great idea." Off the record: I quit',
        "Unter uns: „der Chef“ geht",
        "I am 5'10\", off the record, and he is 6'2\"",
        "Off the record: my code is\n```\nx = 1  # secret plan\n```",
    ],
)
def test_a_message_with_marks_or_code_in_it_may_be_off_the_record(text: str) -> None:
    assert off_the_record(text)


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
    ]
    assert [m.id for m in on_record(said)] == ["1", "2", "5", "6", "7"]
    assert [m.id for m in on_record(said, {"5"})] == ["1", "2", "7"]


# Commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Forget everything about me.", "everything"),
        ("Please delete all my data!", "everything"),
        ("erase my data", "everything"),
        ("Vergiss alles, was du über mich weißt.", "everything"),
        ("私のことをすべて忘れて", "everything"),
        ("Por favor, borra todos mis datos", "everything"),
        ("Oublie tout, s'il te plaît", "everything"),
        ("请忘记一切", "everything"),
        ("Забудь всё обо мне!", "everything"),
        ("LÜTFEN HER ŞEYİ UNUT!", "everything"),
        ("forget what I just said", "last"),
        ("My therapist told me: forget everything.", None),
        ("Oh man, forget all of it, I need a holiday.", None),
        ("A customer wrote: please delete all my data. What should I answer?", None),
        ("Forget everything you know about Perl", None),
        ("Don't forget everything", None),
        ("Forget that I live in Seattle", None),
    ],
)  # fmt: skip
def test_only_a_whole_message_is_a_command(text: str, expected: str | None) -> None:
    assert plain_command(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "pls forgett my boss",
        "Lösch das bitte",
        "Olvida mi número",
        "请忘记我住在北京",
        "Uitați unde locuiesc",
        "Adresimi sil",
        "Bórralo, por favor",
        "Wis dat alsjeblieft",
        "Slet min adresse",
        "Заборави ми адреса",
        "住所はわすれて",
        "ഞാൻ താമസിക്കുന്നത് മറക്കുക",
        "დაივიწყე ჩემი მისამართი",
        "yaar mera address bhool jao na 🙏",
        "mera number hata do",
        "4get my address pls",
        "Bitte nicht speichern, dass ich umziehe",
        "Ne garde pas cette adresse",
        "别记我的地址",
        "住所は覚えないで",
        "لا تحتفظ بعنواني",
        "मेरा पता याद मत रखना",
    ],
)
def test_words_of_many_languages_hasten_the_extraction(text: str) -> None:
    assert hastens(text)
    assert not hastens("Hello, how are you? I live in Oslo.")


@pytest.mark.parametrize("text", ["We have a fine garden.", "Everyone stocked up on water."], ids=str)
def test_parts_of_other_words_make_nothing_a_wish(text: str) -> None:
    assert not hastens(text)
