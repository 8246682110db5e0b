"""Labelling: conversations of an experiment for people to label, and its judge compared with their labels.

People label the units that a metric scores: the messages of one agent in a conversation, or all its messages. An
id names the place in the run, from which the judge gets the messages as they were.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from arbiter.errors import ConfigurationError, PackError, PackMistake, nearest
from arbiter.experiments.measuring import MetricScorer
from arbiter.experiments.results import ExperimentResult
from arbiter.experiments.runner import FOLDER
from arbiter.experiments.scenarios import is_of_agents
from arbiter.harness import Calibration, Case, CaseRun, Suite, calibrate
from arbiter.harness.calibrating import check_pass_at
from arbiter.harness.journal import run_folder
from arbiter.harness.labels import Labelled, Labels, chosen_for_labelling, read_labels, write_for_labelling
from arbiter.harness.reports.report import Report, load_report
from arbiter.harness.scores import NINE, Scale, Score
from arbiter.models import ChatModel, Judge
from arbiter.personas import Persona

Said = Sequence[Sequence[str]]
"""A conversation as pairs of speaker and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A labelled or scored part of a run. `persona` is None for a whole conversation."""

    id: str
    said: Said
    persona: Persona | None
    score: float | None

    @property
    def about(self) -> str:
        """The text that people read before the conversation."""
        return (
            "The whole conversation" if self.persona is None else f"{self.persona.name}: {self.persona.text}"
        )

    @property
    def text(self) -> str:
        return "\n".join(f"{speaker or 'Facilitator'}: {text}" for speaker, text in self.said)

    def saying(self, canary: str) -> Said:
        """The conversation in which a canary is all that is said, by the agent or by all of them."""
        speakers = {self.persona.name} if self.persona else {speaker for speaker, _ in self.said if speaker}
        return [(speaker, canary if speaker in speakers else text) for speaker, text in self.said]


def write_sessions(
    path: str | Path,
    run: str = "last",
    *,
    metric: str,
    count: int = 100,
    seed: int = 42,
    blind: bool = True,
    folder: str | Path = FOLDER,
) -> int:
    """Write conversations of a run for people to label. Returns how many.

    They are chosen as `chosen_for_labelling` does. With `blind=False` the file has the judge's scores, and its labels
    calibrate no judge. Raises `ConfigurationError` if the file is there already, or nothing is scored.
    """
    file = Path(path)
    if os.path.exists(path):
        raise ConfigurationError(f"{file} is there already. People's labels are not overwritten.")
    sessions = _sessions(load_report(run_folder(run, Path(folder))), metric)
    scores = {id: each.score for id, each in sessions.items() if each.score is not None}
    if not scores:
        raise ConfigurationError(f"the run {run} has no conversation that {metric!r} scored.")
    chosen = chosen_for_labelling(scores, count, seed=seed)
    outputs = [
        Labelled(id=id, input=sessions[id].about, output=sessions[id].text, labels={}) for id in chosen
    ]
    write_for_labelling(file, outputs, scores=None if blind else scores)
    return len(chosen)


def calibrate_metric(
    labels: Labels | str | Path,
    run: str = "last",
    *,
    metric: str,
    judge: Judge | ChatModel | str,
    pass_at: float,
    folder: str | Path = FOLDER,
    date: str | None = None,
) -> Calibration:
    """Let a judge score labelled conversations of a run, and compare its scores with the labels.

    As `arbiter.harness.calibrate` for a scorer of a suite; `pass_at` is from 0 to 9. Written to
    calibrations/METRIC.json, it calibrates the judge of later experiments.
    """
    check_pass_at(pass_at, NINE)
    report = load_report(run_folder(run, Path(folder)))
    sessions = _sessions(report, metric)
    found = labels if isinstance(labels, Labels) else read_labels(labels)
    file = "labels" if isinstance(labels, Labels) else str(labels)
    said = f"with that text is not in the run {report.run_id}. Name the run of the labels: --from RUN."
    strangers = [
        PackMistake(file, each.line, "", f"the conversation {each.id!r:.80} {said}")
        for each in found.outputs
        if each.id not in sessions or _plain(each.output) != _plain(sessions[each.id].text)
    ]
    if strangers:
        raise PackError(strangers)
    version = report.identity.rows[metric]
    scorers = (MetricScorer(metric, judge, hard=hard) for hard in (False, True))
    scorer = next((each for each in scorers if each.version == version), None)
    if scorer is None:
        raise ConfigurationError(
            f"the questions of {metric!r} have changed since the run {report.run_id}. Label conversations of a new run."
        )
    asked = _SessionScorer(scorer, [sessions[each.id] for each in found.outputs])
    suite = Suite(report.suite, [Case("none", "")], scorers={metric: asked})
    return calibrate(suite, found, row=metric, pass_at=pass_at, date=date)


def _sessions(report: Report, metric: str) -> dict[str, _Session]:
    """The parts of a run that a metric scores, by id."""
    metrics = ExperimentResult.of(report).plan.metrics
    if metric not in metrics:
        raise ConfigurationError(
            f"{metric!r} is not a metric of the run {report.run_id}. Metrics: {', '.join(metrics)}."
            f"{nearest(metric, metrics)}"
        )
    if metric == "ideas_quantity":
        raise ConfigurationError(
            "ideas_quantity is a count, and labels are from 0 to 9: it is not calibrated."
        )
    cases = {case.id: case for case in report.cases}
    found: dict[str, _Session] = {}
    for result in report.results:
        if result.status != "completed":
            continue
        people = [Persona(**persona) for persona in cases[result.case_id].input["personas"]]
        for persona in people if is_of_agents(metric) else [None]:
            name = metric if persona is None else f"{metric}.{persona.name}"
            id = result.case_id if persona is None else f"{result.case_id}/{persona.name}"
            score = result.value(name)
            found[id] = _Session(id=id, said=result.output["said"], persona=persona, score=score)
    return found


class _SessionScorer:
    """Scores labelled conversations in the order of the labels, and canaries in their place."""

    def __init__(self, scorer: MetricScorer, sessions: Sequence[_Session]) -> None:
        self.name = scorer.name
        self.scale: Scale = scorer.scale
        self.version: str = scorer.version
        self._scorer = scorer
        self._sessions = {(each.about, _plain(each.text)): each for each in sessions}
        self._first = {each.about: each for each in reversed(sessions)}

    def version_parts(self) -> Mapping[str, str]:
        return self._scorer.version_parts()

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> Self:
        new = copy(self)
        new._scorer = self._scorer.with_judges(wrap, votes)
        return new

    async def score(self, run: CaseRun) -> Score:
        session = self._sessions.get((run.input, _plain(run.output)))
        said: Said = self._first[run.input].saying(run.output) if session is None else session.said
        score = await self._scorer.score_of(said, (session or self._first[run.input]).persona)
        return replace(score, name=self.name)


def _plain(text: str) -> str:
    """The text with one kind of line ends, because programs for tables change them."""
    return "\n".join(text.splitlines())
