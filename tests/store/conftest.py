"""An empty store on each database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from arbiter.store import SqlRepository
from arbiter.store._opening import open_store
from tests.store.store_support import without_tables

KINDS = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new store, which tests copy."""
    path = tmp_path_factory.mktemp("store") / "evaluation.db"
    open_store(path).dispose()
    return path


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, _template: Path, postgres: Callable[[], str]
) -> str:
    """Where an empty store is."""
    if request.param == "sqlite":
        return str(shutil.copy(_template, tmp_path / "evaluation.db"))
    return postgres()


@pytest.fixture(params=KINDS)
def bare_place(request: pytest.FixtureRequest, tmp_path: Path, postgres: Callable[[], str]) -> Generator[str]:
    """Where a store can be made; nothing of a store is there."""
    if request.param == "sqlite":
        yield str(tmp_path / "evaluation.db")
        return
    url = postgres()
    without_tables(url)
    yield url
    without_tables(url)


@pytest.fixture
def engine(place: str) -> Generator[Engine]:
    """An empty store."""
    engine = open_store(place)
    yield engine
    engine.dispose()


@pytest.fixture
def repository(place: str) -> Generator[SqlRepository]:
    """An empty repository that knows Ilka."""
    with SqlRepository(place) as repository:
        repository.add_agent("ilka", "Ilka")
        yield repository
