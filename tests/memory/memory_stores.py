"""Stores for tests of memory: in memory, in SQLite, in PostgreSQL; a server for the latter; an embedder of
keywords.

The fixtures `postgres_url`, `any_store` and `any_indexed_store` are in conftest.py.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from glob import glob
from typing import Any, Literal, TypeVar, cast
from uuid import uuid4

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from arbiter.memory.stores._opening import open_store

T = TypeVar("T")
Kind = Literal["memory", "sqlite", "postgres"]
KINDS: tuple[Kind, ...] = ("memory", "sqlite", "postgres")

NO_SERVER = "no PostgreSQL server"


class NoServerError(Exception):
    """The reason why no PostgreSQL server is available for tests."""


class KeywordEmbeddings(Embeddings):
    """One dimension for each keyword, and one that all texts have.

    `failing` are the results of the next calls: an exception is raised, a list is the vector of each text.
    `texts` are the embedded ones, `queries` the queries.
    """

    def __init__(self, *keywords: str) -> None:
        self.keywords = keywords
        self.dims = len(keywords) + 1
        self.failing: list[Exception | list[float]] = []
        self.texts: list[str] = []
        self.queries: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts.extend(texts)
        return self._vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        return self._vectors([text])[0]

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        if self.failing:
            failure = self.failing.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return [list(failure) for _ in texts]
        return [[0.1, *(float(keyword in text.lower()) for keyword in self.keywords)] for text in texts]


@contextmanager
def opened(
    kind: Kind, *, url: Callable[[], str], embeddings: KeywordEmbeddings | None = None
) -> Generator[BaseStore]:
    """A new store of that kind. `url` is called only if a PostgreSQL database is needed."""
    if kind == "memory":
        index: Any = None
        if embeddings is not None:
            index = {"dims": embeddings.dims, "embed": embeddings, "fields": ["claim"]}
        yield InMemoryStore(index=index)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # another test covers missing packages
        opening = open_store(
            url() if kind == "postgres" else ":memory:",
            embeddings=embeddings,
            dims=None if embeddings is None else embeddings.dims,
        )
        store = opening.__enter__()
    try:
        yield store
    finally:
        opening.__exit__(None, None, None)


class LoopThread:
    """An event loop on a thread of its own, as in a server."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


@contextmanager
def database() -> Generator[str]:
    """The URL of a new PostgreSQL database, dropped afterwards. Raises `NoServerError` without a server."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as error:
        raise NoServerError(f"{NO_SERVER}: {error.name} is not installed.") from error
    with server() as address:
        name = f"arbiter_test_{uuid4().hex[:12]}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            parts = conninfo_to_dict(make_conninfo(address, dbname=name))
            host = parts.pop("host", None) or ""
            rest = "&".join(
                f"{key}={value}" for key, value in {"host": host, **parts}.items() if key != "dbname"
            )
            yield f"postgresql:///{name}?{rest}"
        finally:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def emptied(url: str) -> None:
    """Empty every table of a database, except those that record its migrations."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '%migrations' "
            "AND tablename NOT LIKE '%version'"
        ).fetchall()
        # To truncate a table takes milliseconds, and a test fills few of them.
        filled = [f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for (table,) in tables]
        if filled and (used := connection.execute(" UNION ALL ".join(filled).encode()).fetchall()):
            connection.execute(f"TRUNCATE {', '.join(table for (table,) in used)} CASCADE".encode())


@contextmanager
def server() -> Generator[str]:
    """The address of a server: that of ARBITER_POSTGRES, else one on this machine, else a new one."""
    import psycopg

    named = os.environ.get("ARBITER_POSTGRES")
    local = [
        "dbname=postgres",
        "host=127.0.0.1 dbname=postgres",
        "host=127.0.0.1 user=postgres dbname=postgres",
    ]
    for candidate in [named] if named else local:
        try:
            with psycopg.connect(candidate, connect_timeout=3):
                pass
        except psycopg.Error:
            continue
        yield candidate
        return
    if named:
        raise NoServerError(f"{NO_SERVER}: ARBITER_POSTGRES names none that answers.")
    with _started() as started:
        yield started


@contextmanager
def _started() -> Generator[str]:
    found = shutil.which("initdb") or max(glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    if found is None:
        raise NoServerError(
            f"{NO_SERVER}: none answers on this machine, and none is installed. Set ARBITER_POSTGRES."
        )
    binaries = os.path.dirname(os.path.realpath(found))
    # The server does not run as root.
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    folder = tempfile.mkdtemp(prefix="arbiter-pg-")
    as_user: dict[str, Any] = {"check": True, "capture_output": True, "cwd": "/", "timeout": 60}
    if os.geteuid() == 0:
        as_user["user"] = user
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        subprocess.run([f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", user, "--no-sync"], **as_user)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        control = [f"{binaries}/pg_ctl", "-D", data, "-w", "-l", f"{folder}/log"]
        subprocess.run([*control, "-o", options, "start"], **as_user)
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoServerError(
            f"{NO_SERVER}: none answers on this machine, and none could be started ({type(error).__name__}). "
            "Set ARBITER_POSTGRES."
        ) from error
    try:
        yield f"host={folder} user={user} dbname=postgres"
    finally:
        subprocess.run(
            [*control, "-m", "immediate", "stop"], **cast("dict[str, Any]", {**as_user, "check": False})
        )
        shutil.rmtree(folder, ignore_errors=True)
