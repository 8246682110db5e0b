"""Entries: the events that a ledger keeps, and the bodies, columns and counts that are made of them.

    Event (what a listener saw) ─▶ body (canonical, chained) ─▶ columns (what is searched and shown)

Columns and counts are an index of the bodies: the writer derives them from a body, and `verify` derives them
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from arbiter.ledger._chain import key_of

Kind = Literal["item", "judged", "started", "answer", "execution", "recovered", "gap", "erasure", "pruned"]
VERSION = 1
HOUR = 3_600_000_000

COLUMNS = (
    "execution",
    "run",
    "task",
    "attempt",
    "node",
    "instruction",
    "namespace",
    "step",
    "status",
    "at",
    "took",
    "verdict",
    "policy",
    "target",
    "trace",
    "span",
)
"""Columns of an entry that its body has under the same name, or in its decision."""


@dataclass(slots=True, kw_only=True)
class Score:
    """The result of one evaluator for one node run."""

    evaluator: str
    score: float
    passed: bool | None
    read: bool


@dataclass(slots=True, kw_only=True)
class Event:
    """Something that ended or was decided in a thread. Times are whole microseconds.

    `fields` is the entry's part of the body: no floats, and no text that a model, a user or a state can put
    there. `contents` is erasable. A thread without an id is named by its run.
    """

    kind: Kind
    at: int
    thread_id: str | None
    run: str
    execution: str = ""
    task: str | None = None
    attempt: int | None = None
    subject: str | None = None
    graph: str | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    contents: dict[str, Any] | None = None
    scores: Sequence[Score] = ()
    size: int = 0
    """About the number of bytes that the contents take while they wait."""
    complete: Callable[[Event], None] | None = None
    """Called by the writer before it writes the event: adds what was not known yet when it was queued."""
    is_open: Callable[[], bool] | None = None
    """True while more will be known soon: the writer then lets the event wait a little."""
    queued: float = 0.0
    """When it was queued, by `time.monotonic`."""

    @property
    def key(self) -> str:
        judged = [score.evaluator for score in self.scores] if self.kind == "judged" else []
        extra = str(self.fields.get("question", "")) if self.kind == "answer" else ""
        return key_of(
            self.run, self.execution, self.task or "", self.attempt or 0, self.kind, extra, evaluators=judged
        )

    @property
    def place(self) -> str:
        """The thread's name in this process: its id, or the run that has none."""
        return f"run {self.run}" if self.thread_id is None else f"thread {self.thread_id}"


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def body_of(event: Event, *, ledger: str, ref: str, seq: int, content: str | None) -> dict[str, Any]:
    """The body of the entry that this event becomes."""
    body: dict[str, Any] = {
        "v": VERSION,
        "ledger": ledger,
        "thread": ref,
        "seq": seq,
        "key": event.key,
        "at": event.at,
        "kind": event.kind,
        "run": event.run,
    }
    if event.execution:
        body["execution"] = event.execution
    if event.task is not None:
        body["task"] = event.task
    if event.attempt is not None:
        body["attempt"] = event.attempt
    if event.scores:
        body["evals"] = {
            score.evaluator: [repr(float(score.score)), score.passed, score.read] for score in event.scores
        }
    if content is not None:
        body["content"] = content
    return {**event.fields, **body}


def columns_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The searchable columns of a body."""
    decision: Mapping[str, Any] = body.get("decision") or {}
    found = {name: body.get(name) for name in COLUMNS}
    found["verdict"] = decision.get("kind", "allow" if body.get("kind") in ("item", "recovered") else None)
    found["policy"] = decision.get("policy")
    route: Mapping[str, Any] = body.get("route") or {}
    found["target"] = decision.get("target") or route.get("target")
    return found


def scores_of(body: Mapping[str, Any]) -> list[Score]:
    """The scores in a body."""
    evals: Mapping[str, Sequence[Any]] = body.get("evals") or {}
    return [
        Score(evaluator=name, score=float(score), passed=passed, read=read)
        for name, (score, passed, read) in evals.items()
    ]


Count = tuple[int, str, str, str]
"""An hour, and a kind, name and value that are counted in it."""


def counts_of(body: Mapping[str, Any]) -> Iterable[tuple[Count, float | None]]:
    """The counts to which a body adds, each with the number that is summed, if any."""
    hour = body["at"] // HOUR
    if body["kind"] in ("item", "recovered"):
        columns = columns_of(body)
        yield (hour, "items", "", ""), None
        for name in ("node", "instruction", "status"):
            if columns[name] is not None:
                yield (hour, name, columns[name], ""), None
        yield (hour, "verdict", columns["verdict"] or "allow", ""), None
        if columns["policy"] is not None:
            yield (hour, "policy", columns["policy"], columns["verdict"] or ""), None
    elif body["kind"] == "execution":
        yield (hour, "outcome", str(body.get("outcome", "")), ""), None
    for score in scores_of(body):
        passed = "" if score.passed is None else ("passed" if score.passed else "failed")
        yield (hour, "evaluator", score.evaluator, passed), score.score
