"""Judging: the one way on which a run asks its judges.

    question ─▶ recording? ─▶ cache? ─▶ limiter ─▶ judge ─▶ purse, recording, cache

Evaluators and scorers know none of this: `Judging` gives them other judges in place of their own.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from arbiter._lifecycle.evaluations import EvaluatorQueue
from arbiter._values.kinds import is_mapping
from arbiter._values.versions import hash_of
from arbiter.evaluation import NodeEvaluator
from arbiter.harness.cache import Answers
from arbiter.harness.identity import JudgeIdentity
from arbiter.harness.limits import Limiters, Limits, innermost, limited, provider_and_name
from arbiter.harness.recordings import Asked, Place, Recording
from arbiter.harness.usage import Usage
from arbiter.models import (
    ChatJudge,
    Judge,
    JudgeReply,
    JudgeRequest,
    judged_thread,
    judgement_of,
    reply_of,
)

S = TypeVar("S")
NOWHERE = Place()


class Judging:
    """The judges of one run.

    `recordings` replay or record what judges answer, `cache` keeps it between live runs, and `limits` bound how many
    questions are asked at once; `limiters` are those of a target that calls models of its own behind them, if it
    does. Each question is asked `votes` times (None: as often as its evaluator asks). `judges` has the judge of each
    row.
    """

    def __init__(
        self,
        *,
        recordings: Recording | None = None,
        cache: Answers | None = None,
        limits: Limits | None = None,
        votes: int | None = None,
        limiters: Limiters | None = None,
    ) -> None:
        self.recordings = recordings
        self.cache = cache
        self.usage = Usage()
        self.limiters = limiters or Limiters((limits or Limits()).judge_concurrency)
        self.votes = votes
        self.judges: dict[str, JudgeIdentity] = {}
        self.others: dict[str, JudgeIdentity] = {}
        """The judges of rows that the target's own rules ask, as in production."""
        self.kept: Callable[[Asked, JudgeReply], None] | None = None
        """Called with each answer that was paid for, such as to write it to the journal."""
        self.known: Mapping[tuple[str, str], Mapping[str, Any]] = {}
        """Judgements that an earlier session of the run has paid for, by `Asked.key` and case. Cases with the same
        answer are judged separately, as in a run that is not interrupted."""
        self._places: dict[str, Place] = {}
        self._counted: dict[EvaluatorQueue, NodeEvaluator] = {}
        """Copies of the target's evaluators whose judges are counted."""

    def evaluator(self, evaluator: NodeEvaluator) -> NodeEvaluator:
        """A copy of the evaluator that asks its judges on this way; the evaluator itself if it asks none."""
        found: NodeEvaluator = self._with_judges(evaluator.name, evaluator)
        return found

    def scorer(self, row: str, scorer: S) -> S:
        """A copy of the scorer of that row; the scorer itself if it has no method `with_judges`."""
        return self._with_judges(row, scorer) if callable(getattr(scorer, "with_judges", None)) else scorer

    def _with_judges(self, row: str, owner: Any) -> Any:
        parts: Mapping[str, str] = owner.version_parts() if hasattr(owner, "version_parts") else {}

        def wrap(judge: Judge) -> Judge:
            return self.judge(row, judge, parts)

        return owner.with_judges(wrap, self.votes)

    def judge(self, row: str, judge: Judge, parts: Mapping[str, str] | None = None) -> Judge:
        """The judge of a row, asked on this way. `parts` are those of the row's version."""
        settings = judge_settings(judge)
        self.judges[row] = _identity(settings)
        return _RowJudge(self, row, judge, settings, parts or {})

    def parts_of(self, evaluator: NodeEvaluator) -> Mapping[str, str]:
        """Hashes of what the scores of a node evaluator depend on beside its version: its judges, and their votes.
        Empty if it asks none."""
        asked = _asked_by(evaluator)
        if not asked:
            return {}
        return {
            f"judge of {evaluator.name}": hash_of(asked),
            f"number of votes of {evaluator.name}": str(self.votes or 1),
        }

    def details_of(self, evaluator: NodeEvaluator) -> dict[str, dict[str, str]]:
        """Short hashes of the parts of its version and of its judges, so that a message can name what changed in them.
        Each recorded answer has them."""
        row, asked = evaluator.name, _asked_by(evaluator)
        details = {
            f"row {row}": {f"{name} of {row}": part[:8] for name, part in evaluator.version_parts().items()}
        }
        if asked:
            details[f"judge of {row}"] = {
                f"{name} of the judge of {row}": hash_of([settings[name] for settings in asked])[:8]
                for name in asked[0]
            }
        return details

    def count(self, queues: Iterable[EvaluatorQueue]) -> None:
        """Count what the target's evaluators ask judges by themselves, as in production, not on this way."""
        for queue in queues:
            if queue.name not in self.judges and (asked := _asked_by(queue.evaluator)):
                self.others[queue.name] = _identity(asked[-1])
                self._counted[queue] = queue.evaluator.with_judges(lambda judge: _CountedJudge(self, judge))

    # Where a question belongs

    def begin(self, thread_id: str, place: Place) -> None:
        """Note that the case × repeat runs on that thread."""
        self._places[thread_id] = place
        for queue, counted in self._counted.items():
            queue.stand_ins[thread_id] = counted

    def end(self, thread_id: str) -> None:
        """Forget the thread of a case that is done."""
        self._places.pop(thread_id, None)
        for queue in self._counted:
            queue.stand_ins.pop(thread_id, None)

    def place(self) -> tuple[str, Place]:
        """The thread on whose behalf the caller asks, and its case."""
        thread_id = judged_thread.get() or ""
        return thread_id, self._places.get(thread_id, NOWHERE)

    # One question

    def found(self, asked: Asked, thread_id: str) -> JudgeReply | None:
        """The answer that needs no call. Raises `RecordingError` if only recordings may be used."""
        reply: JudgeReply | None = None
        if (judgement := self.known.get((asked.key, asked.place.case))) is not None:
            return reply_of(judgement)  # counted when the run was resumed
        if self.recordings is not None:
            reply = self.recordings.judgement(asked)
        if reply is None and self.cache is not None and (kept := self.cache.get(asked.key)) is not None:
            reply = reply_of(kept)
            if self.recordings is not None:
                reply = self.recordings.keep_judgement(asked, reply)
        if reply is not None:
            self.counted(asked.judge, reply, thread_id, replayed=True)
        return reply

    def keep(self, asked: Asked, reply: JudgeReply, thread_id: str) -> JudgeReply:
        """Count and keep an answer that was paid for. Returns the answer that counts."""
        self.counted(asked.judge, reply, thread_id)
        if self.kept is not None:
            self.kept(asked, reply)
        if self.recordings is not None and self.recordings.mode == "record":
            reply = self.recordings.keep_judgement(asked, reply)
        if self.cache is not None and reply.value is not None:
            self.cache.put(asked.key, judgement_of(asked.request, reply))
        return reply

    @contextmanager
    def buying(self, judge: Mapping[str, Any], thread_id: str) -> Generator[None]:
        """A call of a judge runs inside. If it fails or is cancelled it is counted; what it cost is unknown."""
        self.usage.begin("judge", thread_id)
        failed = True
        try:
            yield
            failed = False
        finally:
            self.usage.end("judge", thread_id)
            if failed:
                self.usage.add_failed("judge", str(judge["model"]), thread_id=thread_id)

    def counted(
        self, judge: Mapping[str, Any], reply: JudgeReply, thread_id: str, *, replayed: bool = False
    ) -> None:
        """Count an answer of the judge with these settings."""
        model = reply.model or str(judge["model"])
        self.usage.add_reply("judge", model, reply, thread_id=thread_id, replayed=replayed)


class _RowJudge:
    """The judge of one row, on the way of a run."""

    def __init__(
        self, judging: Judging, row: str, inner: Judge, settings: Mapping[str, Any], parts: Mapping[str, str]
    ) -> None:
        self._judging = judging
        self._row = row
        self.settings = settings
        self._parts = parts
        self._ask: Callable[[JudgeRequest], JudgeReply]
        self._aask: Callable[[JudgeRequest], Awaitable[JudgeReply]]
        if type(inner) is ChatJudge:
            # Each of its model calls has a place and retries of its own.
            limiting = ChatJudge(limited(inner.model, judging.limiters), temperature=None)
            self._ask, self._aask = limiting.judge, limiting.ajudge
        else:
            limiter = judging.limiters.of(inner)
            self._ask = lambda request: limiter.call(lambda: inner.judge(request))
            self._aask = lambda request: limiter.acall(lambda: inner.ajudge(request))

    def judge(self, request: JudgeRequest) -> JudgeReply:
        asked, thread_id, reply = self._asked(request)
        if reply is not None:
            return reply
        with self._judging.buying(asked.judge, thread_id):
            reply = self._ask(request)
        return self._judging.keep(asked, reply, thread_id)

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        asked, thread_id, reply = self._asked(request)
        if reply is not None:
            return reply
        with self._judging.buying(asked.judge, thread_id):
            reply = await self._aask(request)
        return self._judging.keep(asked, reply, thread_id)

    def _asked(self, request: JudgeRequest) -> tuple[Asked, str, JudgeReply | None]:
        thread_id, place = self._judging.place()
        asked = Asked(request=request, row=self._row, place=place, judge=self.settings, parts=self._parts)
        return asked, thread_id, self._judging.found(asked, thread_id)


class _CountedJudge:
    """The judge of one of the target's own rules. Its questions are counted, and nothing else changes."""

    def __init__(self, judging: Judging, inner: Judge) -> None:
        self._judging = judging
        self._inner = inner
        self.settings = judge_settings(inner)

    def judge(self, request: JudgeRequest) -> JudgeReply:
        thread_id = judged_thread.get() or ""
        with self._judging.buying(self.settings, thread_id):
            reply = self._inner.judge(request)
        self._judging.counted(self.settings, reply, thread_id)
        return reply

    async def ajudge(self, request: JudgeRequest) -> JudgeReply:
        thread_id = judged_thread.get() or ""
        with self._judging.buying(self.settings, thread_id):
            reply = await self._inner.ajudge(request)
        self._judging.counted(self.settings, reply, thread_id)
        return reply


def _asked_by(evaluator: NodeEvaluator) -> list[Mapping[str, Any]]:
    """The settings of the judges that an evaluator asks."""
    asked: list[Mapping[str, Any]] = []

    def noted(judge: Judge) -> Judge:
        asked.append(judge_settings(judge))
        return judge

    evaluator.with_judges(noted)
    return asked


def _identity(settings: Mapping[str, Any]) -> JudgeIdentity:
    return JudgeIdentity(model=settings["model"], temperature=settings["temperature"])


def judge_settings(judge: Judge) -> Mapping[str, Any]:
    """The model of a judge, its temperature, and a hash of its other arguments: its answers depend on them.

    A model named by a text is known by that text, so that a replay needs no package of its provider.
    """
    if isinstance(judge, _RowJudge):
        return judge.settings
    if isinstance(judge, ChatJudge) and judge.named is not None:
        return {"model": judge.named[0], "temperature": judge.named[1], "arguments": ""}
    model: Any = innermost(judge.model) if isinstance(judge, ChatJudge) else judge
    given: Any = getattr(model, "_identifying_params", None)
    arguments: Any = given if is_mapping(given) else {}
    provider, name = provider_and_name(model)
    temperature: Any = getattr(model, "temperature", None)
    bound: Any = getattr(judge.model, "kwargs", None) if isinstance(judge, ChatJudge) else None
    return {
        "model": f"{provider}:{name}" if provider and name else name or type(model).__name__,
        "temperature": temperature if isinstance(temperature, int | float) else None,
        "arguments": hash_of([_plain(arguments), bound or {}])[:16],
    }


_FAMILIES: Mapping[str, str] = {
    "gpt": r"gpt|\bo[1-9]\b",
    "claude": r"claude",
    "gemini": r"gemini|gemma",
    "llama": r"llama",
    "mistral": r"mistral|mixtral|ministral|magistral|codestral",
    "qwen": r"qwen|qwq",
    "deepseek": r"deepseek",
    "grok": r"grok",
    "command": r"\bcommand\b",
}


def family_of(model: str) -> str:
    """The family of a model by its name, such as "gpt"; "" for one that is not known."""
    return next((name for name, words in _FAMILIES.items() if re.search(words, model.lower())), "")


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are data. Others, such as clients, differ in each process."""
    return {
        name: value
        for name, value in arguments.items()
        if value is None or isinstance(value, bool | int | float | str | list | tuple | dict)
    }
