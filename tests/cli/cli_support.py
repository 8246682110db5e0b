"""The command as a new user types it: in this process for what it prints, in another for how it ends."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from typer import testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from arbiter.cli._app import app
from arbiter.errors import ArbiterError
from tests import docs_check
from tests.processes import python

# Else each command that a test types makes all commands anew from their signatures, which takes longer than most run.
testing.__dict__["_get_command"] = cache(get_command)


def invoked(*arguments: str, answers: str = "", **env: str) -> Result:
    """The command in this process."""
    return CliRunner(env=env).invoke(app, arguments, input=answers)


def typed(*arguments: str, answers: str = "", code: int = 0) -> str:
    """Stdout of the command in this process."""
    done = invoked(*arguments, answers=answers, COLUMNS="200")
    # A sentence about a mistake would end with 1 here, as a finding does.
    assert done.exit_code == code, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.stdout


def started(*arguments: str, folder: Path, code: int) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, without a terminal to ask in. It must not end in a traceback."""
    done = subprocess.run(
        python("-m", "arbiter", *arguments),
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(docs_check.ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def refused(*arguments: str) -> str:
    """The sentence by which the command refuses what it was given."""
    done = invoked(*arguments, COLUMNS="200")
    if isinstance(done.exception, ArbiterError | OSError):
        return str(done.exception)
    assert done.exit_code == 2, (done.output, done.exception)
    return done.stderr
