"""The history: every node run and the decisions about it, in memory and in checkpoints.

A `History` is a sequence of supersteps of items. `RunHistory` holds the runs in memory; `CausalHistory` is
the view that a node run gets: its committed past and its own run.
"""

from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem, RunHistory
from arbiter.history._record import Status

__all__ = [
    "CausalHistory",
    "History",
    "HistoryItem",
    "RunHistory",
    "Status",
]
