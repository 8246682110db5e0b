"""The meaning of the return value of a scorer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from arbiter.errors import ConfigurationError
from arbiter.harness import Case, CaseRun, Score, Suite
from arbiter.harness.reports.report import load_report
from arbiter.harness.scores import failed, scores_of
from tests.scripted import Scripted


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, Score("tone", 1.0, True)),
        (False, Score("tone", 0.0, False)),
        (0.4, Score("tone", 0.4)),
        (1, Score("tone", 1.0)),
        ("rude", Score("tone", label="rude")),
        (None, Score("tone", outcome="not_applicable")),
        (Score("", 0.5, reason="so so"), Score("tone", 0.5, reason="so so")),
    ],
)
def test_the_type_of_the_return_value_decides_its_meaning(answer: object, expected: Score) -> None:
    assert scores_of("tone", answer) == (expected,)


def test_a_mapping_gives_several_scores_on_the_scale_of_the_scorer() -> None:
    both = scores_of("style", {"a": True, "b": 3}, scale=(0, 9))
    assert both == (Score("style.a", 1.0, True), Score("style.b", 3.0, scale=(0, 9)))


def test_a_list_of_scores_gives_several() -> None:
    found = scores_of("style", [Score("brief", 0.5), Score("style.kind", 1.0)])
    assert [(score.name, score.value) for score in found] == [("style.brief", 0.5), ("style.kind", 1.0)]


class Vector:
    """Several numbers, as numpy and torch have them."""

    def __float__(self) -> float:
        raise TypeError("only vectors of one number are numbers")


UNTYPED: Any = Score
"""A score, as code without types makes it."""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (object(), "returned object"),
        (Score("tone", 11, scale=(0, 9)), "outside of its scale 0 to 9"),
        (1.5, "outside of its scale 0 to 1; return a Score with its own scale"),
        (Score("tone"), "neither a value nor a label"),
        (UNTYPED(0.7), "expected a name, then a value"),
        (Score("tone", 0.5, outcome="timeout"), "expected one"),
        (Score("tone", 0.5, passed=1), "expected True, False or None"),  # type: ignore[arg-type]
        ({}, "empty mapping"),
        ({1: 0.5}, "a score named 1"),
        (Score("tone", label=object()), "has a label of type object"),  # type: ignore[arg-type]
        (Score("tone", 0.5, reason=3), "has a reason of type int"),  # type: ignore[arg-type]
        (Score("tone", 0.5, votes=("a",)), "in votes or raw"),  # type: ignore[arg-type]
        (Score("tone", 0.5, raw=float("nan")), "in votes or raw"),
        (Score("tone", 0.5, usage={"calls": object()}), "has a usage that is not JSON"),
        (Score("tone", 0.5, used_for_control=cast(Any, object())), "has a used_for_control that is not JSON"),
        (UNTYPED("tone", 0.5, scale=(0.5, 0.5)), "the lower one first"),
        (UNTYPED("tone", 0.5, node=object()), "has a node of type object"),
        (UNTYPED("tone", 0.5, votes=iter([0.5])), "has votes of type"),
        (UNTYPED("tone", 0.5, elements=5), "has elements of type int"),
        (Score("tone", 0.5, elements=(("a", float("nan")),)), "has elements that are not JSON"),
        (Score("tone", 0.5, propositions={"a": float("nan")}), "has propositions that are not JSON"),
        (Score("tone", 0.5, duration=float("nan")), "has a duration that is not JSON"),
        (Score("tone", 0.5, usage={"calls": 1, 2: 3}), "has a usage that is not JSON"),  # type: ignore[dict-item]
        (10**400, "cannot be read"),
        (Fraction(10**400), "cannot be read"),
        (Vector(), "returned Vector, which cannot be read: TypeError: only vectors of one number"),
        (Score("tone", 0.5, scale=None), "returned Score, which cannot be read"),  # type: ignore[arg-type]
    ],
)
def test_a_score_that_breaks_a_rule_is_an_error_and_no_number(answer: Any, said: str) -> None:
    (score,) = scores_of("tone", answer)
    assert (score.outcome, score.value) == ("error", None)
    assert said in score.reason


def same(given: Any) -> Any:
    return given


@pytest.mark.parametrize("kind", [np.float32, np.int64, Fraction, int])
def test_numbers_of_other_kinds_in_a_score_are_written(kind: Any, tmp_path: Path) -> None:
    def scorer(run: CaseRun) -> Score:
        return Score("tone", kind(1), raw=kind(2), votes=(kind(1), kind(1)))

    report = Suite("kinds", [Case("a", 1)], scorers={"tone": scorer}).run(same, folder=tmp_path)
    (score,) = report.results[0].scores
    assert (score.value, score.raw, score.votes) == (1.0, 2.0, (1.0, 1.0))
    assert {type(each) for each in (score.raw, *score.votes)} == {int if kind is int else float}


def test_a_score_without_a_name_that_is_a_text_ends_no_run() -> None:
    (score,) = scores_of("style", [UNTYPED(5, 0.5)])
    assert (score.name, score.value) == ("style.5", 0.5)


def test_an_item_and_a_version_may_be_numbers() -> None:
    (score,) = scores_of("tone", UNTYPED("tone", 0.5, item_id=7, version=3))
    assert (score.value, score.item_id, score.version) == (0.5, "7", "3")


def test_a_report_is_the_same_after_it_is_read_whatever_kind_of_numbers_a_scale_has(tmp_path: Path) -> None:
    def scorer(run: CaseRun) -> Score:
        return Score("tone", 1, scale=(0, 1))

    report = Suite("kinds", [Case("a", 1)], scorers={"tone": scorer}).run(same, folder=tmp_path)
    again = load_report(tmp_path / report.run_id)
    assert again.to_json().partition('"timing"')[0] == report.to_json().partition('"timing"')[0]


def test_only_a_timeout_counts_as_a_timeout() -> None:
    assert failed("tone", TimeoutError("no answer within 30 s")).outcome == "timeout"
    assert failed("tone", ValueError("boom")) == Score("tone", outcome="error", reason="ValueError: boom")


def written(given: Any) -> str:
    return str(given)


def test_a_suite_in_python_takes_the_entries_of_files_and_the_models_that_they_name() -> None:
    kind = {"use": "judge", "rubric": "It is kind.", "judge": "main"}

    def own(run: CaseRun) -> float:
        return 0.5

    scorers: dict[str, Any] = {"right": {"use": "equals"}, "kind": kind, "own": own}
    suite = Suite(
        "refunds",
        [Case("a", 1, expected="1"), Case("b", 2, expected="3")],
        scorers=scorers,
        models={"main": Scripted(answers=['{"reasoning": "So so.", "score": 7}'])},
    )
    report = replace(suite, repeats=1).run(written, folder=None)
    means = {name: report.rows[name].mean for name in ("right", "kind", "own")}
    assert means == {"right": 0.5, "kind": pytest.approx(0.7), "own": 0.5}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scorers": [{"name": "a", "use": "equal"}]}, "Did you mean 'equals'"),
        ({"scorers": {"a": {"use": "judge", "rubrik": "x"}}}, "'a': .*rubrik: .*Did you mean 'rubric'"),
        ({"scorers": {"a": {"name": "b", "use": "equals"}}}, "'a' has the name 'b' in its entry"),
        ({"scorers": [{"name": "a", "use": "matches", "pattern": "("}]}, "^the scorer 'a': "),
        ({"models": {"main": Scripted(answers=[])}}, "models has 'main', which no scorer names"),
        ({"models": "openai:gpt"}, "expected chat models by name"),
    ],
)
def test_a_wrong_entry_of_a_scorer_is_refused_when_the_suite_is_made(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Suite("refunds", [Case("a", 1)], **options)


class Table(dict[str, float]):
    """A scorer that is a mapping from outputs to scores."""

    name = "table"

    def score(self, run: CaseRun) -> float:
        return self[str(run.output)]


class Own:
    """A scorer with parts that are called as those of a built-in one."""

    name = "own"
    entry = SimpleNamespace(judge=["anything"])

    def score(self, run: CaseRun) -> float:
        return 0.5


@pytest.mark.parametrize("scorer", [Table({"1": 0.5}), Own()])
def test_a_scorer_of_a_users_own_is_no_entry(scorer: Any) -> None:
    by_name = {scorer.name: scorer}
    for scorers in ([scorer], by_name):
        report = Suite("refunds", [Case("a", 1)], scorers=scorers).run(written, folder=None)
        assert report.rows[scorer.name].mean == 0.5
