"""Threads that have been quiet for a while: what was said in them is worked through, once.

A thread waits with the context of its last turn, without the history and the states of the run. There is one
timer for all threads, on Arbiter's own event loop; everything but `drain` runs on that loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from arbiter._threads.deadlines import LOOP, within
from arbiter._threads.exits import hold, let_go
from arbiter._threads.forks import renew_in_child
from arbiter.history._items import HistoryItem, RunHistory
from arbiter.history._record import Record
from arbiter.memory._context import EvalContext
from arbiter.memory._evaluators import CognitiveEvaluator
from arbiter.verdicts import EvaluationResult

_log = logging.getLogger(__name__)

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
    """What was done about a thread: the results of the evaluators that ran, and the errors of those that
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


Work = Callable[[Held], Awaitable[Processed]]


class Quiet:
    """The waiting threads of a cycle. `after_s` None: none waits."""

    def __init__(self, after_s: float | None, work: Work) -> None:
        self.after_s = after_s
        self._work = work
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """After a fork nothing waits here: the parent process has the threads, and the timer."""
        self._rooms: OrderedDict[str, Held] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._running: dict[asyncio.Task[Processed], str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._given_up = 0

    @property
    def pending(self) -> int:
        """The number of threads that wait or are worked on."""
        return len(self._rooms) + len(self._running)

    def knows(self, room_id: str) -> bool:
        """True if a turn of that thread has ended in this process, and was not too long ago."""
        return room_id in self._known

    def heard(self, ctx: EvalContext, evaluators: Sequence[CognitiveEvaluator]) -> None:
        """Note that a turn has ended. The thread waits for `evaluators`, if there are any."""
        room_id = ctx.room_id
        is_new = self._rooms.pop(room_id, None) is None
        self._known[room_id] = None
        self._known.move_to_end(room_id)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        if self.after_s is None:
            return
        now = asyncio.get_running_loop().time()
        if is_new:
            self._hasten(ctx, now)
        if evaluators:
            held = Held(ctx=_kept(ctx), evaluators=evaluators, since=now, due=now + self.after_s)
            self._rooms[room_id] = held
            hold(self)
            self._give_up()
        self._set_timer()

    def take(self, room_id: str) -> Held | None:
        """The waiting thread, which then waits no longer."""
        return self._rooms.pop(room_id, None)

    def drain(self, timeout: float | None = None) -> bool:
        """Work through all threads that wait. Returns False if `timeout` seconds were too short."""
        if not self.pending or LOOP.is_here:
            return not self.pending
        done: Future[bool] = LOOP.submit(self._drained(timeout))
        try:
            return bool(within(None if timeout is None else timeout + 1, done))
        except TimeoutError:
            return False

    async def _drained(self, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        for held in self._rooms.values():
            held.due = 0.0
        while self.pending:
            self._begin()
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                return False
            await asyncio.wait(set(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _hasten(self, ctx: EvalContext, now: float) -> None:
        """Let other quiet threads of the same user come first: the new one may speak of the same."""
        assert self.after_s is not None
        for room_id, held in reversed(list(self._rooms.items())):
            if held.ctx.entity_id == ctx.entity_id and now - held.since >= self.after_s / _SOONER:
                held.due = now
                self._rooms.move_to_end(room_id, last=False)

    def _give_up(self) -> None:
        if len(self._rooms) <= MOST_WAITING:
            return
        self._rooms.popitem(last=False)
        self._given_up += 1
        if self._given_up == 1:
            _log.warning(
                "more than %d quiet threads wait to be learned from; the oldest are read at their next turn. "
                "A faster evaluator_model or a shorter after_idle_s helps.",
                MOST_WAITING,
            )

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.pending:
            let_go(self)
        if self._rooms and len(self._running) < AT_ONCE:
            due = next(iter(self._rooms.values())).due
            self._timer = asyncio.get_running_loop().call_at(due, self._begin)

    def _begin(self) -> None:
        """Begin to work on the threads whose time has come, a few at once."""
        loop = asyncio.get_running_loop()
        while self._rooms and len(self._running) < AT_ONCE:
            room_id, held = next(iter(self._rooms.items()))
            if held.due > loop.time():
                break
            del self._rooms[room_id]
            task = loop.create_task(self._worked(held))
            self._running[task] = room_id
            task.add_done_callback(self._ended)
        self._set_timer()

    async def _worked(self, held: Held) -> Processed:
        return await self._work(held)

    def _ended(self, task: asyncio.Task[Processed]) -> None:
        room_id = self._running.pop(task, "")
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("the quiet thread %r could not be worked through: %s", room_id, type(error).__name__)
        self._set_timer()


def _kept(ctx: EvalContext) -> EvalContext:
    """The context without what a waiting thread need not keep: earlier messages, the history, the run."""
    most = max(_MESSAGES, 2 * ctx.conversation_length) + 8
    messages = list(ctx.messages[-most:])
    record = stub(ctx.item.id, ctx.node, ctx.ended_at.timestamp())
    config = ctx.config.get("configurable") or {}
    return replace(
        ctx,
        history=RunHistory([record], {}),
        item=HistoryItem(record),
        state={},
        messages=messages,
        new_messages=[message for message in ctx.new_messages if message in messages],
        config={"configurable": {key: value for key, value in config.items() if not key.startswith("__")}},
        emit=_silent,
        prior={},
        events=[],
    )


def stub(id: str, node: str, at: float) -> Record:
    """A node run that has ended, without its states."""
    record = Record(id, node, None, 0, "", at)
    record.status = "completed"
    return record


def _silent(chunk: object) -> None:
    return None
