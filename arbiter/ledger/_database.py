"""The database of a ledger: its schema, its file, and the errors about both."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from arbiter._databases import Schema, file_identity, file_of, is_writable, sentences, shown, unavailable
from arbiter.errors import ArbiterError, describe

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, ExceptionContext, MetaData

CHANNEL = "arbiter_ledger"
"""The channel on which PostgreSQL announces commits to a ledger. It carries no data."""


class LedgerError(ArbiterError, RuntimeError):
    """Something is wrong with a ledger."""


class LedgerUnavailable(LedgerError):  # noqa: N818  the specified name
    """The ledger cannot be opened, or its server is away. The message says which, why, and what to do; passwords
    are left out.
    """


CHANGED = (AttributeError, LookupError, TypeError, ValueError)
"""The exceptions of reading an entry that was changed: readers rely on what the writer wrote."""


def unreadable(where: str, error: Exception) -> LedgerError:
    """The error about a ledger of which a reader could not read an entry."""
    return LedgerError(
        f"{shown(where)!r} has an entry that cannot be read ({describe(error)[:200]}). "
        "arbiter verify names the entries that were changed."
    )


def _tables() -> MetaData:
    from arbiter.ledger._tables import metadata

    return metadata


SCHEMA = Schema(
    name="arbiter_ledger",
    tables=_tables,
    migrations=Path(__file__).parent / "migrations",
    newest="0003",
    noun="ledger",
    made_by="arbiter run --ledger makes one.",
    upgraded_by="arbiter ledger upgrade",
    unavailable=LedgerUnavailable,
    busy_ms=5_000,
)


def ensure_whole(engine: Engine, where: str | os.PathLike[str]) -> None:
    """Raise `LedgerUnavailable` for a ledger that has lost a table: no entry could be written."""
    from sqlalchemy import inspect

    with sentences(where, SCHEMA), engine.connect() as connection:
        inspector = inspect(connection)
        there = {*inspector.get_table_names()}
        lost = [name for name in _tables().tables if name not in there and not inspector.has_table(name)]
    if lost:
        engine.dispose()
        raise LedgerUnavailable(
            f"cannot open {shown(where)!r}: it has lost the table {lost[0]!r}. Restore it from a backup."
        )


def report_outages(engine: Engine, where: str | os.PathLike[str]) -> None:
    """From now on, a server that cannot be reached is a `LedgerUnavailable`, without the statement and its values, and
    so is a file that cannot be used."""
    from sqlalchemy import event
    from sqlalchemy.exc import DatabaseError, OperationalError

    @event.listens_for(engine, "handle_error", retval=True)
    def in_a_sentence(context: ExceptionContext) -> BaseException | None:
        # SQLite has no class of its own for a file that is damaged.
        is_outage = context.is_disconnect or type(context.sqlalchemy_exception) in (
            OperationalError,
            DatabaseError,
        )
        # A connection of the pool that has ended is replaced by a new one.
        if not is_outage or context.is_pre_ping:
            return None
        return unavailable(where, SCHEMA, context.original_exception)

    del in_a_sentence  # called by SQLAlchemy


ABOUT = (
    "id IN (SELECT id FROM threads WHERE subject = ? UNION ALL SELECT thread FROM subjects WHERE subject = ?)"
)
"""The condition that a thread is, or was, about a subject, which is given twice."""


def marks(mark: str, values: Collection[object]) -> str:
    """The placeholders of these values for `IN (...)`; NULL, which nothing is in, if there are none."""
    return ", ".join([mark] * len(values)) or "NULL"


def last_entry(connection: Connection) -> int:
    """The id of the newest entry; 0 if there is none."""
    return connection.exec_driver_sql("SELECT last_entry FROM ledgers").scalar() or 0


@dataclass(frozen=True, slots=True)
class DatabaseFile:
    """The file of an open SQLite database. SQLite goes on writing to a file that was removed, for nothing."""

    path: Path | None
    identity: tuple[int, int] | None
    is_writable: bool

    @staticmethod
    def of(engine: Engine) -> DatabaseFile:
        """The file of that engine, as it is now. PostgreSQL and databases in memory have none."""
        path = file_of(engine)
        return DatabaseFile(path, file_identity(path), path is None or is_writable(path))

    def backups(self) -> list[Path]:
        """The copies beside it from before upgrades."""
        return (
            []
            if self.path is None
            else sorted(self.path.parent.glob(f"{escape(self.path.name)}.schema-*.bak"))
        )

    def ensure_in_place(self) -> None:
        """Raise `LedgerError` if the file is gone, or is another one."""
        if self.path is None or (found := file_identity(self.path)) == self.identity:
            return
        what = "was removed" if found is None else "is another file now"
        raise LedgerError(f"{str(self.path)!r} {what}; put it back, or open a new ledger")

    def ensure_writable(self) -> None:
        """Raise `LedgerUnavailable` if it could only be read when it was opened."""
        if not self.is_writable:
            raise LedgerUnavailable(
                f"cannot record in {str(self.path)!r}: no permission to write it, or in its folder, where SQLite "
                "makes files beside it."
            )
