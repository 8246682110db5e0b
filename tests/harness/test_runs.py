"""Runs: checked before the first one begins, their files, and their end."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arbiter import ArbiterOS, ConfigurationError
from arbiter.harness import Case, CaseRun, GateSettings, Limits, Report, Suite
from arbiter.harness.case_files import load_cases
from arbiter.harness.files import load_suite
from arbiter.harness.journal import run_folder
from arbiter.harness.reports.report import load_report
from arbiter.routers import EvaluationRouter
from tests.harness.test_eval_command import Said
from tests.support import Check, Judge, Spy, chain, good, until

APP = """
import os, time

def answer(given):
    ends = time.monotonic() + given.get("seconds", 0)
    while time.monotonic() < ends and not os.path.exists("be-quick"):
        time.sleep(0.05)
    return "yes"
"""


@pytest.mark.parametrize("key", ["denied_by", "waits_for"])
def test_an_unknown_checker_is_refused_before_anything_runs(key: str) -> None:
    arbiter_os, pay = ArbiterOS(), Spy("pay")
    arbiter_os.add_policy_checker(Check("four_eyes", lambda _: True))
    suite = Suite("unknown", [Case("a", {"log": []}, expect={key: "for_eyes"})])
    with pytest.raises(ConfigurationError) as raised:
        suite.run(chain(pay), arbiter_os=arbiter_os)
    assert str(raised.value) == (
        f"case 'a': expect.{key}: the target has no checker 'for_eyes'. Checkers: four_eyes. "
        "Did you mean 'four_eyes'?"
    )
    assert not pay.calls
    with pytest.raises(ConfigurationError, match="Checkers: none; target"):
        suite.run(chain(pay))


def test_a_gate_whose_baseline_is_not_measured_yet_has_new_rows(project: Path) -> None:
    gate = GateSettings(baseline="baselines/first.json")
    suite = Suite("first", [Case("a", 1), Case("b", 2)], scorers={"right": lambda run: True}, gate=gate)
    report = suite.run(repr)
    assert {row.verdict for row in report.comparison.rows.values()} == {"new"}
    assert report.comparison.exit_code == 0
    assert "there is no baseline baselines/first.json yet" in report.printed()
    assert load_report(run_folder("last")).baseline is None
    with pytest.raises(ConfigurationError, match="there is no such file"):
        suite.run(repr, ci=True)
    with pytest.raises(ConfigurationError, match="there is no such file"):
        suite.run(repr, baseline="baselines/first.json")
    (project / "baselines").mkdir()
    report.save_baseline("baselines/first.json")
    assert suite.run(repr).comparison.rows["right"].verdict == "steady"


def test_a_baseline_that_is_gone_since_the_run_is_named() -> None:
    suite = Suite("first", [Case("a", 1), Case("b", 2)], scorers={"right": lambda run: True})
    suite.run(repr).save_baseline("mine.json")
    suite.run(repr, baseline="mine.json")
    Path("mine.json").unlink()
    assert "there is no baseline mine.json" in load_report(run_folder("last")).printed()


def test_a_gated_row_that_no_score_can_be_in_is_refused_before_anything_runs() -> None:
    write = Spy("write")
    gate = GateSettings(rows=["grounded.tone", "groundet"])
    suite = Suite("gated", [Case("a", {"log": []})], scorers={"grounded": lambda _: {"tone": 1}}, gate=gate)
    said = "gate: rows: the suite has no row 'groundet'. Rows: grounded, expect, completed. Did you mean 'grounded'?"
    with pytest.raises(ConfigurationError) as raised:
        suite.run(chain(write), folder=None)
    assert str(raised.value) == said
    assert not write.calls


def test_a_scorer_that_changes_what_it_reads_changes_it_for_itself_alone() -> None:
    def greedy(run: CaseRun) -> bool:
        run.output["log"].clear()
        run.input["log"].append("mine")
        run.expected["a"] = 2
        return True

    def after(run: CaseRun) -> bool:
        return bool(run.output["log"] == ["write"] and run.input == {"log": []} and run.expected == {"a": 1})

    case = Case("a", {"log": []}, expected={"a": 1})
    report = Suite("shared", [case], scorers=[greedy, after]).run(chain(Spy("write")), folder=None)
    assert {name: row.mean for name, row in report.rows.items()} == {"greedy": 1, "after": 1, "completed": 1}
    assert report.results[0].output == {"log": ["write"]}


def test_an_evaluator_of_the_suite_that_a_rule_of_the_user_reads_is_refused_before_the_run() -> None:
    arbiter_os, write = ArbiterOS(), Spy("write")
    arbiter_os.add_policy_router(EvaluationRouter("again", "tone", "write"))
    suite = Suite("read", [Case("a", {"log": []})], evaluators=[Judge("tone", lambda _: 1.0)])
    with pytest.raises(
        ConfigurationError, match="reads the results of 'tone', which the suite has for its run"
    ):
        suite.run(chain(write), arbiter_os=arbiter_os)
    assert (write.calls, arbiter_os.evaluators) == ([], ())


def test_a_run_that_is_refused_leaves_no_evaluator_behind() -> None:
    arbiter_os = ArbiterOS()
    case = Case("a", {"log": []}, expect={"nodes": ["nowhere"]})
    suite = Suite("refused", [case], evaluators=[Judge("tone", lambda _: 1.0)])
    with pytest.raises(ConfigurationError, match="nowhere"):
        suite.run(chain(Spy("write")), arbiter_os=arbiter_os)
    assert arbiter_os.evaluators == ()


async def test_a_run_leaves_its_evaluators_to_another_one_that_has_them() -> None:
    """Two suites with one evaluator are measured at once, on the graph of one ArbiterOS."""
    first_is_done = asyncio.Event()

    async def wait(state: Any) -> dict[str, Any]:
        if "second" in state["log"]:
            await first_is_done.wait()
        return {"log": ["wait"]}

    arbiter_os = ArbiterOS()
    graph = arbiter_os.govern(chain(wait))
    judge = Judge("good", good)

    def measured(name: str) -> asyncio.Future[Report]:
        cases = [Case(f"{name}-{number}", {"log": [name]}) for number in range(2)]
        suite = Suite(name, cases, evaluators=[judge], limits=Limits(concurrency=1))
        return asyncio.ensure_future(suite.arun(graph, arbiter_os=arbiter_os))

    first, second = measured("first"), measured("second")
    assert (await first).rows["good"].outcomes == {"scored": 2}
    first_is_done.set()
    assert (await second).rows["good"].outcomes == {"scored": 2}
    assert arbiter_os.evaluators == ()


@pytest.mark.lengthy
def test_cases_in_yaml_are_as_large_and_as_deep_as_others(project: Path) -> None:
    deep: Any = "x"
    for _ in range(38):
        deep = [deep]
    large = [{"id": f"case-{n}", "input": {"text": "x" * 1_000}} for n in range(300)]
    Path("cases.yaml").write_text(json.dumps([*large, {"id": "deep", "input": {"deep": deep}}]))
    assert len(load_cases("cases.yaml")) == 301
    Path("suite.yaml").write_text(json.dumps({"suite": "deep", "cases": [{"input": {"deep": deep}}, *large]}))
    assert len(load_suite("suite.yaml").cases) == 301


def kind(run: CaseRun) -> str:
    return "odd" if run.input % 2 else "even"


def text_of(given: int) -> str:
    return str(given)


def test_suites_that_run_at_once_on_one_arbiter_os_have_their_own_rows() -> None:
    arbiter_os, graph = ArbiterOS(), chain(Spy("write"))
    arbiter_os.add_evaluator(Judge("always", good))
    runs = [
        Suite(name, [Case("a", {"log": []})], evaluators=[Judge(name, good)]).prepare(
            graph, arbiter_os=arbiter_os, folder=None
        )
        for name in ("style.one", "style.two")
    ]
    assert [{*run.run().rows} - {"completed"} for run in runs] == [
        {"always", "style.one"},
        {"always", "style.two"},
    ]


def test_a_suite_has_the_evaluator_of_another_one_if_it_names_it_and_not_for_a_governed_graph_alone() -> None:
    arbiter_os = ArbiterOS()
    arbiter_os.add_evaluator(Judge("always", good))
    governed, one = arbiter_os.govern(chain(Spy("write"))), [Case("a", {"log": []})]
    alone = Suite("alone", one).prepare(governed, folder=None)
    first = Suite("first", one, evaluators=[Judge("style", good)])
    other = first.prepare(governed, arbiter_os=arbiter_os, folder=None)
    named = Suite("named", one, evaluators=["style"]).prepare(governed, arbiter_os=arbiter_os, folder=None)
    rows = [{*run.run().rows} - {"completed", "always"} for run in (alone, other, named)]
    assert rows == [set(), {"style"}, {"style"}]
    assert [each.name for each in arbiter_os.evaluators] == ["always"]


def test_results_with_dots_in_their_names_and_evaluators_of_a_run_have_rows() -> None:
    arbiter_os, late = ArbiterOS(), Judge("late", good)

    def write(_: Any) -> dict[str, Any]:
        if late not in arbiter_os.evaluators:
            arbiter_os.add_evaluator(late)
        return {"log": ["done"]}

    several = Judge("style.all", lambda _: {"tone.warm": True, "tone": 0.5})
    cases = [Case("a", {"log": []}), Case("b", {"log": []})]
    # The second case begins after the first has registered it: an evaluator judges the node runs that begin later.
    suite = Suite("s", cases, evaluators=[several], limits=Limits(concurrency=1))
    run = suite.prepare(chain(write), arbiter_os=arbiter_os, folder=None)
    assert {*run.run().rows} == {"completed", "style.all.tone.warm", "style.all.tone", "late"}


def test_the_report_lies_beside_the_journal_with_the_options_of_the_run(project: Path) -> None:
    suite = Suite("kept", [Case("a", 1, expected=0), Case("b", 2)], scorers=[kind])
    report = suite.run(text_of, accept_changed=True)
    folder = run_folder("last")
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(report.to_dict()))
    assert json.loads((folder / "run.json").read_text())["options"] == {"ci": False, "accept_changed": True}
    assert load_report(folder).accept_changed
    assert [case.expected for case in load_report(folder).cases] == [0, None]
    assert report.to_dict()["labels"] == {"kind": {"odd": 1, "even": 1}}
    assert " labels   kind: odd 1, even 1" in report.printed()


@pytest.fixture
def suites(project: Path) -> Path:
    (project / "app.py").write_text(APP)
    (project / "suites").mkdir()
    return project


def write_suite(name: str, *cases: Any, **more: Any) -> None:
    suite = {"suite": name, "target": {"function": "app.py:answer"}, "cases": cases, **more}
    Path(f"suites/{name}.yaml").write_text(json.dumps(suite))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"target": {"function": "app.py:answers"}}, "answers"),
        ({"gate": {"baseline": "baselines/other.json"}}, "the baseline is of the suite 'other'"),
        ({"cases": [{"input": {}, "expect": {"matches": "("}}]}, "is not a regular expression"),
    ],
)
def test_all_suites_are_checked_before_the_first_one_runs(
    suites: Path, more: dict[str, Any], said: str
) -> None:
    write_suite("other", {"id": "a", "input": {}}, {"id": "b", "input": {}})
    assert Said("baseline", "suites/other.yaml", "--out", str(suites / "baselines/other.json")).code == 2
    (suites / "baselines").mkdir()
    assert Said("baseline", "suites/other.yaml", "--out", "baselines/other.json").code == 0
    before = list((suites / ".arbiter/evals").glob("*/run.json"))
    write_suite("wrong", *more.pop("cases", [{"input": {}}]), **more)
    failed = Said("run", "suites/other.yaml", "suites/wrong.yaml")
    assert (failed.code, said in failed.err) == (2, True)
    assert list((suites / ".arbiter/evals").glob("*/run.json")) == before


def test_the_luckiest_run_is_no_good_baseline(suites: Path) -> None:
    outputs = [f"app.py:{name}" for name in ("low", "high")]
    (suites / "app.py").write_text("def low(given): return 'no'\ndef high(given): return 'yes'\n")
    for function in outputs:
        write_suite(
            "luck",
            *({"id": f"c{n}", "input": n, "expected": "yes"} for n in range(3)),
            target={"function": function},
            scorers=[{"name": "right", "use": "equals"}],
        )
        assert Said("run").code == 0
    best = run_folder("last").name
    warned = Said("baseline", best, "--out", "luck.json")
    assert f"{best} has the highest mean of the last 2 runs for right" in " ".join(warned.err.split())
    assert Said("baseline", sorted(Path(".arbiter/evals").glob("2*"))[0].name, "--out", "low.json").err == ""


@pytest.mark.lengthy
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_report_and_the_command_that_goes_on(suites: Path, number: int) -> None:
    """SIGTERM also in the background of a script, where SIGINT is ignored."""

    def in_background() -> None:
        if number == signal.SIGTERM:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    slow = {"id": "slow", "input": {"seconds": 600}}
    options = ["--case", "quick", "--case", "slow", "--repeats", "2", "--ci", "--format", "json"]
    write_suite("signals", {"id": "quick", "input": {}}, slow, limits={"concurrency": 1})
    process = subprocess.Popen(
        [sys.executable, "-m", "arbiter", "eval", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=in_background,
    )
    done = '"kind":"case"'
    until(
        lambda: any(
            each.read_text().count(done) == 2 for each in suites.glob(".arbiter/evals/*/journal.jsonl")
        )
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    report = json.loads(out)
    assert [result["case"] for result in report["results"]] == ["quick", "quick"]
    assert report["stopped"] == "interrupted"
    assert (run_folder("last") / "report.json").exists()
    (suites / "be-quick").touch()
    resumed = json.loads(Said(*shlex.split(err.partition("Go on: arbiter eval ")[2])).out)
    assert [result["case"] for result in resumed["results"]] == ["quick", "quick", "slow", "slow"]
    assert resumed["timing"]["run_id"] == report["timing"]["run_id"]
