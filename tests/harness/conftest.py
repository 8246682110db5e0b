"""Each test of the harness works in a folder of its own, in which runs leave their journals."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
