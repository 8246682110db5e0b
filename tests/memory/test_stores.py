"""One behaviour over every store: reading and writing, searching, changing under locks, from any thread and loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import BaseStore, GetOp, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

from arbiter.memory._records import Fact
from arbiter.memory.stores import Entry, Found, MemoryStore, Namespace, Value, namespace, ns_label
from arbiter.memory.stores._access import StoreLoopError
from arbiter.memory.stores._words import overlap, words_of
from tests.memory.memory_stores import KeywordEmbeddings, LoopThread
from tests.support import PATIENCE, Hold

NS = namespace("agent", "facts", "user-1")


def keys(entries: Iterable[Entry]) -> list[str]:
    return [entry.key for entry in entries]


def claims(found: Found) -> list[str]:
    return [entry.value["claim"] for entry in found.entries]


# Names --------------------------------------------------------------------------------------------

LONG = "x" * 10_000
HOSTILE: list[object] = [
    "user-1",
    "user-10",
    "user-1.facts",
    "bob.smith@example.com",
    "bob%2Esmith@example%2Ecom",
    "",
    "%00",
    "\x00",
    "\ufffd",
    "\ud800",
    "\udfff",
    "%ED%A0%80",
    "*",
    "%2A",
    "a/b",
    "日本語",
    "é",
    "e\u0301",
    "all",
    "langgraph",
    LONG + "a",
    LONG + "b",
    "é" * 5_000 + "a",
    "é" * 5_000 + "b",
    "." * 4_000,
    None,
    "None",
    True,
    "True",
    1.5,
    "1.5",
    "%!NoneType!None",
    7,
    UUID(int=7),
    "line\nbreak",
    "' OR 1=1 --",
]


def test_no_two_ids_share_a_label() -> None:
    """Also those that only differ at the end of 10,000 characters, or only as values that are no text."""
    labels = {ns_label(value) for value in HOSTILE}
    assert len(labels) == len(HOSTILE)
    assert ns_label("bob.smith@example.com") == "bob%2Esmith@example%2Ecom"
    assert ns_label("") == "%00"
    assert ns_label(7) == "7"


@given(st.text(st.characters()), st.text(st.characters()))
def test_labels_differ_as_their_ids_do(one: str, other: str) -> None:
    """And each is what a store takes as a label: without dots, NUL and lone surrogates, not empty, and short."""
    assert (ns_label(one) == ns_label(other)) == (one == other)
    label = ns_label(one)
    assert label
    assert not set(label) & {".", "*", "\x00"}
    assert len(label.encode()) <= 400


async def test_every_id_can_be_a_scope_and_every_text_a_key(any_store: BaseStore) -> None:
    """Each finds its own record and no other."""
    store = MemoryStore(any_store)
    ids = [str(value) if not isinstance(value, str) else value for value in HOSTILE]
    ids = list(dict.fromkeys(ids))
    for number, name in enumerate(ids):
        await store.aput(namespace(name, "facts", name), name, {"claim": f"number {number}", "n": number})
    for number, name in enumerate(ids):
        ns = namespace(name, "facts", name)
        assert (await store.aget(ns, name)) == {"claim": f"number {number}", "n": number}
        assert [entry.value["n"] for entry in await store.alist(ns)] == [number]
        assert [entry.value["n"] for entry in (await store.asearch(ns, "number")).entries] == [number]
    await store.adelete(namespace("", "facts", ""), "")
    assert await store.aget(namespace("", "facts", ""), "") is None


# Reading and writing ------------------------------------------------------------------------------


async def test_a_record_is_read_as_it_was_written(any_store: BaseStore) -> None:
    """Through a store and back, a `Fact` is the same."""
    at = datetime(2025, 3, 1, 12, tzinfo=UTC)
    fact = Fact(
        id="f1",
        claim="Bob's dog isn't \"old\" 🐶",
        type="fact",
        subject="user-1",
        agent_id="agent",
        provenance="self_reported",
        speaker="user-1",
        confidence=0.6,
        first_seen_at=at,
        last_seen_at=at,
        source_message_ids=("m1", "m2"),
        origin={"node": "reply", "deep": [1, {"x": None}]},
    )
    store = MemoryStore(any_store)
    await store.aput(NS, fact.id, fact.to_value())
    value = await store.aget(NS, fact.id)
    assert value is not None
    assert Fact.from_value(value) == fact
    assert await store.aget(NS, "f2") is None
    await store.aput(NS, fact.id, replace(fact, mention_count=2).to_value())
    assert [entry.value["mention_count"] for entry in await store.alist(NS)] == [2]
    await store.adelete(NS, fact.id)
    await store.adelete(NS, fact.id)
    assert await store.aget(NS, fact.id) is None


async def test_a_read_value_can_be_changed_without_changing_the_store(any_store: BaseStore) -> None:
    """And what was written can be changed afterwards."""
    store = MemoryStore(any_store)
    written: Value = {"claim": "a cat", "tags": ["one"]}
    await store.aput(NS, "k", written)
    written["tags"].append("two")
    for read in (await store.aget(NS, "k"), (await store.alist(NS))[0].value):
        assert read is not None
        read["tags"].append("three")
    (await store.asearch(NS, "cat")).entries[0].value["tags"].append("four")
    assert await store.aget(NS, "k") == {"claim": "a cat", "tags": ["one"]}
    written = await store.aupdate(NS, "l", lambda _: {"tags": ["one"]}) or {}
    written["tags"].append("two")
    assert await store.aget(NS, "l") == {"tags": ["one"]}


async def test_texts_that_a_database_refuses_are_stored(any_store: BaseStore) -> None:
    """U+FFFD stands for NUL and for half a character, in every store alike; two halves are the whole."""
    store = MemoryStore(any_store)
    await store.aput(
        NS, "k", {"claim": "a\x00b \ud800 \ud83d\ude00", "k\x00": ("x", float("nan"), [float("inf")])}
    )
    assert await store.aget(NS, "k") == {"claim": "a\ufffdb \ufffd 😀", "k\ufffd": ["x", None, [None]]}
    assert keys(await store.alist(NS, filter={"claim": "a\x00b \ud800 😀"})) == ["k"]
    assert keys((await store.asearch(NS, "a\x00b \udfff")).entries) == ["k"]


async def test_values_that_are_not_json_are_refused(any_store: BaseStore) -> None:
    store = MemoryStore(any_store)
    with pytest.raises(TypeError, match="datetime is not one"):
        await store.aput(NS, "k", {"at": datetime(2025, 1, 1, tzinfo=UTC)})
    assert await store.aget(NS, "k") is None


async def test_all_is_all_and_only_that_name_space(any_store: BaseStore) -> None:
    """More than LangGraph's default of ten; no record of a longer namespace or of one with the same
    beginning."""
    store = MemoryStore(any_store)
    for number in range(25):
        await store.aput(NS, f"k{number}", {"claim": f"claim {number}", "even": number % 2 == 0})
    others: list[Namespace] = [
        (*NS, "deeper"),
        namespace("agent", "facts", "user-10"),
        ("arbiter", "agent", "facts"),
    ]
    for other in others:
        for number in range(30):
            await store.aput(other, f"o{number}", {"claim": "claim of another"})
    assert sorted(keys(await store.alist(NS))) == sorted(f"k{number}" for number in range(25))
    assert len(await store.alist(NS, filter={"even": True})) == 13
    assert len(await store.alist(NS, filter={"even": True}, limit=12)) == 12
    assert len(await store.alist(NS, limit=20)) == 20
    assert await store.alist(NS, limit=0) == []
    found = await store.asearch(NS, "claim of another", limit=100)
    assert len(found.entries) == 25


async def test_the_newest_is_listed_first() -> None:
    """Where the store keeps the time exactly; SQLite keeps seconds."""
    store = MemoryStore(InMemoryStore())
    for key in ("a", "b", "c", "a"):
        await store.aput(NS, key, {"n": 1})
        await asyncio.sleep(0.001)
    assert keys(await store.alist(NS)) == ["a", "c", "b"]
    assert keys(await store.alist(NS, limit=2)) == ["a", "c"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"state": "active"}, "ab"),
        ({"state": {"$ne": "active"}}, "cd"),
        ({"n": {"$gte": 10}}, "bc"),
        ({"n": {"$lt": 10}}, "a"),
        ({"n": 9}, "a"),
        ({"flag": True}, "a"),
        ({"flag": 1}, "b"),
        ({"none": None}, "abcd"),
        ({"none": None, "n": 9}, "a"),
        ({"tags": ["x"]}, "d"),
        ({"at": {"$gt": "2025-02"}}, "b"),
        ({"odd.key": "v"}, "c"),
        ({"nothing": "x"}, ""),
    ],
    ids=str,
)
async def test_a_filter_means_the_same_everywhere(
    any_store: BaseStore, wanted: dict[str, Any], found: str
) -> None:
    """LangGraph's stores differ in numbers (PostgreSQL compares texts), in what is missing, and in true and 1."""
    store = MemoryStore(any_store)
    await store.aput(NS, "a", {"state": "active", "n": 9, "flag": True, "at": "2025-01-01"})
    await store.aput(NS, "b", {"state": "active", "n": 10, "flag": 1, "at": "2025-03-01"})
    await store.aput(NS, "c", {"state": "gone", "n": 100, "odd.key": "v"})
    await store.aput(NS, "d", {"n": None, "tags": ["x"]})
    assert "".join(sorted(keys(await store.alist(NS, filter=wanted)))) == found


class Recording(InMemoryStore):
    """Notes what it is asked."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(index=index)
        self.ops: list[Op] = []

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        self.ops.extend(given)
        return await super().abatch(given)


class WithTtl(Recording):
    supports_ttl = True


async def test_a_time_to_live_is_given_where_the_store_has_one() -> None:
    """In minutes. Where it has none, nothing is raised, and the record is written."""
    able, unable = WithTtl(), Recording()
    for inner in (able, unable):
        await MemoryStore(inner).aput(NS, "k", {"n": 1}, ttl=90)
        assert await MemoryStore(inner).aget(NS, "k") == {"n": 1}
    assert [op.ttl for op in able.ops if isinstance(op, PutOp)] == [1.5]
    assert [op.ttl for op in unable.ops if isinstance(op, PutOp)] == [None]


async def test_a_time_to_live_passes_in_every_store(any_store: BaseStore) -> None:
    store = MemoryStore(any_store)
    await store.aput(NS, "k", {"claim": "a cat"}, ttl=3600)
    assert await store.aget(NS, "k") == {"claim": "a cat"}
    assert len(await store.alist(NS)) == 1


async def test_reading_does_not_make_a_record_live_longer() -> None:
    inner = WithTtl()
    store = MemoryStore(inner)
    await store.aget(NS, "k")
    await store.alist(NS)
    assert [op.refresh_ttl for op in inner.ops if isinstance(op, GetOp | SearchOp)] == [
        False,
        False,
    ]


class Stingy(InMemoryStore):
    """A store that we do not know, which gives at most seven items at a time."""

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await super().abatch(
            [op._replace(limit=min(op.limit, 7)) if isinstance(op, SearchOp) else op for op in ops]
        )


class Proxy(BaseStore):
    """A user's own store, which says nothing about itself. Sync, async, or both."""

    def __init__(self, inner: BaseStore, *, sync: bool, asynchronous: bool) -> None:
        self.inner = inner
        self.sync = sync
        self.asynchronous = asynchronous

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        if not self.sync:
            raise NotImplementedError
        return self.inner.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        if not self.asynchronous:
            raise NotImplementedError
        return await self.inner.abatch(ops)


@dataclass(frozen=True)
class Named(BaseStore):
    """A user's own stores that are equal if they have the same name."""

    name: str
    inner: BaseStore = field(default_factory=InMemoryStore, compare=False)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self.inner.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self.inner.abatch(ops)


async def test_stores_that_are_equal_keep_their_records_apart() -> None:
    one, other = MemoryStore(Named("main")), MemoryStore(Named("main"))
    await one.aput(NS, "k", {"claim": "cat"})
    assert await other.aget(NS, "k") is None
    assert await one.aget(NS, "k") is not None


@pytest.mark.parametrize(("sync", "asynchronous"), [(True, False), (False, True), (True, True)])
async def test_any_store_of_a_user_will_do(sync: bool, asynchronous: bool) -> None:
    """Also one that gives fewer items than it is asked for, and one that has only half of the methods."""
    store = MemoryStore(Proxy(Stingy(), sync=sync, asynchronous=asynchronous))
    if sync and not asynchronous:
        cast(Any, store.store).inner = InMemoryStore()
    for number in range(30):
        await store.aput(NS, f"k{number}", {"claim": f"cat {number}"})
        await store.aput((*NS, "deeper"), f"d{number}", {"claim": "cat"})
    assert len(await store.alist(NS)) == 30
    assert len(await store.alist(NS, limit=12)) == 12
    found = await store.asearch(NS, "cat 7", limit=3)
    assert found.entries[0].key == "k7"
    assert not found.semantic


async def test_a_users_store_with_an_index_is_semantic(embeddings: KeywordEmbeddings) -> None:
    index: Any = {"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]}
    store = MemoryStore(Proxy(InMemoryStore(index=index), sync=False, asynchronous=True))
    await store.aput(NS, "c", {"claim": "cats sleep"})
    await store.aput(NS, "d", {"claim": "dogs bark"})
    found = await store.asearch(NS, "a cat?")
    assert found.semantic
    assert keys(found.entries) == ["c", "d"]


class Broken(InMemoryStore):
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        raise OSError("the disk is gone")


@pytest.mark.parametrize("operation", ["get", "put", "delete", "list", "search", "update", "reindex"])
async def test_errors_of_the_store_pass_through(embeddings: KeywordEmbeddings, operation: str) -> None:
    """They reach the caller unchanged, who decides how to handle them."""
    store = MemoryStore(Broken(index={"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]}))
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: store.aget(NS, "k"),
        "put": lambda: store.aput(NS, "k", {"claim": "a cat"}),
        "delete": lambda: store.adelete(NS, "k"),
        "list": lambda: store.alist(NS),
        "search": lambda: store.asearch(NS, "cat"),
        "update": lambda: store.aupdate(NS, "k", lambda _: {"n": 1}),
        "reindex": lambda: store.areindex(NS),
    }
    with pytest.raises(OSError, match="the disk is gone"):
        await calls[operation]()
    async with asyncio.timeout(PATIENCE):
        async with store.lock("record", *NS, "k"):  # nothing is left locked
            pass


# Searching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "likeness"),
    [
        ("User lives in Seattle", "user LIVES in seattle!", 1.0),
        ("a b c d", "a", 0.5),
        ("User has 2 cats", "User has 3 cats", 0.75),
        ("1.5", "1 5", 0.0),
        ("ＡＢＣ", "abc", 1.0),
        ("東京", "京都", 0.5),
        ("", "a", 0.0),
        ("...", "...", 0.0),
    ],
)
def test_likeness_by_words(one: str, other: str, likeness: float) -> None:
    assert overlap(words_of(one), words_of(other)) == pytest.approx(likeness)
    assert overlap(words_of(other), words_of(one)) == pytest.approx(likeness)


async def test_without_an_index_words_are_compared_and_not_called_semantic(any_store: BaseStore) -> None:
    """A record that shares no word with the query is not found, and every hit has a score."""
    store = MemoryStore(any_store)
    await store.aput(NS, "s", {"claim": "User lives in Seattle"})
    await store.aput(NS, "p", {"claim": "User lives in Portland, Oregon"})
    await store.aput(NS, "d", {"claim": "Dogs bark"})
    await store.aput(NS, "c", {"last_id": "User lives in Seattle"})
    found = await store.asearch(NS, "Where in seattle lives the user?")
    assert not found.semantic
    assert keys(found.entries) == ["s", "p"]
    assert all(entry.score is not None and entry.similarity is None for entry in found.entries)
    assert keys((await store.asearch(NS, "Where in seattle lives the user?", limit=1)).entries) == ["s"]
    for nothing in ("", "  ", "zebra"):
        assert (await store.asearch(NS, nothing)).entries in ([], ())


async def test_with_an_index_meaning_is_compared(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings
) -> None:
    """Of exactly that namespace, best first, and only the claim is embedded."""
    store = MemoryStore(any_indexed_store)
    await store.aput(NS, "c", {"claim": "cats sleep", "id": "dog-42", "at": "2025-01-01"})
    await store.aput(NS, "d", {"claim": "dogs bark"})
    await store.aput(NS, "x", {"last_id": "cat"})
    await store.aput(NS, "y", {"claim": "  "})
    for number in range(20):
        await store.aput((*NS, "deeper"), f"k{number}", {"claim": "cat cat"})
    assert set(embeddings.texts) == {"cats sleep", "dogs bark", "cat cat"}
    found = await store.asearch(NS, "cat")
    assert found.semantic
    assert keys(found.entries) == ["c", "d"]
    assert found.entries[0].similarity == pytest.approx(1.0, abs=1e-3)
    assert found.entries[1].similarity == pytest.approx(0.0099, abs=1e-3)
    assert keys((await store.asearch(NS, "dog", limit=1)).entries) == ["d"]


async def test_items_without_a_vector_are_found_by_their_words(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings
) -> None:
    """Another program may have put them into the namespace."""
    any_indexed_store.put(NS, "theirs", {"claim": "cat"}, index=False)
    store = MemoryStore(any_indexed_store)
    await store.aput(NS, "ours", {"claim": "dog"})
    found = {entry.key: entry.similarity for entry in (await store.asearch(NS, "cat")).entries}
    assert found == {"theirs": None, "ours": pytest.approx(0.0099, abs=1e-3)}
    assert await store.areindex(NS, everything=True) == 2
    assert keys((await store.asearch(NS, "cat")).entries) == ["theirs", "ours"]


FAILURES = {
    "raises": RuntimeError("the service is down"),
    "wrong dimension": [1.0, 2.0],
    "zeros": [0.0] * 6,
    "no numbers": [float("nan")] * 6,
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_an_embedder_that_fails_costs_nothing_but_the_vector(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings, failure: Exception | list[float]
) -> None:
    """The record is there and found by its words, the text that it had before is found no more, and the next try
    makes all good."""
    store = MemoryStore(any_indexed_store)
    await store.aput(NS, "other", {"claim": "work", "needs_embedding": False})
    await store.aput(NS, "k", {"claim": "a cat", "needs_embedding": False})
    assert keys((await store.asearch(NS, "cat")).entries) == ["k", "other"]

    embeddings.failing = [failure]
    await store.aput(NS, "k", {"claim": "a dog", "needs_embedding": False})
    assert embeddings.failing == []
    assert await store.aget(NS, "k") == {"claim": "a dog", "needs_embedding": True}
    for query in ("cat", "dog"):
        found = await store.asearch(NS, query)
        assert found.semantic
        assert {*keys(found.entries)} == ({"k", "other"} if query == "dog" else {"other"})
        assert [entry.similarity for entry in found.entries if entry.key == "k"] in ([], [None])

    assert await store.areindex(NS) == 1
    assert await store.aget(NS, "k") == {"claim": "a dog", "needs_embedding": False}
    found = await store.asearch(NS, "dog")
    assert keys(found.entries) == ["k", "other"]
    assert found.entries[0].similarity == pytest.approx(1.0, abs=1e-2)
    assert await store.areindex(NS) == 0


async def test_writing_again_embeds_pending_records(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings
) -> None:
    store = MemoryStore(any_indexed_store)
    embeddings.failing = [RuntimeError("down")]
    await store.aput(NS, "k", {"claim": "a cat"})
    value = await store.aupdate(NS, "k", lambda found: {**(found or {}), "mentions": 2})
    assert value == {"claim": "a cat", "mentions": 2, "needs_embedding": False}
    assert await store.aget(NS, "k") == value
    assert keys((await store.asearch(NS, "cat")).entries) == ["k"]


async def test_an_embedder_that_stays_down_is_not_asked_for_ever(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings
) -> None:
    """After three failures in a row it is left alone; one text that it never takes does not hold up the others."""
    store = MemoryStore(any_indexed_store)
    for number in range(6):
        embeddings.failing = [RuntimeError("down")]
        await store.aput(NS, f"k{number}", {"claim": f"cat {number}"})
    embeddings.failing = [RuntimeError("down")] * 6
    assert await store.areindex(NS) == 0
    assert len(embeddings.failing) == 3
    embeddings.failing = [RuntimeError("not this one")]
    assert await store.areindex(NS) == 5
    assert await store.areindex(NS) == 1


@pytest.mark.parametrize("failure", [RuntimeError("down"), [1.0, 2.0]], ids=["raises", "wrong dimension"])
async def test_a_query_that_cannot_be_embedded_is_asked_by_words(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings, failure: Exception | list[float]
) -> None:
    store = MemoryStore(any_indexed_store)
    await store.aput(NS, "c", {"claim": "The cat sleeps"})
    await store.aput(NS, "d", {"claim": "The dog barks"})
    embeddings.failing = [failure]
    found = await store.asearch(NS, "cat")
    assert not found.semantic
    assert keys(found.entries) == ["c"]
    assert (await store.asearch(NS, "cat")).semantic


async def test_a_programs_own_writes_are_not_checked(embeddings: KeywordEmbeddings) -> None:
    """A program's own writes to its store go as they went before Arbiter used it, vectors of zeros included."""
    inner = InMemoryStore(index={"dims": embeddings.dims, "embed": embeddings, "fields": ["text"]})
    await MemoryStore(inner).aput(NS, "k", {"claim": "a cat"})
    assert inner.embeddings is embeddings
    embeddings.failing = [[0.0] * embeddings.dims]
    inner.put(("mine",), "k", {"text": "anything"})
    assert inner.get(("mine",), "k") is not None
    assert cast(Any, inner.embeddings).keywords == embeddings.keywords


async def test_forgetting_leaves_nothing_to_be_found(
    any_indexed_store: BaseStore, embeddings: KeywordEmbeddings
) -> None:
    store = MemoryStore(any_indexed_store)
    await store.aput(NS, "k", {"claim": "a cat"})
    await store.adelete(NS, "k")
    found = await store.asearch(NS, "cat")
    assert [*found.entries] == []
    await store.aput(NS, "k", {"last_id": "m1"})
    assert (await store.asearch(NS, "cat")).entries == []


# Changing under locks -----------------------------------------------------------------------------


def counted(found: Value | None) -> Value:
    return {"n": (found or {"n": 0})["n"] + 1}


def from_four_threads(count: int, work: Callable[[], Any]) -> None:
    """Run `work` `count` times, all at the same time, on four threads with loops of their own."""
    failures: list[BaseException] = []

    def one_thread() -> None:
        async def all_at_once() -> None:
            await asyncio.gather(*(work() for _ in range(count // 4)))

        try:
            asyncio.run(all_at_once())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.lengthy
@pytest.mark.parametrize("count", [20, 200])
def test_no_change_is_lost(any_store: BaseStore, count: int) -> None:
    """Changes from four threads with their own event loops, through two `MemoryStore`s on one store, all count."""
    stores = [MemoryStore(any_store), MemoryStore(any_store)]
    turns = iter(range(count))
    from_four_threads(count, lambda: stores[next(turns) % 2].aupdate(NS, "k", counted))
    assert asyncio.run(stores[0].aget(NS, "k")) == {"n": count}


@pytest.fixture
def home() -> Generator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=["sqlite", "postgres"])
def async_store(request: pytest.FixtureRequest, home: LoopThread) -> Generator[BaseStore]:
    """An async store that belongs to the loop of another thread."""
    with ExitStack() as stack:

        async def opening() -> BaseStore:
            if request.param == "sqlite":
                from langgraph.store.sqlite.aio import AsyncSqliteStore

                manager: Any = AsyncSqliteStore.from_conn_string(":memory:")
            else:
                from langgraph.store.postgres.aio import AsyncPostgresStore

                manager = AsyncPostgresStore.from_conn_string(request.getfixturevalue("postgres_url"))
            store: Any = await manager.__aenter__()
            stack.callback(lambda: home.run(manager.__aexit__(None, None, None)))
            await store.setup()
            return cast(BaseStore, store)

        yield home.run(opening())


@pytest.mark.lengthy
@pytest.mark.parametrize("count", [20, 200])
def test_an_async_store_is_used_from_every_loop(async_store: BaseStore, home: LoopThread, count: int) -> None:
    """Its own, and those of other threads: no change is lost."""
    store = MemoryStore(async_store)
    from_four_threads(count, lambda: store.aupdate(NS, "k", counted))
    home.run(store.aupdate(NS, "k", counted))
    assert asyncio.run(store.aget(NS, "k")) == {"n": count + 1}
    assert len(home.run(store.alist(NS))) == 1


async def test_a_loop_that_does_not_run_is_named() -> None:
    """Instead of waiting for it for ever."""
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    thread = LoopThread()

    async def opening() -> tuple[Any, BaseStore]:
        manager = AsyncSqliteStore.from_conn_string(":memory:")
        return manager, await manager.__aenter__()

    manager, inner = thread.run(opening())
    thread.run(manager.__aexit__(None, None, None))
    thread.close()
    with pytest.raises(StoreLoopError, match=r"AsyncSqliteStore belongs to the event loop .* not running"):
        await MemoryStore(inner).aget(NS, "k")


class Slow(InMemoryStore):
    """A sync store whose writes take until `hold` is released."""

    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self.hold = hold

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        if any(isinstance(op, PutOp) for op in ops):
            self.hold()
        return super().batch(ops)


async def test_a_sync_store_does_not_hold_up_the_loop(hold: Hold) -> None:
    store = MemoryStore(Proxy(Slow(hold), sync=True, asynchronous=False))
    writing = asyncio.ensure_future(store.aput(NS, "k", {"n": 1}))
    while not (hold.begun.is_set() or writing.done()):
        await asyncio.sleep(0.005)
    hold.release()
    await writing


async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    """The same object is left, None deletes, and an object that was changed in place is written."""
    inner = Recording()
    store = MemoryStore(inner)
    assert await store.aupdate(NS, "k", lambda found: found) is None
    await store.aput(NS, "k", {"tags": ["one"]})
    before = len([op for op in inner.ops if isinstance(op, PutOp)])
    assert await store.aupdate(NS, "k", lambda found: found) == {"tags": ["one"]}
    assert len([op for op in inner.ops if isinstance(op, PutOp)]) == before

    def in_place(found: Value | None) -> Value | None:
        assert found is not None
        found["tags"].append("two")
        return found

    assert await store.aupdate(NS, "k", in_place) == {"tags": ["one", "two"]}
    assert await store.aget(NS, "k") == {"tags": ["one", "two"]}
    assert await store.aupdate(NS, "k", lambda _: None) is None
    assert await store.aget(NS, "k") is None


async def test_a_change_that_raises_leaves_the_record_and_the_lock() -> None:
    store = MemoryStore(InMemoryStore())
    await store.aput(NS, "k", {"n": 1})
    with pytest.raises(ZeroDivisionError):
        await store.aupdate(NS, "k", lambda _: {"n": 1 // 0})
    assert await store.aupdate(NS, "k", counted) == {"n": 2}


async def test_locks_are_served_in_order_and_by_name() -> None:
    """First come, first served; another name, or another store, is another lock."""
    inner = InMemoryStore()
    one, two = MemoryStore(inner), MemoryStore(inner)
    order: list[int] = []

    async def wait(number: int) -> None:
        async with (one if number % 2 else two).lock("room", "r"):
            order.append(number)

    async with one.lock("room", "r"):
        waiting: list[asyncio.Task[None]] = []
        for number in range(6):
            waiting.append(asyncio.ensure_future(wait(number)))
            await asyncio.sleep(0)
        other = MemoryStore(InMemoryStore())
        async with (
            asyncio.timeout(PATIENCE),
            one.lock("room.r"),
            one.lock("room", "q"),
            other.lock("room", "r"),
        ):
            pass
        await asyncio.sleep(0.01)
        assert order == []
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_waiter_that_gives_up_blocks_no_other() -> None:
    """Cancelled while it waits, or in the very moment in which it is its turn."""
    store = MemoryStore(InMemoryStore())

    async def wait() -> None:
        async with store.lock("room"):
            await asyncio.sleep(0)

    for moments in range(6):
        async with store.lock("room"):
            waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0.01)
            if moments == 0:
                waiting[0].cancel()
        for _ in range(moments):
            await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        async with asyncio.timeout(PATIENCE), store.lock("room"):
            pass
        await asyncio.gather(*waiting, return_exceptions=True)


def test_a_waiter_whose_loop_has_ended_blocks_no_other() -> None:
    store = MemoryStore(InMemoryStore())
    stopped = asyncio.new_event_loop()

    async def holding() -> None:
        async with store.lock("room"):
            task = stopped.create_task(store.lock("room").__aenter__())
            await asyncio.to_thread(stopped.run_until_complete, asyncio.sleep(0.05))
            assert not task.done()

    async def next_one() -> None:
        async with asyncio.timeout(PATIENCE), store.lock("room"):
            pass

    asyncio.run(holding())
    asyncio.run(next_one())
    for task in asyncio.all_tasks(stopped):
        task.cancel()
    stopped.run_until_complete(asyncio.sleep(0.01))
    stopped.close()
    asyncio.run(next_one())


async def test_a_write_on_its_way_keeps_its_lock(hold: Hold) -> None:
    """A caller that is cancelled during a change leaves at once; the change ends before the next one
    begins."""
    store = MemoryStore(Proxy(Slow(hold), sync=True, asynchronous=False))
    first = asyncio.ensure_future(store.aupdate(NS, "k", counted))
    while not hold.begun.is_set():
        await asyncio.sleep(0.005)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(store.aupdate(NS, "k", counted))
    await asyncio.sleep(0.02)
    assert not second.done()
    hold.release()
    assert await second == {"n": 2}


async def test_a_cancelled_wait_for_a_lock_writes_nothing() -> None:
    store = MemoryStore(InMemoryStore())
    async with store.lock("record", *NS, "k"):
        waiting = asyncio.ensure_future(store.aupdate(NS, "k", counted))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.sleep(0.01)
    assert await store.aget(NS, "k") is None


@pytest.mark.lengthy
def test_reading_while_others_write_in_memory(embeddings: KeywordEmbeddings) -> None:
    """An InMemoryStore has dictionaries without a lock, whose races stay hidden."""
    store = MemoryStore(InMemoryStore())
    numbers = iter(range(10_000))

    async def write_and_read() -> None:
        for _ in range(10):
            number = next(numbers)
            await store.aput(namespace("agent", "facts", f"u{number}"), f"k{number}", {"claim": f"{number}"})
            await store.aput(NS, f"k{number}", {"claim": f"{number}"})
            await store.alist(NS, filter={"claim": "1"})

    from_four_threads(80, write_and_read)
    assert len(asyncio.run(store.alist(NS))) == 800
