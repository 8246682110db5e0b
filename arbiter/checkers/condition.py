"""A checker that asks a condition in CEL about the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from arbiter.conditions import Condition, ConditionError, Totals, condition_of, instructions_in
from arbiter.errors import ParameterError
from arbiter.history import History
from arbiter.instructions import Instruction
from arbiter.policy import OnDeny, PolicyChecker
from arbiter.verdicts import Verdict

_VARIABLES = frozenset({"state", "input", "history", "node", "instruction", "config"})


class ConditionChecker(PolicyChecker):
    """Denies when the condition `deny_when` is true, and asks a human when `ask_when` is.

    Conditions are CEL over `state` and `input` (both are the input of the node: in LangGraph the state of the graph,
    or what `Send` gave it), `history` (`count`, `counts.<INSTRUCTION>`, `nodes.<node>`, `denied.<policy>`), `node`,
    `instruction` (a text such as "TOOL_CALL", or null) and `config` (the run's `configurable`). A denial is stronger
    than a question. A condition that fails, or needs a field that is missing, has denied and says which.
    `reason` is the text that is shown, by default the condition itself.
    """

    reads_history = False

    def __init__(
        self,
        name: str,
        deny_when: str | None = None,
        *,
        ask_when: str | None = None,
        reason: str | None = None,
        target_instructions: Iterable[Instruction | str] | None = None,
        target_nodes: Iterable[str] | None = None,
        on_deny: OnDeny = "raise",
    ) -> None:
        super().__init__(name, target_instructions, target_nodes, on_deny)
        owner = f"checker {name!r}"
        if deny_when is None and ask_when is None:
            raise ParameterError(
                owner, "deny_when", "expected a condition, got none. Give deny_when, ask_when or both."
            )
        given: Any = reason
        if given is not None and not isinstance(given, str):
            raise ParameterError(owner, "reason", f"expected a text, got {given!r}.")
        self.deny_when = deny_when
        self.ask_when = ask_when
        self.reason = reason
        self._deny = None if deny_when is None else condition_of(owner, "deny_when", deny_when, _VARIABLES)
        self._ask = None if ask_when is None else condition_of(owner, "ask_when", ask_when, _VARIABLES)
        asked = [condition for condition in (self._deny, self._ask) if condition is not None]
        named = {field[0] for condition in asked for field in condition.fields}
        self._instructions = instructions_in(asked)
        self.blocking = None if any(condition.grows for condition in asked) else False
        if not named.isdisjoint({"history", "config"}):
            self.reads_history = True

    def check_before(self, history: History) -> Verdict:
        own = history.entries[-1][-1]
        state = own.input_state
        config = var_child_runnable_config.get() or {}
        values: dict[str, Any] = {
            "state": state,
            "input": state,
            "history": Totals(history, self._instructions),
            "node": own.node,
            "instruction": own.instruction,
            "config": config.get("configurable") or {},
        }
        try:
            if self._deny is not None and self._deny.evaluate(values):
                return Verdict.deny(self._shown(self._deny))
            if self._ask is not None and self._ask.evaluate(values):
                return Verdict.ask(self._shown(self._ask))
        except ConditionError as exc:
            return Verdict.deny(f"it could not be told whether it may run: {exc}")
        return Verdict.allow()

    def _shown(self, condition: Condition) -> str:
        return condition.expression if self.reason is None else self.reason
