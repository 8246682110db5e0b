"""Five scorers: adherence, consistency, fluency, convergence and the quantity of ideas.

proposition   p = mean of the judge's scores over the sampled elements; of an inverted one 9 - p
dimension     Σ weight × p / Σ weight, over the propositions that have a score
overall       mean of the dimensions that have a score, ideas aside
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from langchain_core.messages.ai import UsageMetadata

from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel, visible
from arbiter.personas.answers import HIGHEST, IdeasAnswer
from arbiter.personas.asking import Steps, together
from arbiter.personas.characters import Persona
from arbiter.personas.engine import (
    NO_TOKENS,
    Judgements,
    JudgeResult,
    PropositionEngine,
    Target,
    cost,
    read,
    total_usage,
)
from arbiter.personas.judges import Judge, JudgeRequest
from arbiter.personas.prompts import counting_ideas
from arbiter.personas.propositions import PropositionSet, load_propositions
from arbiter.personas.texts import repeated_ngrams, text_statistics, vocabulary_similarity
from arbiter.personas.trajectories import Event, Trajectory

IDEAS = "ideas_quantity"
Method = Literal["enumerate", "rapporteur"]


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

    @property
    def recommendations(self) -> tuple[str, ...]:
        """What would help, as the proposition says it, each text once."""
        texts = (result.recommendations for result in self.results)
        return tuple(dict.fromkeys(text for text in texts if text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerResult:
    """The score of one dimension.

    `overall` is 0.0 to 9.0 (a count, for ideas), None if it cannot be scored; `reason` then says why, as it does for
    a 9 that nobody had to judge. `sample_size` counts what was judged: messages, pairs or events. `evidence` are the
    measured numbers that the judge was shown. `token_usage` is None where the model does not say. `method` and
    `ideas` are those of the ideas scorer.
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
    # As decimal fractions, as they are written: with binary ones, 7 on everything may come to 6.999999999999999.
    known = [(Fraction(str(weight)), Fraction(str(score))) for weight, score in scores if score is not None]
    total = sum(weight for weight, _ in known)
    return float(sum(weight * score for weight, score in known) / total) if total else None


def overall_score(results: Iterable[ScorerResult]) -> float | None:
    """The mean of the dimensions that have a score, without the quantity of ideas; None if none has."""
    scores = [
        result.overall for result in results if result.dimension != IDEAS and result.overall is not None
    ]
    return math.fsum(scores) / len(scores) if scores else None


class _Scorer:
    """What the four judged dimensions share: an engine, and the propositions of their dimension.

    `judge` is a judge, a chat model, a text for one, or an engine that is set up otherwise. `propositions` None are
    those that ship. `batch` False asks about each proposition on its own, which is dearer and more exact. Whether a
    judge is shown `personas` is said by the propositions, and those that ship for these dimensions say no.
    """

    dimension: str

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: PropositionSet | None = None,
        *,
        personas: Iterable[Persona] = (),
        batch: bool = True,
    ) -> None:
        self.engine = judge if isinstance(judge, PropositionEngine) else PropositionEngine(judge)
        self.propositions = load_propositions(None, self.dimension) if propositions is None else propositions
        if self.propositions.dimension != self.dimension:
            raise ConfigurationError(
                f"expected propositions of {self.dimension!r}, got those of {self.propositions.dimension!r}."
            )
        self.personas = tuple(personas)
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
        asked = (element.target, element.context, None, element.evidence)
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

    def _element(self, agent: str | None, events: tuple[Event, ...], **known: str) -> _Element:
        channels = {event.channel for event in events}
        target = Target(
            trajectory=Trajectory(events),
            agent=agent,
            personas=self.personas,
            channel=channels.pop() if len(channels) == 1 else "",
        )
        return _Element(target, events[-1].text, **known)

    def _unjudged(self, overall: float | None, reason: str) -> ScorerResult:
        return ScorerResult(dimension=self.dimension, overall=overall, reason=reason, token_usage=NO_TOKENS)


@dataclass(frozen=True, slots=True)
class _Element:
    """One thing that is judged by all propositions: a message, a pair, a trajectory."""

    target: Target
    snippet: str
    context: str = ""
    evidence: str = ""


def _score_of(
    weight: float, inverted: bool, results: tuple[JudgeResult, ...], elements: Sequence[_Element]
) -> PropositionScore:
    scored = [at for at, result in enumerate(results) if result.score is not None]
    judged = [at for at in scored if results[at].status == "judged"]
    # What does not apply, or shows nothing, says nothing about the rest; only if that is all there is, it counts.
    counted = judged or scored
    worst = min(counted, key=lambda at: results[at].score or 0.0, default=0)
    raws = [given for at in judged if (given := results[at].raw) is not None]
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
        super().__init__(judge, propositions, personas=[persona], batch=batch)
        self.persona = persona
        self.sample = _at_least_one("sample", sample)
        self.seed = seed

    def score(self, messages: Trajectory) -> ScorerResult:
        """Judge the persona's own messages, 9 if there are none. A sample is the same for the same seed."""
        return self.engine.run(self.asking(messages))

    async def ascore(self, messages: Trajectory) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(messages))

    def asking(self, messages: Trajectory) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        name = self.persona.name
        said = messages.actions_of(name)
        if not said:
            return self._unjudged(float(HIGHEST), f"there is no message of {name!r}")
        sampled = [said[at] for at in _sampled(len(said), self.sample, self.seed)]
        return (yield from self._judging([self._element(name, (event,)) for event in sampled]))


def _sampled(size: int, most: int, seed: int) -> list[int]:
    """At most `most` of the numbers below `size`, ascending: the same ones for the same seed."""
    return list(range(size)) if size <= most else sorted(random.Random(seed).sample(range(size), most))


def _at_least_one(parameter: str, value: int) -> int:
    given: Any = value
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"{parameter}: expected a whole number from 1, got {value!r}.")
    return value


class _OneAgent(_Scorer):
    """A scorer of one agent's messages. `agent` None is the single persona's name, else whoever alone speaks."""

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: PropositionSet | None = None,
        *,
        agent: str | None = None,
        personas: Iterable[Persona] = (),
        batch: bool = True,
    ) -> None:
        super().__init__(judge, propositions, personas=personas, batch=batch)
        self.agent = self.personas[0].name if agent is None and len(self.personas) == 1 else agent

    def _own(self, messages: Trajectory) -> tuple[Event, ...]:
        """What the agent said. Raises `ConfigurationError` if several did and nobody says whom to judge."""
        if self.agent is None and len(messages.actors) > 1:
            raise ConfigurationError(
                f"expected the messages of one agent, got those of {', '.join(messages.actors)}. Pass agent=."
            )
        agent = self.agent or next(iter(messages.actors), "")
        return messages.actions_of(agent)


class ConsistencyScorer(_OneAgent):
    """Whether an agent sounds like itself: pairs of an earlier and a current message of the same channel.

    At most `pairs` of all pairs are judged, the same ones for the same `seed`.
    """

    dimension = "consistency"

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: PropositionSet | None = None,
        *,
        agent: str | None = None,
        personas: Iterable[Persona] = (),
        pairs: int = 10,
        seed: int = 0,
        batch: bool = True,
    ) -> None:
        super().__init__(judge, propositions, agent=agent, personas=personas, batch=batch)
        self.pairs = _at_least_one("pairs", pairs)
        self.seed = seed

    def score(self, current: Trajectory, history: Trajectory) -> ScorerResult:
        """Judge pairs. None without history, or without a common channel; 9 without a current message."""
        return self.engine.run(self.asking(current, history))

    async def ascore(self, current: Trajectory, history: Trajectory) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(current, history))

    def asking(self, current: Trajectory, history: Trajectory) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        before, now = self._own(history), self._own(current)
        if not before:
            return self._unjudged(None, "there is no earlier message to compare with")
        if not now:
            return self._unjudged(float(HIGHEST), "there is no current message")
        found = self._pairs(before, now)
        if not found:
            return self._unjudged(None, "no channel has an earlier and a current message")
        context = "The first message is an earlier one, the second one is current."
        return (
            yield from self._judging([self._element(now[0].actor, pair, context=context) for pair in found])
        )

    def _pairs(self, before: Sequence[Event], now: Sequence[Event]) -> list[tuple[Event, Event]]:
        earlier, later = _by_channel(before), _by_channel(now)
        common = [channel for channel in earlier if channel in later]
        sizes = [len(earlier[channel]) * len(later[channel]) for channel in common]
        pairs: list[tuple[Event, Event]] = []
        # The cross product may be huge; it is counted, not made.
        for place in _sampled(sum(sizes), self.pairs, self.seed):
            at = 0
            while place >= sizes[at]:
                place -= sizes[at]
                at += 1
            first, second = divmod(place, len(later[common[at]]))
            pairs.append((earlier[common[at]][first], later[common[at]][second]))
        return pairs


def _by_channel(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.channel, []).append(event)
    return found


class FluencyScorer(_OneAgent):
    """Whether an agent says new things in new words: all its messages at once, beside how much they repeat."""

    dimension = "fluency"

    def score(self, messages: Trajectory) -> ScorerResult:
        """Judge the agent's messages, 9 if there are none."""
        return self.engine.run(self.asking(messages))

    async def ascore(self, messages: Trajectory) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(messages))

    def asking(self, messages: Trajectory) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        said = self._own(messages)
        if not said:
            return self._unjudged(float(HIGHEST), "there is no message")
        texts = [event.text for event in said]
        numbers = text_statistics(texts)
        element = self._element(said[0].actor, said, evidence=_about_texts(texts, numbers))
        result = yield from self._judging([element], evidence=numbers)
        return replace(result, sample_size=len(said))


def _about_texts(texts: Sequence[str], numbers: Mapping[str, float]) -> str:
    often = list(repeated_ngrams(texts, 3).items())[:10]
    lines = [
        f"messages: {len(texts)}",
        f"mean overlap of the 3-grams of two messages: {numbers['repetition_3']:.4f}",
        f"mean overlap of the 5-grams of two messages: {numbers['repetition_5']:.4f}",
        f"different words of all words: {numbers['unique_ratio']:.4f}",
        f"words in a sentence: {numbers['average_sentence_length']:.2f}",
        f"punctuation marks of all characters: {numbers['punctuation_density']:.4f}",
        *(f"in {count} messages: {ngram}" for ngram, count in often),
    ]
    return "\n".join(lines)


class ConvergenceScorer(_Scorer):
    """Whether the participants of a conversation keep voices of their own: high is distinct, low is alike."""

    dimension = "convergence"

    def score(self, conversation: Trajectory) -> ScorerResult:
        """Judge a whole conversation. 9 if it is empty, None if a single participant speaks."""
        return self.engine.run(self.asking(conversation))

    async def ascore(self, conversation: Trajectory) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(conversation))

    def asking(self, conversation: Trajectory) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        actors = conversation.actors
        if not actors:
            return self._unjudged(float(HIGHEST), "there is no message")
        if len(actors) == 1:
            return self._unjudged(None, f"only {actors[0]!r} speaks, and there is nothing to diverge from")
        alike = vocabulary_similarity(
            {actor: [event.text for event in conversation.actions_of(actor)] for actor in actors}
        )
        numbers = {" / ".join(pair): value for pair, value in alike.items()}
        lines = ["share of the words of two participants that both use:"]
        lines += [f"{visible(pair)}: {value:.4f}" for pair, value in numbers.items()]
        element = self._element(None, tuple(conversation), evidence="\n".join(lines))
        result = yield from self._judging([element], evidence=numbers)
        return replace(result, sample_size=len(conversation))


REPORT_QUESTION = (
    "Please consolidate the ideas that the group came up with: list each of them, with what it is about."
)
"""What a rapporteur is asked at the end of a conversation; its answer is the `report`."""


class IdeasScorer:
    """How many distinct ideas a conversation has: a count, which is neither cut off at 9 nor part of a mean.

    "enumerate" has the judge list the ideas of the whole conversation; "rapporteur" those of a report that the first
    participant gave when asked `REPORT_QUESTION`. Counts of the two methods do not compare.
    """

    dimension = IDEAS

    def __init__(
        self, judge: PropositionEngine | Judge | ChatModel | str, *, method: Method = "enumerate"
    ) -> None:
        if method not in get_args(Method):
            raise ConfigurationError(f"method: expected 'enumerate' or 'rapporteur', got {method!r}.")
        self.engine = judge if isinstance(judge, PropositionEngine) else PropositionEngine(judge)
        self.method: Method = method

    def score(self, conversation: Trajectory, report: str | None = None) -> ScorerResult:
        """Count. 0 for an empty conversation; None if no list could be had. `report` is for "rapporteur" alone."""
        return self.engine.run(self.asking(conversation, report))

    async def ascore(self, conversation: Trajectory, report: str | None = None) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(conversation, report))

    def asking(self, conversation: Trajectory, report: str | None = None) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        if (report is not None) != (self.method == "rapporteur"):
            raise ConfigurationError("a report is what the method 'rapporteur' counts in, and no other.")
        known: dict[str, Any] = {"dimension": IDEAS, "method": self.method, "sample_size": len(conversation)}
        if not conversation.events:
            return ScorerResult(overall=0, reason="there is no message", token_usage=NO_TOKENS, **known)
        text = conversation.text() if report is None else report
        request = JudgeRequest(
            purpose="ideas",
            propositions=(),
            messages=counting_ideas(text, of_report=report is not None),
            schema=IdeasAnswer,
        )
        outcomes = yield [request]
        known["calls"], known["token_usage"] = cost(outcomes)
        reading = read(request, outcomes[0])
        if reading.answer is None:
            return ScorerResult(overall=None, reason=reading.problem, **known)
        ideas: list[str] = reading.answer.ideas
        return ScorerResult(
            overall=len(ideas) or reading.answer.count or 0,
            ideas=tuple(ideas),
            reason=reading.answer.reasoning,
            **known,
        )
