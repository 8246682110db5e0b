"""Searching memory by words: what is found among many records, at which cost, and what is found no longer."""

from __future__ import annotations

import asyncio
import math
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, Op, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from arbiter._threads.deadlines import start
from arbiter._values.normal import casefolded
from arbiter.errors import ParameterError
from arbiter.memory import FactsProvider, Memory, MemoryStore, ProviderContext, open_store
from arbiter.memory._characters import Character
from arbiter.memory._records import Fact
from arbiter.memory.facts import FactStore
from arbiter.memory.providers import acompose_context
from arbiter.memory.stores import Entry, Namespace, Value, namespace
from arbiter.memory.stores import _searching as searching
from arbiter.memory.stores import _word_tables as word_tables
from arbiter.memory.stores import _words as words
from arbiter.memory.stores._words import terms_of
from tests.memory.memory_stores import opened
from tests.processes import python
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]
NS = namespace("agent", "facts", "ada")
STATUS = namespace("agent", "status", "ada")
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def keys(entries: Iterable[Entry]) -> list[str]:
    return [entry.key for entry in entries]


async def put(store: BaseStore | MemoryStore, claims: dict[str, str], ns: Namespace = NS) -> MemoryStore:
    memory = store if isinstance(store, MemoryStore) else MemoryStore(store)
    await memory.aput_many((ns, key, {"claim": claim}) for key, claim in claims.items())
    return memory


async def found(store: BaseStore | MemoryStore, query: str, **options: Any) -> list[str]:
    memory = store if isinstance(store, MemoryStore) else MemoryStore(store)
    return keys((await memory.asearch(options.pop("places", NS), query, **options)).entries)


# What is found ------------------------------------------------------------------------------------


def plain_bm25(query: str, claims: dict[str, str]) -> dict[str, float]:
    """BM25 with a list of all documents, as a textbook has it."""
    documents = {key: terms_of(claim) for key, claim in claims.items()}
    mean = sum(map(sum, (d.values() for d in documents.values()))) / len(documents)
    frequency = Counter(word for document in documents.values() for word in document)
    scores: dict[str, float] = {}
    for key, document in documents.items():
        for word in terms_of(query):
            if times := document[word]:
                rarity = math.log(1 + (len(documents) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                length = sum(document.values()) / mean
                scores[key] = scores.get(key, 0) + rarity * times * 2.2 / (
                    times + 1.2 * (0.25 + 0.75 * length)
                )
    return scores


VERBS = ["owns", "sold", "painted", "borrowed", "repaired", "dreamt of"]
COLOURS = ["red", "green", "silver", "amber", "violet"]
THINGS = ["kayak", "lamp", "violin", "tent", "oven", "clock", "carpet", "drone", "harp", "ladder", "sofa"]
PLACES = ["Oslo", "Kiel", "Turin", "Quito", "Hanoi", "Perth", "Lagos"]


def claims_of(number: int, seed: int = 0) -> dict[str, str]:
    choose = random.Random(seed)
    return {
        f"k{n}": f"Ada {choose.choice(VERBS)} a {choose.choice(COLOURS)} {choose.choice(THINGS)}"
        + (f" in {choose.choice(PLACES)}" if choose.random() < 0.4 else "")
        for n in range(number)
    }


@pytest.mark.lengthy
@pytest.mark.parametrize("number", [7, 90, 700])
async def test_the_order_is_that_of_bm25_over_all_records(any_store: BaseStore, number: int) -> None:
    """Also with words that are in nearly all records, which are not read to their end."""
    claims = claims_of(number)
    memory = await put(any_store, claims)
    for query in ("Ada amber violin Oslo", "silver drone", "painted harp Hanoi Perth", "Ada sofa"):
        expected = plain_bm25(query, claims)
        best = sorted(expected.values(), reverse=True)[:12]
        entries = (await memory.asearch(NS, query, limit=12)).entries
        # The mean length is that of the newest records.
        assert [expected[entry.key] for entry in entries] == pytest.approx(best, rel=0.01)
        assert [entry.score for entry in entries] == pytest.approx(best, rel=0.01)


@pytest.mark.lengthy
async def test_an_old_record_is_found_among_thousands(any_store: BaseStore) -> None:
    memory = await put(any_store, {"old": "Ada once met a walrus in Tromsø"} | claims_of(3_000))
    assert (await found(memory, "did ada ever meet a walrus?", limit=3))[0] == "old"
    assert (await found(memory, "What happened in Tromso?", limit=3)) == ["old"]


@pytest.mark.lengthy
async def test_two_frequent_words_find_the_only_record_with_both(any_store: BaseStore) -> None:
    claims = {"both": "a blue bicycle"}
    claims |= {f"k{n}": "a blue car" if n % 2 else "a fast bicycle" for n in range(1_200)}
    assert (await found(await put(any_store, claims), "blue bicycle", limit=1)) == ["both"]


async def test_records_of_several_namespaces_compete(any_store: BaseStore) -> None:
    memory = await put(any_store, claims_of(50))
    await put(memory, {"s": "Ada is in Oslo until Friday"}, STATUS)
    await put(memory, {"b": "Bob is in Oslo until Friday"}, namespace("agent", "facts", "bob"))
    entries = (await memory.asearch([NS, STATUS], "Is she in Oslo until Friday?")).entries
    assert (entries[0].key, entries[0].ns) == ("s", STATUS)
    assert "b" not in keys(entries)


LANGUAGES = [
    ("用户住在奥斯陆", "我住在哪里？", [f"用户买了第{n}号商品" for n in range(30)]),
    (
        "ユーザーは東京に住んでいます",
        "どこに住んでいますか",
        ["ユーザーは猫が好きです", "ユーザーは医者です"],
    ),
    ("사용자는 오슬로에 산다", "오슬로", ["사용자는 고양이를 좋아한다", "사용자는 의사이다"]),
    ("ผู้ใช้อาศัยอยู่ในกรุงเทพ", "อาศัยอยู่ที่ไหน", ["ผู้ใช้มีแมวสองตัว", "ผู้ใช้ชอบดื่มกาแฟ"]),
    ("उपयोगकर्ता दिल्ली में रहता है", "दिल्ली", ["उपयोगकर्ता के पास बिल्ली है", "उपयोगकर्ता डॉक्टर है"]),
    ("Der Nutzer wohnt in Köln", "Wer wohnt in KOLN?", ["Der Nutzer hat einen Hund", "Der Nutzer ist Arzt"]),
    ("Пользователь живёт в Осло", "Кто живет в осло", ["Пользователь любит кофе", "У пользователя есть кот"]),
    ("Το όνομά της είναι Ελένη", "ελενη;", ["Έχει έναν σκύλο", "Είναι γιατρός"]),
]


@pytest.mark.parametrize(("claim", "query", "others"), LANGUAGES, ids=[c[0][:8] for c in LANGUAGES])
async def test_words_of_every_script_are_found(claim: str, query: str, others: Sequence[str]) -> None:
    """Without blanks between them, with accents or without, in any case."""
    claims = {"it": claim} | {f"k{n}": other for n, other in enumerate(others)}
    assert (await found(await put(InMemoryStore(), claims), query))[0] == "it"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lives", "living"),
        ("painted", "paint"),
        ("hobbies", "hobby"),
        ("Café", "CAFE"),
        ("ＡＢＣ", "abc"),
        ("٣٥", "35"),
    ],
)
def test_forms_of_a_word_are_one_term(one: str, other: str) -> None:
    assert terms_of(one) == terms_of(other)


@pytest.mark.parametrize(
    ("one", "other"), [("bus", "bu"), ("1.5", "1 5"), ("is", "i"), ("king", "k"), ("red", "r"), ("us", "u")]
)
def test_short_words_and_numbers_keep_their_form(one: str, other: str) -> None:
    assert terms_of(one) != terms_of(other)


HOME = {
    "Where is my home?": "User lives in Oslo",
    "What's my job?": "User works at Acme as a welder",
    "How old am I?": "User was born in 1990",
    "Do I have children?": "User has a daughter called Mia",
    "What pets do I have?": "User has a dog called Rex",
    "Do I have allergies?": "User is allergic to peanuts",
    "What shall I cook for dinner?": "User is a vegetarian",
}


@pytest.mark.parametrize("query", HOME)
async def test_plain_questions_find_their_answers_in_other_words(any_store: BaseStore, query: str) -> None:
    claims = {
        f"k{n}": f"User has bought {thing}" for n, thing in enumerate(["a lute", "a jar", "a fan"] * 13)
    }
    memory = await put(any_store, {"it": HOME[query]} | claims)
    assert (await found(memory, query))[0] == "it"


async def test_slots_and_values_are_words_of_a_record(any_store: BaseStore) -> None:
    """A slot is in English whatever the language of the claim."""
    memory = await put(any_store, claims_of(40))
    await memory.aput(
        NS, "it", {"claim": "Der Nutzer wohnt in Köln", "slot": "residence.city", "value": "Cologne"}
    )
    for query in ("Where is my home?", "my residence", "Cologne"):
        assert (await found(memory, query))[0] == "it"


async def test_a_query_of_function_words_finds_nothing(any_store: BaseStore) -> None:
    memory = await put(any_store, {"k": "What the user has is what it is"})
    for query in ("what is it?", "who am I", "...", " "):
        assert await found(memory, query) == []


async def test_the_last_of_the_words_of_a_long_query_count(any_store: BaseStore) -> None:
    memory = await put(any_store, {"old": "a walrus", "new": "a zebra"})
    assert await found(memory, "walrus " + "word " * 5_000 + "zebra") == ["new"]


def test_the_last_message_counts_most() -> None:
    """A question after talk of something else finds its answer."""
    store = InMemoryStore()
    remember(store, fact("it", "User lives in Oslo", last_seen_at=NOW - timedelta(days=9)))
    remember(store, *(fact(f"g{n}", f"User owns Fender guitar number {n}") for n in range(30)))
    remember(
        store, *(fact(f"k{n}", f"User bought {claim}") for n, claim in enumerate(claims_of(70).values()))
    )
    talk = ["I own a Fender guitar.", "Nice!", "Which number of Fender guitar is best?", "The first number."]
    ctx = context(store, "\n".join([*talk, "Where do I live?"]))
    shown = asyncio.run(acompose_context([FactsProvider()], ctx)).data["facts"]["facts"]
    assert "it" in [value["id"] for value in shown]
    assert any(value["id"].startswith("g") for value in shown)


# What is searched ---------------------------------------------------------------------------------


async def test_wanted_records_are_counted_and_others_are_not(any_store: BaseStore) -> None:
    memory = MemoryStore(any_store)
    await memory.aput_many((NS, f"k{n}", {"claim": "a cat", "n": n}) for n in range(60))

    def even(value: Value) -> bool:
        return int(value["n"]) % 2 == 0

    entries = (await memory.asearch(NS, "cat", limit=20, wanted=even)).entries
    assert len(entries) == 20
    assert all(entry.value["n"] % 2 == 0 for entry in entries)


async def test_closed_records_are_found_only_if_asked(any_store: BaseStore) -> None:
    memory = MemoryStore(any_store)
    await memory.aput(NS, "k", {"claim": "a cat", "state": "active"})
    assert await found(memory, "cat") == ["k"]
    for state in ("superseded", "corrected", "retracted", "expired"):
        await memory.aput(NS, "k", {"claim": "a cat", "state": state})
        assert await found(memory, "cat") == []
        assert await found(memory, "cat", closed=True) == ["k"]
    await memory.aput(NS, "k", {"claim": "a cat", "state": "disputed"})
    assert await found(memory, "cat") == ["k"]


async def test_the_latest_records_are_those_seen_last(any_store: BaseStore) -> None:
    """By the time in the record, not by the time of writing."""
    memory = MemoryStore(any_store)
    for n in (3, 1, 9, 4, 7):
        at = (NOW + timedelta(hours=n)).isoformat()
        await memory.aput([NS, STATUS][n % 2], f"k{n}", {"claim": "a cat", "last_seen_at": at, "n": n})
    assert keys(await memory.anewest([NS, STATUS], limit=3)) == ["k9", "k7", "k4"]
    assert keys(await memory.anewest([NS, STATUS], limit=2, wanted=lambda value: value["n"] < 7)) == [
        "k4",
        "k3",
    ]
    await memory.aupdate(NS, "k4", lambda value: {**(value or {}), "last_seen_at": "2027"})
    assert keys(await memory.anewest([NS, STATUS], limit=1)) == ["k4"]


async def test_records_are_found_by_their_links(any_store: BaseStore) -> None:
    memory = await put(any_store, claims_of(30))
    await memory.aput(NS, "a", {"claim": "a cat", "refines": "k1", "source_message_ids": ["m1", "m2"]})
    await memory.aput(STATUS, "b", {"claim": "a dog", "refines": "k1", "slot": "pet", "state": "superseded"})
    assert {*keys(await memory.alinked([NS, STATUS], "refines", ["k1", "k2"]))} == {"a", "b"}
    assert keys(await memory.alinked([NS, STATUS], "slot", ["pet"])) == ["b"]
    assert keys(await memory.alinked(NS, "source_message_ids", ["m2"])) == ["a"]
    await memory.aput(NS, "a", {"claim": "a cat", "source_message_ids": ["m1"]})
    assert keys(await memory.alinked([NS, STATUS], "refines", ["k1"])) == ["b"]
    assert await memory.alinked(NS, "source_message_ids", ["m2"]) == []
    assert await found(memory, "k1 m1") == []


# Forgetting and other programs --------------------------------------------------------------------


async def test_a_deleted_record_is_found_no_more(any_store: BaseStore) -> None:
    """However it is deleted."""
    memory = await put(any_store, dict.fromkeys("abcd", "a cat"))
    assert len(await found(memory, "cat")) == 4
    await memory.adelete(NS, "a")
    await memory.aupdate(NS, "b", lambda value: None)
    await memory.aput_many([(NS, "c", None)])
    any_store.delete(NS, "d")
    assert await found(memory, "cat") == []
    assert await memory.anewest(NS, limit=5) == []


async def test_a_changed_record_is_found_by_its_new_words_only(any_store: BaseStore) -> None:
    memory = await put(any_store, {"k": "a cat"})
    assert await found(memory, "cat") == ["k"]
    await memory.aput(NS, "k", {"claim": "a dog"})
    assert (await found(memory, "cat"), await found(memory, "dog")) == ([], ["k"])
    await memory.aput(NS, "k", {"n": 1})
    assert await found(memory, "dog") == []


def test_words_are_forgotten_although_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with open_store("memory.db") as store:
        memory = asyncio.run(put(store, {"k": "Ada keeps a xylophagous beetle"}))
        monkeypatch.chdir("elsewhere")
        asyncio.run(memory.adelete(NS, "k"))
        left = b"".join((tmp_path / name).read_bytes() for name in ("memory.db", "memory.db-wal"))
    assert b"xylophag" not in left
    assert [*(tmp_path / "elsewhere").iterdir()] == []


@pytest.mark.parametrize("searched", [False, True], ids=["before a search", "after a search"])
def test_forgotten_words_are_in_no_file(tmp_path: Path, searched: bool) -> None:
    """Neither in the index nor in the write-ahead log, while the store is open."""

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".db-shm").lower()

    with open_store(tmp_path / "memory.db") as store:
        memory = asyncio.run(put(store, claims_of(200) | {"k": "Ada keeps a xylophagous beetle"}))
        if searched:
            assert asyncio.run(found(memory, "xylophagous")) == ["k"]
        assert b"xylophagous" in files()
        asyncio.run(memory.adelete(NS, "k"))
        assert b"xylophag" not in files()
        assert asyncio.run(found(memory, "harp"))
        assert b"xylophag" not in files()


@pytest.mark.lengthy
def test_forgotten_words_are_in_no_table_of_postgres(postgres_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with open_store(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as beside:
        memory = asyncio.run(put(store, {"k": "Ada keeps a xylophagous beetle", "l": "a cat"}))
        asyncio.run(found(memory, "cat"))
        asyncio.run(memory.adelete(NS, "k"))
        for table in ("arbiter_words", "arbiter_records", "arbiter_unread", "store"):
            rows = beside.execute(f"SELECT * FROM {table}").fetchall()
            assert "xylophag" not in str(rows)
            assert table != "arbiter_words" or "cat" in str(rows)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_records_that_langgraphs_store_writes_are_found(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Before the store was opened here for the first time, and while it is open."""
    where = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "memory.db")
    opening: Any = PostgresStore if kind == "postgres" else SqliteStore
    with opening.from_conn_string(where) as theirs:
        theirs.setup()
        theirs.put(NS, "old", {"claim": "a walrus"})
        getattr(theirs.conn, "commit", lambda: None)()
        with open_store(where) as ours:
            memory = await put(ours, claims_of(30))
            assert await found(memory, "walrus") == ["old"]
            theirs.put(NS, "new", {"claim": "a zebra"})
            getattr(theirs.conn, "commit", lambda: None)()
            assert await found(memory, "zebra") == ["new"]
            theirs.delete(NS, "old")
            getattr(theirs.conn, "commit", lambda: None)()
            assert await found(memory, "walrus") == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.lengthy
async def test_a_users_own_database_gets_no_tables(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its records are found all the same, and those of another program as soon as it has written them."""
    where = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "theirs.db")
    if kind == "postgres":
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(where, autocommit=True) as emptying:
            emptying.execute("DROP SCHEMA public CASCADE")
            emptying.execute("CREATE SCHEMA public")
    opening: Any = PostgresStore if kind == "postgres" else SqliteStore
    with opening.from_conn_string(where) as theirs, opening.from_conn_string(where) as another:
        theirs.setup()
        memory = await put(theirs, claims_of(40))
        await found(memory, "harp")
        if kind == "sqlite":
            time.sleep(1.1)  # SQLite keeps to the second when something was written
        another.put(NS, "it", {"claim": "a walrus"})
        getattr(another.conn, "commit", lambda: None)()
        assert await found(memory, "walrus") == ["it"]
        another.delete(NS, "it")
        getattr(another.conn, "commit", lambda: None)()
        assert await found(memory, "walrus") == []
        if kind == "sqlite":
            tables = "SELECT name FROM sqlite_master"
        else:
            tables = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
        assert "arbiter" not in str(
            [dict(row) if kind == "postgres" else row for row in theirs.conn.execute(tables)]
        )


async def test_changes_by_another_program_are_found_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store that was opened elsewhere, and whose latest records do not come first."""
    now = 1_000.0
    monkeypatch.setattr(searching, "clock", lambda: now)
    store = InMemoryStore()
    memory = await put(store, {"k": "a cat"} | claims_of(30))
    assert await found(memory, "cat") == ["k"]
    store.put(NS, "k", {"claim": "a dog"})
    now += searching.REREAD + 1
    assert await found(memory, "dog") == ["k"]


class LateAnswers(InMemoryStore):
    """Answers a write of "slow" only when another one has been answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = asyncio.Event()

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        done = await super().abatch(given := list(ops))
        if any(isinstance(op, PutOp) for op in given):
            if "slow" in str(given):
                await self.answered.wait()
            self.answered.set()
        return done


async def test_of_two_writes_at_a_time_the_one_that_the_store_has_is_found() -> None:
    store = LateAnswers()
    memory = MemoryStore(store)
    await memory.aput(NS, "other", {"claim": "something else"})
    await found(memory, "something")
    store.answered.clear()
    slow = asyncio.create_task(memory.aput(NS, "k", {"claim": "slow words"}))
    await asyncio.sleep(0)
    await memory.aput(NS, "k", {"claim": "quick words"})
    await slow
    for number in range(100):  # a search looks at the newest records anyway
        await memory.aput(NS, f"newer{number}", {"claim": "something newer"})
    assert await found(memory, "quick") == ["k"]
    assert await found(memory, "slow") == []


async def test_many_namespaces_of_a_foreign_store_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The namespace searched longest ago is read again when it is searched again."""
    monkeypatch.setattr(searching, "_MOST", 100)
    memory = MemoryStore(InMemoryStore())
    spaces = [namespace("agent", "facts", f"user-{n}") for n in range(10)]
    for n, ns in enumerate(spaces):
        await put(memory, claims_of(40, n) | {"it": f"a walrus{n}"}, ns)
    for _ in range(2):
        for n, ns in enumerate(spaces):
            assert await found(memory, f"walrus{n}", places=ns) == ["it"]
    index = memory._access.words._index  # pyright: ignore[reportPrivateUsage]
    assert index.size() <= 150


async def test_users_without_records_take_bounded_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_MOST", 100)
    memory = MemoryStore(InMemoryStore())
    for n in range(150):
        assert await found(memory, "walrus", places=namespace("agent", "facts", f"user-{n}")) == []
    assert len(memory._access.words._due) <= 101  # pyright: ignore[reportPrivateUsage]


def test_a_search_for_a_new_user_takes_no_more_calls_with_more_users() -> None:
    """In a store whose index of words is in the process."""
    memory = MemoryStore(InMemoryStore())

    def searching_for(user: str) -> Callable[[], Any]:
        return lambda: asyncio.run(found(memory, "walrus", places=namespace("agent", "facts", user)))

    counts: list[int] = []
    for users in (range(10), range(10, 200)):
        for n in users:
            ns = namespace("agent", "facts", f"user-{n}")
            asyncio.run(put(memory, {"it": "a walrus"}, ns))
            assert asyncio.run(found(memory, "walrus", places=ns)) == ["it"]
        counts.append(calls_of(searching_for(f"new-{len(counts)}")))
    assert counts[1] <= counts[0] + 20


def calls_of(work: Callable[[], Any]) -> int:
    """The number of function calls that it takes on this thread."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


def test_searches_and_writes_at_the_same_time_leave_the_index_whole(any_store: BaseStore) -> None:
    """From four threads: in the end each record is found by its own word, and by no other."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        async def turns() -> None:
            memory = MemoryStore(any_store)
            choose = random.Random(number)
            for step in range(40):
                key = f"k{choose.randrange(25)}"
                if choose.random() < 0.2:
                    await memory.adelete(NS, key)
                else:
                    await memory.aput(NS, key, {"claim": f"word{choose.randrange(9)} and common"})
                if step % 3 == 0:
                    await memory.asearch(NS, f"word{choose.randrange(9)} common")

        try:
            asyncio.run(turns())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    async def check() -> None:
        memory = MemoryStore(any_store)
        held = {entry.key: entry.value["claim"].split()[0] for entry in await memory.alist(NS)}
        for word in {*held.values(), "word0"}:
            expected = {key for key, claim in held.items() if claim == word}
            assert {*await found(memory, word, limit=50)} == expected
        assert {*await found(memory, "common", limit=50)} == {*held}

    asyncio.run(check())


WRITER = """
import asyncio, random, sys
from arbiter.memory import MemoryStore, open_store
from arbiter.memory.stores import namespace

async def main(where, seed):
    choose = random.Random(seed)
    spaces = [namespace("agent", kind, "ada") for kind in ("facts", "status")]
    with open_store(where) as store:
        memory = MemoryStore(store)
        for step in range(30):
            ns, key = choose.choice(spaces), f"k{choose.randrange(15)}"
            if choose.random() < 0.2:
                await memory.adelete(ns, key)
            else:
                await memory.aput(ns, key, {"claim": f"word{choose.randrange(5)} common"})
            if step % 2:
                await memory.asearch(choose.sample(spaces, 2), "common")

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_search_does_not_wait_for_a_backlog(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It searches what is indexed, and a thread indexes the rest; closing the store ends that thread."""
    monkeypatch.setattr(searching, "PATIENCE", -1.0)
    searched = threading.Event()

    def started_later(work: Callable[[], object]) -> object:
        return start(lambda: searched.wait(PATIENCE) and work())

    monkeypatch.setattr(word_tables, "start", started_later)
    where = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "memory.db")
    with open_store(where) as store:
        memory = await put(store, {**claims_of(1_500), "w": "a walrus"})
        assert await found(memory, "walrus") == []
        searched.set()
        async with asyncio.timeout(PATIENCE):
            while not await found(memory, "walrus"):
                await asyncio.sleep(0.01)
        assert await found(memory, "walrus") == ["w"]
        await put(memory, {f"z{number}": f"zebra {number}" for number in range(2_500)})
        await found(memory, "zebra")
    with open_store(where) as store:
        monkeypatch.undo()
        assert len(await found(store, "zebra", limit=10)) == 10


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_import_leaves_nothing_to_index(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "memory.db")
    with open_store(where) as store:
        memory = Memory(store)
        memory.import_({"entity_id": "ada", "claim": f"Ada has owned walrus {n}"} for n in range(20))
        monkeypatch.setattr(searching, "PATIENCE", -1.0)
        assert len(memory.search("walrus", "ada", limit=20)) == 20


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_processes_share_an_index(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Three processes write, delete and search in the same namespaces; then each record is found, and no other."""
    where = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "memory.db")
    writers = [subprocess.Popen(python("-c", WRITER, where, str(seed)), cwd=ROOT) for seed in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    with open_store(where) as store:
        memory = MemoryStore(store)
        held = {
            (ns, entry.key): entry.value["claim"].split()[0]
            for ns in (NS, STATUS)
            for entry in await memory.alist(ns)
        }
        for word in {*held.values()}:
            entries = (await memory.asearch([NS, STATUS], word, limit=50)).entries
            assert {(entry.ns, entry.key) for entry in entries} == {
                at for at, has in held.items() if has == word
            }


# Cost ---------------------------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize("number", [100, 2_000])
async def test_a_search_reads_few_records_however_many_there_are(any_store: BaseStore, number: int) -> None:
    memory = await put(any_store, claims_of(number))
    await found(memory, "harp")
    read = 0
    call = memory._access.call  # pyright: ignore[reportPrivateUsage]

    async def counted(method: str, *args: Any, **options: Any) -> Any:
        nonlocal read
        results: Any = await call(method, *args, **options)
        read += len(results or ())
        return results

    memory._access.call = counted  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
    await memory.asearch(NS, "Ada silver harp Oslo", limit=10)
    await memory.anewest(NS, limit=10)
    assert 10 <= read <= 50


# With embeddings ----------------------------------------------------------------------------------


class Topics(Embeddings):
    """Knows that some words mean the same."""

    topics = (("home", "oslo"), ("music", "violin"))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [
            [0.1, *(float(any(word in text.lower() for word in topic)) for topic in self.topics)]
            for text in texts
        ]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


async def test_words_and_meaning_are_fused() -> None:
    """A name that no embedder knows is found by its letters, a paraphrase by its meaning, in one search."""
    store = InMemoryStore(index={"dims": 3, "embed": Topics(), "fields": ["claim"]})
    memory = MemoryStore(store)
    for key, claim in {"m": "Ada plays the violin", "z": "Ada knows Zdzisława"}.items():
        await memory.aput(NS, key, {"claim": claim})
    for n in range(50):
        await memory.aput(NS, f"k{n}", {"claim": f"Ada bought thing {n}"})
    result = await memory.asearch(NS, "Does Zdzislawa like music?", limit=5)
    assert result.semantic
    assert {*keys(result.entries)[:2]} == {"m", "z"}


class Nearness(Embeddings):
    """The number in a claim is its distance to every query."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._vector(int(re.findall(r"\d+", text)[0])) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._vector(0)

    def _vector(self, distance: int) -> list[float]:
        angle = distance / 40
        return [math.cos(angle), math.sin(angle)]


async def test_shared_words_do_not_push_out_what_a_question_means() -> None:
    """A dozen records that are somewhat near, and share a word with the question, leave room for a near one."""
    store = InMemoryStore(index={"dims": 2, "embed": Nearness(), "fields": ["claim"]})
    claims = {"near": "2 throws pots"} | {f"k{n}": f"{n} Ada has a hobby" for n in range(8, 22)}
    memory = MemoryStore(store)
    for key, claim in claims.items():
        await memory.aput(NS, key, {"claim": claim})
    assert "near" in await found(memory, "Which hobby does Ada have?", limit=12)


async def test_a_name_is_found_although_its_meaning_is_far() -> None:
    store = InMemoryStore(index={"dims": 2, "embed": Nearness(), "fields": ["claim"]})
    claims = {"name": "30 Ada knows Zdzisława"} | {f"k{n}": f"{n} Ada has a friend" for n in range(1, 15)}
    memory = MemoryStore(store)
    for key, claim in claims.items():
        await memory.aput(NS, key, {"claim": claim})
    assert "name" in await found(memory, "What about Zdzisława?", limit=12)


# Facts --------------------------------------------------------------------------------------------


def fact(id: str, claim: str, **known: Any) -> Fact:
    default = Fact(
        id=id,
        claim=claim,
        type="fact",
        subject="ada",
        agent_id="agent",
        provenance="self_reported",
        speaker="ada",
        confidence=0.6,
        first_seen_at=NOW,
        last_seen_at=NOW,
        room_ids=("room",),
    )
    return replace(default, **known)


def remember(store: BaseStore, *facts: Fact) -> None:
    for each in facts:
        store.put(
            namespace("agent", "status" if each.type == "status" else "facts", "ada"),
            each.id,
            each.to_value(),
        )


def day(month: int) -> datetime:
    return datetime(2025, month, 1, tzinfo=UTC)


MOVES = [
    fact(
        "s",
        "User lives in Seattle",
        first_seen_at=day(1),
        valid_to=day(4),
        state="superseded",
        superseded_by="p",
    ),
    fact(
        "p",
        "User lives in Portland",
        first_seen_at=day(4),
        valid_to=day(8),
        state="superseded",
        superseded_by="o",
    ),
    fact("o", "User lives in Oslo", first_seen_at=day(7), valid_from=day(8), supersedes="p"),
    fact("w", "User works at Acme", first_seen_at=day(6), valid_from=day(2)),
    fact("t", "User lives in a tent", type="status", first_seen_at=day(5), expires_at=day(6)),
    fact(
        "x", "User lives in Rome", first_seen_at=day(3), valid_to=day(3), state="corrected", superseded_by="s"
    ),
    fact("r", "User lives in Bonn", first_seen_at=day(3), valid_to=day(9), state="retracted"),
]


@pytest.mark.parametrize(
    ("when", "held"),
    [
        (day(1) - timedelta(days=1), []),
        (day(1), ["User lives in Seattle"]),
        (day(3), ["User lives in Seattle", "User works at Acme"]),
        (day(4), ["User lives in Portland", "User works at Acme"]),
        (day(5), ["User lives in Portland", "User lives in a tent", "User works at Acme"]),
        (day(7), ["User lives in Portland", "User works at Acme"]),
        (day(8), ["User lives in Oslo", "User works at Acme"]),
        (NOW, ["User lives in Oslo", "User works at Acme"]),
        (day(8).replace(tzinfo=None), ["User lives in Oslo", "User works at Acme"]),
    ],
)
def test_facts_search_and_provider_answer_for_a_date(when: datetime, held: list[str]) -> None:
    store = InMemoryStore()
    remember(store, *MOVES)
    memory = Memory(store, clock=lambda: NOW)
    assert sorted(each.claim for each in memory.facts("ada", as_of=when)) == held
    homes = sorted(each.claim for each in memory.search("Where does she live?", "ada", as_of=when))
    assert homes == [claim for claim in held if "lives" in claim]
    text = asyncio.run(acompose_context([FactsProvider(as_of=when)], context(store, "Where is home?"))).text
    assert sorted(re.findall(r"\] (User .*)", text)) == held


def test_states_at_a_date_are_those_of_then() -> None:
    store = InMemoryStore()
    remember(store, *MOVES)
    memory = Memory(store, clock=lambda: NOW)
    ended = memory.facts("ada", "superseded", as_of=day(5))
    assert [each.id for each in ended] == ["s"]
    assert {each.id for each in memory.facts("ada", None, as_of=day(5))} == {"s", "p", "w", "t", "x", "r"}
    assert [each.id for each in memory.facts("ada", as_of=NOW)] == [each.id for each in memory.facts("ada")]


@pytest.mark.parametrize("wrong", ["2025-01-01", 2025, True])
def test_a_date_of_another_type_is_an_error(wrong: Any) -> None:
    memory = Memory(InMemoryStore())
    for ask in (
        lambda: memory.facts("ada", as_of=wrong),
        lambda: memory.search("home", "ada", as_of=wrong),
        lambda: FactsProvider(as_of=wrong),
    ):
        with pytest.raises(ParameterError, match="expected a datetime"):
            ask()


# A bench of the provider --------------------------------------------------------------------------

TOPICS = {
    "Which instrument does she play?": "User plays an instrument called the {0}",
    "What is she allergic to?": "User is allergic to {0}",
    "Which language is she learning?": "User is learning the language {0}",
    "Which book did she finish?": "User finished the book {0}",
    "Which mountain did she climb?": "User climbed the mountain {0}",
    "What was the name of her teacher?": "User had a teacher with the name {0}",
    "Which city did she visit?": "User visited the city of {0}",
    "What does she collect?": "User collects {0}",
    "Which team does she support?": "User supports the team {0}",
    "Which meal does she cook?": "User cooks the meal {0}",
}


def context(store: BaseStore, query: str) -> ProviderContext:
    return ProviderContext(
        store=MemoryStore(store),
        agent_id="agent",
        room_id="room",
        entity_id="ada",
        clock=lambda: NOW,
        character=Character("Agent"),
        query=query,
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_of_a_hundred_facts_those_that_a_question_asks_for_are_shown(
    kind: Any, request: pytest.FixtureRequest
) -> None:
    """Ten of each of ten topics, mixed by time: all ten of the topic are among the fourteen that are shown."""
    words = random.Random(1)
    names = ["".join(words.choices("bdfgklmnprst", k=2)) + f"o{n}" for n in range(100)]
    made = [
        fact(f"f{n}", list(TOPICS.values())[n % 10].format(names[n]), last_seen_at=NOW - timedelta(days=n))
        for n in range(100)
    ]
    with opened(kind, url=lambda: str(request.getfixturevalue("postgres_url"))) as store:
        remember(store, *made)
        for number, query in enumerate(TOPICS):
            result = asyncio.run(acompose_context([FactsProvider()], context(store, query)))
            shown = [int(value["id"][1:]) for value in result.data["facts"]["facts"]]
            assert len(shown) == len(set(shown)) == 14
            assert sum(n % 10 == number for n in shown) == 10
            assert {0, 1} & {*shown}  # the latest, whatever is asked
            assert len(result.text) <= 4_000


@pytest.mark.lengthy
def test_the_block_is_bounded_however_long_the_facts_are() -> None:
    store = InMemoryStore()
    remember(store, *(fact(f"f{n}", f"User owns thing {n} " + "of gold " * 2_000) for n in range(100)))
    result = asyncio.run(
        acompose_context([FactsProvider(similar=60, recent=40)], context(store, "gold thing"))
    )
    assert len(result.data["facts"]["facts"]) == 100
    assert len(result.text) <= 4_000


def test_relevant_facts_of_extraction_come_from_the_same_search() -> None:
    """An old fact that a message is about is known to the extraction, whatever was said since."""
    store = InMemoryStore()
    remember(store, fact("old", "User owns a walrus", last_seen_at=NOW - timedelta(days=900)))
    remember(store, *(fact(f"f{n}", f"User bought {n}") for n in range(300)))
    facts = FactStore(MemoryStore(store), agent_id="agent", clock=lambda: NOW)
    known = asyncio.run(facts.relevant(["ada"], "My walrus is fine", room_id="room", limit=8))
    assert "old" in [each.id for each in known]
    assert len(known) == 9


def test_an_index_of_a_file_survives_a_python_without_it(tmp_path: Path) -> None:
    """A program that opens the file with SQLite alone can read, write and delete."""
    path = tmp_path / "memory.db"
    with open_store(path) as store:
        asyncio.run(found(asyncio.run(put(store, {"k": "a cat"})), "cat"))
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("DELETE FROM store WHERE key = 'k'")
        plain.execute(
            "INSERT INTO store (prefix, key, value) VALUES (?, 'l', '{\"claim\": \"a dog\"}')",
            (".".join(NS),),
        )
        plain.commit()
    with open_store(path) as store:
        assert asyncio.run(found(store, "cat dog")) == ["l"]


def test_numbers_that_an_older_version_has_indexed_are_found_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words in the tables of a file stay as long as their records."""
    with open_store(tmp_path / "memory.db") as store, monkeypatch.context() as older:
        older.setattr(words, "terms_of", partial(terms_of, fold=casefolded))
        asyncio.run(found(asyncio.run(put(store, {"k": "she keeps ٣٥ bees"})), "bees"))
    with open_store(tmp_path / "memory.db") as store:
        asyncio.run(put(store, {"l": "he keeps 35 hens"}))
        assert sorted(asyncio.run(found(store, "٣٥"))) == ["k", "l"]
