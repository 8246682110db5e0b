"""Watching a ledger grow: commits of all processes are noticed without reading the tables over and over.

SQLite says by a number whether another connection has committed, and PostgreSQL notifies. Where neither works, the
watcher has to look from time to time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from arbiter._databases import read_only_uri
from arbiter.ledger._database import CHANNEL, DatabaseFile

if TYPE_CHECKING:
    from sqlalchemy import Engine

EVERY = 0.2
"""Seconds between two looks at a SQLite file."""
_WAIT = 1.0
"""Seconds that PostgreSQL is waited for, and between two comparisons of ids without its notifications."""
_AGAIN = 30.0
"""Seconds until a look is due without a sign, and until PostgreSQL is asked once more for notifications."""


def watched(engine: Engine) -> Generator[bool]:
    """Yields about once a second or more often: True if something may have been committed since the last time."""
    if engine.dialect.name == "postgresql":
        while True:
            yield from _notified(engine)
    path = DatabaseFile.of(engine).path
    yield from _ticks(EVERY) if path is None else _changed(path)


def _ticks(every: float, lasting: float = float("inf")) -> Generator[bool]:
    until = time.monotonic() + lasting
    while time.monotonic() < until:
        yield True
        time.sleep(every)


def _changed(path: Path) -> Generator[bool]:
    """For a SQLite file: its `data_version` changes with each commit of any other connection."""
    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
        seen, looked = None, time.monotonic()
        while True:
            found = connection.execute("PRAGMA data_version").fetchone()
            # From time to time also without a sign: a file that was replaced gives none.
            is_due = found != seen or time.monotonic() - looked > _AGAIN
            if is_due:
                seen, looked = found, time.monotonic()
            yield is_due
            time.sleep(EVERY)


def _notified(engine: Engine) -> Generator[bool]:
    """For PostgreSQL: the writer notifies with each commit. Where notifications do not arrive, look anyway."""
    import psycopg

    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            yield True
            looked = time.monotonic()
            while True:
                is_told = any(True for _ in connection.notifies(timeout=_WAIT, stop_after=1))
                is_due = is_told or time.monotonic() - looked > _AGAIN
                looked = time.monotonic() if is_due else looked
                yield is_due
    except psycopg.Error:  # a connection that was ended, or a pooler that passes no notifications on
        yield from _ticks(_WAIT, _AGAIN)
