"""Replicating Table 1: do your own experiments point in the direction of the published ones?

Only the starred rows of the paper count, of which there are 15 in its four experiments. A row matches if its
difference has the sign of the published one. Agreement about significance is counted apart. The authors' own
later runs turned signs around, so 15 of 15 is not expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arbiter.errors import ConfigurationError, nearest
from arbiter.experiments.comparing import MetricComparison
from arbiter.experiments.results import ExperimentResult
from arbiter.experiments.scenarios import SCENARIOS
from arbiter.experiments.table import about, cells_of_paper, widths_of
from arbiter.experiments.table1 import COLUMNS, Table1Row, signed, verify_table1
from arbiter.models import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedRow:
    """A row of the paper beside one's own; `ours` is None if the metric was not measured."""

    published: Table1Row
    ours: MetricComparison | None

    @property
    def matches(self) -> bool:
        """True if the row was tested and its difference has the sign of the published one; 0 has no sign."""
        if self.ours is None or self.ours.difference is None or self.ours.untested:
            return False
        return self.ours.difference * self.published.test.difference > 0

    @property
    def agrees(self) -> bool:
        """True if both have a star, or neither."""
        return self.ours is not None and self.ours.starred == self.published.starred


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Your own experiments beside the published ones."""

    results: Sequence[ExperimentResult]
    rows: Sequence[ReplicatedRow]

    @property
    def counted(self) -> Sequence[ReplicatedRow]:
        """The rows with a star in the paper."""
        return [row for row in self.rows if row.published.starred]

    @property
    def matching(self) -> int:
        """The number of `counted` rows that point in the published direction."""
        return sum(row.matches for row in self.counted)

    @property
    def agreeing(self) -> int:
        """The number of rows that agree about the star."""
        return sum(row.agrees for row in self.rows)

    def text(self) -> str:
        return "\n".join(map(visible, self._lines()))

    def _lines(self) -> Iterator[str]:
        for result in self.results:
            plan = result.plan
            paper = _ids(plan.scenario)[0]
            yield f" {paper:<3} {plan.scenario}   N_a {plan.agents} · N_e {plan.pairs} · profile {plan.profile}"
            yield from (f" {line}" for line in about(result))
            names = [name for name, _ in _COLUMNS]
            lines = [names, *(_cells(row) for row in self.rows if row.published.experiment == paper)]
            widths = widths_of(_COLUMNS, lines)
            for line in lines:
                cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
                yield f" {' '.join(cells)}".rstrip()
            if untested := result.comparisons[0].untested:
                yield f" no p-values: {untested}"
            yield ""
        yield (
            f"{self.matching} of {len(self.counted)} starred rows point in the published direction; "
            f"{self.agreeing} of {len(self.rows)} rows agree about the star."
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "matching": self.matching,
            "of": len(self.counted),
            "agreeing": self.agreeing,
            "rows": [
                {
                    "experiment": row.published.experiment,
                    "metric": row.published.metric,
                    "published": row.published.test.difference,
                    "published_star": row.published.starred,
                    "matches": row.matches,
                    "agrees": row.agrees,
                }
                for row in self.rows
            ],
            "results": [result.to_dict() for result in self.results],
        }


_COLUMNS = (*COLUMNS, ("paper's Δ", 10), ("same sign", 9))


def _cells(row: ReplicatedRow) -> list[str]:
    ours, published = row.ours, row.published
    theirs = signed(published.test.difference) + "*" * published.starred
    mark = "" if not published.starred else "yes" if row.matches else "no"
    if ours is None:
        cells = ["–"] * 6
    else:
        treatment, control, *others = cells_of_paper(ours)
        difference = "–" if ours.difference is None else signed(ours.difference)
        cells = [treatment, control, difference, *others]
    return [published.label, *cells, theirs, mark]


def _ids(scenario: str) -> Sequence[str]:
    return [each.experiment for each in SCENARIOS[scenario].values()]


def scenarios_named(experiments: Sequence[str]) -> list[str]:
    """The scenarios of experiments, named as in the paper ("2.1") or by scenario; all without a name.

    Raises `ConfigurationError` for an unknown one.
    """
    by_number: Mapping[str, str] = {_ids(id)[0]: id for id in SCENARIOS}
    names = [name.strip() for name in experiments if name.strip()]
    known = [*by_number, *SCENARIOS]
    if unknown := [name for name in names if name not in known]:
        raise ConfigurationError(
            f"there is no experiment {unknown[0]!r}. Experiments: {', '.join(known)}.{nearest(unknown[0], known)}"
        )
    found = {by_number.get(name, name) for name in names or by_number}
    return [id for id in SCENARIOS if id in found]


def replicated(results: Sequence[ExperimentResult]) -> Replication:
    """The results of shipped scenarios beside the published ones. Raises `ConfigurationError` for synthetic ones."""
    published = verify_table1()
    rows: list[ReplicatedRow] = []
    for result in results:
        if result.plan.scenario not in SCENARIOS:
            raise ConfigurationError(
                f"{result.plan.scenario!r} is not a scenario of the paper. It has {', '.join(SCENARIOS)}."
            )
        if "synthetic" in result.marks:
            raise ConfigurationError(
                f"{result.plan.scenario}: the scores are synthetic, and cannot be compared with the paper. Use models."
            )
        ours = {row.metric: row for row in result.comparisons}
        rows += [
            ReplicatedRow(published=row, ours=ours.get(row.metric))
            for row in published.rows
            if row.experiment in _ids(result.plan.scenario)
        ]
    return Replication(results=tuple(results), rows=tuple(rows))
