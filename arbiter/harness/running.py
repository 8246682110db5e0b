"""The decisions about a run: which case is next, what is done for it, and when the run ends.

`Session.attend` is one generator for each case × repeat. It yields calls to make and gets what they return, or
the exception that they raise; `LateError` for a call that took too long. It neither calls nor waits itself, so that
threads, event loops and other machines can drive it. See docs/design/harness.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from time import perf_counter
from typing import Any, Literal, Protocol, TypeAlias

from arbiter._values.contexts import during
from arbiter._values.copies import jsonable
from arbiter._values.kinds import is_mapping
from arbiter.errors import PolicyViolationError, describe
from arbiter.evaluation import NodeEvaluator
from arbiter.harness.cases import Case
from arbiter.harness.expectations import Expectations, ended_as_expected
from arbiter.harness.identity import of_row
from arbiter.harness.journal import EVALUATIONS, EXPECTATIONS, Bought, Kept, NodeRuns, answer_to_dict
from arbiter.harness.judging import Judging
from arbiter.harness.limits import Budget, Limits
from arbiter.harness.node_runs import node_runs_of, steering
from arbiter.harness.recordings import Place
from arbiter.harness.results import CUT, CaseResult, CaseRun
from arbiter.harness.scorers import NamedScorer
from arbiter.harness.scores import Score, failed, of_judge, scores_of
from arbiter.harness.tapes import Tape, judged
from arbiter.harness.targets import Answered, NotEvaluableError, Target
from arbiter.harness.trajectories import visits_of
from arbiter.harness.usage import Spent, UsageCallback, count_here, count_no_more, plain_purses
from arbiter.history._items import HistoryItem, RunHistory
from arbiter.models import judged_thread

Stop = Literal["interrupted", "stuck", "budget", "run_timeout"]
"""Why no further case starts."""


class Wire(Protocol):
    """Takes the facts of a run: a `Journal`, or a wire to the process that has one."""

    def answer(self, line: Mapping[str, Any], nodes: NodeRuns | None = None) -> None: ...
    def scores(self, case_id: str, repeat: int, by: str, scores: Sequence[Score]) -> None: ...
    def spent(
        self, case_id: str, repeat: int, purse: str, model: str, spent: Spent, running: int
    ) -> None: ...
    def case(self, result: CaseResult, last: tuple[str, Sequence[Score]] | None = None) -> None: ...


class LateError(TimeoutError):
    """A call took longer than it may."""


@dataclass(slots=True)
class Call:
    """A call to make. It may take `seconds`; if it is a coroutine, it is then cancelled and gets `grace` seconds
    to clean up. `is_async` says that it returns an awaitable; others may do so too.
    """

    run: Callable[[], Any]
    seconds: float | None
    is_async: bool = False
    grace: float = 0.0


Steps: TypeAlias = Generator[Call, Any, None]
Run: TypeAlias = Callable[[Case, str], Any]
"""The target as a worker calls it."""
GRACE = 5.0
"""The seconds that a cancelled target gets for its `finally`."""


class Session:
    """One execution of a suite on one target. Drivers call `next` and run what it returns."""

    def __init__(
        self,
        run_id: str,
        cases: Sequence[Case],
        target: Target,
        scorers: Sequence[NamedScorer],
        *,
        repeats: int,
        limits: Limits,
        judging: Judging,
        progress: Callable[[Session], None] | None = None,
        kept: Mapping[tuple[str, int], Kept] | None = None,
        tape: Tape | None = None,
        number: int = 1,
    ) -> None:
        self.run_id = run_id
        self.threads = run_id if number == 1 else f"{run_id}.{number}"
        """The beginning of the LangGraph threads of cases. A case that is run again, in a session of a higher `number`,
        does not find the state and the history that its first try left in a checkpointer."""
        self.cases = cases
        self.target = target
        self.limits = limits
        self.results: dict[int, CaseResult] = {}
        """By the place of the case × repeat in the order of the suite."""
        self.stopped: Stop | None = None
        self.reached = ""
        """The limit at which the budget stopped the run, and by how much it was passed."""
        self.left_behind = 0
        self.running = 0
        self.workers = 0
        self._scorers = scorers
        self._evaluators = target.evaluators
        self._sources = dict.fromkeys((each.name for each in target.evaluators), EVALUATIONS)
        self._sources |= {each.name: each.name for each in scorers}
        self.journal: Wire | None = None
        self.judging = judging
        self._has_budget = any(
            (limits.tokens is not None, limits.usd, limits.calls is not None, limits.seconds)
        )
        cut = {place for place, known in (kept or {}).items() if known.was_cut}
        self.kept: Mapping[tuple[str, int], Kept] = {
            place: known for place, known in (kept or {}).items() if place not in cut
        }
        """The results that an earlier session of the run has, by case × repeat."""
        self._tape = tape
        self._progress = progress
        self._expectations = Expectations()
        times = [repeats if case.repeats is None else case.repeats for case in cases]
        self.todo = [
            (case, repeat) for case, most in zip(cases, times, strict=True) for repeat in range(most)
        ]
        """All cases with their repeats, in the order of the suite."""
        for at, (case, repeat) in enumerate(self.todo):
            known = self.kept.get((case.id, repeat))
            if known is not None and (result := known.result()) is not None:
                self.results[at] = result
                self.judging.usage.restore(self.thread_id(case, repeat), result.usage)
        left = [at for at, _ in enumerate(self.todo) if at not in self.results]
        # A case that was cut short comes after the others: it may take all the time of the run again.
        left.sort(key=lambda at: (self.todo[at][0].id, self.todo[at][1]) in cut)
        self._next: Iterator[int] = iter(left)
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Start the clocks of the run's limits."""
        self._begun = perf_counter()
        self._budget = Budget(self.limits, self.judging.usage)

    @property
    def total(self) -> int:
        """The number of cases × repeats."""
        return len(self.todo)

    def write_to(self, wire: Wire) -> None:
        """Send the facts of the run there, and what it spends."""
        self.journal = wire
        begins = f"{self.threads}:"  # of the calls of this task, which may go on while the next one runs

        def spent(thread_id: str, purse: str, model: str, amount: Spent, running: int) -> None:
            case_id, _, repeat = thread_id.removeprefix(begins).rpartition(":")
            wire.spent(case_id, int(repeat), purse, model, amount, running)

        self.judging.usage.kept = spent

    def recount(self, bought: Mapping[tuple[str, int], Bought]) -> None:
        """Count what earlier sessions bought for the cases that they did not finish."""
        for at, (case, repeat) in enumerate(self.todo):
            if at not in self.results and (found := bought.get((case.id, repeat))) is not None:
                # Apart from what the case uses now, which its scorers may see.
                self.judging.usage.restore(_earlier(self.thread_id(case, repeat)), plain_purses(found.spent))

    def stop(self, reason: Stop) -> None:
        """Start no further case. The first reason counts."""
        self.stopped = self.stopped or reason

    def leave_behind(self) -> None:
        """Note that a sync call was late and goes on. When as many are left behind as there are workers, the run ends;
        so it does when its own time is over, which makes all running calls late at once."""
        self.left_behind += 1
        if self.time_left == 0:
            self.stop("run_timeout")
        elif self.left_behind >= self.workers:
            self.stop("stuck")

    @property
    def elapsed(self) -> float:
        """The seconds since the run began."""
        return perf_counter() - self._begun

    @property
    def time_left(self) -> float | None:
        """The seconds until the run as a whole times out."""
        if self.limits.run_timeout is None:
            return None
        return max(self.limits.run_timeout - self.elapsed, 0.0)

    def next(self, run: Run) -> Steps | None:
        """The work for the next case × repeat, by a worker that calls the target by `run`.

        None if nothing is left, or if the run was stopped.
        """
        at = self.claim()
        return None if at is None else self.attend(at, run)

    def claim(self) -> int | None:
        """The place of the next case × repeat in `todo`; None if nothing is left, or if the run was stopped."""
        with self._lock:
            at = next(self._next, None)
            self._look_at_limits(is_over=at is None)
            if at is None or self.stopped is not None:
                return None
            self.running += 1
            return at

    def take(self, places: Iterable[int], kept: Mapping[tuple[str, int], Kept]) -> None:
        """Do these places of `todo` next and no others, and go on with what is kept of them. For a process that
        gets its cases from another one.
        """
        self.results.clear()
        self.stopped, self.left_behind = None, 0
        self.kept = kept
        self._next = iter(places)

    def _look_at_limits(self, *, is_over: bool) -> None:
        if self._has_budget and self.stopped is None:
            # A limit that the last case reaches keeps no other from starting.
            reached = self._budget.unenforceable if is_over else self._budget.exhausted
            if reached:
                self.reached = reached
                self.stop("budget")
        if self.time_left == 0 and not is_over:  # a running case that it cuts short stops the run, too
            self.stop("run_timeout")

    def attend(self, at: int, run: Run) -> Steps:
        """Run and judge one case × repeat."""
        case, repeat = self.todo[at]
        kept = self.kept.get((case.id, repeat))
        is_new = kept is None
        if kept is None and self._tape is not None:
            kept = self._tape.answer(case, repeat)
        thread_id = self.thread_id(case, repeat)
        self.judging.begin(thread_id, Place(case.id, repeat))
        self.target.begin(thread_id)
        try:
            done = None if kept is None else self._answered(case, repeat, kept, thread_id, replayed=is_new)
            if done is None:
                is_new, kept = True, None
                done = yield from self._answer(case, repeat, run, thread_id)
            if kept is not None and kept.answer is not None and not is_new:  # it ran in an earlier session
                answer = {**kept.answer}
            else:
                answer = answer_to_dict(done, jsonable(done.output), thread_id)
                if self.journal is not None:
                    history = done.history
                    nodes = None if history is None else node_runs_of(history, done.visits)
                    self.journal.answer(answer, nodes)
            if done.status != "completed" and done.history is not None and self._evaluators:
                # Its nodes were judged as they ran. That decides nothing, and it is part of what the case cost.
                yield from self._evaluations(done.history)
            asked = done
            if kept is None and self._tape is not None and self._tape.keeps(answer):
                # Judges are asked about the output that a replay has: any other would be another question.
                asked = replace(done, output=answer.get("output"))
            scores: dict[str, tuple[Score, ...]] = {}
            last: tuple[str, Sequence[Score]] | None = None  # is written together with the line after it
            for by, judging in self._judging(done, asked, thread_id):
                if last is not None and self.journal is not None:
                    self.journal.scores(case.id, repeat, *last)
                known = None if kept is None else kept.scores.get(by)
                is_known = known is not None
                if known is None:
                    known = tuple(self._own(score, by) for score in (yield from judging))
                last = (by, known) if is_new or not is_known else None
                if by == EVALUATIONS and kept is None and self._tape is not None:
                    judged(answer, known)
                scores[by] = known
            if kept is None and self._tape is not None:
                self._tape.keep(case, repeat, answer)
            self.judging.usage.give_up(thread_id)  # the calls behind a timeout, which may go on
            ended = {"as_expected": ended_as_expected(done), "usage": self.used(thread_id)}
            result = Kept(answer, scores, ended).result()
            assert result is not None
            self.finish(at, result, last)
        finally:
            self.target.end(thread_id)
            self.judging.end(thread_id)
            self.leave()

    def _own(self, score: Score, by: str) -> Score:
        """A score of a scorer; an error if it has the row of another one, whose mean would be that of both. A part that
        is not applicable has no mean."""
        if self._sources.get(score.name, by) == by or score.outcome == "not_applicable":
            return score
        said = f"returned {score.name!r}, which is the row of another one; rename one of them"
        return failed(by or score.name.rpartition(".")[0], said)

    def leave(self) -> None:
        """Note that a claimed case × repeat is no longer running."""
        with self._lock:
            self.running -= 1

    def _answered(
        self, case: Case, repeat: int, kept: Kept, thread_id: str, *, replayed: bool
    ) -> CaseRun | None:
        """The run that a journal has; None if the target must be called again.

        That is so if the journal cannot have the output as it was, and if the node evaluators were not done, because
        their history was in memory.
        """
        answer = kept.answer
        if answer is None or not (answer.get("exact", True) or self._tape is not None):
            return None
        if answer["status"] == "completed" and self._evaluators and EVALUATIONS not in kept.scores:
            return None
        if replayed:
            self._count(answer.get("usage", {}), thread_id)
            self._count_judged(kept.scores.get(EVALUATIONS, ()), thread_id)
        return CaseRun(
            case=case,
            repeat=repeat,
            output=answer.get("output"),
            visits=answer.get("trajectory", ()),
            usage=answer.get("usage", {}),
            usd=answer.get("usd", 0.0),
            duration=answer.get("seconds", 0.0),
            status=answer["status"],
            error=answer.get("error"),
            error_types=tuple(answer.get("error_types", ())),
            policies=tuple(answer.get("policies", ())),
        )

    def _count(self, models: Mapping[str, Any], thread_id: str) -> None:
        """Count what a recording cost once."""
        for model, spent in models.items():
            calls = int(spent.get("calls", 0))
            self.judging.usage.add("target", model, spent, calls=calls, thread_id=thread_id, replayed=True)

    def _count_judged(self, scores: Iterable[Score], thread_id: str) -> None:
        """Count what the judges of node runs cost when they were recorded."""
        usage = self.judging.usage
        for score in scores:
            if score.calls:
                usage.add(
                    "judge", score.model, score.usage, calls=score.calls, thread_id=thread_id, replayed=True
                )

    def _judging(
        self, done: CaseRun, asked: CaseRun, thread_id: str
    ) -> Iterator[tuple[str, Generator[Call, Any, Sequence[Score]]]]:
        """The judgements of a run, each with the name under which the journal keeps its scores. Scorers that ask
        judges read `asked`."""
        if done.status == "completed" and self._evaluators:
            yield EVALUATIONS, self._evaluations(done.history)
        if done.case.assertions:
            yield EXPECTATIONS, self._expected(done)
        if done.status == "completed":
            for scorer in self._scorers:
                run = asked if scorer.name in self.judging.judges else done
                yield scorer.name, self._judge(scorer, run, thread_id)

    def _expected(self, done: CaseRun) -> Generator[Call, Any, Sequence[Score]]:
        yield from ()
        return self._expectations.scores(done)

    def _answer(self, case: Case, repeat: int, run: Run, thread_id: str) -> Generator[Call, Any, CaseRun]:
        ended: dict[str, Any] = {}
        begun = perf_counter()
        ends = (self.limits.case_timeout, self.time_left)
        seconds = min((end for end in ends if end is not None), default=None)
        try:
            answered: Answered = yield Call(
                lambda: self._called(run, case, thread_id), seconds, self.target.is_async, grace=GRACE
            )
        except LateError as late:
            is_cut = seconds != self.limits.case_timeout
            ended |= {"status": "timeout", "error": CUT if is_cut else str(late)}
        except PolicyViolationError as denial:
            ended |= {"status": "denied", "policies": (denial.policy,)}
        except NotEvaluableError as nothing:
            ended |= {"status": "not_evaluable", "error": str(nothing)}
        except GeneratorExit:
            raise
        except BaseException as error:
            ended |= {"status": "failed", "error": describe(error)[:2_000], "error_types": _types(error)}
        else:
            ended["output"] = answered.output
            if answered.waiting:
                ended |= {"status": "waits", "policies": _policies(answered.waiting)}
        duration = perf_counter() - begun
        if (history := self.target.history(thread_id)) is not None:
            ended |= {"history": history, "visits": visits_of(history)}
        return CaseRun(case=case, repeat=repeat, duration=duration, **ended, **self._spent(thread_id))

    def _called(self, run: Run, case: Case, thread_id: str) -> Any:
        """Call the target, and count the model calls in it."""
        callback = self.judging.usage.callback(thread_id)
        if self.target.is_async:
            return _acounted(lambda: run(case, thread_id), callback)
        tokens = count_here(callback)
        try:
            answer = run(case, thread_id)
        finally:
            count_no_more(tokens)
        return answer if isinstance(answer, Answered) else _acounted(lambda: answer, callback)

    def _spent(self, thread_id: str) -> dict[str, Any]:
        """The usage of the target, as fields of a `CaseRun`."""
        models = self.judging.usage.of(thread_id).get("target")
        if not models:
            return {}
        dollars = [None if spent.unknown_calls else spent.usd for spent in models.values()]
        known = [amount for amount in dollars if amount is not None]
        return {
            "usage": {model: spent.to_dict() for model, spent in models.items()},
            "usd": fsum(known) if len(known) == len(dollars) else None,
        }

    def _evaluations(self, history: RunHistory | None) -> Generator[Call, Any, list[Score]]:
        """Wait for the node evaluators of a case, and read their results."""
        # Also those that the graph has registered since.
        evaluators = {evaluator.name: evaluator for evaluator in self.target.evaluators}
        items = [] if history is None else list(history.items())
        try:
            # Reading an evaluation that no worker has begun runs it here, so each of them has its own deadline;
            # the time for all of them is that of the slowest node run times the node runs.
            seconds = self.limits.score_timeout
            found: list[Score] = yield Call(
                lambda: [score for item in items for score in evaluations_of(item, evaluators)],
                None if seconds is None else seconds * max(len(items), 1),
            )
        except LateError as late:
            return [failed(name, late) for name in evaluators]
        return found

    def _judge(
        self, scorer: NamedScorer, done: CaseRun, thread_id: str
    ) -> Generator[Call, Any, Sequence[Score]]:
        begun = perf_counter()
        try:
            answer = yield Call(
                lambda: _asked(scorer, done.with_own_output(), thread_id),
                self.limits.score_timeout,
                scorer.is_async,
            )
        except GeneratorExit:
            raise
        except BaseException as error:
            return [replace(failed(scorer.name, error, scale=scorer.scale), duration=perf_counter() - begun)]
        return scores_of(scorer.name, answer, scale=scorer.scale, duration=perf_counter() - begun)

    def used(self, thread_id: str) -> Mapping[str, Mapping[str, Any]]:
        """The usage of a case in all sessions of the run, by purse and model, as JSON-able data."""
        return plain_purses(self.judging.usage.of(thread_id, _earlier(thread_id)))

    def unfinished(self) -> list[Mapping[str, Any]]:
        """The usage of the cases that are not done, as `used` returns it."""
        left = (place for at, place in enumerate(self.todo) if at not in self.results)
        return [found for case, repeat in left if (found := self.used(self.thread_id(case, repeat)))]

    def thread_id(self, case: Case, repeat: int) -> str:
        return f"{self.threads}:{case.id}:{repeat}"

    def finish(self, at: int, result: CaseResult, last: tuple[str, Sequence[Score]] | None = None) -> None:
        """Keep a result, and write that its case is done, after the scores of its last source."""
        self.results[at] = result
        if result.error == CUT:
            self.stop("run_timeout")
        if self.journal is not None:
            self.journal.case(result, last)
        if self._progress is not None:
            self._progress(self)

    def finished(self) -> list[CaseResult]:
        """All results in the order of the suite.

        After a stop because of a limit, cases that did not start have the status `skipped_budget`.
        """
        if self.stopped in ("budget", "run_timeout", "stuck"):
            for at, (case, repeat) in enumerate(self.todo):
                if at not in self.results:
                    self.results[at] = CaseResult(
                        case_id=case.id, repeat=repeat, status="skipped_budget", as_expected=False
                    )
        return [self.results[at] for at in sorted(self.results)]


def _earlier(thread_id: str) -> str:
    """The name under which a case has what earlier sessions spent on it."""
    return f"{thread_id}:earlier"


def evaluations_of(item: HistoryItem, evaluators: Mapping[str, NodeEvaluator]) -> Iterator[Score]:
    """The evaluations of a node run as scores, on the scales of the evaluators. Waits for them."""
    place: dict[str, Any] = {"node": item.node, "step": item.step, "item_id": item.id}
    results = dict(item.evaluation_results)
    read, gated = steering(item.record) if results else ((), ())
    for name, result in results.items():
        # Without one, it is of a suite that runs beside this one on the same `ArbiterOS`.
        if (evaluator := of_row(evaluators, name)) is None:
            continue
        value = evaluator.value_of(result)
        score = Score(
            name,
            value,
            passed=result.passed,
            reason=result.feedback,
            scale=evaluator.scale,
            used_for_control=name in read or result.metadata.get("dimension") in gated,
            **of_judge(result.metadata),
            **place,
        )
        if result.outcome != "scored":  # such as the 9 of a dimension that no judge was asked about
            yield replace(score, value=None, passed=None, outcome=result.outcome, raw=value)
            continue
        yield scores_of(name, score)[0]
    if errors := item.evaluation_errors:
        outcomes = item.evaluation_outcomes
        for name, reason in errors.items():
            if of_row(evaluators, name) is not None:
                yield replace(failed(name, reason), outcome=outcomes.get(name, "error"), **place)


async def _acounted(begin: Callable[[], Any], callback: UsageCallback) -> Any:
    count_here(callback)  # the task has a context of its own
    return await begin()


def _asked(scorer: NamedScorer, done: CaseRun, thread_id: str) -> Any:
    """Call a scorer. Its judges are asked on behalf of the case."""
    if scorer.is_async:
        return _aasked(scorer, done, thread_id)
    with during(judged_thread, thread_id):
        return scorer.call(done)


async def _aasked(scorer: NamedScorer, done: CaseRun, thread_id: str) -> Any:
    judged_thread.set(thread_id)  # the task has a context of its own
    return await scorer.call(done)


def _types(error: BaseException) -> tuple[str, ...]:
    return tuple(
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        for cls in type(error).__mro__[:-1]
    )


def _policies(questions: Sequence[Any]) -> tuple[str, ...]:
    """The checkers that asked these questions."""
    return tuple(str(asked["policy"]) for asked in questions if is_mapping(asked) and "policy" in asked)
