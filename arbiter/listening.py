"""`HistoryListener`: follows what happens in governed runs, as it happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, overload

from arbiter._threads.deadlines import is_from_outside
from arbiter.errors import RegistrationError, describe
from arbiter.history._facts import RunFact
from arbiter.history._items import HistoryItem
from arbiter.history._record import ExecutionInfo, Position, record_from

__all__ = ["ExecutionInfo", "HistoryListener", "tell"]

_log = logging.getLogger("arbiter")


class HistoryListener:
    """Base class for code that records or reports what governed graphs do: override the methods you need.

    Each method is called on the run's own thread, or on the event loop of an async run, so it must be quick
    and must not wait. An exception is logged and has no effect on the run. `item.execution` says which call
    of the graph an item belongs to. Items are read-only; their states may be copied but not kept, because
    later nodes can change the objects inside.
    """

    keeps_facts = False
    """True if the facts about node runs have to be in the checkpoints even if no rules are registered."""
    keeps_times = False
    """True if the listener reads when checkers that ask a model, and evaluators, began and ended."""

    def execution_began(self, execution: ExecutionInfo) -> None:
        """A call of `invoke`, `stream` or one of their twins has begun. Graphs inside nodes belong to it."""

    def execution_ended(self, execution: ExecutionInfo) -> None:
        """That call has ended; `execution.outcome` says how."""

    def began(self, item: HistoryItem) -> None:
        """An attempt of a node run begins. No checker has seen its input yet."""

    def ended(self, item: HistoryItem) -> None:
        """The attempt has ended, however it ended. Its writes are made, but not committed yet.

        Evaluations may still be running: `item.read_results` has those that were read.
        """

    def restored(self, items: Sequence[HistoryItem]) -> None:
        """A thread goes on, and its checkpoint has facts about node runs that have no record in this process:
        another process ran them, or their records were dropped.

        The items have what the facts have, and empty states. A fact's own id may be missing: then the item's
        id begins with `#`. `item.execution.run_id` is "" for a run before the current one.
        """

    def judged(self, item: HistoryItem) -> None:
        """All evaluations of the item are done. Called at once after `ended` if there are none left."""


def ensure_listener(listener: Any) -> HistoryListener:
    """The listener itself. Raises `RegistrationError` if it is none."""
    if not isinstance(listener, HistoryListener):
        raise RegistrationError(
            f"expected a HistoryListener, got {listener!r:.80}. Derive its class from arbiter.HistoryListener."
        )
    return listener


def tell(listeners: Iterable[HistoryListener], event: str, about: Any) -> None:
    """Report an event to all listeners. Raises only what comes from outside, such as Ctrl-C."""
    for listener in listeners:
        try:
            getattr(listener, event)(about)
        except BaseException as error:  # also SystemExit: a listener's failure never ends the run
            if is_from_outside(error):
                raise
            _log.warning("listener %s failed in %r: %s", type(listener).__name__, event, describe(error))


Positions = Callable[[], Mapping[str, Position]]


class RestoredItems(Sequence[HistoryItem]):
    """The items of facts, each made when it is asked for: a thread that goes on waits for none of them.

    The items in `of_run` belong to the run of the execution. `positions` returns the places that are
    known, by the ids of the facts.
    """

    def __init__(
        self,
        execution: ExecutionInfo,
        facts: Iterable[RunFact],
        of_run: Iterable[RunFact],
        positions: Positions,
    ) -> None:
        self._facts = list(facts)
        self._positions = cache(positions)
        self._current = {fact["id"] for fact in of_run}
        self._same = replace(execution, id="", outcome=None)
        self._before = replace(self._same, run_id="")

    def __len__(self) -> int:
        return len(self._facts)

    @overload
    def __getitem__(self, place: int) -> HistoryItem: ...
    @overload
    def __getitem__(self, place: slice) -> list[HistoryItem]: ...
    def __getitem__(self, place: int | slice) -> HistoryItem | list[HistoryItem]:
        return (
            list(map(self._item, self._facts[place]))
            if isinstance(place, slice)
            else self._item(self._facts[place])
        )

    def _item(self, fact: RunFact) -> HistoryItem:
        record = record_from(fact)
        record.execution = self._same if fact["id"] in self._current else self._before
        record.position = self._positions().get(fact["id"])
        return HistoryItem(record)
