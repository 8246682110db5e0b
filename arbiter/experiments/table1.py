"""Table 1 of arXiv:2507.09788, recomputed from raw scores.

    scores (integers) ─▶ means, sds, Welch, d ─▶ seven cells a row ─▶ compared with the printed cells
                                             └▶ compared with the tests that the authors stored

A row has seven printed cells: mean and sd of treatment (T) and control (C), Δ = T - C, p, and a star for an
unrounded p <= 0.05. A printed cell cannot show that one score of 200 changed; the stored tests can. Metrics that
the paper does not print have stored tests, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arbiter.errors import ConfigurationError
from arbiter.models import visible
from arbiter.statistics import (
    Interval,
    PairedTest,
    WelchTest,
    cohen_d,
    half_up,
    p_text,
    paired,
    sign_flip,
    welch,
)

LABELS: Mapping[str, str] = {
    "adherence": "Persona Adherence",
    "consistency": "Self-consistency",
    "fluency": "Fluency",
    "convergence": "Divergence",
    "ideas_quantity": "Ideas Qty.",
}
"""The metrics of the table in its order, with its names for them."""
CELLS = ("T mean", "T sd", "C mean", "C sd", "Δ", "p", "star")
COLUMNS = (
    ("", 20),
    ("T: mean (sd)", 13),
    ("C: mean (sd)", 13),
    ("Δ", 6),
    ("p-value", 8),
    ("d", 6),
    ("n T/C", 8),
)
"""The columns of a printed table, and their widths."""
ALPHA = 0.05
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """A row tested over environments instead of agents: each environment of T with that of C in file order.

    The order was inferred. `test` is the paired t test, `flip` the two-sided p of the exact sign-flip test.
    """

    test: PairedTest
    flip: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Row:
    """One row of the table, with its raw scores and its printed cells.

    `printed` has the texts of `CELLS`; the last is "*" or "". It is empty for a metric that the paper does not
    print. `stored` has the p, t, df and d that the authors stored with the scores.
    """

    experiment: str
    metric: str
    treatment: tuple[int, ...]
    control: tuple[int, ...]
    group_size: int
    printed: tuple[str, ...]
    stored: Mapping[str, float]

    @property
    def label(self) -> str:
        return LABELS.get(self.metric, self.metric)

    @property
    def test(self) -> WelchTest:
        """Welch's test of all scores, as in the paper."""
        return welch(self.treatment, self.control)

    @property
    def d(self) -> float:
        """Cohen's d, with the pooled standard deviation."""
        return cohen_d(self.treatment, self.control)

    @property
    def starred(self) -> bool:
        return self.test.p <= ALPHA

    @property
    def recomputed(self) -> tuple[str, ...]:
        """The seven cells as the table would print them."""
        test, arms = self.test, [paired(scores) for scores in (self.treatment, self.control)]
        numbers = [f"{half_up(number, 2):.2f}" for arm in arms for number in (arm.mean, arm.sd)]
        return (*numbers, f"{half_up(test.difference, 2):+.2f}", p_text(test.p), "*" if self.starred else "")

    @property
    def agreeing(self) -> int:
        """How many of the seven cells are those of the paper."""
        return sum(ours == theirs for ours, theirs in zip(self.recomputed, self.printed, strict=True))

    @property
    def problems(self) -> tuple[str, ...]:
        """The differences from the paper and from the stored test, a sentence each."""
        where = f"experiment {self.experiment}, {self.label}"
        cells = zip(CELLS, self.recomputed, self.printed, strict=True) if self.printed else ()
        found = [
            f"{where}: {cell} is {ours or 'none'}, printed is {theirs or 'none'}"
            for cell, ours, theirs in cells
            if ours != theirs
        ]
        ours = {"p": self.test.p, "t": self.test.t, "df": self.test.df, "d": self.d}
        return (
            *found,
            *(
                f"{where}: {name} is {ours[name]:.6g}, and {stored:.6g} was stored with the scores"
                for name, stored in self.stored.items()
                if not math.isclose(ours[name], stored, rel_tol=_CLOSE, abs_tol=1e-300)
            ),
        )

    @property
    def sensitivity(self) -> Sensitivity | None:
        """The row over environments; None if the arms have scores of different environments."""
        first, second = (self._environments(scores) for scores in (self.treatment, self.control))
        if len(first) != len(second):
            return None
        differences = [a - b for a, b in zip(first, second, strict=True)]
        return Sensitivity(test=paired(differences), flip=sign_flip(differences, alternative="two-sided").p)

    def _environments(self, scores: Sequence[int]) -> list[float]:
        return [
            fmean(scores[start : start + self.group_size]) for start in range(0, len(scores), self.group_size)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Experiment:
    """One experiment of the authors: its scenario, numbers of agents and environments, treatment, and rows.

    `unprinted` has the metrics that are not in the paper. An experiment without rows is not in it at all.
    """

    id: str
    scenario: str
    treatment: str
    agents: int
    environments: int
    group_size: int
    rows: tuple[Table1Row, ...]
    unprinted: tuple[Table1Row, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """The differences of its numbers from one another, from the paper and from the stored tests."""
        found = [problem for row in (*self.rows, *self.unprinted) for problem in row.problems]
        where = f"experiment {self.id}"
        if self.agents != self.environments * self.group_size:
            found.append(
                f"{where}: Na is {self.agents}, and {self.environments} environments of {self.group_size} agents "
                f"have {self.environments * self.group_size}"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1:
    """Table 1, recomputed. `source` names repository, commit and date of the scores.

    `unpublished` has the experiments whose scores are there and which the paper does not print.
    """

    source: str
    experiments: tuple[Table1Experiment, ...]
    unpublished: tuple[Table1Experiment, ...]

    @property
    def rows(self) -> tuple[Table1Row, ...]:
        return tuple(row for experiment in self.experiments for row in experiment.rows)

    @property
    def agreeing(self) -> int:
        """The number of cells that agree with the paper, of `cells`."""
        return sum(row.agreeing for row in self.rows)

    @property
    def cells(self) -> int:
        return len(self.rows) * len(CELLS)

    @property
    def stars(self) -> int:
        return sum(row.starred for row in self.rows)

    @property
    def problems(self) -> tuple[str, ...]:
        """All differences from the paper and from the stored tests, a sentence each; empty if all agree."""
        return tuple(problem for each in (*self.experiments, *self.unpublished) for problem in each.problems)

    def text(self, *, sensitivity: bool = False) -> str:
        """The table for a terminal."""
        lines = list(self._lines())
        if sensitivity:
            lines += [*self._sensitivity(), ""]
        return "\n".join(map(visible, [*lines, *self.problems, self.summary]))

    @property
    def summary(self) -> str:
        return f"{self.agreeing} of {self.cells} cells agree ({len(self.rows)} rows, {self.stars} starred)."

    def to_dict(self) -> dict[str, Any]:
        """The table in its JSON form."""
        return {
            "source": self.source,
            "agreeing": self.agreeing,
            "cells": self.cells,
            "stars": self.stars,
            "problems": list(self.problems),
            "rows": [_row_data(row) for row in self.rows],
        }

    def _lines(self) -> Iterator[str]:
        yield "Table 1 of arXiv:2507.09788, recomputed from raw scores"
        yield f"({self.source})"
        head = " " + "  ".join(f"{name:<{width}}" for name, width in COLUMNS) + "  cells"
        for each in self.experiments:
            counts = f"N_a {each.agents} · N_e {each.environments} · treatment {each.treatment}"
            yield from ("", f" {each.id:<3} {each.scenario}   {counts}", head)
            for row in each.rows:
                t_mean, t_sd, c_mean, c_sd, _, p, star = row.recomputed
                n = f"{len(row.treatment)}/{len(row.control)}"
                delta = signed(row.test.difference)
                yield (
                    f" {row.label:<20}  {f'{t_mean} ({t_sd})':<13}  {f'{c_mean} ({c_sd})':<13}  "
                    f"{delta:<6}  {p + star:<8}  {signed(row.d):<6}  {n:<8}  {row.agreeing}/{len(CELLS)}"
                )
        yield ""

    def _sensitivity(self) -> Iterator[str]:
        yield "Environments as pairs in file order (the order was inferred): Δ [95 %], p of the paired t test and of"
        yield "the exact sign-flip test, beside the p of the table"
        for row in self.rows:
            name = f" {row.experiment:<4} {row.label:<20}"
            found = row.sensitivity
            if found is None:
                counts = f"{len(row.treatment)} and {len(row.control)} environments"
                yield f"{name} cannot be paired: {counts} have a score"
                continue
            delta = f"{signed(found.test.mean, 3)} {interval_text(found.test.interval)}"
            tests = f"paired t {p_text(found.test.p):<6}  sign-flip {p_text(found.flip):<6}"
            yield f"{name} {delta:<26}  {tests}  table {row.recomputed[5]}{row.recomputed[6]}"


def verify_table1(scores: str | Path | None = None) -> Table1:
    """Recompute Table 1 from the scores that ship with Arbiter, or from another file of that form.

    `problems` of the result is empty if all 133 cells agree, and all tests with those that the authors
    stored.
    Raises `ConfigurationError` for a file without such data.
    """
    data = files("arbiter.experiments") / "data"
    text = _read(data / "table1_scores.json" if scores is None else Path(scores))
    printed = json.loads((data / "table1_published.json").read_text(encoding="utf-8"))["table1"]
    try:
        file = _Scores.model_validate_json(text)
    except ValidationError as error:
        where = str(scores or "table1_scores.json")
        problems = [
            f"{where}: {'.'.join(map(str, each['loc'])) or 'JSON'}: {each['msg']}." for each in error.errors()
        ]
        raise ConfigurationError("\n".join(problems)) from None
    if missing := [
        f"{id}.{metric}" for id, rows in printed.items() for metric in rows if metric not in file.metrics(id)
    ]:
        raise ConfigurationError(f"{scores}: the scores of {', '.join(missing)} are missing.")
    origin = file.provenance
    return Table1(
        source=f"{origin.repo} {origin.commit[:8]}, files of {origin.files_last_changed_on}",
        experiments=tuple(_experiment(id, file.experiments[id], rows) for id, rows in printed.items()),
        unpublished=tuple(
            _experiment(id, each, {}) for id, each in file.experiments.items() if id not in printed
        ),
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Stored(_Strict):
    p_value: float
    t_statistic: float
    degrees_of_freedom: float
    effect_size: float


class _Metric(_Strict):
    level: Literal["agent", "environment"]
    treatment: Annotated[list[int], Field(min_length=2)]
    control: Annotated[list[int], Field(min_length=2)]
    stored_test: _Stored


class _Experiment(_Strict):
    scenario: str | None
    treatment: str
    Na: int
    Ne: int
    group_size: Annotated[int, Field(ge=1)]
    metrics: dict[str, _Metric]


class _Provenance(_Strict):
    repo: str
    commit: str
    files_last_changed_on: str


class _Scores(_Strict):
    provenance: _Provenance
    experiments: dict[str, _Experiment]

    def metrics(self, id: str) -> Mapping[str, _Metric]:
        return self.experiments[id].metrics if id in self.experiments else {}


def _read(path: Traversable | Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}.") from None


def _experiment(id: str, experiment: _Experiment, printed: Mapping[str, Sequence[Any]]) -> Table1Experiment:
    return Table1Experiment(
        id=id,
        scenario=experiment.scenario or "",
        treatment=experiment.treatment,
        agents=experiment.Na,
        environments=experiment.Ne,
        group_size=experiment.group_size,
        rows=tuple(_row(id, metric, experiment, printed[metric]) for metric in LABELS if metric in printed),
        unprinted=tuple(
            _row(id, metric, experiment) for metric in experiment.metrics if metric not in printed
        ),
    )


def _row(id: str, metric: str, experiment: _Experiment, printed: Sequence[Any] = ()) -> Table1Row:
    scores = experiment.metrics[metric]
    stored = scores.stored_test
    return Table1Row(
        experiment=id,
        metric=metric,
        treatment=tuple(scores.treatment),
        control=tuple(scores.control),
        group_size=experiment.group_size if scores.level == "agent" else 1,
        printed=(*printed[:-1], "*" if printed[-1] else "") if printed else (),
        # The authors' t is that of C - T; their d is that of T - C.
        stored={
            "p": stored.p_value,
            "t": -stored.t_statistic,
            "df": stored.degrees_of_freedom,
            "d": stored.effect_size,
        },
    )


def _row_data(row: Table1Row) -> dict[str, Any]:
    found = row.sensitivity
    return {
        "experiment": row.experiment,
        "metric": row.metric,
        "cells": dict(zip(CELLS, row.recomputed, strict=True)),
        "agreeing": row.agreeing,
        "n": [len(row.treatment), len(row.control)],
        "difference": row.test.difference,
        "t": plain(row.test.t),
        "df": row.test.df,
        "p": row.test.p,
        "interval": list(row.test.interval),
        "d": plain(row.d),
        "paired": None
        if found is None
        else {
            "difference": found.test.mean,
            "interval": list(found.test.interval),
            "p": found.test.p,
            "sign_flip": found.flip,
        },
    }


def plain(number: float | None) -> float | str | None:
    """A number for JSON, which has no infinity: a text in its place."""
    return number if number is None or math.isfinite(number) else str(number)


def signed(number: float, digits: int = 2) -> str:
    """A number with its sign, halves up, and a real minus."""
    return f"{half_up(number, digits):+.{digits}f}".replace("-", "−")


def interval_text(interval: Interval) -> str:
    return f"[{signed(interval.low)}, {signed(interval.high)}]"
