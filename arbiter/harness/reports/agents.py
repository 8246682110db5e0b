"""The agents of a report: their dimensions, what changed since the baseline, and which of them fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any

from arbiter.harness.agents import is_agent
from arbiter.harness.cases import Case
from arbiter.harness.comparisons import Comparison
from arbiter.harness.gate import NEVER_GATED
from arbiter.harness.results import CaseResult
from arbiter.harness.scores import NINE, Score


def agents_to_dict(
    cases: Sequence[Case], results: Sequence[CaseResult], comparison: Comparison
) -> dict[str, Any]:
    """`agents` and `summary`, as JSON-able data; empty for a report without agents.

    `overall` is the mean of the dimensions from 0 to 9, None if there is none. An agent passes if none of its rows
    regressed or is below its threshold, and something of it was judged.
    """
    ids = {case.id for case in cases if is_agent(case)}
    if not ids:
        return {}
    agents = {result.case_id: _agent(result, comparison) for result in results if result.case_id in ids}
    failed = [name for name, agent in agents.items() if not agent["pass"]]
    total = len(agents)
    summary = {"total": total, "passed": total - len(failed), "failed": len(failed), "failed_agents": failed}
    return {"agents": agents, "summary": summary}


def _agent(result: CaseResult, comparison: Comparison) -> dict[str, Any]:
    dimensions = {name: _dimension(score, comparison) for name, score in _of(result)}
    means = [
        score.value
        for name, score in _of(result)
        if score.value is not None and name not in NEVER_GATED and score.scale == NINE
    ]
    rows = {name: comparison.rows.get(score.name) for name, score in _of(result)}
    regressions = [
        {"dimension": name, "baseline": row.before, "current": row.mean, "delta": row.delta}
        for name, row in rows.items()
        if row is not None and row.gated and row.verdict == "regressed"
    ]
    below = any(row is not None and row.gated and row.below for row in rows.values())
    return {
        "overall": fsum(means) / len(means) if means else None,
        "pass": bool(means) and not regressions and not below,
        "dimensions": dimensions,
        "baseline_delta": {
            n: row.delta for n, row in rows.items() if row is not None and row.delta is not None
        },
        "regressions": regressions,
        **({"reason": result.error} if result.error else {}),
    }


def _of(result: CaseResult) -> Iterator[tuple[str, Score]]:
    """The scores of an agent by the names of their scorers: the score "tone.ilka" is the `tone` of ilka."""
    for score in result.scores:
        if score.name.endswith(f".{result.case_id}"):
            yield score.name.removesuffix(f".{result.case_id}"), score


def _dimension(score: Score, comparison: Comparison) -> Mapping[str, Any]:
    if score.value is None:
        return {"score": None, "reason": score.reason or score.outcome}
    row = comparison.rows.get(score.name)
    return {
        "score": score.value,
        "pass": score.passed is not False and not (row is not None and row.gated and row.below),
        "sample_size": score.sample_size,
        "proposition_scores": dict(score.propositions or {}),
    }
