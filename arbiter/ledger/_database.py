"""Opens the database of a ledger: a SQLite file or PostgreSQL, with the newest schema, or a sentence saying what
is wrong.

Any set of tables with alembic migrations can be opened: the ledger's are one, and other parts of Arbiter that
keep tables use the same opener.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arbiter.errors import ArbiterError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

BUSY_MS = 5_000
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")


class LedgerError(ArbiterError, RuntimeError):
    """Something is wrong with a ledger."""


class LedgerUnavailable(LedgerError):  # noqa: N818  the specified name
    """The ledger cannot be opened. The message says which, why, and what to do; passwords are left out."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A set of tables: the place of its migrations, and a name that is its own among others in one database."""

    name: str
    migrations: Path
    newest: str
    """The revision that this code knows."""

    @property
    def version_table(self) -> str:
        return f"{self.name}_version"


def shown(where: str | os.PathLike[str]) -> str:
    """A path or URL as messages show it: without a password."""
    return _PASSWORD.sub(r"\1***@", os.fspath(where))


def url_of(where: str | os.PathLike[str]) -> str:
    """The SQLAlchemy URL of a path, a `sqlite:///` URL or a `postgresql://` URL."""
    text = os.fspath(where)
    if not _SCHEME.match(text):
        return f"sqlite:///{text}"
    if text.startswith("sqlite:///"):
        return text
    scheme, _, rest = text.partition("://")
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        if find_spec("psycopg") is None:
            raise LedgerUnavailable(
                f"cannot open {shown(text)!r}: it needs psycopg: pip install 'arbiteros[postgres]'"
            )
        return f"postgresql+psycopg://{rest}"
    raise LedgerUnavailable(
        f"cannot open {shown(text)!r}: expected a path, sqlite:///... or postgresql+psycopg://..."
    )


def open_database(
    where: str | os.PathLike[str], schema: Schema, *, create: bool = True, upgrade: bool = True
) -> Engine:
    """An engine for the database, with the newest schema.

    A file or an empty database gets the tables if `create` is True. A SQLite file with an older schema is
    copied aside and upgraded if `upgrade` is True; PostgreSQL is upgraded only by `upgrade_database`. Raises
    `LedgerUnavailable`.
    """
    if find_spec("sqlalchemy") is None or find_spec("alembic") is None:
        raise LedgerUnavailable("a ledger needs sqlalchemy and alembic: pip install 'arbiteros[ledger]'")
    url = url_of(where)
    path = _path_of(url)
    if path is not None:
        _check_path(path, where, create=create)
    engine = _engine(url)
    try:
        with _sentences(where):
            _bring_up_to_date(engine, schema, where, create=create, upgrade=upgrade and path is not None)
    except BaseException:
        engine.dispose()
        raise
    return engine


def upgrade_database(where: str | os.PathLike[str], schema: Schema) -> tuple[str | None, str]:
    """Upgrade the database to the newest schema. Returns the revisions before and after."""
    engine = _engine(url_of(where))
    try:
        with _sentences(where):
            before = _bring_up_to_date(engine, schema, where, create=False, upgrade=True)
    finally:
        engine.dispose()
    return before, schema.newest


def _path_of(url: str) -> Path | None:
    """The file of a SQLite URL; None for PostgreSQL and for a database in memory."""
    if not url.startswith("sqlite:///"):
        return None
    name = url.removeprefix("sqlite:///")
    return None if name in ("", ":memory:") else Path(name)


def _check_path(path: Path, where: str | os.PathLike[str], *, create: bool) -> None:
    problem = None
    if path.is_dir():
        problem = "it is a directory; name a file in it"
    elif not path.parent.is_dir():
        problem = f"there is no folder {str(path.parent)!r}; make it first"
    elif not path.exists():
        if not create:
            problem = "there is no such file"
        elif not os.access(path.parent, os.W_OK):
            problem = f"no permission to write in {str(path.parent)!r}"
    elif not os.access(path, os.R_OK | (os.W_OK if create else 0)):
        problem = "no permission to read and write it"
    elif path.stat().st_size and not _is_sqlite(path):
        problem = "it is not a SQLite database"
    if problem is not None:
        raise LedgerUnavailable(f"cannot open {shown(where)!r}: {problem}.")


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\x00"


def _engine(url: str) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import StaticPool

    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": BUSY_MS / 1000}}
    if _path_of(url) is None:
        options["poolclass"] = StaticPool
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy begins transactions itself (below), so that the first statement can take the write lock.
        connection.isolation_level = None
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "secure_delete = ON",
            f"busy_timeout = {BUSY_MS}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    # Both are called by SQLAlchemy.
    del set_up, begin
    return engine


@contextmanager
def writing(engine: Engine, lock: int) -> Generator[Connection]:
    """A transaction that no other writer of this database runs beside: its rows are committed in their order.

    `lock` is the number of PostgreSQL's advisory lock; SQLite has one write lock for the file.
    """
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (lock,))
        yield connection


def _bring_up_to_date(
    engine: Engine, schema: Schema, where: str | os.PathLike[str], *, create: bool, upgrade: bool
) -> str | None:
    with engine.connect() as connection:
        before = _revision(connection, schema)
    if before == schema.newest:
        return before
    if before is None and not create:
        raise LedgerUnavailable(f"cannot open {shown(where)!r}: it has no {schema.name} in it.")
    # One process upgrades; the others wait for the lock and then find nothing left to do.
    with writing(engine, _UPGRADE_LOCK) as connection:
        before = _revision(connection, schema)
        if before == schema.newest:
            return before
        if before is not None and before not in _known(schema):
            raise LedgerUnavailable(
                f"cannot open {shown(where)!r}: its schema {before} is newer than this version of Arbiter, which "
                f"knows {schema.newest}. Upgrade arbiteros."
            )
        if before is not None and not upgrade:
            raise LedgerUnavailable(
                f"cannot open {shown(where)!r}: its schema is {before}, this version of Arbiter needs "
                f"{schema.newest}. Run: arbiter ledger upgrade"
            )
        if before is not None and (path := _path_of(str(engine.url))) is not None:
            _copy_aside(path, before)
        _migrate(connection, schema)
    return before


_UPGRADE_LOCK = 0x6172626974657202


def _copy_aside(path: Path, revision: str) -> None:
    """Copy the file to NAME.schema-REVISION.bak, with what its log holds."""
    target = path.with_name(f"{path.name}.schema-{int(revision)}.bak")
    # The caller holds the write lock, so nothing is committed meanwhile; readers see the log as well.
    with sqlite3.connect(path) as source, sqlite3.connect(target) as copy:
        source.backup(copy)
    source.close()
    copy.close()
    shutil.copymode(path, target)


def _revision(connection: Connection, schema: Schema) -> str | None:
    """The revision of the schema in the database; None if its tables are not there."""
    from sqlalchemy import inspect

    inspector = inspect(connection)
    if not inspector.has_table(schema.version_table):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {schema.version_table}").scalar()
    return None if found is None else str(found)


def _config(schema: Schema) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.migrations).replace("%", "%%"))
    config.attributes["version_table"] = schema.version_table
    return config


def _known(schema: Schema) -> set[str]:
    from alembic.script import ScriptDirectory

    return {step.revision for step in ScriptDirectory.from_config(_config(schema)).walk_revisions()}


def _migrate(connection: Connection, schema: Schema) -> None:
    from alembic import command

    config = _config(schema)
    config.attributes["connection"] = connection
    command.upgrade(config, schema.newest)


@contextmanager
def _sentences(where: str | os.PathLike[str]) -> Generator[None]:
    """Errors of the driver as `LedgerUnavailable`, in one sentence."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        problem = " ".join(shown(str(cause)).split())[:300].rstrip(".")
        raise LedgerUnavailable(f"cannot open {shown(where)!r}: {problem}.") from error
