"""Measuring: what a judge finds in a conversation, as scorers of the harness.

Adherence, consistency and fluency have one score for each agent of an environment, named after it; convergence
and the quantity of ideas have one for the environment. Each takes one question: an agent's whole conversation is
judged at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from importlib.resources import files
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from arbiter._values.versions import Version
from arbiter.experiments.scenarios import is_of_agents
from arbiter.harness.dimensions import score_of_dimension
from arbiter.harness.results import CaseRun
from arbiter.harness.scores import COUNT, NINE, Score, failed
from arbiter.models import ChatModel, Judge
from arbiter.personas import (
    AdherenceScorer,
    ConsistencyScorer,
    ConvergenceScorer,
    FluencyScorer,
    IdeasScorer,
    Persona,
    PropositionSet,
    Trajectory,
    load_propositions,
)
from arbiter.personas._scorers import Method

_Scorer = AdherenceScorer | ConsistencyScorer | FluencyScorer | ConvergenceScorer | IdeasScorer
_SOMEBODY = Persona("agent", "a person")


def plain_messages(messages: Sequence[BaseMessage]) -> list[list[str]]:
    """The conversation as JSON: pairs of speaker and text, "" for the facilitator."""
    return [[message.name or "", str(message.text)] for message in messages]


def messages_of(plain: Sequence[Sequence[str]]) -> list[BaseMessage]:
    """The messages from the result of `plain_messages`."""
    return [AIMessage(text, name=speaker) if speaker else HumanMessage(text) for speaker, text in plain]


class MetricScorer:
    """Scores one metric in each environment, on a scale of 0 to 9 (ideas: a count).

    `hard` takes the strict propositions for adherence, `ideas` says where ideas are looked for.
    """

    version: Any = Version()

    def __init__(
        self,
        metric: str,
        judge: Judge | ChatModel | str,
        *,
        hard: bool = False,
        ideas: Method = "rapporteur",
    ) -> None:
        self.name = metric
        self.scale = COUNT if metric == "ideas_quantity" else NINE
        self._propositions: PropositionSet | None = None
        if metric != "ideas_quantity":
            # Those for everybody: claims about single agents would make their scores incomparable.
            strict = files("arbiter.experiments") / "data" / "hard"
            self._propositions = load_propositions(strict if metric == "adherence" and hard else None, metric)
        self._method: Method = ideas
        self._asked: _Scorer = self._scorer(judge, _SOMEBODY)
        """A scorer of that metric, which has the engine, and the version of what a judge is sent."""

    def version_parts(self) -> Mapping[str, str]:
        return self._asked.version_parts()

    def with_judges(self, wrap: Callable[[Judge], Judge], votes: int | None = None) -> Self:
        """A copy that asks the judge that `wrap` returns."""
        new = copy(self)
        new._asked = self._asked.with_judges(wrap, votes)
        return new

    async def score(self, run: CaseRun) -> list[Score]:
        said = run.output["said"]
        if not is_of_agents(self.name):
            return [await self.score_of(said, None, run.output.get("report"))]
        personas = [Persona(**persona) for persona in run.input["personas"]]
        return list(await asyncio.gather(*(self.score_of(said, persona) for persona in personas)))

    async def score_of(
        self, said: Sequence[Sequence[str]], persona: Persona | None, report: Any = None
    ) -> Score:
        """The score of one agent of a conversation, or of the conversation. `said` is from `plain_messages`."""
        heard = Trajectory.from_messages(messages_of(said))
        if persona is None:
            return await self._judged(self.name, self._asked, heard, report)
        return await self._judged(persona.name, self._scorer(self._asked.engine, persona), heard)

    def _scorer(self, judge: Any, persona: Persona) -> _Scorer:
        match self.name:
            case "adherence":
                return AdherenceScorer(judge, persona, self._propositions, unit="trajectory")
            case "consistency":
                return ConsistencyScorer(judge, self._propositions, agent=persona.name, unit="trajectory")
            case "fluency":
                return FluencyScorer(judge, self._propositions, agent=persona.name)
            case "convergence":
                return ConvergenceScorer(judge, self._propositions)
            case _:
                return IdeasScorer(judge, method=self._method)

    async def _judged(self, name: str, scorer: _Scorer, said: Trajectory, report: Any = None) -> Score:
        try:
            if isinstance(scorer, IdeasScorer):
                if self._method == "rapporteur" and report is None:
                    return Score(
                        name, outcome="error", reason="there is no report to count", scale=self.scale
                    )
                result = await scorer.ascore(said, report if self._method == "rapporteur" else None)
            else:
                result = await scorer.ascore(said)
        except Exception as error:
            return failed(name, error, scale=self.scale)
        return score_of_dimension(name, result, self.scale)
