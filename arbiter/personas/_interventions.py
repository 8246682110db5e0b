"""Interventions: change the course of a conversation, once a step and before any agent acts.

functional? ─▶ textual? ─▶ propositional? ─▶ effect: a nudge, given to the agent's next turn only

All conditions that are set must hold; the first that fails ends the evaluation. See docs/personas.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, Literal, NoReturn, Self, TypeVar, cast

from arbiter._threads.deadlines import running_loop
from arbiter._threads.forks import new_lock
from arbiter._values.once import Once
from arbiter._values.recent import Recent
from arbiter._values.states import is_number, is_whole
from arbiter.advice import Advisor
from arbiter.errors import ArbiterWarning, ConfigurationError, RegistrationError, callers, describe, nearest
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.models import NO_TOKENS, ChatModel, Judge, total_usage
from arbiter.personas._answers import HIGHEST
from arbiter.personas._asking import Steps, adrive, aoutcome, drive, outcome
from arbiter.personas._characters import Persona, agents_of, name_of
from arbiter.personas._conversation import AgentOf, Cast, Writers, nobody_known, run_id_of, scope_of
from arbiter.personas._engine import JudgeResult, PropositionEngine
from arbiter.personas._intervened import Intervened
from arbiter.personas._messages import Messages
from arbiter.personas._propositions import Proposition, variables_in
from arbiter.personas._repositories import (
    InterventionRepository,
    Storing,
    checked_repository,
    problems,
)
from arbiter.personas._targets import Target
from arbiter.personas._trajectories import Event, Trajectory, listed

Condition = Callable[[list[Target]], bool | Awaitable[bool]]
Nudges = str | Mapping[str, str] | None
Effect = Callable[[list[Target]], Nudges | Awaitable[Nudges]]
RoundOf = Callable[[HistoryItem], Hashable]
"""Returns the round of the conversation that a node run belongs to."""
HEADING = "A thought comes to your mind. Nobody else knows of it, and you do not mention it:"
_KEPT = 10_000
"""The conversations whose nudges are kept, and the evaluations in a log."""
_PURSE = "intervention"
OF_BATCH = ("target_instructions", "target_nodes", "round_of")
"""The settings of the interventions of a batch that are the batch's own."""
_BEAT = 0.05
"""Seconds between two checks of a waiting thread whether the event loop still runs."""
T = TypeVar("T")
_log = logging.getLogger("arbiter.personas")


@dataclass(slots=True)
class _Round:
    """One evaluation: the first node run of a round performs it, the others wait."""

    acted: dict[str | None, Any] = field(default_factory=dict[str | None, Any])
    """The run and superstep in which each agent has acted in this round."""

    items: set[str] = field(default_factory=set[str])
    """The node runs of this round: a node run that is resumed in another run begins no new round."""

    nudges: dict[str, str] | None = None
    """The result of `evaluate`."""

    done: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] | None = None
    """The evaluation, if it runs on an event loop."""

    def wait(self) -> None:
        """Wait until the evaluation is done, or cannot go on: its event loop has ended, or waits for this
        very thread."""
        while not self.done.wait(_BEAT):
            loop = None if self.task is None else self.task.get_loop()
            if loop is not None and (loop is running_loop() or not loop.is_running()):
                return

    async def await_done(self) -> None:
        """Async version of `wait`. Raises the evaluation's error if it runs on this event loop."""
        if self.task is not None and self.task.get_loop() is asyncio.get_running_loop():
            # A cancelled waiter must not cancel the evaluation that others wait for.
            await asyncio.shield(self.task)
        elif not self.done.is_set():
            await asyncio.to_thread(self.wait)


class _Interventions(Advisor):
    """Evaluates interventions, in order, once per round of a conversation, before the first agent of the
    `cast` acts in it.

    A round ends when an agent acts that has acted in it in an earlier superstep, so agents that act at the
    same time share a round, and so do agents that act in turn. An agent that goes on with the results of its
    own tool calls is still in the same turn. With `round_of`, its value for a node run replaces this rule,
    and interventions are evaluated once for each value in a thread (without a thread: in a run). Nudges wait
    for the agent's next turn and are added to its calls. They exist in memory only.
    """

    # A judge may be asked, which takes long; without one, counting the events is quick.
    blocking = True
    cast: Cast

    def __init__(
        self,
        name: str,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        round_of: RoundOf | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes)
        if round_of is not None and not callable(cast(Any, round_of)):
            raise ConfigurationError(f"round_of: expected a function of a node run, got {round_of!r:.80}.")
        self.round_of = round_of
        self.log: list[Intervened] = []
        """The last evaluations, oldest first; at most 10,000."""
        self._lock = new_lock()
        self._rounds = Recent[Any, _Round](_KEPT)
        self._waiting = Recent[str, dict[str, dict[int, str]]](_KEPT)
        """The nudges that no turn has had yet, by conversation, agent and place of the intervention."""
        self._told = Once()
        self._turns = Recent[tuple[str, str], list[str]](_KEPT)
        """The nudges of an agent's newest turn; later calls in that turn get them again."""
        self._given = Recent[tuple[str, str], str](_KEPT)
        self._kept = Recent[str, dict[str, list[tuple[int, str]]]](_KEPT)
        """The lasting thoughts, by conversation and agent, with the number of messages before each."""

    @property
    def interventions(self) -> Sequence[Intervention]:
        """The interventions in the order of their evaluation."""
        raise NotImplementedError

    def ensure_valid(self) -> None:
        super().ensure_valid()
        for intervention in self.interventions:
            intervention.check(self.cast)
        if not self.interventions:
            self.when_idle = (
                "it has no intervention, or its settings enable none",
                "Add or enable one, or leave it out.",
            )

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        return bool(self.interventions) and super().applies_to(node, instruction)

    def governs(self, nodes: Collection[str]) -> None:
        self.cast.known_nodes.update(nodes)

    def advise(self, history: History, state: Mapping[str, Any]) -> str | None:
        item = history.item
        if not self._matters(item):
            return None
        turn, key, mine = self._enter(history, item)
        if not mine:
            turn.wait()
        else:
            with self._performing(turn, key):
                drive(self._evaluating(history, item), _answer)
        return self._take(history, item)

    async def aadvise(self, history: History, state: Mapping[str, Any]) -> str | None:
        """Async version of `advise`, judging on this event loop."""
        item = history.item
        if not self._matters(item):
            return None
        turn, key, mine = self._enter(history, item)
        if mine:
            turn.task = asyncio.create_task(adrive(self._evaluating(history, item), _aanswer))

            def ended(task: asyncio.Task[None]) -> None:
                if task.cancelled() or task.exception() is not None:
                    self._forget_round(key)
                turn.done.set()

            turn.task.add_done_callback(ended)
        await turn.await_done()
        return self._take(history, item)

    def evaluate(
        self, conversation: Sequence[Any], *, step: Hashable, thread_id: str = ""
    ) -> Mapping[str, str]:
        """The nudges for each agent's next call, of all interventions over `conversation`.

        For a node at the head of a step of your own world, in place of `add_advisor`; the node gives the texts
        to its agents. `conversation` are messages or texts as in a graph's state. The interventions are
        evaluated once for each `step` of a thread: the same step again, such as by a retry, gets the same
        nudges.
        """
        turn, key, mine = self._step(thread_id, step)
        if not mine:
            turn.wait()
        else:
            with self._performing(turn, key):
                drive(self._evaluating_step(turn, conversation, thread_id, step), _answer)
        return turn.nudges or {}

    async def aevaluate(
        self, conversation: Sequence[Any], *, step: Hashable, thread_id: str = ""
    ) -> Mapping[str, str]:
        """Async version of `evaluate`."""
        turn, key, mine = self._step(thread_id, step)
        if not mine:
            await turn.await_done()
        else:
            with self._performing(turn, key):
                await adrive(self._evaluating_step(turn, conversation, thread_id, step), _aanswer)
        return turn.nudges or {}

    def _step(self, thread_id: str, step: Hashable) -> tuple[_Round, Any, bool]:
        """The round of a step, its key, and True if this call is the first of it."""
        self.ensure_valid()
        key: Any = (thread_id, ("step", step))
        with self._lock:
            known = self._rounds.get(key)
            found = self._rounds.setdefault(key, _Round())
            return found, key, known is None

    def _evaluating_step(
        self, turn: _Round, conversation: Sequence[Any], thread_id: str, step: Hashable
    ) -> _Evaluating[None]:
        said = Messages(listed(conversation))
        about = {"step": step if isinstance(step, int) else 0, "thread_id": thread_id or None}
        yield from self._evaluating_over((said, None), thread_id, about)
        with self._lock:
            agents = {*self._waiting.get(thread_id, ()), *self._kept.get(thread_id, ())}
            given = {agent: self._text_for(thread_id, agent, []) for agent in sorted(agents)}
            turn.nudges = {agent: text for agent, text in given.items() if text}

    def _enter(self, history: History, item: HistoryItem) -> tuple[_Round, Any, bool]:
        """The round of a node run, its key, and True if the node run is the first of it."""
        agent = self.cast.acting(item)
        where = (run_id_of(history), item.namespace, item.step)
        key: Any = (scope_of(history), None if self.round_of is None else self.round_of(item))
        goes_on = agent is not None and self.cast.goes_on(history, agent)
        with self._lock:
            known = self._rounds.get(key)
            is_over = (
                known is not None
                and self.round_of is None
                and known.acted.get(agent, where) != where
                and item.id not in known.items
                and not goes_on
            )
            if known is None or is_over:
                self._rounds.pop(key, None)
                found = self._rounds[key] = _Round()
            else:
                found = known
            found.acted[agent] = where
            if self.round_of is None:
                found.items.add(item.id)
            return found, key, found is not known

    @contextmanager
    def _performing(self, turn: _Round, key: Any) -> Generator[None]:
        """Evaluate a round, for which others may wait."""
        try:
            yield
        except BaseException:
            self._forget_round(key)
            raise
        finally:
            turn.done.set()

    def _forget_round(self, key: Any) -> None:
        """Forget a round whose evaluation failed, so that it is evaluated again when the run goes on."""
        with self._lock:
            self._rounds.pop(key, None)

    def _matters(self, item: HistoryItem) -> bool:
        """True if an agent acts in that node run, or if there are no agents to tell apart."""
        if not self.cast.personas and self.cast.agent_of is None:
            return True
        if self.cast.acting(item) is not None:
            return True
        if not self.cast.is_known and self._told.is_new("nobody known"):
            raise nobody_known(self.cast, "it is never evaluated", self.name)
        return False

    # Evaluating

    def _evaluating(self, history: History, item: HistoryItem) -> _Evaluating[None]:
        about: dict[str, Any] = {
            "at": history.now,
            "agent": self.cast.acting(item),
            "item_id": item.id,
            "step": item.step,
            "run_id": run_id_of(history),
            "thread_id": history.thread_id if isinstance(history, CausalHistory) else None,
        }
        talk = self.cast.given(history), self.cast.writers(history)
        return (yield from self._evaluating_over(talk, scope_of(history), about))

    def _evaluating_over(
        self, talk: tuple[Messages, Writers | None], run: str, about: Mapping[str, Any]
    ) -> _Evaluating[None]:
        """Evaluate all interventions over a conversation; the nudges then wait for their agents."""
        thoughts: list[tuple[str, str]] = []
        for place, intervention in enumerate(self.interventions):
            found = yield from intervention.evaluating(self._targets(intervention, talk, run, thoughts))
            found = replace(found, **about)
            if intervention.repository is not None:
                personas = [*{**self.cast.personas, **intervention.cast.personas}.values()]
                call = partial(intervention.repository.log_intervention, found, personas)
                warn = partial(_log.warning, "intervention %r: %s", intervention.name)
                unstored: str = yield Storing(call, warn)
                found = replace(found, problem=problems(found.problem, unstored))
            with self._lock:
                self.log.append(found)
                del self.log[:-_KEPT]
                if "item_id" in about:  # a world of one's own may have more agents
                    self._check_agents(intervention.name, found.nudges)
                for agent, nudge in found.nudges.items():
                    thoughts.append((agent, nudge))
                    self._keep(run, agent, place, nudge, len(talk[0]) if intervention.persist else None)

    def _keep(self, run: str, agent: str, place: int, nudge: str, lasting_from: int | None) -> None:
        """Keep a nudge for the agent's next turn, and for all later ones if it lasts."""
        places: list[Recent[str, Any]] = [self._waiting, *([] if lasting_from is None else [self._kept])]
        is_full = any(run not in place and len(place) == _KEPT for place in places)
        # An intervention may fire at each step before the agent acts.
        self._waiting.setdefault(run, {}).setdefault(agent, {})[place] = nudge
        self._waiting.move_to_end(run)
        if lasting_from is not None:
            kept = self._kept.setdefault(run, {}).setdefault(agent, [])
            if nudge not in (known for _, known in kept):
                kept.append((lasting_from, nudge))
        if is_full:
            self._tell(
                "dropped",
                self.name,
                f"keeps the nudges of {_KEPT} conversations and drops those of the conversations that have rested "
                "longest.",
            )

    def _tell(self, about: str, name: str, problem: str) -> None:
        """Log a warning, once for each subject."""
        if self._told.is_new(about):
            _log.warning("intervention %r %s (This is reported once.)", name, problem)

    def _check_agents(self, name: str, nudges: Mapping[str, str]) -> None:
        """Warn of a nudge for an agent that acts in no node. `agent_of` may know agents of its own."""
        known = self.cast.personas
        if not known or self.cast.agent_of is not None:
            return
        for agent in nudges.keys() - known.keys():
            agents = ", ".join(map(repr, known))
            problem = f"nudges {agent!r:.80}, which is not an agent. Agents: {agents}.{nearest(agent, known)}"
            self._tell("agents", name, problem)

    def _targets(
        self,
        intervention: Intervention,
        talk: tuple[Messages, Writers | None],
        run: str,
        thoughts: Sequence[tuple[str, str]],
    ) -> list[Target]:
        """The conversation for each target, including the thoughts given to the agents."""
        kept: list[tuple[int, Event]] = []
        for agent in intervention.agents:
            lasting = self._kept.get(run, {}).get(agent, ())
            kept += [(at, _thought(agent, nudge)) for at, nudge in lasting]
        known = {event.text for _, event in kept}
        said, writers = talk
        now = [(len(said), _thought(agent, nudge)) for agent, nudge in thoughts if nudge not in known]
        # Messages may have been removed since.
        placed = sorted(((min(at, len(said)), event) for at, event in kept), key=lambda pair: pair[0])
        seen = self.cast.trajectory(said, None, writers, [*placed, *now])
        return [self.cast.target(seen, agent) for agent in intervention.agents] or [
            self.cast.target(seen, None)
        ]

    # Nudges

    def _take(self, history: History, item: HistoryItem) -> str | None:
        """The nudges for the agent of this node run as one text; a retry of the node run gets the same
        text."""
        agent = self.cast.acting(item)
        if agent is None:
            return None
        run = scope_of(history)
        goes_on = self.cast.goes_on(history, agent)
        with self._lock:
            if (given := self._given.get((run, item.id))) is not None:
                return given or None
            begun = self._turns.get((run, agent), []) if goes_on else []
            text = self._given[run, item.id] = self._text_for(run, agent, begun)
        return text or None

    def _text_for(self, run: str, agent: str, begun: Sequence[str]) -> str:
        """The nudges that wait for an agent, after those that its turn `begun` with, as one text; "" without
        any."""
        waiting = self._waiting.get(run, {})
        nudges = list(dict.fromkeys([*begun, *waiting.pop(agent, {}).values()]))
        if not waiting:
            self._waiting.pop(run, None)
        self._turns[run, agent] = nudges
        if run in self._kept:
            self._kept.move_to_end(run)
        kept = self._kept.get(run, {}).get(agent, ())
        lasting = [nudge for _, nudge in kept if nudge not in nudges]
        return "\n\n".join([HEADING, *lasting, *nudges]) if lasting or nudges else ""


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to the judge of an engine."""

    engine: PropositionEngine
    steps: Steps[JudgeResult]


_Op = _Question | Storing | Awaitable[Any]
"""An awaitable is what a user's `async def` returned."""
_Evaluating = Generator[_Op, Any, T]


def _answer(op: _Op) -> Any:
    if isinstance(op, Storing):
        return op.do()
    if isinstance(op, _Question):
        return outcome(partial(op.engine.run, op.steps))
    if iscoroutine(op):
        op.close()
    return TypeError("an async condition or effect needs an async run: use ainvoke or astream")


async def _aanswer(op: _Op) -> Any:
    if isinstance(op, Storing):
        return await op.ado()
    return await aoutcome(op.engine.arun(op.steps) if isinstance(op, _Question) else op)


class _UnjudgedError(Exception):
    """The judge could not be reached or read; the message says why."""


class Intervention(_Interventions):
    """Nudges `targets`, or the agents that its effect names, when all of its conditions hold.

    `targets` are agents, by persona or name; functions receive them as a list of `Target`s, each with the
    conversation so far; without targets the list has one `Target` with the conversation alone. A judge sees
    its first `first_n` and last `last_n` events. With `persist` an agent keeps the thought for the rest of
    the thread, as in the paper, or of the run if there is no thread; it is kept in memory, never in messages
    or checkpoints.

    In async runs a function may be `async def`; others are called on a thread there. If a judge or a function
    fails, the intervention does not fire, and the `log` records why. The acting node raises mistakes in the
    set-up (`ConfigurationError`), such as a stale recording.

    A `judge` that is an engine keeps its own timeout. A `repository` stores each evaluation. If it fails, the
    `log` records that, and the nudges are given.

    A nudge reaches its agent in a node in which that agent is known to act: by `agent_of`, the node's name,
    or, for a single agent, `target_nodes`.
    """

    def __init__(
        self,
        targets: Persona | str | Iterable[Persona | str] = (),
        *,
        judge: PropositionEngine | Judge | ChatModel | str | None = None,
        first_n: int = 10,
        last_n: int = 100,
        name: str = "intervention",
        persist: bool = False,
        agents: Persona | str | Iterable[Persona | str] = (),
        key: str = "messages",
        agent_of: AgentOf | None = None,
        channel: str = "",
        timeout: float | None = 30.0,
        round_of: RoundOf | None = None,
        repository: InterventionRepository | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, round_of)
        self.repository: InterventionRepository | None = checked_repository(
            repository, InterventionRepository, f"intervention {name!r}"
        )
        given = agents_of(targets)
        self.cast = Cast(
            [*given, *agents_of(agents)],
            key=key,
            agent_of=agent_of,
            channel=channel,
            nodes=self.target_nodes,
            instructions=self.target_instructions,
        )
        self.messages_key = key
        self.agents = [name_of(one) for one in given]
        self.engine: PropositionEngine | None = None
        if isinstance(judge, PropositionEngine):
            self.engine = copy(judge)  # it may be a scorer's, too
            self.engine.purse = _PURSE
        elif judge is not None:
            self.engine = PropositionEngine(judge, timeout=timeout, purse=_PURSE)
        for parameter, given_n in (("first_n", first_n), ("last_n", last_n)):
            if not is_whole(given_n, least=0):
                problem = f"expected a whole number from 0, got {given_n!r:.80}."
                raise ConfigurationError(f"intervention {name!r}: {parameter}: {problem}")
        self.first_n = first_n
        self.last_n = last_n
        self.persist = persist
        self.waits_for = 0
        """The messages of its agent before which it never fires, as far as that is known."""
        self._functional: Condition | None = None
        self._textual: Proposition | None = None
        self._propositional: Proposition | None = None
        self._threshold: float | None = None
        self._effect: Effect | None = None

    @property
    def interventions(self) -> Sequence[Intervention]:
        return (self,)

    def set_textual_precondition(self, claim: str) -> Self:
        """Require that the judge finds this claim true of the conversation. It may name a single target as
        `{{agent_name}}`."""
        if not isinstance(cast(Any, claim), str) or not claim.strip():
            self._refuse("claim", "a claim", claim)
        scope: Any = "agent" if len(self.agents) == 1 else "environment"
        self._textual = Proposition("textual", claim, target_type=scope)
        return self

    def set_functional_precondition(self, condition: Condition) -> Self:
        """Require that the function returns True. It receives the list of targets."""
        if not callable(condition):
            self._refuse("condition", "a function", condition)
        self._functional = condition
        return self

    def set_propositional_precondition(
        self, proposition: Proposition, threshold: float | None = None
    ) -> Self:
        """Require a score below `threshold`, 0 to 9; without one, that the judge finds the proposition
        true."""
        if threshold is not None and not (is_number(threshold) and 0 <= threshold <= HIGHEST):
            self._refuse("threshold", "a number from 0 to 9, or None", threshold)
        if not isinstance(cast(Any, proposition), Proposition):
            self._refuse("proposition", "a Proposition", proposition)
        self._propositional, self._threshold = proposition, threshold
        return self

    def set_effect(self, effect: Effect | str) -> Self:
        """Set the nudge: a text, or a function of the targets that returns a text, texts by agent, or
        None."""
        # With an empty text it is evaluated and nudges nobody, as one of a control group.
        if not (not effect.isspace() if isinstance(effect, str) else callable(effect)):
            self._refuse("effect", "a text or a function", effect)
        self._effect = (lambda targets: effect) if isinstance(effect, str) else effect
        return self

    def _refuse(self, parameter: str, expected: str, given: object) -> NoReturn:
        raise ConfigurationError(
            f"intervention {self.name!r}: {parameter}: expected {expected}, got {given!r:.80}."
        )

    def check(self, cast: Cast | None = None) -> None:
        """Raise `RegistrationError` if this cannot be evaluated; warn if nothing limits it."""
        if self._effect is None:
            raise RegistrationError(f"intervention {self.name!r} has no effect. Call set_effect(...).")
        if self.engine is None and (self._textual or self._propositional):
            raise RegistrationError(f"intervention {self.name!r} has a condition for a judge. Pass judge=.")
        self._check_variables(cast or self.cast)
        if not (self._functional or self._textual or self._propositional):
            warnings.warn(
                f"intervention {self.name!r} has no precondition: it fires at every step.",
                ArbiterWarning,
                stacklevel=callers(),
            )

    def _check_variables(self, cast: Cast) -> None:
        """Raise `RegistrationError` for a claim that can never be asked, because one of its variables has
        no value."""
        one = self.agents[0] if len(self.agents) == 1 else None
        known = cast.target(Trajectory(), one).variables
        for claim in filter(None, (self._textual, self._propositional)):
            if unknown := sorted(variables_in(claim.claim) - known.keys()):
                raise RegistrationError(
                    f"intervention {self.name!r}: there is no value for {{{{{unknown[0]}}}}} in its claim "
                    f"{claim.claim!r:.80}. There is agent_name with a single target, and channel_name with channel=."
                )

    def evaluating(self, targets: list[Target]) -> _Evaluating[Intervened]:
        """The decisions of one evaluation."""
        found: dict[str, Any] = {
            "name": self.name,
            "token_usage": NO_TOKENS,
            "targets": tuple(map(str, map(self.cast.name, self.agents))),
            "channel": self.cast.channel,
        }
        try:
            if self._functional is not None:
                answer: Any = yield from _answered(self._functional(targets))
                if answer is None:  # it may lack a `return`, or may be a search that finds nothing
                    with self._lock:
                        problem = "has a functional precondition that returned None, which counts as False."
                        self._tell("none", self.name, problem)
                found["functional"] = bool(answer)
                if not found["functional"]:
                    return Intervened(**found)
            for kind, claim, threshold in (
                ("textual", self._textual, None),
                ("propositional", self._propositional, self._threshold),
            ):
                if claim is not None:
                    found[kind], why = yield from self._holds(claim, threshold, targets, found)
                    if not found[kind]:
                        return Intervened(**found, problem=why)
            nudges = yield from self._nudges(targets)
        except ConfigurationError:
            raise
        except Exception as error:
            problem = str(error) if isinstance(error, _UnjudgedError) else describe(error)
            _log.warning("intervention %r did not fire: %s", self.name, problem)
            return Intervened(**found, problem=problem, failed=True)
        return Intervened(**found, fired=True, nudges=nudges)

    def _holds(
        self,
        proposition: Proposition,
        threshold: float | None,
        targets: list[Target],
        spent: dict[str, Any],
    ) -> _Evaluating[tuple[bool, str]]:
        """True if a claim holds, and the reason if it could not be judged; without evidence no claim
        holds. The cost is added to `spent`."""
        assert self.engine is not None
        first, last = proposition.first_n, proposition.last_n
        if first is None and last is None:
            proposition = replace(proposition, first_n=self.first_n, last_n=self.last_n)
        one = len(targets) == 1
        target = targets[0] if one else self.cast.target(targets[0].trajectory, None)
        mode: Literal["score", "check"] = "check" if threshold is None else "score"
        result: JudgeResult | Exception = yield _Question(
            self.engine, self.engine.asking(mode, proposition, target)
        )
        if isinstance(result, Exception):
            raise result
        spent["calls"] = spent.get("calls", 0) + result.calls
        spent["token_usage"] = total_usage([spent["token_usage"], result.token_usage])
        if result.status in ("timeout", "error"):
            raise _UnjudgedError(result.problem or result.status)
        why = "" if result.status == "judged" else result.problem or result.reasoning
        if threshold is not None:
            return result.score is not None and result.score < threshold, why
        # A claim without evidence, or one that does not apply, was not found to be true.
        return result.result is True and result.status == "judged", why

    def _nudges(self, targets: list[Target]) -> _Evaluating[dict[str, str]]:
        assert self._effect is not None
        effect: Any = yield from _answered(self._effect(targets))
        if effect is None or effect == "":
            return {}
        if isinstance(effect, str):
            agents = self.agents or self.cast.personas
            if not agents:
                with self._lock:
                    self._tell(
                        "nobody", self.name, "has no agents, so its text nudges nobody. Name its targets."
                    )
            return dict.fromkeys(agents, effect)
        if not isinstance(effect, Mapping):
            raise TypeError(
                f"the effect was a {type(effect).__name__}; expected a text, texts by agent, or None"
            )
        nudges: dict[str, str] = {}
        for agent, text in cast(Mapping[str, Any], effect).items():
            if text is not None and not isinstance(text, str):
                raise TypeError(f"the effect on {agent!r} was a {type(text).__name__}; expected a text")
            if text:
                nudges[self.cast.name(agent) or agent] = text
        return nudges


class InterventionBatch(_Interventions):
    """Several interventions as one advisor: evaluates all of them, one after the other, before any agent
    acts.

    The setters apply to each of them. `cast` assigns agents to nodes and finds the conversation; by default
    it follows the interventions.
    """

    def __init__(
        self,
        interventions: Iterable[Intervention],
        *,
        name: str = "interventions",
        cast: Cast | None = None,
        round_of: RoundOf | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, round_of)
        given: Any = interventions
        is_many = isinstance(interventions, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
        self._interventions: list[Any] = list(given) if is_many else [given]
        for one in self._interventions:
            if not isinstance(one, Intervention):
                raise ConfigurationError(f"batch {name!r}: expected interventions, got {one!r:.80}.")
            own = [key for key in OF_BATCH if getattr(one, key) not in (None, getattr(self, key))]
            if own:
                warnings.warn(
                    f"batch {name!r}: {', '.join(own)} of intervention {one.name!r} has no effect in a batch. "
                    "Give it to the batch.",
                    ArbiterWarning,
                    stacklevel=callers(),
                )
        if cast is None:
            casts = [one.cast for one in self._interventions]
            if not casts:
                raise ConfigurationError(f"batch {name!r}: expected at least one intervention, or a cast.")
            personas = {p.name: p for known in casts for p in known.personas.values()}
            first = casts[0]
            cast = Cast(
                personas.values(),
                key=first.key,
                agent_of=first.agent_of,
                channel=first.channel,
                nodes=self.target_nodes,
                instructions=self.target_instructions,
            )
        self.cast = cast
        self.messages_key = cast.key

    @classmethod
    def create_for_each(
        cls, agents: Persona | str | Iterable[Persona | str], *, name: str = "intervention", **settings: Any
    ) -> InterventionBatch:
        """One intervention for each agent; `settings` are those of `Intervention`."""
        targets = {key: settings.pop(key) for key in OF_BATCH if key in settings}
        each = [
            Intervention(agent, name=f"{name}:{name_of(agent)}", **settings) for agent in agents_of(agents)
        ]
        return cls(each, name=name, **targets)

    @property
    def interventions(self) -> Sequence[Intervention]:
        return self._interventions

    def __iter__(self) -> Iterator[Intervention]:
        return iter(self._interventions)

    def __len__(self) -> int:
        return len(self._interventions)

    def set_textual_precondition(self, claim: str) -> Self:
        """Call `Intervention.set_textual_precondition` on each."""
        for one in self:
            one.set_textual_precondition(claim)
        return self

    def set_functional_precondition(self, condition: Condition) -> Self:
        """Call `Intervention.set_functional_precondition` on each."""
        for one in self:
            one.set_functional_precondition(condition)
        return self

    def set_propositional_precondition(
        self, proposition: Proposition, threshold: float | None = None
    ) -> Self:
        """Call `Intervention.set_propositional_precondition` on each."""
        for one in self:
            one.set_propositional_precondition(proposition, threshold)
        return self

    def set_effect(self, effect: Effect | str) -> Self:
        """Call `Intervention.set_effect` on each."""
        for one in self:
            one.set_effect(effect)
        return self


def _answered(answer: Any) -> _Evaluating[Any]:
    """The result of a user's function, awaited if necessary."""
    if not isawaitable(answer):
        return answer
    found: Any = yield answer
    if isinstance(found, Exception):
        raise found
    return found


def _thought(agent: str, nudge: str) -> Event:
    return Event.action(agent, nudge, "THINK")
