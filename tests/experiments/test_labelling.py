"""The judge of an experiment is compared with people's labels of its conversations, and its reports say so."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from arbiter.errors import ConfigurationError, PackError
from arbiter.experiments import Corrections, ExperimentResult, calibrate_metric, write_sessions
from arbiter.experiments.results import load_result
from arbiter.harness import CANARIES
from arbiter.harness.journal import run_folder
from arbiter.personas import JudgeRequest
from tests.cli.cli_support import refused, typed
from tests.experiments.experiment_support import GATE, experiment, judge, scenario
from tests.experiments.test_experiment_command import MODELS, SMALL, WITH
from tests.personas.personas_support import Says, prompt_of

METRICS = ("fluency", "convergence")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExperimentResult]:
    """A run of 16 pairs of environments of two people, and its folder."""
    tea = experiment(scenario(Corrections(GATE), repetitions=4), metrics=METRICS, judge=graded())
    folder = tmp_path_factory.mktemp("runs")
    return folder, tea.run(folder=folder / ".arbiter/experiments")


@pytest.fixture(autouse=True)
def project(run: tuple[Path, ExperimentResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copytree(run[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


def graded() -> Says:
    """Likes good words, and has no ear for anything else."""

    def answer(request: JudgeRequest) -> Any:
        score = 8 if prompt_of(request).count("a good word") > prompt_of(request).count("a poor word") else 3
        if request.purpose == "batch":
            return {"judgements": [{"id": id, "score": score} for id in request.propositions]}
        return {"score": score, "reasoning": "read"}

    return Says(answer)


def labelled(metric: str, count: int = 60, *, blind: bool = True, wrong: int = 0) -> Path:
    """Labels of people who agree with the judge, but for the first ones."""
    for name in ("labels.csv", "seen.csv"):
        Path(name).unlink(missing_ok=True)
    write_sessions("labels.csv", metric=metric, count=count, blind=blind)
    write_sessions("seen.csv", metric=metric, count=count, blind=False)
    rows, seen = (
        [*csv.DictReader(Path(name).read_text().splitlines(keepends=True))]
        for name in ("labels.csv", "seen.csv")
    )
    assert ("score" in rows[0]) is not blind
    for place, (row, judged) in enumerate(zip(rows, seen, strict=True)):
        row["label"] = "8" if (float(judged["score"]) >= 6) is (place >= wrong) else "3"
    with Path("labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return Path("labels.csv")


def shown() -> ExperimentResult:
    return load_result(run_folder("last", Path(".arbiter/experiments")))


@pytest.mark.lengthy
def test_a_result_is_uncalibrated_until_people_agree_with_its_judge(
    run: tuple[Path, ExperimentResult],
) -> None:
    _, result = run
    assert set(result.uncalibrated) == set(METRICS)
    assert "judge Says (uncalibrated: no labels of people)" in result.table()
    found = calibrate_metric(labelled("fluency", wrong=3), metric="fluency", judge=graded(), pass_at=6)
    assert (found.n, found.tp + found.tn, found.canaries, found.believed) == (60, 57, len(CANARIES), ())
    Path("calibrations").mkdir()
    found.write("calibrations/fluency.json")
    again = shown()
    assert set(again.uncalibrated) == {"convergence"}
    assert "judge Says (uncalibrated for convergence: no labels of people)" in again.table()
    assert "judge partly uncalibrated" in again.picture()
    [line] = [line for line in again.table().splitlines() if line.startswith("calibrated judge of fluency")]
    assert "it agrees with people on 95% of 60 labels, κ 0.9" in line
    for arm in ("treatment", "control"):
        passed = sum(score >= 6 for score in again.scores[arm]["fluency"])
        assert f"{arm} {passed} of 32 passed, corrected " in line
    plain = json.loads(json.dumps(again.to_dict()))
    assert plain["calibrations"]["fluency"]["n"] == 60
    assert plain["uncalibrated"]["convergence"].startswith("it was not compared with labels of people")


@pytest.mark.lengthy
def test_a_whole_conversation_is_labelled_where_it_is_scored() -> None:
    file = labelled("convergence", 32)
    found = calibrate_metric(file, metric="convergence", judge=graded(), pass_at=6)
    assert (found.n, found.tp + found.tn) == (32, 32)
    assert "32 labelled outputs; 50 are needed" in found.problems(version=found.version, judge=found.judge)


@pytest.mark.lengthy
def test_canaries_are_all_that_an_agent_says() -> None:
    """A judge that does what it reads believes them."""
    file = labelled("fluency", 8)

    def obeys(request: JudgeRequest) -> Any:
        believed = " says a " not in prompt_of(request)
        known = graded().judge(request).value
        return {"judgements": [{"id": id, "score": 9} for id in request.propositions]} if believed else known

    found = calibrate_metric(file, metric="fluency", judge=Says(obeys), pass_at=6)
    assert found.believed == tuple(CANARIES)


@pytest.mark.parametrize("pass_at", [float("nan"), 10])
def test_a_pass_mark_that_no_score_can_have_is_refused_before_the_judge_is_asked(pass_at: float) -> None:
    with pytest.raises(
        ConfigurationError, match="expected a number from 0 to 9, the lowest score that passes"
    ):
        calibrate_metric("labels.csv", metric="fluency", judge=judge(), pass_at=pass_at)


@pytest.mark.lengthy
def test_labels_of_something_else_are_refused() -> None:
    file = labelled("fluency", 4)
    asked: dict[str, Any] = {"metric": "fluency", "judge": judge(), "pass_at": 6}
    with pytest.raises(ConfigurationError, match="Did you mean 'fluency'"):
        write_sessions("other.csv", metric="fluencey")
    wrong: Any = None
    with pytest.raises(ConfigurationError, match="None is not a metric of the run"):
        write_sessions("other.csv", metric=wrong)
    with pytest.raises(ConfigurationError, match="not overwritten"):
        write_sessions(file, metric="fluency")
    counts: list[Any] = [0, 2.5]
    for count in counts:
        with pytest.raises(ConfigurationError, match=f"count is {count}; expected a whole number from 1"):
            write_sessions("other.csv", metric="fluency", count=count)
    assert not Path("other.csv").exists()
    file.write_text(file.read_text().replace(" word ", " sentence "))
    with pytest.raises(
        PackError, match=r"labels\.csv:[0-9]+: the conversation '0.* with that text is not in"
    ) as caught:
        calibrate_metric(file, **asked)
    assert len(caught.value.mistakes) == 4
    assert len({each.line for each in caught.value.mistakes}) == 4
    experiment(metrics=["ideas_quantity"]).run()
    with pytest.raises(ConfigurationError, match="is a count"):
        write_sessions("other.csv", metric="ideas_quantity")


@pytest.mark.lengthy
def test_labels_of_people_who_saw_the_scores_calibrate_no_judge() -> None:
    found = calibrate_metric(
        labelled("fluency", 10, blind=False), metric="fluency", judge=graded(), pass_at=6
    )
    assert "people saw the judge's scores" in found.problems(version=found.version, judge=found.judge)


@pytest.mark.lengthy
def test_the_command_writes_conversations_and_compares_labels() -> None:
    typed("experiment", "run", "debate-controversial", *WITH, *SMALL)
    some = ("experiment", "calibrate", "labels.csv", "--metric", "adherence")
    assert "wrote labels.csv: 12 conversations" in typed(*some, "--sample", "12")
    text = Path("labels.csv").read_text().splitlines()
    Path("labels.csv").write_text("\n".join([text[0], *(f"{line[:-1]}" for line in text[1:])]))
    with Path("labels.csv").open(newline="") as file:
        assert "Facilitator: " in next(csv.DictReader(file))["output"]
    assert "give --pass-at" in refused(*some)
    assert "--judge is missing" in refused(*some, "--pass-at", "6")
    labelled("adherence", 12)
    compared = typed(*some, "--pass-at", "6", "--judge", "models.py:judge")
    assert compared.startswith("12 labels, ")
    assert "uncalibrated: 12 labelled outputs; 50 are needed; " in compared
    assert "wrote calibrations/adherence.json" in compared
    assert "uncalibrated for adherence: 12 labelled outputs; 50" in typed("experiment", "show", "last")
