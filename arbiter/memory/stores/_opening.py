"""`open_store`: a store in a file or a database, with the best index that the machine supports."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from os import PathLike, fspath
from os.path import abspath
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore

from arbiter._threads.exits import drain_users
from arbiter._threads.forks import new_lock
from arbiter.errors import ConfigurationError, callers
from arbiter.memory.stores._portable import CLAIM
from arbiter.memory.stores._shared_locks import SharedLocks, ensure_open, file_locks, postgres_locks
from arbiter.memory.stores._vectors import LocalIndex, VectorTable
from arbiter.memory.stores._word_tables import Postgres, Sqlite, WordTables, by_index, keep_words

if TYPE_CHECKING:
    from langgraph.store.sqlite import SqliteStore
    from psycopg import Connection

_POSTGRES = ("postgresql://", "postgres://")
_SETUP_LOCK = 0x6172626974657201
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = 30.0
_NO_FILE = (":memory:", "")
_TRIES = 20


@contextmanager
def open_store(
    where: str | PathLike[str], *, embeddings: Embeddings | None = None, dims: int | None = None
) -> Generator[BaseStore]:
    """A store in the SQLite file `where` (":memory:" for none), or in the PostgreSQL database of a
    "postgresql://" URL.

    The store is set up, usable from any thread, and closed at the end of the `with` block, also if that ends with an
    exception, after the quiet conversations that wait for it have been worked through. With `embeddings` it can be
    searched by meaning; `dims` is the length of their vectors, determined by one call if not given.
    If the store's own index is not available (a Python that cannot load extensions into SQLite, a PostgreSQL
    without pgvector), `LocalIndex` compares vectors, with a warning. Raises `ConfigurationError` if a package
    is missing.

    Several processes may open the same store: its `lock_provider` brings locks that they share, in a file beside
    the SQLite file (for processes of one machine), or as advisory locks of the database. ":memory:" needs none.

    Open it with the same embeddings in every process: records written without embeddings are not found by
    meaning until `MemoryStore.areindex(..., everything=True)`.
    """
    if embeddings is not None and dims is None:
        dims = len(embeddings.embed_query("how long is a vector?"))
    index = None if embeddings is None or dims is None else index_of(embeddings, dims)
    name = fspath(where)
    with _postgres(name, index) if name.startswith(_POSTGRES) else _sqlite(name, index) as store:
        try:
            yield store
        finally:
            # Conversations that have not been read yet need the store.
            drain_users(store)


def index_of(embeddings: Embeddings, dims: int) -> dict[str, Any]:
    # SqliteStore reads `text_fields` where the others read `fields`, and embeds the whole value without it.
    return {"dims": dims, "embed": embeddings, "fields": [CLAIM], "text_fields": [CLAIM]}


@contextmanager
def _sqlite(path: str, index: Any) -> Generator[BaseStore]:
    try:
        from arbiter.memory.stores._sqlite import ForgettingStore
    except ImportError as error:
        raise _missing("a store in SQLite", "sqlite", error) from error
    with ExitStack() as stack:
        connection = stack.enter_context(closing(_connected(path)))
        # Each connection has a memory database of its own, which no other process can see.
        locks = None if path in _NO_FILE else stack.enter_context(closing(file_locks(path)))
        native = index if index is None or _loads_extensions(connection) else None
        # The program may change its working directory meanwhile.
        place = path if path in _NO_FILE else abspath(path)
        store = ForgettingStore(connection, place, index=native, lock_provider=locks)
        try:
            _set_up(store)
            # The index is found by its store, and must not keep it alive.
            database = Sqlite(store.conn, store.lock)
            found: BaseStore = store
            if index is not None and native is None:
                _warn("this Python cannot load SQLite's extensions")
                found = LocalIndex(store, VectorTable(database), index)
            keep_words(found, stack.enter_context(closing(WordTables(database))))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
                raise  # such as a full disk, or a lock of another program
            raise ConfigurationError(
                f"open_store({path!r}): {error}. The file is damaged, or belongs to another program. Restore it from "
                "a backup, or give another one."
            ) from error
        yield found


def _connected(path: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=_BUSY)
        # A file that is no database is noticed when it is read.
        connection.execute("PRAGMA schema_version")
        with suppress(sqlite3.OperationalError):  # another process is setting the same
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        # Deleted data is overwritten. Not every build of SQLite does so by default.
        connection.execute("PRAGMA secure_delete = ON")
        # Without it the vectors of deleted records stay in the file.
        connection.execute("PRAGMA foreign_keys = ON")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if connection is not None:
            connection.close()
        raise ConfigurationError(
            f"open_store({path!r}): {error}. Give the path of an SQLite file, or of a new one in a folder that "
            "exists, or the URL of a PostgreSQL database."
        ) from error
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
        from psycopg.rows import dict_row

        from arbiter.memory.stores._pools import Pool
    except ImportError as error:
        raise _missing("a store in PostgreSQL", "postgres", error) from error
    kwargs: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    # A server that was restarted has ended the connections that wait in the pools.
    options: dict[str, Any] = {"min_size": 1, "kwargs": kwargs, "check": ensure_open}
    with ExitStack() as stack:
        with closing(Connection[Any].connect(conninfo, autocommit=True)) as connection:
            # A pool retries an unreachable server for half a minute; this connection fails at once.
            pool = stack.enter_context(Pool(conninfo, max_size=8, **options))
            locks = stack.enter_context(postgres_locks(conninfo))
            beside = Pool(conninfo, max_size=4, configure=by_index, **options)
            database = Postgres(stack.enter_context(beside))
            _wait_for_turn(connection)
            if index is None or _has_pgvector(connection):
                store = _with_locks(PostgresStore(pool, index=index), locks)
            else:
                _warn("this PostgreSQL has no pgvector")
                plain = _with_locks(PostgresStore(pool), locks)
                store = LocalIndex(plain, VectorTable(database), index)
            keep_words(store, stack.enter_context(closing(WordTables(database))))
        yield store


def _with_locks(store: Any, locks: SharedLocks) -> BaseStore:
    """The store, set up, with the locks of its database."""
    store.lock_provider = locks
    # Its own lock, which another thread may hold at a fork, is free in the child.
    store.lock = new_lock()
    store.setup()
    found: BaseStore = store
    return found


def _wait_for_turn(connection: Connection[Any]) -> None:
    """Wait until no other process sets up the database; the lock ends with the connection.

    It polls: a waiting statement would block the other process's `CREATE INDEX CONCURRENTLY`.
    """
    while not connection.execute("SELECT pg_try_advisory_lock(%s)", (_SETUP_LOCK,)).fetchall()[0][0]:
        time.sleep(0.05)


def _has_pgvector(connection: Connection[Any]) -> bool:
    found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    return found is not None


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}, so embeddings are compared one by one in this process: exact, fast enough for some ten thousand "
        "records of one user, and slow beyond.",
        RuntimeWarning,
        stacklevel=callers(),
    )


def _missing(what: str, extra: str, error: ImportError) -> ConfigurationError:
    return ConfigurationError(f"{what} needs {error.name}: pip install 'arbiteros[{extra}]'")
