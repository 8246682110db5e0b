"""The totals of a history, for conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arbiter._conditions.needs import Field
from arbiter.errors import ConditionError, UnknownInstructionError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History
from arbiter.instructions import Instruction, find_instruction


class Totals(Mapping[str, Any]):
    """A history as a condition sees it: numbers, each counted when it is read, in constant time.

    `count`, `counts.<INSTRUCTION>` and `nodes.<node>` equal those of `History.count`, so they include the
    node run itself. `denied.<policy>` is the number of committed node runs that this policy has denied.
    `instructions` are the ones that the conditions name.
    """

    def __init__(self, history: History, instructions: Mapping[str, Instruction]) -> None:
        self._history = history
        self._instructions = instructions

    def __getitem__(self, key: str) -> Any:
        if key == "count":
            return self._history.count()
        if key in TOTALS:
            return _Total(self._history, key, self._instructions)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("count", *TOTALS))

    def __len__(self) -> int:
        return 1 + len(TOTALS)


TOTALS = ("counts", "nodes", "denied")


class _Total(Mapping[str, int]):
    def __init__(self, history: History, of: str, instructions: Mapping[str, Instruction]) -> None:
        self._history = history
        self._of = of
        self._instructions = instructions

    def __getitem__(self, key: str) -> int:
        if self._of == "counts":
            return self._history.count(self._instructions[key])
        if self._of == "nodes":
            return self._history.count(node=key)
        if isinstance(self._history, CausalHistory):
            return self._history.past.total("denied", key)
        return sum(
            key in checks and checks[key].kind == "deny"
            for checks in (item.check_policy_results for item in self._history.items())
        )

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def check_history(expression: str, field: Field) -> None:
    if field[0] != "history" or field[1:] == ("count",):
        return
    if len(field) != 3 or field[1] not in TOTALS:
        raise ConditionError(
            expression,
            f"the history has no {'.'.join(map(str, field[1:]))!r}. Write history.count, "
            "history.counts.TOOL_CALL, history.nodes.<node> or history.denied.<policy>",
        )
    if field[1] == "counts":
        try:
            find_instruction(field[2])
        except UnknownInstructionError as exc:
            raise ConditionError(expression, str(exc).rstrip(".")) from None
