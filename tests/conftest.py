"""Fixtures shared by test files, and the summary at the end of a run."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections.abc import Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, settings

from tests.postgresql import NO_SERVER, NoServerError, database, emptied
from tests.web.chromium import NO_BROWSER

# The process that only hands out tests to workers should start soon: what takes long is imported by the fixtures.
if TYPE_CHECKING:
    from langgraph.store.base import BaseStore
    from sqlalchemy import Connection

    from arbiter._databases import Schema
    from tests.memory.memory_stores import KeywordEmbeddings, Kind
    from tests.support import Hold

COMMON = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("test", COMMON, max_examples=30, derandomize=True)
settings.register_profile("stress-small", COMMON, max_examples=50, derandomize=True)
settings.register_profile("stress-full", COMMON, max_examples=1000)
# What a CI server, a terminal or a user sets changes what commands print and where requests go; tests that are about
# it set it themselves.
FOREIGN = re.compile(
    r"CI|FORCE_COLOR|NO_COLOR|CLICOLOR\w*|TTY_\w+|COLUMNS|LINES|ARBITER_LEDGER\w*|\w+_proxy"
    r"|(GITHUB|LANGSMITH|LANGCHAIN|LANGFUSE|OTEL|RAY|OPENAI|ANTHROPIC)_\w+",
    re.IGNORECASE,
)
for name in filter(FOREIGN.fullmatch, list(os.environ)):
    del os.environ[name]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in the background of a shell; the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
STRESS = os.environ.get("ARBITER_STRESS")
settings.load_profile(f"stress-{STRESS}" if STRESS else "test")
if STRESS != "full":
    # Else Hypothesis first reads the source of every module for constants, 20 s in each worker of a fresh clone,
    # and the examples depend on the modules that a worker happens to have imported.
    providers = import_module("hypothesis.internal.conjecture.providers")
    vars(providers)["_get_local_constants"] = lambda: vars(providers)["_local_constants"]

# `asyncio.run` looks up the handler of its interrupt, and Python then puts the task with its whole result into the
# text of an exception that it drops.
_to_enum: Callable[[object, type], object] = vars(signal)["_int_to_enum"]


def _number_to_enum(value: object, enum: type) -> object:
    return _to_enum(value, enum) if isinstance(value, int) else value


setattr(signal, "_int_to_enum", _number_to_enum)  # noqa: B010 - a checker knows no such attribute

Found = tuple[str | None, str]


@pytest.fixture(autouse=True)
def _levels_of_logs_last_a_test() -> Generator[None]:
    """A library that a test loads, such as Ray, may set the level of all loggers."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _no_conversation_waits() -> Generator[None]:
    """Conversations that a test leaves waiting are not read during later ones."""
    from arbiter._threads.exits import forget_held

    yield
    forget_held()


@pytest.fixture(scope="session", autouse=True)
def _tables_of_files_are_made_once() -> Generator[None]:
    """A new SQLite database gets the tables that the migrations made in the first one, which takes a tenth of their
    time. Programs in other processes migrate."""
    from arbiter import _databases

    migrate: Callable[[Connection, Schema, str | None], None] = vars(_databases)["_migrate"]
    made: dict[str, list[str]] = {}

    def copied(connection: Connection, schema: Schema, before: str | None) -> None:
        def found() -> list[str]:
            rows = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
            return [sql for (sql,) in rows if sql is not None]

        if connection.dialect.name != "sqlite" or found():
            migrate(connection, schema, before)
        elif schema.noun not in made:
            migrate(connection, schema, before)
            row = f"INSERT INTO {schema.version_table} VALUES ('{schema.newest}')"
            made[schema.noun] = [*found(), row]
        else:
            for sql in made[schema.noun]:
                connection.exec_driver_sql(sql)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_databases, "_migrate", copied)
        yield


@pytest.fixture(scope="session", autouse=True)
def _yaml_is_parsed_once() -> Generator[None]:
    """Packs that ship, and texts that several tests write, are parsed at their first use."""
    from arbiter._constitution import documents

    whole: Callable[[Any], Any] = vars(documents)["_whole"]
    trees: dict[tuple[str, object], Any] = {}

    def known(loader: Any) -> Any:
        key = loader.buffer, loader.bounds
        if key not in trees:
            trees[key] = whole(loader)
        return trees[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_whole", known)
        yield


@pytest.fixture
def hold() -> Generator[Hold]:
    """A call that takes until the test lets it go, or ends."""
    from tests.support import Hold

    held = Hold()
    try:
        yield held
    finally:
        held.release()


@pytest.fixture(scope="session")
def _database() -> Generator[Found]:
    opening = database()
    try:
        url = opening.__enter__()
    except NoServerError as error:
        yield None, str(error)
        return
    try:
        yield url, ""
    finally:
        opening.__exit__(None, None, None)


@pytest.fixture
def postgres_url(_database: Found) -> str:
    """An empty PostgreSQL database. Without a server the test is skipped, or fails with ARBITER_REQUIRE_POSTGRES=1."""
    url, reason = _database
    if url is None:
        if os.environ.get("ARBITER_REQUIRE_POSTGRES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    emptied(url)
    return url


def _url(request: pytest.FixtureRequest) -> Callable[[], str]:
    return lambda: cast(str, request.getfixturevalue("postgres_url"))


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Callable[[], str]:
    """As `postgres_url`, for a test that needs it in some of its cases only."""
    return _url(request)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest) -> Generator[BaseStore]:
    """An empty store without an index, of each kind in turn."""
    from tests.memory.memory_stores import opened

    with opened(cast("Kind", request.param), url=_url(request)) as store:
        yield store


@pytest.fixture
def embeddings() -> KeywordEmbeddings:
    from tests.memory.memory_stores import KeywordEmbeddings

    return KeywordEmbeddings("cat", "dog", "seattle", "portland", "work")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_indexed_store(request: pytest.FixtureRequest, embeddings: KeywordEmbeddings) -> Generator[BaseStore]:
    """An empty store of each kind in turn, searched by the keywords of `embeddings`."""
    from tests.memory.memory_stores import opened

    with opened(cast("Kind", request.param), url=_url(request), embeddings=embeddings) as store:
        yield store


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", type=int, default=0, help="run at most that many cases of each test; 0 runs all"
    )


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Leave out the cases that `--cases` does without, first those that are marked to be left out of `make quick`."""
    yield
    most = int(metafunc.config.getoption("--cases") or 0)
    cases = vars(metafunc)["_calls"]
    if STRESS != "full":
        cases[:] = _in_turns(cases)
    if most:
        cases[:] = sorted(cases, key=_takes_long)[:most]


def _in_turns(cases: list[Any]) -> list[Any]:
    """Of a test with a store and other parameters, each store and each of the others in one case at least. Cases
    that pair them anew show little more."""
    store = next(
        (name for name in ("any_store", "any_indexed_store") if cases and name in cases[0].params), ""
    )
    if not store:
        return cases
    stores = list(dict.fromkeys(case.params[store] for case in cases))
    others = [tuple(each for each in case.indices.items() if each[0] != store) for case in cases]
    each = list(dict.fromkeys(others))
    pairs = {(stores[n % len(stores)], each[n % len(each)]) for n in range(max(len(stores), len(each)))}
    return [case for case, other in zip(cases, others, strict=True) if (case.params[store], other) in pairs]


def _takes_long(case: Any) -> bool:
    return any(mark.name in ("lengthy", "slow") for mark in case.marks)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is collected stays: looking for garbage among it meanwhile takes a tenth of the time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    # Modules and tests live as long as the run: the collector need not look at them again and again.
    gc.freeze()
    gc.set_threshold(5_000, 10, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Workers send what was captured as UTF-8, which has no lone surrogates: one in a log would end them all.
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())]
    without = [reason for reason in reasons if NO_SERVER in reason]
    if without:
        reason = without[0].removeprefix("Skipped: ")
        terminalreporter.write_line(
            f"Not tested on PostgreSQL ({len(without)} skipped): {reason}", yellow=True
        )
    unseen = [reason for reason in reasons if NO_BROWSER in reason]
    if unseen:
        terminalreporter.write_line(
            f"The viewer was not tested in a browser ({len(unseen)} skipped): {unseen[0].partition(NO_BROWSER)[2]}",
            yellow=True,
        )
