"""Arms are compared over pairs of environments, and as in the paper."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from math import inf
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ConfigurationError
from arbiter.experiments import MetricComparison, verify_table1
from arbiter.experiments.comparing import compared
from arbiter.experiments.picture import forest
from arbiter.experiments.table1 import signed
from arbiter.statistics import p_text
from tests.experiments.experiment_support import experiment
from tests.support import Lazy

scipy_stats = Lazy("scipy.stats")
ARMS = ("treatment", "control")


def comparison(treatment: Any, control: Any, **known: Any) -> MetricComparison:
    [row] = compared(ARMS, {"fluency": treatment}, {"fluency": control}, **known)
    return row


def published(experiment: str) -> list[MetricComparison]:
    """The comparisons of the scores that the authors of the paper published."""
    [found] = [each for each in verify_table1().experiments if each.id == experiment]

    def environments(scores: tuple[int, ...], size: int) -> list[list[float]]:
        return [[float(score) for score in scores[at : at + size]] for at in range(0, len(scores), size)]

    arms = [
        {row.metric: environments(getattr(row, arm), row.group_size) for row in found.rows} for arm in ARMS
    ]
    return list(compared(ARMS, *arms))


def test_the_published_scores_of_experiment_3_give_both_tests() -> None:
    rows = {row.label: row for row in published("3")}
    shown = {
        name: (
            signed(row.paired.mean),
            f"[{signed(row.paired.interval.low)}, {signed(row.paired.interval.high)}]",
            p_text(row.p),
            p_text(row.welch.p) + "*" * row.starred,
            signed(row.d),
        )
        for name, row in rows.items()
        if row.paired and row.p is not None and row.welch and row.d is not None
    }
    assert shown == {
        "Persona Adherence": ("+0.47", "[+0.09, +0.85]", "0.020", "0.015*", "+0.32"),
        "Self-consistency": ("+0.98", "[+0.48, +1.49]", "<0.001", "<0.001*", "+0.48"),
        "Fluency": ("−0.11", "[−0.38, +0.16]", "0.450", "0.454", "−0.10"),
        "Divergence": ("−0.13", "[−0.91, +0.66]", "0.827", "0.849", "−0.06"),
    }
    assert [row.adjusted for row in rows.values()] == pytest.approx(
        [3 * rows["Persona Adherence"].p, 4 * rows["Self-consistency"].p, *[2 * rows["Fluency"].p] * 2]  # type: ignore[operator]
    )


@pytest.mark.lengthy
def test_the_primary_test_counts_environments_and_not_agents() -> None:
    """Five agents of one conversation that were all better are one observation."""
    treatment = [[9.0] * 5, [5.0] * 5, [7.0] * 5]
    control = [[5.0] * 5, [5.0] * 5, [6.0] * 5]
    row = comparison(treatment, control)
    assert (row.differences, row.p) == ((4.0, 0.0, 1.0), 2 / 4)
    assert row.welch is not None
    assert row.welch.p == pytest.approx(
        scipy_stats.ttest_ind(row.treatment, row.control, equal_var=False).pvalue
    )
    assert row.starred


def test_pairs_with_a_missing_environment_are_dropped() -> None:
    row = comparison([[5.0], [], [7.0], [8.0]], [[4.0], [4.0], [], [4.0]])
    assert (row.differences, row.dropped) == ((1.0, 4.0), 2)
    assert (len(row.treatment), len(row.control)) == (3, 3)


def test_thirds_cancel() -> None:
    row = comparison([[7.0, 6.0, 6.0], [5.0]], [[6.0, 6.0, 7.0], [5.0]])
    assert (row.differences, row.p) == ((0.0, 0.0), 1.0)


@pytest.mark.parametrize(
    ("treatment", "control", "expected"),
    [
        ([[5.0], [5.0]], [[5.0], [5.0]], (1.0, 0.0)),
        ([[6.0], [6.0]], [[5.0], [5.0]], (0.0, inf)),
        ([[6.0], [7.0]], [[5.0], [5.0]], (pytest.approx(0.2048328), pytest.approx(3.0))),
    ],
)
def test_scores_without_variance(treatment: Any, control: Any, expected: Any) -> None:
    row = comparison(treatment, control)
    assert row.welch is not None
    assert (row.welch.p, row.d) == expected


def test_too_few_scores_are_not_testable() -> None:
    row = comparison([[5.0]], [[4.0]])
    assert (row.p, row.welch, row.untested) == (None, None, "not testable: an arm has fewer than 2 scores")
    assert row.difference == 1.0
    assert comparison([[]], [[]]).difference is None


def test_more_pairs_than_can_be_flipped_are_tested_by_t() -> None:
    treatment, control = [[float(n % 7)] for n in range(1_100)], [[float(n % 5)] for n in range(1_100)]
    row = comparison([[score[0] + 0.01] for score in treatment], control)
    assert row.paired is not None
    assert row.p == row.paired.p


def test_without_tests_only_means_are_left() -> None:
    row = comparison([[5.0], [6.0]], [[4.0], [4.0]], untested="incomplete: budget")
    assert (row.p, row.welch, row.d, row.adjusted, row.difference) == (None, None, None, None, 1.5)


# Pictures and files -------------------------------------------------------------------------------


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_has_a_mark_and_numbers_for_each_metric() -> None:
    svg = forest(published("3"))
    assert svg.count("<circle") == 4
    assert "+0.98 [+0.48, +1.49]  p <0.001" in texts(svg)
    places = [float(part.split('"')[0]) for part in svg.split('<circle cx="')[1:]]
    assert places[1] > places[0] > places[3]


def test_the_picture_says_why_a_metric_has_no_mark() -> None:
    row = comparison([[5.0], [6.0]], [[4.0], [4.0]], untested="treatment_not_exercised: arm 'a<b>': why")
    svg = forest([row])
    assert "<circle" not in svg
    assert "treatment_not_exercised" in texts(svg)
    assert "all differences are equal" in texts(forest([comparison([[5.0], [5.0]], [[4.0], [4.0]])]))
    assert texts(forest([]))


def test_the_picture_is_xml_whatever_the_arms_are_called() -> None:
    rows = compared(("a\x00b", "<c>"), {"fluency": [[5.0], [6.0]]}, {"fluency": [[4.0], [4.0]]})
    other = compared(("a\x00b", "d"), {"fluency": [[5.0], [6.0]]}, {"fluency": [[4.0], [4.0]]})
    assert r"Fluency (a\u0000b − <c>)" in texts(forest([*rows, *other]))


@pytest.mark.lengthy
def test_a_result_is_written_by_the_ending_of_its_file(tmp_path: Path) -> None:
    result = experiment(metrics=["fluency"], scale=0.1).run(folder=None)
    assert "judge uncalibrated" in texts(result.picture())
    for ending, begins in ((".json", "{"), (".md", "```text\ntea"), (".txt", "tea"), (".svg", "<svg")):
        assert result.write(tmp_path / f"result{ending}").read_text().startswith(begins)
    with pytest.raises(ConfigurationError, match=r"expected one of \.json, \.md, \.txt, \.svg"):
        result.write(tmp_path / "result.png")
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        result.write(tmp_path / "nowhere/result.md")
