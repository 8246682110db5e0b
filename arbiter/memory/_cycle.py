"""`EvaluationCycle`: gates, selects and runs the cognitive evaluators of a turn, and holds what they share.

    GATE (all at once) -> SELECT (at most one question to a model, and one repair) -> RUN (one after another)

See docs/design/memory.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore

from arbiter._threads.deadlines import LOOP
from arbiter._threads.forks import renew_in_child
from arbiter._values.recent import Recent
from arbiter._values.states import as_state, freeze
from arbiter.errors import ConfigurationError, RegistrationError
from arbiter.evaluation import EvaluatorGroup, FinishedRun, GroupOutcome, NodeEvaluator
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, RunHistory
from arbiter.memory._characters import Character
from arbiter.memory._commands import hastens
from arbiter.memory._context import EvalContext, NotAvailableError, UnusableAnswerError, silent
from arbiter.memory._conversation import (
    Shown,
    counts,
    heard,
    misplaced,
    originals,
    responded,
    safe,
    signed,
    text_of,
    window,
)
from arbiter.memory._cursors import OUTAGES_PER_WINDOW, wait_after
from arbiter.memory._entities import Entities, Entity, participants
from arbiter.memory._evaluators import CognitiveEvaluator, HandlerOutcome
from arbiter.memory._notes import key_of_messages
from arbiter.memory._off_record import off_the_record, without_hidden
from arbiter.memory._options import has_members, of_kind, one_of, seconds, text, whole, wrong
from arbiter.memory._outcomes import Called, call, gated, settled, unknown_names
from arbiter.memory._quiet import Held, Processed, Quiet, stub
from arbiter.memory._records import time_in, time_of, utc_now
from arbiter.memory._strangers import RoomNames, marked, strangers_among
from arbiter.memory._telling import NO_CYCLE, NO_MODEL, NO_STORE, OPENED, Told
from arbiter.memory._turns import (
    AT_WORK,
    MessageIds,
    Place,
    Turn,
    as_messages,
    at_work,
    config_here,
    given,
    has_structured_response,
    latest,
    merged,
    name_messages,
    newest_human,
    place_of,
    replaces,
    runtime_of,
    speaker_said,
    state_of,
    written,
)
from arbiter.memory.answers import CallBudget
from arbiter.memory.facts import FactRules
from arbiter.memory.facts._bin import empty_bins
from arbiter.memory.facts._own_names import OwnNames
from arbiter.memory.facts._wishes import command_of
from arbiter.memory.providers._provider import ProviderContext, query_of
from arbiter.memory.selection import Strategy, check_selectable, normal, select
from arbiter.memory.stores import LockProvider, MemoryStore
from arbiter.memory.stores._access import Access, access_to
from arbiter.models import ChatModel, model_of
from arbiter.verdicts import OTHER_TARGETS, EvaluationResult, EvaluatorTrace

if TYPE_CHECKING:
    from arbiter.memory._recollection import Memory

_log = logging.getLogger("arbiter.memory")
_REMEMBERED = 1000
_ASKING = 32
"""Messages, the last ones, that may ask to forget something."""
_LAST = 128
"""Messages, the last ones, of which it is known in whose turns they have come."""
_RUN, _NAMESAKE = "run:", "user:"
_NO_STORE, _NO_MODEL = "there is no store", "there is no model"
_CAUSES = {_NO_STORE: NO_STORE, _NO_MODEL: NO_MODEL}
Privacy = bool | Callable[[RunnableConfig], bool]


class EvaluationCycle(EvaluatorGroup):
    """Runs the cognitive evaluators of an `ArbiterOS`, and holds what they share.

    `store` keeps their memories: any LangGraph `BaseStore`; by default the store that the graph was compiled
    with. `evaluator_model` and `selector_model` are chat models or texts like "openai:gpt-5-mini"; the
    selector uses `evaluator_model` if it has none of its own. `selector` is "rule" (run every evaluator that
    passed the gate), "llm", or a callable `(ctx, candidates) -> names`; `on_selector_error` runs "all" or
    "none" of the candidates if it fails.

    With `mode="inline"` a node run ends after its evaluators; with "background" they run later, in order for
    each thread, and `drain` waits for them. One user message leads to at most `max_llm_calls_per_turn` model
    calls. `conversation_length` is the number of messages that make a conversation (see the evaluators'
    triggers). `validate_timeout_s` and `handler_timeout_s` are limits in seconds; None means no limit.
    When a thread has been quiet for `after_idle_s`, what was said in it is worked through even if it is too
    little for the evaluators' triggers; `drain` and the end of the process do so at once. None leaves it to
    `cycle.memory.process`.

    `agent_id` names the owner of the memory, `character` describes the agent, `entities` are participants
    known beforehand. `is_private` marks private threads: True, or a function of the node's config; facts
    learned in one are not used in other rooms. `clock` returns aware times.
    """

    def __init__(
        self,
        *,
        store: BaseStore | MemoryStore | None = None,
        evaluator_model: ChatModel | str | None = None,
        selector_model: ChatModel | str | None = None,
        selector: Strategy = "rule",
        on_selector_error: Literal["all", "none"] = "all",
        mode: Literal["inline", "background"] = "inline",
        conversation_length: int = 32,
        max_llm_calls_per_turn: int = 4,
        validate_timeout_s: float | None = 2.0,
        handler_timeout_s: float | None = 30.0,
        after_idle_s: float | None = 60.0,
        agent_id: str = "agent",
        character: Character | None = None,
        entities: Iterable[Entity] = (),
        is_private: Privacy = False,
        messages_key: str = "messages",
        max_context_chars: int = 4000,
        fact_rules: FactRules | None = None,
        lock_provider: LockProvider | None = None,
        seed: int = 0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        one_of("mode", mode, "inline", "background")
        one_of("on_selector_error", on_selector_error, "all", "none")
        if not callable(selector):
            one_of("selector", selector, "rule", "llm")
        whole("conversation_length", conversation_length, 1)
        whole("max_llm_calls_per_turn", max_llm_calls_per_turn, 0)
        whole("max_context_chars", max_context_chars, 1)
        seconds("validate_timeout_s", validate_timeout_s)
        seconds("handler_timeout_s", handler_timeout_s)
        seconds("after_idle_s", after_idle_s)
        if not callable(clock):
            raise wrong("clock", f"expected a function that returns an aware time, got {clock!r:.80}.")
        if not isinstance(is_private, bool) and not callable(is_private):
            raise wrong(
                "is_private", f"expected True, False or a function of the config, got {is_private!r:.80}."
            )
        if lock_provider is not None and not callable(lock_provider):
            raise wrong("lock_provider", f"expected a function of a name, got {lock_provider!r:.80}.")
        if lock_provider is not None and isinstance(store, MemoryStore):
            raise wrong("lock_provider", "a MemoryStore has its own: MemoryStore(store, lock_provider=...).")
        of_kind("fact_rules", fact_rules, FactRules, none=True)
        of_kind("character", character, Character, none=True)
        for entity in (known := tuple(entities)):
            of_kind("entities", entity, Entity)
            names: Any = entity.names
            if not (has_members(names) and all(isinstance(part, str) for part in (entity.id, *names))):
                problem = f"expected texts, as in Entity(id='ada', names=('Ada',)), got {entity!r:.80}."
                raise wrong("entities", problem)
        text("agent_id", agent_id)
        text("messages_key", messages_key)
        self.mode = mode
        self.durable = mode == "inline"
        self.selector: Strategy = selector
        self.on_selector_error: Literal["all", "none"] = on_selector_error
        self.conversation_length = conversation_length
        self.max_llm_calls_per_turn = max_llm_calls_per_turn
        self.validate_timeout_s = validate_timeout_s
        self.handler_timeout_s = handler_timeout_s
        self.after_idle_s = after_idle_s
        self.agent_id = agent_id
        self.character = Character(agent_id) if character is None else character
        self.entities = known
        self.is_private = is_private
        self.messages_key = messages_key
        self.max_context_chars = max_context_chars
        self.fact_rules = FactRules() if fact_rules is None else fact_rules
        self.seed = seed
        self.clock = clock
        self.evaluator_model = None if evaluator_model is None else model_of(evaluator_model)
        self.selector_model = None if selector_model is None else model_of(selector_model)
        if selector == "llm" and self.selector_model is None and self.evaluator_model is None:
            raise wrong("selector", "'llm' needs a selector_model or an evaluator_model.")
        self._lock_provider = lock_provider
        self.store = None if store is None else self._wrapped(store)
        self._budgets = Recent[tuple[str, str | None], CallBudget](_REMEMBERED)
        self._rooms = Recent[str, str](_REMEMBERED)
        self._keeps_ids = Recent[str, bool](_REMEMBERED)
        """The last threads; those without a checkpointer have other ids in each run. See `MessageIds`."""
        self._users = Recent[str, Recent[str, str]](_REMEMBERED)
        """The users in whose turns the last messages of the last threads have come."""
        self._keys: weakref.WeakKeyDictionary[Access, bytes] = weakref.WeakKeyDictionary()
        self._provided = weakref.WeakKeyDictionary[History, tuple[list[BaseMessage], ProviderContext]]()
        self._own_key = secrets.token_bytes(16)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._busy: set[str] = set()
        """The rooms with a turn under way."""
        self._reports = Told()
        self._bins_emptied_at: datetime | None = None
        self._members: tuple[NodeEvaluator, ...] = ()
        self._quiet = Quiet(after_idle_s, self._work_through, messages_key=messages_key)
        renew_in_child(self)

    @property
    def memory(self) -> Memory:
        """The memory of this cycle's agent, to query and edit from a program. Raises `ConfigurationError`
        if the cycle has no store of its own."""
        if self.store is None:
            raise ConfigurationError(
                "this EvaluationCycle has no store of its own. Give it one, or make a Memory of the graph's store."
            )
        return self._memory(self.store)

    def _memory(self, store: MemoryStore) -> Memory:
        from arbiter.memory._recollection import Memory

        return Memory(
            store,
            agent_id=self.agent_id,
            clock=self.clock,
            rules=self.fact_rules,
            character=self.character,
            entities=self.entities,
            model=self.evaluator_model,
            cycle=self,
        )

    # Called by the core

    def takes(self, evaluator: NodeEvaluator) -> bool:
        """True for cognitive evaluators, and for judging evaluators that have a `validate` method."""
        return isinstance(evaluator, CognitiveEvaluator) or callable(getattr(evaluator, "validate", None))

    def check(self, evaluators: Sequence[NodeEvaluator]) -> None:
        taken: dict[str, NodeEvaluator] = {}
        for evaluator in evaluators:
            similes = evaluator.similes if isinstance(evaluator, CognitiveEvaluator) else ()
            for name in (evaluator.name, *similes):
                other = taken.setdefault(normal(name), evaluator)
                if other is not evaluator:
                    raise RegistrationError(
                        f"evaluator {evaluator.name!r} cannot use the name {name!r}: evaluator {other.name!r} "
                        "has it. Names and similes must differ in more than case, quotes, blanks, '-' and '_'."
                    )
        if self.selector == "llm":
            check_selectable([e for e in evaluators if isinstance(e, CognitiveEvaluator)])
        self._members = tuple(evaluators)

    def begin(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Future[GroupOutcome]:
        return LOOP.submit(self._run_turn(self._new_turn(evaluators, finished)), copy_context())

    def _new_turn(self, evaluators: Sequence[NodeEvaluator], finished: FinishedRun) -> Turn:
        """The turn of these evaluators, with all that is not there later."""
        now = self.clock()
        if getattr(now, "tzinfo", None) is None:
            self._reports.naive(now)
        new_messages = written(finished.returned, self.messages_key)
        name_messages(new_messages, finished, self.messages_key)
        runtime = runtime_of(finished.config)
        if scope := _scope(place_of(finished.config, runtime)):
            self._keeps_ids[scope] = finished.saved
        return Turn(
            evaluators=evaluators,
            run=finished,
            ended_at=now,
            runtime=runtime,
            messages=given(finished.input, self.messages_key),
            new_messages=new_messages,
        )

    async def _run_turn(self, turn: Turn) -> GroupOutcome:
        """Take a turn through the stages, on Arbiter's own event loop. Never raises."""
        try:
            # Before the first wait: turns of a room keep the order in which they ended.
            room_id = turn.place.thread_id or self._room_of_run(_run_of(turn.run.history))
            async with self._turn_of(room_id):
                self._busy.add(room_id)
                try:
                    ctx = await self._context_of(turn)
                    ctx.trimmed = self._of_their_users(self._quiet.trimmed(ctx, turn.given), turn.place)
                    with at_work(turn.run.config, room_id):
                        await self._empty_bins(ctx)
                        await self._hide_answers(ctx)
                        await self._read_others_first(ctx)
                        outcome = await self._run(turn.evaluators, ctx)
                    done = _done(outcome)
                    left = self._left(turn.evaluators, ctx, done)
                    self._quiet.heard(ctx.whole(), left, done, turn.given)
                    return outcome
                finally:
                    self._busy.discard(room_id)
        except BaseException as exc:  # also exceptions that would end the event loop
            # Without its text, which may quote what somebody said.
            problem = f"{type(exc).__name__} in the cycle"
            self._reports.failed([evaluator.name for evaluator in turn.evaluators], problem, exc)
            return GroupOutcome(errors={evaluator.name: problem for evaluator in turn.evaluators})

    def drain(self, timeout: float | None = None) -> bool:
        return self._quiet.drain(timeout)

    async def _empty_bins(self, ctx: EvalContext) -> None:
        """Delete what can no longer be undone: in the first turn of the process, then once an hour if there
        is anything to undo."""
        now, last, period = self.clock(), self._bins_emptied_at, self.fact_rules.undo_within
        if ctx.store is None or (
            last is not None and (period is None or now - last < min(period, timedelta(hours=1)))
        ):
            return
        self._bins_emptied_at = now
        with _tolerated("forgotten records that can no longer be undone were not deleted"):
            await empty_bins(ctx.store, self.agent_id, now)

    async def _hide_answers(self, ctx: EvalContext) -> None:
        """Note the agent's answers to a message that is off the record: if the thread loses the message, nothing
        else says that they are, too."""
        answers = [str(part.id) for part in ctx.new_messages if isinstance(part, AIMessage) and part.id]
        asked = "" if ctx.message is None else text_of(ctx.message)
        if ctx.store is None or not answers or not off_the_record(asked):
            return
        with _tolerated("answers off the record could not be noted"):
            await ctx.tombstones.bury(answers, at=ctx.clock())

    async def _read_others_first(self, ctx: EvalContext) -> None:
        """Read the threads that wait and in which the speaker of a possible wish to forget has spoken: their
        unread messages would teach the forgotten facts again."""
        new = {message.id for message in ctx.new_messages}
        asking: dict[str, None] = {}
        for message in originals(ctx.messages)[: -_ASKING - 1 : -1]:
            if isinstance(message, HumanMessage):
                # A plain command to forget everything, or the last message, says itself how far it goes.
                if hastens(text_of(message)) and command_of(message) is None:
                    asking[ctx.speaker_of(message)] = None
            elif counts(message) and message.id not in new:
                break
        for speaker in asking:
            await self._read_ahead(speaker, self._has_no_turn)

    def _has_no_turn(self, room_id: str) -> bool:
        """True if no turn of that room is under way: two turns that forget must never wait for each other."""
        return room_id not in self._busy

    async def read_waiting(self, speaker: str) -> None:
        """Work through the threads that wait and in which that speaker has spoken, on Arbiter's own event loop."""
        if AT_WORK.get():
            await self._read_ahead(speaker, lambda room_id: not self._turn_of(room_id).locked())
        else:
            await self._read_ahead(speaker, self._has_no_turn)

    async def _read_ahead(self, speaker: str, is_free: Callable[[str], bool]) -> None:
        with _tolerated("threads that wait could not be read before a forgetting"):
            await self._quiet.ahead_of(speaker, is_free, self.handler_timeout_s)

    def renew(self) -> None:
        """Reset the locks of turns after a fork: running and waiting turns belong to the parent process."""
        self._turns = weakref.WeakValueDictionary()
        self._busy = set()

    # Called by providers

    def provider_context(self, history: History, state: Mapping[str, Any]) -> ProviderContext:
        """The room, user and recent messages of a node that is about to run.

        Must be called where LangGraph's `get_config` finds the node's config. The providers of one node run that see
        the same messages share it.
        """
        recent = latest(state, self.messages_key, self.conversation_length)
        shared = self._provided.get(history)
        if shared is not None and shared[0] == recent:
            return shared[1]
        config = config_here()
        runtime = runtime_of(config)
        place = place_of(config, runtime)
        store = self._store_of(runtime)
        room_id, entity_id = self._where(place, history, newest_human(recent))
        messages = Shown(without_hidden(recent))
        scope = _scope(place) or room_id
        # Before the first turn of this process ends, nobody knows whether the thread keeps ids.
        kept = self._keeps_ids.get(scope, False)
        made = self._provider_context(
            store,
            config,
            room_id=room_id,
            entity_id=entity_id,
            messages=messages,
            query=query_of(messages),
            known_ids=partial(self._known_ids, store, recent, state, scope, kept),
        )
        self._provided[history] = recent, made
        return made

    def _provider_context(
        self, store: MemoryStore | None, config: RunnableConfig | None, **call: Any
    ) -> ProviderContext:
        return ProviderContext(
            store=store,
            agent_id=self.agent_id,
            clock=self.clock,
            character=self.character,
            entities=self.entities,
            is_private=self._private(config),
            messages_key=self.messages_key,
            fact_rules=self.fact_rules,
            **call,
        )

    async def _known_ids(
        self,
        store: MemoryStore | None,
        recent: Sequence[BaseMessage],
        state: Mapping[str, Any],
        scope: str,
        kept: bool,
    ) -> dict[str, str]:
        """The ids under which memory knows the last messages of a state, by those that they have there."""
        said = given(state, self.messages_key)
        if kept and all(getattr(part, "id", None) for part in said[-len(recent) :]):
            return {}
        known = as_messages(said, MessageIds(scope, kept=kept, key=await self._key(store)))
        pairs = zip(reversed(recent), reversed(known), strict=False)
        return {here.id: there.id for here, there in pairs if here.id and there.id}

    async def _key(self, store: MemoryStore | None) -> bytes:
        """The key of made ids; one of this process if the store cannot be read, or if there is none."""
        if store is None:
            return self._own_key
        access = access_to(store.store)
        found = self._keys.get(access)
        if found is None:
            with _tolerated("the key of message ids could not be read"):
                found = self._keys[access] = await key_of_messages(store, self.agent_id)
        return found or self._own_key

    # Called by tools

    def caller(self, config: RunnableConfig, state: Any) -> tuple[Memory, ProviderContext] | None:
        """The memory, user, room and messages of a run that calls a tool with that state.

        None if the run names neither a user nor a thread. Raises `ConfigurationError` if there is no store.
        """
        runtime = runtime_of(config)
        store = self._store_of(runtime)
        if store is None:
            raise ConfigurationError(
                "the memory tools have no store. Give the EvaluationCycle one, or compile the graph with one."
            )
        place = place_of(config, runtime)
        seen = as_state(state)
        messages = latest(seen, self.messages_key, self.conversation_length)
        entity_id = self._user(place, newest_human(messages))
        if entity_id is None and place.thread_id is None:
            return None
        room_id = place.thread_id or _RUN + secrets.token_hex(16)
        scope = _scope(place)
        kept = self._keeps_ids.get(scope, True)
        return self._memory(store), self._provider_context(
            store,
            config,
            room_id=room_id,
            entity_id=entity_id or self._anonymous(room_id),
            messages=Shown(messages),
            known_ids=partial(self._known_ids, store, messages, seen, scope, kept),
        )

    # Quiet threads

    async def process(
        self,
        thread_id: str,
        *,
        user_id: str | None = None,
        messages: Sequence[Any] | None = None,
        ended_at: str | datetime | None = None,
    ) -> Processed:
        """Work through what is unread of a thread: what this process holds of it, or these messages, the last of which
        came at `ended_at`, by default now.

        Called on Arbiter's own event loop. Raises `ConfigurationError` if there is nothing of that thread.
        """
        told = None if messages is None else await self._told(thread_id, user_id, messages, ended_at)
        waiting = self._quiet.take(thread_id)
        held = told or waiting
        if held is None and not self._quiet.knows(thread_id):
            raise ConfigurationError(
                f"this process holds nothing of the thread {thread_id!r:.80}. Give its messages= and user_id=, "
                "or the graph= that has them."
            )
        if held is None:
            async with self._turn_of(thread_id):
                return Processed(thread_id=thread_id)
        # A caller that waits no longer leaves it running: nothing else would read the thread.
        return await asyncio.shield(self._quiet.start(held))

    async def _told(
        self,
        thread_id: str,
        user_id: str | None,
        messages: Sequence[Any],
        ended_at: str | datetime | None,
    ) -> Held:
        configurable = {"thread_id": thread_id, **({} if user_id is None else {"user_id": user_id})}
        read_at = self.clock()
        now = _earlier(read_at, ended_at)
        run = FinishedRun(
            history=RunHistory([stub("process", "process", now.timestamp())], {}),
            input={self.messages_key: [*messages]},
            returned=None,
            config={"configurable": configurable},
            saved=self._keeps_ids.get(thread_id, True),
        )
        turn = Turn(evaluators=(), run=run, ended_at=now, runtime=None, messages=[*messages], new_messages=[])
        ctx = await self._context_of(turn)
        ctx.read_at = read_at
        ctx.trimmed = self._of_their_users(self._quiet.trimmed(ctx, set), turn.place)
        ctx = ctx.whole()
        ctx.did_respond = ctx.quiet = True
        # The same messages are the same turn, whichever process counts them.
        ctx.run_key = f"{thread_id}:process:{ctx.messages[-1].id if ctx.messages else ''}"
        return Held(ctx=ctx, evaluators=[e for e in self._members if _when_quiet(e)])

    async def _work_through(self, held: Held) -> Processed:
        ctx = held.ctx
        results: dict[str, EvaluationResult] = {}
        errors: dict[str, str] = {}
        has_failed = False
        async with self._turn_of(ctx.room_id):
            with at_work(ctx.config, ctx.room_id):
                for evaluator in held.evaluators:
                    if evaluator not in self._members:  # it was removed meanwhile
                        continue
                    ctx.prior = dict(results)
                    if (refusal := self._refusal(evaluator, ctx)) is not None:
                        errors[evaluator.name] = refusal.detail
                        continue
                    status, detail = gated(await self._validate(evaluator, ctx))
                    if status is None:
                        done = await call(evaluator.handle, ctx, timeout=self.handler_timeout_s)
                        trace = settled(evaluator, done, results, errors)
                        # The cursors know of an answer that cannot be used, but not of a store that is slow or away.
                        has_failed |= done.late or (
                            trace.status == "failed"
                            and not isinstance(done.error, UnusableAnswerError | None)
                        )
                    elif status != "validate_false":
                        errors[evaluator.name] = detail or status
                        has_failed = True
            held.again_in = await self._next_try(held, has_failed)
            # What is done is not done again because another one has failed.
            held.evaluators = [e for e in held.evaluators if e.name not in results]
            self._quiet.again(held)
        for name, problem in errors.items():
            self._reports.about_quiet(f"evaluator {name!r}", problem)
        return Processed(thread_id=ctx.room_id, results=results, errors=errors)

    async def _next_try(self, held: Held, has_failed: bool) -> float | None:
        """The seconds until all evaluators of a quiet thread may ask their models again after a failure, or the store
        may be back, for which some of them have raised or waited too long; None if none of them waits."""
        if held.ctx.store is None:
            return None
        now = self.clock()
        try:
            cursors = [await held.ctx.cursors(evaluator.name).read() for evaluator in held.evaluators]
        except Exception as exc:
            self._reports.about_quiet("a look at the cursors", type(exc).__name__)
            cursors, has_failed = [], True
        waits = [cursor.next_try_at for cursor in cursors if cursor.next_try_at is not None]
        longest = max(((at - now).total_seconds() for at in waits if at > now), default=None)
        if longest is not None or not has_failed:
            return longest
        held.outages += 1
        return None if held.outages >= OUTAGES_PER_WINDOW else wait_after(held.outages).total_seconds()

    def _left(
        self, evaluators: Sequence[NodeEvaluator], ctx: EvalContext, done: Container[str]
    ) -> list[CognitiveEvaluator]:
        """The evaluators that may have left something unread in this turn."""
        return [
            evaluator
            for evaluator in evaluators
            if _when_quiet(evaluator) and evaluator.name not in done and self._refusal(evaluator, ctx) is None
        ]

    def _turn_of(self, room_id: str) -> asyncio.Lock:
        return self._turns.setdefault(room_id, asyncio.Lock())

    # The stages

    async def _run(self, evaluators: Sequence[NodeEvaluator], ctx: EvalContext) -> GroupOutcome:
        trace: dict[str, EvaluatorTrace] = {}
        passed = await self._gate(evaluators, ctx, trace)
        chosen, remarks = await self._select(passed, ctx, trace)
        results: dict[str, EvaluationResult] = {}
        errors: dict[str, str] = {}
        times: dict[str, tuple[int, int]] = {}
        for evaluator in chosen:
            seen = _seen_by(evaluator, ctx)
            seen.prior = dict(results)
            name, begun = evaluator.name, time.time_ns()
            if isinstance(evaluator, CognitiveEvaluator):
                done = await call(evaluator.handle, seen, timeout=self.handler_timeout_s)
            else:
                done = await call(evaluator.evaluate, ctx.history, timeout=self.handler_timeout_s)
            times[name] = begun, time.time_ns()
            trace[name] = settled(evaluator, done, results, errors)
            self._tell(name, ctx, done)
            if name not in errors:
                continue
            problem = errors[name]
            if done.error is None and not isinstance(evaluator, CognitiveEvaluator):
                # The text of the error quotes the returned values.
                problem = "evaluate returned no valid EvaluationResult; see item.evaluation_errors"
            if self.mode == "background":
                _log.warning("evaluator %r failed in the background: %s", name, problem)
            elif not (done.late or isinstance(done.error, UnusableAnswerError)):
                self._reports.failed([name], problem, done.error)
        ordered = [trace[evaluator.name] for evaluator in evaluators if evaluator.name in trace]
        others = [
            EvaluatorTrace(evaluator.name, "gate", "filtered", 0.0, OTHER_TARGETS)
            for evaluator in self._members
            if evaluator.mode != "off" and not evaluator.applies_to(ctx.node, ctx.instruction)
        ]
        return GroupOutcome(results=results, errors=errors, trace=(*remarks, *ordered, *others), times=times)

    def _tell(self, name: str, ctx: EvalContext, done: Called | None = None) -> None:
        """Warn, once for each cause, of models and stores that an evaluator lacked or could not reach."""
        for model, cause in ctx.unreachable:
            self._reports.unreachable(name, model, cause)
        ctx.unreachable.clear()
        for model in ctx.cut_off:
            self._reports.cut_off(name, model)
        ctx.cut_off.clear()
        if done is not None and isinstance(done.error, NotAvailableError):
            self._reports.missing("evaluator", [name], str(done.error).rstrip("."))
        if done is not None and done.late:
            self._reports.late(name, self.handler_timeout_s)
        match done:
            case (
                Called(error=UnusableAnswerError(skipped=True, problem=problem))
                | Called(value=HandlerOutcome(data={"window_skipped": True, "problem": str(problem)}))
            ):
                self._reports.passed_over(name, problem)
            case _:
                pass

    async def _gate(
        self, evaluators: Sequence[NodeEvaluator], ctx: EvalContext, trace: dict[str, EvaluatorTrace]
    ) -> list[NodeEvaluator]:
        """The evaluators that may run, in the order of registration. All `validate` methods run at once."""
        asked: list[NodeEvaluator] = []
        idle: dict[str, list[str]] = {}
        for evaluator in evaluators:
            if (refusal := self._refusal(evaluator, ctx)) is None:
                asked.append(evaluator)
            else:
                trace[evaluator.name] = refusal
                cause = _CAUSES.get(refusal.detail) or misplaced(ctx.state, self.messages_key)
                if cause is not None:
                    cause = NO_CYCLE if isinstance(self, _DefaultCycle) else cause
                    idle.setdefault(cause, []).append(evaluator.name)
        for cause, names in idle.items():
            self._reports.missing("evaluator", names, cause)
        answers = await asyncio.gather(*(self._validate(each, _seen_by(each, ctx)) for each in asked))
        passed: list[NodeEvaluator] = []
        for evaluator, answer in zip(asked, answers, strict=True):
            status, detail = gated(answer)
            if status is None:
                passed.append(evaluator)
            else:
                trace[evaluator.name] = EvaluatorTrace(evaluator.name, "gate", status, answer.ms, detail)
                self._tell_gate(evaluator.name, status, detail, answer)
        return passed

    def _tell_gate(self, name: str, status: str, detail: str, answer: Called) -> None:
        """Warn of a `validate` that gave no answer, so that its evaluator does not run."""
        if status == "validate_timeout":
            took = f"validate took longer than {self.validate_timeout_s} s"
            self._reports.failed([name], f"{took} (EvaluationCycle(validate_timeout_s=...))")
        elif status == "validate_error" and not isinstance(answer.error, UnusableAnswerError):
            self._reports.failed([name], f"{detail} in validate", answer.error)

    def _refusal(self, evaluator: NodeEvaluator, ctx: EvalContext) -> EvaluatorTrace | None:
        """The trace of an evaluator that is refused before `validate`; None for any other."""
        if not isinstance(evaluator, CognitiveEvaluator):
            return None
        refused = partial(EvaluatorTrace, evaluator.name, "gate", "filtered", 0.0)
        if evaluator.needs_messages and self.messages_key not in ctx.state:
            return refused(f"the state has no {self.messages_key!r}")
        if not (ctx.did_respond or evaluator.always_run):
            return EvaluatorTrace(evaluator.name, "gate", "no_response")
        if evaluator.needs_store and ctx.store is None:
            return refused(_NO_STORE)
        has_model = ctx.model is not None or getattr(evaluator, "model", None) is not None
        if evaluator.needs_model and not has_model and not evaluator.does_without_model(ctx):
            return refused(_NO_MODEL)
        return None

    async def _validate(self, evaluator: NodeEvaluator, ctx: EvalContext) -> Called:
        validate: Any = getattr(evaluator, "validate")  # noqa: B009 - judging evaluators need not have one
        if getattr(validate, "__func__", None) is CognitiveEvaluator.validate:
            return Called(True)
        return await call(validate, ctx, timeout=self.validate_timeout_s)

    async def _select(
        self, passed: Sequence[NodeEvaluator], ctx: EvalContext, trace: dict[str, EvaluatorTrace]
    ) -> tuple[list[NodeEvaluator], list[EvaluatorTrace]]:
        """The evaluators to run, in the order of registration, and remarks about the selector's answer."""
        # A plain command of the user is carried out whatever a selector thinks of it.
        candidates = [
            e for e in passed if isinstance(e, CognitiveEvaluator) and not e.does_without_model(ctx)
        ]
        if self.selector == "rule" or not candidates:
            return [*passed], []  # and what `validate` could not reach is reported with its evaluator
        found = await select(self.selector, ctx, candidates, on_error=self.on_selector_error, seed=self.seed)
        self._tell("selector", ctx)
        remarks = unknown_names(found.unknown, {*trace, *(e.name for e in passed)})
        if found.fallback:
            remarks.append(EvaluatorTrace("selector", "select", "selector_fallback", 0.0, found.detail))
        offered = {e.name for e in candidates}
        left = offered - set(found.chosen)
        trace.update({name: EvaluatorTrace(name, "select", "not_selected") for name in left})
        return [e for e in passed if e.name not in left], remarks

    # The context of a turn

    async def _context_of(self, turn: Turn) -> EvalContext:
        """Everything that handlers receive about a turn."""
        run, runtime, place = turn.run, turn.runtime, turn.place
        store = self._store_of(runtime)
        said, returned, added = await self._said(turn, store)
        named = await self._named(place, store, said)
        speakers = self._speakers(place, named)
        said = heard(said, speakers)
        # Without a checkpointer, ids are made of the texts: another user may have said the same before.
        own = newest_human(said) if turn.evaluators and not run.saved else None
        messages = self._of_their_users(said, place, None if own is None else own.id)
        room_id, entity_id = self._where(place, run.history, newest_human(messages))
        strangers = await self._strangers(messages, named, store, room_id, entity_id)
        messages = marked(messages, strangers) if strangers else messages
        message = newest_human(messages)
        config, item = run.config, run.history.item
        run_key = ":".join(
            (place.thread_id or "", place.checkpoint_id or secrets.token_hex(16), item.node, item.id)
        )
        return EvalContext(
            history=run.history,
            item=item,
            instruction=item.instruction,
            node=item.node,
            state=freeze(state_of(run.input, run.returned, self.messages_key, messages)),
            messages=messages,
            new_messages=[part for part in messages if part.id in added],
            message=message,
            did_respond=responded(returned) or has_structured_response(run.returned),
            room_id=room_id,
            entity_id=entity_id,
            agent_id=self.agent_id,
            entities=participants(
                window(messages, self.conversation_length),
                agent_id=self.agent_id,
                character=self.character,
                entity_id=entity_id,
                registered=named,
            ),
            is_private=self._private(config),
            store=store,
            model=self.evaluator_model,
            selector_model=self.selector_model,
            character=self.character,
            conversation_length=self.conversation_length,
            context=None if runtime is None else runtime.context,
            config=config or {},
            clock=self.clock,
            emit=silent if runtime is None else partial(_emit, runtime.stream_writer),
            run_key=run_key,
            checkpoint_id=place.checkpoint_id if run.saved else None,
            ended_at=turn.ended_at,
            budget=self._budget(turn, message),
            fact_rules=self.fact_rules,
            speakers=speakers,
            strangers=strangers,
        )

    async def _said(
        self, turn: Turn, store: MemoryStore | None
    ) -> tuple[list[BaseMessage], list[BaseMessage], Set[str | None]]:
        """The conversation after a node run, the messages that the node returned, and the ids of those that were not
        there before."""
        scope = _scope(turn.place) or self._room_of_run(_run_of(turn.run.history))
        found = (*turn.messages, *turn.new_messages)
        saved = turn.run.saved
        has_ids = saved and all(isinstance(part, BaseMessage) and part.id for part in found)
        ids = MessageIds(scope, kept=saved, key=b"" if has_ids else await self._key(store))
        before = as_messages(turn.messages, ids)
        if replaces(turn.run, self.messages_key):
            ids.replace()
        new = as_messages(turn.new_messages, ids)
        return merged(before, new), new, {part.id for part in new} - {part.id for part in before}

    def _of_their_users(
        self, messages: Sequence[BaseMessage], place: Place, own: str | None = None
    ) -> Sequence[BaseMessage]:
        """The messages; those that have come in turns of other users of the thread have the ids of these. `own` is
        the id of one that is of this turn for certain."""
        user = self._user(place, None)
        if place.thread_id is None or (user is None and place.thread_id not in self._users):
            return messages
        users = self._users[place.thread_id] = self._users.get(place.thread_id) or Recent(2 * _LAST)
        said = [part for part in messages[-_LAST:] if isinstance(part, HumanMessage) and not part.name]
        if user is None:
            # A run from an earlier checkpoint: LangGraph's config of it has no user. What its messages claim was not
            # checked.
            others = {id: users[id] for id in (str(part.id) for part in said) if id in users and id != own}
        else:
            unsigned = [str(part.id) for part in said if speaker_said(part) is None]
            if own in unsigned:
                users[own] = user
            others = {id: other for id in unsigned if (other := users.setdefault(id, user)) != user}
        return signed(messages, others) if others else messages

    async def _strangers(
        self,
        messages: Sequence[BaseMessage],
        named: Sequence[Entity],
        store: MemoryStore | None,
        room_id: str,
        entity_id: str,
    ) -> Mapping[str, str]:
        """The names of people without an id in these messages, with ids for this turn. Warns once."""
        if not any(isinstance(part, HumanMessage) and part.name for part in messages):
            return {}
        entities = (*named, Entity(id=self.agent_id, names=(self.character.name,), is_agent=True))
        among = partial(strangers_among, messages, entity_id=entity_id, entities=entities)
        found: Mapping[str, str] | None = None
        if store is not None:
            with _tolerated("names in this room could not be read"):
                given = await OwnNames(store, self.agent_id, entity_id).own()
                found = await among(rooms=RoomNames(store, self.agent_id, room_id), given=given)
        if found is None:
            found = await among(rooms=None)
        if found:
            self._reports.strangers()
        return found

    def _speakers(self, place: Place, named: Sequence[Entity]) -> frozenset[str] | None:
        """The speakers that messages may claim: the user and the registered entities. None, for any, if
        the program did not name the user."""
        if place.entity_id is None:
            return None
        return frozenset((place.entity_id, *(entity.id for entity in named))) - {self.agent_id}

    def _where(self, place: Place, history: History, message: BaseMessage | None) -> tuple[str, str]:
        room_id = place.thread_id or self._room_of_run(_run_of(history))
        return room_id, self._user(place, message) or self._anonymous(room_id)

    def _user(self, place: Place, message: BaseMessage | None) -> str | None:
        """The id of the user, if anybody has named one: never that of the agent, whose memory everybody shares."""
        found = place.entity_id or speaker_said(message)
        if found is None or found != self.agent_id:
            return found
        self._reports.namesake(found, _NAMESAKE + found)
        return _NAMESAKE + found

    def _room_of_run(self, run_id: str) -> str:
        """The id of the room of a run without a thread: each run is a room of its own."""
        return self._rooms.setdefault(run_id, _RUN + secrets.token_hex(16))

    def _anonymous(self, room_id: str) -> str:
        """The id of an unnamed user. It depends on the room, so two threads never share an unnamed user."""
        self._reports.anonymous(has_thread=not room_id.startswith(_RUN))
        return f"thread:{room_id}"

    def _budget(self, turn: Turn, message: BaseMessage | None) -> CallBudget:
        """The budget of the message that is being answered; nodes that answer the same message share it."""
        key = (_run_of(turn.run.history), None if message is None else message.id)
        return self._budgets.setdefault(key, CallBudget(self.max_llm_calls_per_turn))

    def _private(self, config: RunnableConfig | None) -> bool:
        return self.is_private(config or {}) if callable(self.is_private) else self.is_private

    async def _named(
        self, place: Place, store: MemoryStore | None, messages: Sequence[BaseMessage]
    ) -> tuple[Entity, ...]:
        """The entities that the program has named: those of the cycle, and of the store the user, the claimed
        speakers and the entities that the last messages mention.

        If the store cannot be read, its entities are left out and a warning is logged: evaluators that need
        the store report the failure themselves.
        """
        if store is None:
            return self.entities
        speakers = (speaker_said(message) for message in messages)
        ids = {id for id in (self.agent_id, place.entity_id, *speakers) if id is not None}
        last = window(messages, 2 * self.conversation_length)
        # The newest first: a very long conversation has more words than are looked up.
        texts = (part for each in map(safe, reversed(last)) for part in (each.name or "", text_of(each)))
        with _tolerated("registered entities could not be read"):
            found = await Entities(store, self.agent_id).meant(sorted(ids), texts)
            return (*self.entities, *found.values())
        return self.entities

    def _store_of(self, runtime: Any) -> MemoryStore | None:
        store = self.store or (None if runtime is None else runtime.store)
        return None if store is None else self._wrapped(store)

    def _wrapped(self, store: BaseStore | MemoryStore) -> MemoryStore:
        if isinstance(store, MemoryStore):
            return store
        given: Any = store
        if not isinstance(given, BaseStore):
            raise wrong("store", f"expected a LangGraph BaseStore, got {given!r:.80}. Write {OPENED}.")
        return MemoryStore(store, lock_provider=self._lock_provider)


class _DefaultCycle(EvaluationCycle):
    """The cycle of an `ArbiterOS` to which none was added."""


CognitiveEvaluator.group_type = _DefaultCycle


def _scope(place: Place) -> str:
    """The thread or the user to which ids of messages belong; "" if the run names neither."""
    return place.thread_id or place.entity_id or ""


def _earlier(now: datetime, ended_at: Any) -> datetime:
    """The earlier of both times, in the zone of `now`; `now` if the other is missing or not in ISO 8601, as with some
    checkpointers."""
    try:
        ended = time_of(ended_at)
    except (TypeError, ValueError):
        return now
    return min(now, time_in(ended, now.tzinfo), key=time_of)


def _run_of(history: History) -> str:
    return history.run_id if isinstance(history, CausalHistory) else ""


def _done(outcome: GroupOutcome) -> set[str]:
    """The evaluators that have read what was unread, or were not selected to."""
    skipped = {part.name for part in outcome.trace if part.status == "not_selected"}
    return skipped | {name for name, result in outcome.results.items() if result.metadata.get("llm_calls")}


def _seen_by(evaluator: NodeEvaluator, ctx: EvalContext) -> EvalContext:
    return ctx.whole() if _when_quiet(evaluator) else ctx


def _when_quiet(evaluator: NodeEvaluator) -> TypeGuard[CognitiveEvaluator]:
    return isinstance(evaluator, CognitiveEvaluator) and evaluator.when_quiet


@contextmanager
def _tolerated(problem: str) -> Generator[None]:
    """Log what fails inside, and go on. Its text is left out, because it may quote what somebody said."""
    try:
        yield
    except Exception as exc:
        _log.warning("%s: %s", problem, type(exc).__name__)


def _emit(write: Callable[[Any], None], chunk: Any) -> None:
    """Write to a stream, which may be closed when a late handler does so."""
    try:
        write(chunk)
    except Exception as exc:
        _log.debug("the stream is closed: %s", type(exc).__name__)
