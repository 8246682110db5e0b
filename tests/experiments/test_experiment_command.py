"""`arbiter experiment`: plans, runs, what is shown of them, and the paper beside one's own numbers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ConfigurationError
from arbiter.experiments import SCENARIOS, Experiment, ExperimentResult
from arbiter.experiments.replicating import replicated, scenarios_named
from arbiter.experiments.runner import FOLDER
from arbiter.harness.journal import run_folder
from arbiter.store import SqlRepository
from tests.cli.cli_support import refused, started, typed
from tests.docs_check import ROOT
from tests.experiments.experiment_support import experiment
from tests.experiments.test_runner import DRY

MODELS = """
import json, re
from langchain_core.messages import AIMessage
from tests.experiments.experiment_support import speaker
from tests.scripted import Named

def heard(prompt):
    good = 4 + len(prompt) % 3 + 2 * bool(re.search("a good word", prompt))
    if "- id:" in prompt or "judgements" in prompt:
        ids = re.findall(r"the id ([\\w-]+)", prompt)
        return json.dumps({"judgements": [{"id": id, "score": good, "reasoning": "read"} for id in ids]})
    return json.dumps({"score": good, "reasoning": "read", "ideas": ["one"] * good, "result": True})

def draft(prompt):
    poor = "a poor word" in prompt.rpartition("The draft:")[2][:80]
    return json.dumps({"score": 2 if poor else 9, "reasoning": "read"})

agents = Named(model_name="speaker-1", answers=speaker().answers)
judge = Named(model_name="reader-1", answers=[heard])
corrector = Named(model_name="corrector-1", answers=[draft])
"""
WITH = ("--model", "models.py:agents", "--judge", "models.py:judge", "--corrector", "models.py:corrector")
SMALL = ("--scale", "0.05", "--profile", "seed")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


def cells(table: str) -> list[tuple[str, ...]]:
    lines = [line for line in table.splitlines() if line.startswith(("brainstorming", "debate"))]
    return [tuple(re.split(r" {2,}", line.strip())) for line in lines]


def test_a_plan_has_a_row_for_each_scenario() -> None:
    assert cells(typed("experiment", "plan")) == DRY
    dry = ("experiment", "run", DRY[3][0], "--dry-run", "--out")
    assert cells(typed(*dry, "result.json")) == DRY[3:]
    assert "result.doc" in refused(*dry, "result.doc")
    small = cells(typed("experiment", "plan", "--scale", "0.1"))
    assert [row[-1] for row in small] == ["144", "60", "60", "64"]
    plans = json.loads(typed("experiment", "plan", "--format", "json"))
    assert [plan["scenario"] for plan in plans] == list(SCENARIOS)


@pytest.mark.lengthy
def test_an_experiment_is_planned_run_and_shown(project: Path) -> None:
    typed("experiment", "plan", "debate-controversial", *SMALL, "--out", "plan.json")
    options = (*WITH, *SMALL, "--plan", "plan.json")
    shown = typed("experiment", "run", "debate-controversial", *options, "--out", "effects.svg")
    assert "profile seed · seed 42 · 2 pairs of environments" in shown
    assert (
        "agents named:speaker-1 · judge named:reader-1 (uncalibrated: no labels of people) · correction judge"
        in shown
    )
    plan = json.loads((project / "plan.json").read_text())
    assert f"planned beforehand: {plan['hash']}" in shown
    assert re.search(r"treatment +\d+ drafts · \d+ checks, [1-9]\d* regenerations", shown)
    assert (project / "effects.svg").read_text().startswith("<svg")
    assert typed("experiment", "show", "last") == shown
    assert json.loads(typed("experiment", "show", "last", "--format", "json"))["plan_hash"] == plan["hash"]
    assert re.search(r"debate-controversial +4 of 4 +finished", typed("experiment", "list"))
    again = ("experiment", "run", "debate-controversial", *WITH, *SMALL, "--resume", "last")
    assert "is finished. Start a new one" in refused(*again)
    # Of its files the list reads the two ends of the journal alone.
    folder = run_folder("last", FOLDER)
    first, *_, last = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(first + b"not read\n" * 1_000 + last)
    (folder / "run.json").write_text("not read")
    (FOLDER / "broken").mkdir()
    (FOLDER / "broken" / "run.json").touch()
    assert re.search(r"debate-controversial +4 of 4 +finished", typed("experiment", "list"))
    assert "planned is 42" in refused("experiment", "run", "debate-controversial", *options, "--seed", "7")


@pytest.mark.lengthy
def test_a_gate_that_judges_no_draft_is_reported_once(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There are thousands of drafts, and the result counts those that were not judged."""
    (project / "junk.py").write_text(MODELS + "junk = Named(model_name='junk-1', answers=['none'])\n")
    options = (*WITH[:-1], "junk.py:junk", *SMALL, "--metric", "fluency")
    typed("experiment", "run", "debate-controversial", *options, code=5)
    assert len([said for said in caplog.messages if "the draft was not judged" in said]) == 1


@pytest.mark.lengthy
def test_a_budget_that_is_used_up_ends_with_5_and_goes_on() -> None:
    first = typed(
        "experiment",
        "run",
        "debate-controversial",
        *WITH,
        *SMALL,
        "--calls",
        "1",
        "--concurrency",
        "1",
        code=5,
    )
    assert re.search(r"no p-values: incomplete: budget \(limits.calls is 1, and \d+ are used\)", first)
    assert re.search(r"incomplete: budget \(limits.calls is 1, ", typed("experiment", "show", "last"))
    whole = typed("experiment", "run", "debate-controversial", *WITH, *SMALL, "--resume", "last")
    assert "2 pairs" in whole
    assert "incomplete" not in whole


@pytest.mark.lengthy
def test_templates_show_that_everything_is_connected() -> None:
    shown = typed("experiment", "run", "debate-controversial", "--mode", "template", *SMALL)
    assert "scores: synthetic" in shown
    assert "Persona Adherence" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "debate"], "there is no scenario 'debate'. Scenarios: brainstorming-average,"),
        (["run", "debate-controversial"], "needs a model for the agents and a judge"),
        (["run", "debate-controversial", "--scale", "0"], "scale is 0.0"),
        (["run", "debate-controversial", "--scale", "nan"], "scale is nan"),
        (["run", "debate-controversial", *WITH, "--metric", "fluence"], "Did you mean 'fluency'"),
        (["run", "debate-controversial", "--profile", "papers"], "Did you mean 'paper'"),
        (["run", "debate-controversial", *WITH, "--plan", "none.json"], "cannot be read as a plan"),
        (["run", "debate-controversial", *WITH, "--resume", "none"], "there is no run 'none'"),
        (["run", "debate-controversial", "--model", "models.py:nobody", "--judge", "x"], "has no 'nobody'"),
        (["run", "debate-controversial", *WITH, "--format", "csv"], "--format is 'csv'"),
        (["run", "debate-controversial", *WITH, "--out", "none/x.json"], "in 'none', which is not a folder"),
        (["run", "debate-controversial", *WITH, "--out", "x.csv"], "expected one of .json, .md, .txt, .svg"),
        (["run", "debate-controversial", *WITH, "--ray", "auto", "--ledger", "l.db"], "workers write to no"),
        (["plan", "--out", "plan.json"], "--out is for one scenario"),
        (
            ["plan", "debate-controversial", "--out", "none/plan.json"],
            "'none/plan.json' cannot be written",
        ),
        (
            ["run", "debate-controversial", *WITH, "--calls", "-1"],
            "limits: calls: expected a whole number from 0, got -1.",
        ),
        (["show", "none"], "there is no run 'none'"),
        (["table1", "--mode", "template"], "nothing to compare with the paper"),
        (["table1", "--experiments", "1,4"], "there is no experiment '4'"),
    ],
)
def test_wrong_input_is_a_sentence(arguments: list[str], said: str) -> None:
    assert said in refused("experiment", *arguments)
    assert not Path(".arbiter/experiments").exists()


def test_a_dry_run_is_held_to_a_plan_too() -> None:
    typed("experiment", "plan", "debate-controversial", "--out", "plan.json")
    dry = ("experiment", "run", "debate-controversial", "--plan", "plan.json", "--dry-run")
    assert cells(typed(*dry)) == DRY[3:]
    assert "pairs is 2, planned is 24" in refused(*dry, "--scale", "0.1")


@pytest.mark.lengthy
def test_a_store_and_a_ledger_have_what_treatments_did(project: Path) -> None:
    """Standard output has the result alone, also if a model prints."""
    (project / "noisy.py").write_text("from models import agents\nprint('noise')\n")
    where = ("--store", "store.db", "--ledger", "ledger.db", "--model", "noisy.py:agents")
    json.loads(typed("experiment", "run", DRY[3][0], *WITH, *SMALL, *where, "--format", "json"))
    with SqlRepository("store.db") as store:
        actions = store.corrections()
        drafts = sum(len(action.attempts) for action in actions)
    found = json.loads(typed("experiment", "show", "last", "--format", "json"))
    assert found["exposure"]["treatment"]["drafts"] == drafts
    threads = json.loads(typed("history", "--ledger", "ledger.db", "--format", "json"))
    names = {thread["thread_id"] for thread in threads}
    assert names == {action.thread_id for action in actions}
    assert {re.sub(":[0-9a-f]{8}$", "", name) for name in names} == {
        f"debate-controversial:0:{number}:treatment" for number in range(2)
    }


@pytest.mark.lengthy
def test_wrong_input_ends_with_2(project: Path) -> None:
    done = started("experiment", "run", "debate", folder=project, code=2)
    assert "there is no scenario 'debate'" in done.stderr


# Table 1 ------------------------------------------------------------------------------------------


def test_experiments_of_the_paper_are_named_by_number_or_scenario() -> None:
    assert scenarios_named(["3", "2.1"]) == ["brainstorming-difficult-full", "debate-controversial"]
    assert scenarios_named(["debate-controversial"]) == ["debate-controversial"]
    assert scenarios_named([""]) == list(SCENARIOS)


@cache
def measured() -> ExperimentResult:
    return experiment(metrics=["fluency"]).run(folder=None)


def result_with(id: str, differences: dict[str, float]) -> Any:
    """A result of that scenario in which the treatment is better by these differences, with some noise."""
    found = measured()
    plan = replace(found.plan, scenario=id, metrics=tuple(differences))
    noise = [[3.0], [4.0], [5.0], [4.0]]
    scores = {
        "treatment": {name: [[each + d for each in one] for one in noise] for name, d in differences.items()},
        "control": dict.fromkeys(differences, noise),
    }
    return replace(found, plan=plan, environments=scores)


@pytest.mark.lengthy
def test_directions_are_compared_with_the_starred_rows() -> None:
    agreeing = {"adherence": 2.0, "consistency": 2.0, "fluency": -1.0, "convergence": -1.0}
    found = replicated([result_with("debate-controversial", agreeing)])
    assert (found.matching, len(found.counted), len(found.rows)) == (2, 2, 4)
    opposite = {name: -value for name, value in agreeing.items()}
    assert replicated([result_with("debate-controversial", opposite)]).matching == 0
    nothing = replicated([result_with("debate-controversial", dict.fromkeys(agreeing, 0.0))])
    assert (nothing.matching, nothing.agreeing) == (0, 2)
    assert "0 of 2 starred rows point in the published direction; 2 of 4 rows agree" in nothing.text()
    assert nothing.to_dict()["of"] == 2


def test_a_wide_cell_of_the_table_moves_the_cells_below_it() -> None:
    found = replicated([result_with("debate-controversial", {"adherence": 123456.0})])
    lines = found.text().splitlines()
    head = next(line for line in lines if "T: mean" in line)
    row = next(line for line in lines if "123460.00" in line)
    assert row.index("4.00 (0.82)") == head.index("C: mean (sd)")
    assert row.index("4/4") == head.index("n T/C")


@pytest.mark.lengthy
def test_the_whole_table_has_15_rows_that_count() -> None:
    every = [result_with(id, dict.fromkeys(found["paper"].metrics, 1.0)) for id, found in SCENARIOS.items()]
    found = replicated(every)
    assert (len(found.counted), len(found.rows)) == (15, 19)
    assert found.matching == sum(row.published.test.difference > 0 for row in found.counted) == 5


@pytest.mark.lengthy
def test_own_scenarios_and_templates_are_not_compared_with_the_paper() -> None:
    with pytest.raises(ConfigurationError, match="'tea' is not a scenario of the paper"):
        replicated([measured()])
    synthetic = Experiment("debate-controversial", mode="template", scale=0.05).run(folder=None)
    with pytest.raises(ConfigurationError, match="scores are synthetic"):
        replicated([synthetic])


@pytest.mark.lengthy
def test_table1_runs_and_prints_both(project: Path) -> None:
    shown = typed("experiment", "table1", "--experiments", "3", *WITH, *SMALL)
    assert "3   debate-controversial   N_a 10 · N_e 2 · profile seed" in shown
    assert "judge named:reader-1 (uncalibrated: no labels of people) · correction judge" in shown
    assert re.search(r"exposure +treatment +\d+ drafts · [1-9]\d* checks", shown)
    assert re.search(r"Persona Adherence .* \+0\.47\* +(yes|no)", shown)
    assert re.search(r"[0-2] of 2 starred rows point in the published direction", shown)


COUNTED = f"""
{MODELS}
def noted(answers):
    def answer(prompt):
        with open("bought.txt", "a") as file:
            print("a call", file=file)
        return answers[0](prompt)
    return [answer]

for each in (agents, corrector, judge):
    each.answers = noted(each.answers)
"""


@pytest.mark.lengthy
def test_a_table_that_was_stopped_goes_on(project: Path) -> None:
    """A budget is that of the whole table. Judgements are not bought again, and neither is a whole
    experiment."""
    (project / "counted.py").write_text(COUNTED)
    models = [each.replace("models.py", "counted.py") for each in WITH]
    table = ("experiment", "table1", *models, *SMALL, "--format", "json")
    some = ("--experiments", "2.2,3", "--concurrency", "1")

    def bought() -> int:
        lines = (project / "bought.txt").read_text().splitlines()
        (project / "bought.txt").unlink()
        return len(lines)

    def plain(shown: str) -> Any:
        found = json.loads(shown)
        for result in found["results"]:
            del result["run_id"]
        return found

    whole = plain(typed(*table, *some, code=5))  # so small, no intervention of 2.2 fires
    usual = bought()
    calls = [sum(purse["calls"] for purse in result["usage"].values()) for result in whole["results"]]
    assert usual == sum(calls)
    stopped = plain(typed(*table, *some, "--calls", str(max(calls) + 1), code=5))
    assert [result["marks"][:1] for result in whole["results"]] == [["treatment_not_exercised"], []]
    assert [result["marks"][:1] for result in stopped["results"]] == [
        ["treatment_not_exercised"],
        ["incomplete"],
    ]
    first = bought()
    assert calls[0] < first < usual
    assert plain(typed(*table, "--resume", "last", code=5)) == whole
    assert first + bought() == usual
    assert plain(typed(*table, "--resume", "last", code=5)) == whole
    assert not (project / "bought.txt").exists()
    changed = refused(*table, "--resume", "last", "--seed", "7")
    assert "the table cannot go on, because brainstorming-difficult-variety is done: " in changed
    assert "Leave --experiments out" in refused(*table, "--resume", "last", "--experiments", "3")
    assert "there is no table 'none'" in refused(*table, "--resume", "none")


@pytest.mark.parametrize(
    "damaged",
    [
        '{"format": 1}',
        '{"format": 1, "runs": {}}',
        '{"format": 1, "runs": ["debate-controversial"]}',
        '{"format": 1, "runs": {"debate-controversial": 5}}',
        "[]",
    ],
)
def test_a_damaged_table_is_a_sentence(project: Path, damaged: str) -> None:
    file = project / ".arbiter/experiments/table1-20260101-000000-000000.json"
    file.parent.mkdir(parents=True)
    file.write_text(damaged)
    said = refused("experiment", "table1", *WITH, *SMALL, "--resume", "last")
    assert said.strip().endswith("is not a table of experiments. Start a new one.")


@pytest.mark.lengthy
def test_a_table_goes_on_after_a_kill(project: Path) -> None:
    """Killed in its second experiment, it knows the first one."""
    (project / "counted.py").write_text(COUNTED)
    (project / "killed.py").write_text(
        "import os\nfrom pathlib import Path\nfrom counted import agents, corrector, judge\n"
        "answer = agents.answers[0]\n"
        "def dies(prompt):\n"
        "    if len([*Path('.arbiter/experiments').glob('*/run.json')]) == 2:\n"
        "        os._exit(9)\n"
        "    return answer(prompt)\n"
        "agents.answers = [dies]\n"
    )
    options = ["experiment", "table1", *WITH, *SMALL, "--experiments", "2.2,3"]
    started(*(each.replace("models", "killed") for each in options), folder=project, code=9)
    shown = typed(*(each.replace("models", "counted") for each in options), "--resume", "last", code=5)
    assert len([*Path(".arbiter/experiments").glob("*/run.json")]) == 2
    assert re.search(r"[0-9] of 5 starred rows", shown), shown


@pytest.mark.lengthy
@pytest.mark.slow
def test_an_interrupted_experiment_says_how_it_goes_on(project: Path) -> None:
    (project / "slow.py").write_text("from models import agents\nagents.pause = 0.2\n")
    options = (
        "debate-controversial",
        *SMALL,
        "--judge",
        "models.py:judge",
        "--corrector",
        "models.py:corrector",
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "arbiter", "experiment", "run", *options, "--model", "slow.py:agents"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not [*Path(".arbiter/experiments").glob("*/run.json")]:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    shown, said = running.communicate()
    assert running.returncode == 130, said
    assert "no p-values: incomplete: interrupted" in shown
    [run_id] = re.findall(r"--resume ([\w-]+)", said)
    whole = typed("experiment", "run", *options, "--model", "models.py:agents", "--resume", run_id)
    assert "incomplete" not in whole
