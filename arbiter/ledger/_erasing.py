"""Removal: the contents of a thread or a subject at their request, and what was kept long enough.

Chains stay whole: an entry of its own, `erasure` or `pruned`, names what was removed. A thread whose
entries are all gone keeps its row and one `pruned` entry, which names the hash that it follows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from arbiter.ledger._entries import Event, origin_of
from arbiter.ledger._store import Store, Thread

if TYPE_CHECKING:
    from sqlalchemy import Connection

DAY = 86_400_000_000
_FOR_EVER = 1e7
"""Days; times with more before now do not fit the databases' integers."""
_AT_ONCE = 64
_log = logging.getLogger("arbiter")
CHECKPOINTS = "checkpoints (checkpointer=... deletes them)"
_THREAD = "id, ref, head_seq, head_hash, thread_id, last_at, erased_at FROM threads"


@dataclass(frozen=True, slots=True)
class Erasure:
    """The result of `Ledger.erase` or `Ledger.prune`: the number of threads, and of entries whose contents are
    gone. `thread_ids` has the names that were erased; `elsewhere` says where copies may be left.
    """

    threads: int
    contents: int
    thread_ids: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def has_checkpoints(checkpointer: Any, thread_id: str | None) -> bool:
    """False also for a checkpointer that only async code can ask."""
    if checkpointer is None or thread_id is None:
        return False
    with suppress(Exception):
        return checkpointer.get_tuple({"configurable": {"thread_id": thread_id}}) is not None
    return False


def erase(store: Store, which: str, values: tuple[str, ...], reason: str, at: int) -> Erasure:
    """Remove the contents and names of the threads for which the condition `which` holds."""
    mark = store.statements.mark
    with store.writing() as connection:
        threads: list[Thread] = []
        said: list[tuple[Thread, Event]] = []
        for thread in _threads(connection, f"{_THREAD} WHERE {which.replace('?', mark)}", values):
            # The reasons of earlier erasures stay.
            gone = _remove_contents(connection, mark, thread.id, thread.seq, but="erasure")
            if not gone and thread.is_erased:
                continue  # erasing twice is one erasure
            threads.append(thread)
            fields = {"entries": gone, "upto": thread.seq}
            said.append((thread, _event("erasure", thread, at, fields, {"reason": reason})))
        elsewhere = [part for thread in threads for part in _sent(connection, mark, thread)]
        store.append(connection, said)
        for thread in threads:
            _forget_subjects(connection, mark, thread.id)
            connection.exec_driver_sql(
                f"UPDATE threads SET thread_id = NULL, subject = NULL, erased_at = {mark} WHERE id = {mark}",
                (at, thread.id),
            )
    _empty_log(store)
    names = tuple(thread.thread_id for thread in threads if thread.thread_id is not None)
    contents = sum(event.fields["entries"] for _, event in said)
    copies = [f"{path} is a copy from before an upgrade" for path in store.file.backups()]
    return Erasure(len(threads), contents, names, (*elsewhere, *copies))


def prune(store: Store, keep_days: float, at: int) -> Erasure:
    """Remove contents that are older than that, and threads whose last entry is. Paused threads are kept."""
    cutoff = at - round(min(keep_days, _FOR_EVER) * DAY)
    threads = contents = 0
    while found := _prune_threads(store, cutoff, at, keep_days):
        threads += len(found)
        contents += sum(found)
    after: int | None = 0
    while after is not None:
        after, gone = _prune_contents(store, cutoff, at, keep_days, after)
        contents += gone
    if threads or contents:
        _empty_log(store)
    return Erasure(threads, contents)


def _prune_threads(store: Store, cutoff: int, at: int, keep_days: float) -> list[int]:
    """Remove some whole threads. Returns the number of contents that each had."""
    mark, removed = store.statements.mark, list[int]()
    with store.writing() as connection:
        run = connection.exec_driver_sql
        threads = _threads(
            connection,
            f"{_THREAD} WHERE last_at < {mark} AND COALESCE(erased_at, last_at) < {mark} AND {_KEPT} "
            f"ORDER BY last_at LIMIT {_AT_ONCE}",
            (cutoff, cutoff),
        )
        said: list[tuple[Thread, Event]] = []
        for thread in threads:
            count, since, until = run(
                f"SELECT COUNT(*), MIN(at), MAX(at) FROM entries WHERE thread = {mark}", (thread.id,)
            ).one()
            removed.append(_remove_contents(connection, mark, thread.id, thread.seq))
            run(
                f"DELETE FROM scores WHERE entry IN (SELECT id FROM entries WHERE thread = {mark})",
                (thread.id,),
            )
            run(f"DELETE FROM entries WHERE thread = {mark}", (thread.id,))
            fields = {
                "entries": count, "upto": thread.seq, "head": thread.hash.hex(), "since": since, "until": until,
                "keep_days": repr(keep_days),
            }  # fmt: skip
            said.append((thread, _event("pruned", thread, at, fields)))
        store.append(connection, said)
        for thread in threads:
            _forget_subjects(connection, mark, thread.id)
            run(
                f"UPDATE threads SET thread_id = NULL, subject = NULL, pruned_at = {mark} WHERE id = {mark}",
                (at, thread.id),
            )
    return removed


def _prune_contents(
    store: Store, cutoff: int, at: int, keep_days: float, after: int
) -> tuple[int | None, int]:
    """Remove old contents of some threads that go on. Returns the last thread, None at the end, and a number."""
    mark, contents = store.statements.mark, 0
    with store.writing() as connection:
        threads = _threads(
            connection,
            f"{_THREAD} WHERE id > {mark} AND first_at < {mark} AND last_at >= {mark} AND {_KEPT} "
            f"ORDER BY id LIMIT {_AT_ONCE}",
            (after, cutoff, cutoff),
        )
        said: list[tuple[Thread, Event]] = []
        for thread in threads:
            young = connection.exec_driver_sql(
                f"SELECT MIN(seq) FROM entries WHERE thread = {mark} AND at >= {mark}", (thread.id, cutoff)
            ).scalar()
            upto = thread.seq if young is None else young - 1
            if gone := _remove_contents(connection, mark, thread.id, upto):
                contents += gone
                fields = {"entries": gone, "upto": upto, "keep_days": repr(keep_days)}
                said.append((thread, _event("pruned", thread, at, fields)))
        store.append(connection, said)
    return (threads[-1].id if threads else None), contents


_KEPT = "pruned_at IS NULL AND (outcome IS NULL OR outcome <> 'paused')"


def _threads(connection: Connection, what: str, values: tuple[Any, ...]) -> list[Thread]:
    rows = connection.exec_driver_sql(f"SELECT {what}", values).all()
    return [
        Thread(id, ref, seq, bytes(hash), name, last_at=last_at, is_erased=erased_at is not None)
        for id, ref, seq, hash, name, last_at, erased_at in rows
    ]


def _event(
    kind: Any, thread: Thread, at: int, fields: dict[str, Any], contents: dict[str, Any] | None = None
) -> Event:
    return Event(
        kind=kind,
        at=at,
        origin=origin_of(thread.thread_id, thread.ref, str(uuid4())),
        fields=fields,
        contents=contents,
    )


def _remove_contents(connection: Connection, mark: str, thread: int, upto: int, *, but: str = "") -> int:
    """Remove contents of a thread, except those of entries of the kind `but`."""
    return connection.exec_driver_sql(
        "DELETE FROM contents WHERE entry IN "
        f"(SELECT id FROM entries WHERE thread = {mark} AND seq <= {mark} AND kind <> '{but}')",
        (thread, upto),
    ).rowcount


def _forget_subjects(connection: Connection, mark: str, thread: int) -> None:
    connection.exec_driver_sql(f"DELETE FROM subjects WHERE thread = {mark}", (thread,))


def _sent(connection: Connection, mark: str, thread: Thread) -> Sequence[str]:
    """The receivers that have got scores of this thread."""
    rows = connection.exec_driver_sql(
        "SELECT c.receiver, COUNT(*) FROM cursors c JOIN scores s ON s.entry <= c.entry "
        f"JOIN entries e ON e.id = s.entry WHERE e.thread = {mark} AND e.trace IS NOT NULL "
        "GROUP BY c.receiver ORDER BY c.receiver",
        (thread.id,),
    )
    return [f"{receiver} received {count} scores of thread {thread.ref}" for receiver, count in rows]


def _empty_log(store: Store) -> None:
    """SQLite's log still has what was deleted."""
    if store.engine.dialect.name != "sqlite":
        return
    with store.engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")  # a checkpoint is none inside a transaction
        is_busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
        connection.exec_driver_sql("BEGIN")
    if is_busy:
        _log.warning(
            "the log beside the ledger still has what was removed, because another connection reads it. It is "
            "emptied by the next removal, or when the last connection is closed."
        )
