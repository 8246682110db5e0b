"""Opens a database with the tables of a `Schema`: a SQLite file or PostgreSQL.

    path or URL ─▶ engine (pragmas on each connection) ─▶ tables made, upgraded, or one sentence saying what is wrong

A schema is a set of tables with alembic migrations, such as the ledger's or the evaluation store's. Several
schemas can live in one database: each has a version table of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from arbiter._threads.forks import hold_forks, release_forks
from arbiter.errors import ArbiterError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_QUERY = re.compile(r"\?\w+=")
_PASSWORD = re.compile(r"(://[^:/?@]*:)[^/?]*@|([?&]password=)[^&]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A set of tables, and the words that messages about it use.

    `name` is its own among the schemas of one database. `unavailable` is raised with a sentence if the
    database cannot be opened.
    """

    name: str
    tables: Callable[[], MetaData]
    """The tables of the newest revision, of which an empty database gets all at once."""
    migrations: Path
    """The steps from an older revision to the newest."""
    newest: str
    """The revision that this code knows."""
    noun: str
    """The word for a database with these tables, such as "ledger"; also the extra that it needs."""
    made_by: str
    """A sentence about the command that makes the tables."""
    upgraded_by: str
    """The command that upgrades the tables."""
    unavailable: type[ArbiterError]
    busy_ms: int
    """Milliseconds that a connection to SQLite waits for another writer."""

    @property
    def version_table(self) -> str:
        return f"{self.name}_version"


def shown(where: str | os.PathLike[str]) -> str:
    """A path or URL as messages show it: without a password."""
    return _PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", os.fspath(where))


def storable(text: str) -> str:
    """The text as both databases can store it: lone surrogates and NUL characters are escaped."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def storable_data(value: Any) -> Any:
    """Plain data with texts that both databases can store."""
    if isinstance(value, str):
        return storable(value)
    parts: Any = value
    if isinstance(value, Mapping):
        return {storable(str(key)): storable_data(part) for key, part in parts.items()}
    if isinstance(value, list | tuple):
        return [storable_data(part) for part in parts]
    return parts


def url_of(where: str | os.PathLike[str], schema: Schema) -> str:
    """The SQLAlchemy URL of a path, a `sqlite:///` URL or a `postgresql://` URL."""
    is_name = isinstance(cast(object, where), str | os.PathLike)
    if not is_name or os.fspath(where) in ("", "sqlite:///"):
        raise schema.unavailable(
            f"cannot open {where!r:.80}: expected a path, sqlite:///... or postgresql://...."
        )
    text = os.fspath(where)
    if not _SCHEME.match(text):
        return f"sqlite:///{text}"
    if text.startswith("sqlite:///"):
        if _QUERY.search(text) and not os.path.exists(text.removeprefix("sqlite:///")):
            raise schema.unavailable(
                f"cannot open {shown(text)!r}: a URL of SQLite takes no options here. Write "
                f"{shown(text.partition('?')[0])!r}; a file with a '?' in its name is given by its path."
            )
        return text
    scheme, _, rest = text.partition("://")
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        if re.split("[/?]", rest)[0].count("@") > 1:
            raise schema.unavailable(
                f"cannot open {shown(text)!r}: its name or password has an '@'. Write %40 there."
            )
        if not _is_there("psycopg"):
            raise schema.unavailable(
                f"cannot open {shown(text)!r}: it needs psycopg: pip install 'arbiteros[postgres]'"
            )
        return f"postgresql+psycopg://{rest}"
    raise schema.unavailable(
        f"cannot open {shown(text)!r}: expected a path, sqlite:///... or postgresql://...."
    )


def open_database(
    where: str | os.PathLike[str], schema: Schema, *, create: bool = True, upgrade: bool = True
) -> Engine:
    """An engine for the database, with the newest schema.

    A file or an empty database gets the tables if `create` is True. A SQLite file with an older schema is
    copied aside and upgraded if `upgrade` is True; PostgreSQL is upgraded only by `upgrade_database`. Raises
    `schema.unavailable`.
    """
    engine, path = _reached(where, schema, create=create)
    try:
        with _opening(where, schema):
            _bring_up_to_date(engine, schema, where, create=create, upgrade=upgrade and path is not None)
    except BaseException:
        engine.dispose()
        raise
    return engine


def upgrade_database(
    where: str | os.PathLike[str], schema: Schema, *, create: bool = False
) -> tuple[str | None, str]:
    """Upgrade the database to the newest schema. Returns the revisions before and after: None if there were
    no tables, which is an error unless `create` is True."""
    engine, _ = _reached(where, schema, create=create)
    try:
        with _opening(where, schema):
            before = _bring_up_to_date(engine, schema, where, create=create, upgrade=True)
    finally:
        engine.dispose()
    return before, schema.newest


def _reached(where: str | os.PathLike[str], schema: Schema, *, create: bool) -> tuple[Engine, Path | None]:
    """An engine for the database, and the file if it is one. Raises `schema.unavailable`."""
    _ensure_installed(schema)
    url = url_of(where, schema)
    path = path_of(url)
    with _opening(where, schema):
        if path is not None:
            _check_path(path, where, schema, create=create)
        return _engine(url, schema), path


def path_of(url: str) -> Path | None:
    """The file of a SQLite URL; None for PostgreSQL and for a database in memory."""
    if not url.startswith("sqlite:///"):
        return None
    name = url.removeprefix("sqlite:///")
    return None if name in ("", ":memory:") else Path(name)


def file_of(engine: Engine) -> Path | None:
    """The file of an engine, which stays the same wherever the process goes. PostgreSQL and a database in memory have
    none."""
    name = engine.url.database if engine.dialect.name == "sqlite" else None
    return Path(name).absolute() if name and name != ":memory:" else None


def _check_path(path: Path, where: str | os.PathLike[str], schema: Schema, *, create: bool) -> None:
    problem = None
    if not create and not (path.exists() and (path.is_dir() or path.stat().st_size)):
        raise schema.unavailable(_missing(where, schema))
    if path.is_dir():
        problem = "it is a directory; name a file in it"
    elif not path.parent.is_dir():
        problem = f"there is no folder {str(path.parent)!r}; make it first"
    elif not path.exists():
        if not os.access(path.parent, os.W_OK):
            problem = f"no permission to write in {str(path.parent)!r}"
    elif not os.access(path, os.R_OK | (os.W_OK if create else 0)):
        problem = "no permission to read and write it"
    elif path.stat().st_size and not _is_sqlite(path):
        problem = "it is not a SQLite database"
    if problem is not None:
        raise schema.unavailable(f"cannot open {shown(where)!r}: {problem}.")


def _missing(where: str | os.PathLike[str], schema: Schema) -> str:
    return f"there is no {schema.noun} at {shown(where)!r}. {schema.made_by}"


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00"


def _engine(url: str, schema: Schema) -> Engine:
    from sqlalchemy import URL, create_engine, event
    from sqlalchemy.pool import StaticPool

    if not url.startswith("sqlite"):
        engine = create_engine(url, pool_pre_ping=True)

        @event.listens_for(engine, "connect")
        def without_compiling(connection: Any, _record: Any) -> None:
            # PostgreSQL takes a page that may read thousands of rows for one that will, and compiles it for longer
            # than it then runs.
            with connection.cursor() as cursor:
                cursor.execute("SET jit = off")
            connection.commit()

        del without_compiling  # called by SQLAlchemy
        return engine
    arguments: dict[str, Any] = {"check_same_thread": False, "timeout": schema.busy_ms / 1000}
    path = path_of(url)
    options: dict[str, Any] = {}
    if path is None:
        options = {"connect_args": arguments, "poolclass": StaticPool}
    elif not is_writable(path):
        options["creator"] = lambda: sqlite3.connect(read_only_uri(path), uri=True, **arguments)
    else:
        options["connect_args"] = arguments
    # Not the text: a question mark in the name of a file would end it there.
    at = url if path is None else URL.create("sqlite", database=str(path))
    engine = create_engine(at, **options)

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy begins transactions itself (below), so that the first statement can take the write lock.
        connection.isolation_level = None
        for pragma in (
            "page_size = 8192",  # of a new file: rows of a kilobyte leave less of a page empty
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "secure_delete = ON",
            f"busy_timeout = {schema.busy_ms}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not options.get("writes", False):
            connection.exec_driver_sql("BEGIN")
            return
        # An insert of many rows keeps the pages that it changes until it is done: in memory, not in a file. An upgrade
        # may sort the index of a large table, which needs a file.
        where = "DEFAULT" if options.get("upgrades", False) else "MEMORY"
        connection.exec_driver_sql(f"PRAGMA temp_store = {where}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # SQLite marks in memory which of its locks this process holds: in a child that was forked within a transaction
    # the file would stay locked for ever.
    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        hold_forks(record)

    @event.listens_for(engine, "checkin")
    def checkin(_connection: Any, record: Any) -> None:
        release_forks(record)

    # All are called by SQLAlchemy.
    del set_up, begin, checkout, checkin
    return engine


def file_identity(path: str | os.PathLike[str] | None) -> tuple[int, int] | None:
    """The numbers by which a file differs from another one at its path; None if there is none."""
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def is_writable(path: Path) -> bool:
    """True if this process may write to a SQLite file, which takes a file beside it, or make it."""
    return os.access(path.absolute().parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def read_only_uri(path: Path) -> str:
    """The URI that opens a SQLite file for reading and never makes it."""
    log = path.with_name(f"{path.name}-wal")
    # Without a log, and with no right to make one, SQLite reads the file only if no other process may change it.
    is_still = not is_writable(path) and not (log.exists() and log.stat().st_size)
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"


@contextmanager
def writing(engine: Engine, lock: int | None = None, *, upgrades: bool = False) -> Generator[Connection]:
    """A transaction that writes. With a `lock`, no other writer with that lock runs beside it, so that rows
    are committed in their order.

    `lock` is the number of PostgreSQL's advisory lock; SQLite has one write lock for the file, always. `upgrades`
    says that it changes the tables.
    """
    with (
        engine.connect().execution_options(writes=True, upgrades=upgrades) as connection,
        connection.begin(),
    ):
        if lock is not None and engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (lock,))
        yield connection


def _bring_up_to_date(
    engine: Engine, schema: Schema, where: str | os.PathLike[str], *, create: bool, upgrade: bool
) -> str | None:
    from sqlalchemy.exc import DBAPIError

    with engine.connect() as connection:
        before = _revision(connection, schema)
    if before == schema.newest:
        return before
    if before is None and not create:
        raise schema.unavailable(_missing(where, schema))
    # One process upgrades; the others wait for the lock and then find nothing left to do.
    with _upgrading(engine) as connection:
        before = _revision(connection, schema)
        if before == schema.newest:
            return before
        if before is not None and before not in _known(schema):
            raise newer(where, before, schema)
        if before is not None and not upgrade:
            raise schema.unavailable(
                f"cannot open {shown(where)!r}: its schema is {before}, this version of Arbiter needs "
                f"{schema.newest}. Run: {schema.upgraded_by}"
            )
        if before is not None and (path := file_of(engine)) is not None:
            _copy_aside(path, before)
        try:
            _migrate(connection, schema, before)
        except DBAPIError as error:
            if before is None and "already exists" in str(error.orig):
                raise schema.unavailable(
                    f"{_sentence(where, error)}, and there is no table {schema.version_table!r} that says of which "
                    "schema. Restore that table from a backup, or choose another database."
                ) from error
            raise
    return before


def newer(where: str | os.PathLike[str], found: str | int, schema: Schema) -> Exception:
    """The error that the database has a newer schema than this version of Arbiter knows."""
    return schema.unavailable(
        f"cannot open {shown(where)!r}: its schema {found} is newer than this version of Arbiter, which knows "
        f"{schema.newest}. Upgrade arbiteros."
    )


_UPGRADE_LOCK = 0x6172626974657202
_UPGRADE_WAIT = 60.0
"""Seconds that a process waits for another one that upgrades."""


@contextmanager
def _upgrading(engine: Engine) -> Generator[Connection]:
    """As `writing`, but an upgrade may take longer than SQLite waits for a lock."""
    from sqlalchemy.exc import OperationalError

    until = time.monotonic() + _UPGRADE_WAIT
    with ExitStack() as stack:
        while True:
            try:
                connection = stack.enter_context(writing(engine, _UPGRADE_LOCK, upgrades=True))
                break
            except OperationalError as error:
                if "locked" not in str(error.orig) or time.monotonic() > until:
                    raise
        yield connection


def _copy_aside(path: Path, revision: str) -> None:
    """Copy the file to NAME.schema-REVISION.bak, with what its log holds."""
    target = path.with_name(f"{path.name}.schema-{int(revision)}.bak")
    target.touch(mode=0o600)  # before the copy has contents
    # The caller holds the write lock, so nothing is committed meanwhile; readers see the log as well.
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except BaseException:
        target.unlink()
        raise
    shutil.copymode(path, target)


def _revision(connection: Connection, schema: Schema) -> str | None:
    """The revision of the schema in the database; None if its tables are not there."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    if not inspector.has_table(schema.version_table):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {schema.version_table}").scalar()
    return None if found is None else str(found)


def ensure_current(engine: Engine, schema: Schema, where: str | os.PathLike[str]) -> None:
    """Raise `schema.unavailable` if another process has changed the schema since the database was opened."""
    with engine.connect() as connection:
        found = _revision(connection, schema)
    if found is not None and found != schema.newest:
        raise schema.unavailable(
            f"another process has upgraded {shown(where)!r} to schema {found}, and this one knows "
            f"{schema.newest}. Upgrade arbiteros, and start this process again."
        )


def _config(schema: Schema) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.migrations).replace("%", "%%"))
    config.attributes["version_table"] = schema.version_table
    return config


def _known(schema: Schema) -> set[str]:
    from alembic.script import ScriptDirectory

    return {step.revision for step in ScriptDirectory.from_config(_config(schema)).walk_revisions()}


def _migrate(connection: Connection, schema: Schema, before: str | None) -> None:
    from alembic import command

    config = _config(schema)
    config.attributes["connection"] = connection
    if before is None:
        schema.tables().create_all(connection, checkfirst=False)
        command.stamp(config, schema.newest)
    else:
        command.upgrade(config, schema.newest)


def _ensure_installed(schema: Schema) -> None:
    if not (_is_there("sqlalchemy") and _is_there("alembic")):
        raise schema.unavailable(
            f"a {schema.noun} needs sqlalchemy and alembic: pip install 'arbiteros[{schema.noun}]'"
        )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of a finder that refuses it
        return False


@contextmanager
def sentences(where: str | os.PathLike[str], schema: Schema) -> Generator[None]:
    """Raise errors of the driver as `schema.unavailable`, in one sentence. Missing packages are one, too."""
    _ensure_installed(schema)
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise unavailable(where, schema, error) from error


@contextmanager
def _opening(where: str | os.PathLike[str], schema: Schema) -> Generator[None]:
    """The same, also for errors of names that no driver takes, and of the copy before an upgrade."""
    try:
        with sentences(where, schema):
            yield
    except ArbiterError:
        raise
    except (ValueError, OSError, sqlite3.Error) as error:
        raise unavailable(where, schema, error) from error


def unavailable(where: str | os.PathLike[str], schema: Schema, error: BaseException) -> ArbiterError:
    """The error about a database in one sentence, without statements, their values and passwords."""
    return schema.unavailable(f"{_sentence(where, error)}.")


def _sentence(where: str | os.PathLike[str], error: BaseException) -> str:
    return f"cannot open {shown(where)!r}: {problem_of(error)}"


def problem_of(error: BaseException) -> str:
    """The driver's words for an error, without passwords and on one line, as part of a sentence."""
    cause = getattr(error, "orig", None) or error
    return " ".join(shown(str(cause)).split())[:300].rstrip(".,:;?! ")
