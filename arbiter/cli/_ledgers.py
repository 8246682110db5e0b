"""`arbiter erase`, `arbiter anchor`, `arbiter ledger prune` and `upgrade`: the upkeep of a ledger."""

from __future__ import annotations

from typing import Any

from arbiter._objects import load_graph
from arbiter.cli._options import Screen, check_other_file, known_names, number_of, opened
from arbiter.cli._streams import counting
from arbiter.errors import ConfigurationError


def erase_records(where: str, thread: str | None, subject: str | None, reason: str, graph: str | None) -> int:
    """Erase a thread, or all threads of a subject, and print what is left elsewhere."""
    from arbiter.ledger._erasing import CHECKPOINTS, has_checkpoints

    screen = Screen("table")
    if (thread is None) == (subject is None):
        raise ConfigurationError("give either --thread or --subject.")
    checkpointer = None if graph is None else _checkpointer(graph)
    has_some = has_checkpoints(checkpointer, thread)
    with opened(where, sign=True) as ledger, known_names():
        erased = ledger.erase(thread_id=thread, subject=subject, reason=reason, checkpointer=checkpointer)
    if not erased.threads and has_some:
        screen.say(f"nothing to erase in the ledger. The checkpoints of {graph} for {thread!r} were deleted.")
        return 0
    if not erased.threads:
        none = (
            f" {graph} has no checkpoints of that name; those of the thread have its id."
            if checkpointer
            else ""
        )
        screen.say(f"nothing to erase: {thread} has been erased before.{none}")
        return 0
    screen.say(
        f"erased: the contents of {number_of(erased.contents, 'entry', 'entries')} and the names of "
        f"{number_of(erased.threads, 'thread')}. Nodes, verdicts, scores and times stay."
    )
    # The ledger knows the threads of a person no longer, so they are named for those who delete checkpoints.
    names = ", ".join(map(repr, erased.thread_ids)) if subject is not None else ""
    of = f" of {names}" if names else ""
    checkpoints = () if checkpointer else (f"checkpoints{of} (--graph module:graph deletes them)",)
    others = [place for place in erased.elsewhere if place != CHECKPOINTS]
    places = (*checkpoints, "exports", *(others or ("backups",)))
    if checkpointer is not None:
        screen.say(f"The checkpoints of {graph} were deleted.")
    screen.say(f"Copies may be left: {'; '.join(places)}.")
    return 0


def _checkpointer(graph: str) -> Any:
    found: Any = getattr(load_graph(graph), "checkpointer", None)
    if found in (None, False, True):
        raise ConfigurationError(f"{graph} has no checkpointer, so there are no checkpoints to delete.")
    return found


def write_anchor(where: str, anchors: str | None, format: str) -> int:
    """Write an anchor about all threads that have grown since the last one."""
    screen = Screen(format)
    if anchors is not None:
        check_other_file("--anchors", anchors, where)
    with opened(where, sign=True, anchors=anchors) as ledger:
        anchor = ledger.anchor()
    if screen.format != "table":
        if anchor is not None or format == "json":
            screen.data(anchor)
        return 0
    if anchor is None:
        screen.say("no thread has grown since the last anchor.")
        return 0
    signed = f", signed by {anchor['key']}" if "key" in anchor else ", not signed"
    screen.say(
        f"anchor {anchor['n']}: {number_of(anchor['threads'], 'thread')}, up to entry {anchor['upto']:,}{signed}."
    )
    screen.say(
        f"Appended to {anchors}."
        if anchors
        else "Keep it outside of the database: arbiter anchor --anchors FILE"
    )
    return 0


def prune_records(where: str, keep_days: float) -> int:
    """Remove what is older than that many days."""
    screen = Screen("table")
    with opened(where, sign=True) as ledger, counting("pruning"):
        pruned = ledger.prune(keep_days)
    screen.say(
        f"pruned: {number_of(pruned.threads, 'thread')}, and the contents of "
        f"{number_of(pruned.contents, 'entry', 'entries')}, older than {keep_days:,.10g} "
        f"{'day' if keep_days == 1 else 'days'}."
    )
    return 0


def upgrade_ledger(where: str) -> int:
    """Bring the tables of a ledger to the newest schema."""
    from arbiter._databases import shown, upgrade_database
    from arbiter.ledger._database import SCHEMA

    before, after = upgrade_database(where, SCHEMA)
    with opened(where, create=True):  # an error if tables are gone
        pass
    done = "has the newest schema" if before == after else f"was upgraded from schema {before} to"
    Screen("table").say(f"{shown(where)} {done} {after}.")
    return 0
