"""A process that is killed between and inside steps: the next one decides as an uninterrupted run would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python

pytestmark = pytest.mark.lengthy

ROOT = Path(__file__).parent.parent.parent


def tell(database: Path, kill_at: int) -> tuple[int, Any]:
    done = subprocess.run(
        python("-m", "tests.lifecycle.crash_story", str(database), str(kill_at)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def decisions(told: Any) -> Any:
    # What a dead process knew only for itself (that a cap was reached) is in no later decision.
    return [decision[:4] for decision in told["decisions"]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    code, told = tell(tmp_path_factory.mktemp("whole") / "db.sqlite", 0)
    assert code == 0
    nodes = [decision[0] for decision in told["decisions"]]
    assert nodes == [
        "load",
        "draft",
        "reflect",
        "draft",
        "reflect",
        "draft",
        "check",
        "tidy",
        "verify",
        "respond",
        "tell",
    ]
    assert told["decisions"][-1][1] == "denied"
    return told


@pytest.mark.parametrize("kill_at", [6, 15, 16])
def test_killed_once(kill_at: int, uninterrupted: Any, tmp_path: Path) -> None:
    check(tmp_path, [kill_at], uninterrupted)


EVENTS = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 17, 18]
EACH = 1 if os.environ.get("ARBITER_STRESS") == "full" else 2


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", EVENTS[::EACH])
def test_killed_at_any_event(kill_at: int, uninterrupted: Any, tmp_path: Path) -> None:
    check(tmp_path, [kill_at], uninterrupted)


def test_killed_again_and_again(uninterrupted: Any, tmp_path: Path) -> None:
    check(tmp_path, [3, 4, 3, 5], uninterrupted)


def check(folder: Path, kills: list[int], uninterrupted: Any) -> None:
    database = folder / "db.sqlite"
    for kill_at in kills:
        code, _ = tell(database, kill_at)
        assert code == -signal.SIGKILL
    code, told = tell(database, 0)
    assert code == 0
    assert told["log"] == uninterrupted["log"]
    assert decisions(told) == decisions(uninterrupted)
