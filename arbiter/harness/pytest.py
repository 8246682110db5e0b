"""A pytest plugin that runs suites as tests: `pytest_plugins = ["arbiter.harness.pytest"]` in `conftest.py`.

The ini option `arbiter_suites` names suite files. Each case is a test, and the last one of a suite is the gate, which
fails without a baseline if the environment variable CI is set. The cases of a suite run together, when the first of
them is due. With pytest-xdist, each worker that gets a case of a suite runs it, so `--dist loadfile` keeps a suite on
one. The fixture `arbiter_suite` runs a suite inside a test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ArbiterError
from arbiter.harness.cases import Case, Selection
from arbiter.harness.files import load_suite
from arbiter.harness.reports.report import Report, why_failed
from arbiter.harness.results import CaseResult
from arbiter.harness.suites import Suite
from arbiter.models import visible

_GATE = "gate"
_FILES = pytest.StashKey[list[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("arbiter_suites", "Suite files whose cases are tests, such as suites/*.yaml.", type="args")
    parser.addini("arbiter_allow", "Prefixes of dotted paths that suites may name.", type="args")


def pytest_configure(config: pytest.Config) -> None:
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        # pytest then looks into these folders alone.
        config.args.extend(str(file) for file in _suite_files(config))
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): tests that pytest-xdist runs in one worker.")
    if config.getoption("dist", "no") not in ("no", "each"):
        config.pluginmanager.register(_Workers(config))


def _suite_files(config: pytest.Config) -> list[Path]:
    """The files of suites. They are looked up once, because each file of the project is compared with them."""
    if _FILES not in config.stash:
        patterns: list[str] = config.getini("arbiter_suites")
        config.stash[_FILES] = sorted(file for each in patterns for file in config.rootpath.glob(each))
    return config.stash[_FILES]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    if file_path in _suite_files(parent.config):
        found: SuiteFile = SuiteFile.from_parent(parent, path=file_path)
        return found
    return None


class _Workers:
    """Says which suites ran in several workers of pytest-xdist, and so several times."""

    def __init__(self, config: pytest.Config) -> None:
        self._workers: dict[str, set[str]] = {
            file.relative_to(config.rootpath).as_posix(): set() for file in _suite_files(config)
        }

    def pytest_runtest_logreport(self, report: Any) -> None:
        if (workers := self._workers.get(report.nodeid.partition("::")[0])) is not None:
            workers.add(report.node.gateway.id)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for file, workers in self._workers.items():
            if len(workers) > 1:
                terminalreporter.write_line(
                    f"{file} was run {len(workers)} times, once in each xdist worker. Use --dist loadfile.",
                    yellow=True,
                )


class SuiteFile(pytest.File):
    """A suite file: an item for each case, and the gate."""

    def collect(self) -> Iterable[pytest.Item]:
        items: list[pytest.Item] = [
            CaseItem.from_parent(self, name=_name(case), case=case) for case in self.suite.cases
        ]
        # Two tests of one name would be one for pytest-xdist. No case has a blank in its id.
        is_taken = any(case.id == _GATE for case in self.suite.cases)
        items.append(GateItem.from_parent(self, name="the gate" if is_taken else _GATE))
        for item in items:
            item.add_marker(pytest.mark.xdist_group(self.suite.name))
        return items

    @cached_property
    def suite(self) -> Suite:
        return load_suite(self.path, allow=self.config.getini("arbiter_allow"))

    @property
    def selected(self) -> list[str]:
        """The cases that pytest runs."""
        return [
            item.case.id for item in self.session.items if isinstance(item, CaseItem) and item.parent is self
        ]

    @cached_property
    def report(self) -> Report:
        """The report of the selected cases. They run when it is first asked for."""
        return _run(self.suite, select=Selection(ids=self.selected))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ArbiterError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    @cached_property
    def results(self) -> Mapping[str, Sequence[CaseResult]]:
        found: dict[str, list[CaseResult]] = {}
        for result in self.report.results:
            found.setdefault(result.case_id, []).append(result)
        return found


def _name(case: Case) -> str:
    """The name of a case's test. pytest splits the id of a test at `::`, except in brackets."""
    return f"[{case.id}]" if "::" in case.id else case.id


class _Item(pytest.Item):
    @property
    def file(self) -> SuiteFile:
        file = self.parent
        assert isinstance(file, SuiteFile)
        return file

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ArbiterError | AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.file.suite.name}: {self.name}"


class CaseItem(_Item):
    """A case. A failed case with `must_pass` fails the build; the gate weighs any other failed case."""

    def __init__(self, *, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self.case = case

    def runtest(self) -> None:
        failed = [result for result in self.file.results.get(self.case.id, ()) if not result.passed]
        if failed:
            reason = visible(f"{self.case.id}: {why_failed(failed[0])}")
            if self.case.must_pass:
                raise AssertionError(reason)
            pytest.xfail(reason)


class GateItem(_Item):
    """The regression gate about all cases of the suite."""

    def runtest(self) -> None:
        suite = self.file.suite
        if len(self.file.selected) < len(suite.cases):
            pytest.skip("only a part of the cases was selected")
        self.file.report.check()
        if self.file.report.baseline is None:
            missing = f"there is no baseline. Measure one: arbiter eval baseline {self.file.nodeid}"
            if os.environ.get("CI"):
                raise AssertionError(missing)
            pytest.skip(missing)


@pytest.fixture
def arbiter_suite(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """A function that runs a suite file and returns its report: `arbiter_suite("suites/refunds.yaml")`.

    Further arguments are those of `Suite.run`. The path is relative to pytest's root folder.
    """

    def run(path: str | Path, **options: Any) -> Report:
        allow = request.config.getini("arbiter_allow")
        replay = options.get("mode") == "mock"
        return _run(load_suite(request.config.rootpath / path, allow=allow, replay=replay), **options)

    return run


def _run(suite: Suite, **options: Any) -> Report:
    """The report of a suite. Ctrl-C ends a run with a report of what is done; here it ends the tests, too."""
    report = suite.run(**options)
    if report.interrupted:
        raise KeyboardInterrupt
    return report
