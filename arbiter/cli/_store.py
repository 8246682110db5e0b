"""`arbiter store`: makes, upgrades and checks the tables of an evaluation store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arbiter.cli._options import Commands, FormatOption, Screen, number_of
from arbiter.errors import ConfigurationError

if TYPE_CHECKING:
    from arbiter.store import SqlRepository

DEFAULT = "sqlite:///.arbiter/evaluation.db"
_REMEDY = (
    "An upgrade does not bring back what is missing: restore a backup, or make a new store and copy the rows. "
    "An unknown column may stay if it has a default or may be NULL."
)
store_app = Commands(help="The store of evaluations and corrections.", no_args_is_help=True)
WhereArgument = Annotated[
    str, typer.Argument(envvar="ARBITER_STORE", metavar="URL", help="A file, or a postgresql:// URL.")
]


@store_app.command()
def upgrade(where: WhereArgument = DEFAULT) -> None:
    """Make the tables of a store, or bring them to the newest schema; a SQLite file is copied first."""
    from arbiter._databases import shown

    _need_the_extra()
    from arbiter.store._opening import check_store, upgrade_store

    before, after = upgrade_store(where)
    done = "has the newest schema" if before == after else f"was upgraded from schema {before} to"
    done = "has new tables of schema" if before is None else done
    screen = Screen("table")
    screen.say(f"{shown(where)} {done} {after}.")
    if before == after and check_store(where).differences:
        screen.say(f"Its tables were changed by hand: arbiter store check {shown(where)}")


@store_app.command()
def check(where: WhereArgument = DEFAULT, format: FormatOption = "table") -> None:
    """Count the rows of a store, and compare its tables with those that this version knows.

    Exits with 1 if a table was changed by hand, with 2 if its schema is older or newer.
    """
    from arbiter._databases import shown

    screen = Screen(format)
    _need_the_extra()
    from arbiter.store._opening import check_store

    found = check_store(where)
    if format == "table":
        screen.table(["table", ">rows"], [(name, f"{rows:,}") for name, rows in found.rows.items()])
        same = "as they should be" if not found.differences else "changed by hand"
        screen.say(f"{shown(where)}: schema {found.revision}, {number_of(len(found.rows), 'table')}, {same}.")
        for difference in found.differences:
            screen.say(difference)
        if found.differences:
            screen.say(_REMEDY)
    else:
        data = {"schema": found.revision, "rows": found.rows, "differences": found.differences}
        screen.data(data)
    raise typer.Exit(1 if found.differences else 0)


def opened_store(where: str) -> SqlRepository:
    """The repository at that place."""
    _need_the_extra()
    from arbiter.store import SqlRepository

    return SqlRepository(where)


def _need_the_extra() -> None:
    try:
        import arbiter.store as _store
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    del _store
