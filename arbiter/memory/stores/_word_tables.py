"""Indexes of words, in tables: of a store that `open_store` opened, next to the store's, in SQLite or PostgreSQL; of
any other store, in the memory of this process, by SQLite too.

    store ──(trigger)──▶ arbiter_unread ──(the next search)──▶ arbiter_records, arbiter_words

Triggers note each write in the writer's own transaction, also that of another process, or of a program that uses
LangGraph's store alone. The next search of a namespace indexes the records that are noted there; if that takes
longer than two seconds, it searches what is indexed, and a thread does the rest. A deleted record leaves all
three tables in the transaction that deletes it.

It is not SQLite's FTS5 or PostgreSQL's tsvector, because these count the words of all users together; see
docs/design/memory.md.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.store.base import BaseStore

from arbiter._threads.deadlines import start
from arbiter._threads.forks import hold_forks, new_lock, release_forks, renew_in_child
from arbiter._values.kinds import is_mapping
from arbiter.memory.stores._portable import Namespace, clean_text
from arbiter.memory.stores._words import EVERY, PAGE, Place, Posting, Written, written_of

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

_log = logging.getLogger("arbiter.memory")

Rows = list[tuple[Any, ...]]
Words = dict[tuple[Place, str], list[Posting]]
_CHUNK = 1_000
PATIENCE = 2.0
"""Seconds that a search waits for records to be indexed."""


class Work(NamedTuple):
    """A transaction; the parameters of its statements are written as `?`."""

    run: Callable[[str, Sequence[Any]], Rows]
    each: Callable[[str, Sequence[Sequence[Any]]], Rows]
    """Runs a statement for each row of parameters. Returns the rows of all."""
    add: Callable[[str, Sequence[Sequence[Any]]], None]
    """Inserts rows into a table (its name and columns), as quickly as the database can."""


Change = tuple[str, str, Written | None, int | None, int | None, str | None]
"""Prefix, key and words of a record, and its place, number and digest in the index, if it is there."""


class Database(ABC):
    """The dialect and connections of a store."""

    text = big = binary = serial = kind = ""
    is_set_up = ""
    """A statement with a row if the tables are there."""
    setup: Sequence[str] = ()
    forget_vectors: Sequence[str] = ()
    """Statements for a trigger that deletes the vector of a deleted record. They may be run again."""

    @abstractmethod
    def work(self, *, writing: bool = True) -> AbstractContextManager[Work]:
        """A transaction that commits at its end. With `writing=False` the statements may commit one by one."""

    def run(self, statement: str, *values: object) -> Rows:
        """The rows of one statement, which commits by itself."""
        with self.work(writing=False) as work:
            return work.run(statement, values)

    @abstractmethod
    def some(self, run: Work, place: int, words: Sequence[str], records: Sequence[int]) -> Rows:
        """Rows (word, record, count, length)."""

    @abstractmethod
    def taken(self, run: Work, prefixes: Sequence[str]) -> Rows:
        """Remove up to 1,000 noted records, the oldest first. Returns their rows (prefix, key)."""


_TABLES = (
    "CREATE TABLE arbiter_unread ({serial}, prefix {text} NOT NULL, key {text} NOT NULL, UNIQUE (prefix, key))",
    "CREATE TABLE arbiter_records (prefix {text} NOT NULL, key {text} NOT NULL, place {big} NOT NULL, "
    "record INTEGER NOT NULL, seen {text} NOT NULL, digest {text} NOT NULL, PRIMARY KEY (prefix, key), "
    "UNIQUE (place, record))",
    "CREATE INDEX arbiter_records_seen ON arbiter_records (place, seen, record)",
    "CREATE TABLE arbiter_words (place {big} NOT NULL, word {text} NOT NULL, record INTEGER NOT NULL, "
    "count INTEGER NOT NULL, length INTEGER NOT NULL, PRIMARY KEY (place, word, record)){kind}",
    "CREATE INDEX arbiter_words_record ON arbiter_words (place, record)",
)
_NOTED = (
    "SELECT given.prefix, given.key, store.value, known.place, known.record, known.digest "
    "FROM (SELECT ? AS prefix, ? AS key) AS given "
    "LEFT JOIN store ON store.prefix = given.prefix AND store.key = given.key "
    "LEFT JOIN arbiter_records known ON known.prefix = given.prefix AND known.key = given.key"
)
"""The record that is noted, as far as it is there or indexed."""
_SQLITE_FORGET = (
    "DELETE FROM arbiter_unread WHERE prefix = OLD.prefix AND key = OLD.key; "
    "DELETE FROM arbiter_words WHERE place = (SELECT place FROM arbiter_records WHERE prefix = OLD.prefix "
    "AND key = OLD.key) AND record = (SELECT record FROM arbiter_records WHERE prefix = OLD.prefix "
    "AND key = OLD.key); "
    "DELETE FROM arbiter_records WHERE prefix = OLD.prefix AND key = OLD.key; "
)
_SQLITE_NOTE = (
    "WHEN json_extract(NEW.value, '$.claim') IS NOT NULL OR EXISTS (SELECT 1 FROM arbiter_records "
    "WHERE prefix = NEW.prefix AND key = NEW.key) BEGIN "
    "INSERT OR REPLACE INTO arbiter_unread (prefix, key) VALUES (NEW.prefix, NEW.key); END"
)


class Sqlite(Database):
    """A connection, under a lock."""

    text, big, binary = "TEXT", "INTEGER", "BLOB"
    serial = "id INTEGER PRIMARY KEY AUTOINCREMENT"
    kind = " WITHOUT ROWID"
    is_set_up = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'arbiter_unread'"
    setup = (
        f"CREATE TRIGGER arbiter_words_added AFTER INSERT ON store {_SQLITE_NOTE}",
        f"CREATE TRIGGER arbiter_words_changed AFTER UPDATE OF value ON store {_SQLITE_NOTE}",
        f"CREATE TRIGGER arbiter_words_deleted AFTER DELETE ON store BEGIN {_SQLITE_FORGET} END",
        "INSERT INTO arbiter_unread (prefix, key) SELECT prefix, key FROM store "
        "WHERE json_extract(value, '$.claim') IS NOT NULL ORDER BY updated_at",
    )
    forget_vectors = (
        "CREATE TRIGGER IF NOT EXISTS arbiter_forget AFTER DELETE ON store BEGIN "
        "DELETE FROM arbiter_vectors WHERE prefix = OLD.prefix AND key = OLD.key; END",
    )

    def __init__(self, connection: sqlite3.Connection, lock: AbstractContextManager[Any]) -> None:
        self._connection, self._lock = connection, lock

    @contextmanager
    def work(self, *, writing: bool = True) -> Generator[Work]:
        connection = self._connection

        def run(statement: str, values: Sequence[Any]) -> Rows:
            found: Rows = connection.execute(statement, values).fetchall()
            return found

        def each(statement: str, values: Sequence[Sequence[Any]]) -> Rows:
            return [row for one in values for row in connection.execute(statement, one)]

        def add(table: str, rows: Sequence[Sequence[Any]]) -> None:
            if rows:
                connection.executemany(f"INSERT INTO {table} VALUES ({_marks(rows[0])})", rows)

        work = Work(run, each, add)
        with self._lock:
            if not writing:
                yield work
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield work
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def some(self, run: Work, place: int, words: Sequence[str], records: Sequence[int]) -> Rows:
        return run.run(
            "SELECT word, record, count, length FROM arbiter_words WHERE place = ? "
            f"AND word IN ({_marks(words)}) AND record IN ({_marks(records)})",
            (place, *words, *records),
        )

    def taken(self, run: Work, prefixes: Sequence[str]) -> Rows:
        found = run.run(
            f"SELECT prefix, key, id FROM arbiter_unread WHERE prefix IN ({_marks(prefixes)}) "
            f"ORDER BY id LIMIT {_CHUNK}",
            prefixes,
        )
        run.each("DELETE FROM arbiter_unread WHERE id = ?", [row[2:] for row in found])
        return [row[:2] for row in found]


_POSTGRES_NOTE = """
CREATE OR REPLACE FUNCTION arbiter_words_noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.value->>'claim' IS NOT NULL
        OR EXISTS (SELECT 1 FROM arbiter_records WHERE prefix = NEW.prefix AND key = NEW.key) THEN
        INSERT INTO arbiter_unread (prefix, key) VALUES (NEW.prefix, NEW.key)
            ON CONFLICT (prefix, key) DO UPDATE SET id = excluded.id;
    END IF;
    RETURN NEW;
END $$"""
_POSTGRES_FORGET = """
CREATE OR REPLACE FUNCTION arbiter_words_deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM arbiter_unread WHERE prefix = OLD.prefix AND key = OLD.key;
    DELETE FROM arbiter_words USING arbiter_records known WHERE known.prefix = OLD.prefix
        AND known.key = OLD.key AND arbiter_words.place = known.place AND arbiter_words.record = known.record;
    DELETE FROM arbiter_records WHERE prefix = OLD.prefix AND key = OLD.key;
    RETURN OLD;
END $$"""
_POSTGRES_SOME = """
SELECT words.word, given.record, found.count, found.length
FROM unnest(?::text[]) AS words (word) CROSS JOIN unnest(?::integer[]) AS given (record) CROSS JOIN LATERAL (
    SELECT count, length FROM arbiter_words WHERE place = ? AND arbiter_words.word = words.word COLLATE "C"
    AND arbiter_words.record = given.record LIMIT 1
) AS found"""
# Frequencies differ from user to user, and the statistics of a table do not know it: without these settings
# PostgreSQL reads and sorts all postings of a frequent word to return the last ones.
_BY_INDEX = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


def by_index(connection: Connection[Any]) -> None:
    """Make a connection of `Postgres` read by its indexes."""
    for setting in _BY_INDEX:
        connection.execute("SELECT set_config(%s, 'off', false)", (setting,))


class Postgres(Database):
    """A pool of connections, each prepared with `by_index`."""

    text, big, binary = 'TEXT COLLATE "C"', "BIGINT", "BYTEA"
    serial = "id BIGSERIAL PRIMARY KEY"
    is_set_up = "SELECT 1 WHERE to_regclass('arbiter_unread') IS NOT NULL"
    setup = (
        _POSTGRES_NOTE,
        _POSTGRES_FORGET,
        "CREATE TRIGGER arbiter_words_noted AFTER INSERT OR UPDATE OF value ON store "
        "FOR EACH ROW EXECUTE FUNCTION arbiter_words_noted()",
        "CREATE TRIGGER arbiter_words_deleted AFTER DELETE ON store "
        "FOR EACH ROW EXECUTE FUNCTION arbiter_words_deleted()",
        "INSERT INTO arbiter_unread (prefix, key) SELECT prefix, key FROM store "
        "WHERE value->>'claim' IS NOT NULL ORDER BY updated_at",
    )
    forget_vectors = (
        "CREATE OR REPLACE FUNCTION arbiter_forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "DELETE FROM arbiter_vectors WHERE prefix = OLD.prefix AND key = OLD.key; RETURN OLD; END $$",
        "DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'arbiter_forget') THEN CREATE TRIGGER "
        "arbiter_forget AFTER DELETE ON store FOR EACH ROW EXECUTE FUNCTION arbiter_forget(); END IF; END $$",
    )

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool

    @contextmanager
    def work(self, *, writing: bool = True) -> Generator[Work]:
        from psycopg.rows import tuple_row

        with (
            self._pool.connection() as connection,
            connection.cursor(row_factory=tuple_row, binary=True) as cursor,
        ):

            def run(statement: str, values: Sequence[Any]) -> Rows:
                cursor.execute(statement.replace("?", "%s").encode(), values)
                return cursor.fetchall() if cursor.description else []

            def each(statement: str, values: Sequence[Sequence[Any]]) -> Rows:
                found: Rows = []
                if values:
                    # In one round trip.
                    cursor.executemany(statement.replace("?", "%s").encode(), values, returning=True)
                    found += cursor.fetchall() if cursor.description else []
                    while cursor.nextset():
                        found += cursor.fetchall() if cursor.description else []
                return found

            def add(table: str, rows: Sequence[Sequence[Any]]) -> None:
                if rows:
                    with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copying:
                        for row in rows:
                            copying.write_row(row)

            work = Work(run, each, add)
            if not writing:
                yield work
                return
            with connection.transaction():
                yield work

    def some(self, run: Work, place: int, words: Sequence[str], records: Sequence[int]) -> Rows:
        return run.run(_POSTGRES_SOME, (list(words), list(records), place))

    def taken(self, run: Work, prefixes: Sequence[str]) -> Rows:
        # Two processes must not number the records of one place alike.
        for prefix in sorted(prefixes):
            run.run("SELECT pg_advisory_xact_lock(?)", (_place(prefix, is_open=True),))
        found = run.run(
            "DELETE FROM arbiter_unread WHERE id IN (SELECT id FROM arbiter_unread WHERE prefix = ANY(?) "
            f"ORDER BY id LIMIT {_CHUNK} FOR UPDATE SKIP LOCKED) RETURNING id, prefix, key",
            (list(prefixes),),
        )
        return [row[1:] for row in sorted(found)]


class Index:
    """Records by their words and their time, in the tables of a database. Each place numbers its records from 1."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_up(self, work: Work, more: Sequence[str] = ()) -> None:
        types = {name: getattr(self._database, name) for name in ("text", "big", "serial", "kind")}
        for statement in (*(table.format(**types) for table in _TABLES), *more):
            work.run(statement, ())

    def write(self, work: Work, changes: Iterable[Change]) -> None:
        """Index records anew, and remove those without words."""
        last: dict[int, int] = {}
        gone: list[tuple[int, int]] = []
        lost: list[tuple[str, str]] = []
        seen: list[tuple[str, str, str]] = []
        records: list[tuple[str, str, int, int, str, str]] = []
        words: list[tuple[int, str, int, int, int]] = []
        for prefix, key, written, old_place, old_record, old_digest in changes:
            if written is not None:
                place, digest = _place(prefix, is_open=written.is_open), _digest(written)
                if (place, digest) == (old_place, old_digest):
                    seen.append((written.seen, prefix, key))
                    continue
                if place not in last:
                    found = work.run("SELECT max(record) FROM arbiter_records WHERE place = ?", (place,))
                    last[place] = found[0][0] or 0
                number = last[place] = last[place] + 1
                records.append((prefix, key, place, number, written.seen, digest))
                length = sum(written.words.values())
                words += [
                    (place, word, number, count, length)
                    for word, count in {EVERY: 1, **written.words}.items()
                ]
            if old_place is not None and old_record is not None:
                gone.append((old_place, old_record))
                lost.append((prefix, key))
        work.each("DELETE FROM arbiter_words WHERE place = ? AND record = ?", gone)
        work.each("DELETE FROM arbiter_records WHERE prefix = ? AND key = ?", lost)
        work.each("UPDATE arbiter_records SET seen = ? WHERE prefix = ? AND key = ?", seen)
        work.add("arbiter_records (prefix, key, place, record, seen, digest)", records)
        work.add("arbiter_words (place, word, record, count, length)", words)

    def pages(self, places: Sequence[Place], words: Sequence[str]) -> Words:
        """The newest postings of each word, newest first, at most `PAGE` of each."""
        by_id = {_place_of(place): place for place in places}
        found: Words = defaultdict(list)
        rows = self._each(
            "SELECT place, word, record, count, length FROM arbiter_words WHERE place = ? AND word = ? "
            f"ORDER BY record DESC LIMIT {PAGE}",
            [(place, word) for place in by_id for word in words],
        )
        for place, word, *posting in rows:
            found[by_id[place], word].append(Posting(*posting))
        return found

    def rest(self, place: Place, word: str, before: int, most: int) -> list[Posting]:
        """At most `most` postings of records before that one, newest first."""
        rows = self._database.run(
            "SELECT record, count, length FROM arbiter_words WHERE place = ? AND word = ? AND record < ? "
            "ORDER BY record DESC LIMIT ?",
            *(_place_of(place), word, before, most),
        )
        return [Posting(*row) for row in rows]

    def some(self, place: Place, words: Sequence[str], records: Sequence[int]) -> dict[str, list[Posting]]:
        """The postings of these words for these records."""
        found: dict[str, list[Posting]] = defaultdict(list)
        if not words or not records:
            return found
        with self._database.work(writing=False) as work:
            for word, *posting in self._database.some(work, _place_of(place), words, records):
                found[word].append(Posting(*posting))
        return found

    def keys(self, place: Place, records: Sequence[int]) -> dict[int, str]:
        """The keys of records by their numbers."""
        at = _place_of(place)
        statement = "SELECT record, key FROM arbiter_records WHERE place = ? AND record = ?"
        return dict(self._each(statement, [(at, record) for record in records]))

    def newest(self, place: Place, offset: int, limit: int) -> list[str]:
        """The keys of records, the latest first."""
        rows = self._database.run(
            "SELECT key FROM arbiter_records WHERE place = ? ORDER BY seen DESC, record DESC LIMIT ? OFFSET ?",
            *(_place_of(place), limit, offset),
        )
        return [key for (key,) in rows]

    def _each(self, statement: str, values: Sequence[Sequence[Any]]) -> Rows:
        with self._database.work(writing=False) as work:
            return work.each(statement, values)


class WordTables(Index):
    """The index of a store that `open_store` opened."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._is_closed = False
        self.renew()
        renew_in_child(self)
        if database.run(database.is_set_up):
            return
        with database.work() as work:
            if not work.run(database.is_set_up, ()):  # else another process was faster
                self.set_up(work, database.setup)

    def renew(self) -> None:
        """Forget the threads of the parent process after a fork."""
        self._guard = new_lock()
        self._rest: dict[tuple[str, ...], Future[None]] = {}

    def refresh(self, spaces: Sequence[Namespace], seconds: float | None = None) -> None:
        """Index what was written in these namespaces since. After `seconds` a thread does
        the rest."""
        prefixes = tuple(".".join(ns) for ns in spaces)
        if not self._refresh(prefixes, None if seconds is None else monotonic() + seconds):
            with self._guard:
                if not self._is_closed and prefixes not in self._rest:
                    self._rest[prefixes] = start(lambda: self._finish(prefixes))

    def close(self) -> None:
        """End the threads of this index, before the connections are closed."""
        with self._guard:
            self._is_closed = True
            rest = [*self._rest.values()]
        for working in rest:
            working.exception()  # waits

    def _finish(self, prefixes: tuple[str, ...]) -> None:
        try:
            self._refresh(prefixes, None)
        except Exception as exc:  # the next search reports what is wrong with the database
            _log.debug("records could not be indexed: %s", type(exc).__name__)
        finally:
            with self._guard:
                self._rest.pop(prefixes, None)

    def _refresh(self, prefixes: Sequence[str], end: float | None) -> bool:
        """False if the time was over."""
        noted = f"SELECT 1 FROM arbiter_unread WHERE prefix IN ({_marks(prefixes)}) LIMIT 1"
        while not self._is_closed:
            if not self._database.run(noted, *prefixes):
                return True
            if end is not None and monotonic() > end:
                return False
            with self._database.work() as work:
                taken = self._database.taken(work, prefixes)
                # Statements of their own after `taken`: they see every write that was noted before.
                found = work.each(_NOTED, taken)
                self.write(work, [(row[0], row[1], _written(row[2]), *row[3:]) for row in found])
                if not taken:
                    return True  # others are at it
        return True


class MemoryIndex(Index):
    """An index in this process, of a store that was not opened by `open_store`."""

    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        # Not at the end of the process: quiet threads are still worked through then.
        weakref.finalize(self, connection.close).atexit = False
        super().__init__(Sqlite(connection, _Alone()))
        with self._database.work() as work:
            self.set_up(work)

    def put(self, ns: Namespace, records: Mapping[str, Written | None]) -> None:
        """Index records anew; None removes one. Keys with lone surrogates, which UTF-8 lacks, are left out."""
        prefix = clean_text(".".join(ns))
        records = {key: new for key, new in records.items() if _is_utf8(key)}
        with self._database.work() as work:
            known = work.each(
                "SELECT key, place, record, digest FROM arbiter_records WHERE prefix = ? AND key = ?",
                [(prefix, key) for key in records],
            )
            before = {key: (place, record, digest) for key, place, record, digest in known}
            none = None, None, None
            self.write(work, [(prefix, key, new, *before.get(key, none)) for key, new in records.items()])

    def held(self, ns: Namespace) -> list[str]:
        """The keys of the records of a namespace."""
        statement = "SELECT key FROM arbiter_records WHERE prefix = ?"
        rows = self._database.run(statement, clean_text(".".join(ns)))
        return [key for (key,) in rows]

    def size(self) -> int:
        return int(self._database.run("SELECT count(*) FROM arbiter_records")[0][0])


class _Alone:
    """Lets one thread at a time into SQLite, and no fork: it would copy SQLite's own locks."""

    def __init__(self) -> None:
        self._lock = new_lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        hold_forks(self)

    def __exit__(self, *error: object) -> None:
        release_forks(self)
        self._lock.release()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _place_of(place: Place) -> int:
    return _place(".".join(place[0]), is_open=place[1])


@lru_cache(maxsize=2**12)
def _place(prefix: str, *, is_open: bool) -> int:
    """A number of 64 bits for a part of a namespace."""
    name = prefix if is_open else f"{prefix}\nclosed"
    (number,) = struct.unpack("<q", sha256(clean_text(name).encode()).digest()[:8])
    return int(number)


def _digest(written: Written) -> str:
    return sha256(json.dumps(sorted(written.words.items())).encode()).hexdigest()[:32]


def _written(value: Any) -> Written | None:
    known: Any = json.loads(value) if isinstance(value, str | bytes) else value
    return written_of(known) if is_mapping(known) else None


_INDEXES: weakref.WeakKeyDictionary[BaseStore, WordTables] = weakref.WeakKeyDictionary()


def word_tables(store: BaseStore) -> WordTables | None:
    """The index of a store that `open_store` opened; None for other stores."""
    return _INDEXES.get(store)


def keep_words(store: BaseStore, tables: WordTables) -> None:
    _INDEXES[store] = tables
