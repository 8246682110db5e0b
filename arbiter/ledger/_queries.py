"""Questions to a ledger: pages by cursor, newest first, and counts from the rollups.

No page reads the whole ledger: it walks one index, reads at most 5,000 rows, and may therefore be short and
still have a next one. A cursor also names the newest entry at the time of the first page: later ones are on no
page, so that a walk ends, and a new attempt hides no node run that it has not come to yet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

import orjson

from arbiter.errors import ConfigurationError, nearest
from arbiter.ledger._database import ABOUT, DatabaseFile, marks
from arbiter.ledger._entries import HOUR, Totals, checks_of, micros, storable, time_of
from arbiter.ledger._stored import Row, StoredItem, node_runs_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

T = TypeVar("T")
READ = 5_000
"""The entries at which one page looks. A page by several filters that few items fit may hold fewer items for that."""
_FEW = 5_000
"""Entries of a subject or an evaluator that a page reads and sorts, instead of looking for them among all."""
PAGE = 50
_SCORED = ("", "passed", "failed")
"""The values under which scores are counted; an evaluation without one is counted under its outcome."""
_SCORES = 100_000
"""Items among which a page of threads looks for the lowest scores: the longest threads go without."""
_NEWEST = 500
"""Threads and entries that a message about an unknown name looks at."""
_RUNS = 20_000
"""Newest entries among which a message about an unknown run looks for it: no index has the runs."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SEVERAL = "{!r} is the beginning of the refs of {} threads of this {}. Give more digits of the ref."
_REF = re.compile(r"[0-9a-f][0-9a-f-]{7,35}\Z")
_EARLIEST = -(2**62)
_DIGITS = 18
"""Longer numbers do not fit the databases' integers."""
_CURSOR = re.compile(r"([^.]+)\.([0-9]{1,18})(?:\.([0-9]{1,18}))?\Z")
_AGO = re.compile(r"(\d+)([smhdw])\Z")
Order = Literal["newest", "oldest"]
Named = Literal["node", "instruction", "policy", "evaluator"]
"""The kinds of names that a filter may give."""
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


def time_from(name: str, when: When, now: float) -> int | None:
    """Microseconds of an aware datetime, an ISO text, or a time ago such as `30m`, `24h` or `7d`. `now` is in POSIX
    seconds.
    """
    if when is None:
        return None
    found: Any = when
    if isinstance(when, str):
        if (ago := _AGO.match(when.strip())) is not None:
            seconds = int(ago[1]) * _UNITS[ago[2]]
            return max(micros(now) - seconds * 1_000_000, _EARLIEST)
        try:
            found = datetime.fromisoformat(when.strip())
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        raise ConfigurationError(
            f"{name}: expected an aware datetime, an ISO text or a time ago such as '30m', '24h' or '7d', "
            f"got {when!r:.80}."
        )
    return micros(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def span(since: When, until: When, now: float) -> tuple[int | None, int | None]:
    """Both times in microseconds. Raises `ConfigurationError` if nothing can be between them."""
    begin, end = time_from("since", since, now), time_from("until", until, now)
    if begin is not None and end is not None and begin > end:
        raise ConfigurationError(f"since is {str(since)!r}, which is after until, {str(until)!r}. Swap them.")
    return begin, end


def expect(name: str, value: object, wanted: str, fits: bool) -> None:
    if not fits:
        raise ConfigurationError(f"{name}: expected {wanted}, got {value!r:.80}.")


def expect_text(name: str, value: object) -> None:
    expect(name, value, "a text", isinstance(value, str))


def _check_limit(limit: int) -> None:
    if not isinstance(cast(Any, limit), int) or not 1 <= limit <= 1000:
        raise ConfigurationError(f"limit: expected 1 to 1000, got {limit!r}.")


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

    def __post_init__(self) -> None:
        for name in ("run", "subject", *get_args(Named)):
            if (value := getattr(self, name)) is not None:
                expect_text(name, value)


@dataclass(slots=True)
class _Query:
    """A statement in the making, in the driver's words."""

    mark: str
    where: list[str] = field(default_factory=list[str])
    values: list[Any] = field(default_factory=list[Any])

    def add(self, condition: str, *values: Any) -> None:
        self.where.append(condition.replace("?", self.mark))
        # A name is recorded in this form; an argument of a command may have characters that no database takes.
        self.values.extend(storable(each) if isinstance(each, str) else each for each in values)

    @property
    def conditions(self) -> str:
        return " AND ".join(self.where) or "1 = 1"


def _page(query: _Query, residual: _Query, order: str) -> tuple[str, list[Any]]:
    """The statement of a page. Contents are read only of those that fit: it may have to look at many others."""
    return (
        f"SELECT e.id, CASE WHEN {residual.conditions} THEN 1 ELSE 0 END FROM entries e "
        f"WHERE {query.conditions} ORDER BY {order} LIMIT {READ}"
    ), [*residual.values, *query.values]


def _execution_in(row: Row, thread_id: str | None, ref: str) -> dict[str, Any]:
    """The execution that an entry describes."""
    body, _ = row.parsed()
    return {
        "execution": body.get("execution"),
        "run": body.get("run"),
        "ref": ref,
        "thread_id": thread_id,
        "graph": body.get("graph"),
        "began": time_of(body["began"]),
        "ended": time_of(body["at"]),
        "outcome": body.get("outcome"),
        "rules": body.get("rules"),
    }


class Queries:
    """The questions to one ledger."""

    def __init__(self, engine: Engine, uuid: str, file: DatabaseFile) -> None:
        self.engine = engine
        self._file = file
        self.prefix = uuid[:4]
        self.mark = "%s" if engine.dialect.name == "postgresql" else "?"

    # Items

    def page(self, wanted: Filter, *, limit: int = PAGE, after: str | None = None) -> Page[StoredItem]:
        """The items that the filter wants, after the cursor `after`.

        Raises `ConfigurationError` for a thread that is not there.
        """
        ids, next = self._walked(self.statement, wanted, limit, after)
        return Page(self._items(ids), next)

    def _walked(
        self,
        statement_of: Callable[[Filter, int | None, int], tuple[str, list[Any]]],
        wanted: Filter,
        limit: int,
        after: str | None,
    ) -> tuple[Sequence[int], str | None]:
        """The ids of the entries of a page, and the cursor of the next one."""
        _check_limit(limit)
        if wanted.thread_id is not None:
            wanted = replace(wanted, thread_id=self.names_of(wanted.thread_id)[0])
        cursor, upto = self._cursor(after)
        statement, values = statement_of(wanted, cursor, upto)
        ids: list[int] = []
        last: int | None = None
        read = 0
        for id, fits in self.rows(statement, values):
            last = id
            read += 1
            if fits:
                ids.append(id)
                if len(ids) == limit:
                    break
        more = last is not None and (len(ids) == limit or read == READ)
        return ids, f"{self.prefix}.{last}.{upto}" if more else None

    def why_none(self, wanted: Filter) -> str:
        """The reason why no item fits the filter, if it is a name that does not occur; else "".

        Raises `ConfigurationError` for a run that is not there.
        """
        if wanted.run is not None and not (known := self._has_run(wanted)):
            thread = "" if wanted.thread_id is None else f" in thread {wanted.thread_id!r}"
            if known is None:
                older = "" if thread else "; with its thread_id, older ones are found, too"
                newest = f"none of the newest {_RUNS:,} entries{thread} is of run {wanted.run!r}"
                return f"{newest}. item.run names one{older}."
            raise ConfigurationError(f"this ledger has no run {wanted.run!r}{thread}. item.run names one.")
        if wanted.subject is not None and (why := self.unknown_subject(wanted.subject)):
            return why
        for kind in get_args(Named):
            if (name := getattr(wanted, kind)) is not None and (why := self.unknown(kind, name)):
                return why
        return ""

    def _has_run(self, wanted: Filter) -> bool | None:
        """True if the newest entries have the run, None if only older ones can have it. No item fits the filter."""
        query = _Query(self.mark)
        if wanted.thread_id is not None:
            query.add("thread = ?", self.find_thread(wanted.thread_id))
        order = "id" if wanted.thread_id is None else "seq"
        # The pages of a question about a run alone have looked at all entries: so may this.
        is_alone = replace(wanted, run=None, thread_id=None, order="newest", attempts=False) == Filter()
        among = "" if is_alone else f" ORDER BY {order} DESC LIMIT {_RUNS}"
        (row,) = self.rows(
            f"SELECT COUNT(*), SUM(CASE WHEN run = {self.mark} THEN 1 ELSE 0 END) "
            f"FROM (SELECT run FROM entries WHERE {query.conditions}{among}) newest",
            [wanted.run, *query.values],
        )
        number, found = row
        return bool(found) or (None if number == _RUNS and not is_alone else False)

    def unknown(self, kind: Named, name: str) -> str:
        """A sentence if no name of that kind is `name`, else ""."""
        names = self.names(kind)
        if storable(name) in names:
            return ""
        known = f" Known: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}." if names else ""
        return f"{kind} is {name!r}, which does not occur in this ledger.{nearest(name, names)}{known}"

    def unknown_subject(self, subject: str) -> str:
        """A sentence if no thread is about the subject, else ""."""
        query = self._about(subject)
        if any(self.rows(f"SELECT 1 FROM threads WHERE {query.conditions} LIMIT 1", query.values)):
            return ""
        rows = self.rows(
            f"SELECT subject FROM threads WHERE subject IS NOT NULL ORDER BY last_at DESC LIMIT {_NEWEST}", []
        )
        names = sorted({row[0] for row in rows})
        return f"no thread of this ledger is about the subject {subject!r}.{nearest(subject, names)}"

    def _about(self, subject: str) -> _Query:
        query = _Query(self.mark)
        query.add(ABOUT, subject, subject)
        return query

    def _items(self, ids: Sequence[int]) -> list[StoredItem]:
        """The items of these entries, in this order. An entry that was pruned meanwhile is left out."""
        stored = {
            id: parts
            for id, *parts in self.rows(
                "SELECT e.id, e.key, e.body, c.body, t.thread_id, t.ref, e.run, e.seq FROM entries e "
                "LEFT JOIN contents c ON c.entry = e.id LEFT JOIN threads t ON t.id = e.thread "
                f"WHERE e.id IN ({marks(self.mark, ids)})",
                ids,
            )
        }
        found = [stored[id] for id in ids if id in stored]
        late = self._late([key for key, *_ in found])
        rows = [
            Row(body, contents, thread_id or ref, seq) for _, body, contents, thread_id, ref, _, seq in found
        ]
        return [
            StoredItem(record, thread_id=thread_id, ref=ref, run=run or "", seq=seq)
            for (_, record), (*_, thread_id, ref, run, seq) in zip(
                node_runs_of([*rows, *late]), found, strict=True
            )
        ]

    def statement(self, wanted: Filter, after: int | None, upto: int) -> tuple[str, list[Any]]:
        """The statement of the page behind the entry `after`, of those up to `upto`: ids in its order, each with 1 if
        the entry fits. Tests read its plan too.
        """
        query = _Query(self.mark)
        residual = _Query(self.mark)
        few = self._few(wanted)
        order = self._add_place(query, residual, wanted, after, upto, is_sorted=few is not None)
        query.add("e.kind IN ('item', 'recovered')")
        if few is not None:
            query.add(few.conditions, *few.values)
        driving = None if few is not None else self._driving(wanted)
        for name in ("node", "instruction", "policy", "status", "run", "verdict"):
            value = getattr(wanted, name)
            if value is None:
                continue
            # The index has the denials and the questions alike: a question may be rare among them.
            (query if name == driving != "verdict" else residual).add(f"e.{name} = ?", value)
            if name == driving and name in ("status", "verdict"):
                # The partial index is used only for a statement that repeats its condition.
                usual = {"status": "completed", "verdict": "allow"}[name]
                query.add(f"e.{name} IS NOT NULL AND e.{name} <> '{usual}'")
        if wanted.subject is not None:
            about = self._about(wanted.subject)
            residual.add(f"e.thread IN (SELECT id FROM threads WHERE {about.conditions})", *about.values)
        if wanted.evaluator is not None:
            scored = _Query(self.mark)
            scored.add("s.entry = e.id AND s.evaluator = ?", wanted.evaluator)
            if wanted.below is not None:
                scored.add("s.score < ?", wanted.below)
            if wanted.above is not None:
                scored.add("s.score > ?", wanted.above)
            # For an EXISTS, PostgreSQL would read all scores of the evaluator first.
            found = f"(SELECT 1 FROM scores s WHERE {scored.conditions} LIMIT 1)"
            residual.add(f"{found} IS NOT NULL", *scored.values)
        if not wanted.attempts:
            # By the id, which SQLite has in the index of the tasks: a task may have many attempts.
            residual.add(
                "NOT EXISTS (SELECT 1 FROM entries n WHERE n.thread = e.thread AND n.task = e.task "
                "AND n.id > e.id AND n.id <= ? AND n.kind IN ('item', 'recovered'))",
                upto,
            )
        return _page(query, residual, order)

    def _few(self, wanted: Filter) -> _Query | None:
        """The condition that an entry is of the subject or evaluator that is wanted, if few are."""
        found = _Query(self.mark)
        if wanted.thread_id is not None:
            return None
        if wanted.subject is not None:
            about = self._about(wanted.subject)
            sizes = f"SELECT head_seq FROM threads WHERE {about.conditions} LIMIT {_FEW + 1}"
            (row,) = self.rows(f"SELECT COUNT(*) + SUM(head_seq) FROM ({sizes}) sizes", about.values)
            if (row[0] or 0) <= _FEW:
                found.add(f"e.thread IN (SELECT id FROM threads WHERE {ABOUT})", *about.values)
                return found
        if wanted.evaluator is not None:
            evaluator = storable(wanted.evaluator)
            scored = f"SELECT 1 FROM scores WHERE evaluator = {self.mark} LIMIT {_FEW + 1}"
            (row,) = self.rows(f"SELECT COUNT(*) FROM ({scored}) scored", [evaluator])
            if row[0] <= _FEW:
                found.add("e.id IN (SELECT entry FROM scores WHERE evaluator = ?)", evaluator)
                return found
        return None

    def _add_place(
        self,
        query: _Query,
        residual: _Query,
        wanted: Filter,
        cursor: int | None,
        upto: int,
        *,
        is_sorted: bool = False,
    ) -> str:
        """Keep to the entries of the thread and the times that are wanted, behind the cursor. Returns their order.

        With `is_sorted`, no index has the order: the entries are found in another way.
        """
        newest = wanted.order == "newest"
        comparison, direction = ("<", "DESC") if newest else (">", "ASC")
        at = "+e.at" if is_sorted else "e.at"
        order = f"{at} {direction}, e.id {direction}"
        query.add("+e.id <= ?", upto)  # the plus keeps SQLite from walking the ids
        if wanted.thread_id is not None:
            query.add(
                "e.thread = (SELECT id FROM threads WHERE thread_id = ? OR ref = ?)",
                wanted.thread_id,
                wanted.thread_id,
            )
            order = f"e.seq {direction}"
            if cursor is not None:
                query.add(f"e.seq {comparison} (SELECT seq FROM entries WHERE id = ?)", cursor)
        elif cursor is not None:
            query.add(f"({at}, e.id) {comparison} ((SELECT at FROM entries WHERE id = ?), ?)", cursor, cursor)
        # Along a thread times go up only nearly: a page looks at as many entries as of any other question.
        timed = query if wanted.thread_id is None else residual
        if wanted.since is not None:
            timed.add(f"{at} >= ?", wanted.since)
        if wanted.until is not None:
            timed.add(f"{at} <= ?", wanted.until)
        return order

    def executions(
        self, wanted: Filter, *, limit: int = PAGE, after: str | None = None
    ) -> Page[Mapping[str, Any]]:
        """The executions of the thread and in the times that are wanted, after the cursor `after`."""
        ids, next = self._walked(self.statement_of_executions, wanted, limit, after)
        found = {
            id: _execution_in(Row(body, None, thread_id or ref, seq), thread_id, ref)
            for id, body, seq, thread_id, ref in self.rows(
                "SELECT e.id, e.body, e.seq, t.thread_id, t.ref FROM entries e JOIN threads t ON t.id = e.thread "
                f"WHERE e.id IN ({marks(self.mark, ids)})",
                ids,
            )
        }
        return Page([found[id] for id in ids if id in found], next)

    def statement_of_executions(self, wanted: Filter, after: int | None, upto: int) -> tuple[str, list[Any]]:
        """As `statement`, for executions: they have no index of their own, so a page walks past node runs."""
        query, residual = _Query(self.mark), _Query(self.mark)
        order = self._add_place(query, residual, wanted, after, upto)
        residual.add("e.kind = 'execution'")
        return _page(query, residual, order)

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

    def _cursor(self, after: str | None) -> tuple[int | None, int]:
        """The entry behind which a page begins, and the newest one that counts: that of now for a first page."""
        if after is None:
            return None, self.last_entry()
        parts = _CURSOR.match(str(after))
        if parts is None:
            raise ConfigurationError(
                f"after: expected a cursor like '{self.prefix}.48112', got {after!r:.80}."
            )
        prefix, id, upto = parts.groups()
        if prefix != self.prefix:
            raise ConfigurationError(f"after: the cursor {after!r:.80} is of another ledger.")
        if not list(self.rows(f"SELECT 1 FROM entries WHERE id = {self.mark}", [int(id)])):
            raise ConfigurationError(f"after: the entry of the cursor {after!r:.80} was pruned; begin anew.")
        return int(id), int(upto or self.last_entry())

    def _late(self, keys: Sequence[str]) -> list[Row]:
        """The evaluations that were written after these items, and the answers that they used: entries that name the
        item's task, in their order.
        """
        if not keys:
            return []
        rows = self.rows(
            "SELECT j.body, c.body, COALESCE(t.thread_id, t.ref), j.seq FROM entries e "
            "JOIN entries j ON j.thread = e.thread AND j.task = e.task AND j.kind IN ('judged', 'answer') "
            "JOIN threads t ON t.id = j.thread LEFT JOIN contents c ON c.entry = j.id "
            f"WHERE e.key IN ({marks(self.mark, keys)})",
            list(keys),
        )
        # Once each, also if several attempts of a task are among the items. To sort here leaves the plan as it is.
        return sorted({Row(*row) for row in rows}, key=attrgetter("seq"))

    def rows(self, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        """The rows of a statement. Raises `LedgerError` if the file of the ledger is gone."""
        self._file.ensure_in_place()  # its open connections would go on reading what was removed
        with self.engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True, yield_per=200)
            with streamed.exec_driver_sql(statement, tuple(values)) as result:  # a reader may stop early
                yield from result

    # Threads, counts, scores

    def names_of(self, name: str) -> tuple[str, str | None]:
        """The ref and the thread id of the thread that `find_thread` finds; an erased one has no thread id."""
        id = self.find_thread(name)
        row = next(self.rows(f"SELECT ref, thread_id FROM threads WHERE id = {self.mark}", [id]))
        return row[0], row[1]

    def thread_ids(self, which: str, values: Sequence[str]) -> list[str]:
        """The ids of the threads for which the condition `which` holds; erased ones have none."""
        is_wanted = f"{which.replace('?', self.mark)} AND thread_id IS NOT NULL"
        return [row[0] for row in self.rows(f"SELECT thread_id FROM threads WHERE {is_wanted}", [*values])]

    def find_thread(self, name: str) -> int:
        """The id of the thread with that thread id or ref; eight digits of a ref are enough.

        Raises `ConfigurationError` for a thread that is not there, and for digits with which several refs begin.
        """
        name = str(name)  # as LangGraph takes the number or UUID of a thread
        is_named = f"thread_id = {self.mark} OR ref = {self.mark}"
        found = list(self.rows(f"SELECT id FROM threads WHERE {is_named}", [storable(name)] * 2))
        if not found and _REF.match(name):
            found = list(self.rows(f"SELECT id FROM threads WHERE ref LIKE {self.mark}", [f"{name}%"]))
        if len(found) == 1:
            return int(found[0][0])
        if found:
            raise ConfigurationError(SEVERAL.format(name, len(found), "ledger"))
        rows = self.rows(f"SELECT thread_id FROM threads ORDER BY last_at DESC LIMIT {_NEWEST}", [])
        names = [row[0] for row in rows if row[0] is not None]
        erased = any(self.rows("SELECT 1 FROM threads WHERE erased_at IS NOT NULL LIMIT 1", []))
        hint = " If it was erased, its name was erased; give its ref." if erased else ""
        raise ConfigurationError(f"this ledger has no thread {name!r}.{nearest(name, names)}{hint}")

    def thread(self, thread_id: str, *, run: str | int | None = None, after: int = 0) -> list[Row]:
        """The entries of a thread, oldest first, from the one after number `after`.

        `run` is the uuid of a run or its number: 1 is the first of the thread, -1 the newest. Raises
        `ConfigurationError` for a thread or a run that is not there.
        """
        rows = list(
            self.rows(
                "SELECT e.body, c.body, e.seq, e.run FROM entries e LEFT JOIN contents c ON c.entry = e.id "
                f"WHERE e.thread = {self.mark} AND e.seq > {self.mark} ORDER BY e.seq",
                [self.find_thread(thread_id), after],
            )
        )
        if run is not None:
            runs = list(dict.fromkeys(row[3] for row in rows if row[3] is not None))
            if isinstance(run, int) and 1 <= abs(run) <= len(runs):
                run = runs[run - 1 if run > 0 else run]
            if run not in runs:
                raise ConfigurationError(
                    f"thread {thread_id!r} has no run {run!r}; it has {len(runs)}: give a number from 1, or a uuid."
                )
        return [
            Row(body, contents, thread_id, seq)
            for body, contents, seq, of in rows
            if run is None or of == run
        ]

    def threads(
        self,
        *,
        subject: str | None = None,
        since: int | None = None,
        until: int | None = None,
        waits: bool = False,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Page[Mapping[str, Any]]:
        """A page of the threads, the one that ran last first. With `waits`, those that wait for a human, of the
        threads that the newest 10,000 interruptions are in.
        """
        _check_limit(limit)
        query = _Query(self.mark)
        query.add("pruned_at IS NULL")
        if waits:
            query.add(
                "outcome = 'paused' AND erased_at IS NULL AND id IN (SELECT thread FROM (SELECT thread FROM entries "
                "WHERE status = 'interrupted' AND status IS NOT NULL AND status <> 'completed' "
                f"ORDER BY at DESC LIMIT {READ}) interruptions)"
            )
        if subject is not None:
            query.add(ABOUT, subject, subject)
        if since is not None:
            query.add("last_at >= ?", since)
        if until is not None:
            query.add("first_at <= ?", until)
        if after is not None:
            query.add("(last_at, id) < (?, ?)", *self._cursor_of_threads(after))
        names = (
            "ref", "thread_id", "subject", "graph", "first_at", "last_at", "items", "denied", "asked", "outcome",
            "erased_at", "pruned_at",
        )  # fmt: skip
        rows = list(
            self.rows(
                f"SELECT id, {', '.join(names)} FROM threads WHERE {query.conditions} "
                f"ORDER BY last_at DESC, id DESC LIMIT {limit + 1}",
                query.values,
            )
        )
        shown: dict[int, dict[str, Any]] = {
            row[0]: dict(zip(names, row[1:], strict=True)) for row in rows[:limit]
        }
        last, at = (rows[limit - 1][0], rows[limit - 1][6]) if len(rows) > limit else (None, 0)
        self._add_details(shown)
        for found in shown.values():
            for name in ("first_at", "last_at", "erased_at", "pruned_at"):
                if found[name] is not None:
                    found[name] = time_of(found[name])
        return Page([*shown.values()], None if last is None else f"{self.prefix}.{at}.{last}")

    def _cursor_of_threads(self, after: str) -> tuple[int, int]:
        prefix, _, place = str(after).partition(".")
        parts = place.split(".")
        if len(parts) != 2 or not all(part.isdecimal() and len(part) <= _DIGITS for part in parts):
            raise ConfigurationError(f"after: expected the cursor of a page of threads, got {after!r:.80}.")
        if prefix != self.prefix:
            raise ConfigurationError(f"after: the cursor {after!r:.80} is of another ledger.")
        return int(parts[0]), int(parts[1])

    def _add_details(self, threads: dict[int, dict[str, Any]]) -> None:
        """Add what the table of threads lacks: begin, lowest score, and the policy that denied last.

        `lowest` is an evaluator and a score, None without one; `is_searched` is False where nothing looked for it.
        """
        for found in threads.values():
            found.update(policy=None, lowest=None)
        if not threads:
            return
        # An entry has the time of its end; the first one's length leads to the begin.
        firsts = (
            f"SELECT thread, at, took FROM entries WHERE seq = 1 AND thread IN ({marks(self.mark, threads)})"
        )
        for id, at, took in self.rows(firsts, list(threads)):
            threads[id]["first_at"] = at - (took or 0)
        few, left = list[int](), _SCORES
        for id, found in sorted(threads.items(), key=lambda pair: int(pair[1]["items"])):
            left -= int(found["items"])
            found["is_searched"] = left >= 0
            if left >= 0:
                few.append(id)
        lowest = (
            "SELECT e.thread, s.evaluator, MIN(s.score) FROM entries e JOIN scores s ON s.entry = e.id "
            f"WHERE e.thread IN ({marks(self.mark, few)}) GROUP BY e.thread, s.evaluator"
        )
        for id, evaluator, score in self.rows(lowest, few):
            if threads[id]["lowest"] is None or score < threads[id]["lowest"][1]:
                threads[id]["lowest"] = (evaluator, score)
        for id, found in threads.items():
            if found["outcome"] == "denied":
                denied = (
                    f"SELECT policy FROM entries WHERE thread = {self.mark} AND verdict = 'deny' "
                    "ORDER BY seq DESC LIMIT 1"
                )
                found["policy"] = next((row[0] for row in self.rows(denied, [id])), None)

    def last_entry(self) -> int:
        """The id of the newest entry; 0 if there is none."""
        return next((int(row[0]) for row in self.rows("SELECT last_entry FROM ledgers", [])), 0)

    def grown(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Ids of the first entries after that one, each with the ref of its thread."""
        rows = self.rows(
            "SELECT e.id, t.ref FROM entries e JOIN threads t ON t.id = e.thread "
            f"WHERE e.id > {self.mark} ORDER BY e.id LIMIT {limit:d}",
            [after],
        )
        return [(int(id), str(ref)) for id, ref in rows]

    def names(self, kind: Named) -> list[str]:
        """The names of a kind that occur in this ledger, in alphabetical order.

        A policy counts from its first decision on, or while it has checked one of the newest entries. Raises
        `ConfigurationError` for another kind.
        """
        if kind not in get_args(Named):
            kinds = get_args(Named)
            raise ConfigurationError(
                f"kind: expected one of {', '.join(kinds)}, got {kind!r:.80}.{nearest(str(kind), kinds)}"
            )
        rows = self.rows(f"SELECT DISTINCT name FROM rollups WHERE kind = {self.mark}", [kind])
        found = {row[0] for row in rows}
        if kind == "policy":
            bodies = self.rows(
                f"SELECT body FROM entries WHERE kind = 'item' ORDER BY id DESC LIMIT {_NEWEST}", []
            )
            for (body,) in bodies:
                found.update(checks_of(orjson.loads(body)))
        return sorted(found)

    def counts(
        self,
        by: str,
        *,
        every: Literal["hour", "day"] | None = None,
        since: int | None = None,
        named: str | None = None,
    ) -> list[dict[str, Any]]:
        """Counts of items by node, policy, verdict, status, instruction or evaluator, from the rollups; with
        `named` those of one of them.
        """
        kinds = ("items", "node", "instruction", "status", "verdict", "policy", "evaluator", "outcome")
        if by not in kinds:
            raise ConfigurationError(
                f"by: expected one of {', '.join(kinds)}, got {by!r}.{nearest(str(by), kinds)}"
            )
        if every not in ("hour", "day", None):
            raise ConfigurationError(f"every: expected 'hour', 'day' or None, got {every!r}.")
        size = {"hour": 1, "day": 24, None: 0}[every]
        query = _Query(self.mark)
        query.add("kind = ?", by)
        if since is not None:
            query.add("hour >= ?", since // HOUR)
        if named is not None:
            query.add("name = ?", named)
        found: dict[tuple[Any, ...], Totals] = {}
        rows = self.rows(
            f"SELECT hour, name, value, n, total, least, most FROM rollups WHERE {query.conditions}",
            query.values,
        )
        for hour, name, value, n, total, least, most in rows:
            at = None if not size else hour // size * size
            found.setdefault((at, name, value), Totals()).add(n, total, least, most)
        return [
            {
                **({} if at is None else {"at": datetime.fromtimestamp(at * 3600, UTC)}),
                "name": name,
                "value": value,
                "count": totals.n,
                "total": totals.total,
                "least": totals.least,
                "most": totals.most,
            }
            for (at, name, value), totals in sorted(found.items(), key=lambda pair: str(pair[0]))
        ]

    def scores(
        self, evaluator: str, *, every: Literal["hour", "day"] | None = "hour", since: int | None = None
    ) -> list[dict[str, Any]]:
        """Number, mean, least and most of an evaluator's scores in each hour or day, and how often it gave none."""
        expect_text("evaluator", evaluator)
        merged: dict[Any, dict[str, Totals]] = defaultdict(lambda: defaultdict(Totals))
        for part in self.counts("evaluator", every=every, since=since, named=evaluator):
            of = merged[part.get("at")]
            for name in ("all", part["value"]) if part["value"] in _SCORED else (part["value"],):
                of[name].add(part["count"], part["total"], part["least"], part["most"])
        return [
            {
                **({} if at is None else {"at": at}),
                "count": of["all"].n,
                "mean": of["all"].total / of["all"].n if of["all"].n else None,
                "least": of["all"].least,
                "most": of["all"].most,
                "passed": of["passed"].n / judged if (judged := of["passed"].n + of["failed"].n) else None,
                "unscored": {
                    name: totals.n for name, totals in sorted(of.items()) if name not in ("all", *_SCORED)
                },
            }
            for at, of in merged.items()
        ]
