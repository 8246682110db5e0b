"""Each dimension as an evaluator of a governed graph: judges the messages of a node after it has run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from math import inf
from typing import Annotated, Any, Self, TypeVar, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ArbiterError, EvaluationError, ParameterError, Unscored
from arbiter.evaluation import EvaluatorOptions, NodeEvaluator
from arbiter.history._items import History
from arbiter.models import ChatModel, Judge, judge_of, visible
from arbiter.personas._answers import HIGHEST
from arbiter.personas._characters import Persona
from arbiter.personas._conversation import Cast
from arbiter.personas._messages import messages_at, new_of
from arbiter.personas._propositions import DEFAULT_WINDOWS, PropositionSet, file_of, load_propositions
from arbiter.personas._scorers import (
    RECENT,
    AdherenceScorer,
    ConsistencyScorer,
    ConvergenceScorer,
    FluencyScorer,
    IdeasScorer,
    ScorerResult,
    unscored,
)
from arbiter.personas._trajectories import SOMEBODY, Trajectory, window
from arbiter.verdicts import EvaluationResult

T = TypeVar("T")
S = TypeVar("S", AdherenceScorer, ConsistencyScorer, FluencyScorer, ConvergenceScorer)

A_PERSONA = "a file, `arbiter:ilka`, a mapping with `name` and `description`, or in Python a `Persona`"
JudgeModel = Annotated[
    Judge | ChatModel | str,
    Param("the model that scores", expected="the name of a chat model, or in Python a model or a `Judge`"),
]
RawScore = Annotated[
    float, Param("passes if the raw score is at least this", ge=0, le=HIGHEST, tighter="higher")
]
MessagesKey = Annotated[str, Param("the part of the input and output that holds messages or texts")]
SomePersona = Annotated[
    Persona | str | None,
    Param("whose messages are judged: those with its name or id, and those without one", expected=A_PERSONA),
]
Propositions = Annotated[
    PropositionSet | str | None,
    Param(
        "the folder of `<dimension>/_default.yaml` and `<dimension>/<persona's id>.yaml`; by default those that ship",
        expected="a folder",
    ),
]


class DimensionEvaluator(NodeEvaluator):
    """Base of the evaluators of dimensions, which judge the messages at `key` of a node's input and output.

    `metadata["raw"]` is the score from 0.0 to 9.0; the result's own score is a ninth of it, and it passes if
    the raw score is at least `at_least`. Its `outcome` is "not_applicable" if no judge was asked, or found
    evidence. Messages are LangChain's, or texts. AI messages without a name, and
    texts, belong to the judged agent, unless the history shows that another node wrote them. Without a score
    (no message, nothing to compare, a judge that fails) the evaluator raises an error that begins with
    "abstained". The feedback has the worst reasons and the recommendations.
    """

    # A few quick answers from a model's cache do not make the evaluator quick.
    blocking = True
    concurrency = 32
    scale = (0.0, float(HIGHEST))
    key: str
    at_least: float
    persona: Any
    """The persona whose messages are judged; None for those of everybody."""
    scorer: Any

    def measure(self, history: History) -> ScorerResult:
        """The score of the newest node run."""
        raise NotImplementedError

    def texts(self) -> Mapping[str, Any]:
        return dict(self.scorer.texts())

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> Self:
        new = copy(self)
        new.scorer = self.scorer.with_judges(wrap, votes)
        return new

    def value_of(self, result: EvaluationResult) -> float:
        """The raw score."""
        return float(result.metadata["raw"])

    def evaluate(self, history: History) -> EvaluationResult:
        result = self.measure(history)
        if result.overall is None:
            raise self.abstained(history, result.reason, unscored(result.outcome))
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
                "judged": result.judged,
                "model": next(
                    (one.model for part in result.propositions for one in part.results if one.model), ""
                ),
                "elements": [[one.id, one.score] for one in result.elements],
            },
            outcome=result.outcome,
        )

    def share(self, raw: float) -> float:
        """A raw score as 0.0 to 1.0."""
        return raw / HIGHEST

    def feedback(self, result: ScorerResult) -> str:
        """The problems and recommendations, for the agent that tries again."""
        raw = result.overall or 0.0
        mark = "✓" if raw >= self.at_least else "✗"
        lines = [f"{result.dimension} {raw:.4g} ({mark} at_least={self.at_least:g})"]
        for found in result.propositions:
            if found.score is not None and found.score < self.at_least:
                lines.append(f"{found.proposition_id} {found.score:.4g}: {visible(found.reasoning)}")
                lines += [f"Recommended: {text}" for text in found.recommendations]
        return "\n".join(lines)

    def abstained(self, history: History, why: str, outcome: Unscored = "not_applicable") -> EvaluationError:
        """The error of a node run that cannot be judged."""
        node = history.item.node
        return EvaluationError(f"abstained: {why}", evaluator=self.name, node=node, outcome=outcome)

    @property
    def agent(self) -> str:
        """The name of the persona, and of the speaker of unnamed messages."""
        return SOMEBODY if self.persona is None else self.persona.name

    @property
    def personas(self) -> tuple[Persona, ...]:
        return () if self.persona is None else (self.persona,)

    def said(self, history: History, *, cast: Cast | None = None) -> tuple[Trajectory, Trajectory]:
        """The conversation before the node ran, and the node's messages. Raises `EvaluationError` if there
        are none.

        `cast` finds the writers of unnamed messages; without it, they all belong to the agent.
        """
        item, agent = history.item, self.agent
        known = cast or Cast(self.personas, key=self.key)
        try:
            before = messages_at(item.input_state, self.key)
            now = new_of(before, messages_at(item.output_state, self.key))
            earlier = known.trajectory(before, agent, cast.writers(history) if cast else None)
            current = Trajectory.of(known.trajectory(now, agent))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self.abstained(history, f"{self.key!r} holds no messages: {error}", "error") from None
        if not current.actors:
            raise self.abstained(history, f"node {item.node!r} said nothing at {self.key!r}")
        return earlier, current

    def said_by(self, history: History) -> tuple[Trajectory, Trajectory]:
        """Like `said`, with messages of other nodes attributed to them. Raises `EvaluationError` also if
        only others spoke."""
        agent, node = self.agent, history.item.node
        others = Cast(self.personas, nodes=self.target_nodes)
        cast = Cast(
            self.personas,
            key=self.key,
            agent_of=lambda item: agent if item.node == node else others.acting(item),
        )
        earlier, current = self.said(history, cast=cast)
        if not current.actions_of(agent):
            names = ", ".join(current.actors)
            # Messages with a name need a persona, such as those of `create_agent(..., name=...)`.
            remedy = "" if self.persona else f". Give the evaluator the persona of {names}"
            raise self.abstained(history, f"{names} spoke, and not {agent}{remedy}")
        return earlier, current

    def _set_up(self, at_least: float, key: str, persona: Persona | str | None = None) -> None:
        self.at_least = at_least
        self.key = key
        self.persona = None if persona is None else self._made("persona", lambda: Persona.of(persona))

    def _made(self, parameter: str, make: Callable[[], T]) -> T:
        """The result of `make`. An `ArbiterError` becomes a `ParameterError` about that parameter."""
        try:
            return make()
        except ArbiterError as error:
            raise ParameterError(f"evaluator {self.name!r}", parameter, str(error)) from error

    def _judge(self, given: Judge | ChatModel | str) -> Judge:
        return self._made("judge", lambda: judge_of(given))

    def _scorer(
        self,
        kind: type[S],
        judge: Judge | ChatModel | str,
        propositions: PropositionSet | str | None,
        parameter: str = "propositions",
        **settings: Any,
    ) -> S:
        """A scorer of that kind. An `ArbiterError` becomes a `ParameterError` about `parameter`, and so does a claim
        that can never be asked."""
        found = self._propositions(propositions, kind.dimension)
        asked = self._judge(judge)
        scorer = self._made(parameter, lambda: kind(asked, propositions=found, **settings))
        if scorer.unfilled:
            raise ParameterError(f"evaluator {self.name!r}", "propositions", scorer.unfilled)
        return scorer

    def _propositions(self, given: PropositionSet | str | None, dimension: str) -> PropositionSet:
        if isinstance(given, PropositionSet):
            if given.dimension != dimension:
                wrong = f"expected propositions of {dimension!r}, got those of {given.dimension!r}."
                raise ParameterError(f"evaluator {self.name!r}", "propositions", wrong)
            return given
        agent = file_of(self.persona.id) if self.persona else None
        return self._made("propositions", lambda: load_propositions(given, dimension, agent))


class AdherenceEvaluator(DimensionEvaluator):
    """How well the node's messages fit a persona: judges each message of the persona by each proposition.

    `persona` is a `Persona`, its YAML file, or a shipped one ("arbiter:ilka"). A message belongs to the
    persona if it has the persona's name or id, or no name. `propositions` is a folder of them; None for the
    shipped ones.
    """

    persona: Persona
    scorer: AdherenceScorer

    @check_parameters
    def __init__(
        self,
        name: str = "adherence",
        *,
        persona: Annotated[
            Persona | str,
            Param("the persona that is to be recognised", expected=A_PERSONA),
        ],
        judge: JudgeModel,
        at_least: RawScore = 7.0,
        key: MessagesKey = "messages",
        propositions: Propositions = None,
        sample: Annotated[int, Param("the most messages of the node that are judged", ge=1)] = 20,
        seed: Annotated[int, Param("which ones are judged, if there are more")] = 0,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self._set_up(at_least, key, persona)
        own = {"persona": self.persona, "sample": sample, "seed": seed}
        self.scorer = self._scorer(AdherenceScorer, judge, propositions, "persona", **own)

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history)
        return self.scorer.score(current, before=earlier)


class SelfConsistencyEvaluator(DimensionEvaluator):
    """How much the node's messages sound like the agent's earlier ones: judges pairs of an earlier and a new
    message.

    Earlier messages are the last hundred of the node's input. The agent's messages are those with the name or
    id of `persona`, and those without a name.
    """

    scorer: ConsistencyScorer

    @check_parameters
    def __init__(
        self,
        name: str = "self_consistency",
        *,
        judge: JudgeModel,
        at_least: RawScore = 7.0,
        key: MessagesKey = "messages",
        persona: SomePersona = None,
        propositions: Propositions = None,
        pairs: Annotated[int, Param("the most pairs of messages that are judged", ge=1)] = 10,
        seed: Annotated[int, Param("which ones are judged, if there are more")] = 0,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self._set_up(at_least, key, persona)
        own = {"agent": self.agent, "personas": self.personas, "pairs": pairs, "seed": seed}
        self.scorer = self._scorer(ConsistencyScorer, judge, propositions, "pairs", **own)

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history)
        own = Trajectory(earlier.actions_of(self.agent, last=RECENT))
        return self.scorer.score(current, own, before=earlier)


class FluencyEvaluator(DimensionEvaluator):
    """How far an agent says new things in new words: judges its messages in the node's input, at most the
    last hundred, and in its output.

    These are the messages with the name or id of `persona`, and those without a name.
    """

    scorer: FluencyScorer

    @check_parameters
    def __init__(
        self,
        name: str = "fluency",
        *,
        judge: JudgeModel,
        at_least: RawScore = 7.0,
        key: MessagesKey = "messages",
        persona: SomePersona = None,
        propositions: Propositions = None,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self._set_up(at_least, key, persona)
        own = {"agent": self.agent, "personas": self.personas}
        self.scorer = self._scorer(FluencyScorer, judge, propositions, "persona", **own)

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said_by(history)
        own = earlier.actions_of(self.agent, last=RECENT)
        return self.scorer.score(Trajectory.of([*own, *current]), before=earlier)


class ConvergenceEvaluator(DimensionEvaluator):
    """How distinct the voices of a conversation's participants are: high is distinct.

    The conversation consists of the first ten and the last hundred messages of the node's input, and of the
    node's own messages, each under its name.
    """

    scorer: ConvergenceScorer

    @check_parameters
    def __init__(
        self,
        name: str = "convergence",
        *,
        judge: JudgeModel,
        at_least: RawScore = 7.0,
        key: MessagesKey = "messages",
        propositions: Propositions = None,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self._set_up(at_least, key)
        self.scorer = self._scorer(ConvergenceScorer, judge, propositions)

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said(history)
        shown = window(earlier.events, *DEFAULT_WINDOWS["evaluation"])
        return self.scorer.score(Trajectory.of([*shown.head, *shown.tail, *current]))


class IdeasQuantityEvaluator(DimensionEvaluator):
    """The number of distinct ideas in the conversation up to the node's output: `metadata["raw"]` is the
    count.

    It passes with at least `at_least` ideas; the score is the count divided by `at_least`, at most 1.0.
    """

    scale = (0.0, inf)

    scorer: IdeasScorer

    @check_parameters
    def __init__(
        self,
        name: str = "ideas_quantity",
        *,
        judge: JudgeModel,
        at_least: Annotated[int, Param("passes if there are so many ideas", ge=1, tighter="higher")] = 1,
        key: MessagesKey = "messages",
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        super().__init__(name, **options)
        self._set_up(at_least, key)
        self.scorer = IdeasScorer(self._judge(judge))

    def measure(self, history: History) -> ScorerResult:
        earlier, current = self.said(history)
        return self.scorer.score(Trajectory.of([*earlier, *current]))

    def share(self, raw: float) -> float:
        """The count divided by `at_least`, at most 1.0."""
        return min(1.0, raw / self.at_least)
