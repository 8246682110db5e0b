"""The shadow report: decisions in which a constitution without effect differs from the one in force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from arbiter._threads.forks import new_lock
from arbiter._values.recent import Recent

if TYPE_CHECKING:
    from rich.console import Console

KEEP_DIFFERENCES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDecision:
    """The decision of one constitution about one node run.

    `kind` is "allow", "ask" or "deny" before a node and "continue" or "redirect" after it; `policy` is the
    policy that decided, and `target` the destination of the run.
    """

    kind: str
    policy: str = ""
    reason: str = ""
    target: str = ""

    def __str__(self) -> str:
        goes = f" → {self.target}" if self.target else ""
        by = f" by {self.policy}" if self.policy else ""
        return f"{self.kind}{goes}{by}"

    def same_as(self, other: ShadowDecision) -> bool:
        return (self.kind, self.target) == (other.kind, other.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDifference:
    """One decision about one node run in which the two constitutions differ. `item` is the id of its
    `HistoryItem`.
    """

    stage: Literal["check", "route"]
    item: str
    node: str
    instruction: str | None
    step: int
    thread_id: str | None
    enforced: ShadowDecision
    shadow: ShadowDecision


class ShadowReport(Sequence[ShadowDifference]):
    """The decisions that differ, oldest first; the newest 10,000 are kept. `compared` is the number of all
    decisions.
    """

    def __init__(self, differences: Sequence[ShadowDifference], compared: int) -> None:
        self._differences = tuple(differences)
        self.compared = compared

    @overload
    def __getitem__(self, index: int) -> ShadowDifference: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShadowDifference]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._differences[index]

    def __iter__(self) -> Iterator[ShadowDifference]:
        return iter(self._differences)

    def __len__(self) -> int:
        return len(self._differences)

    def __bool__(self) -> bool:
        return True

    def to_dicts(self) -> list[dict[str, Any]]:
        """All differences as plain JSON-able data."""
        return [asdict(difference) for difference in self._differences]

    def pprint(self, console: Console | None = None) -> None:
        """Print the differences as a table."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{len(self)} of {self.compared} decisions differ", title_justify="left")
        for name in ("thread", "node", "enforced", "shadow", "reason"):
            table.add_column(name, overflow="fold")
        for each in self._differences:
            reason = each.shadow.reason or each.enforced.reason
            cells = (each.thread_id or "", each.node, str(each.enforced), str(each.shadow), reason)
            table.add_row(*(Text(_printable(cell)) for cell in cells))
        (console or Console()).print(table)

    def __repr__(self) -> str:
        return f"<ShadowReport: {len(self)} of {self.compared} decisions differ>"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


class ShadowLog:
    """The compared decisions. A retry or resume of a node run replaces its earlier entry."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._differences = Recent[tuple[str, str], ShadowDifference](KEEP_DIFFERENCES)
        self._compared = 0

    def add(self, difference: ShadowDifference) -> None:
        key = (difference.stage, difference.item)
        with self._lock:
            self._compared += 1
            self._differences.pop(key, None)
            if not difference.enforced.same_as(difference.shadow):
                self._differences[key] = difference

    def clear(self) -> None:
        with self._lock:
            self._differences.clear()
            self._compared = 0

    def report(self) -> ShadowReport:
        with self._lock:
            return ShadowReport(list(self._differences.values()), self._compared)
