"""Measures: the evaluators and scorers of a run, and the rows that their scores become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arbiter.harness.agents import is_agent
from arbiter.harness.cases import Case
from arbiter.harness.identity import of_row
from arbiter.harness.results import COMPLETED, EXPECT, CaseResult
from arbiter.harness.rows import Row
from arbiter.harness.scores import SHARE, Scale, Score, plain_scale, scale_from
from arbiter.verdicts import Outcome


@dataclass(frozen=True, slots=True)
class Measure:
    """An evaluator or scorer: its name, its scale, and the version that its numbers belong to."""

    name: str
    scale: Scale = SHARE
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The measure as JSON-able data. The ends of an open scale are null."""
        return {"name": self.name, "scale": plain_scale(self.scale), "version": self.version}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Measure:
        return cls(data["name"], scale_from(data["scale"]), data["version"])


def rows_of(
    results: Iterable[CaseResult], measures: Sequence[Measure], cases: Sequence[Case]
) -> dict[str, Row]:
    """The rows of a run, in the order of `measures`; then `expect`, then `completed`.

    A score with `elements`, of an agent, gives the row a value for each of them: what was judged are the cases.
    A scorer that returned several scores by key has a row for each key, and one for its scores without a key. Labels
    have no row. The assertions of all cases are one row, `expect`, if two cases have any: each of them alone is about
    too few cases to be compared.
    """
    results = list(results)
    labels = _labels(results)
    kinds = {name: kind for name, kind in _kinds(results).items() if name not in labels}
    asserting = sum(bool(case.assertions) for case in cases)
    clusters = {case.id: case.cluster for case in cases if case.cluster is not None}
    sampled = {score.name for result in results for score in result.scores if score.elements}
    rows = {
        name: _row(
            name,
            measure,
            results,
            clusters,
            kinds.get(name) or (measure.scale, name in (COMPLETED, EXPECT)),
            name in sampled,
        )
        for name, measure in _named(kinds, labels, measures, asserting).items()
    }
    agents = [case.id for case in cases if is_agent(case)]
    if agents and COMPLETED in rows and rows[COMPLETED].n == 1:  # one agent that spoke makes no pairs
        rows[COMPLETED] = replace(rows[COMPLETED], is_sampled=True)
    return _with_evidence(rows, agents)


def _with_evidence(rows: dict[str, Row], agents: Sequence[str]) -> dict[str, Row]:
    """The rows without the dimensions of agents of which there was nothing to judge, such as consistency without
    earlier messages. If no dimension is left, all are, because a run that judged nothing does not pass."""
    empty = {
        name
        for name, row in rows.items()
        if not row.n
        and name.endswith(tuple(f".{id}" for id in agents))
        and set(row.outcomes) == {"not_applicable"}
    }
    kept = {name: row for name, row in rows.items() if name not in empty}
    return rows if set(kept) <= {COMPLETED, EXPECT} else kept


def labels_of(results: Iterable[CaseResult]) -> dict[str, Counter[str]]:
    """How often each label was given, by the name of the score."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        for score in result.scores:
            if score.label is not None:
                found.setdefault(score.name, Counter())[score.label] += 1
    return found


def _row(
    name: str,
    measure: Measure,
    results: Sequence[CaseResult],
    clusters: Mapping[str, str],
    kind: tuple[Scale, bool],
    is_sampled: bool,
) -> Row:
    values: dict[str, list[float | None]] = {}
    missing: dict[str, list[Outcome]] = {}
    if is_sampled:  # the row of one agent
        results = [result for result in results if result.scored(name)]
    for result in results:
        elements = result.elements(name) if is_sampled else ()
        for id, score in elements:
            values.setdefault(id, []).append(score)
        if elements:
            continue
        value = result.value(name)
        values.setdefault(result.case_id, []).append(value)
        if value is None:
            missing.setdefault(result.case_id, []).append(result.outcome(name))
    return Row(
        name=name,
        cases={case: tuple(repeats) for case, repeats in values.items()},
        scale=kind[0],
        version=measure.version,
        missing={case: tuple(outcomes) for case, outcomes in missing.items()},
        clusters=clusters,
        is_share=kind[1],
        is_sampled=is_sampled,
    )


def _kinds(results: Iterable[CaseResult]) -> dict[str, tuple[Scale, bool] | None]:
    """The names that scores have, each with the scale of its numbers, and whether all are passes or failures.

    None for a name without a number. Labels are left out.
    """
    found: dict[str, tuple[Scale, bool] | None] = {}
    for result in results:
        for score in result.scores:
            if score.name.startswith("expect."):
                continue
            if score.value is not None:
                known = found.get(score.name)
                if known is None or known[1]:
                    found[score.name] = score.scale, _is_assertion(score)
            elif score.label is None:
                found.setdefault(score.name, None)
    return found


def _is_assertion(score: Score) -> bool:
    return score.passed is not None and score.scale == SHARE and score.value in (0.0, 1.0)


def _labels(results: Iterable[CaseResult]) -> set[str]:
    """The names whose scores are labels. A name that failed for a case is none: nothing is known about that case."""
    found: set[str] = set()
    others: set[str] = set()
    for result in results:
        for score in result.scores:
            if score.value is None and score.label is not None:
                found.add(score.name)
            elif score.outcome != "not_applicable":
                others.add(score.name)
    return found - others


def _named(
    kinds: Mapping[str, object], labels: Iterable[str], measures: Sequence[Measure], asserting: int
) -> dict[str, Measure]:
    """The rows by name, each with its measure."""
    own = {measure.name: measure for measure in measures}
    owners = {name: of_row(own, name) for name in kinds}
    labelling = [of_row(own, label) for label in labels]
    found: dict[str, Measure] = {}
    for measure in measures:
        names = [name for name in kinds if owners[name] is measure]
        if names or measure not in labelling:
            # A failure has no keys: beside parts, it is that of each of them, and no row of its own.
            counted = [name for name in names if name != measure.name or kinds[name] is not None]
            found.update((name, measure) for name in counted or [measure.name])
    found.update((name, Measure(name)) for name in kinds if owners[name] is None)
    if asserting > 1:
        found[EXPECT] = Measure(EXPECT)
    found[COMPLETED] = Measure(COMPLETED)
    return found
