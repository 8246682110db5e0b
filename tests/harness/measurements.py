"""Measurements made of plain lists, for tests of the gate and of baselines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from arbiter._values.kinds import is_mapping
from arbiter.harness import Baseline, Comparison, GateSettings, Identity, Measurement, RegressionGate, Row
from arbiter.harness.usage import Spent, Usage

TEN = (0.0, 9.0)
BEFORE = (7, 6, 8, 5, 7, 9, 6, 7, 8, 6)
AFTER = (6, 6, 7, 5, 5, 8, 6, 6, 8, 5)
CAPTURED = datetime(2026, 11, 20, 9, 12, tzinfo=UTC)


def cases(values: Iterable[float | Sequence[float | None] | None]) -> dict[str, tuple[float | None, ...]]:
    """Values, or lists of one value for each repeat, under the ids case-01, case-02, ..."""
    return {
        f"case-{place:02}": tuple(value) if isinstance(value, Sequence) else (value,)
        for place, value in enumerate(values, 1)
    }


def row(name: str, values: Any, **options: Any) -> Row:
    """A row from 0 to 9, unless `options` say otherwise."""
    by_case = dict(values) if is_mapping(values) else cases(values)
    given: dict[str, Any] = {"scale": TEN, **options}
    return Row(name=name, cases=by_case, **given)


def share(name: str, values: Any, **options: Any) -> Row:
    return row(name, values, scale=(0.0, 1.0), is_share=True, **options)


def run(*rows: Row, inputs: Mapping[str, str] | None = None, **options: Any) -> Measurement:
    """A run with those rows. `options` go to the identity, or to the measurement."""
    own = {key: options.pop(key) for key in ("failing", "unfinished") if key in options}
    known = {case for each in rows for case in (*each.cases, *each.missing)}
    hashes = {case: f"hash of {case}" for case in sorted(known)} | dict(inputs or {})
    versions = {each.name: each.version for each in rows}
    given: dict[str, Any] = {"suite": "refunds", "cases": hashes, "rows": versions, **options}
    identity = Identity(**given)
    return Measurement(identity=identity, rows={each.name: each for each in rows}, **own)


def baseline(*rows: Row, **options: Any) -> Baseline:
    return Baseline.of(run(*rows, **options), captured_at=CAPTURED)


def compared(
    now: Measurement,
    then: Baseline | None,
    *,
    ci: bool = False,
    accept_changed: bool = False,
    **settings: Any,
) -> Comparison:
    return RegressionGate(GateSettings(**settings), ci=ci, accept_changed=accept_changed).compare(now, then)


def tone(before: Any, after: Any, **settings: Any) -> Comparison:
    """The comparison of one row from 0 to 9."""
    return compared(run(row("tone", after)), baseline(row("tone", before)), **settings)


def purse(spent: Usage, name: str, *thread_ids: str) -> Spent:
    """The amount of a purse in these threads, over all models."""
    return sum(spent.of(*thread_ids)[name].values(), Spent())
