"""The action correction gate: judges each draft of an agent's message before any of it is committed.

draft ─▶ dimensions, all at once, and similarity ─pass─▶ commit
             │ fail
             ├─▶ write again, with feedback that escalates            at most max_correction_attempts times
             ├─▶ rewrite the best draft                               off unless enabled
             └─▶ commit the best draft, or none (continue_on_failure=False)

See docs/personas.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID, uuid4

from langchain_core.messages import BaseMessage

from arbiter._constitution.documents import pack_folder
from arbiter._contracts import TargetInstructions, TargetNodes
from arbiter._threads.deadlines import Turns, awaited_in_turn, in_turn, start, within
from arbiter._threads.forks import new_lock
from arbiter._values.once import Once
from arbiter._values.parameters import Param, check_parameters
from arbiter._values.recent import Recent
from arbiter.advice import CorrectionGate
from arbiter.errors import ConfigurationError, describe, nearest
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.models import (
    NO_TOKENS,
    ChatModel,
    Judge,
    JudgeReply,
    areply,
    counting_apart,
    model_of,
    total_usage,
    usage_meter,
)
from arbiter.models._asking import reply, without_thought
from arbiter.personas._answers import HIGHEST
from arbiter.personas._asking import Steps, adrive, aoutcome, drive, outcome
from arbiter.personas._characters import Persona
from arbiter.personas._config import (
    DIMENSIONS,
    Dimension,
    GateConfig,
    all_configs,
    checked_configs,
    config_for,
)
from arbiter.personas._conversation import (
    SPEAKING_TOOLS,
    AgentOf,
    Cast,
    run_id_of,
    scope_of,
)
from arbiter.personas._drafts import (
    Draft,
    commit_nothing,
    draft_of,
    pending_draft,
    pending_with_text,
    similarity_to,
    with_text,
)
from arbiter.personas._engine import (
    Judgements,
    JudgeResult,
    PropositionEngine,
    Status,
)
from arbiter.personas._feedback import feedback_on, rewriting
from arbiter.personas._gated import Attempt, DimensionCheck, GatedAction, GateStatistics, Outcome
from arbiter.personas._propositions import PropositionSet, propositions_of
from arbiter.personas._repositories import (
    CorrectionRepository,
    Storing,
    checked_repository,
    problems,
)
from arbiter.personas._scorers import weighted_mean
from arbiter.personas._targets import Target
from arbiter.verdicts import Correction

T = TypeVar("T")
_log = logging.getLogger("arbiter.personas")
RECENT = 5
"""The agent's last messages with which a draft is compared."""
NOTHING_TO_SAY = "DONE"
_OPEN = 10_000
"""Actions whose drafts are kept until they are decided."""
_MOST_LATE = 64
"""Abandoned questions that may still occupy a thread each, in sync runs."""


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judge these dimensions at once, each within `timeout` seconds. The result maps each to its
    judgements or its error."""

    questions: Mapping[Dimension, Steps[Judgements]]
    timeout: float


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Let the rewriter answer. The result is its text or its error."""

    messages: Sequence[BaseMessage]


_Op = _Judge | _Rewrite | Storing
_Reviewing = Generator[_Op, Any, T]
RunOf = Callable[[HistoryItem], UUID | str | None]
"""Returns the uuid of the run that a node run belongs to."""


@dataclass(slots=True)
class _Open:
    """An action that is not decided yet."""

    attempts: list[Attempt] = field(default_factory=list[Attempt])
    agent: str | None = None


class PersonaGate(CorrectionGate):
    """Judges each draft on the enabled dimensions, and has a failed draft written again.

    `judge` is a judge, a chat model or a text for one. `personas` are the agents; one gate can serve all of
    them. `config` applies to all of them, or by agent with "*" for the others; without one nothing is
    enabled. The agent of a draft is found by the name of its message, else by `agent_of`, else by the name of
    the node; a single agent is also bound to the nodes of `target_nodes` and `target_instructions`. A draft
    of an unknown agent is not judged, and its action records that; adherence needs a persona. `key` is the
    key of the messages in the state; a text there counts as a message too.

    An agent may also speak by calls of `speaking_tools`: the message is the argument that a mapping names,
    else the arguments called text, message and content. A node that makes such a call (`model`) is gated like
    one that returns a message. In a node that runs the tools, a text that was not judged before is judged
    before they run: it passes, is rewritten, forced through or rejected; the agent cannot write it again
    there.

    `propositions` are those about drafts, which their claims name `{{action}}`: a folder with one folder for
    each dimension, a set for each dimension, or None for the shipped ones. `rewriter` is the model for
    `enable_direct_correction`; if it fails or takes longer than `rewriter_timeout` seconds, the best draft is
    used as without a rewriter.

    A `repository` stores each action once it is decided. If it fails, or takes longer than 5 s, the draft is
    committed all the same, and the action's `problem` says so. `run_of` returns the uuid of the run that an
    action belongs to; without it, that is the run of the graph.

    The node raises mistakes in the set-up (`ConfigurationError`), such as a stale recording.

    The outcome of each action is in `actions` (the last `keep` of them), in `statistics()`, and, as `gating`,
    in the history.
    """

    @check_parameters
    def __init__(
        self,
        judge: Judge | ChatModel | str,
        personas: Persona | str | Iterable[Persona | str] = (),
        config: GateConfig | Mapping[str, GateConfig] | None = None,
        *,
        name: str = "persona",
        key: str = "messages",
        speaking_tools: Iterable[str] | Mapping[str, str] = SPEAKING_TOOLS,
        agent_of: AgentOf | None = None,
        channel: str = "",
        propositions: str | Path | Mapping[str, PropositionSet] | None = None,
        rewriter: ChatModel | str | None = None,
        rewriter_timeout: Annotated[
            float, Param("the time for a rewrite", gt=0, expected="seconds above 0")
        ] = 30.0,
        repository: CorrectionRepository | None = None,
        run_of: RunOf | None = None,
        keep: Annotated[int, Param("the actions that are kept", ge=0)] = 10_000,
        target_instructions: TargetInstructions = None,
        target_nodes: TargetNodes = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        self.cast = Cast(
            personas,
            key=key,
            agent_of=agent_of,
            channel=channel,
            nodes=self.target_nodes,
            instructions=self.target_instructions,
            speaking_tools=speaking_tools,
        )
        self.messages_key = key
        self.config = checked_configs(config or GateConfig(), self.cast, f"gate {name!r}")
        configs = all_configs(self.config)
        self.max_attempts = max((found.drafts for found in configs), default=1)
        self.engine = PropositionEngine(judge, level="action", purse="correction")
        self.rewriter = None if rewriter is None else model_of(rewriter)
        self.rewriter_timeout = rewriter_timeout
        self.repository: CorrectionRepository | None = checked_repository(
            repository, CorrectionRepository, f"gate {name!r}"
        )
        self.run_of = run_of
        if self.rewriter is None and any(found.enable_direct_correction for found in configs):
            raise ConfigurationError(f"gate {name!r}: enable_direct_correction needs a rewriter.")
        self._gates = any(found.gates for found in configs)
        if not self._gates:
            self.when_idle = (
                "its settings enable nothing",
                "Set gate_adherence_enabled=True, or another dimension, in its GateConfig, or leave the gate out.",
            )
        if isinstance(propositions, Mapping):
            _check_sets(propositions, name)
        enabled = {dimension for found in configs for dimension in found.thresholds}
        self._propositions: dict[tuple[str, str | None], PropositionSet] = {}
        agents = [persona.id or None for persona in self.cast.personas.values()]
        for dimension in sorted(enabled):
            found = _propositions(propositions, dimension, (None, *agents))
            self._propositions.update({(dimension, agent): its for agent, its in found.items()})
        self._check_personas()
        self.actions: deque[GatedAction] = deque(maxlen=keep)
        self._spoken = Recent[tuple[str, str, str], str | None](_OPEN)
        """The judged calls by which agents speak, by thread, id and text, with the texts that replace theirs.
        The text is part of the key, because some models give each call the same id."""
        self._told = Once()
        self._late: list[Future[Judgements]] = []
        self._decided = Recent[str, None](_OPEN)
        self._open = Recent[tuple[str, str], _Open](_OPEN)
        self._lock = new_lock()

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        # With nothing enabled the gate must cost nothing: no draft is held back.
        return self._gates and super().applies_to(node, instruction)

    def governs(self, nodes: Collection[str]) -> None:
        self.cast.known_nodes.update(nodes)

    def _check_personas(self) -> None:
        """Raise `ConfigurationError` if adherence is enabled for an agent without a persona."""
        agents: list[str | None] = [*self.cast.personas] or [None]
        lacking = [
            agent
            for agent in agents
            if "adherence" in config_for(self.config, self.cast, agent).thresholds
            and self.lacks_persona("adherence", agent)
        ]
        if not self.cast.personas and not lacking and not isinstance(self.config, GateConfig):
            strict = [known for known, config in self.config.items() if "adherence" in config.thresholds]
            lacking = [known for known in strict if self.lacks_persona("adherence", None)]
        if lacking:
            whose = ", ".join(repr(agent) for agent in lacking if agent) or "any agent"
            raise ConfigurationError(
                f"gate {self.name!r}: adherence is enabled, but there is no description of a persona for {whose}. "
                "Pass personas=[Persona(name, description)], or Persona.of('arbiter:ilka') for one that ships."
            )

    def judges_input(self, history: History) -> bool:
        calls = self.cast.pending(history)
        if not calls or not self._gates:
            return False
        return any(self._spoken.get(key, "") is not None for key in self._keys(history, calls))

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        return drive(self._reviewing(history, draft, attempt), self._do)

    async def areview(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        """Async version of `review`, judging on this event loop."""
        return await adrive(self._reviewing(history, draft, attempt), self._ado)

    def resume(self, history: History, kept: Sequence[Any]) -> str:
        item = history.item
        attempts = [Attempt.from_note(number, note) for number, note in enumerate(kept, 1)]
        self._begin(_key(history, item)).attempts = attempts
        agent = self.cast.acting(item)
        return feedback_on(attempts, config_for(self.config, self.cast, agent).drafts)

    def statistics(
        self, agent: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> GateStatistics:
        """Statistics of the kept actions: of that agent (its name or id), from `since` on and before
        `until`."""
        wanted = self.cast.name(agent)
        return GateStatistics.of(
            action
            for action in list(self.actions)
            if (wanted is None or action.agent == wanted)
            and (since is None or action.at >= since)
            and (until is None or action.at < until)
        )

    # One draft

    def _reviewing(self, history: History, output: Mapping[str, Any], number: int) -> _Reviewing[Correction]:
        item = history.item
        if number == 0:
            return (yield from self._reviewing_input(history, item))
        key = _key(history, item)
        known = self._begin(key) if number == 1 else self._known(key)
        # A new draft belongs to the same agent, even if its message lost the name.
        draft = draft_of(self.cast, history, output, known.agent)
        config = config_for(self.config, self.cast, draft.agent)
        if not config.gates:
            self._forget(key)
            return Correction.commit()
        attempts, known.agent = known.attempts, draft.agent
        case = _Case(self, history, item, draft, config, attempts, output)
        if number > 1 and all(map(_says_nothing, [draft.text, *(said for _, said in draft.calls)])):
            attempts.append(Attempt(number=number, text="", token_usage=NO_TOKENS))
            silent: list[Any] = []
            if not draft.acts:
                silent = [commit_nothing(self.cast.key, output)]
            elif draft.text:  # the draft calls a tool, and its only text is DONE
                silent = [with_text(self.cast, history, output, "")]
            return (yield from case.decided("passed_after_retry", attempts[-1], *silent))
        if not draft.text:
            self._forget(key)
            problem = self._not_found(history, output, draft)
            return replace(Correction.commit(), problem=problem)  # no text to judge, as in a call of a tool
        return (yield from self._judging(case, number))

    def _judging(self, case: _Case, number: int) -> _Reviewing[Correction]:
        """Judge a draft with a text, and decide."""
        draft, config, attempts = case.draft, case.config, case.attempts
        if draft.agent is None:
            return (yield from case.unknown(number))
        minimum = config.minimum_required_qty_of_actions
        if len(draft.own(minimum)) + draft.replaces < minimum:
            attempts.append(Attempt(number=number, text=draft.text, token_usage=NO_TOKENS))
            return (yield from case.decided("passed", attempts[-1]))
        attempt = yield from self._checked(number, draft, config)
        attempts.append(attempt)
        if attempt.passed:
            outcome: Outcome = "passed" if number == 1 else "passed_after_retry"
            return (yield from case.decided("timeout_pass_through" if attempt.unjudged else outcome, attempt))
        if not self.enforced:
            return (yield from case.watched(attempt))
        if number < case.drafts:
            return Correction.retry(feedback_on(attempts, case.drafts), keep=attempt.to_note())
        if config.enable_direct_correction:
            rewritten = yield from self._rewritten(case)
            if rewritten is not None:
                outcome = "timeout_pass_through" if rewritten.unjudged else "corrected"
                return (yield from case.replaced(outcome, rewritten))
        if not config.continue_on_failure:
            return (yield from case.decided("rejected", attempt))
        best = best_of(attempts)
        finish = case.replaced if best.stage == "rewrite" else case.decided
        return (yield from finish("forced_through", best))

    def _not_found(self, history: History, output: Mapping[str, Any], draft: Draft) -> str:
        """The reason why a possible message was not judged, reported once; "" if there is nothing to
        report."""
        problem, item = "", history.item
        if unread := [*draft.unread, *self.cast.unread(history)]:
            tool = unread[0]
            problem = (
                f"messages sent by calling {tool!r} are not judged, because no known argument holds their text. "
                f"Pass speaking_tools={{{tool!r}: the name of the argument}}"
            )
        elif self.cast.lacks_key(item, output):
            keys = ", ".join(sorted(map(repr, {*item.input_state, *output})))
            problem = (
                f"nothing is judged in node {item.node!r}, because its state has no {self.cast.key!r}. Keys: {keys}. "
                "Pass the gate the one that has the messages as key="
            )
        return problem if problem and self._told.is_new(problem) else ""

    def _reviewing_input(self, history: History, item: HistoryItem) -> _Reviewing[Correction]:
        """Judge the text that tools are about to send. The calling agent cannot write it again here."""
        keys = self._keys(history, self.cast.pending(history))
        if all(key in self._spoken for key in keys):  # a retry of the node
            text = next((said for key in keys if (said := self._spoken[key]) is not None), "")
            return Correction.commit(pending_with_text(self.cast, history, text))
        draft = pending_draft(self.cast, history)
        config = config_for(self.config, self.cast, draft.agent)
        if not config.gates or not draft.text:
            return Correction.commit()
        return (yield from self._judging(_Case(self, history, item, draft, config, []), 1))

    def _rewritten(self, case: _Case) -> _Reviewing[Attempt | None]:
        """The first rewritten draft that passes; None if none does. Each rewrites the best draft so far,
        by its problems and those of earlier rewrites."""
        draft, config, attempts = case.draft, case.config, case.attempts
        for _ in range(config.max_correction_attempts):
            base = best_of(attempts)
            failed = [attempt for attempt in attempts if attempt.stage == "rewrite"]
            question = rewriting(base, self.cast.persona(draft.agent), failed)
            text: str | Exception = yield _Rewrite(question)
            if isinstance(text, Exception) or not text.strip():
                wrong = describe(text) if isinstance(text, Exception) else "it wrote nothing"
                case.problem = f"the rewriter failed: {wrong}"
                return None
            changed = replace(draft, text=text.strip())
            attempt = yield from self._checked(len(attempts) + 1, changed, config, stage="rewrite")
            attempts.append(attempt)
            if attempt.passed:
                return attempt
        return None

    def _checked(self, number: int, draft: Draft, config: GateConfig, **stage: Any) -> _Reviewing[Attempt]:
        thresholds = config.thresholds
        asked: dict[Dimension, Steps[Judgements]] = {}
        found: dict[Dimension, Judgements | BaseException] = {}
        target = self.cast.target(draft.before, draft.agent)
        own = draft.own(RECENT)
        for dimension in thresholds:
            if self.lacks_persona(dimension, draft.agent):
                found[dimension] = LookupError(f"there is no persona of {draft.agent!r} to judge by")
            elif dimension != "consistency" or own:
                asked[dimension] = self._asking(dimension, draft, target)
        judged: Mapping[Dimension, Judgements | BaseException] = {}
        if asked:
            judged = yield _Judge(asked, config.judge_timeout)
            found.update(judged)
        checks: dict[str, DimensionCheck] = {
            dimension: _check(found.get(dimension), threshold, self._set(dimension, draft.agent))
            for dimension, threshold in thresholds.items()
        }
        similarity, similar = similarity_to(draft.text, own)
        return Attempt(
            number=number,
            text=draft.text,
            checks=checks,
            similarity=similarity if config.gate_similarity_enabled else None,
            most_similarity=config.max_action_similarity,
            similar_to=similar if config.gate_similarity_enabled else "",
            # The cost of a failed judgement is unknown, so count one call and no known tokens.
            calls=sum(answer.calls if isinstance(answer, Judgements) else 1 for answer in judged.values()),
            token_usage=total_usage(
                answer.token_usage if isinstance(answer, Judgements) else None for answer in judged.values()
            ),
            **stage,
        )

    def _asking(self, dimension: Dimension, draft: Draft, target: Target) -> Steps[Judgements]:
        propositions = self._set(dimension, draft.agent)
        variables = {"action": draft.text, "action_type": "TALK"}
        if len(propositions) > 1:
            return self.engine.asking_batch(propositions.propositions, target, variables=variables)
        return _alone(self.engine.asking("score", propositions[0], target, variables=variables))

    def lacks_persona(self, dimension: str, agent: str | None) -> bool:
        """True if drafts must fit a persona and the agent has none."""
        if dimension != "adherence" or self.cast.persona(agent):
            return False
        return any(found.include_personas for found in self._set(dimension, agent))

    def _set(self, dimension: str, agent: str | None) -> PropositionSet:
        persona = self.cast.personas.get(agent or "")
        known = persona.id or None if persona else None
        return self._propositions[dimension, known]

    # Operations

    def _do(self, op: _Op) -> Any:
        if isinstance(op, Storing):
            return op.do()
        if isinstance(op, _Rewrite):
            writer: Any = self.rewriter
            call = partial(reply, writer, list(op.messages))
            with counting_apart("correction"), in_turn() as turns:
                begun = start(call, name="arbiter-gate-rewriter")
            return _rewritten(outcome(lambda: within(self.rewriter_timeout, begun, turns)))
        begun_with: dict[Dimension, tuple[Future[Judgements], Turns]] = {}
        for dimension, steps in op.questions.items():
            with in_turn() as turns:
                begun_with[dimension] = self._start(dimension, steps), turns
        found: dict[Dimension, Judgements | Exception] = {}
        for dimension, (future, turns) in begun_with.items():
            found[dimension] = outcome(partial(within, op.timeout, future, turns))
            if not future.done():
                with self._lock:
                    self._late.append(future)
        return found

    async def _ado(self, op: _Op) -> Any:
        if isinstance(op, Storing):
            return await op.ado()
        if isinstance(op, _Rewrite):
            writer: Any = self.rewriter
            with counting_apart("correction"):
                asked = awaited_in_turn(self.rewriter_timeout, areply(writer, list(op.messages)))
                return _rewritten(await aoutcome(asked))

        async def asked_of(steps: Steps[Judgements]) -> Judgements | Exception:
            # Made here: if the run is cancelled before this begins, no coroutine is left that is never awaited.
            return await aoutcome(awaited_in_turn(op.timeout, self.engine.arun(steps)))

        answers = await asyncio.gather(*map(asked_of, op.questions.values()))
        return dict(zip(op.questions, answers, strict=True))

    def _start(self, dimension: Dimension, steps: Steps[Judgements]) -> Future[Judgements]:
        """Judge on a thread, unless many threads hang already: a thread whose judge never answers cannot
        be ended."""
        with self._lock:
            self._late = [future for future in self._late if not future.done()]
            hanging = len(self._late)
        if hanging < _MOST_LATE:
            return start(partial(self.engine.run, steps), name=f"arbiter-gate-{dimension}")
        refused: Future[Judgements] = Future()
        problem = (
            f"{hanging} earlier questions still wait for the judge; it is not asked until one is answered"
        )
        refused.set_exception(TimeoutError(problem))
        return refused

    # Actions until they are decided

    def _begin(self, key: tuple[str, str]) -> _Open:
        with self._lock:
            found = self._open[key] = _Open()
            return found

    def _known(self, key: tuple[str, str]) -> _Open:
        with self._lock:
            found = self._open.get(key)
        if found is not None:
            return found
        self.tell(
            "open", f"more than {_OPEN:,} actions are open, so the earlier drafts of some are forgotten."
        )
        return self._begin(key)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._open.pop(key, None)

    def finished(self, key: tuple[str, str], action: GatedAction) -> None:
        """Record a decided action."""
        self._forget(key)
        self.actions.append(action)

    def _keys(self, history: History, calls: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
        return [_call_key(history, call["id"], str(self.cast.speech(call))) for call in calls]

    def remember(self, history: History, calls: Iterable[tuple[str, str]], text: str | None = None) -> None:
        """Mark these speaking calls as judged; `text` replaces theirs."""
        with self._lock:
            for id, said in calls:
                self._spoken[_call_key(history, id, said)] = text

    def new_id(self, item: HistoryItem) -> str:
        """The id of an action: that of its node run, with a suffix if the node run is a retry."""
        with self._lock:
            is_new = item.attempt == 1 and item.id not in self._decided
            self._decided[item.id] = None
        return item.id if is_new else f"{item.id}-{uuid4().hex[:12]}"

    def tell(self, about: str, problem: str) -> None:
        """Log a warning, once for each subject."""
        if self._told.is_new(about):
            _log.warning("gate %r: %s (This is reported once.)", self.name, problem)


@dataclass(slots=True)
class _Case:
    """One review, and the record of its outcome."""

    gate: PersonaGate
    history: History
    item: HistoryItem
    draft: Draft
    config: GateConfig
    attempts: list[Attempt]
    output: Mapping[str, Any] | None = None
    """The update of the node; None for what tools are about to send, which the agent cannot write again."""
    problem: str = ""

    @property
    def drafts(self) -> int:
        """Most drafts that the agent writes."""
        return 1 if self.output is None else self.config.drafts

    def unknown(self, number: int) -> _Reviewing[Correction]:
        """Let a draft of an unknown agent pass unjudged."""
        self.problem = (
            f"it is not known who speaks in node {self.item.node!r}: give its messages the name of an agent, "
            "or the gate agent_of= or, with a single agent, target_nodes="
        )
        checks: dict[str, DimensionCheck] = {
            dimension: DimensionCheck(score=None, threshold=threshold, status="error", reasoning=self.problem)
            for dimension, threshold in self.config.thresholds.items()
        }
        attempt = Attempt(number=number, text=self.draft.text, checks=checks, token_usage=NO_TOKENS)
        self.attempts.append(attempt)
        return (yield from self.decided("timeout_pass_through", attempt))

    def replaced(self, outcome: Outcome, taken: Attempt) -> _Reviewing[Correction]:
        """Like `decided`, for a text that replaces the one of the draft."""
        text, cast = taken.text or "", self.gate.cast
        if self.output is not None:
            better = with_text(cast, self.history, self.output, text)
            return (yield from self.decided(outcome, taken, better))
        spoken = pending_with_text(cast, self.history, text)
        correction = yield from self.decided(outcome, taken, spoken)
        self.gate.remember(self.history, self.draft.calls, text)
        return correction

    def watched(self, failed: Attempt) -> _Reviewing[Correction]:
        """Commit a failed draft in audit mode, with the decision that enforcement would have made."""
        correction = yield from self.decided("forced_through", failed)
        if self.drafts > 1:
            return replace(correction, kind="retry", feedback=feedback_on(self.attempts, self.drafts))
        is_committed = self.config.continue_on_failure or self.output is None
        return (
            correction if is_committed else replace(correction, kind="give_up", feedback=self._reason(failed))
        )

    @property
    def not_judged(self) -> str:
        """The dimensions of the last draft without a judgement, with reasons; "" if all were judged."""
        failed = {
            name: check.reasoning for name, check in self.attempts[-1].checks.items() if check.score is None
        }
        return "; ".join(f"{name}: {reason}" for name, reason in failed.items())

    def decided(self, outcome: Outcome, taken: Attempt, *output: Any) -> _Reviewing[Correction]:
        """Record the action, and return the correction that commits the draft `taken`, or `output`
        instead."""
        problem = self.problem
        if problem:
            self.gate.tell(problem.partition(":")[0], problem)
        elif self.not_judged:
            problem = f"the draft was not judged: {self.not_judged}"
            reason, remedy = "its judge cannot be reached or read", "See the judge's own logs, judge_timeout"
            if any(self.gate.lacks_persona(dimension, self.draft.agent) for dimension in taken.checks):
                reason, remedy = "an agent has no persona", "Pass its persona in personas="
            self.gate.tell(
                reason,
                f"{reason}, so drafts pass unjudged: {self.not_judged.rstrip('.')}. {remedy}, and "
                "gate.statistics().",
            )
        if outcome != "rejected":
            # Calls of the draft speak the text that replaces it.
            instead = [(id, taken.text) for id, _ in self.draft.calls if output and taken.text]
            self.gate.remember(self.history, [*self.draft.calls, *instead])
        action = self._action(outcome, taken)
        action, unstored = yield from self._stored(action)
        self.gate.finished(_key(self.history, self.item), action)
        return replace(self._correction(action, taken, *output), problem=problems(problem, unstored))

    def _stored(self, action: GatedAction) -> _Reviewing[tuple[GatedAction, str]]:
        """The action after it was stored, and the reason why it could not be, or ""."""
        unstored = ""
        if self.gate.run_of is not None:
            try:
                run = self.gate.run_of(self.item)
            except Exception as error:
                run, unstored = None, f"run_of failed: {describe(error)}"
            action = replace(action, run_id=None if run is None else str(run))
        if self.gate.repository is not None:
            persona = self.gate.cast.personas.get(self.draft.agent or "")
            call = partial(self.gate.repository.log_correction, action, persona)
            refused: str = yield Storing(call, partial(self.gate.tell, "repository"))
            unstored = problems(unstored, refused)
        return replace(action, problem=problems(action.problem, unstored)), unstored

    def _action(self, outcome: Outcome, taken: Attempt) -> GatedAction:
        judged = bool(taken.checks) or taken.similarity is not None
        original = self.attempts[0].text
        changed = outcome != "rejected" and taken.number > 1
        persona = self.gate.cast.personas.get(self.draft.agent or "")
        causal = self.history if isinstance(self.history, CausalHistory) else None
        return GatedAction(
            id=self.gate.new_id(self.item),
            item_id=self.item.id,
            run_id=None if causal is None else causal.run_uuid,
            agent=self.draft.agent,
            agent_id=None if persona is None else persona.id or None,
            node=self.item.node,
            thread_id=None if causal is None else causal.thread_id,
            at=self.history.now,
            outcome=outcome,
            attempt_number=taken.number,
            original_text=original,
            corrected_text=taken.text if changed and taken.text != original else None,
            dimension_scores=taken.checks,
            similarity_score=taken.similarity,
            total_score=taken.total if judged else None,
            enforced=self.gate.enforced,
            token_usage=total_usage(attempt.token_usage for attempt in self.attempts),
            calls=sum(attempt.calls for attempt in self.attempts),
            attempts=tuple(self.attempts),
            problem=self.problem,
        )

    def _reason(self, last: Attempt) -> str:
        """The reason why no draft passes."""
        failed = [name for name, check in last.checks.items() if not check.passed]
        failed += ["similarity"] if last.too_similar else []
        many = len(self.attempts)
        drafts = "its draft failed" if many == 1 else f"{many} drafts failed, the last one"
        return f"{drafts} on {', '.join(failed)}"

    def _correction(self, action: GatedAction, taken: Attempt, *output: Any) -> Correction:
        details = action.to_dict()
        if action.outcome == "rejected":
            return Correction.give_up(self._reason(taken), details=details)
        if output:
            return Correction.commit(*output, details=details)
        if taken.number != self.attempts[-1].number:
            return Correction.commit_attempt(taken.number, details=details)
        return Correction.commit(details=details)


def _says_nothing(text: str) -> bool:
    """True for no text, and for the word that stands for it, which models like to quote or to print in bold."""
    said = without_thought(text).strip(" .\n")
    return not said or said.strip("!*_`'\".").upper() == NOTHING_TO_SAY


def best_of(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt with the highest total, the earliest of equals, among those whose text is known."""
    return max((attempt for attempt in attempts if attempt.text is not None), key=lambda found: found.total)


def _rewritten(answer: Any) -> Any:
    """The text of the rewriter's answer, which is counted, or its error."""
    failed = isinstance(answer, Exception)
    if (meter := usage_meter.get()) is not None:
        usage: Any = getattr(answer, "usage_metadata", None)
        said: Any = getattr(answer, "response_metadata", None) or {}
        meter(
            "correction",
            None if failed else JudgeReply(value=None, usage=usage, model=said.get("model_name", "")),
        )
    return answer if failed else outcome(lambda: _text_of(answer))


def _text_of(answer: Any) -> str:
    return without_thought(str(answer.text) if isinstance(answer, BaseMessage) else str(answer))


def _alone(steps: Steps[JudgeResult]) -> Steps[Judgements]:
    result = yield from steps
    return Judgements(results=(result,), calls=result.calls, token_usage=result.token_usage)


def _check(
    answer: Judgements | BaseException | None, threshold: float, propositions: PropositionSet
) -> DimensionCheck:
    check = partial(DimensionCheck, threshold=threshold)
    if answer is None:
        reasoning = "there is no earlier action to be consistent with"
        return check(score=float(HIGHEST), status="no_evidence", reasoning=reasoning)
    if isinstance(answer, BaseException):
        status: Status = "timeout" if isinstance(answer, TimeoutError) else "error"
        problem = str(answer) if status == "timeout" else describe(answer)
        return check(score=None, status=status, reasoning=problem)
    weights = {found.id: found.weight for found in propositions}
    scored = [result for result in answer if result.score is not None]
    # A claim that does not apply, or lacks evidence, counts as 9 next to judged ones.
    score = weighted_mean((weights[result.proposition_id], result.score) for result in scored)
    if score is None:
        status = "timeout" if any(result.status == "timeout" for result in answer) else "error"
        problem = next((result.problem for result in answer if result.problem), "no proposition has a weight")
        return check(score=None, status=status, reasoning=problem)
    judged = [result for result in scored if result.status == "judged"]
    worst = min(judged or scored, key=lambda result: result.score or 0.0)
    low = sorted(
        (result for result in scored if (result.score or 0.0) < threshold), key=lambda r: r.score or 0.0
    )
    return check(
        score=score,
        status=worst.status,
        reasoning=worst.reasoning,
        recommended=tuple((result.reasoning, result.recommendations) for result in low),
    )


def _check_sets(given: Mapping[str, PropositionSet], gate: str) -> None:
    for dimension, claims in given.items():
        if dimension not in DIMENSIONS:
            raise ConfigurationError(
                f"gate {gate!r}: propositions: {dimension!r:.80} is not a dimension of drafts. Dimensions: "
                f"{', '.join(DIMENSIONS)}.{nearest(str(dimension), DIMENSIONS)}"
            )
        if not isinstance(cast(Any, claims), PropositionSet):
            raise ConfigurationError(
                f"gate {gate!r}: propositions: {dimension}: expected a PropositionSet, got {claims!r:.80}."
            )


def _propositions(
    source: str | Path | Mapping[str, PropositionSet] | None, dimension: str, agents: Iterable[str | None]
) -> dict[str | None, PropositionSet]:
    if isinstance(source, Mapping):
        if dimension in source:
            return dict.fromkeys(agents, source[dimension])
        source = None
    shipped = pack_folder("evaluators").joinpath("actions")
    return propositions_of(shipped if source is None else source, dimension, agents)


def _call_key(history: History, id: Any, said: str) -> tuple[str, str, str]:
    return scope_of(history), str(id), said


def _key(history: History, item: HistoryItem) -> tuple[str, str]:
    return run_id_of(history), item.id
