"""The dimensions of personas as scorers of whole runs: adherence, consistency, fluency, convergence, ideas.

They judge the conversation of a run: its messages if its output has some, else its input and its output as a
question and an answer. Scores are on the scale 0 to 9; the quantity of ideas is a count. A dimension that no judge
was asked about has no score, and the 9 that it stands for is kept as `raw`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Annotated, Any, Literal

from pydantic import Field

from arbiter._constitution.documents import PackModel
from arbiter._values.kinds import is_list, is_mapping
from arbiter._values.versions import Version, hash_of
from arbiter.errors import ConfigurationError
from arbiter.harness.canonical import only_text
from arbiter.harness.results import CaseRun
from arbiter.harness.rows import mean_of
from arbiter.harness.scores import COUNT, NINE, Scale, Score
from arbiter.models import Judge
from arbiter.personas import (
    AdherenceScorer,
    ConsistencyScorer,
    ConvergenceScorer,
    Event,
    FluencyScorer,
    IdeasScorer,
    Persona,
    PropositionEngine,
    ScorerResult,
    Trajectory,
)
from arbiter.personas._scorers import element_id

IDEAS = "ideas_quantity"
OF_CHANNELS = frozenset({"convergence", IDEAS})
"""The dimensions of a whole channel; the others are of one agent."""
RowName = Annotated[str, Field(pattern=r"^[\w-]+$", description="the name of its row")]


class Entry(PackModel):
    name: RowName
    judge: str = Field(description="the name of a model under `models`, or a text like openai:gpt-5-mini")
    at_least: float | None = Field(
        None, ge=0, le=9, description="passes from here on; without it, nothing fails"
    )


class _Claims(Entry):
    propositions: str | None = Field(
        None, description="the folder of the claims; by default those that ship with Arbiter"
    )


class Adherence(_Claims):
    use: Literal["adherence"]
    persona: str | dict[str, Any] | None = Field(
        None,
        description="a file, arbiter:ilka, or a mapping with name and description; agents have their own",
    )
    unit: Literal["message", "trajectory"] = "message"
    sample: int = Field(20, ge=1, description="the most messages that are judged")


class Consistency(_Claims):
    use: Literal["consistency"]
    persona: str | dict[str, Any] | None = Field(None, description="whose messages are judged")
    pairs: int = Field(10, ge=1, description="the most pairs of messages that are judged, of agents")


class Fluency(_Claims):
    use: Literal["fluency"]
    persona: str | dict[str, Any] | None = Field(None, description="whose messages are judged")


class Convergence(_Claims):
    use: Literal["convergence"]


class Ideas(Entry):
    use: Literal["ideas_quantity"]


class DimensionScorer:
    """A dimension under the name of its row. `persona` is that of the judged agent, and `seed` chooses the messages
    that are judged. A run of an agent (see `agents`) brings its own persona.
    """

    version: Any = Version()

    def __init__(self, entry: Entry, dimension: str, judge: Judge) -> None:
        self.name = entry.name
        self.dimension = dimension
        self.scale = COUNT if dimension == IDEAS else NINE
        self.judge = judge
        self.votes = 1
        self.seed = 0
        self.entry = entry
        given = getattr(entry, "persona", None)
        self.persona = None if given is None else Persona.of(given)

    @property
    def samples(self) -> bool:
        """Whether the seed matters."""
        return self.dimension in ("adherence", "consistency")

    def with_seed(self, seed: int) -> DimensionScorer:
        """A copy that samples by that seed."""
        new = copy(self)
        new.seed = seed
        return new

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> DimensionScorer:
        """A copy that asks the judge that `wrap` returns."""
        new = copy(self)
        new.judge, new.votes = wrap(self.judge), votes or self.votes
        return new

    def version_parts(self) -> Mapping[str, str]:
        # The persona of an agent belongs to the target; any other is the same as none.
        known = self._scorer(self.persona or _SOMEBODY, of_agent=False).version_parts()
        return {**known, "class": hash_of(self.dimension)}

    def score(self, run: CaseRun) -> Any:
        """The score of a run; None for a dimension that is not about it."""
        spoken = spoken_in(run, self.persona)
        if spoken.is_channel is not None and spoken.is_channel != (self.dimension in OF_CHANNELS):
            return None
        if self.dimension == "adherence" and spoken.persona is None:
            raise ConfigurationError(
                f"the scorer {self.name!r} has no persona. Name one: persona: personas/ilka.yaml"
            )
        scorer = self._scorer(spoken.persona, of_agent=spoken.is_channel is not None)
        if self.dimension == "consistency":
            found = scorer.score(spoken.messages, spoken.before)
        else:
            found = scorer.score(spoken.messages)
        score = self._score(found)
        if spoken.is_channel is None:
            return score
        ids = spoken.ids
        elements = [(ids.get(one.id, one.id), one.score) for one in found.elements if one.score is not None]
        return {run.case.id: replace(score, elements=tuple(elements))}

    def _scorer(self, persona: Persona | None, *, of_agent: bool) -> Any:
        engine = PropositionEngine(self.judge, votes=self.votes)
        entry: Any = self.entry
        if isinstance(entry, Ideas):
            return IdeasScorer(engine)
        claims = entry.propositions
        if isinstance(entry, Convergence):
            return ConvergenceScorer(engine, claims)
        if isinstance(entry, Adherence):
            return AdherenceScorer(
                engine, persona or _SOMEBODY, claims, unit=entry.unit, sample=entry.sample, seed=self.seed
            )
        known = () if persona is None else (persona,)
        if isinstance(entry, Fluency):
            return FluencyScorer(engine, claims, personas=known)
        unit: Literal["pair", "trajectory"] = "pair" if of_agent else "trajectory"
        return ConsistencyScorer(engine, claims, personas=known, unit=unit, pairs=entry.pairs, seed=self.seed)

    def _score(self, found: ScorerResult) -> Score:
        models = (one.model for part in found.propositions for one in part.results if one.model)
        score, least = score_of_dimension("", found, self.scale), self.entry.at_least
        judged = [one.score for one in found.elements if one.score is not None]
        if score.value is not None and judged and not isclose(value := mean_of(judged), score.value):
            # Without the nines of claims that have no evidence, behind which a drop would hide. `raw` has them.
            score = replace(score, value=value, raw=score.value)
        return replace(
            score,
            passed=None if least is None or score.value is None else score.value >= least,
            model=next(models, ""),
            sample_size=found.sample_size,
            propositions={
                part.proposition_id: part.score
                for part in found.propositions
                if part.score is not None and part.judged
            },
        )


def score_of_dimension(name: str, found: ScorerResult, scale: Scale) -> Score:
    """The result of a persona scorer as a score. A value without evidence is kept as `raw`."""
    is_scored = found.outcome == "scored"
    return Score(
        name,
        found.overall if is_scored else None,
        outcome=found.outcome,
        reason=found.reason,
        scale=scale,
        calls=found.calls,
        usage=None if found.token_usage is None else dict(found.token_usage),
        raw=None if is_scored else found.overall,
    )


_SOMEBODY = Persona("the agent", "Any character.")


# Conversations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """The conversation of a run. `before` is the earlier part, with which the agent is compared.

    `is_channel` says whether a whole channel is judged; None for a run that is no agent's. `ids` replaces the ids of
    judged messages, such as by those of the prompts that they answer.
    """

    messages: Trajectory
    before: Trajectory | None = None
    persona: Persona | None = None
    is_channel: bool | None = None
    ids: Mapping[str, str] = field(default_factory=dict[str, str])


def spoken_in(run: CaseRun, persona: Persona | None) -> Spoken:
    """The conversation of a run; for an agent, its messages (see `agents`)."""
    about = run.metadata
    if "channel" in about:
        return Spoken(messages=_events(run.output["messages"]), is_channel=True)
    if "agent" not in about or "persona" not in about:
        return Spoken(messages=conversation_of(run.input, run.output), persona=persona)
    known = Persona(**about["persona"])
    said = _events(run.output["messages"], known.name)
    ids = {
        element_id(known.name, [event]): line["prompt"]
        for event, line in zip(said, run.output["messages"], strict=True)
        if "prompt" in line
    }
    before = _events(run.output["before"], known.name)
    return Spoken(messages=said, before=before, persona=known, is_channel=False, ids=ids)


def _events(lines: Sequence[Mapping[str, str]], agent: str | None = None) -> Trajectory:
    """Messages of agents as events, all of them by `agent` if one is named."""
    return Trajectory.of(
        Event.action(
            agent or line["agent"], line["text"], line.get("kind", "TALK"), channel=line.get("channel", "")
        )
        for line in lines
    )


def conversation_of(given: Any, output: Any) -> Trajectory:
    """The messages in an output; without them, the input and the output as a question and an answer."""
    messages = _messages_in(output)
    if messages is None:
        asked = _messages_in(given)
        asked = [("human", only_text(given))] if asked is None else asked
        messages = [*asked, ("ai", only_text(output))]
    return Trajectory.from_messages(messages)


def _messages_in(value: Any) -> list[Any] | None:
    found: Any = value.get("messages") if is_mapping(value) else value
    # A state with other fields may say there what it says, and have no use for its empty list of messages.
    is_silent = is_mapping(value) and len(value) == 1
    return found if is_list(found) and (found or is_silent) else None


DIMENSIONS: Mapping[str, type[Entry]] = {
    "adherence": Adherence,
    "consistency": Consistency,
    "fluency": Fluency,
    "convergence": Convergence,
    IDEAS: Ideas,
}
"""The model of each dimension's entry."""
