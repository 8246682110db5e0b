"""Calibration: a judge compared with people's labels, and what it takes to call it calibrated."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from arbiter.errors import ConfigurationError, PackError
from arbiter.harness import (
    CANARIES,
    Calibration,
    Case,
    CaseRun,
    GateSettings,
    Identity,
    JudgeIdentity,
    Labelled,
    Labels,
    Suite,
    chosen_for_labelling,
    read_labels,
    write_for_labelling,
)
from arbiter.harness.calibration import looked_up
from arbiter.models import JudgeReply, JudgeRequest

GOOD = dict.fromkeys(CANARIES, 1.0)


def labels(values: list[int], *, are_scores: bool = True) -> Labels:
    return Labels(
        outputs=tuple(
            Labelled(id=f"o{place}", input="", output="x" * (10 + place % 7), labels={"ada": value})
            for place, value in enumerate(values)
        ),
        are_scores=are_scores,
    )


def calibrated(
    people: list[int], judge: list[float], *, are_scores: bool = True, **options: Any
) -> Calibration:
    given: dict[str, Any] = {
        "row": "tone",
        "version": "9c1f",
        "judge": "openai:gpt-5-mini",
        "date": "2026-11-20",
        "pass_at": 7,
        "canaries": GOOD,
        "draws": 100,
        **options,
    }
    return Calibration.of(
        labels(people, are_scores=are_scores),
        {f"o{place}": score for place, score in enumerate(judge)},
        **given,
    )


@cache
def agreeing(n: int, *, wrong: int = 2) -> Calibration:
    """A judge that agrees with people but for some outputs."""
    people = [8 if place % 2 else 3 for place in range(n)]
    return calibrated(
        people, [float(11 - score if place < wrong else score) for place, score in enumerate(people)]
    )


@pytest.mark.lengthy
def test_the_screen() -> None:
    """100 labels, 54 and 32 of which the judge shares."""
    people = [1] * 60 + [0] * 40
    judge = [8.0] * 54 + [3.0] * 6 + [8.0] * 8 + [3.0] * 32
    found = calibrated(people, judge, are_scores=False, draws=600)
    assert (found.tp, found.fn, found.fp, found.tn, found.base_rate, found.agreement) == (
        54,
        6,
        8,
        32,
        0.6,
        0.86,
    )
    assert found.kappa is not None
    assert found.kappa.interval is not None
    assert found.kappa.value == pytest.approx(0.71, abs=0.005)
    assert found.kappa.interval == pytest.approx((0.56, 0.84), abs=0.03)
    assert str(found).splitlines()[:4] == [
        '100 labels, 60% pass (always saying "pass" would agree on 60)',
        "              judge passes   judge fails",
        " human pass   54             6            q1 0.90",
        " human fail   8              32           q0 0.80",
    ]
    corrected = found.corrected(150, 200)
    assert corrected is not None
    assert (corrected.rate, *corrected.interval) == pytest.approx((0.7857, 0.6585, 0.9265), abs=5e-5)


def test_a_judge_is_calibrated_for_one_version_and_one_model() -> None:
    found = agreeing(60)
    assert found.problems(version="9c1f", judge="openai:gpt-5-mini") == ()
    assert found.problems(version="77aa", judge="openai:gpt-5-mini") == (
        "it was calibrated for version 9c1f, the row has 77aa",
    )
    assert found.problems(version="9c1f", judge="other") == (
        "openai:gpt-5-mini was calibrated, the judge is other",
    )


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (partial(agreeing, 49), "49 labelled outputs; 50 are needed"),
        (partial(agreeing, 60, wrong=20), "quadratic κ is 0.3"),
        (partial(calibrated, [8] * 60, [8.0] * 60), "people gave one class of labels alone"),
        (
            partial(calibrated, [8, 3] * 30, [8.0, 3.0] * 30, canaries={**GOOD, "plain": 9.0, "json": 7.0}),
            "it believed 2 of 12 canaries: plain, json",
        ),
        (partial(calibrated, [8, 3] * 30, [8.0, 3.0] * 30, canaries=None), "no canary was judged"),
    ],
)
def test_what_keeps_a_judge_uncalibrated(found: Callable[[], Calibration], problem: str) -> None:
    (reason,) = found().problems(version="9c1f", judge="openai:gpt-5-mini")
    assert reason.startswith(problem)


def test_a_run_finds_the_calibrations_of_its_judges(tmp_path: Path) -> None:
    """Those of its row, version and model; a file that merely exists calibrates nothing."""
    identity = Identity(
        suite="refunds",
        rows={"tone": "9c1f", "style": "9c1f"},
        judges={
            "tone": JudgeIdentity(model="openai:gpt-5-mini"),
            "style": JudgeIdentity(model="openai:gpt-5-mini"),
        },
    )
    agreeing(60).write(tmp_path / "tone.json")
    agreeing(49).write(tmp_path / "style.json")
    found = looked_up(identity, tmp_path)
    assert {row for row, calibration in found.items() if isinstance(calibration, Calibration)} == {"tone"}
    assert isinstance(looked_up(replace(identity, rows={"tone": "77aa"}), tmp_path)["tone"], str)


class _Tone:
    """Asks a judge for one score."""

    name, scale = "tone", (0.0, 9.0)

    def __init__(self, judge: Any) -> None:
        self.judge = judge

    def with_judges(self, wrap: Any, votes: int | None = None) -> _Tone:
        return _Tone(wrap(self.judge))

    def version_parts(self) -> dict[str, str]:
        return {"rubric": "calm"}

    def score(self, run: CaseRun) -> float:
        question = JudgeRequest(
            purpose="grade", propositions=(), messages=(HumanMessage(run.output),), schema=_Grade
        )
        return float(self.judge.judge(question).value["score"])


class _Grade(BaseModel):
    score: float


BELIEVED = partial(calibrated, [8, 3] * 30, [8.0, 3.0] * 30, canaries={**GOOD, "plain": 9.0})


@pytest.mark.parametrize(
    ("given", "changes", "reason"),
    [
        (partial(agreeing, 60), {}, ""),
        (None, {}, "it was not compared with labels of people"),
        (partial(agreeing, 49), {}, "49 labelled outputs; 50 are needed"),
        (partial(calibrated, [8] * 60, [8.0] * 60), {}, "people gave one class of labels alone"),
        (BELIEVED, {}, "it believed 1 of 12 canaries: plain"),
        (partial(agreeing, 60), {"version": "0ld"}, "it was calibrated for version 0ld, the row has"),
        (partial(agreeing, 60), {"judge": "other"}, "other was calibrated, the judge is m"),
        (partial(agreeing, 60), {"n": 61}, "n or kappa does not fit the table"),
    ],
)
def test_every_report_says_whether_its_judges_are_calibrated(
    given: Callable[[], Calibration] | None,
    changes: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    gate = GateSettings(require_calibrated=True)
    suite = Suite("crew", [Case("a", "Ahoy.")], scorers=[_Tone(Reads())], gate=gate)
    if given is not None:
        known = {"version": str(suite.judges[0].version), "judge": "m", **changes}
        Path("calibrations").mkdir()
        replace(given(), **known).write(Path("calibrations/tone.json"))
    report = suite.run({"a": "Aye."}, folder=None)
    assert report.comparison.exit_code == (5 if reason else 0)
    assert report.to_dict()["identity"]["judges"]["tone"]["calibrated"] is not bool(reason)
    said = "uncalibrated" if reason else "calibrated"
    written = [report.write(tmp_path / f"report{form}").read_text() for form in (".md", ".html", ".xml")]
    for text in (report.printed(), *written):
        assert re.search(rf"judge m \\?\({said}", text)
        assert reason[:20] in " ".join(text.replace("\\", "").split())
        assert ("uncalibrated" in text) is bool(reason)


class Reads:
    model_name = "m"

    def judge(self, request: JudgeRequest) -> JudgeReply:
        return JudgeReply(value={"score": 8}, model="m")

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        return self.judge(request)


def test_a_wide_interval_is_not_calibrated() -> None:
    """κ may look good by luck: fifty labels of which four are failures."""
    people = [8] * 46 + [3] * 4
    found = calibrated(people, [8.0] * 46 + [3.0, 3.0, 3.0, 8.0], draws=400)
    (reason,) = found.problems(version="9c1f", judge="openai:gpt-5-mini")
    assert "the lower end has to be 0.4 or more" in reason


def test_biases_of_a_judge() -> None:
    """A judge that likes long outputs, says 8 or 3 alone, and changes its mind on every fifth output."""
    people = [8, 3] * 30
    longer = [5 + place % 7 / 2 for place in range(60)]
    again = {f"o{place}": 9.0 if place % 5 == 0 else 3.0 for place in range(60)}
    found = calibrated(people, longer)
    assert found.length is not None
    assert found.length.interval is not None
    assert found.length.interval.low > 1
    fickle = calibrated(people, [3.0] * 60, again=again)
    assert (fickle.flips, fickle.top_two, fickle.entropy) == (0.2, 1.0, 0.0)
    halves = calibrated(people, [8.0, 3.0] * 30)
    assert (halves.entropy, halves.exact, halves.within_one, halves.flips) == (1.0, 1.0, 1.0, None)


def test_several_labellers_count_by_their_median_and_ties_are_left_out() -> None:
    def output(id: str, *given: int) -> Labelled:
        return Labelled(
            id=id, input="", output=id, labels={f"p{place}": value for place, value in enumerate(given)}
        )

    several = Labels(
        outputs=(output("a", 1, 1, 0), output("b", 0, 0), output("c", 1, 0), output("d", 1)), are_scores=False
    )
    found = Calibration.of(
        several, {"a": 9, "b": 2, "c": 9}, row="r", version="", judge="j", date="", pass_at=7, draws=50
    )
    assert (found.tp, found.tn, found.n, found.left_out) == (1, 1, 2, 2)
    assert found.labellers is not None


def test_a_calibration_is_read_as_it_was_written_and_not_if_it_was_edited(tmp_path: Path) -> None:
    file = tmp_path / "tone.json"
    found = agreeing(60)
    found.write(file)
    assert Calibration.read(file) == found
    data = json.loads(file.read_text(encoding="utf-8"))
    for change in (
        {"kappa": {"value": 0.99, "interval": [0.9, 1.0]}},
        {"tp": 59},
        {"tp": -5, "fn": found.tp + found.fn + 5},
        {"pass_at": math.nan},
    ):
        file.write_text(json.dumps({**data, **change}), encoding="utf-8")
        with pytest.raises(ConfigurationError, match="A calibration is measured, not edited"):
            Calibration.read(file)
    file.write_text(json.dumps({**data, "n": "many"}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="n: Input should be a valid integer"):
        Calibration.read(file)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        found.write(tmp_path / "nowhere" / "tone.json")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nowhere/x", "No such file or directory"),
        ("file/x", "Not a directory"),
        ("folder", "Is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path, place: str, reason: str) -> None:
    """That of a report, of outputs to label and of a calibration."""
    (tmp_path / "file").touch()

    def same(given: int) -> int:
        return given

    report = Suite("tone", [Case("a", 1)]).run(same, folder=None)
    writers: dict[str, Callable[[Path], object]] = {
        ".md": report.write,
        ".csv": lambda path: write_for_labelling(path, []),
        ".json": agreeing(60).write,
    }
    for ending, write in writers.items():
        (tmp_path / f"folder{ending}").mkdir()
        path = tmp_path / f"{place}{ending}"
        with pytest.raises(ConfigurationError) as raised:
            write(path)
        assert str(raised.value) == f"'{path}' cannot be written: {reason}."


def test_intervals_are_the_same_each_time() -> None:
    people, judge = [8, 3] * 30, [8.0, 8.0, 8.0, *[3.0, 8.0] * 28, 3.0]
    assert calibrated(people, judge) == calibrated(people, judge)


def test_ids_without_labels_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the judge scored ids without labels: 'o2', 'o3'"):
        calibrated([8, 3], [8.0, 3.0, 8.0, 3.0])
    with pytest.raises(ConfigurationError, match="the judge scored none of the labelled outputs"):
        calibrated([8, 3], [])


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "id,input,output,label,labeller\n"
        'a,"Refund?","Yes, of course",8,ada\na,"Refund?","Yes, of course",6,bo\nb,,No,2,ada\n',
        encoding="utf-8-sig",
    )
    found = read_labels(file)
    assert found.are_scores
    assert [(each.id, each.output, dict(each.labels), each.label) for each in found.outputs] == [
        ("a", "Yes, of course", {"ada": 8, "bo": 6}, 7),
        ("b", "No", {"ada": 2}, 2),
    ]
    file.write_text(f"id,output,label\na,{'Yes' * 50_000},PASS\nb,No,fail\n", encoding="utf-8")
    assert [each.label for each in read_labels(file).outputs] == [1, 0]


def test_all_mistakes_in_labels_are_reported_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "id,output,label,labeller\na,Yes,8,ada\na,Yes,7,ada\nb,No,11,ada\nc,No,good,ada\n,No,3,ada\nd,No\n"
        "a,Nope,7,bo\ne,No,pass,ada\n",
        encoding="utf-8",
    )
    with pytest.raises(PackError) as caught:
        read_labels(file)
    assert [(each.line, each.message) for each in caught.value.mistakes] == [
        (3, "the labeller 'ada' labelled the id 'a' twice."),
        (4, "the label is '11'; expected a whole number from 0 to 9, or pass or fail."),
        (5, "the label is 'good'; expected a whole number from 0 to 9, or pass or fail."),
        (6, "has no id."),
        (7, "has fewer cells than the first line has columns."),
        (8, "the id 'a' has a different output than before."),
        (9, "has scores and passes; expected one kind of label in a file."),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label\na,8\n", "the column 'output' is missing. Columns: id, label."),
        ("id,output,label,labler\na,b,8,c\n", "labels have no column 'labler'."),
        ("id,output,label\n", "has no labels."),
        ("", "the column 'id' is missing. Columns: none."),
        ("id,output,output,label\na,b,c,8\n", "the column 'output' stands there twice."),
        (f"id,output,label\na,b,{'9' * 5_000}\n", "expected a whole number from 0 to 9"),
        ('id,output,label\na,"b,8\n', "is not CSV"),
    ],
)
def test_a_file_without_labels_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PackError, match=r"labels\.csv:") as caught:
        read_labels(file)
    assert message in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_labels(tmp_path / "none.csv")


def test_a_sample_for_labelling_has_all_kinds_of_scores_and_hides_them(tmp_path: Path) -> None:
    """Ten of a hundred outputs failed; a third of the sample did. The file can be labelled and read back."""
    rng = random.Random(1)
    scores = {f"o{place}": 1.0 if place < 10 else rng.choice([7.0, 8.0, 9.0]) for place in range(100)}
    chosen = chosen_for_labelling(scores, 20)
    assert sum(scores[id] < 3 for id in chosen) == 10
    assert chosen == chosen_for_labelling(scores, 20) != chosen_for_labelling(scores, 20, seed=1)
    assert len(set(chosen_for_labelling(scores, 500))) == 100
    file = tmp_path / "labels.csv"
    write_for_labelling(
        file, [Labelled(id=id, input="q", output=f'"{id}",\nsecond line', labels={}) for id in chosen]
    )
    text = file.read_text(encoding="utf-8")
    assert not any(f",{score}" in text for score in scores.values())
    file.write_text(text.replace(",q,", ",q,").replace('line",,', 'line",8,ada'), encoding="utf-8")
    assert [each.id for each in read_labels(file).outputs] == list(chosen)
