"""Five scorers: adherence, consistency, fluency, convergence and the quantity of ideas.

    proposition   p = mean of the judge's scores over the sampled elements; of an inverted one 9 - p
    dimension     Σ weight × p / Σ weight, over the propositions that have a score
    overall       mean of the dimensions that have a score, ideas aside
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from langchain_core.messages.ai import UsageMetadata

from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel
from arbiter.personas.answers import HIGHEST, IdeasAnswer
from arbiter.personas.asking import Steps, together
from arbiter.personas.characters import Persona
from arbiter.personas.engine import (
    NO_TOKENS,
    JudgeResult,
    Judgements,
    PropositionEngine,
    Target,
    total_usage,
)
from arbiter.personas.judges import Judge, JudgeReply, JudgeRequest
from arbiter.personas.prompts import counting_ideas
from arbiter.personas.propositions import PropositionSet, load_propositions
from arbiter.personas.texts import repeated_ngrams, text_statistics, vocabulary_similarity
from arbiter.personas.trajectories import Event, Trajectory

IDEAS = "ideas_quantity"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PropositionScore:
    """One proposition over all elements that were sampled.

    `score` is the final mean, 0.0 to 9.0, None if no element has one; `raw` the mean of the judge's own scores.
    `reasoning` and `snippet` are those of the worst element. `judged` counts the elements with a score of the judge.
    """

    proposition_id: str
    weight: float
    score: float | None
    raw: float | None
    reasoning: str
    snippet: str
    judged: int
    results: tuple[JudgeResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerResult:
    """The score of one dimension.

    `overall` is 0.0 to 9.0 (a count, for ideas), None if it cannot be scored; `reason` then says why, as it does for a 9
    that nobody had to judge. `sample_size` counts what was judged: messages or pairs. `evidence` are the measured numbers that the judge was
    shown. `token_usage` is None where the model does not say. `method` and `ideas` are those of the ideas scorer.
    """

    dimension: str
    overall: float | None
    reason: str = ""
    propositions: tuple[PropositionScore, ...] = ()
    sample_size: int = 0
    evidence: Mapping[str, float] = field(default_factory=dict[str, float])
    calls: int = 0
    token_usage: UsageMetadata | None = None
    method: str = ""
    ideas: tuple[str, ...] = ()


def weighted_mean(scores: Iterable[tuple[float, float | None]]) -> float | None:
    """Σ weight × score / Σ weight of pairs (weight, score); pairs without a score are left out of both sums."""
    known = [(weight, score) for weight, score in scores if score is not None]
    total = math.fsum(weight for weight, _ in known)
    return math.fsum(weight * score for weight, score in known) / total if total else None


def overall_score(results: Iterable[ScorerResult]) -> float | None:
    """The mean of the dimensions that have a score, without the quantity of ideas; None if none has."""
    scores = [result.overall for result in results if result.dimension != IDEAS and result.overall is not None]
    return math.fsum(scores) / len(scores) if scores else None


class _Scorer:
    """What the four judged dimensions share: an engine, and the propositions of their dimension.

    `judge` is a judge, a chat model, a text for one, or an engine that is set up otherwise. `propositions` None are those that ship. `batch` False asks
    about each proposition on its own, which is dearer and more exact.
    """

    dimension: str

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: PropositionSet | None = None,
        *,
        batch: bool = True,
    ) -> None:
        self.engine = judge if isinstance(judge, PropositionEngine) else PropositionEngine(judge)
        self.propositions = load_propositions(None, self.dimension) if propositions is None else propositions
        if self.propositions.dimension != self.dimension:
            raise ConfigurationError(
                f"expected propositions of {self.dimension!r}, got those of {self.propositions.dimension!r}."
            )
        self.batch = batch

    def _judging(self, elements: Sequence[_Element], **known: Any) -> Steps[ScorerResult]:
        """Judge each element by each proposition, and put the scores together."""
        runs: list[Judgements] = yield from together([self._judging_one(element) for element in elements])
        scores: list[PropositionScore] = []
        for at, proposition in enumerate(self.propositions):
            results = tuple(run[at] for run in runs)
            scores.append(_score_of(proposition.weight, proposition.inverted, results, elements))
        overall = weighted_mean((score.weight, score.score) for score in scores)
        return ScorerResult(
            dimension=self.dimension,
            overall=overall,
            reason="" if overall is not None else _first_problem(runs),
            propositions=tuple(scores),
            sample_size=len(elements),
            calls=sum(run.calls for run in runs),
            token_usage=total_usage(run.token_usage for run in runs),
            **known,
        )

    def _judging_one(self, element: _Element) -> Steps[Judgements]:
        asked = (element.target, element.context, element.variables, element.evidence)
        if self.batch:
            return (yield from self.engine.asking_batch(self.propositions.propositions, *asked))
        results = yield from together(
            [self.engine.asking("score", proposition, *asked) for proposition in self.propositions]
        )
        return Judgements(
            results=tuple(results),
            calls=sum(result.calls for result in results),
            token_usage=total_usage(result.token_usage for result in results),
        )

    def _unjudged(self, overall: float | None, reason: str) -> ScorerResult:
        return ScorerResult(
            dimension=self.dimension, overall=overall, reason=reason, token_usage=NO_TOKENS
        )


@dataclass(frozen=True, slots=True)
class _Element:
    """One thing that is judged by all propositions: a message, a pair, a trajectory."""

    target: Target
    snippet: str
    context: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    evidence: str = ""


def _score_of(
    weight: float, inverted: bool, results: tuple[JudgeResult, ...], elements: Sequence[_Element]
) -> PropositionScore:
    scored = [at for at, result in enumerate(results) if result.score is not None]
    judged = [at for at in scored if results[at].status == "judged"]
    # What does not apply, or shows nothing, says nothing about the rest; only if that is all there is, it counts.
    counted = judged or scored
    worst = min(counted, key=lambda at: results[at].score or 0.0, default=0)
    raws = [raw for at in judged if (raw := results[at].raw) is not None]
    raw = math.fsum(raws) / len(raws) if raws else None
    score: float | None = None
    if raw is not None:
        score = HIGHEST - raw if inverted else raw
    elif counted:
        score = float(HIGHEST)
    return PropositionScore(
        proposition_id=results[worst].proposition_id,
        weight=weight,
        score=score,
        raw=raw,
        reasoning=results[worst].reasoning or results[worst].problem,
        snippet=elements[worst].snippet,
        judged=len(judged),
        results=results,
    )


def _first_problem(runs: Sequence[Judgements]) -> str:
    problems = [result.problem for run in runs for result in run if result.problem]
    return f"no proposition could be judged: {problems[0]}" if problems else "no proposition has a weight"


class AdherenceScorer(_Scorer):
    """Whether what an agent says fits its persona: each message, of at most `sample`, by each proposition.

    `propositions` None are those that ship for everybody and for the persona's `id`.
    """

    dimension = "adherence"

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        persona: Persona,
        propositions: PropositionSet | None = None,
        *,
        sample: int = 20,
        seed: int = 0,
        batch: bool = True,
    ) -> None:
        if propositions is None:
            propositions = load_propositions(None, self.dimension, persona.id or None)
        super().__init__(judge, propositions, batch=batch)
        self.persona = persona
        self.sample = _at_least_one("sample", sample)
        self.seed = seed

    def score(self, messages: Trajectory) -> ScorerResult:
        """Judge the persona's own messages, 9 if there are none. A sample is the same for the same seed."""
        return self.engine.run(self.asking(messages))  # type: ignore[no-any-return]

    async def ascore(self, messages: Trajectory) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(messages))  # type: ignore[no-any-return]

    def asking(self, messages: Trajectory) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        name = self.persona.name
        said = messages.actions_of(name)
        if not said:
            return self._unjudged(float(HIGHEST), f"there is no message of {name!r}")
        sampled = sample(said, self.sample, self.seed)
        return (
            yield from self._judging(
                [
                    _Element(
                        Target(
                            trajectory=Trajectory((event,)),
                            agent=name,
                            personas=(self.persona,),
                            channel=event.channel,
                        ),
                        event.text,
                    )
                    for event in sampled
                ]
            )
        )
