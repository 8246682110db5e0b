"""A checker that forbids a sequence of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Unpack

from arbiter._values.parameters import Param, check_parameters
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History
from arbiter.instructions import Instruction, find_instruction
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import ALLOW, Verdict


class HistoryPolicyChecker(PolicyChecker):
    """Forbids a sequence of instructions: its last one may not run after the others in that order.

    With `adjacent=True` only a sequence in consecutive supersteps of one run is forbidden; a superstep with
    several items matches by any of them. With `adjacent=False` other steps may stand between, in the whole
    known past of the thread: exact for up to three instructions, and for longer ones as far back as facts are
    kept (256 by default).
    """

    blocking = False

    @check_parameters
    def __init__(
        self,
        name: str,
        bad_sequence: Annotated[
            Sequence[Instruction | str],
            Param(
                "the instructions that may not run in this order; the last one is denied",
                min_length=1,
                expected="a non-empty list of instructions",
            ),
        ],
        *,
        adjacent: Annotated[
            bool, Param("whether the sequence must fill consecutive supersteps of one run to be forbidden")
        ] = True,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        self.bad_sequence = tuple(find_instruction(step) for step in bad_sequence)
        self.adjacent = adjacent
        self.awaited_steps = tuple((step,) for step in self.bad_sequence)

    def check_before(self, history: History) -> Verdict:
        *before, last = self.bad_sequence
        own = history.item
        if own.instruction != last or (before and not self._happened(history, before)):
            return ALLOW
        steps = " → ".join(map(str, self.bad_sequence))
        how = "" if self.adjacent else ", with other steps between,"
        return Verdict.deny(f"the sequence {steps}{how} is forbidden")

    def _happened(self, history: History, before: Sequence[Instruction]) -> bool:
        if not self.adjacent:
            return self._happened_anywhere(history, before)
        if isinstance(history, CausalHistory):
            recent = history.recent(len(before))
        else:
            recent = [{item.instruction for item in step} for step in history.entries[:-1]][-len(before) :]
        return len(recent) == len(before) and all(
            wanted in step for wanted, step in zip(before, recent, strict=True)
        )

    def _happened_anywhere(self, history: History, before: Sequence[Instruction]) -> bool:
        if isinstance(history, CausalHistory) and len(before) <= 2:
            first = history.first_at(before[0])
            if len(before) == 1 or first is None:
                return first is not None
            last = history.last_at(before[1])
            return last is not None and first < last
        position = 0
        for step in history.entries[:-1]:
            if position < len(before) and any(item.instruction == before[position] for item in step):
                position += 1
        return position == len(before)
