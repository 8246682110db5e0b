"""Questions to a ledger: pages by cursor, newest first, and counts from the rollups.

No page reads the whole ledger: it walks one index, reads at most 20,000 rows, and may therefore be short and
still have a next one. New items do not move it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import orjson

from arbiter.errors import ConfigurationError, nearest
from arbiter.history import HistoryItem
from arbiter.ledger._entries import HOUR
from arbiter.ledger._stored import records_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

T = TypeVar("T")
READ = 20_000
PAGE = 50
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO = re.compile(r"(\d+)([smhdw])\Z")
Order = Literal["newest", "oldest"]
When = datetime | str | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a query. `next` is the cursor of the next page, or None if there is none."""

    rows: Sequence[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def time_from(name: str, when: When, now: datetime) -> int | None:
    """Microseconds of an aware datetime, an ISO text, or a time ago such as `30m`, `24h` or `7d`."""
    if when is None:
        return None
    if isinstance(when, str):
        ago = _AGO.match(when.strip())
        if ago is not None:
            seconds = int(ago[1]) * _UNITS[ago[2]]
            return _micros(now - timedelta(seconds=seconds))
        try:
            when = datetime.fromisoformat(when.strip())
        except ValueError:
            raise ConfigurationError(
                f"{name}: expected an aware datetime, an ISO text or a time ago such as '30m', '24h' or '7d', "
                f"got {when!r:.80}."
            ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return _micros(when)


def _micros(when: datetime) -> int:
    return round(when.timestamp() * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The parts of a question about items. None matches everything."""

    thread_id: str | None = None
    run: str | None = None
    node: str | None = None
    instruction: str | None = None
    status: str | None = None
    verdict: str | None = None
    policy: str | None = None
    evaluator: str | None = None
    below: float | None = None
    above: float | None = None
    subject: str | None = None
    since: int | None = None
    until: int | None = None
    order: Order = "newest"
    attempts: bool = False


@dataclass(slots=True)
class _Query:
    """A statement in the making, in the driver's words."""

    mark: str
    where: list[str] = field(default_factory=list[str])
    values: list[Any] = field(default_factory=list[Any])

    def add(self, condition: str, *values: Any) -> None:
        self.where.append(condition.replace("?", self.mark))
        self.values.extend(values)

    @property
    def conditions(self) -> str:
        return " AND ".join(self.where) or "1 = 1"


class Queries:
    """The questions to one ledger."""

    def __init__(self, engine: Engine, uuid: str) -> None:
        self.engine = engine
        self.prefix = uuid[:4]
        self.mark = "%s" if engine.dialect.name == "postgresql" else "?"

    # Items

    def page(self, wanted: Filter, *, limit: int = PAGE, after: str | None = None) -> Page[HistoryItem]:
        """The items that the filter wants, after the cursor `after`."""
        if not 1 <= limit <= 1000:
            raise ConfigurationError(f"limit: expected 1 to 1000, got {limit!r}.")
        statement, values = self.statement(wanted, after)
        rows = self._rows(statement, values)
        found: list[tuple[str, str | None]] = []
        keys: list[str] = []
        last: int | None = None
        read = 0
        for id, body, contents, fits, newer in rows:
            read += 1
            last = id
            if not fits or (newer and not wanted.attempts):
                continue
            found.append((body, contents))
            keys.append(orjson.loads(body)["key"])
            if len(found) == limit:
                break
        more = last is not None and (len(found) == limit or read == READ)
        late = self._judged(keys)
        return Page(
            [HistoryItem(record) for record in records_of([*found, *late])],
            f"{self.prefix}.{last}" if more else None,
        )

    def statement(self, wanted: Filter, after: str | None) -> tuple[str, list[Any]]:
        """The statement of a page, for tests of its plan too."""
        query = _Query(self.mark)
        residual = _Query(self.mark)
        newest = wanted.order == "newest"
        comparison, direction = ("<", "DESC") if newest else (">", "ASC")
        source, order = "entries e", f"e.at {direction}, e.id {direction}"
        cursor = self._cursor(after)
        query.add("e.kind IN ('item', 'recovered')")
        if wanted.thread_id is not None:
            query.where.clear()
            query.add("e.thread = (SELECT id FROM threads WHERE thread_id = ?)", wanted.thread_id)
            query.add("e.kind IN ('item', 'recovered')")
            order = f"e.seq {direction}"
            if cursor is not None:
                query.add(f"e.seq {comparison} (SELECT seq FROM entries WHERE id = ?)", cursor)
        elif cursor is not None:
            query.add(f"(e.at, e.id) {comparison} ((SELECT at FROM entries WHERE id = ?), ?)", cursor, cursor)
        if wanted.since is not None:
            query.add("e.at >= ?", wanted.since)
        if wanted.until is not None:
            query.add("e.at <= ?", wanted.until)
        driving = self._driving(wanted)
        for name in ("node", "instruction", "policy", "status", "run", "verdict"):
            value = getattr(wanted, name)
            if value is None:
                continue
            (query if name == driving else residual).add(f"e.{name} = ?", value)
            if name == driving and name in ("status", "verdict"):
                # The partial index is used only for a statement that repeats its condition.
                usual = {"status": "completed", "verdict": "allow"}[name]
                query.add(f"e.{name} IS NOT NULL AND e.{name} <> '{usual}'")
        if wanted.subject is not None:
            residual.add("e.thread IN (SELECT id FROM threads WHERE subject = ?)", wanted.subject)
        if wanted.evaluator is not None:
            scored = _Query(self.mark)
            scored.add("s.entry = e.id AND s.evaluator = ?", wanted.evaluator)
            if wanted.below is not None:
                scored.add("s.score < ?", wanted.below)
            if wanted.above is not None:
                scored.add("s.score > ?", wanted.above)
            residual.add(f"EXISTS (SELECT 1 FROM scores s WHERE {scored.conditions})", *scored.values)
        fits = f"CASE WHEN {residual.conditions} THEN 1 ELSE 0 END"
        newer = (
            "EXISTS (SELECT 1 FROM entries n WHERE n.task = e.task AND n.thread = e.thread AND n.seq > e.seq "
            "AND n.kind IN ('item', 'recovered'))"
        )
        statement = (
            f"SELECT e.id, e.body, c.body, {fits}, {newer} FROM {source} LEFT JOIN contents c ON c.entry = e.id "
            f"WHERE {query.conditions} ORDER BY {order} LIMIT {READ}"
        )
        return statement, [*residual.values, *query.values]

    def _driving(self, wanted: Filter) -> str | None:
        """The column whose index the page walks."""
        if wanted.thread_id is not None:
            return None
        if wanted.policy is not None:
            return "policy"
        if wanted.verdict not in (None, "allow"):
            return "verdict"
        if wanted.status not in (None, "completed"):
            return "status"
        return next((name for name in ("node", "instruction") if getattr(wanted, name) is not None), None)

    def _cursor(self, after: str | None) -> int | None:
        if after is None:
            return None
        prefix, _, id = after.partition(".")
        if not id.isdecimal():
            raise ConfigurationError(
                f"after: expected a cursor like '{self.prefix}.48112', got {after!r:.80}."
            )
        if prefix != self.prefix:
            raise ConfigurationError(f"after: the cursor {after!r:.80} is of another ledger.")
        return int(id)

    def _judged(self, keys: Sequence[str]) -> list[tuple[str, str | None]]:
        """The evaluations that were written after these items: entries that name the item's task."""
        if not keys:
            return []
        marks = ", ".join([self.mark] * len(keys))
        return [
            (row[0], row[1])
            for row in self._rows(
                "SELECT j.body, c.body FROM entries e JOIN entries j ON j.task = e.task AND j.kind = 'judged' "
                f"LEFT JOIN contents c ON c.entry = j.id WHERE e.key IN ({marks})",
                list(keys),
            )
        ]

    def _rows(self, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        with self.engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True, yield_per=200)
            yield from streamed.exec_driver_sql(statement, tuple(values))

    # Threads, counts, scores

    def thread(self, thread_id: str, *, run: str | None = None) -> list[tuple[str, str | None]]:
        """Bodies and contents of all entries of a thread, oldest first. Raises `ConfigurationError` for a
        thread that is not there."""
        rows = list(
            self._rows(
                "SELECT e.body, c.body FROM entries e LEFT JOIN contents c ON c.entry = e.id "
                f"WHERE e.thread = (SELECT id FROM threads WHERE thread_id = {self.mark} OR ref = {self.mark}) "
                "ORDER BY e.seq",
                [thread_id, thread_id],
            )
        )
        if not rows:
            names = [
                row[0]
                for row in self._rows("SELECT thread_id FROM threads ORDER BY last_at DESC LIMIT 500", [])
            ]
            raise ConfigurationError(
                f"this ledger has no thread {thread_id!r}.{nearest(thread_id, [name for name in names if name])}"
            )
        return [(body, text) for body, text in rows if run is None or orjson.loads(body).get("run") == run]

    def threads(
        self, *, subject: str | None = None, since: int | None = None, until: int | None = None
    ) -> Iterator[dict[str, Any]]:
        query = _Query(self.mark)
        if subject is not None:
            query.add("subject = ?", subject)
        if since is not None:
            query.add("last_at >= ?", since)
        if until is not None:
            query.add("first_at <= ?", until)
        names = (
            "ref", "thread_id", "subject", "graph", "first_at", "last_at", "items", "denied", "asked", "outcome",
        )  # fmt: skip
        rows = self._rows(
            f"SELECT {', '.join(names)} FROM threads WHERE {query.conditions} ORDER BY last_at DESC, id DESC",
            query.values,
        )
        for row in rows:
            found: dict[str, Any] = dict(zip(names, row, strict=True))
            for name in ("first_at", "last_at"):
                found[name] = datetime.fromtimestamp(found[name] / 1_000_000, UTC)
            yield found

    def counts(
        self, by: str, *, every: Literal["hour", "day"] | None = None, since: int | None = None
    ) -> list[dict[str, Any]]:
        """Counts of items by node, policy, verdict, status, instruction or evaluator, from the rollups."""
        kinds = ("items", "node", "instruction", "status", "verdict", "policy", "evaluator", "outcome")
        if by not in kinds:
            raise ConfigurationError(
                f"by: expected one of {', '.join(kinds)}, got {by!r}.{nearest(by, kinds)}"
            )
        size = {"hour": 1, "day": 24, None: 0}.get(every, -1)
        if size < 0:
            raise ConfigurationError(f"every: expected 'hour', 'day' or None, got {every!r}.")
        query = _Query(self.mark)
        query.add("kind = ?", by)
        if since is not None:
            query.add("hour >= ?", since // HOUR)
        found: dict[tuple[Any, ...], list[Any]] = {}
        rows = self._rows(
            f"SELECT hour, name, value, n, total, least, most FROM rollups WHERE {query.conditions}",
            query.values,
        )
        for hour, name, value, n, total, least, most in rows:
            at = None if not size else hour // size * size
            known = found.setdefault((at, name, value), [0, 0.0, None, None])
            known[0] += n
            known[1] += total
            if least is not None:
                known[2] = least if known[2] is None else min(known[2], least)
                known[3] = most if known[3] is None else max(known[3], most)
        return [
            {
                **({} if at is None else {"at": datetime.fromtimestamp(at * 3600, UTC)}),
                "name": name,
                "value": value,
                "count": n,
                "total": total,
                "least": least,
                "most": most,
            }
            for (at, name, value), (n, total, least, most) in sorted(
                found.items(), key=lambda pair: str(pair[0])
            )
        ]

    def scores(
        self, evaluator: str, *, every: Literal["hour", "day"] | None = "hour", since: int | None = None
    ) -> list[dict[str, Any]]:
        """Number, mean, least and most of an evaluator's scores in each hour or day."""
        merged: dict[Any, dict[str, Any]] = {}
        for part in self.counts("evaluator", every=every, since=since):
            if part["name"] != evaluator:
                continue
            known = merged.setdefault(
                part.get("at"),
                {"count": 0, "total": 0.0, "least": None, "most": None, "passed": 0, "judged": 0},
            )
            known["count"] += part["count"]
            known["total"] += part["total"]
            known["passed"] += part["count"] if part["value"] == "passed" else 0
            known["judged"] += part["count"] if part["value"] else 0
            known["least"] = part["least"] if known["least"] is None else min(known["least"], part["least"])
            known["most"] = part["most"] if known["most"] is None else max(known["most"], part["most"])
        return [
            {
                **({} if at is None else {"at": at}),
                "count": known["count"],
                "mean": known["total"] / known["count"],
                "least": known["least"],
                "most": known["most"],
                "passed": known["passed"] / known["judged"] if known["judged"] else None,
            }
            for at, known in merged.items()
        ]

    def known(self, table: str) -> Mapping[str, int]:
        """The names that are counted under a kind, with their numbers: for messages about unknown ones."""
        return {part["name"]: part["count"] for part in self.counts(table)}
