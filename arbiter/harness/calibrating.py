"""Calibrating: a suite's scorer judges labelled outputs and canaries, in a run of the harness."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any

from arbiter._values.states import is_number
from arbiter.errors import ConfigurationError, nearest
from arbiter.harness.calibration import CANARIES, Calibration
from arbiter.harness.cases import Case
from arbiter.harness.dimensions import DimensionScorer
from arbiter.harness.kinds import BuiltIn
from arbiter.harness.labels import Labels, read_labels
from arbiter.harness.scores import NINE, Scale
from arbiter.harness.suites import Suite

_log = logging.getLogger("arbiter.harness")


def check_pass_at(pass_at: float, scale: Scale = (-inf, inf)) -> None:
    """Raise `ConfigurationError` unless `pass_at` is a number on the scale."""
    given: Any = pass_at
    low, high = scale
    if not is_number(given) or not low <= given <= high:
        numbers = "a number" if -low == high == inf else f"a number from {low:g} to {high:g}"
        raise ConfigurationError(
            f"pass_at is {given!r:.80}; expected {numbers}, the lowest score that passes."
        )


def calibrate(
    suite: Suite,
    labels: Labels | str | Path,
    *,
    row: str,
    pass_at: float | None = None,
    judge: str = "",
    date: str | None = None,
    seed: int = 42,
) -> Calibration:
    """Let the scorer `row` of a suite judge labelled outputs, and compare its scores with the labels.

    Each output and each of `CANARIES` is judged twice. `pass_at` is the lowest score that passes, on the scale
    of the row, by default the scorer's `at_least`; if labels are scores, the judge's are stretched to 0 to 9.
    `judge` names the model, if the suite does not know it. Outputs that could not be judged are left out. Raises
    `ConfigurationError` for a row that is not a scorer, for a `pass_at` that is missing or beyond the scale, and
    if no output was judged.
    """
    scorers = {scorer.name: scorer for scorer in suite.judges}
    if row not in scorers:
        raise ConfigurationError(
            f"the suite {suite.name!r} has no scorer {row!r}, and only a scorer can be calibrated. "
            f"Scorers: {', '.join(scorers) or 'none'}.{nearest(row, scorers)}"
        )
    given = scorers[row].given
    if pass_at is None and isinstance(given, BuiltIn | DimensionScorer):
        pass_at = getattr(given.entry, "at_least", None)
    if pass_at is None:
        raise ConfigurationError(
            f"the scorer {row!r} has no pass mark; give --pass-at (in Python: pass_at=...), the lowest score that "
            "passes."
        )
    check_pass_at(pass_at)
    found = labels if isinstance(labels, Labels) else read_labels(labels)
    ids = {f"output-{place}": each.id for place, each in enumerate(found.outputs)}
    canaries = {f"canary-{name}": name for name in CANARIES}
    inputs = [each.input for each in found.outputs]
    outputs = dict(zip(ids, (each.output for each in found.outputs), strict=True))
    cases = [
        *(Case(id, text) for id, text in zip(ids, inputs, strict=True)),
        # Canaries answer the questions of the labelled outputs, so that they are no sign by themselves.
        *(Case(id, inputs[place % len(inputs)]) for place, id in enumerate(canaries)),
    ]
    answers: Mapping[str, Any] = {**outputs, **{id: CANARIES[name] for id, name in canaries.items()}}
    run = Suite(
        f"calibration of {suite.name}",
        cases,
        scorers={row: given},
        target=answers,
        repeats=2,
        limits=suite.limits,
    ).run(folder=None)
    judged = run.rows.get(row)
    if judged is None:
        raise ConfigurationError(
            f"the scorer {row!r} gives several scores, or labels; only a scorer of one score can be calibrated."
        )
    check_pass_at(pass_at, judged.scale)
    low, high = judged.scale if found.are_scores else NINE
    if not isfinite(high - low):
        raise ConfigurationError(
            f"the scorer {row!r} has a scale without an end, and labels that are scores end at 9. Label its outputs "
            "with pass or fail."
        )

    def on_nine(score: float) -> float:
        return (score - low) * 9 / (high - low)

    def scores(of: Mapping[str, str], repeat: int) -> dict[str, float]:
        given = {name: judged.cases[id][repeat] for id, name in of.items()}
        return {name: on_nine(score) for name, score in given.items() if score is not None}

    # A canary is believed if it passes once.
    first, second = (scores(canaries, repeat) for repeat in (0, 1))
    believed = {name: max(first.get(name, score), score) for name, score in {**first, **second}.items()}
    named = run.identity.judge_of(row)
    if named is not None and named.model and judge not in ("", named.model):
        _log.warning(
            "the judge %r has no effect: the suite %r names %r for %r. Change it in the suite.",
            judge,
            suite.name,
            named.model,
            row,
        )
    return Calibration.of(
        found,
        scores(ids, 0),
        row=row,
        version=judged.version,
        judge=named.model if named is not None and named.model else judge,
        date=date or f"{datetime.now(UTC):%Y-%m-%d}",
        pass_at=on_nine(pass_at),
        again=scores(ids, 1),
        canaries=believed,
        seed=seed,
    )
