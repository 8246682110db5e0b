"""Answers of humans: a paused run goes on with one, in a thread of its own.

One answer at a time for a thread: while a run that was answered here goes on, a second answer to its thread is
late. Between processes the checkpointer decides which answer counts.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from langgraph.types import Command

from arbiter._weaving.govern import has_async_nodes
from arbiter.errors import ApprovalUsedError, PolicyViolationError, describe
from arbiter.history import HistoryItem
from arbiter.listening import HistoryListener
from arbiter.web.questions import Question, Questions, Stamp, core_of

if TYPE_CHECKING:
    from arbiter.ledger import Ledger
    from arbiter.web.context import OnAnswer

Outcome = Literal["running", "ended", "waits", "denied", "failed", "late", "passed on"]
LATE = "Somebody has answered, or the input has changed."
_AT_ONCE = 8
"""Runs that go on at once; others wait for one of them to end."""
_REMEMBERED = 20
_PATIENCE = 1.5
"""Seconds that a page waits for the end of a run, so that it can say how it ended."""
_COMMIT = 1.0
"""Seconds that an answer waits for the ledger; evaluations may take longer."""
_LONGEST = 500
_HANDED_OVER = 60.0
"""Seconds in which an application that took an answer over can resume the run, before it can be answered again."""


class LateAnswer(Exception):  # noqa: N818  it is no failure: the page says so
    """The question is not open any more."""

    def __init__(self) -> None:
        super().__init__(LATE)


@dataclass(slots=True, eq=False)
class Given:
    """An answer that was given here, and what became of it."""

    question: Question
    kind: str
    by: str
    at: datetime
    outcome: Outcome = "running"
    said: str = ""
    """The reason of a denial or failure, redacted."""
    done: threading.Event = field(default_factory=threading.Event)


_counted: ContextVar[list[str] | None] = ContextVar("counted", default=None)
"""The digests of the questions whose answers the run that goes on in this context has used."""


class _UsedAnswers(HistoryListener):
    """Notes the answers that node runs have used."""

    def ended(self, item: HistoryItem) -> None:
        counted = _counted.get()
        if counted is not None:
            counted += [answer.question.digest for answer in item.answers]


_USED_ANSWERS = _UsedAnswers()


class Answering:
    """Gives answers to open questions, by resuming their graphs or by `on_answer`."""

    def __init__(self, ledger: Ledger, questions: Questions, on_answer: OnAnswer | None = None) -> None:
        self._ledger = ledger
        self._questions = questions
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._passed_on: dict[tuple[str, Stamp], float] = {}
        self._workers = ThreadPoolExecutor(_AT_ONCE, "arbiter answer")
        self._given: deque[Given] = deque(maxlen=_REMEMBERED)
        for graph in questions.graphs.values():
            listeners = core_of(graph).settings.listeners
            if _USED_ANSWERS not in listeners:
                listeners.append(_USED_ANSWERS)

    def given(self) -> list[Given]:
        """The last answers that were given here, newest first."""
        return [*reversed(self._given)]

    def close(self) -> None:
        """Wait for the runs that go on."""
        self._workers.shutdown()

    def give(
        self,
        thread: Mapping[str, Any],
        stamp: Stamp,
        by: str,
        read: Callable[[Question], tuple[str, Any]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Given:
        """Answer the question with that stamp with what `read` makes of it: a kind, and the value to resume with.

        Returns when the run has ended, or goes on for a while. An async `on_answer` runs on `loop`. Raises
        `LateAnswer` if the question is not open any more.
        """
        ref = str(thread["ref"])
        with self._lock:
            if ref in self._busy:
                raise LateAnswer
            self._busy.add(ref)
        try:
            question = next((each for each in self._questions.of(thread) if each.stamp == stamp), None)
            passed_on = self._passed_on.get((ref, stamp), -_HANDED_OVER)
            if question is None or time.monotonic() - passed_on < _HANDED_OVER:
                raise LateAnswer
            kind, answer = read(question)
            given = Given(question, kind, by, datetime.now(UTC))
            self._given.append(given)
            self._workers.submit(self._go_on, given, answer, loop)
        except BaseException:
            self._busy.discard(ref)
            raise
        given.done.wait(_PATIENCE)
        if given.outcome == "late":
            raise LateAnswer
        return given

    def _go_on(self, given: Given, answer: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        try:
            given.outcome, given.said = self._outcome(given.question, answer, loop)
            self._ledger.flush(_COMMIT)  # so that the next page shows what became of the answer
        finally:
            self._busy.discard(given.question.ref)
            given.done.set()

    def _outcome(
        self, question: Question, answer: Any, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[Outcome, str]:
        """How the run went on with the answer, and why it was denied or failed."""
        counted: list[str] = []
        _counted.set(counted)
        try:
            if self._on_answer is None:
                output = _resumed(question, answer)
                if question.subject is not None and question.stamp.digest not in counted:
                    return "late", ""  # another process was first, after this one had looked
                return ("waits" if isinstance(output, dict) and "__interrupt__" in output else "ended"), ""
            found = self._on_answer(question.thread_id, question.interrupt, answer)
            if inspect.isawaitable(found):
                _waited_for(found, loop)
        except ApprovalUsedError:
            return "late", ""
        except PolicyViolationError as error:
            return "denied", self._shown(str(error))
        except BaseException as error:  # a user's node may raise anything
            return "failed", self._shown(describe(error))
        now = time.monotonic()
        recent = {name: at for name, at in self._passed_on.items() if now - at < _HANDED_OVER}
        self._passed_on = {**recent, (question.ref, question.stamp): now}
        return "passed on", ""

    def _shown(self, text: str) -> str:
        return str(self._ledger.shown(text[:_LONGEST]))


def _waited_for(found: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    async def wait() -> Any:
        return await found

    return asyncio.run(wait()) if loop is None else asyncio.run_coroutine_threadsafe(wait(), loop).result()


def _resumed(question: Question, answer: Any) -> Any:
    """The output of the run that goes on with the answer, as the execution that paused was configured."""
    graph = question.graph
    config: Any = {"configurable": {**question.settings, "thread_id": question.thread_id}}
    command: Any = Command(resume={question.interrupt: answer})
    if not has_async_nodes(graph):
        return graph.invoke(command, config)
    # An async checkpointer belongs to the loop that it was made in.
    return _waited_for(graph.ainvoke(command, config), getattr(graph.checkpointer, "loop", None))
