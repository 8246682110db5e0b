"""Pairs of values: the same case in a baseline and in a run, and the cases that have no partner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from arbiter.harness.rows import Row, exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The cases of a row in a baseline ("then") and in a run ("now").

    `then`, `now` and `differences` are by case, or by cluster. `lost` cases were scored then, and now have
    only outcomes other than "scored" and "not_applicable". `new` cases are not in the baseline, `gone` ones
    not in the run, and of `changed` ones the input or the expected answer changed. `before` is the number
    of cases that the baseline scored.
    """

    then: Mapping[str, Fraction]
    now: Mapping[str, Fraction]
    differences: Mapping[str, Fraction]
    lost: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    changed: tuple[str, ...]
    before: int


def pair(now: Row, then: Row, inputs_now: Mapping[str, str], inputs_then: Mapping[str, str]) -> Pairs:
    """Pair the cases by id and, where both have one, by the hash of their input; never by position."""
    values_now, values_then = _values(now), _values(then)
    known_now = {*now.cases, *now.missing, *inputs_now}
    known_then = {*then.cases, *then.missing, *inputs_then}
    changed = dict.fromkeys(
        case
        for case in values_then
        if case in inputs_now and case in inputs_then and inputs_now[case] != inputs_then[case]
    )
    kept = [case for case in values_then if case in known_now and case not in changed]
    both = set(kept)
    units: dict[str, list[str]] = {}
    for case in values_now:  # in the order of the run
        if case in both:
            units.setdefault(now.clusters.get(case, case), []).append(case)
    before = {unit: _mean(values_then[case] for case in cases) for unit, cases in units.items()}
    after = {unit: _mean(values_now[case] for case in cases) for unit, cases in units.items()}
    return Pairs(
        then=before,
        now=after,
        differences={unit: after[unit] - before[unit] for unit in units},
        lost=tuple(case for case in kept if now.is_lost(case)),
        new=tuple(case for case in dict.fromkeys([*now.cases, *now.missing]) if case not in known_then),
        gone=tuple(case for case in values_then if case not in known_now),
        changed=tuple(changed),
        before=len(values_then),
    )


def _values(row: Row) -> dict[str, Fraction]:
    scored = {case: [value for value in repeats if value is not None] for case, repeats in row.cases.items()}
    return {case: _mean(map(exact, values)) for case, values in scored.items() if values}


def _mean(values: Iterable[Fraction]) -> Fraction:
    given = list(values)
    return given[0] if len(given) == 1 else sum(given, Fraction()) / len(given)
