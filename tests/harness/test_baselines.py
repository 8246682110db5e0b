"""Baselines: files that are whole, measured and not edited, and equal for equal runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from arbiter.errors import ConfigurationError
from arbiter.harness import Baseline, BaselineError, Case, CaseRun, JudgeIdentity, Report, Score, Suite
from tests.harness.measurements import AFTER, BEFORE, CAPTURED, baseline, cases, compared, row, run, share

MEANS = {
    "agentId": "ilka",
    "capturedAt": "2026-11-20T09:12:00Z",
    "dimensions": {"fluency": 8.3},
    "propositionScores": {"fluency.varied": 8},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "refunds.json"


def edited(file: Path, change: Callable[[Any], Any]) -> None:
    """Change the data of a file as an editor would."""
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data)
    file.write_text(json.dumps(data), encoding="utf-8")


def test_a_baseline_is_read_as_it_was_written(file: Path) -> None:
    """Also its missing scores, clusters, judges and open scales."""
    judges = {"tone": JudgeIdentity(model="openai:gpt-5-mini", temperature=0.0, calibrated=True)}
    written = baseline(
        row(
            "tone",
            [*BEFORE, [7, None]],
            version="9c1f",
            missing={"case-11": ("timeout",)},
            clusters={"case-01": "a"},
        ),
        share("grounded", [1] * 10),
        row("tokens", [3911.5] * 3, scale=(0.0, float("inf"))),
        judges=judges,
    )
    assert written.write(file) == ()
    found = Baseline.read(file)
    assert found == written
    assert found.rows["tone"].interval == written.rows["tone"].interval


@pytest.mark.lengthy
@given(st.lists(st.lists(st.floats(0, 9), min_size=1, max_size=3), min_size=1, max_size=8))
def test_a_run_compared_with_its_own_file_did_not_change(tmp_path_factory: Any, values: Any) -> None:
    """Four decimals in the file are no difference."""
    file = tmp_path_factory.mktemp("baseline") / "refunds.json"
    now = run(row("tone", [*values, [5.0]]))
    Baseline.of(now, captured_at=CAPTURED).write(file)
    found = compared(now, Baseline.read(file)).rows["tone"]
    assert (found.delta, found.p, found.verdict) == (0, 1, "steady")


def test_two_files_of_a_run_differ_in_their_time_alone(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    first = baseline(row("tone", [1 / 3, 2.5]), share("grounded", [1, 0]))
    first.write(file)
    replace(first, captured_at=CAPTURED + timedelta(minutes=1)).write(other)
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (file, other)]
    assert [a for a, b in zip(*texts, strict=True) if a != b] == ['  "capturedAt": "2026-11-20T09:12:00Z",']
    assert "        0.3333\n" in file.read_text(encoding="utf-8")
    assert file.read_text(encoding="utf-8").endswith("}\n")


def test_only_an_update_moves_a_baseline_and_it_says_what_moved(file: Path) -> None:
    old = baseline(row("tone", BEFORE), row("style", BEFORE), row("same", BEFORE))
    new = baseline(row("tone", AFTER), share("grounded", [1] * 10), row("same", BEFORE))
    old.write(file)
    with pytest.raises(BaselineError, match=r"is there already\. Replace it with --update"):
        new.write(file)
    assert Baseline.read(file) == old
    assert new.write(file, update=True) == (
        "grounded new → 1.00 (10 cases)",
        "style 6.90 → gone",
        "tone 6.90 → 6.20 (10 → 10 cases)",
    )
    assert Baseline.read(file) == new


def test_a_process_that_dies_while_writing_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = baseline(row("tone", BEFORE))
    old.write(file)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        baseline(row("tone", AFTER)).write(file, update=True)
    assert Baseline.read(file) == old
    assert [path.name for path in file.parent.iterdir()] == ["refunds.json"]


def test_a_broken_file_is_replaced_by_an_update(file: Path) -> None:
    file.write_text("{", encoding="utf-8")
    (moved,) = baseline(row("tone", BEFORE)).write(file, update=True)
    assert moved.startswith("the earlier file could not be read: is not JSON")
    assert Baseline.read(file).rows["tone"].n == 10


def test_a_synthetic_baseline_replaces_no_live_one(file: Path) -> None:
    baseline(row("tone", BEFORE)).write(file)
    with pytest.raises(BaselineError, match="has mode 'live', which a synthetic baseline does not replace"):
        baseline(row("tone", BEFORE), mode="synthetic").write(file, update=True)


def test_a_baseline_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"does not exist\. Make it first"):
        baseline(row("tone", BEFORE)).write(tmp_path / "nowhere" / "refunds.json")


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        (
            run(row("tone", BEFORE), unfinished="interrupted after 5 of 20 cases"),
            "interrupted after 5 of 20 cases",
        ),
        (run(), "it has no rows"),
        (run(row("tone", {}, missing={"a": ("error",)})), "tone has no score for 1 of 1 cases"),
        (
            run(row("tone", BEFORE[:8], missing={"x": ("error",), "y": ("timeout",)})),
            "tone has no score for 2 of 10 cases",
        ),
    ],
)
def test_an_incomplete_run_is_no_baseline(measured: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Baseline.of(measured, captured_at=CAPTURED)
    assert str(caught.value) == f"the run cannot be a baseline: {problem}."


def test_a_file_edited_by_hand_is_refused(file: Path) -> None:
    """A mean that does not fit its cases, and a case outside of the scale; both at once."""
    baseline(row("tone", BEFORE), row("style", BEFORE)).write(file)
    edited(file, lambda data: data["rows"]["tone"].update(mean=7.5))
    edited(file, lambda data: data["rows"]["style"]["cases"].update({"case-01": [11]}))
    with pytest.raises(BaselineError) as caught:
        Baseline.read(file)
    assert caught.value.problems == (
        "rows.style.cases.case-01: [11.0] is not within the scale 0 to 9.",
        "rows.style.mean: is 6.9, but the cases have the mean 7.3000. A baseline is measured, not edited: arbiter "
        "eval baseline SUITE --update.",
        "rows.tone.mean: is 7.5, but the cases have the mean 6.9000. A baseline is measured, not edited: arbiter "
        "eval baseline SUITE --update.",
    )


@pytest.mark.parametrize("name", ["entropy", "half \ud83d of an emoji"])
def test_a_baseline_that_was_written_can_be_read(name: str, file: Path) -> None:
    """Also if the end of its scale has more than four decimals, and if a name has no form in UTF-8."""

    def scorer(run: CaseRun) -> Score:
        return Score("", math.log(6), scale=(0, math.log(6)))

    report = Suite("refunds", [Case("a", 1), Case("b", 2)], scorers={name: scorer}).run(
        {"a": 1, "b": 2}, folder=None
    )
    report.save_baseline(file)
    assert report.compare(file).rows[name].delta == 0


@pytest.mark.lengthy
def test_a_case_or_a_version_that_was_never_measured_is_refused(project: Path) -> None:
    suite = Suite("kept", [Case("a", 1), Case("b", 2)], scorers={"fine": always})
    place = project / "kept.json"
    suite.run(echo, folder=None).save_baseline(place)
    edited(place, lambda data: data["rows"]["fine"]["cases"].update({"c": [1.0]}))
    edited(place, lambda data: data["rows"]["fine"].update(version="0123"))
    with pytest.raises(BaselineError) as caught:
        Baseline.read(place)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "rows.fine.version",
        "rows.fine.cases",
    ]


def always(run: CaseRun) -> bool:
    return True


def echo(given: int) -> int:
    return given


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda data: data.update(format=2), "format: Input should be 1, got 2."),
    (lambda data: data.pop("suite"), "suite: Field required."),
    (lambda data: data.update(suite="other"), "suite: is 'other', but identity.suite is"),
    (lambda data: data.update(rows={}), "rows: has no rows, so nothing could be compared"),
    (lambda data: data.update(more=1), "more: Extra inputs are not permitted, got 1."),
    (
        lambda data: data["rows"]["tone"].update(scale=[0]),
        "rows.tone.scale: List should have at least 2 items",
    ),
    (
        lambda data: data["rows"]["tone"]["cases"].update({"case-01": ["7"]}),
        "rows.tone.cases.case-01.0: Input should be a valid number, got '7'.",
    ),
    (
        lambda data: data["rows"]["tone"]["cases"].update({"case-01": [float("nan")]}),
        "rows.tone.cases.case-01.0: Input should be a finite number, got nan.",
    ),
    (lambda data: data.update(missing={"tone": {"a": ["lost"]}}), "missing.tone.a.0: Input should be"),
    (lambda data: data.update(capturedAt="today"), "capturedAt: "),
]


@pytest.mark.parametrize(("change", "problem"), WRONG)
def test_a_wrong_field_is_named(file: Path, change: Any, problem: str) -> None:
    baseline(row("tone", BEFORE)).write(file)
    edited(file, change)
    with pytest.raises(BaselineError) as caught:
        Baseline.read(file)
    assert [found for found in caught.value.problems if found.startswith(problem)]
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file. Measure it: arbiter eval baseline SUITE."),
        (b"", "is not JSON: Expecting value"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "expected a mapping, got list."),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "agentId: Field required."),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(file: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BaselineError) as caught:
        Baseline.read(file)
    assert caught.value.problems[0].startswith(problem)


def test_a_file_of_means_is_read(file: Path) -> None:
    """A byte-order mark is taken; other keys of such files are ignored."""
    file.write_text(json.dumps({**MEANS, "judge": "openai:gpt-5-mini"}), encoding="utf-8-sig")
    found = Baseline.read(file)
    assert (found.agent_id, found.is_means_only, found.dimensions) == ("ilka", True, {"fluency": 8.3})
    assert compared(run(row("fluency", [7.0] * 4)), found).exit_code == 1


def test_an_agents_baseline_keeps_its_dimensions_beside_the_rows(file: Path) -> None:
    measured = run(row("fluency", dict(cases(BEFORE)), is_sampled=True))
    Baseline.of(
        measured,
        captured_at=CAPTURED,
        agent_id="ilka",
        dimensions={"fluency": 6.9},
        proposition_scores={"varied": 7},
    ).write(file)
    data = json.loads(file.read_text(encoding="utf-8"))
    assert (data["agentId"], data["dimensions"], data["propositionScores"]) == (
        "ilka",
        {"fluency": 6.9},
        {"varied": 7},
    )
    assert Baseline.read(file).rows["fluency"].is_sampled


@pytest.mark.lengthy
def test_the_first_failure_behind_a_new_baseline_says_so(file: Path) -> None:
    """The luck of a baseline stays in it. The hint is about this run alone, so it is no part of the results."""

    def right(run: CaseRun) -> float:
        return float(run.output)

    suite = Suite("luck", [Case(f"c{n}", n) for n in range(6)], scorers=[right])
    folder = file.parent / "evals"

    def measured(share: float, **options: Any) -> Report:
        return suite.run({case.id: share for case in suite.cases}, folder=folder, **options)

    measured(0.5).save_baseline(file)
    edited(file, lambda data: data.update(capturedAt="2026-01-31T00:00:00Z"))
    hint = "this is the first run since the baseline was replaced, and the one before passed"
    for best, now, is_said in [(None, 0.5, False), (0.9, 0.5, True), (None, 0.5, False), (0.4, 0.5, False)]:
        if best is not None:
            measured(best).save_baseline(file, update=True)
            moment = {"capturedAt": f"2026-02-0{best * 10:.0f}T00:00:00Z"}
            edited(file, partial(dict.update, **moment))
        report = measured(now, baseline=file)
        assert (hint in " ".join(report.printed().split())) == is_said, (best, now)
        assert hint not in json.dumps({**report.to_dict(), "timing": {}})


class Shorter:
    """A scorer with an argument. It notes what it has seen in another one."""

    name = "short"

    def __init__(self, limit: int, seen: list[Any]) -> None:
        self._limit = limit
        self.seen = seen

    def score(self, run: CaseRun) -> bool:
        self.seen.append(run.output)
        return int(run.output) < self._limit


def test_a_row_belongs_to_the_arguments_of_its_scorer(file: Path) -> None:
    """Another limit is another question. A list that it fills while it judges changes nothing."""

    def measured(scorer: Shorter) -> Report:
        cases = [Case(f"case-{n}", n) for n in range(3)]
        return Suite("s", cases, scorers=[scorer]).run(
            echo, folder=None, baseline=file if file.exists() else None
        )

    first = Shorter(5, [])
    measured(first).save_baseline(file)
    for same in (first, Shorter(5, [])):
        assert measured(same).comparison.rows["short"].verdict == "steady"
    other = measured(Shorter(4, [])).comparison
    assert (other.rows["short"].verdict, other.exit_code) == ("incomparable", 5)
    assert "short changed: version" in other.rows["short"].reason


class Keeper:
    """A scorer that keeps its argument, and that can be compared with nothing."""

    name = "keeper"
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, given: Any = None, api_key: str = "", folder: str = "") -> None:
        self.given = given
        self.api_key = api_key
        self.folder = folder

    def __eq__(self, other: object) -> bool:
        raise TypeError("ask me not")

    def score(self, run: CaseRun) -> bool:
        return True


class WithLock(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: Any


def keeper_of(kind: str) -> Keeper:
    found = Keeper({"list": [], "lock": [WithLock(lock=Lock())], "object": {}}[kind])
    if kind == "list":
        found.given.append(found.given)
    elif kind == "object":
        found.given["owner"] = [found]
    return found


@pytest.mark.parametrize("kind", ["list", "lock", "object"])
def test_an_argument_without_a_finite_form_changes_nothing(kind: str, file: Path) -> None:
    """A list that holds itself, a lock and an object that leads back to the scorer."""
    suite = Suite("s", [Case(f"case-{n}", n) for n in range(3)], scorers=[keeper_of(kind)])
    suite.run(echo, folder=None).save_baseline(file)
    for _ in range(2):
        again = replace(suite, scorers=[keeper_of(kind)]).run(echo, folder=None, baseline=file)
        assert again.comparison.rows["keeper"].verdict == "steady"


def test_a_row_is_that_of_another_machine(file: Path, tmp_path: Path) -> None:
    """The key of a provider and an absolute path are others there; a command is no path."""

    def verdict(scorer: Keeper) -> str:
        suite = Suite("s", [Case(f"case-{n}", n) for n in range(3)], scorers=[scorer])
        return suite.run(echo, folder=None, baseline=file).comparison.rows["keeper"].verdict

    first = Keeper("/help", "sk-1", str(tmp_path / "one"))
    Suite("s", [Case(f"case-{n}", n) for n in range(3)], scorers=[first]).run(
        echo, folder=None
    ).save_baseline(file)
    assert verdict(Keeper("/help", "unused", str(tmp_path / "two"))) == "steady"
    assert verdict(Keeper("/quit", "sk-1", str(tmp_path / "one"))) == "incomparable"
