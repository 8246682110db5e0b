"""Conditions: yes-or-no questions in CEL that are handed the fields they name, and nothing else.

    condition = Condition("input.amount > 1000 && !state.user.is_admin", variables={"input", "state"})
    condition.evaluate({"input": {"amount": 2000}, "state": {"user": {"is_admin": False}}})  # True

What is handed over is found once, from the text: a `Scan` follows each chain of members (`state.user.is_admin`)
and leaves a tree of needs, one node for a field. So a question about one number costs the same beside a state of
1 MB. Where a chain cannot be followed further (`state.roles[input.key]`, `size(state.messages)`), as much is handed
over as could be asked for, and it is an error when that would be a whole state. What a tree holds beyond what is
asked for changes no answer; what it lacks is an error and never an answer. See docs/kinds/condition-checker.md.
"""

from arbiter.conditions.condition import Condition, condition_of
from arbiter.conditions.totals import Totals, instructions_in
from arbiter.errors import ConditionError

__all__ = ["Condition", "ConditionError", "Totals", "condition_of", "instructions_in"]
