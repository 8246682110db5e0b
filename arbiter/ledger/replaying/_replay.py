"""Lets another constitution decide about recorded node runs, and counts what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, get_args

import orjson
from langchain_core.language_models import FakeListChatModel

from arbiter._constitution.kinds import takes_model
from arbiter._constitution.loading import (
    Constitution,
    Source,
    load_constitution,
    models_by_name,
    prefixes_of,
)
from arbiter._lifecycle.registry import shadow_of
from arbiter._values.states import UnreadableError
from arbiter._weaving.coverage import report_unused
from arbiter.errors import ConfigurationError
from arbiter.evaluators import TextSimilarityEvaluator
from arbiter.history._record import Described
from arbiter.ledger._exporting import RecordedThread, Records
from arbiter.ledger._found import found
from arbiter.ledger.replaying._report import (
    Outcome,
    ReplayDifference,
    ReplayReport,
    ReplaySummary,
    changes_of,
    outcome_of,
)
from arbiter.ledger.replaying._views import Notes
from arbiter.ledger.replaying._visits import NEEDS_A_MODEL, Candidate, Decided, ThreadVisit, visit_in_order


class _Absent(FakeListChatModel):
    """A model that was not given. A rule that asks it has no answer."""

    notes: Any

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.notes.add(NEEDS_A_MODEL)
        raise UnreadableError(NEEDS_A_MODEL)

    def __str__(self) -> str:
        return str(self.name)


class _Models(Mapping[str, Any]):
    """The given models by their names; any other is absent."""

    def __init__(self, given: Mapping[str, Any], notes: Notes) -> None:
        self._given = given
        self._notes = notes

    def __getitem__(self, name: str) -> Any:
        return (
            self._given[name] if name in self._given else _Absent(name=name, responses=[], notes=self._notes)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def replay(
    records: Records,
    source: Source,
    *,
    threads: Collection[str] | None = None,
    since: int | None = None,
    until: int | None = None,
    models: Mapping[str, Any] | None = None,
    allow: Iterable[str] = (),
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Let the constitution at `source` decide about the recorded node runs.

    `threads` are the ids or refs of those that count, by default all; `since` and `until` are microseconds. Raises
    `PackError` with the constitution's mistakes, and `ConfigurationError` if there is no such node run.
    """
    notes = Notes()
    given = models_by_name(models)
    prefixes = prefixes_of(allow)
    constitution = load_constitution(source, allow=prefixes, models=_Models(given, notes))
    report_unused([constitution], prefixes, given)
    text = Described.of(constitution.text)
    recorded = _Recorded(records, threads, since)
    enforced = [contract for contract in constitution.contracts if contract.enforced]
    shared = [each.name for each in enforced if getattr(each, "per", None) in ("process", "user")]
    candidate = Candidate(shadow_of(enforced), notes)
    results = _Results(since, until)
    # Rules with accounts that go across threads see all threads together, in the order of time.
    for threads_at_once in [[*recorded]] if shared else ([thread] for thread in recorded):
        visits = [_visit(thread, candidate, recorded, constitution) for thread in threads_at_once]
        visit_in_order(visits)
        for visit in visits:
            results.add(visit)
            if progress is not None:
                progress(results.node_runs)
    if not results.node_runs:
        raise ConfigurationError(_nothing(since, until, threads))
    applied = candidate.asked
    return results.report(
        source=", ".join(map(str, source)) if isinstance(source, list | tuple) else str(source),
        rules=text.digest,
        not_replayed={name: len(of) for name, of in sorted(candidate.not_replayed.items())},
        approximate=[name for name in shared if name in applied],
        idle=[each.name for each in enforced if each.name not in applied],
        models=bool(given),
    )


class _Recorded:
    """The threads that count, and the texts that their entries name."""

    def __init__(self, records: Records, threads: Collection[str] | None, since: int | None) -> None:
        self._records = records
        self._threads = threads
        self._since = since
        self.texts: dict[str, tuple[str, str]] = {}

    def __iter__(self) -> Iterator[RecordedThread]:
        for thread in self._records.threads(self._threads):
            if self._since is None or any(row.parsed()[0]["at"] >= self._since for row in thread.rows):
                yield thread

    def describe(self, digests: Collection[str]) -> None:
        """Read the texts with these digests."""
        new = [digest for digest in digests if digest not in self.texts]
        for text in self._records.texts(new) if new else ():
            self.texts[text.digest] = text.kind, text.body


def _visit(
    thread: RecordedThread, candidate: Candidate, recorded: _Recorded, constitution: Constitution
) -> ThreadVisit:
    visit = ThreadVisit(thread, candidate)
    bodies = [attempt.body for attempt in visit.pasts.attempts]
    named = {body[name] for body in bodies for name in ("rules", "graph") if name in body}
    recorded.describe(sorted(named))
    for digest in named:
        kind, text = recorded.texts.get(digest, ("", ""))
        if kind == "graph":
            candidate.graphs[digest] = text
        elif kind == "constitution" and digest not in candidate.taken:
            candidate.taken[digest] = _same_judges(text, constitution)
    return visit


def _same_judges(recorded: str, constitution: Constitution) -> frozenset[str]:
    """The evaluators that are declared in the same way in both constitutions, of those that ask a model or read
    earlier outputs: these are in the memory of the process that ran the nodes.
    """

    def declared(text: str) -> dict[str, dict[str, Any]]:
        entries: list[dict[str, Any]] = orjson.loads(text).get("evaluators", [])
        return {
            entry["name"]: {key: part for key, part in entry.items() if key not in ("mode", "description")}
            for entry in entries
        }

    before, now = declared(recorded), declared(constitution.text)
    return frozenset(
        evaluator.name
        for evaluator in constitution.evaluators
        if (takes_model(type(evaluator)) or isinstance(evaluator, TextSimilarityEvaluator))
        and before.get(evaluator.name) == now.get(evaluator.name)
    )


class _Results:
    """The decisions of the visits so far."""

    def __init__(self, since: int | None, until: int | None) -> None:
        self._since = since
        self._until = until
        self.threads = 0
        self.node_runs = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._unknown: Counter[str] = Counter()
        self._follow = 0
        self._differences: list[ReplayDifference] = []
        self._rules: set[str] = set()
        self._first = float("inf")
        self._last = 0.0

    def add(self, visit: ThreadVisit) -> None:
        counted = {attempt.task: attempt for attempt in visit.pasts.newest() if self._counts(attempt.body)}
        if not counted:
            return
        self.threads += 1
        self.node_runs += len(counted)
        for attempt in counted.values():
            self._first, self._last = min(self._first, attempt.ended), max(self._last, attempt.ended)
            if "rules" in attempt.body:
                self._rules.add(attempt.body["rules"])
        first: dict[str, Decided] = {}
        following: set[str] = set()
        for decided in sorted(visit.decided.values(), key=_when):
            attempt = decided.attempt
            differs = decided.next is not None and not decided.recorded.same_as(decided.next)
            before = first.get(attempt.run)
            follows = before is not None and (
                attempt is before.attempt or attempt.superstep is not before.attempt.superstep
            )
            if differs and before is None:
                first[attempt.run] = decided
            if attempt.task not in counted:
                continue
            if follows:
                following.add(attempt.task)
            self._count(visit, decided, follows)
        self._follow += len(following)

    def _counts(self, body: Mapping[str, Any]) -> bool:
        at = body["at"]
        return (self._since is None or at >= self._since) and (self._until is None or at <= self._until)

    def _count(self, visit: ThreadVisit, decided: Decided, follows: bool) -> None:
        if decided.next is None:
            self._outcomes["unknown"] += 1
            self._unknown[decided.unknown[0]] += 1
            return
        outcome = outcome_of(decided.recorded, decided.next)
        self._outcomes[outcome] += 1
        if outcome == "same":
            return
        record = decided.attempt.record
        self._differences.append(
            ReplayDifference(
                stage=decided.stage,
                item=record.id,
                node=record.node,
                instruction=decided.attempt.body.get("instruction"),
                step=record.step,
                thread_id=visit.thread_id,
                ref=visit.ref,
                enforced=decided.recorded,
                shadow=decided.next,
                run=decided.attempt.run,
                follows=follows,
                why=found(decided.next.reason or decided.recorded.reason, record.input),
            )
        )

    def report(self, **about: Any) -> ReplayReport:
        counts = self._outcomes
        summary = ReplaySummary(
            threads=self.threads,
            node_runs=self.node_runs,
            decisions=counts.total(),
            **{outcome: counts[outcome] for outcome in get_args(Outcome)},
            follow=self._follow,
        )
        return ReplayReport(
            recorded_rules=sorted(self._rules),
            since=self._first,
            until=self._last,
            summary=summary,
            differences=self._differences,
            changes=changes_of(self._differences),
            unknown=dict(sorted(self._unknown.items(), key=lambda pair: (-pair[1], pair[0]))),
            **about,
        )


def _when(decided: Decided) -> tuple[float, int, int]:
    attempt = decided.attempt
    if decided.stage == "check":
        return attempt.record.started, 0, attempt.number
    return attempt.ended, 1, attempt.number


def _nothing(since: int | None, until: int | None, threads: Collection[str] | None) -> str:
    def day(at: int | None, otherwise: str) -> str:
        return (
            otherwise if at is None else datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(" ", "seconds")
        )

    where = "" if threads is None else f" of {', '.join(map(repr, threads))}"
    if since is None and until is None:
        return f"no node runs{where} are recorded, so there is nothing to decide about."
    return f"no node runs{where} between {day(since, 'the beginning')} and {day(until, 'now')} are recorded."
