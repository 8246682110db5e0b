"""`HistoryListener`: follows what happens in governed runs, as it happens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from arbiter.errors import RegistrationError, describe
from arbiter.history._items import HistoryItem
from arbiter.history._record import ExecutionInfo

__all__ = ["ExecutionInfo", "HistoryListener", "tell"]

_log = logging.getLogger("arbiter")


class HistoryListener:
    """Base class for code that records or reports what governed graphs do: override the methods you need.

    Each method is called on the run's own thread, or on the event loop of an async run, so it must be quick
    and must not wait. An exception is logged and has no effect on the run. `item.execution` says which call
    of the graph an item belongs to. Items are read-only; their states may be copied but not kept, because
    later nodes can change the objects inside.
    """

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
    """Tell all listeners of an event. Never raises."""
    for listener in listeners:
        try:
            getattr(listener, event)(about)
        except Exception as error:
            _log.warning("listener %s failed in %r: %s", type(listener).__name__, event, describe(error))
