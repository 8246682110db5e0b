"""Threads that have been quiet for a while: what was said in them is worked through, once.

A thread waits with the context of its last turn, without the history and the states of the run. If a model
gives no answer, the thread waits again until the cursors allow the next attempt. There is one timer for all
threads, on Arbiter's own event loop; everything but `drain` runs on that loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from operator import attrgetter
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

MOST_WAITING = 1_000
"""Threads that wait; beyond it the one that has been quiet for the longest time is given up."""
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
    due: float = 0.0
    seen: frozenset[str | None] = frozenset()
    """The ids of the last messages of the thread, also of turns that were none of these evaluators'."""
    again_in: float | None = None
    """Seconds after which a failed attempt may be repeated, if there was one."""
    outages: int = 0
    """Attempts at which the store could not be read."""

    _speakers: frozenset[str] | None = field(default=None, init=False, repr=False)

    def uses(self, thing: object) -> bool:
        store = self.ctx.store
        return store is not None and store.store is thing

    def hears(self, speaker: str) -> bool:
        if self._speakers is None:
            said = (part for part in originals(self.ctx.messages) if isinstance(part, HumanMessage))
            self._speakers = frozenset(map(self.ctx.speaker_of, said))
        return speaker in self._speakers


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
        """After a fork nothing waits here: the parent process has the threads, and the timer."""
        self._rooms: OrderedDict[str, Held] = OrderedDict()
        self._drains = 0
        """The calls of `drain` that are under way."""
        self._failed: list[Held] = []
        """The threads that will wait again after them."""
        self._known = Recent[str, None](_MOST_KNOWN)
        self._running: dict[asyncio.Task[Processed], Held] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        before = self._rooms.pop(room_id, None)
        earlier = [] if before is None else [e for e in before.evaluators if e.name not in done]
        is_theirs = bool(evaluators)
        evaluators = [*evaluators, *(e for e in earlier if e not in evaluators)]
        self._known[room_id] = None
        now = asyncio.get_running_loop().time()
        if evaluators:
            due = now + (math.inf if self.after_s is None else self.after_s)
            # Turns in the background may end in another order.
            is_late = before is not None and (not is_theirs or _is_earlier(ctx, before.ctx))
            kept = before.ctx if before is not None and is_late else _kept(ctx, self.messages_key)
            seen = frozenset(message.id for message in _last(ctx, _MESSAGES))
            if before is not None and not is_theirs and _is_new(before, given):
                seen = before.seen  # messages of another graph, or of a thread that was begun anew
            self._add(Held(ctx=kept, evaluators=evaluators, since=now, due=due, seen=seen))
        if self.after_s is not None and before is None:
            self._hasten(ctx, now, self.after_s / _SOONER)
        self._set_timer()

    def again(self, held: Held) -> None:
        """Let a thread wait for another attempt, unless a later turn of it waits already."""
        if held.again_in is None:
            return
        if self._drains:
            self._failed.append(held)
        elif held.ctx.room_id not in self._rooms:
            now = asyncio.get_running_loop().time()
            due = math.inf if self.after_s is None else now + held.again_in
            ctx = replace(held.ctx, prior={}, events=[], budget=CallBudget(held.ctx.budget.limit))
            self._add(replace(held, ctx=ctx, since=now, due=due, again_in=None))
            self._set_timer()

    def take(self, room_id: str) -> Held | None:
        held = self._rooms.pop(room_id, None)
        self._set_timer()
        return held

    async def ahead_of(self, speaker: str, is_free: Callable[[str], bool], timeout: float | None) -> None:
        """Work through the threads in which that speaker has spoken, as far as their rooms are free and the time
        allows: before something is forgotten, because what is unread would teach it again.

        One after another, and without a place of `_begin`: all may be taken by threads that wait for the caller.
        """
        loop = asyncio.get_running_loop()
        end = math.inf if timeout is None else loop.time() + timeout
        held_here = [*self._running.values(), *self._rooms.values()]
        for room_id in [held.ctx.room_id for held in held_here if held.hears(speaker)]:
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
        try:
            while self.pending:
                if self.after_s is not None:
                    for held in self._rooms.values():  # also of turns that have ended meanwhile
                        held.due = 0.0
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
                for held in failed:
                    self.again(held)

    def _hasten(self, ctx: EvalContext, now: float, quiet_s: float) -> None:
        """Let other quiet threads of the same user come first: the new one may speak of the same."""
        for held in self._rooms.values():
            if held.ctx.entity_id == ctx.entity_id and now - held.since >= quiet_s:
                held.due = now

    def _add(self, held: Held) -> None:
        self._rooms[held.ctx.room_id] = held
        if len(self._rooms) <= MOST_WAITING:
            return
        self._rooms.popitem(last=False)
        self._given_up += 1
        if self._given_up == 1 and self.after_s is not None:
            _log.warning(
                "more than %d quiet threads wait to be learned from; the oldest are read at their next turn. "
                "A faster evaluator_model or a shorter after_idle_s helps.",
                MOST_WAITING,
            )

    def _next(self) -> Held | None:
        return min(self._rooms.values(), key=attrgetter("due"), default=None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.pending:
            let_go(self)
        if self.after_s is None or (first := self._next()) is None:
            return
        hold(self)
        if len(self._running) < AT_ONCE:
            self._timer = asyncio.get_running_loop().call_at(first.due, self._begin)

    def _begin(self) -> None:
        """Begin to work on the threads whose time has come, a few at once."""
        loop = asyncio.get_running_loop()
        while (held := self._next()) is not None and len(self._running) < AT_ONCE:
            if held.due > loop.time():
                break
            self.start(held)
        self._set_timer()

    def start(self, held: Held) -> asyncio.Task[Processed]:
        """Work through a thread now."""
        self._rooms.pop(held.ctx.room_id, None)
        hold(self)
        task = asyncio.get_running_loop().create_task(self._work(held))
        self._running[task] = held
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Processed]) -> None:
        held = self._running.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning(
                "the quiet thread %r could not be worked through: %s", held.ctx.room_id, type(error).__name__
            )
        self._set_timer()


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
