"""`arbiter eval`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from arbiter._values.files import write_whole
from arbiter.cli import _streams
from arbiter.cli._app import main
from arbiter.errors import ArbiterError, ConfigurationError
from arbiter.harness import Case, CaseRun, Score, Suite, journal
from arbiter.harness.reports.texts import remarks
from tests.cli.cli_support import invoked
from tests.harness.parity import SUITE
from tests.scripted import Named

APP = """
def answer(given):
    return "yes" if given["n"] % 2 else "no"
"""


@pytest.fixture
def files(project: Path) -> Path:
    (project / "app.py").write_text(APP)
    (project / "suites").mkdir()
    (project / "suites/parity.yaml").write_text(SUITE)
    cases = [
        {
            "id": f"case-{n}",
            "input": {"n": n},
            "expected": "yes" if n % 2 else "no",
            "tags": ["odd"] if n % 2 else [],
        }
        for n in range(10)
    ]
    (project / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    return project


class Said:
    """The outcome of a command."""

    def __init__(self, *arguments: str) -> None:
        result = invoked("eval", *arguments)
        known = isinstance(result.exception, ArbiterError)
        self.code = 2 if known else result.exit_code
        self.out = result.stdout
        self.err = result.stderr + (str(result.exception) if known else "")
        if result.exception is not None and not known and not isinstance(result.exception, SystemExit):
            raise result.exception


def worse(project: Path) -> None:
    """From now on the agent says "no" whatever it is asked. Modules stay imported, so it gets a file of its own."""
    (project / "worse.py").write_text("def answer(given):\n    return 'no'\n")
    suite = project / "suites/parity.yaml"
    suite.write_text(suite.read_text().replace("app.py:answer", "worse.py:answer"))


@pytest.mark.lengthy
def test_a_suite_is_measured_and_a_regression_fails(files: Path) -> None:
    first = Said("run")
    assert (first.code, "there is no baseline baselines/parity.json yet" in first.out) == (0, True)
    assert "right       share      10   1.00" in first.out
    assert Said("baseline", "suites/parity.yaml").code == 0
    assert Said("run").code == 0
    worse(files)
    failed = Said("run", "suites/parity.yaml")
    assert failed.code == 1
    assert "parity regressed: right fell by 0.50 of 0–1" in " ".join(failed.out.split())
    assert "worst changes   right: case-1 ✓ → ✗" in failed.out
    assert Said("gate").code == 1
    assert Said("show").code == 0
    assert Said("report").out == Said("show").out
    assert Said("report", "last", "--format", "md").out.startswith("### parity\n")
    assert Said("run", "--no-gate").code == 0


def test_a_run_stays_compared_with_the_baseline_that_it_was_given(files: Path) -> None:
    """The comment of a pull request would otherwise say that the run has passed."""
    Said("baseline", "suites/parity.yaml", "--out", "main.json")
    worse(files)
    failed = Said("run", "--baseline", "main.json")
    assert failed.code == 1
    assert Said("show").out == failed.out
    assert Said("gate").code == 1
    assert "right fell by 0.50" in Said("comment").out


def test_a_run_that_goes_on_is_compared_with_the_baseline_that_it_is_given_then(files: Path) -> None:
    Said("baseline", "suites/parity.yaml", "--out", "main.json")
    worse(files)
    assert Said("run").code == 0
    lines = max((files / ".arbiter/evals").glob("*/journal.jsonl"))
    before_end = lines.read_text().splitlines(keepends=True)[:-1]
    lines.write_text("".join(before_end))  # as if it was killed
    failed = Said("run", "--resume", "last", "--baseline", "main.json")
    assert failed.code == 1, failed.err
    assert Said("show").out == failed.out
    assert Said("gate").code == 1


def test_a_run_that_goes_on_has_the_gate_that_its_suite_has_then(files: Path) -> None:
    """A case that must pass now fails the run, and also what is asked about the run later."""
    worse(files)
    assert Said("run").code == 0
    lines = max((files / ".arbiter/evals").glob("*/journal.jsonl"))
    before_end = lines.read_text().splitlines(keepends=True)[:-1]
    lines.write_text("".join(before_end))  # as if it was killed
    cases = files / "cases.jsonl"
    cases.write_text(cases.read_text().replace('"id": "case-3"', '"id": "case-3", "must_pass": true'))
    failed = Said("run", "--resume", "last")
    assert (failed.code, "case case-3 must pass" in failed.out) == (1, True)
    assert Said("show").out == failed.out
    assert Said("gate").code == 1


def test_a_run_that_goes_on_stays_the_first_one_since_its_baseline_was_replaced(files: Path) -> None:
    Said("baseline", "suites/parity.yaml")
    assert Said("run").code == 0
    baseline = files / "baselines/parity.json"
    found = json.loads(baseline.read_text())
    baseline.write_text(json.dumps({**found, "capturedAt": "2026-01-01T00:00:00Z"}))
    worse(files)
    told = "this is the first run since the baseline was replaced"
    assert told in " ".join(Said("run").out.split())
    lines = max((files / ".arbiter/evals").glob("*/journal.jsonl"))
    before_end = lines.read_text().splitlines(keepends=True)[:-1]
    lines.write_text("".join(before_end))  # as if it was killed
    assert told in " ".join(Said("run", "--resume", "last").out.split())
    assert told in " ".join(Said("show").out.split())


def test_an_unchanged_run_of_few_cases_is_undecided_if_strict(files: Path) -> None:
    Said("baseline", "suites/parity.yaml")
    (files / "cases.jsonl").write_text((files / "cases.jsonl").read_text().replace('"no"', '"nein"', 1))
    assert Said("run", "--case", "case-1", "--case", "case-2").code == 5  # 8 of 10 cases are gone


def test_an_undecided_run_of_selected_cases_says_how_to_see_them_alone(files: Path) -> None:
    Said("baseline", "suites/parity.yaml")
    few = Said("run", "--case", "case-1")
    assert few.code == 5
    assert "9 of 10 cases of the suite were not selected" in " ".join(few.out.split())
    assert Said("run", "--case", "case-1", "--no-gate").code == 0
    assert "not selected" not in Said("run").out


def test_two_undecided_runs_of_one_selected_case_are_not_said_to_lack_others(files: Path) -> None:
    for _ in range(2):
        Said("run", "--case", "case-1")
    compared = Said("compare")
    assert compared.code == 5
    assert "not selected" not in compared.out


def test_json_is_the_only_output(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    said = Said("run", "--format", "json", "--tag", "odd")
    found = json.loads(said.out)
    assert [result["case"] for result in found["results"]] == [f"case-{n}" for n in range(1, 10, 2)]
    assert found["comparison"]["exit_code"] == 0
    assert said.err.splitlines()[-1] == "5/5 · 0 running"


TALKING = """
import os
print("loading")
def answer(given):
    print("thinking")
    os.chdir("/")
    return "käse \\ud800 😀"
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_is_the_only_output_whatever_the_target_prints(
    files: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """The target prints, changes the working directory, and says what neither ASCII nor UTF-8 can encode."""
    (files / f"talking_{encoding[0]}.py").write_text(TALKING, encoding="utf-8")
    suite = files / "suites/parity.yaml"
    suite.write_text(SUITE.replace("app.py:answer", f"talking_{encoding[0]}.py:answer"))
    shown, told = BytesIO(), BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(shown, encoding))
    monkeypatch.setattr(sys, "stderr", TextIOWrapper(told, encoding))
    monkeypatch.setattr(sys, "argv", ["arbiter", "eval", "run", "--format", "json", "--out", "report.md"])
    with pytest.raises(SystemExit, match="0"):
        main()
    sys.stdout.flush()
    found = json.loads(shown.getvalue().decode(encoding))
    assert found["results"][0]["output"] == "käse \\ud800 😀"
    sys.stderr.flush()
    assert b"loading" in told.getvalue()
    assert b"thinking" in told.getvalue()
    assert (files / "report.md").exists()
    assert len(list((files / ".arbiter/evals").glob("*/report.json"))) == 1


def test_a_run_that_leaves_a_thread_behind_does_not_end_the_process_of_a_later_command(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_streams, "_stuck", [True])
    monkeypatch.setattr(sys, "argv", ["arbiter", "eval", "list"])
    with patch("threading.Timer") as timer, pytest.raises(SystemExit, match="0"):
        main()
    timer.assert_not_called()


def test_a_full_disk_keeps_what_was_written(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops, the message says how it goes on, and no case is run twice."""
    synced = os.fsync

    def full(descriptor: int) -> None:
        if any((files / ".arbiter/evals").glob("*/run.json")):
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(journal, "_SYNC", 0.0)
    monkeypatch.setattr(os, "fsync", full)
    result = invoked("eval", "run", "--concurrency", "1")
    (run,) = (files / ".arbiter/evals").glob("*/run.json")
    said = f"the journal of the run {run.parent.name} cannot be written: No space left on device."
    assert said in str(result.exception)
    monkeypatch.setattr(os, "fsync", synced)
    resumed = Said("run", "--resume", "last")
    assert resumed.code == 0, resumed.err
    lines = (run.parent / "journal.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"kind":"answer"' in line]) == 10


@pytest.mark.lengthy
def test_a_reader_that_leaves_changes_no_exit_code(files: Path) -> None:
    """As in `arbiter eval run | head`: the run regressed, and the code says so."""
    Said("baseline", "suites/parity.yaml")
    worse(files)
    arbiter = [sys.executable, "-m", "arbiter", "eval", "run", "suites/parity.yaml"]
    with subprocess.Popen(arbiter, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate()
    assert (process.returncode, told) == (1, b"")


def test_runs_are_listed_and_shown(files: Path) -> None:
    Said("run")
    run_id = json.loads(Said("show", "--format", "json").out)["timing"]["run_id"]
    assert run_id in Said("list").out
    shown = Said("show", "last", "case-3").out
    assert '"n": 3' in shown
    assert "right 1 ✓" in shown
    assert Said("show", run_id, "case-33").code == 2
    assert Said("report", "last", "--out", "report.json").code == 0
    assert json.loads(Path("report.json").read_text())["suite"] == "parity"


def test_a_list_shows_whole_ids(files: Path) -> None:
    """They are what `--resume` and `show` take, also in a list that is wider than the terminal."""
    name = "a-rather-long-name-of-a-suite"
    (files / "suites/parity.yaml").write_text(SUITE.replace("suite: parity", f"suite: {name}"))
    Said("run", "--no-gate")
    (folder,) = (files / ".arbiter/evals").glob("*-*")
    assert f"{folder.name}   a-rather" in Said("list").out


@pytest.mark.parametrize(
    ("format", "begins"), [("md", "### parity"), ("html", "<!doctype html>"), ("junit", "<?xml ")]
)
def test_a_report_is_printed_in_each_form(files: Path, format: str, begins: str) -> None:
    said = Said("run", "--format", format)
    assert said.out.lower().startswith(begins)
    assert Said("show", "--format", format).out.startswith(said.out[:90])
    assert Said("show", "last", "case-1", "--format", format).code == 2


def test_the_newest_run_of_a_suite_goes_by_its_name(files: Path) -> None:
    """So what a report of several suites says about a case is a command that works."""
    Said("baseline", "suites/parity.yaml", "--repeats", "1")
    worse(files)
    (files / "suites/other.yaml").write_text(
        "suite: zz\ntarget: {function: app.py:answer}\ncases: [{id: a, input: {n: 1}}]\n"
    )
    said = Said("run", "suites/parity.yaml", "suites/other.yaml")
    assert "Look at it: arbiter eval show parity case-1" in " ".join(said.out.split())
    assert '"n": 1' in Said("show", "parity", "case-1").out
    assert Said("show", "last", "case-1").code == 2


PAYING = """
from langgraph.graph import START, StateGraph
from arbiter import ArbiterOS
from arbiter.checkers import ConditionChecker

builder = StateGraph(dict)
builder.add_node("draft", lambda state: state)
builder.add_node("pay", lambda state: state)
builder.add_edge(START, "draft")
builder.add_edge("draft", "pay")
arbiter_os = ArbiterOS()
arbiter_os.add_policy_checker(ConditionChecker("no_pay", "true", target_nodes=["pay"]))
graph = arbiter_os.govern(builder)
"""
FAILING = """
from langgraph.graph import START, StateGraph
builder = StateGraph(dict)
builder.add_node("write", lambda state: {"answer": "x"})
builder.add_edge(START, "write")
graph = builder.compile()
"""


@pytest.mark.parametrize(
    ("command", "ends"),
    [(("run", "--no-gate"), 5), (("baseline", "suites/parity.yaml", "--out", "parity.json"), 2)],
    ids=["run", "baseline"],
)
def test_an_evaluator_that_fails_is_reported_once(
    files: Path, caplog: pytest.LogCaptureFixture, command: tuple[str, ...], ends: int
) -> None:
    (files / "failing_graph.py").write_text(FAILING)
    (files / "suites/parity.yaml").write_text(
        SUITE.replace("{function: app.py:answer}", "{graph: failing_graph.py:graph}")
        + "evaluators: [{name: brief, use: length, key: gone, at_most: 3}]\n"
    )
    said = Said(*command)
    assert (said.code, "brief 10 error" in said.out) == (ends, command[0] == "run")
    assert len([record for record in caplog.records if "brief failed" in record.message]) == 1


def test_a_case_is_shown_line_by_line(files: Path) -> None:
    (files / "lines.py").write_text("def answer(given):\n    return 'one\\ntwo \\x1b[2J'\n")
    suite = files / "suites/parity.yaml"
    suite.write_text(SUITE.replace("app.py:answer", "lines.py:answer"))
    Said("run")
    shown = Said("show", "last", "case-1").out
    assert "repeat 1: completed" in shown
    assert "  output one\n    two \\u001b[2J\n" in shown


def test_a_case_shows_how_each_node_run_ended(files: Path) -> None:
    """A node that a rule denied did not run, as the expectation beside it says."""
    (files / "paying.py").write_text(PAYING)
    (files / "suites/parity.yaml").write_text(
        "suite: paying\ntarget: {graph: paying.py:graph}\n"
        "cases: [{id: a, input: {n: 1}, expect: {nodes: [draft, pay]}}]\n"
    )
    Said("run", "--no-gate")
    shown = Said("show", "last", "a").out
    assert "  ran draft\n  pay denied by no_pay\n" in shown
    assert "step 2: expected pay, ran nothing" in shown


@pytest.mark.parametrize("options", [("--format", "html"), ("--out", "report.html")])
def test_a_page_without_its_package_is_refused_before_a_case_runs(
    files: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    said = Said("run", *options)
    assert (said.code, "pip install 'arbiteros[report]'" in said.err) == (2, True)
    assert not (files / ".arbiter").exists()


def test_an_empty_label_is_shown(files: Path) -> None:
    Suite("kinds", [Case("a", 1)], scorers={"kind": lambda run: ""}).run({"a": ""})
    assert 'labels   kind: "" 1' in Said("show").out
    assert 'kind ""' in Said("show", "last", "a").out


def test_a_gated_row_that_the_run_has_not_keeps_the_report(files: Path) -> None:
    """The rows of a function are known once it was called, and its answers are paid for by then."""
    suite = files / "suites/parity.yaml"
    suite.write_text(SUITE.replace("gate: {", "gate: {rows: [right.part], "))
    said = Said("run")
    assert (said.code, "right       share      10   1.00" in said.out) == (5, True)
    told = "gate: rows: this run has no row 'right.part'. Rows: right, completed. Did you mean 'right'?"
    assert " ".join(said.out.split()).count(told) == 1
    assert "?." not in said.out


def test_the_case_to_look_at_is_one_of_a_cluster(files: Path) -> None:
    cases = files / "cases.jsonl"
    rows = [
        json.loads(line) | {"cluster": f"talk-{n // 2}"}
        for n, line in enumerate(cases.read_text().splitlines())
    ]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    Said("baseline", "suites/parity.yaml", "--repeats", "1")
    worse(files)
    told = " ".join(Said("run").out.split())
    assert "worst changes right: talk-0 1 → 0.5" in told
    assert "Look at it: arbiter eval show parity case-1" in told


def test_a_run_of_some_cases_is_no_baseline(files: Path) -> None:
    assert "2 of 10 cases" in Said("run", "--case", "case-1", "--case", "case-2").out
    said = Said("baseline", "last")
    told = "the run cannot be a baseline: 8 of 10 cases of the suite were not selected."
    assert (said.code, told in said.err) == (2, True)
    assert not Path("baselines/parity.json").exists()


@pytest.mark.lengthy
def test_two_runs_are_compared(files: Path) -> None:
    Said("run")
    before = json.loads(Said("show", "--format", "json").out)["timing"]["run_id"]
    worse(files)
    Said("run")
    assert Said("compare", before, "last").code == 1
    for given in ((before,), ("last",), ("parity",), ()):
        said = Said("compare", *given)
        assert (said.code, "regressed" in said.out) == (1, True)
    assert Said("compare", "last", before).code == 0


def test_files_and_runs_that_do_not_fit_are_named(files: Path) -> None:
    suite = files / "suites/parity.yaml"
    (files / "suites/thirds.yaml").write_text(suite.read_text().replace("suite: parity", "suite: thirds"))
    for command in ("run", "lint", "record"):
        said = Said(command, "suites/partiy.yaml")
        assert (said.code, said.err.strip().rpartition(" Suites: ")[::2]) == (
            2,
            (
                "suites/partiy.yaml:1: expected a file that can be read, got none of that name.",
                "suites/parity.yaml, suites/thirds.yaml. Did you mean 'suites/parity.yaml'?",
            ),
        )
    assert (Said("run").code, Said("compare", "parity", "thirds").code) == (0, 2)
    assert " of the suite 'parity', and " in Said("compare", "parity", "thirds").err


def test_the_only_run_of_a_suite_is_not_compared_with_itself(files: Path) -> None:
    Said("run")
    said = Said("compare", "last")
    assert (said.code, "is the only run of the suite 'parity'" in said.err) == (2, True)


def test_a_plan_says_how_many_cases_it_takes(files: Path) -> None:
    Said("run")
    assert "the noise of right is not known" in Said("plan").err
    Said("run", "--repeats", "3")
    said = Said("plan", "--drop", "0.1", "--row", "right")
    assert "drop to find" in said.out
    for drop in ("0", "-1", "nan", "inf"):
        said = Said("plan", "--drop", drop)
        assert (said.code, f"--drop is {drop}; expected a number above 0" in said.err) == (2, True)


def test_a_drop_is_planned_for_a_scale_without_a_lower_end(project: Path) -> None:
    losses = iter(range(6))

    def gain(run: CaseRun) -> Score:
        return Score("gain", -float(next(losses)), scale=(-math.inf, 0.0))

    Suite("gains", [Case("a", 1), Case("b", 2)], scorers=[gain], repeats=3).run(repr)
    said = Said("plan", "--drop", "0.1", "--row", "gain")
    assert (said.code, "drop to find    0.10" in said.out) == (0, True), said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--tag", "odds"], "no case has the tag 'odds'. Tags: odd."),
        (["run", "suites/nope.yaml"], "suites/nope.yaml:1: expected a file that can be read"),
        (["run", "--format", "pdf"], "--format is 'pdf'; expected one of table, json, md, html, junit"),
        (["run", "--tag", "odds"], "suites/parity.yaml: no case has the tag 'odds'"),
        (["run", "--repeats", "0"], "repeats is 0"),
        (["run", "--votes", "2.5"], "expected a whole number, got '2.5'"),
        (["run", "--concurrency", "-1"], "limits: concurrency: expected a whole number from 1, got -1"),
        (["run", "--baseline", "nope.json"], "nope.json"),
        (["run", "--no-gate", "--ci"], "contradicts"),
        (["run", "--ci"], "there is no such file"),
        (["run", "--resume", "last"], "there is no run of the suite 'parity'"),
        (["run", "--retry-errors"], "for a run that goes on. Name it: --resume last"),
        (
            ["run", *["suites/parity.yaml"] * 2, "--format", "json"],
            "--format json is for one suite, and there are 2",
        ),
        (["run", *["suites/parity.yaml"] * 2, "--format", "html"], "arbiter eval report SUITE --format html"),
        (["run", *["suites/parity.yaml"] * 2, "--format", "junit"], "--format junit is for one suite"),
        (["run", "--out", "report.doc"], "has the ending '.doc'"),
        (["show", "nope"], "there is no run 'nope'"),
        (["baseline", "suites/parity.yaml", "--out", "nope/x.json"], "does not exist"),
        (["baseline", "suites/nope.yaml"], "suites/nope.yaml:1: expected a file that can be read"),
    ],
)
def test_a_mistake_is_exit_2_and_nothing_runs(files: Path, arguments: list[str], said: str) -> None:
    found = Said(*arguments)
    assert (found.code, said in found.err) == (2, True), found.err
    assert not Path(".arbiter").exists()


def test_a_suite_without_a_baseline_says_so_in_ci(files: Path) -> None:
    suite = files / "suites/parity.yaml"
    suite.write_text(SUITE.replace("gate: {baseline: baselines/parity.json}\n", ""))
    said = Said("run", "--ci")
    assert (said.code, "there is no baseline, and CI asks for one" in said.out) == (2, True)


@pytest.mark.parametrize("command", ["run", "baseline"])
def test_a_suite_file_without_a_target_is_refused(files: Path, command: str) -> None:
    suite = files / "suites/parity.yaml"
    suite.write_text(SUITE.replace("target: {function: app.py:answer}\n", ""))
    said = Said(command, "suites/parity.yaml")
    assert (said.code, "parity.yaml:1: target: expected graph, function" in said.err) == (2, True)


def test_a_baseline_is_not_overwritten(files: Path) -> None:
    assert Said("baseline", "suites/parity.yaml", "--repeats", "1").code == 0
    before = Path("baselines/parity.json").read_text()
    assert "--update" in Said("baseline", "suites/parity.yaml").err
    assert Path("baselines/parity.json").read_text() == before
    assert Said("baseline", "suites/parity.yaml", "--update").code == 0


@pytest.mark.parametrize("place", ["folder", "link", "l" * 250])
def test_a_baseline_that_cannot_be_written_is_refused_before_anything_is_measured(
    files: Path, place: str
) -> None:
    (files / "folder").mkdir()
    (files / "link").symlink_to("nowhere/baseline.json")
    said = Said("baseline", "suites/parity.yaml", "--out", place, "--update")
    assert (said.code, f"'{place}' cannot be written: " in said.err) == (2, True)
    assert not (files / ".arbiter").exists()


def test_a_damaged_baseline_is_replaced_by_a_run(files: Path) -> None:
    assert Said("baseline", "suites/parity.yaml", "--repeats", "1").code == 0
    assert Said("run").code == 0
    whole = Path("baselines/parity.json").read_text()
    Path("baselines/parity.json").write_text("{")
    updated = Said("baseline", "last", "--update")
    assert (updated.code, "the earlier file could not be read" in updated.out) == (0, True)
    assert json.loads(Path("baselines/parity.json").read_text())["rows"] == json.loads(whole)["rows"]


@pytest.mark.parametrize(
    "other",
    ["{}", "[]", "5", '{"kind": "case", "case": []}', "[" * 100_000],
    ids=["empty", "list", "number", "case", "deep"],
)
def test_a_list_has_a_run_whose_end_was_edited_beside_a_line_of_another_form(files: Path, other: str) -> None:
    """The list reads the last line only."""
    Said("run")
    (journal,) = (files / ".arbiter/evals").glob("*/journal.jsonl")
    *lines, end = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join((*lines, other + "\n", json.dumps(json.loads(end) | {"done": "x"}) + "\n")))
    (journal.parent / "run.json").write_text(other)
    said = f"{journal.parent.name} are not as it wrote them: ValueError: invalid literal for int() with base 10: 'x'"
    assert said in Said("list").err


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        pytest.param("head", ("measures", 0, "name"), 5, id="measure"),
        pytest.param("head", ("left_out",), [1], id="left out"),
        pytest.param("head", ("options",), 5, id="options"),
        pytest.param("head", ("cases", 0), {}, id="case of a head"),
        pytest.param("head", ("measures", 0, "scale"), "big", id="scale"),
        pytest.param("score", ("scores", 0, "value"), "high", id="score"),
        pytest.param("answer", ("status",), [], id="status"),
        pytest.param("case", ("as_expected",), "x", id="case"),
        pytest.param("end", ("stopped",), 4, id="end"),
    ],
)
def test_a_value_that_somebody_has_edited_is_one_sentence_in_every_command(
    files: Path, kind: str, place: tuple[Any, ...], value: Any
) -> None:
    """The sentence names the run. Reading a run checks nothing that its reports do not need."""
    for _ in range(2):
        Said("run")
    older, newer = sorted(run.parent for run in (files / ".arbiter/evals").glob("*/run.json"))
    file = newer / ("run.json" if kind == "head" else "journal.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    part = next(line for line in lines if kind in ("head", line.get("kind")))
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in (
        ("show", newer.name), ("gate", newer.name), ("compare", older.name, newer.name),
        ("report", newer.name, "--format", "html"),
    ):  # fmt: skip
        error = invoked("eval", *command).exception
        assert isinstance(error, ConfigurationError), (command, error)
        assert newer.name in str(error)
        assert "are not as it wrote them: " in str(error)
        assert str(error).endswith(" Start a new run.")


@pytest.mark.filterwarnings("ignore:.*run.json has the format 99.*The run is left out")
@pytest.mark.parametrize("damaged", ["run.json", "journal.jsonl"])
def test_an_old_run_that_is_damaged_stops_no_other_command(files: Path, damaged: str) -> None:
    assert Said("run").code == 0
    (old,) = Path(".arbiter/evals").glob("2*")
    (old / damaged).write_text('{"v": 99}\n{"v": 99}\n' if damaged == "journal.jsonl" else '{"v": 99}')
    assert Said("baseline", "suites/parity.yaml", "--repeats", "1").code == 0
    assert Said("run").code == 0
    assert Said("comment").code == 0
    assert Said("baseline", "last", "--update").code == 0
    assert "there is no run 'none'" in Said("show", "none").err


def test_a_baseline_is_measured_anew_also_with_a_cache(files: Path) -> None:
    """A second baseline that is a copy of the first one keeps its luck."""
    (files / "counted.py").write_text(
        "def answer(given):\n"
        "    with open('calls', 'a') as calls:\n"
        "        calls.write('x')\n"
        "    return 'yes' if given['n'] % 2 else 'no'\n"
    )
    suite = SUITE.replace("app.py:answer", "counted.py:answer, record: true") + "cache: all\n"
    (files / "suites/parity.yaml").write_text(suite)
    assert Said("run").code == Said("run").code == 0
    assert len(Path("calls").read_text()) == 10
    assert Said("baseline", "suites/parity.yaml").code == 0
    assert Said("baseline", "suites/parity.yaml", "--update").code == 0
    assert len(Path("calls").read_text()) == 10 + 2 * 30


def stops_at_its_seventh_call(project: Path) -> None:
    (project / "stopping.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "def answer(given):\n"
        "    calls = Path('calls')\n"
        "    calls.write_text((calls.read_text() if calls.exists() else '') + 'x')\n"
        "    if len(calls.read_text()) == 7:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 'yes' if given['n'] % 2 else 'no'\n"
    )


def test_the_suites_that_an_interrupted_command_has_not_run_are_in_the_command_that_goes_on(
    files: Path,
) -> None:
    stops_at_its_seventh_call(files)
    suite = SUITE.replace("app.py:answer", "stopping.py:answer") + "limits: {concurrency: 1}\n"
    (files / "suites/parity.yaml").write_text(suite)
    for name in ("quarters", "thirds"):
        (files / f"suites/{name}.yaml").write_text(SUITE.replace("suite: parity", f"suite: {name}"))
    said = Said("run", "--repeats", "2")
    resume, then = said.err.strip().partition("Go on: ")[2].split("; ")
    assert (said.code, "--resume" in resume) == (130, True)
    assert then == "arbiter eval run suites/quarters.yaml suites/thirds.yaml --repeats 2"


def test_ctrl_c_while_a_report_is_written_keeps_the_next_suite_from_starting(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_whole(*given)

    (files / "suites/thirds.yaml").write_text(SUITE.replace("suite: parity", "suite: thirds"))
    monkeypatch.setattr("arbiter.harness.runs.write_whole", interrupted)
    said = Said("run")
    assert (said.code, "parity" in said.out, "thirds" in said.out) == (130, True, False)
    assert said.err.strip().endswith("Go on: arbiter eval run suites/thirds.yaml")


@pytest.mark.parametrize("cache", ["off", "all"])
def test_a_baseline_that_was_interrupted_goes_on(files: Path, cache: str) -> None:
    """The answers so far are kept, and the commands that are printed write the baseline, measured anew to its end."""
    stops_at_its_seventh_call(files)
    suite = SUITE.replace("app.py:answer", "stopping.py:answer, record: true")
    (files / "suites/parity.yaml").write_text(f"{suite}cache: '{cache}'\nlimits: {{concurrency: 1}}\n")
    assert (Said("run").code, Said("run", "--resume", "last").code) == (130, 0)
    Path("calls").unlink()
    said = Said("baseline", "suites/parity.yaml")
    assert (said.code, Path("baselines/parity.json").exists()) == (130, False)
    resume, then = said.err.strip().partition("Go on: ")[2].split("; ")
    for command in (resume, then):
        assert Said(*shlex.split(command.removeprefix("arbiter eval "))).code == 0
    assert len(Path("calls").read_text()) == 30
    rows = json.loads(Path("baselines/parity.json").read_text())["rows"]
    assert all(len(values) == 3 for values in rows["right"]["cases"].values())


def test_the_gate_says_that_a_run_is_compared_with_no_baseline(files: Path) -> None:
    assert Said("baseline", "suites/parity.yaml", "--repeats", "1").code == 0
    assert Said("run", "--no-gate").code == 0
    said = Said("gate")
    assert (said.code, "it was compared with none. Name one: --baseline FILE" in said.err) == (0, True)
    assert Said("gate", "--baseline", "baselines/parity.json").err == ""


def test_a_case_that_must_pass_fails_the_run_without_a_baseline(files: Path) -> None:
    (files / "cases.jsonl").write_text(
        '{"id": "a", "input": {"n": 1}, "expected": "no", "must_pass": true}\n'
    )
    said = Said("run")
    assert said.code == 1
    assert "case a must pass: right" in said.out


def test_suites_are_checked_without_running(files: Path) -> None:
    assert "10 cases, nothing to report" in Said("lint").out
    (files / "cases.jsonl").write_text('{"input": {"n": 1}}\n')
    said = Said("lint").out
    assert "1 of 1 cases have no id" in said
    assert "the scorer 'right' judges nothing: it reads `expected`, which no case has" in said
    (files / "cases.jsonl").write_text('{"inputs": {"n": 1}}\n')
    assert Said("lint").code == 2


def test_the_schema_is_written_beside_the_suites(files: Path) -> None:
    assert Said("schema").code == 0
    schema: Any = json.loads(Path("suites/suite.schema.json").read_text())
    assert schema["title"].startswith("A suite")


def test_a_run_that_is_stopped_by_its_budget_is_undecided(files: Path) -> None:
    suite = files / "suites/parity.yaml"
    suite.write_text(suite.read_text() + "limits: {seconds: 0.0000001}\n")
    assert Said("run").code == 5


def test_a_replay_and_a_lint_need_no_package_of_the_judges_of_a_suite(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI has recordings, and neither the judges' packages nor secrets."""

    def init_chat_model(name: str, **settings: Any) -> Named:
        return Named(answers=['{"reasoning": "fine", "score": 8}'], model_name=name)

    judged = {
        "suite": "judged",
        "target": {"function": "app.py:answer"},
        "models": {"judge": "openai:gpt-5-mini"},
        "scorers": [{"name": "kind", "use": "judge", "rubric": "It is kind.", "judge": "judge"}],
        "cases": [{"id": "a", "input": "Hi"}],
    }
    (project / "app.py").write_text("def answer(given):\n    return 'Hello.'\n")
    suite = project / "suite.yaml"
    suite.write_text(json.dumps(judged))
    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    assert Said("record", "suite.yaml").code == 0
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    replayed = Said("run", "suite.yaml", "--mock")
    assert replayed.code == 0, replayed.err
    assert "0.80" in replayed.out
    assert Said("lint", "suite.yaml").code == 0
    live = Said("run", "suite.yaml")
    assert live.code == 2
    assert "pip install 'arbiteros[models]'" in live.err
    suite.write_text(json.dumps({**judged, "models": {"judge": "openai:o9"}}))
    other = Said("run", "suite.yaml", "--mock")
    assert other.code == 2
    assert "the model of its judge changed from 'openai:gpt-5-mini' to 'openai:o9'" in other.err


def test_a_function_that_runs_in_a_replay_asks_its_own_models(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the judges of a replay are never asked; a function runs as it is."""

    def init_chat_model(name: str, **settings: Any) -> Named:
        return Named(answers=['{"reasoning": "fine", "score": 8}'], model_name=name)

    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    (project / "app.py").write_text(
        "from arbiter.models import model_of\n"
        "model = model_of('openai:gpt-5-mini')\n"
        "def answer(given):\n    return model.invoke(given).content\n"
    )
    suite = {
        "suite": "plain",
        "target": {"function": "app.py:answer"},
        "scorers": [{"name": "fine", "use": "contains", "text": "fine"}],
        "cases": [{"id": "a", "input": "Hi"}],
    }
    (project / "suite.yaml").write_text(json.dumps(suite))
    replayed = Said("run", "suite.yaml", "--mock", "--format", "json")
    assert json.loads(replayed.out)["rows"]["fine"]["mean"] == 1, replayed.err


@pytest.mark.lengthy
def test_votes_about_a_whole_run_are_reported_and_plan_its_cases(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They show a judge's noise without a baseline and without repeats."""
    scores = [8, 6, 9, 5, 7, 7]

    def init_chat_model(name: str, **settings: Any) -> Named:
        answers = [f'{{"reasoning": "fine", "score": {score}}}' for score in scores]
        return Named(answers=answers, model_name="gpt-5-mini-2026")

    monkeypatch.setattr("langchain.chat_models.init_chat_model", init_chat_model)
    (project / "app.py").write_text("def answer(given):\n    return 'Hello.'\n")
    suite = {
        "suite": "judged",
        "target": {"function": "app.py:answer"},
        "models": {"judge": "openai:gpt-5-mini"},
        "scorers": [{"name": "kind", "use": "judge", "rubric": "It is kind.", "judge": "judge"}],
        "cases": [{"id": f"case-{n}", "input": n} for n in range(3)],
        "votes": 2,
        "limits": {"concurrency": 1, "judge_concurrency": 1},
    }
    (project / "suite.yaml").write_text(json.dumps(suite))
    report = json.loads(Said("run", "suite.yaml", "--format", "json").out)
    (first, *_) = [score for result in report["results"] for score in result["scores"]]
    assert (sorted(first["votes"]), first["calls"], first["model"]) == ([6, 8], 2, "gpt-5-mini-2026")
    planned = Said("plan", "judged", "--row", "kind", "--drop", "0.06")
    assert planned.code == 0, planned.err
    # The votes of a case differ by 0.2, 0.4 and 0.0: their variance is a half of the squares, 0.0333 on average, and
    # that of the difference of two runs of two votes each is as large.
    assert "kind: sd of a case's change 0.18 (3 cases, from votes)" in planned.out
    lines = {line[1:16].strip(): line[16:].split()[:4] for line in planned.out.splitlines()[1:]}
    assert lines["cases"] == lines["cases, 2 votes"] != lines["cases, 1 vote"]


def test_the_mistakes_of_several_suites_are_reported_at_once(files: Path) -> None:
    """Those of their files, and those that show when they are checked; a wrong option is named once."""
    suite = files / "suites/parity.yaml"
    (files / "suites/naming.yaml").write_text(suite.read_text() + "repeat: 3\n")
    (files / "suites/watching.yaml").write_text(suite.read_text().replace("app.py:answer", "app.py:answr", 1))
    found = Said("run")
    assert (found.code, found.out) == (2, "")
    first, second = found.err.strip().splitlines()
    assert first.startswith("suites/naming.yaml:")
    assert "Did you mean 'repeats'?" in first
    assert second.startswith("suites/watching.yaml: app.py has no 'answr'")
    assert not (files / ".arbiter").exists()
    (files / "suites/naming.yaml").write_text(suite.read_text().replace("suite: parity", "suite: naming"))
    (files / "suites/watching.yaml").unlink()
    assert Said("run", "--repeats", "0").err.count("repeats is 0") == 1


def test_lint_names_the_suite_of_each_mistake(files: Path) -> None:
    suite = files / "suites/parity.yaml"
    (files / "suites/watching.yaml").write_text(suite.read_text().replace("app.py:answer", "app.py:answr", 1))
    said = Said("lint")
    assert said.code == 2
    assert "suites/watching.yaml: app.py has no 'answr'" in said.err


def test_all_that_does_not_fit_the_target_is_reported_at_once(files: Path) -> None:
    """By a run as by the lint, which adds its remarks."""
    suite = files / "suites/parity.yaml"
    cases = (
        "cases:\n  - {id: x, input: 1, expect: {nodes: [a]}}\n  - {input: 2, expect: {raises: ValueErorr}}\n"
    )
    wrong = (
        "votes: 3\ncache: all\n"
        + suite.read_text().partition("cases:")[0]
        + cases
        + "gate: {rows: [rihgt]}\n"
    )
    suite.write_text(wrong)
    where = f"suites/parity.yaml:{wrong.splitlines().index('cases:') + 2}"
    said = Said("lint")
    mistakes = [
        "suites/parity.yaml: cache is 'all', and the target is function app.py:answer",
        "suites/parity.yaml: votes is 3, and no row of the suite asks a judge.",
        "suites/parity.yaml: gate: rows: the suite has no row 'rihgt'.",
        f"{where}: case 'x': expect.nodes: expected a graph as target",
    ]
    remarks = ["suites/parity.yaml: 1 of 2 cases have no id", "suites/parity.yaml: the case "]
    baseline = ("baseline", "suites/parity.yaml", "--out", "b.json")  # without the cache
    for command, told in (
        (("lint",), [*mistakes, *remarks]),
        (("run",), mistakes),
        (baseline, mistakes[1:]),
    ):
        said = Said(*command)
        lines = [
            line for line in said.err.splitlines() if not line.startswith("suites/parity.yaml: the scorer")
        ]
        assert (said.code, len(lines)) == (2, len(told)), said.err
        assert all(line.startswith(begin) for line, begin in zip(lines, told, strict=True)), said.err


def test_record_says_that_a_function_without_judges_is_not_recorded(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Said("record").code == 0
    (said,) = caplog.messages
    assert said.startswith("parity: nothing is recorded, and a replay needs no recordings")
    assert said.endswith("target.record: true.")
    caplog.clear()
    suite = files / "suites/parity.yaml"
    suite.write_text(suite.read_text().replace("app.py:answer", "app.py:answer, record: true"))
    assert Said("record").code == 0
    assert caplog.messages == []


JUDGED = """
suite: judged
target: {function: app.py:answer}
models: {judge: "models.py:judge"}
scorers: [{name: kind, use: judge, rubric: It is kind., judge: judge}]
cases: [{id: a, input: {n: 1}}]
"""


def judged_by(files: Path, answer: str) -> None:
    (files / "suites/parity.yaml").write_text(JUDGED)
    (files / "models.py").write_text(
        f"from tests.scripted import Named\njudge = Named(answers=[{answer!r}], model_name='j')\n"
    )


def test_record_measures_as_often_as_the_replay_asks_for(files: Path) -> None:
    """A replay of three votes named recordings that no option of the command could make."""
    judged_by(files, '{"reasoning": "fine", "score": 8}')
    assert Said("record", "--votes", "3").code == 0
    assert Said("run", "--mock", "--votes", "3").code == 0


def test_a_report_says_why_a_judge_abstained_from_all_cases(files: Path) -> None:
    judged_by(files, "no")
    said = Said("run")
    assert said.code == 5
    told = " ".join(said.out.split())
    assert "kind abstained, first about a: EvaluationError: abstained: of 2 answers of j" in told
    assert "it has no JSON object" in told


def test_a_report_leaves_out_a_reason_that_is_empty() -> None:
    def shy(run: CaseRun) -> Score:
        return Score("shy", outcome="abstained", reason="It is late." if run.case.id == "b" else "")

    def echo(given: Any) -> Any:
        return given

    cases = [Case(id=name, input=1) for name in "ab"]
    told = remarks(Suite("s", cases, scorers=[shy]).run(echo, folder=None))
    assert told == ["shy abstained, first about b: It is late."]
    assert remarks(Suite("s", cases[:1], scorers=[shy]).run(echo, folder=None)) == []
