"""A store is opened with the newest schema, or one sentence says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from arbiter._databases import shown, url_of
from arbiter.errors import ArbiterError
from arbiter.store import MemoryRepository, SqlRepository, StoreUnavailable
from arbiter.store._opening import SCHEMA, upgrade_store
from tests.cli.cli_support import invoked
from tests.processes import python


def change(place: str, *statements: str) -> None:
    """Run raw statements on the database."""
    engine = create_engine(url_of(place, SCHEMA))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def arbiter(*arguments: str) -> tuple[int, str]:
    """The exit code of the command and its output; 2 for a mistake."""
    result = invoked(*arguments)
    if isinstance(result.exception, ArbiterError):
        return 2, str(result.exception)
    return result.exit_code, result.output


def revision_is(place: str, revision: str) -> None:
    change(place, f"UPDATE {SCHEMA.version_table} SET version_num = '{revision}'")


@pytest.mark.lengthy
def test_a_newer_schema_is_refused(bare_place: str) -> None:
    upgrade_store(bare_place)
    revision_is(bare_place, "9999")
    for opens in (SqlRepository, upgrade_store):
        with pytest.raises(StoreUnavailable, match=r"schema 9999 is newer .* Upgrade arbiteros"):
            opens(bare_place)
    revision_is(bare_place, SCHEMA.newest)
    SqlRepository(bare_place).close()


@pytest.mark.lengthy
def test_an_older_schema_names_the_command(place: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Also for a SQLite file: only `arbiter store upgrade` changes the tables of a store."""
    from dataclasses import replace
    from shutil import copytree

    SqlRepository(place).close()
    migrations = tmp_path / "migrations"
    copytree(SCHEMA.migrations, migrations)
    (migrations / "versions" / "0002_second.py").write_text(
        'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "0002"\ndown_revision = "0001"\n'
        "branch_labels = depends_on = None\n\n\ndef upgrade() -> None:\n"
        '    op.add_column("runs", sa.Column("title", sa.Text(), nullable=True))\n'
    )
    monkeypatch.setattr(
        "arbiter.store._opening.SCHEMA", replace(SCHEMA, migrations=migrations, newest="0002")
    )
    with pytest.raises(
        StoreUnavailable, match=r"its schema is 0001, .* needs 0002\. Run: arbiter store upgrade"
    ):
        SqlRepository(place)
    assert arbiter("store", "upgrade", place)[1].endswith("was upgraded from schema 0001 to 0002.\n")
    SqlRepository(place).close()
    change(place, "ALTER TABLE runs DROP COLUMN title")
    revision_is(place, SCHEMA.newest)


def test_the_default_store_is_made_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SqlRepository().close()
    assert (tmp_path / ".arbiter" / "evaluation.db").is_file()


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("mysql://host/db", "expected a path, sqlite:///... or postgresql"),
        ("missing/evaluation.db", "there is no folder 'missing'"),
        ("postgresql://someone:secret@127.0.0.1:1/none", r"cannot open 'postgresql://someone:\*\*\*@127"),
    ],
)
def test_a_wrong_place_is_one_sentence_without_a_password(where: str, problem: str) -> None:
    with pytest.raises(StoreUnavailable, match=problem) as raised:
        SqlRepository(where)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_server_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str | None:
        return None if name == "psycopg" else name

    monkeypatch.setattr("arbiter._databases.find_spec", found)
    code, text = arbiter("store", "upgrade", "postgresql://someone:secret@127.0.0.1:1/none")
    assert code == 2
    assert text == (
        "cannot open 'postgresql://someone:***@127.0.0.1:1/none': it needs psycopg: pip install 'arbiteros[postgres]'"
    )


@pytest.mark.lengthy
def test_the_command_makes_tables_and_checks_them(bare_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = arbiter("store", "check", bare_place)
    assert code == 2
    assert "arbiter store upgrade makes one." in text
    assert arbiter("store", "upgrade", bare_place)[1].endswith(" has new tables of schema 0001.\n")
    assert arbiter("store", "upgrade", bare_place)[1].endswith(" has the newest schema 0001.\n")
    with SqlRepository(bare_place) as repository:
        repository.add_agent("ilka", "Ilka")
    monkeypatch.setenv("ARBITER_STORE", bare_place)
    code, text = arbiter("store", "check", "--format", "json")
    found = json.loads(text)
    assert code == 0
    assert found["rows"]["agents"] == 1
    assert len(found["rows"]) == 10
    assert found["differences"] == []
    change(
        bare_place,
        "DROP INDEX messages_agent_id_at",
        "ALTER TABLE runs ADD COLUMN title TEXT",
        "DROP TABLE calibrations",
    )
    code, text = arbiter("store", "check")
    assert code == 1
    for said in (
        "table calibrations is missing.",
        "column runs.title is unknown.",
        "index messages.messages_agent_id_at is missing.",
        "restore a backup, or make a new store",
    ):
        assert said in text
    code, text = arbiter("store", "upgrade")
    assert code == 0
    assert text.endswith(f"changed by hand: arbiter store check {shown(bare_place)}\n")
    change(bare_place, "DROP TABLE arbiter_store_version")
    code, text = arbiter("store", "upgrade")
    assert code == 2
    assert "already exists, and there is no table 'arbiter_store_version' that says of which schema." in text
    assert "Restore that table from a backup" in text


def test_a_repository_in_memory_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MemoryRepository() as repository:
        repository.add_agent("ilka")
        assert repository.config("ilka").drafts == 3
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("missing", ["sqlalchemy", "alembic"])
@pytest.mark.lengthy
def test_without_its_packages_a_store_names_the_extra(missing: str, tmp_path: Path) -> None:
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        "from arbiter.cli import main\nsys.argv = ['arbiter', 'store', 'upgrade', 's.db']\nmain()"
    )
    done = subprocess.run([*python("-c", code)], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "a store needs sqlalchemy and alembic: pip install 'arbiteros[store]'" in done.stderr
    assert not os.listdir(tmp_path)
