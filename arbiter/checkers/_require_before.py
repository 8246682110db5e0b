"""A checker that lets some nodes run only after a step has passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack
from weakref import WeakKeyDictionary

from arbiter._values.parameters import Param, check_parameters
from arbiter._values.states import digest
from arbiter.checkers._steps import AfterStep, Per, Step, causal, find_step
from arbiter.errors import ParameterError
from arbiter.history._causal import CausalHistory
from arbiter.history._items import History, HistoryItem
from arbiter.instructions import Instruction
from arbiter.policy import CheckerOptions
from arbiter.verdicts import ALLOW, Verdict

if TYPE_CHECKING:
    from arbiter._conditions import Condition


class RequireBefore(AfterStep):
    """Its targets run only after the step `required` has passed: in the thread, or with `per="run"` in this
    run.

    A run of `required` (an instruction or "node:<name>") has passed if it completed, no router redirected it,
    and further: with `evaluator`, that evaluator's result passed; with `passed_when` (CEL over `output`,
    `input` or `state`, and `node`), the condition holds; with neither, all its evaluations that were read by
    then passed. A missing or failed evaluation is not a pass.

    With `once_per_use` each pass permits one completed run of the targets. With `bound_to` a pass counts only
    for the values of these fields (in the output of `required`, else in its input): the target's input must
    have the same values.

    With `since` (steps like `required`), the targets need a pass only after a completed run of one of these
    steps, and the pass must have seen that run, whatever ran in between; a sibling's pass has not seen it.
    Without such a run they need no pass.
    """

    @check_parameters
    def __init__(
        self,
        name: str,
        required: Annotated[
            Instruction | str,
            Param("the step that must have passed", expected="an instruction or 'node:<name>'"),
        ],
        *,
        evaluator: Annotated[
            str | None, Param("an evaluator whose result on that step must have passed")
        ] = None,
        passed_when: Annotated[
            str | None,
            Param(
                "a condition in CEL over `output`, `input` or `state`, and `node` of that step; it must hold"
            ),
        ] = None,
        once_per_use: Annotated[
            bool, Param("each pass permits one completed run of the targets", tighter="true")
        ] = False,
        bound_to: Annotated[
            Sequence[str] | None,
            Param(
                "a pass counts only for the values that these fields had in it",
                min_length=1,
                expected="a list of field names",
                tighter="more",
            ),
        ] = None,
        since: Annotated[
            Sequence[Instruction | str] | None,
            Param(
                "a pass is needed only after one of these steps has run, and must come after it",
                min_length=1,
                expected="a list of steps, each an instruction or 'node:<name>'",
            ),
        ] = None,
        per: Annotated[
            Per, Param("whether passes count in the whole thread or only in their run")
        ] = "thread",
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, required, per, **options)
        self.evaluator = evaluator
        self.needs = () if evaluator is None else (evaluator,)
        self.passed_when = None if passed_when is None else _compiled(self.owner, passed_when)
        self.once_per_use = once_per_use
        self.bound_to = tuple(bound_to or ())
        self.since = self._steps(since)
        if self.since:
            self.awaited_steps = (*self.awaited_steps, tuple(step.name for step in self.since))
        self._allowed: WeakKeyDictionary[History, str] = WeakKeyDictionary()
        """The pass that each running target used. Its body may change its input in place, so this is kept
        here.
        """

    def check_before(self, history: History) -> Verdict:
        if self.since:
            return self._check_since(causal(history))
        key = _PASSED
        if self.bound_to:
            state = history.item.input_state
            if missing := ", ".join(field for field in self.bound_to if field not in state):
                return Verdict.deny(f"the input lacks {missing}, to which a pass of {self.required} is bound")
            key = _key([state[field] for field in self.bound_to])
        if self.tallied(history, key) > 0:
            if self.once_per_use and self.bound_to:
                self._allowed[history] = key
            return ALLOW
        bound = f" for this {', '.join(self.bound_to)}" if self.bound_to else ""
        if self.once_per_use:
            return Verdict.deny(f"{self.required} has no unused pass{bound}{self.span}: each permits one run")
        return Verdict.deny(f"{self.required} has not passed{bound}{self.span}")

    def _check_since(self, view: CausalHistory) -> Verdict:
        if view.tally(self.name, _OPEN).at:
            is_open = self.tallied(view, _OPEN) > 0
        else:
            # Runs before the registration of the rule were not counted, and no pass has come since.
            begin = view.run_from if self.per == "run" else 0
            is_open = any((step.done_at(view) or 0) > begin for step in self.since)
        if not is_open:
            return ALLOW
        steps = " or ".join(map(str, self.since))
        return Verdict.deny(f"{self.required} has not passed since {steps}{self.span}")

    def observes(self, node: str, instruction: Instruction | None) -> bool:
        return (
            self.required.matches(node, instruction)
            or self._opens(node, instruction)
            or (self.once_per_use and self.applies_to(node, instruction))
        )

    def _opens(self, node: str, instruction: Instruction | None) -> bool:
        return any(step.matches(node, instruction) for step in self.since)

    def needs_of(self, node: str, instruction: Instruction | None) -> Sequence[str]:
        return self.needs if self.required.matches(node, instruction) else ()

    def observe(self, history: History) -> Mapping[str, float] | None:
        own = causal(history).item
        if self.since:
            return self._observe_since(own)
        used = self._used(history, own)
        if own.status != "completed":
            return None
        counted: dict[str, float] = {}
        if used is not None:
            counted[used] = -1
        is_required = self.required.matches(own.node, own.instruction)
        if is_required and self._passes(own, used is not None) and (key := self._key_of_pass(own)):
            counted[key] = counted.get(key, 0) + 1
        return counted

    def _observe_since(self, own: HistoryItem) -> Mapping[str, float] | None:
        if own.status != "completed":
            return None  # nothing of it is committed
        opens = self._opens(own.node, own.instruction)
        if self.required.matches(own.node, own.instruction) and self._passes(own, opens):
            return _CLOSED
        return _OPENED if opens else None

    def _used(self, history: History, own: HistoryItem) -> str | None:
        """The pass that a target has used. A run that was not allowed, in audit mode, used none."""
        if not self.once_per_use:
            return None
        key = self._allowed.pop(history, None) if self.bound_to else _PASSED
        if not self.applies_to(own.node, own.instruction):
            return None
        verdict = own.check_policy_results.get(self.name)
        if verdict is None or verdict.kind != "allow":
            return None
        return key

    def _passes(self, own: HistoryItem, counts: bool) -> bool:
        """True if the step passed. `counts`: there is something else to count for this node run."""
        try:
            return self._passed(own)
        except Exception:
            if not counts:
                raise  # the record gets the reason why nothing was counted
            return False

    def _passed(self, own: HistoryItem) -> bool:
        if own.redirected_to is not None:
            return False
        if self.evaluator is None and self.passed_when is None:
            return all(
                result is not None and result.passed is not False for result in own.read_results.values()
            )
        if self.evaluator is not None:
            result = own.evaluation_results.get(self.evaluator)
            if result is None or not result.passed:
                return False
        return self.passed_when is None or self.passed_when.evaluate(
            {
                "output": own.output_state,
                "input": own.input_state,
                "state": own.input_state,
                "node": own.node,
            }
        )

    def _key_of_pass(self, own: HistoryItem) -> str | None:
        if not self.bound_to:
            return _PASSED
        given, returned = own.input_state, own.output_state
        states = [returned if field in returned else given for field in self.bound_to]
        if not all(field in state for field, state in zip(self.bound_to, states, strict=True)):
            return None
        return _key([state[field] for field, state in zip(self.bound_to, states, strict=True)])

    def _steps(self, given: Sequence[Instruction | str] | None) -> tuple[Step, ...]:
        if given is None:
            return ()
        if self.once_per_use or self.bound_to:
            raise ParameterError(
                self.owner, "since", "cannot be combined with once_per_use or bound_to. Write two rules."
            )
        steps = tuple(find_step(self.owner, "since", one) for one in given)
        if self.required in steps:
            raise ParameterError(self.owner, "since", f"{self.required} is the required step itself.")
        return steps


_PASSED = "passed"
_OPEN = "open"
"""Counts the runs of the steps in `since` that no pass has seen."""
_OPENED: Mapping[str, float] = {_OPEN: 1}
_CLOSED: Mapping[str, float] = {_OPEN: float("-inf")}


def _key(values: Sequence[Any]) -> str:
    return f"{_PASSED}:{digest(values)}"


def _compiled(owner: str, expression: str) -> Condition:
    from arbiter._conditions import Condition

    try:
        return Condition(expression, variables={"output", "input", "state", "node"})
    except ValueError as exc:
        raise ParameterError(owner, "passed_when", str(exc)) from None
