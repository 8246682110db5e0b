"""A checker that evaluates a CEL condition on the state."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from langchain_core.runnables.config import var_child_runnable_config

from arbiter._conditions import Condition, ConditionError, Totals, condition_of, instructions_in
from arbiter._values.parameters import Param, check_parameters
from arbiter.errors import ParameterError
from arbiter.history._items import History
from arbiter.policy import CheckerOptions, PolicyChecker
from arbiter.verdicts import Verdict

_VARIABLES = frozenset({"state", "input", "history", "node", "instruction", "config"})


class ConditionChecker(PolicyChecker):
    """Denies if the condition `deny_when` is true, and asks a human if `ask_when` is true.

    Conditions are CEL over `state` and `input` (both are the input of the node: the state of the graph, or
    the payload of a `Send`), `history` (`count`, `counts.<INSTRUCTION>`, `nodes.<node>`, `denied.<policy>`),
    `node`, `instruction` (a text such as "TOOL_CALL", or null) and `config` (the run's `configurable`). A
    denial is stronger than a question. If a condition fails, or needs a missing field, the node is denied and
    the reason names the field. `reason` is the text shown to users, by default the condition itself.
    """

    reads_history = False

    @check_parameters
    def __init__(
        self,
        name: str,
        deny_when: Annotated[
            str | None,
            Param("a condition in CEL: true denies. It wins over `ask_when`; one of the two is needed"),
        ] = None,
        *,
        ask_when: Annotated[str | None, Param("a condition in CEL: true asks a human")] = None,
        reason: Annotated[
            str | None,
            Param("the text that is shown; by default the condition that was true", tighter="any"),
        ] = None,
        **options: Unpack[CheckerOptions],
    ) -> None:
        super().__init__(name, **options)
        owner = f"checker {name!r}"
        if deny_when is None and ask_when is None:
            raise ParameterError(
                owner, "deny_when", "expected a condition, got none. Give deny_when, ask_when or both."
            )
        self.deny_when = deny_when
        self.ask_when = ask_when
        self.reason = reason
        self._deny = None if deny_when is None else condition_of(owner, "deny_when", deny_when, _VARIABLES)
        self.asks = ask_when is not None
        self._ask = None if ask_when is None else condition_of(owner, "ask_when", ask_when, _VARIABLES)
        asked = [condition for condition in (self._deny, self._ask) if condition is not None]
        named = {field[0] for condition in asked for field in condition.fields}
        self._instructions = instructions_in(asked)
        self.blocking = None if any(condition.grows for condition in asked) else False
        if not named.isdisjoint({"history", "config"}):
            self.reads_history = True

    def check_before(self, history: History) -> Verdict:
        own = history.item
        state = own.input_state
        config = var_child_runnable_config.get() or {}
        values: dict[str, Any] = {
            "state": state,
            "input": state,
            "history": Totals(history, self._instructions),
            "node": own.node,
            "instruction": own.instruction,
            "config": config.get("configurable", {}),
        }
        try:
            if self._deny is not None and self._deny.evaluate(values):
                return Verdict.deny(self._shown(self._deny))
            if self._ask is not None and self._ask.evaluate(values):
                return Verdict.ask(self._shown(self._ask))
        except ConditionError as exc:
            return Verdict.deny(f"the condition could not be evaluated: {exc}")
        return Verdict.allow()

    def _shown(self, condition: Condition) -> str:
        return condition.expression if self.reason is None else self.reason
