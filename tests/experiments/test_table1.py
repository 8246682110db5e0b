"""Table 1 is recomputed from raw scores: every printed cell, and every test that its authors stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from arbiter.errors import ConfigurationError
from arbiter.experiments import Table1, verify_table1
from tests.cli.cli_support import refused, typed
from tests.support import Lazy

SCORES = json.loads(
    (files("arbiter.experiments") / "data" / "table1_scores.json").read_text(encoding="utf-8")
)
scipy_stats = Lazy("scipy.stats")
METRICS = [
    (id, name)
    for id, experiment in SCORES["experiments"].items()
    if experiment["in_table1"]
    for name in ("adherence", "consistency", "fluency", "convergence", "ideas_quantity")
    if name in experiment["metrics"]
]
EVERY = [(id, name) for id, experiment in SCORES["experiments"].items() for name in experiment["metrics"]]
"""Also those that the paper does not print."""


@pytest.fixture(scope="module")
def table() -> Table1:
    return verify_table1()


def changed(folder: Path, change: Callable[[Any], object]) -> Path:
    data = json.loads(json.dumps(SCORES))
    change(data)
    file = folder / "scores.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


def test_every_cell_agrees(table: Table1) -> None:
    """133 of 133, and 15 stars: Exp 1 Divergence is starred, because its unrounded p is 0.0496."""
    assert (table.agreeing, table.cells, table.stars, table.problems) == (133, 133, 15, ())
    assert table.rows[3].recomputed == ("6.15", "1.08", "6.63", "1.05", "-0.47", "0.050", "*")


@pytest.mark.parametrize(("experiment", "metric"), METRICS)
def test_a_row_is_that_of_scipy(table: Table1, experiment: str, metric: str) -> None:
    (row,) = (row for row in table.rows if (row.experiment, row.metric) == (experiment, metric))
    theirs: Any = scipy_stats.ttest_ind(row.treatment, row.control, equal_var=False)
    assert row.test.p == pytest.approx(float(theirs.pvalue), rel=1e-9)
    assert row.d == pytest.approx(
        SCORES["experiments"][experiment]["metrics"][metric]["stored_test"]["effect_size"]
    )


@pytest.mark.lengthy
def test_the_screen(table: Table1) -> None:
    """Those of debate-controversial are its last lines."""
    assert typed("experiment", "verify").rstrip("\n") == table.text()
    lines = table.text().splitlines()
    assert lines[:2] == [
        "Table 1 of arXiv:2507.09788, recomputed from raw scores",
        "(microsoft/TinyTroupe 8378a113, files of 2025-06-18)",
    ]
    assert [line.rstrip() for line in lines[-8:]] == [
        " 3   debate-controversial   N_a 120 · N_e 24 · treatment AC",
        "                       T: mean (sd)   C: mean (sd)   Δ       p-value   d       n T/C     cells",
        " Persona Adherence     6.63 (1.34)    6.16 (1.59)    +0.47   0.015*    +0.32   120/120   7/7",
        " Self-consistency      6.79 (1.63)    5.81 (2.37)    +0.98   <0.001*   +0.48   120/120   7/7",
        " Fluency               6.38 (1.20)    6.48 (1.04)    −0.11   0.454     −0.10   120/120   7/7",
        " Divergence            4.92 (2.24)    5.04 (2.29)    −0.13   0.849     −0.06   24/24     7/7",
        "",
        "133 of 133 cells agree (19 rows, 15 starred).",
    ]


def test_the_result_as_json() -> None:
    data = json.loads(typed("experiment", "verify", "--format", "json"))
    assert (data["agreeing"], data["cells"], data["stars"], len(data["rows"])) == (133, 133, 15, 19)
    assert "--format is 'html'; expected one of table, json" in refused(
        "experiment", "verify", "--format", "html"
    )


@pytest.mark.parametrize(
    ("experiment", "metric", "t_test", "flip"),
    [
        ("1", "convergence", 0.068, 0.084),
        ("2.1", "convergence", 0.013, 0.017),
        ("3", "adherence", 0.019, 0.020),
        ("2.2", "adherence", 0.006, 0.007),
    ],
)
def test_environments_as_pairs(
    table: Table1, experiment: str, metric: str, t_test: float, flip: float
) -> None:
    (row,) = (row for row in table.rows if (row.experiment, row.metric) == (experiment, metric))
    found = row.sensitivity
    assert found is not None
    assert (found.test.p, found.flip) == pytest.approx((t_test, flip), abs=5e-4)


@pytest.mark.lengthy
def test_the_other_stars_survive_pairing_and_two_rows_cannot_be_paired(table: Table1) -> None:
    known = {("1", "convergence"), ("2.1", "convergence"), ("3", "adherence"), ("2.2", "adherence")}
    alone = [(row.experiment, row.metric) for row in table.rows if row.sensitivity is None]
    assert alone == [("1", "ideas_quantity"), ("2.1", "ideas_quantity")]
    others = [
        row.sensitivity for row in table.rows if row.starred and (row.experiment, row.metric) not in known
    ]
    assert all(max(found.test.p, found.flip) < 0.003 for found in others if found is not None)
    text = typed("experiment", "verify", "--sensitivity")
    assert "−0.475 [−0.99, +0.04]       paired t 0.068   sign-flip 0.084   table 0.050*" in text
    assert " 1    Ideas Qty.           cannot be paired: 39 and 40 environments have a score" in text


@pytest.mark.parametrize(
    ("experiment", "metric", "arm"),
    [(*each, arm) for each, arm in zip(EVERY, cycle(["treatment", "control"]), strict=False)],
)
def test_a_single_changed_score_is_found(tmp_path: Path, experiment: str, metric: str, arm: str) -> None:
    """One integer of 200, by one: no printed cell need show it, but the stored tests do. The row is named."""

    def change(data: Any) -> None:
        scores = data["experiments"][experiment]["metrics"][metric][arm]
        scores[len(scores) // 2] += 1

    (where,) = {problem.partition(": ")[0] for problem in verify_table1(changed(tmp_path, change)).problems}
    assert where.startswith(f"experiment {experiment}, ")


@pytest.mark.parametrize("number", ["Na", "Ne", "group_size"])
def test_a_changed_number_of_agents_or_environments_is_found(tmp_path: Path, number: str) -> None:
    file = changed(tmp_path, lambda data: data["experiments"]["2.2"].update({number: 25}))
    (problem,) = verify_table1(file).problems
    assert problem.startswith("experiment 2.2: Na is ")


@pytest.mark.lengthy
def test_a_changed_score_fails_the_command(tmp_path: Path) -> None:
    file = changed(
        tmp_path, lambda data: data["experiments"]["3"]["metrics"]["fluency"]["control"].__setitem__(0, 0)
    )
    text = typed("experiment", "verify", "--data", str(file), code=1)
    assert "experiment 3, Fluency: C sd is 1.19, printed is 1.04" in text
    assert "of 133 cells agree" in text.splitlines()[-1]


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda data: data["experiments"]["1"]["metrics"].pop("fluency"),
        "the scores of 1.fluency are missing.",
    ),
    (
        lambda data: data["experiments"]["1"]["metrics"]["fluency"].update(control=[7.5, 7]),
        "experiments.1.metrics.fluency.control.0: Input should be a valid integer",
    ),
    (lambda data: data.pop("provenance"), "provenance: Field required"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG)
def test_data_of_another_form_is_refused(tmp_path: Path, change: Any, problem: str) -> None:
    file = changed(tmp_path, change)
    with pytest.raises(ConfigurationError) as caught:
        verify_table1(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert problem in str(caught.value)


@pytest.mark.lengthy
def test_scores_without_variance_are_json_and_names_cannot_move_the_terminal(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        debate = data["experiments"]["3"]
        debate["scenario"] = "debate\x1b[2J"
        debate["metrics"]["fluency"].update(treatment=[5] * 120, control=[4] * 120)

    file = str(changed(tmp_path, change))
    shown = json.loads(typed("experiment", "verify", "--data", file, "--format", "json", code=1))
    (row,) = [each for each in shown["rows"] if (each["experiment"], each["metric"]) == ("3", "fluency")]
    assert (row["t"], row["d"], row["p"]) == ("inf", "inf", 0.0)
    assert r"debate\u001b[2J" in typed("experiment", "verify", "--data", file, code=1)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused("experiment", "verify", "--data", str(tmp_path / "none.json"))
