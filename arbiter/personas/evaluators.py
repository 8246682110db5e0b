"""Each dimension as an evaluator of a governed graph: what a node says is judged after it has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from arbiter.errors import ArbiterError, EvaluationError, ParameterError
from arbiter.evaluation import NodeEvaluator
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.models import ChatModel, visible
from arbiter.personas.answers import HIGHEST
from arbiter.personas.characters import Persona
from arbiter.personas.conversation import Cast, messages_at, new_of
from arbiter.personas.judges import Judge, judge_of
from arbiter.personas.propositions import DEFAULT_WINDOWS, PropositionSet, load_propositions
from arbiter.personas.scorers import (
    AdherenceScorer,
    ConsistencyScorer,
    ConvergenceScorer,
    FluencyScorer,
    IdeasScorer,
    ScorerResult,
)
from arbiter.personas.trajectories import SOMEBODY, Trajectory, window
from arbiter.verdicts import EvaluationResult

T = TypeVar("T")
S = TypeVar("S", AdherenceScorer, ConsistencyScorer, FluencyScorer, ConvergenceScorer)
RECENT = 100
"""How many earlier messages of an agent an evaluator looks at: a conversation may be of any length."""


class DimensionEvaluator(NodeEvaluator):
    """What the dimensions share: the messages at `key` of the node's input and output are judged.

    `metadata["raw"]` is the score from 0.0 to 9.0; the result's own is a ninth of it, and it passes when the raw one
    is at least `at_least`. Messages are LangChain's, or texts. AI messages without a name, and texts, are said by
    the agent that is judged, unless the history has seen another node writing them. Without a score (nothing was said,
    nothing to compare with, a judge that fails) there is an evaluator error that begins with "abstained". The feedback
    has the worst reasons, and what is recommended.
    """

    # A model that answers from a cache a few times is not quick for that.
    blocking = True
    key: str
    at_least: float
    lowest: float = 0
    highest: float = HIGHEST

    def measure(self, history: History) -> ScorerResult:
        """The score of the node run that is judged."""
        raise NotImplementedError

    def evaluate(self, history: History) -> EvaluationResult:
        result = self.measure(history)
        if result.overall is None:
            raise self.abstained(history, result.reason)
        raw = result.overall
        return EvaluationResult(
            self.share(raw),
            raw >= self.at_least,
            self.feedback(result),
            {
                "raw": raw,
                "dimension": result.dimension,
                "reason": result.reason,
                "propositions": {found.proposition_id: found.score for found in result.propositions},
                "reasoning": {found.proposition_id: found.reasoning for found in result.propositions},
                "sample_size": result.sample_size,
                "evidence": dict(result.evidence),
                "calls": result.calls,
                "usage": result.token_usage,
            },
        )

    def share(self, raw: float) -> float:
        """A raw score as 0.0 to 1.0."""
        return raw / HIGHEST

    def feedback(self, result: ScorerResult) -> str:
        """What is wrong and what would help, for whoever is to do better."""
        raw = result.overall or 0.0
        mark = "✓" if raw >= self.at_least else "✗"
        lines = [f"{result.dimension} {raw:.4g} ({mark} at_least={self.at_least:g})"]
        for found in result.propositions:
            if found.score is not None and found.score < self.at_least:
                lines.append(f"{found.proposition_id} {found.score:.4g}: {visible(found.reasoning)}")
                lines += [f"Recommended: {text}" for text in found.recommendations]
        return "\n".join(lines)

    def abstained(self, history: History, why: str) -> EvaluationError:
        """The error of a node run that cannot be judged."""
        node = history.entries[-1][-1].node
        return EvaluationError(f"abstained: {why}", evaluator=self.name, node=node)

    def said(
        self, history: History, persona: Persona | None = None, *, cast: Cast | None = None
    ) -> tuple[Trajectory, Trajectory]:
        """What was said before the node ran, and what it said. Raises `EvaluationError` if that is nothing.

        `cast` tells who wrote what has no name; without it, all of that is the agent's.
        """
        item = history.entries[-1][-1]
        agent = _agent(persona)
        known = cast or Cast(_known(persona), key=self.key)
        try:
            before = messages_at(item.input_state, self.key)
            now = new_of(before, messages_at(item.output_state, self.key))
            earlier = known.trajectory(before, agent, cast.writers(history) if cast else None)
            current = Trajectory.of(known.trajectory(now, agent))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self.abstained(history, f"{self.key!r} holds no messages: {error}") from None
        if not current.actors:
            raise self.abstained(history, f"node {item.node!r} said nothing at {self.key!r}")
        return earlier, current

    def said_by(self, history: History, persona: Persona | None) -> tuple[Trajectory, Trajectory]:
        """As `said`; what other nodes wrote is theirs. Raises `EvaluationError` also if only others spoke."""
        agent, node = _agent(persona), history.entries[-1][-1].node
        others = Cast(_known(persona), nodes=self.target_nodes)
        cast = Cast(
            _known(persona),
            key=self.key,
            agent_of=lambda item: agent if item.node == node else others.acting(item),
        )
        earlier, current = self.said(history, persona, cast=cast)
        if not current.actions_of(agent):
            raise self.abstained(history, f"{', '.join(current.actors)} spoke, and not {agent}")
        return earlier, current

    def _set_up(self, at_least: float, key: str) -> None:
        given: Any = at_least
        if (
            isinstance(given, bool)
            or not isinstance(given, int | float)
            or not self.lowest <= given <= self.highest
        ):
            raise ParameterError(
                f"evaluator {self.name!r}",
                "at_least",
                f"expected a number from {self.lowest:g} to {self.highest:g}, got {at_least!r:.80}.",
            )
        self.at_least = at_least
        self.key = key

    def _made(self, parameter: str, make: Callable[[], T]) -> T:
        """What `make` makes of a parameter; what it finds wrong is said of that parameter."""
        try:
            return make()
        except ArbiterError as error:
            raise ParameterError(f"evaluator {self.name!r}", parameter, str(error)) from error

    def _judge(self, given: Judge | ChatModel | str) -> Judge:
        return self._made("judge", lambda: judge_of(given))

    def _ready(self, scorer: S) -> S:
        """The scorer. Raises `ParameterError` for a claim that it can never ask about."""
        if scorer.unfilled:
            raise ParameterError(f"evaluator {self.name!r}", "propositions", scorer.unfilled)
        return scorer

    def _propositions(
        self, given: PropositionSet | str | None, dimension: str, persona: Persona | None = None
    ) -> PropositionSet:
        if isinstance(given, PropositionSet):
            return given
        agent = persona.id or None if persona else None
        return self._made("propositions", lambda: load_propositions(given, dimension, agent))


def _agent(persona: Persona | None) -> str:
    return SOMEBODY if persona is None else persona.name


def _known(persona: Persona | None) -> tuple[Persona, ...]:
    return () if persona is None else (persona,)


class AdherenceEvaluator(DimensionEvaluator):
    """Whether what the node says fits a persona: each message that it has written, by each proposition.

    `persona` is a `Persona`, its YAML file, or one that ships ("arbiter:ilka"). A message is the persona's if it has
    its name or id, or none. `propositions` is a folder of them, None for those that ship.
    """

    def __init__(
        self,
        name: str = "adherence",
        *,
        persona: Persona | str,
        judge: Judge | ChatModel | str,
        at_least: float = 7.0,
        key: str = "messages",
        propositions: PropositionSet | str | None = None,
        sample: int = 20,
        seed: int = 0,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float = 30.0,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self._set_up(at_least, key)
        self.persona = self._made("persona", lambda: Persona.of(persona))
        found = self._propositions(propositions, "adherence", self.persona)
        asked = self._judge(judge)
        self.scorer = self._ready(
            self._made(
                "sample", lambda: AdherenceScorer(asked, self.persona, found, sample=sample, seed=seed)
            )
        )

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history, self.persona)
        return self.scorer.score(current, before=earlier)


class SelfConsistencyEvaluator(DimensionEvaluator):
    """Whether what the node says sounds like what the same agent said before: pairs of an earlier and a new message.

    Earlier messages are the last hundred that the node was given. The agent's messages are those with the name or id of
    `persona`, and those without one.
    """

    def __init__(
        self,
        name: str = "self_consistency",
        *,
        judge: Judge | ChatModel | str,
        at_least: float = 7.0,
        key: str = "messages",
        persona: Persona | str | None = None,
        propositions: PropositionSet | str | None = None,
        pairs: int = 10,
        seed: int = 0,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float = 30.0,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self._set_up(at_least, key)
        self.persona = None if persona is None else self._made("persona", lambda: Persona.of(persona))
        self.agent = _agent(self.persona)
        found = self._propositions(propositions, "consistency", self.persona)
        asked = self._judge(judge)
        self.scorer = self._ready(
            self._made(
                "pairs",
                lambda: ConsistencyScorer(
                    asked, found, agent=self.agent, personas=_known(self.persona), pairs=pairs, seed=seed
                ),
            )
        )

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history, self.persona)
        return self.scorer.score(current, Trajectory(earlier.actions_of(self.agent, last=RECENT)))


class FluencyEvaluator(DimensionEvaluator):
    """Whether an agent says new things in new words: its messages that the node was given, at most the last hundred,
    and those that it wrote.

    These are the ones with the name or id of `persona`, and those without one.
    """

    def __init__(
        self,
        name: str = "fluency",
        *,
        judge: Judge | ChatModel | str,
        at_least: float = 7.0,
        key: str = "messages",
        persona: Persona | str | None = None,
        propositions: PropositionSet | str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float = 30.0,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self._set_up(at_least, key)
        self.persona = None if persona is None else self._made("persona", lambda: Persona.of(persona))
        self.agent = _agent(self.persona)
        found = self._propositions(propositions, "fluency", self.persona)
        asked = self._judge(judge)
        self.scorer = self._ready(
            FluencyScorer(asked, found, agent=self.agent, personas=_known(self.persona))
        )

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history, self.persona)
        return self.scorer.score(Trajectory.of([*earlier.actions_of(self.agent, last=RECENT), *current]))


class ConvergenceEvaluator(DimensionEvaluator):
    """Whether the participants of a conversation keep voices of their own: high is distinct.

    The first ten and the last hundred messages that the node was given, and those that it wrote, are the conversation,
    each said by its name.
    """

    def __init__(
        self,
        name: str = "convergence",
        *,
        judge: Judge | ChatModel | str,
        at_least: float = 7.0,
        key: str = "messages",
        propositions: PropositionSet | str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float = 30.0,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self._set_up(at_least, key)
        found = self._propositions(propositions, "convergence")
        asked = self._judge(judge)
        self.scorer = self._ready(ConvergenceScorer(asked, found))

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said(history)
        shown = window(earlier.events, *DEFAULT_WINDOWS["evaluation"])
        return self.scorer.score(Trajectory.of([*shown.head, *shown.tail, *current]))


class IdeasQuantityEvaluator(DimensionEvaluator):
    """How many distinct ideas the conversation has, with what the node added: `metadata["raw"]` is the count.

    Passes when there are at least `at_least`; the score is the share of these that there is, at most 1.0.
    """

    lowest = 1
    highest = float("inf")

    def __init__(
        self,
        name: str = "ideas_quantity",
        *,
        judge: Judge | ChatModel | str,
        at_least: int = 1,
        key: str = "messages",
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        durable: bool = False,
        deadline: float = 30.0,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, durable, deadline)
        self._set_up(at_least, key)
        asked = self._judge(judge)
        self.scorer = IdeasScorer(asked)

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said(history)
        return self.scorer.score(Trajectory.of([*earlier, *current]))

    def share(self, raw: float) -> float:
        """As much as there is of what is wanted, at most all of it."""
        return min(1.0, raw / self.at_least)
