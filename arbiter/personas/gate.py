"""The action correction gate: each draft of an agent's message is judged before anything of it is committed.

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
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.messages import BaseMessage

from arbiter.advice import CorrectionGate
from arbiter.calls import awaited, start, within
from arbiter.errors import ConfigurationError, ParameterError
from arbiter.history import CausalHistory, History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.models import ChatModel, areply, model_of
from arbiter.packs import pack_folder
from arbiter.personas.answers import HIGHEST
from arbiter.personas.asking import Steps
from arbiter.personas.characters import Persona
from arbiter.personas.config import Dimension, GateConfig
from arbiter.personas.conversation import (
    SPEAKING_TOOLS,
    AgentOf,
    Cast,
    all_configs,
    checked_configs,
    config_for,
)
from arbiter.personas.drafts import (
    Draft,
    commit_nothing,
    draft_of,
    pending_draft,
    pending_with_text,
    similarity_to,
    with_text,
)
from arbiter.personas.engine import (
    NO_TOKENS,
    Judgements,
    JudgeResult,
    PropositionEngine,
    Status,
    Target,
    total_usage,
)
from arbiter.personas.feedback import feedback_on, rewriting
from arbiter.personas.gated import Attempt, DimensionCheck, GatedAction, GateStatistics, Outcome
from arbiter.personas.judges import Judge
from arbiter.personas.propositions import PropositionSet, load_propositions
from arbiter.personas.scorers import weighted_mean
from arbiter.states import is_number
from arbiter.verdicts import Correction

T = TypeVar("T")
_log = logging.getLogger("arbiter.personas")
RECENT = 5
"""With how many of an agent's last messages a draft is compared."""
NOTHING_TO_SAY = "DONE"
_OPEN = 1_000
_MOST_LATE = 64
"""How many questions that were given up may still hold a thread each, in sync runs."""


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judge these dimensions at once, each within `timeout` seconds; sends what became of each."""

    questions: Mapping[Dimension, Steps[Judgements]]
    timeout: float


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Have a model write; sends its text."""

    messages: Sequence[BaseMessage]


_Reviewing = Generator[_Judge | _Rewrite, Any, T]


@dataclass(slots=True)
class _Open:
    """An action that is not decided yet."""

    attempts: list[Attempt] = field(default_factory=list[Attempt])
    agent: str | None = None


class PersonaGate(CorrectionGate):
    """Judges each draft on the dimensions that are enabled, and has a draft that fails written again.

    `judge` is a judge, a chat model or a text for one. `personas` are the agents; one gate can serve all of them.
    `config` is for all of them, or by agent with "*" for the others; nothing is enabled unless it says so. Which agent
    a draft is of is said by the name of its message, else by `agent_of`, else by the name of the node; a single agent
    is also bound to the nodes of `target_nodes` and `target_instructions`. A draft of nobody who is known is not
    judged, and its action says so; adherence takes a persona. `key` is where the messages are; a text there is a
    message, too.

    An agent may also speak by calls of `speaking_tools`: what it says is the argument that a mapping names, else the
    one called text, message or content. A node that makes such a call (`model`) is gated as one that returns a message.
    In a node that runs the tools, a text that was not judged before is judged before they run: it passes, is rewritten,
    forced through or rejected; the agent is not there to write it again.

    `propositions` are those of the drafts, which they name as `{{action}}`: a folder with one folder a dimension, a set
    for each dimension, or None for those that ship. `rewriter` is the model for `enable_direct_correction`; after
    `rewriter_timeout` seconds, or an error of its own, the best draft is taken as if there were none.

    A stale recording, and other mistakes in the set-up (`ConfigurationError`), are raised by the node.

    What became of each action is in `actions` (the last `keep` of them), in `statistics()`, and, as `gating`, in the
    history.
    """

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
        rewriter_timeout: float = 30.0,
        keep: int = 10_000,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
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
        self.engine = PropositionEngine(judge, level="action")
        self.rewriter = None if rewriter is None else model_of(rewriter)
        if not is_number(rewriter_timeout) or rewriter_timeout <= 0:
            problem = f"expected seconds above 0, got {rewriter_timeout!r:.80}."
            raise ParameterError(f"gate {name!r}", "rewriter_timeout", problem)
        self.rewriter_timeout = rewriter_timeout
        if self.rewriter is None and any(found.enable_direct_correction for found in configs):
            raise ConfigurationError(f"gate {name!r}: enable_direct_correction needs a rewriter.")
        self._gates = any(found.gates for found in configs)
        enabled = {dimension for found in configs for dimension in found.thresholds}
        self._propositions: dict[tuple[str, str | None], PropositionSet] = {}
        self._source = propositions
        agents = [persona.id or None for persona in self.cast.personas.values()]
        for dimension in sorted(enabled):
            for agent in (None, *agents):
                self._propositions[dimension, agent] = _propositions(propositions, dimension, agent)
        self._check_personas()
        self.actions: deque[GatedAction] = deque(maxlen=keep)
        self._spoken: OrderedDict[tuple[str, str, str], str | None] = OrderedDict()
        """By thread, id and text, the calls by which an agent speaks that are judged, and what they are to say instead.
        Some models give each call the same id."""
        self._told: set[str] = set()
        self._late: list[Future[Judgements]] = []
        self._decided: OrderedDict[str, None] = OrderedDict()
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        self._lock = threading.Lock()

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        # With nothing enabled there is no gate at all: no draft is held back, and nothing is spent.
        return self._gates and super().applies_to(node, instruction)

    def governs(self, nodes: Collection[str]) -> None:
        self.cast.known_nodes.update(nodes)

    def _check_personas(self) -> None:
        """Raise `ConfigurationError` if adherence is enabled for an agent that has no persona to be held to."""
        agents: list[str | None] = [*self.cast.personas] or [None]
        lacking = [
            agent
            for agent in agents
            if "adherence" in config_for(self.config, self.cast, agent).thresholds
            and self._lacks_persona("adherence", agent)
        ]
        if not self.cast.personas and not lacking and not isinstance(self.config, GateConfig):
            strict = [known for known, config in self.config.items() if "adherence" in config.thresholds]
            lacking = [known for known in strict if self._lacks_persona("adherence", None)]
        if lacking:
            whose = ", ".join(repr(agent) for agent in lacking if agent) or "any agent"
            raise ConfigurationError(
                f"gate {self.name!r}: adherence is enabled, and there is no text of a persona for {whose}. "
                "Pass personas=[Persona(name, description)], or Persona.of('arbiter:ilka') for one that ships."
            )

    def judges_input(self, history: History) -> bool:
        calls = self.cast.pending(history)
        if not calls or not self._gates:
            return False
        return any(self._spoken.get(key, "") is not None for key in self._keys(history, calls))

    def review(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        steps = self._reviewing(history, draft, attempt)
        try:
            op = next(steps)
            while True:
                op = steps.send(self._judge(op) if isinstance(op, _Judge) else self._rewrite(op))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # of `_reviewing`

    async def areview(self, history: History, draft: Mapping[str, Any], attempt: int) -> Correction:
        """As `review`, judging on this event loop."""
        steps = self._reviewing(history, draft, attempt)
        try:
            op = next(steps)
            while True:
                op = steps.send(await (self._ajudge(op) if isinstance(op, _Judge) else self._arewrite(op)))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # of `_reviewing`

    def resume(self, history: History, kept: Sequence[Any]) -> str:
        item = history.entries[-1][-1]
        attempts = [Attempt.from_note(number, note) for number, note in enumerate(kept, 1)]
        self._begin(_key(history, item)).attempts = attempts
        agent = self.cast.acting(item)
        return feedback_on(attempts, config_for(self.config, self.cast, agent).drafts)

    def statistics(
        self, agent: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> GateStatistics:
        """What the kept actions come to: of that agent (its name or id), from `since` on and before `until`."""
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
        item = history.entries[-1][-1]
        if number == 0:
            return (yield from self._reviewing_input(history, item))
        key = _key(history, item)
        known = self._begin(key) if number == 1 else self._known(key)
        # A draft that is written again is the same agent's, whether its message still says so or not.
        draft = draft_of(self.cast, history, output, known.agent)
        config = config_for(self.config, self.cast, draft.agent)
        if not config.gates:
            self._forget(key)
            return Correction.commit()
        attempts, known.agent = known.attempts, draft.agent
        case = _Case(self, history, item, draft, config, attempts)
        if number > 1 and draft.text.strip(" .").upper() in ("", NOTHING_TO_SAY):
            attempts.append(Attempt(number=number, text="", token_usage=NO_TOKENS))
            silent: list[Any] = []
            if not draft.acts:
                silent = [commit_nothing(self.cast.key, output)]
            elif draft.text:  # it calls a tool, and says no more than that it says nothing
                silent = [with_text(self.cast, history, output, "")]
            return case.decided("passed_after_retry", attempts[-1], *silent)
        if not draft.text:
            self._forget(key)
            problem = self._not_found(item, output, draft)
            return replace(Correction.commit(), problem=problem)  # a call of a tool, say: nothing is said
        if draft.agent is None:
            return case.unknown(number)
        minimum = config.minimum_required_qty_of_actions
        if len(draft.own(minimum)) < minimum:
            attempts.append(Attempt(number=number, text=draft.text, token_usage=NO_TOKENS))
            return case.decided("passed", attempts[-1])
        attempt = yield from self._checked(number, draft, config)
        attempts.append(attempt)
        if attempt.passed:
            outcome: Outcome = "passed" if number == 1 else "passed_after_retry"
            return case.decided("timeout_pass_through" if attempt.unjudged else outcome, attempt)
        if not self.enforced:
            return case.watched(attempt)
        if number < config.drafts:
            return Correction.retry(feedback_on(attempts, config.drafts), keep=attempt.to_note())
        if config.enable_direct_correction:
            rewritten = yield from self._rewritten(case)
            if rewritten is not None:
                outcome = "timeout_pass_through" if rewritten.unjudged else "corrected"
                return case.decided(
                    outcome, rewritten, with_text(self.cast, history, output, rewritten.text or "")
                )
        if not config.continue_on_failure:
            return case.decided("rejected", attempt)
        best = best_of(attempts)
        if best.stage == "rewrite":
            return case.decided(
                "forced_through", best, with_text(self.cast, history, output, best.text or "")
            )
        return case.decided("forced_through", best)

    def _not_found(self, item: HistoryItem, output: Mapping[str, Any], draft: Draft) -> str:
        """Why nothing was found to judge, where something may have been said. Told once; "" where there is no more to
        tell."""
        problem = ""
        if draft.unread:
            tool = draft.unread[0]
            problem = (
                f"what is said by calling {tool!r} is not judged, because it is no text in an argument that is known. "
                f"Pass speaking_tools={{{tool!r}: the name of the argument}}"
            )
        elif self.cast.lacks_key(item, output):
            keys = ", ".join(sorted(map(repr, {*item.input_state, *output})))
            problem = (
                f"nothing is judged in node {item.node!r}, because its state has no {self.cast.key!r}. Keys: {keys}. "
                "Pass the gate the one that has the messages as key="
            )
        if problem in self._told:
            return ""
        self._told.add(problem)
        return problem

    def _reviewing_input(self, history: History, item: HistoryItem) -> _Reviewing[Correction]:
        """Judge what tools are about to say. The agent that called them is not here to write it again."""
        keys = self._keys(history, self.cast.pending(history))
        if all(key in self._spoken for key in keys):  # the node is tried again
            text = next((said for key in keys if (said := self._spoken[key]) is not None), "")
            return Correction.commit(pending_with_text(self.cast, history, text))
        draft = pending_draft(self.cast, history)
        config = config_for(self.config, self.cast, draft.agent)
        minimum = config.minimum_required_qty_of_actions
        if not config.gates or not draft.text:
            return Correction.commit()
        case = _Case(self, history, item, draft, config, [])
        if draft.agent is None:
            return case.unknown(1)
        if len(draft.own(minimum)) < minimum:
            case.attempts.append(Attempt(number=1, text=draft.text, token_usage=NO_TOKENS))
            return case.decided("passed", case.attempts[-1])
        attempt = yield from self._checked(1, draft, config)
        case.attempts.append(attempt)
        if attempt.passed:
            return case.decided("timeout_pass_through" if attempt.unjudged else "passed", attempt)
        if not self.enforced:
            return case.decided("forced_through", attempt)
        if config.enable_direct_correction:
            rewritten = yield from self._rewritten(case)
            if rewritten is not None:
                outcome: Outcome = "timeout_pass_through" if rewritten.unjudged else "corrected"
                return case.said_instead(outcome, rewritten)
        if not config.continue_on_failure:
            return case.decided("rejected", attempt)
        best = best_of(case.attempts)
        if best.stage == "rewrite":
            return case.said_instead("forced_through", best)
        return case.decided("forced_through", best)

    def _rewritten(self, case: _Case) -> _Reviewing[Attempt | None]:
        """The first rewritten draft that passes. Each rewrites the best one so far, by what was found wrong with it."""
        draft, config, attempts = case.draft, case.config, case.attempts
        for _ in range(config.max_correction_attempts):
            base = best_of(attempts)
            text: str | Exception = yield _Rewrite(rewriting(base, self.cast.persona(draft.agent)))
            if isinstance(text, Exception) or not text.strip():
                wrong = (
                    f"{type(text).__name__}: {text}" if isinstance(text, Exception) else "it wrote nothing"
                )
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
            if self._lacks_persona(dimension, draft.agent):
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
            # What a judgement that failed has cost, nobody knows.
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

    def _lacks_persona(self, dimension: Dimension, agent: str | None) -> bool:
        """Whether a draft is to be held to a persona, and there is none."""
        if dimension != "adherence" or self.cast.persona(agent):
            return False
        return any(found.include_personas for found in self._set(dimension, agent))

    def _set(self, dimension: str, agent: str | None) -> PropositionSet:
        persona = self.cast.personas.get(agent or "")
        known = persona.id or None if persona else None
        return self._propositions[dimension, known]

    # Asking

    def _judge(self, op: _Judge) -> dict[Dimension, Judgements | BaseException]:
        end = time.monotonic() + op.timeout
        futures: dict[Dimension, Future[Judgements]] = {
            dimension: self._start(dimension, steps) for dimension, steps in op.questions.items()
        }
        found: dict[Dimension, Judgements | BaseException] = {}
        for dimension, future in futures.items():
            try:
                found[dimension] = within(max(0.0, end - time.monotonic()), future)
            except ConfigurationError:
                raise
            except Exception as error:
                found[dimension] = error
                if not future.done():
                    with self._lock:
                        self._late.append(future)
        return found

    def _start(self, dimension: Dimension, steps: Steps[Judgements]) -> Future[Judgements]:
        """Judge on a thread, unless many hang already: nobody can end those of a judge that does not come back."""
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

    async def _ajudge(self, op: _Judge) -> dict[Dimension, Judgements | BaseException]:
        async def judged(steps: Steps[Judgements]) -> Judgements | Exception:
            try:
                return await awaited(op.timeout, self.engine.arun(steps))
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                return TimeoutError("the judge cancelled itself")
            except Exception as error:
                return error

        answers = await asyncio.gather(*map(judged, op.questions.values()))
        for answer in answers:
            if isinstance(answer, ConfigurationError):
                raise answer
        return dict(zip(op.questions, answers, strict=True))

    def _rewrite(self, op: _Rewrite) -> str | Exception:
        writer: Any = self.rewriter
        try:
            call = partial(writer.invoke, list(op.messages))
            return _text_of(within(self.rewriter_timeout, start(call, name="arbiter-gate-rewriter")))
        except ConfigurationError:
            raise
        except Exception as error:
            return error

    async def _arewrite(self, op: _Rewrite) -> str | Exception:
        writer: Any = self.rewriter
        try:
            return _text_of(await awaited(self.rewriter_timeout, areply(writer, list(op.messages))))
        except ConfigurationError:
            raise
        except Exception as error:
            return error

    # What is known of an action until it is decided

    def _begin(self, key: tuple[str, str]) -> _Open:
        with self._lock:
            found = self._open[key] = _Open()
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return found

    def _known(self, key: tuple[str, str]) -> _Open:
        with self._lock:
            found = self._open.get(key)
        return self._begin(key) if found is None else found

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._open.pop(key, None)

    def finished(self, key: tuple[str, str], action: GatedAction) -> None:
        """The action is decided."""
        self._forget(key)
        self.actions.append(action)

    def _keys(self, history: History, calls: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
        return [_call_key(history, call["id"], str(self.cast.speech(call))) for call in calls]

    def remember(self, history: History, calls: Iterable[tuple[str, str]], text: str | None = None) -> None:
        """These calls, by which an agent speaks, are judged; `text` is what is to be said in their place."""
        with self._lock:
            for id, said in calls:
                self._spoken[_call_key(history, id, said)] = text
            while len(self._spoken) > _OPEN:
                self._spoken.popitem(last=False)

    def new_id(self, item: HistoryItem) -> str:
        """The id of an action: that of its node run, with an addition if the node run is tried again."""
        with self._lock:
            is_new = item.attempt == 1 and item.id not in self._decided
            self._decided[item.id] = None
            while len(self._decided) > _OPEN:
                self._decided.popitem(last=False)
        return item.id if is_new else f"{item.id}-{uuid4().hex[:12]}"

    def tell(self, about: str, problem: str) -> None:
        """Warn, once about each thing."""
        if about not in self._told:
            self._told.add(about)
            _log.warning("gate %r: %s (This is told once.)", self.name, problem)


@dataclass(slots=True)
class _Case:
    """One review, for the record of what it comes to."""

    gate: PersonaGate
    history: History
    item: HistoryItem
    draft: Draft
    config: GateConfig
    attempts: list[Attempt]
    problem: str = ""

    def unknown(self, number: int) -> Correction:
        """Nobody knows who speaks: the draft passes, and nothing about it was judged."""
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
        return self.decided("timeout_pass_through", attempt)

    def said_instead(self, outcome: Outcome, taken: Attempt) -> Correction:
        """As `decided`, for a text that tools say instead of that which they were given."""
        text = taken.text or ""
        correction = self.decided(outcome, taken, pending_with_text(self.gate.cast, self.history, text))
        self.gate.remember(self.history, self.draft.calls, text)
        return correction

    def watched(self, failed: Attempt) -> Correction:
        """In audit mode a draft that fails is committed, and the item says what would have become of it."""
        correction = self.decided("forced_through", failed)
        if self.config.drafts > 1:
            return replace(correction, kind="retry", feedback=feedback_on(self.attempts, self.config.drafts))
        return correction if self.config.continue_on_failure else replace(correction, kind="give_up")

    @property
    def not_judged(self) -> str:
        """Why the last draft was not judged on some dimension; "" if it was judged on all."""
        failed = {
            name: check.reasoning for name, check in self.attempts[-1].checks.items() if check.score is None
        }
        return "; ".join(f"{name}: {reason}" for name, reason in failed.items())

    def decided(self, outcome: Outcome, taken: Attempt, *output: Any) -> Correction:
        """Record the action, and say what is to be committed: the draft `taken`, or `output` instead."""
        problem = self.problem
        if problem:
            self.gate.tell(problem.partition(":")[0], problem)
        elif self.not_judged:
            problem = f"the draft was not judged: {self.not_judged}"
            self.gate.tell(
                "judge",
                f"its judge cannot be reached or read, so drafts pass unjudged: {self.not_judged}. "
                "See the judge's own logs, judge_timeout, and gate.statistics().",
            )
        if outcome != "rejected":
            # A text that takes the place of a draft is said by the last of its calls.
            instead = [(id, taken.text) for id, _ in self.draft.calls[-1:] if output and taken.text]
            self.gate.remember(self.history, [*self.draft.calls, *instead])
        return replace(self._decided(outcome, taken, *output), problem=problem)

    def _decided(self, outcome: Outcome, taken: Attempt, *output: Any) -> Correction:
        judged = bool(taken.checks) or taken.similarity is not None
        original = self.attempts[0].text
        changed = outcome != "rejected" and taken.number > 1
        causal = self.history if isinstance(self.history, CausalHistory) else None
        thread = None if causal is None else causal.thread_id
        persona = self.gate.cast.personas.get(self.draft.agent or "")
        action = GatedAction(
            id=self.gate.new_id(self.item),
            item_id=self.item.id,
            run_id=None if causal is None else causal.run_id,
            agent=self.draft.agent,
            agent_id=None if persona is None else persona.id or None,
            node=self.item.node,
            thread_id=thread,
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
        self.gate.finished(_key(self.history, self.item), action)
        details = action.to_dict()
        if outcome == "rejected":
            failed = [name for name, check in taken.checks.items() if not check.passed]
            failed += ["similarity"] if taken.too_similar else []
            reason = f"{len(self.attempts)} drafts failed, the last one on {', '.join(failed)}"
            return Correction.give_up(reason, details=details)
        if output:
            return Correction.commit(*output, details=details)
        if taken.number != self.attempts[-1].number:
            return Correction.commit_attempt(taken.number, details=details)
        return Correction.commit(details=details)


def best_of(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt with the highest total, of equals the earliest, among those whose text is at hand."""
    return max((attempt for attempt in attempts if attempt.text is not None), key=lambda found: found.total)


def _text_of(answer: Any) -> str:
    return str(answer.text) if isinstance(answer, BaseMessage) else str(answer)


def _alone(steps: Steps[JudgeResult]) -> Steps[Judgements]:
    result = yield from steps
    return Judgements(results=(result,), calls=result.calls, token_usage=result.token_usage)


def _check(
    answer: Judgements | BaseException | None, threshold: float, propositions: PropositionSet
) -> DimensionCheck:
    if answer is None:
        reasoning = "there is no earlier action to be consistent with"
        return DimensionCheck(
            score=float(HIGHEST), threshold=threshold, status="no_evidence", reasoning=reasoning
        )
    if isinstance(answer, BaseException):
        status: Status = "timeout" if isinstance(answer, TimeoutError) else "error"
        problem = str(answer) if status == "timeout" else f"{type(answer).__name__}: {answer}"
        return DimensionCheck(score=None, threshold=threshold, status=status, reasoning=problem)
    weights = {found.id: found.weight for found in propositions}
    scored = [result for result in answer if result.score is not None]
    # What does not apply, or shows nothing, counts as 9 beside what was judged, as it does for a scorer.
    score = weighted_mean((weights[result.proposition_id], result.score) for result in scored)
    if score is None:
        status = "timeout" if any(result.status == "timeout" for result in answer) else "error"
        problem = next((result.problem for result in answer if result.problem), "no proposition has a weight")
        return DimensionCheck(score=None, threshold=threshold, status=status, reasoning=problem)
    judged = [result for result in scored if result.status == "judged"]
    worst = min(judged or scored, key=lambda result: result.score or 0.0)
    low = sorted(
        (result for result in scored if (result.score or 0.0) < threshold), key=lambda r: r.score or 0.0
    )
    return DimensionCheck(
        score=score,
        threshold=threshold,
        status=worst.status,
        reasoning=worst.reasoning,
        recommended=tuple((result.reasoning, result.recommendations) for result in low),
    )


def _propositions(
    source: str | Path | Mapping[str, PropositionSet] | None, dimension: str, agent: str | None
) -> PropositionSet:
    if isinstance(source, Mapping):
        if dimension in source:
            return source[dimension]
        source = None
    return load_propositions(
        pack_folder("evaluators").joinpath("actions") if source is None else source, dimension, agent
    )


def _call_key(history: History, id: Any, said: str) -> tuple[str, str, str]:
    run = (history.thread_id or history.run_id) if isinstance(history, CausalHistory) else ""
    return run, str(id), said


def _key(history: History, item: HistoryItem) -> tuple[str, str]:
    return (history.run_id if isinstance(history, CausalHistory) else "", item.id)
