"""The pytest plugin: suites as tests, and a fixture that runs them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from arbiter.harness import GateSettings, load_suite
from tests.harness.parity import SUITE

APP = "def answer(given):\n    return 'yes' if given['n'] % 2 else 'no'\n"
ASYNCIO = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
INI = f"{ASYNCIO}arbiter_suites = suites/*.yaml\n"


@pytest.fixture
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    cases = [
        {"id": f"case-{n}", "input": {"n": n}, "expected": "yes" if n % 2 else "no", "must_pass": n == 0}
        for n in range(12)
    ]
    pytester.makefile(".jsonl", cases="\n".join(json.dumps(case) for case in cases))
    pytester.makefile(".yaml", **{"suites/parity": SUITE})
    pytester.makepyfile(app=APP)
    pytester.makeconftest('pytest_plugins = ["arbiter.harness.pytest"]')
    pytester.makeini(INI)
    return pytester


def said(files: pytest.Pytester, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of pytest."""
    result = files.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-rxs", *arguments)
    return int(result.ret), result.stdout.str()


def worse(files: pytest.Pytester, answer: str) -> None:
    """From now on the agent gives one answer. Modules stay imported, so it gets a file of its own."""
    files.makepyfile(worse=f"def answer(given):\n    return {answer!r}\n")
    suite = files.path / "suites/parity.yaml"
    suite.write_text(suite.read_text().replace("app.py:answer", "worse.py:answer"))


@pytest.mark.lengthy
def test_cases_are_tests_and_a_regression_fails_with_the_table(files: pytest.Pytester) -> None:
    code, first = said(files)
    assert code == 0
    assert "12 passed, 1 skipped" in first
    assert "there is no baseline" in first
    suite = replace(load_suite("suites/parity.yaml"), gate=GateSettings())
    suite.run(folder=None).save_baseline(files.mkdir("baselines") / "parity.json")
    worse(files, "no")
    code, regressed = said(files)
    assert code == 1
    assert "1 failed, 6 passed, 6 xfailed" in regressed
    assert "right fell by 0.50" in regressed
    assert "✗ regressed" in regressed
    assert "worst changes   right: case-1 ✓ → ✗" in regressed


@pytest.mark.lengthy
def test_in_ci_a_suite_without_a_baseline_fails(
    files: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    code, found = said(files)
    assert code == 1
    assert "1 failed, 12 passed" in found
    assert "there is no baseline. Measure one: arbiter eval baseline suites/parity.yaml" in found


@pytest.mark.lengthy
def test_a_case_is_run_alone_and_the_gate_is_left_out(files: pytest.Pytester) -> None:
    code, one = said(files, "-k", "case-7")
    assert code == 0
    assert "1 passed, 12 deselected" in one
    (journal,) = (files.path / ".arbiter/evals").glob("*/journal.jsonl")
    assert journal.read_text().count('"answer"') == 1
    _, some = said(files, "-k", "case-7 or gate")
    assert "only a part of the cases was selected" in some


@pytest.mark.lengthy
def test_a_case_that_must_pass_fails_the_build(files: pytest.Pytester) -> None:
    worse(files, "yes")
    code, failed = said(files)
    assert code == 1
    assert "2 failed, 6 passed, 5 xfailed" in failed
    assert "case case-0 must pass" in failed


@pytest.mark.lengthy
def test_the_fixture_gives_a_report_and_test_paths_do_not_hide_suites(files: pytest.Pytester) -> None:
    files.mkdir("checks").joinpath("test_agent.py").write_text(
        "def test_agent(arbiter_suite):\n"
        "    report = arbiter_suite('suites/parity.yaml', folder=None)\n"
        "    assert report.rows['right'].mean == 1.0\n"
        "    report.check()\n"
    )
    suite = files.path / "suites/parity.yaml"
    suite.write_text(suite.read_text().replace("gate: {baseline: baselines/parity.json}", ""))
    files.makeini(INI + "testpaths = checks\n")
    _, found = said(files)
    assert "13 passed, 1 skipped" in found


@pytest.mark.lengthy
def test_a_broken_suite_is_an_error_with_its_place(files: pytest.Pytester) -> None:
    files.makefile(".yaml", **{"suites/parity": SUITE.replace("cases:", "repeat: 2\ncases:")})
    code, broken = said(files)
    assert code == 2
    assert "Did you mean 'repeats'?" in broken
    assert "load_suite" not in broken  # no traceback


@pytest.mark.lengthy
def test_a_project_without_xdist_may_have_strict_markers(files: pytest.Pytester) -> None:
    code, _ = said(files, "--strict-markers", "-k", "case-7")
    assert code == 0


@pytest.mark.lengthy
def test_a_case_named_gate_hides_no_gate(files: pytest.Pytester) -> None:
    """pytest-xdist runs one of two tests of the same name."""
    cases = (files.path / "cases.jsonl").read_text()
    files.makefile(".jsonl", cases=cases.replace("case-7", "gate"))
    _, found = said(files, "--collect-only", "-q")
    assert "suites/parity.yaml::gate\n" in found
    assert "suites/parity.yaml::the gate\n" in found


@pytest.mark.lengthy
def test_a_case_with_colons_in_its_id_is_selected(files: pytest.Pytester) -> None:
    cases = (files.path / "cases.jsonl").read_text()
    files.makefile(".jsonl", cases=cases.replace("case-7", "refunds::late"))
    _, found = said(files, "--collect-only", "-q", "-k", "refunds::late")
    (test,) = (line for line in found.splitlines() if "late" in line)
    code, one = said(files, test)
    assert code == 0
    assert "1 passed" in one
    assert len(list((files.path / ".arbiter/evals").glob("*/journal.jsonl"))) == 1


@pytest.mark.lengthy
def test_an_interrupted_suite_interrupts_the_tests(files: pytest.Pytester) -> None:
    """A case that was not run has not passed."""
    files.makepyfile(
        interrupted="import os, signal, time\n\n\ndef answer(given):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.1)\n    return 'yes'\n"
    )
    suite = files.path / "suites/parity.yaml"
    suite.write_text(SUITE.replace("app.py:answer", "interrupted.py:answer") + "limits: {concurrency: 1}\n")
    found = files.inline_run("-p", "no:cacheprovider", "-p", "no:xdist", no_reraise_ctrlc=True)
    assert found.ret == pytest.ExitCode.INTERRUPTED
    assert not found.listoutcomes()[0]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("dist", "runs"), [("worksteal", 2), pytest.param("loadfile", 1, marks=pytest.mark.slow)]
)
def test_a_suite_that_several_workers_ran_is_named(files: pytest.Pytester, dist: str, runs: int) -> None:
    result = files.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--dist", dist)
    assert len(list((files.path / ".arbiter/evals").glob("*/journal.jsonl"))) == runs
    said = "suites/parity.yaml was run 2 times, once in each xdist worker. Use --dist loadfile."
    assert (said in result.stdout.str()) == (runs == 2)


@pytest.mark.lengthy
def test_without_the_plugin_pytest_does_not_import_arbiter(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n\n\ndef test_it():\n"
        "    assert not [name for name in sys.modules if name.partition('.')[0] == 'arbiter']\n"
    )
    pytester.makeini(ASYNCIO)
    others = ("langsmith_plugin", "hypothesispytest", "syrupy", "xdist", "anyio")
    result = pytester.runpytest_subprocess(*(f"-pno:{each}" for each in ("cacheprovider", *others)))
    result.assert_outcomes(passed=1)
