"""Five scorers: adherence, consistency, fluency, convergence and the quantity of ideas.

proposition   p = mean of the judge's scores over the sampled elements; of an inverted one 9 - p
dimension     Σ weight × p / Σ weight, over the propositions that have a score
overall       mean of the dimensions that have a score, ideas aside
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast, get_args

from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata

from arbiter._values.parameters import is_several
from arbiter._values.states import is_whole
from arbiter._values.versions import Version, hash_of
from arbiter.errors import ConfigurationError, Unscored
from arbiter.models import NO_TOKENS, ChatModel, Judge, JudgeRequest, total_usage, visible
from arbiter.personas._answers import HIGHEST, BatchAnswer, IdeasAnswer, ScoreAnswer
from arbiter.personas._asking import Steps, together
from arbiter.personas._characters import Names, Persona
from arbiter.personas._engine import (
    Judgements,
    JudgeResult,
    PropositionEngine,
    cost,
    read,
)
from arbiter.personas._prompts import TEXTS, counting_ideas
from arbiter.personas._propositions import (
    Proposition,
    PropositionSet,
    Variables,
    file_of,
    load_propositions,
    texts_of,
    variables_in,
    without_value,
)
from arbiter.personas._targets import Target
from arbiter.personas._texts import as_written, repeated_ngrams, text_statistics, vocabulary_similarity
from arbiter.personas._trajectories import SOMEBODY, Event, LazyEvents, Trajectory
from arbiter.verdicts import Outcome

_log = logging.getLogger("arbiter.personas")
IDEAS = "ideas_quantity"
Propositions = PropositionSet | Iterable[Proposition] | str | Path | None
Method = Literal["enumerate", "rapporteur"]
T = TypeVar("T")
_ABOUT_AN_AGENT = frozenset({"agent_name", "channel_name", "recipient_name"})
_ABOUT_A_MESSAGE = _ABOUT_AN_AGENT | {"action", "action_type"}
_Speakers = Mapping[str, set[str]]
RECENT = 100
"""Events before the judged part that are read: a conversation may be of any length."""
_PAIR = "The first message is an earlier one, the second one is current."


@dataclass(frozen=True, slots=True, kw_only=True)
class PropositionScore:
    """One proposition over all sampled elements.

    `score` is the final mean, 0.0 to 9.0; None if no element has a score. `raw` is the mean of the judge's
    own scores. `reasoning` and `snippet` are those of the worst element. `judged` counts the elements that
    the judge scored.
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
        """The proposition's recommendations, each text once."""
        texts = (result.recommendations for result in self.results)
        return tuple(dict.fromkeys(text for text in texts if text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementScore:
    """One judged message, pair or trajectory. `id` is a hash of what was judged, so that two results of the
    same texts can be compared element by element.

    `score` is the weighted mean of its propositions, 0.0 to 9.0; None unless the `outcome` is "scored".
    """

    id: str
    score: float | None
    outcome: Outcome = "scored"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerResult:
    """The score of one dimension.

    `overall` is 0.0 to 9.0 (a count, for ideas); None if there is no score. `reason` explains a missing
    score, and a 9 that needed no judgement. `sample_size` counts the judged messages, pairs or events.
    `evidence` are the measured numbers that the judge saw. `token_usage` is None if the model does not report
    it. `method` and `ideas` are those of the ideas scorer. `judged` counts the judgements behind the score.
    Without any, `outcome` is not "scored": a 9 that needed no judgement is "not_applicable".
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
    judged: int = 0
    elements: tuple[ElementScore, ...] = ()
    problem_outcome: Unscored = "not_applicable"
    """The outcome if nothing was judged."""

    @property
    def outcome(self) -> Outcome:
        """ "scored", or the reason why no judgement is behind the score."""
        return "scored" if self.judged and self.overall is not None else self.problem_outcome


def unscored(outcome: Outcome) -> Unscored:
    """The outcome of a result without a score."""
    return outcome if outcome in ("timeout", "error", "abstained") else "not_applicable"


def weighted_mean(scores: Iterable[tuple[float, float | None]]) -> float | None:
    """Σ weight × score / Σ weight of pairs (weight, score); pairs without a score are left out of both
    sums."""
    # Exact decimal fractions: in binary, a mean of only sevens may come to 6.999999999999999.
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
"""The input of a scorer: a trajectory, its events, or messages in any form that LangChain accepts."""


def _trajectory(conversation: Conversation) -> Trajectory:
    if isinstance(conversation, Trajectory):
        return conversation
    parts: Any = conversation
    if isinstance(conversation, list | tuple) and all(isinstance(one, Event) for one in parts):
        return Trajectory.of(parts)
    return Trajectory.from_messages(parts)


def _engine(judge: PropositionEngine | Judge | ChatModel | str) -> PropositionEngine:
    return judge if isinstance(judge, PropositionEngine) else PropositionEngine(judge)


def _personas(given: object) -> tuple[Persona, ...]:
    personas: Any = given
    return tuple(map(Persona.of, given if is_several(given) else [personas]))


class _Asking:
    """An object with an engine, whose scores have a version."""

    engine: PropositionEngine
    version: Any = Version()

    def texts(self) -> Mapping[str, Any]:
        """The texts that a judge is sent, by name."""
        raise NotImplementedError

    def version_parts(self) -> Mapping[str, str]:
        """Hashes of what the scores depend on, by name."""
        return {"class": hash_of(type(self)), **{name: hash_of(part) for name, part in self.texts().items()}}

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> Self:
        """A copy that asks the judge that `wrap` returns in place of its own, each question `votes` times
        (None: as often as before)."""
        new = copy(self)
        new.engine = PropositionEngine(
            wrap(self.engine.judge),
            level=self.engine.level,
            timeout=self.engine.timeout,
            concurrency=self.engine.concurrency,
            votes=votes or self.engine.votes,
            purse=self.engine.purse,
        )
        return new


class _Scorer(_Asking):
    """The common part of the four judged dimensions: an engine, and the propositions of the dimension.

    `judge` is a judge, a chat model, a text for one, or an engine with other settings. `propositions` are a
    set, a folder of them, or None for the shipped ones. `variables` fill the claims' templates, besides those
    that the scorer fills itself. `batch=False` asks about each proposition separately, which costs more and
    is more exact. The propositions decide whether a judge sees `personas`; the shipped ones of these
    dimensions hide them.
    """

    dimension: str
    fills: frozenset[str] = frozenset({"channel_name"})
    """The variables that this scorer fills in a claim."""

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: Propositions = None,
        *,
        personas: Iterable[Persona] = (),
        variables: Variables | None = None,
        batch: bool = True,
    ) -> None:
        self.engine = _engine(judge)
        self.personas = _personas(personas)
        self.variables = texts_of(variables)
        self.propositions = self._propositions(propositions)
        self.batch = batch
        self._names = Names(self.personas)
        self._windowed = any(p.first_n is not None or p.last_n is not None for p in self.propositions)
        if self.unfilled:
            _log.warning("%s: %s", type(self).__name__, self.unfilled)

    def _propositions(self, given: Propositions) -> PropositionSet:
        if given is None or isinstance(given, str | Path):
            agent = self.personas[0].id if len(self.personas) == 1 else ""
            return load_propositions(given, self.dimension, file_of(agent), variables=self.variables)
        found = given if isinstance(given, PropositionSet) else PropositionSet(self.dimension, given)
        if found.dimension != self.dimension:
            raise ConfigurationError(
                f"expected propositions of {self.dimension!r}, got those of {found.dimension!r}."
            )
        return found

    @property
    def unfilled(self) -> str:
        """The claims that can never be asked, because one of their variables has no value; "" if there are
        none."""
        wrong = {
            found.id: missing
            for found in self.propositions
            if (missing := sorted(variables_in(found.claim) - self.fills - self.variables.keys()))
        }
        return "; ".join(f"proposition {id!r}: {without_value(missing)}" for id, missing in wrong.items())

    @property
    def _alone(self) -> str | None:
        """The speaker of unnamed messages: the only persona, or None."""
        return self.personas[0].name if len(self.personas) == 1 else None

    def _heard(self, given: Conversation) -> Trajectory:
        """The conversation, with its speakers under the names of their personas."""
        found = _trajectory(given)
        if not isinstance(found.events, tuple):
            return found  # lazy events come from a graph, whose speakers a `Cast` has named
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

    def _judging(
        self, elements: Sequence[_Element], sample_size: int | None = None, **known: Any
    ) -> Steps[ScorerResult]:
        """Judge each element by each proposition, and combine the scores. `known` are further fields of the result."""
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
            calls=sum(run.calls for run in runs),
            token_usage=total_usage(run.token_usage for run in runs),
            judged=sum(score.judged for score in scores),
            elements=_element_scores(elements, runs, self.propositions),
            problem_outcome=_problem_outcome(result for run in runs for result in run),
            sample_size=len(elements) if sample_size is None else sample_size,
            **known,
        )

    def texts(self) -> Mapping[str, Any]:
        personas = [[persona.name, persona.text] for persona in self.personas]
        settings = {name: getattr(self, name) for name in _SETTINGS if hasattr(self, name)}
        return {
            "claims": [replace(each, recommendations_for_improvement=None) for each in self.propositions],
            "persona": personas,
            "prompt": [TEXTS, self.variables],
            "answer": [ScoreAnswer, BatchAnswer],
            "sampling": {**settings, "level": self.engine.level},
        }

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
        """An element to judge. `before` is the conversation before `events`; None if they are a whole
        conversation."""
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

    def _speakers(self, heard: Trajectory, earlier: Trajectory) -> _Speakers:
        """The speakers of each channel, among the judged events and the last events before them; empty
        unless a claim names a recipient."""
        found: dict[str, set[str]] = {}
        if any("recipient_name" in variables_in(proposition.claim) for proposition in self.propositions):
            for event in (*islice(reversed(earlier.events), RECENT), *heard):
                speaker = event.actor if event.kind == "action" else event.source
                found.setdefault(event.channel, set()).add(speaker)
        return found

    def _unjudged(self, overall: float | None, reason: str) -> ScorerResult:
        return ScorerResult(dimension=self.dimension, overall=overall, reason=reason, token_usage=NO_TOKENS)

    def _silent(self, heard: Trajectory, agent: str) -> ScorerResult:
        """The result for an agent without messages: 9 for an empty conversation, else no score."""
        reason = f"there is no message of {agent!r}" if agent else "there is no message"
        if not heard.events:
            return self._unjudged(float(HIGHEST), reason)
        others = ", ".join(map(repr, heard.actors)) or "nobody"
        return self._unjudged(None, f"{reason}; speakers: {others}")


@dataclass(frozen=True, slots=True)
class _Element:
    """One unit that all propositions judge: a message, a pair, or a trajectory."""

    target: Target
    snippet: str
    variables: Mapping[str, str]
    context: str = ""
    evidence: str = ""


def element_id(agent: str | None, events: Iterable[Event]) -> str:
    """The id of judged events: a hash of their texts and of the agent."""
    return hash_of([agent, [[event.actor, event.type, event.text] for event in events]])[:16]


def _score_of(
    weight: float, inverted: bool, results: tuple[JudgeResult, ...], elements: Sequence[_Element]
) -> PropositionScore:
    scored = [at for at, result in enumerate(results) if result.score is not None]
    judged = [at for at in scored if results[at].status == "judged"]
    # Elements without a judgement (the claim does not apply, or lacks evidence) count only if there are no others.
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


_SETTINGS = ("unit", "sample", "pairs", "seed", "batch")


def _element_scores(
    elements: Sequence[_Element], runs: Sequence[Judgements], propositions: PropositionSet
) -> tuple[ElementScore, ...]:
    found: list[ElementScore] = []
    seen: Counter[str] = Counter()
    for element, run in zip(elements, runs, strict=True):
        id = element_id(element.target.agent, element.target.trajectory)
        seen[id] += 1
        score = weighted_mean(
            (proposition.weight, result.score)
            for proposition, result in zip(propositions, run, strict=True)
            if result.status == "judged"
        )
        outcome: Outcome = "scored" if score is not None else _problem_outcome(run)
        found.append(
            ElementScore(id=id if seen[id] == 1 else f"{id}#{seen[id]}", score=score, outcome=outcome)
        )
    return tuple(found)


def _problem_outcome(results: Iterable[JudgeResult]) -> Unscored:
    """The outcome of judgements that gave no score: the worst of theirs."""
    statuses = {result.status for result in results}
    return "error" if "error" in statuses else "timeout" if "timeout" in statuses else "not_applicable"


def _not_judged(scores: Sequence[PropositionScore]) -> str:
    """The propositions without a score and the reason, or the reason why no judgement was needed."""
    if not any(score.judged for score in scores):
        return f"nothing was judged: {scores[0].reasoning}"
    return "; ".join(f"{found.proposition_id}: {found.reasoning}" for found in scores if found.score is None)


def _first_problem(runs: Sequence[Judgements]) -> str:
    problems = [result.problem for run in runs for result in run if result.problem]
    return f"no proposition could be judged: {problems[0]}" if problems else "no proposition has a weight"


class AdherenceScorer(_Scorer):
    """How well an agent's messages fit its persona.

    `unit` "message" judges at most `sample` messages separately; with `first_n` or `last_n` in a proposition
    the judge also sees that much of the conversation up to the message. `unit` "trajectory" judges all
    messages of the agent as a whole, within the conversation, with one score for each proposition.

    `persona` is a `Persona`, its YAML file, or a shipped one ("arbiter:ilka"). A message belongs to the
    persona if it is signed with the name or id, in any spelling, or if it is an AI message without a name.
    `propositions` None stands for the shipped ones, general and for the persona's `id`.
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
        variables: Variables | None = None,
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
        """Judge the persona's own messages: 9 for an empty conversation, None if the persona says nothing.

        `before` is the conversation before `messages`; it is context and not judged. The same seed gives the
        same sample.
        """
        return self.engine.run(self.asking(messages, before))

    async def ascore(self, messages: Conversation, *, before: Conversation = ()) -> ScorerResult:
        """Async version of `score`."""
        return await self.engine.arun(self.asking(messages, before))

    def asking(self, messages: Conversation, before: Conversation = ()) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        name, heard, earlier = self.persona.name, self._heard(messages), self._heard(before)
        said = heard.actions_of(name)
        if not said:
            return self._silent(heard, name)
        if self.unit == "trajectory":
            known = _recipient(said[0], self._speakers(heard, earlier))
            whole = [*earlier, *heard] if earlier.events else heard.events
            element = self._element(name, whole, variables=known)
            return (yield from self._judging([element], sample_size=len(said)))
        places = _places(heard, name)
        speakers = self._speakers(heard, earlier)
        elements: list[_Element] = []
        for at in _sampled(len(said), self.sample, self.seed):
            event, place, channel = places[at]
            context = _joined(earlier, channel[:place]) if self._windowed else Trajectory()
            known = _about_message(event, speakers)
            elements.append(self._element(name, (event,), before=context, variables=known))
        return (yield from self._judging(elements))


def _recipient(said: Event, speakers: _Speakers) -> dict[str, str]:
    """The recipient of a message, as a variable: the other speaker, if its channel has exactly two."""
    others = speakers.get(said.channel, set()) - {said.actor, ""}
    return {"recipient_name": others.pop()} if len(others) == 1 else {}


def _about_message(said: Event, speakers: _Speakers) -> dict[str, str]:
    """The variables of a message that is judged by itself, or after an earlier one."""
    return {"action": said.text, "action_type": said.type, **_recipient(said, speakers)}


def _joined(before: Trajectory, events: Sequence[Event]) -> Trajectory:
    if isinstance(before.events, LazyEvents):
        return Trajectory(before.events.then(events))
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
    if not is_whole(value, least=1):
        raise ConfigurationError(f"{parameter}: expected a whole number from 1, got {value!r}.")
    return value


def _one_of(parameter: str, value: T, allowed: Sequence[T]) -> T:
    if value not in allowed:
        choice = " or ".join(map(repr, allowed))
        raise ConfigurationError(f"{parameter}: expected {choice}, got {value!r:.80}.")
    return value


class _OneAgent(_Scorer):
    """A scorer of one agent's messages. By default `agent` is the single persona, else the only speaker."""

    fills = _ABOUT_AN_AGENT

    def __init__(
        self,
        judge: PropositionEngine | Judge | ChatModel | str,
        propositions: Propositions = None,
        *,
        agent: str | None = None,
        personas: Iterable[Persona] = (),
        variables: Variables | None = None,
        batch: bool = True,
    ) -> None:
        super().__init__(judge, propositions, personas=personas, variables=variables, batch=batch)
        if agent is None:
            self.agent = super()._alone
        elif not isinstance(cast(Any, agent), str):
            raise ConfigurationError(
                f"agent: expected a name, got {agent!r:.80}. Pass a persona in personas=."
            )
        else:
            self.agent = self._names.find(agent) or agent
            if self.agent not in {persona.name for persona in self.personas}:
                self._names = Names([*self.personas, Persona(self.agent, "")])

    @property
    def _alone(self) -> str | None:
        """The speaker of unnamed messages: the agent, unless several personas could have written them."""
        return self.agent if len(self.personas) < 2 else None

    def _speaker(self, *heard: Trajectory) -> str:
        """The agent whose messages are judged; "" if there are no messages.

        Raises `ConfigurationError` for several speakers without `agent`.
        """
        actors = dict.fromkeys(actor for part in heard for actor in part.actors)
        if self.agent is None and len(actors) > 1:
            raise ConfigurationError(
                f"expected the messages of one agent, got those of {', '.join(actors)}. Pass agent=."
            )
        return self.agent or next(iter(actors), "")


class ConsistencyScorer(_OneAgent):
    """How much an agent sounds like itself.

    `unit` "pair" judges pairs of an earlier and a current message of the same channel: at most `pairs` of
    them, the same ones for the same `seed`. With `first_n` or `last_n` in a proposition the judge also sees
    that much of the conversation up to the current message. `unit` "trajectory" judges all messages of the
    agent as a whole, with one score for each proposition.
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
        variables: Variables | None = None,
        batch: bool = True,
    ) -> None:
        self.unit = _one_of("unit", unit, ("pair", "trajectory"))
        self.fills = _ABOUT_A_MESSAGE if unit == "pair" else _ABOUT_AN_AGENT
        super().__init__(
            judge, propositions, agent=agent, personas=personas, variables=variables, batch=batch
        )
        self.pairs = _at_least_one("pairs", pairs)
        self.seed = seed

    def score(
        self,
        current: Conversation,
        history: Conversation | None = None,
        *,
        before: Conversation | None = None,
    ) -> ScorerResult:
        """Judge pairs, or the trajectory of `history` and then `current`.

        Pairs need a `history`. `before` is the conversation before `current` with all its speakers, which show
        the recipient of a message; by default that is `history`. The score is None if there is nothing to
        compare: no earlier message of the agent, or none of the same channel; a single message for the unit
        "trajectory". Pairs without a current message give 9.
        """
        return self.engine.run(self.asking(current, history, before))

    async def ascore(
        self,
        current: Conversation,
        history: Conversation | None = None,
        *,
        before: Conversation | None = None,
    ) -> ScorerResult:
        """Async version of `score`."""
        return await self.engine.arun(self.asking(current, history, before))

    def asking(
        self, current: Conversation, history: Conversation | None = None, before: Conversation | None = None
    ) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        if history is None and self.unit == "pair":
            raise ConfigurationError(
                "pairs are of an earlier and a current message: pass a history. "
                "ConsistencyScorer(..., unit='trajectory') judges one trajectory."
            )
        earlier, heard = self._heard(() if history is None else history), self._heard(current)
        around = earlier if before is None else self._heard(before)
        agent = self._speaker(earlier, heard)
        old, now = earlier.actions_of(agent), heard.actions_of(agent)
        if self.unit == "trajectory":
            whole = Trajectory((*earlier, *heard))
            speakers = self._speakers(whole, around)
            return (yield from self._judging_all(agent, whole, speakers, [*old, *now]))
        if not old:
            return self._unjudged(None, "there is no earlier message to compare with")
        if not now:
            return self._silent(heard, agent)
        found = self._pairs(old, now)
        if not found:
            return self._unjudged(None, "no channel has an earlier and a current message")
        spoken = _places(heard, agent) if self._windowed else ()
        places = {id(event): (place, channel) for event, place, channel in spoken}
        speakers = self._speakers(heard, around)
        elements: list[_Element] = []
        for pair in found:
            first, second = pair
            known = _about_message(second, speakers)
            context: list[Event] = []
            if self._windowed:
                place, channel = places[id(second)]
                context = [one for one in earlier if one.channel == second.channel and one is not first]
                context += channel[:place]
            before_it = Trajectory(tuple(context))
            elements.append(self._element(agent, pair, before=before_it, variables=known, context=_PAIR))
        return (yield from self._judging(elements))

    def _judging_all(
        self, agent: str, whole: Trajectory, speakers: _Speakers, said: Sequence[Event]
    ) -> Steps[ScorerResult]:
        if len(said) < 2:
            return self._unjudged(None, f"there are fewer than two messages of {agent!r} to compare")
        known = _recipient(said[0], speakers)
        element = self._element(agent, whole.events, variables=known)
        return (yield from self._judging([element], sample_size=len(said)))

    def _pairs(self, before: Sequence[Event], now: Sequence[Event]) -> list[tuple[Event, Event]]:
        earlier, later = _by_channel(before), _by_channel(now)
        common = [channel for channel in earlier if channel in later]
        sizes = [len(earlier[channel]) * len(later[channel]) for channel in common]
        pairs: list[tuple[Event, Event]] = []
        # The cross product may be huge, so its size is computed and only the sampled pairs are built.
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
    """How far an agent says new things in new words: judges all its messages at once, with measured
    repetition as evidence."""

    dimension = "fluency"

    def score(self, messages: Conversation, *, before: Conversation = ()) -> ScorerResult:
        """Judge the agent's messages: 9 for an empty conversation, None if the agent says nothing.

        `before` is a conversation that is not judged; its speakers too show the recipient of the messages.
        """
        return self.engine.run(self.asking(messages, before))

    async def ascore(self, messages: Conversation, *, before: Conversation = ()) -> ScorerResult:
        """Async version of `score`."""
        return await self.engine.arun(self.asking(messages, before))

    def asking(self, messages: Conversation, before: Conversation = ()) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        heard = self._heard(messages)
        agent = self._speaker(heard)
        said = heard.actions_of(agent)
        if not said:
            return self._silent(heard, agent)
        texts = [event.text for event in said]
        numbers = text_statistics(texts)
        known = _recipient(said[0], self._speakers(heard, self._heard(before)))
        element = self._element(agent, said, variables=known, evidence=_about_texts(texts, numbers))
        return (yield from self._judging([element], evidence=numbers, sample_size=len(said)))


def _about_texts(texts: Sequence[str], numbers: Mapping[str, float]) -> str:
    often = repeated_ngrams(texts, 3, most=10)
    lines = [
        f"messages: {len(texts)}",
        f"mean overlap of the 3-grams of two messages: {numbers['repetition_3']:.4f}",
        f"mean overlap of the 5-grams of two messages: {numbers['repetition_5']:.4f}",
        f"different words of all words: {numbers['unique_ratio']:.4f}",
        f"words in a sentence: {numbers['average_sentence_length']:.2f}",
        f"punctuation marks of all characters: {numbers['punctuation_density']:.4f}",
        *(f"in {count} messages: {as_written(ngram)}" for ngram, count in often.items()),
    ]
    return "\n".join(lines)


MOST_VOICES = 100
"""The participants whose vocabularies are compared, each with each: ten thousand have fifty million pairs."""


class ConvergenceScorer(_Scorer):
    """How distinct the voices of a conversation's participants are: high is distinct, low is alike."""

    dimension = "convergence"

    def score(self, conversation: Conversation) -> ScorerResult:
        """Judge a whole conversation: 9 if it is empty, None if fewer than two participants speak."""
        return self.engine.run(self.asking(conversation))

    async def ascore(self, conversation: Conversation) -> ScorerResult:
        """Async version of `score`."""
        return await self.engine.arun(self.asking(conversation))

    def asking(self, given: Conversation) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        conversation = self._heard(given)
        said: dict[str, list[str]] = {}
        for event in conversation:
            if event.kind == "action":
                said.setdefault(event.actor, []).append(event.text)
        if not said:
            return self._silent(conversation, "")
        if len(said) == 1:
            return self._unjudged(
                None, f"only {next(iter(said))!r} speaks, and there is nothing to diverge from"
            )
        compared = sorted(said, key=lambda actor: -len(said[actor]))[:MOST_VOICES]
        some = f", of the {MOST_VOICES} of {len(said):,} who say most" if len(said) > MOST_VOICES else ""
        alike = vocabulary_similarity({actor: said[actor] for actor in compared})
        numbers = {" / ".join(pair): value for pair, value in alike.items()}
        lines = [f"share of the words of two participants that both use{some}:"]
        lines += [f"{visible(pair)}: {value:.4f}" for pair, value in numbers.items()]
        element = self._element(None, tuple(conversation), evidence="\n".join(lines))
        return (yield from self._judging([element], evidence=numbers, sample_size=len(conversation)))


REPORT_QUESTION = (
    "Please consolidate the ideas that the group came up with: list each of them, with what it is about."
)
"""The question to a rapporteur at the end of a conversation; its answer is the `report`."""


class IdeasScorer(_Asking):
    """The number of distinct ideas in a conversation: a count, which is neither limited to 9 nor part of a
    mean.

    With "enumerate" the judge lists the ideas of the whole conversation; with "rapporteur" those of a report
    that the first participant gave when asked `REPORT_QUESTION`. Counts of the two methods are not
    comparable.
    """

    dimension = IDEAS

    def __init__(
        self, judge: PropositionEngine | Judge | ChatModel | str, *, method: Method = "enumerate"
    ) -> None:
        self.engine = _engine(judge)
        self.method: Method = _one_of("method", method, get_args(Method))

    def score(self, conversation: Conversation, report: str | None = None) -> ScorerResult:
        """Count the ideas: 0 for an empty conversation, None if the judge gave no list. Only "rapporteur"
        takes a `report`."""
        return self.engine.run(self.asking(conversation, report))

    async def ascore(self, conversation: Conversation, report: str | None = None) -> ScorerResult:
        """Async version of `score`."""
        return await self.engine.arun(self.asking(conversation, report))

    def asking(self, given: Conversation, report: str | None = None) -> Steps[ScorerResult]:
        """The decisions of `score`."""
        conversation = _trajectory(given)
        if (report is not None) != (self.method == "rapporteur"):
            raise ConfigurationError("the method 'rapporteur' needs a report, and 'enumerate' takes none.")
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
        requests = [replace(request, vote=vote) for vote in range(self.engine.votes)]
        outcomes = yield requests
        known["calls"], known["token_usage"] = cost(outcomes)
        readings = [read(one, outcome) for one, outcome in zip(requests, outcomes, strict=True)]
        counts = [len(found.answer.ideas) or found.answer.count or 0 for found in readings if found.answer]
        reading = next((found for found in readings if found.answer), readings[0])
        if reading.answer is None:
            problem: Unscored = "timeout" if reading.status == "timeout" else "error"
            return ScorerResult(overall=None, reason=reading.problem, problem_outcome=problem, **known)
        return ScorerResult(
            overall=math.fsum(counts) / len(counts) if len(counts) > 1 else counts[0],
            ideas=tuple(reading.answer.ideas),
            reason=reading.answer.reasoning,
            judged=len(counts),
            **known,
        )

    def texts(self) -> Mapping[str, Any]:
        prompt = [str(part.text) for part in counting_ideas("", of_report=self.method == "rapporteur")]
        return {
            "prompt": prompt,
            "answer": IdeasAnswer,
            "sampling": self.method,
        }
