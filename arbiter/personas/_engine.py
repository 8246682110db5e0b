"""The proposition engine: turns a claim and a conversation into a score, one claim at a time or ten at once.

    precondition ─▶ template ─▶ evidence at all? ─▶ prompt ─▶ judge ─▶ (sure?) ─▶ score

A judge that raises, times out or gives no readable answer leads to an outcome of its own, without a score.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, cast

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel, ValidationError

from arbiter._values.states import is_whole
from arbiter.errors import ConfigurationError, describe
from arbiter.models import (
    NO_TOKENS,
    ChatModel,
    Judge,
    JudgeReply,
    JudgeRequest,
    judge_of,
    total_usage,
    visible,
)
from arbiter.models._judges import Purpose
from arbiter.personas._answers import HIGHEST, MAX_BATCH, BatchAnswer, CheckAnswer, ScoreAnswer, as_score
from arbiter.personas._asking import Outcome, Steps, aask_all, adrive, ask_all, drive, together
from arbiter.personas._prompts import AGAIN, Claim, judging
from arbiter.personas._propositions import (
    DEFAULT_WINDOWS,
    Proposition,
    Variables,
    fill,
    many_of,
    texts_of,
    variables_in,
    without_value,
)
from arbiter.personas._targets import Target

Status = Literal["judged", "precondition_false", "no_evidence", "timeout", "error"]
Level = Literal["evaluation", "action"]

T = TypeVar("T")
_log = logging.getLogger("arbiter.personas")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """The outcome of one proposition, with everything needed to look into it later.

    `score` is the final score, 0.0 to 9.0, inverted for an inverted proposition; None if there is none
    (`status` "timeout" or "error", and for `check`). `raw` is the judge's own, 0 to 9. `result` is the answer
    of `check`; None without one. "precondition_false" (the claim does not apply) counts as 9, or True, even
    for inverted propositions. "no_evidence" counts as 9 for `score`, and is no answer of `check`.

    `calls` and `token_usage` count for this proposition alone: 0 and None in a batch, whose totals are in
    `Judgements`. `token_usage` is None if the model does not report it. `first_raw` is the score before the
    judge was asked whether it is sure. `texts` are the judge's answers word for word, `prompt_hash`
    identifies the whole question, `problem` describes a failure. `votes` are the scores of an engine that asks
    several times, whose `score` and `raw` are means and whose `reasoning` is that of the lowest vote; a `check`
    is true if most votes are.
    """

    proposition_id: str
    mode: Literal["score", "check"]
    status: Status
    score: float | None = None
    raw: float | None = None
    result: bool | None = None
    reasoning: str = ""
    confidence: float | None = None
    clamped: bool = False
    first_raw: float | None = None
    calls: int = 0
    token_usage: UsageMetadata | None = None
    claim: str = ""
    recommendations: str | None = None
    model: str = ""
    prompt_hash: str = ""
    texts: tuple[str, ...] = ()
    problem: str = ""
    batched: bool = False
    votes: tuple[float, ...] = ()

    @property
    def attempts(self) -> int:
        """The number of the judge's answers."""
        return len(self.texts)

    def advice(self, threshold: float) -> str | None:
        """The proposition's recommendations for improvement if the score is below `threshold`, else None."""
        return self.recommendations if self.score is not None and self.score < threshold else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """The results of several propositions, in their order, and their total cost.

    `token_usage` is the sum over all calls; None if the model does not report one of them.
    """

    results: tuple[JudgeResult, ...]
    calls: int
    token_usage: UsageMetadata | None

    def __iter__(self) -> Iterator[JudgeResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, at: int) -> JudgeResult:
        return self.results[at]


class About(TypedDict, total=False):
    """Additional texts for a judge, next to a claim and its target; see `PropositionEngine.score`."""

    context: str
    variables: Variables | None
    evidence: str


class PropositionEngine:
    """Scores and checks propositions with a judge: a chat model, a text like "openai:gpt-5-mini", or a
    `Judge`.

    `level` sets the default windows: "evaluation" (the first 10 and last 100 events) or "action" (5 and 10),
    for a draft that is judged before it is committed. A question that takes longer than `timeout` seconds
    (None: no limit) has the status "timeout". Up to `concurrency` questions are asked at once, on threads or
    on the event loop. With `votes` above 1 each question is asked so often, and the scores are the means of
    the votes. `purse` names the use of the answers, for code that counts what they cost.

    Each method has an async twin. A mistake in the set-up (a stale recording, a precondition that returns no
    bool) raises; every other failure is an outcome.
    """

    def __init__(
        self,
        judge: Judge | ChatModel | str,
        *,
        level: Level = "evaluation",
        timeout: float | None = 120.0,
        concurrency: int = 8,
        votes: int = 1,
        purse: str = "judge",
    ) -> None:
        if level not in DEFAULT_WINDOWS:
            raise ConfigurationError(f"expected the level 'evaluation' or 'action', got {level!r}.")
        if timeout is not None and not (isinstance(cast(Any, timeout), Real) and timeout > 0):
            raise ConfigurationError(f"expected a timeout in seconds above 0, or None, got {timeout!r}.")
        if not (isinstance(cast(Any, concurrency), Real) and concurrency >= 1):
            raise ConfigurationError(f"expected a concurrency of at least 1, got {concurrency!r}.")
        if not is_whole(votes, least=1):
            raise ConfigurationError(f"expected votes from 1, got {votes!r:.80}.")
        self.judge = judge_of(judge)
        self.level: Level = level
        self.votes = votes
        self.purse = purse
        self.timeout = timeout
        self.concurrency = concurrency

    def score(self, proposition: Proposition, target: Target, **about: Unpack[About]) -> JudgeResult:
        """The truth of the claim, 0 to 9.

        `context` is additional information for the judge. `variables` fill the claim's template, besides
        `agent_name` and `channel_name` from the target. `evidence` are measured numbers, shown after the
        trajectory. The judge sees all three quoted as data.
        """
        return self.run(self.asking("score", proposition, target, **about))

    async def ascore(self, proposition: Proposition, target: Target, **about: Unpack[About]) -> JudgeResult:
        """Async version of `score`."""
        return await self.arun(self.asking("score", proposition, target, **about))

    def check(self, proposition: Proposition, target: Target, **about: Unpack[About]) -> JudgeResult:
        """The truth of the claim, as `result`: that of the claim itself, even for an inverted proposition."""
        return self.run(self.asking("check", proposition, target, **about))

    async def acheck(self, proposition: Proposition, target: Target, **about: Unpack[About]) -> JudgeResult:
        """Async version of `check`."""
        return await self.arun(self.asking("check", proposition, target, **about))

    def score_batch(
        self, propositions: Iterable[Proposition], target: Target, **about: Unpack[About]
    ) -> Judgements:
        """The scores of several claims about one target, in the order given, up to 10 claims in one question.

        Claims with `double_check` are asked one by one. If an answer cannot be read or its ids differ from
        those of the question, its claims are asked one by one too.
        """
        return self.run(self.asking_batch(propositions, target, **about))

    async def ascore_batch(
        self, propositions: Iterable[Proposition], target: Target, **about: Unpack[About]
    ) -> Judgements:
        """Async version of `score_batch`."""
        return await self.arun(self.asking_batch(propositions, target, **about))

    # The decisions, for callers that combine several (`asking.together`) and drive them at once.

    def run(self, steps: Steps[T]) -> T:
        """Drive decisions with this engine's judge, timeout and concurrency."""
        return drive(steps, lambda asked: ask_all(self.judge, asked, self.timeout, self.concurrency))

    async def arun(self, steps: Steps[T]) -> T:
        """Async version of `run`."""
        return await adrive(steps, lambda asked: aask_all(self.judge, asked, self.timeout, self.concurrency))

    def asking(
        self,
        mode: Literal["score", "check"],
        proposition: Proposition,
        target: Target,
        context: str = "",
        variables: Variables | None = None,
        evidence: str = "",
    ) -> Steps[JudgeResult]:
        """The decisions of `score` and `check`."""
        about: About = {"context": context, "variables": variables, "evidence": evidence}
        ready = self._prepare(mode, proposition, target, about)
        if isinstance(ready, JudgeResult):
            return ready
        votes = yield from together(
            [self._individually(mode, ready, about, vote) for vote in range(self.votes)]
        )
        return replace(
            _combined(votes),
            calls=sum(each.calls for each in votes),
            token_usage=total_usage(each.token_usage for each in votes),
        )

    def asking_batch(
        self,
        propositions: Iterable[Proposition],
        target: Target,
        context: str = "",
        variables: Variables | None = None,
        evidence: str = "",
    ) -> Steps[Judgements]:
        """The decisions of `score_batch`."""
        propositions = many_of(propositions)
        about: About = {"context": context, "variables": variables, "evidence": evidence}
        for proposition in propositions:
            _check_types(proposition, target)
        _check_ids(propositions)
        votes: list[Judgements] = yield from together(
            [self._batch_once(propositions, target, about, vote) for vote in range(self.votes)]
        )
        return Judgements(
            results=tuple(map(_combined, zip(*votes, strict=True))),
            calls=sum(each.calls for each in votes),
            token_usage=total_usage(each.token_usage for each in votes),
        )

    def _batch_once(
        self, propositions: Sequence[Proposition], target: Target, about: About, vote: int
    ) -> Steps[Judgements]:
        results: dict[int, JudgeResult] = {}
        groups: dict[Any, list[tuple[int, _Ready]]] = {}
        alone: list[tuple[int, _Ready]] = []
        for at, proposition in enumerate(propositions):
            ready = self._prepare("score", proposition, target, about)
            if isinstance(ready, JudgeResult):
                results[at] = ready
            elif proposition.double_check:
                alone.append((at, ready))
            else:
                groups.setdefault(ready.shown, []).append((at, ready))
        chunks = [
            group[begin : begin + MAX_BATCH]
            for group in groups.values()
            for begin in range(0, len(group), MAX_BATCH)
        ]
        asked = [self._request("batch", [ready for _, ready in chunk], about, vote) for chunk in chunks]
        outcomes: Sequence[Outcome] = ()
        if asked:
            outcomes = yield asked
        for chunk, request, outcome in zip(chunks, asked, outcomes, strict=True):
            found = _of_batch(request, outcome, [ready for _, ready in chunk])
            if found is None:
                alone += chunk
            else:
                results.update(zip([at for at, _ in chunk], found, strict=True))
        singles: list[JudgeResult] = []
        if alone:
            singles = yield from together(
                [self._individually("score", ready, about, vote) for _, ready in alone]
            )
            results.update(zip([at for at, _ in alone], singles, strict=True))
        calls, usage = cost(outcomes)
        return Judgements(
            results=tuple(results[at] for at in range(len(propositions))),
            calls=calls + sum(result.calls for result in singles),
            token_usage=total_usage([usage, *(result.token_usage for result in singles)]),
        )

    def _prepare(
        self, mode: Literal["score", "check"], proposition: Proposition, target: Target, about: About
    ) -> _Ready | JudgeResult:
        """The question to ask, or the result if no question is needed."""
        _check_types(proposition, target)
        if proposition.double_check and getattr(self.judge, "replays", False):
            raise ConfigurationError(
                f"proposition {proposition.id!r} is to be double-checked, which a recording cannot answer. "
                "Set double_check=False for recorded judgements."
            )
        known = {**target.variables, **texts_of(about.get("variables"))}
        claim = fill(proposition.claim, known)
        used = variables_in(proposition.claim)
        advice = proposition.recommendations_for_improvement
        begun = JudgeResult(
            proposition_id=proposition.id,
            mode=mode,
            status="precondition_false",
            claim=claim,
            recommendations=None if advice is None else fill(advice, known),
            token_usage=NO_TOKENS,
        )
        if not _applies(proposition, target, about.get("context", ""), known):
            return _trivially_true(begun, "the precondition is not met")
        if missing := sorted(used - known.keys()):
            return replace(begun, status="error", problem=without_value(missing))
        of_agent = proposition.target_type == "agent"
        if not target.trajectory.events and "action" not in used:
            nothing = replace(begun, status="no_evidence")
            reason = "there is nothing to judge"
            return _trivially_true(nothing, reason) if mode == "score" else replace(nothing, problem=reason)
        personas = target.own_personas if of_agent else target.personas
        before, trajectory = self._texts(proposition, target, target.agent if of_agent else None)
        shown = _Shown(
            trajectory=trajectory,
            before=before,
            personas=tuple((found.name, found.text) for found in personas)
            if proposition.include_personas
            else (),
        )
        # The claim only names texts that have a block of their own, so that no text can continue the claim.
        named = {name: f"the {title} below" for name, title in BLOCKS.items()}
        inline = {name: visible(value) for name, value in known.items()}
        blocks = {title: known[name] for name, title in BLOCKS.items() if name in used}
        return _Ready(proposition, begun, shown, fill(proposition.claim, {**inline, **named}), blocks)

    def _texts(self, proposition: Proposition, target: Target, agent: str | None) -> tuple[str, str]:
        """The conversation before the judged part, and the judged part, within the proposition's windows."""
        first, last = proposition.first_n, proposition.last_n
        if target.before is None:
            default = DEFAULT_WINDOWS[self.level]
            first, last = default[0] if first is None else first, default[1] if last is None else last
            return "", target.trajectory.text(first, last, agent=agent)
        judged = target.trajectory.text(agent=agent)
        # The window ends with the judged part.
        first, last = first or 0, max(0, (last or 0) - len(target.trajectory))
        if not (first or last) or not target.before.events:
            return "", judged
        return target.before.text(first, last, agent=agent), judged

    def _request(self, purpose: Purpose, ready: Sequence[_Ready], about: About, vote: int) -> JudgeRequest:
        shown = ready[0].shown
        return JudgeRequest(
            purpose=purpose,
            propositions=tuple(one.proposition.id for one in ready),
            messages=judging(
                purpose,
                [Claim(one.proposition.id, one.claim, one.proposition.hard) for one in ready],
                shown.trajectory,
                shown.personas,
                blocks={title: text for one in ready for title, text in one.blocks.items()},
                before=shown.before,
                evidence=about.get("evidence", ""),
                context=about.get("context", ""),
            ),
            schema=_SCHEMAS[purpose],
            vote=vote,
            purse=self.purse,
        )

    def _individually(
        self, mode: Literal["score", "check"], ready: _Ready, about: About, vote: int
    ) -> Steps[JudgeResult]:
        request = self._request(mode, [ready], about, vote)
        outcomes = list((yield [request]))
        reading = read(request, outcomes[0])
        result = _result(ready, request.key, outcomes[0], reading)
        if ready.proposition.double_check and result.status == "judged":
            again = replace(request, messages=(*request.messages, *_sure(reading)))
            outcomes += yield [again]
            revised = _result(ready, again.key, outcomes[1], read(again, outcomes[1]))
            if revised.status in ("judged", "no_evidence"):
                result = replace(revised, first_raw=result.raw, texts=result.texts + revised.texts)
            else:
                note = f"the second judgement could not be used, the first one holds: {revised.problem}"
                result = replace(result, problem=note, texts=result.texts + revised.texts)
        calls, usage = cost(outcomes)
        return replace(result, calls=calls, token_usage=usage)


def _combined(votes: Sequence[JudgeResult]) -> JudgeResult:
    """Several judgements of one question as one: the means of those that have a score."""
    if len(votes) == 1:
        return votes[0]
    judged = [vote for vote in votes if vote.status == "judged"]
    texts = tuple(text for vote in votes for text in vote.texts)
    if not judged:
        return replace(votes[0], texts=texts)
    if judged[0].mode == "check":
        true = [vote for vote in judged if vote.result]
        wins = len(true) * 2 > len(judged)
        said = next(vote for vote in judged if bool(vote.result) is wins)
        return replace(said, result=wins, texts=texts)
    scores = tuple(vote.score for vote in judged if vote.score is not None)
    raws = [vote.raw for vote in judged if vote.raw is not None]
    lowest = min(judged, key=lambda vote: vote.score or 0.0)
    return replace(
        lowest,
        score=math.fsum(scores) / len(scores),
        raw=math.fsum(raws) / len(raws),
        confidence=math.fsum(vote.confidence or 0.0 for vote in judged) / len(judged),
        clamped=any(vote.clamped for vote in judged),
        texts=texts,
        votes=scores,
    )


class _Shown(NamedTuple):
    """The material next to the claim. Claims of one question share it."""

    trajectory: str
    before: str
    personas: tuple[tuple[str, str], ...]


class _Ready(NamedTuple):
    """A proposition to ask about, and the part of its result that is already known."""

    proposition: Proposition
    begun: JudgeResult
    shown: _Shown
    claim: str
    """The claim as the judge sees it."""
    blocks: Mapping[str, str]
    """The texts that the claim is about, by their titles in the claim."""


class Reading(NamedTuple):
    """The judge's answer if it fits the schema, else the reason why there is none."""

    answer: Any
    status: Status = "judged"
    problem: str = ""


BLOCKS = {"action": "draft", "task_description": "task description"}
"""Variables whose values the judge sees in a quotation of their own, with the titles of these quotations."""
_SCHEMAS: Mapping[str, type[BaseModel]] = {"score": ScoreAnswer, "check": CheckAnswer, "batch": BatchAnswer}


def _check_types(proposition: Any, target: Any) -> None:
    if not isinstance(proposition, Proposition):
        raise ConfigurationError(
            f"expected a Proposition, got {proposition!r:.80}. Write Proposition(id, claim)."
        )
    if not isinstance(target, Target):
        raise ConfigurationError(
            f"expected a Target, got {target!r:.80}. Write Target(trajectory=..., agent=...)."
        )


def _check_ids(propositions: Sequence[Proposition]) -> None:
    ids = [proposition.id for proposition in propositions]
    if len(set(ids)) != len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise ConfigurationError(
            f"answers are told apart by id, and {twice!r} is the id of two propositions."
        )


def _applies(proposition: Proposition, target: Target, context: str, variables: Mapping[str, str]) -> bool:
    if proposition.precondition is None:
        return True
    answer: Any = proposition.precondition(target, context, variables)
    if not isinstance(answer, bool):
        raise TypeError(
            f"the precondition of proposition {proposition.id!r} returned {answer!r:.80}; expected True or False"
        )
    return answer


def _trivially_true(begun: JudgeResult, why: str) -> JudgeResult:
    """The best possible result, for a claim that needs no judgement, even if it is inverted."""
    value: dict[str, Any] = {"score": float(HIGHEST)} if begun.mode == "score" else {"result": True}
    return replace(begun, confidence=1.0, reasoning=why, **value)


def read(request: JudgeRequest, outcome: Outcome) -> Reading:
    """A judge's answer, checked against the schema of the question."""
    if isinstance(outcome, TimeoutError):
        return Reading(None, "timeout", "no answer in time")
    if isinstance(outcome, Exception):
        return Reading(None, "error", describe(outcome))
    if outcome.value is None:
        return Reading(None, "error", outcome.problem or "no answer")
    try:
        return Reading(request.schema.model_validate(outcome.value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Reading(None, "error", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def _result(
    ready: _Ready, prompt_hash: str, outcome: Outcome, reading: Reading, *, batched: bool = False
) -> JudgeResult:
    """The result of one proposition from the judge's answer about it."""
    known: dict[str, Any] = {"status": reading.status, "problem": reading.problem, "prompt_hash": prompt_hash}
    if batched:
        known.update(batched=True, token_usage=None)
    if isinstance(outcome, JudgeReply):
        known.update(texts=outcome.texts, model=outcome.model)
    answer = reading.answer
    if answer is not None:
        known.update(reasoning=answer.reasoning, confidence=answer.confidence)
        known.update(_judged(answer, ready.proposition.inverted))
    return replace(ready.begun, **known)


def _judged(answer: ScoreAnswer | CheckAnswer, inverted: bool) -> dict[str, Any]:
    if isinstance(answer, CheckAnswer):
        if not answer.evidence_present:
            return {"status": "no_evidence", "problem": "the judge found no evidence"}
        return {"result": answer.result}
    raw, clamped = as_score(answer.score)
    known: dict[str, Any] = {"raw": raw, "clamped": clamped}
    if not answer.evidence_present:
        return {**known, "status": "no_evidence", "score": float(HIGHEST)}
    return {**known, "score": float(HIGHEST - raw if inverted else raw)}


def _of_batch(request: JudgeRequest, outcome: Outcome, ready: Sequence[_Ready]) -> list[JudgeResult] | None:
    """The results of a chunk; None if the judge answered other claims than those asked."""
    reading = read(request, outcome)
    if reading.answer is None:
        if isinstance(outcome, JudgeReply):
            return None
        readings = [reading] * len(ready)
    else:
        items = {item.id: item for item in reading.answer.judgements}
        ids = [one.proposition.id for one in ready]
        if len(reading.answer.judgements) != len(ids) or items.keys() != set(ids):
            return None
        readings = [Reading(items[id]) for id in ids]
    key = request.key
    return [
        _result(one, key, outcome, found, batched=True) for one, found in zip(ready, readings, strict=True)
    ]


def _sure(reading: Reading) -> tuple[AIMessage, HumanMessage]:
    """The second turn: the judge's own answer, and the question whether it is sure."""
    said = json.dumps(reading.answer.model_dump(), ensure_ascii=False)
    return AIMessage(said), HumanMessage(AGAIN)


def cost(outcomes: Sequence[Outcome]) -> tuple[int, UsageMetadata | None]:
    """The calls and their tokens; None for the tokens if a call failed or its model does not report them."""
    calls = sum(outcome.calls if isinstance(outcome, JudgeReply) else 1 for outcome in outcomes)
    usages = [outcome.usage if isinstance(outcome, JudgeReply) else None for outcome in outcomes]
    return calls, total_usage(usages)
