"""Forty short conversations in seven languages, read by a model that answers well, and by one that answers sloppily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.memory.dialogue_support import fact, status
from tests.memory.test_sloppy import Answer, Sloppy, talk
from tests.memory.test_talks import Part, says


def job(claim: str, **fields: Any) -> dict[str, Any]:
    return status(claim, kind="job", **fields)


def home(claim: str, **fields: Any) -> dict[str, Any]:
    return status(claim, kind="home", **fields)


def whose(subject: str, *claims: str) -> list[dict[str, Any]]:
    return [fact(claim, subject=subject) for claim in claims]


COOK, TEACHER = job("Sam is a cook", subject="Sam"), job("Sam is a teacher", subject="Sam")
TIRED, AWAKE = (status(f"User is {mood}", kind="mood") for mood in ("tired", "awake"))
COLOGNE, BONN, VIENNA, GRAZ = (home(f"User wohnt in {each}") for each in ("Köln", "Bonn", "Wien", "Graz"))
LYON, NICE = home("User habite à Lyon"), home("User habite à Nice")
KAZAN, RYAZAN = home("User живёт в Казани"), home("User живёт в Рязани")
BEIJING, SHANGHAI = job("用户在北京工作"), job("用户在上海工作")
BOSCH, QUIT = job("Ina arbeitet bei Bosch", subject="Ina"), fact("Ina hat gekündigt", subject="Ina")
CAT, BLACK = "User a un chat", "User a un chat noir"

# What is said, what a model finds, what it says of pairs, and what is known in the end.
DIALOGUES: dict[str, tuple[Sequence[str], Sequence[tuple[str, Part]], Any, Sequence[str]]] = {
    "one of two pets": (
        ["I have a cat, Miu, and a dog, Bo", "Please forget about Bo, he passed away"],
        [("Miu", says("User has a cat", "User has a dog")), ("passed", says("Bo has died", forget=["dog"]))],
        "unrelated",
        ["User has a cat", "Bo has died"],
    ),
    "a typing error in a date": (
        ["My flight is on the 12th", "typo: 21st"],
        [
            ("12th", says(status("User flies on the 12th"))),
            ("21st", says(status("User flies on the 21st", corrects=["m0"]))),
        ],
        "contradicts",
        ["User flies on the 21st"],
    ),
    "a secret that is told openly later": (
        ["Off the record: I got engaged", "ok it's official, I'm engaged!"],
        [("engaged", says(status("User is engaged")))],
        "unrelated",
        ["User is engaged"],
    ),
    "a brother's new job": (
        ["My brother Sam is a cook", "Sam became a teacher"],
        [("cook", says(COOK)), ("teacher", says(TEACHER))],
        "supersedes",
        ["Sam is a teacher"],
    ),
    "a mood": (
        ["I'm so tired today", "Coffee helped, I'm awake"],
        [("tired", says(TIRED)), ("awake", says(AWAKE))],
        "supersedes",
        ["User is awake"],
    ),
    "a quoted wish": (
        ["I like chess", "My friend said 'forget chess' lol"],
        [("like chess", says("User likes chess"))],
        "unrelated",
        ["User likes chess"],
    ),
    "a home that is told again after it was forgotten": (
        ["I live in Leeds", "Forget where I live", "I live in Leeds again"],
        [("in Leeds", says("User lives in Leeds")), ("Forget", says(forget=["Leeds"]))],
        "unrelated",
        ["User lives in Leeds"],
    ),
    "another name": (
        ["I'm Ada, I teach", "Call me Bea instead, I'm not Ada"],
        [("Ada, I", says(*whose("Ada", "Ada teaches"), names=["Ada"])), ("Bea", says(names=["Bea"]))],
        "unrelated",
        ["Ada teaches"],
    ),
    "a job that has ended": (
        ["I worked at IBM from 2010 to 2015", "I work at Acme since 2016"],
        [
            ("IBM", says(job("User worked at IBM", valid_from="2010", valid_to="2015"))),
            ("Acme", says(job("User works at Acme", valid_from="2016"))),
        ],
        "supersedes",
        ["User works at Acme"],
    ),
    "a dog called Null": (
        ["My dog is called Null", "Null likes bones"],
        [
            ("called", says(*whose("Null", "Null is a dog"))),
            ("likes", says(*whose("Null", "Null likes bones"))),
        ],
        "unrelated",
        ["Null is a dog", "Null likes bones"],
    ),
    "a German move, and its past": (
        ["Ich wohne in Köln", "Ich bin nach Bonn gezogen", "Vergiss Köln bitte"],
        [("in Köln", says(COLOGNE)), ("Bonn", says(BONN)), ("Vergiss", says(forget=["Köln"]))],
        "supersedes",
        ["User wohnt in Bonn"],
    ),
    "a German secret": (
        ["Unter uns: ich kündige", "Ich mag Tee"],
        [("kündige", says("User kündigt")), ("Tee", says("User mag Tee"))],
        "unrelated",
        ["User mag Tee"],
    ),
    "a German correction": (
        ["Meine Tochter heißt Lena", "Verschrieben: Leni"],
        [
            ("Lena", says("Die Tochter von User heißt Lena")),
            ("Leni", says(fact("Die Tochter von User heißt Leni", corrects=["m0"]))),
        ],
        "contradicts",
        ["Die Tochter von User heißt Leni"],
    ),
    "a German command": (
        ["Ich habe 80k Schulden", "Vergiss, was ich gerade gesagt habe"],
        [("Schulden", says(fact("User hat 80k Schulden", sensitivity="personal")))],
        "unrelated",
        [],
    ),
    "a German wife who quits": (
        ["Meine Frau Ina arbeitet bei Bosch", "Ina hat gekündigt"],
        [("Bosch", says(BOSCH)), ("gekündigt", says(QUIT))],
        "ends",
        ["Ina hat gekündigt"],
    ),
    "a German repetition": (
        ["Ich lerne Klavier", "Ich lerne immer noch Klavier"],
        [("lerne", says(status("User lernt Klavier", kind="hobby")))],
        "unrelated",
        ["User lernt Klavier"],
    ),
    "a German plan": (
        ["Ab 2027 wohne ich in Wien", "Ich wohne in Graz"],
        [("Wien", says({**VIENNA, "valid_from": "Mai 2027"})), ("Graz", says(GRAZ))],
        "unrelated",
        ["User wohnt in Graz"],
    ),
    "a Spanish wish": (
        ["Vivo en Lima y trabajo de médica", "Olvida mi trabajo"],
        [
            ("Lima", says(home("User vive en Lima"), job("User es médica"))),
            ("Olvida", says(forget=["médica"])),
        ],
        "unrelated",
        ["User vive en Lima"],
    ),
    "a Spanish secret": (
        ["Entre nosotros, mi jefe es un idiota", "Tengo dos hijos"],
        [("jefe", says("El jefe de User es un idiota")), ("hijos", says("User tiene 2 hijos"))],
        "unrelated",
        ["User tiene 2 hijos"],
    ),
    "a Spanish correction": (
        ["Mi cumpleaños es el 3 de mayo", "perdón, el 13"],
        [
            ("el 3", says(fact("User cumple el 3 de mayo", slot="birthday", value="3"))),
            ("el 13", says(fact("User cumple el 13 de mayo", slot="birthday", value="13", corrects=["m0"]))),
        ],
        "unrelated",
        ["User cumple el 13 de mayo"],
    ),
    "a Spanish mother who moves": (
        ["Mi madre vive en Quito", "Se mudó a Loja"],
        [
            ("Quito", says(home("Vive en Quito", subject="madre"))),
            ("Loja", says(home("Vive en Loja", subject="madre"))),
        ],
        "supersedes",
        ["Vive en Loja"],
    ),
    "a Spanish command": (
        ["Me gusta el té", "olvida todo lo que sabes de mí"],
        [("té", says("User gusta del té"))],
        "unrelated",
        [],
    ),
    "a Spanish joke": (
        ["Soy astronauta", "es broma, soy cartero"],
        [
            ("astronauta", says(job("User es astronauta"))),
            ("cartero", says(job("User es cartero", corrects=["m0"]))),
        ],
        "corrects",
        ["User es cartero"],
    ),
    "a French change of mind": (
        ["J'habite à Lyon", "En fait j'habite à Nice"],
        [("Lyon", says(LYON)), ("Nice", says(NICE))],
        "contradicts",
        ["User habite à Nice"],
    ),
    "a French secret": (
        ["Entre nous, je divorce", "J'ai un vélo"],
        [("divorce", says("User divorce")), ("vélo", says("User a un vélo"))],
        "unrelated",
        ["User a un vélo"],
    ),
    "a French wish": (
        ["Mon numéro de casier est 12, et j'aime l'art", "Oublie le casier"],
        [
            ("casier est", says("Le casier de User est le 12", "User aime l'art")),
            ("Oublie", says(forget=["casier"])),
        ],
        "unrelated",
        ["User aime l'art"],
    ),
    "a French birthday": (
        ["Mon ami Luc a 30 ans", "Luc a eu 31 ans hier"],
        [("30", says(*whose("Luc", "Luc a 30 ans"))), ("31", says(*whose("Luc", "Luc a 31 ans")))],
        "supersedes",
        ["Luc a 31 ans"],
    ),
    "a French name": (
        ["Zoé adore la mer", "Zoé c'est moi"],
        [("adore", says(*whose("Zoé", "Zoé adore la mer"))), ("moi", says(names=["Zoé"]))],
        "unrelated",
        ["Zoé adore la mer"],
    ),
    "a French detail": (
        ["J'ai un chat", "Il est noir, mon chat"],
        [("J'ai un chat", says(CAT)), ("noir", says(BLACK))],
        "refines",
        [CAT, BLACK],
    ),
    "a Japanese wish": (
        ["猫を飼っています", "猫のことは忘れてください"],
        [("飼って", says("ユーザーは猫を飼っている")), ("忘れて", says(forget=["猫"]))],
        "unrelated",
        [],
    ),
    "a Japanese change of plan": (
        ["来月パリに行きます", "やっぱりローマにします"],
        [
            ("パリ", says(status("ユーザーはパリに行く", kind="trip"))),
            ("ローマ", says(status("ユーザーはローマに行く", kind="trip", corrects=["m0"]))),
        ],
        "supersedes",
        ["ユーザーはローマに行く"],
    ),
    "a Japanese secret": (
        ["ここだけの話、転職します", "犬が好きです"],
        [("転職", says("ユーザーは転職する")), ("犬", says("ユーザーは犬が好き"))],
        "unrelated",
        ["ユーザーは犬が好き"],
    ),
    "a Chinese change of job": (
        ["我在北京工作", "我换到上海工作了"],
        [("北京", says(BEIJING)), ("上海", says(SHANGHAI))],
        "supersedes",
        ["用户在上海工作"],
    ),
    "a Chinese wish": (
        ["我对花生过敏", "请忘记我的过敏"],
        [("花生", says(fact("用户对花生过敏", sensitivity="personal"))), ("忘记", says(forget=["花生"]))],
        "unrelated",
        [],
    ),
    "a Chinese namesake": (
        ["我叫小明，我是医生", "我的朋友也叫小明"],
        [
            ("我叫", says(*whose("小明", "小明是医生"), names=["小明"])),
            ("朋友", says(*whose("小明 (朋友)", "朋友叫小明"))),
        ],
        "unrelated",
        ["小明是医生", "朋友叫小明"],
    ),
    "a Russian slip": (
        ["Я живу в Казани", "Ой, в Рязани"],
        [("Казани", says(KAZAN)), ("Рязани", says({**RYAZAN, "corrects": ["m0"]}))],
        "unrelated",
        ["User живёт в Рязани"],
    ),
    "a Russian secret": (
        ["Между нами: я увольняюсь", "Я люблю чай"],
        [("увольняюсь", says("User увольняется")), ("чай", says("User любит чай"))],
        "unrelated",
        ["User любит чай"],
    ),
    "a Russian son": (
        ["Мой сын Миша учится в МГУ", "Забудь про сына"],
        [("МГУ", says(*whose("Миша", "Миша учится в МГУ"))), ("Забудь", says(forget=["Миша"]))],
        "unrelated",
        [],
    ),
    "a Russian change of job": (
        ["Я дизайнер", "Теперь я программист"],
        [("дизайнер", says(job("User — дизайнер"))), ("программист", says(job("User — программист")))],
        "supersedes",
        ["User — программист"],
    ),
    "a Russian date": (
        ["С 2027 года живу в Рязани", "Пока живу в Казани"],
        [("Рязани", says({**RYAZAN, "valid_from": "2027-XX-XX"})), ("Казани", says(KAZAN))],
        "unrelated",
        ["User живёт в Казани"],
    ),
}


def _sloppily(answer: Answer) -> Answer:
    """The claims in a list for each type, with words for null and without their messages."""
    spare = {"subject": "null", "slot": "N/A", "valid_from": "unknown", "known_id": "none"}
    lists: Answer = {"facts": [], "statuses": [], **answer}
    for claim in lists.pop("claims"):
        kept = {key: part for key, part in claim.items() if key not in ("type", "source_message_ids")}
        lists["facts" if claim["type"] == "fact" else "statuses"].append({**spare, **kept})
    return {key: part or "none" for key, part in lists.items()}


@pytest.mark.lengthy
@pytest.mark.parametrize("shape", [dict, _sloppily], ids=["well", "sloppily"])
@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_what_is_known_after_a_dialogue_is_what_its_user_expects(
    dialogue: str, shape: Callable[[Answer], Answer]
) -> None:
    said, hears, compare, known = DIALOGUES[dialogue]
    chat = Sloppy(*hears, compare=compare, shape=shape)
    await talk(chat, *said)
    assert sorted(await chat.known()) == sorted(known)
