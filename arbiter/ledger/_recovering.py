"""Recovery: node runs that a checkpoint knows and the ledger does not, because a process was killed first.

A checkpoint keeps facts without the ids of their tasks and with times in hundredths of a second. So a fact is
the node run of an entry if place, attempt, status and start are equal; equal siblings are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from arbiter.errors import ConfigurationError, describe
from arbiter.history import HistoryItem
from arbiter.history._packing import rounded
from arbiter.ledger._database import LedgerError
from arbiter.ledger._entries import Event, saved_starts, times_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

Place = tuple[str, int, str, int, str]
"""Namespace, step, node, attempt and status."""
Run = tuple[Place, int]
"""A place, and a start in hundredths of a second."""
GRACE = 2.0
"""Seconds after its end in which another process may still write a node run itself."""
_LATE = 600_000_000
"""Microseconds by which an entry may be older than the one that was written before it."""
_NEAR = 20_000
"""Microseconds by which the rounded end of a fact may differ from the end of its node run."""
_IS_RUN = "e.kind IN ('item', 'recovered')"


def lacking(connection: Connection, mark: str, events: dict[str, Event]) -> dict[str, Event]:
    """These events, by key, without the recovered node runs that the ledger or another of the events has."""
    lost = [event for event in events.values() if event.kind == "recovered"]
    if not lost:
        return events
    # Those that are written together with these facts.
    written: defaultdict[str, Counter[Run]] = defaultdict(Counter)
    for each in events.values():
        if each.kind == "item":
            written[_thread(each)].update(_runs_of(_place_of(each.fields, each.attempt), _started(each)))
    found = list[Event]()
    for thread_id, of_thread in groupby(sorted(lost, key=_thread), key=_thread):
        facts = list(of_thread)
        known = written[thread_id] + _known(connection, mark, thread_id, min(event.at for event in facts))
        for _, of_source in groupby(facts, key=lambda event: event.source):
            seen: Counter[Run] = Counter()
            for event in of_source:
                run = _place_of(event.fields, event.attempt), rounded(_started(event))
                seen[run] += 1
                if seen[run] > known[run] and not _was_removed(connection, mark, event, run):
                    known[run] += 1
                    found.append(event)
    found.sort(key=lambda event: event.at)
    others = {key: event for key, event in events.items() if event.kind != "recovered"}
    return {**{event.key: event for event in found}, **others}


def _thread(event: Event) -> str:
    return event.origin.thread_id or ""


def _place_of(of: Mapping[str, Any], attempt: int | None) -> Place:
    return of.get("namespace", ""), of["step"], of["node"], attempt or 1, of["status"]


def _started(event: Event) -> float:
    took: int = event.fields["took"]
    return (event.at - took) / 1e6


def _runs_of(place: Place, started: float) -> Iterator[Run]:
    """A node run with each start that a fact of it may have."""
    return ((place, start) for start in saved_starts(started))


def _runs_in(text: str) -> Iterator[Run]:
    body: Mapping[str, Any] = orjson.loads(text)
    return _runs_of(_place_of(body, body.get("attempt")), times_of(body)[0])


def _known(connection: Connection, mark: str, thread_id: str, since: int) -> Counter[Run]:
    """The node runs of a thread that ended since then, newest first read."""
    found: Counter[Run] = Counter()
    rows = connection.exec_driver_sql(
        "SELECT e.body, e.at, e.kind FROM entries e JOIN threads t ON t.id = e.thread "
        f"WHERE t.thread_id = {mark} AND {_IS_RUN} ORDER BY e.seq DESC",
        (thread_id,),
        execution_options={"yield_per": 200},  # of this statement: PostgreSQL cannot insert through a cursor
    )
    for body, at, kind in rows:
        if at >= since - _NEAR:
            found.update(_runs_in(body))
        elif at < since - _LATE and kind == "item":
            break
    rows.close()
    return found


def _was_removed(connection: Connection, mark: str, event: Event, run: Run) -> bool:
    """True if the node run is of a thread that was erased: it must not come back under its name."""
    rows = connection.exec_driver_sql(
        "SELECT e.body FROM entries e JOIN threads t ON t.id = e.thread "
        f"WHERE e.node = {mark} AND e.at BETWEEN {mark} AND {mark} AND {_IS_RUN} AND t.erased_at IS NOT NULL",
        (event.fields["node"], event.at - _NEAR, event.at + _NEAR),
    )
    return any(run in _runs_in(body) for (body,) in rows)


def checkpointed(graph: Any, thread_id: str | None) -> Iterable[Sequence[HistoryItem]]:
    """The node runs that the checkpointer of a governed graph knows. Raises `ConfigurationError`, and `LedgerError` if
    it cannot be read.
    """
    read = getattr(graph, "_arbiter_checkpointed", None)
    if read is None:
        raise ConfigurationError(
            f"recover: expected a graph that an ArbiterOS with this ledger governs, got {graph!r:.80}."
        )
    if not hasattr(graph.checkpointer, "list"):
        raise ConfigurationError(
            "recover: this graph has no checkpointer, so nothing is left of lost node runs."
        )
    try:
        found: list[Sequence[HistoryItem]] = list(read(thread_id))
    except Exception as error:
        raise LedgerError(
            f"recover: the checkpoints of this graph cannot be read: {describe(error)}"
        ) from error
    if thread_id is not None and not found:
        raise ConfigurationError(f"recover: the checkpointer of this graph has no thread {thread_id!r}.")
    return found
