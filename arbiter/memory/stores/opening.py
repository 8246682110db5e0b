"""`open_store`: a store in a file or in a database, with what the machine has."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore

from arbiter.errors import ConfigurationError
from arbiter.memory.stores.values import CLAIM
from arbiter.memory.stores.vectors import LocalIndex, Rows, VectorTable

if TYPE_CHECKING:
    from langgraph.store.sqlite import SqliteStore
    from psycopg import Connection

_POSTGRES = ("postgresql://", "postgres://")
_SETUP_LOCK = 0x6172626974657201
_BUSY = 30.0
# A vector goes with its record, also where that is deleted by a process that knows of no vectors, or by its time to
# live. (SQLite does not count as deleted what is replaced.)
_FORGET_SQLITE = (
    "CREATE TRIGGER IF NOT EXISTS arbiter_forget AFTER DELETE ON store BEGIN "
    "DELETE FROM arbiter_vectors WHERE prefix = OLD.prefix AND key = OLD.key; END"
)
_FORGET_POSTGRES_FUNCTION = (
    "CREATE OR REPLACE FUNCTION arbiter_forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "DELETE FROM arbiter_vectors WHERE prefix = OLD.prefix AND key = OLD.key; RETURN OLD; END $$"
)
_FORGET_POSTGRES = (
    "CREATE TRIGGER arbiter_forget AFTER DELETE ON store FOR EACH ROW EXECUTE FUNCTION arbiter_forget()"
)
_TRIES = 20


@contextmanager
def open_store(
    where: str | PathLike[str], *, embeddings: Embeddings | None = None, dims: int | None = None
) -> Generator[BaseStore]:
    """A store in the SQLite file `where` (":memory:" for none), or in the PostgreSQL database of a "postgresql://" URL;
    set up, and closed at the end. Can be used by any thread.

    With `embeddings` it can be searched by meaning; `dims` is the length of their vectors, asked of them if it is not
    given. Where the index of the store is not to be had (a Python that cannot load extensions into SQLite, a PostgreSQL
    without pgvector), vectors are compared by `LocalIndex`, with a warning. `ConfigurationError` if a package is
    missing.

    Open it with the same embeddings in every process: one without them writes records that are not found by meaning
    until `MemoryStore.areindex(..., everything=True)`.
    """
    if embeddings is not None and dims is None:
        dims = len(embeddings.embed_query("how long is a vector?"))
    index = None if embeddings is None or dims is None else _index(embeddings, dims)
    name = fspath(where)
    with _postgres(name, index) if name.startswith(_POSTGRES) else _sqlite(name, index) as store:
        yield store


def _index(embeddings: Embeddings, dims: int) -> dict[str, Any]:
    # SqliteStore reads `text_fields` where the others read `fields`, and embeds the whole value without it.
    return {"dims": dims, "embed": embeddings, "fields": [CLAIM], "text_fields": [CLAIM]}


@contextmanager
def _sqlite(path: str, index: Any) -> Generator[BaseStore]:
    try:
        from arbiter.memory.stores._sqlite import ForgettingStore
    except ImportError as error:
        raise _missing("a store in SQLite", "sqlite", error) from error
    with closing(_connected(path)) as connection:
        if index is None or _loads_extensions(connection):
            store = ForgettingStore(connection, path, index=index)
            _set_up(store)
            yield store
            return
        _warn("this Python cannot load SQLite's extensions")
        store = ForgettingStore(connection, path)
        _set_up(store)
        with closing(_connected(path)) as beside:

            def run(statement: str, values: Sequence[Any]) -> Rows:
                return beside.execute(statement, values).fetchall()

            table = VectorTable(run, text="TEXT", binary="BLOB")
            if path != ":memory:":  # which is another database to each connection
                run(_FORGET_SQLITE, ())
            yield LocalIndex(store, table, index["embed"], index["dims"])


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=_BUSY)
    with suppress(sqlite3.OperationalError):  # somebody else is setting the same
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    # What is deleted is overwritten. Not every SQLite is built to do so by itself.
    connection.execute("PRAGMA secure_delete = ON")
    # Without it the vectors of what is deleted stay in the file.
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _loads_extensions(connection: sqlite3.Connection) -> bool:
    try:
        connection.enable_load_extension(True)
        connection.enable_load_extension(False)
    except (AttributeError, sqlite3.Error):
        return False
    return True


def _set_up(store: SqliteStore) -> None:
    for left in reversed(range(_TRIES)):
        try:
            store.setup()
            return
        except sqlite3.Error:  # another process is setting up the same file
            if not left:
                raise
            time.sleep(0.05)


@contextmanager
def _postgres(conninfo: str, index: Any) -> Generator[BaseStore]:
    try:
        from langgraph.store.postgres import PostgresStore
        from psycopg import Connection
        from psycopg.rows import dict_row, tuple_row
        from psycopg_pool import ConnectionPool
    except ImportError as error:
        raise _missing("a store in PostgreSQL", "postgres", error) from error
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ExitStack() as stack:
        with closing(Connection[Any].connect(conninfo, autocommit=True)) as connection:
            # A pool would try for half a minute to reach a server that is not there; this says so at once.
            pool = stack.enter_context(ConnectionPool[Any](conninfo, min_size=1, max_size=8, kwargs=options))
            _wait_for_turn(connection)
            if index is None or _has_pgvector(connection):
                plain = PostgresStore(pool, index=index)
                plain.setup()
                store: BaseStore = plain
            else:
                _warn("this PostgreSQL has no pgvector")
                plain = PostgresStore(pool)
                plain.setup()

                def run(statement: str, values: Sequence[Any]) -> Rows:
                    with pool.connection() as lent, lent.cursor(row_factory=tuple_row, binary=True) as cursor:
                        cursor.execute(statement.replace("?", "%s").encode(), values)
                        return cursor.fetchall() if cursor.description else []

                table = VectorTable(run, text='TEXT COLLATE "C"', binary="BYTEA")
                if not connection.execute(
                    "SELECT 1 FROM pg_trigger WHERE tgname = 'arbiter_forget'"
                ).fetchone():
                    run(_FORGET_POSTGRES_FUNCTION, ())
                    run(_FORGET_POSTGRES, ())
                store = LocalIndex(plain, table, index["embed"], index["dims"])
        yield store


def _wait_for_turn(connection: Connection[Any]) -> None:
    """One process at a time sets a database up; the lock is given back with the connection. Asked for again and again:
    a statement that waited would keep the other's `CREATE INDEX CONCURRENTLY` waiting for it."""
    while not connection.execute("SELECT pg_try_advisory_lock(%s)", (_SETUP_LOCK,)).fetchall()[0][0]:
        time.sleep(0.05)


def _has_pgvector(connection: Connection[Any]) -> bool:
    found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    return found is not None


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}, so that embeddings are compared one by one in this process: exact, good for some ten thousand "
        "records of one user, and slow beyond.",
        RuntimeWarning,
        stacklevel=2,
    )


def _missing(what: str, extra: str, error: ImportError) -> ConfigurationError:
    return ConfigurationError(f"{what} needs {error.name}: pip install 'arbiteros[{extra}]'")
