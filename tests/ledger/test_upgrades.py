"""A ledger of an older schema is copied aside and upgraded when it is opened, by one of all that open it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from sqlalchemy import create_engine

from arbiter import ArbiterOS
from arbiter._databases import upgrade_database, url_of
from arbiter.ledger import Ledger, LedgerUnavailable
from arbiter.ledger._database import SCHEMA
from arbiter.ledger._tables import metadata
from tests.ledger.ledger_support import conf, payments, recorded
from tests.processes import python
from tests.support import no_room_after

CHANGE = SCHEMA.migrations / "versions" / "0002_undelivered.py"


def make_older(path: Path) -> None:
    """A ledger of three threads whose file has schema 1."""
    recorded(path, 3).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE undelivered")
        connection.execute("DROP TABLE subjects")
        connection.execute("UPDATE ledgers SET schema = 1")
        connection.execute("UPDATE arbiter_ledger_version SET version_num = '0001'")
    connection.close()


def ensure_has_the_tables_of_the_code(where: str) -> None:
    """Fail for a ledger with another table, column, index or constraint than the code names."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def is_mine(name: str | None, kind: str, _: Any) -> bool:
        return kind != "table" or name in metadata.tables

    options = {"version_table": SCHEMA.version_table, "compare_type": True, "include_name": is_mine}
    engine = create_engine(url_of(where, SCHEMA))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    engine.dispose()


@pytest.fixture
def older(tmp_path: Path) -> Path:
    make_older(tmp_path / "l.db")
    return tmp_path / "l.db"


@pytest.mark.lengthy
def test_an_older_file_is_copied_aside_upgraded_and_verifies(older: Path) -> None:
    before = older.read_bytes()
    with Ledger(older) as ledger:
        assert ledger.verify()
        assert len(list(ledger.items())) == 6
        payments(ledger)[1].invoke({"amount": 1}, conf("t0"))
        assert ledger.flush(20)
        assert ledger.verify()
        assert ledger.prune(1).threads == 0
    copy = older.with_name("l.db.schema-1.bak")
    assert copy.stat().st_mode == older.stat().st_mode
    assert len(before) == len(copy.read_bytes())
    with closing(sqlite3.connect(copy)) as connection, connection:
        assert connection.execute("SELECT version_num FROM arbiter_ledger_version").fetchall() == [("0001",)]
        assert connection.execute("SELECT COUNT(*) FROM entries").fetchall() == [(9,)]
    connection.close()
    Ledger(older).close()
    assert sorted(path.name for path in older.parent.glob("*.bak")) == ["l.db.schema-1.bak"]


def test_new_and_upgraded_files_have_the_tables_that_the_code_names(older: Path, tmp_path: Path) -> None:
    Ledger(older).close()
    Ledger(tmp_path / "new.db").close()
    for path in (older, tmp_path / "new.db"):
        ensure_has_the_tables_of_the_code(str(path))


@pytest.mark.lengthy
def test_the_copy_of_a_file_of_any_name_has_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "günlük 100%.db"
    make_older(path)
    Ledger(path).close()
    copy = path.with_name("günlük 100%.db.schema-1.bak")
    with closing(sqlite3.connect(copy)) as connection, connection:
        assert connection.execute("SELECT COUNT(*) FROM entries").fetchall() == [(9,)]
    connection.close()
    assert {file.name.partition(".db")[0] for file in tmp_path.iterdir()} == {"günlük 100%"}


@pytest.mark.lengthy
def test_an_upgrade_that_fails_leaves_the_file_as_it_was(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(SCHEMA.migrations, tmp_path / "migrations")
    wrong = tmp_path / "migrations" / "versions" / CHANGE.name
    wrong.write_text(CHANGE.read_text() + '    op.execute("SELECT * FROM nowhere")\n')
    monkeypatch.setattr("arbiter.ledger._ledger.SCHEMA", replace(SCHEMA, migrations=tmp_path / "migrations"))
    with pytest.raises(LedgerUnavailable, match="no such table: nowhere"):
        Ledger(older)
    wrong.write_text(CHANGE.read_text())
    with Ledger(older) as ledger:
        assert ledger.verify()


def test_an_upgrade_without_room_for_its_copy_says_so_and_leaves_nothing(older: Path) -> None:
    before = older.read_bytes()
    with (
        no_room_after(48 * 1024),
        pytest.raises(
            LedgerUnavailable, match=r"cannot open '.*l\.db': (database or disk is full|disk I/O error)\.$"
        ),
    ):
        Ledger(older)
    assert not list(older.parent.glob("*.bak*"))
    assert older.read_bytes() == before
    with Ledger(older) as ledger:
        assert ledger.verify()


OPENS = """
import sys
from arbiter.ledger import Ledger
from tests.ledger.ledger_support import conf, payments
with Ledger(sys.argv[1]) as ledger:
    payments(ledger)[1].invoke({"amount": 1}, conf(sys.argv[2]))
    assert ledger.flush(20)
"""


@pytest.mark.lengthy
def test_processes_that_open_an_older_file_at_once_all_work(older: Path) -> None:
    command = [*python("-c", OPENS), str(older)]
    together = [subprocess.Popen([*command, name]) for name in ("first", "second")]
    assert [process.wait(60) for process in together] == [0, 0]
    with Ledger(older) as ledger:
        assert ledger.verify()
        assert {str(thread["thread_id"]) for thread in ledger.threads()} >= {"first", "second", "t0"}
    with closing(sqlite3.connect(older.with_name("l.db.schema-1.bak"))) as connection, connection:
        assert connection.execute("SELECT COUNT(*) FROM entries").fetchall() == [(9,)]
    connection.close()


@pytest.mark.lengthy
def test_postgresql_is_upgraded_on_demand_only(postgres_url: Any) -> None:
    recorded(postgres_url, 1).close()
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE undelivered")
        connection.exec_driver_sql("DROP TABLE subjects")
        connection.exec_driver_sql("UPDATE arbiter_ledger_version SET version_num = '0001'")
    engine.dispose()
    with pytest.raises(
        LedgerUnavailable, match=r"its schema is 0001, .* needs 0003\. Run: arbiter ledger upgrade"
    ):
        Ledger(postgres_url)
    assert upgrade_database(postgres_url, SCHEMA) == ("0001", "0003")
    ensure_has_the_tables_of_the_code(postgres_url)
    with Ledger(postgres_url) as ledger:
        assert ledger.verify()


def test_a_run_that_cannot_be_recorded_is_an_error_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite makes files beside a ledger; without the right to, a run waited a minute at its end and lost all."""
    path = tmp_path / "l.db"
    recorded(path, 1).close()

    def may(place: Path, mode: int) -> bool:
        return place != tmp_path or not mode & os.W_OK

    monkeypatch.setattr(os, "access", may)
    with pytest.raises(LedgerUnavailable, match=r"cannot record in '.*l\.db': no permission .* its folder"):
        ArbiterOS(ledger=path)
    with Ledger(path) as ledger:
        assert len(list(ledger.items())) == 2
        assert ledger.verify()


def _may_read(path: Path, mode: int) -> bool:
    return path.exists() and not mode & os.W_OK


@pytest.mark.lengthy
def test_a_ledger_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup on a disk that is mounted read-only: nothing is made beside it, and a change is refused."""
    path = tmp_path / "l.db"
    recorded(path, 3).close()
    monkeypatch.setattr(os, "access", _may_read)
    with Ledger(path, create=False) as ledger, closing(ledger.watch()) as looks:
        assert len(list(ledger.items())) == 6
        assert ledger.verify()
        assert next(looks)
        with pytest.raises(LedgerUnavailable, match="readonly"):
            ledger.erase(thread_id="t0", reason="none")
    assert [each.name for each in tmp_path.iterdir()] == ["l.db"]
    with pytest.raises(LedgerUnavailable, match="no permission to read and write it"):
        Ledger(path)
