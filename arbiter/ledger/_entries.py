"""Entries: the events that a ledger keeps, and the bodies, columns and counts that are made of them.

    Event (what a listener saw) ─▶ body (canonical, chained) ─▶ columns (what is searched and shown)

Columns and counts are an index of the bodies: the writer derives them from a body, and `verify` derives them
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from arbiter import _databases
from arbiter.history._packing import rounded
from arbiter.history._record import Described
from arbiter.ledger._chain import key_of
from arbiter.verdicts import Outcome

if TYPE_CHECKING:
    from arbiter.ledger._keeping import Keeping

Kind = Literal["item", "judged", "started", "answer", "execution", "recovered", "gap", "erasure", "pruned"]
ITEMS = ("item", "recovered")
"""The kinds of entries that are about a node run which has ended."""
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


VERDICT, _TARGET = COLUMNS.index("verdict"), COLUMNS.index("target")
_DECIDED = slice(VERDICT, _TARGET + 1)


@dataclass(slots=True)
class Score:
    """The result of one evaluator for one node run. Only what is "scored" counts as a number."""

    evaluator: str
    score: float
    passed: bool | None
    read: bool
    version: str = ""
    outcome: Outcome = "scored"


_WITH_OUTCOME = 6


def parts_of(
    evaluator: str, score: float, passed: bool | None, read: bool, version: str, outcome: Outcome
) -> list[Any]:
    """The form of a score in a body, which ends with what is not the usual."""
    found = [evaluator, repr(float(score)), passed, read]
    if outcome != "scored":
        found += (version, outcome)
    elif version:
        found.append(version)
    return found


Scored = tuple[str, float, bool | None, bool]
"""The parts of a result that means and searches count: evaluator, score, passed, read."""


def scored_of(evals: Iterable[Sequence[Any]]) -> list[Scored]:
    """The results that means and searches count, of those that a body has."""
    return [(of[0], float(of[1]), of[2], of[3]) for of in evals if len(of) < _WITH_OUTCOME]


class Origin(NamedTuple):
    """Where events come from: an execution of a run, in a thread."""

    thread_id: str | None
    run: str
    execution: str
    subject: str | None
    graph: str | None
    place: str
    """The name of the thread in this process. One without an id is named by its run."""


@lru_cache(1024)
def origin_of(
    thread_id: str | None, run: str, execution: str, subject: str | None = None, graph: str | None = None
) -> Origin:
    """The origin with these names, as both databases can store them."""
    thread_id = None if thread_id is None else _databases.storable(thread_id)
    subject = None if subject is None else _databases.storable(subject)
    graph = None if graph is None else _databases.storable(graph)
    return Origin(thread_id, run, execution, subject, graph, place_of(thread_id, run))


class Waiting:
    """Something that waits in the writer's queue: an event, or what the writer makes events of."""

    # Defaults of the class: there is one for every node run, and most never differ.
    kind: Kind
    contents: dict[str, Any] | None = None
    size: int = 0
    """About the number of bytes that the contents take while they wait."""
    queued: float = 0.0
    """When it was queued, by `time.monotonic`."""
    patience: float = 0.25
    """Seconds that it may wait in the queue while it is open."""
    is_saved: bool = False
    """True if it is in a checkpoint, from which it can be recovered later."""
    committed: Callable[[], None] | None = None
    """Called by the writer when it is committed."""
    is_withdrawn: bool = False
    """True if it is not to be written any more."""

    def where(self) -> tuple[Origin, int]:
        """The origin and the time of its events, or of the newest of them."""
        raise NotImplementedError

    def is_open(self) -> bool:
        """True while more will be known soon: the writer then lets it wait a little."""
        return False

    def withdraw(self) -> None:
        """It is not to be written any more: it does not fit the queue, or comes too late for whom it was for."""
        self.is_withdrawn = True

    def events(self) -> Iterable[Event]:
        """The events themselves, always the same. Called by the writer before it writes them."""
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Event(Waiting):
    """Something that ended or was decided in a thread. Times are whole microseconds.

    `fields` is the entry's part of the body: no floats, and no text that a model, a user or a state can put
    there. `contents` is erasable.
    """

    kind: Kind
    at: int
    origin: Origin
    task: str | None = None
    attempt: int | None = None
    fields: dict[str, Any]
    contents: dict[str, Any] | None = None
    evals: Sequence[Sequence[Any]] = ()
    """The scores in the form that `parts_of` gives them."""
    keeping: Keeping | None = None
    """How the contents are redacted and bounded; None for the ledger's own options."""
    describes: tuple[tuple[str, Described], ...] = field(default=(), init=False)
    """The rules and the graph that `fields` name by their digests, until the ledger has them."""
    source: str = field(default="", init=False)
    """The checkpoint that a recovered event comes from: within it, equal siblings count."""
    nonce: str = field(default="", init=False)
    """Tells recovered events apart, whose tasks may be unknown, and answers to the same question of one attempt."""

    def where(self) -> tuple[Origin, int]:
        return self.origin, self.at

    def events(self) -> Iterable[Event]:
        return (self,)

    @property
    def key(self) -> str:
        origin, kind, of = self.origin, self.kind, self.nonce
        if kind == "answer":
            of = "\0".join((of, str(self.fields.get("question", ""))))
        elif kind == "judged":
            of = "\0".join((of, *sorted([storable(parts[0]) for parts in self.evals])))
        return key_of(origin.execution, f"{origin.run}\0{self.task or ''}\0{self.attempt or 0}\0{kind}\0{of}")


@lru_cache(1024)
def storable(name: str) -> str:
    """The name as both databases can store it."""
    return _databases.storable(str(name))


def place_of(thread_id: str | None, run: str) -> str:
    """The name of a thread in this process: its id, or the run that has none."""
    return f"run {run}" if thread_id is None else f"thread {thread_id}"


def micros(time: float | datetime) -> int:
    """Seconds since 1970, seconds that something lasted, or a time, in whole microseconds."""
    seconds = time.timestamp() if isinstance(time, datetime) else time
    whole = int(seconds)
    # A time in microseconds is no exact float.
    return whole * 1_000_000 + round((seconds - whole) * 1_000_000)


def time_of(micros: int) -> datetime:
    """A time of whole microseconds, aware and in UTC."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def body_of(
    event: Event, *, key: str, ledger: str, ref: str, seq: int, content: str | None
) -> dict[str, Any]:
    """The body of the entry that this event becomes."""
    origin = event.origin
    body: dict[str, Any] = {
        **event.fields,
        "v": VERSION,
        "ledger": ledger,
        "thread": ref,
        "seq": seq,
        "key": key,
        "at": event.at,
        "kind": event.kind,
    }
    if origin.run:
        body["run"] = origin.run
    if origin.execution:
        body["execution"] = origin.execution
    if event.task is not None:
        body["task"] = event.task
    if event.attempt is not None:
        body["attempt"] = event.attempt
    if event.evals:
        body["evals"] = event.evals
    if content is not None:
        body["content"] = content
    return body


def columns_of(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a body in the order of `COLUMNS`."""
    found = [*map(body.get, COLUMNS)]
    decision, route = body.get("decision"), body.get("route")
    if decision is not None:
        found[_DECIDED] = decision.get("kind"), decision.get("policy"), decision.get("target")
    else:
        found[_DECIDED] = "allow" if body["kind"] in ITEMS else None, None, None
    if route is not None and found[_TARGET] is None:
        found[_TARGET] = route.get("target")
    return tuple(found)


def names_in(contents: Any) -> tuple[Any, Any]:
    """The thread id and the subject in the contents of an execution, which may be what a redactor left of them."""
    parts: Any = contents
    if not isinstance(contents, dict):
        return None, None
    config: Any = parts.get("config")
    thread_id: Any = config.get("thread_id") if hasattr(config, "get") else None
    return thread_id, parts.get("subject")


def times_of(body: Mapping[str, Any]) -> tuple[float, float]:
    """The start of a node run, in POSIX seconds, and how many seconds it took: as its record had them."""
    took = body.get("took", 0)
    return (body["at"] - took) / 1e6, (took * 1000 + body.get("ns", 0)) / 1e9


def saved_starts(started: float) -> set[int]:
    """The start that a checkpoint may have for an entry that began then, in hundredths of a second. There are two
    if it is about in the middle: the checkpoint rounded the time itself, the entry has it in microseconds.
    """
    return {rounded(started - 1e-6), rounded(started + 1e-6)}


def scores_of(body: Mapping[str, Any]) -> list[Score]:
    """The scores in a body."""
    return [Score(name, float(score), *parts) for name, score, *parts in body.get("evals") or ()]


def checks_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The verdicts in a body, in the order of the checkers. A checker that allowed stands there as its name alone."""
    checks: Sequence[str | tuple[str, str]] = body.get("checks") or ()
    return dict((each, "allow") if isinstance(each, str) else each for each in checks)


def routes_of(body: Mapping[str, Any]) -> dict[str, str | None]:
    """The answers of the routers in a body. A router that named no node stands there as its name alone."""
    routes: Sequence[str | tuple[str, str]] = body.get("routes") or ()
    return dict((each, None) if isinstance(each, str) else each for each in routes)


Count = tuple[int, str, str, str]
"""An hour, and a kind, name and value that are counted in it."""


@dataclass(slots=True)
class Totals:
    """How often something was counted, and the sum and bounds of the numbers that came with it."""

    n: int = 0
    total: float = 0.0
    least: float | None = None
    most: float | None = None

    def add(self, n: int, total: float | None, least: float | None, most: float | None) -> None:
        """Add other totals."""
        self.n += n
        self.total += total or 0.0
        if least is not None and (self.least is None or least < self.least):
            self.least = least
        if most is not None and (self.most is None or most > self.most):
            self.most = most


class Counts:
    """Counts entries by hour: node runs by their columns, executions by their outcome, scores by evaluator."""

    def __init__(self) -> None:
        # What comes with every node run is counted under what is at hand; `totals` names it.
        self._items: defaultdict[tuple[int, Sequence[Any]], int] = defaultdict(int)
        self._scores: defaultdict[tuple[int, str, bool | None], Totals] = defaultdict(Totals)
        self._totals: defaultdict[Count, Totals] = defaultdict(Totals)

    def add(self, body: Mapping[str, Any], columns: Sequence[Any], scored: Sequence[Scored]) -> None:
        """Count an entry, of which `columns_of` and `scored_of` give the columns and scores."""
        hour = body["at"] // HOUR
        if body["kind"] in ITEMS:
            self._items[hour, _counted(columns)] += 1
        elif body["kind"] == "execution":
            self._totals[hour, "outcome", str(body.get("outcome", "")), ""].n += 1
        for name, score, passed, _ in scored:
            self._scores[hour, name, passed].add(1, score, score, score)
        evals: Sequence[Any] = body.get("evals") or ()
        if len(scored) < len(evals):
            for name, outcome in [(of[0], of[5]) for of in evals if len(of) >= _WITH_OUTCOME]:
                self._totals[hour, "evaluator", name, outcome].n += 1
        for name, outcome, *_ in body.get("failed") or ():
            self._totals[hour, "evaluator", name, outcome].n += 1

    def totals(self) -> dict[Count, Totals]:
        """The totals of each count so far."""
        found = self._totals
        for (hour, columns), n in self._items.items():
            node, instruction, status, verdict, policy = columns
            found[hour, "items", "", ""].n += n
            for kind, name in (("node", node), ("instruction", instruction), ("status", status)):
                if name is not None:
                    found[hour, kind, name, ""].n += n
            found[hour, "verdict", verdict or "allow", ""].n += n
            if policy is not None:
                found[hour, "policy", policy, verdict or ""].n += n
        self._items.clear()
        for (hour, name, passed), t in self._scores.items():
            judged = "" if passed is None else ("passed" if passed else "failed")
            found[hour, "evaluator", name, judged].add(t.n, t.total, t.least, t.most)
        self._scores.clear()
        return found


_counted = itemgetter(
    *(COLUMNS.index(name) for name in ("node", "instruction", "status", "verdict", "policy"))
)
