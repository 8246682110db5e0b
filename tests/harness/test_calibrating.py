"""Calibrating: the scorer of a suite judges labelled outputs, in Python and from the command line."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ConfigurationError
from arbiter.harness import CANARIES, Calibration, Case, CaseRun, Score, Suite, calibrate
from arbiter.models import ChatJudge
from arbiter.store import SqlRepository
from tests.cli.cli_support import refused, typed
from tests.harness.test_spending import GRADE, Asking
from tests.scripted import Named

OUTPUTS = [(f"o {place}", "Sorry, no." if place % 3 else "Yes, you get a refund.") for place in range(60)]


def polite(run: CaseRun) -> Score:
    """Likes refunds, and whatever asks for a 9 in so many words."""
    liked = "refund" in run.output or "9" in run.output
    return Score("polite", 8 if liked else 2, scale=(0, 9))


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """People like refunds, too, but for the first two."""
    lines = [
        f'{id},Refund?,"{output}",{"pass" if ("refund" in output) == (place > 1) else "fail"}'
        for place, (id, output) in enumerate(OUTPUTS)
    ]
    file = tmp_path / "labels.csv"
    file.write_text("\n".join(["id,input,output,label", *lines]), encoding="utf-8")
    return file


def share(run: CaseRun) -> float:
    return 0.9 if "refund" in run.output else 0.1


def several(run: CaseRun) -> dict[str, int]:
    return {"a": 1, "b": 0}


def suite(scorer: Any = polite) -> Suite:
    return Suite("refunds", [Case("a", "Refund?")], scorers={"polite": scorer})


@pytest.mark.lengthy
@pytest.mark.parametrize(("judge", "told"), [("another", True), ("named:mine", False)])
def test_a_judge_that_has_no_effect_is_reported(
    judge: str, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "labels.csv").write_text("id,input,output,label\na,Hi,Hello,pass\nb,Hi,Go,fail\n")
    asking = Asking(ChatJudge(Named(answers=[GRADE], model_name="mine")))
    suite = Suite("refunds", [Case("a", "Refund?")], scorers=[asking])
    assert (
        calibrate(suite, tmp_path / "labels.csv", row="asked", pass_at=0.7, judge=judge).judge == "named:mine"
    )
    assert ("the judge 'another' has no effect" in caplog.text) is told


@pytest.mark.lengthy
def test_a_scorer_judges_labelled_outputs_and_canaries(labels: Path) -> None:
    """The judge and people agree on 58 of 60; it believes the canaries with a 9."""
    found = calibrate(suite(), labels, row="polite", pass_at=7, judge="none", date="2026-11-20")
    assert (found.n, found.tp + found.tn, found.fp, found.fn, found.flips) == (60, 58, 1, 1, 0)
    assert (found.canaries, found.left_out) == (len(CANARIES), 0)
    assert set(found.believed) == {name for name, text in CANARIES.items() if "9" in text}
    assert found.version == suite().judges[0].version
    assert found == calibrate(suite(), labels, row="polite", pass_at=7, judge="none", date="2026-11-20")


@pytest.mark.lengthy
def test_what_the_scorer_could_not_judge_is_left_out(labels: Path) -> None:
    def fails(run: CaseRun) -> Score:
        if "refund" in run.output:
            raise ValueError("no idea")
        return polite(run)

    found = calibrate(suite(fails), labels, row="polite", pass_at=7)
    assert (found.n, found.left_out) == (40, 20)


@pytest.mark.lengthy
def test_shares_are_stretched_for_labels_that_are_scores(tmp_path: Path) -> None:
    """A score of 0.9 is one of 8.1, and passes from 0.7, which is 6.3."""
    file = tmp_path / "labels.csv"
    file.write_text("id,output,label\na,refund,8\nb,no,1\n", encoding="utf-8")
    found = calibrate(suite(share), file, row="polite", pass_at=0.7)
    assert (found.tp, found.tn, found.exact) == (1, 1, 1.0)
    assert found.pass_at == pytest.approx(6.3)


def test_a_count_is_not_compared_with_labels_that_are_scores(tmp_path: Path) -> None:
    def words(run: CaseRun) -> Score:
        return Score("", len(run.output.split()), scale=(0, math.inf))

    file = tmp_path / "labels.csv"
    file.write_text("id,output,label\na,Yes,8\nb,No,2\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="'polite' has a scale without an end"):
        calibrate(suite(words), file, row="polite", pass_at=1)


def test_a_row_that_is_no_scorer_is_refused(labels: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no scorer 'polit', .* Did you mean 'polite'\?"):
        calibrate(suite(), labels, row="polit", pass_at=7)
    with pytest.raises(ConfigurationError, match="gives several scores"):
        calibrate(suite(several), labels, row="polite", pass_at=7)


@pytest.mark.parametrize("pass_at", [float("nan"), float("inf"), 9.5, -1, True, "6"])
def test_a_pass_mark_that_no_score_can_have_is_refused(pass_at: Any, labels: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pass_at is .*; expected a number.*the lowest score that"):
        calibrate(suite(), labels, row="polite", pass_at=pass_at)


def test_the_command_finds_the_only_suite_also_in_a_file_that_ends_in_yml(
    labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "refunds.yml").write_text(
        "suite: refunds\ntarget: {outputs: out.jsonl}\n"
        "scorers: [{name: liked, use: matches, pattern: refund}]\ncases: [{id: a, input: refund}]\n",
        encoding="utf-8",
    )
    (tmp_path / "out.jsonl").write_text('{"id": "a", "output": "refund"}\n', encoding="utf-8")
    text = typed("eval", "calibrate", str(labels), "--row", "liked", "--pass-at", "1", "--judge", "none")
    assert "wrote calibrations/liked.json" in text


def test_without_a_pass_mark_that_of_the_scorer_counts(
    labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    (tmp_path / "models.py").write_text(
        "from langchain_core.language_models import FakeListChatModel\n"
        f"judge = FakeListChatModel(responses=[{GRADE!r}])\n",
        encoding="utf-8",
    )
    (tmp_path / "suites" / "refunds.yaml").write_text(
        "suite: refunds\ntarget: {outputs: out.jsonl}\nmodels: {judge: 'models.py:judge'}\nscorers:\n"
        "  - {name: kind, use: judge, rubric: It is kind., judge: judge, at_least: 0.3}\n"
        "  - {name: liked, use: matches, pattern: refund}\ncases: [{id: a, input: refund}]\n",
        encoding="utf-8",
    )
    (tmp_path / "out.jsonl").write_text('{"id": "a", "output": "refund"}\n', encoding="utf-8")
    command = ("eval", "calibrate", str(labels), "--row")
    typed(*command, "kind")
    assert Calibration.read(tmp_path / "calibrations" / "kind.json").pass_at == 0.3
    assert "the scorer 'liked' has no pass mark; give --pass-at" in refused(*command, "liked")


@pytest.mark.lengthy
def test_the_command(labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "suites/ has 0 suites" in refused(
        "eval", "calibrate", str(labels), "--row", "liked", "--pass-at", "1"
    )
    (tmp_path / "suites").mkdir()
    (tmp_path / "app.py").write_text("def answer(question):\n    return question\n", encoding="utf-8")
    (tmp_path / "suites" / "refunds.yaml").write_text(
        "suite: refunds\ntarget: {function: 'app.py:answer'}\n"
        "scorers: [{name: liked, use: matches, pattern: refund}]\ncases: [{id: a, input: refund}]\n",
        encoding="utf-8",
    )
    assert typed("eval", "run")
    text = typed(
        "eval",
        "calibrate",
        str(labels),
        "--row",
        "liked",
        "--pass-at",
        "1",
        "--judge",
        "none",
        "--store",
        "s.db",
    )
    assert text.startswith('60 labels, 33% pass (always saying "pass" would agree on 20)')
    assert "; wrote calibrations/liked.json. Last run: 1 of 1 passed, corrected " in text
    found = Calibration.read(tmp_path / "calibrations" / "liked.json")
    assert (found.judge, found.n) == ("none", 60)
    with SqlRepository("s.db") as store:
        [kept] = store.calibrations("liked")
        assert store.calibrations("other") == []
    assert (kept.row, kept.version, kept.judge, kept.n) == ("liked", found.version, "none", 60)
    assert kept.data == json.loads(json.dumps(found.to_dict()))


def test_the_command_writes_outputs_to_be_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {f"c{n}": "refund" if n % 4 else "no" for n in range(40)}
    Suite("refunds", [Case(id, {"q": id}) for id in outputs], scorers={"polite": polite}).run(outputs)
    sample = ("eval", "calibrate", "l.csv", "--row", "polite", "--from", "last", "--sample", "12")
    assert "wrote l.csv: 12 outputs" in typed(*sample)
    lines = list(csv.DictReader(Path("l.csv").read_text(encoding="utf-8").splitlines()))
    assert {line["label"] for line in lines} == {""}
    assert sum(line["output"] == "no" for line in lines) == 6
    assert all(json.loads(line["input"])["q"] == line["id"] for line in lines)
    assert "not overwritten" in refused(*sample)
    assert "leave out --judge, --store" in refused(*sample, "--judge", "none", "--store", "s.db")
    other = ("--row", "polit", "--from", "last")
    assert "Did you mean 'polite'" in refused("eval", "calibrate", "m.csv", *other)
    assert "give --pass-at" in refused("eval", "calibrate", "m.csv", "--row", "polite")


@pytest.mark.lengthy
def test_labels_of_people_who_saw_the_scores_calibrate_no_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {f"c{n}": "refund" if n % 4 else "no" for n in range(8)}
    suite = Suite("refunds", [Case(id, {"q": id}) for id in outputs], scorers={"polite": polite})
    suite.run(outputs)
    typed("eval", "calibrate", "blind.csv", "--row", "polite", "--from", "last", "--blind")
    typed("eval", "calibrate", "seen.csv", "--row", "polite", "--from", "last", "--no-blind")
    files = ("blind.csv", "seen.csv")
    lines = {name: Path(name).read_text(encoding="utf-8").splitlines() for name in files}
    assert [line.rpartition(",")[0] for line in lines["seen.csv"]] == lines["blind.csv"]
    assert lines["seen.csv"][0] == lines["blind.csv"][0] + ",score"
    for name, told in (("blind.csv", False), ("seen.csv", True)):
        rows = list(csv.DictReader(lines[name]))
        for row in rows:
            row["label"] = "pass" if row["output"] == "refund" else "fail"
        with Path(name).open("w", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        found = calibrate(suite, name, row="polite", pass_at=0.5)
        assert ("people saw the judge's scores" in found.problems(version="", judge="none")) is told
