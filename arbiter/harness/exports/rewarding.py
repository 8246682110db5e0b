"""Rewards of completions: a suite's scorers and expectations, called by a trainer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from statistics import fmean
from typing import Any

from arbiter.errors import ConfigurationError
from arbiter.harness.cases import Case
from arbiter.harness.expectations import ABOUT_OUTPUT, Expectations
from arbiter.harness.exports.evidence import Rewarding
from arbiter.harness.exports.messages import said
from arbiter.harness.files import load_suite
from arbiter.harness.results import CaseRun
from arbiter.harness.scorers import NamedScorer
from arbiter.harness.scores import Score, failed, scores_of


class Rewards:
    """Rewards of completions by the scorers of a suite file, as TRL's `GRPOTrainer` calls reward functions.

    Node evaluators have no part in it, because a completion is not a node run. `project` is the folder to which the
    paths in the suite are relative. `rows` are the scorers that count; none means all. With `is_json` a completion
    that is JSON is judged as that value. Raises `ConfigurationError` if the suite has nothing that judges a completion.
    """

    def __init__(
        self,
        suite: str | Path,
        *,
        project: str | Path = ".",
        allow: Sequence[str] = (),
        rows: Sequence[str] = (),
        is_json: bool = False,
    ) -> None:
        with chdir(project):
            found = load_suite(suite, allow=allow)
        self._cases: Mapping[str, Case] = {case.id: _about_output(case) for case in found.cases}
        self._scorers: Sequence[NamedScorer] = found.judges
        self._expectations = Expectations()
        self._rewarding = Rewarding(rows=rows)
        self._is_json = is_json
        if not self._scorers and not any(case.assertions for case in self._cases.values()):
            raise ConfigurationError(
                f"{suite}: nothing judges completions: the suite has no scorers, and its cases expect nothing of "
                "their output. Add one of them."
            )

    def __call__(self, completions: Sequence[Any], case_id: Sequence[str]) -> list[float | None]:
        """The reward of each completion of a case, 0.0 to 1.0; None if no scorer judged it.

        A completion is a text, or a list of messages. Raises `KeyError` for a case that the suite has not.
        """
        return [
            self._reward(each, self._cases[case]) for each, case in zip(completions, case_id, strict=True)
        ]

    def _reward(self, completion: Any, case: Case) -> float | None:
        run = CaseRun(case=case, output=self._output(said(completion)))
        scores = [*self._expectations.scores(run)]
        for scorer in self._scorers:
            scores += _scored(scorer, run)
        values = self._rewarding.values(scores)
        return fmean(values.values()) if values else None

    def _output(self, text: str) -> Any:
        if not self._is_json:
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


def _scored(scorer: NamedScorer, run: CaseRun) -> Sequence[Score]:
    try:
        answer = scorer.call(run)
        if inspect.isawaitable(answer):
            answer = asyncio.run(_awaited(answer))
    except Exception as error:
        return [failed(scorer.name, error, scale=scorer.scale)]
    return scores_of(scorer.name, answer, scale=scorer.scale)


async def _awaited(answer: Any) -> Any:
    return await answer


def _about_output(case: Case) -> Case:
    """The case with the expectations about its output alone."""
    kept = {key: value for key, value in case.assertions.items() if key in ABOUT_OUTPUT}
    return Case(case.id, case.input, expected=case.expected, metadata=case.metadata, expect=kept or None)
