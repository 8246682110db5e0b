"""`Ahead`: the checker with which a ledger proves, before a body runs, that the node was allowed.

It allows every node itself. Its `handlers` are asked for when all checkers and humans have allowed the node;
then the entry `started` is committed. If that is impossible within `WITHIN` seconds, the node is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from langchain_core.callbacks import BaseCallbackHandler

from arbiter.errors import PolicyViolationError
from arbiter.history import HistoryItem
from arbiter.history._items import History
from arbiter.instructions import Instruction
from arbiter.ledger._database import LedgerError
from arbiter.policy import PolicyChecker

Mode = Literal["never", "acts", "always"]
WITHIN = 5.0
"""Seconds that a node waits until its entry is committed."""


class Ahead(PolicyChecker):
    """Commits an entry before the body of each node whose instruction acts, or of each node."""

    blocking = True
    when_idle = (
        "no node has an instruction that acts, so ahead='acts' does nothing",
        "Name instructions in govern(graph, instructions={...}), or give the ledger ahead='always'.",
    )
    reads_history = False  # an output from a cache needs no entry: no body runs

    def __init__(self, when: Mode, commit: Callable[[HistoryItem, float, float], None]) -> None:
        super().__init__("ledger")
        self.description = "commits an entry to the ledger before the body runs"
        self._always = when == "always"
        self._commit = commit

    def applies_to(self, node: str, instruction: Instruction | None) -> bool:
        return self._always or (instruction is not None and instruction.acts)

    def check_before(self, history: History) -> bool:
        return True

    def handlers(self, history: History) -> Sequence[BaseCallbackHandler]:
        item = history.item
        try:
            self._commit(item, history.clock(), WITHIN)
        except LedgerError as error:
            raise PolicyViolationError(
                policy=self.name,
                node=item.node,
                instruction=item.instruction,
                reason=f"its start could not be recorded before it began: {error}",
            ) from error
        return ()
