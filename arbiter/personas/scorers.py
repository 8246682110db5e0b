"""Five scorers: adherence, consistency, fluency, convergence and the quantity of ideas.

proposition   p = mean of the judge's scores over the sampled elements; of an inverted one 9 - p
dimension     Σ weight × p / Σ weight, over the propositions that have a score
overall       mean of the dimensions that have a score, ideas aside
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata

from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel, visible
from arbiter.personas.answers import HIGHEST, IdeasAnswer
from arbiter.personas.asking import Steps, together
from arbiter.personas.characters import Names, Persona
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
from arbiter.personas.propositions import (
    Proposition,
    PropositionSet,
    load_propositions,
    variables_in,
    without_value,
)
from arbiter.personas.texts import repeated_ngrams, text_statistics, vocabulary_similarity
from arbiter.personas.trajectories import SOMEBODY, Event, Trajectory

_log = logging.getLogger("arbiter.personas")
IDEAS = "ideas_quantity"
Propositions = PropositionSet | Iterable[Proposition] | str | Path | None
Method = Literal["enumerate", "rapporteur"]
T = TypeVar("T")
_ABOUT_AN_AGENT = frozenset({"agent_name", "channel_name", "recipient_name"})
_ABOUT_A_MESSAGE = _ABOUT_AN_AGENT | {"action", "action_type"}
_PAIR = "The first message is an earlier one, the second one is current."


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


Conversation = Trajectory | Iterable[BaseMessage | Mapping[str, Any] | tuple[str, Any] | Event]
"""What a scorer reads: a trajectory, its events, or messages, as LangChain takes them."""


def _trajectory(conversation: Conversation) -> Trajectory:
    if isinstance(conversation, Trajectory):
        return conversation
    parts: Any = conversation
    if isinstance(conversation, list | tuple) and all(isinstance(one, Event) for one in parts):
        return Trajectory.of(parts)
    return Trajectory.from_messages(parts)


def _engine(judge: PropositionEngine | Judge | ChatModel | str) -> PropositionEngine:
    return judge if isinstance(judge, PropositionEngine) else PropositionEngine(judge)


def _personas(given: Any) -> tuple[Persona, ...]:
    one = isinstance(given, Persona | str | Path | Mapping)
    many: list[Any] = [given] if one else list(given)
    return tuple(map(Persona.of, many))


class _Scorer:
    """What the four judged dimensions share: an engine, and the propositions of their dimension.

    `judge` is a judge, a chat model, a text for one, or an engine that is set up otherwise. `propositions` are a set, a
    folder of them, or None for those that ship. `variables` fill the claims' templates, beside those that the scorer
    fills itself. `batch` False asks about each proposition on its own, which is dearer and more exact. Whether a
    judge is shown `personas` is said by the propositions, and those that ship for these dimensions say no.
    """

    dimension: str
    fills: frozenset[str] = frozenset({"channel_name"})
    """The variables that it can fill in a claim."""

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: Propositions = None,
        *,
        personas: Iterable[Persona] = (),
        variables: Mapping[str, str] | None = None,
        batch: bool = True,
    ) -> None:
        self.engine = _engine(judge)
        self.personas = _personas(personas)
        self.variables = dict(variables or {})
        self.propositions = self._propositions(propositions)
        self.batch = batch
        self._names = Names(self.personas)
        self._windowed = any(p.first_n is not None or p.last_n is not None for p in self.propositions)
        if self.unfilled:
            _log.warning("%s: %s", type(self).__name__, self.unfilled)

    def _propositions(self, given: Propositions) -> PropositionSet:
        if given is None or isinstance(given, str | Path):
            agent = self.personas[0].id if len(self.personas) == 1 else ""
            return load_propositions(given, self.dimension, agent or None, variables=self.variables)
        found = given if isinstance(given, PropositionSet) else PropositionSet(self.dimension, given)
        if found.dimension != self.dimension:
            raise ConfigurationError(
                f"expected propositions of {self.dimension!r}, got those of {found.dimension!r}."
            )
        return found

    @property
    def unfilled(self) -> str:
        """Which claims it can never ask about, because nobody fills one of their variables; "" for none."""
        wrong = {
            found.id: missing
            for found in self.propositions
            if (missing := sorted(variables_in(found.claim) - self.fills - self.variables.keys()))
        }
        return "; ".join(f"proposition {id!r}: {without_value(missing)}" for id, missing in wrong.items())

    @property
    def _alone(self) -> str | None:
        """Who says what has no name: the only persona."""
        return self.personas[0].name if len(self.personas) == 1 else None

    def _heard(self, given: Conversation) -> Trajectory:
        """A conversation with its speakers by the names of their personas."""
        found = _trajectory(given)
        if not isinstance(found.events, tuple):
            return found  # of the messages of a graph, whose speakers a `Cast` has named
        names = {event.actor: self._name(event.actor) for event in found}
        names |= {event.source: self._name(event.source) for event in found if event.source}
        if all(written == name for written, name in names.items()):
            return found
        return Trajectory(
            tuple(
                replace(event, actor=names[event.actor], source=names.get(event.source, ""))
                for event in found
            )
        )

    def _name(self, written: str) -> str:
        found = self._names.find(written)
        return found or (self._alone or written if written == SOMEBODY else written)

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
            reason=_first_problem(runs) if overall is None else _not_judged(scores),
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

    def _element(
        self,
        agent: str | None,
        events: Sequence[Event],
        *,
        before: Trajectory | None = None,
        variables: Mapping[str, str] | None = None,
        **known: str,
    ) -> _Element:
        """`events` are judged; `before` is what was said before them, None if they are a whole conversation."""
        channels = {event.channel for event in events}
        target = Target(
            trajectory=Trajectory(tuple(events)),
            agent=agent,
            personas=self.personas,
            channel=channels.pop() if len(channels) == 1 else "",
            before=before,
        )
        own = next((event for event in reversed(events) if event.actor == agent), events[-1])
        return _Element(target, own.text, {**(variables or {}), **self.variables}, **known)

    def _about(self, action: Event, *conversation: Iterable[Event]) -> dict[str, str]:
        """The variables of one message."""
        known = {"action": action.text, "action_type": action.type}
        return {**known, **self._recipient(action, *conversation)}

    def _recipient(self, said: Event, *conversation: Iterable[Event]) -> dict[str, str]:
        """Who that was said to, as a variable: the other speaker, where there are two in its channel."""
        if not any("recipient_name" in variables_in(found.claim) for found in self.propositions):
            return {}
        speakers = {
            event.actor if event.kind == "action" else event.source
            for events in conversation
            for event in events
            if event.channel == said.channel
        }
        others = speakers - {said.actor, ""}
        return {"recipient_name": others.pop()} if len(others) == 1 else {}

    def _unjudged(self, overall: float | None, reason: str) -> ScorerResult:
        return ScorerResult(dimension=self.dimension, overall=overall, reason=reason, token_usage=NO_TOKENS)

    def _silent(self, heard: Trajectory, agent: str) -> ScorerResult:
        """The result of a conversation without a message of the agent: 9 if it has none at all, else no score."""
        reason = f"there is no message of {agent!r}" if agent else "there is no message"
        if not heard.events:
            return self._unjudged(float(HIGHEST), reason)
        others = ", ".join(map(repr, heard.actors)) or "nobody"
        return self._unjudged(None, f"{reason}; those who speak: {others}")


@dataclass(frozen=True, slots=True)
class _Element:
    """One thing that is judged by all propositions: a message, a pair, a trajectory."""

    target: Target
    snippet: str
    variables: Mapping[str, str]
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


def _not_judged(scores: Sequence[PropositionScore]) -> str:
    """Which propositions have no score and why, or why none had to be judged."""
    if not any(score.judged for score in scores):
        return f"nothing was judged: {scores[0].reasoning}"
    return "; ".join(f"{found.proposition_id}: {found.reasoning}" for found in scores if found.score is None)


def _first_problem(runs: Sequence[Judgements]) -> str:
    problems = [result.problem for run in runs for result in run if result.problem]
    return f"no proposition could be judged: {problems[0]}" if problems else "no proposition has a weight"


class AdherenceScorer(_Scorer):
    """Whether what an agent says fits its persona.

    `unit` "message" judges each message, of at most `sample`, on its own; with `first_n` or `last_n` in a proposition
    the judge is also shown that much of the conversation up to it. `unit` "trajectory" judges all that the agent says
    as a whole, in the conversation and with one score for each proposition.

    `persona` is a `Persona`, its YAML file, or one that ships ("arbiter:ilka"). A message is the persona's if it is
    signed with the name or id, in any spelling, or if it is an AI message without a name. `propositions` None are those
    that ship for everybody and for the persona's `id`.
    """

    dimension = "adherence"

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        persona: Persona | str | Path | Mapping[str, Any],
        propositions: Propositions = None,
        *,
        unit: Literal["message", "trajectory"] = "message",
        sample: int = 20,
        seed: int = 0,
        variables: Mapping[str, str] | None = None,
        batch: bool = True,
    ) -> None:
        self.unit = _one_of("unit", unit, ("message", "trajectory"))
        self.fills = _ABOUT_A_MESSAGE if unit == "message" else _ABOUT_AN_AGENT
        self.persona = Persona.of(persona)
        if not self.persona.text.strip():
            raise ConfigurationError(
                f"adherence to the persona of {self.persona.name!r} cannot be judged: its description is empty."
            )
        super().__init__(judge, propositions, personas=[self.persona], variables=variables, batch=batch)
        self.sample = _at_least_one("sample", sample)
        self.seed = seed

    def score(self, messages: Conversation, *, before: Conversation = ()) -> ScorerResult:
        """Judge the persona's own messages: 9 for an empty conversation, None for one in which it says nothing.

        `before` is what was said before `messages`; it is context and not judged. A sample is the same for the same
        seed.
        """
        return self.engine.run(self.asking(messages, before))

    async def ascore(self, messages: Conversation, *, before: Conversation = ()) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(messages, before))

    def asking(self, messages: Conversation, before: Conversation = ()) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        name, heard, earlier = self.persona.name, self._heard(messages), self._heard(before)
        said = heard.actions_of(name)
        if not said:
            return self._silent(heard, name)
        if self.unit == "trajectory":
            known = self._recipient(said[0], heard, earlier)
            whole = [*earlier, *heard] if earlier.events else heard.events
            result = yield from self._judging([self._element(name, whole, variables=known)])
            return replace(result, sample_size=len(said))
        places = _places(heard, name)
        elements: list[_Element] = []
        for at in _sampled(len(said), self.sample, self.seed):
            event, place, channel = places[at]
            context = _joined(earlier, channel[:place]) if self._windowed else Trajectory()
            known = self._about(event, channel, earlier)
            elements.append(self._element(name, (event,), before=context, variables=known))
        return (yield from self._judging(elements))


def _joined(before: Trajectory, events: Sequence[Event]) -> Trajectory:
    return Trajectory((*before, *events)) if events else before


def _places(heard: Trajectory, agent: str) -> list[tuple[Event, int, list[Event]]]:
    """Each action of the agent with its place in its channel, and that channel."""
    channels: dict[str, list[Event]] = {}
    found: list[tuple[Event, int, list[Event]]] = []
    for event in heard:
        channel = channels.setdefault(event.channel, [])
        if event.kind == "action" and event.actor == agent:
            found.append((event, len(channel), channel))
        channel.append(event)
    return found


def _sampled(size: int, most: int, seed: int) -> list[int]:
    """At most `most` of the numbers below `size`, ascending: the same ones for the same seed."""
    return list(range(size)) if size <= most else sorted(random.Random(seed).sample(range(size), most))


def _at_least_one(parameter: str, value: int) -> int:
    given: Any = value
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"{parameter}: expected a whole number from 1, got {value!r}.")
    return value


def _one_of(parameter: str, value: T, allowed: Sequence[T]) -> T:
    if value not in allowed:
        choice = " or ".join(map(repr, allowed))
        raise ConfigurationError(f"{parameter}: expected {choice}, got {value!r:.80}.")
    return value


class _OneAgent(_Scorer):
    """A scorer of one agent's messages. `agent` None is the single persona's name, else whoever alone speaks."""

    fills = _ABOUT_AN_AGENT

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: Propositions = None,
        *,
        agent: str | None = None,
        personas: Iterable[Persona] = (),
        variables: Mapping[str, str] | None = None,
        batch: bool = True,
    ) -> None:
        super().__init__(judge, propositions, personas=personas, variables=variables, batch=batch)
        if agent is None:
            self.agent = super()._alone
        else:
            self.agent = self._names.find(agent) or agent
            if self.agent not in {persona.name for persona in self.personas}:
                self._names = Names([*self.personas, Persona(self.agent, "")])

    @property
    def _alone(self) -> str | None:
        """Who says what has no name: the agent, unless one of several personas might have."""
        return self.agent if len(self.personas) < 2 else None

    def _speaker(self, *heard: Trajectory) -> str:
        """Whose messages are judged, "" for nobody's. Raises `ConfigurationError` for several without `agent`."""
        actors = dict.fromkeys(actor for part in heard for actor in part.actors)
        if self.agent is None and len(actors) > 1:
            raise ConfigurationError(
                f"expected the messages of one agent, got those of {', '.join(actors)}. Pass agent=."
            )
        return self.agent or next(iter(actors), "")


class ConsistencyScorer(_OneAgent):
    """Whether an agent sounds like itself.

    `unit` "pair" judges pairs of an earlier and a current message of the same channel: at most `pairs` of them, the
    same ones for the same `seed`. With `first_n` or `last_n` in a proposition the judge is also shown that much of the
    conversation up to the current message. `unit` "trajectory" judges all that the agent says as a whole, with one
    score for each proposition.
    """

    dimension = "consistency"

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: Propositions = None,
        *,
        agent: str | None = None,
        personas: Iterable[Persona] = (),
        unit: Literal["pair", "trajectory"] = "pair",
        pairs: int = 10,
        seed: int = 0,
        variables: Mapping[str, str] | None = None,
        batch: bool = True,
    ) -> None:
        self.unit = _one_of("unit", unit, ("pair", "trajectory"))
        self.fills = _ABOUT_A_MESSAGE if unit == "pair" else _ABOUT_AN_AGENT
        super().__init__(
            judge, propositions, agent=agent, personas=personas, variables=variables, batch=batch
        )
        self.pairs = _at_least_one("pairs", pairs)
        self.seed = seed

    def score(self, current: Conversation, history: Conversation | None = None) -> ScorerResult:
        """Judge pairs, or the trajectory of `history` and then `current`.

        Pairs take a `history`. None where there is nothing to compare with: no earlier message of the agent, or none of
        the same channel; one message for the unit "trajectory". 9 for pairs without any current message.
        """
        return self.engine.run(self.asking(current, history))

    async def ascore(self, current: Conversation, history: Conversation | None = None) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(current, history))

    def asking(self, current: Conversation, history: Conversation | None = None) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        if history is None and self.unit == "pair":
            raise ConfigurationError(
                "pairs are of an earlier and a current message: pass a history. "
                "ConsistencyScorer(..., unit='trajectory') judges one trajectory."
            )
        earlier, heard = self._heard(() if history is None else history), self._heard(current)
        agent = self._speaker(earlier, heard)
        before, now = earlier.actions_of(agent), heard.actions_of(agent)
        if self.unit == "trajectory":
            return (yield from self._judging_all(agent, [*earlier, *heard], [*before, *now]))
        if not before:
            return self._unjudged(None, "there is no earlier message to compare with")
        if not now:
            return self._silent(heard, agent)
        found = self._pairs(before, now)
        if not found:
            return self._unjudged(None, "no channel has an earlier and a current message")
        places = (
            {id(event): channel[:place] for event, place, channel in _places(heard, agent)}
            if self._windowed
            else {}
        )
        elements: list[_Element] = []
        for pair in found:
            known = {
                "action": pair[1].text,
                "action_type": pair[1].type,
                **self._recipient(pair[1], earlier, heard),
            }
            context: Iterable[Event] = ()
            if self._windowed:
                same = [
                    event for event in earlier if event.channel == pair[1].channel and event is not pair[0]
                ]
                context = [*same, *places[id(pair[1])]]
            elements.append(
                self._element(agent, pair, before=Trajectory(tuple(context)), variables=known, context=_PAIR)
            )
        return (yield from self._judging(elements))

    def _judging_all(self, agent: str, events: Sequence[Event], said: Sequence[Event]) -> Steps[ScorerResult]:
        if len(said) < 2:
            return self._unjudged(None, f"there are fewer than two messages of {agent!r} to compare")
        known = self._recipient(said[0], events)
        result = yield from self._judging([self._element(agent, events, variables=known)])
        return replace(result, sample_size=len(said))

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

    def score(self, messages: Conversation) -> ScorerResult:
        """Judge the agent's messages: 9 for an empty conversation, None for one in which it says nothing."""
        return self.engine.run(self.asking(messages))

    async def ascore(self, messages: Conversation) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(messages))

    def asking(self, messages: Conversation) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        heard = self._heard(messages)
        agent = self._speaker(heard)
        said = heard.actions_of(agent)
        if not said:
            return self._silent(heard, agent)
        texts = [event.text for event in said]
        numbers = text_statistics(texts)
        known = self._recipient(said[0], heard)
        element = self._element(agent, said, variables=known, evidence=_about_texts(texts, numbers))
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

    def score(self, conversation: Conversation) -> ScorerResult:
        """Judge a whole conversation. 9 if it is empty, None if fewer than two participants speak."""
        return self.engine.run(self.asking(conversation))

    async def ascore(self, conversation: Conversation) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(conversation))

    def asking(self, given: Conversation) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        conversation = self._heard(given)
        actors = conversation.actors
        if not actors:
            return self._silent(conversation, "")
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
        self.engine = _engine(judge)
        self.method: Method = method

    def score(self, conversation: Conversation, report: str | None = None) -> ScorerResult:
        """Count. 0 for an empty conversation; None if no list could be had. `report` is for "rapporteur" alone."""
        return self.engine.run(self.asking(conversation, report))

    async def ascore(self, conversation: Conversation, report: str | None = None) -> ScorerResult:
        """As `score`."""
        return await self.engine.arun(self.asking(conversation, report))

    def asking(self, given: Conversation, report: str | None = None) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        conversation = _trajectory(given)
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
