"""Threads that have been quiet for a while: what was said in them is worked through, once.

A thread waits with the context of its last turn, without the history and the states of the run. If a model
gives no answer, the thread waits again until the cursors allow the next attempt. Everything but `drain` runs on
Arbiter's own event loop.

    a turn ends ─▶ waits (a timer for each thread) ─▶ ready ─▶ a few at once are worked through
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from arbiter._threads.deadlines import LOOP, within
from arbiter._threads.exits import hold, let_go
from arbiter._threads.forks import renew_in_child
from arbiter._values.recent import Recent
from arbiter._values.states import freeze
from arbiter.history._items import HistoryItem, RunHistory
from arbiter.history._record import Record
from arbiter.memory._context import EvalContext, silent
from arbiter.memory._conversation import Shown, ShownList, originals
from arbiter.memory._evaluators import CognitiveEvaluator
from arbiter.memory.answers import CallBudget
from arbiter.verdicts import EvaluationResult

_log = logging.getLogger("arbiter.memory")

MOST_WAITING = 100_000
"""Messages of the threads that wait; beyond it the thread that has been quiet for the longest time is given up."""
_MORE = 8
"""Messages that take about as much memory as the rest of a waiting thread."""
AT_ONCE = 4
_MOST_KNOWN = 10_000
_MESSAGES = 64
"""Messages of a waiting thread that are kept, or twice the conversation's length."""
_SOONER = 4
"""A new thread of the same user hastens one that has been quiet for this part of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The outcome for a thread: the results of the evaluators that ran, and the errors of those that
    failed, by their names. Both are empty if nothing was unread."""

    thread_id: str
    results: Mapping[str, EvaluationResult] = field(default_factory=dict[str, EvaluationResult])
    errors: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def evaluators(self) -> tuple[str, ...]:
        """The names of the evaluators that ran."""
        return (*self.results, *self.errors)


@dataclass(slots=True, kw_only=True)
class Held:
    """The last turn of a thread, and the evaluators that may have something to do about it."""

    ctx: EvalContext
    evaluators: Sequence[CognitiveEvaluator]
    since: float = 0.0
    seen: frozenset[str | None] = frozenset()
    """The ids of the last messages of the thread, also of turns that were none of these evaluators'."""
    again_in: float | None = None
    """Seconds after which a failed attempt may be repeated, if there was one."""
    outages: int = 0
    """Attempts at which the store could not be read."""

    timer: asyncio.TimerHandle | None = field(default=None, init=False, repr=False)
    _speakers: frozenset[str] | None = field(default=None, init=False, repr=False)

    @property
    def size(self) -> int:
        """The memory that it takes, in messages."""
        return len(self.ctx.messages) + _MORE

    def uses(self, thing: object) -> bool:
        store = self.ctx.store
        return store is not None and store.store is thing

    @property
    def speakers(self) -> frozenset[str]:
        """The user of the thread, and all others who have spoken in it."""
        if self._speakers is None:
            said = (part for part in originals(self.ctx.messages) if isinstance(part, HumanMessage))
            self._speakers = frozenset([self.ctx.entity_id, *map(self.ctx.speaker_of, said)])
        return self._speakers


Given = Callable[[], Collection[str | None] | None]
"""Returns the ids of the messages before a node run; None in a thread without checkpoints."""
Work = Callable[[Held], Coroutine[Any, Any, Processed]]


class Quiet:
    """The threads of a cycle that are quiet. With `after_s` None they are kept until somebody asks for them."""

    def __init__(self, after_s: float | None, work: Work, *, messages_key: str) -> None:
        self.after_s = after_s
        self.messages_key = messages_key
        self._work = work
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """After a fork nothing waits here: the parent process has the threads, and their timers."""
        self._rooms: dict[str, Held] = {}
        """The threads that wait, the one that has been quiet for the longest time first."""
        self._ready: dict[str, None] = {}
        """Those of them whose time has come, in this order."""
        self._heard: dict[str, dict[str, None]] = {}
        """By speaker, the threads that wait, in the same order."""
        self._size = 0
        self._drains = 0
        """The calls of `drain` that are under way."""
        self._failed: list[Held] = []
        """The threads that will wait again after them."""
        self._known = Recent[str, None](_MOST_KNOWN)
        self._running: dict[asyncio.Task[Processed], Held] = {}
        self._given_up = 0

    @property
    def pending(self) -> int:
        return len(self._running) + (0 if self.after_s is None else len(self._rooms))

    def knows(self, room_id: str) -> bool:
        """True if a turn of that thread has ended in this process, and was not too long ago."""
        return room_id in self._known

    def trimmed(self, ctx: EvalContext, given: Given) -> list[BaseMessage]:
        """The messages that the thread has lost since the turn before, oldest first: they may be unread.

        Only the beginning of a conversation is trimmed; a message that is removed from its middle or end is not
        wanted. If nothing is left of a thread, and nothing was `given`, it was begun anew.
        """
        before = self._rooms.get(ctx.room_id)
        if before is None or before.ctx.item.namespace != ctx.item.namespace:
            return []
        ids = {message.id for message in originals(ctx.messages)}
        kept = originals(before.ctx.messages)
        lost = next((place for place, message in enumerate(kept) if message.id in ids), None)
        return [] if lost is None and _is_new(before, given) else [*kept[:lost]]

    def heard(
        self,
        ctx: EvalContext,
        evaluators: Sequence[CognitiveEvaluator],
        done: Container[str],
        given: Given,
    ) -> None:
        """Note that a turn has ended. The thread waits for `evaluators`, and for those for which it has waited
        before and which are not `done`: this turn may have been none of theirs."""
        room_id = ctx.room_id
        before = self._pop(room_id)
        earlier = [] if before is None else [e for e in before.evaluators if e.name not in done]
        is_theirs = bool(evaluators)
        evaluators = [*evaluators, *(e for e in earlier if e not in evaluators)]
        self._known[room_id] = None
        now = asyncio.get_running_loop().time()
        if evaluators:
            # Turns in the background may end in another order.
            is_late = before is not None and (not is_theirs or _is_earlier(ctx, before.ctx))
            kept = before.ctx if before is not None and is_late else _kept(ctx, self.messages_key)
            seen = frozenset(message.id for message in _last(ctx, _MESSAGES))
            if before is not None and not is_theirs and _is_new(before, given):
                seen = before.seen  # messages of another graph, or of a thread that was begun anew
            self._add(Held(ctx=kept, evaluators=evaluators, since=now, seen=seen), self.after_s)
        if self.after_s is not None and before is None:
            self._hasten(ctx, now, self.after_s / _SOONER)
        self._begin()

    def again(self, held: Held) -> None:
        """Let a thread wait for another attempt, unless a later turn of it waits already."""
        if held.again_in is None:
            return
        if self._drains:
            self._failed.append(held)
        elif held.ctx.room_id not in self._rooms:
            now = asyncio.get_running_loop().time()
            ctx = replace(held.ctx, prior={}, events=[], budget=CallBudget(held.ctx.budget.limit))
            self._add(replace(held, ctx=ctx, since=now, again_in=None), held.again_in)
            self._begin()

    def take(self, room_id: str) -> Held | None:
        held = self._pop(room_id)
        self._begin()
        return held

    async def ahead_of(self, speaker: str, is_free: Callable[[str], bool], timeout: float | None) -> None:
        """Work through the threads in which that speaker has spoken, as far as their rooms are free and the time
        allows: before something is forgotten, because what is unread would teach it again.

        One after another, and without a place of `_begin`: all may be taken by threads that wait for the caller.
        """
        loop = asyncio.get_running_loop()
        end = math.inf if timeout is None else loop.time() + timeout
        running = [held.ctx.room_id for held in self._running.values() if speaker in held.speakers]
        for room_id in [*running, *self._heard.get(speaker, ())]:
            if loop.time() < end and is_free(room_id):
                # The thread may be worked on for somebody else.
                tasks = [task for task, held in self._running.items() if held.ctx.room_id == room_id]
                if not tasks and room_id in self._rooms:
                    tasks = [self.start(self._rooms[room_id])]
                if tasks:
                    await asyncio.wait(tasks, timeout=None if timeout is None else end - loop.time())

    def uses(self, thing: object) -> bool:
        """True if a thread waits for a store that is `thing`."""
        return bool(self._running) or any(held.uses(thing) for held in list(self._rooms.values()))

    def drain(self, timeout: float | None = None, *, closing: object = None) -> bool:
        """Work through all threads that wait. Returns False if `timeout` seconds were too short. With a store that
        is `closing`, threads that fail and need it do not wait again."""
        if not self.pending or LOOP.is_here:
            return not self.pending
        done: Future[bool] = LOOP.submit(self._drained(timeout, closing))
        try:
            return bool(within(None if timeout is None else timeout + 1, done))
        except TimeoutError:
            return False

    async def _drained(self, timeout: float | None, closing: object) -> bool:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        self._drains += 1
        if self.after_s is not None:
            self._ready |= dict.fromkeys(self._rooms)
        try:
            while self.pending:
                self._begin()
                left = None if end is None else end - loop.time()
                if left is not None and left <= 0:
                    return False
                await asyncio.wait(set(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            return True
        finally:
            if closing is not None:
                self._failed = [held for held in self._failed if not held.uses(closing)]
            self._drains -= 1
            if not self._drains:
                failed, self._failed = self._failed, []
                # Of several turns of a thread the last one waits.
                for held in reversed(failed):
                    self.again(held)

    def _hasten(self, ctx: EvalContext, now: float, quiet_s: float) -> None:
        """Let other quiet threads of the same user come first: the new one may speak of the same."""
        for room_id in self._heard.get(ctx.entity_id, ()):
            held = self._rooms[room_id]
            if now - held.since < quiet_s:
                break
            if held.ctx.entity_id == ctx.entity_id:
                self._ready[room_id] = None

    def _add(self, held: Held, wait_s: float | None) -> None:
        """Let a thread wait for so many seconds, or until somebody asks for it."""
        room_id = held.ctx.room_id
        self._rooms[room_id] = held
        self._size += held.size
        for speaker in held.speakers:
            self._heard.setdefault(speaker, {})[room_id] = None
        if self.after_s is not None and wait_s is not None:
            if self._drains:
                self._ready[room_id] = None
            else:
                # A timer keeps the context in which it is made, here that of a turn.
                loop = asyncio.get_running_loop()
                held.timer = loop.call_later(wait_s, self._due, room_id, context=Context())
        while self._size > MOST_WAITING and len(self._rooms) > 1:
            self._pop(next(iter(self._rooms)))
            self._given_up += 1
            if self._given_up == 1 and self.after_s is not None:
                _log.warning(
                    "%d quiet threads wait to be learned from, and no more are kept: the oldest are read at their "
                    "next turn. A faster evaluator_model or a shorter after_idle_s helps.",
                    len(self._rooms),
                )

    def _pop(self, room_id: str) -> Held | None:
        """Take a thread out of those that wait."""
        if (held := self._rooms.pop(room_id, None)) is None:
            return None
        self._size -= held.size
        self._ready.pop(room_id, None)
        if held.timer is not None:
            held.timer.cancel()
        for speaker in held.speakers:
            rooms = self._heard[speaker]
            del rooms[room_id]
            if not rooms:
                del self._heard[speaker]
        return held

    def _due(self, room_id: str) -> None:
        # The timer of a thread that `renew` forgot may still run.
        if room_id in self._rooms:
            self._ready[room_id] = None
            self._begin()

    def _begin(self) -> None:
        """Begin to work on the threads whose time has come, a few at once."""
        while self._ready and len(self._running) < AT_ONCE:
            self.start(self._rooms[next(iter(self._ready))])
        if self.pending:
            hold(self)
        else:
            let_go(self)

    def start(self, held: Held) -> asyncio.Task[Processed]:
        """Work through a thread now."""
        self._pop(held.ctx.room_id)
        hold(self)
        task = asyncio.get_running_loop().create_task(self._work(held))
        self._running[task] = held
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Processed]) -> None:
        held = self._running.pop(task, None)
        if held is None:
            # `renew` forgot it.
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning(
                "the quiet thread %r could not be worked through: %s", held.ctx.room_id, type(error).__name__
            )
        self._begin()


def _is_new(before: Held, given: Given) -> bool:
    """True if the thread had none of its messages any more when the node run began."""
    ids = given()
    return ids is not None and before.seen.isdisjoint(ids)


def _is_earlier(one: EvalContext, other: EvalContext) -> bool:
    """True if the other turn has the newest message of this one, and newer ones."""
    last = next((message.id for message in _last(one, 1)), None)
    return any(message.id == last for message in _last(other, len(other.messages))[:-1])


def _last(ctx: EvalContext, most: int) -> list[BaseMessage]:
    return ctx.messages.last(most) if isinstance(ctx.messages, Shown) else [*ctx.messages[-most:]]


def _kept(ctx: EvalContext, messages_key: str) -> EvalContext:
    """The context without what a waiting thread need not keep: earlier messages, the history, the run."""
    most = max(_MESSAGES, 2 * ctx.conversation_length) + 8
    messages = _last(ctx, most)
    new = {message.id for message in ctx.new_messages}
    record = stub(ctx.item.id, ctx.node, ctx.ended_at.timestamp(), ctx.item.namespace)
    config = ctx.config.get("configurable") or {}
    return replace(
        ctx,
        history=RunHistory([record], {}),
        item=HistoryItem(record),
        state=freeze({messages_key: ShownList(messages)}),
        messages=messages,
        new_messages=[message for message in messages if message.id in new],
        config={"configurable": {key: value for key, value in config.items() if not key.startswith("__")}},
        emit=silent,
        prior={},
        events=[],
        budget=CallBudget(ctx.budget.limit),
        quiet=True,
    )


def stub(id: str, node: str, at: float, namespace: str = "") -> Record:
    """A node run that has ended, without its states."""
    record = Record(id, node, None, 0, namespace, at)
    record.status = "completed"
    return record
