"""The proposition engine: from a claim and what was said to a score, one claim at a time or ten at once.

    precondition ─▶ template ─▶ evidence at all? ─▶ prompt ─▶ judge ─▶ (sure?) ─▶ score

What cannot be judged has an outcome of its own and no score: a judge that raises, is too slow, or gives no answer
that can be read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from pydantic import BaseModel, ValidationError

from arbiter.errors import ConfigurationError
from arbiter.models import ChatModel, visible
from arbiter.personas.answers import (
    HIGHEST,
    MAX_BATCH,
    BatchAnswer,
    CheckAnswer,
    ScoreAnswer,
    as_score,
)
from arbiter.personas.asking import Outcome, Steps, adrive, drive, together
from arbiter.personas.characters import Persona
from arbiter.personas.judges import Judge, JudgeReply, JudgeRequest, Purpose, judge_of
from arbiter.personas.prompts import AGAIN, Claim, judging
from arbiter.personas.propositions import DEFAULT_WINDOWS, Proposition, fill, variables_in, without_value
from arbiter.personas.trajectories import Trajectory

Status = Literal["judged", "precondition_false", "no_evidence", "timeout", "error"]
Level = Literal["evaluation", "action"]
NO_TOKENS = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)

T = TypeVar("T")
_log = logging.getLogger("arbiter.personas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is judged: a trajectory, of one `agent` or (None) of the whole channel, and whose personas are known.

    A proposition with `target_type="agent"` is shown the trajectory from the agent's side, and the agent's persona;
    one with "environment" all of it in order, and every participant's.

    `before` is for a `trajectory` that is a part of a conversation, such as one message: what came before it. Then all
    of `trajectory` is judged, and `first_n` and `last_n` of a proposition say how many events of the conversation up to
    its end are shown with it. A proposition that sets neither is shown `trajectory` alone.
    """

    trajectory: Trajectory
    agent: str | None = None
    personas: tuple[Persona, ...] = ()
    channel: str = ""
    before: Trajectory | None = None

    def __post_init__(self) -> None:
        for name in ("trajectory", "before"):
            given: Any = getattr(self, name)
            if not isinstance(given, Trajectory) and not (name == "before" and given is None):
                raise ConfigurationError(
                    f"Target: {name}: expected a Trajectory, got {given!r:.80}. "
                    "Of messages make one with Trajectory.from_messages(messages, agent)."
                )

    @property
    def own_personas(self) -> tuple[Persona, ...]:
        """The persona of the agent, by its name; with a single persona, that one."""
        own = tuple(persona for persona in self.personas if persona.name == self.agent)
        return own or (self.personas if len(self.personas) == 1 or self.agent is None else ())

    @property
    def variables(self) -> dict[str, str]:
        """The template variables that the target itself gives."""
        found: dict[str, str] = {}
        if self.agent is not None:
            found["agent_name"] = self.agent
        if self.channel:
            found["channel_name"] = self.channel
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """What became of one proposition, with all that it takes to look into it later.

    `score` is the final one, 0.0 to 9.0, inverted where the proposition is; None if there is none (`status`
    "timeout" or "error", and for `check`). `raw` is the judge's own, 0 to 9. `result` is the answer of `check`, None
    without one. "precondition_false" (the claim does not apply) counts as 9, or True, whatever is inverted.
    "no_evidence" counts as 9 for `score`, and is no answer of `check`.

    `calls` and `token_usage` are those of this proposition alone: 0 and None for one of a batch, whose calls and
    tokens `Judgements` has. `token_usage` is None where the model does not say. `first_raw` is the score before the
    judge was asked whether it is sure. `texts` are the judge's answers word for word, `prompt_hash` names the whole
    question, `problem` says what went wrong.
    """

    proposition_id: str
    mode: Literal["score", "check"]
    status: Status
    score: float | None = None
    raw: int | None = None
    result: bool | None = None
    reasoning: str = ""
    confidence: float | None = None
    clamped: bool = False
    first_raw: int | None = None
    calls: int = 0
    token_usage: UsageMetadata | None = None
    claim: str = ""
    recommendations: str | None = None
    model: str = ""
    prompt_hash: str = ""
    texts: tuple[str, ...] = ()
    problem: str = ""
    batched: bool = False

    @property
    def attempts(self) -> int:
        """How many answers the judge gave."""
        return len(self.texts)

    def advice(self, threshold: float) -> str | None:
        """The proposition's recommendations for improvement if the score is below `threshold`, else None."""
        return self.recommendations if self.score is not None and self.score < threshold else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """The results of several propositions, in their order, and what all of it took.

    `token_usage` is the sum over all calls, None as soon as the model says nothing about one.
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


class PropositionEngine:
    """Scores and checks propositions with a judge: a chat model, a text like "openai:gpt-5-mini", or a `Judge`.

    `level` gives the default windows: "evaluation" (the first 10 and last 100 events) or "action" (5 and 10), for a
    draft that is judged before it is said. A question that takes longer than `timeout` seconds (None: any time) has the
    status "timeout". Up to `concurrency` questions are asked at once, on threads or on the event loop.

    Each method has an async twin. A mistake in the set-up (a stale recording, a precondition that returns no bool)
    raises; whatever else goes wrong is an outcome.
    """

    def __init__(
        self,
        judge: Judge | ChatModel | str,
        *,
        level: Level = "evaluation",
        timeout: float | None = 120.0,
        concurrency: int = 8,
    ) -> None:
        if level not in DEFAULT_WINDOWS:
            raise ConfigurationError(f"expected the level 'evaluation' or 'action', got {level!r}.")
        if timeout is not None and not timeout > 0:
            raise ConfigurationError(f"expected a timeout in seconds above 0, or None, got {timeout!r}.")
        if concurrency < 1:
            raise ConfigurationError(f"expected a concurrency of at least 1, got {concurrency!r}.")
        self.judge = judge_of(judge)
        self.level: Level = level
        self.timeout = timeout
        self.concurrency = concurrency

    def score(
        self,
        proposition: Proposition,
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> JudgeResult:
        """How true the claim is, 0 to 9.

        `context` is whatever else the judge should know; `variables` fill the claim's template, beside `agent_name`
        and `channel_name`, which the target gives; `evidence` are measured numbers, shown after the trajectory. All
        are shown as data.
        """
        return self.run(self.asking("score", proposition, target, context, variables, evidence))

    async def ascore(
        self,
        proposition: Proposition,
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> JudgeResult:
        """As `score`."""
        return await self.arun(self.asking("score", proposition, target, context, variables, evidence))

    def check(
        self,
        proposition: Proposition,
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> JudgeResult:
        """Whether the claim is true, as `result`: the claim itself, also of an inverted proposition."""
        return self.run(self.asking("check", proposition, target, context, variables, evidence))

    async def acheck(
        self,
        proposition: Proposition,
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> JudgeResult:
        """As `check`."""
        return await self.arun(self.asking("check", proposition, target, context, variables, evidence))

    def score_batch(
        self,
        propositions: Iterable[Proposition],
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> Judgements:
        """The scores of several claims about one target, up to 10 in one question, in the order given.

        Those that are to be double-checked are asked about one by one. If an answer does not have exactly the ids
        that were asked about, or cannot be read, its claims are asked about one by one, too.
        """
        return self.run(self.asking_batch(tuple(propositions), target, context, variables, evidence))

    async def ascore_batch(
        self,
        propositions: Iterable[Proposition],
        target: Target,
        *,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> Judgements:
        """As `score_batch`."""
        return await self.arun(self.asking_batch(tuple(propositions), target, context, variables, evidence))

    # The decisions, for whoever puts several together (`asking.together`) and drives them at once.

    def run(self, steps: Steps[T]) -> T:
        """Drive decisions with this engine's judge, timeout and concurrency."""
        return drive(steps, self.judge, self.timeout, self.concurrency)

    async def arun(self, steps: Steps[T]) -> T:
        """As `run`."""
        return await adrive(steps, self.judge, self.timeout, self.concurrency)

    def asking(
        self,
        mode: Literal["score", "check"],
        proposition: Proposition,
        target: Target,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> Steps[JudgeResult]:
        """The decisions of `score` and `check`."""
        ready = self._prepare(mode, proposition, target, context, variables)
        if isinstance(ready, JudgeResult):
            return ready
        return (yield from self._individually(mode, ready, context, evidence))

    def asking_batch(
        self,
        propositions: Sequence[Proposition],
        target: Target,
        context: str = "",
        variables: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> Steps[Judgements]:
        """The decisions of `score_batch`."""
        for proposition in propositions:
            _check_types(proposition, target)
        _check_ids(propositions)
        results: dict[int, JudgeResult] = {}
        groups: dict[Any, list[tuple[int, _Ready]]] = {}
        alone: list[tuple[int, _Ready]] = []
        for at, proposition in enumerate(propositions):
            ready = self._prepare("score", proposition, target, context, variables)
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
        asked = [self._request("batch", [ready for _, ready in chunk], context, evidence) for chunk in chunks]
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
                [self._individually("score", ready, context, evidence) for _, ready in alone]
            )
            results.update(zip([at for at, _ in alone], singles, strict=True))
        calls, usage = cost(outcomes)
        return Judgements(
            results=tuple(results[at] for at in range(len(propositions))),
            calls=calls + sum(result.calls for result in singles),
            token_usage=total_usage([usage, *(result.token_usage for result in singles)]),
        )

    def _prepare(
        self,
        mode: Literal["score", "check"],
        proposition: Proposition,
        target: Target,
        context: str,
        variables: Mapping[str, str] | None,
    ) -> _Ready | JudgeResult:
        """What is to be asked, or the result if nothing is."""
        _check_types(proposition, target)
        if proposition.double_check and getattr(self.judge, "replays", False):
            raise ConfigurationError(
                f"proposition {proposition.id!r} is to be double-checked, which a recording cannot answer. "
                "Set double_check=False for recorded judgements."
            )
        known = {**target.variables, **(variables or {})}
        claim = fill(proposition.claim, known)
        used = variables_in(proposition.claim)
        begun = JudgeResult(
            proposition_id=proposition.id,
            mode=mode,
            status="precondition_false",
            claim=claim,
            recommendations=_filled(proposition.recommendations_for_improvement, known),
            token_usage=NO_TOKENS,
        )
        if not _applies(proposition, target, context, known):
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
        # What is shown in a block of its own is only named in the claim: no text can go on with the claim.
        named = {name: f"the {title} below" for name, title in BLOCKS.items()}
        inline = {name: visible(value) for name, value in known.items()}
        blocks = {title: known[name] for name, title in BLOCKS.items() if name in used}
        return _Ready(proposition, begun, shown, fill(proposition.claim, {**inline, **named}), blocks)

    def _texts(self, proposition: Proposition, target: Target, agent: str | None) -> tuple[str, str]:
        """What was said before what is judged, and that, as far as the proposition's windows go."""
        first, last = proposition.first_n, proposition.last_n
        if target.before is None:
            default = DEFAULT_WINDOWS[self.level]
            first, last = default[0] if first is None else first, default[1] if last is None else last
            return "", target.trajectory.text(first, last, agent=agent)
        judged = target.trajectory.text(agent=agent)
        # The window ends with what is judged.
        first, last = first or 0, max(0, (last or 0) - len(target.trajectory))
        if not (first or last) or not target.before.events:
            return "", judged
        return target.before.text(first, last, agent=agent), judged

    def _request(
        self, purpose: Purpose, ready: Sequence[_Ready], context: str, evidence: str
    ) -> JudgeRequest:
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
                evidence=evidence,
                context=context,
            ),
            schema=_SCHEMAS[purpose],
        )

    def _individually(
        self, mode: Literal["score", "check"], ready: _Ready, context: str, evidence: str
    ) -> Steps[JudgeResult]:
        request = self._request(mode, [ready], context, evidence)
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


class _Shown(NamedTuple):
    """What a judge is shown beside the claim. Claims of one question have the same."""

    trajectory: str
    before: str
    personas: tuple[tuple[str, str], ...]


class _Ready(NamedTuple):
    """A proposition that is to be asked about, and its result as far as it is known before."""

    proposition: Proposition
    begun: JudgeResult
    shown: _Shown
    claim: str
    """As the judge is asked about it."""
    blocks: Mapping[str, str]
    """The texts that the claim is about, by what it calls them."""


class Reading(NamedTuple):
    """A judge's outcome as an answer that fits, or why there is none."""

    answer: Any
    status: Status = "judged"
    problem: str = ""


BLOCKS = {"action": "draft", "task_description": "task description"}
"""Variables whose values are shown to the judge beside the claim, in a quotation of their own, and what they are called
there."""
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


def _filled(text: str | None, variables: Mapping[str, str]) -> str | None:
    return None if text is None else fill(text, variables)


def _trivially_true(begun: JudgeResult, why: str) -> JudgeResult:
    """The result of what nobody has to judge: as good as can be, whatever is inverted."""
    value: dict[str, Any] = {"score": float(HIGHEST)} if begun.mode == "score" else {"result": True}
    return replace(begun, confidence=1.0, reasoning=why, **value)


def read(request: JudgeRequest, outcome: Outcome) -> Reading:
    """What a judge answered, held against the schema of the question."""
    if isinstance(outcome, TimeoutError):
        return Reading(None, "timeout", "no answer in time")
    if isinstance(outcome, Exception):
        return Reading(None, "error", f"{type(outcome).__name__}: {outcome}")
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
    """The results of a chunk; None if the judge answered, but not to what it was asked."""
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
    """The second turn: the judge's own answer, and whether it is sure."""
    said = json.dumps(reading.answer.model_dump(), ensure_ascii=False)
    return AIMessage(said), HumanMessage(AGAIN)


def cost(outcomes: Sequence[Outcome]) -> tuple[int, UsageMetadata | None]:
    """The calls, and their tokens if all of them are known: what a call that failed took, nobody knows."""
    calls = sum(outcome.calls if isinstance(outcome, JudgeReply) else 1 for outcome in outcomes)
    usages = [outcome.usage if isinstance(outcome, JudgeReply) else None for outcome in outcomes]
    return calls, total_usage(usages)


def total_usage(usages: Iterable[UsageMetadata | None]) -> UsageMetadata | None:
    """The sum of what was used, None as soon as one part is not known; of nothing, no tokens."""
    total = NO_TOKENS
    for usage in usages:
        if usage is None:
            return None
        total = add_usage(total, usage)
    return total
