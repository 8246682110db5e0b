"""The ledger as an outbox: the scores that a receiver has not answered for yet, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from arbiter._values.ids import id_at
from arbiter.ledger._database import LedgerError, last_entry, marks
from arbiter.ledger._entries import Score, scores_of, time_of
from arbiter.ledger._receivers import ExportedScore

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from arbiter.ledger._store import Store

_ENTRIES = 200
_SHOWN = 100
_FAILURES = ("error", "timeout")
"""The outcomes of an evaluation that failed; others say that there was nothing to be judged."""
_JUDGED = ("item", "judged", "recovered")
"""The kinds of entries that have evaluations."""
_BEHIND = 1_000
"""Entries without scores after which the cursor is moved all the same: a new process reads no more of them."""
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_Result = tuple[str, str, Score | None]
"""An evaluator, its version, and its score; None for a failure."""
Place = tuple[int, str]
"""An entry, and an evaluator in it; "" for several whose names the receiver did not give."""
BEGINNING: Place = (0, "")


@dataclass(slots=True)
class Outgoing:
    """The scores of the entries from the one after `after` up to `upto`."""

    after: int
    upto: int
    scores: dict[str, ExportedScore] = field(default_factory=dict[str, ExportedScore])
    """By their ids."""
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    untraced: int = 0
    """The number of evaluations that belong to no span: their runs were not traced, or sampled out."""

    def add(self, score: ExportedScore, place: Place) -> None:
        self.scores[score.id], self.places[score.id] = score, place


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverState:
    """How far a receiver has got. `refused` and `waiting` count the scores that it refused, and those whose
    runs it does not know yet. `refusals` has the newest reasons. `behind` is the number of entries that were
    committed after those that it has answered for.
    """

    receiver: str
    at: datetime
    behind: int
    refused: int
    waiting: int
    refusals: Sequence[tuple[datetime, int, str]] = ()
    """When, how many, and why."""


class Outbox:
    """The outbox of one receiver."""

    def __init__(
        self, store: Store, receiver: str, *, takes_failures: bool, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._receiver = receiver
        self._takes_failures = takes_failures
        self._mark = store.statements.mark
        self._passed = 0
        """The entry up to which nothing is left to be sent. The cursor follows, but not for every entry."""

    def next(self, most: int) -> Outgoing:
        """The next scores after the cursor: at most `most`, unless one entry has more."""
        with self._store.engine.connect() as connection:
            cursor = self._cursor(connection)
            after = max(cursor, self._passed)
            newest = last_entry(connection)
            found = self._outgoing(
                connection, f"e.id > {self._mark} ORDER BY e.id LIMIT {_ENTRIES}", (after,), most
            )
        found.after = after
        if found.upto == 0:
            found.upto = max(newest, after)
        if not found.scores:
            self._passed = found.upto
            if found.upto - cursor >= _BEHIND:
                self.answered(found)
        return found

    def waiting(self, most: int, after: Place) -> tuple[Outgoing, Place | None]:
        """Scores after that place that are to be sent again, because the receiver did not know their runs, the
        oldest first; and the place of the last one, None if there are no more.
        """
        with self._store.engine.connect() as connection:
            rows = self._run(
                connection,
                "SELECT entry, evaluator FROM undelivered WHERE receiver = ? AND reason IS NULL "
                f"AND (entry, evaluator) > (?, ?) ORDER BY entry, evaluator LIMIT {most}",
                self._receiver, *after,
            ).all()  # fmt: skip
            wanted = {(entry, evaluator) for entry, evaluator in rows}
            entries = tuple({entry for entry, _ in wanted})
            found = self._outgoing(
                connection, f"e.id IN ({marks(self._mark, entries)}) ORDER BY e.id", entries, None
            )
            kept = {id: place for id, place in found.places.items() if place in wanted}
            gone = wanted - set(kept.values())
            cursor = self._cursor(connection)
            again = Outgoing(cursor, cursor, {id: found.scores[id] for id in kept}, kept)
        if gone:  # its entry was pruned
            with self._store.writing() as connection:
                self._forget(connection, gone)
        return again, (rows[-1][0], rows[-1][1]) if len(rows) == most else None

    def newest(self) -> int:
        """The newest entry of the ledger."""
        with self._store.engine.connect() as connection:
            return last_entry(connection)

    def finish(self) -> None:
        """Move the cursor past entries without scores that were read."""
        if self._passed:
            self.answered(Outgoing(self._passed, self._passed))

    def _cursor(self, connection: Connection) -> int:
        rows = self._run(connection, "SELECT entry FROM cursors WHERE receiver = ?", self._receiver)
        return next((int(row[0]) for row in rows), 0)

    def _run(self, connection: Connection, statement: str, *values: Any) -> Any:
        return connection.exec_driver_sql(statement.replace("?", self._mark), values)

    def _outgoing(
        self, connection: Connection, where: str, values: tuple[Any, ...], most: int | None
    ) -> Outgoing:
        """The scores in those entries, as many whole entries as fit; `upto` is 0 if there is no entry."""
        rows = connection.exec_driver_sql(
            f"SELECT e.id, e.kind, e.at, e.node, e.trace, e.span, e.body FROM entries e WHERE {where}", values
        ).all()
        found = Outgoing(0, 0)
        taken: list[tuple[Any, Mapping[str, Any], Sequence[_Result]]] = []
        count = 0
        for row in rows:
            body, results = self._read(row[0], row[6]) if row[1] in _JUDGED else (_NOTHING, ())
            if most is not None and taken and count + len(results) > most:
                break
            count += len(results)
            found.upto = row[0]
            if results:
                taken.append((row, body, results))
        contents = self._contents(connection, [row[0] for row, *_ in taken])
        items = self._items(connection, [body["of"] for _, body, _ in taken if "of" in body])
        for (id, _, at, node, trace, span, _), body, results in taken:
            if "of" in body:
                node, trace, span = items.get(body["of"], (None, None, None))
            if trace is None or span is None:
                found.untraced += len(results)
                continue
            common = {"trace": trace, "span": span, "node": node or "", "at": time_of(at)}
            for score in _scores(results, contents.get(id) or {}, common):
                found.add(score, (id, score.evaluator))
        return found

    def _read(self, entry: int, text: str) -> tuple[Mapping[str, Any], Sequence[_Result]]:
        """The body of an entry, and the results in it that are to be sent. Raises `LedgerError`."""
        try:
            body = orjson.loads(text)
            return body, self._results(body)
        except (ValueError, TypeError, AttributeError) as error:
            raise LedgerError(f"entry {entry} cannot be read ({error}); arbiter verify says more.") from error

    def _results(self, body: Mapping[str, Any]) -> list[_Result]:
        scored = [score for score in scores_of(body) if score.outcome == "scored"]
        found: list[_Result] = [(score.evaluator, score.version, score) for score in scored]
        failed: Sequence[Any] = body.get("failed") or ()
        if self._takes_failures:
            found += [(name, version, None) for name, outcome, _, version in failed if outcome in _FAILURES]
        return found

    def _contents(self, connection: Connection, entries: Sequence[int]) -> dict[int, Any]:
        rows = connection.exec_driver_sql(
            f"SELECT entry, body FROM contents WHERE entry IN ({marks(self._mark, entries)})", tuple(entries)
        )
        return {entry: orjson.loads(text) for entry, text in rows}

    def _items(self, connection: Connection, keys: Sequence[str]) -> dict[str, tuple[Any, Any, Any]]:
        """Node, trace and span of the items with these keys."""
        rows = connection.exec_driver_sql(
            f"SELECT key, node, trace, span FROM entries WHERE key IN ({marks(self._mark, keys)})",
            tuple(keys),
        )
        return {key: (node, trace, span) for key, node, trace, span in rows}

    def answered(
        self,
        outgoing: Outgoing,
        *,
        refused: Mapping[Place, tuple[int, str]] = _NOTHING,
        later: Collection[Place] = (),
    ) -> None:
        """Store a receiver's answer: the cursor moves past these scores, the refused and late ones are kept."""
        at = round(self._clock() * 1e6)
        with self._store.writing() as connection:
            self._forget(connection, set(outgoing.places.values()) - set(later))
            rows: list[tuple[int, str, int, str | None]]
            rows = [(entry, name, count, reason) for (entry, name), (count, reason) in refused.items()]
            rows += [(entry, name, 1, None) for entry, name in later]
            for entry, name, count, reason in rows:
                self._run(
                    connection,
                    "INSERT INTO undelivered (receiver, entry, evaluator, n, at, reason) VALUES (?, ?, ?, ?, ?, ?) "
                    "ON CONFLICT (receiver, entry, evaluator) DO NOTHING",
                    self._receiver, entry, name, count, at, reason,
                )  # fmt: skip
            self._run(
                connection,
                "INSERT INTO cursors (receiver, entry, at, refused) VALUES (?, ?, ?, 0) "
                "ON CONFLICT (receiver) DO UPDATE SET at = excluded.at, "
                "entry = CASE WHEN excluded.entry > cursors.entry THEN excluded.entry ELSE cursors.entry END",
                self._receiver, outgoing.upto, at,
            )  # fmt: skip
            if refused:
                self._run(
                    connection,
                    "UPDATE cursors SET refused = (SELECT COALESCE(SUM(n), 0) FROM undelivered "
                    "WHERE receiver = ? AND reason IS NOT NULL) WHERE receiver = ?",
                    self._receiver, self._receiver,
                )  # fmt: skip

    def first_sent(self, places: Iterable[Place]) -> dict[Place, float]:
        """When those of these scores that wait were sent first, in POSIX seconds."""
        wanted = set(places)
        entries = {entry for entry, _ in wanted}
        with self._store.engine.connect() as connection:
            rows = self._run(
                connection,
                "SELECT entry, evaluator, at FROM undelivered "
                f"WHERE receiver = ? AND reason IS NULL AND entry IN ({marks('?', entries)})",
                self._receiver, *entries,
            )  # fmt: skip
            return {(entry, name): at / 1e6 for entry, name, at in rows if (entry, name) in wanted}

    def _forget(self, connection: Connection, places: Iterable[Place]) -> None:
        """Remove what waits in these places."""
        for entry, name in places:
            self._run(
                connection,
                "DELETE FROM undelivered WHERE receiver = ? AND entry = ? AND evaluator = ? AND reason IS NULL",
                self._receiver, entry, name,
            )  # fmt: skip


def _scores(
    results: Iterable[_Result], contents: Mapping[str, Any], common: Mapping[str, Any]
) -> Iterable[ExportedScore]:
    said: Mapping[str, Any] = contents.get("evaluations") or {}
    errors: Mapping[str, Any] = contents.get("evaluation_errors") or {}
    for name, version, score in results:
        of: Mapping[str, Any] = said.get(name) or _NOTHING
        text: Any = errors.get(name) if score is None else of.get("feedback")
        yield ExportedScore(
            id=id_at(common["trace"], common["span"], name, version),
            evaluator=name,
            version=version,
            score=None if score is None else score.score,
            passed=None if score is None else score.passed,
            comment=text if isinstance(text, str) else "",
            **common,
        )


def receiver_states(store: Store) -> list[ReceiverState]:
    """All receivers that a ledger has sent scores to."""
    with store.engine.connect() as connection:
        run, mark = connection.exec_driver_sql, store.statements.mark
        newest = last_entry(connection)
        counts = run("SELECT receiver, SUM(n) FROM undelivered WHERE reason IS NULL GROUP BY receiver")
        waiting: dict[str, int] = {name: int(count) for name, count in counts}
        found: list[ReceiverState] = []
        for name, entry, at, refused in run(
            "SELECT receiver, entry, at, refused FROM cursors ORDER BY receiver"
        ).all():
            reasons = run(
                f"SELECT at, n, reason FROM undelivered WHERE receiver = {mark} AND reason IS NOT NULL "
                f"ORDER BY at DESC, entry DESC LIMIT {_SHOWN}",
                (name,),
            ).all()
            found.append(
                ReceiverState(
                    receiver=name,
                    at=time_of(at),
                    behind=max(newest - entry, 0),
                    refused=int(refused),
                    waiting=waiting.get(name, 0),
                    refusals=[(time_of(at), n, reason) for at, n, reason in reasons],
                )
            )
        return found
