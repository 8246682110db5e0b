"""A PostgreSQL server for tests, and a database on it; the fixture `postgres_url` is in conftest.py."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from glob import glob
from typing import Any, cast
from uuid import uuid4

NO_SERVER = "no PostgreSQL server"


class NoServerError(Exception):
    """The reason why no PostgreSQL server is available for tests."""


@contextmanager
def database() -> Generator[str]:
    """The URL of a new PostgreSQL database, dropped afterwards. Raises `NoServerError` without a server."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as error:
        raise NoServerError(f"{NO_SERVER}: {error.name} is not installed.") from error
    with server() as address:
        name = f"arbiter_test_{uuid4().hex[:12]}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            parts = conninfo_to_dict(make_conninfo(address, dbname=name))
            host = parts.pop("host", None) or ""
            rest = "&".join(
                f"{key}={value}" for key, value in {"host": host, **parts}.items() if key != "dbname"
            )
            yield f"postgresql:///{name}?{rest}"
        finally:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def emptied(url: str) -> None:
    """Empty every table of a database, except those that record its migrations."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '%migrations' "
            "AND tablename NOT LIKE '%version'"
        ).fetchall()
        # To truncate a table takes milliseconds, and a test fills few of them.
        filled = [f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for (table,) in tables]
        if filled and (used := connection.execute(" UNION ALL ".join(filled).encode()).fetchall()):
            connection.execute(f"TRUNCATE {', '.join(table for (table,) in used)} CASCADE".encode())


@contextmanager
def server() -> Generator[str]:
    """The address of a server: that of ARBITER_POSTGRES, else one on this machine, else a new one."""
    import psycopg

    named = os.environ.get("ARBITER_POSTGRES")
    local = [
        "dbname=postgres",
        "host=127.0.0.1 dbname=postgres",
        "host=127.0.0.1 user=postgres dbname=postgres",
    ]
    for candidate in [named] if named else local:
        try:
            with psycopg.connect(candidate, connect_timeout=3):
                pass
        except psycopg.Error:
            continue
        yield candidate
        return
    if named:
        raise NoServerError(f"{NO_SERVER}: ARBITER_POSTGRES names none that answers.")
    with _started() as started:
        yield started


@contextmanager
def _started() -> Generator[str]:
    found = shutil.which("initdb") or max(glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    if found is None:
        raise NoServerError(
            f"{NO_SERVER}: none answers on this machine, and none is installed. Set ARBITER_POSTGRES."
        )
    binaries = os.path.dirname(os.path.realpath(found))
    # The server does not run as root.
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    folder = tempfile.mkdtemp(prefix="arbiter-pg-")
    as_user: dict[str, Any] = {"check": True, "capture_output": True, "cwd": "/", "timeout": 60}
    if os.geteuid() == 0:
        as_user["user"] = user
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        subprocess.run([f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", user, "--no-sync"], **as_user)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        control = [f"{binaries}/pg_ctl", "-D", data, "-w", "-l", f"{folder}/log"]
        subprocess.run([*control, "-o", options, "start"], **as_user)
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoServerError(
            f"{NO_SERVER}: none answers on this machine, and none could be started ({type(error).__name__}). "
            "Set ARBITER_POSTGRES."
        ) from error
    try:
        yield f"host={folder} user={user} dbname=postgres"
    finally:
        subprocess.run(
            [*control, "-m", "immediate", "stop"], **cast("dict[str, Any]", {**as_user, "check": False})
        )
        shutil.rmtree(folder, ignore_errors=True)
