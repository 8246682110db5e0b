"""Opens the database of a store: its schema, the default place, and the errors about both."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arbiter._databases import Schema, open_database, sentences, upgrade_database
from arbiter.errors import ArbiterError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData

DEFAULT = "sqlite:///.arbiter/evaluation.db"
"""The store if none is named. Its folder is made."""


_Change = tuple[Any, ...]
"""A difference as alembic describes it: the kind of change, then names and objects."""


class StoreError(ArbiterError, RuntimeError):
    """Something is wrong with an evaluation store, or with what it was given."""


class StoreUnavailable(StoreError):  # noqa: N818  as `LedgerUnavailable`
    """The store cannot be opened. The message says which, why, and what to do; passwords are left out."""


def _tables() -> MetaData:
    from arbiter.store._schema import Base

    return Base.metadata


SCHEMA = Schema(
    name="arbiter_store",
    tables=_tables,
    migrations=Path(__file__).parent / "migrations",
    newest="0001",
    noun="store",
    made_by="arbiter store upgrade makes one.",
    upgraded_by="arbiter store upgrade",
    unavailable=StoreUnavailable,
    busy_ms=30_000,
)


def open_store(where: str | os.PathLike[str] = DEFAULT, *, create: bool = True) -> Engine:
    """An engine for the store at that place. An empty one gets its tables if `create` is True.

    Raises `StoreUnavailable`, also for an older schema: only `upgrade_store` changes tables that are there.
    """
    if create:
        _make_default_folder(where)
    return open_database(where, SCHEMA, create=create, upgrade=False)


def upgrade_store(where: str | os.PathLike[str] = DEFAULT) -> tuple[str | None, str]:
    """Make the tables of a store, or upgrade them. Returns the revisions before (None: no tables) and after."""
    _make_default_folder(where)
    return upgrade_database(where, SCHEMA, create=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The state of a store's tables: the revision, the number of rows by table, and what was changed by hand,
    in a sentence each."""

    revision: str
    rows: Mapping[str, int]
    differences: list[str]


def check_store(where: str | os.PathLike[str] = DEFAULT) -> Checked:
    """Compare the tables of a store with those that this code knows. Raises `StoreUnavailable`."""
    from sqlalchemy import func, inspect, select

    from arbiter.store._schema import Base

    engine = open_store(where, create=False)
    try:
        with sentences(where, SCHEMA), engine.connect() as connection:
            differences = list(_differences(connection))
            missing = {name for name in Base.metadata.tables if not inspect(connection).has_table(name)}
            rows = {
                name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for name, table in sorted(Base.metadata.tables.items())
                if name not in missing
            }
    finally:
        engine.dispose()
    return Checked(revision=SCHEMA.newest, rows=rows, differences=differences)


def _differences(connection: Connection) -> Generator[str]:
    """A sentence for each difference that alembic finds. It does not compare checks."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from arbiter.store._schema import Base

    def is_ours(name: str | None, kind: str, parents: Any) -> bool:
        return kind != "table" or name in Base.metadata.tables

    options: dict[str, Any] = {"version_table": SCHEMA.version_table, "include_name": is_ours}
    context = MigrationContext.configure(connection, opts=options)
    changes: list[_Change | list[_Change]] = compare_metadata(context, Base.metadata)
    for found in changes:
        for change, *parts in found if isinstance(found, list) else [found]:
            kind, _, what = change.partition("_")
            state = {"add": "is missing", "remove": "is unknown"}.get(kind, "was changed")
            names = [part if isinstance(part, str) else getattr(part, "name", None) for part in parts[:4]]
            tables = [part.table.name for part in parts if getattr(part, "table", None) is not None]
            named = ".".join(dict.fromkeys(name for name in (*tables[:1], *names) if name))
            yield f"{what} {named} {state}."


def _make_default_folder(where: str | os.PathLike[str]) -> None:
    if os.fspath(where) == DEFAULT:
        Path(DEFAULT.removeprefix("sqlite:///")).parent.mkdir(exist_ok=True)
